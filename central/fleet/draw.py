"""The test cluster: machines at random, drawn again until enough of the quota is on them and they are not unlike.

Source: WSMeter, section 5.2.2: "randomly pick a fixed number of machines", use the jobs with enough instances there,
"re-select the machines until the coverage becomes satisfactory". Where the machines' present values are known, a draw
is also refused if its jobs' present metric differs from the whole fleet's by more than `max_imbalance` standard errors.
Refusing the odd draws makes the later interval, which knows nothing of it, cover rather more than less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from central.fleet.tables import Rows
from central.models.groups import Column, Ints, find, group
from central.models.wsmeter import MIN_INSTANCES, Observed, TooLittleCovered, compare
from whitepanda.common.errors import InputError

__all__ = ["DrawOptions", "Drawn", "draw"]

_MIN_MACHINES = 2


@dataclass(frozen=True, slots=True)
class DrawOptions:
    """How to draw.

    Attributes:
        machines: how many; None: as many as the plan needs.
        seed: of the draws.
        min_instances: a job with fewer on the drawn machines does not count as covered.
        min_coverage: share of the weight that must be covered; with a plan and without `machines`, of planned jobs.
        max_imbalance: largest difference of the present metric from the whole fleet's, in standard errors.
        max_draws: give up after so many.

    """

    machines: int | None = None
    seed: int = 0
    min_instances: int = MIN_INSTANCES
    min_coverage: float = 0.8
    max_imbalance: float = 2.0
    max_draws: int = 1000


@dataclass(frozen=True, slots=True)
class Drawn:
    """The result of `draw`.

    Attributes:
        machines: names, sorted.
        fleet_machines: all that there are.
        draws: how many it took.
        coverage: share of the weight of jobs with enough instances there.
        imbalance: difference of the present metric from the whole fleet's, in standard errors; None without values.
        instances: number on the drawn machines, by job; every job of the fleet, heaviest first.
        planned: instances that the plan wants, by job; empty without one.

    """

    machines: tuple[str, ...]
    fleet_machines: int
    draws: int
    coverage: float
    imbalance: float | None
    instances: Mapping[str, int]
    planned: Mapping[str, int]

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
            "draws": self.draws,
            "coverage": self.coverage,
            "imbalance": self.imbalance,
            "planned_jobs": len(self.planned),
            "planned_jobs_met": len(met),
            "jobs": jobs,
        }


def draw(rows: Rows, options: DrawOptions, planned: Mapping[str, int] | None = None) -> Drawn:
    """Draw machines.

    Args:
        rows: every instance of the fleet; with values, balance is looked at too.
        options: how.
        planned: instances to observe by job, from a plan.

    Raises:
        InputError: the fleet has too few machines, or no draw is good enough.

    """
    planned = planned or {}
    (names,), machine = group(rows.observed.machine)
    (jobs,), job = group(rows.observed.job)
    weight = rows.weights.weight[np.searchsorted(rows.weights.job, jobs)]
    if options.machines is not None and not _MIN_MACHINES <= options.machines < len(names):
        raise InputError(
            f"--machines: must be {_MIN_MACHINES} to {len(names) - 1}, the fleet less one (value {options.machines})"
        )
    if options.machines is None and not planned:
        raise InputError("say how many machines: --machines N, or --plan PLAN.json")
    wanted = _wanted(jobs, planned)
    best, why = 0.0, ""
    rng = np.random.default_rng(options.seed)
    for number in range(1, options.max_draws + 1):
        order = rng.permutation(len(names))
        size = options.machines or _enough(order, machine, job, weight, wanted, options.min_coverage)
        is_drawn = np.zeros(len(names), dtype=np.bool_)
        is_drawn[order[:size]] = True
        here = is_drawn[machine]
        count = np.bincount(job[here], minlength=len(jobs))
        coverage = float(weight[count >= options.min_instances].sum() / weight.sum())
        if options.machines is not None and coverage < options.min_coverage:
            if coverage >= best:
                best = coverage
                why = f"at most {best:.1%} of the weight is of jobs with {options.min_instances} instances there"
            continue
        imbalance = _imbalance(rows, here, options.min_instances)
        if imbalance is not None and abs(imbalance) > options.max_imbalance:
            why = why or f"the present metric is off by more than {options.max_imbalance:g} standard errors"
            continue
        heaviest = np.argsort(-weight, kind="stable")
        return Drawn(
            machines=tuple(sorted(str(name) for name in names[is_drawn])),
            fleet_machines=len(names),
            draws=number,
            coverage=coverage,
            imbalance=imbalance,
            instances={str(jobs[k]): int(count[k]) for k in heaviest},
            planned=dict(planned),
        )
    raise InputError(
        f"{options.max_draws} draws, none good enough: {why}; draw more --machines, or allow less --min-coverage or "
        "more --max-imbalance"
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


def _enough(order: Ints, machine: Ints, job: Ints, weight: Column, wanted: Ints, min_coverage: float) -> int:
    """Return how many machines, in this order, have the instances wanted of jobs with that share of the weight."""
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(1, len(order) + 1)
    at = position[machine]
    rows = np.lexsort((at, job))
    first = np.searchsorted(job[rows], np.arange(len(wanted)))
    there = np.bincount(job, minlength=len(wanted))
    asked = np.flatnonzero(wanted > 0)
    short = asked[there[asked] < wanted[asked]]
    reached = np.setdiff1d(asked, short)
    needed = at[rows[first[reached] + wanted[reached] - 1]]
    by_need = np.argsort(needed, kind="stable")
    covered = np.cumsum(weight[reached][by_need]) / weight[asked].sum()
    enough = np.flatnonzero(covered >= min_coverage - 1e-12)
    if not len(enough):
        raise InputError(
            f"the fleet has too few instances of {len(short)} planned jobs to cover {min_coverage:g} of the plan's "
            "weight; plan on these rows"
        )
    return max(_MIN_MACHINES, int(needed[by_need[enough[0]]]))


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
