"""Which of the lake's segments have windows of a time, by their footers; each is read once."""

from collections.abc import Iterator
from datetime import timedelta

import pyarrow.parquet as pq

from central.lake.schema import SAMPLES
from central.lake.segments import Lake, Segment, day_of

_KNOWN_SEGMENTS = 20_000
_EVER = (-(2**63), 2**63 - 1)

#: Of each row group the least and the greatest `start_unix_ns`.
_Times = tuple[tuple[int, int], ...]


class SegmentTimes:
    """Keeps the times of segments, which never change: nanoseconds since 1970. Safe in threads."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._known: dict[str, _Times] = {}

    def segments(self, since: int, until: int) -> Iterator[Segment]:
        """Yield the segments of the days that [since, until) touches, by day and name."""
        day, last = day_of(since), day_of(max(since, until - 1))
        while day <= last:
            yield from self._lake.segments(day)
            day += timedelta(days=1)

    def overlapping(self, since: int, until: int) -> list[Segment]:
        """Return the segments that may have windows that begin in [since, until).

        LakeError: one is damaged, or of another version of central. FileNotFoundError: one was merged since it was
        listed.
        """
        return [each for each in self.segments(since, until) if self.row_groups(each, since, until)]

    def row_groups(self, segment: Segment, since: int, until: int) -> list[int]:
        """Return the row groups of a segment that may have windows in [since, until); raises as `overlapping`."""
        times = self._times_of(segment)
        return [k for k, (first, last) in enumerate(times) if first < until and last >= since]

    def _times_of(self, segment: Segment) -> _Times:
        known = self._known.get(segment.key)
        if known is None:
            segment.check_schema()
            column = SAMPLES.get_field_index("start_unix_ns")
            footer = segment.footer
            known = tuple(_range(footer.row_group(k).column(column)) for k in range(footer.num_row_groups))
            if len(self._known) >= _KNOWN_SEGMENTS:
                self._known.clear()
            self._known[segment.key] = known
        return known


def _range(column: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return the least and the greatest value; everything if the footer does not have them."""
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max:
        return _EVER
    return statistics.min, statistics.max
