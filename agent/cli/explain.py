"""`whitepanda explain VM`: its numbers, its verdict with the arithmetic, its suspects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from agent.cli import _render as render
from agent.cli._render import UNKNOWN, Column, cell
from agent.local_client import connect, find_socket
from collector.base import Reason
from whitepanda.common.cli import console, print_json
from whitepanda.common.recommendations import recommendation_json, recommendation_lines
from whitepanda.v1 import host_pb2

__all__ = ["explain"]


def explain(
    vm: Annotated[str, typer.Argument(help="Name or UUID of a VM on this host.")],
    socket: Annotated[Path | None, typer.Option(help="Where the agent answers.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="The agent's configuration, which names the socket.")
    ] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="One JSON object for programs.")] = False,
) -> None:
    """Explain one VM: what it does or suffers and how much, its numbers, the verdict's arithmetic, the suspects."""
    with connect(find_socket(socket, config)) as client:
        answer = client.explain(vm)
    if json:
        print_json(_json(answer))
        return
    _head(answer)
    if answer.vm.HasField("cloud_white"):
        _cloud_white(answer)
    _numbers(answer)
    _arithmetic(answer)
    _suspects(answer)
    _recommendations(answer)


def _say(text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)


def _head(answer: host_pb2.VmExplanation) -> None:
    vm = answer.vm
    kind = "latency-sensitive" if vm.latency_sensitive else "not latency-sensitive"
    _say(f"{vm.name}  {vm.uuid}", "bold")
    _say(f"job {vm.job} ({kind}), {vm.vcpus} vCPUs, {vm.state}")
    _say(f"{vm.verdict}: {vm.verdict_reason}", "bold red" if vm.verdict == "victim" else "")
    if math.isfinite(vm.degradation):
        _say(f"slow-down {render.number(vm.degradation)}x: CPI of the last slot / mean CPI of the job")
    else:
        _say(f"slow-down {UNKNOWN}", "dim")  # the line above says why


def _cloud_white(answer: host_pb2.VmExplanation) -> None:
    """Say what the host itself found: behaviour, estimate, evidence, baseline, what changed."""
    found = answer.vm.cloud_white
    word = render.behaviour_word(found.behaviour)
    style = {"victim": "bold red", "inflicting": "yellow"}.get(word, "")
    console.print()
    since = f" for {render.age(found.since_ns)}" if found.since_ns else ""
    _say(f"{word}{since}: {found.reason}", style)
    if found.culprits:
        _say(f"inflicted by {', '.join(found.culprits)}")
    estimate = found.degradation
    if estimate.cannot_tell:
        model = f" (model {estimate.model})" if estimate.model else ""
        _say(
            f"latency against undisturbed {UNKNOWN}: {render.cannot_tell(estimate.cannot_tell)}{model}", "dim"
        )
    elif found.HasField("degradation"):
        _say(f"latency (p95) {render.degradation(estimate)} of undisturbed, by model {estimate.model}")
    state = "ready" if found.baseline_ready else "too young"
    _say(f"baseline of {found.baseline_ticks} ticks ({state}), detector {answer.detector}")
    _workers({signal.name: signal.value for signal in answer.signals})
    _evidence(answer)
    for event in answer.events:
        _say(render.event_line(event), "dim")


def _workers(shown: Mapping[str, float]) -> None:
    """Say how many requests the VM serves at once, and who says so; nothing where nobody does and nobody looks."""
    workers, looks = shown.get("workers"), shown.get("workers_looks")
    if looks is None:
        if workers is not None:
            _say(f"workers: {workers:.0f}, told ([[jobs]] workers)")
        return
    posterior = shown.get("workers_posterior")
    surely = "" if posterior is None else f", posterior {math.floor(posterior * 1000) / 1000:.3f}"
    if workers is None:
        word = "too few looks" if posterior is None else "cannot tell"
        _say(f"workers: {word} ({looks:.0f} looks{surely}), one per vCPU is assumed", "dim")
    else:
        _say(f"workers: {workers:.0f}, learnt ({looks:.0f} looks at running vCPUs{surely})")


