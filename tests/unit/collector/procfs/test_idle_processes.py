"""Clocks of real processes, and what the procfs source does not read of those that sleep."""

import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from collector.base import DiskDevice, Reason, VmIdentity
from collector.files import KeptFile
from collector.procfs.idle_processes import ProcessClock
from collector.procfs.source import ProcfsSource
from collector.procfs.storage import StorageBytes
from tests.support.waiting import wait_until

WORKER = """
import sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("up", flush=True)
for line in sys.stdin:
    sum(range(int(line)))
    print("done", flush=True)
"""


class Listed:
    """An inventory of given VMs."""

    def __init__(self, *vms: VmIdentity) -> None:
        self.listed = vms

    def vms(self) -> tuple[VmIdentity, ...]:
        return self.listed


@pytest.fixture
def worker():
    """A process of two threads that counts to the number that it is given and says so."""
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdout.readline() == "up\n"
        yield process
        process.kill()


def count(worker, to):
    worker.stdin.write(f"{to}\n")
    assert worker.stdout.readline() == "done\n"


def tids(worker):
    return tuple(sorted(int(task.name) for task in Path(f"/proc/{worker.pid}/task").iterdir()))


def asleep(worker):
    """Wait until it waits for input and is off the CPU: from then on it does not run."""
    tasks = [Path(f"/proc/{worker.pid}/task/{tid}") for tid in tids(worker)]

    def times():
        return [(task / "schedstat").read_text() for task in tasks]

    def is_off():
        before = times()
        time.sleep(0.02)
        waits = all((task / "stat").read_text().rpartition(")")[2].split()[0] == "S" for task in tasks)
        return waits and times() == before

    wait_until(is_off)


@pytest.fixture
def vm(worker):
    return VmIdentity("u", "worker", worker.pid, "e", tids(worker), accelerator="tcg")


@pytest.fixture
def read(monkeypatch, worker):
    """Names of the process's files that were read through kept descriptors."""
    names = []
    plain = KeptFile.read

    def noted(self, *arguments):
        if f"/{worker.pid}/" in self.path:
            names.append(self.path.rpartition("/")[2])
        return plain(self, *arguments)

    monkeypatch.setattr(KeptFile, "read", noted)
    return names


def test_the_clock_is_the_sum_of_the_threads_to_the_nanosecond(worker):
    count(worker, 300_000)
    asleep(worker)
    spent_ns = ProcessClock().read(worker.pid)
    files = [Path(f"/proc/{worker.pid}/task/{tid}/schedstat") for tid in tids(worker)]
    assert spent_ns == sum(int(file.read_text().split()[0]) for file in files)
    assert ProcessClock().read(worker.pid) == spent_ns  # it sleeps
    count(worker, 300_000)
    assert ProcessClock().read(worker.pid) > spent_ns


def test_no_clock_of_who_is_not_there_or_is_numbered_elsewhere(tmp_path):
    assert ProcessClock().read(2**22 + 1) is None
    assert ProcessClock(str(tmp_path)).read(os.getpid()) is None
    (tmp_path / "self").symlink_to(str(os.getpid() + 1))  # a /proc of another namespace
    assert ProcessClock(str(tmp_path)).read(os.getpid()) is None


def test_of_a_vm_that_slept_only_waits_are_read_and_of_one_that_ran_everything(worker, vm, read):
    source = ProcfsSource(Listed(vm))
    asleep(worker)
    source.sample()
    first = source.sample().vms["u"]
    read.clear()
    again = source.sample().vms["u"]
    assert again is first
    assert read == ["schedstat", "schedstat"]
    read.clear()
    count(worker, 300_000)
    asleep(worker)
    after = source.sample().vms["u"]
    # The process's stat and that of one thread, to see whether it runs: the other has not moved.
    assert sorted(read) == ["io", "schedstat", "schedstat", "stat", "stat"]
    true_ns = {tid: int(Path(f"/proc/{vm.pid}/task/{tid}/schedstat").read_text().split()[0]) for tid in vm.vcpu_tids}
    assert {tid: thread.cpu_ns for tid, thread in after.threads.items()} == true_ns
    assert after.threads[worker.pid].cpu_ns > first.threads[worker.pid].cpu_ns
    source.close()


def test_waits_of_a_starved_vm_are_reported_though_its_clock_stands_still(worker, vm, read, monkeypatch):
    """A thread that gets no CPU at all is moved between CPUs by the load balancer, which adds to its wait.

    Seen with a SCHED_IDLE process beside a hog on each CPU: 2.7 s of wait while the clock did not move.
    """
    source = ProcfsSource(Listed(vm))
    asleep(worker)
    spent_ns = ProcessClock().read(worker.pid)
    monkeypatch.setattr(ProcessClock, "read", lambda *_: spent_ns)
    first = source.sample().vms["u"]
    plain = KeptFile.read

    def starved(self, *arguments):
        text = plain(self, *arguments)
        if not self.path.endswith("schedstat"):
            return text
        cpu_ns, wait_ns, turns = text.split()
        return b"%s %d %s\n" % (cpu_ns, int(wait_ns) + 2_700_000_000, turns)

    monkeypatch.setattr(KeptFile, "read", starved)
    after = source.sample().vms["u"]
    assert {tid: thread.run_queue_wait_ns - first.threads[tid].run_queue_wait_ns
            for tid, thread in after.threads.items()} == dict.fromkeys(vm.vcpu_tids, 2_700_000_000)  # fmt: skip
    assert after.process == replace(first.process, vcpus_running=0)  # looked at: it might have run
    source.close()


