"""VMs without libvirt: state and disk counters by QMP, network counters of their tap devices.

Tap devices are read from one file per network namespace and tick. A tap is in the namespace of its QEMU process, where
QEMU made it; one that was handed to QEMU may be in the agent's own. Elsewhere it is not visible. If one of a VM's
interfaces is not visible (or has no device on the host: vhost-user, user networking) the VM's network is absent,
because a sum over the others would look like a quieter VM.
"""

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from collector.base import (
    InterfaceCounters,
    Probe,
    Reason,
    SourceError,
    SourceSample,
    Stamp,
    VmIdentity,
    VmSample,
    vm_sample,
)
from collector.inventory.inventory import Inventory
from collector.qemu.discovery import QemuFinder
from collector.qemu.launch import Launch, network_namespace
from collector.qemu.poller import DiskReading, Poller
from collector.qemu.proxmox import ProxmoxConfig
from collector.timestamps import clocks_now
from whitepanda.common.texts import counted

_log = logging.getLogger("whitepanda.qemu")

_MANAGERS = {"proxmox", "qemu"}
# A reading is repeated until it is this many polls old.
_STALE_POLLS = 2.5
_MIN_STALE_NS = 5_000_000_000
_PROXMOX_TAP = re.compile(rb"tap(\d+)i\d+")
_FIELDS = 16
# QEMU names its vCPU threads some time after it started others, and they end before it.
_UNNAMED_NS = 10_000_000_000

_Lines = Mapping[bytes, bytes]


class QemuSource:
    """The qemu source (`collector.base.Source`). Not safe for use by several threads together.

    The inventory's `QemuFinder` knows how the VMs were started; each VM's disk counters and state are polled every
    `disk_poll_s`, by its own `poller` if none is given.
    """

    name = "qemu"

    def __init__(
        self,
        inventory: Inventory,
        *,
        disk_poll_s: float = 10.0,
        proxmox_config_dir: str = "/etc/pve",
        poller: Poller | None = None,
        clocks: Callable[[], Stamp] = clocks_now,
    ) -> None:
        self._inventory = inventory
        self._clocks = clocks
        poll_ns = round(disk_poll_s * 1e9)
        self._stale_ns = max(round(_STALE_POLLS * poll_ns), _MIN_STALE_NS)
        finder = next((finder for finder in inventory.finders if isinstance(finder, QemuFinder)), None)
        if finder is None:
            raise SourceError("the inventory has no finder of QEMU processes; please report this")
        self._finder = finder
        self._proc = finder.proc_root
        self._poller = poller or Poller(finder, ProxmoxConfig(proxmox_config_dir), poll_ns)
        self._unnamed_ns: dict[str, int] = {}  # since when no vCPU thread is known, by epoch
        self._warned: set[str] = set()

    def probe(self) -> Probe:
        """Say whether VMs can be found, and how many there are without libvirt."""
        probe = self._inventory.probe()
        if not probe.available:
            return probe
        try:
            count = sum(vm.manager in _MANAGERS for vm in self._inventory.vms())
        except SourceError as error:
            return error.as_probe()
        return Probe(True, f"{counted(count, 'VM')} without libvirt now; {self._finder.probe().detail}")

    def open(self) -> None:
        """Start polling VMs."""
        self._poller.start()

    def sample(self) -> SourceSample:
        """Read the tap devices; disks and state are each VM's last poll's. Raises SourceError."""
        now = self._clocks()
        inventory = self._inventory.vms()
        mine = [vm for vm in inventory if vm.manager in _MANAGERS]
        self._poller.watch(mine)
        vms = {}
        if mine:
            taps = _Taps(self._proc, self._clocks)
            vms = {vm.uuid: self._sample_vm(vm, now, taps) for vm in mine}
        self._warned &= {vm.epoch for vm in mine}
        self._unnamed_ns = {vm.epoch: self._unnamed_ns.get(vm.epoch, now.mono_ns) for vm in mine if not vm.vcpu_tids}
        return SourceSample(self.name, now.mono_ns, now.unix_ns, vms, inventory=inventory)

    def close(self) -> None:
        """Stop polling VMs."""
        self._poller.stop()

    def _sample_vm(self, vm: VmIdentity, now: Stamp, taps: "_Taps") -> VmSample:
        stamps: dict[str, Stamp] = {}
        reading = self._poller.reading(vm.uuid, vm.epoch, now.mono_ns - self._stale_ns)
        parts: dict[str, object] = {"disks": reading}
        if isinstance(reading, DiskReading):
            stamps["disks"], parts["disks"] = reading
        if not self._inventory.interfaces_covered.covers(vm.uuid, vm.epoch, now.mono_ns):
            passed = any(device.kind == "hostdev" for device in vm.interfaces)
            found = Reason.NOT_VISIBLE if passed else self._interfaces(vm, taps)
            if isinstance(found, Reason):
                parts["interfaces"] = found
            else:
                stamps["interfaces"], parts["interfaces"] = found
        unnamed_ns = now.mono_ns - self._unnamed_ns.get(vm.epoch, now.mono_ns)
        if not vm.vcpu_tids and reading is not Reason.VM_STARTING and unnamed_ns >= _UNNAMED_NS:
            parts["threads"] = Reason.NOT_VISIBLE
            if vm.epoch not in self._warned:
                self._warned.add(vm.epoch)
                remedy = "start QEMU with -name NAME,debug-threads=on or with a QMP socket"
                _log.warning("VM %s (process %d): its vCPU threads are not known; %s", vm.name, vm.pid, remedy)
        return vm_sample(vm.epoch, stamps, **parts)

    def _interfaces(self, vm: VmIdentity, taps: "_Taps") -> tuple[Stamp, dict[str, InterfaceCounters]] | Reason:
        launch = self._finder.launch(vm.uuid, vm.epoch)
        if launch is None:
            return Reason.VM_STARTING  # it ended since the inventory was made
        stamp, lines = taps.of(launch)
        if launch.vmid:
            # By their names, which include plugged ones.
            names = taps.proxmox(lines, launch.vmid)
            if not names:
                return Reason.NOT_VISIBLE if launch.command.netdevs else Reason.NOT_PRESENT
        elif not launch.command.netdevs or not launch.command.networks_known:
            return Reason.NOT_PRESENT if launch.command.networks_known else Reason.NOT_VISIBLE
        else:
            names = [name.encode() for name in launch.taps]
        found = {}
        for index, name in enumerate(names):
            line = lines.get(name)
            if line is None and not launch.vmid:
                netdev = launch.command.netdevs[index]
                if netdev.fds or netdev.kind == "bridge":
                    # Another process than QEMU opened it, perhaps in the agent's namespace.
                    line = taps.own[1].get(name)
            if line is None:
                return Reason.NOT_VISIBLE
            try:
                found[name.decode("utf-8", "replace")] = parse_tap(line)
            except ValueError:
                return Reason.INVALID_VALUE
        return stamp, found


