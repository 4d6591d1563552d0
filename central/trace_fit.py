"""Antagonist coefficients of a given trace: through the engine into one Parquet file, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from central import engine
from collector.traces import LatencySensitiveRule, TraceBatch, TraceCounts, TraceLimits, read_trace
from whitepanda.common.durable import replacing
from whitepanda.common.errors import InputError, UnavailableError

if TYPE_CHECKING:
    import ibis.expr.types as ir

__all__ = ["RESULT", "TraceFit", "TraceFitOptions", "fit_trace"]

#: Columns of the file. `samples` counts the job's task slots beside a latency-sensitive task, `cpi_samples`
#: those with a CPI; `latency_sensitive_ratio` is the share of all its task slots that are latency-sensitive.
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

# A trace's rows as the engine wants samples. Keys stay numbers; a task is (job, vm) = (collection, instance).
_SAMPLES = pa.schema(
    {
        "machine": pa.int64(),
        "vm": pa.int64(),
        "job": pa.int64(),
        "platform": pa.int8(),  # a trace says nothing of it
        "latency_sensitive": pa.bool_(),
        "start_unix_ns": pa.int64(),
        "duration_ns": pa.int64(),
        "cpi": pa.float64(),
        "cpu_usage_cores": pa.float64(),
    }
)

_MIN_SLOT_S = 0.001
_MAX_SLOT_S = 86_400.0


@dataclass(frozen=True, slots=True)
class TraceFitOptions:
    """How a trace is fitted. Slots begin at multiples of `slot_s` on the trace's own clock."""

    slot_s: float = 300.0
    rule: LatencySensitiveRule = field(default_factory=LatencySensitiveRule)
    limits: TraceLimits = field(default_factory=TraceLimits)
    memory_limit_mib: int = 2048
    threads: int = os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class TraceFit:
    """What was fitted. `table` has the columns `RESULT`, largest coefficient first, as the file does."""

    table: pa.Table
    counts: TraceCounts
    task_slots: int
    machine_slots: int
    seconds: float


def fit_trace(
    traces: Sequence[Path],
    out: Path,
    options: TraceFitOptions,
    on_progress: Callable[[str, int, int | None], None] = lambda _step, _done, _total: None,
) -> TraceFit:
    """Fit PANDA's coefficients (equations (1) to (3)) to the files of one trace and write them to `out`.

    Args:
        traces: Google cluster trace v3 usage rows, see `collector.traces`.
        out: Parquet file, replaced as a whole at the end.
        options: slots, rules and limits.
        on_progress: called with the step ("read" or "fit"), rows done, and rows in all where they are known.

    Raises:
        InputError: a trace or `out` cannot be used, or there is nothing to fit.
        UnavailableError: disk or memory did not suffice.

    After an error `out` is as it was.

    """
    began = time.monotonic()
    if not _MIN_SLOT_S <= options.slot_s <= _MAX_SLOT_S:
        raise InputError(f"a slot must be {_MIN_SLOT_S} s to {_MAX_SLOT_S} s long (value {options.slot_s})")
    reader = read_trace(traces, rule=options.rule, limits=options.limits)
    try:
        with contextlib.ExitStack() as stack:
            file = _begin(stack, out, traces)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="whitepanda-fit-"))
            samples = Path(folder) / "samples.parquet"
            with pq.ParquetWriter(samples, _SAMPLES, compression="zstd") as writer:
                for batch in reader:
                    writer.write_table(_samples(batch))
                    on_progress("read", reader.counts.rows_read, reader.total_rows)
            counts = reader.counts
            if not counts.accepted:
                raise InputError(f"{_names(traces)}: no usable row ({_rejections(counts)})")
            on_progress("fit", 0, None)
            table, task_slots, machine_slots = _fitted(samples, Path(folder), options)
            _check_found(table, machine_slots, _names(traces), options.rule)
            pq.write_table(table, file, compression="zstd")
    except (OSError, duckdb.Error) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        remedy = "TMPDIR names the folder for temporary files"
        raise UnavailableError(f"{_names(traces)}: the fit was broken off: {line}; {remedy}") from error
    return TraceFit(table, counts, task_slots, machine_slots, time.monotonic() - began)


