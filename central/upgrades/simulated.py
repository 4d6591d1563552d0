"""A simulated fleet to try WSMeter on: jobs with the paper's skew, machines whose instances share their luck.

Its settings are those of the paper's fleets; none is fitted to an estimator's results:

* Share of quota of the job of rank r: (r + offset)^-exponent, so that clusters of 25 and 50 machines have four
  instances of jobs with about 79 and 85 % of the quota (the paper: 82 and 87 %). Every job has an instance.
* Value of an instance = mean of its job * luck of its machine * its own luck, all log-normal. The paper reports of
  variance: a machine's mean varies by 15 % (13 %); 50 (400) machines give +-1.6 % (+-0.45 %) at t = 2 if instances are
  taken as independent, on 87 % (91 %) of the quota; and these margins are too narrow by 20 %, which the machines'
  shared luck has to add. So the three spreads follow.
* Half of the variance of either luck is of the machine's or instance's own and stays, half is new at each measurement.
* A job's instances are spread: no machine has two before all have one.
"""

import math
from dataclasses import dataclass

import numpy as np

from central.models.groups import Floats, Ints, sums
from central.models.wsmeter import Observed


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """The fleet and the upgrade's effect. Shares and spreads are ratios."""

    machines: int = 6_000
    jobs: int = 1_200
    instances: int = 180_000  # of all jobs, about
    quota_exponent: float = 1.9  # of the jobs' shares of quota
    quota_offset: float = 6.0  # the same
    instance_quota_spread: float = 0.7  # of the logarithm of an instance's quota, over jobs
    machine_std: float = 0.15  # of machines' mean values, relative
    reported_machines: int = 50  # of the paper's cluster
    reported_margin: float = 0.016  # its margin at t = 2, were instances independent
    reported_coverage: float = 0.87  # and its share of the quota
    widening: float = 1.2  # what margins must be multiplied by because instances of a machine are not independent
    job_spread: float = 0.4  # of the logarithm of the jobs' spreads
    lasting: float = 0.5  # share of the variance of luck that stays from one measurement to the next
    effect: float = 0.07  # by how much the whole fleet's metric rises
    effect_spread: float = 0.03  # standard deviation of the jobs' own effects


#: The paper's case I: new CPUs.
CPU_UPGRADE = FleetSettings()


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet before and after an upgrade of all of its machines."""

    machine: Ints  # of each instance, shape (instances,)
    job: Ints  # the same, numbers from 0, heaviest first
    weight: Floats  # share of quota, shape (jobs,)
    expected: Floats  # mean value of a job's instances before, over new luck, shape (jobs,)
    effect: Floats  # relative, of each job
    _lasting: Floats  # logarithm of each instance's value, less new luck
    _new_machine_spread: float
    _new_spread: Floats  # by job
    _machines: int

    def measure(self, rng: np.random.Generator, machines: Ints | None = None, *, is_upgraded: bool) -> Observed:
        """Measure all instances once, or those on these machines; `rng` is of the new luck."""
        rows = np.arange(len(self.job)) if machines is None else np.flatnonzero(np.isin(self.machine, machines))
        job, machine = self.job[rows], self.machine[rows]
        luck = rng.standard_normal(self._machines)[machine] * self._new_machine_spread
        luck += rng.standard_normal(len(rows)) * self._new_spread[job]
        value = np.exp(self._lasting[rows] + luck)
        return Observed(machine, job, value * (1.0 + self.effect[job]) if is_upgraded else value)

    def true_effect(self, jobs: Ints | None = None) -> float:
        """Return the relative change of the weighted metric, over these jobs or all."""
        chosen = slice(None) if jobs is None else jobs
        value = self.weight[chosen] * self.expected[chosen]
        return float((value @ self.effect[chosen]) / value.sum())


def simulate_fleet(settings: FleetSettings, seed: int) -> Fleet:
    """Make a fleet; the seed is of everything."""
    rng = np.random.default_rng(seed)
    rank = np.arange(1, settings.jobs + 1, dtype=np.float64)
    weight: Floats = (rank + settings.quota_offset) ** -settings.quota_exponent
    weight /= weight.sum()
    quota = np.exp(settings.instance_quota_spread * rng.standard_normal(settings.jobs))
    count = weight / quota
    count = np.maximum(1, np.rint(count * settings.instances / count.sum())).astype(np.int64)
    job = np.repeat(np.arange(settings.jobs), count)
    machine = np.concatenate([_spread(int(n), settings.machines, rng) for n in count])

    mean, own, shared = _values(settings, rng, (weight, count, job, machine))
    spread: Floats = np.sqrt(np.log1p(own**2))
    machine_spread = math.sqrt(math.log1p(shared))

    stays, comes = math.sqrt(settings.lasting), math.sqrt(1.0 - settings.lasting)
    lasting = np.log(mean)[job] + rng.standard_normal(len(job)) * spread[job] * stays
    lasting += rng.standard_normal(settings.machines)[machine] * machine_spread * stays
    spreads = (machine_spread * comes, spread * comes)
    new = np.exp((spreads[1] ** 2 + spreads[0] ** 2) / 2.0)
    expected = sums(job, np.exp(lasting), settings.jobs) / count * new
    effect = settings.effect_spread * rng.standard_normal(settings.jobs)
    effect += settings.effect - (weight * expected) @ effect / (weight @ expected)
    return Fleet(machine, job, weight, expected, effect, lasting, *spreads, settings.machines)


def _values(
    settings: FleetSettings, rng: np.random.Generator, placed: tuple[Floats, Ints, Ints, Ints]
) -> tuple[Floats, Floats, float]:
    """Return the jobs' means, the relative spreads of their instances, and the variance of machines' luck."""
    weight, count, job, machine = placed
    reported = (settings.reported_margin / 2.0) ** 2 * settings.reported_machines  # per machine, relative
    shared = (settings.widening**2 - 1.0) * reported
    shape = np.exp(settings.job_spread * rng.standard_normal(settings.jobs))
    luck = np.clip(rng.standard_normal(settings.jobs), -2.0, 2.0)
    luck = (luck - count @ luck / count.sum()) / math.sqrt(count @ luck**2 / count.sum())
    here = np.bincount(machine, minlength=settings.machines)

    def values(between: float) -> tuple[Floats, Floats, float]:
        mean = np.exp(between * luck)
        unit = settings.machines * (weight**2 * (mean * shape) ** 2 / count).sum() / (weight @ mean) ** 2
        own = shape * math.sqrt(reported * settings.reported_coverage / unit)
        means = sums(machine, mean[job], settings.machines) / here
        within = float((count * (mean * own) ** 2).sum() / count.sum()) / float(here.mean())
        return mean, own, math.sqrt((means.var() + within) / means.mean() ** 2 + shared)

    low, high = 0.0, 3.0  # spread of the logarithm of the jobs' means
    for _ in range(30):
        middle = (low + high) / 2.0
        low, high = (middle, high) if values(middle)[2] < settings.machine_std else (low, middle)
    mean, own, _ = values(low)
    return mean, own, shared


def _spread(instances: int, machines: int, rng: np.random.Generator) -> Ints:
    """Return a machine for each instance: all machines the same number, and the rest at random."""
    rest = rng.permutation(machines)[: instances % machines]
    return np.concatenate([np.tile(np.arange(machines), instances // machines), rest]).astype(np.int64)
