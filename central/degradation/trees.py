"""Extra-trees and gradient boosting, fitted with scikit-learn and written as numbers for `agent.analysis.degradation`.

Terms: each feature as it is, its baseline, and the one relative to the other. Trees cannot extrapolate: without
baseline rows (degradation about 1), interference that was never seen is taken for the nearest that was. Relative errors
count, so trees average the degradation to the power -1/2, between the log and the inverse of the paper's regressions: a
leaf's largest values then do not dominate its mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from agent.analysis.degradation.relative import relative
from agent.analysis.degradation.trees import Terms, Trees
from central.degradation.glm import FitError
from central.models.groups import Floats

#: Fits an estimator block to values, baseline and degradation.
FitFunction = Callable[[Floats, Floats, Floats], dict[str, Any]]

EXTRA_TREES = 100
#: Leaves per extra-tree, at most about: bounds the model file.
_MAX_LEAVES = 700
_MIN_LEAF_ROWS = 2
_BOOSTING = {"max_iter": 200, "learning_rate": 0.05, "max_leaf_nodes": 15, "min_samples_leaf": 5}
#: Where more of a feature cannot make a VM faster (1) or slower (-1). Not occupancy: a full cache need not hurt.
_DIRECTIONS: Mapping[str, int] = {
    "run_queue_wait_ratio": 1,
    "pressure_cpu_some_ratio": 1,
    "memory_stall_ratio": 1,
    "ipc": -1,
    "others_cpu_usage_cores": 1,
    "others_memory_bandwidth_bytes_per_s": 1,
    "others_disk_bytes_per_s": 1,
    "others_storage_bytes_per_s": 1,
    "others_network_bytes_per_s": 1,
    "aggressor_mem_bandwidth_bytes": 1,
}


def directions_of(features: Sequence[str]) -> tuple[int, ...]:
    """Return per feature 1, -1 or 0: in which direction the degradation may only go as it grows."""
    return tuple(_DIRECTIONS.get(name, 0) for name in features)


def rivals(features: Sequence[str], seed: int) -> dict[str, FitFunction]:
    """Return the methods by name. The monotone one is there where a feature has a direction."""
    directions = directions_of(features)
    found: dict[str, FitFunction] = {
        "extra-trees": partial(fit_extra_trees, seed=seed),
        "boosting": partial(fit_boosting, seed=seed),
    }
    if any(directions):
        found["boosting-monotone"] = partial(fit_boosting, seed=seed, directions=directions)
    return found


def fit_extra_trees(
    values: Floats,
    baseline: Floats,
    degradation: Floats,
    *,
    seed: int,
    link: str = "inverse-square-root",
    trees: int = EXTRA_TREES,
    leaf_rows: int = 0,
    terms: Terms | None = None,
) -> dict[str, Any]:
    """Fit extremely randomised trees (Geurts, Ernst, Wehenkel 2006): the mean over the trees of a power or log.

    `values` are features in their own units, all known, shape (n, k), `baseline` the same without interference,
    `degradation` (n,) is above 0, 1 as without interference. `link` is one of `agent.analysis.degradation.trees.LINKS`.
    A leaf needs `leaf_rows` (0: 2, and more if there are many rows, so that the file stays small). Trees split by
    `terms`, by default all of `terms_of`. Returns an estimator block, see `agent.analysis.degradation.trees`, with
    `uses`: the features that it needs. Raises FitError if no feature varies.
    """
    from sklearn.ensemble import ExtraTreesRegressor  # noqa: PLC0415 - the extra `train`

    terms = terms or terms_of(values, baseline)
    least = leaf_rows or max(_MIN_LEAF_ROWS, -(-len(values) // _MAX_LEAVES))
    forest = ExtraTreesRegressor(trees, min_samples_leaf=least, random_state=seed)
    forest.fit(terms.of(values, baseline), _link(degradation, link))
    found = [each.tree_ for each in forest.estimators_]
    forms = ((t.children_left, t.children_right, t.feature, t.threshold, t.value[:, 0, 0]) for t in found)
    nodes = [node for left, *rest in forms for node in _preorder(left < 0, left, *rest)]
    return _block(terms, nodes, link=link, base=0.0, factor=1.0 / trees, trees=trees)


def fit_boosting(
    values: Floats, baseline: Floats, degradation: Floats, *, seed: int, directions: Sequence[int] = ()
) -> dict[str, Any]:
    """Fit gradient boosting to the log of the degradation; arguments, result and errors as in `fit_extra_trees`.

    `directions`: per feature 1 or -1 where the degradation may only rise or fall as it grows, at the same baseline.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: PLC0415 - the extra `train`

    terms = terms_of(values, baseline)
    signs = directions or (0,) * values.shape[1]
    forms = zip(terms.columns.tolist(), terms.forms, strict=True)
    constraints = [0 if form == "baseline" else signs[column] for column, form in forms]
    options = {"monotonic_cst": constraints, "random_state": seed, "early_stopping": False}
    boosting = HistGradientBoostingRegressor(**options, **_BOOSTING)
    boosting.fit(terms.of(values, baseline), np.log(degradation))
    # scikit-learn has no public way to the trees of this one; the tests compare with its own predictions.
    rounds = boosting._predictors  # noqa: SLF001
    base = float(np.ravel(boosting._baseline_prediction)[0])  # noqa: SLF001
    keys = ("is_leaf", "left", "right", "feature_idx", "num_threshold", "value")
    nodes = [node for (tree,) in rounds for node in _preorder(*(tree.nodes[key] for key in keys))]
    return _block(terms, nodes, link="log", base=base, factor=1.0, trees=len(rounds))


