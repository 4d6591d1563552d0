"""The VMs of a scenario that have profiles: the engine, some steps at a time, and their counters."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from collector.base import (
    PERF_EVENTS,
    CgroupCounters,
    DiskCounters,
    InterfaceCounters,
    PerfCounters,
    PerfGroup,
    ProcessCounters,
    Reason,
    ThreadCounters,
    VmIdentity,
    VmSample,
)
from collector.simulated.engine import Array, Counted, Engine, Guest, Moments
from collector.simulated.meter import VmMeter
from collector.simulated.model import Vm
from collector.simulated.profiles import PROFILES, Machine, Noise
from collector.simulated.scenario import Scenario
from collector.simulated.truth import RoleTracker

_GB_PER_GIB = (1 << 30) / 1e9
_S = 1_000_000_000
_COLUMNS = Counted._fields[:-2]  # of a VM; the last two are the host's
_AT = {name: index for index, name in enumerate(_COLUMNS)}


class VmStep(NamedTuple):
    """One VM in one step: `counted` has the values of `_COLUMNS`; all but the last of the others are of `Rates`."""

    counted: tuple[float, ...]
    cpi: float
    usage_cores: float
    wait_cores: float
    stretch: float
    disk_bytes_per_s: float
    network_bytes_per_s: float
    vcpus_running: float  # vCPU threads at the end of the step; NaN: its requests are not simulated


def machine_of(scenario: Scenario) -> Machine:
    """Make the study's host of a scenario's; latencies are the study's."""
    host = scenario.host
    same = {name: getattr(host, name) for name in ("cpus", "system_cores", "ghz", "llc_mib", "disk_mb_per_s")}
    memory_gb_per_s = host.memory_gib_per_s * _GB_PER_GIB
    return Machine(**same, vm_cpus=host.vm_cpus or host.cpus, memory_gb_per_s=memory_gb_per_s)


def noise_of(scenario: Scenario) -> Noise:
    """Make the study's noise with a scenario's load."""
    return Noise(load_std=scenario.noise.load_std, load_correlation_s=scenario.noise.correlation_s)


class ProfiledHost:
    """The engine of a scenario whose VMs have profiles. With `truth` requests are simulated one by one."""

    def __init__(self, scenario: Scenario, *, truth: bool) -> None:
        active = {antagonist.vm: antagonist.profile for antagonist in scenario.antagonists}
        # All that each VM ever runs, its baseline's first.
        runs = [
            (spec.profile, *(name for _, name in spec.switches), active.get(spec.name) or spec.profile)
            for spec in scenario.vms
        ]
        self._names = [list(dict.fromkeys(names)) for names in runs]
        guests = [
            Guest(spec.name, spec.vcpus, tuple(PROFILES[name] for name in names))
            for spec, names in zip(scenario.vms, self._names, strict=True)
        ]
        self._engine = Engine(
            machine_of(scenario),
            noise_of(scenario),
            guests,
            seed=scenario.seed * 1000 + 1,
            step_s=scenario.host.step_s,
            requests=truth,
        )
        self._tracker = RoleTracker(self._engine.serves) if truth else None
        self._now_s = -1.0
        self.truths: list[dict[str, Any]] = []
        self.iowait_cores = 0.0
        self.io_pressure = 0.0
        if truth:
            # Makes the tables that truth needs, which would delay the first step.
            idle = np.zeros((1, len(guests)))
            self._engine.expect(Moments(np.zeros(1), idle, idle, idle.astype(np.intp), np.ones(1)))

    def steps(
        self,
        elapsed_s: float,
        load: Sequence[Sequence[float]],
        baseline: Sequence[Sequence[float]],
        running: Sequence[Sequence[str]],
    ) -> list[list[VmStep]]:
        """Let steps pass, each `elapsed_s` after the one before. Attributes are then those of the last one.

        `load` is of each VM of the scenario in each step, without noise (0: not there), `baseline` the same at its
        baseline, `running` the profile that each runs.
        """
        first_s = 0.0 if self._now_s < 0 else self._now_s + elapsed_s
        at_s = first_s + elapsed_s * np.arange(len(load), dtype=np.float64)
        self._now_s = float(at_s[-1])
        indices = [[names.index(name) for names, name in zip(self._names, runs, strict=True)] for runs in running]
        loads, baselines = np.array([load, baseline], dtype=np.float64)
        moments = Moments(at_s, loads, baselines, np.array(indices, dtype=np.intp), np.ones(len(at_s)))
        block = self._engine.advance(moments, elapsed_s)
        counted, rates = block.counted, block.rates
        self.iowait_cores = float(counted.host_iowait_cores[-1])
        self.io_pressure = float(counted.host_io_pressure[-1])
        if self._tracker is not None:
            self._note_truth(self._tracker, moments, block.p95_s)
        # (T, VMs, columns), as plain numbers.
        counts = np.stack(counted[: len(_COLUMNS)], axis=-1).tolist()
        of_rates = (getattr(rates, name) for name in VmStep._fields[1:-1])
        others = np.stack((*of_rates, block.vcpus_running), axis=-1).tolist()
        return [
            [VmStep(tuple(values), *row) for values, row in zip(*step, strict=True)]
            for step in zip(counts, others, strict=True)
        ]

    def _note_truth(self, tracker: RoleTracker, moments: Moments, p95_s: Array) -> None:
        expected = self._engine.expect(moments)
        roles = self._engine.roles(tracker, moments, expected)[-1]
        columns = {
            "load_ratio": moments.load,  # offered, without noise
            "p95_latency_s": p95_s,  # measured over the requests that ended; None: none did
            "expected_p95_s": expected.p95_s,
            # Expected p95 over the same with all others at their baselines.
            "true_latency_degradation": np.where(self._engine.serves, expected.degradation, math.nan),
            "cpi_degradation": expected.cpi_degradation,
        }
        rows = np.stack([column[-1] for column in columns.values()], axis=-1).tolist()
        self.truths = [
            {"role": role.value}
            | {name: None if math.isnan(value) else value for name, value in zip(columns, row, strict=True)}
            for role, row in zip(roles, rows, strict=True)
        ]


