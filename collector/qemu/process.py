"""A QEMU process that is a VM: its launch, the later results, and the identity made of both."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from collector.base import DiskDevice, InterfaceDevice, VmIdentity
from collector.files import read_once
from collector.inventory.pci import passed_interfaces
from collector.qemu.launch import Launch, listed

_VCPU = re.compile(r"(?:CPU (\d+)|ALL CPUs)/(\w+)")


@dataclass(frozen=True, slots=True)
class Learned:
    """Later results about a VM: by QMP, and from Proxmox' configuration. Empty or None: unknown."""

    state: str = "running"
    name: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    vcpu_tids: tuple[int, ...] = ()
    disks: tuple[DiskDevice, ...] | None = None


@dataclass(slots=True)
class Process:
    """A QEMU. `vcpus` are the number and kind of each vCPU thread; `made` is the last identity, None once it is stale.

    `others` are threads that had no vCPU's name at two scans; a new thread gets its name a moment later.
    """

    launch: Launch
    uuid: str
    epoch: str
    learned: Learned = field(default_factory=Learned)
    vcpus: dict[int, tuple[int, str]] = field(default_factory=dict)
    seen: frozenset[int] = frozenset()
    others: frozenset[int] = frozenset()
    made: VmIdentity | None = None

    def find_vcpus(self, proc_root: Path) -> dict[int, tuple[int, str]]:
        """Return the vCPU threads by their names. Raises OSError."""
        folder = f"{proc_root}/{self.launch.pid}/task"
        try:
            tids = frozenset(int(name) for name in listed(folder))
        except (FileNotFoundError, ProcessLookupError):
            return self.vcpus
        vcpus = {tid: vcpu for tid, vcpu in self.vcpus.items() if tid in tids}
        for tid in tids - self.others - vcpus.keys():
            try:
                name = read_once(f"{folder}/{tid}/comm", 64).decode("utf-8", "replace").strip()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if match := _VCPU.fullmatch(name):
                vcpus[tid] = (int(match[1] or 0), match[2])
        self.others = (self.seen & tids) - vcpus.keys()
        self.seen = tids
        return vcpus

    def identity(self, proc_root: Path) -> VmIdentity:
        """Return the VM, the same object until something changes."""
        if self.made is None:
            self.made = self._make(proc_root)
        return self.made

    def _make(self, proc_root: Path) -> VmIdentity:
        launch, learned, command = self.launch, self.learned, self.launch.command
        named = tuple(tid for tid, _ in sorted(self.vcpus.items(), key=lambda item: (item[1][0], item[0])))
        kinds = {kind for _, kind in self.vcpus.values()}
        taps = zip(launch.taps, command.netdevs, strict=True)
        interfaces = (InterfaceDevice(tap, netdev.mac, netdev.kind) for tap, netdev in taps)
        fallback = f"vm{launch.vmid}" if launch.vmid else f"qemu-{launch.pid}"
        return VmIdentity(
            uuid=self.uuid,
            name=learned.name or command.name or fallback,
            pid=launch.pid,
            epoch=self.epoch,
            vcpu_tids=named or learned.vcpu_tids,
            state=learned.state,
            accelerator="kvm" if "KVM" in kinds else "tcg" if kinds else command.accelerator or "tcg",
            facts=learned.facts,
            disks=command.disks if learned.disks is None else learned.disks,
            interfaces=(*interfaces, *passed_interfaces(command.passed, proc_root)),
            manager="proxmox" if launch.vmid else "qemu",
            vfio=command.vfio,
            memory_bytes=command.memory_bytes,
        )
