"""Reader of the Google cluster trace, version 3 (2019): usage rows from Parquet or CSV, as numpy columns.

Source: "Google cluster-usage traces v3" (Wilkes, 2020), table InstanceUsage, with `priority` and
`scheduling_class` joined from the event tables. Times are microseconds since 600 s before the trace began, or
timestamps; CPU usage is in normalised units, CPI is cycles per instruction.

A row that cannot be used is counted under one reason. A row with an impossible CPI loses the CPI only: its usage still
is pressure on others. A file that cannot be used (a missing column, a column that is not numbers, a broken file) is one
`InputError`. Every file is read twice: first its keys, which finds the duplicates (and most broken files, before the
first row), then all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collector.traces.files import COLUMNS, Column, TraceFile, open_file
from collector.traces.times import check_unit
from whitepanda.common.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


_KEY = ("collection_id", "instance_index", "machine_id", "start_us")
_MAX_US = (2**63 - 1) // 1000  # so that nanoseconds still fit 64 bits


@dataclass(frozen=True, slots=True)
class LatencySensitiveRule:
    """The least values of latency-sensitive tasks. The paper's thresholds are lost; these are whitepanda's.

    Raises InputError if a threshold is not a number.
    """

    priority: float = 120.0
    scheduling_class: float = 2.0

    def __post_init__(self) -> None:
        for what, value in (("priority", self.priority), ("scheduling class", self.scheduling_class)):
            if math.isnan(value):
                raise InputError(f"the least {what} of latency-sensitive tasks must be a number (value {value})")


@dataclass(frozen=True, slots=True)
class TraceLimits:
    """What is absurd: a CPI outside is ignored, rows with a larger normalised usage are `bad_cpu_usage`.

    Raises InputError if no CPI is within the limits.
    """

    min_cpi: float = 0.01
    max_cpi: float = 100.0
    max_cpu_usage: float = 4096.0

    def __post_init__(self) -> None:
        if not self.min_cpi < self.max_cpi:  # also NaN
            raise InputError(f"the largest CPI must be above {self.min_cpi:g} (value {self.max_cpi:g})")


@dataclass(slots=True)
class TraceCounts:
    """What became of the rows. Once all is read, `rows_read == accepted + sum(rejected.values())`.

    Of the accepted rows `unusable_cpi` have no CPI that counts, but their usage does; `without_cpi` of these have
    none at all (the others have one that is zero, negative, infinite or absurd); `without_priority` are taken as not
    latency-sensitive. `first` says of each reason and of `unusable_cpi` in which row of which file it came first, as
    far as that is known.
    """

    rows_read: int = 0
    accepted: int = 0
    unusable_cpi: int = 0
    without_cpi: int = 0
    without_priority: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)

    def reject(self, reason: str, count: int) -> None:
        """Count `count` rows under `reason`."""
        if count:
            self.rejected[reason] = self.rejected.get(reason, 0) + count

    def malformed(self, _row: Any) -> None:
        """Count a row that is not CSV."""
        self.rows_read += 1
        self.reject("malformed_row", 1)


@dataclass(frozen=True, slots=True)
class TraceBatch:
    """Accepted rows as columns, all of shape (n,). CPI is NaN if the trace has none or, `bad_cpi`, an unusable one.

    A task is (collection_id, instance_index), its job is the collection.
    """

    collection_id: NDArray[np.int64]
    instance_index: NDArray[np.int64]
    machine_id: NDArray[np.int64]
    start_us: NDArray[np.int64]
    duration_us: NDArray[np.int64]
    cpu_usage: NDArray[np.float64]
    cpi: NDArray[np.float64]
    latency_sensitive: NDArray[np.bool_]
    bad_cpi: NDArray[np.bool_]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.collection_id)

    @property
    def start_unix_ns(self) -> NDArray[np.int64]:
        """Start of each row, the trace's own clock taken as Unix time, in nanoseconds."""
        return self.start_us * 1000

    @property
    def duration_ns(self) -> NDArray[np.int64]:
        """Length of each row in nanoseconds."""
        return self.duration_us * 1000

    @property
    def keys(self) -> list[NDArray[np.int64]]:
        """The columns that make a row unique."""
        return [getattr(self, name) for name in _KEY]

    def take(self, index: NDArray[Any]) -> TraceBatch:
        """Return the rows at `index` (positions or a mask)."""
        return TraceBatch(*(getattr(self, name)[index] for name in _BATCH_COLUMNS))

    @classmethod
    def concatenate(cls, batches: Sequence[TraceBatch]) -> TraceBatch:
        """Return the rows of several batches (at least one) in one."""
        return cls(*(np.concatenate([getattr(b, name) for b in batches]) for name in _BATCH_COLUMNS))


