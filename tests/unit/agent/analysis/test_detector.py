"""Our detector: who suffers, who inflicts, and who only looks like it."""

import json
import math
from collections import Counter

import numpy as np
import pytest

from agent.analysis.detectors import detector as detector_module
from agent.analysis.detectors.baseline import BaselineSettings
from agent.analysis.detectors.detector import Detector, DetectorSettings
from agent.analysis.detectors.detector_words import _more
from agent.analysis.detectors.workers import running_shares
from agent.analysis.signals import INDEX, SIGNALS, Tick, VmKey, load_factors
from agent.analysis.verdict import BEHAVIOURS, Evidence
from tests.unit.agent.interference import during, said, stressed, world

STEADY, VICTIM, INFLICTING, UNKNOWN = "steady", "victim", "inflicting", "unknown"


def detect(ticks, settings=None):
    return said(Detector(settings or DetectorSettings()), ticks)


def right(verdicts, since, until, wanted):
    rows = verdicts[since:until]
    return sum(row == wanted for row in rows) / len(rows)


@pytest.mark.parametrize("seed", range(5))
def test_victims_and_inflicting_vms_are_distinguished_5_s_after_a_change(seed):
    verdicts = detect(stressed(seed=seed))
    assert right(verdicts, 30, 60, [STEADY] * 3) == 1
    assert right(verdicts, 65, 110, [INFLICTING, VICTIM, VICTIM]) >= 0.95
    assert right(verdicts, 115, 170, [STEADY] * 3) >= 0.95


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_without_a_pmu_waiting_for_cpus_reports_and_clears(seed):
    waits = during(60, 110, 0.25, without=0, usual=0.02)
    verdicts = detect(stressed(seed=seed, pmu=False, slow=1.0, waits=waits))
    assert right(verdicts, 65, 110, [INFLICTING, VICTIM, VICTIM]) >= 0.95
    assert right(verdicts, 115, 170, [STEADY] * 3) >= 0.95


@pytest.mark.parametrize("seed", range(3))
def test_without_a_pmu_io_pressure_reports_who_suffers_from_a_disk_hog(seed):
    def more(at, vm):
        busy = 60 <= at < 110
        if vm == 0:
            return {"disk_write_bytes_per_s": 2e8} if busy else {}
        return {"pressure_io_some_ratio": 0.2} if busy and vm == 1 else {}

    verdicts = detect(world(seed=seed, pmu=False, more=more))
    assert right(verdicts, 65, 110, [INFLICTING, VICTIM, STEADY]) >= 0.95
    assert right(verdicts, 115, 170, [STEADY] * 3) == 1


def test_a_steady_vm_is_no_victim_by_association():
    slow = during(60, 110, 1.1, of=1)
    verdicts = detect(world(load=during(60, 110, 0.95, of=0, usual=0.19), slow=slow))
    assert right(verdicts, 65, 110, [INFLICTING, VICTIM, STEADY]) >= 0.95


def test_several_vms_inflict_at_once_and_each_victim_names_them_strongest_first():
    def load(at, vm):
        return {0: 0.5, 1: 0.95}.get(vm, 0.19) if 60 <= at < 110 else 0.19

    detector = Detector(DetectorSettings())
    for at, tick in enumerate(world(vms=4, load=load, slow=lambda at, vm: 1.1 if 60 <= at < 110 and vm > 1 else 1.0)):
        states = detector.step(tick).states
        if at == 100:
            assert [str(state.behaviour) for state in states] == [INFLICTING, INFLICTING, VICTIM, VICTIM]
            assert states[2].culprits == states[3].culprits == ("vm1", "vm0")
            assert states[0].culprits == ()


def test_own_load_growth_below_what_inflicts_is_neither():
    # Its IPC falls with its own load, and nobody else does anything.
    slow = during(60, 110, 1.05, of=0)
    verdicts = detect(world(load=during(60, 110, 0.24, of=0, usual=0.2), slow=slow))
    assert Counter(name for row in verdicts[60:] for name in row) == {STEADY: 3 * 110}


