"""WSMeter: did the fleet become faster? The weighted metric of jobs, with intervals by machines. Pure numpy.

Source: "WSMeter: A Performance Evaluation Methodology for Google's Production Warehouse-Scale Computers" (ASPLOS 2018),
sections 3, 4.3 and 5. Fleet performance is sum_k w_k mean_k over the jobs that both sides have; w_k are their shares of
quota, normalised to sum to 1.

The paper's variance, sum_k w_k^2 s_k^2 / N_k, takes instances as independent. Those of one machine are not: they
share its caches, its power and its clock. Its intervals cover about 90 % at nominal 95 %, and it widens them by 20 %.
Here the machine is the unit that was drawn, so the variance is the sum of squares of what each machine adds:

    z_m = sum_k (a_k / N_k) (sum of residuals of job k on machine m) / sqrt(1 - r_mk / N_k)
    variance = sum_m z_m^2

for any estimate sum_k a_k mean_k, where machine m has r_mk of job k's N_k instances. It is the cluster-robust
("sandwich") variance with the CR2 correction, which for means of jobs has this closed form and makes it unbiased where
instances are independent. A machine that is on both sides is one unit, so its covariance between them counts too.
Quantiles are Student's, with Satterthwaite's degrees of freedom under independence (Bell and McCaffrey, 2002):
tr(B)^2 / tr(B^2), B the covariance of the z_m. No factor is tuned.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import scipy.sparse
from scipy.special import ndtri, stdtr, stdtrit

from central.models.groups import Column, Floats, Ints, group, sums

#: Fewer instances of a job say too little about its mean (the paper's section 5.2.1).
MIN_INSTANCES = 4
_MIN_MACHINES = 2  # of a job: one alone has no variance


class TooLittleCovered(ValueError):  # noqa: N818 - the condition is the name
    """The jobs that can be compared (`jobs`) have too small a share of the weight (`coverage`)."""

    def __init__(self, coverage: float, jobs: int) -> None:
        super().__init__(f"{jobs} jobs cover {coverage:.1%}")
        self.coverage = coverage
        self.jobs = jobs


@dataclass(frozen=True, slots=True)
class Observed:
    """One side: an instance per row. Shapes (rows,)."""

    machine: Column  # where it ran
    job: Column  # whose instance it is
    value: Floats  # its metric


@dataclass(frozen=True, slots=True)
class Shares:
    """Weights of jobs, > 0, in any unit; distinct names. Shapes (jobs,)."""

    job: Column
    weight: Floats


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float
    standard_error: float
    degrees: float  # degrees of freedom of Student's quantile; infinite for the normal one

    @property
    def margin(self) -> float:
        """Half of its width."""
        return (self.high - self.low) / 2.0


@dataclass(frozen=True, slots=True)
class JobDifference:
    """One job on both sides, heaviest first in `Comparison.jobs`."""

    job: object
    weight: float  # its share, of those compared
    current: float  # mean of its metric, on either side
    new: float
    instances: tuple[int, int]  # number of them, current and new
    difference: Interval  # (new - current) / current
    p: float  # two-sided, that there is none
    adjusted_p: float  # after Benjamini and Hochberg over all jobs compared
    # "gain" (up) or "loss" (down) where `adjusted_p` is at most 1 - confidence, else "unclear"; of gains and losses at
    # most that share is expected to be false.
    verdict: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of `compare`. Shares are of 1."""

    current: Interval  # the weighted metric, of either side
    new: Interval
    difference: Interval  # (new - current) / current
    independent: Interval  # the same by the paper's variance, for comparison
    # (new - current) / current of the means over machines, each the mean of its instances' values: the paper's
    # machine granularity. None if a side has fewer than two machines.
    baseline: Interval | None
    coverage: float  # share of all CURRENT's weight that the compared jobs have
    confidence: float  # of all intervals, such as 0.95
    machines: tuple[int, int]  # of each side, those with a compared job
    instances: tuple[int, int]  # the same
    jobs: tuple[JobDifference, ...]  # those compared, heaviest first
    left_out: dict[str, int] = field(default_factory=dict)  # jobs of either side that were not compared, by reason
    p: float = math.nan  # two-sided, that there is no difference


