"""Builds: the lake's new days into pair state, all days' state into a version of statistics and coefficients.

Segments that are new are rolled up to slots (`central.roll_ups.store`), and state is computed from those. A day's
state is named by the digest of its slots' names (`central.build.state_cache`), so it is computed anew only when the
day has got other slots: a new day costs that day alone. State is a cache; it can be deleted at any time. Where the
lake is no folder it is in a folder of its own.

What is read is held against its digest (`central.lake.checksums`): of a damaged segment or slots no version is made.

Of several replicas the one that holds the lease builds; the others take the versions that they find in the lake.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import hashlib
import itertools
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date, timedelta
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from central.build import day_states, duckdb_connection, engine
from central.build.day_states import CROWDED_FILE, MAX_JOBS
from central.build.left_out import LeftOut, LeftOutDays, OlderDay
from central.build.other_settings import OtherSettings
from central.build.spark import SparkEngine
from central.build.state_cache import StateFolders
from central.build.worker_pool import Interruptible, duckdb_lanes, in_lanes
from central.coefficients.versions import BuiltVersion, Manifest, VersionStore
from central.config import BuildSection, LakeSection
from central.lake.drafts import OwnedFolder
from central.lake.errors import DamagedError
from central.lake.lease import Lease
from central.lake.segments import DAY_NS, Lake, Segment
from central.own_threads import in_own_thread
from central.roll_ups.failing_machines import failing, is_of_memory, is_of_rows
from central.roll_ups.maintenance import LakeCare
from central.roll_ups.store import SlotManifest, SlotStore
from whitepanda.common import log

if TYPE_CHECKING:
    import duckdb

__all__ = ["KEPT_VERSIONS", "BuildStoppedError", "Builder", "LeftOut"]

AnyEngine = engine.Engine | SparkEngine
_T = TypeVar("_T")
_FULL = {errno.ENOSPC, errno.EDQUOT}

_LEFT_OUT_FILE = "machines_left_out.parquet"  # of a state's folder, where there are such

_PARTS_SHORT_OF_MEMORY = 24  # of a day, merged one after the other

#: Older versions are deleted.
KEPT_VERSIONS = 50


class BuildStoppedError(Exception):
    """The build was told to stop."""


@dataclass(frozen=True, slots=True)
class _Day:
    """One day of the lake, its slots when the build began, and where its state is."""

    day: date
    digest: str
    slots: SlotManifest
    folder: Path


class Builder:
    """Builds versions, one build at a time.

    Args:
        section: slot length, look-back, memory.
        lake: whose samples are read; state and versions are kept beside them.
        first_look_s: until there is a version, how often to look whether the lake has anything to build it from.
        clock_unix_ns: for tests.
        holder: this replica in the lease, see `Lease`.
        state_dir: folder for the state; None takes the lake's own folder.
        lake_section: what is done for the lake after builds; None: nothing.
        is_short: whether memory was short for the last build: then less is done at a time from the beginning.

    Attributes:
        current: the version in force; None before the first one.
        on_version: called with each new version, on the loop that runs `run`.
        last_error: one line of why the last build failed; "" when it went well.
        last_build_s: how long the last build took.
        last_days_computed: of how many days the last build computed the state.
        left_out: what the last build found in the lake that is too old to count.
        damaged: what the last build, and what the last care for the lake, found damaged, by "build" and "care".

    """

    def __init__(
        self,
        section: BuildSection,
        lake: Lake,
        *,
        first_look_s: float = 60.0,
        clock_unix_ns: Callable[[], int] = time.time_ns,
        holder: str = "central-0",
        state_dir: Path | None = None,
        lake_section: LakeSection | None = None,
        is_short: bool = False,
    ) -> None:
        self.versions = VersionStore(lake.objects)
        self.lease = Lease(lake.objects, holder, section.lease_s)
        self._holder = holder
        self._others = OtherSettings(section, self.versions, holder, clock_unix_ns)
        self.current: BuiltVersion | None = self.versions.latest()
        self.on_version: list[Callable[[BuiltVersion], None]] = []
        self.last_error = ""
        self.last_build_s = 0.0
        self.last_days_computed = 0
        self.left_out = LeftOut()
        self.damaged: dict[str, list[str]] = {}
        self._left_out_days = LeftOutDays(section.days)
        self._section = section
        self._first_look_s = min(first_look_s, section.interval_s)
        self._lake = lake
        self._clock_unix_ns = clock_unix_ns
        self._slot_ns = round(section.slot_s * 1e9)
        self._states = StateFolders((state_dir or lake.root / "state") / f"slot={section.slot_s:g}")
        self._state = self._states.root
        most = section.max_machine_jobs
        # The default is no part of a state's name: states of older releases stay in use.
        self._cap = () if most == MAX_JOBS else (f"max_machine_jobs {most}",)
        self._slots = SlotStore(lake, self._slot_ns)
        self._care = (
            None
            if lake_section is None
            else LakeCare(
                lake_section, lake, self._slots, clock_unix_ns=clock_unix_ns, build_days=section.days
            )
        )
        self._care_error = ""
        self._is_short = is_short
        self._is_taken = False  # by the last `_build`: the version was another replica's
        self._one_at_a_time = threading.Lock()
        self._setting_current = threading.Lock()
        self._stopping = threading.Event()
        self._running: Sequence[Interruptible] = ()
        self._log = log.get("builds")

    async def run(self) -> None:
        """Build every `interval_s`, beginning now, until cancelled. A failure is logged and tried again.

        While the lake has nothing to build a first version from, that is looked at every `first_look_s`.
        """
        self._stopping.clear()
        while True:
            began = time.monotonic()
            await self._build_in_thread()
            is_waiting = self.current is None and not self.last_error
            interval_s = self._first_look_s if is_waiting else self._section.interval_s
            await asyncio.sleep(max(0.0, interval_s - (time.monotonic() - began)))

    async def _build_in_thread(self) -> None:
        """Build, tell of the version, and only then do what the lake needs, which may take long."""
        failed_before = self.last_error
        await in_own_thread(self._others.look)
        try:
            number = await self._stoppable(self.build_once)
        except Exception:  # noqa: BLE001 - whatever failed, the daemon goes on with the last version
            if self.last_error != failed_before:
                self._log.warning("build failed, the last version stays", error=self.last_error)
            return
        if number is not None and self.current is not None:
            for call in self.on_version:
                call(self.current)
        with contextlib.suppress(BuildStoppedError):
            await self._stoppable(self.care_once)

    async def _stoppable(self, work: Callable[[], _T]) -> _T:
        """Run it in a thread; a cancellation stops it and waits for that."""
        running = asyncio.ensure_future(in_own_thread(work))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.gather(running, return_exceptions=True)
            raise

    async def catch_up(self) -> None:
        """Take a newer version of another replica now, where there is one, and tell `on_version` of it.

        Raises:
            OSError, LakeError: the lake cannot be read.

        """
        if await in_own_thread(self._take_newer) and self.current is not None:
            self._log.info("version of another replica taken", version=self.current.version)
            for call in self.on_version:
                call(self.current)

    @property
    def damaged_files(self) -> int:
        """How many of the lake's objects were found damaged when they were last read."""
        return len(set[str]().union(self.versions.damaged, *self.damaged.values()))

    def stop(self) -> None:
        """Have a build that runs now end soon, with `BuildStoppedError`. May be called from any thread."""
        self._stopping.set()
        for running in self._running:
            running.interrupt()

    def build_once(self) -> int | None:
        """Build a version if the lake has other segments than the current one. Blocks; call it in a thread.

        Returns:
            The new version's number, or None where there is nothing new.

        Raises:
            Exception: what went wrong; `last_error` has it in a line, and the current version stays in force.

        """
        with self._one_at_a_time:
            began = time.monotonic()
            try:
                with self._damage_counted("build"):
                    number = self._build()
            except Exception as error:
                if self._stopping.is_set():
                    raise BuildStoppedError from error
                self.last_error = _line_of(error) + self._room_left(error)
                raise
            self.last_error = ""
            if number is not None and self._is_taken:
                self._log.info("version of another replica taken", version=number)
            elif number is not None:
                self.last_build_s = time.monotonic() - began
                self._log.info(
                    "version built",
                    version=number,
                    seconds=round(self.last_build_s, 3),
                    days_computed=self.last_days_computed,
                )
            return number

    def _build(self) -> int | None:
        self._is_taken = self._take_newer()
        if self._is_taken:
            return self.current.version if self.current else None
        if not self.lease.acquire():
            return None  # another replica builds; its version is found next time
        try:
            return self._build_alone()
        finally:
            self._end_turn()

    def _end_turn(self) -> None:
        self._lake.objects.drop_copies()
        with contextlib.suppress(OSError):  # else it runs out
            self.lease.release()

    def care_once(self) -> None:
        """Do what the lake needs once a day. Blocks; call it in a thread, after a build. A failure is logged only.

        Raises:
            BuildStoppedError: it was told to stop.

        """
        care = self._care
        if care is None:
            return

        def check() -> None:
            self._check_stopping()
            self.lease.check()

        with self._one_at_a_time:
            try:
                is_due = care.is_due()
                if not (is_due or care.is_crowded()) or not self.lease.acquire():
                    return
                try:
                    with self._damage_counted("care"):
                        done = care.run(check) if is_due else care.compact(check)
                finally:
                    self._end_turn()
            except BuildStoppedError:
                raise
            except Exception as error:  # noqa: BLE001 - as a build's failure; it is tried again after the next one
                self._tell_care_failed(error)
            else:
                self._care_error = ""
                say = self._log.info if is_due else self._log.debug
                say("the lake was taken care of", **dataclasses.asdict(done))

    @contextlib.contextmanager
    def _damage_counted(self, what: str) -> Iterator[None]:
        self._states.damaged.clear()
        stopped_at = set[str]()
        try:
            yield
        except DamagedError as error:
            stopped_at.add(error.name)
            raise
        finally:
            self.damaged[what] = sorted(stopped_at | self._states.damaged)

    def _tell_care_failed(self, error: Exception) -> None:
        line = _line_of(error)
        if line != self._care_error:
            self._log.warning("the lake was not compacted, nor old days deleted", error=line)
        self._care_error = line

    def _take_newer(self) -> bool:
        """Take the version that another replica has published since, if there is one."""
        newest = max(self.versions.numbers(), default=0)
        if newest <= (self.current.version if self.current else 0):
            return False
        found = self.versions.latest()
        return found is not None and self._put_in_force(found)

    def _put_in_force(self, found: BuiltVersion) -> bool:
        """Set `current`, unless it is as new already: `catch_up` may have found a version while one was built."""
        with self._setting_current:
            if self.current and found.version <= self.current.version:
                return False
            self.current = found
            return True

    def _build_alone(self) -> int | None:
        self._slots.known_left_out = set(self.current.manifest.machines_left_out if self.current else ())
        days, older = self._days()
        self.left_out = self._left_out_days.count(older, self.left_out)
        digest = _digest(f"{self._slot_ns}", *(f"{day.day} {day.digest}" for day in days))
        if not days or (self.current and self.current.manifest.segments_digest == digest):
            return None
        self._state.mkdir(parents=True, exist_ok=True)
        stale = [day for day in days if not self._states.is_there(day.folder)]
        folders = [day.folder for day in days]
        found = self._computed(stale, folders)
        self.last_days_computed = len(stale)
        statistics, coefficients = found
        machines, jobs = self._left_out_by_machine(days)
        manifest = Manifest(
            version=0,
            created_unix_ns=self._clock_unix_ns(),
            slot_s=self._section.slot_s,
            days=tuple(day.day.isoformat() for day in days),
            segments=sum(day.slots.segments for day in days),
            segments_digest=digest,
            rows=sum(day.slots.samples for day in days),
            days_left_out=self.left_out.days,
            rows_left_out=self.left_out.rows,
            machines_left_out=machines,
            jobs_left_out=jobs,
            job_statistics=0,
            coefficients=0,
            code_version=metadata.version("whitepanda"),
            method=self._section.method,
            build_days=self._section.days,
            builder=self._holder,
            engine=self._section.engine,
            token=self.lease.token,
        )
        built = self.versions.write(manifest, statistics, coefficients, self.lease.check)
        self._put_in_force(built)
        self._states.forget({day.folder for day in days})
        self.versions.prune(KEPT_VERSIONS)
        return built.version

    def _computed(self, stale: list[_Day], folders: list[Path]) -> tuple[pa.Table, pa.Table]:
        """Compute the states of days and solve all; where memory is short, again with less at a time."""
        if not self._is_short:
            try:
                return self._computed_by(self._section.threads, stale, folders)
            except Exception as error:
                if not is_of_memory(error) or self._stopping.is_set():
                    raise
                self._log.info("memory is short for a build; less is done at a time", error=_line_of(error))
        left = [day for day in stale if not self._states.is_there(day.folder)]
        return self._computed_by(1, left, folders, is_short=True)

    def _computed_by(
        self, threads: int, stale: list[_Day], folders: list[Path], *, is_short: bool = False
    ) -> tuple[pa.Table, pa.Table]:
        with self._running_engines(len(stale), threads) as (running, scratch):
            in_lanes(running, stale, lambda lane, day: self._compute(lane, day, scratch, is_short=is_short))
            if len(running) == 1:
                return self._solved(running[0], folders)
        with self._running_engines(1, threads) as ((one,), _):  # with all of the memory
            return self._solved(one, folders)

    def _days(self) -> tuple[list[_Day], list[OlderDay]]:
        """The lake's days that count, rolled up; and those that are `days` days or more older than the newest one."""
        segments: dict[date, list[Segment]] = {}
        for segment in self._lake.segments():
            segments.setdefault(segment.day, []).append(segment)
        manifests = self._slots.manifests()
        if not (found := {*segments, *manifests}):
            return [], []
        after = max(found) - timedelta(days=self._section.days)
        older = [
            OlderDay(day, segments.get(day, []), manifests.get(day)) for day in sorted(found) if day <= after
        ]
        days: list[_Day] = []
        with self._rolling() as connection:
            for each in sorted(day for day in found if day > after):
                self._check_stopping()
                self.lease.check()
                manifest = manifests.get(each)
                if each in segments and not self._waits(each, max(found), manifest):
                    manifest = self._slots.roll_up(each, connection)
                if manifest is not None:
                    digest = _digest(
                        *day_states.FORMATS[self._section.method],
                        f"{self._slot_ns}",
                        *self._cap,
                        *manifest.digest_words,
                    )
                    days.append(_Day(each, digest, manifest, self._states.folder(each, digest)))
        return days, older

    def _waits(self, day: date, newest: date, manifest: SlotManifest | None) -> bool:
        """Whether late windows of a day wait: each time they are taken, all of the day's state is computed again."""
        if manifest is None or day >= newest - timedelta(days=1):
            return False
        age_ns = self._clock_unix_ns() - manifest.created_unix_ns
        return 0 <= age_ns < self._section.late_interval_s * 1e9

    @contextlib.contextmanager
    def _rolling(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """What rolls up: DuckDB, whichever engine computes the rest."""
        self._state.mkdir(parents=True, exist_ok=True)
        with (
            OwnedFolder(self._state, ".roll-") as spill,
            duckdb_connection.connect(
                memory_limit=f"{self._section.memory_limit_mib}MiB",
                threads=self._section.threads,
                temp_directory=str(spill),
                preserve_insertion_order=False,
            ) as connection,
        ):
            self._running = (connection,)
            try:
                yield connection
            finally:
                self._running = ()

    def _compute(self, running: AnyEngine, day: _Day, scratch: Path, *, is_short: bool) -> None:
        """Compute the state of one day; it is there as a whole or not at all.

        Where memory is short even for this, with `is_short`, machines are left out.
        """
        folder = scratch / day.digest
        attempts = itertools.count()
        parts = _PARTS_SHORT_OF_MEMORY if is_short else 1

        def write(without: Sequence[str] = ()) -> None:
            self._check_stopping()
            self.lease.check()
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            slots = scratch / f"slots-{day.day}-{next(attempts)}"  # a new name: DuckDB remembers what it read
            slots.mkdir()
            try:
                if isinstance(running, engine.Engine):
                    files = self._write_slots(running, day, slots, parts, without)
                else:
                    with self._duckdb(scratch, 1, 1) as (reader,):
                        files = self._write_slots(reader, day, slots, parts, without)
                day_states.write(
                    self._section.method,
                    running,
                    running.read(files),
                    self._slot_ns,
                    folder,
                    self._section.max_machine_jobs,
                )
            finally:
                shutil.rmtree(slots)

        try:
            write()
        except Exception as error:
            if not is_of_rows(error) or self._stopping.is_set() or (is_of_memory(error) and not is_short):
                raise
            left_out = failing(self._slots.machines(day.slots), error, write)
            write(left_out)
            pq.write_table(pa.table({"machine": pa.array(left_out, pa.string())}), folder / _LEFT_OUT_FILE)
            if new := sorted(set(left_out) - self._slots.known_left_out):
                self._slots.known_left_out.update(new)
                self._log.warning(
                    "rows of machines make a build fail and are left out",
                    day=day.day.isoformat(),
                    machines=new,
                    error=_line_of(error),
                )
        self._states.put(folder, day.folder)

    def _write_slots(
        self, running: engine.Engine, day: _Day, folder: Path, parts: int, without: Sequence[str]
    ) -> list[Path]:
        """Write the slots of a day, one of so many parts after the other. Returns the files."""
        rows = self._slots.read(running.connection, [day.slots])
        if without:
            rows = rows.filter(rows.machine.notin(without))
        files = [folder / f"{part}.parquet" for part in range(parts)]
        first_ns = (day.day - date(1970, 1, 1)).days * DAY_NS
        for part, file in enumerate(files):
            begin, end = (first_ns + DAY_NS * number // parts for number in (part, part + 1))
            mine = rows.filter(rows.slot_start_ns >= begin, rows.slot_start_ns < end) if parts > 1 else rows
            engine.write_parquet(mine, file)
        return files

    def _left_out_by_machine(self, days: Sequence[_Day]) -> tuple[tuple[str, ...], dict[str, int]]:
        """Return the machines of which some day's rows are left out, and by machine the most jobs left out of a day."""
        machines, jobs = set[str](), dict[str, int]()
        for day in days:
            machines.update(day.slots.machines_left_out)
            if (path := day.folder / _LEFT_OUT_FILE).exists():
                machines.update(pq.read_table(path)["machine"].to_pylist())
            if (path := day.folder / CROWDED_FILE).exists():
                for row in pq.read_table(path).to_pylist():
                    jobs[row["machine"]] = max(row["jobs"], jobs.get(row["machine"], 0))
        before = self.current.manifest.jobs_left_out if self.current else {}
        if new := sorted(jobs.keys() - before.keys()):
            self._log.warning(
                "machines have more jobs a day than build.max_machine_jobs; the most common ones count",
                machines=new[:20],
                max_machine_jobs=self._section.max_machine_jobs,
            )
        return tuple(sorted(machines)), jobs

    def _solved(self, running: AnyEngine, folders: list[Path]) -> tuple[pa.Table, pa.Table]:
        self._check_stopping()
        return day_states.solved(self._section.method, running, folders)

    @contextlib.contextmanager
    def _running_engines(self, days: int, threads: int) -> Iterator[tuple[Sequence[AnyEngine], Path]]:
        """Engines for so many days, and a folder for what is half done, on the lake's disk and gone afterwards."""
        with OwnedFolder(self._state, ".build-") as scratch, ExitStack() as stack:
            running: Sequence[AnyEngine]
            if self._section.engine == "duckdb":
                running = stack.enter_context(self._duckdb(scratch, days, threads))
            else:  # which spreads a day over its workers
                running = [stack.enter_context(self._spark(scratch))]
            self._running = running
            try:
                yield running, scratch
            finally:
                self._running = ()

    def _duckdb(
        self, scratch: Path, days: int, threads: int
    ) -> contextlib.AbstractContextManager[list[engine.Engine]]:
        return duckdb_lanes(
            days,
            memory_limit_mib=self._section.memory_limit_mib,
            threads=threads,
            spill_dir=scratch / "spill",
        )

    def _spark(self, scratch: Path) -> SparkEngine:
        return SparkEngine(
            master=self._section.spark_master,
            memory_limit_mib=self._section.memory_limit_mib,
            partitions=4 * self._section.threads,
            spill_dir=scratch / "spill",
        )

    def _room_left(self, error: Exception) -> str:
        """Where a disk is full and the error does not say which: what is free, by folder."""
        if not isinstance(error, OSError) or error.errno not in _FULL or error.filename:
            return ""
        folders = [
            ("the state", self._state),
            *([("the lake", self._lake.root)] if self._lake.is_folder else []),
        ]
        with contextlib.suppress(OSError):  # there is none to write into
            folders.append(("TMPDIR", Path(tempfile.gettempdir())))
        told = []
        for what, folder in folders:
            with contextlib.suppress(OSError):  # it is not there
                told.append(f"{shutil.disk_usage(folder).free >> 20} MiB for {what} ({folder})")
        return f"; free now: {', '.join(told)}"

    def _check_stopping(self) -> None:
        if self._stopping.is_set():
            raise BuildStoppedError


def _line_of(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _digest(*words: str) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()
