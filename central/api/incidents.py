"""Incidents and events: lists, one incident with its evidence, suspected jobs, and a VM's history."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from central.api.context import Context
from central.api.limits import MAX_TIME_UNIX_NS, MAX_WINDOWS
from central.api.names import check_names, has_vm_of, is_of_project
from central.api.requests import ApiError, at_most, check_times, read_page, read_span, unknown, wrong, wrong_field
from central.incidents.store import IncidentQuery
from central.validation.events import EventRow
from central.validation.vm_names import shown_name
from whitepanda.common.texts import several_named
from whitepanda.v1 import agent_pb2, fleet_pb2

_MOST_VMS = 200_000  # of a project
_FILTERS = ("host", "suspect_job", "victim_job", "vm", "project", "since_unix_ns", "until_unix_ns")
_WINDOWS = 1000
_MAX_LISTED = 1000  # events and incidents of a VM's history
_MAX_NAMESAKES = 100  # VMs of one name whose project is asked for


async def list_incidents(context: Context, request: fleet_pb2.ListIncidentsRequest) -> fleet_pb2.ListIncidentsResponse:
    """When VMs of a host suffered, as hosts reported it, the last that began first."""
    check_times(request)
    query = IncidentQuery(**{name: getattr(request, name) for name in _FILTERS})
    filters = repr((query, request.open_only))  # without the time, which changes
    page = read_page(request, "incidents", (0, 0), filters)
    if request.open_only:
        query = dataclasses.replace(query, open_since_unix_ns=context.history.open_since_unix_ns)
    after = page.place if request.page_token else None
    found = await context.history.find(query, page.size + 1, after)
    if not found and after is None:
        await check_names(context, request, "host", "suspect_job", "victim_job", "vm", "project")
    shown, token = page.cut(found, lambda last: (last.first_unix_ns, last.id))
    return fleet_pb2.ListIncidentsResponse(incidents=shown, next_page_token=token)


async def get_incident(context: Context, request: fleet_pb2.GetIncidentRequest) -> fleet_pb2.IncidentDetail:
    """One incident with its evidence, and how often its suspect was one elsewhere."""
    found = await context.history.ask(context.history.store.get, min(request.id, MAX_TIME_UNIX_NS))
    if found is None or (request.project and not has_vm_of(found.incident, request.project)):
        raise no_incident(request)
    await context.history.mark([found.incident])
    return found


def no_incident(request: Any) -> ApiError:
    """Return the error of a request with the number of no incident, or of none with a VM of its project."""
    project = getattr(request, "project", "")
    of = f" with a VM of project {project[:80]!r}" if project else ""
    reason = "it was forgotten, became part of an earlier one, or never was"
    return unknown(f"no incident {request.id}{of}; {reason}", "id")


async def list_suspect_jobs(
    context: Context, request: fleet_pb2.ListSuspectJobsRequest
) -> fleet_pb2.ListSuspectJobsResponse:
    """Jobs that were suspected first, by name: how often, and on how many hosts."""
    page = read_page(request, "suspect_jobs", ("",), request.job)
    (after,), history = page.place, context.history
    found = await history.ask(history.store.suspect_jobs, limit=page.size + 1, after=after, job=request.job)
    if not found and not after:
        await check_names(context, request, "job")
    shown, token = page.cut(found, lambda last: (last.job,))
    return fleet_pb2.ListSuspectJobsResponse(jobs=shown, next_page_token=token)


async def list_events(context: Context, request: fleet_pb2.ListEventsRequest) -> fleet_pb2.ListEventsResponse:
    """What hosts report of their VMs, the last that came first."""
    check_times(request)
    wanted = {name: getattr(request, name) for name in ("host", "vm", "behaviour", "since_unix_ns")}
    wanted["until_unix_ns"] = request.until_unix_ns or MAX_TIME_UNIX_NS
    page = read_page(request, "events", (0,), repr((*sorted(wanted.items()), request.project)))
    before = page.place[0] or MAX_TIME_UNIX_NS
    if request.project:
        times = (wanted["since_unix_ns"], wanted["until_unix_ns"])
        wanted["uuids"] = await context.history.ask(context.facts.vms_of, [request.project], *times, _MOST_VMS)
    found = await context.read_events(page.size + 1, before, **wanted)
    if not found:
        await check_names(context, request, "host", "vm", *(() if wanted.get("uuids") else ("project",)))
    shown, token = page.cut(found, lambda last: (last[0],))
    return fleet_pb2.ListEventsResponse(events=_messages(shown), next_page_token=token)


async def get_vm_history(context: Context, request: fleet_pb2.GetVmHistoryRequest) -> fleet_pb2.VmHistory:
    """Windows, events and incidents of a VM over at most a day."""
    limit, project = request.max_windows or _WINDOWS, request.project
    if not request.vm:
        raise wrong_field("vm", "is missing: give the VM's UUID or name")
    at_most("max_windows", limit, MAX_WINDOWS)
    since, until = read_span(request, context.clock_unix_ns())
    found = context.registry.vm_names.find(request.vm)
    if project and len(found) > 1:
        async with context.turns.turn():
            found = [vm for vm in found[:_MAX_NAMESAKES] if await is_of_project(context, vm, project)]
    if len(found) > 1:
        raise wrong(several_named(request.vm, found), "vm")
    vm = found[0] if found else request.vm
    wanted: dict[str, Any] = {"vm": vm, "since_unix_ns": since, "until_unix_ns": until}
    async with context.turns.turn():
        if project and not await is_of_project(context, vm, project):
            raise unknown(f"nothing is known of VM {request.vm[:80]!r} of project {project[:80]!r}", "vm")
        incidents = await context.history.find(IncidentQuery(**wanted), _MAX_LISTED)
        events = await context.read_events(_MAX_LISTED, **wanted)
    windows = await context.drawing.read_lake(
        f"windows of VM {vm[:80]!r}",
        lambda: context.windows.read(vm, since, until, limit + 1),
        "ask for a shorter time by since_unix_ns and until_unix_ns",
    )
    if not windows and not events and not incidents:
        message = (
            f"nothing is known of VM {request.vm[:80]!r} in this time; new windows appear after ingest.roll_interval_s"
        )
        if not found:
            message += "; a VM that sends none now is found by its UUID only"
        raise unknown(message, "vm")
    names = context.registry.vm_names.by_host(vm)
    hosts = {one.host for one in windows} | {one.host for one in incidents} | {row.host for _, row in events}
    if not names or hosts - names.keys():
        async with context.turns.turn():
            names = (await context.history.ask(context.history.store.names, [vm])).get(vm, {}) | names
    return fleet_pb2.VmHistory(
        vm=vm,
        name=shown_name(names, hosts),
        windows=windows[-limit:],
        windows_left_out=len(windows) > limit,
        events=_messages(events),
        incidents=incidents,
    )


def _messages(events: Sequence[tuple[int, EventRow]]) -> list[fleet_pb2.FleetEvent]:
    return [
        fleet_pb2.FleetEvent(
            host=row.host, received_unix_ns=row.received_unix_ns, event=agent_pb2.VmEvent.FromString(row.payload)
        )
        for _, row in events
    ]
