"""The lake: immutable Parquet segments by day, and the view that builds read.

    <root>/samples/day=YYYY-MM-DD/<replica>-<n>.parquet

The day is the UTC day of `start_unix_ns`. `<n>` is `<journal>-<first row>`: the journal's incarnation and the first
journal row that was rolled, so a roll that is repeated after a crash writes the same files, and a new journal never
writes over an older one's. One roll writes at most one file per day.

A compacted segment is named `<first row>_<last row>`. It replaces the day's segments of that journal whose first rows
are in that range, even while they still exist (`central.roll_ups.compaction`): the replacement is atomic.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from central.lake import checksums, drafts
from central.lake.errors import DamagedError, LakeError
from central.lake.objects import Entry, Folder, NotRegularError, Objects, open_objects
from central.lake.replica_copies import samples_once
from central.lake.schema import SAMPLES, SCHEMA_VERSION, SPLIT_COLUMNS

if TYPE_CHECKING:
    import ibis.expr.types as ir

DAY_NS = 86_400 * 10**9
_OPEN_FILES = 64  # at a time
_EPOCH = date(1970, 1, 1)
_SAMPLES = "samples"
_REMEDY = (
    "restore it from a copy, or move it out of the lake: what of it is not yet in slots is then lost "
    "(all that is damaged: `whitepanda lake verify`)"
)
_NAME = re.compile(r"^(?P<origin>[A-Za-z0-9-]+-[0-9a-f]{8})-(?P<first>\d{12,19})(?:_(?P<last>\d{12,19}))?\.parquet$")


@dataclass(frozen=True)
class Segment:
    """One object of the lake. Rows of one batch and day are in one segment only, unless two origins both took it.

    `key` is its name in the lake, `origin` its journal, as `<replica>-<journal>`. `first` and `last` are the first
    journal rows of its first and its last roll; they differ in compacted segments only.
    """

    objects: Objects = field(repr=False, compare=False)
    key: str
    day: date
    origin: str
    first: int
    last: int
    size_bytes: int = field(default=0, compare=False)
    modified_unix_s: float = field(default=0.0, compare=False)

    @classmethod
    def of(cls, objects: Objects, entry: Entry) -> Self | None:
        """Return an object of the lake as a segment; None if its name is not a segment's."""
        folder, _, file = entry.name.rpartition("/")
        day, name = day_in(folder.removeprefix(f"{_SAMPLES}/")), _NAME.match(file)
        if day is None or name is None:
            return None
        first = int(name["first"])
        last = int(name["last"] or first)
        return cls(objects, entry.name, day, name["origin"], first, last, entry.size_bytes, entry.modified_unix_s)

    @property
    def name(self) -> str:
        """Return what identifies the segment within the lake, `day=<day>/<replica>-<n>`."""
        return self.key.removeprefix(f"{_SAMPLES}/").removesuffix(".parquet")

    @property
    def is_compacted(self) -> bool:
        """Whether it stands for several rolls."""
        return "_" in self.key.rpartition("-")[2]

    @property
    def path(self) -> Path:
        """A local file with the segment's bytes; in a folder the segment itself, DamagedError if it is not a file."""
        with self._regular():
            return self.objects.local(self.key)

    @property
    def footer(self) -> pq.FileMetaData:
        """The Parquet footer, not cached as it takes 50 KB of memory. Raises DamagedError."""
        with self.damage_raised(), self.objects.open(self.key) as file:
            return pq.read_metadata(file)

    @cached_property
    def _facts(self) -> tuple[int, int]:
        """The cached part of the footer: number of rows, schema version."""
        footer = self.footer
        schema = (footer.metadata or {}).get(b"whitepanda.schema", b"0")
        if not schema.isdigit():
            raise self._damaged(f"its schema is {schema[:20]!r}")
        return int(footer.num_rows), int(schema)

    def check(self, file: BinaryIO | None = None) -> None:
        """Verify the digest of the segment, or of the open `file`. Raises DamagedError or OSError."""
        with self._regular(), contextlib.nullcontext(file) if file else self.objects.open(self.key) as opened:
            checksums.check_file(self.objects.root, self.key, opened, _REMEDY)

    @contextlib.contextmanager
    def damage_raised(self) -> Iterator[None]:
        """Convert pyarrow's read errors to DamagedError. I/O errors pass unchanged."""
        with self._regular():
            try:
                yield
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, NotRegularError) or getattr(error, "errno", None) is not None:
                    raise
                raise self._damaged((str(error).splitlines() or [type(error).__name__])[0]) from error

    @contextlib.contextmanager
    def _regular(self) -> Iterator[None]:
        try:
            yield
        except NotRegularError as error:
            raise self._damaged("it is not a regular file, nor a link to one") from error

    def _damaged(self, why: str) -> DamagedError:
        return DamagedError(self.objects.root, self.key, why, _REMEDY)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._facts[0]

    def check_schema(self) -> None:
        """Make sure that it has the columns of `central.lake.schema.SAMPLES`; LakeError if not."""
        if (schema := self._facts[1]) != SCHEMA_VERSION:
            problem = f"{self.objects.root}/{self.key} has schema {schema}, this central reads {SCHEMA_VERSION}"
            raise LakeError(f"{problem}; use the version of central that wrote it")


