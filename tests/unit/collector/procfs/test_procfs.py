import contextlib
import dataclasses
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.base import DiskDevice, ProcessCounters, Reason, SourceError, VmIdentity
from collector.cgroup.tree import CgroupTree
from collector.files import KeptFile, KeptFiles
from collector.inventory.inventory import Inventory
from collector.proc_parse import NS_PER_TICK
from collector.procfs.source import ProcfsSource
from collector.procfs.storage import StorageBytes, devices_below
from tests.support.reading_times import ReadingTimes
from tests.support.waiting import wait_until
from tests.unit.collector.conftest import HostTree


@pytest.fixture
def make(host):
    made = []

    def make(**arguments):
        source = ProcfsSource(Inventory(str(host.state), str(host.proc)), root=str(host.proc), **arguments)
        made.append(source)
        return source

    yield make
    for source in made:
        source.close()


def open_files(host):
    """How many files of the tree this process holds open."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += link.readlink().is_relative_to(host.proc)
    return found


def test_kvm_guest_time_is_the_processs(host, make):
    host.vm("a", 10, [11, 12])
    sample = make().sample()
    threads = sample.vms[host.uuid_of("a")].threads
    assert list(threads) == [11, 12]
    assert threads[11].guest_ns is None  # told for the process
    assert sample.vms[host.uuid_of("a")].process.guest_ns == 450 * NS_PER_TICK
    assert (threads[11].cpu_ns, threads[11].run_queue_wait_ns, threads[11].start_ticks) == (7000000, 3000000, 1000)


def test_emulated_threads_count_all_their_time_as_the_guests(host, make):
    host.vm("a", 10, [11], kind="qemu")
    vm = make().sample().vms[host.uuid_of("a")]
    assert vm.threads[11].guest_ns == vm.threads[11].cpu_ns == 7000000
    assert vm.process.guest_ns is None


def test_a_kernel_without_schedstat(host, make):
    host.vm("a", 10, [11])
    (host.proc / "10/task/11/schedstat").unlink()
    source = make()
    for _ in range(2):
        vm = source.sample().vms[host.uuid_of("a")]
        assert vm.threads[11].run_queue_wait_ns is None
        assert vm.threads[11].cpu_ns == 600 * NS_PER_TICK
        assert vm.threads[11].guest_ns == 450 * NS_PER_TICK
        assert vm.process.guest_ns is None


def test_a_kernel_that_keeps_schedstat_empty(host, make):
    host.vm("a", 10)
    host.status("a", 10, [11, 12])
    host.thread(10, 11, schedstat="0 0 0\n")
    host.thread(10, 12, schedstat="0 0 0\n", utime=0, stime=0)  # a thread that has not run yet
    threads = make().sample().vms[host.uuid_of("a")].threads
    assert (threads[11].run_queue_wait_ns, threads[11].cpu_ns) == (None, 600 * NS_PER_TICK)
    assert (threads[12].run_queue_wait_ns, threads[12].cpu_ns) == (0, 0)


def test_a_thread_that_had_not_run_is_not_taken_to_sleep_for_ever(host, make):
    """schedstat stays all zero on such a kernel, so that it reads the same although the thread runs."""
    host.vm("a", 10)
    host.status("a", 10, [11])
    host.thread(10, 11, schedstat="0 0 0\n", utime=0, stime=0)
    source = make()
    assert source.sample().vms[host.uuid_of("a")].threads[11].cpu_ns == 0
    host.thread(10, 11, schedstat="0 0 0\n", utime=5, stime=0)
    assert source.sample().vms[host.uuid_of("a")].threads[11].cpu_ns == 5 * NS_PER_TICK
    host.thread(10, 11, schedstat="0 0 0\n", utime=9, stime=1)
    assert source.sample().vms[host.uuid_of("a")].threads[11].cpu_ns == 10 * NS_PER_TICK


def test_values_are_read_again_through_open_files(host, make):
    host.vm("a", 10, [11])
    source = make()
    source.sample()
    host.thread(10, 11, schedstat="8000000 3500000 20\n")
    host.stat(host.proc / "10/stat", pid=10, comm="qemu", utime=700, stime=150, guest=460)
    host.io(10, 8192, 1024)
    vm = source.sample().vms[host.uuid_of("a")]
    assert (vm.threads[11].cpu_ns, vm.threads[11].run_queue_wait_ns) == (8000000, 3500000)
    assert vm.process == ProcessCounters(850 * NS_PER_TICK, 1000, 460 * NS_PER_TICK, 8192, 1024, vcpus_running=0)
    assert open_files(host) == 4


def test_the_host_and_the_inventory_come_with_every_sample(host, make):
    host.vm("a", 10, [11])
    sample = make().sample()
    assert sample.source == "procfs"
    assert sample.host.guest_ns == 300 * NS_PER_TICK
    assert [vm.name for vm in sample.inventory] == ["a"]
    assert sample.mono_ns > 0
    assert sample.unix_ns > 0


def test_counters_have_the_moment_at_which_they_were_read(host, make, monkeypatch):
    """Listing the VMs may wait for a new one, and reading one VM keeps the next ones waiting."""
    host.vm("a", 10, [11])
    host.vm("b", 20, [21])
    source = make()
    wait_until(lambda: len(source.sample().vms) == 2)  # of a busy machine the list may lack a new VM at first
    times = ReadingTimes(host.uuid_of("a"))
    monkeypatch.setattr(source._inventory, "vms", times.before(source._inventory.vms))
    plain = KeptFile.read

    def noted(self, *arguments):
        if self.path.endswith("/schedstat"):
            times.note(host.uuid_of("a" if "/11/" in self.path else "b"))
        return plain(self, *arguments)

    monkeypatch.setattr(KeptFile, "read", noted)
    for _ in range(2):  # of VMs that sleep, whose samples are handed on
        times.check(source.sample(), host.uuid_of("b"), "threads", "process")


def test_a_vm_without_threads_yet_is_starting(host, make):
    host.vm("a", 10)
    vm = make().sample().vms[host.uuid_of("a")]
    assert dict(vm.absent) == {"threads": Reason.VM_STARTING}
    assert vm.process.cpu_ns == 600 * NS_PER_TICK


def test_files_are_closed_with_their_threads_and_vms(host, make):
    host.vm("a", 10, [11, 12])
    host.vm("b", 20, [21])
    source = make()
    source.sample()
    assert open_files(host) == 3 + 4  # vCPU threads; stat and io of two processes
    for tid in (11, 12):
        runs(host, tid, "R")
    source.sample()
    assert open_files(host) == 3 + 4 + 2  # those that ran have been looked at
    host.status("a", 10, [11])  # unplugged
    source.sample()
    assert open_files(host) == 2 + 4 + 1
    (host.state / "b.xml").unlink()
    source.sample()
    assert open_files(host) == 1 + 2 + 1
    (host.proc / "10/task/11/schedstat").unlink()
    host.vm("a", 10, [11], start=5000)  # a new epoch has its files opened again
    assert source.sample().vms[host.uuid_of("a")].threads[11].start_ticks == 5000
    assert open_files(host) == 1 + 2
    source.close()
    source.close()
    assert open_files(host) == 0


def test_no_more_files_than_allowed_are_kept_and_all_are_read(host, make):
    host.vm("a", 10, [11, 12, 13])
    source = make(max_fds=4)
    for _ in range(3):
        assert list(source.sample().vms[host.uuid_of("a")].threads) == [11, 12, 13]
        assert open_files(host) == 4


def vanishes(monkeypatch, victim):
    """Have reads of a file fail, as those of a thread that has ended."""
    read = os.pread

    def pread(fd, size, offset):
        if fd == victim:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        return read(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread)


def test_a_thread_that_vanished_costs_only_itself(host, make, monkeypatch):
    host.vm("a", 10, [11, 12])
    source = make()
    source.sample()
    vanishes(monkeypatch, source._vms[host.uuid_of("a")].threads[12].file.fd)
    assert list(source.sample().vms[host.uuid_of("a")].threads) == [11]
    monkeypatch.undo()
    assert list(source.sample().vms[host.uuid_of("a")].threads) == [11, 12]  # the number came back
    assert open_files(host) == 2 + 2


def test_a_vm_whose_threads_all_ended(host, make):
    host.vm("a", 10, [11])
    (host.proc / "10/task/11/stat").unlink()
    assert dict(make().sample().vms[host.uuid_of("a")].absent) == {"threads": Reason.NOT_PRESENT}
    assert open_files(host) == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EMFILE, "Too many open files"), Reason.FD_LIMIT),
        (OSError(errno.ENFILE, "Too many open files in system"), Reason.FD_LIMIT),
        (PermissionError(errno.EACCES, "Permission denied"), Reason.NO_PERMISSION),
        (OSError(errno.EIO, "Input/output error"), Reason.SOURCE_FAILED),
    ],
)
def test_one_vms_trouble_is_only_that_vms(host, make, monkeypatch, error, reason):
    host.vm("good", 10, [11])
    host.vm("bad", 20, [21, 22])
    opened = os.open

    def fail(path, *arguments):
        if str(path).endswith("task/22/stat"):
            raise error
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", fail)
    source = make()
    for _ in range(2):
        sample = source.sample()
        assert dict(sample.vms[host.uuid_of("bad")].absent) == {"threads": reason}
        assert sample.vms[host.uuid_of("bad")].threads is None
        assert list(sample.vms[host.uuid_of("good")].threads) == [11]
    monkeypatch.undo()
    assert list(source.sample().vms[host.uuid_of("bad")].threads) == [21, 22]
    assert open_files(host) == 3 + 4


def test_a_malformed_thread_costs_only_its_vm(host, make):
    host.vm("good", 10, [11])
    host.vm("bad", 20, [21])
    (host.proc / "20/task/21/schedstat").write_text("nonsense\n")
    sample = make().sample()
    assert dict(sample.vms[host.uuid_of("bad")].absent) == {"threads": Reason.INVALID_VALUE}
    assert list(sample.vms[host.uuid_of("good")].threads) == [11]


def test_a_malformed_process_costs_neither_its_threads_nor_others(host, make):
    host.vm("good", 10, [11])
    host.vm("bad", 20, [21])
    (host.proc / "20/io").write_text("nonsense\n")
    sample = make().sample()
    bad = sample.vms[host.uuid_of("bad")]
    assert dict(bad.absent) == {"process": Reason.INVALID_VALUE}
    assert list(bad.threads) == [21]
    assert sample.vms[host.uuid_of("good")].process.storage_read_bytes == 4096


def test_a_process_whose_file_ended(host, make, monkeypatch):
    host.vm("a", 10, [11])
    source = make()
    source.sample()
    read = os.pread
    victim = source._vms[host.uuid_of("a")].stat.fd

    def pread(fd, size, offset):
        if fd == victim:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        return read(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    assert dict(source.sample().vms[host.uuid_of("a")].absent) == {"process": Reason.NOT_PRESENT}
    monkeypatch.undo()
    assert source.sample().vms[host.uuid_of("a")].process.storage_write_bytes == 512
    assert open_files(host) == 3


def test_a_sleeping_thread_is_not_parsed_again(host, make, monkeypatch):
    host.vm("a", 10, [11])
    source = make()
    first = source.sample().vms[host.uuid_of("a")].threads[11]
    monkeypatch.setattr("collector.procfs.source.parse_schedstat", None)
    monkeypatch.setattr("collector.procfs.source.parse_task_stat", None)
    assert source.sample().vms[host.uuid_of("a")].threads[11] is first


RUNS, MOVED = iter(range(100, 10**6)), "{} 3000000 12\n"


def runs(host, tid, state, *, comm="CPU 0/KVM", moved=True):
    """Let a thread of process 10 be in a state, having been on a CPU since the last look or not."""
    schedstat = MOVED.format(next(RUNS)) if moved else None
    host.thread(10, tid, comm=comm, state=state, schedstat=schedstat)


def running(host, source):
    return source.sample().vms[host.uuid_of("a")].process.vcpus_running


@pytest.fixture
def looked(monkeypatch):
    """Threads whose state was read."""
    found = []
    plain = KeptFile.read

    def noted(self, *arguments):
        if self.path.endswith("/stat") and "/task/" in self.path:
            found.append(int(self.path.split("/")[-2]))
        return plain(self, *arguments)

    monkeypatch.setattr(KeptFile, "read", noted)
    return found


def test_vcpus_that_run_are_counted_of_those_that_moved_or_ran(host, make, looked):
    host.vm("a", 10, [11, 12, 13, 14])
    source = make()
    assert running(host, source) == 0  # as they were when they were opened
    assert looked == []
    runs(host, 11, "R", comm="x) S (y")
    runs(host, 12, "S", comm="x) R (y")
    runs(host, 13, "D")
    runs(host, 14, "R", moved=False)  # woken this very moment: it has not been on a CPU yet
    assert running(host, source) == 1
    assert looked == [11, 12, 13]
    looked.clear()
    runs(host, 14, "R")
    assert running(host, source) == 2
    assert looked == [11, 14]  # the one that ran may do so ever since
    looked.clear()
    runs(host, 11, "S", moved=False)
    runs(host, 14, "S")
    assert running(host, source) == 0
    assert looked == [11, 14]
    looked.clear()
    assert running(host, source) == 0
    assert looked == []


def test_vcpus_that_run_when_they_are_seen_first_are_counted(host, make, looked):
    host.vm("a", 10, [11, 12])
    runs(host, 11, "R")
    source = make()
    assert running(host, source) == 1
    assert looked == [11]
    runs(host, 13, "R")  # plugged in
    host.status("a", 10, [11, 12, 13])
    assert running(host, source) == 2


def test_vms_take_turns_where_many_vcpus_may_run(host, make, monkeypatch, looked):
    monkeypatch.setattr("collector.procfs.source._MAX_LOOKS", 3)
    host.vm("a", 10, [11, 12])
    host.vm("b", 20, [21, 22])
    host.vm("idle", 30, [31])
    source = make()

    def tick(*, moved=True):
        looked.clear()
        for pid, tid, state in ((10, 11, "R"), (10, 12, "S"), (20, 21, "R"), (20, 22, "R")):
            host.thread(pid, tid, state=state, schedstat=MOVED.format(next(RUNS)) if moved else None)
        vms = source.sample().vms
        return tuple(vms[host.uuid_of(name)].process.vcpus_running for name in ("a", "b", "idle"))

    source.sample()
    assert tick() == (1, 2, 0)
    assert looked == [11, 12, 21, 22]
    reported = []
    for _ in range(4):  # four moved at the sampling before: two turns
        reported.append(tick())
        assert looked in ([11, 12], [21, 22])
    assert reported[:2] == reported[2:]
    assert sorted(reported[:2], key=str) == [(1, None, 0), (None, 2, 0)]
    # What moved while it was not the VM's turn is seen at its next one.
    assert tick(moved=False) == reported[0]
    assert tick(moved=False) == (1, 2, 0)  # three may still run
    assert looked == [11, 21, 22]


def test_a_vcpu_that_ended_at_the_look_does_not_run_and_costs_nothing(host, make, monkeypatch):
    host.vm("a", 10, [11, 12])
    source = make()
    source.sample()
    for tid in (11, 12):
        runs(host, tid, "R")
    (host.proc / "10/task/12/stat").unlink()
    assert running(host, source) == 1
    runs(host, 12, "R")
    assert running(host, source) == 2
    vanishes(monkeypatch, source._vms[host.uuid_of("a")].threads[12].state.fd)
    assert running(host, source) == 1


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, "Too many open files"),
        PermissionError(errno.EACCES, "Permission denied"),
        None,  # a text that is none
    ],
)
def test_a_look_that_fails_costs_only_the_count(host, make, monkeypatch, error):
    host.vm("a", 10, [11, 12])
    source = make()
    source.sample()
    opened = os.open

    def fail(path, *arguments):
        if error is not None and str(path).endswith("task/12/stat"):
            raise error
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", fail)
    for tid in (11, 12):
        runs(host, tid, "R")
    if error is None:
        (host.proc / "10/task/12/stat").write_text("nonsense\n")
    vm = source.sample().vms[host.uuid_of("a")]
    assert (list(vm.threads), dict(vm.absent)) == ([11, 12], {})
    assert vm.process.vcpus_running is None
    monkeypatch.undo()
    runs(host, 12, "R")
    assert running(host, source) == 2


def test_a_kernel_without_schedstat_is_looked_at_by_what_else_moved(host, make):
    host.vm("a", 10, [11])
    (host.proc / "10/task/11/schedstat").unlink()
    source = make()
    source.sample()
    host.thread(10, 11, schedstat=None, state="R", utime=501)
    assert running(host, source) == 1
    host.thread(10, 11, schedstat=None, state="S", utime=501)
    assert running(host, source) == 0


@settings(max_examples=8)
@given(st.lists(st.lists(st.tuples(st.booleans(), st.sampled_from("RSDT")), min_size=3, max_size=3), max_size=5))
def test_never_more_vcpus_run_than_there_are(ticks):
    tids = (11, 12, 13)
    with tempfile.TemporaryDirectory() as folder:
        host = HostTree.make(Path(folder))
        host.vm("a", 10, tids)
        source = ProcfsSource(Inventory(str(host.state), str(host.proc)), root=str(host.proc), max_fds=7)
        source.sample()
        ran = dict.fromkeys(tids, False)
        for tick in ticks:
            for tid, (moved, state) in zip(tids, tick, strict=True):
                runs(host, tid, state, moved=moved)
                ran[tid] = state == "R" and (moved or ran[tid])
            found = running(host, source)
            assert found == sum(ran.values())
            assert 0 <= found <= len(tids)
            assert open_files(host) <= 7
        source.close()


def storage(process):
    return process.storage_read_bytes, process.storage_write_bytes, process.storage_reason


@pytest.mark.parametrize(
    ("disks", "vfio", "seen"),
    [
        ([], False, True),
        ([], True, False),
        (["file"], True, True),
        (["network"], False, False),
        (["vhostuser", "nvme"], False, False),
        (["network", "block"], False, True),
        ([""], False, True),
    ],
)
def test_storage_that_the_kernel_does_not_see_is_no_zero(host, make, monkeypatch, disks, vfio, seen):
    host.vm("a", 10, [11])
    source = make()
    found = source._inventory.vms()[0]
    devices = tuple(DiskDevice(f"vd{number}", kind) for number, kind in enumerate(disks))
    identity = dataclasses.replace(found, disks=devices, vfio=vfio)
    monkeypatch.setattr(source._inventory, "vms", lambda: (identity,))
    process = source.sample().vms[identity.uuid].process
    assert storage(process) == ((4096, 512, Reason.UNSPECIFIED) if seen else (None, None, Reason.NOT_VISIBLE))


def mount_v2(host):
    """A v2 hierarchy of the fixture and the VM's group in it."""
    mount = host.proc.parent / "cgroup"
    (host.proc / "self").mkdir()
    (host.proc / "self/mountinfo").write_text(f"41 31 0:38 / {mount} rw,relatime - cgroup2 cgroup2 rw\n")
    return move_to(host, "machine.slice/machine-qemu\\x2d1\\x2da.scope")


