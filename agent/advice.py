"""What could be done about contention on this host: gathers the facts for `agent.analysis.actions`.

A report to central takes the recommendations along; `whitepanda explain` shows those of the VM that is asked for. Only
where somebody suffers is anything gathered. Nothing here changes anything: that is `agent.act`, another process.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from agent.analysis.actions import pursued, recommend
from agent.analysis.antagonists import is_cut
from agent.analysis.recommendations import HostLimits, Recommendation, Situation, Suspect, Victim
from agent.coefficients import Coefficient
from agent.config import ActSection
from agent.state import AgentState, VmView
from agent.triggers import Trigger, TriggerVictim
from agent.verdicts import Verdict

__all__ = ["Advisor", "Coefficients", "limits_of"]


class Coefficients(Protocol):
    """Where coefficients with their standard errors are; `agent.coefficients.CoefficientStore`."""

    def coefficient(self, job: str, now_unix_ns: int) -> Coefficient | None:
        """A_k of a job; None: not known."""


class _Accused(NamedTuple):
    """Who may be blamed, as a report and an explanation name it; `score` None: not known."""

    vm: str
    name: str
    job: str
    cpu_usage_cores: float
    score: float | None


class Advisor:
    """Says what could be done. All calls are from the daemon's loop.

    Args:
        state: what the agent knows.
        store: coefficients.
        host: what can be limited here.

    """

    def __init__(self, state: AgentState, store: Coefficients, host: HostLimits) -> None:
        self._state = state
        self._store = store
        self._host = host

    def with_advice(self, trigger: Trigger) -> Trigger:
        """Return a report with what could be done about what it tells."""
        vms = {vm.uuid: vm for vm in self._state.vms(_NEEDED)}
        now = trigger.unix_ns
        accused = [_Accused(s.vm, s.name, s.job, s.cpu_usage_cores, s.score) for s in trigger.suspects]
        situation = Situation(
            victims=tuple(self._victim(v, vms) for v in trigger.victims[:1]),  # help for one helps the others
            suspects=self._suspects(accused, vms, self._culprits([v.vm for v in trigger.victims]), now),
            mn_cpi=trigger.mn_cpi,
            mn_cpi_threshold=trigger.mn_cpi_threshold,
            lasted_s=max(0, now - trigger.since_unix_ns) / 1e9 if trigger.since_unix_ns else 0.0,
            is_cut=any(is_cut(v.n_cpi) for v in trigger.victims),
            host=self._host,
        )
        return replace(trigger, recommendations=recommend(_with_facts(situation, vms)))

    def for_vm(self, uuid: str) -> tuple[Recommendation, ...]:
        """Return what could be done for one VM, or against it; () where it neither suffers nor inflicts.

        Against one that inflicts there is what would help the VM that suffers most of all from it.
        """
        vms = {vm.uuid: vm for vm in self._state.vms(_NEEDED)}
        if found := self._for_victim(uuid, vms):
            return found
        hurt = max(self._hurt_by(uuid, vms), default=None)
        against = self._for_victim(hurt[1], vms) if hurt else ()
        return tuple(one for one in against if one.vm == uuid)

    def _hurt_by(self, uuid: str, vms: Mapping[str, VmView]) -> Iterator[tuple[float, str]]:
        """Yield who suffers from a VM, with how much: 0 where that is not known."""
        cloud_white = self._state.cloud_white
        if cloud_white is None:
            return
        for other in vms:
            found = cloud_white.verdict(other)
            if uuid in found.culprits:
                ratio = found.degradation.ratio if found.degradation is not None else math.nan
                yield (ratio if math.isfinite(ratio) else 0.0, other)

    def _for_victim(self, uuid: str, vms: Mapping[str, VmView]) -> tuple[Recommendation, ...]:
        vm, analysis = vms.get(uuid), self._state.analysis
        if vm is None or analysis is None:
            return ()
        why = analysis.explain(uuid)
        found = self._found(uuid)
        suffers_by_itself = found is not None and found.behaviour == "victim"
        if why.verdict.verdict != "victim" and not suffers_by_itself:
            return ()
        victim = Victim(
            uuid,
            vm.name,
            vm.job,
            cpi=why.cpi,
            mean_cpi=why.statistics.mean if why.statistics else None,
            threshold_cpi=why.victim_threshold_cpi if why.verdict.verdict == "victim" else None,
            degradation=self._degradation(uuid, why.verdict.degradation),
            is_libvirt=vm.manager == "libvirt",
        )
        accused = [_Accused(s.uuid, s.name, s.job, s.cpu_usage_cores, s.score) for s in why.suspects]
        situation = Situation(
            victims=(victim,),
            suspects=self._suspects(accused, vms, self._culprits([uuid]), self._state.host().now_unix_ns),
            mn_cpi=why.mn_cpi if why.triggered else None,
            mn_cpi_threshold=why.mn_cpi_threshold if why.triggered else None,
            is_cut=why.n_cpi is not None and is_cut(why.n_cpi),
            host=self._host,
        )
        return recommend(_with_facts(situation, vms))

    # --- what the host's own analysis has found ---

    def _found(self, uuid: str) -> Verdict | None:
        return self._state.cloud_white.verdict(uuid) if self._state.cloud_white is not None else None

    def _culprits(self, victims: Sequence[str]) -> Collection[str]:
        """Return who inflicts what these VMs suffer, each once."""
        found = [self._found(uuid) for uuid in victims]
        each = [one.culprits for one in found if one is not None and one.behaviour == "victim"]
        return dict.fromkeys(uuid for culprits in each for uuid in culprits).keys()

    def _degradation(self, uuid: str, by_cpi: float | None) -> float | None:
        """Return how many times as slow a VM is: the host's estimate of latency, else by its CPI."""
        found = self._found(uuid)
        ratio = found.degradation.ratio if found is not None and found.degradation is not None else math.nan
        return ratio if math.isfinite(ratio) else by_cpi

    # --- suspects and victims ---

    def _suspects(
        self,
        accused: Sequence[_Accused],
        vms: Mapping[str, VmView],
        culprits: Collection[str],
        now_unix_ns: int,
    ) -> tuple[Suspect, ...]:
        """Return those that are accused by coefficients, in their order, and then those that the host itself found."""
        scored = {one.vm: one for one in accused}
        for uuid in culprits:
            vm, named = vms.get(uuid), scored.get(uuid)
            if vm is not None and (named is None or named.score is None):
                # What the host finds is of this moment: over the last slot a neighbour that has just begun used little.
                over_slot = named.cpu_usage_cores if named is not None else 0.0
                cores = _value(vm, _CORES)
                scored[uuid] = _Accused(uuid, vm.name, vm.job, over_slot if cores is None else cores, None)
        marked = []
        for one in scored.values():
            found = self._found(one.vm)
            behaviour = found.behaviour if found is not None else "unknown"
            inflicts = one.vm in culprits or behaviour == "inflicting"
            is_cleared = not inflicts and behaviour in ("steady", "victim")
            known = self._store.coefficient(one.job, now_unix_ns)
            marked.append(
                Suspect(
                    one.vm,
                    one.name,
                    one.job,
                    one.cpu_usage_cores,
                    coefficient=known.value if known else None,
                    # Central of an older version sends 0 for what it does not know.
                    standard_error=(known.standard_error or None) if known else None,
                    score=one.score,
                    inflicts=inflicts,
                    is_cleared=is_cleared,
                    is_libvirt=False,  # one that is gone, or a control group
                )
            )
        # Whoever is found by both ways is the likelier.
        return tuple(sorted(marked, key=lambda s: not (s.inflicts or (s.score or 0.0) > 0)))

    def _victim(self, victim: TriggerVictim, vms: Mapping[str, VmView]) -> Victim:
        analysis = self._state.analysis if victim.vm in vms else None
        by_cpi = analysis.verdict(victim.vm).degradation if analysis else None
        return Victim(
            victim.vm,
            victim.name,
            victim.job,
            cpi=victim.cpi,
            mean_cpi=analysis.job_mean_cpi(victim.vm) if analysis else None,
            threshold_cpi=victim.threshold_cpi,
            degradation=self._degradation(victim.vm, by_cpi),
            is_libvirt=victim.vm in vms and vms[victim.vm].manager == "libvirt",
        )