def segment_stem(replica: str, journal_id: str, first_row: int) -> str:
    """Return the name of a roll's files without the ending; `journal_id` has 8 hexadecimal digits."""
    return f"{replica}-{journal_id}-{first_row:012d}"


class Lake:
    """Segments below a folder or `s3://bucket/prefix`. Nothing is kept in memory: several processes may read and write.

    `copies` and `options`: see `central.lake.objects.Bucket`.
    """

    def __init__(self, root: Path | str, copies: Path | None = None, options: dict[str, Any] | None = None) -> None:
        self.objects = open_objects(root, copies, options)
        self.is_folder = isinstance(self.objects, Folder)
        self.name = str(root)

    @property
    def root(self) -> Path:
        """The folder; LakeError if the lake is not one."""
        if not self.is_folder:
            raise LakeError(f"lake {self.name} is not a folder")
        return Path(self.name)

    @property
    def samples_dir(self) -> Path:
        """The folder of the segments; LakeError if the lake is not a folder."""
        return self.root / _SAMPLES

    def is_there(self) -> bool:
        """Whether the lake has a segment, slots or a version. Raises OSError."""
        starts = (f"{_SAMPLES}/day=", "slots/slot=", "versions/")
        found = ((entry, start) for start in starts for entry in self.objects.entries(start.partition("/")[0]))
        return any(entry.name.startswith(start) for entry, start in found)

    def days(self) -> list[date]:
        """Return the days that have segments, ascending."""
        return sorted({segment.day for segment in self.segments()})

    def segments(self, day: date | None = None) -> list[Segment]:
        """Return the segments of a day, or all, by day and name, without those that a compacted one replaces."""
        return without_superseded(self.all_segments(day))

    def all_segments(self, day: date | None = None) -> list[Segment]:
        """Return the segments of one day, or all, with those that a compacted one replaces."""
        prefix = _SAMPLES if day is None else f"{_SAMPLES}/day={day.isoformat()}"
        found = (Segment.of(self.objects, entry) for entry in self.objects.entries(prefix))
        return sorted(filter(None, found), key=lambda segment: (segment.day, segment.key))

    def write_segment(self, table: pa.Table, stem: str, provenance: dict[str, str] | None = None) -> list[Segment]:
        """Write one roll of a single table; see `write_pieces`."""
        return self.write_pieces(lambda: iter((table,)), stem, provenance)

    def write_pieces(
        self, pieces: Callable[[], Iterator[pa.Table]], stem: str, provenance: dict[str, str] | None = None
    ) -> list[Segment]:
        """Write one roll: a file per day of `start_unix_ns`, each on disk and whole under its name when this returns.

        One piece is in memory at a time; its rows of one day become one row group of that day's file. To limit the
        number of open files, the pieces of a roll of many days are read more than once.

        Args:
            pieces: yields the same tables at each call, of schema `central.lake.schema.SAMPLES`.
            stem: from `segment_stem`. Files of that name are replaced: the caller repeats the same roll.
            provenance: goes into the footers as `whitepanda.<key>`, next to the versions of schema and product.

        Returns the segments, by day; none without rows. OSError: the disk is full or not writable; nothing is left half
        written under a segment's name.
        """
        schema = stamped_schema(provenance)
        written: dict[int, Segment] = {}
        is_complete = False
        while not is_complete:
            done, is_complete = set(written), True
            with contextlib.ExitStack() as stack:
                files: dict[int, SegmentFile] = {}
                for number, rows in (found for piece in pieces() for found in _by_day(piece)):
                    if number in done:
                        continue
                    if number not in files:
                        if len(files) >= _OPEN_FILES:
                            is_complete = False
                            continue
                        written[number] = segment = self.segment(_EPOCH + timedelta(days=number), stem)
                        files[number] = stack.enter_context(SegmentFile(segment, schema))
                    files[number].write(rows)
                for file in files.values():
                    file.finish()
        return [written[number] for number in sorted(written)]

    def segment(self, day: date, stem: str) -> Segment:
        """Return the segment of a day and stem, which need not exist."""
        key = f"{_SAMPLES}/day={day.isoformat()}/{stem}.parquet"
        if (found := Segment.of(self.objects, Entry(key, 0, 0.0))) is None:
            raise ValueError(f"no stem of a segment: {stem}")
        return found

    def remove_unfinished(self, origin: str) -> int:
        """Delete drafts of this origin's segments (see `Segment`) whose writer is gone. Returns how many.

        Only for the process that holds that origin's journal: no other one writes its rolls. A compaction of its
        segments may run at the same time, also on another machine.
        """
        found = self.samples_dir.glob(f"day=*/{origin}-*.parquet*.tmp") if self.is_folder else ()
        own = ((path, "_" not in path.name.removeprefix(origin)) for path in list(found))
        return sum(drafts.remove_abandoned(path, is_own=is_own) for path, is_own in own)

    def samples(
        self, connection: Any, days: Iterable[date] | None = None, segments: Iterable[Segment] | None = None
    ) -> ir.Table:
        """Return the reading view as an Ibis table with the columns of `central.lake.schema.SAMPLES`: every batch once.

        `connection` is an Ibis backend. If `days` or `segments` is given, nothing else is read. Segments that share a
        batch must be given together or not at all.
        """
        by_origin: dict[str, list[str]] = defaultdict(list)
        wanted = None if days is None else set(days)
        for segment in self.segments() if segments is None else segments:
            if wanted is None or segment.day in wanted:
                segment.check_schema()
                by_origin[segment.origin].append(str(segment.path))
        return samples_once(connection, by_origin)


