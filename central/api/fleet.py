"""The fleet API: each method of `whitepanda.v1.Fleet`, with the function that answers it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from central.api import details, hosts, incidents, overview, versions
from central.api.context import Context
from central.api.decisions import placement, runtimes, upgrades
from central.api.limits import QUEUED
from central.api.requests import ApiError, check
from whitepanda.common.protocol import ERROR_FIELD

#: Lists are in a stable order.
METHODS: Mapping[str, Callable[[Context, Any], Awaitable[Any]]] = {
    "CompareSides": upgrades.compare,
    "GetDataHealth": overview.get_data_health,
    "GetFleetStatus": overview.get_status,
    "GetHostTimeline": details.get_host_timeline,
    "GetIncident": incidents.get_incident,
    "GetJob": details.get_job,
    "GetOverview": overview.get_overview,
    "GetVmHistory": incidents.get_vm_history,
    "ListCoefficients": versions.list_coefficients,
    "ListEvents": incidents.list_events,
    "ListHosts": hosts.list_hosts,
    "ListIncidents": incidents.list_incidents,
    "ListJobLoadings": placement.list_loadings,
    "ListJobStatistics": versions.list_statistics,
    "ListSuspectJobs": incidents.list_suspect_jobs,
    "PlanObservation": upgrades.plan,
    "PredictRuntime": runtimes.predict,
    "RankHosts": placement.rank_hosts,
}


class Fleet(Context):
    """Answers the methods of `whitepanda.v1.Fleet`, asked by gRPC or HTTP."""

    async def answer(self, method: str, request: Any, has_left: Callable[[], Awaitable[bool]] | None = None) -> Any:
        """Answer an authorised caller's request, when its turn comes; raises ApiError if there is no answer.

        `has_left` returns whether the client left while it waited; then nothing is asked (CANCELLED).
        """
        check(request)
        async with self.turns.turn(has_queue=method in QUEUED):
            if has_left is not None and await has_left():
                raise ApiError(grpc.StatusCode.CANCELLED, "the client left")
            return await METHODS[method](self, request)


@dataclass
class Servicer:
    """The fleet API for gRPC: `central.web.grpc_services.handlers` takes the methods from it."""

    fleet: Fleet

    def __getattr__(self, method: str) -> Callable[[Any, Any], Awaitable[Any]]:
        if method not in METHODS:
            raise AttributeError(method)

        async def answer(request: Any, context: Any) -> Any:
            try:
                return await self.fleet.answer(method, request)
            except ApiError as error:
                await context.abort(error.code, str(error), ((ERROR_FIELD, error.field),))

        return answer
