"""The bounded queue on disk between the agent and central (the spool): an SQLite file of serialised batches.

Central counts a batch once by its (spool_id, sequence), so a number must always mean the same data. A killed agent
loses nothing, but with synchronous=NORMAL a power cut may take the last commits, numbers included. Therefore new
batches get a new spool_id after every boot, in every new file, and after every error of the disk except a full one.

While the disk cannot be written, new batches wait in memory under another spool_id (`agent.uplink.memory_queue`), and
acknowledged ones are remembered until they can be deleted. Batches keep their numbers when they move to the disk.
"""

import contextlib
import sqlite3
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from agent.sampling.windows import CpiWindow
from agent.uplink.batches import MAX_SEQUENCE, Report, pieces
from agent.uplink.disk_queue_file import connect, is_broken, is_full, move_aside, parse, primary_code
from agent.uplink.memory_queue import MEMORY_BYTES, Acknowledged, MemoryQueue, Reserve, Waiting
from agent.uplink.queue import ENVELOPE_BYTES, QueueCounts, QueuedBatch
from whitepanda.common import log
from whitepanda.common.errors import UnavailableError
from whitepanda.common.protocol import MAX_MESSAGE_BYTES
from whitepanda.v1 import agent_pb2

#: What a batch costs on disk besides its payload, roughly.
ROW_OVERHEAD_BYTES = 256


