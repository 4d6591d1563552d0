"""The Open vSwitch source with a database and bridges made of tables: directions, churn, failures, resets."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sampling.changes import JoinedVm, Reading
from agent.sampling.rates import derive
from collector.base import InterfaceCounters, InterfaceDevice, Reason, SourceError, VmIdentity
from collector.inventory.coverage import Coverage
from collector.ovs import source as source_module
from collector.ovs.openflow import PortStats
from collector.ovs.ports import Port
from collector.ovs.source import OvsSource

S = 1_000_000_000
A, B = "uuid-a", "uuid-b"


class FakeBridge:
    """A bridge: its ports' names and counters by number, and how often it was connected to."""

    def __init__(self):
        self.ports = {}
        self.error = None
        self.connections = 1
        self.asked_names = self.asked_stats = 0
        self.restart_before_names = False
        self.closed = False
        self.wait = lambda: None

    def put(self, number, name, *counters, age_s=100):
        self.ports[number] = (name, PortStats(*counters, age_s * S))

    def stats(self, _):
        self.asked_stats += 1
        self.wait()
        if self.error:
            raise self.error
        return {number: stats for number, (_, stats) in self.ports.items()}

    def names(self, _):
        self.asked_names += 1
        if self.restart_before_names:
            self.restart_before_names = False
            self.connections += 1
        return {number: name[:15] for number, (name, _) in self.ports.items()}

    def hello(self, _):
        if self.error:
            raise self.error
        return "1.4"

    def close(self):
        self.closed = True


@dataclass
class Host:
    """Inventory, database and bridges of a host."""

    identities: tuple = ()
    interfaces_covered: Coverage = field(default_factory=Coverage)
    bridges: dict = field(default_factory=dict)
    ports_now: tuple = ()
    database_error: SourceError | None = None
    now_ns: int = 1000 * S  # each sampling is a second later, and takes as long as a test says

    def vms(self):
        return self.identities

    def ports(self):
        self.now_ns += S
        if self.database_error:
            raise self.database_error
        return self.ports_now

    def vm(self, uuid, *devices):
        interfaces = tuple(InterfaceDevice(device) for device in devices)
        self.identities = (*self.identities, VmIdentity(uuid, uuid, 1, "e1", interfaces=interfaces))

    def port(self, bridge, name, number, *counters):
        self.bridges.setdefault(bridge, FakeBridge()).put(number, name, *counters)
        self.ports_now = (*self.ports_now, Port(bridge, name, number, f"row-{name}"))

    def wait(self, wait_ms):
        self.now_ns += wait_ms * 1_000_000

    def change(self, name, **fields):
        self.ports_now = tuple(replace(p, **fields) if p.name == name else p for p in self.ports_now)


@pytest.fixture
def host(monkeypatch):
    return make_host(monkeypatch)


def make_host(monkeypatch):
    host = Host()

    class FakeDatabase:
        def __init__(self, remote, deadline_s):
            self.bridges = tuple(sorted(host.bridges))

        def open(self):
            pass

        def close(self):
            pass

        ports = staticmethod(host.ports)

    clock = SimpleNamespace(
        monotonic=lambda: host.now_ns / S, monotonic_ns=lambda: host.now_ns, time_ns=lambda: host.now_ns + 7
    )
    monkeypatch.setattr(source_module, "time", clock)
    monkeypatch.setattr(source_module, "PortsDatabase", FakeDatabase)
    monkeypatch.setattr(source_module, "BridgeClient", lambda path: host.bridges[path.removeprefix("/run/ovs/")[:-5]])
    return host


@pytest.fixture
def source(host):
    source = OvsSource(host, database="unix:/run/ovs/db.sock", run_dir="/run/ovs")
    source.open()
    yield source
    source.close()


def one_vm(host):
    host.vm(A, "tap1")
    host.port("br0", "tap1", 5, 11, 12, 1100, 1200, 1, 2)


def test_the_guest_receives_what_the_bridge_transmits(host, source):
    one_vm(host)
    sample = source.sample()
    assert sample.source == "ovs"
    assert sample.inventory is None
    assert sample.vms[A].epoch == "e1"
    assert sample.vms[A].interfaces == {"tap1": InterfaceCounters(1200, 1100, 12, 11, 2, 1, opened=1)}


def test_what_is_reported_libvirt_is_not_asked_for(host, source):
    one_vm(host)
    host.vm(B, "tap1b", "tap2b")
    host.port("br0", "tap1b", 6, *[0] * 6)  # its other interface is elsewhere
    sample = source.sample()
    assert sample.vms.keys() == {A}
    covers = host.interfaces_covered.covers
    assert covers(A, "e1", sample.mono_ns)
    assert not covers(A, "e2", sample.mono_ns)
    assert not covers(B, "e1", sample.mono_ns)
    source.close()
    assert not covers(A, "e1", sample.mono_ns)


