"""How good predictions and bounds of runtimes are, on rows that were not fitted."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from central.models.groups import Floats
from central.runtimes.model import Model

from central.models.pitot import Rows  # isort: skip


#: Of a normal distribution, two-sided.
_Z_95 = 1.959964


def measure_model(
    model: Model, rows: Rows, log_us: Floats, epsilons: Sequence[float], words: Sequence[str] = ()
) -> dict[str, Any]:
    """Measure a model on rows: see `measure`."""
    estimates = model.estimate(rows)
    bounds = model.bounds(rows, estimates, epsilons)
    return measure(rows, log_us, estimates.log_us, bounds, epsilons, words)


def measure(
    rows: Rows, log_us: Floats, predicted: Floats, bounds: Floats, epsilons: Sequence[float], words: Sequence[str] = ()
) -> dict[str, Any]:
    """Measure predictions, for each number of co-runners.

    Args:
        rows: n of them.
        log_us: logarithm of the measured runtimes, shape (n,).
        predicted: logarithm of the predicted ones, shape (n,).
        bounds: logarithm of the bounds, shape (epsilons, n), NaN where there is none.
        epsilons: shares of runs that may take longer.
        words: what the epsilons are called in the result; by default `{epsilon:g}`.

    Returns:
        By number of co-runners ("0", "1", ...): rows; mape, the mean of |t_hat - t| / t, with the half width of its
        95 % interval (None of one row; both None if too large for a number); mape_by_prediction, that of
        |t / t_hat - 1|, as the paper's authors' code has it; per epsilon coverage with its 95 % interval (Wilson),
        margin (equation 11), and margin_by_bound, mean |t / bound - 1|. Each mean has its _half_width likewise.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return _measured(rows, log_us, predicted, bounds, words or [f"{epsilon:g}" for epsilon in epsilons])


def _measured(rows: Rows, log_us: Floats, predicted: Floats, bounds: Floats, words: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    counts = rows.co_runners
    for count in np.unique(counts):
        here = counts == count
        off = predicted[here] - log_us[here]
        errors, by_prediction = np.abs(np.expm1(off)), np.abs(np.expm1(-off))
        size = int(here.sum())
        found[str(int(count))] = {
            "rows": size,
            "mape": _finite(errors.mean()),
            "mape_half_width": _half_width(errors),
            "mape_by_prediction": _finite(by_prediction.mean()),
            "mape_by_prediction_half_width": _half_width(by_prediction),
            "bounds": {word: _bound(log_us[here], bounds[place, here]) for place, word in enumerate(words)},
        }
    return found


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _half_width(values: Floats) -> float | None:
    """Half the width of the 95 % interval of the values' mean."""
    return _finite(_Z_95 * values.std() / np.sqrt(len(values))) if len(values) > 1 else None


def _bound(log_us: Floats, bound: Floats) -> dict[str, Any] | None:
    if np.isnan(bound).any():
        return None
    size = len(bound)
    coverage = float((log_us <= bound).mean())
    middle = (coverage + _Z_95**2 / (2 * size)) / (1 + _Z_95**2 / size)
    half = _Z_95 / (1 + _Z_95**2 / size) * np.sqrt(coverage * (1 - coverage) / size + _Z_95**2 / (4 * size * size))
    over, by_bound = np.maximum(np.expm1(bound - log_us), 0.0), np.abs(np.expm1(log_us - bound))
    return {
        "coverage": coverage,
        "coverage_low": float(middle - half),
        "coverage_high": float(middle + half),
        "margin": _finite(over.mean()),
        "margin_half_width": _half_width(over),
        "margin_by_bound": _finite(by_bound.mean()),
        "margin_by_bound_half_width": _half_width(by_bound),
    }
