"""Cache occupancy and memory bandwidth per VM: a monitoring group for each, or another program's group of it."""

import contextlib
import errno
import itertools
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from collector.base import NS_PER_S, Probe, RdtCounters, Reason, SourceError, SourceSample, Stamp, VmIdentity, VmSample
from collector.files import KeptFiles, fd_share, reason_of
from collector.inventory.inventory import Inventory
from collector.resctrl.counters import SETTLE_NS, add_up, unbroken
from collector.resctrl.group_reader import GroupGoneError, GroupReader
from collector.resctrl.threads import Threads, read_groups
from collector.resctrl.tree import PREFIX, Monitoring, Place, Tree
from collector.resctrl.turns import Turns
from collector.resctrl.vms import Vm
from collector.timestamps import read_in_turn

_log = logging.getLogger("whitepanda.resctrl")

#: How often others' groups and members are surveyed, and all threads are listed.
_SURVEY_NS = 5 * NS_PER_S
_PERMISSION_NS = 60 * NS_PER_S
_CLOSE_TRIES, _CLOSE_PAUSE_S = 20, 0.05
_NO_RMID = {errno.ENOSPC, errno.EBUSY}
_UUID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,127}")  # becomes the name of a folder


class ResctrlSource:
    """The resctrl source (`collector.base.Source`). Not safe for use by several threads at once.

    A VM's group is made in each control group of its vCPU threads, and all threads of its QEMU there become members;
    its values are their sums. vCPUs in another program's monitoring group are read in that group.

    There are at most `max_groups` groups of whitepanda's (0: no such bound), and never more than monitoring ids, less
    the others' groups and `reserve_rmids`. With more VMs than groups, each keeps its group for `hold_s` before
    another's turn. At most `max_fds` files are kept open (None: this source's `fd_share`); the others are opened for
    each reading. `clock` is monotonic, in nanoseconds.
    """

    name = "resctrl"

    def __init__(
        self,
        inventory: Inventory,
        *,
        root: str = "/sys/fs/resctrl",
        max_groups: int = 0,
        reserve_rmids: int = 4,
        hold_s: float = 10.0,
        proc_root: str = "/proc",
        tree: Tree | None = None,
        max_fds: int | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._inventory = inventory
        self._tree = Tree(root, proc_root) if tree is None else tree
        self._max_groups = max_groups
        self._reserve_rmids = reserve_rmids
        self._hold_ns = int(hold_s * NS_PER_S)
        self._proc = proc_root
        self._files = KeptFiles(fd_share("resctrl") if max_fds is None else max_fds)
        self._clock = clock
        self._opened = itertools.count(1)
        self._warned: set[str] = set()
        self._stuck: set[Place] = set()  # groups that could not be removed, as was logged
        self._reset()

    def _reset(self) -> None:
        self._vms: dict[str, Vm] = {}
        self._absent: dict[str, Reason] = {}
        self._turns = Turns(self._hold_ns)
        self._monitoring = Monitoring(frozenset(), 0)
        self._doomed: set[Place] = set()
        self._others = 1
        self._survey_at_ns = 0
        self._surveyed = False
        self._kernel_knows = False
        self._where: dict[int, Place] = {}

    def probe(self) -> Probe:
        """Say whether resctrl is there, monitors, and may be used."""
        root = self._tree.root
        try:
            monitoring = self._tree.monitoring()
            if os.geteuid() != 0:
                detail = f"{root}: only root may put others' threads into groups; run the agent by its unit"
                return Probe(False, detail, Reason.NO_PERMISSION)
            self._tree.check_owner()
        except SourceError as error:
            return error.as_probe()
        except OSError as error:
            return Probe(False, f"{root}: {error.strerror}", reason_of(error))
        detail = f"{root}: {', '.join(sorted(monitoring.features))}; {monitoring.num_rmids} monitoring ids"
        if self._tree.read_only:
            detail += "; read-only here, so only VMs that others monitor are read; ReadWritePaths= in the unit"
        return Probe(True, detail)

    def open(self) -> None:
        """Open the tree. Groups are made, and stale ones removed, with the first sample."""
        self.close()
        self._reset()
        self._monitoring = self._tree.monitoring()
        try:
            self._tree.open()
        except OSError as error:
            raise SourceError(f"{self._tree.root}: {error.strerror}", reason_of(error)) from error
        with contextlib.suppress(OSError):  # Linux before 5.7
            self._kernel_knows = read_groups(f"{self._proc}/self") is not None

    def sample(self) -> SourceSample:
        """Update the groups for the VMs, and read them. Raises SourceError."""
        if not self._tree.is_current():
            self.open()
        inventory = self._inventory.vms()
        now_ns = self._clock()
        self._forget({vm.uuid: vm.epoch for vm in inventory})
        try:
            self._follow(inventory, now_ns)
            self._change(now_ns)
            domains = self._tree.domains()
        except OSError as error:
            raise SourceError(f"{error.filename or self._tree.root}: {error.strerror}", reason_of(error)) from error
        begun = Stamp(self._clock(), time.time_ns())  # only now: listing, locks and moves take time
        read = partial(self._sample_vm, domains=domains, now_ns=begun.mono_ns)
        vms = read_in_turn(inventory, read, begun, self._clock)
        return SourceSample(self.name, begun.mono_ns, begun.unix_ns, vms)

    def close(self) -> None:
        """Remove whitepanda's groups and close everything."""
        self._let_go()
        self._tree.close()

    # --- which VMs there are, and where their threads are ---

    def _forget(self, present: Mapping[str, str]) -> None:
        for uuid, vm in list(self._vms.items()):
            if present.get(uuid) != vm.identity.epoch:
                self._drop(vm)
        self._absent.clear()

    def _drop(self, vm: Vm) -> None:
        self._close_readers(vm, all_groups=True)
        self._turns.forget(vm.identity.uuid)
        vm.threads.close()
        del self._vms[vm.identity.uuid]

    def _close_readers(self, vm: Vm, *, all_groups: bool) -> None:
        """Stop reading a VM's own groups, or all; its own are removed with the next change."""
        for place in [place for place in vm.readers if all_groups or place.own]:
            vm.readers.pop(place).close()
            if place.own:
                self._doomed.add(place)
        vm.inside.clear()
        vm.last = {}

    def _follow(self, inventory: tuple[VmIdentity, ...], now_ns: int) -> None:
        due = [vm for identity in inventory if (vm := self._look(identity, now_ns))]
        survey = now_ns >= self._survey_at_ns
        if survey or (due and not self._kernel_knows):
            with self._tree.locked(exclusive=False) as locked:
                if not locked:  # another program is changing the tree: at the next tick
                    for vm in due:
                        vm.look_at_ns = min(vm.look_at_ns, now_ns)
                    return
                if survey:
                    self._survey(now_ns)
                if not self._kernel_knows:
                    self._where = self._tree.all_tasks()
        for vm in due:
            self._place(vm, now_ns)

    def _look(self, identity: VmIdentity, now_ns: int) -> Vm | None:
        """Refresh a VM's threads; returns the VM if they have to be located."""
        try:
            vm = self._known(identity)
            forced = now_ns >= vm.look_at_ns
            changed = vm.threads.refresh(force=forced)
            moved = self._kernel_knows and vm.threads.moved(vm.watched[0])
        except ValueError:
            self._absent[identity.uuid] = Reason.INVALID_VALUE
        except OSError as error:
            self._absent[identity.uuid] = reason_of(error)
            if identity.uuid in self._vms:
                self._drop(self._vms[identity.uuid])
        else:
            return vm if forced or changed or moved else None
        return None

    def _known(self, identity: VmIdentity) -> Vm:
        vm = self._vms.get(identity.uuid)
        if vm is None:
            if not _UUID.fullmatch(identity.uuid):
                raise ValueError(identity.uuid)
            vm = self._vms[identity.uuid] = Vm(identity, Threads(identity.pid, self._proc, self._files))
        if vm.identity.vcpu_tids != identity.vcpu_tids:
            vm.look_at_ns = 0
        vm.identity = identity
        return vm

    def _locate(self, vm: Vm) -> dict[int, Place]:
        if not self._kernel_knows:
            return {tid: self._where.get(tid, Place("")) for tid in vm.threads.tids}
        found = {}
        for tid in vm.threads.tids:
            with contextlib.suppress(OSError):  # it has ended
                if place := read_groups(f"{vm.threads.folder}/{tid}"):
                    found[tid] = place
        return found

    def _place(self, vm: Vm, now_ns: int) -> None:
        first = not vm.look_at_ns
        # Not all VMs in the same tick, unless one walk through the whole tree finds all of them.
        spread_ns = hash(vm.identity.uuid) % _SURVEY_NS if self._kernel_knows else 0
        vm.look_at_ns = now_ns + _SURVEY_NS + spread_ns
        vm.places = self._locate(vm)
        deciding = {vm.places[tid] for tid in vm.watched if tid in vm.places}
        own = frozenset(place.ctrl for place in deciding if not place.mon or place.own)
        foreign = frozenset(place for place in deciding if place.mon and not place.own)
        if own != vm.own:
            self._close_readers(vm, all_groups=False)
            vm.own = own
        vm.inside = {tid for tid, place in vm.places.items() if place == vm.group(place.ctrl)}
        if own:
            had = first and any(place == vm.group(place.ctrl) for place in deciding)
            self._turns.want(vm.identity.uuid, len(own), first=had)
        else:
            self._turns.forget(vm.identity.uuid)
        self._read_foreign(vm, foreign)

    def _read_foreign(self, vm: Vm, foreign: frozenset[Place]) -> None:
        """Open others' groups that the VM is in; note whether other processes are there too."""
        for place in [place for place in vm.readers if not place.own and place not in foreign]:
            vm.readers.pop(place).close()
            vm.opened = next(self._opened)
        vm.foreign = foreign
        vm.shared = False
        for place in foreign:
            try:
                others = self._tree.tasks(place) - vm.threads.tids
                # A thread may be younger than the list.
                vm.shared |= not all(Path(vm.threads.folder, str(tid)).exists() for tid in others)
                if place not in vm.readers:
                    vm.readers[place] = self._reader(place)
                    vm.opened = next(self._opened)
            except (OSError, GroupGoneError) as error:
                vm.look_at_ns = 1
                vm.reason = reason_of(error) if isinstance(error, OSError) else Reason.VM_STARTING

    def _survey(self, now_ns: int) -> None:
        """Count others' groups; find whitepanda's unused ones, such as those of a killed agent."""
        self._survey_at_ns = now_ns + _SURVEY_NS
        places = self._tree.places()
        own = {place for place in places if place.own}
        self._others = len(places) - len(own)
        self._stuck &= own
        used = {place for vm in self._vms.values() for place in vm.readers}
        if not self._surveyed:
            # Groups that an earlier agent left to a living VM are taken over.
            used |= {place for place in own if place.mon.removeprefix(PREFIX) in self._vms}
        self._surveyed = True
        self._doomed |= own - used

    # --- changes, under the lock ---

    @property
    def _cap(self) -> int:
        free = max(0, self._monitoring.num_rmids - self._others - self._reserve_rmids)
        return min(self._max_groups, free) if self._max_groups else free

    def _change(self, now_ns: int) -> None:
        """Remove, make and fill groups, if needed and the tree is not locked."""
        holders = [self._vms[uuid] for uuid in self._turns.holders]
        to_fill = [vm for vm in holders if not vm.complete or vm.to_move()]
        if self._doomed or to_fill or self._turns.next(self._cap, now_ns):
            with self._tree.locked(exclusive=True) as locked:
                if not locked:
                    return
                self._remove_doomed()
                for vm in to_fill:
                    error = self._make_groups(vm)
                    if error is not None:
                        self._not_filled(vm, error, now_ns)
                self._take_turns(now_ns)
        for uuid, vm in self._vms.items():
            if vm.own and vm.reason is Reason.VM_STARTING and uuid not in self._turns.holders:
                vm.reason = Reason.NO_RMID

    def _remove_doomed(self) -> None:
        while self._doomed:
            place = self._doomed.pop()
            try:
                self._tree.remove(place)
            except OSError as error:
                # The next survey finds it again.
                if place not in self._stuck:
                    self._stuck.add(place)
                    _log.warning("%s cannot be removed: %s", self._tree.path(place), error.strerror)

    def _take_turns(self, now_ns: int) -> None:
        while step := self._turns.next(self._cap, now_ns):
            if not step.grant:
                self._release(step.release)
                continue
            vm = self._vms[step.grant]
            error = self._make_groups(vm)
            if step.release and (error is None or getattr(error, "errno", None) == errno.ENOSPC):
                # Without a spare id the other's group has to go first.
                self._release(step.release)
                error = error and self._make_groups(vm)
            if error is None:
                self._turns.granted(step.grant, now_ns)
            else:
                self._not_filled(vm, error, now_ns)

    def _release(self, uuid: str) -> None:
        vm = self._vms[uuid]
        self._turns.released(uuid)
        self._close_readers(vm, all_groups=False)
        vm.reason = Reason.NO_RMID
        self._remove_doomed()

    def _make_groups(self, vm: Vm) -> OSError | GroupGoneError | None:
        """Give a VM its groups and move its threads there; returns why that failed."""
        made = False
        try:
            for ctrl in vm.own:
                made |= self._open_group(vm, vm.group(ctrl))
            for ctrl, tids in vm.to_move().items():
                vm.inside |= self._tree.move(vm.group(ctrl), tids)
        except (OSError, GroupGoneError) as error:
            self._close_readers(vm, all_groups=False)
            self._doomed |= {vm.group(ctrl) for ctrl in vm.own}
            self._remove_doomed()
            return error
        if made:
            vm.opened = next(self._opened)
            vm.last = {}
        return None

    def _not_filled(self, vm: Vm, error: OSError | GroupGoneError, now_ns: int) -> None:
        uuid, pause_ns = vm.identity.uuid, 1
        if isinstance(error, GroupGoneError):
            vm.reason = Reason.VM_STARTING
        elif error.errno in _NO_RMID:
            vm.reason = Reason.NO_RMID
            self._survey_at_ns = 0
            self._turns.refused(uuid, now_ns, all_taken=error.errno == errno.ENOSPC)
            return
        else:
            vm.reason = reason_of(error)
            if vm.reason is Reason.NO_PERMISSION:
                self._warn(f"{self._tree.root}: groups cannot be made or filled: {error.strerror}")
                pause_ns = _PERMISSION_NS
        vm.look_at_ns = 1  # locate it again: its control group may have gone
        self._turns.postponed(uuid, now_ns + pause_ns)

    def _open_group(self, vm: Vm, place: Place) -> bool:
        """Make a group, or take over the one that is there; returns whether this source did not have it."""
        if place in vm.readers:
            return False
        settling = True
        try:
            self._tree.make(place)
        except FileExistsError:
            settling = not vm.inside
        vm.readers[place] = self._reader(place, settled_ns=self._clock() + SETTLE_NS if settling else 0)
        return True

    def _reader(self, place: Place, settled_ns: int = 0) -> GroupReader:
        return GroupReader(self._tree.path(place), self._monitoring.features, self._files, settled_ns=settled_ns)

    def _let_go(self) -> None:
        for vm in list(self._vms.values()):
            self._drop(vm)
        for _ in range(_CLOSE_TRIES if self._doomed else 0):
            try:
                with self._tree.locked(exclusive=True) as locked:
                    if locked:
                        self._remove_doomed()
                        return
            except OSError as error:
                self._warn(f"{self._tree.root}: {error.strerror}")
                return
            time.sleep(_CLOSE_PAUSE_S)
        if self._doomed:
            self._warn(f"{self._tree.root} is locked by another program: whitepanda's groups stay until the next start")

    # --- reading ---

    def _sample_vm(self, identity: VmIdentity, domains: tuple[str, ...], now_ns: int) -> VmSample:
        uuid = identity.uuid
        vm = self._vms.get(uuid)
        if vm is None:
            reason = self._absent.get(uuid, Reason.VM_STARTING)
        elif vm.shared:
            reason = Reason.SHARED
        elif not vm.readers or not vm.complete or not vm.foreign <= vm.readers.keys():
            reason = vm.reason
        elif vm.own and not vm.inside:
            reason = Reason.VM_STARTING  # its threads were just moved elsewhere: its group counts nothing
        else:
            try:
                sample = VmSample(identity.epoch, rdt=self._read(vm, domains, now_ns))
            except GroupGoneError:
                # Another program removed a group: it is made or located again at the next tick.
                self._close_readers(vm, all_groups=True)
                vm.look_at_ns = 1
                reason = vm.reason = Reason.VM_STARTING
            except OSError as error:
                reason = reason_of(error)
            else:
                vm.reason = Reason.VM_STARTING
                return sample
        return VmSample(identity.epoch, absent={"rdt": reason})

    def _read(self, vm: Vm, domains: tuple[str, ...], now_ns: int) -> RdtCounters:
        found = add_up(reader.read(domains, now_ns) for reader in vm.readers.values())
        if not unbroken(vm.last, found, now_ns - vm.last_ns):
            vm.opened = next(self._opened)
        vm.last, vm.last_ns = found, now_ns
        owners = sorted({"whitepanda" if place.own else place.name for place in vm.readers})
        return RdtCounters(vm.opened, found, ", ".join(owners))

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            _log.warning("%s", message)