def test_a_lower_ipc_while_nobody_does_more_is_its_own_doing_and_says_so():
    detector = Detector(DetectorSettings())
    states = [detector.step(tick).states for tick in world(slow=during(60, 110, 1.3, of=1))]
    assert {str(state.behaviour) for row in states[30:] for state in row} == {STEADY}
    assert states[80][1].reason == "slower than usual, but no other VM does more: its own doing"


@pytest.mark.parametrize("ratio", [0.7, 1.3])
def test_a_clock_that_changes_is_no_interference_even_beside_one_who_does_more(ratio):
    load = during(60, 110, 0.95, of=0, usual=0.19)
    clock = during(60, 110, ratio)
    stalls = 0.2  # of the world's VMs: that part of CPI takes the same nanoseconds

    def slow(at, _vm):
        return 1 + stalls * (ratio - 1) if 60 <= at < 110 else 1.0

    verdicts = detect(world(load=load, clock=clock, slow=slow))
    assert not any(VICTIM in row for row in verdicts)


def test_a_clock_lowered_for_one_vm_alone_is_its_own_doing():
    load = during(60, 110, 0.95, of=0, usual=0.19)
    ticks = list(world(vms=4, load=load, clock=during(60, 110, 0.8, of=1), slow=during(60, 110, 1.2, of=1)))
    verdicts = detect(ticks)
    assert not any(VICTIM in row for row in verdicts)
    detector = Detector(DetectorSettings())
    states = [detector.step(tick).states for tick in ticks]
    assert states[90][1].reason == "its clock is 20 % lower than usual, the others' is not: its own doing"


def quiet_day(hours, seed, *, pmu=True):
    def load(at, vm):
        return (0.05 + 0.02 * vm) * (1 + 0.5 * math.cos(2 * math.pi * (at / 86_400 + 0.1 * vm)))

    return world(ticks=round(hours * 3600), vms=6, seed=seed, noise=0.05, load=load, pmu=pmu)


@pytest.mark.long
@pytest.mark.parametrize("pmu", [True, False])
def test_no_false_victim_in_quiet_hours_of_diurnal_load_and_remembered_noise(pmu):
    counted = Counter(name for row in detect(quiet_day(0.75, 3, pmu=pmu))[30:] for name in row)
    assert set(counted) == {STEADY}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "ticks", "settings"),
    [
        # Each of these takes one guarantee away; the tests above must see it.
        ("hair trigger", lambda: quiet_day(0.5, 3), {"grown_factor": 0.1, "suffers_factor": 0.0, "suffers_delay": 0.0}),
        ("deaf", stressed, {"suffers_factor": 50.0}),
        ("nobody grows", stressed, {"grown_factor": 1000.0}),
    ],
)
def test_a_detector_with_other_thresholds_fails_these_tests(name, ticks, settings, monkeypatch):
    if name == "hair trigger":
        monkeypatch.setattr(detector_module, "_LEAST", np.zeros_like(detector_module._LEAST))
    verdicts = detect(ticks(), DetectorSettings(**settings))
    if name == "hair trigger":
        assert any(VICTIM in row for row in verdicts)
    else:
        assert right(verdicts, 65, 110, [INFLICTING, VICTIM, VICTIM]) < 0.5


@pytest.mark.long
def test_a_ramp_is_not_learnt_as_noise():
    def load(at, vm):
        return 0.2 * (1 + 0.04 * max(0, min(at, 110) - 60)) if vm == 0 else 0.2

    for seed in range(8):
        verdicts = detect(world(seed=seed, noise=0.04, load=load, slow=during(80, 170, 1.08, without=0)))
        assert right(verdicts, 90, 170, [INFLICTING, VICTIM, VICTIM]) >= 0.95


