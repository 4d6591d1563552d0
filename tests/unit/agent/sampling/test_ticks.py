import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sampling.scheduler import TickSchedule, first_due_ns

S = 10**9


def test_a_stall_of_two_and_a_half_periods_costs_one_tick_and_the_grid_resumes():
    schedule = TickSchedule(S, 10 * S)
    assert schedule.advance(10 * S) is not None
    assert schedule.advance(round(12.5 * S)) == round(1.5 * S)  # due were 11 and 12
    assert (schedule.due_ns, schedule.ticks, schedule.missed) == (13 * S, 2, 1)


def test_nothing_is_due_before_its_time():
    schedule = TickSchedule(S, 10 * S)
    assert schedule.advance(10 * S - 1) is None
    assert (schedule.ticks, schedule.missed, schedule.due_ns) == (0, 0, 10 * S)


def test_a_tick_late_by_less_than_a_period_does_not_move_the_grid():
    schedule = TickSchedule(S, 0)
    for index, late in enumerate((0, 900_000_000, 3, 999_999_999)):
        assert schedule.advance(index * S + late) == late
        assert (schedule.due_ns, schedule.missed) == ((index + 1) * S, 0)


def test_a_period_must_be_positive():
    with pytest.raises(ValueError, match="value 0"):
        TickSchedule(0, 1)


@given(
    st.integers(1, 10**11), st.integers(-(10**15), 10**15), st.lists(st.integers(0, 10**12), min_size=1, max_size=50)
)
def test_every_grid_point_runs_or_is_missed_just_once(period, first, waits):
    schedule = TickSchedule(period, first)
    now = first
    for wait in waits:
        now += wait
        before, missed = schedule.due_ns, schedule.missed
        lateness = schedule.advance(now)
        if lateness is None:
            assert now < before
            continue
        assert schedule.due_ns - period <= now < schedule.due_ns  # the latest point due, never stacked
        assert lateness == now - before
        assert schedule.due_ns == before + (schedule.missed - missed + 1) * period
        assert schedule.advance(now) is None
    assert schedule.ticks + schedule.missed == (schedule.due_ns - first) // period
    assert (schedule.due_ns - first) % period == 0


@given(st.integers(0, 10**18), st.integers(0, 2 * 10**18), st.integers(1, 10**11))
def test_the_first_tick_is_at_the_next_multiple_of_the_period_in_unix_time(mono, unix, period):
    due = first_due_ns(mono, unix, period)
    assert 0 < due - mono <= period
    assert (unix + due - mono) % period == 0
