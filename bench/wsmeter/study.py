"""WSMeter on a simulated fleet and on the real Google sample: are upgrades found, do intervals cover, at what cost.

    python -m bench.wsmeter.study --out FOLDER [--page docs/studies/wsmeter.md] [--draws 1000] [--fleets 20]
    [--data FOLDER]

Simulated (`central.upgrades.simulated`): all 6,000 machines are measured, then a share of them, drawn at random,
gets the upgrade and is measured again; jobs with four instances there are compared. 1,000 draws, 50 on each of 20
fleets, seeds counted from 0. Each draw has its truth: the relative change of the compared jobs' weighted metric on
the whole fleet.
Real: the weighted IPC of the sample's jobs, estimated from draws of their instances.

Writes tables.md and results.json, and into the page what is below its marker. Without the real data
(`$WHITEPANDA_DATA/google2019/instance_usage.parquet`) that part says so and is left out.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from scipy.special import stdtrit

from central.models.groups import group, sums
from central.models.wsmeter import MIN_INSTANCES, MachineMeans, Observed, Shares, compare
from central.models.wsmeter_plan import cheapest_plan
from central.upgrades.simulated import CPU_UPGRADE, FleetSettings, simulate_fleet

MARKER = "<!-- below: written by bench/wsmeter/study.py -->"
#: The paper's case II: another power policy, with which about as many jobs win as lose.
DVFS_POLICY = FleetSettings(
    machine_std=0.13,
    reported_machines=400,
    reported_margin=0.0045,
    reported_coverage=0.91,
    effect=0.01,
    effect_spread=0.025,
)
MIN_COVERAGE = 0.8
GOOGLE_SIZES = (4, 8, 16, 32, 64, 128)
GOOGLE_MARGINS = (5.0, 2.0, 1.0)
GOOGLE_DRAWS = 1000
MIN_FLEETS = 2


@dataclass(frozen=True)
class Case:
    """One row: a fleet's settings, and how many machines are upgraded."""

    name: str
    settings: FleetSettings
    machines: int


@dataclass(frozen=True)
class Draw:
    """One draw of machines on the fleet of a seed. Intervals as (low, high), relative."""

    fleet: int
    truth: float
    value: float
    whitepanda: tuple[float, float]
    paper: tuple[float, float]
    baseline: tuple[float, float]
    degrees: float
    coverage: float
    jobs: int
    redraws: int


def cases(machines: int) -> list[Case]:
    """Return the paper's two cases with its shares of machines, and both without any effect."""
    few, many = round(0.009 * machines), round(0.066 * machines)
    cpu, dvfs = replace(CPU_UPGRADE, machines=machines), replace(DVFS_POLICY, machines=machines)
    none = {"effect": 0.0, "effect_spread": 0.0}
    return [
        Case("new CPUs, +7 %", cpu, few),
        Case("power policy, +1 %", dvfs, many),
        Case("new CPUs, A/A", replace(cpu, **none), few),
        Case("power policy, A/A", replace(dvfs, **none), many),
    ]


def draws_of(case: Case, seed: int, draws: int) -> list[Draw]:
    """Draw machines on one fleet, so many times."""
    fleet = simulate_fleet(case.settings, seed)
    rng = np.random.default_rng((seed, 1))
    weights = Shares(np.arange(len(fleet.weight)), fleet.weight)
    found = []
    for _ in range(draws):
        current = fleet.measure(rng, is_upgraded=False)
        redraws = 0
        while True:
            chosen = rng.choice(case.settings.machines, case.machines, replace=False)
            there = np.bincount(fleet.job[np.isin(fleet.machine, chosen)], minlength=len(fleet.weight))
            if fleet.weight[there >= MIN_INSTANCES].sum() >= MIN_COVERAGE:
                break
            redraws += 1
            if redraws == 10_000:
                raise SystemExit(f"{case.name}: {case.machines} machines never cover {MIN_COVERAGE:.0%}")
        result = compare(current, fleet.measure(rng, chosen, is_upgraded=True), weights)
        assert result.baseline is not None
        found.append(
            Draw(
                fleet=seed,
                truth=fleet.true_effect(np.array([job.job for job in result.jobs], dtype=np.int64)),
                value=result.difference.value,
                whitepanda=(result.difference.low, result.difference.high),
                paper=(result.independent.low, result.independent.high),
                baseline=(result.baseline.low, result.baseline.high),
                degrees=result.difference.degrees,
                coverage=result.coverage,
                jobs=len(result.jobs),
                redraws=redraws,
            )
        )
    return found


