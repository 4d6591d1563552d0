"""The jobs and machines of a generated trace, and where and when each task runs."""

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from central.models.groups import Floats, Ints
from central.traces.generator.settings import SynthSettings

SLOTS_PER_DAY = 288
SLOTS_PER_HOUR = 12
ROLES = ("latency_sensitive", "ordinary", "antagonist", "companion", "burner")
_LS, _ORDINARY, _ANTAGONIST, _COMPANION, _BURNER = range(len(ROLES))
_FIRST_JOB_ID = 400_000_000_000  # the real trace's collections have such numbers
_RARE = 0.05

# Streams of random numbers: a parameter that draws more in one leaves the others unchanged.
_STREAMS = ("jobs", "machines", "tasks", "day", "start", "drift", "intensity")


def generator(settings: SynthSettings, stream: str, day: int = 0) -> np.random.Generator:
    """Return the random numbers of one part of the trace."""
    return np.random.default_rng([settings.seed, _STREAMS.index(stream), day])


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs as columns of shape (jobs,). Usage is the mean of a task; strength is contention per unit of CPU."""

    job_id: Ints
    role: NDArray[np.int8]
    priority: Floats
    scheduling_class: Floats
    usage: Floats
    strength: Floats
    weight: Floats
    first_slot: Ints
    end_slot: Ints
    sensitivity: Floats
    base_cpi: Floats
    platform_cpi: Floats  # (platforms, jobs): factor of the base CPI
    phase: Floats
    drift: Floats  # (days, jobs): factor of the base CPI
    leader: Ints  # of a companion: its antagonist; else -1

    @property
    def is_sensitive(self) -> NDArray[np.bool_]:
        """Which jobs are latency-sensitive."""
        found: NDArray[np.bool_] = self.role == _LS
        return found


@dataclass(frozen=True, slots=True)
class Machines:
    """Machines as columns of shape (machines,)."""

    machine_id: Ints
    platform: Ints
    cpi: Floats
    noise: Floats


@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks as columns of shape (tasks,). Place = machine * places + number; slots are from `begin` up to `end`.

    `leader_place` is the place of the antagonist's task that a companion came with, else -1.
    """

    job: Ints
    instance: Ints
    place: Ints
    begin: Ints
    end: Ints
    leader_place: Ints
    usage: Floats
    cpi: Floats


@dataclass(frozen=True, slots=True)
class Population:
    """The jobs, machines and tasks of a trace, drawn from its settings."""

    settings: SynthSettings
    jobs: Jobs
    machines: Machines
    tasks: Tasks

    @classmethod
    def draw(cls, settings: SynthSettings) -> "Population":
        """Draw all of them; the settings decide every number."""
        jobs = make_jobs(settings)
        return cls(settings, jobs, _make_machines(settings), _make_tasks(settings, jobs))

    def machine_of(self, task: Ints) -> Ints:
        """Return the machines of tasks."""
        return self.tasks.place[task] // (self.settings.ls_tasks + self.settings.batch_tasks)


def _spread(rng: np.random.Generator, sigma: float, shape: Any) -> Floats:
    """Log-normal factors of mean 1."""
    drawn: Floats = np.exp(sigma * rng.standard_normal(shape) - sigma * sigma / 2)
    return drawn


