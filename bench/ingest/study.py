"""Ingest at scale: real central, real gRPC over mTLS on loopback, journal flushed before each acknowledgement.

    python -m bench.ingest.study [--parts idle,paced,growth,saturated,prometheus] [--minutes 10] [--hosts 10000]

Each host is a TCP connection with a certificate of its own (bench/ingest/agents.py, in processes of their own: their
CPU time is not counted as central's, but they share its cores). Beside it Prometheus receives the same values by
remote write (bench/ingest/prometheus.py). Every bar is printed with its ratio. CPU time and memory are of all of
central's processes but the one that builds, once in the first minutes and then hourly (bench/central_cost/build.py):
TLS, checks, journal, and the rolls into the lake; "without rolls" is the same with rolls put off.

"rate" is what the machine's cores carry together, agents included; "per CPU second" is central's own. Of the time to
the acknowledgement it tells the server's share (bench/ingest/server.py), and how late the agents themselves were.
Each part can run alone. All hosts saturate with 1 batch in flight each, with 4, and with up to 32 as agents do:
from 4 on, one more for each that is acknowledged, 4 again where central asks to slow down. `idle` takes 11 minutes
(each host's heartbeat comes once in the 10 that are measured), `paced` --minutes and one, and tells with 6 or more
whether memory stays flat; `growth` 3, `saturated` 8, `prometheus` 1; `saturated,prometheus` together tell their ratio
for each load, with rolls, and beside it without. A window has --values values (25): the CPI, the CPU usage, and the
next ones of `whitepanda.common.window_columns`.
`idle` and `paced` share their connections where both are asked for.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.ingest import prometheus
from central.ingest.handshake import HEARTBEAT_MS
from central.pki import issue
from tests.support.central_process import MAIN, CentralProcess
from whitepanda.common.cli import GRPC_EXPERIMENTS

_AGENTS = Path(__file__).with_name("agents.py")
_SERVER = Path(__file__).with_name("server.py")
_FOLDER = Path(__file__).parents[2] / "build"  # git ignores it
_PROCESSES = 2
_SPARE_FILES = 200
_PARTS = ("idle", "paced", "growth", "saturated", "prometheus")
_LONG = 6  # minutes that memory must be watched for


class Load:
    """The agents' processes, connected to a central."""

    def __init__(self, central: CentralProcess, hosts: int, vms: int, values: int, stopwatch: Path | None) -> None:
        self.stopwatch = stopwatch
        self.server = psutil.Process(central.process.pid)
        self.vms = vms
        self.processes = []
        edges = np.linspace(0, hosts, min(_PROCESSES, hosts) + 1).astype(int).tolist()
        for first, last in pairwise(edges):
            options = {"port": central.port, "pki": str(central.pki), "first": first, "last": last, "vms": vms}
            options["values"] = values
            command = [sys.executable, str(_AGENTS), json.dumps(options)]
            self.processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        connected = self.do("connect")
        print(
            f"{hosts} hosts connected in {connected['took']:.0f} s, {connected['cpu'] / hosts * 1e3:.1f} ms CPU "
            f"of central each; rss {connected['rss']:.0f} MiB",
            flush=True,
        )

    def close(self) -> None:
        for process in self.processes:
            process.stdin.close()
            process.wait()

    def parts(self) -> list[psutil.Process]:
        """Return central's processes: itself and the one that writes segments, not one that builds."""
        found = [self.server]
        for child in self.server.children():
            with suppress(psutil.NoSuchProcess):
                if "central.build.worker" not in child.cmdline():
                    found.append(child)
        return found

    def cpu_s(self) -> float:
        """Return the CPU time of these so far."""
        return sum(sum(each.cpu_times()[:2]) for each in self.parts())

    def in_server(self) -> dict[str, list[float]]:
        """Return what the stopwatch has measured since it was asked last, in seconds."""
        if self.stopwatch is None:
            return {"seconds": [], "pauses": []}
        self.stopwatch.unlink(missing_ok=True)
        self.server.send_signal(signal.SIGUSR1)
        until = time.monotonic() + 30
        while not self.stopwatch.exists():
            if time.monotonic() > until:
                sys.exit("central's stopwatch does not answer")
            time.sleep(0.02)
        measured: dict[str, list[float]] = json.loads(self.stopwatch.read_text())
        return measured

    def do(self, what: str, **options: Any) -> dict[str, Any]:
        """Have every process do it at the same time; sums up, with central's CPU time meanwhile."""
        self.in_server()  # what was before
        before, began = self.cpu_s(), time.perf_counter()
        for process in self.processes:
            process.stdin.write(json.dumps({"do": what, **options}) + "\n")
            process.stdin.flush()
        lines = [process.stdout.readline() for process in self.processes]
        if not all(lines):
            sys.exit("a process of agents failed")
        answers = [json.loads(line) for line in lines]
        cpu, took = self.cpu_s() - before, time.perf_counter() - began
        latencies = np.concatenate([*(a["latencies_s"] for a in answers), [0.0]])
        server = self.in_server()
        windows = sum(a["batches"] for a in answers) * self.vms
        if sum(a["rejected"] for a in answers):
            sys.exit("central rejected what is good")
        return {
            "windows": windows, "took": took, "cpu": cpu, "rate": windows / took, "per_cpu": windows / max(cpu, 0.01),
            "slowed": sum(a["slowed"] for a in answers), "agents_cpu": sum(a["cpu_s"] for a in answers),
            "p50_ms": float(np.percentile(latencies, 50)) * 1e3, "p99_ms": float(np.percentile(latencies, 99)) * 1e3,
            "rss": sum(each.memory_info().rss for each in self.parts()) / 2**20, "found": [a["found"] for a in answers],
            "latencies": latencies[:-1], "in_server": server["seconds"], "pauses": server["pauses"],
        }  # fmt: skip