def terms_of(values: Floats, baseline: Floats) -> Terms:
    """Return the terms that distinguish rows: those that vary, and no two that are the same.

    Raises FitError if none varies.
    """
    scales = np.abs(values).mean(axis=0)  # a typical magnitude: see `agent.analysis.degradation.relative`
    scales = np.where(scales > 0, scales, 1.0)
    found: list[tuple[int, str]] = []
    seen: list[Floats] = []
    for form, numbers in (("raw", values), ("baseline", baseline), ("relative", relative(values, baseline, scales))):
        for column in range(values.shape[1]):
            term = numbers[:, column]
            if len(term) and np.ptp(term) > 0 and not any(np.array_equal(term, other) for other in seen):
                found.append((column, form))
                seen.append(term)
    if not found:
        raise FitError("no feature varies over the rows")
    columns = np.array([column for column, _ in found], dtype=np.int64)
    return Terms(columns, tuple(form for _, form in found), scales[columns])


def _link(degradation: Floats, link: str) -> Floats:
    """Return what trees average: the inverse of `agent.analysis.degradation.trees.degradation_of`."""
    if link == "log":
        return np.log(degradation)
    return degradation ** {"identity": 1.0, "inverse": -1.0, "inverse-square-root": -0.5}[link]


def _block(
    terms: Terms, nodes: list[tuple[int, float]], *, link: str, base: float, factor: float, trees: int
) -> dict[str, Any]:
    block = {
        "kind": "trees",
        "link": link,
        "base": base,
        "factor": factor,
        "terms": terms.to_json(),
        "trees": trees,
        "columns": " ".join(str(column) for column, _ in nodes),
        "numbers": " ".join(
            str(_down_to_single(number)) if column >= 0 else f"{number:.12g}" for column, number in nodes
        ),
        "uses": sorted({int(column) for column in terms.columns}),
    }
    Trees.from_json(block)  # what the agent will read; an error here is a bug
    return block


def _down_to_single(threshold: float) -> np.float32:
    """Return the largest single-precision number that is not above it: it splits such numbers just as well."""
    single = np.float32(threshold)
    return single if float(single) <= threshold else np.nextafter(single, np.float32(-np.inf))


def _preorder(is_leaf: Any, left: Any, right: Any, term: Any, limit: Any, value: Any) -> Iterator[tuple[int, float]]:
    """Yield (term, threshold), or (-1, value) of a leaf, in preorder, from the columns of scikit-learn's tree."""
    rest = [0]
    while rest:
        place = rest.pop()
        if is_leaf[place]:
            yield -1, float(value[place])
        else:
            yield int(term[place]), float(limit[place])
            rest += [int(right[place]), int(left[place])]
