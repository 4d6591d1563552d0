"""What of a host's samples are names, and samples with pseudonyms in their place, which replay to the same numbers.

All strings of a sample are told apart here by what they are, never by what they look like: what is ours (sources,
parts, reasons, states, kinds) stays, and all that comes from the definition of a VM is replaced.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args

import msgspec

from agent.config import AgentConfig
from agent.doctor.pseudonyms import Pseudonyms
from agent.sampling.metrics import METRICS
from agent.sampling.runner import SourceState
from agent.uplink.client import UplinkState
from collector.base import PERF_EVENTS, VM_PARTS, Reason, SourceSample, VmIdentity, VmSample
from collector.registry import SOURCES

#: Device names whose letters are all of these tell nothing; else somebody has chosen them.
_DEVICE_WORD = re.compile(
    "lo|tap|vnet|macvtap|macvlan|veth|eth|en|ens|enp|eno|enx|wlan|bond|team|br|virbr|vmbr|fwbr|fwpr|fwln|ovs|system|int|ex|"
    "tun|phy|docker|drive|virtio|blk|disk|ide|scsi|sata|nvme|usb|cd|cdrom|dvd|floppy|fd|sr|hd|sd|pflash|efidisk|tpmstate|"
    "net|hostnet|hostdev|vhost|user|dev|none|np|[dfinps]"
)
_LETTERS = re.compile(r"[A-Za-z]+")
_DISK = re.compile(r"[vshx]d[a-z]{1,2}\d{0,2}")
_DEVICE = re.compile(r"(?:[A-Za-z]+|[._:@#/-]|(?<!\d)\d{1,5}(?!\d))+")
_FACT = re.compile(r"(?:nova|pve):[a-z_]+|title|description|name|job|latency_sensitive|mac")

#: What sources and QEMU say of states and kinds, and words of ours which hosts and VMs are called now and then.
_WORDS = frozenset(
    re.findall(
        r"\S+",
        "kvm tcg hvf xen nvmm whpx simulated libvirt proxmox qemu whitepanda agent central host localhost localdomain "
        "running paused blocked shutdown shutoff crashed suspended prelaunch inmigrate postmigrate internal-error "
        "io-error save-vm restore-vm finish-migrate guest-panicked watchdog colo nostate victim normal unknown "
        "thread cgroup all basic os msr ok missing info",
    )
)


def vocabulary() -> frozenset[str]:
    """Return the words that have a meaning of ours: a VM that is called so is replaced only where its name must be."""
    words = {word for reason in Reason for word in (reason.code, f"REASON_{reason.name}")}
    words.update(VM_PARTS, PERF_EVENTS, (spec.name for spec in SOURCES), (metric.name for metric in METRICS))
    words.update(get_args(SourceState), get_args(UplinkState), _literals(msgspec.inspect.type_info(AgentConfig)))
    return _WORDS | words


def _literals(kind: msgspec.inspect.Type) -> Iterator[str]:
    """Give out the words that settings with a fixed choice may be."""
    if isinstance(kind, msgspec.inspect.LiteralType):
        yield from (str(value) for value in kind.values)
    elif isinstance(kind, msgspec.inspect.StructType):
        for field in kind.fields:
            yield from _literals(field.type)


# -- names


def learn_host(names: Pseudonyms, host: str, kind: str = "host", *, always: bool = False) -> None:
    """Learn a host's name: as it is, its short form, and the domain with each of its parts but the last."""
    host = host.strip("[]").rstrip(".")
    if not host or _is_here(host):
        return
    names.learn(kind, host, always=always)
    if ":" in host or host.replace(".", "").isdecimal():
        return  # an address
    short, _, domain = host.partition(".")
    names.learn(kind, short)
    *parts, _ = domain.split(".")
    if parts:
        names.learn("domain", domain)
    for part in parts:
        names.learn("domain", part)


def _is_here(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host in {"localhost", "localhost.localdomain"}
    return address.is_loopback or address.is_unspecified


def learn_device(names: Pseudonyms, device: str) -> str:
    """Return a device's pseudonym, or its name where that is a plain one, such as vda, tap3 and drive-virtio-disk0."""
    if not device or _DISK.fullmatch(device):
        return device
    if _DEVICE.fullmatch(device) and all(map(_DEVICE_WORD.fullmatch, _LETTERS.findall(device))):
        return device
    return names.learn("dev", device)


def learn_identity(identity: VmIdentity, names: Pseudonyms) -> None:
    """Learn all names that a VM's definition has."""
    _identity(identity, names)


# -- samples


def anonymous_sample(sample: SourceSample, names: Pseudonyms) -> SourceSample:
    """Return a sample with pseudonyms for all that is a name in it; whatever a VM is called the numbers stay."""
    vms = {names.learn("vm", uuid): _vm(vm, names) for uuid, vm in sample.vms.items()}
    inventory = sample.inventory and tuple(_identity(identity, names) for identity in sample.inventory)
    return replace(sample, vms=vms, inventory=inventory)


def _vm(vm: VmSample, names: Pseudonyms) -> VmSample:
    rdt = vm.rdt
    if rdt is not None and rdt.owner != "whitepanda":
        rdt = replace(rdt, owner=names.learn("group", rdt.owner))
    return replace(
        vm,
        epoch=names.learn("epoch", vm.epoch),
        disks=_by_device(vm.disks, names),
        interfaces=_by_device(vm.interfaces, names),
        rdt=rdt,
    )


def _by_device(counters: Mapping[str, Any] | None, names: Pseudonyms) -> dict[str, Any] | None:
    return None if counters is None else {learn_device(names, name): item for name, item in counters.items()}


def _identity(identity: VmIdentity, names: Pseudonyms) -> VmIdentity:
    interfaces = (
        replace(
            interface,
            device=learn_device(names, interface.device),
            mac=names.learn("mac", interface.mac),
            port_id=names.learn("port", interface.port_id),
        )
        for interface in identity.interfaces
    )
    return replace(
        identity,
        uuid=names.learn("vm", identity.uuid),
        name=names.learn("vm", identity.name),
        epoch=names.learn("epoch", identity.epoch),
        facts=dict(_facts(identity.facts.items(), names)),
        disks=tuple(replace(disk, target=learn_device(names, disk.target)) for disk in identity.disks),
        interfaces=tuple(interfaces),
    )


def _facts(facts: Iterable[tuple[str, str]], names: Pseudonyms) -> Iterator[tuple[str, str]]:
    for key, value in facts:
        yield key if _FACT.fullmatch(key) else names.learn("key", key), names.learn("fact", value)
