"""Files that exist whole or not at all, also after a power cut."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from whitepanda.common.errors import InputError


def create_beside(file: Path) -> tuple[Path, IO[bytes]]:
    """Make a new file in the folder of `file`, to be renamed to it once it is whole.

    Only its owner may read it, its name cannot be predicted, and no link at its place is followed. Returns the new
    file, `.NAME.RANDOM.part`, and a stream that writes it. OSError: it cannot be made.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".part", dir=file.parent)
    return Path(name), os.fdopen(descriptor, "wb")


@contextmanager
def replacing(path: Path, *, mode: int, fresh: bool = False) -> Iterator[IO[bytes]]:
    """Yield a stream that writes a new file; it takes the place of `path` at the end, once it is on the disk.

    After any error, also the caller's, `path` is as before and nothing is left next to it. A device, a pipe and a link
    into /proc (/dev/stdout) are written in place.

    Args:
        path: in a folder that exists.
        mode: its permissions, whatever the umask: 0o600 for files with names of VMs, jobs or hosts, 0o644 for shared
            ones. Until the end only its owner can read it.
        fresh: refuse to replace a file, also one that is made meanwhile.

    OSError: it cannot be written; FileExistsError: it exists and `fresh` is set.
    """
    if not fresh and _is_written_in_place(path):
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_NOCTTY), "wb") as there:
            yield there
        return
    unfinished, file = create_beside(path)
    try:
        with file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        if fresh:
            os.link(unfinished, path)
        else:
            unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folder(path.parent)  # the rename itself


@contextmanager
def writing(path: Path, *, mode: int) -> Iterator[IO[bytes]]:
    """Write a file that a user asked for, as `replacing` does; InputError if it is a folder or cannot be written."""
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give the name of a file")
    try:
        with replacing(path, mode=mode) as file:
            yield file
    except OSError as error:
        raise InputError(f"{path}: cannot write: {error.strerror or error}") from error


def _is_written_in_place(path: Path) -> bool:
    """Whether `path` exists and is not a regular file. A folder counts too: opening it then raises the right error."""
    try:
        if path.is_symlink() and path.readlink().is_relative_to("/proc"):
            return True
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk; OSError if it does not exist, or the disk fails."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
