"""One stream to central, from Hello to its end: what is sent when, and what central's messages mean."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from agent.batch_queue import ENVELOPE_BYTES, BatchQueue, QueuedBatch
from whitepanda.common import log
from whitepanda.common.protocol import (
    DEFAULT_HEARTBEAT_MS,
    MAX_BATCH_ROWS,
    MAX_MESSAGE_BYTES,
    MIN_PROTOCOL_VERSION,
    PROTOCOL_VERSION,
)
from whitepanda.common.tls import not_grpc
from whitepanda.v1 import agent_pb2

__all__ = ["FIRST_WINDOW", "AckTotals", "Outage", "StreamError", "Timing", "UplinkStream", "explain"]

#: Batches in flight until central has acknowledged some.
FIRST_WINDOW = 4
_FETCH = 4  # batches read from the queue at a time: live ones wait for at most so many of the backlog
_MAX_SLOW_DOWN_S = 600.0
_LOG = log.get("uplink")


@dataclass(frozen=True, slots=True)
class Timing:
    """Patience, in seconds. Tests shorten it."""

    welcome_s: float = 2.0  # a central of protocol 1 sends none
    acknowledgement_s: float = 60.0  # a central that acknowledges nothing for so long is given up
    poll_s: float = 1.0  # how often jobs and the state are looked at when nothing happens
    stable_s: float = 30.0  # a stream that lived so long was a good one: back-off starts anew


@dataclass(slots=True)
class AckTotals:
    """What central said of our batches since the start of this process.

    A batch that central had before is acknowledged without being counted again, so of the acknowledged rows,
    those that are in no other count were there already.
    """

    acknowledged_batches: int = 0
    acknowledged_rows: int = 0
    accepted_rows: int = 0
    rejected_rows: dict[str, int] = field(default_factory=dict)
    rejected_batches: dict[str, int] = field(default_factory=dict)
    rejected_batch_rows: int = 0
    counted: bool = False  # whether central says what it did with the rows (protocol 2)
    ignored_acknowledgements: int = 0
    coefficient_updates: int = 0


@dataclass(frozen=True, slots=True)
class Outage:
    """Why there is no stream. `refused`: it will not get better by trying again soon; someone has to act."""

    message: str
    refused: bool = False
    is_tls: bool = False
    broke_off: bool = False  # before central said anything, as one does that does not accept our certificate


# What gRPC's end of a stream means: by status code, then by what its text says of the TLS handshake.
_BY_CODE = {
    grpc.StatusCode.UNAUTHENTICATED: "certificate",
    grpc.StatusCode.PERMISSION_DENIED: "who_we_are",
    grpc.StatusCode.FAILED_PRECONDITION: "protocol",
    grpc.StatusCode.UNIMPLEMENTED: "protocol",
    grpc.StatusCode.INVALID_ARGUMENT: "content",
    grpc.StatusCode.ABORTED: "replaced",
}
_BY_TEXT = (
    ("hostname verification", "name"),
    ("peer name", "name"),
    ("certificate_verify_failed", "signer"),
    ("certificate verify failed", "signer"),
    ("handshake", "handshake"),
    # TLS 1.3: our handshake is over before central has looked at our certificate, so a refusal is no TLS error here.
    ("socket closed", "closed"),
)
_REFUSALS = {
    "who_we_are": (
        "central {address} refuses this host",
        "the certificate must name this host ({host}); `whitepanda pki host` makes one",
    ),
    "certificate": (
        "central {address} refuses the certificate {certificate}",
        "issue a new one with `whitepanda pki`",
    ),
    "protocol": (
        "central {address} refuses the protocol",
        f"this agent speaks version {MIN_PROTOCOL_VERSION} to {PROTOCOL_VERSION}; upgrade the older side",
    ),
    "replaced": (
        "central {address} has closed the stream",
        "another agent or tool speaks under the same name; give each its own certificate and {host}",
    ),
    "content": ("central {address} refuses what was sent", "see central's log"),
    "name": (
        "the certificate of central does not name {address}",
        "set {server_name} to a name in it, or issue it with `whitepanda pki central --address`",
    ),
    "signer": (
        "the certificate of central {address} does not verify",
        "check that the configured CA has signed it, and both clocks",
    ),
    "handshake": (
        "the TLS handshake with central {address} fails",
        "check the certificates of both sides with `whitepanda pki show`, and that the port is central's",
    ),
    "closed": (
        "central {address} closes the connection right after TLS",
        (
            "it may not accept this host's certificate {certificate} (another CA, its clock): compare it with "
            "central.tls.ca by `whitepanda pki show`; or central is just being restarted"
        ),
    ),
}


def explain(
    address: str,
    code: grpc.StatusCode | None,
    details: str,
    *,
    heard: bool = False,
    certificate: str = "",
    is_tool: bool = False,
) -> Outage:
    """Turn gRPC's end of a stream into one line with the remedy.

    Args:
        address: of central.
        code: the status; None where gRPC said none.
        details: its text.
        heard: whether central said anything in this stream.
        certificate: our own one's file.
        is_tool: name a tool's options, not an agent's settings.

    """
    details = " ".join(details.split()) or "no details"
    if why := not_grpc(details):
        return Outage(
            f"central {address} {why}; see {'--central' if is_tool else 'uplink.address'}", refused=True
        )
    lower = details.lower()
    kind = _BY_CODE.get(code) if code else None
    kind = kind or next((kind for text, kind in _BY_TEXT if text in lower), None)
    if kind == "closed" and heard:
        kind = None
    if kind is not None:
        what, remedy = _REFUSALS[kind]
        names = {"address": address, "certificate": certificate} | (_OPTIONS if is_tool else _SETTINGS)
        message = f"{what.format(**names)}: {details}; {remedy.format(**names)}"
        # What merely breaks off may be a central that is just being restarted.
        broke_off = kind == "closed" or (kind == "handshake" and "ssl" not in lower)
        return Outage(message, refused=not broke_off, is_tls=kind in _TLS_KINDS, broke_off=broke_off)
    if code in (None, grpc.StatusCode.OK):
        return Outage(f"central {address} ended the stream")
    return Outage(f"central {address} is away: {code.name.lower()}: {details}")


_TLS_KINDS = ("who_we_are", "certificate", "name", "signer", "handshake", "closed")
_SETTINGS = {"host": "agent.host", "server_name": "uplink.server_name"}
_OPTIONS = {"host": "--name", "server_name": "--server-name"}


class StreamError(Exception):
    """Central is there but does not keep to the protocol; the text goes on from "central ADDRESS"."""


class UplinkStream:
    """Drives one call, whose answers are raw bytes. `in_thread` runs a blocking function of the queue off the loop."""

    def __init__(
        self,
        call: Any,
        queue: BatchQueue,
        hello: Callable[[], agent_pb2.Hello],
        on_coefficients: Callable[[agent_pb2.CoefficientUpdate], None] | None,
        totals: AckTotals,
        *,
        in_flight_batches: int,
        timing: Timing,
        in_thread: Callable[..., Coroutine[Any, Any, Any]],
    ) -> None:
        self._call = call
        self._queue = queue
        self._hello = hello
        self._on_coefficients = on_coefficients
        self._totals = totals
        self._most_in_flight = in_flight_batches
        self._window = min(FIRST_WINDOW, in_flight_batches)
        self._timing = timing
        self._in_thread = in_thread
        self._in_flight: dict[tuple[str, int], int] = {}
        self._fetched: deque[QueuedBatch] = deque()
        self._wake = asyncio.Event()
        self._welcomed = asyncio.Event()
        self._min_interval_s = 0.0
        self._heartbeat_s = DEFAULT_HEARTBEAT_MS / 1000
        self._last_message_s = self._last_batch_s = self._last_ack_s = 0.0
        self._jobs: tuple[str, ...] = ()
        self._coefficient_version = 0
        self.max_batch_rows = MAX_BATCH_ROWS
        self.max_batch_bytes = MAX_MESSAGE_BYTES
        #: Protocol version in use: 1 until central's Welcome says otherwise.
        self.protocol_version = 1
        #: Whether central said anything, and whether it acknowledged anything.
        self.heard = asyncio.Event()
        self.acknowledged = False

    def wake(self) -> None:
        """Tell the stream that the queue has something new."""
        self._wake.set()

    async def run(self) -> None:
        """Talk until the stream ends, in any way; an exception of ours (not gRPC's) propagates.

        Raises:
            StreamError: central takes or acknowledges nothing, or sends garbage.

        """
        await self._in_thread(self._queue.begin_stream)
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
        hello = self._hello()
        hello.spool_id = self._queue.spool_id
        hello.sent_unix_ns = time.time_ns()
        hello.protocol_version = PROTOCOL_VERSION
        hello.min_protocol_version = MIN_PROTOCOL_VERSION
        self._jobs, self._coefficient_version = tuple(hello.jobs), hello.coefficient_version
        await self._send(agent_pb2.AgentMessage(hello=hello))
        try:
            await asyncio.wait_for(self._welcomed.wait(), self._timing.welcome_s)
        except TimeoutError:
            _LOG.debug("no welcome, speaking protocol 1")
        while True:
            self._wake.clear()
            now = _now()
            if self._in_flight and now - self._last_ack_s > self._timing.acknowledgement_s:
                raise StreamError(f"has acknowledged nothing for {self._timing.acknowledgement_s:g} s")
            await self._send_heartbeat(now)
            due = self._last_batch_s + self._min_interval_s
            batch = await self._next_batch() if now >= due else None
            if batch is not None:
                await self._send_batch(batch)
                continue
            pause = max(due - now, 0.001) if due > now else self._timing.poll_s
            try:
                await asyncio.wait_for(self._wake.wait(), min(pause, self._timing.poll_s, self._heartbeat_s))
            except TimeoutError:
                continue

    async def _send(self, message: agent_pb2.AgentMessage) -> None:
        try:
            async with asyncio.timeout(self._timing.acknowledgement_s):
                await self._call.write(message)
        except TimeoutError:  # it reads no further, and the other replicas may
            raise StreamError(f"has taken nothing for {self._timing.acknowledgement_s:g} s") from None
        self._last_message_s = _now()

    async def _send_heartbeat(self, now: float) -> None:
        """Send one where it is time, or where jobs or the coefficients' version changed."""
        hello = self._hello()
        state = (tuple(hello.jobs), hello.coefficient_version)
        if (
            state == (self._jobs, self._coefficient_version)
            and now - self._last_message_s < self._heartbeat_s
        ):
            return
        self._jobs, self._coefficient_version = state
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
            self._fetched.extend(await self._in_thread(self._queue.fetch, min(room, _FETCH)))
        return self._fetched.popleft() if self._fetched else None

    async def _send_batch(self, batch: QueuedBatch) -> None:
        size = batch.message.ByteSize() + ENVELOPE_BYTES
        if size > self.max_batch_bytes or batch.rows > self.max_batch_rows:
            # Spooled under another central's limits; sending it would only end the stream, time and again.
            sequence = batch.message.sequence
            await self._in_thread(self._queue.acknowledge, batch.message.spool_id, [(sequence, sequence)])
            self._totals.rejected_batch_rows += batch.rows
            self._totals.acknowledged_rows += batch.rows
            self._totals.acknowledged_batches += 1
            self._reject(self._totals.rejected_batches, "oversized", 1, f"{batch.rows} rows, {size} bytes")
            return
        if not self._in_flight:
            self._last_ack_s = _now()
        self._in_flight[batch.key] = batch.rows
        self._last_batch_s = _now()
        await self._send(agent_pb2.AgentMessage(batch=batch.message))

    # -- receiving -------------------------------------------------------------------------------

    async def _read(self) -> None:
        async for raw in self._call:
            try:
                message = agent_pb2.CentralMessage.FromString(raw)
            except DecodeError as error:
                raise StreamError(f"sends what is no message ({len(raw)} bytes)") from error
            self.heard.set()
            kind = message.WhichOneof("body")
            if kind == "ack":
                await self._take_ack(message.ack)
            elif kind == "coefficients":
                self._take_coefficients(message.coefficients)
            elif kind == "welcome":
                self._take_welcome(message.welcome)
            elif kind == "slow_down":
                self._take_slow_down(message.slow_down)
            # Anything else is of a newer protocol, which central speaks only where both agreed on it.
            self._wake.set()

    def _take_welcome(self, welcome: agent_pb2.Welcome) -> None:
        self.protocol_version = welcome.protocol_version or 1
        self._totals.counted = self.protocol_version >= 2  # noqa: PLR2004 - the version that brought the counts
        self.max_batch_rows = welcome.max_batch_rows or MAX_BATCH_ROWS
        self.max_batch_bytes = welcome.max_batch_bytes or MAX_MESSAGE_BYTES
        self._heartbeat_s = min(max(welcome.heartbeat_ms or DEFAULT_HEARTBEAT_MS, 100), 600_000) / 1000
        self._welcomed.set()

    def _take_slow_down(self, slow_down: agent_pb2.SlowDown) -> None:
        self._min_interval_s = min(slow_down.min_batch_interval_ms / 1000, _MAX_SLOW_DOWN_S)
        if self._min_interval_s:
            self._window = min(FIRST_WINDOW, self._most_in_flight)

    async def _take_ack(self, ack: agent_pb2.Ack) -> None:
        """Forget what is acknowledged, of what was sent in this stream: the rest central cannot have.

        What may be in flight grows by it, as a TCP sender's window does in slow start (RFC 5681, section 3.1): when a
        central is back that was away for days, ten thousand agents come with a backlog at once.
        """
        taken = []
        for key, rows in self._in_flight.items():
            sequence = key[1]
            if key[0] == ack.spool_id and any(r.first <= sequence <= r.last for r in ack.ranges):
                taken.append((sequence, rows))
        for sequence, _ in taken:
            del self._in_flight[ack.spool_id, sequence]
        totals = self._totals
        totals.acknowledged_batches += len(taken)
        totals.acknowledged_rows += sum(rows for _, rows in taken)
        totals.accepted_rows += ack.accepted_rows
        for rejected in ack.rejected_rows:
            self._reject(totals.rejected_rows, rejected.reason, rejected.count, "rows")
        rows_of = dict(taken)
        for batch in ack.rejected_batches:
            totals.rejected_batch_rows += rows_of.get(batch.sequence, 0)
            self._reject(totals.rejected_batches, batch.reason, 1, batch.detail)

        if taken:
            if not self._min_interval_s:
                self._window = min(self._window + len(taken), self._most_in_flight)
            self.acknowledged = True
            self._last_ack_s = _now()
            ranges = [(sequence, sequence) for sequence, _ in taken]
            # Shielded: it is counted, so it must leave the queue even if this stream ends now.
            await asyncio.shield(self._in_thread(self._queue.acknowledge, ack.spool_id, ranges))
        elif ack.ranges:
            totals.ignored_acknowledgements += 1

    @staticmethod
    def _reject(counts: dict[str, int], reason: str, count: int, detail: str) -> None:
        """Count; the first time that a reason turns up it is logged."""
        if reason not in counts:
            _LOG.warning("central rejects data", reason=reason, count=count, detail=detail)
        counts[reason] = counts.get(reason, 0) + count

    def _take_coefficients(self, update: agent_pb2.CoefficientUpdate) -> None:
        self._totals.coefficient_updates += 1
        if self._on_coefficients is None:
            return
        try:
            self._on_coefficients(update)
        except Exception as error:  # noqa: BLE001 - whatever the analysis makes of it, samples must still flow
            _LOG.error("coefficients cannot be used", version=update.version, error=repr(error))


def _now() -> float:
    return asyncio.get_running_loop().time()
