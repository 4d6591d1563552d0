"""The demonstration as a user runs it: real processes, real mTLS, one command."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from central.demo.fleet import make_fleet
from tests.support.prometheus_server import get
from tests.support.waiting import wait_until

WHITEPANDA = Path(sys.executable).parent / "whitepanda"


def children_of_demos(mark: str) -> list[str]:
    """Command lines of all processes whose configuration is below `mark`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if mark in command and "central.demo.child" in command:
                found.append(command)
    return found


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}  # so that its folder, and its processes, can be found
    return subprocess.Popen(
        [str(WHITEPANDA), "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.fixture
def short_tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sockets live below it, and their paths are limited."""
    return tmp_path_factory.mktemp("d")


@pytest.mark.alone  # it takes less than a minute
def test_demo_finds_the_injected_antagonist(short_tmp: Path) -> None:
    began = time.monotonic()
    running = start(short_tmp, "--json", "--seed", "7")
    out, err = running.communicate(timeout=110)
    seconds = time.monotonic() - began
    assert running.returncode == 0, err
    reported = json.loads(out)
    assert reported["first_suspect"] == reported["injected_antagonist"]
    assert len(reported["hosts"]) == 4
    assert reported["windows_acknowledged"] >= 4 * 10 * 5
    assert reported["past_windows"] == 34560
    hurt = [victim for victim in reported["victims"] if victim["flagged"]]
    assert len(hurt) >= 3
    for victim in hurt:
        assert victim["true_degradation"] > 1.1
        assert victim["estimated_degradation"] == pytest.approx(victim["true_degradation"], rel=0.25)
    # Of each victim: what Cloud White says of its requests beside the truth, or why it cannot.
    told_of = [v for v in hurt if v["behaviour"] == "victim" and v["latency_degradation"] is not None]
    assert told_of
    for victim in told_of:
        low, high = victim["latency_low"], victim["latency_high"]
        assert low <= victim["latency_degradation"] <= high
        assert victim["latency_degradation"] > 1.0
        assert victim["true_latency_degradation"] > 1.1
        # Nine of ten intervals hold the truth; that they leave out 1 is promised of no small effect.
        assert low > 1.0 or victim["true_latency_degradation"] < 1.3
        assert victim["is_held"] == (low <= victim["true_latency_degradation"] <= high)
        assert 0 <= victim["latency_held"] <= victim["latency_known"]
    assert any(victim["is_held"] for victim in told_of)
    for victim in reported["victims"]:
        assert victim["latency_degradation"] is not None or victim["cannot_tell"]
        assert bool(victim["cannot_tell"]) == (victim["latency_unknown"] > 0)
    assert reported["suspects"][0]["job"] == reported["first_suspect"]
    assert reported["seconds"] <= seconds < 60
    assert "SIMULATED days" in err
    assert children_of_demos(str(short_tmp)) == []
    assert list(short_tmp.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_demo_and_everything_it_started(short_tmp: Path, number: signal.Signals) -> None:
    running = start(short_tmp)
    try:
        end = time.monotonic() + 30
        while len(children_of_demos(str(short_tmp))) < 5 and time.monotonic() < end:
            time.sleep(0.1)
        assert len(children_of_demos(str(short_tmp))) == 5
        time.sleep(1.0)
        running.send_signal(number)
        _, err = running.communicate(timeout=60)
    finally:
        running.kill()
        running.wait()
    assert (running.returncode, err) == (128 + number, "stopped\n")
    assert children_of_demos(str(short_tmp)) == []
    assert list(short_tmp.iterdir()) == []


def test_a_daemon_that_dies_fails_the_demo_with_one_line(short_tmp: Path) -> None:
    running = start(short_tmp, "--json")
    pids: list[int] = []
    end = time.monotonic() + 30
    while not pids and time.monotonic() < end:
        time.sleep(0.2)
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    command = (entry / "cmdline").read_bytes().decode(errors="replace")
                except (FileNotFoundError, ProcessLookupError, PermissionError):
                    continue
                if str(short_tmp) in command and "host-3" in command:
                    pids = [int(entry.name)]
    assert pids
    os.kill(pids[0], signal.SIGKILL)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 4
    assert out == ""
    assert "error: demo: host-3 was killed by signal 9; the end of its log:" in err
    assert "Traceback" not in err
    assert children_of_demos(str(short_tmp)) == []
    assert list(short_tmp.iterdir()) == []


@pytest.mark.long
@pytest.mark.timeout(200)
def test_who_stays_has_the_page_and_the_live_view_until_ctrl_c(short_tmp: Path) -> None:
    running = start(short_tmp, "--seed", "7", "--stay")
    assert running.stdout is not None
    try:
        said = []
        while not said or " incidents list " not in said[-1]:
            line = running.stdout.readline()
            assert line, running.stderr and running.stderr.read()
            said.append(line)
        page, command, asking = said[-5].strip(), shlex.split(said[-3]), shlex.split(said[-1])
        assert command[1:3] == ["top", "--socket"]
        port = urlsplit(page).port
        assert port is not None
        assert b"<title>whitepanda" in get(port, "/")
        names = {host["host"] for host in json.loads(get(port, "/v1/hosts"))["hosts"]}
        assert {"host-1", "host-2", "host-3", "host-4"} <= names
        wait_until(lambda: json.loads(get(port, "/v1/incidents"))["incidents"])
        # The command as it is printed, from another folder.
        listed = subprocess.run(asking, capture_output=True, text=True, check=True, cwd="/")
        assert listed.stdout.split()[:2] == ["NO", "HOST"]
        assert f" {make_fleet(7, short_tmp).target} " in listed.stdout
        # The agent's words, as `top` (which wants a terminal) gets them.
        reported = subprocess.run(
            [WHITEPANDA, "vms", "--json", "--socket", command[3]], capture_output=True, text=True, check=True
        )
        assert len(json.loads(reported.stdout)["vms"]) > 5
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
    finally:
        running.kill()
        running.wait()
    assert (running.returncode, err) == (0, "stopped\n")
    assert children_of_demos(str(short_tmp)) == []
    assert list(short_tmp.iterdir()) == []


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", ["21", "22", "23", "24", "25"])
def test_demo_is_right_whatever_the_seed(short_tmp: Path, seed: str) -> None:
    running = start(short_tmp, "--json", "--seed", seed)
    out, err = running.communicate(timeout=200)
    assert running.returncode == 0, err
    reported = json.loads(out)
    assert reported["first_suspect"] == reported["injected_antagonist"]
    flagged = [v for v in reported["victims"] if v["estimated_degradation"] is not None]
    assert flagged
    off = [abs(v["estimated_degradation"] / v["true_degradation"] - 1) for v in flagged]
    assert sum(off) / len(off) < 0.15
