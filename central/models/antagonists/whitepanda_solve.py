"""Solving `central.models.antagonists.whitepanda`'s regressions together: weights, ridge, shrinkage. Pure numpy.

Each level is a least squares problem in the same coefficients, given by its normal equations G A = b. They are
added, each weighed by the inverse of its residual variance relative to the first. The ridge adds 10 slots of usual
usage without effect; then each estimate is shrunk by its own evidence.
"""

from dataclasses import dataclass

import numpy as np

from central.models.groups import Floats, Ints, sums

#: Slots of usual usage without effect that the ridge adds.
RIDGE_SLOTS = 10.0
#: An estimate of t standard errors is multiplied by t^2 / (t^2 + this).
EVIDENCE = 10.0
#: Largest weight of the other levels: quasi-differences leave this share of a mean, (1 - 0.6)^2.
MAX_WEIGHT = 0.16
#: Variance of an estimate relative to what independent rows would give it.
DESIGN_EFFECT = 3.0
#: Up to this number of jobs the normal equations are one dense matrix; beyond, conjugate gradients.
MAX_DENSE_JOBS = 5000
#: In `are_reversed` the evidence of |t| above this counts, of which this share, and this much, has to be negative.
_SURE_T = 3.0
_REVERSED_SHARE = 0.8
_REVERSED_EVIDENCE = 100.0
_ROUNDS = 2
_TOLERANCE = 1e-10
_MAX_ITERATIONS = 2000

#: Entries (row, column, value) and the number of rows of a sparse matrix X, standing for X'X.
Rows = tuple[Ints, Ints, Floats, int]


@dataclass(frozen=True, slots=True)
class Level:
    """Normal equations of one regression: G = pairs + more' more - less' less, b, y'y and degrees of freedom.

    `pairs` has the upper triangle (i <= j, value). G is positive semidefinite.
    """

    jobs: int
    b: Floats
    yy: float
    freedom: float
    pairs: tuple[Ints, Ints, Floats] | None = None
    more: Rows | None = None
    less: Rows | None = None

    def times(self, a: Floats) -> Floats:
        """Return G a."""
        out = np.zeros(self.jobs)
        if self.pairs:
            i, j, value = self.pairs
            off = i != j
            out += sums(i, value * a[j], self.jobs)
            out += sums(j[off], value[off] * a[i[off]], self.jobs)
        for (m, k, value, count), sign in self._signed():
            out += sign * sums(k, value * sums(m, value * a[k], count)[m], self.jobs)
        return out

    def diagonal(self) -> Floats:
        """Return the diagonal of G."""
        out = np.zeros(self.jobs)
        if self.pairs:
            i, j, value = self.pairs
            out += sums(i[i == j], value[i == j], self.jobs)
        for (_, k, value, _), sign in self._signed():
            out += sign * sums(k, value**2, self.jobs)
        return out

    def dense(self) -> Floats:
        """Return G."""
        out = np.zeros((self.jobs, self.jobs))
        if self.pairs:
            i, j, value = self.pairs
            out[i, j] = value
            out[j, i] = value
        for rows, sign in self._signed():
            out += sign * _squared(rows, self.jobs)
        return out

    def _signed(self) -> list[tuple[Rows, float]]:
        return [(rows, sign) for rows, sign in ((self.more, 1.0), (self.less, -1.0)) if rows]

    def variance(self, a: Floats) -> float:
        """Residual variance of y under coefficients."""
        rss = self.yy - 2 * float(a @ self.b) + float(a @ self.times(a))
        return max(rss, 0.0) / self.freedom


def solve(levels: list[Level], usual_squared: Floats) -> tuple[Floats, Floats, Floats]:
    """Fit the levels' common coefficients; return per job the shrunk estimate, the estimate, and its standard error.

    The others are weighed against the first level. `usual_squared`: mean square of each job's usage, above 0.
    """
    ridge = RIDGE_SLOTS * usual_squared
    if not len(ridge):
        return np.empty(0), np.empty(0), np.empty(0)
    weights = [1.0] + [0.0] * (len(levels) - 1)
    is_dense = len(ridge) <= MAX_DENSE_JOBS
    grams = [level.dense() for level in levels] if is_dense else []
    estimate: Floats = np.zeros(len(ridge))
    inverse: Floats = np.zeros(len(ridge))
    for round_ in range(_ROUNDS + 1):
        is_last = round_ == _ROUNDS
        b = sum((w * level.b for w, level in zip(weights, levels, strict=True)), np.zeros(len(ridge)))
        if is_dense:
            factor = _Factor(_weighed(weights, grams, ridge))
            estimate = factor.solved(b)
            inverse = factor.inverse_diagonal() if is_last else inverse
        else:
            estimate, inverse = _iterated(levels, weights, ridge, b, estimate)
        variances = [level.variance(estimate) for level in levels]
        if not is_last:
            weights = [1.0] + [_weight(variances[0], other) for other in variances[1:]]
    error = np.sqrt(inverse * variances[0] * DESIGN_EFFECT)
    return _shrunk(estimate, error), estimate, error


