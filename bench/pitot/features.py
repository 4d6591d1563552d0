"""Do facts of hosts help to predict runtimes of machines and applications with few runs? docs/studies/pitot.md.

    python -m bench.pitot.features --out FOLDER [--folds 5] [--steps 1000] [--runs 0,10] [--data FOLDER]

Each fold holds out a part of the machines and a part of the applications (sizes of one program together). The fit gets
all rows without them, and RUNS of each held-out workload and platform; its test is all their other rows. Fits differ by
features: none; what host facts have of these platforms, the size of the last-level cache; also the clock and the other
caches, which facts could have; and all that the data set has, as an upper bound. A size is its logarithm, standardised;
0 where it is not known, with a column that says so. Intervals draw machines (of new platforms) or applications (of new
workloads) again. A fit that is in the folder is not made again.
"""

import argparse
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.pitot.study import Data, blind
from central.models.pitot import log_runtimes
from central.runtimes.fit import FitOptions, fit
from central.runtimes.tables import Features

SEED, DRAWS = 20, 1000
VARIANTS = ("none", "host facts", "clock and caches", "all")
SIZES = {"host facts": ("l3_size",), "clock and caches": ("l3_size", "l2_size", "l1d_size", "l1i_size", "cpufreq")}
_SIZE = re.compile(r"(_[lms]|\d+)$")


def groups(names: tuple[str, ...], of: str) -> np.ndarray:
    """The machine of each platform, or the application of each workload, as numbers."""
    keys = [name.rpartition(":")[2] if of == "platform" else _SIZE.sub("", name) for name in names]
    return np.unique(keys, return_inverse=True)[1]


def columns_of(sizes: dict[str, list[float | None]]) -> dict[str, np.ndarray]:
    """Features of sizes: standardised logarithms, 0 where not known, with a column `NAME_known`."""
    found = {}
    for name, of in sizes.items():
        values = np.array([np.nan if size is None else np.log(size) for size in of])
        known = np.isfinite(values)
        found[name] = np.where(known, (values - values[known].mean()) / (values[known].std() + 1e-9), 0.0)
        if not known.all():
            found[f"{name}_known"] = known.astype(np.float64)
    return found


def sizes_of(platforms: Features, names: tuple[str, ...]) -> Features:
    """Only these sizes. The data set has base-2 logarithms; caches also whether they are known."""
    at = {name: platforms.columns.index(name) for name in platforms.columns}
    known = {name: platforms.values[:, at[f"{name}:ind"]] > 0 for name in names if f"{name}:ind" in at}
    sizes = {}
    for name in names:
        is_known = known.get(name, np.ones(len(platforms.values), dtype=bool))
        sizes[name] = [
            2.0 ** row[at[name]] if there else None for row, there in zip(platforms.values, is_known, strict=True)
        ]
    columns = columns_of(sizes)
    return replace(platforms, columns=tuple(columns), values=np.column_stack(list(columns.values())))


