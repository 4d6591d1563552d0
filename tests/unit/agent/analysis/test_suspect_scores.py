"""Scores and ranks of suspects by hand-computed numbers, and what holds for all numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.analysis.contention.normalised_cpi import TaskSlot
from agent.analysis.contention.suspect_scores import RankedSuspect, percentile_ranks, rank_suspects, suspect_score

KNOWN = {"scan": 0.75, "nice": -0.5}
finite = st.floats(-1e6, 1e6)


def batch(name, job, usage):
    return TaskSlot(name, job, False, None, usage)


def test_suspects_are_the_tasks_that_are_not_latency_sensitive():
    tasks = [TaskSlot("web", "web", True, 3.1, 2.0), batch("b", "batch", 3.0), batch("o", "other", 2.0)]
    assert rank_suspects(tasks, {"batch": 0.5, "web": 9.0}) == [
        RankedSuspect("b", "batch", 3.0, 0.5),
        RankedSuspect("o", "other", 2.0, None),
    ]


def test_suspects_are_ranked_by_coefficient_times_usage_unknown_ones_last():
    ranked = rank_suspects(
        [
            batch("small", "scan", 1.0),
            batch("unknown", "new", 60.0),
            batch("big", "scan", 4.0),
            batch("helps", "nice", 8.0),
            batch("idle", "scan", 0.0),
            batch("unknown-small", "new", 6.0),
        ],
        KNOWN,
    )
    assert [(s.task, s.score) for s in ranked] == [
        ("big", 3.0),
        ("small", 0.75),
        ("idle", 0.0),
        ("helps", -4.0),
        ("unknown", None),
        ("unknown-small", None),
    ]


def test_by_our_method_an_unknown_job_stands_where_a_harmless_one_does():
    suspects = [
        batch("helps", "nice", 8.0),
        batch("unknown-small", "new", 6.0),
        batch("idle", "scan", 0.0),
        batch("unknown", "new", 60.0),
        batch("hurts", "scan", 0.1),
    ]
    names = [s.task for s in rank_suspects(suspects, KNOWN, "whitepanda")]
    assert names == ["hurts", "idle", "unknown", "unknown-small", "helps"]
    assert [s.task for s in rank_suspects(suspects, KNOWN)] == ["hurts", "idle", "helps", "unknown", "unknown-small"]
    assert [suspect_score(None, 9.0, method) for method in ("", "panda", "whitepanda")] == [-math.inf, -math.inf, 0.0]
    assert suspect_score(0.5, 4.0, "whitepanda") == suspect_score(0.5, 4.0) == 2.0


def test_equal_scores_are_in_the_order_of_names():
    ranked = rank_suspects([batch(name, "j", 1.0) for name in "cab"], {"j": 1.0})
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


@given(st.lists(finite, min_size=2, max_size=30))
def test_percentiles_are_shares_with_mean_one_half_and_keep_the_order(scores):
    ranks = percentile_ranks(scores)
    assert all(0 <= rank <= 1 for rank in ranks)
    assert sum(ranks) / len(ranks) == pytest.approx(0.5)
    for a, rank_a in zip(scores, ranks, strict=True):
        for b, rank_b in zip(scores, ranks, strict=True):
            assert (a > b) == (rank_a > rank_b)


jobs = st.sampled_from("abc")
tasks = st.builds(batch, st.text(max_size=3), jobs, st.floats(0, 512))


@given(st.lists(tasks, max_size=12), st.dictionaries(jobs, finite))
@pytest.mark.long
def test_ranking_keeps_all_suspects_and_descends(found, coefficients):
    ranked = rank_suspects(found, coefficients)
    assert sorted((s.task, s.job, s.cpu_usage_cores) for s in ranked) == sorted(
        (s.task, s.job, s.cpu_usage_cores) for s in found
    )
    scores = [s.score for s in ranked]
    known = [score for score in scores if score is not None]
    assert known == sorted(known, reverse=True)
    assert scores == known + [None] * (len(scores) - len(known))