def make_jobs(settings: SynthSettings) -> Jobs:
    """Draw the jobs: latency-sensitive ones, then ordinary, antagonists, companions, burners."""
    rng = generator(settings, "jobs")
    counts = (settings.ls_jobs, settings.batch_jobs, settings.antagonists, settings.companions, settings.burners)
    role = np.repeat(np.arange(len(ROLES), dtype=np.int8), counts)
    jobs, batch = len(role), role != _LS
    median = np.where(batch, settings.batch_usage, settings.ls_usage)
    usage = median * np.exp(settings.usage_job_spread * rng.standard_normal(jobs))
    usage = np.where(role == _ANTAGONIST, usage * settings.antagonist_usage, usage)
    usage = np.where(role == _BURNER, usage * settings.burner_usage, usage)
    is_hurting = role == _ANTAGONIST
    is_hurting[: settings.ls_antagonists] = True
    spread = _spread(rng, settings.effect_spread, jobs)
    effect = np.where(is_hurting, settings.antagonist_effect, 0.0)
    effect = np.where(role == _ORDINARY, settings.background_effect, effect) * spread
    first, end = _presence(rng, settings, batch)
    leader = np.full(jobs, -1)
    riders = np.flatnonzero(role == _COMPANION)
    leader[riders] = np.flatnonzero(role == _ANTAGONIST)[np.arange(len(riders)) % max(settings.antagonists, 1)]
    first[riders], end[riders] = first[leader[riders]], end[leader[riders]]
    drift = settings.daily_drift * generator(settings, "drift").standard_normal((settings.days, jobs))
    return Jobs(
        job_id=_FIRST_JOB_ID + rng.permutation(jobs * 7)[:jobs],
        role=role,
        priority=np.where(batch, rng.choice([0.0, 25.0, 103.0, 105.0, 117.0], jobs), rng.choice([200.0, 360.0], jobs)),
        scheduling_class=np.where(batch, rng.choice([0.0, 1.0], jobs), rng.choice([2.0, 3.0], jobs)),
        usage=usage,
        strength=effect / usage,
        weight=_weights(rng, settings, role),
        first_slot=first,
        end_slot=end,
        sensitivity=settings.sensitivity * _spread(rng, settings.sensitivity_spread, jobs),
        base_cpi=settings.base_cpi * np.exp(settings.cpi_job_spread * rng.standard_normal(jobs)),
        platform_cpi=np.exp(
            settings.platform_spread * rng.standard_normal((settings.platforms, 1))
            + settings.platform_job_spread * rng.standard_normal((settings.platforms, jobs))
        ),
        phase=0.05 * rng.standard_normal(jobs),
        drift=np.exp(np.cumsum(drift, axis=0)),
        leader=leader,
    )


