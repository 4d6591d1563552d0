"""The status files of libvirt's QEMU driver (`/run/libvirt/qemu/NAME.xml`). Pure: bytes in, a status out."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass

from collector.base import MAX_PID, DiskDevice, InterfaceDevice, VmIdentity

_NOVA = "{http://openstack.org/xmlns/libvirt/nova/"
_ACCELERATORS = {"kvm": "kvm", "qemu": "tcg"}
# Devices of these kinds are passed through with VFIO; USB and SCSI ones are not.
_VFIO_KINDS = {"pci", "mdev"}
_MAX_MEMORY_BYTES = 1 << 50
_DRIVES = {"cdrom", "floppy"}
# Users who may define VMs write the metadata: only a bounded part of it is kept.
_MAX_FACT, _MAX_KEY, _MAX_META_FACTS = 512, 64, 32
_MAX_PCI = {"domain": 0xFFFF_FFFF, "bus": 0xFF, "slot": 0x1F, "function": 7}


class StatusError(ValueError):
    """Not a status file of libvirt."""


@dataclass(frozen=True, slots=True)
class VmStatus(VmIdentity):
    """A VM as in its status file, without an epoch. `accelerator` is "" if it is neither KVM nor software emulation.

    `passed` are the addresses of passed-through PCI devices other than `interfaces`.
    """

    passed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Leave the texts as they are: the UUID is compared with QEMU's arguments. An identity made of it is clean."""


def parse_status(text: bytes) -> VmStatus:
    """Parse a status file of libvirt's QEMU driver (`<domstatus>`). Raises StatusError."""
    try:
        root = ET.fromstring(text)  # noqa: S314 - root's libvirtd wrote it; expat bounds entity expansion
    except (ET.ParseError, ValueError, LookupError) as error:  # the last two: an unknown encoding
        raise StatusError(f"not XML: {error}") from error
    domain = root.find("domain")
    if root.tag != "domstatus" or domain is None:
        raise StatusError(f"not a libvirt status file (<{root.tag}>)")
    uuid, name = domain.findtext("uuid", "").strip(), domain.findtext("name", "")
    if not uuid or not name:
        raise StatusError("the domain has no uuid or no name")
    try:
        pid = int(root.get("pid", ""))
        vcpus = [(int(vcpu.get("id", "")), int(vcpu.get("pid", "0"))) for vcpu in root.findall("vcpus/vcpu")]
    except ValueError as error:
        raise StatusError(f"a process or vCPU number is not a number: {error}") from error
    strange = [number for number in (pid, *(tid for _, tid in vcpus)) if not 0 <= number <= MAX_PID]
    if pid == 0 or strange:
        raise StatusError(f"process or thread id {str(strange[0] if strange else pid)[:40]} is invalid")
    interfaces = tuple(_interface(element) for element in domain.findall("devices/interface"))
    passed = {element.get("type", "") for element in domain.findall("devices/hostdev")}
    return VmStatus(
        uuid=uuid,
        name=name,
        pid=pid,
        epoch="",
        state=_state(root),
        accelerator=_ACCELERATORS.get(domain.get("type", ""), ""),
        vcpu_tids=tuple(tid for _, tid in sorted(vcpus) if tid > 0),
        facts=dict(_facts(domain)),
        disks=tuple(_disks(domain)),
        interfaces=interfaces,
        vfio=bool(passed & _VFIO_KINDS) or any(device.kind == "hostdev" for device in interfaces),
        passed=tuple(_passed(domain)),
        memory_bytes=_memory_bytes(domain),
        manager="nova" if any(_is_nova(element) for element in domain.findall("metadata/*")) else "libvirt",
    )


def _memory_bytes(domain: ET.Element) -> int | None:
    """Return the guest's memory. libvirt writes it in KiB."""
    try:
        size = int(domain.findtext("memory", "")) * 1024
    except ValueError:
        return None
    return size if 0 < size < _MAX_MEMORY_BYTES else None


def _state(root: ET.Element) -> str:
    """Return libvirt's word for the state; "migrating" while a VM moves to or from another host."""
    job = root.find("job")
    if job is not None and job.get("async", "").startswith("migration"):
        return "migrating"
    return root.get("state", "unknown")


def _disks(domain: ET.Element) -> Iterator[DiskDevice]:
    """Yield the block devices, without empty drives, which have no counters."""
    for disk in domain.findall("devices/disk"):
        empty = disk.get("device") in _DRIVES and disk.find("source") is None
        target = disk.find("target")
        if target is not None and target.get("dev") and not empty:
            yield DiskDevice(target.get("dev", ""), disk.get("type", ""))


def _passed(domain: ET.Element) -> Iterator[str]:
    for address in domain.findall("devices/hostdev[@type='pci']/source/address"):
        try:
            numbers = [int(address.get(key, "0"), 0) for key in _MAX_PCI]
        except ValueError:
            continue
        if all(0 <= number <= most for number, most in zip(numbers, _MAX_PCI.values(), strict=True)):
            yield "{:04x}:{:02x}:{:02x}.{:x}".format(*numbers)


def _interface(element: ET.Element) -> InterfaceDevice:
    """Read an interface. A libvirt network's is resolved in its <actual>."""
    actual = element.find("actual")
    places = [element] if actual is None else [actual, element]

    def first(path: str, key: str) -> str:
        found = (child.get(key, "") for place in places for child in place.findall(path))
        return next((value for value in found if value), "")

    return InterfaceDevice(
        device=first("target", "dev"),
        mac=first("mac", "address").lower(),
        kind=next((kind for place in places if (kind := place.get("type", ""))), ""),
        port_id=first("virtualport/parameters", "interfaceid"),
    )


def _facts(domain: ET.Element) -> Iterator[tuple[str, str]]:
    """Yield the facts for the job rules: title, description, metadata of OpenStack Nova and others."""
    for key in ("title", "description"):
        if text := _text(domain.find(key)):
            yield key, text
    others: dict[str, str] = {}
    for element in domain.findall("metadata/*"):
        if _is_nova(element):
            yield from _nova_facts(element)
        elif not element.tag.startswith(_NOVA):
            _add_meta(others, element)
    yield from others.items()


def _is_nova(element: ET.Element) -> bool:
    # The namespace ends in a version (1.0, 1.1) that does not change what is read here.
    return element.tag.startswith(_NOVA) and _local(element) == "instance"


def _nova_facts(instance: ET.Element) -> Iterator[tuple[str, str]]:
    for item in instance.iter():
        key, text = _local(item), _text(item)
        if key in {"name", "user", "project"} and text:
            yield f"nova:{key}", text
        if key in {"user", "project"} and item.get("uuid"):
            yield f"nova:{key}_uuid", item.get("uuid", "")[:_MAX_FACT]
        elif key == "flavor" and item.get("name"):
            yield "nova:flavor", item.get("name", "")[:_MAX_FACT]
        elif key == "root" and item.get("type") == "image":
            yield "nova:image", item.get("uuid", "")[:_MAX_FACT]


def _add_meta(facts: dict[str, str], top: ET.Element) -> None:
    """Add the texts of an element and its descendants by name without namespace; the first of a name counts."""
    for item in top.iter():
        text = _text(item)
        if text and len(facts) < _MAX_META_FACTS:
            facts.setdefault(f"meta:{_local(item)[:_MAX_KEY]}", text)


def _local(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _text(element: ET.Element | None) -> str:
    return "" if element is None or not element.text else element.text.strip()[:_MAX_FACT]