_CORES, _LLC, _MEMORY = "cpu_usage_cores", "llc_occupancy_bytes", "memory_bandwidth_bytes_per_s"
_NEEDED = (_CORES, _LLC, _MEMORY)


def _with_facts(situation: Situation, vms: Mapping[str, VmView]) -> Situation:
    """Add what is known of the VMs behind the few suspects that a recommendation can name: there may be a thousand."""
    few = {suspect.vm for suspect in pursued(situation)}
    if not few & vms.keys():
        return situation
    all_llc, all_memory = _sum(vms, _LLC), _sum(vms, _MEMORY)

    def known(suspect: Suspect) -> Suspect:
        view = vms.get(suspect.vm) if suspect.vm in few else None
        if view is None:
            return suspect
        return replace(
            suspect,
            vcpus=view.vcpus,
            llc_bytes=_value(view, _LLC),
            all_llc_bytes=all_llc,
            memory_bytes_per_s=_value(view, _MEMORY),
            all_memory_bytes_per_s=all_memory,
            has_quota=view.quota_cores is not None and view.quota_cores < view.vcpus,
            is_libvirt=view.manager == "libvirt",
        )

    return replace(situation, suspects=tuple(map(known, situation.suspects)))


def _value(vm: VmView, name: str) -> float | None:
    return next((metric.value for metric in vm.metrics if metric.name == name), None)


def _sum(vms: Mapping[str, VmView], name: str) -> float:
    return math.fsum(value for vm in vms.values() if (value := _value(vm, name)) is not None)


def limits_of(resctrl: Path | None, act: ActSection, central: str = "") -> HostLimits:
    """Read what resctrl can limit; what it does not have is 0.

    Args:
        resctrl: where it is mounted, `/sys/fs/resctrl`; None: it is not to be looked at.
        act: what the service may do; more is not recommended.
        central: its host:port, for commands that ask it.

    """
    if resctrl is None:
        return HostLimits(min_cores=act.min_cores, max_seconds=act.max_seconds, central=central)
    bandwidth = _read(resctrl / "info/MB/min_bandwidth")
    mask = _read(resctrl / "info/L3/cbm_mask", 16)
    return HostLimits(
        cache_ways=mask.bit_count(),
        min_ways=max(_read(resctrl / "info/L3/min_cbm_bits"), act.min_ways),
        min_bandwidth_percent=max(bandwidth, act.min_bandwidth_percent) if bandwidth else 0,
        bandwidth_step_percent=_read(resctrl / "info/MB/bandwidth_gran") or 10,
        min_cores=act.min_cores,
        max_seconds=act.max_seconds,
        central=central,
    )


def _read(path: Path, base: int = 10) -> int:
    """Read a number; 0: this host does not have it."""
    try:
        return int(path.read_text(encoding="ascii"), base)
    except (OSError, ValueError):
        return 0
