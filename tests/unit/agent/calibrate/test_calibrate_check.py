"""`whitepanda calibrate --check`: what would end a campaign is reported beforehand, a line each; nothing is started."""

import json
import re
import socket
import sys
import threading
from types import SimpleNamespace

import pytest
import typer

from agent.calibrate import preflight
from agent.calibrate.sampling import Sampler
from agent.cli.calibrate import calibrate
from agent.config import load
from tests.unit.agent.agent_fakes import identity
from whitepanda.common.errors import InputError, UnavailableError

LEAST = "s at least to hold a whole sample"
HOST = """
seed = 5
[host]
cpus = 16
step_s = 0.1
[[vms]]
name = "web-1"
job = "web"
[[vms]]
name = "noise-1"
job = "noise"
"""
PLAN = """
[phases]
quiet_s = 0.5
stress_s = 0.5
after_s = 0
[served]
vm = "web-1"
requests = { address = "SERVER", protocol = "line", send = "ask", timeout_s = 0.3 }
loads = [{ load_ratio = 0.3, requests_per_s = 100 }]
[[stressors]]
name = "noise"
vm = "noise-1"
run = ["sleep", "60"]
[[stressors]]
name = "burn"
vm = "noise-1"
control = "SERVER"
on = "on"
off = "off"
[[scenarios]]
name = "noisy"
stressors = ["noise"]
"""


@pytest.fixture
def host(tmp_path):
    (tmp_path / "scenario.toml").write_text(HOST)
    file = tmp_path / "agent.toml"
    file.write_text(
        f"[agent]\ntick_s = 0.1\nwindow_s = 0.5\nstate_dir = '{tmp_path}'\nsocket = '{tmp_path}/a.sock'\n"
        f"[sources.simulated]\nmode = 'required'\nscenario = '{tmp_path}/scenario.toml'\n"
    )
    return file


