"""PANDA: which jobs raise the normalised CPI of the machines they run on. Pure numpy.

Source: "PANDA: Noise-Resilient Antagonist Identification in Production Datacenters", section 4.3,
equations (1) to (3). Standard deviations are population ones. Where the paper is silent, a reading is chosen:

* nCPI is taken per job *and CPU platform*: cycles per instruction of unlike CPUs do not compare.
* A job whose CPI does not vary has nCPI 0. "Does not vary" is std <= 1e-12 * mean, so that the rounding of a
  constant is not blown up to noise of unit variance.
* Rows without a CPI still count as co-located usage; rows without a usage still count as samples of CPI.

Two forms have one result. `fit` makes two passes over a given trace. `PairState` is what one part of the data
(a day) leaves behind: sums in which mean and standard deviation do not occur yet, so that parts merge exactly
and the normalisation of the whole is applied afterwards, linearly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from central.models.antagonists.colocation import pair_sums
from central.models.groups import Column, Floats, Ints, concatenate, counts, find, group, sums

__all__ = [
    "HISTOGRAM_BINS_PER_E",
    "HISTOGRAM_MAX_BIN",
    "HISTOGRAM_MIN_BIN",
    "MIN_RELATIVE_STD",
    "Coefficients",
    "CpiHistogram",
    "CpiMoments",
    "JobStatistics",
    "MachineCpi",
    "PairState",
    "PandaFit",
    "fit",
    "histogram_bin",
]

#: At or below this share of the mean a standard deviation is the rounding of a constant.
MIN_RELATIVE_STD = 1e-12

#: Bins of the histogram of log CPI: bin b holds b <= 16 * ln(cpi) < b + 1, so each is 6.4 % wide. The first
#: and the last also hold what lies outside (CPI below 0.018 or above 403).
HISTOGRAM_BINS_PER_E = 16
HISTOGRAM_MIN_BIN = -64
HISTOGRAM_MAX_BIN = 95


@dataclass(frozen=True, slots=True)
class JobStatistics:
    """CPI of a job on a platform, for equation (1); columns of equal length, sorted by (job, platform).

    `std_cpi` is exactly 0 where the CPI does not vary.
    """

    job: Column
    platform: Column
    samples: Ints
    mean_cpi: Floats
    std_cpi: Floats


@dataclass(frozen=True, slots=True)
class MachineCpi:
    """mnCPI(m, t), equation (2); columns of equal length, sorted by (machine, slot).

    Machine slots without a latency-sensitive task of known CPI are absent.
    """

    machine: Column
    slot: Column
    mn_cpi: Floats
    tasks: Ints


@dataclass(frozen=True, slots=True)
class Coefficients:
    """A_k, equation (3), in mnCPI per core (or normalised unit) of CPU usage; columns sorted by job.

    `standard_error` is the classical one of least squares without intercept,
    sqrt(sum (mnCPI - A u)^2 / (samples - 1) / sum u^2); NaN where it is not known: with one sample, and in
    the incremental form, whose state does not hold mnCPI^2 (builds take it by days, `engine.coefficients`).
    Jobs that never used CPU beside a latency-sensitive task are absent.
    """

    job: Column
    value: Floats
    samples: Ints
    sum_usage_squared: Floats
    standard_error: Floats


@dataclass(frozen=True, slots=True)
class PandaFit:
    """The result of `fit`."""

    statistics: JobStatistics
    machine_cpi: MachineCpi
    coefficients: Coefficients


@dataclass(frozen=True, slots=True)
class CpiMoments:
    """Moments of a job's CPI on a platform; M2 is sum (cpi - mean)^2; sorted by (job, platform)."""

    job: Column
    platform: Column
    samples: Ints
    mean: Floats
    m2: Floats

    @classmethod
    def of(cls, job: Column, platform: Column, cpi: Floats) -> CpiMoments:
        """Compute the moments of samples in two passes: the mean, then what the centred values say.

        Args:
            job: of each sample, shape (n,).
            platform: CPU model that each was taken on.
            cpi: cycles per instruction; NaN where not known.

        """
        known = ~np.isnan(cpi)
        keys, member = group(job[known], platform[known])
        cpi, n = cpi[known], len(keys[0])
        samples = np.bincount(member, minlength=n)
        mean = sums(member, cpi, n) / samples
        mean += sums(member, cpi - mean[member], n) / samples
        return cls(keys[0], keys[1], samples, mean, sums(member, (cpi - mean[member]) ** 2, n))

    def merge(self, other: CpiMoments) -> CpiMoments:
        """Merge by Chan, Golub and LeVeque (1979): M2 = sum M2_i + sum n_i (mean_i - mean)^2."""
        keys, member = group(concatenate(self.job, other.job), concatenate(self.platform, other.platform))
        count, means = np.concatenate([self.samples, other.samples]), np.concatenate([self.mean, other.mean])
        n = len(keys[0])
        samples = counts(member, count, n)
        mean = sums(member, count * means, n) / samples
        m2 = sums(member, np.concatenate([self.m2, other.m2]), n)
        m2 += sums(member, count * (means - mean[member]) ** 2, n)
        return CpiMoments(keys[0], keys[1], samples, mean, m2)

    def statistics(self) -> JobStatistics:
        """Mean and population standard deviation."""
        return JobStatistics(
            self.job, self.platform, self.samples, self.mean, _std(self.samples, self.mean, self.m2)
        )


