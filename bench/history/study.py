"""History of a fleet: how long three questions take, cold and warm, beside plain SQL over all files of windows.

    python -m bench.history.study [--hosts 1000] [--vms 30] [--days 7] [--window-s 10] [--folder build/history-lake]
                                  [--beside-ingest]

It builds a lake once, in the folder, as central would: windows are rolled up to slots; the last hour's lie in segments
of a minute, and of these the last 10 minutes' are not rolled up yet. A day has the same layout however many
days there are; 7 days of 1,000 hosts with 30 VMs take up to 180 GB, 2 days 50 GB. A lake of the same options is used
again. Then each question is asked --times times with other names, through the code that answers the fleet API:
cold (a new database that knows no file's footer) and warm. The bars are for the default options:

    one VM, 5 metrics, 24 h: p99 under 150 ms; a host's 30 VMs, one metric, 24 h: 300 ms; the top 20 over 1 h: 1 s

With --beside-ingest the questions are asked again while a central takes the same fleet's windows at their pace
(bench/history/beside_ingest.py), and central's times to the acknowledgement are compared with and without them.
"""

import argparse
import itertools
import json
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.history.beside_ingest import beside_ingest
from bench.ingest.study import bar
from central.history.queries import METRICS, Scope
from central.history.reader import FleetHistory
from central.lake.duckdb_connection import bounded, connect
from central.lake.schema import SAMPLES
from central.lake.segment_times import SegmentTimes
from central.lake.segments import DAY_NS, Lake, day_of, segment_stem
from central.roll_ups.store import SlotStore

S_NS = 10**9
SLOT_NS = 300 * S_NS
HOUR_NS = 3600 * S_NS
_FOLDER = Path(__file__).parents[2] / "build" / "history-lake"  # git ignores it
_BATCH_S = 60  # windows of a host that come together
_PIECE_ROWS = 50_000  # as central's rolls
_COLD = 20  # questions
_NAIVE = 3
_UNROLLED_NS = 600 * S_NS  # at most two `build.roll_up_interval_s`
_WINDOW_BYTES = 100  # of the lake, and a little more
_BARS_ASK = {"hosts": 1000, "vms": 30, "days": 7, "window_s": 10}
Ask = Callable[[FleetHistory, str], object]
#: What is asked, and its p99 at most, in milliseconds.
_BARS = {
    "vm": ("one VM, 5 metrics, 24 h", 150.0),
    "host": ("a host's VMs, one metric, 24 h", 300.0),
    "top": ("the fleet's top 20, 1 h", 1000.0),
}