def move_to(host, name, *pids, amount=None):
    """Put the VM's process into a group, perhaps beside others, that has read and written that many bytes."""
    group = host.proc.parent / "cgroup" / name
    (group / "libvirt/emulator").mkdir(parents=True, exist_ok=True)
    (host.proc / "10/cgroup").write_text(f"0::/{name}/libvirt/emulator\n")
    (group / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in (10, *pids)))
    if amount is not None:
        (group / "io.stat").write_text(f"8:0 rbytes={amount} wbytes={amount} rios=3 wios=4\n")
    return group


def deny_io(monkeypatch, error, file="10/io"):
    opened = os.open

    def fail(path, *arguments):
        if str(path).endswith(file):
            raise error
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", fail)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), Reason.NO_PERMISSION),
        (FileNotFoundError(errno.ENOENT, "No such file"), Reason.NOT_PRESENT),
        (OSError(errno.EMFILE, "Too many open files"), Reason.FD_LIMIT),
    ],
)
def test_storage_without_the_processs_file_is_the_groups(host, make, monkeypatch, error, reason):
    host.vm("a", 10, [11])
    deny_io(monkeypatch, error)
    process = make().sample().vms[host.uuid_of("a")].process
    assert storage(process) == (None, None, reason)
    assert process.cpu_ns == 600 * NS_PER_TICK
    group = mount_v2(host)
    assert storage(make().sample().vms[host.uuid_of("a")].process) == (None, None, reason)  # no io controller
    (group / "io.stat").write_text("8:0 rbytes=1000 wbytes=200 rios=3 wios=4 dbytes=0 dios=0\n252:16 \n")
    source = make()
    assert storage(source.sample().vms[host.uuid_of("a")].process) == (1000, 200, Reason.UNSPECIFIED)
    (group / "io.stat").write_text("8:0 rbytes=1500 wbytes=200 rios=3 wios=4 dbytes=0 dios=0\n")
    assert storage(source.sample().vms[host.uuid_of("a")].process) == (1500, 200, Reason.UNSPECIFIED)


