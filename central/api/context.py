"""What the answers share: central's parts that they ask, what is read once for all of them, and their queues."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import grpc

from central.api.admission import Turns, Worker
from central.api.lake_queries import LakeTotals, RecentVms, Running
from central.api.limits import MAX_TIME_UNIX_NS
from central.api.requests import ApiError, away
from central.authorisation.revocation_list import Revoked
from central.build.status import BuildStatus
from central.coefficients.history import CoefficientHistory
from central.coefficients.versions import BuiltVersion
from central.config import PlacementSection, RuntimeSection
from central.facts.store import FactStore
from central.history.reader import FleetHistory
from central.incidents.people import TooManyError
from central.incidents.silences import MAX_IN_FORCE
from central.incidents.store import IncidentQuery, IncidentStore, Place, StoreError
from central.incidents.totals import OpenCounts
from central.ingest.sessions import StreamRegistry
from central.journal.writer import Journal
from central.lake.segment_times import SegmentTimes
from central.lake.segments import Lake
from central.lake.vm_windows import VmWindows
from central.own_threads import SharedAnswer
from central.placement.known_facts import sizes_at
from central.placement.live import LiveFleet
from central.validation.events import EventRow
from central.vms.listing import VmList
from central.vms.silenced import silenced
from whitepanda.common.errors import InputError
from whitepanda.common.tls import OwnCertificate, TlsFiles
from whitepanda.v1 import fleet_pb2

if TYPE_CHECKING:
    from central.runtimes.model import Model


_AT_ONCE = 4  # questions; fewer than asyncio's own pool has threads
_REST = 9.0  # so totals take a tenth of a core at most

_P = ParamSpec("_P")
Answer = TypeVar("Answer")


@dataclass
class Parts:
    """States of the other parts of central; an error is "" if there is none."""

    roll_error: Callable[[], str] = str
    incidents_error: Callable[[], str] = str
    webhooks: Callable[[], list[fleet_pb2.WebhookReceiver]] = list
    over_quota: Callable[[], Mapping[str, Mapping[str, int]]] = dict  # what was refused, by host and budget
    certificate: OwnCertificate = field(default_factory=lambda: OwnCertificate(TlsFiles()))
    revoked: Revoked = field(default_factory=Revoked)


@dataclass(eq=False)
class IncidentHistory:
    """Incident history, off the event loop."""

    store: IncidentStore
    gap_ns: int  # an incident without a report for this long is over
    clock_unix_ns: Callable[[], int]

    @property
    def open_since_unix_ns(self) -> int:
        """The oldest last report that an open incident may have."""
        return self.clock_unix_ns() - self.gap_ns

    async def ask(self, question: Callable[_P, Answer], /, *arguments: _P.args, **named: _P.kwargs) -> Answer:
        """Ask the store in a thread; raises ApiError if it does not answer, or keeps no more of a kind."""
        try:
            return await asyncio.to_thread(question, *arguments, **named)
        except StoreError as error:
            raise away(f"incident history does not answer: {error}; is its database up?") from error
        except TooManyError as error:
            raise ApiError(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)) from error

    async def find(self, query: IncidentQuery, limit: int, after: Place | None = None) -> list[fleet_pb2.Incident]:
        """Return incidents, the last that began first, each marked whether it is open."""
        return await self.mark(await self.ask(self.store.find, query, limit=limit, after=after))

    async def mark(self, incidents: list[fleet_pb2.Incident]) -> list[fleet_pb2.Incident]:
        """Set in each whether it is open, and if so which silence keeps it quiet."""
        mark_open(incidents, self.open_since_unix_ns)
        numbers = [one.id for one in incidents if one.open]
        silences = await self.ask(self.store.silenced, numbers, self.clock_unix_ns()) if numbers else {}
        for incident in incidents:
            incident.silenced_by = silences.get(incident.id, 0)
        return incidents

    def silences_in_force(self) -> list[fleet_pb2.Silence]:
        """Return the silences that are in force, or will be; none while the history does not answer. Blocks."""
        now, before = self.clock_unix_ns(), MAX_TIME_UNIX_NS
        try:
            return self.store.list_silences(now_unix_ns=now, current_only=True, limit=MAX_IN_FORCE, before_id=before)
        except StoreError:
            return []

    def count_open(self) -> OpenCounts | None:
        """Return how many incidents are open; None while the history does not answer. Blocks."""
        try:
            return self.store.open_counts(self.open_since_unix_ns, self.clock_unix_ns())
        except StoreError:
            return None


def mark_open(incidents: list[fleet_pb2.Incident], since_unix_ns: int) -> list[fleet_pb2.Incident]:
    """Set in each whether VMs suffer now, as `central.incidents.tables.is_open` does."""
    for incident in incidents:
        incident.open = incident.last_unix_ns >= since_unix_ns and incident.victims_now > 0
    return incidents


class ModelFile:
    """The configured model of runtimes, read again when its file changes. Safe in threads."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: tuple[tuple[int, int, int], Model] | None = None

    def read(self) -> Model:
        """Return the model; raises InputError if none is configured, or its file is not a model."""
        if not self._path:
            raise InputError(
                "no model of runtimes: make one with `whitepanda runtime fit`, name its file as runtime.model in "
                "central's configuration"
            )
        from central.runtimes.model import read_model  # noqa: PLC0415 - costs memory, only if a model is configured

        with self._lock:
            try:
                found = Path(self._path).stat()
            except OSError as error:
                raise InputError(f"runtime.model {self._path}: {error.strerror}") from error
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
            if self._known is None or self._known[0] != stamp:
                self._known = (stamp, read_model(Path(self._path)))
            return self._known[1]