def _evidence(answer: host_pb2.VmExplanation) -> None:
    """Show the signals beside their baselines: those that were judged by with their thresholds, first."""
    judged = {shown.signal for shown in answer.evidence}
    learnt = {signal.name: signal.learnt for signal in answer.signals}
    columns = [
        Column("SIGNAL", text=True),
        Column("NOW"),
        Column("LEARNT"),
        Column("EXPECTED"),
        Column("THRESHOLD"),
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
        render.print_table(
            columns, [[cell(name), *(cell(_exact(value)) for value in values)] for name, values in rows]
        )
        _say("learnt: in quiet times, at the load of then; expected: undisturbed, at the present load", "dim")


def _numbers(answer: host_pb2.VmExplanation) -> None:
    console.print()
    columns = [Column("METRIC", text=True), Column("VALUE"), Column("SOURCE", text=True), Column("AGE")]
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
    render.print_table(columns, rows)
    for reason, names in reasons.items():
        _say(f"not known: {', '.join(names)}: {render.remedy(reason)}", "dim")


def _exact(value: float) -> str:
    """Four digits, thousands in full with commas; a dash where not known."""
    if not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"  # noqa: PLR2004 - whole numbers from four digits on


def _arithmetic(answer: host_pb2.VmExplanation) -> None:
    console.print()
    statistics = answer.statistics
    if statistics.samples:
        mean, std = statistics.mean_cpi, statistics.std_cpi
        _say(f"job {statistics.job} on {statistics.platform}, {statistics.samples} samples:")
        _say(f"  CPI mean {mean:.4g}, std {std:.4g}")
        _say(f"  victim above {answer.victim_threshold_cpi:.4g} = {mean:.4g} + 2 * {std:.4g}")
        if math.isfinite(answer.n_cpi):
            arithmetic = f"({answer.cpi:.4g} - {mean:.4g}) / {std:.4g}"
            _say(f"CPI over the last slot {answer.cpi:.4g}: nCPI {answer.n_cpi:.3g} = {arithmetic}")
        elif math.isfinite(answer.cpi):
            _say(f"CPI so far {answer.cpi:.4g}: not comparable yet, see above")
    elif math.isfinite(answer.cpi):
        _say(f"CPI over the last slot {answer.cpi:.4g}; nothing to compare it with")
    if answer.victim_slots:
        _say(f"a victim for {answer.victim_slots} slots in a row")
    if math.isfinite(answer.mn_cpi):
        compared = "above" if answer.mn_cpi > answer.mn_cpi_threshold else "not above"
        found = "contention" if answer.triggered else "no contention by PANDA's rule"
        threshold = f"{answer.mn_cpi_threshold:.3g}"
        _say(f"host: mnCPI {answer.mn_cpi:.3g} is {compared} its threshold {threshold}: {found}")
    if answer.coefficient_version:
        _say(
            f"coefficients: version {answer.coefficient_version}, {render.age(answer.coefficient_age_ns)} old"
        )
    else:
        _say("coefficients: none, central has not sent any", "dim")


def _suspects(answer: host_pb2.VmExplanation) -> None:
    console.print()
    if not answer.suspects:
        _say("no suspects: no other VM here is measured and not latency-sensitive")
        return
    columns = [
        Column("SUSPECT", text=True),
        Column("JOB", text=True),
        Column("COEFFICIENT"),
        Column("CORES"),
        Column("SCORE"),
    ]
    render.print_table(
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
    _say("score = coefficient (mnCPI per core, from the whole fleet) * cores over the last slot", "dim")
    unknown = {render.reason_of(s.reason) for s in answer.suspects if not math.isfinite(s.score)}
    for reason in sorted(unknown):
        _say(f"no score: {render.remedy(reason)}", "dim")


def _recommendations(answer: host_pb2.VmExplanation) -> None:
    if not answer.recommendations:
        return
    console.print()
    _say("what could be done, the best first:", "bold")
    for line in recommendation_lines(answer.recommendations):
        _say(line)


def _json(answer: host_pb2.VmExplanation) -> dict[str, object]:
    known = answer.statistics.samples > 0
    return {
        **render.summary_json(answer.vm),
        "detector": answer.detector or None,
        "evidence": [
            {"signal": e.signal, "value": e.value, "expected": e.baseline, "threshold": e.threshold}
            for e in answer.evidence
        ],
        "signals": {
            s.name: {"value": s.value, "learnt": s.learnt, "expected": s.baseline} for s in answer.signals
        },
        "events": [render.event_json(event) for event in answer.events],
        "statistics": {
            "job": answer.statistics.job,
            "platform": answer.statistics.platform,
            "samples": answer.statistics.samples,
            "mean_cpi": answer.statistics.mean_cpi,
            "std_cpi": answer.statistics.std_cpi,
        }
        if known
        else None,
        "cpi": answer.cpi,
        "n_cpi": answer.n_cpi,
        "victim_threshold_cpi": answer.victim_threshold_cpi,
        "mn_cpi": answer.mn_cpi,
        "mn_cpi_threshold": answer.mn_cpi_threshold,
        "victim_slots": answer.victim_slots,
        "triggered": answer.triggered,
        "coefficient_version": answer.coefficient_version,
        "coefficient_age_s": answer.coefficient_age_ns / 1e9 if answer.coefficient_version else None,
        "suspects": [
            {
                "uuid": s.uuid,
                "name": s.name,
                "job": s.job,
                "coefficient": s.coefficient,
                "cpu_usage_cores": s.cpu_usage_cores,
                "score": s.score,
                "reason": render.reason_of(s.reason).code if s.reason else None,
            }
            for s in answer.suspects
        ],
        "history": [
            {"start_unix_ns": p.start_unix_ns, "cpi": p.cpi, "cpu_usage_cores": p.cpu_usage_cores}
            for p in answer.history
        ],
        "recommendations": [recommendation_json(one) for one in answer.recommendations],
    }
