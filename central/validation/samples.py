"""From batches that the journal keeps to the lake's rows. Arrays only, no loop per row."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from central.lake.schema import SAMPLES
from central.validation.wire_columns import TIMES, BatchColumns
from whitepanda.common.window_columns import BY_NUMBER, METRIC_COLUMNS
from whitepanda.v1 import agent_pb2


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch as the journal keeps it: the agent's own bytes, and which rows of them count; None means all."""

    host: str
    platform: str
    spool_id: str
    sequence: int
    payload: bytes
    kept: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class _Read:
    """A stored batch: its tasks and rows from the library, its columns from its bytes where they can be located.

    Rows that were refused are not in it: they may be of tasks whose names have any length.
    """

    stored: StoredBatch
    tasks: Sequence[agent_pb2.Task]
    task_index: npt.NDArray[np.int64]
    columns: BatchColumns

    def column(self, name: str) -> npt.NDArray[Any] | None:
        values = self.columns.get(name)
        return values if values is None or self.stored.kept is None else values[self.stored.kept]

    def metrics(self) -> npt.NDArray[np.float32]:
        """Return the values of its metrics, shape (metrics, rows)."""
        values = self.columns.metrics()
        return values if self.stored.kept is None else values[:, self.stored.kept]

    @property
    def text_bytes(self) -> int:
        """An upper bound of the bytes of its rows' texts."""
        stored, index = self.stored, self.task_index
        own = len(stored.host) + len(stored.spool_id) + len(stored.host) + len(stored.platform)
        if len(index) == len(self.tasks) and np.bincount(index).max(initial=0) <= 1:
            return 4 * own * len(index) + len(stored.payload)  # which has each text as often
        sizes = [len(t.vm) + len(t.epoch) + len(t.job) + len(t.machine) + len(t.platform) + own for t in self.tasks]
        return 4 * int(np.array(sizes, dtype=np.int64)[index].sum())


def samples_tables(batches: Sequence[StoredBatch], most_bytes: int) -> Iterator[pa.Table]:
    """Yield the accepted rows of checked batches, in their order, as tables of `central.lake.schema.SAMPLES`.

    Each table has whole batches with about `most_bytes` of texts: a batch has its texts once, a table in each row, and
    50,000 rows with names of 510 characters have 100 MB of them. The same batches give the same rows, whatever the
    configuration is now.
    """
    some: list[_Read] = []
    size = 0
    for stored in batches:
        read = _read(stored)
        text_bytes = read.text_bytes
        if some and size + text_bytes > most_bytes:
            yield _table(some)
            some, size = [], 0
        some.append(read)
        size += text_bytes
    if some:
        yield _table(some)


def _table(read: Sequence[_Read]) -> pa.Table:
    counts = np.array([len(each.task_index) for each in read], dtype=np.int64)
    if not counts.sum():
        return SAMPLES.empty_table()
    columns = _task_columns(read)
    of_batch = pa.array(np.repeat(np.arange(len(read)), counts))
    for name, kind in (("host", pa.string()), ("spool_id", pa.string()), ("sequence", pa.uint64())):
        columns[name] = pa.array([getattr(each.stored, name) for each in read], kind).take(of_batch)
    for name in TIMES:
        columns[name] = pa.array(_gather(read, counts, name).astype(np.int64))
    columns["cpu_usage_cores"] = pa.array(_gather(read, counts, "cpu_usage_cores"))
    cpi = _gather(read, counts, "cpi")
    columns["cpi"] = pa.array(cpi, mask=np.isnan(cpi))
    columns |= _metric_columns(read, counts)
    return pa.table({field.name: columns[field.name] for field in SAMPLES}).cast(SAMPLES)


def _read(stored: StoredBatch) -> _Read:
    batch = agent_pb2.CpiBatch.FromString(stored.payload)
    columns = BatchColumns(batch, stored.payload)
    index = columns.task_index()
    return _Read(stored, batch.tasks, index if stored.kept is None else index[stored.kept], columns)


def _gather(read: Sequence[_Read], counts: npt.NDArray[np.int64], name: str) -> npt.NDArray[Any]:
    """Return one column over all batches; a batch that did not measure it has NaN in every row."""
    parts = [each.column(name) for each in read]
    return np.concatenate([np.full(n, np.nan) if p is None else p for p, n in zip(parts, counts, strict=True)])


def _metric_columns(read: Sequence[_Read], counts: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
    """Return the columns of all metrics; those of batches with the same metrics are taken together."""
    rows = int(counts.sum())
    numbers = {number for each in read for number in each.columns.numbers if number in BY_NUMBER}
    found = {number: np.full(rows, np.nan, np.float32) for number in numbers}
    at = 0
    for same, some in groupby(read, lambda each: each.columns.numbers):
        values = np.concatenate([each.metrics() for each in some], axis=1)
        for number, column in zip(same, values, strict=True):
            if number in found:
                found[number][at : at + len(column)] = column
        at += values.shape[1]
    columns: dict[str, pa.Array] = {}
    for column in METRIC_COLUMNS:
        whole = found.get(column.number)
        columns[column.name] = pa.nulls(rows, pa.float32()) if whole is None else pa.array(whole, mask=np.isnan(whole))
    return columns


def _task_columns(read: Sequence[_Read]) -> dict[str, pa.Array]:
    sizes = np.array([len(each.tasks) for each in read], dtype=np.int64)
    offsets = np.cumsum(sizes) - sizes
    indices = np.concatenate([e.task_index + o for e, o in zip(read, offsets, strict=True)])
    tasks = [task for each in read for task in each.tasks]
    kinds = {**dict.fromkeys(("vm", "epoch", "job"), pa.string()), "latency_sensitive": pa.bool_()}
    values = {name: pa.array([getattr(task, name) for task in tasks], kind) for name, kind in kinds.items()}
    owner = pa.array(np.repeat(np.arange(len(read)), sizes))
    for name, of_sender in (("machine", "host"), ("platform", "platform")):
        values[name] = pa.array([getattr(each.stored, of_sender) for each in read], pa.string()).take(owner)
        named = [getattr(task, name) for task in tasks]
        if any(named):  # importers' rows
            own = pa.array(named, pa.string())
            values[name] = pc.if_else(pc.equal(own, ""), values[name], own)
    if np.array_equal(indices, np.arange(len(tasks))):  # each VM once, in order: as agents have it
        return values
    return {name: column.take(pa.array(indices)) for name, column in values.items()}
