import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.base import DiskDevice
from collector.qemu.cmdline import Netdev, disk_kind, is_qemu, parse_command_line, parse_options

# As `qm showcmd` prints it, shortened: Proxmox VE 8 (drives) and 9 (block devices as JSON).
PROXMOX_8 = """/usr/bin/kvm -id 101 -name 'web1,debug-threads=on' -no-shutdown
 -chardev 'socket,id=qmp,path=/var/run/qemu-server/101.qmp,server=on,wait=off' -mon 'chardev=qmp,mode=control'
 -chardev 'socket,id=qmp-event,path=/var/run/qmeventd.sock,reconnect=5' -mon 'chardev=qmp-event,mode=control'
 -pidfile /var/run/qemu-server/101.pid -daemonize -smbios 'type=1,uuid=7B10D7AF-b932-4c66-b2c3-3996152ec465'
 -smp '3,sockets=1,cores=3,maxcpus=3' -nodefaults -vnc 'unix:/var/run/qemu-server/101.vnc,password=on' -m 768
 -chardev 'socket,path=/var/run/qemu-server/101.qga,server=on,wait=off,id=qga0'
 -drive 'if=pflash,unit=1,id=drive-efidisk0,format=raw,file=/dev/pve/vm-101-disk-9'
 -drive 'if=none,id=drive-ide2,media=cdrom,aio=io_uring'
 -device 'ide-cd,bus=ide.1,unit=0,drive=drive-ide2,id=ide2,bootindex=200' -device 'virtio-scsi-pci,id=scsihw0'
 -drive 'file=rbd:pool/vm-101-disk-0:mon_host=[\\:\\:1]:auth_supported=none,if=none,id=drive-scsi0,format=raw'
 -device 'scsi-hd,bus=scsihw0.0,channel=0,scsi-id=0,lun=0,drive=drive-scsi0,id=scsi0,bootindex=100'
 -drive 'file=/dev/pve/vm-101-disk-1,if=none,id=drive-scsi1,format=raw,cache=none'
 -device 'scsi-hd,bus=scsihw0.0,channel=0,scsi-id=0,lun=1,drive=drive-scsi1,id=scsi1'
 -netdev 'type=tap,id=net0,ifname=tap101i0,script=/var/lib/qemu-server/pve-bridge,vhost=on,queues=2'
 -device 'virtio-net-pci,mac=A2:C0:43:77:08:A0,netdev=net0,bus=pci.0,addr=0x12,id=net0' -machine 'type=pc+pve0'"""

PROXMOX_9 = """/usr/bin/kvm -id 102 -name 'db,debug-threads=on' -pidfile /var/run/qemu-server/102.pid -daemonize
 -chardev 'socket,id=qmp,path=/var/run/qemu-server/102.qmp,server=on,wait=off' -mon 'chardev=qmp,mode=control'
 -chardev 'socket,id=qmp-event,path=/var/run/qmeventd.sock,reconnect-ms=5000' -mon 'chardev=qmp-event,mode=control'
 -object '{"id":"throttle-drive-scsi0","limits":{},"qom-type":"throttle-group"}'
 -blockdev '{"driver":"throttle","file":{"driver":"qcow2","file":{"driver":"file","filename":"/var/lib/vz/a.qcow2",
 "node-name":"e0"},"node-name":"f0"},"node-name":"drive-scsi0","throttle-group":"throttle-drive-scsi0"}'
 -device 'scsi-hd,bus=scsihw0.0,scsi-id=0,drive=drive-scsi0,id=scsi0,device_id=drive-scsi0,write-cache=on'
 -device 'vfio-pci,host=0000:f0:43.0,id=hostpci0' -machine 'accel=tcg,type=pc+pve1'"""

LIBVIRT = """/usr/bin/qemu-system-x86_64 -name guest=wplab-mixed-1,debug-threads=on -S
 -object '{"qom-type":"secret","id":"masterKey0","format":"raw",
 "file":"/var/lib/libvirt/qemu/domain-1-wplab-mixed-1/master-key.aes"}'
 -machine pc-i440fx-7.2,usb=off,dump-guest-core=off -accel tcg -uuid 57500000-0000-4000-8000-000000000001
 -chardev socket,id=charmonitor,fd=22,server=on,wait=off -mon chardev=charmonitor,id=monitor,mode=control"""


def parse(text):
    return parse_command_line(b"\0".join(word.encode() for word in shlex.split(text)) + b"\0")


