import csv
import math
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bench.cloud_white import simulation as study_module
from bench.cloud_white.run_files import KEYS, cpu_level, write
from bench.cloud_white.scenarios import alita, clock_change, load_growth, quiet_day, single, singles, three_vms
from bench.cloud_white.simulation import Study, StudyVm, blocks, simulate
from collector.simulated.profiles import NOISE, STRESSORS
from collector.simulated.truth import Role

MIB = 1 << 20
CALM = replace(NOISE, load_std=0.0, ipc_std=0.0, counter_std=0.0, bandwidth_std=0.0, occupancy_std=0.0, wait_std=0.0)


def test_looks_change_nothing_else_and_do_not_depend_on_how_many_steps_pass_at_once() -> None:
    study = replace(single("moses", 0.4, "cache-memory-2"), duration_s=30)
    (block,) = blocks(study)
    engine = study_module._engine(study, requests=True)
    samples, p95 = [], []
    for at_s in range(study.duration_s):
        one = engine.advance(study_module.moments_of(study, np.array([float(at_s)])))
        samples.append(one.vcpus_running[0])
        p95.append(one.p95_s[0])
    np.testing.assert_array_equal(np.array(samples), block.metrics["vcpus_running"])
    np.testing.assert_array_equal(np.array(p95), block.p95_latency_s)
    vcpus = np.array([vm.vcpus for vm in study.vms])
    assert ((block.metrics["vcpus_running"] >= 0) & (block.metrics["vcpus_running"] <= vcpus)).all()
    (unserved,) = blocks(study, requests=False)
    assert np.isnan(unserved.metrics["vcpus_running"][:, 0]).all()  # nobody knows without its requests
    np.testing.assert_array_equal(unserved.metrics["vcpus_running"][:, 1:], block.metrics["vcpus_running"][:, 1:])
    for name in ("gips", "guest_ratio", "run_queue_wait_ratio", "ipc"):
        np.testing.assert_array_equal(unserved.metrics[name], block.metrics[name])


def test_one_worker_is_busy_as_often_as_it_is_used_and_two_run_only_with_something_beside() -> None:
    study = replace(single("silo", 0.3, "no-interference"), duration_s=1000)
    found = np.concatenate([block.metrics["vcpus_running"][:, 0] for block in blocks(study)])
    used = np.concatenate([block.metrics["cpu_usage_cores"][:, 0] for block in blocks(study)]).mean()
    shares = np.bincount(found.astype(int), minlength=3) / len(found)
    assert found.mean() == pytest.approx(used + 0.02, abs=0.05)
    assert 0.002 < shares[2] < 0.03


def test_a_closed_loop_runs_as_many_threads_as_it_keeps_busy() -> None:
    vms = (StudyVm("full", "cache-memory-2", vcpus=4, load=1.5), StudyVm("half", "disk-1", vcpus=4, load=0.5))
    (block,) = blocks(Study("loops", vms, duration_s=400))
    full, half = block.metrics["vcpus_running"].T
    assert (full == 4).all()
    assert half.mean() == pytest.approx(2.02, abs=0.25)
    away = replace(vms[1], load=0.0)
    (block,) = blocks(Study("away", (away,), duration_s=50))
    assert not block.metrics["vcpus_running"].any()


# --- studies ---


def test_a_stressed_victim_is_one_and_measures_what_is_expected() -> None:
    ticks = list(simulate(single("img-dnn", 0.2, "cache-memory-3")))
    assert [tick.at_s for tick in ticks] == list(range(1, 171))
    assert [sum(tick.phase == phase for tick in ticks) for phase in ("quiet", "stress", "after")] == [60, 50, 60]
    quiet, stress = ticks[5:60], ticks[70:110]
    base = np.mean([tick.truths[0].p95_latency_s for tick in quiet])
    measured = np.mean([tick.truths[0].p95_latency_s for tick in stress]) / base
    expected = stress[-1].truths[0].expected_degradation
    assert 1.4 < expected < 1.7
    assert measured == pytest.approx(expected, rel=0.06)
    assert {tick.truths[0].role for tick in stress} == {Role.VICTIM}
    assert {tick.truths[1].role for tick in stress} == {Role.INFLICTING}
    assert {tick.truths[2].role for tick in ticks if tick.truths[2].role is not Role.UNSCORED} == {Role.STEADY}
    assert ticks[80].vms[0]["ipc"] < 0.8 * ticks[30].vms[0]["ipc"]
    assert ticks[80].vms[0]["gips"] == pytest.approx(ticks[30].vms[0]["gips"], rel=0.3)
    assert math.isnan(ticks[80].truths[1].p95_latency_s)


