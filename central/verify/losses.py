"""Objects that the lake's manifests list and the lake lacks: deleted by hand, or lost by a disk.

The manifest of a day's slots lists the segments that were rolled up, with their rows (`SlotManifest.rolled`); a
version's manifest lists its days and their rows. Days that retention records as deleted are not checked
(<lake>/retention/{samples,slots}-through-2026-10-22.json). Objects deleted before their roll-up are recorded nowhere.
"""

import bisect
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from functools import partial
from typing import TypeVar

import msgspec

from central.coefficients.versions import Manifest, VersionStore
from central.lake.deletion_notes import deleted_through
from central.lake.errors import LakeError
from central.lake.segments import Lake, Segment
from central.roll_ups.store import RolledSegment, SlotManifest, SlotStore

_T = TypeVar("_T")

_TRIES = 5  # to read what central changes meanwhile
_REMEDY = (
    "the slots have their sums, the rows are lost: restore them from a copy; if they were meant to go, "
    "`whitepanda lake compact --raw-days` of that day's age says so"
)


def read_again(read: Callable[[], _T]) -> _T:
    """Read again if something was deleted between its listing and its reading."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            return read()
    return read()


def still_wrong(now: _T, read: Callable[[], _T], check: Callable[[_T], list[str]]) -> list[str]:
    """Return the lines of a check of what central may change meanwhile: it was the same before and after."""
    lines = list[str]()
    for _ in range(_TRIES):
        before, lines = now, check(now)
        if not lines:
            break
        now = read()
        if now == before:
            break
    return lines


def losses(lake: Lake, slot_lengths: Iterable[float], by_day: Mapping[date, list[Segment]]) -> Iterator[str]:
    """Yield one line per loss. Unreadable objects are not reported here.

    `by_day` are the segments that were there before the manifests are read; slots have lengths in seconds. Raises
    OSError if the lake cannot be listed.
    """
    yield from _lost_days(lake)
    found: dict[date, dict[str, None]] = {}  # lines of a day, each once
    for length in slot_lengths:
        # Each length by itself: one may list rolls, another the segments that they were merged into.
        for day, manifest in (_manifests(SlotStore(lake, round(length * 1e9))) or {}).items():
            listed = {origin: set(segments) for origin, segments in manifest.rolled.items()}
            found.setdefault(day, {}).update(dict.fromkeys(_lost_segments(lake, day, listed, by_day.get(day, []))))
    for _, lines in sorted(found.items()):
        yield from lines


def _lost_segments(lake: Lake, day: date, listed: Mapping[str, set[RolledSegment]], found: list[Segment]) -> list[str]:
    """Return a line per lost segment of a day. Reads again if central compacts or deletes meanwhile."""

    def check(there: list[Segment]) -> list[str]:
        return [line for origin in sorted(listed) for line in _missing(day, origin, listed[origin], there)]

    lines = still_wrong(found, partial(lake.segments, day), check)
    # Read last: retention records its days before it deletes.
    return [] if not lines or day <= deleted_through(lake, "samples") else lines


def _missing(day: date, origin: str, listed: set[RolledSegment], found: Iterable[Segment]) -> Iterator[str]:
    """Compare one journal's segments of a day, whose ranges of rolls are apart, with the manifest's."""
    live = sorted((each for each in found if each.origin == origin), key=lambda each: each.first)
    firsts = [each.first for each in live]
    known = [0] * len(live)
    run: list[RolledSegment] = []
    for entry in sorted(listed):
        place = bisect.bisect_right(firsts, entry.first) - 1
        if place >= 0 and entry.last <= live[place].last:
            known[place] += entry.rows
            if run:
                yield _line(day, origin, run)
            run = []
        else:
            run.append(entry)
    if run:
        yield _line(day, origin, run)
    for segment, rows in zip(live, known, strict=True):
        with contextlib.suppress(LakeError, OSError):  # damaged, or gone since
            if segment.rows < rows:
                yield (
                    f"{segment.key}: has {segment.rows:,} rows of the {rows:,} that were rolled up from its rolls; "
                    f"{_REMEDY}"
                )


def _line(day: date, origin: str, run: list[RolledSegment]) -> str:
    """Return the line of segments that followed each other."""
    name = f"samples/day={day}/{origin}-{run[0].first:012d}"
    name += f"_{run[0].last:012d}.parquet" if run[0].last > run[0].first else ".parquet"
    rows = sum(entry.rows for entry in run)
    if len(run) == 1:
        return f"{name}: is not there, with {rows:,} rows that were rolled up; {_REMEDY}"
    return (
        f"{name}: is not there, nor are {len(run) - 1} more up to roll {run[-1].last} (or what they were merged into), "
        f"with {rows:,} rows that were rolled up; {_REMEDY}"
    )


def _lost_days(lake: Lake) -> Iterator[str]:
    """Compare the newest version with the slots that it was built from."""
    version = _newest(VersionStore(lake.objects))
    if version is None:
        return
    store = SlotStore(lake, round(version.slot_s * 1e9))
    days = [date.fromisoformat(day) for day in version.days]
    manifests = _manifests(store)
    if manifests is None:
        return
    gone = [day for day in days if day not in manifests and not lake.segments(day)]
    until = deleted_through(lake, "slots")
    lost = [day for day in gone if day > until]
    left = sum(manifests[day].samples for day in days if day in manifests)
    fewer = version.rows - left  # the days that are there may have more rows since
    for day in lost:
        least = f" (at least {fewer:,} rows)" if lost == gone == [day] and fewer > 0 else ""
        yield (
            f"day {day}: neither slots nor samples are there, though version {version.version} was built from "
            f"them{least}; restore {store.folder(day)} from a copy, or the next build goes without the day"
        )
    if all(day in manifests for day in days) and fewer > 0:
        yield (
            f"version {version.version} was built from {version.rows:,} rows, the slots of its days have {left:,}: "
            f"{fewer:,} rows are lost; were slots deleted when samples were gone already? restore both from a copy"
        )


def _newest(store: VersionStore) -> Manifest | None:
    for _ in range(_TRIES):
        number = max(store.numbers(), default=0)
        if not number:
            return None
        with contextlib.suppress(LakeError, OSError, msgspec.MsgspecError):
            return store.manifest(number)
    return None


def _manifests(store: SlotStore) -> dict[date, SlotManifest] | None:
    """Return the newest manifest of each day; None where one cannot be read, which `checks` reports."""
    with contextlib.suppress(LakeError, OSError):
        return read_again(store.manifests)
    return None