@pytest.mark.parametrize("refused", [None, "io.stat", "10/cgroup", "self/mountinfo"])
def test_storage_is_reported_as_soon_as_descriptors_are_free(host, make, monkeypatch, refused):
    host.vm("a", 10, [11])
    source = make()
    full = OSError(errno.EMFILE, "Too many open files")
    deny_io(monkeypatch, full)
    if refused:
        move_to(host, mount_v2(host).name, amount=1000)
        deny_io(monkeypatch, PermissionError(errno.EACCES, "Permission denied"))
        deny_io(monkeypatch, full, refused)
    if refused == "self/mountinfo":

        def unread(*_):
            raise full

        monkeypatch.setattr(CgroupTree, "mounts", unread)
    for _ in range(2):
        assert storage(source.sample().vms[host.uuid_of("a")].process) == (None, None, Reason.FD_LIMIT)
    monkeypatch.undo()
    expected = (4096, 512, Reason.UNSPECIFIED)
    if refused:
        deny_io(monkeypatch, PermissionError(errno.EACCES, "Permission denied"))
        expected = (1000, 1000, Reason.UNSPECIFIED)
    assert storage(source.sample().vms[host.uuid_of("a")].process) == expected


def taken(host, source, count):
    """The storage of that many samples."""
    return [storage(source.sample().vms[host.uuid_of("a")].process) for _ in range(count)]


