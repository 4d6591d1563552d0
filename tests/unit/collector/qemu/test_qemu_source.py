import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config import LibvirtSection, ProcfsSection, QemuSection, Sources
from collector.base import DiskCounters, InterfaceCounters, Reason, SourceError, Stamp
from collector.inventory.inventory import Inventory
from collector.qemu.discovery import QemuFinder
from collector.qemu.poller import DiskReading
from collector.qemu.source import QemuSource, parse_tap
from collector.registry import build_sources, make_inventory

S = 1_000_000_000


class FakePoller:
    def __init__(self):
        self.readings = {}
        self.watched = []
        self.started = False

    def start(self):
        self.started = True

    def stop(self):
        self.started = False

    def watch(self, vms):
        self.watched = [vm.name for vm in vms]

    def reading(self, uuid, epoch, not_before_ns):
        self.not_before_ns = not_before_ns
        return self.readings.get(epoch, Reason.VM_STARTING)


@pytest.fixture
def inventory(qemu_host, host):
    finder = qemu_host.finder()
    return Inventory(str(host.state), str(host.proc), [finder])


@pytest.fixture
def poller():
    return FakePoller()


@pytest.fixture
def source(inventory, qemu_host, poller):
    return QemuSource(inventory, poller=poller, clocks=qemu_host.clocks)


@pytest.fixture
def take(qemu_host, source):
    """Sample some time later: what is reported of each VM, by its name."""

    def sample(seconds=2.5):
        qemu_host.later(seconds)
        taken = source.sample()
        return {vm.name: taken.vms[vm.uuid] for vm in taken.inventory if vm.uuid in taken.vms}

    return sample


def test_libvirts_vms_are_in_the_inventory_and_not_reported(qemu_host, host, source, poller):
    host.vm("lib", 800, [801])
    qemu_host.process(500, "kvm -name bare")
    sample = source.sample()
    assert [vm.name for vm in sample.inventory] == ["lib", "bare"]
    assert [vm.uuid for vm in sample.inventory if vm.manager == "qemu"] == list(sample.vms)
    assert poller.watched == ["bare"]
    assert (sample.mono_ns, sample.unix_ns) == qemu_host.clocks()


def test_disks_have_their_own_moment(qemu_host, take, poller):
    qemu_host.process(500, "kvm -name one", start=33)
    disks = {"scsi0": DiskCounters(1, 2, 3, 4)}
    poller.readings["111111112222-33"] = DiskReading(Stamp(5, 6), disks)
    vm = take()["one"]
    assert (vm.disks, vm.stamps) == (disks, {"disks": Stamp(5, 6)})
    assert "disks" not in vm.absent
    assert poller.not_before_ns == qemu_host.now_ns - 25 * S
    poller.readings["111111112222-33"] = Reason.STUCK
    vm = take()["one"]
    assert (vm.disks, vm.stamps, vm.absent["disks"]) == (None, {}, Reason.STUCK)


def test_directions_are_the_guests(qemu_host, take):
    qemu_host.process(500, "kvm -name one -netdev tap,id=n,ifname=tap7")
    qemu_host.devices({"tap7": (1000, 2000), "eth0": (5, 6)})
    assert take()["one"].interfaces == {"tap7": InterfaceCounters(2000, 1000, 13, 11, 14, 12)}


def test_interfaces_have_the_moment_of_their_reading(qemu_host, take, inventory, monkeypatch):
    qemu_host.process(500, "kvm -name one -netdev tap,id=n,ifname=tap7")
    qemu_host.devices({"tap7": (1000, 2000)})
    listing = inventory.vms

    def slow():
        qemu_host.later(1.5)
        return listing()

    monkeypatch.setattr(inventory, "vms", slow)
    before = qemu_host.clocks()
    stamp = take(2.5)["one"].stamps["interfaces"]
    assert stamp == qemu_host.clocks()
    assert stamp.mono_ns - before.mono_ns == 4 * S


