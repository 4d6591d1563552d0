"""Trees as the agent evaluates them: by hand, against a plain walk, and files that are damaged."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.analysis.degradation.trees import LINKS, Trees, degradation_of

# Term 0: the feature's value. Term 1: the same relative to its baseline. Two trees:
#     value <= 2 ? 1.0 : (relative <= 1.5 ? 2.0 : 3.0)      and      relative <= 1.25 ? 0.5 : 4.0
TINY = {
    "kind": "trees",
    "link": "identity",
    "base": 0.25,
    "factor": 0.5,
    "terms": [{"column": 0, "form": "raw", "scale": 1.0}, {"column": 0, "form": "relative", "scale": 1.0}],
    "trees": 2,
    "columns": "0 -1 1 -1 -1 1 -1 -1",
    "numbers": "2 1 1.5 2 3 1.25 0.5 4",
}


def predict(block, values, baseline):
    rows = np.array(values, dtype=float)[:, None], np.array(baseline, dtype=float)[:, None]
    return Trees.from_json(block).predict(*rows).tolist()


def test_two_small_trees_by_hand():
    # 2 <= 2: 1, and 1 <= 1.25: 0.5. 3 > 2, 3/2 <= 1.5: 2, and 4. 4 > 2, 4/2 > 1.5: 3, and 4. 1 <= 2: 1, 1/0.5: 4.
    values, baseline = [2, 3, 4, 1], [2, 2, 2, 0.5]
    assert predict(TINY, values, baseline) == [
        0.25 + 0.5 * (1 + 0.5),
        0.25 + 0.5 * (2 + 4),
        0.25 + 0.5 * (3 + 4),
        0.25 + 0.5 * (1 + 4),
    ]


@pytest.mark.parametrize(
    ("link", "expected"), [("identity", 1.0), ("log", math.e), ("inverse", 1.0), ("inverse-square-root", 1.0)]
)
def test_links(link, expected):
    assert predict({**TINY, "link": link}, [2], [2])[0] == pytest.approx(
        {"identity": 1.0, "log": math.exp(1.0), "inverse": 1.0, "inverse-square-root": 1.0}[link]
    )
    assert expected == pytest.approx(degradation_of(np.array([1.0]), link)[0])


def test_links_are_not_all_the_same_away_from_1():
    found = [degradation_of(np.array([0.5]), link)[0] for link in LINKS]
    assert found == pytest.approx([0.5, math.exp(0.5), 2.0, 4.0])
    assert math.isnan(degradation_of(np.array([0.0]), "inverse")[0])
    assert math.isnan(degradation_of(np.array([-1.0]), "inverse-square-root")[0])


def test_what_is_not_known_gives_no_estimate_and_costs_no_other_row():
    got = predict(TINY, [2, math.nan, 3], [2, 2, math.nan])
    assert got[0] == 1.0
    assert math.isnan(got[1])
    assert math.isnan(got[2])


def test_no_rows():
    assert predict(TINY, [], []) == []


def test_a_threshold_is_met_in_single_precision():
    block = {**TINY, "terms": TINY["terms"][:1], "trees": 1, "columns": "0 -1 -1", "numbers": "0.1 1 2"}
    single = np.float32(0.1)
    assert float(single) > 0.1
    above = float(np.nextafter(single, np.float32(1)))
    assert predict(block, [0.1, float(single), above], [1, 1, 1]) == [0.75, 0.75, 1.25]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"link": "cubic"}, "link must be one of identity, log, inverse, inverse-square-root"),
        ({"base": math.nan}, r"base must be a number from -1e\+06 to 1e\+06 \(value nan\)"),
        ({"factor": "much"}, r"factor must be a number .* \(value 'much'\)"),
        ({"terms": []}, "terms: there must be one or more"),
        ({"terms": [{"column": 0, "form": "squared", "scale": 1}]}, r"form must be one of .* \(value squared\)"),
        ({"terms": [{"column": 0, "form": "raw"}]}, "terms: 'scale' is missing"),
        (
            {"terms": [{"column": 0, "form": "raw", "scale": 0}]},
            r"terms: scale must be a number from 1e-18 to 1e\+18 \(value 0\)",
        ),
        (
            {"terms": [{"column": -1, "form": "raw", "scale": 1}]},
            r"terms: column must be a number from 0 to 9999 \(value -1\)",
        ),
        ({"columns": "0 -1 1 -1 -1 1 -1"}, "7 columns for 8 numbers"),
        ({"columns": "0 -1 1 -1 -1 2 -1 -1"}, "columns must be -1 to 1"),
        ({"columns": "0 -1 1 -1 -1 1 -1 1"}, "cut off: the split at node 7 has no two sides"),
        ({"columns": "0 -1 1 -1 -1 -1 -1 -1"}, "columns holds 4 whole trees, not 2"),
        ({"columns": "", "numbers": "", "trees": 0}, "holds 0 whole trees"),
        ({"columns": "0 x"}, "columns: invalid literal"),
        ({"columns": [0, -1]}, "columns must be a text of numbers"),
        ({"numbers": "2 1 1.5 2 3 1.25 inf 4"}, "numbers must be finite"),
        ({"trees": 3}, "columns holds 2 whole trees, not 3"),
        ({"trees": None}, "NoneType"),
    ],
)
def test_damaged(change, message):
    with pytest.raises(ValueError, match=message) as caught:
        Trees.from_json({**TINY, **change})
    text = str(caught.value)
    assert text.startswith("estimator of kind trees: ")
    assert "\n" not in text


@pytest.mark.parametrize("name", ["link", "base", "factor", "terms", "trees", "columns", "numbers"])
def test_missing(name):
    rest = {key: value for key, value in TINY.items() if key != name}
    with pytest.raises(ValueError, match=f"estimator of kind trees: '{name}' is missing"):
        Trees.from_json(rest)


def test_a_term_of_a_column_that_is_not_there():
    with pytest.raises(ValueError, match="column 0 of 0 features"):
        Trees.from_json(TINY).predict(np.empty((1, 0)), np.empty((1, 0)))


WIDTH = 3
EIGHTHS = st.integers(-40, 40).map(lambda x: x / 8)
#: A tree: a leaf's value, or (term, threshold, left, right).
TREE = st.recursive(EIGHTHS, lambda sides: st.tuples(st.integers(0, WIDTH - 1), EIGHTHS, sides, sides), max_leaves=12)


def written(tree):
    if isinstance(tree, float):
        return [(-1, tree)]
    column, threshold, left, right = tree
    return [(column, threshold), *written(left), *written(right)]


def walked(tree, row):
    while not isinstance(tree, float):
        column, threshold, left, right = tree
        tree = left if row[column] <= threshold else right
    return tree


@given(st.lists(TREE, min_size=1, max_size=4), st.lists(st.lists(EIGHTHS, min_size=WIDTH, max_size=WIDTH), max_size=6))
def test_any_trees_are_walked_as_a_plain_walk_does(forest, rows):
    nodes = [node for tree in forest for node in written(tree)]
    block = {
        **TINY,
        "base": 0.0,
        "factor": 1.0,
        "terms": [{"column": column, "form": "raw", "scale": 1.0} for column in range(WIDTH)],
        "trees": len(forest),
        "columns": " ".join(str(column) for column, _ in nodes),
        "numbers": " ".join(str(number) for _, number in nodes),
    }
    values = np.array(rows, dtype=float).reshape(-1, WIDTH)
    got = Trees.from_json(block).predict(values, np.ones_like(values))
    assert got.tolist() == [sum(walked(tree, row) for tree in forest) for row in values]
