"""Bytes that the kernel moved between a VM's process and block devices: the host's view of its storage.

From /proc/PID/io where this process may read it (that takes CAP_SYS_PTRACE, even as root), else from the v2 control
group's io.stat. Reads are those that reached a device, without hits of the page cache. Writes are, in /proc/PID/io,
those past the page cache and pages made dirty in it; in io.stat, what was written back to devices.

The process may move to another group, and other processes may enter its group, so both are checked now and then. When
the group changes, one reading is left out so that no rate is made of two groups' bytes.
"""

from contextlib import suppress
from pathlib import Path

from collector.base import Reason, VmIdentity
from collector.cgroup.tree import CgroupTree
from collector.files import NO_FD, KeptFile, KeptFiles
from collector.proc_parse import parse_io_stat, parse_process_io

_KINDS = {"file", "block", ""}
_READ_BYTES = 64 * 1024
# In readings, usually one a second: how often to check which group the process is in, and that it is there alone.
_LOOK_EACH, _FIND_EACH = 10, 60


def seen_by_kernel(identity: VmIdentity) -> bool:
    """Whether the host's kernel sees the I/O of any of a VM's disks; if not, a count of zero would be wrong.

    It does not see the I/O of librbd, of vhost-user and of devices passed through.
    """
    if identity.disks:
        return any(disk.kind in _KINDS for disk in identity.disks)
    return not identity.vfio


class StorageBytes:
    """One VM's storage bytes, in one of its epochs.

    The first reading finds the file to read; without a file descriptor the next one tries again. `sys_block` is the
    kernel's folder of block devices by number.
    """

    def __init__(
        self, proc_root: str, files: KeptFiles, identity: VmIdentity, sys_block: str = "/sys/dev/block"
    ) -> None:
        self._proc_root = proc_root
        self._sys_block = sys_block
        self._files = files
        self._of_group = False
        self._reason = Reason.UNSPECIFIED
        self._text = b""
        self._bytes = (0, 0)
        self._below: dict[str, frozenset[str]] = {}
        self._seen: tuple[VmIdentity, bool] | None = None
        self._tree = CgroupTree(proc_root, "/")
        self._membership = b""
        self._readings = identity.pid % _FIND_EACH  # not all VMs are looked for at the same reading
        self._again = False  # at the next reading
        self._file = self._find(identity.pid)

    @property
    def moves_alone(self) -> bool:
        """Whether the bytes may change while the process does not run: a group's are written back later."""
        return self._of_group

    def read(self, identity: VmIdentity) -> tuple[int | None, int | None, Reason]:
        """Return the bytes read and written, cumulative; None and why where they are unknown. Raises ValueError."""
        if self._seen is None or self._seen[0] is not identity:
            self._seen = identity, seen_by_kernel(identity)
        if not self._seen[1]:
            return None, None, Reason.NOT_VISIBLE
        if (self._of_group or self._file is None) and self._follow(identity.pid):
            return None, None, Reason.VM_STARTING
        if self._file is None:
            return None, None, self._reason
        try:
            text = self._file.read(_READ_BYTES)
        except OSError as error:
            if error.errno in NO_FD:
                return None, None, Reason.FD_LIMIT
            # The process or its group has ended: the last text is no longer true.
            if self._of_group:
                self.close()
                self._of_group, self._reason, self._again = False, Reason.NOT_PRESENT, True
            return None, None, Reason.NOT_PRESENT
        if text != self._text:
            self._bytes = self._sum(parse_io_stat(text)) if self._of_group else parse_process_io(text)
            self._text = text
        return *self._bytes, Reason.UNSPECIFIED

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._files.close(self._file)
        self._file = None

    def _follow(self, pid: int) -> bool:
        """Find the group again if that is due; True: the bytes from now on are another group's."""
        self._readings += 1
        if not self._again and self._readings % _FIND_EACH:
            if self._readings % _LOOK_EACH:
                return False
            try:
                if self._tree.membership(pid) == self._membership:
                    return False
            except OSError:
                return False  # it has ended, or there is no descriptor now
        former, found = self._file, self._find(pid)
        if former is not None and found is not None and former.path == found.path:
            # The former is the group's own; the found one may be of a new group of that name.
            self._files.close(found)
            return False
        if former is not None and self._again:  # no descriptor is left to look with: what is open stays
            self._of_group = True
            return False
        self.close()
        self._file = found
        return former is not None and found is not None

    def _find(self, pid: int) -> KeptFile | None:
        """Open the file to read from now on; None: there is none, and `_reason` says why."""
        self._again = self._of_group = False
        file = None
        try:
            file = self._files.open(f"{self._proc_root}/{pid}/io")
            file.read()  # a process of the agent's own user may be opened but not read
        except PermissionError:
            self._reason = Reason.NO_PERMISSION
        except OSError as error:  # NOT_PRESENT: a kernel without CONFIG_TASK_IO_ACCOUNTING
            self._reason = Reason.FD_LIMIT if error.errno in NO_FD else Reason.NOT_PRESENT
        else:
            return file
        self._files.close(file)
        try:
            self._membership = self._tree.membership(pid)
            group = self._tree.find(pid, self._membership)
            if group.v2 is not None:
                file = self._files.open(f"{group.v2}/io.stat")
                self._of_group = True
                return file
        except (OSError, ValueError) as error:
            # Otherwise there is no io controller: the reason stands.
            if getattr(error, "errno", 0) in NO_FD:
                self._reason = Reason.FD_LIMIT
        self._again = self._reason is Reason.FD_LIMIT
        return None

    def _sum(self, devices: dict[str, tuple[int, int]]) -> tuple[int, int]:
        """Sum over devices, without those below a device-mapper or RAID device: its bytes are theirs too."""
        below: set[str] = set()
        for device in devices:
            if device not in self._below:
                self._below[device] = devices_below(device, self._sys_block)
            below |= self._below[device]
        counted = [amounts for device, amounts in devices.items() if device not in below]
        return sum(read for read, _ in counted), sum(written for _, written in counted)


def devices_below(device: str, sys_block: str) -> frozenset[str]:
    """Return the devices ("8:0") below a stacked device at any depth; the whole disk for a partition."""
    found: set[str] = set()
    try:
        slaves = list(Path(sys_block, device, "slaves").iterdir())
    except OSError:
        return frozenset()
    for slave in slaves:
        with suppress(OSError):
            folder = slave.resolve()
            disk = folder.parent if (folder / "partition").exists() else folder  # a partition is counted as its disk
            below = (disk / "dev").read_text().strip()
            found |= {below} | devices_below(below, sys_block)
    return frozenset(found)
