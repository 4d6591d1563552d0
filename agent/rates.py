"""Rates of a VM from two joined readings. Pure: no I/O, no clocks; every time comes with the samples.

A metric is a number or the `Reason` why there is none; never a zero in place of the unknown, never a negative
or absurd value. Deltas are made per vCPU thread, device and interface, so that what appears or dies between
two readings neither adds its whole past nor takes it away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from collector.base import (
    DiskCounters,
    HostCounters,
    InterfaceCounters,
    PerfCounters,
    Reason,
    ThreadCounters,
)
from collector.perf.scale import scale_delta

__all__ = [
    "CpuDelta",
    "DiskDelta",
    "HostRates",
    "JoinedVm",
    "Limits",
    "NetworkDelta",
    "PerfDelta",
    "Reading",
    "VmDelta",
    "VmRates",
    "delta",
    "derive",
    "derive_host",
    "rates_of",
]

T = TypeVar("T")
Value = float | Reason

_S = 1_000_000_000
# What no counter of today's hardware does. Beyond it a counter was reset, has wrapped or lied.
_MAX_HZ = 20e9
_MAX_BYTES_PER_S = 1e12
_MAX_PER_S = 1e10
# A thread cannot use more CPU time than passes. A sampling under load reads its threads up to this long after
# its time stamp, once more, once less.
_READ_JITTER_NS = _S // 2


class Reading(NamedTuple, Generic[T]):
    """One part (threads, perf, disks or interfaces) of one VM, from one source, with that source's times."""

    source: str
    mono_ns: int
    unix_ns: int
    value: T


class JoinedVm(NamedTuple):
    """What all sources together know of one VM in one epoch. A part that nobody told has its reason."""

    epoch: str
    vcpus: int
    threads: Reading[Mapping[int, ThreadCounters]] | Reason
    perf: Reading[Mapping[int, PerfCounters]] | Reason
    disks: Reading[Mapping[str, DiskCounters]] | Reason
    interfaces: Reading[Mapping[str, InterfaceCounters]] | Reason


@dataclass(frozen=True, slots=True)
class Limits:
    """When a CPI is not to be believed: the counters ran too little of the time, the VM did too little."""

    min_running_ratio: float = 0.2
    min_activity_cores: float = 0.01


class CpuDelta(NamedTuple):
    """CPU time of the vCPU threads, `threads` in number, in `dt_ns` that ended at `mono_ns`, `unix_ns`."""

    dt_ns: int
    mono_ns: int
    unix_ns: int
    threads: int
    guest_ns: int
    cpu_ns: int
    run_queue_wait_ns: int | None


class PerfDelta(NamedTuple):
    """Counts of all vCPU threads, scaled for multiplexing; `running_ns` of `enabled_ns` were truly counted.

    Without any running time the counts are 0 and say nothing.
    `incomplete` says why not all vCPU threads are in the counts: their quotient holds, their sum is too
    small.
    """

    dt_ns: int
    mono_ns: int
    unix_ns: int
    cycles: float
    instructions: float
    enabled_ns: int
    running_ns: float
    incomplete: Reason | None


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
    """Bytes, packets and drops of all network interfaces, as the guest sees the directions."""

    dt_ns: int
    mono_ns: int
    unix_ns: int
    receive_bytes: int
    transmit_bytes: int
    receive_packets: int
    transmit_packets: int
    receive_drops: int
    transmit_drops: int


class VmDelta(NamedTuple):
    """What happened between two readings, part by part; each part over its own source's time."""

    cpu: CpuDelta | Reason
    perf: PerfDelta | Reason
    disk: DiskDelta | Reason
    network: NetworkDelta | Reason


class VmRates(NamedTuple):
    """The metrics of a VM over a tick (docs/metrics.md); field names are metric names."""

    cpu_usage_cores: Value
    guest_ratio: Value
    run_queue_wait_ratio: Value
    gips: Value
    ipc: Value
    cpi: Value
    running_ratio: Value
    disk_read_bytes_per_s: Value
    disk_write_bytes_per_s: Value
    disk_read_ops_per_s: Value
    disk_write_ops_per_s: Value
    network_receive_bytes_per_s: Value
    network_transmit_bytes_per_s: Value
    network_receive_packets_per_s: Value
    network_transmit_packets_per_s: Value
    network_receive_drops_per_s: Value
    network_transmit_drops_per_s: Value