class _Taps:
    """The network devices of one tick, by namespace, each read when first asked for."""

    def __init__(self, proc: Path, clocks: Callable[[], Stamp]) -> None:
        self._proc = proc
        self._clocks = clocks
        self._devices: dict[int, tuple[Stamp, _Lines]] = {}
        self._proxmox: dict[int, dict[bytes, list[bytes]]] = {}
        self._own = network_namespace(proc)

    @property
    def own(self) -> tuple[Stamp, _Lines]:
        """When the devices of the agent's own namespace were read, and these."""
        return self._read(self._own, self._proc / "net/dev")

    def of(self, launch: Launch) -> tuple[Stamp, _Lines]:
        """Return when the devices of a VM's namespace were read, and these."""
        if launch.netns in {0, self._own}:
            return self.own
        return self._read(launch.netns, self._proc / str(launch.pid) / "net/dev")

    def proxmox(self, lines: _Lines, vmid: str) -> list[bytes]:
        """Return the taps among `lines` that Proxmox made for a VM."""
        grouped = self._proxmox.get(id(lines))
        if grouped is None:
            grouped = self._proxmox[id(lines)] = {}
            for name in lines:
                if match := _PROXMOX_TAP.fullmatch(name):
                    grouped.setdefault(match[1], []).append(name)
        return grouped.get(vmid.encode(), [])

    def _read(self, namespace: int, path: Path) -> tuple[Stamp, _Lines]:
        if namespace not in self._devices:
            try:
                text = path.read_bytes()
            except FileNotFoundError:
                text = b""  # the process of that namespace ended
            except OSError as error:
                raise SourceError(f"{path}: {error.strerror}") from error
            # Not the tick's beginning: finding the VMs and reading took time.
            stamp = self._clocks()
            pairs = (line.partition(b":") for line in text.splitlines()[2:])
            self._devices[namespace] = stamp, {name.strip(): rest for name, _, rest in pairs}
        return self._devices[namespace]


def parse_tap(line: bytes) -> InterfaceCounters:
    """Parse a device's numbers in /proc/net/dev. The guest transmits what the host receives. Raises ValueError."""
    numbers = [int(number) for number in line.split()]
    if len(numbers) != _FIELDS:
        raise ValueError(f"{len(numbers)} numbers of a network device, {_FIELDS} are needed: {line[:60]!r}")
    rx_bytes, rx_packets, _, rx_drops, *_, tx_bytes, tx_packets, _, tx_drops = numbers[:12]  # as the host sees them
    return InterfaceCounters(tx_bytes, rx_bytes, tx_packets, rx_packets, tx_drops, rx_drops)
