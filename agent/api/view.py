"""The daemon's side of `agent.api.state`: views of what it knows, made only when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from agent.api.state import HostView
from agent.clock import Clock
from agent.host_info import cpu_seconds, open_fds, resident_bytes, threads
from agent.sampling.changes import JoinedVm
from agent.sampling.metrics import METRICS, HostRates, Metric, VmRates
from agent.sampling.pipeline import Pipeline
from agent.sampling.scheduler import ClockSteps, TickSchedule
from agent.sampling.views import MetricView, VmView
from agent.sampling.vms import Vm
from agent.uplink.view import UplinkView
from collector.base import Reason, VmIdentity
from collector.inventory.coverage import source_of

if TYPE_CHECKING:
    from agent.antagonists.advice import Advisor
    from agent.antagonists.decisions import Decisions
    from agent.antagonists.host_analysis import HostAnalysis, Verdict
    from agent.antagonists.vm_decision import VmDecision
    from agent.detection.cloud_white import CloudWhite
    from agent.detection.verdicts import Verdict as Suffering
    from whitepanda.common.tls import OwnCertificate


_VM_METRICS = tuple(metric for metric in METRICS if metric.scope == "vm")
_HOST_METRICS = tuple(metric for metric in METRICS if metric.scope == "host")


@dataclass(frozen=True, slots=True)
class Names:
    """What does not change while the agent runs."""

    host: str
    platform: str
    agent_version: str
    started_unix_ns: int
    window_ms: int


@dataclass(slots=True)
class Counters:
    """What the daemon counts of itself, beside what its parts count."""

    lateness_ns: int = 0
    duration_ns: int = 0
    analysis_ns: int = 0
    sink_errors: int = 0
    tick_errors: int = 0
    refused_scrapes: int = 0
    clock: ClockSteps = field(default_factory=ClockSteps)


class VmSnapshot(NamedTuple):
    """One VM's rates of the last tick, as they are: cheap to take, never changed afterwards."""

    uuid: str
    name: str
    job: str
    rates: VmRates
    now: JoinedVm | None = None
    verdict: Verdict | None = None
    suffering: Suffering | None = None
    state: str = "running"
    decision: VmDecision | None = None
    traffic: tuple[int | None, ...] = ()  # `agent.sampling.traffic.TRAFFIC`; None: not known
    identity: VmIdentity | None = None
    owner: str = ""
    latency_sensitive: bool = False


class Snapshot(NamedTuple):
    """What /metrics is made of, at tick `host.ticks`; `mono_ns` is when it was taken."""

    host: HostView
    vms: tuple[VmSnapshot, ...]
    mono_ns: int = 0


