"""The agent itself, as a process with a configuration, on the lab's hypervisor; asked through its CLI and local API."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from agent.api.client import connect
from agent.display.render import summary_json

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

CONFIG = """
[agent]
host = "lab-host"
state_dir = "{folder}/state"
socket = "{folder}/agent.sock"
tick_s = 0.5

[sources.libvirt]
mode = "required"
deadline_s = 1.0
disk_poll_s = {disk_poll_s}

[sources.procfs]
mode = "required"

[[jobs]]
fact = "nova:flavor"
pattern = '^lab\\.(.+)$'
job = '\\1'
"""

NETWORK = ("network_receive_bytes_per_s", "network_transmit_bytes_per_s")


class Agent:
    def __init__(self, folder: Path, process: subprocess.Popen) -> None:
        self.socket = folder / "agent.sock"
        self.process = process

    def vms(self):
        """What `whitepanda vms --json` prints, by the VM's name."""
        command = [Path(sys.executable).parent / "whitepanda", "vms", "--json", "--socket", self.socket]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        return {vm["name"]: vm for vm in json.loads(done.stdout)["vms"]}

    def status(self):
        with connect(self.socket) as client:
            return client.status()

    def source(self, name):
        return next(source for source in self.status().sources if source.name == name)

    def quick_vms(self):
        """The same, without starting a process for it."""
        with connect(self.socket) as client:
            text = msgspec.json.encode([summary_json(vm) for vm in client.vms().vms])  # what is not known: null
        return {vm["name"]: vm for vm in msgspec.json.decode(text)}

    def wait(self, condition, timeout_s=60.0):
        """Wait for something to be true of the VMs; returns them."""
        end = time.monotonic() + timeout_s
        while not condition(vms := self.quick_vms()):
            assert self.process.poll() is None, "the agent ended"
            assert time.monotonic() < end, f"did not come true in time: {json.dumps(vms)[:3000]}"
            time.sleep(0.1)
        return vms


@pytest.fixture
def agent(lab, tmp_path):
    with running(tmp_path, disk_poll_s=0.5) as agent:
        yield agent


@contextlib.contextmanager
def running(tmp_path, disk_poll_s):
    (tmp_path / "agent.toml").write_text(CONFIG.format(folder=tmp_path, disk_poll_s=disk_poll_s))
    with (tmp_path / "agent.log").open("wb") as output:
        command = [Path(sys.executable).parent / "whitepanda", "agent", "run", "-c", tmp_path / "agent.toml"]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        end = time.monotonic() + 30
        while not (tmp_path / "agent.sock").exists():
            assert process.poll() is None, (tmp_path / "agent.log").read_text()
            assert time.monotonic() < end
            time.sleep(0.1)
        agent = Agent(tmp_path, process)
        agent.wait(lambda vms: measured(vms, "wplab-mixed-1", "guest_ratio"))
        yield agent
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, (tmp_path / "agent.log").read_text()
    finally:
        process.kill()
        process.wait()


def measured(vms, name, *metrics, age_s=3):
    """Whether a VM has numbers, and new ones, for these metrics."""
    if name not in vms:
        return False
    found = [vms[name]["metrics"][metric] for metric in metrics]
    return all(metric["value"] is not None and metric["age_s"] < age_s for metric in found)


def test_three_real_vms_and_their_life_cycle_as_the_agent_reports_them(lab, agent):
    disk = ("disk_read_bytes_per_s", "disk_write_bytes_per_s")
    agent.wait(
        lambda vms: all(
            measured(vms, name, "guest_ratio", "run_queue_wait_ratio", *disk, *NETWORK)
            for name in ("wplab-mixed-1", "wplab-idle-2", "wplab-busy-3")
        )
    )
    vms = agent.vms()
    assert {name: vm["job"] for name, vm in vms.items()} == {
        "wplab-mixed-1": "mixed",
        "wplab-idle-2": "idle",
        "wplab-busy-3": "busy",
    }
    values = {name: {key: m["value"] for key, m in vm["metrics"].items()} for name, vm in vms.items()}
    busy = values["wplab-busy-3"]
    assert busy["guest_ratio"] + busy["run_queue_wait_ratio"] > 0.8
    assert values["wplab-idle-2"]["guest_ratio"] < 0.1
    assert values["wplab-idle-2"]["disk_write_bytes_per_s"] == 0

    saved = lab.state / "vm" / "wplab-saved"
    lab.script("domain.sh", "busy", "6", NOWAIT="1")
    first = agent.wait(lambda vms: measured(vms, "wplab-busy-6", "guest_ratio", *disk))
    lab.virsh("save", "wplab-busy-6", str(saved))
    agent.wait(lambda vms: "wplab-busy-6" not in vms)
    lab.virsh("restore", str(saved))
    second = agent.wait(lambda vms: measured(vms, "wplab-busy-6", "guest_ratio", *disk))
    assert second["wplab-busy-6"]["epoch"] != first["wplab-busy-6"]["epoch"]
    lab.virsh("destroy", "wplab-busy-6")
    agent.wait(lambda vms: "wplab-busy-6" not in vms)
    last = agent.vms()
    for name in ("wplab-mixed-1", "wplab-idle-2", "wplab-busy-3"):
        assert last[name]["epoch"] == vms[name]["epoch"]
        assert measured(last, name, "guest_ratio", *disk)


