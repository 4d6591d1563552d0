"""The one table of metrics: a metric is a field of one of these tuples, with its row beside it.

Rates, /metrics, the columns of `vms` and `top`, the local API and docs/metrics.md follow from it; what of it goes into
windows, onto the wire and into the lake is a column of `whitepanda.common.window_columns`. How a metric is computed
from two samples stands in `agent.sampling.rates`, part by part.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from collector.base import Reason
from collector.inventory.coverage import PART_SOURCES

#: A metric is a number or the reason why there is none.
Value = float | Reason
#: What was counted since the start, and what the agent measures of itself; None is not known.
Total = int | None
Own = float | None

Scope = Literal["vm", "traffic", "host", "agent", "certificate", "source", "uplink"]
Part = Literal["threads", "perf", "disks", "interfaces", "process", "cgroup", "rdt", "numa", "host", "agent"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `part` is what it is made of.

    `title`: of its column in `vms` and `top`, where metrics of one title are summed up; "": it has none there.
    `window`: the column of `whitepanda.common.window_columns` that it goes into; "": it is not kept.
    """

    part: Part
    unit: str
    help: str
    title: str = ""
    window: str = ""
    scope: Scope = "vm"
    name: str = ""

    @property
    def kind(self) -> Literal["gauge", "counter"]:
        """Prometheus' word."""
        return "counter" if self.name.endswith("_total") else "gauge"

    @property
    def source(self) -> str:
        """The sources that it can come from, for people."""
        return "the agent itself" if self.part == "agent" else ", ".join(PART_SOURCES[self.part])


_threads, _perf, _disks, _interfaces, _process, _cgroup, _rdt = (
    partial(Metric, part) for part in ("threads", "perf", "disks", "interfaces", "process", "cgroup", "rdt")
)


def _traffic(part: Part, unit: str, meaning: str) -> Metric:
    return Metric(part, unit, f"{meaning}, since the agent first saw the VM.", scope="traffic")


def _host(meaning: str, unit: str = "ratio") -> Metric:
    return Metric("host", unit, meaning, scope="host")


def _own(unit: str, meaning: str) -> Metric:
    return Metric("agent", unit, meaning, scope="agent")


def _total(meaning: str, unit: str = "1") -> Metric:
    return _own(unit, meaning)


