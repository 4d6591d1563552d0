"""Cache occupancy and memory bandwidth per VM through Intel's libpqos, for hosts without resctrl.

libpqos (4.5, by the package `pqos`) works in one of two ways. "os": through the kernel's resctrl, a monitoring group
`pqos-<process>-<n>` per VM with all threads of its QEMU. "msr": by the CPU's registers, without the kernel; it knows
CPUs but not threads, so a VM is measured only if its vCPUs are pinned to CPUs that no other VM may use.

The library's side effects are handled here. It makes the control groups COS1, COS2, ... while it starts (removed at the
end), takes threads out of any group (so VMs in others' groups are left alone), reports no failed reading and takes
"Unavailable" for 0 (so a counter that falls is no value). Its reset is never called.
"""

import contextlib
import itertools
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

from collector.base import (
    NS_PER_S,
    Probe,
    RdtCounters,
    RdtDomain,
    Reason,
    SourceError,
    SourceSample,
    Stamp,
    VmIdentity,
    VmSample,
    vm_sample,
)
from collector.inventory.inventory import Inventory
from collector.pqos.library import EVENTS, Leftovers, Library, check_host, load, monitored
from collector.resctrl.counters import SETTLE_NS
from collector.resctrl.threads import Threads
from collector.resctrl.tree import Place, Tree
from collector.timestamps import read_in_turn

_log = logging.getLogger("whitepanda.pqos")

#: libpqos adds up all cache domains.
_DOMAIN = "all"
_UNREAD = (1 << 64) - 1  # not a counter's value: while it is there, the counter was not read
_LOCK = "/var/lock/libpqos"
#: A thread may end and another begin between two checks of their number, so all are listed this often.
_LIST_NS = 5 * NS_PER_S
#: How long no monitoring id is requested after none was free.
_BACK_OFF_NS = 10 * NS_PER_S
#: After this many samples with a counter behind its former value the group is replaced.
_MAX_BEHIND = 5


@dataclass(slots=True)
class _Vm:
    """A VM with a group. `members` are its threads, in "msr" its CPUs."""

    epoch: str
    group: Any
    threads: Threads | None
    members: frozenset[int]
    opened: int
    settled_ns: int  # from when on the occupancy is the members'
    total_bytes: int = 0
    local_bytes: int = 0
    behind: int = 0


