"""The host's sources against real QEMU VMs under real libvirtd: mixed, idle and busy guests."""

import itertools
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from agent.sampling.changes import JoinedVm, Reading
from agent.sampling.rates import derive
from collector.base import Reason, SourceError, SourceSample
from collector.inventory.inventory import Inventory
from collector.libvirt.source import LibvirtSource
from collector.procfs.source import ProcfsSource
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

URI = "qemu:///system"


def uuid_of(number):
    return f"57500000-0000-4000-8000-0000000000{number:02x}"


MIXED, IDLE, BUSY, EXTRA = map(uuid_of, (1, 2, 3, 4))


@pytest.fixture
def inventory():
    return Inventory()


@pytest.fixture
def procfs(lab, inventory):
    source = ProcfsSource(inventory)
    source.open()
    yield source
    source.close()


@pytest.fixture
def libvirt(lab, inventory):
    # Disks are read with every sample, so that two samples make a rate.
    source = LibvirtSource(URI, inventory=inventory, disk_poll_s=0.05)
    source.open()
    yield source
    source.close()


def joined(uuid: str, *samples: SourceSample) -> JoinedVm:
    """Join what several sources said of one VM."""
    parts = {}
    epochs = set()
    for sample in samples:
        vm = sample.vms[uuid]
        epochs.add(vm.epoch)
        for part in ("threads", "disks", "interfaces"):
            value = getattr(vm, part)
            if value is not None:
                stamp = vm.stamps.get(part, sample)
                parts[part] = Reading(sample.source, stamp.mono_ns, stamp.unix_ns, value)
            elif part in vm.absent:
                parts.setdefault(part, vm.absent[part])
    assert len(epochs) == 1, "epochs of two sources do not join"
    absent = Reason.SOURCE_OFF
    return JoinedVm(
        epochs.pop(),
        1,
        parts.get("threads", absent),
        absent,
        parts.get("disks", absent),
        parts.get("interfaces", absent),
    )


def test_probes_find_the_real_host(procfs, libvirt):
    assert procfs.probe().available
    probe = libvirt.probe()
    assert probe.available
    assert probe.detail.startswith("qemu:///system, libvirt ")


def test_identities_are_those_of_the_running_qemu_processes(lab, inventory):
    vms = {vm.name: vm for vm in inventory.vms()}
    assert set(vms) >= {"wplab-mixed-1", "wplab-idle-2", "wplab-busy-3"}
    vm = vms["wplab-mixed-1"]
    assert vm.uuid == MIXED
    assert vm.state == "running"
    assert vm.accelerator == "tcg"
    assert [Path(f"/proc/{vm.pid}/task/{tid}/comm").read_text() for tid in vm.vcpu_tids] == ["CPU 0/TCG\n"]
    assert dict(vm.facts) == {
        "title": "lab mixed",
        "nova:name": "mixed-server",
        "nova:flavor": "lab.mixed",
        "nova:user": "operator",
        "nova:user_uuid": "0a",
        "nova:project": "lab",
        "nova:project_uuid": "0b",
        "nova:image": "0c",
    }
    assert len({(vm.uuid, vm.epoch) for vm in vms.values()}) == len(vms)


def received_bytes(sample):
    return sum(interface.receive_bytes for interface in sample.vms[MIXED].interfaces.values())


@pytest.mark.long
def test_rates_move_as_the_guests_loads_do(procfs, libvirt):
    before = procfs.sample(), libvirt.sample()
    # The mixed guest pings the host with 1000 bytes five times a second, less where it is slow; each is answered.
    deadline = time.monotonic() + 60
    while True:
        time.sleep(6)
        after = procfs.sample(), libvirt.sample()
        received = received_bytes(after[1]) - received_bytes(before[1])
        if received > 6000:
            break
        assert time.monotonic() < deadline, "the mixed guest does not ping"
    rates = {vm: derive(joined(vm, *after), joined(vm, *before)) for vm in (MIXED, IDLE, BUSY)}

    # The busy guest always wants its vCPU; what it does not get of it on a loaded machine, it waits for.
    busy, idle, mixed = rates[BUSY], rates[IDLE], rates[MIXED]
    assert 0.9 < busy.guest_ratio + busy.run_queue_wait_ratio < 1.1
    assert idle.guest_ratio < 0.1
    assert idle.guest_ratio < mixed.guest_ratio < busy.guest_ratio
    assert mixed.guest_ratio > 2 * idle.guest_ratio

    assert mixed.disk_write_bytes_per_s > 50_000
    assert mixed.disk_read_bytes_per_s > 50_000
    assert mixed.disk_write_ops_per_s > 0.5
    assert (idle.disk_read_bytes_per_s, idle.disk_write_bytes_per_s) == (0, 0)
    assert (busy.disk_read_bytes_per_s, busy.disk_write_bytes_per_s) == (0, 0)

    elapsed_s = (after[1].mono_ns - before[1].mono_ns) / 1e9
    assert mixed.network_receive_bytes_per_s == pytest.approx(received / elapsed_s, rel=0.02)
    assert mixed.network_transmit_bytes_per_s == pytest.approx(mixed.network_receive_bytes_per_s, rel=0.5)
    assert idle.network_transmit_bytes_per_s < 200

    host = after[0].host
    assert host.cpus == os.cpu_count()
    assert host.user_ns > before[0].host.user_ns  # software emulation is user time
    for sample in after:
        assert msgspec.json.decode(msgspec.json.encode(sample), type=SourceSample) == sample


