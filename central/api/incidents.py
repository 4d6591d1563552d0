"""The fleet API's part on incidents: lists, one with its evidence, suspected jobs, and a VM's history."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from central.api.limits import MAX_WINDOWS
from central.api.names import NameChecks
from central.api.paging import Context, Token, abort, check_times, encode, read_page
from central.api.work import Worker
from central.incidents.store import IncidentQuery, IncidentStore, Place, StoreError
from central.ingest.sessions import StreamRegistry
from central.journal.writer import Journal
from central.lake.segments import LakeError
from central.lake.vm_windows import SlowError, VmWindows
from central.validation.vm_names import shown_name
from whitepanda.common.texts import several_named
from whitepanda.v1 import agent_pb2, fleet_pb2

__all__ = ["IncidentQueries", "ask_store", "mark_open"]

_FILTERS = ("host", "suspect_job", "victim_job", "vm", "since_unix_ns", "until_unix_ns")
_MAX_INT64 = 2**63 - 1
_HOUR_NS = 3600 * 10**9
_DAY_NS = 24 * _HOUR_NS
_WINDOWS = 1000
_MAX_LISTED = 1000  # events and incidents of a VM's history

Answer = TypeVar("Answer")


class IncidentQueries(NameChecks):
    """Methods of `whitepanda.v1.Fleet`; `central.api.fleet.Fleet` has the rest."""

    _clock_unix_ns: Callable[[], int]
    _drawing: Worker
    _gap_ns: int
    _incidents: IncidentStore
    _journal: Journal
    _registry: StreamRegistry
    _vm_windows: VmWindows

    async def ListIncidents(  # noqa: N802 - the name in fleet.proto
        self, request: fleet_pb2.ListIncidentsRequest, context: Context
    ) -> fleet_pb2.ListIncidentsResponse:
        """When VMs of a host suffered, as hosts reported it, the last that began first."""
        await check_times(request, context)
        query = IncidentQuery(**{name: getattr(request, name) for name in _FILTERS})
        asked = repr((query, request.open_only))  # of a page token: without the time, which goes on
        page = await read_page(request, "incidents", asked, context)
        if request.open_only:
            query = dataclasses.replace(query, open_since_unix_ns=self._open_since())
        after: Place | None = None
        if request.page_token:
            after = (page.token.offset, page.token.version)
        found = await ask_store(context, self._incidents.find, query, limit=page.size + 1, after=after)
        if not found and after is None:
            jobs = (request.suspect_job, request.victim_job)
            await self.check_names(context, host=request.host, jobs=jobs, vm=request.vm)
        shown = found[: page.size]
        token = ""
        if len(found) > page.size:
            last = shown[-1]
            token = encode(Token("incidents", asked, last.id, last.first_unix_ns, ""))
        mark_open(shown, self._open_since())
        return fleet_pb2.ListIncidentsResponse(incidents=shown, next_page_token=token)

    async def GetIncident(  # noqa: N802 - the name in fleet.proto
        self, request: fleet_pb2.GetIncidentRequest, context: Context
    ) -> fleet_pb2.IncidentDetail:
        """One incident with its evidence, and how often its suspect was one elsewhere."""
        found = await ask_store(context, self._incidents.get, min(request.id, _MAX_INT64))
        if found is None:
            message = (
                f"no incident {request.id}; it was forgotten, became part of an earlier one, or never was"
            )
            await abort(context, grpc.StatusCode.NOT_FOUND, message)
        mark_open([found.incident], self._open_since())
        return found

    def _open_since(self) -> int:
        return self._clock_unix_ns() - self._gap_ns

    async def ListSuspectJobs(  # noqa: N802 - the name in fleet.proto
        self, request: fleet_pb2.ListSuspectJobsRequest, context: Context
    ) -> fleet_pb2.ListSuspectJobsResponse:
        """Jobs that were suspected first, by name: how often, and on how many hosts."""
        page = await read_page(request, "suspect_jobs", request.job, context)
        found = await ask_store(
            context,
            self._incidents.suspect_jobs,
            limit=page.size + 1,
            after=page.token.after,
            job=request.job,
        )
        if not found and request.job and not page.token.after:
            await self.check_names(context, jobs=[request.job])
        shown = found[: page.size]
        token = ""
        if len(found) > page.size:
            token = encode(Token("suspect_jobs", request.job, 0, 0, shown[-1].job))
        return fleet_pb2.ListSuspectJobsResponse(jobs=shown, next_page_token=token)

    async def GetVmHistory(  # noqa: N802 - the name in fleet.proto
        self, request: fleet_pb2.GetVmHistoryRequest, context: Context
    ) -> fleet_pb2.VmHistory:
        """Windows, events and incidents of a VM over at most a day."""
        until = min(request.until_unix_ns or time.time_ns(), _MAX_INT64)
        since = request.since_unix_ns or max(0, until - _HOUR_NS)
        limit = request.max_windows or _WINDOWS
        problem = ""
        if not request.vm:
            problem = "vm is missing: give the VM's UUID or name"
        elif limit > MAX_WINDOWS:
            problem = f"max_windows must be at most {MAX_WINDOWS} (value {limit})"
        elif not 0 <= until - since <= _DAY_NS:
            problem = (
                "until_unix_ns must be after since_unix_ns and at most a day later "
                f"(value {(until - since) / 1e9:.0f} s)"
            )
        if problem:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, problem)
        found = self._registry.vm_names.find(request.vm)
        if len(found) > 1:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, several_named(request.vm, found))
        vm = found[0] if found else request.vm
        query = IncidentQuery(vm=vm, since_unix_ns=since, until_unix_ns=until)
        incidents = await ask_store(context, self._incidents.find, query, limit=_MAX_LISTED)
        events = await asyncio.to_thread(
            self._journal.read_events,
            before_id=_MAX_INT64,
            limit=_MAX_LISTED,
            vm=vm,
            since_unix_ns=since,
            until_unix_ns=until,
        )
        windows = await self._windows(context, vm, since, until, limit + 1)
        if not windows and not events and not incidents:
            message = (
                f"no window, event or incident of VM {request.vm[:80]!r} in this time; windows are there once they "
                "are in the lake, after ingest.roll_interval_s"
            )
            if not found:
                message += "; of a VM that sends none now they are found by its UUID only"
            await abort(context, grpc.StatusCode.NOT_FOUND, message)
        names = self._registry.vm_names.by_host(vm)
        hosts = (
            {one.host for one in windows} | {one.host for one in incidents} | {row.host for _, row in events}
        )
        if not names or hosts - names.keys():
            names = (await ask_store(context, self._incidents.names, [vm])).get(vm, {}) | names
        return fleet_pb2.VmHistory(
            vm=vm,
            name=shown_name(names, hosts),
            windows=windows[-limit:],
            windows_left_out=len(windows) > limit,
            events=[
                fleet_pb2.FleetEvent(
                    host=row.host,
                    received_unix_ns=row.received_unix_ns,
                    event=agent_pb2.VmEvent.FromString(row.payload),
                )
                for _, row in events
            ],
            incidents=mark_open(incidents, self._open_since()),
        )

    async def _windows(
        self, context: Context, vm: str, since: int, until: int, limit: int
    ) -> list[fleet_pb2.VmWindow]:
        try:
            return await self._drawing.run(lambda: self._vm_windows.read(vm, since, until, limit), context)
        except (SlowError, LakeError, OSError) as error:
            remedy = "`whitepanda lake verify` tells more"
            if isinstance(error, SlowError):
                remedy = "ask for a shorter time by since_unix_ns and until_unix_ns"
            message = f"windows of VM {vm[:80]!r} in the lake: {error}; {remedy}"
            await abort(context, grpc.StatusCode.UNAVAILABLE, message)


def mark_open(incidents: list[fleet_pb2.Incident], since_unix_ns: int) -> list[fleet_pb2.Incident]:
    """Note in each whether VMs suffer now, as `incident_tables.is_open` does."""
    for incident in incidents:
        incident.open = incident.last_unix_ns >= since_unix_ns and incident.victims_now > 0
    return incidents


async def ask_store(
    context: Context, question: Callable[..., Answer], *arguments: Any, **named: Any
) -> Answer:
    """Ask incident history in a thread; ends the call with UNAVAILABLE where it does not answer."""
    try:
        return await asyncio.to_thread(question, *arguments, **named)
    except StoreError as error:
        message = f"incident history does not answer: {error}; is its database up?"
        await abort(context, grpc.StatusCode.UNAVAILABLE, message)
