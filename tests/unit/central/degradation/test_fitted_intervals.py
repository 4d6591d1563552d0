"""Intervals as they are calibrated: nominal on rows like training, wider where errors are, and where rows are new."""

import json

import numpy as np
import pytest

from agent.analysis.degradation.intervals import Intervals
from central.degradation import intervals
from central.degradation.glm import FitError


def rows(count, seed, shift=0.0):
    """Estimates with an error of 2 % for loads below 0.5 and 20 % above. The other feature says nothing."""
    rng = np.random.default_rng(seed)
    values = np.column_stack((rng.uniform(0.0, 1.0, count), rng.normal(10.0 + shift, 1.0, count)))
    baseline = np.column_stack((np.full(count, 0.5), rng.normal(10.0, 1.0, count)))
    estimated = 1.0 + values[:, 0]
    sigma = np.where(values[:, 0] < 0.5, 0.02, 0.2)
    return values, baseline, estimated * np.exp(rng.normal(0.0, sigma)), estimated


def scenarios(count):
    return np.array(["a", "b", "c"])[np.arange(count) % 3]


def calibrate(count=900, seed=1, **more):
    values, baseline, degradation, estimated = rows(count, seed)
    options = {"nominal": 0.9, **more}
    block = intervals.fit(values, baseline, degradation, estimated, scenarios(count), **options)
    return block, Intervals.from_json(json.loads(json.dumps(block)))


@pytest.mark.parametrize("nominal", [0.8, 0.9, 0.95])
def test_the_nominal_share_is_covered_wherever_the_errors_are_large(nominal):
    _, fitted = calibrate(nominal=nominal)
    values, baseline, degradation, estimated = rows(4000, 2)
    low, high, reported = fitted.bounds(values, baseline, estimated)
    covered = (low <= degradation) & (degradation <= high)
    is_low = values[:, 0] < 0.5
    assert reported.mean() > 0.99
    assert covered.mean() == pytest.approx(nominal, abs=0.025)
    for part in (is_low, ~is_low):
        assert covered[part].mean() == pytest.approx(nominal, abs=0.1)
    width = np.log(high / low)
    assert np.median(width[~is_low]) > 5 * np.median(width[is_low])


def test_rows_unlike_training_get_wider_intervals_and_then_none():
    _, fitted = calibrate()
    medians = []
    for shift in (0.0, 4.0, 8.0, 1000.0):
        values, baseline, _, estimated = rows(300, 3, shift)
        low, high, reported = fitted.bounds(values, baseline, estimated)
        medians.append((np.median(np.log(high / low)), reported.mean()))
    widths, shares = zip(*medians, strict=True)
    assert widths[0] < widths[1] < widths[2] < widths[3]
    assert shares[0] > 0.99
    assert shares[3] == 0


def test_errors_on_held_out_scenarios_make_them_widen_faster():
    count = 900
    values, baseline, degradation, estimated = rows(count, 1)
    names = scenarios(count)
    # Each scenario lies apart from the others, and without it the model errs by half.
    values[:, 1] += np.where(names == "a", 0.0, np.where(names == "b", 12.0, 24.0))
    arguments = (values, baseline, degradation, estimated, names)
    good = intervals.fit(*arguments, nominal=0.9, by_scenario=estimated)
    bad = intervals.fit(*arguments, nominal=0.9, by_scenario=estimated * 1.5)
    assert good["novelty"]["slope"] == 1.0
    assert bad["novelty"]["slope"] > 1.0
    # What whole scenarios looked like when they were held out is still told.
    assert good["novelty"]["limit"] > 4.0


def test_novelty_is_measured_from_other_runs():
    """Rows of one run are alike; that says nothing of how near the next run will be."""
    rng = np.random.default_rng(1)
    runs = np.repeat(np.arange(60), 20)
    middle = rng.uniform(0.0, 10.0, (60, 2))[runs]
    values = middle + rng.normal(0.0, 0.001, middle.shape)
    baseline, estimated = np.ones_like(values), np.full(len(values), 2.0)
    degradation = estimated * np.exp(rng.normal(0.0, 0.1, len(values)))
    names = np.zeros(len(values), dtype=str)
    by_row, by_run = (
        intervals.fit(values, baseline, degradation, estimated, names, nominal=0.9, units=units)
        for units in (None, runs.astype(str))
    )
    assert by_run["novelty"]["reference"] > 8 * by_row["novelty"]["reference"]


def test_a_model_of_relative_features_finds_no_other_size_of_vm_new():
    _, relative = calibrate(is_relative=True)
    _, raw = calibrate()
    values, baseline, _, estimated = rows(300, 4)
    for fitted, least, most in ((relative, 0.99, 1.0), (raw, 0.0, 0.01)):
        reported = fitted.bounds(100 * values, 100 * baseline, estimated)[2]
        assert least <= reported.mean() <= most


