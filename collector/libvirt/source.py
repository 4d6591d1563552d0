"""Disk and network counters of the VMs from libvirt, read-only, with as few calls as possible.

VMs, their epochs and states come from libvirt's status files (`collector.inventory.inventory`), which libvirt rewrites
at each change of state before it sends the event. Network counters are read each time, in one call, for VMs that Open
vSwitch does not cover. Disk counters cost libvirtd and QEMU most and are polled slowly, each VM at its own moment of
the period; the last reading is repeated with its own time.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from collector.base import (
    DiskCounters,
    DiskDevice,
    InterfaceCounters,
    Probe,
    Reason,
    SourceError,
    SourceSample,
    Stamp,
    VmIdentity,
    VmSample,
    vm_sample,
)
from collector.inventory.inventory import Inventory
from collector.libvirt.connection import Answer, Connection
from collector.timestamps import Moments, clocks_now

_log = logging.getLogger("whitepanda.libvirt")

# Domains appear before their status file; only a lasting difference is a wrong folder.
_UNKNOWN_SAMPLES = 3
# A reading older than this many polls (and these nanoseconds) is no longer repeated.
_STALE_POLLS = 2.5
_STALE_NS = 5_000_000_000
_PAUSED_PERIODS = 10  # a paused VM's disks are polled in one of this many periods
# The part of the deadline that polling disks may take in one sampling; the rest is due at the next.
_DISK_SHARE = 0.25
# Kinds of interfaces that the host's kernel counts, and of disks that QEMU does not count. "" is unknown.
_COUNTED_INTERFACES = {"", "bridge", "network", "ethernet", "direct"}
_UNCOUNTED_DISKS = {"vhostuser", "vhostvdpa"}

_NEVER = Stamp(0, 0)
_STARTING = {"disks": Reason.VM_STARTING, "interfaces": Reason.VM_STARTING}
# Multiples of the golden section, modulo 1, lie evenly for any number of them.
_GOLDEN = 0.6180339887498949

_Disks = Mapping[str, DiskCounters]
_Interfaces = Mapping[str, InterfaceCounters]


@dataclass(slots=True)
class _DiskPoll:
    """The disks of one VM in one epoch: the last reading, and when the next is due.

    Monotonic nanoseconds; `phase_ns` is the VM's own moment of each period. `paused_ns` is when the disks of the paused
    VM were read; nothing can have changed them since.
    """

    epoch: str
    devices: tuple[DiskDevice, ...]
    due_ns: int
    phase_ns: int
    readings: int = 0
    disks: _Disks | None = None
    stamp: Stamp = _NEVER
    reason: Reason = Reason.VM_STARTING
    said: str = ""
    paused_ns: int | None = None
    late: bool = False

    def is_old(self, mono_ns: int, limit_ns: int) -> bool:
        """Whether the last reading is too old to be repeated or to make a rate."""
        return self.disks is not None and mono_ns - self.stamp.mono_ns > limit_ns

    def take(self, disks: _Disks | None, stamp: Stamp, limit_ns: int) -> None:
        """Note a reading. One that comes too late for a rate, because its call waited, is a first one again."""
        if self.is_old(stamp.mono_ns, limit_ns):
            self.readings = 0
        self.disks, self.stamp = disks, stamp
        self.readings += 1


class LibvirtSource:
    """The libvirt source (`collector.base.Source`). Not safe for use by several threads at once.

    Directions of the interfaces are the guest's: libvirt itself swaps what the host sees of a tap device.

    `probe` waits `deadline_s` for libvirt's answer; disk counters are polled every `disk_poll_s`. Of `clocks` only the
    monotonic one decides anything. The other arguments are `Connection`'s.
    """

    name = "libvirt"

    def __init__(
        self,
        uri: str,
        *,
        inventory: Inventory,
        deadline_s: float = 2.0,
        disk_poll_s: float = 10.0,
        binding: Any = None,
        clocks: Callable[[], Stamp] = clocks_now,
    ) -> None:
        self._uri = uri
        self._inventory = inventory
        self._deadline_s = deadline_s
        self._disk_poll_ns = round(disk_poll_s * 1e9)
        self._stale_ns = max(round(_STALE_POLLS * self._disk_poll_ns), _STALE_NS)
        self._clocks = clocks
        self._connection = Connection(uri, binding, clocks)
        self._prober: threading.Thread | None = None
        self._unknown = 0
        self._phase = 0.0
        self._polls: dict[str, _DiskPoll] = {}
        self._polled: list[VmIdentity] = []  # the VMs of `_polls`
        self._due_ns = 0  # when the first of them is due
        self._made: dict[str, tuple[tuple[object, ...], VmSample]] = {}  # last samples, and what each was made of
        self._moments = Moments()

    def probe(self) -> Probe:
        """Connect, ask for the version and disconnect, in a thread because libvirt may never answer."""
        if self._prober is not None and self._prober.is_alive():
            return self._silent()
        results: list[Probe] = []
        self._prober = threading.Thread(target=lambda: results.append(self._try()), name="libvirt-probe", daemon=True)
        self._prober.start()
        self._prober.join(self._deadline_s)
        return results[0] if results else self._silent()

    def open(self) -> None:
        """Connect, with keep-alive and events."""
        self._connection.open()

    def sample(self) -> SourceSample:
        """Read what is due; connects if needed. Raises SourceError, also where VMs have no status file."""
        now = self._clocks()
        self._connection.open()
        inventory = self._inventory.vms()
        mine = [vm for vm in inventory if vm.by_libvirt]
        self._check_known(mine)
        interfaces = self._read_interfaces(mine, now.mono_ns)
        polled = self._poll_disks(mine, now.mono_ns)
        # VMs started or restored while libvirt answered: the counters may be the former VM's.
        gone: set[str] = set()
        if polled or interfaces:
            before = {vm.uuid: vm.epoch for vm in mine}
            inventory = self._inventory.vms()
            mine = [vm for vm in inventory if vm.by_libvirt]
            gone = {vm.uuid for vm in mine if before.get(vm.uuid) != vm.epoch}
        if len(self._made) > len(mine):
            self._made.clear()
        vms = {
            vm.uuid: VmSample(vm.epoch, absent=_STARTING) if vm.uuid in gone else self._vm(vm, interfaces, now.mono_ns)
            for vm in mine
        }
        return SourceSample(self.name, now.mono_ns, now.unix_ns, vms, inventory=inventory)

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()

    def _silent(self) -> Probe:
        detail = f"{self._uri}: no answer within {self._deadline_s:g} s; is libvirt's daemon hung or stopped?"
        return Probe(available=False, detail=detail, reason=Reason.STUCK)

    def _try(self) -> Probe:
        try:
            version = self._connection.version()
        except SourceError as error:
            return error.as_probe()
        vms = self._inventory.probe()
        return Probe(True, f"{self._uri}, libvirt {version}") if vms.available else vms

    def _check_known(self, mine: list[VmIdentity]) -> None:
        domains = 0 if mine else self._connection.running()
        self._unknown = self._unknown + 1 if domains else 0
        if self._unknown >= _UNKNOWN_SAMPLES:
            remedy = "set sources.libvirt.state_dir to the folder with libvirt's NAME.xml of running VMs"
            raise SourceError(f"{self._uri} runs {domains} VMs, but their status files were not found; {remedy}")

    def _read_interfaces(self, mine: Iterable[VmIdentity], mono_ns: int) -> dict[str, Answer | None]:
        """Read the interfaces of all VMs that no other source covers and the host can count."""
        covers = self._inventory.interfaces_covered.covers
        wanted = [vm.uuid for vm in mine if vm.interfaces and not covers(vm.uuid, vm.epoch, mono_ns) and _countable(vm)]
        return self._connection.statistics(wanted, "INTERFACE") if wanted else {}

    def _poll_disks(self, mine: list[VmIdentity], mono_ns: int) -> bool:
        """Read the disks that are due, each VM's by a call of its own: that costs no more and no VM waits for another.

        A new VM is read at once and again at the next sampling, which makes a rate; from then on once per period. VMs
        whose state or devices changed are read at once. Returns whether any was read.
        """
        touched = self._connection.touched()
        if touched or mine != self._polled:
            self._polls = {vm.uuid: self._poll_of(vm, touched, mono_ns) for vm in mine}
            self._polled = mine
            self._due_ns = mono_ns
            self._moments.keep(self._polls.keys())
        if mono_ns < self._due_ns:
            return False
        polls = self._polls
        due = [vm for vm in mine if polls[vm.uuid].due_ns <= mono_ns and _has_counted_disks(vm)]
        due.sort(key=lambda vm: polls[vm.uuid].due_ns)
        until_ns = mono_ns + round(_DISK_SHARE * self._deadline_s * 1e9)
        for vm in due:
            poll = polls[vm.uuid]
            # Not `mono_ns`: an earlier call may have waited for a stopped daemon or a new connection.
            if poll.is_old(self._clocks().mono_ns, self._stale_ns):
                poll.readings = 0
            self._poll(vm, poll)
            now_ns = self._clocks().mono_ns
            # The caller has given up this sampling and may never see it: a first reading does not count.
            is_late = now_ns - mono_ns > self._deadline_s * 1e9
            if is_late and poll.readings == 1 and not poll.late:
                poll.readings = 0
            poll.late = is_late  # once: a daemon that is always slow is not polled more
            if now_ns > until_ns:
                break
        self._due_ns = min((polls[vm.uuid].due_ns for vm in mine if _has_counted_disks(vm)), default=mono_ns)
        return bool(due)

    def _poll_of(self, vm: VmIdentity, touched: Collection[str], mono_ns: int) -> _DiskPoll:
        """Return a VM's poll, due now if the VM is new or has changed."""
        poll = self._polls.get(vm.uuid)
        if poll is None or poll.epoch != vm.epoch:
            self._phase = (self._phase + _GOLDEN) % 1.0  # spreads any number of VMs evenly over the period
            return _DiskPoll(vm.epoch, vm.disks, mono_ns, int(self._phase * self._disk_poll_ns))
        if vm.uuid in touched or poll.devices != vm.disks:
            poll.devices, poll.due_ns, poll.paused_ns = vm.disks, mono_ns, None
        if vm.state != "paused":
            poll.paused_ns = None
        return poll

    def _poll(self, vm: VmIdentity, poll: _DiskPoll) -> None:
        if self._stands_still(vm, poll):
            return
        answers = self._connection.statistics([vm.uuid], "BLOCK")
        stamp = self._clocks()
        poll.due_ns = self._next_due_ns(poll, stamp.mono_ns)
        if vm.uuid not in answers:
            poll.due_ns = stamp.mono_ns  # libvirt does not know it (yet)
            return
        answer = answers[vm.uuid]
        record = None if answer is None else answer.record
        said = ""
        try:
            disks = None if record is None else parse_disks(record)
        except (KeyError, TypeError) as error:
            poll.disks, poll.reason, said = None, Reason.INVALID_VALUE, f"libvirt's record lacks {error}"
        else:
            missing = {device.target for device in vm.disks} - disks.keys() if disks else set()
            if missing:
                poll.disks, poll.reason = None, Reason.NOT_PRESENT
                said = f"libvirt reports nothing of {', '.join(sorted(missing))}"
            elif disks or (record is not None and record.get("block.count") == 0):
                poll.take(disks, stamp, self._stale_ns)
                poll.paused_ns = stamp.mono_ns if vm.state == "paused" else None
                if poll.readings == 1:
                    poll.due_ns = stamp.mono_ns
            elif record is not None:
                # Another call holds the VM (a migration, a save), so libvirt did not ask QEMU: try again soon.
                poll.due_ns = stamp.mono_ns
                poll.reason = Reason.STALE
            else:
                poll.disks, poll.reason, said = None, Reason.SOURCE_FAILED, "libvirt cannot read them"
        if said and said != poll.said:
            _log.warning("%s: no disk counters: %s", vm.name, said)
        poll.said = said

    def _stands_still(self, vm: VmIdentity, poll: _DiskPoll) -> bool:
        """Whether the last reading is known to be still true; it then has this moment.

        QEMU ends all I/O of a guest before it reports it as paused. To be safe a paused VM is polled now and then.
        """
        if vm.state != "paused" or poll.paused_ns is None or poll.readings <= 1 or poll.disks is None:
            return False
        now = self._clocks()
        if now.mono_ns - poll.paused_ns >= _PAUSED_PERIODS * self._disk_poll_ns:
            return False
        poll.stamp = now
        poll.due_ns = self._next_due_ns(poll, now.mono_ns)
        return True

    def _next_due_ns(self, poll: _DiskPoll, mono_ns: int) -> int:
        """Return the VM's next moment after `mono_ns`."""
        return mono_ns - (mono_ns - poll.phase_ns) % self._disk_poll_ns + self._disk_poll_ns

    def _vm(self, vm: VmIdentity, answers: Mapping[str, Answer | None], mono_ns: int) -> VmSample:
        """Return a VM's sample: the last one again if all that it is made of is the same."""
        poll = self._polls[vm.uuid]
        is_covered = self._inventory.interfaces_covered.covers(vm.uuid, vm.epoch, mono_ns)
        if answers or poll.is_old(mono_ns, self._stale_ns):
            return self._make(vm, answers, mono_ns, is_covered=is_covered)
        parts = (vm, poll, poll.disks, poll.stamp, poll.reason, is_covered)
        made = self._made.get(vm.uuid)
        if made is None or made[0] != parts:
            made = self._made[vm.uuid] = (parts, self._make(vm, answers, mono_ns, is_covered=is_covered))
        return made[1]

    def _make(
        self, vm: VmIdentity, answers: Mapping[str, Answer | None], mono_ns: int, *, is_covered: bool
    ) -> VmSample:
        disks = self._disks(vm, mono_ns)
        stamps = {"disks": self._polls[vm.uuid].stamp} if vm.disks and not isinstance(disks, Reason) else {}
        interfaces = _interfaces(vm, answers)
        answer = answers.get(vm.uuid)
        if answer is not None and not isinstance(interfaces, Reason):
            if self._moments.accept(vm.uuid, answer.asked_ns, answer.stamp.mono_ns):
                stamps["interfaces"] = answer.stamp
            else:
                interfaces = Reason.STALE
        if interfaces is None and not is_covered:
            interfaces = Reason.VM_STARTING
        return vm_sample(vm.epoch, stamps, disks=disks, interfaces=interfaces)

    def _disks(self, vm: VmIdentity, mono_ns: int) -> _Disks | Reason:
        if not vm.disks:
            return {}
        if not _has_counted_disks(vm):
            return Reason.NOT_VISIBLE
        poll = self._polls[vm.uuid]
        if poll.disks is None:
            return poll.reason
        return Reason.STALE if poll.is_old(mono_ns, self._stale_ns) else poll.disks