@pytest.mark.long
def test_what_lasts_stays_until_the_return_and_becomes_normal_only_in_hours():
    verdicts = detect(stressed(60, 1260, ticks=1320))
    assert right(verdicts, 65, 1260, [INFLICTING, VICTIM, VICTIM]) >= 0.99
    assert right(verdicts, 1265, 1320, [STEADY] * 3) >= 0.95
    short = DetectorSettings(baseline=BaselineSettings(held_time_constant_s=100.0))
    verdicts = detect(stressed(60, 1260, ticks=1260), short)
    assert right(verdicts, 1200, 1260, [STEADY] * 3) == 1


def test_one_who_does_much_more_inflicts_though_nobody_is_seen_to_suffer():
    detector = Detector(DetectorSettings())
    states = [detector.step(tick).states for tick in stressed(slow=1.0)]
    assert [str(state.behaviour) for state in states[80]] == [INFLICTING, STEADY, STEADY]
    assert states[80][0].reason.endswith("; no VM is seen to suffer")


def test_reasons_and_evidence_have_the_numbers_in_the_signals_units():
    detector = Detector(DetectorSettings())
    states = [detector.step(tick).states for tick in stressed()]
    inflicting, victim, _ = states[100]
    ipc = next(one for one in victim.evidence if one.signal == "ipc")
    assert ipc.value == pytest.approx(1.5 / 1.08, rel=0.03)
    assert ipc.expected == pytest.approx(1.5, rel=0.03)
    assert ipc.value < ipc.threshold < ipc.expected
    assert f"IPC {ipc.value:.3g} instead of {ipc.expected:.3g} (limit {ipc.threshold:.3g})" in victim.reason
    assert victim.reason.endswith(", while 1 other VM does more than usual")
    assert victim.culprits == ("vm0",)
    assert victim.since_ns / 1e9 == pytest.approx(1062, abs=3)
    gips = inflicting.evidence[0]
    assert gips.signal == "gips"
    assert gips.expected == pytest.approx(0.19 * 4 * 2.1 * 1.5, rel=0.05)
    assert gips.expected < gips.threshold < gips.value
    assert inflicting.reason.startswith("instructions 1")
    assert inflicting.reason.endswith("; others suffer meanwhile")
    assert states[50][1].reason == "as usual"
    assert states[10][1].reason == "no baseline yet: 10 of 30 quiet ticks"


def test_the_baseline_is_given_in_the_signals_units_at_the_present_load():
    detector = Detector(DetectorSettings())
    ticks = list(world(load=during(60, 170, 0.4, of=0, usual=0.2), noise=0.005))
    assert np.isnan(detector.step(ticks[0]).baseline).all()
    for tick in ticks[1:60]:
        before = detector.step(tick).baseline
    for tick in ticks[60:]:
        after = detector.step(tick).baseline
    assert before[0, INDEX["ipc"]] == pytest.approx(1.5, rel=0.01)
    assert before[0, INDEX["guest_ratio"]] == pytest.approx(0.2, rel=0.02)
    assert after[0, INDEX["guest_ratio"]] == pytest.approx(0.4, rel=0.03)
    assert after[0, INDEX["ipc"]] == pytest.approx(1.5, rel=0.01)
    assert after[1, INDEX["guest_ratio"]] == pytest.approx(0.2, rel=0.02)
    # What is left of the vCPUs is not proportional to the load: it follows from what is used at the present one.
    assert after[0, INDEX["vcpu_idle_ratio"]] == pytest.approx(0.6, rel=0.03)
    np.testing.assert_allclose(after[:, INDEX["vcpu_idle_ratio"]], 1 - after[:, INDEX["guest_ratio"]])
    assert np.isnan(after[:, INDEX["l2_mpki"]]).all()


def test_what_is_left_is_of_the_workers_where_these_are_reported():
    detector = Detector(DetectorSettings())
    for tick in world(ticks=60, noise=0.005):
        found = detector.step(tick._replace(vms=tuple(key._replace(workers=1) for key in tick.vms)))
    guest = found.baseline[:, INDEX["guest_ratio"]]
    vcpus = tick.vms[0].vcpus
    np.testing.assert_allclose(found.baseline[:, INDEX["vcpu_idle_ratio"]], 1 - vcpus * guest)
    reported = load_factors((tick.vms[0], tick.vms[0]._replace(workers=1), tick.vms[0]._replace(workers=99)))
    assert reported.tolist() == [1.0, vcpus, 1.0]


