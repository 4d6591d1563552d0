"""What libvirt reports real VMs, and when: life-cycle, disks by their own clock, nothing asked that others tell."""

import itertools
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from collector.base import Reason, SourceError
from collector.inventory.inventory import Inventory
from collector.libvirt.source import LibvirtSource
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

URI = "qemu:///system"
MIB = 1 << 20
NAMES = ("wplab-mixed-1", "wplab-idle-2", "wplab-busy-3")


@pytest.fixture
def make(lab):
    made = []

    def make(**settings):
        source = LibvirtSource(URI, inventory=Inventory(), **settings)
        made.append(source)
        return source

    yield make
    for source in made:
        source.close()


def uuid_of(number):
    return f"57500000-0000-4000-8000-{number:012x}"


def state_of(source, name):
    return {vm.name: vm.state for vm in source.sample().inventory}.get(name)


@pytest.mark.long
def test_states_are_reported_by_the_first_sampling_after_each_change(lab, make):
    source, name, saved = make(), "wplab-idle-21", str(lab.state / "vm" / "wplab-saved-21")
    states, epochs = [], []

    def after(*arguments):
        if arguments:
            lab.virsh(*arguments)
        sample = source.sample()
        vm = next((vm for vm in sample.inventory if vm.name == name), None)
        states.append(vm.state if vm else None)
        if vm:
            assert sample.vms[vm.uuid].epoch == vm.epoch
            epochs.append(vm.epoch)

    after()
    lab.script("domain.sh", "idle", "21", NOWAIT="1")
    try:
        after()
        after("suspend", name)
        after("resume", name)
        after("save", name, saved)
        after("restore", saved)
        after("destroy", name)
    finally:
        if state_of(source, name) is not None:
            lab.virsh("destroy", name)
    assert states == [None, "running", "paused", "running", None, "running", None]
    assert len(set(epochs[:3])) == 1
    assert epochs[3] not in epochs[:3]


@pytest.mark.long
def test_events_of_a_vm_make_its_disks_due_before_their_time(lab, make):
    source = make(disk_poll_s=3600.0)
    idle, other = uuid_of(2), uuid_of(1)

    def read_at():
        vms = source.sample().vms
        return vms[idle].stamps["disks"].mono_ns, vms[other].stamps["disks"].mono_ns

    for _ in range(3):
        before = read_at()
    assert read_at() == before
    lab.virsh("suspend", NAMES[1])
    try:
        end = time.monotonic() + 20  # the event comes in its own thread
        while (after := read_at())[0] == before[0]:
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        lab.virsh("resume", NAMES[1])
    assert after[0] > before[0]
    assert after[1] == before[1]


def test_disk_bytes_are_what_the_guest_wrote(lab, make):
    """The guest writes 40 MiB in pieces, then says so; counters and the sum of their deltas are that."""
    source, uuid = make(disk_poll_s=0.5), uuid_of(22)
    log = lab.state / "vm" / "wplab-writer-22.log"
    lab.script("domain.sh", "writer", "22", NOWAIT="1")
    try:
        readings = {}
        end = time.monotonic() + 120
        while not (log.exists() and "GUEST-WROTE 40 MiB" in log.read_text(errors="replace")):
            assert time.monotonic() < end, "the guest did not write in time"
            note(readings, source.sample().vms[uuid])
            time.sleep(0.25)
        last_ns = time.monotonic_ns()
        while max(readings) < last_ns:
            assert time.monotonic() < end
            note(readings, source.sample().vms[uuid])
            time.sleep(0.25)
    finally:
        lab.virsh("destroy", "wplab-writer-22")
    counters = [readings[at] for at in sorted(readings)]
    assert counters[0].write_bytes < MIB  # watched from the beginning
    steps = [later.write_bytes - earlier.write_bytes for earlier, later in itertools.pairwise(counters)]
    assert all(step >= 0 for step in steps)
    assert sum(step > 0 for step in steps) >= 3
    assert sum(steps) == pytest.approx(40 * MIB, rel=0.02)
    assert counters[-1].write_bytes == pytest.approx(40 * MIB, rel=0.02)
    assert counters[-1].write_ops > 0


def note(readings, vm):
    if vm.disks is not None:
        readings[vm.stamps["disks"].mono_ns] = vm.disks["vda"]


@pytest.mark.long
def test_where_all_is_reported_already_libvirtd_is_not_asked_and_its_silence_is_noticed(lab, make, monkeypatch):
    source = make(disk_poll_s=3600.0)
    for _ in range(3):
        sample = source.sample()
    reported = {uuid: vm.epoch for uuid, vm in sample.vms.items()}

    def asked(*_arguments):
        pytest.fail("libvirtd was asked")

    connection = source._connection.module.virConnect
    for call in ("domainListGetStats", "getAllDomainStats", "listAllDomains", "numOfDomains"):
        monkeypatch.setattr(connection, call, asked)

    def quiet_sample():
        source._inventory.interfaces_covered.replace(time.monotonic_ns(), reported)
        return source.sample()

    for _ in range(5):
        vms = quiet_sample().vms
        assert [vm.interfaces for vm in vms.values()] == [None] * len(vms)
        assert all(vm.disks for vm in vms.values())
    os.kill(lab.libvirtd_pid, signal.SIGSTOP)
    try:
        end = time.monotonic() + 30
        failure = None
        while failure is None and time.monotonic() < end:
            time.sleep(0.1)
            try:
                quiet_sample()
            except SourceError as error:
                failure = error
    finally:
        os.kill(lab.libvirtd_pid, signal.SIGCONT)
    assert failure is not None
    assert failure.reason is Reason.STUCK
    assert "is it hung or stopped?" in str(failure)
    assert all(vm.disks for vm in quiet_sample().vms.values())


@pytest.mark.long
def test_a_connection_that_breaks_time_and_again_leaves_no_file_open(lab, make):
    source = make()
    source.sample()

    def cycle():
        source.close()
        source.sample()

    def held():
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    cycle()
    files, threads = held()
    for _ in range(20):
        cycle()
    # A thread that was asked to end may take a moment; one left per cycle would be twenty.
    wait_until(lambda: held()[0] <= files and held()[1] <= threads)


@pytest.mark.long
def test_a_wrong_folder_of_status_files_is_said(lab, tmp_path):
    source = LibvirtSource(URI, inventory=Inventory(str(tmp_path)))
    try:
        for _ in range(2):
            assert source.sample().inventory == ()
        with pytest.raises(SourceError, match=r"runs \d+ VMs, .* set sources\.libvirt\.state_dir") as caught:
            source.sample()
    finally:
        source.close()
    assert caught.value.reason is Reason.SOURCE_FAILED
