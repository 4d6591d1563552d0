"""Moves facts from the journal into their database, and prunes it, as `central.incidents.recorder` does."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable

from central.config import IncidentsSection
from central.facts.store import FactStore
from central.incidents.store import StoreError
from central.journal.writer import Journal
from central.own_threads import in_own_thread
from whitepanda.common import log

_AT_ONCE = 500
_RETRY_S = 5.0
_PRUNE_INTERVAL_S = 3600.0
_LOG = log.get("facts")


class FactRecorder:
    """One central's way from journal to database."""

    def __init__(
        self,
        section: IncidentsSection,
        journal: Journal,
        store: FactStore,
        clock_unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._retention_ns = round(section.retention_days * 86_400e9)
        self._journal = journal
        self._store = store
        self._clock = clock_unix_ns
        self._failure = ""

    async def run(self) -> None:
        """Record facts indefinitely; while the database is away, try again every few seconds."""
        prune_at_s = 0.0
        while True:
            self._journal.has_facts.clear()
            try:
                while await self.record_some():
                    pass
                if time.monotonic() >= prune_at_s:
                    prune_at_s = time.monotonic() + _PRUNE_INTERVAL_S
                    while await in_own_thread(self._store.prune, self._clock() - self._retention_ns):
                        pass
            except (StoreError, sqlite3.OperationalError) as error:
                if not self._failure:
                    _LOG.error("the database does not answer; facts wait in the journal", error=str(error))
                self._failure = str(error)
                await asyncio.sleep(_RETRY_S)
                continue
            self._failure = ""
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PRUNE_INTERVAL_S):
                    await self._journal.has_facts.wait()

    async def record_some(self) -> int:
        """Move the oldest waiting facts and return how many; raises StoreError if they have to wait."""
        waiting = await in_own_thread(self._journal.read_facts, _AT_ONCE)
        if waiting:
            await in_own_thread(self._store.take, [row for _, row in waiting])
            await self._journal.forget_facts(waiting[-1][0])
        return len(waiting)
