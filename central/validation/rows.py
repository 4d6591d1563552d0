"""Which rows and values of an agent's batch are refused, why, and how many. Arrays only, no loop per row.

A structural problem refuses the whole batch (`BatchError`). What makes a row useless refuses it, counted under exactly
one reason: the first of `ROW_REASONS` that holds. So accepted and rejected rows add up to the batch's rows. Any other
value that cannot be is taken as not known, counted by `VALUE_REASONS`; the rest of its row stays.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from central.validation.plausible import MAX_HOST_WINDOW_NS, MIN_CPI, absurd_counters
from central.validation.wire_columns import COUNTERS, NUMBERS, TIMES, BatchColumns, Bounds, metric_limits
from whitepanda.common.window_columns import BY_NUMBER
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
ROW_REASONS = ("bad_task", "bad_machine", "bad_time", "future_time", "old_time", "bad_cpu_usage")

#: Why a value is taken as not known. `unknown_metric`: its number is of a newer agent.
VALUE_REASONS = ("bad_cpi", "absurd_cpi", "absurd_counter", "absurd_value", "unknown_metric")

_MAX_INT64 = 2**63 - 1
_MAX_DURATION_NS = 86_400 * 10**9  # no window and no trace record is longer than a day
_MAX_NAME = 512  # characters of a VM's, epoch's, job's, machine's or platform's name, and of that for people
_JOB_BYTES = 64  # of names, for each job that a host may have
_LEAST_JOB_BYTES = 64 << 10  # of a host, however few jobs it may have
_MAX_METRICS = 256  # columns of a batch, of a newer agent too
_MAX_SPOOL_ID = 64  # bytes; it is remembered indefinitely
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # and what ends a line elsewhere

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
class Sender:
    """Who sends a batch, and when it came.

    `is_importer`: it may name other machines and platforms, of any time.
    """

    host: str
    platform: str
    is_importer: bool
    limits: Limits
    now_unix_ns: int


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome for one batch. `kept` (shape (rows,)) is True for accepted rows; None means all of them.

    `has_bad_tasks` is whether a task is refused, even if it has no row. Values are counted by reason; `bad_cpi` (shape
    (rows,)) and `bad_metrics` (shape (metrics, rows)) are those to be taken as not known, None without any.
    """

    rows: int
    accepted_rows: int
    rejected_rows: dict[str, int]
    kept: _Mask | None
    jobs: frozenset[str]
    has_bad_tasks: bool = False
    rejected_values: dict[str, int] = field(default_factory=dict)
    bad_cpi: _Mask | None = None
    bad_metrics: _Mask | None = None


def is_name(text: str, max_length: int = _MAX_NAME) -> bool:
    """Whether a text can be a name: not empty, at most `max_length` characters, no control characters."""
    return 0 < len(text) <= max_length and _CONTROL.search(text) is None


def job_bytes(jobs: Iterable[str]) -> int:
    """Return the size of all names of jobs."""
    return len("".join(jobs).encode())


def too_many_jobs(jobs: int, size: int, max_host_jobs: int) -> str:
    """Return why a number of jobs, with names of `size` bytes in all, is too many for a host; "" if it is not."""
    if jobs > max_host_jobs:
        return f"{jobs} jobs; ingest.max_host_jobs allows {max_host_jobs} of a host"
    allowed = max(_JOB_BYTES * max_host_jobs, _LEAST_JOB_BYTES)
    if size > allowed:
        return f"names of jobs have {size} bytes; ingest.max_host_jobs = {max_host_jobs} allows {allowed} of a host"
    return ""


def check(batch: agent_pb2.CpiBatch, sender: Sender, payload: bytes = b"") -> Checked:
    """Check the rows of a batch. With `payload`, the batch as `SerializeToString` made it, columns are read faster.

    Raises BatchError if nothing of the batch can be used.
    """
    limits, is_importer = sender.limits, sender.is_importer
    rows = _check_structure(batch, limits)
    if not is_importer and len(batch.tasks) > limits.max_vms_per_hour:
        vms = len({(task.vm, task.job) for task in batch.tasks})
        if vms > limits.max_vms_per_hour:
            detail = f"{vms} VMs; quotas.max_vms_per_hour allows {limits.max_vms_per_hour} of one host"
            raise BatchError("too_many_vms", detail)
    bad_task, bad_machine, jobs = _check_tasks(batch, sender)
    if not is_importer and (detail := too_many_jobs(len(jobs), job_bytes(jobs), limits.max_host_jobs)):
        raise BatchError("too_many_jobs", detail)
    if rows == 0:
        return Checked(0, 0, {}, None, jobs)
    rejected: dict[str, int] = {}
    bad = np.zeros(rows, dtype=np.bool_)
    columns = BatchColumns(batch, payload)
    task_index = columns.task_index()
    masks = _row_masks(columns, sender)
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
    kept = ~bad if lost else None
    return Checked(rows, rows - lost, rejected, kept, jobs, has_bad_tasks, *_bad_values(columns, sender, kept))


