"""The one decision on each VM and on the host: what it follows from, whom it blames; every view says the same."""

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse

from agent.analysis.advice.recommendations import HostLimits
from agent.analysis.contention.normalised_cpi import CpiStatistics
from agent.analysis.verdict import Degradation, Verdict
from agent.antagonists.advisor import Advisor
from agent.antagonists.decide_victims import Decisions, verdict_of
from agent.antagonists.host_analysis import CpiVerdict, Explanation, JudgedSlot
from agent.api.messages import explanation_message, vms_message
from agent.api.prometheus_text import render
from agent.api.state import Snapshot, VmSnapshot
from agent.cli import vms as vms_command
from agent.config import AgentConfig, AgentSection, AnalysisSection, CloudWhiteSection
from agent.detection.decision_types import VERDICTS, Reasoning, SuspectView
from agent.display import explanation
from agent.display.words import host_line
from agent.top.columns import row_of
from agent.uplink.messages import event_message, trigger_message
from collector.base import Reason
from tests.unit.agent.api.test_metrics_server import RATES
from tests.unit.agent.canned_agents import HOST, State, canned_vm
from whitepanda.v1 import agent_pb2, host_pb2

S = 10**9
NOW = 1_800_000_000 * S
SURE, PERHAPS = Degradation(1.6, 1.3, 2.0, model="m"), Degradation(1.2, 0.9, 1.6, model="m")
UNTOLD = Degradation(cannot_tell="out_of_range:ipc")
BY_CPI = Degradation(2.0, 1.5, 3.0, model="cpi")


class Own:
    """The host's own analysis, as far as it is asked. `finds`: behaviour, estimate and culprits by UUID."""

    detector = "noise_scaled"

    def __init__(self, **finds):
        self.finds = finds

    def _of(self, uuid):
        return self.finds.get(uuid, ("unknown", None, ()))

    def behaviour(self, uuid):
        return self._of(uuid)[0]

    def estimate(self, uuid):
        behaviour, estimate, _ = self._of(uuid)
        return estimate if behaviour == "victim" else None

    def verdict(self, uuid):
        behaviour, _, culprits = self._of(uuid)
        reason = f"by the host: {behaviour}"
        return Verdict(
            behaviour, reason, 5, culprits=culprits if behaviour == "victim" else (), degradation=self.estimate(uuid)
        )

    def since_ns(self, verdict):
        return verdict.since_ns

    def explain(self, uuid):
        verdict = self.verdict(uuid)
        estimate = None if verdict.behaviour == "inflicting" else self._of(uuid)[1]
        return Reasoning(self.detector, replace(verdict, degradation=estimate), ())


class Fleet:
    """The analysis by the fleet's statistics, as far as it is asked.

    `scored`: what it ranks, the highest score first; `normal`: UUIDs that it finds as usual.
    """

    slot_ns = 300 * S
    coefficient_version = 7

    def __init__(self, suffering=(), scored=(), normal=(), triggered=None, mn_cpi=1.5, threshold=1.0):
        self.suffering = dict(suffering)
        self.scored, self.normal = tuple(scored), tuple(normal)
        self.triggered = bool(self.suffering) if triggered is None else triggered
        self.mn_cpi, self.mn_cpi_threshold = mn_cpi, threshold

    def verdict(self, uuid):
        if uuid in self.suffering:
            return CpiVerdict("victim", "CPI 3.1 exceeds 1.9", 2.0)
        if uuid in self.normal:
            return CpiVerdict("normal", "CPI 1.2 is within 1.9", 1.0)
        return CpiVerdict("unknown", "no CPI window of this VM yet")

    def suspects(self, _uuid):
        return self.scored

    def suspect(self, uuid):
        return next((one for one in self.scored if one.uuid == uuid), None)

    def first_suspect(self, uuid):
        others = [one for one in self.scored if one.uuid != uuid]
        return max(others, key=lambda one: -math.inf if one.score is None else one.score, default=None)

    def slot(self, uuid):
        return JudgedSlot(3.1, 5.0, 1.9, 2.0) if uuid in self.suffering else None

    def job_mean_cpi(self, _uuid):
        return 1.2

    def explain(self, uuid):
        slot = self.slot(uuid)
        return Explanation(
            statistics=CpiStatistics(1.2, 0.35, 1000),
            cpi=slot.cpi if slot else None,
            n_cpi=slot.n_cpi if slot else None,
            victim_threshold_cpi=1.9,
            mn_cpi=self.mn_cpi,
            mn_cpi_threshold=self.mn_cpi_threshold,
            victim_slots=0,
            coefficient_version=7,
            coefficient_age_ns=S,
            history=(),
            triggered=self.triggered,
        )


