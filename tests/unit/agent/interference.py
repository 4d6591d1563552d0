"""Small hosts for tests of detectors: noise that is remembered, load that has its day, and somebody who disturbs."""

import math
from collections.abc import Callable, Iterator

import numpy as np

from agent.analysis.signals import Tick, VmKey, signals_of

VCPUS = 4
GHZ = 2.1
HARDWARE = (
    "gips",
    "ipc",
    "frequency_ratio",
    "llc_mpki",
    "memory_stall_ratio",
    "total_stall_ratio",
    "memory_bandwidth_bytes_per_s",
)


def remembered(rng, ticks: int, vms: int, std: float, correlation_s: float = 15.0):
    """Factors around 1 whose logarithm is an AR(1) process, shape (ticks, VMs)."""
    decay = math.exp(-1 / correlation_s)
    shocks = rng.normal(size=(ticks, vms)) * math.sqrt(1 - decay * decay)
    state = rng.normal(size=vms)
    result = np.empty((ticks, vms))
    for tick in range(ticks):
        state = decay * state + shocks[tick]
        result[tick] = std * state
    return np.exp(result)


def world(
    *,
    ticks: int = 170,
    vms: int = 3,
    seed: int = 1,
    pmu: bool = True,
    noise: float = 0.02,
    load: Callable[[int, int], float] = lambda _at, _vm: 0.2,
    slow: Callable[[int, int], float] = lambda _at, _vm: 1.0,
    waits: Callable[[int, int], float] = lambda _at, _vm: 0.0,
    clock: Callable[[int, int], float] = lambda _at, _vm: 1.0,
    more: Callable[[int, int], dict[str, float]] = lambda _at, _vm: {},
    epoch: str = "e1",
    first_s: float = 1000.0,
) -> Iterator[Tick]:
    """VMs that serve requests: `load` is what they use of their vCPUs undisturbed, `slow` what disturbs their CPI,
    `waits` the share of what they want to run that they wait."""
    rng = np.random.default_rng(seed)
    loads, cpis = remembered(rng, ticks, vms, noise), remembered(rng, ticks, vms, noise / 2, 30.0)
    keys = tuple(VmKey(f"vm{number}", epoch, VCPUS) for number in range(vms))
    for at in range(ticks):
        rows = []
        for vm in range(vms):
            slower, ratio, wait = slow(at, vm) * cpis[at, vm], clock(at, vm), waits(at, vm)
            ipc = 1.5 / slower
            guest = min(load(at, vm) * loads[at, vm] * slower / ratio, 1.0)
            counted = math.exp(rng.normal() * 0.003)
            row = {
                "guest_ratio": guest,
                "cpu_usage_cores": guest * VCPUS,
                "gips": guest * VCPUS * GHZ * ratio * ipc * counted,
                "ipc": ipc * counted,
                "frequency_ratio": ratio,
                "llc_mpki": 2.0 * (1 + 5 * (slow(at, vm) - 1)) * math.exp(rng.normal() * noise),
                "memory_stall_ratio": 1 - 0.8 / slow(at, vm) * math.exp(rng.normal() * 0.003),
                "total_stall_ratio": 1 - 0.7 / slow(at, vm) * math.exp(rng.normal() * 0.003),
                "memory_bandwidth_bytes_per_s": 1e9 * load(at, vm) * math.exp(rng.normal() * noise),
                "run_queue_wait_ratio": guest * (wait / (1 - wait) + 0.01 * abs(rng.normal())),
                "network_receive_bytes_per_s": 1e6 * load(at, vm) * loads[at, vm],
                "network_transmit_bytes_per_s": 4e6 * load(at, vm) * loads[at, vm],
                "disk_read_bytes_per_s": 1e5 * math.exp(rng.normal() * noise),
                "disk_write_bytes_per_s": 1e5,
                "pressure_io_some_ratio": 0.01 * abs(rng.normal()),
                **more(at, vm),
            }
            rows.append({name: value for name, value in row.items() if pmu or name not in HARDWARE})
        yield Tick(first_s + at, keys, signals_of(rows, {"host_cpu_idle_ratio": 0.5}))


def during(since: int, until: int, value: float, *, of: int | None = None, without: int | None = None, usual=1.0):
    """A course of `world`: `value` from `since` to `until` for one VM, or for all but one."""

    def course(at: int, vm: int) -> float:
        meant = vm == of if of is not None else vm != without
        return value if since <= at < until and meant else usual

    return course


def stressed(since: int = 60, until: int = 110, *, by: int = 0, slow: float = 1.08, **more):
    """One VM uses five times as much from `since` to `until`, and the others' CPI grows by `slow`."""
    more = {
        "load": during(since, until, 0.95, of=by, usual=0.19),
        "slow": during(since, until, slow, without=by),
        **more,
    }
    return world(**more)


def said(detector, ticks) -> list[list[str]]:
    """Behaviours, tick by tick."""
    return [[str(state.behaviour) for state in detector.step(tick).states] for tick in ticks]
