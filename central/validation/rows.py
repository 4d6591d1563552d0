"""From an agent's columns to the lake's rows: what is refused, why, and how many. Arrays only, no loop per row.

A structural problem refuses the whole batch (`BatchError`); anything else refuses single rows, each counted under
exactly one reason: the first of `ROW_REASONS` that holds. So accepted and rejected rows add up to the batch's rows.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from central.lake.schema import SAMPLES
from central.validation.plausible import LARGEST_GAUGES, MAX_HOST_WINDOW_NS, MIN_CPI, absurd_counters
from central.validation.wire_columns import Bounds, Located, column, locate
from whitepanda.common.protocol import UNKNOWN_COUNT
from whitepanda.common.window_columns import COUNTS
from whitepanda.v1 import agent_pb2

#: Why a whole batch is refused. `malformed` and `oversized` are found before there is a batch to look at.
BATCH_REASONS = (
    "malformed",
    "oversized",
    "no_spool",
    "bad_spool",
    "no_sequence",
    "too_many_rows",
    "too_many_tasks",
    "too_many_vms",
    "too_many_jobs",
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
    "absurd_counter",
)

_MAX_INT64 = 2**63 - 1
_MAX_DURATION_NS = 86_400 * 10**9  # no window and no trace record is longer than a day
_MAX_NAME = 512  # characters of a VM's, epoch's, job's, machine's or platform's name, and of that for people
_JOB_BYTES = 64  # of names, for each job that a host may have
_LEAST_JOB_BYTES = 64 << 10  # of a host, however few jobs it may have
_MAX_SPOOL_ID = 64  # bytes; it is remembered indefinitely
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # and what ends a line elsewhere
_SMALL = 0x80  # numbers below it take one byte in protobuf
_INDEX_TAG = agent_pb2.CpiBatch.DESCRIPTOR.fields_by_name["task_index"].number << 3 | 2

_REQUIRED = ("start_unix_ns", "duration_ns", "cpu_usage_cores")
_OPTIONAL = ("cpi", *COUNTS)

_Floats = npt.NDArray[np.float64]
_Mask = npt.NDArray[np.bool_]


class BatchError(Exception):
    """A whole batch is refused. `reason` is one of `BATCH_REASONS`; the text says what was found, in one line."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Limits:
    """What central's configuration allows; see `central.config.IngestSection`, and `QuotaSection` for the VMs."""

    max_batch_rows: int = 10_000
    max_vms_per_hour: int = 5_000
    max_host_jobs: int = 4_000
    max_cpi: float = 100.0
    max_cpu_usage_cores: float = 4096.0
    max_future_s: float = 3600.0
    max_past_days: float = 31.0


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome for one batch. `kept` (shape (rows,)) is True for accepted rows; None means all of them.

    `has_bad_tasks` is whether a task is refused, if only one that no row is of.
    """

    rows: int
    accepted_rows: int
    rejected_rows: dict[str, int]
    kept: _Mask | None
    jobs: frozenset[str]
    has_bad_tasks: bool = False


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


def job_bytes(jobs: Iterable[str]) -> int:
    """Return how many bytes the names of jobs have."""
    return len("".join(jobs).encode())


def too_many_jobs(jobs: int, size: int, max_host_jobs: int) -> str:
    """Return why so many jobs, with names of `size` bytes in all, are too many for a host; "" if they are not."""
    if jobs > max_host_jobs:
        return f"{jobs} jobs; ingest.max_host_jobs allows {max_host_jobs} of a host"
    allowed = max(_JOB_BYTES * max_host_jobs, _LEAST_JOB_BYTES)
    if size > allowed:
        return f"names of jobs have {size} bytes; ingest.max_host_jobs = {max_host_jobs} allows {allowed} of a host"
    return ""


def check(
    batch: agent_pb2.CpiBatch,
    *,
    host: str,
    platform: str,
    is_importer: bool,
    limits: Limits,
    now_unix_ns: int,
    payload: bytes = b"",
) -> Checked:
    """Check a batch of one host's stream.

    Args:
        batch: as received.
        host: the stream's host, which rows without a machine belong to.
        platform: the stream's CPU platform.
        is_importer: whether rows may name other machines and platforms.
        limits: from the configuration.
        now_unix_ns: central's clock.
        payload: the batch as its `SerializeToString` made it; reading columns there is quicker.

    Raises:
        BatchError: nothing of the batch can be used.

    """
    rows = _check_structure(batch, limits)
    if not is_importer and len(batch.tasks) > limits.max_vms_per_hour:
        vms = len({(task.vm, task.job) for task in batch.tasks})
        if vms > limits.max_vms_per_hour:
            detail = f"{vms} VMs; quotas.max_vms_per_hour allows {limits.max_vms_per_hour} of one host"
            raise BatchError("too_many_vms", detail)
    bad_task, bad_machine, jobs = _check_tasks(batch, host, platform, is_importer=is_importer)
    if not is_importer and (detail := too_many_jobs(len(jobs), job_bytes(jobs), limits.max_host_jobs)):
        raise BatchError("too_many_jobs", detail)
    if rows == 0:
        return Checked(0, 0, {}, None, jobs)
    rejected: dict[str, int] = {}
    bad = np.zeros(rows, dtype=np.bool_)
    columns = _Columns(batch, payload)
    task_index = columns.task_index()
    masks = _row_masks(columns, limits, now_unix_ns, is_importer=is_importer)
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
    has_bad_tasks = bool(bad_task.any() or bad_machine.any())
    return Checked(rows, rows - lost, rejected, ~bad if lost else None, jobs, has_bad_tasks)


def bounds(limits: Limits, now_unix_ns: int) -> Bounds:
    """Return between which values no number of a host's batch gives a reason to refuse its row."""
    return Bounds(
        earliest_unix_ns=_earliest(limits, now_unix_ns),
        latest_unix_ns=_latest(limits, now_unix_ns),
        max_duration_ns=MAX_HOST_WINDOW_NS,
        max_cpu_usage_cores=limits.max_cpu_usage_cores,
        min_cpi=MIN_CPI,
        max_cpi=limits.max_cpi,
    )


