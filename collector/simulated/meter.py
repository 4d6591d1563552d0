"""Cumulative counters of a VM, as the sources of a real host report them: whole numbers that never fall."""

from typing import Any

from collector.base import (
    PERF_EVENTS,
    DiskCounters,
    InterfaceCounters,
    PerfCounters,
    PerfGroup,
    ProcessCounters,
    RdtCounters,
    RdtDomain,
    Reason,
    ThreadCounters,
    VmIdentity,
    VmSample,
)
from collector.simulated.model import Vm

_MIB = 1 << 20
_GUEST_SHARE = 0.98  # of a vCPU thread's CPU time; the rest is the hypervisor's work for it
READ_SHARE = 0.6  # of disk traffic
RECEIVE_SHARE = 0.5  # of network traffic
_DISK_OP_BYTES = 16 * 1024
_PACKET_BYTES = 1000
_IMBALANCE = 0.3  # how unevenly a VM's load lies on its vCPUs, see Meter
_LAYOUT = (PERF_EVENTS[:7],)
_LINE_BYTES = 64
_L2_MISSES_PER_LLC_MISS = 3
# Of the cycles of an undisturbed VM. What the others' pressure adds is all waiting for memory.
_BUSY_SHARE = 0.7
_CORE_STALL_SHARE = 0.1
_PROCESS_SHARE = 1.02  # of the vCPU threads' CPU time; what is above 1 is the emulator's


class VmMeter:
    """One VM's counters in one epoch: the `opened`th, from 1, which began at `started_s` of the scenario."""

    def __init__(self, vm: Vm, identity: VmIdentity, started_s: float, opened: int) -> None:
        self.vm = vm
        self.identity = identity
        self.opened = opened
        self._start_ticks = int(started_s * 100) + 1

    def _truth_of(
        self, degradation: float, cpi_uncontended: float, cpi: float, slowdown: float, cores: float
    ) -> dict[str, Any]:
        return {
            "job": self.vm.spec.job,
            "latency_sensitive": self.vm.spec.latency_sensitive,
            "true_degradation": degradation,
            "cpi_uncontended": cpi_uncontended,
            "cpi": cpi,
            "cpu_slowdown": slowdown,
            "cpu_usage_cores": cores,
        }

    def _rdt(self, occupied_bytes: int, moved_bytes: int) -> RdtCounters:
        return RdtCounters(self.opened, {"00": RdtDomain(occupied_bytes, moved_bytes, moved_bytes)}, owner="simulated")