def _presence(rng: np.random.Generator, settings: SynthSettings, batch: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """First slot and end of each job: transient ones are there for a fifth to a half of the days."""
    slots = settings.days * SLOTS_PER_DAY
    is_transient = batch & (rng.random(len(batch)) < settings.transient_share)
    length = np.where(is_transient, rng.uniform(0.2, 0.5, len(batch)), 1.0) * slots
    first = rng.random(len(batch)) * (slots - length)
    return first.astype(np.int64), np.ceil(first + length).astype(np.int64)


def _weights(rng: np.random.Generator, settings: SynthSettings, role: NDArray[np.int8]) -> Floats:
    """Return the weight of each job in the draw of new tasks. All batch roles have jobs of all ranks."""
    weight = np.zeros(len(role))
    for members in (np.flatnonzero(role == _LS), np.flatnonzero(role != _LS)):
        ranks = 1.0 + rng.permutation(len(members))
        weight[members] = ranks**-settings.popularity_exponent
    is_rare = (role != _LS) & (rng.random(len(role)) < settings.rare_share)
    weight = np.where(is_rare, weight * _RARE, weight)
    return np.where(role == _COMPANION, weight * (1 - settings.ride_along), weight)


def _make_machines(settings: SynthSettings) -> Machines:
    """Draw the machines."""
    rng = generator(settings, "machines")
    count = settings.machines
    return Machines(
        machine_id=1_000_000 + rng.permutation(count * 5)[:count],
        platform=rng.integers(0, settings.platforms, count),
        cpi=_spread(rng, settings.machine_effect, count),
        noise=_spread(rng, settings.machine_noise_spread, count),
    )


def _make_tasks(settings: SynthSettings, jobs: Jobs) -> Tasks:
    """Fill the places of all machines, one task after the other, for the whole trace.

    A free place takes a companion that waits for a place next to its antagonist, else an existing job, drawn by weight.
    """
    rng = generator(settings, "tasks")
    places, slots = settings.ls_tasks + settings.batch_tasks, settings.days * SLOTS_PER_DAY
    draw = _JobDraw(rng, jobs)
    free = [(0, place) for place in range(settings.machines * places)]
    waiting: dict[int, list[tuple[int, int, int]]] = {}
    rows: list[_Row] = []
    riders: dict[int, list[int]] = {}
    for rider in np.flatnonzero(jobs.leader >= 0).tolist():
        riders.setdefault(int(jobs.leader[rider]), []).append(rider)
    while free:
        begin, place = heapq.heappop(free)
        machine, is_sensitive = place // places, place % places < settings.ls_tasks
        queue = waiting.get(machine, [])
        while queue and queue[0][1] <= begin + 1:
            queue.pop(0)  # its antagonist is gone before a place came free
        if queue and not is_sensitive:
            job, end, leader_place = queue.pop(0)
        else:
            job, leader_place = draw.one(begin, sensitive=is_sensitive), -1
            hours = settings.ls_lifetime_h if is_sensitive else settings.batch_lifetime_h
            lasts = max(1, round(rng.exponential(hours * SLOTS_PER_HOUR)))
            if begin == 0:  # as if the machine had run for long: what remains of a life
                lasts = max(1, round(rng.exponential(hours * SLOTS_PER_HOUR)))
            end = min(begin + lasts, slots, max(int(jobs.end_slot[job]), begin + 1))
            for rider in riders.get(job, ()):
                if rng.random() < settings.ride_along:
                    waiting.setdefault(machine, []).append((rider, end, place))
        rows.append((job, place, begin, end, leader_place))
        if end < slots:
            heapq.heappush(free, (end, place))
    return _as_tasks(rng, settings, jobs, rows)


#: Job, place, begin, end, and the leader's place of a task.
_Row = tuple[int, int, int, int, int]


def _as_tasks(rng: np.random.Generator, settings: SynthSettings, jobs: Jobs, rows: list[_Row]) -> Tasks:
    job, place, begin, end, leader_place = np.array(rows, np.int64).T
    order = np.argsort(job, kind="stable")
    first = np.searchsorted(job[order], np.arange(len(jobs.job_id)))
    instance = np.empty(len(job), np.int64)
    instance[order] = np.arange(len(job)) - first[job[order]]
    usage, cpi = (_spread(rng, sigma, len(job)) for sigma in (settings.usage_task_spread, settings.task_effect))
    return Tasks(job, instance, place, begin, end, leader_place, usage, cpi)


class _JobDraw:
    """Draws jobs by weight among those that exist in a slot; each set of jobs has a table."""

    def __init__(self, rng: np.random.Generator, jobs: Jobs) -> None:
        self._rng, self._jobs = rng, jobs
        self._changes = np.unique(np.concatenate([jobs.first_slot, jobs.end_slot]))
        self._tables: dict[tuple[int, bool], tuple[Ints, Floats]] = {}

    def one(self, slot: int, *, sensitive: bool) -> int:
        jobs = self._jobs
        epoch = int(np.searchsorted(self._changes, slot, side="right"))
        if (epoch, sensitive) not in self._tables:
            kind = jobs.is_sensitive == sensitive
            exists = kind & (jobs.first_slot <= slot) & (slot < jobs.end_slot)
            members = np.flatnonzero(exists if jobs.weight[exists].sum() > 0 else kind)
            weights = jobs.weight[members]
            weights = weights if weights.sum() > 0 else np.ones(len(members))
            self._tables[epoch, sensitive] = members, np.cumsum(weights) / weights.sum()
        members, table = self._tables[epoch, sensitive]
        drawn = int(np.searchsorted(table, self._rng.random()))
        return int(members[min(drawn, len(members) - 1)])
