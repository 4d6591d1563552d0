"""Do facts of VMs help to predict runtimes of applications and machines with few runs? docs/studies/pitot.md.

    python -m bench.pitot.vm_facts --out FOLDER [--folds 4] [--hosts 1200] [--steps 600] [--runs 10]

No real data set here has facts of VMs, so hosts are simulated as in `bench.pitot.several`, with 1 to 4 VMs. A job is an
application with a size: vCPUs, a quota of cores that its VMs use at most, and memory, which nothing in the simulation
depends on. Each fold holds out a part of the machines and a part of the applications. The fit gets hosts of the others,
and RUNS of each new job (beside known ones, on known machines) and of each new machine (of known jobs); the test is
other hosts of the same kinds. Fits differ by the features of jobs: none; the facts; and the cores that they really use.
Intervals draw applications (of new ones) or machines again.
"""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.dfactor.live import SCENARIOS
from bench.pitot.features import columns_of, interval
from central.models.pitot import ALONE, Rows, log_runtimes
from central.runtimes.fit import FitOptions, fit
from central.runtimes.tables import Features, Names
from collector.simulated.contention import contend, parameters
from collector.simulated.profiles import HOST, Machine

SEED, PLACES, SIZES = 43, 4, 4
VARIANTS = ("none", "VM facts", "cores used")


class World(NamedTuple):
    """Jobs and machines; a job's application, size and usual load."""

    machines: list[Machine]
    applications: np.ndarray  # (jobs,)
    table: list  # of (application, vCPUs)
    load: np.ndarray  # of a vCPU
    facts: Mapping[str, np.ndarray]


def make_world(rng: np.random.Generator) -> World:
    """Draw twelve machines, and each application at four sizes."""
    machines = [
        replace(
            HOST,
            llc_mib=float(rng.choice((11.0, 16.5, 22.0, 33.0))),
            ghz=float(rng.uniform(2.0, 3.2)),
            memory_ns=float(rng.uniform(80.0, 120.0)),
            memory_gb_per_s=float(rng.uniform(60.0, 140.0)),
        )
        for _ in range(12)
    ]
    found = list({app.name: app for app in SCENARIOS["all of them"].applications}.values())
    jobs = np.repeat(np.arange(len(found)), SIZES)
    vcpus = np.tile((1, 2, 4, 8), len(found))
    quota = vcpus * rng.choice((0.3, 0.6, 1.0), len(jobs))
    load = np.minimum(rng.uniform(0.1, 0.8, len(jobs)), quota / vcpus)
    facts = {"vcpus": vcpus, "quota": quota, "memory": vcpus * rng.choice((1, 2, 4, 8), len(jobs))}
    return World(machines, jobs, [(found[job], int(n)) for job, n in zip(jobs, vcpus, strict=True)], load, facts)


def runs(world: World, machine: int, first: np.ndarray, others: np.ndarray, rng: np.random.Generator) -> tuple:
    """Rows of these jobs, each on a host of a machine beside up to three of the others, and log runtimes."""
    running = np.column_stack([first, rng.choice(others, (len(first), PLACES - 1))])
    load = np.minimum(world.load[running] * rng.lognormal(0.0, 0.1, running.shape), 1.0)
    load[np.arange(PLACES) >= rng.integers(1, PLACES + 1, len(first))[:, None]] = 0.0
    kind = world.machines[machine]
    cpi = contend(kind, parameters(kind, world.table).at(running), load).cpi[:, 0]
    beside = np.where(load > 0, running, ALONE)[:, 1:]
    log_us = np.log(1e6 * cpi / kind.ghz) + rng.normal(0.0, 0.01, len(first))
    return Rows(first, np.full(len(first), machine), beside), log_us


def joined(parts: list[tuple]) -> tuple:
    """All rows of several parts."""
    fields = zip(*((rows.workload, rows.platform, rows.interferers) for rows, _ in parts), strict=True)
    return Rows(*map(np.concatenate, fields)), np.concatenate([log_us for _, log_us in parts])


