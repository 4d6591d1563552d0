"""Simulated days, fast: the CPI windows that a host of a scenario would have had, by the very same model.

A window of some seconds is simulated step by step, then the model jumps to the next one; the AR(1) noise
crosses the jump by its exact transition. So the statistics are those of live windows, at a small part of the
cost.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from collector.simulated.model import Host, Vm
from collector.simulated.scenario import Scenario

_S = 1_000_000_000
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class HistoryTask:
    """One VM of the scenario."""

    vm: str
    name: str
    job: str
    latency_sensitive: bool
    epoch: str


@dataclass(slots=True)
class History:
    """CPI windows as columns: element i of every list is window i, in the order of time."""

    tasks: tuple[HistoryTask, ...]
    window_ns: int
    task_index: list[int] = field(default_factory=list)
    start_unix_ns: list[int] = field(default_factory=list)
    cpi: list[float] = field(default_factory=list)  # NaN where the VM did nothing
    cpu_usage_cores: list[float] = field(default_factory=list)
    cycles: list[int] = field(default_factory=list)
    instructions: list[int] = field(default_factory=list)
    running_ratio: list[float] = field(default_factory=list)
    run_queue_wait_ratio: list[float] = field(default_factory=list)  # per wall time and vCPU
    disk_bytes_per_s: list[float] = field(default_factory=list)
    network_bytes_per_s: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.task_index)


def simulate_days(
    scenario: Scenario, *, start_unix_s: float, end_unix_s: float, every_s: float, window_s: float
) -> History:
    """Simulate one window of `window_s` in every `every_s`, from `start_unix_s` to `end_unix_s`.

    The scenario's clock is 0 at the start. Deterministic by the scenario and the arguments.

    Args:
        scenario: the host and its VMs.
        start_unix_s: seconds since 1970; the first window starts here.
        end_unix_s: no window ends later.
        every_s: from the start of a window to the start of the next, at least `window_s`.
        window_s: length of a window; the steps within are the scenario's, the last one cut.

    Raises:
        ValueError: `every_s` is below `window_s`, or `window_s` is not above 0.

    """
    if not 0 < window_s <= every_s:
        raise ValueError(f"every_s must be at least window_s, which is above 0 (values {every_s}, {window_s})")
    host = Host(scenario)
    tasks = tuple(
        HistoryTask(vm.uuid, vm.spec.name, vm.spec.job, vm.spec.latency_sensitive, f"history-{int(start_unix_s)}")
        for vm in host.vms
    )
    history = History(tasks, round(window_s * _S))
    steps = math.ceil(window_s / scenario.host.step_s - 1e-9)
    grid = _Grid(steps, window_s / steps, every_s - window_s + window_s / steps)
    windows = math.floor((end_unix_s - start_unix_s - window_s) / every_s + 1e-9) + 1
    if scenario.profiled and steps == 1:
        starts = [(index * every_s, start_unix_s + index * every_s) for index in range(windows)]
        moments = [(at_s * scenario.speed, unix_s) for at_s, unix_s in starts]
        # All at once: the engine takes as long for thousands of steps as for a few.
        for (_, unix_s), running in zip(starts, host.pass_steps(moments, grid.gap_s), strict=True):
            sums = _Sums(len(host.vms))
            sums.add(host, running)
            _append(host, history, sums, 1, unix_s)
        return history
    for index in range(windows):
        offset_s = index * every_s
        _window(host, history, grid, offset_s, start_unix_s + offset_s)
    return history


class _Grid(NamedTuple):
    """Steps of a window, their length, and the time from the last one's start to the next window's."""

    steps: int
    step_s: float
    gap_s: float


class _Sums:
    """Of each VM, over the steps of a window: in how many it was there, and its rates summed."""

    def __init__(self, count: int) -> None:
        self.present = [0] * count
        self.usage, self.wait, self.work = ([0.0] * count for _ in range(3))

    def add(self, host: Host, running: Iterable[Vm]) -> None:
        """Add the rates of a step."""
        there = set(running)
        for index, vm in enumerate(host.vms):
            if vm not in there:
                continue
            self.present[index] += 1
            self.usage[index] += vm.usage_cores
            self.wait[index] += vm.demand_cores - vm.usage_cores
            self.work[index] += vm.usage_cores / vm.cpi


def _window(host: Host, history: History, grid: _Grid, at_s: float, unix_s: float) -> None:
    """Simulate one window, step by step, and append it."""
    steps, step_s, gap_s = grid
    sums = _Sums(len(host.vms))
    for step in range(steps):
        offset_s = step * step_s
        host.step((at_s + offset_s) * host.scenario.speed, unix_s + offset_s, step_s if step else gap_s)
        sums.add(host, host.running)
    _append(host, history, sums, steps, unix_s)


def _append(host: Host, history: History, sums: _Sums, steps: int, unix_s: float) -> None:
    """Append one window of every VM that was there from its first step to its last."""
    usage, wait, work = sums.usage, sums.wait, sums.work
    ghz = host.scenario.host.ghz
    window_ns = history.window_ns
    start_unix_ns = round(unix_s * 1000) * (_S // 1000)
    for index, vm in enumerate(host.vms):
        if sums.present[index] < steps:
            continue
        spec = vm.spec
        cores = usage[index] / steps
        history.task_index.append(index)
        history.start_unix_ns.append(start_unix_ns)
        history.cpi.append(usage[index] / work[index] if spec.pmu and work[index] > 0 else math.nan)
        history.cpu_usage_cores.append(cores)
        history.cycles.append(int(cores * window_ns * ghz))
        history.instructions.append(int(work[index] / steps * window_ns * ghz))
        history.running_ratio.append(spec.multiplexing_ratio)
        history.run_queue_wait_ratio.append(wait[index] / steps / spec.vcpus)
        disk, network = _traffic(vm, cores)
        history.disk_bytes_per_s.append(disk)
        history.network_bytes_per_s.append(network)


def _traffic(vm: Vm, cores: float) -> tuple[float, float]:
    """Return bytes per second of disk and network."""
    if vm.step is not None:
        return vm.step.disk_bytes_per_s, vm.step.network_bytes_per_s
    spec = vm.spec
    return cores * spec.disk_mib_per_s_per_core * _MIB, cores * spec.network_mib_per_s_per_core * _MIB
