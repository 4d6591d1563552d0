"""Where a VM's control group is in the unified hierarchy (cgroup v2), and whether it is the VM's alone."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from collector.base import Reason, SourceError, VmIdentity

__all__ = ["CgroupFinder", "is_within", "vm_path"]

# What libvirt makes below a VM's group: QEMU's own threads, each vCPU's, each I/O thread's.
_LIBVIRT_PART = re.compile(r"emulator|vcpu\d+|iothread\d+")
_LIBVIRT_SCOPE = "machine-qemu"
_OCTAL = re.compile(r"\\([0-7]{3})")


def vm_path(path: str) -> tuple[str, bool]:
    """Return the group of a whole VM, given the one that its QEMU process is in, and whether libvirt made it.

    That is the highest folder which is the VM's by how it was made: libvirt's `SCOPE/libvirt/emulator` is in `SCOPE`. A
    folder above that holds only this VM at this moment would hold the next one too.
    """
    parts = [part for part in path.split("/") if part]
    libvirt = False
    if parts and _LIBVIRT_PART.fullmatch(parts[-1]):
        parts.pop()
        libvirt = True
    if parts and parts[-1] == "libvirt":
        parts.pop()
        libvirt = True
    return "/" + "/".join(parts), libvirt or bool(parts and parts[-1].startswith(_LIBVIRT_SCOPE))


class CgroupFinder:
    """Finds the folders of VMs. `proc_root` is injected; the hierarchy is where its mountinfo says."""

    def __init__(self, proc_root: str = "/proc") -> None:
        self._proc = Path(proc_root)

    def mount(self) -> tuple[Path, str]:
        """Return where the unified hierarchy is mounted, and which group of it lies there ("/": all).

        Raises:
            SourceError: it is not mounted.

        """
        try:
            lines = (self._proc / "self/mountinfo").read_text(errors="replace").splitlines()
        except OSError as error:
            raise SourceError(f"{self._proc}/self/mountinfo: {error.strerror}", Reason.NOT_PRESENT) from error
        for line in lines:
            fields, _, rest = line.partition(" - ")
            if rest.startswith("cgroup2 "):
                root, point = fields.split(" ")[3:5]
                return Path(_unescape(point)), _unescape(root)
        raise SourceError(
            "no cgroup2 is mounted; mount the unified hierarchy, or set sources.perf.scope = 'thread'",
            Reason.NOT_PRESENT,
        )

    def path_of(self, pid: int) -> str:
        """Return the path of a process's group in the unified hierarchy.

        Raises:
            SourceError: the process is gone, or in none.

        """
        path = self._proc / str(pid) / "cgroup"
        try:
            text = path.read_text(errors="replace")
        except OSError as error:
            raise SourceError(f"perf: {path}: {error.strerror}", Reason.NOT_PRESENT) from error
        for line in text.splitlines():
            if line.startswith("0::"):
                return line[3:]
        raise SourceError(f"perf: {path}: not in the unified hierarchy (no line 0::)", Reason.NOT_PRESENT)

    def folder_of(self, vm: VmIdentity, of_process: str, others: Mapping[str, str]) -> Path:
        """Return the folder of a VM's own group.

        Args:
            vm: the VM.
            of_process: the path of its process's group (`path_of`).
            others: the same of the other VMs of this host, by their names.

        Raises:
            SourceError: there is none, or (`SHARED`) others are in it too.

        """
        path, libvirt = vm_path(of_process)
        if path == "/":
            raise SourceError(f"perf: {vm.name} is in the root control group, like all others", Reason.SHARED)
        for name, other in others.items():
            if is_within(other, path):
                raise SourceError(f"perf: {vm.name} shares control group {path} with {name}", Reason.SHARED)
        point, root = self.mount()
        if root != "/" and not is_within(path, root):
            raise SourceError(f"perf: control group {path} is not below {point}", Reason.NOT_PRESENT)
        folder = point / path.removeprefix(root).lstrip("/")
        # What libvirt starts for a VM beside QEMU (swtpm, virtiofsd) is that VM's work. Elsewhere nothing says so.
        strangers = set() if libvirt else _processes(folder) - {vm.pid}
        if strangers:
            found = ", ".join(map(str, sorted(strangers)[:3]))
            message = f"perf: control group {path} of {vm.name} has other processes in it ({found})"
            raise SourceError(f"{message}; give the VM one of its own", Reason.SHARED)
        return folder


def is_within(path: str, group: str) -> bool:
    """Whether a group's path is another's or below it."""
    return path == group or path.startswith(group + "/")


def _processes(folder: Path) -> set[int]:
    """Return the processes of a group and those below it."""
    pids: set[int] = set()
    for where, _, files in os.walk(folder):
        if "cgroup.procs" in files:
            try:
                pids.update(map(int, (Path(where) / "cgroup.procs").read_text().split()))
            except OSError:  # a threaded group lists no processes; the group above it does
                continue
    return pids


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
