"""A VM's windows, straight from the lake's segments: only what may have them is read."""

import time
from collections import Counter
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from central.lake.errors import LakeError, SlowError
from central.lake.replica_copies import BATCH, rows_once
from central.lake.segment_times import SegmentTimes
from central.lake.segments import Segment
from whitepanda.common.protocol import or_nan
from whitepanda.v1 import fleet_pb2

_by_time = itemgetter("start_unix_ns", "machine")
_SAME = ("start_unix_ns", "duration_ns", "cpu_usage_cores")  # in the lake and in `VmWindow`
_SHOWN = ("machine", "cpi", *_SAME)


class VmWindows:
    """Reads windows of one VM, each question within `deadline_s`. Safe in threads.

    Of a row group with the wanted time (`times`) the column `vm` is read, and the others only if the VM is in it.
    """

    def __init__(self, times: SegmentTimes, deadline_s: float = 20.0) -> None:
        self._times = times
        self._deadline_s = deadline_s

    def read(self, vm: str, since: int, until: int, limit: int) -> list[fleet_pb2.VmWindow]:
        """Return the last `limit` windows of a VM that start in [since, until), oldest first, each batch once.

        If several hosts claim the VM, each has the same share of the windows. Times are nanoseconds since 1970.
        SlowError: it takes too long. LakeError: a segment is damaged, or another version's. OSError: unreadable lake.
        """
        give_up_at_s = time.monotonic() + self._deadline_s
        try:
            found = rows_once(self._read(vm, since, until, give_up_at_s))
        except FileNotFoundError:  # merged into another segment since it was listed
            found = rows_once(self._read(vm, since, until, give_up_at_s))
        places: Counter[str] = Counter()
        ranked = []
        for row in sorted(found, key=_by_time, reverse=True):
            ranked.append((places[row["machine"]], row))
            places[row["machine"]] += 1
        ranked.sort(key=itemgetter(0))
        found = sorted((row for _, row in ranked[:limit]), key=_by_time)
        return [
            fleet_pb2.VmWindow(host=row["machine"], cpi=or_nan(row["cpi"]), **{name: row[name] for name in _SAME})
            for row in found
        ]

    def _read(self, vm: str, since: int, until: int, give_up_at_s: float) -> Iterator[tuple[str, dict[str, Any]]]:
        for segment in self._times.segments(since, until):
            if time.monotonic() > give_up_at_s:
                raise SlowError(f"took longer than {self._deadline_s:g} s")
            for row in self._rows(segment, vm, since, until):
                yield segment.origin, row

    def _rows(self, segment: Segment, vm: str, since: int, until: int) -> Iterator[dict[str, Any]]:
        groups = self._times.row_groups(segment, since, until)
        if not groups:
            return
        try:
            with segment.objects.open(segment.key) as source, pq.ParquetFile(source, read_dictionary=["vm"]) as file:
                for group in groups:
                    is_vm = _equal(file.read_row_group(group, columns=["vm"], use_threads=False), vm)
                    if is_vm is None:
                        continue
                    table = file.read_row_group(group, columns=[*BATCH, *_SHOWN], use_threads=False)
                    starts = table.column("start_unix_ns")
                    in_time = pc.and_(pc.greater_equal(starts, since), pc.less(starts, until))
                    yield from table.filter(pc.and_(is_vm, in_time)).to_pylist()
        except pa.ArrowException as error:
            raise LakeError(f"{segment.objects.root}/{segment.key} is damaged: {error}") from error


def _equal(table: pa.Table, vm: str) -> pa.ChunkedArray | None:
    """Return which rows are the VM's, by the column's dictionary; None without any."""
    chunks = table.column("vm").chunks
    places = [chunk.dictionary.index(vm).as_py() for chunk in chunks]  # -1 for none
    if max(places, default=-1) < 0:
        return None
    equal = [pc.equal(chunk.indices, at) for chunk, at in zip(chunks, places, strict=True)]
    return pa.chunked_array(equal, pa.bool_())