def bar(what: str, value: float, limit: float, unit: str, *, at_most: bool) -> None:
    """Print a bar: what it asks for, what was measured, their ratio."""
    passed = value <= limit if at_most else value >= limit
    sign = "<=" if at_most else ">="
    shown = f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
    ratio = value / limit
    print(
        f"  BAR {what}: {shown} {unit} {sign} {limit:,g} (ratio {ratio:.2f}): {'pass' if passed else 'MISS'}",
        flush=True,
    )


def _say_where(minutes: list[dict[str, Any]]) -> None:
    """Print how the times to the acknowledgement are spread, and the server's share of them."""
    for what, name in (("to the acknowledgement", "latencies"), ("of it in the server", "in_server")):
        found_ms = np.concatenate([each[name] for each in minutes]) * 1e3
        known = ", ".join(f"p{p:g} {np.percentile(found_ms, p):.0f}" for p in (50, 90, 99, 99.9))
        print(f"  {what}: {known}, most {found_ms.max():.0f} ms; {len(found_ms):,} batches")
    pauses_ms = np.concatenate([*(each["pauses"] for each in minutes), [0.0]]) * 1e3
    print(f"  Python's collector: {pauses_ms.sum():.0f} ms in all, {pauses_ms.max():.0f} ms at most at a time")