def with_looks(ticks, workers, seed=5):
    """Let so many workers of each VM of `world` be busy at random, as M/M/w queues of its load are."""
    rng = np.random.default_rng(seed)
    vcpus = 4
    shares = running_shares(np.array([0.2 * vcpus]), vcpus)[0, workers - 1]
    for tick in ticks:
        yield tick._replace(vcpus_running=rng.choice(vcpus + 1, len(tick.vms), p=shares).astype(float))


def test_workers_are_learnt_from_looks_and_what_is_left_is_theirs():
    detector = Detector(DetectorSettings())
    reported = []
    for tick in with_looks(world(ticks=120), workers=1):
        found = detector.step(tick)
        reported.append(found.workers.workers[0])
    assert not any(reported[:20])  # too few looks
    assert found.workers.workers.tolist() == [1, 1, 1]
    assert (found.workers.posterior > 0.99).all()
    assert found.workers.samples.tolist() == pytest.approx([120, 120, 120], abs=11)
    assert found.factors.tolist() == [4, 4, 4]
    left = 1 - 4 * found.baseline[:, INDEX["guest_ratio"]]
    np.testing.assert_allclose(found.baseline[:, INDEX["vcpu_idle_ratio"]], left)
    np.testing.assert_allclose(found.learnt[:, INDEX["vcpu_idle_ratio"]], 1 - 4 * found.learnt[:, INDEX["guest_ratio"]])
    # Kept on disk: it is known from the first tick on.
    again = Detector(DetectorSettings())
    again.restore(json.loads(json.dumps(detector.dump(5000.0))), 5000.0)
    assert again.step(tick).workers.workers.tolist() == [1, 1, 1]


def test_what_the_operator_says_of_workers_stands_whatever_runs():
    detector = Detector(DetectorSettings())
    for tick in with_looks(world(ticks=60), workers=1):
        found = detector.step(tick._replace(vms=(tick.vms[0]._replace(workers=2), *tick.vms[1:])))
    assert found.workers.workers.tolist() == [0, 1, 1]
    assert np.isnan([found.workers.posterior[0], found.workers.samples[0]]).all()
    assert found.factors.tolist() == [2, 4, 4]


def test_nobody_looks_and_nothing_is_learnt():
    detector = Detector(DetectorSettings())
    for tick in world(ticks=60):
        found = detector.step(tick)
    assert found.workers.workers.tolist() == [0, 0, 0]
    assert found.factors.tolist() == [1, 1, 1]


def test_looks_do_not_change_what_is_said_and_none_is_learnt_from_while_someone_suffers():
    plain, looking = Detector(DetectorSettings()), Detector(DetectorSettings())
    ticks = list(stressed(60, 110))
    looks = list(with_looks(ticks, workers=1))
    # While the others suffer all vCPUs run.
    looks[70:105] = [tick._replace(vcpus_running=np.full(3, 4.0)) for tick in looks[70:105]]
    for tick, look in zip(ticks, looks, strict=True):
        assert plain.step(tick).behaviours == (found := looking.step(look)).behaviours
    assert found.workers.workers[1:].tolist() == [1, 1]


def test_suffering_is_learnt_by_nobody():
    detector = Detector(DetectorSettings())
    for tick in stressed(60, 160, ticks=160):
        baseline = detector.step(tick).baseline
    assert baseline[1, INDEX["ipc"]] == pytest.approx(1.5, rel=0.015)


def test_a_baseline_learnt_under_stress_is_learnt_again_when_it_ends():
    detector = Detector(DetectorSettings())
    for tick in stressed(0, 60, ticks=100, slow=1.3):
        baseline = detector.step(tick).baseline
    assert baseline[1, INDEX["ipc"]] == pytest.approx(1.5, rel=0.03)