@pytest.fixture
def server():
    """Where a server listens that answers lines, and what it was sent."""
    reported = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    while line := connection.recv(100):
                        reported.append(line)
                        connection.sendall(b"answer\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", reported
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


@pytest.fixture
def check(tmp_path, host, server, capfd):
    """Check a plan: exit code, and the lines of standard error."""

    def run(changes=(), runs="runs.csv", **options):
        text = PLAN.replace("SERVER", server[0])
        for before, after in dict(changes).items():
            assert before in text
            text = text.replace(before, after, 1)
        plan = tmp_path / "plan.toml"
        plan.write_text(text)
        code = 0
        before = sorted(tmp_path.rglob("*"))
        try:
            calibrate(plan, tmp_path / runs, config=host, check=True, **options)
        except typer.Exit as end:
            code = end.exit_code
        assert sorted(tmp_path.rglob("*")) == before
        out, err = capfd.readouterr()
        return code, err.splitlines(), out

    return run


def test_a_plan_that_can_work_passes_and_only_the_server_is_asked(check, server):
    code, lines, out = check()
    assert (code, lines) == (0, [])
    assert "ready to start" in out
    assert server[1] == [b"ask\n"]


def no_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.mark.parametrize(
    ("changes", "exit_code", "line"),
    [
        (
            {'run = ["sleep", "60"]': 'run = ["stress-ng-no", "60"]'},
            4,
            "stressor 'noise': run: 'stress-ng-no' is not in PATH; install it, or give its whole path",
        ),
        (
            {'run = ["sleep", "60"]': 'start = ["sh"]\nstop = ["/nowhere/stop"]'},
            4,
            "stressor 'noise': stop: '/nowhere/stop' is not a command; install it, or give its whole path",
        ),
        (
            {
                'requests = { address = "SERVER", protocol = "line", send = "ask", timeout_s = 0.3 }': (
                    'command = ["ask-no"]'
                )
            },
            4,
            "served.command: 'ask-no' is not in PATH; install it, or give its whole path",
        ),
        (
            {"quiet_s = 0.5": "quiet_s = 0.5\n#", "tick": "0.3"},
            3,
            f"phases.quiet_s is too short for agent.tick_s (values 0.5, 0.3): a phase has to be 0.6 {LEAST}",
        ),
        (
            {"after_s = 0": "after_s = 0.1"},
            3,
            f"phases.after_s is too short for agent.tick_s (values 0.1, 0.1): a phase has to be 0.2 {LEAST}",
        ),
        (
            {'vm = "noise-1"\nrun': 'vm = "noise-2"\nrun'},
            4,
            "VM 'noise-2' of the plan does not run here; running: noise-1, web-1",
        ),
    ],
)
def test_what_would_end_it_is_reported(check, host, server, changes, exit_code, line):
    tick = changes.pop("tick", None)
    if tick:
        host.write_text(host.read_text().replace("tick_s = 0.1", f"tick_s = {tick}").replace("0.5", "0.6"))
    changes = {key.replace("SERVER", server[0]): value for key, value in changes.items()}
    code, lines, out = check(changes)
    assert (code, lines[0], out) == (exit_code, f"error: {line}", "")


def test_a_name_that_several_vms_have_is_refused(host):
    sampler = Sampler(load(host), ["web-1"])
    vms = [SimpleNamespace(identity=identity(uuid, name="web-1")) for uuid in ("u1", "u2")]
    sampler._pipeline.table = vms
    sampler._epochs = {"u1": "e1", "u2": "e1"}
    with pytest.raises(UnavailableError) as refused:
        sampler.check()
    assert (
        str(refused.value) == "the plan's VM is ambiguous: 2 VMs are named 'web-1': u1, u2; give the UUID in the plan"
    )


def test_a_server_and_a_control_port_that_do_not_answer(check, server):
    closed = f"127.0.0.1:{no_port()}"
    code, lines, _ = check({f'address = "{server[0]}"': f'address = "{closed}"'})
    refused = f"error: served.requests.address {closed}: no answer: Connection refused"
    assert (code, lines) == (4, [refused])
    code, lines, _ = check({f'control = "{server[0]}"': f'control = "{closed}"'})
    assert (code, lines) == (4, [f"error: stressor 'burn': control {closed}: Connection refused"])
    with socket.create_server(("127.0.0.1", 0)) as mute:
        silent = f"127.0.0.1:{mute.getsockname()[1]}"
        code, lines, _ = check({f'address = "{server[0]}"': f'address = "{silent}"'})
    assert (code, lines) == (4, [f"error: served.requests.address {silent}: no answer: none within 0.3 s"])


def test_runs_that_cannot_come_into_being(check, tmp_path):
    (tmp_path / "old.csv").write_text("mine")
    (tmp_path / "folder").mkdir()
    cases = [
        ("old.csv", 3, "exists already; give another name, or --force to replace it"),
        ("folder", 3, "is a folder; give the name of a file"),
        ("runs.parquet", 3, "calibrate writes CSV; name it .csv"),
        ("nowhere/runs.csv", 4, "cannot write: No such file or directory"),
        ("/proc/runs.csv", 4, "cannot write: No such file or directory"),  # where even root writes nothing
    ]
    for name, exit_code, why in cases:
        code, lines, _ = check(runs=name)
        assert (code, lines) == (exit_code, [f"error: {tmp_path / name}: {why}"])
    assert check(runs="old.csv", force=True)[0] == 0
    assert check(runs="folder", force=True)[0] == 3
    assert (tmp_path / "old.csv").read_text() == "mine"


def test_all_that_hinders_is_reported_at_once_also_to_programs(check, tmp_path, server):
    (tmp_path / "old.csv").write_text("mine")
    changes = {
        'run = ["sleep", "60"]': 'run = ["no-such"]',
        f'control = "{server[0]}"': f'control = "127.0.0.1:{no_port()}"',
        'vm = "web-1"': 'vm = "web-2"',
    }
    code, lines, _ = check(changes, runs="old.csv")
    assert code == 3
    whats = ("old.csv: exists already", "'no-such' is not in PATH", "VM 'web-2'", "Connection refused")
    assert len(lines) == len(whats)
    assert all(what in line for what, line in zip(whats, lines, strict=True))
    code, lines, out = check(changes, runs="old.csv", json=True)
    assert (code, lines) == (3, [])
    assert len(json.loads(out)["problems"]) == len(whats)


def test_a_campaign_that_cannot_work_does_not_begin(tmp_path, host, server):
    """A command that is not there is no matter of the third scenario, hours later."""
    plan = tmp_path / "plan.toml"
    text = PLAN.replace("SERVER", server[0])
    for change, error, message in (
        (('"sleep"', '"no-such"'), UnavailableError, "'no-such' is not in PATH"),
        (("after_s = 0", "after_s = 0.1"), InputError, "phases.after_s is too short"),
    ):
        plan.write_text(text.replace(*change))
        with pytest.raises(error, match=re.escape(message)):
            calibrate(plan, tmp_path / "runs.csv", config=host)
    assert server[1] == []
    assert not list(tmp_path.glob("runs*"))


def test_a_command_with_a_path_is_looked_for_there():
    assert list(preflight._command_problems("x", [sys.executable])) == []
    assert len(list(preflight._command_problems("x", ["./python-no"]))) == 1
