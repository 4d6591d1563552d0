"""VMs that come and go while the agent runs: nothing leaks, and nobody is reported another's numbers."""

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.api.client import connect
from whitepanda.common.errors import UnavailableError

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200)]

LAB = Path(__file__).resolve().parents[1] / "lab"
PAUSED_STARTS, PAUSED_AT_ONCE = 200, 10
BOOTED_STARTS = 20
RATE_BYTES_PER_S = 400_000
WIRE_SHARE = 1042 / 1000  # with the headers
#: asyncio's pool starts its threads one by one, when it first needs them.
POOL_THREADS = min(32, (os.cpu_count() or 1) + 4)
#: What each start of the second half may leave in memory, with what grows as time goes by (8 to 12 KiB were measured).
LEFT_KIB = 32
KEPT = ("wplab-mixed-1", "wplab-idle-2", "wplab-busy-3")
CONFIG = """
[agent]
host = "lab-host"
state_dir = "{folder}/state"
socket = "{folder}/agent.sock"

[sources]
procfs.mode = "required"
libvirt.mode = "required"
libvirt.disk_poll_s = 1.0
ovs.mode = "required"
resctrl.mode = "required"
"""
DOMAIN = """
<domain type='qemu'>
  <name>{name}</name><uuid>{uuid}</uuid><memory unit='MiB'>32</memory><vcpu>2</vcpu>
  <os><type arch='x86_64' machine='pc'>hvm</type></os>
  <features><tcg><tb-cache unit='MiB'>8</tb-cache></tcg></features>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/><source file='{disk}'/><target dev='vda' bus='virtio'/>
    </disk>
    <interface type='bridge'>
      <source bridge='wplab0'/><virtualport type='openvswitch'/><target dev='{tap}'/><model type='virtio'/>
    </interface>
    <controller type='usb' model='none'/><memballoon model='none'/>
  </devices>
</domain>
"""
# Sent to the idle guest all the time: only it may be told these bytes.
SENDER = """
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    for _ in range({packets}):
        s.sendto(bytes(1000), ("10.77.0.102", 9))
    time.sleep(0.1)
"""


@dataclass
class Footprint:
    """What the agent holds."""

    fds: int
    threads: int
    memory_mib: float
    groups: set[str]


# More than this is not theirs, in bytes per second: nobody but the idle guest is sent anything, but for the mixed one's
# pings (1042 bytes, at most five times a second, both ways) and what is sent to all; nobody but the mixed one writes.
# A guest that boots reads its disk's partition table.
RECEIVED, SENT, READ, WRITTEN = (
    f"{metric}_bytes_per_s" for metric in ("network_receive", "network_transmit", "disk_read", "disk_write")
)
MOST = {
    "wplab-churn-": {"cpu_usage_cores": 0.1, RECEIVED: 10_000, SENT: 0, READ: 0, WRITTEN: 0},
    "wplab-mixed-1": {"cpu_usage_cores": 1.2, RECEIVED: 20_000, SENT: 20_000},
    "wplab-idle-2": {
        "cpu_usage_cores": 1.2, RECEIVED: 2 * WIRE_SHARE * RATE_BYTES_PER_S, SENT: 10_000, READ: 0, WRITTEN: 0
    },
    "wplab-busy-3": {"cpu_usage_cores": 1.2, RECEIVED: 10_000, SENT: 10_000, READ: 0, WRITTEN: 0},
    "wplab-idle-": {"cpu_usage_cores": 1.2, RECEIVED: 10_000, SENT: 10_000, READ: 200_000, WRITTEN: 0},
}  # fmt: skip


def ours(vms) -> list:
    """Without the QEMUs of others that may run here."""
    return [vm for vm in vms if vm.name.startswith("wplab-")]


