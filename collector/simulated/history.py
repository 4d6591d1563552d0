"""Simulated days, fast: the CPI windows of a scenario's host, from the same model.

A window of some seconds is simulated step by step, then the model jumps to the next one; the AR(1) noise crosses the
jump by its exact transition. The statistics match those of live windows, at a fraction of the cost.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from collector.simulated.meter import READ_SHARE, RECEIVE_SHARE
from collector.simulated.model import Host, Vm
from collector.simulated.scenario import Scenario

_S = 1_000_000_000
_PROFILED_READ_SHARE = 0.4  # as `collector.simulated.engine` has it
_MIB = 1 << 20


@dataclass(slots=True)
class History:
    """CPI windows as columns: element i of every list is window i, in the order of time."""

    vms: tuple[Vm, ...] = field(compare=False)
    window_ns: int
    vm_index: list[int] = field(default_factory=list)
    start_unix_ns: list[int] = field(default_factory=list)
    cpi: list[float] = field(default_factory=list)  # NaN if the VM did nothing
    cpu_usage_cores: list[float] = field(default_factory=list)
    cycles: list[int] = field(default_factory=list)
    instructions: list[int] = field(default_factory=list)
    running_ratio: list[float] = field(default_factory=list)
    run_queue_wait_ratio: list[float] = field(default_factory=list)  # per wall time and vCPU
    disk_read_bytes_per_s: list[float] = field(default_factory=list)
    disk_write_bytes_per_s: list[float] = field(default_factory=list)
    network_receive_bytes_per_s: list[float] = field(default_factory=list)
    network_transmit_bytes_per_s: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.vm_index)


def simulate_days(
    scenario: Scenario, *, start_unix_s: float, end_unix_s: float, every_s: float, window_s: float
) -> History:
    """Simulate one window of `window_s` in every `every_s`, from `start_unix_s` to `end_unix_s` (seconds since 1970).

    The scenario's clock is 0 at the start. Steps within a window are equal, at most the scenario's.
    Deterministic by the scenario and the arguments. Raises ValueError unless 0 < `window_s` <= `every_s`.
    """
    if not 0 < window_s <= every_s:
        raise ValueError(f"need 0 < window_s <= every_s (values {window_s}, {every_s})")
    host = Host(scenario)
    history = History(host.vms, round(window_s * _S))
    steps = math.ceil(window_s / scenario.host.step_s - 1e-9)
    step_s = window_s / steps
    gap_s = every_s - window_s + step_s  # from the last step of a window to the first of the next
    windows = math.floor((end_unix_s - start_unix_s - window_s) / every_s + 1e-9) + 1
    starts = [(index * every_s, start_unix_s + index * every_s) for index in range(windows)]
    if scenario.profiled and steps == 1:
        moments = [(at_s * scenario.speed, unix_s) for at_s, unix_s in starts]
        # All together: the engine takes as long for thousands of steps as for a few.
        for (_, unix_s), running in zip(moments, host.pass_steps(moments, gap_s), strict=True):
            _append(host, history, [running], unix_s)
        return history

    def window(at_s: float, unix_s: float) -> Iterable[tuple[Vm, ...]]:
        for step in range(steps):
            offset_s = step * step_s
            host.step((at_s + offset_s) * scenario.speed, unix_s + offset_s, step_s if step else gap_s)
            yield host.running

    for at_s, unix_s in starts:
        _append(host, history, window(at_s, unix_s), unix_s)
    return history


def _append(host: Host, history: History, steps: Iterable[tuple[Vm, ...]], unix_s: float) -> None:
    """Append one window of every VM that was there from its first step to its last."""
    count = 0
    present: dict[Vm, int] = dict.fromkeys(host.vms, 0)
    usage, wait, work = (dict.fromkeys(host.vms, 0.0) for _ in range(3))
    for running in steps:
        count += 1
        for vm in running:
            present[vm] += 1
            usage[vm] += vm.usage_cores
            wait[vm] += vm.demand_cores - vm.usage_cores
            work[vm] += vm.usage_cores / vm.cpi
    ghz, window_ns = host.scenario.host.ghz, history.window_ns
    start_unix_ns = round(unix_s * 1000) * (_S // 1000)
    for index, vm in enumerate(host.vms):
        if present[vm] < count:
            continue
        spec = vm.spec
        cores = usage[vm] / count
        history.vm_index.append(index)
        history.start_unix_ns.append(start_unix_ns)
        history.cpi.append(usage[vm] / work[vm] if spec.pmu and work[vm] > 0 else math.nan)
        history.cpu_usage_cores.append(cores)
        history.cycles.append(int(cores * window_ns * ghz))
        history.instructions.append(int(work[vm] / count * window_ns * ghz))
        history.running_ratio.append(spec.multiplexing_ratio)
        history.run_queue_wait_ratio.append(wait[vm] / count / spec.vcpus)
        disk, network = cores * spec.disk_mib_per_s_per_core * _MIB, cores * spec.network_mib_per_s_per_core * _MIB
        share = READ_SHARE
        if vm.step is not None:
            share = _PROFILED_READ_SHARE
            disk, network = vm.step.disk_bytes_per_s, vm.step.network_bytes_per_s
        history.disk_read_bytes_per_s.append(disk * share)
        history.disk_write_bytes_per_s.append(disk * (1 - share))
        history.network_receive_bytes_per_s.append(network * RECEIVE_SHARE)
        history.network_transmit_bytes_per_s.append(network * (1 - RECEIVE_SHARE))
