"""Verdicts on this host: what a slot is, when a VM is a victim, whom it suspects, why something is unknown."""

import dataclasses
import math
import random
from types import SimpleNamespace

import pytest

from agent.analysis.contention.normalised_cpi import CpiStatistics
from agent.antagonists.coefficients import CoefficientStore
from agent.antagonists.decide_victims import Decisions
from agent.antagonists.host_analysis import HostAnalysis
from agent.antagonists.vm_slots import CpiPoint
from agent.config import AgentConfig, AgentSection, AnalysisSection
from agent.detection.decision_types import SuspectView
from agent.sampling.windows import CpiWindow
from collector.base import Reason
from whitepanda.v1 import agent_pb2

S = 10**9
T0 = 1_800_000_000 * S
WINDOW = 10 * S
PLATFORM = "cpu-a"


def update(version=7, *, slot_s=30, created=T0, ttl_s=0, std=0.35, web=True):
    statistics = [
        agent_pb2.JobStatistics(job="web", platform=PLATFORM, samples=1000, mean_cpi=1.2, std_cpi=std),
        agent_pb2.JobStatistics(job="scan", platform=PLATFORM, samples=1000, mean_cpi=2.0, std_cpi=0.5),
        agent_pb2.JobStatistics(job="other", platform="cpu-b", samples=1000, mean_cpi=2.0, std_cpi=0.5),
    ]
    return agent_pb2.CoefficientUpdate(
        version=version,
        created_unix_ns=created,
        ttl_ns=ttl_s * S,
        slot_ns=slot_s * S,
        full=True,
        statistics=statistics if web else statistics[1:],
        coefficients=[agent_pb2.Coefficient(job="scan", value=0.5), agent_pb2.Coefficient(job="web", value=0.1)],
    )


def window(vm, end, cpi=1.2, *, job="web", ls=True, usage=2.0, epoch="1", reason=Reason.UNSPECIFIED, **more):
    return CpiWindow(
        vm=f"uuid-{vm}",
        epoch=epoch,
        name=vm,
        job=job,
        latency_sensitive=ls,
        start_unix_ns=end - WINDOW,
        duration_ns=WINDOW,
        cpu_usage_cores=usage,
        cpi=cpi,
        cpi_reason=reason,
        **more,
    )


def in_table(found):
    """The VM of a window as the table has it, as far as decisions ask."""
    return SimpleNamespace(
        identity=SimpleNamespace(uuid=found.vm, epoch=found.epoch, name=found.name, state="running"),
        job=found.job,
        latency_sensitive=found.latency_sensitive,
        alert=True,
        rates=SimpleNamespace(cpu_usage_cores=found.cpu_usage_cores),
    )


class Host:
    """Feeds windows every 10 s, and decides by them alone. `reports`: what central is reported."""

    def __init__(self, tmp_path, section=None, domain_of_node=None):
        self.store = CoefficientStore(tmp_path / "coefficients.json", now_unix_ns=lambda: 2 * T0)
        section = section or AnalysisSection(trigger="paper")
        self.analysis = HostAnalysis(section, PLATFORM, self.store, domain_of_node)
        self.decisions = Decisions(AgentConfig(agent=AgentSection()), None, self.analysis)
        self.reports = []
        self.now = T0

    def observe(self, windows, places=None):
        self.analysis.observe(windows, self.now, places)
        self.decisions.tick(map(in_table, windows), self.now, self.now)
        report = self.decisions.report(self.now)
        self.reports += [] if report is None else [report]

    def run(self, windows, *vms):
        """Let `windows` windows pass in which the VMs (dicts for `window`) do the same."""
        for _ in range(windows):
            self.now += WINDOW
            self.observe([window(end=self.now, **vm) for vm in vms])

    def verdict(self, vm):
        return self.analysis.verdict(f"uuid-{vm}")

    def explain(self, vm):
        return self.analysis.explain(f"uuid-{vm}")

    def suspects(self, vm):
        return tuple(one for one in self.analysis.suspects(f"uuid-{vm}") if one.name != vm)


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


@pytest.fixture
def own_noise(tmp_path):
    """A host that judges by its own noise, once it knows it: what is so by default."""
    return Host(tmp_path, AnalysisSection())


VICTIM = {"vm": "web-1", "cpi": 3.1}
CALM = {"vm": "web-2", "cpi": 1.3}
SCAN = {"vm": "scan-1", "cpi": 2.0, "job": "scan", "ls": False, "usage": 4.0}
ODD = {"vm": "odd-1", "cpi": 2.0, "job": "odd", "ls": False, "usage": 9.0}


