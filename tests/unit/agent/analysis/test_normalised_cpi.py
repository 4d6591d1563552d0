"""nCPI, mnCPI and victims by hand-computed numbers, and what holds for all numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.analysis.contention.normalised_cpi import (
    CpiStatistics,
    RobustLogCpi,
    SlotState,
    TaskSlot,
    is_victim,
    mn_cpi,
    n_cpi,
    slot_state,
    victim_threshold,
)

WEB = CpiStatistics(mean=1.2, std=0.35, samples=1000)
FLAT = CpiStatistics(mean=1.0, std=0.0, samples=50)


def task(name="web-1", cpi=3.1, *, ls=True, usage=2.0, statistics=WEB, job="web"):
    return TaskSlot(name, job, ls, cpi, usage, statistics)


def test_n_cpi_is_distance_from_the_mean_in_standard_deviations():
    assert n_cpi(1.9, WEB) == pytest.approx(2.0, rel=1e-12)
    assert n_cpi(1.025, WEB) == pytest.approx(-0.5, rel=1e-12)


def test_a_job_that_never_varies_has_n_cpi_0_and_no_victims():
    assert n_cpi(5.0, FLAT) == 0.0
    assert not is_victim(5.0, FLAT)


def test_a_victim_is_above_mean_plus_two_std_not_at_it():
    statistics = CpiStatistics(mean=1.0, std=0.5, samples=10)
    assert victim_threshold(statistics) == 2.0
    assert not is_victim(2.0, statistics)
    assert is_victim(2.0000001, statistics)


def test_mn_cpi_is_the_mean_over_latency_sensitive_tasks_with_known_cpi_and_statistics():
    tasks = [
        task("a", 1.9),  # nCPI 2
        task("b", 1.55),  # nCPI 1
        task("batch", 90.0, ls=False),
        task("unmeasured", None),
        task("new", 2.0, statistics=None),
    ]
    assert mn_cpi(tasks) == pytest.approx(1.5, rel=1e-12)
    assert mn_cpi(tasks[2:]) is None
    assert mn_cpi([]) is None


def test_slot_state_names_latency_sensitive_victims_only():
    state = slot_state([task("a", 1.89), task("b", 1.91), task("batch", 9.0, ls=False), task("c", None)])
    assert state.victims == ("b",)
    assert state.mn_cpi == pytest.approx((0.69 + 0.71) / 2 / 0.35, rel=1e-12)


positive = st.floats(1e-3, 1e3)
some_statistics = st.builds(CpiStatistics, positive, positive, st.integers(1, 10**9))
tasks = st.builds(
    TaskSlot,
    st.text(max_size=3),
    st.just("j"),
    st.booleans(),
    st.none() | positive,
    positive,
    st.none() | some_statistics,
)


@given(positive, some_statistics)
def test_a_victim_is_just_who_has_n_cpi_above_2(cpi, statistics):
    score = n_cpi(cpi, statistics)
    if abs(score - 2) > 1e-6:  # rounding decides at the border
        assert is_victim(cpi, statistics) == (score > 2)


@given(st.lists(tasks, max_size=8))
def test_mn_cpi_lies_between_the_extremes_and_victims_are_of_the_latency_sensitive(found):
    values = [n_cpi(t.cpi, t.statistics) for t in found if t.latency_sensitive and t.cpi and t.statistics]
    state = slot_state(found)
    if values:
        spread = max(map(abs, values))
        assert min(values) - 1e-9 * spread <= state.mn_cpi <= max(values) + 1e-9 * spread
    else:
        assert state == SlotState(None, ())


def test_robust_n_cpi_is_that_of_centrals_own_method():
    statistics = CpiStatistics(1.0, 0.5, 100, RobustLogCpi(math.log(1.2), 0.1))
    values = [n_cpi(cpi, statistics) for cpi in (1.2, 1.2 * math.exp(0.25), 9.0, 0.1)]
    assert values == pytest.approx([0.0, 2.5, 3.0, -3.0])