class VmRates(NamedTuple):
    """The metrics of a VM over a tick, part by part in the order of `collector.base.VM_PARTS`."""

    cpu_usage_cores: Annotated[
        Value, _threads("cores", "CPU time of the vCPU threads per wall time.", "CPU", "cpu_usage_cores")
    ]
    guest_ratio: Annotated[
        Value, _threads("ratio", "Time in guest mode, per wall time and vCPU (Cloud White's %guest).", "GUEST%")
    ]
    run_queue_wait_ratio: Annotated[
        Value,
        _threads(
            "ratio",
            "Time in which a vCPU had to wait for a CPU, per wall time and vCPU.",
            "RUNQ%",
            "run_queue_wait_ratio",
        ),
    ]
    steal_like_ratio: Annotated[
        Value, _threads("ratio", "Waiting time / (waiting time + CPU time) of the vCPUs: the guest's steal.")
    ]
    gips: Annotated[
        Value, _perf("1e9 instructions/s", "Instructions per second of wall time, times 1e-9 (Cloud White).", "GIPS")
    ]
    ipc: Annotated[Value, _perf("instructions/cycle", "Instructions per cycle.")]
    cpi: Annotated[
        Value, _perf("cycles/instruction", "Cycles per instruction: what PANDA and CPI2 compare.", "CPI", "cpi")
    ]
    running_ratio: Annotated[
        Value,
        _perf(
            "ratio",
            "Share of the vCPUs' CPU time in which the counters truly ran (1: no multiplexing).",
            window="running_ratio",
        ),
    ]
    frequency_ratio: Annotated[
        Value,
        _perf("ratio", "Cycles per reference cycle: the clock over its nominal one (Arm: over the system counter)."),
    ]
    l2_mpki: Annotated[
        Value,
        _perf(
            "1/1000 instructions",
            "Second-level cache misses per 1000 instructions. Comparable within one platform only.",
        ),
    ]
    llc_mpki: Annotated[Value, _perf("1/1000 instructions", "Last-level cache misses per 1000 instructions.")]
    memory_stall_ratio: Annotated[
        Value,
        _perf(
            "ratio",
            "Share of the cycles in which a vCPU waited for memory. Comparable within one platform only.",
            window="memory_stall_ratio",
        ),
    ]
    total_stall_ratio: Annotated[
        Value, _perf("ratio", "Share of the cycles in which a vCPU did nothing. Comparable within one platform only.")
    ]
    core_stall_ratio: Annotated[
        Value, _perf("ratio", "Share of the cycles lost in the core itself, where the CPU has an event for them.")
    ]
    disk_read_bytes_per_s: Annotated[
        Value, _disks("bytes/s", "Read from all block devices.", "DISK", "disk_bytes_per_s")
    ]
    disk_write_bytes_per_s: Annotated[
        Value, _disks("bytes/s", "Written to all block devices.", "DISK", "disk_bytes_per_s")
    ]
    disk_read_ops_per_s: Annotated[Value, _disks("1/s", "Read operations.")]
    disk_write_ops_per_s: Annotated[Value, _disks("1/s", "Write operations.")]
    network_receive_bytes_per_s: Annotated[
        Value, _interfaces("bytes/s", "Received by the guest on all interfaces.", "NET", "network_bytes_per_s")
    ]
    network_transmit_bytes_per_s: Annotated[
        Value, _interfaces("bytes/s", "Sent by the guest.", "NET", "network_bytes_per_s")
    ]
    network_receive_packets_per_s: Annotated[Value, _interfaces("1/s", "Packets received by the guest.")]
    network_transmit_packets_per_s: Annotated[Value, _interfaces("1/s", "Packets sent by the guest.")]
    network_receive_drops_per_s: Annotated[Value, _interfaces("1/s", "Packets for the guest that were dropped.")]
    network_transmit_drops_per_s: Annotated[Value, _interfaces("1/s", "Packets of the guest that were dropped.")]
    storage_read_bytes_per_s: Annotated[Value, _process("bytes/s", "Read from devices for the VM's process.")]
    storage_write_bytes_per_s: Annotated[Value, _process("bytes/s", "Written to devices for the VM's process.")]
    emulator_cpu_cores: Annotated[Value, _process("cores", "CPU time of the VM's process beside its vCPU threads.")]
    vcpus_running: Annotated[
        Value, _process("threads", "vCPU threads that ran, or waited for a CPU (state R), when they were sampled.")
    ]
    pressure_cpu_some_ratio: Annotated[
        Value, _cgroup("ratio", "Share of time in which some thread waited for a CPU (PSI).")
    ]
    pressure_memory_some_ratio: Annotated[
        Value, _cgroup("ratio", "Share of time in which some thread waited for memory.")
    ]
    pressure_memory_full_ratio: Annotated[
        Value, _cgroup("ratio", "Share of time in which all threads waited for memory.")
    ]
    pressure_io_some_ratio: Annotated[
        Value, _cgroup("ratio", "Share of time in which some thread waited for I/O.", window="io_wait_ratio")
    ]
    pressure_io_full_ratio: Annotated[Value, _cgroup("ratio", "Share of time in which all threads waited for I/O.")]
    cpu_throttled_ratio: Annotated[Value, _cgroup("ratio", "Time taken away by the CPU quota, per wall time.")]
    cpu_quota_cores: Annotated[Value, _cgroup("cores", "The CPU quota; none is `not_present`.")]
    memory_charged_bytes: Annotated[Value, _cgroup("bytes", "Memory that the VM's control group is charged.")]
    llc_occupancy_bytes: Annotated[
        Value, _rdt("bytes", "Last-level cache that the VM occupies, all domains.", "LLC", "llc_occupancy_bytes")
    ]
    memory_bandwidth_bytes_per_s: Annotated[
        Value,
        _rdt("bytes/s", "Memory traffic of the VM, all domains (MBM total).", "MEMBW", "memory_bandwidth_bytes_per_s"),
    ]
    memory_bandwidth_local_bytes_per_s: Annotated[
        Value, _rdt("bytes/s", "Memory traffic to the same node (MBM local).")
    ]
    numa_remote_memory_ratio: Annotated[
        Value,
        Metric("numa", "ratio", "Share of the VM's memory that is on another node than a vCPU, mean over its vCPUs."),
    ]


