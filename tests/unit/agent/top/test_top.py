"""`whitepanda top` in a terminal of textual's own: what is seen, what the keys do, what happens without an agent."""

import importlib.util
import math
from pathlib import Path

import pytest
from textual.color import Color

from agent.display import explanation as _explanation
from agent.top.columns import COLUMNS
from agent.top.feed import Came, Gone
from agent.top.keys import KEYS, PLAYER_KEYS
from agent.top.model import HISTORY, Model, sparkline

HERE = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("top_fakes", HERE / "top_fakes.py")
fakes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fakes)
FEW, Shown, frame, explanation = fakes.FEW, fakes.Shown, fakes.frame, fakes.explanation
FakeTape = fakes.FakeTape

BY_NEED = ["web-2", "scan-1", "db-1", "web-1", "new-1"]


async def test_victims_come_first_with_how_much_and_by_whom():
    async with Shown(size=(80, 24)) as top:
        await top.tell(frame())
        lines = top.lines()
        assert lines[0].startswith(" node1  5 VMs  ▼ 1 victim  ▽ 0 affected  ▲ 1 inflicting  CPU 75%  ")
        assert len(lines[0]) == len(" node1  5 VMs  ▼ 1 victim  ▽ 0 affected  ▲ 1 inflicting  CPU 75%  22:13:20")
        assert lines[1] == " ● live  sorted by VERDICT ↓"
        assert lines[2] == " 1 victim on this host now; first suspect scan-1"
        assert lines[3].split() == ["NAME", "VERDICT", "SLOW-DOWN", "BY", "CPU", "GIPS", "CPI", "RUNQ%"]
        assert lines[4].split() == [
            *("web-2", "▼", "victim", "1.42x", "[1.30,", "1.58]", "scan-1", "2.00", "4.00", "2.50", "1.00")
        ]
        assert top.names() == BY_NEED
        assert lines[8].split() == ["new-1", "?", "unknown", "-", "-", "-", "-", "-", "-"]


async def test_affected_vms_have_their_own_word_and_nobody_is_blamed_in_the_bar():
    rows = [(*row[:4], "AFFECTED" if row[4] == "VICTIM" else row[4]) for row in FEW]
    async with Shown(size=(80, 24)) as top:
        await top.tell(frame(rows))
        lines = top.lines()
        assert "  ▼ 0 victims  ▽ 1 affected  ▲ 1 inflicting  " in lines[0]
        assert "on this host now" not in top.text()
        assert lines[2].startswith(" NAME")
        assert next(line for line in lines if line.startswith(" web-2")).split()[:7] == [
            *("web-2", "▽", "affected", "1.42x", "[0.90,", "1.58]", "scan-1")
        ]
        assert top.names() == ["scan-1", "web-2", "db-1", "web-1", "new-1"]  # who inflicts harms others
        await top.tell(frame([FEW[1], *rows], at=1))
        assert top.lines()[2] == " 1 victim on this host now; first suspect scan-1"


async def test_two_vms_of_one_name_are_distinguished():
    twins = frame([*FEW, FEW[2]])
    twins.vms.vms[-1].uuid = "uuid-other"
    async with Shown(size=(160, 24)) as top:
        await top.tell(twins)
        assert {"scan-1 (uuid-sca)", "scan-1 (uuid-oth)"} <= {line[1:18] for line in top.lines()}
        assert " web-2 " in top.text()
        assert "first suspect scan-1 (uuid-sca)" in top.text()


async def test_sorted_by_any_column_and_the_other_way_round_what_is_not_known_stays_last():
    async with Shown() as top:
        await top.tell(frame())
        await top.press(">", ">", ">")
        assert top.lines()[1] == " ● live  sorted by CPU ↓"
        assert top.names() == ["scan-1", "web-2", "db-1", "web-1", "new-1"]
        await top.press("r")
        assert top.lines()[1] == " ● live  sorted by CPU ↑"
        assert top.names() == ["web-1", "db-1", "web-2", "scan-1", "new-1"]
        await top.press("<", "<", "<", "<")
        assert top.lines()[1] == " ● live  sorted by NAME ↓"
        assert top.names() == ["db-1", "new-1", "scan-1", "web-1", "web-2"]
        at = top.lines()[top.titled()].index("CPI")
        await top.pilot.click("VmTable", offset=(at, 0))
        assert top.names() == ["web-2", "db-1", "web-1", "scan-1", "new-1"]


