"""The host's commands against real local APIs with canned states: tables at 80 columns, JSON, one-line errors."""

import json
import os
import socket
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path

import pytest
from rich.text import Text
from typer.testing import CliRunner

from agent.cli import agent_status
from agent.cli import vms as vms_command
from agent.display import explanation, render, words
from collector.base import Reason
from whitepanda.common import cli
from whitepanda.v1 import agent_pb2, host_pb2

HERE = Path(__file__).parents[1]
ROOT = HERE.parents[2]
PROGRAM = "from whitepanda.common.cli import main; main()"

VMS_80 = """\
NAME              GUEST%  CPI RUNQ% VERDICT                SLOW-DOWN BY
instance-0000a1f3   78.5 3.10  5.20 ▼ victim  2.58x CPI [1.63, 6.20] batch-0001
instance-0000a1f4   50.0 1.30  0.10 = steady                       - -
batch-0001          99.0 2.00     0 ? unknown                      - -
new-1               10.0    -     - ? unknown                      - -
paused-1               0    -     0 - paused                       - -
1 victim on this host now; first suspect batch-0001; `whitepanda explain VM` shows the evidence
no verdict on 2 of 5 VMs; most often: no statistics for job scan on this platform yet: version 7 has none
no room for NET, DISK, GIPS, vCPU, JOB: widen the terminal
"""

VMS_NO_PMU = """\
NAME JOB vCPU GUEST% RUNQ% DISK  NET VERDICT
vm-1 web    4   50.0  1.00 2.0M 1.0K ? unknown
vm-2 web    4   50.0  1.00 2.0M 1.0K ? unknown
not shown: GIPS, CPI: no_pmu: no hardware counters; on a virtual machine enable its PMU
no verdict on 2 of 2 VMs: no CPI window of this VM yet
"""

EXPLAIN = """\
instance-0000a1f3  uuid-instance-0000a1f3
job web (latency-sensitive), 4 vCPUs, running
victim for 12 min: CPI 3.1 exceeds 1.9 = mean 1.2 + 2 std 0.35 of job web on this platform
slow-down 2.58x CPI [1.63, 6.20]: CPI / mean CPI of the job
first suspect batch-0001
found by the fleet's statistics

the host's own analysis is off

METRIC                            VALUE SOURCE     AGE
cpu_usage_cores                    3.14 procfs  350 ms
guest_ratio                       0.785 procfs  350 ms
run_queue_wait_ratio              0.052 procfs  350 ms
gips                              3.412 perf    400 ms
cpi                                 3.1 perf    400 ms
disk_read_bytes_per_s           612,000 libvirt 900 ms
disk_write_bytes_per_s          612,000 libvirt 900 ms
network_receive_bytes_per_s  12,345,678 libvirt 900 ms
network_transmit_bytes_per_s          0 libvirt 900 ms

the fleet's statistics: suffers: CPI 3.1 exceeds 1.9 = mean 1.2 + 2 std 0.35 of job web on this platform
2.58x: CPI of the last slot / mean CPI of the job
job web on Xeon E5-2680, 1000 samples:
  CPI mean 1.2, std 0.35
  threshold 1.9 = 1.2 + 2 * 0.35
CPI over the last slot 3.1: nCPI 5.43 = (3.1 - 1.2) / 0.35
over its threshold for 3 slots in a row
host: mnCPI 2.86, threshold 1: contention
coefficients: version 7, 2 min old

SUSPECT    JOB       COEFFICIENT CORES SCORE INFLICTS
batch-0001 scan             0.50  3.96  1.98 -
new-1      brand-new           -  0.40     - -
inflicts: by the host's own analysis
score = coefficient (mnCPI per core, from the whole fleet) * cores over the last slot
no score: no_coefficients: central has not sent statistics or coefficients for the job; is it reachable?
"""


STATUS = """\
node1: whitepanda 0.1.0, up 60 min
platform     Xeon E5-2680
ticks        3,600, 2 missed; windows of 10 s
cost         12.5 s of CPU (0.3% of a core), 60 MiB
central      connected, central:7443
spooled      1 batches, 4.1KB
sent         359 batches, 3,590 windows
dropped      0 batches
rejected     1 batches whole; 5 rows
history      33MB of 537MB, from 2 h ago
coefficients version 7

SOURCE  STATE        AGE TOOK SAMPLES FAILURES
perf    available 400 ms 3 ms   3,600        0
libvirt stuck        9 s  2 s   3,000      600
libvirt: no answer for 4 s
"""

STATUS_CUT_OFF = """\
central      connecting, central:7443
spooled      1,200 batches, 4.2MB
sent         0 batches, 0 windows
dropped      3 batches
rejected     0 batches whole; 0 rows
history      stopped: the disk is full; 4.1KB of 537MB; 7 windows and ticks lost
last error   no
coefficients none, central has not sent any

SOURCE  STATE       AGE TOOK SAMPLES FAILURES
perf    unavailable   -    -       0        0
libvirt off           -    -       0        0
perf: no hardware counters; on a virtual machine enable its PMU
"""


