"""The agents' streams: who may speak, what is taken, and the acknowledgement once it is on disk.

Messages arrive as bytes and are parsed here, so that what is no message is counted and answered like any other
bad input. A stream that sends faster than the journal writes is not read: that is what slows its sender down.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from importlib import metadata
from typing import Any, cast

import grpc
import grpc.aio
import numpy as np
from google.protobuf.message import DecodeError

from central.columns import CHECKED, Layout, sound
from central.config import CentralConfig
from central.events import check_events
from central.journal import HostRecord, Journal, Submission
from central.journal_tables import EventRow
from central.streams import HostStream, StreamRegistry
from central.triggers import TriggerRow, check_triggers
from central.validate import BatchError, Checked, Limits, bounds, check, is_name
from whitepanda.common import log
from whitepanda.common.protocol import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION, agree
from whitepanda.common.tls import peer_names
from whitepanda.v1 import agent_pb2

__all__ = ["Ingest"]

_Context = Any  # grpc.aio.ServicerContext[bytes, bytes]; the stubs know it only with message types

_HELLO_TIMEOUT_S = 10.0
_DRAIN_S = 5.0  # a journal that cannot commit must not keep central from stopping
_PENDING_PER_STREAM = 64  # twice what an agent has in flight by default
_PENDING_BYTES = 128 << 20  # of all streams: many large batches must not eat the memory
_SLOW_DOWN_MS = 1000
#: What an agent with nothing to say is asked for; news (jobs, a version) it says at once, and pings tell a dead one.
_HEARTBEAT_MS = 120_000
_SHOWN = 60  # characters of somebody else's text in a message
_NO_REJECTIONS: dict[str, int] = {}
_HOST_NOTE_INTERVAL_NS = 60 * 10**9  # heartbeats reach the disk no more often than this


class _RefusedError(Exception):
    """The stream ends with this status."""

    def __init__(self, code: grpc.StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class _Flow:
    """What one stream has under way."""

    def __init__(self, stream: HostStream, record: HostRecord) -> None:
        self.stream = stream
        self.record = record
        self.pending = 0
        self.told_slow = False
        self.told_reasons: set[str] = set()
        self.layout: Layout | None = None  # of the last batch, where all of it was good
        self.relieved = asyncio.Event()  # for its own limit; set while it is not waited for
        self.idle = asyncio.Event()
        self.idle.set()


class Ingest:
    """The AgentStream service.

    Args:
        config: central's.
        journal: started; what is acknowledged is in it.
        registry: gets every open stream.
        clock: nanoseconds since 1970, for tests.

    """

    def __init__(
        self,
        config: CentralConfig,
        journal: Journal,
        registry: StreamRegistry,
        *,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.pending = 0  # batches that wait for their commit
        self.pending_bytes = 0
        self.refused_streams = registry.refused
        self._config = config
        self._journal = journal
        self._registry = registry
        self._clock = clock
        self._limits = Limits(
            max_batch_rows=config.ingest.max_batch_rows,
            max_cpi=config.ingest.max_cpi,
            max_cpu_usage_cores=config.ingest.max_cpu_usage_cores,
            max_future_s=config.ingest.max_future_s,
            max_past_days=config.ingest.max_past_days,
        )
        self._open = 0  # streams, also those that have not said Hello
        self._flows: set[_Flow] = set()
        self._quick: list[
            tuple[_Flow, Layout, int, bytes]
        ] = []  # batches whose numbers are yet to be checked
        self._waiting: deque[asyncio.Future[None]] = deque()  # streams that wait for room, in their order
        self._draining = False
        self._log = log.get("ingest")
        journal.on_failure.append(self._tell_pace_to_all)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a grpc.aio server registers: raw bytes in and out."""
        connect: Any = grpc.stream_stream_rpc_method_handler(cast("Any", self.connect))
        return grpc.method_handlers_generic_handler("whitepanda.v1.AgentStream", {"Connect": connect})

    async def drain(self) -> None:
        """End all streams, after what they sent has been committed and acknowledged."""
        self._draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                for flow in list(self._flows):
                    await flow.idle.wait()
        await asyncio.sleep(0)  # the writers take the last acknowledgements
        for flow in list(self._flows):
            flow.stream.close("central is stopping")

    async def connect(self, _requests: object, context: _Context) -> None:
        """Serve one stream from its Hello to its end."""
        self._open += 1
        try:
            await self._serve(context)
        except _RefusedError as refusal:
            await context.abort(refusal.code, str(refusal))
        finally:
            self._open -= 1

    async def _serve(self, context: _Context) -> None:
        if self._draining:
            raise _RefusedError(grpc.StatusCode.UNAVAILABLE, "central is stopping")
        names = peer_names(context)
        allowed = self._config.ingest.max_streams
        if self._open > allowed:
            detail = (
                f"{allowed} streams are open, as many as ingest.max_streams allows; raise it or add a central"
            )
            raise self._refuse(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "max_streams", detail, host=_someone(names)
            )
        flow = await self._greet(context, names)
        stream = flow.stream
        self._flows.add(flow)
        if self._registry.add(stream) is not None:
            self._log.warning("a newer stream of the host replaces an open one", host=stream.host)
        sender = asyncio.create_task(self._send(stream, context))
        receiver = asyncio.create_task(self._receive(flow, context))
        try:
            await asyncio.wait((sender, receiver), return_when=asyncio.FIRST_COMPLETED)
            if receiver.done() and not sender.done() and receiver.exception() is None:
                await flow.idle.wait()  # the agent has said its last word; it still gets its acknowledgements
                stream.close("ended by the agent")
                await sender
            self._raise_end(stream, sender, receiver)
        finally:
            self._flows.discard(flow)
            self._registry.remove(stream)
            for task in (sender, receiver):
                task.cancel()
            await asyncio.gather(sender, receiver, return_exceptions=True)

    def _raise_end(
        self, stream: HostStream, sender: asyncio.Task[None], receiver: asyncio.Task[None]
    ) -> None:
        """Raise what the stream ends with, if that is no plain end."""
        for task in (receiver, sender):
            if task.done():
                task.result()
        if not receiver.done():
            code = grpc.StatusCode.UNAVAILABLE if self._draining else grpc.StatusCode.ABORTED
            raise _RefusedError(code, stream.close_reason)

    async def _greet(self, context: _Context, names: frozenset[str]) -> _Flow:
        """Read the Hello, agree on a version, and answer."""
        hello = await self._read_hello(context, names)
        now = self._clock()
        if hello.host not in names:
            raise self._refuse(
                grpc.StatusCode.PERMISSION_DENIED,
                "wrong_host",
                f"host {hello.host[:_SHOWN]!r} is not a name of its certificate "
                f"({', '.join(sorted(names)) or 'none'}); issue a certificate for that name, or set agent.host "
                "to the certificate's name",
                host=hello.host[:_SHOWN],
            )
        for what in ("platform", "agent_version", "boot_id"):
            value = getattr(hello, what)
            if value and not is_name(value):
                raise self._refuse(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    "bad_hello",
                    f"{what} must be a text without control characters, of a name's length "
                    f"({len(value)} characters, {value[:_SHOWN]!r})",
                    host=hello.host,
                )
        version = agree(hello.protocol_version, hello.min_protocol_version)
        if version is None:
            raise self._refuse(
                grpc.StatusCode.FAILED_PRECONDITION,
                "protocol_version",
                f"host {hello.host!r} speaks protocol {_span(hello.min_protocol_version, hello.protocol_version)}, "
                f"central speaks {_span(MIN_PROTOCOL_VERSION, PROTOCOL_VERSION)}: upgrade the older side",
                host=hello.host,
            )
        stream = HostStream(
            host=hello.host,
            platform=hello.platform,
            protocol_version=version,
            agent_version=hello.agent_version,
            is_importer=hello.host in self._config.central.importers,
            jobs=frozenset(filter(is_name, hello.jobs)),
            coefficient_version=hello.coefficient_version,
            held_tags={held.job: held.tag for held in hello.held},
        )
        record = HostRecord(
            host=hello.host,
            platform=hello.platform,
            agent_version=hello.agent_version,
            protocol_version=version,
            boot_id=hello.boot_id,
            last_seen_unix_ns=now,
            coefficient_version=hello.coefficient_version,
            clock_offset_ns=hello.sent_unix_ns - now,
            jobs=tuple(sorted(stream.jobs)),
        )
        self._journal.note_host(record)
        if version >= 2:  # noqa: PLR2004 - the version that brought Welcome
            await context.write(self._welcome(version, now).SerializeToString())
        self._log.info("host connected", host=hello.host, protocol=version, agent=hello.agent_version)
        return _Flow(stream, record)

    def _welcome(self, version: int, now_unix_ns: int) -> agent_pb2.CentralMessage:
        return agent_pb2.CentralMessage(
            welcome=agent_pb2.Welcome(
                protocol_version=version,
                central_version=_version(),
                sent_unix_ns=now_unix_ns,
                max_batch_rows=self._config.ingest.max_batch_rows,
                max_batch_bytes=self._config.ingest.max_message_bytes,
                heartbeat_ms=_HEARTBEAT_MS,
            )
        )

    async def _read_hello(self, context: _Context, names: frozenset[str]) -> agent_pb2.Hello:
        try:
            raw = await asyncio.wait_for(context.read(), _HELLO_TIMEOUT_S)
        except TimeoutError:
            detail = f"no Hello within {_HELLO_TIMEOUT_S:.0f} s of connecting"
            raise self._refuse(
                grpc.StatusCode.DEADLINE_EXCEEDED, "no_hello", detail, host=_someone(names)
            ) from None
        if raw is grpc.aio.EOF:
            raise self._refuse(
                grpc.StatusCode.FAILED_PRECONDITION,
                "no_hello",
                "the stream ended without a Hello",
                host=_someone(names),
            )
        message = self._parse(raw, _someone(names))
        if message.WhichOneof("body") != "hello":
            raise self._refuse(
                grpc.StatusCode.FAILED_PRECONDITION,
                "no_hello",
                f"the first message must be a Hello, it was {message.WhichOneof('body') or 'empty'}",
                host=_someone(names),
            )
        return message.hello

    def _parse(self, raw: bytes, host: str) -> agent_pb2.AgentMessage:
        limit = self._config.ingest.max_message_bytes
        if len(raw) > limit:
            self._journal.reject(host, "oversized")
            detail = f"a message of {len(raw)} bytes; ingest.max_message_bytes allows {limit}: send smaller batches"
            raise self._refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "oversized", detail, host=host)
        try:
            return agent_pb2.AgentMessage.FromString(raw)
        except DecodeError:
            self._journal.reject(host, "malformed")
            detail = f"a message of {len(raw)} bytes is not a whitepanda.v1.AgentMessage"
            raise self._refuse(grpc.StatusCode.INVALID_ARGUMENT, "malformed", detail, host=host) from None

    def _refuse(self, code: grpc.StatusCode, reason: str, detail: str, *, host: str) -> _RefusedError:
        self.refused_streams[reason] += 1
        self._log.warning("stream refused", host=host, reason=reason, detail=detail)
        return _RefusedError(code, detail)

    async def _send(self, stream: HostStream, context: _Context) -> None:
        """Write what is queued, until the stream is closed and everything is written."""
        while True:
            await stream.wait()
            is_last = stream.closed  # nothing is queued on a closed stream
            for message in stream.drain():
                await context.write(message.SerializeToString())
            if is_last:
                return

    async def _receive(self, flow: _Flow, context: _Context) -> None:
        while True:
            while flow.pending >= _PENDING_PER_STREAM:
                flow.relieved.clear()
                await flow.relieved.wait()
            await self._wait_for_room()
            raw = await context.read()
            if raw is grpc.aio.EOF:
                return
            if flow.layout is not None and (sequence := flow.layout.sequence_of(raw)):
                self._take_quick(flow, flow.layout, sequence, raw)
                continue
            message = self._parse(raw, flow.stream.host)
            body = message.WhichOneof("body")
            if body == "batch":
                self._take_batch(flow, message.batch, raw)
            elif body == "heartbeat":
                self._take_heartbeat(flow, message.heartbeat)
            elif body == "hello":
                detail = "a second Hello on one stream; connect anew to change what it says"
                raise self._refuse(
                    grpc.StatusCode.FAILED_PRECONDITION, "second_hello", detail, host=flow.stream.host
                )
            # Anything else is a message of a newer protocol version that this one need not understand.

    async def _wait_for_room(self) -> None:
        """Wait until more may be read; who waits longest goes first, and lets the next one go if there is more room."""
        queue = self._waiting.append
        while self._is_full():
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            queue(turn)
            queue = self._waiting.appendleft  # who finds the room taken after all keeps its place
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._let_next_go()
                raise
            self._let_next_go()

    def _let_next_go(self) -> None:
        if self._is_full():
            return  # the next batch that ends comes here again
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # its stream is still there
                turn.set_result(None)
                return

    def _take_heartbeat(self, flow: _Flow, heartbeat: agent_pb2.Heartbeat) -> None:
        stream, now = flow.stream, self._clock()
        stream.spooled_batches = heartbeat.spooled_batches
        stream.dropped_batches = heartbeat.dropped_batches
        before = stream.jobs
        self._registry.update(
            stream,
            jobs=filter(is_name, heartbeat.jobs),
            coefficient_version=heartbeat.coefficient_version or None,
        )
        if stream.jobs != before or now - flow.record.last_seen_unix_ns >= _HOST_NOTE_INTERVAL_NS:
            self._note(flow, now)

    def _note(self, flow: _Flow, now_unix_ns: int) -> None:
        stream, record = flow.stream, flow.record
        flow.record = HostRecord(
            host=record.host,
            platform=record.platform,
            agent_version=record.agent_version,
            protocol_version=record.protocol_version,
            boot_id=record.boot_id,
            last_seen_unix_ns=now_unix_ns,
            spooled_batches=stream.spooled_batches,
            dropped_batches=stream.dropped_batches,
            coefficient_version=stream.coefficient_version,
            clock_offset_ns=record.clock_offset_ns,
            jobs=tuple(sorted(stream.jobs)),
        )
        self._journal.note_host(flow.record)

    def _take_quick(self, flow: _Flow, layout: Layout, sequence: int, raw: bytes) -> None:
        """Take a batch like the stream's last one: only its numbers are left to be checked, with all that came now."""
        self._begin(flow, layout.size)
        if not self._quick:
            asyncio.get_running_loop().call_soon(self._check_quick)
        self._quick.append((flow, layout, sequence, raw))

    def _check_quick(self) -> None:
        waiting, self._quick = self._quick, []
        now = self._clock()
        limits = bounds(self._limits, now)

        def is_sound(batches: list[tuple[_Flow, Layout, int, bytes]]) -> bool:
            slices = [(layout.slices, raw) for _, layout, _, raw in batches]
            return sound(
                [[raw[at[i][0] : at[i][1]] for at, raw in slices] for i in range(len(CHECKED))], limits
            )

        all_sound = is_sound(waiting)
        for one in waiting:
            flow, layout, sequence, raw = one
            if all_sound or is_sound([one]):
                self._submit_quick(flow, layout, sequence, raw, now)
            else:  # let it be said row by row what is wrong
                self._end(flow, layout.size)
                self._take_batch(flow, agent_pb2.AgentMessage.FromString(raw).batch, raw)

    def _submit_quick(self, flow: _Flow, layout: Layout, sequence: int, raw: bytes, now_unix_ns: int) -> None:
        stream = flow.stream
        if not layout.jobs <= stream.jobs:
            self._registry.update(stream, jobs=stream.jobs | layout.jobs)
        self._journal.submit(
            Submission(
                host=stream.host,
                platform=stream.platform,
                spool_id=layout.spool_id,
                sequence=sequence,
                received_unix_ns=now_unix_ns,
                payload=raw[layout.body_at :],
                rows=layout.rows,
                accepted_rows=layout.rows,
                rejected_rows=_NO_REJECTIONS,
                kept=None,
                done=partial(self._done_quick, flow, layout, sequence),
                rejected_events=_NO_REJECTIONS,
            )
        )

    def _done_quick(self, flow: _Flow, layout: Layout, sequence: int, is_new: bool) -> None:  # noqa: FBT001 - the journal's callback
        self._end(flow, layout.size)
        flow.stream.acknowledge(
            layout.spool_id,
            sequence,
            accepted_rows=layout.rows if is_new else 0,
            more_follow=flow.pending > 0,
        )

    def _take_batch(self, flow: _Flow, batch: agent_pb2.CpiBatch, raw: bytes) -> None:
        stream, now = flow.stream, self._clock()
        spool_id, sequence = batch.spool_id, batch.sequence
        batch.DiscardUnknownFields()  # of a newer protocol: nobody here would read them
        has_reports = bool(batch.events or batch.triggers)
        payload = b"" if has_reports else batch.SerializeToString()
        refusal: BatchError | None = None
        try:
            checked = check(
                batch,
                host=stream.host,
                platform=stream.platform,
                is_importer=stream.is_importer,
                limits=self._limits,
                now_unix_ns=now,
                payload=payload,
            )
        except BatchError as error:
            checked, refusal = Checked(0, 0, {}, None, frozenset()), error
            told = f"batch {sequence} of spool {spool_id[:_SHOWN]!r} refused: {error}"
            self._tell_once(flow, error.reason, told)
            if error.reason in (
                "no_spool",
                "bad_spool",
                "no_sequence",
            ):  # nothing to remember it by, or to acknowledge
                self._journal.reject(stream.host, error.reason)
                stream.acknowledge(spool_id, 0, rejected_batch=_rejected(sequence, error))
                return
        for reason, count in checked.rejected_rows.items():
            self._tell_once(flow, reason, f"{count} of {checked.rows} rows of batch {sequence} refused")
        if not stream.is_importer and not checked.jobs <= stream.jobs:
            self._registry.update(stream, jobs=stream.jobs | checked.jobs)
        events, triggers, rejected_events = (
            self._check_reports(flow, batch, now) if refusal is None else ([], [], {})
        )
        if has_reports:
            for name in ("events", "triggers"):  # they have tables of their own
                batch.ClearField(name)
            payload = batch.SerializeToString()
        if not checked.accepted_rows:
            payload = b""
        elif checked.kept is None and not stream.is_importer:
            flow.layout = Layout.of(raw, payload, batch, checked.jobs)
        self._begin(flow, len(payload))

        def done(is_new: bool) -> None:  # noqa: FBT001 - the journal's callback
            self._end(flow, len(payload))
            # What was counted already is acknowledged without counts.
            stream.acknowledge(
                spool_id,
                sequence,
                accepted_rows=checked.accepted_rows if is_new else 0,
                rejected_rows=checked.rejected_rows if is_new else None,
                rejected_batch=_rejected(sequence, refusal) if refusal and is_new else None,
                more_follow=flow.pending > 0,
            )

        self._journal.submit(
            Submission(
                host=stream.host,
                platform=stream.platform,
                spool_id=spool_id,
                sequence=sequence,
                received_unix_ns=now,
                payload=payload,
                rows=checked.rows,
                accepted_rows=checked.accepted_rows,
                rejected_rows=checked.rejected_rows,
                kept=None if checked.kept is None else np.packbits(checked.kept).tobytes(),
                done=done,
                refused=refusal.reason if refusal else "",
                events=tuple(events),
                triggers=tuple(triggers),
                rejected_events=rejected_events,
            )
        )

    def _check_reports(
        self, flow: _Flow, batch: agent_pb2.CpiBatch, now_unix_ns: int
    ) -> tuple[list[EventRow], list[TriggerRow], dict[str, int]]:
        if not batch.events and not batch.triggers:
            return [], [], {}
        stream = flow.stream
        known: dict[str, Any] = {
            "host": stream.host,
            "is_importer": stream.is_importer,
            "limits": self._limits,
            "now_unix_ns": now_unix_ns,
        }
        events, rejected = check_events(batch, **known)
        triggers, rejected_triggers = check_triggers(batch, **known)
        rejected |= rejected_triggers
        of = len(batch.events) + len(batch.triggers)
        for reason, count in rejected.items():
            self._tell_once(flow, reason, f"{count} of {of} reports of batch {batch.sequence} refused")
        return events, triggers, rejected

    def _tell_once(self, flow: _Flow, reason: str, detail: str) -> None:
        """Log the first of its kind on a stream; all are counted in the journal and told to the agent."""
        if reason not in flow.told_reasons:
            flow.told_reasons.add(reason)
            self._log.warning("input refused", host=flow.stream.host, reason=reason, detail=detail)

    def _begin(self, flow: _Flow, size: int) -> None:
        self.pending_bytes += size
        flow.pending += 1
        flow.idle.clear()
        self.pending += 1
        self._tell_pace(flow)

    def _end(self, flow: _Flow, size: int) -> None:
        self.pending_bytes -= size
        flow.pending -= 1
        self.pending -= 1
        if not flow.pending:
            flow.idle.set()
        if flow.pending < _PENDING_PER_STREAM:
            flow.relieved.set()
        if self._waiting:
            self._let_next_go()
        self._tell_pace(flow)

    def _is_full(self) -> bool:
        """Whether nothing more is read for now."""
        return self.pending >= self._config.ingest.max_pending_batches or self.pending_bytes >= _PENDING_BYTES

    def _is_slow(self) -> bool:
        """Whether agents shall wait between batches: at half of what may be pending, or while commits fail."""
        half = max(1, self._config.ingest.max_pending_batches // 2)
        return (
            bool(self._journal.failure) or self.pending >= half or self.pending_bytes >= _PENDING_BYTES // 2
        )

    def _tell_pace(self, flow: _Flow) -> None:
        """Tell a stream, where it does not know yet, whether to slow down."""
        is_slow = self._is_slow()
        if flow.told_slow == is_slow or flow.stream.protocol_version < 2:  # noqa: PLR2004 - SlowDown's version
            return
        slow_down = agent_pb2.SlowDown(min_batch_interval_ms=_SLOW_DOWN_MS if is_slow else 0)
        if flow.stream.send(agent_pb2.CentralMessage(slow_down=slow_down)):
            flow.told_slow = is_slow

    def _tell_pace_to_all(self, _failure: str) -> None:
        for flow in self._flows:
            self._tell_pace(flow)


@cache
def _version() -> str:
    """Return ours; to look it up takes a millisecond, and ten thousand hosts may come at once."""
    return metadata.version("whitepanda")


def _someone(names: frozenset[str]) -> str:
    """Return who speaks before a Hello has said so: the certificate's first name."""
    return min(names, default="")


def _span(oldest: int, newest: int) -> str:
    oldest = oldest or newest
    return str(newest) if oldest == newest else f"{oldest} to {newest}"


def _rejected(sequence: int, error: BatchError) -> agent_pb2.RejectedBatch:
    return agent_pb2.RejectedBatch(sequence=sequence, reason=error.reason, detail=str(error))
