"""How good predictions and bounds of runtimes are, on rows that were not fitted."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from central.models.groups import Floats
from central.models.pitot import Rows

#: Of a normal distribution, two-sided.
_Z_95 = 1.959964


def measure(
    rows: Rows, log_us: Floats, predicted: Floats, bounds: Floats, epsilons: Sequence[float], words: Sequence[str] = ()
) -> dict[str, Any]:
    """Measure predictions (n,) and bounds (epsilons, n; NaN: none), all logarithms, by number of co-runners.

    Returns by number of co-runners ("0", "1", ...): rows; mape, the mean of |t_hat - t| / t, with the half width of its
    95 % interval (None for one row; both None if too large for a number); mape_by_prediction, the mean of
    |t / t_hat - 1|, as in the paper's authors' code; per epsilon (named by `words`, or `{epsilon:g}`) coverage with its
    95 % interval (Wilson), margin (equation 11), and margin_by_bound, mean |t / bound - 1|. Each mean has its
    _half_width likewise.
    """
    words = words or [f"{epsilon:g}" for epsilon in epsilons]
    found: dict[str, Any] = {}
    counts = rows.co_runners
    with np.errstate(over="ignore", invalid="ignore"):
        for count in np.unique(counts):
            here = counts == count
            off = predicted[here] - log_us[here]
            found[str(int(count))] = {
                "rows": int(here.sum()),
                **_mean("mape", np.abs(np.expm1(off))),
                **_mean("mape_by_prediction", np.abs(np.expm1(-off))),
                "bounds": {word: _bound(log_us[here], bounds[place, here]) for place, word in enumerate(words)},
            }
    return found


def _mean(name: str, values: Floats) -> dict[str, float | None]:
    """Return the mean, and half the width of its 95 % interval (None for one row); None if not finite."""
    half = _Z_95 * values.std() / np.sqrt(len(values)) if len(values) > 1 else np.inf
    found = {name: values.mean(), f"{name}_half_width": half}
    return {key: float(x) if np.isfinite(x) else None for key, x in found.items()}


def _bound(log_us: Floats, bound: Floats) -> dict[str, Any] | None:
    if np.isnan(bound).any():
        return None
    size = len(bound)
    coverage = float((log_us <= bound).mean())
    middle = (coverage + _Z_95**2 / (2 * size)) / (1 + _Z_95**2 / size)
    half = _Z_95 / (1 + _Z_95**2 / size) * np.sqrt(coverage * (1 - coverage) / size + _Z_95**2 / (4 * size * size))
    return {
        "coverage": coverage,
        "coverage_low": float(middle - half),
        "coverage_high": float(middle + half),
        **_mean("margin", np.maximum(np.expm1(bound - log_us), 0.0)),
        **_mean("margin_by_bound", np.abs(np.expm1(log_us - bound))),
    }
