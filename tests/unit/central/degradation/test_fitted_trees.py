"""Fitted trees: what is written equals scikit-learn's own predictions, directions hold, files stay small."""

import json

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor

from agent.analysis.degradation.trees import Trees
from central.degradation import trees
from central.degradation.glm import FitError

FEATURES = ("ipc", "others_memory_bandwidth_bytes_per_s", "guest_ratio")


def rows(count, seed):
    """Latencies that grow with the others' bandwidth, with noise of 5 %, and groups of ten with one baseline each."""
    rng = np.random.default_rng(seed)
    baseline = np.repeat(rng.uniform((0.5, 1e8, 0.1), (2.0, 2e8, 0.9), (-(-count // 10), 3)), 10, axis=0)[:count]
    values = baseline * np.column_stack(
        (rng.uniform(0.5, 1.0, count), rng.lognormal(2.0, 1.5, count), rng.uniform(0.9, 1.1, count))
    )
    pressure = values[:, 1] / 3e9
    degradation = (1.0 + pressure * values[:, 2]) * np.exp(rng.normal(0.0, 0.05, count))
    return values, baseline, degradation


def single(numbers):
    return numbers.astype(np.float32).astype(np.float64)


def read(block):
    return Trees.from_json(json.loads(json.dumps(block)))


@pytest.mark.parametrize("link", ["log", "inverse", "inverse-square-root", "identity"])
def test_extra_trees_predict_what_scikit_learn_predicts(link):
    values, baseline, degradation = rows(400, 1)
    new, new_baseline, _ = rows(300, 2)
    block = trees.fit_extra_trees(values, baseline, degradation, seed=3, link=link, trees=20)
    terms = trees.terms_of(values, baseline)
    there, back = {
        "log": (np.log, np.exp),
        "inverse": (lambda y: 1 / y, lambda z: 1 / z),
        "inverse-square-root": (lambda y: y**-0.5, lambda z: z**-2.0),
        "identity": (lambda y: y, lambda z: z),
    }[link]
    forest = ExtraTreesRegressor(20, min_samples_leaf=2, random_state=3)
    forest.fit(terms.of(values, baseline), there(degradation))
    for features, base in ((values, baseline), (new, new_baseline)):
        expected = back(forest.predict(terms.of(features, base)))
        np.testing.assert_allclose(read(block).predict(features, base), expected, rtol=1e-9, atol=0)


@pytest.mark.long
@pytest.mark.parametrize("directions", [(), (-1, 1, 0)])
def test_boosting_predicts_what_scikit_learn_predicts(directions):
    values, baseline, degradation = rows(400, 1)
    new, new_baseline, _ = rows(300, 2)
    block = trees.fit_boosting(values, baseline, degradation, seed=3, directions=directions)
    terms = trees.terms_of(values, baseline)
    constraints = [
        0 if form == "baseline" or not directions else directions[column]
        for column, form in zip(terms.columns, terms.forms, strict=True)
    ]
    boosting = HistGradientBoostingRegressor(
        max_iter=200,
        learning_rate=0.05,
        max_leaf_nodes=15,
        min_samples_leaf=5,
        early_stopping=False,
        monotonic_cst=constraints,
    )
    boosting.fit(terms.of(values, baseline), np.log(degradation))
    for features, base in ((values, baseline), (new, new_baseline)):
        expected = np.exp(boosting.predict(terms.of(features, base)))
        np.testing.assert_allclose(read(block).predict(features, base), expected, rtol=1e-9, atol=0)


def steps(block, column):
    """Estimates as one feature grows, at 20 places: shape (20, 200)."""
    values, baseline, _ = rows(20, 5)
    grid = np.geomspace(1e-3, 1e3, 200)
    result = []
    for row, base in zip(values, baseline, strict=True):
        many = np.tile(row, (len(grid), 1))
        many[:, column] = base[column] * grid
        result.append(read(block).predict(many, np.tile(base, (len(grid), 1))))
    return np.array(result)


@pytest.mark.long
def test_monotone_boosting_holds_its_directions_and_plain_boosting_need_not():
    values, baseline, degradation = rows(400, 1)
    fitted = {name: fit(values, baseline, degradation) for name, fit in trees.rivals(FEATURES, 0).items()}
    monotone = fitted["boosting-monotone"]
    assert (np.diff(steps(monotone, 1), axis=1) >= -1e-12).all()  # others' bandwidth
    assert (np.diff(steps(monotone, 0), axis=1) <= 1e-12).all()  # ipc
    assert np.ptp(steps(monotone, 1), axis=1).min() > 0.5
    assert (np.diff(steps(fitted["boosting"], 1), axis=1) < -1e-6).any()
    assert (np.diff(steps(fitted["extra-trees"], 1), axis=1) < -1e-6).any()


@pytest.mark.parametrize("method", trees.rivals(FEATURES, 0))
def test_methods_learn(method):
    values, baseline, degradation = rows(600, 1)
    new, new_baseline, real = rows(300, 2)
    block = trees.rivals(FEATURES, 0)[method](values, baseline, degradation)
    error = np.abs(read(block).predict(new, new_baseline) / real - 1)
    constant = np.abs(np.median(degradation) / real - 1)
    assert np.mean(error) < 0.4 * np.mean(constant)
    assert block["uses"] == [0, 1, 2]


def test_the_same_seed_gives_the_same_model():
    values, baseline, degradation = rows(100, 1)
    first, again, other = (
        trees.fit_extra_trees(values, baseline, degradation, seed=seed, trees=5) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_rivals_are_named_and_the_monotone_one_needs_a_direction():
    assert list(trees.rivals(FEATURES, 0)) == ["extra-trees", "boosting", "boosting-monotone"]
    assert list(trees.rivals(("something", "else"), 0)) == ["extra-trees", "boosting"]
    assert trees.directions_of((*FEATURES, "others_llc_occupancy_bytes")) == (-1, 1, 0, 0)
    values, baseline, degradation = rows(100, 1)
    block = trees.rivals(FEATURES, 4)["extra-trees"](values, baseline, degradation)
    assert block == trees.fit_extra_trees(values, baseline, degradation, seed=4)


@pytest.mark.long
def test_many_rows_make_no_large_file():
    values, baseline, degradation = rows(8_000, 1)
    block = trees.fit_extra_trees(values, baseline, degradation, seed=0)
    assert len(json.dumps(block, indent=1)) < 2e6


def test_terms_are_those_that_vary_and_no_two_alike():
    values = np.array([[1.0, 5.0, 7.0], [2.0, 5.0, 8.0], [3.0, 5.0, 9.0]])
    baseline = np.array([[1.0, 5.0, 7.0], [1.0, 5.0, 8.0], [1.0, 5.0, 9.0]])
    terms = trees.terms_of(values, baseline)
    # Column 0 / 1 is column 0; column 2 is its own baseline.
    assert list(zip(terms.columns.tolist(), terms.forms, strict=True)) == [(0, "raw"), (2, "raw")]
    with pytest.raises(FitError, match="no feature varies"):
        trees.terms_of(np.ones((3, 2)), np.ones((3, 2)))
