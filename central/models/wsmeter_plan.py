"""WSMeter's plan: how many instances of each job to observe for a margin, at the least cost. Pure numpy.

Source: "WSMeter: A Performance Evaluation Methodology for Google's Production Warehouse-Scale Computers" (ASPLOS 2018),
section 4.3:

    minimise  sum_k cost_k N_k   subject to  sum_k w_k^2 var_k / N_k <= V,   least_k <= N_k <= most_k,   N_k integer.

The paper leaves it to a solver. Here a bound and a search of what the bound leaves open solve it exactly:

* For a multiplier L the sum of cost_k N_k + L (w_k^2 var_k / N_k), less L V, separates by job and is smallest where
  N (N + 1) first reaches L w^2 var / cost. No plan costs less than that minimum. Bisection finds the best multiplier.
* Moving job k from there to N costs a penalty >= 0, and a plan costs at least the bound plus its penalties. So only
  N with a penalty below the gap between the best known plan and the bound remain: few N of few jobs.
* These are searched by dynamic programming over jobs, those with the least penalties first. A state (cost, variance) is
  dropped if another is not worse in either, or if its penalties and the least remaining one reach that distance.

If the search completes, no plan is cheaper by more than a relative 1e-9. If it would hold more than
`max_states`, or create too many, the cheapest plan so far is returned with the bound, so that the gap is known.
"""

import math
from dataclasses import dataclass

import numpy as np

from central.models.groups import Floats, Ints

#: Rounding: a sum of variances may exceed the inclusive target by this share.
_ROUNDING = 1e-12
#: Costs that differ by less than this share of the whole are taken as equal.
_EQUAL_COST = 1e-12
#: A plan is taken as optimal if no other is cheaper by more than this share.
_PROVEN = 1e-9
_MAX_STATES = 100_000
_QUICK_STATES = 1_000
#: States made in all before a search is given up: about a second.
_MAX_WORK = 4_000_000
_MAX_MADE = 1_000_000  # per job
_BISECTIONS = 200
_MAX_DECIMALS = 6
_MAX_WHOLE = 2**31


@dataclass(frozen=True, slots=True)
class CheapestPlan:
    """The result of `cheapest_plan`."""

    observe: Ints  # instances of each job, shape (jobs,)
    cost: float  # of all of them
    lower_bound: float  # no plan costs less. Equal to `cost` where that is proven
    is_optimal: bool  # whether it is proven that no plan is cheaper
    variance: float  # sum of w^2 var / N, at most the target

    @property
    def gap_ratio(self) -> float:
        """The largest share of its cost that the plan may be above the optimum; 0 if optimal."""
        return max(0.0, (self.cost - self.lower_bound) / self.cost)


@dataclass(frozen=True, slots=True)
class _Problem:
    cost: Floats
    spread: Floats  # w^2 * variance of one instance
    least: Ints
    most: Ints
    target: float

    def at(self, multiplier: float) -> Ints:
        """Return the instances that minimise cost + multiplier * variance, per job."""
        ratio = multiplier * self.spread / self.cost
        n = np.ceil((np.sqrt(1.0 + 4.0 * ratio) - 1.0) / 2.0)
        return np.clip(n, self.least, self.most).astype(np.int64)

    def variance(self, n: Ints) -> float:
        return float((self.spread / n).sum())

    def is_met(self, n: Ints) -> bool:
        return self.variance(n) <= self.target * (1.0 + _ROUNDING)

    def bound(self, multiplier: float) -> float:
        n = self.at(multiplier)
        return float(self.cost @ n) + multiplier * (self.variance(n) - self.target)


def cheapest_plan(
    cost: Floats, spread: Floats, least: Ints, most: Ints, target: float, max_states: int = _MAX_STATES
) -> CheapestPlan | None:
    """Return the cheapest instance counts whose variance is at most the target; None if even all are too few.

    Shapes are (jobs,): `cost` of observing one instance, > 0; `spread`, w^2 * its variance, >= 0; `least` instances to
    observe, >= 1; `most`, the existing ones. `target` is inclusive; `max_states` bounds the search, see the module.
    """
    problem = _Problem(cost, spread, least, most, target)
    if not problem.is_met(most):
        return None
    if problem.is_met(least):
        total = float(cost @ least)
        return CheapestPlan(least.copy(), total, total, is_optimal=True, variance=problem.variance(least))
    multiplier, plan = _multiplier(problem)
    plan = _trimmed(problem, plan)
    bound = problem.bound(multiplier)
    step = _common_step(cost)
    found, is_optimal = plan, False
    for states in (min(_QUICK_STATES, max_states), max_states):  # a good plan soon leaves little open
        if not is_optimal:
            found, is_optimal = _search(problem, multiplier, bound, found, step, states)
    total = float(cost @ found)
    return CheapestPlan(found, total, total if is_optimal else bound, is_optimal, problem.variance(found))


def _multiplier(problem: _Problem) -> tuple[float, Ints]:
    """Return the multiplier with the best bound, and a plan that meets the target, from just above it."""
    low, high = 0.0, 1.0
    while not problem.is_met(problem.at(high)):
        low, high = high, high * 4.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        low, high = (low, middle) if problem.is_met(problem.at(middle)) else (middle, high)
    return (high if problem.bound(high) >= problem.bound(low) else low), problem.at(high)


def _trimmed(problem: _Problem, plan: Ints) -> Ints:
    """Remove instances, one per job in turn, the most expensive first, while the target is met."""
    plan = plan.copy()
    order = np.argsort(-problem.cost, kind="stable")
    variance, is_done = problem.variance(plan), False
    while not is_done:
        is_done = True
        for k in order[plan[order] > problem.least[order]].tolist():
            fewer = variance + problem.spread[k] / (plan[k] - 1) - problem.spread[k] / plan[k]
            if fewer <= problem.target:
                variance, is_done = fewer, False
                plan[k] -= 1
    return plan


