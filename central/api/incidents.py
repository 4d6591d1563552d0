"""Incidents and events: lists, one incident with its evidence, suspected jobs, and a VM's history."""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from central.api.admission import Turns, Worker
from central.api.limits import MAX_TIME_UNIX_NS, MAX_WINDOWS
from central.api.names import KnownNames
from central.api.requests import Token, at_most, away, check_times, read_page, read_span, unknown, wrong, wrong_field
from central.incidents.store import IncidentQuery, IncidentStore, Place, StoreError
from central.ingest.sessions import StreamRegistry
from central.journal.writer import Journal
from central.lake.vm_windows import VmWindows
from central.validation.events import EventRow
from central.validation.vm_names import shown_name
from whitepanda.common.texts import several_named
from whitepanda.v1 import agent_pb2, fleet_pb2

_FILTERS = ("host", "suspect_job", "victim_job", "vm", "since_unix_ns", "until_unix_ns")
_WINDOWS = 1000
_MAX_LISTED = 1000  # events and incidents of a VM's history

_P = ParamSpec("_P")
Answer = TypeVar("Answer")


@dataclass(eq=False)
class IncidentHistory:
    """Incident history, off the event loop."""

    store: IncidentStore
    gap_ns: int  # an incident without a report for so long is over
    clock_unix_ns: Callable[[], int]

    @property
    def open_since_unix_ns(self) -> int:
        """The oldest last report that an open incident may have."""
        return self.clock_unix_ns() - self.gap_ns

    async def ask(self, question: Callable[_P, Answer], /, *arguments: _P.args, **named: _P.kwargs) -> Answer:
        """Ask the store in a thread; raises ApiError (UNAVAILABLE) where it does not answer."""
        try:
            return await asyncio.to_thread(question, *arguments, **named)
        except StoreError as error:
            raise away(f"incident history does not answer: {error}; is its database up?") from error

    async def find(self, query: IncidentQuery, limit: int, after: Place | None = None) -> list[fleet_pb2.Incident]:
        """Return incidents, the last that began first, each marked whether it is open."""
        found = await self.ask(self.store.find, query, limit=limit, after=after)
        return mark_open(found, self.open_since_unix_ns)

    def count_open(self) -> int | None:
        """Return how many incidents are open; None while the history does not answer. Blocks."""
        try:
            return self.store.count_open(self.open_since_unix_ns)
        except StoreError:
            return None


class IncidentsToken(Token, frozen=True, array_like=True, tag="incidents"):
    """Place in the list of incidents: after one that began at a time."""

    first_unix_ns: int = 0
    id: int = 0


class SuspectJobsToken(Token, frozen=True, array_like=True, tag="suspect_jobs"):
    """Place in the list of suspected jobs: after a name."""

    after: str = ""


class EventsToken(Token, frozen=True, array_like=True, tag="events"):
    """Place in the list of events: before one of the journal's numbers."""

    before_id: int = 0


@dataclass(eq=False)
class Incidents:
    """Answers on incidents."""

    history: IncidentHistory
    names: KnownNames

    async def list_incidents(self, request: fleet_pb2.ListIncidentsRequest) -> fleet_pb2.ListIncidentsResponse:
        """When VMs of a host suffered, as hosts reported it, the last that began first."""
        check_times(request)
        query = IncidentQuery(**{name: getattr(request, name) for name in _FILTERS})
        filters = repr((query, request.open_only))  # without the time, which changes
        page = read_page(request, IncidentsToken, filters)
        if request.open_only:
            query = dataclasses.replace(query, open_since_unix_ns=self.history.open_since_unix_ns)
        after = (page.token.first_unix_ns, page.token.id) if request.page_token else None
        found = await self.history.find(query, page.size + 1, after)
        if not found and after is None:
            await self.names.check(request, "host", "suspect_job", "victim_job", "vm")
        shown, token = page.cut(found, lambda last: {"first_unix_ns": last.first_unix_ns, "id": last.id})
        return fleet_pb2.ListIncidentsResponse(incidents=shown, next_page_token=token)

    async def get(self, request: fleet_pb2.GetIncidentRequest) -> fleet_pb2.IncidentDetail:
        """One incident with its evidence, and how often its suspect was one elsewhere."""
        found = await self.history.ask(self.history.store.get, min(request.id, MAX_TIME_UNIX_NS))
        if found is None:
            reason = "it was forgotten, became part of an earlier one, or never was"
            raise unknown(f"no incident {request.id}; {reason}", "id")
        mark_open([found.incident], self.history.open_since_unix_ns)
        return found

    async def list_suspect_jobs(self, request: fleet_pb2.ListSuspectJobsRequest) -> fleet_pb2.ListSuspectJobsResponse:
        """Jobs that were suspected first, by name: how often, and on how many hosts."""
        page = read_page(request, SuspectJobsToken, request.job)
        after = page.token.after
        read = self.history.store.suspect_jobs
        found = await self.history.ask(read, limit=page.size + 1, after=after, job=request.job)
        if not found and not after:
            await self.names.check(request, "job")
        shown, token = page.cut(found, lambda last: {"after": last.job})
        return fleet_pb2.ListSuspectJobsResponse(jobs=shown, next_page_token=token)


