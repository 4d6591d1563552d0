"""Limits of physics: the quick look at extremes never lets through what the row by row check finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from central.validation.plausible import absurd_counters, clearly_possible

S = 10**9
#: Around each limit: 10 GHz for a second of one vCPU, 8 instructions per cycle, unknown, and the largest numbers.
COUNTS = st.sampled_from([-1, 0, 1, S, 8 * S, 10 * S, 10 * S + 1, 80 * S, 80 * S + 1, 2**62, 2**63 - 1])


@given(st.lists(st.tuples(st.sampled_from([1, S, 7200 * S]), st.sampled_from([0.0, 1.0]), COUNTS, COUNTS), min_size=1))
def test_what_is_clearly_possible_is_not_absurd(rows) -> None:
    duration_ns, cores, cycles, instructions = zip(*rows, strict=True)
    durations = np.array(duration_ns, "<u8")
    counts = np.array(cycles, "<i8"), np.array(instructions, "<i8")
    if clearly_possible(durations, *counts):
        assert not absurd_counters(durations, np.array(cores), *counts).any()


@pytest.mark.parametrize(
    ("cycles", "instructions", "expected"),
    [(3 * S, 2 * S, True), (10 * S, 80 * S, True), (10 * S + 1, 1, False), (S, 8 * S + 1, False), (-1, 1, False)],
)
def test_the_usual_case_is_clearly_possible(cycles: int, instructions: int, *, expected: bool) -> None:
    found = clearly_possible(np.array([S], "<u8"), np.array([cycles]), np.array([instructions]))
    assert found is expected
    assert not clearly_possible(np.array([S], "<u8"), None, np.array([instructions]))
