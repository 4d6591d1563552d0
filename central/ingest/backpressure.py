"""Backpressure: a stream that sends faster than the journal commits is not read, after it was asked to slow down."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from central.config import IngestSection
from central.ingest.peers import Peer
from central.ingest.sessions import HostStream
from central.journal.tables import HostRecord
from central.journal.writer import Journal
from central.validation.wire_columns import Head, Layout
from whitepanda.v1 import agent_pb2

_PENDING_PER_STREAM = 64  # twice what an agent has in flight by default
_PENDING_BYTES_PER_STREAM = 1 << 20  # or one larger message: the most of one host in a commit
_OWED_PER_STREAM = 1024  # batches whose acknowledgement the host has not read
_PENDING_BYTES = 128 << 20  # of all streams: many large batches must not eat the memory
_SLOW_DOWN_MS = 1000


@dataclass(slots=True, eq=False)
class Flow:
    """What one stream has under way."""

    stream: HostStream
    record: HostRecord
    peer: Peer
    pending: int = 0
    pending_bytes: int = 0
    pace_ms: int = 0  # least time between its batches, by its quota
    layout: Layout | None = None  # of the last batch, if all of it was good
    head: Head | None = None  # of the last batch, which the next one may leave out
    noted_jobs: tuple[frozenset[str], frozenset[str]] | None = None  # the last batch's, the stream's then
    relieved: asyncio.Event = field(default_factory=asyncio.Event)  # for its own limit; set while it is not waited for
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    #: Set if the host does not read.
    unread: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def __post_init__(self) -> None:
        self.idle.set()

    def is_full(self) -> bool:
        """Whether nothing more of this stream is read for now."""
        return (
            self.pending >= _PENDING_PER_STREAM
            or self.pending_bytes >= _PENDING_BYTES_PER_STREAM
            or self.stream.owed >= _OWED_PER_STREAM
        )


class Backpressure:
    """The open streams' `flows`, what they have under way (`pending` batches, `pending_bytes`), and those that wait."""

    def __init__(self, section: IngestSection, journal: Journal) -> None:
        self.flows: set[Flow] = set()
        self.pending = 0
        self.pending_bytes = 0
        self._most = section.max_pending_batches
        self._many = max(2, self._most // 2)  # else each lone batch would have its stream slow down
        self._is_busy = False
        self._journal = journal
        self._waiting: deque[asyncio.Future[None]] = deque()  # streams that wait for room, in their order
        journal.on_failure.append(self._send_pace_to_all)

    def is_full_for(self, flow: Flow) -> bool:
        """Return whether a stream has to `wait` before it is read."""
        return flow.is_full() or self._is_full()

    async def wait(self, flow: Flow) -> None:
        """Wait until a stream may be read."""
        while flow.is_full():
            flow.relieved.clear()
            await flow.relieved.wait()
        await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        """Wait until more may be read, in order of arrival; each lets the next one go if there is room."""
        queue = self._waiting.append
        while self._is_full():
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            queue(turn)
            queue = self._waiting.appendleft  # a stream that finds no room after all keeps its place
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._let_next_go()
                raise
            self._let_next_go()

    def begin(self, flow: Flow, size: int) -> None:
        """Note that a batch of `size` bytes is on its way to the disk."""
        self.pending_bytes += size
        flow.pending += 1
        flow.pending_bytes += size
        flow.idle.clear()
        self.pending += 1
        self._send_pace(flow)

    def end(self, flow: Flow, size: int) -> None:
        """Note that the batch is on the disk, or will never be."""
        self.pending_bytes -= size
        flow.pending -= 1
        flow.pending_bytes -= size
        self.pending -= 1
        if not flow.pending:
            flow.idle.set()
        flow.relieved.set()
        if self._waiting:
            self._let_next_go()
        if flow.stream.min_batch_interval_ms:
            self._send_pace(flow)

    def _let_next_go(self) -> None:
        if self._is_full():
            return  # the next batch that ends comes here again
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # its stream is still there
                turn.set_result(None)
                return

    def _is_full(self) -> bool:
        return self.pending >= self._most or self.pending_bytes >= _PENDING_BYTES

    def _send_pace(self, flow: Flow) -> None:
        """Send a stream its pace, if it changed; while commits fail it is to slow down too.

        Streams slow down at half of what may be pending, until it is a quarter: with one limit, each batch near it
        would send its agent a message.
        """
        if self.pending >= self._many or self.pending_bytes >= _PENDING_BYTES // 2:
            self._is_busy = True
        elif self.pending <= self._many // 2 and self.pending_bytes <= _PENDING_BYTES // 4:
            self._is_busy = False
        pace_ms = max(_SLOW_DOWN_MS if self._is_busy or self._journal.failure else 0, flow.pace_ms)
        if flow.stream.min_batch_interval_ms == pace_ms:
            return
        slow_down = agent_pb2.SlowDown(min_batch_interval_ms=pace_ms)
        if flow.stream.send(agent_pb2.CentralMessage(slow_down=slow_down)):
            flow.stream.min_batch_interval_ms = pace_ms

    def _send_pace_to_all(self, _failure: str) -> None:
        for flow in self.flows:
            self._send_pace(flow)
