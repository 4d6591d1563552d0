"""Intervals as the agent evaluates them: by hand, and blocks that are damaged."""

import copy
import math

import numpy as np
import pytest

from agent.analysis.degradation.intervals import Intervals, mean_distance

# The expected |log error| is 0.1 for estimates up to e, and 0.3 above (column 1 is the log of the estimate).
BLOCK = {
    "kind": "conformal",
    "nominal": 0.9,
    "quantile": 2.0,
    "floor": 0.05,
    "difficulty": {
        "kind": "trees",
        "link": "identity",
        "base": 0.0,
        "factor": 1.0,
        "terms": [{"column": 1, "form": "raw", "scale": 1.0}],
        "trees": 1,
        "columns": "0 -1 -1",
        "numbers": "1 0.1 0.3",
    },
    "novelty": {
        "terms": [{"column": 0, "form": "raw", "scale": 1.0}],
        "middles": [0.0],
        "widths": [1.0],
        "spreads": [1.0],
        "neighbours": 1,
        "prototypes": "0.0 1.0",
        "reference": 0.5,
        "slope": 1.0,
        "limit": 3.0,
    },
}


def bounds(values, degradation, block=BLOCK):
    column = np.array(values, dtype=float)[:, None]
    return Intervals.from_json(block).bounds(column, np.ones_like(column), np.array(degradation, dtype=float))


def test_bounds_by_hand():
    # Places asinh(0) = 0: novelty 0. sinh(1): 1, likewise. sinh(2): 1 from the nearest, novelty 2, twice as wide.
    # sinh(3): novelty 4, beyond the limit.
    low, high, reported = bounds([0.0, math.sinh(1), math.sinh(2), math.sinh(3)], [1.5, 4.0, 1.5, 1.5])
    half = np.array([2 * 0.15, 2 * 0.35, 2 * 0.15 * 2])
    assert high[:3] == pytest.approx(np.array([1.5, 4.0, 1.5]) * np.exp(half), rel=1e-6)
    assert low[:3] == pytest.approx(np.array([1.5, 4.0, 1.5]) / np.exp(half), rel=1e-6)
    assert reported.tolist() == [True, True, True, False]


def test_what_is_not_known_is_not_reported():
    _, _, reported = bounds([math.nan, 0.0, 0.0, 0.0], [1.5, math.nan, 0.0, 1.5])
    assert reported.tolist() == [False, False, False, True]


def test_mean_distance():
    rng = np.random.default_rng(1)
    places, prototypes = rng.normal(size=(600, 3)), rng.normal(size=(40, 3))
    every = np.sqrt(((places[:, None] - prototypes[None]) ** 2).mean(axis=2))
    expected = np.sort(every, axis=1)[:, :4].mean(axis=1)
    assert mean_distance(places, prototypes, 4) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("kind",), "gaussian", "of unknown kind gaussian"),
        (("nominal",), 1.0, r"nominal must be a number from 0.01 to 0.999 \(value 1.0\)"),
        (("quantile",), 0.0, r"quantile must be a number from 1e-09 to 1e\+06 \(value 0.0\)"),
        (("floor",), math.nan, r"floor must be .* \(value nan\)"),
        (("quantile",), "wide", "quantile must be a number .*wide"),
        (("difficulty", "trees"), 2, "estimator of kind trees: columns holds 1 whole trees, not 2"),
        (("novelty",), None, "NoneType"),
        (("novelty", "middles"), [], "must have 1 numbers per row"),
        (("novelty", "middles"), [math.nan], r"novelty: middles\[0\] must be a number .* \(value nan\)"),
        (("novelty", "spreads"), [0.0], r"novelty: spreads\[0\] must be a number .* \(value 0.0\)"),
        (("novelty", "limit"), -1.0, r"novelty: limit must be .* \(value -1.0\)"),
        (("novelty", "neighbours"), 3, "neighbours must be 1 to the number of prototypes"),
        (("novelty", "slope"), -0.5, r"novelty: slope must be a number from 0 to 1e\+06 \(value -0.5\)"),
        (("novelty", "prototypes"), "0.0 nan", "prototypes must be finite"),
    ],
)
def test_damaged(where, value, message):
    block = copy.deepcopy(BLOCK)
    *path, name = where
    inner = block
    for key in path:
        inner = inner[key]
    inner[name] = value
    with pytest.raises(ValueError, match=message) as caught:
        Intervals.from_json(block)
    assert str(caught.value).startswith("intervals: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["nominal", "quantile", "floor", "difficulty", "novelty"])
def test_missing(name):
    rest = {key: value for key, value in BLOCK.items() if key != name}
    with pytest.raises(ValueError, match=f"intervals: '{name}' is missing"):
        Intervals.from_json(rest)