@pytest.fixture
def of_group(host, make, monkeypatch):
    """A source of the VM "a" that may read its group's storage only, and has read 1000 bytes there."""
    host.vm("a", 10, [11])
    deny_io(monkeypatch, PermissionError(errno.EACCES, "Permission denied"))
    mount_v2(host)
    move_to(host, "qemu-1-a.libvirt-qemu", amount=1000)
    source = make()
    assert taken(host, source, 2) == [(1000, 1000, Reason.UNSPECIFIED)] * 2
    return source


STARTING, DENIED = (None, None, Reason.VM_STARTING), (None, None, Reason.NO_PERMISSION)


def test_storage_follows_a_process_into_another_group(host, of_group):
    """The new group's bytes are no continuation of the former's: between them there is a gap, and no rate."""
    move_to(host, "qemu-2-a.libvirt-qemu", amount=3 * 10**9)
    found = taken(host, of_group, 12)
    before, after = found[: found.index(STARTING)], found[found.index(STARTING) + 1 :]
    assert len(before) < 10
    assert set(before) <= {(1000, 1000, Reason.UNSPECIFIED)}
    assert set(after) == {(3 * 10**9, 3 * 10**9, Reason.UNSPECIFIED)}
    move_to(host, "qemu-3-a.libvirt-qemu")
    (host.proc.parent / "cgroup/qemu-3-a.libvirt-qemu/io.stat").write_text("")  # has moved nothing yet
    assert taken(host, of_group, 12)[-1] == (0, 0, Reason.UNSPECIFIED)
    assert open_files(host) == 2  # io.stat is elsewhere
    assert of_group._files.count == 3