def test_vms_come_and_go_and_a_restart_begins_again():
    detector = Detector(DetectorSettings())
    ticks = list(world(vms=3))
    for tick in ticks[:60]:
        states = detector.step(tick).states
    assert [state.baseline_ready for state in states] == [True] * 3
    turned = [Tick(tick.at_s, tick.vms[:0:-1], tick.values[:0:-1]) for tick in ticks[60:65]]
    for tick in turned:
        states = detector.step(tick).states
    assert [state.baseline_ready for state in states] == [True, True]
    again = ticks[65]
    keys = (VmKey("vm1", "e2", 4), again.vms[2])
    states = detector.step(Tick(again.at_s, keys, again.values[1:])).states
    assert [str(state.behaviour) for state in states] == [UNKNOWN, STEADY]
    assert detector.step(Tick(again.at_s + 1, (), again.values[:0])).states == ()


def test_a_newcomer_that_floods_the_host_inflicts_without_a_baseline():
    detector = Detector(DetectorSettings())
    ticks = list(stressed(60, 170))
    for at, tick in enumerate(ticks):
        some = tick if at >= 60 else Tick(tick.at_s, tick.vms[1:], tick.values[1:])
        states = detector.step(some).states
    assert [str(state.behaviour) for state in states] == [INFLICTING, VICTIM, VICTIM]
    assert not states[0].baseline_ready


@pytest.mark.parametrize("tick_s", [0.25, 0.5, 2.0])
def test_a_newcomer_is_one_whatever_the_tick(tick_s):
    """It came after the others' baselines were ready, not after some number of seconds."""
    detector = Detector(DetectorSettings())
    for at, tick in enumerate(stressed(40, 170)):
        vms, values = (tick.vms, tick.values) if at >= 40 else (tick.vms[1:], tick.values[1:])
        states = detector.step(Tick(1000 + at * tick_s, vms, values)).states
    assert [str(state.behaviour) for state in states] == [INFLICTING, VICTIM, VICTIM]


@pytest.mark.parametrize("came", [0, 10])
def test_one_that_came_while_the_agent_was_down_or_soon_after_is_a_newcomer(came):
    ticks = list(stressed(50, 110))
    first = Detector(DetectorSettings())
    for tick in ticks[:50]:
        first.step(Tick(tick.at_s, tick.vms[1:], tick.values[1:]))
    second = Detector(DetectorSettings())
    second.restore(first.dump(5000.0), 5060.0)
    for at, tick in enumerate(ticks[50:80]):
        vms, values = (tick.vms, tick.values) if at >= came else (tick.vms[1:], tick.values[1:])
        states = second.step(Tick(tick.at_s, vms, values)).states
    assert [str(state.behaviour) for state in states] == [INFLICTING, VICTIM, VICTIM]


def test_vms_that_come_before_any_is_known_are_no_newcomers():
    detector = Detector(DetectorSettings())
    for at, tick in enumerate(world(ticks=90, load=lambda _at, vm: 0.6 if vm == 0 else 0.2)):
        states = detector.step(tick if at >= 20 else Tick(tick.at_s, tick.vms[1:], tick.values[1:])).states
        assert {str(state.behaviour) for state in states} <= {UNKNOWN, STEADY}, at


def test_unknown_signals_cost_nobody_elses_verdict():
    detector = Detector(DetectorSettings())
    for at, tick in enumerate(stressed()):
        if at >= 50:
            tick.values[2] = math.nan
        states = detector.step(tick).states
        if at == 100:
            assert [str(state.behaviour) for state in states] == [INFLICTING, VICTIM, UNKNOWN]
            assert states[2].reason == "none of its signals is known now"


