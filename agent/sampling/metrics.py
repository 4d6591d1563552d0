"""The one table of metrics: their names, kinds, units, where they come from and what they mean.

docs/metrics.md is generated from it (tools/generate_docs.py); the fields of `agent.sampling.rates.VmRates` and
`HostRates` are its `vm` and `host` rows, `agent.sampling.traffic.TRAFFIC` its `traffic` rows. `certificate`,
`source` and `uplink` rows are of each own certificate, of each source and of the stream to central.
"""

from dataclasses import dataclass
from typing import Literal

from collector.inventory.coverage import PART_SOURCES

Scope = Literal["vm", "traffic", "host", "agent", "certificate", "source", "uplink"]
Part = Literal["threads", "perf", "disks", "interfaces", "process", "cgroup", "rdt", "numa", "host", "agent"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `part` is what it is made of; `kind` is Prometheus' word."""

    name: str
    kind: Literal["gauge", "counter"]
    unit: str
    scope: Scope
    part: Part
    help: str

    @property
    def source(self) -> str:
        """The sources that it can come from, for people."""
        return "the agent itself" if self.part == "agent" else ", ".join(PART_SOURCES[self.part])


def _vm(part: Part, name: str, unit: str, meaning: str) -> Metric:
    return Metric(name, "gauge", unit, "vm", part, meaning)


def _host(name: str, meaning: str, unit: str = "ratio") -> Metric:
    return Metric(name, "gauge", unit, "host", "host", meaning)


def _traffic(part: Part, name: str, unit: str, meaning: str) -> Metric:
    return Metric(name, "counter", unit, "traffic", part, f"{meaning}, since the agent first saw the VM.")


def _own(scope: Scope, name: str, kind: Literal["gauge", "counter"], unit: str, meaning: str) -> Metric:
    return Metric(name, kind, unit, scope, "agent", meaning)


#: In the order of the fields of `VmRates`, then of `TRAFFIC`, then of `HostRates`, then the agent's own.
METRICS: tuple[Metric, ...] = (
    _vm("threads", "cpu_usage_cores", "cores", "CPU time of the vCPU threads per wall time."),
    _vm("threads", "guest_ratio", "ratio", "Time in guest mode, per wall time and vCPU (Cloud White's %guest)."),
    _vm(
        "threads",
        "run_queue_wait_ratio",
        "ratio",
        "Time in which a vCPU could run and had to wait for a CPU, per wall time and vCPU.",
    ),
    _vm("perf", "gips", "1e9 instructions/s", "Instructions per second of wall time, times 1e-9 (Cloud White)."),
    _vm("perf", "ipc", "instructions/cycle", "Instructions per cycle."),
    _vm("perf", "cpi", "cycles/instruction", "Cycles per instruction: what PANDA and CPI2 compare."),
    _vm(
        "perf",
        "running_ratio",
        "ratio",
        "Share of the vCPUs' CPU time in which the counters truly ran (1: no multiplexing).",
    ),
    _vm("disks", "disk_read_bytes_per_s", "bytes/s", "Read from all block devices."),
    _vm("disks", "disk_write_bytes_per_s", "bytes/s", "Written to all block devices."),
    _vm("disks", "disk_read_ops_per_s", "1/s", "Read operations."),
    _vm("disks", "disk_write_ops_per_s", "1/s", "Write operations."),
    _vm("interfaces", "network_receive_bytes_per_s", "bytes/s", "Received by the guest on all interfaces."),
    _vm("interfaces", "network_transmit_bytes_per_s", "bytes/s", "Sent by the guest."),
    _vm("interfaces", "network_receive_packets_per_s", "1/s", "Packets received by the guest."),
    _vm("interfaces", "network_transmit_packets_per_s", "1/s", "Packets sent by the guest."),
    _vm("interfaces", "network_receive_drops_per_s", "1/s", "Packets for the guest that were dropped."),
    _vm("interfaces", "network_transmit_drops_per_s", "1/s", "Packets of the guest that were dropped."),
    _vm(
        "threads",
        "steal_like_ratio",
        "ratio",
        "Of the time in which the vCPUs wanted to run, the share in which they had to wait: the guest's steal.",
    ),
    _vm(
        "perf",
        "frequency_ratio",
        "ratio",
        "Cycles per reference cycle: the clock's frequency over its nominal one (on Arm over the system counter's).",
    ),
    _vm(
        "perf",
        "l2_mpki",
        "1/1000 instructions",
        "Misses of the second-level cache per 1000 instructions. Comparable within one platform only.",
    ),
    _vm("perf", "llc_mpki", "1/1000 instructions", "Misses of the last-level cache per 1000 instructions."),
    _vm(
        "perf",
        "memory_stall_ratio",
        "ratio",
        "Share of the cycles in which a vCPU waited for memory. Comparable within one platform only.",
    ),
    _vm(
        "perf",
        "total_stall_ratio",
        "ratio",
        "Share of the cycles in which a vCPU got nothing done. Comparable within one platform only.",
    ),
    _vm(
        "perf",
        "core_stall_ratio",
        "ratio",
        "Share of the cycles lost in the core itself, where the CPU has an event of its own for them.",
    ),
    _vm(
        "process",
        "storage_read_bytes_per_s",
        "bytes/s",
        "Read from devices for the VM's process, as the host's kernel sees it.",
    ),
    _vm("process", "storage_write_bytes_per_s", "bytes/s", "Written to devices for the VM's process."),
    _vm("process", "emulator_cpu_cores", "cores", "CPU time of the VM's process beside its vCPU threads."),
    _vm("cgroup", "pressure_cpu_some_ratio", "ratio", "Share of time in which some thread waited for a CPU (PSI)."),
    _vm("cgroup", "pressure_memory_some_ratio", "ratio", "Share of time in which some thread waited for memory."),
    _vm("cgroup", "pressure_memory_full_ratio", "ratio", "Share of time in which all threads waited for memory."),
    _vm("cgroup", "pressure_io_some_ratio", "ratio", "Share of time in which some thread waited for I/O."),
    _vm("cgroup", "pressure_io_full_ratio", "ratio", "Share of time in which all threads waited for I/O."),
    _vm("cgroup", "cpu_throttled_ratio", "ratio", "Time taken away by the CPU quota, per wall time."),
    _vm("cgroup", "cpu_quota_cores", "cores", "The CPU quota; none is `not_present`."),
    _vm("cgroup", "memory_charged_bytes", "bytes", "Memory that the VM's control group is charged."),
    _vm("rdt", "llc_occupancy_bytes", "bytes", "Last-level cache that the VM occupies, all domains."),
    _vm("rdt", "memory_bandwidth_bytes_per_s", "bytes/s", "Memory traffic of the VM, all domains (MBM total)."),
    _vm("rdt", "memory_bandwidth_local_bytes_per_s", "bytes/s", "Memory traffic to the same node (MBM local)."),
    _vm(
        "numa",
        "numa_remote_memory_ratio",
        "ratio",
        "Share of the VM's memory that is on another node than a vCPU, mean over its vCPUs.",
    ),
    _vm(
        "process",
        "vcpus_running",
        "threads",
        "vCPU threads that ran, or waited for a CPU (state R), at the instant of the sampling.",
    ),
    _traffic("disks", "disk_read_bytes_total", "bytes", "Bytes read from all block devices"),
    _traffic("disks", "disk_write_bytes_total", "bytes", "Bytes written to all block devices"),
    _traffic("disks", "disk_read_ops_total", "1", "Read operations"),
    _traffic("disks", "disk_write_ops_total", "1", "Write operations"),
    _traffic("interfaces", "network_receive_bytes_total", "bytes", "Bytes received by the guest"),
    _traffic("interfaces", "network_transmit_bytes_total", "bytes", "Bytes sent by the guest"),
    _traffic("interfaces", "network_receive_packets_total", "1", "Packets received by the guest"),
    _traffic("interfaces", "network_transmit_packets_total", "1", "Packets sent by the guest"),
    _traffic("interfaces", "network_receive_drops_total", "1", "Packets for the guest that were dropped"),
    _traffic("interfaces", "network_transmit_drops_total", "1", "Packets of the guest that were dropped"),
    _traffic("process", "storage_read_bytes_total", "bytes", "Bytes read from devices for the VM's process"),
    _traffic("process", "storage_write_bytes_total", "bytes", "Bytes written to devices for the VM's process"),
    _host("host_cpu_user_ratio", "Share of all CPUs' time in user mode, guests not included."),
    _host("host_cpu_system_ratio", "Share in the kernel, interrupts included."),
    _host("host_cpu_idle_ratio", "Share idle."),
    _host("host_cpu_iowait_ratio", "Share idle while a disk was waited for."),
    _host("host_cpu_guest_ratio", "Share in guests."),
    _host("host_cpu_steal_ratio", "Share taken by a hypervisor below this one."),
    _host("host_memory_total_bytes", "The host's memory.", "bytes"),
    _host("host_memory_available_bytes", "Memory that could be had without swapping.", "bytes"),
    _host("host_load_1", "Load average over one minute.", "tasks"),
    _host("host_pressure_cpu_some_ratio", "Share of time in which some task waited for a CPU (PSI)."),
    _host("host_pressure_memory_some_ratio", "Share of time in which some task waited for memory."),
    _host("host_pressure_memory_full_ratio", "Share of time in which all tasks waited for memory."),
    _host("host_pressure_io_some_ratio", "Share of time in which some task waited for I/O."),
    _host("host_pressure_io_full_ratio", "Share of time in which all tasks waited for I/O."),
    Metric("agent_ticks_total", "counter", "1", "agent", "agent", "Ticks that ran."),
    Metric(
        "agent_missed_ticks_total", "counter", "1", "agent", "agent", "Ticks skipped because an earlier one was late."
    ),
    Metric(
        "agent_tick_lateness_seconds", "gauge", "s", "agent", "agent", "How late the last tick started on its schedule."
    ),
    Metric(
        "agent_tick_duration_seconds", "gauge", "s", "agent", "agent", "How long the last tick's work took on the loop."
    ),
    Metric(
        "agent_vm_errors_total", "counter", "1", "agent", "agent", "VMs, per tick, left out because their data was bad."
    ),
    Metric(
        "agent_sink_errors_total",
        "counter",
        "1",
        "agent",
        "agent",
        "Failures of analysis, uplink or local API; none of them stops the tick.",
    ),
    Metric("agent_tick_errors_total", "counter", "1", "agent", "agent", "Ticks whose work failed as a whole."),
    Metric("agent_windows_total", "counter", "1", "agent", "agent", "CPI windows closed."),
    Metric(
        "agent_windows_without_cpu_total",
        "counter",
        "1",
        "agent",
        "agent",
        "Windows dropped because the VM's CPU usage was not known in them.",
    ),
    Metric("agent_cpu_seconds_total", "counter", "s", "agent", "agent", "CPU time that the agent has used."),
    Metric("agent_resident_bytes", "gauge", "bytes", "agent", "agent", "The agent's resident memory."),
    Metric("agent_open_fds", "gauge", "1", "agent", "agent", "File descriptors that the agent has open."),
    Metric("agent_threads", "gauge", "1", "agent", "agent", "Threads of the agent."),
    _own(
        "agent",
        "agent_refused_scrapes_total",
        "counter",
        "1",
        "Scrapes of /metrics that were turned away (too many at once) or cut off (too slow, or in the way of another).",
    ),
    Metric(
        "agent_clock_steps_total",
        "counter",
        "1",
        "agent",
        "agent",
        "Steps of the host's wall clock by more than half a second. Rates do not feel them.",
    ),
    _own(
        "agent",
        "agent_analysis_seconds",
        "gauge",
        "s",
        "How long the last tick's search for victims took on the loop; part of the tick's duration.",
    ),
    _own(
        "agent",
        "agent_dropped_events_total",
        "counter",
        "1",
        "Changes of VMs' behaviour that never reached a batch because too many were waiting.",
    ),
    _own(
        "certificate",
        "agent_certificate_expiry_timestamp_seconds",
        "gauge",
        "s",
        "When a certificate of the agent's own expires, since 1970; by its setting, uplink.tls or metrics.tls.",
    ),
    _own(
        "source",
        "source_success",
        "gauge",
        "1",
        "1 where the source's last sampling worked, else 0; of a source that never worked here nothing.",
    ),
    _own("source", "source_age_seconds", "gauge", "s", "Age of the source's last sample."),
    _own("source", "source_duration_seconds", "gauge", "s", "How long the source's last sampling took."),
    _own("source", "source_samples_total", "counter", "1", "Samples that the source gave."),
    _own("source", "source_failures_total", "counter", "1", "Samplings that failed."),
    _own("uplink", "uplink_connected", "gauge", "1", "1 while the stream to central is up, else 0."),
    _own("uplink", "uplink_spooled_batches", "gauge", "1", "Batches in the spool."),
    _own("uplink", "uplink_spooled_bytes", "gauge", "bytes", "What the spool holds."),
    _own("uplink", "uplink_acknowledged_batches_total", "counter", "1", "Batches that central took."),
    _own("uplink", "uplink_acknowledged_windows_total", "counter", "1", "Windows that central took."),
    _own("uplink", "uplink_dropped_batches_total", "counter", "1", "Batches dropped at the spool's cap."),
    _own(
        "uplink",
        "uplink_rejected_rows_total",
        "counter",
        "1",
        "Windows refused by central, alone or with their batch, or unfit to be sent.",
    ),
    _own(
        "uplink",
        "uplink_refused_updates_total",
        "counter",
        "1",
        "Updates of coefficients that the agent refused: too large, created in the future, older, of no known form.",
    ),
    _own(
        "uplink",
        "uplink_refused_update_rows_total",
        "counter",
        "1",
        "Rows left out of updates of coefficients: of jobs not asked for, or not plausible.",
    ),
)