class Fleet:
    """Hosts, their VMs and windows; the same for the same numbers."""

    def __init__(self, hosts: int, vms: int, window_s: int) -> None:
        self.rng = np.random.default_rng(1)
        self.hosts = [f"host-{number:05d}" for number in range(hosts)]
        self.vms = [str(uuid.UUID(bytes=self.rng.bytes(16))) for _ in range(hosts * vms)]
        self.per_host = vms
        self.window_ns = window_s * S_NS
        self._host_of = np.repeat(np.arange(hosts, dtype=np.int32), vms)
        self._level = {name: self.rng.gamma(2.0, 50.0, len(self.vms)) for name in METRICS}
        self._words = {
            "host": self.hosts, "machine": self.hosts, "vm": self.vms,
            "job": [f"job-{number}" for number in range(max(len(self.vms) // 50, 1))],
            "platform": ["Skylake", "Milan"], "spool_id": ["spool"], "epoch": ["1"],
        }  # fmt: skip

    def pieces(self, since: int, until: int) -> Iterator[pa.Table]:
        """Yield windows that begin in [since, until), a minute's batch of each host after the other."""
        waiting: list[pa.Table] = []
        for begin in range(since, until, _BATCH_S * S_NS):
            times = np.arange(begin, min(begin + _BATCH_S * S_NS, until), self.window_ns)
            times = times[times % self.window_ns == 0]
            if not len(times):
                continue
            each = max(_PIECE_ROWS // (len(times) * self.per_host), 1)
            for first in range(0, len(self.hosts), each):
                waiting.append(self._windows(times, first, min(first + each, len(self.hosts))))
                if sum(map(len, waiting)) >= _PIECE_ROWS:
                    yield pa.concat_tables(waiting)
                    waiting = []
        if waiting:
            yield pa.concat_tables(waiting)

    def _windows(self, times: Any, first: int, last: int) -> pa.Table:
        vm: Any = np.arange(first * self.per_host, last * self.per_host, dtype=np.int32).reshape(last - first, 1, -1)
        shape = (last - first, len(times), self.per_host)
        vm = np.broadcast_to(vm, shape).ravel()
        host = self._host_of[vm]
        index = {
            "host": host, "machine": host, "vm": vm, "job": vm % len(self._words["job"]), "platform": host % 2,
            "spool_id": np.zeros_like(vm), "epoch": np.zeros_like(vm),
        }  # fmt: skip
        columns = {name: pa.DictionaryArray.from_arrays(index[name], words) for name, words in self._words.items()}
        at = np.broadcast_to(times[None, :, None], shape).ravel()
        numbers = {
            "start_unix_ns": at,
            "duration_ns": np.full(len(vm), self.window_ns),
            "sequence": at // (_BATCH_S * S_NS),
            "latency_sensitive": vm % 3 == 0,
        }
        for metric, level in self._level.items():
            value = np.round(level[vm] * (1 + 0.1 * self.rng.standard_normal(len(vm))), 3)
            numbers[metric] = np.abs(value).astype(SAMPLES.field(metric).type.to_pandas_dtype())
        return pa.table({name: columns.get(name, numbers.get(name)) for name in SAMPLES.names}).cast(SAMPLES)


def build(lake: Lake, fleet: Fleet, since: int, until: int) -> None:
    """Write the lake: an hour a segment, rolled up each hour; of the last one a minute a segment, as live."""
    store, took = SlotStore(lake, SLOT_NS), {"windows": 0.0, "slots": 0.0}
    spill = Path(lake.name) / "spill"
    last_hour = until - HOUR_NS
    begins = [*range(since, last_hour, HOUR_NS), *range(last_hour, until, 60 * S_NS)]
    for number, (begin, end) in enumerate(pairwise([*begins, until]), 1):
        began = time.perf_counter()
        lake.write_pieces(partial(fleet.pieces, begin, end), segment_stem("central-0", "0badcafe", number))
        took["windows"] += time.perf_counter() - began
        if begin < last_hour or (end % SLOT_NS == 0 and end <= until - _UNROLLED_NS):
            began = time.perf_counter()
            with bounded(memory_limit_mib=2048, threads=2, spill_dir=spill) as connection:
                store.roll_up(day_of(begin), connection)
            took["slots"] += time.perf_counter() - began
        print(f"\r{number} of {len(begins)} segments", end="", flush=True)
    store.remove_unused(0)
    shutil.rmtree(spill, ignore_errors=True)
    print(f"\rbuilt: windows {took['windows']:.0f} s, slots {took['slots']:.0f} s", flush=True)


def refuse_what_does_not_fit(shape: dict[str, int], folder: Path) -> None:
    """Exit where the disk has no room for the lake, also if what lies in the folder goes."""
    windows = shape["hosts"] * shape["vms"] * shape["days"] * 86_400 // shape["window_s"]
    old = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    needed, free = windows * _WINDOW_BYTES / 1e9, (shutil.disk_usage(folder).free + old) / 1e9
    if needed > free:
        sys.exit(
            f"the lake needs about {needed:,.0f} GB; {folder} has {free:,.0f} GB free: "
            "give another --folder, or fewer --days"
        )


def measured(name: str, questions: Sequence[Callable[[], object]]) -> float:
    """Ask each once; print the times and return p99 in milliseconds."""
    times = []
    for question in questions:
        began = time.perf_counter()
        question()
        times.append(time.perf_counter() - began)
    p50, p99 = np.quantile(times, [0.5, 0.99]) * 1e3
    print(f"{name}: p50 {p50:.0f} ms, p99 {p99:.0f} ms of {len(times)} questions", flush=True)
    return float(p99)


def the_lake(options: argparse.Namespace, fleet: Fleet, since: int, until: int) -> Lake:
    """Return the lake of these options: the one that is in the folder, or a new one."""
    shape = {name: getattr(options, name) for name in _BARS_ASK}
    if shape != _BARS_ASK:
        print(f"not the fleet of the bars ({_BARS_ASK}): a pass or a miss is no evidence")
    lake, stamp = Lake(options.folder), options.folder / "shape.txt"
    if not stamp.exists() or json.loads(stamp.read_text()) != shape:
        options.folder.mkdir(parents=True, exist_ok=True)
        refuse_what_does_not_fit(shape, options.folder)
        shutil.rmtree(options.folder)
        options.folder.mkdir()
        build(lake, fleet, since, until)
        stamp.write_text(json.dumps(shape))
    size = {
        part: sum(f.stat().st_size for f in (options.folder / part).rglob("*.parquet")) for part in ("samples", "slots")
    }
    print(f"{options.folder}: windows {size['samples'] / 1e9:.2f} GB, slots {size['slots'] / 1e9:.2f} GB")
    return lake


def questions(fleet: Fleet, until: int, times: int) -> Iterator[tuple[str, Ask, list[str]]]:
    """Yield each kind of question, and so many names to ask it for."""
    picked = np.random.default_rng(2)

    def vm(history: FleetHistory, name: str) -> object:
        steps = history.steps(until - DAY_NS, until, 300)
        found = history.series(Scope(vms=(name,)), METRICS[:5], steps, limit=1)
        [lines] = found.vms
        assert lines.values[METRICS[0]]["count"].sum() * fleet.window_ns == DAY_NS
        return found

    def host(history: FleetHistory, name: str) -> object:
        steps = history.steps(until - DAY_NS, until, 300)
        found = history.series(Scope(hosts=(name,)), METRICS[:1], steps, limit=fleet.per_host)
        assert len(found.vms) == fleet.per_host
        return found

    def top(history: FleetHistory, metric: str) -> object:
        found = history.top(Scope(), metric, "mean", until - HOUR_NS, until, 20)
        assert len(found.vms) == min(20, len(fleet.vms))
        return found

    yield "vm", vm, [fleet.vms[k] for k in picked.integers(0, len(fleet.vms), times)]
    yield "host", host, [fleet.hosts[k] for k in picked.integers(0, len(fleet.hosts), times)]
    yield "top", top, list(itertools.islice(itertools.cycle(METRICS), times))


def main() -> None:
    """Build the lake if need be, and ask."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (*_BARS_ASK.items(), ("times", 200), ("phase_s", 60)):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--folder", type=Path, default=_FOLDER)
    parser.add_argument("--beside-ingest", action="store_true")
    options = parser.parse_args()
    fleet = Fleet(options.hosts, options.vms, options.window_s)
    since = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp()) * S_NS
    until = since + options.days * DAY_NS
    lake = the_lake(options, fleet, since, until)
    history = FleetHistory(lake, SegmentTimes(lake), SLOT_NS)

    def cold(ask: Ask, name: str) -> object:
        new = FleetHistory(lake, SegmentTimes(lake), SLOT_NS)
        try:
            return ask(new, name)
        finally:
            new.close()

    beside, limits_ms = {}, {}
    for kind, ask, names in questions(fleet, until, options.times):
        what, limit_ms = _BARS[kind]
        found = measured(f"{what}, cold", [partial(cold, ask, name) for name in names[:_COLD]])
        bar(f"{what}, cold: p99", found, limit_ms, "ms", at_most=True)
        ask(history, names[0])
        beside[what] = [partial(ask, history, name) for name in names]
        limits_ms[what] = limit_ms
        warm = measured(f"{what}, warm", beside[what])
        bar(f"{what}, warm: p99", warm, limit_ms, "ms", at_most=True)
        naive = [partial(plain, options.folder, kind, name, until) for name in names[:_NAIVE]]
        print(f"  {measured(f'{what}, plain SQL over all windows', naive) / warm:.1f} times as fast as that")
    if options.beside_ingest:
        beside_ingest(options, beside, limits_ms)
    history.close()


def plain(folder: Path, kind: str, name: str, until: int) -> object:
    """Ask DuckDB for the same over all files."""
    with connect(threads=2) as connection:
        rows = f"read_parquet('{folder}/samples/*/*.parquet')"
        if kind == "top":
            query = (
                f"SELECT vm, avg({name}) AS value FROM {rows} WHERE start_unix_ns >= {until - HOUR_NS} "  # noqa: S608 - names of this file
                "GROUP BY vm ORDER BY value DESC LIMIT 20"
            )
        else:
            values = ", ".join(f"avg({m}), min({m}), max({m}), count({m})" for m in METRICS[: 5 if kind == "vm" else 1])
            key = "vm" if kind == "vm" else "machine"
            query = (
                f"SELECT vm, start_unix_ns // {SLOT_NS} AS step, {values} FROM {rows} "  # noqa: S608 - names of this file
                f"WHERE {key} = '{name}' AND start_unix_ns >= {until - DAY_NS} GROUP BY ALL ORDER BY ALL"
            )
        return connection.execute(query).fetchall()


if __name__ == "__main__":
    main()
