"""Which port is whose."""

from dataclasses import replace

import pytest

from collector.base import InterfaceDevice, VmIdentity
from collector.ovs.ports import Port, match_ports

ME, OTHER = "aaaaaaaa-0000-4000-8000-000000000001", "bbbbbbbb-0000-4000-8000-000000000002"
MAC, MAC2 = "fa:16:3e:00:00:01", "fa:16:3e:00:00:02"
ID, ID2 = "cccccccc-0000-4000-8000-000000000003", "dddddddd-0000-4000-8000-000000000004"


def vm(*interfaces, uuid=ME):
    return VmIdentity(uuid, "vm", 1, "e1", interfaces=interfaces)


def nic(device="", mac=MAC, port_id="", kind="bridge"):
    return InterfaceDevice(device, mac, kind, port_id)


def port(name="p", number=1, **fields):
    return Port("br-int", name, number, f"row-{name}", **fields)


def found(machine, *ports):
    return {device: port.name for one in match_ports([machine], ports) for device, port in one.ports.items()}


def test_the_target_device_is_the_ports_name():
    assert found(vm(nic("tap1")), port("tap0"), port("tap1", 2)) == {"tap1": "tap1"}


def test_the_target_device_goes_before_everything_else():
    mine = port("other", vm_uuid=ME, mac=MAC, port_id=ID)
    assert found(vm(nic("tap1", port_id=ID)), mine, port("tap1", 2)) == {"tap1": "tap1"}


def test_a_port_of_that_name_that_names_another_vm_of_this_host_is_not_taken():
    mine, other = vm(nic("tap1", MAC)), vm(nic("tap2", MAC2), uuid=OTHER)
    theirs = port("tap1", vm_uuid=OTHER)
    assert [(one.uuid, dict(one.ports)) for one in match_ports([mine, other], [theirs])] == [
        (OTHER, {"tap2": theirs})  # the one port of a VM with one interface
    ]
    # Left over from a VM that is gone: the name is better.
    assert found(mine, theirs) == {"tap1": "tap1"}
    own = port("tap1", vm_uuid=ME)
    assert [one.uuid for one in match_ports([mine, other], [own])] == [ME]


def test_hybrid_plug_is_found_by_its_port_id():
    qvo = port("qvocccccccc-00", port_id=ID, mac=MAC, vm_uuid=ME)
    assert found(vm(nic("tapcccccccc-00", port_id=ID)), qvo) == {"tapcccccccc-00": "qvocccccccc-00"}
    assert found(vm(nic("tapcccccccc-00", port_id=ID)), replace(qvo, vm_uuid="", mac="")) != {}


def test_vhost_user_without_a_device_takes_the_ports_name():
    vhost = port("vhu1", vm_uuid=ME, mac=MAC)
    assert found(vm(nic("", kind="vhostuser")), vhost) == {"vhu1": "vhu1"}


@pytest.mark.parametrize(
    "fields",
    [
        {"vm_uuid": ME, "mac": MAC},
        {"vm_uuid": ME},  # one interface and one port
        {"mac": MAC},
        {"port_id": ID},
        {"port_id": ID, "mac": MAC2},
    ],
)
def test_any_of_the_ids_is_enough(fields):
    assert found(vm(nic("tap1", MAC.upper(), ID)), port("x", **fields)) == {"tap1": "x"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"vm_uuid": OTHER, "mac": MAC},
        {"vm_uuid": OTHER, "port_id": ID},
        {"vm_uuid": OTHER},
        {"mac": MAC, "port_id": ID2},  # another network may have the same address
        {"mac": MAC2},
    ],
)
def test_a_port_of_someone_else_is_not_taken(fields):
    assert found(vm(nic("tap1", MAC, ID)), port("x", **fields)) == {}


def test_what_is_not_unique_reports_nothing_and_the_next_id_may():
    assert found(vm(nic("tap1")), port("x", mac=MAC), port("y", 2, mac=MAC)) == {}
    both = port("x", mac=MAC, vm_uuid=ME), port("y", 2, mac=MAC, vm_uuid=ME, port_id=ID)
    assert found(vm(nic("tap1", port_id=ID)), *both) == {"tap1": "y"}


def test_several_interfaces_are_distinguished_and_reported_only_together():
    two = vm(nic("tap1", MAC), nic("tap2", MAC2))
    one, other = port("x", 1, vm_uuid=ME, mac=MAC), port("y", 2, vm_uuid=ME, mac=MAC2)
    assert found(two, one, other) == {"tap1": "x", "tap2": "y"}
    assert found(two, one) == {}  # tap2 is on another bridge: libvirt tells both
    # Two interfaces of one address and one port: whose it is, is not known.
    assert found(vm(nic("tap1", MAC), nic("tap2", MAC)), one) == {}


def test_a_vm_without_interfaces_or_an_unknown_one_is_not_reported():
    assert found(vm(), port("x", vm_uuid=ME)) == {}
    assert found(vm(nic("", "")), port("x", 1)) == {}


def test_one_vm_takes_nothing_from_another():
    ports = [port("x", 1, vm_uuid=ME, mac=MAC), port("y", 2, vm_uuid=OTHER, mac=MAC)]
    matched = match_ports([vm(nic("tap1")), vm(nic("tap2"), uuid=OTHER)], ports)
    assert [(one.uuid, one.epoch, dict(one.ports)) for one in matched] == [
        (ME, "e1", {"tap1": ports[0]}),
        (OTHER, "e1", {"tap2": ports[1]}),
    ]
