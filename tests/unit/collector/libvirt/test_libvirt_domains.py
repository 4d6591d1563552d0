"""The libvirt source against a stand-in of the binding; against the real libvirtd in tests/integration."""

import itertools
import logging
import sys
import threading
import time

import pytest

from collector.base import DiskCounters, InterfaceCounters, Reason, SourceError, Stamp
from collector.inventory.inventory import Inventory
from collector.libvirt.source import LibvirtSource, parse_disks, parse_interfaces

S = 10**9
UNIX0 = 1_700_000_000 * S
INTERFACE, BLOCK = 16, 32
NOWAIT = 1 << 29

NET = {
    "net.count": 1,
    "net.0.name": "vnet3",
    "net.0.rx.bytes": 11,
    "net.0.rx.pkts": 12,
    "net.0.rx.errs": 0,
    "net.0.rx.drop": 13,
    "net.0.tx.bytes": 21,
    "net.0.tx.pkts": 22,
    "net.0.tx.errs": 0,
    "net.0.tx.drop": 23,
}
# As libvirt 9.0 answers for a VM with two drives, one of them empty.
BLOCKS = {
    "block.count": 2,
    "block.0.name": "vda",
    "block.0.path": "/images/a.raw",
    "block.0.rd.reqs": 31,
    "block.0.rd.bytes": 32,
    "block.0.rd.times": 33,
    "block.0.wr.reqs": 41,
    "block.0.wr.bytes": 42,
    "block.1.name": "sda",
}
# Of a VM that another call holds: QEMU was not asked.
HELD = {"block.count": 1, "block.0.name": "vda", "block.0.path": "/images/a.raw"}

DISK = "<disk type='file' device='disk'><source file='/images/a.raw'/><target dev='vda'/></disk>"
TAP = "<interface type='bridge'><mac address='52:54:00:00:00:01'/><target dev='vnet3'/></interface>"
DEVICES = f"<devices>{DISK}{TAP}</devices>"


class FakeLibvirt:
    """The few parts of the binding that the source uses; `domains` maps UUID to record or exception."""

    VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT = NOWAIT
    VIR_CONNECT_LIST_DOMAINS_ACTIVE = 1
    VIR_ERR_NO_SUPPORT = 3
    VIR_DOMAIN_STATS_INTERFACE, VIR_DOMAIN_STATS_BLOCK = INTERFACE, BLOCK
    VIR_DOMAIN_EVENT_ID_LIFECYCLE, VIR_DOMAIN_EVENT_ID_DEVICE_ADDED, VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED = (0, 19, 15)
    VIR_CONNECT_CLOSE_REASON_EOF, VIR_CONNECT_CLOSE_REASON_KEEPALIVE = 1, 2

    class libvirtError(Exception):  # noqa: N801 - the binding's name
        code = 1  # VIR_ERR_INTERNAL_ERROR

        def get_error_code(self):
            return self.code

    def __init__(self):
        self.domains = {}
        self.opened = []
        self.refuse = None
        self.refuse_keep_alive = None
        self.refuse_events = None
        self.asked = []
        self.lists = 0
        self.during = lambda: None
        self.loops = 0

    def registerErrorHandler(self, handler, context):  # noqa: N802 - the binding's names, here and below
        handler(context, None)

    def virEventRegisterDefaultImpl(self):  # noqa: N802 - libvirt's name
        assert not self.opened, "keep-alive works only for connections opened after this"
        self.loops += 1

    def virEventRunDefaultImpl(self):  # noqa: N802 - libvirt's name
        threading.Event().wait()

    def openReadOnly(self, uri):  # noqa: N802 - libvirt's name
        if self.refuse is not None:
            raise self.refuse
        connection = FakeConnection(self, uri)
        self.opened.append(connection)
        return connection

    def blocks(self):
        """The VMs whose disks were asked for since the last call."""
        found = [uuids for group, uuids in self.asked if group == BLOCK]
        assert all(len(uuids) == 1 for uuids in found)
        self.asked.clear()
        return [uuids[0] for uuids in found]


class FakeDomain:
    def __init__(self, uuid, connection=None):
        self._uuid = uuid
        self.connection = connection

    def UUIDString(self):  # noqa: N802 - libvirt's name
        return self._uuid


