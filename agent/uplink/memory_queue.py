"""What replaces the spool's disk while it cannot be written: a small queue in memory, and a reserve file.

The queue has its own spool id, drawn by each process, so its numbers need no disk to be unique. The reserve is
room that the spool gives up when the disk is full, so that what central has acknowledged can still be deleted.
"""

import contextlib
import errno
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from agent.sampling.windows import CpiWindow
from agent.uplink.batches import Report, pieces

#: Of payload kept in memory.
MEMORY_BYTES = 8 << 20
#: Enough for a delete of many batches, and for a checkpoint of the log.
RESERVE_BYTES = 1 << 20
_MAX_RANGES = 10_000


class Waiting(NamedTuple):
    """One batch in memory."""

    sequence: int
    rows: int
    payload: bytes


class MemoryQueue:
    """Batches that found no disk, the newest up to a cap. Not locked: the spool's lock is held."""

    def __init__(self, max_bytes: int) -> None:
        self.spool_id = uuid.uuid4().hex
        self.rows = self.bytes = 0
        #: The last number that was given; 0: none yet.
        self.last_sequence = 0
        self._max_bytes = max_bytes
        self._batches: dict[int, Waiting] = {}  # by sequence, in order
        self._fetched = 0  # up to this sequence in this stream
        self._mark = 0  # up to this sequence they are older than this stream

    def __len__(self) -> int:
        return len(self._batches)

    def append(
        self, chunks: Iterable[Sequence[CpiWindow]], max_payload: int, events: Sequence[Report] = ()
    ) -> list[Waiting]:
        """Queue windows and events. Returns the batches that had to go: the oldest."""
        # All or nothing, as on the disk: it may be impossible to encode one of them.
        new = [Waiting(*one) for one in pieces(chunks, self.spool_id, self.last_sequence + 1, max_payload, events)]
        for batch in new:
            self.last_sequence = batch.sequence
            self._batches[batch.sequence] = batch
            self.rows += batch.rows
            self.bytes += len(batch.payload)
        dropped = []
        while self.bytes > self._max_bytes:
            dropped.append(self.pop(next(iter(self._batches))))
        return dropped

    def begin_stream(self) -> None:
        """All is to be fetched again."""
        self._fetched, self._mark = 0, self.last_sequence

    def fetch(self, limit: int) -> list[tuple[Waiting, bool]]:
        """Return up to `limit` batches not fetched in this stream, each with whether it is backlog."""
        found = self.unfetched()[: max(0, limit)]
        if found:
            self._fetched = found[-1].sequence
        return [(batch, batch.sequence <= self._mark) for batch in found]

    def unfetched(self, *, everything: bool = False) -> list[Waiting]:
        """Return what this stream has not fetched, or everything."""
        return [b for sequence, b in self._batches.items() if everything or sequence > self._fetched]

    def acknowledge(self, spool_id: str, ranges: Iterable[tuple[int, int]]) -> int:
        """Forget these. Returns how many there were."""
        if spool_id != self.spool_id:
            return 0
        gone = {s for first, last in ranges for s in self._batches if first <= s <= last}
        for sequence in gone:
            self.pop(sequence)
        return len(gone)

    def pop(self, sequence: int) -> Waiting:
        """Remove a batch."""
        batch = self._batches.pop(sequence)
        self.rows -= batch.rows
        self.bytes -= len(batch.payload)
        return batch


class Acknowledged:
    """What is to be deleted from the disk, until that has worked: ranges of numbers per spool id.

    Bounded: what does not fit is forgotten; a later stream sends it once more, and central counts it once.
    """

    def __init__(self) -> None:
        self._ranges: dict[str, list[tuple[int, int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __contains__(self, key: tuple[str, int]) -> bool:
        return any(first <= key[1] <= last for first, last in self._ranges.get(key[0], ()))

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        return ((name, first, last) for name, ranges in self._ranges.items() for first, last in ranges)

    def add(self, spool_id: str, ranges: Iterable[tuple[int, int]]) -> None:
        """Take ranges that include both ends; neighbours become one."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted([*self._ranges.get(spool_id, ()), *ranges]):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        if merged:
            self._ranges[spool_id] = merged[-_MAX_RANGES:]

    def clear(self) -> None:
        """Forget all: they are deleted."""
        self._ranges.clear()


class Reserve:
    """Room on the spool's disk, held by a file without content."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def release(self) -> bool:
        """Give the room up. Returns whether there was any."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    def take(self) -> bool:
        """Hold the room; False: the disk is full, with less than twice as much free."""
        if self._path.exists():
            return True
        try:
            disk = os.statvfs(self._path.parent)
        except OSError:
            return True  # an attempt to write will show it
        if disk.f_bavail * disk.f_frsize < 2 * RESERVE_BYTES:
            return False
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(handle, 0, RESERVE_BYTES)
            finally:
                os.close(handle)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._path.unlink()
            return error.errno not in (errno.ENOSPC, errno.EDQUOT)  # not every file system can reserve
        return True
