"""The agent's configuration: defaults, refusals that name file, key and value."""

import dataclasses
import tempfile
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config import AgentConfig, JobRule, load
from agent.daemon import Daemon
from central.config import load as load_central
from whitepanda.common.errors import ConfigError
from whitepanda.v1 import agent_pb2

MINIMAL = "[agent]\n"
SOCKETS = "the system's limit for sockets"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    return path


def test_minimal_file_has_the_documented_defaults(tmp_path):
    config = load(written(tmp_path, MINIMAL))
    assert config.agent.tick_s == 1.0
    assert config.agent.window_s == 10.0
    assert config.agent.socket == "/run/whitepanda/agent.sock"
    assert (config.sources.perf.mode, config.sources.simulated.mode) == ("auto", "off")
    assert config.analysis.victim_slots == 3
    assert config.jobs == ()


def test_the_other_daemons_file_is_one_line(tmp_path):
    path = written(tmp_path, "[central]\nlisten = 'localhost:7443'\n")
    with pytest.raises(ConfigError) as error:
        load(path)
    assert error.value.problems == (f"{path}: this is central's configuration; start it with `whitepanda central run`",)
    path = written(tmp_path, MINIMAL)
    with pytest.raises(ConfigError) as error:
        load_central(path)
    assert error.value.problems == (f"{path}: this is an agent's configuration; start it with `whitepanda agent run`",)


def test_configuration_is_frozen(tmp_path):
    config = load(written(tmp_path, MINIMAL))
    with pytest.raises(AttributeError):
        config.agent.tick_s = 2.0
    assert not dataclasses.is_dataclass(config)
    assert isinstance(config, msgspec.Struct)


