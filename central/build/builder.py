"""Builds: the lake's new days into pair state, all days' state into a version of statistics and coefficients.

Segments that are new are rolled up to slots (`central.roll_ups.store`), and state is computed from those. A day's
state is named by the digest of its slots' names (`central.build.state_cache`), so a new day costs that day alone.
State is a cache and can be deleted at any time. If the lake is not a folder, the state has a separate folder.

What is read is compared with its digest (`central.lake.checksums`): damaged segments or slots give no version.
Of several replicas the one that holds the lease builds; the others take the versions that they find in the lake.
"""

import contextlib
import dataclasses
import errno
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from central.build.day_computer import DayComputer, left_out_by_machine
from central.build.engine import StopSwitch
from central.build.lake_days import LakeDays, digest
from central.build.state_cache import StateFolders
from central.build.status import BuildStatus, BuildStoppedError, line_of
from central.coefficients.follower import VersionFollower
from central.coefficients.versions import Manifest, VersionStore
from central.config import BuildSection, LakeSection
from central.lake.errors import DamagedError
from central.lake.lease import Lease
from central.lake.segments import Lake
from central.roll_ups.maintenance import LakeMaintenance
from central.roll_ups.store import SlotStore
from whitepanda.common import log

_FULL = {errno.ENOSPC, errno.EDQUOT}

_KEPT_VERSIONS = 50  # older ones are deleted


