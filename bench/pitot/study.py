"""Pitot on real runtimes: errors, coverage and margins of our model, of rivals, and of our model without its parts.

    python -m bench.pitot.study --out FOLDER [--page docs/studies/pitot.md] [--methods NAME,...] [--shares 0.9,0.5,0.1]
                          [--replicates 5] [--data FOLDER] [--table-only]

Each replicate draws rows at random to fit to (10, 50 or 90 % of all, seeds counted from 100); all others are the test.
A replicate is one JSON file in FOLDER/results and is not run again while that is there: stop it and start it at will.
Its model is kept in FOLDER/models: without the JSON file it is measured again, not fitted.
Settings were chosen on a split of their own (seed 7000), inside its training rows. CPU seconds are of the whole fit.
Writes tables.md, and into the page what is below its marker. The data: $WHITEPANDA_DATA/pitot, three Parquet files.
"""

import argparse
import json
import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.pitot.plain import CALIBRATING, plain_replica
from bench.pitot.rivals import network_rival
from central.models.pitot import ALONE, Members, Rows, linear_baseline, log_runtimes
from central.models.pitot_bounds import PLAIN, Scatter, pools
from central.runtimes.evaluate import measure
from central.runtimes.fit import FitOptions, fit
from central.runtimes.model import read_model, write_model
from central.runtimes.tables import Features, read_features, read_log_runtimes, read_rows

MARKER = "<!-- below: written by bench/pitot/study.py -->"
EPSILONS = (0.1, 0.05, 0.01)
SEED = 100
QUANTILES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
ONE: dict[str, Any] = {"members": 1, "quantiles": ()}
#: Name -> what it is, and its options of `fit`.
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "whitepanda": ("whitepanda: 8 members, 2 quantile heads", {}),
    "no-heads": ("8 members, no quantile heads", {"quantiles": ()}),
    "one": ("one member, no quantile heads", ONE),
    "paper-sizes": (
        "the paper's sizes, our loss and optimiser: rank 32, hidden 128, one learned feature, no free part, no decay",
        {**ONE, "training": {"rank": 32, "hidden": 128, "learned": 1, "free": False, "decay": 0.0}},
    ),
    "no-workload-features": ("one member, no workload features", {**ONE, "blind": ("workload",)}),
    "no-platform-features": ("one member, no platform features", {**ONE, "blind": ("platform",)}),
    "no-features": ("one member, no features", {**ONE, "blind": ("workload", "platform")}),
    "no-baseline": ("one member, log objective without the baseline", {**ONE, "baseline": False}),
    "squared": ("one member, squared loss of the logarithm", {**ONE, "training": {"huber": 10.0, "rate": 2e-2}}),
    "ignore": ("one member, interference ignored", {**ONE, "interference": "ignore"}),
    "discard": ("one member, rows beside others discarded", {**ONE, "interference": "discard"}),
    "no-activation": ("one member, interference without its activation", {**ONE, "training": {"leak": 1.0}}),
    "factorisation": (
        "matrix factorisation, rank 32: no features, no baseline, rows alone only",
        {**ONE, "baseline": False, "interference": "discard", "training": {"rank": 32, "tower": False, "decay": 0.0}},
    ),
}
RIVALS = {
    "linear": "linear scaling baseline",
    "network": "plain network with a multiplier per interferer",
    "attention": "network with attention over interferers",
    "proportional": "one member, no baseline, runtimes themselves with a proportional loss (the paper's naive loss)",
    "plain": "a plain replica of the paper: its sizes, squared loss, AdaMax, 20,000 steps; none of whitepanda",
    "quantile-heads": "the paper's bounds: heads of 8 quantiles, one of our members each; predictions are the median's",
}


class Data:
    """The observations and features."""

    def __init__(self, folder: Path) -> None:
        named = read_rows(folder / "observations.parquet")
        self.log_us = read_log_runtimes(named)
        self.workloads = read_features(folder / "workload_features.parquet", "workload")
        self.platforms = read_features(folder / "platform_features.parquet", "platform")
        self.rows = named.placed(self.workloads.names, self.platforms.names, "no features")


