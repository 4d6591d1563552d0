"""Queries of the lake: its size, the VMs that run now, with their means, and the time lines of one host's VMs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from central.lake.duckdb_connection import answering, hurried
from central.lake.errors import LakeError
from central.lake.segment_times import SegmentTimes
from central.lake.segments import Lake
from whitepanda.v1 import fleet_pb2

if TYPE_CHECKING:
    import ibis.expr.types as ir


_S_NS = 10**9
_MEMORY_MIB = 512
_FAILED_NS = 60 * _S_NS
_DEADLINE_S = 20.0
_SHOWN_DAYS = 31

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Running:
    """VMs with windows that began in [since, until), each where it was last.

    `vms` has the columns machine, vm, job, platform, cpi (null if not known), cpu_usage_cores, and last: when its last
    window began.
    """

    since_unix_ns: int
    until_unix_ns: int
    vms: pa.Table
    jobs: int


@dataclass(frozen=True, slots=True)
class LakeCounts:
    """Segments and rows of the lake, in all and by day; `newest_unix_s` is the last segment's time, 0 for none."""

    segments: int
    rows: int
    newest_unix_s: float
    days: list[fleet_pb2.LakeDay]


class LakeTotals:
    """Counts segments and rows of the lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._rows: dict[str, int] = {}  # by segment

    def count(self) -> LakeCounts:
        """Count rows. Segments never change, so each footer is read once; unreadable ones are tried again."""
        counted: dict[str, int] = {}
        days: dict[date, fleet_pb2.LakeDay] = {}
        segments = self._lake.segments()
        for segment in segments:
            count = self._rows.get(segment.name)
            if count is None:
                with contextlib.suppress(LakeError, OSError):  # `damaged_files` and `lake verify` name it
                    count = segment.rows
            if count is not None:
                counted[segment.name] = count
            day = days.setdefault(segment.day, fleet_pb2.LakeDay(day=segment.day.isoformat()))
            day.segments += 1
            day.rows += count or 0
            day.size_bytes += segment.size_bytes
        self._rows = counted
        return LakeCounts(
            segments=len(segments),
            rows=sum(counted.values()),
            newest_unix_s=max((segment.modified_unix_s for segment in segments), default=0.0),
            days=[days[day] for day in sorted(days, reverse=True)[:_SHOWN_DAYS]],
        )


class RecentVms:
    """Reads which VMs run now, from the windows of the last `gone_s`. Safe in threads.

    An answer holds for `refresh_s`.
    """

    def __init__(
        self,
        lake: Lake,
        times: SegmentTimes,
        *,
        gone_s: float,
        refresh_s: float,
        clock_unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._lake = lake
        self._times = times
        self._gone_ns = int(gone_s * _S_NS)
        self._refresh_ns = int(refresh_s * _S_NS)
        self._clock = clock_unix_ns
        self._lock = threading.Lock()
        self._last: Running | None = None
        self._again_unix_ns = 0  # after a failure

    def known(self) -> tuple[Running | None, bool]:
        """Return the last answer, of any age, and whether to read again (at most once a minute after a failure)."""
        last, wait_ns = self._last, self._again_unix_ns - self._clock()
        return last, not self._is_good(last) and not 0 < wait_ns <= _FAILED_NS

    def read(self) -> Running:
        """Return which VMs run now, or did at most `refresh_s` ago; raises as `read_lines` does."""
        with self._lock:
            last = self._last
            if last is None or not self._is_good(last):
                until = self._clock()
                try:
                    last = self._last = self._read(until - self._gone_ns, until)
                except BaseException:
                    self._again_unix_ns = self._clock() + _FAILED_NS
                    raise
                self._again_unix_ns = 0
            return last

    def _is_good(self, last: Running | None) -> bool:
        return last is not None and 0 <= self._clock() - last.until_unix_ns < max(self._refresh_ns, 1)

    def _read(self, since: int, until: int) -> Running:
        def ask(connection: Any, windows: ir.Table) -> pa.Table:
            import ibis  # noqa: PLC0415 - takes a second to import, and ingest does not need it

            timed = windows.duration_ns.sum(where=windows.cpi.notnull()).nullif(0)
            means = windows.group_by(["machine", "vm", "job", "platform"]).aggregate(
                cpi=(windows.cpi * windows.duration_ns).sum() / timed,
                cpu_usage_cores=windows.cpu_usage_cores.mean(),
                last=windows.start_unix_ns.max(),
            )
            # A VM that moved counts where it was last.
            order = [ibis.desc("last"), "machine", "job", "platform"]
            placed = means.mutate(place=ibis.row_number().over(group_by="vm", order_by=order))
            return connection.to_pyarrow(placed.filter(placed.place == 0).drop("place").order_by("vm"))

        found = _ask(self._lake, self._times, since, until, ask)
        return Running(since, until, found, len(found.column("job").unique()))


def read_lines(lake: Lake, times: SegmentTimes, machine: str, since: int, until: int, step: int) -> pa.Table:
    """Return a machine's windows that begin in [since, until), ns since 1970, merged by VM and step.

    Columns: vm, job, platform, latency_sensitive, bin (0 begins at `since`), cpi (null if not known) and
    cpu_usage_cores, both means weighted by duration; ordered by vm and bin. Raises SlowError after 20 s, LakeError and
    OSError if the lake cannot be read.
    """

    def ask(connection: Any, windows: ir.Table) -> pa.Table:
        mine = windows.filter(windows.machine == machine, windows.duration_ns > 0)
        mine = mine.mutate(bin=((mine.start_unix_ns - since) // step).cast("int64"))
        timed = mine.duration_ns.sum(where=mine.cpi.notnull()).nullif(0)
        return connection.to_pyarrow(
            mine.group_by(["vm", "job", "platform", "latency_sensitive", "bin"])
            .aggregate(
                cpi=(mine.cpi * mine.duration_ns).sum() / timed,
                cpu_usage_cores=(mine.cpu_usage_cores * mine.duration_ns).sum() / mine.duration_ns.sum(),
            )
            .order_by(["vm", "bin", "job", "platform"])
        )

    return _ask(lake, times, since, until, ask)


def _ask(lake: Lake, times: SegmentTimes, since: int, until: int, ask: Callable[[Any, ir.Table], Found]) -> Found:
    """Query the windows that begin in [since, until), again if a segment was merged away meanwhile."""
    import duckdb  # noqa: PLC0415 - as ibis

    for is_last in (False, True):
        try:
            segments = times.overlapping(since, until)
            with lake.objects.session(), answering(_MEMORY_MIB) as connection, hurried(connection.con, _DEADLINE_S):
                windows = lake.samples(connection, segments=segments)
                in_time = windows.filter(windows.start_unix_ns >= since, windows.start_unix_ns < until)
                return ask(connection, in_time)
        except FileNotFoundError:
            if is_last:
                raise
        except duckdb.Error as error:
            if is_last or not isinstance(error, duckdb.IOException):
                raise LakeError(f"lake {lake.name}: {' '.join(str(error).split())[:300]}") from error
    raise AssertionError("the second time returns or raises")
