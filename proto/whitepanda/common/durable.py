"""Files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from whitepanda.common.private_files import create_beside

__all__ = ["replacing", "sync_folder"]


@contextmanager
def replacing(path: Path, *, mode: int) -> Iterator[IO[bytes]]:
    """Write a file anew: what is written takes the place of `path` at the end, once it is on the disk.

    After any error, also one of the caller's, `path` is as it was, and nothing lies beside it.

    Args:
        path: the file; its folder must be there.
        mode: its permissions, whatever the umask: 0o600 for what names VMs, jobs or hosts, 0o644 for what is shared.

    Yields:
        A stream that writes it; until the end only its owner can read it.

    Raises:
        OSError: it cannot be written.

    """
    unfinished, file = create_beside(path)
    try:
        with file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folder(path.parent)  # the rename itself


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
