"""How long coefficient builds take, against plain SQL in the same run; a part of issue 5's bars, on this machine.

    python -m bench.central_cost.build [--machines 250] [--days 31] [--tasks 43] [--memory-limit-mib 4096] [--spark]

A fleet's task slots are generated into Parquet, a file per day (not timed): tasks stay on their machine for the whole
time, 2 of 5 are latency-sensitive, 2,000 jobs. Each build then runs in DuckDB with a memory cap, and says wall time
and CPU seconds. `--spark` adds Spark on local[2] for one day.
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# One BLAS thread: the matrices are small, and DuckDB's threads are beside them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # a rival of the bench: its stubs are no dependency of whitepanda
import pyarrow as pa
import pyarrow.parquet as pq

from central.build import engine, methods, panda_state
from central.lake import duckdb_connection

SLOT_NS = 300 * 10**9
SLOTS = 288
JOBS = 2000
_EPOCH_NS = 1_795_132_800 * 10**9
_PANDAS_ROWS = 12_000_000


class Times(NamedTuple):
    """What some work took."""

    wall_s: float
    cpu_s: float


STATISTICS = """CREATE OR REPLACE TEMP TABLE statistics AS SELECT job, platform, count(*) AS samples, avg(cpi) AS mean,
    stddev_pop(cpi) AS std FROM slots WHERE cpi IS NOT NULL GROUP BY job, platform"""
MACHINE_CPI = """CREATE OR REPLACE TEMP TABLE machine_cpi AS SELECT machine, slot_start_ns,
    avg(CASE WHEN std > 0 THEN (cpi - mean) / std ELSE 0 END) AS mn_cpi
    FROM slots JOIN statistics USING (job, platform) WHERE latency_sensitive AND cpi IS NOT NULL
    GROUP BY machine, slot_start_ns"""
COEFFICIENTS = """SELECT job, sum(usage * mn_cpi) / sum(usage * usage) AS a, count(*) FROM slots
    JOIN machine_cpi USING (machine, slot_start_ns) WHERE usage IS NOT NULL GROUP BY job"""


def generate(folder: Path, machines: int, days: int, tasks: int) -> list[Path]:
    """Write task slots, a file per day."""
    rng = np.random.default_rng(1)
    job = rng.integers(0, JOBS, (machines, tasks))
    shape = (machines, SLOTS, tasks)
    names = pa.array([f"job-{number}" for number in range(JOBS)])
    machine_names = pa.array([f"host-{number:05d}" for number in range(machines)])
    platforms = pa.array(["Skylake", "Milan"])
    machine = np.broadcast_to(np.arange(machines, dtype=np.int32)[:, None, None], shape).ravel()
    jobs = np.broadcast_to(job[:, None, :], shape).ravel().astype(np.int32)
    vm = np.broadcast_to(np.arange(machines * tasks).reshape(machines, 1, tasks), shape).ravel()
    slot = np.broadcast_to(np.arange(SLOTS)[None, :, None], shape).ravel()
    paths = []
    for day in range(days):
        usage = rng.gamma(2.0, 0.5, jobs.size)
        cpi = (1 + jobs / JOBS) * np.exp(0.2 * rng.standard_normal(jobs.size))
        table = pa.table(
            {
                "machine": pa.DictionaryArray.from_arrays(machine, machine_names),
                "slot_start_ns": _EPOCH_NS + (day * SLOTS + slot) * SLOT_NS,
                "vm": vm,
                "job": pa.DictionaryArray.from_arrays(jobs, names),
                "platform": pa.DictionaryArray.from_arrays(machine % 2, platforms),
                "latency_sensitive": jobs % 5 < 2,  # 2 of 5
                "usage": usage,
                "cpi": cpi,
            }
        )
        paths.append(folder / f"slots-{day:02d}.parquet")
        pq.write_table(table, paths[-1], compression="zstd")
    return paths


def timed(name: str, work: Callable[[], Any]) -> Times:
    """Run, print and return wall time and CPU seconds."""
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    work()
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak_mib = after.ru_maxrss / 1024
    print(f"{name:58} {wall:8.2f} s wall {cpu:8.2f} s CPU, peak so far {peak_mib:,.0f} MiB", flush=True)
    return Times(wall, cpu)


def plain(paths: list[Path], memory_limit_mib: int, folder: Path) -> Times:
    """PANDA in three plain SQL queries."""
    config: dict[str, Any] = {
        "memory_limit": f"{memory_limit_mib}MiB", "threads": 2, "temp_directory": str(folder / "plain"),
        "preserve_insertion_order": False,
    }  # fmt: skip
    with duckdb_connection.connect(**config) as con:
        con.read_parquet([str(path) for path in paths]).create_view("slots")

        def work() -> None:
            for query in (STATISTICS, MACHINE_CPI):
                con.execute(query)
            con.execute(COEFFICIENTS).fetchall()

        return timed("PANDA in three plain SQL queries", work)


def with_pandas(paths: list[Path]) -> None:
    """PANDA with pandas on as many days as fit."""

    def work() -> None:
        frame = pd.concat([pd.read_parquet(path) for path in paths])
        grouped = frame.groupby(["job", "platform"], observed=True).cpi
        frame["n_cpi"] = (frame.cpi - grouped.transform("mean")) / grouped.transform("std", ddof=0)
        sensitive = frame[frame.latency_sensitive]
        mn_cpi = sensitive.groupby(["machine", "slot_start_ns"], observed=True).n_cpi.mean().rename("y")
        frame = frame.join(mn_cpi, on=["machine", "slot_start_ns"], how="inner")
        products = (frame.usage * frame.y).groupby(frame.job, observed=True).sum()
        _ = products / (frame.usage**2).groupby(frame.job, observed=True).sum()

    timed(f"PANDA with pandas, {len(paths)} days", work)


def day_state(method: str, opened: Any, path: Path, folder: Path) -> Path:
    """State of one day."""
    folder.mkdir(parents=True)
    methods.write(method, opened, opened.read([path]), SLOT_NS, folder)
    return folder


def by_days(memory_limit_mib: int, name: str, method: str, paths: list[Path], folder: Path) -> dict[str, Times]:
    """Time the state of each day with the coefficients, and then those of one day more; as builds do it."""
    states: list[Path] = []

    def build(days: list[Path], into: Path) -> None:
        settings: dict[str, Any] = {"memory_limit_mib": memory_limit_mib, "threads": 2, "spill_dir": folder}
        with engine.duckdb_engines(len(days), **settings) as running:
            made = engine.on_engines(running, days, lambda lane, path: day_state(method, lane, path, into / path.stem))
        states.extend(made)
        with engine.Engine(**settings) as duck:
            methods.solved(method, duck, states[: len(paths)])

    def scratch() -> None:
        build(paths, folder)

    def one_more() -> None:
        build(paths[-1:], folder / "again")

    return {
        name: timed(f"{name}, state of {len(paths)} days, merged and solved", scratch),
        f"{name}, day": timed(f"{name}, one day more", one_more),
    }


def bar(name: str, work: Times, base: Times, limit: float, share: float = 1.0) -> None:
    """Print one bar: `work` by `base`, of which `work` did a share."""
    wall, cpu = work.wall_s / base.wall_s / share, work.cpu_s / base.cpu_s / share
    print(f"  {'pass' if wall <= limit else 'MISS'}  {name}: {wall:.2f} (bar {limit:g}; by CPU {cpu:.2f})", flush=True)


def run(paths: list[Path], options: argparse.Namespace, folder: Path) -> dict[str, Times]:
    """Time all builds of a lake; bars are on wall time."""
    base = plain(paths, options.memory_limit_mib, folder)
    found = {"plain": base}
    with engine.Engine(memory_limit_mib=options.memory_limit_mib, threads=2, spill_dir=folder / "spill") as duck:
        found["fit"] = timed(
            "PANDA, one-shot fit", lambda: duck.collect(panda_state.fit(duck.read(paths)).coefficients)
        )
    for name, method, chosen in (
        ("whitepanda", "whitepanda", paths),
        ("PANDA by pair state", "panda", paths[: options.pair_days]),
    ):
        if chosen:
            found |= by_days(options.memory_limit_mib, name, method, chosen, folder / name)
    bar("one-shot fit of PANDA / plain SQL", found["fit"], base, 1.5)
    for name, days, limit in (("whitepanda", len(paths), 4), ("PANDA by pair state", options.pair_days, 6)):
        if name in found:
            share = min(days, len(paths)) / len(paths)
            bar(f"{name}, from scratch / plain SQL of as many days", found[name], base, limit, share)
            bar(f"{name}, a day more / from scratch", found[f"{name}, day"], found[name], 0.1)
    return found


def with_spark(path: Path, folder: Path) -> None:
    """One day on Spark."""
    from central.build.spark import SparkEngine

    with SparkEngine(master="local[2]", memory_limit_mib=4096, partitions=8, spill_dir=folder) as opened:
        timed(
            "Spark, local[2]: PANDA, fit of one day",
            lambda: opened.collect(panda_state.fit(opened.read([path])).coefficients),
        )
        timed(
            "Spark, local[2]: whitepanda, state of one day",
            lambda: day_state("whitepanda", opened, path, folder / "spark-whitepanda"),
        )
        timed(
            "Spark, local[2]: PANDA, pair state of one day",
            lambda: day_state("panda", opened, path, folder / "spark-panda"),
        )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=250)
    parser.add_argument("--days", type=int, default=31)
    parser.add_argument("--tasks", type=int, default=43)
    parser.add_argument("--memory-limit-mib", type=int, default=4096)
    parser.add_argument("--pair-days", type=int, default=31, help="days whose pair state is timed; 0: none")
    parser.add_argument("--ten", action="store_true", help="a tenth of the machines before, and what ten times cost")
    parser.add_argument("--spark", action="store_true")
    options = parser.parse_args()
    sizes = ([max(options.machines // 10, 1)] if options.ten else []) + [options.machines]
    results = []
    for machines in sizes:
        with tempfile.TemporaryDirectory(prefix="whitepanda-build-") as name:
            folder = Path(name)
            paths = generate(folder, machines, options.days, options.tasks)
            rows = machines * options.days * options.tasks * SLOTS
            print(f"{rows:,} task slots of {machines} machines and {options.days} days; load {os.getloadavg()[0]:.1f}")
            results.append(run(paths, options, folder))
            if machines == sizes[-1]:
                days = max(1, min(len(paths), _PANDAS_ROWS * len(paths) // rows))
                with_pandas(paths[:days])
                if options.spark:
                    with_spark(paths[0], folder)
    if options.ten:
        for key in ("fit", "whitepanda", "PANDA by pair state"):
            if key in results[0]:
                times = sizes[1] / sizes[0]
                bar(f"{key}, {times:.0f} times the rows cost", results[1][key], results[0][key], 1.1 * times)


if __name__ == "__main__":
    main()
