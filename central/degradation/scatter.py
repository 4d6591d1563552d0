"""How far the seconds of a run scatter around their mean, which decides a run's percentiles.

Estimates are means, and the tail latency of a second is noisy: a run's 95th percentile is the percentile of estimates
with their scatter. Intervals do not measure it: they also cover the model's error about a whole run.
"""

import math
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.analysis.degradation.intervals import Intervals
from central.degradation.fit import FitOptions, inputs_of, model_of, rows_of_parts
from central.degradation.runs import Runs
from central.models.groups import Floats

#: Rows that a run, quiet or not, needs to show a scatter.
_MIN_ROWS = 6
_QUANTILES = 200
_NORMAL = np.array([NormalDist().inv_cdf((place + 0.5) / _QUANTILES) for place in range(_QUANTILES)])


def percentile_with(estimated: Floats, scatter: Floats, percentile: float) -> float:
    """Return a percentile (0 to 100) of a run's expected rows, each log-normal around its estimate, shape (n,).

    `scatter` (n,) has the standard deviations of the logarithm.
    """
    return float(np.percentile(estimated[:, None] * np.exp(scatter[:, None] * _NORMAL), percentile))


def with_scatter(
    parts: list[dict[str, Any]], runs: Runs, held_out: Floats, options: FitOptions
) -> list[dict[str, Any]]:
    """Return the parts with the scatter within training's runs; None where they are too short, or without intervals.

    `held_out` (n,) has estimates of rows by models that were not fitted to them, because trees know their own rows.
    """
    model = model_of(runs, parts, options)
    values, baseline = (one[:, : len(model.features)] for one in inputs_of(runs, model))
    result = []
    for (part, rows), one in zip(rows_of_parts(parts, runs, options), model.estimators, strict=True):
        is_regression = part["estimator"]["kind"] == "glm"
        estimated = one.estimator.predict(values, baseline) if is_regression else held_out
        found = None
        if isinstance(one.intervals, Intervals):
            usual = one.intervals.expected_error(values, baseline, estimated)
            with np.errstate(invalid="ignore", divide="ignore"):
                errors = np.log(runs.degradation / estimated)
            factor = _deviation(errors, usual, runs, rows & ~runs.is_baseline)
            quiet = _deviation(np.log(runs.degradation), np.ones(len(rows)), runs, rows & runs.is_baseline)
            if math.isfinite(factor + quiet):
                found = {"factor": factor, "quiet": quiet}
        result.append({**part, "scatter": found})
    return result


def _deviation(errors: Floats, usual: Floats, runs: Runs, rows: NDArray[np.bool_]) -> float:
    """Return the deviation of errors within runs, in units of the usual one, the mean over scenarios; NaN: unknown."""
    rows = rows & np.isfinite(errors) & np.isfinite(usual)
    by_scenario = []
    for scenario in np.unique(runs.scenarios[rows]):
        of_it = rows & (runs.scenarios == scenario)
        _, place, count = np.unique(runs.runs[of_it], return_inverse=True, return_counts=True)
        enough = count >= _MIN_ROWS
        if not enough.any():
            continue
        means = np.bincount(place, errors[of_it]) / count
        squares = np.bincount(place, ((errors[of_it] - means[place]) / usual[of_it]) ** 2)
        # A mean takes one degree of freedom of each run.
        by_scenario.append(math.sqrt(squares[enough].sum() / (count[enough] - 1).sum()))
    return float(np.mean(by_scenario)) if by_scenario else math.nan
