"""The commands of docs/*.md and README.md: found, checked against the program, and run as they stand there.

A command is what a reader would copy into a shell: a fenced block `sh`, a line after `$ ` of a block `console`, and a
line of an indented block that begins with a program that people are asked to run.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: What an indented line has to begin with, to be a command and no output, formula or settings.
PROGRAMS = frozenset(
    (
        *("apt", "apt-get", "curl", "docker", "dpkg", "install", "journalctl", "make", "mount", "openstack", "podman"),
        *(
            "promtool",
            "python",
            "python3",
            "scp",
            "sqlite3",
            "systemctl",
            "systemd-sysusers",
            "tar",
            "virsh",
            "whitepanda",
        ),
    )
)
_FENCE = re.compile(r"^ *```(\w*)")
_ASSIGNMENT = re.compile(r"^\w+=\S*$")
_COMMENT = re.compile(r"\s+# .*$")
_DESCRIPTION = re.compile(r"(?<=\S) {2,}\S.*$")


@dataclass(frozen=True)
class Script:
    """What is copied at once: one block `sh`, or one line. `output` is what the page says that it prints, or None."""

    page: str
    line: int
    text: str
    output: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """Its commands, one line each: continued lines joined, comments and here-documents left out."""
        found: list[str] = []
        end = None
        for line in self.text.replace("\\\n", "").splitlines():
            if end is not None:
                end = None if line == end else end
                continue
            here = re.search(r"<<-?\s*'?(\w+)'?", line)
            end = here[1] if here else None
            bare = _COMMENT.sub("", line).strip()
            if bare and not bare.startswith("#"):
                found.append(bare)
        return found


def pages() -> list[Path]:
    """All pages that people read; cli.md is the program's own help."""
    found = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    return [page for page in found if page.name != "cli.md"]


def scripts(text: str, page: str = "") -> Iterator[Script]:
    """Yield what a page tells to run, in its order."""
    language, start, block = None, 0, list[str]()
    after: Script | None = None
    indented = False
    before = ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = _FENCE.match(line)
        if language is None and fence:
            language, start, block = fence[1], number + 1, []
        elif language is not None and line.strip() == "```":
            body = "\n".join(block) + "\n"
            if after is not None and language == "":
                after = Script(after.page, after.line, after.text, body)
            if after is not None:
                yield after
                after = None
            if language == "sh":
                after = Script(page, start, body)
            elif language == "console":
                yield from _console(page, start, body)
            language = None
        elif language is not None:
            block.append(line)
        else:
            indented = line.startswith("    ") and (indented or not before.strip())
            if indented and _is_command(line.strip()):
                yield Script(page, number, _DESCRIPTION.sub("", line.strip()) + "\n")
            if after is not None and line.strip():
                yield after
                after = None
        before = line
    if after is not None:
        yield after


def _console(page: str, start: int, body: str) -> Iterator[Script]:
    """Each `$ command` of a block with what stands below it."""
    parts = re.split(r"^\$ ", body, flags=re.MULTILINE)
    number = start + parts[0].count("\n")
    for part in parts[1:]:
        command, _, output = part.partition("\n")
        yield Script(page, number, f"{command}\n", output or None)
        number += part.count("\n")


def _is_command(line: str) -> bool:
    words = line.split()
    while words and _ASSIGNMENT.match(words[0]):
        words.pop(0)
    return bool(words) and words[0].rpartition("/")[2] in PROGRAMS


def whitepanda_words(command: str) -> list[list[str]]:
    """The arguments of each `whitepanda` that a command line calls."""
    found = []
    for part in re.split(r"\s(?:\||&&|\|\||;|&|do|then)\s|;\s", f" {command} "):
        try:
            words = shlex.split(
                re.sub(r"(?<=\s)[0-9]?>{1,2}\s*(?:&\d|\S+)|&>\S+|\s&\s*$|;\s*$|<\s*\S+", " ", part), comments=True
            )
        except ValueError:
            continue
        while words and (_ASSIGNMENT.match(words[0]) or words[0] in {"until", "while", "if", "!"}):
            words.pop(0)
        if words and words[0].rpartition("/")[2] == "whitepanda":
            found.append(words[1:])
    return found


@dataclass(frozen=True)
class Left:
    """A row of tests/doc_commands.toml."""

    page: str
    starts: str
    reason: str
    tested_by: str = ""
    optional: bool = False

    def covers(self, script: Script) -> bool:
        """Whether it is of that script."""
        return fnmatch(script.page, self.page) and script.text.startswith(self.starts)


def exceptions() -> list[Left]:
    """What is not run, and why."""
    rows = tomllib.loads((ROOT / "tests" / "doc_commands.toml").read_text(encoding="utf-8"))["cannot"]
    return [Left(**row) for row in rows]


def all_scripts() -> list[Script]:
    """Every script of every page."""
    return [
        script for page in pages() for script in scripts(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))
    ]
