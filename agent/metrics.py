"""The one table of metrics: their names, kinds, units, where they come from and what they mean.

docs/metrics.md is generated from it (tools/generate_docs.py); the fields of `agent.rates.VmRates` and
`HostRates` are its `vm` and `host` rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["METRICS", "PARTS", "PART_SOURCES", "Metric", "Part", "Scope"]

Scope = Literal["vm", "host", "agent"]
Part = Literal["threads", "perf", "disks", "interfaces", "host", "agent"]

#: The parts of a VM's sample, which are the fields of `collector.base.VmSample` and `agent.rates.JoinedVm`.
PARTS: tuple[Literal["threads", "perf", "disks", "interfaces"], ...] = (
    "threads",
    "perf",
    "disks",
    "interfaces",
)

#: Which sources can tell a part, best first: they say why it is absent.
PART_SOURCES: Mapping[str, tuple[str, ...]] = {
    "threads": ("procfs", "simulated", "recorded"),
    "perf": ("perf", "simulated", "recorded"),
    "disks": ("libvirt", "simulated", "recorded"),
    "interfaces": ("libvirt", "simulated", "recorded"),
    "host": ("procfs", "simulated", "recorded"),
}


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


def _host(name: str, meaning: str) -> Metric:
    return Metric(name, "gauge", "ratio", "host", "host", meaning)


#: In the order of the fields of `VmRates`, then `HostRates`, then the agent's own.
METRICS: tuple[Metric, ...] = (
    _vm("threads", "cpu_usage_cores", "cores", "CPU time of the vCPU threads per wall time."),
    _vm(
        "threads",
        "guest_ratio",
        "ratio",
        "Time in guest mode, per wall time and vCPU (Cloud White's %guest).",
    ),
    _vm(
        "threads",
        "run_queue_wait_ratio",
        "ratio",
        "Time in which a vCPU could run and had to wait for a CPU, per wall time and vCPU.",
    ),
    _vm(
        "perf",
        "gips",
        "1e9 instructions/s",
        "Instructions per second of wall time, times 1e-9 (Cloud White).",
    ),
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
    _host("host_cpu_user_ratio", "Share of all CPUs' time in user mode, guests not included."),
    _host("host_cpu_system_ratio", "Share in the kernel, interrupts included."),
    _host("host_cpu_idle_ratio", "Share idle."),
    _host("host_cpu_iowait_ratio", "Share idle while a disk was waited for."),
    _host("host_cpu_guest_ratio", "Share in guests."),
    _host("host_cpu_steal_ratio", "Share taken by a hypervisor below this one."),
    Metric("agent_ticks_total", "counter", "1", "agent", "agent", "Ticks that ran."),
    Metric(
        "agent_missed_ticks_total",
        "counter",
        "1",
        "agent",
        "agent",
        "Ticks skipped because an earlier one was late.",
    ),
    Metric(
        "agent_tick_lateness_seconds",
        "gauge",
        "s",
        "agent",
        "agent",
        "How late the last tick started on its schedule.",
    ),
    Metric(
        "agent_tick_duration_seconds",
        "gauge",
        "s",
        "agent",
        "agent",
        "How long the last tick's work took on the loop.",
    ),
    Metric(
        "agent_vm_errors_total",
        "counter",
        "1",
        "agent",
        "agent",
        "VMs, per tick, left out because their data was bad.",
    ),
    Metric(
        "agent_sink_errors_total",
        "counter",
        "1",
        "agent",
        "agent",
        "Failures of analysis, uplink or local API; none of them stops the tick.",
    ),
    Metric(
        "agent_tick_errors_total", "counter", "1", "agent", "agent", "Ticks whose work failed as a whole."
    ),
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
)
