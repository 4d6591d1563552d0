import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from agent import config as agent_config_module
from central import config as central_config_module
from central.cli import demo as demo_command
from central.cli.demo import _folders, _tell, demo
from central.demo import backfill, fleet
from central.demo.outcome import Outcome, Victim
from central.demo.processes import Daemons
from central.demo.run import DURATION, Demo
from central.demo.show import LiveShow, PlainShow, Show, print_outcome
from central.demo.watch import LATENCY_TRUTH, AgentWatch, Latency, Ranked, SlotEstimate, Truth
from collector.simulated.profiles import PROFILES
from collector.simulated.scenario import parse
from tests.support.metric_columns import metrics_of
from whitepanda.common.cli import PlainConsole
from whitepanda.common.errors import InputError, UnavailableError
from whitepanda.common.tls import TlsFiles
from whitepanda.v1 import agent_pb2, host_pb2

ROOT = Path(__file__).resolve().parents[4]
S = 1_000_000_000
TLS = TlsFiles(ca="/x/ca.crt", certificate="/x/a.crt", key="/x/a.key")


# --- the fleet ---


@pytest.mark.parametrize("seed", [1, 2, 3, 40])
def test_a_fleet_is_made_of_its_seed_alone(seed: int, tmp_path: Path) -> None:
    made = fleet.make_fleet(seed, tmp_path / "go")
    assert made == fleet.make_fleet(seed, tmp_path / "go")
    assert made != fleet.make_fleet(seed + 1, tmp_path / "go")
    assert len(made.hosts) == 4
    assert made.target in [host.name for host in made.hosts]


def test_the_injected_job_is_only_on_its_host_now_and_only_elsewhere_before(tmp_path: Path) -> None:
    made = fleet.make_fleet(1, tmp_path / "go")
    for host in made.hosts:
        live = parse(tomllib.loads(host.live_toml), host.name)
        jobs_now, jobs_before = {vm.job for vm in live.vms}, {vm.job for vm in host.past.vms}
        is_target = host.name == made.target
        assert made.antagonist_job in jobs_now
        assert (made.antagonist_job in jobs_before) == (not is_target)
        injected = [a.vm for a in live.antagonists]
        assert injected == ([made.antagonist_vm] if is_target else [])
        assert all(a.boots for a in live.antagonists)
        assert sum(vm.latency_sensitive for vm in live.vms) == 5
        assert {vm.name for vm in host.past.vms} <= {vm.name for vm in live.vms}
        assert all(PROFILES[vm.profile].service_ms > 0 for vm in live.vms if vm.latency_sensitive)


def test_an_innocent_neighbour_uses_more_cpu_than_the_antagonist(tmp_path: Path) -> None:
    for seed in range(1, 8):
        made = fleet.make_fleet(seed, tmp_path / "go")
        live = parse(tomllib.loads(next(h.live_toml for h in made.hosts if h.name == made.target)), "x")
        train = next(vm for vm in live.vms if vm.job == "train")
        assert train.load_ratio.ratio * train.vcpus > live.antagonists[0].cores
        assert any(vm.job not in {made.antagonist_job, "train"} and vm.job in fleet._ANTAGONISTS for vm in live.vms)


def test_configurations_are_those_of_the_shipped_daemons(tmp_path: Path) -> None:
    made = fleet.make_fleet(1, tmp_path / "go")
    path = tmp_path / "agent.toml"
    socket = tmp_path / "a.sock"
    path.write_text(fleet.agent_config(made, made.hosts[0], "127.0.0.1:7", tmp_path, socket, TLS))
    agent = agent_config_module.load(path)
    assert (agent.agent.host, agent.agent.window_s, agent.agent.platform) == ("host-1", 2.0, fleet.PLATFORM)
    assert agent.sources.simulated.mode == "required"
    assert {agent.sources.libvirt.mode, agent.sources.perf.mode, agent.sources.procfs.mode} == {"off"}
    assert [rule.latency_sensitive for rule in agent.jobs] == [True, False]
    for host in made.hosts:
        path.write_text(fleet.agent_config(made, host, "127.0.0.1:7", tmp_path, socket, TLS))
        has_truth = bool(agent_config_module.load(path).sources.simulated.truth_file)
        assert has_truth == (host.name == made.target)
    path = tmp_path / "central.toml"
    path.write_text(fleet.central_config("127.0.0.1:7", tmp_path, TLS, "importer", "operator"))
    assert central_config_module.load(path).build.slot_s == agent.agent.window_s


