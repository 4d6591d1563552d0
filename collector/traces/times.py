"""Times of a trace: timestamps by their own unit, plain numbers as microseconds, and other units refused.

Without a check a trace in seconds would be in one slot, and each row of one in nanoseconds in its own year; so the
windows of a file must have a plausible length.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from whitepanda.common.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: Keys of the columns of times.
TIMES = ("start_us", "end_us")

_SHORTEST_US = 10**6  # of windows, by the median; Google's are 1 s to 300 s
_LONGEST_US = 900 * 10**6  # nanoseconds of windows of 1 s would be 1,000 s
_DAY_US = 86_400 * 10**6
# Other units, their factor to microseconds, and the remedy.
_UNITS = (
    ("nanoseconds", 1e-3, "divide them by 1,000"),
    ("milliseconds", 1e3, "multiply them by 1,000"),
    ("seconds", 1e6, "multiply them by 1,000,000"),
)


def as_microseconds(array: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return an Arrow array of timestamps as microseconds since 1970 UTC, and which are known; shape (n,) each.

    Raises pyarrow.ArrowInvalid if a time does not fit 64 bits of microseconds.
    """
    exact = array.cast(pa.timestamp("us", array.type.tz), safe=array.type.unit != "ns")
    known = array.is_valid().to_numpy(zero_copy_only=False)
    return exact.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), known


def text_as_microseconds(cells: list[str | None]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return texts in ISO 8601, UTC without a zone, as microseconds since 1970 UTC, and which cells are valid."""
    values = np.zeros(len(cells), np.int64)
    known = np.zeros(len(cells), np.bool_)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    for place, cell in enumerate(cells):
        try:
            found = datetime.fromisoformat((cell or "").removesuffix(" UTC"))
        except ValueError:
            continue
        aware = found if found.tzinfo else found.replace(tzinfo=UTC)
        since = aware - epoch
        values[place] = (since.days * 86_400 + since.seconds) * 10**6 + since.microseconds
        known[place] = True
    return values, known


def check_whole(path: Path, column: str, floats: NDArray[np.float64], first_row: int) -> None:
    """Refuse times with fractions, which microseconds do not have. `first_row` is the number of the first value.

    Raises InputError if most of the values have a fraction.
    """
    is_number = np.isfinite(floats)
    broken = is_number & (floats != np.trunc(floats))
    if 2 * broken.sum() > is_number.sum():
        row = int(np.argmax(broken))
        raise InputError(
            f"{path}: column '{column}' must be whole microseconds (row {first_row + row}, value {floats[row]:g}); "
            "are they seconds? multiply them by 1,000,000 and round, or write them as TIMESTAMP"
        )


def check_unit(
    path: Path, names: tuple[str, str], start: NDArray[np.int64], end: NDArray[np.int64], known: NDArray[np.bool_]
) -> None:
    """Refuse windows of an implausible length, as in a trace in another unit than microseconds.

    `names` are the file's names of the two columns, of which these are the first rows; `known`: which rows have both.
    Raises InputError if windows last less than 1 s or more than 900 s, by their median.
    """
    rows = np.flatnonzero(known & (start >= 0) & (end > start))
    if not len(rows):
        return  # rows are rejected one by one
    lasted = end[rows] - start[rows]
    typical = float(np.median(lasted))
    if _SHORTEST_US <= typical <= _LONGEST_US:
        return
    row = int(rows[np.argmin(np.abs(lasted - typical))])
    span_us = int(end[row]) - int(start[row])
    span = f"{span_us / _DAY_US:.3g} days" if span_us > _DAY_US else f"{span_us / 1e6:.3g} s"
    likely = [
        f"are they {unit}? {remedy}"
        for unit, factor, remedy in _UNITS
        if _SHORTEST_US <= typical * factor <= _LONGEST_US
    ]
    raise InputError(
        f"{path}: columns '{names[0]}' and '{names[1]}' must be microseconds: the window of row {row + 1}, "
        f"{start[row]} to {end[row]}, would last {span}; "
        f"{likely[0] if likely else 'make them microseconds'}, or write them as TIMESTAMP"
    )
