"""A VM's windows, straight from the lake's segments: only what may have them is read."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from central.lake import DAY_NS, Lake, LakeError, Segment, day_of
from whitepanda.v1 import fleet_pb2

__all__ = ["SlowError", "VmWindows"]

_KNOWN_SEGMENTS = 20_000
_SHOWN = ("machine", "start_unix_ns", "duration_ns", "cpi", "cpu_usage_cores")
_BATCH = ("host", "spool_id", "sequence")
_EVER = (-(2**63), 2**63 - 1)

#: Of each row group the least and the greatest `start_unix_ns`.
_Times = tuple[tuple[int, int], ...]


class SlowError(Exception):
    """The answer takes too long."""


class VmWindows:
    """Reads windows of one VM. Safe in threads.

    Segments never change, so which times their row groups have is read once; of a group that has the time wanted the
    column `vm` is read, and the others only where the VM is in it.

    Args:
        lake: where the segments are.
        deadline_s: of one question.

    """

    def __init__(self, lake: Lake, deadline_s: float = 20.0) -> None:
        self._lake = lake
        self._deadline_s = deadline_s
        self._times: dict[str, _Times] = {}

    def read(self, vm: str, since: int, until: int, limit: int) -> list[fleet_pb2.VmWindow]:
        """Return the last `limit` windows of a VM that start in [since, until), oldest first, each batch once.

        Times are nanoseconds since 1970.

        Raises:
            SlowError: it takes longer than `deadline_s`.
            LakeError: a segment is damaged, or of a newer central.
            OSError: the lake cannot be read.

        """
        give_up_at_s = time.monotonic() + self._deadline_s
        try:
            found = self._read(vm, since, until, give_up_at_s)
        except FileNotFoundError:  # merged into another segment since it was listed
            found = self._read(vm, since, until, give_up_at_s)
        found = sorted(found, key=lambda row: (row["start_unix_ns"], row["machine"]))[-limit:]
        return [
            fleet_pb2.VmWindow(
                host=row["machine"],
                start_unix_ns=row["start_unix_ns"],
                duration_ns=row["duration_ns"],
                cpi=math.nan if row["cpi"] is None else row["cpi"],
                cpu_usage_cores=row["cpu_usage_cores"],
            )
            for row in found
        ]

    def _read(self, vm: str, since: int, until: int, give_up_at_s: float) -> list[dict[str, Any]]:
        """Return the rows; of a batch that several journals took, those of the origin that `Lake.samples` reads."""
        origins: dict[tuple[Any, ...], str] = {}
        rows: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for segment in self._segments(since, until):
            if time.monotonic() > give_up_at_s:
                raise SlowError(f"took longer than {self._deadline_s:g} s")
            for row in self._rows(segment, vm, since, until):
                batch = (*(row[name] for name in _BATCH), row["start_unix_ns"] // DAY_NS)
                origin = origins.setdefault(batch, segment.origin)
                if segment.origin < origin:
                    origins[batch], rows[batch] = segment.origin, [row]
                elif segment.origin == origin:
                    rows.setdefault(batch, []).append(row)
        return [row for found in rows.values() for row in found]

    def _segments(self, since: int, until: int) -> Iterator[Segment]:
        day, last = day_of(since), day_of(max(since, until - 1))
        while day <= last:
            yield from self._lake.segments(day)
            day += timedelta(days=1)

    def _rows(self, segment: Segment, vm: str, since: int, until: int) -> Iterator[dict[str, Any]]:
        times = self._times_of(segment)
        groups = [k for k, (first, last) in enumerate(times) if first < until and last >= since]
        if not groups:
            return
        try:
            with (
                segment.objects.open(segment.key) as source,
                pq.ParquetFile(source, read_dictionary=["vm"]) as file,
            ):
                for group in groups:
                    is_vm = _equal(file.read_row_group(group, columns=["vm"], use_threads=False), vm)
                    if is_vm is None:
                        continue
                    table = file.read_row_group(group, columns=[*_BATCH, *_SHOWN], use_threads=False)
                    starts = table.column("start_unix_ns")
                    in_time = pc.and_(pc.greater_equal(starts, since), pc.less(starts, until))
                    yield from table.filter(pc.and_(is_vm, in_time)).to_pylist()
        except pa.ArrowException as error:
            raise LakeError(f"{segment.objects.root}/{segment.key} is damaged: {error}") from error

    def _times_of(self, segment: Segment) -> _Times:
        known = self._times.get(segment.key)
        if known is None:
            column = segment.columns().index("start_unix_ns")  # tells of a newer central
            footer = segment.footer
            known = tuple(_range(footer.row_group(k).column(column)) for k in range(footer.num_row_groups))
            if len(self._times) >= _KNOWN_SEGMENTS:
                self._times.clear()
            self._times[segment.key] = known
        return known


def _equal(table: pa.Table, vm: str) -> pa.ChunkedArray | None:
    """Return which rows are the VM's; None where none is. A dictionary of the column tells it at once."""
    chunks, is_there = [], False
    for chunk in table.column("vm").chunks:
        at = chunk.dictionary.index(vm).as_py()
        is_there = is_there or at >= 0
        chunks.append(pc.equal(chunk.indices, at))
    return pa.chunked_array(chunks, pa.bool_()) if is_there else None


def _range(column: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return the least and the greatest value; where the footer does not tell, anything."""
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max:
        return _EVER
    return statistics.min, statistics.max
