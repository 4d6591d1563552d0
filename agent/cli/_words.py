"""The words for what is held of a VM or found on a host, with symbol and colour: one look in all commands.

The colours are of the Okabe-Ito palette, which people who see red and green alike can tell apart; wherever there is a
colour there is also its word or symbol, so that nothing is said by colour alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from agent.cli import _render as render
from agent.verdicts import held_of, runs
from whitepanda.v1 import agent_pb2, host_pb2

__all__ = [
    "BAD",
    "DIM",
    "GOOD",
    "INFLICTING",
    "NORMAL",
    "STEADY",
    "TREND",
    "UNKNOWN",
    "VICTIM",
    "WARNING",
    "WORDS",
    "Word",
    "by_of",
    "disagreement",
    "need_of",
    "slow_down_of",
    "style_of",
    "word_of",
]

#: Styles of rich: vermilion, orange, bluish green and sky blue of Okabe and Ito.
BAD = "bold #d55e00"
WARNING = "#e69f00"
GOOD = "#009e73"
TREND = "#56b4e9"
DIM = "dim"


@dataclass(frozen=True, slots=True)
class Word:
    """A word with the symbol that stands for it where there is no room; `need`: 0 wants to be seen first."""

    text: str
    symbol: str
    style: str
    need: int


VICTIM = Word("victim", "▼", BAD, 0)
INFLICTING = Word("inflicting", "▲", WARNING, 1)
STEADY = Word("steady", "=", "", 2)
NORMAL = Word("normal", "=", "", 2)
UNKNOWN = Word("unknown", "?", DIM, 3)
WORDS = (VICTIM, INFLICTING, STEADY, NORMAL, UNKNOWN)
_BY_TEXT = {word.text: word for word in WORDS}


def word_of(vm: host_pb2.VmSummary) -> Word:
    """Return what is held of a VM by both analyses (`agent.verdicts.held_of`); one that does not run has its state."""
    if not runs(vm.state):
        return Word(vm.state, "-", DIM, 4)
    own, told = _by_each(vm)
    return _BY_TEXT[held_of(own.text, told.text)]


def _by_each(vm: host_pb2.VmSummary) -> tuple[Word, Word]:
    """Return what the host's own analysis, and what central's statistics hold of a VM."""
    return _BY_TEXT.get(render.behaviour(vm), UNKNOWN), _BY_TEXT.get(vm.verdict, UNKNOWN)


def disagreement(vm: host_pb2.VmSummary) -> str:
    """Say which of the two holds a VM for a victim, where only one does; "" where it is none, or one does not look."""
    own, told = _by_each(vm)
    if word_of(vm) is not VICTIM or own is told or not vm.HasField("cloud_white"):
        return ""
    lines = [f"{own.text} by the host's own analysis", f"{told.text} by central's statistics"]
    return ", ".join(lines if own is VICTIM else reversed(lines))


def slow_down_of(vm: host_pb2.VmSummary) -> agent_pb2.Degradation:
    """Return the host's own estimate of latency; where it does not look, the ratio of CPIs, without an interval."""
    if vm.HasField("cloud_white"):
        unknown = agent_pb2.Degradation(ratio=math.nan)
        return vm.cloud_white.degradation if vm.cloud_white.HasField("degradation") else unknown
    return agent_pb2.Degradation(ratio=vm.degradation, low=math.nan, high=math.nan)


def by_of(vm: host_pb2.VmSummary) -> str:
    """Return who inflicts what a VM suffers: whom the host found, else central's first suspect; "" where nobody."""
    culprits = list(vm.cloud_white.culprits) or ([vm.top_suspect] if vm.top_suspect else [])
    return f"{culprits[0]} +{len(culprits) - 1}" if len(culprits) > 1 else "".join(culprits)


def need_of(word: Word, slow_down: float, name: str) -> tuple[float, str]:
    """Return what VMs are sorted by: victims, the slowest first (NaN: not known), then who inflicts; by name."""
    worst = slow_down if word is VICTIM and slow_down > 0 else 0.0
    return (word.need - worst / 1e6, name.casefold())


def style_of(text: str) -> str:
    """Return the style of a word such as "victim"; "" where it has none."""
    word = _BY_TEXT.get(text)
    return word.style if word else ""