class TrafficTotals(NamedTuple):
    """What a VM has moved so far, for Prometheus' counters; None is not known."""

    disk_read_bytes_total: Annotated[Total, _traffic("disks", "bytes", "Bytes read from all block devices")]
    disk_write_bytes_total: Annotated[Total, _traffic("disks", "bytes", "Bytes written to all block devices")]
    disk_read_ops_total: Annotated[Total, _traffic("disks", "1", "Read operations")]
    disk_write_ops_total: Annotated[Total, _traffic("disks", "1", "Write operations")]
    network_receive_bytes_total: Annotated[Total, _traffic("interfaces", "bytes", "Bytes received by the guest")]
    network_transmit_bytes_total: Annotated[Total, _traffic("interfaces", "bytes", "Bytes sent by the guest")]
    network_receive_packets_total: Annotated[Total, _traffic("interfaces", "1", "Packets received by the guest")]
    network_transmit_packets_total: Annotated[Total, _traffic("interfaces", "1", "Packets sent by the guest")]
    network_receive_drops_total: Annotated[
        Total, _traffic("interfaces", "1", "Packets for the guest that were dropped")
    ]
    network_transmit_drops_total: Annotated[
        Total, _traffic("interfaces", "1", "Packets of the guest that were dropped")
    ]
    storage_read_bytes_total: Annotated[
        Total, _traffic("process", "bytes", "Bytes read from devices for the VM's process")
    ]
    storage_write_bytes_total: Annotated[
        Total, _traffic("process", "bytes", "Bytes written to devices for the VM's process")
    ]


class HostRates(NamedTuple):
    """The host over a tick: CPU time as shares of all its CPUs, memory, load, pressures."""

    host_cpu_user_ratio: Annotated[Value, _host("Share of all CPUs' time in user mode, guests not included.")]
    host_cpu_system_ratio: Annotated[Value, _host("Share in the kernel, interrupts included.")]
    host_cpu_idle_ratio: Annotated[Value, _host("Share idle.")]
    host_cpu_iowait_ratio: Annotated[Value, _host("Share idle while a disk was waited for.")]
    host_cpu_guest_ratio: Annotated[Value, _host("Share in guests.")]
    host_cpu_steal_ratio: Annotated[Value, _host("Share taken by a hypervisor below this one.")]
    host_memory_total_bytes: Annotated[Value, _host("The host's memory.", "bytes")]
    host_memory_available_bytes: Annotated[Value, _host("Memory available without swapping.", "bytes")]
    host_load_1: Annotated[Value, _host("Load average over one minute.", "tasks")]
    host_pressure_cpu_some_ratio: Annotated[Value, _host("Share of time in which some task waited for a CPU (PSI).")]
    host_pressure_memory_some_ratio: Annotated[Value, _host("Share of time in which some task waited for memory.")]
    host_pressure_memory_full_ratio: Annotated[Value, _host("Share of time in which all tasks waited for memory.")]
    host_pressure_io_some_ratio: Annotated[Value, _host("Share of time in which some task waited for I/O.")]
    host_pressure_io_full_ratio: Annotated[Value, _host("Share of time in which all tasks waited for I/O.")]


