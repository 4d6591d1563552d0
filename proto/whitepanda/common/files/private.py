"""Sockets for a group, and files with secrets."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from whitepanda.common.errors import ConfigError

_SOCKET_MODE = 0o660
_MIN_SECRET_BYTES, _MAX_SECRET_BYTES = 16, 4096


@contextmanager
def group_socket(path: Path) -> Iterator[None]:
    """Restrict the unix socket bound at `path` inside to its folder's group, from the first moment; raises OSError."""
    umask = os.umask(0o777 & ~_SOCKET_MODE)
    try:
        yield
    finally:
        os.umask(umask)
    path.chmod(_SOCKET_MODE)
    with suppress(PermissionError):  # not root: then it has this process's group, which is as good
        os.chown(path, -1, path.parent.stat().st_gid)


def read_secret(path: Path, key: str) -> bytes:
    """Read a secret, the text of the file that the setting `key` names, without white space around it.

    ConfigError: it cannot be read, others than its owner may read it, or it is too short or too long.
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
        size = f"must have {_MIN_SECRET_BYTES} to {_MAX_SECRET_BYTES} bytes (it has {len(secret)})"
        raise ConfigError(f"{key} {path}: {size}; try: openssl rand -hex 32")
    return secret
