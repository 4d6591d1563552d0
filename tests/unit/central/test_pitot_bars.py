"""Pitot on the real runtimes: what one member fitted to 90 % of them reaches by itself."""

from __future__ import annotations

import math
import sys

import pytest

from tests.support.central_process import ROOT

sys.path.insert(0, str(ROOT / "bench"))

pytest.importorskip("jax", reason="the extra `predict` is not installed")

import pitot

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
