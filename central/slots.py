"""Windows rolled up to slots: what builds read, and what stays when a day's raw samples are deleted.

    <root>/slots/slot=300/day=YYYY-MM-DD/<n>.json, <n>-<random>-{slots,batches}.parquet

`<n>.json` says what has been rolled up: per journal the last roll, and the parts that hold it. Each is created
exclusively and stands for all before it, so a window is counted once also where two builders are at work, and a kill
at any point leaves nothing but files that no manifest names. A part has sums per task and slot, which add up exactly
with those of other parts; and the batches that it has, so that one which another replica took too is left out, also
when the samples themselves are gone. A manifest has a seal and the digests of its files, which are looked at whenever
these are read (`central.seals`).
"""

# ruff: noqa: S608 - SQL made of this file's own words and of quoted names; no values of rows are in it
from __future__ import annotations

import contextlib
import secrets
import time
from collections import defaultdict
from collections.abc import Iterable
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from central import seals
from central.lake import Lake, LakeError, Segment, day_in
from central.lake_errors import DamagedError

if TYPE_CHECKING:
    import duckdb
    import ibis.expr.types as ir

__all__ = ["SLOTS", "SLOT_SCHEMA_VERSION", "SlotManifest", "SlotPart", "SlotStore"]

#: Of the manifests and the files that they name.
SLOT_SCHEMA_VERSION = 1

#: Sums over the windows of one task (vm) that begin in one slot. `usage` and `cpi` are sums of value * duration, their
#: times the durations of the windows that have the value; cycles and instructions are null where no window has them.
SLOTS = pa.schema(
    {
        "machine": pa.string(),
        "slot_start_ns": pa.int64(),
        "vm": pa.string(),
        "job": pa.string(),
        "platform": pa.string(),
        "latency_sensitive": pa.bool_(),
        "windows": pa.int64(),
        "duration_ns": pa.int64(),
        "usage_core_ns": pa.float64(),
        "usage_time_ns": pa.int64(),
        "cpi_ns": pa.float64(),
        "cpi_time_ns": pa.int64(),
        "cycles": pa.int64(),
        "instructions": pa.int64(),
    }
)
_KEYS = SLOTS.names[:6]
_SUMS = SLOTS.names[6:]

_MAX_PARTS = 16  # of a day; one more, and they become one
_TRIES = 5  # when another builder rolls up the same day


class SlotPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a day: names of its two files in the lake."""

    slots: str
    batches: str
    slot_rows: int
    slots_bytes: int
    slots_sha256: str = ""  # of the file; an older release told none
    batches_sha256: str = ""


class SlotManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What of a day has been rolled up, in all."""

    schema: int = SLOT_SCHEMA_VERSION
    number: int
    slot_s: float
    through: dict[str, int]  # by origin: the last journal row whose roll is in the parts
    parts: tuple[SlotPart, ...]
    segments: int  # that were rolled up
    samples: int  # windows in the parts, each once
    duplicates: int  # windows left out, because another replica's journal had their batch too
    created_unix_ns: int
    code_version: str
    seal: str = ""

    @property
    def digest_words(self) -> tuple[str, ...]:
        """What tells this content from any other."""
        return tuple(part.slots for part in self.parts)


