"""The help of every command says what was written: rich reads `[word]` as its markup, and drops it."""

import sys
from collections.abc import Iterator

import pytest
import typer
from rich.text import Text

from whitepanda.common import cli


def texts(command, path: str = "whitepanda") -> Iterator[tuple[str, str]]:
    """Yield each text of a command's help, with its place."""
    yield path, command.help or ""
    for parameter in command.params:
        yield f"{path} {parameter.name}", getattr(parameter, "help", None) or ""
    for name, one in getattr(command, "commands", {}).items():
        yield from texts(one, f"{path} {name}")


def lost(command) -> list[str]:
    return [place for place, text in texts(command) if Text.from_markup(text).plain != text.replace("\\[", "[")]


@pytest.fixture
def all_commands(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["whitepanda"])
    return cli.command()


def test_no_word_of_a_help_text_is_lost(all_commands):
    assert len(list(texts(all_commands))) > 100
    assert lost(all_commands) == []


def test_that_notices_a_section_in_brackets():
    app = typer.Typer()
    app.command(help="The section [act] names the socket.")(lambda: None)
    assert lost(typer.main.get_command(app)) == ["whitepanda"]


def helps(command, context=None) -> Iterator[tuple[str, str]]:
    """Yield each option's name and the type that its help shows."""
    context = typer.Context(command, parent=context, help_option_names=["-h", "--help"])
    for parameter in command.get_params(context):
        if parameter.param_type_name == "option":
            yield f"{command.name} {parameter.name}", parameter
    for one in getattr(command, "commands", {}).values():
        yield from helps(one, context)


def test_flags_are_shown_without_a_type(all_commands):
    flags = [(name, one) for name, one in helps(all_commands) if one.is_flag]
    assert len(flags) > 50
    context = typer.Context(all_commands)
    assert [name for name, one in flags if one.display_type_rich(ctx=context)] == []
    # A flag that is off needs no second name.
    assert [name for name, one in flags if one.secondary_opts and not one.default] == []