@dataclass(eq=False)
class Events:
    """Answers on what hosts report of their VMs."""

    journal: Journal
    names: KnownNames

    async def list_events(self, request: fleet_pb2.ListEventsRequest) -> fleet_pb2.ListEventsResponse:
        """What hosts report of their VMs, the last that came first."""
        check_times(request)
        wanted = {name: getattr(request, name) for name in ("host", "vm", "behaviour", "since_unix_ns")}
        wanted["until_unix_ns"] = request.until_unix_ns or MAX_TIME_UNIX_NS
        page = read_page(request, EventsToken, repr(sorted(wanted.items())))
        before = page.token.before_id or MAX_TIME_UNIX_NS
        found = await asyncio.to_thread(self.journal.read_events, before_id=before, limit=page.size + 1, **wanted)
        if not found:
            await self.names.check(request, "host", "vm")
        shown, token = page.cut(found, lambda last: {"before_id": last[0]})
        return fleet_pb2.ListEventsResponse(events=_messages(shown), next_page_token=token)


@dataclass(eq=False)
class VmHistories:
    """Answers on one VM."""

    journal: Journal
    history: IncidentHistory
    registry: StreamRegistry
    windows: VmWindows
    worker: Worker
    turns: Turns
    clock_unix_ns: Callable[[], int]

    async def get(self, request: fleet_pb2.GetVmHistoryRequest) -> fleet_pb2.VmHistory:
        """Windows, events and incidents of a VM over at most a day."""
        limit = request.max_windows or _WINDOWS
        if not request.vm:
            raise wrong_field("vm", "is missing: give the VM's UUID or name")
        at_most("max_windows", limit, MAX_WINDOWS)
        since, until = read_span(request, self.clock_unix_ns())
        found = self.registry.vm_names.find(request.vm)
        if len(found) > 1:
            raise wrong(several_named(request.vm, found), "vm")
        vm = found[0] if found else request.vm
        query = IncidentQuery(vm=vm, since_unix_ns=since, until_unix_ns=until)
        async with self.turns.turn():
            incidents = await self.history.find(query, _MAX_LISTED)
            events = await asyncio.to_thread(
                self.journal.read_events,
                before_id=MAX_TIME_UNIX_NS,
                limit=_MAX_LISTED,
                vm=vm,
                since_unix_ns=since,
                until_unix_ns=until,
            )
        windows = await self.worker.read_lake(
            f"windows of VM {vm[:80]!r}",
            lambda: self.windows.read(vm, since, until, limit + 1),
            "ask for a shorter time by since_unix_ns and until_unix_ns",
        )
        if not windows and not events and not incidents:
            message = (
                f"no window, event or incident of VM {request.vm[:80]!r} in this time; windows are there once they "
                "are in the lake, after ingest.roll_interval_s"
            )
            if not found:
                message += "; of a VM that sends none now they are found by its UUID only"
            raise unknown(message, "vm")
        names = self.registry.vm_names.by_host(vm)
        hosts = {one.host for one in windows} | {one.host for one in incidents} | {row.host for _, row in events}
        if not names or hosts - names.keys():
            async with self.turns.turn():
                names = (await self.history.ask(self.history.store.names, [vm])).get(vm, {}) | names
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


def mark_open(incidents: list[fleet_pb2.Incident], since_unix_ns: int) -> list[fleet_pb2.Incident]:
    """Set in each whether VMs suffer now, as `central.incidents.tables.is_open` does."""
    for incident in incidents:
        incident.open = incident.last_unix_ns >= since_unix_ns and incident.victims_now > 0
    return incidents
