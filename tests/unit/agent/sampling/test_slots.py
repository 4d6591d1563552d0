import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

from agent.clock import SystemClock
from agent.sampling.source_threads import REOPEN_AFTER_NS, Slot, Slots, SourcePlan
from collector.base import Probe, Reason, SourceError, SourceSample
from tests.unit.agent.agent_fakes import FakeClock, FakeSource, S

ROOT = Path(__file__).parents[4]


def eventually(true: Callable[[], object], what: str = "") -> None:
    until = time.monotonic() + 20
    while not true():
        assert time.monotonic() < until, what or "did not come true"
        time.sleep(0.002)


def sample(clock: FakeClock, name: str = "s") -> SourceSample:
    return SourceSample(name, clock.mono, clock.unix)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def started():
    slots: list[Slot] = []
    gates: list[threading.Event] = []

    def start(source: FakeSource, clock: FakeClock, **plan: object) -> Slot:
        slot = Slot(SourcePlan(source.name, plan.pop("mode", "auto"), source, **plan), clock)
        slots.append(slot)
        gates.append(source.gate)
        slot.start()
        eventually(lambda: slot.tried)
        return slot

    yield start
    for slot, gate in zip(slots, gates, strict=True):
        gate.set()
        slot.stop()
        assert slot.join(5)


def idle(slot: Slot) -> Callable[[], bool]:
    return lambda: slot._busy_since_ns is None


def at_rest(slots: Slots) -> None:
    """Wait until all sources were tried and none is at a sample."""
    eventually(lambda: all(slot.tried and not slot.is_busy for slot in slots))


def test_a_kick_brings_a_sample_into_the_slot(clock, started):
    source = FakeSource("s", lambda: sample(clock))
    slot = started(source, clock)
    eventually(idle(slot))
    assert (slot.sample, slot.trouble, source.opened) == (None, None, 1)
    slot.kick()
    eventually(lambda: slot.sample is not None)
    clock.advance(3 * S)
    view = slot.view()
    assert (view.name, view.state, view.age_ns, view.samples, view.failures) == ("s", "available", 3 * S, 1, 0)


def test_a_stuck_source_is_marked_stops_nobody_and_recovers(clock, started):
    hangs, works = (FakeSource("hangs", lambda: sample(clock, "hangs")), FakeSource("works", lambda: sample(clock)))
    slow = started(hangs, clock, deadline_ns=2 * S)
    fine = started(works, clock, deadline_ns=2 * S)
    eventually(idle(slow))
    slow.kick()
    eventually(lambda: slow.sample is not None)
    before = slow.sample
    eventually(idle(slow))
    hangs.gate.clear()
    for second in range(5):
        eventually(idle(fine))
        clock.advance(S)
        for slot in (slow, fine):
            slot.kick()
        eventually(lambda: fine.sample is not None and fine.sample.mono_ns == clock.mono)
        assert slow.view().state == ("available" if second < 3 else "stuck")
    assert (slow.trouble, fine.trouble) == (Reason.STUCK, None)
    assert slow.sample is before  # the last value stays, and its age grows
    assert slow.view().age_ns == 5 * S
    assert "2 s" in slow.view().detail
    hangs.gate.set()
    eventually(lambda: slow.trouble is None)
    assert slow.sample is not before
    assert slow.view().samples == 2  # kicks while it hung were not stacked


def test_failures_are_counted_and_logged_once_per_change(clock, started):
    fate = [SourceError("libvirt: no answer at /run/x; start libvirtd", Reason.NO_PERMISSION)]

    def take() -> SourceSample:
        if fate[0]:
            raise fate[0]
        return sample(clock)

    with structlog.testing.capture_logs() as logs:
        slot = started(FakeSource("s", take), clock)
        for index in range(1, 4):
            eventually(idle(slot))
            slot.kick()
            eventually(lambda: slot.view().failures == index)  # noqa: B023 - called within the loop's turn
        assert (slot.view().state, slot.trouble) == ("failed", Reason.NO_PERMISSION)
        assert slot.view().detail == "libvirt: no answer at /run/x; start libvirtd"
        fate[0] = ZeroDivisionError("x")
        eventually(idle(slot))
        slot.kick()
        eventually(lambda: slot.view().failures == 4)
        assert slot.trouble is Reason.SOURCE_FAILED
        fate[0] = None
        eventually(idle(slot))
        slot.kick()
        eventually(lambda: slot.trouble is None)
    assert [entry["event"] for entry in logs] == [
        "source available",
        "source failed",  # once for three failures
        "source failed",  # for another reason
        "source available",
    ]


