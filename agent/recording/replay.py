"""Replay: a trace or a recorded host through the same uplink and ingest as live samples.

The spool_id of a replay is a digest of the files' content and the options, so central recognises batches of an earlier
stream or run, and a repeated replay counts nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agent.antagonists.decide_victims import Decisions
from agent.antagonists.vm_events import VmEvent
from agent.config import AgentConfig, AgentSection, UplinkSection, WindowsSection
from agent.recording.playback import Playback, cloud_white_of, read_errors
from agent.sampling.windows import CpiWindow
from agent.uplink.batches import encode
from agent.uplink.client import Uplink
from agent.uplink.outgoing import Outgoing
from agent.uplink.queue import QueueCounts, QueuedBatch
from agent.uplink.stream import Timing
from whitepanda.common.errors import UnavailableError
from whitepanda.common.protocol import MAX_BATCH_ROWS
from whitepanda.v1 import agent_pb2

if TYPE_CHECKING:
    from collector.traces.google import TraceBatch, TraceReader


_BATCH_EVENTS = 500  # central takes 1000
_KEPT_EVENTS = 10_000


@dataclass(slots=True)
class ReplayResult:
    """Where the rows are. `None`: nothing was sent, or central's protocol is too old to say."""

    rows_read: int = 0
    without_cpi: int = 0
    rejected_by_reader: dict[str, int] = field(default_factory=dict)
    rows_sent: int = 0
    batches_sent: int = 0
    rows_acknowledged: int | None = None
    rows_accepted: int | None = None
    rows_already_there: int | None = None
    rejected_by_central: dict[str, int] = field(default_factory=dict)
    rejected_batches: dict[str, int] = field(default_factory=dict)
    rejected_batch_rows: int = 0
    streams: int = 0
    seconds: float = 0.0
    spool_id: str = ""

    @property
    def rows_per_s(self) -> float:
        """Rows read, checked, sent and acknowledged per second, from end to end."""
        return self.rows_read / self.seconds if self.seconds else 0.0

    def problems(self) -> list[str]:
        """Check that the counts add up; one line for each that does not."""
        found = []
        rejected = sum(self.rejected_by_reader.values())
        if self.rows_read != self.rows_sent + rejected:
            found.append(f"{self.rows_read} rows read, but {self.rows_sent} sent and {rejected} rejected before")
        if self.rows_acknowledged is not None and self.rows_acknowledged != self.rows_sent:
            found.append(f"{self.rows_sent} rows sent, but {self.rows_acknowledged} acknowledged")
        if self.rows_already_there is not None and self.rows_already_there < 0:
            found.append(f"central counts {-self.rows_already_there} rows more than were acknowledged")
        return found


class Rows:
    """What is replayed. `total_rows`: rows in the files, None if not known."""

    def __init__(self, total_rows: int | None = None) -> None:
        self.total_rows = total_rows
        #: What became of the rows; the reader's counts are complete after the last batch.
        self.result = ReplayResult()
        #: Defects of files that are usable nevertheless.
        self.warnings: list[str] = []
        #: Changes of verdicts, the last 10,000.
        self.events: deque[VmEvent] = deque(maxlen=_KEPT_EVENTS)

    def batches(self, spool_id: str) -> Iterator[agent_pb2.CpiBatch]:
        """Yield all batches, numbered from 1."""
        raise NotImplementedError


class TraceRows(Rows):
    """Rows of Google cluster traces (`collector.traces.google`), each on the machine that the trace names."""

    def __init__(self, reader: TraceReader, batch_rows: int = MAX_BATCH_ROWS) -> None:
        super().__init__(reader.total_rows)
        self._reader = reader
        self._batch_rows = batch_rows

    def batches(self, spool_id: str) -> Iterator[agent_pb2.CpiBatch]:
        """Yield all batches. Their borders depend on the rows alone, not on how the file was read."""
        try:
            for sequence, rows in enumerate(_rebatched(self._reader, self._batch_rows), 1):
                self._count()
                yield _trace_batch(rows, spool_id, sequence)
        finally:
            self._count()

    def _count(self) -> None:
        counts, result = self._reader.counts, self.result
        result.rows_read, result.without_cpi = counts.rows_read, counts.unusable_cpi
        result.rejected_by_reader = dict(counts.rejected)