def test_storage_of_a_group_that_was_removed_is_looked_for_at_the_next_reading(host, of_group, monkeypatch):
    moved = move_to(host, "qemu-2-a.libvirt-qemu", amount=7)
    plain = KeptFile.read

    def removed(self, *arguments):
        if "qemu-1-a" in self.path:
            raise OSError(errno.ENODEV, "No such device")
        return plain(self, *arguments)

    monkeypatch.setattr(KeptFile, "read", removed)
    assert taken(host, of_group, 2) == [(None, None, Reason.NOT_PRESENT), (7, 7, Reason.UNSPECIFIED)]
    assert moved.exists()


def test_storage_of_a_group_made_again_by_the_same_name_is_no_continuation(host, of_group, monkeypatch):
    """Also where it is made again right before the look who else is in it."""
    path = host.proc.parent / "cgroup/qemu-1-a.libvirt-qemu/io.stat"
    of_group._vms[host.uuid_of("a")].storage._readings = 59
    path.unlink()
    path.write_text("8:0 rbytes=1500 wbytes=1500 rios=3 wios=4\n")
    plain = os.pread

    def bound(fd, *arguments):  # a removed group's files answer so, where those of a folder go on
        if os.fstat(fd).st_nlink == 0:
            raise OSError(errno.ENODEV, "No such device")
        return plain(fd, *arguments)

    monkeypatch.setattr(os, "pread", bound)
    assert taken(host, of_group, 2) == [(None, None, Reason.NOT_PRESENT), (1500, 1500, Reason.UNSPECIFIED)]


