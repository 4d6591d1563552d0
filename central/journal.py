"""The journal: every batch is on disk before it is acknowledged. SQLite, write-ahead log, group commit.

One thread writes. It gathers what is submitted within the commit interval, commits it as one transaction with
`synchronous=FULL` (one flush of the log to the disk), and only then calls back on the event loop, which acknowledges.
The same transaction holds the ranges of all sequence numbers ever taken per (host, spool), so that a batch is known
as a duplicate even when its rows have left for the lake.

A roll moves rows to the lake in three steps: the intent (name and range of rows) is committed; the files are written
under exactly that name; rows and intent are deleted in one transaction. A kill at any point repeats the roll into
the same files.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import queue
import secrets
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from central.lake import segment_stem
from central.ranges import SequenceRanges
from central.validate import StoredBatch
from whitepanda.common import log
from whitepanda.common.errors import UnavailableError

__all__ = ["HostRecord", "Journal", "JournalStats", "Roll", "Submission"]

_SCHEMA_VERSION = "1"
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE batches (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice: segments are named after it
    host TEXT NOT NULL, platform TEXT NOT NULL, spool_id TEXT NOT NULL, sequence INTEGER NOT NULL,
    received_unix_ns INTEGER NOT NULL,
    rows INTEGER NOT NULL, accepted_rows INTEGER NOT NULL,
    kept BLOB,              -- bit per row, most significant first; NULL: all are accepted
    payload BLOB NOT NULL   -- the agent's CpiBatch as it came
);
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
    boot_id TEXT NOT NULL, last_seen_unix_ns INTEGER NOT NULL, accepted_rows INTEGER NOT NULL,
    spooled_batches INTEGER NOT NULL, dropped_batches INTEGER NOT NULL, coefficient_version INTEGER NOT NULL,
    clock_offset_ns INTEGER NOT NULL, jobs TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE rolls (stem TEXT PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL) WITHOUT ROWID;
"""

_GROUP_LIMIT = 1024  # batches in one transaction
_RETRY_S = 1.0  # after a failed commit
_CACHED_SPOOLS = 65_536
_BUSY_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class HostRecord:
    """What central knows of a host, connected or not. `clock_offset_ns` is the agent's clock minus ours, at its Hello."""

    host: str
    platform: str = ""
    agent_version: str = ""
    protocol_version: int = 0
    boot_id: str = ""
    last_seen_unix_ns: int = 0
    accepted_rows: int = 0
    spooled_batches: int = 0
    dropped_batches: int = 0
    coefficient_version: int = 0
    clock_offset_ns: int = 0
    jobs: tuple[str, ...] = ()


@dataclass(slots=True)
class JournalStats:
    """Totals, ever, of this journal; and what waits in it for the next roll."""

    accepted_batches: int = 0
    accepted_rows: int = 0
    duplicate_batches: int = 0
    rejected_rows: Counter[str] = field(default_factory=Counter)
    rejected_batches: Counter[str] = field(default_factory=Counter)
    journal_batches: int = 0
    journal_rows: int = 0
    rolled_rows: int = 0


@dataclass(frozen=True, slots=True)
class Submission:
    """A checked batch, or one refused for good (`refused` is the reason), on its way into the journal.

    `done` is called on the loop once it is on disk; True where the batch was new, False where it was a duplicate.
    """

    host: str
    platform: str
    spool_id: str
    sequence: int
    received_unix_ns: int
    payload: bytes
    rows: int
    accepted_rows: int
    rejected_rows: dict[str, int]
    kept: bytes | None
    done: Callable[[bool], None]
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Roll:
    """Rows `first..last` of the journal, on their way into the lake's files named `stem`."""

    stem: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class _Rejection:
    """Batches refused without a sequence number to remember them by."""

    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Call:
    """Something that wants a transaction of its own."""

    run: Callable[[sqlite3.Connection], Any]
    result: Future[Any]


_Item = Submission | HostRecord | _Rejection | _Call | None