def _earliest(limits: Limits, now_unix_ns: int) -> int:
    return max(0, now_unix_ns - int(limits.max_past_days * 86_400e9))


def _latest(limits: Limits, now_unix_ns: int) -> int:
    return max(0, min(now_unix_ns + int(limits.max_future_s * 1e9), _MAX_INT64 - _MAX_DURATION_NS))


class _Columns:
    """A batch's columns as arrays, straight from its bytes where they are as expected."""

    def __init__(self, batch: agent_pb2.CpiBatch, payload: bytes) -> None:
        self._batch, self._payload = batch, payload
        self._located: Located | None = locate(payload, batch) if payload else None

    def get(self, name: str, kind: Any) -> npt.NDArray[Any] | None:
        """Return a column, shape (rows,); None where it was not measured."""
        if self._located is not None:
            return column(self._payload, self._located, name)
        values = getattr(self._batch, name)
        return np.array(values, dtype=kind) if len(values) else None

    def has(self, name: str) -> bool:
        """Whether a column was measured."""
        return name in self._located.columns if self._located is not None else len(getattr(self._batch, name)) > 0

    def task_index(self) -> npt.NDArray[np.int64]:
        """Return which task each row is of, shape (rows,)."""
        rows = len(self._batch.task_index)
        if self._located is not None and rows < _SMALL:  # then its bytes are the numbers, where each takes one
            end = self._located.begin
            head = bytes((_INDEX_TAG, rows))
            if self._payload.startswith(head, end - rows - 2) and self._payload[end - rows : end].isascii():
                return np.frombuffer(self._payload, np.uint8, rows, end - rows).astype(np.int64)
        return np.array(self._batch.task_index, dtype=np.int64)

    def required(self, name: str, kind: Any) -> npt.NDArray[Any]:
        """Return a column of a batch that has rows, and so has it."""
        values = self.get(name, kind)
        return np.zeros(0, kind) if values is None else values


