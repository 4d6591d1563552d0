"""Small segments of a day are merged into few.

What builds are about to roll up to slots is not touched. A compacted segment has the rows of its sources, each few
minutes' in the order of machine, VM and time, so that a reader of one VM skips most row groups. It counts as soon as it
exists (`central.lake.segments.without_superseded`); its sources are deleted later, when no reader that listed them
before can still be at work. So a kill between any two steps leaves every row once.

If a segment that the slots' manifest lists is missing, nothing is merged across it: a merged segment would stand for it
too, and it could not be restored from a copy.
"""

import bisect
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from central.lake.errors import LakeError
from central.lake.segments import Lake, Segment, SegmentFile, stamped_schema, without_superseded
from central.roll_ups.store import RolledSegment, SlotManifest

#: Rows of a compacted segment, about; a segment of more stays alone.
SEGMENT_ROWS = 20_000_000
#: Fewer segments of one journal and day than these are left as they are.
MIN_SOURCES = 4
#: How long the segments that a compacted one stands for are kept for readers that listed them before.
GRACE_S = 3600.0

_MUCH_LARGER = 100  # times
_BATCH_ROWS = 50_000  # of a row group
_SORTED_ROWS = 1_000_000  # in memory at a time
_SORTED_BYTES = 256 << 20  # the same
_ORDER = [(name, "ascending") for name in ("machine", "vm", "start_unix_ns")]
_CHECKED_PIECES = 20


@dataclass(frozen=True, slots=True)
class Compacted:
    """What was done to a day."""

    sources: int = 0
    written: int = 0
    rows: int = 0


def compact_day(
    lake: Lake,
    day: date,
    slots: SlotManifest | None,
    *,
    unrolled_too: bool = False,
    check: Callable[[], None] = lambda: None,
    min_sources: int = MIN_SOURCES,
    segment_rows: int = SEGMENT_ROWS,
) -> Compacted:
    """Merge the segments of a day, each journal's among themselves, into segments of about `segment_rows`.

    Runs of fewer than `min_sources` segments are left as they are. What `slots` does not have rolled up is left too, or
    merged by itself if `unrolled_too`. `check` is called every million rows and before each segment is published; it
    raises if the lease is lost.

    LakeError: a source is damaged or of another version. It is left as it is, with those before and after. OSError: the
    lake cannot be read or written.
    """
    through, book = (slots.through, slots.rolled) if slots is not None else ({}, {})

    def is_rolled_up(each: Segment) -> bool:
        return each.last <= through.get(each.origin, -1)

    live = [each for each in lake.segments(day) if unrolled_too or is_rolled_up(each)]
    live.sort(key=lambda each: (each.origin, each.first))
    done = Compacted()
    for (origin, _), found in groupby(live, key=lambda each: (each.origin, is_rolled_up(each))):
        for run in _runs(list(found), book.get(origin, ()), segment_rows):
            sources = _without_large(run)
            if len(sources) >= min_sources:
                rows = _merge(lake, sources, check)
                done = Compacted(done.sources + len(sources), done.written + 1, done.rows + rows)
    return done


def is_left_to_late_builds(day: date, newest: date) -> bool:
    """Return whether builds take late windows of a day only rarely: segments are merged before that."""
    return day < newest - timedelta(days=1)


def remove_superseded(lake: Lake, *, grace_s: float = GRACE_S) -> int:
    """Delete segments that a compacted one older than `grace_s` stands for. Returns how many."""
    found = lake.all_segments()
    live = without_superseded(found)
    is_live = {segment.key for segment in live}
    until = time.time() - grace_s
    settled: defaultdict[tuple[date, str], list[Segment]] = defaultdict(list)
    for segment in live:
        if segment.is_compacted and segment.modified_unix_s <= until:
            settled[segment.day, segment.origin].append(segment)

    def is_covered(segment: Segment) -> bool:
        covers = settled[segment.day, segment.origin]
        return any(each.first <= segment.first and segment.last <= each.last for each in covers)

    gone = [segment for segment in found if segment.key not in is_live and is_covered(segment)]
    for segment in gone:
        lake.objects.remove(segment.key)
    return len(gone)


def _runs(segments: list[Segment], book: Sequence[RolledSegment], segment_rows: int) -> Iterator[list[Segment]]:
    """Yield segments that follow each other without a hole, as many as make about one segment."""
    entries = sorted(book)
    run: list[Segment] = []
    rows = 0
    for segment in segments:
        if run and (rows + segment.rows > segment_rows or _is_hole(entries, run[-1].last, segment.first)):
            yield run
            run, rows = [], 0
        run.append(segment)
        rows += segment.rows
    if run:
        yield run


def _without_large(run: list[Segment]) -> list[Segment]:
    """Leave out first segments with far more rows than all after them: a few late windows must not rewrite a day."""
    rows = sum(segment.rows for segment in run)
    for place, segment in enumerate(run):
        rows -= segment.rows
        if segment.rows <= _MUCH_LARGER * rows:
            return run[place:]
    return []


def _is_hole(entries: list[RolledSegment], after: int, before: int) -> bool:
    """Return whether the book, in order, has rolls between two journal rows for which the lake has no segment."""
    place = bisect.bisect_right(entries, after, key=lambda entry: entry.first)
    return place < len(entries) and entries[place].last < before


def _merge(lake: Lake, sources: list[Segment], check: Callable[[], None]) -> int:
    """Write the rows of segments of one day and journal as one segment. Returns how many rows."""
    first, last = sources[0].first, sources[-1].last
    merged = lake.segment(sources[0].day, f"{sources[0].origin}-{first:012d}_{last:012d}")
    expected = sum(source.rows for source in sources)
    facts = {"compacted": str(len(sources)), "sources": " ".join(source.name for source in sources)}
    rows = 0
    with SegmentFile(merged, stamped_schema(facts), has_order=True) as file:
        for group in _groups(_pieces(sources), check):
            file.write(group)
            rows += len(group)
        if rows != expected:
            raise LakeError(f"{lake.name}/{merged.key}: {rows} rows read of {expected} in the footers; not compacted")
        check()
        file.finish()
    return rows


def _groups(pieces: Iterator[pa.Table], check: Callable[[], None]) -> Iterator[pa.Table]:
    """Yield row groups, a few minutes' in order: in groups of a few hundred rows a row takes twice the bytes."""
    waiting, rows, size = [], 0, 0
    for number, piece in enumerate(pieces):
        if number % _CHECKED_PIECES == 0:
            check()  # renews the lease, too
        waiting.append(piece)
        rows, size = rows + len(piece), size + piece.nbytes
        if rows >= _SORTED_ROWS or size >= _SORTED_BYTES:
            yield from _in_order(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield from _in_order(waiting)


def _in_order(pieces: list[pa.Table]) -> Iterator[pa.Table]:
    table = pa.concat_tables(pieces)
    table = table.take(pc.sort_indices(table, sort_keys=_ORDER))
    for first in range(0, len(table), _BATCH_ROWS):
        yield table.slice(first, _BATCH_ROWS)


def _pieces(sources: list[Segment]) -> Iterator[pa.Table]:
    for source in sources:
        source.check_schema()
        with source.damage_raised(), source.objects.open(source.key) as file:
            source.check(file)  # a damaged source gets no new checksum
            file.seek(0)
            with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
                for batch in parquet.iter_batches(_BATCH_ROWS):
                    yield pa.Table.from_batches([batch])
