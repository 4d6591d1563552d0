"""Differences of two joined readings of a VM. Pure: no I/O, no clocks; every time comes with the samples.

A part is a difference or the `Reason` why there is none; never a zero in place of the unknown, never a negative or
absurd value. Differences are made per vCPU thread, device, interface and cache domain, so that what appears or dies
between two readings neither adds its whole past nor takes it away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from collector.base import (
    CgroupCounters,
    DiskCounters,
    InterfaceCounters,
    NumaPlacement,
    PerfCounters,
    PerfGroup,
    ProcessCounters,
    RdtCounters,
    RdtDomain,
    Reason,
    ThreadCounters,
)
from collector.perf.scale import scale_delta

__all__ = [
    "CgroupDelta",
    "CpuDelta",
    "DiskDelta",
    "EventDelta",
    "JoinedVm",
    "NetworkDelta",
    "PerfDelta",
    "ProcessDelta",
    "RdtDelta",
    "Reading",
    "VmDelta",
    "delta",
]

T = TypeVar("T")

_S = 1_000_000_000
# What no counter of today's hardware does. Beyond it a counter was reset, has wrapped or lied.
_MAX_HZ = 20e9
_MAX_BYTES_PER_S = 1e12
_MAX_PER_S = 1e10
# A thread cannot use more CPU time than passes. A sampling under load reads its threads up to this long after
# its time stamp, once more, once less.
_READ_JITTER_NS = _S // 2


class Reading(NamedTuple, Generic[T]):
    """One part of one VM, from one source, with the moment at which it was read."""

    source: str
    mono_ns: int
    unix_ns: int
    value: T


class JoinedVm(NamedTuple):
    """What all sources together know of one VM in one epoch. A part that nobody told has its reason.

    The parts are `collector.base.VM_PARTS`, in that order.
    """

    epoch: str
    vcpus: int
    threads: Reading[Mapping[int, ThreadCounters]] | Reason
    perf: Reading[PerfCounters] | Reason
    disks: Reading[Mapping[str, DiskCounters]] | Reason
    interfaces: Reading[Mapping[str, InterfaceCounters]] | Reason
    process: Reading[ProcessCounters] | Reason = Reason.SOURCE_OFF
    cgroup: Reading[CgroupCounters] | Reason = Reason.SOURCE_OFF
    rdt: Reading[RdtCounters] | Reason = Reason.SOURCE_OFF
    numa: Reading[NumaPlacement] | Reason = Reason.SOURCE_OFF


class CpuDelta(NamedTuple):
    """CPU time of the vCPU threads, `threads` in number, in `dt_ns` that ended at `mono_ns`, `unix_ns`.

    `guest_ns` None: the threads do not tell it, the process does.
    """

    dt_ns: int
    mono_ns: int
    unix_ns: int
    threads: int
    guest_ns: int | None
    cpu_ns: int
    run_queue_wait_ns: int | None


class EventDelta(NamedTuple):
    """Scaled counts of one event, and the cycles and instructions that its group counted beside it."""

    counted: float
    cycles: float
    instructions: float


class PerfDelta(NamedTuple):
    """Counts of the whole VM, scaled for multiplexing; `running_ns` of `enabled_ns` were truly counted.

    Without any running time the counts are 0 and say nothing.
    `incomplete` says why not all vCPU threads are in the counts: their quotient holds, their sum is too
    small. `events` are those beside cycles and instructions that were counted; `missing` says why others were not.
    """

    dt_ns: int
    mono_ns: int
    unix_ns: int
    cycles: float
    instructions: float
    enabled_ns: int
    running_ns: float
    incomplete: Reason | None
    events: Mapping[str, EventDelta]
    missing: Mapping[str, Reason]


class DiskDelta(NamedTuple):
    """Bytes and operations of all block devices."""

    dt_ns: int
    mono_ns: int
    unix_ns: int
    read_bytes: int
    write_bytes: int
    read_ops: int
    write_ops: int


class NetworkDelta(NamedTuple):
    """Bytes, packets and drops of all network interfaces, as the guest sees the directions.

    A reason where an interface does not count its drops.
    """

    dt_ns: int
    mono_ns: int
    unix_ns: int
    receive_bytes: int
    transmit_bytes: int
    receive_packets: int
    transmit_packets: int
    receive_drops: int | Reason
    transmit_drops: int | Reason


class ProcessDelta(NamedTuple):
    """The whole process. A reason where the process does not tell."""

    dt_ns: int
    mono_ns: int
    unix_ns: int
    cpu_ns: int
    guest_ns: int | Reason
    storage_read_bytes: int | Reason
    storage_write_bytes: int | Reason


class CgroupDelta(NamedTuple):
    """The control group: times of pressure and throttling, in `dt_ns`; quota and memory now."""

    dt_ns: int
    mono_ns: int
    unix_ns: int
    cpu_some_ns: int | Reason
    memory_some_ns: int | Reason
    memory_full_ns: int | Reason
    io_some_ns: int | Reason
    io_full_ns: int | Reason
    throttled_ns: int | Reason
    quota_cores: float | Reason
    memory_bytes: int | Reason


class RdtDelta(NamedTuple):
    """All cache domains together: occupancy now, bytes moved in `dt_ns`."""

    dt_ns: int
    mono_ns: int
    unix_ns: int
    llc_occupancy_bytes: int | Reason
    mbm_total_bytes: int | Reason
    mbm_local_bytes: int | Reason


class VmDelta(NamedTuple):
    """What happened between two readings, part by part; each part over its own source's time."""

    cpu: CpuDelta | Reason
    perf: PerfDelta | Reason
    disk: DiskDelta | Reason
    network: NetworkDelta | Reason
    process: ProcessDelta | Reason = Reason.SOURCE_OFF
    cgroup: CgroupDelta | Reason = Reason.SOURCE_OFF
    rdt: RdtDelta | Reason = Reason.SOURCE_OFF
    numa: NumaPlacement | Reason = Reason.SOURCE_OFF


