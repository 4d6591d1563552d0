"""Small file systems, for tests of full disks and of lakes that cannot be written."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import wait_until


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs of a size such as "8m"; skips the test where it cannot be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    if subprocess.run(command, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root with CAP_SYS_ADMIN")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def remount(folder: Path, mode: str) -> None:
    """Make it writable ("rw") or not ("ro"), once nobody has a file open for writing there."""
    wait_until(lambda: not subprocess.run(["mount", "-o", f"remount,{mode}", folder], check=False).returncode)


def fill(folder: Path) -> Path:
    """Take all that is free, to the last page, with a file beside what is there. Returns the file."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast
