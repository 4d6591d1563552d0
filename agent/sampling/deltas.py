"""Differences of two joined readings of a VM. Pure: no I/O, no clocks; every time comes with the samples.

A part is a difference or the `Reason` why there is none; never a zero in place of the unknown, never a negative or
absurd value. Differences are made per vCPU thread, device, interface and cache domain, so that what appears or dies
between two readings neither adds its whole past nor takes it away.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from agent.sampling.changes import (
    MAX_READ_JITTER_NS,
    CgroupDelta,
    CpuDelta,
    DiskDelta,
    Interval,
    JoinedVm,
    NetworkDelta,
    ProcessDelta,
    RdtDelta,
    Reading,
    VmDelta,
)
from agent.sampling.hardware_deltas import perf_delta
from collector.base import (
    CgroupCounters,
    DiskCounters,
    InterfaceCounters,
    ProcessCounters,
    RdtCounters,
    RdtDomain,
    Reason,
    ThreadCounters,
)

_S = 1_000_000_000
# What no counter of today's hardware does. Beyond it a counter was reset, has wrapped or lied.
_MAX_BYTES_PER_S = 1e12
_MAX_PER_S = 1e10


def delta(now: JoinedVm, last: JoinedVm) -> VmDelta:
    """Subtract two readings of one VM, part by part; a reason where that cannot be (see `rates.derive`)."""
    if now.epoch != last.epoch:
        starting = Reason.VM_STARTING
        return VmDelta(*(starting if isinstance(part, Reading) else part for part in now[2:]))
    return VmDelta(
        *(
            subtract(index, new, old, now.vcpus) if isinstance(new, Reading) else new
            for index, (new, old) in enumerate(zip(now[2:], last[2:], strict=True))
        )
    )


def subtract(part: int, now: Reading[Any], last: Reading[Any] | Reason, vcpus: int) -> Any:
    """Subtract the readings of a part (its place in `VM_PARTS`) of a VM with that many vCPUs; a reason where it cannot.

    `last` may be why there is no earlier reading. Values that are not counters need none.
    """
    if not isinstance(last, Reading):  # the first reading, or the first after too long a gap
        why = Reason.STALE if last is Reason.STALE else Reason.VM_STARTING
    elif now.source != last.source:  # two sources' counters of one thing need not have one zero
        why = Reason.COUNTER_RESET
    elif now.mono_ns > last.mono_ns:
        mono_ns = now.mono_ns
        return _SUBTRACT[part](now.value, last.value, (mono_ns - last.mono_ns, mono_ns, now.unix_ns), vcpus)
    else:
        why = Reason.STALE
    gauges = _GAUGES.get(part)
    return why if gauges is None else gauges(now.value, (0, now.mono_ns, now.unix_ns), why)


def _cpu_delta(
    now: Mapping[int, ThreadCounters], before: Mapping[int, ThreadCounters], interval: Interval, vcpus: int
) -> CpuDelta | Reason:
    dt_ns, mono_ns, unix_ns = interval
    most_ns = 2 * dt_ns + MAX_READ_JITTER_NS
    guest_ns = cpu_ns = wait_ns = threads = 0
    waits = guests = True
    for tid, thread in now.items():
        old = before.get(tid)
        if old is thread:  # it slept, and its source hands on what it had: nothing was added
            threads += 1
            guests = guests and thread.guest_ns is not None
            waits = waits and thread.run_queue_wait_ns is not None
            continue
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
    if threads == 0 or threads < max(vcpus, len(now)):
        return Reason.VM_STARTING
    guest_or_none, wait_or_none = guest_ns if guests else None, wait_ns if waits else None
    return CpuDelta(dt_ns, mono_ns, unix_ns, threads, guest_or_none, cpu_ns, wait_or_none)


def _disk_delta(
    now: Mapping[str, DiskCounters], before: Mapping[str, DiskCounters], interval: Interval, _vcpus: int
) -> DiskDelta | Reason:
    read_bytes = write_bytes = read_ops = write_ops = matched = 0
    for name, device in now.items():
        old = before.get(name)
        if old is None:
            continue
        matched += 1
        read_bytes += (a := device.read_bytes - old.read_bytes)
        write_bytes += (b := device.write_bytes - old.write_bytes)
        read_ops += (c := device.read_ops - old.read_ops)
        write_ops += (d := device.write_ops - old.write_ops)
        if a < 0 or b < 0 or c < 0 or d < 0:
            return Reason.COUNTER_RESET
    most_bytes, most = max(read_bytes, write_bytes), max(read_ops, write_ops)
    problem = _devices_problem(matched, len(now), most_bytes, most, interval[0])
    return problem or DiskDelta(*interval, read_bytes, write_bytes, read_ops, write_ops)


def _network_delta(
    now: Mapping[str, InterfaceCounters], before: Mapping[str, InterfaceCounters], interval: Interval, _vcpus: int
) -> NetworkDelta | Reason:
    receive_bytes = transmit_bytes = receive_packets = transmit_packets = matched = 0
    receive_drops: int | Reason = 0
    transmit_drops: int | Reason = 0
    reset = Reason.COUNTER_RESET
    for name, port in now.items():
        old = before.get(name)
        if old is None:
            continue
        matched += 1
        receive_bytes += (a := port.receive_bytes - old.receive_bytes)
        transmit_bytes += (b := port.transmit_bytes - old.transmit_bytes)
        receive_packets += (c := port.receive_packets - old.receive_packets)
        transmit_packets += (d := port.transmit_packets - old.transmit_packets)
        e, f = _less(port.receive_drops, old.receive_drops), _less(port.transmit_drops, old.transmit_drops)
        if a < 0 or b < 0 or c < 0 or d < 0 or e is reset or f is reset or port.opened != old.opened:
            return reset
        receive_drops, transmit_drops = _plus(receive_drops, e), _plus(transmit_drops, f)
    counts = [receive_packets, transmit_packets]
    counts += [drops for drops in (receive_drops, transmit_drops) if drops.__class__ is not Reason]
    most_bytes = max(receive_bytes, transmit_bytes)
    problem = _devices_problem(matched, len(now), most_bytes, max(counts), interval[0])
    return problem or NetworkDelta(
        *interval, receive_bytes, transmit_bytes, receive_packets, transmit_packets, receive_drops, transmit_drops
    )


def _plus(total: int | Reason, value: int | Reason) -> int | Reason:
    """Add up; a reason where one of them is."""
    if total.__class__ is Reason:
        return total
    return value if value.__class__ is Reason else total + value


def _devices_problem(matched: int, devices: int, most_bytes: int, most: int, dt_ns: int) -> Reason | None:
    """Why a sum over devices is not a rate: none there, none there before, or beyond any device."""
    if devices == 0:
        return Reason.NOT_PRESENT
    if not matched:
        return Reason.VM_STARTING
    device_s = devices * dt_ns / _S
    is_absurd = most_bytes > _MAX_BYTES_PER_S * device_s or most > _MAX_PER_S * device_s
    return Reason.INVALID_VALUE if is_absurd else None


def _process_delta(new: ProcessCounters, old: ProcessCounters, interval: Interval, vcpus: int) -> ProcessDelta | Reason:
    cpu_ns = new.cpu_ns - old.cpu_ns
    if new.start_ticks != old.start_ticks or cpu_ns < 0:
        return Reason.COUNTER_RESET
    absent = new.storage_reason or Reason.NOT_PRESENT
    most_bytes = _MAX_BYTES_PER_S * interval[0] / _S
    running: int | Reason = Reason.NOT_PRESENT
    if new.vcpus_running is not None:
        running = new.vcpus_running if 0 <= new.vcpus_running <= vcpus else Reason.INVALID_VALUE
    return ProcessDelta(
        *interval,
        cpu_ns,
        _less(new.guest_ns, old.guest_ns),
        _less(new.storage_read_bytes, old.storage_read_bytes, most_bytes, absent),
        _less(new.storage_write_bytes, old.storage_write_bytes, most_bytes, absent),
        running,
    )


def _cgroup_delta(new: CgroupCounters, old: CgroupCounters, interval: Interval, _vcpus: int) -> CgroupDelta:
    if old.opened != new.opened:
        return _cgroup_gauges(new, (0, *interval[1:]), Reason.COUNTER_RESET)
    most_ns = 2 * interval[0] + MAX_READ_JITTER_NS
    return CgroupDelta(
        *interval,
        _less(new.cpu_some_ns, old.cpu_some_ns, most_ns),
        _less(new.memory_some_ns, old.memory_some_ns, most_ns),
        _less(new.memory_full_ns, old.memory_full_ns, most_ns),
        _less(new.io_some_ns, old.io_some_ns, most_ns),
        _less(new.io_full_ns, old.io_full_ns, most_ns),
        _less(new.throttled_ns, old.throttled_ns),
        Reason.NOT_PRESENT if new.quota_cores is None else new.quota_cores,
        Reason.NOT_PRESENT if new.memory_bytes is None else new.memory_bytes,
    )


def _cgroup_gauges(new: CgroupCounters, interval: Interval, why: Reason) -> CgroupDelta:
    quota_cores = Reason.NOT_PRESENT if new.quota_cores is None else new.quota_cores
    memory_bytes = Reason.NOT_PRESENT if new.memory_bytes is None else new.memory_bytes
    return CgroupDelta(*interval, *(why,) * 6, quota_cores, memory_bytes)


def _rdt_delta(new: RdtCounters, old: RdtCounters, interval: Interval, _vcpus: int) -> RdtDelta:
    if old.opened != new.opened:
        return _rdt_gauges(new, (0, *interval[1:]), Reason.COUNTER_RESET)
    return RdtDelta(
        *interval,
        _sum_domains(new.domains),
        _domain_bytes(new.domains, old.domains, _total_bytes, interval[0]),
        _domain_bytes(new.domains, old.domains, _local_bytes, interval[0]),
    )


def _rdt_gauges(new: RdtCounters, interval: Interval, why: Reason) -> RdtDelta:
    return RdtDelta(*interval, _sum_domains(new.domains), why, why)


def _sum_domains(domains: Mapping[str, RdtDomain]) -> int | Reason:
    """Return the occupancy of all domains together."""
    total = 0
    for domain in domains.values():
        value = domain.llc_occupancy_bytes
        if value is None:  # a sum over some of the domains would look like a smaller VM
            return domain.reason or Reason.NOT_PRESENT
        total += value
    return total if domains else Reason.NOT_PRESENT


_total_bytes = operator.attrgetter("mbm_total_bytes")
_local_bytes = operator.attrgetter("mbm_local_bytes")


def _domain_bytes(
    now: Mapping[str, RdtDomain],
    before: Mapping[str, RdtDomain],
    counter: Callable[[RdtDomain], int | None],
    dt_ns: int,
) -> int | Reason:
    total = 0
    most = _MAX_BYTES_PER_S * dt_ns / _S
    for name, domain in now.items():
        old = before.get(name)
        if old is None:
            return Reason.VM_STARTING
        moved = _less(counter(domain), counter(old), most, domain.reason or Reason.NOT_PRESENT)
        if moved.__class__ is Reason:
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


#: How each part is subtracted, in the order of `collector.base.VM_PARTS`: the later value, the earlier one, the time
#: between them and the VM's number of vCPUs make the difference, or the reason why there is none.
_SUBTRACT: tuple[Callable[[Any, Any, Interval, int], Any], ...] = (
    _cpu_delta,
    perf_delta,
    _disk_delta,
    _network_delta,
    _process_delta,
    _cgroup_delta,
    _rdt_delta,
    lambda placement, *_: placement,
)
#: By their places, the parts that are known in part without an earlier value.
_GAUGES: dict[int, Callable[[Any, Interval, Reason], Any]] = {
    5: _cgroup_gauges,
    6: _rdt_gauges,
    7: lambda placement, *_: placement,
}