def replicate(data: Data, method: str, share: float, number: int, folder: Path) -> dict[str, Any]:
    """Fit and measure once; a model that is in the folder is not fitted again."""
    order = np.random.default_rng(SEED + number).permutation(len(data.rows))
    size = round(share * len(order))
    training, test = np.sort(order[:size]), np.sort(order[size:])
    rows, log_us = data.rows.take(training), data.log_us[training]
    held_out, truth = data.rows.take(test), data.log_us[test]
    began = time.process_time()
    if method == "quantile-heads":
        predicted, bounds = quantile_heads(data, rows, log_us, held_out, number)
        plain, cpu_s = bounds, time.process_time() - began
    elif method in OURS:
        path = folder / f"{method}-{share:g}-{number}.npz"
        predicted, bounds, plain, cpu_s = whitepanda(data, method, rows, log_us, held_out, number, path)
    else:
        predicted, bounds = rival(data, method, rows, log_us, held_out, number)
        plain, cpu_s = bounds, time.process_time() - began
    found = measure(held_out, truth, predicted, bounds, EPSILONS)
    one_scale = measure(held_out, truth, predicted, plain, EPSILONS)
    for count, line in found.items():
        line["one_scale"] = one_scale[count]["bounds"]
    return {"method": method, "share": share, "replicate": number, "cpu_s": cpu_s, "co_runners": found}


def whitepanda(
    data: Data, method: str, rows: Rows, log_us: Any, held_out: Rows, seed: int, path: Path
) -> tuple[Any, Any, Any, float]:
    """Fit our model, as `method` has it; predictions, bounds, bounds by one scale, CPU seconds of the fit."""
    options, workloads, platforms = dict(OURS[method][1]), data.workloads, data.platforms
    for which in options.pop("blind", ()):
        if which == "workload":
            workloads = blind(workloads)
        else:
            platforms = blind(platforms)
    interference = options.pop("interference", "")
    if interference:
        kept = np.ones(len(rows), dtype=bool) if interference == "ignore" else rows.co_runners == 0
        rows, log_us, held_out = alone(rows.take(kept)), log_us[kept], alone(held_out)
    if not path.exists():
        began = time.process_time()
        model = fit(rows, log_us, workloads, platforms, FitOptions(seed=seed, **options), {})
        spent = {"cpu_s": time.process_time() - began}
        write_model(path, replace(model, provenance={**model.provenance, **spent}))
    model = read_model(path)
    estimates = model.estimate(held_out)
    bounds = model.bounds(held_out, estimates, EPSILONS)
    plain = np.full_like(bounds, np.nan)
    for count, pool in model.pools.items():
        here = held_out.co_runners == count
        for place, epsilon in enumerate(EPSILONS):
            head = pool.head(epsilon, (PLAIN,))
            plain[place, here] = estimates.log_us[here] + head.factor
    return estimates.log_us, bounds, plain, model.provenance["cpu_s"]


def quantile_heads(data: Data, rows: Rows, log_us: Any, held_out: Rows, seed: int) -> tuple[Any, Any]:
    """Section 3.5 of the paper: a predictor per quantile, each calibrated by an offset; the one of least margin."""
    models = [
        fit(
            rows,
            log_us,
            data.workloads,
            data.platforms,
            FitOptions(seed=seed, members=1, quantiles=(), training={"quantile": quantile}),
            {},
        )
        for quantile in QUANTILES
    ]
    found = [model.estimate(held_out).log_us for model in models]
    bounds = np.full((len(EPSILONS), len(held_out)), np.nan)
    for count in models[0].pools:
        here = held_out.co_runners == count
        for place, epsilon in enumerate(EPSILONS):
            heads = [model.pools[count].head(epsilon, (PLAIN,)) for model in models]
            # The same rows calibrate all of them, so that margins compare.
            best = int(np.argmin([head.margin for head in heads]))
            bounds[place, here] = found[best][here] + heads[best].factor
    return found[0], bounds


def rival(data: Data, method: str, rows: Rows, log_us: Any, held_out: Rows, seed: int) -> Any:
    """Fit a rival to nine tenths of the rows, and calibrate its bounds on the others, by one scale per pool.

    The plain replica keeps a fifth, as the paper does, which validates it too.
    """
    order = np.random.default_rng(seed).permutation(len(rows))
    kept = len(rows) // (CALIBRATING if method == "plain" else 10)
    calibrating, training = order[:kept], order[kept:]
    trained, calibrated = rows.take(training), rows.take(calibrating)
    if method == "linear":
        a, b = linear_baseline(trained, log_us[training], len(data.workloads.names), len(data.platforms.names))
        at_rest, found = (a[part.workload] + b[part.platform] for part in (calibrated, held_out))
    elif method == "plain":
        features = data.workloads.values, data.platforms.values
        validation = calibrated, log_us[calibrating]
        at_rest, found = plain_replica(trained, log_us[training], validation, features, (calibrated, held_out), seed)
    elif method == "proportional":
        at_rest, found = proportional(data, trained, log_us[training], (calibrated, held_out), seed)
    else:
        features = data.workloads.values, data.platforms.values
        at_rest, found = network_rival(method, trained, log_us[training], features, (calibrated, held_out), seed)
    residuals = log_us[calibrating] - at_rest
    nothing = np.zeros(kept)
    bounds = np.full((len(EPSILONS), len(held_out)), np.nan)
    for count, pool in pools(calibrated, residuals, Scatter(nothing, nothing, nothing)).items():
        here = held_out.co_runners == count
        for place, epsilon in enumerate(EPSILONS):
            bounds[place, here] = found[here] + pool.head(epsilon, (PLAIN,)).factor
    return found, bounds


