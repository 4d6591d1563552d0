"""Rates of a VM from two joined readings. Pure: no I/O, no clocks; every time comes with the samples.

A metric is a number or the `Reason` why there is none; never a zero in place of the unknown, never negative or absurd.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter, sub

from agent.sampling.changes import (
    CgroupDelta,
    CpuDelta,
    DiskDelta,
    EventDelta,
    JoinedVm,
    NetworkDelta,
    PerfDelta,
    ProcessDelta,
    RdtDelta,
    VmDelta,
)
from agent.sampling.deltas import delta
from agent.sampling.metric_table import VM_METRICS, HostRates, Value, VmRates
from collector.base import HostCounters, NumaPlacement, Reason

_S = 1_000_000_000
_COUNT = Counter(metric.part for metric in VM_METRICS)  # metrics of each part


@dataclass(frozen=True, slots=True)
class Limits:
    """When a CPI is not to be believed: the counters ran too little of the time, the VM did too little."""

    min_running_ratio: float = 0.2
    min_activity_cores: float = 0.01


def derive(now: JoinedVm, last: JoinedVm, limits: Limits = Limits()) -> VmRates:
    """Make the rates of one VM from two readings of it; of another epoch everything is VM_STARTING.

    GIPS is 1e-9 * instructions / s of wall time (Cloud White); cpi = cycles / instructions; `cpu_usage_cores`
    = CPU time per wall time; `guest_ratio` = guest time per wall time and vCPU; `run_queue_wait_ratio` = time
    runnable but waiting, per wall time and vCPU; `steal_like_ratio` = that time / (it + CPU time). `vcpus_running` is
    of the later reading's instant.
    """
    return rates_of(delta(now, last), limits)


def rates_of(change: VmDelta, limits: Limits = Limits()) -> VmRates:
    """Divide a VM's deltas by their times; see `derive`. Each part gives its metrics in the order of the table."""
    cpu, perf, disk, network, process, cgroup, rdt, numa = change
    threads = _thread_rates(cpu, process)
    return VmRates._make(
        (
            *threads,
            *_perf_rates(perf, threads[0], limits),
            *_disk_rates(disk),
            *_network_rates(network),
            *_process_rates(process, cpu),
            *_cgroup_rates(cgroup),
            *_rdt_rates(rdt),
            _remote_memory(numa),
        )
    )


def derive_host(now: HostCounters, last: HostCounters, dt_ns: int) -> HostRates:
    """Make the host's rates from two readings, `dt_ns` apart. Shares of CPU time are of the time accounted for."""
    return HostRates._make(
        (
            *_host_cpu(now, last),
            *(Reason.NOT_PRESENT if value is None else value for value in _host_gauges(now)),
            *map(_pressure, _host_pressures_ns(now), _host_pressures_ns(last), repeat(dt_ns)),
        )
    )


def _pressure(now_ns: int | None, last_ns: int | None, dt_ns: int) -> Value:
    if now_ns is None or last_ns is None:
        return Reason.NOT_PRESENT
    if now_ns < last_ns or dt_ns <= 0:
        return Reason.COUNTER_RESET if now_ns < last_ns else Reason.STALE
    return min(1.0, (now_ns - last_ns) / dt_ns)


def _host_cpu(now: HostCounters, last: HostCounters) -> tuple[Value, ...]:
    spent = tuple(map(sub, _host_times_ns(now), _host_times_ns(last)))
    # iowait may truly fall by a little: the kernel says so in proc(5). Other times may not.
    if any(value < 0 for index, value in enumerate(spent) if index != _IOWAIT):
        return (Reason.COUNTER_RESET,) * 6
    positive = [max(0, value) for value in spent]
    total = sum(positive)
    return tuple(value / total for value in positive) if total else (Reason.STALE,) * 6


_IOWAIT = 3
_host_times_ns = attrgetter("user_ns", "system_ns", "idle_ns", "iowait_ns", "guest_ns", "steal_ns")
_host_gauges = attrgetter("memory_total_bytes", "memory_available_bytes", "load_1")
_host_pressures_ns = attrgetter("cpu_some_ns", "memory_some_ns", "memory_full_ns", "io_some_ns", "io_full_ns")


def _thread_rates(cpu: CpuDelta | Reason, process: ProcessDelta | Reason) -> tuple[Value, ...]:
    if not isinstance(cpu, CpuDelta):
        return (cpu,) * _COUNT["threads"]
    usage, guest = cpu.cpu_ns / cpu.dt_ns, _guest_ratio(cpu, process)
    wait_ns = cpu.run_queue_wait_ns
    if wait_ns is None:
        return usage, guest, Reason.NOT_PRESENT, Reason.NOT_PRESENT
    wanted_ns = wait_ns + cpu.cpu_ns
    return usage, guest, wait_ns / (cpu.dt_ns * cpu.threads), wait_ns / wanted_ns if wanted_ns else 0.0


def _guest_ratio(cpu: CpuDelta, process: ProcessDelta | Reason) -> Value:
    """Share of time in guest mode: by the threads, else by the process."""
    if cpu.guest_ns is not None:
        return cpu.guest_ns / (cpu.dt_ns * cpu.threads)
    if not isinstance(process, ProcessDelta):
        return process
    if process.guest_ns.__class__ is Reason:
        return process.guest_ns
    # The kernel accounts guest time in ticks, so a VM that never leaves its guests can seem to have a bit too much.
    return min(1.0, process.guest_ns / (process.dt_ns * cpu.threads))