class PqosSource:
    """The pqos source (`collector.base.Source`). Not safe for use by several threads at once; one per process.

    `interface` is "os" or "msr", as above. `max_groups` VMs are monitored at once; the others have no monitoring id.
    `root`, `proc_root` and `lock` are fixed in the library, so other values are for tests; `msr` is the registers of
    one CPU. `affinity` returns on which CPUs a thread may run; `clock` is monotonic, in nanoseconds.
    """

    name = "pqos"

    def __init__(
        self,
        inventory: Inventory,
        *,
        interface: Literal["os", "msr"] = "os",
        max_groups: int = 64,
        root: str = "/sys/fs/resctrl",
        proc_root: str = "/proc",
        msr: str = "/dev/cpu/0/msr",
        lock: str = _LOCK,
        affinity: Callable[[int], Collection[int]] = os.sched_getaffinity,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._inventory = inventory
        self._os = interface == "os"
        self._max_groups = max_groups
        self._tree = Tree(root, proc_root)
        self._leftovers = Leftovers(self._tree, proc_root) if interface == "os" else None
        self._proc = proc_root
        self._msr = msr
        self._lock = lock
        self._affinity = affinity
        self._clock = clock
        self._opened = itertools.count(1)
        self._warned: dict[str, set[str]] = {}  # logged messages by UUID
        self._library: Library | None = None
        self._log_file: IO[str] | None = None
        self._events: tuple[str, ...] = ()
        self._vms: dict[str, _Vm] = {}
        self._list_at_ns = 0
        self._start_at_ns = 0
        self._left_alone: dict[str, str] = {}  # in others' groups: epoch by UUID

    def probe(self) -> Probe:
        """Say whether the library is there and finds what it needs, without starting it."""
        try:
            load()
            detail = check_host(self._tree, self._leftovers, self._proc, self._lock, self._msr)
            return Probe(available=True, detail=detail)
        except SourceError as error:
            return error.as_probe()

    def open(self) -> None:
        """Start the library. Raises SourceError if it is missing or does not start."""
        self.close()
        library = load()
        # Without its registers the library would end the process.
        check_host(self._tree, self._leftovers, self._proc, self._lock, self._msr)
        if self._leftovers is not None:
            self._leftovers.note()
        self._log_file = Path(os.devnull).open("w")  # noqa: SIM115 - the library writes to it until its end
        try:
            library.pqos.init("OS" if self._os else "MSR", log_file=self._log_file, verbose="silent")
        except library.error as error:
            self._remove_own()
            self._close_log()
            message = f"libpqos does not start: {error}; `pqos -s` on this host says why"
            raise SourceError(message, Reason.NO_RDT) from error
        self._library = library
        self._events = monitored(library)
        if not self._events:
            self.close()
            message = "libpqos finds no cache or memory bandwidth monitoring on this CPU; nothing to be done"
            raise SourceError(message, Reason.NO_RDT)
        if self._leftovers is not None:
            self._leftovers.remove_stale(vm.pid for vm in self._inventory.vms())

    def sample(self) -> SourceSample:
        """Update the groups for the VMs, and read them. Raises SourceError."""
        if self._library is None:
            self.open()
        inventory = self._inventory.vms()
        now_ns = self._clock()
        self._forget({vm.uuid: vm.epoch for vm in inventory})
        absent = self._follow(inventory, now_ns)
        begun = Stamp(self._clock(), time.time_ns())  # only now: listing and new groups take time
        read = partial(self._sample_vm, absent=absent, now_ns=begun.mono_ns)
        vms = read_in_turn(inventory, read, begun, self._clock)
        return SourceSample(self.name, begun.mono_ns, begun.unix_ns, vms)

    def close(self) -> None:
        """Give up all groups and end the library."""
        for uuid in list(self._vms):
            self._drop(uuid)
        library, self._library = self._library, None
        if library is not None:
            with contextlib.suppress(library.error):
                library.pqos.fini()
            self._remove_own()
        self._close_log()

    def _remove_own(self) -> None:
        if self._leftovers is not None:
            self._leftovers.remove_own()

    def _close_log(self) -> None:
        if self._log_file is not None:
            self._log_file.close()
            self._log_file = None

    # --- groups in step with the VMs ---

    def _forget(self, present: dict[str, str]) -> None:
        for uuid, vm in list(self._vms.items()):
            if present.get(uuid) != vm.epoch:
                self._drop(uuid)
        for uuid in self._warned.keys() - present.keys():
            del self._warned[uuid]

    def _drop(self, uuid: str) -> None:
        vm = self._vms.pop(uuid)
        if vm.threads is not None:
            vm.threads.close()
        if self._library is not None:
            # What it could not remove is removed at the end.
            with contextlib.suppress(self._library.error):
                vm.group.stop()

    def _follow(self, inventory: Iterable[VmIdentity], now_ns: int) -> dict[str, Reason]:
        """Start what is new, follow changes; returns why the VMs without a group have none."""
        list_all = self._is_time_to_list(now_ns)
        absent: dict[str, Reason] = {}
        wanted = self._exclusive_cpus(inventory, absent) if not self._os else {}
        foreign: dict[int, Place] | None = None
        for identity in inventory:
            uuid = identity.uuid
            if uuid in absent:  # not pinned alone, or not any more
                if uuid in self._vms:
                    self._drop(uuid)
                continue
            vm = self._vms.get(uuid)
            if vm is None:
                if self._left_alone.get(uuid) == identity.epoch:
                    absent[uuid] = Reason.RDT_UNAVAILABLE
                    continue
                if not self._may_start(now_ns):
                    absent[uuid] = Reason.NO_RMID
                    continue
            elif self._in_step(vm, wanted.get(uuid), list_all=list_all):
                continue
            if foreign is None:
                foreign = {} if self._leftovers is None else self._leftovers.foreign()
            reason = self._bring_up(identity, vm, wanted.get(uuid), foreign, now_ns)
            if reason is not None:
                absent[uuid] = reason
        return absent

    def _is_time_to_list(self, now_ns: int) -> bool:
        if now_ns < self._list_at_ns:
            return False
        self._list_at_ns = now_ns + _LIST_NS
        if self._may_start(now_ns):
            self._left_alone.clear()
        return True

    def _may_start(self, now_ns: int) -> bool:
        return len(self._vms) < self._max_groups and now_ns >= self._start_at_ns

    @staticmethod
    def _in_step(vm: _Vm, cpus: frozenset[int] | None, *, list_all: bool) -> bool:
        """Whether a VM's threads, or CPUs, are still the group's."""
        if vm.threads is None:
            return vm.members == cpus
        try:
            vm.threads.refresh(force=list_all)
        except OSError:
            return True  # it has ended; the inventory will say so
        return vm.threads.tids == vm.members

    def _bring_up(
        self, identity: VmIdentity, vm: _Vm | None, cpus: frozenset[int] | None, foreign: dict[int, Place], now_ns: int
    ) -> Reason | None:
        """Give a VM its group, or its group the VM's new threads; returns why that failed."""
        library = self._library
        if library is None:
            return Reason.SOURCE_FAILED
        try:
            if vm is not None and vm.threads is not None:
                self._move(vm, vm.threads.tids, foreign)
                return None
            if vm is not None:
                self._drop(identity.uuid)  # on other CPUs now
            return self._start(library, identity, cpus, foreign, now_ns)
        except library.parameter:
            reason = Reason.VM_STARTING  # a thread ended meanwhile
        except library.busy:
            self._start_at_ns = now_ns + _BACK_OFF_NS
            reason = Reason.NO_RMID
        except library.error as error:
            self._warn(identity, f"libpqos does not monitor it: {error}")
            reason = Reason.RDT_UNAVAILABLE
        except OSError:
            reason = Reason.VM_STARTING
        if identity.uuid in self._vms:  # in a failed change the library lost the group
            self._drop(identity.uuid)
        return reason

    def _start(
        self,
        library: Library,
        identity: VmIdentity,
        cpus: frozenset[int] | None,
        foreign: dict[int, Place],
        now_ns: int,
    ) -> Reason | None:
        settled_ns = now_ns + SETTLE_NS
        if cpus is not None:
            group = library.monitor.start(sorted(cpus), list(self._events))
            self._vms[identity.uuid] = _Vm(identity.epoch, group, None, cpus, next(self._opened), settled_ns)
            return None
        threads = Threads(identity.pid, self._proc)
        try:
            threads.refresh()
            place = next((foreign[tid] for tid in threads.tids if tid in foreign), None)
            if place is not None:
                threads.close()
                self._left_alone[identity.uuid] = identity.epoch
                self._warn(identity, f"{place.name} of another program monitors it; use [sources.resctrl]")
                return Reason.RDT_UNAVAILABLE
            group = library.monitor.start_pids([identity.pid], list(self._events))
        except BaseException:
            threads.close()
            raise
        self._vms[identity.uuid] = _Vm(identity.epoch, group, threads, threads.tids, next(self._opened), settled_ns)
        return None

    @staticmethod
    def _move(vm: _Vm, tids: frozenset[int], foreign: dict[int, Place]) -> None:
        gone = sorted(vm.members - tids)
        new = sorted(tid for tid in tids - vm.members if tid not in foreign)
        if gone:
            vm.group.remove_pids(gone)
        if new:
            vm.group.add_pids(new)
        vm.members = tids

    def _exclusive_cpus(self, inventory: Iterable[VmIdentity], absent: dict[str, Reason]) -> dict[str, frozenset[int]]:
        """Return the CPUs of VMs that share them with no other VM; the others go to `absent`."""
        cpus: dict[str, frozenset[int]] = {}
        for identity in inventory:
            with contextlib.suppress(OSError):
                cpus[identity.uuid] = frozenset(cpu for tid in identity.vcpu_tids for cpu in self._affinity(tid))
            if not cpus.get(identity.uuid):
                absent[identity.uuid] = Reason.VM_STARTING
        users = Counter(itertools.chain.from_iterable(cpus.values()))
        absent |= {uuid: Reason.SHARED for uuid, found in cpus.items() if any(users[cpu] > 1 for cpu in found)}
        return {uuid: found for uuid, found in cpus.items() if uuid not in absent}

    # --- reading ---

    def _sample_vm(self, identity: VmIdentity, absent: dict[str, Reason], now_ns: int) -> VmSample:
        vm = self._vms.get(identity.uuid)
        if vm is None or identity.uuid in absent:
            return vm_sample(identity.epoch, rdt=absent.get(identity.uuid, Reason.VM_STARTING))
        found = self._read(identity.uuid, vm, now_ns)
        rdt = found if isinstance(found, Reason) else RdtCounters(vm.opened, {_DOMAIN: found})
        return vm_sample(identity.epoch, rdt=rdt)

    def _read(self, uuid: str, vm: _Vm, now_ns: int) -> RdtDomain | Reason:
        """Read one group, by itself, so that its failure costs no other."""
        library, values = self._library, vm.group.values
        if library is None:
            return Reason.SOURCE_FAILED
        total, local = ("mbm_total", "mbm_local") if self._os else ("mbm_total_delta", "mbm_local_delta")
        names = {"l3_occup": "llc", "tmem_bw": total, "lmem_bw": local}
        for name in names.values():
            setattr(values, name, _UNREAD)
        try:
            library.monitor.poll([vm.group])
        except library.error:
            return Reason.RDT_UNAVAILABLE
        found = {event: getattr(values, names[event]) for event in self._events}
        if _UNREAD in found.values():
            # The registers' next delta would have an unknown beginning.
            vm.opened = vm.opened if self._os else next(self._opened)
            return Reason.RDT_UNAVAILABLE
        if not self._count(vm, found):
            if vm.behind >= _MAX_BEHIND:
                self._drop(uuid)  # another program removed the group: it is made again at the next tick
            return Reason.RDT_UNAVAILABLE
        return self._domain(vm, found, settling=now_ns < vm.settled_ns)

    def _count(self, vm: _Vm, found: dict[str, int]) -> bool:
        """Add what was read to the VM's totals; False where a total would fall."""
        total, local = found.get("tmem_bw", 0), found.get("lmem_bw", 0)
        if not self._os:
            vm.total_bytes, vm.local_bytes = vm.total_bytes + total, vm.local_bytes + local
        elif total < vm.total_bytes or local < vm.local_bytes:
            vm.behind += 1
            return False
        else:
            vm.total_bytes, vm.local_bytes, vm.behind = total, local, 0
        return True

    @staticmethod
    def _domain(vm: _Vm, found: dict[str, int], *, settling: bool) -> RdtDomain:
        """Make the sample. After the start the occupancy is not yet the VM's: `SETTLE_NS`."""
        reason = Reason.UNSPECIFIED if len(found) == len(EVENTS) else Reason.NO_EVENT
        return RdtDomain(
            None if settling else found.get("l3_occup"),
            vm.total_bytes if "tmem_bw" in found else None,
            vm.local_bytes if "lmem_bw" in found else None,
            Reason.VM_STARTING if settling else reason,
        )

    def _warn(self, identity: VmIdentity, message: str) -> None:
        """Log a message once per VM."""
        said = self._warned.setdefault(identity.uuid, set())
        if message not in said:
            said.add(message)
            _log.warning("VM %s: %s", identity.name, message)
