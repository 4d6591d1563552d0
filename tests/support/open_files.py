"""Which files this process has open: what a test opened and did not close is new among them."""

import contextlib
from pathlib import Path


def open_files() -> set[tuple[str, str]]:
    """Return the number of each open file and what it is.

    Compare sets, not how many there are: files of others, which garbage collection finds, may be closed at any time.
    """
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing, at least
            found.add((path.name, str(path.readlink())))
    return found
