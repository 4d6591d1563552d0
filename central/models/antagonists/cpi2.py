"""CPI2: whose CPU usage correlates with a victim's CPI, from one machine's last minutes. Pure numpy.

Source: Zhang et al., "CPI2: CPU performance isolation for shared compute clusters" (EuroSys 2013), sections 3 and 4. A
job's spec is mean and standard deviation of its CPI per platform, of all days, where each past day weighs 0.9 of the
next. Usage counts for a suspect where the victim's CPI is above mean + 2 std, and against it where it is below.
"""

from dataclasses import dataclass

import numpy as np

from central.models.antagonists.panda import MIN_RELATIVE_STD, CpiMoments
from central.models.groups import Column, Floats, concatenate, group, sums

AGEING = 0.9
OUTLIER_STDS = 2.0


@dataclass(frozen=True, slots=True)
class Spec:
    """A job's CPI on a platform; columns sorted by (job, platform). `weight` counts aged samples."""

    job: Column
    platform: Column
    weight: Floats
    mean: Floats
    m2: Floats

    @classmethod
    def of(cls, day: CpiMoments) -> "Spec":
        """Make the spec of a first day."""
        return cls(day.job, day.platform, day.samples.astype(np.float64), day.mean, day.m2)

    def next_day(self, day: CpiMoments, ageing: float = AGEING) -> "Spec":
        """Age the spec by a day (counts and moments times `ageing`), then add a day's samples."""
        new = Spec.of(day)
        (job, platform), at = group(concatenate(self.job, new.job), concatenate(self.platform, new.platform))
        weights = np.concatenate([self.weight * ageing, new.weight])
        means = np.concatenate([self.mean, new.mean])
        squares = np.concatenate([self.m2 * ageing, new.m2])
        n = len(job)
        weight = sums(at, weights, n)
        mean = sums(at, weights * means, n) / weight
        m2 = sums(at, squares + weights * (means - mean[at]) ** 2, n)
        return Spec(job, platform, weight, mean, m2)

    def threshold(self) -> Floats:
        """CPI above which a sample is an outlier: mean + 2 std."""
        std = np.sqrt(self.m2 / self.weight)
        threshold: Floats = self.mean + OUTLIER_STDS * np.where(std <= MIN_RELATIVE_STD * self.mean, 0.0, std)
        return threshold


def suspect_scores(victim_cpi: Floats, threshold: float, usage: Floats) -> Floats:
    """Score each suspect against one victim over a window.

    With usage normalised so that each suspect's sums to 1: sum of u_i (1 - C / c_i) where c_i > C, and of
    u_i (c_i / C - 1), which is negative, where c_i < C. -1 to 1; 0 for a suspect that did not run.

    `victim_cpi` has shape (t,), NaN for unknown samples, which are left out; `threshold` is C, the victim's mean + 2
    std; `usage` has shape (suspects, t), 0 for a suspect that does not run.
    """
    known = ~np.isnan(victim_cpi)
    c, u = victim_cpi[known], usage[:, known]
    weight = np.where(c > threshold, 1 - threshold / c, c / threshold - 1)
    total = u.sum(axis=1)
    return np.asarray(np.divide(u @ weight, total, out=np.zeros(len(u)), where=total > 0), dtype=np.float64)