_BATCH_COLUMNS = tuple(TraceBatch.__dataclass_fields__)


def read_trace(
    paths: Path | str | Sequence[Path | str],
    *,
    rule: LatencySensitiveRule | None = None,
    limits: TraceLimits | None = None,
    batch_rows: int = 65_536,
) -> TraceReader:
    """Open trace files (Parquet, CSV, compressed CSV; recognised by content) and check their columns.

    All `paths` are one trace: duplicates are found across them. Iterate over the result for `TraceBatch`es of up to
    `batch_rows`; its `counts` are complete after the last one. It needs the memory of a batch, 16 bytes per row to find
    duplicates, and the rows that have duplicates, which come last. Raises InputError if a file cannot be read, is
    neither Parquet nor CSV, lacks columns, or has text for numbers.
    """
    listed = [paths] if isinstance(paths, Path | str) else list(paths)
    if not listed:
        raise InputError("no trace file given")
    files = [open_file(Path(path), batch_rows) for path in listed]
    return TraceReader(files, rule or LatencySensitiveRule(), limits or TraceLimits())


class TraceReader:
    """The rows of some trace files. Each iteration starts again, with new `counts`."""

    def __init__(self, files: Sequence[TraceFile], rule: LatencySensitiveRule, limits: TraceLimits) -> None:
        self._files = files
        self._rule = rule
        self._limits = limits
        self.counts = TraceCounts()
        #: Rows in all files; None until the keys are read.
        self.total_rows: int | None = None

    def __iter__(self) -> Iterator[TraceBatch]:
        """Yield accepted rows, in the files' order except that rows with duplicates come last."""
        self.counts = counts = TraceCounts()
        repeated = self._repeated_hashes()
        held: list[TraceBatch] = []
        for file in self._files:
            first_row = 1
            for columns in file.read(tuple(COLUMNS), counts.malformed):
                if first_row == 1:
                    _check_times(file, columns)
                batch = self._accept(file, columns, first_row)
                first_row += len(columns["cpi"].values)
                again = np.isin(_hash(batch.keys), repeated)
                if again.any():
                    held.append(batch.take(again))
                    batch = batch.take(~again)
                if batch.rows:
                    yield self._count(batch)
        if held:
            together = TraceBatch.concatenate(held)
            kept = together.take(_first_of_each(together))
            counts.reject("duplicate", together.rows - kept.rows)
            yield self._count(kept)

    def _count(self, batch: TraceBatch) -> TraceBatch:
        self.counts.accepted += batch.rows
        self.counts.unusable_cpi += int(np.isnan(batch.cpi).sum())
        self.counts.without_cpi += int((np.isnan(batch.cpi) & ~batch.bad_cpi).sum())
        return batch

    def _repeated_hashes(self) -> NDArray[np.uint64]:
        """Read only the keys; return the (sorted) hashes that more than one row has."""
        keys = TraceCounts()
        hashes = [
            _hash([columns[name].values for name in _KEY])
            for file in self._files
            for columns in file.read(_KEY, keys.malformed)
        ]
        every = np.sort(np.concatenate(hashes)) if hashes else np.empty(0, np.uint64)
        self.total_rows = len(every) + keys.rows_read
        return np.unique(every[1:][every[1:] == every[:-1]])

    def _accept(self, file: TraceFile, columns: dict[str, Column], first_row: int) -> TraceBatch:
        """Reject unusable rows, each under the first reason that applies."""
        values = {name: column.values for name, column in columns.items()}
        known = {name: column.known for name, column in columns.items()}
        rows = len(values["cpi"])
        garbled = np.zeros(rows, np.bool_)
        for column in columns.values():
            garbled |= column.garbled
        good = np.ones(rows, np.bool_)
        start, end, usage, cpi = (values[name] for name in ("start_us", "end_us", "cpu_usage", "cpi"))
        in_order = known["start_us"] & known["end_us"] & (start >= 0) & (end > start) & (end <= _MAX_US)
        sane_usage = known["cpu_usage"] & (usage >= 0) & (usage <= self._limits.max_cpu_usage)
        bad_cpi = known["cpi"] & ~((cpi >= self._limits.min_cpi) & (cpi <= self._limits.max_cpi))
        reasons = {
            "not_a_number": garbled,
            "unknown_task": ~(known["collection_id"] & known["instance_index"]),
            "unknown_machine": ~known["machine_id"] | (values["machine_id"] < 0),
            "bad_time": ~in_order,
            "bad_cpu_usage": ~sane_usage,
        }
        for reason, bad in reasons.items():
            self._note(file, reason, good & bad, first_row)
            self.counts.reject(reason, int((good & bad).sum()))
            good &= ~bad
        self._note(file, "unusable_cpi", good & bad_cpi, first_row)
        self.counts.rows_read += rows
        classed = known["priority"] & known["scheduling_class"]
        self.counts.without_priority += int((good & ~classed).sum())
        for name in ("priority", "scheduling_class"):
            classed &= values[name] >= getattr(self._rule, name)
        every = TraceBatch(
            **{name: values[name] for name in _KEY},
            duration_us=end - start,
            cpu_usage=usage,
            cpi=np.where(known["cpi"] & ~bad_cpi, cpi, np.nan),
            latency_sensitive=classed,
            bad_cpi=bad_cpi,
        )
        return every if good.all() else every.take(good)

    def _note(self, file: TraceFile, reason: str, rows: NDArray[np.bool_], first_row: int) -> None:
        """Note the first row of a reason, of a batch that begins at `first_row`."""
        if reason not in self.counts.first and rows.any():
            self.counts.first[reason] = f"row {first_row + int(np.argmax(rows))} of {file.path.name}"


def _check_times(file: TraceFile, columns: dict[str, Column]) -> None:
    """Refuse a file whose first rows have plain times in another unit than microseconds."""
    start, end = columns["start_us"], columns["end_us"]
    names = file.columns["start_us"], file.columns["end_us"]
    known = start.known & end.known
    if start.has_unit != end.has_unit and known.any():
        stamped, plain = names if start.has_unit else names[::-1]
        raise InputError(
            f"{file.path}: column '{stamped}' has timestamps and '{plain}' plain numbers; use the same format in both"
        )
    if not start.has_unit:
        check_unit(file.path, names, start.values, end.values, known)


def _hash(columns: list[NDArray[Any]]) -> NDArray[np.uint64]:
    """Mix int64 columns into one hash per row (the finaliser of splitmix64, column by column)."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed += column.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(30)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(27)
        mixed *= np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def _first_of_each(batch: TraceBatch) -> NDArray[np.int64]:
    """Positions of one row per key: the first that has a CPI, else the first."""
    keys = batch.keys
    order = np.lexsort((np.isnan(batch.cpi), *keys))
    new = np.ones(len(order), np.bool_)
    new[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    return np.sort(order[new])