@pytest.mark.long
def test_receive_and_transmit_are_the_guests(lab, libvirt):
    before = libvirt.sample().vms[IDLE].interfaces["wptap2"]
    send = (
        "import socket, time\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "s.sendto(b'', ('10.77.0.102', 9)); time.sleep(1)\n"  # the address is resolved first
        "for i in range(400):\n"
        "    s.sendto(bytes(1400), ('10.77.0.102', 9)); time.sleep(0.002)\n"
    )
    lab.in_network("python3", "-c", send)
    after = libvirt.sample().vms[IDLE].interfaces["wptap2"]
    received = after.receive_bytes - before.receive_bytes
    transmitted = after.transmit_bytes - before.transmit_bytes
    assert received > 400 * 1400 * 0.9
    assert transmitted < received / 5


@dataclass
class Recording:
    """What both sources said, time and again, while something happened."""

    procfs: list[SourceSample]
    libvirt: list[SourceSample]


class Watch:
    """Samples both sources in threads of their own, as the agent does."""

    def __init__(self, *sources):
        self._sources = sources
        self._stop = threading.Event()
        self.recording = Recording([], [])
        self.errors = []
        self._threads = [threading.Thread(target=self._run, args=(source,)) for source in sources]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self.recording

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        assert self.errors == []

    def _run(self, source):
        while not self._stop.wait(0.25):
            try:
                getattr(self.recording, source.name).append(source.sample())
            except Exception as error:  # noqa: BLE001 - asserted by the test
                self.errors.append(error)


def epochs_of(samples, uuid):
    """The epochs of a VM in order, None where it was not there; repetitions left out."""
    found = []
    for sample in samples:
        epoch = sample.vms[uuid].epoch if uuid in sample.vms else None
        if not found or found[-1] != epoch:
            found.append(epoch)
    return found


@pytest.mark.long
def test_a_vm_started_saved_restored_and_stopped_while_sampling(lab, procfs, libvirt):
    saved = lab.state / "vm" / "wplab-saved"
    with Watch(procfs, libvirt) as seen:
        time.sleep(1)
        lab.script("domain.sh", "mixed", "4", NOWAIT="1")  # saving a guest that boots is as good
        time.sleep(2)
        lab.virsh("save", "wplab-mixed-4", str(saved))
        time.sleep(1)
        lab.virsh("restore", str(saved))
        time.sleep(2)
        lab.virsh("destroy", "wplab-mixed-4")
        time.sleep(1)

    for samples in (seen.procfs, seen.libvirt):
        # A life of its own before and after the save; libvirt does not tell of a VM that it is just making.
        first, second = [epoch for epoch in epochs_of(samples, EXTRA) if epoch is not None]
        assert first != second
        assert samples[0].vms.keys() == samples[-1].vms.keys() == {MIXED, IDLE, BUSY}

    last = {}
    crossings = 0
    for sample in seen.procfs:
        if EXTRA not in sample.vms:
            continue
        now = joined(EXTRA, sample)
        if EXTRA in last:
            rates = derive(now, last[EXTRA])
            if now.epoch != last[EXTRA].epoch:
                crossings += 1
                # Across the save a delta would be negative, or the restored VM's whole past.
                assert rates.guest_ratio in {Reason.VM_STARTING, Reason.NOT_PRESENT}
            else:
                assert isinstance(rates.guest_ratio, Reason) or 0 <= rates.guest_ratio < 1.5
        last[EXTRA] = now
    assert crossings == 1

    # The other VMs did not lose a sample, nor their epoch, nor a counter.
    for uuid in (MIXED, IDLE, BUSY):
        for samples in (seen.procfs, seen.libvirt):
            assert len(epochs_of(samples, uuid)) == 1
            for older, newer in itertools.pairwise(samples):
                rates = derive(joined(uuid, newer), joined(uuid, older))
                if newer.source == "procfs":
                    assert 0 <= rates.guest_ratio < 1.5
                else:
                    assert rates.disk_read_bytes_per_s >= 0
                    assert rates.network_receive_bytes_per_s >= 0