async def test_the_selected_vm_stays_selected_wherever_it_goes():
    async with Shown() as top:
        await top.tell(frame())
        await top.press("down")
        assert top.app._table.uuid == "uuid-scan-1"
        calm = [(*row[:4], "STEADY") for row in FEW]
        await top.tell(frame(calm, at=1))
        assert (top.names()[0], top.app._table.uuid) == ("db-1", "uuid-scan-1")
        await top.tell(frame([row for row in calm if row[0] != "scan-1"], at=2))
        assert top.app._table.uuid in {"uuid-web-1", "uuid-new-1", "uuid-web-2", "uuid-db-1"}
        await top.tell(frame([], at=3))
        assert top.app._table.uuid is None
        assert "no VM runs here now" in top.text()
        assert f"source resctrl is unavailable: {fakes.NO_RDT}" in top.text()


FILTERS = (
    ("WEB", ["web-2", "web-1"], ""),
    ("^db$", ["db-1", "new-1"], ""),  # found in the job of both
    ("b-(", [], "no regular expression (missing ), unterminated subpattern at position 2): taken as text"),
    ("a/b", [], ""),
)


@pytest.mark.long
async def test_filtered_by_text_or_expression_in_name_or_job():
    async with Shown() as top:
        await top.tell(frame())
        for typed, left, note in FILTERS:
            await top.press("/", *typed)
            assert top.names() == left
            assert note in top.text()
            assert f"filter {typed!r}: {len(left)} of 5" in top.lines()[1]
            await top.press("enter")
            assert not top.app.query_one("#filter").display
            assert top.names() == left
            await top.press("escape")
            assert top.names() == BY_NEED


@pytest.mark.parametrize("typed", ["a{99999999999999999999}", "(" * 5000], ids=["too large", "too deep"])
def test_an_expression_that_python_cannot_hold_is_taken_as_text(typed):
    model = Model()
    model.set_filter(typed)
    assert model.filter_note.endswith(": taken as text")


async def check_freeze(model):
    async with Shown(model=model) as top:
        await top.tell(frame())
        await top.press("space")
        still = top.lines()
        await top.tell(frame(FEW[:1], at=60))
        assert top.lines() == still
        assert "■ FROZEN" in still[1]
        await top.press("space")
        assert top.names() == ["web-1"]
        assert len(model.history(model.row("uuid-web-1"), "CPU")) == 2  # nothing is missing of the minute


async def test_frozen_nothing_moves_and_nothing_is_lost():
    await check_freeze(Model())


class DeafToFreeze(Model):
    def toggle(self):
        pass


class Forgetful(Model):
    def toggle(self):
        if self.frozen:
            self._waiting = None
        else:
            super().toggle()


@pytest.mark.parametrize("mutant", [DeafToFreeze, Forgetful])
async def test_a_view_that_does_not_freeze_rightly_is_caught(mutant):
    with pytest.raises(AssertionError):
        await check_freeze(mutant())


async def check_vanish(model):
    async with Shown(size=(160, 24), model=model) as top:
        await top.tell(frame())
        assert not {"LLC", "MEMBW", "CPI/JOB"} & set(top.head())
        assert f"not shown: LLC, MEMBW: no_rdt: {fakes.NO_RDT}" in top.text()
        assert "not shown: CPI/JOB: no_coefficients: central has not sent" in top.text()
        await top.tell(frame(at=1, rdt=True, job_mean_cpi=1.25))
        assert {"LLC", "MEMBW", "CPI/JOB"} <= set(top.head())
        assert "not shown" not in top.text()
        assert next(line for line in top.lines() if line.startswith(" web-2")).split()[10:13] == [
            *("2.00x", "1.0M", "1.0M")
        ]
        # A moment without values does not shake the table; a minute does.
        await top.tell(frame(at=2))
        assert {"LLC", "MEMBW", "CPI/JOB"} <= set(top.head())
        await top.tell(Came(tuple(frame(at=3 + n) for n in range(HISTORY))))
        assert not {"LLC", "MEMBW", "CPI/JOB"} & set(top.head())
        assert f"not shown: LLC, MEMBW: no_rdt: {fakes.NO_RDT}" in top.text()


async def test_columns_that_the_host_cannot_fill_vanish_with_the_reason():
    await check_vanish(Model())


class ShowsAll(Model):
    def _vanishes(self, column):
        return False


class Shakes(Model):
    def _vanishes(self, column):
        return column.numbers is not None and not any(column.title in row.numbers for row in self._all)


@pytest.mark.parametrize("mutant", [ShowsAll, Shakes])
async def test_columns_that_stay_empty_or_flicker_are_caught(mutant):
    with pytest.raises(AssertionError):
        await check_vanish(mutant())


