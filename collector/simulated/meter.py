"""Cumulative counters of a VM with a profile, as the sources of a real host tell them."""

import math
from typing import Any

from collector.base import (
    PERF_EVENTS,
    CgroupCounters,
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
from collector.simulated.engine import Counted
from collector.simulated.model import Vm

_AT = {name: index for index, name in enumerate(Counted._fields)}
_S = 1_000_000_000


class ProfileMeter:
    """One VM's counters in one epoch. Its vCPUs share the work evenly."""

    __slots__ = ("_step", "_sums", "_truth", "_vcpus", "identity", "opened", "started_s", "vm")

    def __init__(self, vm: Vm, identity: VmIdentity, started_s: float, opened: int) -> None:
        self.vm = vm
        self.identity = identity
        self.started_s = started_s
        self.opened = opened
        self._vcpus = len(identity.vcpu_tids)
        # In seconds or pieces, as `Counted` has them per second.
        self._sums = [0.0] * len(Counted._fields)
        # Of the step that counted last: at its end the VM's own is already the next one's.
        self._step = vm.step
        self._truth = vm.truth

    def integrate(self, wall_ns: float, ghz: float) -> float:  # noqa: ARG002 - as the other meter
        """Let `wall_ns` pass at the VM's current rates; return the CPU time of the whole VM in ns."""
        step = self.vm.step
        if step is None:
            return 0.0
        self._step, self._truth = step, self.vm.truth
        wall_s = wall_ns / _S
        sums = self._sums
        for index, rate in enumerate(step.counted):
            sums[index] += rate * wall_s
        return wall_ns * step.usage_cores

    def sample(self, ghz: float) -> VmSample:  # noqa: ARG002 - as the other meter
        """Make the counters as sources tell them: whole numbers that never fall."""
        sums, vcpus, pmu = self._sums, self._vcpus, self.vm.spec.pmu
        start_ticks = int(self.started_s * 100) + 1

        def ns(name: str, share: int = 1) -> int:
            return int(sums[_AT[name]] * _S / share)

        cpu_ns = ns("cpu_cores", vcpus)
        thread = ThreadCounters(ns("guest_cores", vcpus), cpu_ns, ns("wait_cores", vcpus), start_ticks)
        perf = None
        if pmu:
            ratio = self.vm.spec.multiplexing_ratio
            # Raw counts of a multiplexed group are those of the time it ran; the reader scales them.
            counts = tuple(int(sums[_AT[name]] / vcpus * ratio) for name in PERF_EVENTS)
            group = PerfGroup(self.opened, cpu_ns, int(cpu_ns * ratio), counts)
            perf = PerfCounters((PERF_EVENTS,), dict.fromkeys(self.identity.vcpu_tids, (group,)))
        return VmSample(
            self.identity.epoch,
            dict.fromkeys(self.identity.vcpu_tids, thread),
            perf,
            {"vda": self._disk()},
            {"vnet0": self._interface()},
            {} if pmu else {"perf": Reason.NO_PMU},
            process=ProcessCounters(
                cpu_ns * vcpus + ns("emulator_cores"),
                start_ticks,
                storage_read_bytes=int(sums[_AT["disk_read_bytes"]]),
                storage_write_bytes=int(sums[_AT["disk_write_bytes"]]),
                vcpus_running=self._running(),
            ),
            cgroup=CgroupCounters(self.opened, ns("cpu_pressure"), 0, 0, ns("io_pressure")),
            rdt=self._rdt(),
        )

    def truth(self, ghz: float, elapsed_ns: int) -> dict[str, Any]:  # noqa: ARG002 - as the other meter
        """Tell what really happened in the last step."""
        vm, step, truth = self.vm, self._step, self._truth
        assert step is not None  # noqa: S101 - a host with profiles has stepped before it has meters
        slower = 1.0 if truth is None else truth.cpi_degradation
        told = {
            "job": vm.spec.job,
            "latency_sensitive": vm.spec.latency_sensitive,
            "true_degradation": slower,
            "cpi_uncontended": step.cpi / slower,
            "cpi": step.cpi,
            "cpu_slowdown": step.stretch,
            "cpu_usage_cores": step.usage_cores,
        }
        return told if truth is None else {**told, **truth._asdict()}

    def _running(self) -> int | None:
        """Return how many vCPU threads ran at the end of the step that counted last."""
        step = self._step
        return None if step is None or math.isnan(step.vcpus_running) else int(step.vcpus_running)

    def _disk(self) -> DiskCounters:
        names = ("disk_read_bytes", "disk_write_bytes", "disk_read_ops", "disk_write_ops")
        return DiskCounters(*(int(self._sums[_AT[name]]) for name in names))

    def _interface(self) -> InterfaceCounters:
        receive, transmit, *packets = (
            int(self._sums[_AT[name]])
            for name in ("receive_bytes", "transmit_bytes", "receive_packets", "transmit_packets")
        )
        return InterfaceCounters(receive, transmit, packets[0], packets[1], 0, 0)

    def _rdt(self) -> RdtCounters:
        moved = int(self._sums[_AT["memory_bytes"]])
        step = self._step
        occupied = 0 if step is None else int(step.counted[_AT["llc_bytes"]])
        return RdtCounters(self.opened, {"00": RdtDomain(occupied, moved, moved)}, owner="simulated")
