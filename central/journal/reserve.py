"""The journal's reserve: disk space that is held while all is well, so that a full disk can be drained.

To note a roll in the journal and to delete its rows takes space. On a full disk the reserve is drawn for that, and
batches wait until it is held again: else they would fill it. The file's size is the state, also for the next process:
an empty file means that the reserve is drawn.
"""

import contextlib
import errno
import os
import shutil
import sqlite3
from pathlib import Path

from central.journal.database import PAGE_BYTES, transaction

_FULL = {errno.ENOSPC, errno.EDQUOT}
_PARTS, _LEAST_PARTS = 16, 11  # if there is no room for all of it, this many parts are held
_MESSAGES = 8  # of the largest size fit: the journal keeps its log below half of the reserve
_FREE_PAGES = "PRAGMA freelist_count"
_DISK_SHARE = 10  # the reserve is at most a tenth of the disk


class Reserve:
    """A file that only takes space: `size_bytes`, 0 for no reserve, on the journal's disk.

    Not thread-safe: the journal's constructor uses it, then the journal's thread.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self.size_bytes = size_bytes
        self._held = -1  # bytes; 0: drawn, -1: there is none
        with contextlib.suppress(OSError):
            self._held = path.stat().st_size
        if not size_bytes:
            self.give_up()
        elif self._held > size_bytes:
            with contextlib.suppress(OSError):
                os.truncate(path, size_bytes)
                self._held = size_bytes

    @property
    def is_held(self) -> bool:
        """Whether it can be drawn."""
        return self._held > 0

    @property
    def is_drawn(self) -> bool:
        """Whether it was drawn, and is not back."""
        return self._held == 0

    def prepare(self) -> None:
        """Draw it if the disk is almost full: opening the journal needs some space, too."""
        # A smaller one, of another setting, is not given up for a larger one that may not fit.
        if self.is_held and free_bytes(self._path.parent) < min(self.size_bytes, self._held) // 4:
            self.draw()

    def draw(self) -> bool:
        """Give the space up. Returns whether there was any."""
        if not self.is_held:
            return False
        try:
            os.truncate(self._path, 0)
        except OSError:
            self._held = -1
            return False
        self._held = 0
        return True

    def take(self) -> bool:
        """Hold it again, or most of it. Returns whether it is held, or none is wanted."""
        if self._held >= self.size_bytes or not self.size_bytes:
            return True
        for part in range(_PARTS, _LEAST_PARTS - 1, -1):
            wanted = self.size_bytes * part // _PARTS
            if wanted <= self._held or self._allocate(wanted):
                self._held = max(self._held, wanted)
                break
        return self.is_held

    def shrink(self, connection: sqlite3.Connection) -> bool:
        """If the disk has little room, have the journal give back free pages. True: call again."""
        free_pages = connection.execute(_FREE_PAGES).fetchone()[0]
        if not free_pages or free_bytes(self._path.parent) >= 2 * self.size_bytes:
            return False
        some = max(self.size_bytes // 16 // PAGE_BYTES, 1)
        transaction(connection, lambda _: connection.execute(f"PRAGMA incremental_vacuum({some})").fetchall())
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        return bool(connection.execute(_FREE_PAGES).fetchone()[0] < free_pages)

    def give_up(self) -> None:
        """Delete it."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        self._held = -1

    def _allocate(self, wanted: int) -> bool:
        before = max(self._held, 0)
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            os.posix_fallocate(handle, 0, wanted)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, before)
            if self._held < 0:
                self.give_up()
            return False
        finally:
            os.close(handle)
        return True


def reserve_bytes(folder: Path, mib: int, max_message_bytes: int) -> int:
    """Return the reserve's size: as set, enough for the largest messages, at most a tenth of the disk; bytes."""
    if not mib:
        return 0
    wanted = max(mib << 20, _MESSAGES * max_message_bytes)
    with contextlib.suppress(OSError):
        return min(wanted, shutil.disk_usage(folder).total // _DISK_SHARE or wanted)
    return wanted


def free_bytes(folder: Path) -> int:
    """Return the space that is left on a folder's disk for users other than root; 0 if unknown."""
    with contextlib.suppress(OSError):
        return shutil.disk_usage(folder).free
    return 0


def is_full(error: BaseException, folder: Path) -> bool:
    """Return whether an error means that the disk of a folder is full, or a quota used up.

    SQLite has a code for a full disk only, not for shared memory that it cannot enlarge.
    """
    if isinstance(error, OSError):
        return error.errno in _FULL
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and not _can_write(folder))


def _can_write(folder: Path) -> bool:
    probe = folder / ".room"
    try:
        probe.write_bytes(bytes(65_536))
    except OSError as error:
        return error.errno not in _FULL
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    return True