def test_who_else_is_in_the_group_of_storage_is_looked_at_now_and_then(host, of_group):
    move_to(host, "foo.service", 20, amount=50)
    assert taken(host, of_group, 60)[-1] == DENIED  # not the VM's alone
    move_to(host, "foo.service", amount=60)
    assert taken(host, of_group, 60)[-1] == (60, 60, Reason.UNSPECIFIED)
    move_to(host, "foo.service", 20, amount=70)
    assert taken(host, of_group, 60)[-1] == DENIED
    assert of_group._files.count == 2


def test_storage_that_is_reported_needs_no_descriptor_to_look_with(host, of_group, monkeypatch):
    reported = (1000, 1000, Reason.UNSPECIFIED)
    with monkeypatch.context() as full:
        for file in ("10/io", "io.stat", "10/cgroup"):
            deny_io(full, OSError(errno.EMFILE, "Too many open files"), file)
        assert taken(host, of_group, 120) == [reported] * 120
    move_to(host, "foo.service", 20, amount=50)
    assert taken(host, of_group, 60)[-1] == DENIED


def test_a_group_that_stays_is_seldom_looked_for(host, of_group, monkeypatch):
    read = []
    plain = os.open

    def noted(path, *arguments):
        read.append(str(path))
        return plain(path, *arguments)

    monkeypatch.setattr(os, "open", noted)
    assert set(taken(host, of_group, 60)) == {(1000, 1000, Reason.UNSPECIFIED)}
    assert sum(path.endswith("10/cgroup") for path in read) == 6
    assert sum(path.endswith("io.stat") for path in read) == 1
    assert of_group._files.count == 3


