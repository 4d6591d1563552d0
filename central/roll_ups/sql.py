"""The SQL of a roll-up: windows of segments into sums per task and slot, and the batches that these have."""

# ruff: noqa: S608 - SQL made of this file's own words and of quoted names; no values of rows are in it
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from central.lake.replica_copies import SQL_ROWS_ONCE, SQL_TAKEN
from central.lake.schema import SAMPLES
from central.lake.segments import Lake, Segment

if TYPE_CHECKING:
    import duckdb


#: The metrics of a window: the lake's columns after its times, each a number.
METRICS = tuple(SAMPLES.names[SAMPLES.get_field_index("duration_ns") + 1 :])
#: Sums over the windows of one task (vm) that begin in one slot, in the order of machine, vm and time. Of each metric:
#: the sum of value * duration and the duration of the windows that have the value, the least and the greatest value
#: (null: no window has it), and how many windows have it. Cycles and instructions are null if no window has them.
SLOTS = pa.schema(
    [
        pa.field("machine", pa.string()),
        pa.field("vm", pa.string()),
        pa.field("slot_start_ns", pa.int64()),
        pa.field("job", pa.string()),
        pa.field("platform", pa.string()),
        pa.field("latency_sensitive", pa.bool_()),
        pa.field("windows", pa.int64()),
        pa.field("duration_ns", pa.int64()),
        pa.field("cycles", pa.int64()),
        pa.field("instructions", pa.int64()),
        *(
            pa.field(f"{metric}_{end}", kind or SAMPLES.field(metric).type)
            for metric in METRICS
            for end, kind in (
                ("ns", pa.float64()), ("time_ns", pa.int64()), ("min", None), ("max", None), ("count", pa.int64())
            )
        ),
    ]
)  # fmt: skip
#: The largest sum of whole numbers: what is more is kept as this.
MOST = 2**63 - 1
KEYS = SLOTS.names[:6]
SUMS = SLOTS.names[6:]
#: Rows of a row group: few VMs' day, so a reader of one VM skips nearly all by statistics and bloom filters.
GROUP_ROWS = 40_960
_CHUNK_ROWS = 200_000  # slots that are summed at a time: one takes about 2 KB in the engine
#: Values that seldom repeat: a dictionary of them costs time and a third more bytes.
_PLAIN = {f"{metric}_{end}" for metric in METRICS for end in ("ns", "min", "max")}
_FILE: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": [name for name in SLOTS.names if name not in _PLAIN],
    "write_page_checksum": True,
    "write_statistics": ["machine", "vm", "slot_start_ns", "job"],
    "bloom_filter_options": {name: {"ndv": 1024, "fpp": 0.01} for name in ("vm", "job")},
}


def windows_as_slots(slot_ns: int, metrics: Sequence[str] = METRICS) -> str:
    """Return the columns that make a slot of each window alone, with the given metrics; NaN counts as not known."""
    found = [
        *("machine", "vm", f"start_unix_ns - start_unix_ns % {slot_ns} AS slot_start_ns", "job", "platform"),
        *("latency_sensitive", "1 AS windows", "duration_ns"),
    ]
    for metric in metrics:
        value = not_nan(metric)
        found += [
            f"{value}::DOUBLE * duration_ns AS {metric}_ns",
            f"CASE WHEN {value} IS NULL THEN 0 ELSE duration_ns END AS {metric}_time_ns",
            f"{value} AS {metric}_min",
            f"{value} AS {metric}_max",
            f"({value} IS NOT NULL)::BIGINT AS {metric}_count",
        ]
    return ", ".join(found)


def not_nan(metric: str) -> str:
    """Return a metric's value with null for NaN."""
    if not pa.types.is_floating(SAMPLES.field(metric).type):
        return metric
    return f"(CASE WHEN isnan({metric}) THEN NULL ELSE {metric} END)"


def added_up(name: str) -> str:
    """Return how a column of slots adds up, for one of `SUMS`."""
    if name.endswith("_min"):
        return f"min({name})"
    if name.endswith("_max"):
        return f"max({name})"
    return f"sum({name})" if SLOTS.field(name).type == pa.float64() else _whole(f"sum({name})")