def suspect(name, score=None):
    reason = Reason.NO_COEFFICIENTS if score is None else Reason.UNSPECIFIED
    return SuspectView(name, f"name-{name}", "scan", 4.0, 0.5, score, reason, epoch="e")


def view(uuid, *, epoch="e", state="running"):
    metrics = (host_pb2.Metric(name="cpu_usage_cores", value=2.0),)
    return canned_vm(f"name-{uuid}", "web", metrics, state=state, uuid=uuid, epoch=epoch)


class Host:
    """Decides second by second; what the analyses find is set between the ticks."""

    def __init__(self, own=None, fleet=None, *, vms=("web", "scan"), **analysis):
        config = AgentConfig(
            agent=AgentSection(),
            analysis=AnalysisSection(**analysis),
            cloud_white=CloudWhiteSection(event_interval_s=0.0),
        )
        self.it = Decisions(config, own, fleet)
        self.vms = {uuid: view(uuid) for uuid in vms}
        self.second = 0

    def tick(self, seconds=1, own=None, fleet=None):
        self.it.cloud_white = own or self.it.cloud_white
        self.it.analysis = fleet or self.it.analysis
        for _ in range(seconds):
            self.second += 1
            self.it.tick(self.vms.values(), (1000 + self.second) * S, NOW + self.second * S)
        return self.it.vm("web")

    def report(self):
        return self.it.report(NOW + self.second * S)


# --- a VM's verdict


def at(low, ratio=1.4):
    return Degradation(ratio, low, 2.0, model="m")


@pytest.mark.parametrize(
    ("behaviour", "known", "waited_for", "was", "verdict"),
    [
        *((word, None, True, "victim", word) for word in ("steady", "inflicting", "unknown")),
        *((word, None, False, "affected", word) for word in ("steady", "inflicting", "unknown")),
        # By the evidence, where no slow-down is known.
        ("victim", [], True, "steady", "victim"),
        ("steady", [], True, "steady", "victim"),
        # The lower end is above the limit, or it is not.
        ("victim", [at(1.2)], True, "steady", "victim"),
        ("victim", [at(1.0501)], True, "steady", "victim"),
        ("victim", [at(1.05)], True, "steady", "affected"),
        ("victim", [at(0.9)], True, "steady", "affected"),
        # One that can be sure is enough, whichever it is, and whatever else the VM does.
        ("victim", [at(0.9), at(1.2)], True, "steady", "victim"),
        ("victim", [at(1.2), at(0.9)], True, "steady", "victim"),
        ("victim", [at(0.9), at(1.0)], True, "steady", "affected"),
        *((word, [at(1.2)], True, "steady", "victim") for word in ("steady", "inflicting", "unknown")),
        *((word, [at(1.0)], True, "steady", "affected") for word in ("steady", "inflicting", "unknown")),
        # A victim stays one while an estimate itself is above the limit; who was none does not become one by that.
        ("victim", [at(0.8)], True, "victim", "victim"),
        ("victim", [at(0.8, 1.05), at(0.9, 1.0501)], True, "victim", "victim"),
        ("victim", [at(0.8, 1.05)], True, "victim", "affected"),
        *(("victim", [at(0.8)], True, was, "affected") for was in ("affected", "inflicting", "unknown")),
        # Nobody waits for it.
        *(("victim", known, False, was, "affected") for known in ([], [at(3.0)]) for was in ("steady", "victim")),
    ],
)
def test_the_verdict_on_a_vm(behaviour, known, waited_for, was, verdict):
    assert verdict_of(behaviour, known, 1.05, alert=waited_for, was=was) == verdict


def test_the_limit_is_the_configured_one():
    assert Host(Own(web=("victim", SURE, ())), least_slow_down=1.05).tick().verdict == "victim"
    assert Host(Own(web=("victim", SURE, ())), least_slow_down=1.3).tick().verdict == "affected"


def test_a_victim_does_not_flicker_with_the_noise_of_the_interval():
    host = Host()
    seen = ((1.04, 1.4), (1.06, 1.4), (0.8, 1.4), (1.06, 1.4), (0.7, 1.06), (0.6, 1.05), (1.04, 1.4), (1.06, 1.4))
    verdicts = [host.tick(own=Own(web=("victim", at(low, ratio), ()))).verdict for low, ratio in seen]
    assert verdicts == ["affected", *["victim"] * 4, "affected", "affected", "victim"]
    assert host.it.since_ns(host.it.vm("web")) == 0
    assert host.it.since_ns(host.tick(5)) == 5 * S