class Context:
    """What every answer is given, with the request.

    `importers` are certificate names that send traces, never late or gone. An incident is over after `gap_ns` without a
    report.
    """

    def __init__(
        self,
        journal: Journal,
        registry: StreamRegistry,
        lake: Lake,
        builder: BuildStatus,
        incidents: IncidentStore,
        *,
        placement: PlacementSection | None = None,
        runtime: RuntimeSection | None = None,
        importers: tuple[str, ...] = (),
        gap_ns: int = 900 * 10**9,
        slot_s: float = 300.0,
        parts: Parts | None = None,
        clock_unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        section = placement or PlacementSection()
        self.journal = journal
        self.registry = registry
        self.lake = lake
        self.builder = builder
        self.importers = frozenset(importers)
        self.parts = parts or Parts()
        self.clock_unix_ns = clock_unix_ns
        self.started_unix_ns = clock_unix_ns()
        self.turns = Turns(_AT_ONCE)
        self.facts = FactStore(incidents)
        self.history = IncidentHistory(incidents, gap_ns, clock_unix_ns)
        self.open_incidents = SharedAnswer(self.history.count_open, _REST)
        self.silenced = SharedAnswer(lambda: silenced(self.history.silences_in_force(), self.listed.entries), _REST)
        self.coefficients = CoefficientHistory(builder.versions)
        self.older: BuiltVersion | None = None  # the last version asked for that is no longer the current one
        self.times = SegmentTimes(lake)
        self.windows = VmWindows(self.times)
        self.fleet_history = FleetHistory(lake, self.times, round(slot_s * 1e9))
        self.lake_totals = SharedAnswer(LakeTotals(lake).count, _REST)
        self.listed = VmList(())
        self.listed_of: Running | None = None  # made of an answer of `recent`
        self.listing: asyncio.Task[None] | None = None  # makes a newer one
        self.recent = RecentVms(
            lake, self.times, gone_s=section.gone_s, refresh_s=section.refresh_s, clock_unix_ns=clock_unix_ns
        )
        self.on_written: Callable[[], None] = lambda: None  # called when somebody has changed how incidents are handled
        self.refreshing: asyncio.Task[None] | None = None  # which VMs run now
        live = LiveFleet(
            lake,
            section,
            lambda: [stream.host for stream in registry.connected()],
            clock_unix_ns,
            lambda unix_ns: sizes_at(self.facts, unix_ns),
        )
        self.snapshot = SharedAnswer(live.snapshot)
        self.models = ModelFile((runtime or RuntimeSection()).model)
        self.drawing, self.predicting, self.comparing = Worker(16), Worker(64), Worker(4)
        self.asking = Worker(64)  # for history

    async def read_events(
        self, limit: int, before_id: int = MAX_TIME_UNIX_NS, **wanted: Any
    ) -> list[tuple[int, EventRow]]:
        """Return what hosts report of their VMs, the last that came first; see `Journal.read_events`."""
        return await asyncio.to_thread(self.journal.read_events, before_id=before_id, limit=limit, **wanted)
