"""The demonstration's daemons: real processes, watched, and always gone when the demonstration is."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from whitepanda.common.errors import UnavailableError

_TAIL_LINES = 3
_TAIL_CHARACTERS = 1200


@dataclass(frozen=True, slots=True)
class _Daemon:
    name: str
    process: subprocess.Popen[bytes]
    log: Path


class Daemons:
    """Processes of `whitepanda`, each in a session of its own, so that Ctrl-C reaches only the parent."""

    def __init__(self) -> None:
        self._running: list[_Daemon] = []

    def start(self, name: str, arguments: list[str], log: Path) -> None:
        """Start `whitepanda ARGUMENTS`; its output goes to `log`. Raises UnavailableError if it cannot be started."""
        # The kernel kills the child if this process dies (see central.demo.child).
        command = [sys.executable, "-P", "-m", "central.demo.child", str(os.getpid()), *arguments]
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
        except OSError as error:
            raise UnavailableError(f"demo: cannot start {name}: {error.strerror}") from error
        self._running.append(_Daemon(name, process, log))

    def check(self) -> None:
        """Raise an UnavailableError, with exit status and the end of the log, if one has ended."""
        for daemon in self._running:
            code = daemon.process.poll()
            if code is not None:
                how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                raise UnavailableError(f"demo: {daemon.name} {how}; the end of its log: {_tail(daemon.log)}")

    def tail(self, name: str) -> str:
        """Return the last lines of a daemon's log, as one line."""
        return next((_tail(daemon.log) for daemon in self._running if daemon.name == name), "")

    def stop(self, grace_s: float = 5.0) -> list[str]:
        """Terminate all, then kill those that do not end, and return these; may be called twice."""
        for daemon in self._running:
            if daemon.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    daemon.process.terminate()
        deadline = time.monotonic() + grace_s
        stubborn = []
        for daemon in self._running:
            try:
                daemon.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                stubborn.append(daemon.name)
                # Its process group has all that it started.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(daemon.process.pid, signal.SIGKILL)
                daemon.process.wait()
        self._running.clear()
        return stubborn


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return f"({log}: {error.strerror})"
    last = " | ".join(line.strip() for line in lines[-_TAIL_LINES:] if line.strip())
    return last[-_TAIL_CHARACTERS:] or "(it said nothing)"