def test_the_reason_has_what_each_analysis_that_finds_it_says_and_why_it_is_no_victim():
    own, fleet = Own(web=("victim", SURE, ())), Fleet({"web": BY_CPI})
    held = Host(own, fleet).tick()
    assert (held.verdict, held.found_by) == ("victim", ("host", "fleet"))
    assert held.reason == "by the host: victim; CPI 3.1 exceeds 1.9"
    held = Host(Own(), fleet).tick()
    assert (held.reason, held.found_by) == ("CPI 3.1 exceeds 1.9", ("fleet",))
    held = Host(Own(web=("victim", PERHAPS, ()))).tick()
    assert (held.verdict, held.found_by) == ("affected", ("host",))
    assert held.reason == "by the host: victim; the slow-down may be less than 1.05x"


def test_for_a_vm_that_nobody_waits_for_nobody_is_alerted():
    host = Host(Own(web=("victim", SURE, ("scan",))), Fleet({"web": BY_CPI}))
    host.vms["web"].alert = False
    held = host.tick()
    assert (held.verdict, held.slow_down, held.suspect.uuid) == ("affected", SURE, "scan")
    assert held.reason.endswith("; its job has no alerts (a job rule's `alert` sets which have)")
    assert (host.it.host.victims, host.it.host.affected, host.report()) == ((), 1, None)
    host.vms["web"].alert = True  # its name has changed, or its facts
    assert host.tick().verdict == "victim"


@pytest.mark.parametrize("state", ["paused", "shutoff"])
def test_of_a_vm_that_does_not_run_nothing_is_held(state):
    host = Host(Own(web=("victim", SURE, ("scan",)), scan=("inflicting", None, ())), Fleet({"web": BY_CPI}))
    host.tick()
    for vm in host.vms.values():
        vm.identity.state = state
    held = host.tick(fleet=Fleet({"web": BY_CPI}, normal=("scan",)))
    assert (held.verdict, held.found_by, held.slow_down, held.suspects) == ("unknown", (), None, ())
    assert {(one.verdict, one.reason) for one in map(host.it.vm, host.vms)} == {("unknown", "it does not run")}
    assert (host.it.host.victims, host.it.host.affected, host.it.host.inflicting) == ((), 0, 0)
    assert host.it.hurt_by("scan") == ()


def test_where_neither_finds_anything_the_hosts_word_counts_else_the_fleets():
    fleet = Fleet(normal=("web",))
    for own, analysis, verdict, reason in (
        (Own(web=("steady", None, ())), fleet, "steady", "by the host: steady"),
        (Own(web=("inflicting", None, ())), fleet, "steady", "by the host: inflicting"),
        (Own(), fleet, "steady", "CPI 1.2 is within 1.9"),
        (Own(), Fleet(), "unknown", "by the host: unknown"),
        (None, fleet, "steady", "CPI 1.2 is within 1.9"),
        (None, Fleet(), "unknown", "no CPI window of this VM yet"),
        (Own(), None, "unknown", "by the host: unknown"),
        (None, None, "unknown", "the host's own analysis is off"),
    ):
        held = Host(own, analysis).tick()
        assert (held.verdict, held.reason, held.found_by) == (verdict, reason, ())
    assert Host().it.vm("nobody").reason == "not judged yet: it has had no tick"


@pytest.mark.parametrize(
    ("own", "fleet", "verdict"),
    [
        (Own(scan=("inflicting", None, ())), Fleet(), "steady"),  # it does more than usual, and nobody suffers
        (Own(scan=("inflicting", None, ()), web=("victim", SURE, ())), Fleet(), "inflicting"),
        (Own(scan=("inflicting", None, ())), Fleet({"web": BY_CPI}), "inflicting"),
    ],
)
def test_a_vm_inflicts_only_where_someone_suffers(own, fleet, verdict):
    host = Host(own, fleet)
    host.tick()
    assert host.it.vm("scan").verdict == verdict
    assert host.it.host.inflicting == (verdict == "inflicting")


# --- its slow-down


def test_an_estimate_counts_for_30_s_where_it_is_unknown_any_more_and_is_shown_for_5():
    host = Host()
    assert host.tick(own=Own(web=("victim", PERHAPS, ()))).verdict == "affected"
    held = host.tick(5, own=Own(web=("victim", UNTOLD, ())))
    assert (held.verdict, held.slow_down) == ("affected", PERHAPS)
    held = host.tick(25)
    assert (held.verdict, held.slow_down) == ("affected", UNTOLD)
    held = host.tick()
    assert (held.verdict, held.slow_down) == ("victim", UNTOLD)  # by the evidence
    held = host.tick(own=Own(web=("victim", SURE, ())))
    assert host.tick(5, own=Own(web=("victim", None, ()))).slow_down == SURE
    assert host.tick().slow_down.cannot_tell == "no_model"
    # The CPI of now, rather than a latency of before.
    host.tick(own=Own(web=("victim", SURE, ())))
    held = host.tick(6, own=Own(web=("victim", UNTOLD, ())), fleet=Fleet({"web": BY_CPI}))
    assert (held.verdict, held.slow_down) == ("victim", BY_CPI)


