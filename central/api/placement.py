"""The fleet API's part on placement: loading vectors of jobs, and hosts ranked for a new VM."""

from __future__ import annotations

import grpc
import numpy as np

from central.api.limits import MAX_TOP
from central.api.paging import Context, Token, abort, encode, read_page
from central.models.groups import Floats
from central.own_threads import SharedAnswer
from central.placement.live import Snapshot
from central.placement.tables import numbers_by_name
from whitepanda.common.errors import InputError
from whitepanda.v1 import fleet_pb2

__all__ = ["PlacementQueries"]

_TOP = 10


class PlacementQueries:
    """Methods of `whitepanda.v1.Fleet`; `central.api.fleet.Fleet` has the rest."""

    _snapshot: SharedAnswer[Snapshot]

    async def ListJobLoadings(  # noqa: N802 - the name in fleet.proto
        self, request: fleet_pb2.ListJobLoadingsRequest, context: Context
    ) -> fleet_pb2.ListJobLoadingsResponse:
        """Loading vectors of the jobs that ran lately, by name."""
        page = await read_page(request, "loadings", request.job, context)
        now = await self._snapshot.get()
        after = page.token.after
        names = [name for name in now.jobs if name > after and (not request.job or name == request.job)]
        shown = names[: page.size]
        token = encode(Token("loadings", request.job, 0, 0, shown[-1])) if len(names) > page.size else ""
        return fleet_pb2.ListJobLoadingsResponse(
            resources=now.resources,
            loadings=[
                fleet_pb2.JobLoading(
                    job=name,
                    loading=now.jobs[name].loading.tolist(),
                    standard_error=now.jobs[name].standard_error.tolist(),
                    vms=now.jobs[name].vms,
                    windows=now.jobs[name].windows,
                    measured_vms=now.jobs[name].measured,
                )
                for name in shown
            ],
            since_unix_ns=now.since_unix_ns,
            until_unix_ns=now.until_unix_ns,
            next_page_token=token,
            unmeasured=_unmeasured(now),
        )

    async def RankHosts(  # noqa: N802 - the name in fleet.proto
        self, request: fleet_pb2.RankHostsRequest, context: Context
    ) -> fleet_pb2.HostRanking:
        """Hosts for a new VM, where it would suffer least first."""
        if bool(request.job) == bool(request.loading):
            message = "name either the VM's job, or its loading as cpu=0.5,disk=0.2"
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, message)
        if request.top > MAX_TOP:
            message = f"top must be at most {MAX_TOP} (value {request.top})"
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, message)
        now = await self._snapshot.get()
        loading = await _loading(now, request, context)
        ranking = now.rank(loading, request.top or _TOP)
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
                )
                for k in ranking.order.tolist()
            ],
            hosts_in_all=len(now.hosts.names),
            since_unix_ns=now.since_unix_ns,
            until_unix_ns=now.until_unix_ns,
            unmeasured=_unmeasured(now),
        )


def _unmeasured(now: Snapshot) -> list[fleet_pb2.UnmeasuredResource]:
    return [fleet_pb2.UnmeasuredResource(resource=name, why=why) for name, why in now.unmeasured.items()]


async def _loading(now: Snapshot, request: fleet_pb2.RankHostsRequest, context: Context) -> Floats:
    """The loading vector that is asked for."""
    if request.job:
        found = now.jobs.get(request.job)
        if found is None:
            seconds = (now.until_unix_ns - now.since_unix_ns) / 1e9
            seen = f"no VM of job {request.job[:80]!r} was seen in the last {seconds:.0f} s"
            message = f"{seen}; give its loading instead"
            await abort(context, grpc.StatusCode.NOT_FOUND, message)
        return found.loading
    try:
        given = numbers_by_name([request.loading], "loading", is_share=True)
    except InputError as error:
        await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
    unknown = [name for name in given if name not in now.resources]
    if unknown:
        why = now.unmeasured.get(unknown[0])
        then = f"it is not measured: {why}" if why else f"there are {', '.join(now.resources)}"
        message = f"loading: no resource {unknown[0][:80]!r} here; {then}"
        await abort(context, grpc.StatusCode.INVALID_ARGUMENT, message)
    return np.array([given.get(name, 0.0) for name in now.resources])
