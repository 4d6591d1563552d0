"""Location and scale of ln CPI over days, by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from central.models.antagonists.robust_cpi import over_days


def one(samples, location, scale):
    n = len(samples)
    found = over_days(
        np.array(["web"] * n), np.array(["intel"] * n), np.array(samples), np.array(location), np.array(scale)
    )
    return found.location.tolist(), found.scale.tolist()


def test_the_median_of_the_days_each_weighed_by_its_samples():
    assert one([10, 10, 10], [0.3, 0.1, 0.2], [0.05, 0.07, 0.06]) == ([0.2], [0.06])
    assert one([10, 10, 50], [0.1, 0.2, 0.3], [1.0, 2.0, 3.0]) == ([0.3], [3.0])
    assert one([1, 1], [0.1, 0.2], [3.0, 2.0]) == ([0.1], [2.0])  # of two the lower
    assert one([7], [0.5], [0.25]) == ([0.5], [0.25])


def test_a_corrupted_day_reaches_neither():
    assert one([100] * 5, [0.1, 0.1, 6.9, 0.12, 0.11], [0.02, 0.02, 3.0, 0.02, 0.02]) == ([0.11], [0.02])


def test_jobs_and_platforms_are_apart_and_sorted():
    found = over_days(
        np.array(["web", "db", "web", "db"]),
        np.array(["intel", "intel", "arm", "intel"]),
        np.array([5, 5, 5, 9]),
        np.array([0.1, 0.2, 0.3, 0.4]),
        np.array([1.0, 2.0, 3.0, 4.0]),
    )
    assert (found.job.tolist(), found.platform.tolist()) == (["db", "web", "web"], ["intel", "arm", "intel"])
    assert (found.location.tolist(), found.scale.tolist()) == ([0.4, 0.3, 0.1], [4.0, 3.0, 1.0])
    assert len(over_days(*(np.array([], t) for t in ("U1", "U1", "i8", "f8", "f8"))).job) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(-9, 9)), min_size=1, max_size=30))
def test_it_is_the_lower_median_of_values_repeated_by_weight(rows):
    job, samples, value = (np.array(column) for column in zip(*rows, strict=True))
    found = over_days(job, job, samples, value / 8, value / 4)
    for key, location, scale in zip(found.job, found.location, found.scale, strict=True):
        repeated = np.sort(np.repeat(value[job == key], samples[job == key]))
        expected = repeated[(len(repeated) - 1) // 2]
        assert (location, scale) == (expected / 8, expected / 4)
