"""Authorisation of the fleet API's gRPC calls, before their requests are read.

Hosts' streams are checked in `central.ingest.handshake`.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import grpc.aio

from central.authorisation.roles import ROLES, Role


class Door(Protocol):
    """Lets calls in, see `central.web.grpc_services.Doorkeeper`."""

    def call(self, method: str, context: Any) -> AbstractAsyncContextManager[object]:
        """Let a call in while this lasts, or end it with a status."""
        ...


@dataclass
class Authorisation(grpc.aio.ServerInterceptor):
    """Refuses RPCs without a declared role; others pass the door, except hosts' streams, which `central.ingest` bounds.

    gRPC reads the whole request of a unary method before it calls the method. So these methods take their requests as
    a stream, which is the same on the wire.
    """

    door: Door

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the method's handler, one that asks first, or one that refuses; None if there is no such method."""
        handler = await continuation(handler_call_details)
        method: Any = handler_call_details.method
        role = ROLES.get(method)
        if handler is None or role is Role.HOST:
            return handler
        inner = handler.stream_unary or handler.stream_stream

        async def refuse(_requests: object, context: Any) -> None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"no role may call {method}")

        if role is None or inner is None:
            return grpc.stream_stream_rpc_method_handler(refuse)

        async def checked(requests: Any, context: Any) -> Any:
            async with self.door.call(method, context):
                return await inner(requests, context)

        make = grpc.stream_unary_rpc_method_handler if handler.stream_unary else grpc.stream_stream_rpc_method_handler
        return make(checked, handler.request_deserializer, handler.response_serializer)