class SlotStore:
    """The slots of a lake, of one length.

    Args:
        lake: whose samples are rolled up.
        slot_ns: length of a slot.

    """

    def __init__(self, lake: Lake, slot_ns: int) -> None:
        self._lake = lake
        self._slot_ns = slot_ns
        self._root = f"slots/slot={slot_ns / 1e9:g}"

    def manifests(self) -> dict[date, SlotManifest]:
        """Return the newest manifest of each day that has been rolled up.

        Raises:
            LakeError: one is damaged, or a newer central wrote it.
            OSError: the lake cannot be read.

        """
        newest: dict[date, str] = {}
        for entry in self._lake.objects.entries(self._root):
            folder, _, file = entry.name.rpartition("/")
            day = day_in(folder.rpartition("/")[2])
            if day is not None and file.endswith(".json"):
                newest[day] = max(newest.get(day, ""), entry.name)
        return {day: self._read(name) for day, name in sorted(newest.items())}

    def manifest(self, day: date) -> SlotManifest | None:
        """Return the newest manifest of a day, or None."""
        names = [
            entry.name
            for entry in self._lake.objects.entries(self._folder(day))
            if entry.name.endswith(".json")
        ]
        return self._read(max(names)) if names else None

    def roll_up(self, day: date, connection: duckdb.DuckDBPyConnection) -> SlotManifest | None:
        """Roll up the segments of a day that have not been. A window that comes late is in a later part.

        Args:
            day: the day.
            connection: computes it, within its own bounds of memory.

        Returns:
            The day's manifest, a new one or that from before; None for a day without samples.

        Raises:
            LakeError: segments are damaged or from a newer central; or the lake's rolls are not in order.
            OSError: the lake cannot be read or written. What was rolled up before stays.

        """
        for _ in range(_TRIES):
            before = self.manifest(day)
            new = self._not_yet(day, before)
            if not new:
                return before
            try:
                return self._add(day, before, new, connection)
            except FileExistsError:
                continue  # another builder was quicker; it may have rolled up the very same segments
        raise LakeError(
            f"{self._lake.name}: other builders keep rolling up {day}; is there more than one lease?"
        )

    def read(self, connection: Any, manifests: Iterable[SlotManifest]) -> ir.Table:
        """Return the task slots of days as an Ibis table, like `central.engine.task_slots` of their samples.

        Args:
            connection: an Ibis backend.
            manifests: of the days, from `roll_up` or `manifests`.

        Returns:
            machine, slot_start_ns, vm, job, platform, latency_sensitive, usage, cpi, and the sums of `SLOTS` that
            they are made from. Usage and CPI are means weighted by duration; null where not known.

        Raises:
            DamagedError: a file is not what was written.
            OSError: the lake cannot be read.

        """
        import ibis  # noqa: PLC0415 - takes a second, and only builds need it

        manifests = list(manifests)
        names = [part.slots for manifest in manifests for part in manifest.parts]
        if not names:
            return ibis.memtable(SLOTS.empty_table()).mutate(
                usage=ibis.null("float64"), cpi=ibis.null("float64")
            )
        for manifest in manifests:
            for part in manifest.parts:
                self.check_slots(part)
        paths = [str(self._lake.objects.local(name)) for name in names]
        rows = connection.read_parquet(paths).select(*SLOTS.names)
        if len(names) > 1:
            integers = {name for name in _SUMS if SLOTS.field(name).type == pa.int64()}
            sums = {name: rows[name].sum() for name in _SUMS}
            rows = rows.group_by(_KEYS).aggregate(
                **{name: each.cast("int64") if name in integers else each for name, each in sums.items()}
            )
        return rows.mutate(
            usage=rows.usage_core_ns / rows.usage_time_ns.nullif(0),
            cpi=rows.cpi_ns / rows.cpi_time_ns.nullif(0),
        )

    def check_slots(self, part: SlotPart) -> None:
        """Hold a part's slots against their digest, if it has one.

        Raises:
            DamagedError: they are not those that were written.
            OSError: they cannot be read.

        """
        self._check(part.slots, part.slots_sha256)

    def check(self, part: SlotPart) -> None:
        """Do both."""
        self.check_slots(part)
        self.check_batches(part)

    def check_batches(self, part: SlotPart) -> None:
        """Hold what a part knows of batches against its digest; else as `check_slots`."""
        self._check(part.batches, part.batches_sha256)

    def _check(self, name: str, written: str) -> None:
        if written:
            path = self._lake.objects.local(name)
            seals.check_digest(self._lake.name, name, path, written, self._remedy(name))

    @staticmethod
    def _remedy(name: str) -> str:
        return (
            f"restore it from a copy, or delete {name.rpartition('/')[0]}: the day is then rolled up anew from its "
            "samples, as far as these are still there"
        )

    def remove_unused(self, older_than_s: float) -> int:
        """Delete files that no day's newest manifest names and that are so old. Returns how many."""
        used: set[str] = set()
        for day, manifest in self.manifests().items():
            used.add(self._name(day, manifest.number))
            used.update(name for part in manifest.parts for name in (part.slots, part.batches))
        until = time.time() - older_than_s
        unused = [
            entry.name
            for entry in self._lake.objects.entries(self._root)
            if entry.name not in used and entry.modified_unix_s <= until
        ]
        for name in unused:
            self._lake.objects.remove(name)
        return len(unused)

    def remove(self, day: date) -> None:
        """Delete all of a day: older manifests, then the newest one, then the files.

        So a kill leaves the day whole, or files that no manifest names.
        """
        names = [entry.name for entry in self._lake.objects.entries(self._folder(day))]
        for name in sorted(names, key=lambda name: (not name.endswith(".json"), name)):
            self._lake.objects.remove(name)

    def _not_yet(self, day: date, manifest: SlotManifest | None) -> list[Segment]:
        """Return the day's segments that are not in the parts, by journal and in the order of rolls."""
        through = manifest.through if manifest is not None else {}
        new = []
        for segment in self._lake.segments(day):
            done = through.get(segment.origin, -1)
            if segment.first <= done < segment.last:
                raise LakeError(
                    f"{self._lake.name}/{segment.key} is compacted from rolls of which only some are in the slots of "
                    f"{self._slot_ns / 1e9:g} s; delete {self._folder(day)} to have the day rolled up anew"
                )
            if segment.last > done:
                new.append(segment)
        return new

    def _add(
        self,
        day: date,
        before: SlotManifest | None,
        new: list[Segment],
        connection: duckdb.DuckDBPyConnection,
    ) -> SlotManifest:
        number = (before.number if before else 0) + 1
        old = before.parts if before is not None else ()
        stem = f"{self._folder(day)}/{number:08d}-{secrets.token_hex(4)}"
        slots, batches = f"{stem}-slots.parquet", f"{stem}-batches.parquet"
        drafts = {name: self._lake.objects.draft(name) for name in (slots, batches)}
        merged = old if len(old) >= _MAX_PARTS else ()
        published = []
        for segment in new:
            with segment.path.open("rb") as file:
                segment.check(file)
        for part in old:
            self.check_batches(part)
        for part in merged:
            self.check_slots(part)
        try:
            counted, duplicates = _write_part(
                connection,
                self._lake,
                new,
                [part.batches for part in old],
                merged,
                self._slot_ns,
                (drafts[slots], drafts[batches]),
            )
            part = SlotPart(
                slots=slots,
                batches=batches,
                slot_rows=int(pq.read_metadata(drafts[slots]).num_rows),
                slots_bytes=drafts[slots].stat().st_size,
                slots_sha256=seals.digest_of(drafts[slots]),
                batches_sha256=seals.digest_of(drafts[batches]),
            )
            for name, draft in drafts.items():
                self._lake.objects.publish(draft, name)
                published.append(name)
            through = dict(before.through) if before is not None else {}
            for segment in new:
                through[segment.origin] = max(segment.last, through.get(segment.origin, -1))
            manifest = SlotManifest(
                number=number,
                slot_s=self._slot_ns / 1e9,
                through=through,
                parts=(part,) if merged else (*old, part),
                segments=(before.segments if before else 0) + len(new),
                samples=(before.samples if before else 0) + counted,
                duplicates=(before.duplicates if before else 0) + duplicates,
                created_unix_ns=time.time_ns(),
                code_version=metadata.version("whitepanda"),
                seal=seals.PLACE,
            )
            name = self._name(day, number)
            data = seals.sealed(msgspec.json.encode(manifest) + b"\n", name)
            self._lake.objects.create(name, data)
        except BaseException as error:
            for draft in drafts.values():
                draft.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                now = None if isinstance(error, FileExistsError) else self.manifest(day)
                if now is None or now.number < number:  # else it may be this very one
                    for name in published:
                        self._lake.objects.remove(name)
            raise
        return msgspec.json.decode(data, type=SlotManifest)

    def _read(self, name: str) -> SlotManifest:
        data = self._lake.objects.read(name)
        seals.check_text(self._lake.name, name, data, self._remedy(name))
        try:
            schema = msgspec.json.decode(data, type=_SchemaOnly).schema
            if schema > SLOT_SCHEMA_VERSION:
                raise LakeError(
                    f"{self._lake.name}/{name} has schema {schema}, this central reads up to {SLOT_SCHEMA_VERSION}; "
                    "update central"
                )
            return msgspec.json.decode(data, type=SlotManifest)
        except msgspec.MsgspecError as error:
            raise DamagedError(self._lake.name, name, str(error), self._remedy(name)) from error

    def _folder(self, day: date) -> str:
        return f"{self._root}/day={day.isoformat()}"

    def _name(self, day: date, number: int) -> str:
        return f"{self._folder(day)}/{number:08d}.json"


