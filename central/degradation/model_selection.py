"""The choice among rivals: by the error on scenarios that they were not fitted to, with the agent's own code."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from central.degradation.fit import (
    FitOptions,
    Rival,
    document,
    fit_parts,
    inputs_of,
    model_of,
    rivals,
    rows_of_parts,
    with_ranges,
)
from central.degradation.glm import FitError
from central.degradation.runs import Runs, of_rows_words
from central.degradation.scatter import with_scatter
from central.models.groups import Floats
from whitepanda.common.errors import InputError

#: Rows, baselines apart, that a fit needs.
MIN_ROWS = 20
_GROUP_FOLDS = 5
_INTERVAL_FOLDS = 10
#: More rows than this are held out in fewer folds: it takes long, and the folds' models are close enough.
_MANY_ROWS = 5000


class Held(NamedTuple):
    """A rival's estimates of rows that it was not fitted to, shape (n,): NaN where it has none."""

    rival: Rival
    estimated: Floats
    errors: dict[str, Any]


def fit_model(
    runs: Runs, options: FitOptions, on_progress: Callable[[str], None] = lambda _step: None
) -> dict[str, Any]:
    """Fit all rivals, choose one, and return the model file's content.

    Raises InputError for too few rows, an unknown method, or no rival can be fitted.
    """
    count, left_out = int((~runs.is_baseline).sum()), of_rows_words(runs.counts)
    if not count and not left_out:
        raise InputError(
            f"every row is a baseline (--baseline-where {runs.columns.baseline_where}); there is nothing to fit to"
        )
    if count < MIN_ROWS:
        raise InputError(
            f"{count} usable rows other than baselines are too few; at least {MIN_ROWS} are needed{left_out}"
        )
    try:
        wanted = rivals(runs.columns.features, options)
    except ValueError as error:
        raise InputError(f"--methods: {error}") from error
    sets, criterion = scenario_sets(runs, options)
    held: list[Held] = []
    failed: list[dict[str, Any]] = []
    for rival in wanted:
        on_progress(f"{rival.name} by {criterion}")
        try:
            held.append(held_out(runs, rival, options, sets))
        except FitError as error:
            failed.append({"method": rival.name, "failed": str(error)})
    if not held:
        raise InputError(f"no method can be fitted: {failed[0]['method']}: {failed[0]['failed']}")
    best = min(held, key=lambda h: h.errors["mean_ape"])
    on_progress(f"{best.rival.name} to all rows")
    fitted = with_ranges(fit_parts(runs, best.rival, options), runs, options)
    parts = with_intervals(fitted, runs, best, criterion, options)
    parts = with_scatter(parts, runs, best.estimated, options)
    choice = {
        "method": best.rival.name,
        "criterion": "mean absolute percentage error of rows that are not baselines, held out",
        "held_out_by": criterion,
        "errors": [*(h.errors for h in held), *failed],
        "constant": {"degradation": constant_of(runs), **_constant_errors(runs, sets)},
    }
    return document(runs, parts, choice, options)


def with_intervals(
    parts: list[dict[str, Any]], runs: Runs, held: Held, criterion: str, options: FitOptions
) -> list[dict[str, Any]]:
    """Return the parts with intervals, calibrated with estimates of runs, and of scenarios, that were held out.

    By runs: rows like those of training are covered, and novelty widens the rest. By scenarios: whole scenarios are.
    """
    from central.degradation import intervals  # noqa: PLC0415 - the extra `train`

    sets, by_scenario = scenario_sets(runs, options)[0], None
    if criterion == "scenario" and options.calibrate_by == "run":
        by_scenario = held.estimated
        folds = _INTERVAL_FOLDS if len(runs.degradation) <= _MANY_ROWS else _GROUP_FOLDS
        sets = list(folds_of(runs, folds, options.seed, by_run=True))
    estimated = held.estimated if by_scenario is None else _estimated(runs, held.rival, options, sets)
    result: list[dict[str, Any]] = []
    for part, is_in in rows_of_parts(parts, runs, options):
        rows = is_in & ~runs.is_baseline
        measured, fitted = runs.take(rows), runs.take(is_in if options.baseline_rows else rows)
        try:
            block: dict[str, Any] | None = intervals.fit(
                *measured.features,
                measured.degradation,
                estimated[rows],
                measured.scenarios,
                nominal=options.nominal,
                units=measured.runs,
                by_scenario=None if by_scenario is None else by_scenario[rows],
                uses=part.get("uses", ()),
                is_relative=part["estimator"]["kind"] == "glm",
                each_scenario=options.calibrate_by == "scenario",
                training=fitted.features,
                seed=options.seed,
            )
        except FitError:
            block = result[0]["intervals"] if result else None  # from the model for any VM
        result.append({**part, "intervals": block})
    return result


