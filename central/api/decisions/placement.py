"""Placement: loading vectors of jobs, and hosts ranked for a new VM."""

import numpy as np

from central.api.context import Context
from central.api.limits import NUMBERS
from central.api.requests import read_page, read_top, unknown, wrong, wrong_field
from central.models.groups import Floats
from central.placement.capacity import UNKNOWN_VM, VmSize
from central.placement.live import Snapshot
from central.placement.tables import numbers_by_name
from whitepanda.common.errors import InputError
from whitepanda.v1 import fleet_pb2

_TOP = 10


async def list_loadings(
    context: Context, request: fleet_pb2.ListJobLoadingsRequest
) -> fleet_pb2.ListJobLoadingsResponse:
    """Loading vectors of the jobs that ran lately, by name."""
    page = read_page(request, "loadings", ("",), request.job)
    now = await context.snapshot.get()
    (after,) = page.place
    names = [name for name in now.jobs if name > after and (not request.job or name == request.job)]
    shown, token = page.cut(names, lambda name: (name,))
    return fleet_pb2.ListJobLoadingsResponse(
        resources=now.resources,
        loadings=[
            fleet_pb2.JobLoading(
                job=one.job,
                loading=one.loading.tolist(),
                standard_error=one.standard_error.tolist(),
                vms=one.vms,
                windows=one.windows,
                measured_vms=one.measured,
            )
            for one in map(now.jobs.__getitem__, shown)
        ],
        since_unix_ns=now.since_unix_ns,
        until_unix_ns=now.until_unix_ns,
        next_page_token=token,
        unmeasured=_unmeasured(now),
    )


async def rank_hosts(context: Context, request: fleet_pb2.RankHostsRequest) -> fleet_pb2.HostRanking:
    """Hosts for a new VM, where it would suffer least first; those that are full come last."""
    if bool(request.job) == bool(request.loading):
        raise wrong("give either the VM's job, or its loading as cpu=0.5,disk=0.2")
    top = read_top(request.top, _TOP)
    now = await context.snapshot.get()
    loading, size = _loading(now, request), _size(now, request)
    ranking = now.rank(loading, top, size)
    return fleet_pb2.HostRanking(
        resources=now.resources,
        loading=loading.tolist(),
        hosts=[
            fleet_pb2.RankedHost(
                host=now.hosts.names[k],
                added=float(ranking.added[k]),
                by_resource=now.by_resource(loading, k).tolist(),
                total=now.hosts.totals[k].tolist(),
                vms=now.vms[k],
                full=ranking.rooms[k].full,
                room_unknown=ranking.rooms[k].unknown,
            )
            for k in ranking.order.tolist()
        ],
        vcpus=size.vcpus or 0.0,
        memory_bytes=round(size.memory_bytes or 0),
        hosts_in_all=len(now.hosts.names),
        since_unix_ns=now.since_unix_ns,
        until_unix_ns=now.until_unix_ns,
        unmeasured=_unmeasured(now),
    )


def _size(now: Snapshot, request: fleet_pb2.RankHostsRequest) -> VmSize:
    """The VM's vCPUs and memory: as asked for, else as its job's largest VM has them."""
    if not 0.0 <= request.vcpus <= NUMBERS["vcpus"].high:
        raise wrong_field(
            "vcpus", f"must be 0 to {NUMBERS['vcpus'].high:g}, or 0 for its job's (value {request.vcpus:g})"
        )
    usual = now.sizes.get(request.job, UNKNOWN_VM)
    return VmSize(request.vcpus or usual.vcpus, request.memory_bytes or usual.memory_bytes)


def _unmeasured(now: Snapshot) -> list[fleet_pb2.UnmeasuredResource]:
    return [fleet_pb2.UnmeasuredResource(resource=name, why=why) for name, why in now.unmeasured.items()]


def _loading(now: Snapshot, request: fleet_pb2.RankHostsRequest) -> Floats:
    """The loading vector that is asked for."""
    if request.job:
        found = now.jobs.get(request.job)
        if found is None:
            seconds = (now.until_unix_ns - now.since_unix_ns) / 1e9
            seen = f"no VM of job {request.job[:80]!r} was seen in the last {seconds:.0f} s"
            raise unknown(f"{seen}; give its loading instead", "job")
        return found.loading
    try:
        given = numbers_by_name([request.loading], "", is_share=True)
    except InputError as error:
        raise wrong_field("loading", str(error).strip()) from error
    strange = next((name for name in given if name not in now.resources), None)
    if strange is not None:
        why = now.unmeasured.get(strange)
        then = f"it is not measured: {why}" if why else f"there are {', '.join(now.resources)}"
        raise wrong_field("loading", f"{strange[:80]}: no resource {strange[:80]!r} here; {then}")
    return np.array([given.get(name, 0.0) for name in now.resources])
