"""What the agent knows as messages of the local API: for the server on the socket, and for a recording that is shown.

Everything is made at once from `agent.api.state`, on the loop that owns it; nothing here waits.
"""

import math
from collections.abc import Collection, Mapping, Sequence

from agent.analysis.verdict import Verdict
from agent.antagonists.host_analysis import CpiVerdict, Explanation
from agent.antagonists.vm_decision import HostDecision
from agent.api.state import AgentState
from agent.detection.verdicts import Reasoning, SuspectView
from agent.sampling.views import MetricView, SourceView, VmView
from agent.uplink.batches import (
    analyses_message,
    behaviour_number,
    degradation_message,
    event_message,
    evidence_message,
    reason_number,
)
from agent.uplink.recommendation_messages import recommendation_message
from agent.uplink.view import UplinkView
from whitepanda.common.protocol import or_nan
from whitepanda.v1 import agent_pb2, host_pb2

_SUSPECTS = 5  # that are named of a VM in a list


def status_message(state: AgentState) -> host_pb2.HostStatus:
    """Return the agent, its sources and its uplink now."""
    host, analysis = state.host(), state.analysis
    return host_pb2.HostStatus(
        host=host.host,
        agent_version=host.agent_version,
        platform=host.platform,
        now_unix_ns=host.now_unix_ns,
        started_unix_ns=host.started_unix_ns,
        ticks=host.ticks,
        missed_ticks=host.missed_ticks,
        sources=[_source(s) for s in host.sources],
        uplink=_uplink(host.uplink),
        coefficient_version=analysis.coefficient_version if analysis else 0,
        cpu_seconds=host.cpu_seconds,
        rss_bytes=host.rss_bytes,
        window_ms=host.window_ms,
        host_metrics=[_metric(m) for m in host.metrics],
        mn_cpi=or_nan(analysis.mn_cpi if analysis else None),
    )


def vms_message(state: AgentState, metrics: Collection[str] | None = None) -> host_pb2.ListVmsResponse:
    """Return all VMs now, with the metrics of these names; None: with all."""
    host, analysis, cloud_white, vms = state.host(), state.analysis, state.cloud_white, state.vms(metrics)
    decisions = state.decisions
    summaries = [_vm(vm, state) for vm in vms]
    if cloud_white is not None:
        names = {vm.uuid: vm.name for vm in vms}
        for vm, summary in zip(vms, summaries, strict=True):
            verdict = cloud_white.verdict(vm.uuid)
            summary.cloud_white.CopyFrom(_suffering(verdict, cloud_white.since_ns(verdict), names))
    return host_pb2.ListVmsResponse(
        now_unix_ns=host.now_unix_ns,
        host=host.host,
        vms=summaries,
        triggered=bool(analysis and analysis.triggered),
        decision=None if decisions is None else _host_decision(decisions.host),
    )


def explanation_message(state: AgentState, uuid: str, vms: Sequence[VmView]) -> host_pb2.VmExplanation | None:
    """Return all that the verdict on one VM is made of, None where it is not here; `vms` have the others' names."""
    vm = state.vm(uuid)
    if vm is None:
        return None
    analysis, cloud_white, decisions = state.analysis, state.cloud_white, state.decisions
    names = {v.uuid: v.name for v in vms}
    if analysis is None:
        answer = host_pb2.VmExplanation(
            vm=_vm(vm, state),
            cpi=math.nan,
            n_cpi=math.nan,
            victim_threshold_cpi=math.nan,
            mn_cpi=math.nan,
            mn_cpi_threshold=math.nan,
        )
    else:
        answer = _explanation(_vm(vm, state), analysis.explain(vm.uuid), state.host().platform)
    if cloud_white is not None:
        why = cloud_white.explain(vm.uuid)
        _add_reasoning(answer, why)
        answer.vm.cloud_white.CopyFrom(_suffering(why.verdict, cloud_white.since_ns(why.verdict), names))
        if not answer.vm.decision.HasField("slow_down") and answer.vm.cloud_white.HasField("degradation"):
            answer.vm.decision.slow_down.CopyFrom(answer.vm.cloud_white.degradation)
    if decisions is not None:
        answer.victims.extend(names.get(one, one) for one in decisions.hurt_by(vm.uuid))
        answer.events.extend(event_message(event) for event in decisions.events.of(vm.uuid))
        answer.suspects.extend(map(_suspect, decisions.suspects(vm.uuid)))
    if state.advisor is not None:
        answer.recommendations.extend(map(recommendation_message, state.advisor.for_vm(vm.uuid)))
    return answer


def _verdict(vm: VmView, state: AgentState) -> CpiVerdict:
    if state.analysis is None:
        reason = "the analysis could not be started: see the agent's log"
        return CpiVerdict("unknown", reason)
    return state.analysis.verdict(vm.uuid)


def _metric(metric: MetricView) -> host_pb2.Metric:
    return host_pb2.Metric(
        name=metric.name,
        value=or_nan(metric.value),
        reason=reason_number(metric.reason),
        source=metric.source,
        age_ns=max(0, metric.age_ns),
    )


def _source(source: SourceView) -> host_pb2.SourceStatus:
    return host_pb2.SourceStatus(
        name=source.name,
        state=source.state,
        detail=source.detail,
        age_ns=max(0, source.age_ns),
        duration_ns=source.duration_ns,
        samples=source.samples,
        failures=source.failures,
    )