def _rebatched(batches: Iterable[TraceBatch], size: int) -> Iterator[TraceBatch]:
    import numpy as np  # noqa: PLC0415 - an extra; recorded hosts are replayed without it

    waiting: list[TraceBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.rows
        if count < size:
            continue
        whole = type(batch).concatenate(waiting)
        full = count - count % size
        for first in range(0, full, size):
            yield whole.take(np.arange(first, first + size))
        waiting, count = [whole.take(np.arange(full, count))], count - full
    if count:
        yield type(waiting[0]).concatenate(waiting)


def _trace_batch(rows: TraceBatch, spool_id: str, sequence: int) -> agent_pb2.CpiBatch:
    """Make protobuf columns of numpy columns; one task for each (collection, instance, machine, class)."""
    import numpy as np  # noqa: PLC0415 - as above

    batch = agent_pb2.CpiBatch(spool_id=spool_id, sequence=sequence)
    keys = np.stack([rows.collection_id, rows.instance_index, rows.machine_id, rows.latency_sensitive], axis=1)
    tasks, index = np.unique(keys, axis=0, return_inverse=True)
    for collection, instance, machine, sensitive in tasks.tolist():
        batch.tasks.add(
            vm=f"{collection}-{instance}", job=str(collection), machine=str(machine), latency_sensitive=bool(sensitive)
        )
    batch.task_index.extend(index.reshape(-1).tolist())
    batch.start_unix_ns.extend(rows.start_unix_ns.tolist())
    batch.duration_ns.extend(rows.duration_ns.tolist())
    batch.cpu_usage_cores.extend(rows.cpu_usage.tolist())
    if not np.isnan(rows.cpi).all():
        batch.cpi.extend(rows.cpi.tolist())
    return batch


class RecordedRows(Rows):
    """The CPI windows of recorded hosts, made from the samples as the agent makes them. A row is a window.

    `config`: see `Playback`. `machine`: the host that importers name; "": the certificate's.
    """

    def __init__(
        self, files: Sequence[Path], *, config: AgentConfig | None = None, machine: str = "", batch_rows: int = 2000
    ) -> None:
        super().__init__()
        self._files = files
        self._config = config
        self._machine = machine
        self._batch_rows = batch_rows
        self._unsent: deque[VmEvent] = deque()
        self._outgoing = Outgoing(config.windows if config else WindowsSection())

    def batches(self, spool_id: str) -> Iterator[agent_pb2.CpiBatch]:
        """Yield all batches. Their borders depend on the windows alone; events go with them, or after the last."""
        numbers = itertools.count(1)
        waiting: list[CpiWindow] = []
        for window in itertools.chain.from_iterable(map(self._windows, self._files)):
            self.result.rows_read += 1
            self.result.without_cpi += window.cpi is None
            waiting.append(window)
            if len(waiting) == self._batch_rows:
                yield self._batch(waiting, spool_id, next(numbers))
                waiting = []
        while waiting or self._unsent:
            yield self._batch(waiting, spool_id, next(numbers))
            waiting = []

    def _windows(self, file: Path) -> Iterator[CpiWindow]:
        """Yield a recording's windows; detect victims at each tick, as the agent does."""
        config = self._config or AgentConfig(agent=AgentSection())
        cloud_white = cloud_white_of(config.cloud_white)
        decisions = Decisions(config, cloud_white, None)
        with Playback(file, self._config) as playback:
            pipeline = playback.pipeline
            for tick, windows in playback.ticks():
                ended = windows
                if cloud_white is not None:
                    try:
                        cloud_white.tick(pipeline.table, pipeline.host_rates, tick.mono_ns, tick.unix_ns)
                        decisions.tick(pipeline.table, tick.mono_ns, tick.unix_ns)
                    except Exception as error:  # noqa: BLE001 - as in the agent, a failure costs verdicts and no row
                        if (warning := f"the search for victims failed: {error!r}") not in self.warnings:
                            self.warnings.append(warning)
                    events = decisions.events.take()
                    self.events.extend(events)
                    self._unsent.extend(events)
                    ended = decisions.with_verdicts(ended)
                yield from ended
            yield from pipeline.windows.flush()
            if playback.cut_off:
                self.warnings.append(playback.cut_off)

    def _batch(self, windows: list[CpiWindow], spool_id: str, sequence: int) -> agent_pb2.CpiBatch:
        events = [self._unsent.popleft() for _ in range(min(len(self._unsent), _BATCH_EVENTS))]
        batch = encode(self._outgoing.prepare(windows), spool_id=spool_id, sequence=sequence, events=events)
        for task in batch.tasks:
            task.machine = self._machine
        for event in batch.events:
            event.machine = self._machine
        return batch


def is_recording(file: Path) -> bool:
    """Whether a file is a recording (JSON lines), not a trace, by its first byte; InputError: it cannot be read."""
    with read_errors(file), file.open("rb") as stream:
        return stream.read(1) == b"{"


def spool_id_of(files: Sequence[Path], options: object) -> str:
    """Name a replay by its files' content and all options that change what is sent."""
    digest = hashlib.sha256(f"whitepanda replay 1 {options!r}".encode())
    for file in files:
        with file.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)  # its content
        digest.update(b"\0")
    return f"replay-{digest.hexdigest()[:32]}"


