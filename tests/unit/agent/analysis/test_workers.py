"""How many requests a VM serves at once, from looks: golden shares of queues, the rule on looks that were drawn."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from agent.analysis.detectors import workers as workers_module
from agent.analysis.detectors.workers import EVERY_TICKS, WorkersRule, posteriors, running_shares
from agent.analysis.signals import VmKey

ALL = np.array([0])


def test_shares_of_one_and_two_workers_are_those_of_the_books():
    one, two = running_shares(np.array([0.5]), 2)[0]
    # M/M/1: busy for the share of its load. M/M/2 at a = 1/2: p0 = (2 - a) / (2 + a), p1 = a p0, the rest.
    assert one == pytest.approx([0.5, 0.5, 0.0])
    assert two == pytest.approx([0.6, 0.3, 0.1])


def test_shares_of_two_workers_are_the_pages_numbers():
    used = np.array([0.1, 0.2, 0.3, 0.4])
    both_busy = running_shares(2 * used, 2)[:, 1, 2]
    assert both_busy == pytest.approx(2 * used**2 / (1 + used))
    assert both_busy == pytest.approx([0.018, 0.067, 0.138, 0.229], abs=5e-4)


def test_shares_of_four_workers():
    # a = 2: 1, 2, 2, 4/3, then 2/3 * 4 / (4 - 2) = 4/3; their sum is 23/3.
    shares = running_shares(np.array([2.0]), 4)[0]
    assert shares[3] == pytest.approx(np.array([3, 6, 6, 4, 4]) / 23)
    # As many workers as the load, or fewer, never keep up.
    assert not shares[:2].any()
    assert shares[2] == pytest.approx(np.array([1, 2, 2, 4, 0]) / 9)


@given(st.floats(0.0, 80.0), st.integers(1, 64))
def test_shares_sum_to_one_keep_up_with_the_load_and_end_at_the_workers(load, vcpus):
    shares = running_shares(np.array([load]), vcpus)[0]
    for w in range(1, vcpus + 1):
        if load >= w:
            assert not shares[w - 1].any()
            continue
        assert shares[w - 1].sum() == pytest.approx(1.0)
        assert (shares[w - 1] @ np.arange(vcpus + 1)) == pytest.approx(load, abs=1e-6)
        assert not shares[w - 1, w + 1 :].any()


@given(
    arrays(np.float64, (3, 5), elements=st.floats(0, 300)),
    arrays(np.float64, 3, elements=st.floats(0, 6) | st.just(math.nan)),
)
def test_posteriors_are_shares_or_nothing(looks, offered):
    likely = posteriors(looks, offered)
    total = likely.sum(axis=1)
    assert np.isclose(total, 1.0).tolist() == (offered < 4).tolist()
    assert (total[~(offered < 4)] == 0).all()
    assert (likely >= 0).all()


def drawn(workers, vcpus, used, looks, seed, beside=0.02):
    """Counts of looks at an M/M/w queue, in some of which one thread more runs."""
    rng = np.random.default_rng(seed)
    shares = running_shares(np.array([used * vcpus]), vcpus)[0, workers - 1]
    running = rng.choice(vcpus + 1, looks, p=shares) + (rng.random(looks) < beside)
    return np.bincount(np.minimum(running, vcpus), minlength=vcpus + 1)[None].astype(float)


def judged(looks, used, vcpus):
    rule = WorkersRule()
    rule.match(np.array([-1]), (VmKey("a", "e", vcpus),))
    width = np.zeros((1, vcpus + 1))
    width[:, : looks.shape[1]] = looks
    rule.judge(width, np.array([used]), ALL)
    return rule.found


@pytest.mark.parametrize("beside", [0.0, 0.02, 0.1])
@pytest.mark.parametrize(
    ("workers", "vcpus", "used"), [(1, 2, 0.3), (2, 2, 0.3), (1, 4, 0.2), (2, 4, 0.3), (8, 8, 0.5)]
)
def test_the_number_is_reported_and_seldom_a_wrong_one(workers, vcpus, used, beside):
    said = [int(judged(drawn(workers, vcpus, used, 300, seed, beside), used, vcpus).workers[0]) for seed in range(40)]
    assert said.count(workers) >= 28
    assert len(said) - said.count(workers) - said.count(0) <= 3


def test_a_rule_that_takes_nothing_to_run_beside_reports_wrong_numbers(monkeypatch):
    monkeypatch.setattr(workers_module, "BESIDE", (0.0,))
    said = [int(judged(drawn(1, 2, 0.2, 300, seed), 0.2, 2).workers[0]) for seed in range(40)]
    assert said.count(2) > 20


def test_one_worker_is_reported_though_something_runs_beside_it_now_and_then():
    # 96 looks, half of them with one busy, three with something beside: one worker of two, not two.
    found = judged(np.array([[48.0, 45.0, 3.0]]), 0.25, 2)
    assert found.workers[0] == 1
    # By hand, of the shares of one worker and two at a = 0.5, a quarter each for the four shares beside.
    beside = np.array(workers_module.BESIDE)
    one = (0.5 * (1 - beside)) ** 48 * 0.5**45 * (0.5 * beside) ** 3
    two = (0.6 * (1 - beside)) ** 48 * (0.3 * (1 - beside) + 0.6 * beside) ** 45 * (0.1 + 0.3 * beside) ** 3
    assert found.posterior[0] == pytest.approx(one.sum() / (one.sum() + two.sum()))
    assert found.samples[0] == 96


@pytest.mark.parametrize(
    ("looks", "used", "vcpus"),
    [
        ([[0.0, 19.9]], 0.5, 1),  # too few
        ([[30.0, 0.0, 0.0]], 1.0, 2),  # more than any number of workers serves
        ([[30.0, 0.0, 0.0]], math.nan, 2),  # nothing known of its load
        ([[60.0, 0.0, 0.0]], 0.001, 2),  # idle: it might be either
        ([[30.0, 20.0, 3.0]], 0.25, 2),  # two by 0.77
    ],
)
def test_where_it_is_unknown_it_is_not(looks, used, vcpus):
    assert judged(np.array(looks), used, vcpus).workers[0] == 0


def test_a_single_impossible_look_is_forgotten_as_it_ages():
    """Three threads of four ran once: never with one worker and one thing beside it."""
    looks = np.array([[60.0, 60.0, 3.0, 1.0, 0.0]])
    assert judged(looks, 0.125, 4).workers[0] != 1
    looks[0, 3] = math.exp(-2000 / 300)
    assert judged(looks, 0.125, 4).workers[0] == 1


def test_each_vm_is_judged_once_in_some_ticks_and_new_ones_at_once():
    rule = WorkersRule()
    keys = tuple(VmKey(str(number), "e", 2) for number in range(33))
    rule.match(np.full(33, -1), keys)
    used = np.full(33, 0.3)
    rule.judge(np.zeros((33, 3)), used, np.full(33, 1))
    looks = np.tile([[40.0, 60.0, 0.0]], (33, 1))
    changed = []
    for seen in range(2, 2 + EVERY_TICKS):
        before = rule.found.workers
        rule.judge(looks, used, np.full(33, seen))
        changed += [(seen, row) for row in np.flatnonzero(rule.found.workers != before).tolist()]
    assert sorted(changed) == sorted([*((10, row) for row in range(32)), (9, 32)])
    # One goes, one comes, as the operator says.
    rule.match(np.array([3, -1]), (keys[3], VmKey("new", "e", 2, 1)))
    rule.judge(looks[:2], used[:2], np.array([11, 1]))
    assert rule.found.workers.tolist() == [1, 0]
    assert np.isnan(rule.found.samples).tolist() == [False, True]
