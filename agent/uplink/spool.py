"""The bounded queue on disk between the agent and central: an SQLite file of serialised batches.

A batch is known by (spool_id, sequence), and central counts it once by that, so a number must never come to
mean other data. The file is written with synchronous=NORMAL: a killed agent loses nothing, as the page cache
survives it, but a power cut may take the last commits, numbers included. Therefore a new spool_id is drawn for
new batches after every boot, for every new file, and after every error of the disk but for a full one; batches
queued before keep theirs.

While the disk cannot be written, because it is full or fails, new batches wait in memory under another spool_id
(see `agent.uplink.overflow`), and acknowledged ones are remembered until they can be deleted. Batches in memory
keep their numbers when they move to the disk later: a number means the same data wherever it lies.
"""

import contextlib
import errno
import os
import sqlite3
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from google.protobuf.message import DecodeError

from agent.sampling.windows import CpiWindow
from agent.uplink.batches import MAX_SEQUENCE, Report, pieces
from agent.uplink.overflow import MEMORY_BYTES, RESERVE_BYTES, Acknowledged, MemoryQueue, Reserve, Waiting
from agent.uplink.queue import ENVELOPE_BYTES, QueueCounts, QueuedBatch
from whitepanda.common import log
from whitepanda.common.errors import UnavailableError
from whitepanda.common.protocol import MAX_MESSAGE_BYTES
from whitepanda.v1 import agent_pb2

#: What a batch costs on disk beside its payload, roughly.
ROW_OVERHEAD_BYTES = 256

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


