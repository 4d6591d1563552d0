"""What the agent knows now, for its local API and /metrics: read on the daemon's one loop, so nothing is locked."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.clock import Clock
from agent.host_info import cpu_seconds, open_fds, resident_bytes, threads
from agent.sampling.changes import JoinedVm
from agent.sampling.metric_table import HOST_METRICS, VM_METRICS, AgentMetrics, HostRates, TrafficTotals, Value, VmRates
from agent.sampling.pipeline import Pipeline
from agent.sampling.scheduler import ClockSteps, TickSchedule
from agent.sampling.vms import Vm
from collector.base import Reason, VmIdentity
from collector.inventory.coverage import source_of
from whitepanda.common.messages import message_of
from whitepanda.common.texts import counted
from whitepanda.v1 import host_pb2

if TYPE_CHECKING:
    from agent.analysis.verdict import Verdict as Suffering
    from agent.antagonists.advisor import Advisor
    from agent.antagonists.decide_victims import Decisions
    from agent.antagonists.host_analysis import CpiVerdict, HostAnalysis
    from agent.detection.cloud_white import CloudWhite
    from agent.detection.decision_types import VmDecision
    from whitepanda.common.tls import OwnCertificate


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
    """One VM at the last tick: nothing in it changes afterwards, so another thread may read it."""

    identity: VmIdentity
    job: str
    rates: VmRates
    now: JoinedVm | None = None
    verdict: CpiVerdict | None = None
    suffering: Suffering | None = None
    decision: VmDecision | None = None
    traffic: TrafficTotals | None = None
    owner: str = ""
    latency_sensitive: bool = False


class Snapshot(NamedTuple):
    """What /metrics is made of, at tick `host.ticks`; `mono_ns` is when it was taken.

    `certificates`: the setting of each of the agent's own, and when it ends (Unix time).
    """

    host: host_pb2.HostStatus
    vms: tuple[VmSnapshot, ...]
    mono_ns: int = 0
    certificates: tuple[tuple[str, float], ...] = ()


@dataclass(slots=True)
class AgentState:
    """All that views are made of, only when asked for. None: switched off, or it could not be started."""

    names: Names
    clock: Clock
    pipeline: Pipeline
    schedule: TickSchedule
    counters: Counters = field(default_factory=Counters)
    uplink: Callable[[], host_pb2.UplinkStatus] = lambda: host_pb2.UplinkStatus(state="off")
    analysis: HostAnalysis | None = None
    cloud_white: CloudWhite | None = None
    decisions: Decisions | None = None
    advisor: Advisor | None = None
    history: Callable[[], host_pb2.HistoryStatus] = lambda: host_pb2.HistoryStatus(state="off")
    #: Reads the history on disk, which takes its time; None: it is off.
    moments: Callable[[host_pb2.GetMomentsRequest], host_pb2.GetMomentsResponse] | None = None
    certificates: dict[str, OwnCertificate] = field(default_factory=dict)

    def host(self) -> host_pb2.HostStatus:
        """Return the agent, its sources, its uplink and the host's metrics now."""
        cost_s, rss_bytes = cpu_seconds(), resident_bytes()
        return message_of(
            host_pb2.HostStatus,
            self.names,
            now_unix_ns=self.clock.unix_ns(),
            ticks=self.schedule.ticks,
            missed_ticks=self.schedule.missed,
            sources=self.pipeline.slots.views(),
            uplink=self.uplink(),
            history=self.history(),
            cpu_seconds=cost_s,
            rss_bytes=rss_bytes,
            host_metrics=self._host_metrics() + self._agent_metrics(cost_s, rss_bytes),
            coefficient_version=self.analysis.coefficient_version if self.analysis else 0,
            mn_cpi=self.analysis.mn_cpi if self.analysis else None,
        )

    def status_line(self) -> str:
        """Return how many VMs there are and what does not work, for the service manager."""
        views, uplink = self.pipeline.slots.views(), self.uplink()
        bad = [f"{view.name} {view.state}" for view in views if view.state not in {"available", "off"}]
        parts = [counted(len(self.pipeline.table), "VM"), *bad]
        if uplink.state != "off":
            parts.append(f"central {uplink.state}, {uplink.spooled_batches} batches spooled")
        return "; ".join(parts)

    def vms(self) -> list[Vm]:
        """Return all VMs now, by name."""
        return sorted(self.pipeline.table, key=lambda vm: (vm.identity.name, vm.identity.uuid))

    def metrics_of(self, vm: Vm, names: Collection[str] | None = None) -> list[host_pb2.Metric]:
        """Return a VM's metrics of these names; None: all."""
        now_ns = self.clock.mono_ns()
        found = []
        for index, metric in enumerate(VM_METRICS):
            if names is not None and metric.name not in names:
                continue
            reading = getattr(vm.now, metric.part)
            if isinstance(reading, Reason):
                source = source_of(metric.part, vm.identity.manager, reading, self.pipeline.slots.trouble)
                age_ns = 0
            else:
                source, age_ns = reading.source, max(0, now_ns - (vm.held.get(index) or reading.mono_ns))
            found.append(_metric(metric.name, vm.rates[index], source, age_ns))
        return found

    def snapshot(self) -> Snapshot:
        """Return what /metrics is made of; with 1,000 VMs it takes some milliseconds of the loop."""
        analysis, suffering, decisions = self.analysis, self.cloud_white, self.decisions
        vms = []
        for vm in self.pipeline.table:
            uuid = vm.identity.uuid
            judged = (
                analysis.verdict(uuid) if analysis is not None else None,
                suffering.verdict(uuid) if suffering is not None else None,
                decisions.vm(uuid) if decisions is not None else None,
            )
            own = vm.identity, vm.job, vm.rates, vm.now
            vms.append(VmSnapshot(*own, *judged, vm.traffic.known(vm.now), vm.owner, vm.latency_sensitive))
        ends = ((name, certificate.expiry_unix_s()) for name, certificate in self.certificates.items())
        certificates = tuple((name, end_s) for name, end_s in ends if end_s is not None)
        return Snapshot(self.host(), tuple(vms), self.clock.mono_ns(), certificates)

    def _host_metrics(self) -> list[host_pb2.Metric]:
        rates = self.pipeline.host_rates
        values = rates if isinstance(rates, HostRates) else (rates,) * len(HOST_METRICS)
        source = self.pipeline.host_source
        age_ns = max(0, self.clock.mono_ns() - self.pipeline.host_mono_ns) if source else 0
        return [_metric(metric.name, value, source, age_ns) for metric, value in zip(HOST_METRICS, values, strict=True)]

    def _agent_metrics(self, cost_s: float, rss_bytes: int) -> list[host_pb2.Metric]:
        found = AgentMetrics(
            agent_ticks_total=self.schedule.ticks,
            agent_missed_ticks_total=self.schedule.missed,
            agent_tick_lateness_seconds=self.counters.lateness_ns / 1e9,
            agent_tick_duration_seconds=self.counters.duration_ns / 1e9,
            agent_vm_errors_total=self.pipeline.table.errors,
            agent_sink_errors_total=self.counters.sink_errors,
            agent_tick_errors_total=self.counters.tick_errors,
            agent_windows_total=self.pipeline.windows.closed,
            agent_windows_without_cpu_total=self.pipeline.windows.without_cpu,
            agent_cpu_seconds_total=cost_s,
            agent_resident_bytes=rss_bytes,
            agent_open_fds=open_fds(),
            agent_threads=threads(),
            agent_refused_scrapes_total=self.counters.refused_scrapes,
            agent_clock_steps_total=self.counters.clock.steps,
            agent_analysis_seconds=self.counters.analysis_ns / 1e9,
            agent_dropped_events_total=self.decisions.events.dropped if self.decisions else 0,
        )
        return [
            _metric(name, Reason.NOT_PRESENT if value is None else value, "agent")
            for name, value in found._asdict().items()
        ]


def _metric(name: str, value: Value, source: str, age_ns: int = 0) -> host_pb2.Metric:
    is_unknown = isinstance(value, Reason)
    reason: Any = int(value) if is_unknown else 0
    known = math.nan if is_unknown else value
    return host_pb2.Metric(name=name, value=known, reason=reason, source=source, age_ns=age_ns)
