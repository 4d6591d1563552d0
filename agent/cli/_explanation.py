"""What is told of one VM: its head, what the host found, its numbers, the verdict's arithmetic, its suspects.

Pieces, so that a command prints them and `top` shows them: lines, and grids that take the width they are given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.text import Text

from agent.cli import _render as render
from agent.cli._render import UNKNOWN, Column, cell
from agent.cli._words import DIM, INFLICTING, VICTIM, disagreement, style_of, word_of
from collector.base import Reason
from whitepanda.common.recommendations import recommendation_lines
from whitepanda.v1 import host_pb2

__all__ = ["Grid", "Piece", "arithmetic", "found_here", "head", "numbers", "recommended", "suspects"]


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: its columns and its cells."""

    columns: list[Column]
    rows: list[list[Text]]


Piece = Text | Grid


def _say(text: str, style: str = "") -> Text:
    return Text(text, style=style)


def head(answer: host_pb2.VmExplanation) -> Iterator[Piece]:
    """Say who it is, whether it inflicts, who says so where only one does, and what central's statistics say of it."""
    vm = answer.vm
    kind = "latency-sensitive" if vm.latency_sensitive else "not latency-sensitive"
    yield _say(f"{vm.name}  {vm.uuid}", "bold")
    yield _say(f"job {vm.job} ({kind}), {vm.vcpus} vCPUs, {vm.state}")
    if answer.victims or word_of(vm) is INFLICTING:
        whom = f" on {', '.join(answer.victims)}" if answer.victims else ""
        yield _say(f"inflicting{whom}, by the host's own analysis", INFLICTING.style)
    if told_apart := disagreement(vm):
        yield _say(told_apart, VICTIM.style)
    yield _say(
        f"{vm.verdict} by central's statistics: {vm.verdict_reason}",
        style_of(vm.verdict) if vm.verdict == VICTIM.text else "",
    )
    if math.isfinite(vm.degradation):
        yield _say(f"slow-down {render.number(vm.degradation)}x: CPI of the last slot / mean CPI of the job")
    else:
        yield _say(f"slow-down {UNKNOWN}", DIM)  # the line above says why


def found_here(answer: host_pb2.VmExplanation) -> Iterator[Piece]:
    """Say what the host itself found: behaviour, estimate, evidence, baseline, what changed."""
    if not answer.vm.HasField("cloud_white"):
        return
    found = answer.vm.cloud_white
    word = render.behaviour_word(found.behaviour)
    yield Text()
    since = f" for {render.age(found.since_ns)}" if found.since_ns else ""
    yield _say(f"{word}{since} by the host's own analysis: {found.reason}", style_of(word))
    if found.culprits:
        yield _say(f"inflicted by {', '.join(found.culprits)}")
    estimate = found.degradation
    if estimate.cannot_tell:
        model = f" (model {estimate.model})" if estimate.model else ""
        yield _say(
            f"latency against undisturbed {UNKNOWN}: {render.cannot_tell(estimate.cannot_tell)}{model}", DIM
        )
    elif found.HasField("degradation"):
        yield _say(f"latency (p95) {render.degradation(estimate)} of undisturbed, by model {estimate.model}")
        yield from _nevertheless(answer)
    state = "ready" if found.baseline_ready else "too young"
    yield _say(f"baseline of {found.baseline_ticks} ticks ({state}), detector {answer.detector}")
    yield from _workers({signal.name: signal.value for signal in answer.signals})
    yield from _evidence(answer)
    for event in answer.events:
        yield _say(render.event_line(event), DIM)


