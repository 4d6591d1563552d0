"""Every method on generated traces with known antagonists: the tables of docs/studies/antagonists.md.

    python bench/antagonists.py --out FOLDER [--seeds 8] [--parts study,others,ablation] [--sample TRACE]

study: presets paper and paper-saturating (matched to the plain methods' published scores alone), seeds 1 to N;
others: presets of other mechanisms, two seeds each; ablation: ours with one idea changed, on development traces
that share neither settings nor seeds with the study; with --sample, how stable the location and scale of jobs' CPI
are between two halves of the days of a real trace. Writes one JSON line per trace and tables.md into FOLDER; a
trace that is there already is not run again. Exits with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet as pq

from central.evaluation.methods import METHODS, Known, Method, Whitepanda
from central.evaluation.protocol import evaluate
from central.models import whitepanda, whitepanda_solve
from central.models.groups import Column, Floats, group, sums
from central.models.slots import SLOTS_PER_DAY, TaskSlots
from central.synth.population import ROLES, make_jobs, make_machines, make_tasks
from central.synth.presets import preset
from central.synth.settings import SynthSettings
from central.synth.simulate import Effects, simulate

OURS = "whitepanda"
FORMS = ("paper", "paper-saturating")
OTHERS = ("other-1", "other-2", "other-3")
#: Bars: share of the gap between PANDA and the oracle, and how far below PANDA any seed may be.
GAP_CLOSED, WORST_LOSS = 0.8, 0.01

_BASE = SynthSettings(days=15, machines=30, companions=8, burners=6)
#: Development traces: what ours was developed on (seeds 101 to 103).
DEVELOPMENT: Mapping[str, SynthSettings] = {
    "weak": replace(_BASE, antagonist_effect=0.03, cpi_noise=0.4, machine_noise=0.1),
    "confounded": replace(
        _BASE,
        companions=12,
        ride_along=0.95,
        companion_usage_correlation=0.9,
        antagonist_effect=0.06,
        cpi_noise=0.35,
    ),
    "rare jobs": replace(
        _BASE,
        machines=20,
        batch_jobs=300,
        antagonists=30,
        antagonist_effect=0.08,
        cpi_noise=0.35,
        background_effect=0.01,
    ),
    "lag": replace(_BASE, antagonist_effect=0.06, cpi_noise=0.35, effect_memory_h=1, usage_memory_h=0.5),
    "bursts": replace(_BASE, effect_threshold=1.2, antagonist_effect=0.1, cpi_noise=0.35, ls_antagonists=3),
    "corrupted": replace(
        _BASE, corrupted_share=0.01, noise_tail=2.5, antagonist_effect=0.08, machine_noise_spread=0.5
    ),
    "steady usage": replace(
        _BASE,
        usage_noise=0.0,
        diurnal_load=0,
        batch_diurnal_load=0,
        batch_lifetime_h=2000,
        platforms=1,
        machine_effect=0.03,
        antagonist_effect=0.1,
        machine_noise=0.1,
        machine_noise_memory_h=1,
    ),
}
DEVELOPMENT_SEED, DEVELOPMENT_FROM_DAY = 103, 10


def trace(settings: SynthSettings) -> tuple[list[tuple[int, TaskSlots]], Column, dict[int, float]]:
    """Generate a trace in memory: its days, the antagonists, and every job's true mean coefficient."""
    jobs, machines = make_jobs(settings), make_machines(settings)
    tasks = make_tasks(settings, jobs)
    effects = Effects(len(jobs.job_id))
    days = []
    for number, day in enumerate(simulate(settings, jobs, machines, tasks, effects)):
        job = tasks.job[day.task].astype(np.int64)
        machine = tasks.place[day.task] // (settings.ls_tasks + settings.batch_tasks)
        platform = np.zeros(len(job), np.int8)  # as in a trace's files, which have none
        sensitive = jobs.is_sensitive[job]
        days.append(
            (number, TaskSlots(machine, day.slot, day.task, job, platform, sensitive, day.usage, day.cpi))
        )
    antagonists = np.flatnonzero(jobs.role == ROLES.index("antagonist"))
    return days, antagonists, dict(enumerate(effects.coefficient.tolist()))


class _Timed:
    """A method, and the time that it takes."""

    def __init__(self, method: Method) -> None:
        self._method, self.seconds = method, 0.0

    def learn(self, day: TaskSlots) -> None:
        began = time.perf_counter()
        self._method.learn(day)
        self.seconds += time.perf_counter() - began

    def settle(self) -> None:
        began = time.perf_counter()
        self._method.settle()
        self.seconds += time.perf_counter() - began

    def scores(self, event: Any) -> Floats:
        began = time.perf_counter()
        found = self._method.scores(event)
        self.seconds += time.perf_counter() - began
        return found


def run_all(name: str, seed: int) -> dict[str, Any]:
    """Evaluate all methods and the oracle on one trace of a preset."""
    days, antagonists, coefficients = trace(replace(preset(name), seed=seed))
    methods = {method: _Timed(make()) for method, make in METHODS.items()} | {
        "oracle": _Timed(Known(coefficients))
    }
    found = evaluate(days, antagonists, methods)
    return {
        "preset": name,
        "seed": seed,
        "events": found.events,
        "machines": found.machines,
        "rows": found.task_slots,
        "methods": {
            method: {
                "percentile": result.mean_percentile.value,
                "consistency": result.consistency.value,
                "first": result.first_is_antagonist.value,
                "seconds": round(methods[method].seconds, 2),
            }
            for method, result in found.methods.items()
        },
    }


def _plain_n_cpi(job: Column, platform: Column, day: Column, cpi: Floats) -> Floats:
    keys, code = group(job, platform, day)
    n = len(keys[0])
    count = np.bincount(code, minlength=n)
    deviation = cpi - (sums(code, cpi, n) / count)[code]
    std = np.sqrt(sums(code, deviation**2, n) / count)[code]
    return np.divide(deviation, std, out=np.zeros_like(cpi), where=std > 0)


def _marginal(gram: Floats, b: Floats) -> tuple[Floats, Floats]:
    return b / np.diag(gram), 1 / np.diag(gram)


