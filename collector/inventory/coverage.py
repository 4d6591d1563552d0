"""Which source covers a part of a VM, so that a more expensive one need not read it too."""

from collections.abc import Callable, Mapping

from collector.base import LIBVIRT_MANAGERS, Reason

_MAX_AGE_NS = 5_000_000_000

#: Which sources can provide a part, best first: they say why it is absent.
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
    """VMs, by UUID and epoch, of which a source provided a part completely. One per part; safe between threads.

    A source that stops covers nothing after five seconds.
    """

    def __init__(self) -> None:
        # Replaced as a whole, never changed: readers need no lock.
        self._covered: tuple[int, Mapping[str, str]] = (0, {})

    def replace(self, mono_ns: int, epochs: Mapping[str, str]) -> None:
        """Replace what is covered, as of `mono_ns`: the epoch by UUID."""
        self._covered = (mono_ns, dict(epochs))

    def covers(self, uuid: str, epoch: str, mono_ns: int) -> bool:
        """Whether a source covers this VM in this epoch."""
        covered_ns, epochs = self._covered
        return mono_ns - covered_ns <= _MAX_AGE_NS and epochs.get(uuid) == epoch


def why_absent(part: str, trouble: Callable[[str], Reason | None]) -> Reason | None:
    """Return why no source provides a part of `PART_SOURCES`; None: one that could works.

    `trouble` says why a source, by name, has no new data; None if it works.
    """
    reasons = [trouble(source) for source in PART_SOURCES[part]]
    on = [reason for reason in reasons if reason is not Reason.SOURCE_OFF]
    if not on:
        return Reason.SOURCE_OFF
    troubles = [reason for reason in on if reason is not None]
    # A source with nothing on this host (no Open vSwitch, no Proxmox) says nothing about the others.
    usable = [reason for reason in troubles if reason is not Reason.NOT_PRESENT]
    return (usable or troubles)[0] if usable or len(troubles) == len(on) else None


def source_of(part: str, manager: str, reason: Reason, trouble: Callable[[str], Reason | None]) -> str:
    """Return the source that causes `reason`, for which a part (of `PART_SOURCES`) of one VM is absent.

    That is the source with this trouble; else the first one that works, because the reason is what it says of the VM.
    libvirt knows nothing of others' VMs and qemu nothing of libvirt's (`manager`); `trouble` as for `why_absent`.
    """
    foreign = "qemu" if manager in LIBVIRT_MANAGERS else "libvirt"
    troubles = {source: trouble(source) for source in PART_SOURCES[part] if source != foreign}
    works = next((source for source, why in troubles.items() if why is None), None)
    cause = next((source for source, why in troubles.items() if why is reason), None)
    # A source with nothing on this host says nothing about the others.
    if cause is not None and (works is None or reason is not Reason.NOT_PRESENT):
        return cause
    idle = {Reason.NOT_PRESENT, Reason.SOURCE_OFF}
    return works or next((source for source, why in troubles.items() if why not in idle), next(iter(troubles)))