class Meter(VmMeter):
    """Counters of a VM without a profile, on CPUs of `ghz`.

    With x = usage / vcpus, thread i runs at x + d_i * x * (1 - x); the d_i are evenly spread over +-_IMBALANCE and sum
    to 0: the threads sum to the usage, and none exceeds one CPU. So two integrals per VM are enough.
    """

    def __init__(self, vm: Vm, identity: VmIdentity, started_s: float, opened: int, ghz: float) -> None:
        super().__init__(vm, identity, started_s, opened)
        self._ghz = ghz
        n = vm.spec.vcpus
        self._offsets = tuple(_IMBALANCE * (2 * i / (n - 1) - 1) if n > 1 else 0.0 for i in range(n))
        # Last-level misses per CPU time: what it moves from memory, in cache lines.
        self._misses_per_ns = vm.spec.memory_gib_per_s_per_core * (1 << 30) / (1e9 * _LINE_BYTES)
        # Of the average thread, in ns: x and x (1 - x), each integrated; the same divided by CPI, and by degradation.
        self._cpu_ns = self._skew_ns = self._instructions = self._instructions_skew = 0.0
        self._base = self._base_skew = 0.0
        self._wait_ns = self._disk_bytes = self._network_bytes = 0.0
        # Of the whole VM: what it took, and what the same instructions take undisturbed; both at the last truth.
        self._cycles = self._base_cycles = 0.0
        self._truth_cycles = self._truth_base_cycles = 0.0

    def integrate(self, wall_ns: float) -> float:
        """Let `wall_ns` pass at the VM's current rates; return the CPU time of the whole VM in ns."""
        vm, ghz = self.vm, self._ghz
        spec = vm.spec
        usage = vm.usage_cores
        x = usage / spec.vcpus
        even = wall_ns * x
        skew = even * (1 - x)
        self._cpu_ns += even
        self._skew_ns += skew
        per_ns = ghz / vm.cpi
        self._instructions += even * per_ns
        self._instructions_skew += skew * per_ns
        self._base += even / vm.cpi_multiplier
        self._base_skew += skew / vm.cpi_multiplier
        self._wait_ns += wall_ns * (vm.demand_cores - usage) / spec.vcpus
        cpu_ns = wall_ns * usage
        self._cycles += cpu_ns * ghz
        self._base_cycles += cpu_ns * ghz / vm.cpi_multiplier
        self._disk_bytes += cpu_ns * spec.disk_mib_per_s_per_core * (_MIB / 1e9)
        self._network_bytes += cpu_ns * spec.network_mib_per_s_per_core * (_MIB / 1e9)
        return cpu_ns

    def sample(self) -> VmSample:
        """Return the counters as they are now."""
        spec = self.vm.spec
        wait_ns = int(self._wait_ns)
        threads: dict[int, ThreadCounters] = {}
        perf: dict[int, tuple[PerfGroup, ...]] = {}
        for tid, offset in zip(self.identity.vcpu_tids, self._offsets, strict=True):
            thread_ns = self._cpu_ns + offset * self._skew_ns
            threads[tid] = ThreadCounters(int(thread_ns * _GUEST_SHARE), int(thread_ns), wait_ns, self._start_ticks)
            if spec.pmu:
                perf[tid] = (self._perf_group(thread_ns, offset),)
        read, write = int(self._disk_bytes * READ_SHARE), int(self._disk_bytes * (1 - READ_SHARE))
        receive, transmit = (int(self._network_bytes * share) for share in (RECEIVE_SHARE, 1 - RECEIVE_SHARE))
        packets = (receive // _PACKET_BYTES, transmit // _PACKET_BYTES)
        moved = int(self._cpu_ns * len(threads) * self._misses_per_ns) * _LINE_BYTES
        return VmSample(
            self.identity.epoch,
            threads,
            PerfCounters(_LAYOUT, perf) if spec.pmu else None,
            {"vda": DiskCounters(read, write, read // _DISK_OP_BYTES, write // _DISK_OP_BYTES)},
            {"vnet0": InterfaceCounters(receive, transmit, *packets, 0, 0)},
            {} if spec.pmu else {"perf": Reason.NO_PMU},
            process=ProcessCounters(
                int(self._cpu_ns * len(threads) * _PROCESS_SHARE),
                self._start_ticks,
                storage_read_bytes=read,
                storage_write_bytes=write,
            ),
            rdt=self._rdt(int(self.vm.llc_mib * _MIB), moved),
        )

    def _perf_group(self, thread_ns: float, offset: float) -> PerfGroup:
        """Return a thread's counts; those of a multiplexed group are of the time it ran, and the reader scales them."""
        ratio = self.vm.spec.multiplexing_ratio
        counted_ghz = self._ghz * ratio
        cycles = thread_ns * counted_ghz
        calm = (self._base + offset * self._base_skew) * counted_ghz
        misses = thread_ns * (self._misses_per_ns * ratio)
        counts = (
            int(cycles),
            int((self._instructions + offset * self._instructions_skew) * ratio),
            int(cycles),
            int(misses * _L2_MISSES_PER_LLC_MISS),
            int(misses),
            int(cycles - calm * _BUSY_SHARE),
            int(cycles - calm * (_BUSY_SHARE - _CORE_STALL_SHARE)),
        )
        running_ns = int(thread_ns) if ratio == 1 else int(thread_ns * ratio)
        return PerfGroup(self.opened, int(thread_ns), running_ns, counts)

    def truth(self, elapsed_ns: int) -> dict[str, Any]:
        """Return what really happened in the `elapsed_ns` since the last call."""
        cycles = self._cycles - self._truth_cycles
        base = self._base_cycles - self._truth_base_cycles
        self._truth_cycles, self._truth_base_cycles = self._cycles, self._base_cycles
        vm = self.vm
        degradation = cycles / base if base > 0 else vm.cpi_multiplier
        cores = cycles / self._ghz / elapsed_ns if elapsed_ns > 0 else vm.usage_cores
        return self._truth_of(degradation, vm.cpi_uncontended, vm.cpi, vm.cpu_slowdown, cores)
