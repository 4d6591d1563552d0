"""A QEMU process's threads, and in which resctrl group each is."""

import errno
import os

from collector.files import KeptFile, KeptFiles, read_once
from collector.resctrl.tree import Place

# /proc counts a process's threads in the link count of its task folder, above the two of every folder.
_LINKS_OF_EMPTY = 2


class Threads:
    """The threads of one process, kept in step. Raises OSError once it has ended (ENOENT, ESRCH), or EMFILE.

    Listing costs ten times as much as reading the link count, so it is done when that count changed or on demand: a
    thread may end and another begin between two readings. `files` keeps the folder and one thread's file open.
    """

    def __init__(self, pid: int, proc_root: str = "/proc", files: KeptFiles | None = None) -> None:
        self._files = KeptFiles(2) if files is None else files
        self.folder = f"{proc_root}/{pid}/task"
        self.tids: frozenset[int] = frozenset()
        self._links = -1
        self._folder = self._files.open(self.folder, os.O_DIRECTORY)
        self._watched: tuple[int, KeptFile] | None = None  # thread id, its file
        self._text: bytes | None = None

    def refresh(self, *, force: bool = False) -> bool:
        """Find new and ended threads; returns whether there are any."""
        fd = self._folder.fd
        links = os.stat(self.folder if fd is None else fd).st_nlink  # noqa: PTH116 - an open folder has no path
        if links == self._links and links > _LINKS_OF_EMPTY and not force:
            return False
        if fd is not None:
            os.lseek(fd, 0, os.SEEK_SET)
        tids = frozenset(map(int, os.listdir(self.folder if fd is None else fd)))  # noqa: PTH208 - the same
        changed = tids != self.tids
        self._links, self.tids = links, tids
        if not tids:
            raise ProcessLookupError(errno.ESRCH, "the process has ended", self.folder)
        return changed

    def moved(self, tid: int) -> bool:
        """Whether the kernel shows a thread in other groups than at the last call."""
        try:
            if self._watched is None or self._watched[0] != tid:
                self._unwatch()
                self._watched = tid, self._files.open(f"{self.folder}/{tid}/cpu_resctrl_groups")
            text = self._watched[1].read()
        except OSError:
            self._unwatch()
            return True
        changed = text != self._text
        self._text = text
        return changed

    def _unwatch(self) -> None:
        if self._watched is not None:
            self._files.close(self._watched[1])
        self._watched = self._text = None

    def close(self) -> None:
        """Close its files."""
        self._unwatch()
        self._files.close(self._folder)


def parse_groups(text: bytes) -> Place | None:
    """Parse /proc/PID/cpu_resctrl_groups ("res:" and "mon:" lines). None: resctrl is not mounted."""
    found = dict(line.split(":", 1) for line in os.fsdecode(text).splitlines() if ":" in line)
    ctrl = found.get("res", "")
    return Place(ctrl.strip("/"), found.get("mon", "")) if ctrl else None


def read_groups(folder: str) -> Place | None:
    """Read in which groups the thread of a /proc folder is. None: resctrl is not mounted.

    Raises OSError if the thread has ended, or this kernel has no such file.
    """
    return parse_groups(read_once(f"{folder}/cpu_resctrl_groups"))
