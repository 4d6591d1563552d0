"""When a machine triggers, and what ran on it then: PANDA's section 5.2, on columns.

A victim is latency-sensitive with a CPI above mean + 2 std of its job; the trigger is an mnCPI above the machine's
own 99th percentile of the days before, and a victim in three consecutive slots, this one the last. Mean, std and
percentile are those of the days before.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.analysis.contention.normalised_cpi import VICTIM_STDS
from central.models.antagonists.panda import JobStatistics
from central.models.antagonists.slots import TaskSlots
from central.models.groups import Column, Floats, Ints, find, group, sums

TRIGGER_PERCENTILE = 99.0
VICTIM_SLOTS = 3
#: The window of CPI2 and Proctor: two hours, the event's slot the last.
WINDOW_SLOTS = 24


@dataclass(frozen=True, slots=True)
class Event:
    """A machine slot that triggered: s suspects (tasks that are not latency-sensitive), v victims, w window slots."""

    machine: Any
    slot: int
    mn_cpi: float
    suspect_job: Column  # (s,)
    suspect_usage: Floats  # CPU in the window, (s, w), the last is now; 0 where it did not run
    is_antagonist: npt.NDArray[np.bool_]  # whether the suspect's job truly is one, (s,)
    victim_job: Column  # (v,)
    victim_platform: Column  # CPU model, (v,)
    victim_cpi: Floats  # in the window, (v, w); NaN where unknown


@dataclass(frozen=True, slots=True)
class Triggers:
    """Machine slots of a day that triggered; `events`, read once, have a true antagonist and another suspect."""

    count: int
    events: Iterator[Event]


@dataclass(slots=True)
class History:
    """CPI of latency-sensitive tasks on the days before, for the machines' percentiles; 24 bytes per task slot."""

    _days: list[tuple[Column, Ints, Column, Column, Floats]] = field(default_factory=list)

    def add(self, day: TaskSlots) -> None:
        """Add a day."""
        rows = day.take(day.latency_sensitive & ~np.isnan(day.cpi))
        places, place = group(rows.machine, rows.slot)
        keys, code = group(rows.job, rows.platform)
        self._days.append((places[0], place.astype(np.int32), np.stack(keys), code.astype(np.int32), rows.cpi))

    def thresholds(self, statistics: JobStatistics) -> tuple[Column, Floats]:
        """Return the machines (sorted) and the 99th percentile of each one's mnCPI under `statistics`."""
        machines, values = list[Column](), list[Floats]()
        for machine, place, (job, platform), code, cpi in self._days:
            at = find((statistics.job, statistics.platform), (job, platform))[code]
            n_cpi = _n_cpi(cpi, at, statistics)
            tasks = np.bincount(place, minlength=len(machine))
            machines.append(machine)
            values.append(sums(place.astype(np.int64), n_cpi, len(machine)) / tasks)
        if not any(map(len, machines)):
            return np.empty(0, np.int64), np.empty(0)
        every, mn_cpi = np.concatenate(machines), np.concatenate(values)
        order = np.argsort(every, kind="stable")
        names, first = np.unique(every[order], return_index=True)
        parts = np.split(mn_cpi[order], first[1:])
        return names, np.array([np.percentile(part, TRIGGER_PERCENTILE) for part in parts])


def _n_cpi(cpi: Floats, at: Ints, statistics: JobStatistics) -> Floats:
    """Equation (1); 0 for a job whose CPI does not vary."""
    std = statistics.std_cpi[at]
    deviation = cpi - statistics.mean_cpi[at]
    n_cpi: Floats = np.divide(deviation, std, out=np.zeros_like(deviation), where=std > 0)
    return n_cpi


