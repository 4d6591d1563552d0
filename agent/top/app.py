"""The live view: bar, table, detail pane, footer, keys."""

import asyncio
import math
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import ClassVar

from rich.text import Text
from textual.app import App
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import Footer, Input, Static

from agent.display import render
from agent.display.words import AFFECTED, BAD, DIM, INFLICTING, VICTIM, WARNING, host_line
from agent.top import columns
from agent.top.columns import Row
from agent.top.detail import Detail
from agent.top.feed import Came, Feed, Gone, Position, Tape
from agent.top.keys import Keys
from agent.top.model import Model, sparkline
from agent.top.seek_bar import SeekBar
from agent.top.table import VmTable
from whitepanda.v1 import host_pb2

_STALE_S = 3.0  # a frame is older only if the agent is slow or gone
_WIDE = 150  # from this many columns on the detail pane is next to the table
_LOW = 10  # lines: with fewer there is no room for notes and long bars
_LEAST = 5  # lines: bar, head, a VM, footer
_WIND_S, _WIND_FAR_S, _WIND_HOUR_S = 10, 60, 3600
_TREND_OF = "CPU"  # if the column that is sorted by has no numbers


class TopApp(App[None]):
    """Shows a feed, which starts and stops with it. A `Tape` can be paused and wound, everything else is live."""

    CSS = """
    Screen { layout: vertical; }
    #bar { height: auto; min-height: 2; max-height: 4; padding: 0 1; }
    #bar.-low { max-height: 2; text-wrap: nowrap; text-overflow: ellipsis; }
    #body { height: 1fr; layout: vertical; }
    #body.-wide { layout: horizontal; }
    VmTable { height: 1fr; padding: 0 1; }
    #body.-wide Detail { height: 100%; width: 50%; border-top: none; border-left: solid $primary; }
    #notes { height: auto; max-height: 3; padding: 0 1; }
    #notes.-low { display: none; }
    #filter { height: 1; border: none; padding: 0 1; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "Quit", key_display="q", priority=False),
        Binding("question_mark,f1", "keys", "Keys", key_display="?"),
        # With priority: what is typed fast after it, or pasted, goes to the filter.
        Binding("slash", "filter", "Filter", key_display="/", priority=True),
        Binding("space", "freeze", "Freeze", key_display="space"),
        Binding("less_than_sign,S", "sort(-1)", "Sort by the column before", show=False, key_display="<"),
        Binding("greater_than_sign,s", "sort(1)", "Sort", key_display="< >"),
        Binding("r", "reverse", "Reverse"),
        Binding("enter,d", "detail", "Why", key_display="⏎"),
        Binding("escape", "back", "Back", show=False, key_display="esc"),
        Binding("right", f"wind({_WIND_S})", f"+{_WIND_S} s", key_display="→"),
        Binding("left", f"wind(-{_WIND_S})", f"-{_WIND_S} s", key_display="←"),
        Binding("full_stop", "step(1)", "Next moment", show=False, key_display="."),
        Binding("comma", "step(-1)", "Moment before", show=False, key_display=","),
        Binding("right_square_bracket", f"wind({_WIND_FAR_S})", "+1 min", show=False, key_display="]"),
        Binding("left_square_bracket", f"wind(-{_WIND_FAR_S})", "-1 min", show=False, key_display="["),
        Binding("right_curly_bracket", f"wind({_WIND_HOUR_S})", "+1 h", show=False, key_display="}"),
        Binding("left_curly_bracket", f"wind(-{_WIND_HOUR_S})", "-1 h", show=False, key_display="{"),
        Binding("plus", "speed(1)", "Faster", key_display="+"),
        Binding("minus", "speed(-1)", "Slower", key_display="-"),
    ]

    def __init__(self, feed: Feed, clock: Callable[[], float] = time.monotonic) -> None:
        # Without colours the terminal's own are to be left alone, or textual would write them as shades of grey.
        super().__init__(ansi_color=True if os.environ.get("NO_COLOR") else None)
        self._feed = feed
        self._tape = feed if isinstance(feed, Tape) else None
        self.model = Model(is_recording=self._tape is not None)
        self._clock = clock
        self._table = VmTable(self._trend)
        self._detail = Detail()
        self._seek = SeekBar(lambda share: self._tape.seek(share) if self._tape else None)
        self._bar, self._notes = Static(id="bar"), Static(id="notes")
        self._field = Input(placeholder="name or job: text or regular expression", id="filter", compact=True)
        self._gone = ""
        self._came_s: float | None = None
        self._position: Position | None = None
        #: All about the VM that is being explained; None: not known yet, or not asked for.
        self.explained: host_pb2.VmExplanation | None = None
        self._explained_note = ""

    def compose(self) -> Iterator[Widget]:
        """Make the parts."""
        yield self._bar
        yield self._seek
        with Container(id="body"):
            yield self._table
            yield self._detail
        yield self._notes
        yield self._field
        yield Footer()

    async def on_mount(self) -> None:
        """Begin."""
        self._field.display = False
        self._table.focus()
        self._show_bar()
        self.set_interval(1.0, self._show_bar)
        self._feed.start(lambda news: self.call_later(self._take, news))

    async def on_unmount(self) -> None:
        """End: the feed's thread first, which may be waiting for an answer."""
        await asyncio.to_thread(self._feed.stop)

    def end(self) -> None:
        """Ask the view to end; from any thread."""
        self.call_later(self.exit)

    # --- news ---

    def _take(self, news: Came | Gone) -> None:
        if isinstance(news, Gone):
            self._gone = news.why
            self._show()
            return
        self._gone = ""
        self._came_s = self._clock()
        self._position = news.position or self._position
        if news.anew:
            self.model.forget()
        self.model.take(news.frames)
        found = news.explanation
        if found is not None and found.vm.uuid == self._table.uuid:
            has_one = self.explained is not None and self.explained.vm.uuid == found.vm.uuid
            if not (self.model.frozen and has_one):  # a frozen picture keeps the one it has
                self.explained = found
                self._explained_note = "asked for after the freeze: as of then" if self.model.frozen else ""
        self._show()

    # --- what is shown ---

    def _show(self) -> None:
        self._table.show(self.model.rows(), self.model.present(), self.model.sort, is_old=bool(self._stale()))
        self._show_bar()
        self._show_notes()
        self._show_detail()

    def _show_bar(self) -> None:
        if self.size.height < _LEAST:
            self._bar.update(Text(f"too small: {_LEAST} lines at least", style=WARNING))
            return
        lines = [self._host_line(), self._state_line()]
        if self.model.frame is not None and (
            blamed := host_line(self.model.frame.vms, "then" if self._tape else "now")
        ):
            lines.append(Text(blamed, style=BAD))
        self._bar.update(Text("\n").join(lines))
        self._seek.show(self._position)

    def _host_line(self) -> Text:
        frame = self.model.frame
        if frame is None:
            return Text("asking the agent" if self._position is None else "reading")
        line = Text(frame.vms.host, style="bold")
        line.append(f"  {self.model.total} VM{'' if self.model.total == 1 else 's'}", style="none")
        for word, plural in ((VICTIM, "victims"), (AFFECTED, "affected"), (INFLICTING, "inflicting")):
            count = self.model.count(word.symbol)
            said = word.text if count == 1 else plural
            line.append(f"  {word.symbol} {count} {said}", style=word.style if count else DIM)
        host = {metric.name: metric.value for metric in frame.status.host_metrics}
        idle = host.get("host_cpu_idle_ratio", float("nan"))
        if not math.isnan(idle):
            line.append(f"  CPU {100 * (1 - idle):.0f}%", style="none")
        when = datetime.fromtimestamp(frame.vms.now_unix_ns / 1e9, tz=UTC).astimezone()
        return line.append(f"  {when:%H:%M:%S}", style="none")

    def _state_line(self) -> Text:
        if stale := self._stale():
            return Text(f"✗ STALE: {stale}", style=BAD)
        line = Text()
        if self._position is not None:
            line.append(*_played(self._position))
        elif self.model.frozen:
            line.append("■ FROZEN, space continues", style=WARNING)
        else:
            line.append("● live")
        arrow = "↑" if self.model.reverse else "↓"
        line.append(f"  sorted by {self.model.sort.title} {arrow}", style=DIM)
        if self.model.filter:
            line.append(f"  filter {self.model.filter!r}: {len(self.model.rows())} of {self.model.total}")
        return line

    def _stale(self) -> str:
        """Say why what is shown is old; "" if it is not."""
        age_s = 0.0 if self._came_s is None else self._clock() - self._came_s
        if self._gone:
            return f"{render.old(round(age_s * 1e9))}: {self._gone}"
        if self._position is None and age_s > _STALE_S:
            return f"{render.old(round(age_s * 1e9))}: the agent is slow to answer"
        return ""

    def _show_notes(self) -> None:
        lines = list(self.model.absent())
        if self._table.no_room:
            titles = ", ".join(column.title for column in self._table.no_room)
            is_beside = self._detail.has_class("-open") and self.size.width >= _WIDE
            remedy = "Enter closes the explanation beside it" if is_beside else "widen the terminal"
            lines.insert(0, f"no room for {titles}: {remedy}")
        if self.model.filter_note:
            lines.insert(0, self.model.filter_note)
        if self.model.frame is not None and not self.model.total:
            first = "no VM ran there then" if self._tape else "no VM runs here now"
            lines = [first, *render.broken(self.model.frame.status.sources)]
        self._notes.update(Text("\n".join(lines), style=DIM))

    def _show_detail(self) -> None:
        if not self._detail.has_class("-open"):
            return
        uuid = self._table.uuid
        row = self.model.row(uuid) if uuid else None
        found = self.explained if self.explained is not None and self.explained.vm.uuid == uuid else None
        self._detail.show(self.model, row, found, self._explained_note if found else "")

    def _trend(self, row: Row, width: int) -> str:
        sort = self.model.sort
        title = _TREND_OF if sort.is_text or sort is columns.TREND else sort.title
        return sparkline(self.model.history(row, title), width)

    # --- keys ---

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer to wind only recordings; a slash is not a key while it is typed into the filter."""
        if action in ("wind", "step", "speed"):
            return self._tape is not None
        if action == "filter":
            return not self._field.has_focus
        return super().check_action(action, parameters)

    def action_freeze(self) -> None:
        """Let the picture stand still, or continue; pause a recording, or play on."""
        if self._tape:
            self._tape.toggle()
            return
        if self.model.frozen:
            self._explained_note = ""
        self.model.toggle()
        self._show()

    def action_sort(self, step: int) -> None:
        """Sort by another column."""
        self.model.sort_next(step)
        self._show()

    def action_reverse(self) -> None:
        """Sort the other way round."""
        self.model.sort_by(self.model.sort)
        self._show()

    def on_vm_table_head_clicked(self, message: VmTable.HeadClicked) -> None:
        """Sort by the column that was clicked."""
        if message.column is not columns.TREND:
            self.model.sort_by(message.column)
            self._show()

    def action_detail(self) -> None:
        """Open or close the detail pane."""
        is_open = not self._detail.has_class("-open")
        self._detail.set_class(is_open, "-open")
        self._feed.want(self._table.uuid if is_open else None)
        self.call_after_refresh(self._show)

    def on_vm_table_selected(self) -> None:
        """Explain the VM that is selected now."""
        if self._detail.has_class("-open"):
            self._feed.want(self._table.uuid)
            self._detail.scroll_home(animate=False)
            self._show_detail()

    def action_filter(self) -> None:
        """Ask for the filter."""
        self._field.display = True
        self.screen.set_focus(self._field)

    def on_input_changed(self, message: Input.Changed) -> None:
        """Filter while it is typed."""
        self.model.set_filter(message.value)
        self._show()

    def on_input_submitted(self) -> None:
        """Keep the filter, go back to the table."""
        self._field.display = False
        self._table.focus()

    async def action_back(self) -> None:
        """Close what is open: the filter, which is then none, or the detail pane."""
        if self._field.display or self.model.filter:
            self._field.value = ""
            self.on_input_submitted()
        elif self._detail.has_class("-open"):
            self.action_detail()

    def action_keys(self) -> None:
        """List the keys and what the columns mean."""
        self.push_screen(Keys(is_recording=self._tape is not None))

    def action_wind(self, by_s: int) -> None:
        """Go forward or back in a recording."""
        if self._tape:
            self._tape.wind(by_s)

    def action_step(self, by: int) -> None:
        """Go to the next moment of a recording, or to the one before."""
        if self._tape:
            self._tape.step(by)

    def action_speed(self, step: int) -> None:
        """Play a recording faster or slower."""
        if self._tape:
            self._tape.change_speed(step)

    def on_resize(self, event: Resize) -> None:
        """Put the detail pane next to the table if there is room."""
        self.query_one("#body").set_class(event.size.width >= _WIDE, "-wide")
        for widget in (self._bar, self._notes):
            widget.set_class(event.size.height < _LOW, "-low")
        self.call_after_refresh(self._show)


def _played(position: Position) -> tuple[str, str]:
    """Say where a recording or a history is being shown, and its style."""
    mark = "» winding" if position.seeking else "▶" if position.playing else "■ end" if position.ended else "‖ paused"
    style = WARNING if position.note else ""
    if position.origin_ns:
        when = datetime.fromtimestamp(position.origin_ns / 1e9 + position.at_s, tz=UTC).astimezone()
        what = f"{mark} {when:%a %d %b %H:%M:%S} in values of {position.span_s:g} s at {position.speed:g}x"
        return f"{what}{'  ' if position.note else ''}{position.note}", style
    of = "" if position.length_s is None else f" of {_clock(position.length_s)}"
    note = f"  {position.note}" if position.note else ""
    return f"{mark} {_clock(position.at_s)}{of} at {position.speed:g}x{note}", style


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"