class HostRates(NamedTuple):
    """The host's CPU time over a tick, as shares of all its CPUs; field names are metric names."""

    host_cpu_user_ratio: Value
    host_cpu_system_ratio: Value
    host_cpu_idle_ratio: Value
    host_cpu_iowait_ratio: Value
    host_cpu_guest_ratio: Value
    host_cpu_steal_ratio: Value


def derive(now: JoinedVm, last: JoinedVm, limits: Limits = Limits()) -> VmRates:
    """Make the rates of one VM from two readings of it.

    GIPS is 1e-9 * instructions / s of wall time (Cloud White); cpi = cycles / instructions; `cpu_usage_cores`
    = CPU time per wall time; `guest_ratio` = guest time per wall time and vCPU; `run_queue_wait_ratio` = time
    runnable but waiting, per wall time and vCPU.

    Args:
        now: the later reading.
        last: the earlier one. Of another epoch: everything is VM_STARTING.
        limits: when a CPI is not to be believed.

    Returns:
        A number or a reason for each metric.

    """
    return rates_of(delta(now, last), limits)


def delta(now: JoinedVm, last: JoinedVm) -> VmDelta:
    """Subtract two readings of one VM, part by part; a reason where that cannot be (see `derive`)."""
    if now.epoch != last.epoch:
        starting = Reason.VM_STARTING
        return VmDelta(
            *(
                part if isinstance(part, Reason) else starting
                for part in (now.threads, now.perf, now.disks, now.interfaces)
            )
        )
    return VmDelta(
        _cpu_delta(now.threads, last.threads, now.vcpus),
        _perf_delta(now.perf, last.perf, now.vcpus),
        _disk_delta(now.disks, last.disks),
        _network_delta(now.interfaces, last.interfaces),
    )


def rates_of(change: VmDelta, limits: Limits = Limits()) -> VmRates:
    """Divide a VM's deltas by their times; see `derive`."""
    cpu, perf, disk, network = change
    usage: Value
    guest: Value
    wait: Value
    if isinstance(cpu, Reason):
        usage = guest = wait = cpu
    else:
        usage = cpu.cpu_ns / cpu.dt_ns
        vcpu_ns = cpu.dt_ns * cpu.threads
        guest = cpu.guest_ns / vcpu_ns
        wait = Reason.NOT_PRESENT if cpu.run_queue_wait_ns is None else cpu.run_queue_wait_ns / vcpu_ns
    return VmRates(
        usage,
        guest,
        wait,
        *_perf_rates(perf, usage, limits),
        *_disk_rates(disk),
        *_network_rates(network),
    )


def derive_host(now: HostCounters, last: HostCounters) -> HostRates:
    """Make shares of the host's CPU time from two readings; they are of the time that was accounted for."""
    spent = (
        now.user_ns - last.user_ns,
        now.system_ns - last.system_ns,
        now.idle_ns - last.idle_ns,
        now.iowait_ns - last.iowait_ns,
        now.guest_ns - last.guest_ns,
        now.steal_ns - last.steal_ns,
    )
    # iowait may truly fall by a little: the kernel says so in proc(5). Other times may not.
    if any(value < 0 for index, value in enumerate(spent) if index != _IOWAIT):
        return HostRates(*[Reason.COUNTER_RESET] * 6)
    positive = [max(0, value) for value in spent]
    total = sum(positive)
    if total == 0:
        return HostRates(*[Reason.STALE] * 6)
    return HostRates(*(value / total for value in positive))


_IOWAIT = 3


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
    waits = True
    for tid, thread in now.value.items():
        old = before.get(tid)
        if old is None or old.start_ticks != thread.start_ticks:
            continue
        guest = thread.guest_ns - old.guest_ns
        cpu = thread.cpu_ns - old.cpu_ns
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
    return CpuDelta(dt_ns, now.mono_ns, now.unix_ns, threads, guest_ns, cpu_ns, wait_ns if waits else None)


def _perf_delta(
    now: Reading[Mapping[int, PerfCounters]] | Reason,
    last: Reading[Mapping[int, PerfCounters]] | Reason,
    vcpus: int,
) -> PerfDelta | Reason:
    dt_ns = _interval(now, last)
    if isinstance(dt_ns, Reason) or isinstance(now, Reason) or isinstance(last, Reason):
        return dt_ns if isinstance(dt_ns, Reason) else Reason.NOT_PRESENT
    sums = _sum_groups(now.value, last.value, 2 * dt_ns + _READ_JITTER_NS)
    if isinstance(sums, Reason):
        return sums
    incomplete = Reason.VM_STARTING if sums.groups < max(vcpus, len(now.value)) else None
    return PerfDelta(dt_ns, now.mono_ns, now.unix_ns, *sums[1:], incomplete)


