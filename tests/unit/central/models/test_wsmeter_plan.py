"""WSMeter's plan: the paper's example, every optimum against enumeration and against HiGHS, and what ends a search."""

import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from central.models import wsmeter_plan
from central.models.wsmeter_plan import cheapest_plan

#: Table 2 of the paper: two services of weight 0.5, standard deviations 7.4 and 17.5 of a mean of 100.
SPREAD = np.array([0.25 * 7.4**2, 0.25 * 17.5**2])
LEAST, MOST = np.array([4, 4]), np.array([1500, 1500])
TARGET = (3.0 / 2.0) ** 2


def variance(spread, n):
    return float((spread / np.asarray(n)).sum())


def test_the_papers_example_costs_69_where_the_paper_rounds_up_to_70() -> None:
    plan = cheapest_plan(np.ones(2), SPREAD, LEAST, MOST, TARGET)
    assert plan.cost == 69
    assert plan.is_optimal
    assert plan.lower_bound == 69
    assert plan.gap_ratio == 0
    assert plan.observe.tolist() in ([20, 49], [21, 48])
    assert variance(SPREAD, (21, 49)) <= TARGET  # the paper's is feasible
    assert variance(SPREAD, plan.observe) <= TARGET
    # and nothing cheaper is
    assert all(variance(SPREAD, (n, 68 - n)) > TARGET for n in range(4, 65))


def enumerated(cost, spread, least, most, target):
    ranges = [range(low, high + 1) for low, high in zip(least, most, strict=True)]
    met = [n for n in itertools.product(*ranges) if variance(spread, n) <= target * (1 + 1e-12)]
    return min((float(cost @ np.array(n)) for n in met), default=None)


@hypothesis.given(st.integers(0, 10**9), st.integers(1, 4), st.booleans(), st.floats(0.02, 1.2))
@hypothesis.settings(max_examples=80)
def test_the_plan_is_the_cheapest_of_all(seed, jobs, has_whole_costs, tightness) -> None:
    rng = np.random.default_rng(seed)
    cost = rng.integers(1, 6, jobs).astype(float) if has_whole_costs else np.exp(rng.normal(size=jobs))
    spread = np.exp(2 * rng.normal(size=jobs))
    least = rng.integers(1, 4, jobs)
    most = least + rng.integers(0, 8, jobs)
    target = variance(spread, most) * (1 - 0.02 + tightness)
    plan = cheapest_plan(cost, spread, least, most, target)
    best = enumerated(cost, spread, least, most, target)
    if best is None:
        assert plan is None
        return
    assert plan.is_optimal
    assert plan.cost == pytest.approx(best, rel=1e-9)
    assert ((least <= plan.observe) & (plan.observe <= most)).all()
    assert plan.variance <= target * (1 + 1e-12)


def test_it_agrees_with_a_general_solver() -> None:
    rng = np.random.default_rng(5)
    jobs, most = 8, 40
    cost, spread = np.exp(rng.normal(size=jobs)), np.exp(rng.normal(size=jobs))
    least, limit = np.full(jobs, 4), np.full(jobs, most)
    target = 1.2
    n = np.arange(4, most + 1)
    # One 0/1 choice per job and number of instances.
    costs = np.concatenate([each * n for each in cost])
    one_each = np.kron(np.eye(jobs), np.ones(len(n)))
    variances = np.concatenate([each / n for each in spread])[None, :]
    solved = milp(
        costs,
        constraints=[LinearConstraint(one_each, 1, 1), LinearConstraint(variances, -np.inf, target)],
        integrality=np.ones(len(costs)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0},
    )
    plan = cheapest_plan(cost, spread, least, limit, target)
    assert plan.is_optimal
    assert plan.cost == pytest.approx(solved.fun, rel=1e-7)


