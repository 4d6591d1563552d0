"""From an agent's columns to the lake's rows: what is refused, why, and how many. Arrays only, no loop per row.

A structural problem refuses the whole batch (`BatchError`); anything else refuses single rows, each counted under
exactly one reason: the first of `ROW_REASONS` that holds. So accepted and rejected rows add up to the batch's rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from central.schema import SAMPLES
from whitepanda.common.protocol import UNKNOWN_COUNT
from whitepanda.v1 import agent_pb2

__all__ = [
    "BATCH_REASONS",
    "ROW_REASONS",
    "BatchError",
    "Checked",
    "Limits",
    "StoredBatch",
    "check",
    "is_name",
    "samples_table",
]

#: Why a whole batch is refused. `malformed` and `oversized` are found before there is a batch to look at.
BATCH_REASONS = (
    "malformed",
    "oversized",
    "no_spool",
    "bad_spool",
    "no_sequence",
    "too_many_rows",
    "column_length",
    "task_index",
    "foreign_machine",
)

#: Why a row is refused, in the order in which reasons are tried.
ROW_REASONS = (
    "bad_task",
    "bad_machine",
    "bad_time",
    "future_time",
    "old_time",
    "bad_cpu_usage",
    "bad_cpi",
    "absurd_cpi",
    "bad_counter",
)

_MAX_INT64 = 2**63 - 1
_MAX_DURATION_NS = 86_400 * 10**9  # no window and no trace record is longer than a day
_MAX_NAME = 512  # characters of a VM's, epoch's, job's, machine's or platform's name
_MAX_SPOOL_ID = 64  # characters; it is remembered for ever
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # and what ends a line elsewhere
_ROUNDING = 1e-9

_REQUIRED = ("start_unix_ns", "duration_ns", "cpu_usage_cores")
_OPTIONAL = ("cpi", "cycles", "instructions")
_COUNTERS = ("cycles", "instructions")

#: Columns whose values are nice to have: a value that cannot be is stored as not known. The largest one allowed.
_GAUGES = {
    "running_ratio": 1.0 + _ROUNDING,
    "run_queue_wait_ratio": 1e6,
    "disk_bytes_per_s": 1e15,
    "network_bytes_per_s": 1e15,
    "llc_occupancy_bytes": 1e15,
    "memory_bandwidth_bytes_per_s": 1e15,
}

_Floats = npt.NDArray[np.float64]
_Mask = npt.NDArray[np.bool_]


class BatchError(Exception):
    """A whole batch is refused. `reason` is one of `BATCH_REASONS`; the text says what was found, in one line."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Limits:
    """What central's configuration allows; see `central.config.IngestSection`."""

    max_batch_rows: int = 10_000
    max_cpi: float = 100.0
    max_cpu_usage_cores: float = 4096.0
    max_future_s: float = 3600.0
    max_past_days: float = 400.0


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome for one batch. `kept` (shape (rows,)) is True for accepted rows; None means all of them."""

    rows: int
    accepted_rows: int
    rejected_rows: dict[str, int]
    kept: _Mask | None
    jobs: frozenset[str]


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch as the journal keeps it: the agent's own bytes, and which rows of them count."""

    host: str
    platform: str
    spool_id: str
    sequence: int
    payload: bytes
    kept: _Mask | None = None


def is_name(text: str, max_length: int = _MAX_NAME) -> bool:
    """Whether a text is fit to be kept as a name: not empty, not longer than `max_length`, no control characters."""
    return 0 < len(text) <= max_length and _CONTROL.search(text) is None


def check(
    batch: agent_pb2.CpiBatch,
    *,
    host: str,
    platform: str,
    is_importer: bool,
    limits: Limits,
    now_unix_ns: int,
) -> Checked:
    """Check a batch of one host's stream.

    Args:
        batch: as received.
        host: the stream's host, which rows without a machine belong to.
        platform: the stream's CPU platform.
        is_importer: whether rows may name other machines and platforms.
        limits: from the configuration.
        now_unix_ns: central's clock.

    Raises:
        BatchError: nothing of the batch can be used.

    """
    rows = _check_structure(batch, limits)
    task_index = np.array(batch.task_index, dtype=np.int64)
    bad_task, bad_machine, jobs = _check_tasks(batch, host, platform, is_importer=is_importer)
    if rows == 0:
        return Checked(0, 0, {}, None, jobs)
    rejected: dict[str, int] = {}
    bad = np.zeros(rows, dtype=np.bool_)
    masks = _row_masks(batch, limits, now_unix_ns, is_importer=is_importer)
    if bad_task.any():
        masks["bad_task"] = bad_task[task_index]
    if bad_machine.any():
        masks["bad_machine"] = bad_machine[task_index]
    for reason in ROW_REASONS:
        mask = masks.get(reason)
        if mask is None or not mask.any():
            continue
        rejected[reason] = int(np.count_nonzero(mask & ~bad))
        bad |= mask
    rejected = {reason: count for reason, count in rejected.items() if count}
    lost = sum(rejected.values())
    return Checked(rows, rows - lost, rejected, ~bad if lost else None, jobs)


