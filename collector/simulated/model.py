"""The contention model: what VMs on one host do to each other through cache, memory bandwidth and CPUs.

Simple, with a physical reading; no machine was measured for it. Per VM i with u_i cores in use:

- last-level cache: the demands w_i = u_i * cache_mib_per_core share the cache in proportion once their sum W exceeds
  its size S, so i loses the fraction lost = max(0, 1 - S/W), of which max(0, 1 - S/w_i) it owes to itself;
- memory bandwidth: with utilisation r (all VMs) the latency grows as in an open queue with constant service times
  (Pollaczek-Khinchine), g(r) = r^2 / (2 (1 - r)); r counts up to 0.85, because VMs that wait for memory ask for less
  of it: a closed system, which saturates later than an open queue;
- pressure of the others on i: p_i = [lost(W) - lost(w_i)] + [g(r) - g(r_i)], r_i being its own utilisation;
- CPI_i = cpi_i * noise_i * (1 + sensitivity_i * p_i): the bracket is the true degradation, 1 for a VM alone;
- CPUs: if the demand for cores exceeds the host's, all VMs get the same fraction of their demand and wait in run
  queues for the rest; that slow-down is reported apart from the CPI's.

If the VMs have profiles it is the study's model instead: `collector.simulated.contention`.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collector.simulated.scenario import Antagonist, Course, Scenario, VmSpec, vm_uuid

if TYPE_CHECKING:
    from collector.simulated.profiled import ProfiledHost, VmStep

_DAY_S = 86400.0
_MAX_UTILISATION = 0.85
_TWO_PI = 2 * math.pi


def level_at(level: float, course: Course, at_s: float, unix_s: float) -> float:
    """Return a level (no noise) at `at_s` seconds of the scenario, `unix_s` seconds since 1970."""
    points = course.points
    if points:
        phase_s = at_s % course.repeat_s if course.repeat_s else at_s
        after = bisect_right(points, (phase_s, math.inf))
        if course.shape == "step" or after in (0, len(points)):
            # Before the first point the constant holds, after the last one that point's value.
            level = points[after - 1][1] if after else level
        else:
            (t0, c0), (t1, c1) = points[after - 1], points[after]
            level = c0 + (c1 - c0) * (phase_s - t0) / (t1 - t0)
    return level * _of_day(course, unix_s)


def _of_day(course: Course, unix_s: float) -> float:
    """Return the factor of the hour of the day."""
    if not course.diurnal:
        return 1.0
    return 1 + course.diurnal * math.cos(_TWO_PI * (unix_s / _DAY_S - course.peak_hour / 24))


def _wanted(vm: Vm, at_s: float, unix_s: float, *, active: bool) -> tuple[float, float, str]:
    """Return a VM's load, its baseline load (0: not there), and the profile that it runs now."""
    spec, antagonist = vm.spec, vm.antagonist
    profile = spec.profile
    for switch_s, name in spec.switches:
        if at_s >= switch_s:
            profile = name
    if antagonist is not None:
        load = baseline = antagonist.idle_cores / spec.vcpus
        if active:
            load, profile = antagonist.cores / spec.vcpus, antagonist.profile or profile
    else:
        ratio = spec.load_ratio
        load, baseline = level_at(ratio.ratio, ratio, at_s, unix_s), ratio.ratio * _of_day(ratio, unix_s)
    return (load, baseline, profile) if vm.runs_at(at_s) else (0.0, 0.0, profile)


def _queueing(utilisation: float) -> float:
    """Growth of memory latency over the unloaded one: r^2 / (2 (1 - r))."""
    r = min(utilisation, _MAX_UTILISATION)
    return r * r / (2 * (1 - r))


def _is_active(antagonist: Antagonist, at_s: float) -> bool:
    if antagonist.start_file:
        return Path(antagonist.start_file).exists()
    phase_s = at_s % antagonist.repeat_s if antagonist.repeat_s else at_s
    return antagonist.start_s <= phase_s < antagonist.stop_s


class Vm:
    """One VM's rates over the current step. Read only from outside."""

    def __init__(self, spec: VmSpec, uuid: str, seed: int, antagonist: Antagonist | None) -> None:
        self.spec = spec
        self.uuid = uuid
        self.antagonist = antagonist
        self.booted = antagonist is None or not antagonist.boots
        # Each VM has its own stream, so that one more VM in the scenario leaves the others' noise alone.
        self._random = random.Random(f"{seed}/{spec.name}")
        self._cpi_noise = self._random.gauss(0, 1)
        self._load_noise = self._random.gauss(0, 1)
        self.demand_cores = 0.0
        self.usage_cores = 0.0
        self.cpi_uncontended = spec.cpi
        self.cpi_multiplier = 1.0  # the true degradation: contended CPI / uncontended CPI at the same load
        self.cpi = spec.cpi
        self.cpu_slowdown = 1.0  # demand / usage
        self.llc_mib = 0.0  # what it holds of the last-level cache
        # Only of a VM with a profile, whose uncontended CPI, multiplier, slow-down and cache above stay as they are.
        self.step: VmStep | None = None
        self.truth: dict[str, Any] = {}  # if truth is wanted

    def draw(self, decay: float, innovation: float, load_std: float) -> float:
        """Advance both noises (x' = decay x + innovation e, variance 1); return the load's factor."""
        gauss = self._random.gauss
        self._cpi_noise = decay * self._cpi_noise + innovation * gauss(0, 1)
        self._load_noise = decay * self._load_noise + innovation * gauss(0, 1)
        std = self.spec.cpi_noise_std
        # exp(s x - s^2/2) has mean 1 if x is a standard normal variable.
        self.cpi_uncontended = self.spec.cpi * math.exp(std * self._cpi_noise - std * std / 2)
        return math.exp(load_std * self._load_noise - load_std * load_std / 2)

    def runs_at(self, at_s: float) -> bool:
        """Whether the VM exists at this time of the scenario."""
        spec = self.spec
        is_away = any(stop <= at_s < stop + spec.restart_gap_s for stop in spec.restarts_s)
        return self.booted and spec.start_s <= at_s < spec.stop_s and not is_away

    def generation_at(self, at_s: float) -> int:
        """How often it has restarted by then."""
        return bisect_right(self.spec.restarts_s, at_s)


