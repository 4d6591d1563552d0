"""Files with names in them that are nobody else's to read."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO

__all__ = ["create_beside"]


def create_beside(file: Path) -> tuple[Path, IO[bytes]]:
    """Make a new file in the folder of `file`, to be given its name once it is whole.

    Only its owner may read it, its name cannot be foretold, and no link that lies there is followed.

    Returns:
        The new file, `.NAME.RANDOM.part`, and a stream that writes it.

    Raises:
        OSError: it cannot be made.

    """
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".part", dir=file.parent)
    return Path(name), os.fdopen(descriptor, "wb")