@dataclass
class Watch:
    """Asks the agent twice a second and notes what must never be."""

    socket: Path
    wrong: list[str] = field(default_factory=list)
    epochs: dict[str, set[str]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    measured: dict[str, set[str]] = field(default_factory=dict)  # VMs that come and go, by metric
    reported: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # of those that stay
    moved: dict[tuple[str, str], int] = field(default_factory=dict)  # truly, while it watched
    seconds: float = 0
    polls: int = 0

    def poll(self) -> None:
        try:
            with connect(self.socket) as client:
                vms = ours(client.vms().vms)
        except UnavailableError as error:
            self.wrong.append(str(error))
            return
        self.polls += 1
        cores = 0.0
        for vm in vms:
            self.seen.add(vm.uuid)
            self.epochs.setdefault(vm.uuid, set()).add(vm.epoch)
            values = {m.name: m.value for m in vm.metrics if m.value == m.value}
            self.wrong += [f"{vm.name} {name} = {value}" for name, value in values.items() if value < 0]
            most = MOST[vm.name if vm.name in KEPT else vm.name.rstrip("0123456789")]
            self.wrong += [
                f"{vm.name} {name} = {values[name]}, at most {limit}"
                for name, limit in most.items()
                if values.get(name, 0) > limit
            ]
            cores += values.get("cpu_usage_cores", 0)
            for name, value in values.items():
                if vm.name in KEPT:
                    self.reported.setdefault((vm.name, name), []).append(value)
                elif vm.name.startswith("wplab-churn-"):
                    self.measured.setdefault(name, set()).add(vm.uuid)
        if cores > 1.1 * (os.cpu_count() or 1):
            self.wrong.append(f"all VMs together use {cores} cores")

    def mean(self, vm: str, metric: str) -> float:
        return sum(self.reported[vm, metric]) / len(self.reported[vm, metric])


@pytest.fixture
def agent(lab, tmp_path):
    """The agent where /sys/fs/resctrl is the look-alike."""
    (tmp_path / "agent.toml").write_text(CONFIG.format(folder=tmp_path))
    whitepanda = Path(sys.executable).parent / "whitepanda"
    command = [LAB / "resctrl_ns.sh", "--", whitepanda, "agent", "run", "-c", tmp_path / "agent.toml"]
    with (tmp_path / "agent.log").open("wb") as output:
        outer = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "agent.sock").exists():
            assert outer.poll() is None, (tmp_path / "agent.log").read_text()
            assert time.monotonic() < end
            time.sleep(0.1)
        yield tmp_path / "agent.sock", agent_pid(tmp_path)
    finally:
        for pid in [agent_pid(tmp_path)]:
            os.kill(pid, signal.SIGTERM)
        try:
            outer.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(outer.pid, signal.SIGKILL)
            raise


def agent_pid(folder: Path) -> int:
    config = str(folder / "agent.toml").encode()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if config in words and b"run" in words and b"python" in words[0]:
                return int(process.name)
    raise AssertionError("the agent's process was not found")


def footprint(pid: int) -> Footprint:
    process = Path(f"/proc/{pid}")
    rollup = (process / "smaps_rollup").read_text().splitlines()
    [memory_kib] = [int(line.split()[1]) for line in rollup if line.startswith("Anonymous:")]
    groups = process / "root/sys/fs/resctrl/mon_groups"
    return Footprint(
        len(list((process / "fd").iterdir())),
        len(list((process / "task").iterdir())),
        memory_kib / 1024,
        {path.name for path in groups.iterdir()},
    )


