"""Intervals, calibrated with the errors of estimates of rows that the model was not fitted to (split conformal).

Scores are |log(estimate / measured)| / difficulty, so that intervals are wide where errors are large; their quantile
gives the nominal coverage on rows like those of training. Errors on scenarios that were held out say by how much
intervals widen as rows are farther from training: see `agent.analysis.degradation.intervals` for the formula.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.analysis.degradation.intervals import Intervals, Novelty, mean_distance, with_log
from agent.analysis.degradation.trees import Terms, Trees
from central.degradation import trees
from central.degradation.glm import FitError
from central.models.groups import Floats

_NEIGHBOURS = 5
_PROTOTYPES = 512
_FOLDS = 5
_DIFFICULTY_TREES = 30
_DIFFICULTY_LEAF_ROWS = 10
#: The floor of the difficulty, as a share of its mean: no place is held to be without error.
_FLOOR = 0.1
_MIN_FLOOR = 1e-6
#: Rows as in training: this share of them has a novelty of at most 1.
_USUAL = 0.9
#: Beyond what was held out, widths grow at least in proportion to the novelty; and at most this fast.
_SLOPES = (1.0, 1.4, 2.0, 2.8, 4.0)
#: Rows farther away than in proportion this, or than most rows of held-out scenarios were, get no estimate.
_LIMIT = 4.0
_SCENARIO_SHARE = 0.95
_MIN_ROWS = 20
#: Distances of the same row differ by less between batches of rows.
_ROUNDING = 1e-9


def fit(
    values: Floats,
    baseline: Floats,
    degradation: Floats,
    estimated: Floats,
    scenarios: NDArray[np.str_],
    *,
    nominal: float,
    units: NDArray[np.str_] | None = None,
    by_scenario: Floats | None = None,
    uses: Sequence[int] = (),
    is_relative: bool = False,
    each_scenario: bool = False,
    training: tuple[Floats, Floats] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Calibrate intervals that cover a `nominal` share of rows; return their block, see `intervals` of the agent.

    `values` are the model's features, shape (n, k), `baseline` the same without interference, `degradation` is
    measured, shape (n,) like all others. `estimated` is by models that were not fitted to the row's unit (NaN: the row
    is not used), `by_scenario`, if there is one, by models not fitted to its scenario. Rows of one of `units`, such as
    a run, belong together and are of one scenario; None: each row by itself. The model uses the columns `uses` (empty:
    all); with `is_relative` it sees features relative to their baseline only, so nothing else is novel. With
    `each_scenario` the nominal share of each scenario is covered, so the worst one sets the width: for few scenarios,
    and one more, this equals conformal prediction over scenarios. `training` has values and baselines, each (m, k), of
    all rows that the model was fitted to, including baselines: none of them is too novel; None: `values` and
    `baseline`. `seed` is of the folds, prototypes and trees. Raises FitError for fewer than 20 rows, or if no feature
    varies.
    """
    usable = np.isfinite(estimated) & (estimated > 0)
    if int(usable.sum()) < _MIN_ROWS:
        raise FitError(f"intervals: {int(usable.sum())} rows with estimates are too few; {_MIN_ROWS} are needed")
    known = (values, baseline) if training is None else training
    rows = np.arange(len(values)).astype(np.str_) if units is None else units
    values, baseline, degradation, estimated = (a[usable] for a in (values, baseline, degradation, estimated))
    scenarios, rows = scenarios[usable], rows[usable]
    others = None if by_scenario is None else by_scenario[usable]
    columns = list(uses) or list(range(values.shape[1]))
    rng = np.random.default_rng(seed)

    errors = np.abs(np.log(estimated / degradation))
    wide, wide_baseline = with_log(values, baseline, estimated)
    terms = _difficulty_terms(wide, wide_baseline, columns, is_relative=is_relative)
    floor = max(_FLOOR * float(errors.mean()), _MIN_FLOOR)
    folds = _folds(rows, rng)

    def difficulty_of(some: NDArray[np.bool_]) -> dict[str, Any]:
        count, leaf_rows = _DIFFICULTY_TREES, max(_DIFFICULTY_LEAF_ROWS, int(some.sum()) // 100)
        seen = (wide[some], wide_baseline[some], errors[some])
        return trees.fit_extra_trees(*seen, seed=seed, link="identity", trees=count, leaf_rows=leaf_rows, terms=terms)

    expected = np.empty(len(errors))
    for is_out in folds:
        rest = difficulty_of(~is_out)
        expected[is_out] = Trees.from_json(rest).predict(wide[is_out], wide_baseline[is_out])
    difficulty = floor + expected
    novelty, usual, unusual = _novelty(values, baseline, columns, rows, scenarios, folds, rng, is_relative=is_relative)
    if others is not None:
        quantile = _quantile(errors / (difficulty * novelty.factor(usual)), nominal)
        held = np.abs(np.log(others / degradation)) / (quantile * difficulty)
        novelty = _with_slope(novelty, held, unusual, nominal)
    scores = errors / (difficulty * novelty.factor(usual))
    parts = [scores[scenarios == name] for name in np.unique(scenarios)] if each_scenario else [scores]
    block = {
        "kind": "conformal",
        "nominal": nominal,
        "quantile": max(*(_quantile(part, nominal) for part in parts), _MIN_FLOOR),
        "floor": floor,
        "rows": len(errors),
        "difficulty": difficulty_of(np.ones(len(errors), dtype=np.bool_)),
        "novelty": _novelty_block(_with_training(novelty, *known, rng)),
    }
    Intervals.from_json(block)  # what the agent will read; an error here is a bug
    return block


def _quantile(scores: Floats, nominal: float) -> float:
    """Return the conformal quantile: the ceil((n + 1) * nominal)-th smallest score, the largest where there is none."""
    place = min(math.ceil((len(scores) + 1) * nominal), len(scores))
    return float(np.partition(scores, place - 1)[place - 1])


def _folds(units: NDArray[np.str_], rng: np.random.Generator) -> list[NDArray[np.bool_]]:
    """Split rows into folds by unit, or row by row where there are too few units: masks of what is held out."""
    place = np.unique(units, return_inverse=True)[1]
    count = int(place.max()) + 1
    if count < _FOLDS:
        place, count = np.arange(len(units)), len(units)
    order = rng.permutation(count)
    return [np.isin(place, order[fold::_FOLDS]) for fold in range(_FOLDS)]


def _kept_terms(terms: Terms, kept: list[int], columns: Sequence[int]) -> Terms:
    """Return some of the terms, all where none is kept, with `columns` in place of their numbers."""
    kept = kept or list(range(len(terms.forms)))
    chosen = np.array(columns, dtype=np.int64)[terms.columns[kept]]
    return Terms(chosen, tuple(terms.forms[i] for i in kept), terms.scales[kept])


def _difficulty_terms(values: Floats, baseline: Floats, columns: list[int], *, is_relative: bool) -> Terms:
    """Return the terms of the used columns, and the log of the estimate; what the model sees alone, if relative."""
    places = [*columns, values.shape[1] - 1]
    terms = trees.terms_of(values[:, places], baseline[:, places])
    log = len(places) - 1
    forms = enumerate(zip(terms.columns.tolist(), terms.forms, strict=True))
    kept = [i for i, (column, form) in forms if not is_relative or column == log or form == "relative"]
    return _kept_terms(terms, kept, places)


def _novelty(
    values: Floats,
    baseline: Floats,
    columns: list[int],
    units: NDArray[np.str_],
    scenarios: NDArray[np.str_],
    folds: list[NDArray[np.bool_]],
    rng: np.random.Generator,
    *,
    is_relative: bool,
) -> tuple[Novelty, Floats, Floats]:
    """Return the measure, the novelty of each row seen from other units, and from other scenarios (NaN: one only)."""
    used = trees.terms_of(values[:, columns], baseline[:, columns])
    kept = [i for i, form in enumerate(used.forms) if form == "relative" or not (is_relative or form == "baseline")]
    terms = _kept_terms(used, kept, columns)
    seen = terms.of(values, baseline)
    middles = np.median(seen, axis=0)
    widths = np.median(np.abs(seen - middles), axis=0)
    widths = np.where(widths > 0, widths, np.maximum(seen.std(axis=0), 1e-12))
    places = np.arcsinh((seen - middles) / widths)
    spreads = np.where(places.std(axis=0) > 0, places.std(axis=0), 1.0)
    places = places / spreads
    chosen = np.sort(rng.permutation(len(values))[:_PROTOTYPES])
    usual = _distances(places, chosen, folds, units)
    unusual = _distances(places, chosen, [scenarios == name for name in np.unique(scenarios)], scenarios)
    reference = max(float(np.quantile(usual, _USUAL)), 1e-12)
    far = unusual[np.isfinite(unusual)] / reference
    limit = max(_LIMIT, float(np.quantile(far, _SCENARIO_SHARE))) if len(far) else _LIMIT
    prototypes = np.round(places[chosen], 4)
    neighbours = min(_NEIGHBOURS, len(chosen))
    novelty = Novelty(terms, middles, widths, spreads, neighbours, prototypes, reference, _SLOPES[0], limit)
    return novelty, usual / reference, unusual / reference


def _distances(
    places: Floats, chosen: NDArray[np.int64], parts: list[NDArray[np.bool_]], names: NDArray[np.str_]
) -> Floats:
    """Return each row's distance to the prototypes without a name of its part; NaN: there are too few."""
    result = np.full(len(places), math.nan)
    for is_in in parts:
        rest = places[chosen[~np.isin(names[chosen], names[is_in])]]
        if len(rest) < _NEIGHBOURS:
            rest = places[chosen[~is_in[chosen]]]
        if len(rest) >= _NEIGHBOURS:
            result[is_in] = mean_distance(places[is_in], rest, _NEIGHBOURS)
    return result


def _with_slope(novelty: Novelty, held: Floats, unusual: Floats, nominal: float) -> Novelty:
    """Return the measure with the least slope that covers the nominal share of the novel rows of held-out scenarios.

    `held` (n,) is |log error| / half width without a slope, NaN where there is none; `unusual` (n,) is the novelty.
    """
    is_novel = np.isfinite(held) & (unusual > 1)
    if int(is_novel.sum()) < _MIN_ROWS:
        return novelty
    for slope in _SLOPES:
        novelty = replace(novelty, slope=slope)
        if float((held[is_novel] <= novelty.factor(unusual[is_novel])).mean()) >= nominal:
            break
    return novelty


def _with_training(novelty: Novelty, values: Floats, baseline: Floats, rng: np.random.Generator) -> Novelty:
    """Return the measure such that no row of training is too novel: rows that it would refuse become prototypes.

    Baseline rows are the usual case: they are fitted to, but intervals are not calibrated with their errors, so none is
    a prototype, and with one scenario, or little data, they are far from all prototypes.
    """
    refused = np.flatnonzero(novelty.of(values, baseline) > novelty.limit)
    if not len(refused):
        return novelty
    chosen = np.sort(rng.permutation(refused)[:_PROTOTYPES])
    more = np.round(novelty.places(values[chosen], baseline[chosen]), 4)
    wider = replace(novelty, prototypes=np.vstack((novelty.prototypes, more)))
    # A row without neighbours stays far away: then rows no farther get an estimate too.
    most = float(wider.of(values, baseline).max()) * (1 + _ROUNDING)
    return replace(wider, limit=max(novelty.limit, most))


def _novelty_block(novelty: Novelty) -> dict[str, Any]:
    return {
        "terms": novelty.terms.to_json(),
        **{name: getattr(novelty, name).tolist() for name in ("middles", "widths", "spreads")},
        "neighbours": novelty.neighbours,
        "prototypes": " ".join(f"{x:.4f}" for x in novelty.prototypes.ravel()),
        **{name: getattr(novelty, name) for name in ("reference", "slope", "limit")},
    }
