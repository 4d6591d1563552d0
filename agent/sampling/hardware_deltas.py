"""Differences of a VM's hardware counters, scaled for multiplexing. Pure, as `deltas`, which it is part of."""

from collections.abc import Mapping
from operator import add
from typing import NamedTuple

from agent.sampling.changes import MAX_READ_JITTER_NS, EventDelta, Interval, PerfDelta
from collector.base import PerfCounters, PerfGroup, Reason
from collector.perf.multiplex_scaling import ScaledDelta, scale_delta

_S = 1_000_000_000
_MAX_HZ = 20e9  # what no counter of today's hardware does


def perf_delta(counters: PerfCounters, before: PerfCounters, interval: Interval, vcpus: int) -> PerfDelta | Reason:
    """Subtract two readings of a VM with that many vCPUs; the reason where that cannot be."""
    if counters.layout != before.layout or counters.scope != before.scope:
        return Reason.COUNTER_RESET
    most_ns = 2 * interval[0] + MAX_READ_JITTER_NS
    cycles = instructions = running_ns = 0.0
    enabled_ns = 0
    groups = len(counters.groups)
    events: dict[str, EventDelta] = {}
    several = len(counters.layout) > 1
    missing = dict(counters.missing) if several else counters.missing
    for index, layout in enumerate(counters.layout):
        sums = _sum_groups(counters.groups, before.groups, index, most_ns)
        if not isinstance(sums, _GroupSums):
            return sums
        groups = min(groups, sums.groups)
        group_cycles, group_instructions, *others = sums.counts
        cycles += group_cycles
        instructions += group_instructions
        enabled_ns += sums.enabled_ns
        running_ns += sums.running_ns
        if several and not sums.enabled_ns:  # the group was off, or the whole VM slept: a later tick knows
            missing = dict.fromkeys(layout[2:], Reason.TIME_SLICED) | dict(missing)
        else:
            for name, count in zip(layout[2:], others, strict=True):
                events[name] = EventDelta(count, group_cycles, group_instructions)
    is_short = groups < len(counters.groups) or (counters.scope == "thread" and groups < vcpus)
    incomplete = Reason.VM_STARTING if is_short else None
    return PerfDelta(*interval, cycles, instructions, enabled_ns, running_ns, incomplete, events, missing)


class _GroupSums(NamedTuple):
    """Sums over the groups of one layout that both readings have."""

    groups: int
    counts: tuple[float, ...]
    enabled_ns: int
    running_ns: float


def _sum_groups(
    now: Mapping[int, tuple[PerfGroup, ...]], before: Mapping[int, tuple[PerfGroup, ...]], index: int, most_ns: int
) -> _GroupSums | Reason:
    """Sum the scaled deltas. `most_ns` is the most CPU time that one thread can have had."""
    most = _MAX_HZ * most_ns / _S
    totals: list[float] = []
    running_ns = 0.0
    enabled_ns = unscheduled_ns = groups = 0
    for key, counters in now.items():
        before_that = before.get(key)
        if before_that is None:
            continue
        new, old = counters[index], before_that[index]
        if new.opened != old.opened:
            continue
        groups += 1
        if new is old:  # nothing has moved since, the clocks included: it slept, which adds nothing
            continue
        scaled = scale_delta(new, old)
        if not isinstance(scaled, ScaledDelta):
            if scaled is not Reason.NOT_SCHEDULED:
                return scaled
            unscheduled_ns += new.time_enabled_ns - old.time_enabled_ns
            continue
        counts, running_ratio, group_enabled_ns = scaled
        if group_enabled_ns > most_ns or max(counts) > most:
            return Reason.INVALID_VALUE
        totals = list(map(add, totals, counts)) if totals else list(counts)
        enabled_ns += group_enabled_ns
        running_ns += group_enabled_ns * running_ratio
    if groups == 0:
        return Reason.VM_STARTING
    if not totals:  # all of them ran and none was counted
        totals = [0.0] * len(next(iter(now.values()))[index].counts)
    sums = _GroupSums(groups, tuple(totals), enabled_ns, running_ns)
    return _scale_for(sums, unscheduled_ns, most_ns, most) if unscheduled_ns else sums


def _scale_for(sums: _GroupSums, unscheduled_ns: int, most_ns: int, most: float) -> _GroupSums | Reason:
    """Scale for threads that ran while the PMU counted only others: time slices as well, seen from the VM."""
    if unscheduled_ns > most_ns * sums.groups:
        return Reason.INVALID_VALUE
    enabled_ns = sums.enabled_ns + unscheduled_ns
    factor = enabled_ns / sums.enabled_ns if sums.enabled_ns else 0.0
    counts = tuple(count * factor for count in sums.counts)
    if max(counts) > most * sums.groups:
        return Reason.MULTIPLEXED  # too little of it was counted to scale from
    return _GroupSums(sums.groups, counts, enabled_ns, sums.running_ns)
