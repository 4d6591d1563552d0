"""Names that others chose never drive a terminal or turn the reading direction, wherever people see them."""

import io
import json
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from central.incidents.webhook_messages import firing
from whitepanda.common import cli
from whitepanda.common.cli import console, print_json
from whitepanda.v1 import fleet_pb2

BAD = "\x1b\x07\x00\x9b\x7f\u200b\u200f\u202a\u202e\u2066\u2069\u2028\u2029\ufeff\U000e0041\u115f\u2800\u3164"
NAMES = st.builds(
    "{}{}{}".format, st.text(max_size=6), st.sampled_from(BAD), st.text("ab\u202e\x1b[]31m", max_size=6)
).map(lambda name: name.encode(errors="replace").decode())


def hidden(text: str) -> set[str]:
    """The characters that are not printed as they are."""
    return {
        char
        for char in text
        if char in "\u115f\u1160\u2800\u3164\uffa0"
        or (char != "\n" and unicodedata.category(char) in {"Cc", "Cf", "Zl", "Zp", "Cs"})
    }


def shown(what: object, **options: object) -> str:
    with console.capture() as captured:
        console.print(what, **options)
    return captured.get()


@given(NAMES)
def test_no_way_to_print_shows_them(name):
    table = Table("job", "n", title=name)
    table.add_row(name, "1")
    table.add_row(Text(name), Text(name, "bold"))
    for what in (table, Text(name), Panel(Text(name)), Text.assemble("VM ", (name, "bold red"))):
        assert hidden(shown(what)) == set()
        assert hidden(shown(what, soft_wrap=True)) == set()
    assert hidden(shown(f"job {name}")) == set()


MARKUP = ["[/]", "[red]", "[conceal]web-1[/]", "[link=http://example.net]web-1[/link]", "a\\[b]", ":warning:"]


@pytest.mark.parametrize("name", MARKUP)
def test_a_name_in_brackets_is_shown_as_it_is(name):
    """Not taken for rich's markup, which could hide it, link it, or end the command."""
    table = Table("job", title=name)
    table.add_row(name)
    for what in (name, table, Panel(name), f"VM {name} of web"):
        text = shown(what, width=100)
        assert name in text
        assert "\x1b" not in text
    assert shown(table, width=100).count(name) == 2


@given(NAMES)
def test_json_has_them_as_numbers(name):
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli.sys, "stdout", output)
        print_json({name: [name]})
    assert hidden(output.getvalue()) == set()
    assert json.loads(output.getvalue()) == {name: [name]}


@given(NAMES)
def test_a_webhook_has_them_as_numbers(name):
    vm = fleet_pb2.IncidentVm(vm=name, name=name, job=name)
    incident = fleet_pb2.Incident(id=1, host=name, victims=[vm], suspects=[vm], suspect=vm)
    alert = json.loads(firing(incident, "https://central.example.net/#/incident/{id}"))["alerts"][0]
    for text in (*alert["annotations"].values(), *alert["labels"].values()):
        assert hidden(text) == set()


def test_everything_is_printed_by_the_two_consoles():
    root = Path(__file__).resolve().parents[4]
    printing = re.compile(r"\bConsole\(|\btyper\.echo\(|(?<![.\w])print\(|ensure_ascii=False")
    found = {
        path.relative_to(root).as_posix()
        for folder in ("agent", "central", "collector", "proto")
        for path in (root / folder).rglob("*.py")
        if printing.search(path.read_text(encoding="utf-8"))
    }
    assert found == set()


def test_a_name_has_its_whole_width_in_a_table():
    table = Table("job", "n")
    table.add_row("web\u202etxt", "1")
    assert r"web\u202etxt" in shown(table)
