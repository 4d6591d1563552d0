"""How far estimates are from what was measured: the paper's overall and dynamic error, and the intervals' coverage.

Source: "Cloud White", section 7.1. Overall: the 95th percentiles of a run's measured and estimated values are compared.
Dynamic: the mean error over quanta of 1 s.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.analysis.degradation.model import Estimates, Model, parse
from central.degradation.fit import FitOptions, inputs_of
from central.degradation.model_selection import constant_of, fit_model, folds_of
from central.degradation.runs import Runs, of_rows_words
from central.degradation.scatter import percentile_with
from central.models.groups import Floats
from whitepanda.common.errors import InputError

PERCENTILE = 95.0
_QUANTUM_S = 1.0
_ERRORS = ("mean_ape", "median_ape", "overall_error", "overall_error_with_scatter", "dynamic_error")


def errors(
    measured: Floats, estimated: Floats, runs: NDArray[np.str_], at_s: Floats, scatter: Floats | None = None
) -> dict[str, float]:
    """Compare estimates with measurements, shapes (n,); rows without an estimate (NaN) are left out.

    `runs` names each row's run, `at_s` is when in its run (NaN: each row is a quantum of its own), `scatter` is of the
    measured values around estimates (`Model.scatter`), NaN where it is not known.

    Returns ratios (0.05 = 5 %), NaN where nothing is estimated: `mean_ape`, `median_ape` over rows; `overall_error` and
    `dynamic_error` as means over runs; `overall_error_with_scatter` likewise, with estimates scattered as measurements
    are, over the runs of which all rows have a scatter.
    """
    known = np.isfinite(estimated)
    spread = (np.full(len(known), math.nan) if scatter is None else scatter)[known]
    measured, estimated, runs, at_s = measured[known], estimated[known], runs[known], at_s[known]
    if not len(measured):
        return dict.fromkeys(_ERRORS, math.nan)
    ape = np.abs(estimated - measured) / measured
    order = np.argsort(runs, kind="stable")
    starts = np.flatnonzero(np.r_[True, runs[order][1:] != runs[order][:-1]])
    overall, scattered, dynamic = [], [], []
    for rows in np.split(order, starts[1:]):
        real = float(np.percentile(measured[rows], PERCENTILE))
        overall.append(abs(float(np.percentile(estimated[rows], PERCENTILE)) - real) / real)
        if np.isfinite(spread[rows]).all():
            scattered.append(abs(percentile_with(estimated[rows], spread[rows], PERCENTILE) - real) / real)
        dynamic.append(_dynamic(measured[rows], estimated[rows], at_s[rows]))
    return {
        "mean_ape": float(ape.mean()),
        "median_ape": float(np.median(ape)),
        "overall_error": float(np.mean(overall)),
        "overall_error_with_scatter": float(np.mean(scattered)) if scattered else math.nan,
        "dynamic_error": float(np.mean(dynamic)),
    }


def _dynamic(measured: Floats, estimated: Floats, at_s: Floats) -> float:
    """Return the mean error over the quanta of one run: means of both within each."""
    if np.isnan(at_s).any():
        return float((np.abs(estimated - measured) / measured).mean())
    place = np.unique(np.floor(at_s / _QUANTUM_S), return_inverse=True)[1]
    count = np.bincount(place)
    real, said = np.bincount(place, measured) / count, np.bincount(place, estimated) / count
    return float((np.abs(said - real) / real).mean())


def summary(runs: Runs, estimates: Estimates, constant: Floats, nominal: float, scatter: Floats) -> dict[str, Any]:
    """Return the errors of estimates of `runs`, in all and per scenario, and those of a constant, shape (n,).

    `nominal` is the coverage that the intervals claim, `scatter` as for `errors`.
    """
    result = _of_rows(runs, estimates, constant, np.ones(len(constant), dtype=np.bool_), scatter)
    result["nominal"] = nominal
    result["reasons"] = dict(Counter(reason for reason in estimates.reasons if reason).most_common())
    names = np.unique(runs.scenarios).tolist()
    result["by_scenario"] = {
        name: _of_rows(runs, estimates, constant, runs.scenarios == name, scatter) for name in names if len(names) > 1
    }
    return result


def _of_rows(
    runs: Runs, estimates: Estimates, constant: Floats, rows: NDArray[np.bool_], scatter: Floats
) -> dict[str, Any]:
    measured, estimated = runs.degradation[rows], estimates.degradation[rows]
    names, at_s = runs.runs[rows], runs.at_s[rows]
    low, high = estimates.low[rows], estimates.high[rows]
    bounded = np.isfinite(low) & np.isfinite(high)
    covered = (low <= measured) & (measured <= high)
    return {
        "rows": int(rows.sum()),
        "runs": len(np.unique(names)),
        "cannot_tell": int((~np.isfinite(estimated)).sum()),
        **errors(measured, estimated, names, at_s, scatter[rows]),
        "coverage": float(covered[bounded].mean()) if bounded.any() else math.nan,
        "median_width": float(np.median((high - low)[bounded])) if bounded.any() else math.nan,
        "constant": errors(measured, constant[rows], names, at_s),
    }


def evaluate_as_is(runs: Runs, model: Model, constant: float) -> tuple[Runs, Estimates, dict[str, Any]]:
    """Evaluate a model on the rows that are not baselines: return these, the estimates, and their summary.

    Raises InputError if every row is a baseline.
    """
    rows = _measured(runs)
    estimates, scatter = _estimated(rows, model)
    return rows, estimates, summary(rows, estimates, np.full_like(rows.degradation, constant), model.nominal, scatter)


def _estimated(rows: Runs, model: Model) -> tuple[Estimates, Floats]:
    values, baseline = inputs_of(rows, model)
    estimates = model.predict(values, baseline, rows.baseline_rows)
    return estimates, model.scatter(values, baseline, estimates.degradation)


def evaluate_refitted(
    runs: Runs, options: FitOptions, method: str, folds: int, on_progress: Callable[[str], None] = lambda _step: None
) -> tuple[Runs, Estimates, dict[str, Any]]:
    """Evaluate a method, refitted and recalibrated without the rows that it then estimates, as `evaluate_as_is` does.

    With `folds`, that number of folds is drawn at random (`options.seed`); with 0 each scenario is held out in turn.
    `on_progress` is called with each step's name. Raises InputError if every row is a baseline, there is one scenario
    only, or a fit fails.
    """
    rows = _measured(runs)
    is_measured = ~runs.is_baseline
    count = len(runs.degradation)
    numbers = np.full((4, count), math.nan)
    reasons, models = np.full(count, "", dtype=object), np.full(count, "", dtype=object)
    constants = np.full(count, math.nan)
    for number, is_out in enumerate(_held_out(runs, folds, options.seed), start=1):
        on_progress(f"{method}, held-out set {number}")
        rest, out = runs.take(~is_out), np.flatnonzero(is_out & is_measured)
        model = parse(fit_model(rest, replace(options, methods=(method,))))
        estimates, scatter = _estimated(runs.take(out), model)
        numbers[:, out] = np.stack((estimates.degradation, estimates.low, estimates.high, scatter))
        reasons[out], models[out] = estimates.reasons, estimates.models
        constants[out] = constant_of(rest)
    *columns, scatter = numbers[:, is_measured]
    found = Estimates(*columns, *(tuple(str(word) for word in words[is_measured]) for words in (reasons, models)))
    return rows, found, summary(rows, found, constants[is_measured], options.nominal, scatter)


def _measured(runs: Runs) -> Runs:
    rows = runs.take(~runs.is_baseline)
    if not len(rows.degradation):
        which = f"every usable row is a baseline (the model's: {runs.columns.baseline_where})"
        raise InputError(f"{which}; there is nothing to evaluate{of_rows_words(runs.counts)}")
    return rows


def _held_out(runs: Runs, folds: int, seed: int) -> list[NDArray[np.bool_]]:
    if folds:
        rows = int((~runs.is_baseline).sum())
        if not 1 < folds <= rows:
            raise InputError(
                f"--folds: must be 2 to {rows:,}, the number of rows other than baselines (value {folds}): one fold "
                "is held out, the others are fitted to"
            )
        return list(folds_of(runs, folds, seed))
    names = np.unique(runs.scenarios[~runs.is_baseline])
    if len(names) < 2:  # noqa: PLR2004 - one to hold out, one to fit to
        raise InputError("there is one scenario only; see --scenario, or use --folds")
    return [runs.scenarios == name for name in names]
