"""Real pairs for `study`: slow-downs of a workload beside another, by models that saw half of the pairs."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from scipy.optimize import minimize

from central.models.dfactor_pairs import Pairs, fit_plain
from central.models.groups import Floats, Ints, find, group
from central.placement.pairs import best_constant, by_platform, chosen_extended, mean_error, parts_of, relative_errors

#: Of which the bar is asked.
JUDGED = ("D-Factor, units and speeds", "extended")


@dataclass(frozen=True, slots=True)
class Data:
    """Pairs with a run alone on the same platform. `triple` numbers (victim, beside, platform), `mirror` both ways."""

    pairs: Pairs
    workloads: int
    platforms: int
    triple: Ints
    mirror: Ints
    without_alone: int


def read(path: Path) -> Data:
    table = pq.read_table(path)
    victim, platform = (table[name].to_numpy() for name in ("workload", "platform"))
    beside = table["interferer"].to_numpy()
    time_us = table["runtime_us"].to_numpy()
    is_pair = np.array([name is not None for name in beside])
    (names,), _ = group(np.concatenate([victim, beside[is_pair]]).astype(str))
    (platforms,), at = group(platform.astype(str))
    w = find((names,), (victim.astype(str),))
    alone = np.full((len(names), len(platforms)), np.nan)
    alone[w[~is_pair], at[~is_pair]] = time_us[~is_pair]
    w, p, i = w[is_pair], at[is_pair], find((names,), (beside[is_pair].astype(str),))
    slowdown = time_us[is_pair] / alone[w, p]
    known = np.isfinite(slowdown)
    w, p, i, slowdown = w[known], p[known], i[known], slowdown[known]
    _, triple = group(w, p, i)
    _, mirror = group(np.minimum(w, i), np.maximum(w, i), p)
    return Data(Pairs(w, i, p, slowdown), len(names), len(platforms), triple, mirror, int((~known).sum()))


def half(groups: Ints, seed: int) -> Any:
    """A mask of half of the groups, drawn at random; what is of one group stays together."""
    n = int(groups.max()) + 1
    return (np.random.default_rng(seed).permutation(n) < n // 2)[groups]


def additive(fitted: Pairs, tested: Pairs, data: Data, *, log: bool) -> Floats:
    """One effect each of platform, workload and interferer, added (to the slow-down, or to its logarithm)."""
    sizes = np.cumsum([data.platforms, data.workloads, data.workloads])
    n = int(sizes[-1])

    def columns(pairs: Pairs) -> list[Ints]:
        return [pairs.platform, sizes[0] + pairs.victim, sizes[1] + pairs.beside]

    def predict(x: Floats, pairs: Pairs) -> Floats:
        total = x[-1] + sum(x[column] for column in columns(pairs))
        return np.exp(total) if log else 1 + total

    def loss(x: Floats) -> tuple[float, Floats]:
        predicted = predict(x, fitted)
        error = (predicted - fitted.slowdown) / fitted.slowdown
        size = np.sqrt(error**2 + 0.03**2)
        slope = error / size / fitted.slowdown * (predicted if log else 1)
        gradient = sum(np.bincount(c, slope, n + 1) for c in columns(fitted))
        gradient[-1] = slope.sum()
        return size.sum() + 0.3 * float(x[:-1] @ x[:-1]), gradient + 0.6 * np.append(x[:-1], 0)

    found = minimize(loss, np.zeros(n + 1), jac=True, method="L-BFGS-B", options={"maxiter": 1000})
    return predict(found.x, tested)


def evaluate(data: Data, seed: int, say: Callable[[str], None], *, mirrored: bool = False) -> dict[str, Any]:
    """Fit everything to half of the pairs and predict the other."""
    groups = data.mirror if mirrored else data.triple
    mask = half(groups, seed)
    fitted, tested = data.pairs.where(mask), data.pairs.where(~mask)
    say(f"seed {seed}: rivals")
    one = Pairs(fitted.victim, fitted.beside, np.zeros_like(fitted.platform), fitted.slowdown)
    predictions = {
        "linear sum (2)": np.full(len(tested.slowdown), 2.0),
        "constant": np.full(len(tested.slowdown), best_constant(fitted.slowdown)),
        "per platform": by_platform(fitted, tested, data.platforms),
        "additive": additive(fitted, tested, data, log=False),
        "additive in the logarithm": additive(fitted, tested, data, log=True),
    }
    say(f"seed {seed}: D-Factor")
    alike = Pairs(tested.victim, tested.beside, np.zeros_like(tested.platform), tested.slowdown)
    predictions["D-Factor, platforms alike"] = fit_plain(one, data.workloads, 1, speeds=False, seed=seed).predict(alike)
    for name, speeds in (("D-Factor, units of platforms", False), ("D-Factor, units and speeds", True)):
        plain = fit_plain(fitted, data.workloads, data.platforms, speeds=speeds, seed=seed)
        predictions[name] = plain.predict(tested)
    say(f"seed {seed}: extended")
    model, resources, penalty = chosen_extended(
        fitted, groups[mask], data.workloads, data.platforms, seed, lambda _: None
    )
    predictions["extended"] = model.predict(tested)
    parts = parts_of(tested.slowdown)
    errors = {name: relative_errors(values, tested) for name, values in predictions.items()}
    return {
        "seed": seed,
        "fitted": len(fitted.slowdown),
        "tested": {part: int(rows.sum()) for part, rows in parts.items()},
        "choice": f"{resources} resources, penalty {penalty:g}",
        "errors": {
            name: {part: float(found[rows].mean()) for part, rows in parts.items()} for name, found in errors.items()
        },
        "interval": {
            name: {part: mean_error(found[rows], tested.where(rows)) for part, rows in parts.items()}
            for name, found in errors.items()
        },
        "plot": (tested.slowdown, {name: predictions[name] for name in JUDGED}),
    }