class FakeConnection:
    def __init__(self, module, uri):
        self.module = module
        self.uri = uri
        self.alive = True
        self.closed = False
        self.keep_alive = None
        self.events = {}
        self.on_close = None

    def setKeepAlive(self, interval, count):  # noqa: N802 - libvirt's name
        if self.module.refuse_keep_alive is not None:
            raise self.module.refuse_keep_alive
        self.keep_alive = (interval, count)

    def registerCloseCallback(self, callback, opaque):  # noqa: N802 - libvirt's name
        self.on_close = lambda reason: callback(self, reason, opaque)

    def unregisterCloseCallback(self):  # noqa: N802 - libvirt's name
        self.on_close = None

    def domainEventRegisterAny(self, domain, event, callback, opaque):  # noqa: N802 - libvirt's name
        assert domain is None
        if self.module.refuse_events is not None:
            raise self.module.refuse_events
        self.events[event] = lambda uuid, *what: callback(self, FakeDomain(uuid), *what, opaque)
        return event

    def domainEventDeregisterAny(self, callback):  # noqa: N802 - libvirt's name
        if not self.alive:
            raise self.module.libvirtError("client socket is closed")
        del self.events[callback]

    def getLibVersion(self):  # noqa: N802 - libvirt's name
        return 9_000_000

    def isAlive(self):  # noqa: N802 - libvirt's name
        return self.alive

    def end(self, reason):
        """The daemon goes (1: end of file) or falls silent (2: keep-alive)."""
        self.alive = False
        self.on_close(reason)

    def close(self):
        self.closed = True

    def numOfDomains(self):  # noqa: N802 - libvirt's name
        self._check()
        return len(self.module.domains)

    def listAllDomains(self, flags):  # noqa: N802 - libvirt's name
        assert flags == 1
        self._check()
        self.module.lists += 1
        return [FakeDomain(uuid, self) for uuid in self.module.domains]

    def domainListGetStats(self, domains, stats, flags):  # noqa: N802 - libvirt's name
        assert flags == NOWAIT
        assert stats in (INTERFACE, BLOCK)
        self.module.asked.append((stats, [domain.UUIDString() for domain in domains]))
        self.module.during()
        self._check()
        found = []
        for domain in domains:
            assert domain.connection is self, "a handle of an older connection"
            record = self.module.domains.get(domain.UUIDString())
            if isinstance(record, Exception):
                raise record
            if record is not None:  # libvirt skips what it does not know
                prefix = "net." if stats == INTERFACE else "block."
                found.append((domain, {k: v for k, v in record.items() if k.startswith(prefix)}))
        return found

    def _check(self):
        if not self.alive:
            raise self.module.libvirtError("client socket is closed")


class Clocks:
    """Both clocks, moved by the test."""

    def __init__(self):
        self.mono_ns = 1000 * S
        self.unix_ns = UNIX0

    def __call__(self):
        return Stamp(self.mono_ns, self.unix_ns)

    def advance(self, seconds):
        self.mono_ns += round(seconds * S)
        self.unix_ns += round(seconds * S)


@pytest.fixture
def module():
    return FakeLibvirt()


@pytest.fixture
def clocks():
    return Clocks()


@pytest.fixture
def inventory(host):
    return Inventory(str(host.state), str(host.proc))


@pytest.fixture
def source(host, module, clocks, inventory, monkeypatch):
    # The process's one event loop is the real binding's: tests of the real libvirtd may follow.
    monkeypatch.setattr("collector.libvirt.connection._event_loop", None)
    host.vm("a", 10, [11], extra=DEVICES)
    host.vm("b", 20, [21], extra=DEVICES)
    module.domains = {host.uuid_of("a"): NET | BLOCKS, host.uuid_of("b"): NET | BLOCKS}
    source = LibvirtSource("qemu:///system", inventory=inventory, binding=module, clocks=clocks)
    yield source
    source.close()


def test_disks_and_interfaces_of_a_record():
    assert parse_disks(BLOCKS) == {"vda": DiskCounters(read_bytes=32, write_bytes=42, read_ops=31, write_ops=41)}
    assert parse_interfaces(NET) == {
        "vnet3": InterfaceCounters(
            receive_bytes=11,
            transmit_bytes=21,
            receive_packets=12,
            transmit_packets=22,
            receive_drops=13,
            transmit_drops=23,
        )
    }
    undropped = {key: value for key, value in NET.items() if not key.endswith("drop")}
    assert parse_interfaces(undropped)["vnet3"].transmit_drops is None


def test_read_only_with_keep_alive_and_without_waiting_for_busy_vms(host, module, source):
    sample = source.sample()
    a, b = host.uuid_of("a"), host.uuid_of("b")
    assert module.asked == [(INTERFACE, [a, b]), (BLOCK, [a]), (BLOCK, [b])]
    assert module.opened[0].keep_alive == (1, 3)
    assert sorted(module.opened[0].events) == [0, 15, 19]
    assert (sample.source, sample.mono_ns, sample.unix_ns) == ("libvirt", 1000 * S, UNIX0)
    vm = sample.vms[a]
    assert vm.epoch == "111111112222-1000"
    assert vm.disks["vda"].read_bytes == 32
    assert vm.interfaces["vnet3"].receive_bytes == 11
    assert (vm.threads, vm.perf, dict(vm.absent)) == (None, None, {})
    assert dict(vm.stamps) == dict.fromkeys(("disks", "interfaces"), Stamp(1000 * S, UNIX0))
    source.sample()
    assert len(module.opened) == 1
    assert module.lists == 1  # handles are kept