def test_toml_is_written_as_it_is_read() -> None:
    table = {"a": 1, "b": {"c": 'x"\\y', "d": [1.5, [2, 3]], "e": {"f": True}}, "g": [{"h": 1}, {"i": {"j": "k"}}]}
    assert tomllib.loads(fleet.to_toml(table)) == table


# --- the backfill ---


def test_the_past_is_three_days_of_batches_with_rising_numbers(tmp_path: Path) -> None:
    made = fleet.make_fleet(1, tmp_path / "go")
    now_s = 1_750_000_123.0
    days = backfill.simulate(made, now_s)
    assert days.windows == 4 * 10 * 3 * 288
    assert [batch.sequence for batch in days.batches] == list(range(1, len(days.batches) + 1))
    assert {task.machine for batch in days.batches for task in batch.tasks} == {h.name for h in made.hosts}
    starts = [start for batch in days.batches for start in batch.start_unix_ns]
    assert len(starts) == days.windows
    assert max(starts) + 2 * S <= now_s * S
    assert min(starts) >= (now_s - 3 * 86400 - 300) * S
    assert all(start % (2 * S) == 0 for start in starts)
    for batch in days.batches:
        rows = len(batch.start_unix_ns)
        assert len(batch.cpi) == len(batch.cpu_usage_cores) == len(batch.task_index) == rows
        assert {"cycles", "instructions", "disk_read_bytes_per_s"} < metrics_of(batch).keys()
        assert all(not math.isnan(cpi) for cpi in batch.cpi)


def ack(*ranges: tuple[int, int], rows: int = 0, **more: object) -> agent_pb2.CentralMessage:
    parts = [agent_pb2.SequenceRange(first=first, last=last) for first, last in ranges]
    return agent_pb2.CentralMessage(ack=agent_pb2.Ack(ranges=parts, accepted_rows=rows, **more))  # type: ignore[arg-type]


def test_sending_ends_when_all_is_acknowledged() -> None:
    welcome = agent_pb2.CentralMessage(welcome=agent_pb2.Welcome(protocol_version=1))
    replies = iter([welcome, ack((1, 2), rows=20), ack((3, 3), rows=5), ack((9, 9))])
    backfill._until_acknowledged(replies, 3, 25)
    assert next(replies).ack.ranges[0].first == 9  # nothing was read beyond the last acknowledgement


@pytest.mark.parametrize(
    ("replies", "message"),
    [
        ([ack((1, 2), rows=20)], "closed the connection with 1 simulated batches not acknowledged"),
        ([ack((1, 3), rows=24)], "accepted 24 of 25 simulated windows"),
        (
            [ack((1, 3), rejected_rows=[agent_pb2.RejectedRows(reason="bad_cpi", count=4)])],
            "refused 4 simulated windows: bad_cpi",
        ),
        (
            [ack((1, 3), rejected_batches=[agent_pb2.RejectedBatch(sequence=2, reason="malformed", detail="no")])],
            "refused simulated batch 2: malformed: no",
        ),
    ],
)
def test_a_past_that_central_does_not_take_whole_is_an_error(
    replies: list[agent_pb2.CentralMessage], message: str
) -> None:
    with pytest.raises(UnavailableError, match=message):
        backfill._until_acknowledged(replies, 3, 25)


# --- the truth and the agents' words ---


def test_truth_is_averaged_over_the_very_slots(tmp_path: Path) -> None:
    file = tmp_path / "truth.jsonl"

    def line(since_s: float, until_s: float, degradation: float) -> str:
        vms = {"web": {"true_degradation": degradation}}
        entry = {"since_unix_ns": round(since_s * S), "unix_ns": round(until_s * S), "vms": vms, "antagonists": []}
        return json.dumps(entry) + "\n"

    file.write_text(line(0, 10, 1.0) + line(10, 11, 1.2) + line(11, 12, 1.6) + line(12, 14, 3.0) + '{"half')
    truth = Truth(file)
    assert truth.degradation("web", [10 * S]) == pytest.approx(1.4)
    assert truth.degradation("web", [10 * S, 12 * S]) == pytest.approx((1.2 + 1.6 + 2 * 3.0) / 4)
    assert truth.degradation("web", [9 * S]) == pytest.approx(1.1)
    assert truth.degradation("web", [20 * S]) is None
    assert truth.degradation("db", [10 * S]) is None
    assert truth.degradation("web", [10 * S], LATENCY_TRUTH) is None  # a simulator that does not know it