def delta(now: JoinedVm, last: JoinedVm, known: tuple[JoinedVm, JoinedVm, VmDelta] | None = None) -> VmDelta:
    """Subtract two readings of one VM, part by part; a reason where that cannot be (see `agent.rates.derive`).

    `known` are two earlier readings and their difference: what is still the same (disks are polled slowly) is taken
    from there.
    """
    if now.epoch != last.epoch:
        starting = Reason.VM_STARTING
        return VmDelta(*(part if isinstance(part, Reason) else starting for part in now[2:]))
    if known is not None and now.disks is known[0].disks and last.disks is known[1].disks:
        disk = known[2].disk
    else:
        disk = _disk_delta(now.disks, last.disks)
    return VmDelta(
        _cpu_delta(now.threads, last.threads, now.vcpus),
        _perf_delta(now.perf, last.perf, now.vcpus),
        disk,
        _network_delta(now.interfaces, last.interfaces),
        _process_delta(now.process, last.process),
        _cgroup_delta(now.cgroup, last.cgroup),
        _rdt_delta(now.rdt, last.rdt),
        now.numa if isinstance(now.numa, Reason) else now.numa.value,
    )


def _interval(now: Reading[T] | Reason, last: Reading[T] | Reason) -> int | Reason:
    """Time between two readings, or why none can be used."""
    if isinstance(now, Reason):
        return now
    if isinstance(last, Reason):  # the first reading, or the first after too long a gap
        return Reason.STALE if last is Reason.STALE else Reason.VM_STARTING
    if now.source != last.source:  # two sources' counters of one thing need not have one zero
        return Reason.COUNTER_RESET
    dt_ns = now.mono_ns - last.mono_ns
    return dt_ns if dt_ns > 0 else Reason.STALE


def _cpu_delta(
    now: Reading[Mapping[int, ThreadCounters]] | Reason,
    last: Reading[Mapping[int, ThreadCounters]] | Reason,
    vcpus: int,
) -> CpuDelta | Reason:
    dt_ns = _interval(now, last)
    if isinstance(dt_ns, Reason) or isinstance(now, Reason) or isinstance(last, Reason):
        return dt_ns if isinstance(dt_ns, Reason) else Reason.NOT_PRESENT
    most_ns = 2 * dt_ns + _READ_JITTER_NS
    before = last.value
    guest_ns = cpu_ns = wait_ns = threads = 0
    waits = guests = True
    for tid, thread in now.value.items():
        old = before.get(tid)
        if old is None or old.start_ticks != thread.start_ticks:
            continue
        cpu = thread.cpu_ns - old.cpu_ns
        if thread.guest_ns is None or old.guest_ns is None:
            guests, guest = False, 0
        else:
            guest = thread.guest_ns - old.guest_ns
        if guest < 0 or cpu < 0:
            return Reason.COUNTER_RESET
        if cpu > most_ns or guest > most_ns:
            return Reason.INVALID_VALUE
        if thread.run_queue_wait_ns is None or old.run_queue_wait_ns is None:
            waits = False
        else:
            wait = thread.run_queue_wait_ns - old.run_queue_wait_ns
            if not 0 <= wait <= most_ns:
                return Reason.COUNTER_RESET if wait < 0 else Reason.INVALID_VALUE
            wait_ns += wait
        threads += 1
        guest_ns += guest
        cpu_ns += cpu
    if threads == 0 or threads < max(vcpus, len(now.value)):
        return Reason.VM_STARTING
    guest_or_none, wait_or_none = guest_ns if guests else None, wait_ns if waits else None
    return CpuDelta(dt_ns, now.mono_ns, now.unix_ns, threads, guest_or_none, cpu_ns, wait_or_none)


