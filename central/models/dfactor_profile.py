"""Loading vectors from measurements: runs beside known loads, runs of several copies, or measured shares of time.

By D-Factor a run beside others whose loading vectors sum to P takes T = tau (1 + p . P): linear in P, with tau as the
intercept and tau p as the slopes. n - 1 copies of the job itself are a load of n - 1 times p, so T = tau (1 + (n - 1)
|p|^2). Both are least squares with noise in proportion to T; shares are ratios of coefficients, with Fieller's
intervals.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

from central.models.groups import Floats

_NOMINAL = 0.95
# Each round's weights come from the fit before; a few rounds settle them.
_ROUNDS = 5
# Residuals, as shares of the time, that no longer show how much runs scatter: digits of a double.
_ROUNDING = 1e-12
# Times of one job that differ by more are a mistake in the table, and no fit in double precision.
_MAX_RATIO = 1e9


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval: None without spare rows, if they scatter by no more than rounding, or no end."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """Time alone in seconds (None from shares), one estimate per column, and the number of rows behind them."""

    tau_s: Estimate | None
    shares: tuple[Estimate, ...]
    n: int


def fit_runs(time_s: npt.ArrayLike, beside: npt.ArrayLike) -> Profile:
    """Fit T = tau (1 + sum_k s_k X_k).

    Raises ValueError for fewer runs than unknowns, or a column that does not vary by itself, or no positive time alone,
    or numbers of too different sizes.

    Args:
        time_s: of each run, above 0; shape (runs,).
        beside: X: the sum of the loading vectors of what ran beside (s is then p), or the copies less one (s is then
            |p|^2); shape (runs, columns).
    """
    times = np.asarray(time_s, dtype=np.float64)
    if len(times) and times.max() / _MAX_RATIO > times.min():
        raise ValueError(f"its times are too different for one job ({times.min():g} to {times.max():g} s)")
    # By a power of two, which changes no digit: squares of the times stay in range.
    exponent = int(np.frexp(np.median(times))[1]) if len(times) else 0
    y = np.asarray(np.ldexp(times, -exponent), dtype=np.float64)
    x = np.column_stack([np.ones(len(y)), np.asarray(beside, dtype=np.float64)])
    n, unknowns = x.shape
    if n < unknowns:
        raise ValueError(f"{n} runs cannot show {unknowns} unknowns (time alone, and {unknowns - 1} shares)")
    if np.linalg.matrix_rank(x) < unknowns:
        raise ValueError("the runs do not distinguish the shares: what ran beside must vary by itself")
    sizes_differ = ValueError("what ran beside is of too different sizes to show the shares")
    weight = 1.0 / y
    for _ in range(_ROUNDS):
        a, b = x * weight[:, None], y * weight
        try:
            inverse = np.asarray(np.linalg.inv(a.T @ a), dtype=np.float64)
        except np.linalg.LinAlgError:
            raise sizes_differ from None
        beta = inverse @ (a.T @ b)
        fitted = x @ beta
        if not np.isfinite(beta).all() or not np.isfinite(inverse).all():
            raise sizes_differ
        if beta[0] <= 0 or (fitted <= 0).any():
            raise ValueError("the runs give no time alone above 0: they do not follow the model")
        weight = 1.0 / fitted
    freedom = n - unknowns
    if not freedom or float(np.abs(b - a @ beta).max()) <= _ROUNDING:
        tau = Estimate(float(np.ldexp(beta[0], exponent)))
        return Profile(tau, tuple(Estimate(float(value / beta[0])) for value in beta[1:]), n)
    variance = float(((b - a @ beta) ** 2).sum() / freedom)
    reach = float(student.ppf(0.5 + _NOMINAL / 2, freedom))
    half = reach * float(np.sqrt(variance * inverse[0, 0]))
    tau = Estimate(*(float(np.ldexp(value, exponent)) for value in (beta[0], beta[0] - half, beta[0] + half)))
    return Profile(tau, tuple(_ratio(beta, variance * inverse, k, reach) for k in range(1, unknowns)), n)


def mean_shares(samples: npt.ArrayLike, group: npt.ArrayLike | None = None) -> Profile:
    """Average measured shares of time, 0 to 1, shape (samples, resources), of windows of one length.

    `group`, such as the samples' VM, shape (samples,): groups vary independently, and each counts alike. None: every
    sample is independent. Raises ValueError if there are no samples.
    """
    table = np.asarray(samples, dtype=np.float64)
    if not len(table):
        raise ValueError("no samples")
    if group is not None:
        _, at = np.unique(np.asarray(group), return_inverse=True)
        sums = np.zeros((int(at.max()) + 1, table.shape[1]))
        np.add.at(sums, at, table)
        table = sums / np.bincount(at)[:, None]
    n, mean = len(table), table.mean(axis=0)
    if n == 1:
        return Profile(None, tuple(map(Estimate, mean.tolist())), n)
    half = student.ppf(0.5 + _NOMINAL / 2, n - 1) * table.std(axis=0, ddof=1) / np.sqrt(n)
    varies = np.ptp(table, axis=0) > _ROUNDING
    spans = zip(mean.tolist(), (mean - half).tolist(), (mean + half).tolist(), varies, strict=True)
    return Profile(None, tuple(Estimate(m, low, high) if known else Estimate(m) for m, low, high, known in spans), n)


def _ratio(beta: Floats, covariance: Floats, k: int, reach: float) -> Estimate:
    """beta_k / beta_0 with Fieller's interval."""
    value = float(beta[k] / beta[0])
    square = reach**2 * covariance
    a, b, c = (float(beta[i] * beta[j] - square[i, j]) for i, j in ((0, 0), (0, k), (k, k)))
    if a <= 0:
        return Estimate(value)  # the time alone may be 0
    half = max(b * b - a * c, 0.0) ** 0.5
    return Estimate(value, (b - half) / a, (b + half) / a)
