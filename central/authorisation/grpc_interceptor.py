"""Authorisation of gRPC: every RPC passes here before its method."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from central.authorisation.roles import ROLES, Access, Role
from whitepanda.common.tls import peer_names, peer_serial

__all__ = ["Authorisation"]


@dataclass
class Authorisation(grpc.aio.ServerInterceptor):
    """Refuses RPCs without a declared role, and callers who do not have the role.

    RPCs of anyone and of hosts pass unchanged, so that streams keep their own kind of method. Those of operators are
    unary; a stream would be refused.
    """

    access: Access

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the method's handler, one that asks first, or one that refuses; None where there is no such method."""
        handler = await continuation(handler_call_details)
        method: Any = handler_call_details.method
        role = ROLES.get(method)
        if handler is None or role in (Role.ANYONE, Role.HOST):
            return handler

        async def refuse(_requests: object, context: Any) -> None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{method} is open to no role")

        if role is None or handler.unary_unary is None:
            return grpc.stream_stream_rpc_method_handler(refuse)

        async def checked(request: Any, context: Any) -> Any:
            if refusal := self.access.refusal(role, peer_names(context), peer_serial(context)):
                await context.abort(*refusal)
            return await handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(
            checked, handler.request_deserializer, handler.response_serializer
        )