class Bench:
    """Certificates made once, and a fresh central for each part that wants one."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self.folder, self.hosts, self.vms = folder, arguments.hosts, arguments.vms
        self.values = arguments.values
        self.scale, self.minutes = arguments.scale, arguments.minutes
        self.pki = CentralProcess(folder).pki
        for number in range(self.hosts):
            issue(self.pki, f"host-{number}")
        self.number = 0
        self.paced_cpu = 0.0
        self.per_cpu: dict[str, tuple[float, float]] = {}  # saturated, by load: with rolls, without
        self.fleet = ExitStack()  # what idle and paced share
        self.all: Load | None = None

    @contextmanager
    def load(self, hosts: int, *, roll_s: float = 60.0, stopwatch: bool = True) -> Iterator[Load]:
        """Run a central with nothing in it, and so many hosts connected to it."""
        self.number += 1
        state, lake = self.folder / f"state-{self.number}", self.folder / f"lake-{self.number}"
        rows = 500_000 if roll_s < 3600 else 100_000_000
        central = CentralProcess(self.folder, ingest=f"roll_interval_s = {roll_s}\nroll_rows = {rows}", state_dir=state)
        central.lake_dir = lake
        times = state.with_suffix(".times")
        os.environ["STOPWATCH"] = str(times)
        # The command sets it before it imports gRPC, which the stopwatch does earlier.
        os.environ.setdefault("GRPC_EXPERIMENTS", GRPC_EXPERIMENTS)
        central.start(main=(str(_SERVER),) if stopwatch else MAIN)
        try:
            load = Load(central, hosts, self.vms, self.values, times if stopwatch else None)
            try:
                yield load
            finally:
                load.close()
        finally:
            central.end()

    def whole(self) -> Load:
        """Return the load of all hosts, connected once."""
        if self.all is None:
            self.all = self.fleet.enter_context(self.load(self.hosts))
        return self.all

    def close(self) -> None:
        """End the load of all hosts."""
        self.fleet.close()
        self.all = None

    def idle(self) -> None:
        load = self.whole()
        load.do("idle", seconds=5)
        found = load.do("idle", seconds=HEARTBEAT_MS / 1e3 * self.scale)
        gigabytes = found["rss"] * 2**20 / 1e9
        bar(f"{self.hosts} idle mTLS streams, memory", gigabytes, 1.5, "GB", at_most=True)
        bar("... and CPU", found["cpu"] / found["took"] * 100, 2.0, "% of a core", at_most=True)

    def paced(self) -> None:
        load = self.whole()
        load.do("paced", seconds=10, interval_s=10.0)
        minutes = []
        for _ in range(self.minutes):
            minutes.append(load.do("paced", seconds=60 * self.scale, interval_s=10.0))
            self._say(minutes[-1])
        latencies_ms = np.concatenate([each["latencies"] for each in minutes]) * 1e3
        took = sum(each["took"] for each in minutes)
        rate, wanted = sum(each["windows"] for each in minutes) / took, self.hosts * self.vms / 10
        self.paced_cpu = sum(each["cpu"] for each in minutes) / took
        late_ms = max(late for each in minutes for late in each["found"]) * 1e3
        print(f"  agents sent at most {late_ms:.0f} ms late (p99), which counts as time to the acknowledgement")
        bar(f"paced {wanted:,.0f} windows/s: rate", rate, 0.98 * wanted, "windows/s", at_most=False)
        bar("... ack p99", float(np.percentile(latencies_ms, 99)), 200, "ms", at_most=True)
        _say_where(minutes)
        if self.minutes >= _LONG:
            rss = [each["rss"] for each in minutes]
            grown = max(rss[-3:]) / max(rss[1:4])
            bar("memory of the last 3 minutes / of the 2nd to 4th", grown, 1.1, "times", at_most=True)

    def growth(self) -> None:
        if not self.paced_cpu:
            found = self.whole().do("paced", seconds=30 * self.scale, interval_s=10.0)
            self.paced_cpu = found["cpu"] / found["took"]
        self.close()
        with self.load(self.hosts // 10) as load:
            load.do("paced", seconds=10, interval_s=10.0)
            found = load.do("paced", seconds=70 * self.scale, interval_s=10.0)
        self._say(found)
        times = self.paced_cpu / (found["cpu"] / found["took"])
        bar("x10 hosts cost", times, 11, "times the CPU time", at_most=True)

    def saturated(self) -> None:
        self.close()
        kinds = [(min(1000, self.hosts), 4), (self.hosts, 1), (self.hosts, 4), (self.hosts, 32)]
        for hosts, in_flight in dict.fromkeys(kinds):
            rates = []
            for roll_s in (60.0, 3600.0):
                with self.load(hosts, roll_s=roll_s, stopwatch=False) as load:
                    found = load.do("saturate", seconds=20 * self.scale, in_flight=in_flight)
                rolls = "without rolls" if roll_s >= 3600 else "with rolls"
                print(f"  saturated, {hosts} hosts with up to {in_flight} batches in flight each, {rolls}:")
                self._say(found)
                bar("windows per server CPU s", found["per_cpu"], 150_000, "per CPU s", at_most=False)
                rates.append(found["per_cpu"])
            self.per_cpu[f"{hosts} hosts with up to {in_flight} batches in flight each"] = (rates[0], rates[1])

    def prometheus(self) -> None:
        self.close()
        version = prometheus.version()
        if version is None:
            print("prometheus is not installed (Debian: apt-get install prometheus): nothing to stand beside")
            return
        with prometheus.Prometheus(self.folder / f"prometheus-{time.time_ns()}") as server:
            theirs = server.windows_per_cpu_s(
                hosts=200, vms=self.vms, values=self.values, rounds=max(2, int(10 * self.scale))
            )
        print(f"{version}, remote write, 10,000 samples a request: {theirs:,.0f} windows per server CPU s")
        for load, (with_rolls, without) in self.per_cpu.items():
            what = f"saturated, {load}, with rolls / Prometheus, per server CPU s"
            bar(what, with_rolls / theirs, 10.0, "times", at_most=False)
            print(f"  (without rolls: {without / theirs:.2f} times)", flush=True)

    @staticmethod
    def _say(found: dict[str, Any]) -> None:
        print(
            f"  {found['rate']:,.0f} windows/s, {found['per_cpu']:,.0f} per server CPU s; ack p50 "
            f"{found['p50_ms']:.0f} ms, p99 {found['p99_ms']:.0f} ms; known to slow down {found['slowed']} times; "
            f"agents' own CPU {found['agents_cpu']:.1f} s, central's {found['cpu']:.1f}; rss {found['rss']:.0f} MiB",
            flush=True,
        )


def allow_files(hosts: int) -> None:
    """Raise this process's limit of open files to what so many connections need; exit if it may not."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < hosts + _SPARE_FILES:
        sys.exit(f"ulimit -Hn is {hard}; {hosts} hosts need {hosts + _SPARE_FILES}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def scratch() -> Iterator[Path]:
    """Make a folder on the checkout's disk, as /tmp may be memory; it is removed at SIGTERM too."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    _FOLDER.mkdir(exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="whitepanda-bench-", dir=_FOLDER) as folder:
            yield Path(folder).resolve()
    finally:
        signal.signal(signal.SIGTERM, before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(_PARTS))
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--vms", type=int, default=50)
    parser.add_argument("--values", type=int, default=25, help="of a window, 2 to 39")
    parser.add_argument("--scale", type=float, default=1.0, help="of the measurements' lengths")
    parser.add_argument("--minutes", type=int, default=10, help="of the paced part")
    arguments = parser.parse_args()
    allow_files(arguments.hosts)
    with scratch() as folder:
        bench = Bench(folder, arguments)
        try:
            for part in arguments.parts.split(","):
                print(part, flush=True)
                getattr(bench, part)()
        finally:
            bench.close()


if __name__ == "__main__":
    main()
