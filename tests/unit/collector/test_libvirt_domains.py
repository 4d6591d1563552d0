"""The libvirt source against a stand-in of the binding; against the real libvirtd in tests/integration."""

from __future__ import annotations

import sys
import threading

import pytest

from collector.base import DiskCounters, InterfaceCounters, Reason, SourceError
from collector.identity import Inventory
from collector.libvirt_domains import LibvirtSource, parse_disks, parse_interfaces

# As libvirt 9.0 answers for a VM with an ethernet device and two drives, one of them empty.
RECORD = {
    "state.state": 1,
    "state.reason": 1,
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


class FakeLibvirt:
    """The few parts of the binding that the source uses; `domains` maps UUID to record or exception."""

    VIR_CONNECT_GET_ALL_DOMAINS_STATS_ACTIVE = 1
    VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT = 1 << 29
    VIR_CONNECT_LIST_DOMAINS_ACTIVE = 1
    VIR_ERR_NO_SUPPORT = 3
    VIR_DOMAIN_STATS_STATE, VIR_DOMAIN_STATS_INTERFACE, VIR_DOMAIN_STATS_BLOCK = 1, 16, 32

    class libvirtError(Exception):  # noqa: N801 - the binding's name
        code = 1  # VIR_ERR_INTERNAL_ERROR

        def get_error_code(self):
            return self.code

    def __init__(self):
        self.domains = {}
        self.opened = []
        self.refuse = None
        self.refuse_keep_alive = None
        self.asked = []
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


class FakeDomain:
    def __init__(self, uuid):
        self._uuid = uuid

    def UUIDString(self):  # noqa: N802 - libvirt's name
        return self._uuid


class FakeConnection:
    def __init__(self, module, uri):
        self.module = module
        self.uri = uri
        self.alive = True
        self.closed = False
        self.keep_alive = None

    def setKeepAlive(self, interval, count):  # noqa: N802 - libvirt's name
        if self.module.refuse_keep_alive is not None:
            raise self.module.refuse_keep_alive
        self.keep_alive = (interval, count)

    def getLibVersion(self):  # noqa: N802 - libvirt's name
        return 9_000_000

    def isAlive(self):  # noqa: N802 - libvirt's name
        return self.alive

    def close(self):
        self.closed = True

    def listAllDomains(self, flags):  # noqa: N802 - libvirt's name
        assert flags == 1
        return [FakeDomain(uuid) for uuid in self.module.domains]

    def getAllDomainStats(self, stats, flags):  # noqa: N802 - libvirt's name
        self.module.asked.append((stats, flags))
        self.module.during()
        if not self.alive:
            raise self.module.libvirtError("client socket is closed")
        return self.domainListGetStats(self.listAllDomains(1), stats, flags)

    def domainListGetStats(self, domains, stats, flags):  # noqa: N802 - libvirt's name
        assert (stats, flags & (1 << 29)) == (49, 1 << 29)
        found = []
        for domain in domains:
            record = self.module.domains[domain.UUIDString()]
            if isinstance(record, Exception):
                raise record
            found.append((domain, record))
        return found


@pytest.fixture
def module():
    return FakeLibvirt()


@pytest.fixture
def source(host, module, monkeypatch):
    # The process's one event loop is the real binding's: tests of the real libvirtd may follow.
    monkeypatch.setattr("collector.libvirt_domains._event_loop", None)
    host.vm("a", 10, [11])
    host.vm("b", 20, [21])
    module.domains = {host.uuid_of("a"): dict(RECORD), host.uuid_of("b"): dict(RECORD)}
    source = LibvirtSource(
        "qemu:///system", inventory=Inventory(str(host.state), str(host.proc)), binding=module
    )
    yield source
    source.close()


def test_disks_and_interfaces_of_a_record():
    assert parse_disks(RECORD) == {
        "vda": DiskCounters(read_bytes=32, write_bytes=42, read_ops=31, write_ops=41)
    }
    assert parse_interfaces(RECORD) == {
        "vnet3": InterfaceCounters(
            receive_bytes=11,
            transmit_bytes=21,
            receive_packets=12,
            transmit_packets=22,
            receive_drops=13,
            transmit_drops=23,
        )
    }


def test_one_bulk_call_read_only_without_waiting(host, module, source):
    sample = source.sample()
    assert module.asked == [(49, 1 | 1 << 29)]
    assert module.opened[0].keep_alive == (1, 3)
    assert sample.source == "libvirt"
    vm = sample.vms[host.uuid_of("a")]
    assert vm.epoch == "111111112222-1000"
    assert vm.disks["vda"].read_bytes == 32
    assert vm.interfaces["vnet3"].receive_bytes == 11
    assert (vm.threads, vm.perf, dict(vm.absent)) == (None, None, {})
    source.sample()
    assert len(module.opened) == 1


@pytest.mark.parametrize(
    ("number", "state"),
    [(1, "running"), (3, "paused"), (7, "pmsuspended"), (99, "running"), (None, "running")],
)
def test_libvirts_word_on_the_state(host, module, source, number, state):
    module.domains[host.uuid_of("a")]["state.state"] = number
    assert [vm.state for vm in source.sample().inventory] == [state, "running"]


@pytest.mark.parametrize(
    ("drop", "part", "reason"),
    [
        (("block.0.rd.bytes",), "disks", Reason.STALE),  # another job holds the VM: libvirt did not ask QEMU
        (("block.count",), "disks", Reason.STALE),
        (("block.0.wr.bytes",), "disks", Reason.INVALID_VALUE),
        (("block.0.name",), "disks", Reason.INVALID_VALUE),
        (("net.0.rx.bytes",), "interfaces", Reason.NOT_PRESENT),  # passed through: the host cannot count it
        (("net.0.tx.drop",), "interfaces", Reason.INVALID_VALUE),
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


def test_a_vm_without_devices_has_none_which_is_not_unknown(host, module, source):
    module.domains[host.uuid_of("a")] = {"state.state": 1, "net.count": 0, "block.count": 0}
    vm = source.sample().vms[host.uuid_of("a")]
    assert (vm.disks, vm.interfaces, dict(vm.absent)) == ({}, {}, {})


def test_nonsense_of_one_vm_is_only_that_vms(host, module, source):
    module.domains[host.uuid_of("a")] = {"block.count": "x", "net.count": None}
    sample = source.sample()
    assert dict(sample.vms[host.uuid_of("a")].absent) == {
        "disks": Reason.INVALID_VALUE,
        "interfaces": Reason.INVALID_VALUE,
    }
    assert sample.vms[host.uuid_of("b")].disks["vda"].read_bytes == 32


def test_a_domain_that_fails_the_bulk_call_costs_nobody_else(host, module, source):
    module.domains[host.uuid_of("a")] = module.libvirtError("internal error: monitor is gone")
    sample = source.sample()
    assert dict(sample.vms[host.uuid_of("a")].absent) == {
        "disks": Reason.SOURCE_FAILED,
        "interfaces": Reason.SOURCE_FAILED,
    }
    assert sample.vms[host.uuid_of("b")].disks["vda"].read_bytes == 32
    assert len(sample.inventory) == 2
    module.domains[host.uuid_of("b")] = module.libvirtError("this one too")
    with pytest.raises(SourceError, match="monitor is gone; connecting anew"):
        source.sample()


def test_counters_of_a_vm_that_restarted_meanwhile_are_not_taken(host, module, source):
    module.during = lambda: host.vm("a", 30, [31], start=9000)
    sample = source.sample()
    vm = sample.vms[host.uuid_of("a")]
    assert vm.epoch == "111111112222-9000"
    assert dict(vm.absent) == {"disks": Reason.VM_STARTING, "interfaces": Reason.VM_STARTING}
    assert sample.vms[host.uuid_of("b")].disks["vda"].read_bytes == 32
    module.during = lambda: None
    assert source.sample().vms[host.uuid_of("a")].disks["vda"].read_bytes == 32


def test_a_vm_that_only_one_side_knows_yet(host, module, source):
    host.vm("new", 40, [41])
    del module.domains[host.uuid_of("b")]
    sample = source.sample()
    assert list(sample.vms) == [host.uuid_of("a")]
    assert [vm.name for vm in sample.inventory] == ["a", "b", "new"]


def test_a_wrong_folder_of_status_files_is_said(host, module, source):
    for file in host.state.iterdir():
        file.unlink()
    assert source.sample().inventory == ()
    source.sample()
    with pytest.raises(SourceError, match=r"runs 2 VMs, but .* set sources\.libvirt\.state_dir"):
        source.sample()
    host.vm("a", 10, [11])
    assert list(source.sample().vms) == [host.uuid_of("a")]


def test_a_restarted_daemon_costs_no_sample(host, module, source):
    source.sample()
    module.opened[0].alive = False
    assert len(source.sample().vms) == 2
    assert module.opened[0].closed
    assert len(module.opened) == 2


def test_a_dead_daemon_is_an_error_until_it_is_back(module, source):
    source.sample()
    module.opened[0].alive = False
    module.refuse = module.libvirtError(
        "Failed to connect socket to '/var/run/libvirt/libvirt-sock-ro': Connection refused"
    )
    for _ in range(2):
        with pytest.raises(SourceError, match=r"qemu:///system: .*; is libvirtd \(or virtqemud\) running\?"):
            source.sample()
    module.refuse = None
    assert len(source.sample().vms) == 2


def test_a_silent_daemon_is_not_asked_again_at_once(module, source):
    source.sample()

    def silent():
        module.opened[0].alive = False
        raise module.libvirtError("internal error: connection closed due to keepalive timeout")

    module.during = silent
    with pytest.raises(SourceError, match="is it hung or stopped") as caught:
        source.sample()
    assert caught.value.reason is Reason.STUCK
    assert len(module.opened) == 1


@pytest.mark.parametrize(
    ("text", "reason", "remedy"),
    [
        (
            "Failed to connect socket: Permission denied",
            Reason.NO_PERMISSION,
            "as root or in the group libvirt",
        ),
        (
            "authentication unavailable: no polkit agent",
            Reason.NO_PERMISSION,
            "as root or in the group libvirt",
        ),
        (
            "Failed to connect socket: No such file or directory",
            Reason.SOURCE_FAILED,
            "is libvirtd .* running",
        ),
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


def test_a_keep_alive_that_fails_is_told_and_leaves_no_connection(module, source):
    module.refuse_keep_alive = module.libvirtError("internal error: the caller doesn't support keepalive")
    with pytest.raises(SourceError, match="support keepalive; connecting anew at the next tick") as caught:
        source.open()
    assert caught.value.reason is Reason.SOURCE_FAILED
    assert module.opened[0].closed


def test_probe_tells_the_version_and_leaves_no_connection(module, source):
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
    host.vm("test", 10, [11], state="paused")

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
        assert [(vm.name, vm.state) for vm in sample.inventory] == [("test", "running")]
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