class Spool:
    """The agent's queue. Safe to use from several threads; any call but `counts` may wait for the disk.

    Errors of the disk at run time never propagate: batches wait in memory (bounded: the oldest are dropped, and
    counted), and every append tries the disk again. Each change between these states is logged once.
    """

    def __init__(self, path: Path, *, max_bytes: int, boot_id: str, warn: Callable[[str], None] | None = None) -> None:
        """Open or create the file and its folder.

        Beyond `max_bytes` of payload the oldest batches are dropped. `boot_id` is the kernel's; "" counts as another
        boot every time. `warn` takes one-line warnings; the log by default. UnavailableError: another process has the
        file, or it cannot be created.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._boot_id = boot_id
        self._log = log.get("spool")
        self._warn = warn or self._log.warning
        self._lock = threading.Lock()
        self._memory = MemoryQueue(min(MEMORY_BYTES, max_bytes))
        self._gone = Acknowledged()
        self._reserve = Reserve(path.with_name(path.name + ".reserve"))
        self._is_full = False
        self._trouble = ""  # why the disk is not written now, as it was logged
        self._db: sqlite3.Connection | None = None
        self._trusted = True
        self._is_closed = False
        #: The incarnation that new batches are numbered in.
        self.spool_id = uuid.uuid4().hex
        self._next_sequence = 1
        self._boundary = 0  # batches up to this id are of former incarnations
        self._held = QueueCounts()
        self._mark = self._live = self._recent = self._old = 0  # how far this stream has fetched, by id
        self._old_end = 0  # the boundary as this stream began: a new file handle may raise it
        try:
            self._start()
        except (sqlite3.Error, OSError) as error:
            self._close()
            self._cannot_start(error)

    def append(
        self,
        windows: Sequence[CpiWindow],
        *,
        max_rows: int = 2000,
        max_batch_bytes: int = MAX_MESSAGE_BYTES,
        events: Sequence[Report] = (),
    ) -> int:
        """Queue windows, as several batches if they are too many for one, and events with the first of them.

        Returns the sequence number of the last batch; 0 if nothing was queued on disk.
        """
        chunks = [windows[at : at + max_rows] for at in range(0, len(windows), max_rows)]
        if events and not chunks:
            chunks = [[]]
        with self._lock:
            if self._is_closed:
                self._drop(len(chunks), len(windows))
                return 0
            for _ in () if self._is_full and not self._reserve.take() else (1, 2):
                try:
                    db = self._db or self._open()
                    self._settle(db, self._memory.unfetched())
                    last = self._insert(db, chunks, max_batch_bytes - ENVELOPE_BYTES, events)
                except (sqlite3.Error, OSError) as error:
                    self._failed(error)
                    if self._is_full:  # the reserve is for deleting
                        break
                else:
                    self._is_full = False
                    if self._trouble:
                        self._trouble = ""
                        self._log.info("the spool can be written again", path=str(self._path))
                    self._purge()
                    return last
            self._purge()
            for batch in self._memory.append(chunks, max_batch_bytes - ENVELOPE_BYTES, events):
                self._drop(1, batch.rows)
            return 0

    def begin_stream(self) -> None:
        """Make all that is queued now backlog; what comes later is live."""
        with self._lock:
            self._memory.begin_stream()
            self._purge()
            self._old = self._mark = self._live = self._recent = self._old_end = 0
            try:
                self._mark = self._live = self._last_id()
            except sqlite3.Error as error:
                self._failed(error)
            if self._db is not None:  # else all that is found there later is read as live
                self._recent = self._old_end = self._boundary

    def fetch(self, limit: int) -> list[QueuedBatch]:
        """Return up to `limit` batches not fetched in this stream.

        First the disk's live ones, then those in memory, then the backlog, this incarnation's before others';
        each in the order of arrival.
        """
        with self._lock:
            found: list[QueuedBatch] = []
            dropped = self._held.dropped_batches
            self._live = self._read(found, self._live, MAX_SEQUENCE, limit, backlog=False)
            for batch, is_backlog in self._memory.fetch(limit - len(found)):
                message = agent_pb2.CpiBatch.FromString(batch.payload)
                message.backlog = is_backlog
                found.append(QueuedBatch(batch.rows, message))
            self._recent = self._read(found, self._recent, self._mark, limit, backlog=True)
            self._old = self._read(found, self._old, self._old_end, limit, backlog=True)
            if self._held.dropped_batches != dropped:  # damaged ones
                self._purge()
            return found

    def acknowledge(self, spool_id: str, ranges: Iterable[tuple[int, int]]) -> int:
        """Forget these batches; if the disk refuses, later calls try again.

        Returns how many have left the queue now, those of earlier calls that failed included.
        """
        with self._lock:
            # Ranges are remembered, so they must not include numbers that are given later.
            last_of = {self.spool_id: self._next_sequence - 1, self._memory.spool_id: self._memory.last_sequence}
            given = last_of.get(spool_id, MAX_SEQUENCE)
            ranges = [(first, min(last, given)) for first, last in ranges if first <= min(last, given)]
            removed = self._memory.acknowledge(spool_id, ranges)
            self._gone.add(spool_id, ranges)
            return removed + self._purge()

    def counts(self) -> QueueCounts:
        """Return what waits and what was dropped; never blocks."""
        memory, held = self._memory, self._held
        return replace(
            held, batches=held.batches + len(memory), rows=held.rows + memory.rows, bytes=held.bytes + memory.bytes
        )

    def close(self) -> None:
        """Close the file for good; may be called twice. What is appended afterwards is dropped."""
        with self._lock:
            if self._db is not None and not self._is_closed:
                self._purge()
            if self._db is not None and not self._is_closed:  # a disk that fails has closed it
                with contextlib.suppress(sqlite3.Error):
                    self._settle(self._db, self._memory.unfetched(everything=True))
            self._is_closed = True
            self._close()

    # -- below: the lock is held -------------------------------------------------------------

    def _start(self) -> None:
        try:
            self._open()
        except (sqlite3.Error, OSError) as error:
            if not is_full(error, self._path.parent) or not self._failed(error):
                raise
            self._open()  # to send what waits there
            return
        self._reserve.take()

    def _cannot_start(self, error: Exception) -> None:
        if is_full(error, self._path.parent):
            self._failed(error)
            return
        if primary_code(error) == sqlite3.SQLITE_BUSY:
            problem = f"{self._path}: the spool is in use; is another whitepanda agent running?"
        elif isinstance(error, OSError):
            is_file = isinstance(error, FileExistsError | NotADirectoryError)
            why = "it is not a folder" if is_file else error.strerror or str(error)
            remedy = "set it to a folder that the agent can make or write"
            problem = f"agent.state_dir {self._path.parent} cannot be used: {why}; {remedy}"
        else:
            problem = f"{self._path}: cannot open the spool: {error}; check agent.state_dir and its owner"
        raise UnavailableError(problem) from error

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return self._connect()
        except sqlite3.Error as error:
            self._close()
            if not is_broken(error):
                raise
            self._move_aside(error)
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        self._db = db = connect(self._path)
        with self._transaction(db):
            meta = dict(db.execute("SELECT key, value FROM meta"))
            totals = db.execute("SELECT count(*), total(rows), total(bytes + ?) FROM batches", (ROW_OVERHEAD_BYTES,))
            self._held.batches, self._held.rows, self._held.bytes = (int(value) for value in totals.fetchone())
            # After an error the file may know of fewer drops than this process does.
            self._held.dropped_batches = max(self._held.dropped_batches, int(meta.get("dropped_batches", 0)))
            self._held.dropped_rows = max(self._held.dropped_rows, int(meta.get("dropped_rows", 0)))
            same_boot = bool(self._boot_id) and meta.get("boot_id") == self._boot_id
            if same_boot and self._trusted and "spool_id" in meta:
                self.spool_id, self._boundary = meta["spool_id"], int(meta["boundary"])
                self._next_sequence = int(meta["next_sequence"])
            else:
                self.spool_id, self._boundary, self._next_sequence = uuid.uuid4().hex, self._last_id(), 1
            self._trusted = True
            self._save(db)
        return db

    def _save(self, db: sqlite3.Connection) -> None:
        values = {
            "spool_id": self.spool_id,
            "boot_id": self._boot_id,
            "boundary": self._boundary,
            "next_sequence": self._next_sequence,
            "dropped_batches": self._held.dropped_batches,
            "dropped_rows": self._held.dropped_rows,
        }
        rows = [(key, str(value)) for key, value in values.items()]
        db.executemany("INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", rows)

    def _insert(
        self, db: sqlite3.Connection, chunks: Sequence[Sequence[CpiWindow]], max_payload: int, events: Sequence[Report]
    ) -> int:
        sequence = 0
        with self._transaction(db):
            for one in pieces(chunks, self.spool_id, self._next_sequence, max_payload, events):
                sequence, rows, payload = one
                self._next_sequence = sequence + 1
                self._put(db, self.spool_id, sequence, rows, payload)
            excess_bytes = self._held.bytes - self._max_bytes
            while excess_bytes > 0 and self._held.batches:
                oldest = "DELETE FROM batches WHERE id = (SELECT min(id) FROM batches) RETURNING rows, bytes"
                dropped = db.execute(oldest).fetchall()
                excess_bytes -= sum(size for _, size in dropped) + ROW_OVERHEAD_BYTES
                self._drop(len(dropped), sum(count for count, _ in dropped))
                self._forget(dropped)
            self._save(db)
        return sequence

    def _put(self, db: sqlite3.Connection, spool_id: str, sequence: int, rows: int, payload: bytes) -> None:
        db.execute(
            "INSERT INTO batches (spool_id, sequence, rows, bytes, crc32, payload) VALUES (?, ?, ?, ?, ?, ?)",
            (spool_id, sequence, rows, len(payload), zlib.crc32(payload), payload),
        )
        self._held.batches += 1
        self._held.rows += rows
        self._held.bytes += len(payload) + ROW_OVERHEAD_BYTES

    def _settle(self, db: sqlite3.Connection, batches: list[Waiting]) -> None:
        """Move batches from memory to the disk. Those that a stream has in flight stay until it ends."""
        if not batches:
            return
        with self._transaction(db):
            for batch in batches:
                self._put(db, self._memory.spool_id, batch.sequence, batch.rows, batch.payload)
        for batch in batches:
            self._memory.pop(batch.sequence)

    def _purge(self) -> int:
        """Delete what is acknowledged; on a full disk with the reserve's help. Returns how many there were."""
        for _ in (1, 2):
            if self._db is None or not self._gone:
                return 0
            removed = 0
            try:
                with self._transaction(self._db):
                    for spool_id, first, last in self._gone:
                        cursor = self._db.execute(
                            "DELETE FROM batches WHERE spool_id = ? AND sequence BETWEEN ? AND ? RETURNING rows, bytes",
                            (spool_id, first, last),
                        )
                        removed += self._forget(cursor.fetchall())
            except sqlite3.Error as error:
                if not self._failed(error):
                    return 0
                continue
            self._gone.clear()
            if removed:
                with contextlib.suppress(sqlite3.Error):  # costs only room, until the next time
                    # Not `execute`: this pragma works page by page, and Python steps it only once there.
                    self._db.executescript("PRAGMA incremental_vacuum(1024)")
                    if self._is_full:
                        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return removed
        return 0

    def _forget(self, rows: list[tuple[int, int]]) -> int:
        self._held.batches -= len(rows)
        self._held.rows -= sum(count for count, _ in rows)
        self._held.bytes -= sum(size + ROW_OVERHEAD_BYTES for _, size in rows)
        return len(rows)

    def _drop(self, batches: int, rows: int) -> None:
        self._held.dropped_batches += batches
        self._held.dropped_rows += rows

    def _last_id(self) -> int:
        if self._db is None:
            return 0
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'batches'").fetchone()
        return int(row[0]) if row else 0

    def _read(self, found: list[QueuedBatch], after: int, until: int, limit: int, *, backlog: bool) -> int:
        """Add batches up to `limit` from this range of ids; returns the id up to which it was read."""
        while self._db is not None and len(found) < limit and after < until:
            try:
                rows = self._db.execute(
                    "SELECT id, spool_id, sequence, rows, crc32, payload FROM batches"
                    " WHERE id > ? AND id <= ? ORDER BY id LIMIT ?",
                    (after, until, limit - len(found)),
                ).fetchall()
            except sqlite3.Error as error:
                self._failed(error)
                break
            if not rows:
                break
            after = rows[-1][0]
            for _, spool_id, sequence, count, crc32, payload in rows:
                if (spool_id, sequence) in self._gone:
                    continue
                message = parse(payload, crc32)
                if message is None:
                    self._warn(f"{self._path}: a batch of {count} windows was damaged on disk and is dropped")
                    self._drop(1, count)
                    self._gone.add(spool_id, [(sequence, sequence)])
                    continue
                message.backlog = backlog
                found.append(QueuedBatch(count, message))
        return after

    @contextlib.contextmanager
    def _transaction(self, db: sqlite3.Connection) -> Iterator[None]:
        """All or nothing, the counts included; sequence numbers only go up."""
        before = replace(self._held)
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
            db.execute("COMMIT")
        except BaseException:
            self._held = before
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise

    def _failed(self, error: Exception) -> bool:
        """After an error: give up the reserve of a full disk, move a broken file aside, else open it again later.

        Returns whether to try again immediately, because there is some room now.
        """
        if is_full(error, self._path.parent):
            self._is_full = True
            self._log_trouble("the disk is full")
            return self._reserve.release()
        self._is_full = False
        self._trusted = False
        self._close()
        if is_broken(error):
            with contextlib.suppress(OSError):
                self._move_aside(error)
        else:
            self._log_trouble(str(error))
        return False

    def _log_trouble(self, trouble: str) -> None:
        if trouble == self._trouble:
            return
        self._trouble = trouble
        self._warn(
            f"{self._path}: {trouble}; until it can be written again new batches wait in memory only"
            f" (the newest {MEMORY_BYTES >> 20} MiB)"
        )

    def _move_aside(self, error: Exception) -> None:
        self._close()
        aside = self._path.with_name(self._path.name + ".corrupt")
        self._warn(f"{self._path}: broken ({error}); moved to {aside}, its batches are lost, a new spool begins")
        move_aside(self._path, aside)
        self._drop(self._held.batches, self._held.rows)
        self._held.batches = self._held.rows = self._held.bytes = 0
        self._gone.clear()
        self._mark = self._live = self._recent = self._old = self._old_end = 0

    def _close(self) -> None:
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None
