"""Noise, contention, requests and truth of a host whose VMs have profiles, for any number of steps together.

Used by the live source and by the study of `bench.cloud_white`. Results do not depend on that number.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collector.simulated.contention import Parameters, Rates, contend, parameters, workers_of
from collector.simulated.profiles import Application, Machine, Noise
from collector.simulated.requests import RequestQueue, expected_p95, p95
from collector.simulated.truth import Role, RoleTracker

Array = NDArray[np.float64]
Index = NDArray[np.intp]

_GUEST_SHARE = 0.98  # of a vCPU's CPU time; the rest is the hypervisor's work for it
_EMULATOR_SHARE = 0.02  # CPU time of the other threads, over the vCPUs'
_EMULATOR_S_PER_DISK_OP = 20e-6
_READ_SHARE = 0.4
_RECEIVE_SHARE = 0.5
_PACKET_BYTES = 1000
_MAX_LOAD = 2.0
#: Share of the samples in which something besides the workers runs in a VM: guest kernel, interrupts. Chosen.
_BESIDE = 0.02
# Normal variables per VM and step, and which is which.
_NORMALS = 15
_LOAD, _IPC, _ARRIVALS, _WORK, _GROUP, _BANDWIDTH, _OCCUPANCY, _WAIT, _DISK, _EVENTS = range(10)


class Guest(NamedTuple):
    """A VM: `applications` are all that it ever runs, the first one what it runs at its baseline."""

    name: str
    vcpus: int
    applications: tuple[Application, ...]


class Moments(NamedTuple):
    """The demands of the VMs in T steps, without noise. Arrays are (T, VMs) unless a shape is given."""

    at_s: Array  # (T,), begin of each
    load: Array  # as `Application` defines it; 0: not there
    baseline: Array
    running: Index  # index into the guest's applications
    frequency: Array  # (T,), clock over the nominal one


class Counted(NamedTuple):
    """What the counters of each VM advance by per second, and its gauges; (T, VMs) unless a shape is given."""

    cpu_cores: Array
    guest_cores: Array
    wait_cores: Array
    emulator_cores: Array
    cycles: Array
    instructions: Array
    reference_cycles: Array
    l2_misses: Array
    llc_misses: Array
    memory_stall_cycles: Array
    total_stall_cycles: Array
    core_stall_cycles: Array
    memory_bytes: Array
    llc_bytes: Array
    disk_read_bytes: Array
    disk_write_bytes: Array
    disk_read_ops: Array
    disk_write_ops: Array
    receive_bytes: Array
    transmit_bytes: Array
    receive_packets: Array
    transmit_packets: Array
    cpu_pressure: Array  # share of the time
    io_pressure: Array
    host_iowait_cores: Array  # (T,)
    host_io_pressure: Array  # (T,)


class Expected(NamedTuple):
    """What is expected without noise, (T, VMs)."""

    p95_s: Array  # NaN without requests
    degradation: Array  # of p95_s, of CPI without requests: over the same with all others at their baselines
    cpi_degradation: Array  # of CPI, of all VMs


class Block(NamedTuple):
    """T steps of a host. Arrays are (T, VMs)."""

    moments: Moments
    rates: Rates
    counted: Counted
    p95_s: Array  # measured over the requests that ended in the step; NaN: none, or not simulated
    latencies_s: list[list[Array]]  # of each VM and step: of the requests that ended; no steps if not simulated
    arriving: Array  # requests that arrive
    work: Array  # their mean work over the expected one
    vcpus_running: Array  # vCPU threads that run at the end of the step; NaN: serves requests that are not simulated


class Engine:
    """A host and its VMs. `requests`: simulate requests one by one, so that tails are measured.

    Each VM has its own stream of random numbers, from `seed`.
    """

    def __init__(
        self,
        machine: Machine,
        noise: Noise,
        guests: Sequence[Guest],
        *,
        seed: int,
        step_s: float = 1.0,
        requests: bool = True,
    ) -> None:
        self.machine = machine
        self.guests = tuple(guests)
        self.serves = np.array([guest.applications[0].service_ms > 0 for guest in guests])
        self._noise = noise
        self._step_s = step_s
        flat = [(application, guest.vcpus) for guest in guests for application in guest.applications]
        self._table = parameters(machine, flat)
        starts = np.cumsum([0, *(len(guest.applications) for guest in guests)])
        self._starts: Index = starts[:-1].astype(np.intp)
        self._applications = flat
        self._rngs = [np.random.default_rng([seed, *guest.name.encode()]) for guest in guests]
        # Load and IPC of each VM, of variance 1; (2, VMs).
        self._ar1 = np.array([rng.standard_normal(2) for rng in self._rngs]).reshape(-1, 2).T
        # Sampling has its own stream, so that it changes nothing else.
        self._samplers = [np.random.default_rng([seed, 3, *guest.name.encode()]) for guest in guests]
        self._queues: list[RequestQueue | None] = [
            RequestQueue(
                guest.applications[0],
                workers_of(guest.applications[0], guest.vcpus),
                np.random.default_rng([seed, 1, *guest.name.encode()]),
            )
            if requests and guest.applications[0].service_ms
            else None
            for guest in guests
        ]

    def advance(self, moments: Moments, elapsed_s: float | None = None) -> Block:
        """Let the steps of `moments` pass, which follow those of the last call.

        `elapsed_s` is from the begin of one step to the next if it is not the step's length; the noise decays by it.
        """
        p = self._table.at(self._starts + moments.running)
        normals = np.stack([rng.standard_normal((len(moments.at_s), _NORMALS)) for rng in self._rngs], axis=1)
        load_noise, ipc_noise = self._remembered(normals[..., :2], elapsed_s or self._step_s)
        noise = self._noise
        load, work, arriving = self._offered(moments.load * load_noise, p, normals)
        frequency = moments.frequency[:, None]
        rates = contend(self.machine, p, load, core_noise=1 / ipc_noise, frequency=frequency)
        counted = _count(self.machine, noise, p, rates, normals)
        p95_s, latencies_s, busy = self._serve(moments.at_s, arriving, rates, work)
        running = self._running_vcpus(moments.load, counted, busy)
        return Block(moments, rates, counted, p95_s, latencies_s, arriving, work, running)

    def expect(self, moments: Moments) -> Expected:
        """Return what is expected at moments, independent of any noise and of the steps so far."""
        index = self._starts + moments.running
        p, calm = self._table.at(index), self._table.at(self._starts)
        frequency = moments.frequency[:, None]
        now = contend(self.machine, p, moments.load, frequency=frequency)
        # Once more for each VM, all others at their baselines: (VMs, T, VMs).
        own = np.eye(len(self.guests), dtype=bool)[:, None, :]
        mixed = Parameters._make(np.where(own, a, b) for a, b in zip(p, calm, strict=True))
        quiet = contend(self.machine, mixed, np.where(own, moments.load, moments.baseline), frequency=frequency)
        quiet_cpi = np.diagonal(quiet.cpi, axis1=0, axis2=2)
        p95_s, quiet_p95_s = (np.empty(moments.load.shape) for _ in range(2))
        for vm in range(len(self.guests)):
            p95_s[:, vm] = self._tail(now, index, vm)
            quiet_p95_s[:, vm] = self._tail(Rates._make(column[vm] for column in quiet), index, vm)
        # An idle VM suffers from nothing.
        there = moments.load > 0
        cpi = np.where(there, now.cpi / quiet_cpi, 1.0)
        return Expected(p95_s, np.where(self.serves & there, p95_s / quiet_p95_s, cpi), cpi)

    def roles(self, tracker: RoleTracker, moments: Moments, expected: Expected) -> list[list[Role]]:
        """Return the roles at moments, in order; `tracker` remembers those before."""
        base = np.where(moments.baseline > 0, moments.baseline, 1.0)
        none = np.where(moments.load > 0, math.inf, 1.0)
        with np.errstate(invalid="ignore"):
            ratio = np.where(moments.baseline > 0, moments.load / base, none)
        return [
            tracker.step(at_s, ratio[t], moments.running[t], expected.degradation[t])
            for t, at_s in enumerate(moments.at_s.tolist())
        ]

    def _tail(self, rates: Rates, index: Index, vm: int) -> Array:
        """Return the expected p95 of a VM in seconds, (T,)."""
        tail = np.full(len(index), math.nan)
        for entry in np.unique(index[:, vm]).tolist():
            application, vcpus = self._applications[entry]
            if not application.service_ms:
                continue
            at = index[:, vm] == entry
            service_s = rates.service_s[at, vm]
            busy = rates.requests_per_s[at, vm] * service_s / self._table.workers[entry]
            workers = workers_of(application, vcpus)
            tail[at] = service_s * expected_p95(application, workers, busy, rates.disk_op_s[at, 0] / service_s)
        return tail

    def _remembered(self, innovations: Array, elapsed_s: float) -> tuple[Array, Array]:
        """Advance the AR(1) processes; return the factors of load and IPC, mean 1, (T, VMs) each."""
        noise = self._noise
        times_s = np.array([[noise.load_correlation_s], [noise.ipc_correlation_s]])
        decay = np.exp(-elapsed_s / times_s)
        fresh = np.sqrt(1 - decay * decay) * innovations.transpose(0, 2, 1)
        states = np.empty_like(fresh)
        state = self._ar1
        for t, innovation in enumerate(fresh):
            state = decay * state + innovation
            states[t] = state
        self._ar1 = state
        std = np.array([[noise.load_std], [noise.ipc_std]])
        factors = np.exp(std * states - std * std / 2)
        return factors[:, 0], factors[:, 1]

    def _offered(self, load: Array, p: Parameters, normals: Array) -> tuple[Array, Array, Array]:
        """Return the arriving load, the mean work of its requests over the expected one, and their number."""
        per_load = np.where(p.serves, p.vcpus / np.where(p.serves, p.service_s, 1.0), 0.0) * self._step_s
        mean = load * per_load
        arriving = np.maximum(np.rint(mean + np.sqrt(mean) * normals[..., _ARRIVALS]), 0.0)
        work = np.maximum(1 + p.service_cv / np.sqrt(np.maximum(arriving, 1.0)) * normals[..., _WORK], 0.5)
        offered = np.where(p.serves, arriving * work / np.where(p.serves, per_load, 1.0), np.minimum(load, 1.0))
        return np.minimum(offered, _MAX_LOAD), work, arriving

    def _serve(self, at_s: Array, arriving: Array, rates: Rates, work: Array) -> tuple[Array, list[list[Array]], Array]:
        """Return tails, all latencies, and how many workers are on a vCPU at the end of each step."""
        p95_s, busy = (np.full(arriving.shape, math.nan) for _ in range(2))
        ended: list[list[Array]] = [[] for _ in self._queues]
        for vm, queue in enumerate(self._queues):
            if queue is None:
                continue
            service_s = rates.service_s[:, vm] * work[:, vm]
            for t, begin_s in enumerate(at_s.tolist()):
                latencies_s = queue.serve(
                    begin_s, self._step_s, int(arriving[t, vm]), float(service_s[t]), float(rates.disk_op_s[t, 0])
                )
                ended[vm].append(latencies_s)
                p95_s[t, vm] = p95(latencies_s)
                busy[t, vm] = queue.running_at(begin_s + self._step_s)
        return p95_s, ended, busy

    def _running_vcpus(self, load: Array, counted: Counted, busy: Array) -> Array:
        """Return how many vCPU threads run, or wait for a CPU, at the end of each step, (T, VMs).

        Each thread of a closed loop does so for the share of the time in its counters, independently.
        """
        running = busy.copy()
        runnable = counted.cpu_cores + counted.wait_cores
        for vm, (guest, rng) in enumerate(zip(self.guests, self._samplers, strict=True)):
            drawn = rng.random((len(busy), 1 + guest.vcpus))
            if not self.serves[vm]:
                running[:, vm] = (drawn[:, 1:] < runnable[:, vm, None] / guest.vcpus).sum(axis=1)
            running[:, vm] = np.minimum(running[:, vm] + (drawn[:, 0] < _BESIDE), guest.vcpus)
        return np.where(load > 0, running, 0.0)


def _count(machine: Machine, noise: Noise, p: Parameters, rates: Rates, normals: Array) -> Counted:
    """Return what counters show of the rates: with their noise, and disk operations that come one by one."""
    usage = rates.usage_cores
    # A group of counters is attributed to the VM together, so this part of the noise is common to it.
    group = _factor(noise.counter_std, normals[..., _GROUP])
    cycles = rates.cycles_per_s * group

    def event(value: Array, number: int) -> Array:
        return value * group * _factor(noise.counter_std, normals[..., _EVENTS + number])

    total_stall = np.minimum(event(rates.total_stall_per_s, 3), cycles)
    disk_ops = np.maximum(np.rint(rates.disk_ops_per_s + np.sqrt(rates.disk_ops_per_s) * normals[..., _DISK]), 0.0)
    disk_bytes = disk_ops * p.disk_op_bytes
    # By Little's law: this many operations are under way at any moment.
    under_way = disk_ops * rates.disk_op_s
    wait = np.minimum(rates.wait_cores * np.exp(noise.wait_std * normals[..., _WAIT]), np.maximum(p.vcpus - usage, 0.0))
    idle = np.maximum(machine.cpus - machine.system_cores - usage.sum(-1), 0.0)
    receive = rates.network_bytes_per_s * _RECEIVE_SHARE
    transmit = rates.network_bytes_per_s - receive
    return Counted(
        cpu_cores=usage,
        guest_cores=usage * _GUEST_SHARE,
        wait_cores=wait,
        emulator_cores=usage * _EMULATOR_SHARE + disk_ops * _EMULATOR_S_PER_DISK_OP,
        cycles=cycles,
        instructions=event(rates.instructions_per_s, 0),
        reference_cycles=usage * machine.ghz * 1e9 * group,
        l2_misses=event(rates.l2_misses_per_s, 1),
        llc_misses=event(rates.llc_misses_per_s, 2),
        memory_stall_cycles=np.minimum(event(rates.memory_stall_per_s, 4), total_stall),
        total_stall_cycles=total_stall,
        core_stall_cycles=np.minimum(event(rates.core_stall_per_s, 5), total_stall),
        memory_bytes=rates.memory_bytes_per_s * _factor(noise.bandwidth_std, normals[..., _BANDWIDTH]),
        llc_bytes=rates.llc_bytes * _factor(noise.occupancy_std, normals[..., _OCCUPANCY]),
        disk_read_bytes=disk_bytes * _READ_SHARE,
        disk_write_bytes=disk_bytes * (1 - _READ_SHARE),
        disk_read_ops=disk_ops * _READ_SHARE,
        disk_write_ops=disk_ops * (1 - _READ_SHARE),
        receive_bytes=receive,
        transmit_bytes=transmit,
        receive_packets=receive / _PACKET_BYTES,
        transmit_packets=transmit / _PACKET_BYTES,
        cpu_pressure=1 - (1 - np.minimum(wait / p.vcpus, 1.0)) ** p.vcpus,
        io_pressure=-np.expm1(-under_way),
        host_iowait_cores=np.minimum(under_way.sum(-1), idle),
        host_io_pressure=-np.expm1(-under_way.sum(-1)),
    )


def _factor(std: float, normal: Array) -> Array:
    factor: Array = np.maximum(1 + std * normal, 0.0)
    return factor
