"""`runtime update` on real runtimes: 20 workloads and 20 platforms that no fit saw, given 1 to 100 runs of each.

    python -m bench.pitot.update --out FOLDER [--members 2] [--page docs/studies/pitot.md] [--data FOLDER]

A model is fitted to all rows without them (as workload, platform or interferer), kept in FOLDER/update.npz. Then each
is fitted to N of its runs, drawn at random, and asked for all its others. Beside it the linear scaling baseline
with what the same N runs tell of the name.
"""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.pitot.study import Data
from central.models.pitot import ALONE, Members, Rows, log_runtimes
from central.models.pitot_update import new_platform, new_workload
from central.runtimes.fit import FitOptions, fit
from central.runtimes.model import Model, read_model, write_model
from central.runtimes.tables import Features, Names
from central.runtimes.update import noise_of

MARKER = "<!-- update: written by bench/pitot/update.py -->"
END = "<!-- end of update -->"
SEED, NEW, RUNS = 77, 20, (1, 3, 10, 30, 100)
DRAWS = 1000


def without(features: Features, gone: np.ndarray) -> tuple[Features, np.ndarray]:
    """Return the features without some names, and each old place's new one."""
    kept = np.setdiff1d(np.arange(len(features.names)), gone)
    places = np.full(len(features.names) + 1, ALONE)
    places[kept] = np.arange(len(kept))
    names = Names.of(tuple(features.names.names[place] for place in kept))
    return replace(features, names=names, values=features.values[kept]), places


def errors_of(
    model: Model, what: str, rows: Rows, log_us: np.ndarray, known: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Tell a name by some of its rows; relative errors of the others, and those of linear scaling."""
    members, asked = model.members, ~known
    estimate = new_workload if what == "workload" else new_platform
    found, base = estimate(
        members, model.baseline_workload, model.baseline_platform, rows.take(known), log_us[known], noise_of(model)
    )
    w, p, a, b = members.workload, members.platform, model.baseline_workload, model.baseline_platform
    if what == "workload":
        w, a = np.concatenate([w, found[:, None]], axis=1), np.append(a, base)
        rest = b[rows.platform]
    else:
        p, b = np.concatenate([p, found[:, None]], axis=1), np.append(b, base)
        rest = a[rows.workload]
    some = rows.take(asked)
    predicted = log_runtimes(Members(members.shape, w, p), some).mean(axis=0) + a[some.workload] + b[some.platform]
    linear = rest[asked] + (log_us - rest)[known].mean()
    return tuple(np.abs(np.expm1(x - log_us[asked])) for x in (predicted, linear))


def interval(parts: list[np.ndarray], statistic: Callable[[np.ndarray], float], digits: int) -> str:
    """Write a statistic of all errors, and its 95 % interval by drawing names again: errors of one name are alike.

    Args:
        parts: the errors of each name.
        statistic: what of them.
        digits: behind the point, of percent.

    """
    random = np.random.default_rng(SEED)
    drawn = [
        statistic(np.concatenate([parts[k] for k in random.integers(0, len(parts), len(parts))])) for _ in range(DRAWS)
    ]
    low, high = (100 * float(end) for end in np.percentile(drawn, (2.5, 97.5)))
    return f"{100 * statistic(np.concatenate(parts)):.{digits}f}% ({low:.{digits}f} to {high:.{digits}f})"


def table(data: Data, model: Model, gone: dict[str, np.ndarray], places: dict[str, np.ndarray]) -> str:
    """Measure, and write the table."""
    lines = [
        "| new | runs given | beside | rows asked | mean error (95 % interval) | median | linear scaling, mean |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = data.rows
    is_new = {
        "workload": np.isin(rows.workload, gone["workload"]),
        "platform": np.isin(rows.platform, gone["platform"]),
    }
    is_beside_new = np.isin(rows.interferers, gone["workload"]).any(axis=1)
    for what, other in (("workload", "platform"), ("platform", "workload")):
        for runs in RUNS:
            errors: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {0: [], 1: []}
            for name in gone[what]:
                mine = np.flatnonzero((getattr(rows, what) == name) & ~is_new[other] & ~is_beside_new)
                mine = np.random.default_rng(int(name)).permutation(mine)
                if len(mine) <= runs:
                    continue
                last = np.full(len(mine), len(model.workloads if what == "workload" else model.platforms))
                here = Rows(
                    last if what == "workload" else places["workload"][rows.workload[mine]],
                    last if what == "platform" else places["platform"][rows.platform[mine]],
                    places["workload"][rows.interferers[mine]],
                )
                whitepanda, linear = errors_of(model, what, here, data.log_us[mine], np.arange(len(mine)) < runs)
                for count, found in errors.items():
                    which = here.co_runners[runs:] == count
                    found.append((whitepanda[which], linear[which]))
            for count, found in errors.items():
                fitted, linear = (list(part) for part in zip(*found, strict=True))
                lines.append(
                    f"| {what} | {runs} | {count} | {sum(map(len, fitted)):,} | {interval(fitted, np.mean, 1)} | "
                    f"{interval(fitted, np.median, 1)} | {interval(linear, np.mean, 0)} |"
                )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Fit if there is no model yet, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("WHITEPANDA_DATA", ".")) / "pitot")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    data = Data(given.data)
    random = np.random.default_rng(SEED)
    gone, kept, places = {}, {}, {}
    for what, features in (("workload", data.workloads), ("platform", data.platforms)):
        gone[what] = random.permutation(len(features.names))[:NEW]
        kept[what], places[what] = without(features, gone[what])
    path = given.out / "update.npz"
    if not path.exists():
        rows = Rows(
            places["workload"][data.rows.workload],
            places["platform"][data.rows.platform],
            places["workload"][data.rows.interferers],
        )
        is_known = (rows.workload != ALONE) & (rows.platform != ALONE)
        is_known &= rows.co_runners == data.rows.co_runners
        options = FitOptions(members=given.members)
        model = fit(rows.take(is_known), data.log_us[is_known], kept["workload"], kept["platform"], options, {})
        write_model(path, model)
    text = table(data, read_model(path), gone, places)
    print(text)
    if given.page:
        head, _, tail = given.page.read_text().partition(MARKER)
        given.page.write_text(f"{head}{MARKER}\n\n{text}\n\n{END}{tail.partition(END)[2]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
