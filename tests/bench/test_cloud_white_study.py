"""bench/cloud_white/study.py: its definitions on numbers made by hand, and a tiny form of the study from end to end."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from agent.analysis.degradation.model import parse
from agent.analysis.signals import signals_of
from agent.detection.degradation_models import load
from bench.cloud_white import readings as cloud_white_readings
from bench.cloud_white import runs as cloud_white_runs
from bench.cloud_white import scenarios
from bench.cloud_white import study as cloud_white
from bench.cloud_white import tables as cloud_white_tables
from bench.cloud_white.runs import dynamic_error, errors_of, overall_error
from bench.cloud_white.simulation import blocks, simulate
from central.cli.degradation import app as degradation_app
from tests.support.central_process import ROOT
from whitepanda.common.errors import InputError

TINY = replace(
    cloud_white.QUICK,
    loads=(0.2,),
    training_loads=(0.2, 0.3),
    training_stressors=("no-interference", "cache-memory-disk-2"),
    quiet_hours=0.05,
)


def test_the_overall_error_compares_percentiles_of_the_run():
    measured = np.array([1.0] * 90 + [2.0] * 10)
    estimated = np.array([1.5] * 10 + [1.0] * 90)  # at other moments: it does not matter
    assert overall_error(measured, estimated) == pytest.approx(0.25)
    measured[0] = np.nan
    assert overall_error(measured, estimated) == pytest.approx(0.25)


def test_the_dynamic_error_is_of_each_second():
    assert dynamic_error(np.array([1.0, 2.0, np.nan]), np.array([1.1, 1.0, 9.0])) == pytest.approx(0.3)


def test_errors_of_a_run_by_phase():
    measured = np.array([1.0, 1.0, 2.0, 2.0, 1.0, 1.0])
    errors = errors_of(measured, measured, np.ones(6), 2, 4)
    assert errors.dynamic == pytest.approx(0.25)
    assert errors.dynamic_whole == pytest.approx(1 / 6)
    assert errors.dynamic_stress == pytest.approx(0.5)
    assert errors.overall == pytest.approx(0.5)


def test_estimates_are_averaged_over_as_long_as_tails_of_five_seconds():
    estimated = np.array([1.0, 1.0, 1.0, 1.0, 2.0, 2.0])
    measured_5s = np.array([1.0, 1.0, 1.0, 1.0, 1.2, 1.4])
    assert errors_of(estimated, measured_5s, estimated, 0, 6).dynamic_5s == pytest.approx(0.0)


def test_the_overall_error_is_of_what_seconds_are_expected_to_be_where_their_scatter_is_known():
    measured = 2.0 * np.exp(0.1 * np.random.default_rng(3).standard_normal(20000))
    estimated, scatter = np.full(len(measured), 2.0), np.full(len(measured), 0.1)
    assert overall_error(measured, estimated) == pytest.approx(1 - np.exp(-0.1645), abs=0.01)
    assert overall_error(measured, estimated, scatter) == pytest.approx(0.0, abs=0.01)
    unknown = np.full(len(measured), np.nan)
    assert overall_error(measured, estimated, unknown) == overall_error(measured, estimated)


def test_signals_are_those_that_the_agent_makes():
    study = replace(scenarios.single("silo", 0.2, "disk-1"), duration_s=5, quiet_s=2, stress_s=4)
    (block,) = blocks(study)
    expected = np.array([signals_of(tick.vms, tick.host) for tick in simulate(study)])
    np.testing.assert_allclose(cloud_white_runs.signals_of_block(block), expected, rtol=1e-12)


def test_scenarios_have_random_numbers_of_their_own():
    one, other = (
        cloud_white_runs.seeded(scenarios.single("silo", 0.2, stressor), "training")
        for stressor in ("disk-1", "disk-2")
    )
    assert one.seed != other.seed
    assert cloud_white_runs.seeded(one, "evaluation").seed != one.seed


def test_training_and_evaluation_share_no_application():
    trained = {vm.profile for study in cloud_white.training_studies(TINY) for vm in study.vms}
    assert not trained & set(cloud_white.TESTED_ON)
    victims = {study.vms[0].profile for study in cloud_white.evaluation_studies(TINY)["single"]}
    assert victims == set(cloud_white.TESTED_ON)


def detection(*counts):
    run = type("Run", (), {"roles": {"whitepanda": dict(counts)}})
    return cloud_white_tables.detection_over([run], "whitepanda")


def test_distinguished_is_the_share_of_ticks_of_victims_and_inflicting_vms():
    found = detection(
        (("victim", "victim"), 80),
        (("victim", "steady"), 20),
        (("inflicting", "inflicting"), 100),
        (("steady", "unknown"), 50),
        (("steady", "victim"), 50),
        (("quiet steady", "victim"), 1),
        (("quiet steady", "steady"), 9),
    )
    assert found["apart"] == pytest.approx(0.9)
    assert found["all"] == pytest.approx(230 / 300)
    assert found["victim"] == pytest.approx(0.8)
    assert found["quiet_alarms"] == pytest.approx(0.1)


def numbers(whitepanda, constant, known=None, blind=None):
    fields = {"overall": 0.04, "dynamic": 0.09}
    errors = {
        name: dict.fromkeys(fields, whitepanda)
        for name in ("whitepanda", "whitepanda, estimates alone", "paper", "expected")
    }
    errors |= {name: dict.fromkeys(fields, constant) for name in cloud_white_tables.CONSTANTS}
    errors["whitepanda, given the workers"] = dict.fromkeys(fields, whitepanda if known is None else known)
    errors["whitepanda, without samples of vCPUs"] = dict.fromkeys(fields, whitepanda if blind is None else blind)
    apart = {"apart": 0.96, "all": 0.97}
    group = {"errors": errors, "detection": {"whitepanda": apart, "paper": apart}}
    return {
        "groups": dict.fromkeys(("single", "two", "three"), group),
        "quiet day": {"hours": 24, "whitepanda": {"false_victims": 0}, "paper": {"false_victims": 3}},
        "intervals": {
            "all unseen": {"covered": 0.95},
            "all unseen, given the workers": {"covered": 0.90},
            "all unseen, without samples of vCPUs": {"covered": 0.87},
        },
    }


@pytest.mark.parametrize(("constant", "void"), [(0.11, False), (0.10, True)])
def test_a_bar_is_void_where_a_constant_comes_within_twice_of_it(constant, void):
    bars = cloud_white_tables.bars_of(numbers(0.05, constant))
    overall, blind, known = (bar for bar in bars if bar["bar"].startswith("overall error, one"))
    assert overall["met"] and overall["void"] is known["void"] is blind["void"] is void
    covered, blind, known = (bar for bar in bars if bar["bar"].startswith("intervals"))
    assert (covered["met"], blind["met"], known["met"]) == (False, False, True)


def test_what_is_met_or_missed_under_a_condition_is_no_bar_of_ours_as_it_is():
    bars = cloud_white_tables.bars_of(numbers(0.051, 0.2, known=0.04, blind=0.061))
    found = {
        bar["bar"].removeprefix("overall error, one VM beside a microbenchmark"): (
            bar["whitepanda"],
            bar["met"],
            bar["beside"],
        )
        for bar in bars
        if bar["bar"].startswith("overall error, one")
    }
    assert found == {
        ": at most 5%": (0.051, False, False),
        ", without samples of vCPUs: at most 5%": (0.061, False, True),
        ", given the workers: at most 5%": (0.04, True, True),
    }


def test_what_was_learnt_of_workers_is_counted_by_what_is_true():
    run = type("Run", (), {})
    runs = []
    for workers in ((1, 0, 1), (1, 2, 1), (2, 2, 2)):
        runs.append(run())
        runs[-1].workers = workers
    assert cloud_white_tables.workers_over(runs) == {
        "runs": 3,
        "quiet right": 1,
        "quiet wrong": 1,
        "quiet cannot tell": 1,
        "end right": 3,
        "end wrong": 0,
        "end cannot tell": 0,
    }


def test_a_run_of_one_vm_says_what_it_was():
    run = type("Run", (), {"name": "img-dnn-20-cache-memory-disk-3"})
    assert cloud_white_tables.parts(run) == {"application": "img-dnn", "load": "20", "stressor": "cache-memory-disk-3"}


@pytest.mark.long
def test_a_tiny_study_from_end_to_end(tmp_path, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = cloud_white.train(TINY, processes=1)
    found, runs = cloud_white.study(TINY, models, processes=1)
    single = found["groups"]["single"]
    assert single["runs"] == 3
    assert {cell["application"] for cell in single["cells"]} == set(cloud_white.TESTED_ON)
    # What the truth expects is better than a constant, and so are estimates.
    assert single["errors"]["expected"]["overall"] < single["errors"]["constant 1"]["overall"]
    assert single["errors"]["whitepanda"]["overall"] < single["errors"]["constant 1"]["overall"]
    assert single["detection"]["whitepanda"]["apart"] > 0.9
    assert found["quiet day"]["whitepanda"] == {
        "vm_ticks": 20 * 180,
        "victim_ticks": 0,
        "inflicting_ticks": 0,
        "false_victims": 0,
    }
    assert found["alita"]["quiet"]["img-dnn"]["alita"] == 1.0
    assert found["alita"]["quiet"]["img-dnn"]["whitepanda"] == 0.0
    assert found["alita"]["stress"]["stress-ng"]["whitepanda"] > 0.9
    json.dumps(cloud_white.without_nan(found), allow_nan=False)
    cloud_white_tables.print_all(found)
    assert "overall error, one VM beside a microbenchmark" in capsys.readouterr().out
    cloud_white.figures.write_all(tmp_path, runs, cloud_white.PAPERS_STRESSORS[-1])
    assert {path.suffix for path in tmp_path.iterdir()} == {".png"}
    written = cloud_white.packaged(models["whitepanda"], TINY)
    assert parse(written).features == ("ipc", "guest_ratio")
    assert "simulated" in written["provenance"]["trained_on"]


def test_the_model_that_comes_with_whitepanda_says_what_it_is_and_is_small():
    file = ROOT / "agent" / "models" / "cloud_white.json"
    assert file.stat().st_size < 1_000_000
    provenance = json.loads(file.read_text(encoding="utf-8"))["provenance"]
    assert provenance["applications"] == ["img-dnn", "specjbb"]
    assert "not real ones" in provenance["trained_on"]
    assert [name for name, *_ in load(())._models] == ["cloud_white"]


def test_intervals_are_calibrated_by_runs_or_by_scenarios_as_asked(tmp_path):
    runs = cloud_white.runs_of(
        cloud_white.Table(cloud_white.training_table(tmp_path, TINY, 1)), ("ipc", "guest_ratio"), "vm"
    )
    quantiles = {}
    for by in ("run", "scenario"):
        options = cloud_white.FitOptions(methods=("gamma-log",), calibrate_by=by)
        (part,) = cloud_white.fit_model(runs, options)["models"]
        quantiles[by] = part["intervals"]["quantile"] * part["intervals"]["floor"]
    # An application that was not fitted to is estimated worse than another run of the same.
    assert quantiles["scenario"] > quantiles["run"]


def test_what_intervals_are_calibrated_by_is_checked():
    result = CliRunner().invoke(
        degradation_app,
        "fit none.csv --target a --baseline-where b --group-by c --features d --out e --calibrate-by day",
    )
    assert isinstance(result.exception, InputError)
    assert "--calibrate-by: must be run or scenario (value day)" in str(result.exception)


@pytest.fixture(scope="module")
def readings():
    """What each reading of the paper's rules said in one run, which is of neither the training nor the evaluation."""
    study = cloud_white_runs.seeded(scenarios.single("masstree", 0.3, "cache-memory-disk-3"), "test")
    model = parse(json.loads((ROOT / "agent" / "models" / "cloud_white.json").read_text(encoding="utf-8")))
    run = cloud_white_readings.read(study, model)
    return run, {name: cloud_white_tables.detection_over([run], name) for name in run.roles}


