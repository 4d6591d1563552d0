"""Files with names in them that are nobody else's to read."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from whitepanda.common.errors import ConfigError

_SOCKET_MODE = 0o660
_MIN_SECRET_BYTES = 16
_MAX_SECRET_BYTES = 4096


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


@contextmanager
def group_socket(path: Path) -> Iterator[None]:
    """Let the unix socket that is bound at `path` inside be its folder's group's only, from the first moment on.

    Raises:
        OSError: it cannot be given to them.

    """
    umask = os.umask(0o777 & ~_SOCKET_MODE)
    try:
        yield
    finally:
        os.umask(umask)
    path.chmod(_SOCKET_MODE)
    with suppress(PermissionError):  # not root: then it is our own group, which is as well
        os.chown(path, -1, path.parent.stat().st_gid)


def read_secret(path: Path, key: str) -> bytes:
    """Read a secret: the file's text without white space around it.

    Args:
        path: only its owner may read it.
        key: the setting that names it.

    Raises:
        ConfigError: it cannot be read, others may read it, or it is too short or too long.

    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            secret = file.read(_MAX_SECRET_BYTES + 1).strip()
    except OSError as error:
        raise ConfigError(f"{key} {path}: cannot read: {error.strerror}") from error
    if mode & 0o077:
        raise ConfigError(f"{key} {path}: others may read or write it (mode {mode:04o}); chmod 0600 {path}")
    if not _MIN_SECRET_BYTES <= len(secret) <= _MAX_SECRET_BYTES:
        raise ConfigError(
            f"{key} {path}: must have {_MIN_SECRET_BYTES} to {_MAX_SECRET_BYTES} bytes (it has {len(secret)}); "
            "try: openssl rand -hex 32"
        )
    return secret