def test_libvirt_is_asked_for_the_vms_of_nova_too(host, module, source):
    nova = "<metadata><n:instance xmlns:n='http://openstack.org/xmlns/libvirt/nova/1.1'/></metadata>"
    host.vm("a", 10, [11], extra=nova + DEVICES)
    sample = source.sample()
    assert sample.inventory[0].manager == "nova"
    assert sample.vms[host.uuid_of("a")].disks["vda"].read_bytes == 32


def test_states_are_those_of_the_status_files_and_libvirt_is_not_asked(host, module, source):
    host.vm("b", 20, [21], extra=DEVICES, state="paused")
    assert [vm.state for vm in source.sample().inventory] == ["running", "paused"]
    assert {group for group, _ in module.asked} == {INTERFACE, BLOCK}


# -- when disks are read


def test_disks_are_read_at_once_again_a_tick_later_and_then_once_per_period(host, module, source, clocks):
    a = host.uuid_of("a")
    asked = []
    for second in range(40):
        sample = source.sample()
        if a in module.blocks():
            asked.append(second)
            assert sample.vms[a].stamps["disks"] == clocks()
        else:
            # Handed on, with the moment of its reading.
            assert sample.vms[a].stamps["disks"].mono_ns == (1000 + asked[-1]) * S
            assert sample.vms[a].disks["vda"].read_bytes == 32
        assert sample.mono_ns == clocks.mono_ns
        clocks.advance(1)
    assert asked[:2] == [0, 1]
    assert 2 <= asked[2] <= 11
    assert [later - earlier for earlier, later in itertools.pairwise(asked[2:])] == [10] * (len(asked) - 3)
    assert len(asked) >= 5


