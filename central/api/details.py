"""One job, and one host's VMs over time."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from central.api.context import Context
from central.api.hosts import summary
from central.api.lake_queries import read_lines
from central.api.limits import MAX_BINS, MAX_POINTS, MAX_TIME_UNIX_NS
from central.api.requests import at_most, read_span, read_top, unknown, wrong_field
from central.api.vms import of_project
from central.incidents.store import IncidentQuery
from central.models.groups import Floats
from whitepanda.common.protocol import or_nan
from whitepanda.v1 import agent_pb2, fleet_pb2

_BINS = 40
_POINTS = 120
_MAX_LISTED = 1000  # incidents of a host
_MAX_VMS = 10_000  # of a project on a host, in a day
_MAX_VALUES = 100_000  # of an answer's lines
_HIGHEST = 0.995  # share of VMs that the bins span, so that one absurd value does not squeeze the others


async def get_job(context: Context, request: fleet_pb2.GetJobRequest) -> fleet_pb2.JobDetail:
    """A job's CPI by platform, its coefficient then and now, and where it runs; of a project where its VMs run."""
    job, project, top = request.job, request.project, read_top(request.top, 100)
    bins = request.bins or _BINS
    if not job:
        raise wrong_field("job", "is missing: name one, as /v1/job-statistics has them")
    at_most("bins", bins, MAX_BINS)
    built = context.builder.current
    async with context.turns.turn():
        if project and not await context.history.ask(context.facts.has_project, project, job=job):
            raise unknown(f"no VM of project {project[:80]!r} is or was of job {job[:80]!r}", "job")
        suspected = await context.history.ask(context.history.store.suspect_jobs, limit=1, job=job)
    running, history = await context.drawing.read_lake(
        "who runs now,",
        lambda: (context.recent.read(), context.coefficients.of(job)),
        "the machine is busy, or placement.gone_s is very long: try again in a while",
    )
    mine = running.vms.filter(pc.equal(running.vms.column("job"), job))
    if project:
        async with context.turns.turn():
            mine = _only(mine, [each.vm for each in await of_project(context, project)])
    hosts = _hosts(mine)
    detail = fleet_pb2.JobDetail(
        job=job,
        statistics=built.statistics(job) if built else (),
        coefficient=built.coefficient(job) if built else None,
        history=history,
        distributions=_distributions(mine, bins),
        hosts=hosts[:top],
        hosts_in_all=len({host.host for host in hosts}),
        vms=len(mine),
        since_unix_ns=running.since_unix_ns,
        until_unix_ns=running.until_unix_ns,
        recurrence=suspected[0] if suspected else None,
    )
    if not (detail.statistics or detail.history or detail.vms or suspected or await _had_vms(context, job)):
        seen = "no version has it, no VM of it ran lately, no incident names it first, and no facts have it"
        raise unknown(f"nothing is known of job {job[:80]!r}: {seen}", "job")
    return detail


async def _had_vms(context: Context, job: str) -> bool:
    """Whether facts know a VM of a job, also a gone one."""
    return ("job", job) in await context.history.ask(context.facts.find_groups, job, 1)