@dataclass(slots=True)
class _Group:
    """What one transaction changes, gathered in memory first."""

    new: list[Submission] = field(default_factory=list)
    outcomes: list[tuple[Submission, bool]] = field(default_factory=list)
    hosts: dict[str, HostRecord] = field(default_factory=dict)
    seen: dict[str, tuple[int, int]] = field(
        default_factory=dict
    )  # host -> (accepted rows, received_unix_ns)
    rejections: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # (host, kind, reason)
    upserts: dict[tuple[str, str, int], int] = field(default_factory=dict)  # (host, spool_id, first) -> last
    deletes: set[tuple[str, str, int]] = field(default_factory=set)
    counters: Counter[str] = field(default_factory=Counter)


class Journal:
    """The journal of one central. All methods belong to the loop's thread unless they say otherwise.

    `stats` and `hosts` are kept up to date on the loop, after each commit.
    """

    def __init__(self, folder: Path, *, replica: str, commit_interval_s: float) -> None:
        """Open or make the journal in `folder`.

        Raises:
            UnavailableError: not writable, held by another process, or damaged; says which and the remedy.

        """
        self.path = folder / "journal.sqlite"
        self.replica = replica
        self.stats = JournalStats()
        self.hosts: dict[str, HostRecord] = {}
        self.failure = ""  # why the last commit failed; "" while all is well
        self.fatal: asyncio.Future[str] | None = None  # set where the journal cannot go on
        self.on_failure: list[Callable[[str], None]] = []  # called on the loop when `failure` comes or goes
        self._commit_interval_s = commit_interval_s
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._ranges: dict[tuple[str, str], SequenceRanges] = {}
        self._log = log.get("journal")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = _lock(folder)
        try:
            self._connection = self._open()
            self.journal_id = self._load()
        except sqlite3.Error as error:
            self._lock.close()
            raise UnavailableError(
                f"journal {self.path} cannot be used: {error}. If it is damaged, move journal.sqlite* away: central "
                "starts with a new one, and agents send again what was not acknowledged"
            ) from error
        except BaseException:
            self._lock.close()
            raise

    @property
    def origin(self) -> str:
        """What this journal's segments start with; see `central.lake.Segment.origin`."""
        return f"{self.replica}-{self.journal_id}"

    def start(self) -> None:
        """Start the writer. Call it on the running loop."""
        self._loop = asyncio.get_running_loop()
        self.fatal = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Commit what was submitted and close. What cannot be committed now stays unacknowledged, with the agents."""
        self._stopping.set()
        self._queue.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._connection.close()
        self._lock.close()

    def submit(self, submission: Submission) -> None:
        """Hand over a batch; its `done` is called when it is on disk. While the disk is full it waits here."""
        self._queue.put(submission)

    def reject(self, host: str, reason: str) -> None:
        """Count a batch that was refused before it had a sequence number (malformed, oversized and the like)."""
        self._queue.put(_Rejection(host, reason))

    def note_host(self, record: HostRecord) -> None:
        """Remember what a host said of itself. `accepted_rows` is ours to count and ignored."""
        known = self.hosts.get(record.host)
        record = replace(record, accepted_rows=known.accepted_rows if known else 0)
        self.hosts[record.host] = record
        self._queue.put(record)

    async def begin_roll(self, max_rows: int) -> Roll | None:
        """Commit the intent to roll the oldest rows, about `max_rows` of them; an unfinished roll comes first."""
        roll: Roll | None = await self._call(lambda connection: self._begin_roll(connection, max_rows))
        return roll

    async def finish_roll(self, roll: Roll, rows: int) -> None:
        """Forget the rows of a roll whose files are on disk, and its intent, in one transaction."""
        batches = await self._call(lambda connection: _finish_roll(connection, roll, rows))
        self.stats.journal_batches -= batches
        self.stats.journal_rows -= rows
        self.stats.rolled_rows += rows

    def read_roll(self, roll: Roll) -> list[StoredBatch]:
        """Return the batches of a roll, in order. For any thread: it has a connection of its own."""
        connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S)
        try:
            found = connection.execute(
                "SELECT host, platform, spool_id, sequence, rows, kept, payload FROM batches"
                " WHERE id BETWEEN ? AND ? ORDER BY id",
                (roll.first, roll.last),
            ).fetchall()
        finally:
            connection.close()
        return [
            StoredBatch(host, platform, spool_id, sequence, payload, _unpack(kept, rows))
            for host, platform, spool_id, sequence, rows, kept, payload in found
        ]

    # The writer's thread, and what it is made of.

    def _open(self) -> sqlite3.Connection:
        is_new = not self.path.exists()
        connection = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=_BUSY_TIMEOUT_S
        )
        self._set_pragmas(connection)
        if not is_new:
            state = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if state != "ok":
                raise sqlite3.DatabaseError(str(state).replace("\n", " "))
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            connection.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}COMMIT;")
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return connection

    @staticmethod
    def _set_pragmas(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        # FULL: the log is flushed at every commit. NORMAL would lose acknowledged batches at a power cut.
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA journal_size_limit=67108864")

    def _load(self) -> str:
        """Fill `stats` and `hosts` and return the journal's incarnation."""
        connection = self._connection
        meta = dict(connection.execute("SELECT key, value FROM meta"))
        if not meta:
            meta = {"schema": _SCHEMA_VERSION, "journal": secrets.token_hex(4)}
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
            connection.execute("COMMIT")
        if meta.get("schema") != _SCHEMA_VERSION:
            raise UnavailableError(
                f"journal {self.path} has schema {meta.get('schema')}, this central knows {_SCHEMA_VERSION}: "
                "run the version of whitepanda that made it"
            )
        counters = dict(connection.execute("SELECT name, value FROM counters"))
        batches, rows = connection.execute("SELECT count(*), total(accepted_rows) FROM batches").fetchone()
        stats = JournalStats(**counters, journal_batches=batches, journal_rows=int(rows))
        for kind, reason, count in connection.execute(
            "SELECT kind, reason, sum(count) FROM rejections GROUP BY 1, 2"
        ):
            (stats.rejected_rows if kind == "row" else stats.rejected_batches)[reason] = count
        self.stats = stats
        for values in connection.execute(f"SELECT {_HOST_COLUMNS} FROM hosts"):  # noqa: S608 - a constant
            self.hosts[values[0]] = HostRecord(*[*values[:-1], tuple(json.loads(values[-1]))])
        return str(meta["journal"])

    async def _call(self, run: Callable[[sqlite3.Connection], Any]) -> Any:
        result: Future[Any] = Future()
        self._queue.put(_Call(run, result))
        return await asyncio.wrap_future(result)

    def _run(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                if isinstance(item, _Call):
                    self._run_call(item)
                    continue
                items, then = self._gather(item)
                if not self._commit(items):
                    return
                if isinstance(then, _Call):
                    self._run_call(then)
                elif then is _STOP:
                    return
        except Exception as error:  # noqa: BLE001 - whatever it is, central must end loudly, not hang
            self._on_loop(self._set_fatal, f"journal {self.path}: {type(error).__name__}: {error}")

    def _gather(self, first: Submission | HostRecord | _Rejection) -> tuple[list[Any], _Call | object | None]:
        """Return what arrives within the commit interval, and what ended the gathering, if something did."""
        items: list[Any] = [first]
        if not self._stopping.is_set():
            time.sleep(self._commit_interval_s)
        while len(items) < _GROUP_LIMIT:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return items, None
            if item is None:
                return items, _STOP
            if isinstance(item, _Call):
                return items, item
            items.append(item)
        return items, None

    def _commit(self, items: list[Any]) -> bool:
        """Commit until it works, or until central stops (False): what is not on disk is not acknowledged."""
        while True:
            try:
                group = self._transaction(lambda connection: self._write(connection, items))
            except sqlite3.OperationalError as error:  # disk full, I/O error: may pass
                self._ranges.clear()
                self._on_loop(self._set_failure, str(error))
                if self._stopping.wait(_RETRY_S):
                    return False
            else:
                self._on_loop(self._committed, group)
                return True

    def _run_call(self, call: _Call) -> None:
        if not call.result.set_running_or_notify_cancel():
            return  # who asked has gone
        try:
            call.result.set_result(self._transaction(call.run))
        except sqlite3.OperationalError as error:
            call.result.set_exception(error)

    def _transaction(self, run: Callable[[sqlite3.Connection], Any]) -> Any:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            result = run(self._connection)
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        return result

    def _write(self, connection: sqlite3.Connection, items: list[Any]) -> _Group:
        group = _Group()
        for item in items:
            if isinstance(item, Submission):
                self._take(connection, item, group)
            elif isinstance(item, HostRecord):
                group.hosts[item.host] = item
            else:
                group.rejections[item.host, "batch", item.reason] += 1
        _write_group(connection, group)
        return group

    def _take(self, connection: sqlite3.Connection, item: Submission, group: _Group) -> None:
        change = self._ranges_of(connection, item.host, item.spool_id).add(item.sequence)
        group.outcomes.append((item, change is not None))
        if change is None:
            group.counters["duplicate_batches"] += 1
            return
        for first in change.removed:
            group.upserts.pop((item.host, item.spool_id, first), None)
            group.deletes.add((item.host, item.spool_id, first))
        group.deletes.discard((item.host, item.spool_id, change.first))
        group.upserts[item.host, item.spool_id, change.first] = change.last
        if item.refused:
            group.rejections[item.host, "batch", item.refused] += 1
            return
        for reason, count in item.rejected_rows.items():
            group.rejections[item.host, "row", reason] += count
        group.counters["accepted_batches"] += 1
        group.counters["accepted_rows"] += item.accepted_rows
        rows, _ = group.seen.get(item.host, (0, 0))
        group.seen[item.host] = (rows + item.accepted_rows, item.received_unix_ns)
        if item.accepted_rows:
            group.new.append(item)

    def _ranges_of(self, connection: sqlite3.Connection, host: str, spool_id: str) -> SequenceRanges:
        key = (host, spool_id)
        ranges = self._ranges.pop(key, None)
        if ranges is None:
            ranges = SequenceRanges(
                connection.execute("SELECT first, last FROM received WHERE host = ? AND spool_id = ?", key)
            )
            if len(self._ranges) >= _CACHED_SPOOLS:  # the one that was used longest ago
                del self._ranges[next(iter(self._ranges))]
        self._ranges[key] = ranges
        return ranges

    def _begin_roll(self, connection: sqlite3.Connection, max_rows: int) -> Roll | None:
        unfinished = connection.execute(
            "SELECT stem, first, last FROM rolls ORDER BY first LIMIT 1"
        ).fetchone()
        if unfinished:
            return Roll(*unfinished)
        first = last = rows = 0
        for number, accepted in connection.execute("SELECT id, accepted_rows FROM batches ORDER BY id"):
            first, last, rows = first or number, number, rows + accepted
            if rows >= max_rows:
                break
        if not last:
            return None
        roll = Roll(segment_stem(self.replica, self.journal_id, first), first, last)
        connection.execute("INSERT INTO rolls VALUES (?, ?, ?)", (roll.stem, roll.first, roll.last))
        return roll

    # Back on the loop.

    def _on_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(call, *arguments)
            except RuntimeError:  # the loop is gone: nobody waits for this any more
                self._loop = None

    def _set_failure(self, error: str) -> None:
        is_news = not self.failure
        self.failure = error
        if is_news:
            told = "commit failed; nothing is acknowledged until one works"
            self._log.error(told, error=error, path=str(self.path))
            for call in self.on_failure:
                call(error)

    def _set_fatal(self, error: str) -> None:
        if self.fatal is not None and not self.fatal.done():
            self.fatal.set_result(error)

    def _committed(self, group: _Group) -> None:
        if self.failure:
            self._log.info("commits work again", path=str(self.path))
            self.failure = ""
            for call in self.on_failure:
                call("")
        stats = self.stats
        stats.accepted_batches += group.counters["accepted_batches"]
        stats.accepted_rows += group.counters["accepted_rows"]
        stats.duplicate_batches += group.counters["duplicate_batches"]
        stats.journal_batches += len(group.new)
        stats.journal_rows += sum(item.accepted_rows for item in group.new)
        for (_, kind, reason), count in group.rejections.items():
            (stats.rejected_rows if kind == "row" else stats.rejected_batches)[reason] += count
        for host, (rows, seen) in group.seen.items():
            known = self.hosts.get(host, HostRecord(host))
            self.hosts[host] = replace(
                known, accepted_rows=known.accepted_rows + rows, last_seen_unix_ns=seen
            )
        for item, is_new in group.outcomes:
            item.done(is_new)


_STOP = object()
_HOST_COLUMNS = (
    "host, platform, agent_version, protocol_version, boot_id, last_seen_unix_ns, accepted_rows, spooled_batches, "
    "dropped_batches, coefficient_version, clock_offset_ns, jobs"
)


def _write_group(connection: sqlite3.Connection, group: _Group) -> None:
    connection.executemany(
        "INSERT INTO batches (host, platform, spool_id, sequence, received_unix_ns, rows, accepted_rows, kept, payload)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                i.host,
                i.platform,
                i.spool_id,
                i.sequence,
                i.received_unix_ns,
                i.rows,
                i.accepted_rows,
                i.kept,
                i.payload,
            )
            for i in group.new
        ],
    )
    connection.executemany(
        "DELETE FROM received WHERE host = ? AND spool_id = ? AND first = ?", group.deletes
    )
    connection.executemany(
        "INSERT INTO received VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET last = excluded.last",
        [(*key, last) for key, last in group.upserts.items()],
    )
    connection.executemany(
        "INSERT INTO rejections VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count",
        [(*key, count) for key, count in group.rejections.items()],
    )
    connection.executemany(
        "INSERT INTO counters VALUES (?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
        list(group.counters.items()),
    )
    connection.executemany(
        f"INSERT INTO hosts ({_HOST_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?)"  # noqa: S608 - a constant
        " ON CONFLICT DO UPDATE SET platform = excluded.platform, agent_version = excluded.agent_version,"
        " protocol_version = excluded.protocol_version, boot_id = excluded.boot_id,"
        " last_seen_unix_ns = excluded.last_seen_unix_ns, spooled_batches = excluded.spooled_batches,"
        " dropped_batches = excluded.dropped_batches, coefficient_version = excluded.coefficient_version,"
        " clock_offset_ns = excluded.clock_offset_ns, jobs = excluded.jobs",
        [_host_values(record) for record in group.hosts.values()],
    )
    connection.executemany(
        "UPDATE hosts SET accepted_rows = accepted_rows + ?, last_seen_unix_ns = ? WHERE host = ?",
        [(rows, seen, host) for host, (rows, seen) in group.seen.items()],
    )


