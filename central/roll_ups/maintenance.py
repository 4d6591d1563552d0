"""Maintenance of the lake: a finished day's small segments become few, and what is too old is deleted.

    <lake>/maintenance/2026-11-21.json

The replica that holds the lease does it once a day, by its own clock in UTC, after a build. The file is made at the
end, so no replica begins again before the next day, and a failed run is retried after the next build. A day of samples
is finished when the lake has a later one. Late windows of such a day are merged on the next day, or when they make very
many segments.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date

import msgspec

from central.config import LakeSection
from central.lake.errors import DamagedError
from central.lake.segments import Lake, day_of
from central.roll_ups import compaction, retention
from central.roll_ups.compaction import GRACE_S, MIN_SOURCES, remove_superseded
from central.roll_ups.store import SlotManifest, SlotStore

_FOLDER = "maintenance"
_KEPT_MARKS = 7
_CROWD = 1000  # small segments of finished days, if a journal has at least `MIN_SOURCES` of a day


@dataclass(frozen=True, slots=True)
class MaintenanceDone:
    """What was done: days and segments merged, unneeded files removed, old segments and days of slots dropped."""

    days_compacted: int = 0
    segments_merged: int = 0
    files_removed: int = 0
    segments_dropped: int = 0
    slot_days_dropped: int = 0


@dataclass(slots=True)
class LakeMaintenance:
    """One replica's part in it. Methods raise OSError if the lake cannot be read or written.

    `slots` are of the length that builds read, which look `build_days` back (see `drop_samples`). Merged segments stay
    `grace_s` for readers that listed them before.
    """

    section: LakeSection
    lake: Lake
    slots: SlotStore
    clock_unix_ns: Callable[[], int] = time.time_ns
    build_days: int | None = None
    grace_s: float = GRACE_S
    _done_on: date | None = None
    _left: int = 0  # small segments that the last merge left

    def is_due(self) -> bool:
        """Return whether no replica has done it today."""
        today = day_of(self.clock_unix_ns())
        if self._done_on != today and self._mark(today) in self._marks():
            self._done_on = today
        return self._done_on != today

    def is_crowded(self) -> bool:
        """Return whether finished days have so many small segments that they should be merged now.

        A host that sends windows of many days makes a segment of each day at each roll. Segments that the last merge
        had to leave, such as those next to a damaged one, do not count again.
        """
        if not self.section.compact:
            return False
        small = self._count_small()
        self._left = min(self._left, small)
        return small > self._left + _CROWD

    def _count_small(self) -> int:
        found = self.lake.segments()
        finished = (each for each in found if not each.is_compacted and each.day != found[-1].day)
        small = Counter((each.day, each.origin) for each in finished)
        return sum(count for count in small.values() if count >= MIN_SOURCES)

    def compact(self, check: Callable[[], None]) -> MaintenanceDone:
        """Of `run`, only merge the segments of finished days, if lake.compact is on, and delete superseded ones."""
        return self._run(check, is_all=False)

    def run(self, check: Callable[[], None]) -> MaintenanceDone:
        """Do what is due. Blocks; only the holder of the lease may. `check` raises if that is lost or central stops.

        LakeError: a file is damaged (the first one); its day was left as it is, the others are done. Or a newer central
        wrote a segment; what was done before stays.
        """
        today = day_of(self.clock_unix_ns())
        done = self._run(check)
        check()
        marks = self._marks()
        if self._mark(today) not in marks:
            self.lake.objects.create(self._mark(today), msgspec.json.encode(done) + b"\n")
        for old in marks[: 1 - _KEPT_MARKS]:
            self.lake.objects.remove(old)
        self._done_on = today
        return done

    def _marks(self) -> list[str]:
        return sorted(entry.name for entry in self.lake.objects.entries(_FOLDER))

    @staticmethod
    def _mark(day: date) -> str:
        return f"{_FOLDER}/{day.isoformat()}.json"

    def _run(self, check: Callable[[], None], *, is_all: bool = True) -> MaintenanceDone:
        section, lake = self.section, self.lake
        damaged: list[DamagedError] = []  # costs its own day only
        manifests = self.slots.manifests(damaged)
        merged = self._merged(manifests, damaged, check) if section.compact else []
        check()
        removed = remove_superseded(lake, grace_s=self.grace_s)
        dropped = slot_days = 0
        if is_all:
            removed += self.slots.remove_unused(self.grace_s)
            check()
            with _noted(damaged):
                if section.raw_days:
                    raw_days, build_days = section.raw_days, self.build_days
                    dropped = retention.drop_samples(lake, manifests, raw_days=raw_days, build_days=build_days)
            check()
            if section.slot_days:
                slot_days = retention.drop_slots(lake, self.slots, slot_days=section.slot_days)
        if damaged:
            raise damaged[0]
        return MaintenanceDone(len(merged), sum(merged), removed, dropped, slot_days)

    def _merged(
        self, manifests: Mapping[date, SlotManifest], damaged: list[DamagedError], check: Callable[[], None]
    ) -> list[int]:
        """Merge segments of finished days. Returns how many sources each new segment has."""
        merged = []
        unknown = {error.name.rpartition("/")[0] for error in damaged}
        lake, days = self.lake, self.lake.days()
        for day in days[:-1]:
            check()
            unrolled_too = compaction.is_left_to_late_builds(day, days[-1]) and self.slots.folder(day) not in unknown
            with _noted(damaged):
                found = compaction.compact_day(lake, day, manifests.get(day), unrolled_too=unrolled_too, check=check)
                if found.written:
                    merged.append(found.sources)
        self._left = self._count_small()
        return merged


@contextlib.contextmanager
def _noted(damaged: list[DamagedError]) -> Iterator[None]:
    try:
        yield
    except DamagedError as error:
        damaged.append(error)
