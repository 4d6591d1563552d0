"""whitepanda's antagonist coefficients: joint least squares on robust mnCPI within machine days. Pure numpy.

As PANDA, y(m, t) = mean over L(m, t) of a normalised CPI is explained by the CPU usage beside it, and a coefficient is
the rise of y per core. Unlike PANDA:

* Normalised CPI is z = (ln c - median) / (IQR / 1.349), cut to +-3, with median and IQR of the job's samples on that
  platform *on that day*: corrupted samples, drift and phases of a job do not reach it. 0 if the IQR is 0.
* All jobs of a machine are fitted at once, y = sum_k A_k U_k + noise, U_k the summed usage of job k there: a job that
  only runs beside an antagonist gets none of its effect.
* Noise lasts: rows are quasi-differences x_t - 0.6 x_(t-1) within a run of slots (0.8 x_t at its begin).
* A machine day has a level of its own (platform, neighbours' age, weather), which is taken out. The means of
  days and of machines enter as two further regressions, weighed by how much noisier they turn out to be.
* Ridge on the effect of usual usage, and each estimate is shrunk by its own evidence, A t^2 / (t^2 + 10).
* Where jobs then seem to help each other, usage follows contention instead of causing it
  (`whitepanda_solve.are_reversed`): coefficients are PANDA's, equation (3), on this y instead.

The sums of a part of the data (whole days) merge exactly: nothing in them depends on other days.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from central.models.antagonists.colocation import cells_of, machine_slots
from central.models.antagonists.slots import SLOTS_PER_DAY, TaskSlots
from central.models.antagonists.whitepanda_solve import Level, alone, are_reversed, solve
from central.models.groups import Column, Floats, Ints, find, group, merge_sums, sum_by, sums

#: Normalised CPI is cut to plus and minus this.
CLIP = 3.0
#: Of noise from slot to slot, taken out by quasi-differences.
PERSISTENCE = 0.6
IQR_OF_NORMAL = 1.3489795003921634


@dataclass(frozen=True, slots=True)
class WhitepandaCoefficients:
    """Columns sorted by job; values are rises of y per core (or normalised unit) of CPU usage."""

    job: Column  # every job that used CPU beside a latency-sensitive task
    value: Floats  # what suspects are ranked by, times their usage: the estimate shrunk by its evidence
    estimate: Floats  # as fitted
    standard_error: Floats  # of the estimate; beyond `whitepanda_solve.MAX_DENSE_JOBS` jobs a lower bound
    samples: Ints  # machine slots in which the job used CPU beside a latency-sensitive task
    sum_usage_squared: Floats  # of the job's summed usage over these


def robust_n_cpi(job: Column, platform: Column, day: Column, cpi: Floats) -> Floats:
    """Normalise CPI by median and interquartile range of ln c per (job, platform, day), cut to +-`CLIP`.

    All shapes are (n,), a row per sample; `platform` is the CPU model, `cpi` above 0 without NaN.
    """
    keys, code = group(job, platform, day)
    x = np.log(cpi)
    order = np.lexsort((x, code))
    ordered = x[order]
    size = np.bincount(code, minlength=len(keys[0]))
    first = np.cumsum(size) - size

    def quantile(q: float) -> Floats:
        position = q * (size - 1)
        below = np.floor(position).astype(np.int64)
        above = np.minimum(below + 1, size - 1)
        low, high = ordered[first + below], ordered[first + above]
        return np.asarray(low + (high - low) * (position - below), dtype=np.float64)

    if not len(x):
        return x
    scale = (quantile(0.75) - quantile(0.25)) / IQR_OF_NORMAL
    deviation = x - quantile(0.5)[code]
    z = np.divide(deviation, scale[code], out=np.zeros_like(x), where=scale[code] > 0)
    return np.asarray(np.clip(z, -CLIP, CLIP), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class WhitepandaState:
    """The sums of whole days. Parts share no machine day.

    With U_k(m, t) the job's summed usage (0 if it did not run) over the slots t of a machine day that have a y;
    d the quasi-differences of U, e those of y, o those of 1; and S, s sums over a machine day:

    * per pair of jobs j <= k that share a machine day, sums over machine days: `within` = sum_t d_j d_k - s_j s_k / q
      with s = sum_t o d and q = sum_t o^2, and `between_days` = S_j S_k / n with S = sum_t U and n slots;
    * per job, the same with y in place of U_k: `job_within`, `job_between_days`; `samples` slots with U > 0;
      `sum_usage_squared` = sum U^2;
    * per machine and job `machine_usage` = sum U and `machine_product` = sum U y; per machine `slots`, `sum_y` and
      `sum_y_squared`;
    * `total`: slots, machine days, and the two sums of pairs with y in place of both.
    """

    pair_job: Column
    pair_other: Column
    within: Floats
    between_days: Floats
    job: Column
    job_within: Floats
    job_between_days: Floats
    samples: Ints
    sum_usage_squared: Floats
    machine_key: Column
    machine_job: Column
    machine_usage: Floats
    machine_product: Floats
    machine: Column
    slots: Floats
    sum_y: Floats
    sum_y_squared: Floats
    total: Floats

    @classmethod
    def of(cls, rows: TaskSlots) -> "WhitepandaState":
        """Make the state of whole days of some machines."""
        sensitive, (machine, slot), at, beside, place = machine_slots(rows)
        day = rows.slot[sensitive] // SLOTS_PER_DAY
        z = robust_n_cpi(rows.job[sensitive], rows.platform[sensitive], day, rows.cpi[sensitive])
        y = sums(at, z, len(slot)) / np.maximum(np.bincount(at, minlength=len(slot)), 1)
        return _state_of(machine, slot, y, place, rows.job[beside], rows.usage[beside])

    def merge(self, other: "WhitepandaState") -> "WhitepandaState":
        """Return the state of both parts together. Associative and commutative up to rounding."""
        of_jobs = ("job_within", "job_between_days", "samples", "sum_usage_squared")
        return WhitepandaState(
            **merge_sums(self, other, ("pair_job", "pair_other"), ("within", "between_days")),
            **merge_sums(self, other, ("job",), of_jobs),
            **merge_sums(self, other, ("machine_key", "machine_job"), ("machine_usage", "machine_product")),
            **merge_sums(self, other, ("machine",), ("slots", "sum_y", "sum_y_squared")),
            total=self.total + other.total,
        )

    def coefficients(self) -> WhitepandaCoefficients:
        """Solve for all jobs at once, see `whitepanda_solve`; where that turns out reversed, one at a time."""
        has = self.sum_usage_squared > 0
        jobs = self.job[has]
        usual_squared = self.sum_usage_squared[has] / self.samples[has]
        value, estimate, error = solve(self._levels(jobs, has), usual_squared)
        if are_reversed(estimate, error):
            value, estimate, error = self._one_at_a_time(jobs, has)
        return WhitepandaCoefficients(jobs, value, estimate, error, self.samples[has], self.sum_usage_squared[has])

    def _one_at_a_time(self, jobs: Column, has: npt.NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
        """PANDA's equation (3) on robust mnCPI: where a job is, and how much it uses there, is most of what counts."""
        at = find((jobs,), (self.machine_job,))
        products = sums(at[at >= 0], self.machine_product[at >= 0], len(jobs))
        # Neighbouring slots are alike, so a machine day counts as one.
        return alone(products, self.sum_usage_squared[has], float(self.sum_y_squared.sum()), float(self.total[1]))

    def _levels(self, jobs: Column, has: npt.NDArray[np.bool_]) -> list[Level]:
        """Within machine days, between days of a machine, between machines."""
        slots, machine_days, within_y, between_y = self.total.tolist()
        i, j = find((jobs,), (self.pair_job,)), find((jobs,), (self.pair_other,))
        both = (i >= 0) & (j >= 0)
        i, j = i[both], j[both]
        k, m = find((jobs,), (self.machine_job,)), find((self.machine,), (self.machine_key,))
        known = k >= 0
        k, m, usage = k[known], m[known], self.machine_usage[known]
        mean_y = self.sum_y / self.slots
        machine_products = sums(k, usage * mean_y[m], len(jobs))
        machine_y = float(self.sum_y @ mean_y)
        # Rows sqrt(n_m) * mean: their products are the regression on means of machines.
        root = np.sqrt(self.slots)
        rows = (m, k, usage / root[m], len(root))
        usage_sum = sums(k, usage, len(jobs))
        y_sum = float(self.sum_y.sum())
        one = (np.zeros(len(jobs), np.int64), np.arange(len(jobs)), usage_sum / np.sqrt(max(slots, 1)), 1)
        n = len(jobs)
        between = self.job_between_days[has] - machine_products
        machines = machine_products - usage_sum * y_sum / max(slots, 1)
        days, count = max(machine_days - len(self.machine), 1), max(len(self.machine) - 1, 1)
        pairs = ((i, j, self.within[both]), (i, j, self.between_days[both]))
        return [
            Level(n, self.job_within[has], within_y, max(slots - machine_days, 1), pairs[0]),
            Level(n, between, between_y - machine_y, days, pairs[1], less=rows),
            Level(n, machines, machine_y - y_sum**2 / max(slots, 1), count, more=rows, less=one),
        ]


