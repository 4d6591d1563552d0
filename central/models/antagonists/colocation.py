"""Who ran beside whom: per machine, usage of jobs times CPI of latency-sensitive jobs, summed over slots.

The pairs of jobs that share a machine slot are many more than the rows, so they are never listed: per machine
the two sides are dense matrices (slots x jobs), and what is wanted is their product.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from central.models.groups import Column, Floats, Ints, counts, find, group, sums


@dataclass(frozen=True, slots=True)
class Cells:
    """A sparse matrix per machine: rows are machine slots, columns are (machine, key) pairs.

    Attributes:
        machine: of each column, sorted; shape (columns,).
        keys: the other keys of each column.
        place: row of each entry; places of one machine are consecutive.
        column: column of each entry.

    """

    machine: Column
    keys: list[Column]
    place: Ints
    column: Ints

    def dense(self, values: Floats, places: slice, columns: slice, entries: npt.NDArray[np.int64]) -> Floats:
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

    Per (machine, job, latency-sensitive job, its platform): `usage_cpi` = sum u * c / |L| and
    `usage` = sum u / |L| over all pairs of their tasks. Per (machine, job): sum u^2 and the task slots.
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


def pair_sums(
    *,
    machine: Column,
    slot: Column,
    job: Column,
    platform: Column,
    latency_sensitive: npt.NDArray[np.bool_],
    usage: Floats,
    cpi: Floats,
) -> PairSums:
    """Compute the sums of task slots; arguments as of `central.models.antagonists.panda.PairState.of`."""
    sensitive = latency_sensitive & ~np.isnan(cpi)
    places, at = group(machine[sensitive], slot[sensitive])
    share = 1.0 / np.bincount(at, minlength=len(places[0]))[at]
    victims = cells_of(machine[sensitive], at, job[sensitive], platform[sensitive])

    where = np.full(len(machine), -1, dtype=np.int64)
    used = ~np.isnan(usage)
    where[used] = find(places, (machine[used], slot[used]))
    beside = where >= 0
    u = usage[beside]
    users = cells_of(machine[beside], where[beside], job[beside])

    weighted = cpi[sensitive] * share
    left, right = list[Ints](), list[Ints]()
    products, shares = list[Floats](), list[Floats]()
    for rows, of_users, user_cells, of_victims, victim_cells in _machines(places[0], users, victims):
        usages = users.dense(u, rows, user_cells, of_users).T
        products.append((usages @ victims.dense(weighted, rows, victim_cells, of_victims)).ravel())
        shares.append((usages @ victims.dense(share, rows, victim_cells, of_victims)).ravel())
        i, j = np.arange(user_cells.start, user_cells.stop), np.arange(victim_cells.start, victim_cells.stop)
        left.append(np.repeat(i, len(j)))
        right.append(np.tile(j, len(i)))
    i, j = _joined(left, np.int64), _joined(right, np.int64)
    together = _joined(shares, np.float64)
    # Jobs of one machine that never shared a slot are no pair; one whose usage is 0 adds nothing.
    met = together != 0
    n = len(users.machine)
    return PairSums(
        users.machine[i[met]],
        users.keys[0][i[met]],
        victims.keys[0][j[met]],
        victims.keys[1][j[met]],
        _joined(products, np.float64)[met],
        together[met],
        users.machine,
        users.keys[0],
        sums(users.column, u * u, n),
        counts(users.column, np.ones(len(u), dtype=np.int64), n),
    )


def _machines(
    machine_of_place: Column, users: Cells, victims: Cells
) -> Iterator[tuple[slice, Ints, slice, Ints, slice]]:
    """Per machine that has both: its places, and entries and columns of either side."""
    if not len(machine_of_place):
        return
    names, first = np.unique(machine_of_place, return_index=True)
    last = np.append(first[1:], len(machine_of_place))
    sides = []
    for cells in (users, victims):
        order = np.argsort(cells.place, kind="stable")
        ends = np.searchsorted(cells.place[order], np.append(first, len(machine_of_place)))
        sides.append(
            (order, ends, np.searchsorted(cells.machine, names), np.searchsorted(cells.machine, names, "right"))
        )
    (user_order, user_ends, user_first, user_last), (order, ends, victim_first, victim_last) = sides
    for m in range(len(names)):
        yield (
            slice(int(first[m]), int(last[m])),
            user_order[user_ends[m] : user_ends[m + 1]],
            slice(int(user_first[m]), int(user_last[m])),
            order[ends[m] : ends[m + 1]],
            slice(int(victim_first[m]), int(victim_last[m])),
        )


def _joined(parts: list[npt.NDArray[Any]], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)