def test_an_unavailable_source_is_tried_again_later(clock, started):
    source = FakeSource(
        "s", lambda: sample(clock), Probe(available=False, detail="no socket", reason=Reason.NOT_PRESENT)
    )
    slot = started(source, clock)
    assert (slot.view().state, slot.view().detail, slot.trouble) == ("unavailable", "no socket", Reason.NOT_PRESENT)
    eventually(idle(slot))
    source.said = Probe(available=True, detail="")
    slot.kick()
    assert idle(slot)()  # its thread is not even woken
    assert not slot._wake.is_set()
    assert (source.probed, source.opened) == (1, 0)
    clock.advance(REOPEN_AFTER_NS)
    slot.kick()
    eventually(lambda: slot.sample is not None)
    assert (source.probed, source.opened, slot.trouble) == (2, 1, None)


def test_a_probe_that_raises_is_unavailable_not_a_crash(clock, started):
    source = FakeSource("s", lambda: sample(clock))
    source.probe = lambda: 1 // 0
    slot = started(source, clock)
    assert slot.view().state == "unavailable"
    assert "ZeroDivisionError" in slot.view().detail


def test_what_a_source_reports_is_fit_to_be_shown_and_sent(clock, started):
    def take():
        raise SourceError("/run/\x1b[2J\udcff.sock: no such file")

    slot = started(FakeSource("s", take), clock)
    eventually(idle(slot))
    slot.kick()
    eventually(lambda: slot.view().state == "failed")
    assert slot.view().detail == r"/run/\x1b[2J\xff.sock: no such file"


def test_off_and_broken_sources_have_no_thread(clock):
    off = Slot(SourcePlan("perf", "off", None), clock)
    broken = Slot(SourcePlan("libvirt", "auto", None, broken=SourceError("lacks libvirt", Reason.NOT_PRESENT)), clock)
    for slot in (off, broken):
        slot.start()
        slot.kick()
        assert slot._thread is None
        assert slot.tried
        assert slot.join(0)
    assert (off.view().state, off.trouble) == ("off", Reason.SOURCE_OFF)
    assert (broken.view().state, broken.view().detail, broken.trouble) == (
        "unavailable",
        "lacks libvirt",
        Reason.NOT_PRESENT,
    )


def test_stop_closes_sources_and_names_those_that_hang(clock):
    hangs, works = FakeSource("hangs", lambda: sample(clock)), FakeSource("works", lambda: sample(clock))
    slots = Slots([SourcePlan("hangs", "auto", hangs), SourcePlan("works", "auto", works)], clock)
    slots.start()
    at_rest(slots)
    hangs.gate.clear()
    slots.kick()
    eventually(lambda: hangs.entered and slots.samples())
    assert slots.stop(0.1, time.monotonic) == ["hangs"]
    assert (hangs.closed, works.closed) == (0, 1)
    hangs.gate.set()
    eventually(lambda: hangs.closed == 1)


@pytest.fixture
def three(clock):
    """Slots of three sources, and the order in which they began to sample."""
    begun: list[str] = []

    class Noted(FakeSource):
        def sample(self):
            begun.append(self.name)
            return super().sample()

    sources = [Noted(name, lambda: sample(clock)) for name in "abc"]
    slots = Slots([SourcePlan(source.name, "auto", source) for source in sources], clock)
    slots.start()
    at_rest(slots)
    yield slots, sources, begun
    for source in sources:
        source.gate.set()
    assert slots.stop(5, time.monotonic) == []


