"""A real agent starts while its state folder's disk is full: it runs and says so, or ends with one clear line."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from central.pki import issue, make_ca
from tests.support.small_disk import fill, mounted

pytestmark = pytest.mark.integration

SCENARIO = """
[[vms]]
name = "db-1"
job = "db"
"""
CONFIG = """
[agent]
host = "node1"
state_dir = "{state}"
socket = "{socket}"
[sources.simulated]
mode = "required"
scenario = "{folder}/scenario.toml"
[uplink]
address = "localhost:1"
[uplink.tls]
ca = "{pki}/ca.crt"
certificate = "{pki}/node1.crt"
key = "{pki}/node1.key"
"""


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    folder = tmp_path / "pki"
    make_ca(folder)
    issue(folder, "node1")
    return folder


def fill_names(folder: Path) -> None:
    """Take every file name that the disk still has."""
    with contextlib.suppress(OSError):
        for number in itertools.count():
            (folder / f"name-{number}").touch()


@contextlib.contextmanager
def started(folder: Path, state: Path, socket: Path, pki: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The process, and its log."""
    config, log = folder / "agent.toml", folder / "agent.log"
    (folder / "scenario.toml").write_text(SCENARIO)
    config.write_text(CONFIG.format(folder=folder, state=state, socket=socket, pki=pki))
    command = [Path(sys.executable).parent / "whitepanda", "agent", "run", "--config", config]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        yield process, log
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for_start(process: subprocess.Popen[bytes], log: Path) -> None:
    while process.poll() is None and "agent started" not in log.read_text():
        time.sleep(0.05)


@pytest.mark.parametrize("has_state", [False, True], ids=["first start", "with a state"])
@pytest.mark.parametrize("takes_names", [False, True], ids=["no bytes", "no names"])
def test_it_runs_and_says_that_the_disk_is_full(tmp_path, pki, takes_names, has_state):
    with mounted(tmp_path / "disk", "8m") as disk:
        state, socket = disk / "state", tmp_path / "agent.sock"
        if has_state:
            with started(tmp_path, state, socket, pki) as (process, log):
                wait_for_start(process, log)
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0, log.read_text()
        subprocess.run(["mount", "-o", "remount,nr_inodes=200", disk], check=True)
        fill(disk)
        if takes_names:
            fill_names(disk)
        with started(tmp_path, state, socket, pki) as (process, log):
            wait_for_start(process, log)
            assert process.poll() is None, log.read_text()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, log.read_text()
            said = log.read_text()
            assert "Traceback" not in said
            assert "spool.db: the disk is full" in said


def test_it_ends_with_one_line_where_its_socket_cannot_be_made(tmp_path, pki):
    with mounted(tmp_path / "disk", "8m") as disk:
        subprocess.run(["mount", "-o", "remount,nr_inodes=20", disk], check=True)
        fill_names(disk)
        with started(tmp_path, tmp_path / "state", disk / "agent.sock", pki) as (process, log):
            assert process.wait() == 4
        said = log.read_text()
        assert "Traceback" not in said
        (line,) = [line for line in said.splitlines() if line.startswith("error:")]
        assert f"cannot listen at {disk}/agent.sock" in line
