"""Does Pitot gain by all co-runners of a slot, as the fleet finds them, against one or none? docs/studies/pitot.md.

    python -m bench.pitot.several --out FOLDER [--hosts 1500] [--steps 1000]

No real data set here has several co-runners, so hosts are simulated (`bench.dfactor.live`: 1 to 8 VMs, cache, memory,
CPUs and disk are contended for) on four platforms of their own cache, memory and clock. A row is a VM on a host, its
runtime the CPU time of 1e9 instructions with noise of 1 %, as `whitepanda runtime observations` makes it. A fit gets
the hosts of one half, its test is the other half. Intervals draw hosts again.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.dfactor.live import SCENARIOS, Hosts
from central.models.pitot import ALONE, Rows, log_runtimes
from central.runtimes.fit import FitOptions, fit
from central.runtimes.tables import Features, Names
from collector.simulated.contention import parameters
from collector.simulated.profiles import HOST, Machine

SEED, PLACES, DRAWS = 31, 8, 1000
VARIANTS = ("all of them", "one of them", "none")
MACHINES = (
    HOST,
    replace(HOST, llc_mib=33.0, ghz=2.6),
    replace(HOST, llc_mib=11.0, memory_gb_per_s=60.0),
    replace(HOST, ghz=3.0, memory_ns=110.0),
)


def observed(machine: Machine, platform: int, hosts: int, rng: np.random.Generator) -> tuple[Rows, np.ndarray]:
    """Rows of a platform's hosts, a host's together, and the logarithms of their runtimes."""
    scenario = SCENARIOS["all of them"]
    jobs = [app for app in scenario.applications for _ in range(2)]
    usual = np.linspace(*scenario.load, len(jobs))
    running = rng.integers(0, len(jobs), (hosts, PLACES))
    load = usual[running] * rng.lognormal(0.0, 0.1, running.shape)
    load[np.arange(PLACES) >= rng.integers(1, PLACES + 1, hosts)[:, None]] = 0.0
    made = Hosts(scenario, machine, parameters(machine, [(app, 4) for app in jobs]), running, load)
    cpi = made.rates(running, load).cpi
    host, place = np.nonzero(load > 0)
    beside = np.where(load > 0, running, ALONE)[host]
    beside[np.arange(len(host)), place] = ALONE
    beside = np.take_along_axis(beside, np.argsort(beside == ALONE, axis=1, kind="stable"), axis=1)[:, : PLACES - 1]
    log_us = np.log(1e6 * cpi[host, place] / machine.ghz) + rng.normal(0.0, 0.01, len(host))
    return Rows(running[host, place], np.full(len(host), platform), beside), log_us


def seen(rows: Rows, variant: str, rng: np.random.Generator) -> Rows:
    """The rows with the co-runners that a variant sees."""
    if variant == "all of them":
        return rows
    beside = np.full((len(rows), 1), ALONE)
    if variant == "one of them":
        chosen = (rng.random(len(rows)) * rows.co_runners).astype(np.int64)
        beside = np.take_along_axis(rows.interferers, chosen[:, None], axis=1)
    return Rows(rows.workload, rows.platform, beside)


def main(arguments: list[str]) -> int:
    """Fit, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hosts", type=int, default=1500, help="of all platforms")
    parser.add_argument("--steps", type=int, default=1000)
    given = parser.parse_args(arguments)
    rng = np.random.default_rng(SEED)
    parts = [
        (observed(machine, platform, given.hosts // len(MACHINES) // 2, rng), half)
        for platform, machine in enumerate(MACHINES)
        for half in (0, 1)
    ]
    names = len({app.name for app in SCENARIOS["all of them"].applications}) * 2
    workloads, platforms = (
        Features(Names.of(tuple(f"{what}-{k}" for k in range(count))), (), np.empty((count, 0)))
        for what, count in (("job", names), ("platform", len(MACHINES)))
    )
    halves = [joined([part for part, half in parts if half == which]) for which in (0, 1)]
    lines = ["| co-runners | " + " | ".join(f"fitted to {name}" for name in VARIANTS) + " |", "|---|---|---|---|"]
    cells: dict[str, list[str]] = {}
    for variant in VARIANTS:
        rng = np.random.default_rng(SEED)
        options = FitOptions(members=1, quantiles=(), training={"steps": given.steps})
        model = fit(seen(halves[0][0], variant, rng), halves[0][1], workloads, platforms, options, {})
        test = seen(halves[1][0], variant, rng)
        a, b = model.baseline_workload[test.workload], model.baseline_platform[test.platform]
        error = np.abs(np.expm1(log_runtimes(model.members, test).mean(axis=0) + a + b - halves[1][1]))
        count = halves[1][0].co_runners
        for name, which in (("0", count == 0), ("1 to 3", (count > 0) & (count < 4)), ("4 to 7", count >= 4)):
            cells.setdefault(name, []).append(interval(error[which], np.cumsum(host_begins(halves[1][0]))[which]))
    lines += [f"| {name} | {' | '.join(of)} |" for name, of in cells.items()]
    text = "\n".join(lines)
    print(text)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "several.md").write_text(text + "\n")
    return 0


def joined(parts: list[tuple[Rows, np.ndarray]]) -> tuple[Rows, np.ndarray]:
    """All rows of several parts."""
    rows = (
        np.concatenate(each) for each in zip(*((r.workload, r.platform, r.interferers) for r, _ in parts), strict=True)
    )
    return Rows(*rows), np.concatenate([log_us for _, log_us in parts])


def host_begins(rows: Rows) -> np.ndarray:
    """Where another host's rows begin: a host with n co-runners has n + 1 rows."""
    begins, at = np.zeros(len(rows), dtype=np.int64), 0
    while at < len(rows):
        begins[at] = 1
        at += int(rows.co_runners[at]) + 1
    return begins


def interval(error: np.ndarray, host: np.ndarray) -> str:
    """A mean in %, and its 95 % interval by drawing hosts again."""
    rng = np.random.default_rng(SEED)
    _, unit = np.unique(host, return_inverse=True)
    total, count = np.bincount(unit, error), np.bincount(unit)
    drawn = rng.integers(0, len(count), (DRAWS, len(count)))
    low, high = 100 * np.percentile(total[drawn].sum(axis=1) / count[drawn].sum(axis=1), (2.5, 97.5))
    return f"{100 * float(error.mean()):.1f} ({low:.1f} to {high:.1f})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
