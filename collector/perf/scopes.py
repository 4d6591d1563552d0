"""Scopes of counters: a VM's vCPU threads, or its control group on each CPU. A VM has a target per key."""

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from collector.base import Reason, SourceError, VmIdentity
from collector.cgroup.tree import CgroupTree
from collector.files import NO_FD
from collector.perf.binding import FLAG_PID_CGROUP, PerfError, reason_for
from collector.perf.slices import Slices
from collector.proc_parse import parse_cpu_list

#: Opens the plan's groups on (pid, cpu, flags).
Opener = Callable[[int, int, int], Slices]


class ThreadScope:
    """A group per vCPU thread, on whatever CPU it runs."""

    name: Literal["thread", "cgroup"] = "thread"
    guards = 1  # file descriptors per target beside the events'

    def __init__(self, proc_root: str = "/proc") -> None:
        self._proc = Path(proc_root)

    def begin(self) -> None:
        """Do nothing: the host does not matter."""

    def keys(self, vm: VmIdentity) -> Sequence[int]:
        """Return the vCPU threads; the same object while nothing changes."""
        return vm.vcpu_tids

    def open(self, vm: VmIdentity, key: int, opener: Opener) -> Slices | None:
        """Open a thread's groups; None: the thread has ended. Raises SourceError.

        A /proc file below the VM's own process is opened before the group and read after it. It is bound to the thread,
        so the id meant that thread throughout.
        """
        if key <= 0:  # the kernel would take 0 for the agent itself and -1 for every thread
            raise SourceError(f"perf: not a thread id (value {key})", Reason.INVALID_VALUE)
        path = self._proc / str(vm.pid) / "task" / str(key) / "comm"
        try:
            guard_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError as error:
            raise SourceError(f"perf: {path}: {error.strerror}", reason_for(error.errno or 0)) from error
        try:
            target = opener(key, -1, 0)
        except PerfError as error:
            os.close(guard_fd)
            if error.reason is Reason.NOT_PRESENT:
                return None
            raise
        target.guard_fd = guard_fd
        if self.ended(target):
            target.close()
            return None
        return target

    def ended(self, target: Slices) -> bool:
        """Whether the thread has ended. One small read, for every idle thread in every sample."""
        try:
            return not os.pread(target.guard_fd, 1, 0)
        except OSError as error:
            return error.errno in (errno.ESRCH, errno.ENOENT)

    def moved(self, vm: VmIdentity) -> bool:
        """Never: a thread stays itself."""
        del vm
        return False

    def forget(self, uuid: str) -> None:
        """Nothing is kept."""


class CgroupScope:
    """A group per VM's control group (v2) and online CPU: QEMU's other threads count too."""

    name: Literal["thread", "cgroup"] = "cgroup"
    guards = 0

    def __init__(self, proc_root: str = "/proc", sys_root: str = "/sys") -> None:
        self._tree = CgroupTree(proc_root, "/")
        self._online = Path(sys_root) / "devices/system/cpu/online"
        self._folders: dict[str, tuple[int, str]] = {}  # file descriptor and path by UUID
        self._cpus: tuple[int, ...] = ()

    def check(self) -> None:
        """Raise a SourceError where this host has no unified hierarchy."""
        try:
            mounted = any(not mount.controllers for mount in self._tree.mounts())
        except OSError as error:
            raise SourceError(f"{error.filename}: {error.strerror}", Reason.NOT_PRESENT) from error
        if not mounted:
            message = "no cgroup2 is mounted; mount the unified hierarchy, or set sources.perf.scope = 'thread'"
            raise SourceError(message, Reason.NOT_PRESENT)

    def begin(self) -> None:
        """Read which CPUs are online: only there can events be opened. Raises SourceError."""
        try:
            cpus = tuple(parse_cpu_list(self._online.read_text()))
        except (OSError, ValueError) as error:
            raise SourceError(f"perf: {self._online}: {error}") from error
        if cpus != self._cpus:
            self._cpus = cpus

    def keys(self, vm: VmIdentity) -> Sequence[int]:
        """Return the CPUs that are online; the same object while nothing changes."""
        del vm
        return self._cpus

    def open(self, vm: VmIdentity, key: int, opener: Opener) -> Slices | None:
        """Open the groups of a VM's control group on one CPU. Raises SourceError."""
        folder = self._folders.get(vm.uuid)
        if folder is None:
            path = self._path_of(vm)
            try:
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                raise SourceError(f"perf: {path}: {error.strerror}", reason_for(error.errno or 0)) from error
            folder = self._folders[vm.uuid] = fd, path
        return opener(folder[0], key, FLAG_PID_CGROUP)

    def ended(self, target: Slices) -> bool:
        """Never: a group that does not run on this CPU now may do so later."""
        del target
        return False

    def moved(self, vm: VmIdentity) -> bool:
        """Whether the VM is in another control group than when it was opened. Raises SourceError if others are too."""
        folder = self._folders.get(vm.uuid)
        return folder is not None and self._path_of(vm) != folder[1]

    def forget(self, uuid: str) -> None:
        """Close the folder."""
        folder = self._folders.pop(uuid, None)
        if folder is not None:
            with contextlib.suppress(OSError):
                os.close(folder[0])

    def _path_of(self, vm: VmIdentity) -> str:
        try:
            found = self._tree.find(vm.pid)
        except OSError as error:
            reason = Reason.FD_LIMIT if error.errno in NO_FD else Reason.NOT_PRESENT
            raise SourceError(f"perf: {error.filename}: {error.strerror}", reason) from error
        except ValueError as error:
            raise SourceError(f"perf: control group of process {vm.pid}: {error}") from error
        if found.v2 is None:
            raise SourceError(f"perf: {vm.name} has no control group (v2) of its own", found.reason)
        return found.v2


#: One way to bind counters to VMs.
Scope = ThreadScope | CgroupScope
