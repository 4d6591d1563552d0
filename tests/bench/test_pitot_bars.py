"""Pitot on the real runtimes: what one member fitted to 90 % of them reaches by itself."""

import math

import numpy as np
import pytest

from tests.support.central_process import ROOT

pytest.importorskip("jax", reason="the extra `predict` is not installed")

from bench.pitot import plain as pitot_plain
from bench.pitot import study as pitot

#: Mean error alone and beside one other; margins alone at 0.1 and 0.05: the issue's bars, which are for eight members.
ERRORS = {"0": 0.038, "1": 0.041}
MARGINS = {"0.1": 0.058, "0.05": 0.085}
#: At 0.01 one member does not reach the bar of 14.4 % (17.0 % measured), which takes several and quantile heads.
LOOSER_MARGIN = 0.20


@pytest.mark.long
@pytest.mark.timeout(600)
def test_one_member_on_real_runtimes(data_dir, tmp_path):
    folder = data_dir / "pitot"
    if not (folder / "observations.parquet").is_file():
        pytest.skip(f"no real data at {folder}; set WHITEPANDA_DATA")
    data = pitot.Data(folder)
    found = pitot.replicate(data, "one", 0.9, 0, tmp_path)["co_runners"]
    assert {count: line["rows"] for count, line in found.items()} == {"0": 4781, "1": 8952}
    for count, line in found.items():
        assert line["mape"] <= ERRORS[count]
        for epsilon, bound in line["bounds"].items():
            share = float(epsilon)
            # Three standard errors of one replicate, whose calibration rows are about as many as its test rows.
            allowed = 3 * math.sqrt(2 * share * (1 - share) / line["rows"])
            assert bound["coverage"] == pytest.approx(1 - share, abs=allowed)
    margins = {epsilon: bound["margin"] for epsilon, bound in found["0"]["bounds"].items()}
    assert all(margins[epsilon] <= most for epsilon, most in MARGINS.items())
    assert margins["0.01"] <= LOOSER_MARGIN


def test_the_plain_replica_has_the_papers_sizes():
    """With seven more heads, for the paper's eight quantiles, it has the authors' 111,200 parameters."""
    counted = pitot_plain.parameters(workload_features=141, platform_features=39, workloads=249, platforms=231)
    heads = 7 * (pitot_plain.HIDDEN * pitot_plain.RANK + pitot_plain.RANK)
    assert (counted, counted + heads) == (82_304, 111_200)
    assert (pitot_plain.STEPS, pitot_plain.BATCH, pitot_plain.RATE) == (20_000, 512, 1e-3)
    assert pitot_plain.WEIGHTS == (1.0, 0.5)


def test_the_plain_replica_is_equation_9():
    random = np.random.default_rng(5)
    w, p = random.normal(size=(4, 32)), random.normal(size=(2, 160))
    k = np.array([[2, 3], [-1, -1], [1, -1]])
    found = pitot_plain.residuals(w, p, np.array([0, 1, 2]), np.array([1, 0, 1]), k)
    for row, (i, j) in enumerate(((0, 1), (1, 0), (2, 1))):
        expected = w[i] @ p[j, :32]
        suffers, disturbs = p[j, 32:].reshape(2, 2, 32)
        for kind in range(2):
            total = sum(w[other] @ disturbs[kind] for other in k[row] if other >= 0)
            expected += (w[i] @ suffers[kind]) * (total if total > 0 else 0.1 * total)
        assert found[row] == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_the_study_has_the_replica_and_what_is_published():
    page = (ROOT / "docs" / "studies" / "pitot.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith(f"| {pitot.RIVALS['plain']} |")]
    means = [row.split("|")[4].split()[0] for row in rows]
    plain, published = (
        next(line for line in page.splitlines() if line.startswith(name)) for name in ("| plain replica", "| published")
    )
    assert len(means) == 2
    assert all(f"{mean} % /" in plain for mean in means)
    assert "5.2 %" in published and "9.0 %" in published
    # Each row of whitepanda is called what the bench calls it.
    written = page.partition("<!-- below: written by bench/pitot/study.py -->")[2]
    known = {*(words for words, _ in pitot.OURS.values()), *pitot.RIVALS.values(), "method", "---"}
    named = {line.split("|")[1].strip() for line in written.splitlines() if line.startswith("|")}
    assert {name for name in named if not name.startswith("---")} <= known


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_plain_replica_on_real_runtimes(data_dir, tmp_path):
    folder = data_dir / "pitot"
    if not (folder / "observations.parquet").is_file():
        pytest.skip(f"no real data at {folder}; set WHITEPANDA_DATA")
    found = pitot.replicate(pitot.Data(folder), "plain", 0.9, 0, tmp_path)["co_runners"]
    errors = {count: line["mape"] for count, line in found.items()}
    assert errors == {"0": pytest.approx(0.0474, abs=0.003), "1": pytest.approx(0.0514, abs=0.003)}