def _perf_delta(
    now: Reading[PerfCounters] | Reason, last: Reading[PerfCounters] | Reason, vcpus: int
) -> PerfDelta | Reason:
    dt_ns = _interval(now, last)
    if isinstance(dt_ns, Reason) or isinstance(now, Reason) or isinstance(last, Reason):
        return dt_ns if isinstance(dt_ns, Reason) else Reason.NOT_PRESENT
    counters, before = now.value, last.value
    if counters.layout != before.layout or counters.scope != before.scope:
        return Reason.COUNTER_RESET
    most_ns = 2 * dt_ns + _READ_JITTER_NS
    cycles = instructions = running_ns = 0.0
    enabled_ns = 0
    groups = len(counters.groups)
    events: dict[str, EventDelta] = {}
    missing = dict(counters.missing)
    for index, layout in enumerate(counters.layout):
        sums = _sum_groups(counters.groups, before.groups, index, most_ns)
        if isinstance(sums, Reason):
            return sums
        groups = min(groups, sums.groups)
        cycles += sums.counts[0]
        instructions += sums.counts[1]
        enabled_ns += sums.enabled_ns
        running_ns += sums.running_ns
        if len(counters.layout) > 1 and not sums.enabled_ns:
            for name in layout[2:]:  # the group was off, or the whole VM slept: a later tick knows
                missing.setdefault(name, Reason.TIME_SLICED)
        else:
            for name, count in zip(layout[2:], sums.counts[2:], strict=True):
                events[name] = EventDelta(count, sums.counts[0], sums.counts[1])
    wanted = max(vcpus, len(counters.groups)) if counters.scope == "thread" else len(counters.groups)
    incomplete = Reason.VM_STARTING if groups < wanted else None
    return PerfDelta(
        dt_ns,
        now.mono_ns,
        now.unix_ns,
        cycles,
        instructions,
        enabled_ns,
        running_ns,
        incomplete,
        events,
        missing,
    )


class _GroupSums(NamedTuple):
    """Sums over the groups of one layout that both readings have."""

    groups: int
    counts: tuple[float, ...]
    enabled_ns: int
    running_ns: float


def _sum_groups(
    now: Mapping[int, tuple[PerfGroup, ...]],
    before: Mapping[int, tuple[PerfGroup, ...]],
    index: int,
    most_ns: int,
) -> _GroupSums | Reason:
    """Sum the scaled deltas. `most_ns` is the most CPU time that one thread can have had."""
    most = _MAX_HZ * most_ns / _S
    totals: list[float] = []
    running_ns = 0.0
    enabled_ns = unscheduled_ns = groups = 0
    for key, counters in now.items():
        old = before.get(key)
        new = counters[index]
        if old is None or old[index].opened != new.opened:
            continue
        groups += 1
        scaled = scale_delta(new, old[index])
        if isinstance(scaled, Reason):
            if scaled is not Reason.NOT_SCHEDULED:
                return scaled
            unscheduled_ns += new.time_enabled_ns - old[index].time_enabled_ns
            continue
        if scaled.enabled_ns > most_ns or max(scaled.counts) > most:
            return Reason.INVALID_VALUE
        totals = (
            [a + b for a, b in zip(totals, scaled.counts, strict=True)] if totals else list(scaled.counts)
        )
        enabled_ns += scaled.enabled_ns
        running_ns += scaled.enabled_ns * scaled.running_ratio
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


