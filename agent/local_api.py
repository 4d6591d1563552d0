"""The agent's local API: gRPC on a unix socket, read-only. The CLI's source, and any local program's.

Who may ask is a matter of the socket's mode (0660) and of its folder's group: there is no TCP here.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import math
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from agent.batches import behaviour_number, degradation_message, event_message, evidence_message
from agent.host_analysis import Explanation, Verdict
from agent.recommendation_messages import recommendation_message
from agent.state import AgentState, MetricView, SourceView, UplinkView, VmView
from agent.verdicts import Reasoning
from agent.verdicts import Verdict as Suffering
from collector.base import Reason
from whitepanda.common import log
from whitepanda.common.errors import ConfigError, UnavailableError
from whitepanda.v1 import agent_pb2, host_pb2, host_pb2_grpc

__all__ = ["MAX_MESSAGE_BYTES", "LocalApi"]

#: Of an answer; 1,000 VMs with all metrics are about 1 MB. Questions are small.
MAX_MESSAGE_BYTES = 32 << 20
_MAX_REQUEST_BYTES = 64 << 10
_SOCKET_MODE = 0o660
_MAX_PATH_BYTES = 107  # sun_path, less its final NUL
_SERVICE = host_pb2.DESCRIPTOR.services_by_name["LocalHost"].full_name


class LocalApi:
    """The server on the unix socket.

    Args:
        state: what the agent knows; read on the loop that `start` was called on.
        path: the socket. Its folder is made if it is missing.

    """

    def __init__(self, state: AgentState, path: Path) -> None:
        self._state = state
        self._path = path
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self._log = log.get("local_api")

    async def start(self) -> None:
        """Begin to answer.

        Raises:
            ConfigError: the path cannot be a socket's: too long, or something else is there.
            UnavailableError: another agent answers there, or the folder may not be written.

        """
        _prepare(self._path)
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ]
        )
        host_pb2_grpc.add_LocalHostServicer_to_server(_Servicer(self._state), server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        # The socket must not be open to everybody even for the moment before its mode is set.
        umask = os.umask(0o777 & ~_SOCKET_MODE)
        try:
            server.add_insecure_port(f"unix:{self._path}")
        except RuntimeError as error:
            raise UnavailableError(f"cannot listen at {self._path}: {error}; see agent.socket") from error
        finally:
            os.umask(umask)
        self._path.chmod(_SOCKET_MODE)
        with contextlib.suppress(PermissionError):
            # The folder's group is who may ask. Not root: then it is our own group, which is as well.
            os.chown(self._path, -1, self._path.parent.stat().st_gid)
        await server.start()
        self._server = server
        for service in ("", _SERVICE):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        self._log.info("local API answers", socket=str(self._path))

    async def stop(self, grace_s: float = 0.5) -> None:
        """Stop answering and remove the socket; may be called twice."""
        server, self._server = self._server, None
        if server is None:
            return
        await self._health.enter_graceful_shutdown()
        await server.stop(grace_s)
        self._path.unlink(missing_ok=True)


def _prepare(path: Path) -> None:
    """Make the folder; remove a socket at which nobody answers any more."""
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        limit = f"longer than {_MAX_PATH_BYTES} bytes, the most of a unix socket"
        raise ConfigError(f"agent.socket is {limit} (value {str(path)!r})")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise UnavailableError(f"cannot make the folder of agent.socket {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"agent.socket {path} exists and is no socket; remove it, or set another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        code = probe.connect_ex(str(path))
    if code in (errno.ECONNREFUSED, errno.ENOENT):
        path.unlink(missing_ok=True)
        return
    if code in (errno.EACCES, errno.EPERM):
        raise UnavailableError(f"no permission for the socket {path}: another user's agent; set agent.socket")
    raise UnavailableError(f"another agent runs here: it answers at {path}; stop it, or set agent.socket")


class _Servicer(host_pb2_grpc.LocalHostServicer):  # type: ignore[misc] # generated code is untyped
    """Turns the state's views into messages."""

    def __init__(self, state: AgentState) -> None:
        self._state = state

    async def GetStatus(  # noqa: N802 - the name in the proto
        self, _request: host_pb2.GetStatusRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> host_pb2.HostStatus:
        host, analysis = self._state.host(), self._state.analysis
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
            mn_cpi=_number(analysis.mn_cpi if analysis else None),
        )

    async def ListVms(  # noqa: N802 - the name in host.proto
        self, _request: host_pb2.ListVmsRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> host_pb2.ListVmsResponse:
        host, analysis = self._state.host(), self._state.analysis
        return host_pb2.ListVmsResponse(
            now_unix_ns=host.now_unix_ns,
            host=host.host,
            vms=self._summaries(),
            triggered=bool(analysis and analysis.triggered),
        )

    async def ExplainVm(  # noqa: N802 - the name in host.proto
        self, request: host_pb2.ExplainVmRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> host_pb2.VmExplanation:
        vms = self._state.vms()
        vm = next((v for v in vms if request.vm in (v.uuid, v.name)), None)
        if vm is None:
            await _not_found(request.vm, vms, context)
        analysis, cloud_white = self._state.analysis, self._state.cloud_white
        if analysis is None:
            answer = host_pb2.VmExplanation(
                vm=_vm(vm, self._verdict(vm)),
                cpi=math.nan,
                n_cpi=math.nan,
                victim_threshold_cpi=math.nan,
                mn_cpi=math.nan,
                mn_cpi_threshold=math.nan,
            )
        else:
            answer = _explanation(vm, analysis.explain(vm.uuid), self._state.host().platform)
        if cloud_white is not None:
            why = cloud_white.explain(vm.uuid)
            _add_reasoning(answer, why)
            names = {v.uuid: v.name for v in vms}
            answer.vm.cloud_white.CopyFrom(_suffering(why.verdict, cloud_white.since_ns(why.verdict), names))
        if self._state.advisor is not None:
            answer.recommendations.extend(map(recommendation_message, self._state.advisor.for_vm(vm.uuid)))
        return answer

    def _summaries(self) -> list[host_pb2.VmSummary]:
        vms, cloud_white = self._state.vms(), self._state.cloud_white
        summaries = [_vm(vm, self._verdict(vm)) for vm in vms]
        if cloud_white is not None:
            names = {vm.uuid: vm.name for vm in vms}
            for vm, summary in zip(vms, summaries, strict=True):
                verdict = cloud_white.verdict(vm.uuid)
                summary.cloud_white.CopyFrom(_suffering(verdict, cloud_white.since_ns(verdict), names))
        return summaries

    def _verdict(self, vm: VmView) -> Verdict:
        analysis = self._state.analysis
        if analysis is None:
            reason = "the analysis could not be started: see the agent's log"
            return Verdict("unknown", reason, None, Reason.SOURCE_FAILED)
        return analysis.verdict(vm.uuid)


async def _not_found(
    asked: str, vms: tuple[VmView, ...], context: grpc.aio.ServicerContext[Any, Any]
) -> NoReturn:
    if not asked:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "name a VM: its name or UUID")
    names = [name for vm in vms for name in (vm.name, vm.uuid)]
    near = difflib.get_close_matches(asked, names, n=3, cutoff=0.5)
    if near:
        hint = f"did you mean {', '.join(near)}?"
    elif vms:
        hint = f"there are {len(vms)}, such as {vms[0].name}; `whitepanda vms` lists them"
    else:
        hint = "there is none on this host now"
    await context.abort(grpc.StatusCode.NOT_FOUND, f"no VM has the name or UUID {asked[:80]!r}: {hint}")
    raise AssertionError  # abort has raised


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _reason(reason: Reason) -> agent_pb2.Reason:
    return cast("agent_pb2.Reason", int(reason))


def _metric(metric: MetricView) -> host_pb2.Metric:
    return host_pb2.Metric(
        name=metric.name,
        value=_number(metric.value),
        reason=_reason(metric.reason),
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
        last_error=uplink.last_error,
    )


def _vm(vm: VmView, verdict: Verdict) -> host_pb2.VmSummary:
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
        degradation=_number(verdict.degradation),
        top_suspect=verdict.top_suspect,
        owner=vm.owner,
        quota_cores=_number(vm.quota_cores),
    )