def _check_structure(batch: agent_pb2.CpiBatch, limits: Limits) -> int:
    """Return the number of rows."""
    rows = len(batch.task_index)
    if not batch.spool_id:
        raise BatchError("no_spool", "spool_id is empty")
    if not is_name(batch.spool_id, _MAX_SPOOL_ID):
        raise BatchError(
            "bad_spool",
            f"spool_id must be at most {_MAX_SPOOL_ID} characters without control characters "
            f"({len(batch.spool_id)} characters, {batch.spool_id[:20]!r}...)",
        )
    if not 0 < batch.sequence <= _MAX_INT64:
        raise BatchError("no_sequence", f"sequence must be 1 to 2^63-1 (value {batch.sequence})")
    if rows > limits.max_batch_rows:
        raise BatchError(
            "too_many_rows", f"{rows} rows; at most {limits.max_batch_rows} are allowed in a batch"
        )
    for name in (*_REQUIRED, *_OPTIONAL, *_GAUGES, "cpi_reason"):
        length = len(getattr(batch, name))
        if length != rows and (length or name in _REQUIRED):
            raise BatchError("column_length", f"column {name} has {length} values, task_index has {rows}")
    if rows:
        highest = int(np.array(batch.task_index, dtype=np.int64).max())
        if highest >= len(batch.tasks):
            raise BatchError(
                "task_index", f"task_index {highest} points beyond the batch's {len(batch.tasks)} tasks"
            )
    return rows


def _check_tasks(
    batch: agent_pb2.CpiBatch, host: str, platform: str, *, is_importer: bool
) -> tuple[_Mask, _Mask, frozenset[str]]:
    """Return which tasks lack a usable name, which name an impossible machine, and the jobs of the usable ones."""
    bad_task = np.zeros(len(batch.tasks), dtype=np.bool_)
    bad_machine = np.zeros(len(batch.tasks), dtype=np.bool_)
    jobs = set()
    # Rarely is there anything to find: one look at all names together is quicker than one at each.
    names = (name for t in batch.tasks for name in (t.vm, t.job, t.epoch, t.machine, t.platform))
    has_control = not "".join(names).isprintable()
    for index, task in enumerate(batch.tasks):
        job, machine = task.job, task.machine
        if machine or task.platform:
            if not is_importer and (machine not in ("", host) or task.platform not in ("", platform)):
                raise BatchError(
                    "foreign_machine",
                    f"task {index} names machine {machine[:60]!r}, platform {task.platform[:60]!r}; "
                    f"only importers (central.importers) may, host {host!r} speaks for itself",
                )
            bad_machine[index] = (
                len(machine) > _MAX_NAME
                or machine.startswith("-")
                or machine != machine.strip()
                or (has_control and _CONTROL.search(machine) is not None)
            )
        if (
            not job
            or not task.vm
            or max(len(job), len(task.vm), len(task.epoch), len(task.platform)) > _MAX_NAME
            or (has_control and _CONTROL.search(job + task.vm + task.epoch + task.platform))
        ):
            bad_task[index] = True
        else:
            jobs.add(job)
    return bad_task, bad_machine, frozenset(jobs)


def _row_masks(
    batch: agent_pb2.CpiBatch, limits: Limits, now_unix_ns: int, *, is_importer: bool
) -> dict[str, _Mask]:
    """Return, by reason, which rows have a bad value; reasons without a chance are left out."""
    start = np.array(batch.start_unix_ns, dtype=np.uint64)
    duration = np.array(batch.duration_ns, dtype=np.uint64)
    usage = np.array(batch.cpu_usage_cores, dtype=np.float64)
    latest = max(0, min(now_unix_ns + int(limits.max_future_s * 1e9), _MAX_INT64 - _MAX_DURATION_NS))
    masks = {
        "bad_time": (duration == 0) | (duration > _MAX_DURATION_NS) | (start > _MAX_INT64 - _MAX_DURATION_NS),
        "future_time": start > latest,
        # A comparison with NaN is False: so are values that are not a number.
        "bad_cpu_usage": ~((usage >= 0) & (usage <= limits.max_cpu_usage_cores)),
    }
    if not is_importer:  # a trace is of any time; a host's clock that is that wrong has not been set
        earliest = max(0, now_unix_ns - int(limits.max_past_days * 86_400e9))
        masks["old_time"] = start < earliest
    if len(batch.cpi):
        cpi = np.array(batch.cpi, dtype=np.float64)
        masks["bad_cpi"] = (cpi <= 0) | np.isinf(cpi)  # NaN: not known, which is no fault
        masks["absurd_cpi"] = cpi > limits.max_cpi
    counters = [
        np.array(getattr(batch, name), dtype=np.uint64) for name in _COUNTERS if len(getattr(batch, name))
    ]
    if counters:
        masks["bad_counter"] = np.any([(c > _MAX_INT64) & (c != UNKNOWN_COUNT) for c in counters], axis=0)
    return masks


