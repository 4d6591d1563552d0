"""Is the lake whole, and how much is in it: `whitepanda lake verify` and `stats`."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from central.build.state_cache import check_state, state_folders
from central.coefficients.versions import VersionStore
from central.lake.errors import LakeError
from central.lake.lease import lease_problem
from central.lake.replicas import replica_of
from central.lake.segments import Lake, Segment
from central.roll_ups.store import SlotManifest, SlotStore
from central.verify.losses import losses, read_again, still_wrong

_DAY_S = 86_400
_DAY_NS = _DAY_S * 10**9
_FAULTS = (LakeError, pa.ArrowException, OSError)


@dataclass(frozen=True, slots=True)
class DayStats:
    """One day: objects, rows and bytes of its samples and slots.

    `duplicate_rows` are rows of batches that several journals took; the reading view has them once.
    """

    day: date
    segments: int
    rows: int
    size_bytes: int
    duplicate_rows: int
    slot_parts: int
    slot_rows: int
    slot_bytes: int
    samples_in_slots: int


@dataclass(frozen=True, slots=True)
class LakeStats:
    """The lake in numbers. `replicas`: rows of each replica; `machines_left_out`: by the newest version."""

    days: tuple[DayStats, ...]
    replicas: dict[str, int]
    versions: int
    newest_version: int
    machines_left_out: tuple[str, ...]


def stats(lake: Lake, connection: Any, slot_s: float) -> LakeStats:
    """Count what is in the lake, and its slots of one length. DuckDB finds the duplicates.

    Raises LakeError if something is damaged, see `problems`, and OSError if the lake cannot be read.
    """
    by_day: dict[date, list[Segment]] = defaultdict(list)
    replicas: dict[str, int] = defaultdict(int)
    for segment in lake.segments():
        by_day[segment.day].append(segment)
        replicas[replica_of(segment.origin)] += segment.rows
    manifests = SlotStore(lake, round(slot_s * 1e9)).manifests()
    versions = VersionStore(lake.objects)
    numbers, newest = versions.numbers(), versions.latest()
    days = tuple(
        _day_stats(day, by_day.get(day, []), manifests.get(day), connection) for day in sorted({*by_day, *manifests})
    )
    left_out = newest.manifest.machines_left_out if newest is not None else ()
    return LakeStats(days, dict(replicas), len(numbers), max(numbers, default=0), left_out)


def _day_stats(day: date, segments: list[Segment], slots: SlotManifest | None, connection: Any) -> DayStats:
    parts = slots.parts if slots is not None else ()
    several = len({segment.origin for segment in segments}) > 1
    return DayStats(
        day=day,
        segments=len(segments),
        rows=sum(segment.rows for segment in segments),
        size_bytes=sum(segment.size_bytes for segment in segments),
        duplicate_rows=sum(rows for _, _, rows in duplicates(segments, connection)) if several else 0,
        slot_parts=len(parts),
        slot_rows=sum(part.slot_rows for part in parts),
        slot_bytes=sum(part.slots_bytes for part in parts),
        samples_in_slots=slots.samples if slots is not None else 0,
    )


def duplicates(
    segments: list[Segment], connection: Any, *, is_within_journal: bool = False
) -> list[tuple[str, int, int]]:
    """Return origins, number and superfluous rows of batches of one day that several segments have.

    With `is_within_journal` only those that one journal has twice, a fault; several have a batch if an agent changes
    replicas.
    """
    if not segments:
        return []
    paths = {str(segment.path): segment.origin for segment in segments}
    connection.execute("CREATE OR REPLACE TEMP TABLE origins (filename VARCHAR, origin VARCHAR)")
    connection.executemany("INSERT INTO origins VALUES (?, ?)", list(paths.items()))
    place = "host, spool_id, sequence" + (", origin" if is_within_journal else "")
    rows = connection.execute(
        "SELECT origins, count(*), sum(all_rows - most)::BIGINT FROM (SELECT string_agg(DISTINCT origin, ' ' ORDER BY "  # noqa: S608 - no values
        "origin) AS origins, sum(rows) AS all_rows, max(rows) AS most FROM (SELECT host, spool_id, sequence, filename, "
        "count(*) AS rows FROM read_parquet(?, filename = true, union_by_name = true) GROUP BY ALL) JOIN origins "
        f"USING (filename) GROUP BY {place} HAVING count(*) > 1) GROUP BY origins ORDER BY origins",
        [list(paths)],
    ).fetchall()
    return [(str(origins), int(batches), int(superfluous)) for origins, batches, superfluous in rows]


def problems(lake: Lake, connection: Any, *, is_quick: bool = False) -> Iterator[str]:
    """Yield one line per problem: damage, duplicate rows, manifests of missing objects, losses.

    `is_quick`: read only footers and manifests, not the pages of rows. Raises OSError if the lake cannot be listed.
    """
    by_day: dict[date, list[Segment]] = {}
    for day in lake.days():
        lines, by_day[day] = _day_problems(lake, day, connection, is_quick=is_quick)
        yield from lines
    lengths, strange = _slot_folders(lake)
    for name in strange:
        yield f"{name}: no folder of slots, slots/slot=<length in s>; nothing reads it"
    for length in lengths:
        yield from _slot_problems(lake, length, by_day, is_quick=is_quick)
    yield from _version_problems(lake)
    if line := lease_problem(lake.objects):
        yield line
    yield from losses(lake, lengths, by_day)


def slot_lengths(lake: Lake) -> list[float]:
    """Return the lengths of the slots that the lake has, s, ascending. Raises OSError if it cannot be listed."""
    return _slot_folders(lake)[0]


def _slot_folders(lake: Lake) -> tuple[list[float], list[str]]:
    """Return the lengths of slots, and the folders that are not of slots."""
    lengths, strange = set[float](), set[str]()
    for folder in {entry.name.split("/")[1] for entry in lake.objects.entries("slots") if entry.name.count("/") > 1}:
        text = folder.removeprefix("slot=")
        try:
            length = float(text)
        except ValueError:
            length = 0.0
        if 0 < length <= _DAY_S and folder == f"slot={length:g}":  # neither nan nor inf
            lengths.add(length)
        else:
            strange.add(f"slots/{folder}")
    return sorted(lengths), sorted(strange)


def _day_problems(lake: Lake, day: date, connection: Any, *, is_quick: bool) -> tuple[list[str], list[Segment]]:
    """Return the problems of a day's segments, and the segments without one."""
    well: dict[str, Segment] = {}

    def check(segments: list[Segment]) -> list[str]:
        nonlocal well
        lines = []
        for segment in segments:
            if segment.key not in well:
                if line := _segment_problem(segment, is_quick=is_quick):
                    lines.append(line)
                else:
                    well[segment.key] = segment
        well = {segment.key: segment for segment in segments if segment.key in well}
        return lines if is_quick else [*lines, *_duplicate_problems(day, list(well.values()), connection)]

    return still_wrong(lake.segments(day), partial(lake.segments, day), check), list(well.values())


