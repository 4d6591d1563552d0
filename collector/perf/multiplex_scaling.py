"""Scaling of multiplexed counters, per group: pure, from two readings of one group."""

from operator import sub
from typing import NamedTuple

from collector.base import PerfGroup, Reason


class ScaledDelta(NamedTuple):
    """Events between two readings, as if the counters had run all the time.

    `counts` are in the group's order. `enabled_ns` is the CPU time in which the group could have counted (for a thread,
    while it is on a CPU); the counters ran for the share `running_ratio` of it, in (0, 1], 1 for a thread that slept.
    """

    counts: tuple[float, ...]
    running_ratio: float
    enabled_ns: int


def scale_delta(now: PerfGroup, last: PerfGroup) -> ScaledDelta | Reason:  # noqa: PLR0911 - a return per case of the docstring
    """Scale the difference of two readings of one group by d(enabled) / d(running), or say why not.

    Deltas are scaled, never totals: a scaled total can go backwards when the running ratio falls. The caller drops
    deltas with a low `running_ratio`. A thread that slept (d(enabled) = 0) has a delta of zero. COUNTER_RESET: readings
    of different openings, or counts that went back. NOT_SCHEDULED: the thread ran while its counters did not
    (d(running) = 0 < d(enabled)). INVALID_VALUE: the clocks contradict the counts.
    """
    if now.opened != last.opened:
        return Reason.COUNTER_RESET
    enabled_ns = now.time_enabled_ns - last.time_enabled_ns
    running_ns = now.time_running_ns - last.time_running_ns
    if len(now.counts) != len(last.counts):
        raise ValueError("one reading of the group is shorter than the other")
    counts = tuple(map(sub, now.counts, last.counts))
    if enabled_ns < 0 or running_ns < 0 or min(counts) < 0:
        return Reason.COUNTER_RESET
    if running_ns == 0:
        if any(counts):
            return Reason.INVALID_VALUE
        return ScaledDelta((0.0,) * len(counts), 1.0, 0) if enabled_ns == 0 else Reason.NOT_SCHEDULED
    if running_ns > enabled_ns:
        return Reason.INVALID_VALUE
    if running_ns == enabled_ns:
        return ScaledDelta(counts, 1.0, enabled_ns)
    factor = enabled_ns / running_ns
    return ScaledDelta(tuple([count * factor for count in counts]), running_ns / enabled_ns, enabled_ns)
