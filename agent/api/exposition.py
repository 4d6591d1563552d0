"""The text of /metrics, made of a `Snapshot` by `agent.sampling.METRICS`.

A value that is not known has no sample; `whitepanda_vm_part_absent` says why where all of a part is absent,
`whitepanda_vm_metric_absent` where only that metric is. Source and age come once per VM and part, so that a series
stays the same one when another source takes over.
"""

import math
import time
from collections.abc import Iterable, Iterator

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from agent.api.state import Snapshot, VmSnapshot
from agent.detection.verdicts import VERDICTS, runs
from agent.sampling.changes import Reading
from agent.sampling.metrics import METRICS, TRAFFIC_METRICS, VM_METRICS
from agent.sampling.metrics import Metric as Row
from collector.base import VM_PARTS, Reason
from whitepanda.common.texts import clean_name
from whitepanda.v1 import host_pb2

_PLACES = {
    part: places
    for part in VM_PARTS
    if (places := tuple(index for index, metric in enumerate(VM_METRICS) if metric.part == part))
}


def family_name(metric: Row) -> str:
    """Return a metric's name in /metrics: with a prefix, and "second" spelt out as Prometheus wants it."""
    scope = "vm_" if metric.scope in {"vm", "traffic"} else ""
    name = metric.name
    return (
        f"whitepanda_{scope}{name.removesuffix('_s')}_second"
        if name.endswith("_per_s")
        else f"whitepanda_{scope}{name}"
    )


# -- a snapshot as metric families


