"""The list of keys and columns (`?`)."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

from agent.display.words import DIM, WORDS
from agent.top.columns import COLUMNS

#: What docs/top.md lists too.
KEYS = (
    ("↑ ↓ PgUp PgDn Home End", "select a VM"),
    ("Enter, d", "why: explain the selected VM; Tab goes there to scroll"),
    ("< >, S s", "sort by the column before, by the next one; a click on its title does too"),
    ("r", "sort the other way round"),
    ("/", "filter by name or job: text or a regular expression; Esc takes it away"),
    ("space", "freeze the picture, and continue; pause a recording, and play on"),
    ("Esc", "take the filter away, or close the explanation"),
    ("?", "this list"),
    ("q, Ctrl+C", "quit"),
)
PLAYER_KEYS = (
    (", .", "the moment before, the next one: a tick, or of older times a window; it pauses"),
    ("← →", "back and forward by 10 s"),
    ("[ ]", "back and forward by a minute"),
    ("{ }", "back and forward by an hour; a click on the bar goes to its time"),
    ("- +", "slower and faster: a quarter of the speed to 64 times"),
)


class Keys(ModalScreen[None]):
    """All keys, columns and symbols; of a recording those that wind it too."""

    DEFAULT_CSS = """
    Keys { align: center middle; }
    Keys > VerticalScroll { width: 76; height: auto; max-height: 100%; border: solid $primary; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter,space", "dismiss", "Back", key_display="esc")
    ]

    def __init__(self, *, is_recording: bool) -> None:
        super().__init__()
        self._keys = KEYS + (PLAYER_KEYS if is_recording else ())

    def compose(self) -> Iterator[Widget]:
        """Make the list."""
        symbols = Text.assemble(
            *((f"{word.symbol} {word.text}  ", word.style) for word in WORDS), ("a dash is not known", DIM)
        )
        about = _table([(column.title, column.help) for column in COLUMNS])
        with VerticalScroll():
            yield Static(Group(_table(self._keys), Text(), symbols, Text(), about))


def _table(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for key, text in rows:
        table.add_row(Text(key), Text(text))
    return table
