"""The journal's file and its schema: one process holds it, opens and checks it, and bounds its write-ahead log."""

import contextlib
import fcntl
import secrets
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from whitepanda.common.errors import UnavailableError
from whitepanda.common.files.durable import sync_folder

_SCHEMA_VERSION = "1"
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE received (
    host TEXT NOT NULL, spool_id TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    PRIMARY KEY (host, spool_id, first)
) WITHOUT ROWID;
CREATE TABLE rejections (
    host TEXT NOT NULL, kind TEXT NOT NULL, reason TEXT NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (host, kind, reason)
) WITHOUT ROWID;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE hosts (
    host TEXT PRIMARY KEY, platform TEXT NOT NULL, agent_version TEXT NOT NULL, protocol_version INTEGER NOT NULL,
    boot_id TEXT NOT NULL, last_seen_unix_ns INTEGER NOT NULL,
    spooled_batches INTEGER NOT NULL, dropped_batches INTEGER NOT NULL, coefficient_version INTEGER NOT NULL,
    clock_offset_ns INTEGER NOT NULL, jobs TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE rolls (stem TEXT PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL) WITHOUT ROWID;
-- All batches of a commit in one row: a row each costs a turn of Python's lock and half a page.
CREATE TABLE packs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice: segments are named after it
    batches INTEGER NOT NULL, accepted_rows INTEGER NOT NULL,
    contents BLOB NOT NULL,  -- MessagePack: of each batch (host, platform, spool_id, sequence, rows, kept, bytes)
    payload BLOB NOT NULL    -- the agents' CpiBatches as they came, one after the other
);
-- What changes with every batch of a host: short rows, many to a page.
CREATE TABLE seen (
    host TEXT PRIMARY KEY, accepted_rows INTEGER NOT NULL, last_seen_unix_ns INTEGER NOT NULL
) WITHOUT ROWID;
-- The last number that was given is the number of events ever taken.
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    host TEXT NOT NULL, received_unix_ns INTEGER NOT NULL, unix_ns INTEGER NOT NULL,
    vm TEXT NOT NULL, name TEXT NOT NULL, behaviour INTEGER NOT NULL, before INTEGER NOT NULL,
    payload BLOB NOT NULL   -- the agent's VmEvent as it came
);
CREATE INDEX events_of_host ON events (host);
-- Why metrics of VMs (numbers of `whitepanda.common.window_columns`) are or were not known: since when at first, and
-- when this last began, was sent again or ended.
CREATE TABLE metric_reasons (
    host TEXT NOT NULL, vm TEXT NOT NULL, metric INTEGER NOT NULL, reason INTEGER NOT NULL,
    since_unix_ns INTEGER NOT NULL, changed_unix_ns INTEGER NOT NULL, holds INTEGER NOT NULL,
    PRIMARY KEY (host, vm, metric, reason)
) WITHOUT ROWID;
CREATE INDEX metric_reasons_of_vm ON metric_reasons (vm);
-- Reports of contention on their way into incident history, which may be on another machine.
CREATE TABLE triggers (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    host TEXT NOT NULL, spool_id TEXT NOT NULL, sequence INTEGER NOT NULL, number INTEGER NOT NULL,
    machine TEXT NOT NULL, unix_ns INTEGER NOT NULL,
    payload BLOB NOT NULL   -- the agent's Trigger as it came
);
-- Facts of VMs and hosts on their way into the same database.
CREATE TABLE facts (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    host TEXT NOT NULL, vm TEXT NOT NULL, unix_ns INTEGER NOT NULL,
    payload BLOB NOT NULL   -- the agent's VmFacts or HostFacts as it came
);
-- When the last batch of a spool came, so that `received` can forget it; for importers, whose rows may have any age,
-- a day that never comes.
CREATE TABLE spools (
    host TEXT NOT NULL, spool_id TEXT NOT NULL, last_day INTEGER NOT NULL, PRIMARY KEY (host, spool_id)
) WITHOUT ROWID;
CREATE INDEX spools_by_day ON spools (last_day);
-- Batches that could not be written into the lake, so that the others could.
CREATE TABLE set_aside (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    host TEXT NOT NULL, platform TEXT NOT NULL, spool_id TEXT NOT NULL, sequence INTEGER NOT NULL,
    rows INTEGER NOT NULL, kept BLOB, why TEXT NOT NULL,
    payload BLOB NOT NULL   -- the agent's CpiBatch as it came
);
"""

PAGE_BYTES = 16384  # of new journals
_BUSY_TIMEOUT_S = 10.0
_LOG_BYTES = 64 << 20  # kept of the log's file if there is no reserve
_LOG_PAGES = 256  # a commit that finds this many in the log moves them: 4 MiB in 6 ms rather than 16 MiB in 25 ms
_LOCK_WAIT_S = 1.0  # a killed central's process that writes segments dies a little later


def hold(folder: Path) -> IO[str]:
    """Lock the folder's journal for this process, and return the locked file; UnavailableError if that fails."""
    path = folder / "journal.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = path.open("a+")
    except OSError as error:
        remedy = "create it for the user that central runs as"
        raise UnavailableError(f"central.state_dir {folder} is not writable: {error.strerror}; {remedy}") from error
    until = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if time.monotonic() >= until:
                file.close()
                problem = f"another central holds the journal in {folder} ({path} is locked)"
                raise UnavailableError(f"{problem}; stop it, or set another central.state_dir") from error
            time.sleep(0.02)
        else:
            return file


