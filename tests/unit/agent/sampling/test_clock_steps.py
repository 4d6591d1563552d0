"""A host whose wall clock is set: rates do not feel it, windows stay what they are, and it is reported once."""

import asyncio

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from agent.config import AgentConfig, AgentSection
from agent.daemon import Daemon
from agent.sampling.pipeline import Pipeline
from agent.sampling.scheduler import CLOCK_STEP_NS, ClockSteps
from agent.sampling.source_threads import SourcePlan
from collector.base import HostCounters, Reason, SourceSample
from tests.unit.agent.agent_fakes import UNIX0, FakeClock, FakeSource, S, identity, vm_sample
from tests.unit.agent.sampling.test_pipeline import HandSlots

MONO0 = 1000 * S


def test_a_step_is_what_one_clock_moves_against_the_other():
    steps = ClockSteps()
    assert steps.observe(MONO0, UNIX0) is None
    assert steps.observe(MONO0 + S, UNIX0 + S + CLOCK_STEP_NS) is None  # just not yet
    assert steps.observe(MONO0 + 2 * S, UNIX0 + 2 * S + 2 * CLOCK_STEP_NS + 1) == CLOCK_STEP_NS + 1
    assert steps.observe(MONO0 + 3 * S, UNIX0 - 3597 * S) == -3601 * S - 1  # set back by an hour
    assert steps.observe(MONO0 + 100 * S, UNIX0 - 3500 * S) is None  # a late tick is none
    assert steps.steps == 2


@given(st.lists(st.integers(-(10**7), 10**7), max_size=50))
def test_slewing_never_is_a_step(slews):
    steps = ClockSteps()
    mono, unix = MONO0, UNIX0
    for slew in slews:
        assert steps.observe(mono, unix) is None
        mono, unix = mono + S, unix + S + slew


def run(steps: dict[int, int], seconds: int = 60):
    """Tick once a second; before tick n the wall clock steps by `steps[n]` seconds. Rates per tick, and windows."""
    clock = FakeClock(MONO0)

    def take():
        age_s = (clock.mono - MONO0) / S
        host = HostCounters(2, round(age_s * S), 0, round(age_s * S), 0, 0, 0)
        return SourceSample(
            "simulated", clock.mono, clock.unix, {"u1": vm_sample(age_s)}, host, (identity(name="db7"),)
        )

    pipeline = Pipeline(AgentConfig(AgentSection()), HandSlots(take))
    rates, windows = [], []
    for second in range(seconds):
        clock.unix += steps.get(second, 0) * S
        windows += pipeline.tick(clock.mono)
        rates.append(([vm.rates for vm in pipeline.table], pipeline.host_rates))
        clock.advance(S)
    return rates, windows + pipeline.windows.flush()


@pytest.mark.parametrize("step_s", [-86_400, -3600, -15, -10, -1, 1, 10, 15, 3600, 86_400])
@pytest.mark.parametrize("second", [20, 25, 29])
def test_a_step_changes_no_rate_and_loses_or_doubles_no_time(step_s, second):
    plain_rates, plain_windows = run({})
    rates, windows = run({second: step_s})
    assert rates == plain_rates
    assert not any(isinstance(value, Reason) for value in rates[-1][0][0][:4])
    assert sum(w.duration_ns for w in windows) == sum(w.duration_ns for w in plain_windows) == 58 * S
    for window in windows:
        assert 0 < window.duration_ns <= 10 * S
        assert window.cpu_usage_cores == pytest.approx(1.0)
        assert window.cpi == pytest.approx(1.6)
        assert window.start_unix_ns % (10 * S) == 0


def config(tmp_path):
    return AgentConfig(AgentSection("h", "cpu", str(tmp_path), str(tmp_path / "a.sock"), tick_s=1.0))


async def test_the_agent_counts_steps_and_reports_of_them_once_a_minute(tmp_path):
    clock = FakeClock()

    def take():
        return SourceSample("simulated", clock.mono, clock.unix, {"u1": vm_sample(clock.mono / S)}, None, (identity(),))

    daemon = Daemon(config(tmp_path), clock, [SourcePlan("simulated", "auto", FakeSource("simulated", take))])
    state = daemon.state

    async def ticks(count):
        end = state.schedule.ticks + count
        while state.schedule.ticks < end:
            await asyncio.sleep(0.001)

    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(daemon.run())
        await ticks(3)
        assert state.counters.clock.steps == 0
        for step_s in (-7200, 30, 0.4):
            clock.unix += round(step_s * S)
            await ticks(2)
        daemon.stop()
        await asyncio.wait_for(task, 10)
    assert state.counters.clock.steps == 2
    reported = [entry for entry in logs if entry["event"].startswith("the wall clock stepped")]
    assert [entry["seconds"] for entry in reported] == [-7200]
    value = next(m.value for m in state.host().host_metrics if m.name == "agent_clock_steps_total")
    assert value == 2
