"""PANDA: which jobs raise the normalised CPI of the machines they run on. Pure numpy.

Source: "PANDA: Noise-Resilient Antagonist Identification in Production Datacenters", section 4.3,
equations (1) to (3). Standard deviations are population ones. Where the paper is silent, a reading is chosen:

* nCPI is taken per job *and CPU platform*: cycles per instruction of unlike CPUs do not compare.
* A job whose CPI does not vary has nCPI 0. "Does not vary" is std <= 1e-12 * mean, so that the rounding of a
  constant is not blown up to noise of unit variance.
* Rows without a CPI still count as co-located usage; rows without a usage still count as samples of CPI.

`PairState` is what one part of the data (a day) leaves behind: sums in which mean and standard deviation do not
occur yet, so that parts merge exactly and the normalisation of the whole is applied afterwards, linearly.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from central.models.antagonists.colocation import pair_sums
from central.models.groups import Column, Floats, Ints, concatenate, counts, find, group, sums

#: At or below this share of the mean a standard deviation is the rounding of a constant.
MIN_RELATIVE_STD = 1e-12


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
        """Mean and population standard deviation."""
        return JobStatistics(self.job, self.platform, self.samples, self.mean, _std(self.samples, self.mean, self.m2))


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
    def checked(cls, columns: tuple[npt.ArrayLike, ...]) -> "_Rows":
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


@dataclass(frozen=True, slots=True)
class PairState:
    """What a part of the data leaves behind so that the whole can be fitted. Parts share no machine slot.

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
    ) -> "PairState":
        """Make the state of a number of task slots: one row is one task in one slot.

        Args:
            machine: where the task ran; shape (n,), any sortable values.
            slot: number (or start) of the time slot.
            job: what the task is one of.
            platform: CPU model of the machine.
            latency_sensitive: whether the task's CPI enters mnCPI.
            usage: CPU usage over the slot, in cores or normalised units; NaN where not known.
            cpi: cycles per instruction over the slot, above 0; NaN where not known.

        Raises:
            ValueError: the columns differ in length.

        """
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
        )

    def merge(self, other: "PairState") -> "PairState":
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
        )

    def statistics(self) -> JobStatistics:
        """Equation (1)'s mean and standard deviation per job and platform."""
        return self.cpi.statistics()

    def coefficients(self) -> Coefficients:
        """Equation (3), equal to what two passes over all the rows give."""
        statistics = self.statistics()
        found = find((statistics.job, statistics.platform), (self.pair_sensitive_job, self.pair_platform))
        mean, std = statistics.mean_cpi[found], statistics.std_cpi[found]
        deviation = self.usage_cpi - mean * self.usage
        share = np.divide(deviation, std, out=np.zeros_like(deviation), where=std > 0)
        uy = sums(find((self.job,), (self.pair_job,)), share, len(self.job))
        has = self.sum_usage_squared > 0
        value = uy[has] / self.sum_usage_squared[has]
        return Coefficients(self.job[has], value, self.samples[has], self.sum_usage_squared[has])


def _std(samples: Ints, mean: Floats, m2: Floats) -> Floats:
    std = np.sqrt(m2 / samples)
    return np.where(std <= MIN_RELATIVE_STD * np.abs(mean), 0.0, std)
