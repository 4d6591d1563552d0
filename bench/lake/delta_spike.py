"""Delta tables (package `deltalake`) beside whitepanda's lake, for docs/adr/0016: flush, read, kills.

Run with `deltalake` and `polars` installed: `python -m bench.lake.delta_spike [--folder DISK] [--kills 60]`.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake

from central.lake.segments import Lake, SegmentFile, segment_stem

DAY = date(2026, 11, 28)
START_NS = 1_795_824_000 * 10**9
METRICS = 30
SIZES = (10_000, 60_000, 180_000)  # the last: a minute of 1,000 hosts x 30 VMs
COMMITS = 10_000  # that a table had before: a week of rolls, one a minute
#: Modules of today's lake, and what a Delta table would do of each.
MODULES = {
    "goes": ["lake/manifests.py", "roll_ups/compaction.py"],
    "half goes": ["lake/segments.py", "lake/checksums.py", "roll_ups/store.py"],
    "stays, others use it": ["lake/drafts.py", "lake/objects.py", "lake/schema.py", "lake/duckdb_connection.py"],
    "stays, no counterpart": [
        "lake/lease.py",
        "lake/replica_copies.py",
        "lake/replicas.py",
        "lake/deletion_notes.py",
        "verify/losses.py",
        "verify/checks.py",
        "roll_ups/sql.py",
        "roll_ups/failing_machines.py",
        "roll_ups/retention.py",
        "roll_ups/maintenance.py",
    ],
}


def roll(rows: int, seed: int = 0) -> pa.Table:
    """Return a roll's rows: 30 VMs a host, a batch per host, `METRICS` float32 columns of which a tenth is absent."""
    rng = np.random.default_rng(seed)
    host, vm = np.arange(rows) // 30 % 1000, np.arange(rows) % 30
    columns: dict[str, pa.Array] = {
        "host": pa.array(np.char.add("host-", host.astype(str))),
        "spool_id": pa.array(np.char.add("spool-", host.astype(str))),
        "sequence": pa.array(np.arange(rows, dtype=np.uint64) // 30_000 + np.uint64(seed)),
        "vm": pa.array(np.char.add(np.char.add("vm-", host.astype(str)), np.char.add("-", vm.astype(str)))),
        "start_unix_ns": pa.array(START_NS + (np.arange(rows) // 30_000 + seed * 6) * 10 * 10**9),
    }
    for number in range(METRICS):
        values = rng.lognormal(1.0, 1.0, rows).astype(np.float32)
        columns[f"metric_{number}"] = pa.array(values, mask=rng.random(rows) < 0.1)
    return pa.table(columns)


def ours(lake: Lake, table: pa.Table, number: int) -> None:
    """Write a roll as central does: a sealed segment with page checksums, flushed, renamed, its folder flushed."""
    with SegmentFile(lake.segment(DAY, segment_stem("r", "0123abcd", number)), table.schema) as file:
        file.write(table)
        file.finish()


def delta(path: str | DeltaTable, table: pa.Table, number: int, app: str = "r") -> None:
    """Append a roll, with its number as the version of an app transaction."""
    write_deltalake(
        path,
        table.append_column("day", pa.repeat(DAY.isoformat(), len(table))),
        mode="append",
        partition_by=["day"],
        writer_properties=WriterProperties(compression="ZSTD", compression_level=1),
        commit_properties=CommitProperties(app_transactions=[Transaction(app, number)]),
    )


def seconds(call: Callable[[int], object], numbers: range) -> list[float]:
    """Return how long each of some calls took, one for each number."""
    took = []
    for number in numbers:
        began = time.perf_counter()
        call(number)
        took.append(time.perf_counter() - began)
    return took


def with_commits(path: str, commits: int) -> None:
    """Give a table this many commits: copies of its last one with files of other names; then a checkpoint."""
    log = Path(path, "_delta_log")
    last = max(int(each.stem) for each in log.glob("*.json") if each.stem.isdigit())
    lines = [json.loads(line) for line in (log / f"{last:020d}.json").read_text().splitlines()]
    for number in range(last + 1, commits):
        for line in lines:
            if "add" in line:
                line["add"]["path"] = f"day={DAY}/part-{uuid.uuid4()}.zstd.parquet"
            if "txn" in line:
                line["txn"]["version"] = number
        (log / f"{number:020d}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    DeltaTable(path).create_checkpoint()


def compare(what: str, our_s: list[float], their_s: list[float]) -> None:
    """Print medians and their ratio."""
    ratio = statistics.median(their_s) / statistics.median(our_s)
    print(f"{what}: ours {statistics.median(our_s):.3f} s, Delta {statistics.median(their_s):.3f} s, {ratio:.2f} times")


def flushes(folder: Path, rows: int, times: int, commits: int) -> None:
    """(c): rolls of a size, a day's read, and rolls into a table that has some `commits` (0: not measured)."""
    table = roll(rows)
    lake, path = Lake(str(folder / f"ours-{rows}")), str(folder / f"delta-{rows}")
    our_s, their_s = [], []
    for number in range(times + 1):  # alternating, as the disk's speed varies; the first one warms up
        our_s += seconds(partial(ours, lake, table), range(number, number + 1))
        their_s += seconds(partial(delta, path, table), range(number, number + 1))
    compare(f"flush of {rows} rows", our_s[1:], their_s[1:])
    sizes = [sum(each.stat().st_size for each in Path(at).rglob("*.parquet")) for at in (lake.name, path)]
    print(f"  bytes per roll: ours {sizes[0] // (times + 1)}, Delta {sizes[1] // (times + 1)}")

    def read(files: Callable[[], list[str]]) -> list[float]:
        query = "SELECT vm, avg(metric_1), sum(metric_2) FROM read_parquet(?) GROUP BY vm"
        return seconds(lambda _: duckdb.execute(query, [files()]).fetchall(), range(times))

    our_read_s = read(lambda: [str(segment.path) for segment in lake.segments(DAY)])
    their_read_s = read(lambda: DeltaTable(path).file_uris(file_pruning_predicate=f"day = '{DAY}'"))
    compare(f"read of a day of {times + 1} such rolls", our_read_s, their_read_s)
    if commits:
        with_commits(path, commits)
        again = seconds(partial(delta, path, table), range(commits, commits + times))
        compare(f"flush of {rows} rows onto {commits} commits", our_s[1:], again)
        held = DeltaTable(path)  # by a process that keeps the table's state in memory
        again = seconds(partial(delta, held, table), range(commits + times, commits + 2 * times))
        compare("  the same by a process that holds the table open", our_s[1:], again)


def append_for_ever(path: str, app: str) -> None:
    """Append rolls of 30 rows, from the one after the app's last committed version."""
    done = DeltaTable(path).transaction_version(app) if DeltaTable.is_deltatable(path) else None
    number = -1 if done is None else int(done)
    while True:
        number += 1
        table = roll(30, seed=number)
        delta(path, table.set_column(0, "host", pa.array([app] * 30)), number, app)


def kills(folder: Path, times: int) -> None:
    """(a): two appenders to one table, one of them killed (-9) at a random moment, again and again; rows by Polars."""
    path, rng = str(folder / "kills"), random.Random(1)
    delta(path, roll(30).set_column(0, "host", pa.array(["none"] * 30)), 0, "none")
    command = [sys.executable, "-m", "bench.lake.delta_spike", "--append", path]

    def start(app: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, app], stderr=subprocess.PIPE, env=os.environ)

    apps = {app: start(app) for app in ("one", "other")}
    gave_up = 0
    time.sleep(3)
    for _ in range(times):
        app = rng.choice(sorted(apps))
        time.sleep(rng.uniform(0.8, 1.6))
        gave_up += apps[app].poll() is not None
        apps[app].send_signal(signal.SIGKILL)
        apps[app].wait()
        apps[app] = start(app)
    for process in apps.values():
        process.kill()
        process.wait()
    table = DeltaTable(path)
    found = pl.read_parquet(table.file_uris(), hive_partitioning=True).group_by("host", "sequence").len()
    lost = doubled = 0
    for app in apps:
        committed = table.transaction_version(app)
        numbers = dict(found.filter(host=app).select("sequence", "len").iter_rows())
        wanted = set(range(0 if committed is None else int(committed) + 1))
        lost += len(wanted - numbers.keys()) + sum(rows < 30 for rows in numbers.values())
        doubled += len(numbers.keys() - wanted) + sum(rows > 30 for rows in numbers.values())
    print(f"{times} kills, {table.version()} commits: {lost} rolls lost, {doubled} doubled; {gave_up} ended themselves")
    batch = roll(30).set_column(0, "host", pa.array(["both"] * 30))
    for app in ("one", "other"):  # an agent changed replicas before its acknowledgement
        delta(path, batch, 10**9, app)
    rows = pl.read_parquet(DeltaTable(path).file_uris()).filter(host="both").height
    print(f"a batch of 30 rows that two replicas took is {rows} rows in the table")


def store(url: str, appenders: int = 4, each: int = 10) -> None:
    """(b): appenders to one new table in a bucket at the same time; the store is the environment's (AWS_*)."""
    url = f"{url}/{uuid.uuid4()}"
    delta(url, roll(30), 0, "none")

    def append(app: str) -> int:
        return len(seconds(lambda number: delta(url, roll(30, number), number, app), range(each)))

    with ThreadPoolExecutor(appenders) as pool:
        done = sum(pool.map(append, map(str, range(appenders))))
    table = DeltaTable(url)
    rows = table.to_pyarrow_table().num_rows
    print(
        f"{url.partition(':')[0]}: {done} of {appenders * each} appends, {rows} rows in {table.version() + 1} commits"
    )


def lines() -> None:
    """(d): lines of the modules, by what a Delta table would do of them."""
    for what, names in MODULES.items():
        counts = {name: len(Path("central", name).read_text().splitlines()) for name in names}
        print(f"{what}: {sum(counts.values())} lines ({', '.join(f'{name} {n}' for name, n in counts.items())})")


def main() -> None:
    """Print all numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to measure")
    parser.add_argument("--times", type=int, default=9, help="rolls of each size")
    parser.add_argument("--rows", type=int, nargs="*", default=list(SIZES), help="rows of a roll; none: no flushes")
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--append", nargs=2, metavar=("TABLE", "APP"), help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help="s3://bucket/prefix, to append to a table there")
    given = parser.parse_args()
    if given.append:
        append_for_ever(*given.append)
    lines()
    if given.url:
        store(given.url)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for rows in given.rows:
            flushes(Path(folder), rows, given.times, COMMITS if rows == min(SIZES) else 0)
        if given.kills:
            kills(Path(folder), given.kills)


if __name__ == "__main__":
    main()
