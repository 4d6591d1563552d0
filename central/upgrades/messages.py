"""Plans and comparisons asked of central's fleet API: requests from options, and answers as plans and comparisons.

The code that shows, draws and writes the results of files then does the same with central's answers.
"""

import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from central.models.wsmeter import Comparison, Interval, JobDifference, Observed
from central.models.wsmeter_plan import CheapestPlan
from central.upgrades.lake_rows import Side
from central.upgrades.plan import Plan, PlanOptions, make_plan
from central.upgrades.tables import Jobs
from whitepanda.common.errors import InputError
from whitepanda.v1 import fleet_pb2

_MAX_UINT32 = 2**32 - 1
_MAX_INT64 = 2**63 - 1
#: In a request 0 means the usual share; this asks for a share of 0.
_ALMOST_NONE = sys.float_info.min


def plan_request(side: Side, metric: str, options: PlanOptions, weigh_by: str = "") -> fleet_pb2.PlanObservationRequest:
    """Return the request of a plan.

    Raises InputError if the side is of hosts: jobs are planned on a whole fleet or platform.
    """
    if side.hosts is not None:
        raise InputError(f"side '{side.text}': a plan covers all hosts; give platform=, from= and until=, omit hosts=")
    return fleet_pb2.PlanObservationRequest(
        margin_percent=options.margin_percent,
        t=options.t,
        metric=metric,
        platform=side.platform or "",
        since_unix_ns=_unix_ns(side.from_ns),
        until_unix_ns=_unix_ns(side.until_ns),
        min_instances=min(options.min_instances, _MAX_UINT32),
        top=min(options.top or 0, _MAX_UINT32),
        coverage=0.0 if options.coverage is None else max(options.coverage, _ALMOST_NONE),
        design_effect=options.design_effect,
        weigh_by=weigh_by,
    )


def jobs_of_plan(answer: fleet_pb2.ObservationPlan) -> Jobs:
    """Return the jobs that a plan observes, with the cost of one instance."""
    names = ("job", "weight", "mean", "std", "instances")
    columns = {name: np.array([getattr(job, name) for job in answer.jobs]) for name in names}
    return Jobs(**columns, cost=np.array([job.cost / job.observe for job in answer.jobs]))


def plan_of(answer: fleet_pb2.ObservationPlan, jobs: Jobs, options: PlanOptions, observed: Observed | None) -> Plan:
    """Return central's plan of these `jobs`; with instances `observed` under an earlier plan, a new plan for them.

    Raises InputError if not even all instances suffice for what was observed.
    """
    if observed is not None:
        # Central has chosen the jobs already.
        made = make_plan(jobs, replace(options, top=None, coverage=None), observed)
        return replace(made, options=options, coverage=answer.coverage, left_out=None, too_few=answer.jobs_too_few)
    observe = np.array([job.observe for job in answer.jobs], dtype=np.int64)
    error = answer.expected_margin_percent / 100.0 * answer.metric_mean / options.t
    found = CheapestPlan(observe, answer.cost, answer.lower_bound, answer.is_optimal, error**2)
    return Plan(options, jobs, found, answer.metric_mean, answer.coverage, left_out=None, too_few=answer.jobs_too_few)


def comparison_request(
    sides: tuple[Side, Side],
    metric: str,
    *,
    min_instances: int,
    min_coverage: float,
    top: int | None,
    confidence: float,
    weigh_by: str = "",
) -> fleet_pb2.CompareSidesRequest:
    """Return the request of a comparison."""
    fields: dict[str, Any] = {}
    for name, side in zip(("current", "new"), sides, strict=True):
        fields |= {f"{name}_hosts": side.hosts or (), f"{name}_platform": side.platform or ""}
        fields |= {f"{name}_since_unix_ns": _unix_ns(side.from_ns), f"{name}_until_unix_ns": _unix_ns(side.until_ns)}
        fields[f"{name}_rest"] = bool(side.not_hosts)
    return fleet_pb2.CompareSidesRequest(
        **fields,
        metric=metric,
        min_instances=min(min_instances, _MAX_UINT32),
        min_coverage=max(min_coverage, _ALMOST_NONE),
        top=min(top or 0, _MAX_UINT32),
        confidence=confidence,
        weigh_by=weigh_by,
    )


def comparison_of(answer: fleet_pb2.SideComparison) -> Comparison:
    """Return central's comparison; of its jobs as many as the answer holds."""
    same = ("job", "weight", "current", "new", "p", "adjusted_p", "verdict")
    return Comparison(
        current=_interval(answer.current),
        new=_interval(answer.new),
        difference=_interval(answer.difference_percent, 100.0),
        independent=_interval(answer.independent_percent, 100.0),
        baseline=_interval(answer.baseline_percent, 100.0) if answer.HasField("baseline_percent") else None,
        coverage=answer.coverage,
        confidence=answer.confidence,
        machines=(answer.current_machines, answer.new_machines),
        instances=(answer.current_instances, answer.new_instances),
        jobs=tuple(
            JobDifference(
                **{name: getattr(job, name) for name in same},
                instances=(job.current_instances, job.new_instances),
                difference=_interval(job.difference_percent, 100.0),
            )
            for job in answer.jobs
        ),
        left_out={one.reason: one.count for one in answer.left_out},
        p=answer.p,
    )


def _interval(estimate: fleet_pb2.Estimate, scale: float = 1.0) -> Interval:
    value, low, high = estimate.value / scale, estimate.low / scale, estimate.high / scale
    return Interval(value, low, high, estimate.standard_error / scale, estimate.degrees_of_freedom or math.inf)


def _unix_ns(time_ns: int | None) -> int:
    """Return a time of a request, in which 0 means no time."""
    return 0 if time_ns is None else min(max(time_ns, 1), _MAX_INT64)