def test_proxmoxs_taps_are_known_by_their_names_and_plugged_ones_too(qemu_host, take):
    qemu_host.proxmox(10, 500, "-netdev type=tap,id=net0,ifname=tap10i0")
    qemu_host.devices({"tap10i0": (1, 2), "tap100i0": (3, 4), "fwpr10p0": (5, 6)})
    assert set(take()["vm-10"].interfaces) == {"tap10i0"}
    qemu_host.devices({"tap10i0": (1, 2), "tap10i1": (3, 4)})
    assert set(take()["vm-10"].interfaces) == {"tap10i0", "tap10i1"}
    qemu_host.devices({"tap10i1": (3, 4)})
    assert set(take()["vm-10"].interfaces) == {"tap10i1"}
    qemu_host.devices({})
    vm = take()["vm-10"]
    assert (vm.interfaces, vm.absent["interfaces"]) == (None, Reason.NOT_VISIBLE)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("", Reason.NOT_VISIBLE),  # QEMU's own default: a user-mode network
        ("-nodefaults", Reason.NOT_PRESENT),
        ("-nic none", Reason.NOT_PRESENT),
        ("-netdev tap,id=a,ifname=tap7 -readconfig vm.cfg", Reason.NOT_VISIBLE),
        ("-netdev user,id=a", Reason.NOT_VISIBLE),
        ("-netdev vhost-user,id=a,chardev=c", Reason.NOT_VISIBLE),
        ("-netdev tap,id=a,ifname=elsewhere", Reason.NOT_VISIBLE),
        ("-netdev tap,id=a", Reason.NOT_VISIBLE),
        # A sum over the tap alone would look like a quieter VM.
        ("-netdev tap,id=a,ifname=tap7 -netdev user,id=b", Reason.NOT_VISIBLE),
        ("-netdev tap,id=a,ifname=odd", Reason.INVALID_VALUE),
    ],
)
def test_why_there_are_no_interfaces(qemu_host, take, options, reason):
    qemu_host.process(500, f"kvm -name one {options}")
    qemu_host.devices({"tap7": (1, 2), "odd": ("x", 2)})
    vm = take()["one"]
    assert (vm.interfaces, vm.absent["interfaces"]) == (None, reason)


@pytest.mark.parametrize(
    ("kind", "address", "visible"),
    [
        ("0x020000", "host=0000:01:10.0", False),  # an SR-IOV function
        ("0x020000", "host=01:10.0", False),
        ("0x020700", "sysfsdev=/sys/bus/pci/devices/0000:01:10.0", False),
        ("0x030000", "host=0000:01:10.0", True),  # a GPU
        ("", "host=0000:01:10.0", True),
        (None, "host=0000:01:10.0", True),
        ("0x020000", "host=../../../x", True),
    ],
)
def test_beside_a_network_device_passed_through_the_taps_are_not_the_vms_network(
    qemu_host, take, kind, address, visible
):
    device = qemu_host.proc.parent / "sys/bus/pci/devices/0000:01:10.0"
    if kind is not None:
        device.mkdir(parents=True)
        (device / "class").write_text(f"{kind}\n")
    qemu_host.process(500, f"kvm -name one -netdev tap,id=n,ifname=tap7 -device vfio-pci,{address}")
    qemu_host.devices({"tap7": (1000, 2000)})
    vm = take()["one"]
    if visible:
        assert set(vm.interfaces) == {"tap7"}
    else:
        assert (vm.interfaces, vm.absent["interfaces"]) == (None, Reason.NOT_VISIBLE)


def test_a_proxmox_vm_without_network(qemu_host, take):
    qemu_host.proxmox(10, 500)
    assert take()["vm-10"].absent["interfaces"] is Reason.NOT_PRESENT


def test_taps_are_those_of_qemus_own_network_namespace(qemu_host, take):
    """Two VMs, each in its own namespace, with taps of one name, which the agent's has too."""
    qemu_host.devices({"tap0": (1, 1)})
    for pid, name, amount in ((500, "one", 100), (600, "two", 200)):
        qemu_host.process(pid, f"kvm -name {name} -netdev tap,id=n,ifname=tap0")
        qemu_host.devices({"tap0": (amount, amount + 1)}, f"{pid}/net/dev")
    vms = take()
    assert vms["one"].interfaces["tap0"].transmit_bytes == 100
    assert vms["two"].interfaces["tap0"].transmit_bytes == 200
    qemu_host.devices({}, "500/net/dev")
    vms = take()
    assert vms["one"].absent["interfaces"] is Reason.NOT_VISIBLE  # never another's tap of that name
    assert vms["two"].interfaces["tap0"].receive_bytes == 201


