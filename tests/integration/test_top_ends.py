"""`whitepanda top` ends with its terminal, and on a signal also where the terminal takes nothing more."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

WHITEPANDA = Path(sys.executable).parent / "whitepanda"
RECORDING = Path(__file__).parents[1] / "fixtures" / "recordings" / "three_vms.jsonl"
ENDS_S = 60.0  # how long is waited for what never ended before; it takes 2 s and 8 s
HUNG_UP = 128 + signal.SIGHUP


class Viewed:
    """The live view on a pseudo-terminal of our own.

    Args:
        controls: the terminal is the process's own, so that the kernel sends SIGHUP when it goes.

    """

    def __init__(self, *, controls: bool) -> None:
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, b"\x18\x00\x50\x00\x00\x00\x00\x00")
        command = [WHITEPANDA, "top", "--replay", RECORDING]
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *command] if controls else command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm"},
            start_new_session=not controls,  # setsid makes one itself, and becomes the view
        )
        self.name = os.ttyname(slave)
        os.close(slave)
        self.seen = b""
        while b"RUNQ%" not in self.seen:
            self.seen += os.read(self.master, 65536)

    def stop_output(self) -> None:
        slave = os.open(self.name, os.O_RDWR | os.O_NOCTTY)
        termios.tcflow(slave, termios.TCOOFF)
        os.close(slave)

    def close(self) -> None:
        os.close(self.master)

    def ended(self) -> int:
        try:
            return self.process.wait(ENDS_S)
        finally:
            self.process.kill()


@pytest.mark.integration
@pytest.mark.parametrize("controls", [True, False], ids=["with SIGHUP", "without SIGHUP"])
def test_it_ends_with_its_terminal(*, controls: bool) -> None:
    view = Viewed(controls=controls)
    view.close()
    assert view.ended() == HUNG_UP


@pytest.mark.integration
@pytest.mark.long
def test_it_ends_on_a_signal_where_the_terminal_takes_nothing_more() -> None:
    view = Viewed(controls=False)
    view.stop_output()
    view.process.terminate()
    assert view.ended() == 128 + signal.SIGTERM
    view.close()


@pytest.mark.integration
def test_a_second_signal_does_not_wait() -> None:
    view = Viewed(controls=False)
    view.stop_output()
    view.process.terminate()
    view.process.send_signal(signal.SIGINT)
    assert view.ended() in (128 + signal.SIGTERM, 128 + signal.SIGINT)  # whichever is handled first
    view.close()