def _suffering(verdict: Suffering, since_ns: int, names: Mapping[str, str]) -> host_pb2.CloudWhite:
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
        host_pb2.Signal(name=one.name, value=one.value, baseline=one.expected, learnt=one.learnt)
        for one in why.signals
    )
    answer.events.extend(event_message(event) for event in why.events)


def _explanation(vm: VmView, why: Explanation, platform: str) -> host_pb2.VmExplanation:
    statistics = agent_pb2.JobStatistics(job=vm.job, platform=platform)
    if why.statistics is not None:
        statistics.samples = why.statistics.samples
        statistics.mean_cpi = why.statistics.mean
        statistics.std_cpi = why.statistics.std
    return host_pb2.VmExplanation(
        vm=_vm(vm, why.verdict),
        statistics=statistics,
        cpi=_number(why.cpi),
        n_cpi=_number(why.n_cpi),
        victim_threshold_cpi=_number(why.victim_threshold_cpi),
        mn_cpi=_number(why.mn_cpi),
        mn_cpi_threshold=why.mn_cpi_threshold,
        victim_slots=why.victim_slots,
        coefficient_version=why.coefficient_version,
        coefficient_age_ns=why.coefficient_age_ns,
        suspects=[
            host_pb2.Suspect(
                uuid=s.uuid,
                name=s.name,
                job=s.job,
                coefficient=_number(s.coefficient),
                cpu_usage_cores=s.cpu_usage_cores,
                score=_number(s.score),
                reason=_reason(s.reason),
            )
            for s in why.suspects
        ],
        history=[
            host_pb2.CpiPoint(
                start_unix_ns=p.start_unix_ns,
                cpi=_number(p.cpi),
                cpu_usage_cores=p.cpu_usage_cores,
            )
            for p in why.history
        ],
        triggered=why.triggered,
    )