def test_an_estimate_that_was_not_shown_is_not_shown_once_it_is_of_before():
    host = Host(Own(web=("victim", UNTOLD, ())), Fleet({"web": BY_CPI}))
    host.tick()
    assert host.tick(own=Own(web=("victim", SURE, ()))).slow_down == BY_CPI
    host.tick(6, own=Own(web=("victim", UNTOLD, ())))
    held = host.tick(fleet=Fleet())
    assert (held.verdict, held.slow_down) == ("victim", UNTOLD)


@pytest.mark.parametrize("between", ["recovered", "started anew", "gone"])
def test_an_estimate_of_another_time_does_not_count(between):
    host = Host(Own(web=("victim", PERHAPS, ())))
    host.tick()
    if between == "recovered":
        host.tick(own=Own(web=("steady", None, ())))
    elif between == "started anew":
        host.vms["web"] = view("web", epoch="e2")
    else:
        vm = host.vms.pop("web")
        host.tick()
        host.vms["web"] = vm
    held = host.tick(own=Own(web=("victim", UNTOLD, ())))
    assert (held.verdict, held.slow_down) == ("victim", UNTOLD)
    assert host.it.since_ns(held) == 0


def test_the_slow_down_is_the_hosts_own_where_that_is_sure_else_the_one_that_is():
    for own, fleet, shown in (
        (SURE, BY_CPI, SURE),
        (PERHAPS, BY_CPI, BY_CPI),
        (PERHAPS, Degradation(1.1, 1.0, 1.4, model="cpi"), PERHAPS),  # neither is: the higher one
        (PERHAPS, Degradation(1.3, 0.8, 1.4, model="cpi"), Degradation(1.3, 0.8, 1.4, model="cpi")),
        (UNTOLD, BY_CPI, BY_CPI),
        (UNTOLD, None, UNTOLD),
        (UNTOLD, Degradation(cannot_tell="no_baseline", model="cpi"), UNTOLD),
    ):
        host = Host(Own(web=("victim", own, ())), Fleet({"web": fleet} if fleet else {}))
        assert host.tick().slow_down == shown


def test_a_victim_that_stays_one_shows_the_slow_down_that_keeps_it_one():
    host = Host(Own(web=("victim", SURE, ())))
    host.tick()
    keeps = Degradation(1.3, 1.04, 1.8, model="cpi")
    below = Degradation(1.05, 0.9, 1.6, model="m")
    held = host.tick(own=Own(web=("victim", below, ())), fleet=Fleet({"web": keeps}))
    assert (held.verdict, held.slow_down) == ("victim", keeps)


def test_the_slow_down_stays_of_the_same_one_while_that_speaks_for_the_verdict():
    by_cpi, by_cpi_below = Fleet({"web": BY_CPI}), Fleet({"web": Degradation(1.04, 1.0, 1.4, model="cpi")})
    host = Host()
    for own, fleet, verdict, shown in (
        (SURE, None, "victim", SURE),
        (PERHAPS, by_cpi, "victim", PERHAPS),  # the noise of the interval
        (SURE, by_cpi, "victim", SURE),
        (Degradation(1.04, 0.9, 1.4, model="m"), by_cpi, "victim", BY_CPI),  # it would not be one by that
        (SURE, by_cpi, "victim", BY_CPI),
        (SURE, by_cpi_below, "victim", SURE),
        (PERHAPS, None, "victim", PERHAPS),
        (UNTOLD, None, "victim", PERHAPS),  # that of a moment ago
    ):
        held = host.tick(own=Own(web=("victim", own, ())), fleet=fleet or Fleet())
        assert (held.verdict, held.slow_down) == (verdict, shown)


def test_who_becomes_a_victim_shows_the_slow_down_that_made_it_one():
    host = Host(Own(web=("victim", PERHAPS, ())))
    assert (host.tick().verdict, host.tick().slow_down) == ("affected", PERHAPS)
    held = host.tick(fleet=Fleet({"web": BY_CPI}))
    assert (held.verdict, held.slow_down) == ("victim", BY_CPI)


