"""Victims as central learns of them: once per slot, worst first, the end too, nothing lost on the way into a batch."""

import math
from dataclasses import replace

import pytest

from agent.analysis.verdict import Degradation
from agent.antagonists.reports import MAX_SUSPECTS, MAX_VICTIMS, Trigger, Triggers, TriggerVictim
from agent.config import AnalysisSection
from agent.detection.decision_types import SuspectView
from agent.uplink.batches import encode, pieces
from agent.uplink.messages import trigger_message
from collector.base import Reason
from tests.unit.agent.antagonists.test_host_analysis import CALM, ODD, SCAN, VICTIM, Host, update
from whitepanda.v1 import agent_pb2

S = 10**9
SLOT = 30 * S


def trigger(now: int, victims: int = 1, suspects: int = 1) -> Trigger:
    return Trigger(
        unix_ns=now,
        slot_ns=SLOT,
        mn_cpi=3.0,
        mn_cpi_threshold=2.0,
        coefficient_version=7,
        victims=tuple(
            TriggerVictim(f"v{i}", "e", f"web-{i}", "web", 3.0, 5.0 - i / 100, 2.0, 1.5) for i in range(victims)
        ),
        suspects=tuple(
            SuspectView(f"s{i}", f"scan-{i}", "scan", 4.0, 0.5, 2.0, Reason.UNSPECIFIED, "e") for i in range(suspects)
        ),
    )


@pytest.fixture
def host(tmp_path):
    found = Host(tmp_path, AnalysisSection(trigger="paper", mn_cpi_floor=1.0))
    assert found.store.apply(update())
    return found


def test_contention_is_reported_with_its_evidence(host):
    host.run(9, VICTIM, CALM, SCAN, ODD)
    (reported,) = host.reports
    assert (reported.slot_ns, reported.coefficient_version, reported.mn_cpi_threshold) == (SLOT, 7, 1.0)
    assert reported.since_unix_ns == reported.unix_ns
    assert reported.mn_cpi == pytest.approx(((3.1 - 1.2) / 0.35 + (1.3 - 1.2) / 0.35) / 2)
    (victim,) = reported.victims
    assert (victim.vm, victim.epoch, victim.name, victim.job) == ("uuid-web-1", "1", "web-1", "web")
    assert victim.cpi == pytest.approx(3.1)
    assert victim.n_cpi == pytest.approx(1.9 / 0.35)
    assert victim.threshold_cpi == pytest.approx(1.9)
    assert (victim.slow_down.ratio, victim.slow_down.low) == pytest.approx((3.1 / 1.2, 3.1 / 1.9))
    assert (victim.found_by, reported.found_by, victim.suspect) == (("fleet",), ("fleet",), "uuid-scan-1")
    assert (reported.affected, reported.ended) == (0, False)
    scan, odd = reported.suspects
    assert (scan.uuid, scan.job, scan.coefficient, scan.cpu_usage_cores) == ("uuid-scan-1", "scan", 0.5, 4.0)
    assert scan.score == pytest.approx(2.0)
    assert (odd.uuid, odd.score, odd.reason) == ("uuid-odd-1", None, Reason.NO_COEFFICIENTS)


def test_it_is_reported_once_per_slot_while_it_lasts(host):
    host.run(9 + 12, VICTIM, CALM, SCAN)
    reported = host.reports
    assert [t.unix_ns - reported[0].unix_ns for t in reported] == [i * SLOT for i in range(len(reported))]
    assert 4 <= len(reported) <= 5
    assert {t.since_unix_ns for t in reported} == {reported[0].unix_ns}


def test_no_contention_reports_nothing(host):
    host.run(12, CALM, SCAN)
    assert host.reports == []


def test_its_end_is_reported_once_and_then_nothing(host):
    host.run(9, VICTIM, CALM, SCAN)
    host.run(30, {**VICTIM, "cpi": 1.2}, CALM, SCAN)
    *reported, end = host.reports
    assert [report.ended for report in reported] == [False] * len(reported) != []
    assert (end.ended, end.victims, end.suspects, end.found_by) == (True, (), (), ())
    assert end.since_unix_ns == reported[0].unix_ns < end.unix_ns
    assert trigger_message(end).ended