class _Families(Collector):
    """One snapshot as Prometheus' library wants it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._host = snapshot.host

    def collect(self) -> Iterator[Metric]:
        """Give out all families. Between two other threads (the tick's) may run."""
        for family in self._families():
            if family.samples:
                yield family
            time.sleep(0)

    def _families(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("whitepanda_agent_info", "The agent's version and the host's CPU model; always 1.")
        labels = {"version": self._host.agent_version, "platform": _label(self._host.platform)}
        info.add_sample(info.name, labels, 1)
        yield info
        values = {one.name: one.value for one in self._host.host_metrics if not math.isnan(one.value)}
        for metric in METRICS:
            if metric.scope in {"host", "agent"}:
                yield _family(metric, [({}, values.get(metric.name))])
            elif metric.scope == "certificate":
                ends = self._snapshot.certificates
                yield _family(metric, [({"certificate": setting}, end_s) for setting, end_s in ends])
            elif metric.scope == "source":
                yield _family(metric, _of_sources(metric.name, self._host.sources))
            elif metric.scope == "uplink" and self._host.uplink.state != "off":
                yield _family(metric, [({}, _of_uplink(metric.name, self._host.uplink))])
        yield from _of_vms(self._snapshot)


def _family(metric: Row, samples: Iterable[tuple[dict[str, str], float | None]]) -> Metric:
    name = family_name(metric)
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family: Metric = kind(name, metric.help)
    for labels, value in samples:
        if value is not None:
            family.add_sample(name, labels, value)
    return family


def _of_sources(name: str, sources: Iterable[host_pb2.SourceStatus]) -> Iterator[tuple[dict[str, str], float | None]]:
    for source in sources:
        if source.state != "off":
            yield {"source": source.name}, _of_source(name, source)


def _of_source(name: str, source: host_pb2.SourceStatus) -> float | None:
    match name:
        case "source_success":
            # Of `auto` sources that cannot be here it would always be 0: no reason for an alert.
            worked = source.samples or source.failures or source.state != "unavailable"
            return source.state == "available" if worked else None
        case "source_samples_total":
            return source.samples
        case "source_failures_total":
            return source.failures
        case "source_age_seconds":
            return source.age_ns / 1e9 if source.samples else None
        case "source_duration_seconds":
            return source.duration_ns / 1e9 if source.samples else None
    raise AssertionError(name)


def _of_uplink(name: str, uplink: host_pb2.UplinkStatus) -> float:
    if name == "uplink_connected":
        return uplink.state == "connected"
    return float(getattr(uplink, name.removeprefix("uplink_").removesuffix("_total")))


def _of_vms(snapshot: Snapshot) -> Iterator[Metric]:
    labelled = [
        ({"vm": _label(vm.identity.uuid), "name": _label(vm.identity.name), "job": _label(vm.job)}, vm)
        for vm in snapshot.vms
    ]
    for index, metric in enumerate(VM_METRICS):
        values = ((labels, vm.rates[index]) for labels, vm in labelled)
        yield _family(metric, ((labels, value) for labels, value in values if not isinstance(value, Reason)))
    for index, metric in enumerate(TRAFFIC_METRICS):
        totals = ((labels, vm.traffic[index]) for labels, vm in labelled if vm.traffic)
        yield _family(metric, totals)
    yield _infos(labelled)
    yield from _verdicts(labelled)
    yield from _cloud_white(labelled)
    yield _ages(labelled, snapshot.mono_ns)
    yield from _absences(labelled)


_SLOW_DOWN = (
    (
        "slow_down_ratio",
        "ratio",
        "The slow-down that the views show of a VM that suffers: of its latency, else of CPI; alert on this one.",
    ),
    ("slow_down_low_ratio", "low", "Lower end of that estimate's interval."),
    ("slow_down_high_ratio", "high", "Upper end of that estimate's interval."),
)


def _infos(labelled: Iterable[tuple[dict[str, str], VmSnapshot]]) -> Metric:
    """Whose a VM is, once per VM: other metrics are joined with it rather than bear these labels."""
    info = GaugeMetricFamily(
        "whitepanda_vm_info",
        "Whose the VM is, of which kind and who runs it; a label that is not known is empty; always 1.",
    )
    for labels, vm in labelled:
        facts = vm.identity.facts
        whose = {
            "project": _label(facts.get("nova:project", "")),
            "flavor": _label(facts.get("nova:flavor", "")),
            "owner": _label(vm.owner),
            "manager": _label(vm.identity.manager),
            "latency_sensitive": str(vm.latency_sensitive).lower(),
        }
        info.add_sample(info.name, {**labels, **whose}, 1)
    return info


def _verdicts(labelled: Iterable[tuple[dict[str, str], VmSnapshot]]) -> Iterator[Metric]:
    victim = GaugeMetricFamily(
        "whitepanda_vm_victim",
        "1 where the VM is a victim now, 0 where it is none; unknown, or not running: no sample.",
    )
    behaviour = GaugeMetricFamily(
        "whitepanda_vm_behaviour", "1 for the VM's verdict now, 0 for the others; unknown: no sample."
    )
    degradation = GaugeMetricFamily(
        "whitepanda_vm_degradation_ratio",
        "CPI of the last slot / the job's mean CPI, at least 1; of any VM, also one that suffers nothing.",
    )
    suspect = GaugeMetricFamily("whitepanda_vm_suspect", "1 for the first suspect of each victim.")
    estimates = [(GaugeMetricFamily(f"whitepanda_vm_{name}", text), field) for name, field, text in _SLOW_DOWN]
    for labels, vm in labelled:
        held = vm.decision
        if held is not None and held.verdict != "unknown" and runs(vm.identity.state):
            victim.add_sample(victim.name, labels, held.verdict == "victim")
            for word in VERDICTS[1:]:
                behaviour.add_sample(behaviour.name, {**labels, "behaviour": word}, held.verdict == word)
            for family, field in estimates if held.slow_down is not None else ():
                value = getattr(held.slow_down, field)
                if math.isfinite(value):
                    family.add_sample(family.name, labels, value)
            if held.verdict == "victim" and held.suspect is not None:
                one = held.suspect
                whose = {"suspect": _label(one.uuid), "suspect_name": _label(one.name), "suspect_job": _label(one.job)}
                suspect.add_sample(suspect.name, {**labels, **whose}, 1)
        verdict = vm.verdict
        if verdict is not None and verdict.degradation is not None:
            degradation.add_sample(degradation.name, labels, verdict.degradation)
    yield from (victim, behaviour, degradation, suspect)
    yield from (family for family, _ in estimates)


def _cloud_white(labelled: Iterable[tuple[dict[str, str], VmSnapshot]]) -> Iterator[Metric]:
    ticks = GaugeMetricFamily(
        "whitepanda_vm_baseline_ticks", "Ticks without interference that the VM's baseline was learnt from."
    )
    ready = GaugeMetricFamily("whitepanda_vm_baseline_ready", "1 where the VM's baseline is old enough.")
    unknown = GaugeMetricFamily(
        "whitepanda_vm_slow_down_absent", "1 for a VM that suffers and whose slow-down cannot be estimated, with why."
    )
    for labels, vm in labelled:
        verdict = vm.suffering
        if verdict is None:
            continue
        ticks.add_sample(ticks.name, labels, verdict.baseline_ticks)
        ready.add_sample(ready.name, labels, verdict.baseline_ready)
        found = vm.decision.slow_down if vm.decision is not None else None
        if found is not None and found.cannot_tell:
            unknown.add_sample(unknown.name, {**labels, "reason": found.cannot_tell}, 1)
    yield from (ticks, ready, unknown)


def _ages(labelled: Iterable[tuple[dict[str, str], VmSnapshot]], mono_ns: int) -> Metric:
    ages = GaugeMetricFamily(
        "whitepanda_vm_part_age_seconds", "Age of what each part of a VM's metrics is made of, and its source."
    )
    for labels, vm in labelled:
        for part in _PLACES:
            reading = getattr(vm.now, part, None)
            if isinstance(reading, Reading):
                told = {**labels, "part": part, "source": reading.source}
                ages.add_sample(ages.name, told, max(0, mono_ns - reading.mono_ns) / 1e9)
    return ages


def _absences(labelled: Iterable[tuple[dict[str, str], VmSnapshot]]) -> Iterator[Metric]:
    parts = GaugeMetricFamily(
        "whitepanda_vm_part_absent", "1 for each part of a VM of which nothing is known, with the reason."
    )
    single = GaugeMetricFamily(
        "whitepanda_vm_metric_absent", "1 for each metric that is not known while others of its part are."
    )
    for labels, vm in labelled:
        for part, places in _PLACES.items():
            absent = [(place, why) for place in places if isinstance(why := vm.rates[place], Reason)]
            if len(absent) == len(places):
                why = absent[0][1]
                parts.add_sample(parts.name, {"vm": labels["vm"], "part": part, "reason": why.code}, 1)
                continue
            for place, why in absent:
                told = {"vm": labels["vm"], "metric": VM_METRICS[place].name, "reason": why.code}
                single.add_sample(single.name, told, 1)
    yield parts
    yield single


def _label(text: str) -> str:
    """Bound a text that others made. What is no UTF-8 would spoil the whole page."""
    return clean_name(text)


def render(snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
    """Make the page of a snapshot in the format that `accept` (the HTTP header) asks for; return it and its type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(snapshot))
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type