Progress = Callable[[ReplayResult], None]


class _ReplayQueue:
    """A `BatchQueue` over rows: holds unacknowledged batches, and reads more as they are sent."""

    def __init__(self, rows: Rows, spool_id: str, rows_per_s: float) -> None:
        self.spool_id = spool_id
        self._result = rows.result
        self._batches = rows.batches(spool_id)
        self._exhausted = False
        self._held: dict[int, QueuedBatch] = {}
        self._again: list[QueuedBatch] = []
        self._rows_per_s = rows_per_s
        self._started_s = 0.0

    @property
    def is_finished(self) -> bool:
        return self._exhausted and not self._held

    def begin_stream(self) -> None:
        self._again = [self._held[sequence] for sequence in sorted(self._held, reverse=True)]

    def fetch(self, limit: int) -> list[QueuedBatch]:
        found = [self._again.pop() for _ in range(min(limit, len(self._again)))]
        self._started_s = self._started_s or time.monotonic()
        allowed = (time.monotonic() - self._started_s) * self._rows_per_s if self._rows_per_s else math.inf
        while len(found) < limit and not self._exhausted and self._result.rows_sent <= allowed:
            message = next(self._batches, None)
            if message is None:
                self._exhausted = True
                break
            batch = QueuedBatch(len(message.task_index), message)
            self._held[message.sequence] = batch
            self._result.rows_sent += batch.rows
            self._result.batches_sent += 1
            found.append(batch)
        return found

    def acknowledge(self, spool_id: str, ranges: Iterable[tuple[int, int]]) -> int:
        before = len(self._held)
        if spool_id == self.spool_id:
            for first, last in ranges:
                self._held = {held: batch for held, batch in self._held.items() if not first <= held <= last}
        return before - len(self._held)

    def counts(self) -> QueueCounts:
        return QueueCounts(batches=len(self._held))


def read_all(rows: Rows, on_progress: Progress = lambda _result: None) -> ReplayResult:
    """Read and count only: what `send` would send."""
    started_s = time.monotonic()
    result = rows.result
    for batch in rows.batches(""):
        result.rows_sent += len(batch.task_index)
        result.batches_sent += 1
        result.seconds = time.monotonic() - started_s
        on_progress(result)
    result.seconds = time.monotonic() - started_s
    on_progress(result)
    return result


async def send(
    rows: Rows,
    section: UplinkSection,
    hello: Callable[[], agent_pb2.Hello],
    *,
    spool_id: str,
    rows_per_s: float = 0.0,
    patience_s: float = 60.0,
    on_progress: Progress = lambda _result: None,
) -> ReplayResult:
    """Send all rows to central and wait until each batch is acknowledged, over reconnects.

    `section` has central's address and the TLS files: an importer's for traces, a host's own for its recording; `hello`
    a name in that certificate and the platform of the rows; `spool_id` is of `spool_id_of`. `rows_per_s`: upper limit,
    0 none. `patience_s`: how long central may be away. `on_progress` is called a few times per second.

    InputError: a file is broken; what was sent before counts, once. TlsError, UnavailableError: central refuses the
    connection, or is away for too long.
    """
    started_s = time.monotonic()
    result = rows.result
    result.spool_id = spool_id
    queue = _ReplayQueue(rows, spool_id, rows_per_s)
    uplink = Uplink(section, hello, queue, give_up_after_s=patience_s, tls_prefix="--", timing=Timing(poll_s=0.05))
    totals = uplink.totals
    task = asyncio.create_task(uplink.run())
    try:
        while True:
            is_finished = queue.is_finished
            result.streams = uplink.connections
            result.rows_acknowledged, result.rows_accepted = totals.acknowledged_rows, totals.accepted_rows
            result.rejected_by_central = dict(totals.rejected_rows)
            result.rejected_batches = dict(totals.rejected_batches)
            result.rejected_batch_rows = totals.rejected_batch_rows
            result.rows_already_there = totals.sent_rows - totals.accepted_rows
            result.seconds = time.monotonic() - started_s
            on_progress(result)
            if is_finished:
                break
            await asyncio.wait({task}, timeout=0.05)
            if task.done():
                task.result()
                raise UnavailableError(f"the uplink to {section.address} ended early")
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
        await uplink.close()
    return result
