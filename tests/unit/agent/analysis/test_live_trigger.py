"""The live trigger: noise leaves it off, contention turns it on soon and off again, and levels are no contention."""

import math
import random

import pytest

from agent.analysis.contention.live_trigger import SPANS_S, WARM_UP_S, NoiseScaledTrigger

STEP_S = 10.0
VMS = 25
DAY = 8640


def noise(seed: int, count: int, correlation_s: float = 60.0, vms: int = VMS) -> list[float]:
    """Make mnCPI of VMs whose nCPI is AR(1) noise of standard deviation 1, about 0."""
    rng = random.Random(seed)
    decay = math.exp(-STEP_S / correlation_s)
    value, values = rng.gauss(0, 1), []
    for _ in range(count):
        value = decay * value + math.sqrt(1 - decay * decay) * rng.gauss(0, 1)
        values.append(value / math.sqrt(vms))
    return values


def on_after(trigger: NoiseScaledTrigger, values: list[float], tasks: int = VMS) -> list[int]:
    """Return the steps, from 1, after which it is on."""
    return [step for step, value in enumerate(values, 1) if trigger.observe(value, tasks)]


def span_s(trigger: NoiseScaledTrigger, step_s: float = STEP_S) -> float:
    return trigger._decides.length * step_s


def test_quiet_days_with_their_course_leave_it_off():
    trigger = NoiseScaledTrigger(STEP_S)
    quiet = [value + 0.5 * math.cos(2 * math.pi * step / DAY) for step, value in enumerate(noise(1, 2 * DAY))]
    assert on_after(trigger, quiet) == []


def test_contention_is_found_within_a_minute_and_ends():
    trigger = NoiseScaledTrigger(STEP_S)
    assert on_after(trigger, noise(2, DAY)) == []
    assert trigger.value < trigger.threshold
    during = on_after(trigger, [value + 2.0 for value in noise(3, 60)])
    assert during[0] <= 6
    assert during[-1] == 60
    assert (span_s(trigger), trigger.value > trigger.threshold > 0.3) == (SPANS_S[0], True)
    assert trigger.value == pytest.approx(2.0, abs=0.3)
    after = on_after(trigger, noise(4, 600))
    assert after == list(range(1, len(after) + 1))  # it ends once
    assert len(after) <= 6


def test_weak_contention_shows_in_the_longer_spans():
    """A rise too small for a minute's mean is found when it lasts."""
    trigger = NoiseScaledTrigger(STEP_S)
    on_after(trigger, noise(5, DAY, correlation_s=10.0))
    found = on_after(trigger, [value + 0.4 for value in noise(6, 120, correlation_s=10.0)])
    assert found
    assert span_s(trigger) > SPANS_S[0]


def test_noise_that_lasts_needs_more():
    """The same rise beside noise of the same size that averages out less."""
    thresholds = []
    for correlation_s in (10.0, 120.0):
        trigger = NoiseScaledTrigger(STEP_S)
        on_after(trigger, noise(7, DAY, correlation_s))
        thresholds.append(trigger.threshold)
    assert thresholds[1] > 1.4 * thresholds[0]


def test_contention_of_hours_stays():
    trigger = NoiseScaledTrigger(STEP_S)
    on_after(trigger, noise(8, DAY))
    during = on_after(trigger, [value + 2.0 for value in noise(9, 3 * 360)])
    assert during[-1] == 3 * 360


def test_fewer_vms_vary_more():
    trigger = NoiseScaledTrigger(STEP_S)
    on_after(trigger, noise(10, DAY))
    many = trigger.threshold
    trigger.observe(0.0, 4)
    assert trigger.threshold > 2 * many
    assert on_after(trigger, noise(11, 360, vms=1), tasks=1) == []


def test_it_does_not_judge_before_it_has_seen_an_hour():
    trigger = NoiseScaledTrigger(STEP_S)
    steps = round(WARM_UP_S / STEP_S)
    assert on_after(trigger, [0.0] * (steps - 2) + [9.0]) == []
    assert not trigger.is_ready
    trigger.observe(0.0, VMS)
    assert trigger.is_ready


@pytest.mark.parametrize("rise", [0.5, 3.0])
def test_contention_in_the_first_hour_does_not_hide_what_comes(rise):
    trigger = NoiseScaledTrigger(STEP_S)
    hour = round(WARM_UP_S / STEP_S)
    values = noise(8, 4 * hour)
    for step in range(hour // 3, hour):
        values[step] += rise
    for step in range(3 * hour, 4 * hour):
        values[step] += 1.6
    on = [step for step in on_after(trigger, values) if step > 3 * hour / 2]
    assert on
    assert 3 * hour <= on[0] < 3 * hour + 60


def test_contention_that_continues_after_the_first_hour_is_found():
    trigger = NoiseScaledTrigger(STEP_S)
    hour = round(WARM_UP_S / STEP_S)
    values = noise(9, 2 * hour)
    for step in range(hour // 2, 2 * hour):
        values[step] += 2.0
    assert hour <= on_after(trigger, values)[0] < hour + 60


def test_other_statistics_are_no_contention():
    plain, shifted = NoiseScaledTrigger(STEP_S), NoiseScaledTrigger(STEP_S)
    values = noise(12, DAY)
    on_after(plain, values)
    on_after(shifted, values)
    shifted.shift(2.0)
    later = noise(13, 360)
    assert on_after(plain, later) == on_after(shifted, [value + 2.0 for value in later]) == []
    assert on_after(plain, [value + 2.0 for value in later]) != []  # without being told it would be


def test_a_host_whose_cpi_never_varies_does_not_divide_by_nothing():
    trigger = NoiseScaledTrigger(STEP_S)
    assert on_after(trigger, [0.0] * 3 * DAY) == []
    assert math.isfinite(trigger.threshold)


@pytest.mark.parametrize("step_s", [1.0, 10.0, 300.0, 7200.0])
def test_windows_of_any_length(step_s):
    trigger = NoiseScaledTrigger(step_s)
    assert on_after(trigger, noise(14, 500)) == []
    assert span_s(trigger, step_s) >= step_s