def _check_structure(batch: agent_pb2.CpiBatch, limits: Limits) -> int:
    """Return the number of rows."""
    rows = len(batch.task_index)
    if not batch.spool_id:
        raise BatchError("no_spool", "spool_id is empty")
    if not is_name(batch.spool_id, _MAX_SPOOL_ID) or len(batch.spool_id.encode()) > _MAX_SPOOL_ID:
        raise BatchError(
            "bad_spool",
            f"spool_id must be at most {_MAX_SPOOL_ID} bytes without control characters "
            f"({len(batch.spool_id)} characters, {batch.spool_id[:20]!r}...)",
        )
    if not 0 < batch.sequence <= _MAX_INT64:
        raise BatchError("no_sequence", f"sequence must be 1 to 2^63-1 (value {batch.sequence})")
    if rows > limits.max_batch_rows:
        raise BatchError("too_many_rows", f"{rows} rows; at most {limits.max_batch_rows} are allowed in a batch")
    if len(batch.tasks) > rows:
        raise BatchError("too_many_tasks", f"{len(batch.tasks)} tasks of {rows} rows; each task has a row")
    for name in (*_REQUIRED, *_OPTIONAL, *LARGEST_GAUGES, "cpi_reason"):
        length = len(getattr(batch, name))
        if length != rows and (length or name in _REQUIRED):
            raise BatchError("column_length", f"column {name} has {length} values, task_index has {rows}")
    if rows:
        highest = max(batch.task_index)
        if highest >= len(batch.tasks):
            raise BatchError("task_index", f"task_index {highest} points beyond the batch's {len(batch.tasks)} tasks")
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
            or max(len(job), len(task.vm), len(task.epoch), len(task.platform), len(task.name)) > _MAX_NAME
            or (has_control and _CONTROL.search(job + task.vm + task.epoch + task.platform))
        ):
            bad_task[index] = True
        else:
            jobs.add(job)
    return bad_task, bad_machine, frozenset(jobs)


def _row_masks(columns: _Columns, limits: Limits, now_unix_ns: int, *, is_importer: bool) -> dict[str, _Mask]:
    """Return, by reason, which rows have a bad value; reasons without a chance are left out."""
    start = columns.required("start_unix_ns", np.uint64)
    duration = columns.required("duration_ns", np.uint64)
    usage = columns.required("cpu_usage_cores", np.float64)
    longest = _MAX_DURATION_NS if is_importer else MAX_HOST_WINDOW_NS
    masks = {
        "bad_time": (duration == 0) | (duration > longest) | (start > _MAX_INT64 - _MAX_DURATION_NS),
        "future_time": start > _latest(limits, now_unix_ns),
        # A comparison with NaN is False: so are values that are not a number.
        "bad_cpu_usage": ~((usage >= 0) & (usage <= limits.max_cpu_usage_cores)),
    }
    if not is_importer:  # a trace is of any time; a host's clock that is that wrong has not been set
        masks["old_time"] = start < _earliest(limits, now_unix_ns)
    cpi = columns.get("cpi", np.float64)
    if cpi is not None:
        masks["bad_cpi"] = (cpi <= 0) | np.isinf(cpi)  # NaN: not known, which is no fault
        masks["absurd_cpi"] = cpi > limits.max_cpi
        if not is_importer:  # a trace's may be normalised, as its usage
            masks["absurd_cpi"] |= cpi < MIN_CPI
    cycles, instructions = (columns.get(name, np.uint64) for name in COUNTS)
    counters = [each for each in (cycles, instructions) if each is not None]
    if counters:
        masks["bad_counter"] = np.any([(c > _MAX_INT64) & (c != UNKNOWN_COUNT) for c in counters], axis=0)
        masks["absurd_counter"] = absurd_counters(
            duration,
            limits.max_cpu_usage_cores if is_importer else usage,
            None if cycles is None else cycles.astype(np.int64),
            None if instructions is None else instructions.astype(np.int64),
        )
    return masks


