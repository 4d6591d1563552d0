"""Contention among the VMs of one host: cache, memory bandwidth, CPUs and disk, each by how it works.

Independent of any estimator. All arrays broadcast: the last axis is the VMs, any axes before it are moments, which do
not depend on each other. Per VM i, with f the clock:

- last-level cache: if the working sets do not fit, new lines evict others at random; so VM i holds a part in
  proportion to a_i = its misses per second times how long its lines stay, but never more than its working set (water
  filling). It misses the rest: miss share = min + (max - min) (1 - held / working set)^curve;
- memory: latency = idle latency * (1 + q U / (1 - U)), U the utilisation by all;
- CPI_i = core_i * noise_i + l2 misses * blocking * ((1 - miss share) * LLC latency + miss share * memory latency) * f;
- requests: instructions per second follow the load, so the CPU time grows with CPI (Cloud White, section 4.1); a closed
  loop keeps its CPU time and gets less done;
- CPUs: if demand exceeds them, all get the same part of their demand; below, a vCPU waits for a CPU like a customer
  of c servers: U^(sqrt(2 (c + 1)) - 1) / (c (1 - U)) per time it runs (Sakasegawa 1977);
- disk: an operation takes its idle time / (1 - U);
- the network is far from saturated and delays no VM (section 6.1); with a `link_mb_per_s` a byte takes its time on
  the idle link / (1 - U).

Misses depend on the held part, which depends on the misses: a damped fixed point.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collector.simulated.profiles import Application, Machine

Array = NDArray[np.float64]

LINE_BYTES = 64
_ROUNDS = 24
_MIB = float(1 << 20)
_TINY = 1e-12
_MAX_CPU_UTILISATION = 0.98
#: Share of the time in which the core waits for memory, not the LLC, and its own buffers are full as well.
_BUFFERS_FULL = 0.3


class Parameters(NamedTuple):
    """Applications as arrays; VM by VM, and moment by moment if a VM changes what it runs."""

    serves: NDArray[np.bool_]  # requests: the instructions follow the load
    vcpus: Array
    workers: Array  # requests in service together; the vCPUs of a closed loop
    core_cpi: Array  # cycles per instruction without any miss
    alone_cpi: Array
    l2_per_instruction: Array
    llc_miss_min: Array
    llc_miss_max: Array
    working_set_mib: Array
    curve: Array
    blocking: Array
    stay: Array
    core_stall: Array
    service_s: Array
    service_cv: Array
    disk_ops_per_request: Array
    disk_bytes_per_s: Array
    disk_op_bytes: Array
    network_bytes_per_request: Array
    network_bytes_per_s: Array

    def at(self, index: NDArray[np.intp]) -> "Parameters":
        """Take entries by index (last axis of each), such as (moments, VMs) of a table of applications."""
        return Parameters._make(column[index] for column in self)


class Rates(NamedTuple):
    """Rates at a moment, shape (..., VMs); of the host's `disk_op_s` and `network_byte_s` (..., 1)."""

    cpi: Array
    usage_cores: Array
    instructions_per_s: Array
    cycles_per_s: Array
    l2_misses_per_s: Array
    llc_misses_per_s: Array
    memory_stall_per_s: Array  # cycles
    core_stall_per_s: Array
    total_stall_per_s: Array
    memory_bytes_per_s: Array
    llc_bytes: Array
    wait_cores: Array  # time runnable without a CPU, per wall time
    stretch: Array  # wall time per CPU time
    requests_per_s: Array
    service_s: Array  # mean time of a request on a vCPU, waits for CPUs included, disk not
    disk_ops_per_s: Array
    disk_bytes_per_s: Array
    disk_op_s: Array
    network_bytes_per_s: Array
    network_byte_s: Array  # 0: it delays nobody


def workers_of(application: Application, vcpus: int) -> int:
    """Return how many requests a VM of this application serves together."""
    return max(1, round(vcpus * application.workers_per_vcpu))


def parameters(machine: Machine, applications: Sequence[tuple[Application, int]]) -> Parameters:
    """Return applications, each with the vCPUs of its VM, as arrays of shape (len(applications),).

    Raises ValueError if an application's IPC is higher than its misses allow.
    """
    rows = [_row(machine, application, vcpus) for application, vcpus in applications]
    return Parameters(**{name: np.array([row[name] for row in rows]) for name in Parameters._fields})


