"""The table of VMs. It draws only the lines that are visible, so 500 VMs cost hardly more than 40."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from agent.display import render
from agent.display.words import INFLICTING, TREND, VICTIM
from agent.top import columns
from agent.top.columns import Column, Row, Shown

_HEAD_LINES = 1
_PLAIN = Style()
_GAP = Segment(" ", _PLAIN)
_DIM = Style(dim=True)
_TREND = Style.parse(TREND)
_HEAD = Style(bold=True)
_SORTED = Style(bold=True, underline=True)
_CURSOR = Style(reverse=True)


class VmTable(ScrollView, can_focus=True, inherit_bindings=False):
    """Rows of VMs under a fixed head; the selected one stays selected when the order changes.

    `trend` draws a row's last minute, `width` characters wide.
    """

    DEFAULT_CSS = "VmTable { overflow-x: hidden; overflow-y: auto; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home,g", "move(-1000000)", "First", show=False),
        Binding("end,G", "move(1000000)", "Last", show=False),
    ]

    class Selected(Message):
        """Another VM is selected now."""

    class HeadClicked(Message):
        """A column's title was clicked."""

        def __init__(self, column: Column) -> None:
            super().__init__()
            self.column = column

    def __init__(self, trend: Callable[[Row, int], str]) -> None:
        super().__init__()
        self._trend = trend
        self._rows: Sequence[Row] = ()
        self._present: Sequence[Column] = ()
        self._shown: tuple[Shown, ...] = ()
        self._sort: Column = columns.VERDICT
        self._is_old = False
        #: UUID of the selected VM; None: no VM is selected.
        self.uuid: str | None = None
        #: Columns that the terminal has no room for.
        self.no_room: tuple[Column, ...] = ()

    # --- what is shown ---

    def show(self, rows: Sequence[Row], present: Sequence[Column], sort: Column, *, is_old: bool = False) -> None:
        """Show these rows and columns; `is_old` greys them. The selected VM stays selected if it is among them."""
        last, self._rows = self._cursor, rows
        self._present, self._sort, self._is_old = present, sort, is_old
        if rows and not any(row.vm.uuid == self.uuid for row in rows):
            self._select(min(last, len(rows) - 1))
        elif not rows and self.uuid is not None:
            self.uuid = None
            self.post_message(self.Selected())
        self._place()

    def _place(self) -> None:
        width = max(1, self.scrollable_content_region.width)
        self._shown, self.no_room = columns.fit(self._present, self._rows, width)
        self.virtual_size = Size(width, len(self._rows) + _HEAD_LINES)
        self.refresh()

    def on_resize(self) -> None:
        """Choose the columns again."""
        self._place()

    @property
    def _cursor(self) -> int:
        return next((at for at, row in enumerate(self._rows) if row.vm.uuid == self.uuid), 0)

    def _select(self, at: int) -> None:
        self.uuid = self._rows[at].vm.uuid
        self.post_message(self.Selected())

    # --- keys and mouse ---

    def action_move(self, by: int) -> None:
        """Select the VM `by` rows further down."""
        if self._rows:
            at = min(max(0, self._cursor + by), len(self._rows) - 1)
            self._select(at)
            # The head takes one line of the window.
            self.scroll_to_region(Region(0, max(0, at), 1, 1 + _HEAD_LINES), animate=False, force=True)
            self.refresh()

    def action_page(self, by: int) -> None:
        """Go a window further."""
        self.action_move(by * max(1, self.size.height - _HEAD_LINES - 1))

    def on_click(self, event: events.Click) -> None:
        """Select a row, or sort by a column."""
        if event.y < _HEAD_LINES:
            for one in self._shown:
                if one.start <= event.x < one.start + one.width:
                    self.post_message(self.HeadClicked(one.column))
            return
        at = event.y - _HEAD_LINES + self.scroll_offset.y
        if 0 <= at < len(self._rows):
            self._select(at)
            self.refresh()

    # --- drawing ---

    def render_line(self, y: int) -> Strip:
        """Draw a line: the head, or a VM."""
        width = self.size.width
        if y < _HEAD_LINES:
            cells = [
                _cell(one.column.title, one, _SORTED if one.column is self._sort else _HEAD) for one in self._shown
            ]
            return self._line(cells, width, _PLAIN)
        at = y - _HEAD_LINES + self.scroll_offset.y
        if at >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        row = self._rows[at]
        cells = [self._value(row, one) for one in self._shown]
        return self._line(cells, width, _CURSOR if row.vm.uuid == self.uuid else _PLAIN)

    def _line(self, cells: Sequence[Segment], width: int, style: Style) -> Strip:
        segments = [part for cell in cells for part in (cell, _GAP)]
        line = Strip(segments).extend_cell_length(width).crop(0, width)
        return line.apply_style(self.rich_style + style)

    def _value(self, row: Row, one: Shown) -> Segment:
        column = one.column
        if column is columns.TREND:
            return _cell(self._trend(row, one.width), one, _DIM if self._is_old else _TREND)
        text = row.text(column)
        if self._is_old or text == render.UNKNOWN:
            return _cell(text, one, _DIM)
        marked = column in (columns.NAME, columns.VERDICT, columns.SLOW_DOWN)
        is_telling = row.word in (VICTIM, INFLICTING) or column is columns.VERDICT
        return _cell(text, one, Style.parse(row.word.style) if marked and is_telling else _PLAIN)


def _cell(text: str, one: Shown, style: Style) -> Segment:
    """Cut or fill a text to a column's width: words from the left, numbers from the right."""
    if len(text) > one.width:
        text = render.cut(text, one.width)
    if not one.column.is_text and one.column is not columns.TREND:
        text = text.rjust(one.width)
    return Segment(text.ljust(one.width) if cell_len(text) == len(text) else set_cell_size(text, one.width), style)
