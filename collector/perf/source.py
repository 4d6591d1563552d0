"""Hardware counters of every VM: groups that begin with cycles and instructions, guest mode counted."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal

from collector.base import PerfCounters, PerfGroup, Probe, Reason, SourceError, SourceSample, VmIdentity, VmSample
from collector.files import fd_share
from collector.perf.binding import Kernel, PerfError, close_group, open_group, read_group
from collector.perf.encoding import Event
from collector.perf.events import CYCLES_AND_INSTRUCTIONS, Catalog, read_catalog
from collector.perf.host import REMEDIES, PerfHost
from collector.perf.plan import Plan, Trial, basic_plan, beside_base, fit_plan
from collector.perf.scopes import CgroupScope, Scope, ThreadScope
from collector.perf.slices import Slices
from collector.timestamps import clocks_now, read_in_turn

_MAX_BACKOFF_TICKS = 64
_LOOK_AGAIN_TICKS = 30  # how often a VM's control group is found again
_TRIAL_SPINS = 20  # of a millisecond or less each: longer than the kernel's turn of a group on HZ=250 and up


@dataclass(slots=True)
class _Vm:
    epoch: str
    targets: dict[int, Slices] = field(default_factory=dict)
    keys: Sequence[int] = ()
    failure: Reason = Reason.UNSPECIFIED
    backoff_ticks: int = 1
    retry_tick: int = 0


class PerfSource:
    """The perf source (`collector.base.Source`), for use by one thread at a time.

    Each vCPU thread has its own groups (pid = thread id, cpu = -1), or each VM's control group on each CPU (`scope`). A
    VM is `vm_starting` until all its groups are open: a sum over some of its vCPUs would look like a slower VM. If the
    events need several groups, one of them is on per tick, the same for all VMs. Values are raw, see
    `collector.perf.multiplex_scaling`.

    `inventory` returns the VMs that there are now; it is called once per sample. `events` "basic" counts cycles and
    instructions only. `reserve_counters` programmable counters per hardware thread are left to the guests' virtual
    PMUs. At most `opens_per_tick` groups are opened per sample (but one target's at least), and `max_fds` file
    descriptors in all (None: this source's `fd_share`). `catalog` is what the CPU can count (None: read from the host).
    """

    name = "perf"

    def __init__(
        self,
        inventory: Callable[[], Sequence[VmIdentity]],
        *,
        scope: Literal["thread", "cgroup"] = "thread",
        events: Literal["all", "basic"] = "all",
        reserve_counters: int = 2,
        proc_root: str = "/proc",
        sys_root: str = "/sys",
        opens_per_tick: int = 64,
        max_fds: int | None = None,
        kernel: Kernel | None = None,
        catalog: Catalog | None = None,
    ) -> None:
        self._inventory = inventory
        self._events = events
        self._reserve_counters = reserve_counters
        self._roots = proc_root, sys_root
        self._host = PerfHost(proc_root, sys_root)
        self._scope: Scope = ThreadScope(proc_root) if scope == "thread" else CgroupScope(proc_root, sys_root)
        self._opens_per_tick = opens_per_tick
        self._max_fds = fd_share("perf") if max_fds is None else max_fds
        self._kernel = kernel or Kernel()
        self._catalog = catalog
        self._plan: Plan | None = None
        self._vms: dict[str, _Vm] = {}
        self._openings = 0
        self._fds = 0
        self._tick = 0
        self._turn = 0
        self._budget = 0

    def probe(self) -> Probe:
        """Try the groups on the calling thread, and report the result."""
        conflict = self._host.mediated_vpmu()
        if conflict:
            return Probe(
                False,
                f"{conflict} is on: host events that count guests conflict with the guests' virtual PMUs; "
                "load the kvm module with enable_mediated_pmu=0 to have both share the PMU",
                Reason.VPMU_CONFLICT,
            )
        try:
            if isinstance(self._scope, CgroupScope):
                self._scope.check()
            reading = self._count(CYCLES_AND_INSTRUCTIONS)
        except PerfError as error:
            reason = self._host.refine(error)
            return Probe(False, f"{error}; {self._host.remedy(reason, error.errno)}", reason)
        except SourceError as error:
            return Probe(False, f"perf: {error}", error.reason)
        if reading.time_running_ns and not all(reading.counts):
            found = f"hardware counters open but do not count (cycles, instructions: {reading.counts})"
            return Probe(False, f"{found}; {REMEDIES[Reason.NO_PMU]}", Reason.NO_PMU)
        return Probe(True, self._describe(self._make_plan(), busy=not reading.time_running_ns))

    def open(self) -> None:
        """Check that counting is possible and plan the groups; they are opened as VMs are sampled.

        Raises SourceError with the probe's reason.
        """
        found = self.probe()
        if not found.available:
            raise SourceError(found.detail, found.reason)
        self._plan = self._make_plan()

    def sample(self) -> SourceSample:
        """Read the groups of all VMs, after opening and closing what the inventory asks for.

        Raises SourceError if the inventory failed.
        """
        try:
            inventory = self._inventory()
        except (OSError, LookupError, ValueError) as error:
            raise SourceError(f"perf: the list of VMs is not available: {error}") from error
        conflict = self._host.mediated_vpmu()
        if self._plan is None and not conflict:
            self._plan = self._make_plan()
        plan = self._plan or basic_plan(Reason.VPMU_CONFLICT)
        self._tick += 1
        self._turn = self._tick % len(plan.groups)
        self._budget = self._opens_per_tick
        self._forget({vm.uuid: vm.epoch for vm in inventory})
        self._scope.begin()
        begun = clocks_now()  # only now: all that may have taken long
        read = partial(self._sample_vm, plan=plan, open_new=not conflict)
        vms = read_in_turn(inventory, read, begun, time.monotonic_ns)
        return SourceSample(self.name, begun.mono_ns, begun.unix_ns, vms)

    def close(self) -> None:
        """Close all groups."""
        self._forget({})

    # -- one VM ------------------------------------------------------------------------------------

    def _sample_vm(self, identity: VmIdentity, plan: Plan, *, open_new: bool) -> VmSample:
        vm = self._vms.get(identity.uuid)
        if vm is None:
            vm = self._vms[identity.uuid] = _Vm(identity.epoch)
        counters: dict[int, tuple[PerfGroup, ...]] = {}
        try:
            self._keep_up(vm, identity)
            self._read(vm, counters)
            reason = self._open_missing(vm, identity, plan, counters, open_new=open_new)
        except SourceError as error:
            reason = self._failed(vm, error)
        if counters and reason is Reason.UNSPECIFIED:
            perf = PerfCounters(plan.layout, counters, self._scope.name, plan.missing)
            return VmSample(identity.epoch, perf=perf)
        return VmSample(identity.epoch, absent={"perf": reason or Reason.NOT_PRESENT})

    def _keep_up(self, vm: _Vm, identity: VmIdentity) -> None:
        """Close what is no longer the VM's (a vCPU was unplugged, a CPU went offline, its group changed)."""
        keys = self._scope.keys(identity)
        if keys is not vm.keys:
            for key in vm.targets.keys() - set(keys):
                self._drop(vm, key)
            vm.keys = keys
        if self._tick % _LOOK_AGAIN_TICKS == 0:
            try:
                moved = self._scope.moved(identity)
            except SourceError:
                self._close_vm(identity.uuid, vm)
                raise
            if moved:
                self._close_vm(identity.uuid, vm)

    def _read(self, vm: _Vm, counters: dict[int, tuple[PerfGroup, ...]]) -> None:
        """Read what is open, and close what has ended. Raises PerfError."""
        turn, ended = self._turn, self._scope.ended
        gone: list[int] = []
        failure: PerfError | None = None
        for key, target in vm.targets.items():
            try:
                # The clock of events moves only while the thread runs: without `ended` a dead thread would look idle.
                if target.advance(turn) or not ended(target):
                    counters[key] = target.counters
                    continue
            except PerfError as error:
                if not ended(target):
                    failure = error
            gone.append(key)
        for key in gone:
            self._drop(vm, key)
        if failure is not None:
            raise failure

    def _open_missing(
        self, vm: _Vm, identity: VmIdentity, plan: Plan, counters: dict[int, tuple[PerfGroup, ...]], *, open_new: bool
    ) -> Reason:
        """Open what is not open yet. UNSPECIFIED: all that exists is open. Raises SourceError."""
        if len(vm.targets) == len(vm.keys):
            return Reason.UNSPECIFIED if vm.keys else Reason.VM_STARTING
        if not open_new:
            return Reason.VPMU_CONFLICT
        if self._tick < vm.retry_tick:
            return vm.failure
        for key in vm.keys:
            if key in vm.targets:
                continue
            if self._budget <= 0:
                return Reason.VM_STARTING
            target = self._open_target(identity, key, plan)
            if target is not None:
                vm.targets[key] = target
                # Read at once: the next tick then has a delta of it.
                target.advance(self._turn)
                counters[key] = target.counters
        vm.backoff_ticks = 1
        return Reason.UNSPECIFIED

    def _open_target(self, identity: VmIdentity, key: int, plan: Plan) -> Slices | None:
        fds = plan.events + self._scope.guards
        if self._fds + fds > self._max_fds:
            message = f"perf: {self._fds} file descriptors are open and {fds} more go beyond {self._max_fds}"
            raise SourceError(f"{message}; {REMEDIES[Reason.FD_LIMIT]}", Reason.FD_LIMIT)

        def opener(pid: int, cpu: int, flags: int) -> Slices:
            self._budget -= len(plan.groups)
            self._openings += 1
            return Slices(plan, self._openings, pid, cpu, self._turn, kernel=self._kernel, flags=flags)

        target = self._scope.open(identity, key, opener)
        if target is not None:
            self._fds += fds
        return target

    def _failed(self, vm: _Vm, error: SourceError) -> Reason:
        """Note a failure. Retries thin out to one in 64 ticks, so that a hopeless VM takes no other's opens."""
        vm.failure = self._host.refine(error) if isinstance(error, PerfError) else error.reason
        vm.retry_tick = self._tick + vm.backoff_ticks
        vm.backoff_ticks = min(2 * vm.backoff_ticks, _MAX_BACKOFF_TICKS)
        return vm.failure

    def _drop(self, vm: _Vm, key: int) -> None:
        vm.targets.pop(key).close()
        if self._plan is not None:
            self._fds -= self._plan.events + self._scope.guards

    def _close_vm(self, uuid: str, vm: _Vm) -> None:
        for key in list(vm.targets):
            self._drop(vm, key)
        self._scope.forget(uuid)

    def _forget(self, epochs: Mapping[str, str]) -> None:
        for uuid in [uuid for uuid, vm in self._vms.items() if epochs.get(uuid) != vm.epoch]:
            self._close_vm(uuid, self._vms.pop(uuid))

    # -- the plan ----------------------------------------------------------------------------------

    def _make_plan(self) -> Plan:
        """Plan the groups and try them on the calling thread. Never raises; refused events are left out."""
        if self._events == "basic":
            return basic_plan(Reason.SOURCE_OFF)
        catalog = self._known_catalog
        most_beside = beside_base(catalog, self._reserve_counters, watchdog=bool(self._host.watchdog()))
        return fit_plan(catalog, most_beside, self._attempt)

    @cached_property
    def _known_catalog(self) -> Catalog:
        return self._catalog or read_catalog(*self._roots, smt=self._host.smt())

    def _attempt(self, events: Sequence[Event]) -> Trial:
        try:
            reading = self._count(events)
        except PerfError:
            return Trial.REFUSED
        return Trial.RUNS if reading.time_running_ns else Trial.WAITS

    def _count(self, events: Sequence[Event]) -> PerfGroup:
        """Count on the calling thread until the counters have run, for 20 ms at most. Raises PerfError."""
        group = open_group(events, 0, kernel=self._kernel)
        try:
            for _ in range(_TRIAL_SPINS):
                sum(range(10_000))  # something to count
                reading = read_group(group, kernel=self._kernel)
                if reading.time_running_ns:
                    break
            return reading
        finally:
            close_group(group, kernel=self._kernel)

    def _describe(self, plan: Plan, *, busy: bool) -> str:
        names = list(dict.fromkeys(name for group in plan.layout for name in group))
        where = "vCPU thread" if self._scope.name == "thread" else "VM's control group and CPU"
        text = f"{', '.join(names[:-1])} and {names[-1]} per {where}"
        if len(plan.groups) > 1:
            text += f", in {len(plan.groups)} groups by turns"
        if self._events == "all":
            text += f"; {self._known_catalog.title}"
            absent = ", ".join(f"{name} ({reason.code})" for name, reason in plan.missing.items())
            text += f"; not counted: {absent}" if absent else ""
        watchdog = self._host.watchdog()
        if watchdog:
            text += f"; the NMI watchdog {watchdog} a counter (sysctl kernel.nmi_watchdog=0 frees it)"
        return text + ("; all counters are taken by others at this moment" if busy else "")
