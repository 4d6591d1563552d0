"""Hardware counters of every vCPU thread: one group of cycles and instructions each, guest mode counted."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collector.base import (
    PerfCounters,
    PerfGroup,
    Probe,
    Reason,
    SourceError,
    SourceSample,
    VmIdentity,
    VmSample,
)
from collector.perf.binding import (
    Group,
    GroupReading,
    Kernel,
    PerfError,
    close_group,
    open_group,
    read_group,
    reason_for,
)
from collector.perf.events import CYCLES_AND_INSTRUCTIONS

__all__ = ["PerfSource"]

_CAP_SYS_ADMIN = 21
_CAP_PERFMON = 38
_PARANOID_ALLOWS_ALL_THREADS = (
    1  # the highest level at which the kernel's own work may be counted without a capability
)
_MAX_BACKOFF_TICKS = 64
_DEAD_STATES = "ZXx"
_LAYOUT = (tuple(event.name for event in CYCLES_AND_INSTRUCTIONS),)

_REMEDIES = {
    Reason.NO_PMU: (
        "this CPU shows no hardware counters; on a virtual machine enable its virtual PMU "
        "(libvirt: <features><pmu state='on'/></features>)"
    ),
    Reason.NO_PERMISSION: (
        "give the agent CAP_PERFMON, and see that no seccomp filter or security module forbids perf_event_open"
    ),
    Reason.FD_LIMIT: "raise the agent's LimitNOFILE; three file descriptors per vCPU are needed",
    Reason.VPMU_CONFLICT: "another owner holds the PMU; the guests' virtual PMUs have precedence",
}


@dataclass(slots=True)
class _Thread:
    """The open group of one vCPU thread.

    `stat_fd` is the thread's own /proc file. It is bound to the thread and not to its number: it fails when
    the thread has ended, though another may bear the number by then.
    """

    group: Group
    opened: int
    stat_fd: int
    start_ticks: int
    last_enabled_ns: int = -1


@dataclass(slots=True)
class _Vm:
    epoch: str
    threads: dict[int, _Thread] = field(default_factory=dict)
    failure: Reason = Reason.UNSPECIFIED
    backoff_ticks: int = 1
    retry_tick: int = 0


class PerfSource:
    """The perf source (`collector.base.Source`).

    Each vCPU thread has a group of its own (pid = thread id, cpu = -1). New groups are opened a few per tick;
    a VM is `vm_starting` until all of its threads have theirs, since the sum over some of its vCPUs would
    look like a slower VM. Values are raw: `collector.perf.scale` scales their deltas. Not safe for use by
    several threads at once.

    Args:
        inventory: the VMs that there are now; called once per sample.
        proc_root: where /proc is.
        sys_root: where /sys is.
        opens_per_tick: at most this many groups are opened per sample.
        kernel: the system calls.

    """

    name = "perf"

    def __init__(
        self,
        inventory: Callable[[], Sequence[VmIdentity]],
        *,
        proc_root: str = "/proc",
        sys_root: str = "/sys",
        opens_per_tick: int = 64,
        kernel: Kernel | None = None,
    ) -> None:
        self._inventory = inventory
        self._proc = Path(proc_root)
        self._sys = Path(sys_root)
        self._opens_per_tick = opens_per_tick
        self._kernel = kernel or Kernel()
        self._vms: dict[str, _Vm] = {}
        self._openings = 0
        self._tick = 0
        self._budget = 0

    def probe(self) -> Probe:
        """Open, run and close a group on the calling thread, and say what came of it."""
        conflict = self._mediated_vpmu()
        if conflict:
            return Probe(
                False,
                f"{conflict} is on: host events that count guests conflict with the guests' virtual PMUs; "
                "load the kvm module with enable_mediated_pmu=0 to have both share the PMU",
                Reason.VPMU_CONFLICT,
            )
        try:
            reading = self._trial()
        except PerfError as error:
            reason = self._refine(error)
            return Probe(False, f"{error}; {self._remedy(reason, error.errno)}", reason)
        if reading.time_running_ns and not all(reading.values):
            found = f"hardware counters open but do not count (cycles, instructions: {reading.values})"
            return Probe(False, f"{found}; {_REMEDIES[Reason.NO_PMU]}", Reason.NO_PMU)
        busy = "" if reading.time_running_ns else "; all counters are taken by others at this moment"
        return Probe(True, f"cycles and instructions per vCPU thread{busy}")

    def open(self) -> None:
        """Check that counting is possible; groups are opened as VMs are sampled.

        Raises:
            SourceError: what `probe` said, with its reason.

        """
        found = self.probe()
        if not found.available:
            raise SourceError(found.detail, found.reason)

    def sample(self) -> SourceSample:
        """Read the groups of all VMs, after opening and closing what the inventory asks for.

        Raises:
            SourceError: the inventory failed.

        """
        mono_ns, unix_ns = time.monotonic_ns(), time.time_ns()
        try:
            inventory = self._inventory()
        except (OSError, LookupError, ValueError) as error:
            raise SourceError(f"perf: the list of VMs is not to be had: {error}") from error
        self._tick += 1
        self._budget = self._opens_per_tick
        self._forget({vm.uuid: vm.epoch for vm in inventory})
        conflict = self._mediated_vpmu()
        vms = {vm.uuid: self._sample_vm(vm, open_new=not conflict) for vm in inventory}
        return SourceSample(self.name, mono_ns, unix_ns, vms)

    def close(self) -> None:
        """Close all groups."""
        self._forget({})

    # -- one VM ------------------------------------------------------------------------------------

    def _sample_vm(self, identity: VmIdentity, *, open_new: bool) -> VmSample:
        vm = self._vms.setdefault(identity.uuid, _Vm(identity.epoch))
        wanted = set(identity.vcpu_tids)
        for tid in [tid for tid in vm.threads if tid not in wanted]:
            self._drop(vm, tid)
        counters: dict[int, tuple[PerfGroup, ...]] = {}
        try:
            for tid in list(vm.threads):
                read = self._read(vm, tid)
                if read is not None:
                    counters[tid] = (read,)
            reason = self._open_missing(vm, identity, open_new=open_new)
        except SourceError as error:
            reason = self._failed(vm, error)
        if reason is Reason.UNSPECIFIED:
            # A thread that has just been opened is read now: the next tick then has a delta of it.
            for tid in [tid for tid in vm.threads if tid not in counters]:
                with contextlib.suppress(PerfError):
                    counters[tid] = (self._counters(vm.threads[tid]),)
            if counters:
                return VmSample(identity.epoch, perf=PerfCounters(_LAYOUT, counters))
            reason = Reason.NOT_PRESENT
        return VmSample(identity.epoch, absent={"perf": reason})

    def _open_missing(self, vm: _Vm, identity: VmIdentity, *, open_new: bool) -> Reason:
        """Open what is not open yet. UNSPECIFIED: every thread that exists is open. Raises SourceError."""
        missing = [tid for tid in identity.vcpu_tids if tid not in vm.threads]
        if not missing:
            return Reason.UNSPECIFIED if vm.threads else Reason.VM_STARTING
        if not open_new:
            return Reason.VPMU_CONFLICT
        if self._tick < vm.retry_tick:
            return vm.failure
        for tid in missing:
            if self._budget <= 0:
                return Reason.VM_STARTING
            self._open_thread(vm, identity.pid, tid)
        vm.backoff_ticks = 1
        return Reason.UNSPECIFIED

    def _failed(self, vm: _Vm, error: SourceError) -> Reason:
        """Note a failure. Retries thin out to one in 64 ticks, so a hopeless VM takes no other's opens."""
        vm.failure = self._refine(error) if isinstance(error, PerfError) else error.reason
        vm.retry_tick = self._tick + vm.backoff_ticks
        vm.backoff_ticks = min(2 * vm.backoff_ticks, _MAX_BACKOFF_TICKS)
        return vm.failure

    # -- one thread --------------------------------------------------------------------------------

    def _open_thread(self, vm: _Vm, pid: int, tid: int) -> None:
        """Open a thread's group; a thread that has ended is no failure, it is left out.

        The order makes it certain whose events these are: the /proc file is opened below the VM's own process
        before the group and read again after it, so the number meant the same thread throughout.
        """
        if tid <= 0:  # the kernel would take 0 for the agent itself and -1 for every thread
            raise SourceError(f"perf: not a thread id (value {tid})", Reason.INVALID_VALUE)
        path = self._proc / str(pid) / "task" / str(tid) / "stat"
        group = None
        try:
            stat_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                start_ticks = _start_ticks(stat_fd)
                self._budget -= 1
                group = open_group(CYCLES_AND_INSTRUCTIONS, tid, kernel=self._kernel)
                if _start_ticks(stat_fd) == start_ticks:
                    self._openings += 1
                    vm.threads[tid] = _Thread(group, self._openings, stat_fd, start_ticks)
            finally:
                if tid not in vm.threads:
                    os.close(stat_fd)
                    if group is not None:
                        close_group(group, kernel=self._kernel)
        except PerfError as error:
            if error.reason is not Reason.NOT_PRESENT:
                raise
        except (FileNotFoundError, ProcessLookupError):
            pass
        except (OSError, ValueError) as error:
            number = error.errno if isinstance(error, OSError) else None
            reason = reason_for(number) if number else Reason.SOURCE_FAILED
            raise SourceError(f"perf: {path}: {error}", reason) from error

    def _read(self, vm: _Vm, tid: int) -> PerfGroup | None:
        """Read a thread's counters. None: the thread has ended, and its group is closed. Raises PerfError."""
        thread = vm.threads[tid]
        previous_enabled_ns = thread.last_enabled_ns
        try:
            counters = self._counters(thread)
        except PerfError:
            ended = self._ended(thread)
            self._drop(vm, tid)
            if ended:
                return None
            raise
        # The events' clock moves only while the thread runs, and an ended thread's counters stand still for
        # ever: without this look it would pass for an idle one.
        if counters.time_enabled_ns == previous_enabled_ns and self._ended(thread):
            self._drop(vm, tid)
            return None
        return counters

    def _counters(self, thread: _Thread) -> PerfGroup:
        reading = read_group(thread.group, kernel=self._kernel)
        thread.last_enabled_ns = reading.time_enabled_ns
        return PerfGroup(thread.opened, reading.time_enabled_ns, reading.time_running_ns, reading.values)

    @staticmethod
    def _ended(thread: _Thread) -> bool:
        try:
            return _start_ticks(thread.stat_fd) != thread.start_ticks
        except (OSError, ValueError):
            return True

    def _drop(self, vm: _Vm, tid: int) -> None:
        thread = vm.threads.pop(tid)
        close_group(thread.group, kernel=self._kernel)
        with contextlib.suppress(OSError):
            os.close(thread.stat_fd)

    def _forget(self, epochs: Mapping[str, str]) -> None:
        """Close the groups of VMs that are gone or in another epoch."""
        for uuid in [uuid for uuid, vm in self._vms.items() if epochs.get(uuid) != vm.epoch]:
            vm = self._vms.pop(uuid)
            for tid in list(vm.threads):
                self._drop(vm, tid)

    # -- the host ----------------------------------------------------------------------------------

    def _trial(self) -> GroupReading:
        group = open_group(CYCLES_AND_INSTRUCTIONS, 0, kernel=self._kernel)
        try:
            sum(range(10_000))  # something to count
            return read_group(group, kernel=self._kernel)
        finally:
            close_group(group, kernel=self._kernel)

    def _paranoid(self) -> int | None:
        """Return kernel.perf_event_paranoid; None where it cannot be read, as in a sandbox without /proc/sys."""
        try:
            return int((self._proc / "sys/kernel/perf_event_paranoid").read_text())
        except (OSError, ValueError):
            return None

    def _mediated_vpmu(self) -> str:
        """Return the kvm parameter that is on, such as "kvm_intel.enable_mediated_pmu", or "".

        With a mediated PMU the kernel refuses guests their PMU (EBUSY) while the host has events that count
        guests.
        """
        for module in ("kvm_intel", "kvm_amd", "kvm"):
            with contextlib.suppress(OSError):
                value = (self._sys / "module" / module / "parameters/enable_mediated_pmu").read_text()
                if value.strip() in ("Y", "1"):
                    return f"{module}.enable_mediated_pmu"
        return ""

    def _has_capability(self) -> bool:
        """Whether this process has CAP_PERFMON or CAP_SYS_ADMIN (unknown counts as no)."""
        try:
            status = (self._proc / "self/status").read_text()
            effective = int(status.partition("\nCapEff:")[2].split()[0], 16)
        except (OSError, ValueError, IndexError):
            return False
        return bool(effective & (1 << _CAP_PERFMON | 1 << _CAP_SYS_ADMIN))

    def _refine(self, error: PerfError) -> Reason:
        """Tell a refusal by kernel.perf_event_paranoid from any other refusal."""
        if error.reason is Reason.NO_PERMISSION:
            paranoid = self._paranoid()
            if (
                paranoid is not None
                and paranoid > _PARANOID_ALLOWS_ALL_THREADS
                and not self._has_capability()
            ):
                return Reason.PARANOID
        return error.reason

    def _remedy(self, reason: Reason, number: int) -> str:
        if number == errno.ENOSYS:
            return (
                "the kernel is built without CONFIG_PERF_EVENTS, or a seccomp filter forbids perf_event_open"
            )
        if reason is Reason.PARANOID:
            return (
                f"kernel.perf_event_paranoid is {self._paranoid()}; give the agent CAP_PERFMON "
                f"or set it to {_PARANOID_ALLOWS_ALL_THREADS}"
            )
        return _REMEDIES.get(reason, "see perf_event_open(2) for this error")


def _start_ticks(stat_fd: int) -> int:
    """Return when the thread of this open /proc stat file started, in clock ticks since boot.

    Raises:
        ProcessLookupError: the thread has ended.
        ValueError: not a stat file.

    """
    text = os.pread(stat_fd, 1024, 0)
    # The thread's name, in parentheses, may hold spaces and parentheses itself.
    fields = text.rpartition(b")")[2].split()
    if len(fields) < 20:  # noqa: PLR2004 - field 22 of proc(5), counted from the state, field 3
        raise ValueError(f"not a stat file: {text[:60]!r}")
    if fields[0].decode() in _DEAD_STATES:
        raise ProcessLookupError
    return int(fields[19])
