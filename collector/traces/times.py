"""Times of a trace: timestamps by their own unit, plain numbers as microseconds, and other units refused.

A trace in seconds or nanoseconds would be read without complaint, all of it in one slot or each row in a year of its
own; so the windows of a file must last as long as windows do.
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


#: Our names of the columns of times.
TIMES = ("start_us", "end_us")

_SHORTEST_US = 10**6  # of windows, by the median; Google's are 1 s to 300 s
_LONGEST_US = 900 * 10**6  # nanoseconds of windows of 1 s would be 1,000 s
_DAY_US = 86_400 * 10**6
# Other units, with what makes microseconds of them, and how to say so.
_UNITS = (
    ("nanoseconds", 1e-3, "divide them by 1,000"),
    ("milliseconds", 1e3, "multiply them by 1,000"),
    ("seconds", 1e6, "multiply them by 1,000,000"),
)


def as_microseconds(array: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return an Arrow array of timestamps as microseconds since 1970 UTC, and which of them are known; shape (n,).

    Raises:
        pyarrow.ArrowInvalid: a time does not fit 64 bits of microseconds.

    """
    exact = array.cast(pa.timestamp("us", array.type.tz), safe=array.type.unit != "ns")
    known = array.is_valid().to_numpy(zero_copy_only=False)
    return exact.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), known


def text_as_microseconds(cells: list[str | None]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return dates with times of day in ISO 8601 as microseconds since 1970 UTC, and which cells are any.

    Without a zone they are UTC.
    """
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
    """Refuse times with fractions: microseconds have none.

    Args:
        path: the file.
        column: its name of the column.
        floats: some of its values, shape (n,).
        first_row: number of the first of them in the file.

    Raises:
        InputError: most of the values have a fraction.

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
    """Refuse windows that last as none does, as those of a trace in another unit than microseconds.

    Args:
        path: the file, whose first rows these are.
        names: its names of the two columns.
        start: plain numbers, shape (n,).
        end: as `start`.
        known: which rows have both.

    Raises:
        InputError: windows last less than 1 s or more than 900 s, by their median.

    """
    rows = np.flatnonzero(known & (start >= 0) & (end > start))
    if not len(rows):
        return  # rows are rejected one by one
    lasted = end[rows] - start[rows]
    typical = float(np.median(lasted))
    if _SHORTEST_US <= typical <= _LONGEST_US:
        return
    row = int(rows[np.argmin(np.abs(lasted - typical))])
    likely = [
        f"are they {unit}? {remedy}"
        for unit, factor, remedy in _UNITS
        if _SHORTEST_US <= typical * factor <= _LONGEST_US
    ]
    raise InputError(
        f"{path}: columns '{names[0]}' and '{names[1]}' must be microseconds: the window of row {row + 1}, "
        f"{start[row]} to {end[row]}, would last {_span(int(end[row]) - int(start[row]))}; "
        f"{likely[0] if likely else 'make them microseconds'}, or write them as TIMESTAMP"
    )


def _span(microseconds: int) -> str:
    if microseconds > _DAY_US:
        return f"{microseconds / _DAY_US:.3g} days"
    return f"{microseconds / 1e6:.3g} s"
