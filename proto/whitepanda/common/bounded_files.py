"""Reading whole files that others can put there or make large: never waits, never reads beyond a bound."""

import errno
import os
import stat


def read_bounded(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Read a regular file.

    A pipe, which would keep its reader waiting, and a device are refused. So is a file larger than the bound; of it
    at most one byte more than the bound is read.

    Args:
        path: the file; a link is followed.
        most_bytes: the bound.

    Raises:
        OSError: it cannot be read, is no regular file (EINVAL), or is larger than the bound (EFBIG);
            `strerror` says so.

    """
    name = os.fspath(path)
    # O_NONBLOCK: opening a pipe without a writer waits otherwise. For a regular file it changes nothing.
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", name)
        return _read(descriptor, name, most_bytes)
    finally:
        os.close(descriptor)


def _read(descriptor: int, name: str, most_bytes: int) -> bytes:
    # The size of a file in /proc is 0, and any file may grow while it is read: what is read decides, not the size.
    if os.fstat(descriptor).st_size > most_bytes:
        raise _too_large(name, most_bytes)
    parts: list[bytes] = []
    left = most_bytes + 1
    while left > 0 and (part := os.read(descriptor, min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    if left <= 0:
        raise _too_large(name, most_bytes)
    return b"".join(parts)


def _too_large(name: str, most_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"larger than the {most_bytes} bytes that are read of it at most", name)
