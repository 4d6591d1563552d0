"""PANDA: which jobs raise the normalised CPI of the machines they run on. Pure numpy.

Source: "PANDA: Noise-Resilient Antagonist Identification in Production Datacenters", section 4.3,
equations (1) to (3); PANDA-Local: sections 5.2 and 5.3.2. Standard deviations are population ones. Where the paper is
silent, a reading is chosen:

* nCPI is taken per job *and CPU platform*: cycles per instruction of unlike CPUs do not compare.
* A job whose CPI does not vary has nCPI 0. "Does not vary" is std <= 1e-12 * mean, so that the rounding of a
  constant is not blown up to noise of unit variance.
* Rows without a CPI still count as co-located usage; rows without a usage still count as samples of CPI.
* PANDA-Local's equation (3) runs over one machine; mean and standard deviation of CPI stay those of the whole fleet.

`PairState` has the sums of one part of the data (a day). Mean and standard deviation do not occur in them yet, so parts
merge exactly and the normalisation of the whole is applied afterwards, linearly.
"""

from dataclasses import dataclass

import numpy as np

from central.models.antagonists.colocation import PairSums, pair_sums
from central.models.antagonists.slots import TaskSlots
from central.models.groups import Column, Floats, Ints, concatenate, counts, find, group, merge_sums, sum_by, sums

#: At or below this share of the mean a standard deviation is the rounding of a constant.
MIN_RELATIVE_STD = 1e-12


@dataclass(frozen=True, slots=True)
class JobStatistics:
    """CPI of a job on a platform, for equation (1); columns of equal length, sorted by (job, platform).

    `std_cpi` is exactly 0 if the CPI does not vary.
    """

    job: Column
    platform: Column
    samples: Ints
    mean_cpi: Floats
    std_cpi: Floats


@dataclass(frozen=True, slots=True)
class Coefficients:
    """A_k, equation (3), in mnCPI per core (or normalised unit) of CPU usage; columns sorted by job.

    Jobs that never used CPU beside a latency-sensitive task are absent.
    """

    job: Column
    value: Floats
    samples: Ints
    sum_usage_squared: Floats


@dataclass(frozen=True, slots=True)
class CpiMoments:
    """Moments of a job's CPI on a platform; M2 is sum (cpi - mean)^2; sorted by (job, platform)."""

    job: Column
    platform: Column
    samples: Ints
    mean: Floats
    m2: Floats

    @classmethod
    def of(cls, job: Column, platform: Column, cpi: Floats) -> "CpiMoments":
        """Compute the moments of samples in two passes: the mean, then from the centred values.

        All shapes are (n,); `platform` is the CPU model, `cpi` cycles per instruction, NaN if not known.
        """
        known = ~np.isnan(cpi)
        keys, member = group(job[known], platform[known])
        cpi, n = cpi[known], len(keys[0])
        samples = np.bincount(member, minlength=n)
        mean = sums(member, cpi, n) / samples
        mean += sums(member, cpi - mean[member], n) / samples
        return cls(keys[0], keys[1], samples, mean, sums(member, (cpi - mean[member]) ** 2, n))

    def merge(self, other: "CpiMoments") -> "CpiMoments":
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
        """Return mean and population standard deviation."""
        std = np.sqrt(self.m2 / self.samples)
        std = np.where(std <= MIN_RELATIVE_STD * np.abs(self.mean), 0.0, std)
        return JobStatistics(self.job, self.platform, self.samples, self.mean, std)


@dataclass(frozen=True, slots=True)
class PairState:
    """The sums of a part of the data, from which the whole can be fitted. Parts share no machine slot.

    Per co-located pair (job, latency-sensitive job, platform of the latter): `usage_cpi` = sum u * c / |L|
    and `usage` = sum u / |L| over all pairs of their tasks. Per job: sum u^2 and the number of task slots
    beside a latency-sensitive task. Per (job, platform): moments of CPI. Sorted by their keys.
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

    @classmethod
    def of(cls, slots: TaskSlots) -> "PairState":
        """Make the state of a number of task slots."""
        found = pair_sums(slots)
        pair_keys = {"pair_job": found.job, "pair_sensitive_job": found.sensitive_job, "pair_platform": found.platform}
        return cls(
            **sum_by(pair_keys, {"usage_cpi": found.usage_cpi, "usage": found.usage}),
            **sum_by({"job": found.user_job}, {"sum_usage_squared": found.sum_usage_squared, "samples": found.samples}),
            cpi=CpiMoments.of(slots.job, slots.platform, slots.cpi),
        )

    def merge(self, other: "PairState") -> "PairState":
        """Return the state of both parts together. Associative and commutative up to rounding."""
        pair_keys = ("pair_job", "pair_sensitive_job", "pair_platform")
        return PairState(
            **merge_sums(self, other, pair_keys, ("usage_cpi", "usage")),
            **merge_sums(self, other, ("job",), ("sum_usage_squared", "samples")),
            cpi=self.cpi.merge(other.cpi),
        )

    def statistics(self) -> JobStatistics:
        """Equation (1)'s mean and standard deviation per job and platform."""
        return self.cpi.statistics()

    def coefficients(self) -> Coefficients:
        """Equation (3), equal to two passes over all the rows."""
        share = _shares(self.statistics(), self.pair_sensitive_job, self.pair_platform, self.usage_cpi, self.usage)
        uy = sums(find((self.job,), (self.pair_job,)), share, len(self.job))
        has = self.sum_usage_squared > 0
        squares = self.sum_usage_squared[has]
        return Coefficients(self.job[has], uy[has] / squares, self.samples[has], squares)


@dataclass(frozen=True, slots=True)
class LocalCoefficients:
    """A_k per machine, in mnCPI per core (or normalised unit); sorted by (machine, job)."""

    machine: Column
    job: Column
    value: Floats
    samples: Ints


def local_coefficients(pairs: PairSums, statistics: JobStatistics) -> LocalCoefficients:
    """Equation (3) per machine, with the fleet's statistics for equation (1): PANDA-Local."""
    share = _shares(statistics, pairs.sensitive_job, pairs.platform, pairs.usage_cpi, pairs.usage)
    at = find((pairs.user_machine, pairs.user_job), (pairs.machine, pairs.job))
    uy = sums(at, share, len(pairs.user_job))
    has = pairs.sum_usage_squared > 0
    value = uy[has] / pairs.sum_usage_squared[has]
    return LocalCoefficients(pairs.user_machine[has], pairs.user_job[has], value, pairs.samples[has])


def _shares(statistics: JobStatistics, job: Column, platform: Column, usage_cpi: Floats, usage: Floats) -> Floats:
    """Return each pair's sum of u * nCPI / |L|; 0 if the job's CPI does not vary or is not known."""
    found = find((statistics.job, statistics.platform), (job, platform))
    mean, std = statistics.mean_cpi[found], statistics.std_cpi[found]
    deviation = usage_cpi - mean * usage
    return np.divide(deviation, std, out=np.zeros_like(deviation), where=(found >= 0) & (std > 0))
