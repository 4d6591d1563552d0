"""The whole fleet: totals of central's work, the fleet at a glance, and the health of its data."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from importlib import metadata

from central.api.hosts import Hosts, by_reason
from central.api.incidents import IncidentHistory, mark_open
from central.api.lake_queries import RecentVms
from central.api.limits import MAX_TIME_UNIX_NS
from central.api.requests import read_top
from central.authorisation.revocation_list import Revoked
from central.build.status import BuildStatus
from central.ingest.sessions import StreamRegistry
from central.journal.latency import BOUNDS_S
from central.journal.writer import Journal
from central.lake.errors import LakeError
from central.lake.segments import Lake
from central.lake.vm_windows import SlowError
from central.own_threads import SharedAnswer
from whitepanda.common import log
from whitepanda.common.protocol import PROTOCOL_VERSION
from whitepanda.common.tls import OwnCertificate, TlsFiles
from whitepanda.v1 import fleet_pb2

_S_NS = 10**9
_MINUTE_NS = 60 * _S_NS
_DAY_NS = 86_400 * _S_NS
_DAYS = 31
_REST = 9.0  # so totals take a tenth of a core at most


@dataclass(frozen=True, slots=True)
class LakeCounts:
    """Segments and rows of the lake, in all and by day; `newest_unix_s` is the last segment's time, 0 for none."""

    segments: int
    rows: int
    newest_unix_s: float
    days: list[fleet_pb2.LakeDay]


class LakeTotals(SharedAnswer[LakeCounts]):
    """Counts segments and rows of the lake, once for all callers."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(self._count, _REST)
        self._lake = lake
        self._rows: dict[str, int] = {}  # by segment

    def _count(self) -> LakeCounts:
        """Count rows. Segments never change, so each footer is read once; unreadable ones are tried again."""
        counted: dict[str, int] = {}
        days: dict[date, fleet_pb2.LakeDay] = {}
        segments = self._lake.segments()
        for segment in segments:
            count = self._rows.get(segment.name)
            if count is None:
                with contextlib.suppress(LakeError, OSError):  # `damaged_files` and `lake verify` name it
                    count = segment.rows
            if count is not None:
                counted[segment.name] = count
            day = days.setdefault(segment.day, fleet_pb2.LakeDay(day=segment.day.isoformat()))
            day.segments += 1
            day.rows += count or 0
            day.size_bytes += segment.size_bytes
        self._rows = counted
        return LakeCounts(
            segments=len(segments),
            rows=sum(counted.values()),
            newest_unix_s=max((segment.modified_unix_s for segment in segments), default=0.0),
            days=[days[day] for day in sorted(days, reverse=True)[:_DAYS]],
        )


@dataclass
class Parts:
    """States of the other parts of central; an error is "" where there is none."""

    roll_error: Callable[[], str] = str
    incidents_error: Callable[[], str] = str
    webhooks: Callable[[], list[fleet_pb2.WebhookReceiver]] = list
    over_quota: Callable[[], Mapping[str, Mapping[str, int]]] = dict  # what was refused, by host and budget
    certificate: OwnCertificate = field(default_factory=lambda: OwnCertificate(TlsFiles()))
    revoked: Revoked = field(default_factory=Revoked)


@dataclass(eq=False)
class Status:
    """Answers on central's own work."""

    journal: Journal
    registry: StreamRegistry
    builder: BuildStatus
    history: IncidentHistory
    hosts: Hosts
    totals: LakeTotals
    parts: Parts
    started_unix_ns: int

    def __post_init__(self) -> None:
        """Share one count of open incidents between callers."""
        self._open_incidents = SharedAnswer(self.history.count_open, _REST)

    async def get(self, _request: fleet_pb2.GetFleetStatusRequest) -> fleet_pb2.FleetStatus:
        """Totals of ingest, lake and builds."""
        totals, incidents_error = await self.totals.get(), self.parts.incidents_error()
        # A history that is known to be away is not asked.
        open_incidents = None if incidents_error else await self._open_incidents.get()
        stats, built = self.journal.stats, self.builder.current
        times = self.journal.ack_times
        return fleet_pb2.FleetStatus(
            central_version=metadata.version("whitepanda"),
            protocol_version=PROTOCOL_VERSION,
            started_unix_ns=self.started_unix_ns,
            connected_hosts=len(self.registry),
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
            last_build_error=self.builder.last_error,
            days_left_out=self.builder.left_out.days,
            rows_left_out=self.builder.left_out.rows,
            machines_left_out=built.manifest.machines_left_out if built else (),
            damaged_files=self.builder.damaged_files,
            accepted_events=stats.accepted_events,
            rejected_events=by_reason(stats.rejected_events),
            refused_streams=by_reason(self.registry.refused),
            last_commit_error=self.journal.failure,
            last_roll_error=self.parts.roll_error(),
            last_incidents_error=incidents_error,
            acknowledgements=fleet_pb2.AcknowledgementTimes(bound_s=BOUNDS_S, batches=times.counts, sum_s=times.sum_s),
            known_hosts=len(self.journal.hosts),
            open_incidents=open_incidents,
            webhooks=self.parts.webhooks(),
            certificate_expiry_unix_ns=round((self.parts.certificate.expiry_unix_s() or 0) * 1e9),
            revoked_certificates=len(self.parts.revoked.serials),
            last_revocation_error=self.parts.revoked.problem,
            over_quota=len(self.hosts.over_quota()),
            paced_hosts=len(self.hosts.paced()),
        )


