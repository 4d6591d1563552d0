"""The fleet API: each method of `whitepanda.v1.Fleet`, with the class that answers it."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from central.api.admission import Turns, Worker
from central.api.details import HostTimelines, Jobs
from central.api.hosts import Hosts
from central.api.incidents import Events, IncidentHistory, Incidents, VmHistories
from central.api.lake_queries import RecentVms
from central.api.limits import QUEUED
from central.api.names import KnownNames
from central.api.overview import LakeTotals, Overview, Parts, Status
from central.api.placement import Placement
from central.api.requests import ApiError, check
from central.api.runtimes import ModelFile, Runtimes
from central.api.upgrades import Upgrades
from central.api.versions import Versions
from central.build.status import BuildStatus
from central.coefficients.history import CoefficientHistory
from central.config import PlacementSection, RuntimeSection
from central.incidents.store import IncidentStore
from central.ingest.sessions import StreamRegistry
from central.journal.writer import Journal
from central.lake.segment_times import SegmentTimes
from central.lake.segments import Lake
from central.lake.vm_windows import VmWindows
from central.own_threads import SharedAnswer
from central.placement.live import LiveFleet
from whitepanda.common.protocol import ERROR_FIELD

_AT_ONCE = 4  # questions; fewer than asyncio's own pool has threads


class Fleet:
    """Answers the methods of `whitepanda.v1.Fleet`, asked by gRPC or HTTP. Lists are in a stable order.

    `importers` are certificate names that send traces. An incident is over after `gap_ns` without a report.
    """

    def __init__(
        self,
        journal: Journal,
        registry: StreamRegistry,
        lake: Lake,
        builder: BuildStatus,
        incidents: IncidentStore,
        *,
        placement: PlacementSection | None = None,
        runtime: RuntimeSection | None = None,
        importers: tuple[str, ...] = (),
        gap_ns: int = 900 * 10**9,
        parts: Parts | None = None,
        clock_unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        clock, section, parts = clock_unix_ns, placement or PlacementSection(), parts or Parts()
        times, totals, drawing = SegmentTimes(lake), LakeTotals(lake), Worker(most_waiting=16)
        recent = RecentVms(lake, times, gone_s=section.gone_s, refresh_s=section.refresh_s, clock_unix_ns=clock)
        live = LiveFleet(lake, section, lambda: [stream.host for stream in registry.connected()], clock)
        snapshot = SharedAnswer(live.snapshot)
        names = KnownNames(journal, registry, builder, incidents)
        history = IncidentHistory(incidents, gap_ns, clock)
        self.turns = Turns(_AT_ONCE)
        self.hosts = hosts = Hosts(journal, registry, frozenset(importers), parts.over_quota)
        self.status = Status(journal, registry, builder, history, hosts, totals, parts, clock())
        self.overview = Overview(builder, history, hosts, recent, totals, parts, clock)
        self.versions = Versions(builder, names)
        self.incidents = Incidents(history, names)
        self.events = Events(journal, names)
        self.vms = VmHistories(journal, history, registry, VmWindows(times), drawing, self.turns, clock)
        self.jobs = Jobs(builder, CoefficientHistory(builder.versions), history, recent, drawing, self.turns)
        self.timelines = HostTimelines(
            journal, builder, history, hosts, registry.vm_names, lake, times, drawing, self.turns, clock
        )
        self.placement = Placement(snapshot)
        models = ModelFile((runtime or RuntimeSection()).model)
        self.runtimes = Runtimes(models, journal, snapshot, Worker(most_waiting=64))
        self.upgrades = Upgrades(lake, journal, clock, Worker(most_waiting=4))
        self.methods: Mapping[str, Callable[[Any], Awaitable[Any]]] = {
            "CompareSides": self.upgrades.compare,
            "GetDataHealth": self.overview.get_data_health,
            "GetFleetStatus": self.status.get,
            "GetHostTimeline": self.timelines.get,
            "GetIncident": self.incidents.get,
            "GetJob": self.jobs.get,
            "GetOverview": self.overview.get,
            "GetVmHistory": self.vms.get,
            "ListCoefficients": self.versions.list_coefficients,
            "ListEvents": self.events.list_events,
            "ListHosts": self.hosts.list_hosts,
            "ListIncidents": self.incidents.list_incidents,
            "ListJobLoadings": self.placement.list_loadings,
            "ListJobStatistics": self.versions.list_statistics,
            "ListSuspectJobs": self.incidents.list_suspect_jobs,
            "PlanObservation": self.upgrades.plan,
            "PredictRuntime": self.runtimes.predict,
            "RankHosts": self.placement.rank_hosts,
        }

    async def answer(self, method: str, request: Any, has_left: Callable[[], Awaitable[bool]] | None = None) -> Any:
        """Answer an authorised caller's request, when its turn comes; raises ApiError where there is no answer.

        `has_left` returns whether the client left while it waited; then nothing is asked (CANCELLED).
        """
        check(request)
        async with self.turns.turn(has_queue=method in QUEUED):
            if has_left is not None and await has_left():
                raise ApiError(grpc.StatusCode.CANCELLED, "the client left")
            return await self.methods[method](request)


@dataclass
class Servicer:
    """The fleet API for gRPC: `central.web.grpc_services.handlers` takes the methods from it."""

    fleet: Fleet

    def __getattr__(self, method: str) -> Callable[[Any, Any], Awaitable[Any]]:
        if method not in self.fleet.methods:
            raise AttributeError(method)

        async def answer(request: Any, context: Any) -> Any:
            try:
                return await self.fleet.answer(method, request)
            except ApiError as error:
                await context.abort(error.code, str(error), ((ERROR_FIELD, error.field),))

        return answer