def test_columns_that_the_model_does_not_use_may_be_unknown():
    block, fitted = calibrate(uses=[0])
    values, baseline, _, estimated = rows(50, 4)
    values[:, 1] = np.nan
    assert fitted.bounds(values, baseline, estimated)[2].all()
    # The estimate's log is the column after the features.
    assert {term["column"] for term in block["difficulty"]["terms"]} == {0, 2}
    assert {term["column"] for term in block["novelty"]["terms"]} == {0}


def test_rows_without_an_estimate_are_not_used():
    values, baseline, degradation, estimated = rows(200, 1)
    estimated[::2] = np.nan
    block = intervals.fit(values, baseline, degradation, estimated, scenarios(200), nominal=0.9)
    assert block["rows"] == 100
    estimated[19:] = np.nan
    with pytest.raises(FitError, match="9 rows with estimates are too few; 20 are needed"):
        intervals.fit(values, baseline, degradation, estimated, scenarios(200), nominal=0.9)


def test_estimates_without_any_error_have_narrow_intervals_not_none():
    values, baseline, _, estimated = rows(100, 1)
    block = intervals.fit(values, baseline, estimated, estimated, scenarios(100), nominal=0.9)
    low, high, reported = Intervals.from_json(block).bounds(values, baseline, estimated)
    assert reported.mean() > 0.9
    assert (high / low < 1.001).all()
    assert (low <= estimated).all()
    assert (estimated <= high).all()


@pytest.mark.parametrize("count", [20, 60, 900])
@pytest.mark.long
def test_no_row_that_the_model_was_fitted_to_is_too_novel(count):
    """Quiet rows are fitted to, and lie far from all stressed ones; so do two strays. None has to be a prototype."""
    values, baseline, degradation, estimated = rows(count, 1)
    rng = np.random.default_rng(7)
    quiet = np.column_stack((rng.normal(-4.0, 0.01, count), rng.normal(60.0, 0.01, count)))
    strays = np.array([[0.5, -300.0], [90.0, 10.0]])
    all_values = np.vstack((values, quiet, strays))
    all_baselines = np.vstack((baseline, np.tile(baseline.mean(axis=0), (count + 2, 1))))
    one = np.zeros(count, dtype=np.str_)
    arguments = (values, baseline, degradation, estimated, one)
    without = Intervals.from_json(intervals.fit(*arguments, nominal=0.9))
    training = Intervals.from_json(intervals.fit(*arguments, nominal=0.9, training=(all_values, all_baselines)))
    guess = np.ones(len(all_values))
    assert without.bounds(values, baseline, estimated)[2].all()
    assert not without.bounds(all_values, all_baselines, guess)[2][count:].all()
    assert training.bounds(all_values, all_baselines, guess)[2].all()
    # What is calibrated stays as it was: of rows like the measured ones, the same is reported.
    for seen, was in zip(
        training.bounds(values, baseline, estimated), without.bounds(values, baseline, estimated), strict=True
    ):
        assert seen == pytest.approx(was)
    assert not training.bounds(values - 1e6, baseline, estimated)[2].any()


def test_what_lies_between_the_groups_of_training_rows_is_still_new():
    """Quiet rows become a part of the measure; they do not make it lenient."""
    values, baseline, degradation, estimated = rows(300, 1)
    quiet, between = (values + np.array((0.0, shift)) for shift in (20_000.0, 300.0))
    training = (np.vstack((values, quiet)), np.vstack((baseline, baseline)))
    one = np.zeros(300, dtype=np.str_)
    block = intervals.fit(values, baseline, degradation, estimated, one, nominal=0.9, training=training)
    fitted = Intervals.from_json(block)
    assert block["novelty"]["limit"] == 4.0
    assert fitted.bounds(quiet, baseline, estimated)[2].all()
    assert not fitted.bounds(between, baseline, estimated)[2].any()


@pytest.mark.long
def test_the_same_seed_gives_the_same_block_and_it_stays_small():
    first, again, other = (intervals.fit(*rows(3000, 1), scenarios(3000), nominal=0.9, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert len(json.dumps(first, indent=1)) < 3e5


@pytest.mark.long
def test_where_each_scenario_is_to_be_covered_the_worst_one_says_how_wide():
    count = 3000
    values, baseline, _, estimated = rows(count, 1)
    names = scenarios(count)
    rng = np.random.default_rng(4)
    # "c" is noisier than the others, and no feature tells.
    degradation = estimated * np.exp(rng.normal(0.0, np.where(names == "c", 0.15, 0.03)))
    covered = {}
    for each in (False, True):
        block = intervals.fit(values, baseline, degradation, estimated, names, nominal=0.9, each_scenario=each)
        low, high, _ = Intervals.from_json(block).bounds(values, baseline, estimated)
        inside = (low <= degradation) & (degradation <= high)
        covered[each] = [inside[names == name].mean() for name in ("a", "b", "c")]
    assert covered[False][2] < 0.8
    # Their difficulty is fitted to these very rows, so a little more than nominal.
    assert covered[True][2] == pytest.approx(0.93, abs=0.03)
    assert min(covered[True][:2]) > 0.97
