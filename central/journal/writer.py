"""The journal: every batch is on disk before it is acknowledged. SQLite, write-ahead log, group commit.

One thread writes. It commits what arrives within the commit interval as one transaction with `synchronous=FULL` (one
flush of the log to the disk), and only then calls back on the event loop, which acknowledges. The transaction also has
the ranges of all sequence numbers ever taken per (host, spool): duplicates are known even when their rows have left for
the lake. The ranges of a spool are forgotten once all its batches would be refused as too old.

A roll moves rows to the lake in three steps: commit the intent (name and range of rows); write the files under exactly
that name; commit that they exist. A kill before that repeats the roll into the same files. Then the rows are deleted, a
few at a time, as batches wait for each transaction. A batch that cannot be written is set aside in between.

On a full disk batches wait, and rolls are noted with the help of a reserve (`central.journal.reserve`); transactions
and the log are kept smaller than it.
"""

import asyncio
import contextlib
import math
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from central.journal import tables
from central.journal.database import PAGE_BYTES, hold, journal_id, open_database, reading, transaction
from central.journal.latency import AckTimes
from central.journal.received_once import Received
from central.journal.reserve import Reserve, is_full
from central.journal.tables import Group, HostRecord, JournalStats, Rejection, Roll, Submission
from central.lake.segments import DAY_NS
from central.own_threads import in_own_thread
from central.validation.events import EventRow
from central.validation.facts import FactRow
from central.validation.samples import StoredBatch
from central.validation.triggers import TriggerRow
from whitepanda.common import log
from whitepanda.common.errors import UnavailableError

GROUP_LIMIT = 1024  # batches in one transaction
_RETRY_S = 1.0  # after a failed commit
_NOTES_WAIT_S = 1.0  # for a batch to be committed with
_HOST_INTERVAL_S = 60.0  # a host's record is written no more often
_DRAWN = "the disk is full, and the reserve is in use to note rolls; batches wait until it is held again"
_BACK = "the journal's reserve is held again"


@dataclass(frozen=True, slots=True)
class _Call:
    """Work for the writer's thread in a separate transaction, or that makes transactions itself."""

    run: Callable[[sqlite3.Connection], Any]
    result: Future[Any]
    is_transaction: bool = True
    may_draw: bool = True  # the reserve, on a full disk


_Item = Submission | HostRecord | Rejection | _Call | None  # None: stop
_STOP = object()


