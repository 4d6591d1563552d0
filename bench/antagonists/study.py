"""Every method on generated traces with known antagonists: the tables of docs/studies/antagonists.md.

    python -m bench.antagonists.study --out FOLDER [--seeds 8] [--parts study,others,ablation,held-out] [--sample TRACE]

study: presets paper and paper-saturating (matched to the plain methods' published scores alone), seeds 1 to N;
others: presets of other mechanisms, two seeds each; ablation: whitepanda with one idea changed, on development traces
that share neither settings nor seeds with the study; held-out: the same on fresh seeds, coefficients learnt on half of
the machines and scored on the other half; with --sample, how stable the location and scale of jobs' CPI are between
two halves of the days of a real trace. Writes one JSON line per trace and tables.md into FOLDER; a
trace that is there already is not run again. Exits with 1 where a bar is missed.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bench.antagonists.ablation import (
    DEVELOPMENT,
    DEVELOPMENT_SEED,
    HELD_OUT,
    HELD_OUT_SEEDS,
    ablation_table,
    held_out_table,
    run_ablation,
    run_held_out,
    shown,
    trace,
)
from central.models.antagonists.slots import SLOTS_PER_DAY, TaskSlots
from central.models.groups import Floats, group
from central.traces.generator.presets import preset
from central.traces.methods import METHODS, Known, Method
from central.traces.protocol import DEFAULT_FROM_DAY, evaluate

OURS = "whitepanda"
FORMS = ("paper", "paper-saturating")
OTHERS = ("other-1", "other-2", "other-3", "other-4")
#: Bars: share of the gap between PANDA and the oracle, and how far below PANDA any seed may be.
GAP_CLOSED, WORST_LOSS = 0.8, 0.01


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


def run_all(
    name: str,
    seed: int,
    *,
    makers: Mapping[str, Callable[[], Method]] = METHODS,
    from_day: int = DEFAULT_FROM_DAY,
    **size: int,
) -> dict[str, Any]:
    """Evaluate methods and the oracle on one trace of a preset, of another `size` (parameters) where it is given."""
    days, antagonists, coefficients = trace(replace(preset(name), seed=seed, **size))
    methods = {method: _Timed(make()) for method, make in makers.items()} | {"oracle": _Timed(Known(coefficients))}
    found = evaluate(days, antagonists, methods, from_day=from_day)
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


def _run(kind: str, name: str, seed: int, out: Path) -> dict[str, Any]:
    path = out / f"{kind}-{name.replace(' ', '-')}-{seed}.json"
    if path.exists():
        return dict(json.loads(path.read_text(encoding="utf-8")))
    run = {"ablation": run_ablation, "held-out": run_held_out}.get(kind, run_all)
    found = run(name, seed)
    path.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return found


def gap(panda: float, whitepanda: float, oracle: float) -> float:
    """Share of the gap between PANDA and the oracle that whitepanda closes."""
    return (whitepanda - panda) / (oracle - panda) if oracle != panda else float("nan")


def bars(found: list[dict[str, Any]]) -> tuple[float, float]:
    """Share of the gap closed in the mean of some traces, and the least lead over PANDA on one of them."""
    scores = {
        name: np.array([run["methods"][name]["percentile"] for run in found]) for name in ("panda", OURS, "oracle")
    }
    closed = gap(*(float(values.mean()) for values in scores.values()))
    return closed, float((scores[OURS] - scores["panda"]).min())


def are_held(closed: float, worst: float) -> bool:
    """Whether the results of `bars` reach them."""
    return closed >= GAP_CLOSED and worst >= -WORST_LOSS


def study_tables(found: list[dict[str, Any]]) -> tuple[list[str], bool]:
    """Write the tables of one preset's traces; whether the bars are held."""
    names = [*METHODS, "oracle"]
    rows = [[run["methods"][name]["percentile"] for name in names] for run in found]
    lines = ["", f"## {found[0]['preset']}", "", "| seed | events | " + " | ".join(names) + " |"]
    lines.append("|---" * (len(names) + 2) + "|")
    lines += [
        f"| {run['seed']} | {run['events']} | " + " | ".join(shown(v) for v in row) + " |"
        for run, row in zip(found, rows, strict=True)
    ]
    mean = np.mean(np.array(rows, dtype=np.float64), axis=0)
    lines.append("| mean | | " + " | ".join(shown(v) for v in mean) + " |")
    for metric, label in (("consistency", "consistency"), ("first", "first is an antagonist"), ("seconds", "seconds")):
        cells = [np.nanmean([run["methods"][n][metric] or np.nan for run in found]) for n in names]
        lines.append(f"| {label} | | " + " | ".join(shown(float(c)) for c in cells) + " |")
    closed, worst = bars(found)
    lines += ["", f"Gap closed in the mean: {closed:.0%}; least lead over PANDA on a seed: {worst:+.3f}."]
    return lines, are_held(closed, worst)


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
    lines = ["", "## Real marginals", "", f"{rows.num_rows:,} rows with a CPI, {len(cpi):,} distinct (job, time, CPI);"]
    lines[-1] += f" {values.shape[1]} jobs with at least {least} in each half."
    lines += ["", "| | median ratio between halves | 90th percentile | correlation of logs |", "|---|---|---|---|"]
    for k, name in enumerate(names):
        ratio = np.exp(np.abs(values[1, :, k] - values[0, :, k]))
        at = np.corrcoef(values[0, :, k], values[1, :, k])[0, 1]
        lines.append(f"| {name} | {np.median(ratio):.2f} | {np.percentile(ratio, 90):.2f} | {at:.2f} |")
    return lines


def _work(parts: list[str], seeds: int, held_out: list[str], held_out_seeds: int) -> list[tuple[str, str, int]]:
    """Return part, trace and seed of each run."""
    first = HELD_OUT_SEEDS[0]
    of_part = {
        "study": [(form, seed) for seed in range(1, seeds + 1) for form in FORMS],
        "others": [(name, seed) for name in OTHERS for seed in (1, 2)],
        "ablation": [(name, DEVELOPMENT_SEED) for name in DEVELOPMENT],
        "held-out": [(name, seed) for seed in range(first, first + held_out_seeds) for name in held_out],
    }
    return [(part, *run) for part, runs in of_part.items() if part in parts for run in runs]


def main() -> int:
    """Run what is asked for and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--parts", default="study,others,ablation,held-out")
    parser.add_argument("--held-out", default=",".join(HELD_OUT), help="traces of this part")
    parser.add_argument("--held-out-seeds", type=int, default=len(HELD_OUT_SEEDS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--sample", type=Path)
    parser.add_argument("--least", type=int, default=5, help="CPI values of a job in each half of the days")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    held_out = arguments.held_out.split(",")
    work = _work(arguments.parts.split(","), arguments.seeds, held_out, arguments.held_out_seeds)
    with ProcessPoolExecutor(arguments.processes) as pool:
        waiting = [(kind, name, pool.submit(_run, kind, name, seed, arguments.out)) for kind, name, seed in work]
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
    elsewhere = [result for kind, _, result in done if kind == "held-out"]
    if elsewhere:
        lines += held_out_table(elsewhere)
    if arguments.sample:
        lines += marginals(arguments.sample, arguments.least)
    (arguments.out / "tables.md").write_text("\n".join(lines).strip() + "\n", encoding="utf-8")
    sys.stdout.write("\n".join(lines).strip() + "\n")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
