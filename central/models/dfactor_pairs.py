"""Loading vectors fitted to measured slow-downs of pairs: one workload beside another, against alone.

Two forms, both with loadings per workload and capacities per platform, fitted together by L-BFGS on the mean of
|predicted - measured| / measured (smoothed near 0), which is what they are judged by:

    plain:     lambda = 1 + sum_k p_wk p_ik / c_pk,  p >= 0, sum_k p_k <= 1, c >= 1; so 1 <= lambda <= 2
    extended:  lambda = m_p n_w (1 + sum_k a_wk b_ik / c_pk),  all > 0

The plain one is D-Factor (`central.models.dfactor`) with platforms: their units c, and how fast their resources are, as
a job's shares of time are t_wk g_pk over their sum with the idle one. In the extended one (whitepanda's) a workload's
suffering (a) and its effect (b) differ, shares need not sum to 1, and a factor per platform and per workload stands for
what does not depend on the neighbour; so it reaches beyond 2, and below 1, where the plain one cannot.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from scipy.optimize import minimize

from central.models.groups import Floats, Ints

# Relative errors below this count by their square: the absolute value's kink would stop the solver early.
_SMOOTH = 0.03
_MAX_STEPS = 400
# Of the plain form: resources, without names as only their products matter, and the penalty of squared parameters.
_RESOURCES, _PENALTY = 2, 1e-2
# Where the logarithms of 1 / c begin; a few products of it together make the usual slow-downs.
_FIRST_LOG_SHARE = -1.5


@dataclass(frozen=True, slots=True)
class Pairs:
    """Measured pairs, as columns of the same length. `slowdown` is time beside / time alone, above 0."""

    victim: Ints
    beside: Ints
    platform: Ints
    slowdown: Floats

    def where(self, chosen: Any) -> "Pairs":
        """Return the rows of a mask or of indices."""
        return Pairs(self.victim[chosen], self.beside[chosen], self.platform[chosen], self.slowdown[chosen])


@dataclass(frozen=True, slots=True)
class PlainLoadings:
    """D-Factor's.

    `time` (workloads, resources + 1): logarithms of the time that each spends at each resource, the last idle; `speed`
    (platforms, resources + 1) what a platform adds to them; `per_unit` = 1 / c (platforms, resources).
    """

    time: Floats
    speed: Floats
    per_unit: Floats

    def shares(self, workload: Ints, platform: Ints) -> Floats:
        """Loading vectors of workloads on platforms, without the idle share; shape (rows, resources)."""
        return _shares(self.time[workload] + self.speed[platform])[:, :-1]

    def predict(self, pairs: Pairs) -> Floats:
        """Predict the slow-down of each pair, 1 to 2."""
        own, other = (self.shares(each, pairs.platform) for each in (pairs.victim, pairs.beside))
        return 1.0 + (own * other * self.per_unit[pairs.platform]).sum(axis=1)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class ExtendedLoadings:
    """whitepanda's. `suffers`, `causes` (workloads, resources); `per_unit`; factors of platforms and of workloads."""

    suffers: Floats
    causes: Floats
    per_unit: Floats
    platform_factor: Floats
    workload_factor: Floats

    def predict(self, pairs: Pairs) -> Floats:
        """Predict the slow-down of each pair."""
        products = self.suffers[pairs.victim] * self.causes[pairs.beside] * self.per_unit[pairs.platform]
        factor = self.platform_factor[pairs.platform] * self.workload_factor[pairs.victim]
        return factor * (1.0 + products.sum(axis=1))  # type: ignore[no-any-return]


def fit_plain(pairs: Pairs, workloads: int, platforms: int, *, speeds: bool = True, seed: int = 0) -> PlainLoadings:
    """Fit D-Factor's loading vectors, and of the platforms the units and speeds of resources.

    Raises ValueError if there are no pairs, or a slow-down is not above 0.

    Args:
        pairs: what was measured; indices below `workloads` and `platforms`.
        workloads: how many there are; one without pairs gets a loading near the middle.
        platforms: the same.
        speeds: whether shares of time shift from platform to platform, with how fast its resources are.
        seed: of where the search begins.
    """
    _check(pairs)
    rng = np.random.default_rng(seed)
    rows = _Incidence(pairs, workloads, platforms)
    ends = np.cumsum([workloads * (_RESOURCES + 1), platforms * _RESOURCES])

    def parts(x: Floats) -> tuple[Floats, Floats, Floats]:
        time, per_unit, speed = np.split(x, ends)
        speed = speed.reshape(platforms, -1) if speeds else np.zeros((platforms, _RESOURCES + 1))
        return time.reshape(workloads, -1), 1.0 / (1.0 + np.exp(-per_unit.reshape(platforms, -1))), speed

    def loss(x: Floats) -> tuple[float, Floats]:
        time, per_unit, speed = parts(x)
        own = _shares(time[pairs.victim] + speed[pairs.platform])
        other = _shares(time[pairs.beside] + speed[pairs.platform])
        # The idle share meets nobody.
        unit = np.append(per_unit, np.zeros((platforms, 1)), axis=1)[pairs.platform]
        value, slope = _relative_error(1.0 + (own * other * unit).sum(axis=1), pairs.slowdown)
        both = slope[:, None] * own * other * unit
        by_own = both - own * both.sum(axis=1, keepdims=True)
        by_other = both - other * both.sum(axis=1, keepdims=True)
        by_unit = rows.platform @ (slope[:, None] * own * other)[:, :_RESOURCES]
        by_speed = rows.platform @ (by_own + by_other)
        gradient = np.concatenate([
            (rows.victim @ by_own + rows.beside @ by_other).ravel(),
            (by_unit * per_unit * (1.0 - per_unit)).ravel(),
            by_speed.ravel() if speeds else np.zeros(0),
        ])  # fmt: skip
        return value + _PENALTY * float(x @ x), gradient + 2 * _PENALTY * x

    first = rng.normal(size=int(ends[-1]) + speeds * platforms * (_RESOURCES + 1))
    first[: ends[0]] *= 0.5
    first[ends[1] :] *= 0.3
    time, per_unit, speed = parts(_solve(loss, first))
    return PlainLoadings(time, speed, per_unit)