def test_a_victim_with_its_arithmetic_and_first_suspect(host):
    host.store.apply(update())
    host.run(9, VICTIM, CALM, SCAN, ODD)
    verdict = host.verdict("web-1")
    assert verdict.verdict == "victim"
    assert verdict.reason == "CPI 3.1 exceeds 1.9 = mean 1.2 + 2 std 0.35 of job web on this platform"
    assert verdict.degradation == pytest.approx(3.1 / 1.2)
    assert host.suspects("web-1")[0].name == "scan-1"


def test_how_slow_a_victim_is_has_the_interval_of_its_jobs_vms(host):
    host.store.apply(update())
    host.run(9, VICTIM, CALM, SCAN)
    ((uuid, found),) = host.analysis.suffering.items()
    assert (uuid, found.model) == ("uuid-web-1", "cpi")
    assert (found.ratio, found.low, found.high) == pytest.approx((3.1 / 1.2, 3.1 / 1.9, 3.1 / 0.5))
    wide = update(8, std=0.7)  # mean - 2 std is below 0: there is no upper end
    host.store.apply(wide)
    host.run(9, {**VICTIM, "cpi": 9.0}, CALM, SCAN)
    found = host.analysis.suffering["uuid-web-1"]
    assert found.low == pytest.approx(9.0 / 2.6)
    assert math.isnan(found.high)


def test_nobody_suffers_without_contention(host):
    """A CPI that is over its threshold for a slot is no contention yet, and no victim."""
    host.store.apply(update())
    host.run(3, VICTIM, CALM, SCAN)
    assert not host.analysis.triggered
    verdict = host.verdict("web-1")
    assert (verdict.verdict, host.analysis.suffering) == ("normal", {})
    assert verdict.reason == (
        "CPI 3.1, limit 1.9 = mean 1.2 + 2 std 0.35 of job web on this platform;"
        " a higher CPI counts only while mnCPI shows contention on the host"
    )
    host.run(6, VICTIM, CALM, SCAN)
    assert (host.verdict("web-1").verdict, set(host.analysis.suffering)) == ("victim", {"uuid-web-1"})
    host.run(3, {**VICTIM, "cpi": 1.2}, CALM, SCAN)
    assert (host.verdict("web-1").verdict, host.analysis.suffering) == ("normal", {})


def test_a_normal_vm_has_a_slow_down_of_at_least_1(host):
    host.store.apply(update())
    host.run(3, CALM, {"vm": "web-3", "cpi": 0.9}, SCAN)
    verdict = host.verdict("web-2")
    assert verdict.verdict == "normal"
    assert verdict.reason == "CPI 1.3 is within 1.9 = mean 1.2 + 2 std 0.35 of job web on this platform"
    assert verdict.degradation == pytest.approx(1.3 / 1.2)
    assert host.verdict("web-3").degradation == 1.0


def test_the_method_of_the_coefficients_decides_where_an_unknown_job_stands(host):
    nice = {"vm": "nice-1", "cpi": 1.0, "job": "nice", "ls": False, "usage": 1.0}
    for version, method, names in (
        (7, "", ["scan-1", "nice-1", "odd-1"]),
        (8, "whitepanda", ["scan-1", "odd-1", "nice-1"]),
    ):
        sent = update(version)
        sent.coefficients.append(agent_pb2.Coefficient(job="nice", value=-0.5))
        for coefficient in sent.coefficients:
            coefficient.method = method
        host.store.apply(sent)
        host.run(3, VICTIM, CALM, SCAN, ODD, nice)
        found = host.suspects("web-1")
        assert [suspect.name for suspect in found] == names
        assert {suspect.name: suspect.score for suspect in found} == {"scan-1": 2.0, "nice-1": -0.5, "odd-1": None}


def test_what_is_not_latency_sensitive_is_no_victim(host):
    host.store.apply(update())
    host.run(9, {**SCAN, "cpi": 9.0}, VICTIM, CALM)
    assert host.analysis.triggered
    verdict = host.verdict("scan-1")
    assert verdict.verdict == "normal"
    assert verdict.reason.endswith("of job scan on this platform; a higher CPI counts for latency-sensitive jobs only")
    assert verdict.degradation == 4.5