def test_missed_victims_are_of_a_reading_of_the_papers_rules_and_false_alarms_of_all(readings):
    _, found = readings
    assert found["both: last 10 ticks"]["apart"] < 0.5
    assert found["both: baseline"]["apart"] > 0.95
    assert found["load: last 60 ticks, GIPS: baseline"]["apart"] > 0.95
    assert found["whitepanda"]["apart"] > 0.95 and found["whitepanda"]["steady"] > 0.95
    assert all(found[name]["steady"] < 0.95 for name in cloud_white_readings.READINGS)


def test_what_is_not_scored_is_counted(readings):
    run, _ = readings
    assert 0.8 < run.scored < 1.0


def test_all_readings_see_the_same_quiet_day():
    day = cloud_white_runs.seeded(scenarios.quiet_day(hours=0.05), "test")
    found = cloud_white_readings.quiet_day(day)
    assert list(found) == ["whitepanda", *cloud_white_readings.READINGS]
    assert {one["vm_ticks"] for one in found.values()} == {20 * 180}
    assert found.pop("whitepanda")["victim_ticks"] == 0
    assert all(one["false_victims"] > 0 for one in found.values())


def test_the_studys_table_of_readings_is_of_the_same_runs_as_its_other_tables():
    """The first reading is what the page calls "paper": the same numbers in both tables, and on the quiet day."""
    page = (ROOT / "docs" / "studies" / "cloud-white.md").read_text(encoding="utf-8")
    section = page.partition("\n## Readings of the paper's rules\n")[2].partition("\n## ")[0]
    others = page.replace(section, "")

    def rows(text, name):
        return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if f"| {name} |" in line]

    first, *rest = cloud_white_readings.READINGS
    shown = {row[0]: row[2:8] for row in rows(section, first) if row[0] != first}
    assert shown == {row[0]: row[2:] for row in rows(others, "paper") if row[1:2] == ["paper"] and len(row) == 8}
    assert len(shown) == 5
    (day,) = (row for row in rows(section, first) if row[0] == first)
    (quiet,) = (row for row in rows(others, "paper") if row[0] == "paper" and row[-1] == "1728000")
    assert day[1:] == quiet[1:]
    assert all(len(rows(section, name)) == 6 for name in rest)
