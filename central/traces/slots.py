"""A trace as task slots in a temporary Parquet file, read back a day at a time.

Records are merged by duration in the engine, which spills; Python holds one day (49 bytes per task slot) and the
distinct identifiers.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from central.build import panda_state
from central.build.engine import AnyEngine, Engine
from central.build.spark import SparkEngine, is_spark_error
from central.models.antagonists.slots import SLOT_S, SLOTS_PER_DAY, TaskSlots
from collector.traces.google import LatencySensitiveRule, TraceBatch, TraceCounts, TraceLimits, read_trace
from whitepanda.common.errors import InputError, UnavailableError

#: What a trace can be computed on.
ENGINES = ("duckdb", "spark")

# A trace's rows as the engine wants samples. Keys stay numbers; a task is (job, vm) = (collection, instance).
_SAMPLES = pa.schema(
    {
        "machine": pa.int64(),
        "vm": pa.int64(),
        "job": pa.int64(),
        "platform": pa.int8(),  # unknown in a trace
        "latency_sensitive": pa.bool_(),
        "start_unix_ns": pa.int64(),
        "duration_ns": pa.int64(),
        "cpi": pa.float64(),
        "cpu_usage_cores": pa.float64(),
    }
)
_DAY_NS = SLOT_S * SLOTS_PER_DAY * 10**9
_REMEDY = "TMPDIR names the folder for temporary files"


#: Called with the step ("read", "fit" or "day"), what is done, and all of it if known.
OnProgress = Callable[[str, int, int | None], None]


@dataclass(frozen=True, slots=True)
class SlotOptions:
    """How a trace is read, and what it is computed on. Workers of `spark_master` must see TMPDIR under the same name.

    Raises InputError if the engine is unknown.
    """

    rule: LatencySensitiveRule
    limits: TraceLimits
    engine: str
    spark_master: str
    memory_limit_mib: int
    threads: int = os.cpu_count() or 1

    def __post_init__(self) -> None:
        """Check the engine."""
        if self.engine not in ENGINES:
            raise InputError(f"unknown engine '{self.engine}'; known: {', '.join(ENGINES)}")


@dataclass(frozen=True, slots=True)
class SlotFile:
    """Task slots of a trace, and the engine that made them. `rows` of them, from `counts.accepted` records.

    `duckdb` is that engine, or reads the file next to Spark.
    """

    opened: AnyEngine
    duckdb: Engine
    path: Path
    folder: Path
    counts: TraceCounts
    rows: int

    def begin_of_day_ns(self, day: int) -> int:
        """When a day of the trace begins, on its own clock. Day 0 is the first that has a row."""
        (first,) = self._query(f"SELECT min(slot_start_ns) // {_DAY_NS} FROM").fetchone()
        return (int(first) + day) * _DAY_NS

    def last_day(self, *, until_day: int | None = None) -> int:
        """Return the number of the last day that has a row. `until_day`: of the days before that one."""
        before = self.begin_of_day_ns(until_day) if until_day is not None else 2**63 - 1
        (last,) = self._query("SELECT max(slot_start_ns) FROM", "WHERE slot_start_ns < ?", before).fetchone()
        return int(last - self.begin_of_day_ns(0)) // _DAY_NS

    def _query(self, select: str, then: str = "", *values: int) -> Any:
        """Run a query on the file, whose name stands between the two parts."""
        name = str(self.path).replace("'", "''")
        return self.duckdb.connection.con.execute(f"{select} read_parquet('{name}') {then}", list(values))

    def days(self) -> Iterator[tuple[int, TaskSlots]]:
        """Yield number and rows of each day that has any, ascending; day 0 is the trace's first.

        Days are those of the trace's clock. `job` and `machine` are the trace's numbers, `task` is a number
        of (collection, instance). Slots are 300 s long.
        """
        found = self._query(f"SELECT DISTINCT slot_start_ns // {_DAY_NS} FROM", "ORDER BY 1").fetchall()
        instances, jobs = (
            self._query(f"SELECT DISTINCT {name} FROM", "ORDER BY 1").fetchnumpy()[name] for name in ("vm", "job")
        )
        for (day,) in found:
            number = day - found[0][0]
            columns = self._query(
                "SELECT * FROM", "WHERE slot_start_ns >= ? AND slot_start_ns < ?", day * _DAY_NS, (day + 1) * _DAY_NS
            ).fetchnumpy()
            job, instance = columns["job"], columns["vm"]
            yield (
                number,
                TaskSlots(
                    machine=columns["machine"],
                    slot=columns["slot_start_ns"] // (SLOT_S * 10**9),
                    task=np.searchsorted(jobs, job) * len(instances) + np.searchsorted(instances, instance),
                    job=job,
                    platform=columns["platform"],
                    latency_sensitive=columns["latency_sensitive"],
                    usage=np.ma.filled(columns["usage"], np.nan),
                    cpi=np.ma.filled(columns["cpi"], np.nan),
                ),
            )


@contextmanager
def slot_file(
    traces: Sequence[Path], options: SlotOptions, on_progress: OnProgress, slot_s: float = SLOT_S
) -> Iterator[SlotFile]:
    """Read a trace and merge the records of each task in each slot, into a file that lives as long as the context.

    What does not fit into the engine's memory goes to TMPDIR. Raises InputError if a trace cannot be used or has no
    usable row, UnavailableError if disk or memory did not suffice, also for the context's own use of the engine, or
    there is no Spark.
    """
    reader = read_trace(traces, rule=options.rule, limits=options.limits)
    try:
        with tempfile.TemporaryDirectory(prefix="whitepanda-fit-") as name:
            folder = Path(name)
            samples = folder / "samples.parquet"
            with pq.ParquetWriter(samples, _SAMPLES, compression="zstd") as writer:
                for batch in reader:
                    writer.write_table(_samples(batch))
                    on_progress("read", reader.counts.rows_read, reader.total_rows)
            _check_usable(traces, reader.counts)
            on_progress("fit", 0, None)
            with _engines(options, folder) as (opened, duck):
                merged = panda_state.task_slots(opened.read([samples]), round(slot_s * 1e9))
                rows = opened.write(merged, folder / "slots.parquet")
                samples.unlink()
                yield SlotFile(opened, duck, folder / "slots.parquet", folder, reader.counts, rows)
    except Exception as error:
        if not isinstance(error, OSError | duckdb.Error | MemoryError) and not is_spark_error(error):
            raise
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnavailableError(f"{trace_names(traces)}: the fit was aborted: {line}; {_REMEDY}") from error


@contextmanager
def _engines(options: SlotOptions, folder: Path) -> Iterator[tuple[AnyEngine, Engine]]:
    memory_limit_mib, threads = options.memory_limit_mib, options.threads
    with Engine(memory_limit_mib=memory_limit_mib, threads=threads, spill_dir=folder / "spill") as duck:
        if options.engine == "duckdb":
            yield duck, duck
            return
        with SparkEngine(
            master=options.spark_master,
            memory_limit_mib=memory_limit_mib,
            partitions=4 * threads,
            spill_dir=folder / "spark",
        ) as spark:
            yield spark, duck


def _samples(batch: TraceBatch) -> pa.Table:
    """Return a batch with the engine's columns. An unknown CPI is null."""
    columns = {
        "machine": batch.machine_id,
        "vm": batch.instance_index,
        "job": batch.collection_id,
        "platform": np.zeros(batch.rows, np.int8),
        "latency_sensitive": batch.latency_sensitive,
        "start_unix_ns": batch.start_unix_ns,
        "duration_ns": batch.duration_ns,
        "cpi": pa.array(batch.cpi, from_pandas=True),
        "cpu_usage_cores": batch.cpu_usage,
    }
    return pa.table(columns, schema=_SAMPLES)


