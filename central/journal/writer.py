"""The journal: every batch is on disk before it is acknowledged. SQLite, write-ahead log, group commit.

One thread writes. It gathers what is submitted within the commit interval, commits it as one transaction with
`synchronous=FULL` (one flush of the log to the disk), and only then calls back on the event loop, which acknowledges.
The same transaction holds the ranges of all sequence numbers ever taken per (host, spool), so that a batch is known
as a duplicate even when its rows have left for the lake. They are forgotten of spools that are silent for so long that
the rows of any batch would be refused as too old.

A roll moves rows to the lake in three steps: the intent (name and range of rows) is committed; the files are written
under exactly that name; that they are there is committed. A kill before that repeats the roll into the same files.
Then the rows are deleted, a few at a time, as batches wait for each transaction. A batch that cannot be written is set
aside in between: the roll is then repeated without it.

On a full disk batches wait, and rolls are noted with the help of a reserve (`central.journal.reserve`). So that it
suffices, transactions and the log are kept smaller than it. Once rows are deleted the file gives space back.
"""

import asyncio
import contextlib
import fcntl
import math
import queue
import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from central.journal.latency import AckTimes
from central.journal.reserve import Reserve, free_bytes, is_full
from central.journal.sequence_ranges import SequenceRanges
from central.journal.tables import (
    BUSY_TIMEOUT_S,
    FORGOTTEN_BYTES,
    FORGOTTEN_RANGES,
    SCHEMA,
    SCHEMA_VERSION,
    Group,
    HostRecord,
    JournalStats,
    Rejection,
    Roll,
    Submission,
    end_of_roll,
    finish_roll,
    forget_some,
    forget_spools,
    read_events,
    read_hosts,
    read_stats,
    read_triggers,
    set_aside,
    write_group,
)
from central.lake.segments import DAY_NS, segment_stem
from central.own_threads import in_own_thread
from central.validation.events import EventRow
from central.validation.samples import StoredBatch
from central.validation.triggers import TriggerRow
from whitepanda.common import log
from whitepanda.common.durable import sync_folder
from whitepanda.common.errors import UnavailableError

GROUP_LIMIT = 1024  # batches in one transaction
_RETRY_S = 1.0  # after a failed commit
_NOTES_WAIT_S = 1.0  # for a batch to be committed with
_HOST_INTERVAL_S = 60.0  # what a host says of itself is written no more often
_CACHED_SPOOLS = 65_536
_NEVER = 1 << 40  # days
_LAST_DAY = "SELECT last_day FROM spools WHERE host = ? AND spool_id = ?"
_PAGE_BYTES = 16384  # of new journals
_LOG_BYTES = 64 << 20  # kept of the log's file where there is no reserve
_LOG_PAGES = 256  # a commit that finds so many in the log moves them: 4 MiB in 6 ms rather than 16 MiB in 25 ms
_LOCK_WAIT_S = 1.0  # a killed central's process that writes segments dies a little later


@dataclass(frozen=True, slots=True)
class _Call:
    """Something that wants a transaction of its own, or makes its own ones."""

    run: Callable[[sqlite3.Connection], Any]
    result: Future[Any]
    is_transaction: bool = True
    may_draw: bool = True  # the reserve, on a full disk


_Item = Submission | HostRecord | Rejection | _Call | None


_STOP = object()
_DRAWN = "the disk is full, and the reserve is in use to note rolls; batches wait until it is held again"


