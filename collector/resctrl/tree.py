"""The tree that the kernel shows at /sys/fs/resctrl: its groups, and the few changes that whitepanda makes there."""

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from collector.base import Reason, SourceError

#: The prefix of whitepanda's groups.
PREFIX = "whitepanda-"
#: Folders beside the control groups.
NO_CONTROL_GROUPS = frozenset({"info", "mon_groups", "mon_data"})

_DOMAIN = "mon_L3_"
#: Locked by the agent that has groups of `PREFIX`. Other programs lock the root only, as the kernel's rule says.
_OWNED = "info/L3_MON"
_OWN_TRIES, _OWN_PAUSE_S = 3, 0.02


class Place(NamedTuple):
    """A group: a control group ("" is the root), or a monitoring group `mon` of it."""

    ctrl: str
    mon: str = ""

    @property
    def own(self) -> bool:
        """Whether it is one of whitepanda's monitoring groups."""
        return self.mon.startswith(PREFIX)

    @property
    def name(self) -> str:
        """As people see it: "mon", "control", "control/mon"; the root is "/"."""
        return "/".join(part for part in self if part) or "/"


class Monitoring(NamedTuple):
    """What can be monitored: the events (`EVENTS` and others), and how many groups there can be, the root included."""

    features: frozenset[str]
    num_rmids: int


