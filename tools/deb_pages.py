"""Write man pages and the bash completion of the commands that one package has, from the commands themselves.

deb_pages.py DIR SIDE DATE      run by a package's own Python; SIDE is agent or central, DATE as 2026-01-31

DIR gets whitepanda.1 (all commands of this environment), whitepanda-COMMAND.1 (those whose code is SIDE's), and
`completion`. Both are still texts: none of whitepanda's code runs when Tab is pressed or a page is read.
"""

import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

_MARKUP = re.compile(r"\[/?[a-z #0-9]*\]")


def text(words: str) -> str:
    """Return words as roff that shows them as they are; blank lines part paragraphs."""
    plain = _MARKUP.sub("", words.replace("\b", "")).strip()
    lines = [" ".join(line.split()) for line in plain.replace("\\", "\\e").replace("-", "\\-").splitlines()]
    return "\n".join(("\\&" + line if line[:1] in {".", "'"} else line) or ".PP" for line in lines)


def usage(names: str, command: Any) -> list[str]:
    """Return the synopsis of one command."""
    if hasattr(command, "commands"):
        return [f".B {text(names)}", "COMMAND [ARGUMENTS]"]
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    words = " ".join((p.metavar or p.name.upper()) + "..." * (p.nargs != 1) for p in arguments)
    return [f".B {text(names)}", text(f"[OPTIONS] {words}")]


def options(command: Any, context: Any) -> list[str]:
    """Return the list of a command's arguments and options."""
    rows = []
    for one in command.params:
        record = None if getattr(one, "hidden", False) else one.get_help_record(context)
        if record:
            rows += [".TP", f".B {text(record[0])}", text(record[1] or "")]
    return [*rows, ".TP", ".B \\-h, \\-\\-help", "Show this in short, and end."]


def page(name: str, command: Any, context: Any, date: str, see: str) -> str:
    """Return the man page of a command, its subcommands included."""
    version = metadata.version("whitepanda")
    dashed = name.replace(" ", "-")
    summary, _, rest = (command.help or "").partition("\n")
    lines = [
        f'.TH {dashed.upper()} 1 "{date}" "whitepanda {version}" "User Commands"',
        ".SH NAME",
        f"{text(dashed)} \\- {text(summary).rstrip('.')}",
        ".SH SYNOPSIS",
        *usage(name, command),
    ]
    if rest.strip():
        lines += [".SH DESCRIPTION", text(rest)]
    inside = sorted(getattr(command, "commands", {}).items())
    if inside:
        lines.append(".SH COMMANDS")
    for sub, inner in inside:
        if name == "whitepanda":  # each has a page of its own
            lines += [".TP", f".B {text(sub)}", text((inner.help or "").partition("\n")[0])]
        else:
            lines += [f".SS {text(f'{name} {sub}')}", text(inner.help or "")]
            lines += [".PP", *usage(f"{name} {sub}", inner), *options(inner, context)]
    if name == "whitepanda" or not inside:
        lines += [".SH OPTIONS", *options(command, context)]
    lines += [
        ".SH EXIT STATUS",
        "0 success; 2 a wrong command line or configuration; else an error, which one line on standard error names.",
        ".SH SEE ALSO",
        see,
    ]
    return "\n".join(line for line in lines if line) + "\n"


def paths(command: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command below `command`, with its words."""
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield f"{above}{name}", inner
        yield from paths(inner, f"{above}{name} ")


def completion(root: Any) -> str:
    """Return the bash completion: words of each command; files wherever else something is to be named."""
    rows = [("", root), *paths(root)]
    lines = [
        "# bash completion for whitepanda; made from its commands",
        "_whitepanda() {",
        "    local word=${COMP_WORDS[COMP_CWORD]} words= path= i",
        "    for ((i = 1; i < COMP_CWORD; i++)); do",
        '        case "${COMP_WORDS[i]}" in -*) ;; *) path+=" ${COMP_WORDS[i]}" ;; esac',
        "    done",
        '    case "${path# }" in',
    ]
    tree = [name for name, inner in rows if hasattr(inner, "commands")]
    for name, inner in sorted(rows, key=lambda row: -len(row[0].split())):
        words = sorted(getattr(inner, "commands", {}))
        words += [w for one in inner.params if not getattr(one, "hidden", False) for w in one.opts if w[:2] == "--"]
        # What comes after a command without subcommands is its arguments.
        pattern = f'"{name}"' if name in tree else f'"{name}" | "{name} "*'
        lines.append(f'    {pattern}) words="{" ".join([*words, "--help"])}" ;;')
    lines += [
        "    esac",
        '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")',
        "}",
        "complete -o default -F _whitepanda whitepanda",
    ]
    return "\n".join(lines) + "\n"


def main(folder: Path, side: str, date: str) -> None:
    """Write all pages."""
    sys.argv = ["whitepanda"]  # so that all commands are loaded
    import typer  # noqa: PLC0415 - after the line above

    from whitepanda.common import cli  # noqa: PLC0415 - the same

    root = cli.command()
    context = typer.Context(root)
    folder.mkdir(parents=True)
    owners = {p.name: p.value.partition(".")[0] for p in metadata.entry_points(group="whitepanda.commands")}
    root.params = [one for one in root.params if "completion" not in one.name]  # the package brings it
    see = ", ".join(f"\n.BR whitepanda\\-{text(name)} (1)" for name in sorted(root.commands)).strip()
    (folder / "whitepanda.1").write_text(page("whitepanda", root, context, date, see), encoding="utf-8")
    for name, command in root.commands.items():
        if owners[name] == side:
            inner = page(f"whitepanda {name}", command, context, date, ".BR whitepanda (1)")
            (folder / f"whitepanda-{name}.1").write_text(inner, encoding="utf-8")
    (folder / "completion").write_text(completion(root), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