@given(
    st.lists(
        st.tuples(
            st.sampled_from((SURE, PERHAPS, UNTOLD, Degradation(1.04, 0.9, 1.4, model="m"))),
            st.sampled_from((None, BY_CPI, Degradation(1.2, 0.9, 1.4, model="cpi"))),
        ),
        min_size=2,
        max_size=12,
    ),
    st.booleans(),
)
def test_another_slow_down_is_shown_only_where_the_one_before_does_not_speak_for_the_verdict(seconds, alert):
    host, before, was, last_own, age_s = Host(), None, "unknown", None, 0
    host.vms["web"].alert = alert
    for own, by_cpi in seconds:
        age_s = 0 if own.is_known else age_s + 1
        held = host.tick(own=Own(web=("victim", own, ())), fleet=Fleet({"web": by_cpi} if by_cpi else {}))
        shown, last_own = held.slow_down, own if own.is_known else last_own if age_s <= 5 else None
        if held.verdict == "victim" and shown.is_known:
            assert shown.low > 1.05 or (was == "victim" and shown.ratio > 1.05)
        if before is not None and before.is_known and shown.is_of_cpi != before.is_of_cpi:
            same = by_cpi if before.is_of_cpi else last_own
            speaks = same is not None and (same.low > 1.05 or (was == "victim" and same.ratio > 1.05))
            assert not speaks
            assert same is None or held.verdict == "victim"
        before, was = shown, held.verdict


# --- suspects


def test_who_is_found_by_both_comes_first_then_the_hosts_then_scores_and_never_the_vm_itself():
    scored = [suspect(name, score) for name, score in SCORED]
    culprits = ("only-host", "web", "both", "gone")
    host = Host(Own(web=("victim", SURE, culprits)), Fleet(scored=scored), vms=("web", "only-host", "both", "high"))
    held = host.tick()
    ranked = host.it.suspects("web")
    assert [one.uuid for one in ranked] == ["both", "only-host", "high", "lower", "nice", "odd"]
    assert [one.inflicts for one in ranked] == [True, True, *[False] * 4]
    assert [one.is_blamed for one in ranked] == [*[True] * 4, False, False]
    assert held.suspects == ranked[:2]  # those that inflict
    found = ranked[1]
    assert (found.name, found.job, found.epoch, found.cpu_usage_cores) == ("name-only-host", "web", "e", 2.0)
    assert (found.score, found.coefficient, found.reason) == (None, None, Reason.NO_COEFFICIENTS)
    assert host.it.host.suspects == ranked


def test_of_those_that_inflict_the_one_with_the_highest_score_comes_first():
    """Who has just begun to do a little more is not blamed before who hurts most, whatever the host's order."""
    culprits = ("bystander", "antagonist", "unscored")
    scored = [suspect("antagonist", 3.1), suspect("bystander", 0.8)]
    host = Host(Own(web=("victim", SURE, culprits)), Fleet(scored=scored), vms=("web", *culprits))
    held = host.tick()
    assert [one.uuid for one in held.suspects] == ["antagonist", "bystander", "unscored"]
    assert host.it.host.suspect.uuid == "antagonist"


def test_without_one_that_inflicts_the_first_by_score_is_named_alone():
    host = Host(Own(), Fleet({"web": BY_CPI}, scored=[suspect("web", 9.0), suspect("a", 2.0), suspect("b", 1.0)]))
    assert [one.uuid for one in host.tick().suspects] == ["a"]
    assert [one.uuid for one in host.it.suspects("web")] == ["a", "b"]


SCORED = (("high", 3.0), ("web", 2.5), ("lower", 2.0), ("both", 1.0), ("nice", -1.0), ("odd", None))


def test_the_strongest_culprit_comes_first_and_the_host_blames_whom_most_victims_blame():
    host = Host(
        Own(web=("victim", SURE, ("a", "b")), db=("victim", SURE, ("b",)), mq=("victim", PERHAPS, ("c", "c2"))),
        vms=("web", "db", "mq", "a", "b", "c", "c2"),
    )
    host.tick()
    assert [one.uuid for one in host.it.vm("web").suspects] == ["a", "b"]
    assert [one.uuid for one in host.it.host.suspects] == ["b", "a"]  # mq is affected only
    assert host.it.hurt_by("b") == ("web", "db")
    assert host.it.hurt_by("c") == ("mq",)


def test_nobody_is_blamed_against_whom_nothing_speaks():
    host = Host(Own(web=("victim", SURE, ())), Fleet(scored=[suspect("nice", -1.0), suspect("odd")]))
    held = host.tick()
    assert (held.suspect, held.suspects, host.it.host.suspect) == (None, (), None)
    assert len(host.it.suspects("web")) == len(host.it.host.suspects) == 2
    assert host.report().victims[0].suspect == ""


def test_a_victim_that_could_be_a_suspect_is_not_the_hosts_for_itself():
    """A VM without a rule can be both: a victim, and one of those that are ranked."""
    host = Host(Own(web=("victim", SURE, ())), Fleet(scored=[suspect("web", 9.0), suspect("scan", 2.0)]))
    host.tick()
    assert host.it.host.suspect.uuid == host.it.vm("web").suspect.uuid == "scan"
    host.tick(own=Own(web=("victim", SURE, ()), scan=("victim", SURE, ())))  # of two one may be the other's
    assert [host.it.vm(uuid).suspect.uuid for uuid in ("web", "scan")] == ["scan", "web"]


