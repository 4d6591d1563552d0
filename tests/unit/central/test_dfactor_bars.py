"""D-Factor's bars by bench/dfactor.py's own parts: a simulated day, the ranking's result, and (long) the real pairs."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from central.models.dfactor_pairs import fit_extended, fit_plain
from tests.support.central_process import ROOT

sys.path.insert(0, str(ROOT / "bench"))

import dfactor
import dfactor_day
import dfactor_pairs


def test_a_day_is_15_percent_better_than_first_fit_and_least_loaded():
    found = dfactor_day.evaluate(11)
    assert found["without_room"] == dict.fromkeys(dfactor_day.RULES, 0)
    for truth in dfactor_day.TRUTHS:
        ours = found["excess"]["dfactor"][truth]
        for rule in ("first-fit", "least-loaded", "fewest-vms", "fewest-vcpus"):
            assert ours <= (1 - dfactor.DAY_BAR) * found["excess"][rule][truth], (rule, truth)


def test_the_day_is_counted_as_by_hand(monkeypatch):
    # Two VMs of one job on one host all day, a third alone on another.
    monkeypatch.setattr(dfactor_day, "ARRIVALS", 3)
    half = np.array([0.5, 0.0, 0.5, 0.0])
    day = dfactor_day.Day(np.zeros(3), np.full(3, 25.0), np.tile(half, (3, 1)), np.ones(3))
    expected = (0.25 / 16 + 0.25 / 2) * 2 / 3
    assert dfactor_day.excess(day, np.array([0, 0, 1]), "model", 0) == pytest.approx(expected, rel=1e-12)


def test_the_best_constant_has_the_least_relative_error():
    slowdown = np.array([1.0, 1.1, 1.2, 2.0, 5.0])
    grid = np.linspace(0.9, 5, 4101)
    errors = (np.abs(grid[:, None] - slowdown) / slowdown).mean(axis=1)
    assert dfactor_pairs.best_constant(slowdown) == pytest.approx(grid[errors.argmin()], abs=1e-3)


@pytest.mark.long
def test_real_pairs(data_dir):
    path = data_dir / "pitot" / "observations.parquet"
    if not path.is_file():
        pytest.skip(f"no real data at {path}; set WHITEPANDA_DATA")
    data = dfactor_pairs.read(path)
    mask = dfactor_pairs.half(data.triple, 5)
    # What was measured twice is on one side.
    assert not set(data.triple[mask]) & set(data.triple[~mask])
    fitted, tested = data.pairs.where(mask), data.pairs.where(~mask)
    for fit, bar in ((fit_plain, dfactor.PAIRS_BAR), (fit_extended, 0.06)):
        predicted = fit(fitted, data.workloads, data.platforms).predict(tested)
        assert dfactor_pairs.relative_errors(predicted, tested).mean() <= bar
