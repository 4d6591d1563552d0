"""Drafts of segments have owners: only those whose process is gone are removed.

A draft is named after its process and the boot of its machine, and that process holds a lock (flock) on it. Across
machines the lock counts as far as the file system takes it there; what another machine, or an older release, left
must be old as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

__all__ = ["ABANDONED_S", "Draft", "owner", "remove_abandoned"]

#: A draft of another machine is abandoned when nobody wrote into it for so long.
ABANDONED_S = 86_400.0

_OWNER = re.compile(r"\.(?P<boot>[0-9a-f]{8})-\d+\.tmp$")
_BUSY = (BlockingIOError, PermissionError)


class Draft:
    """A file that this process writes; locked until `close`.

    Args:
        path: of the file beside the segment's place, as `Objects.draft` returns it; it ends in ".tmp".

    Attributes:
        path: where it is.
        file: it, open for writing.

    """

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(f"{path.name.removesuffix('.tmp')}.{owner()}.tmp")
        self.file: BinaryIO = self._opened()
        # Of its own: the segment's seal and name come after its writer has closed the file.
        self._lock = os.dup(self.file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close and delete it, unless it was published."""
        with contextlib.suppress(OSError):
            self.file.close()
        self.path.unlink(missing_ok=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _opened(self) -> BinaryIO:
        while True:
            file = self.path.open("wb")
            try:
                _lock(file.fileno(), wait=True)  # for who looks whether it is abandoned
                if self.path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                    return file
            except FileNotFoundError:
                pass  # somebody found it before it was locked, and removed it
            except BaseException:
                file.close()
                raise
            file.close()


def owner() -> str:
    """Return what the names of this process's drafts have in them."""
    return f"{_boot()}-{os.getpid()}"


def remove_abandoned(path: Path, *, is_own: bool = False, now_s: float | None = None) -> bool:
    """Delete a draft if the process that wrote it is gone. Returns whether it was there and was deleted.

    Args:
        path: of the draft.
        is_own: the caller knows that only its predecessor, which is gone, can have written it.
        now_s: the time, seconds since 1970; for tests.

    """
    name = _OWNER.search(path.name)
    try:
        with path.open("rb") as file:
            has_locks = _lock(file.fileno())
            age_s = (time.time() if now_s is None else now_s) - os.fstat(file.fileno()).st_mtime
            is_of_this_boot = name is not None and name["boot"] == _boot()
            if is_own or (is_of_this_boot and has_locks) or age_s > ABANDONED_S:
                path.unlink()
                return True
    except OSError:  # another process has the lock; or the file is gone
        pass
    return False


def _lock(file: int, *, wait: bool = False) -> bool:
    """Lock a file; False where its file system has no locks.

    Raises:
        BlockingIOError: another process has it.

    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except _BUSY:
        raise
    except OSError:
        return False
    return True


def _boot() -> str:
    """Return the boot of this machine, eight hexadecimal digits; zeros where it is not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    except OSError:
        return "0" * 8
