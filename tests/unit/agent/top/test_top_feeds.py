"""Where `top` has its looks from: a real local API that goes away and comes back, and recordings of real VMs."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from agent.api.server import LocalApi
from agent.cli import top
from agent.top.feed import Came, Gone, LiveFeed
from agent.top.model import HISTORY, Model
from agent.top.player import Player
from agent.top.recorded import RecordedHost, length_s
from whitepanda.common import cli
from whitepanda.common.errors import InputError

HERE = Path(__file__).parents[1]
RECORDING = HERE.parents[1] / "fixtures" / "recordings" / "three_vms.jsonl"


def load(name):
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Shown, canned = load("top_fakes").Shown, load("canned_agents")

on_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def short(tmp_path_factory):
    """A folder whose path fits into a socket's address."""
    return tmp_path_factory.mktemp("t")


@pytest.mark.long
@on_one_loop
async def test_a_real_agent_that_goes_away_and_comes_back(short):
    state = canned.states(short)["suffering"]
    api = LocalApi(state, short / "a.sock")
    await api.start()
    async with Shown(LiveFeed(short / "a.sock", period_s=0.05), size=(160, 50)) as top:
        await top.until(lambda: "▼ 1 victim " in top.text())
        assert "1.42x [1.30, 1.58]" in top.text()
        await top.press("enter")
        await top.until(lambda: "baseline of 812 ticks (ready), detector noise_scaled" in top.text())
        await top.press("down")
        await top.until(lambda: "inflicting for 95 s: memory" in top.text())
        await api.stop()
        await top.until(lambda: "✗ STALE" in top.text() and "no agent answers at" in top.text())
        assert "1.42x [1.30, 1.58]" in top.text()
        api = LocalApi(state, short / "a.sock")
        await api.start()
        await top.until(lambda: "● live" in top.text())
    await api.stop()
    assert not any(thread.name == "top-feed" for thread in threading.enumerate())


@on_one_loop
async def test_cpi_is_held_against_what_central_sent_of_the_job(short):
    api = LocalApi(canned.states(short)["full"], short / "a.sock")
    await api.start()
    async with Shown(LiveFeed(short / "a.sock"), size=(160, 24)) as top:
        await top.until(lambda: "CPI/JOB" in top.text())
        assert "2.58x" in next(line for line in top.lines() if line.startswith(" instance-0000a1f3"))
    await api.stop()


# --- recordings ---