def samples_table(batches: Sequence[StoredBatch]) -> pa.Table:
    """Return the accepted rows of checked batches, in their order, in `central.schema.SAMPLES`.

    It depends on nothing but its argument: the same batches give the same table, whatever the configuration is now.
    """
    parsed = [agent_pb2.CpiBatch.FromString(stored.payload) for stored in batches]
    counts = np.array([len(batch.task_index) for batch in parsed], dtype=np.int64)
    if not counts.sum():
        return SAMPLES.empty_table()
    kept = np.concatenate(
        [
            np.ones(n, dtype=np.bool_) if b.kept is None else b.kept
            for b, n in zip(batches, counts, strict=True)
        ]
    )
    of_batch = np.repeat(np.arange(len(batches)), counts)[kept]
    columns: dict[str, pa.Array] = _batch_columns(batches, of_batch) | _task_columns(batches, parsed, kept)
    for name in ("start_unix_ns", "duration_ns"):
        columns[name] = pa.array(_gather(parsed, counts, name, np.uint64, 0)[kept].astype(np.int64))
    usage = _gather(parsed, counts, "cpu_usage_cores", np.float64, np.nan)[kept]
    columns["cpu_usage_cores"] = pa.array(usage)
    cpi = _gather(parsed, counts, "cpi", np.float64, np.nan)[kept]
    columns["cpi"] = pa.array(cpi, mask=np.isnan(cpi))
    for name in _COUNTERS:
        values = _gather(parsed, counts, name, np.uint64, UNKNOWN_COUNT)[kept]
        columns[name] = pa.array(values.astype(np.int64), mask=values == UNKNOWN_COUNT)
    for name, largest in _GAUGES.items():
        gauge: _Floats = _gather(parsed, counts, name, np.float64, np.nan)[kept]
        columns[name] = pa.array(gauge, mask=~((gauge >= 0) & (gauge <= largest)))
    return pa.table([columns[field.name] for field in SAMPLES], schema=SAMPLES)


def _gather(
    parsed: Sequence[agent_pb2.CpiBatch], counts: npt.NDArray[np.int64], name: str, kind: Any, absent: float
) -> npt.NDArray[Any]:
    """Return one column over all batches; a batch that did not measure it has `absent` in every row."""
    parts = [np.array(getattr(batch, name), dtype=kind) for batch in parsed]
    whole = [
        part if len(part) else np.full(n, absent, dtype=kind) for part, n in zip(parts, counts, strict=True)
    ]
    return np.concatenate(whole)


def _batch_columns(batches: Sequence[StoredBatch], of_batch: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
    indices = pa.array(of_batch)
    return {
        "host": pa.array([batch.host for batch in batches], pa.string()).take(indices),
        "spool_id": pa.array([batch.spool_id for batch in batches], pa.string()).take(indices),
        "sequence": pa.array([batch.sequence for batch in batches], pa.uint64()).take(indices),
    }


def _task_columns(
    batches: Sequence[StoredBatch], parsed: Sequence[agent_pb2.CpiBatch], kept: _Mask
) -> dict[str, pa.Array]:
    tasks = [task for batch in parsed for task in batch.tasks]
    sizes = np.array([len(batch.tasks) for batch in parsed], dtype=np.int64)
    offsets = np.cumsum(sizes) - sizes
    shifted = [np.array(b.task_index, dtype=np.int64) + o for b, o in zip(parsed, offsets, strict=True)]
    indices = pa.array(np.concatenate(shifted)[kept])
    owners = [stored for stored, size in zip(batches, sizes, strict=True) for _ in range(size)]
    values: dict[str, list[Any]] = {
        "vm": [task.vm for task in tasks],
        "epoch": [task.epoch for task in tasks],
        "job": [task.job for task in tasks],
        "machine": [task.machine or owner.host for task, owner in zip(tasks, owners, strict=True)],
        "platform": [task.platform or owner.platform for task, owner in zip(tasks, owners, strict=True)],
    }
    columns = {name: pa.array(value, pa.string()).take(indices) for name, value in values.items()}
    sensitive = pa.array([task.latency_sensitive for task in tasks], pa.bool_())
    return columns | {"latency_sensitive": sensitive.take(indices)}
