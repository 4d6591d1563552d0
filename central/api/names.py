"""Refuses unknown names in filters of the fleet API, whose answer would be an empty list."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from central.api.limits import MAX_TIME_UNIX_NS
from central.api.requests import unknown
from central.build.status import BuildStatus
from central.incidents.store import IncidentQuery, IncidentStore, StoreError
from central.ingest.sessions import StreamRegistry
from central.journal.writer import Journal


@dataclass(eq=False)
class KnownNames:
    """Looks names up before an answer is empty."""

    journal: Journal
    registry: StreamRegistry
    builder: BuildStatus
    incidents: IncidentStore

    async def check(self, request: Any, *fields: str) -> None:
        """Refuse a request with a host, job or VM in one of these fields that central does not know."""
        problems = {"host": self._host_problem, "job": self._job_problem, "vm": self._vm_problem}
        for field in fields:
            name, kind = getattr(request, field), field.rpartition("_")[2]
            if name and (problem := await problems[kind](name)):
                raise unknown(problem, field)

    async def _host_problem(self, host: str) -> str:
        hosts = self.journal.hosts
        if host in hosts or await self._has_incident(IncidentQuery(host=host)):
            return ""
        return f"no host {host[:80]!r} ever connected to this central" + _near(host, hosts)

    async def _job_problem(self, job: str) -> str:
        running = {name for record in self.journal.hosts.values() for name in record.jobs}
        running.update(name for stream in self.registry.connected() for name in stream.jobs)
        built = self.builder.current
        if job in running or (built and (built.statistics(job) or built.coefficient(job))):
            return ""
        for query in (IncidentQuery(suspect_job=job), IncidentQuery(victim_job=job)):
            if await self._has_incident(query):
                return ""
        seen = "no host runs it, no version has it, no incident names it"
        return f"no job {job[:80]!r} is known here: {seen}" + _near(job, running)

    async def _vm_problem(self, vm: str) -> str:
        if self.registry.vm_names.find(vm) or await self._has_incident(IncidentQuery(vm=vm)):
            return ""
        if await asyncio.to_thread(self.journal.read_events, before_id=MAX_TIME_UNIX_NS, limit=1, vm=vm):
            return ""
        seen = "none of that UUID or name sends windows, or is in an incident or event"
        return f"no VM {vm[:80]!r} is known here: {seen}"

    async def _has_incident(self, query: IncidentQuery) -> bool:
        try:
            return bool(await asyncio.to_thread(self.incidents.find, query, limit=1))
        except StoreError:
            return True  # not known, so not refused


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, n=2)
    return f"; did you mean {' or '.join(near)}?" if near else ""