def test_the_tail_of_five_ticks_is_over_all_their_requests() -> None:
    # A slow tick, and fast ones, of two blocks: it is in the window for five ticks and not for a sixth.
    ticks = [np.full(100, 2.0), *[np.full(100, 1.0)] * 6]
    recent = [deque(maxlen=5), deque(maxlen=5)]
    parts = [
        study_module.windows_of(SimpleNamespace(p95_s=np.ones((len(some), 2)), latencies_s=[some, []]), recent)
        for some in (ticks[:3], ticks[3:])
    ]
    p95_5s_s, ended = (np.concatenate(part) for part in zip(*parts, strict=True))
    assert p95_5s_s[:, 0].tolist() == [2.0] * 5 + [1.0] * 2
    assert np.isnan(p95_5s_s[:, 1]).all()
    assert ended.tolist() == [[100.0, 0.0]] * 7


def test_a_study_repeats_and_its_repetitions_differ() -> None:
    study = replace(single("silo", 0.2, "disk-1"), duration_s=20)
    first, again = (list(simulate(study)) for _ in range(2))
    other = list(simulate(replace(study, repetition=2)))
    assert repr(first) == repr(again)
    assert first[7].vms != other[7].vms
    assert first[7].truths[0].p95_latency_s != other[7].truths[0].p95_latency_s


def test_blocks_of_any_length_are_the_same_study(monkeypatch: pytest.MonkeyPatch) -> None:
    study = replace(three_vms("silo", 0.2, ("img-dnn", "specjbb")), duration_s=80)
    at_once = list(simulate(study))
    monkeypatch.setattr(study_module, "_BLOCK_TICKS", 7)
    piecewise = list(simulate(study))
    for one, other in zip(at_once, piecewise, strict=True):
        assert one.vms == tuple(pytest.approx(vm, rel=1e-9) for vm in other.vms)
        assert [truth.role for truth in one.truths] == [truth.role for truth in other.truths]
        for mine, its in zip(one.truths, other.truths, strict=True):
            assert mine.p95_latency_s == pytest.approx(its.p95_latency_s, nan_ok=True)


def test_expectations_of_long_studies_are_interpolated_well(monkeypatch: pytest.MonkeyPatch) -> None:
    study = replace(quiet_day(hours=0.5), start_unix_s=9 * 3600.0)
    exact = [block.expected.p95_s for block in blocks(study, requests=False)]
    monkeypatch.setattr(study_module, "_COARSE_ABOVE_TICKS", 100)
    coarse = [block.expected.p95_s for block in blocks(study, requests=False)]
    assert np.concatenate(coarse) == pytest.approx(np.concatenate(exact), rel=2e-3, nan_ok=True)


def test_a_quiet_hour_has_only_steady_vms_and_noise_that_lasts() -> None:
    study = quiet_day(hours=1.0)
    known = list(blocks(study, requests=False))
    assert {role for block in known for row in block.roles for role in row} == {Role.STEADY}
    load = np.concatenate([block.metrics["guest_ratio"][:, 0] for block in known])
    log = np.log(load) - np.log(load).mean()
    assert 0.06 < log.std() < 0.2
    assert np.corrcoef(log[:-20], log[20:])[0, 1] > 0.1
    assert all(np.isnan(block.p95_latency_s).all() for block in known)


def test_loads_follow_the_day() -> None:
    vm = StudyVm("a", "silo", load=0.2, diurnal=0.5, peak_hour=12.0)
    for start_h, wanted in ((12, 0.3), (0, 0.1), (6, 0.2)):
        study = Study("day", (vm,), 2, start_unix_s=start_h * 3600.0, noise=CALM)
        assert next(iter(simulate(study))).truths[0].load_ratio == pytest.approx(wanted, abs=1e-3)