def _begin(stack: contextlib.ExitStack, out: Path, traces: Sequence[Path]) -> IO[bytes]:
    """Make the file that becomes `out` as the stack ends: what cannot be written is said before the work."""
    if out.is_dir():
        raise InputError(f"{out}: is a folder; give the name of a file")
    if out.resolve() in {trace.resolve() for trace in traces}:
        raise InputError(f"{out}: is the trace itself; give the name of another file")
    try:
        return stack.enter_context(replacing(out, mode=0o644))
    except OSError as error:
        raise InputError(f"{out}: cannot write: {error.strerror}") from error


def _check_found(table: pa.Table, machine_slots: int, names: str, rule: LatencySensitiveRule) -> None:
    if not machine_slots:
        raise InputError(
            f"{names}: no latency-sensitive task with a CPI (priority at least {rule.priority:g}, scheduling "
            f"class at least {rule.scheduling_class:g}); see --priority and --scheduling-class"
        )
    if not table.num_rows:
        raise InputError(f"{names}: no task used CPU beside a latency-sensitive one; there is nothing to fit")


def _samples(batch: TraceBatch) -> pa.Table:
    """Give a batch the engine's columns. An unknown CPI is null."""
    columns = [
        pa.array(batch.machine_id),
        pa.array(batch.instance_index),
        pa.array(batch.collection_id),
        pa.repeat(pa.scalar(0, pa.int8()), batch.rows),
        pa.array(batch.latency_sensitive),
        pa.array(batch.start_unix_ns),
        pa.array(batch.duration_ns),
        pa.array(batch.cpi, from_pandas=True),
        pa.array(batch.cpu_usage),
    ]
    return pa.Table.from_arrays(columns, schema=_SAMPLES)


def _fitted(samples: Path, folder: Path, options: TraceFitOptions) -> tuple[pa.Table, int, int]:
    """Return the result, the number of task slots, and that of machine slots with an mnCPI."""
    with engine.Engine(
        memory_limit_mib=options.memory_limit_mib, threads=options.threads, spill_dir=folder / "spill"
    ) as duckdb:
        merged = engine.task_slots(duckdb.read([samples]), round(options.slot_s * 1e9))
        task_slots = engine.write_parquet(merged, folder / "slots.parquet")
        slots = duckdb.read([folder / "slots.parquet"])
        tables = engine.fit(slots)
        machine_slots = int(tables.machine_cpi.count().to_pyarrow().as_py())
        return _result(slots, tables.coefficients), task_slots, machine_slots


def _result(slots: ir.Table, coefficients: ir.Table) -> pa.Table:
    import ibis  # noqa: PLC0415 - takes a second

    statistics = (
        engine.job_statistics(engine.cpi_moments(slots)).drop("platform").rename(cpi_samples="samples")
    )
    shares = slots.group_by("job").aggregate(
        latency_sensitive_ratio=slots.latency_sensitive.cast("float64").mean()
    )
    rows = coefficients.join(shares, "job").left_join(statistics, "job").drop("job_right")
    rows = rows.mutate(
        collection_id=rows.job, job=rows.job.cast("string"), cpi_samples=ibis.coalesce(rows.cpi_samples, 0)
    )
    rows = rows.order_by([rows.coefficient.desc(), rows.collection_id.asc()])
    return rows.select(*RESULT.names).to_pyarrow().cast(RESULT)


def _names(traces: Sequence[Path]) -> str:
    return str(traces[0]) if len(traces) == 1 else f"{traces[0]} and {len(traces) - 1} more"


def _rejections(counts: TraceCounts) -> str:
    if not counts.rows_read:
        return "the trace is empty"
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.rejected.items()))
    return f"{counts.rows_read} rows read; rejected: {reasons}"