def are_reversed(estimate: Floats, error: Floats) -> bool:
    """Return whether jobs seem to help each other: then their usage follows contention, and does not cause it.

    A job does not make others faster. Where nearly all certain estimates are negative (sum of t^2 - 9 over |t| > 3),
    every job uses less while all are slowed down, by throttling or because they wait. Then differences in time show
    nothing.
    """
    t = np.divide(estimate, error, out=np.zeros_like(estimate), where=error > 0)
    evidence = np.maximum(t**2 - _SURE_T**2, 0.0)
    negative = float(evidence[t < 0].sum())
    return negative >= max(_REVERSED_EVIDENCE, _REVERSED_SHARE * float(evidence.sum()))


def alone(b: Floats, diagonal: Floats, yy: float, freedom: float) -> tuple[Floats, Floats, Floats]:
    """Fit each job's coefficient as if no other job were there; result as of `solve`.

    `b` and `diagonal` are per job the sums of usage * y and of usage^2, above 0; `yy` the sum of y^2; `freedom` the
    number of rows that count as independent.
    """
    estimate = b / diagonal
    rss = np.maximum(yy - b * estimate, 0.0)
    error = np.sqrt(rss / max(freedom, 1.0) / diagonal)
    return _shrunk(estimate, error), estimate, error


def _shrunk(estimate: Floats, error: Floats) -> Floats:
    """Shrink each estimate by its own evidence."""
    t_squared = np.divide(estimate, error, out=np.full_like(estimate, np.inf), where=error > 0) ** 2
    finite = np.where(np.isinf(t_squared), 0, t_squared)
    return estimate * np.where(np.isinf(t_squared), 1.0, finite / (finite + EVIDENCE))


def _weight(first: float, other: float) -> float:
    return min(MAX_WEIGHT, first / other) if other > 0 else MAX_WEIGHT


def _weighed(weights: list[float], grams: list[Floats], ridge: Floats) -> Floats:
    gram = weights[0] * grams[0]
    for weight, each in zip(weights[1:], grams[1:], strict=True):
        if weight:
            gram += weight * each
    gram[np.diag_indices_from(gram)] += ridge
    return gram


def _squared(rows: Rows, jobs: int) -> Floats:
    """Return X'X of few entries a row, or of one row."""
    from scipy.sparse import csr_array  # noqa: PLC0415 - takes a quarter of a second, and only builds need it

    m, k, value, count = rows
    if count == 1:
        one = np.zeros(jobs)
        np.add.at(one, k, value)
        return np.outer(one, one)
    x = csr_array((value, (m, k)), shape=(count, jobs))
    return np.asarray((x.T @ x).toarray(), dtype=np.float64)


class _Factor:
    """Cholesky's factor of a positive definite matrix, scaled to a diagonal of ones first."""

    def __init__(self, gram: Floats) -> None:
        from scipy.linalg import cho_factor  # noqa: PLC0415 - takes a quarter of a second, and only builds need it

        self._scale = 1 / np.sqrt(np.diag(gram))
        gram *= self._scale[:, None]
        gram *= self._scale
        self._factor = cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)

    def solved(self, b: Floats) -> Floats:
        """Return x of G x = b."""
        from scipy.linalg import cho_solve  # noqa: PLC0415 - as above

        return np.asarray(self._scale * cho_solve(self._factor, self._scale * b, check_finite=False), dtype=np.float64)

    def inverse_diagonal(self) -> Floats:
        """Return the diagonal of the inverse. The factor is used up."""
        from scipy.linalg.lapack import dpotri  # noqa: PLC0415 - as above

        inverse, _ = dpotri(self._factor[0], lower=1, overwrite_c=1)
        return np.asarray(self._scale**2 * np.diag(inverse), dtype=np.float64)


def _iterated(
    levels: list[Level], weights: list[float], ridge: Floats, b: Floats, start: Floats
) -> tuple[Floats, Floats]:
    """Conjugate gradients, preconditioned by the diagonal, whose inverse stands for the inverse's diagonal."""
    used = [(w, level) for w, level in zip(weights, levels, strict=True) if w > 0]
    diagonal = ridge + sum((w * level.diagonal() for w, level in used), np.zeros(len(ridge)))

    def times(a: Floats) -> Floats:
        return ridge * a + sum((w * level.times(a) for w, level in used), np.zeros(len(ridge)))

    a = start.copy()
    residual = b - times(a)
    step = direction = residual / diagonal
    before = float(residual @ step)
    goal = _TOLERANCE**2 * float(b @ (b / diagonal))
    for _ in range(_MAX_ITERATIONS):
        if before <= goal:
            break
        moved = times(direction)
        length = before / float(direction @ moved)
        a = a + length * direction
        residual = residual - length * moved
        step = residual / diagonal
        now = float(residual @ step)
        direction = step + now / before * direction
        before = now
    return a, 1 / diagonal
