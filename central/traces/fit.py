"""Antagonist coefficients of a given trace: through the engine into one Parquet file, whole or not at all."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.parquet as pq

from central.build import panda_state, whitepanda_state
from central.build.engine import AnyEngine
from central.models.antagonists.slots import SLOT_S
from central.traces.generator.write import new_file
from central.traces.slots import OnProgress, SlotFile, SlotOptions, no_sensitive_task, slot_file, trace_names
from collector.traces.google import TraceCounts
from whitepanda.common.errors import InputError, UnavailableError

#: Columns of the file. `samples` counts the job's task slots next to a latency-sensitive task (method whitepanda:
#: machine slots), `cpi_samples` those with a CPI; `latency_sensitive_ratio` is the share of all its task slots that are
#: latency-sensitive.
RESULT = pa.schema(
    {
        "job": pa.string(),
        "collection_id": pa.int64(),
        "coefficient": pa.float64(),
        "standard_error": pa.float64(),
        "samples": pa.int64(),
        "sum_usage_squared": pa.float64(),
        "cpi_samples": pa.int64(),
        "mean_cpi": pa.float64(),
        "std_cpi": pa.float64(),
        "latency_sensitive_ratio": pa.float64(),
    }
)

FIT_METHODS = ("whitepanda", "panda")

_MIN_SLOT_S = 0.001
_MAX_SLOT_S = 86_400.0


@dataclass(frozen=True, slots=True)
class TraceFit:
    """What was fitted. `table` has the columns `RESULT`, largest coefficient first, as the file does.

    `last_day` is the last one that was used; the trace's first is 0.
    """

    table: pa.Table
    counts: TraceCounts
    task_slots: int
    machine_slots: int
    last_day: int
    seconds: float


def fit_trace(
    traces: Sequence[Path],
    out: Path,
    options: SlotOptions,
    on_progress: OnProgress,
    *,
    method: str,
    until_day: int | None,
    slot_s: float,
) -> TraceFit:
    """Fit antagonist coefficients to the files of one trace and write them to `out` (Parquet), whole or not at all.

    `traces` are Google cluster trace v3 usage rows, see `collector.traces.google`. Only days before `until_day` count;
    the trace's first is 0. Slots begin at multiples of `slot_s` on the trace's own clock. Raises InputError if a trace
    or `out` cannot be used, or there is nothing to fit, and UnavailableError as `slot_file`, or if `out` cannot be
    written.
    """
    began = time.monotonic()
    if not _MIN_SLOT_S <= slot_s <= _MAX_SLOT_S:
        raise InputError(f"a slot must be {_MIN_SLOT_S} s to {_MAX_SLOT_S} s long (value {slot_s})")
    if method not in FIT_METHODS:
        raise InputError(f"cannot fit method '{method}'; known: {', '.join(FIT_METHODS)}")
    if method == "whitepanda" and slot_s != SLOT_S:
        raise InputError(f"method whitepanda: slots are {SLOT_S} s long (value {slot_s:g}); see --slot-s")
    if out.suffix.lower() == ".csv":
        raise InputError(f"{out}: coefficients are written as Parquet; give it a name that ends in .parquet")
    if out.resolve() in {trace.resolve() for trace in traces}:
        raise InputError(f"{out}: is the trace itself; give the name of another file")
    try:
        # The file is opened first: a place that cannot be written to is found before the work.
        with new_file(out) as file, slot_file(traces, options, on_progress, slot_s) as slots:
            table, task_slots, machine_slots = _fitted(slots, method, until_day, slot_s)
            if not machine_slots:
                raise no_sensitive_task(traces, options.rule)
            if not table.num_rows:
                names = trace_names(traces)
                raise InputError(f"{names}: no task used CPU beside a latency-sensitive one; there is nothing to fit")
            last_day = slots.last_day(until_day=until_day)
            pq.write_table(table, file, compression="zstd")
    except OSError as error:
        raise UnavailableError(f"{out}: cannot write: {error.strerror}") from error
    return TraceFit(table, slots.counts, task_slots, machine_slots, last_day, time.monotonic() - began)


def _fitted(file: SlotFile, method: str, until_day: int | None, slot_s: float) -> tuple[pa.Table, int, int]:
    """Return the result, the number of task slots, and the number of machine slots with a latency-sensitive task."""
    opened = file.opened
    slots = opened.read([file.path])
    if until_day is not None:
        slots = slots.filter(slots.slot_start_ns < file.begin_of_day_ns(until_day))
    task_slots = _count(opened, slots)
    if method == "panda":
        tables = panda_state.fit(slots)
        return _result(opened, slots, tables.coefficients), task_slots, _count(opened, tables.machine_cpi)
    folder = file.folder / "state"
    folder.mkdir()
    whitepanda_state.write_state(opened, slots, round(slot_s * 1e9), folder)
    state, _ = whitepanda_state.merged_state([folder])
    found = folder / "coefficients.parquet"
    pq.write_table(whitepanda_state.as_table(whitepanda_state.coefficients([folder]), pa.int64()), found)
    return _result(opened, slots, opened.read([found])), task_slots, int(state.slots.sum())


def _count(opened: AnyEngine, table: ir.Table) -> int:
    return int(opened.collect(table.aggregate(rows=table.count()))["rows"][0].as_py())


def _result(opened: AnyEngine, slots: ir.Table, coefficients: ir.Table) -> pa.Table:
    statistics = (
        panda_state.job_statistics(panda_state.cpi_moments(slots)).drop("platform").rename(cpi_samples="samples")
    )
    shares = slots.group_by("job").aggregate(latency_sensitive_ratio=slots.latency_sensitive.cast("float64").mean())
    rows = coefficients.join(shares, "job").left_join(statistics, "job").drop("job_right")
    rows = rows.mutate(
        collection_id=rows.job, job=rows.job.cast("string"), cpi_samples=ibis.coalesce(rows.cpi_samples, 0)
    )
    rows = rows.order_by([rows.coefficient.desc(), rows.collection_id.asc()])
    return opened.collect(rows.select(*RESULT.names)).cast(RESULT)
