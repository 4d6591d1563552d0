"""Contention can always be found: whatever a host has seen, mnCPI at its cut exceeds the threshold."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.analysis.contention.live_trigger import SPANS_S, WARM_UP_S, NoiseScaledTrigger
from agent.analysis.contention.normalised_cpi import ROBUST_CLIP, CpiStatistics, RobustLogCpi, TaskSlot
from agent.antagonists.cache_domain import Contention
from agent.config import AnalysisSection
from agent.sampling.windows import CpiWindow
from collector.base import Reason

S = 10**9
T0 = 1_800_000_000 * S
STATISTICS = CpiStatistics(1.0, 0.1, 1000, RobustLogCpi(0.0, 0.1))
n_cpis = st.floats(-ROBUST_CLIP, ROBUST_CLIP)
#: What a host sees: so many steps of about one mnCPI, with noise about it, of so many VMs.
pasts = st.lists(st.tuples(st.integers(1, 150), n_cpis, st.floats(0, 3), st.integers(1, 40)), max_size=4)


def slot(n_cpi: float, vms: int = 1) -> list[TaskSlot]:
    return [TaskSlot(f"web-{n}", "web", True, math.exp(0.1 * n_cpi) + 1e-9, 2.0, STATISTICS) for n in range(vms)]


def steps(past) -> list[tuple[float, int]]:
    return [
        (max(-ROBUST_CLIP, min(ROBUST_CLIP, level + (-noise if n % 2 else noise))), vms)
        for count, level, noise, vms in past
        for n in range(count)
    ]


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(("noise_scaled", "paper")),
    st.sampled_from((2, 10, 300, 3600)),
    st.integers(1, 5),
    st.floats(0, 2.75),
    pasts,
    st.integers(1, 40),
)
def test_by_slots_some_mn_cpi_triggers_whatever_was_seen(trigger, slot_s, victim_slots, floor, past, vms):
    section = AnalysisSection(trigger=trigger, victim_slots=victim_slots, mn_cpi_floor=floor)
    contention, now, seen = Contention(section), T0, []
    for n_cpi, count in [*steps(past), *[(ROBUST_CLIP, vms)] * victim_slots]:
        now += slot_s * S
        seen = [slot(n_cpi, count), *seen][:victim_slots]
        contention.take_slots(seen, now, slot_s * S)
        assert contention.threshold < ROBUST_CLIP
    assert contention.triggered


@settings(max_examples=60, deadline=None)
@given(st.sampled_from((2.0, 10.0, 60.0, 300.0, 3600.0)), pasts, n_cpis, st.integers(1, 40))
def test_the_live_trigger_has_a_mn_cpi_that_turns_it_on_whatever_was_seen(step_s, past, shift, vms):
    trigger = NoiseScaledTrigger(step_s)
    for value, count in steps(past):
        trigger.observe(value, count)
        assert trigger.threshold < ROBUST_CLIP
    trigger.shift(shift)
    for _ in range(math.ceil((SPANS_S[-1] + WARM_UP_S) / step_s) + 60):
        trigger.observe(ROBUST_CLIP, vms)
        assert trigger.threshold < ROBUST_CLIP
    assert trigger.is_on
    assert trigger.value > trigger.threshold


@pytest.mark.long
@pytest.mark.parametrize("vms", [1, 3, 25])
@pytest.mark.parametrize("quiet_s", [0, 300, 1200, 3000])
def test_contention_from_the_start_is_found_and_stays_found(quiet_s, vms):
    """Also past the first hour, whose level and noise are those of the contention."""
    contention, step = Contention(AnalysisSection()), 10
    on = []
    for second in range(step, 3 * 3600, step):
        now, n_cpi = T0 + second * S, ROBUST_CLIP if second > quiet_s else 0.2
        windows = [
            CpiWindow(
                vm=f"web-{n}",
                epoch="1",
                name=f"web-{n}",
                job="web",
                latency_sensitive=True,
                start_unix_ns=now - step * S,
                duration_ns=step * S,
                cpu_usage_cores=2.0,
                cpi=1.0,
                cpi_reason=Reason.UNSPECIFIED,
            )
            for n in range(vms)
        ]
        contention.watch(windows, lambda window, n_cpi=n_cpi: n_cpi, 1)
        ages = [second - age * 300 for age in range(3) if second >= age * 300]
        contention.take_slots([slot(ROBUST_CLIP if end > quiet_s else 0.2, vms) for end in ages], now, 300 * S)
        on.append(contention.triggered)
    first = on.index(True)
    assert first * step <= quiet_s + 1200
    assert all(on[first:])