def proportional(data: Data, rows: Rows, log_us: Any, asked: tuple[Rows, ...], seed: int) -> list[Any]:
    """Train a member to predict runtimes, not logarithms, by mean |t_hat - t| / t; logarithms for each of `asked`.

    In units of the geometric mean of the runtimes. A prediction below a thousandth of it, also a negative one, is taken
    for that: its error is 100 % in any case.
    """
    from central.models.pitot_training import Options, Trainer

    mean = log_us.mean()
    options = Options(proportional=True, steps=int(min(4000, max(600, 0.2 * len(rows)))))  # as `fit` has them
    member = Trainer(options, rows, log_us - mean, data.workloads.values, data.platforms.values).member(seed * 1000)
    members = Members(options.shape, member.workload[None], member.platform[None])
    return [np.log(np.maximum(log_runtimes(members, some)[0].astype(np.float64), 1e-3)) + mean for some in asked]


def blind(features: Features) -> Features:
    """Return the names without any feature."""
    return replace(features, columns=(), values=np.empty((len(features.names), 0)))


def alone(rows: Rows) -> Rows:
    """Return the rows as if nothing had run beside them."""
    return Rows(rows.workload, rows.platform, np.full_like(rows.interferers, ALONE))


def tables(results: list[dict[str, Any]]) -> str:
    """Write the tables: means over replicates, and the standard error of these means."""
    lines = []
    for share in sorted({r["share"] for r in results}, reverse=True):
        here = [r for r in results if r["share"] == share]
        head = "| method | replicates | beside | MAPE, % | by prediction, % | coverage 0.1 / 0.05 / 0.01, % "
        head += "| margin (equation 11), % | by bound, % | margin, one scale, % | CPU s |"
        lines += [f"## Fitted to {share:.0%} of the rows", "", head, "|---|---|---|---|---|---|---|---|---|---|"]
        for method, words in [*((m, w) for m, (w, _) in OURS.items()), *RIVALS.items()]:
            runs = [r for r in here if r["method"] == method]
            if runs:
                lines += [row(words, runs, count) for count in ("0", "1")]
        lines.append("")
    return "\n".join(lines)


def row(words: str, runs: list[dict[str, Any]], count: str) -> str:
    """Write a method's row for a number of co-runners."""
    parts = [r["co_runners"][count] for r in runs]
    bounds = [[part["bounds"][f"{e:g}"] for part in parts] for e in EPSILONS]
    plain = [[part["one_scale"][f"{e:g}"] for part in parts] for e in EPSILONS]
    cells = [
        words,
        str(len(runs)),
        count,
        spread([part["mape"] for part in parts]),
        spread([part["mape_by_prediction"] for part in parts]),
        " / ".join(spread([b["coverage"] for b in some], 1) for some in bounds),
        " / ".join(spread([b["margin"] for b in some], 1) for some in bounds),
        " / ".join(spread([b["margin_by_bound"] for b in some], 1) for some in bounds),
        " / ".join(spread([b["margin"] for b in some], 1) for some in plain),
        f"{np.mean([r['cpu_s'] for r in runs]):.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def spread(values: list[float], digits: int = 2) -> str:
    """Write a mean and its standard error over replicates, in percent."""
    error = 100 * np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{100 * np.mean(values):.{digits}f} ± {error:.{digits}f}"


def main(arguments: list[str]) -> int:
    """Run what is missing, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("WHITEPANDA_DATA", ".")) / "pitot")
    parser.add_argument("--methods", default=",".join([*OURS, *RIVALS]))
    parser.add_argument("--shares", default="0.9,0.5,0.1")
    parser.add_argument("--replicates", type=int, default=5)
    parser.add_argument("--table-only", action="store_true")
    given = parser.parse_args(arguments)
    folder = given.out / "results"
    models = given.out / "models"
    for made in (folder, models):
        made.mkdir(parents=True, exist_ok=True)
    if not given.table_only:
        data = Data(given.data)
        for share in map(float, given.shares.split(",")):
            for number in range(given.replicates):
                for method in given.methods.split(","):
                    path = folder / f"{method}-{share:g}-{number}.json"
                    if not path.exists():
                        path.write_text(json.dumps(replicate(data, method, share, number, models), indent=1))
                        print(path.stem, flush=True)
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    text = tables(results)
    (given.out / "tables.md").write_text(text)
    if given.page:
        head = given.page.read_text().partition(MARKER)[0]
        given.page.write_text(f"{head}{MARKER}\n\n{text}")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
