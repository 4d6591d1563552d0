"""Algorithm 1 of "Cloud White", as it is read here."""

import json
import math

import numpy as np
import pytest

from agent.analysis.detectors.paper_detector import PaperDetector, PaperSettings
from agent.analysis.signals import INDEX, SIGNALS, Tick, VmKey

KEYS = tuple(VmKey(name, "e1", 2) for name in ("a", "b", "c"))
SETTINGS = PaperSettings(rolling_ticks=5, baseline_ticks=10)


def tick(at, loads, gips, keys=KEYS):
    values = np.full((len(keys), len(SIGNALS)), math.nan)
    values[:, INDEX["guest_ratio"]], values[:, INDEX["gips"]] = loads, gips
    return Tick(float(at), keys, values)


def quiet(detector, ticks=10, loads=(0.2, 0.2, 0.2), gips=(1.0, 1.0, 1.0)):
    for at in range(ticks):
        detection = detector.step(tick(at, loads, gips))
    return detection


def behaviours(detection):
    return [str(state.behaviour) for state in detection.states]


def test_the_settings_are_the_papers():
    assert (PaperSettings().load_change, PaperSettings().gips_change) == (0.05, 0.50)


@pytest.mark.parametrize(
    ("load", "gips", "said"),
    [
        (0.2 * 1.04, 3.0, "steady"),  # within M: whatever the GIPS
        (0.2 * 1.06, 1.0, "victim"),
        (0.2 * 0.94, 1.0, "victim"),  # a fall counts as well
        (0.2 * 1.06, 1.49, "victim"),
        (0.2 * 1.06, 1.51, "inflicting"),
        (0.2 * 0.94, 0.49, "inflicting"),
    ],
)
def test_the_first_pass_goes_by_m_and_n(load, gips, said):
    detector = PaperDetector(SETTINGS)
    quiet(detector)
    detection = detector.step(tick(10, (load, 0.2, 0.2), (gips, 1.0, 1.0)))
    others = "victim" if said == "inflicting" else "steady"
    assert behaviours(detection) == [said, others, others]


def test_the_second_pass_makes_everyone_else_a_victim_whatever_the_order():
    detector = PaperDetector(SETTINGS)
    quiet(detector)
    detection = detector.step(tick(10, (0.2, 0.3, 0.2), (1.0, 2.0, 1.0)))
    assert behaviours(detection) == ["victim", "inflicting", "victim"]
    assert [state.culprits for state in detection.states] == [("b",), (), ("b",)]
    assert detection.states[0].reason.endswith(": steady, but another VM inflicts")
    assert detection.states[1].reason == "load +50 %, GIPS +100 % against the last 5 ticks"


def test_a_load_that_lasts_becomes_steady_but_is_estimated_until_the_baseline_returns():
    detector = PaperDetector(SETTINGS)
    quiet(detector)
    for at in range(10, 20):
        detection = detector.step(tick(at, (0.2, 0.4, 0.2), (1.0, 2.0, 1.0)))
    assert behaviours(detection) == ["steady", "steady", "steady"]
    assert detection.estimate.tolist() == [True, False, True]
    hint = "; its slow-down is estimated until it and the inflicting VMs are back at their baselines"
    usual = "load as in the last ticks"
    assert [state.reason for state in detection.states] == [usual + hint, usual, usual + hint]
    for at in range(20, 30):
        detection = detector.step(tick(at, (0.2, 0.2, 0.2), (1.0, 1.0, 1.0)))
    assert detection.estimate.tolist() == [False, False, False]
    assert {state.reason for state in detection.states} == {usual}


def test_the_rolling_mean_is_of_the_ticks_before():
    detector = PaperDetector(SETTINGS)
    quiet(detector)
    detector.step(tick(10, (0.3, 0.2, 0.2), (1.0, 1.0, 1.0)))
    detection = detector.step(tick(11, (0.2, 0.2, 0.2), (1.0, 1.0, 1.0)))
    # (4 * 0.2 + 0.3) / 5 = 0.22; 0.2 is 9 % below it.
    assert behaviours(detection)[0] == "victim"
    evidence = detection.states[0].evidence[0]
    assert (evidence.signal, evidence.value) == ("guest_ratio", 0.2)
    assert evidence.expected == pytest.approx(0.22)
    assert evidence.threshold == pytest.approx(0.22 * 0.95)


