"""The SQL of a roll-up: windows of segments into sums per task and slot, and the batches that these have."""

# ruff: noqa: S608 - SQL made of this file's own words and of quoted names; no values of rows are in it
from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from central.lake.replica_copies import SQL_ROWS_ONCE, SQL_TAKEN
from central.lake.segments import Lake, Segment

if TYPE_CHECKING:
    import duckdb


#: Sums over the windows of one task (vm) that begin in one slot. `usage` and `cpi` are sums of value * duration, their
#: times the durations of the windows that have the value; cycles and instructions are null if no window has them.
SLOTS = pa.schema(
    {
        "machine": pa.string(),
        "slot_start_ns": pa.int64(),
        "vm": pa.string(),
        "job": pa.string(),
        "platform": pa.string(),
        "latency_sensitive": pa.bool_(),
        "windows": pa.int64(),
        "duration_ns": pa.int64(),
        "usage_core_ns": pa.float64(),
        "usage_time_ns": pa.int64(),
        "cpi_ns": pa.float64(),
        "cpi_time_ns": pa.int64(),
        "cycles": pa.int64(),
        "instructions": pa.int64(),
    }
)
#: The largest sum of whole numbers: what is more is kept as this.
MOST = 2**63 - 1
KEYS = SLOTS.names[:6]
SUMS = SLOTS.names[6:]


def write_part(
    connection: duckdb.DuckDBPyConnection,
    lake: Lake,
    new: list[Segment],
    old_batches: list[str],
    merged: list[str],
    slot_ns: int,
    files: tuple[Path, Path],
    without: Sequence[str] = (),
) -> tuple[int, int]:
    """Write the slots and batches of new segments, with the slots of `merged` files. Returns windows and duplicates.

    Rows of the machines in `without` are left out. If journals share a batch, or an older part has it (`old_batches`),
    it counts once (`central.lake.replica_copies`); rows of one batch and day are in one segment.
    """
    columns = (
        "host, spool_id, sequence, start_unix_ns, duration_ns, machine, vm, job, platform, latency_sensitive, "
        "cpi, cpu_usage_cores, cycles, instructions"
    )
    by_origin: dict[str, list[str]] = defaultdict(list)
    for segment in new:  # one scan for as many as possible: each has its own buffers
        segment.check_schema()
        by_origin[segment.origin].append(_text(segment.path))
    kept = f" WHERE machine NOT IN ({', '.join(map(_text, without))})" if without else ""
    rows = " UNION ALL ".join(
        f"SELECT {_text(origin)} AS origin, {columns} FROM read_parquet([{', '.join(paths)}]){kept}"
        for origin, paths in by_origin.items()
    )
    connection.execute(f"CREATE OR REPLACE TEMP VIEW new_rows AS {rows}")
    known = "SELECT '' AS host, '' AS spool_id, 0::UBIGINT AS first, 0::UBIGINT AS last WHERE false"
    if old_batches:
        paths = ", ".join(_text(lake.objects.local(name)) for name in old_batches)
        known = f"SELECT host, spool_id, first, last FROM read_parquet([{paths}])"
    connection.execute(f"CREATE OR REPLACE TEMP VIEW known AS {known}")
    connection.execute(SQL_TAKEN)
    connection.execute(SQL_ROWS_ONCE)
    slots_file, batches_file = map(_text, files)
    sums = _slot_sums(slot_ns)
    if merged:
        paths = ", ".join(_text(lake.objects.local(name)) for name in merged)
        totals = ", ".join(
            f"{_whole(f'sum({name})') if SLOTS.field(name).type == pa.int64() else f'sum({name})'} AS {name}"
            for name in SUMS
        )
        sums = (
            f"SELECT {', '.join(KEYS)}, {totals} FROM (({sums}) UNION ALL SELECT {', '.join(SLOTS.names)} "
            f"FROM read_parquet([{paths}])) GROUP BY {', '.join(KEYS)}"
        )
    connection.execute(f"COPY ({sums}) TO {slots_file} (FORMAT parquet, COMPRESSION zstd)")
    ranges = _ranges(is_with_known=bool(merged))
    connection.execute(f"COPY ({ranges}) TO {batches_file} (FORMAT parquet, COMPRESSION zstd)")
    counted, total = connection.execute(
        "SELECT (SELECT count(*) FROM rows_once), (SELECT count(*) FROM new_rows)"
    ).fetchall()[0]
    connection.execute("DROP TABLE taken")
    return int(counted), int(total) - int(counted)


def _slot_sums(slot_ns: int) -> str:
    """Return the sums of `SLOTS` over the view rows_once, as `central.build.panda_state.task_slots` weighs them."""
    usage, cpi = "cpu_usage_cores", "cpi::DOUBLE"
    has_usage = f"{usage} IS NOT NULL AND NOT isnan({usage})"
    has_cpi = f"{cpi} IS NOT NULL AND NOT isnan({cpi})"
    return (
        f"SELECT machine, start_unix_ns - start_unix_ns % {slot_ns} AS slot_start_ns, vm, job, platform, "
        f"latency_sensitive, count(*) AS windows, {_whole('sum(duration_ns)')} AS duration_ns, "
        f"sum({usage} * duration_ns) FILTER ({has_usage}) AS usage_core_ns, "
        f"{_whole(f'coalesce(sum(duration_ns) FILTER ({has_usage}), 0)')} AS usage_time_ns, "
        f"sum({cpi} * duration_ns) FILTER ({has_cpi}) AS cpi_ns, "
        f"{_whole(f'coalesce(sum(duration_ns) FILTER ({has_cpi}), 0)')} AS cpi_time_ns, "
        # In whole numbers: sums of floating-point numbers would depend on the order.
        f"{_whole('sum(cycles::HUGEINT)')} AS cycles, {_whole('sum(instructions::HUGEINT)')} AS instructions "
        "FROM rows_once WHERE duration_ns > 0 GROUP BY ALL"
    )


def _whole(total: str) -> str:
    """Return a sum of whole numbers as BIGINT, at most 2^63-1: DuckDB adds them up in 128 bits."""
    return f"(CASE WHEN {total} > {MOST} THEN {MOST} ELSE {total} END)::BIGINT"


def _ranges(*, is_with_known: bool) -> str:
    """Return the query of the batches taken, as ranges of sequence numbers without a gap."""
    runs = (
        "SELECT host, spool_id, min(sequence) AS first, max(sequence) AS last FROM (SELECT host, spool_id, sequence, "
        "sequence::HUGEINT - row_number() OVER (PARTITION BY host, spool_id ORDER BY sequence) AS run FROM taken) "
        "GROUP BY host, spool_id, run"
    )
    return f"{runs} UNION ALL SELECT host, spool_id, first, last FROM known" if is_with_known else runs


def _text(value: Path | str) -> str:
    """Quote for SQL."""
    return "'" + str(value).replace("'", "''") + "'"
