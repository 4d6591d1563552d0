"""QEMU's command line (qemu(1)): a VM's identity and devices. Pure."""

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from collector.base import DiskDevice
from whitepanda.common.texts import clean_name

_PROGRAM = re.compile(rb"(?:.*/)?(?:qemu-system-[\w.-]+|qemu-kvm|kvm)")
# Only libvirt starts QEMU with these: a VM's secret, its folder, the socket of a query of QEMU's capabilities.
_LIBVIRT = (b"/master-key.aes", b"/libvirt/qemu/domain-", b"/libvirt/qemu/qmp-")
_YES = {"on", "yes", "true", "y"}
# Bounds on JSON, which any user may write: characters, depth of nesting, characters of a nested key. QEMU has far less.
_MAX_JSON, _MAX_DEPTH, _MAX_KEY = 1 << 16, 32, 256
_UNITS = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_MAX_DIGITS = 12
_NIL = uuid.UUID(int=0)

# Options with a free text after them, which must not be taken for an option.
_TEXTS = {"append", "kernel", "initrd", "fw_cfg", "serial", "monitor", "dtb", "bios", "loadvm", "incoming"}
_READ = {
    "name", "uuid", "smbios", "accel", "machine", "M", "qmp", "qmp-pretty", "chardev", "mon", "drive", "blockdev",
    "device", "netdev", "nic", "m", "net", "pidfile", "hda", "hdb", "hdc", "hdd", "cdrom", "readconfig",
}  # fmt: skip
_NETWORK_DRIVERS = {"rbd", "nbd", "iscsi", "ssh", "http", "https", "ftp", "ftps", "gluster", "nfs", "sheepdog"}
_DRIVER_KINDS = {"file": "file", "host_device": "block", "nvme": "nvme", "virtio-blk-vhost-user": "vhostuser"}
_PROTOCOL = re.compile(r"([a-z][a-z0-9+._-]*):")
# Network back-ends that are not interfaces.
_NO_NETDEV = {"nic", "none", "hubport"}
# With one of these QEMU adds no default network.
_NO_DEFAULT_NETWORK = {"nodefaults", "netdev", "nic", "net"}
# The kinds of `collector.base.InterfaceDevice`.
_NETDEV_KINDS = {"tap": "ethernet", "bridge": "bridge", "vhost-user": "vhostuser", "vhost-vdpa": "vdpa"}
_PCI = re.compile(r"([0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")