class ProfileMeter(VmMeter):
    """Counters of a VM with a profile. Its vCPUs share the work evenly."""

    def __init__(self, vm: Vm, identity: VmIdentity, started_s: float, opened: int) -> None:
        super().__init__(vm, identity, started_s, opened)
        # In seconds or pieces, as `Counted` has them per second.
        self._sums = [0.0] * len(_COLUMNS)
        # The step that counted last: the VM's own is already the next one.
        self._step = _step_of(vm)
        self._truth = vm.truth

    def integrate(self, wall_ns: float) -> float:
        """Let `wall_ns` pass at the VM's current rates; return the CPU time of the whole VM in ns."""
        step = self._step = _step_of(self.vm)
        self._truth = self.vm.truth
        wall_s = wall_ns / _S
        sums = self._sums
        for index, rate in enumerate(step.counted):
            sums[index] += rate * wall_s
        return wall_ns * step.usage_cores

    def sample(self) -> VmSample:
        """Return the counters as they are now."""
        tids, spec = self.identity.vcpu_tids, self.vm.spec
        vcpus = len(tids)
        cpu_ns = self._ns("cpu_cores", vcpus)
        thread = ThreadCounters(
            self._ns("guest_cores", vcpus), cpu_ns, self._ns("wait_cores", vcpus), self._start_ticks
        )
        perf = None
        if spec.pmu:
            ratio = spec.multiplexing_ratio
            # Raw counts of a multiplexed group are those of the time it ran; the reader scales them.
            counts = tuple(int(self._sums[_AT[name]] / vcpus * ratio) for name in PERF_EVENTS)
            group = PerfGroup(self.opened, cpu_ns, int(cpu_ns * ratio), counts)
            perf = PerfCounters((PERF_EVENTS,), dict.fromkeys(tids, (group,)))
        disk = self._whole("disk_read_bytes", "disk_write_bytes", "disk_read_ops", "disk_write_ops")
        network = self._whole("receive_bytes", "transmit_bytes", "receive_packets", "transmit_packets")
        drops = [0, 0]
        running = self._step.vcpus_running
        return VmSample(
            self.identity.epoch,
            dict.fromkeys(tids, thread),
            perf,
            {"vda": DiskCounters(*disk)},
            {"vnet0": InterfaceCounters(*network, *drops)},
            {} if spec.pmu else {"perf": Reason.NO_PMU},
            process=ProcessCounters(
                cpu_ns * vcpus + self._ns("emulator_cores"),
                self._start_ticks,
                storage_read_bytes=disk[0],
                storage_write_bytes=disk[1],
                vcpus_running=None if math.isnan(running) else int(running),
            ),
            cgroup=CgroupCounters(
                self.opened,
                self._ns("cpu_pressure"),
                0,
                0,
                self._ns("io_pressure"),
                quota_cores=spec.quota_cores or None,
            ),
            rdt=self._rdt(int(self._step.counted[_AT["llc_bytes"]]), *self._whole("memory_bytes")),
        )

    def truth(self, elapsed_ns: int) -> dict[str, Any]:  # noqa: ARG002 - as the other meter
        """Return what really happened in the last step."""
        step, truth = self._step, self._truth
        slower = truth.get("cpi_degradation", 1.0)
        return self._truth_of(slower, step.cpi / slower, step.cpi, step.stretch, step.usage_cores) | truth

    def _ns(self, name: str, share: int = 1) -> int:
        return int(self._sums[_AT[name]] * _S / share)

    def _whole(self, *names: str) -> list[int]:
        return [int(self._sums[_AT[name]]) for name in names]


def _step_of(vm: Vm) -> VmStep:
    assert vm.step is not None  # noqa: S101 - a host with profiles has stepped before it has meters
    return vm.step
