"""Pressure, throttling, CPU quota and memory of each VM's control group, and its NUMA placement.

Pressures, throttled time and memory are read each time from files that are kept open. The VM's group, its quota and its
placement change seldom and are expensive to find: every `numa_poll_s`, an eighth of the VMs at a time.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns
from typing import NamedTuple

from collector.base import (
    CgroupCounters,
    NumaPlacement,
    Probe,
    Reason,
    SourceError,
    SourceSample,
    Stamp,
    VmIdentity,
    VmSample,
    vm_sample,
)
from collector.cgroup.tree import CgroupTree, VmGroups
from collector.files import GONE, NO_FD, KeptFile, KeptFiles, fd_share, read_once, reason_of
from collector.inventory.inventory import Inventory
from collector.inventory.numa import Numa
from collector.proc_parse import Pressure, parse_flat, parse_pressure
from collector.timestamps import clocks_now, read_in_turn

_NS_PER_US = 1000
_POLLED_AT_ONCE = 8
_FIND_AGAIN_NS = 60_000_000_000  # how often a group is checked for other processes, and at each move of the VM's
_NEVER = Stamp(0, 0)
_VCPU = re.compile(r"vcpu\d+")
_NO_PRESSURE = Pressure()


class Quota(NamedTuple):
    """A CPU quota in cores, and the groups that have it. None: no limit, or the controller is off."""

    cores: float | None = None
    groups: tuple[str, ...] = ()


@dataclass(slots=True)
class _PressureFile:
    """A file of pressures with its last content; None: this kernel or hierarchy does not have it."""

    file: KeptFile | None = None
    text: bytes = b""
    pressure: Pressure = _NO_PRESSURE

    def read(self) -> Pressure:
        if self.file is None:
            return _NO_PRESSURE
        try:
            text = self.file.read()
        except OSError as error:
            if error.errno in GONE | NO_FD:
                raise
            return _NO_PRESSURE  # EOPNOTSUPP: the kernel was started with psi=0
        if text != self.text:
            self.pressure = parse_pressure(text)
            self.text = text
        return self.pressure


@dataclass(slots=True)
class _Group:
    """A VM's control group with its open files, as far as this kernel or hierarchy has them.

    `throttled` are the files of groups with a quota: without one the time does not grow (`unthrottled_ns`). `made` are
    the counters that were read last, and what they were made of.
    """

    groups: VmGroups
    opened: int
    quota: Quota
    unthrottled_ns: int | None = None
    cpu: _PressureFile = field(default_factory=_PressureFile)
    memory: _PressureFile = field(default_factory=_PressureFile)
    io: _PressureFile = field(default_factory=_PressureFile)
    charged: KeptFile | None = None
    throttled: list[KeptFile] = field(default_factory=list)
    made: tuple[tuple[object, ...], CgroupCounters] | None = None

    def files(self) -> Iterator[KeptFile | None]:
        yield from (self.cpu.file, self.memory.file, self.io.file, self.charged, *self.throttled)


@dataclass(slots=True)
class _Vm:
    """A VM in one epoch: `poll_ns` is when what changes seldom is next due, `sample` the last one, made of `parts`."""

    epoch: str
    group: _Group | Reason = Reason.VM_STARTING
    membership: bytes = b""
    found_ns: int = 0
    vcpu_groups: tuple[tuple[object, ...], tuple[str, ...]] | None = None
    numa: NumaPlacement | Reason = Reason.VM_STARTING
    numa_stamp: Stamp = _NEVER
    poll_ns: int = 0
    parts: tuple[object, ...] = ()
    sample: VmSample | None = None


class CgroupSource:
    """The cgroup source (`collector.base.Source`). Not safe for use by several threads at once.

    Reads the hierarchies mounted in `root` (v2, v1 or both). `max_fds` bounds the files kept open (up to five per VM,
    and one more per vCPU with a quota); None: this source's `fd_share`.
    """

    name = "cgroup"

    def __init__(
        self,
        inventory: Inventory,
        *,
        root: str = "/sys/fs/cgroup",
        numa_poll_s: float = 10.0,
        sys_root: str = "/sys",
        max_fds: int | None = None,
    ) -> None:
        self._inventory = inventory
        self._root = root
        self._sys_root = sys_root
        self._poll_ns = int(numa_poll_s * 1e9)
        self._tree = CgroupTree(inventory.proc_root, root)
        self._files = KeptFiles(fd_share("cgroup") if max_fds is None else max_fds)
        self._numa: Numa | None = None
        self._opened = 0
        self._vms: dict[str, _Vm] = {}
        self._listed: tuple[VmIdentity, ...] = ()

    def probe(self) -> Probe:
        """Say which hierarchies there are, and whether the kernel keeps pressures."""
        try:
            mounts = self._tree.mounts()
        except OSError as error:
            return self._unreadable(error).as_probe()
        v2 = [mount for mount in mounts if not mount.controllers]
        v1 = any(mount.controllers & {"cpu", "memory"} for mount in mounts)
        if not v2 and not v1:
            detail = f"{self._root}: no control groups are mounted there; sources.cgroup.root must be where they are"
            return Probe(available=False, detail=detail, reason=Reason.NOT_PRESENT)
        kinds = " and ".join(["v2"] * bool(v2) + ["v1"] * v1)
        psi = v2 and Path(self._inventory.proc_root, "pressure/cpu").exists()
        off, no_v2 = "the kernel keeps none, add psi=1 to its command line", "they are in v2 only, which is not mounted"
        hint = "" if psi else f"; no pressures: {off if v2 else no_v2}"
        return Probe(available=True, detail=f"control groups {kinds} in {self._root}{hint}")

    def open(self) -> None:
        """Read the mounts and the host's NUMA nodes; groups are opened as VMs are sampled. Raises SourceError."""
        try:
            self._tree.mounts()
        except OSError as error:
            raise self._unreadable(error) from error
        self._numa = Numa(self._inventory.proc_root, self._sys_root)

    def _unreadable(self, error: OSError) -> SourceError:
        return SourceError(f"{self._inventory.proc_root}/self/mountinfo: {error.strerror}")

    def sample(self) -> SourceSample:
        """Read all VMs' groups. Raises SourceError if the VMs cannot be listed."""
        inventory = self._inventory.vms()
        stamp = clocks_now()
        if inventory is not self._listed:
            self._forget({vm.uuid: vm.epoch for vm in inventory})
            self._listed = inventory
        for identity in self._due(inventory, stamp.mono_ns):
            self._poll(self._vms[identity.uuid], identity, stamp)
        begun = clocks_now()  # only now: listing and polling take time
        vms = read_in_turn(inventory, self._read_vm, begun, monotonic_ns)
        return SourceSample(self.name, begun.mono_ns, begun.unix_ns, vms)

    def close(self) -> None:
        """Close all files."""
        for vm in self._vms.values():
            self._close_group(vm)
        self._vms.clear()
        self._listed = ()

    def _forget(self, present: dict[str, str]) -> None:
        for uuid, vm in list(self._vms.items()):
            if present.get(uuid) != vm.epoch:
                self._close_group(vm)
                del self._vms[uuid]

    def _close_group(self, vm: _Vm, reason: Reason = Reason.VM_STARTING) -> None:
        if isinstance(vm.group, _Group):
            self._files.close(*vm.group.files())
        vm.group = reason

    def _due(self, inventory: tuple[VmIdentity, ...], now_ns: int) -> list[VmIdentity]:
        """Return the VMs to poll now: those longest due, few at a time."""
        due = []
        for identity in inventory:
            vm = self._vms.get(identity.uuid)
            if vm is None:
                vm = self._vms[identity.uuid] = _Vm(identity.epoch)
            if vm.poll_ns <= now_ns:
                due.append((vm.poll_ns, identity))
        due.sort(key=lambda pair: pair[0])
        return [identity for _, identity in due[: max(_POLLED_AT_ONCE, len(inventory) // _POLLED_AT_ONCE)]]

    def _poll(self, vm: _Vm, identity: VmIdentity, stamp: Stamp) -> None:
        """Find what changes seldom: the VM's groups, quota and placement."""
        vm.poll_ns = stamp.mono_ns + self._poll_ns
        try:
            self._find_group(vm, identity, stamp.mono_ns)
        except (OSError, ValueError) as error:
            self._close_group(vm, reason_of(error))
            vm.membership = b""
        if self._numa is None:
            self._numa = Numa(self._inventory.proc_root, self._sys_root)
        own = vm.group.groups if isinstance(vm.group, _Group) else VmGroups()
        vm.numa = self._numa.place(identity.pid, identity.vcpu_tids, own.v2, own.memory_v1)
        vm.numa_stamp = stamp

    def _find_group(self, vm: _Vm, identity: VmIdentity, now_ns: int) -> None:
        known = vm.group.groups if isinstance(vm.group, _Group) else None
        membership = self._tree.membership(identity.pid)
        if membership == vm.membership and now_ns - vm.found_ns < _FIND_AGAIN_NS:
            if known is None:
                return  # the same reason holds
            groups = known
        else:
            groups = self._tree.find(identity.pid, membership)
            vm.membership, vm.found_ns = membership, now_ns
        if not groups.any:
            self._close_group(vm, groups.reason)
            return
        cpu = groups.cpu_v1 or groups.v2
        quota = Quota()
        if cpu is not None:
            quota = quota_of(cpu, self._vcpu_groups(vm, cpu), is_v1=groups.cpu_v1 is not None)
        if isinstance(vm.group, _Group) and groups == known and vm.group.quota.groups == quota.groups:
            vm.group.quota = quota
            return
        self._close_group(vm)
        vm.group = self._open_group(groups, quota, cpu)

    def _vcpu_groups(self, vm: _Vm, folder: str) -> tuple[str, ...]:
        """Return libvirt's groups per vCPU; listed again when groups were made or removed, and with the group."""
        key = (folder, vm.found_ns, _links(folder), _links(f"{folder}/libvirt"))
        # One made and another removed leave as many links as there were.
        if vm.vcpu_groups is None or vm.vcpu_groups[0] != key or -1 in map(_links, vm.vcpu_groups[1]):
            vm.vcpu_groups = key, vcpu_groups_of(folder)
        return vm.vcpu_groups[1]

    def _open_group(self, groups: VmGroups, quota: Quota, cpu: str | None) -> _Group:
        self._opened += 1
        group = _Group(groups, self._opened, quota)
        try:
            if cpu is not None and not quota.groups:
                group.unthrottled_ns = _throttled_once_ns(cpu)
            if groups.v2 is not None:
                group.cpu.file = self._try_open(f"{groups.v2}/cpu.pressure")
                group.memory.file = self._try_open(f"{groups.v2}/memory.pressure")
                group.io.file = self._try_open(f"{groups.v2}/io.pressure")
            if groups.memory_v1 is not None:
                group.charged = self._try_open(f"{groups.memory_v1}/memory.usage_in_bytes")
            elif groups.v2 is not None:
                group.charged = self._try_open(f"{groups.v2}/memory.current")
            for folder in quota.groups:
                group.throttled += filter(None, [self._try_open(f"{folder}/cpu.stat")])
        except BaseException:
            self._files.close(*group.files())
            raise
        return group

    def _try_open(self, path: str) -> KeptFile | None:
        """Open a file, or return None where this kernel or hierarchy does not have it."""
        try:
            return self._files.open(path)
        except OSError as error:
            if error.errno in NO_FD:
                raise
            return None

    def _read_vm(self, identity: VmIdentity) -> VmSample:
        """Make a VM's sample, or give the last one again where all that it is made of is the same."""
        vm = self._vms[identity.uuid]
        cgroup = self._counters_or_reason(vm)
        parts = (cgroup, vm.numa, vm.numa_stamp)
        if vm.sample is not None and parts == vm.parts:
            return vm.sample
        vm.parts = parts
        stamps = {} if isinstance(vm.numa, Reason) else {"numa": vm.numa_stamp}
        vm.sample = vm_sample(identity.epoch, stamps, cgroup=cgroup, numa=vm.numa)
        return vm.sample

    def _counters_or_reason(self, vm: _Vm) -> CgroupCounters | Reason:
        group = vm.group
        if isinstance(group, Reason):
            return group
        try:
            cpu, memory, io = group.cpu.read(), group.memory.read(), group.io.read()
            throttled_ns = _throttled_ns(group.throttled) if group.throttled else group.unthrottled_ns
            charged = None if group.charged is None else group.charged.read()
            parts = (cpu, memory, io, throttled_ns, charged, group.quota)
            if group.made is not None and group.made[0] == parts:
                return group.made[1]
            counters = CgroupCounters(
                opened=group.opened,
                cpu_some_ns=cpu.some_ns,
                memory_some_ns=memory.some_ns,
                memory_full_ns=memory.full_ns,
                io_some_ns=io.some_ns,
                io_full_ns=io.full_ns,
                throttled_ns=throttled_ns,
                quota_cores=group.quota.cores,
                memory_bytes=None if charged is None else int(charged),
            )
        except (OSError, ValueError) as error:
            # The group was removed: the VM ended, or is in another one now, which the next sampling looks for.
            self._close_group(vm, reason_of(error))
            vm.poll_ns, vm.membership = 0, b""
            return reason_of(error)
        group.made = parts, counters
        return counters


def quota_of(folder: str, vcpu_groups: Sequence[str], *, is_v1: bool) -> Quota:
    """Return the CPU quota of a VM with this group of its own and these `vcpu_groups_of` it. Raises ValueError.

    It is the lesser of the group's own quota and the sum of its vCPUs', if each of them has one (libvirt's vcpu_quota).
    """
    read = _quota_v1 if is_v1 else _quota_v2
    quotas = {path: read(path) for path in (folder, *vcpu_groups)}
    groups = tuple(path for path, cores in quotas.items() if cores is not None)
    own, *vcpus = quotas.values()
    sums = [sum(cores for cores in vcpus if cores is not None)] if vcpus and None not in vcpus else []
    return Quota(min(sums if own is None else [*sums, own], default=None), groups)


def vcpu_groups_of(folder: str) -> tuple[str, ...]:
    """Return libvirt's groups per vCPU in a VM's own group."""
    names = _names(folder)
    parent = folder if any(map(_VCPU.fullmatch, names)) else f"{folder}/libvirt"
    inner = names if parent is folder else _names(parent) if "libvirt" in names else []
    return tuple(f"{parent}/{name}" for name in sorted(filter(_VCPU.fullmatch, inner)))


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - a group has dozens of files, for every VM: no object for each
    except OSError:
        return []


def _links(folder: str) -> int:
    """Return a group's link count, which the kernel raises by one per group in it; -1 without the group."""
    try:
        return os.stat(folder).st_nlink  # noqa: PTH116 - as in _names
    except OSError:
        return -1


def _quota_v2(folder: str) -> float | None:
    try:
        quota, period = read_once(f"{folder}/cpu.max").split()
    except FileNotFoundError:  # the controller is off
        return None
    return None if quota == b"max" else int(quota) / int(period)


def _quota_v1(folder: str) -> float | None:
    try:
        quota = int(read_once(f"{folder}/cpu.cfs_quota_us"))
        return None if quota < 0 else quota / int(read_once(f"{folder}/cpu.cfs_period_us"))
    except FileNotFoundError:
        return None


def _throttled_ns(files: list[KeptFile]) -> int | None:
    """Sum the time that quotas took away; None where the CPU controller is off."""
    total = None
    for file in files:
        values = parse_flat(file.read())
        if b"throttled_usec" in values:
            total = (total or 0) + values[b"throttled_usec"] * _NS_PER_US
        elif b"throttled_time" in values:
            total = (total or 0) + values[b"throttled_time"]
    return total


def _throttled_once_ns(folder: str) -> int | None:
    """Return the time that quotas took away so far from a group that has none now; None as above."""
    try:
        return _throttled_ns([KeptFile(f"{folder}/cpu.stat", None)])
    except OSError as error:
        if error.errno in NO_FD:
            raise
        return None