class Journal:
    """The journal of one central, in its state folder; for the loop's thread if nothing else is said.

    Batches are gathered for `commit_interval_s`. The last `max_events` events are kept, `max_events_per_host` of a
    host. `reserve_bytes` are held to note rolls on a full disk. A spool that is silent for `spool_days` is forgotten,
    unless it is an importer's. UnavailableError: the folder is not writable, the journal is held or damaged.

    Attributes:
        stats, hosts: kept up to date on the loop, after each commit.
        failure: why the last commit failed; "" while all is well. `on_failure` is called when it comes or goes.
        fatal: set if the journal cannot continue.
        has_triggers: set when reports of contention came; the reader clears it.
        lock: the open file by which this process, and one that inherits it, holds the journal.
        origin: what this journal's segments start with; see `central.lake.segments.Segment.origin`.
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
        self.path = folder / "journal.sqlite"
        self.replica = replica
        self.ack_times = AckTimes()
        self.failure = ""
        self.fatal: asyncio.Future[str] | None = None
        self.has_triggers = asyncio.Event()
        self.has_facts = asyncio.Event()  # likewise
        self.on_failure: list[Callable[[str], None]] = []
        #: Hosts that were written less than `_HOST_INTERVAL_S` ago, each with its newer record, if there is one.
        self._written: dict[str, HostRecord | None] = {}
        self._seen: dict[str, tuple[int, int]] = {}  # accepted rows, when, that `_hosts` does not know yet
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
        self._received = Received()
        self._log = log.get("journal", path=str(self.path))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.lock: IO[str] = hold(folder)
        self._reserve = Reserve(folder / "journal.reserve", reserve_bytes)
        self._reserve.prepare()
        try:
            self._connection = open_database(self.path, reserve_bytes)
            self.journal_id = journal_id(self._connection, self.path)
            self.origin = f"{replica}-{self.journal_id}"
            while transaction(self._connection, self._forget_some):
                continue
            self.stats: JournalStats = tables.read_stats(self._connection)
            self._hosts: dict[str, HostRecord] = tables.read_hosts(self._connection)
        except sqlite3.Error as error:
            self.lock.close()
            remedy = "central starts with a new one, and agents send again what was not acknowledged"
            why = f"cannot be used: {error}. If it is damaged, move journal.sqlite* away: {remedy}"
            if is_full(error, folder):
                why = f"cannot be opened: {error}; make room on the disk of central.state_dir"
            raise UnavailableError(f"journal {self.path} {why}") from error
        except BaseException:
            self.lock.close()
            raise
        if self._reserve.is_drawn:
            self._log.warning(_DRAWN)
        elif not self._reserve.take():
            self._log_no_reserve()

    @property
    def hosts(self) -> dict[str, HostRecord]:
        """Every host that ever said Hello, by name."""
        for host, (rows, seen) in self._seen.items():
            known = self._hosts.get(host, HostRecord(host))
            last = max(seen, known.last_seen_unix_ns)
            self._hosts[host] = replace(known, accepted_rows=known.accepted_rows + rows, last_seen_unix_ns=last)
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
        for record in filter(None, self._written.values()):
            self._queue.put(record)
        self._written.clear()
        self._queue.put(None)
        if self._thread is not None:
            await in_own_thread(self._thread.join)
        self._connection.close()
        self.lock.close()

    def submit(self, submission: Submission) -> None:
        """Hand over a batch; its `done` is called when it is on disk. While the disk is full it waits here."""
        self._queue.put(submission)

    def reject(self, host: str, reason: str, done: Callable[[], None] | None = None) -> None:
        """Count a batch that was refused before it had a sequence number; `done` is called once that is on disk."""
        self._queue.put(Rejection(host, reason, done))

    def note_host(self, record: HostRecord) -> None:
        """Remember a host's record; it is on disk a minute later at most. `accepted_rows` is ignored."""
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
        """Commit the intent to roll the oldest rows, see `tables.begin_roll`."""
        await self._repeat(self._forget_some)  # of a roll before, which the disk's failure had left
        roll: Roll | None = await self._call(tables.begin_roll, self.replica, self.journal_id, max_rows)
        # The lake may be away for long: no other process must take it meanwhile.
        if self._reserve.is_drawn and await self._call(lambda _connection: self._reserve.take(), is_transaction=False):
            self._log.info(_BACK)
        return roll

    async def finish_roll(self, roll: Roll, rows: int) -> None:
        """Note that the files of a roll are on disk, and delete its rows."""
        batches = await self._call(tables.finish_roll, roll, rows)
        self.stats.journal_batches -= batches
        self.stats.journal_rows -= rows
        self.stats.rolled_rows += rows
        await self._repeat(self._forget_some)
        if self._reserve.size_bytes and not self._reserve.is_held:
            await self._repeat(self._take_reserve, is_transaction=False)
        if math.isfinite(self._spool_days) and not self.failure and not self._reserve.is_drawn:
            # Not worth the reserve: on a full disk it waits for another roll.
            with contextlib.suppress(sqlite3.OperationalError):
                await self._repeat(self._forget_spools, may_draw=False)

    async def set_aside(self, pack: int, index: int, why: str) -> tuple[StoredBatch, int]:
        """Take a batch, by its place in its pack, out of what is rolled, see `tables.set_aside`."""
        batch, rows = await self._call(tables.set_aside, pack, index, why)
        self.stats.journal_batches -= 1
        self.stats.journal_rows -= rows
        self.stats.rejected_batches["set_aside"] += 1
        return batch, rows

    def read_events(self, **wanted: Any) -> list[tuple[int, EventRow]]:
        """Return events that are on disk, see `tables.read_events`. For any thread."""
        with reading(self.path) as connection:
            return tables.read_events(connection, **wanted)

    def read_triggers(self, limit: int) -> list[tuple[int, TriggerRow]]:
        """Return the oldest reports of contention that wait for incident history, with their ids. For any thread."""
        with reading(self.path) as connection:
            return tables.read_triggers(connection, limit)

    async def forget_triggers(self, last: int) -> None:
        """Forget the reports up to an id: incident history has them."""
        await self._call(lambda connection: connection.execute("DELETE FROM triggers WHERE id <= ?", (last,)).rowcount)

    def read_facts(self, limit: int) -> list[tuple[int, FactRow]]:
        """Return the oldest facts that wait for their database, with their ids. For any thread."""
        with reading(self.path) as connection:
            return tables.read_facts(connection, limit)

    async def forget_facts(self, last: int) -> None:
        """Forget the facts up to an id: the database has them."""
        await self._call(lambda connection: connection.execute("DELETE FROM facts WHERE id <= ?", (last,)).rowcount)

    async def _call(
        self, run: Callable[..., Any], *arguments: Any, is_transaction: bool = True, may_draw: bool = True
    ) -> Any:
        result: Future[Any] = Future()
        self._queue.put(_Call(lambda connection: run(connection, *arguments), result, is_transaction, may_draw))
        return await asyncio.wrap_future(result)

    async def _repeat(self, run: Callable[[sqlite3.Connection], bool], **how: bool) -> None:
        """Call until there is nothing left to do; batches are committed in between."""
        while await self._call(run, **how):
            continue

    # The writer's thread.

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

        Host records wait for batches first: a flush for each heartbeat of 10,000 idle hosts is dear.
        """
        items: list[Any] = []
        until, size, is_waiting = 0.0, 0, True
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
                group = transaction(self._connection, lambda connection: self._write(connection, items))
            except sqlite3.OperationalError as error:  # disk full, I/O error: may pass
                self._received.clear()
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
        """Run a call; on a full disk once more, with the reserve."""
        if not call.result.set_running_or_notify_cancel():
            return  # the caller has gone
        try:
            call.result.set_result(self._execute(call))
        except sqlite3.OperationalError as error:
            call.result.set_exception(error)

    def _execute(self, call: _Call) -> Any:
        def run() -> Any:
            return transaction(self._connection, call.run) if call.is_transaction else call.run(self._connection)

        try:
            return run()
        except sqlite3.OperationalError as error:
            if not is_full(error, self.path.parent) or not call.may_draw or not self._reserve.draw():
                raise
        self._on_loop(self._log.warning, _DRAWN)
        return run()

    def _write(self, connection: sqlite3.Connection, items: list[Any]) -> Group:
        if self._reserve.is_drawn:
            raise sqlite3.OperationalError(_DRAWN)
        group = self._received.group(connection, items)
        tables.write_group(connection, group, self._max_events, self._max_events_per_host)
        return group

    def _forget_some(self, connection: sqlite3.Connection) -> bool:
        """Delete rows of the finished roll: fewer at a time if the reserve is small, as each page is logged."""
        return tables.forget_some(connection, min(tables.FORGOTTEN_BYTES, self._group_bytes))

    def _forget_spools(self, connection: sqlite3.Connection) -> bool:
        """Forget the ranges of silent spools. True: call again."""
        before_day = math.floor(self._clock_unix_ns() / DAY_NS - self._spool_days)
        pages = max(self._group_bytes // PAGE_BYTES, 1)  # each range may be on a separate one
        forgotten = tables.forget_spools(connection, before_day, min(tables.FORGOTTEN_RANGES, pages))
        self._received.forget(forgotten)
        return bool(forgotten)

    def _take_reserve(self, connection: sqlite3.Connection) -> bool:
        """Hold the reserve again, once the file has given back what it does not need. True: call again."""
        if self._reserve.shrink(connection):
            return True
        was_drawn = self._reserve.is_drawn
        if self._reserve.take():
            self._on_loop(self._log.info, _BACK)
        elif was_drawn and not connection.execute("SELECT count(*) FROM packs").fetchone()[0]:
            self._reserve.give_up()  # others have filled the disk; with nothing to be rolled it is of no use
            self._on_loop(self._log_no_reserve)
        return False

    # Back on the loop.

    def _log_no_reserve(self) -> None:
        self._log.warning(
            "not enough disk space for the journal's reserve, so a journal on a full disk could not be drained; "
            "free some space",
            wanted_mib=round(self._reserve.size_bytes / 2**20, 1),
            setting="ingest.journal_reserve_mib",
        )

    def _on_loop(self, call: Callable[..., Any], *arguments: Any) -> None:
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(call, *arguments)
            except RuntimeError:  # the loop is gone: no caller waits for this any more
                self._loop = None

    def _set_failure(self, error: str) -> None:
        """Note why the last commit failed, "" if it did not."""
        is_news, self.failure = bool(error) != bool(self.failure), error
        if not is_news:
            return
        if error:
            self._log.error("commit failed; nothing is acknowledged until one works", error=error)
        else:
            self._log.info("commits work again")
        for call in self.on_failure:
            call(error)

    def _set_fatal(self, error: str) -> None:
        if self.fatal is not None and not self.fatal.done():
            self.fatal.set_result(error)

    def _committed(self, group: Group) -> None:
        self._set_failure("")
        if group.triggers:
            self.has_triggers.set()
        if group.facts:
            self.has_facts.set()
        self.stats.count(group)
        for host, (rows, seen) in group.seen.items():
            self._seen[host] = (self._seen.get(host, (0, 0))[0] + rows, seen)
        if group.outcomes:
            self.ack_times.take([item.received_unix_ns for item, _ in group.outcomes], time.time_ns())
        for item, is_new in group.outcomes:
            item.done(is_new)
        for done in group.counted:
            done()