def _nevertheless(answer: host_pb2.VmExplanation) -> Iterator[Piece]:
    """Say by which rule a VM is a victim although the interval of its estimate holds 1; else nothing."""
    vm, estimate = answer.vm, answer.vm.cloud_white.degradation
    if word_of(vm) is not VICTIM or not estimate.low <= 1 <= estimate.high:
        return
    rules = []
    if render.behaviour(vm) == VICTIM.text:
        signals = ", ".join(one.signal for one in answer.evidence)
        rules.append(f"detector {answer.detector} says so by {signals}")
    if vm.verdict == VICTIM.text:
        rules.append("central's statistics say so by CPI")
    yield _say(
        f"a victim although the interval holds 1: {' and '.join(rules)}; the interval is of the model's estimate alone"
    )


def _workers(shown: Mapping[str, float]) -> Iterator[Piece]:
    """Say how many requests the VM serves at once, and who says so; nothing where nobody does and nobody looks."""
    workers, looks = shown.get("workers"), shown.get("workers_looks")
    if looks is None:
        if workers is not None:
            yield _say(f"workers: {workers:.0f}, told ([[jobs]] workers)")
        return
    posterior = shown.get("workers_posterior")
    surely = "" if posterior is None else f", posterior {math.floor(posterior * 1000) / 1000:.3f}"
    if workers is None:
        word = "too few looks" if posterior is None else "cannot tell"
        yield _say(f"workers: {word} ({looks:.0f} looks{surely}), one per vCPU is assumed", DIM)
    else:
        yield _say(f"workers: {workers:.0f}, learnt ({looks:.0f} looks at running vCPUs{surely})")


def _evidence(answer: host_pb2.VmExplanation) -> Iterator[Piece]:
    """Show the signals beside their baselines: those that were judged by with their thresholds, first."""
    judged = {shown.signal for shown in answer.evidence}
    learnt = {signal.name: signal.learnt for signal in answer.signals}
    columns = [
        Column("SIGNAL", text=True),
        Column("NOW"),
        Column("LEARNT", rank=3),
        Column("EXPECTED", rank=1),
        Column("THRESHOLD", rank=2),
    ]
    rows = [
        (one.signal, (one.value, learnt.get(one.signal, math.nan), one.baseline, one.threshold))
        for one in answer.evidence
    ]
    rows += [
        (one.name, (one.value, one.learnt, one.baseline, math.nan))
        for one in answer.signals
        if one.name not in judged
    ]
    if rows:
        yield Grid(
            columns, [[cell(name), *(cell(_exact(value)) for value in values)] for name, values in rows]
        )
        yield _say(
            "learnt: in quiet times, at the load of then; expected: undisturbed, at the present load", DIM
        )


def numbers(answer: host_pb2.VmExplanation) -> Iterator[Piece]:
    """Show all metrics, and why those that are not known are not."""
    yield Text()
    columns = [
        Column("METRIC", text=True),
        Column("VALUE"),
        Column("SOURCE", text=True, rank=1),
        Column("AGE", rank=2),
    ]
    rows = []
    reasons: dict[Reason, list[str]] = {}
    for metric in answer.vm.metrics:
        known = math.isfinite(metric.value)
        if not known:
            reasons.setdefault(render.reason_of(metric.reason), []).append(metric.name)
        rows.append(
            [
                cell(metric.name),
                cell(_exact(metric.value)),
                cell(metric.source or UNKNOWN),
                cell(render.age(metric.age_ns) if known else UNKNOWN),
            ]
        )
    yield Grid(columns, rows)
    for reason, names in reasons.items():
        yield _say(f"not known: {', '.join(names)}: {render.remedy(reason)}", DIM)


_WHOLE_FROM = 1000  # numbers of four digits before the point have none behind it


def _exact(value: float) -> str:
    """Four digits, thousands in full with commas; a dash where not known."""
    if not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= _WHOLE_FROM else f"{value:.4g}"


