"""Watches which processes have ended, in one system call for all of them.

A pidfd is bound to the process and not to its number: until it reports the end, no other process has that number. That
saves reading /proc/PID/stat for every VM at every tick.
"""

import os
import resource
import select

_SHARE = 16  # at most one in 16 of the limit of file descriptors is used for this
_MAX_WATCHES = 1 << 16


class ProcessWatch:
    """Watches processes of the kernel's own /proc. Not safe for use by several threads together."""

    def __init__(self, proc_root: str = "/proc") -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = _MAX_WATCHES if limit == resource.RLIM_INFINITY else min(limit // _SHARE, _MAX_WATCHES)
        self._epoll: select.epoll | None = None
        self._works = proc_root == "/proc" and hasattr(os, "pidfd_open")
        self._count = 0

    def add(self, pid: int) -> int | None:
        """Watch a process and return the watch; the caller then checks that it is the intended process.

        None: it cannot be watched (it is gone, the kernel is too old, too many are watched); it has to be checked.
        """
        if not self._works or self._count >= self._most:
            return None
        try:
            if self._epoll is None:
                self._epoll = select.epoll()
            watch = os.pidfd_open(pid)
        except (OSError, OverflowError):  # the latter: no process can have such a number
            return None
        self._count += 1
        try:
            self._epoll.register(watch, select.EPOLLIN)
        except OSError:
            self.drop(watch)
            return None
        return watch

    def ended(self) -> frozenset[int]:
        """Return the watches whose process has ended, zombies included, until they are dropped."""
        if not self._count or self._epoll is None:
            return frozenset()
        return frozenset(watch for watch, _ in self._epoll.poll(0, self._count))

    def drop(self, watch: int | None) -> None:
        """Watch a process no longer."""
        if watch is not None:
            os.close(watch)  # which takes it out of the epoll set
            self._count -= 1
