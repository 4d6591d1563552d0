"""Requests by gRPC are held to the same limits as those by HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from central.api.limits import problem_of
from central.api.paging import Context, abort
from central.web.openapi import ROUTES

__all__ = ["CheckedRequests"]

_QUEUED = frozenset(route.method for route in ROUTES if route.has_queue)


class CheckedRequests:
    """The fleet API for gRPC: each request is looked at with `problem_of`, and waits for its turn.

    Args:
        fleet: what answers.

    """

    def __init__(self, fleet: Any) -> None:
        self._fleet = fleet

    def __getattr__(self, name: str) -> Callable[[Any, Context], Any]:
        method = getattr(self._fleet, name)

        async def checked(request: Any, context: Context) -> Any:
            problem = problem_of(request)
            if problem:
                await abort(context, grpc.StatusCode.INVALID_ARGUMENT, problem)
            async with self._fleet.turns.turn(has_queue=name in _QUEUED):
                return await method(request, context)

        return checked