@pytest.mark.parametrize("failing", ["database", "bridge"])
def test_a_failure_leaves_the_vms_to_libvirt_at_once(host, source, failing):
    one_vm(host)
    sample = source.sample()
    error = SourceError("hung", Reason.STUCK)
    if failing == "database":
        host.database_error = error
    else:
        host.bridges["br0"].error = error
    asked = host.bridges["br0"].asked_stats
    with pytest.raises(SourceError, match="hung"):
        source.sample()
    if failing == "database":  # an ovs-vswitchd without its database answers nobody
        assert host.bridges["br0"].asked_stats == asked
    assert not host.interfaces_covered.covers(A, "e1", sample.mono_ns)


def test_one_bridge_that_fails_costs_only_its_own_vms(host, source):
    one_vm(host)
    host.vm(B, "tap2")
    host.port("br1", "tap2", 5, 1, 2, 3, 4, 5, 6)
    host.bridges["br0"].error = SourceError("gone", Reason.STUCK)
    vms = source.sample().vms
    assert (vms[A].interfaces, dict(vms[A].absent)) == (None, {"interfaces": Reason.STUCK})
    assert vms[B].interfaces == {"tap2": InterfaceCounters(4, 3, 2, 1, 6, 5, opened=1)}


def test_a_vm_on_two_bridges(host, source):
    host.vm(A, "tap1", "tap2")
    host.port("br0", "tap1", 1, 1, 2, 3, 4, 5, 6)
    host.port("br1", "tap2", 1, 10, 20, 30, 40, 50, 60)
    assert {name: c.receive_bytes for name, c in source.sample().vms[A].interfaces.items()} == {"tap1": 4, "tap2": 40}
    host.bridges["br1"].error = SourceError("gone")
    assert source.sample().vms[A].interfaces is None  # half of its traffic would look like a quieter VM


@pytest.mark.parametrize(
    ("first_ms", "second_ms", "reported"), [(300, 0, False), (0, 300, False), (150, 150, False), (80, 80, True)]
)
def test_a_vm_on_two_bridges_is_read_from_the_first_question_to_the_last_answer(
    host, source, first_ms, second_ms, reported
):
    """Its counters are a sum: of one moment only where all of it is short."""
    host.vm(A, "tap1", "tap2")
    host.vm(B, "tap3")
    for bridge, device, number in (("br0", "tap1", 1), ("br1", "tap2", 1), ("br1", "tap3", 2)):
        host.port(bridge, device, number, 1, 2, 3, 4, 5, 6)
    for bridge, wait_ms in (("br0", first_ms), ("br1", second_ms)):
        host.bridges[bridge].wait = lambda wait_ms=wait_ms: host.wait(wait_ms)
    vms = source.sample().vms
    if reported:
        assert vms[A].stamps["interfaces"] == (host.now_ns, host.now_ns + 7)
        assert vms[A].interfaces.keys() == {"tap1", "tap2"}
    else:
        assert dict(vms[A].absent) == {"interfaces": Reason.STALE}
    # Who has no port on the slow bridge has lost nothing.
    assert (vms[B].interfaces is None) == (second_ms > 200)


@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        ((1, 2, 3, 4, None, None), InterfaceCounters(4, 3, 2, 1, None, None, opened=1)),
        ((1, 2, 3, 4, 5, None), InterfaceCounters(4, 3, 2, 1, None, 5, opened=1)),
        ((1, 2, None, 4, 5, 6), None),
        ((None,) * 6, None),
    ],
)
def test_a_counter_that_the_port_does_not_have_is_never_a_number(host, source, counters, expected):
    host.vm(A, "tap1")
    host.port("br0", "tap1", 5, *counters)
    vm = source.sample().vms[A]
    if expected is None:
        assert (vm.interfaces, dict(vm.absent)) == (None, {"interfaces": Reason.NOT_PRESENT})
    else:
        assert vm.interfaces == {"tap1": expected}


def test_drops_that_are_not_counted_have_a_reason_and_the_rest_a_rate():
    def at(seconds, drops):
        value = {"tap1": InterfaceCounters(10 * seconds, 20 * seconds, seconds, seconds, drops, 0)}
        return joined(Reading("ovs", seconds * S, seconds * S, value))

    rates = derive(at(2, None), at(1, None))
    assert (rates.network_receive_bytes_per_s, rates.network_transmit_drops_per_s) == (10, 0)
    assert rates.network_receive_drops_per_s is Reason.NOT_PRESENT
    assert derive(at(2, 5), at(1, 3)).network_receive_drops_per_s == 2
    assert derive(at(2, 2), at(1, 3)).network_receive_bytes_per_s is Reason.COUNTER_RESET