def test_the_agents_estimate_of_latency_is_kept_with_its_interval_or_its_reason(tmp_path: Path) -> None:
    watch = AgentWatch("h", tmp_path / "s")
    found = host_pb2.VmSummary(
        name="web",
        decision=host_pb2.VmDecision(verdict=agent_pb2.BEHAVIOUR_VICTIM),
        cloud_white=host_pb2.CloudWhite(degradation=agent_pb2.Degradation(ratio=1.4, low=1.3, high=1.6)),
    )
    watch._take_latency(found)
    found.cloud_white.degradation.CopyFrom(agent_pb2.Degradation(ratio=math.nan, cannot_tell="no_model"))
    watch._take_latency(found)
    found.decision.verdict = agent_pb2.BEHAVIOUR_INFLICTING
    found.cloud_white.ClearField("degradation")
    watch._take_latency(found)
    first, second, third = watch.latencies["web"]
    assert (first.behaviour, first.ratio, first.low, first.high) == ("victim", 1.4, 1.3, 1.6)
    assert (math.isnan(second.ratio), second.cannot_tell) == (True, "no_model")
    # An estimate that is not there is no estimate of 0.
    assert (math.isnan(third.ratio), third.cannot_tell) == (True, "no estimate of a VM that is inflicting")


def explanation(start_s: int, cpi: float, newest_cpi: float, degradation: float) -> host_pb2.VmExplanation:
    return host_pb2.VmExplanation(
        vm=host_pb2.VmSummary(name="web", verdict="victim", degradation=degradation),
        cpi=newest_cpi,
        history=[host_pb2.CpiPoint(start_unix_ns=start_s * S, cpi=cpi)],
        suspects=[
            host_pb2.Suspect(name="scan-1", job="scan", coefficient=0.7, cpu_usage_cores=2, score=1.4),
            host_pb2.Suspect(name="new-1", job="new", coefficient=math.nan, cpu_usage_cores=9, score=math.nan),
        ],
    )


