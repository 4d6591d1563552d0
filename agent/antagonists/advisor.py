"""Gathers the facts for `agent.analysis.advice.actions`: what could be done about contention on this host.

Reports to central carry the recommendations; `whitepanda explain` shows those for one VM. Only `agent.act`, another
process, changes anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agent.analysis.advice.actions import pursued, recommend
from agent.analysis.advice.recommendations import HostLimits, Recommendation, Situation, Suspect, Victim
from agent.analysis.contention.normalised_cpi import is_cut
from agent.analysis.verdict import Degradation
from agent.antagonists.coefficients import CoefficientStore
from agent.antagonists.reports import Trigger
from agent.config import ActSection
from agent.detection.decision_types import SuspectView
from agent.sampling.vms import Vm
from collector.base import Reason
from whitepanda.v1 import host_pb2

if TYPE_CHECKING:
    from agent.antagonists.decide_victims import Decisions
    from agent.antagonists.host_analysis import HostAnalysis
    from agent.detection.cloud_white import CloudWhite


class _State(Protocol):
    """The part of `agent.api.state.AgentState` that advice needs."""

    analysis: HostAnalysis | None
    cloud_white: CloudWhite | None
    decisions: Decisions | None

    def host(self) -> host_pb2.HostStatus: ...

    def vms(self) -> Sequence[Vm]: ...


class Advisor:
    """Recommends actions. All calls are from the daemon's loop. `host`: what can be limited here."""

    def __init__(self, state: _State, store: CoefficientStore, host: HostLimits) -> None:
        self._state = state
        self._store = store
        self._host = host

    def with_advice(self, trigger: Trigger) -> Trigger:
        """Return a report with recommendations."""
        if not trigger.victims:
            return trigger
        vms, first = self._vms(), trigger.victims[0]  # help for one helps the others
        now, since = trigger.unix_ns, trigger.since_unix_ns
        by_fleet = "fleet" in trigger.found_by
        cpis = first.cpi, first.threshold_cpi
        situation = Situation(
            victims=(self._victim(first.vm, first.name, first.job, *cpis, first.slow_down, vms),),
            suspects=self._suspects(trigger.suspects, vms, now),
            mn_cpi=_known(trigger.mn_cpi) if by_fleet else None,
            mn_cpi_threshold=_known(trigger.mn_cpi_threshold) if by_fleet else None,
            lasted_s=max(0, now - since) / 1e9 if since else 0.0,
            is_cut=any(is_cut(v.n_cpi) for v in trigger.victims),
            host=self._host,
        )
        return replace(trigger, recommendations=recommend(_with_facts(situation, vms)))

    def for_vm(self, uuid: str) -> tuple[Recommendation, ...]:
        """Return a victim's recommendations; of an inflicting VM, those against it that help its slowest victim."""
        decisions, vms = self._state.decisions, self._vms()
        if decisions is None:
            return ()
        if found := self._for_victim(uuid, vms, decisions):
            return found
        hurt = next((one for one in decisions.hurt_by(uuid) if decisions.vm(one).verdict == "victim"), "")
        return tuple(one for one in self._for_victim(hurt, vms, decisions) if one.vm == uuid)

    def _for_victim(self, uuid: str, vms: Mapping[str, Vm], decisions: Decisions) -> tuple[Recommendation, ...]:
        vm, decision, analysis = vms.get(uuid), decisions.vm(uuid), self._state.analysis
        if vm is None or decision.verdict != "victim":
            return ()
        slot = analysis.slot(uuid) if analysis else None
        by_fleet = analysis if "fleet" in decision.found_by else None
        cpis = slot.cpi if slot else None, slot.threshold_cpi if slot and by_fleet else None
        situation = Situation(
            victims=(self._victim(uuid, vm.identity.name, vm.job, *cpis, decision.slow_down, vms),),
            suspects=self._suspects(decisions.suspects(uuid), vms, self._state.host().now_unix_ns),
            mn_cpi=by_fleet.mn_cpi if by_fleet else None,
            mn_cpi_threshold=by_fleet.mn_cpi_threshold if by_fleet else None,
            is_cut=slot is not None and slot.n_cpi is not None and is_cut(slot.n_cpi),
            host=self._host,
        )
        return recommend(_with_facts(situation, vms))

    def _vms(self) -> dict[str, Vm]:
        return {vm.identity.uuid: vm for vm in self._state.vms()}

    def _suspects(self, ranked: Sequence[SuspectView], vms: Mapping[str, Vm], now_unix_ns: int) -> tuple[Suspect, ...]:
        """Return suspects with their evidence, in their order."""
        cloud_white = self._state.cloud_white
        suspects = []
        for one in ranked:
            behaviour = cloud_white.behaviour(one.uuid) if cloud_white is not None else "unknown"
            inflicts = one.inflicts or behaviour == "inflicting"
            view, known = vms.get(one.uuid), self._store.coefficient(one.job, now_unix_ns)
            # The host's verdict is about now. Averaged over the last slot, a neighbour that has just started used
            # little CPU.
            cores = _value(view, _CORES) if view is not None and inflicts and one.score is None else None
            suspect = Suspect(
                one.uuid,
                one.name,
                one.job,
                one.cpu_usage_cores if cores is None else cores,
                coefficient=known.value if known else None,
                standard_error=known.standard_error if known else None,
                score=one.score,
                inflicts=inflicts,
                is_cleared=not inflicts and behaviour in ("steady", "victim"),
                manager="",  # of a VM that is gone, or a control group
            )
            suspects.append(suspect)
        return tuple(suspects)

    def _victim(
        self,
        uuid: str,
        name: str,
        job: str,
        cpi: float | None,
        threshold_cpi: float | None,
        slow_down: Degradation | None,
        vms: Mapping[str, Vm],
    ) -> Victim:
        analysis, view = self._state.analysis, vms.get(uuid)
        # If the slow-down is estimated from CPI, the CPI and its mean already show it.
        ratio = None if slow_down is None or slow_down.is_of_cpi else slow_down.ratio
        return Victim(
            uuid,
            name,
            job,
            cpi=_known(cpi),
            mean_cpi=analysis.job_mean_cpi(uuid) if analysis else None,
            threshold_cpi=_known(threshold_cpi),
            degradation=_known(ratio),
            manager=view.identity.manager if view else "",
            vmid=view.vmid if view else "",
        )


