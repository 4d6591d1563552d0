"""Grouping of columns in plain numpy (SQL's GROUP BY): distinct keys, sums per key, places of keys."""

from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Integers of a range of at most this many times their number are counted instead of sorted.
_DENSE = 8


def group(*columns: Column) -> tuple[list[Column], Ints]:
    """Return the distinct keys (sorted, one array per column) and, per row, the number of its key."""
    number = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        code, size = _codes(column)
        # Renumbered after each column, so the product never outgrows int64.
        number = _codes(number * max(size, 1) + code)[0]
    first = np.zeros(int(number.max()) + 1 if len(number) else 0, dtype=np.int64)
    first[number[::-1]] = np.arange(len(number) - 1, -1, -1)
    return [column[first] for column in columns], number


def _codes(column: Column) -> tuple[Ints, int]:
    """Return each value's place among the sorted distinct ones, and how many these are."""
    if column.dtype.kind in "iub" and len(column):
        integers = column.astype(np.int64, copy=False)
        least = int(integers.min())
        width = int(integers.max()) - least + 1
        if width <= _DENSE * len(column):
            seen = np.zeros(width, dtype=np.bool_)
            seen[integers - least] = True
            place = np.cumsum(seen) - 1
            return place[integers - least], int(place[-1]) + 1
    values, code = np.unique(column, return_inverse=True)
    return code, len(values)


def sums(number: Ints, values: Floats, groups: int) -> Floats:
    """Return the sum of `values` per group."""
    return np.bincount(number, weights=values, minlength=groups).astype(np.float64, copy=False)


def counts(number: Ints, values: Ints, groups: int) -> Ints:
    """Return the sum of integers per group, exactly."""
    total = np.zeros(groups, dtype=np.int64)
    np.add.at(total, number, values)
    return total


def sum_by(keys: dict[str, Column], values: dict[str, Column]) -> dict[str, Column]:
    """Return the columns of a table with one row per distinct key, sorted, and the sums of its values."""
    found, number = group(*keys.values())
    table = dict(zip(keys, found, strict=True))
    for name, column in values.items():
        add = counts if column.dtype.kind == "i" else sums
        table[name] = add(number, column, len(found[0]))
    return table


def merge_sums(a: object, b: object, keys: tuple[str, ...], values: tuple[str, ...]) -> dict[str, Column]:
    """Return `sum_by` of two parts' rows; the columns are their attributes of these names."""
    return sum_by(
        {name: concatenate(getattr(a, name), getattr(b, name)) for name in keys},
        {name: np.concatenate([getattr(a, name), getattr(b, name)]) for name in values},
    )


def concatenate(a: Column, b: Column) -> Column:
    """Concatenate keys. An empty part does not decide the type."""
    if not len(a) or not len(b):
        return a if len(a) else b
    return np.concatenate([a, b])


def find(keys: tuple[Column, ...] | list[Column], wanted: tuple[Column, ...] | list[Column]) -> Ints:
    """Return, per wanted row, its place in `keys` (distinct), or -1."""
    n = len(keys[0])
    _, number = group(*(concatenate(key, want) for key, want in zip(keys, wanted, strict=True)))
    place = np.full(len(number), -1, dtype=np.int64)
    place[number[:n]] = np.arange(n)
    return place[number[n:]]
