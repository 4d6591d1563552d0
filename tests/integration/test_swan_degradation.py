"""Real measurements (memcached, Intel RDT) through `whitepanda degradation`: the errors and intervals promised."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.central_process import MAIN, ROOT

pytestmark = [pytest.mark.integration, pytest.mark.long]

FEATURES = (
    "qps,load_qps,be_cores,be_llc_ways,victim_llc_occupancy_bytes,victim_mem_bandwidth_bytes,"
    "aggressor_llc_occupancy_bytes,aggressor_mem_bandwidth_bytes"
)
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])}


@pytest.fixture
def measured(data_dir):
    file = data_dir / "swan" / "memcached_rdt.csv"
    if not file.exists():
        pytest.skip(f"no real data at {file}; set WHITEPANDA_DATA")
    return file


def degradation(*arguments):
    done = subprocess.run(
        [sys.executable, *MAIN, "degradation", *map(str, arguments), "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_errors_and_intervals_on_rows_and_aggressors_held_out(measured, tmp_path):
    model = tmp_path / "model.json"
    fitted = degradation(
        *("fit", measured, "--target", "p95_latency_us", "--baseline-where", "aggressor = 'Baseline'"),
        *("--group-by", "load_qps,be_cores,be_llc_ways", "--scenario", "aggressor"),
        *("--features", FEATURES, "--out", model),
    )
    assert fitted["rows"]["used"] == 528
    assert fitted["choice"]["method"] == "extra-trees"
    assert model.stat().st_size < 2e6

    # One seed of the folds; bench/swan.py does it over 20. The error varies by 0.3 between seeds, the cover by 2 %.
    folds = degradation("evaluate", measured, "--model", model, "--folds", 5, "--seed", 2)
    assert folds["rows"] == 396
    assert folds["mean_ape"] <= 0.090
    assert folds["median_ape"] <= 0.050
    assert 0.86 <= folds["coverage"] <= 0.95
    assert folds["median_width"] < 0.5
    assert folds["cannot_tell"] <= 0.2 * 396

    aggressors = degradation("evaluate", measured, "--model", model, "--by-scenario")
    assert aggressors["rows"] == 396
    assert aggressors["mean_ape"] <= 0.20
    assert aggressors["median_ape"] <= 0.076
    assert aggressors["coverage"] >= 0.85
    assert aggressors["median_width"] < 0.8
    assert aggressors["cannot_tell"] <= 0.2 * 396
    # Errors of the kind of row that was never seen stay far below those of a constant.
    assert aggressors["constant"]["mean_ape"] > 2 * aggressors["mean_ape"]