class Journal:
    """The journal of one central. All methods belong to the loop's thread unless they say otherwise.

    `stats` and `hosts` are kept up to date on the loop, after each commit.
    """

    def __init__(
        self,
        folder: Path,
        *,
        replica: str,
        commit_interval_s: float,
        max_events: int = 100_000,
        max_events_per_host: int = 5_000,
        reserve_bytes: int = 0,
        spool_days: float = math.inf,
        clock_unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Open or make the journal in `folder`; of events it keeps the last `max_events`, and so many of each host.

        Args:
            folder: central's state folder.
            replica: central's name.
            commit_interval_s: how long batches are gathered for a commit.
            max_events: how many events are kept.
            max_events_per_host: how many of these one host may have.
            reserve_bytes: disk space held to note rolls on a full disk, see `central.journal.reserve`; 0 for none.
            spool_days: for how many days without a batch it is known what was taken of a spool; importers': always.
            clock_unix_ns: for tests.

        Raises:
            UnavailableError: not writable, held by another process, or damaged; says which and the remedy.

        """
        self.path = folder / "journal.sqlite"
        self.replica = replica
        self.stats = JournalStats()
        self.ack_times = AckTimes()
        self._hosts: dict[str, HostRecord] = {}
        #: Hosts that were written less than `_HOST_INTERVAL_S` ago, each with its newer record, if there is one.
        self._written: dict[str, HostRecord | None] = {}
        self._seen: dict[str, tuple[int, int]] = {}  # accepted rows, when, that `_hosts` does not know yet
        self.failure = ""  # why the last commit failed; "" while all is well
        self.fatal: asyncio.Future[str] | None = None  # set where the journal cannot go on
        self.has_triggers = asyncio.Event()  # set when reports of contention came; who reads them clears it
        self.on_failure: list[Callable[[str], None]] = []  # called on the loop when `failure` comes or goes
        self._commit_interval_s = commit_interval_s
        self._max_events = max_events
        self._max_events_per_host = max_events_per_host
        self._spool_days = spool_days
        self._clock_unix_ns = clock_unix_ns
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._held: deque[_Item] = deque()  # came while a commit failed
        # A commit's batches; the log's file is kept at twice that.
        self._group_bytes = reserve_bytes // 8 or 1 << 62
        self._stopping = threading.Event()
        self._ranges: dict[tuple[str, str], SequenceRanges] = {}
        self._log = log.get("journal")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = _lock(folder)
        self._reserve = Reserve(folder / "journal.reserve", reserve_bytes)
        self._reserve.prepare()
        try:
            self._connection = self._open()
            self.journal_id = self._load()
        except sqlite3.Error as error:
            self._lock.close()
            if is_full(error, folder):
                raise UnavailableError(
                    f"journal {self.path} cannot be opened: {error}; make room on the disk of central.state_dir"
                ) from error
            raise UnavailableError(
                f"journal {self.path} cannot be used: {error}. If it is damaged, move journal.sqlite* away: central "
                "starts with a new one, and agents send again what was not acknowledged"
            ) from error
        except BaseException:
            self._lock.close()
            raise
        if self._reserve.is_drawn:
            self._say_drawn()
        elif not self._reserve.take():
            self._say_no_reserve()

    @property
    def origin(self) -> str:
        """What this journal's segments start with; see `central.lake.segments.Segment.origin`."""
        return f"{self.replica}-{self.journal_id}"

    @property
    def lock(self) -> IO[str]:
        """The open file by which this process, and who inherits it, holds the journal."""
        return self._lock

    @property
    def hosts(self) -> dict[str, HostRecord]:
        """Every host that ever said Hello, by name."""
        for host, (rows, seen) in self._seen.items():
            known = self._hosts.get(host, HostRecord(host))
            self._hosts[host] = replace(
                known, accepted_rows=known.accepted_rows + rows, last_seen_unix_ns=max(seen, known.last_seen_unix_ns)
            )
        self._seen.clear()
        return self._hosts

    def start(self) -> None:
        """Start the writer. Call it on the running loop."""
        self._loop = asyncio.get_running_loop()
        self.fatal = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Commit what was submitted and close. What cannot be committed now stays unacknowledged, with the agents."""
        self._stopping.set()
        for record in self._written.values():
            if record is not None:
                self._queue.put(record)
        self._written.clear()
        self._queue.put(None)
        if self._thread is not None:
            await in_own_thread(self._thread.join)
        self._connection.close()
        self._lock.close()

    def submit(self, submission: Submission) -> None:
        """Hand over a batch; its `done` is called when it is on disk. While the disk is full it waits here."""
        self._queue.put(submission)

    def reject(self, host: str, reason: str, done: Callable[[], None] | None = None) -> None:
        """Count a batch that was refused before it had a sequence number (malformed, oversized and the like).

        `done` is called on the loop once that is on disk.
        """
        self._queue.put(Rejection(host, reason, done))

    def note_host(self, record: HostRecord) -> None:
        """Remember what a host said of itself; it is on disk a minute later at most. `accepted_rows` is ignored."""
        known = self._hosts.get(record.host)
        record = replace(record, accepted_rows=known.accepted_rows if known else 0)
        self._hosts[record.host] = record
        if record.host in self._written:
            self._written[record.host] = record
        else:
            self._write_host(record)

    def _write_host(self, record: HostRecord) -> None:
        self._written[record.host] = None
        self._queue.put(record)
        asyncio.get_running_loop().call_later(_HOST_INTERVAL_S, self._interval_over, record.host)

    def _interval_over(self, host: str) -> None:
        if self.failure:  # what was written last may still be queued
            asyncio.get_running_loop().call_later(_HOST_INTERVAL_S, self._interval_over, host)
        elif (record := self._written.pop(host, None)) is not None:
            self._write_host(record)

    async def begin_roll(self, max_rows: int) -> Roll | None:
        """Commit the intent to roll the oldest rows, see `tables.end_of_roll`; an unfinished roll comes first."""
        while await self._call(self._forget_some):  # of a roll before, which the disk's failure had left
            continue
        roll: Roll | None = await self._call(lambda connection: self._begin_roll(connection, max_rows))
        # The lake may be away for long: nobody else must take it meanwhile.
        if self._reserve.is_drawn and await self._call(lambda _connection: self._reserve.take(), is_transaction=False):
            self._say_back()
        return roll

    async def finish_roll(self, roll: Roll, rows: int) -> None:
        """Note that the files of a roll are on disk, and delete its rows."""
        batches = await self._call(lambda connection: finish_roll(connection, roll, rows))
        self.stats.journal_batches -= batches
        self.stats.journal_rows -= rows
        self.stats.rolled_rows += rows
        while await self._call(self._forget_some):
            continue
        if self._reserve.size_bytes and not self._reserve.is_held:
            while await self._call(self._take_reserve, is_transaction=False):
                continue
        if math.isfinite(self._spool_days) and not self.failure and not self._reserve.is_drawn:
            # Not worth the reserve: on a full disk it waits for another roll.
            with contextlib.suppress(sqlite3.OperationalError):
                while await self._call(self._forget_spools, may_draw=False):
                    continue

    async def set_aside(self, pack: int, index: int, why: str) -> tuple[StoredBatch, int]:
        """Take a batch, by its place in its pack, out of what is rolled, see `tables.set_aside`."""
        batch: StoredBatch
        batch, rows = await self._call(lambda connection: set_aside(connection, pack, index, why))
        self.stats.journal_batches -= 1
        self.stats.journal_rows -= rows
        self.stats.rejected_batches["set_aside"] += 1
        return batch, rows

    def read_events(self, **wanted: Any) -> list[tuple[int, EventRow]]:
        """Return events that are on disk, see `tables.read_events`. For any thread."""
        connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)
        try:
            return read_events(connection, **wanted)
        finally:
            connection.close()

    def read_triggers(self, limit: int) -> list[tuple[int, TriggerRow]]:
        """Return the oldest reports of contention that wait for incident history, with their ids. For any thread."""
        connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)
        try:
            return read_triggers(connection, limit)
        finally:
            connection.close()

    async def forget_triggers(self, last: int) -> None:
        """Forget the reports up to an id: incident history has them."""
        await self._call(lambda connection: connection.execute("DELETE FROM triggers WHERE id <= ?", (last,)).rowcount)

    # The writer's thread, and what it is made of.

    def _open(self) -> sqlite3.Connection:
        is_new = not self.path.exists()
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_S)
        self._set_pragmas(connection)
        self._bound_log(connection)
        if not is_new:
            state = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if state != "ok":
                raise sqlite3.DatabaseError(str(state).replace("\n", " "))
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            connection.executescript(f"BEGIN IMMEDIATE;{SCHEMA}COMMIT;")
            sync_folder(self.path.parent)
        return connection

    @staticmethod
    def _set_pragmas(connection: sqlite3.Connection) -> None:
        # Packs are some 100 KB: with larger pages there are fewer to be summed, written and moved. Of new journals.
        connection.execute(f"PRAGMA page_size={_PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # the file can be made shorter
        # Debian's SQLite overwrites what is deleted: that would take as much room in the log as the rows had.
        connection.execute("PRAGMA secure_delete=OFF").fetchall()
        connection.execute("PRAGMA journal_mode=WAL")
        # FULL: the log is flushed at every commit. NORMAL would lose acknowledged batches at a power cut.
        connection.execute("PRAGMA synchronous=FULL")

    def _bound_log(self, connection: sqlite3.Connection) -> None:
        """Keep the log shorter than the reserve: on a full disk that must take what the log has to move."""
        reserve = self._reserve.size_bytes
        pages = min(_LOG_PAGES, max(reserve // 8 // _PAGE_BYTES, 1)) if reserve else _LOG_PAGES
        connection.execute(f"PRAGMA journal_size_limit={reserve // 4 or _LOG_BYTES}").fetchall()
        connection.execute(f"PRAGMA wal_autocheckpoint={pages}").fetchall()

    def _load(self) -> str:
        """Fill `stats` and `hosts` and return the journal's incarnation."""
        connection = self._connection
        meta = dict(connection.execute("SELECT key, value FROM meta"))
        if not meta:
            meta = {"schema": SCHEMA_VERSION, "journal": secrets.token_hex(4)}
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
            connection.execute("COMMIT")
        if meta.get("schema") != SCHEMA_VERSION:
            raise UnavailableError(
                f"journal {self.path} has schema {meta.get('schema')}, this central knows {SCHEMA_VERSION}: "
                "run the version of whitepanda that made it"
            )
        while self._transaction(self._forget_some):
            continue
        self.stats = read_stats(connection)
        self._hosts = read_hosts(connection)
        return str(meta["journal"])

    async def _call(
        self, run: Callable[[sqlite3.Connection], Any], *, is_transaction: bool = True, may_draw: bool = True
    ) -> Any:
        result: Future[Any] = Future()
        self._queue.put(_Call(run, result, is_transaction, may_draw))
        return await asyncio.wrap_future(result)

    def _run(self) -> None:
        try:
            then: _Call | object | None = None
            while then is not _STOP:
                items, then = self._gather()
                calls = [then] if isinstance(then, _Call) else []
                if items and not self._commit(items, calls):
                    return
                for call in calls:
                    self._run_call(call)
        except Exception as error:  # noqa: BLE001 - whatever it is, central must end loudly, not hang
            self._on_loop(self._set_fatal, f"journal {self.path}: {type(error).__name__}: {error}")

    def _gather(self) -> tuple[list[Any], _Call | object | None]:
        """Return what arrives within the commit interval, and what ended the gathering, if something did.

        What hosts say of themselves waits for batches first: a flush for each heartbeat of 10,000 idle hosts is dear.
        """
        items: list[Any] = []
        until = 0.0
        size = 0
        is_waiting = True
        while len(items) < GROUP_LIMIT and size < self._group_bytes:
            patience_s = None if not items else max(0.0, until - time.monotonic()) if is_waiting else 0.0
            try:
                item = self._held.popleft() if self._held else self._queue.get(timeout=patience_s)
            except queue.Empty:
                break
            if item is None or isinstance(item, _Call):
                return items, item or _STOP
            until = until if items else time.monotonic() + _NOTES_WAIT_S
            items.append(item)
            if isinstance(item, Submission):
                size += len(item.payload)
            elif isinstance(item, HostRecord):
                size += item.size
            if is_waiting and not isinstance(item, HostRecord):
                is_waiting = False
                if not self._stopping.is_set() and not self._held:
                    time.sleep(self._commit_interval_s)
        return items, None

    def _commit(self, items: list[Any], calls: list[_Call]) -> bool:
        """Commit until it works, or until central stops (False): what is not on disk is not acknowledged.

        Meanwhile `calls`, and those that come, are run: what is rolled and deleted may be what makes room.
        """
        while True:
            try:
                group = self._transaction(lambda connection: self._write(connection, items))
            except sqlite3.OperationalError as error:  # disk full, I/O error: may pass
                self._ranges.clear()
                self._on_loop(self._set_failure, str(error))
                while calls:
                    self._run_call(calls.pop(0))
                if not self._serve_calls(_RETRY_S):
                    return False
            else:
                self._on_loop(self._committed, group)
                return True

    def _serve_calls(self, seconds: float) -> bool:
        """Run the calls that come in this time, and keep what else comes; False once central stops."""
        until = time.monotonic() + seconds
        while not self._stopping.is_set() and (left_s := until - time.monotonic()) > 0:
            try:
                item = self._queue.get(timeout=left_s)
            except queue.Empty:
                break
            if isinstance(item, _Call):
                self._run_call(item)
            elif item is not None:
                self._held.append(item)
        return not self._stopping.is_set()

    def _run_call(self, call: _Call) -> None:
        if not call.result.set_running_or_notify_cancel():
            return  # who asked has gone
        try:
            call.result.set_result(self._with_room(call))
        except sqlite3.OperationalError as error:
            call.result.set_exception(error)

    def _with_room(self, call: _Call) -> Any:
        """Run a call; on a full disk once more, with the reserve."""
        try:
            return self._execute(call)
        except sqlite3.OperationalError as error:
            if not is_full(error, self.path.parent) or not call.may_draw or not self._reserve.draw():
                raise
        self._on_loop(self._say_drawn)
        return self._execute(call)

    def _execute(self, call: _Call) -> Any:
        return self._transaction(call.run) if call.is_transaction else call.run(self._connection)

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

    def _write(self, connection: sqlite3.Connection, items: list[Any]) -> Group:
        if self._reserve.is_drawn:
            raise sqlite3.OperationalError(_DRAWN)
        group = Group()
        for item in items:
            if isinstance(item, Submission):
                self._take(connection, item, group)
            elif isinstance(item, HostRecord):
                group.hosts[item.host] = item
            else:
                group.rejections[item.host, "batch", item.reason] += 1
                if item.done is not None:
                    group.counted.append(item.done)
        write_group(connection, group, self._max_events, self._max_events_per_host)
        return group

    def _take(self, connection: sqlite3.Connection, item: Submission, group: Group) -> None:
        ranges = self._ranges_of(connection, item.host, item.spool_id)
        day = _NEVER if item.is_importer else item.received_unix_ns // DAY_NS
        if day > ranges.last_day:
            ranges.last_day = group.last_days[item.host, item.spool_id] = day
        change = ranges.add(item.sequence)
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
        for reason, count in item.rejected_events.items():
            group.rejections[item.host, "event", reason] += count
        group.events.extend(item.events)
        group.triggers.extend(item.triggers)
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
                connection.execute("SELECT first, last FROM received WHERE host = ? AND spool_id = ?", key),
                *(connection.execute(_LAST_DAY, key).fetchone() or ()),
            )
            if len(self._ranges) >= _CACHED_SPOOLS:  # the one that was used longest ago
                del self._ranges[next(iter(self._ranges))]
        self._ranges[key] = ranges
        return ranges

    def _begin_roll(self, connection: sqlite3.Connection, max_rows: int) -> Roll | None:
        unfinished = connection.execute("SELECT stem, first, last FROM rolls ORDER BY first LIMIT 1").fetchone()
        if unfinished:
            return Roll(*unfinished)
        first, last = end_of_roll(connection, max_rows)
        if not last:
            return None
        roll = Roll(segment_stem(self.replica, self.journal_id, first), first, last)
        connection.execute("INSERT INTO rolls VALUES (?, ?, ?)", (roll.stem, roll.first, roll.last))
        return roll

    def _forget_some(self, connection: sqlite3.Connection) -> bool:
        """Delete rows of the finished roll: fewer at a time where the reserve is small, as each page is logged."""
        return forget_some(connection, min(FORGOTTEN_BYTES, self._group_bytes))

    def _forget_spools(self, connection: sqlite3.Connection) -> bool:
        """Forget what was taken of silent spools. True: to be called again."""
        before_day = math.floor(self._clock_unix_ns() / DAY_NS - self._spool_days)
        most_rows = min(FORGOTTEN_RANGES, max(self._group_bytes // _PAGE_BYTES, 1))  # each may be on a page of its own
        forgotten = forget_spools(connection, before_day, most_rows)
        for key in forgotten:
            self._ranges.pop(key, None)
        return bool(forgotten)

    def _take_reserve(self, connection: sqlite3.Connection) -> bool:
        """Hold the reserve again, once the file has given back what it does not need. True: to be called again."""
        reserve = self._reserve
        free_pages = connection.execute("PRAGMA freelist_count").fetchone()[0]
        if free_bytes(self.path.parent) < 2 * reserve.size_bytes and free_pages:
            pages = max(reserve.size_bytes // 16 // _PAGE_BYTES, 1)
            self._transaction(lambda connection: connection.execute(f"PRAGMA incremental_vacuum({pages})").fetchall())
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            if connection.execute("PRAGMA freelist_count").fetchone()[0] < free_pages:
                return True
        was_drawn = reserve.is_drawn
        if reserve.take():
            self._on_loop(self._say_back)
        elif was_drawn and not connection.execute("SELECT count(*) FROM packs").fetchone()[0]:
            reserve.give_up()  # others have filled the disk; with nothing to be rolled it is of no use
            self._on_loop(self._say_no_reserve)
        return False

    # Back on the loop.

    def _say_drawn(self) -> None:
        event = "the disk is full; the journal's reserve is in use, and batches wait for what it holds to be rolled"
        self._log.warning(event, path=str(self.path))

    def _say_back(self) -> None:
        self._log.info("the journal's reserve is held again", path=str(self.path))

    def _say_no_reserve(self) -> None:
        event = "no room for the journal's reserve: a journal on a full disk could not be drained; make room"
        wanted_mib = round(self._reserve.size_bytes / 2**20, 1)
        self._log.warning(event, path=str(self.path), wanted_mib=wanted_mib, setting="ingest.journal_reserve_mib")

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

    def _committed(self, group: Group) -> None:
        if self.failure:
            self._log.info("commits work again", path=str(self.path))
            self.failure = ""
            for call in self.on_failure:
                call("")
        stats = self.stats
        stats.accepted_batches += group.counters["accepted_batches"]
        stats.accepted_rows += group.counters["accepted_rows"]
        stats.duplicate_batches += group.counters["duplicate_batches"]
        stats.accepted_events += len(group.events)
        if group.triggers:
            self.has_triggers.set()
        stats.journal_batches += len(group.new)
        stats.journal_rows += sum(item.accepted_rows for item in group.new)
        for (_, kind, reason), count in group.rejections.items():
            stats.rejected(kind)[reason] += count
        for host, (rows, seen) in group.seen.items():
            self._seen[host] = (self._seen.get(host, (0, 0))[0] + rows, seen)
        if group.outcomes:
            self.ack_times.take([item.received_unix_ns for item, _ in group.outcomes], time.time_ns())
        for item, is_new in group.outcomes:
            item.done(is_new)
        for done in group.counted:
            done()


def _lock(folder: Path) -> IO[str]:
    """Hold the folder for this process.

    Raises:
        UnavailableError: not writable, or another central holds it.

    """
    path = folder / "journal.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = path.open("a+")
    except OSError as error:
        raise UnavailableError(
            f"central.state_dir {folder} is not writable: {error.strerror}; create it for the user that central runs as"
        ) from error
    until = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if time.monotonic() < until:
                time.sleep(0.02)
                continue
            file.close()
            raise UnavailableError(
                f"another central holds the journal in {folder} ({path} is locked); stop it, or set "
                "another central.state_dir"
            ) from error
        return file
