"""One stream to central, from Hello to its end: what is sent when, and what central's messages mean."""

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from agent.antagonists.update_limits import Refusals, has_more_parts
from agent.config import UplinkSection
from agent.uplink.batches import in_stream
from agent.uplink.queue import ENVELOPE_BYTES, BatchQueue, QueuedBatch
from whitepanda.common import log
from whitepanda.common.protocol import (
    DEFAULT_HEARTBEAT_MS,
    MAX_BATCH_ROWS,
    MAX_MESSAGE_BYTES,
    MIN_PROTOCOL_VERSION,
    PROTOCOL_VERSION,
)
from whitepanda.common.texts import printable
from whitepanda.v1 import agent_pb2

#: Takes an update of coefficients. What it returns says later whether it was taken; None: it was.
Taker = Callable[[agent_pb2.CoefficientUpdate], asyncio.Future[bool] | None]

#: Batches in flight until central has acknowledged some.
FIRST_WINDOW = 4
_FETCH = 4  # batches read from the queue at a time: live ones wait for at most this many of the backlog
_MAX_SLOW_DOWN_S = 600.0
_LEAST_BATCH_BYTES = 1 << 16  # a window with the longest names takes a tenth; ingest.max_message_bytes allows no less
# Of an acknowledgement: ranges, reasons that are counted apart, characters of a reason and of what explains it.
_MAX_RANGES, _MAX_REASONS, _MAX_REASON, _MAX_DETAIL = 1000, 32, 64, 200
_MAX_PARTS_PER_JOB = 4  # of a message: statistics, coefficient, tag, removed
_OTHER_PARTS = 8 + 2 * _MAX_RANGES
_LOG = log.get("uplink")


@dataclass(frozen=True, slots=True)
class Timing:
    """Patience, in seconds. Tests shorten it."""

    welcome_s: float = 60.0  # a central that does not answer the Hello for this long is given up
    acknowledgement_s: float = 60.0  # a central that acknowledges nothing for this long is given up
    poll_s: float = 1.0  # how often jobs and the state are checked when nothing happens
    stable_s: float = 30.0  # after a stream that lived this long, back-off starts again


@dataclass(slots=True)
class AckTotals:
    """What became of the batches since the start of this process.

    Acknowledged is what has left the queue, rejected ones included: `sent_rows` leaves these out.
    Acknowledged rows that are in no other count were in central before.
    """

    acknowledged_batches: int = 0
    acknowledged_rows: int = 0
    accepted_rows: int = 0
    rejected_rows: Counter[str] = field(default_factory=Counter)  # by reason
    rejected_batches: Counter[str] = field(default_factory=Counter)
    whole_batches: int = 0  # rejected whole, and their rows
    rejected_batch_rows: int = 0
    has_low_limit: bool = False  # whether the log has a limit that is not obeyed
    ignored_acknowledgements: int = 0
    implausible_acknowledgements: int = 0
    coefficient_updates: int = 0

    @property
    def all_rejected_rows(self) -> int:
        """Rows that were rejected, one by one or with their batch."""
        return self.rejected_rows.total() + self.rejected_batch_rows

    @property
    def sent_rows(self) -> int:
        """Rows that central took."""
        return self.acknowledged_rows - self.all_rejected_rows

    def acknowledge(self, rows: Collection[int]) -> None:
        """Count batches that leave the queue, by their rows."""
        self.acknowledged_batches += len(rows)
        self.acknowledged_rows += sum(rows)

    def reject_batch(self, rows: int) -> None:
        """Count a batch that was rejected whole."""
        self.whole_batches += 1
        self.rejected_batch_rows += rows


@dataclass(slots=True)
class Shared:
    """What an uplink and its streams share. `in_thread` runs a blocking function of the queue off the loop."""

    section: UplinkSection
    hello: Callable[[], agent_pb2.Hello]
    queue: BatchQueue
    on_coefficients: Taker | None
    refusals: Refusals
    timing: Timing
    totals: AckTotals
    in_thread: Callable[..., Coroutine[Any, Any, Any]]


