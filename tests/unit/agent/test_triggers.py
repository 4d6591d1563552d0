"""Contention as central is told of it: once per slot, worst first, nothing lost on the way into a batch."""

import math

import pytest

from agent.batches import encode, pieces, trigger_message
from agent.config import AnalysisSection
from agent.triggers import MAX_SUSPECTS, MAX_VICTIMS, Trigger, Triggers, TriggerSuspect, TriggerVictim
from collector.base import Reason
from tests.unit.agent.test_host_analysis import CALM, ODD, SCAN, VICTIM, Host, update
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
            TriggerVictim(f"v{i}", "e", f"web-{i}", "web", 3.0, 5.0 - i / 100, 2.0, 1.5)
            for i in range(victims)
        ),
        suspects=tuple(
            TriggerSuspect(f"s{i}", "e", f"scan-{i}", "scan", 0.5, 4.0, 2.0, Reason.UNSPECIFIED)
            for i in range(suspects)
        ),
    )


@pytest.fixture
def host(tmp_path):
    found = Host(tmp_path, AnalysisSection(trigger="paper", mn_cpi_floor=1.0))
    assert found.store.apply(update())
    return found


def test_contention_is_told_with_its_evidence(host):
    host.run(9, VICTIM, CALM, SCAN, ODD)
    (told,) = host.analysis.take_triggers()
    assert host.analysis.take_triggers() == ()
    assert (told.slot_ns, told.coefficient_version, told.mn_cpi_threshold) == (SLOT, 7, 1.0)
    assert told.since_unix_ns == told.unix_ns
    assert told.mn_cpi == pytest.approx(((3.1 - 1.2) / 0.35 + (1.3 - 1.2) / 0.35) / 2)
    (victim,) = told.victims
    assert (victim.vm, victim.epoch, victim.name, victim.job) == ("uuid-web-1", "1", "web-1", "web")
    assert victim.cpi == pytest.approx(3.1)
    assert victim.n_cpi == pytest.approx(1.9 / 0.35)
    assert victim.threshold_cpi == pytest.approx(1.9)
    scan, odd = told.suspects
    assert (scan.vm, scan.job, scan.coefficient, scan.cpu_usage_cores) == ("uuid-scan-1", "scan", 0.5, 4.0)
    assert scan.score == pytest.approx(2.0)
    assert (odd.vm, odd.score, odd.reason) == ("uuid-odd-1", None, Reason.NO_COEFFICIENTS)


def test_it_is_told_once_per_slot_while_it_lasts(host):
    host.run(9 + 12, VICTIM, CALM, SCAN)
    told = host.analysis.take_triggers()
    assert [t.unix_ns - told[0].unix_ns for t in told] == [i * SLOT for i in range(len(told))]
    assert 4 <= len(told) <= 5
    assert {t.since_unix_ns for t in told} == {told[0].unix_ns}


def test_no_contention_tells_nothing(host):
    host.run(12, CALM, SCAN)
    assert host.analysis.take_triggers() == ()


def test_a_pause_within_a_slot_is_none_and_a_clock_set_back_silences_nothing():
    triggers = Triggers()
    triggers.note(trigger(100 * S), 100 * S)
    triggers.note(None, 110 * S)
    triggers.note(trigger(120 * S), 120 * S)
    assert [t.unix_ns for t in triggers.take()] == [100 * S]
    triggers.note(trigger(130 * S), 130 * S)
    (again,) = triggers.take()
    assert (again.unix_ns, again.since_unix_ns) == (130 * S, 120 * S)
    triggers.note(trigger(50 * S), 50 * S)
    assert [t.unix_ns for t in triggers.take()] == [50 * S]


def test_what_nobody_takes_is_bounded_and_counted():
    triggers = Triggers()
    for number in range(103):
        triggers.note(trigger(number * SLOT), number * SLOT)
    assert len(triggers.take()) == 100
    assert triggers.dropped == 3


def test_the_message_names_the_worst_and_counts_the_rest():
    message = trigger_message(trigger(5 * S, victims=MAX_VICTIMS + 3, suspects=MAX_SUSPECTS + 2))
    assert (len(message.victims), message.victims_left_out) == (MAX_VICTIMS, 3)
    assert (len(message.suspects), message.suspects_left_out) == (MAX_SUSPECTS, 2)
    assert message.victims[0].n_cpi == 5.0
    unknown = TriggerSuspect("s", "e", "odd", "odd", None, 9.0, None, Reason.NO_COEFFICIENTS)
    message = trigger_message(Trigger(5, SLOT, 3.0, 2.0, 7, (), (unknown,)))
    assert math.isnan(message.suspects[0].score) and math.isnan(message.suspects[0].coefficient)
    assert message.suspects[0].reason == agent_pb2.REASON_NO_COEFFICIENTS


def test_it_goes_with_the_first_batch_only():
    (one,) = pieces([[]], "s", iter([1]).__next__, 1 << 20, [trigger(5)])
    found = agent_pb2.CpiBatch.FromString(one[1])
    assert (found.sequence, len(found.triggers), len(found.events)) == (1, 1, 0)
    assert encode([], spool_id="s", sequence=1).triggers == []
