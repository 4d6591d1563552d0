"""PANDA in two passes over a whole trace: what the incremental forms are compared with."""

from dataclasses import dataclass

import numpy as np

from central.models.antagonists import panda
from central.models.antagonists.slots import TaskSlots
from central.models.groups import Column, Floats, Ints, find, group, sums


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
    """A_k, equation (3); sorted by job.

    `standard_error` is the classical one of least squares without intercept,
    sqrt(sum (mnCPI - A u)^2 / (samples - 1) / sum u^2); NaN with one sample.
    """

    job: Column
    value: Floats
    samples: Ints
    sum_usage_squared: Floats
    standard_error: Floats


@dataclass(frozen=True, slots=True)
class PandaFit:
    """The result of `fit`."""

    statistics: panda.JobStatistics
    machine_cpi: MachineCpi
    coefficients: Coefficients


def fit(rows: TaskSlots) -> PandaFit:
    """Compute equations (1) to (3) on a given trace, in two passes."""
    moments = panda.CpiMoments.of(rows.job, rows.platform, rows.cpi)
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