class Spool:
    """The agent's queue. Safe to use from several threads; any call but `counts` may wait for the disk.

    Errors of the disk at run time never propagate: batches wait in memory (bounded: the oldest are dropped, and
    counted), and every append tries the disk again. Each change between these states is told once.
    """

    def __init__(self, path: Path, *, max_bytes: int, boot_id: str, warn: Callable[[str], None] | None = None) -> None:
        """Open or create the file.

        Args:
            path: the file; its folder is made where it is missing.
            max_bytes: of payload; beyond it the oldest batches are dropped.
            boot_id: the kernel's; "" where it cannot be known, which is taken as another boot every time.
            warn: takes one-line warnings; the log by default.

        Raises:
            UnavailableError: another process has the file, or it cannot be created.

        """
        self._path = path
        self._max_bytes = max_bytes
        self._boot_id = boot_id
        self._warn = warn or log.get("spool").warning
        self._log = log.get("spool")
        self._lock = threading.Lock()
        self._memory = MemoryQueue(min(MEMORY_BYTES, max_bytes))
        self._gone = Acknowledged()
        self._reserve = Reserve(path.with_name(path.name + ".reserve"))
        self._is_full = False
        self._trouble = ""  # why the disk is not written now, as it was told
        self._db: sqlite3.Connection | None = None
        self._trusted = True
        self._is_closed = False
        self._spool_id = uuid.uuid4().hex
        self._next_sequence = 1
        self._boundary = 0  # batches up to this id are of former incarnations
        self._batches = self._rows = self._bytes = 0
        self._dropped_batches = self._dropped_rows = 0
        self._mark = self._live = self._recent = self._old = 0  # how far this stream has fetched, by id
        self._old_end = 0  # the boundary as this stream began: a new file handle may raise it
        try:
            self._start()
        except (sqlite3.Error, OSError) as error:
            self._close()
            self._cannot_start(error)

    @property
    def spool_id(self) -> str:
        """The incarnation that new batches are numbered in."""
        return self._spool_id

    def append(
        self,
        windows: Sequence[CpiWindow],
        *,
        max_rows: int = 2000,
        max_batch_bytes: int = MAX_MESSAGE_BYTES,
        events: Sequence[Report] = (),
    ) -> int:
        """Queue windows, as several batches where they are too many for one, and events with the first of them.

        Returns:
            The sequence number of the last batch; 0 where nothing was queued (nothing given, or no disk).

        """
        chunks = [windows[at : at + max_rows] for at in range(0, len(windows), max_rows)]
        if events and not chunks:
            chunks = [[]]
        with self._lock:
            if self._is_closed:
                self._dropped_batches += len(chunks)
                self._dropped_rows += len(windows)
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
                    self._works_again()
                    return last
            self._purge()
            for batch in self._memory.append(chunks, max_batch_bytes - ENVELOPE_BYTES, events):
                self._dropped_batches += 1
                self._dropped_rows += batch.rows
            return 0

    def begin_stream(self) -> None:
        """From here on everything queued so far is backlog, and what comes is live."""
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

        Live ones come first; of the backlog, this incarnation's come before those of former ones; each in the
        order of arrival. Those that wait in memory come after the live ones of the disk.
        """
        with self._lock:
            found: list[QueuedBatch] = []
            dropped = self._dropped_batches
            self._live = self._read(found, self._live, MAX_SEQUENCE, limit, backlog=False)
            for batch, is_backlog in self._memory.fetch(limit - len(found)):
                message = agent_pb2.CpiBatch.FromString(batch.payload)
                message.backlog = is_backlog
                found.append(QueuedBatch(batch.rows, message))
            self._recent = self._read(found, self._recent, self._mark, limit, backlog=True)
            self._old = self._read(found, self._old, self._old_end, limit, backlog=True)
            if self._dropped_batches != dropped:  # damaged ones
                self._purge()
            return found

    def acknowledge(self, spool_id: str, ranges: Iterable[tuple[int, int]]) -> int:
        """Forget these batches; where the disk refuses, it is tried again by later calls.

        Returns:
            How many have left the queue now, those of earlier calls that failed included.

        """
        with self._lock:
            # Remembered for later, they must not take in numbers that are not given yet.
            given = {self._spool_id: self._next_sequence - 1, self._memory.spool_id: self._memory.last_sequence}.get(
                spool_id, MAX_SEQUENCE
            )
            ranges = [(first, min(last, given)) for first, last in ranges if first <= min(last, given)]
            removed = self._memory.acknowledge(spool_id, ranges)
            self._gone.add(spool_id, ranges)
            return removed + self._purge()

    def counts(self) -> QueueCounts:
        """Return what waits and what was dropped; never blocks."""
        memory = self._memory
        return QueueCounts(
            self._batches + len(memory),
            self._rows + memory.rows,
            self._bytes + memory.bytes,
            self._dropped_batches,
            self._dropped_rows,
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
            if not _is_full(error, self._path.parent) or not self._failed(error):
                raise
            self._open()  # to send what waits there
            return
        self._reserve.take()

    def _cannot_start(self, error: Exception) -> None:
        if _is_full(error, self._path.parent):
            self._failed(error)
            return
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            raise UnavailableError(
                f"{self._path}: the spool is in use; is another whitepanda agent running?"
            ) from error
        if isinstance(error, OSError):
            is_file = isinstance(error, FileExistsError | NotADirectoryError)
            why = "it is no folder" if is_file else error.strerror or str(error)
            raise UnavailableError(
                f"agent.state_dir {self._path.parent} cannot be used: {why};"
                " set it to a folder that the agent can make or write"
            ) from error
        raise UnavailableError(
            f"{self._path}: cannot open the spool: {error}; check agent.state_dir and its owner"
        ) from error

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return self._connect()
        except sqlite3.Error as error:
            self._close()
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _BROKEN:
                raise
            self._move_aside(error)
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        # Batches tell which VMs run here: the file is the agent's alone, and so are SQLite's files beside it.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._db = db = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        for pragma in (
            "locking_mode=EXCLUSIVE",  # first: then there is no shared memory, which takes room
            "auto_vacuum=INCREMENTAL",
            "journal_mode=WAL",
            "synchronous=NORMAL",
        ):
            db.execute(f"PRAGMA {pragma}").fetchall()
        db.execute(f"PRAGMA journal_size_limit={RESERVE_BYTES}").fetchall()
        db.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}").fetchall()
        db.executescript(_SCHEMA)
        with self._transaction(db):
            self._load(db)
        return db

    def _load(self, db: sqlite3.Connection) -> None:
        meta = dict(db.execute("SELECT key, value FROM meta"))
        totals = db.execute("SELECT count(*), total(rows), total(bytes + ?) FROM batches", (ROW_OVERHEAD_BYTES,))
        self._batches, self._rows, self._bytes = (int(value) for value in totals.fetchone())
        # After an error the file may know of fewer drops than this process does.
        self._dropped_batches = max(self._dropped_batches, int(meta.get("dropped_batches", 0)))
        self._dropped_rows = max(self._dropped_rows, int(meta.get("dropped_rows", 0)))
        same_boot = bool(self._boot_id) and meta.get("boot_id") == self._boot_id
        if same_boot and self._trusted and "spool_id" in meta:
            self._spool_id, self._boundary = meta["spool_id"], int(meta["boundary"])
            self._next_sequence = int(meta["next_sequence"])
        else:
            self._spool_id, self._boundary, self._next_sequence = uuid.uuid4().hex, self._last_id(), 1
        self._trusted = True
        self._save(db)

    def _save(self, db: sqlite3.Connection) -> None:
        values = {
            "spool_id": self._spool_id,
            "boot_id": self._boot_id,
            "boundary": self._boundary,
            "next_sequence": self._next_sequence,
            "dropped_batches": self._dropped_batches,
            "dropped_rows": self._dropped_rows,
        }
        rows = [(key, str(value)) for key, value in values.items()]
        db.executemany("INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", rows)

    def _insert(
        self, db: sqlite3.Connection, chunks: Sequence[Sequence[CpiWindow]], max_payload: int, events: Sequence[Report]
    ) -> int:
        last = 0
        with self._transaction(db):
            for rows, payload in pieces(chunks, self._spool_id, self._number, max_payload, events):
                last = self._next_sequence - 1
                self._put(db, self._spool_id, last, rows, payload)
            self._drop_oldest(db, self._bytes - self._max_bytes)
            self._save(db)
        return last

    def _number(self) -> int:
        self._next_sequence += 1
        return self._next_sequence - 1

    def _put(self, db: sqlite3.Connection, spool_id: str, sequence: int, rows: int, payload: bytes) -> None:
        db.execute(
            "INSERT INTO batches (spool_id, sequence, rows, bytes, crc32, payload) VALUES (?, ?, ?, ?, ?, ?)",
            (spool_id, sequence, rows, len(payload), zlib.crc32(payload), payload),
        )
        self._batches += 1
        self._rows += rows
        self._bytes += len(payload) + ROW_OVERHEAD_BYTES

    def _settle(self, db: sqlite3.Connection, batches: list[Waiting]) -> None:
        """Move batches from memory to the disk. Those that a stream has in flight stay until it ends."""
        if not batches:
            return
        with self._transaction(db):
            for batch in batches:
                self._put(db, self._memory.spool_id, batch.sequence, batch.rows, batch.payload)
        self._memory.forget(batches)

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
                self._shrink(self._db)
            return removed
        return 0

    def _shrink(self, db: sqlite3.Connection) -> None:
        """Give free pages back. A failure here costs only room, until the next time."""
        with contextlib.suppress(sqlite3.Error):
            # Not `execute`: this pragma works page by page, and Python steps it only once there.
            db.executescript("PRAGMA incremental_vacuum(1024)")
            if self._is_full:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _drop_oldest(self, db: sqlite3.Connection, excess_bytes: int) -> None:
        while excess_bytes > 0 and self._batches:
            rows = db.execute(
                "DELETE FROM batches WHERE id = (SELECT min(id) FROM batches) RETURNING rows, bytes"
            ).fetchall()
            excess_bytes -= sum(size for _, size in rows) + ROW_OVERHEAD_BYTES
            self._dropped_batches += len(rows)
            self._dropped_rows += sum(count for count, _ in rows)
            self._forget(rows)

    def _forget(self, rows: list[tuple[int, int]]) -> int:
        self._batches -= len(rows)
        self._rows -= sum(count for count, _ in rows)
        self._bytes -= sum(size + ROW_OVERHEAD_BYTES for _, size in rows)
        return len(rows)

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
                message = _parse(payload) if zlib.crc32(payload) == crc32 else None
                if message is None:
                    self._warn(f"{self._path}: a batch of {count} windows was damaged on disk and is dropped")
                    self._dropped_batches += 1
                    self._dropped_rows += count
                    self._gone.add(spool_id, [(sequence, sequence)])
                    continue
                message.backlog = backlog
                found.append(QueuedBatch(count, message))
        return after

    @contextlib.contextmanager
    def _transaction(self, db: sqlite3.Connection) -> Iterator[None]:
        """All or nothing, our counts included; sequence numbers only go up."""
        before = (self._batches, self._rows, self._bytes, self._dropped_batches, self._dropped_rows)
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
            db.execute("COMMIT")
        except BaseException:
            self._batches, self._rows, self._bytes, self._dropped_batches, self._dropped_rows = before
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise

    def _failed(self, error: Exception) -> bool:
        """After an error: give up the reserve of a full disk, move a broken file aside, else open it again.

        Returns:
            Whether to try again at once, because there is some room now.

        """
        if _is_full(error, self._path.parent):
            self._is_full = True
            self._tell("the disk is full")
            return self._reserve.release()
        self._is_full = False
        self._trusted = False
        self._close()
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _BROKEN:
            with contextlib.suppress(OSError):
                self._move_aside(error)
        else:
            self._tell(str(error))
        return False

    def _tell(self, trouble: str) -> None:
        if trouble == self._trouble:
            return
        self._trouble = trouble
        self._warn(
            f"{self._path}: {trouble}; until it can be written again new batches wait in memory only"
            f" (the newest {MEMORY_BYTES >> 20} MiB)"
        )

    def _works_again(self) -> None:
        self._is_full = False
        if self._trouble:
            self._trouble = ""
            self._log.info("the spool can be written again", path=str(self._path))
        self._purge()

    def _move_aside(self, error: Exception) -> None:
        self._close()
        aside = self._path.with_name(self._path.name + ".corrupt")
        self._warn(f"{self._path}: broken ({error}); moved to {aside}, its batches are lost, a new spool begins")
        self._path.replace(aside)
        for suffix in ("-wal", "-shm", "-journal"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self._dropped_batches += self._batches
        self._dropped_rows += self._rows
        self._batches = self._rows = self._bytes = 0
        self._gone.clear()
        self._mark = self._live = self._recent = self._old = self._old_end = 0

    def _close(self) -> None:
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None


def _is_full(error: Exception, folder: Path) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_CANTOPEN:  # SQLite does not say why it cannot make the file beside its own
        return _has_no_room(folder)
    return code == sqlite3.SQLITE_FULL or getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT)


def _has_no_room(folder: Path) -> bool:
    """Whether a folder's file system has no free bytes or no free file names."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail == 0 or (found.f_files > 0 and found.f_favail == 0)  # some count no names


def _parse(payload: bytes) -> agent_pb2.CpiBatch | None:
    try:
        return agent_pb2.CpiBatch.FromString(payload)
    except DecodeError:
        return None
