"""The spool's SQLite file: its tables, how it is opened, and what its errors mean."""

import errno
import os
import sqlite3
import zlib
from pathlib import Path

from google.protobuf.message import DecodeError

from agent.uplink.memory_queue import RESERVE_BYTES
from whitepanda.v1 import agent_pb2

_BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
#: The log is written back to the file at this size: both must fit the reserve on a full disk.
_CHECKPOINT_PAGES = 128
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batches (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- order of arrival, never reused
    spool_id TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    crc32 INTEGER NOT NULL,
    payload BLOB NOT NULL,
    UNIQUE (spool_id, sequence)
) STRICT;
"""


def connect(path: Path) -> sqlite3.Connection:
    """Open or create the file, for this process alone."""
    # Batches say which VMs run here: only the agent may read the file, and SQLite's files next to it.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        for pragma in (
            "locking_mode=EXCLUSIVE",  # first: then there is no shared memory, which takes room
            "auto_vacuum=INCREMENTAL",
            "journal_mode=WAL",
            "synchronous=NORMAL",
            f"journal_size_limit={RESERVE_BYTES}",
            f"wal_autocheckpoint={_CHECKPOINT_PAGES}",
        ):
            db.execute(f"PRAGMA {pragma}").fetchall()
        db.executescript(_SCHEMA)
    except BaseException:
        db.close()
        raise
    return db


def move_aside(path: Path, aside: Path) -> None:
    """Rename a broken file, and remove SQLite's files next to it."""
    path.replace(aside)
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def primary_code(error: Exception) -> int:
    """Return SQLite's primary code of an error; 0 if it has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_broken(error: Exception) -> bool:
    """Whether the file is not a database any more."""
    return primary_code(error) in _BROKEN


def is_full(error: Exception, folder: Path) -> bool:
    """Whether an error of SQLite or of the system says that the disk of a folder is full."""
    code = primary_code(error)
    if code != sqlite3.SQLITE_CANTOPEN:
        return code == sqlite3.SQLITE_FULL or getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT)
    try:  # SQLite does not say why it cannot make the file next to its own: no free bytes, or no free file names?
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail == 0 or (found.f_files > 0 and found.f_favail == 0)  # some count no names


def parse(payload: bytes, crc32: int) -> agent_pb2.CpiBatch | None:
    """Return a stored batch; None: it was damaged on disk."""
    if zlib.crc32(payload) != crc32:
        return None
    try:
        return agent_pb2.CpiBatch.FromString(payload)
    except DecodeError:
        return None
