"""Which control groups are a VM's own: from /proc/PID/cgroup and the mounts, for v2, v1 and hosts with both.

libvirt divides a VM's group further (emulator, vcpu0, ...); the VM's is the one above them. Groups that libvirt,
systemd-machined and Proxmox name after a VM are that VM's by construction, including helpers such as swtpm. Any other
group is a VM's only if no other process is in it.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from collector.base import Reason
from collector.files import NO_FD, read_once

_SUBDIVISION = re.compile(r"(?:/libvirt)?(?:/(?:emulator|vcpu\d+|iothread\d+))?$")
# machine.slice/machine-qemu\x2d1\x2dNAME.scope, machine/qemu-1-NAME.libvirt-qemu, Proxmox' qemu.slice/100.scope
_VM_NAME = re.compile(r"(?:/machine-[^/]+\.scope|/[^/]+\.libvirt-qemu|/qemu\.slice/\d+\.scope)$")
_OCTAL = re.compile(r"\\([0-7]{3})")
_MIN_MOUNT_WORDS = 5
_MIN_TAIL_WORDS = 3
_FIRST_BYTES = 64
_MEMBERSHIP_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted hierarchy: where, which of its groups is mounted there, v1 controllers (none: it is v2)."""

    point: str
    base: str
    controllers: frozenset[str]


@dataclass(frozen=True, slots=True)
class VmGroups:
    """A VM's own groups as folders. None: that hierarchy is not there, or the group is not the VM's own (`reason`)."""

    v2: str | None = None
    cpu_v1: str | None = None
    memory_v1: str | None = None
    reason: Reason = Reason.NOT_PRESENT

    @property
    def any(self) -> bool:
        """Whether there is a group of the VM's own at all."""
        return not (self.v2 is None and self.cpu_v1 is None and self.memory_v1 is None)


class CgroupTree:
    """Finds the groups of processes. Only hierarchies mounted in `root` count."""

    def __init__(self, proc_root: str = "/proc", root: str = "/sys/fs/cgroup") -> None:
        self._proc_root = proc_root
        self._root = root.rstrip("/")
        self._mounts: tuple[Mount, ...] = ()

    def mounts(self) -> tuple[Mount, ...]:
        """Return the mounted hierarchies; empty without control groups. Raises OSError if mounts cannot be read."""
        found = parse_mounts(Path(self._proc_root, "self/mountinfo").read_bytes())
        self._mounts = tuple(m for m in found if f"{m.point}/".startswith(f"{self._root}/"))
        return self._mounts

    def membership(self, pid: int) -> bytes:
        """Return the text of /proc/PID/cgroup. Raises OSError if the process has ended."""
        return read_once(f"{self._proc_root}/{pid}/cgroup", _MEMBERSHIP_BYTES)

    def find(self, pid: int, membership: bytes | None = None) -> VmGroups:
        """Find the groups that are a VM's own, by its process id and, where it is known, what `membership` returned.

        Raises OSError if the process has ended or the mounts cannot be read, ValueError if the membership is malformed.
        """
        text = self.membership(pid) if membership is None else membership
        reason = Reason.NOT_PRESENT
        folders: dict[str, str] = {}
        paths = parse_cgroups(text)
        for mount in self._mounts or self.mounts():
            kinds = mount.controllers & {"cpu", "memory"} if mount.controllers else {""}
            path = next((paths[kind] for kind in sorted(kinds) if kind in paths), None)
            if path is None:
                continue
            group = _SUBDIVISION.sub("", path) or "/"
            folder = _folder(mount, group)
            if folder is None or not Path(folder).is_dir():
                continue
            if not _VM_NAME.search(group) and (group == "/" or not _only(folder, pid)):
                reason = Reason.SHARED
                continue
            folders |= dict.fromkeys(kinds, folder)
        return VmGroups(folders.get(""), folders.get("cpu"), folders.get("memory"), reason)


def parse_mounts(text: bytes) -> list[Mount]:
    """Return the control-group hierarchies of a mountinfo file (proc(5))."""
    mounts: dict[str, Mount] = {}
    for line in text.decode("utf-8", "surrogateescape").splitlines():
        head, separator, tail = line.partition(" - ")
        words, rest = head.split(" "), tail.split(" ")
        if not separator or len(words) < _MIN_MOUNT_WORDS or len(rest) < _MIN_TAIL_WORDS:
            continue
        base, point = (_OCTAL.sub(lambda match: chr(int(match[1], 8)), word) for word in words[3:5])
        if rest[0] == "cgroup2":
            mounts[point] = Mount(point, base, frozenset())
        elif rest[0] == "cgroup":
            mounts[point] = Mount(point, base, frozenset(rest[2].split(",")) - {"rw", "ro"})
    return list(mounts.values())


def parse_cgroups(text: bytes) -> dict[str, str]:
    """Return the group by controller from /proc/PID/cgroup; the controller of v2 is "". Raises ValueError."""
    rows = [line.split(":", 2) for line in text.decode("utf-8", "surrogateescape").splitlines()]
    return {controller: path for _number, controllers, path in rows for controller in controllers.split(",")}


def _folder(mount: Mount, group: str) -> str | None:
    """Return where a group is mounted; None: outside what is mounted (a container's view)."""
    base = mount.base.rstrip("/")
    if not f"{group}/".startswith(f"{base}/") or "/.." in group:
        return None
    return mount.point + group.removeprefix(base).rstrip("/")


def _only(folder: str, pid: int) -> bool:
    """Whether no other process is in a group and those below it."""
    own = b"%d" % pid
    for parent, _, files in os.walk(folder):
        if "cgroup.procs" not in files:
            continue
        try:
            # A second process shows at once: the list of a group that many share need not be read to its end.
            members = read_once(f"{parent}/cgroup.procs", _FIRST_BYTES).split()
        except OSError as error:
            if error.errno in NO_FD:
                raise
            continue  # it vanished, or is a threaded group, whose processes the one above lists
        if any(member != own for member in members):
            return False
    return True