# --- reports


def test_a_report_comes_at_once_then_once_per_slot_and_its_end_once():
    host = Host(Own(web=("victim", SURE, ("scan",)), db=("victim", PERHAPS, ())), vms=("web", "db", "scan"))
    assert host.report() is None  # nothing was decided yet
    reported = []
    for _ in range(700):
        host.tick()
        reported += [(host.second, one) for one in [host.report()] if one is not None]
    assert [second for second, _ in reported] == [1, 301, 601]
    first = reported[0][1]
    (victim,) = first.victims
    assert (victim.vm, victim.slow_down, victim.suspect, victim.found_by) == ("web", SURE, "scan", ("host",))
    assert (first.found_by, first.affected, first.since_unix_ns) == (("host",), 1, first.unix_ns)
    assert math.isnan(first.mn_cpi) and math.isnan(first.mn_cpi_threshold) and math.isnan(victim.cpi)
    assert not host.it.has_news or host.it.events.take()
    host.tick(own=Own(web=("steady", None, ())))
    host.it.events.take()
    assert host.it.has_news
    end = host.report()
    assert (end.ended, end.victims, end.suspects) == (True, (), ())
    assert end.since_unix_ns == first.unix_ns
    assert not host.it.has_news
    for _ in range(700):
        host.tick()
        assert host.report() is None
    host.tick(own=Own(web=("victim", SURE, ())))
    assert (host.report().since_unix_ns, host.report()) == (NOW + host.second * S, None)


def test_another_first_suspect_is_reported_at_once_and_other_victims_after_a_minute():
    host = Host(vms=("web", "db", "scan", "bully"))
    one = Own(web=("victim", SURE, ("scan",)))
    other = Own(web=("victim", SURE, ("bully", "scan")))
    both = Own(web=("victim", SURE, ("bully", "scan")), db=("victim", SURE, ()))
    reported = []
    for seconds, own in ((5, one), (5, other), (100, both), (300, other)):
        for _ in range(seconds):
            host.tick(own=own)
            if (report := host.report()) is not None:
                reported.append((host.second, [v.vm for v in report.victims], report.suspects[0].uuid))
    assert reported == [
        (1, ["web"], "scan"),
        (6, ["web"], "bully"),
        (66, ["db", "web"], "bully"),  # 60 s after the last, not at once
        (126, ["web"], "bully"),
    ]


def test_the_end_is_reported_also_where_the_vm_has_gone():
    host = Host(Own(web=("victim", SURE, ())))
    host.tick()
    assert host.report() is not None
    host.vms.clear()
    host.tick()
    assert host.report().ended
    assert host.report() is None


def test_a_clock_that_was_set_back_does_not_silence_the_host():
    host = Host(Own(web=("victim", SURE, ())))
    host.tick()
    assert host.report() is not None
    back = host.it.report(NOW - 3600 * S)
    assert (back.unix_ns, back.since_unix_ns) == (NOW - 3600 * S, NOW - 3600 * S)
    assert host.it.report(NOW - 3500 * S) is None
    assert host.it.report(NOW - 3300 * S) is not None


def test_the_worst_victims_come_first_and_those_whose_slow_down_is_not_known_last():
    slow = {f"vm{n}": ("victim", one, ()) for n, one in enumerate((UNTOLD, SURE, replace(SURE, ratio=3.0), SURE))}
    host = Host(Own(**slow), vms=tuple(slow)[::-1])
    host.tick()
    assert [one.vm for one in host.report().victims] == ["vm2", "vm1", "vm3", "vm0"]


# --- every view says the same

NAMES = [f"vm{n}" for n in range(5)]
ratios = st.one_of(st.floats(0.3, 9.0), st.sampled_from([1.0, 1.05, math.nan, math.inf]))
untold = st.builds(lambda why: Degradation(cannot_tell=why), st.sampled_from(["no_model", "missing:ipc", "failed"]))
estimates = st.one_of(st.none(), untold, st.builds(lambda *ends: Degradation(*ends, model="m"), ratios, ratios, ratios))
by_cpi = st.builds(lambda *ends: Degradation(*ends, model="cpi"), ratios, ratios, ratios)
culprits = st.lists(st.sampled_from([*NAMES, "gone"]), max_size=4, unique=True).map(tuple)
behaviours = st.sampled_from(["unknown", "steady", "inflicting", "victim", "victim"])
owns = st.fixed_dictionaries(dict.fromkeys(NAMES, st.tuples(behaviours, estimates, culprits))).map(
    lambda finds: Own(**finds)
)
scores = st.one_of(st.none(), st.floats(-3, 9))
ranked = st.dictionaries(st.sampled_from([*NAMES, "host:backup"]), scores).map(
    lambda found: sorted(
        (suspect(*one) for one in found.items()), key=lambda one: -math.inf if one.score is None else -one.score
    )
)


