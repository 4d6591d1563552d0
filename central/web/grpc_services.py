"""gRPC services for questions: fleet API, health, reflection. Refused callers are refused before anything is read.

gRPC's own handlers read and parse a whole request before a method can check its caller. These take raw bytes, as
`central.ingest.service` does, which has its own bounds on agents' streams; on the wire they are the same.
"""

import asyncio
import contextlib
import resource
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection, reflection_pb2

from central.authorisation.roles import ROLES, Access, Role
from central.config import CentralConfig
from central.ingest.peers import Peers
from whitepanda.common.tls import peer_certificate
from whitepanda.v1 import fleet_pb2

Context = Any  # grpc.aio.ServicerContext[bytes, bytes]
_FLEET_BYTES = 512 << 10  # of a request: 10,000 names of 50 characters
_SMALL_BYTES = 4 << 10  # of a request to health and reflection, which return it or keep it
_MOST_CALLS = 64  # of one certificate at a time
_MOST_WAITING = 256  # of them, that wait to be refused; further ones are refused at once
_MOST_STREAMS = 4  # of them to reflection and Health.Watch, and as many to Health.Check
_READ_S = 10.0  # for a request to arrive
_IDLE_S = 60.0  # for the next one on a stream, and for an answer to be read there
_OWED_S = 0.01  # the wait for a refused call, or one that every certificate may make
_LARGE_BYTES_PER_S = 4 << 20  # the pace of too large requests, of which gRPC reads up to 16 MiB

_CONNECTION_STREAMS = 100  # at a time on one connection: agents have one stream each
_SPARE_CONNECTIONS = 1024  # beside the agents' own: operators, and those that are being opened or have broken off
_SPARE_FILES = 1024  # for files, pipes and processes; a quarter where the system allows few
_IDLE_CONNECTION_MS = 600_000  # gRPC looks at each connection so often: with 60 s, twice the CPU
_HANDSHAKE_MS = 20_000  # as long as clients try


class Doorkeeper:
    """Decides on calls before they are read: who may call, how many at a time, and how large a request is.

    `refused` counts refusals, except those by `access`, by reason.
    """

    def __init__(self, access: Access, refused: Counter[str]) -> None:
        self.peers = Peers(access.revoked)
        self._access = access
        self._refused = refused

    @contextlib.asynccontextmanager
    async def call(self, method: str, context: Context) -> AsyncIterator[None]:
        """Let a call of a method ("/service/name") in while this lasts, or end it with a status."""
        peer, role = self.peers.enter(peer_certificate(context)), ROLES[method]
        try:
            refusal = self._access.refusal(role, peer.names, peer.revoked)
            is_extra = refusal is None and peer.open > _MOST_CALLS
            if (refusal or is_extra or role is Role.ANYONE) and peer.open <= _MOST_WAITING:
                peer.owe(_OWED_S)
                await peer.wait()
            if refusal is not None:
                await context.abort(*refusal)
            if is_extra:
                await self._refuse(context, "too_many_calls", f"{_MOST_CALLS} calls of this certificate are open")
            yield
        except (grpc.aio.InternalError, grpc.aio.UsageError):  # the client left: no traceback in the log
            raise asyncio.CancelledError from None
        finally:
            self.peers.leave(peer)

    @contextlib.asynccontextmanager
    async def stream(self, context: Context, kind: str = "streams") -> AsyncIterator[None]:
        """Count a call that was let in as one of its kind while this lasts, or end it with a status."""
        calls = self.peers.of(peer_certificate(context)).calls
        calls[kind] += 1
        try:
            if calls[kind] > _MOST_STREAMS:
                detail = f"{_MOST_STREAMS} {kind} of this certificate are open"
                await self._refuse(context, "too_many_calls", detail)
            yield
        finally:
            calls[kind] -= 1

    async def request(self, context: Context, kind: Any, most_bytes: int, within_s: float) -> Any:
        """Return a call's next request, None after the last one; a wrong, too large or late one ends the call."""
        try:
            raw = await asyncio.wait_for(context.read(), within_s)
        except TimeoutError:
            detail = f"no request within {within_s:g} s"
            await self._refuse(context, "slow_request", detail, grpc.StatusCode.DEADLINE_EXCEEDED)
        if raw is grpc.aio.EOF:
            return None
        size = len(raw)
        if size > most_bytes:
            del raw  # gRPC keeps the exception that ends a call, and so this frame, until cycles are collected
            self.peers.of(peer_certificate(context)).owe(size / _LARGE_BYTES_PER_S)
            await self._refuse(context, "large_request", f"a request of {size} bytes; {most_bytes} are allowed")
        try:
            return kind.FromString(raw)
        except DecodeError:
            del raw
            detail = f"a request of {size} bytes is not a {kind.DESCRIPTOR.full_name}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, detail)

    async def _refuse(
        self, context: Context, reason: str, detail: str, code: grpc.StatusCode = grpc.StatusCode.RESOURCE_EXHAUSTED
    ) -> NoReturn:
        self._refused[reason] += 1
        await context.abort(code, detail)
        raise AssertionError("abort raises")