def state_of(tid):
    return Path(f"/proc/{tid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_thread_that_spins_runs_and_one_that_waits_or_is_stopped_does_not(worker, vm):
    source = ProcfsSource(Listed(vm))
    schedstat = Path(f"/proc/{worker.pid}/schedstat")
    asleep(worker)
    source.sample()
    assert source.sample().vms["u"].process.vcpus_running == 0
    worker.stdin.write(f"{10**15}\n")  # which it never ends
    spent = schedstat.read_text()
    wait_until(lambda: schedstat.read_text() != spent and state_of(worker.pid) == "R")
    for _ in range(3):  # whether or not its time moves meanwhile
        assert source.sample().vms["u"].process.vcpus_running == 1
    worker.send_signal(signal.SIGSTOP)
    wait_until(lambda: state_of(worker.pid) == "T")
    stopped = source.sample().vms["u"]
    assert stopped.process.vcpus_running == 0
    assert source.sample().vms["u"].process.vcpus_running == 0
    again = source.sample().vms["u"]
    assert source.sample().vms["u"] is again
    worker.send_signal(signal.SIGCONT)
    spent = schedstat.read_text()
    wait_until(lambda: schedstat.read_text() != spent)
    assert source.sample().vms["u"].process.vcpus_running == 1
    source.close()


def test_a_vm_that_sleeps_after_it_ran_does_not_run_any_more(worker, vm, monkeypatch):
    """Its clock stands still, so that all but the count is what was reported before."""
    source = ProcfsSource(Listed(vm))
    asleep(worker)
    source.sample()
    plain = KeptFile.read
    monkeypatch.setattr(KeptFile, "read", lambda self, *size: plain(self, *size).replace(b") S ", b") R "))
    count(worker, 300_000)
    asleep(worker)
    ran = source.sample().vms["u"]
    assert ran.process.vcpus_running == 1
    assert source.sample().vms["u"] is ran  # it is looked at again as long as it runs
    monkeypatch.undo()
    slept = source.sample().vms["u"]
    assert slept.process == replace(ran.process, vcpus_running=0)
    assert slept.threads is ran.threads
    assert source.sample().vms["u"] is slept
    source.close()


def test_a_vm_that_changed_is_read_though_it_slept(worker, vm, read):
    source = ProcfsSource(Listed(vm))
    asleep(worker)
    source.sample()
    fewer = VmIdentity("u", "worker", worker.pid, "e", vm.vcpu_tids[:1], accelerator="tcg")
    source._inventory.listed = (fewer,)
    assert list(source.sample().vms["u"].threads) == [fewer.vcpu_tids[0]]
    hidden = VmIdentity("u", "worker", worker.pid, "e", vm.vcpu_tids, disks=(DiskDevice("vda", "network"),))
    source._inventory.listed = (hidden,)
    assert source.sample().vms["u"].process.storage_reason is Reason.NOT_VISIBLE
    source.close()


def test_what_could_not_be_read_is_tried_again_though_it_slept(worker, vm, monkeypatch):
    source = ProcfsSource(Listed(vm))
    asleep(worker)
    plain = os.open

    def full(path, *arguments):
        if str(path).endswith(("/io", "/io.stat")):
            raise OSError(errno.EMFILE, "Too many open files")
        return plain(path, *arguments)

    monkeypatch.setattr(os, "open", full)
    assert source.sample().vms["u"].process.storage_reason is Reason.FD_LIMIT
    monkeypatch.undo()
    assert source.sample().vms["u"].process.storage_reason is Reason.UNSPECIFIED
    source.close()


@pytest.mark.parametrize("passing", [Reason.NOT_PRESENT, Reason.VM_STARTING])
def test_storage_that_was_not_known_is_read_again_though_it_slept(worker, vm, monkeypatch, passing):
    source = ProcfsSource(Listed(vm))
    asleep(worker)
    with monkeypatch.context() as gap:
        gap.setattr(StorageBytes, "read", lambda *_: (None, None, passing))
        assert source.sample().vms["u"].process.storage_reason is passing
    assert source.sample().vms["u"].process.storage_reason is Reason.UNSPECIFIED
    source.close()


def test_the_bytes_of_a_group_are_read_though_the_process_slept(worker, vm, read, monkeypatch):
    """They are written back when it sleeps; its threads and its own times need no reading."""
    source = ProcfsSource(Listed(vm))
    asleep(worker)
    reported = [(1, 2, Reason.UNSPECIFIED), (1, 9, Reason.UNSPECIFIED)]
    monkeypatch.setattr(StorageBytes, "moves_alone", True)
    monkeypatch.setattr(StorageBytes, "read", lambda *_: reported.pop(0))
    first = source.sample().vms["u"]
    read.clear()
    second = source.sample().vms["u"]
    assert (first.process.storage_write_bytes, second.process.storage_write_bytes) == (2, 9)
    assert second.threads is first.threads
    assert read == ["schedstat", "schedstat"]
    source.close()