def test_explanation_has_every_number_of_the_verdict(host):
    host.store.apply(update())
    host.run(9, VICTIM, CALM, SCAN, ODD)
    why = host.explain("web-1")
    n1, n2 = (3.1 - 1.2) / 0.35, (1.3 - 1.2) / 0.35
    assert why.statistics == CpiStatistics(1.2, 0.35, 1000)
    assert (why.cpi, why.victim_threshold_cpi) == (pytest.approx(3.1), pytest.approx(1.9))
    assert why.n_cpi == pytest.approx(n1)
    assert why.mn_cpi == pytest.approx((n1 + n2) / 2)
    assert why.mn_cpi_threshold == 1.0
    assert (why.victim_slots, why.triggered) == (3, True)
    assert (why.coefficient_version, why.coefficient_age_ns) == (7, 90 * S)
    assert host.suspects("web-1") == (
        SuspectView(
            "uuid-scan-1", "scan-1", "scan", pytest.approx(4.0), 0.5, pytest.approx(2.0), Reason.UNSPECIFIED, epoch="1"
        ),
        SuspectView("uuid-odd-1", "odd-1", "odd", pytest.approx(9.0), None, None, Reason.NO_COEFFICIENTS, epoch="1"),
    )


def test_a_suspect_is_not_its_own(host):
    host.store.apply(update())
    host.run(3, SCAN, ODD)
    assert [s.name for s in host.suspects("scan-1")] == ["odd-1"]


def test_trigger_needs_three_whole_slots_with_a_victim(host):
    host.store.apply(update())
    host.run(6, CALM)
    fired = []
    for _ in range(10):
        host.run(1, {**CALM, "cpi": 3.1})
        fired.append(host.analysis.triggered)
    # One hot window of three is not above 1.9 = 1.2 + 2 * 0.35: (3.1 + 1.3 + 1.3) / 3 = 1.9; two are.
    # Slots end now, 30 s and 60 s ago: the oldest has two hot windows after 2 + 6 windows.
    assert fired == [False] * 7 + [True] * 3
    host.run(3, CALM)
    assert not host.analysis.triggered


def test_different_victims_in_each_slot_trigger_too(host):
    host.store.apply(update())
    for hot in ("web-1", "web-2", "web-3"):
        host.run(3, *({"vm": vm, "cpi": 9.0 if vm == hot else 1.2} for vm in ("web-1", "web-2", "web-3")))
    assert host.analysis.triggered
    assert [host.explain(vm).victim_slots for vm in ("web-1", "web-2", "web-3")] == [0, 0, 1]


def test_cpi_of_a_slot_is_cycles_over_instructions_not_a_mean_of_ratios(host):
    host.store.apply(update())
    busy = {"vm": "web-1", "cpi": 1.0, "cycles": 3000, "instructions": 3000}
    host.run(2, busy)
    host.run(1, {"vm": "web-1", "cpi": 10.0, "cycles": 1000, "instructions": 100})
    assert host.explain("web-1").cpi == pytest.approx(7000 / 6100)


def test_cpi_without_counts_is_weighted_by_duration(host):
    host.store.apply(update(slot_s=40))
    host.now += 30 * S
    long = dataclasses.replace(window("web-1", host.now, 1.0), start_unix_ns=T0, duration_ns=30 * S)
    host.analysis.observe([long], host.now)
    host.run(1, {"vm": "web-1", "cpi": 2.0})
    assert host.explain("web-1").cpi == pytest.approx((1.0 * 30 + 2.0 * 10) / 40)


def test_windows_without_cpi_do_not_count_but_their_usage_does(host):
    host.store.apply(update())
    host.run(2, {"vm": "web-1", "cpi": None, "reason": Reason.IDLE, "usage": 0.0})
    host.run(1, {"vm": "web-1", "cpi": 2.5, "usage": 3.0}, SCAN)
    assert host.explain("web-1").cpi == pytest.approx(2.5)
    assert host.verdict("web-1").reason.startswith("CPI 2.5, limit 1.9 = ")
    host.run(1, {"vm": "scan-2", "job": "scan", "ls": False, "usage": 3.0})
    host.run(1, {"vm": "scan-2", "job": "scan", "ls": False, "usage": 0.0, "cpi": None})
    assert host.suspects("web-1")[1].cpu_usage_cores == pytest.approx(1.5)


def unknown(host, vm="web-1"):
    verdict = host.verdict(vm)
    assert verdict.verdict == "unknown"
    return verdict


def test_unknown_before_the_first_window(host):
    assert unknown(host).reason == "no CPI window of this VM yet"
    why = host.explain("web-1")
    assert (why.cpi, why.n_cpi, why.mn_cpi, why.history) == (None, None, None, ())