def test_alitas_counter_example() -> None:
    """Figure 13: img-dnn holds over 10 MB, above its quota of 5.5, and hurts nobody; the stream hurts it."""
    ticks = list(simulate(alita()))
    quiet, stress = ticks[30], ticks[90]
    assert quiet.vms[0]["llc_occupancy_bytes"] > 10e6
    assert quiet.vms[1]["llc_occupancy_bytes"] < 1.1e6
    assert quiet.truths[1].role is Role.STEADY
    assert 0.4 < stress.vms[0]["llc_occupancy_bytes"] / stress.vms[1]["llc_occupancy_bytes"] < 1.6
    assert [truth.role for truth in stress.truths] == [Role.VICTIM, Role.INFLICTING]


def test_a_lower_clock_shows_in_reference_cycles_and_is_nobodys_doing() -> None:
    ticks = list(simulate(replace(clock_change("moses", 0.3, 0.8), noise=CALM)))
    before, during = ticks[30].vms[0], ticks[80].vms[0]
    assert before["frequency_ratio"] == pytest.approx(1.0, abs=1e-6)
    assert during["frequency_ratio"] == pytest.approx(0.8, abs=1e-6)
    # Memory is as many nanoseconds away as before, so it takes fewer cycles.
    assert during["ipc"] > before["ipc"] * 1.02
    assert np.mean([t.vms[0]["guest_ratio"] for t in ticks[65:105]]) > 1.1 * np.mean(
        [t.vms[0]["guest_ratio"] for t in ticks[10:55]]
    )
    assert {truth.role for tick in ticks for truth in tick.truths} == {Role.STEADY}
    assert ticks[80].truths[0].expected_p95_s > 1.15 * ticks[30].truths[0].expected_p95_s


def test_a_vms_own_growth_raises_gips_and_degrades_it_by_nobodys_doing() -> None:
    ticks = list(simulate(load_growth("masstree", 0.2, 0.4)))
    assert ticks[80].vms[0]["gips"] == pytest.approx(2 * ticks[30].vms[0]["gips"], rel=0.25)
    assert ticks[80].truths[0].role is Role.INFLICTING
    assert ticks[80].truths[0].expected_degradation == pytest.approx(1.0, abs=1e-6)


def test_all_the_papers_single_scenarios() -> None:
    studies = list(singles(repetitions=2))
    assert len(studies) == len({(study.name, study.repetition) for study in studies})
    # Five loads, silo saturates before the last; eleven stressors.
    assert len(studies) == 2 * (4 * 5 + 4) * len(STRESSORS)
    assert len(STRESSORS) == 11


@pytest.mark.parametrize(
    ("vm", "message"),
    [
        (StudyVm("a", "redis"), "a: no profile 'redis'; there are img-dnn"),
        (StudyVm("a", "silo", switches=((5.0, "moses"),)), "a: a VM that serves requests cannot change"),
    ],
)
def test_impossible_vms_are_refused(vm: StudyVm, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        next(iter(simulate(Study("x", (vm,)))))


# --- RUNS files ---


def test_runs_files_have_a_row_per_tick_of_each_vm_that_serves(tmp_path: Path) -> None:
    study = replace(three_vms("silo", 0.2, ("img-dnn", "specjbb")), duration_s=12, quiet_s=10.0)

    def matrix(vms, host):
        return np.array([[vm["ipc"], host["host_cpu_idle_ratio"], math.nan] for vm in vms])

    path = tmp_path / "runs.csv"
    assert write(path, [study, replace(study, repetition=2)], ("ipc", "idle", "nothing"), matrix) == 2 * 3 * 12
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == (*KEYS, "ipc", "idle", "nothing")
    assert {row["vm"] for row in rows} == {"silo", "img-dnn-inflicting", "specjbb-inflicting"}
    first = rows[0]
    assert (first["scenario"], first["repetition"], first["phase"], first["at_s"]) == (
        "three-silo-20-img-dnn-specjbb",
        "1",
        "quiet",
        "1.0",
    )
    assert (first["load_ratio"], first["cpu_level"], first["nothing"]) == ("0.2", "0.2", "")
    assert float(first["p95_latency_s"]) == pytest.approx(float(first["expected_p95_s"]), rel=0.5)
    assert float(first["ipc"]) == pytest.approx(next(iter(simulate(study))).vms[0]["ipc"])


def test_cpu_levels_are_the_papers() -> None:
    assert [cpu_level(value) for value in (0.0, 0.14, 0.16, 0.34, 0.48, 0.9)] == [0.1, 0.1, 0.2, 0.3, 0.5, 0.5]