class _SchemaOnly(msgspec.Struct):
    schema: int


def _write_part(
    connection: duckdb.DuckDBPyConnection,
    lake: Lake,
    new: list[Segment],
    old_batches: list[str],
    merged: tuple[SlotPart, ...],
    slot_ns: int,
    files: tuple[Path, Path],
) -> tuple[int, int]:
    """Write the slots and batches of new segments, with those of `merged` parts. Returns windows and duplicates.

    Where journals share a batch, or an older part has it, the windows of the one first in name count. Rows of one
    batch and day are in one segment, so a segment is a batch's place.
    """
    columns = (
        "host, spool_id, sequence, start_unix_ns, duration_ns, machine, vm, job, platform, latency_sensitive"
    )
    values = ("cpi", "cpu_usage_cores", "cycles", "instructions")
    by_origin: dict[str, list[str]] = defaultdict(list)
    for segment in new:
        lacking = set(values) - set(segment.columns())
        chosen = ", ".join(f"NULL AS {name}" if name in lacking else name for name in values)
        by_origin[segment.origin].append(
            f"SELECT {_text(segment.origin)} AS origin, {columns}, {chosen} FROM read_parquet([{_text(segment.path)}])"
        )
    rows = " UNION ALL ".join(query for queries in by_origin.values() for query in queries)
    connection.execute(f"CREATE OR REPLACE TEMP VIEW new_rows AS {rows}")
    known = ", ".join(_text(lake.objects.local(name)) for name in old_batches)
    connection.execute(
        "CREATE OR REPLACE TEMP VIEW known AS "
        + (
            f"SELECT host, spool_id, first, last FROM read_parquet([{known}])"
            if known
            else "SELECT '' AS host, '' AS spool_id, 0::UBIGINT AS first, 0::UBIGINT AS last WHERE false"
        )
    )
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE taken AS SELECT host, spool_id, sequence, min(origin) AS origin FROM new_rows "
        "WHERE NOT EXISTS (SELECT 1 FROM known WHERE known.host = new_rows.host AND known.spool_id = new_rows.spool_id "
        "AND new_rows.sequence BETWEEN known.first AND known.last) GROUP BY host, spool_id, sequence"
    )
    connection.execute(
        "CREATE OR REPLACE TEMP VIEW rows_once AS SELECT new_rows.* FROM new_rows "
        "SEMI JOIN taken USING (host, spool_id, sequence, origin)"
    )
    slots_file, batches_file = files
    sums = _slot_sums(slot_ns)
    if merged:
        paths = ", ".join(_text(lake.objects.local(part.slots)) for part in merged)
        totals = ", ".join(
            f"sum({name})::{'BIGINT' if SLOTS.field(name).type == pa.int64() else 'DOUBLE'} AS {name}"
            for name in _SUMS
        )
        sums = (
            f"SELECT {', '.join(_KEYS)}, {totals} FROM (({sums}) UNION ALL SELECT {', '.join(SLOTS.names)} "
            f"FROM read_parquet([{paths}])) GROUP BY {', '.join(_KEYS)}"
        )
    connection.execute(f"COPY ({sums}) TO {_text(slots_file)} (FORMAT parquet, COMPRESSION zstd)")
    connection.execute(
        f"COPY ({_ranges(is_with_known=bool(merged))}) TO {_text(batches_file)} (FORMAT parquet, COMPRESSION zstd)"
    )
    counted, total = connection.execute(
        "SELECT (SELECT count(*) FROM rows_once), (SELECT count(*) FROM new_rows)"
    ).fetchall()[0]
    connection.execute("DROP TABLE taken")
    return int(counted), int(total) - int(counted)


