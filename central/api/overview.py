"""The fleet API's part on the whole: the fleet at a glance, and how whole its data is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
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
from central.own_threads import SharedAnswer
from whitepanda.common import log
from whitepanda.v1 import agent_pb2, fleet_pb2

__all__ = ["LakeTotals", "OverviewQueries", "by_reason", "lake_days", "read_top"]

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


@dataclass(frozen=True, slots=True)
class LakeTotals:
    """How much the lake has, in all and by day; the last segment's time is in seconds since 1970, 0 for none."""

    segments: int
    rows: int
    newest_unix_s: float
    days: list[fleet_pb2.LakeDay]


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
    _over_quota: Callable[[], Mapping[str, Mapping[str, int]]]
    _registry: StreamRegistry
    _totals: SharedAnswer[LakeTotals]

    async def GetOverview(  # noqa: N802 - the name in fleet.proto
        self, request: fleet_pb2.GetOverviewRequest, context: Context
    ) -> fleet_pb2.Overview:
        """The fleet at a glance. Nothing of the lake is waited for."""
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
        """What the lake has by day, which hosts send nothing, and which are held back."""
        top = await read_top(request.top, 100, context)
        totals = await self._totals.get()
        silence = self._silence(self._clock_unix_ns())
        held_back = self._held_back()
        return fleet_pb2.DataHealth(
            days=totals.days,
            last_segment_unix_ns=int(totals.newest_unix_s * _S_NS),
            late_hosts=silence.late,
            gone_hosts=silence.gone,
            silent=silence.hosts[:top],
            spooled_batches=silence.spooled_batches,
            dropped_batches=silence.dropped_batches,
            held_back=held_back[:top],
            held_back_hosts=len(held_back),
        )

    def _paced(self) -> dict[str, int]:
        """Return the time between batches that hosts are asked for, in milliseconds; without those that are not."""
        return {
            stream.host: stream.min_batch_interval_ms
            for stream in self._registry.connected()
            if stream.min_batch_interval_ms and stream.host not in self._importers
        }

    def _held_back(self) -> list[fleet_pb2.HeldBackHost]:
        over_quota, paced = self._over_quota(), self._paced()

        def order(host: str) -> tuple[int, int, str]:
            return -sum(over_quota.get(host, {}).values()), -paced.get(host, 0), host

        return [
            fleet_pb2.HeldBackHost(
                host=host,
                over_quota=by_reason(over_quota.get(host, {})),
                min_batch_interval_ms=paced.get(host, 0),
            )
            for host in sorted(over_quota.keys() | paced.keys(), key=order)
        ]

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


def by_reason(counts: Mapping[str, int]) -> list[agent_pb2.RejectedRows]:
    """Return counts as the API has them, by reason."""
    return [agent_pb2.RejectedRows(reason=reason, count=count) for reason, count in sorted(counts.items())]


async def read_top(top: int, default: int, context: Context) -> int:
    """Return how many rows are wanted; ends the call where that is too many."""
    if top > MAX_TOP:
        message = f"top must be at most {MAX_TOP} (value {top})"
        await abort(context, grpc.StatusCode.INVALID_ARGUMENT, message)
    return top or default


def lake_days(segments: Iterable[tuple[Segment, int]]) -> list[fleet_pb2.LakeDay]:
    """Add segments with their rows up by day: the last days, the newest first."""
    found: dict[date, fleet_pb2.LakeDay] = {}
    for segment, rows in segments:
        day = found.setdefault(segment.day, fleet_pb2.LakeDay(day=segment.day.isoformat()))
        day.segments += 1
        day.rows += rows
        day.size_bytes += segment.size_bytes
    return [found[day] for day in sorted(found, reverse=True)[:_DAYS]]