@pytest.mark.long
def test_a_plugged_vcpu_is_picked_up(lab, procfs):
    lab.script("domain.sh", "idle", "5", "1", "2", NOWAIT="1")
    uuid = uuid_of(5)
    try:
        assert len(procfs.sample().vms[uuid].threads) == 1
        lab.virsh("setvcpus", "wplab-idle-5", "2", "--live")
        wait_until(lambda: len(procfs.sample().vms[uuid].threads) == 2)
        vm = next(vm for vm in procfs.sample().inventory if vm.uuid == uuid)
        comms = [Path(f"/proc/{vm.pid}/task/{tid}/comm").read_text().strip() for tid in vm.vcpu_tids]
        assert comms == ["CPU 0/TCG", "CPU 1/TCG"]
    finally:
        lab.virsh("destroy", "wplab-idle-5")


@pytest.mark.long
def test_a_paused_vm_is_reported_and_stands_still(lab, procfs, libvirt):
    lab.virsh("suspend", "wplab-busy-3")
    try:
        for source in (procfs, libvirt):
            states = {vm.uuid: vm.state for vm in source.sample().inventory}
            assert (states[BUSY], states[IDLE]) == ("paused", "running")
        before = procfs.sample()
        time.sleep(1)
        assert derive(joined(BUSY, procfs.sample()), joined(BUSY, before)).guest_ratio < 0.05
    finally:
        lab.virsh("resume", "wplab-busy-3")
    wait_until(lambda: {vm.uuid: vm.state for vm in procfs.sample().inventory}[BUSY] == "running")


@pytest.mark.long
def test_libvirtd_killed_and_restarted(lab, procfs, libvirt):
    before = procfs.sample(), libvirt.sample()
    os.kill(lab.libvirtd_pid, signal.SIGKILL)
    try:
        time.sleep(1)
        with pytest.raises(SourceError, match=r"qemu:///system: .*; is libvirtd \(or virtqemud\) running\?"):
            libvirt.sample()
        after = procfs.sample()
        for uuid in (MIXED, IDLE, BUSY):
            assert not isinstance(derive(joined(uuid, after), joined(uuid, before[0])).guest_ratio, Reason)
    finally:
        lab.script("libvirtd.sh")
    recovered = libvirt.sample()
    for uuid in (MIXED, IDLE, BUSY):
        rates = derive(joined(uuid, recovered), joined(uuid, before[1]))  # the VMs lived on: the same epochs
        assert rates.disk_read_bytes_per_s >= 0
        assert rates.network_receive_bytes_per_s >= 0


@pytest.mark.long
def test_libvirtd_restarted_between_two_samples_costs_none(lab, libvirt):
    libvirt.sample()
    os.kill(lab.libvirtd_pid, signal.SIGKILL)
    lab.script("libvirtd.sh")
    assert libvirt.sample().vms[MIXED].disks["vda"].read_bytes > 0


@pytest.mark.long
def test_a_stopped_libvirtd_blocks_only_its_own_source(lab, inventory, procfs, libvirt):
    libvirt.sample()
    outcome = []

    def ask():
        try:
            outcome.append(libvirt.sample())
        except SourceError as error:
            outcome.append(error)

    os.kill(lab.libvirtd_pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        for _ in range(3):
            time.sleep(0.5)
            assert procfs.sample().vms.keys() >= {MIXED, IDLE, BUSY}
        assert thread.is_alive()
        thread.join()
        # Freed by the keep-alive messages: after three that were not answered, one a second.
        assert time.monotonic() - started > 2
        assert isinstance(outcome[0], SourceError)
        assert outcome[0].reason is Reason.STUCK
        assert "is it hung or stopped?" in str(outcome[0])
        # A new connection is not answered either, which the probe says instead of hanging.
        probe = LibvirtSource(URI, inventory=inventory, deadline_s=0.5).probe()
        assert (probe.available, probe.reason) == (False, Reason.STUCK)
    finally:
        os.kill(lab.libvirtd_pid, signal.SIGCONT)
    assert libvirt.sample().vms.keys() >= {MIXED, IDLE, BUSY}