def _slot_sums(slot_ns: int) -> str:
    """Return the sums of `SLOTS` over the view rows_once, as `central.engine.task_slots` weighs them."""
    usage, cpi = "cpu_usage_cores", "cpi::DOUBLE"
    has_usage = f"{usage} IS NOT NULL AND NOT isnan({usage})"
    has_cpi = f"{cpi} IS NOT NULL AND NOT isnan({cpi})"
    return (
        f"SELECT machine, start_unix_ns - start_unix_ns % {slot_ns} AS slot_start_ns, vm, job, platform, "
        "latency_sensitive, count(*) AS windows, sum(duration_ns)::BIGINT AS duration_ns, "
        f"sum({usage} * duration_ns) FILTER ({has_usage}) AS usage_core_ns, "
        f"coalesce(sum(duration_ns) FILTER ({has_usage}), 0)::BIGINT AS usage_time_ns, "
        f"sum({cpi} * duration_ns) FILTER ({has_cpi}) AS cpi_ns, "
        f"coalesce(sum(duration_ns) FILTER ({has_cpi}), 0)::BIGINT AS cpi_time_ns, "
        "sum(cycles)::BIGINT AS cycles, sum(instructions)::BIGINT AS instructions "
        "FROM rows_once WHERE duration_ns > 0 GROUP BY ALL"
    )


def _ranges(*, is_with_known: bool) -> str:
    """Return the query of the batches taken, as ranges of sequence numbers without a gap."""
    runs = (
        "SELECT host, spool_id, min(sequence) AS first, max(sequence) AS last FROM (SELECT host, spool_id, sequence, "
        "sequence::HUGEINT - row_number() OVER (PARTITION BY host, spool_id ORDER BY sequence) AS run FROM taken) "
        "GROUP BY host, spool_id, run"
    )
    return f"{runs} UNION ALL SELECT host, spool_id, first, last FROM known" if is_with_known else runs


def _text(value: Path | str) -> str:
    """Quote for SQL."""
    return "'" + str(value).replace("'", "''") + "'"