async def test_why_explains_the_selected_vm_in_the_words_of_explain():
    async with Shown(size=(120, 90)) as top:
        await top.tell(frame())
        await top.press("enter")
        assert top.feed.wanted == ["uuid-web-2"]
        await top.tell(Came((frame(at=1),), explanation()))
        shown = [line.strip() for line in top.lines()]
        for part in (_explanation.head, _explanation.found_here, _explanation.suspects):
            for piece in part(explanation()):
                if not isinstance(piece, _explanation.Grid):
                    assert piece.plain.strip() in shown
        cells = [line.split() for line in shown]
        assert ["ipc", "0.4", "1.1", "1", "0.9"] in cells
        assert ["scan-1", "scan", "0.50", "6.00", "3.00", "yes"] in cells
        assert any(line.startswith("CPU       ▄") and line.endswith("(2.00 to 2.00 in 2 ticks)") for line in shown)
        await top.press("down")
        assert top.feed.wanted[-1] == "uuid-scan-1"
        assert "victim: IPC" not in top.text()  # not of this VM
        await top.press("escape")
        assert top.feed.wanted[-1] is None
        assert "uuid-web-2" not in top.text()


async def test_an_explanation_after_the_freeze_says_so_and_one_before_it_stands():
    async with Shown(size=(120, 50)) as top:
        await top.tell(frame())
        await top.press("enter")
        await top.tell(Came((), explanation()))
        await top.press("space")
        later = explanation()
        later.vm.cloud_white.reason = "later"
        await top.tell(Came((frame(at=1),), later))
        assert "the host's own analysis: suffers: same reason" in top.text()
        await top.press("down")
        await top.tell(Came((), explanation("scan-1", FEW[2])))
        assert "asked for after the freeze: as of then" in top.text()
        assert "inflicting: as at its baseline" in top.text()
        await top.press("space")
        assert "asked for after" not in top.text()


async def test_every_size_of_terminal_is_usable():
    many = [(f"web-with-a-long-name-{n:03}", "web", 1.0, 1.0, "STEADY") for n in range(60)]
    async with Shown(size=(100, 30)) as top:
        await top.tell(frame([FEW[1], *many], rdt=True, job_mean_cpi=1.0))
        await top.press("enter")
        await top.tell(Came((), explanation()))
        for width, height in ((80, 24), (40, 12), (200, 60), (20, 5)):
            await top.pilot.resize_terminal(width, height)
            await top.pilot.pause()
            lines = top.lines()
            assert len(lines) == height
            assert max(map(len, lines)) <= width
            assert height == 5 or any(line.startswith(" web-2") for line in lines)
            assert top.app.query_one("#body").has_class("-wide") is (width >= 150)
        await top.pilot.resize_terminal(40, 12)
        await top.press("escape", "end")
        assert "059" in top.text()
        await top.press("home")
        assert top.app._table.uuid == "uuid-web-2"


async def test_a_wide_terminal_has_the_trend_of_the_sorted_column():
    async with Shown(size=(160, 24)) as top:
        for at, cpu in enumerate((1.0, 2.0, 4.0, 8.0)):
            await top.tell(frame([("web-1", "web", cpu, 1.0, "STEADY")], at=at))
        assert top.lines()[3].endswith("▁▂▄█")
        await top.press(">", ">", ">")  # CPI, which stands still
        assert top.lines()[1] == " ● live  sorted by CPI ↓"
        assert top.lines()[3].endswith("▄▄▄▄")


def test_sparklines():
    assert sparkline([0, 1, None, 4, 8], 4) == "▁ ▄█"
    assert sparkline([4.0, 4.9, None], 9) == "▄▄ "  # noise is not a shape
    assert sparkline([-1.0, 1.0], 9) == "▁█"
    assert sparkline([0.0, 0.0], 9) == "▁▁"
    assert sparkline([], 9) == ""


async def test_an_agent_that_is_gone_leaves_a_mark_and_the_last_picture():
    async with Shown() as top:
        await top.tell(frame())
        await top.tell(Gone("no agent answers at /run/x.sock: start it"))
        assert top.lines()[1].startswith(" ✗ STALE: less than 1 s old: no agent answers at /run/x.sock: start it")
        assert top.names() == BY_NEED
        await top.tell(frame(FEW[:2], at=9))
        assert top.lines()[1].startswith(" ● live")
        assert top.names() == ["web-2", "web-1"]


async def test_an_agent_that_is_slow_is_reported():
    async with Shown() as top:
        await top.tell(frame())
        top.now_s = 3.0
        await top.press("r")
        assert "STALE" not in top.text()
        top.now_s = 4.0
        await top.press("r")
        assert top.lines()[1] == " ✗ STALE: 4 s old: the agent is slow to answer"


async def test_an_agent_that_was_never_there_is_no_crash():
    async with Shown() as top:
        assert "asking the agent" in top.text()
        await top.press("enter", "down", "end", "space", "space", ">", "r")
        assert "no VM is selected" in top.text()
        await top.tell(Gone("nobody"))
        assert "STALE" in top.text()


