"""Events: a VM began or ceased to suffer or to inflict, as `decisions` holds it. Nothing here reads a clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.config import CloudWhiteSection
from agent.detection.verdicts import Analysis, Degradation, Held, Shown
from agent.sampling.vms import Vm

if TYPE_CHECKING:
    from agent.antagonists.vm_decision import VmDecision


_ACTIVE = frozenset({"inflicting", "affected", "victim"})
_SUFFERS = frozenset({"affected", "victim"})
_MAX_PENDING = 512  # events that wait for a batch


@dataclass(frozen=True, slots=True)
class VmEvent:
    """A VM began or ceased to suffer or to inflict, at `unix_ns`. `lasted_ns`: how long it had been as `before`.

    `degradation` is that of the moment, or, where a VM suffers no more, the worst while it did. `culprits`: UUIDs.
    """

    vm: str
    epoch: str
    name: str
    job: str
    latency_sensitive: bool
    unix_ns: int
    behaviour: Held
    before: Held
    lasted_ns: int
    reason: str
    evidence: tuple[Shown, ...] = ()
    degradation: Degradation | None = None
    culprits: tuple[str, ...] = ()
    found_by: tuple[Analysis, ...] = ()


@dataclass(slots=True)
class _Told:
    """What of a VM was told last, and may be told again from `next_ns` on."""

    epoch: str
    name: str
    job: str
    latency_sensitive: bool
    verdict: Held
    since_ns: int
    next_ns: int = 0
    worst: Degradation | None = None


class Events:
    """Notes what changes. Single-threaded.

    Args:
        section: how often a VM's changes are told, and how many are kept.

    Attributes:
        dropped: events that were lost because central's batches did not take them in time.

    """

    def __init__(self, section: CloudWhiteSection) -> None:
        self._interval_ns = round(section.event_interval_s * 1e9)
        self._told: dict[str, _Told] = {}
        self._pending: deque[VmEvent] = deque(maxlen=_MAX_PENDING)
        self._recent: deque[VmEvent] = deque(maxlen=section.recent_events)
        self.dropped = 0

    @property
    def waiting(self) -> bool:
        """Whether `take` has something to give."""
        return bool(self._pending)

    def take(self) -> tuple[VmEvent, ...]:
        """Return what began or ended since the last call."""
        events = tuple(self._pending)
        self._pending.clear()
        return events

    def of(self, uuid: str) -> tuple[VmEvent, ...]:
        """Return the last events of a VM, oldest first."""
        return tuple(event for event in self._recent if event.vm == uuid)

    def note(
        self,
        vms: Iterable[tuple[Vm, Held, Degradation | None]],
        decision: Callable[[str], tuple[VmDecision, tuple[Shown, ...]]],
        mono_ns: int,
        unix_ns: int,
    ) -> None:
        """Take what is held of all VMs.

        Args:
            vms: each VM that is here, its verdict, and its slow-down where it suffers.
            decision: gives the decision on one of them, with the signals that speak for it.
            mono_ns: the monotonic clock now.
            unix_ns: the wall clock now.

        """
        seen = set()
        for vm, verdict, slow_down in vms:
            identity = vm.identity
            uuid = identity.uuid
            seen.add(uuid)
            told = self._told.get(uuid)
            if told is not None and told.epoch != identity.epoch:
                self._end(uuid, told, mono_ns, unix_ns, "the VM was started anew")
                told = None
            if told is None:
                told = _Told(identity.epoch, identity.name, vm.job, vm.latency_sensitive, "unknown", mono_ns)
                self._told[uuid] = told
            if told.verdict != verdict:
                if verdict not in _ACTIVE and told.verdict not in _ACTIVE:
                    told.verdict, told.since_ns = verdict, mono_ns
                # Who becomes a victim is said at once: with what made it one, and no more often than the end of it.
                elif verdict == "victim" or mono_ns >= told.next_ns:
                    self._change(told, *decision(uuid), mono_ns, unix_ns)
            if told.verdict in _SUFFERS and verdict in _SUFFERS:
                told.worst = _worse(told.worst, slow_down)
        for uuid in sorted(self._told.keys() - seen):
            self._end(uuid, self._told.pop(uuid), mono_ns, unix_ns, "the VM is gone from this host")

    def _change(self, told: _Told, now: VmDecision, evidence: tuple[Shown, ...], mono_ns: int, unix_ns: int) -> None:
        suffers = now.verdict in _SUFFERS
        since_ns = max(told.since_ns, now.since_ns or mono_ns)
        self._tell(
            VmEvent(
                vm=now.uuid,
                epoch=told.epoch,
                name=told.name,
                job=told.job,
                latency_sensitive=told.latency_sensitive,
                unix_ns=unix_ns - (mono_ns - since_ns),
                behaviour=now.verdict,
                before=told.verdict,
                lasted_ns=since_ns - told.since_ns,
                reason=now.reason,
                evidence=evidence,
                degradation=now.slow_down if suffers else told.worst,
                culprits=tuple(one.uuid for one in now.suspects if one.is_blamed),
                found_by=now.found_by,
            )
        )
        if not suffers:
            told.worst = None
        elif told.verdict not in _SUFFERS:
            told.worst = now.slow_down
        told.verdict, told.since_ns = now.verdict, since_ns
        told.next_ns = mono_ns + self._interval_ns

    def _end(self, uuid: str, told: _Told, mono_ns: int, unix_ns: int, why: str) -> None:
        if told.verdict in _ACTIVE:
            lasted_ns = mono_ns - told.since_ns
            whose = (uuid, told.epoch, told.name, told.job, told.latency_sensitive)
            self._tell(VmEvent(*whose, unix_ns, "unknown", told.verdict, lasted_ns, why, degradation=told.worst))

    def _tell(self, event: VmEvent) -> None:
        if len(self._pending) == _MAX_PENDING:
            self.dropped += 1
        self._pending.append(event)
        self._recent.append(event)


def _worse(one: Degradation | None, other: Degradation | None) -> Degradation | None:
    """Return the higher estimate; one that can be told is worse than one that cannot."""
    if one is None or other is None:
        return one or other
    return other if not one.is_known or other.ratio > one.ratio else one