def _row(machine: Machine, a: Application, vcpus: int) -> dict[str, Any]:
    l2 = a.l2_mpki / 1000
    held = min(a.working_set_mib, machine.llc_mib)
    miss = a.llc_miss_min + (a.llc_miss_max - a.llc_miss_min) * (1 - held / a.working_set_mib) ** a.curve
    stall = l2 * a.blocking * ((1 - miss) * machine.llc_ns + miss * machine.memory_ns) * machine.ghz
    core = 1 / a.ipc - stall
    if core <= 0:
        raise ValueError(f"{a.name}: an IPC of {a.ipc} leaves no cycles beside {stall:.2f} of waiting each")
    return asdict(a) | {
        "serves": a.service_ms > 0,
        "vcpus": float(vcpus),
        "workers": float(workers_of(a, vcpus) if a.service_ms > 0 else vcpus),
        "core_cpi": core,
        "alone_cpi": 1 / a.ipc,
        "l2_per_instruction": l2,
        "service_s": a.service_ms / 1e3,
        "disk_bytes_per_s": a.disk_mb_per_s * 1e6,
        "disk_op_bytes": a.disk_op_kib * 1024,
        "network_bytes_per_s": a.network_mb_per_s * 1e6,
    }


def contend(
    machine: Machine, p: Parameters, load: Array, *, core_noise: Array | float = 1.0, frequency: Array | float = 1.0
) -> Rates:
    """Share the host among its VMs. Results have the shape that `load` and `p` have together.

    `p` is what the VMs run, and broadcasts against `load`, of shape (..., VMs), as `Application` defines it (0: not
    there). `core_noise` is a factor of the cycles that are not misses, `frequency` the clock over the nominal one, of
    shape (..., 1) or a number.
    """
    load = np.asarray(load, dtype=np.float64)
    ghz = machine.ghz * np.asarray(frequency, dtype=np.float64)
    core = p.core_cpi * core_noise  # cycles per instruction without misses
    cycles_per_ns = p.l2_per_instruction * p.blocking * ghz  # per instruction and nanosecond of a miss
    held, cpi, usage, miss, granted = _settle(machine, p, load, core, cycles_per_ns, ghz)
    # Cycles per instruction: added by misses, and of these waiting for memory itself.
    waiting = cpi - core
    for_memory = waiting - cycles_per_ns * (1 - miss) * machine.llc_ns
    cycles = usage * ghz * 1e9
    instructions = cycles / cpi
    l2_misses = instructions * p.l2_per_instruction
    llc_misses = l2_misses * miss
    cpus = machine.vm_cpus
    busy = np.minimum(usage.sum(-1, keepdims=True) / cpus, _MAX_CPU_UTILISATION)
    queue = busy ** (math.sqrt(2 * (cpus + 1)) - 1) / (cpus * (1 - busy))
    stretch = 1 / granted + queue + np.zeros_like(usage)
    per_request = np.maximum(p.service_s, _TINY) * machine.ghz * 1e9 / p.alone_cpi  # instructions
    requests = np.where(p.serves, instructions / per_request, 0.0)
    looping = np.where(p.serves, 0.0, load)
    disk_ops = requests * p.disk_ops_per_request + p.disk_bytes_per_s * looping * granted / p.disk_op_bytes
    disk_bytes = disk_ops * p.disk_op_bytes
    disk = np.minimum(disk_bytes.sum(-1, keepdims=True) / (machine.disk_mb_per_s * 1e6), machine.max_utilisation)
    network = requests * p.network_bytes_per_request + p.network_bytes_per_s * looping * granted
    return Rates(
        cpi=cpi,
        usage_cores=usage,
        instructions_per_s=instructions,
        cycles_per_s=cycles,
        l2_misses_per_s=l2_misses,
        llc_misses_per_s=llc_misses,
        memory_stall_per_s=instructions * waiting,
        core_stall_per_s=instructions * (p.core_stall * core + _BUFFERS_FULL * for_memory),
        # Stalls on itself that fall into a wait for memory are not counted twice.
        total_stall_per_s=instructions * (p.core_stall * core * core / cpi + waiting),
        memory_bytes_per_s=llc_misses * LINE_BYTES * (1 + machine.write_back),
        llc_bytes=held * _MIB,
        wait_cores=usage * (stretch - 1),
        stretch=stretch,
        requests_per_s=np.where(p.serves, load * p.vcpus / np.maximum(p.service_s, _TINY), 0.0),
        service_s=per_request * cpi / (ghz * 1e9) * stretch,
        disk_ops_per_s=disk_ops,
        disk_bytes_per_s=disk_bytes,
        disk_op_s=machine.disk_op_ms / 1e3 / (1 - disk),
        network_bytes_per_s=network,
        network_byte_s=_byte_s(machine, network.sum(-1, keepdims=True)),
    )


