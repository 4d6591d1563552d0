"""The days of a generated trace: usage and CPI of every task, slot by slot.

With task i of job k on machine m in slot t, usage u, all in one formula:

    pressure_i   = strength_k * (d * max(0, u_i - h * U_k) + (1 - d) * U_k), followed with a lag where one is set
    contention   = P, or s * (1 - exp(-P / s)), of P(m,t) = sum of pressure_i
    CPI_i        = base_k * platform_k,p * machine_m * task_i * drift_k(day)
                   * (1 + sensitivity_k * (contention without i's own part) + load term)
                   * (u_i / U_k) ** e * exp(noise), at times by an absurd factor

U_k is the job's usual usage, d the dependence on usage, h the threshold; knobs are in `settings`. With
`intensity_noise` pressure_i has a random factor of its own. The written usage of a batch task is
u_i / (1 + throttling * contention without its own part); pressure and CPI depend on u_i.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from central.traces.generator.population import SLOTS_PER_DAY, SLOTS_PER_HOUR, Jobs, Machines, Tasks, generator
from central.traces.generator.settings import SynthSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Day:
    """The rows of one day as columns of shape (rows,), by slot, machine and place. CPI is NaN where missing."""

    slot: NDArray[np.int64]
    task: NDArray[np.int64]
    usage: NDArray[np.float64]
    cpi: NDArray[np.float64]


class Effects:
    """The true mean coefficient of each job over the days simulated so far.

    That is least squares through the origin of a task's part of the machine's contention on its usage:
    sum(u * (contention - contention without it)) / sum(u^2).
    """

    def __init__(self, jobs: int) -> None:
        self._sum_effect = np.zeros(jobs)
        self._sum_squared = np.zeros(jobs)
        self.task_slots = np.zeros(jobs, np.int64)

    def add(self, job: NDArray[np.int64], usage: NDArray[np.float64], effect: NDArray[np.float64]) -> None:
        """Count task slots: columns of one shape."""
        count = len(self.task_slots)
        flat = job.ravel()
        self._sum_effect += np.bincount(flat, (usage * effect).ravel(), count)
        self._sum_squared += np.bincount(flat, (usage * usage).ravel(), count)
        self.task_slots += np.bincount(flat, minlength=count)

    @property
    def coefficient(self) -> NDArray[np.float64]:
        """Mean contention per unit of CPU, shape (jobs,); 0 for a job that never ran."""
        return np.divide(
            self._sum_effect, self._sum_squared, out=np.zeros_like(self._sum_effect), where=self._sum_squared > 0
        )


class _Walk:
    """A stationary AR(1) process per column, of variance 1, that continues from day to day."""

    def __init__(self, rng: np.random.Generator, memory_h: float, columns: int, tail: float = math.inf) -> None:
        self._keep = math.exp(-1 / (memory_h * SLOTS_PER_HOUR)) if memory_h > 0 else 0.0
        self._tail = tail
        self._state = rng.standard_normal(columns)

    def day(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the next 288 slots, shape (288, columns)."""
        shape = (SLOTS_PER_DAY, len(self._state))
        if math.isinf(self._tail):
            steps = rng.standard_normal(shape)
        else:
            steps = rng.standard_t(self._tail, shape) * math.sqrt((self._tail - 2) / self._tail)
        steps *= math.sqrt(1 - self._keep**2)
        state = self._state
        for slot in range(SLOTS_PER_DAY):
            state = self._keep * state + steps[slot]
            steps[slot] = state
        self._state = state
        return steps


def simulate(settings: SynthSettings, jobs: Jobs, machines: Machines, tasks: Tasks, effects: Effects) -> Iterator[Day]:
    """Simulate day after day; `effects` is added to. Memory is that of a day."""
    state = _State(settings, tasks)
    for day in range(settings.days):
        yield _day(settings, jobs, machines, tasks, effects, state, day)


class _State:
    """What continues from one day to the next: noises, the lagging pressure, and the tasks by their begin."""

    def __init__(self, settings: SynthSettings, tasks: Tasks) -> None:
        rng = generator(settings, "start")
        self.places = settings.ls_tasks + settings.batch_tasks
        columns = settings.machines * self.places
        self.usage = _Walk(rng, settings.usage_memory_h, columns)
        self.noise = _Walk(rng, settings.noise_memory_h, columns, settings.noise_tail)
        self.machine = _Walk(rng, settings.machine_noise_memory_h, settings.machines)
        # Has its own draws, so that a trace without it has the same others.
        self.intensity = (
            _Walk(generator(settings, "intensity"), settings.usage_memory_h, columns)
            if settings.intensity_noise
            else None
        )
        self.pressure = np.zeros(columns)
        self.last_task = np.full(columns, -1)
        self.by_begin = np.argsort(tasks.begin, kind="stable")

    def tasks_of(self, tasks: Tasks, day: int) -> NDArray[np.int64]:
        """Return the task in each slot and place of a day, shape (288, places)."""
        first, end = day * SLOTS_PER_DAY, (day + 1) * SLOTS_PER_DAY
        grid = np.broadcast_to(self.last_task, (SLOTS_PER_DAY, len(self.last_task))).copy()
        begins = tasks.begin[self.by_begin]
        low, high = np.searchsorted(begins, [first, end])
        for task in self.by_begin[low:high].tolist():  # a place is never empty, so the next task overwrites
            grid[tasks.begin[task] - first :, tasks.place[task]] = task
        self.last_task = grid[-1].copy()
        return grid