def test_unknown_until_central_has_sent_statistics(host):
    host.run(31, VICTIM, SCAN)
    verdict = unknown(host)
    assert verdict.reason == "no statistics for job web yet: central has not sent any"
    assert verdict.degradation is None
    assert host.explain("web-1").cpi == pytest.approx(3.1)
    assert host.suspects("web-1")[0].reason is Reason.NO_COEFFICIENTS
    assert host.analysis.mn_cpi is None
    assert not host.analysis.triggered


def test_unknown_where_the_version_lacks_the_job_on_this_platform(host):
    host.store.apply(update(web=False))
    host.run(3, VICTIM, {**VICTIM, "vm": "x", "job": "other"})
    assert unknown(host).reason == "no statistics for job web on this platform yet: version 7 has none"
    assert "job other on this platform" in unknown(host, "x").reason


def test_unknown_after_the_time_to_live(host):
    host.store.apply(update(ttl_s=3600))
    host.run(9, VICTIM, SCAN)
    assert host.verdict("web-1").verdict == "victim"
    host.now += 5400 * S
    host.run(3, VICTIM, SCAN)
    verdict = unknown(host)
    assert verdict.reason == (
        "statistics of version 7 are 1.5 h old, past their time to live of 1.0 h: central has sent no newer ones"
    )
    assert verdict.degradation is None
    assert host.analysis.suffering == {}
    suspect = host.suspects("web-1")[0]
    assert (suspect.score, suspect.reason) == (None, Reason.STALE)


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (Reason.IDLE, "idle: too little CPU over the last slot for a CPI"),
        (Reason.NO_PMU, "no CPI over the last slot: no_pmu"),
    ],
)
def test_unknown_without_a_cpi(host, reason, text):
    host.store.apply(update())
    host.run(3, {"vm": "web-1", "cpi": None, "reason": reason})
    verdict = unknown(host)
    assert (verdict.reason, verdict.degradation) == (text, None)


def test_unknown_where_the_job_never_varied(host):
    host.store.apply(update(std=0.0))
    host.run(3, VICTIM)
    verdict = unknown(host)
    assert verdict.reason == "the CPI of job web did not vary over its 1000 samples: there is no threshold"
    assert verdict.degradation == pytest.approx(3.1 / 1.2)
    assert host.analysis.mn_cpi == 0.0


def test_a_slot_that_was_hardly_watched_is_not_compared_with_whole_ones(host):
    host.store.apply(update(slot_s=300))
    host.run(3, VICTIM)
    verdict = unknown(host)
    assert verdict.reason == "watched for 30 s of a slot of 300 s: too short to compare"
    assert verdict.degradation is None
    why = host.explain("web-1")
    assert (why.cpi, why.n_cpi) == (pytest.approx(3.1), None)
    assert host.analysis.mn_cpi is None
    host.run(12, VICTIM)
    assert host.verdict("web-1").reason.startswith("CPI 3.1, limit 1.9 = ")
    assert host.verdict("web-1").degradation == pytest.approx(3.1 / 1.2)
    assert host.explain("web-1").n_cpi == pytest.approx((3.1 - 1.2) / 0.35)


def test_slots_are_as_long_as_centrals_but_never_shorter_than_a_window(host):
    host.run(1, CALM)
    assert host.analysis.slot_ns == 300 * S
    host.store.apply(update(slot_s=30))
    host.run(1, CALM)
    assert host.analysis.slot_ns == 30 * S
    host.store.apply(update(8, slot_s=5))
    host.run(1, VICTIM)
    assert host.analysis.slot_ns == WINDOW
    assert host.explain("web-1").cpi == pytest.approx(3.1)  # of that window alone


def test_windows_that_end_beside_the_grid_are_in_one_slot_each(host):
    host.store.apply(update(slot_s=10))
    for number, jitter_ms in enumerate((3, -4, 2, -1, 0, 5, -5)):
        host.now += WINDOW
        late = host.now + jitter_ms * 10**6
        host.analysis.observe([window("web-1", host.now, 3.0 + number)], late)
        assert host.explain("web-1").cpi == 3.0 + number
    assert (host.explain("web-1").victim_slots, host.analysis.triggered) == (3, True)


def test_a_restart_begins_again(host):
    host.store.apply(update())
    host.run(9, VICTIM)
    assert host.explain("web-1").victim_slots == 3
    host.run(3, {**VICTIM, "epoch": "2"})
    assert host.explain("web-1").victim_slots == 1
    assert len(host.explain("web-1").history) == 1


