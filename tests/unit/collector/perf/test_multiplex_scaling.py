import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.base import PerfGroup, Reason
from collector.perf.multiplex_scaling import ScaledDelta, scale_delta

LAST = PerfGroup(7, 1_000, 400, (5_000, 2_500))


def after(*, enabled=0, running=0, cycles=0, instructions=0, opened=7):
    return PerfGroup(opened, 1_000 + enabled, 400 + running, (5_000 + cycles, 2_500 + instructions))


def test_scales_deltas_not_totals():
    # Totals scaled would be 9000 * 2000 / 650 - 5000 * 1000 / 400.
    now = after(enabled=1_000, running=250, cycles=4_000, instructions=2_000)
    assert scale_delta(now, LAST) == ScaledDelta((16_000.0, 8_000.0), 0.25, 1_000)


def test_full_running_is_the_raw_delta():
    assert scale_delta(after(enabled=9, running=9, cycles=3, instructions=1), LAST) == ScaledDelta((3.0, 1.0), 1.0, 9)


def test_a_thread_that_slept_did_nothing():
    assert scale_delta(after(), LAST) == ScaledDelta((0.0, 0.0), 1.0, 0)


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (after(enabled=1_000), Reason.NOT_SCHEDULED),  # ran uncounted: unknown, never 0
        (after(enabled=10, running=10, cycles=4, instructions=2, opened=8), Reason.COUNTER_RESET),
        (after(enabled=10, running=10, cycles=-1, instructions=2), Reason.COUNTER_RESET),
        (after(enabled=10, running=10, cycles=1, instructions=-2), Reason.COUNTER_RESET),
        (after(enabled=-10, running=10, cycles=1, instructions=1), Reason.COUNTER_RESET),
        (after(enabled=10, running=-1, cycles=1, instructions=1), Reason.COUNTER_RESET),
        (after(enabled=10, cycles=1, instructions=1), Reason.INVALID_VALUE),  # counted without running
        (after(enabled=0, cycles=1), Reason.INVALID_VALUE),
        (after(enabled=10, running=11, cycles=1, instructions=1), Reason.INVALID_VALUE),
    ],
)
def test_what_cannot_be_scaled_says_why(now, reason):
    assert scale_delta(now, LAST) is reason


def test_all_counts_of_a_group_are_scaled_alike():
    last = PerfGroup(1, 0, 0, (0, 0, 0, 0))
    now = PerfGroup(1, 400, 100, (8, 4, 2, 0))
    assert scale_delta(now, last) == ScaledDelta((32.0, 16.0, 8.0, 0.0), 0.25, 400)


def test_readings_of_different_layouts_are_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="shorter"):
        scale_delta(PerfGroup(1, 1, 1, (1, 2, 3)), PerfGroup(1, 0, 0, (0, 0)))


@given(
    rate=st.integers(1, 8),
    turns=st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=20),
)
def test_a_steady_rate_is_recovered_from_any_share_of_time(rate, turns):
    """Counts proportional to running time scale to the rate times enabled time, whatever the shares."""
    last = PerfGroup(1, 0, 0, (0, 0))
    for running, waiting in turns:
        enabled = running + waiting
        now = PerfGroup(
            1,
            last.time_enabled_ns + enabled,
            last.time_running_ns + running,
            (last.counts[0] + 2 * rate * running, last.counts[1] + rate * running),
        )
        delta = scale_delta(now, last)
        if running == 0 and enabled > 0:
            assert delta is Reason.NOT_SCHEDULED
        else:
            assert isinstance(delta, ScaledDelta)
            assert delta.counts == pytest.approx((2 * rate * enabled, rate * enabled), rel=1e-12)
            assert 0 < delta.running_ratio <= 1
        last = now