class Builder(BuildStatus):
    """Builds versions of the lake's samples, one at a time; `last_days_computed` counts the days computed by the last.

    `holder`: this replica in the lease, see `Lease`. `state_dir`: folder for the state; None: the lake's own folder.
    `lake_section`: maintenance of the lake after builds; None: nothing. `is_short`: memory was short for the last
    build, so less is done at a time from the beginning.
    """

    def __init__(
        self,
        section: BuildSection,
        lake: Lake,
        *,
        clock_unix_ns: Callable[[], int] = time.time_ns,
        holder: str = "central-0",
        state_dir: Path | None = None,
        lake_section: LakeSection | None = None,
        is_short: bool = False,
    ) -> None:
        super().__init__(VersionFollower(VersionStore(lake.objects)))
        self.lease = Lease(lake.objects, holder, section.lease_s)
        self.last_days_computed = 0
        self._holder = holder
        self._section = section
        self._lake = lake
        self._clock_unix_ns = clock_unix_ns
        self._switch = StopSwitch()
        self._states = StateFolders((state_dir or lake.root / "state") / f"slot={section.slot_s:g}")
        self._slots = SlotStore(lake, round(section.slot_s * 1e9))
        self._days = LakeDays(section, lake, self._slots, self._states, self._switch, clock_unix_ns)
        self._computer = DayComputer(section, self._slots, self._states, self._switch, is_short=is_short)
        self._maintenance: LakeMaintenance | None = None
        if lake_section is not None:
            self._maintenance = LakeMaintenance(lake_section, lake, self._slots, clock_unix_ns, section.days)
        self._maintenance_error = ""
        self._is_taken = False  # by the last `_build`: the version was another replica's
        self._one_at_a_time = threading.Lock()
        self._log = log.get("builds")

    def stop(self) -> None:
        """Have a running build end soon, with `BuildStoppedError`. May be called from any thread."""
        self._switch.stop()

    def build_once(self) -> int | None:
        """Build a version if the lake has other segments than the current one. Blocks; call it in a thread.

        Returns the new version's number; None: nothing is new. An exception leaves the current version in use, and its
        line in `last_error`.
        """
        with self._one_at_a_time:
            began = time.monotonic()
            try:
                with self._damage_counted("build"):
                    number = self._build()
            except Exception as error:
                if self._switch.is_on:
                    raise BuildStoppedError from error
                self.last_error = line_of(error) + self._room_left(error)
                raise
            self.last_error = ""
            if number is not None and self._is_taken:
                self._log.info("version loaded from another replica", version=number)
            elif number is not None:
                seconds = round(time.monotonic() - began, 3)
                self._log.info("version built", version=number, seconds=seconds, days_computed=self.last_days_computed)
            return number

    def _build(self) -> int | None:
        self._is_taken = self.follower.take_newer()
        if self._is_taken:
            return self.current.version if self.current else None
        with self._leased() as is_held:
            return self._build_alone() if is_held else None  # another replica builds; its version is found next time

    @contextlib.contextmanager
    def _leased(self) -> Iterator[bool]:
        """Yield whether the lease was acquired, and release it at the end."""
        if not self.lease.acquire():
            yield False
            return
        try:
            yield True
        finally:
            self._lake.objects.drop_copies()
            with contextlib.suppress(OSError):  # then it runs out
                self.lease.release()

    def roll_up_once(self) -> None:
        """Roll up new windows to slots, without a build. Blocks. A failure is left to the next build."""
        with self._one_at_a_time:
            try:
                with self._leased() as is_held:
                    if is_held:
                        self._days.roll_up(self._check, self.left_out)
            except Exception as error:
                if self._switch.is_on:
                    raise BuildStoppedError from error
                self._log.debug("new windows were not rolled up to slots", error=line_of(error))

    def maintain_once(self) -> None:
        """Maintain the lake if due. Blocks; call it in a thread. A failure is logged, BuildStoppedError raised."""
        maintenance = self._maintenance
        if maintenance is None:
            return
        with self._one_at_a_time:
            try:
                is_due = maintenance.is_due()
                if not (is_due or maintenance.is_crowded()):
                    return
                with self._leased() as is_held:
                    if not is_held:
                        return
                    with self._damage_counted("maintenance"):
                        done = maintenance.run(self._check) if is_due else maintenance.compact(self._check)
            except BuildStoppedError:
                raise
            except Exception as error:  # noqa: BLE001 - as a build's failure; it is tried again after the next one
                line = line_of(error)
                if line != self._maintenance_error:
                    self._log.warning("lake maintenance failed: nothing compacted, no old days deleted", error=line)
                self._maintenance_error = line
            else:
                self._maintenance_error = ""
                write = self._log.info if is_due else self._log.debug
                write("lake maintained", **dataclasses.asdict(done))

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

    def _build_alone(self) -> int | None:
        self._slots.known_left_out = set(self.current.manifest.machines_left_out if self.current else ())
        days, self.left_out = self._days.roll_up(self._check, self.left_out)
        found = digest(f"{round(self._section.slot_s * 1e9)}", *(f"{day.day} {day.digest}" for day in days))
        if not days or (self.current and self.current.manifest.segments_digest == found):
            return None
        self._states.root.mkdir(parents=True, exist_ok=True)
        stale = [day for day in days if not self._states.is_there(day.folder)]
        statistics, coefficients = self._computer.compute(stale, [day.folder for day in days], self._check)
        self.last_days_computed = len(stale)
        machines, jobs = left_out_by_machine(days)
        known = self.current.manifest.jobs_left_out if self.current else {}
        if crowded := sorted(jobs.keys() - known.keys()):
            self._log.warning(
                "some machines have more jobs a day than build.max_machine_jobs; only their most common jobs are used",
                machines=crowded[:20],
                max_machine_jobs=self._section.max_machine_jobs,
            )
        manifest = Manifest(
            version=0,
            created_unix_ns=self._clock_unix_ns(),
            slot_s=self._section.slot_s,
            days=tuple(day.day.isoformat() for day in days),
            segments=sum(day.slots.segments for day in days),
            segments_digest=found,
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
        self.follower.put_in_force(built)
        self._states.forget({day.folder for day in days})
        self.versions.prune(_KEPT_VERSIONS)
        return built.version

    def _room_left(self, error: Exception) -> str:
        """Return the free space by folder if a disk is full and the error does not say which."""
        if not isinstance(error, OSError) or error.errno not in _FULL or error.filename:
            return ""
        folders = [("the state", self._states.root), *([("the lake", self._lake.root)] if self._lake.is_folder else [])]
        with contextlib.suppress(OSError):  # there is no writable one
            folders.append(("TMPDIR", Path(tempfile.gettempdir())))
        free = []
        for what, folder in folders:
            with contextlib.suppress(OSError):  # it does not exist
                free.append(f"{shutil.disk_usage(folder).free >> 20} MiB for {what} ({folder})")
        return f"; free now: {', '.join(free)}"

    def _check(self) -> None:
        self._switch.check()
        self.lease.check()
