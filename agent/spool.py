"""The bounded queue on disk between the agent and central: an SQLite file of serialised batches.

A batch is known by (spool_id, sequence), and central counts it once by that, so a number must never come to
mean other data. The file is written with synchronous=NORMAL: a killed agent loses nothing, as the page cache
survives it, but a power cut may take the last commits, numbers included. Therefore a new spool_id is drawn for
new batches after every boot, for every new file, and after every error of the disk; batches queued before keep
theirs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from google.protobuf.message import DecodeError

from agent.batches import encode
from agent.windows import CpiWindow
from whitepanda.common import log
from whitepanda.common.errors import UnavailableError
from whitepanda.common.protocol import MAX_MESSAGE_BYTES
from whitepanda.v1 import agent_pb2

__all__ = ["BatchQueue", "QueueCounts", "QueuedBatch", "Spool"]

#: What a batch costs on disk beside its payload, roughly.
ROW_OVERHEAD_BYTES = 256
#: The gRPC message around a batch.
ENVELOPE_BYTES = 64

_MAX_SEQUENCE = 2**63 - 1
_FULL = frozenset({sqlite3.SQLITE_FULL})
_BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
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


@dataclass(frozen=True, slots=True)
class QueuedBatch:
    """A batch that waits to be acknowledged."""

    rows: int
    message: agent_pb2.CpiBatch

    @property
    def key(self) -> tuple[str, int]:
        """(spool_id, sequence)."""
        return self.message.spool_id, self.message.sequence


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """What waits now, and what was dropped ever (persisted in the spool)."""

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    dropped_batches: int = 0
    dropped_rows: int = 0


class BatchQueue(Protocol):
    """Where the uplink takes batches from. All calls but `counts` may block, and come one at a time."""

    @property
    def spool_id(self) -> str:
        """The incarnation that new batches are numbered in."""

    def begin_stream(self) -> None:
        """Start over: all that is not acknowledged is to be fetched again."""

    def fetch(self, limit: int) -> list[QueuedBatch]:
        """Return up to `limit` batches not fetched since `begin_stream`, in the order to send them."""

    def acknowledge(self, spool_id: str, ranges: Iterable[tuple[int, int]]) -> int:
        """Forget these batches (ranges include both ends). Returns how many there were."""

    def counts(self) -> QueueCounts:
        """Return what waits; never blocks."""


class Spool:
    """The agent's queue. Safe to use from several threads; any call but `counts` may wait for the disk.

    Errors of the disk at run time never propagate: batches are dropped and counted, and the file is opened again
    at the next append.
    """

    def __init__(
        self, path: Path, *, max_bytes: int, boot_id: str, warn: Callable[[str], None] | None = None
    ) -> None:
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
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._trusted = True
        self._is_closed = False
        self._spool_id = uuid.uuid4().hex
        self._next_sequence = 1
        self._boundary = 0  # batches up to this id are of former incarnations
        self._batches = self._rows = self._bytes = 0
        self._dropped_batches = self._dropped_rows = 0
        self._mark = self._live = self._recent = self._old = 0  # how far this stream has fetched, by id
        try:
            self._open()
        except (sqlite3.Error, OSError) as error:
            self._close()
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in _FULL or getattr(error, "errno", 0) == errno.ENOSPC:
                self._trusted = False
                self._warn(f"{path}: the disk is full; batches are dropped until there is room")
                return
            if code == sqlite3.SQLITE_BUSY:
                raise UnavailableError(
                    f"{path}: the spool is in use; is another whitepanda agent running?"
                ) from error
            raise UnavailableError(
                f"{path}: cannot open the spool: {error}; check agent.state_dir and its owner"
            ) from error

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
    ) -> int:
        """Queue windows, as several batches where they are too many for one.

        Returns:
            The sequence number of the last batch; 0 where nothing was queued (no windows, or no disk).

        """
        chunks = [windows[at : at + max_rows] for at in range(0, len(windows), max_rows)]
        with self._lock:
            for attempt in () if self._is_closed else (1, 2):
                try:
                    if self._db is None:
                        self._open()
                    return self._insert(chunks, max_batch_bytes - ENVELOPE_BYTES)
                except (sqlite3.Error, OSError) as error:
                    self._failed(error, make_room=attempt == 1)
            self._dropped_batches += len(chunks)
            self._dropped_rows += len(windows)
            return 0

    def begin_stream(self) -> None:
        """From here on everything queued so far is backlog, and what comes is live."""
        with self._lock:
            self._mark = self._live = self._last_id()
            self._recent = self._boundary
            self._old = 0

    def fetch(self, limit: int) -> list[QueuedBatch]:
        """Return up to `limit` batches not fetched in this stream.

        Live ones come first; of the backlog, this incarnation's come before those of former ones; each in the
        order of arrival.
        """
        with self._lock:
            if self._db is None:
                return []
            try:
                live = self._select(self._live, _MAX_SEQUENCE, limit)
                self._live = max((row[0] for row in live), default=self._live)
                recent = self._select(self._recent, self._mark, limit - len(live))
                self._recent = max((row[0] for row in recent), default=self._recent)
                old = self._select(self._old, self._boundary, limit - len(live) - len(recent))
                self._old = max((row[0] for row in old), default=self._old)
                found = [(row, row in live) for row in (*live, *recent, *old)]
                return [batch for row, is_live in found if (batch := self._unpack(row, backlog=not is_live))]
            except sqlite3.Error as error:
                self._failed(error)
                return []

    def acknowledge(self, spool_id: str, ranges: Iterable[tuple[int, int]]) -> int:
        """Forget these batches. Returns how many there were."""
        with self._lock:
            if self._db is None:
                return 0
            try:
                removed = 0
                with self._transaction(self._db):
                    for first, last in ranges:
                        cursor = self._db.execute(
                            "DELETE FROM batches WHERE spool_id = ? AND sequence BETWEEN ? AND ?"
                            " RETURNING rows, bytes",
                            (spool_id, min(first, _MAX_SEQUENCE), min(last, _MAX_SEQUENCE)),
                        )
                        removed += self._forget(cursor.fetchall())
                if removed:
                    # Not `execute`: this pragma works page by page, and Python steps it only once there.
                    self._db.executescript("PRAGMA incremental_vacuum(1024)")
            except sqlite3.Error as error:
                self._failed(error)
                return 0
            return removed

    def counts(self) -> QueueCounts:
        """Return what waits and what was dropped; never blocks."""
        return QueueCounts(self._batches, self._rows, self._bytes, self._dropped_batches, self._dropped_rows)

    def close(self) -> None:
        """Close the file for good; may be called twice. What is appended afterwards is dropped."""
        with self._lock:
            self._is_closed = True
            self._close()

    # -- below: the lock is held -------------------------------------------------------------

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._connect()
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _BROKEN:
                raise
            self._move_aside(error)
            self._connect()

    def _connect(self) -> None:
        # Batches tell which VMs run here: the file is the agent's alone, and so are SQLite's files beside it.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._db = db = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        for pragma in (
            "auto_vacuum=INCREMENTAL",
            "locking_mode=EXCLUSIVE",
            "journal_mode=WAL",
            "synchronous=NORMAL",
        ):
            db.execute(f"PRAGMA {pragma}").fetchall()
        db.execute(f"PRAGMA journal_size_limit={8 << 20}").fetchall()
        db.executescript(_SCHEMA)
        with self._transaction(db):
            self._load(db)

    def _load(self, db: sqlite3.Connection) -> None:
        meta = dict(db.execute("SELECT key, value FROM meta"))
        totals = db.execute(
            "SELECT count(*), total(rows), total(bytes + ?) FROM batches", (ROW_OVERHEAD_BYTES,)
        )
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
        db.executemany(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", rows
        )

    def _insert(self, chunks: Sequence[Sequence[CpiWindow]], max_payload: int) -> int:
        assert self._db is not None  # noqa: S101 - opened by the caller
        last = 0
        with self._transaction(self._db):
            waiting = list(reversed(chunks))
            while waiting:
                chunk = waiting.pop()
                batch = encode(chunk, spool_id=self._spool_id, sequence=self._next_sequence)
                payload = batch.SerializeToString()
                if len(payload) > max_payload and len(chunk) > 1:
                    half = len(chunk) // 2
                    waiting += [chunk[half:], chunk[:half]]
                    continue
                last = self._next_sequence
                self._next_sequence += 1
                self._db.execute(
                    "INSERT INTO batches (spool_id, sequence, rows, bytes, crc32, payload)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    (self._spool_id, last, len(chunk), len(payload), zlib.crc32(payload), payload),
                )
                self._batches += 1
                self._rows += len(chunk)
                self._bytes += len(payload) + ROW_OVERHEAD_BYTES
            self._drop_oldest(self._db, self._bytes - self._max_bytes)
            self._save(self._db)
        return last

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

    def _select(self, after: int, until: int, limit: int) -> list[tuple[int, int, int, bytes]]:
        assert self._db is not None  # noqa: S101 - checked by the caller
        if limit <= 0 or after >= until:
            return []
        query = "SELECT id, rows, crc32, payload FROM batches WHERE id > ? AND id <= ? ORDER BY id LIMIT ?"
        return self._db.execute(query, (after, until, limit)).fetchall()

    def _unpack(self, row: tuple[int, int, int, bytes], *, backlog: bool) -> QueuedBatch | None:
        assert self._db is not None  # noqa: S101 - checked by the caller
        identity, rows, crc32, payload = row
        message = _parse(payload) if zlib.crc32(payload) == crc32 else None
        if message is None:
            self._warn(f"{self._path}: a batch of {rows} windows was damaged on disk and is dropped")
            gone = self._db.execute(
                "DELETE FROM batches WHERE id = ? RETURNING rows, bytes", (identity,)
            ).fetchall()
            self._dropped_batches += self._forget(gone)
            self._dropped_rows += rows
            return None
        message.backlog = backlog
        return QueuedBatch(rows, message)

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

    def _failed(self, error: Exception, *, make_room: bool = False) -> None:
        """After an error: make room on a full disk, move a broken file aside, else distrust the numbers."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _FULL and self._db is not None:
            self._warn(
                f"{self._path}: the disk is full; {'the oldest' if make_room else 'new'} batches are dropped"
            )
            if make_room:
                self._make_room(self._db)
            return
        self._trusted = False
        self._close()
        if code in _BROKEN:
            with contextlib.suppress(OSError):
                self._move_aside(error)
        else:
            self._warn(f"{self._path}: {error}; batches are dropped until the spool can be opened again")

    def _make_room(self, db: sqlite3.Connection) -> None:
        try:
            with self._transaction(db):
                self._drop_oldest(db, max(self._bytes // 8, 1))
                self._save(db)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error:
            return  # the new batch is dropped then, and counted

    def _move_aside(self, error: Exception) -> None:
        self._close()
        aside = self._path.with_name(self._path.name + ".corrupt")
        self._warn(
            f"{self._path}: broken ({error}); moved to {aside}, its batches are lost, a new spool begins"
        )
        self._path.replace(aside)
        for suffix in ("-wal", "-shm", "-journal"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self._dropped_batches += self._batches
        self._dropped_rows += self._rows
        self._batches = self._rows = self._bytes = 0
        self._mark = self._live = self._recent = self._old = 0

    def _close(self) -> None:
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None


def _parse(payload: bytes) -> agent_pb2.CpiBatch | None:
    try:
        return agent_pb2.CpiBatch.FromString(payload)
    except DecodeError:
        return None
