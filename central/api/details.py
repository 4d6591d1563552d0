"""The fleet API's part on one job, and on one host's VMs over time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from central.api.incidents import ask_store, mark_open
from central.api.limits import MAX_BINS, MAX_POINTS, MAX_TIME_UNIX_NS
from central.api.overview import read_top
from central.api.paging import Context, abort
from central.api.recent import RecentVms, read_lines
from central.api.work import Worker
from central.build.builder import Builder
from central.coefficients.history import CoefficientHistory
from central.incidents.store import IncidentQuery, IncidentStore
from central.ingest.sessions import StreamRegistry
from central.journal.writer import HostRecord, Journal
from central.lake.segment_times import SegmentTimes
from central.lake.segments import Lake, LakeError
from central.lake.vm_windows import SlowError
from central.models.groups import Floats
from whitepanda.common.protocol import or_nan
from whitepanda.v1 import agent_pb2, fleet_pb2

__all__ = ["DetailQueries"]

_HOUR_NS = 3600 * 10**9
_DAY_NS = 24 * _HOUR_NS
_MAX_INT64 = 2**63 - 1
_BINS = 40
_POINTS = 120
_MAX_LISTED = 1000  # incidents of a host
_MAX_VALUES = 100_000  # of an answer's lines
_HIGHEST = 0.995  # share of VMs that bins are spread over; so one absurd value does not squeeze the others


class DetailQueries:
    """Methods of `whitepanda.v1.Fleet`; `central.api.fleet.Fleet` has the rest."""

    _builder: Builder
    _clock_unix_ns: Callable[[], int]
    _drawing: Worker
    _gap_ns: int
    _history: CoefficientHistory
    _incidents: IncidentStore
    _journal: Journal
    _lake: Lake
    _recent: RecentVms
    _registry: StreamRegistry
    _times: SegmentTimes
    _over_quota: Callable[[], Mapping[str, Mapping[str, int]]]
    _summary: Callable[[HostRecord, Mapping[str, Mapping[str, int]]], fleet_pb2.HostSummary]

    async def GetJob(  # noqa: N802 - the name in fleet.proto
        self, request: fleet_pb2.GetJobRequest, context: Context
    ) -> fleet_pb2.JobDetail:
        """What is known of a job: its CPI by platform, its coefficient then and now, where it runs."""
        top = await read_top(request.top, 100, context)
        bins = request.bins or _BINS
        problem = ""
        if not request.job:
            problem = "job is missing: name one, as /v1/job-statistics has them"
        elif bins > MAX_BINS:
            problem = f"bins must be at most {MAX_BINS} (value {bins})"
        if problem:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, problem)
        built = self._builder.current
        suspected = await ask_store(context, self._incidents.suspect_jobs, limit=1, job=request.job)
        try:
            running = await self._drawing.run(self._recent.read, context)
            history = await asyncio.to_thread(self._history.of, request.job)
        except (SlowError, LakeError, OSError) as error:
            remedy = "`whitepanda lake verify` tells more"
            if isinstance(error, SlowError):
                remedy = "the machine is busy, or placement.gone_s is very long: try again in a while"
            message = f"who runs now, in the lake: {error}; {remedy}"
            await abort(context, grpc.StatusCode.UNAVAILABLE, message)
        mine = running.vms.filter(pc.equal(running.vms.column("job"), request.job))
        hosts = _hosts(mine)
        detail = fleet_pb2.JobDetail(
            job=request.job,
            statistics=built.statistics(request.job) if built else (),
            coefficient=built.coefficient(request.job) if built else None,
            history=history,
            distributions=_distributions(mine, bins),
            hosts=hosts[:top],
            hosts_in_all=len({host.host for host in hosts}),
            vms=len(mine),
            since_unix_ns=running.since_unix_ns,
            until_unix_ns=running.until_unix_ns,
            recurrence=suspected[0] if suspected else None,
        )
        if not (detail.statistics or detail.history or detail.vms or suspected):
            message = (
                f"nothing is known of job {request.job[:80]!r}: no version has it, no VM of it ran lately, and no "
                "incident names it first"
            )
            await abort(context, grpc.StatusCode.NOT_FOUND, message)
        return detail

    async def GetHostTimeline(  # noqa: N802 - the name in fleet.proto
        self, request: fleet_pb2.GetHostTimelineRequest, context: Context
    ) -> fleet_pb2.HostTimeline:
        """CPI and CPU usage of a host's VMs over at most a day, and its incidents in that time."""
        top = await read_top(request.top, 100, context)
        points = request.points or min(_POINTS, _MAX_VALUES // top)
        until = min(request.until_unix_ns or self._clock_unix_ns(), MAX_TIME_UNIX_NS)
        since = request.since_unix_ns or max(0, until - _HOUR_NS)
        problem = ""
        if not request.host:
            problem = "host is missing: name one, as /v1/hosts has them"
        elif points > MAX_POINTS or points * top > _MAX_VALUES:
            problem = f"points must be at most {MAX_POINTS}, and points * top {_MAX_VALUES} (values {points}, {top})"
        elif not 0 < until - since <= _DAY_NS:
            problem = (
                "until_unix_ns must be after since_unix_ns and at most a day later "
                f"(value {(until - since) / 1e9:.0f} s)"
            )
        if problem:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, problem)
        step = -(-(until - since) // points)
        # On a grid, so that the same steps come again a moment later.
        since, until = since // step * step, min(-(-until // step), MAX_TIME_UNIX_NS // step) * step
        query = IncidentQuery(host=request.host, since_unix_ns=since, until_unix_ns=until)
        incidents = await ask_store(context, self._incidents.find, query, limit=_MAX_LISTED)

        def read() -> pa.Table:
            return read_lines(self._lake, self._times, request.host, since, until, step)

        try:
            lines = await self._drawing.run(read, context)
        except (SlowError, LakeError, OSError) as error:
            remedy = "`whitepanda lake verify` tells more"
            if isinstance(error, SlowError):
                remedy = "ask for a shorter time by since_unix_ns and until_unix_ns"
            message = f"windows of {request.host[:80]!r} in the lake: {error}; {remedy}"
            await abort(context, grpc.StatusCode.UNAVAILABLE, message)
        record = self._journal.hosts.get(request.host)
        if record is None and not len(lines) and not incidents:
            seen = f"nothing is known of host {request.host[:80]!r} in this time"
            message = f"{seen}; /v1/hosts lists those that connected"
            await abort(context, grpc.StatusCode.NOT_FOUND, message)
        vms = sorted(_timelines(lines, (until - since) // step), key=_by_usage)
        for vm in vms[:top]:
            self._add_statistics(vm)
        await self._add_names(vms[:top], request.host, context)
        await self._add_events(vms[:top], request.host, since, until)
        return fleet_pb2.HostTimeline(
            host=request.host,
            summary=None if record is None else self._summary(record, self._over_quota()),
            since_unix_ns=since,
            until_unix_ns=until,
            step_ns=step,
            vms=vms[:top],
            vms_in_all=len(vms),
            incidents=mark_open(incidents, self._clock_unix_ns() - self._gap_ns),
        )

    def _add_statistics(self, vm: fleet_pb2.VmTimeline) -> None:
        built = self._builder.current
        of_job: list[agent_pb2.JobStatistics] = built.statistics(vm.job) if built else []
        mine = next((each for each in of_job if each.platform == vm.platform), None)
        vm.job_mean_cpi = float("nan") if mine is None else mine.mean_cpi
        vm.job_std_cpi = float("nan") if mine is None else mine.std_cpi

    async def _add_names(self, vms: list[fleet_pb2.VmTimeline], host: str, context: Context) -> None:
        """Name VMs as their host does; those of another replica, or gone before this start, as its incidents did."""
        for vm in vms:
            vm.name = self._registry.vm_names.get(vm.vm, host)
        nameless = [vm for vm in vms if not vm.name]
        if nameless:
            names = await ask_store(context, self._incidents.names, [vm.vm for vm in nameless])
            for vm in nameless:
                vm.name = names.get(vm.vm, {}).get(host, "")

    async def _add_events(self, vms: list[fleet_pb2.VmTimeline], host: str, since: int, until: int) -> None:
        """Note the last change of behaviour that the host found of each VM in this time."""
        found = await asyncio.to_thread(
            self._journal.read_events,
            before_id=_MAX_INT64,
            limit=_MAX_LISTED,
            host=host,
            since_unix_ns=since,
            until_unix_ns=until,
        )
        last = {row.vm: row for _, row in sorted(found, key=lambda each: (each[1].unix_ns, each[0]))}
        for vm in vms:
            if vm.vm in last:
                vm.last_event.ParseFromString(last[vm.vm].payload)
                vm.last_event.ClearField("evidence")


def _floats(column: Any) -> Floats:
    """Return a column's values, NaN where there is none."""
    found: Floats = pc.fill_null(column.cast(pa.float64()), float("nan")).to_numpy()
    return found


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _distributions(vms: pa.Table, bins: int) -> list[fleet_pb2.CpiDistribution]:
    """Count VMs by mean CPI: bins of equal width, the same ones for all platforms."""
    cpi = _floats(vms.column("cpi"))
    platforms = np.array(vms.column("platform").to_pylist(), dtype=object)
    known = cpi[np.isfinite(cpi)]
    low = float(known.min()) if len(known) else 0.0
    high = float(np.quantile(known, _HIGHEST)) if len(known) else 1.0
    if high <= low:
        high = low + 1.0
    found = []
    for platform in sorted(set(platforms.tolist())):
        mine = cpi[platforms == platform]
        values = np.clip(mine[np.isfinite(mine)], low, high)
        counts, _ = np.histogram(values, bins=bins, range=(low, high))
        found.append(
            fleet_pb2.CpiDistribution(
                platform=platform,
                low_cpi=low,
                high_cpi=high,
                vms=counts.tolist(),
                vms_without_cpi=int(np.isnan(mine).sum()),
            )
        )
    return found


def _hosts(vms: pa.Table) -> list[fleet_pb2.JobHost]:
    sums = vms.group_by(["machine", "platform"]).aggregate(
        [("vm", "count"), ("cpi", "mean"), ("cpu_usage_cores", "sum")]
    )
    found = [
        fleet_pb2.JobHost(
            host=row["machine"],
            platform=row["platform"],
            vms=row["vm_count"],
            mean_cpi=or_nan(row["cpi_mean"]),
            cpu_usage_cores=row["cpu_usage_cores_sum"],
        )
        for row in sums.to_pylist()
    ]
    return sorted(found, key=lambda host: (-host.vms, host.host, host.platform))


def _timelines(lines: pa.Table, steps: int) -> list[fleet_pb2.VmTimeline]:
    """Make a line of each VM; one that changed its job or platform has the last ones."""
    names = lines.column("vm").to_pylist()
    jobs, platforms = lines.column("job").to_pylist(), lines.column("platform").to_pylist()
    sensitive = lines.column("latency_sensitive").to_pylist()
    at = lines.column("bin").to_numpy()
    values = {name: _floats(lines.column(name)) for name in ("cpi", "cpu_usage_cores")}
    found = []
    first = 0
    while first < len(names):
        end = first
        while end < len(names) and names[end] == names[first]:
            end += 1
        rows, made = slice(first, end), {}
        for name, column in values.items():
            made[name] = np.full(steps, np.nan)
            made[name][at[rows]] = column[rows]
        found.append(
            fleet_pb2.VmTimeline(
                vm=names[first],
                job=jobs[end - 1],
                platform=platforms[end - 1],
                latency_sensitive=sensitive[end - 1],
                mean_cpi=_mean(made["cpi"]),
                mean_cpu_usage_cores=_mean(made["cpu_usage_cores"]),
                cpi=made["cpi"].tolist(),
                cpu_usage_cores=made["cpu_usage_cores"].tolist(),
            )
        )
        first = end
    return found


def _by_usage(vm: fleet_pb2.VmTimeline) -> tuple[float, str]:
    return (-vm.mean_cpu_usage_cores, vm.vm)