def handlers(
    door: Doorkeeper, fleet: Any, servicer: health.HealthServicer, services: Iterable[str]
) -> tuple[grpc.GenericRpcHandler, ...]:
    """Return the handlers of the fleet API, health and reflection for a grpc.aio server.

    `fleet` has the methods of `whitepanda.v1.Fleet`; `services` are names of other services, for reflection.
    """
    fleet_service = fleet_pb2.DESCRIPTOR.services_by_name["Fleet"]
    health_service = health_pb2.DESCRIPTOR.services_by_name["Health"]
    asked = {
        method.name: _unary(door, GetMessageClass(method.input_type), getattr(fleet, method.name), _FLEET_BYTES)
        for method in fleet_service.methods
    }
    checked = _unary(door, health_pb2.HealthCheckRequest, servicer.Check, _SMALL_BYTES, "health checks")
    watched: Any = grpc.stream_stream_rpc_method_handler(_watch(door, servicer))
    names = (*services, health_service.full_name, reflection.SERVICE_NAME)
    reflected: Any = grpc.stream_stream_rpc_method_handler(_reflect(door, names))
    by_name = grpc.method_handlers_generic_handler
    return (
        by_name(fleet_service.full_name, asked),
        by_name(health_service.full_name, {"Check": checked, "Watch": watched}),
        by_name(reflection.SERVICE_NAME, {"ServerReflectionInfo": reflected}),
    )


def _unary(
    door: Doorkeeper, kind: Any, answer: Callable[[Any, Context], Awaitable[Any]], most_bytes: int, counted: str = ""
) -> Any:
    async def answered(_requests: object, context: Context) -> bytes:
        async with door.stream(context, counted) if counted else contextlib.nullcontext():
            request = await door.request(context, kind, most_bytes, _READ_S)
        if request is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
        try:
            return cast("bytes", (await answer(request, context)).SerializeToString())
        except grpc.aio.AbortError as error:
            del request  # as above
            raise error.with_traceback(None)  # noqa: B904 - it is the same one

    return grpc.stream_unary_rpc_method_handler(cast("Any", answered))


def _watch(door: Doorkeeper, servicer: health.HealthServicer) -> Any:
    async def watched(_requests: object, context: Context) -> None:
        async with door.stream(context):
            request = await door.request(context, health_pb2.HealthCheckRequest, _SMALL_BYTES, _READ_S)
            if request is not None:
                await servicer.Watch(request, cast("Any", SimpleNamespace(write=partial(_write, context))))

    return watched


async def _write(context: Context, message: Any) -> None:
    try:
        await asyncio.wait_for(context.write(message.SerializeToString()), _IDLE_S)
    except TimeoutError:  # a status would wait for the client as well
        raise asyncio.CancelledError from None


def _reflect(door: Doorkeeper, names: Iterable[str]) -> Any:
    servicer: Any = reflection.aio.ReflectionServicer(names)

    async def one(request: Any) -> AsyncIterator[Any]:
        yield request

    async def reflected(_requests: object, context: Context) -> None:
        async with door.stream(context):
            kind = reflection_pb2.ServerReflectionRequest
            while (request := await door.request(context, kind, _SMALL_BYTES, _IDLE_S)) is not None:
                async for answer in servicer.ServerReflectionInfo(one(request), context):
                    await _write(context, answer)

    return reflected


def channel_options(config: CentralConfig) -> tuple[tuple[str, int], ...]:
    """Return the server's limits of connections, which leave file descriptors for central's own work."""
    most = config.ingest.max_streams + _SPARE_CONNECTIONS
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed != resource.RLIM_INFINITY:
        beside = min(_SPARE_FILES, allowed // 4) + config.http.max_connections
        most = min(most, max(allowed - beside, allowed // 4) // _listeners(config.central.listen))
    return (
        ("grpc.max_concurrent_streams", _CONNECTION_STREAMS),
        ("grpc.max_allowed_incoming_connections", most),
        ("grpc.max_connection_idle_ms", _IDLE_CONNECTION_MS),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.http2.max_ping_strikes", 0),  # the end of such a connection takes gRPC minutes of CPU
    )


def _listeners(listen: str) -> int:
    """Return the number of addresses that a server listens on there: gRPC counts the connections of each."""
    host, _, port = listen.rpartition(":")
    try:
        return len(socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM))
    except OSError:  # reported when central listens
        return 1
