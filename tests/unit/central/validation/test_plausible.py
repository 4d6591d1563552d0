"""Limits of physics."""

import numpy as np
import pytest

from central.validation.plausible import absurd_counters

S = 1e9
NAN = float("nan")


@pytest.mark.parametrize(
    ("cycles", "instructions", "expected"),
    [
        (3 * S, 2 * S, False),
        (20 * S, 160 * S, False),
        (20.1 * S, 1.0, True),  # 10 GHz for a second of 1 + 1 vCPUs
        (S, 8.1 * S, True),  # 8 instructions per cycle
        (NAN, 160 * S, False),
        (NAN, 161 * S, True),
        (NAN, NAN, False),
    ],
)
def test_counters_beyond_physics_are_absurd(cycles: float, instructions: float, *, expected: bool) -> None:
    counts = np.array([cycles]), np.array([instructions])
    assert absurd_counters(np.array([1e9]), np.array([1.0]), *counts).tolist() == [expected]


def test_either_counter_may_not_be_known() -> None:
    duration_ns, cores, some = np.array([1e9]), np.array([0.0]), np.array([11e9])
    assert absurd_counters(duration_ns, cores, some, None).any()
    assert not absurd_counters(duration_ns, cores, None, some).any()
    assert not absurd_counters(duration_ns, cores, None, None).any()
