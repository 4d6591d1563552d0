"""D-Factor against every number of the paper that follows from its inputs, and against its own properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from central.models import dfactor

CPU, DISK = (1.0, 0.0), (0.0, 1.0)
FILE_SERVER, VARMAIL = (0.02, 0.98), (0.10, 0.90)
FILE_SERVER_S, VARMAIL_S = 417.09, 46.51


@st.composite
def job_sets(draw, most=6):
    """Loading vectors of idle and busy jobs, shape (jobs, resources)."""
    jobs, resources = draw(st.integers(1, most)), draw(st.integers(1, 4))
    share = st.floats(0, 1, allow_subnormal=False)
    raw = np.array([[draw(share) for _ in range(resources)] for _ in range(jobs)])
    return raw / np.maximum(raw.sum(axis=1, keepdims=True), 1.0)


def test_filecomp_beside_the_standard_jobs():
    dilation = 123.67 / 78.08
    assert round(dilation, 2) == 1.58
    p = (0.58, 0.42)
    assert dfactor.dilations([p, CPU]).tolist() == pytest.approx([1.58, 1.58], abs=1e-12)
    # beside STD-I/O of 200 s: 110.9 s (78.08 s alone)
    times = dfactor.completion_times([p, DISK], [78.08, 200.0])
    assert round(times[0], 1) == 110.9
    assert times[0] == pytest.approx(78.08 * 1.42, rel=1e-14)


def test_filebench_beside_one_and_two_varmails():
    one = dfactor.completion_times([FILE_SERVER, VARMAIL], [FILE_SERVER_S, VARMAIL_S])
    assert one.round(2).tolist() == [458.2, 87.62]
    two = dfactor.completion_times([FILE_SERVER, VARMAIL, VARMAIL], [FILE_SERVER_S, VARMAIL_S, VARMAIL_S])
    assert round(two.max(), 1) == 497.4
    # The printed 133.48 s does not follow: 46.51 s times 2.704 is 125.76 s.
    assert two.round(2).tolist() == [497.42, 125.76, 125.76]
    assert dfactor.linear_sum_s([FILE_SERVER_S, VARMAIL_S]) == pytest.approx(463.6, abs=1e-9)


def test_mapreduce_jobs_end_at_different_times():
    sort, pi, grep = (0.9, 0.1), (0.5, 0.5), (0.5, 0.5)
    times = dfactor.completion_times([sort, pi, grep], [56.0, 90.0, 95.0])
    assert times == pytest.approx([112.0, 163.0, 168.0], rel=1e-14)
    assert dfactor.linear_sum_s([56.0, 90.0, 95.0]) == 241.0


def test_a_fourth_job_arrives_beside_the_other_two():
    # W1 + W2 on one machine, W4 at 60 s: W1 has 50.56 s left, then both are twice as slow.
    times = dfactor.completion_times([CPU, DISK, CPU], [110.56, 115.83, 110.56], [0.0, 0.0, 60.0])
    assert times == pytest.approx([161.12, 115.83, 221.12], rel=1e-14)
    assert times[2] - 60.0 == pytest.approx(161.12, rel=1e-14)
    # on the other, beside W3
    other = dfactor.completion_times([CPU, CPU], [180.0, 110.56], [0.0, 60.0])
    assert other.max() == pytest.approx(290.56, rel=1e-14)
    assert round(100 * (1 - times.max() / other.max()), 1) == 23.9


def test_standard_jobs_need_not_be_slowed_down():
    assert dfactor.dilations([CPU, DISK]).tolist() == [1.0, 1.0]
    assert dfactor.dilations([CPU, CPU]).tolist() == [2.0, 2.0]
    # remark 4: of a minute each, together they take one, one after the other two
    assert dfactor.completion_times([CPU, DISK], [60.0, 60.0]).max() == 60.0
    assert dfactor.completion_times([CPU, DISK], [60.0, 60.0], [0.0, 60.0]).max() == 120.0


@pytest.mark.parametrize("copies", [1, 2, 5])
def test_busy_jobs_of_one_resource_are_the_linear_sum_model(copies):
    assert dfactor.dilations([[1.0]] * copies).tolist() == [float(copies)] * copies
    # remark 5: idle jobs lie between 1 and n by p^2
    assert dfactor.dilations([[0.5]] * copies).tolist() == [1 + (copies - 1) * 0.25] * copies


@given(st.lists(st.floats(0.5, 100), min_size=1, max_size=5), st.data())
def test_without_a_gap_one_resource_takes_the_sum(neutral, data):
    starts = [0.0]
    for _ in neutral[1:]:
        starts.append(data.draw(st.floats(0, sum(neutral[: len(starts)]) * 0.99)))
    times = dfactor.completion_times([[1.0]] * len(neutral), neutral, starts)
    assert times.max() == pytest.approx(sum(neutral), rel=1e-9)


def test_n_copies_have_two_mirrored_roots():
    for copies in (2, 3, 7):
        for p in (0.5, 0.7, 0.98):
            dilation = float(dfactor.dilations([(p, 1 - p)] * copies)[0])
            assert dilation == pytest.approx(1 + (copies - 1) * (p**2 + (1 - p) ** 2), rel=1e-14)
            assert dfactor.n_copies_roots(dilation, copies) == pytest.approx((1 - p, p), abs=1e-7)
    assert dfactor.n_copies_roots(2.0, 3) == (0.5, 0.5)
    with pytest.raises(ValueError, match=r"^3 busy copies of two resources dilate to 2 or more, not 1.9$"):
        dfactor.n_copies_roots(1.9, 3)


def test_equal_units_are_elements_of_their_own():
    # Two units of the first resource: p / 2 on each of two elements.
    p = np.array([(0.9, 0.1), (0.5, 0.3), (0.2, 0.7)])
    apart = np.column_stack([p[:, 0] / 2, p[:, 0] / 2, p[:, 1]])
    assert dfactor.dilations(p, [2.0, 1.0]) == pytest.approx(dfactor.dilations(apart), rel=1e-15)
    assert dfactor.dilations([CPU] * 4, [8.0, 1.0]).tolist() == [1 + 3 / 8] * 4


@given(job_sets())
def test_total_dilation_and_symmetry(p):
    slow = dfactor.dilations(p)
    total = p.sum(axis=0)
    assert (slow >= 1 - 1e-12).all()
    assert slow.sum() == pytest.approx(len(p) + total @ total - (p**2).sum(), rel=1e-12)  # equation (14)
    assert (slow <= len(p) + 1e-9).all()
    if len(p) == 2:
        assert slow[0] == pytest.approx(slow[1], rel=1e-12)
    # a new job adds p'.P to itself, and the same to the others together
    before, new = dfactor.dilations(p[:-1]), p[-1]
    added = dfactor.added_dilation(new, p[:-1].sum(axis=0)[None, :])[0]
    assert slow[-1] - 1 == pytest.approx(added, abs=1e-12)
    assert slow[:-1].sum() - before.sum() == pytest.approx(added, abs=1e-9)


@given(job_sets(), st.data())
def test_completion_times_keep_the_work(p, data):
    times = st.floats(0.1, 50)
    neutral = np.array([data.draw(times) for _ in p])
    starts = np.array([data.draw(st.floats(0, 60)) for _ in p])
    found = dfactor.completion_times(p, neutral, starts)
    elapsed = found - starts
    assert (elapsed >= neutral - 1e-9).all()
    # no longer than if all were there all the time, and than one after the other without idling
    assert (elapsed <= neutral * dfactor.dilations(p) + 1e-9).all()
    together = dfactor.completion_times(p, neutral)
    assert together.max() <= neutral.sum() * (1 + 1e-12)


def test_no_jobs_take_no_time():
    assert len(dfactor.completion_times(np.zeros((0, 2)), [])) == 0


def test_machines_with_their_own_units():
    totals = [(1.0, 0.5), (4.0, 0.0)]
    assert dfactor.added_dilation((0.5, 0.5), totals).tolist() == [0.75, 2.0]
    assert dfactor.added_dilation((0.5, 0.5), totals, (2.0, 1.0)).tolist() == [0.5, 1.0]
    assert dfactor.added_dilation((0.5, 0.5), totals, [(1.0, 1.0), (8.0, 1.0)]).tolist() == [0.75, 0.25]