class Updates:
    """Takes a player's news; `last` is what a view would show."""

    def __init__(self, player):
        self.player, self.model, self.news, self.came = player, Model(), [], threading.Condition()
        player.start(self)

    def __call__(self, news):
        with self.came:
            if isinstance(news, Came):
                if news.anew:
                    self.model.forget()
                self.model.take(news.frames)
            self.news.append(news)
            self.came.notify()

    def until(self, condition):
        """Wait for news of which something is true; return them."""
        with self.came:
            assert self.came.wait_for(lambda: self.news and condition(self.news[-1]), 20), self.news[-1:]
            return self.news[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.player.stop()


def test_a_recorded_host_is_shown_as_the_agent_would_have():
    host = RecordedHost(RECORDING)
    frames = []
    while host.advance():
        frames.append(host.frame())
    assert (len(frames), host.at_s, host.trouble) == (7, 6.0, "")
    names = {vm.name: vm for vm in frames[-1].vms.vms}
    assert set(names) == {"wplab-busy-3", *(name for name in names if name.startswith("wplab-"))}
    cores = {m.name: m.value for m in names["wplab-busy-3"].metrics}["cpu_usage_cores"]
    assert 0.1 < cores < 1.1
    found = host.explain(names["wplab-busy-3"].uuid)
    assert (found.vm.name, found.detector) == ("wplab-busy-3", "noise_scaled")
    assert "central has not sent any" in found.vm.verdict_reason or found.vm.verdict == "unknown"
    assert host.explain("nobody") is None
    host.close()


def test_play_wind_and_speed():
    player = Player(RecordedHost(RECORDING))
    with Updates(player) as reported:
        first = reported.until(lambda news: news.frames)
        assert (first.position.at_s, first.position.length_s, first.position.playing) == (0.0, 6.0, True)
        player.toggle()
        reported.until(lambda news: not news.position.playing)
        player.wind(2)
        player.wind(3)  # keys that follow each other add up
        reported.until(lambda news: news.position.at_s == 5.0)
        uuid = reported.model.frame.vms.vms[0].uuid
        player.want(uuid)
        assert reported.until(lambda news: news.explanation).explanation.vm.uuid == uuid
        row = reported.model.row(uuid)
        forward = reported.model.history(row, "CPU")
        player.wind(-3)
        reported.until(lambda news: news.position.at_s == 2.0)
        assert len(forward) > 3
        assert reported.model.history(reported.model.row(uuid), "CPU") == forward[:-3]
        for _ in range(9):
            player.change_speed(1)
        assert reported.until(lambda news: news.position.speed == 64.0).position.at_s == 2.0
        player.toggle()
        end = reported.until(lambda news: news.position.ended)
        assert (end.position.at_s, end.position.playing) == (6.0, False)
        assert reported.model.history(reported.model.row(uuid), "CPU")[:-1] == forward
        player.toggle()  # at the end: from the beginning
        reported.until(lambda news: news.position.at_s < 6.0 and news.position.playing)
    assert not any(thread.name == "top-player" for thread in threading.enumerate())


@pytest.mark.long
@on_one_loop
async def test_keys_of_a_recording():
    async with Shown(Player(RecordedHost(RECORDING)), size=(100, 30)) as top:
        await top.until(lambda: "▶ 0:0" in top.text())
        await top.until(lambda: "→ +10 s" in top.lines()[-1])
        await top.press("space", "right")
        await top.until(lambda: "‖ paused 0:06 of 0:06 at 1x" in top.text())
        await top.press("left", "left", "+", "+", "-")
        await top.until(lambda: "‖ paused 0:00 of 0:06 at 2x" in top.text())
        await top.press("]")
        await top.until(lambda: "‖ paused 0:06 of 0:06 at 2x" in top.text())
        assert "wplab-busy-3" in top.text()
        assert "STALE" not in top.text()
        await top.press("enter")
        await top.until(lambda: "detector noise_scaled" in top.text())
        await top.press("?")
        assert "back and forward by 10 s" in top.text()


def changed(tmp_path, change):
    lines = RECORDING.read_bytes().splitlines(keepends=True)
    file = tmp_path / "changed.jsonl"
    file.write_bytes(b"".join(change(lines)))
    return file


def test_a_wrong_line_costs_itself_and_is_reported(tmp_path):
    file = changed(tmp_path, lambda lines: [*lines[:9], b"{]\n", *lines[9:]])
    host = RecordedHost(file)
    while host.advance():
        pass
    assert (host.at_s, "changed.jsonl:10: not a line of a recording" in host.trouble) == (6.0, True)
    host.close()


def test_a_recording_that_is_cut_off_ends_there(tmp_path):
    file = changed(tmp_path, lambda lines: [*lines[:-1], lines[-1][:20]])
    assert length_s(file) == 5.0
    host = RecordedHost(file)
    while host.advance():
        pass
    assert (host.at_s, "cut off" in host.trouble) == (5.0, True)
    host.close()


def test_steps_of_a_recording():
    player = Player(RecordedHost(RECORDING), 3.0, playing=False)
    with Updates(player) as reported:
        reported.until(lambda news: news.position and news.position.at_s == 3.0)
        for by, at_s in ((1, 4.0), (-1, 3.0), (-2, 1.0), (3, 4.0)):
            player.step(by)
            reported.until(lambda news, at_s=at_s: news.position.at_s == at_s)


def test_a_recording_that_vanishes_is_reported_when_it_is_wound_back(tmp_path):
    file = tmp_path / "gone.jsonl"
    shutil.copy(RECORDING, file)
    player = Player(RecordedHost(file))
    with Updates(player) as reported:
        player.wind(5)
        reported.until(lambda news: news.position and news.position.at_s >= 5)
        file.unlink()
        player.wind(-5)
        assert "gone.jsonl: cannot read" in reported.until(lambda news: isinstance(news, Gone)).why


def test_whatever_ends_the_player_is_reported(monkeypatch):
    player = Player(RecordedHost(RECORDING))

    def broken():
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(player._host, "advance", broken)
    with Updates(player) as reported:
        said = reported.until(lambda news: isinstance(news, Gone)).why
    assert "ZeroDivisionError('a bug'); please report this" in said


def test_what_is_no_recording_is_one_line(tmp_path):
    file = tmp_path / "x"
    file.write_text("nothing")
    with pytest.raises(InputError, match="not a recording"):
        Player(RecordedHost(file))
    with pytest.raises(InputError, match="No such file"):
        RecordedHost(tmp_path / "y")


def test_a_long_recording_keeps_a_minute(tmp_path):
    """Ticks of nothing, 200 of them: the history does not grow, and winding takes what it needs."""
    ticks = [
        json.dumps({"tick": {"mono_ns": n * 10**9, "unix_ns": n * 10**9, "samples": [], "sources": {}}})
        for n in range(1, 201)
    ]
    file = tmp_path / "long.jsonl"
    file.write_bytes(RECORDING.read_bytes().splitlines(keepends=True)[0] + "\n".join(ticks).encode() + b"\n")
    player = Player(RecordedHost(file))
    with Updates(player) as reported:
        player.wind(150)
        came = reported.until(lambda news: news.frames and news.position.at_s >= 150)
        assert len(came.frames) <= HISTORY


# --- the command ---


@pytest.fixture
def run(monkeypatch):
    """Run `whitepanda ARGUMENTS`; in a terminal, as far as it can tell, unless told otherwise."""

    def _run(*arguments, is_terminal=True, term="xterm"):
        monkeypatch.setattr(sys, "argv", ["whitepanda", *arguments])
        monkeypatch.setenv("TERM", term)
        monkeypatch.setattr("agent.cli.top._is_terminal", lambda: is_terminal)
        return CliRunner().invoke(cli.build(), arguments).exception

    return _run


@pytest.mark.parametrize("how", [{"is_terminal": False}, {"term": "dumb"}, {"term": ""}])
def test_without_a_terminal_it_says_what_to_take(run, how):
    error = run("top", **how)
    assert (str(error), error.exit_code) == ("top needs a terminal; use `whitepanda vms --json` instead", 4)


@pytest.mark.parametrize(("stdout", "stderr"), [(False, True), (True, False)])
def test_what_it_draws_to_must_be_a_terminal(monkeypatch, stdout, stderr):
    """Textual draws to standard error."""
    for name, is_terminal in (("stdin", True), ("stdout", stdout), ("stderr", stderr)):
        monkeypatch.setattr(sys, name, SimpleNamespace(isatty=lambda it=is_terminal: it))
    assert top._is_terminal() is stderr


def test_without_the_extra_it_says_what_to_install(run, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "textual" or name.startswith("agent.top.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    error = run("top")
    assert "not installed here; install it: `python3 tools/bootstrap.py top`" in str(error)
    assert error.exit_code == 4


def test_without_an_agent_it_says_how_to_start_it(run, tmp_path):
    error = run("top", "--socket", str(tmp_path / "no.sock"))
    assert "start it with `systemctl start whitepanda-agent`" in str(error)


def test_a_recording_needs_no_agent(run, tmp_path):
    error = run("top", "--socket", "x", "--replay", str(RECORDING))
    assert str(error) == "--socket and --replay: a recording needs no agent; give one of them"
    assert "No such file" in str(run("top", "--replay", str(tmp_path / "none")))


def test_the_other_commands_and_the_daemon_do_not_load_it():
    code = (
        "import sys, agent.daemon, agent.cli.vms, agent.cli.top;"
        "print([n for n in sys.modules if n.startswith(('textual', 'agent.top'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"