def _state_of(machine: Column, slot: Ints, y: Floats, place: Ints, job: Column, usage: Floats) -> WhitepandaState:
    """Sum over machine days, each as a dense matrix (slots x jobs).

    `machine`, `slot` and `y`, the mean normalised CPI, are of each slot that has one, sorted; `place` (which of these),
    `job` and `usage` are of each task slot there.
    """
    (machine_of_day, _), of_place = group(machine, slot // SLOTS_PER_DAY)
    cells = cells_of(of_place[place], place, job)
    days = len(machine_of_day)
    first = np.searchsorted(of_place, np.arange(days + 1))
    columns = np.searchsorted(cells.machine, np.arange(days + 1))
    order = np.argsort(cells.place, kind="stable")
    entries = np.searchsorted(cells.place[order], first)
    job_sums = np.zeros((6, len(cells.machine)))
    left, right = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    within, between_days = [np.empty(0)], [np.empty(0)]
    day_sums = np.zeros((days, 5))
    for d in range(days):
        places, mine = slice(int(first[d]), int(first[d + 1])), slice(int(columns[d]), int(columns[d + 1]))
        u = cells.dense(usage, places, mine, order[entries[d] : entries[d + 1]])
        y_d = y[places]
        gram, with_y, own = quasi_differenced(u, y_d, slot[places])
        total, total_y, n = u.sum(axis=0), float(y_d.sum()), len(y_d)
        upper = np.triu_indices(u.shape[1])
        left.append(upper[0] + mine.start)
        right.append(upper[1] + mine.start)
        within.append(gram[upper])
        between_days.append((np.outer(total, total) / n)[upper])
        of_jobs = (with_y, total * total_y / n, (u > 0).sum(axis=0), (u * u).sum(axis=0), total, y_d @ u)
        for row, each in enumerate(of_jobs):
            job_sums[row, mine] = each
        day_sums[d] = [n, own, total_y**2 / n, total_y, float(y_d @ y_d)]
    job = cells.keys[0]
    pairs = {"pair_job": job[np.concatenate(left)], "pair_other": job[np.concatenate(right)]}
    job_with_y, job_totals, samples, squares, usages, products = job_sums
    by_job = {"job_within": job_with_y, "job_between_days": job_totals, "samples": samples.astype(np.int64)}
    keys = {"machine_key": machine_of_day[cells.machine], "machine_job": job}
    slots, within_y, between_y, sum_y, sum_y_squared = day_sums.T
    return WhitepandaState(
        **sum_by(pairs, {"within": np.concatenate(within), "between_days": np.concatenate(between_days)}),
        **sum_by({"job": job}, by_job | {"sum_usage_squared": squares}),
        **sum_by(keys, {"machine_usage": usages, "machine_product": products}),
        **sum_by({"machine": machine_of_day}, {"slots": slots, "sum_y": sum_y, "sum_y_squared": sum_y_squared}),
        total=np.array([slots.sum(), days, within_y.sum(), between_y.sum()]),
    )


def quasi_differenced(u: Floats, y: Floats, slot: Ints) -> tuple[Floats, Floats, float]:
    """Return products of quasi-differences about the machine day's own level: of U, of U and y, of y.

    `u` is the usage, shape (slots, jobs), `y` of each slot; `slot` their numbers, ascending; a gap begins a new run.
    """
    begins = np.append(True, np.diff(slot) != 1)
    x = np.column_stack([u, y, np.ones(len(y))])
    before = np.vstack([np.zeros(x.shape[1]), x[:-1]])
    rows = np.where(begins[:, None], np.sqrt(1 - PERSISTENCE**2) * x, x - PERSISTENCE * before)
    product = rows.T @ rows
    level = product[-1]
    product = product - np.outer(level, level) / level[-1]
    return product[:-2, :-2], product[:-2, -2], float(product[-2, -2])