def split(data: Data, fold: int, folds: int, runs: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The rows to fit to, and the rows to predict by what is new in them."""
    rows, rng = data.rows, np.random.default_rng(SEED)
    new = {}
    for what, features in (("workload", data.workloads), ("platform", data.platforms)):
        of = groups(features.names.names, what)
        new[what] = rng.permutation(of.max() + 1)[of] % folds == fold
    w, p = new["workload"][rows.workload], new["platform"][rows.platform]
    beside = (new["workload"][rows.interferers] & (rows.interferers >= 0)).any(axis=1)
    given = ~w & ~p & ~beside
    rng = np.random.default_rng(SEED + 1)
    for ids, is_new, other in ((rows.workload, w, p), (rows.platform, p, w)):
        candidates = rng.permutation(np.flatnonzero(is_new & ~other & ~beside))
        for name in np.unique(ids[candidates]):
            given[candidates[ids[candidates] == name][:runs]] = True
    asked = {"application": w & ~p & ~beside & ~given, "machine": p & ~w & ~beside & ~given}
    asked["both"] = w & p & ~beside
    return given, asked


def errors(data: Data, variant: str, fold: int, given: argparse.Namespace, runs: int) -> dict[str, np.ndarray]:
    """Relative errors of each test row, by what is new."""
    path = given.out / f"features-{variant.replace(' ', '-')}-{runs}-{fold}-{given.folds}-{given.steps}.npz"
    if path.exists():
        return dict(np.load(path))
    fitted, asked = split(data, fold, given.folds, runs)
    workloads, platforms = data.workloads, data.platforms
    if variant != "all":
        workloads = blind(workloads)
        platforms = sizes_of(platforms, SIZES[variant]) if variant in SIZES else blind(platforms)
    options = FitOptions(members=1, quantiles=(), training={"steps": given.steps})
    model = fit(data.rows.take(fitted), data.log_us[fitted], workloads, platforms, options, {})
    found = {}
    for what, which in asked.items():
        some = data.rows.take(which)
        a, b = model.baseline_workload[some.workload], model.baseline_platform[some.platform]
        log_us = log_runtimes(model.members, some).mean(axis=0) + a + b
        found[what] = np.abs(np.expm1(log_us - data.log_us[which]))
    np.savez(path, **found)
    return found


def main(arguments: list[str]) -> int:
    """Fit, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--only", type=int, default=0, help="only so many of the folds; 0: all")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--runs", default="0,10")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("WHITEPANDA_DATA", ".")) / "pitot")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    data = Data(given.data)
    machine, application = (
        groups(data.platforms.names.names, "platform"),
        groups(data.workloads.names.names, "workload"),
    )
    lines = [f"| new | runs given | rows asked | {' | '.join(VARIANTS)} | host facts less none |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    results = []
    for runs in map(int, given.runs.split(",")):
        found: dict[str, dict[str, list[np.ndarray]]] = {}
        units: dict[str, list[np.ndarray]] = {}
        for fold in range(given.only or given.folds):
            _, asked = split(data, fold, given.folds, runs)
            for what, which in asked.items():
                some = data.rows.take(which)
                unit = application[some.workload] if what == "application" else machine[some.platform]
                units.setdefault(what, []).append(unit)
            for variant in VARIANTS:
                for what, error in errors(data, variant, fold, given, runs).items():
                    found.setdefault(what, {}).setdefault(variant, []).append(error)
        for what, by_variant in found.items():
            cells, unit = [], np.concatenate(units[what])
            compared = {variant: np.concatenate(parts) for variant, parts in by_variant.items()}
            compared["difference"] = compared["host facts"] - compared["none"]
            for name, value in compared.items():
                mean, low, high = interval(value, unit)
                cells.append(f"{mean:+.1f} ({low:+.1f} to {high:+.1f})" if name == "difference" else f"{mean:.1f}")
                results.append({"new": what, "runs": runs, "variant": name, "mean": mean, "low": low, "high": high})
            lines.append(f"| {what} | {runs} | {len(unit):,} | {' | '.join(cells)} |")
    text = "\n".join(lines)
    print(text)
    (given.out / "features.json").write_text(json.dumps(results, indent=1))
    return 0


def interval(value: np.ndarray, unit: np.ndarray) -> tuple[float, float, float]:
    """A mean in %, and its 95 % interval by drawing units again: errors of one are alike."""
    rng = np.random.default_rng(SEED)
    _, unit = np.unique(unit, return_inverse=True)
    total, count = np.bincount(unit, value), np.bincount(unit)
    drawn = rng.integers(0, len(count), (DRAWS, len(count)))
    low, high = np.percentile(total[drawn].sum(axis=1) / count[drawn].sum(axis=1), (2.5, 97.5))
    return 100 * float(value.mean()), 100 * float(low), 100 * float(high)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
