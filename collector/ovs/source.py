"""Network counters of the VMs' ports on Open vSwitch: live, for kernel and DPDK datapaths alike.

OVSDB knows which port is whose (`ovsdb`, `ports`), each bridge its ports' counters (`openflow`): OVSDB's own
`statistics` are up to five seconds old. Only VMs that have all their interfaces here are covered; libvirt reads the
others (`Inventory.interfaces_covered`).
"""

import contextlib
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import is_
from typing import NamedTuple

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
from collector.ovs.openflow import BridgeClient, PortStats
from collector.ovs.ovsdb import PortsDatabase
from collector.ovs.ports import Port, VmPorts, match_ports
from collector.timestamps import Moments
from whitepanda.common.texts import counted

_NAME_BYTES = 15  # OpenFlow cuts longer names


@dataclass(slots=True)
class _Bridge:
    """A bridge with VMs' ports. `names` are the ports' on the bridge's connection `named_on`."""

    client: BridgeClient
    names: Mapping[int, str] = field(default_factory=dict)
    named_on: int = 0


@dataclass(slots=True)
class _Device:
    """The device behind an interface's name, the number of its opening, and its last `counters`, made of `stats`."""

    key: tuple[str, int, int, int]
    opened: int
    age_ns: int | None
    stats: PortStats | None = None
    counters: InterfaceCounters | None = None


class _Answer(NamedTuple):
    """A bridge's statistics, by port number; when they were requested and when they arrived."""

    stats: Mapping[int, PortStats]
    asked_ns: int
    stamp: Stamp


