"""Loading vectors fitted to measured slow-downs of pairs: one workload beside another, against alone.

Two forms, both with loadings per workload and capacities per platform, fitted together by L-BFGS on the mean of
|predicted - measured| / measured (smoothed near 0), by which they are judged:

    plain:     lambda = 1 + sum_k p_wk p_ik / c_pk,  p >= 0, sum_k p_k <= 1, c >= 1; so 1 <= lambda <= 2
    extended:  lambda = m_p n_w (1 + sum_k a_wk b_ik / c_pk),  all > 0

The plain one is D-Factor (`central.models.dfactor`) with platforms: their units c, and how fast their resources are, as
a job's shares of time are t_wk g_pk over their sum with the idle one. In the extended one (whitepanda's) a workload's
suffering (a) and its effect (b) differ, shares need not sum to 1, and the factors of platform and workload do not
depend on the neighbour; so it reaches beyond 2, and below 1, where the plain one cannot.
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
# The plain form's resources, without names as only their products matter, and its penalty of squared parameters.
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
    """D-Factor's loadings."""

    time: Floats  # logarithms of the time of each at each resource, the last idle; (workloads, resources + 1)
    speed: Floats  # added to them by a platform; (platforms, resources + 1)
    per_unit: Floats  # 1 / c, (platforms, resources)

    def shares(self, workload: Ints, platform: Ints) -> Floats:
        """Loading vectors of workloads on platforms, without the idle share; shape (rows, resources)."""
        return _shares(self.time[workload] + self.speed[platform])[:, :-1]

    def predict(self, pairs: Pairs) -> Floats:
        """Predict the slow-down of each pair, 1 to 2."""
        own, other = (self.shares(each, pairs.platform) for each in (pairs.victim, pairs.beside))
        return 1.0 + (own * other * self.per_unit[pairs.platform]).sum(axis=1)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class ExtendedLoadings:
    """whitepanda's loadings: `suffers`, `causes` (workloads, resources); `per_unit`; factors."""

    suffers: Floats
    causes: Floats
    per_unit: Floats
    platform_factor: Floats
    workload_factor: Floats

    def products_and_factor(self, pairs: Pairs) -> tuple[Floats, Floats]:
        """Return a_wk b_ik / c_pk and m_p n_w of each pair."""
        products = self.suffers[pairs.victim] * self.causes[pairs.beside] * self.per_unit[pairs.platform]
        return products, self.platform_factor[pairs.platform] * self.workload_factor[pairs.victim]

    def predict(self, pairs: Pairs) -> Floats:
        """Predict the slow-down of each pair."""
        products, factor = self.products_and_factor(pairs)
        return factor * (1.0 + products.sum(axis=1))  # type: ignore[no-any-return]


