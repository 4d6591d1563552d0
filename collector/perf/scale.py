"""Scaling of multiplexed counters, per vCPU thread: pure, from two readings of one group."""

from __future__ import annotations

from dataclasses import dataclass

from collector.base import PerfCounters, Reason

__all__ = ["ScaledDelta", "scale_delta"]


@dataclass(frozen=True, slots=True)
class ScaledDelta:
    """What one thread did between two readings, as if its counters had run all the time.

    `enabled_ns` is the CPU time of the thread in which the group could have counted: the kernel advances the
    clock of a per-thread event only while the thread is on a CPU. `running_ratio`, in (0, 1], is the share of
    it in which the counters ran; it is 1 for a thread that slept.
    """

    cycles: float
    instructions: float
    running_ratio: float
    enabled_ns: int


def scale_delta(now: PerfCounters, last: PerfCounters) -> ScaledDelta | Reason:  # noqa: PLR0911 - a reason each
    """Scale the difference of two readings of one group by d(enabled) / d(running), or say why not.

    Deltas are scaled, never totals: a scaled total can go backwards when the running ratio falls.

    A thread that slept from one reading to the next has d(enabled) = 0 and truly executed nothing: that is a
    zero, not a missing value. A thread that ran while its counters did not (d(running) = 0 < d(enabled)) is
    `NOT_SCHEDULED`: unknown. The caller drops what it finds too thinly sampled by `running_ratio`.

    Args:
        now: the later reading.
        last: the earlier reading of the same thread.

    Returns:
        The scaled delta; or COUNTER_RESET for readings of different openings or counts that went back, NO_PMU
        where the CPU lacks one of the two events, NOT_SCHEDULED as above, INVALID_VALUE where the clocks
        contradict the counts.

    """
    if now.opened != last.opened:
        return Reason.COUNTER_RESET
    if now.cycles is None or now.instructions is None or last.cycles is None or last.instructions is None:
        return Reason.NO_PMU
    enabled_ns = now.time_enabled_ns - last.time_enabled_ns
    running_ns = now.time_running_ns - last.time_running_ns
    cycles = now.cycles - last.cycles
    instructions = now.instructions - last.instructions
    if min(enabled_ns, running_ns, cycles, instructions) < 0:
        return Reason.COUNTER_RESET
    if running_ns == 0:
        if cycles or instructions:
            return Reason.INVALID_VALUE
        return ScaledDelta(0.0, 0.0, 1.0, 0) if enabled_ns == 0 else Reason.NOT_SCHEDULED
    if running_ns > enabled_ns:
        return Reason.INVALID_VALUE
    factor = enabled_ns / running_ns
    return ScaledDelta(cycles * factor, instructions * factor, running_ns / enabled_ns, enabled_ns)