@pytest.mark.long
def test_the_agent_continues_while_libvirtd_is_dead_and_again_with_it(lab, agent):
    os.kill(lab.libvirtd_pid, signal.SIGKILL)
    try:
        gone = agent.wait(lambda vms: not measured(vms, "wplab-mixed-1", "disk_read_bytes_per_s"))
        for name in ("wplab-mixed-1", "wplab-idle-2", "wplab-busy-3"):
            assert measured(gone, name, "guest_ratio", "run_queue_wait_ratio")
        agent.wait(lambda vms: measured(vms, "wplab-mixed-1", *NETWORK))  # Open vSwitch tells them
        source = agent.source("libvirt")
        assert source.state == "failed"
        assert "is libvirtd (or virtqemud) running?" in source.detail
    finally:
        lab.script("libvirtd.sh")
    agent.wait(lambda vms: measured(vms, "wplab-mixed-1", "disk_read_bytes_per_s", "guest_ratio"))


@pytest.mark.long
def test_a_stopped_libvirtd_makes_its_source_stuck_and_no_tick_late(lab, agent):
    agent.wait(lambda vms: measured(vms, "wplab-mixed-1", "disk_read_bytes_per_s"))
    os.kill(lab.libvirtd_pid, signal.SIGSTOP)
    try:
        end = time.monotonic() + 20
        while agent.source("libvirt").state != "stuck":
            assert time.monotonic() < end
            time.sleep(0.2)
        before = agent.status()
        time.sleep(3)
        after = agent.status()
        assert after.ticks - before.ticks >= 4  # of 6 at 0.5 s; this machine may be loaded
        vms = agent.wait(lambda vms: not measured(vms, "wplab-mixed-1", "disk_read_bytes_per_s"))
        for name in ("wplab-mixed-1", "wplab-idle-2", "wplab-busy-3"):
            assert measured(vms, name, "guest_ratio", "run_queue_wait_ratio")
        agent.wait(lambda vms: measured(vms, "wplab-mixed-1", *NETWORK))
    finally:
        os.kill(lab.libvirtd_pid, signal.SIGCONT)
    agent.wait(lambda vms: measured(vms, "wplab-mixed-1", "disk_read_bytes_per_s", "guest_ratio"))


@pytest.mark.long
def test_a_minute_without_libvirtd_costs_only_what_it_alone_reports(lab, tmp_path):
    names = ("wplab-mixed-1", "wplab-idle-2", "wplab-busy-3")
    disk = ("disk_read_bytes_per_s", "disk_write_bytes_per_s")
    others = ("guest_ratio", "run_queue_wait_ratio", *NETWORK)
    with running(tmp_path, disk_poll_s=10.0) as agent:
        agent.wait(lambda vms: all(measured(vms, name, *others, *disk, age_s=11) for name in names))
        os.kill(lab.libvirtd_pid, signal.SIGSTOP)
        try:
            before, stopped = agent.status(), time.monotonic()
            seen, looks, moments = [], 0, {(name, metric): [] for name in names for metric in others}
            sent = []
            while time.monotonic() - stopped < 60:
                time.sleep(1)
                vms = agent.quick_vms()
                assert all(measured(vms, name, "guest_ratio", "run_queue_wait_ratio") for name in names)
                looks += 1
                for (name, metric), found in moments.items():
                    if measured(vms, name, metric):
                        found.append(time.monotonic() - vms[name]["metrics"][metric]["age_s"])
                sent.append(vms["wplab-mixed-1"]["metrics"]["network_transmit_bytes_per_s"]["value"] or 0)
                if time.monotonic() - stopped > 10:
                    seen += [vms[name]["metrics"][metric]["reason"] for name in names for metric in disk]
            after, elapsed_s = agent.status(), time.monotonic() - stopped
            assert agent.source("libvirt").state == "stuck"
        finally:
            os.kill(lab.libvirtd_pid, signal.SIGCONT)
        assert set(seen) <= {"stale", "stuck"}
        assert after.ticks - before.ticks > 0.9 * elapsed_s / 0.5
        for name in ("procfs", "ovs"):
            new, old = (next(s for s in status.sources if s.name == name) for status in (after, before))
            assert new.samples - old.samples > 0.9 * elapsed_s / 0.5, name
        # Every look, a second after the one before, finds a newer value.
        for key, found in moments.items():
            newer = [now for last, now in itertools.pairwise(found) if now - last > 0.25]
            assert len(newer) > 0.9 * (looks - 1), (key, found)
        assert sum(value > 0 for value in sent) > looks / 2  # it pings all the time
        back = time.monotonic() + 5
        while not all(measured(agent.quick_vms(), name, *disk, age_s=5) for name in names):
            assert time.monotonic() < back, agent.quick_vms()["wplab-mixed-1"]
            time.sleep(0.1)
