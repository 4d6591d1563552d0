"""Which port of Open vSwitch is which VM's interface. Pure: no I/O."""

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from collector.base import InterfaceDevice, VmIdentity


@dataclass(frozen=True, slots=True)
class Port:
    """One row of OVSDB's table Interface that a bridge uses.

    `number` is the OpenFlow port; `row` the row's UUID; `renewed` counts how often the row's number changed. `vm_uuid`,
    `port_id` and `mac` are external_ids' vm-id or vm-uuid, iface-id and attached-mac, in lower case, "" if unset.
    """

    bridge: str
    name: str
    number: int
    row: str
    renewed: int = 0
    vm_uuid: str = ""
    port_id: str = ""
    mac: str = ""


@dataclass(frozen=True, slots=True)
class VmPorts:
    """A VM with all its interfaces: the port of each, by the name of the host's device."""

    uuid: str
    epoch: str
    ports: Mapping[str, Port] = field(default_factory=dict)


def match_ports(vms: Iterable[VmIdentity], ports: Sequence[Port]) -> list[VmPorts]:
    """Find the ports of the VMs that have all their interfaces on Open vSwitch; the others are left out.

    An interface is matched by the first of these that is unique:

    1. libvirt's target device = the port's name;
    2. the VM's UUID = vm-id (vm-uuid) and the MAC address = attached-mac;
    3. the port id in libvirt's definition = iface-id (a veth of OpenStack's hybrid plug: the tap is on another bridge);
    4. the VM's UUID alone, of a VM with one interface and one port;
    5. the MAC address = attached-mac alone.

    2 to 5 never take a port that names another VM, nor 5 one that names another port id. 1 takes no port that names
    another of these VMs: a name may be another's in another network namespace, and external_ids may be stale.
    """
    known = tuple(vms)
    index = _Index(ports, {vm.uuid.lower() for vm in known})
    found = []
    for vm in known:
        matched = [(device, index.find(vm, device)) for device in vm.interfaces]
        own = {device.device or port.name: port for device, port in matched if port is not None}
        rows = {port.row for port in own.values()}
        if matched and len(own) == len(rows) == len(matched):
            found.append(VmPorts(vm.uuid, vm.epoch, own))
    return found


class _Index:
    """The ports by all that may identify their VM."""

    def __init__(self, ports: Sequence[Port], vms: Collection[str]) -> None:
        self._vms = vms
        self._by_name = {port.name: port for port in ports}
        self._by: dict[tuple[str, str], list[Port]] = defaultdict(list)
        for port, key in itertools.product(ports, ("vm_uuid", "port_id", "mac")):
            self._by[key, getattr(port, key)].append(port)

    def find(self, vm: VmIdentity, device: InterfaceDevice) -> Port | None:
        named = self._by_name.get(device.device)
        if named is not None and (named.vm_uuid == vm.uuid.lower() or named.vm_uuid not in self._vms):
            return named
        uuid, mac, port_id = vm.uuid.lower(), device.mac.lower(), device.port_id.lower()
        of_vm = self._by.get(("vm_uuid", uuid), [])
        of_mac = self._by.get(("mac", mac), []) if mac else []
        of_port_id = self._by.get(("port_id", port_id), []) if port_id else []
        candidates = (
            [port for port in of_vm if mac and port.mac == mac],
            [port for port in of_port_id if port.vm_uuid in {"", uuid}],
            of_vm if len(vm.interfaces) == 1 else [],
            [port for port in of_mac if port.vm_uuid in {"", uuid} and (not port_id or port.port_id in {"", port_id})],
        )
        return next((ports[0] for ports in candidates if len(ports) == 1), None)
