"""The bars of the antagonist study by bench/antagonists/study.py's own parts: smaller traces, both forms (long)."""

import numpy as np
import pytest

from bench.antagonists import ablation as antagonists_ablation
from bench.antagonists import study as antagonists
from central.models.antagonists.slots import TaskSlots
from central.traces.methods import METHODS

#: Parameters of a trace of a third of the study's rows; days from 9 on are scored.
SIZE = {"days": 12, "machines": 24}
FROM_DAY = 9


def traces(*scores):
    names = ("panda", "whitepanda", "oracle")
    return [
        {"methods": {name: {"percentile": score} for name, score in zip(names, each, strict=True)}} for each in scores
    ]


@pytest.mark.parametrize(
    ("scores", "closed", "worst", "held"),
    [
        (((0.7, 0.95, 1.0), (0.5, 0.95, 1.0)), 0.875, 0.25, True),
        (((0.7, 0.69, 1.0), (0.1, 1.0, 1.0)), 0.89 / 1.2, -0.01, False),  # too little of the gap
        (((0.9, 0.88, 1.0), (0.1, 1.0, 1.0)), 0.88, -0.02, False),  # below PANDA on one
        (((0.7, 0.7, 1.0), (0.5, 0.5, 1.0)), 0.0, 0.0, False),  # PANDA itself
    ],
)
def test_the_bars_by_hand(scores, closed, worst, held):
    found = antagonists.bars(traces(*scores))
    assert found == pytest.approx((closed, worst), abs=1e-12)
    assert antagonists.are_held(*found) is held


def test_what_the_ablation_changes_is_there():
    patches = [patch for _, each in antagonists_ablation.ABLATION.values() for patch in each]
    assert [name for owner, name, _ in patches if not hasattr(owner, name)] == []


def test_coefficients_come_from_other_machines():
    n = 8
    rows = TaskSlots(
        np.arange(n) % 4,
        np.zeros(n, int),
        np.arange(n),
        np.arange(n),
        np.zeros(n, int),
        np.ones(n, bool),
        *np.ones((2, n)),
    )
    learnt, scored = antagonists_ablation._halves([(0, rows), (1, rows)])
    assert [set(day.machine.tolist()) for _, day in learnt] == [{0, 2}] * 2
    assert [set(day.machine.tolist()) for _, day in scored] == [{1, 3}] * 2


def test_the_interval_of_a_difference_by_hand():
    # Two traces of two seeds: within them variances of 0.02 and 0.08, mean 0.05; t of 2 degrees of freedom.
    mean, half = antagonists_ablation.difference(np.array([[0.1, 0.3], [0.2, 0.6]]))
    assert mean == pytest.approx(0.3)
    assert half == pytest.approx(4.302652729911275 * (0.05 / 4) ** 0.5, rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("form", antagonists.FORMS)
def test_the_gap_is_closed(form):
    makers = {name: METHODS[name] for name in ("panda", antagonists.OURS)}
    found = [antagonists.run_all(form, seed, makers=makers, from_day=FROM_DAY, **SIZE) for seed in (1, 2)]
    assert antagonists.are_held(*antagonists.bars(found)), found