class MachineMeans:
    """Means of cells (a job on a side) over rows that come in machines, and variances of weighted sums of them.

    Args:
        machine: shape (rows,).
        cell: number of each row's cell, 0 to cells - 1, shape (rows,); each has rows on at least two machines.
        value: shape (rows,).
        cells: number of cells.

    Attributes:
        n: rows per cell, shape (cells,).
        mean: shape (cells,).
        variance: of one row, divided by n - 1, shape (cells,).
    """

    def __init__(self, machine: Column, cell: Ints, value: Floats, cells: int) -> None:
        self.n = np.bincount(cell, minlength=cells).astype(np.float64)
        self.mean = sums(cell, value, cells) / self.n
        residual = value - self.mean[cell]
        self.variance = sums(cell, residual * residual, cells) / np.maximum(self.n - 1.0, 1.0)
        (self._machine, self._cell), number = group(machine, cell)
        pairs = len(self._cell)
        self._count = np.bincount(number, minlength=pairs).astype(np.float64)
        self._residual = sums(number, residual, pairs)
        share = self._count / self.n[self._cell]
        self._factor = 1.0 / (self.n[self._cell] * np.sqrt(np.maximum(1.0 - share, 1e-300)))

    def variances(self, coefficient: Floats, part: Ints, parts: int) -> tuple[Floats, Floats]:
        """Return variance and degrees of freedom, shapes (parts,), of sums over each part's cells: coefficient * mean.

        `coefficient` has shape (cells,), as has `part`, which sum a cell belongs to, -1 for none. A sum without any
        variance has degrees of freedom 1.
        """
        wanted = part[self._cell] >= 0
        cell, owner = self._cell[wanted], part[self._cell[wanted]]
        factor = coefficient[cell] * self._factor[wanted]
        (_, unit_part), unit = group(self._machine[wanted], owner)
        z = sums(unit, factor * self._residual[wanted], len(unit_part))
        variance = sums(unit_part, z * z, parts)
        # B = D - sum over cells of b b', with D the covariance were the cells' means known.
        count, spread = self._count[wanted], self.variance[cell]
        d = sums(unit, factor**2 * spread * count, len(unit_part))
        b = factor * count * np.sqrt(spread / self.n[cell])
        trace = sums(unit_part, d, parts) - sums(owner, b * b, parts)
        products = scipy.sparse.csr_array((b, (unit, cell)), shape=(len(unit_part), len(self.n)))
        crossed = (products.T @ products).tocoo()
        squares = (
            sums(unit_part, d * d, parts)
            - 2.0 * sums(owner, d[unit] * b * b, parts)
            + sums(part[crossed.coords[0]], crossed.data**2, parts)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            degrees = np.where((squares > 0) & (trace > 0), trace**2 / squares, 1.0)
        return variance, np.maximum(degrees, 1.0)


def compare(
    current: Observed,
    new: Observed,
    weights: Shares,
    *,
    min_instances: int = MIN_INSTANCES,
    min_coverage: float = 0.0,
    top: int | None = None,
    confidence: float = 0.95,
) -> Comparison:
    """Compare two sides by the weighted metric of the jobs that both have.

    Raises TooLittleCovered for less than `min_coverage`, or no job is left.

    Args:
        current: one side; machines named alike on both sides are the same machines.
        new: the other.
        weights: of CURRENT's jobs. Jobs without a weight are left out.
        min_instances: a job with fewer on a side is left out.
        min_coverage: refuse if the compared jobs have less of CURRENT's weight.
        top: only this number of the heaviest.
        confidence: of the intervals.
    """
    together = _together(current, new, weights)
    chosen, left_out = _chosen(together, min_instances, top)
    weight = together.weight
    total = float(weight.sum())
    coverage = float(weight[chosen].sum()) / total if total else 0.0
    if not len(chosen) or coverage < min_coverage:
        raise TooLittleCovered(coverage, len(chosen))
    place = np.full(len(weight), -1, dtype=np.int64)
    place[chosen] = np.arange(len(chosen))
    cell = place[together.job]
    used = cell >= 0
    is_new = together.is_new[used]
    machine, value = together.machine[used], together.value[used]
    means = MachineMeans(machine, cell[used] + len(chosen) * is_new, value, 2 * len(chosen))
    on = [machine[is_new == side] for side in (False, True)]
    estimates = _Estimates(means, weight[chosen] / weight[chosen].sum(), confidence)
    difference = estimates.difference()
    return Comparison(
        current=estimates.side(0),
        new=estimates.side(1),
        difference=difference,
        independent=estimates.independent(),
        baseline=_machine_baseline(together, confidence),
        coverage=coverage,
        confidence=confidence,
        machines=(len(np.unique(on[0])), len(np.unique(on[1]))),
        instances=(len(on[0]), len(on[1])),
        jobs=estimates.jobs(together.name[chosen]),
        left_out=left_out,
        p=_p(difference),
    )


@dataclass(frozen=True, slots=True)
class _Together:
    """Rows of both sides, CURRENT's first, with numbers for names; and the jobs by number."""

    machine: Ints
    job: Ints
    value: Floats
    is_new: npt.NDArray[np.bool_]
    name: Column
    weight: Floats  # 0 if there is none


def _together(current: Observed, new: Observed, weights: Shares) -> _Together:
    rows = len(current.job) + len(new.job)
    (names,), number = group(np.concatenate([current.job, new.job, weights.job]))
    weight = np.zeros(len(names))
    weight[number[rows:]] = weights.weight
    return _Together(
        machine=group(np.concatenate([current.machine, new.machine]))[1],
        job=number[:rows],
        value=np.concatenate([current.value, new.value]).astype(np.float64),
        is_new=np.arange(rows) >= len(current.job),
        name=names,
        weight=weight,
    )


def _chosen(rows: _Together, min_instances: int, top: int | None) -> tuple[Ints, dict[str, int]]:
    """Return the jobs to compare, heaviest first, and how many are left out for which reason."""
    jobs = len(rows.weight)
    cell = rows.job + jobs * rows.is_new
    (_, pairs), _ = group(rows.machine, cell)
    instances, machines = (np.bincount(each, minlength=2 * jobs).reshape(2, jobs) for each in (cell, pairs))
    is_common = (instances > 0).all(axis=0)
    is_weighed = is_common & (rows.weight > 0)
    is_enough = is_weighed & (instances >= min_instances).all(axis=0) & (machines >= _MIN_MACHINES).all(axis=0)
    order = np.argsort(-rows.weight, kind="stable")
    chosen = order[is_enough[order]]
    counts = {
        "only_current": int(((instances[0] > 0) & ~is_common).sum()),
        "only_new": int(((instances[1] > 0) & ~is_common).sum()),
        "no_weight": int((is_common & ~is_weighed).sum()),
        "too_few": int((is_weighed & ~is_enough).sum()),
        "not_top": len(chosen) - len(chosen[:top]),
    }
    return chosen[:top], {reason: count for reason, count in counts.items() if count}


class _Estimates:
    """Estimates and intervals of jobs' means on two sides; cells 0 to jobs - 1 are CURRENT's, the others NEW's."""

    def __init__(self, means: MachineMeans, weight: Floats, confidence: float) -> None:
        self._means = means
        self._weight = weight
        self._confidence = confidence
        jobs = len(weight)
        self._side = np.arange(2 * jobs) // jobs
        self._mean = means.mean.reshape(2, jobs)
        self._total = self._mean @ weight

    def side(self, side: int) -> Interval:
        """Return the weighted metric of one side."""
        variances = self._means.variances(np.tile(self._weight, 2), np.where(self._side == side, 0, -1), 1)
        return self._interval(float(self._total[side]), *(float(each[0]) for each in variances))

    def difference(self) -> Interval:
        """Return (new - current) / current; the variance is its linear part's."""
        variances = self._means.variances(self._slopes(), np.zeros_like(self._side), 1)
        return self._interval(self._ratio(), *(float(each[0]) for each in variances))

    def independent(self) -> Interval:
        """Return the same with the paper's variance and normal quantile."""
        variance = float((self._slopes() ** 2 * self._means.variance / self._means.n).sum())
        return self._interval(self._ratio(), variance, math.inf)

    def jobs(self, names: Column) -> tuple[JobDifference, ...]:
        """Return each job's difference."""
        current, new = self._mean
        jobs = len(current)
        slopes = np.concatenate([-new / current**2, 1.0 / current])
        variances = self._means.variances(slopes, np.arange(2 * jobs) % jobs, jobs)
        ratio = (new - current) / current
        found = [self._interval(*map(float, each)) for each in zip(ratio, *variances, strict=True)]
        p = [_p(each) for each in found]
        adjusted = _benjamini_hochberg(np.array(p))
        verdicts = np.where(adjusted > 1.0 - self._confidence, "unclear", np.where(ratio > 0, "gain", "loss"))
        instances = map(tuple, self._means.n.reshape(2, jobs).astype(int).T.tolist())
        columns = (self._weight.tolist(), current.tolist(), new.tolist(), instances, found, p)
        rows = zip(names.tolist(), *columns, adjusted.tolist(), verdicts.tolist(), strict=True)
        return tuple(JobDifference(*row) for row in rows)

    def _ratio(self) -> float:
        return float((self._total[1] - self._total[0]) / self._total[0])

    def _slopes(self) -> Floats:
        """Return the derivatives of the relative difference by the cells' means."""
        current, new = self._total.tolist()
        return np.concatenate([-self._weight * new / current**2, self._weight / current])

    def _interval(self, value: float, variance: float, degrees: float) -> Interval:
        error, level = math.sqrt(variance), 0.5 + self._confidence / 2.0
        half = error * float(ndtri(level) if math.isinf(degrees) else stdtrit(degrees, level))
        return Interval(value, value - half, value + half, error, degrees)


def _p(estimate: Interval) -> float:
    """Return the two-sided p value of the estimate being 0."""
    if not estimate.standard_error:
        return 0.0 if estimate.value else 1.0
    return float(2.0 * stdtr(estimate.degrees, -abs(estimate.value) / estimate.standard_error))


def _benjamini_hochberg(p: Floats) -> Floats:
    """Return adjusted p values: of those up to q, a share of at most q is expected to be false."""
    order = np.argsort(p)[::-1]
    scaled = p[order] * len(p) / np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.minimum.accumulate(scaled), 1.0)
    return adjusted


def _machine_baseline(rows: _Together, confidence: float) -> Interval | None:
    """Return the difference of the means over machines: the paper's section 4.2."""
    (machine, is_new), number = group(rows.machine, rows.is_new)
    means = sums(number, rows.value, len(machine)) / np.bincount(number)
    side = is_new.astype(np.int64)
    if np.bincount(side, minlength=2).min() < _MIN_MACHINES:
        return None
    return _Estimates(MachineMeans(machine, side, means, 2), np.ones(1), confidence).difference()