def _duplicate_problems(day: date, segments: list[Segment], connection: Any) -> Iterator[str]:
    try:
        for origin, batches, superfluous in duplicates(segments, connection, is_within_journal=True):
            yield (
                f"day {day}: {batches} batches are there twice within journal {origin} ({superfluous} rows too many); "
                "was its state_dir restored from a backup?"
            )
    except (duckdb.Error, OSError) as error:
        yield _fault(f"day {day}: its batches", error)


def _segment_problem(segment: Segment, *, is_quick: bool) -> str:
    try:
        segment.check_schema()
        if is_quick:
            return ""
        segment.check()
        with (
            segment.objects.open(segment.key) as file,
            pq.ParquetFile(file, page_checksum_verification=True) as parquet,
        ):
            rows = 0
            for batch in parquet.iter_batches(50_000):
                rows += len(batch)
                ends = pa.compute.min_max(batch["start_unix_ns"]).as_py()
                if {ends["min"] // _DAY_NS, ends["max"] // _DAY_NS} != {(segment.day - date(1970, 1, 1)).days}:
                    return f"{segment.key}: has rows of another day"
        if rows != segment.rows:
            return f"{segment.key}: {rows} rows, {segment.rows} in the footer"
    except _FAULTS as error:
        return _fault(f"{segment.key}:", error)
    return ""


def _fault(what: str, error: Exception) -> str:
    """Return the line of an error; an error of the lake is one already."""
    line = (str(error).splitlines() or [""])[0]
    return str(error) if isinstance(error, LakeError) else f"{what} cannot be read: {line}"


def _slot_problems(lake: Lake, slot_s: float, by_day: dict[date, list[Segment]], *, is_quick: bool) -> Iterator[str]:
    slots = SlotStore(lake, round(slot_s * 1e9))
    try:
        manifests = read_again(slots.manifests)
    except (LakeError, OSError) as error:
        yield str(error)
        return
    for day, manifest in manifests.items():
        yield from _slot_day_problems(lake, slots, day, manifest, is_quick=is_quick)
        for segment in by_day.get(day, []):
            if segment.first <= manifest.through.get(segment.origin, -1) < segment.last:
                yield f"{segment.key}: only some of its rolls are in the slots of {slot_s:g} s"


def _slot_day_problems(
    lake: Lake, slots: SlotStore, day: date, manifest: SlotManifest | None, *, is_quick: bool
) -> list[str]:
    """Return the problems of a day's slots. If a new manifest has come meanwhile, that one is checked."""
    checked, unread = manifest, list[str]()

    def check(one: SlotManifest | None) -> list[str]:
        nonlocal checked
        checked = one  # None: the day was deleted
        return [] if one is None else list(_manifest_problems(lake, None if is_quick else slots, day, one))

    def read() -> SlotManifest | None:
        try:
            return read_again(partial(slots.manifest, day))
        except (LakeError, OSError) as error:
            unread.append(str(error))
            return checked  # as if unchanged: the problems of the last one stay

    return [*still_wrong(manifest, read, check), *unread]


def _manifest_problems(lake: Lake, digests: SlotStore | None, day: date, manifest: SlotManifest) -> Iterator[str]:
    windows, batches = 0, list[str]()
    for part in manifest.parts:
        try:
            if digests is not None:
                digests.check(part)
            with lake.objects.open(part.batches), lake.objects.open(part.slots) as file:
                counts = pq.read_table(file, columns=["windows"])["windows"]
        except FileNotFoundError:
            missing = part.slots if _is_missing(lake, part.slots) else part.batches
            yield f"slots of {day}, {manifest.number}: {missing} is not there"
            continue
        except _FAULTS as error:
            yield _fault(f"{part.slots}:", error)
            continue
        if len(counts) != part.slot_rows:
            yield f"{part.slots}: {len(counts)} rows, {part.slot_rows} in the manifest"
        windows += pa.compute.sum(counts).as_py() or 0
        batches.append(part.batches)
    yield from _batch_problems(lake, day, batches)
    if windows > manifest.samples:
        yield f"slots of {day}: {windows} windows in the parts, {manifest.samples} were rolled up"


def _is_missing(lake: Lake, name: str) -> bool:
    try:
        lake.objects.open(name).close()
    except FileNotFoundError:
        return True
    return False


def _batch_problems(lake: Lake, day: date, names: list[str]) -> Iterator[str]:
    """Yield damaged files of batches, and batches in two files, whose windows are in the slots twice."""
    columns = ["host", "spool_id", "first", "last"]
    tables = []
    for name in names:
        try:
            with lake.objects.open(name) as file:
                table = pq.read_table(file, columns=columns)
        except (pa.ArrowException, OSError) as error:
            yield _fault(f"{name}:", error)
            continue
        if pa.compute.any(pa.compute.less(table["last"], table["first"])).as_py():
            yield f"{name}: a range of batches ends before it begins"
        tables.append(table)
    if not tables:
        return
    ranges = pa.concat_tables(tables).sort_by([(name, "ascending") for name in columns])
    now, before = ranges.slice(1), ranges.slice(0, max(len(ranges) - 1, 0))
    twice = pa.compute.less_equal(now["first"], before["last"])
    for name in ("host", "spool_id"):
        twice = pa.compute.and_(twice, pa.compute.equal(now[name], before[name]))
    if count := pa.compute.sum(twice).as_py():
        yield f"slots of {day}: {count} ranges of batches overlap; some windows are in the slots twice"


def _version_problems(lake: Lake) -> Iterator[str]:
    store = VersionStore(lake.objects)
    token = 0
    for number in store.numbers():
        try:
            manifest = store.read(number).manifest
        except (*_FAULTS, msgspec.MsgspecError, KeyError) as error:
            if isinstance(error, LakeError) or number in store.numbers():  # else it was deleted meanwhile
                yield _fault(f"version {number}:", error)
            continue
        if manifest.token < token:
            yield f"version {number}: lease {manifest.token} is older than that of the version before, {token}"
        token = manifest.token


def state_problems(lake: Lake) -> Iterator[str]:
    """Yield a line per damaged state of a day. If the lake is not a folder, states are elsewhere and not checked.

    Raises OSError if the lake cannot be listed.
    """
    if not lake.is_folder:
        return
    for folder in state_folders(lake.root / "state"):
        try:
            check_state(folder)
        except LakeError as error:
            if folder.is_dir():  # else a builder has deleted it meanwhile
                yield str(error)
        except OSError as error:
            yield f"{folder.relative_to(lake.root)}: cannot be read: {error.strerror}"
