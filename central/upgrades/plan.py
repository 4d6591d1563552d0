"""Plans: which jobs to observe, how many instances of each; and again, once some have been observed.

Source: WSMeter (see `central.models.wsmeter_plan`), sections 4.3 and 5.1. The margin is relative to the present
weighted mean of the selected jobs, whose weights are made to sum to 1.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from central.models.groups import Column, Floats, Ints, find, group
from central.models.wsmeter import MIN_INSTANCES, MachineMeans, Observed
from central.models.wsmeter_plan import CheapestPlan, cheapest_plan
from central.upgrades.tables import Jobs
from whitepanda.common.errors import FieldError, InputError


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What is wanted."""

    margin_percent: float  # half width of the interval, of the weighted mean
    t: float = 2.0  # standard errors in it; 2 is about 95 %
    min_instances: int = MIN_INSTANCES  # of each job; those with fewer are left out
    top: int | None = None  # only this number of the heaviest jobs
    coverage: float | None = None  # only the heaviest jobs that together have this share of the weight
    design_effect: float = 1.0  # multiplies variances, as instances of a machine are not independent
    # of machines' mean values; decides how many machines the paper's baseline needs.
    machine_std_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Fidelity:
    """The observed instances, compared with the plan's target."""

    is_met: bool  # whether the margin is reached on all planned jobs
    margin_percent: float  # t standard errors, by machines, of the planned jobs that were observed often enough
    independent_margin_percent: float  # the same if instances were independent
    design_effect: float | None  # ratio of these variances
    coverage: float  # share of the planned weight that was observed often enough
    instances: Ints  # observed of each planned job, in the plan's order
    larger: tuple[str, ...]  # jobs whose new standard deviation is larger than the planned one


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of `make_plan`; jobs heaviest first, weights of sum 1."""

    options: PlanOptions  # what was wanted
    jobs: Jobs  # those to observe, with their standard deviations as planned with
    solution: CheapestPlan  # how many of each
    metric_mean: float  # weighted, at present
    coverage: float  # share of all weight that the jobs have
    # jobs with too few instances; None if central made the plan, which does not name them.
    left_out: tuple[str, ...] | None = ()
    too_few: int = 0  # how many they are
    fidelity: Fidelity | None = None  # of what was observed before, if anything was
    more: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def expected_margin_percent(self) -> float:
        """The margin that the plan reaches if variances are as planned with."""
        return 100.0 * self.options.t * math.sqrt(self.solution.variance) / self.metric_mean

    @property
    def baseline_machines(self) -> int | None:
        """Machines that the paper's machine-granularity baseline needs for the same margin."""
        if self.options.machine_std_percent is None:
            return None
        needed = (self.options.t * self.options.machine_std_percent / self.options.margin_percent) ** 2
        return math.ceil(needed - 1e-9)

    def as_json(self) -> dict[str, Any]:
        """Return {"jobs": [{"job": ..., "observe": N, ...}], "cost": ..., "is_optimal": ..., ...}."""
        columns = (self.jobs.job, self.solution.observe, self.jobs.weight, self.jobs.cost)
        jobs = [
            {"job": str(job), "observe": int(n), "weight": float(weight), "cost": float(cost * n)}
            for job, n, weight, cost in zip(*columns, strict=True)
        ]
        summary: dict[str, Any] = {
            "jobs": jobs,
            **{name: getattr(self.solution, name) for name in ("cost", "is_optimal", "lower_bound", "gap_ratio")},
            "instances": int(self.solution.observe.sum()),
            "margin_percent": self.options.margin_percent,
            "t": self.options.t,
            "expected_margin_percent": self.expected_margin_percent,
            "design_effect": self.options.design_effect,
            "metric_mean": self.metric_mean,
            "coverage": self.coverage,
            "left_out": None if self.left_out is None else list(self.left_out),
            "left_out_count": self.too_few,
            "baseline_machines": self.baseline_machines,
        }
        if self.fidelity is not None:
            for row, observed, more in zip(jobs, self.fidelity.instances, self.more, strict=True):
                row |= {"observed": int(observed), "more": int(more)}
            names = ("is_met", "margin_percent", "independent_margin_percent", "design_effect", "coverage")
            summary["observed"] = {
                **{name: getattr(self.fidelity, name) for name in names},
                "larger_std": list(self.fidelity.larger),
                "more_instances": int(self.more.sum()),
                "more_cost": float(self.jobs.cost @ self.more),
            }
        return summary


