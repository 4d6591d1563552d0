"""Names in filters of the fleet API: one that is not known here is refused, where the answer would be an empty list."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from difflib import get_close_matches

import grpc

from central.api.paging import Context, abort
from central.build.status import BuildStatus
from central.incidents.store import IncidentQuery, IncidentStore, StoreError
from central.ingest.sessions import StreamRegistry
from central.journal.writer import Journal

__all__ = ["NameChecks"]

_MAX_INT64 = 2**63 - 1


class NameChecks:
    """What `central.api.fleet.Fleet` asks before it answers that there is nothing."""

    _builder: BuildStatus
    _incidents: IncidentStore
    _journal: Journal
    _registry: StreamRegistry

    async def check_names(
        self, context: Context, *, host: str = "", jobs: Iterable[str] = (), vm: str = ""
    ) -> None:
        """End the call with NOT_FOUND where central knows no host, job or VM of that name; "" is none asked for."""
        problem = ""
        if (
            host
            and host not in self._journal.hosts
            and not await self._has_incident(IncidentQuery(host=host))
        ):
            problem = f"no host {host[:80]!r} ever connected to this central" + _near(
                host, self._journal.hosts
            )
        for job in filter(None, jobs):
            problem = problem or await self._job_problem(job)
        if vm and not problem and not await self._knows_vm(vm):
            seen = "none of that UUID or name sends windows, or is in an incident or event"
            problem = f"no VM {vm[:80]!r} is known here: {seen}"
        if problem:
            await abort(context, grpc.StatusCode.NOT_FOUND, problem)

    async def _job_problem(self, job: str) -> str:
        running = {name for record in self._journal.hosts.values() for name in record.jobs}
        running.update(name for stream in self._registry.connected() for name in stream.jobs)
        built = self._builder.current
        if job in running or (built and (built.statistics(job) or built.coefficient(job))):
            return ""
        for query in (IncidentQuery(suspect_job=job), IncidentQuery(victim_job=job)):
            if await self._has_incident(query):
                return ""
        seen = "no host runs it, no version has it, no incident names it"
        return f"no job {job[:80]!r} is known here: {seen}" + _near(job, running)

    async def _knows_vm(self, vm: str) -> bool:
        if self._registry.vm_names.find(vm) or await self._has_incident(IncidentQuery(vm=vm)):
            return True
        return bool(await asyncio.to_thread(self._journal.read_events, before_id=_MAX_INT64, limit=1, vm=vm))

    async def _has_incident(self, query: IncidentQuery) -> bool:
        try:
            return bool(await asyncio.to_thread(self._incidents.find, query, limit=1))
        except StoreError:
            return True  # nobody can say


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, n=2)
    return f"; did you mean {' or '.join(near)}?" if near else ""