def test_stacked_devices_are_counted_once(tmp_path):
    """A volume (253:0) on a RAID (9:0) of two disks' partitions; another disk (8:32) beside them."""
    block = tmp_path / "block"
    for number, name in (("8:0", "sda"), ("8:16", "sdb"), ("8:32", "sdc")):
        (tmp_path / "devices" / name / f"{name}1").mkdir(parents=True)
        (tmp_path / "devices" / name / "dev").write_text(number + "\n")
        (tmp_path / "devices" / name / f"{name}1" / "partition").write_text("1\n")
        (block / number).mkdir(parents=True)
    for number, name, slaves in (("9:0", "md0", ("sda/sda1", "sdb/sdb1")), ("253:0", "dm-0", ("md0",))):
        (tmp_path / "devices" / name).mkdir()
        (tmp_path / "devices" / name / "dev").write_text(number + "\n")
        (block / number / "slaves").mkdir(parents=True)
        for slave in slaves:
            (block / number / "slaves" / Path(slave).name).symlink_to(tmp_path / "devices" / slave)
    assert devices_below("253:0", str(block)) == {"9:0", "8:0", "8:16"}
    storage_bytes = StorageBytes(str(tmp_path), KeptFiles(0), VmIdentity("u", "n", 1, "e"), str(block))
    devices = {"8:0": (5, 1), "8:16": (5, 1), "9:0": (10, 2), "253:0": (10, 2), "8:32": (7, 0)}
    assert storage_bytes._sum(devices) == (17, 2)


def test_the_hosts_totals(host, make):
    (host.proc / "meminfo").write_text(
        "MemTotal: 1000 kB\nMemFree: 300 kB\nMemAvailable: 600 kB\nBuffers: 10 kB\nCached: 200 kB\n"
        "Active: 1 kB\nInactive: 1 kB\nShmem: 1 kB\nSlab: 1 kB\nSReclaimable: 1 kB\n"
    )
    (host.proc / "loadavg").write_text("1.25 0.50 0.10 2/300 4000\n")
    (host.proc / "pressure").mkdir()
    full = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"
    for name, some, all_ in (("cpu", 11, 0), ("memory", 22, 12), ("io", 33, 13)):
        (host.proc / "pressure" / name).write_text(full.format(some, all_))
    source = make()
    root = psutil.PROCFS_PATH
    for _ in range(2):
        totals = source.sample().host
        assert (totals.memory_total_bytes, totals.memory_available_bytes) == (1000 * 1024, 600 * 1024)
        assert totals.load_1 == 1.25
        assert totals.cpu_some_ns == 11_000
        assert (totals.memory_some_ns, totals.memory_full_ns) == (22_000, 12_000)
        assert (totals.io_some_ns, totals.io_full_ns) == (33_000, 13_000)
        assert open_files(host) == 4
    assert root == psutil.PROCFS_PATH
    (host.proc / "pressure/io").write_text("nonsense\n")
    assert source.sample().host.io_some_ns is None