@pytest.fixture(scope="module")
def agents(tmp_path_factory):
    """Folder with the canned agents' sockets."""
    folder = tmp_path_factory.mktemp("a")
    with subprocess.Popen(
        [sys.executable, str(HERE / "canned_agents.py"), str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout:
            if line.strip() == "ready":
                break
        yield folder
        process.terminate()
        process.stdout.read()


@pytest.fixture
def run(monkeypatch):
    """Run `whitepanda ARGUMENTS` in this process: (exit code, stdout, stderr), stripped at the right."""

    def _run(*arguments, width=80):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys, "argv", ["whitepanda", *arguments])
        monkeypatch.setattr(cli.errors, "_width", 300)
        result = CliRunner().invoke(cli.build(), arguments)
        code, err = result.exit_code, result.stderr
        if isinstance(result.exception, cli.WhitepandaError):
            code, err = result.exception.exit_code, err + f"error: {result.exception}\n"
        elif result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return code, "".join(line.rstrip() + "\n" for line in result.stdout.splitlines()), err

    return _run


def test_vms_at_80_columns(run, agents):
    code, out, err = run("vms", "--socket", str(agents / "full.sock"))
    assert (code, out, err) == (0, VMS_80, "")
    assert max(map(len, out.splitlines()[:6])) <= 80


def test_vms_without_pmu_hides_the_columns_and_says_why(run, agents):
    assert run("vms", "--socket", str(agents / "no_pmu.sock")) == (0, VMS_NO_PMU, "")


def test_what_a_bare_qemu_lacks_is_not_explained_by_someone_elses_socket(run, agents):
    code, out, _ = run("vms", "--socket", str(agents / "bare.sock"), width=200)
    assert code == 0
    assert f"not shown: DISK, NET: {render.remedy(Reason.NOT_VISIBLE)}\n" in out


def test_vms_alone_has_no_slow_down_and_no_suspects(run, agents):
    code, out, _ = run("vms", "--socket", str(agents / "alone.sock"))
    assert code == 0
    assert out.splitlines()[0].split() == [
        "NAME",
        "JOB",
        "vCPU",
        "GUEST%",
        "GIPS",
        "CPI",
        "RUNQ%",
        "DISK",
        "NET",
        "VERDICT",
    ]
    assert "no statistics for job web yet: central has not sent any" in out


def test_vms_of_a_host_without_any_names_the_source_that_is_broken(run, agents):
    code, out, _ = run("vms", "--socket", str(agents / "empty.sock"))
    assert (code, out) == (0, "no VM runs on node1 now\nsource libvirt is stuck: no answer for 4 s\n")


def test_wide_terminals_and_pipes_cut_nothing(run, agents):
    _, out, _ = run("vms", "--socket", str(agents / "full.sock"), width=200)
    assert "instance-0000a1f3" in out
    assert "…" not in out


def test_vms_for_programs(run, agents):
    code, out, err = run("vms", "--json", "--socket", str(agents / "full.sock"))
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert (answer["host"], answer["victims"], answer["affected"], len(answer["vms"])) == ("node1", 1, 0, 5)
    assert answer["suspect"]["name"] == "batch-0001"
    by_name = {vm["name"]: vm for vm in answer["vms"]}
    victim = by_name["instance-0000a1f3"]
    assert victim["metrics"]["cpi"] == {"value": 3.1, "reason": None, "source": "perf", "age_s": 0.4}
    assert (victim["verdict"], victim["found_by"], victim["since_s"]) == ("victim", ["fleet"], 695.0)
    assert [(one["name"], one["inflicts"]) for one in victim["suspects"]] == [("batch-0001", False)]
    assert victim["slow_down"] == {
        "ratio": pytest.approx(3.1 / 1.2),
        "low": pytest.approx(3.1 / 1.9),
        "high": pytest.approx(3.1 / 0.5),
        "cannot_tell": None,
        "model": "cpi",
    }
    assert victim["fleet"]["verdict"] == "victim"
    assert (victim["owner"], victim["quota_cores"], by_name["batch-0001"]["owner"]) == ("shop", 2.5, None)
    assert victim["fleet"]["degradation"] == pytest.approx(3.1 / 1.2)
    assert by_name["new-1"]["metrics"]["cpi"]["value"] is None
    assert by_name["new-1"]["metrics"]["cpi"]["reason"] == "idle"
    assert (by_name["new-1"]["slow_down"], by_name["new-1"]["fleet"]["degradation"]) == (None, None)
    assert by_name["paused-1"]["metrics"]["gips"]["value"] == 0.0


def test_two_vms_of_one_name_are_distinguished_by_the_beginning_of_their_uuids(run, agents):
    code, out, _ = run("vms", "--socket", str(agents / "twins.sock"), width=200)
    assert code == 0
    names = [" ".join(line.split("  ")[0].split()[:2]) for line in out.splitlines()]
    assert "batch-0001 (uuid-batc)" not in out, "two that begin alike"
    assert {"batch-0001 (uuid-batch)", "batch-0001 (uuid-batcX)"} <= set(names)
    assert "instance-0000a1f3 (" not in out
    assert "first suspect batch-0001 (uuid-batch);" in out
    (victim,) = [line for line in out.splitlines() if "victim " in line and line.startswith("instance")]
    assert victim.endswith("batch-0001 (uuid-batch)") or "batch-0001 (uuid-batch) +" in victim


def test_explain_refuses_a_name_that_several_vms_have(run, agents):
    code, out, err = run("explain", "batch-0001", "--socket", str(agents / "twins.sock"))
    listed = "uuid-batch-0001 (libvirt), uuid-batcX-2 (proxmox)"
    assert (code, out, err) == (3, "", f"error: 2 VMs are named 'batch-0001': {listed}; give the UUID\n")
    code, out, _ = run("explain", "uuid-batcX-2", "--socket", str(agents / "twins.sock"))
    assert (code, out.splitlines()[0]) == (0, "batch-0001  uuid-batcX-2")


def test_explain_at_80_columns(run, agents):
    assert run("explain", "instance-0000a1f3", "--socket", str(agents / "full.sock")) == (0, EXPLAIN, "")


def test_explain_reports_the_reason_of_each_dash(run, agents):
    code, out, _ = run("explain", "new-1", "--socket", str(agents / "full.sock"))
    assert code == 0
    assert out.splitlines()[2] == "unknown: idle: too little CPU over the last slot for a CPI"
    assert "the fleet's statistics: cannot tell: idle: too little CPU over the last slot for a CPI" in out
    assert [line.split() for line in out.splitlines() if line.startswith("cpi ")] == [["cpi", "-", "perf", "-"]]
    assert "not known: cpi: idle: too little CPU used for a ratio of counters" in out
    assert (
        "not known: disk_read_bytes_per_s, disk_write_bytes_per_s, network_receive_bytes_per_s: stuck: its source"
        in out
    )


def test_explain_without_analysis(run, agents):
    code, out, _ = run("explain", "new-1", "--socket", str(agents / "crippled.sock"))
    assert code == 0
    assert "the fleet's statistics: cannot tell: the analysis could not be started: see the agent's log" in out
    assert "coefficients: none, central has not sent any" in out
    assert "suspect" not in out.lower()  # it does not suffer
    assert "nan" not in out


def test_explain_of_a_vm_that_inflicts_begins_with_that_and_whom_it_hurts(run, agents):
    code, out, _ = run("explain", "batch-0001", "--socket", str(agents / "suffering.sock"))
    assert code == 0
    assert out.splitlines()[2:4] == [
        "inflicting for 95 s: memory traffic is 3.1 times its baseline",
        "these suffer from it: instance-0000a1f3",
    ]
    assert "SUSPECT" not in out
    assert "no suspects" not in out


def test_a_vm_that_was_watched_too_shortly_has_no_slow_down(run, agents):
    _, out, _ = run("vms", "--socket", str(agents / "short.sock"))
    assert "SLOW" not in out
    assert "1.08x" not in out
    assert "watched for 30 s of a slot of 300 s: too short to compare" in out
    _, out, _ = run("explain", "instance-0000a1f4", "--socket", str(agents / "short.sock"))
    lines = out.splitlines()
    why = "watched for 30 s of a slot of 300 s: too short to compare"
    assert lines[2] == f"unknown: {why}"
    assert f"the fleet's statistics: cannot tell: {why}" in lines
    assert "CPI so far 1.3: not comparable yet" in lines
    assert ": nCPI" not in out
    _, out, _ = run("explain", "instance-0000a1f4", "--json", "--socket", str(agents / "short.sock"))
    answer = json.loads(out)
    assert (answer["fleet"]["degradation"], answer["slow_down"], answer["n_cpi"]) == (None, None, None)
    assert answer["cpi"] == pytest.approx(1.3)


def test_explain_for_programs(run, agents):
    _, out, _ = run("explain", "uuid-instance-0000a1f3", "--json", "--socket", str(agents / "full.sock"))
    answer = json.loads(out)
    assert answer["statistics"] == {
        "job": "web",
        "platform": "Xeon E5-2680",
        "samples": 1000,
        "mean_cpi": 1.2,
        "std_cpi": 0.35,
    }
    assert answer["n_cpi"] == pytest.approx(1.9 / 0.35)
    assert [s["name"] for s in answer["suspects"]] == ["batch-0001", "new-1"]
    assert answer["suspects"][1]["score"] is None
    assert answer["suspects"][1]["reason"] == "no_coefficients"
    assert (answer["coefficient_age_s"], answer["victim_slots"]) == (120.0, 3)
    _, out, _ = run("explain", "new-1", "--json", "--socket", str(agents / "crippled.sock"))
    answer = json.loads(out)
    assert (answer["statistics"], answer["mn_cpi"], answer["coefficient_age_s"]) == (None, None, None)


def test_agent_status_at_80_columns(run, agents):
    code, out, err = run("agent", "status", "--socket", str(agents / "full.sock"))
    assert (code, out, err) == (0, STATUS, "")
    _, out, _ = run("agent", "status", "--socket", str(agents / "cut_off.sock"))
    assert out.split("MiB\n")[1] == STATUS_CUT_OFF
    _, out, _ = run("agent", "status", "--socket", str(agents / "no_uplink.sock"))
    assert (
        "central      off: uplink.address is not set\nhistory      33MB of 537MB, from 2 h ago\ncoefficients none"
        in out
    )


def test_agent_status_for_programs(run, agents):
    code, out, _ = run("agent", "status", "--json", "--socket", str(agents / "full.sock"))
    answer = json.loads(out)
    assert code == 0
    assert answer["uplink"] == {
        "state": "connected",
        "address": "central:7443",
        "spooled_batches": 1,
        "spooled_bytes": 4096,
        "acknowledged_batches": 359,
        "acknowledged_windows": 3590,
        "dropped_batches": 0,
        "rejected_batches": 1,
        "rejected_rows": 5,
        "last_error": None,
        "min_batch_interval_s": None,
        "refused_updates": 0,
        "refused_update_rows": 0,
        "last_refusal": None,
    }
    assert answer["history"] == {
        "state": "on",
        "bytes": 31 << 20,
        "max_bytes": 512 << 20,
        "lost_frames": 0,
        "detail": None,
        "first_unix_ns": answer["now_unix_ns"] - 7200 * 10**9,
    }
    assert (answer["ticks"], answer["missed_ticks"], answer["window_s"]) == (3600, 2, 10.0)
    assert (answer["cpu_seconds"], answer["rss_bytes"], answer["coefficient_version"]) == (12.5, 60 << 20, 7)
    assert [(s["name"], s["state"], s["age_s"]) for s in answer["sources"]] == [
        ("perf", "available", 0.4),
        ("libvirt", "stuck", 9.0),
    ]
    assert answer["host_metrics"]["host_cpu_idle_ratio"]["value"] == 0.4
    _, out, _ = run("agent", "status", "--json", "--socket", str(agents / "cut_off.sock"))
    answer = json.loads(out)
    assert (answer["coefficient_version"], answer["mn_cpi"], answer["uplink"]["last_error"]) == (None, None, "no")
    assert [(s["age_s"], s["duration_s"]) for s in answer["sources"]] == [(None, None)] * 2


def test_agent_status_without_an_agent_is_one_line(run, tmp_path):
    path = tmp_path / "agent.sock"
    code, out, err = run("agent", "status", "--socket", str(path))
    assert (code, out) == (4, "")
    assert err.startswith(f"error: no agent answers at {path}: start it with")


def test_an_unknown_vm_is_one_line_with_near_names(run, agents):
    code, out, err = run("explain", "batch-001", "--socket", str(agents / "full.sock"))
    assert (code, out) == (3, "")
    assert err == "error: no VM has the name or UUID 'batch-001': did you mean batch-0001, uuid-batch-0001?\n"


def test_bytes_that_are_no_utf8_are_asked_for_as_the_agent_shows_them(run, agents):
    code, out, err = run("explain", "bad\udcff\x1b", "--socket", str(agents / "full.sock"))
    assert (code, out) == (3, "")
    assert err.startswith(r"error: no VM has the name or UUID 'bad\\xff\\x1b': there are")


def test_no_agent_is_one_line_with_the_remedy(run, tmp_path):
    path = tmp_path / "agent.sock"
    message = f"error: no agent answers at {path}: start it with `systemctl start whitepanda-agent`, or give --socket\n"
    assert run("vms", "--socket", str(path)) == (4, "", message)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert run("explain", "x", "--socket", str(path)) == (4, "", message)


def test_what_is_no_socket_is_named(run, tmp_path):
    (tmp_path / "file").touch()
    for path, what in ((tmp_path, "a folder"), (tmp_path / "file", "a file")):
        for command, whose in ((["vms"], "the agent's socket"), (["act", "list"], "the socket of `whitepanda act`")):
            message = f"error: {path} is {what}, not a socket; give {whose} with --socket\n"
            assert run(*command, "--socket", str(path)) == (4, "", message)


def test_a_closed_door_is_named(run, tmp_path, monkeypatch):
    """Root passes every door, so the kernel's answer is played."""

    def refuse(_self, _address):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("agent.api.client.socket.socket.connect", refuse)
    code, _, err = run("vms", "--socket", str(tmp_path / "a.sock"))
    assert code == 4
    assert err.startswith(f"error: no permission for {tmp_path}/a.sock: become root, or join the group that owns it")


def test_a_socket_that_may_not_be_read_has_our_remedy(run, tmp_path, monkeypatch):
    """typer looks at files before we do, and its own refusal has no remedy."""
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(path))
        monkeypatch.setattr("os.access", lambda *_arguments: False)
        for command in (["vms"], ["explain", "x"], ["agent", "status"], ["act", "list"]):
            code, _, err = run(*command, "--socket", str(path))
            assert (code, "give --socket" in err) == (4, True), err