def _disk_delta(
    now: Reading[Mapping[str, DiskCounters]] | Reason, last: Reading[Mapping[str, DiskCounters]] | Reason
) -> DiskDelta | Reason:
    dt_ns = _interval(now, last)
    if isinstance(dt_ns, Reason) or isinstance(now, Reason) or isinstance(last, Reason):
        return dt_ns if isinstance(dt_ns, Reason) else Reason.NOT_PRESENT
    totals = [0, 0, 0, 0]
    matched = False
    for name, device in now.value.items():
        old = last.value.get(name)
        if old is None:
            continue
        matched = True
        totals[0] += (a := device.read_bytes - old.read_bytes)
        totals[1] += (b := device.write_bytes - old.write_bytes)
        totals[2] += (c := device.read_ops - old.read_ops)
        totals[3] += (d := device.write_ops - old.write_ops)
        if a < 0 or b < 0 or c < 0 or d < 0:
            return Reason.COUNTER_RESET
    problem = _devices_problem(matched, len(now.value), totals, 2, dt_ns)
    return problem or DiskDelta(dt_ns, now.mono_ns, now.unix_ns, *totals)


def _network_delta(
    now: Reading[Mapping[str, InterfaceCounters]] | Reason,
    last: Reading[Mapping[str, InterfaceCounters]] | Reason,
) -> NetworkDelta | Reason:
    dt_ns = _interval(now, last)
    if isinstance(dt_ns, Reason) or isinstance(now, Reason) or isinstance(last, Reason):
        return dt_ns if isinstance(dt_ns, Reason) else Reason.NOT_PRESENT
    totals = [0, 0, 0, 0]
    receive_drops: int | Reason = 0
    transmit_drops: int | Reason = 0
    matched = False
    for name, port in now.value.items():
        old = last.value.get(name)
        if old is None:
            continue
        matched = True
        totals[0] += (a := port.receive_bytes - old.receive_bytes)
        totals[1] += (b := port.transmit_bytes - old.transmit_bytes)
        totals[2] += (c := port.receive_packets - old.receive_packets)
        totals[3] += (d := port.transmit_packets - old.transmit_packets)
        e, f = _less(port.receive_drops, old.receive_drops), _less(port.transmit_drops, old.transmit_drops)
        reset = Reason.COUNTER_RESET
        if a < 0 or b < 0 or c < 0 or d < 0 or e is reset or f is reset or port.opened != old.opened:
            return reset
        receive_drops, transmit_drops = _plus(receive_drops, e), _plus(transmit_drops, f)
    counts = [*totals, *(drops for drops in (receive_drops, transmit_drops) if not isinstance(drops, Reason))]
    problem = _devices_problem(matched, len(now.value), counts, 2, dt_ns)
    sums = (*totals, receive_drops, transmit_drops)
    return problem or NetworkDelta(dt_ns, now.mono_ns, now.unix_ns, *sums)


def _plus(total: int | Reason, value: int | Reason) -> int | Reason:
    """Add up; what one of them does not tell, the sum does not."""
    if isinstance(total, Reason):
        return total
    return value if isinstance(value, Reason) else total + value


def _devices_problem(
    matched: bool,  # noqa: FBT001 - private, named at each call
    devices: int,
    totals: list[int],
    byte_counters: int,
    dt_ns: int,
) -> Reason | None:
    """Why a sum over devices is no rate: none there, none there before, or beyond any device."""
    if devices == 0:
        return Reason.NOT_PRESENT
    if not matched:
        return Reason.VM_STARTING
    seconds = dt_ns / _S
    most_bytes = devices * _MAX_BYTES_PER_S * seconds
    most = devices * _MAX_PER_S * seconds
    if max(totals[:byte_counters]) > most_bytes or max(totals[byte_counters:]) > most:
        return Reason.INVALID_VALUE
    return None


def _process_delta(
    now: Reading[ProcessCounters] | Reason, last: Reading[ProcessCounters] | Reason
) -> ProcessDelta | Reason:
    dt_ns = _interval(now, last)
    if isinstance(dt_ns, Reason) or isinstance(now, Reason) or isinstance(last, Reason):
        return dt_ns if isinstance(dt_ns, Reason) else Reason.NOT_PRESENT
    new, old = now.value, last.value
    if new.start_ticks != old.start_ticks:
        return Reason.COUNTER_RESET
    cpu_ns = new.cpu_ns - old.cpu_ns
    if cpu_ns < 0:
        return Reason.COUNTER_RESET
    why = new.storage_reason or Reason.NOT_PRESENT
    most_bytes = round(_MAX_BYTES_PER_S * dt_ns / _S)
    return ProcessDelta(
        dt_ns,
        now.mono_ns,
        now.unix_ns,
        cpu_ns,
        _less(new.guest_ns, old.guest_ns),
        _less(new.storage_read_bytes, old.storage_read_bytes, most_bytes, why),
        _less(new.storage_write_bytes, old.storage_write_bytes, most_bytes, why),
    )