def test_job_rules_are_read_in_order(tmp_path):
    text = (
        MINIMAL
        + r"""
[[jobs]]
pattern = '^web-(\d+)$'
job = 'web'
latency_sensitive = true
[[jobs]]
fact = 'nova:flavor'
pattern = '^db\.(?P<size>\w+)$'
job = 'database-\g<size>'
owner = 'team-\g<size>'
"""
    )
    assert load(written(tmp_path, text)).jobs == (
        JobRule(r"^web-(\d+)$", "web", "name", True),
        JobRule(r"^db\.(?P<size>\w+)$", r"database-\g<size>", "nova:flavor", owner=r"team-\g<size>"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[agent]\ntick_s = 0.01\nwindow_s = 10.0", "agent.tick_s must be 0.05 to 60 (value 0.01)"),
        ("[agent]\ntick_s = 3.0", "agent.window_s must be a multiple of agent.tick_s 3.0 (value 10.0)"),
        (
            "[windows.batch]\nwindow_s = 2.5",
            "windows.batch.window_s must be a multiple of agent.tick_s 1.0 (value 2.5)",
        ),
        (
            '[windows.latency_sensitive]\nmetrics = ["cpi", "gipps"]',
            (
                'windows.latency_sensitive.metrics must be "all", or metrics that windows have (docs/metrics.md) '
                "(value 'gipps')"
            ),
        ),
        ("[agent]\nwindow_s = 0.5", "agent.window_s must be a multiple of agent.tick_s 1.0 (value 0.5)"),
        ("[sources.perf]\nmin_running_ratio = 1.5", "sources.perf.min_running_ratio must be 0 to 1 (value 1.5)"),
        ("[sources.perf]\nopens_per_tick = 0", "sources.perf.opens_per_tick must be 1 to 10000 (value 0)"),
        ("[sources.libvirt]\ndeadline_s = -1.0", "sources.libvirt.deadline_s must be 0.1 to 60 (value -1.0)"),
        ("[uplink]\naddress = 'central'", "uplink.address must be host:port (value 'central')"),
        (
            "[cloud_white]\nbaseline_quiet_s = 7200.0",
            "cloud_white.baseline_disturbed_s must be at least baseline_quiet_s (value 3600.0)",
        ),
        ("[cloud_white]\nsensitivity = 0.0", "cloud_white.sensitivity must be 0.25 to 4 (value 0.0)"),
        (
            "[uplink]\nreconnect_min_s = 5.0\nreconnect_max_s = 1.0",
            "uplink.reconnect_max_s must be at least reconnect_min_s (value 1.0)",
        ),
        ("[analysis]\nmn_cpi_percentile = 10.0", "analysis.mn_cpi_percentile must be 50 to 100 (value 10.0)"),
        ("[analysis]\nmn_cpi_floor = nan", "analysis.mn_cpi_floor must be a finite number (value nan)"),
        ("[analysis]\nvictim_slots = 0", "analysis.victim_slots must be 1 to 100 (value 0)"),
        ("[agent]\nwindow_s = 1e12", "agent.window_s must be 0.05 to 3600 (value 1000000000000.0)"),
        ("[agent]\nmin_activity_cores = -5", "agent.min_activity_cores must be 0 to 64 (value -5.0)"),
        ("[analysis]\nmn_cpi_floor = -3", "analysis.mn_cpi_floor must be 0 to 2.75 (value -3.0)"),
        ("[uplink]\nbatch_rows = 99999999", "uplink.batch_rows must be 1 to 10000 (value 99999999)"),
        (
            "[uplink]\nspool_max_mib = 99999999999999999",
            "uplink.spool_max_mib must be 1 to 1048576 (value 99999999999999999)",
        ),
        ("[uplink]\naddress = 'host:99999'", "uplink.address must have a port of 1 to 65535 (value 'host:99999')"),
        ("[uplink]\naddress = 'host:0'", "uplink.address must have a port of 1 to 65535 (value 'host:0')"),
        ("[uplink]\naddress = 'a b:1'", "uplink.address must be host:port (value 'a b:1')"),
        ("[uplink]\naddress = 'host:\u00b2'", "uplink.address must be host:port (value 'host:\u00b2')"),
        ("[agent]\nhost = 'a b/c'", "agent.host must be at most 253 letters, digits, '.', '_' and '-' (value 'a b/c')"),
        ('[agent]\nplatform = "a\\nb"', "agent.platform must be at most 512 printable characters (value 'a\\nb')"),
        (
            f"[agent]\nsocket = '/{'s' * 107}'",
            f"agent.socket must be a path of 1 to 107 bytes, {SOCKETS} (value '/{'s' * 107}', 108 bytes)",
        ),
        (
            "[sources.simulated]\nmode = 'auto'",
            "sources.simulated.scenario must name a file when its source's mode is 'auto'",
        ),
    ],
)
def test_impossible_values_are_refused(tmp_path, text, message):
    path = written(tmp_path, text if "[agent]" in text else MINIMAL + text)
    with pytest.raises(ConfigError) as error:
        load(path)
    assert str(error.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("pattern", "job", "message"),
    [
        ("web[", "x", "jobs[0].pattern is not a regular expression (value 'web['): unterminated"),
        (r"web-(\d)", r"\2", r"'\\2'): invalid group reference 2"),
        (r"web-(?P<n>\d)", r"\g<m>", r"jobs[0].job does not fit the pattern (value '\\g<m>'): unknown group name 'm'"),
        ("web", r"\q", r"'\\q'): bad escape \q"),
    ],
)
def test_job_rules_that_cannot_work_are_refused(tmp_path, pattern, job, message):
    with pytest.raises(ConfigError) as error:
        load(written(tmp_path, f"{MINIMAL}[[jobs]]\npattern = '{pattern}'\njob = '{job}'\n"))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("workers", "message"),
    [
        ("0", "jobs[1].workers must be 1 to 4096 (value 0)"),
        ("-1", "jobs[1].workers must be 1 to 4096 (value -1)"),
        ("4097", "jobs[1].workers must be 1 to 4096 (value 4097)"),
        ("1.5", "jobs[1].workers must be a whole number, got 1.5"),
    ],
)
def test_workers_that_no_vm_can_have_are_refused(tmp_path, workers, message):
    rule = "[[jobs]]\npattern = 'web'\njob = 'x'\n"
    with pytest.raises(ConfigError) as error:
        load(written(tmp_path, f"{MINIMAL}{rule}{rule}workers = {workers}\n"))
    assert message in str(error.value)


@pytest.mark.parametrize("workers", [1, 4096])
def test_workers_at_the_ends_of_their_range_are_taken(tmp_path, workers):
    text = f"{MINIMAL}[[jobs]]\npattern = 'web'\njob = 'x'\nworkers = {workers}\n"
    assert load(written(tmp_path, text)).jobs[0].workers == workers


