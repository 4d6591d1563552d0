"""Every command that README.md and docs/ tell exists, with its options, and is run or listed with a reason."""

import re

import pytest

from tests.support.doc_commands import ROOT, Script, all_scripts, exceptions, pages, scripts, whitepanda_words

INLINE = re.compile(r"(?<!`)`(whitepanda [a-z][^`]*)`", re.DOTALL)


@pytest.fixture(scope="module")
def helps():
    """What each command says to --help, by its words: as docs/cli.md has it, which another test keeps fresh."""
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    parts = re.split(r"^## whitepanda (.*)$", text, flags=re.MULTILINE)
    found = dict(zip((tuple(words.split()) for words in parts[1::2]), parts[2::2], strict=True))
    assert len(found) > 40
    return found


def wrong(helps, words):
    """What is wrong with the arguments of a `whitepanda`: a command or an option that there is not. "" if nothing."""
    command, rest = (), list(words)
    while rest and not rest[0].startswith("-") and any(known[: len(command)] == command != known for known in helps):
        names = rest[0].split("|")
        if any((*command, name) not in helps for name in names):
            return f"no command {rest[0]}"
        command = (*command, names[0])
        rest.pop(0)
    options = {"--version", "--help", "-h", *re.findall(r"(?<![\w-])--?[a-z][\w-]*", helps.get(command, ""))}
    for word in rest:
        option = word.partition("=")[0]
        if re.fullmatch(r"--?[a-z][\w-]*", option) and option not in options:
            return f"no option {option}"
    return ""


def test_no_command_waits_for_ever():
    """What a reader copies ends, also where it waits for a program that could not start."""
    waiting = [f"{one.place}: {text}" for one in all_scripts() for text in one.commands if "sleep" in text]
    assert waiting
    assert [text for text in waiting if re.search(r": (until|while)\b", text)] == []


def test_each_command_and_option_exists(helps):
    found = [
        f"{script.place}: {text}: {problem}"
        for script in all_scripts()
        for text in script.commands
        for words in whitepanda_words(text)
        if (problem := wrong(helps, words))
    ]
    for page in pages():
        for match in INLINE.finditer(page.read_text(encoding="utf-8")):
            text = " ".join(match[1].replace("[", "").replace("]", "").split())
            problems = (wrong(helps, words) for words in whitepanda_words(text))
            found += [f"{page.relative_to(ROOT)}: `{text}`: {problem}" for problem in problems if problem]
    assert found == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("whitepanda vms --json", ""),
        ("until whitepanda fleet plan a.csv --margin-percent 3 > b; do sleep 1; done", ""),
        ("whitepanda vmss", "no command vmss"),
        ("whitepanda fleet plot", "no command plot"),
        ("whitepanda fleet plan|plot", "no command plan|plot"),
        ("sudo true && whitepanda vms --jsn", "no option --jsn"),
        ("A=b /opt/whitepanda/bin/whitepanda pki host --nme=x", "no option --nme"),
    ],
)
def test_what_does_not_exist_is_found(helps, text, problem):
    (words,) = whitepanda_words(text)
    assert wrong(helps, words) == problem


def test_scripts_are_found_as_readers_see_them():
    text = """Text `whitepanda vms`.

    whitepanda a --b c      # why
    not a command
    x = 1

- item
    whitepanda in-a-list

```sh
cat > f <<END
whitepanda no-command
END
A=1 whitepanda d \\
    --e   # why
```

```
printed
```

```console
$ whitepanda f
out
$ cat g
```

    whitepanda h   what it does
"""
    found = list(scripts(text, "p.md"))
    assert [(one.line, one.commands, one.output) for one in found] == [
        (3, ["whitepanda a --b c"], None),
        (11, ["cat > f <<END", "A=1 whitepanda d     --e"], "printed\n"),
        (23, ["whitepanda f"], "out\n"),
        (25, ["cat g"], None),
        (28, ["whitepanda h"], None),
    ]


def test_what_is_not_run_has_a_reason_and_is_there():
    scripts_, rows = all_scripts(), exceptions()
    assert len(scripts_) > 60
    assert [row for row in rows if len(row.reason) < 10] == []
    idle = [row for row in rows if not row.optional and not any(row.covers(script) for script in scripts_)]
    assert idle == []
    assert [row.tested_by for row in rows if row.tested_by and not (ROOT / row.tested_by).exists()] == []


def test_rows_cover_what_begins_so_on_their_pages():
    row = exceptions()[1]
    assert (row.page, row.starts) == ("README.md", "make test")
    assert row.covers(Script("README.md", 1, "make test\n"))
    assert not row.covers(Script("README.md", 1, "make check\n"))
    assert not row.covers(Script("docs/a.md", 1, "make test\n"))
