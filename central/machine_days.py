"""Who ran beside whom on each machine day, as products of small dense matrices; the same on every engine.

Pairs of jobs that share a machine slot are some twenty times as many as the task slots, and engines would list them
to sum them. A machine day is one matrix (slots x jobs) instead, and all of its sums are products of such matrices.
`products` takes whole machine days in any order: all rows of a day on DuckDB, those of a machine day on Spark.

The sums come in one table, `PRODUCTS`, that engines can add up by key (`kind`, `a`, `b`, `c`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from central.models.groups import Floats, Ints
from central.models.groups import sums as sums_of
from central.models.whitepanda import quasi_differenced

__all__ = [
    "JOBS",
    "MACHINES",
    "MACHINE_JOBS",
    "PAIRS",
    "PRODUCTS",
    "ROWS",
    "TOTAL",
    "Kernel",
    "whitepanda",
]

#: What the kernel reads: task slots; `n_cpi` (the normalised CPI) is null but for latency-sensitive tasks.
ROWS = ("machine", "slot_start_ns", "job", "usage", "n_cpi")

#: What they leave. Which keys and values count depends on `kind`, see the kernels; the others are "" and 0.
PRODUCTS = pa.schema(
    {
        "kind": pa.int8(),
        "a": pa.string(),
        "b": pa.string(),
        "c": pa.string(),
        "v0": pa.float64(),
        "v1": pa.float64(),
        "v2": pa.float64(),
        "v3": pa.float64(),
    }
)
PAIRS, JOBS, MACHINE_JOBS, MACHINES, TOTAL = range(5)

_DAY_NS = 86_400 * 10**9
_VALUES = 4


@dataclass(frozen=True, slots=True)
class _Codes:
    """A column as numbers of its distinct values."""

    code: Ints
    names: pa.Array

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> _Codes:
        encoded = column.combine_chunks()
        if isinstance(encoded, pa.ChunkedArray):  # no rows
            encoded = pa.array([], column.type)
        if not pa.types.is_dictionary(encoded.type):
            encoded = pc.dictionary_encode(encoded)
        return cls(encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.cast(pa.string()))


@dataclass(frozen=True, slots=True)
class _MachineDay:
    """One machine day: U (places x jobs) and y of the places, which are the slots with a latency-sensitive task."""

    machine: int
    slot: Ints
    y: Floats
    jobs: Ints
    usage: Floats


class _Sums:
    """Collects parts of `PRODUCTS`, with codes in place of names."""

    def __init__(self) -> None:
        self._parts: dict[int, list[tuple[list[Ints], Floats]]] = {}

    def add(self, kind: int, keys: list[Ints], values: list[Floats]) -> None:
        """Add rows."""
        self._parts.setdefault(kind, []).append((keys, np.stack(values)))

    def table(self, names: dict[int, tuple[pa.Array, ...]]) -> pa.Table:
        """Return all rows; `names` has what the codes of each kind's keys stand for."""
        tables = []
        for kind, parts in self._parts.items():
            values = np.concatenate([part for _, part in parts], axis=1)
            rows = values.shape[1]
            columns: list[pa.Array] = [pa.array(np.full(rows, kind, np.int8))]
            for i in range(3):
                if i < len(names[kind]):
                    code = pa.array(np.concatenate([keys[i] for keys, _ in parts]).astype(np.int32))
                    columns.append(names[kind][i].take(code))
                else:
                    columns.append(pa.repeat(pa.scalar("", pa.string()), rows))
            zero = np.zeros(rows)
            columns += [pa.array(values[i] if i < len(values) else zero) for i in range(_VALUES)]
            tables.append(pa.Table.from_arrays(columns, schema=PRODUCTS))
        return pa.concat_tables(tables) if tables else PRODUCTS.empty_table()