_CORES, _LLC, _MEMORY = "cpu_usage_cores", "llc_occupancy_bytes", "memory_bandwidth_bytes_per_s"


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _with_facts(situation: Situation, vms: Mapping[str, Vm]) -> Situation:
    """Add facts about the few suspects that a recommendation can name, of perhaps a thousand."""
    few = {suspect.vm for suspect in pursued(situation)}
    if not few & vms.keys():
        return situation
    all_llc, all_memory = (
        math.fsum(value for vm in vms.values() if (value := _value(vm, name)) is not None) for name in (_LLC, _MEMORY)
    )

    def known(suspect: Suspect) -> Suspect:
        view = vms.get(suspect.vm) if suspect.vm in few else None
        if view is None:
            return suspect
        return replace(
            suspect,
            vcpus=view.identity.vcpus,
            llc_bytes=_value(view, _LLC),
            all_llc_bytes=all_llc,
            memory_bytes_per_s=_value(view, _MEMORY),
            all_memory_bytes_per_s=all_memory,
            has_quota=view.quota_cores is not None and view.quota_cores < view.identity.vcpus,
            manager=view.identity.manager,
            vmid=view.vmid,
            has_own_group=view.quota_cores is not None,
        )

    return replace(situation, suspects=tuple(map(known, situation.suspects)))


def _value(vm: Vm, name: str) -> float | None:
    value = getattr(vm.rates, name)
    return None if isinstance(value, Reason) else value


def limits_of(resctrl: Path | None, act: ActSection, central: str = "") -> HostLimits:
    """Read the limits that resctrl supports from its mount point (None: off), clipped to what `act` allows.

    0: not supported. `central`: its host:port, for commands.
    """
    limits = HostLimits(min_cores=act.min_cores, max_seconds=act.max_seconds, central=central)
    if resctrl is None:
        return limits
    bandwidth = _read(resctrl / "info/MB/min_bandwidth")
    return replace(
        limits,
        cache_ways=_read(resctrl / "info/L3/cbm_mask", 16).bit_count(),
        min_ways=max(_read(resctrl / "info/L3/min_cbm_bits"), act.min_ways),
        min_bandwidth_percent=max(bandwidth, act.min_bandwidth_percent) if bandwidth else 0,
        bandwidth_step_percent=_read(resctrl / "info/MB/bandwidth_gran") or 10,
    )


def _read(path: Path, base: int = 10) -> int:
    """Read a number; 0: this host does not have it."""
    try:
        return int(path.read_text(encoding="ascii"), base)
    except (OSError, ValueError):
        return 0