def trace_names(traces: Sequence[Path]) -> str:
    """Return the name of a trace in a message."""
    return str(traces[0]) if len(traces) == 1 else f"{traces[0]} and {len(traces) - 1} more"


def no_sensitive_task(traces: Sequence[Path], rule: LatencySensitiveRule) -> InputError:
    """Return the error of a trace without a possible victim."""
    return InputError(
        f"{trace_names(traces)}: no latency-sensitive task with a usable CPI (priority at least {rule.priority:g}, "
        f"scheduling class at least {rule.scheduling_class:g}); see --priority, --scheduling-class and --max-cpi"
    )


def _check_usable(traces: Sequence[Path], counts: TraceCounts) -> None:
    if counts.accepted:
        return
    why = f"{counts.rows_read} rows read; rejected: {_reasons(counts.rejected, counts.first)}"
    raise InputError(f"{trace_names(traces)}: no usable row ({why if counts.rows_read else 'the trace is empty'})")


def rows_json(counts: TraceCounts) -> dict[str, Any]:
    """Return the counts, "rows" of the JSON output."""
    return {
        "read": counts.rows_read,
        "used": counts.accepted,
        "rejected": dict(sorted(counts.rejected.items())),
        "unusable_cpi": counts.unusable_cpi,
        "without_cpi": counts.without_cpi,
        "without_priority": counts.without_priority,
        "first": dict(sorted(counts.first.items())),
    }


def rows_line(rows: dict[str, Any]) -> str:
    """Return `rows_json` as a line for people."""
    unusable = f"{rows['unusable_cpi']:,} with an unusable CPI"
    if rows["unusable_cpi"]:
        bad = rows["unusable_cpi"] - rows["without_cpi"]
        first = f", first: {rows['first']['unusable_cpi']}" if bad and "unusable_cpi" in rows["first"] else ""
        unusable += f": {rows['without_cpi']:,} without any, {bad:,} absurd{first}; their usage counts"
    rejected = _reasons(rows["rejected"], rows["first"]) or "none"
    return f"rows: {rows['read']:,} read, {rows['used']:,} used ({unusable}), rejected: {rejected}"


def _reasons(rejected: dict[str, int], first: dict[str, str]) -> str:
    return ", ".join(
        f"{reason} {count:,}" + (f" (first: {first[reason]})" if reason in first else "")
        for reason, count in sorted(rejected.items())
    )