def _non_negative(gram: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Coordinate descent with every coefficient at least 0."""
    a, residual = np.zeros(len(b)), b.copy()
    for _ in range(200):
        before = a.copy()
        for k in range(len(b)):
            new = max(0.0, a[k] + residual[k] / gram[k, k])
            residual -= gram[:, k] * (new - a[k])
            a[k] = new
        if np.abs(a - before).max() <= 1e-7 * np.abs(a).max():
            break
    return a, np.diag(np.linalg.inv(gram))


class _LowerBound(Whitepanda):
    """Ranks by the estimate less one standard error instead of the shrunk one."""

    def settle(self) -> None:
        """Compute the coefficients."""
        if self._state:
            found = self._state.coefficients()
            self._jobs, self._values = found.job, found.estimate - found.standard_error


Patch = tuple[Any, str, Any]
#: Ours with one idea changed each.
ABLATION: Mapping[str, tuple[Callable[[], Method], tuple[Patch, ...]]] = {
    "ours": (Whitepanda, ()),
    "mean and std instead of median and IQR of the log": (
        Whitepanda,
        ((whitepanda, "robust_n_cpi", _plain_n_cpi),),
    ),
    "not cut at 3": (Whitepanda, ((whitepanda, "CLIP", np.inf),)),
    "marginal instead of joint": (Whitepanda, ((whitepanda_solve, "_dense", _marginal),)),
    "non-negative": (Whitepanda, ((whitepanda_solve, "_dense", _non_negative),)),
    "no quasi-differences": (
        Whitepanda,
        ((whitepanda, "PERSISTENCE", 0.0), (whitepanda_solve, "MAX_WEIGHT", 1.0)),
    ),
    "machine effects left in": (
        Whitepanda,
        ((whitepanda, "PERSISTENCE", 0.0), (whitepanda_solve, "_weight", lambda _first, _other: 1.0)),
    ),
    "within machine days only": (Whitepanda, ((whitepanda_solve, "MAX_WEIGHT", 0.0),)),
    "ridge a tenth": (Whitepanda, ((whitepanda_solve, "RIDGE_SLOTS", 1.0),)),
    "ridge ten times": (Whitepanda, ((whitepanda_solve, "RIDGE_SLOTS", 100.0),)),
    "not shrunk": (Whitepanda, ((whitepanda_solve, "EVIDENCE", 0.0),)),
    "estimate less its error instead of shrunk": (_LowerBound, ()),
}


@contextmanager
def _changed(patches: tuple[Patch, ...]) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, value in patches:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


def run_ablation(name: str, seed: int) -> dict[str, Any]:
    """Evaluate ours with each idea changed on one development trace."""
    days, antagonists, coefficients = trace(replace(DEVELOPMENT[name], seed=seed))
    plain: dict[str, Method] = {"panda": METHODS["panda"](), "oracle": Known(coefficients)}
    found = evaluate(days, antagonists, plain, from_day=DEVELOPMENT_FROM_DAY)
    scores = {method: result.mean_percentile.value for method, result in found.methods.items()}
    for variant, (make, patches) in ABLATION.items():
        with _changed(patches):
            one = evaluate(days, antagonists, {variant: make()}, from_day=DEVELOPMENT_FROM_DAY)
        scores[variant] = one.methods[variant].mean_percentile.value
    return {"trace": name, "seed": seed, "events": found.events, "rows": found.task_slots, "scores": scores}


def _run(kind: str, name: str, seed: int, out: Path) -> dict[str, Any]:
    path = out / f"{kind}-{name.replace(' ', '-')}-{seed}.json"
    if path.exists():
        return dict(json.loads(path.read_text(encoding="utf-8")))
    found = run_ablation(name, seed) if kind == "ablation" else run_all(name, seed)
    path.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return found


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def gap(panda: float, ours: float, oracle: float) -> float:
    """Share of the gap between PANDA and the oracle that ours closes."""
    return (ours - panda) / (oracle - panda) if oracle != panda else float("nan")


def study_tables(found: list[dict[str, Any]]) -> tuple[list[str], bool]:
    """Write the tables of one preset's traces; whether the bars are held."""
    names = [*METHODS, "oracle"]
    rows = [[run["methods"][name]["percentile"] for name in names] for run in found]
    lines = ["", f"## {found[0]['preset']}", "", "| seed | events | " + " | ".join(names) + " |"]
    lines.append("|---" * (len(names) + 2) + "|")
    lines += [
        f"| {run['seed']} | {run['events']} | " + " | ".join(_value(v) for v in row) + " |"
        for run, row in zip(found, rows, strict=True)
    ]
    mean = np.mean(np.array(rows, dtype=np.float64), axis=0)
    lines.append("| mean | | " + " | ".join(_value(v) for v in mean) + " |")
    for metric, label in (
        ("consistency", "consistency"),
        ("first", "first is an antagonist"),
        ("seconds", "seconds"),
    ):
        cells = [np.nanmean([run["methods"][n][metric] or np.nan for run in found]) for n in names]
        lines.append(f"| {label} | | " + " | ".join(_value(float(c)) for c in cells) + " |")
    at = {name: mean[names.index(name)] for name in names}
    closed = gap(at["panda"], at[OURS], at["oracle"])
    worst = min(row[names.index(OURS)] - row[names.index("panda")] for row in rows)
    lines += ["", f"Gap closed in the mean: {closed:.0%}; least lead over PANDA on a seed: {worst:+.3f}."]
    return lines, bool(closed >= GAP_CLOSED and worst >= -WORST_LOSS)


def ablation_table(found: list[dict[str, Any]]) -> list[str]:
    """Write the table of the development traces."""
    names = list(found[0]["scores"])
    lines = ["", "## Ablation", "", "| | " + " | ".join(run["trace"] for run in found) + " | mean |"]
    lines.append("|---" * (len(found) + 2) + "|")
    for name in names:
        values = [run["scores"][name] for run in found]
        mean = float(np.mean([v for v in values if v is not None]))
        lines.append(f"| {name} | " + " | ".join(_value(v) for v in values) + f" | {mean:.3f} |")
    lines.append("| events | " + " | ".join(str(run["events"]) for run in found) + " | |")
    return lines


def marginals(path: Path, least: int) -> list[str]:
    """Compare location and scale of jobs' CPI between the earlier and the later half of the days of a trace.

    A job is a logical name, whose collections come and go. The sample of the Google trace has one CPI per collection
    and time, repeated in all its rows: each counts once.
    """
    rows = pq.read_table(path, columns=["collection_logical_name", "start_time", "cycles_per_instruction"])
    rows = rows.drop_null()
    code = np.unique(rows["collection_logical_name"].to_numpy().astype(str), return_inverse=True)[1]
    values_of = rows["cycles_per_instruction"].to_numpy()
    (job, start, cpi), _ = group(code, rows["start_time"].to_numpy(), values_of)
    good = (cpi > 0) & (cpi <= 100)
    job, start, cpi = job[good], start[good], cpi[good]
    day = start // (300_000_000 * SLOTS_PER_DAY)
    late = day > np.median(np.unique(day))
    names = ("mean", "median of ln", "std / mean", "IQR / 1.349 of ln")
    halves: list[list[list[float]]] = [[], []]
    for each in np.unique(job):
        parts = [cpi[(job == each) & (late == half)] for half in (False, True)]
        if min(map(len, parts)) < least:
            continue
        for half, x in zip(halves, parts, strict=True):
            q = np.percentile(np.log(x), [25, 50, 75])
            half.append([np.log(x.mean()), q[1], np.log(x.std() / x.mean()), np.log((q[2] - q[0]) / 1.349)])
    values = np.array(halves).reshape(2, -1, len(names))
    lines = [
        "",
        "## Real marginals",
        "",
        f"{rows.num_rows:,} rows with a CPI, {len(cpi):,} distinct (job, time, CPI);",
    ]
    lines[-1] += f" {values.shape[1]} jobs with at least {least} in each half."
    lines += [
        "",
        "| | median ratio between halves | 90th percentile | correlation of logs |",
        "|---|---|---|---|",
    ]
    for k, name in enumerate(names):
        ratio = np.exp(np.abs(values[1, :, k] - values[0, :, k]))
        at = np.corrcoef(values[0, :, k], values[1, :, k])[0, 1]
        lines.append(f"| {name} | {np.median(ratio):.2f} | {np.percentile(ratio, 90):.2f} | {at:.2f} |")
    return lines


def main() -> int:
    """Run what is asked for and write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--parts", default="study,others,ablation")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--sample", type=Path)
    parser.add_argument("--least", type=int, default=5, help="CPI values of a job in each half of the days")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    parts = arguments.parts.split(",")
    work = []
    if "study" in parts:
        work += [("study", form, seed) for seed in range(1, arguments.seeds + 1) for form in FORMS]
    if "others" in parts:
        work += [("others", name, seed) for name in OTHERS for seed in (1, 2)]
    if "ablation" in parts:
        work += [("ablation", name, DEVELOPMENT_SEED) for name in DEVELOPMENT]
    with ProcessPoolExecutor(arguments.processes) as pool:
        waiting = [
            (kind, name, pool.submit(_run, kind, name, seed, arguments.out)) for kind, name, seed in work
        ]
        done = [(kind, name, future.result()) for kind, name, future in waiting]
    lines, held = list[str](), True
    for kind, names in (("study", FORMS), ("others", OTHERS)):
        for name in names:
            found = [result for k, n, result in done if (k, n) == (kind, name)]
            if found:
                more, good = study_tables(found)
                lines += more
                held = held and (good or kind == "others")
    ablation = [result for kind, _, result in done if kind == "ablation"]
    if ablation:
        lines += ablation_table(ablation)
    if arguments.sample:
        lines += marginals(arguments.sample, arguments.least)
    (arguments.out / "tables.md").write_text("\n".join(lines).strip() + "\n", encoding="utf-8")
    sys.stdout.write("\n".join(lines).strip() + "\n")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