def test_a_vm_that_left_is_forgotten_after_the_slots_under_test(host):
    host.store.apply(update())
    host.run(3, VICTIM, SCAN)
    host.run(3, VICTIM)
    assert host.suspects("web-1") == ()
    host.run(3, VICTIM)
    assert unknown(host, "scan-1").reason == "no CPI window of this VM yet"
    host.run(9)
    assert unknown(host).reason == "no CPI window of this VM yet"
    assert host.analysis.mn_cpi is None


def test_a_clock_set_back_does_not_freeze_the_slots(host):
    host.store.apply(update(created=T0 - 7200 * S))
    host.run(9, VICTIM)
    host.now -= 3600 * S
    host.run(3, {**VICTIM, "cpi": 1.2})
    assert host.explain("web-1").cpi == pytest.approx(1.2)
    assert host.verdict("web-1").verdict == "normal"


def test_threshold_is_the_hosts_own_percentile_once_there_is_history(tmp_path):
    host = Host(tmp_path, AnalysisSection(trigger="paper", history_slots=120))
    host.store.apply(update(slot_s=10))
    host.run(101, {"vm": "web-1", "cpi": 1.9})  # nCPI 2
    assert host.analysis.mn_cpi_threshold == 1.0  # the youngest three slots are under test, no history
    host.run(2, {"vm": "web-1", "cpi": 1.9})
    assert host.analysis.mn_cpi_threshold == pytest.approx(2.0)
    host.run(2, VICTIM)
    assert host.analysis.mn_cpi_threshold == pytest.approx(2.0)
    assert not host.analysis.triggered
    host.run(1, VICTIM)
    assert host.analysis.triggered
    assert len(host.analysis._domains[0]._history) <= 120


def test_history_over_slots_of_another_length_is_dropped(host):
    host.store.apply(update(slot_s=10))
    host.run(20, CALM)
    host.store.apply(update(8, slot_s=30))
    host.run(3, CALM)
    assert len(host.analysis._domains[0]._history) == 1
    assert len(host.explain("web-2").history) == 1


def test_history_for_people_is_one_point_per_slot_oldest_first(host):
    host.store.apply(update(slot_s=10))
    for cpi in (1.0, 2.0, 3.0):
        host.run(1, {"vm": "web-1", "cpi": cpi, "usage": cpi})
    points = host.explain("web-1").history
    assert points == tuple(CpiPoint(T0 + i * WINDOW, float(i + 1), float(i + 1)) for i in range(3))
    host.run(20, CALM | {"vm": "web-1"})
    assert len(host.explain("web-1").history) == 12


def test_latency_sensitive_jobs_without_positive_score_are_not_accused(host):
    bad = update()
    bad.coefficients[0].value = -0.5
    host.store.apply(bad)
    host.run(9, VICTIM, SCAN)
    assert host.verdict("web-1").verdict == "victim"
    held = host.decisions.vm("uuid-web-1")
    assert (held.verdict, held.suspect) == ("victim", None)
    assert host.decisions.suspects("uuid-web-1")[0].score == -2.0
    assert host.reports[0].victims[0].suspect == ""


def test_memory_is_bounded_by_the_slots_under_test(host):
    host.store.apply(update())
    host.run(200, VICTIM, SCAN)
    assert all(len(vm.pieces) <= 9 for vm in host.analysis._vms.values())
    assert not math.isnan(host.analysis.mn_cpi)


def noisy(host, windows, seed, rise=0.0):
    """Let windows pass in which three VMs' CPI varies by 0.35, as their job's does; return the reports.

    `rise` of the mean, which is all web-0's: only a VM that is over its threshold suffers.
    """
    rng, before = random.Random(seed), len(host.reports)
    for _ in range(windows):
        vms = [{"vm": f"web-{n}", "cpi": 1.2 + 0.35 * rng.gauss(0, 1) / 4 + (0 if n else 3 * rise)} for n in range(3)]
        host.run(1, *vms, SCAN)
    return [report for report in host.reports[before:] if not report.ended]