def wilson(hits: int, of: int) -> tuple[float, float, float]:
    """Return a share and its 95 % interval (Wilson)."""
    z, p = 1.959964, hits / of
    middle, half = p + z * z / (2 * of), z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    return p, (middle - half) / (1 + z * z / of), (middle + half) / (1 + z * z / of)


def margin_over_fleets(values: Sequence[float], fleets: Sequence[int]) -> float | None:
    """Return half the 95 % interval of a mean over draws (t), from the means of fleets: draws on one are alike."""
    numbers = np.array(fleets)
    means = np.array([np.mean(np.array(values)[numbers == fleet]) for fleet in np.unique(numbers)])
    if len(means) < MIN_FLEETS:
        return None
    return float(stdtrit(len(means) - 1, 0.975) * means.std(ddof=1) / math.sqrt(len(means)))


def quantile_interval(values: Sequence[float], share: float) -> tuple[float, float]:
    """Return the 95 % interval of a quantile: order statistics, by the normal form of the binomial."""
    ordered, n = np.sort(values), len(values)
    off = 1.959964 * math.sqrt(n * share * (1 - share))
    low, high = math.floor(n * share - off) - 1, math.ceil(n * share + off)
    return float(ordered[max(low, 0)]), float(ordered[min(high, n - 1)])


def summary(case: Case, draws: Sequence[Draw]) -> dict[str, object]:
    """Return one row of the table. "found": the interval is above 0; of A/A, "alarms": it excludes 0."""
    truth = np.array([draw.truth for draw in draws])
    is_aa = case.settings.effect == 0
    fleets = [draw.fleet for draw in draws]

    def of(name: str) -> dict[str, object]:
        ends = np.array([getattr(draw, name) for draw in draws])
        hit = (ends[:, 0] > 0) | (ends[:, 1] < 0) if is_aa else ends[:, 0] > 0
        covers = (ends[:, 0] <= truth) & (truth <= ends[:, 1])
        margins = (ends[:, 1] - ends[:, 0]) / 2
        return {
            "margin": float(margins.mean()),
            "margin_off": margin_over_fleets(margins.tolist(), fleets),
            "hits": wilson(int(hit.sum()), len(draws)),
            "covers": None if name == "baseline" else wilson(int(covers.sum()), len(draws)),
        }

    whitepanda, paper, baseline = of("whitepanda"), of("paper"), of("baseline")
    ratio = (float(str(baseline["margin"])) / float(str(whitepanda["margin"]))) ** 2
    return {
        "case": case.name,
        "is_aa": is_aa,
        "machines": case.machines,
        "share": case.machines / case.settings.machines,
        "draws": len(draws),
        "coverage": float(np.mean([draw.coverage for draw in draws])),
        "jobs": float(np.mean([draw.jobs for draw in draws])),
        "degrees": float(np.median([draw.degrees for draw in draws])),
        "redraws": sum(draw.redraws for draw in draws),
        "error": float(np.mean([draw.value - draw.truth for draw in draws])),
        "error_off": margin_over_fleets([draw.value - draw.truth for draw in draws], fleets),
        "whitepanda": whitepanda,
        "paper": paper,
        "baseline": baseline,
        "cost_ratio": ratio,
        "baseline_machines": ratio * case.machines,
    }


