"""The one table of metrics: a metric is a field of one of these tuples, written with its row as if it were a default.

Rates, /metrics, the columns of `vms` and `top`, the local API and docs/metrics.md follow from it; windows, the wire and
the lake keep those that `whitepanda.common.window_columns` has a row for, by the same name. `agent.sampling.rates`
computes them, part by part.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from collector.base import VM_PARTS, Reason
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
    """

    part: Part
    unit: str
    help: str
    title: str = ""
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


_METRIC: Any = Metric  # Any: a row stands where the type of the field's values is declared
_threads, _perf, _disks, _interfaces, _process, _cgroup, _rdt, _numa = (partial(_METRIC, part) for part in VM_PARTS)
_host = partial(_METRIC, "host", scope="host")
_own = partial(_METRIC, "agent", "", scope="agent")


def _traffic(part: Part, unit: str, meaning: str) -> Any:
    return Metric(part, unit, f"{meaning}, since the agent first saw the VM.", scope="traffic")


class VmRates(NamedTuple):
    """The metrics of a VM over a tick, part by part in the order of `collector.base.VM_PARTS`."""

    cpu_usage_cores: Value = _threads("cores", "CPU time of the vCPU threads per wall time.", "CPU")
    guest_ratio: Value = _threads(
        "ratio", "Time in guest mode, per wall time and vCPU (Cloud White's %guest).", "GUEST%"
    )
    run_queue_wait_ratio: Value = _threads(
        "ratio", "Time in which a vCPU had to wait for a CPU, per wall time and vCPU.", "RUNQ%"
    )
    steal_like_ratio: Value = _threads(
        "ratio", "Waiting time / (waiting time + CPU time) of the vCPUs: the guest's steal."
    )
    gips: Value = _perf("1e9 instructions/s", "Instructions per second of wall time, times 1e-9 (Cloud White).", "GIPS")
    ipc: Value = _perf("instructions/cycle", "Instructions per cycle.")
    cpi: Value = _perf("cycles/instruction", "Cycles per instruction: what PANDA and CPI2 compare.", "CPI")
    running_ratio: Value = _perf(
        "ratio", "Share of the vCPUs' CPU time in which the counters truly ran (1: no multiplexing)."
    )
    frequency_ratio: Value = _perf(
        "ratio", "Cycles per reference cycle: the clock over its nominal one (Arm: over the system counter)."
    )
    l2_mpki: Value = _perf(
        "1/1000 instructions", "Second-level cache misses per 1000 instructions. Comparable within one platform only."
    )
    llc_mpki: Value = _perf("1/1000 instructions", "Last-level cache misses per 1000 instructions.")
    memory_stall_ratio: Value = _perf(
        "ratio", "Share of the cycles in which a vCPU waited for memory. Comparable within one platform only."
    )
    total_stall_ratio: Value = _perf(
        "ratio", "Share of the cycles in which a vCPU did nothing. Comparable within one platform only."
    )
    core_stall_ratio: Value = _perf(
        "ratio", "Share of the cycles lost in the core itself, where the CPU has an event for them."
    )
    disk_read_bytes_per_s: Value = _disks("bytes/s", "Read from all block devices.", "DISK")
    disk_write_bytes_per_s: Value = _disks("bytes/s", "Written to all block devices.", "DISK")
    disk_read_ops_per_s: Value = _disks("1/s", "Read operations.")
    disk_write_ops_per_s: Value = _disks("1/s", "Write operations.")
    network_receive_bytes_per_s: Value = _interfaces("bytes/s", "Received by the guest on all interfaces.", "NET")
    network_transmit_bytes_per_s: Value = _interfaces("bytes/s", "Sent by the guest.", "NET")
    network_receive_packets_per_s: Value = _interfaces("1/s", "Packets received by the guest.")
    network_transmit_packets_per_s: Value = _interfaces("1/s", "Packets sent by the guest.")
    network_receive_drops_per_s: Value = _interfaces("1/s", "Packets for the guest that were dropped.")
    network_transmit_drops_per_s: Value = _interfaces("1/s", "Packets of the guest that were dropped.")
    storage_read_bytes_per_s: Value = _process("bytes/s", "Read from devices for the VM's process.")
    storage_write_bytes_per_s: Value = _process("bytes/s", "Written to devices for the VM's process.")
    emulator_cpu_cores: Value = _process("cores", "CPU time of the VM's process beside its vCPU threads.")
    vcpus_running: Value = _process(
        "threads", "vCPU threads that ran, or waited for a CPU (state R), when they were sampled."
    )
    pressure_cpu_some_ratio: Value = _cgroup("ratio", "Share of time in which some thread waited for a CPU (PSI).")
    pressure_memory_some_ratio: Value = _cgroup("ratio", "Share of time in which some thread waited for memory.")
    pressure_memory_full_ratio: Value = _cgroup("ratio", "Share of time in which all threads waited for memory.")
    pressure_io_some_ratio: Value = _cgroup("ratio", "Share of time in which some thread waited for I/O.")
    pressure_io_full_ratio: Value = _cgroup("ratio", "Share of time in which all threads waited for I/O.")
    cpu_throttled_ratio: Value = _cgroup("ratio", "Time taken away by the CPU quota, per wall time.")
    cpu_quota_cores: Value = _cgroup("cores", "The CPU quota; none is `not_present`.")
    memory_charged_bytes: Value = _cgroup("bytes", "Memory that the VM's control group is charged.")
    llc_occupancy_bytes: Value = _rdt("bytes", "Last-level cache that the VM occupies, all domains.", "LLC")
    memory_bandwidth_bytes_per_s: Value = _rdt("bytes/s", "Memory traffic of the VM, all domains (MBM total).", "MEMBW")
    memory_bandwidth_local_bytes_per_s: Value = _rdt("bytes/s", "Memory traffic to the same node (MBM local).")
    numa_remote_memory_ratio: Value = _numa(
        "ratio", "Share of the VM's memory that is on another node than a vCPU, mean over its vCPUs."
    )


