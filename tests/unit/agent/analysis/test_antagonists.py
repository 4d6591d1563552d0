"""PANDA's equations by hand-computed numbers, and what holds for all numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.analysis.antagonists.panda import (
    CERTAIN_MN_CPI,
    MIN_HISTORY_SLOTS,
    CpiStatistics,
    RankedSuspect,
    RobustLogCpi,
    SlotState,
    Suspect,
    TaskSlot,
    is_triggered,
    is_victim,
    mn_cpi,
    mn_cpi_threshold,
    n_cpi,
    percentile_ranks,
    rank_suspects,
    slot_state,
    suspect_score,
    suspects_of,
    victim_threshold,
)
from collector.base import Reason

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


HOT = SlotState(2.0, ("a",))
QUIET = SlotState(0.1, ())


@pytest.mark.parametrize(
    ("slots", "threshold", "fires"),
    [
        ([HOT, HOT, HOT], 1.0, True),
        ([QUIET, HOT, HOT, HOT], 1.0, True),
        ([HOT, HOT], 1.0, False),
        ([HOT, QUIET, HOT], 1.0, False),
        ([QUIET, HOT, HOT], 1.0, False),
        ([HOT, HOT, QUIET], 1.0, False),
        ([HOT, HOT, HOT, SlotState(2.0, ())], 1.0, False),
        ([HOT, HOT, HOT], 2.0, False),
        ([SlotState(0.1, ("a",)), SlotState(0.1, ("b",)), HOT], 1.0, True),
        ([HOT, HOT, SlotState(None, ())], 1.0, False),
    ],
)
def test_trigger_wants_victims_in_three_slots_in_a_row_and_contention_now(slots, threshold, fires):
    assert is_triggered(slots, threshold, 3) is fires


def test_trigger_never_fires_on_nothing():
    assert not is_triggered([], -1.0, 0)
    assert not is_triggered([], -1.0, 1)


def test_threshold_is_the_floor_until_there_is_history():
    assert mn_cpi_threshold([2.0] * (MIN_HISTORY_SLOTS - 1), 99, 1.0) == 1.0
    assert mn_cpi_threshold([2.0] * MIN_HISTORY_SLOTS, 99, 1.0) == 2.0


def test_threshold_is_the_interpolated_percentile_but_never_below_the_floor():
    history = [i / 100 for i in range(101)]  # 0.00 to 1.00: the p-th percentile is p / 100
    assert mn_cpi_threshold(history, 99, 0.0) == pytest.approx(0.99)
    assert mn_cpi_threshold(history[::-1], 50.5, 0.0) == pytest.approx(0.505)
    assert mn_cpi_threshold(history, 100, 0.0) == 1.0
    assert mn_cpi_threshold(history, 99, 1.5) == 1.5


def test_suspects_are_the_tasks_that_are_not_latency_sensitive():
    tasks = [task("web"), task("b", ls=False, job="batch", usage=3.0), task("o", None, ls=False, job="other")]
    assert suspects_of(tasks, {"batch": 0.5, "web": 9.0}) == [
        Suspect("b", "batch", 3.0, 0.5),
        Suspect("o", "other", 2.0, None),
    ]


def test_suspects_are_ranked_by_coefficient_times_usage_unknown_ones_last():
    ranked = rank_suspects(
        [
            Suspect("small", "scan", 1.0, 0.75),
            Suspect("unknown", "new", 60.0, None),
            Suspect("big", "scan", 4.0, 0.75),
            Suspect("helps", "nice", 8.0, -0.5),
            Suspect("idle", "scan", 0.0, 0.75),
            Suspect("unknown-small", "new", 6.0, None),
        ]
    )
    assert [(s.task, s.score) for s in ranked] == [
        ("big", 3.0),
        ("small", 0.75),
        ("idle", 0.0),
        ("helps", -4.0),
        ("unknown", None),
        ("unknown-small", None),
    ]
    assert ranked[4] == RankedSuspect("unknown", "new", 60.0, None, None, Reason.NO_COEFFICIENTS)
    assert ranked[0].reason is Reason.UNSPECIFIED


def test_by_our_method_an_unknown_job_stands_where_a_harmless_one_does():
    suspects = [
        Suspect("helps", "nice", 8.0, -0.5),
        Suspect("unknown-small", "new", 6.0, None),
        Suspect("idle", "scan", 0.0, 0.75),
        Suspect("unknown", "new", 60.0, None),
        Suspect("hurts", "scan", 0.1, 0.75),
    ]
    names = [s.task for s in rank_suspects(suspects, "whitepanda")]
    assert names == ["hurts", "idle", "unknown", "unknown-small", "helps"]
    assert [s.task for s in rank_suspects(suspects)] == ["hurts", "idle", "helps", "unknown", "unknown-small"]
    assert [suspect_score(None, 9.0, method) for method in ("", "panda", "whitepanda")] == [-math.inf, -math.inf, 0.0]
    assert suspect_score(0.5, 4.0, "whitepanda") == suspect_score(0.5, 4.0) == 2.0


def test_equal_scores_are_in_the_order_of_names():
    ranked = rank_suspects([Suspect(name, "j", 1.0, 1.0) for name in "cab"])
    assert [s.task for s in ranked] == ["a", "b", "c"]


def test_percentile_of_ranks_by_hand():
    assert percentile_ranks([3.0, 1.0, 2.0, 0.0, -1.0]) == [1.0, 0.5, 0.75, 0.25, 0.0]


def test_percentile_of_tied_ranks_is_their_mean():
    # Ranks 1, 2.5, 2.5, 4 of 4: (4 - r) / 3.
    assert percentile_ranks([9.0, 5.0, 5.0, 1.0]) == pytest.approx([1.0, 0.5, 0.5, 0.0])
    assert percentile_ranks([7.0, 7.0]) == [0.5, 0.5]


def test_a_lone_score_has_no_percentile():
    assert percentile_ranks([4.0]) == [None]
    assert percentile_ranks([]) == []


finite = st.floats(-1e6, 1e6)
positive = st.floats(1e-3, 1e3)
some_statistics = st.builds(CpiStatistics, positive, positive, st.integers(1, 10**9))
suspects = st.builds(Suspect, st.text(max_size=3), st.sampled_from("abc"), st.floats(0, 512), st.none() | finite)
tasks = st.builds(
    TaskSlot,
    st.text(max_size=3),
    st.just("j"),
    st.booleans(),
    st.none() | positive,
    positive,
    st.none() | some_statistics,
)


@given(st.lists(finite, min_size=2, max_size=30))
def test_percentiles_are_shares_with_mean_one_half_and_keep_the_order(scores):
    ranks = percentile_ranks(scores)
    assert all(0 <= rank <= 1 for rank in ranks)
    assert sum(ranks) / len(ranks) == pytest.approx(0.5)
    for a, rank_a in zip(scores, ranks, strict=True):
        for b, rank_b in zip(scores, ranks, strict=True):
            assert (a > b) == (rank_a > rank_b)


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


@given(st.lists(suspects, max_size=12))
def test_ranking_keeps_all_suspects_and_descends(found):
    ranked = rank_suspects(found)
    assert sorted((s.task, s.job, s.cpu_usage_cores) for s in ranked) == sorted(
        (s.task, s.job, s.cpu_usage_cores) for s in found
    )
    scores = [s.score for s in ranked]
    known = [score for score in scores if score is not None]
    assert known == sorted(known, reverse=True)
    assert scores == known + [None] * (len(scores) - len(known))
    assert all((s.score is None) == (s.reason is Reason.NO_COEFFICIENTS) for s in ranked)


@given(st.lists(finite, max_size=150), st.floats(50, 100), finite)
def test_threshold_is_at_least_the_floor_and_at_most_the_largest(history, percentile, floor):
    threshold = mn_cpi_threshold(history, percentile, floor)
    assert min(floor, CERTAIN_MN_CPI) <= threshold <= min(max([floor, *history]), CERTAIN_MN_CPI)


def test_robust_n_cpi_is_that_of_centrals_own_method():
    statistics = CpiStatistics(1.0, 0.5, 100, RobustLogCpi(math.log(1.2), 0.1))
    values = [n_cpi(cpi, statistics) for cpi in (1.2, 1.2 * math.exp(0.25), 9.0, 0.1)]
    assert values == pytest.approx([0.0, 2.5, 3.0, -3.0])
