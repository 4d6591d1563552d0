"""The live trigger's bars by bench/trigger/study.py's own parts: few hosts (long), so rates are known roughly only."""

import numpy as np
import pytest

from agent.analysis.contention.live_trigger import THRESHOLD
from bench.trigger import study as trigger

HOSTS = range(1, 11)


@pytest.fixture(scope="module")
def fleet():
    return trigger.statistics(range(9000, 9003))


def test_recall_over_all_rises_leaves_chance_out():
    counts = trigger.Counts()
    counts.event((0.0, 60), np.array([True]))
    counts.event((0.01, 60), np.array([False, False]))
    counts.event((0.2, 60), np.array([False, True]))
    counts.event((0.2, 3600), np.array([True]))
    assert trigger.overall(counts) == pytest.approx(2 / 3)


def test_a_moved_limit_is_so_much_farther_from_the_median():
    past = np.array([[0.1, 0.2], [1.1, 0.7]])
    assert trigger.PaperRule(1.0).limits(past) == pytest.approx(past[1])
    assert trigger.PaperRule(2.0).limits(past) == pytest.approx([2.1, 1.2])


@pytest.mark.long
def test_quiet_hosts_and_recall(fleet):
    whitepanda, paper = trigger.Counts(), trigger.PaperRule(1.0)
    for seed in HOSTS:
        trigger.play(seed, fleet, THRESHOLD, whitepanda)
        trigger.play_paper(seed, fleet, (paper,))
    rate, _, high = whitepanda.rate()
    assert whitepanda.weeks == len(HOSTS)
    assert rate <= 1, (whitepanda.incidents, high)
    assert trigger.overall(whitepanda) >= trigger.overall(paper.counts)


@pytest.mark.long
def test_a_lower_threshold_has_too_many(fleet):
    whitepanda = trigger.Counts()
    for seed in HOSTS[:2]:
        trigger.play(seed, fleet, 0.6 * THRESHOLD, whitepanda, with_events=False)
    _, low, _ = whitepanda.rate()
    assert low > 1, whitepanda.incidents
