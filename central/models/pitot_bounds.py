"""Bounds of runtimes: conformal quantiles of residuals that are scaled by how hard a row is, per number of co-runners.

Section 3.5 of the paper calibrates quantile heads and takes, per epsilon and pool, the one with the least margin. Here
they are scales exp(p * D + q * log S + r * log G) of the residual, for several (p, q, r), with D the additive log
difficulty of workload, platform and interferers from the training's residuals, S the disagreement of the members, and G
by how much quantile heads exceed the prediction. They made smaller margins than one scale for all rows
(docs/studies/pitot.md).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from central.models.groups import Floats
from central.models.pitot import ALONE, Ids, Rows

Exponents = tuple[float, float, float]

#: One scale for all rows.
PLAIN: Exponents = (0.0, 0.0, 0.0)
#: Exponents (of difficulty, of disagreement, of the gap to the quantile heads).
HEADS: tuple[Exponents, ...] = (
    PLAIN,
    *((p, q, r) for p in (0.25, 0.5, 0.75, 1.0) for q in (0.0, 0.25, 0.5) for r in (0.0, 0.25, 0.5)),
)
#: Least deviation that members are taken to have: of the logarithm, 0.2 %.
_FLOOR = 0.002
#: Smaller residuals (0.3 %) are treated as this.
_SMALL = 0.003
#: A workload with this many rows keeps half of the difficulty that they show.
_SHRINK = 10.0
_ITERATIONS = 15


@dataclass(frozen=True, slots=True, eq=False)
class Difficulty:
    """Log difficulty of workloads, platforms and interferers: shapes (workloads,), (platforms,), (workloads,)."""

    workload: Floats
    platform: Floats
    interferer: Floats

    @classmethod
    def fit(cls, rows: Rows, residuals: Floats, workloads: int, platforms: int) -> "Difficulty":
        """Fit an additive model to the logarithms of absolute residuals (n,), each number of co-runners by itself."""
        size = np.log(np.abs(residuals) + _SMALL)
        counts = rows.co_runners
        for count in np.unique(counts):
            size[counts == count] -= size[counts == count].mean()
        i, j, k = (rows.workload, rows.platform, np.where(rows.interferers == ALONE, workloads, rows.interferers))
        a, b, c = np.zeros(workloads), np.zeros(platforms), np.zeros(workloads + 1)
        in_a = np.bincount(i, minlength=workloads) + _SHRINK
        in_b = np.bincount(j, minlength=platforms) + _SHRINK
        in_c = np.bincount(k.ravel(), minlength=workloads + 1) + _SHRINK
        for _ in range(_ITERATIONS):
            beside = c[k].sum(axis=1)
            a = np.bincount(i, size - b[j] - beside, workloads) / in_a
            b = np.bincount(j, size - a[i] - beside, platforms) / in_b
            left = size - a[i] - b[j]
            part = (left - c[k].sum(axis=1))[:, None] + c[k]
            c = np.bincount(k.ravel(), part.ravel(), workloads + 1) / in_c
            c[workloads] = 0.0
        return cls(a, b, c[:workloads])

    def of(self, rows: Rows) -> Floats:
        """Return the log difficulty of rows, shape (n,)."""
        beside = np.where(rows.interferers == ALONE, 0.0, self.interferer[rows.interferers])
        total: Floats = self.workload[rows.workload] + self.platform[rows.platform] + beside.sum(axis=1)
        return total


def disagreement(log_us: NDArray[np.floating]) -> Floats:
    """Return the log of the members' deviation: (members, n) -> (n,)."""
    return np.asarray(np.log(np.asarray(log_us, dtype=np.float64).std(axis=0) + _FLOOR), dtype=np.float64)


def gap(quantiles: NDArray[np.floating], log_us: NDArray[np.floating]) -> Floats:
    """Return the log of how far the mean of the quantile heads (heads, n) is above predictions (n,); none: 0."""
    if not len(quantiles):
        return np.zeros(len(log_us))
    found: Floats = np.log(np.maximum(np.asarray(quantiles, dtype=np.float64).mean(axis=0) - log_us, _SMALL))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Scatter:
    """Measures of how far a row may be off, each a logarithm of shape (n,): see the module."""

    difficulty: Floats
    disagreement: Floats
    gap: Floats

    def take(self, rows: Ids | NDArray[np.bool_]) -> "Scatter":
        """Return that of some of the rows."""
        return Scatter(self.difficulty[rows], self.disagreement[rows], self.gap[rows])

    def scale(self, exponents: Exponents) -> Floats:
        """Return the scale of residuals, shape (n,)."""
        p, q, r = exponents
        return np.exp(p * self.difficulty + q * self.disagreement + r * self.gap)


def margin(bound: Floats, log_us: Floats) -> float:
    """Over-provisioning margin of equation 11: the mean of max(bound - t, 0) / t; both as logarithms, shape (n,)."""
    return float(np.maximum(np.expm1(bound - log_us), 0.0).mean())


@dataclass(frozen=True, slots=True)
class Head:
    """A chosen head: bound = log runtime + factor * scale."""

    exponents: Exponents
    factor: float
    margin: float

    def bound(self, log_us: Floats, scatter: Scatter) -> Floats:
        """Return bounds, all shapes (n,), logarithms."""
        return log_us + self.factor * scatter.scale(self.exponents)


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Calibration rows with one number of co-runners: residuals of shape (n,)."""

    residuals: Floats
    scatter: Scatter

    @property
    def least_epsilon(self) -> float:
        """The smallest share of runs above the bound that this number of rows can promise."""
        return 1.0 / (len(self.residuals) + 1)

    def head(self, epsilon: float, heads: Sequence[Exponents] = HEADS) -> Head:
        """Choose the head with the least margin on the calibration rows, calibrated for `epsilon`.

        Raises ValueError if there are too few rows for this epsilon.
        """
        count = len(self.residuals)
        # One part in 1e9 of a row: (1 - 0.1) * 10 is 9, not 9.000000000000002.
        rank = math.ceil((count + 1) * (1.0 - epsilon) - 1e-9)
        if rank > count:
            raise ValueError(
                f"{count} calibration rows cannot bound epsilon {epsilon:g}, only {self.least_epsilon:.3g} or more"
            )
        found = []
        for exponents in heads:
            scale = self.scatter.scale(exponents)
            factor = float(np.partition(self.residuals / scale, rank - 1)[rank - 1])
            found.append(Head(exponents, factor, margin(factor * scale, self.residuals)))
        return min(found, key=lambda head: head.margin)


def pools(rows: Rows, residuals: Floats, scatter: Scatter) -> Mapping[int, Pool]:
    """Make a pool per number of co-runners that occurs."""
    counts = rows.co_runners
    return {int(count): Pool(residuals[counts == count], scatter.take(counts == count)) for count in np.unique(counts)}