def whitepanda(rows: pa.Table, slot_ns: int) -> pa.Table:
    """Sum what our estimator needs (`central.models.whitepanda.WhitepandaState`, whose names these are).

    Args:
        rows: columns `ROWS` of whole machine days, `n_cpi` as from `robust_n_cpi`.
        slot_ns: length of a slot.

    Returns:
        `PAIRS` (job, other): within, between_days. Names are not in order: (a, b) and (b, a) are one pair, of which
        a machine day has one. `JOBS` (job): job_within, job_between_days, samples, sum_usage_squared. `MACHINE_JOBS`
        (machine, job): usage. `MACHINES` (machine): slots, sum_y. `TOTAL`: as `total`.

    """
    job = _Codes.of(rows["job"])
    machine_names = _Codes.of(rows["machine"]).names
    order = (
        pc.rank(job.names, "ascending").to_numpy().astype(np.int64)
        if len(job.names)
        else np.empty(0, np.int64)
    )
    sums = _Sums()
    for day in _machine_days(rows, job, slot_ns):
        # Columns in the order of names, so that the upper triangle has each pair one way round.
        by_name = np.argsort(order[day.jobs])
        u, jobs = day.usage[:, by_name], day.jobs[by_name]
        y, n = day.y, len(day.y)
        gram, with_y, own = quasi_differenced(u, y, day.slot)
        total, total_y = u.sum(axis=0), float(y.sum())
        i, j = _triangle(len(jobs))
        sums.add(PAIRS, [jobs[i], jobs[j]], [gram[i, j], total[i] * total[j] / n])
        positive = (u > 0).sum(axis=0).astype(np.float64)
        sums.add(JOBS, [jobs], [with_y, total * total_y / n, positive, (u * u).sum(axis=0)])
        machine = np.array([day.machine])
        sums.add(MACHINE_JOBS, [np.full(len(jobs), day.machine), jobs], [total])
        sums.add(MACHINES, [machine], [np.array([float(n)]), np.array([total_y])])
        sums.add(TOTAL, [], [np.array([value]) for value in (n, 1.0, own, total_y**2 / n)])
    names = job.names
    return sums.table(
        {
            PAIRS: (names, names),
            JOBS: (names,),
            MACHINE_JOBS: (machine_names, names),
            MACHINES: (machine_names,),
            TOTAL: (),
        }
    )


Kernel = Callable[[pa.Table, int], pa.Table]

_TRIANGLES: dict[int, tuple[Ints, Ints]] = {}


def _triangle(width: int) -> tuple[Ints, Ints]:
    """Indices of the upper triangle; machines have about as many jobs, so they come again and again."""
    if width not in _TRIANGLES:
        if len(_TRIANGLES) > 1000:  # noqa: PLR2004 - some 10 MB
            _TRIANGLES.clear()
        _TRIANGLES[width] = np.triu_indices(width)
    return _TRIANGLES[width]


def _machine_days(rows: pa.Table, job: _Codes, slot_ns: int) -> Iterator[_MachineDay]:
    """Take rows apart by machine and day, and make each one's matrix."""
    if not rows.num_rows:
        return
    machine = _Codes.of(rows["machine"])
    start = _numbers(rows, "slot_start_ns")
    day = start // _DAY_NS
    first_day = int(day.min())
    days = int(day.max()) - first_day + 1
    group = machine.code.astype(np.int64) * days + (day - first_day)
    small = group.astype(np.int16) if len(machine.names) * days < 1 << 15 else group  # sorts by radix
    order = np.argsort(small, kind="stable")
    ends = np.cumsum(np.bincount(group, minlength=len(machine.names) * days))
    slot = (start // slot_ns)[order]
    jobs = job.code[order]
    usage, n_cpi = (_numbers(rows, name)[order] for name in ("usage", "n_cpi"))
    begin = 0
    for number, end in enumerate(ends.tolist()):
        part = slice(begin, end)
        begin = end
        if part.start < part.stop:
            found = _machine_day(number // days, slot[part], jobs[part], usage[part], n_cpi[part])
            if found is not None:
                yield found


def _machine_day(machine: int, slot: Ints, job: Ints, usage: Floats, n_cpi: Floats) -> _MachineDay | None:
    first = int(slot.min())
    slot = slot - first
    sensitive = ~np.isnan(n_cpi)
    victims = slot[sensitive]
    tasks = np.bincount(victims, minlength=int(slot.max()) + 1)
    slots = np.flatnonzero(tasks)
    beside = (tasks[slot] > 0) & ~np.isnan(usage)
    if not len(slots):
        return None
    place = np.cumsum(tasks > 0) - 1
    y = np.bincount(victims, n_cpi[sensitive])[slots] / tasks[slots]
    at, u = place[slot[beside]], usage[beside]
    jobs, column = _distinct(job[beside])
    flat = sums_of(at * len(jobs) + column, u, len(slots) * len(jobs))
    return _MachineDay(machine, slots + first, y, jobs, flat.reshape(len(slots), len(jobs)))


def _distinct(code: Ints) -> tuple[Ints, Ints]:
    """Return the distinct codes and each row's place among them."""
    size = int(code.max()) + 1 if len(code) else 0
    if size > 4 * len(code):
        return np.unique(code, return_inverse=True)
    seen = np.zeros(size, dtype=np.bool_)
    seen[code] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[code]


def _numbers(rows: pa.Table, name: str) -> Any:
    """Return a column as an array; null is NaN."""
    return rows[name].to_numpy()