def open_database(path: Path, reserve_bytes: int) -> sqlite3.Connection:
    """Open or make the journal's file, and check it; sqlite3.Error if it is damaged or cannot be read or written."""
    is_new = not path.exists()
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_BUSY_TIMEOUT_S)
    set_pragmas(connection)
    # The log stays shorter than the reserve: on a full disk that must take what the log has to move.
    pages = min(_LOG_PAGES, max(reserve_bytes // 8 // PAGE_BYTES, 1)) if reserve_bytes else _LOG_PAGES
    connection.execute(f"PRAGMA journal_size_limit={reserve_bytes // 4 or _LOG_BYTES}").fetchall()
    connection.execute(f"PRAGMA wal_autocheckpoint={pages}").fetchall()
    if not is_new:
        state = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if state != "ok":
            raise sqlite3.DatabaseError(str(state).replace("\n", " "))
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
        connection.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}COMMIT;")
        sync_folder(path.parent)
    return connection


def set_pragmas(connection: sqlite3.Connection) -> None:
    """Set how the file is laid out and made durable."""
    # For new journals. Packs are some 100 KB: with larger pages there are fewer to sum, write and move.
    connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # the file can be made shorter
    # Debian's SQLite overwrites what is deleted: that would take as much room in the log as the rows had.
    connection.execute("PRAGMA secure_delete=OFF").fetchall()
    connection.execute("PRAGMA journal_mode=WAL")
    # FULL: the log is flushed at every commit. NORMAL would lose acknowledged batches at a power cut.
    connection.execute("PRAGMA synchronous=FULL")


def journal_id(connection: sqlite3.Connection, path: Path) -> str:
    """Return the journal's incarnation, named now if new; UnavailableError if another version of central made it."""
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    if not meta:
        meta = {"schema": _SCHEMA_VERSION, "journal": secrets.token_hex(4)}
        transaction(connection, lambda _: connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items()))
    if meta.get("schema") != _SCHEMA_VERSION:
        problem = f"journal {path} has schema {meta.get('schema')}, this central knows {_SCHEMA_VERSION}"
        raise UnavailableError(f"{problem}: run the version of whitepanda that made it")
    return str(meta["journal"])


def transaction(connection: sqlite3.Connection, run: Callable[[sqlite3.Connection], Any]) -> Any:
    """Return what `run` returns, once that is committed; on an error nothing of it stays."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:  # commits, or rolls back
        return run(connection)


def reading(path: Path) -> contextlib.closing[sqlite3.Connection]:
    """Return a new read-only connection, for any thread or process; leaving its block closes it."""
    return contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S))
