"""The words for what is held of a VM or found on a host, with symbol and colour: one look in all commands.

The colours are of the Okabe-Ito palette, which people who see red and green alike can tell apart; wherever there is a
colour there is also its word or symbol, so that nothing is said by colour alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.cli import _render as render
from whitepanda.v1 import host_pb2

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
    """Return what is held of a VM: by the host's own analysis, or by central's statistics if only these know.

    A VM that suffers by either is a victim; one that does not run has its state.
    """
    if vm.state and vm.state != "running":
        return Word(vm.state, "-", DIM, 4)
    own = _BY_TEXT.get(render.behaviour(vm), UNKNOWN)
    told = _BY_TEXT.get(vm.verdict, UNKNOWN)
    if VICTIM in (own, told):
        return VICTIM
    return own if own is not UNKNOWN else told


def style_of(text: str) -> str:
    """Return the style of a word such as "victim"; "" where it has none."""
    word = _BY_TEXT.get(text)
    return word.style if word else ""
