"""The fleet API: each method of `whitepanda.v1.Fleet`, with the function that answers it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from central.api import details, facts, history, hosts, incidents, overview, silences, versions, vms
from central.api.context import Context
from central.api.decisions import placement, runtimes, upgrades
from central.api.limits import QUEUED
from central.api.requests import ApiError, check
from whitepanda.common.protocol import ERROR_FIELD
from whitepanda.common.tls import peer_certificate

_LOOK_S = 0.5  # how often it is looked whether a client is still there

#: Lists are in a stable order.
METHODS: Mapping[str, Callable[[Context, Any], Awaitable[Any]]] = {
    "CompareSides": upgrades.compare,
    "GetDataHealth": overview.get_data_health,
    "GetFacts": facts.get_facts,
    "GetFleetStatus": overview.get_status,
    "GetHostTimeline": details.get_host_timeline,
    "GetIncident": incidents.get_incident,
    "GetIncidentTimeline": silences.get_timeline,
    "GetJob": details.get_job,
    "GetOverview": overview.get_overview,
    "GetVmHistory": incidents.get_vm_history,
    "ListAudit": silences.list_audit,
    "ListCoefficients": versions.list_coefficients,
    "ListEvents": incidents.list_events,
    "ListFacts": facts.list_facts,
    "ListHosts": hosts.list_hosts,
    "ListIncidents": incidents.list_incidents,
    "ListJobLoadings": placement.list_loadings,
    "ListJobStatistics": versions.list_statistics,
    "ListSilences": silences.list_silences,
    "ListSuspectJobs": incidents.list_suspect_jobs,
    "PlanObservation": upgrades.plan,
    "PredictRuntime": runtimes.predict,
    "QuerySeries": history.query_series,
    "TopVms": history.top_vms,
    "ListFleetVms": vms.list_vms,
    "RankHosts": placement.rank_hosts,
    "Search": vms.search,
}
#: Those that write, for `Role.RESPONDER`; they are given the caller's name too.
WRITES: Mapping[str, Callable[[Context, Any, str], Awaitable[Any]]] = {
    "AcknowledgeIncident": silences.acknowledge,
    "AddIncidentNote": silences.add_note,
    "CreateSilence": silences.create_silence,
    "EndSilence": silences.end_silence,
}


class Fleet(Context):
    """Answers the methods of `whitepanda.v1.Fleet`, asked by gRPC or HTTP."""

    async def answer(
        self,
        method: str,
        request: Any,
        has_left: Callable[[], Awaitable[bool]] | None = None,
        names: frozenset[str] = frozenset(),
    ) -> Any:
        """Answer an authorised caller's request, when its turn comes; raises ApiError if there is no answer.

        `has_left` returns whether the client left while it waited; then nothing is asked, or the question is cancelled
        (CANCELLED). `names` are those of the caller's certificate; none without a certificate.
        """
        check(request)
        async with self.turns.turn(has_queue=method in QUEUED):
            if has_left is not None and await has_left():
                raise ApiError(grpc.StatusCode.CANCELLED, "the client left")
            if method in WRITES:
                answer = await WRITES[method](self, request, ", ".join(sorted(names)))
                self.on_written()
                return answer
            return await _unless_left(METHODS[method](self, request), has_left if method in QUEUED else None)


async def _unless_left(answer: Awaitable[Any], has_left: Callable[[], Awaitable[bool]] | None) -> Any:
    """Return the answer; CANCELLED if the client leaves meanwhile. gRPC cancels by itself."""
    if has_left is None:
        return await answer
    asked = asyncio.ensure_future(answer)
    try:
        while not (await asyncio.wait({asked}, timeout=_LOOK_S))[0]:
            if await has_left():
                raise ApiError(grpc.StatusCode.CANCELLED, "the client left")
        return asked.result()
    finally:
        asked.cancel()


@dataclass
class Servicer:
    """The fleet API for gRPC: `central.web.grpc_services.handlers` takes the methods from it."""

    fleet: Fleet

    def __getattr__(self, method: str) -> Callable[[Any, Any], Awaitable[Any]]:
        if method not in METHODS and method not in WRITES:
            raise AttributeError(method)

        async def answer(request: Any, context: Any) -> Any:
            try:
                names, _ = peer_certificate(context) if method in WRITES else (frozenset[str](), "")
                return await self.fleet.answer(method, request, names=names)
            except ApiError as error:
                await context.abort(error.code, str(error), ((ERROR_FIELD, error.field),))

        return answer