def bounds(limits: Limits, now_unix_ns: int) -> Bounds:
    """Return the limits within which no number of a host's batch is a reason to refuse its row."""
    return Bounds(
        earliest_unix_ns=max(0, now_unix_ns - int(limits.max_past_days * 86_400e9)),
        latest_unix_ns=max(0, min(now_unix_ns + int(limits.max_future_s * 1e9), _MAX_INT64 - _MAX_DURATION_NS)),
        max_duration_ns=MAX_HOST_WINDOW_NS,
        max_cpu_usage_cores=limits.max_cpu_usage_cores,
        min_cpi=MIN_CPI,
        max_cpi=limits.max_cpi,
    )


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
    _check_lengths(batch, rows)
    if rows:
        highest = max(batch.task_index)
        if highest >= len(batch.tasks):
            raise BatchError("task_index", f"task_index {highest} points beyond the batch's {len(batch.tasks)} tasks")
    return rows


def _check_lengths(batch: agent_pb2.CpiBatch, rows: int) -> None:
    numbers = batch.metrics.numbers
    allowed = {**{name: {rows, min(rows, 1)} for name in TIMES}, "cpi": {0, rows}, "cpu_usage_cores": {rows}}
    lengths = [(name, len(getattr(batch, name)), allowed[name]) for name in (*TIMES, *NUMBERS)]
    for name, length, right in (*lengths, ("metrics", len(batch.metrics.values), {len(numbers) * rows})):
        if length not in right:
            raise BatchError("column_length", f"column {name} has {length} values, task_index has {rows}")
    if len(numbers) > _MAX_METRICS:
        raise BatchError("column_length", f"metrics have {len(numbers)} columns, more than {_MAX_METRICS}")
    if len(set(numbers)) != len(numbers):
        raise BatchError("column_length", f"metrics have {len(numbers)} columns of {len(set(numbers))} metrics")


def _check_tasks(batch: agent_pb2.CpiBatch, sender: Sender) -> tuple[_Mask, _Mask, frozenset[str]]:
    """Return which tasks lack a usable name, which name an impossible machine, and the jobs of the usable ones."""
    host, platform, is_importer = sender.host, sender.platform, sender.is_importer
    bad_task = np.zeros(len(batch.tasks), dtype=np.bool_)
    bad_machine = np.zeros(len(batch.tasks), dtype=np.bool_)
    jobs = set()
    # Control characters are rare: checking all names together is quicker than each by itself.
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


def _row_masks(columns: BatchColumns, sender: Sender) -> dict[str, _Mask]:
    """Return, by reason, which rows have a bad value; reasons that cannot apply are left out."""
    limits, is_importer = sender.limits, sender.is_importer
    within = bounds(limits, sender.now_unix_ns)
    start, duration, usage = (columns.required(name) for name in (*TIMES, "cpu_usage_cores"))
    longest = _MAX_DURATION_NS if is_importer else MAX_HOST_WINDOW_NS
    masks = {
        "bad_time": (duration == 0) | (duration > longest) | (start > _MAX_INT64 - _MAX_DURATION_NS),
        "future_time": start > within.latest_unix_ns,
        # A comparison with NaN is False: so are values that are not a number.
        "bad_cpu_usage": ~((usage >= 0) & (usage <= limits.max_cpu_usage_cores)),
    }
    if not is_importer:  # a trace is of any time; a host's clock that is that wrong has not been set
        masks["old_time"] = start < within.earliest_unix_ns
    return masks


def _bad_values(
    columns: BatchColumns, sender: Sender, kept: _Mask | None
) -> tuple[dict[str, int], _Mask | None, _Mask | None]:
    """Return how many values of accepted rows cannot be, by reason, and which: of the CPI and of the metrics."""
    limits, is_importer = sender.limits, sender.is_importer
    masks: dict[str, _Mask] = {}
    cpi, bad_cpi = columns.get("cpi"), None
    if cpi is not None:
        masks["bad_cpi"] = (cpi <= 0) | np.isinf(cpi)  # NaN: not known, which is not a fault
        masks["absurd_cpi"] = (cpi > limits.max_cpi) & ~masks["bad_cpi"]
        if not is_importer:  # a trace's may be normalised, as its usage
            masks["absurd_cpi"] |= (cpi < MIN_CPI) & ~masks["bad_cpi"]
        bad_cpi = masks["bad_cpi"] | masks["absurd_cpi"]
    values, numbers = columns.metrics(), columns.numbers
    least, largest = metric_limits(numbers)
    bad = masks["absurd_value"] = (values < least) | (values > largest)
    places = [numbers.index(number) if number in numbers else None for number in COUNTERS]
    counters = [None if at is None else values[at].astype(np.float64) for at in places]
    if any(each is not None for each in counters):
        cores = limits.max_cpu_usage_cores if is_importer else columns.required("cpu_usage_cores")
        absurd = absurd_counters(columns.required("duration_ns"), cores, *counters)
        masks["absurd_counter"] = np.zeros_like(bad)
        for at in places:
            if at is not None:
                masks["absurd_counter"][at] = absurd & ~bad[at] & ~np.isnan(values[at])
        bad = bad | masks["absurd_counter"]
    unknown = [number not in BY_NUMBER for number in numbers]
    masks["unknown_metric"] = np.broadcast_to(np.array(unknown, dtype=np.bool_)[:, None], values.shape)
    counts = {name: int(np.count_nonzero(mask if kept is None else mask[..., kept])) for name, mask in masks.items()}
    found = {name: count for name, count in counts.items() if count}
    return found, bad_cpi if bad_cpi is not None and bad_cpi.any() else None, bad if bad.any() else None
