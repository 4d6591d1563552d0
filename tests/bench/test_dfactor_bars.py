"""D-Factor's bars by the study's own parts: a simulated day, the ranking's result, and (long) the real pairs."""

import inspect
import re

import numpy as np
import pytest

import central.models.dfactor as dfactor_model
from bench.dfactor import day as dfactor_day
from bench.dfactor import pairs as dfactor_pairs
from bench.dfactor import study as dfactor
from central.models.dfactor_pairs import fit_extended, fit_plain
from tests.support.central_process import ROOT


def test_a_day_is_15_percent_better_than_first_fit_and_least_loaded():
    found = dfactor_day.evaluate(11)
    assert found["without_room"] == dict.fromkeys(dfactor_day.RULES, 0)
    for truth in dfactor_day.TRUTHS:
        whitepanda = found["excess"]["dfactor"][truth]
        for rule in ("first-fit", "least-loaded", "fewest-vms", "fewest-vcpus"):
            assert whitepanda <= (1 - dfactor.DAY_BAR) * found["excess"][rule][truth], (rule, truth)


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


def errors_of_the_study():
    """The mean errors over all pairs in the study's table, in percent."""
    page = (ROOT / "docs" / "studies" / "dfactor.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| (\d+\.\d+) ± [^|]+ \|(?:[^|]*\|){4}$", page, re.MULTILINE)
    return page, {name: float(mean) for name, mean in rows}


def test_the_study_says_what_the_papers_form_reaches_and_which_form_the_commands_compute():
    page, errors = errors_of_the_study()
    paper, constant = errors["D-Factor, platforms alike"], errors["constant"]
    assert paper >= constant
    said = (
        "one loading vector per workload",
        f"{paper:.1f} %",
        f"constant {constant:.1f} %",
        f"{errors['D-Factor, units and speeds']:.1f}",
    )
    guide = (ROOT / "docs" / "slowdown.md").read_text(encoding="utf-8")
    for text in (page, guide):
        prose = " ".join(text.split())
        assert all(words in prose for words in said)
    forms = re.findall(r"^\| ([^|]+?)(?:: the paper's)? \| (\d+\.\d) \| ", page, re.MULTILINE)
    assert len(forms) == 4
    assert all(float(error) == pytest.approx(errors[name], abs=0.051) for name, error in forms)


def test_what_estimate_and_place_compute_knows_no_speeds():
    """Vectors and units alone: the form "units and speeds" of the study is of `slowdown pairs` only."""
    assert set(inspect.signature(dfactor_model.dilations).parameters) == {"loadings", "units"}
    assert set(inspect.signature(dfactor_model.added_dilation).parameters) == {"loading", "totals", "units"}


@pytest.mark.long
def test_on_real_pairs_the_papers_form_is_no_better_than_a_constant(data_dir):
    path = data_dir / "pitot" / "observations.parquet"
    if not path.is_file():
        pytest.skip(f"no real data at {path}; set WHITEPANDA_DATA")
    data = dfactor_pairs.read(path)
    mask = dfactor_pairs.half(data.triple, 0)
    fitted, tested = (
        dfactor_pairs.Pairs(some.victim, some.beside, np.zeros_like(some.platform), some.slowdown)
        for some in (data.pairs.where(mask), data.pairs.where(~mask))
    )
    paper = fit_plain(fitted, data.workloads, 1, speeds=False).predict(tested)
    constant = np.full(len(tested.slowdown), dfactor_pairs.best_constant(fitted.slowdown))
    found = [dfactor_pairs.relative_errors(each, tested).mean() for each in (paper, constant)]
    assert found == [pytest.approx(0.186, abs=0.003), pytest.approx(0.185, abs=0.002)]