class TrafficTotals(NamedTuple):
    """What a VM has moved so far, for Prometheus' counters; None is not known."""

    disk_read_bytes_total: Total = _traffic("disks", "bytes", "Bytes read from all block devices")
    disk_write_bytes_total: Total = _traffic("disks", "bytes", "Bytes written to all block devices")
    disk_read_ops_total: Total = _traffic("disks", "1", "Read operations")
    disk_write_ops_total: Total = _traffic("disks", "1", "Write operations")
    network_receive_bytes_total: Total = _traffic("interfaces", "bytes", "Bytes received by the guest")
    network_transmit_bytes_total: Total = _traffic("interfaces", "bytes", "Bytes sent by the guest")
    network_receive_packets_total: Total = _traffic("interfaces", "1", "Packets received by the guest")
    network_transmit_packets_total: Total = _traffic("interfaces", "1", "Packets sent by the guest")
    network_receive_drops_total: Total = _traffic("interfaces", "1", "Packets for the guest that were dropped")
    network_transmit_drops_total: Total = _traffic("interfaces", "1", "Packets of the guest that were dropped")
    storage_read_bytes_total: Total = _traffic("process", "bytes", "Bytes read from devices for the VM's process")
    storage_write_bytes_total: Total = _traffic("process", "bytes", "Bytes written to devices for the VM's process")


class HostRates(NamedTuple):
    """The host over a tick: CPU time as shares of all its CPUs, memory, load, pressures."""

    host_cpu_user_ratio: Value = _host("ratio", "Share of all CPUs' time in user mode, guests not included.")
    host_cpu_system_ratio: Value = _host("ratio", "Share in the kernel, interrupts included.")
    host_cpu_idle_ratio: Value = _host("ratio", "Share idle.")
    host_cpu_iowait_ratio: Value = _host("ratio", "Share idle while a disk was waited for.")
    host_cpu_guest_ratio: Value = _host("ratio", "Share in guests.")
    host_cpu_steal_ratio: Value = _host("ratio", "Share taken by a hypervisor below this one.")
    host_memory_total_bytes: Value = _host("bytes", "The host's memory.")
    host_memory_available_bytes: Value = _host("bytes", "Memory available without swapping.")
    host_load_1: Value = _host("tasks", "Load average over one minute.")
    host_pressure_cpu_some_ratio: Value = _host("ratio", "Share of time in which some task waited for a CPU (PSI).")
    host_pressure_memory_some_ratio: Value = _host("ratio", "Share of time in which some task waited for memory.")
    host_pressure_memory_full_ratio: Value = _host("ratio", "Share of time in which all tasks waited for memory.")
    host_pressure_io_some_ratio: Value = _host("ratio", "Share of time in which some task waited for I/O.")
    host_pressure_io_full_ratio: Value = _host("ratio", "Share of time in which all tasks waited for I/O.")


