"""A daemon that answers late, through the source and the table of VMs: never another rate than the true one."""

from types import SimpleNamespace

import pytest

from agent.sampling.rates import Limits
from agent.sampling.vms import JobRules, VmTable
from collector.base import InterfaceDevice, Reason, SourceSample, Stamp, VmIdentity
from collector.inventory.coverage import Coverage
from collector.libvirt.source import LibvirtSource
from collector.ovs import source as ovs_source
from collector.ovs.openflow import PortStats
from collector.ovs.ports import Port
from collector.timestamps import Moments

S = 1_000_000_000
MB = 1_000_000
UUID = "6695eb01-f6a4-8304-79aa-97f2502e193f"
VM = VmIdentity(UUID, "vm", 1, "e1", interfaces=(InterfaceDevice("tap1", kind="bridge"),))


class Daemon:
    """A port that carries 1 MB/s, and who counts it: answers after a wait, and reads at the share `reads_at` of it."""

    def __init__(self, reads_at):
        self.now_ns, self.reads_at, self.wait_s = 1000 * S, reads_at, 0.0

    def clocks(self):
        return Stamp(self.now_ns, self.now_ns)

    def answer(self):
        waited_ns = round(self.wait_s * S)
        counted = (self.now_ns + round(self.reads_at * waited_ns)) * MB // S
        self.now_ns += waited_ns
        return counted


def ovs(daemon, monkeypatch):
    class Database:
        bridges = ("br0",)

        def __init__(self, *_):
            self.ports = lambda: (Port("br0", "tap1", 5, "row"),)

        def close(self):
            pass

    class Client:
        connections = 1

        def __init__(self, _):
            pass

        def stats(self, _):
            return {5: PortStats(0, 0, 0, daemon.answer(), 0, 0, 10 * S)}

        def names(self, _):
            daemon.answer()  # as slow as the other
            return {5: "tap1"}

        def close(self):
            pass

    monkeypatch.setattr(ovs_source, "PortsDatabase", Database)
    monkeypatch.setattr(ovs_source, "BridgeClient", Client)
    clock = SimpleNamespace(
        monotonic=lambda: daemon.now_ns / S, monotonic_ns=lambda: daemon.now_ns, time_ns=lambda: daemon.now_ns
    )
    monkeypatch.setattr(ovs_source, "time", clock)
    inventory = SimpleNamespace(vms=lambda: (VM,), interfaces_covered=Coverage())
    return ovs_source.OvsSource(inventory, database="unix:/db.sock", run_dir="/run")


def libvirt(daemon, monkeypatch):
    class Raw:
        def __init__(self):
            daemon.answer()  # the daemon is slow to let us in, too

        def isAlive(self):  # noqa: N802 - libvirt's name, here and below
            return True

        def setKeepAlive(self, *_):  # noqa: N802 - libvirt's name
            pass

        def registerCloseCallback(self, *_):  # noqa: N802 - libvirt's name
            pass

        def listAllDomains(self, _):  # noqa: N802 - libvirt's name
            daemon.answer()
            return [SimpleNamespace(UUIDString=lambda: UUID)]

        def domainListGetStats(self, domains, *_):  # noqa: N802 - libvirt's name
            values = {"rx.bytes": daemon.answer(), "tx.bytes": 0, "rx.pkts": 0, "tx.pkts": 0}
            record = {"net.count": 1, "net.0.name": "tap1"} | {f"net.0.{k}": v for k, v in values.items()}
            return [(domain, record) for domain in domains]

    module = SimpleNamespace(
        libvirtError=RuntimeError,
        VIR_DOMAIN_STATS_INTERFACE=1,
        VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT=2,
        VIR_CONNECT_LIST_DOMAINS_ACTIVE=4,
        registerErrorHandler=lambda *_: None,
        openReadOnly=lambda _: Raw(),
    )
    for event in ("LIFECYCLE", "DEVICE_ADDED", "DEVICE_REMOVED"):
        setattr(module, f"VIR_DOMAIN_EVENT_ID_{event}", event)
    Raw.domainEventRegisterAny = lambda *_: 1
    monkeypatch.setattr("collector.libvirt.connection._start_event_loop", lambda _: None)
    inventory = SimpleNamespace(vms=lambda: (VM,), interfaces_covered=Coverage())
    return LibvirtSource("qemu:///system", inventory=inventory, binding=module, clocks=daemon.clocks)


def rates(source, daemon, waits_s):
    """The VM's rate in MB/s at each tick of a second, rounded, or why there is none."""
    table = VmTable(JobRules(()), Limits(), 10 * S, lambda _: None)
    found = []
    for wait_s in waits_s:
        daemon.now_ns = -(-(daemon.now_ns + 1) // S) * S  # ticks that pass meanwhile are left out
        daemon.wait_s = wait_s
        sample = source.sample()
        reported = SourceSample("procfs", daemon.now_ns, daemon.now_ns, {}, inventory=(VM,))
        table.update([reported, sample], daemon.now_ns)
        [vm] = table
        rate = vm.rates.network_receive_bytes_per_s
        found.append(rate if isinstance(rate, Reason) else round(rate / MB, 3))
    return found


MAKERS = pytest.mark.parametrize("make", [ovs, libvirt])


@MAKERS
@pytest.mark.parametrize("reads_at", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("late_s", [0.9, 3.0])
def test_one_late_answer_costs_that_tick_and_makes_no_rate(make, reads_at, late_s, monkeypatch):
    daemon = Daemon(reads_at)
    found = rates(make(daemon, monkeypatch), daemon, [0, 0, 0, late_s, 0, 0])
    assert found == [Reason.VM_STARTING, 1.0, 1.0, Reason.STALE, 1.0, 1.0]


@MAKERS
def test_waits_that_come_and_go_are_no_traffic(make, monkeypatch):
    """The moment is the answer's: the counters are the last that a busy daemon reads before it."""
    daemon = Daemon(1.0)
    assert rates(make(daemon, monkeypatch), daemon, [0, 0, 0.15, 0, 0.1, 0.05])[1:] == [1.0] * 5


@MAKERS
def test_where_the_daemon_reads_at_once_the_error_is_bounded(make, monkeypatch):
    daemon = Daemon(0.0)
    found = rates(make(daemon, monkeypatch), daemon, [0, 0, 0.19, 0, 0.1, 0.24, 0.25, 0.15, 0, 0])[1:]
    assert [rate for rate in found if isinstance(rate, Reason)] == [Reason.STALE] * 3
    assert all(0.8 <= rate <= 1.25 for rate in found if not isinstance(rate, Reason))


@MAKERS
def test_a_late_first_answer_is_no_base_of_a_rate(make, monkeypatch):
    daemon = Daemon(0.0)
    assert rates(make(daemon, monkeypatch), daemon, [0.9, 0, 0]) == [Reason.STALE, Reason.VM_STARTING, 1.0]


@MAKERS
def test_what_is_asked_before_and_after_is_no_part_of_the_moment(make, monkeypatch):
    """Connecting, libvirt's list of domains, the ports' names: all as late as the counters."""
    daemon = Daemon(1.0)
    found = rates(make(daemon, monkeypatch), daemon, [0.1, 0.01, 0])
    assert found == [Reason.VM_STARTING, 1.0, 1.0]


def test_a_vm_whose_answer_is_late_is_still_open_vswitchs_to_tell(monkeypatch):
    daemon = Daemon(1.0)
    source = ovs(daemon, monkeypatch)
    covers = source._inventory.interfaces_covered.covers
    for wait_s in (0, 4.0):
        daemon.now_ns += S
        daemon.wait_s = wait_s
        sample = source.sample()
    assert dict(sample.vms[UUID].absent) == {"interfaces": Reason.STALE}
    assert covers(UUID, "e1", daemon.now_ns + 4 * S)  # libvirt is not asked meanwhile


def test_moments_are_forgotten_with_their_vms():
    moments = Moments()
    assert moments.accept("a", 0, S // 10)
    assert not moments.accept("a", S // 5, S * 3 // 10)
    moments.keep({"a"})
    assert not moments.accept("a", S // 5, S * 3 // 10)
    moments.keep(set())
    assert moments.accept("a", S // 5, S * 3 // 10)