def _common_step(cost: Floats) -> float:
    """Return a unit that divides all costs: a cheaper plan is cheaper by at least that. 0 if there is none."""
    for unit in (float(cost.min()), *(10.0**-decimals for decimals in range(_MAX_DECIMALS + 1))):
        scaled = cost / unit
        whole = np.rint(scaled)
        if whole.max() < _MAX_WHOLE and (np.abs(scaled - whole) <= _EQUAL_COST * scaled).all():
            return unit * math.gcd(*whole.astype(np.int64).tolist())
    return 0.0


#: The states after one job: the job, the state that each came from, and its instances of the job.
_Layer = tuple[int, Ints, Ints]


def _search(
    problem: _Problem, multiplier: float, bound: float, best: Ints, step: float, max_states: int
) -> tuple[Ints, bool]:
    """Return the cheapest plan, and whether the search was complete. `best` is a plan that meets the target.

    No plan costs less than `bound`, of this `multiplier`, and a cheaper plan is cheaper by `step` (0: not known).
    """
    base = problem.at(multiplier)
    base_cost, base_variance = float(problem.cost @ base), problem.variance(base)
    equal, enough = _EQUAL_COST * base_cost, max(step * (1.0 - 1e-9), _PROVEN * base_cost)
    best_cost = float(problem.cost @ best)
    slack = problem.target * (1.0 + _ROUNDING) - base_variance
    open_cost = best_cost - bound - enough
    options = _options(problem, multiplier, base, open_cost)
    cost, variance = np.zeros(1), np.zeros(1)
    layers: list[_Layer] = []
    is_complete, work = True, 0
    for place, (k, instances, _) in enumerate(options):
        next_penalty = options[place + 1][2] if place + 1 < len(options) else math.inf
        if len(cost) * len(instances) > _MAX_MADE:  # the nearest only
            is_complete = False
            near = int(np.searchsorted(instances, base[k]))
            width = max(1, _MAX_MADE // (2 * len(cost)))
            instances = instances[max(0, near - width) : near + width + 1]  # noqa: PLW2901 - fewer of the same
        more_cost = problem.cost[k] * (instances - base[k])
        more_variance = problem.spread[k] / instances - problem.spread[k] / base[k]
        costs = (cost[:, None] + more_cost).ravel()
        variances = (variance[:, None] + more_variance).ravel()
        penalties = costs + multiplier * variances
        met = np.flatnonzero(variances <= slack)
        cheapest = int(met[costs[met].argmin()]) if len(met) else -1
        if cheapest >= 0 and base_cost + float(costs[cheapest]) < best_cost - equal:
            best = _unrolled(base, layers, cheapest // len(instances))
            best[k] = instances[cheapest % len(instances)]
            best_cost = base_cost + float(costs[cheapest])
            open_cost = best_cost - bound - enough
        # The state itself was checked above as a plan; only moving another job can improve it.
        kept = np.flatnonzero(penalties + next_penalty < open_cost)
        kept = kept[_undominated(costs[kept], variances[kept], equal)]
        work += len(costs)
        if len(kept) > max_states:
            is_complete = False
            kept = np.sort(kept[np.argpartition(penalties[kept], max_states)[:max_states]])
        if work > _MAX_WORK:
            is_complete = False
            break
        if not len(kept):
            break
        layers.append((k, kept // len(instances), instances[kept % len(instances)]))
        cost, variance = costs[kept], variances[kept]
    return best, is_complete


def _options(problem: _Problem, multiplier: float, base: Ints, open_cost: float) -> list[tuple[int, Ints, float]]:
    """Return the jobs that may move, the numbers of instances open, and the least penalty of a move; least first."""

    def penalty(n: Ints) -> Floats:
        return problem.cost * (n - base) + multiplier * (problem.spread / n - problem.spread / base)

    def farthest(end: Ints) -> Ints:
        """Penalties are convex in n, so the open numbers between base and an end are one range: bisection finds it."""
        inside, outside = base.copy(), end + np.sign(end - base)
        while (np.abs(outside - inside) > 1).any():
            middle = (inside + outside) // 2
            is_open = (penalty(np.maximum(middle, 1)) < open_cost) & (middle != outside)
            inside, outside = np.where(is_open, middle, inside), np.where(is_open, outside, middle)
        return inside

    fewest, largest = farthest(problem.least), farthest(problem.most)
    down = np.where(fewest < base, penalty(np.maximum(base - 1, 1)), np.inf)
    up = np.where(largest > base, penalty(base + 1), np.inf)
    dearness = np.minimum(down, up)
    order = [k for k in np.argsort(dearness, kind="stable").tolist() if math.isfinite(dearness[k])]
    return [(k, np.arange(fewest[k], largest[k] + 1), float(dearness[k])) for k in order]


def _undominated(cost: Floats, variance: Floats, equal: float) -> Ints:
    """Return the indices of the states that no other state beats in cost and variance."""
    order = np.lexsort((variance, cost))
    ordered = variance[order]
    least_before = np.minimum.accumulate(np.concatenate(([np.inf], ordered[:-1])))
    kept = order[ordered < least_before]
    # Sums of the same costs in another order differ by rounding: of two such states, the one with less variance stays.
    is_last = np.ones(len(kept), dtype=np.bool_)
    is_last[:-1] = np.diff(cost[kept]) > equal
    return np.sort(kept[is_last])


def _unrolled(base: Ints, layers: list[_Layer], state: int) -> Ints:
    """Return the plan of a state of the last layer."""
    plan = base.copy()
    for job, parent, instances in reversed(layers):
        plan[job] = instances[state]
        state = int(parent[state])
    return plan
