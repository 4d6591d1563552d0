"""PANDA, PANDA-Local, CPI2 and Proctor against numbers worked out by hand."""

import math

import numpy as np
import pytest

from agent.analysis.contention.suspect_scores import percentile_ranks
from central.models.antagonists import cpi2, panda, proctor
from central.models.antagonists.colocation import pair_sums
from central.models.antagonists.slots import TaskSlots
from tests.support import panda_reference

NAN = math.nan


def slots(rows):
    """Rows of (machine, slot, task, job, sensitive, usage, cpi)."""
    columns = list(zip(*rows, strict=True))
    return TaskSlots(
        np.array(columns[0]),
        np.array(columns[1]),
        np.array(columns[2]),
        np.array(columns[3]),
        np.zeros(len(rows), np.int8),
        np.array(columns[4]),
        np.array(columns[5], dtype=np.float64),
        np.array(columns[6], dtype=np.float64),
    )


# Job 1 is latency-sensitive: CPI 1, 2, 3, 2 has mean 2 and std sqrt(1/2). Job 9 is batch.
ROWS = slots(
    [
        (0, 0, 10, 1, True, 0.5, 1.0),
        (0, 1, 10, 1, True, 0.5, 3.0),
        (1, 0, 11, 1, True, 0.5, 2.0),
        (1, 1, 11, 1, True, 0.5, 2.0),
        (0, 0, 90, 9, False, 1.0, NAN),
        (0, 1, 90, 9, False, 2.0, NAN),
        (1, 1, 91, 9, False, 4.0, NAN),
    ]
)


def test_panda_by_hand():
    found = panda_reference.fit(ROWS)
    root = math.sqrt(2)
    assert found.statistics.mean_cpi.tolist() == [2.0]
    assert found.statistics.std_cpi == pytest.approx([math.sqrt(0.5)], rel=1e-15)
    # (1), (2): mnCPI is -sqrt 2, sqrt 2 on machine 0 and 0, 0 on machine 1
    assert found.machine_cpi.mn_cpi == pytest.approx([-root, root, 0, 0], abs=1e-15)
    # (3): (1 * -sqrt 2 + 2 * sqrt 2 + 4 * 0) / (1 + 4 + 16)
    assert dict(zip(found.coefficients.job.tolist(), found.coefficients.value, strict=True))[9] == pytest.approx(
        root / 21, rel=1e-14
    )
    # (4): ranks 1, 2.5, 2.5, 4 of 4
    assert percentile_ranks([3.0, 1.0, 1.0, 0.0]) == [1.0, 0.5, 0.5, 0.0]


def test_panda_local_by_hand_and_in_parts():
    statistics = panda_reference.fit(ROWS).statistics
    whole = pair_sums(ROWS)
    parts = pair_sums(ROWS.take(ROWS.slot == 1)).merge(pair_sums(ROWS.take(ROWS.slot == 0)))
    for state in (whole, parts):
        found = panda.local_coefficients(state, statistics)
        value = dict(zip(zip(found.machine.tolist(), found.job.tolist(), strict=True), found.value, strict=True))
        assert value[0, 9] == pytest.approx(math.sqrt(2) / 5, rel=1e-14)  # (-1 + 2) sqrt 2 / (1 + 4)
        assert value[1, 9] == pytest.approx(0, abs=1e-15)


def test_a_cpi2_spec_ages_by_a_tenth_a_day():
    def day(job, cpi):
        return panda.CpiMoments.of(np.array(job), np.zeros(len(job), np.int8), np.array(cpi))

    spec = cpi2.Spec.of(day([1, 1], [1.0, 3.0])).next_day(day([1, 2], [5.0, 7.0]))
    # job 1: weight 2 * 0.9 + 1, mean (1.8 * 2 + 5) / 2.8, m2 = 0.9 * 2 + 1.8 * (2 - mean)^2 + (5 - mean)^2
    mean = 8.6 / 2.8
    m2 = 1.8 + 1.8 * (2 - mean) ** 2 + (5 - mean) ** 2
    assert spec.job.tolist() == [1, 2]
    assert spec.weight == pytest.approx([2.8, 1.0])
    assert spec.mean == pytest.approx([mean, 7.0])
    assert spec.m2 == pytest.approx([m2, 0.0], abs=1e-15)
    assert spec.threshold() == pytest.approx([mean + 2 * math.sqrt(m2 / 2.8), 7.0])
    later = spec.next_day(day([2], [7.0]))  # who is absent is not forgotten
    assert later.weight == pytest.approx([2.52, 1.9])
    assert later.mean == pytest.approx([mean, 7.0])


def test_cpi2_score_by_hand():
    cpi = np.array([4.0, 2.0, 1.0, NAN])
    usage = np.array([[1.0, 1, 0, 9], [0, 0, 3, 9], [0, 0, 0, 5]])
    # C = 2: 0.5 * (1 - 2/4) + 0.5 * (2/2 - 1) = 0.25; 1 * (1/2 - 1) = -0.5; did not run: 0
    assert cpi2.suspect_scores(cpi, 2.0, usage) == pytest.approx([0.25, -0.5, 0.0])


def test_proctor_draws_until_the_sample_is_like_the_whole(monkeypatch):
    values = np.arange(24.0)
    for seed in range(20):
        drawn = proctor.representative(values, np.random.default_rng(seed))
        assert len(set(drawn.tolist())) == 12
        counts = np.bincount((drawn // 8).astype(int), minlength=3)
        assert ((counts - 4) ** 2 / 4).sum() <= 1
    assert len(proctor.representative(np.empty(0), np.random.default_rng(1))) == 0
    monkeypatch.setattr(proctor, "CHI_SQUARE_LIMIT", -1)
    assert len(proctor.representative(values, np.random.default_rng(1))) == 12  # capped: the best draw


def test_proctor_correlates_over_what_it_drew():
    rng = np.random.default_rng(5)
    cpi = rng.lognormal(0, 0.3, 24)
    cpi[3] = NAN
    usage = np.stack([np.nan_to_num(cpi, nan=7.0), -cpi, np.full(24, 0.3), rng.random(24)])
    usage[1, 3] = 0
    found = proctor.suspect_scores(cpi, usage, np.random.default_rng(7))
    known = np.flatnonzero(~np.isnan(cpi))
    drawn = known[proctor.representative(cpi[known], np.random.default_rng(7))]
    assert found[:3] == pytest.approx([1, -1, 0])
    assert found[3] == pytest.approx(np.corrcoef(cpi[drawn], usage[3, drawn])[0, 1], rel=1e-12)
    assert proctor.suspect_scores(np.full(24, NAN), usage, np.random.default_rng(7)).tolist() == [0, 0, 0, 0]


def test_columns_of_unlike_lengths_are_refused():
    with pytest.raises(ValueError, match="one length"):
        TaskSlots(*(np.zeros(n, np.int64) for n in (2, 2, 2, 2, 2, 2, 2, 3)))
