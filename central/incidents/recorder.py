"""Moves reports of contention from the journal into incident history, and prunes the history.

A report is committed to the journal with its batch, so ingest never waits for the database. It leaves the journal once
the history has it; after a kill between the two it is repeated, and the history knows it already.
"""

import asyncio
import contextlib
import functools
import itertools
import sqlite3
import time
from collections.abc import Callable

from central.config import IncidentsSection
from central.incidents.store import IncidentStore, StoreError
from central.journal.writer import Journal
from central.own_threads import in_own_thread
from central.validation.events import AgentSeen
from whitepanda.common import log

_AT_ONCE = 200  # reports in one transaction
_RETRY_S = 5.0
_PRUNE_INTERVAL_S = 3600.0


class IncidentRecorder:
    """One central's way from journal to history.

    Reports of one incident are no further apart than `gap_ns`: at least two slots, as hosts report once per slot.
    `project_of` returns a VM's project by its host and UUID, "" if it is not known. `on_recorded` is called, on the
    loop, when the history has something new.
    """

    def __init__(
        self,
        section: IncidentsSection,
        journal: Journal,
        store: IncidentStore,
        *,
        slot_s: float,
        project_of: Callable[[str, str], str] = lambda _host, _vm: "",
        clock_unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.gap_ns = round(max(section.quiet_gap_s, 2 * slot_s) * 1e9)
        self._retention_ns = round(section.retention_days * 86_400e9)
        self._journal = journal
        self._store = store
        self._clock = clock_unix_ns
        self._log = log.get("incidents")
        self.on_recorded: Callable[[], None] = lambda: None
        self._project_of = project_of
        self._agents: dict[str, AgentSeen] = {}  # by host, that the history does not know yet
        self.failure = ""  # why the history takes no reports now; "" while it does

    async def run(self) -> None:
        """Record reports indefinitely; while the database is away, try again every few seconds."""
        prune_at_s = 0.0
        while True:
            self._journal.has_triggers.clear()
            try:
                while await self.record_some():
                    pass
                await self.record_agents()
                if time.monotonic() >= prune_at_s:
                    prune_at_s = time.monotonic() + _PRUNE_INTERVAL_S
                    await self.prune()
            except (StoreError, sqlite3.OperationalError) as error:  # the latter: the journal's disk is full
                self._set_failure(str(error))
                await asyncio.sleep(_RETRY_S)
                continue
            self._set_failure("")
            # Not `wait_for`: before Python 3.12 it loses a cancellation that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PRUNE_INTERVAL_S):
                    await self._journal.has_triggers.wait()

    def note_agent(self, seen: AgentSeen) -> None:
        """Remember which agent a host runs; a change becomes part of the history. Call it on the loop of `run`."""
        self._agents[seen.host] = seen
        self._journal.has_triggers.set()

    async def record_agents(self) -> None:
        """Move what is known of agents into the history; raises StoreError if it has to wait."""
        while some := dict(itertools.islice(self._agents.items(), _AT_ONCE)):
            await in_own_thread(self._store.note_agents, list(some.values()))
            for host, seen in some.items():
                if self._agents.get(host) is seen:  # else it came again meanwhile
                    del self._agents[host]

    async def record_some(self) -> int:
        """Move the oldest waiting reports and return how many; raises StoreError if they have to wait."""
        waiting = await in_own_thread(self._journal.read_triggers, _AT_ONCE)
        if waiting:
            rows = [row for _, row in waiting]
            new = await in_own_thread(
                self._store.take,
                rows,
                gap_ns=self.gap_ns,
                oldest_unix_ns=self._oldest_unix_ns(),
                project_of=functools.cache(self._project_of),
            )
            if new:
                self.on_recorded()
            await self._journal.forget_triggers(waiting[-1][0])
        return len(waiting)

    async def prune(self) -> int:
        """Forget incidents past the retention, and what people did by then; return how many; raises StoreError."""
        oldest, gone = self._oldest_unix_ns(), 0
        await in_own_thread(self._store.prune_old, oldest)
        while some := await in_own_thread(self._store.prune, oldest):
            gone += some
        if gone:
            self._log.info("old incidents deleted", incidents=gone)
        return gone

    def _oldest_unix_ns(self) -> int:
        return self._clock() - self._retention_ns

    def _set_failure(self, error: str) -> None:
        if error and not self.failure:
            message = "incident history does not answer; reports wait in the journal"
            self._log.error(message, error=error, database=self._store.name)
        elif self.failure and not error:
            self._log.info("incident history answers again", database=self._store.name)
        self.failure = error
