"""Drafts of segments and temporary folders have owners: only those whose process is gone are removed.

A draft is named after its process and the boot of its machine, and that process holds a lock (flock) on it. Another
machine's draft must be old as well, as not every file system takes the lock across machines. A folder has a draft next
to it, with its name and ".tmp".
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import time
import weakref
from pathlib import Path
from typing import BinaryIO, Self

#: A draft of another machine is abandoned after this many seconds without a write.
ABANDONED_S = 86_400.0

_OWNER = re.compile(r"\.(?P<boot>[0-9a-f]{8})-\d+\.tmp$")


class Draft:
    """A file that this process writes, locked until `close`: `file` is open for writing at `path`.

    The argument is the path that `Objects.draft` returns, next to the segment's; it ends in ".tmp".
    """

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(f"{path.name.removesuffix('.tmp')}.{owner()}.tmp")
        self.file: BinaryIO = self._opened()
        # A separate descriptor: the segment gets its checksum and name after its writer has closed the file.
        self._lock = os.dup(self.file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
                _lock(file.fileno(), wait=True)  # `remove_abandoned` holds it for a moment
                if self.path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                    return file
            except FileNotFoundError:
                pass  # another process removed it before it was locked
            except BaseException:
                file.close()
                raise
            file.close()


class OwnedFolder:
    """A temporary folder `path` of this process in `parent`, deleted by `close` or at exit; abandoned ones go first.

    `prefix` begins the names of all such folders. `is_local`: all are of this machine, so also those from before its
    last boot can be deleted.
    """

    def __init__(self, parent: Path, prefix: str, *, is_local: bool = False) -> None:
        for left in parent.glob(f"{prefix}*.tmp"):
            remove_abandoned(left, is_local=is_local)
        draft = Draft(parent / f"{prefix}{secrets.token_hex(4)}.tmp")
        self.path = draft.path.with_suffix("")
        self.close = weakref.finalize(self, _close_folder, self.path, draft)
        self.path.mkdir(mode=0o700)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()


def _close_folder(path: Path, draft: Draft) -> None:
    shutil.rmtree(path, ignore_errors=True)
    draft.close()


def owner() -> str:
    """Return what identifies this process in the names of its drafts."""
    return f"{_boot()}-{os.getpid()}"


def remove_abandoned(path: Path, *, is_own: bool = False, is_local: bool = False) -> bool:
    """Delete a draft, and its folder, if the process that wrote it is gone. Returns whether it is deleted.

    `is_own`: the caller's predecessor, which is gone, wrote it. `is_local`: a process of this machine did.
    """
    name = _OWNER.search(path.name)
    folder = path.with_suffix("")
    try:
        # O_NONBLOCK: in a folder that others may write to, it may be a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            has_locks = _lock(file.fileno())
            is_this_boot = name is not None and (is_local or name["boot"] == _boot())
            if is_own or (is_this_boot and has_locks) or (_is_old(path) and _is_old(folder)):
                shutil.rmtree(folder, ignore_errors=True)
                path.unlink()
                return True
    except OSError:  # another process has the lock; or the file is gone
        pass
    return False


def _is_old(path: Path) -> bool:
    """Return whether nothing was written to a file, or into a folder, for `ABANDONED_S`; True if it is gone."""
    since_s = time.time() - ABANDONED_S
    with contextlib.suppress(FileNotFoundError):
        return all(each.lstat().st_mtime < since_s for each in (path, *path.rglob("*")))
    return True


def _lock(file: int, *, wait: bool = False) -> bool:
    """Lock a file; False if its file system has no locks. BlockingIOError: another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if isinstance(error, BlockingIOError | PermissionError):
            raise
        return False
    return True


def _boot() -> str:
    """Return the boot of this machine, eight hexadecimal digits; zeros if unknown."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    return "0" * 8