def test_what_was_learnt_survives_a_restart_of_the_agent():
    ticks = list(stressed(60, 110))
    first = Detector(DetectorSettings())
    for tick in ticks[:50]:
        first.step(tick)
    dumped = json.loads(json.dumps(first.dump(5000.0), allow_nan=False))
    second = Detector(DetectorSettings())
    second.restore(dumped, 5060.0)
    assert json.loads(json.dumps(second.dump(5060.0)))["vms"][0]["uuid"] == "vm0"
    verdicts = said(second, ticks[50:])
    assert right(verdicts, 0, 10, [STEADY] * 3) == 1
    assert right(verdicts, 15, 60, [INFLICTING, VICTIM, VICTIM]) >= 0.95
    # Another epoch is another VM, and what is a week old is nothing.
    for unix_s, epoch in ((5060.0, "e2"), (5000.0 + 8 * 86_400, "e1")):
        third = Detector(DetectorSettings())
        third.restore(dumped, unix_s)
        assert said(third, list(world(ticks=1, epoch=epoch))) == [[UNKNOWN] * 3]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(format=9),
        lambda data: data.update(vms="all"),
        lambda data: data["vms"][1].pop("epoch"),
        lambda data: data["vms"][1]["columns"].update(ipc=[1.0]),
        lambda data: data["vms"][1]["columns"].update(ipc=[math.inf, 0.1, 3.0]),
        lambda data: data["vms"][1]["columns"].update(ipc=[1.0, -0.1, 3.0]),
        lambda data: data["vms"][1].update(load=[]),
    ],
)
def test_damaged_baselines_are_refused_whole(change):
    first = Detector(DetectorSettings())
    for tick in world(ticks=40):
        first.step(tick)
    data = json.loads(json.dumps(first.dump()))
    change(data)
    second = Detector(DetectorSettings())
    with pytest.raises(ValueError, match="baselines: "):
        second.restore(data, 0.0)
    assert second.dump()["vms"] == []


def test_any_numbers_give_one_verdict_per_vm():
    rng = np.random.default_rng(5)
    keys = tuple(VmKey(f"vm{number}", "e", 2) for number in range(5))
    detector = Detector(DetectorSettings())
    for at in range(200):
        values = np.exp(rng.normal(size=(5, len(SIGNALS))) * 3)
        values[rng.random(values.shape) < 0.3] = math.nan
        values[rng.random(values.shape) < 0.1] = 0.0
        result = detector.step(Tick(float(at), keys, values))
        assert all(state.behaviour in BEHAVIOURS and "\n" not in state.reason for state in result.states)
        assert result.baseline.shape == values.shape
        assert not np.isinf(result.baseline).any()
    json.dumps(detector.dump(), allow_nan=False)


def test_a_verdict_says_the_same_whenever_it_is_asked_for():
    """Reasons, evidence and baselines are made when they are looked at: ticks later nothing of them has moved."""

    def course():
        load = during(60, 90, 0.95, of=0, usual=0.19)
        return world(ticks=110, load=load, slow=during(60, 90, 1.2, of=1))

    at_once = Detector(DetectorSettings())
    reported = [(found.states, found.baseline) for found in map(at_once.step, course())]
    later = list(map(Detector(DetectorSettings()).step, course()))
    assert {str(behaviour) for behaviour in later[80].behaviours} == {STEADY, INFLICTING, VICTIM}
    for found, (states, baseline) in zip(later, reported, strict=True):
        assert found.states == states
        assert found.behaviours == tuple(state.behaviour for state in states)
        assert found.baseline_ticks.tolist() == [state.baseline_ticks for state in states]
        np.testing.assert_array_equal(found.baseline, baseline)


@pytest.mark.parametrize(
    ("signal", "value", "expected", "said"),
    [
        ("gips", 24.2, 0.0, "instructions 24.2 G/s instead of 0 G/s"),
        ("memory_bandwidth_bytes_per_s", 1.04e10, 2e7, "memory bandwidth 10.4 GB/s instead of 20 MB/s"),
        ("disk_ops_per_s", 300.0, 12_345.0, "disk operations 300/s instead of 12.3 k/s"),
        ("cpu_usage_cores", 7.5, 0.5, "CPU 7.5 cores instead of 0.5 cores"),
    ],
)
def test_what_a_vm_does_more_of_has_its_unit(signal, value, expected, said):
    assert _more((Evidence(signal, value, expected, expected),)) == said
