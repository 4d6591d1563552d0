"""central.models.antagonists.panda against numbers worked out by hand and against plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from central.models.antagonists import panda
from central.models.antagonists.slots import TaskSlots
from tests.support import panda_reference

NAN = math.nan

# machine, slot, job, platform, latency-sensitive, usage, cpi
GOLDEN = [
    ("m1", 0, "a", "p", True, 0.5, 1.0),
    ("m1", 1, "a", "p", True, 0.5, 3.0),
    ("m1", 0, "b", "p", True, 1.0, 2.0),
    ("m2", 0, "b", "p", True, 2.0, 4.0),
    ("m1", 0, "k", "p", False, 2.0, NAN),
    ("m1", 1, "k", "p", False, 1.0, NAN),
    ("m2", 0, "k", "p", False, 3.0, NAN),
    ("m3", 0, "k", "p", False, 9.0, NAN),  # nobody latency-sensitive there: skipped
    ("m2", 0, "idle", "p", False, 0.0, NAN),  # sum u^2 = 0: no coefficient
    ("m2", 0, "unknown", "p", False, NAN, 7.0),  # its CPI is a sample, its usage is not known
]


def columns(rows):
    kinds = (None, None, None, None, np.bool_, np.float64, np.float64)
    machine, slot, *rest = (np.array([row[i] for row in rows], dtype=kind) for i, kind in enumerate(kinds))
    return TaskSlots(machine, slot, np.arange(len(rows)), *rest)


def by_job(found: panda.Coefficients) -> dict[str, float]:
    return dict(zip(found.job.tolist(), found.value.tolist(), strict=True))


def test_equations_by_hand():
    found = panda_reference.fit(columns(GOLDEN))
    # (1) a: mean 2, std 1; b: mean 3, std 1 (population)
    assert found.statistics.job.tolist() == ["a", "b", "unknown"]
    assert found.statistics.mean_cpi.tolist() == [2.0, 3.0, 7.0]
    assert found.statistics.std_cpi.tolist() == [1.0, 1.0, 0.0]
    assert found.statistics.samples.tolist() == [2, 2, 1]
    # (2) (m1, 0): (-1 - 1) / 2; (m1, 1): 1; (m2, 0): 1
    places = list(zip(found.machine_cpi.machine.tolist(), found.machine_cpi.slot.tolist(), strict=True))
    assert places == [("m1", 0), ("m1", 1), ("m2", 0)]
    assert found.machine_cpi.mn_cpi.tolist() == [-1.0, 1.0, 1.0]
    assert found.machine_cpi.tasks.tolist() == [2, 1, 1]
    # (3) a: (-0.5 + 0.5) / 0.5; b: (-1 + 2) / 5; k: (-2 + 1 + 3) / 14
    assert by_job(found.coefficients) == pytest.approx({"a": 0.0, "b": 0.2, "k": 1 / 7}, abs=1e-15)
    assert found.coefficients.sum_usage_squared.tolist() == [0.5, 5.0, 14.0]
    assert found.coefficients.samples.tolist() == [2, 2, 3]
    # residuals of k: sum y^2 - A sum u y = 3 - 2 / 7 over 2 degrees of freedom
    assert found.coefficients.standard_error[2] == pytest.approx(math.sqrt((3 - 2 / 7) / 2 / 14))


def test_platforms_are_normalised_apart():
    rows = [
        ("m1", 0, "a", "old", True, 1.0, 1.0),
        ("m1", 1, "a", "old", True, 2.0, 3.0),
        ("m2", 0, "a", "new", True, 1.0, 10.0),
        ("m2", 1, "a", "new", True, 2.0, 30.0),
    ]
    found = panda_reference.fit(columns(rows))
    assert found.statistics.mean_cpi.tolist() == [20.0, 2.0]
    assert found.machine_cpi.mn_cpi.tolist() == [-1.0, 1.0, -1.0, 1.0]
    assert by_job(panda.PairState.of(columns(rows)).coefficients()) == pytest.approx({"a": 2 / 10})


@pytest.mark.parametrize("cpi", [1.1, 0.1 + 0.2, 1e-3, 105.0])
def test_a_constant_cpi_is_no_noise(cpi):
    # Values that differ in the last digit only: the rounding of a constant, not a variation.
    values = [cpi, np.nextafter(cpi, 200), np.nextafter(cpi, 0)] * 5
    rows = [("m", slot, "a", "p", True, 1.0 + slot, value) for slot, value in enumerate(values)]
    found = panda_reference.fit(columns(rows))
    assert found.statistics.std_cpi.tolist() == [0.0]
    assert found.machine_cpi.mn_cpi.tolist() == [0.0] * 15
    assert found.coefficients.value.tolist() == [0.0]
    halves = [panda.PairState.of(columns(part)) for part in (rows[:7], rows[7:])]
    merged = halves[0].merge(halves[1])
    assert merged.statistics().std_cpi.tolist() == [0.0]
    assert merged.coefficients().value.tolist() == [0.0]


def test_a_small_variation_is_kept():
    rows = [("m", slot, "a", "p", True, 1.0, 1.0 + 1e-9 * (-1) ** slot) for slot in range(10)]
    assert panda_reference.fit(columns(rows)).statistics.std_cpi == pytest.approx(1e-9, rel=1e-6)


def test_nothing_gives_nothing():
    empty = columns(GOLDEN).take(np.arange(0))
    found = panda_reference.fit(empty)
    assert len(found.statistics.job) == len(found.coefficients.job) == len(found.machine_cpi.slot) == 0
    state = panda.PairState.of(empty)
    assert len(state.merge(state).coefficients().job) == 0
    whole = panda.PairState.of(columns(GOLDEN))
    assert by_job(state.merge(whole).coefficients()) == by_job(whole.coefficients())


def plain(rows):
    """Equations (1) to (3) in loops. Returns A_k and the scale of its terms, by job."""
    samples: dict = {}
    for _, _, job, platform, _, _, cpi in rows:
        if not math.isnan(cpi):
            samples.setdefault((job, platform), []).append(cpi)
    mean = {key: math.fsum(values) / len(values) for key, values in samples.items()}
    std = {
        key: math.sqrt(math.fsum((v - mean[key]) ** 2 for v in values) / len(values)) for key, values in samples.items()
    }
    n_cpi: dict = {}
    for machine, slot, job, platform, sensitive, _, cpi in rows:
        if sensitive and not math.isnan(cpi):
            key = (job, platform)
            value = (cpi - mean[key]) / std[key] if std[key] > 1e-12 * mean[key] else 0.0
            n_cpi.setdefault((machine, slot), []).append(value)
    mn_cpi = {place: math.fsum(values) / len(values) for place, values in n_cpi.items()}
    terms: dict = {}
    for machine, slot, job, _, _, usage, _ in rows:
        if (machine, slot) in mn_cpi and not math.isnan(usage):
            terms.setdefault(job, []).append((usage, mn_cpi[machine, slot]))
    found, scale = {}, {}
    for job, pairs in terms.items():
        squares = math.fsum(u * u for u, _ in pairs)
        if squares > 0:
            found[job] = math.fsum(u * y for u, y in pairs) / squares
            scale[job] = math.fsum(abs(u * y) for u, y in pairs) / squares + 1.0
    return found, scale


# CPI on a grid, so that a standard deviation is either 0 or far from rounding.
some_rows = st.lists(
    st.tuples(
        st.sampled_from(["m1", "m2", "m3"]),
        st.integers(0, 5),
        st.sampled_from(["a", "b", "long-name", "ü"]),
        st.sampled_from(["p", "q"]),
        st.booleans(),
        st.one_of(st.just(NAN), st.integers(0, 40).map(lambda n: n / 8)),
        st.one_of(st.just(NAN), st.integers(5, 60).map(lambda n: n / 10)),
    ),
    max_size=40,
)


def assert_close(found: panda.Coefficients, rows, tolerance):
    expected, scale = plain(rows)
    got = by_job(found)
    assert got.keys() == expected.keys()
    for job, value in got.items():
        assert abs(value - expected[job]) <= tolerance * scale[job], job


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(some_rows)
def test_fit_equals_plain_loops(rows):
    assert_close(panda_reference.fit(columns(rows)).coefficients, rows, 1e-12)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(some_rows, st.permutations(range(6)), st.integers(1, 6))
def test_any_split_into_days_equals_the_whole(rows, order, parts):
    """Days are sets of slots; merged in any order and grouping they give what a fit of all gives."""
    days = [[row for row in rows if order.index(row[1]) % parts == part] for part in range(parts)]
    states = [panda.PairState.of(columns(day)) for day in days]
    forward = states[0]
    for state in states[1:]:
        forward = forward.merge(state)
    backward = states[-1]
    for state in reversed(states[:-1]):
        backward = state.merge(backward)
    for merged in (forward, backward):
        assert_close(merged.coefficients(), rows, 1e-9)
        whole = panda_reference.fit(columns(rows)).statistics if rows else None
        if whole is not None:
            assert merged.statistics().job.tolist() == whole.job.tolist()
            np.testing.assert_allclose(merged.statistics().mean_cpi, whole.mean_cpi, rtol=1e-12)
            np.testing.assert_allclose(merged.statistics().std_cpi, whole.std_cpi, rtol=1e-9, atol=1e-12)
            assert merged.statistics().samples.tolist() == whole.samples.tolist()


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(some_rows, some_rows)
def test_merge_is_commutative_to_the_last_digit(left, right):
    a = panda.PairState.of(columns(left))
    b = panda.PairState.of(columns([(m, slot + 6, *rest) for m, slot, *rest in right]))
    one, other = a.merge(b), b.merge(a)
    for name in ("usage_cpi", "usage", "sum_usage_squared", "samples"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()
    assert one.pair_job.tolist() == other.pair_job.tolist()
    assert one.cpi.m2.tolist() == other.cpi.m2.tolist()
