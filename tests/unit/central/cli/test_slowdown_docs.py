"""docs/slowdown.md: its files and commands, and that they print what the page says."""

import re
import shlex
from pathlib import Path

import typer
from typer.testing import CliRunner

from central.cli.place import place
from central.cli.slowdown import app as slowdown

PAGE = Path(__file__).resolve().parents[4] / "docs" / "slowdown.md"
FILE = re.compile(r"`([\w-]+\.csv)`:\n\n```csv\n(.*?)```", re.DOTALL)
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)

commands = typer.Typer()
commands.add_typer(slowdown, name="slowdown")
commands.command()(place)


def printed(command):
    """What a command of the page prints, in the current folder, without spaces at the ends of lines."""
    words = shlex.split(command)
    if words[0] == "cat":
        return Path(words[1]).read_text(encoding="utf-8")
    assert words[0] == "whitepanda"
    result = CliRunner().invoke(commands, words[1:], catch_exceptions=False)
    assert result.exit_code == 0
    return "\n".join(line.rstrip() for line in result.stdout.splitlines()) + "\n"


def block_as_run(block):
    found = ""
    for line in block.splitlines():
        if line.startswith("$ "):
            found += f"{line}\n{printed(line[2:])}"
    return found


def test_the_pages_commands_print_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    written = FILE.findall(text)
    assert len(written) == text.count("```csv")
    for name, content in written:
        (tmp_path / name).write_text(content, encoding="utf-8")
    blocks = BLOCK.findall(text)
    assert len(blocks) == 4
    for block in blocks:
        assert block_as_run(block) == block
