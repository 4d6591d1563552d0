from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path

import pytest

from collector.base import Reason, SourceError
from collector.identity import Inventory
from collector.proc_parse import NS_PER_TICK
from collector.procfs import ProcfsSource


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


def test_kvm_threads_have_the_kernels_guest_time(host, make):
    host.vm("a", 10, [11, 12])
    sample = make().sample()
    threads = sample.vms[host.uuid_of("a")].threads
    assert list(threads) == [11, 12]
    assert threads[11].guest_ns == 450 * NS_PER_TICK
    assert (threads[11].cpu_ns, threads[11].run_queue_wait_ns, threads[11].start_ticks) == (
        7000000,
        3000000,
        1000,
    )


def test_emulated_threads_count_all_their_time_as_the_guests(host, make):
    host.vm("a", 10, [11], kind="qemu")
    thread = make().sample().vms[host.uuid_of("a")].threads[11]
    assert thread.guest_ns == thread.cpu_ns == 7000000


def test_a_kernel_without_schedstat(host, make):
    host.vm("a", 10, [11])
    (host.proc / "10/task/11/schedstat").unlink()
    source = make()
    for _ in range(2):
        thread = source.sample().vms[host.uuid_of("a")].threads[11]
        assert thread.run_queue_wait_ns is None
        assert thread.cpu_ns == 600 * NS_PER_TICK


def test_a_kernel_that_keeps_schedstat_empty(host, make):
    host.vm("a", 10)
    host.status("a", 10, [11, 12])
    host.thread(10, 11, schedstat="0 0 0\n")
    host.thread(10, 12, schedstat="0 0 0\n", utime=0, stime=0)  # a thread that has not run yet
    threads = make().sample().vms[host.uuid_of("a")].threads
    assert (threads[11].run_queue_wait_ns, threads[11].cpu_ns) == (None, 600 * NS_PER_TICK)
    assert (threads[12].run_queue_wait_ns, threads[12].cpu_ns) == (0, 0)


def test_values_are_read_anew_through_open_files(host, make):
    host.vm("a", 10, [11])
    source = make()
    source.sample()
    host.thread(10, 11, schedstat="8000000 3500000 20\n", guest=460)
    thread = source.sample().vms[host.uuid_of("a")].threads[11]
    assert (thread.guest_ns, thread.cpu_ns, thread.run_queue_wait_ns) == (460 * NS_PER_TICK, 8000000, 3500000)


def test_the_host_and_the_inventory_come_with_every_sample(host, make):
    host.vm("a", 10, [11])
    sample = make().sample()
    assert sample.source == "procfs"
    assert sample.host.guest_ns == 300 * NS_PER_TICK
    assert [vm.name for vm in sample.inventory] == ["a"]
    assert sample.mono_ns > 0
    assert sample.unix_ns > 0


def test_a_vm_without_threads_yet_is_starting(host, make):
    host.vm("a", 10)
    assert dict(make().sample().vms[host.uuid_of("a")].absent) == {"threads": Reason.VM_STARTING}


def test_files_are_closed_with_their_threads_and_vms(host, make):
    host.vm("a", 10, [11, 12])
    host.vm("b", 20, [21])
    source = make()
    source.sample()
    assert open_files(host) == 6
    host.status("a", 10, [11])  # unplugged
    source.sample()
    assert open_files(host) == 4
    (host.state / "b.xml").unlink()
    source.sample()
    assert open_files(host) == 2
    (host.proc / "10/task/11/stat").unlink()
    host.vm("a", 10, [11], start=5000)  # a new epoch has its files opened anew
    assert source.sample().vms[host.uuid_of("a")].threads[11].start_ticks == 5000
    assert open_files(host) == 2
    source.close()
    source.close()
    assert open_files(host) == 0


def test_no_more_files_than_allowed_are_kept_and_all_are_read(host, make):
    host.vm("a", 10, [11, 12, 13])
    source = make(max_fds=4)
    for _ in range(3):
        assert list(source.sample().vms[host.uuid_of("a")].threads) == [11, 12, 13]
        assert open_files(host) == 4


def test_a_thread_that_vanished_costs_only_itself(host, make, monkeypatch):
    host.vm("a", 10, [11, 12])
    source = make()
    source.sample()
    read = os.pread
    victim = source._vms[host.uuid_of("a")].threads[12].stat_fd

    def pread(fd, size, offset):
        if fd == victim:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        return read(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    assert list(source.sample().vms[host.uuid_of("a")].threads) == [11]
    monkeypatch.undo()
    assert list(source.sample().vms[host.uuid_of("a")].threads) == [11, 12]  # the number came back
    assert open_files(host) == 4


def test_a_vm_whose_threads_all_ended(host, make):
    host.vm("a", 10, [11])
    (host.proc / "10/task/11/stat").unlink()
    assert dict(make().sample().vms[host.uuid_of("a")].absent) == {"threads": Reason.NOT_PRESENT}
    assert open_files(host) == 0


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
    assert open_files(host) == 6


def test_a_malformed_thread_costs_only_its_vm(host, make):
    host.vm("good", 10, [11])
    host.vm("bad", 20, [21])
    (host.proc / "20/task/21/schedstat").write_text("nonsense\n")
    sample = make().sample()
    assert dict(sample.vms[host.uuid_of("bad")].absent) == {"threads": Reason.INVALID_VALUE}
    assert list(sample.vms[host.uuid_of("good")].threads) == [11]


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
    assert (
        probe.detail
        == f"{host.proc / 'stat'}: No such file or directory; sources.procfs.root must be a /proc"
    )
    with pytest.raises(SourceError, match=r"sources\.procfs\.root must be a /proc"):
        source.open()
    (host.proc / "stat").write_text("nonsense\n")
    with pytest.raises(SourceError, match="no usable cpu line"):
        source.sample()


def test_probe_is_the_inventorys_where_that_cannot_be_read(host, make, monkeypatch):
    source = make()
    probe = source._inventory.probe()
    monkeypatch.setattr(
        type(source._inventory), "probe", lambda _: type(probe)(False, "no", Reason.NO_PERMISSION)
    )
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