@st.composite
def fleets(draw):
    """As `HostAnalysis` finds: nobody suffers without contention."""
    triggered = draw(st.booleans())
    suffering = draw(st.dictionaries(st.sampled_from(NAMES), by_cpi)) if triggered else {}
    return Fleet(
        suffering,
        draw(ranked),
        draw(st.sets(st.sampled_from(NAMES))),
        triggered,
        draw(st.one_of(st.none(), st.floats(-1, 3))),
        draw(st.floats(0.5, 2)),
    )


def rendered(piece):
    if isinstance(piece, explanation.Grid):
        return "\n".join(" ".join(cell.plain for cell in row) for row in piece.rows)
    return piece.plain


class Views:
    """What each view says of a host."""

    def __init__(self, host):
        self.decisions = host.it
        views = [view(uuid, state=vm.identity.state) for uuid, vm in host.vms.items()]
        self.state = State(HOST, views, host.it.analysis, host.it.cloud_white)
        self.state.decisions = host.it
        self.state.advisor = Advisor(self.state, NoCoefficients(), HostLimits())
        self.answer = vms_message(self.state)
        self.vms = {vm.uuid: vm for vm in self.answer.vms}
        columns, rows = vms_command._table(list(self.answer.vms))
        titles = [column.title for column in columns]
        self.table = {row[0].plain: dict(zip(titles, (c.plain for c in row), strict=True)) for row in rows}
        status = self.state.host()
        self.footer = "\n".join(line.plain for line in vms_command._footer(self.answer, status, "now"))
        snapshots = tuple(VmSnapshot(v.identity, v.job, RATES, decision=host.it.vm(v.identity.uuid)) for v in views)
        page = render(Snapshot(HOST, snapshots))[0].decode()
        self.samples = {}
        for family in parse(page):
            for sample in family.samples:
                if sample.value and "vm" in sample.labels:
                    self.samples.setdefault((sample.name, sample.labels["vm"]), []).append(sample)
        self.explained = {}
        for one in views:
            reported = explanation_message(self.state, one.identity.uuid)
            parts = (explanation.head, explanation.found_here, explanation.numbers, explanation.arithmetic)
            parts += (explanation.suspects, explanation.recommended)
            self.explained[one.identity.uuid] = "\n".join(rendered(piece) for part in parts for piece in part(reported))

    def said(self, uuid):
        """The verdict, and the first suspect's name ("" nobody), as each view has them."""
        vm, name, text = self.vms[uuid], f"name-{uuid}", self.explained[uuid]
        row, in_table = row_of(vm, {}), self.table[name]
        verdict = text.splitlines()[2].partition(":")[0].partition(" for ")[0]
        blamed = re.search(r"^first suspect (\S+?)(?:,|$)", text, re.MULTILINE)
        shown = in_table.get("BY", "-").partition(" +")[0]
        behaviour = [one.labels["behaviour"] for one in self.samples.get(("whitepanda_vm_behaviour", uuid), ())]
        return {
            "vms": (in_table["VERDICT"].split()[-1], "" if shown == "-" else shown),
            "top": (row.word.text, row.by.partition(" +")[0]),
            "explain": (verdict, blamed[1] if blamed else ""),
        }, (behaviour or ["unknown"])[0]