async def test_keys_are_listed_with_columns_and_symbols():
    async with Shown(size=(120, 60)) as top:
        await top.tell(frame())
        await top.press("?")
        text = top.text()
        assert "freeze the picture, and continue" in text
        assert "▼ victim  ▲ inflicting  ▽ affected  = steady  ? unknown" in text
        assert "CPI against the mean of its job" in text
        assert "back and forward by 10 s" not in text  # only of recordings
        await top.press("q")
        assert "freeze the picture" not in top.text()
        assert top.app.is_running


async def test_names_that_are_wide_do_not_shift_the_columns():
    async with Shown() as top:
        await top.tell(frame([("ウェブ", "web", 1.0, 1.0, "STEADY"), FEW[0]]))
        strips = top.app.screen._compositor.render_strips(top.app.size)
        assert {strip.cell_length for strip in strips[2:5]} == {120}


def colours(top):
    strips = top.app.screen._compositor.render_strips(top.app.size)
    for line_filter in top.app._filters:
        strips = [strip.apply_filter(line_filter, Color.parse("black")) for strip in strips]
    styles = [segment.style for strip in strips for segment in strip if segment.style]
    return {(style.color, style.bgcolor) for style in styles} - {(None, None)}


async def test_no_color_writes_no_colour_and_says_all_the_same(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with Shown() as top:
        await top.tell(frame())
        assert all(colour is None or colour.is_default for pair in colours(top) for colour in pair)
        assert "▼ victim" in top.text()
        strips = top.app.screen._compositor.render_strips(top.app.size)
        assert any(segment.style and segment.style.reverse for segment in strips[top.titled() + 1])  # the selected VM
    monkeypatch.delenv("NO_COLOR")
    async with Shown() as top:
        await top.tell(frame())
        assert len(colours(top)) > 3


async def test_the_feed_is_stopped_with_the_view():
    async with Shown() as top:
        await top.press("q")
    assert top.feed.stopped


def test_nan_of_an_older_agent_is_no_ratio():
    for reported in (0.0, math.nan):
        model = Model()
        model.take([frame(job_mean_cpi=reported)])
        assert "CPI/JOB" not in model.row("uuid-web-1").numbers


def test_the_guide_has_every_key_and_column():
    guide = (HERE.parents[2] / "docs" / "top.md").read_text(encoding="utf-8")
    keys = {key for keys, _ in (*KEYS, *PLAYER_KEYS) for key in keys.replace(",", "").split()}
    assert {key for key in keys if f"`{key}`" not in guide} == set()
    assert {c.title for c in COLUMNS if c.title not in guide} == {"NAME"}  # which speaks for itself


async def test_the_remedy_of_a_stale_picture_is_read_at_100_columns():
    async with Shown(size=(100, 14)) as top:
        await top.tell(frame())
        remedy = "start it with `systemctl start whitepanda-agent`, or give --socket"
        await top.tell(Gone(f"no agent answers at /run/whitepanda/agent.sock: {remedy}"))
        assert "--socket" in " ".join(line.strip() for line in top.lines()[1:4])
        assert "first suspect scan-1" in top.text()
        assert "web-2" in top.text()


@pytest.mark.parametrize(("lines", "fits"), [(5, True), (4, False)])
async def test_a_terminal_without_room_for_a_vm_says_so(lines, fits):
    async with Shown(size=(20, lines)) as top:
        await top.tell(frame())
        assert ("web-2" in top.text()) == fits
        assert ("too small" in top.text()) != fits


async def test_of_a_recording_nothing_is_said_of_now_or_of_central():
    model = Model(is_recording=True)
    model.take([frame()])
    (line,) = [line for line in model.absent() if "CPI/JOB" in line]
    assert "a recording has no statistics" in line
    assert "reachable" not in line
    async with Shown(FakeTape()) as top:
        await top.tell(frame(()))
        assert "no VM ran there then" in top.text()


async def test_a_low_and_narrow_terminal_has_the_line_that_says_whether_it_is_live():
    async with Shown(size=(24, 8)) as top:
        await top.tell(frame())
        assert top.lines()[0].startswith(" node1  5 VMs  ▼ 1 ") and top.lines()[0].rstrip().endswith("…")
        assert top.lines()[1].startswith(" ● live")


async def test_at_80_columns_no_number_of_the_explanation_is_cut():
    async with Shown(size=(80, 40)) as top:
        await top.tell(frame())
        await top.press("enter")
        await top.tell(frame())
        pane = top.text().partition("─why─")[2]
        line = " ".join(pane.partition("SLOW-DOWN ")[2].partition("CPU ")[0].split())
        assert line.endswith("1.42x [1.30, 1.58] (1.42 to 1.42 in 2 ticks)")


async def test_where_the_explanation_takes_the_room_it_says_so():
    async with Shown(size=(150, 40)) as top:
        await top.tell(frame())
        assert "widen the terminal" not in top.text()
        await top.press("enter")
        await top.tell(frame())
        assert "no room for " in top.text()
        assert "Enter closes the explanation beside it" in " ".join(top.text().split())