def samples_tables(batches: Sequence[StoredBatch], most_bytes: int) -> Iterator[pa.Table]:
    """Yield the tables of `samples_table`, in their order, each of whole batches with about `most_bytes` of texts.

    A table has its texts in each row, a batch once: 50,000 rows with names of 510 characters have 100 MB of them.
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


def samples_table(batches: Sequence[StoredBatch]) -> pa.Table:
    """Return the accepted rows of checked batches, in their order, in `central.lake.schema.SAMPLES`.

    It depends on nothing but its argument: the same batches give the same table, whatever the configuration is now.
    """
    return _table([_read(stored) for stored in batches])


def _table(read: "Sequence[_Read]") -> pa.Table:
    counts = np.array([len(each.task_index) for each in read], dtype=np.int64)
    if not counts.sum():
        return SAMPLES.empty_table()
    of_batch = np.repeat(np.arange(len(read)), counts)
    columns: dict[str, pa.Array] = _batch_columns(read, of_batch) | _task_columns(read)
    for name in ("start_unix_ns", "duration_ns"):
        columns[name] = pa.array(_gather(read, counts, name, np.uint64, 0).astype(np.int64))
    columns["cpu_usage_cores"] = pa.array(_gather(read, counts, "cpu_usage_cores", np.float64, np.nan))
    cpi = _gather(read, counts, "cpi", np.float64, np.nan)
    columns["cpi"] = pa.array(cpi, mask=np.isnan(cpi))
    for name in COUNTS:
        values = _gather(read, counts, name, np.uint64, UNKNOWN_COUNT)
        columns[name] = pa.array(values.astype(np.int64), mask=values == UNKNOWN_COUNT)
    for name, largest in LARGEST_GAUGES.items():
        if not any(each.columns.has(name) for each in read):  # as of what only some agents measure
            columns[name] = pa.nulls(int(counts.sum()), pa.float64())
            continue
        gauge: _Floats = _gather(read, counts, name, np.float64, np.nan)
        columns[name] = pa.array(gauge, mask=~((gauge >= 0) & (gauge <= largest)))
    return pa.table({field.name: columns[field.name] for field in SAMPLES}).cast(SAMPLES)


@dataclass(frozen=True, slots=True)
class _Read:
    """A stored batch: its tasks and rows from the library, its columns from its bytes where they can be located.

    Rows that were refused are not in it: they may be of tasks whose names have any length.
    """

    stored: StoredBatch
    tasks: Sequence[agent_pb2.Task]
    task_index: npt.NDArray[np.int64]
    columns: _Columns

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


def _read(stored: StoredBatch) -> _Read:
    batch = agent_pb2.CpiBatch.FromString(stored.payload)
    columns = _Columns(batch, stored.payload)
    index = columns.task_index()
    return _Read(stored, batch.tasks, index if stored.kept is None else index[stored.kept], columns)


def _gather(
    read: Sequence[_Read], counts: npt.NDArray[np.int64], name: str, kind: Any, absent: float
) -> npt.NDArray[Any]:
    """Return one column over all batches; a batch that did not measure it has `absent` in every row."""
    parts = [each.column(name, kind) for each in read]
    whole = [np.full(n, absent, kind) if p is None else p for p, n in zip(parts, counts, strict=True)]
    return np.concatenate(whole)


def _batch_columns(read: Sequence[_Read], of_batch: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
    indices = pa.array(of_batch)
    return {
        "host": pa.array([each.stored.host for each in read], pa.string()).take(indices),
        "spool_id": pa.array([each.stored.spool_id for each in read], pa.string()).take(indices),
        "sequence": pa.array([each.stored.sequence for each in read], pa.uint64()).take(indices),
    }


def _task_columns(read: Sequence[_Read]) -> dict[str, pa.Array]:
    sizes = np.array([len(each.tasks) for each in read], dtype=np.int64)
    offsets = np.cumsum(sizes) - sizes
    indices = np.concatenate([e.task_index + o for e, o in zip(read, offsets, strict=True)])
    tasks = [task for each in read for task in each.tasks]
    names = {name: [getattr(task, name) for task in tasks] for name in ("machine", "platform")}
    stored = [each.stored for each in read]
    owners = {"machine": [b.host for b in stored], "platform": [b.platform for b in stored]}
    values: dict[str, pa.Array] = {
        "vm": pa.array([task.vm for task in tasks], pa.string()),
        "epoch": pa.array([task.epoch for task in tasks], pa.string()),
        "job": pa.array([task.job for task in tasks], pa.string()),
        "latency_sensitive": pa.array([task.latency_sensitive for task in tasks], pa.bool_()),
    }
    owner = pa.array(np.repeat(np.arange(len(read)), sizes))
    for name, named in names.items():
        values[name] = pa.array(owners[name], pa.string()).take(owner)
        if any(named):  # importers' rows
            own = pa.array(named, pa.string())
            values[name] = pc.if_else(pc.equal(own, ""), values[name], own)
    if np.array_equal(indices, np.arange(len(tasks))):  # each VM once, in order: as agents have it
        return values
    return {name: column.take(pa.array(indices)) for name, column in values.items()}