def test_proxmox_8():
    found = parse(PROXMOX_8)
    assert (found.name, found.uuid) == ("web1", "7b10d7af-b932-4c66-b2c3-3996152ec465")
    assert found.accelerator == "kvm"
    assert found.pidfile == "/var/run/qemu-server/101.pid"
    # Neither qmeventd's, which QEMU calls itself, nor the guest agent's.
    assert found.qmp == ("/var/run/qemu-server/101.qmp",)
    assert found.disks == (DiskDevice("scsi0", "network"), DiskDevice("scsi1", "block"))
    assert found.netdevs == (Netdev("net0", "ethernet", "tap101i0", (), "a2:c0:43:77:08:a0"),)
    assert (found.vfio, found.libvirt) == (False, False)


def test_proxmox_9():
    found = parse(PROXMOX_9.replace("\n", ""))
    assert (found.name, found.uuid, found.accelerator, found.machine) == ("db", "", "tcg", "pc+pve1")
    assert found.qmp == ("/var/run/qemu-server/102.qmp",)
    assert found.disks == (DiskDevice("scsi0", "file"),)
    assert found.vfio


def test_libvirts_are_known():
    assert parse(LIBVIRT).libvirt
    probing = "qemu-system-x86_64 -S -M none,accel=kvm:tcg -qmp unix:/var/lib/libvirt/qemu/qmp-XY/qmp.monitor,server=on"
    assert parse(probing).libvirt
    assert parse("qemu-system-x86_64 -M none").machine == "none"


def test_a_disk_in_libvirts_folder_makes_no_vm_libvirts():
    assert not parse("qemu-system-x86_64 -drive file=/var/lib/libvirt/images/a.img -nic none").libvirt


def test_bare():
    found = parse(
        "/usr/bin/qemu-system-x86_64 --name guest=a,,b=c,process=x -uuid 57500000-0000-4000-8000-000000000001 "
        "-accel kvm,thread=multi -qmp unix:/run/q,,1.sock,server,nowait -qmp tcp:localhost:1,server=on "
        "-qmp-pretty unix:/run/client.sock -monitor unix:/run/hmp,server=on "
        "-drive file=/srv/a,,b.img,if=virtio,id=one -drive file=nbd://h/x,id=two -hda /dev/sdb "
        "-blockdev driver=file,node-name=f,filename=/x -blockdev driver=qcow2,node-name=q,file=f "
        "-device virtio-blk-pci,drive=q,id=disk-q -device vhost-user-blk-pci,chardev=c,id=vub "
        "-netdev tap,id=n0,fds=30:31 -netdev user,id=n1 -nic tap,ifname=t1,mac=52:54:00:00:00:0A -net nic -net none"
    )
    assert found.name == "a,b=c"
    assert found.accelerator == "kvm"
    assert found.qmp == ("/run/q,1.sock",)
    assert found.disks == (
        DiskDevice("hda", "block"),
        DiskDevice("one", "file"),
        DiskDevice("two", "network"),
        DiskDevice("disk-q", "file"),
        DiskDevice("vub", "vhostuser"),
    )
    assert found.netdevs == (
        Netdev("n0", "ethernet", fds=(30, 31)),
        Netdev("n1", "user"),
        Netdev("", "ethernet", "t1", (), "52:54:00:00:00:0a"),
    )
    assert [netdev.tap for netdev in found.netdevs] == [True, False, True]


@pytest.mark.parametrize(
    ("text", "accelerator"),
    [
        ("qemu-system-x86_64 -enable-kvm", "kvm"),
        ("qemu-system-x86_64 -machine q35,accel=kvm:tcg", "kvm"),
        ("qemu-system-x86_64 -M accel=tcg", "tcg"),
        ("qemu-system-x86_64 -accel tcg -accel kvm", "tcg"),  # the first that works
        ("/usr/libexec/qemu-kvm", "kvm"),
        ("kvm -accel tcg", "tcg"),
        ("qemu-system-x86_64", None),
    ],
)
def test_accelerator(text, accelerator):
    assert parse(text).accelerator == accelerator


def test_abstract_sockets_and_chardevs_of_qmp():
    text = "kvm -chardev socket,id=m,path=vm1,abstract=on,server=on -qmp chardev:m -chardev null,id=n -mon n"
    assert parse(text).qmp == ("\0vm1",)


def test_a_free_text_is_no_option():
    found = parse("kvm -append -uuid -name real -uuid 00000000-0000-0000-0000-000000000000 -kernel -name")
    assert (found.name, found.uuid) == ("real", "")


