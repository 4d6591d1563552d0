"""The bar of a recording or a history: where it is, and a click goes there."""

from collections.abc import Callable

from rich.text import Text
from textual.events import Click
from textual.widgets import Static

from agent.display.words import DIM
from agent.top.feed import Position

_DONE, _HERE, _LEFT = "━", "●", "─"


class SeekBar(Static):
    """One line; `seek` takes the share of the whole that was clicked."""

    DEFAULT_CSS = "SeekBar { height: 1; margin: 0 1; display: none; }"

    def __init__(self, seek: Callable[[float], object]) -> None:
        super().__init__(id="seek")
        self._seek = seek

    def show(self, position: Position | None) -> None:
        """Draw it; nothing where the length is not known."""
        length_s = None if position is None else position.length_s
        self.display = bool(length_s)
        if position is not None and length_s:
            share = min(1.0, max(0.0, position.at_s / length_s))
            self.update(drawn(share, self.size.width or self.app.size.width - 2))

    def on_click(self, event: Click) -> None:
        """Go there."""
        self._seek(event.x / max(1, self.size.width - 1))


def drawn(share: float, width: int) -> Text:
    """Draw a share of a line of so many columns."""
    at = round(share * (width - 1))
    return Text.assemble(_DONE * at, (_HERE, "bold"), (_LEFT * (width - 1 - at), DIM))