class _GroupSums(NamedTuple):
    """Sums over the groups that both readings have; the fields but the first are those of `PerfDelta`."""

    groups: int
    cycles: float
    instructions: float
    enabled_ns: int
    running_ns: float


def _sum_groups(
    now: Mapping[int, PerfCounters], before: Mapping[int, PerfCounters], most_ns: int
) -> _GroupSums | Reason:
    """Sum the scaled deltas. `most_ns` is the most CPU time that one thread can have had."""
    most_cycles = _MAX_HZ * most_ns / _S
    cycles = instructions = running_ns = 0.0
    enabled_ns = unscheduled_ns = groups = 0
    for tid, counters in now.items():
        old = before.get(tid)
        if old is None or old.opened != counters.opened:
            continue
        groups += 1
        scaled = scale_delta(counters, old)
        if isinstance(scaled, Reason):
            if scaled is not Reason.NOT_SCHEDULED:
                return scaled
            unscheduled_ns += counters.time_enabled_ns - old.time_enabled_ns
            continue
        if scaled.cycles > most_cycles or scaled.instructions > most_cycles or scaled.enabled_ns > most_ns:
            return Reason.INVALID_VALUE
        cycles += scaled.cycles
        instructions += scaled.instructions
        enabled_ns += scaled.enabled_ns
        running_ns += scaled.enabled_ns * scaled.running_ratio
    if groups == 0:
        return Reason.VM_STARTING
    sums = _GroupSums(groups, cycles, instructions, enabled_ns, running_ns)
    return _scale_for(sums, unscheduled_ns, most_ns, most_cycles) if unscheduled_ns else sums


def _scale_for(
    sums: _GroupSums, unscheduled_ns: int, most_ns: int, most_cycles: float
) -> _GroupSums | Reason:
    """Scale for threads that ran while the PMU counted only others: time slices as well, seen from the VM."""
    if unscheduled_ns > most_ns * sums.groups:
        return Reason.INVALID_VALUE
    enabled_ns = sums.enabled_ns + unscheduled_ns
    factor = enabled_ns / sums.enabled_ns if sums.enabled_ns else 0.0
    cycles, instructions = sums.cycles * factor, sums.instructions * factor
    if max(cycles, instructions) > most_cycles * sums.groups:
        return Reason.MULTIPLEXED  # too little of it was counted to scale from
    return _GroupSums(sums.groups, cycles, instructions, enabled_ns, sums.running_ns)


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
    totals = [0, 0, 0, 0, 0, 0]
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
        totals[4] += (e := port.receive_drops - old.receive_drops)
        totals[5] += (f := port.transmit_drops - old.transmit_drops)
        if a < 0 or b < 0 or c < 0 or d < 0 or e < 0 or f < 0:
            return Reason.COUNTER_RESET
    problem = _devices_problem(matched, len(now.value), totals, 2, dt_ns)
    return problem or NetworkDelta(dt_ns, now.mono_ns, now.unix_ns, *totals)


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


def _perf_rates(
    perf: PerfDelta | Reason, usage_cores: Value, limits: Limits
) -> tuple[Value, Value, Value, Value]:
    """Return gips, ipc, cpi and running_ratio."""
    if isinstance(perf, Reason):
        return perf, perf, perf, perf
    # A VM whose threads all slept has had its counters on the whole time: ratio 1, as in scale_delta.
    ratio = perf.running_ns / perf.enabled_ns if perf.enabled_ns else 1.0
    if ratio == 0 or ratio < limits.min_running_ratio:
        return Reason.MULTIPLEXED, Reason.MULTIPLEXED, Reason.MULTIPLEXED, ratio
    gips: Value = perf.incomplete or perf.instructions / perf.dt_ns
    idle = isinstance(usage_cores, float) and usage_cores < limits.min_activity_cores
    if idle or perf.instructions <= 0 or perf.cycles <= 0:
        return gips, Reason.IDLE, Reason.IDLE, ratio
    return gips, perf.instructions / perf.cycles, perf.cycles / perf.instructions, ratio


def _disk_rates(disk: DiskDelta | Reason) -> tuple[Value, ...]:
    if isinstance(disk, Reason):
        return (disk,) * 4
    per_s = _S / disk.dt_ns
    return tuple(count * per_s for count in disk[3:])


def _network_rates(network: NetworkDelta | Reason) -> tuple[Value, ...]:
    if isinstance(network, Reason):
        return (network,) * 6
    per_s = _S / network.dt_ns
    return tuple(count * per_s for count in network[3:])
