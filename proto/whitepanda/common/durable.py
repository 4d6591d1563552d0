"""Files that are there whole or not at all, also after a power cut."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from whitepanda.common.errors import InputError
from whitepanda.common.private_files import create_beside


@contextmanager
def replacing(path: Path, *, mode: int, fresh: bool = False) -> Iterator[IO[bytes]]:
    """Write a file anew: what is written takes the place of `path` at the end, once it is on the disk.

    After any error, also one of the caller's, `path` is as it was, and nothing lies beside it. A device, a pipe and
    what links into /proc (/dev/stdout) are no files to be replaced: they are opened and written as they are.

    Args:
        path: the file; its folder must be there.
        mode: its permissions, whatever the umask: 0o600 for what names VMs, jobs or hosts, 0o644 for what is shared.
        fresh: refuse to replace a file, also one that somebody makes meanwhile.

    Yields:
        A stream that writes it; until the end only its owner can read it.

    Raises:
        OSError: it cannot be written; FileExistsError: it is there, and was to be fresh.

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
    """Write a file that somebody asked for, as `replacing` does.

    Raises:
        InputError: it is a folder, or cannot be written.

    """
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give the name of a file")
    try:
        with replacing(path, mode=mode) as file:
            yield file
    except OSError as error:
        raise InputError(f"{path}: cannot write: {error.strerror or error}") from error


def _is_written_in_place(path: Path) -> bool:
    """Whether something is there that is no regular file; a folder too, whose opening then says so at once."""
    try:
        if path.is_symlink() and path.readlink().is_relative_to("/proc"):
            return True
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk.

    Raises:
        OSError: it is not there, or the disk fails.

    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
