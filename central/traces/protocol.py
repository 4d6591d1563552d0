"""PANDA's section 5.2: the rank that each method gives to the true antagonists, day by day on a trace.

Each day from `from_day` on is evaluated with what was learnt on the days before; then every method takes it in.
Metrics: the mean percentile of the true antagonists' ranks, equation (4); consistency, the share of pairs of
co-located victims whose first suspects are of one job; the share of events whose first suspect is an antagonist.
Intervals are percentiles of a bootstrap that draws whole machines, whose events are not independent; there is none of
fewer than `LEAST_MACHINES`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
    """A mean with its 95 % interval, None of fewer than `LEAST_MACHINES`; all None where nothing is averaged."""

    value: float | None
    low: float | None
    high: float | None


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


@dataclass(slots=True)
class _Tally:
    """Per event: sums that the metrics are ratios of."""

    percentile: list[float] = field(default_factory=list)
    ranked: list[int] = field(default_factory=list)
    agreeing: list[int] = field(default_factory=list)
    pairs: list[int] = field(default_factory=list)
    first: list[float] = field(default_factory=list)

    def add(self, scores: Floats, event: Event) -> None:
        mean, scores = _levelled(scores.mean(axis=0)), _levelled(scores)
        # A lone suspect has no rank; events have at least two.
        ranks = np.array(percentile_ranks(mean.tolist()), dtype=np.float64)
        self.percentile.append(float(ranks[event.is_antagonist].sum()))
        self.ranked.append(int(event.is_antagonist.sum()))
        top = np.flatnonzero(mean == mean.max())
        self.first.append(float(event.is_antagonist[top].mean()))
        victims = len(event.victim_job)
        pairs = victims * (victims - 1) // 2
        self.pairs.append(pairs)
        if len(scores) == 1:
            self.agreeing.append(pairs)
        else:
            _, votes = np.unique(event.suspect_job[scores.argmax(axis=1)], return_counts=True)
            self.agreeing.append(int((votes * (votes - 1) // 2).sum()))


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
    """Run the protocol.

    Args:
        days: number and task slots of each day that has any, ascending; day d holds slots of
            floor(slot / 288) = d plus a constant. Read once, one at a time.
        antagonists: jobs that truly are antagonists.
        methods: by name. Results have the difference to the one named "panda", if it is there.
        from_day: first day to evaluate.
        seed: of the bootstrap.

    Memory: a day's rows, the methods' states, and what `History` holds.

    """
    history, moments, tail = History(), None, None
    machines = list[Any]()
    tallies = {name: _Tally() for name in methods}
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
                    tallies[name].add(method.scores(event), event)
        for method in methods.values():
            method.learn(day)
        history.add(day)
        today = CpiMoments.of(day.job, day.platform, day.cpi)
        moments = moments.merge(today) if moments is not None else today
        end = (int(day.slot.min()) // SLOTS_PER_DAY + 1) * SLOTS_PER_DAY
        tail = day.take(day.slot >= end - WINDOW_SLOTS)
    machine_count, results = _results(machines, tallies, seed)
    return Evaluation(events=len(machines), machines=machine_count, methods=results, **counts)


def _results(machines: list[Any], tallies: dict[str, _Tally], seed: int) -> tuple[int, dict[str, MethodResult]]:
    """Return how many machines have events, and how each method did. `machines`: of each event."""
    names, owner = np.unique(np.array(machines), return_inverse=True)
    n = len(names)
    draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), BOOTSTRAPS) if n else np.empty((0, 0))

    def per_machine(values: list[Any]) -> Floats:
        return sums(owner, np.array(values, dtype=np.float64), n)

    def ratio(above: Floats, below: Floats) -> Estimate:
        if not below.sum():
            return Estimate(None, None, None)
        mean = float(above.sum() / below.sum())
        if np.count_nonzero(below) < LEAST_MACHINES:
            return Estimate(mean, None, None)
        totals = draws @ below
        some = totals > 0
        low, high = np.percentile((draws @ above)[some] / totals[some], _INTERVAL)
        return Estimate(mean, float(low), float(high))

    panda = tallies.get("panda")
    results = {}
    for name, tally in tallies.items():
        ranked, percentile = per_machine(tally.ranked), per_machine(tally.percentile)
        lead = percentile - per_machine(panda.percentile) if panda else np.zeros(n)
        results[name] = MethodResult(
            ratio(percentile, ranked),
            ratio(per_machine(tally.agreeing), per_machine(tally.pairs)),
            ratio(per_machine(tally.first), per_machine([1] * len(machines))),
            ratio(lead, ranked) if panda else Estimate(None, None, None),
            sum(tally.ranked),
            sum(tally.pairs),
        )
    return n, results
