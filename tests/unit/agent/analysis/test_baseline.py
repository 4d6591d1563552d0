"""Baselines: robust means, noise as it is, age."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.analysis.detectors import baseline as baseline_module
from agent.analysis.detectors.baseline import Baselines, BaselineSettings, taken
from agent.analysis.signals import VmKey
from tests.unit.agent.interference import remembered

KEYS = (VmKey("a", "e1", 2), VmKey("b", "e1", 2))
YES, NO = np.array([True, True]), np.array([False, False])


def baselines(**settings):
    # One plain column, one noisy.
    return Baselines(BaselineSettings(**settings), ("plain", "noisy"), np.array([0.05]), np.array([0.001]))


def feed(made, values, *, quiet=YES, held=NO, keys=KEYS):
    for at, row in enumerate(values):
        made.match(keys, float(at))
        both = np.broadcast_to(np.asarray(row, np.float64), (2, 2)).copy()
        made.observe(both)
        made.learn(both, 1.0, quiet=quiet, held=held)


def test_the_mean_is_that_of_quiet_ticks_and_outliers_hardly_count():
    rng = np.random.default_rng(1)
    values = 5 + 0.1 * rng.normal(size=(200, 1))
    values[50::20] = 500.0
    made = baselines()
    feed(made, values)
    assert made.mean == pytest.approx(np.full((2, 2), 5.0), abs=0.05)
    assert made.ticks.tolist() == [200, 200]


def test_without_the_clip_outliers_would_count(monkeypatch):
    monkeypatch.setattr(baseline_module, "_CLIP", 1e9)
    rng = np.random.default_rng(1)
    values = 5 + 0.1 * rng.normal(size=(200, 1))
    values[50::20] = 500.0
    made = baselines()
    feed(made, values)
    assert (made.mean > 10).all()


@pytest.mark.long
@pytest.mark.parametrize(("correlation_s", "low", "high"), [(0.05, 0.4, 0.75), (60.0, 0.8, 1.1)])
def test_noise_that_is_remembered_does_not_shrink_with_the_window(correlation_s, low, high):
    rng = np.random.default_rng(2)
    noise = np.log(remembered(rng, 4000, 1, 0.1, correlation_s))
    made = baselines(quiet_time_constant_s=4000.0)
    feed(made, noise)
    short, long = (math.sqrt(made.variance(ticks)[0, 0]) for ticks in (4, 16))
    assert low <= long / short <= high
    middle = math.sqrt(made.variance(8)[0, 0])
    assert long <= middle <= short


def test_what_is_held_is_learnt_with_the_long_time_constant():
    made = baselines(held_time_constant_s=1000.0)
    feed(made, [[1.0]] * 100)
    feed(made, [[2.0]] * 100, quiet=NO, held=YES)
    assert made.mean[0] == pytest.approx(2 - 0.999**100, abs=1e-3)
    assert made.ticks[0] == 100
    feed(made, [[2.0]] * 100, quiet=NO, held=NO)
    assert made.mean[0] == pytest.approx(2 - 0.999**100, abs=1e-3)


def test_the_past_is_forgotten_exponentially():
    made = baselines(quiet_time_constant_s=50.0)
    rng = np.random.default_rng(3)
    feed(made, 1 + 0.2 * rng.normal(size=(200, 1)))
    feed(made, 1.2 + 0.2 * rng.normal(size=(300, 1)))
    assert made.mean[0, 0] == pytest.approx(1.2, abs=0.08)
    assert made.ticks[0] == 50


def test_unknown_values_leave_a_column_alone_and_known_ones_begin_it_later():
    made = baselines()
    feed(made, [[math.nan, 1.0]] * 20)
    assert np.isnan(made.mean[0, 0])
    assert made.mean[0, 1] == 1
    feed(made, [[3.0, math.nan]] * 20)
    assert made.mean[0].tolist() == [3, 1]
    assert np.isnan(made.window(4)).all()
    assert made.window(16 + 0).shape == (2, 1)


def test_what_the_own_load_does_is_learnt():
    made = baselines()
    feed(made, [[0.0]] * 40)
    for _ in range(200):
        made.learn_load(np.array([True, False]), np.array([0.7, 0.7]), np.full((2, 1), 0.14), 1.0)
    slope, left = made.load_slope()
    assert slope[:, 0] == pytest.approx([0.2, 0.0], abs=0.02)
    assert left[0] < 0.06
    assert left[1] == 1


def looked(made, running, times=1, *, quiet=YES):
    for _ in range(times):
        made.learn_samples(np.array(running, np.float64), 1.0, quiet=quiet)


def test_looks_are_counted_in_quiet_and_where_someone_looked():
    made = baselines()
    feed(made, [[1.0]])
    looked(made, [0, 2], 3)
    looked(made, [1, math.nan])
    looked(made, [2, 1], quiet=np.array([False, True]))
    looked(made, [5, -1])  # more than there are count as all
    assert made.samples.tolist() == [[3, 1, 1], [1, 1, 3]]


def test_looks_age_as_the_means_do_and_go_when_these_are_learnt_again():
    made = baselines(quiet_time_constant_s=20.0)
    feed(made, [[1.0]])
    looked(made, [1, 1], 20)
    assert made.samples[0].tolist() == [0, 20, 0]
    looked(made, [2, 1], 40)
    assert made.samples.sum(axis=1) == pytest.approx([20, 20])
    assert made.samples[0, 1] == pytest.approx(20 * (20 / 21) ** 40)
    made.relearn(np.array([True, False]))
    assert made.samples.sum(axis=1) == pytest.approx([1, 20])


def test_looks_are_kept_on_disk():
    made = baselines()
    feed(made, [[1.0]] * 40)
    looked(made, [1, 2], 30)
    dumped = json.loads(json.dumps(made.dump(), allow_nan=False))
    assert [row["looks"] for row in dumped] == [[0, 30, 0], [0, 0, 30]]
    other = baselines()
    other.restore(dumped, 86_400)
    other.match(KEYS, 0.0)
    assert other.samples.tolist() == [[0, 15, 0], [0, 0, 15]]
    for looks in ([], [1, 2], [1, -2, 0], [1, math.nan, 0], 7):
        dumped[1]["looks"] = looks
        with pytest.raises(ValueError, match="baselines: row 1"):
            baselines().restore(dumped, 0.0)


def test_looks_stay_with_their_vm_as_larger_ones_come_and_go():
    made = baselines()
    feed(made, [[1.0]])
    looked(made, [1, 2])
    large = VmKey("c", "e1", 4)
    made.match((large, KEYS[1]), 1.0)
    assert made.samples.tolist() == [[0] * 5, [0, 0, 1, 0, 0]]
    looked(made, [4, 0])
    made.match((KEYS[1],), 2.0)
    assert made.samples.tolist() == [[1, 0, 1]]


def test_age_takes_weight_and_a_week_takes_all():
    made = baselines()
    feed(made, [[1.0]] * 100)
    dumped = json.loads(json.dumps(made.dump(), allow_nan=False))
    for age_s, ticks in ((0, 100), (86_400, 50), (2 * 86_400, 25), (8 * 86_400, 0)):
        other = baselines()
        other.restore(dumped, age_s)
        other.match(KEYS, 0.0)
        assert other.ticks.tolist() == [ticks, ticks]
        assert np.isnan(other.mean).all() == (ticks == 0)
    other = baselines()
    other.restore(dumped, 0.0)
    assert other.dump() == dumped  # of VMs that are yet to be seen
    other.match((KEYS[0]._replace(vcpus=4),), 0.0)
    assert other.ticks.tolist() == [0]


@given(st.lists(st.integers(min_value=-1, max_value=4), max_size=8))
def test_rows_are_taken_by_their_old_places(places):
    array = np.arange(10.0).reshape(5, 2)
    result = taken(array, np.array(places, np.int64), -7.0)
    for place, row in zip(places, result, strict=True):
        assert row.tolist() == ([-7.0, -7.0] if place < 0 else array[place].tolist())


def test_what_was_restored_of_vms_that_have_gone_is_forgotten():
    made = baselines()
    feed(made, np.full((40, 1), 5.0))
    other = baselines()
    other.restore(made.dump(), 0.0)
    one = (KEYS[0],)
    for at in range(baseline_module._RESTORED_TICKS):
        other.match(one, float(at))
        assert len(other.dump()) == 2, at
        other.observe(np.full((1, 2), 5.0))
    assert [row["uuid"] for row in other.dump()] == ["a"]


@given(st.lists(st.tuples(*[st.one_of(st.none(), st.floats(-5, 5))] * 2), min_size=1, max_size=50), st.booleans())
def test_windows_are_the_means_of_what_was_known_of_the_last_ticks(rows, swaps):
    made, seen = baselines(), []
    for at, row in enumerate(rows):
        keys = KEYS[::-1] if swaps and at >= len(rows) // 2 else KEYS
        both = np.array([[math.nan if one is None else one] * 2 for one in row])
        seen.append(both[::-1, 1] if keys != KEYS else both[:, 1])
        made.match(keys, float(at))
        made.observe(both)
    for ticks in (2, 4, 16):
        of_a, of_b = ([row[place] for row in seen[-ticks:] if not math.isnan(row[place])] for place in (0, 1))
        found = made.window(ticks)[:, 0] if keys == KEYS else made.window(ticks)[::-1, 0]
        wanted = [float(np.mean(of)) if of else math.nan for of in (of_a, of_b)]
        assert found.tolist() == pytest.approx(wanted, nan_ok=True)
