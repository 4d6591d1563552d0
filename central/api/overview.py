"""The whole fleet: totals of central's work, the fleet at a glance, and the health of its data."""

from importlib import metadata

from central.api.context import Context
from central.api.hosts import by_reason, held_back, paced, silence
from central.api.limits import MAX_TIME_UNIX_NS
from central.api.requests import read_top
from central.api.vms import last_running, of_project, renew_list
from central.journal.latency import BOUNDS_S
from central.vms.silenced import Silenced
from whitepanda.common.messages import message_of
from whitepanda.common.protocol import PROTOCOL_VERSION
from whitepanda.v1 import fleet_pb2

_S_NS = 10**9
_MINUTE_NS = 60 * _S_NS
_DAY_NS = 86_400 * _S_NS


async def get_status(context: Context, _request: fleet_pb2.GetFleetStatusRequest) -> fleet_pb2.FleetStatus:
    """Totals of ingest, lake and builds."""
    journal, builder, parts = context.journal, context.builder, context.parts
    totals, incidents_error = await context.lake_totals.get(), parts.incidents_error()
    # A history that is known to be away is not asked.
    counts = None if incidents_error else await context.open_incidents.get()
    quiet = Silenced() if incidents_error else await context.silenced.get()
    if quiet.is_any:
        renew_list(context)  # the next answer has the VMs
    stats, built, times = journal.stats, builder.current, journal.ack_times
    return message_of(
        fleet_pb2.FleetStatus,
        stats,  # has the totals of the journal
        central_version=metadata.version("whitepanda"),
        protocol_version=PROTOCOL_VERSION,
        started_unix_ns=context.started_unix_ns,
        connected_hosts=len(context.registry),
        rejected=by_reason(stats.rejected_rows),
        rejected_values=by_reason(stats.rejected_values),
        rejected_batches=by_reason(stats.rejected_batches),
        rejected_events=by_reason(stats.rejected_events),
        refused_streams=by_reason(context.registry.refused),
        lake_segments=totals.segments,
        lake_rows=totals.rows,
        coefficient_version=built.version if built else 0,
        coefficient_created_unix_ns=built.manifest.created_unix_ns if built else 0,
        last_build_error=builder.last_error,
        days_left_out=builder.left_out.days,
        rows_left_out=builder.left_out.rows,
        machines_left_out=built.manifest.machines_left_out if built else (),
        damaged_files=builder.damaged_files,
        last_commit_error=journal.failure,
        last_roll_error=parts.roll_error(),
        last_incidents_error=incidents_error,
        acknowledgements=fleet_pb2.AcknowledgementTimes(bound_s=BOUNDS_S, batches=times.counts, sum_s=times.sum_s),
        known_hosts=len(journal.hosts),
        open_incidents=counts and counts.all,
        silenced_incidents=counts and counts.silenced,
        acknowledged_incidents=counts and counts.acknowledged,
        quiet_victims=counts.quiet_victims if counts else (),
        silenced_vms=quiet.vms,
        silenced_hosts=quiet.hosts,
        webhooks=parts.webhooks(),
        certificate_expiry_unix_ns=round((parts.certificate.expiry_unix_s() or 0) * 1e9),
        revoked_certificates=len(parts.revoked.serials),
        last_revocation_error=parts.revoked.problem,
        over_quota=len(parts.over_quota()),
        paced_hosts=len(paced(context)),
    )


async def get_overview(context: Context, request: fleet_pb2.GetOverviewRequest) -> fleet_pb2.Overview:
    """The fleet at a glance, without waiting for the lake; of a project it waits for which VMs run, the first time."""
    top, project = read_top(request.top, 20), request.project
    mine = await of_project(context, project) if project else []
    now, history, importers = context.clock_unix_ns(), context.history, context.importers
    since = min(request.since_unix_ns or (now - _DAY_NS) // _MINUTE_NS * _MINUTE_NS, MAX_TIME_UNIX_NS)
    open_since = history.open_since_unix_ns
    totals = await history.ask(history.store.totals, since, open_since, top=top, project=project)
    is_open = await history.mark(await history.ask(history.store.open_now, open_since, limit=top, project=project))
    suffering = await _suffering(context, is_open, project)
    hosts = {each.host for each in mine} if project else context.journal.hosts.keys() - importers
    silent = silence(context, now, hosts)
    running = last_running(context)
    built = context.builder.current
    for antagonist in totals.antagonists:
        known = None if built is None else built.coefficient(antagonist.job)
        antagonist.coefficient = float("nan") if known is None else known.value
        antagonist.standard_error = float("nan") if known is None else known.standard_error
    vms, jobs = (0, 0) if running is None else (len(running.vms), running.jobs)
    found = fleet_pb2.Overview(
        since_unix_ns=since,
        hosts=len(hosts),
        connected_hosts=sum(stream.host in hosts for stream in context.registry.connected()),
        late_hosts=silent.late_hosts,
        gone_hosts=silent.gone_hosts,
        is_counted=running is not None,
        vms=len(mine) if project else vms,
        jobs=len({each.job for each in mine}) if project else jobs,
        open=is_open,
        suffering=suffering[:top],
        suffering_in_all=len(suffering) if project else 0,
        last_incidents_error=context.parts.incidents_error(),
    )
    found.MergeFrom(totals)
    return found


async def _suffering(context: Context, is_open: list[fleet_pb2.Incident], project: str) -> list[fleet_pb2.SufferingVm]:
    """Return the VMs that suffer in open incidents, those of quiet ones last, else the slowest first."""
    quiet = {incident.id for incident in is_open if incident.silenced_by or incident.acknowledged_by}
    found = await context.history.ask(context.history.store.suffering, is_open)
    mine = [vm for vm in found if project in ("", vm.project)]

    def order(vm: fleet_pb2.SufferingVm) -> tuple[object, ...]:
        ratio = vm.slow_down.ratio if vm.slow_down.ratio > 0 else 0.0  # 0 or NaN: not known
        return vm.incident in quiet, -ratio, vm.host, vm.name, vm.vm

    return sorted(mine, key=order)


async def get_data_health(context: Context, request: fleet_pb2.GetDataHealthRequest) -> fleet_pb2.DataHealth:
    """What the lake has by day, which hosts send nothing, and which are held back."""
    top = read_top(request.top, 100)
    totals = await context.lake_totals.get()
    slowed, found = held_back(context), silence(context, context.clock_unix_ns())
    del found.silent[top:]
    found.days.extend(totals.days)
    found.last_segment_unix_ns = int(totals.newest_unix_s * _S_NS)
    found.held_back.extend(slowed[:top])
    found.held_back_hosts = len(slowed)
    return found