@dataclass(frozen=True, slots=True)
class CpiHistogram:
    """Samples per bin of log CPI (`histogram_bin`), without empty bins; sorted by (job, platform, bin)."""

    job: Column
    platform: Column
    bin: Ints
    samples: Ints


def histogram_bin(cpi: npt.ArrayLike) -> Ints:
    """Return the number of the bin of log CPI that each value (above 0) falls in."""
    with np.errstate(divide="ignore"):
        bins = np.floor(HISTOGRAM_BINS_PER_E * np.log(np.asarray(cpi, dtype=np.float64)))
    clipped: Floats = np.clip(bins, HISTOGRAM_MIN_BIN, HISTOGRAM_MAX_BIN)
    return clipped.astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Task slots, checked: one row per task and slot. NaN: not known."""

    machine: Column
    slot: Column
    job: Column
    platform: Column
    latency_sensitive: npt.NDArray[np.bool_]
    usage: Floats
    cpi: Floats

    @classmethod
    def checked(cls, columns: tuple[npt.ArrayLike, ...]) -> _Rows:
        machine, slot, job, platform, sensitive, usage, cpi = columns
        rows = cls(
            np.asarray(machine),
            np.asarray(slot),
            np.asarray(job),
            np.asarray(platform),
            np.asarray(sensitive, dtype=np.bool_),
            np.asarray(usage, dtype=np.float64),
            np.asarray(cpi, dtype=np.float64),
        )
        shapes = {column.shape for column in (rows.machine, rows.slot, rows.job, rows.platform)}
        shapes |= {rows.latency_sensitive.shape, rows.usage.shape, rows.cpi.shape}
        if len(shapes) != 1 or rows.machine.ndim != 1:
            raise ValueError(f"columns must be one-dimensional and of one length (shapes {sorted(shapes)})")
        return rows

    def histogram(self) -> CpiHistogram:
        known = ~np.isnan(self.cpi)
        keys, member = group(self.job[known], self.platform[known], histogram_bin(self.cpi[known]))
        return CpiHistogram(
            keys[0], keys[1], keys[2].astype(np.int64), np.bincount(member, minlength=len(keys[0]))
        )


def fit(
    *,
    machine: npt.ArrayLike,
    slot: npt.ArrayLike,
    job: npt.ArrayLike,
    platform: npt.ArrayLike,
    latency_sensitive: npt.ArrayLike,
    usage: npt.ArrayLike,
    cpi: npt.ArrayLike,
) -> PandaFit:
    """Compute equations (1) to (3) on a given trace, in two passes.

    Args:
        machine: where the task ran; shape (n,), any sortable values.
        slot: number (or start) of the time slot.
        job: what the task is one of.
        platform: CPU model of the machine.
        latency_sensitive: whether the task's CPI enters mnCPI.
        usage: CPU usage over the slot, in cores or normalised units; NaN where not known.
        cpi: cycles per instruction over the slot, above 0; NaN where not known.

    One row is one task in one slot (records shorter than a slot are merged before, by duration).

    Raises:
        ValueError: the columns differ in length.

    """
    rows = _Rows.checked((machine, slot, job, platform, latency_sensitive, usage, cpi))
    moments = CpiMoments.of(rows.job, rows.platform, rows.cpi)
    statistics = moments.statistics()

    sensitive = rows.latency_sensitive & ~np.isnan(rows.cpi)
    statistic = find((statistics.job, statistics.platform), (rows.job[sensitive], rows.platform[sensitive]))
    std = statistics.std_cpi[statistic]
    deviation = rows.cpi[sensitive] - statistics.mean_cpi[statistic]
    n_cpi = np.divide(deviation, std, out=np.zeros_like(deviation), where=std > 0)

    place, at = group(rows.machine[sensitive], rows.slot[sensitive])
    tasks = np.bincount(at, minlength=len(place[0]))
    machine_cpi = MachineCpi(place[0], place[1], sums(at, n_cpi, len(tasks)) / tasks, tasks)

    used = ~np.isnan(rows.usage)
    where = find(place, (rows.machine[used], rows.slot[used]))
    beside = where >= 0
    u, y = rows.usage[used][beside], machine_cpi.mn_cpi[where[beside]]
    (jobs,), member = group(rows.job[used][beside])
    return PandaFit(statistics, machine_cpi, _least_squares(jobs, member, u, y))


def _least_squares(jobs: Column, member: Ints, u: Floats, y: Floats) -> Coefficients:
    """Fit y = A u without intercept per job, equation (3)."""
    n = len(jobs)
    samples = np.bincount(member, minlength=n)
    uu, uy, yy = sums(member, u * u, n), sums(member, u * y, n), sums(member, y * y, n)
    has = uu > 0
    jobs, samples, uu, uy, yy = jobs[has], samples[has], uu[has], uy[has], yy[has]
    value = uy / uu
    spread = np.maximum(yy - value * uy, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(samples > 1, np.sqrt(spread / (samples - 1) / uu), np.nan)
    return Coefficients(jobs, value, samples, uu, error)


@dataclass(frozen=True, slots=True)
class PairState:
    """What a part of the data leaves behind so that the whole can be fitted. Parts share no machine slot.

    Per co-located pair (job, latency-sensitive job, platform of the latter): `usage_cpi` = sum u * c / |L|
    and `usage` = sum u / |L| over all pairs of their tasks. Per job: sum u^2 and the number of task slots
    beside a latency-sensitive task. Per (job, platform): moments and histogram of CPI. Sorted by their keys.
    """

    pair_job: Column
    pair_sensitive_job: Column
    pair_platform: Column
    usage_cpi: Floats
    usage: Floats
    job: Column
    sum_usage_squared: Floats
    samples: Ints
    cpi: CpiMoments
    histogram: CpiHistogram

    @classmethod
    def of(
        cls,
        *,
        machine: npt.ArrayLike,
        slot: npt.ArrayLike,
        job: npt.ArrayLike,
        platform: npt.ArrayLike,
        latency_sensitive: npt.ArrayLike,
        usage: npt.ArrayLike,
        cpi: npt.ArrayLike,
    ) -> PairState:
        """Make the state of a number of task slots; arguments and errors as of `fit`."""
        rows = _Rows.checked((machine, slot, job, platform, latency_sensitive, usage, cpi))
        found = pair_sums(
            machine=rows.machine,
            slot=rows.slot,
            job=rows.job,
            platform=rows.platform,
            latency_sensitive=rows.latency_sensitive,
            usage=rows.usage,
            cpi=rows.cpi,
        )
        keys, pair = group(found.job, found.sensitive_job, found.platform)
        (jobs,), member = group(found.user_job)
        return cls(
            keys[0],
            keys[1],
            keys[2],
            sums(pair, found.usage_cpi, len(keys[0])),
            sums(pair, found.usage, len(keys[0])),
            jobs,
            sums(member, found.sum_usage_squared, len(jobs)),
            counts(member, found.samples, len(jobs)),
            CpiMoments.of(rows.job, rows.platform, rows.cpi),
            rows.histogram(),
        )

    def merge(self, other: PairState) -> PairState:
        """Return the state of both parts together. Associative and commutative up to rounding."""
        keys, pair = group(
            concatenate(self.pair_job, other.pair_job),
            concatenate(self.pair_sensitive_job, other.pair_sensitive_job),
            concatenate(self.pair_platform, other.pair_platform),
        )
        (job,), member = group(concatenate(self.job, other.job))
        n, m = len(keys[0]), len(job)
        return PairState(
            keys[0],
            keys[1],
            keys[2],
            sums(pair, np.concatenate([self.usage_cpi, other.usage_cpi]), n),
            sums(pair, np.concatenate([self.usage, other.usage]), n),
            job,
            sums(member, np.concatenate([self.sum_usage_squared, other.sum_usage_squared]), m),
            counts(member, np.concatenate([self.samples, other.samples]), m),
            self.cpi.merge(other.cpi),
            _merge_histograms(self.histogram, other.histogram),
        )

    def statistics(self) -> JobStatistics:
        """Equation (1)'s mean and standard deviation per job and platform."""
        return self.cpi.statistics()

    def coefficients(self) -> Coefficients:
        """Equation (3), equal to `fit` on all the rows (their standard errors are not known here: NaN)."""
        statistics = self.statistics()
        found = find((statistics.job, statistics.platform), (self.pair_sensitive_job, self.pair_platform))
        mean, std = statistics.mean_cpi[found], statistics.std_cpi[found]
        deviation = self.usage_cpi - mean * self.usage
        share = np.divide(deviation, std, out=np.zeros_like(deviation), where=std > 0)
        uy = sums(find((self.job,), (self.pair_job,)), share, len(self.job))
        has = self.sum_usage_squared > 0
        value = uy[has] / self.sum_usage_squared[has]
        return Coefficients(
            self.job[has], value, self.samples[has], self.sum_usage_squared[has], np.full(len(value), np.nan)
        )


def _merge_histograms(a: CpiHistogram, b: CpiHistogram) -> CpiHistogram:
    keys, member = group(
        concatenate(a.job, b.job), concatenate(a.platform, b.platform), np.concatenate([a.bin, b.bin])
    )
    samples = counts(member, np.concatenate([a.samples, b.samples]), len(keys[0]))
    return CpiHistogram(keys[0], keys[1], keys[2], samples)


def _std(samples: Ints, mean: Floats, m2: Floats) -> Floats:
    std = np.sqrt(m2 / samples)
    return np.where(std <= MIN_RELATIVE_STD * np.abs(mean), 0.0, std)