class AgentMetrics(NamedTuple):
    """What the agent measures of itself; None is not known."""

    agent_ticks_total: Annotated[Own, _total("Ticks that ran.")]
    agent_missed_ticks_total: Annotated[Own, _total("Ticks skipped because an earlier one was late.")]
    agent_tick_lateness_seconds: Annotated[Own, _own("s", "How late the last tick started on its schedule.")]
    agent_tick_duration_seconds: Annotated[Own, _own("s", "How long the last tick's work took on the loop.")]
    agent_vm_errors_total: Annotated[Own, _total("VMs, per tick, left out because their data was bad.")]
    agent_sink_errors_total: Annotated[
        Own, _total("Failures of analysis, uplink or local API; none of them stops the tick.")
    ]
    agent_tick_errors_total: Annotated[Own, _total("Ticks whose work failed as a whole.")]
    agent_windows_total: Annotated[Own, _total("CPI windows closed.")]
    agent_windows_without_cpu_total: Annotated[
        Own, _total("Windows dropped because the VM's CPU usage was not known in them.")
    ]
    agent_cpu_seconds_total: Annotated[Own, _total("CPU time that the agent has used.", "s")]
    agent_resident_bytes: Annotated[Own, _own("bytes", "The agent's resident memory.")]
    agent_open_fds: Annotated[Own, _own("1", "File descriptors that the agent has open.")]
    agent_threads: Annotated[Own, _own("1", "Threads of the agent.")]
    agent_refused_scrapes_total: Annotated[
        Own,
        _total("Scrapes of /metrics that were refused (too many at once) or cut off (too slow, or in another's way)."),
    ]
    agent_clock_steps_total: Annotated[
        Own, _total("Steps of the host's wall clock by more than half a second. Rates do not feel them.")
    ]
    agent_analysis_seconds: Annotated[
        Own, _own("s", "How long the last tick's search for victims took on the loop; part of the tick's duration.")
    ]
    agent_dropped_events_total: Annotated[
        Own, _total("Changes of VMs' behaviour that never reached a batch because too many were waiting.")
    ]


def _rows(fields: type[Any]) -> tuple[Metric, ...]:
    hints = get_type_hints(fields, include_extras=True)
    return tuple(replace(hints[name].__metadata__[0], name=name) for name in fields._fields)


def _other(scope: Scope, *rows: tuple[str, str, str]) -> tuple[Metric, ...]:
    return tuple(Metric("agent", unit, text, scope=scope, name=name) for name, unit, text in rows)


#: The rows of each tuple, in the order of its fields.
VM_METRICS, TRAFFIC_METRICS, HOST_METRICS = _rows(VmRates), _rows(TrafficTotals), _rows(HostRates)
#: All: those of the tuples, then those of each own certificate, of each source, and of the stream to central.
METRICS: tuple[Metric, ...] = (
    *VM_METRICS,
    *TRAFFIC_METRICS,
    *HOST_METRICS,
    *_rows(AgentMetrics),
    *_other(
        "certificate",
        (
            "agent_certificate_expiry_timestamp_seconds",
            "s",
            "When a certificate of the agent's own expires, since 1970; by its setting, uplink.tls or metrics.tls.",
        ),
    ),
    *_other(
        "source",
        ("source_success", "1", "1 where the source's last sampling worked, else 0; absent if it never worked."),
        ("source_age_seconds", "s", "Age of the source's last sample."),
        ("source_duration_seconds", "s", "How long the source's last sampling took."),
        ("source_samples_total", "1", "Samples that the source gave."),
        ("source_failures_total", "1", "Samplings that failed."),
    ),
    *_other(
        "uplink",
        ("uplink_connected", "1", "1 while the stream to central is up, else 0."),
        ("uplink_spooled_batches", "1", "Batches in the spool."),
        ("uplink_spooled_bytes", "bytes", "What the spool holds."),
        ("uplink_acknowledged_batches_total", "1", "Batches that central took."),
        ("uplink_acknowledged_windows_total", "1", "Windows that central took."),
        ("uplink_dropped_batches_total", "1", "Batches dropped at the spool's cap."),
        (
            "uplink_rejected_rows_total",
            "1",
            "Windows refused by central, alone or with their batch, or unfit to be sent.",
        ),
        (
            "uplink_refused_updates_total",
            "1",
            "Updates of coefficients that the agent refused: too large, from the future, older, of no known form.",
        ),
        (
            "uplink_refused_update_rows_total",
            "1",
            "Rows left out of updates of coefficients: of jobs not asked for, or not plausible.",
        ),
    ),
)
