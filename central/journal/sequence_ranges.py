"""Sets of sequence numbers as merged ranges: they stay compact, as a spool numbers its batches almost without gaps."""

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class RangeChange(NamedTuple):
    """How adding one number changed the ranges: `first..last` is new, ranges that start at `removed` are gone."""

    first: int
    last: int
    removed: tuple[int, ...] = ()


class SequenceRanges:
    """A set of integers as disjoint ranges, both ends included, that never touch.

    `last_day` is the day of the spool's last batch, since 1970; -1 if unknown.
    """

    __slots__ = ("_firsts", "_lasts", "last_day")

    def __init__(self, ranges: Iterable[tuple[int, int]] = (), last_day: int = -1) -> None:
        self.last_day = last_day
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in sorted(ranges):
            if first > last:
                raise ValueError(f"a range ends at {last}, before its start {first}")
            if self._lasts and first <= self._lasts[-1] + 1:
                self._lasts[-1] = max(self._lasts[-1], last)
            else:
                self._firsts.append(first)
                self._lasts.append(last)

    def add(self, number: int) -> RangeChange | None:
        """Add one number; None if it is known already."""
        after = bisect_right(self._firsts, number)  # the place of the next range
        if after and number <= self._lasts[after - 1]:
            return None
        last = number
        removed: tuple[int, ...] = ()
        if after < len(self._firsts) and self._firsts[after] == number + 1:
            removed, last = (self._firsts.pop(after),), self._lasts.pop(after)
        if after and self._lasts[after - 1] == number - 1:
            self._lasts[after - 1] = last
            return RangeChange(self._firsts[after - 1], last, removed)
        self._firsts.insert(after, number)
        self._lasts.insert(after, last)
        return RangeChange(number, last, removed)


def merged(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the fewest ranges (both ends included) that hold exactly these numbers, in ascending order."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and number <= ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges
