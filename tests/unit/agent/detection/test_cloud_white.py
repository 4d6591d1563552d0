import json
import math
import stat

import numpy as np
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from agent.analysis.detectors.baseline import BaselineSettings
from agent.analysis.detectors.detector import DetectorSettings
from agent.analysis.detectors.paper_detector import PaperDetector
from agent.analysis.signals import INDEX, SIGNALS, signals_of
from agent.config import CloudWhiteSection
from agent.detection.baseline_file import BaselineFile
from agent.detection.cloud_white import CloudWhite, _matrix, _numbers, make_detector
from agent.detection.degradation_models import HostModels, load
from agent.sampling.metric_table import HostRates, VmRates
from collector.base import Reason
from tests.unit.agent.agent_fakes import UNIX0, S
from tests.unit.agent.cloud_white_fakes import INFLICTS, SUFFERS, UNKNOWN, ToldDetector, ToldModel, host_vm, rates_of
from tests.unit.agent.interference import said, stressed


class Host:
    """A host whose detector says what it is reported, second by second."""

    def __init__(self, *models, **settings) -> None:
        self.detectors: list[ToldDetector] = []
        section = CloudWhiteSection(**settings)
        self.it = CloudWhite(section, HostModels([(f"m{n}", model) for n, model in enumerate(models)]), self._make)
        self.second = 100
        self.vms = [host_vm("bully"), host_vm("web", rates=rates_of(gips=1.4))]

    def _make(self, _name):
        self.detectors.append(ToldDetector())
        return self.detectors[-1]

    @property
    def says(self):
        return self.detectors[-1].says

    def tick(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.second += 1
            self.it.tick(self.vms, Reason.SOURCE_OFF, self.second * S, UNIX0 + self.second * S)


values = st.one_of(
    st.floats(0, 1e12), st.integers(0, 10**15), st.sampled_from([Reason.NO_PMU, Reason.IDLE, Reason.NO_RDT])
)


@given(
    st.lists(st.builds(lambda v: VmRates(*v), st.tuples(*[values] * len(VmRates._fields))), max_size=4),
    st.one_of(st.just(Reason.STALE), st.builds(lambda v: HostRates(*v), st.tuples(*[values] * len(HostRates._fields)))),
)
@pytest.mark.long
def test_the_quick_matrix_is_the_plain_one(vms, host):
    def known(rates):
        return {name: value for name, value in rates._asdict().items() if not isinstance(value, Reason)}

    expected = signals_of([known(one) for one in vms], {} if isinstance(host, Reason) else known(host))
    np.testing.assert_array_equal(_matrix(_numbers(vms), host, 1.0), expected)


def test_the_settings_reach_the_detector_and_the_defaults_are_those_it_was_measured_with():
    assert make_detector(CloudWhiteSection())._settings == DetectorSettings()
    section = CloudWhiteSection(sensitivity=2.0, hysteresis=0.8, baseline_quiet_s=900.0, baseline_disturbed_s=7200.0)
    baseline = BaselineSettings(quiet_time_constant_s=900.0, held_time_constant_s=7200.0)
    assert make_detector(section)._settings == DetectorSettings(
        suffers_factor=1.25, suffers_factor_alone=3.0, hysteresis=0.8, baseline=baseline
    )
    assert type(make_detector(CloudWhiteSection(detector="paper"))) is PaperDetector


@pytest.mark.long
def test_a_higher_sensitivity_finds_smaller_harm():
    def victims(sensitivity):
        detector = make_detector(CloudWhiteSection(sensitivity=sensitivity))
        verdicts = said(detector, stressed(slow=1.05, noise=0.2))
        return sum(row[1] == "victim" for row in verdicts[65:110])

    assert victims(0.5) < 5
    assert victims(4.0) >= victims(1.0) > 40


def test_the_detector_gets_the_tick_of_all_vms():
    host = Host()
    host.tick()
    (tick,) = host.detectors[0].ticks
    assert tick.at_s == 101.0
    assert [tuple(key) for key in tick.vms] == [("bully", "e1", 2, None), ("web", "e1", 2, None)]
    assert tick.values.shape == (2, len(SIGNALS))
    assert tick.values[1, INDEX["gips"]] == 1.4
    assert math.isnan(tick.values[1, INDEX["ipc"]])


def test_rates_that_are_the_same_object_stand_and_all_others_are_taken():
    host = Host()
    a, b, c = (rates_of(gips=gips) for gips in (1.0, 2.0, 3.0))
    rows = ([a, b], [a, c], [c, a], [c], [c, b, a], [c, b, a], [])
    for rates in rows:
        host.vms = [host_vm(f"vm{row}", rates=one) for row, one in enumerate(rates)]
        host.tick()
    seen = [tick.values for tick in host.detectors[0].ticks]
    assert len(seen) == len(rows)
    for rates, values in zip(rows, seen, strict=True):
        np.testing.assert_array_equal(values, _matrix(_numbers(rates), Reason.SOURCE_OFF, 1.0))


def test_a_victim_has_an_estimate_and_others_only_when_asked():
    model = ToldModel("gips")
    host = Host(model)
    host.says["web"] = SUFFERS
    host.tick()
    verdict = host.it.verdict("web")
    assert (verdict.behaviour, verdict.reason, verdict.culprits) == ("victim", SUFFERS[1], ("bully",))
    found = verdict.degradation
    assert (found.ratio, found.low, found.high) == pytest.approx((1.4, 1.26, 1.54))
    assert (found.cannot_tell, found.model) == ("", "m0: glm")
    assert host.it.since_ns(verdict) == 3 * S
    assert host.it.verdict("bully").degradation is None
    assert model.asked == [1]
    why = host.it.explain("bully")
    assert why.verdict.degradation.cannot_tell == "missing:gips"
    assert (why.detector, why.verdict.baseline_ticks) == ("noise_scaled", 60)
    why = host.it.explain("web")
    assert [(one.name, one.value, one.expected) for one in why.signals if one.name == "gips"] == [("gips", 1.4, 1.0)]
    assert [one.signal for one in why.verdict.evidence] == ["ipc"]


def test_what_was_learnt_and_what_is_expected_at_the_present_load_are_distinguished():
    it = CloudWhite(CloudWhiteSection(), HostModels())
    for second in range(50):
        grown = 2.0 if second >= 40 else 1.0
        rates = rates_of(gips=1.5 * grown, guest_ratio=0.2 * grown, ipc=1.0)
        it.tick([host_vm("web", rates=rates)], Reason.SOURCE_OFF, second * S + 1, UNIX0)
    reported = {one.name: (one.value, one.learnt, one.expected) for one in it.explain("web").signals}
    assert reported["gips"] == pytest.approx((3.0, 1.5, 3.0), rel=0.02)
    assert reported["guest_ratio"] == pytest.approx((0.4, 0.2, 0.4), rel=0.02)
    assert reported["ipc"] == pytest.approx((1.0, 1.0, 1.0), rel=0.02)


def test_workers_that_are_learnt_are_shown_with_how_surely_and_what_is_left_is_theirs():
    it = CloudWhite(CloudWhiteSection(), HostModels())
    known = {"gips": 1.5, "guest_ratio": 0.3, "ipc": 1.0}
    for second in range(50):
        running = int(second % 5 < 3)  # one of two vCPUs in 60 % of looks, never both
        vm = host_vm("web", rates=rates_of(**known, vcpus_running=running))
        it.tick([vm, host_vm("blind", rates=rates_of(**known))], Reason.SOURCE_OFF, second * S + 1, UNIX0)
    looked, blind = ({one.name: one for one in it.explain(vm).signals} for vm in ("web", "blind"))
    assert looked["workers"].value == 1
    assert looked["workers_posterior"].value > 0.95
    assert 40 <= looked["workers_looks"].value <= 50
    left = [(one.value, one.learnt, one.expected) for one in (f["vcpu_idle_ratio"] for f in (looked, blind))]
    assert left == [pytest.approx((0.4, 0.4, 0.4)), pytest.approx((0.7, 0.7, 0.7))]
    assert not {"workers", "workers_posterior", "workers_looks"} & set(blind)


def test_workers_that_is_unknown_are_no_signal_but_the_looks_are_shown():
    it = CloudWhite(CloudWhiteSection(), HostModels())
    for second in range(45):
        rates = rates_of(gips=1.5, guest_ratio=0.01, ipc=1.0, vcpus_running=0)
        it.tick([host_vm("web", rates=rates)], Reason.SOURCE_OFF, second * S + 1, UNIX0)
        shown = {one.name: one.value for one in it.explain("web").signals}
        if second == 12:
            assert shown["workers_looks"] == pytest.approx(9, abs=1)
            assert "workers_posterior" not in shown
    assert "workers" not in shown
    assert 0.5 < shown["workers_posterior"] < 0.95  # as likely one as two
    assert shown["vcpu_idle_ratio"] == pytest.approx(0.99)


def test_workers_are_shown_where_someone_said_and_what_is_left_is_theirs():
    def reported(workers):
        it = CloudWhite(CloudWhiteSection(), HostModels())
        vm = host_vm("web", rates=rates_of(gips=1.5, guest_ratio=0.3, ipc=1.0), workers=workers)
        for second in range(50):
            it.tick([vm], Reason.SOURCE_OFF, second * S + 1, UNIX0)
        return {one.name: one for one in it.explain("web").signals}

    said_one, nobody = reported(1), reported(None)
    assert said_one["workers"].value == 1
    assert math.isnan(said_one["workers"].learnt) and math.isnan(said_one["workers"].expected)
    assert "workers" not in nobody
    left = [(one.value, one.learnt, one.expected) for one in (found["vcpu_idle_ratio"] for found in (said_one, nobody))]
    assert left == [pytest.approx((0.4, 0.4, 0.4)), pytest.approx((0.7, 0.7, 0.7))]


def test_of_a_vm_that_inflicts_nothing_is_estimated():
    """It does something else than at its baseline: a model would take that for what it suffers."""
    model = ToldModel("gips")
    host = Host(model)
    host.says.update({"web": SUFFERS, "bully": INFLICTS})
    host.tick()
    assert model.asked == [1]
    assert host.it.explain("bully").verdict.degradation is None
    assert model.asked == [1]


def test_the_first_model_that_can_tell_counts_else_the_first_reason():
    host = Host(ToldModel("ipc"), ToldModel("gips", factor=2.0))
    host.says["web"] = SUFFERS
    host.tick()
    assert host.it.verdict("web").degradation.ratio == 2.8
    assert host.it.verdict("web").degradation.model == "m1: glm"
    assert host.it.explain("bully").verdict.degradation.cannot_tell == "missing:ipc"


def test_without_a_model_and_with_a_young_baseline_it_says_so():
    host = Host()
    host.says["web"] = SUFFERS
    host.tick()
    assert host.it.verdict("web").degradation.cannot_tell == "no_model"
    assert math.isnan(host.it.verdict("web").degradation.ratio)
    for cannot_tell in ("no_baseline", ""):
        host = Host(ToldModel(cannot_tell=cannot_tell))
        host.says["web"] = UNKNOWN
        host.tick()
        assert host.it.explain("web").verdict.degradation.cannot_tell == "baseline_young"


def test_a_model_that_fails_costs_estimates_and_no_verdict():
    model = ToldModel()
    host = Host(model)
    host.says["web"] = SUFFERS
    model.fails = ValueError("bad tree")
    with pytest.raises(ValueError, match="bad tree"):
        host.tick()
    assert host.it.verdict("web").behaviour == "victim"
    assert host.it.verdict("web").degradation.cannot_tell == "failed"
    assert (host.it.behaviour("web"), host.it.estimate("web").cannot_tell) == ("victim", "failed")


def test_a_detector_that_fails_leaves_no_old_verdict():
    host = Host()
    host.says["web"] = SUFFERS
    host.tick()
    host.detectors[0].fails = ZeroDivisionError("x")
    with pytest.raises(ZeroDivisionError):
        host.tick()
    verdict = host.it.verdict("web")
    assert (verdict.behaviour, verdict.degradation) == ("unknown", None)
    assert (host.it.behaviour("web"), host.it.estimate("web")) == ("unknown", None)
    assert host.it.explain("web").signals == ()


def test_of_a_vm_without_a_tick_nothing_is_known():
    host = Host()
    assert host.it.verdict("web").behaviour == "unknown"
    host.tick()
    assert host.it.verdict("other").reason == "not judged yet: it has had no tick"
    assert host.it.since_ns(host.it.verdict("other")) == 0


def test_what_was_learnt_is_restored_whole_or_not_at_all():
    host = Host()
    host.detectors[0].learnt = {"a": 1}
    data = host.it.dump()
    host.it.restore(data, UNIX0)
    assert host.it.dump() == {"a": 1, "now_unix_s": UNIX0 / 1e9}
    with pytest.raises(KeyError):
        host.it.restore({"broken": 1}, UNIX0)
    assert host.it.dump() == {"a": 1, "now_unix_s": UNIX0 / 1e9}


# --- files


def test_baselines_are_ours_alone_and_come_back(tmp_path):
    file = BaselineFile(tmp_path / "state" / "baselines.json", "paper")
    assert file.read() is None
    file.write({"vm": [1.0, None]}, 5)
    file.write({"vm": [2.0, None]}, 6)
    assert file.read() == {"vm": [2.0, None]}
    (path,) = (tmp_path / "state").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_another_detectors_baselines_are_not_taken_and_one_line_says_so(tmp_path):
    path = tmp_path / "baselines.json"
    BaselineFile(path, "paper").write({"vm": [1.0, None]}, 5)
    with structlog.testing.capture_logs() as logs:
        assert BaselineFile(path, "noise_scaled").read() is None
    (line,) = logs
    assert "another detector:" in line["event"]
    assert (line["path"], line["learnt_by"], line["detector"]) == (str(path), "paper", "noise_scaled")
    assert BaselineFile(path, "paper").read() == {"vm": [1.0, None]}  # until the next write


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format": 2, "detector": "paper", "saved_unix_ns": 1, "state": {}}', b"\xff\xfe"]
)
def test_damaged_baselines_are_reported_of_and_set_aside(tmp_path, content):
    path = tmp_path / "baselines.json"
    path.write_bytes(content)
    with structlog.testing.capture_logs() as logs:
        file = BaselineFile(path, "paper")
        assert file.read() is None
        assert file.read() is None
    assert [line["event"] for line in logs] == ["damaged baselines, learning from scratch"]
    assert (tmp_path / "baselines.json.damaged").read_bytes() == content
    file.write({}, 1)
    assert file.read() == {}


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    file = BaselineFile(tmp_path / "baselines.json", "paper")
    file.write({"old": 1}, 1)
    monkeypatch.setattr(
        "whitepanda.common.files.durable.os.fsync", lambda _fd: (_ for _ in ()).throw(OSError(28, "full"))
    )
    with pytest.raises(OSError, match="full"):
        file.write({"new": 1}, 2)
    assert file.read() == {"old": 1}


def test_models_that_cannot_be_used_cost_themselves_only(tmp_path):
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "wrong.json").write_text(json.dumps({"format": 99}))
    with structlog.testing.capture_logs() as logs:
        models = load([str(tmp_path / name) for name in ("none.json", "list.json", "wrong.json")])
    assert [line["path"].rpartition("/")[2] for line in logs if line["log_level"] == "error"] == [
        "none.json",
        "list.json",
        "wrong.json",
    ]
    assert {name for name, _, _ in models._models}.isdisjoint({"none", "list", "wrong"})
