"""Windows rolled up to slots: what builds read, and what stays when a day's raw samples are deleted.

    <root>/slots/slot=300/day=YYYY-MM-DD/<n>.json, <n>-<random>-{slots,batches}.parquet

`<n>.json` lists what has been rolled up: per journal the last roll, and the parts that hold it. Each is created
exclusively (`central.lake.manifests`) and replaces all before it, so a window is counted once even if two builders
work, and a kill at any point leaves only files that no manifest names. A part has sums per task and slot, which add up
exactly with other parts' sums, and its batches, so that a batch which another replica took too is left out, even after
the samples were deleted.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from importlib import metadata
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from central.lake import checksums
from central.lake.errors import DamagedError, LakeError
from central.lake.manifests import ManifestCommit, read_manifest
from central.lake.segments import Lake, Segment, day_in
from central.roll_ups.failing_machines import failing, is_of_memory, is_of_rows
from central.roll_ups.sql import KEYS, MOST, SLOTS, SUMS, write_part
from whitepanda.common import log

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb
    import ibis.expr.types as ir


#: Of the manifests and the files that they name.
SLOT_SCHEMA_VERSION = 1

_MAX_PARTS = 16  # of a day; one more, and they become one
_GROWTH = 2  # a part with fewer rows than this many times all later ones is merged with them
_TRIES = 5  # when another builder rolls up the same day


class SlotPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a day: names of its two files in the lake."""

    slots: str
    batches: str
    slot_rows: int
    slots_bytes: int
    slots_sha256: str
    batches_sha256: str


class RolledSegment(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A segment that is in the slots: first and last journal row of its rolls, and its rows."""

    first: int
    last: int
    rows: int


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
    machines_left_out: tuple[str, ...] = ()  # whose rows could not be rolled up
    rolled: dict[str, tuple[RolledSegment, ...]]  # by origin
    seal: str


class SlotStore:
    """The slots of a lake, of length `slot_ns`."""

    def __init__(self, lake: Lake, slot_ns: int) -> None:
        self._lake = lake
        self._slot_ns = slot_ns
        self._log = log.get("builds")
        self._root = f"slots/slot={slot_ns / 1e9:g}"
        #: Machines that are known to be left out; a warning names each once.
        self.known_left_out: set[str] = set()

    def manifests(self, damaged: list[DamagedError] | None = None) -> dict[date, SlotManifest]:
        """Return the newest manifest of each day that has been rolled up.

        `damaged` gets the errors of the damaged ones, whose days are left out; without it the first is raised.
        LakeError: another version of central wrote one. OSError: the lake cannot be read.
        """
        newest: dict[date, str] = {}
        for entry in self._lake.objects.entries(self._root):
            day = day_in(entry.name.rpartition("/")[0].rpartition("/")[2])
            if day is not None and entry.name.endswith(".json"):
                newest[day] = max(newest.get(day, ""), entry.name)
        found: dict[date, SlotManifest] = {}
        for day, name in sorted(newest.items()):
            try:
                found[day] = self.read_manifest(name)
            except DamagedError as error:
                if damaged is None:
                    raise
                damaged.append(error)
        return found

    def manifest(self, day: date) -> SlotManifest | None:
        """Return the newest manifest of a day, or None."""
        name = self.newest(day)
        return self.read_manifest(name) if name is not None else None

    def newest(self, day: date) -> str | None:
        """Return the name of a day's newest manifest, or None. A manifest of a name never changes."""
        names = [entry.name for entry in self._lake.objects.entries(self.folder(day)) if entry.name.endswith(".json")]
        return max(names, default=None)

    def roll_up(
        self, day: date, connection: duckdb.DuckDBPyConnection, check: Callable[[], None] = lambda: None
    ) -> SlotManifest | None:
        """Roll up what is new of a day and return its newest manifest; None for a day without samples.

        A window that comes late is in a later part. If memory is short for all segments, fewer are rolled up at a time,
        and parts are not merged. `check` is called as the work goes on, to renew the lease, and raises if it is to end.

        LakeError: segments are damaged or of another version of central; or the lake's rolls are not in order. OSError:
        the lake cannot be read or written. What was rolled up before stays.
        """
        at_once, tries, is_short = sys.maxsize, 0, False
        while tries < _TRIES:
            before = self.manifest(day)
            new = self.not_yet(day, before)
            if not new:
                return before
            some = new[:at_once]
            try:
                done = self._add(day, before, some, connection, check, is_short=is_short)
            except FileExistsError:
                tries += 1  # another builder was quicker; it may have rolled up the very same segments
            except Exception as error:
                if not is_of_memory(error) or (is_short and len(some) == 1):
                    raise
                at_once, is_short = max(1, len(some) // 2), True
                connection.execute("SET threads = 1")
            else:
                if len(some) == len(new):
                    return done
        raise LakeError(f"{self._lake.name}: other builders keep rolling up {day}; is there more than one lease?")

    def read(self, connection: Any, manifests: Iterable[SlotManifest]) -> ir.Table:
        """Return the task slots of days as an Ibis table, like `central.build.panda_state.task_slots` of their samples.

        The columns are those of `SLOTS`, and usage and cpi: means weighted by duration; null: not known.

        DamagedError: a file is not what was written. OSError: the lake cannot be read.
        """
        import ibis  # noqa: PLC0415 - takes a second, and only builds need it

        manifests = list(manifests)
        names = [part.slots for manifest in manifests for part in manifest.parts]
        if not names:
            return ibis.memtable(SLOTS.empty_table()).mutate(usage=ibis.null("float64"), cpi=ibis.null("float64"))
        for manifest in manifests:
            for part in manifest.parts:
                self.check(part, batches=False)
        paths = [str(self._lake.objects.local(name)) for name in names]
        rows = connection.read_parquet(paths).select(*SLOTS.names)
        if len(names) > 1:
            rows = rows.group_by(KEYS).aggregate(**{name: _added_up(rows, name) for name in SUMS})
        return rows.mutate(
            usage=rows.cpu_usage_cores_ns / rows.cpu_usage_cores_time_ns.nullif(0),
            cpi=rows.cpi_ns / rows.cpi_time_ns.nullif(0),
        )

    def machines(self, manifest: SlotManifest) -> list[str]:
        """Return the machines of a day's slots, those with few rows first."""
        return _machines(self._lake.objects.local(part.slots) for part in manifest.parts)

    def check(self, part: SlotPart, *, slots: bool = True, batches: bool = True) -> None:
        """Compare a part's files with their digests (DamagedError); raises OSError."""
        wanted = {part.slots: part.slots_sha256} if slots else {}
        if batches:
            wanted[part.batches] = part.batches_sha256
        for name, digest in wanted.items():
            checksums.check_digest(self._lake.name, name, self._lake.objects.local(name), digest, self._remedy(name))

    @staticmethod
    def _remedy(name: str) -> str:
        return (
            f"restore it from a copy, or delete {name.rpartition('/')[0]}: the day is then rolled up again from its "
            "samples, as far as these are still there"
        )

    def remove_unused(self, older_than_s: float) -> int:
        """Delete files this old that no day's newest manifest names; returns how many.

        All files stay of a day whose newest manifest is damaged.
        """
        used: set[str] = set()
        damaged: list[DamagedError] = []
        for day, manifest in self.manifests(damaged).items():
            used.add(self._name(day, manifest.number))
            used.update(name for part in manifest.parts for name in (part.slots, part.batches))
        unknown = {error.name.rpartition("/")[0] for error in damaged}
        until = time.time() - older_than_s
        unused = [
            entry.name
            for entry in self._lake.objects.entries(self._root)
            if entry.name not in used
            and entry.name.rpartition("/")[0] not in unknown
            and entry.modified_unix_s <= until
        ]
        for name in unused:
            self._lake.objects.remove(name)
        return len(unused)

    def remove(self, day: date) -> None:
        """Delete a day: older manifests, then the newest one, then the files. A kill leaves no half day."""
        names = [entry.name for entry in self._lake.objects.entries(self.folder(day))]
        for name in sorted(names, key=lambda name: (not name.endswith(".json"), name)):
            self._lake.objects.remove(name)

    def not_yet(self, day: date, manifest: SlotManifest | None) -> list[Segment]:
        """Return the day's segments that are not in the parts of a manifest, by journal and in the order of rolls.

        LakeError: a compacted segment is in them in part.
        """
        through = manifest.through if manifest is not None else {}
        new = []
        for segment in self._lake.segments(day):
            done = through.get(segment.origin, -1)
            if segment.first <= done < segment.last:
                raise LakeError(
                    f"{self._lake.name}/{segment.key} is compacted from rolls of which only some are in the slots of "
                    f"{self._slot_ns / 1e9:g} s; delete {self.folder(day)} to have the day rolled up again"
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
        check: Callable[[], None],
        *,
        is_short: bool,  # of memory
    ) -> SlotManifest:
        number, old = (before.number + 1, before.parts) if before else (1, ())
        stem = f"{self.folder(day)}/{number:08d}-{secrets.token_hex(4)}"
        slots, batches = f"{stem}-slots.parquet", f"{stem}-batches.parquet"
        merged = () if is_short else _small_parts(old, before, new)
        for segment in new:
            with segment.path.open("rb") as file:
                segment.check(file)
        for part in old:
            self.check(part, slots=part in merged)
        with ManifestCommit(self._lake.objects, self._name(day, number)) as commit:
            files = commit.draft(slots), commit.draft(batches)
            older = [part.batches for part in old], merged
            counted, duplicates, left_out = self._written(
                connection, new, older, files, check, may_leave_out_for_memory=is_short and len(new) == 1
            )
            part = SlotPart(
                slots=slots,
                batches=batches,
                slot_rows=int(pq.read_metadata(files[0]).num_rows),
                slots_bytes=files[0].stat().st_size,
                slots_sha256=commit.publish(slots),
                batches_sha256=commit.publish(batches),
            )
            through, rolled = (dict(before.through), dict(before.rolled)) if before else ({}, {})
            for segment in new:
                through[segment.origin] = max(segment.last, through.get(segment.origin, -1))
                entry = RolledSegment(segment.first, segment.last, segment.rows)
                rolled[segment.origin] = (*rolled.get(segment.origin, ()), entry)
            manifest = SlotManifest(
                number=number,
                slot_s=self._slot_ns / 1e9,
                through=through,
                parts=(*old[: len(old) - len(merged)], part),
                segments=(before.segments if before else 0) + len(new),
                samples=(before.samples if before else 0) + counted,
                duplicates=(before.duplicates if before else 0) + duplicates,
                created_unix_ns=time.time_ns(),
                code_version=metadata.version("whitepanda"),
                machines_left_out=tuple(sorted({*(before.machines_left_out if before else ()), *left_out})),
                rolled=rolled,
                seal=checksums.PLACE,
            )
            # The replica that has the lease by now may have merged some of the new segments.
            if not {segment.key for segment in new} <= {segment.key for segment in self._lake.segments(day)}:
                raise FileExistsError(self._name(day, number))
            data = commit.create(msgspec.json.encode(manifest) + b"\n")
        return msgspec.json.decode(data, type=SlotManifest)

    def _written(
        self,
        connection: duckdb.DuckDBPyConnection,
        new: list[Segment],
        before: tuple[list[str], Sequence[SlotPart]],
        files: tuple[Path, Path],
        check: Callable[[], None],
        *,
        may_leave_out_for_memory: bool,
    ) -> tuple[int, int, list[str]]:
        """Write a part. Returns windows, duplicates, and the machines whose rows make it fail and are left out."""

        def write(without: Sequence[str] = ()) -> tuple[int, int]:
            batches, merged = before
            names = [(part.slots, part.batches) for part in merged]
            return write_part(connection, self._lake, new, batches, names, self._slot_ns, files, check, without)

        try:
            return (*write(), [])
        except Exception as error:
            if not is_of_rows(error) or (is_of_memory(error) and not may_leave_out_for_memory):
                raise
            left_out = failing(_machines(segment.path for segment in new), error, write)
            if new_ones := sorted(set(left_out) - self.known_left_out):
                self.known_left_out.update(new_ones)
                why = (str(error).splitlines() or [""])[0]
                self._log.warning("rows of machines cannot be rolled up and are left out", machines=new_ones, error=why)
            return (*write(left_out), left_out)

    def read_manifest(self, name: str) -> SlotManifest:
        """Return the manifest of a name. DamagedError: it is not what was written; LakeError: of another version."""
        data = read_manifest(self._lake.objects, name, self._remedy(name))
        try:
            schema = msgspec.json.decode(data, type=_SchemaOnly).schema
            if schema != SLOT_SCHEMA_VERSION:
                raise LakeError(
                    f"{self._lake.name}/{name} has schema {schema}, this central reads {SLOT_SCHEMA_VERSION}; "
                    "use the version of central that wrote it"
                )
            return msgspec.json.decode(data, type=SlotManifest)
        except msgspec.MsgspecError as error:
            raise DamagedError(self._lake.name, name, str(error), self._remedy(name)) from error

    def folder(self, day: date) -> str:
        """Return the folder of a day's slots within the lake."""
        return f"{self._root}/day={day.isoformat()}"

    def _name(self, day: date, number: int) -> str:
        return f"{self.folder(day)}/{number:08d}.json"


def _small_parts(parts: tuple[SlotPart, ...], before: SlotManifest | None, new: list[Segment]) -> tuple[SlotPart, ...]:
    """Return the last parts, to be merged with new segments: a day has few parts, and few rows are written often."""
    if before is None or not before.samples:
        return ()
    later = sum(segment.rows for segment in new) * sum(part.slot_rows for part in parts) / before.samples
    first = len(parts)
    while first and (parts[first - 1].slot_rows < _GROWTH * later or len(parts) >= _MAX_PARTS):
        first -= 1
        later += parts[first].slot_rows
    return parts[first:]


def _added_up(rows: ir.Table, name: str) -> ir.Value:
    """Return how a column of several parts adds up, as `central.roll_ups.sql.added_up`."""
    column = rows[name]
    if name.endswith(("_min", "_max")):
        return column.min() if name.endswith("_min") else column.max()
    return column.sum() if SLOTS.field(name).type == pa.float64() else column.sum().clip(upper=MOST)


def _machines(paths: Iterable[Path]) -> list[str]:
    """Return the machines of files, those with few rows first."""
    rows: Counter[str] = Counter()
    for path in paths:
        with pq.ParquetFile(path, read_dictionary=["machine"]) as file:
            for batch in file.iter_batches(columns=["machine"]):
                for found in pc.value_counts(batch["machine"].cast(pa.string())).to_pylist():
                    rows[found["values"]] += found["counts"]
    return [name for name, _ in sorted(rows.items(), key=lambda each: (each[1], each[0]))]


class _SchemaOnly(msgspec.Struct):
    schema: int
