"""What the agent knows as messages of the local API: for the server on the socket, and for a recording that is shown.

Everything is made at once from `agent.api.state`, on the loop that owns it; nothing here waits.
"""

from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace

from agent.analysis.verdict import Verdict
from agent.antagonists.host_analysis import CpiVerdict, Explanation
from agent.api.state import AgentState
from agent.sampling.vms import Vm
from agent.uplink.messages import (
    analysis_numbers,
    behaviour_number,
    event_message,
    evidence_message,
    recommendation_message,
)
from whitepanda.common.messages import message_of
from whitepanda.v1 import agent_pb2, host_pb2

_SUSPECTS = 5  # that are named of a VM in a list
_NOT_ANALYSED = SimpleNamespace(cpi=None, n_cpi=None, victim_threshold_cpi=None, mn_cpi=None, mn_cpi_threshold=None)


def vms_message(state: AgentState, metrics: Collection[str] | None = None) -> host_pb2.ListVmsResponse:
    """Return all VMs now, with the metrics of these names; None: with all."""
    return message_of(
        host_pb2.ListVmsResponse,
        state.host(),
        vms=summary_messages(state, state.vms(), metrics),
        triggered=bool(state.analysis and state.analysis.triggered),
        decision=decision_message(state),
    )


def decision_message(state: AgentState) -> host_pb2.HostDecision | None:
    """Return the verdict on the host; None: the agent is starting."""
    decided = None if state.decisions is None else state.decisions.host
    return message_of(host_pb2.HostDecision, decided, victims=len(decided.victims)) if decided else None


def summary_messages(
    state: AgentState, vms: Sequence[Vm], metrics: Collection[str] | None = None
) -> list[host_pb2.VmSummary]:
    """Return these VMs now, with the metrics of these names; None: with all."""
    cloud_white, summaries = state.cloud_white, [_summary(vm, state, metrics) for vm in vms]
    if cloud_white is not None:
        names = {vm.identity.uuid: vm.identity.name for vm in state.vms()}
        for summary in summaries:
            verdict = cloud_white.verdict(summary.uuid)
            summary.cloud_white.CopyFrom(_suffering(verdict, cloud_white.since_ns(verdict), names))
    return summaries


def explanation_message(state: AgentState, uuid: str) -> host_pb2.VmExplanation | None:
    """Return all that the verdict on one VM is made of, None where it is not here."""
    vms = {vm.identity.uuid: vm for vm in state.vms()}
    if uuid not in vms:
        return None
    summary = _summary(vms[uuid], state)
    analysis, cloud_white, decisions = state.analysis, state.cloud_white, state.decisions
    names = {one: vm.identity.name for one, vm in vms.items()}
    if analysis is None:
        answer = message_of(host_pb2.VmExplanation, _NOT_ANALYSED, vm=summary)
    else:
        answer = _explanation(summary, analysis.explain(uuid), state.names.platform)
    if cloud_white is not None:
        why = cloud_white.explain(uuid)
        answer.detector = why.detector
        answer.evidence.extend(map(evidence_message, why.verdict.evidence))
        answer.signals.extend(message_of(host_pb2.Signal, one, baseline=one.expected) for one in why.signals)
        answer.vm.cloud_white.CopyFrom(_suffering(why.verdict, cloud_white.since_ns(why.verdict), names))
        if not answer.vm.decision.HasField("slow_down") and answer.vm.cloud_white.HasField("degradation"):
            answer.vm.decision.slow_down.CopyFrom(answer.vm.cloud_white.degradation)
    if decisions is not None:
        answer.victims.extend(names.get(one, one) for one in decisions.hurt_by(uuid))
        answer.events.extend(event_message(event) for event in decisions.events.of(uuid))
        answer.suspects.extend(message_of(host_pb2.Suspect, one) for one in decisions.suspects(uuid))
    if state.advisor is not None:
        answer.recommendations.extend(map(recommendation_message, state.advisor.for_vm(uuid)))
    return answer


def _summary(vm: Vm, state: AgentState, metrics: Collection[str] | None = None) -> host_pb2.VmSummary:
    analysis, uuid = state.analysis, vm.identity.uuid
    if analysis is None:
        verdict = CpiVerdict("unknown", "the analysis could not be started: see the agent's log")
    else:
        verdict = analysis.verdict(uuid)
    return message_of(
        host_pb2.VmSummary,
        vm.identity,
        job=vm.job,
        latency_sensitive=vm.latency_sensitive,
        owner=vm.owner,
        quota_cores=vm.quota_cores,
        metrics=state.metrics_of(vm, metrics),
        verdict=verdict.verdict,
        verdict_reason=verdict.reason,
        degradation=verdict.degradation,
        job_mean_cpi=analysis.job_mean_cpi(uuid) if analysis else None,
        decision=_decision(uuid, state),
    )


def _decision(uuid: str, state: AgentState) -> host_pb2.VmDecision:
    decisions = state.decisions
    if decisions is None:
        return host_pb2.VmDecision(verdict=behaviour_number("unknown"), reason="the agent is starting")
    one = decisions.vm(uuid)
    return message_of(
        host_pb2.VmDecision,
        one,
        verdict=behaviour_number(one.verdict),
        since_ns=decisions.since_ns(one),
        found_by=analysis_numbers(one.found_by),
        suspects=one.suspects[:_SUSPECTS],
        suspects_left_out=max(0, len(one.suspects) - _SUSPECTS),
    )


def _suffering(verdict: Verdict, since_ns: int, names: Mapping[str, str]) -> host_pb2.CloudWhite:
    return message_of(
        host_pb2.CloudWhite,
        verdict,
        behaviour=behaviour_number(verdict.behaviour),
        since_ns=since_ns,
        culprits=[names.get(uuid, uuid) for uuid in verdict.culprits],
    )


def _explanation(vm: host_pb2.VmSummary, why: Explanation, platform: str) -> host_pb2.VmExplanation:
    known, statistics = why.statistics, agent_pb2.JobStatistics(job=vm.job, platform=platform)
    if known is not None:
        statistics.samples, statistics.mean_cpi, statistics.std_cpi = known.samples, known.mean, known.std
        if known.robust is not None:
            statistics.location_log_cpi, statistics.scale_log_cpi = known.robust.location, known.robust.scale
    # Suspects come from both analyses together: `agent.antagonists.decide_victims`.
    return message_of(host_pb2.VmExplanation, why, vm=vm, statistics=statistics, suspects=())