def test_an_agents_verdict_is_kept_per_slot_and_only_with_its_own_slot(tmp_path: Path) -> None:
    watch = AgentWatch("h", tmp_path / "s")
    watch._take_explanation(explanation(10, 1.5, 1.5, 1.4))
    watch._take_explanation(explanation(10, 1.5, 1.9, 1.8))  # the newest slot is not in the history yet
    watch._take_explanation(explanation(12, 1.9, 1.9, math.nan))
    slots = watch.slots["web"]
    assert {start // S: slot.degradation for start, slot in slots.items()} == {10: 1.4, 12: None}
    assert watch.suspects == (Ranked("scan-1", "scan", 2.0, 0.7, 1.4),)


def test_an_agent_that_is_not_up_yet_is_no_error(tmp_path: Path) -> None:
    watch = AgentWatch("h", tmp_path / "nobody.sock")
    watch.poll(explain=True)
    assert not watch.answers
    watch.close()
    watch.close()


# --- processes ---


def wait_gone(pid: int, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_daemon_that_ends_is_reported_with_its_last_words(tmp_path: Path) -> None:
    daemons = Daemons()
    daemons.start("agent", ["check-config", str(tmp_path / "none.toml")], tmp_path / "log")
    daemons._running[0].process.wait(timeout=20)
    with pytest.raises(UnavailableError, match=r"demo: agent ended with exit code 2; the end of its log: .*none.toml"):
        daemons.check()
    assert daemons.stop() == []


def stubborn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a process that ignores SIGTERM, and has a child, in place of the product."""
    code = (
        "import signal,subprocess,sys,time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "p=subprocess.Popen([sys.executable,'-c','import time; time.sleep(60)']);"
        "print(p.pid, flush=True); time.sleep(60)"
    )
    real = subprocess.Popen

    def popen(_command: list[str], **options: object) -> subprocess.Popen[bytes]:
        return real([sys.executable, "-c", code], **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr("central.demo.processes.subprocess.Popen", popen)


def test_a_daemon_that_does_not_end_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubborn(monkeypatch)
    daemons = Daemons()
    daemons.start("agent", [], tmp_path / "log")
    end = time.monotonic() + 10
    while not (tmp_path / "log").read_text().strip() and time.monotonic() < end:
        time.sleep(0.05)
    child = int((tmp_path / "log").read_text())
    pid = daemons._running[0].process.pid
    assert daemons.stop(grace_s=0.3) == ["agent"]
    assert wait_gone(pid)
    assert wait_gone(child)
    assert daemons.stop() == []


def test_a_program_that_cannot_be_started_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(UnavailableError, match="demo: cannot start central: No such file"):
        Daemons().start("central", [], tmp_path / "log")


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    # The parent starts a child that would wait for ever, and is killed.
    config = tmp_path / "agent.toml"
    config.write_text(
        f'[agent]\nstate_dir = "{tmp_path}/state"\nsocket = "{tmp_path}/a.sock"\n'
        + "".join(f'[sources.{name}]\nmode = "off"\n' for name in ("libvirt", "perf", "procfs"))
    )
    code = (
        "import sys,time; from pathlib import Path; from central.demo.processes import Daemons; d=Daemons();"
        "d.start('agent', ['agent','run','--config',sys.argv[1]], Path(sys.argv[2]));"
        "print(d._running[0].process.pid, flush=True);"
        "time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(config), str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        end = time.monotonic() + 15
        while not (tmp_path / "a.sock").exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert (tmp_path / "a.sock").exists(), (tmp_path / "log").read_text()
        parent.kill()
    try:
        assert wait_gone(child)
    finally:
        if not wait_gone(child, 0.1):
            os.kill(child, signal.SIGKILL)


def test_a_child_of_a_parent_that_is_gone_does_not_begin() -> None:
    command = [sys.executable, "-P", "-m", "central.demo.child", "1", "--version"]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.returncode == 1
    assert "the parent 1 is gone" in done.stderr
    command[4] = str(os.getpid())
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert done.stdout.startswith("whitepanda ")


# --- what is shown ---


def outcome(first: str | None = "scan") -> Outcome:
    return Outcome(
        injected_antagonist="scan",
        first_suspect=first,
        host="host-2",
        victims=(
            Victim("web-1", 1.5, 1.46, True, "victim", 1.42, 1.3, 1.58, 1.44, 10, 9),
            Victim("web-2", None, None, flagged=False, latency_unknown=7, cannot_tell="no_model"),
            Victim("web-3", 1.3, 1.31, True, "victim", 1.2, 1.1, 1.25, 1.61, 8, 1, 2, "out_of_range:ipc"),
        ),
        suspects=(Ranked("scan-1", "scan", 5.5, 0.7, 3.85),),
        hosts=("host-1", "host-2"),
        windows_acknowledged=321,
        past_windows=1000,
        coefficient_version=3,
        detection_s=6.2,
        compared_s=10.0,
        false_alarms=(),
        seed=1,
        seconds=24.0,
    )


def test_json_is_one_object_and_a_wrong_suspect_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    _tell(outcome(), as_json=True)
    reported = json.loads(capsys.readouterr().out)
    assert reported["victims"][1] == {
        "vm": "web-2",
        "true_degradation": None,
        "estimated_degradation": None,
        "flagged": False,
        "behaviour": "",
        "latency_degradation": None,
        "latency_low": None,
        "latency_high": None,
        "true_latency_degradation": None,
        "latency_known": 0,
        "latency_held": 0,
        "latency_unknown": 7,
        "cannot_tell": "no_model",
        "is_held": None,
    }
    assert [victim["is_held"] for victim in reported["victims"]] == [True, None, False]
    assert (reported["injected_antagonist"], reported["first_suspect"], reported["seconds"]) == ("scan", "scan", 24.0)
    for wrong in ("train", None):
        with pytest.raises(UnavailableError, match=rf"the first suspect on host-2 is {wrong}, but scan was injected"):
            _tell(outcome(wrong), as_json=True)


@pytest.mark.parametrize(("first", "words"), [("scan", "the injected antagonist"), ("train", "NOT the injected one")])
def test_people_see_suspects_victims_and_the_truth(first: str, words: str) -> None:
    screen = io.StringIO()
    print_outcome(PlainConsole(file=screen, width=80), outcome(first))
    text = screen.getvalue()
    for expected in (words, "scan-1", "+3.850", "321 live CPI windows"):
        assert expected in text
    rows = [re.split(r"\s*[│┃]\s*", line.strip())[1:-1] for line in text.splitlines() if "web-" in line]
    assert rows[:3] == [
        ["web-1", "1.46", "1.50", "1.42 1.30-1.58", "1.44", "yes 9/10", "victim"],
        ["web-2", "-", "-", "cannot tell", "-", "-", "-"],
        ["web-3", "1.31", "1.30", "1.20 1.10-1.25", "1.61", "NO 1/8", "victim"],
    ]
    assert "web-2: latency is unknown at 7 of 7 moments: no_model" in text
    assert "web-3: latency is unknown at 2 of 10 moments: out_of_range:ipc" in text


def test_progress_as_lines_and_as_a_screen() -> None:
    agents = [AgentWatch("host-1", Path("/x")), AgentWatch("host-2", Path("/x"))]
    agents[0].answers, agents[0].mn_cpi, agents[0].windows_acknowledged = True, 4.25, 77
    agents[0].victims = ("web-1",)
    lines, screen = io.StringIO(), io.StringIO()
    plain = PlainShow(PlainConsole(file=lines, width=200))
    plain.event("started [not markup]")
    plain.refresh(agents)
    assert len(lines.getvalue().splitlines()) == 1  # the hosts only every few seconds
    plain._last -= 60
    plain.refresh(agents)
    plain.close()
    assert "started [not markup]" in lines.getvalue()
    assert "windows acknowledged 77, coefficient versions -/-, mnCPI host-1 4.25  host-2 -" in lines.getvalue()
    live = LiveShow(PlainConsole(file=screen, width=150, force_terminal=True))
    live.event("something [happened]")
    live.refresh(agents)
    live.close()
    live.close()
    for expected in ("host-1", "YES", "4.25", "web-1", "something [happened]", "starting"):
        assert expected in screen.getvalue()


@pytest.mark.parametrize("width", [80, 99, 100])
def test_the_screen_fits_whatever_the_terminals_width(width: int) -> None:
    agent = AgentWatch(
        "host-1",
        Path("a"),
        answers=True,
        uplink="connecting",
        vms=10,
        windows_acknowledged=12345,
        coefficient_version=10,
        mn_cpi=12.25,
        victims=("web1-host-1", "search-host-1"),
    )
    screen = io.StringIO()
    live = LiveShow(PlainConsole(file=screen, width=width, force_terminal=True, color_system=None))
    live.refresh([agent])
    live.close()
    text = screen.getvalue()
    assert "…" not in text
    row = next(line for line in text.splitlines() if "host-1" in line)
    for word in ("connecting", "10 ", "YES", "12.25", "web1-host-1,"):
        assert word in row
    assert ("version 10" in row, "12345" in row) == (width >= 100, width >= 100)


# --- the command ---


def test_keep_wants_a_new_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="exists already; name a new folder"), _folders(tmp_path):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot make the folder"), _folders(tmp_path / "file" / "x"):
        pass


def test_folders_are_removed_but_for_what_is_kept(tmp_path: Path) -> None:
    with _folders(tmp_path / "kept") as (work, sockets):
        assert work == tmp_path / "kept"
        assert len(str(sockets)) < 60 + len(os.environ.get("TMPDIR", "/tmp"))
        (work / "log").touch()
    assert (tmp_path / "kept" / "log").exists()
    assert not sockets.exists()
    with _folders(None) as (work, sockets):
        assert work.is_dir()
    assert not work.exists()


def test_sockets_have_short_paths_however_long_tmpdir_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with _folders(None) as (work, sockets):
        assert work.parent == long
        assert len(str(sockets / "host-4.sock")) <= 107
        assert (sockets.stat().st_mode & 0o777, sockets.stat().st_uid) == (0o700, os.getuid())
    assert not work.exists()
    assert not sockets.exists()


def test_a_tmpdir_that_takes_nothing_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    reported = r"cannot make a temporary folder \(.*gone: No such file or directory\); set TMPDIR"
    with pytest.raises(UnavailableError, match=reported), _folders(None):
        pass


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/first-hour.md", "help"])
def test_how_long_it_takes_is_reported_alike_everywhere(page: str) -> None:
    text = demo.__doc__ if page == "help" else (ROOT / page).read_text(encoding="utf-8")
    assert text is not None
    assert DURATION in " ".join(text.split())
    assert "half a minute" not in text.lower()


def test_help_names_the_options() -> None:
    app = typer.Typer()
    app.command()(demo)
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120", "TERM": "dumb", "NO_COLOR": "1"}).output
    for option in ("--seed", "--keep", "--stay", "--json"):
        assert option in text


def test_a_negative_seed_is_refused_before_anything_starts(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(demo)
    result = CliRunner().invoke(app, ["--seed", "-1", "--keep", str(tmp_path / "kept")])
    assert result.exit_code == 2
    assert "--seed" in result.output
    assert not (tmp_path / "kept").exists()


class PlayedDemo:
    """A run that was over at once; who stays in it is ended by a signal."""

    def __init__(self, _seed: int, _work: Path, sockets: Path, _show: Show) -> None:
        self._socket = sockets / "host-2.sock"
        self.closed = False
        played.append(self)

    def run(self) -> Outcome:
        return outcome()

    def page(self) -> str:
        return "http://127.0.0.1:4711/"

    def asking(self) -> list[str]:
        return ["--central", "127.0.0.1:4712", "--tls", "/a folder/pki"]

    def socket(self) -> Path:
        return self._socket

    def stay(self) -> None:
        assert self._socket.parent.is_dir()
        assert not self.closed
        signal.raise_signal(signal.SIGINT)

    def close(self) -> None:
        self.closed = True


played: list[PlayedDemo] = []


def prepare(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setattr(demo_command, "Demo", PlayedDemo)
    monkeypatch.setattr(demo_command, "console", PlainConsole(width=200))
    monkeypatch.setattr(demo_command, "errors", PlainConsole(width=200, stderr=True))
    app = typer.Typer()
    app.command()(demo)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def play(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    return prepare(monkeypatch)(*arguments)


def test_without_stay_the_last_line_names_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    done = play(monkeypatch)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1].startswith("Next: make demo ARGS=--stay (or whitepanda demo --stay) ")
    assert played[-1].closed
    assert not played[-1].socket().parent.exists()
    assert json.loads(play(monkeypatch, "--json").stdout)["first_suspect"] == "scan"


def test_with_stay_it_says_where_to_look_and_ctrl_c_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_command.shutil, "which", lambda _name: "/usr/bin/whitepanda")
    done = play(monkeypatch, "--stay")
    assert (done.exit_code, done.stderr) == (0, "stopped\n")
    assert done.stdout.splitlines()[-7:] == [
        "Running until Ctrl-C. To look around, in a browser on this machine and in another terminal:",
        "  the fleet page:",
        "    http://127.0.0.1:4711/",
        "  the VMs of host-2, live:",
        f"    whitepanda top --socket {played[-1].socket()}",
        "  the incidents that central keeps:",
        "    whitepanda incidents list --central 127.0.0.1:4712 --tls '/a folder/pki'",
    ]
    assert played[-1].closed
    assert not played[-1].socket().parent.exists()
    done = play(monkeypatch, "--stay", "--json")
    assert json.loads(done.stdout)["first_suspect"] == "scan"
    assert "http://127.0.0.1:4711/" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_it_is_reported_so_when_all_is_gone(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    class Console:
        def print(self, text: str) -> None:
            said.append((text, played[-1].closed, played[-1].socket().parent.exists()))

    said: list[tuple[str, bool, bool]] = []
    monkeypatch.setattr(PlayedDemo, "run", lambda _self: signal.raise_signal(number))
    runner = prepare(monkeypatch)
    monkeypatch.setattr(demo_command, "errors", Console())
    assert runner("--stay").exit_code == 128 + number
    assert said == [("stopped", True, False)]


def test_a_wrong_suspect_is_no_reason_to_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlayedDemo, "run", lambda _self: outcome("train"))
    monkeypatch.setattr(PlayedDemo, "stay", lambda _self: pytest.fail("stayed"))
    done = play(monkeypatch, "--stay")
    assert isinstance(done.exception, UnavailableError)
    assert played[-1].closed


def test_the_program_is_called_by_its_whole_path_where_no_path_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo_command.shutil, "which", lambda _name: None)
    monkeypatch.setattr(sys, "argv", [".venv/bin/whitepanda", "demo"])
    monkeypatch.chdir(tmp_path)
    assert f"    {tmp_path}/.venv/bin/whitepanda top --socket " in play(monkeypatch, "--stay").stdout


# --- the course ---


def test_what_does_not_happen_in_time_is_reported_with_the_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Demo(1, tmp_path, tmp_path, PlainShow(PlainConsole(file=io.StringIO())))
    monkeypatch.setattr("central.demo.run._DEADLINE_S", 0.0)
    running._daemons.start("central", ["--version"], tmp_path / "log")
    monkeypatch.setattr(running._daemons, "check", lambda: None)  # it ends at once: here only its words count
    running._daemons._running[0].process.wait(timeout=20)
    with pytest.raises(
        UnavailableError, match=r"after 0 s still waiting until pigs fly; the end of central's log: whitepanda \d"
    ):
        running._until("pigs fly", "central", lambda: False)
    running.close()
    running.close()


def test_who_stays_is_reported_when_a_daemon_ends_and_where_the_page_is(tmp_path: Path) -> None:
    running = Demo(1, tmp_path, tmp_path, PlainShow(PlainConsole(file=io.StringIO())))
    assert running.socket() == tmp_path / f"{running._fleet.target}.sock"
    (tmp_path / "central" / "state").mkdir(parents=True)
    (tmp_path / "central" / "state" / "http_port").write_text("4711\n")
    assert running.page() == "http://127.0.0.1:4711/"
    running._address = "127.0.0.1:4712"
    assert running.asking() == ["--central", "127.0.0.1:4712", "--tls", str(tmp_path / "pki")]
    running._daemons.start("central", ["--version"], tmp_path / "log")
    try:
        with pytest.raises(UnavailableError, match=r"demo: central ended with exit code 0; the end of its log"):
            running.stay()
    finally:
        running.close()


def test_alarms_before_the_injection_or_elsewhere_are_false(tmp_path: Path) -> None:
    running = Demo(1, tmp_path, tmp_path, PlainShow(PlainConsole(file=io.StringIO())))
    other = next(agent for agent in running._agents if agent is not running._target)
    running._target.victims = ("web-1",)
    running._injected_unix_ns = 1
    running._note_false_alarms()
    assert list(running._false_alarms) == []
    other.victims = ("web-2",)
    running._note_false_alarms()
    assert list(running._false_alarms) == [other.name]
    running._injected_unix_ns = 0
    running._note_false_alarms()
    assert list(running._false_alarms) == [other.name, running._target.name]
    running.close()


def test_slots_before_the_antagonist_was_there_are_not_compared(tmp_path: Path) -> None:
    running = Demo(1, tmp_path, tmp_path, PlainShow(PlainConsole(file=io.StringIO())))
    running._injected_unix_ns = 100 * S
    running._target.slots["web"] = {start * S: SlotEstimate(start * S, 1.5, "victim") for start in (97, 99, 101, 103)}
    assert running._starts() == [101 * S, 103 * S]
    running.close()


def test_an_estimate_is_compared_with_the_truth_of_its_own_moment(tmp_path: Path) -> None:
    running = Demo(1, tmp_path, tmp_path, PlainShow(PlainConsole(file=io.StringIO())))
    file = tmp_path / "truth.jsonl"
    with file.open("w") as lines:
        for at_s, true in ((100, 1.0), (102, 1.5), (104, 1.5)):
            vm = {"true_degradation": 1.2, LATENCY_TRUTH: true}
            entry = {"since_unix_ns": (at_s - 2) * S, "unix_ns": at_s * S, "vms": {"web": vm}}
            lines.write(json.dumps(entry) + "\n")

    def latency(at_s: float, ratio: float, cannot_tell: str = "") -> Latency:
        return Latency(round(at_s * S), "victim", ratio, ratio - 0.1, ratio + 0.2, cannot_tell)

    running._target.latencies["web"] = [
        latency(99.0, 9.0),  # before the slots that are compared
        latency(101.0, 1.4),
        latency(102.5, 1.6),
        latency(103.0, math.nan, "unlike_training"),
        latency(103.5, 1.2),
    ]
    slots = [SlotEstimate(start * S, 1.3, "victim") for start in (100, 102)]
    reported = running._victim(Truth(file), "web", slots)
    assert (reported.latency_known, reported.latency_held, reported.latency_unknown) == (3, 2, 1)
    assert reported.cannot_tell == "unlike_training"
    found = (
        reported.latency_degradation,
        reported.latency_low,
        reported.latency_high,
        reported.true_latency_degradation,
    )
    assert found == pytest.approx((1.4, 1.3, 1.6, 1.5))
    assert reported.is_held is True
    running.close()