def held_out(runs: Runs, rival: Rival, options: FitOptions, sets: list[NDArray[np.bool_]]) -> Held:
    """Fit a rival without each set of rows, and let it estimate that set.

    Raises FitError if it cannot be fitted without one of the sets.
    """
    estimated = _estimated(runs, rival, options, sets)
    rows = ~runs.is_baseline
    is_known = np.isfinite(estimated)
    # Where a rival has no estimate, the constant counts, which needs no model.
    filled = np.where(is_known, estimated, constant_of(runs))
    counts = {"rows": int(rows.sum()), "cannot_tell": int((rows & ~is_known).sum())}
    return Held(rival, estimated, {"method": rival.name, **_ape(filled, runs, rows), **counts})


def _ape(estimated: Floats, runs: Runs, rows: NDArray[np.bool_]) -> dict[str, float]:
    ape = np.abs(estimated - runs.degradation)[rows] / runs.degradation[rows]
    return {"mean_ape": float(ape.mean()), "median_ape": float(np.median(ape))}


def _estimated(runs: Runs, rival: Rival, options: FitOptions, sets: list[NDArray[np.bool_]]) -> Floats:
    """Return the rows' estimates, each by a model fitted without the row's set; NaN: no estimate, or in no set."""
    estimated = np.full(len(runs.degradation), math.nan)
    for is_out in sets:
        rest = runs.take(~is_out)
        model = model_of(rest, fit_parts(rest, rival, options), options)
        estimated[is_out] = model.predict(*inputs_of(runs.take(is_out), model)).degradation
    return estimated


def constant_of(runs: Runs) -> float:
    """Return the median degradation of the rows that are not baselines, which a model has to beat."""
    return float(np.median(runs.degradation[~runs.is_baseline]))


def scenario_sets(runs: Runs, options: FitOptions) -> tuple[list[NDArray[np.bool_]], str]:
    """Split the rows into sets that are held out one after the other, and return by what: "scenario" or "group".

    By scenario where there are two or more, at most `options.held_out_sets` sets of them; else by group in 5 folds.
    """
    names = np.unique(runs.scenarios[~runs.is_baseline])
    if len(names) > 1:
        order = np.random.default_rng(options.seed).permutation(len(names))
        count = min(len(names), options.held_out_sets)
        return [np.isin(runs.scenarios, names[order[i::count]]) for i in range(count)], "scenario"
    return list(folds_of(runs, _GROUP_FOLDS, options.seed, by_run=True)), "group"


def folds_of(runs: Runs, folds: int, seed: int, *, by_run: bool = False) -> Iterator[NDArray[np.bool_]]:
    """Split the rows that are not baselines at random into folds; yield masks of the held-out rows.

    `by_run` splits whole runs, with their baselines; with fewer runs than folds, rows are split.
    """
    rows = np.flatnonzero(~runs.is_baseline)
    names = np.unique(runs.runs[rows])
    if by_run and len(names) >= folds:
        order = np.random.default_rng(seed).permutation(len(names))
        for fold in range(folds):
            yield np.isin(runs.runs, names[order[fold::folds]])
        return
    place = np.random.default_rng(seed).permutation(len(rows))
    for fold in range(min(folds, len(rows))):
        mask = np.zeros(len(runs.degradation), dtype=np.bool_)
        mask[rows[place[fold::folds]]] = True
        yield mask


def _constant_errors(runs: Runs, sets: list[NDArray[np.bool_]]) -> dict[str, float]:
    """Return the errors of the constant, held out as the rivals are."""
    estimated = np.full(len(runs.degradation), math.nan)
    for is_out in sets:
        rest = runs.take(~is_out)
        if (~rest.is_baseline).any():
            estimated[is_out] = constant_of(rest)
    return _ape(estimated, runs, ~runs.is_baseline & np.isfinite(estimated))
