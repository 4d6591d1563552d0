"""The Open vSwitch source against real ovs-vswitchd: an own one with veth pairs, and the lab's with VMs.

The own one has a run directory and a network namespace of its own, so that it disturbs neither the lab nor the
machine's. Generators count what they send.
"""

import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from agent.sampling.changes import JoinedVm, Reading
from agent.sampling.rates import derive
from collector.base import InterfaceDevice, Reason, SourceError, VmIdentity
from collector.inventory.coverage import Coverage
from collector.inventory.inventory import Inventory
from collector.libvirt.source import LibvirtSource
from collector.ovs.source import OvsSource
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.alone]  # traffic is counted against the clock

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
CLONE_NEWNET = 0x40000000
FRAME = 1000  # bytes on the wire


def mac_of(port):
    return f"02:00:00:00:00:{port:02x}"


def uuid_of(port):
    return f"0b500000-0000-4000-8000-0000000000{port:02x}"


def frame(source, target, size=FRAME):
    """An Ethernet frame that no stack answers (a protocol for experiments)."""
    macs = bytes.fromhex((mac_of(target) + mac_of(source)).replace(":", ""))
    return macs + b"\x88\xb5" + bytes(size - 14)


class OwnOvs:
    """ovsdb-server and ovs-vswitchd with the userspace datapath, in a run directory and namespace of their own."""

    def __init__(self):
        self.run_dir = Path(tempfile.mkdtemp(prefix="wpovs-", dir="/run"))
        self.netns = self.run_dir.name
        self.env = {**os.environ, "OVS_RUNDIR": str(self.run_dir), "OVS_LOGDIR": str(self.run_dir)}
        self._sockets = {}

    @property
    def database(self):
        return f"unix:{self.run_dir}/db.sock"

    def run(self, *command, **options):
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=self.env, **options)
        assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stderr}"
        return done.stdout

    def vsctl(self, *arguments):
        return self.run("ovs-vsctl", f"--db={self.database}", "-t", "15", *arguments)

    def in_netns(self, *command):
        return self.run("nsenter", f"--net=/run/netns/{self.netns}", *command)

    def up(self):
        self.run("ip", "netns", "add", self.netns)
        quiet = "for file in /proc/sys/net/ipv6/conf/*/disable_ipv6; do [ ! -e $file ] || echo 1 >$file; done"
        self.in_netns("sh", "-c", quiet)  # nothing passes but what a test sends
        self.run("ovsdb-tool", "create", str(self.run_dir / "conf.db"), str(SCHEMA))
        self.start_ovsdb()
        self.vsctl("--no-wait", "init")
        self.start_vswitchd()

    def start_ovsdb(self):
        with contextlib.suppress(FileNotFoundError):
            (self.run_dir / ".conf.db.~lock~").unlink()
        remote = f"--remote=p{self.database}"
        self.run("ovsdb-server", str(self.run_dir / "conf.db"), remote, "--pidfile", "--detach", "--no-chdir")

    def start_vswitchd(self):
        self.in_netns("ovs-vswitchd", self.database, "--pidfile", "--detach", "--no-chdir", "--log-file")

    def pid(self, daemon):
        return int((self.run_dir / f"{daemon}.pid").read_text())

    def kill(self, daemon, signal_number=signal.SIGKILL):
        pid = self.pid(daemon)
        os.kill(pid, signal_number)
        wait_until(lambda: not Path(f"/proc/{pid}/exe").exists())

    def down(self):
        for opened in self._sockets.values():
            opened.close()
        for daemon in ("ovs-vswitchd", "ovsdb-server"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(self.pid(daemon), signal.SIGCONT)
                self.kill(daemon)
        self.run("ip", "netns", "del", self.netns)
        shutil.rmtree(self.run_dir)

    def bridge(self, name):
        self.vsctl("add-br", name, "--", "set", "bridge", name, "datapath_type=netdev")

    def port(self, bridge, number, *settings):
        """Add a veth pair: the bridge's end is vmN, the "guest's" gN."""
        self.in_netns("ip", "link", "add", f"vm{number}", "type", "veth", "peer", "name", f"g{number}")
        for end in (f"vm{number}", f"g{number}"):
            self.in_netns("ip", "link", "set", end, "up")
        self.attach(bridge, number, *settings)

    def attach(self, bridge, number, *settings):
        name = f"vm{number}"
        self.vsctl("add-port", bridge, name, *(["--", "set", "interface", name, *settings] if settings else []))

    def guest(self, number):
        """A packet socket on the guest's end. A socket stays in the namespace that it was made in."""
        if number not in self._sockets:
            made = []

            def make():
                with open(f"/run/netns/{self.netns}", "rb") as namespace:  # noqa: PTH123 - a descriptor
                    libc = ctypes.CDLL(None, use_errno=True)
                    assert libc.setns(namespace.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
                made.append(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
                made[0].bind((f"g{number}", 0))

            thread = threading.Thread(target=make)  # a namespace is a thread's, and this thread ends
            thread.start()
            thread.join()
            self._sockets[number] = made[0]
        return self._sockets[number]


@dataclass
class Host:
    """The inventory that the source asks, with VMs of one interface each."""

    identities: tuple = ()
    interfaces_covered: Coverage = field(default_factory=Coverage)

    def vms(self):
        return self.identities

    def add(self, number, **device):
        device.setdefault("device", f"vm{number}")
        identity = VmIdentity(
            uuid_of(number), f"vm{number}", 1, "e1", interfaces=(InterfaceDevice(**device),), manager="libvirt"
        )
        self.identities = (*self.identities, identity)


@pytest.fixture(scope="module")
def ovs():
    if os.geteuid() != 0:
        pytest.skip("needs root: starts ovs-vswitchd in a network namespace")
    absent = [tool for tool in ("ovs-vswitchd", "ovsdb-server", "ovs-vsctl", "ip") if shutil.which(tool) is None]
    if absent:
        pytest.skip(f"tests/lab/packages.sh did not install all: no {', '.join(absent)}")
    pytest.importorskip("ovs", reason="no library `ovs`; `python3 tools/bootstrap.py host` installs it")
    own = OwnOvs()
    try:
        own.up()
        yield own
    finally:
        own.down()


@pytest.fixture
def host():
    return Host()


@pytest.fixture
def source(ovs, host):
    source = OvsSource(host, database=ovs.database, run_dir=str(ovs.run_dir))
    source.open()
    yield source
    source.close()


def joined(sample, uuid):
    """One VM's reading as the agent would join it."""
    off = Reason.SOURCE_OFF
    vm = sample.vms.get(uuid)
    if vm is None or vm.interfaces is None:
        return JoinedVm("e1", 1, off, off, off, Reason.STALE if vm is None else vm.absent["interfaces"])
    return JoinedVm(vm.epoch, 1, off, off, off, Reading("ovs", sample.mono_ns, sample.unix_ns, vm.interfaces))


def network(rates):
    return tuple(getattr(rates, name) for name in rates._fields if name.startswith("network_"))


def sampled(source, timeout_s=60):
    """Sample; an ovs-vswitchd that makes or ends a port may not answer for a second or two on a busy machine.

    What came too late to make a rate with (it is then stale) is asked for again.
    """
    end = time.monotonic() + timeout_s
    while True:
        try:
            sample = source.sample()
        except SourceError:
            if time.monotonic() > end:
                raise
        else:
            late = any(vm.absent.get("interfaces") is Reason.STALE for vm in sample.vms.values())
            if not late or time.monotonic() > end:
                return sample
            time.sleep(0.1)


def counters(sample, number):
    (found,) = sample.vms[uuid_of(number)].interfaces.values()
    return found


class Traffic:
    """Sends frames from one guest to another all the time, and counts them."""

    def __init__(self, ovs, source, target, pause_s=0.002):
        self._socket, self._frame, self._pause_s = ovs.guest(source), frame(source, target), pause_s
        self._stop = threading.Event()
        self.frames = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        while not self._stop.wait(self._pause_s):
            self._socket.send(self._frame)
            self.frames += 1


def send(ovs, source, target, frames, size=FRAME):
    """Send frames at a pace that the userspace datapath keeps up with."""
    for _ in range(frames):
        ovs.guest(source).send(frame(source, target, size))
        time.sleep(0.0005)


@pytest.fixture(scope="module")
def pairs(ovs):
    """Two bridges with two guests each; every bridge has learnt where its guests are."""
    for bridge, numbers in (("br0", (1, 2)), ("br1", (3, 4))):
        ovs.bridge(bridge)
        for number in numbers:
            ovs.port(bridge, number)
        for one, other in (numbers, numbers[::-1], numbers):
            send(ovs, one, other, 3)
            time.sleep(0.1)
    return ovs


@pytest.fixture
def four(pairs, host):
    for number in (1, 2, 3, 4):
        host.add(number)


def test_bytes_and_directions_are_the_generators_on_every_bridge(pairs, four, source):
    before = sampled(source)
    send(pairs, 1, 2, 400)
    send(pairs, 3, 4, 300, 200)
    expected = {1: (0, 0, 400_000, 400), 2: (400_000, 400, 0, 0), 3: (0, 0, 60_000, 300), 4: (60_000, 300, 0, 0)}
    found = {}

    def arrived():
        after = sampled(source)
        for number in expected:
            new, old = counters(after, number), counters(before, number)
            found[number] = (
                new.receive_bytes - old.receive_bytes,
                new.receive_packets - old.receive_packets,
                new.transmit_bytes - old.transmit_bytes,
                new.transmit_packets - old.transmit_packets,
            )
        return found == expected

    with contextlib.suppress(AssertionError):
        wait_until(arrived, limit_s=3)
    for number, values in expected.items():
        assert found[number] == pytest.approx(values, rel=0.02)


@pytest.mark.long
def test_counters_are_live(pairs, four, source):
    for _ in range(4):  # each seen long before OVSDB's statistics would be refreshed
        before = counters(sampled(source), 1).transmit_bytes
        send(pairs, 1, 2, 20)
        wait_until(lambda before=before: counters(sampled(source), 1).transmit_bytes == before + 20 * FRAME, limit_s=2)


@pytest.mark.long
@pytest.mark.parametrize("version", ["10", "11", "12", "13", "14", "15"])
def test_a_bridge_restricted_to_one_version_of_openflow(pairs, four, source, version):
    default = sampled(source)
    pairs.vsctl("set", "bridge", "br0", f"protocols=OpenFlow{version}")
    try:
        fresh = OvsSource(source._inventory, database=pairs.database, run_dir=str(pairs.run_dir))
        for number in (1, 2):
            new, old = counters(sampled(fresh), number), counters(default, number)
            assert dataclass_without_opened(new) == dataclass_without_opened(old)
        assert fresh._bridges["br0"].client.hello(time.monotonic() + 1) == f"1.{int(version) - 10}"
        fresh.close()
    finally:
        pairs.vsctl("clear", "bridge", "br0", "protocols")


def dataclass_without_opened(value):
    return replace(value, opened=0)


class Sampler:
    """Samples again and again while things happen, and checks every rate of every VM on the way."""

    def __init__(self, source, uuids, most_bytes_per_s):
        self.source, self.uuids, self.most = source, uuids, most_bytes_per_s
        self.last = {}
        self.rates = []
        self.errors = []
        self.bytes = dict.fromkeys(uuids, 0.0)

    def sample(self):
        """Sample once. Returns whether every VM has a rate."""
        try:
            sample = self.source.sample()
        except SourceError as error:
            self.errors.append(error)
            return False
        complete = True
        for uuid in self.uuids:
            now, last = joined(sample, uuid), self.last.get(uuid)
            self.last[uuid] = now
            rates = None if last is None else network(derive(now, last))
            if rates is None or isinstance(rates[0], Reason):
                complete = False
                continue
            self.rates.append((uuid, rates))
            assert all(0 <= value <= self.most for value in rates), rates
            seconds = (now.interfaces.mono_ns - last.interfaces.mono_ns) / 1e9
            self.bytes[uuid] += (rates[0] + rates[1]) * seconds
        return complete

    def run(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.sample()
            time.sleep(0.05)

    def until_complete(self):
        wait_until(self.sample)

    def until_error(self, text=""):
        """Sample until it failed with this text: a busy machine may need a while."""

        def failed():
            self.sample()
            return any(text in str(error) for error in self.errors)

        wait_until(failed)


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_vswitchd_restarted_under_traffic(pairs, four, source, how):
    one, two = uuid_of(1), uuid_of(2)
    sampler = Sampler(source, (one, two), 20e6)
    with Traffic(pairs, 1, 2) as traffic:
        sampler.run(0.5)
        reported = sampled(source).mono_ns
        assert source._inventory.interfaces_covered.covers(one, "e1", reported)
        opened = counters(sampled(source), 1).opened
        pairs.kill("ovs-vswitchd", how)
        try:
            sampler.until_error()
            assert not source._inventory.interfaces_covered.covers(one, "e1", reported)  # libvirt is asked meanwhile
        finally:
            pairs.start_vswitchd()
        sampler.until_complete()
        sampler.run(0.5)
    assert {str(error).partition("; ")[2] for error in sampler.errors} <= {
        "is ovs-vswitchd running? else set sources.ovs.run_dir",
        "reconnecting at the next tick",
        "reading again at the next tick",
        "is ovs-vswitchd hung or stopped?",
    }
    assert counters(sampled(source), 1).opened != opened
    # Guest 2 sends nothing: whatever is reported as sent by it was taken for another's.
    assert {rates[1] for uuid, rates in sampler.rates if uuid == two} == {0}
    assert 0 < sampler.bytes[one] <= traffic.frames * FRAME * 1.02


@pytest.mark.long
def test_ports_that_swap_their_numbers_are_not_taken_for_each_other(pairs, four, source):
    sampler = Sampler(source, (uuid_of(1), uuid_of(2)), 20e6)
    number = {port.name: port.number for port in source._database.ports()}
    with Traffic(pairs, 1, 2) as traffic:
        sampler.run(0.3)
        for one, two in ((number["vm2"], number["vm1"]), (number["vm1"], number["vm2"])):
            swap = ("set", "interface", "vm1", f"ofport_request={one}", "--")
            pairs.vsctl(*swap, "set", "interface", "vm2", f"ofport_request={two}")
            sampler.run(0.5)
        # And behind a stopped daemon, so that all of it comes at once.
        pairs.kill("ovs-vswitchd")
        try:
            swap = ("set", "interface", "vm1", f"ofport_request={number['vm2']}", "--")
            pairs.vsctl("--no-wait", *swap, "set", "interface", "vm2", f"ofport_request={number['vm1']}")
        finally:
            pairs.start_vswitchd()
        sampler.until_complete()
        sampler.run(0.3)
    numbers = {port.name: port.number for port in source._database.ports()}
    assert (numbers["vm1"], numbers["vm2"]) == (number["vm2"], number["vm1"])
    assert {rates[1] for uuid, rates in sampler.rates if uuid == uuid_of(2)} == {0}
    assert sampler.bytes[uuid_of(1)] <= traffic.frames * FRAME * 1.02


@pytest.mark.long
def test_a_port_taken_off_and_put_on_again_under_traffic(pairs, four, source):
    sampler = Sampler(source, (uuid_of(1),), 20e6)
    with Traffic(pairs, 1, 2):
        sampler.run(0.3)
        first = counters(sampled(source), 1)
        pairs.vsctl("del-port", "vm1")
        gone = sampled(source)
        assert uuid_of(1) not in gone.vms or gone.vms[uuid_of(1)].interfaces is None
        assert counters(gone, 2) is not None  # one port's end costs nobody else's sample
        sampler.run(0.2)
        pairs.attach("br0", 1)
        sampler.until_complete()
        # All between two samplings.
        pairs.vsctl("del-port", "vm1", "--", "add-port", "br0", "vm1")
        pairs.vsctl("del-port", "vm1")
        pairs.attach("br0", 1)
        sampler.run(0.3)
        sampler.until_complete()
    assert counters(sampled(source), 1).opened > first.opened


@pytest.mark.long
def test_ovsdb_server_restarted_under_traffic(pairs, four, source):
    sampler = Sampler(source, tuple(map(uuid_of, (1, 2))), 20e6)
    with Traffic(pairs, 1, 2):
        sampler.until_complete()
        pairs.kill("ovsdb-server")
        try:
            sampler.until_error("the connection is lost; is ovsdb-server running?")
        finally:
            pairs.start_ovsdb()
        sampler.until_complete()
        pairs.port("br0", 5)
        source._inventory.add(5)
        wait_until(lambda: uuid_of(5) in sampled(source).vms)
        sampler.until_complete()
    pairs.vsctl("del-port", "vm5")
    wait_until(lambda: uuid_of(5) not in sampled(source).vms)


@pytest.mark.long
def test_a_stopped_vswitchd_is_stuck_and_libvirt_is_asked(pairs, four, source):
    sample = sampled(source)
    pid = pairs.pid("ovs-vswitchd")
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(SourceError, match=r"is ovs-vswitchd hung or stopped\?") as caught:
            source.sample()
        assert caught.value.reason is Reason.STUCK
        assert not source._inventory.interfaces_covered.covers(uuid_of(1), "e1", sample.mono_ns)
        assert source.probe().reason is Reason.STUCK
    finally:
        os.kill(pid, signal.SIGCONT)
    assert sampled(source).vms.keys() == sample.vms.keys()


@pytest.mark.long
def test_external_ids_find_the_ports_of_openstack(pairs, host, source):
    host.add(1, device="tap-a", mac="fa:16:3e:00:00:01", port_id="port-a")
    host.add(2, device="", mac="fa:16:3e:00:00:02", kind="vhostuser")
    assert sampled(source).vms == {}
    pairs.vsctl(
        "set", "interface", "vm1", "external_ids:iface-id=port-a", "external_ids:attached-mac=fa:16:3e:00:00:01"
    )
    pairs.vsctl("set", "interface", "vm2", f"external_ids:vm-uuid={uuid_of(2)}")
    try:
        wait_until(lambda: len(sampled(source).vms) == 2)
        assert {tuple(vm.interfaces) for vm in sampled(source).vms.values()} == {("tap-a",), ("vm2",)}
    finally:
        for name in ("vm1", "vm2"):
            pairs.vsctl("clear", "interface", name, "external_ids")


def test_probe_of_the_real_one(pairs, source):
    assert source.probe().detail == f"{pairs.database}: 2 bridges, 6 ports"


# --- the lab's VMs ---

LAB_VMS = {1: "10.77.0.101", 2: "10.77.0.102", 3: "10.77.0.103"}
DATABASE, RUN_DIR = "unix:/run/openvswitch/db.sock", "/run/openvswitch"
PING = re.compile(r"(\d+) packets transmitted, (\d+) received")
WIRE = 14 + 20 + 8  # Ethernet, IPv4, ICMP


def lab_uuid(number):
    return f"57500000-0000-4000-8000-0000000000{number:02x}"


@pytest.fixture
def lab_source(lab):
    source = OvsSource(Inventory(), database=DATABASE, run_dir=RUN_DIR)
    source.open()
    wait_until(lambda: set(map(lab_uuid, LAB_VMS)) <= sampled(source).vms.keys())
    yield source
    source.close()


@pytest.fixture
def libvirt(lab):
    source = LibvirtSource("qemu:///system", inventory=Inventory())
    source.open()
    yield source
    source.close()


def nsenter(*command):
    return ["nsenter", "--net=/run/netns/wplab", *command]


def ping(count, size, interval_s):
    """Ping all VMs at once. Returns what was sent and what came back, by VM, as the generator counts."""
    running = {
        number: subprocess.Popen(
            nsenter("ping", "-q", "-c", str(count), "-i", str(interval_s), "-s", str(size), "-W", "2", address),
            stdout=subprocess.PIPE,
            text=True,
        )
        for number, address in LAB_VMS.items()
    }
    said = {number: process.communicate(timeout=90)[0] for number, process in running.items()}
    return {number: tuple(map(int, PING.search(text).groups())) for number, text in said.items()}


def echoes_asked_for():
    """Echo requests that the generator's host got, all of them from the mixed guest (1000 bytes each)."""
    text = subprocess.run(
        nsenter("cat", "/proc/net/snmp"), capture_output=True, text=True, check=True, timeout=10
    ).stdout
    names, values = (line.split()[1:] for line in text.splitlines() if line.startswith("Icmp:"))
    return int(dict(zip(names, values, strict=True))["InEchos"])


def interfaces_of(sample):
    return {number: next(iter(sample.vms[lab_uuid(number)].interfaces.values())) for number in LAB_VMS}


def grown(after, before):
    """Received and transmitted bytes by VM."""
    return {
        number: (
            after[number].receive_bytes - before[number].receive_bytes,
            after[number].transmit_bytes - before[number].transmit_bytes,
        )
        for number in LAB_VMS
    }


def floods(source):
    """Whether the bridge, that has just begun, still sends everybody's frames to everybody."""
    before = interfaces_of(sampled(source))
    sent = ping(50, 1400, 0.01)
    reported = grown(interfaces_of(sampled(source)), before)
    return any(reported[number][0] > 1.2 * requests * (WIRE + 1400) for number, (requests, _) in sent.items())


def test_each_vms_bytes_are_the_generators_and_libvirts(lab, lab_source, libvirt):
    wait_until(lambda: not floods(lab_source))
    asked = echoes_asked_for()
    before, before_libvirt = interfaces_of(sampled(lab_source)), interfaces_of(sampled(libvirt))
    sent = ping(1000, 1400, 0.004)
    after, after_libvirt = interfaces_of(sampled(lab_source)), interfaces_of(sampled(libvirt))
    of_mixed = (echoes_asked_for() - asked) * (WIRE + 1000)
    reported = grown(after, before)
    for number, (requests, replies) in sent.items():
        own = of_mixed if number == 1 else 0
        assert replies > 900
        expected = (requests * (WIRE + 1400) + own, replies * (WIRE + 1400) + own)
        assert reported[number] == pytest.approx(expected, rel=0.02)
    for number, values in grown(after_libvirt, before_libvirt).items():
        assert values == pytest.approx(reported[number], rel=0.01)
    assert set(after) == set(after_libvirt)


@pytest.mark.long
def test_directions_are_the_guests_and_live(lab, lab_source):
    """Datagrams that nobody answers: only the guest's receive moves, and each second's are seen in that second."""
    script = (
        "import socket, time\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "for i in range(1200):\n"
        "    s.sendto(bytes(1400), ('10.77.0.102', 9)); time.sleep(0.002)\n"
    )
    wait_until(lambda: not floods(lab_source))
    first = last = sampled(lab_source)
    moved = []
    with subprocess.Popen(nsenter(sys.executable, "-c", script)) as sender:
        while sender.poll() is None:
            time.sleep(0.5)
            now = sampled(lab_source)
            moved.append(interfaces_of(now)[2].receive_bytes - interfaces_of(last)[2].receive_bytes)
            last = now
    time.sleep(0.3)
    received, transmitted = grown(interfaces_of(sampled(lab_source)), interfaces_of(first))[2]
    assert received == pytest.approx(1200 * (1400 + WIRE), rel=0.02)  # UDP's header is as long as ICMP's
    assert transmitted < received / 20  # the guest says "unreachable" once a second
    assert len(moved) >= 4
    assert all(value > 0 for value in moved[1:-1])  # the sender starts in the first, ends in the last


@pytest.mark.long
def test_the_labs_vswitchd_restarted_under_traffic(lab, lab_source, libvirt):
    sampler = Sampler(lab_source, tuple(map(lab_uuid, LAB_VMS)), 20e6)
    before = interfaces_of(sampled(libvirt))
    sampler.run(0.5)
    pid = int((lab.state / "run" / "vswitchd.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    try:
        wait_until(lambda: not Path(f"/proc/{pid}/exe").exists())
        sampler.until_error()
    finally:
        lab.script("up.sh")  # starts what is missing, and gives the bridge its address again
    sampler.until_complete()
    end = time.monotonic() + 60
    while any(replies < requests for requests, replies in ping(5, 56, 0.05).values()):  # the taps are on it again
        assert time.monotonic() < end
    background = threading.Thread(target=ping, args=(100, 1400, 0.01))
    background.start()
    sampler.run(1)
    background.join()
    sampler.sample()
    really = grown(interfaces_of(sampled(libvirt)), before)
    for number in LAB_VMS:
        # Never more than truly passed; what passed around the restart has no rate.
        assert 0 < sampler.bytes[lab_uuid(number)] <= 1.02 * sum(really[number]) + 5000
