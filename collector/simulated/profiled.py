"""The VMs of a scenario that have profiles: the study's engine, one step at a time."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from collector.simulated.engine import Counted, Engine, Guest, Moments
from collector.simulated.profiles import HOST, NOISE, PROFILES, Machine, Noise
from collector.simulated.scenario import Antagonist, Scenario, VmSpec
from collector.simulated.truth import RoleTracker

_GB_PER_GIB = (1 << 30) / 1e9
_MIB = float(1 << 20)


class VmStep(NamedTuple):
    """One VM in one step: `counted` has per second what `engine.Counted` names, in its order."""

    counted: tuple[float, ...]
    cpi: float
    usage_cores: float
    wait_cores: float
    stretch: float
    llc_mib: float
    disk_bytes_per_s: float
    network_bytes_per_s: float
    vcpus_running: float  # vCPU threads at the end of the step; NaN: its requests are not simulated


class VmTruth(NamedTuple):
    """What is true of a VM in a step."""

    role: str
    load_ratio: float  # offered, without noise
    p95_latency_s: float | None  # measured over the requests that ended; None: none did
    expected_p95_s: float | None
    true_latency_degradation: float | None  # expected p95 over that with all others at their baselines
    cpi_degradation: float


def machine_of(scenario: Scenario) -> Machine:
    """Make the study's host of a scenario's; latencies are the study's."""
    host = scenario.host
    return replace(
        HOST,
        cpus=host.cpus,
        vm_cpus=host.vm_cpus or host.cpus,
        system_cores=host.system_cores,
        ghz=host.ghz,
        llc_mib=host.llc_mib,
        memory_gb_per_s=host.memory_gib_per_s * _GB_PER_GIB,
        disk_mb_per_s=host.disk_mb_per_s,
    )


def noise_of(scenario: Scenario) -> Noise:
    """Make the study's noise with a scenario's load."""
    noise = scenario.noise
    return replace(NOISE, load_std=noise.load_std, load_correlation_s=noise.correlation_s)


class ProfiledHost:
    """What `engine.Engine` tells of a scenario.

    Args:
        scenario: one whose VMs have profiles.
        truth: whether truth is asked for: requests are simulated one by one only then.

    """

    def __init__(self, scenario: Scenario, *, truth: bool) -> None:
        active = {antagonist.vm: antagonist for antagonist in scenario.antagonists}
        self._names = [_profiles(spec, active.get(spec.name)) for spec in scenario.vms]
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
        self._tracker = self._engine.tracker() if truth else None
        self._now_s = -1.0
        self.truths: list[VmTruth] = []
        self.iowait_cores = 0.0
        self.io_pressure = 0.0
        if truth:
            # Tables that truth needs take a while to make: not in the first step, somebody may wait for that.
            nobody = np.zeros((1, len(guests)))
            self._engine.expect(Moments(np.zeros(1), nobody, nobody, nobody.astype(np.intp), np.ones(1)))

    def step(
        self, elapsed_s: float, load: Sequence[float], baseline: Sequence[float], running: Sequence[str]
    ) -> list[VmStep]:
        """Let a step begin.

        Args:
            elapsed_s: since the step before began.
            load: of each VM of the scenario, without noise; 0: not there.
            baseline: likewise, its load at its baseline.
            running: the profile that each runs.

        """
        return self.steps(elapsed_s, [load], [baseline], [running])[0]

    def steps(
        self,
        elapsed_s: float,
        load: Sequence[Sequence[float]],
        baseline: Sequence[Sequence[float]],
        running: Sequence[Sequence[str]],
    ) -> list[list[VmStep]]:
        """Let steps pass, each `elapsed_s` after the one before; what is left behind is the last one's.

        Args:
            elapsed_s: likewise for the first one.
            load: as of `step`, for each step.
            baseline: likewise.
            running: likewise.

        """
        first_s = 0.0 if self._now_s < 0 else self._now_s + elapsed_s
        at_s = first_s + elapsed_s * np.arange(len(load), dtype=np.float64)
        self._now_s = float(at_s[-1])
        indices = [[names.index(name) for names, name in zip(self._names, runs, strict=True)] for runs in running]
        moments = Moments(
            at_s,
            np.array(load, dtype=np.float64),
            np.array(baseline, dtype=np.float64),
            np.array(indices, dtype=np.intp),
            np.ones(len(at_s)),
        )
        block = self._engine.advance(moments, elapsed_s)
        counted, rates = block.counted, block.rates
        self.iowait_cores = float(counted.host_iowait_cores[-1])
        self.io_pressure = float(counted.host_io_pressure[-1])
        if self._tracker is not None:
            self._note_truth(self._tracker, moments, block.p95_s[-1].tolist())
        # (T, VMs, columns), then plain numbers.
        counts = np.stack(counted[: len(Counted._fields) - 2], axis=-1).tolist()
        others = np.stack(
            (
                rates.cpi,
                rates.usage_cores,
                rates.wait_cores,
                rates.stretch,
                rates.llc_bytes / _MIB,
                rates.disk_bytes_per_s,
                rates.network_bytes_per_s,
                block.vcpus_running,
            ),
            axis=-1,
        ).tolist()
        return [
            [VmStep(tuple(values), *row) for values, row in zip(*step, strict=True)]
            for step in zip(counts, others, strict=True)
        ]

    def _note_truth(self, tracker: RoleTracker, moments: Moments, p95_s: list[float]) -> None:
        expected = self._engine.expect(moments)
        roles = self._engine.roles(tracker, moments, expected)[-1]
        serves = self._engine.serves.tolist()
        self.truths = [
            VmTruth(
                role.value,
                load,
                None if math.isnan(measured) else measured,
                None if math.isnan(p95) else p95,
                degradation if serving else None,
                cpi,
            )
            for role, load, measured, p95, degradation, serving, cpi in zip(
                roles,
                moments.load[-1].tolist(),
                p95_s,
                expected.p95_s[-1].tolist(),
                expected.degradation[-1].tolist(),
                serves,
                expected.cpi_degradation[-1].tolist(),
                strict=True,
            )
        ]


def _profiles(spec: VmSpec, antagonist: Antagonist | None) -> list[str]:
    """Name all that a VM ever runs, its baseline's first."""
    names = [spec.profile, *(name for _, name in spec.switches)]
    if antagonist is not None and antagonist.profile:
        names.append(antagonist.profile)
    return list(dict.fromkeys(names))
