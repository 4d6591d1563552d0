"""The simulated study's fast path: what the agent would know of a host each second, and what is true. No clocks.

`simulate(study)` yields a `StudyTick` per second; `blocks(study)` the same as arrays, for days and many VMs. The
scenarios are `bench.cloud_white.scenarios`'s, the parameters `collector.simulated.profiles`'. The live source runs on
the same engine, and a test compares both.
"""

import math
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collector.simulated.engine import Block, Counted, Engine, Expected, Guest, Moments
from collector.simulated.profiles import HOST, NOISE, PROFILES, Machine, Noise
from collector.simulated.requests import p95
from collector.simulated.truth import Role, RoleTracker

Array = NDArray[np.float64]

_NAMESPACE = uuid.UUID("6f0a6f2c-6a4c-5d6e-9a2b-77686974651b")
_DAY_S = 86400.0
_MIN_ACTIVITY_CORES = 0.01  # agent.min_activity_cores: what does less has no IPC
_BLOCK_TICKS = 600
#: For steadier tails: Cloud White's figure 6 has intervals of 5 s, all else slices of 1 s.
_WINDOW_TICKS = 5
#: Longer studies expect only every so many ticks, and interpolate: without noise nothing changes faster.
_COARSE_ABOVE_TICKS = 7200
_COARSE_TICKS = 60


@dataclass(frozen=True, slots=True)
class StudyVm:
    """A VM of a study. Its baseline is `load` of `profile`, times the day's course."""

    name: str
    profile: str
    vcpus: int = 2
    load: float = 0.2  # as `profiles.Application` says
    points: tuple[tuple[float, float], ...] = ()  # (at_s, load); before the first one `load` holds
    shape: Literal["step", "ramp"] = "step"
    switches: tuple[tuple[float, str], ...] = ()  # (at_s, profile): what it runs from there on
    diurnal: float = 0.0  # relative amplitude of a daily sine
    peak_hour: float = 15.0


@dataclass(frozen=True, slots=True)
class Study:
    """A host, its VMs and how long: quiet until `quiet_s`, stressed until `stress_s`, then the rest."""

    name: str
    vms: tuple[StudyVm, ...]
    duration_s: int = 170
    quiet_s: float = 60.0
    stress_s: float = 110.0
    seed: int = 1
    repetition: int = 1  # another one has other random numbers
    machine: Machine = field(default=HOST)
    noise: Noise = field(default=NOISE)
    frequency: tuple[tuple[float, float], ...] = ()  # (at_s, clock over the nominal one), 1 before
    start_unix_s: float = 0.0  # hours of the day are UTC

    def uuid_of(self, vm: StudyVm) -> str:
        """Return the UUID of a VM, the same in every run of the same scenario and repetition."""
        return str(uuid.uuid5(_NAMESPACE, f"{self.name}/{self.seed}/{self.repetition}/{vm.name}"))


class Truth(NamedTuple):
    """What is true of a VM in a tick."""

    role: Role
    load_ratio: float  # offered, without noise
    p95_latency_s: float  # over the requests that ended in the tick; NaN: none
    p95_5s_latency_s: float  # over those of this tick and the four before
    requests: int  # how many ended
    expected_p95_s: float  # NaN for VMs without requests
    expected_degradation: float


class StudyBlock(NamedTuple):
    """Some ticks as arrays: (T,), (T, VMs)."""

    study: Study
    at_s: Array  # end of each tick: what was measured lies before
    metrics: Mapping[str, Array]  # (T, VMs), NaN where not known
    host: Mapping[str, Array]  # (T,)
    load_ratio: Array
    p95_latency_s: Array
    p95_5s_latency_s: Array
    requests: Array
    expected: Expected
    roles: list[list[Role]]


class Queued(NamedTuple):
    """What a VM's queue is given, (T,): all that decides its latencies but the random numbers of its requests."""

    at_s: Array  # begin of each tick
    arriving: NDArray[np.intp]  # requests
    service_s: Array  # their mean time on a vCPU
    disk_op_s: Array  # mean time of a disk operation
    usage_cores: Array


class StudyTick(NamedTuple):
    """One tick; `vms`, `truths` and the study's VMs are in one order."""

    at_s: float
    phase: str  # quiet, stress or after
    vms: tuple[dict[str, float], ...]  # metrics that are known, by name, as `agent.sampling.rates` makes them
    host: dict[str, float]
    truths: tuple[Truth, ...]


def simulate(study: Study, *, requests: bool = True) -> Iterator[StudyTick]:
    """Yield the ticks of a study. Deterministic by the study.

    Args:
        study: what to simulate.
        requests: simulate requests, so that latencies are measured (else NaN; expectations are there anyway).

    Raises:
        ValueError: the study names a profile that is not there, or a VM that serves requests changes its profile.

    """
    for block in blocks(study, requests=requests):
        yield from _ticks(block)