def write_part(
    connection: duckdb.DuckDBPyConnection,
    lake: Lake,
    new: list[Segment],
    old_batches: list[str],
    merged: list[tuple[str, str]],
    slot_ns: int,
    files: tuple[Path, Path],
    check: Callable[[], None],
    without: Sequence[str] = (),
) -> tuple[int, int]:
    """Write the slots and batches of new segments, with those of `merged` parts. Returns windows and duplicates.

    Rows of the machines in `without` are left out. If journals share a batch, or an older part has it (`old_batches`),
    it counts once (`central.lake.replica_copies`); rows of one batch and day are in one segment. `check` is called
    before each chunk of slots: a large day takes longer than a lease.
    """
    columns = (
        "host, spool_id, sequence, start_unix_ns, duration_ns, machine, vm, job, platform, latency_sensitive, "
        f"{', '.join(METRICS)}"
    )
    by_origin: dict[str, list[str]] = defaultdict(list)
    for segment in new:  # one scan for as many as possible: each has its own buffers
        segment.check_schema()
        by_origin[segment.origin].append(quoted(segment.path))
    kept = f" WHERE machine NOT IN ({', '.join(map(quoted, without))})" if without else ""
    rows = " UNION ALL ".join(
        f"SELECT {quoted(origin)} AS origin, {columns} FROM read_parquet([{', '.join(paths)}]){kept}"
        for origin, paths in by_origin.items()
    )
    connection.execute(f"CREATE OR REPLACE TEMP VIEW new_rows AS {rows}")
    known = "SELECT '' AS host, '' AS spool_id, 0::UBIGINT AS first, 0::UBIGINT AS last WHERE false"
    if old_batches:
        paths = ", ".join(quoted(lake.objects.local(name)) for name in old_batches)
        known = f"SELECT host, spool_id, first, last FROM read_parquet([{paths}])"
    connection.execute(f"CREATE OR REPLACE TEMP VIEW known AS {known}")
    connection.execute(SQL_TAKEN)
    connection.execute(SQL_ROWS_ONCE)
    # In whole numbers: sums of floating-point numbers would depend on the order.
    counters = ", ".join(f"{not_nan(name)}::HUGEINT AS {name}" for name in ("cycles", "instructions"))
    rows = f"SELECT {windows_as_slots(slot_ns)}, {counters} FROM rows_once WHERE duration_ns > 0"
    older = ""
    if merged:
        paths = ", ".join(quoted(lake.objects.local(name)) for name, _ in merged)
        older = f"read_parquet([{paths}])"
        rows = f"{rows} UNION ALL BY NAME SELECT * FROM {older}"
    keys, sums = ", ".join(KEYS), ", ".join(f"{added_up(name)} AS {name}" for name in SUMS)
    with pq.ParquetWriter(files[0], SLOTS, **_FILE) as writer:
        for chunk in _chunks(connection, older, slot_ns):
            check()
            query = f"SELECT {keys}, {sums} FROM ({rows}) WHERE {chunk} GROUP BY {keys} ORDER BY {keys}"
            for batch in connection.execute(query).to_arrow_reader(GROUP_ROWS):
                writer.write_batch(batch.cast(SLOTS), GROUP_ROWS)
    batches_file = quoted(files[1])
    ranges = _ranges([quoted(lake.objects.local(name)) for _, name in merged])
    connection.execute(f"COPY ({ranges}) TO {batches_file} (FORMAT parquet, COMPRESSION zstd)")
    counted, total = connection.execute(
        "SELECT (SELECT count(*) FROM rows_once), (SELECT count(*) FROM new_rows)"
    ).fetchall()[0]
    connection.execute("DROP TABLE taken")
    return int(counted), int(total) - int(counted)


def _chunks(connection: duckdb.DuckDBPyConnection, older: str, slot_ns: int) -> Iterator[str]:
    """Yield conditions that divide all rows by ranges of machines, each of about `_CHUNK_ROWS` slots, in order."""
    counts = f"SELECT machine, sum(least(1.0, duration_ns / {slot_ns})) AS slots FROM rows_once GROUP BY machine"
    if older:
        counts += f" UNION ALL SELECT machine, count(*) FROM {older} GROUP BY machine"
    query = f"SELECT machine, sum(slots) FROM ({counts}) GROUP BY machine ORDER BY machine"
    since, slots = "", 0.0
    for machine, more in connection.execute(query).fetchall():
        if slots and slots + more > _CHUNK_ROWS:
            yield f"machine >= {quoted(since)} AND machine < {quoted(machine)}"
            since, slots = machine, 0.0
        slots += more
    yield f"machine >= {quoted(since)}"


def _whole(total: str) -> str:
    """Return a sum of whole numbers as BIGINT, at most 2^63-1: DuckDB adds them up in 128 bits."""
    return f"CASE WHEN {total} >= {MOST} THEN {MOST}::BIGINT ELSE ({total})::BIGINT END"


def _ranges(merged: list[str]) -> str:
    """Return the query of the batches taken, as ranges without a gap, and of those in merged files."""
    runs = (
        "SELECT host, spool_id, min(sequence) AS first, max(sequence) AS last FROM (SELECT host, spool_id, sequence, "
        "sequence::HUGEINT - row_number() OVER (PARTITION BY host, spool_id ORDER BY sequence) AS run FROM taken) "
        "GROUP BY host, spool_id, run"
    )
    if not merged:
        return runs
    return f"{runs} UNION ALL SELECT host, spool_id, first, last FROM read_parquet([{', '.join(merged)}])"


def quoted(value: Path | str) -> str:
    """Quote a text or a path for SQL."""
    return "'" + str(value).replace("'", "''") + "'"