def test_a_paused_vm_is_asked_once_more_and_then_rarely_and_its_reading_stays_true(host, module, source, clocks):
    a = host.uuid_of("a")
    asked = []

    def run(seconds):
        for _ in range(seconds):
            sample = source.sample()
            if a in module.blocks():
                asked.append(clocks.mono_ns // S)
            age_ns = clocks.mono_ns - sample.vms[a].stamps["disks"].mono_ns
            assert 0 <= age_ns <= 10 * S  # never stale
            clocks.advance(1)

    run(30)
    running = len(asked)
    host.vm("a", 10, [11], extra=DEVICES, state="paused")
    source._connection._touched.append(a)  # libvirt reports the suspension
    paused_at = clocks.mono_ns // S
    run(90)
    assert asked[running:] == [paused_at]
    run(40)
    assert len(asked) == running + 2  # asked in one of ten periods
    host.vm("a", 10, [11], extra=DEVICES)
    source._connection._touched.append(a)
    resumed_at = clocks.mono_ns // S
    run(30)
    assert asked[running + 2] == resumed_at
    assert len(asked) >= running + 5


def test_polls_of_many_vms_are_spread_over_the_period(host, module, source, clocks):
    names = [f"vm{number:03}" for number in range(100)]
    for number, name in enumerate(names):
        host.vm(name, 100 + number, [1000 + number], extra=DEVICES)
        module.domains[host.uuid_of(name)] = NET | BLOCKS
    per_tick = []
    for _ in range(32):
        source.sample()
        per_tick.append(len(module.blocks()))
        clocks.advance(1)
    assert per_tick[:2] == [102, 102]
    assert sum(per_tick[12:22]) == sum(per_tick[22:32]) == 102
    assert max(per_tick[2:]) <= 14


def test_a_short_period_reads_at_every_sampling(host, module, clocks, inventory, source):
    often = LibvirtSource("qemu:///system", inventory=inventory, binding=module, clocks=clocks, disk_poll_s=0.05)
    for _ in range(4):
        assert often.sample().vms[host.uuid_of("a")].stamps["disks"] == clocks()
        assert len(module.blocks()) == 2
        clocks.advance(0.25)


def test_a_slow_daemon_is_not_asked_for_all_disks_in_one_sampling(host, module, source, clocks):
    for number in range(8):
        host.vm(f"vm{number}", 100 + number, [1000 + number], extra=DEVICES)
        module.domains[host.uuid_of(f"vm{number}")] = NET | BLOCKS
    module.during = lambda: clocks.advance(0.2)  # of a deadline of 2 s
    seen = []
    for _ in range(6):
        source.sample()
        found = module.blocks()
        assert len(found) == 2
        seen += found
    assert len(set(seen[:10])) == 10  # those that were left out come first


def test_after_a_call_that_hung_disks_are_read_twice_for_a_rate(host, module, source, clocks):
    a = host.uuid_of("a")
    for _ in range(3):  # at once, a tick later, and in its turn
        source.sample()
        while a not in module.blocks():
            clocks.advance(1)
            source.sample()
        clocks.advance(1)
    clocks.advance(9)
    # When it is asked, the last reading is not old yet.
    module.during = lambda: clocks.advance(60 if module.asked[-1] == (BLOCK, [a]) else 0)
    source.sample()
    module.during = lambda: None
    asked = [a in module.blocks()]
    for _ in range(19):
        clocks.advance(0.5)
        source.sample()
        asked.append(a in module.blocks())
    # The sampling that hung is not seen by whoever asked for it, so it takes two more.
    assert asked[:3] == [True, True, True]
    assert sum(asked) <= 4  # then once per period


@pytest.mark.parametrize("event", [0, 15, 19])
def test_what_libvirt_reports_of_a_vm_makes_its_disks_due(host, module, source, clocks, event):
    a, b = host.uuid_of("a"), host.uuid_of("b")
    for _ in range(3):
        source.sample()
        clocks.advance(0.01)
    module.blocks()
    module.opened[0].events[event](b, 3, 0)
    source.sample()
    assert module.blocks() == [b]
    clocks.advance(0.01)
    source.sample()
    assert module.blocks() == []
    host.vm("a", 10, [11], extra=DEVICES.replace(DISK, DISK + DISK.replace("vda", "vdb")))  # plugged in
    source.sample()
    assert module.blocks() == [a]


def test_a_new_epoch_begins_again(host, module, source, clocks):
    for _ in range(3):
        source.sample()
        clocks.advance(0.01)
    module.blocks()
    host.vm("a", 30, [31], start=9000, extra=DEVICES)
    for _ in range(2):
        assert source.sample().vms[host.uuid_of("a")].epoch == "111111112222-9000"
        assert module.blocks() == [host.uuid_of("a")]
        clocks.advance(0.01)


def test_steps_of_the_wall_clock_change_labels_only(host, module, source, clocks):
    a = host.uuid_of("a")
    asked = []
    for second in range(30):
        sample = source.sample()
        if a in module.blocks():
            asked.append(second)
            assert sample.vms[a].stamps["disks"].unix_ns == clocks.unix_ns
        clocks.advance(1)
        clocks.unix_ns += (-1) ** second * 10**6 * S
    assert asked[:2] == [0, 1]
    assert {later - earlier for earlier, later in itertools.pairwise(asked[2:])} == {10}


def test_the_clocks_are_the_kernels_where_none_are_given(host, module, inventory, source):
    own = LibvirtSource("qemu:///system", inventory=inventory, binding=module)
    since_mono_ns, since_unix_ns = time.monotonic_ns(), time.time_ns()
    sample = own.sample()
    stamp = sample.vms[host.uuid_of("a")].stamps["disks"]
    assert since_mono_ns <= sample.mono_ns <= stamp.mono_ns <= time.monotonic_ns()
    assert since_unix_ns <= sample.unix_ns <= stamp.unix_ns <= time.time_ns()


# -- what is not known


@pytest.mark.parametrize(
    ("drop", "part", "reason"),
    [
        (("block.0.wr.bytes",), "disks", Reason.INVALID_VALUE),
        (("block.0.name",), "disks", Reason.INVALID_VALUE),
        (("net.0.rx.bytes",), "interfaces", Reason.NOT_PRESENT),
        (("net.0.tx.pkts",), "interfaces", Reason.INVALID_VALUE),
    ],
)
def test_what_a_record_lacks_is_absent_with_its_reason(host, module, source, drop, part, reason):
    for key in drop:
        del module.domains[host.uuid_of("a")][key]
    sample = source.sample()
    vm = sample.vms[host.uuid_of("a")]
    assert dict(vm.absent) == {part: reason}
    assert getattr(vm, part) is None
    assert dict(sample.vms[host.uuid_of("b")].absent) == {}


def test_a_vm_that_another_call_holds_keeps_its_last_reading_until_that_is_old(host, module, source, clocks):
    a = host.uuid_of("a")
    module.domains[a] = NET | HELD
    assert dict(source.sample().vms[a].absent) == {"disks": Reason.STALE}
    module.domains[a] = NET | BLOCKS
    clocks.advance(1)
    assert source.sample().vms[a].disks["vda"].read_bytes == 32  # it is tried at each sampling
    read_at = clocks()
    module.domains[a] = NET | HELD
    for _ in range(25):
        clocks.advance(1)
        vm = source.sample().vms[a]
        assert (vm.disks["vda"].read_bytes, vm.stamps["disks"]) == (32, read_at)
    clocks.advance(1)
    assert dict(source.sample().vms[a].absent) == {"disks": Reason.STALE}
    # Free again: two readings in a row, so that there is a rate again.
    module.domains[a] = NET | BLOCKS
    for _ in range(2):
        module.blocks()
        clocks.advance(1)
        assert source.sample().vms[a].stamps["disks"] == clocks()
        assert a in module.blocks()


def test_a_vm_without_devices_has_none_which_is_not_unknown_and_is_not_asked(host, module, source):
    host.vm("a", 10, [11])
    vm = source.sample().vms[host.uuid_of("a")]
    assert (vm.disks, vm.interfaces, dict(vm.absent), dict(vm.stamps)) == ({}, {}, {}, {})
    assert all(host.uuid_of("a") not in uuids for _, uuids in module.asked)


@pytest.mark.parametrize("kind", ["vhostuser", "hostdev", "user", "vdpa"])
def test_interfaces_that_pass_the_host_by_are_not_visible_and_not_asked_for(host, module, source, kind):
    # Beside one that is counted too: a sum without the other would be wrong.
    host.vm("a", 10, [11], extra=f"<devices>{DISK}{TAP}{TAP.replace('bridge', kind)}</devices>")
    vm = source.sample().vms[host.uuid_of("a")]
    assert (vm.interfaces, dict(vm.absent)) == (None, {"interfaces": Reason.NOT_VISIBLE})
    assert module.asked[0] == (INTERFACE, [host.uuid_of("b")])
    assert vm.disks["vda"].read_bytes == 32


def test_a_network_device_passed_through_beside_a_tap_hides_the_vms_network(host, module, source):
    device = host.proc.parent / "sys/bus/pci/devices/0000:06:12.5"
    device.mkdir(parents=True)
    address = "<address domain='0x0000' bus='0x06' slot='0x12' function='0x5'/>"
    passed = f"<hostdev mode='subsystem' type='pci'><source>{address}</source></hostdev>"
    a, b = host.uuid_of("a"), host.uuid_of("b")
    (device / "class").write_text("0x020000\n")
    host.vm("a", 10, [11], extra=f"<devices>{DISK}{TAP}{passed}</devices>")
    sample = source.sample()
    assert (sample.vms[a].interfaces, dict(sample.vms[a].absent)) == (None, {"interfaces": Reason.NOT_VISIBLE})
    assert module.asked[0] == (INTERFACE, [b])
    (device / "class").write_text("0x030200\n")  # a GPU
    host.vm("b", 20, [21], extra=f"<devices>{DISK}{TAP}{passed}{passed.replace('0x06', '?')}</devices>")
    assert set(source.sample().vms[b].interfaces) == {"vnet3"}


def test_a_device_without_counters_makes_no_sum_of_the_others(host, module, source, clocks, caplog):
    a = host.uuid_of("a")
    second = DISK.replace("vda", "vdb"), TAP.replace("vnet3", "vnet4")
    drive = "<disk type='file' device='cdrom'><target dev='sda'/></disk>"  # empty: has none, and needs none
    host.vm("a", 10, [11], extra=f"<devices>{DISK}{TAP}{''.join(second)}{drive}</devices>")
    caplog.set_level(logging.WARNING)
    vm = source.sample().vms[a]
    assert dict(vm.absent) == {"disks": Reason.NOT_PRESENT, "interfaces": Reason.NOT_PRESENT}
    assert (vm.disks, vm.interfaces) == (None, None)
    assert "a: no disk counters: libvirt reports nothing of vdb" in caplog.text
    host.vm("a", 10, [11], extra=f"<devices>{DISK}{TAP}{drive}</devices>")
    clocks.advance(1)
    vm = source.sample().vms[a]
    assert (set(vm.disks), set(vm.interfaces), dict(vm.absent)) == ({"vda"}, {"vnet3"}, {})


def test_disks_behind_vhost_user_are_not_visible_and_rbd_is_qemus_to_tell(host, module, source):
    rbd = DISK.replace("type='file'", "type='network'")
    host.vm("a", 10, [11], extra=f"<devices>{DISK}{rbd.replace('network', 'vhostuser')}</devices>")
    host.vm("b", 20, [21], extra=f"<devices>{rbd}</devices>")
    sample = source.sample()
    assert dict(sample.vms[host.uuid_of("a")].absent) == {"disks": Reason.NOT_VISIBLE}
    assert sample.vms[host.uuid_of("b")].disks["vda"].write_bytes == 42
    assert module.blocks() == [host.uuid_of("b")]


def test_interfaces_that_open_vswitch_reports_are_not_asked_for(host, module, source, inventory, clocks):
    a, b = host.uuid_of("a"), host.uuid_of("b")
    epoch = "111111112222-1000"
    for _ in range(3):
        source.sample()
        clocks.advance(0.001)
    inventory.interfaces_covered.replace(clocks.mono_ns, {a: epoch})
    module.asked.clear()
    sample = source.sample()
    assert module.asked == [(INTERFACE, [b])]
    assert (sample.vms[a].interfaces, dict(sample.vms[a].absent)) == (None, {})
    assert sample.vms[b].interfaces["vnet3"].receive_bytes == 11
    # All told: libvirt is not asked at all.
    inventory.interfaces_covered.replace(clocks.mono_ns, {a: epoch, b: epoch})
    module.asked.clear()
    reported = source.sample().vms
    assert reported[b].disks["vda"].read_bytes == 32
    assert module.asked == []
    # Nothing was asked, so that nothing is made again: a sample in which anything is another is another one.
    again = source.sample().vms
    assert (again[a], again[b]) == (reported[a], reported[b])
    assert again[b] is reported[b]
    inventory.interfaces_covered.replace(clocks.mono_ns, {a: epoch})
    assert source.sample().vms[b].interfaces["vnet3"].receive_bytes == 11
    inventory.interfaces_covered.replace(clocks.mono_ns, {a: epoch, b: epoch})
    # Open vSwitch falls silent: libvirt tells them again.
    clocks.advance(5.5)
    module.asked.clear()
    assert source.sample().vms[a].interfaces["vnet3"].receive_bytes == 11
    assert module.asked[0] == (INTERFACE, [a, b])


def test_nonsense_of_one_vm_is_only_that_vms(host, module, source):
    module.domains[host.uuid_of("a")] = {"block.count": "x", "net.count": None}
    sample = source.sample()
    assert dict(sample.vms[host.uuid_of("a")].absent) == {
        "disks": Reason.INVALID_VALUE,
        "interfaces": Reason.INVALID_VALUE,
    }
    assert sample.vms[host.uuid_of("b")].disks["vda"].read_bytes == 32


def test_a_domain_that_fails_costs_nobody_else_and_is_reported_once(host, module, source, clocks, caplog):
    module.domains[host.uuid_of("a")] = module.libvirtError("internal error: monitor is gone")
    with caplog.at_level(logging.WARNING):
        for _ in range(30):
            sample = source.sample()
            clocks.advance(1)
    assert dict(sample.vms[host.uuid_of("a")].absent) == {
        "disks": Reason.SOURCE_FAILED,
        "interfaces": Reason.SOURCE_FAILED,
    }
    assert sample.vms[host.uuid_of("b")].disks["vda"].read_bytes == 32
    assert sample.vms[host.uuid_of("b")].interfaces["vnet3"].receive_bytes == 11
    assert len(sample.inventory) == 2
    assert [record.getMessage() for record in caplog.records] == ["a: no disk counters: libvirt cannot read them"]
    module.domains[host.uuid_of("b")] = module.libvirtError("this one too")
    with pytest.raises(SourceError, match="monitor is gone; reconnecting"):
        source.sample()


def test_counters_of_a_vm_that_restarted_meanwhile_are_not_taken(host, module, source):
    module.during = lambda: host.vm("a", 30, [31], start=9000, extra=DEVICES)
    sample = source.sample()
    vm = sample.vms[host.uuid_of("a")]
    assert vm.epoch == "111111112222-9000"
    assert (vm.disks, vm.interfaces) == (None, None)
    assert dict(vm.absent) == {"disks": Reason.VM_STARTING, "interfaces": Reason.VM_STARTING}
    assert sample.vms[host.uuid_of("b")].disks["vda"].read_bytes == 32
    module.during = lambda: None
    vm = source.sample().vms[host.uuid_of("a")]
    assert (vm.epoch, vm.disks["vda"].read_bytes) == ("111111112222-9000", 32)


def test_a_vm_that_only_one_side_knows_yet(host, module, source):
    host.vm("new", 40, [41], extra=DEVICES)
    del module.domains[host.uuid_of("b")]
    sample = source.sample()
    assert [vm.name for vm in sample.inventory] == ["a", "b", "new"]
    assert dict(sample.vms[host.uuid_of("a")].absent) == {}
    for name in ("b", "new"):
        starting = {"disks": Reason.VM_STARTING, "interfaces": Reason.VM_STARTING}
        assert dict(sample.vms[host.uuid_of(name)].absent) == starting
    module.domains[host.uuid_of("new")] = NET | BLOCKS
    assert dict(source.sample().vms[host.uuid_of("new")].absent) == {}


def test_a_wrong_folder_of_status_files_is_said(host, module, source):
    for file in host.state.iterdir():
        file.unlink()
    assert source.sample().inventory == ()
    source.sample()
    with pytest.raises(SourceError, match=r"runs 2 VMs, but .* set sources\.libvirt\.state_dir"):
        source.sample()
    host.vm("a", 10, [11], extra=DEVICES)
    assert list(source.sample().vms) == [host.uuid_of("a")]


# -- the daemon


def test_a_restarted_daemon_costs_no_sample(host, module, source):
    source.sample()
    module.opened[0].end(module.VIR_CONNECT_CLOSE_REASON_EOF)
    assert source.sample().vms[host.uuid_of("a")].interfaces["vnet3"].receive_bytes == 11
    assert module.opened[0].closed
    assert module.opened[0].on_close is None
    assert len(module.opened) == 2


def test_a_daemon_that_restarts_while_it_is_asked_costs_no_sample(host, module, source):
    source.sample()

    def restart():
        module.opened[0].alive = False

    module.during = restart
    vm = source.sample().vms[host.uuid_of("a")]
    assert vm.interfaces["vnet3"].receive_bytes == 11  # with the new connection's handles
    assert [connection.closed for connection in module.opened] == [True, False]


def test_a_dead_daemon_is_an_error_until_it_is_back(module, source):
    source.sample()
    module.opened[0].end(module.VIR_CONNECT_CLOSE_REASON_EOF)
    module.refuse = module.libvirtError(
        "Failed to connect socket to '/var/run/libvirt/libvirt-sock-ro': Connection refused"
    )
    for _ in range(2):
        with pytest.raises(SourceError, match=r"qemu:///system: .*; is libvirtd \(or virtqemud\) running\?"):
            source.sample()
    module.refuse = None
    assert len(source.sample().vms) == 2


def test_a_daemon_that_falls_silent_while_it_is_asked_is_not_asked_again_at_once(module, source):
    source.sample()

    def silent():
        module.opened[0].alive = False
        raise module.libvirtError("internal error: connection closed due to keepalive timeout")

    module.during = silent
    with pytest.raises(SourceError, match="is it hung or stopped") as caught:
        source.sample()
    assert caught.value.reason is Reason.STUCK
    assert len(module.opened) == 1


def test_silence_is_noticed_while_nothing_is_asked(host, module, source, inventory, clocks):
    epoch = "111111112222-1000"
    for _ in range(3):
        source.sample()
    inventory.interfaces_covered.replace(clocks.mono_ns, {host.uuid_of(name): epoch for name in "ab"})
    module.asked.clear()
    module.opened[0].end(module.VIR_CONNECT_CLOSE_REASON_KEEPALIVE)
    with pytest.raises(SourceError, match=r"qemu:///system: .*does not answer; is it hung or stopped") as caught:
        source.sample()
    assert caught.value.reason is Reason.STUCK
    assert (len(module.opened), module.asked) == (1, [])
    assert len(source.sample().vms) == 2  # with the next sampling it is tried again
    assert len(module.opened) == 2


def test_after_a_long_silence_there_is_a_rate_with_the_second_sampling(host, module, source, clocks):
    a = host.uuid_of("a")
    for _ in range(3):
        source.sample()
        clocks.advance(1)
    module.opened[0].end(module.VIR_CONNECT_CLOSE_REASON_KEEPALIVE)
    with pytest.raises(SourceError):
        source.sample()
    clocks.advance(60)
    for _ in range(2):
        assert source.sample().vms[a].stamps["disks"] == clocks()
        clocks.advance(1)


def test_a_driver_without_events_works_without(module, source):
    module.refuse_events = module.libvirtError("this function is not supported: virConnectDomainEventRegisterAny")
    assert len(source.sample().vms) == 2


@pytest.mark.parametrize(
    ("text", "reason", "remedy"),
    [
        ("Failed to connect socket: Permission denied", Reason.NO_PERMISSION, "as root or in the group libvirt"),
        ("authentication unavailable: no polkit agent", Reason.NO_PERMISSION, "as root or in the group libvirt"),
        ("Failed to connect socket: No such file or directory", Reason.SOURCE_FAILED, "is libvirtd .* running"),
        (
            "no connection driver available for URI 'garbage' does not include a driver name",
            Reason.SOURCE_FAILED,
            r"a driver name; is sources\.libvirt\.uri right\?",
        ),
        ("something else.", Reason.SOURCE_FAILED, r"something else; is sources\.libvirt\.uri right\?"),
    ],
)
def test_errors_say_the_remedy(module, source, text, reason, remedy):
    module.refuse = module.libvirtError(text)
    with pytest.raises(SourceError, match=remedy) as caught:
        source.open()
    assert caught.value.reason is reason
    probe = source.probe()
    assert (probe.available, probe.reason) == (False, reason)
    assert probe.detail == str(caught.value)


def test_a_driver_without_keep_alive_works_without(module, source):
    module.refuse_keep_alive = module.libvirtError(
        "this function is not supported by the connection driver: virConnectSetKeepAlive"
    )
    module.refuse_keep_alive.code = module.VIR_ERR_NO_SUPPORT
    assert len(source.sample().vms) == 2
    assert [(connection.keep_alive, connection.closed) for connection in module.opened] == [(None, False)]
    source.close()


def test_a_keep_alive_that_fails_is_reported_and_leaves_no_connection(module, source):
    module.refuse_keep_alive = module.libvirtError("internal error: the caller doesn't support keepalive")
    with pytest.raises(SourceError, match="support keepalive; reconnecting at the next tick") as caught:
        source.open()
    assert caught.value.reason is Reason.SOURCE_FAILED
    assert module.opened[0].closed


def test_probe_reports_the_version_and_leaves_no_connection(module, source):
    probe = source.probe()
    assert (probe.available, probe.detail) == (True, "qemu:///system, libvirt 9.0.0")
    assert [connection.closed for connection in module.opened] == [True]


def test_probe_without_the_binding_says_how_to_get_it(host, monkeypatch):
    monkeypatch.setitem(sys.modules, "libvirt", None)
    source = LibvirtSource("qemu:///system", inventory=Inventory(str(host.state), str(host.proc)))
    probe = source.probe()
    assert (probe.available, probe.reason) == (False, Reason.NOT_PRESENT)
    assert "install whitepanda's extra `host`" in probe.detail
    with pytest.raises(SourceError, match="extra `host`"):
        source.open()
    source.close()


def test_probe_of_a_daemon_that_never_answers_returns_and_starts_one_thread_only(module, source, monkeypatch):
    hang = threading.Event()
    calls = []

    def hanging(uri):
        calls.append(uri)
        hang.wait(30)
        raise module.libvirtError("too late")

    monkeypatch.setattr(module, "openReadOnly", hanging)
    source._deadline_s = 0.05
    for _ in range(3):
        probe = source.probe()
        assert (probe.available, probe.reason) == (False, Reason.STUCK)
        assert probe.detail.startswith("qemu:///system: no answer within 0.05 s")
    assert calls == ["qemu:///system"]
    hang.set()
    source._prober.join(5)


def test_close_twice_and_open_again(module, source):
    source.open()
    source.close()
    source.close()
    assert module.opened[0].closed
    source.open()
    assert len(source.sample().vms) == 2
    assert module.loops == 1


# -- the real binding with libvirt's own test driver, which needs no daemon and no root


@pytest.fixture
def real(host, monkeypatch):
    pytest.importorskip("libvirt", reason="no libvirt binding; `python3 tools/bootstrap.py host` builds it")
    # The driver's one domain, which has neither disks nor interfaces.
    monkeypatch.setattr(host, "uuid_of", lambda name: "6695eb01-f6a4-8304-79aa-97f2502e193f")
    host.vm("test", 10, [11], state="paused", extra=DEVICES)

    def make(uri):
        source = LibvirtSource(uri, inventory=Inventory(str(host.state), str(host.proc)))
        made.append(source)
        return source

    made = []
    yield make
    for source in made:
        source.close()


def test_the_real_test_driver_has_one_running_domain(real):
    source = real("test:///default")
    probe = source.probe()
    assert probe.available
    assert probe.detail.startswith("test:///default, libvirt ")
    source.open()
    for _ in range(2):
        sample = source.sample()
        assert [(vm.name, vm.state) for vm in sample.inventory] == [("test", "paused")]
        [vm] = sample.vms.values()
        assert (vm.epoch, vm.disks, vm.interfaces) == ("111111112222-1000", None, None)
        assert dict(vm.absent) == {"disks": Reason.STALE, "interfaces": Reason.NOT_PRESENT}


@pytest.mark.parametrize("uri", ["garbage", "::", "qemu+bad:///system"])
def test_a_wrong_address_names_its_setting(real, uri):
    source = real(uri)
    for call in (source.open, source.sample):
        with pytest.raises(SourceError, match=r"; is sources\.libvirt\.uri right\?$") as caught:
            call()
        assert str(caught.value).startswith(f"{uri}: ")
    assert source.probe().detail == str(caught.value)
