"""VMs: the list of those that run, and the search for VMs (also gone ones), hosts, jobs and projects."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from central.api.requests import read_page, read_top, wrong_field
from central.incidents.store import IncidentQuery
from central.lake.errors import LakeError, SlowError
from central.vms.listing import Part, VmEntry, VmList, Wanted, best_first, entry
from whitepanda.common import log
from whitepanda.v1 import agent_pb2, fleet_pb2

if TYPE_CHECKING:
    from central.api.context import Context
    from central.api.lake_queries import Running

_MOST_OPEN = 1000  # incidents whose VMs are marked
_MOST_VMS = 200_000  # with projects
_STEADY = agent_pb2.BEHAVIOUR_STEADY
_Hit = fleet_pb2.SearchHit


async def of_project(context: Context, project: str) -> list[VmEntry]:
    """VMs of a project that run now."""
    return (await _listed(context)).of_project(project)


async def _listed(context: Context) -> VmList:
    known = last_running(context)
    if known is None:
        known = await context.drawing.read_lake("which VMs run now", context.recent.read, "try again in a while")
    if context.listed_of is None:
        await _make(context, known)
    renew_list(context)  # nobody waits for a newer list while there is one
    return context.listed


def renew_list(context: Context) -> None:
    """Have `context.listed` made again if it is old, without waiting for it."""
    known, is_free = last_running(context), context.listing is None or context.listing.done()
    if known is not None and context.listed_of is not known and is_free:
        context.listing = asyncio.create_task(_make_later(context, known), name="the list of VMs")


async def _make(context: Context, running: Running) -> None:
    context.listed = await context.history.ask(_made, context, running)
    context.listed_of = running


async def _make_later(context: Context, running: Running) -> None:
    try:
        await _make(context, running)
    except Exception as error:  # noqa: BLE001 - no caller waits for this task: logged here, or never
        log.get("api").warning("the list of VMs stays as it was", error=f"{type(error).__name__}: {error}")


def _made(context: Context, running: Running) -> VmList:
    """Make the list; projects are those of facts. Blocks."""
    names, now = context.registry.vm_names, context.clock_unix_ns()
    projects = context.facts.projects_at(now, limit=_MOST_VMS)
    found = VmList(
        [
            entry(row["vm"], names.get(row["vm"], row["machine"]), projects.get((row["machine"], row["vm"]), ""), row)
            for row in running.vms.to_pylist()
        ]
    )
    found.of_project("")  # sorts by name, here and not on the loop
    return found


async def _parts(context: Context) -> dict[str, Part]:
    """Return who suffers, and who is suspected of it, in open incidents: victims take precedence."""
    store, history = context.history.store, context.history
    found: dict[str, Part] = {}
    is_open = await history.ask(store.open_now, history.open_since_unix_ns, limit=_MOST_OPEN)
    now: dict[int, list[fleet_pb2.SufferingVm]] = {}
    for vm in await history.ask(store.suffering, is_open):
        now.setdefault(vm.incident, []).append(vm)
    for incident in is_open:  # the worst one is first
        victims = now.get(incident.id, [])
        named = ([incident.suspect.vm] if incident.HasField("suspect") else []) + [vm.suspect for vm in victims]
        for suspect in filter(None, named):
            found.setdefault(suspect, Part(agent_pb2.BEHAVIOUR_INFLICTING, incident.id, incident.first_unix_ns))
        for vm in victims:
            slow_down = vm.slow_down if vm.HasField("slow_down") else None
            if vm.vm not in found or found[vm.vm].behaviour != agent_pb2.BEHAVIOUR_VICTIM:
                found[vm.vm] = Part(agent_pb2.BEHAVIOUR_VICTIM, incident.id, vm.since_unix_ns, slow_down)
    return found


async def list_vms(context: Context, request: fleet_pb2.ListFleetVmsRequest) -> fleet_pb2.ListFleetVmsResponse:
    """VMs that run, or did within placement.gone_s, filtered and sorted."""
    if request.order not in fleet_pb2.FleetVmOrder.values():
        raise wrong_field("order", f"is not known here (value {request.order})")
    by_default = request.order == fleet_pb2.FLEET_VM_ORDER_UNSPECIFIED
    word = fleet_pb2.FleetVmOrder.Name(request.order).removeprefix("FLEET_VM_ORDER_").lower()
    order, descending = ("slow_down", True) if by_default else (word, request.descending)
    wanted = Wanted(
        request.text.lower().strip(), request.project, request.job, request.host, request.behaviour, order, descending
    )
    page = read_page(request, "vms", (0,), repr(wanted))
    (first,) = page.place
    vms, parts = await _listed(context), await _parts(context)
    shown, count = await asyncio.to_thread(vms.page, wanted, parts, first, page.size + 1)
    rows, token = page.cut(shown, lambda _last: (first + page.size,))
    return fleet_pb2.ListFleetVmsResponse(
        vms=[_row(each, parts.get(each.vm)) for each in rows],
        vms_in_all=count,
        next_page_token=token,
        until_unix_ns=context.listed_of.until_unix_ns if context.listed_of else 0,
    )


def _row(each: VmEntry, part: Part | None) -> fleet_pb2.FleetVm:
    row = fleet_pb2.FleetVm(
        vm=each.vm, name=each.name, project=each.project, job=each.job, host=each.host, platform=each.platform,
        cpi=each.cpi, cpu_usage_cores=each.cpu_usage_cores, last_unix_ns=each.last_unix_ns,
        behaviour=part.behaviour if part else _STEADY,
    )  # fmt: skip
    if part:
        row.incident, row.since_unix_ns = part.incident, part.since_unix_ns
        if part.slow_down is not None:
            row.slow_down.CopyFrom(part.slow_down)
    return row


async def search(context: Context, request: fleet_pb2.SearchRequest) -> fleet_pb2.SearchResponse:
    """VMs, hosts, jobs and projects whose name has a text; VMs by UUID too, and those that are gone.

    Gone VMs are found by job, project and host as well, after all names.
    """
    text, top = request.text.strip(), read_top(request.top, 20)
    if not text:
        raise wrong_field("text", "is missing: give a part of a name, or of a VM's UUID")
    vms = await _listed(context)
    hits = await asyncio.to_thread(_hits, context, vms.entries, text.lower(), top, request.project)
    running = {each.vm for each in vms.entries}
    hits += [hit for hit in await _others(context, text, top, request.project) if hit.vm not in running]
    known = {(kind, getattr(each, kind)) for kind in ("job", "project") for each in vms.entries}
    groups = await context.history.ask(context.facts.find_groups, text, top, request.project)
    hits += [_Hit(kind=kind, name=name, gone=True) for kind, name in groups if (kind, name) not in known]
    hits.sort(key=lambda hit: _rank(text.lower(), hit))
    return fleet_pb2.SearchResponse(hits=hits[:top])


async def _others(context: Context, text: str, top: int, project: str) -> list[fleet_pb2.SearchHit]:
    """Return VMs that facts have by a part of a text, and that incidents or events have by the whole name or UUID."""
    found = [
        _Hit(kind="vm", name=each.name, vm=each.vm, project=each.project, job=each.job, host=each.host, gone=True)
        for each in await context.history.ask(context.facts.find, text, top, project)
    ]
    for incident in await context.history.find(IncidentQuery(vm=text, project=project), 5):
        found += [
            _Hit(kind="vm", name=vm.name, vm=vm.vm, project=vm.project, job=vm.job, host=incident.host, gone=True)
            for vm in (*incident.victims, *incident.suspects)
            if text in (vm.vm, vm.name) and project in ("", vm.project)
        ]
    for _, row in [] if project else await context.read_events(1, vm=text):
        event = agent_pb2.VmEvent.FromString(row.payload)
        found.append(_Hit(kind="vm", name=event.name, vm=event.vm, job=event.job, host=row.host, gone=True))
    return list({hit.vm: hit for hit in reversed(found)}.values())


def _hits(context: Context, entries: Sequence[VmEntry], text: str, top: int, project: str) -> list[fleet_pb2.SearchHit]:
    mine = [each for each in entries if not project or each.project == project]
    matching = [each for each in mine if text in each.name.lower() or each.vm.startswith(text)]
    hits = [
        _Hit(kind="vm", name=each.name, vm=each.vm, job=each.job, host=each.host, project=each.project)
        for each in sorted(matching, key=lambda each: (not each.name.lower().startswith(text), each.name))[:top]
    ]
    hosts = {each.host for each in mine} if project else context.journal.hosts.keys() | {each.host for each in mine}
    jobs, projects = {each.job for each in mine}, {each.project for each in mine if each.project}
    for kind, names in (("host", hosts), ("job", jobs), ("project", projects)):
        hits += [_Hit(kind=kind, name=name) for name in best_first(text, names, top)]
    return hits


def _rank(text: str, hit: fleet_pb2.SearchHit) -> tuple[bool, bool, bool, bool, str]:
    name = hit.name.lower()
    is_begin = name.startswith(text) or hit.vm.startswith(text)
    is_named = is_begin or text in name  # else it is found by its job, project or host
    return not is_named, text not in (name, hit.vm), hit.gone, not is_begin, name


def last_running(context: Context) -> Running | None:
    """Return which VMs run, as it was last read, and have it read again if that is old; None if it never was."""
    running, is_old = context.recent.known()
    if is_old and (context.refreshing is None or context.refreshing.done()):
        context.refreshing = asyncio.create_task(_refresh(context), name="who runs now")
    return running


async def _refresh(context: Context) -> None:
    try:
        await asyncio.to_thread(context.recent.read)
    except (SlowError, LakeError, OSError):
        pass  # reported by GetJob, which waits for it
    except Exception as error:  # noqa: BLE001 - no caller waits for this task: logged here, or never
        log.get("api").warning("cannot read which VMs run now", error=f"{type(error).__name__}: {error}")
