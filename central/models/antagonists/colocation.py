"""Who ran beside whom: per machine, usage of jobs times CPI of latency-sensitive jobs, summed over slots.

There are many more pairs of jobs that share a machine slot than rows, so pairs are never listed: per machine, users
and victims are dense matrices (slots x jobs), whose product has the sums.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from central.models.antagonists.slots import TaskSlots
from central.models.groups import Column, Floats, Ints, counts, find, group, merge_sums, sums

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Cells:
    """A sparse matrix per machine: rows are machine slots, columns are (machine, key) pairs."""

    machine: Column  # of each column, sorted; shape (columns,)
    keys: list[Column]  # the other keys of each column
    place: Ints  # row of each entry; places of one machine are consecutive
    column: Ints  # column of each entry

    def dense(self, values: Floats, places: slice, columns: slice, entries: Ints) -> Floats:
        """Sum `values` of some entries, all within one machine, into a matrix (places, columns)."""
        height, width = places.stop - places.start, columns.stop - columns.start
        at = (self.place[entries] - places.start) * width + self.column[entries] - columns.start
        return sums(at, values[entries], height * width).reshape(height, width)


def cells_of(machine: Column, place: Ints, *keys: Column) -> Cells:
    """Number the columns of entries. `machine` and `place` are those of each entry."""
    found, column = group(machine, *keys)
    return Cells(found[0], found[1:], place, column)


@dataclass(frozen=True, slots=True)
class PairSums:
    """Sums over the machine slots of a machine with latency-sensitive tasks of known CPI, L(m, t).

    Per (machine, job, latency-sensitive job, its platform): `usage_cpi` = sum u * c / |L| and `usage` = sum u / |L|
    over all pairs of their tasks. Per (user_machine, user_job): sum u^2 and the task slots. Sorted by these keys.
    """

    machine: Column
    job: Column
    sensitive_job: Column
    platform: Column
    usage_cpi: Floats
    usage: Floats
    user_machine: Column
    user_job: Column
    sum_usage_squared: Floats
    samples: Ints

    def merge(self, other: "PairSums") -> "PairSums":
        """Return the sums of both parts, which share no machine slot."""
        pairs = merge_sums(self, other, ("machine", "job", "sensitive_job", "platform"), ("usage_cpi", "usage"))
        users = merge_sums(self, other, ("user_machine", "user_job"), ("sum_usage_squared", "samples"))
        return PairSums(**pairs, **users)


def machine_slots(slots: TaskSlots) -> tuple[Bools, list[Column], Ints, Bools, Ints]:
    """Find the machine slots with latency-sensitive tasks of known CPI.

    Returns the rows of these tasks, the slots' (machine, slot), which slot each of the rows is in; and the rows with a
    known usage in such a slot, and which slot each of them is in.
    """
    sensitive = slots.latency_sensitive & ~np.isnan(slots.cpi)
    places, at = group(slots.machine[sensitive], slots.slot[sensitive])
    where = np.full(slots.rows, -1, dtype=np.int64)
    used = ~np.isnan(slots.usage)
    where[used] = find(places, (slots.machine[used], slots.slot[used]))
    beside = where >= 0
    return sensitive, places, at, beside, where[beside]


def pair_sums(slots: TaskSlots) -> PairSums:
    """Compute the sums of task slots."""
    sensitive, places, at, beside, where = machine_slots(slots)
    share = 1.0 / np.bincount(at, minlength=len(places[0]))[at]
    victims = cells_of(slots.machine[sensitive], at, slots.job[sensitive], slots.platform[sensitive])
    u = slots.usage[beside]
    users = cells_of(slots.machine[beside], where, slots.job[beside])

    weighted = slots.cpi[sensitive] * share
    left, right = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    products, shares = [np.empty(0)], [np.empty(0)]
    for rows, of_users, user_cells, of_victims, victim_cells in _machines(places[0], users, victims):
        usages = users.dense(u, rows, user_cells, of_users).T
        products.append((usages @ victims.dense(weighted, rows, victim_cells, of_victims)).ravel())
        shares.append((usages @ victims.dense(share, rows, victim_cells, of_victims)).ravel())
        i, j = np.arange(user_cells.start, user_cells.stop), np.arange(victim_cells.start, victim_cells.stop)
        left.append(np.repeat(i, len(j)))
        right.append(np.tile(j, len(i)))
    together = np.concatenate(shares)
    # Jobs of one machine that never shared a slot are not a pair; one whose usage is 0 adds nothing.
    met = together != 0
    i, j = np.concatenate(left)[met], np.concatenate(right)[met]
    n = len(users.machine)
    return PairSums(
        users.machine[i],
        users.keys[0][i],
        victims.keys[0][j],
        victims.keys[1][j],
        np.concatenate(products)[met],
        together[met],
        users.machine,
        users.keys[0],
        sums(users.column, u * u, n),
        counts(users.column, np.ones(len(u), dtype=np.int64), n),
    )


def _machines(
    machine_of_place: Column, users: Cells, victims: Cells
) -> Iterator[tuple[slice, Ints, slice, Ints, slice]]:
    """Yield per machine its places, then entries and columns of users, then those of victims."""
    if not len(machine_of_place):
        return
    names, first = np.unique(machine_of_place, return_index=True)
    ends = np.append(first, len(machine_of_place))
    parts = [_per_machine(cells, names, ends) for cells in (users, victims)]
    for m, (of_users, of_victims) in enumerate(zip(*parts, strict=True)):
        yield slice(int(ends[m]), int(ends[m + 1])), *of_users, *of_victims


def _per_machine(cells: Cells, names: Column, ends: npt.NDArray[Any]) -> list[tuple[Ints, slice]]:
    """Return each machine's entries, by place, and its columns."""
    order = np.argsort(cells.place, kind="stable")
    bounds = np.searchsorted(cells.place[order], ends)
    first = np.searchsorted(cells.machine, names).tolist()
    last = np.searchsorted(cells.machine, names, "right").tolist()
    return [(order[bounds[m] : bounds[m + 1]], slice(first[m], last[m])) for m in range(len(names))]
