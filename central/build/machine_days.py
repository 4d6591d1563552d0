"""Co-located jobs on each machine day, as products of small dense matrices; the same on every engine.

Pairs of jobs that share a machine slot are some twenty times as many as the task slots. So a machine day is one matrix
(slots x jobs), and all of its sums are products of such matrices. Kernels take whole machine days in any order: those
of many machines on DuckDB, one machine day on Spark. Names are numbers (`central.build.dictionary_encoding`). The sums
are one table, `PRODUCTS`, that engines can add up by key (`kind`, `a`, `b`).
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from central.models.antagonists.whitepanda import CLIP, quasi_differenced
from central.models.groups import Floats, Ints
from central.models.groups import sums as sums_of

#: Columns of the values in `PRODUCTS`.
VALUES = ("v0", "v1", "v2", "v3")
#: What kernels leave. Which keys and values count depends on `kind`, see the kernels; the others are 0.
PRODUCTS = pa.schema({"kind": pa.int8(), "a": pa.int32(), "b": pa.int32()} | dict.fromkeys(VALUES, pa.float64()))
PAIRS, JOBS, MACHINE_JOBS, MACHINES, TOTAL = range(5)

#: Takes rows of whole machine days and the length of a slot; returns `PRODUCTS`.
Kernel = Callable[[pa.Table, int], pa.Table]

DAY_NS = 86_400 * 10**9


@dataclass(frozen=True, slots=True)
class _Rows:
    """Task slots of one machine day. `victim`: the value of latency-sensitive tasks with a CPI, else NaN."""

    machine: int
    slot: Ints
    job: Ints
    usage: Floats
    victim: Floats
    group: Ints


@dataclass(frozen=True, slots=True)
class _Beside:
    """Usage beside latency-sensitive tasks, by place: a slot that has one with a CPI."""

    sensitive: Any  # which rows are latency-sensitive tasks with a CPI; shape (rows,)
    place: Ints  # of each of these
    tasks: Ints  # how many there are per place; above 0
    slot: Ints  # of each place, ascending
    jobs: Ints  # of each column of `usage`, ascending
    column: Ints  # of each task slot beside one that has a usage; shape (beside,)
    task_usage: Floats  # its usage; shape (beside,)
    usage: Floats  # summed over tasks; shape (places, jobs)

    @classmethod
    def of(cls, rows: _Rows) -> "_Beside | None":
        """Return None if no latency-sensitive task has a CPI."""
        first = int(rows.slot.min())
        slot = rows.slot - first
        sensitive = ~np.isnan(rows.victim)
        tasks = np.bincount(slot[sensitive], minlength=int(slot.max()) + 1)
        slots = np.flatnonzero(tasks)
        if not len(slots):
            return None
        beside = (tasks[slot] > 0) & ~np.isnan(rows.usage)
        place = (np.cumsum(tasks > 0) - 1)[slot]
        at, task_usage = place[beside], rows.usage[beside]
        jobs, column = _distinct(rows.job[beside])
        usage = _matrix(at, column, task_usage, (len(slots), len(jobs)))
        return cls(sensitive, place[sensitive], tasks[slots], slots + first, jobs, column, task_usage, usage)


class _Sums:
    """Collects parts of `PRODUCTS`."""

    def __init__(self) -> None:
        self._parts: dict[int, list[tuple[list[Ints], list[Floats]]]] = {}

    def add(self, kind: int, keys: list[Ints], values: list[Floats]) -> None:
        """Add rows: at most 2 keys and 4 values."""
        self._parts.setdefault(kind, []).append((keys, values))

    def table(self) -> pa.Table:
        """Return all rows."""
        tables = []
        for kind, parts in self._parts.items():
            keys = [np.concatenate(each) for each in zip(*(k for k, _ in parts), strict=True)]
            values = [np.concatenate(each) for each in zip(*(v for _, v in parts), strict=True)]
            tables.append(products(kind, keys, values))
        return pa.concat_tables(tables) if tables else PRODUCTS.empty_table()


def products(kind: int, keys: list[Ints], values: list[Floats]) -> pa.Table:
    """Return rows of `PRODUCTS` of one kind: at most 2 keys, 1 to 4 values."""
    rows = len(values[0])
    no_key, no_value = np.zeros(rows, np.int32), np.zeros(rows)
    columns = [np.full(rows, kind, np.int8), *(key.astype(np.int32) for key in keys)]
    columns += [no_key] * (2 - len(keys)) + values + [no_value] * (len(VALUES) - len(values))
    return pa.Table.from_arrays([pa.array(each) for each in columns], schema=PRODUCTS)


def whitepanda(rows: pa.Table, slot_ns: int) -> pa.Table:
    """Sum what whitepanda's estimator needs (`central.models.antagonists.whitepanda.WhitepandaState`).

    `rows` are `machine`, `slot_start_ns`, `job`, `usage`, and `n_cpi` as from `robust_n_cpi` but not cut yet, null
    except for latency-sensitive tasks; slots are of `slot_ns`.

    Returns `PAIRS` (job, other, in order): within, between_days. `JOBS` (job): job_within, job_between_days, samples,
    sum_usage_squared. `MACHINE_JOBS` (machine, job): usage, product. `MACHINES` (machine): slots, sum_y, sum_y_squared.
    `TOTAL`: as `total`.
    """
    sums = _Sums()
    for day in _machine_days(rows, slot_ns, "n_cpi"):
        found = _Beside.of(day)
        if found is None:
            continue
        u, jobs, n = found.usage, found.jobs, len(found.slot)
        n_cpi = np.clip(day.victim[found.sensitive], -CLIP, CLIP)
        y = sums_of(found.place, n_cpi, n) / found.tasks
        gram, with_y, own = quasi_differenced(u, y, found.slot)
        total, total_y = u.sum(axis=0), float(y.sum())
        i, j = _triangle(len(jobs))
        sums.add(PAIRS, [jobs[i], jobs[j]], [gram[i, j], total[i] * total[j] / n])
        positive = (u > 0).sum(axis=0).astype(np.float64)
        sums.add(JOBS, [jobs], [with_y, total * total_y / n, positive, (u * u).sum(axis=0)])
        machine = np.array([day.machine])
        sums.add(MACHINE_JOBS, [np.full(len(jobs), day.machine), jobs], [total, y @ u])
        sums.add(MACHINES, [machine], [np.array([value]) for value in (float(n), total_y, float(y @ y))])
        sums.add(TOTAL, [], [np.array([value]) for value in (float(n), 1.0, own, total_y**2 / n)])
    return sums.table()


def panda(rows: pa.Table, slot_ns: int) -> pa.Table:
    """Sum what PANDA needs (`central.models.antagonists.panda.PairState`, whose names these are).

    `rows` are `machine`, `slot_start_ns`, `job`, `usage`, `cpi` (null except for latency-sensitive tasks), and `group`,
    a number of job and platform; slots are of `slot_ns`.

    Returns `PAIRS` (job, group of the latency-sensitive one): usage_cpi, usage; without pairs that never met. `JOBS`
    (job): sum_usage_squared, samples.
    """
    sums = _Sums()
    for day in _machine_days(rows, slot_ns, "cpi"):
        found = _Beside.of(day)
        if found is None:
            continue
        groups, column = _distinct(day.group[found.sensitive])
        share = (1.0 / found.tasks)[found.place]
        shape = len(found.slot), len(groups)
        usage = found.usage.T
        shares = usage @ _matrix(found.place, column, share, shape)
        products = usage @ _matrix(found.place, column, share * day.victim[found.sensitive], shape)
        i, j = np.nonzero(shares)
        sums.add(PAIRS, [found.jobs[i], groups[j]], [products[i, j], shares[i, j]])
        squares = sums_of(found.column, found.task_usage**2, len(found.jobs))
        samples = np.bincount(found.column, minlength=len(found.jobs)).astype(np.float64)
        sums.add(JOBS, [found.jobs], [squares, samples])
    return sums.table()


@functools.lru_cache(maxsize=1000)  # some 10 MB
def _triangle(width: int) -> tuple[Ints, Ints]:
    """Indices of the upper triangle; machines have about as many jobs, so they recur."""
    return np.triu_indices(width)


def _machine_days(rows: pa.Table, slot_ns: int, victim: str) -> Iterator[_Rows]:
    """Split rows by machine and day. Arrays as long as the rows are kept small: touching memory costs most."""
    if not rows.num_rows:
        return
    start = rows["slot_start_ns"].to_numpy()
    day = (start // DAY_NS).astype(np.int32)
    first_day = int(day.min())
    day -= first_day
    days = int(day.max()) + 1
    machine = rows["machine"].to_numpy()
    first_machine = int(machine.min())
    count = (int(machine.max()) - first_machine + 1) * days
    # Small enough numbers are sorted by radix.
    day += np.multiply(machine - first_machine, days, dtype=np.int32)
    order = np.argsort(day.astype(np.int16) if count < 1 << 15 else day, kind="stable")
    ends = np.cumsum(np.bincount(day, minlength=count))
    names = ["job", "usage", victim, "group" if "group" in rows.column_names else "job"]
    columns = [rows[name].to_numpy() for name in names]
    begin = 0
    for number, end in enumerate(ends.tolist()):
        if begin < end:
            mine = order[begin:end]
            slot = start[mine] // slot_ns
            yield _Rows(first_machine + number // days, slot, *(column[mine] for column in columns))
        begin = end


def _matrix(row: Ints, column: Ints, values: Floats, shape: tuple[int, int]) -> Floats:
    """Sum values into a dense matrix."""
    height, width = shape
    return sums_of(row * width + column, values, height * width).reshape(height, width)


def _distinct(code: Ints) -> tuple[Ints, Ints]:
    """Return the distinct codes, ascending, and each row's place among them."""
    size = int(code.max()) + 1 if len(code) else 0
    if size > 4 * len(code):
        return np.unique(code, return_inverse=True)
    seen = np.zeros(size, dtype=np.bool_)
    seen[code] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[code]