def _has_counted_disks(vm: VmIdentity) -> bool:
    return bool(vm.disks) and all(device.kind not in _UNCOUNTED_DISKS for device in vm.disks)


def parse_disks(record: Mapping[str, Any]) -> dict[str, DiskCounters]:
    """Return a record's disks with counters, by target name (`vda`). An empty drive has none."""
    keys = ("rd.bytes", "wr.bytes", "rd.reqs", "wr.reqs")
    disks = [f"block.{index}" for index in range(record.get("block.count", 0))]
    return {
        record[f"{disk}.name"]: DiskCounters(*(record[f"{disk}.{key}"] for key in keys))
        for disk in disks
        if f"{disk}.rd.bytes" in record
    }


def parse_interfaces(record: Mapping[str, Any]) -> dict[str, InterfaceCounters]:
    """Return a record's interfaces with counters, by host device (`vnet0`)."""
    devices = [f"net.{index}" for index in range(record.get("net.count", 0))]
    return {
        record[f"{device}.name"]: InterfaceCounters(
            record[f"{device}.rx.bytes"],
            record[f"{device}.tx.bytes"],
            record[f"{device}.rx.pkts"],
            record[f"{device}.tx.pkts"],
            record.get(f"{device}.rx.drop"),
            record.get(f"{device}.tx.drop"),
        )
        for device in devices
        if f"{device}.rx.bytes" in record
    }


def _interfaces(vm: VmIdentity, answers: Mapping[str, Answer | None]) -> _Interfaces | Reason | None:
    """Return a VM's interfaces, or why there are none; None: libvirt was not asked or does not know the VM."""
    if not vm.interfaces:
        return {}
    if vm.uuid not in answers:
        return None if _countable(vm) else Reason.NOT_VISIBLE
    answer = answers[vm.uuid]
    if answer is None:
        return Reason.SOURCE_FAILED
    try:
        found = parse_interfaces(answer.record)
    except (KeyError, TypeError):
        return Reason.INVALID_VALUE
    expected = {device.device for device in vm.interfaces if device.device}
    # A sum without one of them would look like a quieter VM.
    return Reason.NOT_PRESENT if len(found) < len(vm.interfaces) or expected - found.keys() else found


def _countable(vm: VmIdentity) -> bool:
    """Whether the host counts all interfaces of a VM: the sum without one of them would be wrong."""
    return all(device.kind in _COUNTED_INTERFACES for device in vm.interfaces)