def _day(
    settings: SynthSettings, jobs: Jobs, machines: Machines, tasks: Tasks, effects: Effects, state: _State, day: int
) -> Day:
    rng = generator(settings, "day", day)
    before = state.last_task
    task = state.tasks_of(tasks, day)
    job = tasks.job[task]
    hour_angle = 2 * math.pi * (np.arange(SLOTS_PER_DAY)[:, None] / SLOTS_PER_DAY + jobs.phase[job])
    is_sensitive = jobs.is_sensitive[job]
    rhythm = np.where(is_sensitive, settings.diurnal_load, -settings.batch_diurnal_load) * np.sin(hour_angle)

    walk = state.usage.day(rng)
    walk = _with_leaders(walk, tasks.leader_place[task], settings.companion_usage_correlation)
    wobble = np.exp(settings.usage_noise * walk - settings.usage_noise**2 / 2)
    usage = jobs.usage[job] * tasks.usage[task] * (1 + rhythm) * wobble

    pressure = _pressure(settings, jobs, job, usage)
    if state.intensity is not None:
        walk = state.intensity.day(generator(settings, "intensity", day + 1))
        pressure *= np.exp(settings.intensity_noise * walk - settings.intensity_noise**2 / 2)
    if settings.effect_memory_h > 0:
        pressure = _lagged(settings, state, pressure, task, before)
    shape = (SLOTS_PER_DAY, settings.machines, state.places)
    others = pressure.reshape(shape)
    total = others.sum(axis=2, keepdims=True)
    others = np.maximum(total - others, 0.0)
    with_all, without = _contention(settings, total), _contention(settings, others)
    machine = np.arange(job.shape[1]) // state.places
    cpi = jobs.base_cpi[job] * jobs.platform_cpi[machines.platform[machine], job] * machines.cpi[machine]
    cpi *= tasks.cpi[task] * jobs.drift[day][job]
    load = settings.load_effect * np.where(is_sensitive, rhythm, 0.0)
    cpi *= 1 + jobs.sensitivity[job] * without.reshape(job.shape) + load
    if settings.own_usage_effect:
        cpi *= (usage / jobs.usage[job]) ** settings.own_usage_effect
    if settings.throttling:
        slowed = 1 + settings.throttling * without.reshape(job.shape)
        usage = np.where(is_sensitive, usage, usage / slowed)
    effects.add(job, usage, (with_all - without).reshape(job.shape))
    noise = settings.cpi_noise * state.noise.day(rng)
    noise += settings.machine_noise * state.machine.day(rng)[:, machine]
    cpi *= np.exp(np.clip(noise * machines.noise[machine], -3, 3))
    cpi = _spoilt(rng, settings, cpi)
    slot = day * SLOTS_PER_DAY + np.arange(SLOTS_PER_DAY)
    return Day(np.repeat(slot, job.shape[1]), task.ravel(), usage.ravel(), cpi.ravel())


def _with_leaders(
    walk: NDArray[np.float64], leader_place: NDArray[np.int64], correlation: float
) -> NDArray[np.float64]:
    """Correlate the usage of companions with their antagonist's task."""
    slot, place = np.nonzero(leader_place >= 0)
    mixed = walk.copy()
    mixed[slot, place] = (
        correlation * walk[slot, leader_place[slot, place]] + math.sqrt(1 - correlation**2) * walk[slot, place]
    )
    return mixed


def _pressure(
    settings: SynthSettings, jobs: Jobs, job: NDArray[np.int64], usage: NDArray[np.float64]
) -> NDArray[np.float64]:
    usual, share = jobs.usage[job], settings.usage_dependence
    above = np.maximum(usage - settings.effect_threshold * usual, 0.0)
    return np.asarray(jobs.strength[job] * (share * above + (1 - share) * usual))


def _lagged(
    settings: SynthSettings,
    state: _State,
    pressure: NDArray[np.float64],
    task: NDArray[np.int64],
    before: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Let pressure follow slowly, from nothing when a task begins, as a cache fills and empties."""
    keep = math.exp(-1 / (settings.effect_memory_h * SLOTS_PER_HOUR))
    lagged = np.empty_like(pressure)
    last, held = before, state.pressure
    for slot in range(len(pressure)):
        held = np.where(task[slot] == last, keep * held, 0.0) + (1 - keep) * pressure[slot]
        lagged[slot], last = held, task[slot]
    state.pressure = held
    return lagged


def _contention(settings: SynthSettings, pressure: NDArray[np.float64]) -> NDArray[np.float64]:
    if settings.form == "linear":
        return pressure
    return np.asarray(-settings.saturation * np.expm1(-pressure / settings.saturation))


def _spoilt(rng: np.random.Generator, settings: SynthSettings, cpi: NDArray[np.float64]) -> NDArray[np.float64]:
    """Corrupt some samples, up or (one in four) down, and lose others."""
    chance = rng.random(cpi.shape)
    corrupted = np.flatnonzero(chance.ravel() < settings.corrupted_share)
    factor = settings.corrupted_factor * np.exp(0.5 * rng.standard_normal(len(corrupted)))
    factor = np.where(rng.random(len(corrupted)) < 0.25, 1 / factor, factor)  # noqa: PLR2004 - one in four
    spoilt = cpi.copy()
    spoilt.ravel()[corrupted] *= factor
    if settings.missing_cpi_share:
        spoilt[rng.random(cpi.shape) < settings.missing_cpi_share] = np.nan
    return spoilt
