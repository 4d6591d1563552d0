"""Who did what to which VM, and the outcome: JSON lines, each synced to disk before the service continues."""

import contextlib
import os
import time
from pathlib import Path
from typing import Literal

import msgspec

from agent.act.records import Action

_MAX_BYTES = 16 << 20  # then it becomes audit.jsonl.1, replacing the one before


class Line(msgspec.Struct, frozen=True):
    """One line. `event`: begin, apply, undo, request; `uid` and `pid` are the client's, -1 for the service itself.

    `action` and `vm` are empty for malformed requests.
    """

    event: str
    number: int
    action: Action | Literal[""]
    vm: str
    result: str
    before: str = ""
    after: str = ""
    why: str = ""
    uid: int = -1
    pid: int = -1


class Allowance:
    """Rate limit for lines about requests that change nothing, so that one client cannot flood the log.

    `burst`: lines allowed without a pause; `every_s`: seconds until one more is. `missed`: lines refused, to be reset.
    """

    def __init__(self, burst: int = 50, every_s: float = 10.0) -> None:
        self._burst, self._every_ns = burst, round(every_s * 1e9)
        self._left, self._since_ns = burst, 0
        self.missed = 0

    def take(self, now_ns: int) -> bool:
        """Whether one more line may be written now."""
        more = (now_ns - self._since_ns) // self._every_ns
        if more:
            self._left = min(self._burst, self._left + more)
            self._since_ns += more * self._every_ns
        if not self._left:
            self.missed += 1
            return False
        self._left -= 1
        return True


class Audit:
    """The file `audit.jsonl` in `folder`, which exists; it is rotated at `max_bytes`."""

    def __init__(self, folder: Path, max_bytes: int = _MAX_BYTES) -> None:
        self._path = folder / "audit.jsonl"
        self._max = max_bytes

    def write(self, line: Line) -> None:
        """Append a line and sync it; OSError if that fails."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_size >= self._max:
                self._path.replace(self._path.with_suffix(".jsonl.1"))
        written = {"unix_ns": time.time_ns(), **msgspec.to_builtins(line)}
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, msgspec.json.encode(written) + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
