"""The text of /metrics, made of a `Snapshot` by `agent.sampling.metric_table.METRICS`.

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
from agent.detection.decision_types import VERDICTS, is_running
from agent.sampling.changes import Reading
from agent.sampling.metric_table import METRICS, TRAFFIC_METRICS, VM_METRICS
from agent.sampling.metric_table import Metric as Row
from collector.base import VM_PARTS, Reason
from whitepanda.common.texts import clean_name
from whitepanda.v1 import host_pb2

_PLACES = {part: tuple(index for index, metric in enumerate(VM_METRICS) if metric.part == part) for part in VM_PARTS}


def family_name(metric: Row) -> str:
    """Return a metric's name in /metrics: with a prefix, and "second" spelt out as Prometheus wants it."""
    scope = "vm_" if metric.scope in {"vm", "traffic"} else ""
    name = f"{metric.name.removesuffix('_s')}_second" if metric.name.endswith("_per_s") else metric.name
    return f"whitepanda_{scope}{name}"


class _Families(Collector):
    """One snapshot as Prometheus' library wants it. Texts are clean: invalid UTF-8 would spoil the page."""

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
        text = "The agent's version, the host's CPU model and its name at central; always 1."
        info = GaugeMetricFamily("whitepanda_agent_info", text)
        labels = {"version": self._host.agent_version, "platform": clean_name(self._host.platform)}
        labels["host"] = clean_name(self._host.host)
        info.add_sample(info.name, labels, 1)
        yield info
        values = {one.name: one.value for one in self._host.host_metrics if not math.isnan(one.value)}
        sources = [({"source": one.name}, _of_source(one)) for one in self._host.sources if one.state != "off"]
        for metric in METRICS:
            if metric.scope in {"host", "agent"}:
                yield _family(metric, [({}, values.get(metric.name))])
            elif metric.scope == "certificate":
                ends = self._snapshot.certificates
                yield _family(metric, [({"certificate": setting}, end_s) for setting, end_s in ends])
            elif metric.scope == "source":
                yield _family(metric, [(labels, known[metric.name]) for labels, known in sources])
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


def _of_source(source: host_pb2.SourceStatus) -> dict[str, float | None]:
    # Of `auto` sources that cannot be here success would always be 0: no reason for an alert.
    worked = source.samples or source.failures or source.state != "unavailable"
    return {
        "source_success": source.state == "available" if worked else None,
        "source_samples_total": source.samples,
        "source_failures_total": source.failures,
        "source_age_seconds": source.age_ns / 1e9 if source.samples else None,
        "source_duration_seconds": source.duration_ns / 1e9 if source.samples else None,
    }


def _of_uplink(name: str, uplink: host_pb2.UplinkStatus) -> float:
    if name == "uplink_connected":
        return uplink.state == "connected"
    return float(getattr(uplink, name.removeprefix("uplink_").removesuffix("_total")))


#: What a VM has beside its metrics and totals: name and help.
_VM_FAMILIES = {
    "info": "Whose the VM is, of which kind and who runs it; a label that is not known is empty; always 1.",
    "victim": "1 where the VM is a victim now, 0 where it is none; unknown, or not running: no sample.",
    "behaviour": "1 for the VM's verdict now, 0 for the others; unknown: no sample.",
    "degradation_ratio": "CPI of the last slot / the job's mean, at least 1; of any VM, also one that suffers nothing.",
    "suspect": "1 for the first suspect of each victim.",
    "slow_down_ratio": "Slow-down of a VM that suffers, as shown: of its latency, else of CPI; alert on this one.",
    "slow_down_low_ratio": "Lower end of that estimate's interval.",
    "slow_down_high_ratio": "Upper end of that estimate's interval.",
    "baseline_ticks": "Ticks without interference that the VM's baseline was learnt from.",
    "baseline_ready": "1 where the VM's baseline is old enough.",
    "slow_down_absent": "1 for a VM that suffers and whose slow-down cannot be estimated, with why.",
    "part_age_seconds": "Age of what each part of a VM's metrics is made of, and its source.",
    "part_absent": "1 for each part of a VM of which nothing is known, with the reason.",
    "metric_absent": "1 for each metric that is not known while others of its part are.",
}
_Labels = dict[str, str]
#: One sample: the family's name, its labels beside those of the VM, its value.
_Sample = tuple[str, _Labels, float]


