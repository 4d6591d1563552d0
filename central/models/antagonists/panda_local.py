"""PANDA-Local: PANDA's coefficients from the history of one machine alone. Pure numpy.

Source: "PANDA: Noise-Resilient Antagonist Identification in Production Datacenters", sections 5.2 and 5.3.2.
Equation (3) runs over the slots of one machine instead of all; mean and standard deviation of a job's CPI,
equation (1), stay those of the whole fleet (the paper is silent; ours).
"""

from dataclasses import dataclass

import numpy as np

from central.models.antagonists.colocation import pair_sums
from central.models.antagonists.panda import JobStatistics
from central.models.antagonists.slots import TaskSlots
from central.models.groups import Column, Floats, Ints, concatenate, counts, find, group, sums


@dataclass(frozen=True, slots=True)
class LocalCoefficients:
    """A_k per machine, in mnCPI per core (or normalised unit); sorted by (machine, job)."""

    machine: Column
    job: Column
    value: Floats
    samples: Ints


@dataclass(frozen=True, slots=True)
class LocalState:
    """What a part of the data leaves behind; `central.models.antagonists.panda.PairState` with the machine in its keys.

    Parts share no machine slot. Sorted by their keys.
    """

    pair_machine: Column
    pair_job: Column
    pair_sensitive_job: Column
    pair_platform: Column
    usage_cpi: Floats
    usage: Floats
    machine: Column
    job: Column
    sum_usage_squared: Floats
    samples: Ints

    @classmethod
    def of(cls, slots: TaskSlots) -> "LocalState":
        """Make the state of a number of task slots."""
        found = pair_sums(**slots.columns())
        return cls(
            found.machine,
            found.job,
            found.sensitive_job,
            found.platform,
            found.usage_cpi,
            found.usage,
            found.user_machine,
            found.user_job,
            found.sum_usage_squared,
            found.samples,
        )

    def merge(self, other: "LocalState") -> "LocalState":
        """Return the state of both parts together. Associative and commutative up to rounding."""
        keys, pair = group(
            concatenate(self.pair_machine, other.pair_machine),
            concatenate(self.pair_job, other.pair_job),
            concatenate(self.pair_sensitive_job, other.pair_sensitive_job),
            concatenate(self.pair_platform, other.pair_platform),
        )
        users, user = group(concatenate(self.machine, other.machine), concatenate(self.job, other.job))
        n, m = len(keys[0]), len(users[0])
        return LocalState(
            keys[0],
            keys[1],
            keys[2],
            keys[3],
            sums(pair, np.concatenate([self.usage_cpi, other.usage_cpi]), n),
            sums(pair, np.concatenate([self.usage, other.usage]), n),
            users[0],
            users[1],
            sums(user, np.concatenate([self.sum_usage_squared, other.sum_usage_squared]), m),
            counts(user, np.concatenate([self.samples, other.samples]), m),
        )

    def coefficients(self, statistics: JobStatistics) -> LocalCoefficients:
        """Equation (3) per machine, with the fleet's statistics for equation (1)."""
        found = find((statistics.job, statistics.platform), (self.pair_sensitive_job, self.pair_platform))
        mean, std = statistics.mean_cpi[found], statistics.std_cpi[found]
        deviation = self.usage_cpi - mean * self.usage
        share = np.divide(deviation, std, out=np.zeros_like(deviation), where=(found >= 0) & (std > 0))
        at = find((self.machine, self.job), (self.pair_machine, self.pair_job))
        uy = sums(at, share, len(self.job))
        has = self.sum_usage_squared > 0
        value = uy[has] / self.sum_usage_squared[has]
        return LocalCoefficients(self.machine[has], self.job[has], value, self.samples[has])