@dataclass(slots=True)
class StateView:
    """`agent.api.state.AgentState`. `uplink` gives the stream's status; `analysis` None: it could not start.

    `cloud_white` None: it is off, or could not start; `advisor` None: the analysis could not.
    """

    names: Names
    clock: Clock
    pipeline: Pipeline
    schedule: TickSchedule
    counters: Counters = field(default_factory=Counters)
    uplink: Callable[[], UplinkView] = UplinkView
    analysis: HostAnalysis | None = None
    cloud_white: CloudWhite | None = None
    decisions: Decisions | None = None
    advisor: Advisor | None = None
    certificates: dict[str, OwnCertificate] = field(default_factory=dict)

    def host(self) -> HostView:
        """Return the host's status now."""
        cost_s, rss_bytes = cpu_seconds(), resident_bytes()
        return HostView(
            host=self.names.host,
            agent_version=self.names.agent_version,
            platform=self.names.platform,
            now_unix_ns=self.clock.unix_ns(),
            started_unix_ns=self.names.started_unix_ns,
            ticks=self.schedule.ticks,
            missed_ticks=self.schedule.missed,
            sources=self.pipeline.slots.views(),
            uplink=self.uplink(),
            cpu_seconds=cost_s,
            rss_bytes=rss_bytes,
            window_ms=self.names.window_ms,
            metrics=self._host_metrics() + self._agent_metrics(cost_s, rss_bytes),
            certificates=tuple(
                (name, end_s)
                for name, certificate in self.certificates.items()
                if (end_s := certificate.expiry_unix_s()) is not None
            ),
        )

    def vms(self, metrics: Collection[str] | None = None) -> tuple[VmView, ...]:
        """Return all VMs now, by name, with the metrics of these names; None: with all."""
        now_ns = self.clock.mono_ns()
        wanted = [(at, one) for at, one in enumerate(_VM_METRICS) if metrics is None or one.name in metrics]
        views = [self._vm(vm, wanted, now_ns) for vm in self.pipeline.table]
        return tuple(sorted(views, key=lambda view: (view.name, view.uuid)))

    def vm(self, uuid: str) -> VmView | None:
        """Return one VM now with all its metrics; None where it is not here."""
        found = next((vm for vm in self.pipeline.table if vm.identity.uuid == uuid), None)
        return None if found is None else self._vm(found, tuple(enumerate(_VM_METRICS)), self.clock.mono_ns())

    def snapshot(self) -> Snapshot:
        """Return what /metrics is made of; with 1,000 VMs it takes some milliseconds of the loop."""
        judge = self.analysis.verdict if self.analysis is not None else lambda _uuid: None
        suffering = self.cloud_white.verdict if self.cloud_white is not None else lambda _uuid: None
        decide = self.decisions.vm if self.decisions is not None else lambda _uuid: None
        vms = (
            VmSnapshot(
                uuid,
                vm.identity.name,
                vm.job,
                vm.rates,
                vm.now,
                judge(uuid),
                suffering(uuid),
                vm.identity.state,
                decide(uuid),
                vm.traffic.known(vm.now),
                vm.identity,
                vm.owner,
                vm.latency_sensitive,
            )
            for vm in self.pipeline.table
            for uuid in (vm.identity.uuid,)
        )
        return Snapshot(self.host(), tuple(vms), self.clock.mono_ns())

    def _vm(self, vm: Vm, wanted: Sequence[tuple[int, Metric]], now_ns: int) -> VmView:
        identity = vm.identity
        return VmView(
            uuid=identity.uuid,
            name=identity.name,
            job=vm.job,
            latency_sensitive=vm.latency_sensitive,
            epoch=identity.epoch,
            state=identity.state,
            vcpus=identity.vcpus,
            metrics=tuple(
                self._vm_metric(vm, metric, vm.rates[index], now_ns, vm.held.get(index)) for index, metric in wanted
            ),
            owner=vm.owner,
            quota_cores=vm.quota_cores,
            manager=identity.manager,
            vmid=identity.facts.get("pve:vmid", ""),
        )

    def _vm_metric(self, vm: Vm, metric: Metric, value: float | Reason, now_ns: int, held_ns: int | None) -> MetricView:
        reading = getattr(vm.now, metric.part)
        if isinstance(reading, Reason):
            source = source_of(metric.part, vm.identity.manager, reading, self.pipeline.slots.trouble)
            return _metric(metric.name, value, source, 0)
        return _metric(metric.name, value, reading.source, max(0, now_ns - (held_ns or reading.mono_ns)))

    def _host_metrics(self) -> tuple[MetricView, ...]:
        rates = self.pipeline.host_rates
        values = rates if isinstance(rates, HostRates) else (rates,) * len(_HOST_METRICS)
        source = self.pipeline.host_source
        age_ns = max(0, self.clock.mono_ns() - self.pipeline.host_mono_ns) if source else 0
        return tuple(
            _metric(metric.name, value, source, age_ns) for metric, value in zip(_HOST_METRICS, values, strict=True)
        )

    def _agent_metrics(self, cost_s: float, rss_bytes: int) -> tuple[MetricView, ...]:
        values: dict[str, float | None] = {
            "agent_ticks_total": self.schedule.ticks,
            "agent_missed_ticks_total": self.schedule.missed,
            "agent_tick_lateness_seconds": self.counters.lateness_ns / 1e9,
            "agent_tick_duration_seconds": self.counters.duration_ns / 1e9,
            "agent_vm_errors_total": self.pipeline.table.errors,
            "agent_sink_errors_total": self.counters.sink_errors,
            "agent_tick_errors_total": self.counters.tick_errors,
            "agent_windows_total": self.pipeline.windows.closed,
            "agent_windows_without_cpu_total": self.pipeline.windows.without_cpu,
            "agent_cpu_seconds_total": cost_s,
            "agent_resident_bytes": rss_bytes,
            "agent_open_fds": open_fds(),
            "agent_threads": threads(),
            "agent_refused_scrapes_total": self.counters.refused_scrapes,
            "agent_clock_steps_total": self.counters.clock.steps,
            "agent_analysis_seconds": self.counters.analysis_ns / 1e9,
            "agent_dropped_events_total": self.decisions.events.dropped if self.decisions else 0,
        }
        return tuple(
            MetricView(name, None, Reason.NOT_PRESENT, "agent")
            if value is None
            else MetricView(name, float(value), source="agent")
            for name, value in values.items()
        )


def _metric(name: str, value: float | Reason, source: str, age_ns: int) -> MetricView:
    if isinstance(value, Reason):
        return MetricView(name, None, value, source, age_ns)
    return MetricView(name, value, Reason.UNSPECIFIED, source, age_ns)