class AgentMetrics(NamedTuple):
    """What the agent measures of itself; None is not known."""

    agent_ticks_total: Own = _own("Ticks that ran.")
    agent_missed_ticks_total: Own = _own("Ticks skipped because an earlier one was late.")
    agent_tick_lateness_seconds: Own = _own("How late the last tick started on its schedule.")
    agent_tick_duration_seconds: Own = _own("How long the last tick's work took on the loop.")
    agent_vm_errors_total: Own = _own("VMs, per tick, left out because their data was bad.")
    agent_sink_errors_total: Own = _own("Failures of analysis, uplink or local API; none of them stops the tick.")
    agent_tick_errors_total: Own = _own("Ticks whose work failed as a whole.")
    agent_windows_total: Own = _own("CPI windows closed.")
    agent_windows_without_cpu_total: Own = _own("Windows dropped because the VM's CPU usage was not known in them.")
    agent_cpu_seconds_total: Own = _own("CPU time that the agent has used.")
    agent_resident_bytes: Own = _own("The agent's resident memory.")
    agent_open_fds: Own = _own("File descriptors that the agent has open.")
    agent_threads: Own = _own("Threads of the agent.")
    agent_refused_scrapes_total: Own = _own(
        "Scrapes of /metrics that were refused (too many at once) or cut off (too slow, or in another's way)."
    )
    agent_clock_steps_total: Own = _own(
        "Steps of the host's wall clock by more than half a second. Rates do not feel them."
    )
    agent_analysis_seconds: Own = _own(
        "How long the last tick's search for victims took on the loop; part of the tick's duration."
    )
    agent_dropped_events_total: Own = _own(
        "Changes of VMs' behaviour that never reached a batch because too many were waiting."
    )


def _rows(fields: Any) -> tuple[Metric, ...]:
    """Take the rows of a tuple's fields, which have no defaults from now on."""
    rows = tuple(
        replace(row, name=name, unit=row.unit or _own_unit(name)) for name, row in fields._field_defaults.items()
    )
    fields._field_defaults.clear()
    fields.__new__.__defaults__ = None
    return rows


def _own_unit(name: str) -> str:
    """Return the unit that Prometheus' names end with."""
    unit = name.removesuffix("_total").rpartition("_")[2]
    return {"seconds": "s", "bytes": "bytes"}.get(unit, "1")


def _other(scope: Scope, **rows: str) -> tuple[Metric, ...]:
    return tuple(Metric("agent", _own_unit(name), text, scope=scope, name=name) for name, text in rows.items())


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
        agent_certificate_expiry_timestamp_seconds=(
            "When a certificate of the agent's own expires, since 1970; by its setting, uplink.tls or metrics.tls."
        ),
    ),
    *_other(
        "source",
        source_success="1 where the source's last sampling worked, else 0; absent if it never worked.",
        source_age_seconds="Age of the source's last sample.",
        source_duration_seconds="How long the source's last sampling took.",
        source_samples_total="Samples that the source gave.",
        source_failures_total="Samplings that failed.",
    ),
    *_other(
        "uplink",
        uplink_connected="1 while the stream to central is up, else 0.",
        uplink_spooled_batches="Batches in the spool.",
        uplink_spooled_bytes="What the spool holds.",
        uplink_acknowledged_batches_total="Batches that central took.",
        uplink_acknowledged_windows_total="Windows that central took.",
        uplink_dropped_batches_total="Batches dropped at the spool's cap.",
        uplink_rejected_rows_total="Windows refused by central, alone or with their batch, or unfit to be sent.",
        uplink_refused_updates_total=(
            "Updates of coefficients that the agent refused: too large, from the future, older, of no known form."
        ),
        uplink_refused_update_rows_total=(
            "Rows left out of updates of coefficients: of jobs not asked for, or not plausible."
        ),
    ),
)
