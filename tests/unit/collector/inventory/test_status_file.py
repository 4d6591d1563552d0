"""What is read of libvirt's status files: a real one, and what else libvirt's format allows."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.base import DiskDevice, InterfaceDevice
from collector.inventory.status_file import StatusError, parse_status

REAL = Path(__file__).parents[3] / "fixtures" / "libvirt" / "status.xml"


def changed(old: str, new: str) -> bytes:
    text = REAL.read_text()
    assert old in text
    return text.replace(old, new).encode()


def with_devices(xml: str) -> bytes:
    return changed("<memballoon model='none'/>", xml)


def test_a_real_status_file():
    status = parse_status(REAL.read_bytes())
    assert status.name == "wplab-mixed-1"
    assert status.uuid == "57500000-0000-4000-8000-000000000001"
    assert (status.pid, status.vcpu_tids) == (5198, (5218,))
    assert (status.state, status.accelerator) == ("running", "tcg")
    assert dict(status.facts) == {
        "title": "lab mixed",
        "nova:name": "mixed-server",
        "nova:flavor": "lab.mixed",
        "nova:user": "operator",
        "nova:user_uuid": "0a",
        "nova:project": "lab",
        "nova:project_uuid": "0b",
        "nova:image": "0c",
    }
    assert status.disks == (DiskDevice("vda", "file"),)
    port = "c7e20502-2234-4d9f-9cbc-6825e4e5af9a"
    assert status.interfaces == (InterfaceDevice("wptap1", "52:54:00:77:00:01", "bridge", port),)
    assert not status.vfio


def test_vcpu_threads_are_in_the_order_of_the_vcpus_and_unplugged_ones_left_out():
    text = REAL.read_bytes().replace(
        b"<vcpu id='0' pid='5218'/>",
        b"<vcpu id='10' pid='7'/><vcpu id='2' pid='9'/><vcpu id='0' pid='8'/><vcpu id='1' pid='0'/><vcpu id='3'/>",
    )
    assert parse_status(text).vcpu_tids == (8, 9, 7)


@pytest.mark.parametrize("version", [b"1.0", b"1.1", b"2.0"])
def test_any_version_of_novas_namespace(version):
    text = REAL.read_bytes().replace(b"libvirt/nova/1.1", b"libvirt/nova/" + version)
    status = parse_status(text)
    assert (status.facts["nova:flavor"], status.manager) == ("lab.mixed", "nova")


def test_whoever_else_writes_metadata_is_not_nova():
    text = re.sub(rb"<nova:instance.*</nova:instance>", b"", REAL.read_bytes(), flags=re.DOTALL)
    assert b"nova" not in text
    assert parse_status(text).manager == "libvirt"
    other = text.replace(b"<metadata>", b"<metadata><a:instance xmlns:a='http://example.net/nova/1.0'/>")
    assert parse_status(other).manager == "libvirt"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ((b"</domstatus>", b""), "not XML"),
        ((b"domstatus", b"other"), r"not a libvirt status file \(<other>\)"),
        ((b"pid='5198'", b"pid='x'"), "not a number"),
        ((b"pid='5198'", b""), "not a number"),
        ((b"pid='5198'", b"pid='0'"), "process or thread id 0 is invalid"),
        ((b"<vcpu id='0' pid='5218'/>", b"<vcpu id='0' pid='y'/>"), "not a number"),
        ((b"<uuid>57500000-0000-4000-8000-000000000001</uuid>", b""), "no uuid or no name"),
        ((b"<name>wplab-mixed-1</name>", b""), "no uuid or no name"),
    ],
)
def test_what_is_wrong_with_a_status_file_is_said(change, says):
    with pytest.raises(StatusError, match=says):
        parse_status(REAL.read_bytes().replace(*change))


@given(st.binary(max_size=200))
def test_any_other_bytes_are_a_status_error(text):
    with pytest.raises(StatusError):
        parse_status(text)


def test_disks_of_every_kind_by_their_target():
    status = parse_status(
        with_devices(
            "<disk type='network' device='disk'><source protocol='rbd' name='pool/image'/>"
            "<target dev='vdb' bus='virtio'/></disk>"
            "<disk type='vhostuser' device='disk'><target dev='vdc'/></disk>"
            "<disk type='nvme' device='disk'><target dev='vdd'/></disk>"
            "<disk type='file' device='cdrom'><source file='/a.iso'/><target dev='sda'/></disk>"
            "<disk type='file' device='cdrom'><target dev='sdb'/></disk>"  # an empty drive
            "<disk type='file' device='floppy'><target dev='fda'/></disk>"
            "<disk type='block'><target/></disk><disk type='block'/>"
        )
    )
    assert status.disks == (
        DiskDevice("vda", "file"),
        DiskDevice("vdb", "network"),
        DiskDevice("vdc", "vhostuser"),
        DiskDevice("vdd", "nvme"),
        DiskDevice("sda", "file"),
    )
    assert not status.vfio


def test_an_interface_of_a_libvirt_network_is_what_it_has_become():
    status = parse_status(
        with_devices(
            "<interface type='network'><mac address='52:54:00:AA:00:01'/><source network='ovs'/><target dev='vnet7'/>"
            "<actual type='bridge'><source bridge='br-int'/><virtualport type='openvswitch'>"
            "<parameters interfaceid='port-7'/></virtualport></actual></interface>"
            "<interface type='network'><mac address='52:54:00:aa:00:02'/><target dev='vnet8'/></interface>"
            "<interface type='vhostuser'><mac address='52:54:00:aa:00:03'/>"
            "<source type='unix' path='/run/vhost/vhu9' mode='server'/><target dev='vhu9'/></interface>"
        )
    )
    assert status.interfaces[1:] == (
        InterfaceDevice("vnet7", "52:54:00:aa:00:01", "bridge", "port-7"),
        InterfaceDevice("vnet8", "52:54:00:aa:00:02", "network"),
        InterfaceDevice("vhu9", "52:54:00:aa:00:03", "vhostuser"),
    )
    assert not status.vfio


@pytest.mark.parametrize(
    ("device", "passed"),
    [
        ("<hostdev mode='subsystem' type='pci' managed='yes'/>", True),
        ("<hostdev mode='subsystem' type='mdev' model='vfio-pci'/>", True),
        ("<hostdev mode='subsystem' type='usb'/>", False),
        ("<interface type='hostdev'><mac address='52:54:00:aa:00:04'/></interface>", True),
        ("<interface type='network'><actual type='hostdev'/></interface>", True),
    ],
)
def test_devices_that_are_passed_through_are_reported(device, passed):
    assert parse_status(with_devices(device)).vfio is passed


@pytest.mark.parametrize(
    ("job", "state"),
    [
        ("<job type='none' async='migration out' phase='perform3'/>", "migrating"),
        ("<job type='none' async='migration in'/>", "migrating"),
        ("<job type='none' async='save'/>", "running"),
        ("<job type='modify' async='none'/>", "running"),
        ("<job/>", "running"),
    ],
)
def test_a_vm_on_its_way_to_another_host_is_migrating(job, state):
    assert parse_status(changed("<chardevStdioLogd/>", job)).state == state


def test_metadata_of_others_is_flattened_and_novas_keeps_its_names():
    text = changed(
        "<metadata>",
        "<metadata><app:deploy xmlns:app='http://example.net/1'>"
        "<app:team> storage </app:team><app:empty/><app:team>second</app:team></app:deploy>"
        "<x:tier xmlns:x='urn:x'>gold</x:tier>",
    )
    facts = parse_status(text).facts
    assert {key: value for key, value in facts.items() if key.startswith("meta:")} == {
        "meta:team": "storage",
        "meta:tier": "gold",
    }
    assert facts["nova:name"] == "mixed-server"


def test_what_is_kept_of_metadata_is_bounded():
    many = "".join(f"<a:k{number}>v{number}</a:k{number}>" for number in range(1000))
    long = f"<a:{'n' * 900}>{'t' * 90_000}</a:{'n' * 900}>"
    text = changed(
        "<metadata>", f"<description>{'d' * 9000}</description><metadata><a:top xmlns:a='urn:a'>{long}{many}</a:top>"
    )
    facts = parse_status(text).facts
    assert len(facts["description"]) == 512
    meta = {key: value for key, value in facts.items() if key.startswith("meta:")}
    assert len(meta) == 32
    assert meta["meta:" + "n" * 64] == "t" * 512
    assert meta["meta:k30"] == "v30"
    assert facts["nova:flavor"] == "lab.mixed"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("262144", 262144 * 1024),
        ("0", None),
        ("-1", None),
        ("x", None),
        ("", None),
        (str(2**60), None),
        ("1" * 5000, None),
    ],
)
def test_the_memory_of_a_guest(text, size):
    found = parse_status(re.sub(rb"<memory unit='KiB'>\d+<", f"<memory unit='KiB'>{text}<".encode(), REAL.read_bytes()))
    assert found.memory_bytes == size
