"""The fleet API: what central knows, for operators' certificates only."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import TypeVar

import grpc
import msgspec
import pyarrow as pa

from central.api.details import DetailQueries
from central.api.incidents import IncidentQueries
from central.api.overview import LakeTotals, OverviewQueries, by_reason, lake_days
from central.api.paging import (
    MAX_PAGE_SIZE,
    Admitted,
    Context,
    Page,
    Token,
    abort,
    check_times,
    encode,
    read_page,
)
from central.api.placement import PlacementQueries
from central.api.recent import RecentVms
from central.api.runtimes import ModelFile, RuntimeQueries
from central.api.upgrades import SideQueries
from central.api.work import Turns, Worker
from central.build.builder import Builder
from central.coefficients.history import CoefficientHistory
from central.coefficients.versions import BuiltVersion
from central.config import PlacementSection, RuntimeSection
from central.incidents.store import IncidentStore, StoreError
from central.ingest.sessions import StreamRegistry
from central.journal.latency import BOUNDS_S
from central.journal.writer import HostRecord, Journal
from central.lake.segment_times import SegmentTimes
from central.lake.segments import Lake, LakeError
from central.lake.vm_windows import VmWindows
from central.own_threads import SharedAnswer
from central.placement.live import LiveFleet
from central.revoked import Revoked, revoked_text
from whitepanda.common.protocol import PROTOCOL_VERSION
from whitepanda.common.tls import OwnCertificate, TlsFiles, peer_names, peer_serial, shown_names
from whitepanda.v1 import agent_pb2, fleet_pb2, fleet_pb2_grpc

__all__ = ["MAX_PAGE_SIZE", "Fleet"]

_MAX_INT64 = 2**63 - 1
_AT_ONCE = 4  # questions; fewer than asyncio's own pool has threads
_REST = 9.0  # so totals take a tenth of a core at most

Row = TypeVar("Row")


class Fleet(
    IncidentQueries,
    PlacementQueries,
    SideQueries,
    RuntimeQueries,
    OverviewQueries,
    DetailQueries,
    fleet_pb2_grpc.FleetServicer,  # type: ignore[misc] # generated code is untyped
):
    """The service `whitepanda.v1.Fleet`.

    Lists are in a stable order. A page token stays good while versions come: its pages are of the version
    that the first page was of, until that one is deleted.

    Args:
        journal: totals and hosts.
        registry: which hosts are connected.
        lake: how much there is.
        builder: the version in force, and how the last build went.
        incidents: their history.
        operators: certificate names that may ask.
        placement: how loading vectors are made of windows.
        runtime: where the model of runtimes is.
        importers: certificate names that send traces: no hosts, so they are never late or gone.
        roll_error: says why the last roll failed, "" if it did not.
        incidents_error: the same of what writes incident history.
        webhooks: says how each of them does.
        gap_ns: an incident without a report for so long is over.
        certificate: central's own.
        revoked: certificates that no longer count.
        over_quota: returns what was refused of hosts that are over their quota, by host and budget.

    """

    def __init__(
        self,
        journal: Journal,
        registry: StreamRegistry,
        lake: Lake,
        builder: Builder,
        incidents: IncidentStore,
        *,
        operators: tuple[str, ...],
        placement: PlacementSection | None = None,
        runtime: RuntimeSection | None = None,
        importers: tuple[str, ...] = (),
        roll_error: Callable[[], str] = str,
        incidents_error: Callable[[], str] = str,
        webhooks: Callable[[], list[fleet_pb2.WebhookReceiver]] = list,
        gap_ns: int = 900 * 10**9,
        certificate: OwnCertificate | None = None,
        revoked: Revoked | None = None,
        over_quota: Callable[[], Mapping[str, Mapping[str, int]]] = dict,
        clock_unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        placement = placement or PlacementSection()
        self._live = LiveFleet(
            lake,
            placement,
            lambda: [stream.host for stream in registry.connected()],
            clock_unix_ns,
        )
        self.turns = Turns(_AT_ONCE)
        self._snapshot = SharedAnswer(self._live.snapshot)
        self._heavy = Worker(most_waiting=4)
        self._predicting = Worker(most_waiting=64)
        self._clock_unix_ns = clock_unix_ns
        self._models = ModelFile((runtime or RuntimeSection()).model)
        self._journal = journal
        self._registry = registry
        self._lake = lake
        self._times = SegmentTimes(lake)
        self._vm_windows = VmWindows(lake, times=self._times)
        self._recent = RecentVms(
            lake,
            self._times,
            gone_s=placement.gone_s,
            refresh_s=placement.refresh_s,
            clock_unix_ns=clock_unix_ns,
        )
        self._refreshing: asyncio.Task[None] | None = None
        self._drawing = Worker(most_waiting=16)
        self._history = CoefficientHistory(builder.versions)
        self._builder = builder
        self._incidents = incidents
        self._roll_error = roll_error
        self._incidents_error = incidents_error
        self._webhooks = webhooks
        self._gap_ns = gap_ns
        self._certificate = certificate or OwnCertificate(TlsFiles())
        self._revoked = revoked or Revoked()
        self._over_quota = over_quota
        self._operators = frozenset(operators)
        self._importers = frozenset(importers)
        self._started_unix_ns = clock_unix_ns()
        self._older: BuiltVersion | None = None  # the last version asked for that is not in force any more
        self._segment_rows: dict[str, int] = {}
        self._totals = SharedAnswer(self._count_segments, _REST)
        self._open_incidents = SharedAnswer(self._count_open, _REST)

    async def GetFleetStatus(  # noqa: N802 - the protocol's name
        self, _request: fleet_pb2.GetFleetStatusRequest, context: Context
    ) -> fleet_pb2.FleetStatus:
        """Totals of ingest, lake and builds."""
        await self.check_operator(context)
        totals = await self._totals.get()
        # A history that is known to be away keeps nobody waiting.
        open_incidents = None if self._incidents_error() else await self._open_incidents.get()
        stats, built = self._journal.stats, self._builder.current
        times = self._journal.ack_times
        return fleet_pb2.FleetStatus(
            central_version=metadata.version("whitepanda"),
            protocol_version=PROTOCOL_VERSION,
            started_unix_ns=self._started_unix_ns,
            connected_hosts=len(self._registry),
            accepted_batches=stats.accepted_batches,
            accepted_rows=stats.accepted_rows,
            duplicate_batches=stats.duplicate_batches,
            rejected=by_reason(stats.rejected_rows),
            rejected_batches=by_reason(stats.rejected_batches),
            journal_batches=stats.journal_batches,
            lake_segments=totals.segments,
            lake_rows=totals.rows,
            coefficient_version=built.version if built else 0,
            coefficient_created_unix_ns=built.manifest.created_unix_ns if built else 0,
            last_build_error=self._builder.last_error,
            days_left_out=self._builder.left_out.days,
            rows_left_out=self._builder.left_out.rows,
            machines_left_out=built.manifest.machines_left_out if built else (),
            damaged_files=self._builder.damaged_files,
            accepted_events=stats.accepted_events,
            rejected_events=by_reason(stats.rejected_events),
            refused_streams=by_reason(self._registry.refused),
            last_commit_error=self._journal.failure,
            last_roll_error=self._roll_error(),
            last_incidents_error=self._incidents_error(),
            acknowledgements=fleet_pb2.AcknowledgementTimes(
                bound_s=BOUNDS_S, batches=times.counts, sum_s=times.sum_s
            ),
            known_hosts=len(self._journal.hosts),
            open_incidents=open_incidents,
            webhooks=self._webhooks(),
            certificate_expiry_unix_ns=round((self._certificate.expiry_unix_s() or 0) * 1e9),
            revoked_certificates=len(self._revoked.serials),
            last_revocation_error=self._revoked.problem,
            over_quota=len(self._over_quota()),
            paced_hosts=len(self._paced()),
        )

    def _count_open(self) -> int | None:
        """Return how many incidents go on; None while the history does not answer."""
        try:
            return self._incidents.count_open(self._clock_unix_ns() - self._gap_ns)
        except StoreError:
            return None

    async def ListHosts(  # noqa: N802 - the name in fleet.proto
        self, request: fleet_pb2.ListHostsRequest, context: Context
    ) -> fleet_pb2.ListHostsResponse:
        """Every host that ever connected, by name."""
        await self.check_operator(context)
        page = await read_page(request, "hosts", "", context)
        names = sorted(
            name for name in self._journal.hosts if not page.token.after or name > page.token.after
        )
        shown, over_quota = names[: page.size], self._over_quota()
        token = ""
        if len(names) > page.size:
            token = encode(Token("hosts", "", 0, 0, shown[-1]))
        return fleet_pb2.ListHostsResponse(
            hosts=[self._summary(self._journal.hosts[name], over_quota) for name in shown],
            next_page_token=token,
        )

    async def ListJobStatistics(  # noqa: N802 - the name in fleet.proto
        self, request: fleet_pb2.ListJobStatisticsRequest, context: Context
    ) -> fleet_pb2.ListJobStatisticsResponse:
        """CPI statistics by job and platform; of one job where the request names one."""
        await self.check_operator(context)
        page = await read_page(request, "statistics", request.job, context)
        built = await self._version(page, context)
        if built is None:
            return fleet_pb2.ListJobStatisticsResponse()
        rows: list[agent_pb2.JobStatistics]
        if request.job:
            rows, total = _cut(built.statistics(request.job), page)
        else:
            rows, total = built.statistics_page(page.token.offset, page.size), built.statistics_count
        return fleet_pb2.ListJobStatisticsResponse(
            version=built.version, statistics=rows, next_page_token=_next(page, built, total)
        )

    async def ListCoefficients(  # noqa: N802 - the name in fleet.proto
        self, request: fleet_pb2.ListCoefficientsRequest, context: Context
    ) -> fleet_pb2.ListCoefficientsResponse:
        """Coefficients, the largest first; of one job where the request names one."""
        await self.check_operator(context)
        page = await read_page(request, "coefficients", request.job, context)
        built = await self._version(page, context)
        coefficient = built.coefficient(request.job) if built and request.job else None
        if coefficient is None:
            await self.check_names(context, jobs=[request.job])
        if built is None:
            return fleet_pb2.ListCoefficientsResponse()
        rows: list[agent_pb2.Coefficient]
        if request.job:
            rows, total = _cut([] if coefficient is None else [coefficient], page)
        else:
            rows, total = built.coefficients_page(page.token.offset, page.size), built.coefficients_count
        return fleet_pb2.ListCoefficientsResponse(
            version=built.version, coefficients=rows, next_page_token=_next(page, built, total)
        )

    async def ListEvents(  # noqa: N802 - the name in fleet.proto
        self, request: fleet_pb2.ListEventsRequest, context: Context
    ) -> fleet_pb2.ListEventsResponse:
        """What hosts report of their VMs, the last that came first."""
        await self.check_operator(context)
        await check_times(request, context)
        wanted = {
            "host": request.host,
            "vm": request.vm,
            "behaviour": request.behaviour,
            "since_unix_ns": min(request.since_unix_ns, _MAX_INT64),
            "until_unix_ns": min(request.until_unix_ns or _MAX_INT64, _MAX_INT64),
        }
        page = await read_page(request, "events", repr(sorted(wanted.items())), context)
        before = page.token.offset or _MAX_INT64
        found = await asyncio.to_thread(
            self._journal.read_events, before_id=before, limit=page.size + 1, **wanted
        )
        if not found:
            await self.check_names(context, host=request.host, vm=request.vm)
        shown = found[: page.size]
        token = ""
        if len(found) > page.size:
            token = encode(msgspec.structs.replace(page.token, offset=shown[-1][0]))
        return fleet_pb2.ListEventsResponse(
            events=[
                fleet_pb2.FleetEvent(
                    host=row.host,
                    received_unix_ns=row.received_unix_ns,
                    event=agent_pb2.VmEvent.FromString(row.payload),
                )
                for _, row in shown
            ],
            next_page_token=token,
        )

    async def check_operator(self, context: Context) -> None:
        """End the call unless an operator's certificate asks."""
        if isinstance(context, Admitted):
            return
        serial = peer_serial(context)
        if serial in self._revoked:
            await abort(context, grpc.StatusCode.UNAUTHENTICATED, revoked_text(serial))
        names = peer_names(context)
        if not names & self._operators:
            await abort(
                context,
                grpc.StatusCode.PERMISSION_DENIED,
                f"only operators may ask; none of this certificate's names ({shown_names(names)}) is in "
                "central.operators",
            )

    async def _version(self, page: Page, context: Context) -> BuiltVersion | None:
        """Return the version that the page is of: the one in force on a first page."""
        current, wanted = self._builder.current, page.token.version
        if not wanted or (current and current.version == wanted):
            return current
        older = self._older
        if older is None or older.version != wanted:
            try:
                older = await asyncio.to_thread(self._builder.versions.read, wanted)
            except (LakeError, OSError, pa.ArrowException, msgspec.MsgspecError):
                message = f"version {wanted} is no longer kept; begin again without page_token"
                await abort(context, grpc.StatusCode.FAILED_PRECONDITION, message)
            self._older = older
        return older

    def _count_segments(self) -> LakeTotals:
        """Count rows. Segments never change: each footer is read once.

        One whose footer cannot be read counts no rows, and is looked at again the next time.
        """
        known = self._segment_rows
        found = []
        counted: dict[str, int] = {}
        for segment in self._lake.segments():
            count = known.get(segment.name)
            if count is None:
                with contextlib.suppress(LakeError, OSError):  # `damaged_files` and `lake verify` tell of it
                    count = segment.rows
            found.append((segment, count or 0))
            if count is not None:
                counted[segment.name] = count
        self._segment_rows = counted
        return LakeTotals(
            segments=len(found),
            rows=sum(rows for _, rows in found),
            newest_unix_s=max((segment.modified_unix_s for segment, _ in found), default=0.0),
            days=lake_days(found),
        )

    def _summary(
        self, record: HostRecord, over_quota: Mapping[str, Mapping[str, int]]
    ) -> fleet_pb2.HostSummary:
        stream = self._registry.get(record.host)
        is_importer = record.host in self._importers
        return fleet_pb2.HostSummary(
            host=record.host,
            platform=record.platform,
            agent_version=record.agent_version,
            protocol_version=record.protocol_version,
            connected=stream is not None,
            last_seen_unix_ns=record.last_seen_unix_ns,
            accepted_rows=record.accepted_rows,
            spooled_batches=stream.spooled_batches if stream else record.spooled_batches,
            dropped_batches=stream.dropped_batches if stream else record.dropped_batches,
            coefficient_version=stream.coefficient_version if stream else record.coefficient_version,
            jobs=sorted(stream.jobs if stream else record.jobs),
            clock_offset_ns=record.clock_offset_ns,
            importer=is_importer,
            over_quota=by_reason(over_quota.get(record.host, {})),
            min_batch_interval_ms=stream.min_batch_interval_ms if stream and not is_importer else 0,
        )


def _next(page: Page, built: BuiltVersion, total: int) -> str:
    offset = page.token.offset + page.size
    if offset >= total:
        return ""
    return encode(msgspec.structs.replace(page.token, version=built.version, offset=offset))


def _cut(rows: list[Row], page: Page) -> tuple[list[Row], int]:
    return rows[page.token.offset : page.token.offset + page.size], len(rows)