def test_a_tap_that_was_handed_in_may_be_in_the_agents_namespace(qemu_host, take):
    qemu_host.process(500, "kvm -name one -netdev tap,id=n,fd=30")
    (qemu_host.proc / "500/fdinfo").mkdir()
    (qemu_host.proc / "500/fdinfo/30").write_text("iff:\tgiven\n")
    qemu_host.devices({}, "500/net/dev")
    qemu_host.devices({"given": (7, 8)})
    assert take()["one"].interfaces["given"].transmit_bytes == 7


def test_interfaces_that_open_vswitch_reports_are_left_to_it(qemu_host, inventory, take):
    qemu_host.process(500, "kvm -name one -uuid 57500000-0000-4000-8000-000000000001 -netdev tap,id=n,ifname=tap7")
    qemu_host.devices({"tap7": (1, 2)})
    vm = inventory.vms()[0]
    inventory.interfaces_covered.replace(qemu_host.now_ns, {vm.uuid: vm.epoch})
    reported = take()["one"]
    assert (reported.interfaces, "interfaces" in reported.absent) == (None, False)
    assert take(60)["one"].interfaces is not None  # it stopped telling


def test_a_vm_whose_vcpus_nobody_reports(qemu_host, take, poller, caplog):
    qemu_host.process(500, "kvm -name one", start=33, threads=("q", "q", "q"))
    assert "threads" not in take()["one"].absent  # not asked yet
    poller.readings["111111112222-33"] = Reason.NOT_VISIBLE
    take(10)
    for _ in range(2):
        assert take()["one"].absent["threads"] is Reason.NOT_VISIBLE
    assert caplog.text.count("its vCPU threads are not known; start QEMU with -name NAME,debug-threads=on") == 1


def test_vcpus_that_are_not_named_yet_or_ended_first_are_no_fault(qemu_host, take, poller, caplog):
    """QEMU has other threads before its vCPUs, and when they have ended; its socket answers in neither moment."""
    threads = ("qemu", "call_rcu", "IO mon_iothread", "CPU 0/KVM")
    qemu_host.process(500, "kvm -name one,debug-threads=on", start=33, threads=threads[:3])
    poller.readings["111111112222-33"] = Reason.NOT_VISIBLE
    assert "threads" not in take()["one"].absent
    qemu_host.thread(500, 503, threads[3])
    for _ in range(8):
        assert "threads" not in take()["one"].absent
    (qemu_host.proc / "500/task/503/comm").unlink()
    (qemu_host.proc / "500/task/503").rmdir()
    assert "threads" not in take()["one"].absent
    assert caplog.text == ""


def test_many_vms_cost_one_file(qemu_host, take, monkeypatch):
    for number in range(20):
        qemu_host.proxmox(100 + number, 1000 + 10 * number, f"-netdev type=tap,id=n,ifname=tap{100 + number}i0")
    qemu_host.devices({f"tap{100 + number}i0": (number, 1) for number in range(20)})
    reads = []
    real = type(qemu_host.proc).read_bytes
    monkeypatch.setattr(type(qemu_host.proc), "read_bytes", lambda path: reads.append(path.name) or real(path))
    vms = take()
    assert reads.count("dev") == 1
    assert [vms[f"vm-{100 + n}"].interfaces[f"tap{100 + n}i0"].transmit_bytes for n in range(20)] == list(range(20))


def test_devices_that_cannot_be_read_are_an_error_with_the_place(qemu_host, source, monkeypatch):
    qemu_host.process(500, "kvm -name one -netdev tap,id=n,ifname=t")
    (qemu_host.proc / "net/dev").unlink()
    (qemu_host.proc / "net/dev").mkdir()
    with pytest.raises(SourceError, match=r"net/dev: Is a directory"):
        source.sample()