def _host_values(record: HostRecord) -> tuple[Any, ...]:
    return (
        record.host,
        record.platform,
        record.agent_version,
        record.protocol_version,
        record.boot_id,
        record.last_seen_unix_ns,
        *(
            min(n, 2**63 - 1)
            for n in (record.spooled_batches, record.dropped_batches, record.coefficient_version)
        ),
        max(-(2**63), min(record.clock_offset_ns, 2**63 - 1)),
        json.dumps(record.jobs),
    )


def _finish_roll(connection: sqlite3.Connection, roll: Roll, rows: int) -> int:
    """Return how many batches left."""
    gone = connection.execute(
        "DELETE FROM batches WHERE id BETWEEN ? AND ?", (roll.first, roll.last)
    ).rowcount
    connection.execute("DELETE FROM rolls WHERE stem = ?", (roll.stem,))
    connection.execute(
        "INSERT INTO counters VALUES ('rolled_rows', ?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
        (rows,),
    )
    return int(gone)


def _unpack(kept: bytes | None, rows: int) -> Any:
    return None if kept is None else np.unpackbits(np.frombuffer(kept, np.uint8), count=rows).astype(np.bool_)


def _lock(folder: Path) -> IO[str]:
    """Hold the folder for this process.

    Raises:
        UnavailableError: not writable, or another central holds it.

    """
    path = folder / "journal.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError as error:
        raise UnavailableError(
            f"central.state_dir {folder} is not writable: {error.strerror}; create it for the user that central runs as"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise UnavailableError(
            f"another central holds the journal in {folder} ({path} is locked); stop it, or set another central.state_dir"
        ) from error
    return file