class NoCoefficients:
    """`agent.antagonists.advisor.Coefficients` that knows none."""

    def coefficient(self, _job, _now):
        return None


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(
    finds=st.lists(st.tuples(st.one_of(st.none(), owns), st.one_of(st.none(), fleets())), min_size=1, max_size=3),
    present=st.sampled_from([1, 3, 5, 5]),
    alert=st.lists(st.booleans(), min_size=len(NAMES), max_size=len(NAMES)),
    states=st.lists(
        st.sampled_from(["running", "running", "running", "paused"]), min_size=len(NAMES), max_size=len(NAMES)
    ),
)
def test_every_view_names_the_same_verdict_and_the_same_first_suspect(finds, present, alert, states):
    host = Host(vms=NAMES[:present])
    for vm, waited_for, state in zip(host.vms.values(), alert, states, strict=False):
        vm.alert, vm.identity.state = waited_for, state
    for own, fleet in finds:
        host.it.cloud_white, host.it.analysis = own, fleet
        host.tick()
        report = host.report()
    views = Views(host)
    held = {uuid: host.it.vm(uuid) for uuid in host.vms}
    victims = {uuid for uuid, one in held.items() if one.verdict == "victim"}

    for uuid, one in held.items():
        first = one.suspect.name if one.suspect else ""
        runs = host.vms[uuid].identity.state == "running"
        said, behaviour = views.said(uuid)
        word = one.verdict if runs else "paused"
        assert said["vms"] == said["top"] == (word, first)
        assert said["explain"] == (one.verdict if runs else "paused", first)
        assert behaviour == one.verdict
        assert ("whitepanda_vm_victim", uuid) in views.samples or uuid not in victims
        blamed = [s.labels["suspect_name"] for s in views.samples.get(("whitepanda_vm_suspect", uuid), ())]
        assert blamed == ([first] if uuid in victims and first else [])
        # What its last event says is what is held now, with the same first suspect where that has not changed since.
        reported = host.it.events.of(uuid)
        said_last = reported[-1].behaviour if reported else "unknown"
        if one.verdict in ("victim", "affected", "inflicting"):
            assert said_last == one.verdict
        else:
            assert said_last in ("unknown", "steady")
        if reported and reported[-1].unix_ns == NOW + host.second * S:
            assert list(reported[-1].culprits[:1]) == ([one.suspect.uuid] if one.suspect else [])
            assert (reported[-1].found_by, reported[-1].reason) == (one.found_by, one.reason)
        for event in reported:
            assert agent_pb2.Behaviour.Name(event_message(event).behaviour) == f"BEHAVIOUR_{event.behaviour.upper()}"
        # No text says of the same thing that it is and that it is not.
        text = views.explained[uuid]
        assert not ("above" in text and "no contention" in text)
        if "fleet" in one.found_by:
            assert "no contention" not in text
        assert one.uuid not in [each.uuid for each in one.suspects]
        assert len({each.uuid for each in one.suspects}) == len(one.suspects)
        if one.verdict == "victim" and one.slow_down.is_known:
            assert max(one.slow_down.ratio, one.slow_down.low) > 1  # made-up intervals may be upside down
        assert one.verdict in VERDICTS
        assert (one.verdict in ("victim", "affected")) == bool(one.found_by) == (one.slow_down is not None)

    assert {one.uuid for one in host.it.host.victims} == victims
    assert views.answer.decision.victims == len(victims)
    assert {name for name, row in views.table.items() if row["VERDICT"].endswith("victim")} == {
        f"name-{uuid}" for uuid in victims
    }
    blamed = host.it.host.suspect
    line = host_line(views.answer)
    assert (line in views.footer) and bool(line) == bool(victims)
    if victims:
        assert line.endswith(f"first suspect {blamed.name}" if blamed else "no suspect")
        theirs = {one.uuid for uuid in victims for one in held[uuid].suspects if one.is_blamed}
        assert (blamed.uuid in theirs) if blamed else not theirs
    if len(victims) == 1:
        assert host.it.host.suspects == host.it.suspects(next(iter(victims)))
    if report is not None:
        message = trigger_message(report)
        assert message.ended == (not victims)
        assert {one.vm: one.suspect for one in message.victims} == {
            uuid: held[uuid].suspect.uuid if held[uuid].suspect else "" for uuid in victims
        }
        if victims:
            assert [one.vm for one in message.suspects] == [one.uuid for one in host.it.host.suspects]
        assert message.affected_vms == host.it.host.affected


@given(owns, fleets())
@pytest.mark.long
def test_suspects_are_ranked_by_how_much_speaks_against_them(own, fleet):
    host = Host(own, fleet, vms=NAMES)
    host.tick()
    for uuid in NAMES:
        held = host.it.vm(uuid)
        found = own.verdict(uuid).culprits
        if not held.found_by:
            assert held.suspects == host.it.suspects(uuid) == ()
            continue
        ranked = host.it.suspects(uuid)
        inflicting = tuple(one for one in ranked if one.inflicts)
        assert held.suspects == (inflicting or tuple(one for one in ranked[:1] if one.is_blamed))
        known = {one.uuid for one in fleet.scored} | ({*found} & {*NAMES})
        assert {one.uuid for one in ranked} == known - {uuid}
        kinds = [(one.inflicts, (one.score or 0) > 0) for one in ranked]
        assert kinds == sorted(kinds, reverse=True)
        by_host = [one.uuid for one in ranked if one.inflicts and not (one.score or 0) > 0]
        assert by_host == [one for one in found if one in by_host]
        for inflicts in (True, False):
            scores = [one.score for one in ranked if one.inflicts is inflicts and (one.score or 0) > 0]
            assert scores == sorted(scores, reverse=True)