@pytest.mark.parametrize(
    "change",
    [
        lambda host: host.change("tap1", row="row-anew"),
        lambda host: host.change("tap1", renewed=1),
        lambda host: setattr(host.bridges["br0"], "connections", 2),
        lambda host: host.bridges["br0"].put(5, "tap1", *[10**6] * 6, age_s=1),
    ],
    ids=["row", "taken off and put on", "vswitchd restarted", "port younger than before"],
)
def test_a_port_made_again_is_another_epoch_however_high_its_counters(host, source, change):
    one_vm(host)
    before = source.sample()
    host.bridges["br0"].put(5, "tap1", *[10**6] * 6, age_s=101)
    change(host)
    after = source.sample()
    assert after.vms[A].interfaces["tap1"].opened == 2
    assert rates_of(after, before).network_receive_bytes_per_s is Reason.COUNTER_RESET
    host.bridges["br0"].put(5, "tap1", *[10**6 + 500] * 6, age_s=102)
    assert rates_of(source.sample(), after).network_receive_bytes_per_s > 0


def test_a_port_that_stays_keeps_its_number(host, source):
    one_vm(host)
    assert [source.sample().vms[A].interfaces["tap1"].opened for _ in range(3)] == [1, 1, 1]
    host.vm(B, "tap2")  # matched again
    host.port("br0", "tap2", 6, *[0] * 6)
    opened = {uuid: vm.interfaces for uuid, vm in source.sample().vms.items()}
    assert opened[A]["tap1"].opened == 1
    assert opened[B]["tap2"].opened == 2


def test_a_number_that_is_anothers_now_is_not_taken_for_the_port(host, source):
    one_vm(host)
    source.sample()
    bridge = host.bridges["br0"]
    # ovs-vswitchd was restarted and numbered again; OVSDB has not said so yet.
    bridge.connections = 2
    bridge.ports = {5: ("tap9", PortStats(*[10**9] * 6, S))}
    assert dict(source.sample().vms[A].absent) == {"interfaces": Reason.VM_STARTING}
    bridge.put(7, "tap1", *[3] * 6)
    host.change("tap1", number=7)
    assert source.sample().vms[A].interfaces["tap1"].receive_bytes == 3


def test_names_are_asked_for_only_when_they_may_have_changed(host, source):
    one_vm(host)
    bridge = host.bridges["br0"]
    for _ in range(5):
        source.sample()
    assert bridge.asked_names == 1
    bridge.connections = 2
    source.sample()
    source.sample()
    assert bridge.asked_names == 2
    host.port("br0", "unrelated", 9, *[0] * 6)
    source.sample()
    source.sample()
    assert bridge.asked_names == 3


def test_a_restart_between_counters_and_names_costs_the_sample(host, source):
    one_vm(host)
    host.bridges["br0"].restart_before_names = True
    with pytest.raises(SourceError, match="restarted just now"):
        source.sample()
    assert A in source.sample().vms


def test_a_port_that_has_gone_is_absent_and_comes_back(host, source):
    one_vm(host)
    source.sample()
    gone = host.bridges["br0"].ports.pop(5)
    assert dict(source.sample().vms[A].absent) == {"interfaces": Reason.VM_STARTING}
    host.bridges["br0"].ports[5] = gone
    assert source.sample().vms[A].interfaces is not None


def test_long_names_are_compared_as_openflow_cuts_them(host, source):
    host.vm(A, "vhost-user-client-17")
    host.port("br0", "vhost-user-client-17", 5, *[1] * 6)
    assert source.sample().vms[A].interfaces is not None


def test_bridges_without_vms_are_not_connected_to(host, source):
    one_vm(host)
    source.sample()
    host.identities = ()
    sample = source.sample()
    assert (sample.vms, host.bridges["br0"].closed) == ({}, True)


def test_probe_reports_what_answers(host, source):
    one_vm(host)
    assert source.probe().detail == "unix:/run/ovs/db.sock: 1 bridge, 1 port"
    host.port("br1", "uplink", 1, *[0] * 6)
    assert source.probe().detail == "unix:/run/ovs/db.sock: 2 bridges, 2 ports"
    host.bridges["br1"].error = SourceError("/run/ovs/br1.mgmt: no answer in time", Reason.STUCK)
    probe = source.probe()
    assert (probe.available, probe.detail) == (
        True,
        "unix:/run/ovs/db.sock: 2 bridges, 2 ports; /run/ovs/br1.mgmt: no answer in time",
    )
    host.bridges["br0"].error = SourceError("/run/ovs/br0.mgmt: no answer in time", Reason.STUCK)
    probe = source.probe()
    assert (probe.available, probe.reason) == (False, Reason.STUCK)
    host.database_error = SourceError("no socket", Reason.NOT_PRESENT)
    assert source.probe().reason is Reason.NOT_PRESENT