def events_of(
    rows: TaskSlots, first_slot: int, statistics: JobStatistics, thresholds: tuple[Column, Floats], antagonists: Column
) -> Triggers:
    """Find the machine slots of a day that trigger, and among them the events.

    `rows` are the day, which begins at `first_slot`, and the two hours before it. `statistics` and `thresholds` (as
    from `History.thresholds`) are of the days before: tasks of jobs without statistics are left out of mnCPI, machines
    without a threshold have no event. `antagonists` are the true ones' jobs.
    """
    rows = rows.take(np.lexsort((rows.task, rows.slot, rows.machine)))
    at = np.full(rows.rows, -1, np.int64)
    sensitive = rows.latency_sensitive & ~np.isnan(rows.cpi)
    keys = (statistics.job, statistics.platform)
    at[sensitive] = find(keys, (rows.job[sensitive], rows.platform[sensitive]))
    known = at >= 0
    std = np.where(known, statistics.std_cpi[at], 0.0) if len(statistics.job) else np.zeros(rows.rows)
    victim = known & (std > 0)
    victim[victim] = rows.cpi[victim] > (statistics.mean_cpi + VICTIM_STDS * statistics.std_cpi)[at[victim]]

    (machine, slot), place = group(rows.machine, rows.slot)
    tasks = np.bincount(place[known], minlength=len(slot))
    total = sums(place[known], _n_cpi(rows.cpi[known], at[known], statistics), len(slot))
    mn_cpi = np.divide(total, tasks, out=np.full(len(slot), -np.inf), where=tasks > 0)
    limit = np.full(len(slot), np.inf)
    own = find((thresholds[0],), (machine,))
    limit[own >= 0] = thresholds[1][own[own >= 0]]

    has_victim = np.bincount(place[victim], minlength=len(slot)) > 0
    lasting = has_victim.copy()
    for back in range(1, VICTIM_SLOTS):
        lasting &= np.isin(_code(machine, slot, -back), _code(machine, slot, 0)[has_victim])
    suspect = ~rows.latency_sensitive
    guilty = suspect & np.isin(rows.job, antagonists)
    has_both = (np.bincount(place[guilty], minlength=len(slot)) > 0) & (
        np.bincount(place[suspect], minlength=len(slot)) > 1
    )
    triggered = lasting & (mn_cpi > limit) & (slot >= first_slot)

    def events() -> Iterator[Event]:
        bounds = np.searchsorted(place, np.arange(len(slot) + 1))
        for at in np.flatnonzero(triggered & has_both):
            here = slice(int(bounds[at]), int(bounds[at + 1]))
            begin = at
            while begin and machine[begin - 1] == machine[at] and slot[begin - 1] > slot[at] - WINDOW_SLOTS:
                begin -= 1
            window = slice(int(bounds[begin]), here.stop)
            suspects, victims = (np.flatnonzero(which[here]) + here.start for which in (suspect, victim))
            now = int(rows.slot[here.start])
            usage = _window(rows, window, rows.task[suspects], rows.usage, now, 0.0)
            yield Event(
                machine=rows.machine[here.start],
                slot=now,
                mn_cpi=float(mn_cpi[at]),
                suspect_job=rows.job[suspects],
                suspect_usage=np.nan_to_num(usage, nan=0.0),
                is_antagonist=guilty[suspects],
                victim_job=rows.job[victims],
                victim_platform=rows.platform[victims],
                victim_cpi=_window(rows, window, rows.task[victims], rows.cpi, now, np.nan),
            )

    return Triggers(int(triggered.sum()), events())


def _code(machine: Column, slot: Ints, offset: int) -> Ints:
    """Give every (machine, slot + offset) a number of its own."""
    number = np.cumsum(np.append(0, machine[1:] != machine[:-1])) if len(machine) else np.empty(0, np.int64)
    least = int(slot.min()) - VICTIM_SLOTS if len(slot) else 0
    width = int(slot.max()) - least + 1 if len(slot) else 1
    code: Ints = number * width + slot + offset - least
    return code


def _window(rows: TaskSlots, window: slice, tasks: Column, values: Floats, now: int, absent: float) -> Floats:
    """Return the values of some tasks (sorted) in the slots of a window, shape (tasks, WINDOW_SLOTS)."""
    found = np.full((len(tasks), WINDOW_SLOTS), absent)
    if len(tasks):
        task = rows.task[window]
        at = np.minimum(np.searchsorted(tasks, task), len(tasks) - 1)
        known = tasks[at] == task
        found[at[known], WINDOW_SLOTS - 1 - (now - rows.slot[window][known])] = values[window][known]
    return found
