"""Who already tells a part of a VM, so that a dearer source need not ask for it too."""

from collections.abc import Callable, Mapping

from collector.base import LIBVIRT_MANAGERS, Reason

_MAX_AGE_NS = 5_000_000_000


#: Which sources can tell a part, best first: they say why it is absent.
PART_SOURCES: Mapping[str, tuple[str, ...]] = {
    "threads": ("procfs", "simulated"),
    "perf": ("perf", "simulated"),
    "disks": ("libvirt", "qemu", "simulated"),
    "interfaces": ("ovs", "libvirt", "qemu", "simulated"),
    "process": ("procfs", "simulated"),
    "cgroup": ("cgroup", "simulated"),
    "rdt": ("resctrl", "pqos", "simulated"),
    "numa": ("cgroup", "simulated"),
    "host": ("procfs", "simulated"),
}


class Coverage:
    """VMs, by UUID and epoch, of which a source told a part completely. One per part; safe between threads.

    A source that stops telling covers nothing after five seconds.
    """

    def __init__(self) -> None:
        # Replaced as a whole, never changed: readers need no lock.
        self._told: tuple[int, Mapping[str, str]] = (0, {})

    def tell(self, mono_ns: int, epochs: Mapping[str, str]) -> None:
        """Note what was told at `mono_ns`: the epoch by UUID. What was told before is forgotten."""
        self._told = (mono_ns, dict(epochs))

    def covers(self, uuid: str, epoch: str, mono_ns: int) -> bool:
        """Whether another source tells the part of this VM in this epoch."""
        told_ns, epochs = self._told
        return mono_ns - told_ns <= _MAX_AGE_NS and epochs.get(uuid) == epoch


def why_absent(part: str, trouble: Callable[[str], Reason | None]) -> Reason | None:
    """Say why no source tells a part of the VMs; None: one that could tell it works.

    Args:
        part: of `PART_SOURCES`.
        trouble: why a source, by name, has nothing new to say; None where it works.

    """
    reasons = [trouble(source) for source in PART_SOURCES[part]]
    on = [reason for reason in reasons if reason is not Reason.SOURCE_OFF]
    if not on:
        return Reason.SOURCE_OFF
    troubles = [reason for reason in on if reason is not None]
    # A source for which there is nothing on this host (no Open vSwitch, no Proxmox) says nothing of the others.
    telling = [reason for reason in troubles if reason is not Reason.NOT_PRESENT]
    return (telling or troubles)[0] if telling or len(troubles) == len(on) else None


def source_of(part: str, manager: str, reason: Reason, trouble: Callable[[str], Reason | None]) -> str:
    """Say which source `reason` is of, for which a part of one VM is absent.

    That whose state is the cause; else the first one that works, because the reason is its word on the VM.

    Args:
        part: of `PART_SOURCES`.
        manager: the VM's (`VmIdentity.manager`): libvirt tells nothing of others' VMs, qemu nothing of libvirt's.
        reason: why the part is absent.
        trouble: why a source, by name, has nothing new to say; None where it works.

    """
    foreign = "qemu" if manager in LIBVIRT_MANAGERS else "libvirt"
    troubles = {source: trouble(source) for source in PART_SOURCES[part] if source != foreign}
    works = next((source for source, why in troubles.items() if why is None), None)
    cause = next((source for source, why in troubles.items() if why is reason), None)
    # What is not on this host says nothing of what another source can tell.
    if cause is not None and (works is None or reason is not Reason.NOT_PRESENT):
        return cause
    idle = {Reason.NOT_PRESENT, Reason.SOURCE_OFF}
    return works or next((source for source, why in troubles.items() if why not in idle), next(iter(troubles)))