def test_before_the_baseline_and_without_instructions_it_cannot_tell():
    detector = PaperDetector(SETTINGS)
    detection = quiet(detector, 10)
    assert behaviours(detection) == ["unknown"] * 3
    assert detection.states[0].reason == "no baseline yet: 9 of 10 ticks"
    assert np.isnan(detection.baseline).all()
    detection = detector.step(tick(10, (0.3, 0.2, 0.2), (math.nan, 1.0, 1.0)))
    assert behaviours(detection) == ["unknown", "steady", "steady"]
    assert detection.states[0].reason == "instructions are not counted here: the paper's rules do not apply"
    assert detection.baseline[0, INDEX["gips"]] == pytest.approx(1.0)


def test_baselines_survive_by_uuid_and_epoch():
    detector = PaperDetector(SETTINGS)
    quiet(detector, 11)
    data = json.loads(json.dumps(detector.dump(100.0)))
    for now_s, keys, ready in (
        (200.0, KEYS, True),
        (200.0, tuple(key._replace(epoch="e2") for key in KEYS), False),
        (200.0, tuple(key._replace(vcpus=4) for key in KEYS), False),
        (100.0 + 8 * 86_400, KEYS, False),
    ):
        other = PaperDetector(SETTINGS)
        other.restore(data, now_s)
        states = other.step(tick(0, (0.2,) * 3, (1.0,) * 3, keys)).states
        assert [state.baseline_ready for state in states] == [ready] * 3


@pytest.mark.parametrize("data", [{}, {"format": 1}, {"format": 1, "vms": [{"uuid": "a"}]}, {"format": 2, "vms": []}])
def test_what_is_no_dump_is_refused(data):
    with pytest.raises(ValueError, match="baselines: "):
        PaperDetector(SETTINGS).restore(data, 0.0)


def test_vms_come_and_go():
    detector = PaperDetector(SETTINGS)
    quiet(detector, 11)
    detection = detector.step(tick(11, (0.2, 0.2), (1.0, 1.0), (KEYS[2], VmKey("new", "e1", 2))))
    assert [state.behaviour for state in detection.states] == ["steady", "unknown"]


@pytest.mark.parametrize(
    ("against", "window", "at_once", "later"),
    [
        # A load and GIPS that rose and stay: forgotten by rolling means, sooner by a short one; not by the baseline.
        ((False, False), 5, "inflicting", "steady"),
        ((False, False), 20, "inflicting", "inflicting"),
        ((False, True), 5, "inflicting", "steady"),
        ((False, True), 20, "inflicting", "inflicting"),
        ((True, True), 5, "inflicting", "inflicting"),
        ((True, False), 5, "inflicting", "victim"),
    ],
)
def test_readings_of_normal_load_and_gips(against, window, at_once, later):
    load, gips = against
    settings = PaperSettings(rolling_ticks=window, baseline_ticks=20, load_from_baseline=load, gips_from_baseline=gips)
    detector = PaperDetector(settings)
    quiet(detector, 20)
    said = [behaviours(detector.step(tick(20 + at, (0.4, 0.2, 0.2), (2.0, 1.0, 1.0))))[0] for at in range(6)]
    assert (said[0], said[-1]) == (at_once, later)


def test_gips_against_the_baseline_find_who_inflicts_by_a_ramp():
    """Each tick is within N of the last ten, so that rolling means call a ramp a victim."""
    found = {}
    for name, settings in {
        "rolling": PaperSettings(baseline_ticks=10),
        "gips": PaperSettings(baseline_ticks=10, gips_from_baseline=True),
        "both": PaperSettings(baseline_ticks=10, load_from_baseline=True, gips_from_baseline=True),
    }.items():
        detector = PaperDetector(settings)
        quiet(detector, 10)
        for at in range(10, 40):
            grown = 1 + 0.05 * (at - 9)
            found[name] = behaviours(detector.step(tick(at, (0.2 * grown, 0.2, 0.2), (grown, 1.0, 1.0))))
    steady = ["steady", "steady"]
    assert found == {
        "rolling": ["victim", *steady],
        "gips": ["inflicting", "victim", "victim"],
        "both": ["inflicting", "victim", "victim"],
    }


def test_evidence_and_reason_say_what_load_and_gips_are_held_against():
    detector = PaperDetector(PaperSettings(rolling_ticks=5, baseline_ticks=10, gips_from_baseline=True))
    quiet(detector)
    detector.step(tick(10, (0.2, 0.2, 0.2), (1.2, 1.0, 1.0)))
    state = detector.step(tick(11, (0.3, 0.2, 0.2), (2.0, 1.0, 1.0))).states[0]
    assert state.reason == "load +50 % against the last 5 ticks, GIPS +100 % against its baseline"
    load, gips = state.evidence
    assert (load.expected, gips.expected) == (pytest.approx(0.2), pytest.approx(1.0))
    assert gips.threshold == pytest.approx(1.5)