def make_plan(jobs: Jobs, options: PlanOptions, observed: Observed | None = None) -> Plan:
    """Return the cheapest plan for a margin. Raises InputError if no job is left, or not even all instances suffice.

    `observed` has the instances observed under an earlier plan, which count. Of planned and observed standard
    deviations, and design effects, the larger one is used.
    """
    chosen, left_out = _chosen(jobs, options)
    weight = jobs.weight[chosen] / jobs.weight[chosen].sum()
    mean = float(weight @ jobs.mean[chosen])
    target = (options.margin_percent / 100.0 * mean / options.t) ** 2
    std, effect, fidelity = jobs.std[chosen], options.design_effect, None
    instances = jobs.instances[chosen]
    least = np.full(len(chosen), options.min_instances, dtype=np.int64)
    if observed is not None:
        fidelity, std = _held_against(observed, jobs.job[chosen], weight, std, mean, target, options)
        effect = max(effect, fidelity.design_effect or 1.0)
        least = np.maximum(least, np.minimum(fidelity.instances, instances))
    solution = cheapest_plan(jobs.cost[chosen], effect * (weight * std) ** 2, least, instances, target)
    if solution is None:
        reached = 100.0 * options.t * math.sqrt(float((effect * (weight * std) ** 2 / instances).sum())) / mean
        raise InputError(
            f"margin {options.margin_percent:g} % cannot be reached: all {int(instances.sum()):,} instances give "
            f"{reached:.3g} % at t = {options.t:g}; allow a wider margin"
        )
    more = np.zeros(len(chosen), dtype=np.int64)
    if fidelity is not None and not fidelity.is_met:
        more = np.maximum(solution.observe - fidelity.instances, 0)
    planned = Jobs(jobs.job[chosen], weight, jobs.mean[chosen], std, instances, jobs.cost[chosen])
    coverage = float(jobs.weight[chosen].sum() / jobs.weight.sum())
    return Plan(options, planned, solution, mean, coverage, left_out, len(left_out), fidelity, more)


def _chosen(jobs: Jobs, options: PlanOptions) -> tuple[Ints, tuple[str, ...]]:
    """Return the places of the jobs to observe, heaviest first, and the names of those with too few instances."""
    order = np.argsort(-jobs.weight, kind="stable")
    is_enough = jobs.instances[order] >= options.min_instances
    left_out = tuple(str(job) for job in jobs.job[order[~is_enough]])
    order = order[is_enough]
    if not len(order):
        raise InputError(f"no job has {options.min_instances} instances (column instances); see --min-instances")
    if options.coverage is not None:
        reached = np.cumsum(jobs.weight[order]) / jobs.weight.sum()
        enough = np.flatnonzero(reached >= options.coverage - 1e-12)
        if not len(enough):
            have = f"jobs with {options.min_instances} instances have only {reached[-1]:.3g} of the weight"
            raise FieldError("coverage", f"{options.coverage:g}: {have}")
        order = order[: int(enough[0]) + 1]
    return order[: options.top], left_out


def _held_against(
    observed: Observed, jobs: Column, weight: Floats, std: Floats, mean: float, target: float, options: PlanOptions
) -> tuple[Fidelity, Floats]:
    """Return what the observed instances reach, and the standard deviations to plan with."""
    (names,), number = group(observed.job)
    place = find([jobs], [names])[number]
    used = place >= 0
    count = np.bincount(place[used], minlength=len(jobs)).astype(np.int64)
    _, machine = group(observed.machine)
    (_, of_job), _ = group(machine[used], place[used])
    enough = (count >= options.min_instances) & (np.bincount(of_job, minlength=len(jobs)) > 1)
    coverage = float(weight[enough].sum())
    if not enough.any():
        raise InputError(f"observed: no planned job has {options.min_instances} instances on two machines or more")
    cell = np.where(enough, np.cumsum(enough) - 1, -1)[place]
    used &= cell >= 0
    cells = int(enough.sum())
    means = MachineMeans(machine[used], cell[used], observed.value[used], cells)
    share = weight[enough] / coverage
    variance = float(means.variances(share, np.zeros(cells, dtype=np.int64), 1)[0][0])
    independent = float((share**2 * means.variance / means.n).sum())
    new = std.copy()
    new[enough] = np.maximum(std[enough], np.sqrt(means.variance))
    fidelity = Fidelity(
        is_met=bool(enough.all()) and variance <= target,
        margin_percent=100.0 * options.t * math.sqrt(variance) / mean,
        independent_margin_percent=100.0 * options.t * math.sqrt(independent) / mean,
        design_effect=variance / independent if independent > 0 else None,
        coverage=coverage,
        instances=count,
        larger=tuple(str(job) for job in jobs[new > std]),
    )
    return fidelity, new