@pytest.mark.parametrize("kind", ["quota", "one", "whole", "alike"])
@pytest.mark.parametrize("percent", [0.4, 1.0])
def test_a_thousand_jobs_are_planned_with_proof(kind, percent) -> None:
    rng = np.random.default_rng(1)
    jobs = 1000
    weight = (np.arange(jobs) + 7.0) ** -1.9
    weight /= weight.sum()
    std = 0.25 * np.exp(0.9 * rng.standard_normal(jobs))
    quota = np.exp(0.7 * rng.standard_normal(jobs))
    cost = {
        "quota": quota,
        "one": np.ones(jobs),
        "whole": rng.integers(1, 30, jobs) * 1.0,
        "alike": np.full(jobs, 0.37123456789),
    }
    if kind == "alike":
        weight, std = np.full(jobs, 1 / jobs), np.full(jobs, 0.4)
    most = np.maximum(4, np.rint(weight * 400_000 / quota)).astype(int)
    plan = cheapest_plan(cost[kind], (weight * std) ** 2, np.full(jobs, 4), most, (percent / 200) ** 2)
    assert plan.is_optimal
    assert plan.variance <= (percent / 200) ** 2 * (1 + 1e-12)


def test_a_target_that_all_instances_miss_has_no_plan() -> None:
    assert cheapest_plan(np.ones(2), SPREAD, LEAST, np.array([20, 48]), TARGET) is None
    assert cheapest_plan(np.ones(2), SPREAD, LEAST, np.array([20, 49]), TARGET).observe.tolist() == [20, 49]


def test_the_least_is_the_plan_where_it_suffices() -> None:
    plan = cheapest_plan(np.array([2.0, 3.0]), SPREAD, LEAST, MOST, 1e6)
    assert plan.observe.tolist() == [4, 4]
    assert (plan.cost, plan.is_optimal) == (20.0, True)


def test_the_target_is_inclusive() -> None:
    plan = cheapest_plan(np.ones(1), np.array([0.3]), np.array([1]), np.array([10]), 0.3 / 7)
    assert plan.observe.tolist() == [7]


def test_a_search_that_ends_early_reports_the_gap(monkeypatch) -> None:
    rng = np.random.default_rng(2)
    jobs = 200
    weight = (np.arange(jobs) + 7.0) ** -1.9
    cost, spread = np.exp(0.7 * rng.standard_normal(jobs)), (weight / weight.sum() * 0.3) ** 2
    arguments = (cost, spread, np.full(jobs, 4), np.full(jobs, 100_000), 0.0015**2)
    best = cheapest_plan(*arguments)
    early = cheapest_plan(*arguments, max_states=1)
    assert best.is_optimal
    assert not early.is_optimal
    assert early.variance <= 0.0015**2 * (1 + 1e-12)
    assert early.lower_bound <= best.cost <= early.cost
    assert 0 < early.gap_ratio < 0.001


def test_costs_that_are_worlds_apart_end_with_a_small_gap() -> None:
    cost, spread = np.array([1.0, 1e6]) * 1.23456789123, np.full(2, 100.0)
    plan = cheapest_plan(cost, spread, np.full(2, 4), np.full(2, 10**6), 1.0)
    # By hand: of the dear one n = 101 or more, and the other then has to be 100 / (1 - 100 / n) or more.
    by_hand = min(float(cost @ (np.ceil(100 / (1 - 100 / n) - 1e-9), n)) for n in range(101, 200))
    assert plan.cost == pytest.approx(by_hand, rel=1e-6)
    assert plan.lower_bound <= by_hand * (1 + 1e-12)
    assert plan.gap_ratio < 0.01


def test_rounding_up_the_continuous_optimum_is_caught() -> None:
    # The mutant that a greedy plan is: take instances off the continuous optimum, dearest first.
    problem = wsmeter_plan._Problem(np.ones(2), SPREAD, LEAST, MOST, TARGET)
    share = np.sqrt(SPREAD)
    rounded = np.ceil(share * share.sum() / TARGET).astype(int)
    assert rounded.tolist() == [21, 49]
    assert problem.is_met(rounded)
    assert cheapest_plan(np.ones(2), SPREAD, LEAST, MOST, TARGET).cost < rounded.sum()