def simulated(draws: int, fleets: int, machines: int, processes: int) -> list[dict[str, object]]:
    """Run all cases."""
    rows = []
    with ProcessPoolExecutor(processes) as pool:
        for case in cases(machines):
            parts = [draws // fleets + (fleet < draws % fleets) for fleet in range(fleets)]
            found = [draw for part in pool.map(draws_of, [case] * fleets, range(fleets), parts) for draw in part]
            rows.append(summary(case, found))
            sys.stderr.write(f"{case.name}: {len(found)} draws\n")
    return rows


def read_google(path: Path) -> tuple[Observed, Shares]:
    """Read IPC by job (collection_logical_name) and machine: distinct (collection, time, CPI), CPI up to 100."""
    names = (
        "cluster", "machine_id", "collection_id", "collection_logical_name", "start_time", "avg_cpu",
        "cycles_per_instruction",
    )  # fmt: skip
    table = pq.read_table(path, columns=list(names))
    column = {name: table[name].to_numpy(zero_copy_only=False) for name in names}
    cpi = column["cycles_per_instruction"]
    good = (cpi > 0) & (cpi <= 100) & (column["machine_id"] > 0) & (column["avg_cpu"] > 0)
    column = {name: values[good] for name, values in column.items()}
    keys = np.rec.fromarrays([column["collection_id"], column["start_time"], column["cycles_per_instruction"]])
    _, first = np.unique(keys, return_index=True)
    _, machine = group(column["cluster"][first], column["machine_id"][first])
    (jobs,), job = group(column["collection_logical_name"][first].astype(str))
    weight = sums(job, column["avg_cpu"][first], len(jobs))
    ipc = 1.0 / column["cycles_per_instruction"][first]
    return Observed(machine, job, ipc), Shares(np.arange(len(jobs)), weight)


def google(rows: Observed, weights: Shares, draws: int) -> list[dict[str, object]]:
    """Estimate the weighted IPC of the sample's jobs from so many instances of each, and from plans for margins.

    A job is the values that the sample has of it (at least `MIN_INSTANCES`), drawn with replacement: next to no two
    of them share a machine, so each is its own. The truth is the weighted mean of all values.
    """
    count = np.bincount(rows.job, minlength=len(weights.job))
    jobs = np.flatnonzero(count >= MIN_INSTANCES)
    values = [rows.value[rows.job == job] for job in jobs]
    weight = weights.weight[jobs]
    coverage, weight = float(weight.sum() / weights.weight.sum()), weight / weight.sum()
    mean = np.array([each.mean() for each in values])
    spread = (weight * np.array([each.std() for each in values])) ** 2
    truth = float(weight @ mean)
    sizes = [(f"{n} of each job", np.full(len(jobs), n)) for n in GOOGLE_SIZES]
    for percent in GOOGLE_MARGINS:
        least, most = np.full(len(jobs), MIN_INSTANCES), np.full(len(jobs), 100_000)
        plan = cheapest_plan(np.ones(len(jobs)), spread, least, most, (percent / 100 * truth / 2) ** 2)
        assert plan is not None
        sizes.append((f"planned for +-{percent:g} %", plan.observe))
    found: list[dict[str, object]] = []
    for name, observe in sizes:
        rng = np.random.default_rng(int(observe.sum()))
        cell = np.repeat(np.arange(len(jobs)), observe)
        errors, margins, is_whitepanda, is_paper = [], [], 0, 0
        for _ in range(draws):
            drawn = [each[rng.integers(0, len(each), n)] for each, n in zip(values, observe, strict=True)]
            means = MachineMeans(np.arange(len(cell)), cell, np.concatenate(drawn), len(jobs))
            variance, degrees = means.variances(weight, np.zeros(len(jobs), dtype=np.int64), 1)
            off = abs(float(weight @ means.mean) - truth)
            margin = float(np.sqrt(variance[0]) * stdtrit(degrees[0], 0.975))
            is_whitepanda += off <= margin
            is_paper += off <= 1.959964 * math.sqrt(float((weight**2 * means.variance / means.n).sum()))
            errors.append(off / truth)
            margins.append(margin / truth)
        found.append(
            {
                "size": name,
                "jobs": len(jobs),
                "instances": int(observe.sum()),
                "draws": draws,
                "coverage": coverage,
                "median_error": float(np.median(errors)),
                "median_interval": quantile_interval(errors, 0.5),
                "p95_error": float(np.percentile(errors, 95)),
                "p95_interval": quantile_interval(errors, 0.95),
                "margin": float(np.mean(margins)),
                "margin_off": 1.959964 * float(np.std(margins)) / math.sqrt(draws),
                "whitepanda": wilson(is_whitepanda, draws),
                "paper": wilson(is_paper, draws),
            }
        )
    return found


def planned() -> list[dict[str, object]]:
    """Plan for 1,000 jobs with costs by quota, at several margins: CPU time, and whether the optimum is proven."""
    fleet = simulate_fleet(replace(CPU_UPGRADE, jobs=1_000), 0)
    rng = np.random.default_rng(0)
    rows = fleet.measure(rng, is_upgraded=False)
    count = np.bincount(rows.job)
    mean = sums(rows.job, rows.value, 1_000) / count
    variance = sums(rows.job, (rows.value - mean[rows.job]) ** 2, 1_000) / count
    most = np.maximum(count, MIN_INSTANCES)
    found: list[dict[str, object]] = []
    for percent in (0.5, 1.0, 2.0, 3.0):
        target = (percent / 100 * float(fleet.weight @ mean) / 2) ** 2
        began = time.process_time()
        plan = cheapest_plan(
            fleet.weight / count, fleet.weight**2 * variance, np.full(1_000, MIN_INSTANCES), most, target
        )
        seconds = time.process_time() - began
        assert plan is not None
        found.append(
            {
                "margin_percent": percent,
                "instances": int(plan.observe.sum()),
                "cost": plan.cost,
                "is_optimal": plan.is_optimal,
                "cpu_s": seconds,
            }
        )
    return found


def _share(value: tuple[float, float, float] | None, digits: int = 1) -> str:
    if value is None:
        return ""
    middle, low, high = value
    return f"{100 * middle:.{digits}f} % ({100 * low:.{digits}f} to {100 * high:.{digits}f})"


def _off(value: float | None, digits: int) -> str:
    return "" if value is None else f" ± {100 * value:.{digits}f}"


def tables(
    rows: list[dict[str, Any]], plans: list[dict[str, Any]], real: list[dict[str, Any]] | None, conditions: str
) -> str:
    """Return the Markdown."""
    lines = [
        conditions,
        "",
        "## Simulated fleet",
        "",
        "| | machines upgraded | method | margin | found (A/A: false alarms) | interval has the truth |",
        "|---|---|---|---|---|---|",
    ]
    names = {
        "whitepanda": "whitepanda, by machines",
        "paper": "the paper's, independent",
        "baseline": "machine granularity",
    }
    for row in rows:
        for key, name in names.items():
            part = row[key]
            lines.append(
                f"| {row['case']} | {row['machines']:,} ({100 * row['share']:.1f} %) | {name} "
                f"| {100 * part['margin']:.2f}{_off(part['margin_off'], 2)} % "
                f"| {_share(part['hits'])} | {_share(part['covers'])} |"
            )
    lines += [
        "",
        "| | draws | quota covered | jobs compared | d.o.f. | redraws | mean error | baseline's cost | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['case']} | {row['draws']:,} | {100 * row['coverage']:.1f} % | {row['jobs']:.0f} "
        f"| {row['degrees']:.0f} | {row['redraws']:,} | {100 * row['error']:+.3f}{_off(row['error_off'], 3)} % "
        f"| {row['baseline_machines']:,.0f} machines | {row['cost_ratio']:.1f}x |"
        for row in rows
    ]
    lines += ["", "## Plans for 1,000 jobs", "", "| margin | instances | cost, of all quota | proven | CPU time |",
              "|---|---|---|---|---|"]  # fmt: skip
    lines += [
        f"| {plan['margin_percent']:g} % | {plan['instances']:,} | {100 * plan['cost']:.2f} % "
        f"| {'optimal' if plan['is_optimal'] else 'no'} | {1000 * plan['cpu_s']:.0f} ms |"
        for plan in plans
    ]
    lines += ["", "## Jobs of the real Google sample", ""]
    if real is None:
        return "\n".join([*lines, "Left out: the data was not there."]) + "\n"
    jobs, covered, draws = real[0]["jobs"], 100 * real[0]["coverage"], real[0]["draws"]
    lines += [
        f"{jobs} jobs with {MIN_INSTANCES} values or more, {covered:.0f} % of CPU usage; {draws:,} draws per row.",
        "",
        "| instances | in all | median error | 95th percentile | margin | whitepanda has the truth | the paper's has |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['size']} | {row['instances']:,} "
        f"| {_share((row['median_error'], *row['median_interval']), 2)} "
        f"| {_share((row['p95_error'], *row['p95_interval']), 2)} "
        f"| {100 * row['margin']:.2f}{_off(row['margin_off'], 2)} % "
        f"| {_share(row['whitepanda'])} | {_share(row['paper'])} |"
        for row in real
    ]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run the study and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = Path(os.environ.get("WHITEPANDA_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path, help="write the tables below the marker of this page too")
    parser.add_argument("--data", type=Path, default=usual, help="folder with google2019/")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--fleets", type=int, default=20)
    parser.add_argument("--machines", type=int, default=6000)
    parser.add_argument("--google-draws", type=int, default=GOOGLE_DRAWS)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(arguments)
    rows = simulated(given.draws, given.fleets, given.machines, given.processes)
    plans = planned()
    path = given.data / "google2019" / "instance_usage.parquet"
    real = google(*read_google(path), given.google_draws) if path.exists() else None
    if real is None:
        sys.stderr.write(f"skipped: no real data at {path}; set WHITEPANDA_DATA\n")
    conditions = (
        f"{given.draws:,} draws on {given.fleets} fleets of {given.machines:,} machines; all intervals 95 %, those of "
        "shares are Wilson's; what is behind ± is half an interval,\n"
        "of simulated fleets from the spread of their means."
    )
    text = tables(rows, plans, real, conditions)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "tables.md").write_text(text, encoding="utf-8")
    (given.out / "results.json").write_text(
        json.dumps({"simulated": rows, "plans": plans, "google": real,
                    "settings": [asdict(case.settings) for case in cases(given.machines)]}, indent=1) + "\n"
    )  # fmt: skip
    if given.page is not None:
        head = given.page.read_text(encoding="utf-8").partition(MARKER)[0]
        given.page.write_text(f"{head}{MARKER}\n\n{text}", encoding="utf-8")
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