def _cgroup_delta(
    now: Reading[CgroupCounters] | Reason, last: Reading[CgroupCounters] | Reason
) -> CgroupDelta | Reason:
    if isinstance(now, Reason):
        return now
    new = now.value
    dt_ns = _interval(now, last)
    gauges = (
        Reason.NOT_PRESENT if new.quota_cores is None else new.quota_cores,
        Reason.NOT_PRESENT if new.memory_bytes is None else new.memory_bytes,
    )
    if not isinstance(dt_ns, Reason) and not isinstance(last, Reason) and last.value.opened != new.opened:
        dt_ns = Reason.COUNTER_RESET
    if isinstance(dt_ns, Reason) or isinstance(last, Reason):
        why = dt_ns if isinstance(dt_ns, Reason) else Reason.VM_STARTING
        return CgroupDelta(0, now.mono_ns, now.unix_ns, *(why,) * 6, *gauges)
    old = last.value
    most_ns = 2 * dt_ns + _READ_JITTER_NS
    return CgroupDelta(
        dt_ns,
        now.mono_ns,
        now.unix_ns,
        _less(new.cpu_some_ns, old.cpu_some_ns, most_ns),
        _less(new.memory_some_ns, old.memory_some_ns, most_ns),
        _less(new.memory_full_ns, old.memory_full_ns, most_ns),
        _less(new.io_some_ns, old.io_some_ns, most_ns),
        _less(new.io_full_ns, old.io_full_ns, most_ns),
        _less(new.throttled_ns, old.throttled_ns),
        *gauges,
    )


def _rdt_delta(now: Reading[RdtCounters] | Reason, last: Reading[RdtCounters] | Reason) -> RdtDelta | Reason:
    if isinstance(now, Reason):
        return now
    domains = now.value.domains
    occupancy = _sum_domains(domains, "llc_occupancy_bytes")
    dt_ns = _interval(now, last)
    if (
        not isinstance(dt_ns, Reason)
        and not isinstance(last, Reason)
        and last.value.opened != now.value.opened
    ):
        dt_ns = Reason.COUNTER_RESET
    if isinstance(dt_ns, Reason) or isinstance(last, Reason):
        why = dt_ns if isinstance(dt_ns, Reason) else Reason.VM_STARTING
        return RdtDelta(0, now.mono_ns, now.unix_ns, occupancy, why, why)
    before = last.value.domains
    return RdtDelta(
        dt_ns,
        now.mono_ns,
        now.unix_ns,
        occupancy,
        _domain_bytes(domains, before, "mbm_total_bytes", dt_ns),
        _domain_bytes(domains, before, "mbm_local_bytes", dt_ns),
    )


def _sum_domains(domains: Mapping[str, RdtDomain], field: str) -> int | Reason:
    total = 0
    for domain in domains.values():
        value = getattr(domain, field)
        if value is None:  # a sum over some of the domains would look like a smaller VM
            return domain.reason or Reason.NOT_PRESENT
        total += value
    return total if domains else Reason.NOT_PRESENT


def _domain_bytes(
    now: Mapping[str, RdtDomain], before: Mapping[str, RdtDomain], field: str, dt_ns: int
) -> int | Reason:
    total = 0
    most = _MAX_BYTES_PER_S * dt_ns / _S
    for name, domain in now.items():
        old = before.get(name)
        if old is None:
            return Reason.VM_STARTING
        moved = _less(getattr(domain, field), getattr(old, field), most, domain.reason or Reason.NOT_PRESENT)
        if isinstance(moved, Reason):
            return moved
        total += moved
    return total if now else Reason.NOT_PRESENT


def _less(
    new: int | None, old: int | None, most: float = float("inf"), why: Reason = Reason.NOT_PRESENT
) -> int | Reason:
    """Subtract two readings of one counter. `why` it is None, if it is."""
    if new is None:
        return why
    if old is None:
        return Reason.VM_STARTING
    value = new - old
    if value < 0:
        return Reason.COUNTER_RESET
    return Reason.INVALID_VALUE if value > most else value
