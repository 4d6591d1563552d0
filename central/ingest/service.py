"""The agents' streams: who may speak, what is taken, and the acknowledgement once it is on disk.

Messages arrive as bytes and are parsed here, so malformed ones are counted and answered like any other bad input.
`central.ingest.handshake` begins a stream, `central.ingest.batches` takes its batches, and
`central.ingest.backpressure` decides when.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, cast

import grpc
import grpc.aio

from central.authorisation.revocation_list import Revoked
from central.config import CentralConfig
from central.ingest.backpressure import Backpressure, Flow
from central.ingest.batches import Intake
from central.ingest.handshake import Context, Handshake, RefusedError, someone
from central.ingest.large_messages import LARGE, LargeMessages
from central.ingest.log_limit import LogLimit
from central.ingest.peers import JOB_S, Peer, Peers
from central.ingest.quotas import OverQuotaError, Quotas
from central.ingest.sessions import HostStream, StreamRegistry
from central.journal.writer import Journal
from central.validation.batch_heads import head_of, is_next
from central.validation.events import AgentSeen
from central.validation.reader import ReadBatch
from central.validation.rows import is_name, job_bytes
from whitepanda.common import log
from whitepanda.common.tls import peer_certificate
from whitepanda.v1 import agent_pb2

_DRAIN_S = 5.0  # a journal that cannot commit must not keep central from stopping
_CHECKS = 10  # in `ingest.unread_s`, for hosts that do not read
_MOST_BATCHES = 2**40  # that a host may say it has; the fleet's sum has to fit 64 bits


class Ingest:
    """The AgentStream service. `journal` is started; `clock` is nanoseconds since 1970, `clock_s` never goes back."""

    def __init__(
        self,
        config: CentralConfig,
        journal: Journal,
        registry: StreamRegistry,
        *,
        revoked: Revoked | None = None,
        on_agent: Callable[[AgentSeen], None] = lambda _seen: None,
        clock: Callable[[], int] = time.time_ns,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.refused_streams = registry.refused
        self.backpressure = Backpressure(config.ingest, journal)
        self.quotas = Quotas(config.quotas)
        self._config = config
        self._journal = journal
        self._registry = registry
        self._clock = clock
        self._clock_s = clock_s
        self._large = LargeMessages()
        revoked = revoked or Revoked()
        self._peers = Peers(revoked)
        self._handshake = Handshake(config, journal, registry.refused, revoked, clock, self._large, on_agent)
        self._intake = Intake(config, journal, registry, self.backpressure, self.quotas, clock, self._large)
        self._open = 0  # streams, also those that have not said Hello
        self._draining = False
        self._warn = LogLimit(log.get("ingest").warning)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a grpc.aio server registers: raw bytes in and out."""
        connect: Any = grpc.stream_stream_rpc_method_handler(cast("Any", self.connect))
        return grpc.method_handlers_generic_handler("whitepanda.v1.AgentStream", {"Connect": connect})

    async def drain(self) -> None:
        """End all streams, after what they sent has been committed and acknowledged."""
        self._draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                for flow in list(self.backpressure.flows):
                    await flow.idle.wait()
        await asyncio.sleep(0)  # the writers take the last acknowledgements
        for flow in list(self.backpressure.flows):
            flow.stream.close("central is stopping")

    def close(self) -> None:
        """End the process that reads large messages."""
        self._large.close()

    async def watch(self) -> None:
        """End the streams of hosts that do not read, until cancelled."""
        while True:
            await asyncio.sleep(self._config.ingest.unread_s / _CHECKS)
            self.drop_unread()

    def drop_unread(self) -> None:
        """End the streams of hosts that have not read for `ingest.unread_s`."""
        allowed_s, now_s = self._config.ingest.unread_s, self._clock_s()
        for flow in self.backpressure.flows:
            since_s = flow.stream.writing_since_s
            if since_s and now_s - since_s > allowed_s and not flow.unread.done():
                flow.unread.set_result(None)

    async def connect(self, _requests: object, context: Context) -> None:
        """Serve one stream from its Hello to its end."""
        peer = self._peers.enter(peer_certificate(context))
        is_counted = peer.open <= peer.allowed  # the others are open only until they are refused
        self._open += is_counted
        try:
            if (refused := await self._refused(context, peer)) is not None:
                try:
                    async with asyncio.timeout(_DRAIN_S):
                        await context.abort(*refused)
                except TimeoutError:  # the client has not read what was sent before
                    raise asyncio.CancelledError from None
        except grpc.aio.InternalError:  # the connection ended during a write; gRPC would log a traceback
            raise asyncio.CancelledError from None
        finally:
            self._peers.leave(peer)
            self._open -= is_counted

    async def _refused(self, context: Context, peer: Peer) -> tuple[grpc.StatusCode, str] | None:
        """Serve a stream; return the status and the detail that it is to end with, None for a plain end.

        Not the exception: gRPC would keep alive its frames, with the stream's last message, in a cycle with the task.
        """
        try:
            await self._serve(context, peer)
        except RefusedError as refusal:
            refusal.__traceback__ = None
            return refusal.code, str(refusal)
        return None

    async def _serve(self, context: Context, peer: Peer) -> None:
        await self._let_in(peer)
        async with peer.greets:
            hello = await self._handshake.read_hello(context, peer)
        peer.owe(JOB_S * (len(hello.jobs) + len(hello.held)))
        began_s = time.perf_counter()
        stream, record = self._handshake.admit(context, peer.names, hello)
        peer.owe_for(time.perf_counter() - began_s)
        try:
            async with asyncio.timeout(self._config.ingest.unread_s):
                await self._handshake.welcome(context, stream)
        except TimeoutError:
            raise self._unread(stream) from None
        flow = Flow(stream, record, peer)
        self.backpressure.flows.add(flow)
        if self._registry.add(stream) is not None:
            self._warn("a newer stream of the host replaces an open one", host=stream.host, reason="replaced")
        sender = asyncio.create_task(self._send(flow, context))
        receiver = asyncio.create_task(self._receive(flow, context))
        try:
            await asyncio.wait((sender, receiver, flow.unread), return_when=asyncio.FIRST_COMPLETED)
            if flow.unread.done():
                raise self._unread(stream)
            if receiver.done() and not sender.done():
                if is_plain := receiver.exception() is None:
                    # The agent sends nothing more; it still gets its acknowledgements.
                    await flow.idle.wait()
                stream.close("ended by the agent" if is_plain else "refused")
                # gRPC takes no status while a message is being written: the refused one would wait indefinitely.
                patience_s = None if is_plain else _DRAIN_S
                await asyncio.wait((sender, flow.unread), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                if is_plain and flow.unread.done():
                    raise self._unread(stream)
            self._raise_end(stream, sender, receiver)
        finally:
            self.backpressure.flows.discard(flow)
            self._registry.remove(stream)
            for task in (sender, receiver):
                task.cancel()
            await asyncio.gather(sender, receiver, return_exceptions=True)

    async def _let_in(self, peer: Peer) -> None:
        """Wait until the certificate's last opened stream may be read; raises RefusedError if it may not."""
        if self._draining:
            raise RefusedError(grpc.StatusCode.UNAVAILABLE, "central is stopping")
        allowed = self._config.ingest.max_streams
        is_extra = peer.open > peer.allowed
        is_full = self._open > allowed
        if peer.may_wait:  # also to be refused: a client that opens streams without end waits for each
            peer.owe_for_hello()
            await peer.wait()
        if peer.revoked:
            raise self._handshake.refuse_revoked(peer.names, peer.revoked)
        if is_extra:
            detail = f"a certificate of {len(peer.names)} names may have {peer.allowed} streams open"
            raise self._handshake.refuse("too_many_streams", detail, host=someone(peer.names))
        if is_full:
            detail = f"{allowed} streams are open, as many as ingest.max_streams allows; raise it or add a central"
            raise self._handshake.refuse("max_streams", detail, host=someone(peer.names))

    def _raise_end(self, stream: HostStream, sender: asyncio.Task[None], receiver: asyncio.Task[None]) -> None:
        """Raise what the stream ends with, unless that is a plain end."""
        for task in (receiver, sender):
            if task.done():
                task.result()
        if not receiver.done():
            code = grpc.StatusCode.UNAVAILABLE if self._draining else stream.close_code
            raise RefusedError(code, stream.close_reason)

    def _unread(self, stream: HostStream) -> RefusedError:
        allowed_s = self._config.ingest.unread_s
        detail = f"host {stream.host!r} has not read for {allowed_s:g} s (ingest.unread_s) what central says"
        refusal = self._handshake.refuse("unread", detail, host=stream.host)
        stream.close(detail, refusal.code)
        return refusal

    async def _send(self, flow: Flow, context: Context) -> None:
        """Write what is queued, until the stream is closed and everything is written."""
        stream = flow.stream
        while True:
            await stream.wait()
            is_last = stream.closed  # nothing is queued on a closed stream
            for message in stream.drain():
                stream.writing_since_s = self._clock_s()
                await context.write(message.SerializeToString())
            stream.writing_since_s = 0.0
            flow.relieved.set()
            if is_last:
                return

    async def _receive(self, flow: Flow, context: Context) -> None:
        peer = flow.peer
        try:
            while True:
                if peer.until_s:
                    await peer.wait()
                if self.backpressure.is_full_for(flow):
                    await self.backpressure.wait(flow)
                raw = await context.read()
                if raw is grpc.aio.EOF:
                    return
                if flow.stream.close_code is grpc.StatusCode.UNAUTHENTICATED:
                    # Revoked. A client that does not read what was queued keeps the sender from ending the stream.
                    raise RefusedError(flow.stream.close_code, flow.stream.close_reason)
                await self._take_message(flow, raw)
        except OverQuotaError as error:
            await flow.idle.wait()  # what was taken before is acknowledged, so it is not sent again
            raise self._handshake.refuse(error.reason, str(error), host=flow.stream.host) from None

    async def _take_message(self, flow: Flow, raw: bytes) -> None:
        if is_next(raw):
            raw = self._handshake.whole(raw, flow.head, flow.stream.host)
        if flow.layout is not None and (sequence := flow.layout.sequence_of(raw)):
            flow.head = flow.layout.head
            self._charge(flow, flow.layout.rows, len(raw), flow.layout.spool_id, sequence)
            self._intake.take_quick(flow, flow.layout, sequence, raw)
            return
        read = await self._read_large(flow, raw) if len(raw) > LARGE else None
        began_s = time.perf_counter()
        if read is None:
            read = self._take(flow, raw)
        else:
            self._charge(flow, read.rows + read.reports, len(raw), read.spool_id, read.sequence, read.tasks)
            self._intake.take_read(flow, read, len(raw))
        if read is not None:
            flow.head = head_of(raw)
        flow.peer.owe_for(time.perf_counter() - began_s, read.report_bytes if read else 0)

    async def _read_large(self, flow: Flow, raw: bytes) -> ReadBatch | None:
        """Return the batch of a large message; None if it is another message, with a bounded number of jobs."""
        self._handshake.check_size(raw, flow.stream.host)
        self.backpressure.begin(flow, len(raw))
        try:
            return await self._handshake.read_large(raw, self._intake.sender_of(flow), flow.peer)
        finally:
            self.backpressure.end(flow, len(raw))

    def _take(self, flow: Flow, raw: bytes) -> ReadBatch | None:
        """Take a message that the loop itself reads; return it if it is a batch."""
        message = self._handshake.parse(raw, flow.stream.host)
        body = message.WhichOneof("body")
        if body == "batch":
            batch = message.batch
            rows = (
                len(batch.task_index)
                + len(batch.events)
                + len(batch.triggers)
                + len(batch.reasons)
                + len(batch.vm_facts)
            )
            tasks = tuple((task.vm, task.job) for task in batch.tasks)
            self._charge(flow, rows, len(raw), batch.spool_id, batch.sequence, tasks)
            return self._intake.take_batch(flow, batch, raw)
        if body == "heartbeat":
            jobs = message.heartbeat.jobs
            self._handshake.check_jobs(len(jobs), job_bytes(jobs), flow.stream.host)
            self._take_heartbeat(flow, message.heartbeat)
        elif body == "hello":
            detail = "a second Hello on one stream; reconnect to change what it says"
            raise self._handshake.refuse("second_hello", detail, host=flow.stream.host)
        # Anything else is a message of a newer protocol version that this one need not understand.
        return None

    def _charge(
        self, flow: Flow, rows: int, size: int, spool_id: str, sequence: int, tasks: Collection[tuple[str, str]] = ()
    ) -> None:
        """Charge the host's quota for a batch; raises OverQuotaError if it is used up."""
        stream = flow.stream
        if not stream.is_importer:
            flow.pace_ms = self.quotas.take(
                stream.host, rows=rows, size=size, spool_id=spool_id, sequence=sequence, tasks=tasks
            )

    def _take_heartbeat(self, flow: Flow, heartbeat: agent_pb2.Heartbeat) -> None:
        stream = flow.stream
        stream.spooled_batches = min(heartbeat.spooled_batches, _MOST_BATCHES)
        stream.dropped_batches = min(heartbeat.dropped_batches, _MOST_BATCHES)
        self._registry.update(
            stream, jobs=filter(is_name, heartbeat.jobs), coefficient_version=heartbeat.coefficient_version or None
        )
        said = {name: getattr(stream, name) for name in ("spooled_batches", "dropped_batches", "coefficient_version")}
        jobs = tuple(sorted(stream.jobs))
        flow.record = replace(flow.record, last_seen_unix_ns=self._clock(), jobs=jobs, **said)
        self._journal.note_host(flow.record)
