"""Moments of the past are what the local API said then; older ones what the windows have."""

import asyncio
import itertools
import math
import time
from array import array
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.api.client import connect
from agent.api.messages import explanation_message, vms_message
from agent.clock import SystemClock
from agent.config import AgentConfig, AgentSection, CloudWhiteSection, HistorySection, JobRule
from agent.daemon import Daemon
from agent.detection.cloud_white import CloudWhite
from agent.history import frames
from agent.history.capture import Capture
from agent.history.reader import History
from agent.history.replay import ticks_of
from agent.history.segments import segments
from agent.history.window_moments import windows_of
from agent.sampling.source_threads import SourcePlan
from collector.base import Reason, SourceSample
from tests.unit.agent.agent_fakes import FakeSource, S, identity, vm_sample
from tests.unit.agent.cloud_white_fakes import INFLICTS, ToldDetector
from whitepanda.common.errors import InputError, UnavailableError
from whitepanda.v1 import agent_pb2, host_pb2

NUMBERS = st.floats(0, 2.0**40, width=32) | st.sampled_from(list(Reason))


@given(st.integers(1, 5).flatmap(lambda width: st.lists(st.tuples(*[NUMBERS] * width), max_size=6)))
def test_numbers_and_reasons_come_back(rows):
    wanted = [tuple(-1.0 - value if isinstance(value, Reason) else value for value in row) for row in rows]
    assert frames.unpack(frames.pack(rows), len(rows)) == wanted
    with pytest.raises(ValueError, match="not values of"):
        frames.unpack(frames.pack(rows) + b"x", len(rows) + 1)


@pytest.fixture
def config(tmp_path):
    section = AgentSection(
        host="host1",
        platform="cpu",
        state_dir=str(tmp_path / "state"),
        socket=str(tmp_path / "agent.sock"),
        tick_s=0.05,
        window_s=0.2,
    )
    return AgentConfig(section, cloud_white=CloudWhiteSection(detector="off"))


class Host:
    """VMs that come and go."""

    def __init__(self) -> None:
        self.names = ["web-1", "db-1"]

    def take(self) -> SourceSample:
        mono_ns = time.monotonic_ns()
        vms = {f"u-{name}": vm_sample(mono_ns / S) for name in self.names}
        listed = tuple(identity(f"u-{name}", name=name) for name in self.names)
        return SourceSample("simulated", mono_ns, time.time_ns(), vms, None, listed)