def blocks(study: Study, *, requests: bool = True) -> Iterator[StudyBlock]:
    """Yield a study as arrays, some minutes at a time. Arguments and errors as for `simulate`."""
    engine = _engine(study, requests=requests)
    tracker = RoleTracker(engine.serves)
    recent = [deque[Array](maxlen=_WINDOW_TICKS) for _ in study.vms]
    coarse = _COARSE_TICKS if study.duration_s > _COARSE_ABOVE_TICKS else 1
    for begin in range(0, study.duration_s, _BLOCK_TICKS):
        end = min(begin + _BLOCK_TICKS, study.duration_s)
        moments = moments_of(study, np.arange(begin, end, dtype=np.float64))
        block = engine.advance(moments)
        expected = _expected(engine, study, moments, coarse)
        p95_5s_s, ended = windows_of(block, recent)
        yield StudyBlock(
            study,
            moments.at_s + 1,
            {
                **metrics(block.counted, np.array([vm.vcpus for vm in study.vms], dtype=np.float64)),
                "vcpus_running": block.vcpus_running,
            },
            host_metrics(study.machine, block.counted),
            moments.load,
            block.p95_s,
            p95_5s_s,
            ended,
            expected,
            engine.roles(tracker, moments, expected),
        )


def windows_of(block: Block, recent: Sequence[deque[Array]]) -> tuple[Array, Array]:
    """Return the p95 over each tick and the four before, NaN without requests, and how many ended; (T, VMs).

    Args:
        block: some ticks.
        recent: latencies of the last ticks of each VM, which is added to.

    """
    p95_5s_s = np.full_like(block.p95_s, math.nan)
    ended = np.zeros_like(block.p95_s)
    for vm, (ticks, last) in enumerate(zip(block.latencies_s, recent, strict=True)):
        for t, latencies_s in enumerate(ticks):
            last.append(latencies_s)
            p95_5s_s[t, vm] = p95(np.concatenate(last))
            ended[t, vm] = len(latencies_s)
    return p95_5s_s, ended


def queued(study: Study, vm: int) -> Queued:
    """Tell what the queue of a VM (by place in the study) is given, in the very run that `blocks` makes."""
    block = _engine(study, requests=False).advance(moments_of(study, np.arange(study.duration_s, dtype=np.float64)))
    return Queued(
        block.moments.at_s,
        block.arriving[:, vm].astype(np.intp),
        block.rates.service_s[:, vm] * block.work[:, vm],
        block.rates.disk_op_s[:, 0],
        block.rates.usage_cores[:, vm],
    )


def moments_of(study: Study, at_s: Array) -> Moments:
    """Tell what is wanted of the study's VMs at times, (T,) seconds."""
    load = np.empty((len(at_s), len(study.vms)))
    baseline = np.empty_like(load)
    running = np.zeros(load.shape, dtype=np.intp)
    for column, vm in enumerate(study.vms):
        hours = (study.start_unix_s + at_s) / 3600
        course = 1 + vm.diurnal * np.cos(2 * math.pi * (hours - vm.peak_hour) / 24)
        load[:, column] = _level(at_s, vm.load, vm.points, vm.shape) * course
        baseline[:, column] = vm.load * course
        applications = _runs(vm)
        for switch_s, profile in vm.switches:
            running[at_s >= switch_s, column] = applications.index(profile)
    return Moments(at_s, load, baseline, running, _level(at_s, 1.0, study.frequency, "step"))


def metrics(counted: Counted, vcpus: Array) -> dict[str, Array]:
    """Make the metrics that `agent.sampling.rates` makes of the same counters, NaN where it has a reason instead."""
    c = counted
    active = (c.cpu_cores >= _MIN_ACTIVITY_CORES) & (c.instructions > 0)

    def per(dividend: Array, divisor: Array) -> Array:
        quotient: Array = np.where(active, dividend / np.where(active, divisor, 1.0), math.nan)
        return quotient

    zero = np.zeros_like(c.cpu_cores)
    runnable = c.wait_cores + c.cpu_cores
    return {
        "cpu_usage_cores": c.cpu_cores,
        "guest_ratio": c.guest_cores / vcpus,
        "run_queue_wait_ratio": c.wait_cores / vcpus,
        "gips": c.instructions / 1e9,
        "ipc": per(c.instructions, c.cycles),
        "cpi": per(c.cycles, c.instructions),
        "running_ratio": zero + 1,
        "disk_read_bytes_per_s": c.disk_read_bytes,
        "disk_write_bytes_per_s": c.disk_write_bytes,
        "disk_read_ops_per_s": c.disk_read_ops,
        "disk_write_ops_per_s": c.disk_write_ops,
        "network_receive_bytes_per_s": c.receive_bytes,
        "network_transmit_bytes_per_s": c.transmit_bytes,
        "network_receive_packets_per_s": c.receive_packets,
        "network_transmit_packets_per_s": c.transmit_packets,
        "network_receive_drops_per_s": zero,
        "network_transmit_drops_per_s": zero,
        "steal_like_ratio": np.where(runnable > 0, c.wait_cores / np.where(runnable > 0, runnable, 1.0), 0.0),
        "frequency_ratio": per(c.cycles, c.reference_cycles),
        "l2_mpki": per(c.l2_misses * 1000, c.instructions),
        "llc_mpki": per(c.llc_misses * 1000, c.instructions),
        "memory_stall_ratio": per(c.memory_stall_cycles, c.cycles),
        "total_stall_ratio": per(c.total_stall_cycles, c.cycles),
        "core_stall_ratio": per(c.core_stall_cycles, c.cycles),
        "storage_read_bytes_per_s": c.disk_read_bytes,
        "storage_write_bytes_per_s": c.disk_write_bytes,
        "emulator_cpu_cores": c.emulator_cores,
        "pressure_cpu_some_ratio": c.cpu_pressure,
        "pressure_memory_some_ratio": zero,
        "pressure_memory_full_ratio": zero,
        "pressure_io_some_ratio": c.io_pressure,
        "llc_occupancy_bytes": c.llc_bytes,
        "memory_bandwidth_bytes_per_s": c.memory_bytes,
        "memory_bandwidth_local_bytes_per_s": c.memory_bytes,
    }


