"""The methods as the evaluation sees them: they learn day by day, and score an event's suspects per victim."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from agent.analysis.antagonists.panda import suspect_score
from central.models.antagonists import cpi2, proctor
from central.models.antagonists.colocation import PairSums, pair_sums
from central.models.antagonists.panda import CpiMoments, LocalCoefficients, PairState, local_coefficients
from central.models.antagonists.slots import SLOTS_PER_DAY, TaskSlots
from central.models.antagonists.whitepanda import WhitepandaState
from central.models.groups import Column, Floats, find
from central.traces.events import Event


class Method(Protocol):
    """One way to find antagonists."""

    def learn(self, day: TaskSlots) -> None:
        """Take a day in."""

    def settle(self) -> None:
        """Make ready for events with what was learnt so far."""

    def scores(self, event: Event) -> Floats:
        """Score the suspects, shape (victims, suspects), or (1, suspects) where victims make no difference.

        Higher is more suspected; -inf where the method knows nothing of a suspect.
        """


def _by_job(jobs: Column, values: Floats, wanted: Column) -> list[float | None]:
    """Return each wanted job's value, None for unknown ones."""
    place = find((jobs,), (wanted,)).tolist()
    return [float(values[at]) if at >= 0 else None for at in place]


def _scored(coefficients: Sequence[float | None], usage: Floats, method: str = "") -> Floats:
    """Score suspects by the hosts' own `suspect_score`, shape (1, suspects)."""
    pairs = zip(coefficients, usage.tolist(), strict=True)
    return np.array([[suspect_score(coefficient, cores, method) for coefficient, cores in pairs]])


@dataclass(slots=True)
class Panda:
    """A_k * u, with the A_k of all machines."""

    _state: PairState | None = None
    _jobs: Column = field(default_factory=lambda: np.empty(0, np.int64))
    _values: Floats = field(default_factory=lambda: np.empty(0))

    def learn(self, day: TaskSlots) -> None:
        """Take a day in."""
        state = PairState.of(day)
        self._state = self._state.merge(state) if self._state else state

    def settle(self) -> None:
        """Compute the coefficients."""
        if self._state:
            found = self._state.coefficients()
            self._jobs, self._values = found.job, found.value

    def scores(self, event: Event) -> Floats:
        """Return A_k * u."""
        return _scored(_by_job(self._jobs, self._values, event.suspect_job), event.suspect_usage[:, -1])


@dataclass(slots=True)
class Whitepanda:
    """A_k * u, with our A_k."""

    _state: WhitepandaState | None = None
    _jobs: Column = field(default_factory=lambda: np.empty(0, np.int64))
    _values: Floats = field(default_factory=lambda: np.empty(0))

    def learn(self, day: TaskSlots) -> None:
        """Take a day in."""
        state = WhitepandaState.of(day)
        self._state = self._state.merge(state) if self._state else state

    def settle(self) -> None:
        """Compute the coefficients."""
        if self._state:
            found = self._state.coefficients()
            self._jobs, self._values = found.job, found.value

    def scores(self, event: Event) -> Floats:
        """Return A_k * u; 0, what the ridge takes for granted, for a job never seen."""
        known = _by_job(self._jobs, self._values, event.suspect_job)
        return _scored(known, event.suspect_usage[:, -1], "whitepanda")


@dataclass(slots=True)
class PandaLocal:
    """A_k * u, with the A_k of the event's machine."""

    _state: PairSums | None = None
    _cpi: CpiMoments | None = None
    _found: LocalCoefficients | None = None

    def learn(self, day: TaskSlots) -> None:
        """Take a day in."""
        state, cpi = pair_sums(day), CpiMoments.of(day.job, day.platform, day.cpi)
        self._state = self._state.merge(state) if self._state else state
        self._cpi = self._cpi.merge(cpi) if self._cpi else cpi

    def settle(self) -> None:
        """Compute the coefficients."""
        if self._state and self._cpi:
            self._found = local_coefficients(self._state, self._cpi.statistics())

    def scores(self, event: Event) -> Floats:
        """Return A_k * u."""
        if self._found is None:
            return np.full((1, len(event.suspect_job)), -np.inf)
        first = np.searchsorted(self._found.machine, event.machine, "left")
        last = np.searchsorted(self._found.machine, event.machine, "right")
        known = _by_job(self._found.job[first:last], self._found.value[first:last], event.suspect_job)
        return _scored(known, event.suspect_usage[:, -1])


@dataclass(slots=True)
class Cpi2:
    """Where usage went with a victim's CPI above its aged threshold, over the past two hours."""

    _spec: cpi2.Spec | None = None
    _day: int = 0

    def learn(self, day: TaskSlots) -> None:
        """Age the specs by the calendar days since the last one that had data, and take a day in."""
        moments = CpiMoments.of(day.job, day.platform, day.cpi)
        number = int(day.slot.min()) // SLOTS_PER_DAY
        if self._spec:
            self._spec = self._spec.next_day(moments, cpi2.AGEING ** (number - self._day))
        else:
            self._spec = cpi2.Spec.of(moments)
        self._day = number

    def settle(self) -> None:
        """Nothing to do."""

    def scores(self, event: Event) -> Floats:
        """Score per victim."""
        if self._spec is None:
            return np.full((len(event.victim_job), len(event.suspect_job)), -np.inf)
        place = find((self._spec.job, self._spec.platform), (event.victim_job, event.victim_platform))
        limits = self._spec.threshold()[place]
        return np.array(
            [
                cpi2.suspect_scores(cpi, float(limit), event.suspect_usage)
                for cpi, limit in zip(event.victim_cpi, limits, strict=True)
            ]
        )


@dataclass(slots=True)
class Proctor:
    """Correlation with a victim's CPI in a random hour of the past two."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def learn(self, day: TaskSlots) -> None:
        """Nothing to do."""

    def settle(self) -> None:
        """Nothing to do."""

    def scores(self, event: Event) -> Floats:
        """Score per victim."""
        return np.array([proctor.suspect_scores(c, event.suspect_usage, self.rng) for c in event.victim_cpi])


@dataclass(slots=True)
class Known:
    """The oracle: A_k * u with given A_k, 0 for jobs that are not given."""

    coefficients: Mapping[Any, float]

    def learn(self, day: TaskSlots) -> None:
        """Nothing to do."""

    def settle(self) -> None:
        """Nothing to do."""

    def scores(self, event: Event) -> Floats:
        """Return A_k * u."""
        known = [self.coefficients.get(job, 0.0) for job in event.suspect_job.tolist()]
        return _scored(known, event.suspect_usage[:, -1])


#: The methods by the names that people give.
METHODS: Mapping[str, Callable[[], Method]] = {
    "panda": Panda,
    "panda_local": PandaLocal,
    "cpi2": Cpi2,
    "proctor": Proctor,
    "whitepanda": Whitepanda,
}