def _of_vms(snapshot: Snapshot) -> Iterator[Metric]:
    labelled = [
        ({"vm": clean_name(vm.identity.uuid), "name": clean_name(vm.identity.name), "job": clean_name(vm.job)}, vm)
        for vm in snapshot.vms
    ]
    for index, metric in enumerate(VM_METRICS):
        values = ((labels, vm.rates[index]) for labels, vm in labelled)
        yield _family(metric, ((labels, value) for labels, value in values if value.__class__ is not Reason))
    for index, metric in enumerate(TRAFFIC_METRICS):
        yield _family(metric, ((labels, vm.traffic[index]) for labels, vm in labelled if vm.traffic))
    families = {name: GaugeMetricFamily(f"whitepanda_vm_{name}", text) for name, text in _VM_FAMILIES.items()}
    for labels, vm in labelled:
        for name, more, value in (_identity(vm), *_verdicts(vm), *_ages(vm, snapshot.mono_ns)):
            family = families[name]
            family.add_sample(family.name, {**labels, **more}, value)
        for name, more, value in _absences(vm):  # which are many: without the labels that others have
            family = families[name]
            family.add_sample(family.name, {"vm": labels["vm"], **more}, value)
        time.sleep(0)
    yield from families.values()


def _identity(vm: VmSnapshot) -> _Sample:
    """Whose a VM is, once per VM: other metrics are joined with it rather than bear these labels."""
    facts = vm.identity.facts
    whose = {
        "project": clean_name(facts.get("nova:project", "")),
        "flavor": clean_name(facts.get("nova:flavor", "")),
        "owner": clean_name(vm.owner),
        "manager": clean_name(vm.identity.manager),
        "latency_sensitive": str(vm.latency_sensitive).lower(),
    }
    return "info", whose, 1


def _verdicts(vm: VmSnapshot) -> Iterator[_Sample]:
    held, slow_down = vm.decision, vm.decision.slow_down if vm.decision is not None else None
    if held is not None and held.verdict != "unknown" and is_running(vm.identity.state):
        yield "victim", {}, held.verdict == "victim"
        for word in VERDICTS[1:]:
            yield "behaviour", {"behaviour": word}, held.verdict == word
        if slow_down is not None:
            ends = (("ratio", slow_down.ratio), ("low_ratio", slow_down.low), ("high_ratio", slow_down.high))
            yield from ((f"slow_down_{name}", {}, value) for name, value in ends if math.isfinite(value))
        if held.verdict == "victim" and (one := held.suspect) is not None:
            names = {"suspect": one.uuid, "suspect_name": one.name, "suspect_job": one.job}
            yield "suspect", {label: clean_name(text) for label, text in names.items()}, 1
    if vm.verdict is not None and vm.verdict.degradation is not None:
        yield "degradation_ratio", {}, vm.verdict.degradation
    if vm.suffering is not None:
        yield "baseline_ticks", {}, vm.suffering.baseline_ticks
        yield "baseline_ready", {}, vm.suffering.baseline_ready
        if slow_down is not None and slow_down.cannot_tell:
            yield "slow_down_absent", {"reason": slow_down.cannot_tell}, 1


def _ages(vm: VmSnapshot, mono_ns: int) -> Iterator[_Sample]:
    for part in _PLACES:
        reading = getattr(vm.now, part, None)
        if isinstance(reading, Reading):
            of = {"part": part, "source": reading.source}
            yield "part_age_seconds", of, max(0, mono_ns - reading.mono_ns) / 1e9


def _absences(vm: VmSnapshot) -> Iterator[_Sample]:
    for part, places in _PLACES.items():
        absent = [(place, why) for place in places if isinstance(why := vm.rates[place], Reason)]
        if len(absent) == len(places):
            yield "part_absent", {"part": part, "reason": absent[0][1].code}, 1
        else:
            for place, why in absent:
                yield "metric_absent", {"metric": VM_METRICS[place].name, "reason": why.code}, 1


def render(snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
    """Make the page of a snapshot in the format that `accept` (the HTTP header) asks for; return it and its type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(snapshot))
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type