def test_someone_else_on_the_socket_is_no_traceback(run, tmp_path, monkeypatch):
    """A server that takes connections and never says a word."""
    monkeypatch.setattr("agent.api.client._DEADLINE_S", 0.3)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "a.sock"))
        mute.listen()
        code, _, err = run("vms", "--socket", str(tmp_path / "a.sock"))
    assert code == 4
    assert err == f"error: the agent at {tmp_path}/a.sock did not answer in 0 s; see its log\n"


def test_act_is_reported_that_a_socket_is_not_its_services(run, agents):
    code, _, err = run("act", "list", "--socket", str(agents / "full.sock"))
    reported = "is not `whitepanda act`: give the socket of that service with --socket, by default "
    assert (code, err) == (4, f"error: the server at {agents}/full.sock {reported}/run/whitepanda-act/act.sock\n")


def test_a_server_that_hangs_up_is_no_traceback(run, tmp_path):
    with socket.socket(socket.AF_UNIX) as rude:
        rude.bind(str(tmp_path / "a.sock"))
        rude.listen()

        def hang_up():
            try:
                while True:
                    rude.accept()[0].close()
            except OSError:
                return

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        code, _, err = run("vms", "--socket", str(tmp_path / "a.sock"))
        rude.shutdown(socket.SHUT_RDWR)
        thread.join(5)
    assert code == 4
    assert err.startswith(f"error: the agent at {tmp_path}/a.sock failed: unavailable: ")