@pytest.mark.long
def test_after_some_hours_the_trigger_is_the_hosts_own_noise(own_noise):
    """Below the paper's floor of 1, above this host's noise: mnCPI rises by 0.85."""
    host = own_noise
    host.store.apply(update())
    assert noisy(host, 2000, 1) == []
    assert host.analysis.mn_cpi_threshold < 0.5
    reports = noisy(host, 30, 2, rise=0.85 * 0.35)
    assert host.analysis.triggered
    assert [report.suspects[0].name for report in reports] == ["scan-1"] * len(reports)
    assert reports[0].since_unix_ns < T0 + 2007 * WINDOW
    assert all(report.mn_cpi > report.mn_cpi_threshold for report in reports)
    noisy(host, 30, 3)
    assert not host.analysis.triggered
    assert [report.ended for report in host.reports[-2:]] == [False, True]


def test_until_the_hosts_noise_is_known_only_a_rise_since_the_start_is_contention(own_noise):
    """A host that is always above the mean of the fleet would report itself after each start."""
    own_noise.store.apply(update())
    busy = {**VICTIM, "cpi": 1.95}
    own_noise.run(40, busy, {**busy, "vm": "web-2", "cpi": 1.6}, SCAN)
    assert own_noise.explain("web-1").mn_cpi > 1
    assert (own_noise.analysis.triggered, own_noise.reports) == (False, [])
    limit = own_noise.analysis.mn_cpi_threshold
    assert limit == pytest.approx(1 + own_noise.explain("web-1").mn_cpi)
    own_noise.run(12, VICTIM, SCAN)
    assert own_noise.analysis.triggered


def test_a_rise_since_the_start_is_contention_while_it_lasts(own_noise):
    own_noise.store.apply(update())
    own_noise.run(12, {**VICTIM, "cpi": 1.2}, SCAN)
    own_noise.run(9, VICTIM, SCAN)
    assert own_noise.analysis.triggered
    own_noise.run(200, VICTIM, SCAN)  # what it rose from stays known
    assert own_noise.analysis.triggered
    assert own_noise.analysis.mn_cpi_threshold == 1.0


def test_slots_that_last_a_little_longer_now_and_then_keep_their_history(own_noise):
    """Windows as long as slots, as in the demonstration: the longest one is the slot."""
    own_noise.store.apply(update(slot_s=10))
    for step in range(14):
        own_noise.now += WINDOW
        made = window("web-1", own_noise.now, 1.2 if step < 8 else 3.1)
        made = dataclasses.replace(made, duration_ns=WINDOW + step % 3 * 10**7)
        own_noise.analysis.observe([made], own_noise.now)
    assert own_noise.analysis.triggered
    assert len(own_noise.explain("web-1").history) > 8


def test_the_papers_rule_stays_selectable(tmp_path):
    host = Host(tmp_path, AnalysisSection(trigger="paper"))
    host.store.apply(update())
    noisy(host, 400, 1)
    assert host.analysis.mn_cpi_threshold == 1.0
    assert noisy(host, 30, 2, rise=0.85 * 0.35) == []


def test_a_new_version_of_the_statistics_is_no_rise_since_the_start(own_noise):
    own_noise.store.apply(update())
    own_noise.run(40, {**VICTIM, "cpi": 1.3}, SCAN)
    lower = update(8)
    for row in lower.statistics:
        row.mean_cpi -= 0.4  # nCPI is higher by 1.14 from here on
    own_noise.store.apply(lower)
    for _ in range(12):
        own_noise.run(1, {**VICTIM, "cpi": 1.6}, SCAN)
        assert not own_noise.analysis.triggered
    assert own_noise.verdict("web-1").reason.startswith("CPI 1.6, limit 1.5 = ")
    assert own_noise.analysis.mn_cpi_threshold == pytest.approx(1 + 0.5 / 0.35)


def test_a_new_version_of_the_statistics_is_no_contention(own_noise):
    host = own_noise
    host.store.apply(update())
    noisy(host, 400, 1)
    lower = update(8)
    for row in lower.statistics:
        row.mean_cpi -= 0.7  # nCPI is higher by 2 from here on
    host.store.apply(lower)
    assert noisy(host, 60, 4) == []
    assert host.analysis.mn_cpi_threshold > 2.0


def test_a_window_that_was_hardly_watched_is_no_sign(own_noise):
    host = own_noise
    host.store.apply(update())
    noisy(host, 400, 1)
    for _ in range(12):
        host.now += WINDOW
        odd = dataclasses.replace(window("web-0", host.now, 9.0), duration_ns=WINDOW // 10)
        host.analysis.observe(
            [odd, window("web-1", host.now), window("scan-1", host.now, job="scan", ls=False)], host.now
        )
    assert not host.analysis.triggered
