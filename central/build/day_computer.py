"""Computes the states of days that have none, and the tables of a version from all of them."""

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from central.build import methods
from central.build.engine import AnyEngine, Engine, StopSwitch, duckdb_engines, on_engines
from central.build.lake_days import BuildDay
from central.build.spark import SparkEngine
from central.build.state_cache import StateFolders
from central.build.status import line_of
from central.config import BuildSection
from central.lake.drafts import OwnedFolder
from central.lake.segments import DAY_NS
from central.roll_ups.failing_machines import failing, is_of_memory, is_of_rows
from central.roll_ups.store import SlotStore
from whitepanda.common import log

_LEFT_OUT_FILE = "machines_left_out.parquet"  # of a state's folder, if any

_log = log.get("builds")
_PARTS_SHORT_OF_MEMORY = 24  # of a day, merged one after the other


@dataclass(frozen=True, slots=True)
class DayComputer:
    """Computes one day per engine at a time; `switch` stops it.

    `is_short`: memory was short for the last build, so less is done at a time from the beginning.
    """

    section: BuildSection
    slots: SlotStore
    states: StateFolders
    switch: StopSwitch
    is_short: bool

    def compute(
        self, stale: list[BuildDay], folders: list[Path], check: Callable[[], None]
    ) -> tuple[pa.Table, pa.Table]:
        """Compute the states of `stale` days and solve those of all `folders`; with less at a time if memory is short.

        `check` is called before each step and raises if the build is to end. Returns what `methods.solved` does.
        """
        if not self.is_short:
            try:
                return self._compute_on(self.section.threads, stale, folders, check)
            except Exception as error:
                if not is_of_memory(error) or self.switch.is_on:
                    raise
                _log.info("not enough memory for the build; retrying with less at a time", error=line_of(error))
        left = [day for day in stale if not self.states.is_there(day.folder)]
        return self._compute_on(1, left, folders, check, is_short=True)

    def _compute_on(
        self,
        threads: int,
        stale: list[BuildDay],
        folders: list[Path],
        check: Callable[[], None],
        *,
        is_short: bool = False,
    ) -> tuple[pa.Table, pa.Table]:
        with self._running_engines(len(stale), threads) as (running, scratch):
            on_engines(running, stale, lambda one, day: self.compute_day(one, day, scratch, check, is_short=is_short))
            if len(running) == 1:
                return self._solved(running[0], folders)
        with self._running_engines(1, threads) as ((one,), _):  # with all of the memory
            return self._solved(one, folders)

    def compute_day(
        self, running: AnyEngine, day: BuildDay, scratch: Path, check: Callable[[], None], *, is_short: bool
    ) -> None:
        """Compute the state of one day, whole or not at all; with `is_short`, machines may be left out for memory."""
        folder = scratch / day.digest
        attempts = itertools.count()
        parts = _PARTS_SHORT_OF_MEMORY if is_short else 1

        def write(without: Sequence[str] = ()) -> None:
            check()
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            slots = scratch / f"slots-{day.day}-{next(attempts)}"  # a new name: DuckDB remembers what it read
            slots.mkdir()
            try:
                if isinstance(running, Engine):
                    files = self._write_slots(running, day, slots, parts, without)
                else:
                    with self._duckdb(scratch, 1, 1) as (reader,):
                        files = self._write_slots(reader, day, slots, parts, without)
                rows, most_jobs = running.read(files), self.section.max_machine_jobs
                methods.write(self.section.method, running, rows, round(self.section.slot_s * 1e9), folder, most_jobs)
            finally:
                shutil.rmtree(slots)

        try:
            write()
        except Exception as error:
            if not is_of_rows(error) or self.switch.is_on or (is_of_memory(error) and not is_short):
                raise
            left_out = failing(self.slots.machines(day.slots), error, write)
            write(left_out)
            pq.write_table(pa.table({"machine": pa.array(left_out, pa.string())}), folder / _LEFT_OUT_FILE)
            if new := sorted(set(left_out) - self.slots.known_left_out):
                self.slots.known_left_out.update(new)
                facts = {"day": day.day.isoformat(), "machines": new, "error": line_of(error)}
                _log.warning("rows of some machines left out: the build fails with them", **facts)
        self.states.put(folder, day.folder)

    def _write_slots(
        self, running: Engine, day: BuildDay, folder: Path, parts: int, without: Sequence[str]
    ) -> list[Path]:
        """Write the slots of a day in `parts` files, which are returned."""
        rows = self.slots.read(running.connection, [day.slots])
        if without:
            rows = rows.filter(rows.machine.notin(without))
        files = [folder / f"{part}.parquet" for part in range(parts)]
        first_ns = (day.day - date(1970, 1, 1)).days * DAY_NS
        for part, file in enumerate(files):
            begin, end = (first_ns + DAY_NS * number // parts for number in (part, part + 1))
            mine = rows.filter(rows.slot_start_ns >= begin, rows.slot_start_ns < end) if parts > 1 else rows
            running.write(mine, file)
        return files

    def _solved(self, running: AnyEngine, folders: list[Path]) -> tuple[pa.Table, pa.Table]:
        self.switch.check()
        return methods.solved(self.section.method, running, folders)

    @contextlib.contextmanager
    def _running_engines(self, days: int, threads: int) -> Iterator[tuple[Sequence[AnyEngine], Path]]:
        """Yield engines for this many days, and a temporary folder on the lake's disk for unfinished work."""
        with OwnedFolder(self.states.root, ".build-") as scratch, contextlib.ExitStack() as stack:
            running: Sequence[AnyEngine]
            if self.section.engine == "duckdb":
                running = stack.enter_context(self._duckdb(scratch, days, threads))
            else:  # Spark spreads a day over its workers
                spark = SparkEngine(
                    master=self.section.spark_master,
                    memory_limit_mib=self.section.memory_limit_mib,
                    partitions=4 * self.section.threads,
                    spill_dir=scratch / "spill",
                )
                running = [stack.enter_context(spark)]
            with self.switch.interrupting(running):
                yield running, scratch

    def _duckdb(self, scratch: Path, days: int, threads: int) -> contextlib.AbstractContextManager[list[Engine]]:
        return duckdb_engines(
            days, memory_limit_mib=self.section.memory_limit_mib, threads=threads, spill_dir=scratch / "spill"
        )


def left_out_by_machine(days: Sequence[BuildDay]) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the machines of which some day's rows are left out, and by machine the most jobs left out of a day."""
    machines, jobs = set[str](), dict[str, int]()
    for day in days:
        machines.update(day.slots.machines_left_out)
        if (path := day.folder / _LEFT_OUT_FILE).exists():
            machines.update(pq.read_table(path)["machine"].to_pylist())
        if (path := day.folder / methods.CROWDED_FILE).exists():
            for row in pq.read_table(path).to_pylist():
                jobs[row["machine"]] = max(row["jobs"], jobs.get(row["machine"], 0))
    return tuple(sorted(machines)), jobs
