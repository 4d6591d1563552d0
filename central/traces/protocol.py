"""PANDA's section 5.2: the rank that each method gives to the true antagonists, day by day on a trace.

Each day from `from_day` on is evaluated with what was learnt on the days before; then every method takes it in.
Metrics: the mean percentile of the true antagonists' ranks, equation (4); consistency, the share of pairs of
co-located victims whose first suspects are of one job; the share of events whose first suspect is an antagonist.
Intervals are percentiles of a bootstrap that draws whole machines, whose events are not independent; there is none of
fewer than `LEAST_MACHINES`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from agent.analysis.contention.suspect_scores import percentile_ranks
from central.models.antagonists.panda import CpiMoments
from central.models.antagonists.slots import SLOTS_PER_DAY, TaskSlots
from central.models.groups import Column, Floats, sums
from central.traces.events import WINDOW_SLOTS, Event, History, events_of
from central.traces.methods import Method

DEFAULT_FROM_DAY = 20
BOOTSTRAPS = 1000
#: A draw of n machines is n times the least one with probability n^-n. Up to three that is above 2.5 %, and the
#: interval's ends would be values of single machines.
LEAST_MACHINES = 4
_INTERVAL = (2.5, 97.5)
#: Engines agree to 1e-9.
_STEP_RATIO = 1e-9


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval, None of fewer than `LEAST_MACHINES`; all None if nothing is averaged."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class MethodResult:
    """How a method did. `ranked` counts true antagonists at events, `pairs` those of co-located victims."""

    mean_percentile: Estimate
    consistency: Estimate
    first_is_antagonist: Estimate
    minus_panda: Estimate
    ranked: int
    pairs: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of `evaluate`. `triggers` counts machine slots that triggered on the evaluated days.

    `events` are those of them with a true antagonist and another suspect; `machines` are those that have events.
    """

    triggers: int
    events: int
    machines: int
    days: int
    evaluated_days: int
    task_slots: int
    methods: dict[str, MethodResult]


class _Tally(NamedTuple):
    """An event by one method: the metrics are ratios of sums of these."""

    percentile: float
    ranked: int
    agreeing: int
    pairs: int
    first: float

    @classmethod
    def of(cls, scores: Floats, event: Event) -> "_Tally":
        mean, scores = _levelled(scores.mean(axis=0)), _levelled(scores)
        # A lone suspect has no rank; events have at least two.
        ranks = np.array(percentile_ranks(mean.tolist()), dtype=np.float64)
        top = np.flatnonzero(mean == mean.max())
        victims = len(event.victim_job)
        agreeing = pairs = victims * (victims - 1) // 2
        if len(scores) > 1:
            _, votes = np.unique(event.suspect_job[scores.argmax(axis=1)], return_counts=True)
            agreeing = int((votes * (votes - 1) // 2).sum())
        antagonist = event.is_antagonist
        return cls(
            float(ranks[antagonist].sum()), int(antagonist.sum()), agreeing, pairs, float(antagonist[top].mean())
        )


def _levelled(scores: Floats) -> Floats:
    """Round scores to steps of `_STEP_RATIO` of the largest, so that rounding errors do not break ties.

    Tasks of steady usage have the same score by CPI2 except in the last bits, which may differ from run to run.
    """
    step = float(np.abs(scores, where=np.isfinite(scores), out=np.zeros_like(scores)).max()) * _STEP_RATIO
    return np.round(scores / step) if step > 0 else scores


def evaluate(
    days: Iterable[tuple[int, TaskSlots]],
    antagonists: Column,
    methods: Mapping[str, Method],
    *,
    from_day: int = DEFAULT_FROM_DAY,
    seed: int = 0,
) -> Evaluation:
    """Run the protocol from the day `from_day` on; `seed` is of the bootstrap.

    `days` are number and task slots of each day that has any, ascending, read once, one at a time; day d holds slots of
    floor(slot / 288) = d plus a constant. `antagonists` are the jobs that truly are ones. Results of `methods` have the
    difference to the one named "panda", if it is there. Memory: a day's rows, the methods' states, and `History`.
    """
    history, moments, tail = History(), None, None
    machines = list[Any]()
    tallies: dict[str, list[_Tally]] = {name: [] for name in methods}
    counts = dict.fromkeys(("days", "evaluated_days", "task_slots", "triggers"), 0)
    for number, day in days:
        counts["days"] += 1
        counts["task_slots"] += day.rows
        if number >= from_day and moments is not None:
            counts["evaluated_days"] += 1
            statistics = moments.statistics()
            for method in methods.values():
                method.settle()
            first = int(day.slot.min()) // SLOTS_PER_DAY * SLOTS_PER_DAY
            rows = TaskSlots.concatenate([tail, day]) if tail is not None else day
            found = events_of(rows, first, statistics, history.thresholds(statistics), antagonists)
            counts["triggers"] += found.count
            for event in found.events:
                machines.append(event.machine)
                for name, method in methods.items():
                    tallies[name].append(_Tally.of(method.scores(event), event))
        for method in methods.values():
            method.learn(day)
        history.add(day)
        today = CpiMoments.of(day.job, day.platform, day.cpi)
        moments = moments.merge(today) if moments is not None else today
        end = (int(day.slot.min()) // SLOTS_PER_DAY + 1) * SLOTS_PER_DAY
        tail = day.take(day.slot >= end - WINDOW_SLOTS)
    machine_count, results = _results(machines, tallies, seed)
    return Evaluation(events=len(machines), machines=machine_count, methods=results, **counts)


def _results(machines: list[Any], tallies: dict[str, list[_Tally]], seed: int) -> tuple[int, dict[str, MethodResult]]:
    """Return how many machines have events, and how each method did. `machines`: of each event."""
    names, owner = np.unique(np.array(machines), return_inverse=True)
    n = len(names)
    draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), BOOTSTRAPS) if n else np.empty((0, 0))

    def ratio(above: Floats, below: Floats) -> Estimate:
        if not below.sum():
            return Estimate()
        mean = float(above.sum() / below.sum())
        if np.count_nonzero(below) < LEAST_MACHINES:
            return Estimate(mean)
        totals = draws @ below
        some = totals > 0
        low, high = np.percentile((draws @ above)[some] / totals[some], _INTERVAL)
        return Estimate(mean, float(low), float(high))

    events = sums(owner, np.ones(len(machines)), n)
    per_machine = {
        name: [sums(owner, column, n) for column in np.array(tally, np.float64).reshape(-1, len(_Tally._fields)).T]
        for name, tally in tallies.items()
    }
    panda = per_machine.get("panda")
    results = {}
    for name, (percentile, ranked, agreeing, pairs, first) in per_machine.items():
        results[name] = MethodResult(
            ratio(percentile, ranked),
            ratio(agreeing, pairs),
            ratio(first, events),
            ratio(percentile - panda[0], ranked) if panda else Estimate(),
            int(ranked.sum()),
            int(pairs.sum()),
        )
    return n, results
