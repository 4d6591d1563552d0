"""Refuses a file to write before anything is computed for it: a fit takes minutes, and measurements are dear."""

import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated

import typer

from whitepanda.common.errors import InputError

#: Ends of names of tables, and of pictures; none at all is CSV, or PNG.
TABLES = (".csv", ".parquet", ".pq")
PICTURES = (".png",)
#: Of commands that print for people or for programs.
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
_NONE: Mapping[str, Path | None] = {}


def is_standard_output(path: Path) -> bool:
    """Say whether a file to write is where results for people go too, as /dev/stdout is: these go elsewhere then."""
    try:
        return os.path.samestat(path.stat(), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):  # it is not there yet; or there is no standard output, or none of a file
        return False


def check_output(
    path: Path | None,
    option: str = "--out",
    suffixes: Collection[str] = (),
    *,
    others: Mapping[str, Path | None] = _NONE,
) -> None:
    """Check that a file can be written, as far as that can be told without writing.

    Args:
        path: the file to write; None is none. What is there and is no regular file, such as /dev/stdout, may have any
            name.
        option: that names it.
        suffixes: how its name may end, in lower case; a name without an end will always do.
        others: what it must not be: what is read, or written too, each with what the command's help calls it.

    Raises:
        InputError: it is one of the others, a folder, in no folder or one that cannot be written, or named wrongly.
    """
    if path is None:
        return
    for name, file in others.items():
        if file is not None and path.resolve() == file.resolve():
            raise InputError(f"{path}: {option} is {name} itself; give the name of another file")
    if path.is_dir():
        raise InputError(f"{option} {path}: is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise InputError(f"{path}: cannot write: there is no folder {path.parent}")
    is_regular = path.is_file() or not path.exists()
    if not os.access(path.parent if is_regular else path, os.W_OK):
        raise InputError(f"{path}: cannot write: no permission to write in {path.parent}")
    if is_regular and path.suffix and suffixes and path.suffix.lower() not in suffixes:
        raise InputError(f"{option} {path}: must end in {' or '.join(suffixes)}")