def test_the_socket_is_that_of_the_configuration(run, agents, tmp_path):
    config = tmp_path / "agent.toml"
    config.write_text(f"[agent]\nsocket = '{agents}/empty.sock'\n")
    assert run("vms", "--config", str(config))[1].startswith("no VM runs on node1 now")
    code, _, err = run("vms", "--config", str(tmp_path / "nope.toml"))
    assert (code, err) == (2, f"error: {tmp_path}/nope.toml: cannot read: No such file or directory\n")


def test_brackets_in_an_error_are_printed(tmp_path):
    path = tmp_path / "[agent] [/red].sock"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "vms", "--socket", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 4
    assert str(path) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", sorted(metadata.entry_points(group="whitepanda.commands").names))
def test_every_command_has_help(run, name):
    code, out, _ = run(name, "--help")
    assert code == 0
    assert f"whitepanda {name}" in out
    help_lines = [line for line in out.splitlines() if line.strip() and "Usage:" not in line]
    assert len(help_lines[0].strip()) > 15


def test_the_help_of_vms_says_what_a_victim_is_and_what_decides_in_json(run):
    _, out, _ = run("vms", "--help")
    said = " ".join(out.split())
    assert "it stays one while it suffers and the estimate is above" in said
    assert "its interval may include 1" in said
    assert "verdict` is the decision" in said


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (0.0, "0"),
        (0.001, "0.00"),
        (0.123, "0.12"),
        (1.0, "1.00"),
        (9.999, "10.0"),
        (99.97, "100"),
        (12.34, "12.3"),
        (123.4, "123"),
        (-1.5, "-1.50"),
    ],
)
def test_numbers(value, text):
    assert render.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (999.4, "999"),
        (999.6, "1.0K"),
        (1234.0, "1.2K"),
        (9960.0, "10K"),
        (999_600.0, "1.0M"),
        (12_345_678.0, "12M"),
        (5e12, "5.0T"),
        (2e16, "20000T"),
    ],
)
def test_bytes_per_second(value, text):
    assert render.si(value) == text


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ms"),
        (350_000_000, "350 ms"),
        (12 * 10**9, "12 s"),
        (300 * 10**9, "5 min"),
        (5 * 3600 * 10**9, "5 h"),
        (4 * 86400 * 10**9, "4 d"),
    ],
)
def test_ages(nanoseconds, text):
    assert render.age(nanoseconds) == text


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "less than 1 s old"),  # also where central's clock is ahead
        (999_999_999, "less than 1 s old"),
        (10**9, "1 s old"),
        (300 * 10**9, "5 min old"),
    ],
)
def test_how_old_something_is(nanoseconds, text):
    assert render.old(nanoseconds) == text


