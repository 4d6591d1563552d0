"""The paper's trigger and its threshold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.analysis.contention.normalised_cpi import CERTAIN_MN_CPI, SlotState
from agent.analysis.contention.slot_trigger import MIN_HISTORY_SLOTS, is_triggered, mn_cpi_threshold

finite = st.floats(-1e6, 1e6)
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


@given(st.lists(finite, max_size=150), st.floats(50, 100), finite)
def test_threshold_is_at_least_the_floor_and_at_most_the_largest(history, percentile, floor):
    threshold = mn_cpi_threshold(history, percentile, floor)
    assert min(floor, CERTAIN_MN_CPI) <= threshold <= min(max([floor, *history]), CERTAIN_MN_CPI)