def test_totals_that_the_kernel_does_not_tell_are_none(host, make):
    totals = make().sample().host
    assert totals.cpus == 1
    assert totals.memory_total_bytes is totals.load_1 is totals.cpu_some_ns is totals.io_full_ns is None


def test_a_long_host_file_is_read_as_far_as_needed(host, make):
    cpus = "".join(f"cpu{n} 1000 0 500 8000 100 0 0 10 300 0\n" for n in range(2000))
    (host.proc / "stat").write_text("cpu 2000000 0 0 0 0 0 0 0 0 0\n" + cpus + "intr " + "1 " * 100_000)
    assert make().sample().host.cpus == 2000


def test_probe_and_open_name_the_setting(host, make):
    source = make()
    assert source.probe().available
    (host.proc / "stat").unlink()
    probe = source.probe()
    assert not probe.available
    assert probe.detail == f"{host.proc / 'stat'}: No such file or directory; sources.procfs.root must be a /proc"
    with pytest.raises(SourceError, match=r"sources\.procfs\.root must be a /proc"):
        source.open()
    (host.proc / "stat").write_text("nonsense\n")
    with pytest.raises(SourceError, match="no usable cpu line"):
        source.sample()


def test_probe_is_the_inventorys_where_that_cannot_be_read(host, make, monkeypatch):
    source = make()
    probe = source._inventory.probe()
    monkeypatch.setattr(type(source._inventory), "probe", lambda _: type(probe)(False, "no", Reason.NO_PERMISSION))
    assert source.probe().reason is Reason.NO_PERMISSION


def test_no_descriptor_for_the_hosts_file(make, monkeypatch):
    def fail(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    source = make()
    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(SourceError, match="raise the agent's LimitNOFILE") as caught:
        source.sample()
    assert caught.value.reason is Reason.FD_LIMIT


def test_this_process_as_a_vm(tmp_path, host):
    """The real /proc: this very thread, which runs, has CPU time that grows."""
    tid = threading.get_native_id()
    host.status("me", os.getpid(), [tid], kind="qemu")
    (host.proc / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")

    class Everybody(Inventory):
        """The UUID in QEMU's arguments is not in this process's."""

        def vms(self):
            vms = super().vms()
            return vms or tuple(self._make(e.status, 0, self._proc) for e in self._entries.values())

    source = ProcfsSource(Everybody(str(host.state), str(host.proc)), root="/proc")
    before = source.sample().vms[host.uuid_of("me")].threads[tid]
    sum(range(3_000_000))
    after = source.sample().vms[host.uuid_of("me")].threads[tid]
    source.close()
    assert after.cpu_ns > before.cpu_ns + 1_000_000
    assert after.start_ticks == before.start_ticks


def test_the_shipped_units_one_capability_does_not_open_another_users_io(tmp_path):
    """CAP_PERFMON alone, as in the unit: CPU times are readable, /proc/PID/io is not, and says so."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv: drops capabilities")
    script = """
import sys
from collector.base import VmIdentity
from collector.files import KeptFiles, read_once
from collector.procfs.storage import StorageBytes
vm = VmIdentity("u", "n", int(sys.argv[1]), "e")
read_once(f"/proc/{vm.pid}/schedstat"), read_once(f"/proc/{vm.pid}/stat")
print(*StorageBytes("/proc", KeptFiles(9), vm).read(vm))
"""
    root = Path(__file__).resolve().parents[4]
    only_perfmon = ["setpriv", "--bounding-set=-all,+perfmon", "--inh-caps=-all,+perfmon", "--no-new-privs"]
    said = {}
    with subprocess.Popen(["setpriv", "--reuid=65534", "--clear-groups", "cat"], stdin=subprocess.PIPE) as other:
        try:
            while Path(f"/proc/{other.pid}/comm").read_text() != "cat\n":
                time.sleep(0.01)
            for name, prefix in (("unit", only_perfmon), ("root", [])):
                command = [*prefix, sys.executable, "-c", script, str(other.pid)]
                said[name] = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
        finally:
            other.kill()
    assert said["unit"].split() == ["None", "None", str(int(Reason.NO_PERMISSION))]
    assert said["root"].split()[2] == str(int(Reason.UNSPECIFIED))