async def until(true, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "did not come true"
        await asyncio.sleep(0.005)


async def ran(config, host, change=None, ticks=20):
    """Run a daemon; return what the local API would have said at each tick, by its time."""
    said = {}
    daemon = Daemon(config, plans=[SourcePlan("simulated", "required", FakeSource("simulated", host.take))])
    tick = daemon._history.tick

    def keep(mono_ns):
        answer = vms_message(daemon.state)
        tick(mono_ns)
        said[answer.now_unix_ns] = answer

    daemon._history.tick = keep
    task = asyncio.create_task(daemon.run())
    await until(lambda: len(said) >= ticks // 2)
    if change is not None:
        change(daemon)
    await until(lambda: len(said) >= ticks and daemon.state.pipeline.windows.closed > 3)
    daemon.stop()
    await asyncio.wait_for(task, 10)
    return said, daemon


def folder(config):
    return Path(config.agent.state_dir) / "history"


def asked(config, at_ns, **more):
    return History(folder(config)).moments(host_pb2.GetMomentsRequest(at_unix_ns=at_ns, **more))


def numbers(summary):
    """Metrics as (name, value rounded to what is kept, reason)."""
    found = {}
    for metric in summary.metrics:
        value = array("f", [metric.value])[0]
        found[metric.name] = (None if math.isnan(value) else value, metric.reason)
    return found


async def test_a_host_without_vms_keeps_that_its_agent_ran(config):
    host = Host()
    host.names.clear()
    daemon = Daemon(config, plans=[SourcePlan("simulated", "required", FakeSource("simulated", host.take))])
    task = asyncio.create_task(daemon.run())

    def kept():
        return [one for file in segments(folder(config) / "windows") for one in windows_of(file)]

    await until(lambda: len(kept()) > 1)
    daemon.stop()
    await asyncio.wait_for(task, 10)
    moment = kept()[0].make(None, "")
    assert (moment.is_window, moment.span_ms, list(moment.vms.vms)) == (True, 200, [])


async def test_each_tick_is_shown_as_the_local_api_said_it(config):
    host = Host()
    said, _ = await ran(config, host, lambda _: host.names.append("new-1"))
    whens = sorted(said)
    answer = asked(config, whens[-1] + S, before=600)
    moments = answer.moments
    assert len(moments) >= 20
    assert answer.last_unix_ns == moments[-1].unix_ns
    assert {len(moment.vms.vms) for moment in moments} >= {2, 3}
    # `AgentState` asks the clock again for each answer: the tick of an answer is the next one in time.
    for when in whens:
        moment = next(one for one in moments if one.unix_ns >= when)
        assert moment.unix_ns - when < 50_000_000
        assert (moment.is_window, moment.span_ms, moment.vms.host) == (False, 50, "host1")
        live = {vm.uuid: vm for vm in said[when].vms}
        assert [vm.uuid for vm in moment.vms.vms] == [vm.uuid for vm in said[when].vms]
        for vm in moment.vms.vms:
            assert numbers(vm) == numbers(live[vm.uuid])
            for name in ("name", "job", "vcpus", "state", "epoch"):
                assert getattr(vm, name) == getattr(live[vm.uuid], name)
            assert vm.decision.verdict == live[vm.uuid].decision.verdict


async def test_a_moment_between_two_is_the_earlier_one_and_neighbours_follow(config):
    await ran(config, Host())
    moments = asked(config, time.time_ns(), before=600).moments
    times = [one.unix_ns for one in moments]
    middle = times[10]
    answer = asked(config, middle + 1, before=2, after=3)
    assert [one.unix_ns for one in answer.moments] == times[8:14]
    assert asked(config, times[0] - S).moments[0].unix_ns == times[0]  # the first one, where there is none before
    assert [one.unix_ns for one in asked(config, times[-1], before=1, after=5).moments] == times[-2:]


async def test_only_the_metrics_that_are_wanted(config):
    await ran(config, Host(), ticks=6)
    moment = asked(config, time.time_ns(), metrics=["cpi", "gips"]).moments[0]
    assert [[metric.name for metric in vm.metrics] for vm in moment.vms.vms] == [["gips", "cpi"]] * 2


async def test_a_vm_is_explained_and_a_wrong_name_is_one_line(config):
    await ran(config, Host(), ticks=6)
    for name in ("web-1", "u-web-1"):
        explained = asked(config, time.time_ns(), explain=name).moments[0].explanation
        assert (explained.vm.name, len(explained.vm.metrics) > 20) == ("web-1", True)
        assert math.isnan(explained.mn_cpi)
    with pytest.raises(InputError, match="no VM had the name or UUID 'web-2' then: did you mean web-1"):
        asked(config, time.time_ns(), explain="web-2")


async def test_after_the_ticks_have_gone_windows_are_shown(config):
    _, daemon = await ran(config, Host())
    for one in segments(folder(config) / "ticks"):
        one.path.unlink()
    answer = asked(config, time.time_ns(), before=600)
    assert all(one.is_window for one in answer.moments)
    # Those of the start and the end are shorter, and those in which ticks were missed.
    moment = next(one for one in answer.moments if one.span_ms == 200 and one.unix_ns % 200_000_000 == 0)
    assert moment.vms.host == "host1"
    assert [vm.name for vm in moment.vms.vms] == ["db-1", "web-1"]
    known = {metric.name: metric for metric in moment.vms.vms[0].metrics}
    assert known["cpi"].value == pytest.approx(1.6, rel=0.01)
    assert known["steal_like_ratio"].reason == int(Reason.NOT_IN_TRACE)  # no column of windows
    explained = asked(config, time.time_ns(), explain="db-1").moments[-1].explanation
    assert explained.vm.decision.reason.startswith("kept as windows")
    assert daemon.state.history().lost_frames == 0


async def test_a_restart_keeps_what_was_and_a_gap_is_a_gap(config):
    await ran(config, Host(), ticks=8)
    ended = time.time_ns()
    await asyncio.sleep(0.3)
    await ran(config, Host(), ticks=8)
    moments = asked(config, time.time_ns(), before=600).moments
    times = [one.unix_ns for one in moments]
    assert times == sorted(times)
    gap = [(a, b) for a, b in itertools.pairwise(times) if a <= ended < b]
    assert gap[0][1] - gap[0][0] > 250_000_000
    assert asked(config, ended + 100_000_000, after=1).moments[0].unix_ns == gap[0][0]
    assert asked(config, ended + 100_000_000, after=1).moments[1].unix_ns == gap[0][1]


async def test_a_damaged_file_is_left_out_with_one_warning(config):
    await ran(config, Host(), ticks=8)
    await ran(config, Host(), ticks=8)
    first, second = segments(folder(config) / "ticks")
    data = bytearray(first.path.read_bytes())
    data[-10] ^= 0xFF  # in the payload of its last frame
    first.path.write_bytes(data)
    warned = []
    history = History(folder(config), warned.append)
    for _ in range(3):
        answer = history.moments(host_pb2.GetMomentsRequest(at_unix_ns=time.time_ns(), before=600))
    assert [str(first.path) in line for line in warned] == [True]
    assert list(answer.problems) == warned
    assert sum(one.unix_ns >= second.first_unix_ns for one in answer.moments) >= 8


async def test_off_writes_nothing(config, tmp_path):
    off = msgspec.structs.replace(config, history=HistorySection(days=0))
    _, daemon = await ran(off, Host(), ticks=6)
    assert not folder(config).exists()
    assert (daemon.state.history().state, daemon.state.moments) == ("off", None)
    with pytest.raises(UnavailableError, match="nothing is kept yet"):
        asked(config, time.time_ns())


def test_a_folder_that_may_not_be_read_is_one_line(tmp_path, monkeypatch):
    def refuse(_folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("agent.history.segments.os.listdir", refuse)
    with pytest.raises(UnavailableError, match="cannot read: Permission denied"):
        History(tmp_path).moments(host_pb2.GetMomentsRequest())


class SteppingClock(SystemClock):
    """A clock that is set."""

    step_ns = 0

    def unix_ns(self) -> int:
        return time.time_ns() + self.step_ns


@pytest.mark.parametrize("step_s", [-3600, 600, -0.5])
async def test_a_clock_that_is_set_is_marked_and_nothing_is_lost(config, step_s):
    clock = SteppingClock()
    plan = SourcePlan("simulated", "required", FakeSource("simulated", Host().take))
    daemon = Daemon(config, clock, [plan])
    task = asyncio.create_task(daemon.run())
    await until(lambda: daemon.state.schedule.ticks >= 8)
    clock.step_ns = round(step_s * S)
    before = daemon.state.schedule.ticks
    await until(lambda: daemon.state.schedule.ticks >= before + 8)
    daemon.stop()
    await asyncio.wait_for(task, 10)
    found = [pending for one in segments(folder(config) / "ticks") for pending in ticks_of(one)]
    moments = [pending.make(None, "") for pending in found]
    assert len(moments) >= 16
    assert sum(moment.clock_stepped for moment in moments) == (0 if step_s == -0.5 else 1)
    assert len(moments[-1].vms.vms) == 2
    assert len(segments(folder(config) / "ticks")) == 2
    assert daemon.state.history().lost_frames == 0
    sent_s = daemon._facts._clock_set[1]  # to central
    assert sent_s == (0 if step_s == -0.5 else pytest.approx(step_s, abs=0.1))


async def test_a_history_that_fails_costs_itself_only(config, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("agent.history.capture.frames.pack", broken)
    said, daemon = await ran(config, Host(), ticks=0)
    assert said == {}
    assert daemon.state.counters.sink_errors > 0
    assert daemon.state.pipeline.windows.closed > 3
    assert len(segments(folder(config) / "windows")) == 1


async def test_the_local_api_gives_moments(config):
    daemon = Daemon(config, plans=[SourcePlan("simulated", "required", FakeSource("simulated", Host().take))])
    task = asyncio.create_task(daemon.run())
    await until(lambda: daemon.state.schedule.ticks >= 10)

    def ask(**fields):
        with connect(Path(config.agent.socket)) as client:
            return client.moments(host_pb2.GetMomentsRequest(**fields))

    answer = await asyncio.to_thread(ask, at_unix_ns=time.time_ns(), before=2, explain="web-1")
    assert [len(moment.vms.vms) for moment in answer.moments] == [2, 2, 2]
    assert answer.moments[-1].explanation.vm.name == "web-1"
    with pytest.raises(InputError, match="no VM had the name or UUID 'x' then"):
        await asyncio.to_thread(ask, at_unix_ns=time.time_ns(), explain="x")
    daemon.state.moments = None
    with pytest.raises(UnavailableError, match=r"the history is off: set history\.days above 0"):
        await asyncio.to_thread(ask, at_unix_ns=time.time_ns())
    daemon.stop()
    await asyncio.wait_for(task, 10)


class Suffering(ToldDetector):
    """web-1 suffers from db-1."""

    def __init__(self, *_: object) -> None:
        super().__init__()
        self.says = {"u-web-1": ("victim", "ipc 0.5 is below 0.9", ("u-db-1",)), "u-db-1": INFLICTS}


async def test_of_many_vms_that_suffer_windows_explain_a_few_at_a_time_victims_first(config, monkeypatch):
    def explanation(_state, uuid):
        events = [agent_pb2.VmEvent(vm=uuid, unix_ns=at) for at in range(100)]
        vm = host_pb2.VmSummary(uuid=uuid, name=uuid, metrics=[host_pb2.Metric(name="cpi")])
        return host_pb2.VmExplanation(vm=vm, events=events, history=[host_pb2.CpiPoint()] * 60)

    monkeypatch.setattr("agent.history.capture.explanation_message", explanation)
    verdicts = {"quiet": "steady", "hurt": "affected"} | {f"loud{at}": "inflicting" for at in range(3)}
    verdicts |= {"victim1": "victim", "victim2": "victim"}
    daemon = Daemon(config, plans=[SourcePlan("simulated", "required", FakeSource("simulated", Host().take))])
    capture = Capture(daemon.state, None, 1000, [10_000])

    def explained(second):
        made = capture._window_explanations(verdicts, second * S)
        assert [[event.unix_ns for event in one.events] for one in made] == [[96, 97, 98, 99]] * len(made)
        assert all((one.vm.name, list(one.vm.metrics), list(one.history)) == ("", [], []) for one in made)
        return [one.vm.uuid for one in made]

    assert explained(10) == ["victim1", "victim2", "loud0", "loud1"]
    assert explained(20) == ["loud2", "hurt"]
    assert explained(30) == []
    verdicts["hurt"], verdicts["loud2"] = "victim", "steady"
    assert explained(40) == ["hurt"]
    verdicts["loud2"] = "inflicting"
    assert explained(50) == ["loud2"]
    assert explained(70) == ["victim1", "victim2", "loud0", "loud1"]


async def test_who_suffers_and_from_whom_is_there_later_by_ticks_and_by_windows(config, monkeypatch):
    monkeypatch.setattr(CloudWhite.__init__, "__defaults__", (Suffering,))
    watched = msgspec.structs.replace(config, cloud_white=CloudWhiteSection(), jobs=(JobRule(".", "web", alert=True),))
    live = {}
    said, _ = await ran(
        watched, Host(), lambda daemon: live.update(web=explanation_message(daemon.state, "u-web-1")), ticks=40
    )
    for is_window in (False, True):
        moment = asked(config, time.time_ns(), explain="web-1").moments[-1]
        assert moment.is_window is is_window
        web = next(vm for vm in moment.vms.vms if vm.name == "web-1")
        assert web.decision.verdict == agent_pb2.BEHAVIOUR_VICTIM
        assert web.decision.reason == live["web"].vm.decision.reason
        assert [one.name for one in web.decision.suspects] == ["db-1"]
        assert (moment.vms.decision.victims, moment.vms.decision.suspect.name) == (1, "db-1")
        assert web.decision.since_ns > 0
        explained = moment.explanation
        assert [(one.signal, one.value) for one in explained.evidence] == [("ipc", 0.5)]
        assert [one.name for one in explained.suspects] == [one.name for one in live["web"].suspects]
        assert [one.action for one in explained.recommendations] == [one.action for one in live["web"].recommendations]
        assert explained.recommendations
        assert explained.detector == "noise_scaled"
        assert {metric.name for metric in explained.vm.metrics} >= {"cpi", "gips"}
        if not is_window:
            first = asked(config, min(said) + 2 * 10**9, explain="web-1").moments[-1].explanation
            assert web.decision.since_ns >= first.vm.decision.since_ns
        for one in segments(folder(config) / "ticks"):
            one.path.unlink()