async def get_host_timeline(context: Context, request: fleet_pb2.GetHostTimelineRequest) -> fleet_pb2.HostTimeline:
    """CPI and CPU usage of a host's VMs, or a project's, over at most a day, and the incidents in that time."""
    host, project, top = request.host, request.project, read_top(request.top, 100)
    points = request.points or min(_POINTS, _MAX_VALUES // top)
    if not host:
        raise wrong_field("host", "is missing: name one, as /v1/hosts has them")
    if points > MAX_POINTS or points * top > _MAX_VALUES:
        most = f"must be at most {MAX_POINTS}, and points * top {_MAX_VALUES}"
        raise wrong_field("points", f"{most} (values {points}, {top})")
    since, until = read_span(request, context.clock_unix_ns(), least_ns=1)
    step = -(-(until - since) // points)
    # On a grid, so that a later request has the same steps.
    since, until = since // step * step, min(-(-until // step), MAX_TIME_UNIX_NS // step) * step
    wanted: dict[str, Any] = {"host": host, "since_unix_ns": since, "until_unix_ns": until}
    async with context.turns.turn():
        incidents = await context.history.find(IncidentQuery(**wanted, project=project), _MAX_LISTED)
        ask, store = context.history.ask, context.facts
        if project and not incidents and not await ask(store.has_project, project, host=host):
            raise unknown(f"no VM of project {project[:80]!r} is or was on host {host[:80]!r}", "host")
        ours = await ask(store.vms_of, [project], since, until, _MAX_VMS, hosts=[host]) if project else []
    lines = await context.drawing.read_lake(
        f"windows of {host[:80]!r}",
        lambda: read_lines(context.lake, context.times, host, since, until, step),
        "ask for a shorter time by since_unix_ns and until_unix_ns",
    )
    if project:
        lines = _only(lines, ours)
    known_host = summary(context, host)
    if known_host is None and not len(lines) and not incidents:
        seen = f"nothing is known of host {host[:80]!r} in this time"
        raise unknown(f"{seen}; /v1/hosts lists those that connected", "host")
    vms = _timelines(lines, (until - since) // step)
    vms.sort(key=lambda vm: (-vm.mean_cpu_usage_cores, vm.vm))
    shown = _kept(vms, incidents, top)
    for vm in shown:
        built = context.builder.current
        of_job: list[agent_pb2.JobStatistics] = built.statistics(vm.job) if built else []
        known = next((each for each in of_job if each.platform == vm.platform), None)
        vm.job_mean_cpi = float("nan") if known is None else known.mean_cpi
        vm.job_std_cpi = float("nan") if known is None else known.std_cpi
    async with context.turns.turn():
        await _add_names(context, shown, host)
        await _add_events(context, shown, wanted)
    return fleet_pb2.HostTimeline(
        **wanted, summary=known_host, step_ns=step, vms=shown, vms_in_all=len(vms), incidents=incidents
    )


def _kept(
    vms: list[fleet_pb2.VmTimeline], incidents: Sequence[fleet_pb2.Incident], top: int
) -> list[fleet_pb2.VmTimeline]:
    """Return the first `top` VMs, in order; victims, first those of open incidents, are kept before others."""
    suffered = {victim.vm for incident in incidents for victim in incident.victims}
    suffers = {victim.vm for incident in incidents if incident.open for victim in incident.victims}
    kept = {vm.vm for vm in sorted(vms, key=lambda vm: (vm.vm not in suffers, vm.vm not in suffered))[:top]}
    return [vm for vm in vms if vm.vm in kept]


async def _add_names(context: Context, vms: list[fleet_pb2.VmTimeline], host: str) -> None:
    """Name VMs as their host does; VMs of other replicas, or gone before the start, as their incidents do."""
    for vm in vms:
        vm.name = context.registry.vm_names.get(vm.vm, host)
    nameless = [vm for vm in vms if not vm.name]
    if nameless:
        names = await context.history.ask(context.history.store.names, [vm.vm for vm in nameless])
        for vm in nameless:
            vm.name = names.get(vm.vm, {}).get(host, "")


async def _add_events(context: Context, vms: list[fleet_pb2.VmTimeline], wanted: dict[str, Any]) -> None:
    """Add each VM's last change of behaviour in this time."""
    found = await context.read_events(_MAX_LISTED, **wanted)
    last = {row.vm: row for _, row in sorted(found, key=lambda each: (each[1].unix_ns, each[0]))}
    for vm in vms:
        if vm.vm in last:
            vm.last_event.ParseFromString(last[vm.vm].payload)
            vm.last_event.ClearField("evidence")


def _only(rows: pa.Table, vms: Sequence[str]) -> pa.Table:
    """Return the rows of these VMs (UUIDs)."""
    return rows.filter(pc.is_in(rows.column("vm"), value_set=pa.array(vms, pa.string())))


def _floats(column: Any) -> Floats:
    """Return a column's values, NaN for null."""
    return np.asarray(pc.fill_null(column.cast(pa.float64()), float("nan")).to_numpy(), dtype=np.float64)


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _distributions(vms: pa.Table, bins: int) -> list[fleet_pb2.CpiDistribution]:
    """Count VMs by mean CPI, in the same bins of equal width for all platforms."""
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
    totals = [("vm", "count"), ("cpi", "mean"), ("cpu_usage_cores", "sum")]
    sums = vms.group_by(["machine", "platform"]).aggregate(totals)
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
    """Make each VM's time line, with its last job and platform."""
    names = lines.column("vm").to_pylist()
    columns = [lines.column(name).to_pylist() for name in ("job", "platform", "latency_sensitive")]
    at = lines.column("bin").to_numpy()
    cpi, usage = _floats(lines.column("cpi")), _floats(lines.column("cpu_usage_cores"))
    found = []
    first = 0
    for vm, group in itertools.groupby(names):
        end = first + sum(1 for _ in group)
        job, platform, is_sensitive = (column[end - 1] for column in columns)
        vm_cpi, vm_usage = np.full((2, steps), np.nan)
        vm_cpi[at[first:end]], vm_usage[at[first:end]] = cpi[first:end], usage[first:end]
        found.append(
            fleet_pb2.VmTimeline(
                vm=vm,
                job=job,
                platform=platform,
                latency_sensitive=is_sensitive,
                mean_cpi=_mean(vm_cpi),
                mean_cpu_usage_cores=_mean(vm_usage),
                cpi=vm_cpi.tolist(),
                cpu_usage_cores=vm_usage.tolist(),
            )
        )
        first = end
    return found
