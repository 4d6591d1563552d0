"""Our estimator: its sums by hand, exact merges, what it is robust against; and PANDA's merge over 31 days."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from central.models.antagonists import panda, whitepanda, whitepanda_solve
from central.models.antagonists.slots import TaskSlots
from central.models.antagonists.whitepanda import WhitepandaState, robust_n_cpi
from tests.support import panda_reference


def make(seed, *, days=2, machines=3, tasks=7, jobs=6, per_day=24, drift=0.0, effect=(0, 0, 0, 0, 0, 0)):
    """Task slots of `per_day` slots a day; jobs 0 to 2 are latency-sensitive and drift; gaps and unknowns occur."""
    rng = np.random.default_rng(seed)
    rows = []
    for day in range(days):
        for machine in range(machines):
            mine = rng.integers(0, jobs, tasks)
            for slot in range(day * 288, day * 288 + per_day):
                usage = rng.gamma(2.0, 0.2, tasks)
                pressure = float(np.array(effect)[mine] @ usage)
                for task in np.flatnonzero(rng.random(tasks) > 0.15).tolist():
                    job = int(mine[task])
                    cpi = (1 + job) * (1 + drift * day) * np.exp(0.1 * rng.standard_normal() + pressure)
                    rows.append(
                        (
                            machine,
                            slot,
                            task + 100 * day,
                            job,
                            machine % 2,
                            job < 3,
                            usage[task] if rng.random() > 0.05 else np.nan,
                            cpi if rng.random() > 0.1 else np.nan,
                        )
                    )
    return TaskSlots(*(np.array(column) for column in zip(*rows, strict=True)))


def same(a, b, rel):
    for field in fields(a):
        x, y = np.asarray(getattr(a, field.name)), np.asarray(getattr(b, field.name))
        assert x.shape == y.shape, field.name
        if x.dtype.kind == "f":
            scale = np.abs(x).max(initial=1e-300)
            np.testing.assert_allclose(x, y, rtol=rel, atol=rel * scale, err_msg=field.name)
        else:
            assert x.tolist() == y.tolist(), field.name


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5))
def test_states_merge_associatively(seed, days):
    rows = make(seed, days=days, per_day=12)
    parts = [WhitepandaState.of(rows.take(rows.slot // 288 == day)) for day in range(days)]
    left = parts[0]
    for part in parts[1:]:
        left = left.merge(part)
    right = parts[-1]
    for part in parts[-2::-1]:
        right = part.merge(right)
    same(left, right, 1e-12)
    same(left, WhitepandaState.of(rows), 1e-12)
    same(left.coefficients(), WhitepandaState.of(rows).coefficients(), 1e-9)


def test_31_drifting_days_merge_to_the_full_fit():
    rows = make(11, days=31, drift=0.03, per_day=12)
    parts = [rows.take(rows.slot // 288 == day) for day in range(31)]
    state, ours = panda.PairState.of(parts[0]), WhitepandaState.of(parts[0])
    for part in parts[1:]:
        state, ours = state.merge(panda.PairState.of(part)), ours.merge(WhitepandaState.of(part))
    full, merged = panda_reference.fit(rows).coefficients, state.coefficients()
    assert merged.job.tolist() == full.job.tolist()
    np.testing.assert_allclose(merged.value, full.value, rtol=1e-9, atol=1e-9 * np.abs(full.value).max())
    same(ours.coefficients(), WhitepandaState.of(rows).coefficients(), 1e-9)


def test_normalised_cpi_by_hand():
    # ln c is 0, 1, 2, 3, 100: median 2, quartiles 1 and 3
    x = np.array([0.0, 1, 2, 3, 100])
    zeros = np.zeros(5, np.int64)
    found = robust_n_cpi(zeros, zeros, zeros, np.exp(x))
    scale = 2 / 1.3489795003921634
    assert found == pytest.approx([-2 / scale, -1 / scale, 0, 1 / scale, 3.0], abs=1e-12)
    assert robust_n_cpi(zeros, zeros, zeros, np.full(5, 2.0)).tolist() == [0] * 5
    assert robust_n_cpi(zeros, zeros, np.arange(5), np.exp(x)).tolist() == [0] * 5  # a day of its own each


def test_sums_by_hand():
    """One machine day: slots 0, 1 and 5; one latency-sensitive job with ln c = 0, 1, 2; a batch job uses 1, 3, 2."""
    rows = TaskSlots(
        machine=np.zeros(6, np.int64),
        slot=np.array([0, 1, 5, 0, 1, 5]),
        task=np.array([1, 1, 1, 2, 2, 2]),
        job=np.array([1, 1, 1, 2, 2, 2]),
        platform=np.zeros(6, np.int64),
        latency_sensitive=np.array([True] * 3 + [False] * 3),
        usage=np.array([np.nan] * 3 + [1.0, 3.0, 2.0]),
        cpi=np.concatenate([np.exp([0.0, 1, 2]), [np.nan] * 3]),
    )
    state = WhitepandaState.of(rows)
    z = 1.3489795003921634  # per unit of ln c, for the quartiles are 0.5 and 1.5
    y = np.array([-z, 0, z])
    # slots 0 and 5 begin runs (factor 0.8), slot 1 continues from slot 0
    d, e, o = (
        np.array([0.8, 3 - 0.6, 1.6]),
        np.array([0.8 * y[0], -0.6 * y[0], 0.8 * y[2]]),
        np.array([0.8, 0.4, 0.8]),
    )
    q = o @ o
    assert state.within == pytest.approx([d @ d - (o @ d) ** 2 / q])
    assert state.job_within == pytest.approx([d @ e - (o @ d) * (o @ e) / q])
    assert state.between_days == pytest.approx([36 / 3])
    assert state.job_between_days == pytest.approx([0], abs=1e-12)
    assert state.samples.tolist() == [3]
    assert state.sum_usage_squared.tolist() == [14]
    assert state.machine_usage.tolist() == [6]
    assert state.machine_product == pytest.approx([-z + 2 * z])
    assert state.sum_y_squared == pytest.approx([2 * z * z])
    assert state.total == pytest.approx([3, 1, e @ e - (o @ e) ** 2 / q, 0], abs=1e-12)


def test_who_rides_along_is_not_blamed():
    """Job 4 comes with job 3 and its usage goes along; PANDA gives it a share of the blame, we do not."""
    rng = np.random.default_rng(2)
    rows = []
    for machine in range(12):
        has = machine % 2 == 0
        common = rng.gamma(2, 0.5, 288)
        own, extra = common * rng.lognormal(0, 0.3, 288), common * rng.lognormal(0, 0.3, 288)
        for slot in range(288):
            used = [own[slot], extra[slot]] if has else [0.0, 0.0]
            for task, job in enumerate((0, 1, 2)):
                cpi = np.exp(0.1 * used[0] + 0.1 * rng.standard_normal() + 0.3 * (machine % 3))
                rows.append((machine, slot, task, job, 0, True, 0.1, cpi))
            if has:
                rows += [(machine, slot, 10, 3, 0, False, used[0], 1.0), (machine, slot, 11, 4, 0, False, used[1], 1.0)]
    data = TaskSlots(*(np.array(column) for column in zip(*rows, strict=True)))
    ours = WhitepandaState.of(data).coefficients()
    plain = panda_reference.fit(data).coefficients
    mine = dict(zip(ours.job.tolist(), ours.value.tolist(), strict=True))
    theirs = dict(zip(plain.job.tolist(), plain.value.tolist(), strict=True))
    assert theirs[4] > 0.4 * theirs[3]
    assert abs(mine[4]) < 0.1 * mine[3]
    error = ours.standard_error[ours.job.tolist().index(3)]
    assert 0 < error < 0.1 * mine[3]


def test_a_corrupted_sample_changes_little():
    rows = make(3, effect=(0, 0, 0, 0.3, 0, 0), per_day=96, machines=6)
    cpi = rows.cpi.copy()
    known = np.flatnonzero(~np.isnan(cpi) & rows.latency_sensitive)
    cpi[known[::200]] *= 1000
    spoilt = TaskSlots(*(cpi if f.name == "cpi" else getattr(rows, f.name) for f in fields(rows)))
    clean, dirty = WhitepandaState.of(rows).coefficients(), WhitepandaState.of(spoilt).coefficients()
    assert clean.job[np.argmax(clean.value)] == dirty.job[np.argmax(dirty.value)] == 3
    assert dirty.value[3] == pytest.approx(clean.value[3], rel=0.1)


def throttled(seed, fall):
    """Job 4, on half of the machines, hurts in phases at a steady usage; batch usage falls by contention * `fall`."""
    rng = np.random.default_rng(seed)
    days, machines, slots, batch = 4, 8, 288, 6
    rows = []
    for machine in range(machines):
        job = np.array([3, 5, 6, 7, 8, 4 if machine % 2 else 9])
        for day in range(days):
            hurts = np.repeat(rng.random(slots // 12) < 0.4, 12) * (machine % 2) * 0.5
            for slot, pressure in enumerate(hurts.tolist()):
                at = day * 288 + slot
                cpi = np.exp(0.2 * rng.standard_normal() + pressure)
                rows.append((machine, at, 0, 0, 0, True, 0.2, cpi))
                usage = np.where(job == 4, 1.0, rng.gamma(4.0, 0.25, batch)) / (1 + fall * pressure)
                rows += [
                    (machine, at, 1 + n, job[n], 0, False, usage[n] * np.exp(0.05 * rng.standard_normal()), np.nan)
                    for n in range(batch)
                ]
    return TaskSlots(*(np.array(column) for column in zip(*rows, strict=True)))


def test_usage_that_follows_contention_does_not_make_the_antagonist_a_helper(monkeypatch):
    state = WhitepandaState.of(throttled(1, 1.0))
    found = state.coefficients()
    values = dict(zip(found.job.tolist(), found.value.tolist(), strict=True))
    assert max(values, key=values.get) == 4
    assert values[4] > 0
    assert (found.standard_error > 0).all()
    # The mutant: differences in time are believed.
    monkeypatch.setattr(whitepanda, "are_reversed", lambda _estimate, _error: False)
    believed = state.coefficients()
    assert believed.value[believed.job == 4] < 0
    monkeypatch.undo()
    # Where nothing follows contention it is solved jointly, as ever.
    usual = WhitepandaState.of(make(3, effect=(0, 0, 0, 0.3, 0, 0), per_day=96, machines=6)).coefficients()
    assert not whitepanda_solve.are_reversed(usual.estimate, usual.standard_error)


def test_a_coefficient_alone_by_hand():
    # One job, usage 1, 2 and y 2, 4 and then 2, 5: A = (2 + 8 + 2 + 10) / 10 = 2.2, residuals -.2 -.4 -.2 .6, rss 0.6.
    value, estimate, error = whitepanda_solve.alone(np.array([22.0]), np.array([10.0]), 49.0, 4.0)
    assert estimate.tolist() == [2.2]
    assert error[0] == pytest.approx((0.6 / 4 / 10) ** 0.5)
    t_squared = (2.2 / error[0]) ** 2
    assert value[0] == pytest.approx(2.2 * t_squared / (t_squared + 10))


@pytest.mark.parametrize(
    ("t", "reversed_"),
    [
        ([-12.0, -4.0, 2.9], True),
        ([-12.0, -4.0, 8.0], False),  # a quarter of the evidence says otherwise
        ([-9.0, -4.0, 0.0], False),  # too little
        ([12.0, 14.0, -2.0], False),
    ],
)
def test_when_jobs_seem_to_help_each_other(t, reversed_):
    assert whitepanda_solve.are_reversed(np.array(t), np.ones(3)) is reversed_


def test_conjugate_gradients_equal_the_dense_solution(monkeypatch):
    state = WhitepandaState.of(make(4, days=6, machines=5, jobs=6, per_day=48))
    dense = state.coefficients()
    monkeypatch.setattr(whitepanda_solve, "MAX_DENSE_JOBS", 0)
    sparse = state.coefficients()
    np.testing.assert_allclose(sparse.estimate, dense.estimate, rtol=1e-7, atol=1e-7 * np.abs(dense.estimate).max())
    assert (sparse.standard_error <= dense.standard_error * (1 + 1e-9)).all()


def test_no_data_no_coefficients():
    rows = make(5)
    nobody = rows.take(np.zeros(rows.rows, np.bool_))
    assert len(WhitepandaState.of(nobody).coefficients().job) == 0
    whole = WhitepandaState.of(rows)
    same(whole.merge(WhitepandaState.of(nobody)), whole, 1e-15)


def test_jobs_may_have_names():
    rows = make(6)
    named = TaskSlots(
        *(np.char.add("job-", rows.job.astype(str)) if f.name == "job" else getattr(rows, f.name) for f in fields(rows))
    )
    a, b = WhitepandaState.of(rows).coefficients(), WhitepandaState.of(named).coefficients()
    np.testing.assert_allclose(a.value, b.value, rtol=1e-9)
    assert whitepanda.PERSISTENCE == 0.6
