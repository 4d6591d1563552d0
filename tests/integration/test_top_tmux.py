"""`whitepanda top` as a user runs it: in a real terminal (tmux), of a running agent that is killed on the way."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.terminal import Terminal, has

WHITEPANDA = Path(sys.executable).parent / "whitepanda"
SCENARIO = """\
seed = 1
[[vms]]
name = "web-1"
job = "web"
vcpus = 4
load = { cores = 2.0 }
[[vms]]
name = "db-1"
job = "db"
load = { cores = 0.5 }
[[vms]]
name = "scan-1"
job = "scan"
vcpus = 8
load = { cores = 5.0 }
"""
AGENT = """\
[agent]
host = "demo-1"
socket = "{folder}/a.sock"
state_dir = "{folder}/state"
[sources.simulated]
mode = "required"
scenario = "{folder}/scenario.toml"
[[jobs]]
fact = "job"
pattern = "^(.+)$"
job = "\\\\1"
"""


class Agent:
    """A real agent with simulated VMs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "state").mkdir()
        (folder / "scenario.toml").write_text(SCENARIO)
        self.config = folder / "agent.toml"
        self.config.write_text(AGENT.format(folder=folder))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "agent.log").open("ab") as out:
            command = [WHITEPANDA, "agent", "run", "--config", self.config]
            self.process = subprocess.Popen(command, stdout=out, stderr=out)
        self.until_it_answers()

    def until_it_answers(self) -> None:
        for _ in range(300):
            done = subprocess.run(
                [WHITEPANDA, "agent", "status", "--socket", self.folder / "a.sock"], capture_output=True, check=False
            )
            if done.returncode == 0:
                return
            time.sleep(0.1)
        pytest.fail((self.folder / "agent.log").read_text())

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    if shutil.which("tmux") is None:
        pytest.skip("tests/lab/packages.sh did not install all: no tmux")
    running = Agent(tmp_path_factory.mktemp("t"))
    running.start()
    yield running
    running.kill()


@pytest.fixture
def terminal(agent: Agent) -> Iterator[Terminal]:
    running = Terminal(agent.folder)
    yield running
    running.close()


def vms(lines: list[str]) -> list[str]:
    """Return the VMs in the order in which they stand."""
    first = [line.split()[0] for line in lines if line.startswith(" ") and line.strip()]
    return [word for word in first if word in ("web-1", "db-1", "scan-1")]


@pytest.mark.integration
@pytest.mark.long
def test_from_start_to_quit_the_terminal_is_as_it_was(agent: Agent, terminal: Terminal) -> None:
    terminal.type(f"cd {agent.folder}; stty -a > before; clear", "Enter")
    before = terminal.state()
    terminal.type(f"{WHITEPANDA} top --config agent.toml; echo rc=$?", "Enter")
    terminal.until(has("demo-1  3 VMs", "● live", "web-1", "scan-1", "RUNQ%", "not shown: CPI/JOB"))
    assert terminal.state().startswith("1 ")
    terminal.type(">", ">")  # NAME, VERDICT, CPU: no VM suffers, so there is no SLOW-DOWN
    terminal.type("<")
    lines = terminal.until(has("sorted by CPU ↓"))
    assert vms(lines) == ["scan-1", "web-1", "db-1"]
    terminal.type("r")
    assert vms(terminal.until(has("sorted by CPU ↑"))) == ["db-1", "web-1", "scan-1"]
    terminal.type("/", "^web|db$")
    terminal.until(has("filter '^web|db$': 2 of 3"))
    terminal.type("Enter")
    assert vms(terminal.screen()) == ["db-1", "web-1"]
    terminal.type("Enter")
    terminal.until(has("─why─", "job web (not latency-sensitive)"))  # that was first when all was calm
    terminal.type("Up")
    terminal.until(has("job db (not latency-sensitive)"))
    terminal.type("Escape")
    terminal.until(has("3 VMs", "scan-1"))
    terminal.type("Escape")
    terminal.type("Space")
    terminal.until(has("■ FROZEN"))
    terminal.type("Space")
    terminal.until(has("● live"))
    agent.kill()
    terminal.until(has("✗ STALE", "no agent answers", "scan-1"))
    agent.start()
    terminal.until(has("● live"))
    terminal.type("q")
    terminal.until(has("rc=0"))
    assert terminal.state() == before
    terminal.type("stty -a > after; clear; echo done", "Enter")
    terminal.until(lambda lines: lines and "done" in lines[0])
    assert (agent.folder / "after").read_text() == (agent.folder / "before").read_text()


@pytest.mark.integration
@pytest.mark.long
def test_without_colours_nothing_but_the_terminals_own(agent: Agent, terminal: Terminal) -> None:
    def colours() -> bool:
        return any(mark in line for line in terminal.screen("-e") for mark in ("[38;", "[48;", ";38;", ";48;", "[31m"))

    run = f"{WHITEPANDA} top --socket {agent.folder}/a.sock"
    terminal.type(run, "Enter")
    terminal.until(has("● live", "web-1"))
    assert colours()
    terminal.type("q")
    terminal.until(lambda lines: lines[-1:] != [] and not has("● live")(lines))
    terminal.type(f"NO_COLOR=1 {run}; echo rc=$?", "Enter")
    terminal.until(has("● live", "web-1"))
    assert not colours()
    pid = subprocess.run(
        ["pgrep", "-f", f"top --socket {agent.folder}/a.sock"], capture_output=True, text=True, check=True
    ).stdout.split()
    for one in pid:
        os.kill(int(one), 15)
    terminal.until(has("rc=143"))  # SIGTERM leaves the terminal as `q` does
    assert terminal.state().startswith("0 1 0")


@pytest.mark.integration
@pytest.mark.long
def test_the_past_of_the_agent_running_and_stopped(agent: Agent, terminal: Terminal) -> None:
    run = f"{WHITEPANDA} top --config {agent.config}"
    time.sleep(25)  # windows, and ticks enough to step in
    terminal.type(f"{run} --at -5s; echo rc=$?", "Enter")
    terminal.until(has("demo-1  3 VMs", "‖ paused", "in values of 1 s", "scan-1", "●"))
    shown = paused_at(terminal)
    terminal.type("Left")
    terminal.until(lambda lines: has("‖ paused")(lines) and (shown - paused_at(terminal)) % 86_400 in (9, 10, 11))
    terminal.type("Space")
    terminal.until(has("▶ "))
    terminal.type("Space")
    terminal.until(has("‖ paused"))
    terminal.type("Enter")
    terminal.until(has("job "))
    terminal.type("q")
    terminal.until(has("rc=0"))
    agent.kill()  # -9: what it wrote is there
    terminal.type("clear", "Enter")
    terminal.type(f"{run} --since -1h; echo rc=$?", "Enter")
    terminal.until(has("demo-1", "▶ ", "in values of"))
    terminal.type("]")
    terminal.until(has("scan-1", "in values of 1 s"))
    terminal.type("q")
    terminal.until(has("rc=0"))
    terminal.type("clear", "Enter")
    terminal.type(f"{run} --at noon; echo rc=$?", "Enter")
    terminal.until(has("'noon' is no time", "rc=3"))


def paused_at(terminal: Terminal) -> int:
    """Return the time of day of the moment that is shown, in seconds."""
    line = next(line for line in terminal.screen() if "‖ paused" in line)
    hours, minutes, seconds = line.split(" in values")[0].split()[-1].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds)
