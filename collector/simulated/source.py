"""The simulated hypervisor as a source: cumulative counters of every VM on the real clocks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from collector.base import (
    DiskCounters,
    HostCounters,
    InterfaceCounters,
    PerfCounters,
    PerfGroup,
    Probe,
    ProcessCounters,
    RdtCounters,
    RdtDomain,
    Reason,
    SourceError,
    SourceSample,
    ThreadCounters,
    VmIdentity,
    VmSample,
)
from collector.simulated.model import Host, Vm
from collector.simulated.scenario import Scenario, load
from whitepanda.common.errors import WhitepandaError

if TYPE_CHECKING:
    from collector.simulated.meter import ProfileMeter


_MIB = 1 << 20
_GUEST_SHARE = 0.98  # of a vCPU thread's CPU time; the rest is the hypervisor's work for it
_READ_SHARE = 0.6  # of disk traffic
_RECEIVE_SHARE = 0.5  # of network traffic
_DISK_OP_BYTES = 16 * 1024
_PACKET_BYTES = 1000
_IMBALANCE = 0.3  # how unevenly a VM's load lies on its vCPUs, see _Meter
_CATCH_UP_STEPS = 600  # a longer pause of the process is one long step, not thousands of short ones
# Made-up ids lie far above any real pid (at most 2^22), so that no other source mistakes them for somebody's.
_FIRST_PID = 10_000_000
_PIDS_PER_VM = 1000
_HOST_SYSTEM_CORES = 0.15  # what the host itself does
_HOST_USER_CORES = 0.1


_LAYOUT = (
    (
        "cycles",
        "instructions",
        "reference_cycles",
        "l2_misses",
        "llc_misses",
        "memory_stall_cycles",
        "total_stall_cycles",
    ),
)
_LINE_BYTES = 64
_L2_MISSES_PER_LLC_MISS = 3
# Of the cycles of a VM that nobody disturbs. What the others' pressure adds is all waiting for memory.
_BUSY_SHARE = 0.7
_CORE_STALL_SHARE = 0.1
_PROCESS_SHARE = 1.02  # of the vCPU threads' CPU time; what is above 1 is the emulator's


class _Meter:
    """One VM's cumulative counters in one epoch.

    With x = usage / vcpus, thread i runs at x + d_i * x * (1 - x), where the d_i are evenly spread over
    +-_IMBALANCE and sum to 0: the threads sum to the usage, and none exceeds one CPU. So two integrals per VM
    are enough.
    """

    __slots__ = (
        "_offsets",
        "_ratio",
        "base_cycles",
        "base_even",
        "base_skew",
        "bytes_disk",
        "bytes_network",
        "cpu_ns",
        "cycles",
        "identity",
        "instructions_even",
        "instructions_skew",
        "opened",
        "skew_ns",
        "started_s",
        "truth_base_cycles",
        "truth_cycles",
        "truth_usage_ns",
        "vm",
        "wait_ns",
    )

    def __init__(self, vm: Vm, identity: VmIdentity, started_s: float, opened: int) -> None:
        self.vm = vm
        self.identity = identity
        self.started_s = started_s
        self.opened = opened
        self._ratio = vm.spec.multiplexing_ratio
        n = vm.spec.vcpus
        self._offsets = tuple(_IMBALANCE * (2 * i / (n - 1) - 1) if n > 1 else 0.0 for i in range(n))
        # Of the average thread, in ns: x and x (1 - x), each integrated; the same divided by CPI.
        self.cpu_ns = self.skew_ns = self.instructions_even = self.instructions_skew = 0.0
        self.base_even = self.base_skew = 0.0  # the same divided by the degradation
        self.wait_ns = self.bytes_disk = self.bytes_network = 0.0
        # Of the whole VM: what it took, and what the same instructions take undisturbed.
        self.cycles = self.base_cycles = 0.0
        self.truth_cycles = self.truth_base_cycles = self.truth_usage_ns = 0.0

    def integrate(self, wall_ns: float, ghz: float) -> float:
        """Let `wall_ns` pass at the VM's current rates; return the CPU time of the whole VM in ns."""
        vm = self.vm
        spec = vm.spec
        usage = vm.usage_cores
        x = usage / spec.vcpus
        even = wall_ns * x
        skew = even * (1 - x)
        self.cpu_ns += even
        self.skew_ns += skew
        per_ns = ghz / vm.cpi
        self.instructions_even += even * per_ns
        self.instructions_skew += skew * per_ns
        self.base_even += even / vm.cpi_multiplier
        self.base_skew += skew / vm.cpi_multiplier
        self.wait_ns += wall_ns * (vm.demand_cores - usage) / spec.vcpus
        cpu_ns = wall_ns * usage
        self.cycles += cpu_ns * ghz
        self.base_cycles += cpu_ns * ghz / vm.cpi_multiplier
        self.bytes_disk += cpu_ns * spec.disk_mib_per_s_per_core * (_MIB / 1e9)
        self.bytes_network += cpu_ns * spec.network_mib_per_s_per_core * (_MIB / 1e9)
        return cpu_ns

    def sample(self, ghz: float) -> VmSample:
        """Make the counters as sources tell them: whole numbers that never fall."""
        threads: dict[int, ThreadCounters] = {}
        perf: dict[int, tuple[PerfGroup, ...]] = {}
        ratio = self._ratio
        pmu = self.vm.spec.pmu
        cpu, skew = self.cpu_ns, self.skew_ns
        instructions, instructions_skew = self.instructions_even, self.instructions_skew
        wait_ns = int(self.wait_ns)
        start_ticks = int(self.started_s * 100) + 1
        opened = self.opened
        counted_ghz = ghz * ratio
        base, base_skew = self.base_even, self.base_skew
        misses_per_ns = self._misses_per_ns() * ratio
        for tid, offset in zip(self.identity.vcpu_tids, self._offsets, strict=True):
            thread_ns = cpu + offset * skew
            whole_ns = int(thread_ns)
            threads[tid] = ThreadCounters(int(thread_ns * _GUEST_SHARE), whole_ns, wait_ns, start_ticks)
            if pmu:
                # Raw counts of a multiplexed group are those of the time it ran; the reader scales them.
                counted = (instructions + offset * instructions_skew) * ratio
                cycles, calm = thread_ns * counted_ghz, (base + offset * base_skew) * counted_ghz
                misses = thread_ns * misses_per_ns
                whole_cycles = int(cycles)
                counts = (
                    whole_cycles,
                    int(counted),
                    whole_cycles,
                    int(misses * _L2_MISSES_PER_LLC_MISS),
                    int(misses),
                    int(cycles - calm * _BUSY_SHARE),
                    int(cycles - calm * (_BUSY_SHARE - _CORE_STALL_SHARE)),
                )
                running_ns = whole_ns if ratio == 1 else int(thread_ns * ratio)
                perf[tid] = (PerfGroup(opened, whole_ns, running_ns, counts),)
        return VmSample(
            self.identity.epoch,
            threads,
            PerfCounters(_LAYOUT, perf) if pmu else None,
            self._disks(),
            self._interfaces(),
            {} if pmu else {"perf": Reason.NO_PMU},
            process=ProcessCounters(
                int(cpu * len(threads) * _PROCESS_SHARE),
                start_ticks,
                storage_read_bytes=int(self.bytes_disk * _READ_SHARE),
                storage_write_bytes=int(self.bytes_disk * (1 - _READ_SHARE)),
            ),
            rdt=self._rdt(),
        )

    def _misses_per_ns(self) -> float:
        """Last-level misses per CPU time: what it moves from memory, in cache lines."""
        return self.vm.spec.memory_gib_per_s_per_core * (1 << 30) / (1e9 * _LINE_BYTES)

    def _rdt(self) -> RdtCounters:
        moved = int(self.cpu_ns * len(self._offsets) * self._misses_per_ns()) * _LINE_BYTES
        occupied = int(self.vm.llc_mib * _MIB)
        return RdtCounters(self.opened, {"00": RdtDomain(occupied, moved, moved)}, owner="simulated")

    def _disks(self) -> dict[str, DiskCounters]:
        read = int(self.bytes_disk * _READ_SHARE)
        write = int(self.bytes_disk * (1 - _READ_SHARE))
        return {"vda": DiskCounters(read, write, read // _DISK_OP_BYTES, write // _DISK_OP_BYTES)}

    def _interfaces(self) -> dict[str, InterfaceCounters]:
        receive = int(self.bytes_network * _RECEIVE_SHARE)
        transmit = int(self.bytes_network * (1 - _RECEIVE_SHARE))
        packets = (receive // _PACKET_BYTES, transmit // _PACKET_BYTES)
        return {"vnet0": InterfaceCounters(receive, transmit, *packets, 0, 0)}

    def truth(self, ghz: float, elapsed_ns: int) -> dict[str, Any]:
        """Tell what really happened since the last call."""
        cycles = self.cycles - self.truth_cycles
        base = self.base_cycles - self.truth_base_cycles
        self.truth_cycles, self.truth_base_cycles = self.cycles, self.base_cycles
        vm = self.vm
        return {
            "job": vm.spec.job,
            "latency_sensitive": vm.spec.latency_sensitive,
            "true_degradation": cycles / base if base > 0 else vm.cpi_multiplier,
            "cpi_uncontended": vm.cpi_uncontended,
            "cpi": vm.cpi,
            "cpu_slowdown": vm.cpu_slowdown,
            "cpu_usage_cores": cycles / ghz / elapsed_ns if elapsed_ns > 0 else vm.usage_cores,
        }


class SimulatedSource:
    """A synthetic hypervisor: VMs with vCPU threads, hardware counters, disks and interfaces.

    It begins when it is opened: every counter is then 0 and the scenario's clock too. What really happens is
    written to `truth_file` (JSON lines, one per sample) for whoever compares; no analysis reads it.
    """

    name = "simulated"

    def __init__(
        self,
        scenario: Path,
        truth_file: Path | None = None,
        *,
        mono_ns: Callable[[], int] = time.monotonic_ns,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._path = scenario
        self._truth_path = truth_file
        self._mono_clock = mono_ns
        self._unix_clock = unix_ns
        self._host: Host | None = None
        self._truth: TextIO | None = None

    def probe(self) -> Probe:
        """Say whether the scenario can be read."""
        try:
            load(self._path)
        except WhitepandaError as error:
            return Probe(available=False, detail=str(error), reason=Reason.NOT_PRESENT)
        return Probe(available=True, detail=f"scenario {self._path}")

    def open(self) -> None:
        """Read the scenario and start its clock.

        Raises:
            SourceError: the scenario is wrong, or the truth file cannot be written.

        """
        self.close()
        try:
            scenario = load(self._path)
        except WhitepandaError as error:
            raise SourceError(str(error), Reason.NOT_PRESENT) from error
        if self._truth_path is not None:
            try:
                self._truth = self._truth_path.open("a", encoding="utf-8", buffering=1)
            except OSError as error:
                raise SourceError(
                    f"simulated: cannot write the truth file {self._truth_path}: {error.strerror}; "
                    "set sources.simulated.truth_file to a writable place or leave it empty",
                    Reason.NO_PERMISSION,
                ) from error
        self._start(scenario)

    def _start(self, scenario: Scenario) -> None:
        self._host = host = Host(scenario, truth=self._truth is not None)
        self._make_meter: type[_Meter | ProfileMeter] = _Meter
        if host.profiled is not None:
            # numpy is only loaded where it is needed.
            from collector.simulated.meter import ProfileMeter  # noqa: PLC0415

            self._make_meter = ProfileMeter
        self._meters: dict[str, _Meter | ProfileMeter] = {}
        self._opened_mono_ns = self._mono_clock()
        self._opened_unix_ns = self._unix_clock()
        self._now_ns = 0  # wall time since then
        self._step_ns = round(scenario.host.step_s * 1e9)
        self._step_end_ns = 0
        self._guest_ns = 0.0
        self._iowait_ns = self._io_pressure_ns = 0.0
        self._truth_ns = 0

    def sample(self) -> SourceSample:
        """Read all counters once.

        Raises:
            SourceError: not open, or the truth file cannot be written any more.

        """
        host = self._host
        if host is None:
            raise SourceError("simulated: not open")
        mono_ns, unix_ns = self._mono_clock(), self._unix_clock()
        self._advance(host, max(mono_ns - self._opened_mono_ns, self._now_ns))
        ghz = host.scenario.host.ghz
        meters = self._meters.values()
        sample = SourceSample(
            self.name,
            mono_ns,
            unix_ns,
            {meter.vm.uuid: meter.sample(ghz) for meter in meters},
            self._host_counters(host),
            tuple(meter.identity for meter in meters),
        )
        if self._truth is not None:
            self._write_truth(self._truth, host, unix_ns)
        return sample

    def close(self) -> None:
        """Stop; a later `open` starts the scenario from its beginning."""
        truth, self._truth, self._host = self._truth, None, None
        if truth is not None:
            truth.close()

    def _advance(self, host: Host, to_ns: int) -> None:
        """Bring all counters to `to_ns`; rates change only on the grid of steps, however often we sample."""
        ghz = host.scenario.host.ghz
        while True:
            until_ns = min(to_ns, self._step_end_ns)
            if until_ns > self._now_ns:
                passed = until_ns - self._now_ns
                for meter in self._meters.values():
                    self._guest_ns += meter.integrate(passed, ghz)
                if host.profiled is not None:
                    self._iowait_ns += passed * host.profiled.iowait_cores
                    self._io_pressure_ns += passed * host.profiled.io_pressure
                self._now_ns = until_ns
            if to_ns < self._step_end_ns:
                return
            self._next_step(host, to_ns)

    def _next_step(self, host: Host, to_ns: int) -> None:
        steps = max(1, (to_ns - self._step_end_ns) // self._step_ns)
        length_ns = steps * self._step_ns if steps > _CATCH_UP_STEPS else self._step_ns
        at_s = self._step_end_ns * 1e-9 * host.scenario.speed
        host.step(at_s, self._opened_unix_ns * 1e-9 + at_s, self._step_ns * 1e-9)
        self._step_end_ns += length_ns
        self._keep_meters(host, at_s)

    def _keep_meters(self, host: Host, at_s: float) -> None:
        """One meter per running VM and epoch: VMs that are away have none, those that return begin at 0."""
        kept: dict[str, _Meter | ProfileMeter] = {}
        for vm in host.running:
            generation = vm.generation_at(at_s) + 1
            meter = self._meters.get(vm.uuid)
            if meter is None or meter.opened != generation:
                meter = self._make_meter(vm, self._identity(host, vm, generation), at_s, generation)
            kept[vm.uuid] = meter
        self._meters = kept

    def _identity(self, host: Host, vm: Vm, generation: int) -> VmIdentity:
        spec = vm.spec
        pid = _FIRST_PID + (host.vms.index(vm) * 1000 + generation) * _PIDS_PER_VM
        started_unix_ns = self._opened_unix_ns + self._now_ns
        return VmIdentity(
            uuid=vm.uuid,
            name=spec.name,
            pid=pid,
            epoch=f"{generation}-{started_unix_ns}",
            vcpu_tids=tuple(range(pid + 1, pid + 1 + spec.vcpus)),
            accelerator="simulated",
            facts={"job": spec.job, "latency_sensitive": "true" if spec.latency_sensitive else "false"},
        )

    def _host_counters(self, host: Host) -> HostCounters:
        cpus = host.scenario.host.cpus
        now = self._now_ns
        user, system = int(now * _HOST_USER_CORES), int(now * _HOST_SYSTEM_CORES)
        guest = int(self._guest_ns)
        if host.profiled is not None:
            system, iowait = int(now * host.scenario.host.system_cores), int(self._iowait_ns)
            return HostCounters(
                cpus=cpus,
                user_ns=0,
                system_ns=system,
                idle_ns=max(0, cpus * now - system - guest - iowait),
                iowait_ns=iowait,
                guest_ns=guest,
                steal_ns=0,
                io_some_ns=int(self._io_pressure_ns),
            )
        return HostCounters(
            cpus=cpus,
            user_ns=user,
            system_ns=system,
            idle_ns=max(0, cpus * now - user - system - guest),
            iowait_ns=0,
            guest_ns=guest,
            steal_ns=0,
        )

    def _write_truth(self, file: TextIO, host: Host, unix_ns: int) -> None:
        elapsed_ns = self._now_ns - self._truth_ns
        self._truth_ns = self._now_ns
        ghz = host.scenario.host.ghz
        line = {
            "unix_ns": unix_ns,
            "since_unix_ns": unix_ns - elapsed_ns,
            "vms": {meter.vm.spec.name: meter.truth(ghz, elapsed_ns) for meter in self._meters.values()},
            "antagonists": list(host.active_antagonists),
        }
        try:
            file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise SourceError(f"simulated: cannot write the truth file {self._truth_path}: {error.strerror}") from error
