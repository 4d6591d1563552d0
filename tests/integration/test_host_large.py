"""A host of 3 running and 40 paused VMs: what all sources tell at once, against what is known to happen."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest

from agent.config import AgentConfig, AgentSection, Sources
from agent.playback import Playback, header_of
from agent.recording import Recording
from collector.base import Reason
from collector.recorded import Reader, Recorder

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

PAUSED = 40
SECONDS = 28.0
QUOTA_CORES = 0.3
WRITTEN_BYTES = 40 << 20
PAYLOAD_BYTES, HEADER_BYTES = 1400, 42
PACKETS = {1: 3000, 2: 4000, 3: 2000}
NAMES = {1: "wplab-mixed-1", 2: "wplab-idle-2", 3: "wplab-busy-3", 4: "wplab-writer-4"}
# To a port that nobody listens at: each guest takes the packets in and answers few of them (it limits its ICMP).
SEND = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
left = {packets}
while any(left.values()):
    for number in left:
        for _ in range(min(20, left[number])):
            s.sendto(bytes({payload}), (f"10.77.0.{{100 + number}}", 9))
            left[number] -= 1
    time.sleep(0.05)
"""


@pytest.fixture
def crowd(lab):
    """40 paused VMs beside the lab's own."""
    try:
        lab.script("paused.sh", str(PAUSED))
        yield
    finally:
        for file in Path("/run/libvirt/qemu").glob("wplab-paused-*.pid"):
            os.kill(int(file.read_text()), signal.SIGKILL)
        end = time.monotonic() + 60
        while list(Path("/run/libvirt/qemu").glob("wplab-paused-*.xml")):
            assert time.monotonic() < end, "libvirtd did not notice that the paused VMs ended"
            time.sleep(0.2)


@pytest.fixture
def limited(lab):
    """The busy VM with 30 % of a core."""
    settings = ("vcpu_period=100000", f"vcpu_quota={round(QUOTA_CORES * 100_000)}")
    lab.virsh("schedinfo", NAMES[3], "--live", *(f"--set={setting}" for setting in settings))
    yield
    lab.virsh("schedinfo", NAMES[3], "--live", "--set=vcpu_quota=-1")


def config_of(folder: Path) -> AgentConfig:
    sources = Sources()
    libvirt = msgspec.structs.replace(sources.libvirt, mode="required", disk_poll_s=2.0)
    ovs = msgspec.structs.replace(sources.ovs, mode="required")
    sources = msgspec.structs.replace(sources, libvirt=libvirt, ovs=ovs)
    return AgentConfig(agent=AgentSection(host="lab", state_dir=str(folder)), sources=sources)


def learn_addresses(lab) -> None:
    """So that no packet of the test is flooded to all ports or waits for an address."""
    for number in PACKETS:
        lab.in_network("ping", "-q", "-c", "3", "-i", "0.2", f"10.77.0.{100 + number}")


async def record(file: Path, config: AgentConfig, lab) -> None:
    """Record the host while the packets are sent and the writer's guest boots and writes."""
    with Recorder(file, header_of(config)) as recorder:
        recording = asyncio.create_task(Recording(config).run(recorder, SECONDS))
        await asyncio.sleep(3)
        script = SEND.format(packets=PACKETS, payload=PAYLOAD_BYTES)
        sending = asyncio.create_task(asyncio.to_thread(lab.in_network, sys.executable, "-c", script))
        await asyncio.to_thread(lab.script, "domain.sh", "writer", "4", NOWAIT="1")
        await sending
        await recording


def test_bytes_and_cpu_of_each_vm_on_a_host_of_43(lab, crowd, limited, tmp_path):
    learn_addresses(lab)
    config = config_of(tmp_path)
    log = lab.state / "vm" / f"{NAMES[4]}.log"
    try:
        asyncio.run(record(tmp_path / "host.jsonl", config, lab))
        assert "GUEST-WROTE 40 MiB" in log.read_text(errors="replace"), "the guest did not write in time"
    finally:
        lab.virsh("destroy", NAMES[4])

    reader = Reader(tmp_path / "host.jsonl")
    interfaces: dict[str, list[tuple[int, int]]] = {}
    written: dict[str, list[int]] = {}
    names: dict[str, str] = {}
    by_libvirt: dict[str, int] = {}
    largest = 0
    while (tick := reader.next()) is not None:
        for sample in tick.samples:
            largest = max(largest, len(sample.inventory or ()))
            names.update({vm.uuid: vm.name for vm in sample.inventory or ()})
            for uuid, vm in sample.vms.items():
                for counters in (vm.interfaces or {}).values():
                    if sample.source == "ovs":
                        moved = (counters.receive_bytes, counters.transmit_bytes)
                        interfaces.setdefault(names[uuid], []).append(moved)
                    else:
                        by_libvirt[uuid] = by_libvirt.get(uuid, 0) + 1
                for disk in (vm.disks or {}).values():
                    written.setdefault(names[uuid], []).append(disk.write_bytes)
    assert largest == PAUSED + 4
    # libvirt is not asked for what Open vSwitch tells: only until it does.
    assert max(by_libvirt.values(), default=0) <= 3

    for number, packets in PACKETS.items():
        told = interfaces[NAMES[number]][-1][0] - interfaces[NAMES[number]][0][0]
        sent = packets * (PAYLOAD_BYTES + HEADER_BYTES)
        if number == 1:  # it pings five times a second, and is answered
            pings = told - sent
            assert 0 <= pings <= 5.5 * SECONDS * (1000 + HEADER_BYTES) + 0.02 * sent
        else:
            assert told == pytest.approx(sent, rel=0.02), NAMES[number]
    for name, readings in interfaces.items():
        if name.startswith("wplab-paused-"):
            assert readings[-1][1] == readings[0][1]  # sent nothing
            assert readings[-1][0] - readings[0][0] < 20_000  # nothing but broadcasts came
    assert len(interfaces) == PAUSED + 4

    assert written[NAMES[4]][-1] == pytest.approx(WRITTEN_BYTES, rel=0.02)
    assert {name for name, values in written.items() if values[-1] > values[0]} == {NAMES[1], NAMES[4]}

    check_rates(tmp_path / "host.jsonl", config)


def check_rates(file: Path, config: AgentConfig) -> None:
    """Through the agent's own pipeline: nothing negative, and the limited VM's CPU."""
    usage: list[float] = []
    guest: list[float] = []
    with Playback(file, config) as playback:
        for _ in playback.ticks():
            for vm in playback.pipeline.table:
                values = [value for value in vm.rates if not isinstance(value, Reason)]
                assert all(value >= 0 for value in values), (vm.identity.name, vm.rates)
                name = vm.identity.name
                if name == NAMES[3] and isinstance(vm.rates.guest_ratio, float):
                    usage.append(vm.rates.cpu_usage_cores)
                    guest.append(vm.rates.guest_ratio)
                elif name.startswith("wplab-paused-") and isinstance(vm.rates.cpu_usage_cores, float):
                    assert vm.rates.cpu_usage_cores < 0.05, vm.identity.name
    assert len(usage) > SECONDS - 6
    assert sum(usage) / len(usage) == pytest.approx(QUOTA_CORES, abs=0.02)
    assert sum(guest) / len(guest) == pytest.approx(QUOTA_CORES, abs=0.02)