@dataclass(frozen=True, slots=True)
class Netdev:
    """A network back-end. `ifname` is the host's tap ("": the kernel or a helper names it), `fds` those handed in."""

    id: str
    kind: str
    ifname: str = ""
    fds: tuple[int, ...] = ()
    mac: str = ""

    @property
    def tap(self) -> bool:
        """Whether a tap device of the host is behind it."""
        return self.kind in {"ethernet", "bridge"}


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A QEMU's options. Missing texts are "", a missing `accelerator` is None.

    `qmp` are the sockets on which QEMU listens for QMP, without those to which it connects (Proxmox' qmeventd).
    `passed` are the host's addresses of passed-through PCI devices. `networks_known`: `netdevs` are complete; otherwise
    QEMU's default network or a -readconfig file's may exist too.
    """

    name: str = ""
    uuid: str = ""
    accelerator: str | None = None
    machine: str = ""
    pidfile: str = ""
    qmp: tuple[str, ...] = ()
    disks: tuple[DiskDevice, ...] = ()
    netdevs: tuple[Netdev, ...] = ()
    vfio: bool = False
    passed: tuple[str, ...] = ()
    libvirt: bool = False
    networks_known: bool = True
    memory_bytes: int | None = None


def is_qemu(text: bytes) -> bool:
    """Whether /proc/PID/cmdline is a system emulator's, by the program's name."""
    return _PROGRAM.fullmatch(text.partition(b"\0")[0]) is not None


def is_started_by_libvirt(text: bytes) -> bool:
    """Whether some libvirt started the QEMU of this (beginning of a) /proc/PID/cmdline."""
    return any(mark in text for mark in _LIBVIRT)


def parse_command_line(text: bytes) -> CommandLine:
    """Parse /proc/PID/cmdline. Unknown options are left out: QEMU itself accepted them."""
    program, *arguments = text.decode("utf-8", "surrogateescape").rstrip("\0").split("\0")
    options: dict[str, list[str]] = {}
    flags: set[str] = set()
    index = 0
    while index < len(arguments):
        option = re.sub(r"^--?", "", arguments[index]) if arguments[index].startswith("-") else ""
        flags.add(option)
        if option in _READ and index + 1 < len(arguments):
            options.setdefault(option, []).append(arguments[index + 1])
        index += 2 if option in _READ or option in _TEXTS else 1
    devices = _each(options, "device", "driver")
    machine = _merged(options, "type", "machine", "M")
    accelerator = next(iter(_each(options, "accel", "accel")), machine).get("accel", "").split(":")[0]
    is_kvm = "enable-kvm" in flags or program.rpartition("/")[2] in {"kvm", "qemu-kvm"}
    return CommandLine(
        name=_merged(options, "guest", "name").get("guest", ""),
        uuid=_uuid(options),
        accelerator=accelerator if accelerator in {"kvm", "tcg"} else "kvm" if is_kvm else None,
        machine=machine.get("type", ""),
        pidfile=options.get("pidfile", [""])[-1],
        qmp=tuple(_qmp_sockets(options)),
        memory_bytes=_memory_bytes(_merged(options, "size", "m").get("size", "")),
        disks=tuple(_disks(options, devices)),
        netdevs=tuple(_netdevs(options, devices)),
        vfio=any(device.get("driver", "").startswith("vfio-") for device in devices),
        passed=tuple(_passed(devices)),
        libvirt=is_started_by_libvirt(text),
        networks_known="readconfig" not in options and not flags.isdisjoint(_NO_DEFAULT_NETWORK),
    )


def parse_options(text: str, implied: str = "") -> dict[str, str]:
    """Parse `key=value,key2=value2`, with a doubled comma for one, or the same as JSON (nested keys with dots).

    `implied` is the key of a first value that has none.
    """
    if text.startswith("{"):
        return _json_options(text)
    found: dict[str, str] = {}
    # A zero byte cannot be in an argument.
    for index, escaped in enumerate(text.replace(",,", "\0").split(",")):
        piece = escaped.replace("\0", ",")
        key, equals, value = piece.partition("=")
        if not equals:
            if index == 0 and implied:
                key, value = implied, piece
            elif key.startswith("no") and len(key) > 2:  # noqa: PLR2004 - the length of "no"
                key, value = key[2:], "off"  # as in nowait
            else:
                value = "on"
        found[key] = value
    return found


def disk_kind(filename: str) -> str:
    """Return libvirt's kind of a disk by QEMU's file name: a path, `rbd:...`, `json:{...}`; "" unknown."""
    if filename.startswith("json:"):
        return _driver_kind(_json_options(filename[5:]), {})
    if not filename:
        return ""
    protocol = _PROTOCOL.match(filename)
    if protocol is None or protocol[1] in {"file", "fd", "host_device"}:
        path = filename[protocol.end() :] if protocol else filename
        return "block" if path.startswith("/dev/") and not path.startswith("/dev/fdset/") else "file"
    return "nvme" if protocol[1] == "nvme" else "network"


def _json_options(text: str) -> dict[str, str]:
    """Flatten a JSON object; empty for other JSON, or beyond the bounds."""
    try:
        found = json.loads(text) if len(text) <= _MAX_JSON else None
        return dict(_flat(found)) if isinstance(found, dict) else {}
    except (ValueError, RecursionError):
        return {}


def _flat(value: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    items: Any = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, item in items:
        path = f"{prefix}{key}"
        if len(path) > _MAX_KEY:
            continue
        if isinstance(item, Mapping | list):
            yield from _flat(item, f"{path}.", depth + 1)
        elif isinstance(item, bool):
            yield path, "on" if item else "off"
        elif item is not None:
            yield path, str(item)


def _merged(options: Mapping[str, list[str]], implied: str, *names: str) -> dict[str, str]:
    """Merge repetitions of an option; the last one wins, as in QEMU."""
    repetitions = (each for name in names for each in _each(options, name, implied))
    return {key: value for repetition in repetitions for key, value in repetition.items()}


def _uuid(options: Mapping[str, list[str]]) -> str:
    tables = _each(options, "smbios")
    for text in [*options.get("uuid", ()), *(t.get("uuid", "") for t in tables if t.get("type") == "1")]:
        try:
            found = uuid.UUID(text)
        except ValueError:
            continue
        if found != _NIL:
            return str(found)
    return ""


def _qmp_sockets(options: Mapping[str, list[str]]) -> Iterator[str]:
    chardevs = {found.get("id", ""): found for found in _each(options, "chardev", "backend")}
    for name in ("qmp", "qmp-pretty"):
        for value in options.get(name, ()):
            if value.startswith("unix:"):
                yield from _listening(parse_options(value[5:], "path"))
            elif value.startswith("chardev:"):
                yield from _listening(chardevs.get(value[8:], {}))
    for monitor in _each(options, "mon", "chardev"):
        if monitor.get("mode") == "control":
            chardev = chardevs.get(monitor.get("chardev", ""), {})
            if chardev.get("backend") == "socket":
                yield from _listening(chardev)


def _listening(socket: Mapping[str, str]) -> Iterator[str]:
    """Yield the path of a unix socket where QEMU is the server."""
    if socket.get("path") and socket.get("server") in _YES:
        yield ("\0" if socket.get("abstract") in _YES else "") + socket["path"]


def _memory_bytes(text: str) -> int | None:
    """Return the size of -m, such as 2048 (MiB), 4G or 512M; None if it is not one."""
    unit = _UNITS.get(text[-1:].upper())
    digits = text[:-1] if unit else text
    if not digits.isascii() or not digits.isdecimal() or len(digits) > _MAX_DIGITS:
        return None
    return int(digits) * (unit or _UNITS["M"]) or None


def _each(options: Mapping[str, list[str]], name: str, implied: str = "") -> list[dict[str, str]]:
    return [parse_options(value, implied) for value in options.get(name, ())]


def _disks(options: Mapping[str, list[str]], devices: list[dict[str, str]]) -> Iterator[DiskDevice]:
    """Yield the block devices, by their name in QMP (`qmp.block_name`) if that can be predicted."""
    targets = {d["drive"]: d["id"] for d in devices if d.get("drive") and d.get("id")}
    for name in ("hda", "hdb", "hdc", "hdd"):
        for value in options.get(name, ()):
            yield DiskDevice(name, disk_kind(value))
    for drive in _each(options, "drive", "file"):
        if drive.get("file") and drive.get("if") != "pflash":
            name = drive.get("id", "")
            yield DiskDevice(targets.get(name, name), disk_kind(drive["file"]))
    nodes = {node.get("node-name", ""): node for node in _each(options, "blockdev", "driver")}
    for device in devices:
        node = nodes.get(device.get("drive", ""))
        if node is not None:
            yield DiskDevice(device.get("id", ""), _driver_kind(node, nodes))
        elif device.get("driver", "").startswith("vhost-user-blk"):
            yield DiskDevice(device.get("id", ""), "vhostuser")


def _driver_kind(options: Mapping[str, str], nodes: Mapping[str, Mapping[str, str]]) -> str:
    """Return a node's kind by the driver that does the I/O, at the end of its chain of files."""
    prefix = ""
    for _ in range(16):  # deeper than any real stack; a ring of references ends too
        if f"{prefix}file.driver" in options:
            prefix += "file."
        elif (reference := options.get(f"{prefix}file", "")) in nodes and reference:
            options, prefix = nodes[reference], ""
        else:
            break
    driver = options.get(f"{prefix}driver", "")
    return "network" if driver in _NETWORK_DRIVERS else _DRIVER_KINDS.get(driver, "")


def _passed(devices: list[dict[str, str]]) -> Iterator[str]:
    passed = (device for device in devices if device.get("driver") == "vfio-pci")
    addresses = (device.get("host") or device.get("sysfsdev", "").rpartition("/")[2] for device in passed)
    yield from filter(_PCI.fullmatch, addresses)


def _netdevs(options: Mapping[str, list[str]], devices: list[dict[str, str]]) -> Iterator[Netdev]:
    macs = {device["netdev"]: device.get("mac", "") for device in devices if device.get("netdev")}
    for name in ("netdev", "nic", "net"):
        for netdev in _each(options, name, "type"):
            kind = netdev.get("type", "")
            if kind in _NO_NETDEV:
                continue
            numbers = netdev.get("fds") or netdev.get("fd") or ""
            yield Netdev(
                id=netdev.get("id", ""),
                kind=_NETDEV_KINDS.get(kind, kind),
                ifname=clean_name(netdev.get("ifname", "")),
                fds=tuple(int(number) for number in numbers.split(":") if number.isdecimal()),
                mac=(netdev.get("mac") or macs.get(netdev.get("id", ""), "")).lower(),
            )