class Host:
    """All VMs of a scenario and what they do to each other. Deterministic by seed and sequence of steps."""

    def __init__(self, scenario: Scenario, *, truth: bool = False) -> None:
        self.scenario = scenario
        self.profiled: ProfiledHost | None = None
        if scenario.profiled:
            # numpy is only loaded if it is needed.
            from collector.simulated.profiled import ProfiledHost  # noqa: PLC0415

            self.profiled = ProfiledHost(scenario, truth=truth)
        by_name = {antagonist.vm: antagonist for antagonist in scenario.antagonists}
        self.vms = tuple(
            Vm(spec, vm_uuid(scenario, spec.name), scenario.seed, by_name.get(spec.name)) for spec in scenario.vms
        )
        self.running: tuple[Vm, ...] = ()
        self.active_antagonists: tuple[str, ...] = ()

    def step(self, at_s: float, unix_s: float, elapsed_s: float) -> None:
        """Set every VM's rates for the step that begins now, at `at_s` seconds of the scenario.

        `unix_s` is the same moment in seconds since 1970 (days pass by it), `elapsed_s` the wall time since the step
        before began (the noise forgets by it).
        """
        if self.profiled is not None:
            next(self.pass_steps([(at_s, unix_s)], elapsed_s))
            return
        self._begin(at_s)
        noise = self.scenario.noise
        decay = math.exp(-elapsed_s / noise.correlation_s)
        innovation = math.sqrt(1 - decay * decay)
        active = self.active_antagonists
        demand = 0.0
        for vm in self.running:
            factor = vm.draw(decay, innovation, noise.load_std)
            antagonist = vm.antagonist
            if antagonist is None:
                cores = level_at(vm.spec.load.cores, vm.spec.load, at_s, unix_s)
            else:
                cores = antagonist.cores if vm.spec.name in active else antagonist.idle_cores
            vm.demand_cores = min(cores * factor, vm.spec.vcpus)
            demand += vm.demand_cores
        self._contend(demand)

    def pass_steps(self, moments: Sequence[tuple[float, float]], elapsed_s: float) -> Iterator[tuple[Vm, ...]]:
        """Let many steps of VMs with profiles pass: what as many calls of `step` do, and much faster.

        `moments` are `at_s` and `unix_s` of each step. Yields the running VMs of each step, which have its rates then.
        """
        assert self.profiled is not None  # noqa: S101 - the caller's duty
        there, wanted = [], []
        for at_s, unix_s in moments:
            self._begin(at_s)
            there.append(self.running)
            active = self.active_antagonists
            of_vms = (_wanted(vm, at_s, unix_s, active=vm.spec.name in active) for vm in self.vms)
            wanted.append(tuple(zip(*of_vms, strict=True)))
        made = self.profiled.steps(elapsed_s, *zip(*wanted, strict=True))
        for vm, truth in zip(self.vms, self.profiled.truths, strict=False):  # none without truth
            vm.truth = truth
        for running, steps in zip(there, made, strict=True):
            self.running = running
            for vm, step in zip(self.vms, steps, strict=True):
                vm.step = step
                vm.usage_cores = step.usage_cores
                vm.demand_cores = step.usage_cores + step.wait_cores
                vm.cpi = step.cpi
            yield running

    def _begin(self, at_s: float) -> None:
        """Find out which antagonists are active and which VMs run."""
        active = [vm for vm in self.vms if vm.antagonist is not None and _is_active(vm.antagonist, at_s)]
        for vm in active:
            vm.booted = True
        self.active_antagonists = tuple(vm.spec.name for vm in active)
        self.running = tuple(vm for vm in self.vms if vm.runs_at(at_s))

    def _contend(self, demand_cores: float) -> None:
        """Share CPUs, cache and bandwidth among the running VMs by the module's formulas."""
        host = self.scenario.host
        granted = min(1.0, host.cpus / demand_cores) if demand_cores > 0 else 1.0
        wanted_mib = bandwidth = 0.0
        for vm in self.running:
            vm.usage_cores = usage = vm.demand_cores * granted
            wanted_mib += usage * vm.spec.cache_mib_per_core
            bandwidth += usage * vm.spec.memory_gib_per_s_per_core
        size_mib = host.llc_mib
        lost = max(0.0, 1 - size_mib / wanted_mib) if wanted_mib > 0 else 0.0
        latency = _queueing(bandwidth / host.memory_gib_per_s)
        alone = len(self.running) == 1
        for vm in self.running:
            spec = vm.spec
            pressure = 0.0
            if spec.sensitivity and not alone:
                own_mib = vm.usage_cores * spec.cache_mib_per_core
                own_lost = max(0.0, 1 - size_mib / own_mib) if own_mib > size_mib else 0.0
                own_latency = _queueing(vm.usage_cores * spec.memory_gib_per_s_per_core / host.memory_gib_per_s)
                pressure = max(0.0, lost - own_lost) + max(0.0, latency - own_latency)
            vm.cpi_multiplier = 1 + spec.sensitivity * pressure
            vm.cpi = vm.cpi_uncontended * vm.cpi_multiplier
            vm.llc_mib = vm.usage_cores * spec.cache_mib_per_core * (1 - lost)
            vm.cpu_slowdown = 1 / granted
