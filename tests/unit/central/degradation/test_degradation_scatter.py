"""The scatter of seconds within runs: learnt, kept in the model file, and what a percentile of a run is made of."""

import math

import numpy as np
import pytest

from agent.analysis.degradation.model import parse
from central.degradation.evaluate import errors, evaluate_as_is, evaluate_refitted
from central.degradation.fit import FitOptions
from central.degradation.model_selection import fit_model
from central.degradation.runs import Columns, Table, make_runs
from central.degradation.scatter import percentile_with

QUIET, STRESSED, OFF = 0.03, 0.10, 0.2
OPTIONS = FitOptions(methods=("gamma-log",))


def runs_file(path, rows_per_run=40, seed=1):
    """Write 24 runs: log-normal scatter around the mean of each, which is off by more than that from what is learnt."""
    rng = np.random.default_rng(seed)
    lines = ["scenario,run,phase,at_s,ipc,p95"]
    for run in range(24):
        off = math.exp(OFF * rng.standard_normal())
        for phase, ipc, std in (("quiet", 1.0, QUIET), ("stress", 0.5 + 0.01 * run, STRESSED)):
            for at_s in range(rows_per_run):
                mean = 1.0 if phase == "quiet" else off * math.exp(2 * (1 - ipc))
                p95 = mean * math.exp(std * rng.standard_normal())
                lines.append(f"{'ab'[run % 2]},{run},{phase},{at_s},{ipc + 0.01 * rng.standard_normal()},{p95}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    columns = Columns(
        target="p95",
        baseline_where="phase = 'quiet'",
        group_by=("run",),
        features=("ipc",),
        scenario="scenario",
        time="at_s",
    )
    return make_runs(Table(path), columns)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return runs_file(tmp_path_factory.mktemp("scatter") / "runs.csv")


@pytest.fixture(scope="module")
def model(runs):
    return parse(fit_model(runs, OPTIONS))


def of_rows(runs, model, rows, degradation):
    inputs = [runs.columns.inputs.index(name) for name in model.inputs]
    return model.scatter(runs.values[rows][:, inputs], runs.baseline[rows][:, inputs], degradation)


def test_it_is_that_within_runs_and_not_what_the_model_errs_about_them(runs, model):
    rows = np.flatnonzero(~runs.is_baseline)
    inputs = [runs.columns.inputs.index(name) for name in model.inputs]
    reported = model.predict(runs.values[rows][:, inputs], runs.baseline[rows][:, inputs])
    found = of_rows(runs, model, rows, reported.degradation)
    assert np.nanmedian(found) == pytest.approx(STRESSED, rel=0.2)
    half = np.log(reported.high / reported.low) / 2 / 1.645
    assert np.nanmedian(half) > 1.5 * STRESSED  # intervals hold both


def test_without_an_estimate_it_is_that_of_the_quiet(runs, model):
    rows = np.flatnonzero(runs.is_baseline)[:5]
    found = of_rows(runs, model, rows, np.full(5, math.nan))
    np.testing.assert_allclose(found, QUIET, rtol=0.1)


def test_runs_of_few_rows_tell_of_none(tmp_path):
    few = runs_file(tmp_path / "runs.csv", rows_per_run=4)
    data = fit_model(few, OPTIONS)
    assert [part["scatter"] for part in data["models"]] == [None]
    assert np.isnan(of_rows(few, parse(data), np.arange(3), np.ones(3))).all()


def test_a_model_of_before_has_none(runs):
    data = fit_model(runs, OPTIONS)
    for part in data["models"]:
        del part["scatter"]
    assert parse(data).estimators[0].scatter is None


@pytest.mark.parametrize("wrong", [{"factor": -1.0, "quiet": 0.1}, {"factor": 1.0, "quiet": math.inf}])
def test_a_scatter_that_cannot_be_is_refused(runs, wrong):
    data = fit_model(runs, OPTIONS)
    data["models"][0]["scatter"] = wrong
    with pytest.raises(ValueError, match="scatter"):
        parse(data)


def test_a_percentile_of_a_run_is_that_of_a_normal_distribution_around_its_estimates():
    estimated, scatter = np.full(50, 3.0), np.full(50, 0.2)
    assert percentile_with(estimated, scatter, 95) == pytest.approx(3 * math.exp(0.2 * 1.645), rel=0.01)
    assert percentile_with(estimated, scatter, 50) == pytest.approx(3.0, rel=0.01)
    assert percentile_with(estimated, np.zeros(50), 95) == pytest.approx(3.0)


def test_the_overall_error_is_reported_with_it_and_without():
    rng = np.random.default_rng(2)
    estimated = np.full(2000, 1.5)
    measured = estimated * np.exp(0.1 * rng.standard_normal(2000))
    names, at_s = np.array(["a"] * 2000), np.arange(2000.0)
    found = errors(measured, estimated, names, at_s, np.full(2000, 0.1))
    assert found["overall_error"] == pytest.approx(1 - math.exp(-0.1645), abs=0.02)
    assert found["overall_error_with_scatter"] < 0.02
    unknown = np.full(2000, 0.1)
    unknown[7] = math.nan
    assert math.isnan(errors(measured, estimated, names, at_s, unknown)["overall_error_with_scatter"])


@pytest.mark.long
def test_evaluations_tell_both(runs, model):
    for _, _, summary in (evaluate_as_is(runs, model, 1.0), evaluate_refitted(runs, OPTIONS, "gamma-log", folds=0)):
        assert 0 < summary["overall_error_with_scatter"] < 1
        assert summary["overall_error_with_scatter"] != summary["overall_error"]
        assert math.isnan(summary["constant"]["overall_error_with_scatter"])