def _uplink(uplink: UplinkView) -> host_pb2.UplinkStatus:
    return host_pb2.UplinkStatus(
        state=uplink.state,
        address=uplink.address,
        spooled_batches=uplink.spooled_batches,
        spooled_bytes=uplink.spooled_bytes,
        acknowledged_batches=uplink.acknowledged_batches,
        acknowledged_windows=uplink.acknowledged_windows,
        dropped_batches=uplink.dropped_batches,
        rejected_rows=uplink.rejected_rows,
        rejected_batches=uplink.rejected_batches,
        last_error=uplink.last_error,
        refused_updates=uplink.refused_updates,
        refused_update_rows=uplink.refused_update_rows,
        last_refusal=uplink.last_refusal,
        min_batch_interval_ms=uplink.min_batch_interval_ms,
    )


def _vm(vm: VmView, state: AgentState) -> host_pb2.VmSummary:
    verdict = _verdict(vm, state)
    return host_pb2.VmSummary(
        uuid=vm.uuid,
        name=vm.name,
        job=vm.job,
        latency_sensitive=vm.latency_sensitive,
        epoch=vm.epoch,
        state=vm.state,
        vcpus=vm.vcpus,
        metrics=[_metric(m) for m in vm.metrics],
        verdict=verdict.verdict,
        verdict_reason=verdict.reason,
        degradation=or_nan(verdict.degradation),
        owner=vm.owner,
        quota_cores=or_nan(vm.quota_cores),
        job_mean_cpi=or_nan(state.analysis.job_mean_cpi(vm.uuid) if state.analysis else None),
        decision=_vm_decision(vm.uuid, state),
    )


def _vm_decision(uuid: str, state: AgentState) -> host_pb2.VmDecision:
    decisions = state.decisions
    if decisions is None:
        return host_pb2.VmDecision(verdict=behaviour_number("unknown"), reason="the agent is starting")
    one = decisions.vm(uuid)
    return host_pb2.VmDecision(
        verdict=behaviour_number(one.verdict),
        reason=one.reason,
        since_ns=decisions.since_ns(one),
        slow_down=None if one.slow_down is None else degradation_message(one.slow_down),
        found_by=analyses_message(one.found_by),
        suspects=map(_suspect, one.suspects[:_SUSPECTS]),
        suspects_left_out=max(0, len(one.suspects) - _SUSPECTS),
    )


def _host_decision(one: HostDecision) -> host_pb2.HostDecision:
    return host_pb2.HostDecision(
        victims=len(one.victims),
        affected=one.affected,
        inflicting=one.inflicting,
        suspect=None if one.suspect is None else _suspect(one.suspect),
    )


def _suspect(one: SuspectView) -> host_pb2.Suspect:
    return host_pb2.Suspect(
        uuid=one.uuid,
        name=one.name,
        job=one.job,
        coefficient=or_nan(one.coefficient),
        cpu_usage_cores=one.cpu_usage_cores,
        score=or_nan(one.score),
        reason=reason_number(one.reason),
        inflicts=one.inflicts,
    )


def _suffering(verdict: Verdict, since_ns: int, names: Mapping[str, str]) -> host_pb2.CloudWhite:
    found = verdict.degradation
    return host_pb2.CloudWhite(
        behaviour=behaviour_number(verdict.behaviour),
        reason=verdict.reason,
        since_ns=since_ns,
        degradation=None if found is None else degradation_message(found),
        culprits=[names.get(uuid, uuid) for uuid in verdict.culprits],
        baseline_ticks=verdict.baseline_ticks,
        baseline_ready=verdict.baseline_ready,
    )


def _add_reasoning(answer: host_pb2.VmExplanation, why: Reasoning) -> None:
    answer.detector = why.detector
    answer.evidence.extend(evidence_message(shown) for shown in why.verdict.evidence)
    answer.signals.extend(
        host_pb2.Signal(name=one.name, value=one.value, baseline=one.expected, learnt=one.learnt) for one in why.signals
    )


def _explanation(vm: host_pb2.VmSummary, why: Explanation, platform: str) -> host_pb2.VmExplanation:
    statistics = agent_pb2.JobStatistics(job=vm.job, platform=platform)
    if why.statistics is not None:
        statistics.samples = why.statistics.samples
        statistics.mean_cpi = why.statistics.mean
        statistics.std_cpi = why.statistics.std
        if (robust := why.statistics.robust) is not None:
            statistics.location_log_cpi, statistics.scale_log_cpi = robust.location, robust.scale
    return host_pb2.VmExplanation(
        vm=vm,
        statistics=statistics,
        cpi=or_nan(why.cpi),
        n_cpi=or_nan(why.n_cpi),
        victim_threshold_cpi=or_nan(why.victim_threshold_cpi),
        mn_cpi=or_nan(why.mn_cpi),
        mn_cpi_threshold=why.mn_cpi_threshold,
        victim_slots=why.victim_slots,
        coefficient_version=why.coefficient_version,
        coefficient_age_ns=why.coefficient_age_ns,
        history=[
            host_pb2.CpiPoint(start_unix_ns=p.start_unix_ns, cpi=or_nan(p.cpi), cpu_usage_cores=p.cpu_usage_cores)
            for p in why.history
        ],
        triggered=why.triggered,
    )