@pytest.mark.parametrize(
    ("owner", "message"),
    [
        (r"\2", r"jobs[0].owner does not fit the pattern (value '\\2'): invalid group"),
        (r"\g<m>", r"jobs[0].owner does not fit the pattern (value '\\g<m>'): unknown group name 'm'"),
    ],
)
def test_owners_that_cannot_be_made_are_refused(tmp_path, owner, message):
    rule = rf"[[jobs]]{chr(10)}pattern = 'web-(\d)'{chr(10)}job = 'x'{chr(10)}owner = '{owner}'{chr(10)}"
    with pytest.raises(ConfigError) as error:
        load(written(tmp_path, MINIMAL + rule))
    assert message in str(error.value)


@pytest.mark.parametrize(("pattern", "job"), [(r"a(b)?", r"\1"), ("(?i)web", "web"), ("^$", r"\g<0>")])
def test_job_rules_that_work_are_taken_whether_or_not_the_pattern_matches_nothing(tmp_path, pattern, job):
    config = load(written(tmp_path, f"{MINIMAL}[[jobs]]\npattern = '{pattern}'\njob = '{job}'\n"))
    assert config.jobs[0].pattern == pattern


def test_missing_agent_table_is_named(tmp_path):
    path = written(tmp_path, "")
    with pytest.raises(ConfigError, match=r"agent\.toml: \[agent\] is missing"):
        load(path)


def test_defaults_of_all_settings_pass_the_check(tmp_path):
    """Whoever writes every default into a file gets the same configuration."""
    config = load(written(tmp_path, MINIMAL))
    again = msgspec.convert(msgspec.to_builtins(config), AgentConfig)
    assert again == config


@pytest.mark.parametrize("address", ["central:1", "10.0.0.1:65535", "[::1]:7443", "[fe80::1%eth0]:7443"])
def test_addresses_of_every_kind_are_taken(tmp_path, address):
    config = load(written(tmp_path, f"{MINIMAL}[uplink]\naddress = '{address}'\n"))
    assert config.uplink.address == address


def test_the_longest_socket_path_and_host_name_are_taken(tmp_path):
    socket, host = "/" + "s" * 106, "h" * 253
    config = load(written(tmp_path, f"[agent]\nsocket = '{socket}'\nhost = '{host}'\n"))
    assert (config.agent.socket, config.agent.host) == (socket, host)


def unbounded(kind):
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from unbounded(field.type)
        elif field.type in (int, float):
            yield field.name


def test_every_number_has_bounds():
    assert list(unbounded(AgentConfig)) == []


@given(
    tick_s=st.floats(0.01, 100) | st.sampled_from([0.05, 0.5, 1.0, 60.0]),
    ticks=st.integers(0, 10**9),
    window_s=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    host=st.text(st.characters(codec="utf-8", exclude_characters="'\r\n", exclude_categories=["Cc"])),
)
def test_whatever_is_accepted_can_be_reported_in_a_hello(tick_s, ticks, window_s, host):
    window_s = tick_s * ticks if window_s is None else window_s
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.toml"
        path.write_text(f"[agent]\ntick_s = {tick_s!r}\nwindow_s = {window_s!r}\nhost = '{host}'\n", encoding="utf-8")
        try:
            config = load(path)
        except ConfigError:
            return
    hello = Daemon(config, plans=())._hello()
    assert 50 <= hello.window_ms <= 3_600_000
    assert abs(hello.agent_started_unix_ns - time.time_ns()) < 60 * 10**9
    assert agent_pb2.Hello.FromString(hello.SerializeToString()) == hello


def test_a_simulated_host_switches_the_real_sources_off(tmp_path):
    (tmp_path / "a.toml").write_text(
        "[agent]\n[sources.simulated]\nmode = 'auto'\nscenario = 'x'\n[sources.perf]\nmode = 'required'\n"
    )
    sources = load(tmp_path / "a.toml").sources
    modes = {source: getattr(sources, source).mode for source in sources.__struct_fields__}
    assert modes.pop("simulated") == "auto"
    assert modes.pop("perf") == "required"
    assert set(modes.values()) == {"off"}
    (tmp_path / "a.toml").write_text("[agent]\n")
    assert load(tmp_path / "a.toml").sources.procfs.mode == "auto"