def arithmetic(answer: host_pb2.VmExplanation) -> Iterator[Piece]:
    """Show the numbers behind the verdict by the job's statistics."""
    yield Text()
    statistics = answer.statistics
    if statistics.samples:
        mean, std = statistics.mean_cpi, statistics.std_cpi
        yield _say(f"job {statistics.job} on {statistics.platform}, {statistics.samples} samples:")
        yield _say(f"  CPI mean {mean:.4g}, std {std:.4g}")
        yield _say(f"  victim above {answer.victim_threshold_cpi:.4g} = {mean:.4g} + 2 * {std:.4g}")
        if math.isfinite(answer.n_cpi):
            yield _say(f"CPI over the last slot {answer.cpi:.4g}: nCPI {_n_cpi(answer)}")
        elif math.isfinite(answer.cpi):
            yield _say(f"CPI so far {answer.cpi:.4g}: not comparable yet, see above")
    elif math.isfinite(answer.cpi):
        yield _say(f"CPI over the last slot {answer.cpi:.4g}; nothing to compare it with")
    if answer.victim_slots:
        yield _say(f"a victim for {answer.victim_slots} slots in a row")
    if math.isfinite(answer.mn_cpi):
        compared = "above" if answer.mn_cpi > answer.mn_cpi_threshold else "not above"
        found = "contention" if answer.triggered else "no contention by PANDA's rule"
        threshold = f"{answer.mn_cpi_threshold:.3g}"
        yield _say(f"host: mnCPI {answer.mn_cpi:.3g} is {compared} its threshold {threshold}: {found}")
    if answer.coefficient_version:
        yield _say(
            f"coefficients: version {answer.coefficient_version}, {render.old(answer.coefficient_age_ns)}"
        )
    else:
        yield _say("coefficients: none, central has not sent any", DIM)


def _n_cpi(answer: host_pb2.VmExplanation) -> str:
    """Say how nCPI comes of CPI: by the statistics of ln(CPI) where central sent these, and whether it is cut."""
    told, found = answer.statistics, answer.n_cpi
    if not told.scale_log_cpi:
        return f"{found:.3g} = ({answer.cpi:.4g} - {told.mean_cpi:.4g}) / {told.std_cpi:.4g}"
    location, scale = told.location_log_cpi, told.scale_log_cpi
    off = f"- {location:.4g}" if location >= 0 else f"+ {-location:.4g}"
    by = f"(ln {answer.cpi:.4g} {off}) / {scale:.4g}, by median and quartiles"
    uncut = (math.log(answer.cpi) - location) / scale
    return f"{found:.3g} = {by}" if uncut == found else f"{uncut:.3g} = {by}; cut to {found:.3g}"


def suspects(answer: host_pb2.VmExplanation) -> Iterator[Piece]:
    """Show who may be to blame, by score; nothing for a VM that does not suffer."""
    if word_of(answer.vm) is not VICTIM:
        return
    yield Text()
    if not answer.suspects:
        yield _say("no suspects: no other VM here is measured and not latency-sensitive")
        return
    columns = [
        Column("SUSPECT", text=True),
        Column("JOB", text=True, rank=3),
        Column("COEFFICIENT", rank=2),
        Column("CORES", rank=1),
        Column("SCORE"),
    ]
    yield Grid(
        columns,
        [
            [
                cell(s.name),
                cell(s.job),
                cell(render.number(s.coefficient)),
                cell(render.number(s.cpu_usage_cores)),
                cell(render.number(s.score)),
            ]
            for s in answer.suspects
        ],
    )
    yield _say("score = coefficient (mnCPI per core, from the whole fleet) * cores over the last slot", DIM)
    unknown = {render.reason_of(s.reason) for s in answer.suspects if not math.isfinite(s.score)}
    for reason in sorted(unknown):
        yield _say(f"no score: {render.remedy(reason)}", DIM)


def recommended(answer: host_pb2.VmExplanation) -> Iterator[Piece]:
    """Say what could be done, the best first."""
    if not answer.recommendations:
        return
    yield Text()
    yield _say("what could be done, the best first:", "bold")
    for line in recommendation_lines(answer.recommendations):
        yield _say(line)