def test_in_turn_each_source_waits_for_the_one_before_it(three):
    slots, (_, b, _), begun = three
    b.gate.clear()
    slots.kick_in_turn()
    eventually(lambda: begun == ["a", "b"])
    time.sleep(0.05)
    assert begun == ["a", "b"]
    b.gate.set()
    eventually(lambda: begun == ["a", "b", "c"])


def test_in_turn_a_source_that_hangs_keeps_the_others_for_a_patience_only(three):
    slots, (a, _, _), begun = three
    a.gate.clear()
    slots.kick_in_turn()
    eventually(lambda: begun == ["a"])
    slots.kick_waiting()
    eventually(lambda: sorted(begun) == ["a", "b", "c"])
    for slot in list(slots)[1:]:
        eventually(idle(slot))
    slots.kick_in_turn()  # from the next one on it keeps nobody
    eventually(lambda: sorted(begun) == ["a", "b", "b", "c", "c"])
    assert begun[3:] == ["b", "c"]


def test_in_turn_those_that_still_wait_at_the_next_tick_are_asked_then(three):
    slots, (a, _, _), begun = three
    a.gate.clear()
    slots.kick_in_turn()
    eventually(lambda: begun == ["a"])
    slots.kick_in_turn()
    eventually(lambda: sorted(begun) == ["a", "b", "c"])


def test_in_turn_a_slow_source_comes_last(three, clock):
    slots, (a, _, _), begun = three

    def slow():
        clock.mono += S // 10
        return sample(clock)

    a.take = slow
    for turn in (["a", "b", "c"], ["b", "c", "a"]):
        begun.clear()
        slots.kick_in_turn()
        eventually(lambda expected=turn: begun == expected)
        at_rest(slots)


def test_in_turn_a_source_that_is_not_there_keeps_nobody(clock):
    absent = FakeSource("absent", lambda: sample(clock), Probe(False, "none here", Reason.NOT_PRESENT))
    works = FakeSource("works", lambda: sample(clock))
    slots = Slots([SourcePlan("absent", "auto", absent), SourcePlan("works", "auto", works)], clock)
    slots.start()
    at_rest(slots)
    slots.kick_in_turn()
    eventually(lambda: works.entered == 1)
    assert slots.stop(5, time.monotonic) == []


def test_kick_does_not_wait_for_a_source():
    clock = SystemClock()
    source = FakeSource("s", lambda: SourceSample("s", 0, 0))
    slot = Slot(SourcePlan("s", "auto", source), clock)
    slot.start()
    eventually(idle(slot))
    source.gate.clear()
    for _ in range(1000):
        slot.kick()
        assert slot.view().name == "s"
    source.gate.set()
    slot.stop()
    assert slot.join(5)


def test_a_source_that_hangs_for_ever_does_not_keep_the_process_alive():
    script = """
import time
from agent.clock import SystemClock
from agent.sampling.source_threads import Slots, SourcePlan
from tests.unit.agent.agent_fakes import FakeSource
source = FakeSource("s", lambda: None)
slots = Slots([SourcePlan("s", "auto", source)], SystemClock())
slots.start()
while not all(slot._busy_since_ns is None for slot in slots):
    time.sleep(0.01)
source.gate.clear()
slots.kick()
while not source.entered:
    time.sleep(0.01)
print('hang:', slots.stop(0.2, time.monotonic))
"""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"}
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=20, env=environment
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "hang: ['s']"), done.stderr


def test_a_first_probe_that_hangs_is_said_once(clock, started_at_once):
    slot = started_at_once
    with structlog.testing.capture_logs() as logs:
        for _ in range(50):
            clock.mono += 3 * S
            slot.kick()
    assert [entry["event"] for entry in logs] == ["source stuck"]
    assert not slot.tried


@pytest.fixture
def started_at_once(clock):
    """A slot whose source hangs in its first probe."""
    source, gate = FakeSource("s", lambda: sample(clock)), threading.Event()
    source.probe = lambda: (gate.wait(20), Probe(True, ""))[1]
    slot = Slot(SourcePlan("s", "auto", source), clock)
    slot.start()
    yield slot
    gate.set()
    slot.stop()
    assert slot.join(5)