def test_every_reason_that_a_host_can_have_has_a_remedy():
    later = {Reason.UNSPECIFIED, Reason.NO_RDT, Reason.RDT_UNAVAILABLE, Reason.NO_RMID}
    for reason in set(Reason) - later:
        assert len(render.remedy(reason)) > len(reason.code) + 10, reason


def test_reasons_of_a_newer_agent_are_unspecified():
    assert render.reason_of(999) is Reason.UNSPECIFIED


def test_columns_share_what_is_left_but_numbers_are_never_cut():
    columns = [render.Column("NAME", text=True), render.Column("N"), render.Column("JOB", text=True)]
    rows = [[Text("x" * 40), Text("1" * 20), Text("y" * 12)]]
    assert render.fit(columns, rows, 100) == [40, 20, 12]
    assert render.fit(columns, rows, 60) == [26, 20, 12]
    assert render.fit(columns, rows, 40) == [9, 20, 9]
    assert render.fit(columns, rows, 10) == [8, 20, 8]


def test_texts_are_cut_as_long_as_they_still_differ():
    columns = [render.Column("NAME", text=True), render.Column("N"), render.Column("JOB", text=True)]
    names = [f"customer-{n}-database-primary" for n in (1, 2)]
    rows = [[Text(name), Text("1" * 5), Text("y" * 20)] for name in names]
    assert render.least_widths(columns, rows) == [20, 5, 8]
    for width, wanted in ((35, [20, 5, 8]), (36, [20, 5, 9]), (20, [8, 5, 8])):
        assert render.fit(columns, rows, width) == wanted
    assert render.cut(names[0], 19) == render.cut(names[1], 19)
    assert render.cut(names[0], 20) != render.cut(names[1], 20)
    assert render.least_widths(columns, []) == [4, 1, 3]


