"""Columns of measured numbers, by the titles in the table of metrics: values, when one is left out, and why."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from agent.display import render
from agent.sampling.metric_table import VM_METRICS
from collector.base import Reason
from whitepanda.v1 import host_pb2


class Numbers(NamedTuple):
    """A column of measured numbers. `metrics` are summed; it vanishes if no VM has them."""

    title: str
    metrics: tuple[str, ...]
    show: Callable[[float], str]


_SHOW: Mapping[str, Callable[[float], str]] = {"ratio": render.percent, "bytes": render.si, "bytes/s": render.si}
#: All that the table of metrics has a title for, by title.
NUMBERS = {
    one.title: Numbers(
        one.title,
        tuple(metric.name for metric in VM_METRICS if metric.title == one.title),
        _SHOW.get(one.unit, render.number),
    )
    for one in VM_METRICS
    if one.title
}


def values_of(vm: host_pb2.VmSummary) -> dict[str, float]:
    """Return a VM's metrics by name; NaN is not known."""
    return {m.name: m.value for m in vm.metrics}


def sum_of(found: Mapping[str, float], names: Iterable[str]) -> float | None:
    """Sum of metrics; None if one of them is not known."""
    total = sum(found.get(name, math.nan) for name in names)
    return total if math.isfinite(total) else None


def missing(columns: Iterable[Numbers], listed: Sequence[host_pb2.VmSummary]) -> list[Numbers]:
    """Return the columns that no VM has a value for."""
    values = [values_of(vm) for vm in listed]
    return [c for c in columns if all(sum_of(found, c.metrics) is None for found in values)]


def not_shown(
    columns: Iterable[Numbers], listed: Sequence[host_pb2.VmSummary], status: host_pb2.HostStatus
) -> list[str]:
    """Say of columns that are left out why: one line per reason."""
    by_reason: dict[Reason, list[Numbers]] = {}
    for column in columns:
        reasons = Counter(m.reason for vm in listed for m in vm.metrics if m.name in column.metrics and m.reason)
        reason = render.reason_of(reasons.most_common(1)[0][0]) if reasons else Reason.SOURCE_OFF
        by_reason.setdefault(reason, []).append(column)
    lines = []
    for reason, lacking in by_reason.items():
        names = {name for column in lacking for name in column.metrics}
        titles = ", ".join(column.title for column in lacking)
        found = (metric for vm in listed for metric in vm.metrics if metric.name in names)
        sources = {metric.source for metric in found if int(metric.reason) == reason}
        # The source's own words if its state is the cause: they know this host.
        details = [one.detail for one in status.sources if one.name in sources and one.state in render.BROKEN]
        detail = next(filter(None, details), "")
        lines.append(f"not shown: {titles}: {f'{reason.code}: {detail}' if detail else render.remedy(reason)}")
    return lines
