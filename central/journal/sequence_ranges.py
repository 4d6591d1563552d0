"""Sets of sequence numbers as merged ranges: they stay compact, as a spool numbers its batches almost without gaps."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class RangeChange(NamedTuple):
    """How adding one number changed the ranges: `first..last` is there now, ranges that start at `removed` are not."""

    first: int
    last: int
    removed: tuple[int, ...] = ()


class SequenceRanges:
    """A set of integers as disjoint ranges, both ends included, that never touch.

    `last_day` is the day of the spool's last batch, since 1970; -1 where that is unknown.
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

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._firsts, self._lasts, strict=True))

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, number: int) -> RangeChange | None:
        """Add one number. None where it was there already."""
        at = bisect_right(self._firsts, number) - 1
        if at >= 0 and number <= self._lasts[at]:
            return None
        joins_before = at >= 0 and self._lasts[at] == number - 1
        joins_after = at + 1 < len(self._firsts) and self._firsts[at + 1] == number + 1
        if joins_before and joins_after:
            removed = self._firsts.pop(at + 1)
            del self._lasts[at]
            return RangeChange(self._firsts[at], self._lasts[at], (removed,))
        if joins_before:
            self._lasts[at] = number
            return RangeChange(self._firsts[at], number)
        if joins_after:
            self._firsts[at + 1] = number
            return RangeChange(number, self._lasts[at + 1], (number + 1,))
        self._firsts.insert(at + 1, number)
        self._lasts.insert(at + 1, number)
        return RangeChange(number, number)


def merged(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the fewest ranges (both ends included) that hold exactly these numbers, in ascending order."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and number <= ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges
