"""The methods in the form that the evaluation needs: they learn day by day, and score an event's suspects."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from agent.analysis.contention.suspect_scores import suspect_score
from central.models.antagonists import cpi2, proctor
from central.models.antagonists.colocation import PairSums, pair_sums
from central.models.antagonists.panda import CpiMoments, LocalCoefficients, PairState, local_coefficients
from central.models.antagonists.slots import SLOTS_PER_DAY, TaskSlots
from central.models.antagonists.whitepanda import WhitepandaState
from central.models.groups import Column, Floats, find
from central.traces.events import Event


class Method(Protocol):
    """One way to find antagonists. Some neither learn from days nor prepare for events."""

    def learn(self, day: TaskSlots) -> None:  # noqa: ARG002 - for those that learn
        """Take a day in."""
        return

    def settle(self) -> None:
        """Make ready for events with what was learnt so far."""
        return

    def scores(self, event: Event) -> Floats:
        """Score the suspects, shape (victims, suspects), or (1, suspects) where victims make no difference.

        Higher is more suspected; -inf for a suspect that the method does not know.
        """


def _scored(jobs: Column, values: Floats, event: Event, fitted_by: str = "") -> Floats:
    """Score an event's suspects by the hosts' own `suspect_score`, shape (1, suspects)."""
    usage = event.suspect_usage[:, -1].tolist()
    places = find((jobs,), (event.suspect_job,)).tolist()
    known = [float(values[place]) if place >= 0 else None for place in places]
    return np.array([[suspect_score(one, cores, fitted_by) for one, cores in zip(known, usage, strict=True)]])


class Panda(Method):
    """A_k * u, with the A_k of all machines."""

    fitted_by = ""
    #: What is learnt of a day; it can be merged with other days'.
    state_of: Callable[[TaskSlots], Any] = staticmethod(PairState.of)

    def __init__(self) -> None:
        self._state: Any = None
        self._jobs: Column = np.empty(0, np.int64)
        self._values: Floats = np.empty(0)

    def learn(self, day: TaskSlots) -> None:
        """Take a day in."""
        state = self.state_of(day)
        self._state = self._state.merge(state) if self._state else state

    def settle(self) -> None:
        """Compute the coefficients."""
        if self._state:
            found = self._state.coefficients()
            self._jobs, self._values = found.job, found.value

    def scores(self, event: Event) -> Floats:
        """Return A_k * u."""
        return _scored(self._jobs, self._values, event, self.fitted_by)


class Whitepanda(Panda):
    """A_k * u, with whitepanda's A_k; 0, what the ridge assumes, for a job never seen."""

    fitted_by = "whitepanda"
    state_of = staticmethod(WhitepandaState.of)


class PandaLocal(Method):
    """A_k * u, with the A_k of the event's machine."""

    def __init__(self) -> None:
        self._state: PairSums | None = None
        self._cpi: CpiMoments | None = None
        self._found: LocalCoefficients | None = None

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
        first, last = (np.searchsorted(self._found.machine, event.machine, side) for side in ("left", "right"))
        return _scored(self._found.job[first:last], self._found.value[first:last], event)


class Cpi2(Method):
    """Score a suspect's usage while a victim's CPI was above its aged threshold, over the past two hours."""

    def __init__(self) -> None:
        self._spec: cpi2.Spec | None = None
        self._day = 0

    def learn(self, day: TaskSlots) -> None:
        """Age the specs by the calendar days since the last one that had data, and take a day in."""
        moments = CpiMoments.of(day.job, day.platform, day.cpi)
        number = int(day.slot.min()) // SLOTS_PER_DAY
        if self._spec:
            self._spec = self._spec.next_day(moments, cpi2.AGEING ** (number - self._day))
        else:
            self._spec = cpi2.Spec.of(moments)
        self._day = number

    def scores(self, event: Event) -> Floats:
        """Score per victim."""
        if self._spec is None:
            return np.full((len(event.victim_job), len(event.suspect_job)), -np.inf)
        place = find((self._spec.job, self._spec.platform), (event.victim_job, event.victim_platform))
        limits = self._spec.threshold()[place].tolist()
        pairs = zip(event.victim_cpi, limits, strict=True)
        return np.array([cpi2.suspect_scores(cpi, limit, event.suspect_usage) for cpi, limit in pairs])


class Proctor(Method):
    """Correlation with a victim's CPI in a random hour of the past two."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def scores(self, event: Event) -> Floats:
        """Score per victim."""
        return np.array([proctor.suspect_scores(c, event.suspect_usage, self._rng) for c in event.victim_cpi])


class Known(Method):
    """The oracle: A_k * u with given A_k, 0 for other jobs."""

    def __init__(self, coefficients: Mapping[Any, float]) -> None:
        self._coefficients = coefficients

    def scores(self, event: Event) -> Floats:
        """Return A_k * u."""
        pairs = zip(event.suspect_job.tolist(), event.suspect_usage[:, -1].tolist(), strict=True)
        return np.array([[suspect_score(self._coefficients.get(job, 0.0), cores) for job, cores in pairs]])


#: The methods by their names on the command line.
METHODS: Mapping[str, Callable[[], Method]] = {
    "panda": Panda,
    "panda_local": PandaLocal,
    "cpi2": Cpi2,
    "proctor": Proctor,
    "whitepanda": Whitepanda,
}
