"""Reading whole files that others can put there or make large: never waits, never reads beyond a bound."""

import errno
import os
import stat


def read_bounded(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Read a regular file, or what a link leads to; at most one byte more than `most_bytes` is read.

    OSError: it cannot be read, is a pipe or device (EINVAL), or is larger than `most_bytes` (EFBIG).
    """
    name = os.fspath(path)
    # O_NONBLOCK: opening a pipe without a writer waits otherwise. For a regular file it changes nothing.
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", name)
        parts: list[bytes] = []
        # The size of a file in /proc is 0, and any file may grow while it is read: only a larger size decides.
        left = 0 if status.st_size > most_bytes else most_bytes + 1
        while left > 0 and (part := os.read(descriptor, min(left, 1 << 20))):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(descriptor)
    if left <= 0:
        raise OSError(errno.EFBIG, f"larger than the limit of {most_bytes} bytes", name)
    return b"".join(parts)
