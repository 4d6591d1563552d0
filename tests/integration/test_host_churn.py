"""VMs that come and go while the agent runs: nothing leaks, and nobody is told another's numbers."""

from __future__ import annotations

import importlib
import json
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

from agent.local_client import connect
from whitepanda.common.errors import UnavailableError

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200)]

LAB = Path(__file__).resolve().parents[1] / "lab"
PAUSED_STARTS, PAUSED_AT_ONCE = 200, 10
BOOTED_STARTS = 20
RATE_BYTES_PER_S = 400_000
CONFIG = """
[agent]
host = "lab-host"
state_dir = "{folder}/state"
socket = "{folder}/agent.sock"

[sources]
procfs.mode = "required"
libvirt.mode = "required"
resctrl.mode = "{resctrl}"
"""
DOMAIN = """
<domain type='qemu'>
  <name>{name}</name><uuid>{uuid}</uuid><memory unit='MiB'>32</memory><vcpu>2</vcpu>
  <os><type arch='x86_64' machine='pc'>hvm</type></os>
  <features><tcg><tb-cache unit='MiB'>8</tb-cache></tcg></features>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
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
    rss_mib: float
    groups: set[str]


@dataclass
class Watch:
    """Asks the agent twice a second and notes what must never be."""

    socket: Path
    wrong: list[str] = field(default_factory=list)
    epochs: dict[str, set[str]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    idle_rates: list[float] = field(default_factory=list)
    polls: int = 0

    def poll(self) -> None:
        try:
            with connect(self.socket) as client:
                vms = client.vms().vms
        except UnavailableError as error:
            self.wrong.append(str(error))
            return
        self.polls += 1
        for vm in vms:
            self.seen.add(vm.uuid)
            self.epochs.setdefault(vm.uuid, set()).add(vm.epoch)
            values = {m.name: m.value for m in vm.metrics if m.value == m.value}
            for name, value in values.items():
                if value < 0:
                    self.wrong.append(f"{vm.name} {name} = {value}")
            usage = values.get("cpu_usage_cores", 0.0)
            received = values.get("network_receive_bytes_per_s", 0.0)
            if usage > vm.vcpus * 1.5:
                self.wrong.append(f"{vm.name} uses {usage} cores with {vm.vcpus} vCPUs")
            if vm.name.startswith("wplab-churn-") and usage > 0.1:
                self.wrong.append(f"{vm.name} is paused and uses {usage} cores")
            if vm.name == "wplab-idle-2":
                self.idle_rates.append(received)
            elif received > RATE_BYTES_PER_S / 4:
                self.wrong.append(f"{vm.name} received {received} bytes/s, which were the idle guest's")


@pytest.fixture
def agent(lab, tmp_path):
    """The agent where /sys/fs/resctrl is the look-alike."""
    (tmp_path / "agent.toml").write_text(CONFIG.format(folder=tmp_path, resctrl="required"))
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
    pages = int((process / "statm").read_text().split()[1])
    groups = process / "root/sys/fs/resctrl/mon_groups"
    return Footprint(
        len(list((process / "fd").iterdir())),
        len(list((process / "task").iterdir())),
        pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        {path.name for path in groups.iterdir()},
    )


def wait_for_vms(socket: Path, count: int, timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while True:
        with connect(socket) as client:
            names = [vm.name for vm in client.vms().vms]
        if len(names) == count:
            return
        assert time.monotonic() < end, f"{len(names)} VMs instead of {count}: {names}"
        time.sleep(0.5)


class Paused:
    """Starts paused VMs one by one, keeps each for some ticks, stops it. Names and taps come again, UUIDs never.

    Half of them are stopped by libvirt, half are killed. Starts are never at once: libvirtd, which serves them one by
    one, would keep others waiting for minutes.
    """

    def __init__(self) -> None:
        libvirt = importlib.import_module("libvirt")
        self._connection = libvirt.open("qemu:///system")
        self._flags = libvirt.VIR_DOMAIN_START_PAUSED
        self._places = [threading.Lock() for _ in range(PAUSED_AT_ONCE)]

    def churn(self, count: int) -> None:
        with ThreadPoolExecutor(PAUSED_AT_ONCE) as pool:
            stops = []
            for number in range(count):
                place = number % PAUSED_AT_ONCE
                self._places[place].acquire()
                name = f"wplab-churn-{place}"
                text = DOMAIN.format(name=name, uuid=uuid.uuid4(), tap=f"wpchurn{place}")
                domain = self._connection.createXML(text, self._flags)
                stops.append(pool.submit(self._stop, domain, name, place, kill=number % 2 == 1))
            for stop in stops:
                stop.result()

    def _stop(self, domain, name: str, place: int, *, kill: bool) -> None:
        try:
            time.sleep(3)
            if kill:
                os.kill(int(Path(f"/run/libvirt/qemu/{name}.pid").read_text()), signal.SIGKILL)
                end = time.monotonic() + 30
                while Path(f"/run/libvirt/qemu/{name}.xml").exists():
                    assert time.monotonic() < end, f"libvirtd did not notice the end of {name}"
                    time.sleep(0.1)
            else:
                domain.destroy()
        finally:
            self._places[place].release()

    def close(self) -> None:
        self._connection.close()


def churn_booted(lab, number: int) -> None:
    """Boot a guest and stop it while it boots or just after."""
    name = f"wplab-idle-{20 + number}"
    lab.script("domain.sh", "idle", str(20 + number), NOWAIT="1")
    time.sleep(6)
    lab.virsh("destroy", name)


def test_vms_come_and_go_and_nothing_is_left_of_them(lab, agent):
    socket, pid = agent
    wait_for_vms(socket, 3)
    watch = Watch(socket)
    paused = Paused()
    packets = RATE_BYTES_PER_S // 10_000
    sender = subprocess.Popen(
        ["nsenter", "--net=/run/netns/wplab", sys.executable, "-c", SENDER.format(packets=packets)]
    )
    try:
        with connect(socket) as client:
            kept = {vm.name: vm.epoch for vm in client.vms().vms}
        paused.churn(4)  # the first VMs bring what is loaded once
        wait_for_vms(socket, 3)
        time.sleep(5)
        before = footprint(pid)

        done = threading.Event()

        def poll() -> None:
            while not done.wait(0.5):
                watch.poll()

        poller = threading.Thread(target=poll)
        poller.start()
        try:
            with ThreadPoolExecutor(1) as boots:
                booted = boots.submit(lambda: [churn_booted(lab, number) for number in range(BOOTED_STARTS)])
                paused.churn(PAUSED_STARTS)
                booted.result()
        finally:
            done.set()
            poller.join()
        wait_for_vms(socket, 3)
        time.sleep(6)
        after = footprint(pid)
        with connect(socket) as client:
            status = client.status()
            assert {vm.name: vm.epoch for vm in client.vms().vms} == kept
    finally:
        paused.close()
        sender.kill()
        sender.wait()

    print(
        json.dumps(
            {"before": repr(before), "after": repr(after), "polls": watch.polls, "seen": len(watch.seen)}
        )
    )
    assert watch.wrong == []
    assert all(len(epochs) == 1 for epochs in watch.epochs.values())
    assert len(watch.seen) >= 0.9 * (PAUSED_STARTS + BOOTED_STARTS)
    assert watch.polls > 60
    # The idle guest's packets are counted as its own, at the rate at which they are sent.
    rates = sorted(watch.idle_rates)
    assert 0.5 * RATE_BYTES_PER_S < rates[len(rates) // 2] < 1.2 * RATE_BYTES_PER_S

    assert after.fds <= before.fds + 3
    assert after.threads <= before.threads + 1
    assert after.rss_mib <= before.rss_mib + 10
    assert len([name for name in after.groups if name.startswith("whitepanda-")]) == 3
    assert {
        source.name: source.state for source in status.sources if source.name in ("procfs", "libvirt")
    } == {
        "procfs": "available",
        "libvirt": "available",
    }
    metrics = {m.name: m.value for m in status.host_metrics}
    assert metrics["agent_vm_errors_total"] == 0
    assert metrics["agent_tick_errors_total"] == 0
