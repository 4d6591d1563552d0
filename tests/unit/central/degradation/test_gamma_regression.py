"""Gamma regressions: equal to R and statsmodels, recovering the published model, with terms chosen as in the paper."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from agent.analysis.degradation.glm import Glm
from central.degradation import glm

FIXTURES = Path(__file__).parents[3] / "fixtures" / "glm"
NAMES = ("guest_ratio", "memory_bandwidth_bytes_per_s", "core_stall_ratio", "total_stall_ratio")
PUBLISHED = np.array([1.0602, -0.0207, -0.0233, -0.1674, 0.0876])
SCALE = 0.0043907
ROWS = 425


def golden():
    """The rows that R was given, and its answers (tests/fixtures/glm/glm.R)."""
    with (FIXTURES / "rows.csv").open() as file:
        rows = np.array([[float(x) for x in row] for row in list(csv.reader(file))[1:]])
    return rows[:, :4], rows[:, 4], json.loads((FIXTURES / "golden.json").read_text())


def published(seed, rows=ROWS):
    """Rows from the published model: relative features, core and total stalls correlated, Gamma noise of its scale."""
    rng = np.random.default_rng(seed)
    core = rng.uniform(0.8, 2.0, rows)
    features = np.column_stack((
        rng.normal(1.0, 0.3, rows),
        rng.uniform(0.3, 4.0, rows),
        core,
        0.5 * core + rng.uniform(0.2, 1.0, rows),
    ))  # fmt: skip
    linear = PUBLISHED[0] + features @ PUBLISHED[1:]
    return features, rng.gamma(1 / SCALE, SCALE / linear)


@pytest.mark.parametrize("link", ["inverse", "log"])
def test_a_fit_equals_r(link):
    features, degradation, answers = golden()
    answer = answers[link]
    fitted = glm.regress(features, degradation, NAMES, link)
    assert [t["coef"] for t in fitted["terms"]] == pytest.approx(answer["coefficients"], rel=1e-7)
    assert [t["std_err"] for t in fitted["terms"]] == pytest.approx(answer["standard_errors"], rel=1e-7)
    assert fitted["scale"] == pytest.approx(answer["dispersion"], rel=1e-7)
    assert fitted["deviance"] == pytest.approx(answer["deviance"], rel=1e-9)
    assert (fitted["observations"], fitted["df_residuals"], fitted["df_model"]) == (80, 75, 4)


@pytest.mark.parametrize("link", ["inverse", "log"])
def test_the_agents_numpy_estimates_what_r_does(link):
    features, degradation, answers = golden()
    fitted = glm.regress(features, degradation, NAMES, link)
    terms = [{"column": i, "coefficient": t["coef"], "scale": 1.0} for i, t in enumerate(fitted["terms"][1:])]
    estimator = Glm.from_json({"link": link, "constant": fitted["terms"][0]["coef"], "terms": terms})
    estimated = estimator.predict(features, np.ones_like(features))
    assert estimated == pytest.approx(np.array(answers[link]["fitted"]), rel=1e-8)


def test_a_fit_equals_statsmodels():
    import statsmodels.api as sm  # noqa: PLC0415 - what it is compared with

    features, degradation = published(1)
    family = sm.families.Gamma(sm.families.links.Log())
    result = sm.GLM(degradation, sm.add_constant(features), family=family).fit(tol=1e-10)
    fitted = glm.regress(features, degradation, NAMES, "log")
    assert [t["coef"] for t in fitted["terms"]] == pytest.approx(result.params, rel=1e-10)
    assert [t["p"] for t in fitted["terms"]] == pytest.approx(result.pvalues, rel=1e-6, abs=1e-12)
    bounds = [(t["low"], t["high"]) for t in fitted["terms"]]
    assert bounds == [pytest.approx(row, rel=1e-8) for row in result.conf_int()]
    assert fitted["log_likelihood"] == pytest.approx(result.llf)


@pytest.mark.long
def test_the_published_coefficients_are_recovered_over_200_seeds():
    covered = np.zeros((200, 5), dtype=bool)
    for seed in range(200):
        features, degradation = published(seed)
        fitted = glm.regress(features, degradation, NAMES, "inverse")
        assert (fitted["observations"], fitted["df_residuals"]) == (425, 420)
        covered[seed] = [t["low"] <= c <= t["high"] for t, c in zip(fitted["terms"], PUBLISHED, strict=True)]
    shares = covered.mean(axis=0)
    assert ((shares >= 0.92) & (shares <= 0.98)).all(), shares


def test_insignificant_terms_are_eliminated_and_weak_ones_are_no_candidates():
    rng = np.random.default_rng(5)
    strong, other = rng.uniform(1, 3, 400), rng.uniform(1, 3, 400)
    echo = strong + rng.normal(0, 0.6, 400)  # correlates with the degradation, and says nothing that `strong` does not
    values = np.column_stack((strong, echo, other))
    degradation = rng.gamma(200, 1 / (200 * (1.2 - 0.2 * strong)))
    block = glm.fit(values, np.ones_like(values), degradation, ("strong", "echo", "other"), "inverse")
    assert [t["name"] for t in block["terms"]] == ["strong"]
    assert block["summary"]["eliminated"] == ["echo"]  # `other` was none to begin with
    assert block["terms"][0]["coefficient"] == pytest.approx(-0.2, abs=0.01)
    assert all(t["p"] <= 0.05 for t in block["summary"]["terms"][1:])


def test_collinear_stalls_are_offered_at_most_twice_and_a_copy_of_a_feature_never():
    rng = np.random.default_rng(6)
    memory, core = rng.uniform(0.1, 0.5, 300), rng.uniform(0.1, 0.5, 300)
    names = ("memory_stall_ratio", "core_stall_ratio", "total_stall_ratio", "ipc", "cpi")
    total = memory + core
    terms = np.column_stack((memory, core, total, 2 - total, total - 2))
    degradation = 1 / (1.2 - 0.5 * memory - 0.4 * core) * rng.gamma(500, 1 / 500, 300)
    chosen = [names[c] for c in glm.candidates(terms, degradation, names)]
    assert sum(name.endswith("stall_ratio") for name in chosen) <= 2
    assert not {"ipc", "cpi"} <= set(chosen)
    design = np.column_stack((np.ones(300), terms[:, [names.index(n) for n in chosen]]))
    assert np.linalg.matrix_rank(design) == design.shape[1]


def test_where_no_feature_is_strong_the_strongest_is_taken():
    rng = np.random.default_rng(7)
    terms = rng.normal(1, 0.1, (500, 3))
    degradation = 1 + 0.3 * terms[:, 1] + rng.normal(0, 0.2, 500)
    assert glm.candidates(terms, degradation, ("a", "b", "c")) == [1]


def test_what_cannot_be_fitted_says_so():
    ones = np.ones((30, 2))
    with pytest.raises(glm.FitError, match="no feature varies"):
        glm.fit(ones, ones, np.linspace(1, 2, 30), ("a", "b"), "log")
    with pytest.raises(glm.FitError, match="2 rows are too few for 2 terms"):
        glm.regress(ones[:2], np.array([1.0, 2.0]), ("a", "b"), "log")
    steep = np.linspace(0, 10, 50)[:, None]
    with pytest.raises(glm.FitError, match="IRLS"):
        glm.regress(steep, 1 + steep[:, 0] ** 6, ("a",), "inverse")


def test_the_table_is_laid_out_as_the_papers():
    features, degradation = published(2)
    block = glm.fit(features, np.ones_like(features), degradation, NAMES, "inverse")
    text = glm.summary_table(block, "specjbb")
    lines = text.splitlines()
    assert lines[0] == "specjbb"
    assert lines[1].strip() == "Generalized linear model regression results"
    words = text.split()
    assert words[words.index("Observations:") + 1] == "425"
    assert words[words.index("function:") + 1] == "inverse_power"
    assert lines[11].split() == ["coef", "std", "err", "z", "P>|z|", "[0.025", "0.975]"]
    const = next(line for line in lines if line.startswith("const")).split()
    assert [float(x) for x in const[1:3]] == [
        pytest.approx(block["summary"]["terms"][0]["coef"], abs=5e-5),
        pytest.approx(block["summary"]["terms"][0]["std_err"], abs=5e-4),
    ]
    assert max(len(line) for line in lines) <= 80
