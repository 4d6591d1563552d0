"""What commands share: lines and tables on the terminal, and checks of files before anything is computed for them."""

import csv as csv_files
import hashlib
import math
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from whitepanda.common.cli import console, errors, print_json
from whitepanda.common.errors import InputError, UnavailableError

#: Ends of names of tables, and of pictures; none at all is CSV, or PNG.
TABLES = (".csv", ".parquet", ".pq")
PICTURES = (".png",)
#: Of commands that print for people or for programs.
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="The table as CSV on standard output, for spreadsheets.")]
_FORMULA = re.compile(r"[=+@\t\r]|-(?=.*[A-Za-z(])")  # not "-" alone, which stands for none
_NONE: Mapping[str, Path | None] = {}


def say(text: str | Text, to: Console = console) -> None:
    """Print a line, which a terminal wraps and a pipe leaves whole."""
    to.print(text, soft_wrap=True)


def say_warning(text: str) -> None:
    """Print a warning on standard error."""
    say(Text.assemble(("warning:", "bold yellow"), " ", text), errors)


def report(
    value: Any,
    shown: Iterable[RenderableType | None],
    *,
    json: bool,
    to: Console | None = None,
    csv: Table | None = None,
) -> None:
    """Print a result: `value` as JSON for programs, or the lines and tables `shown` for people (not those of None).

    With `csv` that table is printed instead, as comma-separated values. Raises InputError if both are asked for.
    """
    if json and csv is not None:
        raise InputError("--json and --csv exclude each other; give one")
    if csv is not None:
        _print_csv(csv)
    elif json:
        print_json(value)
    else:
        for each in shown:
            if each is not None:
                (to or console).print(each, soft_wrap=isinstance(each, str | Text))


def _print_csv(table: Table) -> None:
    writer = csv_files.writer(sys.stdout, lineterminator="\n")
    writer.writerow(str(column.header) for column in table.columns)
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        # A spreadsheet takes what begins so for a formula, and names are others' words.
        writer.writerow(f"'{cell}" if _FORMULA.match(str(cell)) else str(cell) for cell in cells)
    sys.stdout.flush()


def grid(
    *titles: str,
    rows: Iterable[Iterable[RenderableType]] = (),
    title: str | None = None,
    whole: Collection[str] = (),
    overflow: Literal["ellipsis", "fold"] = "ellipsis",
    **options: Any,
) -> Table:
    """Make a table of `rows` of cells; `options` are those of `rich.table.Table`.

    A ">" before a title aligns its column to the right. Columns in `whole` are not wrapped if the terminal is narrow.
    """
    table = Table(title=title, title_justify="left", **options)
    for each in titles:
        name = each.removeprefix(">")
        side: Literal["left", "right"] = "left" if name == each else "right"
        table.add_column(name, justify=side, no_wrap=name in whole, overflow=overflow)
    for cells in rows:
        table.add_row(*cells)
    return table


def short(value: float | None, digits: int = 3) -> str:
    """Return a number with this many digits, "-" for None and NaN."""
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}g}"


def provenance(path: Path, name: str) -> dict[str, Any]:
    """Return what a model file says of the data that it was fitted to; `name` is the key of the file's name."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"whitepanda": metadata.version("whitepanda"), name: path.name, "sha256": digest}


def check_lake(lake: str) -> None:
    """Refuse a lake that is not a folder (UnavailableError); object stores are not asked."""
    if "://" not in lake and not Path(lake).is_dir():
        what = "is a file, no folder" if Path(lake).exists() else "no such folder"
        raise UnavailableError(f"lake {lake}: {what}; central.lake_dir, or lake in central.state_dir")


def people_console(out: Path | None) -> Console:
    """Return the console of texts for people: standard error if the file to write is standard output."""
    try:
        return errors if out and os.path.samestat(out.stat(), os.fstat(sys.stdout.fileno())) else console
    except (OSError, ValueError):  # the file does not exist yet, or standard output is not a file
        return console


def check_output(
    path: Path | None,
    option: str = "--out",
    suffixes: Collection[str] = (),
    *,
    others: Mapping[str, Path | None] = _NONE,
) -> None:
    """Check that the file that `option` names can be written, without writing.

    InputError: it is the name of something else. UnavailableError: there is no folder, or no permission.

    Its name must end in one of `suffixes` (lower case) or have no ending; special files, such as /dev/stdout, may have
    any name. It must be none of `others`, which are read or written too, by their names in the command's help.
    """
    if path is None:
        return
    for name, file in others.items():
        if file is not None and path.resolve() == file.resolve():
            raise InputError(f"{path}: {option} is {name} itself; give the name of another file")
    if path.is_dir():
        raise InputError(f"{option} {path}: is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise UnavailableError(f"{path}: cannot write: there is no folder {path.parent}")
    is_regular = path.is_file() or not path.exists()
    if not os.access(path.parent if is_regular else path, os.W_OK):
        raise UnavailableError(f"{path}: cannot write: no permission to write in {path.parent}")
    if is_regular and path.suffix and suffixes and path.suffix.lower() not in suffixes:
        raise InputError(f"{option} {path}: must end in {' or '.join(suffixes)}")
