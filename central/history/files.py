"""Which files of the lake answer a question: slots, and the segments of windows that are not in them."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta

from central.lake.deletion_notes import deleted_through
from central.lake.segment_times import SegmentTimes
from central.lake.segments import Lake, Segment, day_of
from central.roll_ups.store import SlotManifest, SlotStore

_KNOWN_MANIFESTS = 400  # days


@dataclass(slots=True)
class Files:
    """As a database reads them (`Objects.url`). `segments` are by origin, for the rule that counts a batch once.

    `counted` are the files of the batches that are in `slots` and that another origin may have too, by day.
    """

    slots: list[str] = field(default_factory=list)
    segments: dict[str, list[str]] = field(default_factory=dict)
    counted: dict[date, list[str]] = field(default_factory=dict)


class HistoryFiles:
    """Finds them; what never changes is read once. Safe in threads."""

    def __init__(self, lake: Lake, times: SegmentTimes, slot_ns: int) -> None:
        self._lake = lake
        self._times = times
        self._store = SlotStore(lake, slot_ns)
        self._known: dict[str, SlotManifest] = {}
        self._lock = threading.Lock()

    def have_windows(self, since: int, until: int) -> bool:
        """Return whether the windows of each day that has slots are still in the lake.

        A day whose windows retention has deleted may have some again that came late.
        """
        deleted = deleted_through(self._lake, "samples")
        return all(
            (day > deleted and self._lake.segments(day)) or self._store.newest(day) is None
            for day in _days(since, until)
        )

    def find(self, since: int, until: int, *, with_slots: bool) -> Files:
        """Return the files with windows that begin in [since, until); only segments unless `with_slots`.

        LakeError: one is damaged, or of another version of central. OSError: the lake cannot be read.
        """
        found = Files()
        by_origin: defaultdict[str, list[str]] = defaultdict(list)
        for day in _days(since, until):
            manifest = self._manifest(day) if with_slots else None
            segments = [
                each for each in self._store.not_yet(day, manifest) if self._times.row_groups(each, since, until)
            ]
            for each in segments:
                by_origin[each.origin].append(self._url(each.key))
            if manifest is not None:
                found.slots += [self._url(part.slots) for part in manifest.parts]
                if _is_shared(segments, manifest):
                    found.counted[day] = [self._url(part.batches) for part in manifest.parts]
        found.segments = dict(sorted(by_origin.items()))
        return found

    def _manifest(self, day: date) -> SlotManifest | None:
        name = self._store.newest(day)
        if name is None:
            return None
        with self._lock:
            manifest = self._known.get(name)
        if manifest is None:
            manifest = self._store.read_manifest(name)
            with self._lock:
                if len(self._known) >= _KNOWN_MANIFESTS:
                    self._known.clear()
                self._known[name] = manifest
        return manifest

    def _url(self, name: str) -> str:
        return self._lake.objects.url(name)


def _is_shared(segments: list[Segment], manifest: SlotManifest) -> bool:
    """Return whether a batch of the segments may be in the slots: by another journal, as one takes a batch once."""
    origins = {each.origin for each in segments}
    return any(manifest.through.keys() - {origin} for origin in origins)


def _days(since: int, until: int) -> Iterator[date]:
    day, last = day_of(since), day_of(max(since, until - 1))
    while day <= last:
        yield day
        day += timedelta(days=1)
