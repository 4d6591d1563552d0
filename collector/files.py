"""Files of /proc and cgroups that are read every tick: kept open and read in place, within a bound.

Reading in place (pread) is four to five times cheaper than opening each time, and an open file is bound to its
process, thread or control group and not to the name: it fails when that has ended.

The one place where the process's limit of file descriptors is divided, too: `fd_share`.
"""

import errno
import os
import resource
from typing import Literal

from collector.base import Reason

#: Error numbers of reading once a process, thread or control group has ended.
GONE = frozenset({errno.ENOENT, errno.ESRCH, errno.ENODEV})

#: Error numbers of opening when no file descriptor is left.
NO_FD = frozenset({errno.EMFILE, errno.ENFILE})
_READ_BYTES = 4096

Sharer = Literal["perf", "resctrl", "procfs", "cgroup"]
# Eighths of what is left above the reserve. Per vCPU perf takes 7 to 9 and procfs 2; per VM resctrl takes 3 per cache
# domain (AMD's hosts have up to 32), cgroup up to 5 and procfs 2. Without descriptors perf is silent and resctrl
# expensive; the other two are only slower.
_EIGHTHS: dict[Sharer, int] = {"perf": 4, "resctrl": 2, "procfs": 1, "cgroup": 1}
# For the rest: libvirt, QMP and OVSDB sockets, the local API, /metrics, the spool, gRPC, files that are not kept.
_RESERVE, _RESERVE_PART = 128, 8
_UNLIMITED = 1 << 20


def fd_share(source: Sharer) -> int:
    """Return how many file descriptors a source may keep open, of the process's limit."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        limit = _UNLIMITED
    reserve = max(limit // _RESERVE_PART, min(_RESERVE, limit // 2))
    return (limit - reserve) * _EIGHTHS[source] // 8


class KeptFile:
    """A file, open (`fd`) or to be opened for each reading. Made by `KeptFiles.open`."""

    __slots__ = ("fd", "path")

    def __init__(self, path: str, fd: int | None) -> None:
        self.path = path
        self.fd = fd

    def read(self, size: int = _READ_BYTES) -> bytes:
        """Read the file from its start, at most `size` bytes.

        Raises OSError, with an `errno` of `GONE` once the process, thread or group has ended.
        """
        if self.fd is not None:
            return os.pread(self.fd, size, 0)
        return read_once(self.path, size)


class KeptFiles:
    """Opens files and keeps at most `most` (a source's `fd_share`) of them open; the others are opened per reading."""

    def __init__(self, most: int) -> None:
        self._most = most
        #: How many are open.
        self.count = 0

    def open(self, path: str, flags: int = 0) -> KeptFile:
        """Open a file for reading, with further `flags`. Beyond the bound it is only tried. Raises OSError."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
        if self.count < self._most:
            self.count += 1
            return KeptFile(path, fd)
        os.close(fd)
        return KeptFile(path, None)

    def close(self, *files: KeptFile | None) -> None:
        """Close files; closed ones and None are skipped."""
        for file in files:
            if file is not None and file.fd is not None:
                os.close(file.fd)
                file.fd = None
                self.count -= 1


def read_once(path: str, size: int = _READ_BYTES) -> bytes:
    """Read at most `size` bytes of a file that is not kept open. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)


_REASONS = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), Reason.NO_PERMISSION),
    **dict.fromkeys(GONE, Reason.NOT_PRESENT),
    **dict.fromkeys(NO_FD, Reason.FD_LIMIT),
}


def reason_of(error: Exception) -> Reason:
    """Return why a value is not known, from what reading (OSError) or parsing it raised."""
    if isinstance(error, OSError):
        return _REASONS.get(error.errno or 0, Reason.SOURCE_FAILED)
    return Reason.INVALID_VALUE
