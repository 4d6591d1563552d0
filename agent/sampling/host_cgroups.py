"""What runs on the host beside the VMs and may hurt them: storage daemons, backups, poll-mode drivers.

Each control group below the root of the v2 hierarchy, and each unit in system.slice, is a task `host:NAME` with its CPU
usage and no CPI, never latency-sensitive. Groups of VMs are left out. The job is the name without the instance, so that
its coefficient is learnt over the fleet: ceph-osd@3.service is of job `host:ceph-osd.service`. Read once per window.
"""

import os
import re
from collections.abc import Iterable, Sequence

from agent.sampling.windows import CpiWindow
from collector.base import Reason
from collector.cgroup.tree import CgroupTree, parse_cgroups
from collector.files import read_once
from collector.proc_parse import parse_flat

#: Groups of VMs: systemd-machined's, libvirt's without systemd, Proxmox'.
_OF_VMS = frozenset({"machine.slice", "machine", "qemu.slice", "libvirt"})
_SPLIT = "system.slice"  # of which each unit counts by itself
_UNIT = (".service", ".scope", ".slice")
_MIN_CORES = 0.01
_INSTANCE = re.compile(r"@[^.]*|(?<=[a-zA-Z])[-_]?\d+(?=\.[a-z]+$|$)|-[0-9a-f]{8,}(?=\.|$)")
_NAME = re.compile(r"[ -~]{1,200}")


def job_of_group(name: str) -> str:
    """Return the job of a group by its folder's name: `host:` and the name without the instance."""
    return f"host:{_INSTANCE.sub('', name)}"


class HostSuspects:
    """Finds the groups that use most CPU, window by window. Not safe for several threads.

    `root`: where the v2 hierarchy is mounted; a host without it has no such suspects. `max_suspects`: at most so many
    per window, those that use most; at least 1. `proc_root`: where /proc is.
    """

    def __init__(self, root: str, max_suspects: int, proc_root: str = "/proc") -> None:
        self._root = root
        self._max = max_suspects
        self._tree = CgroupTree(proc_root, root)
        self._last: dict[str, tuple[int, int]] = {}  # by path: inode, CPU time
        self._last_mono_ns = 0
        self.jobs: frozenset[str] = frozenset()  # of the last windows

    def windows(self, mono_ns: int, vms: Sequence[CpiWindow], pids: Iterable[int] = ()) -> list[CpiWindow]:
        """Return the groups' usage since the last call as windows like the last of `vms`, those that have just ended.

        `pids`: the processes of all VMs of the host.
        """
        if not vms:
            return []
        elapsed_ns, last = mono_ns - self._last_mono_ns, self._last
        self._last_mono_ns, self._last = mono_ns, self._read()
        like = max(vms, key=lambda window: window.start_unix_ns)
        found = []
        of_vms = self._of_vms(pids)
        for path, (inode, usage_ns) in self._last.items():
            before = last.get(path)
            if before is None or before[0] != inode or usage_ns < before[1] or elapsed_ns <= 0 or path in of_vms:
                continue
            cores = (usage_ns - before[1]) / elapsed_ns
            if cores >= _MIN_CORES:
                found.append((cores, path, str(inode)))
        found.sort(key=lambda one: (-one[0], one[1]))
        windows = [_window(path, epoch, cores, like) for cores, path, epoch in found[: self._max]]
        self.jobs = frozenset(window.job for window in windows)
        return windows

    def _of_vms(self, pids: Iterable[int]) -> set[str]:
        """Return all groups, as `_read` names them, that a process of a VM is in or below."""
        found: set[str] = set()
        for pid in pids:
            try:
                group = parse_cgroups(self._tree.membership(pid)).get("", "")
            except (OSError, ValueError):  # it has ended
                continue
            names = group.strip("/").split("/")
            found.update("/".join(names[: depth + 1]) for depth in range(min(2, len(names))))
        return found

    def _read(self) -> dict[str, tuple[int, int]]:
        """Read all groups' CPU time in nanoseconds. One that is gone meanwhile is left out."""
        read = {}
        for path in [*self._groups(""), *self._groups(_SPLIT)]:
            folder = f"{self._root}/{path}"
            try:
                usage_us = parse_flat(read_once(f"{folder}/cpu.stat")).get(b"usage_usec")
                inode = os.stat(folder).st_ino  # noqa: PTH116 - no object for each
            except (OSError, ValueError):
                continue
            if usage_us is not None:
                read[path] = (inode, usage_us * 1000)
        return read

    def _groups(self, parent: str) -> list[str]:
        try:
            names = os.listdir(f"{self._root}/{parent}")  # noqa: PTH208 - as above
        except OSError:
            return []
        prefix = f"{parent}/" if parent else ""
        return [
            prefix + name
            for name in names
            if name.endswith(_UNIT) and _NAME.fullmatch(name) and name not in _OF_VMS and name != _SPLIT
        ]


def _window(path: str, epoch: str, cores: float, like: CpiWindow) -> CpiWindow:
    name = path.rsplit("/", 1)[-1]
    labels = f"host:{name}", epoch, name, job_of_group(name), False
    return CpiWindow(*labels, like.start_unix_ns, like.duration_ns, cores, cpi_reason=Reason.NOT_VISIBLE)
