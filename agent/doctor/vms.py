"""Which data of this host's VMs can be read, in addition to doctor's check of each source.

Files are opened; QMP sockets are examined, not connected to. Findings give process ids and no names, so that support
bundles may have them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.config import Sources
from agent.doctor.findings import Check
from collector.base import Reason, SourceError, VmIdentity
from collector.cgroup.tree import CgroupTree
from collector.inventory.inventory import Inventory
from collector.procfs.storage import seen_by_kernel
from whitepanda.common.texts import counted

if TYPE_CHECKING:
    from collector.qemu.launch import Launch


_SHOWN = 5  # process ids in a finding
_NO_STORAGE = "neither /proc/PID/io nor io.stat of a control group of their own may be read"
_STORAGE_REMEDY = "turn the io controller on in their groups, or give the agent CAP_SYS_PTRACE"
# The shipped unit: root with one capability, without others' /tmp and /home.
_HIDDEN = ("/tmp/", "/var/tmp/", "/home/", "/root/", "/run/user/")  # noqa: S108 - nothing is written there


def examine_vms(sources: Sources, inventory: Inventory) -> Iterator[Check]:
    """Examine each VM of the inventory; nothing is reported where there are none."""
    for check in _examine(sources, inventory):
        yield replace(check, privacy="public")


def _examine(sources: Sources, inventory: Inventory) -> Iterator[Check]:
    try:
        vms = inventory.vms()
    except SourceError:
        return  # each source reports it
    stored = [vm for vm in vms if seen_by_kernel(vm)]
    if stored and sources.procfs.mode != "off":
        yield _storage(stored, sources.procfs.root)
    if sources.qemu.mode != "off":
        bare = _bare(vms, inventory)
        asked = [(vm, launch) for vm, launch in bare if not launch.command.libvirt]
        if asked:
            yield _sockets(asked)
        if bare:
            yield _threads(bare)


def _storage(vms: Sequence[VmIdentity], proc_root: str) -> Check:
    tree = CgroupTree(proc_root, "/")
    unread: list[int] = []
    by_process: list[int] = []
    for vm in vms:
        if _has_io_group(tree, vm.pid):
            continue
        (by_process if _is_readable(Path(proc_root, str(vm.pid), "io")) else unread).append(vm.pid)
    name = "VMs: storage"
    if unread:
        detail = f"of {_which(unread, len(vms))} {_NO_STORAGE}; {_STORAGE_REMEDY}"
        return Check(name, "missing", detail, reason=Reason.NO_PERMISSION)
    if by_process:
        detail = f"of {_which(by_process, len(vms))} by /proc/PID/io alone, which takes CAP_SYS_PTRACE"
        return Check(name, "info", f"{detail}: under the shipped unit no_permission; {_STORAGE_REMEDY}")
    return Check(name, "ok", f"io.stat of the control groups of {counted(len(vms), 'VM')}")


def _has_io_group(tree: CgroupTree, pid: int) -> bool:
    try:
        group = tree.find(pid).v2
    except (OSError, ValueError):
        return False
    return group is not None and _is_readable(Path(group, "io.stat"))


def _is_readable(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError:
        return False
    return True


def _bare(vms: Sequence[VmIdentity], inventory: Inventory) -> list[tuple[VmIdentity, Launch]]:
    """Return the VMs that libvirt does not run, and how they were started."""
    from collector.qemu.discovery import QemuFinder  # noqa: PLC0415 - a source that is off costs nothing

    launches = (
        (vm, finder.launch(vm.uuid, vm.epoch))
        for finder in inventory.finders
        if isinstance(finder, QemuFinder)
        for vm in vms
        if not vm.by_libvirt
    )
    return [(vm, launch) for vm, launch in launches if launch is not None]


def _sockets(vms: Sequence[tuple[VmIdentity, Launch]]) -> Check:
    name = "VMs: QMP"
    without = [vm.pid for vm, launch in vms if not launch.qmp]
    refused = [(vm.pid, _refusal(launch)) for vm, launch in vms if launch.qmp]
    closed = [(pid, why) for pid, why in refused if why is not None]
    if closed:
        # Only the first reason: all would be a long line.
        pids, error = [pid for pid, _ in closed], closed[0][1]
        return Check(name, "missing", f"the socket of {_which(pids, len(vms))}: {error}", reason=error.reason)
    if without:
        detail = f"{_which(without, len(vms))} without a socket for us, so without state and disk counters"
        remedy = "start QEMU with -qmp unix:/run/NAME.qmp,server=on,wait=off"
        return Check(name, "missing", f"{detail}; {remedy}", reason=Reason.NOT_VISIBLE)
    private = [vm.pid for vm, launch in vms if not any(map(_unit_may_use, launch.qmp))]
    if private:
        detail = f"we may use all sockets; the shipped unit not that of {_which(private, len(vms))}"
        return Check(name, "info", f"{detail}: it is not root's nor writable by all, or in /tmp or /home")
    return Check(name, "ok", f"the sockets of {counted(len(vms), 'VM')} are there and usable")


def _refusal(launch: Launch) -> SourceError | None:
    """Return why none of a VM's sockets may be connected to; None: one may."""
    from collector.qemu.qmp import QmpError, check_socket  # noqa: PLC0415 - as above

    first: SourceError | None = None
    for path in launch.qmp:
        try:
            check_socket(path, launch.uid)
        except QmpError as error:
            first = first or SourceError(str(error).removeprefix(f"{path}: "), error.reason)
        else:
            return None
    return first


def _unit_may_use(path: str) -> bool:
    if path.startswith("\0"):
        return True
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return not path.startswith(_HIDDEN) and (found.st_uid == 0 or bool(found.st_mode & 0o002))


def _threads(vms: Sequence[tuple[VmIdentity, Launch]]) -> Check:
    name = "VMs: vCPU threads"
    unnamed = [(vm.pid, launch) for vm, launch in vms if not vm.vcpu_tids]
    unknown = [pid for pid, launch in unnamed if not launch.qmp or _refusal(launch) is not None]
    if unknown:
        detail = f"{_which(unknown, len(vms))} identify them neither by name nor by QMP: no CPU time, no counters"
        remedy = "start QEMU with -name NAME,debug-threads=on or with a QMP socket"
        return Check(name, "missing", f"{detail}; {remedy}", reason=Reason.NOT_VISIBLE)
    if unnamed:
        return Check(name, "ok", f"{_which([pid for pid, _ in unnamed], len(vms))} are asked for them by QMP")
    return Check(name, "ok", f"the vCPU threads of {counted(len(vms), 'VM')} have names that identify them")


def _which(pids: Sequence[int], total: int) -> str:
    shown = ", ".join(map(str, pids[:_SHOWN])) + (", ..." if len(pids) > _SHOWN else "")
    return f"{len(pids)} of {counted(total, 'VM')} (process {shown})"