@pytest.mark.parametrize(
    ("options", "whole"),
    [
        ("", False),  # QEMU adds a network card with a user-mode network by itself
        ("-nodefaults", True),
        ("-nic none", True),
        ("-net none", True),
        ("-netdev tap,id=n", True),
        ("-device virtio-net-pci", False),
        ("-append -nodefaults", False),
        ("-nodefaults -readconfig /etc/vm.cfg", False),  # which may have devices
    ],
)
def test_whether_all_network_devices_are_reported(options, whole):
    assert parse(f"kvm {options}").networks_known is whole


def test_a_uuid_that_is_none_is_left_out():
    assert parse("kvm -uuid nonsense -smbios type=0,uuid=57500000-0000-4000-8000-000000000001").uuid == ""
    assert parse("kvm -smbios file=x -smbios type=1").uuid == ""


@pytest.mark.parametrize(
    ("program", "yes"),
    [
        (b"/usr/bin/qemu-system-x86_64\0-m\0", True),
        (b"qemu-system-aarch64\0", True),
        (b"/usr/libexec/qemu-kvm\0", True),
        (b"/usr/bin/kvm\0-id\0", True),
        (b"kvm", True),
        (b"qemu-img\0create\0", False),
        (b"/usr/bin/qemu-x86_64-static\0/bin/ls\0", False),
        (b"sh\0-c\0qemu-system-x86_64\0", False),
        (b"/usr/bin/lkvm\0", False),
        (b"vi\0/etc/kvm\0", False),
        (b"", False),
    ],
)
def test_which_programs_are_qemu(program, yes):
    assert is_qemu(program) is yes


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a,b=c", {"first": "a", "b": "c"}),
        ("a=1,b,noc,,=x", {"a": "1", "b": "on", "noc,": "x"}),
        ("x,nowait,no", {"first": "x", "wait": "off", "no": "on"}),
        ("a,,,b=1", {"first": "a,", "b": "1"}),
        ('{"driver":"raw","file":{"driver":"rbd","server":[{"host":"h"}],"x":null},"ro":true}',
         {"driver": "raw", "file.driver": "rbd", "file.server.0.host": "h", "ro": "on"}),
        ("{broken", {}),
    ],
)  # fmt: skip
def test_options(text, options):
    assert parse_options(text, "first") == options


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{3,8}", fullmatch=True), st.text(st.characters(exclude_characters="\0")), min_size=1
    )
)
def test_options_are_what_was_quoted(options):
    text = ",".join(f"{key}={value.replace(',', ',,')}" for key, value in options.items())
    assert parse_options(text) == options
    assert parse_options(json.dumps(options)) == options


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)))
def test_any_arguments_are_survived(arguments):
    parse_command_line("\0".join(["kvm", "-netdev", *arguments, "-blockdev", *arguments]).encode() + b"\0")


@pytest.mark.parametrize(
    ("filename", "kind"),
    [
        ("/srv/a.qcow2", "file"),
        ("relative.img", "file"),
        ("/dev/pve/vm-1", "block"),
        ("/dev/fdset/2", "file"),
        ("host_device:/dev/sdc", "block"),
        ("rbd:pool/image", "network"),
        ("iscsi://h/t/0", "network"),
        ("nvme://0000:01:00.0/1", "nvme"),
        ('json:{"driver":"raw","file":{"driver":"rbd","pool":"p"}}', "network"),
        ('json:{"driver":"qcow2","file":{"driver":"host_device","filename":"/dev/x"}}', "block"),
        ("json:{", ""),
        ("", ""),
    ],
)
def test_disk_kind(filename, kind):
    assert disk_kind(filename) == kind


def test_a_ring_of_block_devices_ends():
    text = "kvm -blockdev driver=raw,node-name=a,file=b -blockdev driver=raw,node-name=b,file=a -device x,drive=a,id=d"
    assert parse(text).disks == (DiskDevice("d", ""),)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("-m 768", 768 << 20),
        ("-m 4G", 4 << 30),
        ("-m 512m", 512 << 20),
        ("-m size=2g,slots=4,maxmem=8G", 2 << 30),
        ("-m 1024 -m 2048", 2 << 30),
        ("", None),
        ("-m 0", None),
        ("-m -4", None),
        ("-m \u0664G", None),
        ("-m 99999999999999999G", None),
        ("-m G", None),
    ],
)
def test_the_memory_of_a_guest(text, size):
    line = "\0".join(["/usr/bin/kvm", *text.split(), ""]).encode()
    assert parse_command_line(line).memory_bytes == size