class OvsSource:
    """The Open vSwitch source (`collector.base.Source`). Not safe for use by several threads together.

    Receive is what the guest receives, which is what the bridge transmits. Interfaces are named by libvirt's target
    device, or by the port if there is none.

    OVSDB is at `database`, such as "unix:/run/openvswitch/db.sock"; the bridges' management sockets are
    `run_dir`/BRIDGE.mgmt. `probe` waits `deadline_s` for answers; a sampling waits half as long.
    """

    name = "ovs"

    def __init__(self, inventory: Inventory, *, database: str, run_dir: str, deadline_s: float = 2.0) -> None:
        self._inventory = inventory
        self._run_dir = run_dir
        self._deadline_s = deadline_s
        self._database_name = database
        self._database = PortsDatabase(database, deadline_s / 2)
        self._ports: tuple[Port, ...] = ()
        self._identities: tuple[VmIdentity, ...] = ()
        self._vms: list[VmPorts] = []
        self._bridges: dict[str, _Bridge] = {}
        self._devices: dict[tuple[str, str], _Device] = {}
        self._names: dict[str, str] = {}  # the ports' OpenFlow names
        self._interfaces: dict[str, dict[str, InterfaceCounters]] = {}  # each VM's last
        self._numbers = itertools.count(1)
        self._moments = Moments()

    def probe(self) -> Probe:
        """Say whether the database and the bridges answer, on its own connections."""
        end_s = time.monotonic() + self._deadline_s
        try:
            with contextlib.closing(PortsDatabase(self._database_name, self._deadline_s / 2)) as database:
                ports, bridges = database.ports(), database.bridges
        except SourceError as error:
            return error.as_probe()
        problems: list[SourceError] = []
        for bridge in bridges:
            try:
                with contextlib.closing(self._client(bridge)) as client:
                    client.hello(end_s)
            except SourceError as error:
                problems.append(error)
        if problems and len(problems) == len(bridges):
            return problems[0].as_probe()
        detail = f"{self._database_name}: {counted(len(bridges), 'bridge')}, {counted(len(ports), 'port')}"
        return Probe(available=True, detail="; ".join([detail, *map(str, problems)]))

    def open(self) -> None:
        """Connect to the database; bridges are connected to once VMs have ports there."""
        self._database.open()

    def sample(self) -> SourceSample:
        """Read the counters of all ports of VMs. Raises SourceError, also if no bridge of theirs answers."""
        mono_ns, unix_ns = time.monotonic_ns(), time.time_ns()
        vms: dict[str, VmSample] = {}
        try:
            self._plan()
            vms = self._read(time.monotonic() + self._deadline_s / 2)
        finally:
            # After an error too, so that libvirt takes over immediately. A late answer still covers its VM: a change of
            # source would cost more than a tick.
            covered = {
                uuid: vm.epoch
                for uuid, vm in vms.items()
                if vm.interfaces is not None or vm.absent.get("interfaces") is Reason.STALE
            }
            self._inventory.interfaces_covered.replace(time.monotonic_ns(), covered)
        return SourceSample(self.name, mono_ns, unix_ns, vms)

    def close(self) -> None:
        """Disconnect from everything."""
        self._database.close()
        for bridge in self._bridges.values():
            bridge.client.close()
        self._bridges.clear()
        self._inventory.interfaces_covered.replace(0, {})

    def _client(self, bridge: str) -> BridgeClient:
        return BridgeClient(f"{self._run_dir}/{bridge}.mgmt")

    def _plan(self) -> None:
        """Match VMs and ports again if either changed."""
        ports = self._database.ports()
        identities = self._inventory.vms()
        if ports is self._ports and identities == self._identities:
            return
        if ports is not self._ports:
            for bridge in self._bridges.values():
                bridge.named_on = 0
        self._ports, self._identities = ports, identities
        self._vms = match_ports(identities, ports)
        needed = {port.bridge for vm in self._vms for port in vm.ports.values()}
        for name in self._bridges.keys() - needed:
            self._bridges.pop(name).client.close()
        for name in needed - self._bridges.keys():
            self._bridges[name] = _Bridge(self._client(name))
        present = {(vm.uuid, device) for vm in self._vms for device in vm.ports}
        for key in self._devices.keys() - present:
            del self._devices[key]
        names = {port.name for vm in self._vms for port in vm.ports.values()}
        self._names = {name: name.encode()[:_NAME_BYTES].decode(errors="replace") for name in names}
        self._interfaces.clear()
        self._moments.keep({vm.uuid for vm in self._vms})

    def _read(self, end_s: float) -> dict[str, VmSample]:
        answers: dict[str, _Answer] = {}
        failures: dict[str, SourceError] = {}
        for name, bridge in sorted(self._bridges.items()):
            try:
                answers[name] = _read_bridge(bridge, end_s)
            except SourceError as error:
                failures[name] = error
        if failures and not answers:
            raise next(iter(failures.values()))
        return {vm.uuid: self._read_vm(vm, answers, failures) for vm in self._vms}

    def _read_vm(self, vm: VmPorts, answers: Mapping[str, _Answer], failures: Mapping[str, SourceError]) -> VmSample:
        interfaces = {}
        own = []
        for device, port in vm.ports.items():
            if port.bridge in failures:
                return vm_sample(vm.epoch, interfaces=failures[port.bridge].reason)
            bridge, answer = self._bridges[port.bridge], answers[port.bridge]
            stats = answer.stats.get(port.number)
            if stats is None or bridge.names.get(port.number) != self._names[port.name]:
                # The port just came, went or was renumbered: read the names again.
                bridge.named_on = 0
                return vm_sample(vm.epoch, interfaces=Reason.VM_STARTING)
            key = (port.row, port.renewed, port.number, bridge.client.connections)
            counters = self._counters((vm.uuid, device), key, stats)
            if counters is None:
                return vm_sample(vm.epoch, interfaces=Reason.NOT_PRESENT)
            interfaces[device] = counters
            own.append(answer)
        asked_ns, stamp = min(answer.asked_ns for answer in own), max(answer.stamp for answer in own)
        if not self._moments.accept(vm.uuid, asked_ns, stamp.mono_ns):
            return vm_sample(vm.epoch, interfaces=Reason.STALE)
        last = self._interfaces.get(vm.uuid)
        if last is not None and list(last) == list(interfaces) and all(map(is_, last.values(), interfaces.values())):
            interfaces = last  # the same object says that nothing has moved
        else:
            self._interfaces[vm.uuid] = interfaces
        return VmSample(vm.epoch, interfaces=interfaces, stamps={"interfaces": stamp})

    def _counters(
        self, device: tuple[str, str], key: tuple[str, int, int, int], stats: PortStats
    ) -> InterfaceCounters | None:
        """Turn the bridge's view into the guest's; the same object while nothing moves, None as `_guests`.

        Devices are numbered: a port that was replaced counts from another zero.
        """
        known, age_ns = self._devices.get(device), stats.age_ns
        if (
            known is None
            or known.key != key
            or (age_ns is not None and known.age_ns is not None and age_ns < known.age_ns)
        ):
            known = self._devices[device] = _Device(key, next(self._numbers), age_ns)
        elif known.stats is not None and known.stats[:-1] == stats[:-1]:
            known.age_ns = age_ns
            return known.counters
        known.age_ns, known.stats, known.counters = age_ns, stats, _guests(stats, known.opened)
        return known.counters


def _read_bridge(bridge: _Bridge, end_s: float) -> _Answer:
    """Read a bridge's statistics, and its ports' names if they may have changed.

    The names keep ports apart: a restart of ovs-vswitchd may renumber them before OVSDB reports it.
    """
    asked_ns = time.monotonic_ns()
    stats = bridge.client.stats(end_s)
    stamp = Stamp(time.monotonic_ns(), time.time_ns())
    connection = bridge.client.connections
    if bridge.named_on != connection:
        bridge.names = bridge.client.names(end_s)
        if bridge.client.connections != connection:
            raise SourceError("ovs-vswitchd was restarted just now; reading again at the next tick")
        bridge.named_on = connection
    return _Answer(stats, asked_ns, stamp)


def _guests(stats: PortStats, opened: int) -> InterfaceCounters | None:
    """Turn the bridge's view into the guest's. None: the port does not count its bytes or packets."""
    rx_packets, tx_packets, rx_bytes, tx_bytes, rx_dropped, tx_dropped, _ = stats
    if rx_packets is None or tx_packets is None or rx_bytes is None or tx_bytes is None:
        return None
    return InterfaceCounters(tx_bytes, rx_bytes, tx_packets, rx_packets, tx_dropped, rx_dropped, opened)
