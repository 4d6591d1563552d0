"""The one decision on each VM, and on the host, from both analyses; every view, event and report shows it.

A VM that suffers by either analysis is a *victim* if the lower end of an estimate of its slow-down is above
`analysis.least_slow_down`; it stays one while it suffers and the estimate itself is above that. Without an estimate the
evidence of the analysis decides. Else it is *affected*, as is a VM without alerts: shown, without an alert.

No loop and no disk: the daemon calls `tick`, and sends what `events.take` and `report` return.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agent.analysis.verdict import Degradation, Verdict
from agent.antagonists.reports import Trigger, Triggers, TriggerVictim
from agent.antagonists.vm_events import Events
from agent.config import AgentConfig
from agent.detection.decision_types import (
    BEHAVIOUR_CODES,
    Analysis,
    HostDecision,
    SuspectView,
    VmDecision,
    VmVerdict,
    is_running,
)
from agent.sampling.metric_table import Value
from agent.sampling.vms import Vm
from agent.sampling.windows import CpiWindow
from collector.base import Reason
from whitepanda.common.protocol import or_nan

if TYPE_CHECKING:
    from agent.antagonists.host_analysis import HostAnalysis
    from agent.detection.cloud_white import CloudWhite


#: After the model stops estimating: how long the last estimate counts for the verdict, and how long it is shown.
_ESTIMATE_NS = 30 * 10**9
_SHOWN_NS = 5 * 10**9
_SLOW_DOWN = ("slow_down_ratio", "slow_down_low_ratio", "slow_down_high_ratio")
_OFF = Verdict("unknown", "the host's own analysis is off", 0)


def verdict_of(
    behaviour: VmVerdict, known: Sequence[Degradation] | None, least: float, *, alert: bool, was: VmVerdict
) -> VmVerdict:
    """Return the verdict on a VM.

    A victim stays one while an estimate itself is above `least`: the lower end of an interval moves with each second's
    noise, and an alert must not end before the slow-down does. `behaviour`: the verdict if no analysis finds that it
    suffers; `known`: known slow-downs by those that do, None: none does; `alert`: whether it may be a victim.
    """
    if known is None:
        return behaviour
    is_sure = not known or any(one.low > least for one in known)
    stays = was == "victim" and any(one.ratio > least for one in known)
    return "victim" if alert and (is_sure or stays) else "affected"


@dataclass(slots=True)
class _VmState:
    """The decision on one VM in its epoch."""

    vm: Vm
    since_ns: int
    verdict: VmVerdict = "unknown"
    slow_down: Degradation | None = None
    found_by: tuple[Analysis, ...] = ()
    known: Degradation | None = None  # the last estimate of the host's own model, while it suffers
    known_ns: int = 0


class Decisions:
    """All decisions of one host. Single-threaded: all calls from the daemon's loop.

    An analysis is None if it is off or could not be started.
    """

    def __init__(self, config: AgentConfig, cloud_white: CloudWhite | None, analysis: HostAnalysis | None) -> None:
        self._least = config.analysis.least_slow_down
        self.cloud_white = cloud_white
        self.analysis = analysis
        self.events = Events(config.cloud_white)
        self._vms: dict[str, _VmState] = {}
        self._now_ns = 0
        self._host: HostDecision | None = None
        self._triggers = Triggers()

    # --- the tick ---

    def tick(self, vms: Iterable[Vm], mono_ns: int, unix_ns: int) -> None:
        """Decide on all VMs, after both analyses have taken the tick."""
        self._now_ns, self._host = mono_ns, None
        vms = list(vms)
        own: dict[str, VmVerdict] = {}
        if self.cloud_white is not None:
            running = (vm.identity.uuid for vm in vms if is_running(vm.identity.state))
            own = {uuid: self.cloud_white.behaviour(uuid) for uuid in running}
        # Without a victim, a VM that does more than usual inflicts nothing.
        if "victim" not in own.values() and not (self.analysis and self.analysis.suffering):
            own = {uuid: "steady" if word == "inflicting" else word for uuid, word in own.items()}
        states = {}
        for vm in vms:
            uuid = vm.identity.uuid
            one = self._vms.get(uuid)
            if one is None or one.vm.identity.epoch != vm.identity.epoch:
                one = _VmState(vm, mono_ns)
            one.vm, states[uuid] = vm, one
            self._decide(one, own.get(uuid, "unknown"), mono_ns)
        self._vms = states
        verdicts = ((one.vm, one.verdict, one.slow_down) for one in states.values())
        self.events.note(verdicts, lambda uuid: (self.vm(uuid), self._own(uuid).evidence), mono_ns, unix_ns)

    def _decide(self, one: _VmState, behaviour: VmVerdict, mono_ns: int) -> None:
        analysis, identity = self.analysis, one.vm.identity
        by_cpi = analysis.suffering.get(identity.uuid) if analysis and is_running(identity.state) else None
        known: list[Degradation] | None = None
        by_host = behaviour == "victim"
        one.found_by = (*(("host",) if by_host else ()), *(("fleet",) if by_cpi else ()))
        if one.found_by:
            # The verdict counts the last estimate for a while; views show it only while it is recent.
            counted, shown = ([by_cpi], [by_cpi]) if by_cpi else ([], [])
            if by_host:
                last, now = self._estimates(one, mono_ns)
                counted, shown = [last, *counted], [now, *shown]
            known = [estimate for estimate in counted if estimate.is_known]
        verdict = verdict_of(behaviour, known, self._least, alert=one.vm.alert, was=one.verdict)
        if one.found_by:
            one.slow_down = self._shown(one, verdict, shown)
        else:
            one.slow_down = one.known = None
        if verdict != one.verdict:
            one.verdict, one.since_ns = verdict, mono_ns

    def _shown(self, one: _VmState, verdict: VmVerdict, estimates: Sequence[Degradation]) -> Degradation:
        """Return the slow-down that views show.

        Latency and CPI do not slow down alike, so it stays with the same one while that supports the verdict: a VM
        becomes a victim by an estimate that is sure, and stays one by its ratio.
        """
        before, least, was_victim = one.slow_down, self._least, one.verdict == "victim"
        unknown = next((now for now in estimates if not now.is_known), estimates[0])

        def supports(now: Degradation) -> bool:
            return verdict != "victim" or now.low > least or (was_victim and now.ratio > least)

        def preference(now: Degradation) -> tuple[bool, bool, float]:
            is_same, is_sure = before is not None and now.is_of_cpi == before.is_of_cpi, now.low > least
            return is_same, is_sure, 0.0 if is_sure else now.ratio

        supporting = (now for now in estimates if now.is_known and supports(now))
        return max(supporting, key=preference, default=unknown)

    def _estimates(self, one: _VmState, mono_ns: int) -> tuple[Degradation, Degradation]:
        """Return the host's own estimate for the verdict, and the one to show; each may be of a moment ago."""
        now = self.cloud_white.estimate(one.vm.identity.uuid) if self.cloud_white is not None else None
        if now is not None and now.is_known:
            one.known, one.known_ns = now, mono_ns
        elif one.known is not None and mono_ns - one.known_ns > _ESTIMATE_NS:
            one.known = None
        unknown = now or Degradation(cannot_tell="no_model")
        last = one.known or unknown
        return last, last if mono_ns - one.known_ns <= _SHOWN_NS else unknown

    # --- queries ---

    def vm(self, uuid: str) -> VmDecision:
        """Return the decision on a VM, with the reason."""
        one, own = self._vms.get(uuid), self._own(uuid)
        if one is None:
            return VmDecision(uuid, "unknown", "not judged yet: it has had no tick")
        if one.found_by:
            why, suspects = self._why(one, own), self._named(uuid, own.culprits)
            return VmDecision(uuid, one.verdict, why, one.since_ns, one.slow_down, one.found_by, suspects)
        if not is_running(one.vm.identity.state):
            return VmDecision(uuid, "unknown", "it does not run")
        if one.verdict != "unknown" or self.analysis is None:
            return VmDecision(uuid, one.verdict, own.reason, one.since_ns)
        by_fleet = self.analysis.verdict(uuid)
        if self.cloud_white is not None and by_fleet.verdict == "unknown":
            return VmDecision(uuid, "unknown", own.reason, one.since_ns)
        return VmDecision(uuid, "steady" if by_fleet.verdict == "normal" else "unknown", by_fleet.reason)

    def since_ns(self, decision: VmDecision) -> int:
        """Return how long a decision has stood, in nanoseconds, as of the last tick."""
        return max(0, self._now_ns - decision.since_ns) if decision.since_ns else 0

    @property
    def host(self) -> HostDecision:
        """The decision on the host."""
        if self._host is None:
            words = Counter(one.verdict for one in self._vms.values())
            victims = sorted(
                (self.vm(uuid) for uuid, one in self._vms.items() if one.verdict == "victim"),
                key=lambda one: (_rank(one.slow_down), self._vms[one.uuid].vm.identity.name),
            )
            culprits = Counter(culprit for one in victims for culprit in self._own(one.uuid).culprits)
            # A lone victim is not a suspect, nor is a VM on another socket than all victims. VMs that no victim blames
            # come last.
            theirs = {suspect.uuid for one in victims for suspect in one.suspects}
            alone = victims[0].uuid if len(victims) == 1 else ""
            ranked = self._ranked(alone, [uuid for uuid, _ in culprits.most_common()]) if victims else ()
            named = tuple(one for one in ranked if one.uuid in theirs)
            others = (one for one in ranked if one.uuid not in theirs and (named or not one.is_blamed))
            suspects = (*named, *others)
            self._host = HostDecision(tuple(victims), words["affected"], words["inflicting"], suspects)
        return self._host

    @property
    def has_news(self) -> bool:
        """Whether something waits to be sent: an event, or the end of what was reported to central."""
        return self.events.waiting or (self._triggers.is_open and not self.host.victims)

    def hurt_by(self, uuid: str) -> tuple[str, ...]:
        """Return the UUIDs of the VMs that suffer from a VM by the host's own analysis, the slowest first."""
        hurt = {other: one for other, one in self._vms.items() if one.found_by and uuid in self._own(other).culprits}
        return tuple(sorted(hurt, key=lambda other: _rank(hurt[other].slow_down)))

    def _own(self, uuid: str) -> Verdict:
        return self.cloud_white.verdict(uuid) if self.cloud_white is not None else _OFF

    def _why(self, one: _VmState, own: Verdict) -> str:
        """Return the evidence in one line, and why an affected VM is not a victim."""
        reasons = [own.reason] if "host" in one.found_by else []
        if "fleet" in one.found_by and self.analysis is not None:
            reasons.append(self.analysis.verdict(one.vm.identity.uuid).reason)
        if one.verdict == "affected" and one.vm.alert:
            reasons.append(f"the slow-down may be less than {self._least:g}x")
        elif one.verdict == "affected":
            reasons.append("its job has no alerts (a job rule's `alert` sets which have)")
        return "; ".join(reasons)

    # --- suspects ---

    def suspects(self, uuid: str) -> tuple[SuspectView, ...]:
        """Return a suffering VM's suspects, the likeliest first; () if it does not suffer."""
        one = self._vms.get(uuid)
        return self._ranked(uuid, self._own(uuid).culprits) if one is not None and one.found_by else ()

    def _named(self, uuid: str, culprits: Sequence[str]) -> tuple[SuspectView, ...]:
        """Return the first of `suspects`; called for every VM, so it does not go through all of them."""
        found = self._inflicting(uuid, culprits)
        first = self.analysis.first_suspect(uuid) if self.analysis is not None and not found else None
        return (first,) if first is not None and first.is_blamed else tuple(found)

    def _inflicting(self, uuid: str, culprits: Sequence[str]) -> list[SuspectView]:
        """Return the VMs that the host itself found, without those gone and `uuid`, the likeliest first."""
        found = (self._culprit(one) for one in culprits if one != uuid)
        return sorted((one for one in found if one is not None), key=_likelihood)

    def _culprit(self, uuid: str) -> SuspectView | None:
        scored, one = self.analysis.suspect(uuid) if self.analysis is not None else None, self._vms.get(uuid)
        if scored is not None or one is None:
            return replace(scored, inflicts=True) if scored else None
        identity, cores = one.vm.identity, one.vm.rates.cpu_usage_cores
        cores = math.nan if isinstance(cores, Reason) else cores
        known = (uuid, identity.name, one.vm.job, cores, None, None, Reason.NO_COEFFICIENTS)
        return SuspectView(*known, epoch=identity.epoch, inflicts=True)

    def _ranked(self, uuid: str, culprits: Sequence[str]) -> tuple[SuspectView, ...]:
        """Rank a VM's suspects ("": the host's): first those that inflict, each group by score."""
        found = self._inflicting(uuid, culprits)
        listed = {uuid, *(one.uuid for one in found)}
        scored = self.analysis.suspects(uuid) if self.analysis is not None else ()
        return (*found, *sorted((one for one in scored if one.uuid not in listed), key=_likelihood))

    # --- reports to central ---

    def with_verdicts(self, windows: Sequence[CpiWindow]) -> list[CpiWindow]:
        """Return windows that have just ended with the present verdicts, and the slow-downs that views show."""
        return [replace(window, metrics={**window.metrics, **self._judged(window.vm)}) for window in windows]

    def _judged(self, uuid: str) -> dict[str, Value]:
        one = self._vms.get(uuid)
        if one is None:
            return {}
        known = one.slow_down if one.slow_down is not None and one.slow_down.is_known else None
        slow_down = (known.ratio, known.low, known.high) if known else (Reason.NOT_PRESENT,) * len(_SLOW_DOWN)
        return {"verdict": BEHAVIOUR_CODES[one.verdict], **dict(zip(_SLOW_DOWN, slow_down, strict=True))}

    def report(self, unix_ns: int) -> Trigger | None:
        """Return the report for central at a window's end; None: nothing new."""
        host, analysis = self.host, self.analysis
        trigger = Trigger(
            unix_ns=unix_ns,
            slot_ns=analysis.slot_ns if analysis else _SLOT_NS,
            mn_cpi=or_nan(analysis.mn_cpi if analysis else None),
            mn_cpi_threshold=analysis.mn_cpi_threshold if analysis else math.nan,
            coefficient_version=analysis.coefficient_version if analysis else 0,
            victims=tuple(map(self._victim, host.victims)),
            suspects=host.suspects,
            found_by=tuple(sorted({by for one in host.victims for by in one.found_by}, reverse=True)),
            affected=host.affected,
        )
        return self._triggers.note(trigger)

    def _victim(self, decision: VmDecision) -> TriggerVictim:
        vm = self._vms[decision.uuid].vm
        slot = self.analysis.slot(decision.uuid) if self.analysis is not None else None
        cores = vm.rates.cpu_usage_cores
        suspect = decision.suspect
        return TriggerVictim(
            vm=decision.uuid,
            epoch=vm.identity.epoch,
            name=vm.identity.name,
            job=vm.job,
            cpi=or_nan(slot.cpi if slot else None),
            n_cpi=or_nan(slot.n_cpi if slot else None),
            threshold_cpi=or_nan(slot.threshold_cpi if slot else None),
            cpu_usage_cores=slot.cpu_usage_cores if slot else 0.0 if isinstance(cores, Reason) else cores,
            slow_down=decision.slow_down,
            found_by=decision.found_by,
            suspect=suspect.uuid if suspect else "",
        )


_SLOT_NS = 300 * 10**9


def _likelihood(one: SuspectView) -> float:
    """Sort key of suspects; those without a score above 0 come last, in their order."""
    return -max(one.score or 0.0, 0.0)


def _rank(slow_down: Degradation | None) -> float:
    """Sort key of VMs: the slowest first, those with an unknown slow-down last."""
    return -slow_down.ratio if slow_down is not None and slow_down.is_known else 0.0
