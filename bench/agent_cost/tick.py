"""The tick's cost: lateness, CPU per tick, memory, for the whole agent on simulated VMs of 8 vCPUs.

The agent runs as on a host (sources' threads, rates, windows, analysis, spool, local API); only its source is
simulated, and that source's own cost is counted too. Beside it, in the same run: a loop that only ticks, and a
loop that reads as many threads with plain psutil. Each runs in a process of its own.

Then the agent once more in contention: two of five VMs are victims all the time, the others suspects with a score, a
window ends in every tick, and 90 of them are kept of each VM, as with the defaults (10 s windows, 3 slots of 300 s).
Shown are the worst tick, and the CPU time of its parts that contention adds: what the analysis makes of the windows,
and the advice. Their growth with the VMs has a bar. It takes 90 s longer than the others, until there are 3 slots.

    python -m bench.agent_cost.tick [--vms 100] [--seconds 60] [--only contention] [--json]
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
VCPUS = 8
GROWTH = 10
WARM_UP_TICKS = 5
CONTENTION_SLOT_S = 30
CONTENTION_WARM_UP_S = 3.0 * CONTENTION_SLOT_S
BARS = {"lateness_p99_ms": 5.0, "core_percent": 1.5, "rss_mib": 90.0 * 1e6 / 2**20}


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def report(lateness_ns: list[int], cpu_s: float, ticks: int, **more: float) -> None:
    late_ms = [value / 1e6 for value in lateness_ns]
    result = {
        "ticks": ticks,
        "lateness_p50_ms": quantile(late_ms, 0.5),
        "lateness_p99_ms": quantile(late_ms, 0.99),
        "cpu_ms_per_tick": cpu_s / ticks * 1e3,
        "core_percent": cpu_s / ticks * 100,  # at one tick per second
        "rss_mib": rss_mib(),
        **more,
    }
    print(json.dumps(result), flush=True)


def child_agent(vms: int, seconds: float) -> None:
    run_agent(vms, seconds)


def child_contention(vms: int, seconds: float) -> None:
    run_agent(vms, seconds, contended=True)


def run_agent(vms: int, seconds: float, *, contended: bool = False) -> None:
    """The daemon itself, its source simulated, its central away (so that the spool is written)."""
    from agent.config import load
    from agent.daemon import Daemon

    warm_up_ticks = WARM_UP_TICKS + round(CONTENTION_WARM_UP_S) * contended
    sensitive = """
            [[jobs]]
            fact = "job"
            pattern = "^(job[0-7])$"
            job = '\\1'
            latency_sensitive = true
            """
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        rows = [f'[[vms]]\nname = "vm{i:04d}"\njob = "job{i % 20}"\nvcpus = {VCPUS}\n' for i in range(vms)]
        (base / "scenario.toml").write_text(f"seed = 1\n[host]\ncpus = {min(4096, vms * VCPUS)}\n" + "\n".join(rows))
        (base / "agent.toml").write_text(
            f"""
            [agent]
            host = "bench"
            state_dir = "{base}"
            socket = "{base}/agent.sock"
            log_level = "error"
            window_s = {1 if contended else 10}
            [analysis]
            trigger = "paper"
            [sources]
            libvirt.mode = "off"
            perf.mode = "off"
            procfs.mode = "off"
            [sources.simulated]
            mode = "required"
            scenario = "{base}/scenario.toml"
            [uplink]
            address = "127.0.0.1:9"
            {sensitive if contended else ""}
            [[jobs]]
            fact = "job"
            pattern = "(.+)"
            job = '\\1'
            """
        )
        from whitepanda.common import log

        log.configure("error")
        daemon = Daemon(load(base / "agent.toml"))
        state, lateness, durations = daemon.state, [], []
        start: dict[str, float] = {}
        parts: dict[str, list[float]] = {}
        cpu_s: list[float] = []  # of the loop's thread, at the beginning of each tick
        plain_tick = state.pipeline.tick

        def tick(mono_ns: int) -> Any:
            if contended and not parts:
                parts.update(contend(daemon))
            if state.schedule.ticks == warm_up_ticks:
                start["cpu"], start["ticks"] = time.process_time(), state.schedule.ticks
            elif start:
                lateness.append(state.counters.lateness_ns)
                durations.append(state.counters.duration_ns)
                cpu_s.append(time.thread_time())
            return plain_tick(mono_ns)

        state.pipeline.tick = tick

        async def main() -> None:
            asyncio.get_running_loop().call_later(seconds, daemon.stop)
            await daemon.run()

        asyncio.run(main())
        ticks = int(state.schedule.ticks - start["ticks"])
        known = sum(isinstance(vm.rates.cpi, float) for vm in state.pipeline.table)
        report(
            lateness,
            time.process_time() - start["cpu"],
            ticks,
            loop_p99_ms=quantile([value / 1e6 for value in durations], 0.99),
            missed=state.schedule.missed,
            vms=len(state.pipeline.table),
            vms_with_cpi=known,
            worst_tick_ms=max(durations) / 1e6,
            worst_tick_cpu_ms=max(b - a for a, b in pairwise(cpu_s)) * 1e3,
            **{f"{name}_worst_ms": max(spent) * 1e3 for name, spent in parts.items() if spent},
            **{f"{name}_median_ms": quantile(spent, 0.5) * 1e3 for name, spent in parts.items() if spent},
        )


def contend(daemon: Any) -> dict[str, list[float]]:
    """Send statistics by which two of five VMs always suffer; return where CPU seconds of the loop's parts are put."""
    from whitepanda.v1 import agent_pb2

    state = daemon.state
    job = agent_pb2.JobStatistics(platform=state.names.platform, samples=1000, mean_cpi=0.01, std_cpi=0.001)
    jobs = [f"job{number}" for number in range(20)]
    sent = agent_pb2.CoefficientUpdate(
        version=1,
        created_unix_ns=time.time_ns(),
        slot_ns=CONTENTION_SLOT_S * 10**9,
        full=True,
        coefficients=[agent_pb2.Coefficient(job=name, value=0.5, standard_error=0.1) for name in jobs[8:]],
    )
    for name in jobs[:8]:
        job.job = name
        sent.statistics.append(job)
    assert daemon._store.apply(sent)  # noqa: SLF001 - as the uplink does
    parts: dict[str, list[float]] = {"analysis": [], "advice": []}

    def timed(name: str, plain: Any) -> Any:
        def work(*arguments: Any) -> Any:
            began = time.thread_time()
            found = plain(*arguments)
            if state.analysis.triggered:
                parts[name].append(time.thread_time() - began)
            return found

        return work

    state.analysis.observe = timed("analysis", state.analysis.observe)
    state.advisor.with_advice = timed("advice", state.advisor.with_advice)
    return parts