@dataclass(eq=False)
class Overview:
    """Answers on the fleet as a whole."""

    builder: BuildStatus
    history: IncidentHistory
    hosts: Hosts
    recent: RecentVms
    totals: LakeTotals
    parts: Parts
    clock_unix_ns: Callable[[], int]
    refreshing: asyncio.Task[None] | None = None  # which VMs run now

    async def get(self, request: fleet_pb2.GetOverviewRequest) -> fleet_pb2.Overview:
        """The fleet at a glance, without waiting for the lake."""
        top = read_top(request.top, 20)
        now, store = self.clock_unix_ns(), self.history.store
        since = min(request.since_unix_ns or (now - _DAY_NS) // _MINUTE_NS * _MINUTE_NS, MAX_TIME_UNIX_NS)
        open_since = self.history.open_since_unix_ns
        totals = await self.history.ask(store.totals, since_unix_ns=since, open_since_unix_ns=open_since, top=top)
        is_open = mark_open(await self.history.ask(store.open_now, open_since, limit=top), open_since)
        silence = self.hosts.silence(now)
        hosts, connected_hosts = self.hosts.counts()
        running, is_old = self.recent.known()
        if is_old and (self.refreshing is None or self.refreshing.done()):
            self.refreshing = asyncio.create_task(self._refresh(), name="who runs now")
        built = self.builder.current
        for antagonist in totals.antagonists:
            known = None if built is None else built.coefficient(antagonist.job)
            antagonist.coefficient = float("nan") if known is None else known.value
            antagonist.standard_error = float("nan") if known is None else known.standard_error
        found = fleet_pb2.Overview(
            since_unix_ns=since,
            hosts=hosts,
            connected_hosts=connected_hosts,
            late_hosts=silence.late_hosts,
            gone_hosts=silence.gone_hosts,
            is_counted=running is not None,
            vms=0 if running is None else len(running.vms),
            jobs=0 if running is None else running.jobs,
            open=is_open,
            last_incidents_error=self.parts.incidents_error(),
        )
        found.MergeFrom(totals)
        return found

    async def get_data_health(self, request: fleet_pb2.GetDataHealthRequest) -> fleet_pb2.DataHealth:
        """What the lake has by day, which hosts send nothing, and which are held back."""
        top = read_top(request.top, 100)
        totals = await self.totals.get()
        held_back = self.hosts.held_back()
        found = self.hosts.silence(self.clock_unix_ns())
        del found.silent[top:]
        found.days.extend(totals.days)
        found.last_segment_unix_ns = int(totals.newest_unix_s * _S_NS)
        found.held_back.extend(held_back[:top])
        found.held_back_hosts = len(held_back)
        return found

    async def _refresh(self) -> None:
        try:
            await asyncio.to_thread(self.recent.read)
        except (SlowError, LakeError, OSError):
            pass  # reported by GetJob, which waits for it
        except Exception as error:  # noqa: BLE001 - no caller waits for this task: logged here, or never
            log.get("api").warning("who runs now is not known", error=f"{type(error).__name__}: {error}")
