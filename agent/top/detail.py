"""The detail pane: one VM's last minute, and all that its verdict was made of, in the words of `whitepanda explain`."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text
from textual.containers import VerticalScroll
from textual.widgets import Static

from agent.display import render
from agent.display.explanation import Grid, arithmetic, found_here, head, numbers, recommended, suspects
from agent.display.words import DIM, TREND
from agent.top.columns import COLUMNS, Row
from agent.top.model import HISTORY, Model, sparkline
from whitepanda.common.texts import counted
from whitepanda.v1 import host_pb2

_LINE_WIDTH = 30
_BESIDE_LINE = 50  # the name, the value and its range; a longer value wraps
_PARTS = (head, found_here, recommended, suspects, arithmetic, numbers)


class Detail(VerticalScroll):
    """Explains the selected VM."""

    DEFAULT_CSS = """
    Detail { display: none; border-top: solid $primary; padding: 0 1; }
    Detail.-open { display: block; height: 60%; }
    """
    BORDER_TITLE = "why"

    def __init__(self) -> None:
        super().__init__()
        self._text = Static()

    def compose(self) -> Iterator[Static]:
        """Make the text."""
        yield self._text

    def show(self, model: Model, row: Row | None, found: host_pb2.VmExplanation | None, note: str) -> None:
        """Show what is known of a VM; `found` None: not explained yet."""
        width = max(40, self.scrollable_content_region.width)
        self._text.update(Group(*_pieces(model, row, found, note, width)))


def _pieces(
    model: Model, row: Row | None, found: host_pb2.VmExplanation | None, note: str, width: int
) -> Iterator[RenderableType]:
    if row is None:
        yield Text("no VM is selected", style=DIM)
        return
    if note:
        yield Text(note, style=DIM)
    trends = list(_trends(model, row, min(_LINE_WIDTH, max(10, width - _BESIDE_LINE))))
    if found is None:
        yield Text(row.vm.name, style="bold")
        yield from trends
        return
    for part in _PARTS:
        for piece in part(found):
            if isinstance(piece, Grid):
                table, _, left_out = render.table_of(piece.columns, piece.rows, width)
                yield table
                yield from render.no_room(left_out)
            else:
                yield piece
        if part is head:
            yield from trends


def _trends(model: Model, row: Row, width: int) -> Iterator[Text]:
    """Draw the last minute of each number: its shape, its value now, its range."""
    for column in COLUMNS:
        values = model.history(row, column.title)
        known = [value for value in values if value is not None]
        if not known:
            continue
        show = column.numbers.show if column.numbers else render.number
        # Where a minute is wider than there is room, ticks are joined to one bar, the largest.
        each = -(-HISTORY // width)
        groups = [values[at : at + each] for at in range(0, len(values), each)]
        bars = [max((value for value in group if value is not None), default=None) for group in groups]
        line = sparkline(bars, width)
        reach = f"  ({show(min(known))} to {show(max(known))} in {counted(len(values), 'tick')})"
        yield Text.assemble(f"{column.title:<9} ", (f"{line:<{width}}", TREND), f" {row.text(column):>5}", (reach, DIM))