def host_metrics(machine: Machine, counted: Counted) -> dict[str, Array]:
    """Make the host's metrics, (T,), likewise."""
    cpus = float(machine.cpus)
    guest = counted.cpu_cores.sum(-1) / cpus
    system = np.full_like(guest, machine.system_cores / cpus)
    iowait = counted.host_iowait_cores / cpus
    return {
        "host_cpu_user_ratio": np.zeros_like(guest),
        "host_cpu_system_ratio": system,
        "host_cpu_idle_ratio": 1 - guest - system - iowait,
        "host_cpu_iowait_ratio": iowait,
        "host_cpu_guest_ratio": guest,
        "host_cpu_steal_ratio": np.zeros_like(guest),
        "host_pressure_io_some_ratio": counted.host_io_pressure,
    }


def _engine(study: Study, *, requests: bool) -> Engine:
    guests = [_guest(vm) for vm in study.vms]
    return Engine(study.machine, study.noise, guests, seed=seed_of(study), requests=requests)


def seed_of(study: Study) -> int:
    """Return what all random numbers of a run come from."""
    return study.seed * 1000 + study.repetition


def _runs(vm: StudyVm) -> list[str]:
    """Name what a VM ever runs, each once, its baseline's first."""
    return list(dict.fromkeys([vm.profile, *(profile for _, profile in vm.switches)]))


def _guest(vm: StudyVm) -> Guest:
    names = _runs(vm)
    unknown = [name for name in names if name not in PROFILES]
    if unknown:
        raise ValueError(f"{vm.name}: no profile {unknown[0]!r}; there are {', '.join(PROFILES)}")
    applications = tuple(PROFILES[name] for name in names)
    if len(applications) > 1 and any(application.service_ms for application in applications):
        raise ValueError(f"{vm.name}: a VM that serves requests cannot change its profile (value {names})")
    return Guest(vm.name, vm.vcpus, applications)


def _level(at_s: Array, first: float, points: Sequence[tuple[float, float]], shape: str) -> Array:
    if not points:
        return np.full_like(at_s, first)
    times = np.array([at for at, _ in points])
    values = np.array([value for _, value in points])
    level: Array
    if shape == "ramp":
        level = np.interp(at_s, times, values, left=first)
    else:
        level = np.concatenate([[first], values])[np.searchsorted(times, at_s, side="right")]
    return level


def _expected(engine: Engine, study: Study, moments: Moments, coarse: int) -> Expected:
    if coarse == 1:
        return engine.expect(moments)
    at_s = moments.at_s
    knots = np.unique(np.concatenate([at_s[::coarse], at_s[-1:]]))
    some = engine.expect(moments_of(study, knots))
    columns = [
        np.stack([np.interp(at_s, knots, column[:, vm]) for vm in range(column.shape[1])], axis=1) for column in some
    ]
    return Expected._make(columns)


def _ticks(block: StudyBlock) -> Iterator[StudyTick]:
    study = block.study
    names = tuple(block.metrics)
    # (T, VMs, metrics), then per tick plain numbers.
    stacked = np.stack([block.metrics[name] for name in names], axis=-1)
    host_names = tuple(block.host)
    hosts = np.stack([block.host[name] for name in host_names], axis=-1)
    for t, at_s in enumerate(block.at_s.tolist()):
        vms = tuple(
            {name: value for name, value in zip(names, row, strict=True) if value == value}  # noqa: PLR0124 - NaN
            for row in stacked[t].tolist()
        )
        truths = tuple(
            Truth(
                block.roles[t][vm],
                float(block.load_ratio[t, vm]),
                float(block.p95_latency_s[t, vm]),
                float(block.p95_5s_latency_s[t, vm]),
                int(block.requests[t, vm]),
                float(block.expected.p95_s[t, vm]),
                float(block.expected.degradation[t, vm]),
            )
            for vm in range(len(study.vms))
        )
        phase = "quiet" if at_s <= study.quiet_s else "stress" if at_s <= study.stress_s else "after"
        yield StudyTick(at_s, phase, vms, dict(zip(host_names, hosts[t].tolist(), strict=True)), truths)
