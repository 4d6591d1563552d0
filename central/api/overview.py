"""The fleet API's part on the whole: the fleet at a glance, and how whole its data is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import date

import grpc

from central.api.incidents import ask_store, mark_open
from central.api.limits import MAX_TOP
from central.api.paging import Context, abort
from central.api.recent import RecentVms
from central.build.builder import Builder
from central.incidents.store import IncidentStore
from central.ingest.handshake import HEARTBEAT_MS
from central.ingest.sessions import StreamRegistry
from central.journal.writer import Journal
from central.lake.segments import Lake, LakeError, Segment
from central.lake.vm_windows import SlowError
from whitepanda.common import log
from whitepanda.v1 import fleet_pb2

__all__ = ["OverviewQueries", "read_top"]

_S_NS = 10**9
_MINUTE_NS = 60 * _S_NS
_DAY_NS = 86_400 * _S_NS
_MAX_INT64 = 2**63 - 1
#: A host without VMs sends heartbeats only.
_LATE_NS = HEARTBEAT_MS * 10**6 + 60 * _S_NS
_DAYS = 31


@dataclass(frozen=True, slots=True)
class _Silence:
    """Hosts that send nothing now, the longest silent first, and how many there are of each kind."""

    hosts: list[fleet_pb2.SilentHost]
    late: int
    gone: int
    spooled_batches: int
    dropped_batches: int


class OverviewQueries:
    """Methods of `whitepanda.v1.Fleet`; `central.api.fleet.Fleet` has the rest."""

    _builder: Builder
    _clock_unix_ns: Callable[[], int]
    _incidents: IncidentStore
    _incidents_error: Callable[[], str]
    _journal: Journal
    _lake: Lake
    _gap_ns: int
    _importers: frozenset[str]
    _recent: RecentVms
    _refreshing: asyncio.Task[None] | None
    _registry: StreamRegistry
    _segment_totals: Callable[[], Awaitable[dict[str, tuple[Segment, int]]]]
    check_operator: Callable[[Context], Awaitable[None]]

    async def GetOverview(  # noqa: N802 - the name in fleet.proto
        self, request: fleet_pb2.GetOverviewRequest, context: Context
    ) -> fleet_pb2.Overview:
        """The fleet at a glance. Nothing of the lake is waited for."""
        await self.check_operator(context)
        top = await read_top(request.top, 20, context)
        now = self._clock_unix_ns()
        since = min(request.since_unix_ns or (now - _DAY_NS) // _MINUTE_NS * _MINUTE_NS, _MAX_INT64)
        open_since = now - self._gap_ns
        totals = await ask_store(
            context,
            self._incidents.totals,
            since_unix_ns=since,
            open_since_unix_ns=open_since,
            top=top,
        )
        is_open = mark_open(
            await ask_store(context, self._incidents.open_now, open_since, limit=top), open_since
        )
        silence = self._silence(now)
        running, is_old = self._recent.known()
        if is_old and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.create_task(self._refresh(), name="who runs now")
        for antagonist in totals.antagonists:
            self._add_coefficient(antagonist)
        return fleet_pb2.Overview(
            since_unix_ns=since,
            hosts=sum(host not in self._importers for host in self._journal.hosts),
            connected_hosts=sum(each.host not in self._importers for each in self._registry.connected()),
            late_hosts=silence.late,
            gone_hosts=silence.gone,
            is_counted=running is not None,
            vms=0 if running is None else len(running.vms),
            jobs=0 if running is None else running.jobs,
            open_incidents=totals.open_incidents,
            incidents=totals.incidents,
            contended=totals.contended,
            contended_hosts=totals.contended_hosts,
            open=is_open,
            antagonists=totals.antagonists,
            last_incidents_error=self._incidents_error(),
        )

    async def GetDataHealth(  # noqa: N802 - the name in fleet.proto
        self, request: fleet_pb2.GetDataHealthRequest, context: Context
    ) -> fleet_pb2.DataHealth:
        """What the lake has by day, and which hosts send nothing."""
        await self.check_operator(context)
        top = await read_top(request.top, 100, context)
        segments = (await self._segment_totals()).values()
        silence = self._silence(self._clock_unix_ns())
        newest = max((segment.modified_unix_s for segment, _ in segments), default=0.0)
        return fleet_pb2.DataHealth(
            days=_days(segments),
            last_segment_unix_ns=int(newest * _S_NS),
            late_hosts=silence.late,
            gone_hosts=silence.gone,
            silent=silence.hosts[:top],
            spooled_batches=silence.spooled_batches,
            dropped_batches=silence.dropped_batches,
        )

    def _silence(self, now: int) -> _Silence:
        found, late, gone, spooled, dropped = [], 0, 0, 0, 0
        for record in self._journal.hosts.values():
            stream = self._registry.get(record.host)
            waiting = stream.spooled_batches if stream else record.spooled_batches
            lost = stream.dropped_batches if stream else record.dropped_batches
            spooled, dropped = spooled + waiting, dropped + lost
            if record.host in self._importers:
                continue  # it comes with a trace and leaves
            if stream is not None and now - record.last_seen_unix_ns < _LATE_NS:
                continue
            late, gone = late + (stream is not None), gone + (stream is None)
            found.append(
                fleet_pb2.SilentHost(
                    host=record.host,
                    connected=stream is not None,
                    last_seen_unix_ns=record.last_seen_unix_ns,
                    spooled_batches=waiting,
                    dropped_batches=lost,
                )
            )
        found.sort(key=lambda host: (host.last_seen_unix_ns, host.host))
        return _Silence(found, late, gone, spooled, dropped)

    def _add_coefficient(self, antagonist: fleet_pb2.Antagonist) -> None:
        built = self._builder.current
        found = None if built is None else built.coefficient(antagonist.job)
        antagonist.coefficient = float("nan") if found is None else found.value
        antagonist.standard_error = float("nan") if found is None else found.standard_error

    async def _refresh(self) -> None:
        try:
            await asyncio.to_thread(self._recent.read)
        except (SlowError, LakeError, OSError):
            pass  # GetJob, which waits for it, tells
        except Exception as error:  # noqa: BLE001 - nobody waits for this task: told here, or never
            log.get("api").warning("who runs now is not known", error=f"{type(error).__name__}: {error}")


async def read_top(top: int, default: int, context: Context) -> int:
    """Return how many rows are wanted; ends the call where that is too many."""
    if top > MAX_TOP:
        message = f"top must be at most {MAX_TOP} (value {top})"
        await abort(context, grpc.StatusCode.INVALID_ARGUMENT, message)
    return top or default


def _days(segments: Iterable[tuple[Segment, int]]) -> list[fleet_pb2.LakeDay]:
    found: dict[date, fleet_pb2.LakeDay] = {}
    for segment, rows in segments:
        day = found.setdefault(segment.day, fleet_pb2.LakeDay(day=segment.day.isoformat()))
        day.segments += 1
        day.rows += rows
        day.size_bytes += segment.size_bytes
    return [found[day] for day in sorted(found, reverse=True)[:_DAYS]]
