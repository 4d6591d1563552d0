"""The lake: immutable Parquet segments by day, and the view that builds read.

    <root>/samples/day=YYYY-MM-DD/<replica>-<n>.parquet

The day is that of `start_unix_ns` in UTC. `<n>` is `<journal>-<first row>`: the journal's incarnation and the first
journal row that was rolled, so that repeating a roll after a crash writes the same files, and a journal that was made
anew never writes over an older one's. One roll writes at most one file per day.

A file that is being written ends in `.tmp`; it is flushed, renamed and its folder flushed, so a name that ends in
`.parquet` is always a whole segment.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from central.schema import SAMPLES, SCHEMA_VERSION
from whitepanda.common.durable import sync_folder

if TYPE_CHECKING:
    import ibis.expr.types as ir

__all__ = ["DAY_NS", "Lake", "Segment", "day_of", "segment_stem"]

DAY_NS = 86_400 * 10**9
_OPEN_FILES = 64  # at once
_EPOCH = date(1970, 1, 1)
_NAME = re.compile(r"^(?P<replica>[A-Za-z0-9-]+)-(?P<journal>[0-9a-f]{8})-(?P<first>\d{12,19})\.parquet$")


@dataclass(frozen=True)
class Segment:
    """One file of the lake. Rows of one batch are in segments of one `stem` only, unless two origins both took it."""

    path: Path
    day: date

    @property
    def name(self) -> str:
        """Return what identifies the segment within the lake, `day=<day>/<replica>-<n>`."""
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def origin(self) -> str:
        """The journal that the segment came from, as `<replica>-<journal>`; within one, no batch is there twice."""
        return self.path.stem.rpartition("-")[0]

    @cached_property
    def footer(self) -> pq.FileMetaData:
        """The Parquet footer: number of rows, and the provenance in its key-value metadata."""
        return pq.read_metadata(self.path)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.footer.num_rows)


def segment_stem(replica: str, journal_id: str, first_row: int) -> str:
    """Return the name of a roll's files, without the ending.

    Args:
        replica: letters, digits and "-".
        journal_id: 8 hexadecimal digits, the journal's incarnation.
        first_row: number of the roll's first row in the journal.

    """
    return f"{replica}-{journal_id}-{first_row:012d}"


class Lake:
    """Segments below a folder. It keeps nothing in memory: several processes may read while one replica writes."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self.samples_dir = self.root / "samples"

    def days(self) -> list[date]:
        """Return the days that have segments, ascending."""
        return sorted(day for day, folder in self._folders() if any(self._segments_in(day, folder)))

    def segments(self, day: date | None = None) -> list[Segment]:
        """Return the segments of one day, or all of them, by day and name."""
        found = [
            segment
            for each, folder in self._folders()
            if day is None or each == day
            for segment in self._segments_in(each, folder)
        ]
        return sorted(found, key=lambda segment: (segment.day, segment.path.name))

    def write_segment(
        self, table: pa.Table, stem: str, provenance: dict[str, str] | None = None
    ) -> list[Segment]:
        """Write one roll of a single table; see `write_pieces`."""
        return self.write_pieces(lambda: iter((table,)), stem, provenance)

    def write_pieces(
        self,
        pieces: Callable[[], Iterator[pa.Table]],
        stem: str,
        provenance: dict[str, str] | None = None,
    ) -> list[Segment]:
        """Write one roll: a file per day of `start_unix_ns`, each on disk and whole under its name when this returns.

        One piece is in memory at a time; its rows of a day are a row group of that day's file. So that there are
        never many files open, a roll of many days is gone through more than once.

        Args:
            pieces: begins anew at each call, with the same tables; rows of schema `central.schema.SAMPLES`. Pieces
                without rows write nothing.
            stem: from `segment_stem`. Files of that name are replaced: the caller repeats the very same roll.
            provenance: goes into the footers as `whitepanda.<key>`, beside the schema's and the product's version.

        Returns:
            The segments, by day.

        Raises:
            OSError: the disk is full or not writable. Nothing is left half written under a segment's name.

        """
        facts = {
            "schema": str(SCHEMA_VERSION),
            "version": metadata.version("whitepanda"),
            **(provenance or {}),
        }
        schema = SAMPLES.with_metadata(
            {f"whitepanda.{key}".encode(): value.encode() for key, value in facts.items()}
        )
        written: dict[int, Segment] = {}
        is_complete = False
        while not is_complete:
            done, is_complete = set(written), True
            with contextlib.ExitStack() as stack:
                files: dict[int, _SegmentFile] = {}
                for piece in pieces():
                    for number, rows in _by_day(piece):
                        if number in done:
                            continue
                        if number not in files and len(files) >= _OPEN_FILES:
                            is_complete = False
                            continue
                        if number not in files:
                            day = _EPOCH + timedelta(days=number)
                            path = self.samples_dir / f"day={day.isoformat()}" / f"{stem}.parquet"
                            files[number] = stack.enter_context(_SegmentFile(path, schema))
                            written[number] = Segment(path, day)
                        files[number].write(rows)
                for file in files.values():
                    file.finish()
        return [written[number] for number in sorted(written)]

    def remove_unfinished(self, origin: str) -> int:
        """Delete what a killed `write_segment` of this origin (see `Segment`) left behind. Returns how many files."""
        left = [path for _, folder in self._folders() for path in folder.glob(f"{origin}-*.parquet.tmp")]
        for path in left:
            path.unlink(missing_ok=True)
        return len(left)

    def samples(self, connection: Any, days: Iterable[date] | None = None) -> ir.Table:
        """Return the reading view as an Ibis table with the columns of `central.schema.SAMPLES`: every batch once.

        A batch (host, spool_id, sequence) that more than one journal took (an agent went from one replica to another
        before it got its acknowledgement) is read from one of them; within a journal there are no duplicates. So one
        day's rows are the same whether that day is read alone or together with others.

        Args:
            connection: an Ibis backend, such as `ibis.duckdb.connect()`.
            days: only these; None means all. Days without segments add nothing.

        """
        import ibis  # noqa: PLC0415 - takes a second to import, and ingest does not need it

        by_origin: dict[str, list[str]] = defaultdict(list)
        wanted = None if days is None else set(days)
        for segment in self.segments():
            if wanted is None or segment.day in wanted:
                by_origin[segment.origin].append(str(segment.path))
        if not by_origin:
            return ibis.memtable(SAMPLES.empty_table())
        tables = {
            origin: connection.read_parquet(paths).select(*SAMPLES.names)
            for origin, paths in sorted(by_origin.items())
        }
        if len(tables) == 1:
            return next(iter(tables.values()))
        labelled = [table.mutate(_origin=ibis.literal(origin)) for origin, table in tables.items()]
        union = ibis.union(*labelled).mutate(_day=lambda table: table.start_unix_ns // DAY_NS)
        key = ["host", "spool_id", "sequence", "_day"]
        first = union.group_by(key).aggregate(_first=union._origin.min())  # noqa: SLF001 - a column of ours
        joined = union.join(first, key)
        return joined.filter(joined._origin == joined._first).select(*SAMPLES.names)  # noqa: SLF001 - the same

    def _folders(self) -> Iterator[tuple[date, Path]]:
        try:
            entries = list(os.scandir(self.samples_dir))
        except FileNotFoundError:
            return
        for entry in entries:
            text = entry.name.removeprefix("day=")
            try:
                day = date.fromisoformat(text)
            except ValueError:
                continue
            if entry.name == f"day={day.isoformat()}":
                yield day, Path(entry.path)

    @staticmethod
    def _segments_in(day: date, folder: Path) -> Iterator[Segment]:
        for path in folder.iterdir():
            if _NAME.match(path.name):
                yield Segment(path, day)


def day_of(unix_ns: int) -> date:
    """Return the UTC day of a time."""
    return datetime.fromtimestamp(unix_ns // 10**9, UTC).date()


def _by_day(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each day, with the day's number since 1970."""
    days = np.asarray(table.column("start_unix_ns").to_numpy()) // DAY_NS
    numbers = np.unique(days)
    for number in numbers:
        yield int(number), table if len(numbers) == 1 else table.filter(pa.array(days == number))


class _SegmentFile:
    """A segment on its way: written beside its place; `finish` flushes it and gives it its name.

    What is left without `finish` leaves nothing.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._unfinished = path.with_name(path.name + ".tmp")
        self._new_folders = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        self._schema = schema
        self._file = self._unfinished.open("wb")
        try:
            self._writer = pq.ParquetWriter(self._file, schema, compression="zstd")
        except BaseException:
            self._discard()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._file.closed:
            with contextlib.suppress(OSError, pa.ArrowException):  # it writes a footer; the disk may be full
                self._writer.close()
            self._discard()

    def write(self, rows: pa.Table) -> None:
        """Append a row group."""
        self._writer.write_table(rows.cast(self._schema))

    def finish(self) -> None:
        """Flush, rename, flush the folder (and its parents where they are new)."""
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._unfinished.replace(self._path)
        self._file.close()
        for folder in {self._path.parent, *(made.parent for made in self._new_folders)}:
            sync_folder(folder)

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        self._unfinished.unlink(missing_ok=True)