def _shares(logs: Floats) -> Floats:
    odds = np.exp(logs - logs.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]


def fit_extended(
    pairs: Pairs, workloads: int, platforms: int, *, resources: int = 4, penalty: float = 0.05, seed: int = 0
) -> ExtendedLoadings:
    """Fit the extended form; arguments and errors as of `fit_plain`.

    `resources`: how many, without names. `penalty`: of the squared logarithms of loadings; a tenth for capacities, 1
    for factors.
    """
    _check(pairs)
    rng = np.random.default_rng(seed)
    rows = _Incidence(pairs, workloads, platforms)
    ends = np.cumsum([workloads * resources, workloads * resources, platforms * resources, platforms])
    weights = np.repeat([penalty, penalty, penalty / 10, 1.0, 1.0], np.diff([0, *ends, int(ends[-1]) + workloads]))

    def parts(x: Floats) -> list[Floats]:
        logs = np.split(x, ends)
        return [
            np.exp(logs[0].reshape(workloads, -1)),
            np.exp(logs[1].reshape(workloads, -1)),
            np.exp(logs[2].reshape(platforms, -1) + _FIRST_LOG_SHARE),
            np.exp(logs[3]),
            np.exp(logs[4]),
        ]

    def loss(x: Floats) -> tuple[float, Floats]:
        suffers, causes, per_unit, by_platform, by_workload = parts(x)
        products = suffers[pairs.victim] * causes[pairs.beside] * per_unit[pairs.platform]
        factor = by_platform[pairs.platform] * by_workload[pairs.victim]
        predicted = factor * (1.0 + products.sum(axis=1))
        value, slope = _relative_error(predicted, pairs.slowdown)
        # Every parameter is a logarithm, so derivatives are the parts themselves.
        inner, outer = (slope * factor)[:, None] * products, slope * predicted
        gradient = np.concatenate([
            (rows.victim @ inner).ravel(),
            (rows.beside @ inner).ravel(),
            (rows.platform @ inner).ravel(),
            rows.platform @ outer,
            rows.victim @ outer,
        ])  # fmt: skip
        return value + float(weights @ x**2), gradient + 2 * weights * x

    first = 0.3 * rng.normal(size=len(weights))
    first[ends[2] :] = 0.0
    return ExtendedLoadings(*parts(_solve(loss, first)))


class _Incidence:
    """Sums over the rows of each workload and platform, as sparse matrices."""

    def __init__(self, pairs: Pairs, workloads: int, platforms: int) -> None:
        n = len(pairs.slowdown)

        def matrix(index: Ints, size: int) -> Any:
            return scipy.sparse.csr_array((np.ones(n), (index, np.arange(n))), shape=(size, n))

        self.victim = matrix(pairs.victim, workloads)
        self.beside = matrix(pairs.beside, workloads)
        self.platform = matrix(pairs.platform, platforms)


def _check(pairs: Pairs) -> None:
    if not len(pairs.slowdown):
        raise ValueError("no pairs to fit loading vectors to")
    if not (pairs.slowdown > 0).all():
        raise ValueError(f"slow-downs must be above 0 (value {pairs.slowdown.min():g})")


def _relative_error(predicted: Floats, measured: Floats) -> tuple[float, Floats]:
    """Return the sum of smoothed |predicted - measured| / measured, and its derivative by the predictions."""
    error = (predicted - measured) / measured
    size = np.sqrt(error**2 + _SMOOTH**2)
    return float(size.sum()) - _SMOOTH * len(error), error / size / measured


def _solve(loss: Callable[[Floats], tuple[float, Floats]], first: Floats) -> Floats:
    options = {"maxiter": _MAX_STEPS, "maxcor": 20}
    return minimize(loss, first, jac=True, method="L-BFGS-B", options=options).x  # type: ignore[no-any-return]
