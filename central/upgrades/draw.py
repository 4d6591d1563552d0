"""The test cluster: machines at random, drawn again until they cover enough of the quota and resemble the fleet.

Source: WSMeter, section 5.2.2: "randomly pick a fixed number of machines", use the jobs with enough instances there,
"re-select the machines until the coverage becomes satisfactory". Where the machines' present values are known, a draw
is also refused if its jobs' present metric differs from the whole fleet's by more than `max_imbalance` standard errors.
Rejecting unbalanced draws makes the later interval conservative, because the interval does not account for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from central.models.groups import Column, Ints, find, group
from central.models.wsmeter import MIN_INSTANCES, Observed, TooLittleCovered, compare
from central.upgrades.tables import Rows
from whitepanda.common.errors import InputError

_MIN_MACHINES = 2
_NEVER = np.iinfo(np.int64).max
_ROUNDING = 1e-12  # of sums of shares


@dataclass(frozen=True, slots=True)
class DrawOptions:
    """How to draw."""

    machines: int | None = None  # how many; None: as many as the plan needs
    seed: int = 0  # of the draws
    min_instances: int = MIN_INSTANCES  # a job with fewer on the drawn machines does not count as covered
    # minimum share of the fleet's weight in jobs that `compare` can use. If a plan sets the number of machines, also
    # the minimum share of the plan's weight in jobs that get their planned instances.
    min_coverage: float = 0.8
    max_imbalance: float = 2.0  # largest difference of the present metric from the whole fleet's, in standard errors
    max_draws: int = 1000  # then give up


@dataclass(frozen=True, slots=True)
class Drawn:
    """The result of `draw`."""

    machines: tuple[str, ...]  # names, sorted
    fleet_machines: int  # all that there are
    draws: int  # how many it took
    coverage: float  # share of the weight of jobs with enough instances there
    # difference of the present metric from the whole fleet's, in standard errors; None without values.
    imbalance: float | None
    instances: Mapping[str, int]  # number on the drawn machines, by job; every job of the fleet, heaviest first
    planned: Mapping[str, int]  # instances that the plan wants, by job; empty without one

    def as_json(self, seed: int) -> dict[str, Any]:
        """Return {"machines": [...], "coverage": ..., "jobs": [{"job": ..., "instances": n}], ...}."""
        jobs = [
            {"job": job, "instances": count} | ({"observe": self.planned[job]} if job in self.planned else {})
            for job, count in self.instances.items()
            if count or job in self.planned
        ]
        met = [job for job, wanted in self.planned.items() if self.instances.get(job, 0) >= wanted]
        return {
            "machines": list(self.machines),
            "machine_count": len(self.machines),
            "fleet_machines": self.fleet_machines,
            "share": len(self.machines) / self.fleet_machines,
            "seed": seed,
            **{name: getattr(self, name) for name in ("draws", "coverage", "imbalance")},
            "planned_jobs": len(self.planned),
            "planned_jobs_met": len(met),
            "jobs": jobs,
        }


def draw(rows: Rows, options: DrawOptions, planned: Mapping[str, int] | None = None) -> Drawn:
    """Draw machines from all instances of the fleet; with values, balance counts too. `planned`: instances by job.

    Raises InputError if the fleet has too few machines, or no draw is good enough.
    """
    planned = planned or {}
    (names,), machine = group(rows.observed.machine)
    (jobs,), job = group(rows.observed.job)
    weight = rows.weights.weight[np.searchsorted(rows.weights.job, jobs)]
    if len(names) <= _MIN_MACHINES:
        raise InputError(f"a fleet of {len(names)} machines is too small to draw from; at least {_MIN_MACHINES + 1}")
    if options.machines is not None and not _MIN_MACHINES <= options.machines < len(names):
        raise InputError(
            f"--machines: must be {_MIN_MACHINES} to {len(names) - 1}, the fleet less one (value {options.machines})"
        )
    if options.machines is None and not planned:
        raise InputError("the number of machines is needed: --machines N, or --plan PLAN.json")
    fleet = _Fleet(machine, job, weight, len(names), options)
    wanted = _wanted(jobs, planned)
    best, why = 0.0, ""
    rng = np.random.default_rng(options.seed)
    for number in range(1, options.max_draws + 1):
        order = rng.permutation(len(names))
        size = options.machines or fleet.enough(order, wanted)
        is_drawn = np.zeros(len(names), dtype=np.bool_)
        is_drawn[order[:size]] = True
        here = is_drawn[machine]
        count = np.bincount(job[here], minlength=len(jobs))
        coverage = fleet.coverage(is_drawn, count)
        if coverage < options.min_coverage - _ROUNDING:
            if coverage >= best:
                best = coverage
                why = f"at most {best:.1%} of the weight is of jobs with {options.min_instances} instances there"
            continue
        imbalance = _imbalance(rows, here, options.min_instances)
        if imbalance is not None and abs(imbalance) > options.max_imbalance:
            why = why or f"the present metric is off by more than {options.max_imbalance:g} standard errors"
            continue
        machines = tuple(sorted(str(name) for name in names[is_drawn]))
        instances = {str(jobs[k]): int(count[k]) for k in np.argsort(-weight, kind="stable")}
        return Drawn(machines, len(names), number, coverage, imbalance, instances, dict(planned))
    raise InputError(
        f"{options.max_draws} draws, none good enough: {why}; raise --machines, lower --min-coverage or raise "
        "--max-imbalance"
    )


def _wanted(jobs: Column, planned: Mapping[str, int]) -> Ints:
    """Return the instances wanted of each job, 0 for those not planned."""
    wanted = np.zeros(len(jobs), dtype=np.int64)
    if planned:
        place = find([jobs], [np.array(list(planned))])
        unknown = next((name for name, at in zip(planned, place, strict=True) if at < 0), None)
        if unknown is not None:
            raise InputError(f"the plan's job {unknown} has no instance in the fleet's rows")
        wanted[place] = list(planned.values())
    return wanted


class _Fleet:
    """The rows of a fleet by numbers, and the share of the weight that some of its machines cover."""

    def __init__(self, machine: Ints, job: Ints, weight: Column, machines: int, options: DrawOptions) -> None:
        self._machine, self._job, self._weight = machine, job, weight
        self._machines, self._options = machines, options
        # A job on a single machine cannot be compared, so machines per job are needed too.
        (self._pair_machine, self._pair_job), _ = group(machine, job)

    def coverage(self, is_drawn: Column, count: Ints) -> float:
        """Return the share of the weight whose jobs, with `count` instances, can be compared on the machines drawn."""
        there = np.bincount(self._pair_job[is_drawn[self._pair_machine]], minlength=len(self._weight))
        is_enough = (count >= self._options.min_instances) & (there >= _MIN_MACHINES)
        return float(self._weight[is_enough].sum() / self._weight.sum())

    def enough(self, order: Ints, wanted: Ints) -> int:
        """Return how many machines, in this order, cover enough of the plan's weight and of the fleet's."""
        position = np.empty(self._machines, dtype=np.int64)
        position[order] = np.arange(1, self._machines + 1)
        at, pair_at = position[self._machine], position[self._pair_machine]
        of_plan = self._covered_at(
            _reached_at(at, self._job, wanted),
            wanted > 0,
            f"the fleet has too few instances of the planned jobs to cover {self._options.min_coverage:g} of the "
            "plan's weight; plan on these rows",
        )
        comparable = np.maximum(
            _reached_at(at, self._job, np.full(len(wanted), self._options.min_instances)),
            _reached_at(pair_at, self._pair_job, np.full(len(wanted), _MIN_MACHINES)),
        )
        of_fleet = self._covered_at(
            comparable,
            np.ones(len(wanted), dtype=np.bool_),
            f"jobs with {self._options.min_instances} instances on two machines have less than "
            f"{self._options.min_coverage:g} of the fleet's weight; lower --min-coverage or --min-instances",
        )
        return max(_MIN_MACHINES, of_plan, of_fleet)

    def _covered_at(self, reached: Ints, of: Column, why_never: str) -> int:
        """Return how many machines cover enough of the weight of the jobs in `of`; raises InputError if none do."""
        by_need = np.argsort(reached[of], kind="stable")
        needed, weight = reached[of][by_need], self._weight[of][by_need]
        covered = np.cumsum(weight) / weight.sum()
        first = int(np.searchsorted(covered, self._options.min_coverage - _ROUNDING))
        if first >= len(needed) or needed[first] == _NEVER:
            raise InputError(why_never)
        return int(needed[first])


def _reached_at(at: Ints, job: Ints, wanted: Ints) -> Ints:
    """Return the place `at` (from 1) where each job has as many rows as are wanted; `_NEVER` if it has fewer."""
    rows = np.lexsort((at, job))
    there = np.bincount(job, minlength=len(wanted))
    first = np.searchsorted(job[rows], np.arange(len(wanted)))
    found = np.where(wanted > 0, _NEVER, 0)
    is_there = (wanted > 0) & (there >= wanted)
    found[is_there] = at[rows[first[is_there] + wanted[is_there] - 1]]
    return found


def _imbalance(rows: Rows, here: Column, min_instances: int) -> float | None:
    """Return by how many standard errors the drawn machines' present metric is off; None without values."""
    seen = rows.observed
    if not rows.metric:
        return None
    sample = Observed(seen.machine[here], seen.job[here], seen.value[here])
    try:
        difference = compare(seen, sample, rows.weights, min_instances=min_instances).difference
    except TooLittleCovered:
        return None
    return difference.value / difference.standard_error if difference.standard_error else 0.0
