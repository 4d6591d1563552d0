"""bench/cloud_white/floor.py: requests that are drawn again are those of the study, and what an oracle says is best."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from bench.cloud_white import floor as cloud_white_floor
from bench.cloud_white import scenarios
from bench.cloud_white.floor import (
    PRIORS,
    best_estimate,
    between,
    floor_of,
    mean_and_interval,
    print_floors,
    resimulate,
)
from bench.cloud_white.simulation import blocks, queued, seed_of
from collector.simulated.contention import workers_of
from collector.simulated.profiles import APPLICATIONS


def short(application, load):
    study = scenarios.single(application, load, "cache-memory-disk-3")
    return replace(study, duration_s=20, quiet_s=10.0, stress_s=18.0)


@pytest.mark.parametrize(("application", "load"), [("moses", 0.5), ("silo", 0.4), ("specjbb", 0.1)])
def test_with_the_same_random_numbers_it_is_the_same_run(application, load):
    study = short(application, load)
    (block,) = blocks(study)
    inputs, profile = queued(study, 0), APPLICATIONS[application]
    # The generator that `Engine` gives the queue of a VM.
    rngs = [np.random.default_rng([seed_of(study), purpose, *application.encode()]) for purpose in (1, 2)]
    again = resimulate(profile, workers_of(profile, 2), inputs.arriving, inputs.service_s, inputs.disk_op_s, rngs)
    np.testing.assert_allclose(again[:, 0], block.p95_latency_s[:, 0], rtol=1e-9)
    assert not np.allclose(again[:, 1], block.p95_latency_s[:, 0], rtol=0.01)


def test_seconds_without_requests_have_no_tail():
    nothing = np.array([0, 3, 0])
    profile = APPLICATIONS["silo"]
    again = resimulate(profile, 1, nothing, np.full(3, 1e-3), np.full(3, 1e-3), [np.random.default_rng(1)])
    assert np.isnan(again[:, 0]).tolist() == [True, False, True]


def test_the_best_estimate_has_the_least_mean_relative_error():
    drawn = np.exp(0.5 * np.random.default_rng(5).standard_normal((400, 2)))
    best = best_estimate(drawn)
    for column in range(2):
        errors = [np.mean(abs(one - drawn[:, column]) / drawn[:, column]) for one in drawn[:, column]]
        assert np.mean(abs(best[column] - drawn[:, column]) / drawn[:, column]) == pytest.approx(min(errors))
    # Too much is punished more than too little.
    assert (best < np.median(drawn, axis=0)).all()


def test_between_two_kinds_of_vms_the_likelier_one_is_meant():
    one, each = np.full(10, 2.0), np.full(10, 1.2)
    assert between(one, each, 0.0) == between(one, each, 0.5) == pytest.approx(1.2)
    assert between(one, each, 1.0) == between(one, each, 0.9) == pytest.approx(2.0)


def test_a_run_of_one_worker_looks_from_outside_like_one_of_two():
    floor = floor_of(short("silo", 0.2), draws=20)
    assert floor.is_hidden
    # Who is sure of one worker knows the truth; who is sure of two is further off.
    assert floor.by_prior[-1] == pytest.approx(floor.number)
    assert floor.by_prior[0] > floor.number_expected
    assert floor.number_expected < floor.seconds_expected
    assert len(floor.by_prior) == len(PRIORS)


def test_the_workers_of_who_uses_more_than_one_vcpu_are_known():
    floor = floor_of(short("moses", 0.5), draws=10)
    assert not floor.is_hidden
    assert set(floor.by_prior) == {floor.number}


def test_the_other_number_of_workers_changes_no_signal_but_how_many_vcpus_run():
    """What the floor rests on: all else that a host sees is the same."""
    study = short("silo", 0.3)
    (silo,) = blocks(study)
    two = replace(APPLICATIONS["silo"], workers_per_vcpu=1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules["bench.cloud_white.simulation"].PROFILES, "silo", two)
        (twin,) = blocks(study)
    samples, of_twin = silo.metrics.pop("vcpus_running"), twin.metrics.pop("vcpus_running")
    np.testing.assert_array_equal(samples[:, 1:], of_twin[:, 1:])
    assert (samples[:, 0] != of_twin[:, 0]).any()
    for name, values in silo.metrics.items():
        np.testing.assert_array_equal(values, twin.metrics[name])
    for name, values in silo.host.items():
        np.testing.assert_array_equal(values, twin.host[name])
    assert silo.p95_latency_s[:, 0].mean() > 1.1 * twin.p95_latency_s[:, 0].mean()


def test_a_mean_over_runs_has_an_interval():
    mean, low, high = mean_and_interval([0.01, 0.02, 0.03] * 20)
    assert mean == pytest.approx(0.02)
    assert 0.017 < low < mean < high < 0.023


def test_tables_have_a_row_per_group_and_cell(capsys):
    floor = floor_of(short("silo", 0.2), draws=4)
    print_floors({"single": [("silo 20 %", floor), ("silo 20 %", floor)]})
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| single, all | 2 |")
    assert lines[3].startswith("| single, silo 20 % | 2 |")
    assert lines[-1].startswith("| single | 2 | 2 |")


def test_groups_get_their_floors_back_in_order():
    studies = {"single": [short("silo", 0.2)], "two": [short("silo", 0.3), short("moses", 0.2)]}
    found = ["a", "b", "c"]
    grouped = cloud_white_floor.grouped(studies, found, lambda group, study: f"{group}/{study.name[:4]}")
    assert grouped == {"single": [("single/silo", "a")], "two": [("two/silo", "b"), ("two/mose", "c")]}
