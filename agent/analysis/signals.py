"""The signals of the analysis: one row per VM and tick, in one order everywhere.

They name the columns of a RUNS file, the inputs of models and the columns of baselines; those that are metrics are in
docs/metrics.md. An unknown value is NaN; its reason stays in the rates.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: A VM's own metrics, as the agent has them.
_OWN = (
    "guest_ratio",
    "cpu_usage_cores",
    "gips",
    "ipc",
    "frequency_ratio",
    "l2_mpki",
    "llc_mpki",
    "memory_stall_ratio",
    "core_stall_ratio",
    "total_stall_ratio",
    "memory_bandwidth_bytes_per_s",
    "llc_occupancy_bytes",
    "run_queue_wait_ratio",
    "emulator_cpu_cores",
    "pressure_cpu_some_ratio",
    "pressure_memory_some_ratio",
    "pressure_io_some_ratio",
)
#: Sums of two metrics each: the signal, and its parts.
SUMS: Mapping[str, tuple[str, str]] = {
    "disk_bytes_per_s": ("disk_read_bytes_per_s", "disk_write_bytes_per_s"),
    "disk_ops_per_s": ("disk_read_ops_per_s", "disk_write_ops_per_s"),
    "storage_bytes_per_s": ("storage_read_bytes_per_s", "storage_write_bytes_per_s"),
    "network_bytes_per_s": ("network_receive_bytes_per_s", "network_transmit_bytes_per_s"),
}
#: A VM's metrics that `matrix` takes: its own signals, then the two parts of each sum.
METRICS: tuple[str, ...] = (*_OWN, *(part for parts in SUMS.values() for part in parts))
#: The host's, the same for all its VMs.
HOST = ("host_cpu_idle_ratio", "host_cpu_iowait_ratio", "host_pressure_io_some_ratio")
#: Sums over the other VMs: the signal, and the own signal that is summed. NaN if all are NaN.
OTHERS: Mapping[str, str] = {
    f"others_{name}": name
    for name in (
        "cpu_usage_cores",
        "gips",
        "memory_bandwidth_bytes_per_s",
        "llc_occupancy_bytes",
        "disk_bytes_per_s",
        "storage_bytes_per_s",
        "network_bytes_per_s",
    )
}
#: Idle share of a VM's vCPUs, 1 - `guest_ratio`: queue delay scales with its inverse. If the number of workers is
#: configured or learnt, their idle share: 1 - `guest_ratio` * vCPUs / workers (`load_factors`).
IDLE = "vcpu_idle_ratio"
SIGNALS: tuple[str, ...] = (*_OWN, *SUMS, *HOST, *OTHERS, IDLE)
INDEX: Mapping[str, int] = {name: index for index, name in enumerate(SIGNALS)}

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Values = Floats  # signals, one column each


class VmKey(NamedTuple):
    """A VM in one epoch: what baselines are kept for. `workers`: its parallel requests, as configured."""

    uuid: str
    epoch: str
    vcpus: int
    workers: int | None = None


class Tick(NamedTuple):
    """One tick of one host.

    `values`: shape (VMs, SIGNALS), NaN if not known. `at_s`: monotonic. `vcpus_running`: shape (VMs,): how many vCPU
    threads ran at the tick's instant, NaN if not sampled, None if none.
    """

    at_s: float
    vms: tuple[VmKey, ...]
    values: Values
    vcpus_running: Values | None = None


def load_factors(vms: Sequence[VmKey]) -> Values:
    """Return vCPUs / workers of each VM, shape (VMs,): 1 if workers are not configured."""
    return np.array([vm.vcpus / min(vm.workers or vm.vcpus, vm.vcpus) if vm.vcpus else 1.0 for vm in vms])


def signals_of(vms: Sequence[Mapping[str, float]], host: Mapping[str, float], factors: Values | float = 1.0) -> Values:
    """Make a tick's matrix from the known metrics, by name, of each VM and of the host.

    Returns shape (len(vms), len(SIGNALS)), NaN if a signal is not known.
    """
    metrics = [[vm.get(name, math.nan) for name in METRICS] for vm in vms]
    own = np.array(metrics, np.float64).reshape(len(vms), len(METRICS))
    return matrix(own, [host.get(name, math.nan) for name in HOST], factors)


def matrix(metrics: Values, host: Sequence[float], factors: Values | float) -> Values:
    """Make a tick's matrix, (VMs, SIGNALS), from `METRICS` of each VM, (VMs, METRICS), and `HOST` of the host."""
    sums, end = len(_OWN), len(_OWN) + len(SUMS)
    values = np.full((len(metrics), len(SIGNALS)), math.nan)
    values[:, :sums] = metrics[:, :sums]
    values[:, sums:end] = metrics[:, sums::2] + metrics[:, sums + 1 :: 2]
    values[:, end : end + len(HOST)] = host
    set_others(values, factors)
    return values


def set_others(values: Values, factors: Values | float = 1.0) -> None:
    """Fill the `others_` columns, the sum over the VMs less the VM's own, and `IDLE`, in place."""
    set_idle(values, factors)
    own = values[:, [INDEX[name] for name in OTHERS.values()]]
    known = ~np.isnan(own)
    filled = np.where(known, own, 0.0)
    others = filled.sum(axis=0) - filled
    # Without other VMs it is 0; with others of which none is known, NaN.
    unknown = (known.sum(axis=0) - known == 0) & (len(values) > 1)
    values[:, [INDEX[name] for name in OTHERS]] = np.where(unknown, math.nan, others)


def set_idle(values: Values, factors: Values | float) -> None:
    """Fill `IDLE` of a tick's matrix in place, by the `load_factors` of its VMs."""
    values[:, INDEX[IDLE]] = 1.0 - values[:, INDEX["guest_ratio"]] * factors
