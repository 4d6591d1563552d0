"""The agents' streams: who may speak, what is taken, and the acknowledgement once it is on disk.

Messages arrive as bytes and are parsed here, so that what is no message is counted and answered like any other
bad input. `central.greeting` is a stream's begin, `central.intake` takes its batches, `central.room` says when.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, cast

import grpc
import grpc.aio

from central.config import CentralConfig
from central.greeting import Context, Greeter, RefusedError, someone
from central.intake import Intake
from central.journal import Journal
from central.log_limit import LogLimit
from central.quotas import OverQuotaError, Quotas
from central.revoked import Revoked
from central.room import Flow, Room
from central.streams import HostStream, StreamRegistry
from central.validate import is_name
from whitepanda.common import log
from whitepanda.common.tls import peer_names
from whitepanda.v1 import agent_pb2

__all__ = ["Ingest"]

_DRAIN_S = 5.0  # a journal that cannot commit must not keep central from stopping
_HOST_NOTE_INTERVAL_NS = 60 * 10**9  # heartbeats reach the disk no more often than this


class Ingest:
    """The AgentStream service.

    Args:
        config: central's.
        journal: started; what is acknowledged is in it.
        registry: gets every open stream.
        revoked: certificates that no longer count.
        clock: nanoseconds since 1970, for tests.

    """

    def __init__(
        self,
        config: CentralConfig,
        journal: Journal,
        registry: StreamRegistry,
        *,
        revoked: Revoked | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.refused_streams = registry.refused
        self.room = Room(config.ingest, journal)
        self.quotas = Quotas(config.quotas)
        self._config = config
        self._journal = journal
        self._registry = registry
        self._clock = clock
        self._greeter = Greeter(config, journal, registry.refused, revoked or Revoked(), clock)
        self._intake = Intake(config, journal, registry, self.room, self.quotas, clock)
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
                for flow in list(self.room.flows):
                    await flow.idle.wait()
        await asyncio.sleep(0)  # the writers take the last acknowledgements
        for flow in list(self.room.flows):
            flow.stream.close("central is stopping")

    async def connect(self, _requests: object, context: Context) -> None:
        """Serve one stream from its Hello to its end."""
        self._open += 1
        try:
            await self._serve(context)
        except RefusedError as refusal:
            await context.abort(refusal.code, str(refusal))
        finally:
            self._open -= 1

    async def _serve(self, context: Context) -> None:
        if self._draining:
            raise RefusedError(grpc.StatusCode.UNAVAILABLE, "central is stopping")
        names = peer_names(context)
        allowed = self._config.ingest.max_streams
        if self._open > allowed:
            detail = (
                f"{allowed} streams are open, as many as ingest.max_streams allows; raise it or add a central"
            )
            raise self._greeter.refuse(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "max_streams", detail, host=someone(names)
            )
        stream, record = await self._greeter.greet(context, names)
        flow = Flow(stream, record)
        self.room.flows.add(flow)
        if self._registry.add(stream) is not None:
            self._warn("a newer stream of the host replaces an open one", host=stream.host, reason="replaced")
        sender = asyncio.create_task(self._send(stream, context))
        receiver = asyncio.create_task(self._receive_within_quota(flow, context))
        try:
            await asyncio.wait((sender, receiver), return_when=asyncio.FIRST_COMPLETED)
            if receiver.done() and not sender.done():
                if is_plain := receiver.exception() is None:
                    # The agent has said its last word; it still gets its acknowledgements.
                    await flow.idle.wait()
                stream.close("ended by the agent" if is_plain else "refused")
                # gRPC takes no status while a message is being written: the refused one would wait for it for ever.
                await asyncio.wait((sender,), timeout=None if is_plain else _DRAIN_S)
            self._raise_end(stream, sender, receiver)
        finally:
            self.room.flows.discard(flow)
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
            code = grpc.StatusCode.UNAVAILABLE if self._draining else stream.close_code
            raise RefusedError(code, stream.close_reason)

    async def _send(self, stream: HostStream, context: Context) -> None:
        """Write what is queued, until the stream is closed and everything is written."""
        while True:
            await stream.wait()
            is_last = stream.closed  # nothing is queued on a closed stream
            for message in stream.drain():
                await context.write(message.SerializeToString())
            if is_last:
                return

    async def _receive_within_quota(self, flow: Flow, context: Context) -> None:
        try:
            await self._receive(flow, context)
        except OverQuotaError as error:
            await flow.idle.wait()  # what was taken before is acknowledged, so it is not sent again
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
            raise self._greeter.refuse(code, error.reason, str(error), host=flow.stream.host) from None

    async def _receive(self, flow: Flow, context: Context) -> None:
        while True:
            await self.room.wait(flow)
            raw = await context.read()
            if raw is grpc.aio.EOF:
                return
            if flow.stream.close_code is grpc.StatusCode.UNAUTHENTICATED:
                # Revoked. A client that does not read what was queued keeps the sender from ending the stream.
                raise RefusedError(flow.stream.close_code, flow.stream.close_reason)
            if flow.layout is not None and (sequence := flow.layout.sequence_of(raw)):
                self._charge(flow, flow.layout.rows, len(raw), flow.layout.spool_id, sequence)
                self._intake.take_quick(flow, flow.layout, sequence, raw)
                continue
            message = self._greeter.parse(raw, flow.stream.host)
            body = message.WhichOneof("body")
            if body == "batch":
                batch = message.batch
                rows = len(batch.task_index) + len(batch.events) + len(batch.triggers)
                self._charge(flow, rows, len(raw), batch.spool_id, batch.sequence, batch.tasks)
                self._intake.take_batch(flow, batch, raw)
            elif body == "heartbeat":
                self._take_heartbeat(flow, message.heartbeat)
            elif body == "hello":
                detail = "a second Hello on one stream; connect anew to change what it says"
                raise self._greeter.refuse(
                    grpc.StatusCode.FAILED_PRECONDITION, "second_hello", detail, host=flow.stream.host
                )
            # Anything else is a message of a newer protocol version that this one need not understand.

    def _charge(
        self,
        flow: Flow,
        rows: int,
        size: int,
        spool_id: str,
        sequence: int,
        tasks: Collection[agent_pb2.Task] = (),
    ) -> None:
        """Charge the host's quota for a batch; raises OverQuotaError where it is used up."""
        stream = flow.stream
        if not stream.is_importer:
            flow.pace_ms = self.quotas.take(
                stream.host, rows=rows, size=size, spool_id=spool_id, sequence=sequence, tasks=tasks
            )

    def _take_heartbeat(self, flow: Flow, heartbeat: agent_pb2.Heartbeat) -> None:
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

    def _note(self, flow: Flow, now_unix_ns: int) -> None:
        stream, record = flow.stream, flow.record
        flow.record = replace(
            record,
            last_seen_unix_ns=now_unix_ns,
            spooled_batches=stream.spooled_batches,
            dropped_batches=stream.dropped_batches,
            coefficient_version=stream.coefficient_version,
            jobs=tuple(sorted(stream.jobs)),
        )
        self._journal.note_host(flow.record)
