"""The bars of the antagonist study by bench/antagonists.py's own parts: smaller traces, both forms (long)."""

from __future__ import annotations

import sys

import pytest

from central.evaluation.methods import METHODS
from tests.support.central_process import ROOT

sys.path.insert(0, str(ROOT / "bench"))

import antagonists

#: Knobs of a trace of a third of the study's rows; days from 9 on are scored.
SIZE = {"days": 12, "machines": 24}
FROM_DAY = 9


def traces(*scores):
    names = ("panda", "whitepanda", "oracle")
    return [
        {"methods": {name: {"percentile": score} for name, score in zip(names, each, strict=True)}}
        for each in scores
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


@pytest.mark.long
@pytest.mark.parametrize("form", antagonists.FORMS)
def test_the_gap_is_closed(form):
    makers = {name: METHODS[name] for name in ("panda", antagonists.OURS)}
    found = [antagonists.run_all(form, seed, makers=makers, from_day=FROM_DAY, **SIZE) for seed in (1, 2)]
    assert antagonists.are_held(*antagonists.bars(found)), found