def test_a_namespace_that_ended_meanwhile(qemu_host, take):
    qemu_host.process(500, "kvm -name one -netdev tap,id=n,ifname=t")
    qemu_host.devices({"t": (1, 2)}, "500/net/dev")
    assert take()["one"].interfaces
    (qemu_host.proc / "500/net/dev").unlink()
    assert take()["one"].absent["interfaces"] is Reason.NOT_VISIBLE


def test_probe_counts_and_changes_nothing(qemu_host, source, poller):
    qemu_host.process(500, "kvm -name one")
    probe = source.probe()
    assert probe.available
    assert probe.detail.startswith("1 VM without libvirt now; ")
    assert not poller.started
    source.open()
    assert poller.started
    source.close()
    assert not poller.started


def test_a_tap_of_any_bytes_costs_no_other_vm_its_network(qemu_host, take):
    qemu_host.process(490, "set below")
    arguments = (b"kvm", b"-name", b"odd", b"-netdev", b"tap,id=n,ifname=tap\xff")
    (qemu_host.proc / "490/cmdline").write_bytes(b"".join(word + b"\0" for word in arguments))
    qemu_host.process(500, "kvm -name one -netdev tap,id=n,ifname=tap1")
    qemu_host.devices({"tap1": (100, 50)})
    vms = take()
    assert vms["odd"].absent["interfaces"] is Reason.NOT_VISIBLE
    assert list(vms["one"].interfaces) == ["tap1"]


def test_probe_says_what_is_wrong(qemu_host, host):
    finder = QemuFinder(str(qemu_host.folder / "none"))
    probe = QemuSource(Inventory(str(host.state), str(host.proc), [finder])).probe()
    assert (probe.available, probe.reason) == (False, Reason.NOT_PRESENT)
    none = qemu_host.folder / "none"
    assert probe.detail == f"{none}: No such file or directory; see sources.procfs.root"


def test_probe_distinguishes_what_may_not_be_read_from_what_is_not_there(inventory, source, monkeypatch):
    def refused(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("collector.qemu.discovery.listed", refused)
    probe = source.probe()
    assert (probe.available, probe.reason) == (False, Reason.NO_PERMISSION)
    assert probe.detail.endswith("Permission denied; run the agent as root")


def test_an_inventory_without_our_finder_is_a_defect():
    with pytest.raises(SourceError, match="no finder"):
        QemuSource(Inventory())


def test_a_poller_of_its_own_starts_and_ends(inventory):
    source = QemuSource(inventory, disk_poll_s=1)
    source.open()
    assert [t for t in threading.enumerate() if t.name == "qemu-qmp"]
    source.close()
    source.close()
    assert not [t for t in threading.enumerate() if t.name == "qemu-qmp"]


@given(st.lists(st.integers(0, 1 << 63), min_size=16, max_size=16))
def test_a_taps_line(numbers):
    line = " " + "  ".join(map(str, numbers))
    assert parse_tap(line.encode()) == InterfaceCounters(
        numbers[8], numbers[0], numbers[9], numbers[1], numbers[11], numbers[3]
    )


@pytest.mark.parametrize("line", [b"", b"1 2 3", b"x " * 16, b"1 " * 17])
def test_a_line_that_is_none(line):
    with pytest.raises(ValueError, match=r"are needed|invalid literal"):
        parse_tap(line)


def test_the_registry_wires_it_as_configured(qemu_host, host):
    sources = Sources(
        libvirt=LibvirtSection(state_dir=str(host.state)),
        procfs=ProcfsSection(root=str(host.proc)),
        qemu=QemuSection(proxmox_run_dir=str(qemu_host.run_dir)),
    )
    qemu_host.proxmox(10, 500)
    inventory = make_inventory(sources)
    assert [vm.manager for vm in inventory.vms()] == ["proxmox"]
    made = [source for source, _ in build_sources(sources, inventory) if source.name == "qemu"]
    assert [type(source) for source in made] == [QemuSource]
    off = msgspec.structs.replace(sources, qemu=QemuSection(mode="off"))
    assert make_inventory(off).vms() == ()
