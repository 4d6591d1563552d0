"""Answers questions about the fleet's history: in one database, whose memory of the files' footers stays."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from central.history import queries
from central.history.files import Files, HistoryFiles
from central.history.queries import Grouping, Scope
from central.history.steps import Steps, choose_steps, whole_slots
from central.lake.duckdb_connection import bounded, hurried
from central.lake.errors import LakeError
from central.lake.segment_times import SegmentTimes
from central.lake.segments import Lake
from central.models.groups import Floats

if TYPE_CHECKING:
    import duckdb

_MEMORY_MIB = 512
_THREADS = 2
_DEADLINE_S = 20.0
_FILES = 5000  # that a database remembers; then it starts again
Found = TypeVar("Found")

#: Of each metric and step; of groups also how many VMs have it.
VALUES = ("mean", "min", "max", "count")
_OF_GROUPS = (*VALUES, "vms")


@dataclass(frozen=True, slots=True)
class VmLines:
    """A VM's steps: where it was and how many windows it has in each; `values` by metric, each with `VALUES`.

    Where nothing is known, numbers are NaN, counts 0, and hosts "". A group's have its name as `vm`, no hosts, and of
    each metric "vms".
    """

    vm: str
    job: str
    hosts: list[str]
    windows: Floats
    values: dict[str, dict[str, Floats]]

    @property
    def last_host(self) -> str:
        """The host of its last window."""
        return next(host for host in reversed(self.hosts) if host)


@dataclass(frozen=True, slots=True)
class Series:
    """VMs by UUID; `has_more`: further ones follow the last."""

    steps: Steps
    vms: list[VmLines]
    has_more: bool


@dataclass(frozen=True, slots=True)
class Leaders:
    """The VMs with the greatest values, as rows of vm, host, job, mean, min, max and count."""

    steps: Steps
    vms: list[dict[str, Any]]


class FleetHistory:
    """Reads a lake with slots of `slot_ns`. Each question has `deadline_s`. Safe in threads.

    Methods take `stop`: once it is set, the query ends (StoppedError). They raise SlowError at the deadline, LakeError
    if a file is damaged or of another version, OSError if the lake cannot be read. Times are nanoseconds since 1970.
    """

    def __init__(self, lake: Lake, times: SegmentTimes, slot_ns: int, deadline_s: float = _DEADLINE_S) -> None:
        self.slot_ns = slot_ns
        self._lake = lake
        self._files = HistoryFiles(lake, times, slot_ns)
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._database: duckdb.DuckDBPyConnection | None = None
        self._spill: tempfile.TemporaryDirectory[str] | None = None
        self._read: set[str] = set()

    def steps(self, since: int, until: int, points: int) -> Steps:
        """Return the steps of a series: at most `points`."""
        return choose_steps(since, until, points, self.slot_ns, has_windows=self._files.have_windows(since, until))

    def series(
        self,
        scope: Scope,
        metrics: Sequence[str],
        steps: Steps,
        *,
        limit: int,
        after: str = "",
        stop: threading.Event | None = None,
        grouping: Grouping | None = None,
    ) -> Series:
        """Return series of the first `limit` VMs, or groups, of a scope, in order, after one; of those with windows."""

        def ask_groups(cursor: duckdb.DuckDBPyConnection, files: Files, grouping: Grouping) -> Series:
            names = cursor.execute(queries.groups(files, scope, steps, grouping, after, limit + 1)).fetchall()
            page = [name for (name,) in names[:limit]]
            if not page:
                return Series(steps, [], has_more=False)
            mine, groups = grouping.narrowed(scope, page)
            table = cursor.execute(queries.grouped(files, mine, steps, metrics, groups)).to_arrow_table()
            return Series(steps, list(_lines(table, steps, metrics, _OF_GROUPS)), has_more=len(names) > limit)

        def ask(cursor: duckdb.DuckDBPyConnection, files: Files) -> Series:
            if grouping is not None:
                return ask_groups(cursor, files, grouping)
            named = sorted(vm for vm in set(scope.vms) if vm > after)
            if scope.vms and len(named) <= limit:
                chosen = named
            else:  # a page has VMs with windows only
                found = cursor.execute(queries.vms(files, scope, steps, after, limit + 1)).fetchall()
                chosen = [vm for (vm,) in found]
            page = tuple(chosen[:limit])
            if not page:
                return Series(steps, [], has_more=False)
            query = queries.series(files, Scope(page, scope.hosts, scope.jobs), steps, metrics)
            table = cursor.execute(query).to_arrow_table()
            return Series(steps, list(_lines(table, steps, metrics)), has_more=len(chosen) > limit)

        return self._ask(steps, ask, stop)

    def top(
        self,
        scope: Scope,
        metric: str,
        by: str,
        since: int,
        until: int,
        limit: int,
        stop: threading.Event | None = None,
    ) -> Leaders:
        """Return the `limit` VMs with the greatest `by` ("mean" or "max") of a metric; slots are read whole."""
        has_windows = self._files.have_windows(since, until)
        steps = whole_slots(since, until, self.slot_ns, has_windows=has_windows)

        def ask(cursor: duckdb.DuckDBPyConnection, files: Files) -> Leaders:
            query = queries.top(files, scope, steps, metric, by, limit)
            return Leaders(steps, cursor.execute(query).to_arrow_table().to_pylist())

        return self._ask(steps, ask, stop)

    def close(self) -> None:
        """Forget the footers that were read."""
        with self._lock:
            self._forget()

    def _ask(
        self, steps: Steps, ask: Callable[[duckdb.DuckDBPyConnection, Files], Found], stop: threading.Event | None
    ) -> Found:
        """Ask, and again if a file was merged away since it was found."""
        import duckdb  # noqa: PLC0415 - takes 0.1 s; the daemon opens none before it is asked

        for is_last in (False, True):
            try:
                files = self._files.find(steps.since, steps.until, with_slots=steps.is_from_slots)
                with self._cursor(files) as cursor, hurried(cursor, self._deadline_s, stop):
                    return ask(cursor, files)
            except FileNotFoundError:
                if is_last:
                    raise
            except duckdb.Error as error:
                # Errors of a bucket's client come as they are: a plain one.
                if is_last or not (isinstance(error, duckdb.IOException) or type(error) is duckdb.Error):
                    raise LakeError(f"lake {self._lake.name}: {' '.join(str(error).split())[:300]}") from error
        raise AssertionError("the second time returns or raises")

    @contextlib.contextmanager
    def _cursor(self, files: Files) -> Iterator[duckdb.DuckDBPyConnection]:
        named = {*files.slots, *(path for paths in files.segments.values() for path in paths)}
        with self._lock:
            if len(self._read | named) > _FILES:
                self._forget()
            self._read |= named
            if self._database is None:
                self._spill = tempfile.TemporaryDirectory(prefix="whitepanda-", ignore_cleanup_errors=True)
                self._database = bounded(
                    memory_limit_mib=_MEMORY_MIB, threads=_THREADS, spill_dir=Path(self._spill.name)
                )
                self._lake.objects.attach(self._database)
                self._database.execute("SET parquet_metadata_cache = true; SET enable_external_file_cache = false")
            cursor = self._database.cursor()
        try:
            yield cursor
        finally:
            cursor.close()

    def _forget(self) -> None:
        self._read.clear()
        if self._database is not None:
            self._database.close()
        if self._spill is not None:
            self._spill.cleanup()
        self._database = self._spill = None


def _lines(
    table: pa.Table, steps: Steps, metrics: Sequence[str], values_of: Sequence[str] = VALUES
) -> Iterator[VmLines]:
    """Yield each VM's, or group's, rows, which are in order, as columns with a value for each step."""
    if not len(table):
        return
    names = table.column("vm").to_pylist()
    at, hosts, jobs = (table.column(name).to_pylist() for name in ("step", "host", "job"))
    numbers = {
        name: np.asarray(table.column(name).cast(pa.float64()).to_numpy(), dtype=np.float64)
        for name in ("windows", *(f"{metric}_{value}" for metric in metrics for value in values_of))
    }
    edges = [0, *(row for row in range(1, len(names)) if names[row] != names[row - 1]), len(names)]
    for first, last in pairwise(edges):
        place = np.asarray(at[first:last])

        def filled(name: str, absent: float, place: np.ndarray = place, first: int = first, last: int = last) -> Floats:
            values = np.full(steps.count, absent)
            values[place] = numbers[name][first:last]
            return values

        where = [""] * steps.count
        for step, host in zip(place.tolist(), hosts[first:last], strict=True):
            where[step] = host
        values = {
            metric: {
                value: filled(f"{metric}_{value}", 0.0 if value in ("count", "vms") else float("nan"))
                for value in values_of
            }
            for metric in metrics
        }
        yield VmLines(names[first], jobs[last - 1], where, filled("windows", 0.0), values)
