"""Days of the lake that are too old to count: how many, and their rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from central.lake.segments import Segment
from central.roll_ups.store import SlotManifest
from whitepanda.common import log

__all__ = ["LeftOut", "LeftOutDays", "OlderDay"]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Days of the lake, and their rows, that are not in the version because they are older than `build.days`."""

    days: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class OlderDay:
    """A day that does not count."""

    day: date
    segments: list[Segment]
    slots: SlotManifest | None


class LeftOutDays:
    """Counts them. Footers of segments are read once.

    Args:
        build_days: `build.days`, for the log.

    """

    def __init__(self, build_days: int) -> None:
        self._build_days = build_days
        self._rows: dict[date, tuple[str, int]] = {}  # by day: of which segments, and their rows
        self._log = log.get("builds")

    def count(self, older: Iterable[OlderDay], before: LeftOut) -> LeftOut:
        """Count the rows that no version will have, and tell when they become other ones than `before`.

        Raises:
            LakeError: a segment is damaged.
            OSError: one cannot be read.

        """
        known, self._rows = self._rows, {}
        for day in older:
            names = "\n".join(segment.name for segment in day.segments)
            digest = hashlib.sha256(names.encode()).hexdigest()
            then, rows = known.get(day.day, ("", 0))
            if digest != then:
                in_samples = sum(segment.rows for segment in day.segments)
                rows = max(in_samples, day.slots.samples if day.slots else 0)
            self._rows[day.day] = (digest, rows)
        found = LeftOut(len(self._rows), sum(rows for _, rows in self._rows.values()))
        if found != before:
            self._log.info(
                "days are too old to count: build.days before the newest day of the lake, or more",
                days_left_out=found.days,
                rows_left_out=found.rows,
                build_days=self._build_days,
            )
        return found