class StreamError(Exception):
    """Central is there but does not keep to the protocol; the text continues "central ADDRESS"."""


class UplinkStream:
    """Drives one call with raw bytes as answers."""

    def __init__(self, call: Any, shared: Shared) -> None:
        self._call = call
        self._shared = shared
        self._queue, self._totals, self._timing = shared.queue, shared.totals, shared.timing
        self._max_parts = _MAX_PARTS_PER_JOB * shared.section.max_jobs + _OTHER_PARTS
        self._taking: asyncio.Future[bool] | None = None
        self._lacks_an_update = False
        self._window = self._first_window = min(FIRST_WINDOW, shared.section.in_flight_batches)
        self._in_flight: dict[tuple[str, int], int] = {}
        self._fetched: deque[QueuedBatch] = deque()
        self._welcomed = asyncio.Event()
        self._heartbeat_s = DEFAULT_HEARTBEAT_MS / 1000
        self._last_message_s = self._last_batch_s = self._last_ack_s = 0.0
        self._last_head = b""  # of the last batch
        self._reported: tuple[tuple[str, ...], int] = ((), 0)  # jobs and the version of coefficients
        #: Set when the queue has something new.
        self.wake = asyncio.Event()
        #: Least time between batches, as central demands.
        self.min_interval_s = 0.0
        self.max_batch_rows = MAX_BATCH_ROWS
        self.max_batch_bytes = MAX_MESSAGE_BYTES
        #: Whether central said anything, and whether it acknowledged anything.
        self.heard = asyncio.Event()
        self.acknowledged = False

    async def run(self) -> None:
        """Talk until the stream ends. StreamError: central takes or acknowledges nothing, or sends garbage."""
        await self._shared.in_thread(self._queue.begin_stream)
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            expected = asyncio.CancelledError | grpc.RpcError | asyncio.InvalidStateError
            if isinstance(result, BaseException) and not isinstance(result, expected):
                raise result

    # -- sending ---------------------------------------------------------------------------------

    async def _write(self) -> None:
        hello = self._shared.hello()
        hello.spool_id = self._queue.spool_id
        hello.sent_unix_ns = time.time_ns()
        hello.protocol_version = PROTOCOL_VERSION
        hello.min_protocol_version = MIN_PROTOCOL_VERSION
        self._reported = (tuple(hello.jobs), hello.coefficient_version)
        await self._send(agent_pb2.AgentMessage(hello=hello))
        try:
            await asyncio.wait_for(self._welcomed.wait(), self._timing.welcome_s)
        except TimeoutError:
            raise StreamError(f"has sent no Welcome for {self._timing.welcome_s:g} s") from None
        while True:
            self.wake.clear()
            now = _now()
            if self._in_flight and now - self._last_ack_s > self._timing.acknowledgement_s:
                raise StreamError(f"has acknowledged nothing for {self._timing.acknowledgement_s:g} s")
            await self._send_heartbeat(now)
            due = self._last_batch_s + self.min_interval_s
            batch = await self._next_batch() if now >= due else None
            if batch is not None:
                await self._send_batch(batch)
                continue
            pause = max(due - now, 0.001) if due > now else self._timing.poll_s
            # Not `wait_for`: before Python 3.12 it loses a cancellation that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(pause, self._timing.poll_s, self._heartbeat_s)):
                    await self.wake.wait()

    async def _send(self, message: agent_pb2.AgentMessage) -> None:
        try:
            async with asyncio.timeout(self._timing.acknowledgement_s):
                await self._call.write(message)
        except TimeoutError:  # it reads no further, and the other replicas may
            raise StreamError(f"has taken nothing for {self._timing.acknowledgement_s:g} s") from None
        self._last_message_s = _now()

    async def _send_heartbeat(self, now: float) -> None:
        """Send one when it is due, or when jobs or the version of the coefficients changed."""
        hello = self._shared.hello()
        state = (tuple(hello.jobs), hello.coefficient_version)
        if state == self._reported and now - self._last_message_s < self._heartbeat_s:
            return
        self._reported = state
        counts = self._queue.counts()
        heartbeat = agent_pb2.Heartbeat(
            sent_unix_ns=time.time_ns(),
            coefficient_version=hello.coefficient_version,
            spooled_batches=counts.batches,
            dropped_batches=counts.dropped_batches,
            jobs=hello.jobs,
        )
        await self._send(agent_pb2.AgentMessage(heartbeat=heartbeat))

    async def _next_batch(self) -> QueuedBatch | None:
        room = self._window - len(self._in_flight)
        if room <= 0:
            return None
        if not self._fetched:
            self._fetched.extend(await self._shared.in_thread(self._queue.fetch, min(room, _FETCH)))
        return self._fetched.popleft() if self._fetched else None

    async def _send_batch(self, batch: QueuedBatch) -> None:
        size = batch.message.ByteSize() + ENVELOPE_BYTES
        if size > self.max_batch_bytes or batch.rows > self.max_batch_rows:
            # Spooled under another central's limits; sending it would only end the stream, time and again.
            sequence = batch.message.sequence
            await self._shared.in_thread(self._queue.acknowledge, batch.message.spool_id, [(sequence, sequence)])
            self._totals.acknowledge([batch.rows])
            self._totals.reject_batch(batch.rows)
            limits = f"central takes {self.max_batch_rows} rows, {self.max_batch_bytes} bytes"
            detail = f"{batch.rows} rows, {size} bytes; {limits}"
            what = "the agent discards a batch that is above central's limits"
            self._reject(self._totals.rejected_batches, "above_limits", 1, detail, what)
            return
        if not self._in_flight:
            self._last_ack_s = _now()
        self._in_flight[batch.key] = batch.rows
        self._last_batch_s = _now()
        message, self._last_head = in_stream(batch.message, self._last_head)
        await self._send(message)

    # -- receiving -------------------------------------------------------------------------------

    async def _read(self) -> None:
        async for raw in self._call:
            if has_more_parts(raw, self._max_parts):
                self._lacks_an_update = True
                why = f"a message of more than {self._max_parts} parts; for more jobs raise uplink.max_jobs"
                self._shared.refusals.update("parts", why, bytes=len(raw))
                continue
            try:
                message = agent_pb2.CentralMessage.FromString(raw)
            except DecodeError as error:
                raise StreamError(f"sends what is not a message ({len(raw)} bytes)") from error
            self.heard.set()
            kind = message.WhichOneof("body")
            if kind == "ack":
                await self._take_ack(message.ack)
            elif kind == "coefficients":
                await self._take_coefficients(message.coefficients)
            elif kind == "welcome":
                self._take_welcome(message.welcome)
            elif kind == "slow_down":
                self.min_interval_s = min(message.slow_down.min_batch_interval_ms / 1000, _MAX_SLOW_DOWN_S)
                if self.min_interval_s:
                    self._window = self._first_window
            # Anything else is of a newer protocol, which central speaks only if both agreed on it.
            self.wake.set()

    def _take_welcome(self, welcome: agent_pb2.Welcome) -> None:
        self.max_batch_rows = welcome.max_batch_rows or MAX_BATCH_ROWS
        asked = welcome.max_batch_bytes or MAX_MESSAGE_BYTES
        self.max_batch_bytes = max(asked, _LEAST_BATCH_BYTES)
        if asked < _LEAST_BATCH_BYTES and not self._totals.has_low_limit:
            self._totals.has_low_limit = True
            _LOG.warning(
                "central's limit is below what a window needs; not obeyed",
                max_batch_bytes=asked,
                used=_LEAST_BATCH_BYTES,
            )
        self._heartbeat_s = min(max(welcome.heartbeat_ms or DEFAULT_HEARTBEAT_MS, 100), 600_000) / 1000
        self._welcomed.set()

    async def _take_ack(self, ack: agent_pb2.Ack) -> None:
        """Forget what is acknowledged of what was sent in this stream; central cannot have anything else.

        Each acknowledged batch allows one more in flight, as in TCP's slow start (RFC 5681, section 3.1): when central
        is back after days, ten thousand agents send their backlogs together.
        """
        if len(ack.ranges) > _MAX_RANGES:
            raise StreamError(f"acknowledges {len(ack.ranges)} ranges at once; {_MAX_RANGES} are more than it needs")
        ranges = [(r.first, r.last) for r in ack.ranges]
        rows_of = {
            sequence: rows
            for (spool_id, sequence), rows in self._in_flight.items()
            if spool_id == ack.spool_id and any(first <= sequence <= last for first, last in ranges)
        }
        taken = [(sequence, sequence) for sequence in rows_of]
        for sequence in rows_of:
            del self._in_flight[ack.spool_id, sequence]
        self._totals.acknowledge(rows_of.values())
        self._count_batches(ack, rows_of)
        self._count_rows(ack, sum(rows_of.values()))
        if taken:
            if not self.min_interval_s:
                self._window = min(self._window + len(taken), self._shared.section.in_flight_batches)
            self.acknowledged = True
            self._last_ack_s = _now()
            # Shielded: it is counted, so it must leave the queue even if this stream ends now.
            await asyncio.shield(self._shared.in_thread(self._queue.acknowledge, ack.spool_id, taken))
        elif ranges:
            self._totals.ignored_acknowledgements += 1

    def _count_batches(self, ack: agent_pb2.Ack, rows_of: dict[int, int]) -> None:
        """Count the batches refused whole, each once, and take them out of `rows_of`: rows by sequence number."""
        for batch in ack.rejected_batches:
            if batch.sequence in rows_of:
                self._totals.reject_batch(rows_of.pop(batch.sequence))
            elif batch.sequence:  # 0: it has no number
                continue
            self._reject(self._totals.rejected_batches, batch.reason, 1, batch.detail)

    def _count_rows(self, ack: agent_pb2.Ack, total: int) -> None:
        """Count what central did with the rows of an acknowledgement, `total` without batches refused whole."""
        accepted = ack.accepted_rows
        rejected = sum(rejected.count for rejected in ack.rejected_rows)
        if accepted + rejected > total:
            if not self._totals.implausible_acknowledgements:
                _LOG.warning(
                    "central counts more rows than it acknowledges; these counts are left out",
                    rows=total,
                    accepted=accepted,
                    rejected=rejected,
                )
            self._totals.implausible_acknowledgements += 1
            return
        self._totals.accepted_rows += accepted
        for rows in ack.rejected_rows:
            self._reject(self._totals.rejected_rows, rows.reason, rows.count, "rows")

    @staticmethod
    def _reject(counts: Counter[str], reason: str, count: int, detail: str, what: str = "central rejects data") -> None:
        """Count, and log the first of each reason. Reasons beyond a bound are counted as one."""
        reason = printable(reason[:_MAX_REASON])
        if reason not in counts and len(counts) >= _MAX_REASONS:
            reason = "other"
        if reason not in counts:
            _LOG.warning(what, reason=reason, count=count, detail=detail[:_MAX_DETAIL])
        counts[reason] += count

    async def _take_coefficients(self, update: agent_pb2.CoefficientUpdate) -> None:
        """Hand an update on. While one is being taken the next waits, and central with it: memory holds two at most.

        Central does not know what was refused, so later changes lack it: then a new stream begins, whose Hello says
        what is known.
        """
        if (taking := self._taking) is not None:
            await asyncio.wait({taking})
            if taking.cancelled() or taking.exception() is not None or not taking.result():
                self._lacks_an_update = True
            self._taking = None
        if self._lacks_an_update and not update.full:
            raise StreamError("sends changes to coefficients that were refused; starting again")
        self._lacks_an_update = False
        self._totals.coefficient_updates += 1
        if self._shared.on_coefficients is None:
            return
        try:
            self._taking = self._shared.on_coefficients(update)
        except Exception as error:  # noqa: BLE001 - whatever the analysis makes of it, samples must still flow
            _LOG.error("coefficients cannot be used", version=update.version, error=repr(error))


def _now() -> float:
    return asyncio.get_running_loop().time()