def fit_plain(pairs: Pairs, workloads: int, platforms: int, *, speeds: bool = True, seed: int = 0) -> PlainLoadings:
    """Fit D-Factor's loading vectors, and the units and speeds of the platforms' resources.

    Indices in `pairs` are below `workloads` and `platforms`; a workload without pairs gets a loading near the middle.
    `speeds`: shares of time shift from platform to platform, with how fast its resources are. `seed`: of the search's
    begin. Raises ValueError if there are no pairs, or a slow-down is not above 0.
    """
    by_victim, by_beside, by_platform = _incidence(pairs, workloads, platforms)
    rng = np.random.default_rng(seed)
    ends = np.cumsum([workloads * (_RESOURCES + 1), platforms * _RESOURCES])

    def parts(x: Floats) -> tuple[Floats, Floats, Floats]:
        time, per_unit, speed = np.split(x, ends)
        speed = speed.reshape(platforms, -1) if speeds else np.zeros((platforms, _RESOURCES + 1))
        return time.reshape(workloads, -1), 1.0 / (1.0 + np.exp(-per_unit.reshape(platforms, -1))), speed

    def loss(x: Floats) -> tuple[float, Floats]:
        time, per_unit, speed = parts(x)
        own = _shares(time[pairs.victim] + speed[pairs.platform])
        other = _shares(time[pairs.beside] + speed[pairs.platform])
        # The idle share contends with nothing.
        unit = np.append(per_unit, np.zeros((platforms, 1)), axis=1)[pairs.platform]
        value, slope = _relative_error(1.0 + (own * other * unit).sum(axis=1), pairs.slowdown)
        both = slope[:, None] * own * other * unit
        by_own, by_other = (both - share * both.sum(axis=1, keepdims=True) for share in (own, other))
        by_unit = by_platform @ (slope[:, None] * own * other)[:, :_RESOURCES]
        slopes = [by_victim @ by_own + by_beside @ by_other, by_unit * per_unit * (1.0 - per_unit)]
        slopes += [by_platform @ (by_own + by_other)] if speeds else []
        gradient = np.concatenate([each.ravel() for each in slopes])
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
    """Fit the extended form; arguments and errors as in `fit_plain`.

    `resources`: how many, without names. `penalty`: of the squared logarithms of loadings; a tenth for capacities, 1
    for factors.
    """
    by_victim, by_beside, by_platform = _incidence(pairs, workloads, platforms)
    rng = np.random.default_rng(seed)
    ends = np.cumsum([workloads * resources, workloads * resources, platforms * resources, platforms])
    weights = np.repeat([penalty, penalty, penalty / 10, 1.0, 1.0], np.diff([0, *ends, int(ends[-1]) + workloads]))

    def loadings(x: Floats) -> ExtendedLoadings:
        suffers, causes, per_unit, *factors = np.split(x, ends)
        per_unit = per_unit.reshape(platforms, -1) + _FIRST_LOG_SHARE
        logs = (suffers.reshape(workloads, -1), causes.reshape(workloads, -1), per_unit, *factors)
        return ExtendedLoadings(*map(np.exp, logs))

    def loss(x: Floats) -> tuple[float, Floats]:
        products, factor = loadings(x).products_and_factor(pairs)
        predicted = factor * (1.0 + products.sum(axis=1))
        value, slope = _relative_error(predicted, pairs.slowdown)
        # Every parameter is a logarithm, so derivatives are the parts themselves.
        inner, outer = (slope * factor)[:, None] * products, slope * predicted
        slopes = [(sums @ inner).ravel() for sums in (by_victim, by_beside, by_platform)]
        gradient = np.concatenate([*slopes, by_platform @ outer, by_victim @ outer])
        return value + float(weights @ x**2), gradient + 2 * weights * x

    first = 0.3 * rng.normal(size=len(weights))
    first[ends[2] :] = 0.0
    return loadings(_solve(loss, first))


def _incidence(pairs: Pairs, workloads: int, platforms: int) -> list[Any]:
    """Return sparse matrices that sum rows by victim, by the workload beside it, and by platform."""
    n = len(pairs.slowdown)
    if not n:
        raise ValueError("no pairs to fit loading vectors to")
    if not (pairs.slowdown > 0).all():
        raise ValueError(f"slow-downs must be above 0 (value {pairs.slowdown.min():g})")
    sizes = ((pairs.victim, workloads), (pairs.beside, workloads), (pairs.platform, platforms))
    return [scipy.sparse.csr_array((np.ones(n), (at, np.arange(n))), shape=(size, n)) for at, size in sizes]


def _relative_error(predicted: Floats, measured: Floats) -> tuple[float, Floats]:
    """Return the sum of smoothed |predicted - measured| / measured, and its derivative by the predictions."""
    error = (predicted - measured) / measured
    size = np.sqrt(error**2 + _SMOOTH**2)
    return float(size.sum()) - _SMOOTH * len(error), error / size / measured


def _solve(loss: Callable[[Floats], tuple[float, Floats]], first: Floats) -> Floats:
    options = {"maxiter": _MAX_STEPS, "maxcor": 20}
    return minimize(loss, first, jac=True, method="L-BFGS-B", options=options).x  # type: ignore[no-any-return]