def told_by(triggers, *states):
    """Return what is reported of (second, report) one after the other: (second of the report, since, ended)."""
    found = [triggers.note(state) for state in states]
    return [None if one is None else (one.unix_ns // S, one.since_unix_ns // S, one.ended) for one in found]


def test_it_is_reported_at_once_then_once_per_slot_and_its_end_at_once():
    triggers = Triggers()
    assert not triggers.is_open
    assert told_by(triggers, trigger(90 * S, victims=0)) == [None]
    assert told_by(triggers, *(trigger(at * S) for at in (100, 110, 129, 130, 140))) == [
        (100, 100, False),
        None,
        None,
        (130, 100, False),
        None,
    ]
    assert triggers.is_open
    assert told_by(triggers, *(trigger(at * S, victims=0) for at in (141, 142, 180))) == [(141, 100, True), None, None]
    assert not triggers.is_open
    assert told_by(triggers, trigger(143 * S)) == [(143, 143, False)]


def test_a_clock_set_back_silences_nothing():
    triggers = Triggers()
    assert told_by(triggers, *(trigger(at * S) for at in (100, 50, 60, 80))) == [
        (100, 100, False),
        (50, 50, False),
        None,
        (80, 50, False),
    ]


def suspected(now, *uuids):
    """A report with these suspects."""
    return replace(
        trigger(now * S), slot_ns=300 * S, suspects=tuple(replace(trigger(0).suspects[0], uuid=uuid) for uuid in uuids)
    )


def test_another_first_suspect_is_reported_at_once_and_a_further_one_is_no_news():
    triggers = Triggers()
    states = [suspected(0, "a", "b"), suspected(1, "a", "c"), suspected(2, "b", "a"), suspected(3, "b")]
    assert [one is not None for one in map(triggers.note, states)] == [True, False, True, False]
    nobody = replace(suspected(4, "b"), suspects=(replace(trigger(0).suspects[0], uuid="b", score=None),))
    assert triggers.note(nobody) is not None  # nothing speaks against it any more
    assert triggers.note(suspected(5)) is None


def test_other_victims_are_reported_a_minute_after_the_last_report():
    triggers = Triggers()
    slow = [replace(trigger(at * S, victims=victims), slot_ns=300 * S) for at, victims in OTHER_VICTIMS]
    assert [one.unix_ns // S for one in map(triggers.note, slow) if one is not None] == [0, 60, 120]


OTHER_VICTIMS = ((0, 1), (10, 2), (59, 2), (60, 2), (61, 1), (119, 3), (120, 3), (200, 3), (299, 3))


def test_the_message_names_the_worst_and_counts_the_rest():
    message = trigger_message(trigger(5 * S, victims=MAX_VICTIMS + 3, suspects=MAX_SUSPECTS + 2))
    assert (len(message.victims), message.victims_left_out) == (MAX_VICTIMS, 3)
    assert (len(message.suspects), message.suspects_left_out) == (MAX_SUSPECTS, 2)
    assert message.victims[0].n_cpi == 5.0
    unknown = SuspectView("s", "odd", "odd", 9.0, None, None, Reason.NO_COEFFICIENTS, "e", inflicts=True)
    message = trigger_message(Trigger(5, SLOT, 3.0, 2.0, 7, (), (unknown,)))
    assert math.isnan(message.suspects[0].score) and math.isnan(message.suspects[0].coefficient)
    assert message.suspects[0].reason == agent_pb2.REASON_NO_COEFFICIENTS
    assert (message.suspects[0].vm, message.suspects[0].epoch, message.suspects[0].inflicts) == ("s", "e", True)


def test_the_message_has_the_slow_down_and_who_found_it():
    one = replace(
        trigger(5).victims[0], slow_down=Degradation(1.6, 1.2, 2.0, model="m"), found_by=("host", "fleet"), suspect="s0"
    )
    reported = replace(trigger(5), victims=(one,), found_by=("host", "fleet"), affected=3)
    message = trigger_message(reported)
    both = [agent_pb2.ANALYSIS_HOST, agent_pb2.ANALYSIS_FLEET]
    assert list(message.found_by) == list(message.victims[0].found_by) == both
    assert (message.victims[0].suspect, message.affected_vms, message.ended) == ("s0", 3, False)
    assert message.victims[0].slow_down == agent_pb2.Degradation(ratio=1.6, low=1.2, high=2.0, model="m")
    assert not trigger_message(trigger(5)).victims[0].HasField("slow_down")


def test_it_goes_with_the_first_batch_only():
    (one,) = pieces([[]], "s", 1, 1 << 20, [trigger(5)])
    found = agent_pb2.CpiBatch.FromString(one[2])
    assert (found.sequence, len(found.triggers), len(found.events)) == (1, 1, 0)
    assert encode([], spool_id="s", sequence=1).triggers == []
