"""Stressors are started as told, watched, and stopped whatever happens."""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from agent.calibrate import stressors as module
from agent.calibrate.plan import Stressor
from agent.calibrate.stressors import Stressors
from tests.support.waiting import wait_until
from whitepanda.common.errors import UnavailableError


@pytest.fixture
def stressors():
    return Stressors(deadline_s=5.0)


def touch(path):
    return ("touch", str(path))


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def written(path):
    async with asyncio.timeout(20):
        while not path.is_file() or not path.read_text():
            await asyncio.sleep(0.01)
    return path.read_text()


async def test_a_lasting_command_ends_with_its_children(stressors, tmp_path):
    script = f"sleep 600 & echo $! > {tmp_path}/child; wait"
    await stressors.start([Stressor("s", "vm", run=("sh", "-c", script), stop=touch(tmp_path / "stopped"))])
    child = int(await written(tmp_path / "child"))
    stressors.check()
    assert alive(child)
    await stressors.stop()
    wait_until(lambda: not alive(child))  # it was asked to end, and ends by itself
    assert (tmp_path / "stopped").exists()
    await stressors.stop()  # nothing runs any more


async def test_one_that_does_not_heed_sigterm_ends_all_the_same(stressors, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_END_S", 0.3)
    deaf = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    code = f"{deaf}; open('{tmp_path}/pid', 'w').write(str(os.getpid())); time.sleep(600)"
    await stressors.start([Stressor("s", "vm", run=(sys.executable, "-c", code))])
    pid = int(await written(tmp_path / "pid"))
    await stressors.stop()
    assert not alive(pid)


async def test_one_that_ends_by_itself_is_reported_with_its_last_words(stressors):
    await stressors.start([Stressor("s", "vm", run=("sh", "-c", "echo a >&2; echo 'no such host' >&2; exit 4"))])
    _, lasting = stressors._running["s"]
    assert await lasting.wait() == 4
    with pytest.raises(UnavailableError, match=r"'s' ended before its phase did: .* status 4: no such host"):
        stressors.check()
    await stressors.stop()


async def test_commands_that_return_start_and_stop(stressors, tmp_path):
    await stressors.start([Stressor("s", "vm", start=touch(tmp_path / "on"), stop=("rm", str(tmp_path / "on")))])
    assert (tmp_path / "on").exists()
    stressors.check()
    await stressors.stop()
    assert not (tmp_path / "on").exists()


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (("sh", "-c", "echo broken pipe >&2; exit 2"), "with status 2: broken pipe"),
        (("/nowhere/x", "-a"), "stressor 's': cannot run /nowhere/x -a: No such file or directory"),
        (("x\0y",), "embedded null byte"),
    ],
)
async def test_a_start_that_fails_is_reported_and_stopped_all_the_same(stressors, tmp_path, start, problem):
    """It may have started half: what stops it is run nevertheless."""
    with pytest.raises(UnavailableError) as caught:
        await stressors.start([Stressor("s", "vm", start=start, stop=touch(tmp_path / "stopped"))])
    assert problem in str(caught.value)
    await stressors.stop()
    assert (tmp_path / "stopped").exists()


async def test_a_start_that_does_not_return_is_reported():
    quick = Stressors(deadline_s=0.2)
    with pytest.raises(UnavailableError, match=r"took more than 0\.2 s; a command that lasts belongs in `run`"):
        await quick.start([Stressor("s", "vm", start=("sleep", "600"), stop=("true",))])
    await quick.stop()


async def test_what_a_start_leaves_in_the_background_stays(stressors, tmp_path):
    script = f"sleep 600 >/dev/null 2>&1 & echo $! > {tmp_path}/pid"
    await stressors.start(
        [Stressor("s", "vm", start=("sh", "-c", script), stop=("sh", "-c", f"kill $(cat {tmp_path}/pid)"))]
    )
    pid = int(await written(tmp_path / "pid"))
    assert alive(pid)
    await stressors.stop()
    end = time.monotonic() + 10
    while alive(pid) and time.monotonic() < end:
        await asyncio.sleep(0.01)
    assert not alive(pid)


async def test_one_that_cannot_be_stopped_does_not_keep_the_others_from_it(stressors, tmp_path):
    await stressors.start(
        [
            Stressor("a", "vm", start=("true",), stop=("sh", "-c", "echo no route >&2; exit 255")),
            Stressor("b", "vm", start=("true",), stop=touch(tmp_path / "b")),
        ]
    )
    with pytest.raises(UnavailableError) as caught:
        await stressors.stop()
    assert "stressor 'a': sh -c" in str(caught.value)
    assert str(caught.value).endswith("status 255: no route; stop what may still run there by hand")
    assert (tmp_path / "b").exists()


class Control:
    """A port that takes control lines."""

    def __init__(self, answer):
        self.answer = answer
        self.lines = []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def serve(self, reader, writer):
        self.lines.append((await reader.readline()).decode())
        if self.answer is None:
            await reader.read()
        else:
            writer.write(self.answer)
        writer.close()


async def test_control_lines_switch_it_on_and_off(stressors):
    async with Control(b"ok\n") as control:
        await stressors.start([Stressor("s", "vm", control=control.address, on="cpu 4", off="quiet")])
        assert control.lines == ["cpu 4\n"]
        await stressors.stop()
        assert control.lines == ["cpu 4\n", "quiet\n"]


@pytest.mark.parametrize(
    ("answer", "problem"), [(b"error\n", "answered 'error' instead"), (b"", "answered '' instead")]
)
async def test_a_control_line_that_is_not_answered_by_ok_has_failed(stressors, answer, problem):
    async with Control(answer) as control:
        with pytest.raises(UnavailableError) as caught:
            await stressors.start([Stressor("s", "vm", control=control.address, on="cpu 4", off="quiet")])
        assert f"stressor 's': 'cpu 4' to {control.address}: {problem}" in str(caught.value)
        with pytest.raises(UnavailableError):  # it may run: it is asked to stop, and that fails too
            await stressors.stop()
        assert control.lines == ["cpu 4\n", "quiet\n"]


async def test_a_control_port_that_is_silent_or_closed_is_reported():
    quick = Stressors(deadline_s=0.2)
    async with Control(None) as control:
        stressor = Stressor("s", "vm", control=control.address, on="cpu 4", off="quiet")
        with pytest.raises(UnavailableError, match=r"no answer within 0.2 s"):
            await quick.start([stressor])
    with pytest.raises(UnavailableError, match="Connection refused"):
        await quick.stop()


async def test_commands_are_run_without_a_shell(stressors, tmp_path):
    await stressors.start([Stressor("s", "vm", start=("touch", f"{tmp_path}/$HOME;x y"), stop=("true",))])
    await stressors.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["$HOME;x y"]
