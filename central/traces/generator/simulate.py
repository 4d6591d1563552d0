"""The days of a generated trace: usage and CPI of every task, slot by slot.

With task i of job k on machine m in slot t, usage u, all in one formula:

    pressure_i   = strength_k * (d * max(0, u_i - h * U_k) + (1 - d) * U_k), followed with a lag where one is set
    contention   = P, or s * (1 - exp(-P / s)), of P(m,t) = sum of pressure_i
    CPI_i        = base_k * platform_k,p * machine_m * task_i * drift_k(day)
                   * (1 + sensitivity_k * (contention without i's own part) + load term)
                   * (u_i / U_k) ** e * exp(noise), at times by an absurd factor

U_k is the job's usual usage, d the dependence on usage, h the threshold; parameters are in `settings`. With
`intensity_noise` pressure_i has a random factor of its own. The written usage of a batch task is
u_i / (1 + throttling * contention without its own part); pressure and CPI depend on u_i.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from central.models.groups import Floats, Ints
from central.traces.generator.population import SLOTS_PER_DAY, SLOTS_PER_HOUR, Population, generator
from central.traces.generator.settings import SynthSettings


@dataclass(frozen=True, slots=True)
class Day:
    """The rows of one day as columns of shape (rows,), by slot, machine and place. CPI is NaN where missing."""

    slot: Ints
    task: Ints
    usage: Floats
    cpi: Floats


class Effects:
    """The true mean coefficient of each job over the days simulated so far.

    That is least squares through the origin of a task's part of the machine's contention on its usage:
    sum(u * (contention - contention without it)) / sum(u^2).
    """

    def __init__(self, jobs: int) -> None:
        self._sum_effect = np.zeros(jobs)
        self._sum_squared = np.zeros(jobs)
        self.task_slots = np.zeros(jobs, np.int64)

    def add(self, job: Ints, usage: Floats, effect: Floats) -> None:
        """Count task slots: columns of one shape."""
        count = len(self.task_slots)
        flat = job.ravel()
        self._sum_effect += np.bincount(flat, (usage * effect).ravel(), count)
        self._sum_squared += np.bincount(flat, (usage * usage).ravel(), count)
        self.task_slots += np.bincount(flat, minlength=count)

    @property
    def coefficient(self) -> Floats:
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

    def day(self, rng: np.random.Generator) -> Floats:
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


class Simulation:
    """A trace day by day; memory is that of a day. `effects` has the true coefficients over the days so far.

    From one day to the next continue noises, the lagging pressure, and the tasks.
    """

    def __init__(self, population: Population) -> None:
        settings, tasks = population.settings, population.tasks
        rng = generator(settings, "start")
        self.effects = Effects(len(population.jobs.job_id))
        self._population = population
        self._places = settings.ls_tasks + settings.batch_tasks
        columns = settings.machines * self._places
        self._usage = _Walk(rng, settings.usage_memory_h, columns)
        self._noise = _Walk(rng, settings.noise_memory_h, columns, settings.noise_tail)
        self._machine = _Walk(rng, settings.machine_noise_memory_h, settings.machines)
        # Has its own draws, so that a trace without it has the same others.
        self._intensity = _Walk(generator(settings, "intensity"), settings.usage_memory_h, columns)
        self._pressure = np.zeros(columns)
        self._last_task = np.full(columns, -1)
        self._by_begin = np.argsort(tasks.begin, kind="stable")

    def days(self) -> Iterator[Day]:
        """Simulate day after day."""
        for day in range(self._population.settings.days):
            yield self._day(day)

    def _tasks_of(self, day: int) -> Ints:
        """Return the task in each slot and place of a day, shape (288, places)."""
        tasks, first = self._population.tasks, day * SLOTS_PER_DAY
        grid = np.broadcast_to(self._last_task, (SLOTS_PER_DAY, len(self._last_task))).copy()
        low, high = np.searchsorted(tasks.begin[self._by_begin], [first, first + SLOTS_PER_DAY])
        for task in self._by_begin[low:high].tolist():  # a place is never empty, so the next task overwrites
            grid[tasks.begin[task] - first :, tasks.place[task]] = task
        self._last_task = grid[-1].copy()
        return grid

    def _day(self, day: int) -> Day:
        settings, jobs = self._population.settings, self._population.jobs
        machines, tasks = self._population.machines, self._population.tasks
        rng = generator(settings, "day", day)
        before = self._last_task
        task = self._tasks_of(day)
        job = tasks.job[task]
        hour_angle = 2 * math.pi * (np.arange(SLOTS_PER_DAY)[:, None] / SLOTS_PER_DAY + jobs.phase[job])
        is_sensitive = jobs.is_sensitive[job]
        rhythm = np.where(is_sensitive, settings.diurnal_load, -settings.batch_diurnal_load) * np.sin(hour_angle)

        walk = self._usage.day(rng)
        walk = _with_leaders(walk, tasks.leader_place[task], settings.companion_usage_correlation)
        usage = jobs.usage[job] * tasks.usage[task] * (1 + rhythm) * _wobble(settings.usage_noise, walk)

        usual, share = jobs.usage[job], settings.usage_dependence
        above = np.maximum(usage - settings.effect_threshold * usual, 0.0)
        pressure = np.asarray(jobs.strength[job] * (share * above + (1 - share) * usual))
        if settings.intensity_noise:
            walk = self._intensity.day(generator(settings, "intensity", day + 1))
            pressure *= _wobble(settings.intensity_noise, walk)
        if settings.effect_memory_h > 0:
            pressure = self._lagged(pressure, task, before)
        others = pressure.reshape(SLOTS_PER_DAY, settings.machines, self._places)
        total = others.sum(axis=2, keepdims=True)
        with_all, without = (_contention(settings, each) for each in (total, np.maximum(total - others, 0.0)))
        effect, without = (with_all - without).reshape(job.shape), without.reshape(job.shape)
        machine = np.arange(job.shape[1]) // self._places
        cpi = jobs.base_cpi[job] * jobs.platform_cpi[machines.platform[machine], job] * machines.cpi[machine]
        cpi *= tasks.cpi[task] * jobs.drift[day][job]
        cpi *= 1 + jobs.sensitivity[job] * without + settings.load_effect * np.where(is_sensitive, rhythm, 0.0)
        if settings.own_usage_effect:
            cpi *= (usage / jobs.usage[job]) ** settings.own_usage_effect
        if settings.throttling:
            usage = np.where(is_sensitive, usage, usage / (1 + settings.throttling * without))
        self.effects.add(job, usage, effect)
        noise = settings.cpi_noise * self._noise.day(rng)
        noise += settings.machine_noise * self._machine.day(rng)[:, machine]
        cpi *= np.exp(np.clip(noise * machines.noise[machine], -3, 3))
        cpi = _spoilt(rng, settings, cpi)
        slot = day * SLOTS_PER_DAY + np.arange(SLOTS_PER_DAY)
        return Day(np.repeat(slot, job.shape[1]), task.ravel(), usage.ravel(), cpi.ravel())

    def _lagged(self, pressure: Floats, task: Ints, before: Ints) -> Floats:
        """Let pressure follow slowly, from nothing when a task begins, as a cache fills and empties."""
        keep = math.exp(-1 / (self._population.settings.effect_memory_h * SLOTS_PER_HOUR))
        lagged = np.empty_like(pressure)
        for slot in range(len(pressure)):
            held = np.where(task[slot] == before, keep * self._pressure, 0.0)
            self._pressure = held + (1 - keep) * pressure[slot]
            lagged[slot], before = self._pressure, task[slot]
        return lagged


def _wobble(spread: float, walk: Floats) -> Floats:
    """Return log-normal factors of mean 1 from a walk of variance 1."""
    return np.asarray(np.exp(spread * walk - spread**2 / 2))


def _with_leaders(walk: Floats, leader_place: Ints, correlation: float) -> Floats:
    """Correlate the usage of companions with their antagonist's task."""
    slot, place = np.nonzero(leader_place >= 0)
    mixed, leader = walk.copy(), walk[slot, leader_place[slot, place]]
    mixed[slot, place] = correlation * leader + math.sqrt(1 - correlation**2) * walk[slot, place]
    return mixed


def _contention(settings: SynthSettings, pressure: Floats) -> Floats:
    if settings.form == "linear":
        return pressure
    return np.asarray(-settings.saturation * np.expm1(-pressure / settings.saturation))


def _spoilt(rng: np.random.Generator, settings: SynthSettings, cpi: Floats) -> Floats:
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
