"""Refuses a file to write before anything is computed for it: a fit takes minutes, and measurements are dear."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from whitepanda.common.errors import InputError

__all__ = ["PICTURES", "TABLES", "check_output"]

#: Ends of names of tables, and of pictures; none at all is CSV, or PNG.
TABLES = (".csv", ".parquet", ".pq")
PICTURES = (".png",)


def check_output(path: Path, option: str = "--out", suffixes: Collection[str] = (), **inputs: Path) -> None:
    """Check that a file can be written, as far as that can be told without writing.

    Args:
        path: the file to write.
        option: that names it.
        suffixes: how its name may end, in lower case; a name without an end will always do.
        inputs: what is read, which it must not be.

    Raises:
        InputError: it is one of the inputs, a folder, in no folder or one that cannot be written, or named wrongly.

    """
    for name, file in inputs.items():
        if path.resolve() == file.resolve():
            raise InputError(f"{path}: {option} is the file of {name} itself; give the name of another file")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise InputError(f"{path}: cannot write: there is no folder {path.parent}")
    if not os.access(path.parent if not path.exists() or path.is_file() else path, os.W_OK):
        raise InputError(f"{path}: cannot write: no permission to write in {path.parent}")
    if path.suffix and suffixes and path.suffix.lower() not in suffixes:
        raise InputError(f"{option} {path}: must end in {' or '.join(suffixes)}")
