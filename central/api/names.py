"""Refuses unknown names in filters of the fleet API, whose answer would be an empty list; which project a VM is of."""

import asyncio
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from central.api.context import Context
from central.api.requests import unknown
from central.incidents.store import IncidentQuery, StoreError
from whitepanda.v1 import fleet_pb2

_LOOKED_AT = 20  # incidents


async def check_names(context: Context, request: Any, *fields: str) -> None:
    """Refuse a request with a host, job or VM in one of these fields that central does not know."""
    problems = {"host": _host_problem, "job": _job_problem, "vm": _vm_problem, "project": _project_problem}
    for field in fields:
        name, kind = getattr(request, field), field.rpartition("_")[2]
        if name and (problem := await problems[kind](context, name)):
            raise unknown(problem, field)


async def _host_problem(context: Context, host: str) -> str:
    hosts = context.journal.hosts
    if host in hosts or await _has_incident(context, host=host):
        return ""
    return f"no host {host[:80]!r} ever connected to this central" + _near(host, hosts)


async def _job_problem(context: Context, job: str) -> str:
    running = {name for record in context.journal.hosts.values() for name in record.jobs}
    running.update(name for stream in context.registry.connected() for name in stream.jobs)
    built = context.builder.current
    if job in running or (built and (built.statistics(job) or built.coefficient(job))):
        return ""
    if await _has_incident(context, suspect_job=job) or await _has_incident(context, victim_job=job):
        return ""
    seen = "no host runs it, no version has it, no incident names it"
    return f"no job {job[:80]!r} is known here: {seen}" + _near(job, running)


async def _vm_problem(context: Context, vm: str) -> str:
    if context.registry.vm_names.find(vm) or await _has_incident(context, vm=vm):
        return ""
    if await context.read_events(1, vm=vm):
        return ""
    seen = "none of that UUID or name sends windows, or is in an incident or event"
    return f"no VM {vm[:80]!r} is known here: {seen}"


async def _project_problem(context: Context, project: str) -> str:
    if await _has_incident(context, project=project):
        return ""
    now = context.clock_unix_ns()
    known = await context.history.ask(context.facts.vms_at, now, project=project, limit=1)
    if any(vm.project == project for vm in known):
        return ""
    return f"no project {project[:80]!r} is known here: no VM that runs is of it, and none in an incident"


async def is_of_project(context: Context, vm: str, project: str) -> bool:
    """Whether a VM (UUID) is or was of a project, by facts, or by incidents where facts do not know it."""
    if await context.history.ask(context.facts.has_project, project, vm=vm):
        return True
    query = IncidentQuery(vm=vm, project=project)
    incidents = await context.history.ask(context.history.store.find, query, limit=_LOOKED_AT)
    return any(has_vm_of(incident, project, vm) for incident in incidents)


def has_vm_of(incident: fleet_pb2.Incident, project: str, vm: str = "") -> bool:
    """Whether a VM of a project is a victim or suspect of an incident; `vm`: this one (UUID)."""
    return any(each.project == project and vm in ("", each.vm) for each in (*incident.victims, *incident.suspects))


async def _has_incident(context: Context, **named: Any) -> bool:
    try:
        return bool(await asyncio.to_thread(context.history.store.find, IncidentQuery(**named), limit=1))
    except StoreError:
        return True  # not known, so not refused


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, n=2)
    return f"; did you mean {' or '.join(near)}?" if near else ""