def joined(interfaces, epoch="e1"):
    off = Reason.SOURCE_OFF
    return JoinedVm(epoch, 1, off, off, off, interfaces)


def reading_of(sample):
    vm = sample.vms.get(A)
    if vm is None or vm.interfaces is None:
        return joined(Reason.STALE if vm is None else vm.absent["interfaces"])
    return joined(Reading("ovs", sample.mono_ns, sample.unix_ns, vm.interfaces))


def rates_of(now, last):
    return derive(reading_of(now), reading_of(last))


# What may happen to a port between two samplings, a second apart.
event = st.sampled_from(
    ["traffic"] * 4 + ["restart", "readd", "renumber", "gone", "back", "wrap 32", "wrap 64", "zero"]
)
MOST = 10_000  # bytes that truly pass in a second


class World:
    """A port whose counters do whatever real ones have been seen to do, and what truly passed."""

    def __init__(self, host, start):
        self.host, self.bridge, self.number, self.age = host, host.bridges["br0"], 5, 100
        self.counters = list(start)
        self.base = "row-tap1"
        self.put()

    def put(self):
        self.bridge.ports.clear()
        self.bridge.put(self.number, "tap1", *self.counters, age_s=self.age)

    def happen(self, what, passed, jump):
        self.age += 1
        self.counters = [value + passed for value in self.counters]
        if what == "restart":  # the counters go on, restart, or jump
            self.bridge.connections += 1
            self.counters, self.age = list(jump), 0
        elif what == "readd":
            self.base += "+"
            self.host.change("tap1", row=self.base)
            self.counters, self.age = list(jump), 0
        elif what == "renumber":
            self.number = self.number % 9 + 1
            self.host.change("tap1", number=self.number)
            self.counters, self.age = list(jump), 0
        elif what == "zero":
            self.counters = [0] * 6
        elif what.startswith("wrap"):
            self.counters = [value % 2 ** int(what[5:]) for value in self.counters]
        self.counters = [value % 2**64 for value in self.counters]
        if what == "gone":
            self.bridge.ports.clear()
        else:
            self.put()


near_wraps = st.one_of(
    st.integers(0, 2**64 - 2), st.integers(2**32 - 20_000, 2**32 + 20_000), st.integers(2**64 - 20_000, 2**64 - 2)
)


def check_world(host, source, start, events):
    one_vm(host)
    world = World(host, start)
    last = source.sample()
    for what, passed, jump in events:
        world.happen(what, passed, jump)
        sample = replace(source.sample(), mono_ns=last.mono_ns + S)
        for value in rates_of(sample, last)[11:17]:
            assert isinstance(value, Reason) or 0 <= value <= MOST, (what, value)
        last = sample


@given(
    st.lists(near_wraps, min_size=6, max_size=6),
    st.lists(
        st.tuples(event, st.integers(0, MOST), st.lists(near_wraps, min_size=6, max_size=6)), min_size=1, max_size=12
    ),
)
def test_no_rate_is_negative_or_absurd_whatever_happens_to_a_port(start, events):
    with pytest.MonkeyPatch.context() as patch:
        host = make_host(patch)
        source = OvsSource(host, database="unix:/run/ovs/db.sock", run_dir="/run/ovs")
        check_world(host, source, start, events)


def test_ports_that_did_not_move_give_the_same_object(host, source):
    host.vm(A, "tap1", "tap2")
    for number in (1, 2):
        host.port("br0", f"tap{number}", number, 1, 2, 3, 4, 5, 6)
    first = source.sample().vms[A]
    host.bridges["br0"].put(1, "tap1", 1, 2, 3, 4, 5, 6, age_s=101)
    second = source.sample().vms[A]
    assert second.interfaces is first.interfaces
    assert second.stamps["interfaces"].mono_ns > first.stamps["interfaces"].mono_ns
    host.bridges["br0"].put(1, "tap1", 1, 2, 3, 4, 5, 7, age_s=102)
    third = source.sample().vms[A]
    assert third.interfaces["tap1"].receive_drops == first.interfaces["tap1"].receive_drops + 1
    assert third.interfaces["tap2"] is first.interfaces["tap2"]
    host.bridges["br0"].put(1, "tap1", 1, 2, 3, 4, 5, 7, age_s=1)  # made again, and counted just as far
    assert source.sample().vms[A].interfaces["tap1"].opened != third.interfaces["tap1"].opened
