"""Guest time and run-queue wait per vCPU thread, and the host's CPU time, from /proc.

Files of the threads are kept open and read in place (pread), four to five times cheaper than opening them
each time. An open file is bound to its thread and not to the number: it fails when the thread has ended.
"""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from collector.base import (
    HostCounters,
    Probe,
    Reason,
    SourceError,
    SourceSample,
    ThreadCounters,
    VmIdentity,
    VmSample,
)
from collector.identity import Inventory
from collector.proc_parse import NS_PER_TICK, parse_host_stat, parse_schedstat, parse_task_stat

__all__ = ["ProcfsSource"]

_GONE = {errno.ENOENT, errno.ESRCH}
_NO_FD = {errno.EMFILE, errno.ENFILE}
_TASK_BYTES = 1024  # a stat line has at most some 350 bytes
_HOST_CHUNK_BYTES = 64 * 1024


class _NoFd(Exception):  # noqa: N818 - control flow within this file
    """No file descriptor is left."""


@dataclass(slots=True)
class _Thread:
    """A vCPU thread's open files; None where not kept open (or, for schedstat, where the kernel has none)."""

    folder: str
    stat_fd: int | None = None
    schedstat_fd: int | None = None
    has_schedstat: bool = True

    def close(self) -> None:
        for fd in (self.stat_fd, self.schedstat_fd):
            if fd is not None:
                os.close(fd)
        self.stat_fd = self.schedstat_fd = None


@dataclass(slots=True)
class _Vm:
    epoch: str
    threads: dict[int, _Thread] = field(default_factory=dict)

    def close(self) -> None:
        for thread in self.threads.values():
            thread.close()
        self.threads.clear()