def wait_for_vms(socket: Path, count: int, timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while True:
        with connect(socket) as client:
            names = [vm.name for vm in ours(client.vms().vms)]
        if len(names) == count:
            return
        assert time.monotonic() < end, f"{len(names)} VMs instead of {count}: {names}"
        time.sleep(0.5)


class Paused:
    """Starts paused VMs one by one, keeps each for some ticks, stops it. Names, taps, disks come again, UUIDs never.

    Half of them are stopped by libvirt, half are killed. Starts are never at once: libvirtd, which serves them one by
    one, would keep others waiting for minutes.
    """

    def __init__(self, folder: Path) -> None:
        libvirt = importlib.import_module("libvirt")
        self._connection = libvirt.open("qemu:///system")
        self._flags = libvirt.VIR_DOMAIN_START_PAUSED
        self._places = [threading.Lock() for _ in range(PAUSED_AT_ONCE)]
        self._disks = [folder / f"wplab-churn-{place}.raw" for place in range(PAUSED_AT_ONCE)]
        for disk in self._disks:
            with disk.open("wb") as file:
                file.truncate(16 << 20)

    def churn(self, count: int) -> None:
        with ThreadPoolExecutor(PAUSED_AT_ONCE) as pool:
            stops = []
            for number in range(count):
                place = number % PAUSED_AT_ONCE
                self._places[place].acquire()
                name = f"wplab-churn-{place}"
                names = {"name": name, "tap": f"wpchurn{place}", "disk": self._disks[place]}
                text = DOMAIN.format(uuid=uuid.uuid4(), **names)
                domain = self._connection.createXML(text, self._flags)
                stops.append(pool.submit(self._stop, domain, name, place, kill=number % 2 == 1))
            for stop in stops:
                stop.result()

    def _stop(self, domain, name: str, place: int, *, kill: bool) -> None:
        try:
            time.sleep(5)
            if kill:
                os.kill(int(Path(f"/run/libvirt/qemu/{name}.pid").read_text()), signal.SIGKILL)
            else:
                domain.destroy()
            end = time.monotonic() + 30
            while name in self._names():  # its status file goes before its name is free
                assert time.monotonic() < end, f"libvirtd did not notice the end of {name}"
                time.sleep(0.1)
        finally:
            self._places[place].release()

    def _names(self) -> set[str]:
        return {domain.name() for domain in self._connection.listAllDomains()}

    def moved(self) -> dict[tuple[str, str], int]:
        """Bytes that VMs which stay have moved, as libvirt counts them."""
        mixed, idle = (self._connection.lookupByName(name) for name in KEPT[:2])
        disk, tap = mixed.blockStats("vda"), idle.interfaceStats("wptap2")
        return {(KEPT[0], READ): disk[1], (KEPT[0], WRITTEN): disk[3], (KEPT[1], RECEIVED): tap[0]}

    def close(self) -> None:
        self._connection.close()
        for disk in self._disks:
            disk.unlink()


def churn_booted(lab, number: int) -> None:
    """Boot a guest and stop it while it boots or just after."""
    name = f"wplab-idle-{20 + number}"
    lab.script("domain.sh", "idle", str(20 + number), NOWAIT="1")
    time.sleep(6)
    lab.virsh("destroy", name)


def churn(lab, watch: Watch, paused: Paused, booted: range) -> None:
    """Half of the starts, watched."""
    done, before, start = threading.Event(), paused.moved(), time.monotonic()

    def poll() -> None:
        while not done.wait(0.5):
            watch.poll()

    poller = threading.Thread(target=poll)
    poller.start()
    try:
        with ThreadPoolExecutor(1) as boots:
            boot = boots.submit(lambda: [churn_booted(lab, number) for number in booted])
            paused.churn(PAUSED_STARTS // 2)
            boot.result()
    finally:
        done.set()
        poller.join()
    watch.seconds += time.monotonic() - start
    for key, now in paused.moved().items():
        watch.moved[key] = watch.moved.get(key, 0) + now - before[key]


def footprint_at_rest(socket: Path, pid: int) -> Footprint:
    wait_for_vms(socket, 3)
    time.sleep(6)
    return footprint(pid)


def test_vms_come_and_go_and_nothing_is_left_of_them(lab, agent):
    socket, pid = agent
    wait_for_vms(socket, 3)
    watch = Watch(socket)
    paused = Paused(lab.state / "vm")
    packets = RATE_BYTES_PER_S // 10_000
    sender = subprocess.Popen(
        ["nsenter", "--net=/run/netns/wplab", sys.executable, "-c", SENDER.format(packets=packets)]
    )
    footprints = []
    try:
        with connect(socket) as client:
            kept = {vm.name: (vm.uuid, vm.epoch) for vm in ours(client.vms().vms)}
        paused.churn(4)  # the first VMs bring what is loaded once
        footprints.append(footprint_at_rest(socket, pid))
        churn(lab, watch, paused, range(BOOTED_STARTS // 2))
        footprints.append(footprint_at_rest(socket, pid))
        churn(lab, watch, paused, range(BOOTED_STARTS // 2, BOOTED_STARTS))
        footprints.append(footprint_at_rest(socket, pid))
        with connect(socket) as client:
            status = client.status()
            assert {vm.name: (vm.uuid, vm.epoch) for vm in ours(client.vms().vms)} == kept
    finally:
        paused.close()
        sender.kill()
        sender.wait()

    truly = {key: moved / watch.seconds for key, moved in watch.moved.items()}
    reported = {key: watch.mean(*key) for key in truly}
    print(*footprints, f"{watch.polls} polls, {len(watch.seen)} VMs, {truly} {reported}", sep="\n")
    print({name: len(uuids) for name, uuids in watch.measured.items()})
    check_watch(watch)
    # The bytes of those that stay are theirs, neither more nor less.
    assert reported == pytest.approx(truly, rel=0.25)
    assert 0.1 < truly[KEPT[1], RECEIVED] / (WIRE_SHARE * RATE_BYTES_PER_S) < 1.1  # a busy machine sends slowly

    first, half, last = footprints
    assert last.fds <= first.fds + 3
    assert last.threads <= half.threads + 1
    assert last.threads <= first.threads + POOL_THREADS
    groups = last.groups & {f"whitepanda-{uuid}" for uuid in watch.seen}
    assert groups == {f"whitepanda-{uuid}" for uuid, _ in kept.values()}
    states = {source.name: source.state for source in status.sources}
    assert {states[name] for name in ("procfs", "libvirt", "ovs", "resctrl")} == {"available"}
    metrics = {m.name: m.value for m in status.host_metrics}
    assert metrics["agent_vm_errors_total"] == 0
    assert metrics["agent_tick_errors_total"] == 0
    left_kib = (last.memory_mib - half.memory_mib) * 1024 / ((PAUSED_STARTS + BOOTED_STARTS) / 2)
    assert left_kib < LEFT_KIB


def check_watch(watch: Watch) -> None:
    assert watch.wrong == []
    assert all(len(epochs) == 1 for epochs in watch.epochs.values())
    assert len(watch.seen) >= 0.9 * (PAUSED_STARTS + BOOTED_STARTS)
    assert watch.polls > 60
    # Those that came and went were measured, so what was reported of them could have been wrong.
    for metric in ("cpu_usage_cores", RECEIVED, SENT, READ, WRITTEN):
        assert len(watch.measured[metric]) > PAUSED_STARTS / 2, metric