def loop(seconds: float, work: Any) -> None:
    """Tick on the same schedule and clock as the agent, doing only `work`."""
    from agent.clock import SystemClock
    from agent.sampling.scheduler import TickSchedule

    clock = SystemClock()
    schedule = TickSchedule(10**9, clock.mono_ns() + 10**9)
    lateness: list[int] = []

    async def main() -> float:
        cpu = 0.0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await clock.sleep_until(schedule.due_ns)
            late_ns = schedule.advance(clock.mono_ns())
            if late_ns is None:
                continue
            if schedule.ticks == WARM_UP_TICKS:
                cpu = time.process_time()
            elif schedule.ticks > WARM_UP_TICKS:
                lateness.append(late_ns)
            work()
        return time.process_time() - cpu

    spent = asyncio.run(main())
    report(lateness, spent, schedule.ticks - WARM_UP_TICKS)


def child_empty(_vms: int, seconds: float) -> None:
    loop(seconds, lambda: None)


def child_psutil(vms: int, seconds: float) -> None:
    """Read as many threads as the VMs have vCPUs, of one process with sleeping threads, with plain psutil."""
    import psutil

    script = f"""
import sys, threading, time
threading.stack_size(65536)
for _ in range({vms * VCPUS}):
    threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
print("up", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        process = psutil.Process(busy.pid)
        last: dict[int, float] = {}

        def work() -> None:
            for thread in process.threads():
                last[thread.id] = thread.user_time + thread.system_time

        loop(seconds, work)
        busy.kill()


CHILDREN = {"agent": child_agent, "contention": child_contention, "empty": child_empty, "psutil": child_psutil}


def spawn(kind: str, vms: int, seconds: float) -> subprocess.Popen[str]:
    arguments = [sys.executable, __file__, "--child", kind, "--vms", str(vms), "--seconds", str(seconds)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])}
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)


def run(kind: str, vms: int, seconds: float) -> dict[str, float]:
    with spawn(kind, vms, seconds) as child:
        assert child.stdout is not None
        result: dict[str, float] = json.loads(child.stdout.read().splitlines()[-1])
    return result


def show(results: dict[str, dict[str, float]], vms: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"tick of 1 s, {vms} VMs x {VCPUS} vCPUs (x{GROWTH} in the second row)")
    for column in ("", "lateness p50", "p99", "CPU per tick", "of one core", "RSS", "CPU vs psutil"):
        table.add_column(column, justify="left" if not column else "right")
    base = results["psutil"]["cpu_ms_per_tick"]
    for name, row in results.items():
        table.add_row(
            name,
            f"{row['lateness_p50_ms']:.2f} ms",
            f"{row['lateness_p99_ms']:.2f} ms",
            f"{row['cpu_ms_per_tick']:.2f} ms",
            f"{row['core_percent']:.2f} %",
            f"{row['rss_mib']:.0f} MiB",
            f"{row['cpu_ms_per_tick'] / base:.2f}x",
        )
    console = Console()
    console.print(table)
    agent = results["agent"]
    for key, bar in BARS.items():
        console.print(f"{'met ' if agent[key] <= bar else 'MISSED'} {key}: {agent[key]:.2f}, bar {bar:.2f}")
    growth = results[f"agent x{GROWTH}"]["cpu_ms_per_tick"] / agent["cpu_ms_per_tick"]
    console.print(f"{'met ' if growth <= 11 else 'MISSED'} growth at x{GROWTH} VMs: {growth:.2f}x, bar 11x")


def contention(vms: int, seconds: float) -> dict[str, dict[str, float]]:
    """Return the agent in contention, with so many VMs and with more."""
    seconds += CONTENTION_WARM_UP_S + WARM_UP_TICKS
    return {str(count): run("contention", count, seconds) for count in (vms, vms * GROWTH)}


def show_contention(results: dict[str, dict[str, float]]) -> None:
    few, many = results.values()
    parts = ("analysis", "advice")
    for vms, row in results.items():
        if "advice_worst_ms" not in row:
            print(f"contention, {vms} VMs: no report in this time, nothing to compare; a machine with less to do?")
            return
        print(f"contention, {vms} VMs: worst tick {row['worst_tick_ms']:.0f} ms", end=" ")
        print(f"({row['worst_tick_cpu_ms']:.0f} ms of CPU); CPU, worst (median):", end=" ")
        print(", ".join(f"{p} {row[f'{p}_worst_ms']:.1f} ({row[f'{p}_median_ms']:.1f}) ms" for p in parts))
    for key in ("worst_tick_cpu_ms", *(f"{part}_median_ms" for part in parts)):
        growth = many[key] / few[key]
        print(f"{'met ' if growth <= 11 else 'MISSED'} growth of {key} at x{GROWTH} VMs: {growth:.2f}x, bar 11x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vms", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only", choices=("contention",), help="leave out the rest")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=CHILDREN)
    options = parser.parse_args()
    if options.child:
        CHILDREN[options.child](options.vms, options.seconds)
        return
    short = max(WARM_UP_TICKS + 5.0, options.seconds / 2)
    if options.only:
        contended = contention(options.vms, short)
        print(json.dumps(contended, indent=2)) if options.json else show_contention(contended)
        return
    results = {
        "agent": run("agent", options.vms, options.seconds),
        f"agent x{GROWTH}": run("agent", options.vms * GROWTH, short),
        "empty loop": run("empty", options.vms, short),
        "psutil": run("psutil", options.vms, short),
    }
    if options.json:
        print(json.dumps(results | {"contention": contention(options.vms, short)}, indent=2))
    else:
        show(results, options.vms)
        show_contention(contention(options.vms, short))


if __name__ == "__main__":
    main()