_CYCLES, _INSTRUCTIONS = (EventDelta._fields.index(name) for name in ("cycles", "instructions"))
#: Metric, event, what it is divided by (a place in `EventDelta`) and multiplied with, in the order of the metrics.
EVENT_RATIOS = (
    ("l2_mpki", "l2_misses", _INSTRUCTIONS, 1000.0),
    ("llc_mpki", "llc_misses", _INSTRUCTIONS, 1000.0),
    ("memory_stall_ratio", "memory_stall_cycles", _CYCLES, 1.0),
    ("total_stall_ratio", "total_stall_cycles", _CYCLES, 1.0),
    ("core_stall_ratio", "core_stall_cycles", _CYCLES, 1.0),
)
_IDLE_EVENTS = (Reason.IDLE,) * (1 + len(EVENT_RATIOS))
_MULTIPLEXED = (Reason.MULTIPLEXED,) * 3, (Reason.MULTIPLEXED,) * len(_IDLE_EVENTS)


def _perf_rates(perf: PerfDelta | Reason, usage_cores: Value, limits: Limits) -> tuple[Value, ...]:
    if not isinstance(perf, PerfDelta):
        return (perf,) * _COUNT["perf"]
    # A VM whose threads all slept has had its counters on the whole time: ratio 1, as in scale_delta.
    ratio = perf.running_ns / perf.enabled_ns if perf.enabled_ns else 1.0
    if ratio == 0 or ratio < limits.min_running_ratio:
        return *_MULTIPLEXED[0], ratio, *_MULTIPLEXED[1]
    gips: Value = perf.incomplete or perf.instructions / perf.dt_ns
    if isinstance(usage_cores, float) and usage_cores < limits.min_activity_cores:
        return gips, Reason.IDLE, Reason.IDLE, ratio, *_IDLE_EVENTS
    ipc: Value = Reason.IDLE
    cpi: Value = Reason.IDLE
    if perf.instructions > 0 and perf.cycles > 0:
        ipc, cpi = perf.instructions / perf.cycles, perf.cycles / perf.instructions
    events, missing = perf.events, perf.missing
    reference = events.get("reference_cycles")
    values: list[Value] = [
        missing.get("reference_cycles", Reason.NOT_PRESENT)
        if reference is None
        else _quotient(reference.cycles, reference.counted)
    ]
    for _, name, base, factor in EVENT_RATIOS:
        event = events.get(name)
        values.append(
            missing.get(name, Reason.NOT_PRESENT) if event is None else _quotient(event.counted * factor, event[base])
        )
    return gips, ipc, cpi, ratio, *values


def _quotient(dividend: float, divisor: float) -> Value:
    return dividend / divisor if divisor > 0 else Reason.IDLE


def _disk_rates(disk: DiskDelta | Reason) -> tuple[Value, ...]:
    if not isinstance(disk, DiskDelta):
        return (disk,) * _COUNT["disks"]
    per_s = _S / disk.dt_ns
    return disk.read_bytes * per_s, disk.write_bytes * per_s, disk.read_ops * per_s, disk.write_ops * per_s


def _network_rates(network: NetworkDelta | Reason) -> Sequence[Value]:
    if not isinstance(network, NetworkDelta):
        return (network,) * _COUNT["interfaces"]
    per_s = _S / network.dt_ns
    return [count if count.__class__ is Reason else count * per_s for count in network[3:]]


def _process_rates(process: ProcessDelta | Reason, cpu: CpuDelta | Reason) -> tuple[Value, ...]:
    if not isinstance(process, ProcessDelta):
        return (process,) * _COUNT["process"]
    per_s = _S / process.dt_ns
    read, write = process.storage_read_bytes, process.storage_write_bytes
    # The process's time is counted in ticks and the threads' in nanoseconds: a little less than nothing is nothing.
    emulator: Value = (
        max(0.0, process.cpu_ns / process.dt_ns - cpu.cpu_ns / cpu.dt_ns) if isinstance(cpu, CpuDelta) else cpu
    )
    return (
        read if read.__class__ is Reason else read * per_s,
        write if write.__class__ is Reason else write * per_s,
        emulator,
        process.vcpus_running,
    )


def _cgroup_rates(cgroup: CgroupDelta | Reason) -> tuple[Value, ...]:
    if not isinstance(cgroup, CgroupDelta):
        return (cgroup,) * _COUNT["cgroup"]
    dt_ns = cgroup.dt_ns
    pressures = [v if v.__class__ is Reason else min(1.0, v / dt_ns) for v in cgroup[3:8]]
    throttled = cgroup.throttled_ns
    ratio = throttled if throttled.__class__ is Reason else throttled / dt_ns
    return *pressures, ratio, cgroup.quota_cores, cgroup.memory_bytes


def _rdt_rates(rdt: RdtDelta | Reason) -> tuple[Value, ...]:
    if not isinstance(rdt, RdtDelta):
        return (rdt,) * _COUNT["rdt"]
    total, local = rdt.mbm_total_bytes, rdt.mbm_local_bytes
    return (
        rdt.llc_occupancy_bytes,
        total if total.__class__ is Reason else total * _S / rdt.dt_ns,
        local if local.__class__ is Reason else local * _S / rdt.dt_ns,
    )


def _remote_memory(numa: NumaPlacement | Reason) -> Value:
    """Share of the VM's memory that a vCPU drawn at random has on another node."""
    if not isinstance(numa, NumaPlacement):
        return numa
    memory, vcpus = sum(numa.memory_bytes.values()), sum(numa.vcpus.values())
    if memory <= 0 or vcpus <= 0:
        return Reason.NOT_PRESENT
    local = sum(size * numa.vcpus.get(node, 0) for node, size in numa.memory_bytes.items())
    return 1.0 - local / (memory * vcpus)
