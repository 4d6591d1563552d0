"""What the live view shows: the last frame of the host, a minute of history, the order, the filter. No terminal."""

import operator
import re
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from agent.display.numbers import Numbers, not_shown
from agent.display.words import shown_names
from agent.top import columns
from agent.top.columns import COLUMNS, NO_STATISTICS, NO_STATISTICS_RECORDED, Column, Row, row_of
from whitepanda.v1 import host_pb2

#: Values that are kept per VM and column: a minute of ticks.
HISTORY = 60
_BARS = "▁▂▃▄▅▆▇█"
_LEVEL = "▄"
_SHAPE = 0.25


class Frame(NamedTuple):
    """The host at one moment."""

    vms: host_pb2.ListVmsResponse
    status: host_pb2.HostStatus


class Model:
    """All that is shown, and what the keys change. Starts sorted by need: victims first."""

    def __init__(self, *, is_recording: bool = False) -> None:
        self._is_recording = is_recording
        self.frame: Frame | None = None
        self.sort: Column = columns.VERDICT
        self.reverse = False
        self.filter = ""
        self.filter_note = ""
        self._pattern: re.Pattern[str] | None = None
        self._all: list[Row] = []
        self._history: dict[tuple[str, str], dict[str, deque[float | None]]] = {}
        self._seen: dict[str, int] = {}
        self._number = 0
        self._waiting: deque[Frame] | None = None

    # --- what comes ---

    def take(self, frames: Sequence[Frame]) -> None:
        """Take frames in their order; while frozen they wait, the last minute of them."""
        if self._waiting is not None:
            self._waiting.extend(frames)
            return
        for frame in frames[-HISTORY:]:
            self._take(frame)

    def forget(self) -> None:
        """Drop all that was taken: what comes now is of another time."""
        self.frame, self._all, self._history, self._seen = None, [], {}, {}

    def _take(self, frame: Frame) -> None:
        self.frame = frame
        self._number += 1
        shown = shown_names(frame.vms.vms)
        self._all = [row_of(vm, shown) for vm in frame.vms.vms]
        kept: dict[tuple[str, str], dict[str, deque[float | None]]] = {}
        for row in self._all:
            history = self._history.get(row.key)
            if history is None:
                history = {c.title: deque(maxlen=HISTORY) for c in COLUMNS if not c.is_text and c is not columns.TREND}
            for title, values in history.items():
                values.append(row.numbers.get(title))
            for title in row.numbers:
                self._seen[title] = self._number
            if row.by:
                self._seen[columns.BY.title] = self._number
            kept[row.key] = history
        self._history = kept

    # --- frozen ---

    @property
    def frozen(self) -> bool:
        """Whether the picture stands still."""
        return self._waiting is not None

    def toggle(self) -> None:
        """Let the picture stand still, or continue with what came meanwhile."""
        if self._waiting is None:
            self._waiting = deque(maxlen=HISTORY)
        else:
            waiting, self._waiting = list(self._waiting), None
            self.take(waiting)

    # --- what is shown ---

    def rows(self) -> list[Row]:
        """Return the rows that pass the filter, in order; what is not known comes last whichever way it is sorted."""
        passed = [row for row in self._all if self._passes(row)]
        ordered = sorted(((row.order(self.sort), row) for row in passed), key=operator.itemgetter(0))
        known = [row for order, row in ordered if not order[0]]
        if self.reverse:
            known.reverse()
        return known + sorted((row for order, row in ordered if order[0]), key=lambda r: r.vm.name)

    @property
    def total(self) -> int:
        """VMs on the host, whatever the filter."""
        return len(self._all)

    def count(self, symbol: str) -> int:
        """Return how many VMs on the host have a word's symbol."""
        return sum(row.word.symbol == symbol for row in self._all)

    def row(self, uuid: str) -> Row | None:
        """Return one VM's row, whatever the filter."""
        return next((row for row in self._all if row.vm.uuid == uuid), None)

    def history(self, row: Row, title: str) -> list[float | None]:
        """Return a VM's last values of a column of numbers, oldest first; None if it was not known."""
        return list(self._history.get(row.key, {}).get(title, ()))

    def present(self) -> tuple[Column, ...]:
        """Return the columns that this host can fill: some VM had a value in the last minute."""
        return tuple(c for c in COLUMNS if not self._vanishes(c))

    def _vanishes(self, column: Column) -> bool:
        if column is columns.TREND or (column.is_text and column is not columns.BY):
            return False
        seen = self._seen.get(column.title)
        return seen is None or self._number - seen >= HISTORY

    def absent(self) -> list[str]:
        """Say which columns this host cannot fill, and why: one line per reason."""
        if self.frame is None or not self._all:
            return []
        lacking: list[Numbers] = [c.numbers for c in COLUMNS if c.numbers and self._vanishes(c)]
        lines = not_shown(lacking, self.frame.vms.vms, self.frame.status)
        if self._vanishes(columns.CPI_JOB) and not any(numbers.title == "CPI" for numbers in lacking):
            why = NO_STATISTICS_RECORDED if self._is_recording else NO_STATISTICS
            lines.append(f"not shown: {columns.CPI_JOB.title}: {why}")
        return lines

    # --- order and filter ---

    def sort_by(self, column: Column) -> None:
        """Sort by a column; by the same one again: the other way round."""
        self.reverse = not self.reverse if column is self.sort else False
        self.sort = column

    def sort_next(self, step: int) -> None:
        """Sort by another column, `step` further to the right."""
        known = [c for c in self.present() if c is not columns.TREND]
        at = known.index(self.sort) if self.sort in known else 0
        self.sort, self.reverse = known[(at + step) % len(known)], False

    def set_filter(self, text: str) -> None:
        """Keep the VMs in whose name or job a regular expression is found; an invalid one is taken as text."""
        self.filter, self.filter_note = text, ""
        if not text:
            self._pattern = None
            return
        try:
            self._pattern = re.compile(text, re.IGNORECASE)
        except (re.error, OverflowError, RecursionError) as error:
            self.filter_note = f"no regular expression ({error}): taken as text"
            self._pattern = re.compile(re.escape(text), re.IGNORECASE)

    def _passes(self, row: Row) -> bool:
        found = self._pattern
        return found is None or bool(found.search(row.name) or found.search(row.vm.job))


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Draw the shape of the last values: bars from their least to their largest; a gap if one is not known.

    Values that differ by less than a quarter are drawn level: their noise is not a shape.
    """
    last = list(values)[-width:]
    known = [value for value in last if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    level = _LEVEL if high else _BARS[0]
    if high - low < _SHAPE * abs(high) or high == low:
        return "".join(" " if value is None else level for value in last)
    step = (len(_BARS) - 1) / (high - low)
    return "".join(" " if value is None else _BARS[round((value - low) * step)] for value in last)