def without_superseded(segments: Iterable[Segment]) -> list[Segment]:
    """Drop the segments that a compacted segment of the same day and journal replaces; keep the order.

    Rolls of a journal are numbered upwards and the ranges of compacted segments are nested or disjoint, so a segment
    whose range lies in a longer one has been merged into that.
    """
    given = list(segments)
    reach: dict[tuple[date, str], int] = {}
    live: set[str] = set()
    for segment in sorted(given, key=lambda each: (each.first, -each.last, not each.is_compacted)):
        place = segment.day, segment.origin
        if segment.last > reach.get(place, -1):
            reach[place] = segment.last
            live.add(segment.key)
    return [segment for segment in given if segment.key in live]


def day_in(text: str) -> date | None:
    """Return the day of a folder's name `day=YYYY-MM-DD`, or None."""
    try:
        day = date.fromisoformat(text.removeprefix("day="))
    except ValueError:
        return None
    return day if text == f"day={day.isoformat()}" else None


def stamped_schema(provenance: dict[str, str] | None) -> pa.Schema:
    """Return the columns of a segment with what its footer says."""
    facts = {"schema": str(SCHEMA_VERSION), "version": metadata.version("whitepanda"), **(provenance or {})}
    return SAMPLES.with_metadata({f"whitepanda.{key}".encode(): value.encode() for key, value in facts.items()})


def day_of(unix_ns: int) -> date:
    """Return the UTC day of a time."""
    return datetime.fromtimestamp(unix_ns // 10**9, UTC).date()


def _by_day(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each day, with the day's number since 1970."""
    days = np.asarray(table.column("start_unix_ns").to_numpy()) // DAY_NS
    numbers = np.unique(days)
    for number in numbers:
        yield int(number), table if len(numbers) == 1 else table.filter(pa.array(days == number))


class SegmentFile:
    """Writes a segment as a draft; `finish` completes it and publishes it under its name, without it nothing is left.

    The file has a seal (`central.lake.checksums`), and its pages have checksums for other readers.
    """

    def __init__(self, segment: Segment, schema: pa.Schema) -> None:
        self._segment = segment
        self._draft = drafts.Draft(segment.objects.draft(segment.key))
        self._schema = schema
        self._file = self._draft.file
        try:
            self._writer = pq.ParquetWriter(
                self._file,
                schema,
                compression="zstd",
                write_page_checksum=True,
                use_dictionary=[name for name in schema.names if name not in SPLIT_COLUMNS],
                use_byte_stream_split=[name for name in schema.names if name in SPLIT_COLUMNS],
            )
        except BaseException:
            self._draft.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._file.closed:
            with contextlib.suppress(OSError, pa.ArrowException):  # it writes a footer; the disk may be full
                self._writer.close()
        self._draft.close()

    def write(self, rows: pa.Table) -> None:
        """Append a row group."""
        self._writer.write_table(rows.cast(self._schema))

    def finish(self) -> None:
        """Close the draft, seal it and publish it."""
        self._writer.add_key_value_metadata({checksums.SEGMENT_KEY: checksums.PLACE})
        self._writer.close()
        self._file.close()
        checksums.seal_file(self._draft.path, self._segment.key)
        self._segment.objects.publish(self._draft.path, self._segment.key)