def _byte_s(machine: Machine, bytes_per_s: Array) -> Array:
    """Return the mean time of a byte on the link, its wait for the others included."""
    if not machine.link_mb_per_s:
        return np.zeros_like(bytes_per_s)
    speed = machine.link_mb_per_s * 1e6
    found: Array = 1 / speed / (1 - np.minimum(bytes_per_s / speed, machine.max_utilisation))
    return found


def _settle(
    machine: Machine, p: Parameters, load: Array, core: Array, cycles_per_ns: Array, ghz: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """Return the fixed point: MiB held, CPI, cores in use, share of misses, and the granted share of demand, (..., 1).

    `core` and `cycles_per_ns` are the cycles per instruction without misses, and per nanosecond of a miss.
    """
    wanted = load * p.vcpus * machine.ghz * 1e9 / p.alone_cpi  # instructions per second of those that serve
    footprint = np.where(load > 0, p.working_set_mib, 0.0) + np.zeros_like(wanted)
    held = footprint * np.minimum(1.0, machine.llc_mib / np.maximum(footprint.sum(-1, keepdims=True), _TINY))
    memory = np.zeros_like(held[..., :1])  # utilisation
    for _ in range(_ROUNDS):
        missing = np.maximum(1 - held / p.working_set_mib, 0.0)
        miss = p.llc_miss_min + (p.llc_miss_max - p.llc_miss_min) * missing**p.curve
        memory_ns = machine.memory_ns * (1 + machine.memory_queue * memory / (1 - memory))
        cpi = core + cycles_per_ns * ((1 - miss) * machine.llc_ns + miss * memory_ns)
        usage = np.where(p.serves, np.minimum(wanted * cpi / (ghz * 1e9), p.workers), load * p.vcpus)
        granted = np.minimum(1.0, machine.vm_cpus / np.maximum(usage.sum(-1, keepdims=True), _TINY))
        usage = usage * granted
        misses = usage * ghz * 1e9 / cpi * p.l2_per_instruction * miss
        moved = misses.sum(-1, keepdims=True) * LINE_BYTES * (1 + machine.write_back)
        now = np.minimum(moved / (machine.memory_gb_per_s * 1e9), machine.max_utilisation)
        # Half of the way: a full step would oscillate, since a VM that holds more misses less.
        held = (held + _fill(misses * p.stay, footprint, machine.llc_mib)) / 2
        memory = (memory + now) / 2
    return held, cpi, usage, miss, granted


def _fill(weight: Array, limit: Array, size: float) -> Array:
    """Share `size` in proportion to `weight`, at most `limit` each: min(limit, c * weight), of which the sum is `size`.

    The sum is a concave function of c, the least of the lines "the first k (by limit / weight) are full"; so c is
    the greatest of their solutions.
    """
    weight = np.maximum(weight, _TINY)
    order = np.argsort(limit / weight, axis=-1)
    limits, weights = np.take_along_axis(limit, order, -1), np.take_along_axis(weight, order, -1)
    full = np.cumsum(limits, axis=-1) - limits
    rest = np.cumsum(weights[..., ::-1], axis=-1)[..., ::-1]
    c = ((size - full) / rest).max(axis=-1, keepdims=True)
    filled: Array = np.where(limit.sum(-1, keepdims=True) <= size, limit, np.minimum(limit, c * weight))
    return filled
