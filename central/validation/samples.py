"""From batches that the journal keeps to the lake's rows. Arrays only, no loop per row."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from central.lake.schema import SAMPLES
from central.validation.plausible import LARGEST_GAUGES
from central.validation.wire_columns import BatchColumns
from whitepanda.common.protocol import UNKNOWN_COUNT
from whitepanda.common.window_columns import COUNTS
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

    def column(self, name: str, kind: Any) -> npt.NDArray[Any] | None:
        values = self.columns.get(name, kind)
        return values if values is None or self.stored.kept is None else values[self.stored.kept]

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
    for name in ("start_unix_ns", "duration_ns"):
        columns[name] = pa.array(_gather(read, counts, name, np.uint64, 0).astype(np.int64))
    columns["cpu_usage_cores"] = pa.array(_gather(read, counts, "cpu_usage_cores", np.float64, np.nan))
    cpi = _gather(read, counts, "cpi", np.float64, np.nan)
    columns["cpi"] = pa.array(cpi, mask=np.isnan(cpi))
    for name in COUNTS:
        values = _gather(read, counts, name, np.uint64, UNKNOWN_COUNT)
        columns[name] = pa.array(values.astype(np.int64), mask=values == UNKNOWN_COUNT)
    for name, largest in LARGEST_GAUGES.items():
        if not any(each.columns.has(name) for each in read):  # only some agents measure it
            columns[name] = pa.nulls(int(counts.sum()), pa.float64())
            continue
        gauge: npt.NDArray[np.float64] = _gather(read, counts, name, np.float64, np.nan)
        columns[name] = pa.array(gauge, mask=~((gauge >= 0) & (gauge <= largest)))
    return pa.table({field.name: columns[field.name] for field in SAMPLES}).cast(SAMPLES)


def _read(stored: StoredBatch) -> _Read:
    batch = agent_pb2.CpiBatch.FromString(stored.payload)
    columns = BatchColumns(batch, stored.payload)
    index = columns.task_index()
    return _Read(stored, batch.tasks, index if stored.kept is None else index[stored.kept], columns)


def _gather(
    read: Sequence[_Read], counts: npt.NDArray[np.int64], name: str, kind: Any, absent: float
) -> npt.NDArray[Any]:
    """Return one column over all batches; a batch that did not measure it has `absent` in every row."""
    parts = [each.column(name, kind) for each in read]
    whole = [np.full(n, absent, kind) if p is None else p for p, n in zip(parts, counts, strict=True)]
    return np.concatenate(whole)


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
