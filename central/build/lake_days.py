"""The lake's days as a build sees them: those that count, rolled up to slots, and the rows too old to count."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from central.build.engine import StopSwitch
from central.build.methods import MAX_JOBS, METHODS
from central.build.state_cache import StateFolders
from central.build.status import LeftOut
from central.config import BuildSection
from central.lake import duckdb_connection
from central.lake.drafts import OwnedFolder
from central.lake.segments import Lake, Segment
from central.roll_ups.store import SlotManifest, SlotStore
from whitepanda.common import log

if TYPE_CHECKING:
    import duckdb


_log = log.get("builds")


@dataclass(frozen=True, slots=True)
class BuildDay:
    """One day of the lake that counts, its slots when the build began, and the folder of its state."""

    day: date
    digest: str
    slots: SlotManifest
    folder: Path


@dataclass(slots=True)
class LakeDays:
    """Rolls up what is new in the lake, and decides which days a build is made of; `switch` stops it."""

    section: BuildSection
    lake: Lake
    slots: SlotStore
    states: StateFolders
    switch: StopSwitch
    clock_unix_ns: Callable[[], int]
    _rows: dict[date, tuple[str, int]] = field(default_factory=dict)  # by older day: its segments' digest, their rows

    def roll_up(self, check: Callable[[], None], before: LeftOut) -> tuple[list[BuildDay], LeftOut]:
        """Return the days that count, and how many are `build.days` or more older than the newest one.

        `check` is called before each day and within it, and raises if the build is to end; a change of what is too old
        since `before` is logged. LakeError: a segment is damaged. OSError: one cannot be read.
        """
        segments: dict[date, list[Segment]] = {}
        for segment in self.lake.segments():
            segments.setdefault(segment.day, []).append(segment)
        manifests = self.slots.manifests()
        if not (found := {*segments, *manifests}):
            return [], self._left_out({}, before)
        after = max(found) - timedelta(days=self.section.days)
        older = {day: (segments.get(day, []), manifests.get(day)) for day in sorted(found) if day <= after}
        days: list[BuildDay] = []
        most = self.section.max_machine_jobs
        cap = () if most == MAX_JOBS else (f"max_machine_jobs {most}",)  # the default is no part of a state's name
        words = (METHODS[self.section.method].format, f"{round(self.section.slot_s * 1e9)}", *cap)
        with self._rolling() as connection:
            for each in sorted(day for day in found if day > after):
                check()
                manifest = manifests.get(each)
                if each in segments and not self._waits(each, max(found), manifest):
                    manifest = self.slots.roll_up(each, connection, check)
                if manifest is not None:
                    name = digest(*words, *(part.slots for part in manifest.parts))
                    days.append(BuildDay(each, name, manifest, self.states.folder(each, name)))
        return days, self._left_out(older, before)

    def _waits(self, day: date, newest: date, manifest: SlotManifest | None) -> bool:
        """Return whether late windows wait: each time they are taken, all of the day's state is computed again."""
        if manifest is None or day >= newest - timedelta(days=1):
            return False
        age_ns = self.clock_unix_ns() - manifest.created_unix_ns
        return 0 <= age_ns < self.section.late_interval_s * 1e9

    @contextlib.contextmanager
    def _rolling(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield what rolls up: DuckDB, whichever engine computes the rest."""
        root = self.states.root
        root.mkdir(parents=True, exist_ok=True)
        with (
            OwnedFolder(root, ".roll-") as spill,
            duckdb_connection.bounded(
                memory_limit_mib=self.section.memory_limit_mib, threads=self.section.threads, spill_dir=spill
            ) as connection,
            self.switch.interrupting((connection,)),
        ):
            yield connection

    def _left_out(self, older: Mapping[date, tuple[list[Segment], SlotManifest | None]], before: LeftOut) -> LeftOut:
        """Count the rows that no version will have. Footers of segments are read once."""
        known, self._rows = self._rows, {}
        for day, (segments, slots) in older.items():
            names = digest(*(segment.name for segment in segments))
            then, rows = known.get(day, ("", 0))
            if names != then:
                rows = max(sum(segment.rows for segment in segments), slots.samples if slots else 0)
            self._rows[day] = (names, rows)
        found = LeftOut(len(self._rows), sum(rows for _, rows in self._rows.values()))
        if found != before:
            counts = {"days_left_out": found.days, "rows_left_out": found.rows, "build_days": self.section.days}
            _log.info("old days left out: they are build.days or more before the newest day of the lake", **counts)
        return found


def digest(*words: str) -> str:
    """Return the SHA-256 of words."""
    return hashlib.sha256("\n".join(words).encode()).hexdigest()