def fold_of(
    world: World, is_new: Mapping[str, np.ndarray], given: argparse.Namespace, rng: np.random.Generator
) -> tuple[tuple, dict[str, tuple]]:
    """The rows to fit to, and the rows to predict by what is new in them."""
    new_job = is_new["application"][world.applications]
    old, new = np.flatnonzero(~new_job), np.flatnonzero(new_job)
    machines = np.arange(len(world.machines))
    known, unknown = machines[~is_new["machine"]], machines[is_new["machine"]]
    each = given.hosts // len(machines)
    train = [runs(world, m, rng.choice(old, each), old, rng) for m in known]
    for job in new:
        train += [runs(world, m, np.array([job]), old, rng) for m in rng.choice(known, given.runs)]
    train += [runs(world, m, rng.choice(old, given.runs), old, rng) for m in unknown]
    tests = {
        "application": [runs(world, m, rng.choice(new, each), old, rng) for m in known],
        "machine": [runs(world, m, rng.choice(old, each), old, rng) for m in unknown],
        "both": [runs(world, m, rng.choice(new, each), old, rng) for m in unknown],
    }
    return joined(train), {what: joined(parts) for what, parts in tests.items()}


def features_of(world: World, variant: str) -> Features:
    """The features of jobs."""
    used = world.load * world.facts["vcpus"]
    sizes = {"none": {}, "VM facts": world.facts, "cores used": {"cores": used}}[variant]
    columns = columns_of({name: list(values) for name, values in sizes.items()})
    values = np.column_stack(list(columns.values())) if columns else np.empty((len(used), 0))
    return Features(Names.of(tuple(f"job-{k:03d}" for k in range(len(used)))), tuple(columns), values)


def main(arguments: list[str]) -> int:
    """Fit, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--hosts", type=int, default=1200, help="of all machines")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--runs", type=int, default=10)
    given = parser.parse_args(arguments)
    rng = np.random.default_rng(SEED)
    world = make_world(rng)
    count = {"application": world.applications.max() + 1, "machine": len(world.machines)}
    part = {what: rng.permutation(n) % given.folds for what, n in count.items()}
    names = Names.of(tuple(f"platform-{k:02d}" for k in range(count["machine"])))
    platforms = Features(names, (), np.empty((count["machine"], 0)))
    errors: dict[str, dict[str, list[np.ndarray]]] = {}
    units: dict[str, list[np.ndarray]] = {}
    for fold in range(given.folds):
        (rows, log_us), tests = fold_of(world, {what: of == fold for what, of in part.items()}, given, rng)
        for what, (test, _) in tests.items():
            unit = world.applications[test.workload] if what == "application" else test.platform
            units.setdefault(what, []).append(unit)
        for variant in VARIANTS:
            options = FitOptions(members=1, quantiles=(), training={"steps": given.steps})
            model = fit(rows, log_us, features_of(world, variant), platforms, options, {})
            for what, (test, true) in tests.items():
                a, b = model.baseline_workload[test.workload], model.baseline_platform[test.platform]
                error = np.abs(np.expm1(log_runtimes(model.members, test).mean(axis=0) + a + b - true))
                errors.setdefault(what, {}).setdefault(variant, []).append(error)
        print(f"fold {fold}: {len(rows)} rows", file=sys.stderr)
    lines = [f"| new | rows asked | {' | '.join(VARIANTS)} | VM facts less none |", "|---|---|---|---|---|---|"]
    for what, by_variant in errors.items():
        unit = np.concatenate(units[what])
        found = {variant: np.concatenate(parts) for variant, parts in by_variant.items()}
        cells = [f"{100 * found[variant].mean():.2f}" for variant in VARIANTS]
        mean, low, high = interval(found["VM facts"] - found["none"], unit)
        lines.append(f"| {what} | {len(unit):,} | {' | '.join(cells)} | {mean:+.2f} ({low:+.2f} to {high:+.2f}) |")
    text = "\n".join(lines)
    print(text)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "vm-facts.md").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