class Tree:
    """A resctrl mounted at `root`; /proc's list of file systems says whether the kernel has it."""

    def __init__(self, root: str = "/sys/fs/resctrl", proc_root: str = "/proc") -> None:
        self.root = Path(root)
        self._proc = Path(proc_root)
        self._fd: int | None = None
        self._owned: int | None = None

    def monitoring(self) -> Monitoring:
        """Read what can be monitored. Raises SourceError, with the remedy, where nothing can."""
        folder = self.root / "info" / "L3_MON"
        try:
            features = frozenset((folder / "mon_features").read_text().split())
            return Monitoring(features, int((folder / "num_rmids").read_text()))
        except PermissionError as error:
            message = f"{error.filename}: {error.strerror}; run the agent by its unit"
            raise SourceError(message, Reason.NO_PERMISSION) from error
        except OSError as error:
            raise SourceError(self._why_not(error), Reason.NO_RDT) from error
        except ValueError as error:
            raise SourceError(f"{folder / 'num_rmids'}: {error}; please report this", Reason.NO_RDT) from error

    def _why_not(self, error: OSError) -> str:
        if (self.root / "info").is_dir():
            return (
                f"{self.root}/info/L3_MON: {error.strerror}; this CPU cannot monitor cache or memory bandwidth, or "
                "the kernel was started with rdt=!cmt,!mbmtotal,!mbmlocal"
            )
        with contextlib.suppress(OSError):
            if "resctrl" in (self._proc / "filesystems").read_text().split():
                return f"{self.root}: resctrl is not mounted; mount -t resctrl resctrl {self.root}"
        return (
            f"{self.root}: this kernel has no resctrl (no Intel RDT, AMD QoS or Arm MPAM in the CPU, or the kernel "
            "is built without CONFIG_X86_CPU_RESCTRL); nothing to be done"
        )

    @property
    def read_only(self) -> bool:
        """Whether the mount, as this process sees it, is read-only."""
        with contextlib.suppress(OSError):
            return bool(os.statvfs(self.root).f_flag & os.ST_RDONLY)
        return False

    def open(self) -> None:
        """Open the root for locking, and become the owner of whitepanda's groups until `close`.

        Raises OSError, or SourceError if another process has whitepanda's groups here.
        """
        self.close()
        for _ in range(_OWN_TRIES):
            # `check_owner` of another one holds it for a moment only.
            with contextlib.suppress(SourceError):
                self._owned = self._own()
                break
            time.sleep(_OWN_PAUSE_S)
        else:
            self._owned = self._own()
        try:
            self._fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            self.close()
            raise

    def check_owner(self) -> None:
        """Raise what `open` would raise, unless this process has opened it."""
        if self._owned is None:
            os.close(self._own())

    def _own(self) -> int:
        fd = os.open(self.root / _OWNED, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno != errno.EAGAIN:
                raise
            what = "another whitepanda has its monitoring groups here, and only one may"
            raise SourceError(f"{self.root}: {what}; lslocks shows which holds {self.root / _OWNED}") from error
        return fd

    def close(self) -> None:
        """Close the root, and give up its ownership."""
        for fd in (self._fd, self._owned):
            if fd is not None:
                os.close(fd)
        self._fd = self._owned = None

    def is_current(self) -> bool:
        """Whether what was opened is still what is mounted there."""
        with contextlib.suppress(OSError):
            return self._fd is not None and os.path.samestat(self.root.stat(), os.fstat(self._fd))
        return False

    @contextlib.contextmanager
    def locked(self, *, exclusive: bool) -> Iterator[bool]:
        """Lock the tree as the kernel's documentation asks, without waiting. Yields whether that succeeded."""
        if self._fd is None:
            yield False
            return
        try:
            fcntl.flock(self._fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.EACCES, errno.EINTR}:
                raise
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def path(self, place: Place) -> str:
        """Return a group's folder."""
        folder = f"{self.root}/{place.ctrl}" if place.ctrl else str(self.root)
        return f"{folder}/mon_groups/{place.mon}" if place.mon else folder

    def places(self) -> list[Place]:
        """Return all groups, the root first."""
        found = [Place("")]
        with os.scandir(self.root) as entries:
            found += [Place(e.name) for e in entries if e.name not in NO_CONTROL_GROUPS and e.is_dir()]
        for ctrl in list(found):
            with contextlib.suppress(FileNotFoundError):  # it has just gone
                groups = Path(self.path(ctrl), "mon_groups").iterdir()
                found += [Place(ctrl.ctrl, path.name) for path in groups]
        return found

    def domains(self) -> tuple[str, ...]:
        """Return the names of the cache domains that the kernel shows now, less their prefix."""
        return domains_of(str(self.root))

    def tasks(self, place: Place) -> set[int]:
        """Return the thread ids in a group; a control group's include its monitoring groups'."""
        return {int(tid) for tid in Path(self.path(place), "tasks").read_bytes().split()}

    def all_tasks(self) -> dict[int, Place]:
        """Return where all threads outside the root are, for kernels before 5.7."""
        found: dict[int, Place] = {}
        # Monitoring groups come after the control groups, whose lists have their members too.
        for place in sorted(self.places()[1:], key=lambda place: bool(place.mon)):
            with contextlib.suppress(OSError):  # it has just gone, or is pseudo-locked
                found.update(dict.fromkeys(self.tasks(place), place))
        return found

    def make(self, place: Place) -> None:
        """Make a monitoring group. Raises OSError: ENOSPC or EBUSY where no monitoring id is free."""
        with self._writable(place):
            Path(self.path(place)).mkdir()

    def remove(self, place: Place) -> None:
        """Remove one of whitepanda's monitoring groups, if it is there; its threads go back to its control group.

        Raises ValueError if the group is another's.
        """
        if not place.own:
            raise ValueError(f"{place.name} is not whitepanda's")
        folder = Path(self.path(place))
        # A read-only mount is refused before the kernel looks if the folder exists.
        with self._writable(place), contextlib.suppress(FileNotFoundError):
            if folder.exists():
                folder.rmdir()

    @contextlib.contextmanager
    def _writable(self, place: Place) -> Iterator[None]:
        """Let a folder's owner change what is in it.

        The kernel makes these folders with mode 0555: root without CAP_DAC_OVERRIDE, as in a sandbox, needs the bit.
        """
        folder = Path(self.path(place)).parent
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(folder.stat().st_mode)
            if not mode & stat.S_IWUSR:
                folder.chmod(mode | stat.S_IWUSR)
        yield

    def move(self, place: Place, tids: Iterable[int]) -> set[int]:
        """Put threads into a monitoring group; returns those that are there now.

        A thread that has ended (ESRCH) or is in another control group (EINVAL) is left out. Raises OSError: EPERM
        unless this is euid 0 or the thread's owner.
        """
        moved = set()
        fd = os.open(f"{self.path(place)}/tasks", os.O_WRONLY | os.O_CLOEXEC)
        try:
            for tid in tids:
                try:
                    # One at a time: the kernel stops at the first that fails.
                    self._write(fd, b"%d\n" % tid)
                except OSError as error:
                    if error.errno not in {errno.ESRCH, errno.EINVAL}:
                        raise
                else:
                    moved.add(tid)
        finally:
            os.close(fd)
        return moved

    def _write(self, fd: int, text: bytes) -> None:
        os.write(fd, text)


def domains_of(group: str) -> tuple[str, ...]:
    """Return the L3 cache's domains in a group's mon_data."""
    names = [path.name for path in Path(group, "mon_data").iterdir()]
    return tuple(sorted(name.removeprefix(_DOMAIN) for name in names if name.startswith(_DOMAIN)))
