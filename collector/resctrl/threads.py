"""A QEMU process's threads, and in which resctrl group each is."""

import errno
import os

from collector.files import KeptFile, KeptFiles, NoFdError
from collector.resctrl.tree import Place

# /proc counts a process's threads in the link count of its task folder, above the two of every folder.
_LINKS_OF_EMPTY = 2


class Threads:
    """The threads of one process, kept in step.

    A listing costs ten times a look at the link count, so it is done when that count changed, and when told so: a
    thread may end and another begin between two looks. (Such a one is already where the thread is that made it.) Raises
    OSError: ENOENT, ESRCH: the process has ended. EMFILE: no file descriptor is left.

    Args:
        pid: the process.
        proc_root: where /proc is.
        files: keeps the folder and a thread's file open; None: these two are kept.

    """

    def __init__(self, pid: int, proc_root: str = "/proc", files: KeptFiles | None = None) -> None:
        self._files = KeptFiles(2) if files is None else files
        self.folder = f"{proc_root}/{pid}/task"
        self.tids: frozenset[int] = frozenset()
        self._links = -1
        try:
            self._folder = self._files.open(self.folder, os.O_DIRECTORY)
        except NoFdError as error:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), self.folder) from error
        self._watched: tuple[int, KeptFile] | None = None  # thread id, its file
        self._text: bytes | None = None

    def refresh(self, *, force: bool = False) -> bool:
        """Look for new and ended threads; returns whether there are any."""
        fd = self._folder.fd
        links = os.stat(self.folder if fd is None else fd).st_nlink  # noqa: PTH116 - an open folder has no path
        if links == self._links and links > _LINKS_OF_EMPTY and not force:
            return False
        if fd is not None:
            os.lseek(fd, 0, os.SEEK_SET)
        names = os.listdir(self.folder if fd is None else fd)  # noqa: PTH208 - the same
        tids = frozenset(map(int, names))
        changed = tids != self.tids
        self._links, self.tids = links, tids
        if not tids:
            raise ProcessLookupError(errno.ESRCH, "the process has ended", self.folder)
        return changed

    def moved(self, tid: int) -> bool:
        """Say whether a thread's groups are others than at the last call, by the kernel's word."""
        try:
            if self._watched is None or self._watched[0] != tid:
                self._unwatch()
                self._watched = tid, self._files.open(f"{self.folder}/{tid}/cpu_resctrl_groups")
            text = self._watched[1].read()
        except (OSError, NoFdError):
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

    Raises OSError if the thread has ended, or this kernel does not tell.
    """
    fd = os.open(f"{folder}/cpu_resctrl_groups", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return parse_groups(os.read(fd, 4096))
    finally:
        os.close(fd)
