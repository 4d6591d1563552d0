"""The columns of the live view: what they show, how wide they are, which go first if there is no room."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from agent.display import render
from agent.display.numbers import NUMBERS, Numbers, sum_of, values_of
from agent.display.words import Word, by_of, need_of, slow_down_of, word_of
from whitepanda.v1 import host_pb2

_NAME_FIRST = 17  # characters of a name, such as instance-0000a1f3, go before further columns
#: Why CPI cannot be held against the job's.
NO_STATISTICS = "no_coefficients: central has not sent statistics of the jobs; is it reachable?"
NO_STATISTICS_RECORDED = "a recording has no statistics of the jobs, which central would send"


class Column(NamedTuple):
    """One column. `rank`: the higher, the sooner a narrow terminal goes without it; 0 stays.

    `width` in characters; a text column may become as wide as `most`, to its longest text.
    """

    title: str
    width: int
    rank: int
    help: str
    numbers: Numbers | None = None
    most: int = 0

    @property
    def is_text(self) -> bool:
        """Whether it is set from the left, and sorted from A."""
        return self.most > 0


def _measured(title: str, width: int, rank: int, text: str) -> Column:
    return Column(title, width, rank, text, NUMBERS[title])


NAME = Column("NAME", 12, 0, "the VM", most=32)
VERDICT = Column("VERDICT", 12, 1, "who suffers (▼, ▽: perhaps), who inflicts (▲): most in need first", most=12)
SLOW_DOWN = Column(
    "SLOW-DOWN", 18, 3, "how many times its latency, or CPI where it says so, is that of undisturbed, with its interval"
)
BY = Column("BY", 8, 5, "the first suspect, and how many more there are", most=20)
CPI_JOB = Column("CPI/JOB", 7, 7, "CPI against the mean of its job on this platform, from central")
JOB = Column("JOB", 8, 9, "what VMs of one kind share", most=20)
TREND = Column("TREND", 20, 14, "the last minute of the column that is sorted by, else of CPU")

#: In the order in which they stand.
COLUMNS = (
    NAME,
    VERDICT,
    SLOW_DOWN,
    BY,
    _measured("CPU", 5, 2, "cores in use by the vCPUs"),
    _measured("GIPS", 4, 8, "1e9 instructions per second"),
    _measured("CPI", 4, 4, "cycles per instruction"),
    CPI_JOB,
    _measured("LLC", 5, 10, "bytes of the last-level cache"),
    _measured("MEMBW", 5, 11, "memory traffic, bytes/s"),
    _measured("DISK", 4, 12, "bytes/s, both ways"),
    _measured("NET", 4, 13, "bytes/s, both ways"),
    _measured("RUNQ%", 5, 6, "time in which its vCPUs waited for a CPU"),
    JOB,
    TREND,
)
#: All that is asked of the agent.
METRICS = frozenset(name for column in COLUMNS if column.numbers for name in column.numbers.metrics)


class Row(NamedTuple):
    """One VM at one moment. `name` is as it is shown; `numbers` has the known ones by column title."""

    vm: host_pb2.VmSummary
    name: str
    word: Word
    by: str
    numbers: Mapping[str, float]

    @property
    def key(self) -> tuple[str, str]:
        """Of the VM in its present epoch: what its history is kept under."""
        return (self.vm.uuid, self.vm.epoch)

    def text(self, column: Column) -> str:
        """Return a cell without its colour."""
        if column.is_text:
            word = f"{self.word.symbol} {self.word.text}"
            texts = {NAME.title: self.name, VERDICT.title: word, BY.title: self.by, JOB.title: self.vm.job}
            return texts[column.title] or render.UNKNOWN
        value = self.numbers.get(column.title)
        if value is None:
            return render.UNKNOWN
        if column is SLOW_DOWN:
            return render.degradation(slow_down_of(self.vm))
        return column.numbers.show(value) if column.numbers else render.number(value, "x")

    def order(self, column: Column) -> tuple[bool, float, str]:
        """Return what rows are sorted by: the first says that it is not known, which is always last."""
        name = self.name.casefold()
        if column is VERDICT:
            return (False, *need_of(self.word, self.numbers.get(SLOW_DOWN.title, math.nan), name))
        if column.is_text:
            text = self.text(column).casefold()
            return (text == render.UNKNOWN, 0.0, text if column is NAME else f"{text}\0{name}")
        value = self.numbers.get(column.title)
        return (value is None, -(value or 0.0), name)


def row_of(vm: host_pb2.VmSummary, shown: Mapping[str, str]) -> Row:
    """Make a VM's row; `shown` is of `shown_names`."""
    found = values_of(vm)
    numbers: dict[str, float] = {}
    for column in COLUMNS:
        if column.numbers and (value := sum_of(found, column.numbers.metrics)) is not None:
            numbers[column.title] = value
    cpi = numbers.get("CPI")
    if cpi is not None and vm.job_mean_cpi > 0:  # NaN is not
        numbers[CPI_JOB.title] = cpi / vm.job_mean_cpi
    ratio = slow_down_of(vm).ratio
    if math.isfinite(ratio):
        numbers[SLOW_DOWN.title] = ratio
    return Row(vm, shown.get(vm.uuid, vm.name), word_of(vm), by_of(vm, shown), numbers)


class Shown(NamedTuple):
    """A column's place: from character `start` on, `width` wide."""

    column: Column
    start: int
    width: int


def fit(columns: Sequence[Column], rows: Sequence[Row], width: int) -> tuple[tuple[Shown, ...], tuple[Column, ...]]:
    """Choose and place the columns for a terminal: those of the lowest ranks, then room for long texts.

    It returns what is shown, in the columns' order, and the columns for which there was no room.
    """
    longest = [
        max((len(row.text(c)) for row in rows), default=0) if c.is_text or c is SLOW_DOWN else 0 for c in columns
    ]
    widths = [column.width for column in columns]
    for at, column in enumerate(columns):
        if column in (NAME, SLOW_DOWN):
            widths[at] = max(column.width, min(longest[at], _NAME_FIRST) if column is NAME else longest[at])
    kept = render.kept([column.rank for column in columns], widths, width)
    room = width + 1 - sum(widths[at] + 1 for at in kept)  # nothing stands behind the last one
    for at in sorted((at for at in kept if columns[at].is_text), key=lambda at: columns[at].rank):
        more = max(0, min(room, min(columns[at].most, longest[at]) - widths[at]))
        widths[at] += more
        room -= more
    shown, start = [], 0
    for at in kept:
        shown.append(Shown(columns[at], start, widths[at]))
        start += widths[at] + 1
    return tuple(shown), tuple(column for at, column in enumerate(columns) if at not in kept)