def test_status_reports_threads_and_open_files_where_the_agent_does():
    answer = host_pb2.HostStatus(rss_bytes=60 << 20)
    assert agent_status._size(answer) == "60 MiB"
    answer.host_metrics.add(name="agent_open_fds", value=1234)
    answer.host_metrics.add(name="agent_threads", value=14)
    assert agent_status._size(answer) == "60 MiB, 14 threads, 1,234 open files"


VMS_SUFFERING = """\
NAME              vCPU GUEST%  CPI VERDICT               SLOW-DOWN BY
instance-0000a1f3    4   78.5 3.10 ▼ victim     1.42x [1.30, 1.58] batch-0001 +1
batch-0001           4   99.0 2.00 ▲ inflicting                  - -
instance-0000a1f4    4   50.0 1.30 = steady                      - -
new-1                4   10.0    - ? unknown                     - -
paused-1             4      0    - - paused                      - -
1 victim on this host now; first suspect batch-0001; `whitepanda explain VM` shows the evidence
no verdict on 1 of 5 VMs: its baseline is not ready: 3 of 30 ticks
no room for NET, DISK, GIPS, RUNQ%, JOB: widen the terminal
"""


def test_vms_shows_who_suffers_how_much_and_by_whom(run, agents):
    code, out, err = run("vms", "--socket", str(agents / "suffering.sock"))
    assert (code, err) == (0, "")
    assert "".join(f"{line.rstrip()}\n" for line in out.splitlines()) == VMS_SUFFERING
    _, out, _ = run("vms", "--socket", str(agents / "no_model.sock"))
    assert "SLOW-DOWN" not in out
    assert "no slow-down of 1 of 1 victim: no_model: no model of degradation; make one with" in out


VMS_SUFFERING_50 = """\
NAME     VERDICT               SLOW-DOWN BY
inst…1f3 ▼ victim     1.42x [1.30, 1.58] batc…1 +1
batc…001 ▲ inflicting                  - -
inst…1f4 = steady                      - -
new-1    ? unknown                     - -
paused-1 - paused                      - -
"""


def test_vms_at_50_columns_has_who_suffers_how_much_and_by_whom(run, agents):
    code, out, err = run("vms", "--socket", str(agents / "suffering.sock"), width=50)
    assert (code, err) == (0, "")
    assert out.startswith(VMS_SUFFERING_50)
    assert out.endswith("no room for NET, DISK, GIPS, vCPU, RUNQ%, JOB, CPI, GUEST%: widen the terminal\n")


def found(*suspects, verdict="VICTIM", more=0, **known):
    """The decision on a VM that suffers, as the agent sends it."""
    return host_pb2.VmDecision(
        verdict=agent_pb2.Behaviour.Value(f"BEHAVIOUR_{verdict}"),
        found_by=[agent_pb2.ANALYSIS_HOST],
        suspects=[host_pb2.Suspect(uuid=f"uuid-{name}", name=name) for name in suspects],
        suspects_left_out=more,
        **known,
    )


def suffering_vms(*names):
    slow_down = agent_pb2.Degradation(ratio=1.42, low=1.3, high=1.58)
    decision = found("batch-0001", slow_down=slow_down)
    return [
        host_pb2.VmSummary(uuid=f"uuid-{name}", name=name, job="web", state="running", vcpus=4, decision=decision)
        for name in names
    ]


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (80, ["NAME", "JOB", "vCPU", "VERDICT", "SLOW-DOWN", "BY"]),
        (57, ["NAME", "VERDICT", "SLOW-DOWN", "BY"]),
        (52, ["NAME", "JOB", "VERDICT", "SLOW-DOWN"]),  # what is wanted less, and narrow
        (50, ["NAME", "VERDICT", "SLOW-DOWN"]),
        (40, ["NAME", "VERDICT", "BY"]),
        (29, ["NAME", "VERDICT"]),
    ],
)
def test_whatever_the_width_the_table_fits_and_no_two_vms_look_alike(width, titles):
    names = [f"customer-{n}-database-primary" for n in (1, 2)]
    columns, rows, left_out = render.narrowed(*vms_command._table(suffering_vms(*names)), width)
    assert [column.title for column in columns] == titles
    assert sorted([*titles, *left_out]) == ["BY", "JOB", "NAME", "SLOW-DOWN", "VERDICT", "vCPU"]
    widths = render.fit(columns, rows, width)
    assert sum(widths) + len(widths) - 1 <= width
    assert len({render.cut(name, widths[0]) for name in names}) == 2


SAID = {*(word.text for word in words.WORDS), "paused"}


def test_vms_has_one_word_of_both_analyses_and_explain_says_which_found_it(run, agents):
    """The fleet's statistics find a victim and a VM as usual where the host finds nothing and knows nothing."""
    path = str(agents / "disagreeing.sock")
    _, out, _ = run("vms", "--socket", path, width=200)
    head, *lines = (line.split() for line in out.splitlines())
    assert (head.count("VERDICT"), head[-3:]) == (1, ["VERDICT", "SLOW-DOWN", "BY"])
    assert [(line[0], next(w for w in line if w in SAID), line[-1]) for line in lines[:5]] == [
        ("instance-0000a1f3", "victim", "batch-0001"),
        ("instance-0000a1f4", "steady", "-"),
        ("batch-0001", "unknown", "-"),
        ("new-1", "unknown", "-"),
        ("paused-1", "paused", "-"),
    ]
    _, out, _ = run("explain", "instance-0000a1f3", "--socket", path)
    lines = out.splitlines()
    assert lines[2].startswith("victim for 12 min: CPI 3.1 exceeds 1.9 = ")
    assert "found by the fleet's statistics" in lines
    assert "the host's own analysis: as usual for 95 s: as at its baseline" in lines
    assert "no contention" not in out
    _, out, _ = run("explain", "instance-0000a1f4", "--socket", path)
    lines = out.splitlines()
    assert lines[2].startswith("steady: CPI 1.3 is within 1.9 = ")
    assert "the host's own analysis: cannot tell: its baseline is not ready: 3 of 30 ticks" in lines
    assert "suffers" not in out  # by neither
    assert "found by" not in out


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        ("VICTIM", "victim"),
        ("AFFECTED", "affected"),
        ("INFLICTING", "inflicting"),
        ("STEADY", "steady"),
        ("UNKNOWN", "unknown"),
        ("UNSPECIFIED", "unknown"),
    ],
)
def test_the_word_is_the_decisions_and_that_of_a_vm_that_does_not_run_its_state(verdict, text):
    """What each analysis says by itself changes nothing."""
    vm = host_pb2.VmSummary(state="running", verdict="victim", decision=found(verdict=verdict))
    vm.cloud_white.behaviour = agent_pb2.BEHAVIOUR_INFLICTING
    word = words.word_of(vm)
    assert word in words.WORDS
    assert word.text == text
    vm.state = "paused"
    assert words.word_of(vm).text == "paused"


def test_a_verdict_of_a_newer_agent_is_unknown():
    vm = host_pb2.VmSummary(state="running", decision=host_pb2.VmDecision(verdict=99, found_by=[77]))
    assert (words.word_of(vm).text, words.found_by(vm)) == ("unknown", "")


def test_by_whom_is_the_first_suspect_and_how_many_more_there_are():
    def by(*suspects, more=0):
        return words.by_of(host_pb2.VmSummary(decision=found(*suspects, more=more)), {})

    assert [by(), by("one"), by("one", "two", "three"), by("one", "two", more=4)] == ["", "one", "one +2", "one +5"]


def test_a_host_with_victims_says_how_many_and_whom_it_blames():
    def line(victims, *suspect):
        held = host_pb2.HostDecision(victims=victims, affected=3, inflicting=1)
        if suspect:
            held.suspect.name = suspect[0]
        return words.host_line(host_pb2.ListVmsResponse(decision=held))

    assert line(0, "batch-0001") == ""
    assert line(1, "batch-0001") == "1 victim on this host now; first suspect batch-0001"
    assert line(2) == "2 victims on this host now; no suspect"


@pytest.mark.long
@pytest.mark.parametrize(
    ("width", "shown"), [("200", b" 12M victim     1.42x [1.30, 1.58] batch-0001 +1"), ("50", b"inst?a1f3 ")]
)
def test_a_terminal_of_another_encoding_has_the_word_alone(agents, width, shown):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}", "COLUMNS": width}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "vms", "--socket", str(agents / "suffering.sock")],
        capture_output=True,
        check=False,
        env={**environment, "PYTHONIOENCODING": "latin-1"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert shown in done.stdout


def test_explain_shows_behaviour_evidence_baseline_model_and_interval(run, agents):
    _, out, _ = run("explain", "instance-0000a1f3", "--socket", str(agents / "suffering.sock"))
    assert out.splitlines()[2:6] == [
        "victim for 95 s: ipc 0.61 is below 0.95",
        "slow-down 1.42x [1.30, 1.58]: latency (p95)",
        "first suspect batch-0001, 1 more below",
        "found by the host's own analysis",
    ]
    assert "\n".join(out.splitlines()[7:17]) == (
        "the host's own analysis: suffers for 95 s: same reason\n"
        "latency (p95) 1.42x [1.30, 1.58] of undisturbed, by model default: gamma-log\n"
        "baseline of 812 ticks (ready), detector noise_scaled\n"
        "workers: 2, learnt (240 samples at running vCPUs, posterior 0.999)\n"
        "SIGNAL               NOW LEARNT EXPECTED THRESHOLD\n"
        "ipc                 0.61   1.05     1.02      0.95\n"
        "gips               3.412    3.9      4.1         -\n"
        "workers                2      -        -         -\n"
        "workers_posterior 0.9996      -        -         -\n"
        "workers_looks        240      -        -         -"
    )
    assert "instance-0000a1f3: steady -> victim after 10 min, 1.42x [1.30, 1.58]" in out
    assert [line.split()[-1] for line in out.splitlines() if line.startswith(("batch-", "new-"))] == ["yes"] * 2
    _, out, _ = run("explain", "instance-0000a1f3", "--socket", str(agents / "no_model.sock"))
    assert "latency against undisturbed -: no_model: no model of degradation" in out


@pytest.mark.parametrize(
    ("shown", "line"),
    [
        ({"workers": 4.0}, "workers: 4, configured ([[jobs]] workers)"),
        ({"workers_looks": 12.0}, "workers: too few samples (12 samples), one per vCPU is assumed"),
        (
            {"workers_looks": 60.0, "workers_posterior": 0.9499},
            "workers: cannot tell (60 samples, posterior 0.949), one per vCPU is assumed",
        ),
        ({"gips": 1.0}, ""),
    ],
)
def test_explain_says_where_the_number_of_workers_is_from(shown, line):
    assert [piece.plain for piece in explanation._workers(shown)] == ([line] if line else [])


def test_who_suffers_for_programs(run, agents):
    _, out, _ = run("explain", "instance-0000a1f3", "--json", "--socket", str(agents / "suffering.sock"))
    answer = json.loads(out)
    assert answer["cloud_white"]["degradation"] == {
        "ratio": 1.42, "low": 1.3, "high": 1.58, "cannot_tell": None, "model": "default: gamma-log",
    }  # fmt: skip
    assert answer["slow_down"] == answer["cloud_white"]["degradation"]
    assert (answer["verdict"], answer["since_s"], answer["found_by"]) == ("victim", 95.0, ["host"])
    assert [(one["name"], one["inflicts"]) for one in answer["suspects"]] == [("batch-0001", True), ("new-1", True)]
    assert (answer["cloud_white"]["behaviour"], answer["cloud_white"]["since_s"]) == ("victim", 95.0)
    assert answer["cloud_white"]["culprits"] == ["batch-0001", "new-1"]
    assert answer["evidence"] == [{"signal": "ipc", "value": 0.61, "expected": 1.02, "threshold": 0.95}]
    assert answer["signals"]["gips"] == {"value": 3.412, "learnt": 3.9, "expected": 4.1}
    assert answer["signals"]["workers"] == {"value": 2.0, "learnt": None, "expected": None}
    assert [(e["before"], e["behaviour"], e["lasted_s"]) for e in answer["events"]] == [("steady", "victim", 600.0)]
    _, out, _ = run("vms", "--json", "--socket", str(agents / "full.sock"))
    assert {vm["cloud_white"] for vm in json.loads(out)["vms"]} == {None}  # it is off there