class ProcfsSource:
    """The procfs source (`collector.base.Source`). Not safe for use by several threads at once.

    Args:
        inventory: the VMs; called once per sample.
        root: where /proc is.
        max_fds: at most this many files are kept open (two per vCPU thread); those beyond it are opened for
            each reading. None: a quarter of the process's limit; counters, spool and network keep theirs.

    """

    name = "procfs"

    def __init__(self, inventory: Inventory, *, root: str = "/proc", max_fds: int | None = None) -> None:
        self._inventory = inventory
        self._root = Path(root)
        self._max_fds = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4 if max_fds is None else max_fds
        self._kept_fds = 0
        self._vms: dict[str, _Vm] = {}

    def probe(self) -> Probe:
        """Say whether /proc and the status files of the VMs can be read."""
        try:
            host = self._read_host()
        except SourceError as error:
            return Probe(available=False, detail=str(error), reason=error.reason)
        vms = self._inventory.probe()
        if not vms.available:
            return vms
        return Probe(available=True, detail=f"{self._root} of {host.cpus} CPUs; {vms.detail}")

    def open(self) -> None:
        """Check that the host's file can be read; the threads' are opened as VMs are sampled."""
        self._read_host()

    def sample(self) -> SourceSample:
        """Read all vCPU threads and the host.

        Raises:
            SourceError: the VMs or the host's file cannot be read at all.

        """
        mono_ns, unix_ns = time.monotonic_ns(), time.time_ns()
        inventory = self._inventory.vms()
        self._forget({vm.uuid: vm for vm in inventory})
        vms = {vm.uuid: self._read_vm(vm) for vm in inventory}
        return SourceSample(self.name, mono_ns, unix_ns, vms, self._read_host(), inventory)

    def close(self) -> None:
        """Close all files."""
        for vm in self._vms.values():
            vm.close()
        self._vms.clear()
        self._kept_fds = 0

    def _forget(self, present: dict[str, VmIdentity]) -> None:
        """Close the files of VMs and threads that are gone."""
        for uuid, vm in list(self._vms.items()):
            identity = present.get(uuid)
            if identity is None or identity.epoch != vm.epoch:
                self._close_threads(vm, list(vm.threads))
                del self._vms[uuid]
            else:
                self._close_threads(vm, vm.threads.keys() - set(identity.vcpu_tids))

    def _close_threads(self, vm: _Vm, tids: Iterable[int]) -> None:
        for tid in tids:
            thread = vm.threads.pop(tid)
            self._kept_fds -= sum(fd is not None for fd in (thread.stat_fd, thread.schedstat_fd))
            thread.close()

    def _read_vm(self, identity: VmIdentity) -> VmSample:
        if not identity.vcpu_tids:
            return VmSample(identity.epoch, absent={"threads": Reason.VM_STARTING})
        vm = self._vms.setdefault(identity.uuid, _Vm(identity.epoch))
        try:
            threads = self._read_threads(vm, identity)
        except _NoFd:
            reason = Reason.FD_LIMIT
        except PermissionError:
            reason = Reason.NO_PERMISSION
        except OSError:
            reason = Reason.SOURCE_FAILED
        except ValueError:
            reason = Reason.INVALID_VALUE
        else:
            if threads:
                return VmSample(identity.epoch, threads=threads)
            reason = Reason.NOT_PRESENT
        # A sum over some of its vCPUs would look like a slower VM. Begin anew next time; until then what it
        # had open serves others.
        self._close_threads(vm, list(vm.threads))
        return VmSample(identity.epoch, absent={"threads": reason})

    def _read_threads(self, vm: _Vm, identity: VmIdentity) -> dict[int, ThreadCounters]:
        """Return the counters of the vCPU threads that live."""
        counters = {}
        tcg = identity.accelerator == "tcg"
        for tid in identity.vcpu_tids:
            try:
                counters[tid] = self._read_thread(vm, identity.pid, tid, tcg=tcg)
            except OSError as error:
                if error.errno not in _GONE:
                    raise
                # A vCPU was unplugged, the VM stopped. Should the number come back, it is opened anew.
                self._close_threads(vm, [tid] if tid in vm.threads else [])
        return counters

    def _read_thread(self, vm: _Vm, pid: int, tid: int, *, tcg: bool) -> ThreadCounters:
        thread = vm.threads.get(tid)
        if thread is None:
            thread = vm.threads[tid] = _Thread(f"{self._root}/{pid}/task/{tid}")
            if self._kept_fds + 2 <= self._max_fds:
                self._keep_open(thread)
        stat = parse_task_stat(_read(thread.stat_fd, f"{thread.folder}/stat"))
        cpu_ns = (stat.utime_ticks + stat.stime_ticks) * NS_PER_TICK
        wait_ns = None
        if thread.has_schedstat:
            try:
                run_ns, waited_ns = parse_schedstat(_read(thread.schedstat_fd, f"{thread.folder}/schedstat"))
            except FileNotFoundError:
                thread.has_schedstat = False  # a kernel without CONFIG_SCHED_INFO
            else:
                # All zero while the thread did run: the kernel keeps the file but not the times.
                if run_ns or waited_ns or not cpu_ns:
                    cpu_ns, wait_ns = run_ns, waited_ns
        guest_ns = cpu_ns if tcg else stat.guest_ticks * NS_PER_TICK
        return ThreadCounters(guest_ns, cpu_ns, wait_ns, stat.start_ticks)

    def _keep_open(self, thread: _Thread) -> None:
        thread.stat_fd = _open(f"{thread.folder}/stat")
        self._kept_fds += 1
        try:
            thread.schedstat_fd = _open(f"{thread.folder}/schedstat")
        except FileNotFoundError:
            thread.has_schedstat = False
        else:
            self._kept_fds += 1

    def _read_host(self) -> HostCounters:
        path = self._root / "stat"
        try:
            fd = _open(str(path))
            try:
                text = os.read(fd, _HOST_CHUNK_BYTES)
                # The "cpu" lines come first; what follows (a number per interrupt) is long and not for us.
                while b"\nintr" not in text and (more := os.read(fd, _HOST_CHUNK_BYTES)):
                    text += more
            finally:
                os.close(fd)
            return parse_host_stat(text)
        except _NoFd as error:
            message = f"{path}: no file descriptor is left; raise the agent's LimitNOFILE"
            raise SourceError(message, Reason.FD_LIMIT) from error
        except OSError as error:
            raise SourceError(f"{path}: {error.strerror}; sources.procfs.root must be a /proc") from error
        except ValueError as error:
            raise SourceError(f"{path}: {error}; sources.procfs.root must be a /proc") from error


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_FD:
            raise _NoFd from error
        raise


def _read(fd: int | None, path: str) -> bytes:
    """Read a thread's file from its start: the open one, else by opening it for this."""
    if fd is not None:
        return os.pread(fd, _TASK_BYTES, 0)
    fd = _open(path)
    try:
        return os.read(fd, _TASK_BYTES)
    finally:
        os.close(fd)
