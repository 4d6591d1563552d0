"""The roll loop: what the journal holds becomes segments of the lake, every minute or when there is much of it."""

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from importlib import metadata

from central.config import IngestSection
from central.journal.flush_worker import WHOLE_PACK, RollFaultError, RollWorker, Unfit, write_roll
from central.journal.tables import Roll
from central.journal.writer import Journal
from central.lake.segments import Lake
from central.own_threads import in_own_thread
from whitepanda.common import log

_POLL_S = 0.25  # how often the loop checks how much there is
_TRIES = 3  # of a single batch, before it is set aside


class Roller:
    """Rolls one journal into the lake; its segments are written by `worker`, which its owner closes, or by a thread.

    `on_rolled` is called on the loop after each roll. `failure` is why the last roll failed; "" while all is well.
    """

    def __init__(self, config: IngestSection, journal: Journal, lake: Lake, worker: RollWorker | None = None) -> None:
        self.on_rolled: list[Callable[[], None]] = []
        self.failure = ""
        self._config = config
        self._journal = journal
        self._lake = lake
        self._worker = worker
        self._is_careful = False  # since a roll failed because of its rows, until all is rolled
        self._suspects: set[int] = set()  # packs at which the process died
        self._faults = Counter[tuple[int, int]]()  # of batches tried alone, by pack and place in it
        self._log = log.get("rolls")

    async def run(self) -> None:
        """Roll indefinitely: first what an earlier process left unfinished, then by interval or number of rows."""
        self._lake.remove_unfinished(self._journal.origin)
        due = time.monotonic()
        while True:
            if time.monotonic() >= due or self._journal.stats.journal_rows >= self._config.roll_rows:
                due = time.monotonic() + self._config.roll_interval_s
                if not await self._try():
                    pause_s = 1.0 if self._is_careful else 10.0
                    due = time.monotonic() + min(self._config.roll_interval_s, pause_s)
                    await asyncio.sleep(min(self._config.roll_interval_s, 1.0))
            await asyncio.sleep(min(_POLL_S, self._config.roll_interval_s))

    async def roll_all(self) -> int:
        """Roll until the journal held nothing. Returns the number of rows.

        Raises:
            OSError: the lake cannot be written. The rows stay in the journal; the next roll is the same one again.
            sqlite3.OperationalError: the journal cannot be read or written; otherwise as above.
            RollFaultError: as above, but the next roll is careful; a batch that fails alone three times is set aside.
        """
        total = 0
        while (roll := await self._journal.begin_roll(self._config.roll_rows)) is not None:
            if self._worker is not None:
                self._worker.start()
            try:
                rows = await in_own_thread(self._write, roll)
            except RollFaultError as fault:
                self._is_careful = True
                await self._set_aside(fault.unfit)
                raise
            await self._journal.finish_roll(roll, rows)
            total += rows
            for call in self.on_rolled:
                call()
        self._is_careful = False
        self._suspects.clear()
        self._faults.clear()
        return total

    async def _set_aside(self, unfit: list[Unfit]) -> None:
        self._suspects.update(one.pack for one in unfit)
        unfit = [one for one in unfit if one.place != WHOLE_PACK]
        self._faults.update((one.pack, one.place) for one in unfit)
        # The last first: each moves the later ones of its pack.
        gone = [one for one in sorted(unfit, reverse=True) if self._faults[one.pack, one.place] >= _TRIES]
        for one in gone:
            batch, rows = await self._journal.set_aside(one.pack, one.place, one.what)
            event = "a batch that cannot be written into the lake is set aside in the journal"
            self._log.error(event, host=batch.host, rows=rows, bytes=len(batch.payload), error=one.what)
        if gone:
            self._faults.clear()

    async def _try(self) -> bool:
        try:
            await self.roll_all()
        except (OSError, sqlite3.OperationalError) as error:
            if not self.failure:
                event = "cannot roll into the lake; rows wait in the journal"
                self._log.error(event, lake=self._lake.name, error=str(error))
            self.failure = str(error)
            return False
        if self.failure:
            self._log.info("rolls work again")
            self.failure = ""
        return True

    def _write(self, roll: Roll) -> int:
        provenance = {
            "replica": self._journal.replica,
            "journal": self._journal.journal_id,
            "rows": f"{roll.first}-{roll.last}",
            "central": metadata.version("whitepanda"),
        }
        path = self._journal.path
        if self._worker is not None:
            return self._worker.write(path, roll, provenance, self._suspects if self._is_careful else None)
        return write_roll(self._lake, path, roll, provenance)
