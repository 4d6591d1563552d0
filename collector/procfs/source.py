"""CPU time, guest time, run-queue wait and storage bytes of each VM, and the host's CPU time, from /proc.

Per vCPU thread only schedstat is read each time (CPU time and wait in nanoseconds), per process its stat (guest time)
and io; all from files that are kept open (`collector.files`). Unchanged text is not parsed. The stat and io of a
process that has not run (`collector.procfs.idle_processes`) are not read: only the process changes them. Waits are
always read: they grow when the kernel moves a waiting thread to another CPU.

The vCPU threads' waits are summed in `agent.sampling.deltas`; `agent.sampling.rates` makes them the run-queue wait.

Then the threads that run at this instant are counted among those that ran at the last count or whose schedstat has
changed since: getting onto a CPU changes it. This costs five times as much as schedstat, so VMs take turns on a host of
many vCPUs.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic_ns

from collector.base import (
    HostCounters,
    Probe,
    ProcessCounters,
    Reason,
    SourceError,
    SourceSample,
    ThreadCounters,
    VmIdentity,
    VmSample,
    vm_sample,
)
from collector.files import GONE, NO_FD, KeptFile, KeptFiles, fd_share, read_once, reason_of
from collector.inventory.inventory import Inventory
from collector.proc_parse import NS_PER_TICK, TaskStat, parse_host_stat, parse_runs, parse_schedstat, parse_task_stat
from collector.procfs.host_totals import HostTotals
from collector.procfs.idle_processes import ProcessClock
from collector.procfs.storage import StorageBytes
from collector.timestamps import clocks_now, read_in_turn

_TASK_BYTES = 1024  # a stat line has at most some 350 bytes
_STATE_BYTES = 128  # its number, name and state have at most 80
_MAX_LOOKS = 400  # states read per sampling, 5 to 7 us each: 0.2 to 0.3 % of a core at one sampling a second
_HOST_CHUNK_BYTES = 64 * 1024
# Reasons for unknown storage bytes that may be gone at the next reading.
_PASSING = {Reason.FD_LIMIT, Reason.NOT_PRESENT, Reason.VM_STARTING}


@dataclass(slots=True)
class _Thread:
    """A vCPU thread. `file` is its schedstat, or its stat on a kernel that has no times in schedstat.

    `state` is its stat file, opened when its state is read a second time. `may_run`: it ran when its state was last
    read, or its schedstat has changed since.
    """

    folder: str
    start_ticks: int
    file: KeptFile
    precise: bool = True
    text: bytes = b""
    counters: ThreadCounters | None = None
    state: KeptFile | None = None
    may_run: bool = False


@dataclass(slots=True)
class _Vm:
    """A VM in one epoch. `made` is its last sample, None unless it was whole, and of this `identity`.

    `spent_ns` is the process's CPU time before that: while it is the same, so is what was read. `running` is how many
    of its threads run now; None: not counted.
    """

    epoch: str
    threads: dict[int, _Thread] = field(default_factory=dict)
    stat: KeptFile | None = None
    text: bytes = b""
    parsed: TaskStat | None = None
    storage: StorageBytes | None = None
    identity: VmIdentity | None = None
    spent_ns: int | None = None
    made: VmSample | None = None
    running: int | None = None


class ProcfsSource:
    """The procfs source (`collector.base.Source`). Not safe for use by several threads at once.

    `max_fds` bounds the files kept open (two per vCPU thread, two per VM, four for the host); None: this source's
    `fd_share`.
    """

    name = "procfs"

    def __init__(self, inventory: Inventory, *, root: str = "/proc", max_fds: int | None = None) -> None:
        self._inventory = inventory
        self._root = Path(root)
        self._files = KeptFiles(fd_share("procfs") if max_fds is None else max_fds)
        self._totals = HostTotals(root, self._files)
        self._times = ProcessClock(root)
        self._vms: dict[str, _Vm] = {}
        self._listed: tuple[VmIdentity, ...] = ()
        self._samplings = 0
        self._may_run = 0  # threads, at the last sampling

    def probe(self) -> Probe:
        """Say whether /proc and the status files of the VMs can be read."""
        try:
            host = self._read_host()
        except SourceError as error:
            return error.as_probe()
        vms = self._inventory.probe()
        return Probe(True, f"{self._root} of {host.cpus} CPUs; {vms.detail}") if vms.available else vms

    def open(self) -> None:
        """Check that the host's file can be read; the threads' are opened as VMs are sampled."""
        self._read_host()

    def sample(self) -> SourceSample:
        """Read all vCPU threads, processes and the host. Raises SourceError if the VMs or the host cannot be read."""
        inventory = self._inventory.vms()
        begun = clocks_now()  # only now: a new VM may have delayed the list
        if inventory != self._listed:
            self._forget({vm.uuid: vm for vm in inventory})
            self._listed = inventory
        # With too many threads that may run, VMs take turns.
        turns = max(1, -(-self._may_run // _MAX_LOOKS))
        self._samplings += 1
        self._may_run = 0
        numbers = count(self._samplings)

        def read(vm: VmIdentity) -> VmSample:
            return self._read_vm(vm, look=next(numbers) % turns == 0)

        vms = read_in_turn(inventory, read, begun, monotonic_ns)
        host = self._totals.add_to(self._read_host())
        return SourceSample(self.name, begun.mono_ns, begun.unix_ns, vms, host, inventory)

    def close(self) -> None:
        """Close all files."""
        for vm in self._vms.values():
            self._close_vm(vm)
        self._vms.clear()
        self._listed = ()
        self._totals.close()

    def _forget(self, present: dict[str, VmIdentity]) -> None:
        for uuid, vm in list(self._vms.items()):
            identity = present.get(uuid)
            if identity is None or identity.epoch != vm.epoch:
                self._close_vm(vm)
                del self._vms[uuid]
            elif len(vm.threads) != len(identity.vcpu_tids) or vm.threads.keys() != set(identity.vcpu_tids):
                self._close_threads(vm, vm.threads.keys() - set(identity.vcpu_tids))

    def _close_vm(self, vm: _Vm) -> None:
        self._close_threads(vm, list(vm.threads))
        self._close_process(vm)

    def _close_threads(self, vm: _Vm, tids: Iterable[int]) -> None:
        for tid in tids:
            thread = vm.threads.pop(tid)
            self._files.close(thread.file, thread.state)

    def _close_process(self, vm: _Vm) -> None:
        self._files.close(vm.stat)
        if vm.storage is not None:
            vm.storage.close()
        vm.stat, vm.storage, vm.text, vm.parsed = None, None, b"", None

    def _read_vm(self, identity: VmIdentity, *, look: bool) -> VmSample:
        vm = self._vms.get(identity.uuid)
        if vm is None:
            vm = self._vms[identity.uuid] = _Vm(identity.epoch)
        spent_ns = self._times.read(identity.pid)
        slept = spent_ns is not None and spent_ns == vm.spent_ns and identity is vm.identity
        made = vm.made if slept else None
        threads: Mapping[int, ThreadCounters] | Reason = self._threads_or_reason(vm, identity, look=look)
        if made is not None and made.threads is not None and threads == made.threads:
            threads = made.threads
            is_same = made.process is not None and made.process.vcpus_running == vm.running
            if is_same and vm.storage is not None and not vm.storage.moves_alone:
                return made
        process = self._process_or_reason(vm, identity, slept=made is not None)
        made = vm_sample(identity.epoch, threads=threads, process=process)
        is_whole = isinstance(process, ProcessCounters) and not made.absent and process.storage_reason not in _PASSING
        vm.identity, vm.spent_ns, vm.made = identity, spent_ns, made if is_whole else None
        return made

    def _threads_or_reason(self, vm: _Vm, identity: VmIdentity, *, look: bool) -> dict[int, ThreadCounters] | Reason:
        vm.running = None
        if not identity.vcpu_tids:
            return Reason.VM_STARTING
        try:
            threads = self._read_threads(vm, identity, look=look)
        except (OSError, ValueError) as error:
            reason = reason_of(error)
        else:
            if threads:
                return threads
            reason = Reason.NOT_PRESENT
        # A sum over some of its vCPUs would look like a slower VM. Open it again next time; others may use its files.
        self._close_threads(vm, list(vm.threads))
        return reason

    def _read_threads(self, vm: _Vm, identity: VmIdentity, *, look: bool) -> dict[int, ThreadCounters]:
        """Return the living vCPU threads' counters; count the running ones if it is the VM's turn (`look`)."""
        counters = {}
        may_run = []
        tcg = identity.accelerator == "tcg"
        threads = vm.threads
        for tid in identity.vcpu_tids:
            try:
                thread = threads.get(tid)
                if thread is None:
                    thread = threads[tid] = self._open_thread(identity.pid, tid)
                text = thread.file.read(_TASK_BYTES)
                # A thread that slept since the last time reads the same.
                if text != thread.text or thread.counters is None:
                    thread.may_run |= thread.counters is not None  # a new one's is known from its opening
                    thread.counters = self._parse_thread(thread, text, tcg=tcg)
                    thread.text = text if thread.counters.cpu_ns else b""  # all zero: see _parse_thread
                # One that ran may still run: the kernel need not update its time meanwhile.
                if thread.may_run:
                    may_run.append(thread)
                counters[tid] = thread.counters
            except OSError as error:
                if error.errno not in GONE:
                    raise
                # A vCPU was unplugged or the VM stopped. If the number comes back, it is opened again.
                self._close_threads(vm, [tid] if tid in threads else [])
        self._may_run += len(may_run)
        vm.running = self._count_running(may_run) if look or not may_run else None
        return counters

    def _count_running(self, threads: Iterable[_Thread]) -> int | None:
        """Count the threads that run, or wait for a CPU, now; None where that is unknown."""
        running = 0
        try:
            for thread in threads:
                try:
                    if thread.state is None:
                        thread.state = self._files.open(f"{thread.folder}/stat")
                    thread.may_run = runs = parse_runs(thread.state.read(_STATE_BYTES))
                except OSError as error:
                    if error.errno not in GONE:  # what has ended does not run
                        raise
                else:
                    running += runs
        except (OSError, ValueError):
            return None
        return running

    def _open_thread(self, pid: int, tid: int) -> _Thread:
        folder = f"{self._root}/{pid}/task/{tid}"
        stat_path = f"{folder}/stat"
        try:
            file = self._files.open(f"{folder}/schedstat")
        except FileNotFoundError:  # the thread has ended, or this is a kernel without CONFIG_SCHED_INFO
            file = self._files.open(stat_path)
        try:
            stat = parse_task_stat(read_once(stat_path, _TASK_BYTES))
        except BaseException:
            self._files.close(file)
            raise
        return _Thread(folder, stat.start_ticks, file, file.path != stat_path, may_run=stat.state == "R")

    def _parse_thread(self, thread: _Thread, text: bytes, *, tcg: bool) -> ThreadCounters:
        if thread.precise:
            cpu_ns, wait_ns = parse_schedstat(text)
            if cpu_ns or wait_ns:
                return ThreadCounters(cpu_ns if tcg else None, cpu_ns, wait_ns, thread.start_ticks)
            # All zero: it has not run yet, or the kernel keeps the file but not the times.
            text = read_once(f"{thread.folder}/stat", _TASK_BYTES)
        stat = parse_task_stat(text)
        cpu_ns = (stat.utime_ticks + stat.stime_ticks) * NS_PER_TICK
        if thread.precise:
            if not cpu_ns:
                return ThreadCounters(0 if tcg else None, 0, 0, thread.start_ticks)
            file = self._files.open(f"{thread.folder}/stat")
            self._files.close(thread.file)
            thread.file, thread.precise = file, False
        guest_ns = cpu_ns if tcg else stat.guest_ticks * NS_PER_TICK
        return ThreadCounters(guest_ns, cpu_ns, None, stat.start_ticks)

    def _process_or_reason(self, vm: _Vm, identity: VmIdentity, *, slept: bool) -> ProcessCounters | Reason:
        try:
            stat = vm.parsed
            if stat is None or not slept:
                if vm.stat is None:
                    vm.stat = self._files.open(f"{self._root}/{identity.pid}/stat")
                text = vm.stat.read(_TASK_BYTES)
                if stat is None or text != vm.text:
                    stat = vm.parsed = parse_task_stat(text)
                    vm.text = text
            if vm.storage is None:
                vm.storage = StorageBytes(str(self._root), self._files, identity)
            read_bytes, write_bytes, reason = vm.storage.read(identity)
        except (OSError, ValueError) as error:
            self._close_process(vm)
            return reason_of(error)
        # The threads' own guest times make the process's superfluous.
        in_threads = identity.accelerator == "tcg" or any(not thread.precise for thread in vm.threads.values())
        return ProcessCounters(
            (stat.utime_ticks + stat.stime_ticks) * NS_PER_TICK,
            stat.start_ticks,
            None if in_threads else stat.guest_ticks * NS_PER_TICK,
            read_bytes,
            write_bytes,
            reason,
            vm.running,
        )

    def _read_host(self) -> HostCounters:
        path = self._root / "stat"
        try:
            return parse_host_stat(_read_cpu_lines(path))
        except OSError as error:
            if error.errno in NO_FD:
                message = f"{path}: no file descriptor is left; raise the agent's LimitNOFILE"
                raise SourceError(message, Reason.FD_LIMIT) from error
            raise SourceError(f"{path}: {error.strerror}; sources.procfs.root must be a /proc") from error
        except ValueError as error:
            raise SourceError(f"{path}: {error}; sources.procfs.root must be a /proc") from error


def _read_cpu_lines(path: Path) -> bytes:
    """Read /proc/stat up to the end of its "cpu" lines: a long line with a number per interrupt follows."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(fd, _HOST_CHUNK_BYTES)
        while b"\nintr" not in text and (more := os.read(fd, _HOST_CHUNK_BYTES)):
            text += more
    finally:
        os.close(fd)
    return text
