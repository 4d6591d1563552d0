"""Events, for alerts: a VM began or ceased to suffer or to inflict, by `decide_victims`. Nothing here reads a clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.analysis.verdict import Degradation, Evidence
from agent.config import CloudWhiteSection
from agent.detection.decision_types import Analysis, VmVerdict
from agent.sampling.vms import Vm

if TYPE_CHECKING:
    from agent.detection.decision_types import VmDecision


_ACTIVE = frozenset({"inflicting", "affected", "victim"})
_SUFFERS = frozenset({"affected", "victim"})
_MAX_PENDING = 512  # events that wait for a batch


@dataclass(frozen=True, slots=True)
class VmEvent:
    """A VM began or ceased to suffer or to inflict, at `unix_ns`. `lasted_ns`: how long it had been as `before`.

    `degradation`: at that moment; when suffering ends, the worst during it. `culprits`: UUIDs.
    """

    vm: str
    epoch: str
    name: str
    job: str
    latency_sensitive: bool
    unix_ns: int
    behaviour: VmVerdict
    before: VmVerdict
    lasted_ns: int
    reason: str
    evidence: tuple[Evidence, ...] = ()
    degradation: Degradation | None = None
    culprits: tuple[str, ...] = ()
    found_by: tuple[Analysis, ...] = ()


@dataclass(slots=True)
class _Last:
    """The last event of a VM (epoch, name, job, latency-sensitive); the next may come from `next_ns` on."""

    vm: tuple[str, str, str, bool]
    since_ns: int
    verdict: VmVerdict = "unknown"
    next_ns: int = 0
    worst: Degradation | None = None


class Events:
    """Records changes. Single-threaded. `dropped`: events lost because batches did not take them in time."""

    def __init__(self, section: CloudWhiteSection) -> None:
        self._interval_ns = round(section.event_interval_s * 1e9)
        self._reported: dict[str, _Last] = {}
        self._pending: deque[VmEvent] = deque(maxlen=_MAX_PENDING)
        self._recent: deque[VmEvent] = deque(maxlen=section.recent_events)
        self.dropped = 0

    @property
    def waiting(self) -> bool:
        """Whether `take` would return an event."""
        return bool(self._pending)

    def take(self) -> tuple[VmEvent, ...]:
        """Return the events since the last call."""
        events = tuple(self._pending)
        self._pending.clear()
        return events

    def of(self, uuid: str) -> tuple[VmEvent, ...]:
        """Return the last events of a VM, oldest first."""
        return tuple(event for event in self._recent if event.vm == uuid)

    def note(
        self,
        vms: Iterable[tuple[Vm, VmVerdict, Degradation | None]],
        decision: Callable[[str], tuple[VmDecision, tuple[Evidence, ...]]],
        mono_ns: int,
        unix_ns: int,
    ) -> None:
        """Take each VM with its verdict, and its slow-down if it suffers; `decision` returns one with its evidence."""
        seen = set()
        for vm, verdict, slow_down in vms:
            uuid, epoch = vm.identity.uuid, vm.identity.epoch
            seen.add(uuid)
            last = self._reported.get(uuid)
            if last is not None and last.vm[0] != epoch:
                self._end(uuid, last, mono_ns, unix_ns, "the VM was restarted")
                last = None
            if last is None:
                last = _Last((epoch, vm.identity.name, vm.job, vm.latency_sensitive), mono_ns)
                self._reported[uuid] = last
            if last.verdict != verdict:
                if verdict not in _ACTIVE and last.verdict not in _ACTIVE:
                    last.verdict, last.since_ns = verdict, mono_ns
                # A new victim is reported immediately, with its evidence; other changes not before `next_ns`.
                elif verdict == "victim" or mono_ns >= last.next_ns:
                    self._change(last, *decision(uuid), mono_ns, unix_ns)
            if last.verdict in _SUFFERS and verdict in _SUFFERS:
                last.worst = _worse(last.worst, slow_down)
        for uuid in sorted(self._reported.keys() - seen):
            self._end(uuid, self._reported.pop(uuid), mono_ns, unix_ns, "the VM is gone from this host")

    def _change(self, last: _Last, now: VmDecision, evidence: tuple[Evidence, ...], mono_ns: int, unix_ns: int) -> None:
        suffers = now.verdict in _SUFFERS
        since_ns = max(last.since_ns, now.since_ns or mono_ns)
        self._add(
            VmEvent(
                now.uuid,
                *last.vm,
                unix_ns=unix_ns - (mono_ns - since_ns),
                behaviour=now.verdict,
                before=last.verdict,
                lasted_ns=since_ns - last.since_ns,
                reason=now.reason,
                evidence=evidence,
                degradation=now.slow_down if suffers else last.worst,
                culprits=tuple(one.uuid for one in now.suspects if one.is_blamed),
                found_by=now.found_by,
            )
        )
        if not suffers:
            last.worst = None
        elif last.verdict not in _SUFFERS:
            last.worst = now.slow_down
        last.verdict, last.since_ns = now.verdict, since_ns
        last.next_ns = mono_ns + self._interval_ns

    def _end(self, uuid: str, last: _Last, mono_ns: int, unix_ns: int, why: str) -> None:
        if last.verdict in _ACTIVE:
            before, lasted_ns = last.verdict, mono_ns - last.since_ns
            self._add(VmEvent(uuid, *last.vm, unix_ns, "unknown", before, lasted_ns, why, degradation=last.worst))

    def _add(self, event: VmEvent) -> None:
        if len(self._pending) == _MAX_PENDING:
            self.dropped += 1
        self._pending.append(event)
        self._recent.append(event)


def _worse(one: Degradation | None, other: Degradation | None) -> Degradation | None:
    """Return the higher estimate; a known one is worse than an unknown one."""
    if one is None or other is None:
        return one or other
    return other if not one.is_known or other.ratio > one.ratio else one
