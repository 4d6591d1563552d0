"""A host of 3 running and 40 paused VMs: what all sources tell at once, against what is known to happen."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from agent.config import AgentConfig, AgentSection, Sources
from agent.recording.format import Reader, Recorder
from agent.recording.playback import Playback, header_of
from agent.recording.record import Recording
from collector.base import Reason

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

PAUSED = 40
SECONDS = 28.0
QUOTA_CORES = 0.3
WRITTEN_BYTES = 40 << 20
FRAME_BYTES = 1442  # on the wire, as are a ping's question and its answer
PING_BYTES, WIRE_BYTES = 1400, 42
OWN_PING_BYTES = 1000 + WIRE_BYTES  # those of the mixed guest, which it sends all the time
FRAMES = {1: 3000, 2: 4000, 3: 2000}
PINGS = 800
NAMES = {1: "wplab-mixed-1", 2: "wplab-idle-2", 3: "wplab-busy-3", 4: "wplab-writer-4"}
# Frames of a protocol for experiments: each guest takes them in, and its stack answers none.
SEND = """
import socket, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("{bridge}", 0))
own = s.getsockname()[4]
left = {frames}
while any(left.values()):
    for number in left:
        guest = bytes((0x52, 0x54, 0, 0x77, 0, number))
        for _ in range(min(20, left[number])):
            s.send(guest + own + b"\\x88\\xb5" + bytes({frame_bytes} - 14))
            left[number] -= 1
    time.sleep(0.05)
"""
ANSWERED = re.compile(r"(\d+) packets transmitted, (\d+) received")


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


def address(number: int) -> str:
    return f"10.77.0.{100 + number}"


def learn_addresses(lab) -> None:
    """So that no packet of the test is flooded to all ports or waits for an address."""
    for number in FRAMES:
        lab.in_network("ping", "-q", "-c", "3", "-i", "0.2", address(number))


def ask(lab, *command: str) -> str:
    command = ("nsenter", "--net=/run/netns/wplab", *command)
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def own_pings(lab) -> int:
    """How often the mixed guest has asked the generator's host, which answers each time."""
    lines = [line.split()[1:] for line in ask(lab, "cat", "/proc/net/snmp").splitlines() if line[:5] == "Icmp:"]
    return int(dict(zip(*lines, strict=True))["InEchos"])


def ping(lab, number: int) -> tuple[int, int]:
    """Ping a guest; returns how many questions it was sent, and how many answers it sent."""
    size = ("-s", str(PING_BYTES), "-i", "0.01", "-W", "2")
    sent, answered = ANSWERED.search(ask(lab, "ping", "-q", "-c", str(PINGS), *size, address(number))).groups()
    return int(sent), int(answered)


async def record(file: Path, config: AgentConfig, lab) -> dict[int, tuple[int, int]]:
    """Record the host while the frames are sent, all are pinged, and the writer's guest boots and writes.

    Returns the questions and the answers of the pings, by VM.
    """
    with Recorder(file, header_of(config)) as recorder:
        recording = asyncio.create_task(Recording(config).run(recorder, SECONDS))
        await asyncio.sleep(3)
        script = SEND.format(bridge="wplab0", frames=FRAMES, frame_bytes=FRAME_BYTES)
        sending = asyncio.create_task(asyncio.to_thread(lab.in_network, sys.executable, "-c", script))
        pinging = [asyncio.create_task(asyncio.to_thread(ping, lab, number)) for number in FRAMES]
        await asyncio.to_thread(lab.script, "domain.sh", "writer", "4", NOWAIT="1")
        await sending
        answers = await asyncio.gather(*pinging)
        await recording
    return dict(zip(FRAMES, answers, strict=True))


@pytest.mark.long  # 40 VMs to start and half a minute to record: test_host_vms and others have the same of three VMs
def test_bytes_and_cpu_of_each_vm_on_a_host_of_43(lab, crowd, limited, tmp_path):
    learn_addresses(lab)
    config = config_of(tmp_path)
    log = lab.state / "vm" / f"{NAMES[4]}.log"
    own = own_pings(lab)
    try:
        pinged = asyncio.run(record(tmp_path / "host.jsonl", config, lab))
        own = own_pings(lab) - own
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

    for number, (questions, answers) in pinged.items():
        first, *_, last = interfaces[NAMES[number]]
        reported = [after - before for before, after in zip(first, last, strict=True)]
        both = own * OWN_PING_BYTES if number == 1 else 0  # the host answers each
        pings = WIRE_BYTES + PING_BYTES
        received = FRAMES[number] * FRAME_BYTES + questions * pings + both
        assert reported == pytest.approx([received, answers * pings + both], rel=0.02), NAMES[number]
        assert answers > 0.9 * questions
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
