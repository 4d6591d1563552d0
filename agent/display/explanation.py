"""What is shown of one VM: its head, what the host found, its numbers, the verdict's arithmetic, its suspects.

Each is lines and grids, which a command prints and `top` shows.
"""

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import NamedTuple

from rich.text import Text

from agent.display import render
from agent.display.render import UNKNOWN, Column, cell
from agent.display.words import AFFECTED, DIM, INFLICTING, VICTIM, found_by, slow_down_of, word_of
from collector.base import Reason
from whitepanda.common.recommendations import recommendation_lines
from whitepanda.common.texts import counted
from whitepanda.v1 import host_pb2


class Grid(NamedTuple):
    """A table: its columns and its cells."""

    columns: list[Column]
    rows: list[list[Text]]


Piece = Text | Grid


#: What an analysis finds by itself; the verdict is made of both.
_FINDS = {
    "victim": "suffers",
    "normal": "nothing found",
    "steady": "as usual",
    "inflicting": "does more than usual",
    "unknown": "cannot tell",
}


def head(answer: host_pb2.VmExplanation) -> Iterator[Piece]:
    """Say who it is, and what is held of it: the verdict, by how much, from whom, by which analyses, and why."""
    vm = answer.vm
    kind = "latency-sensitive" if vm.latency_sensitive else "not latency-sensitive"
    yield Text(f"{vm.name}  {vm.uuid}", "bold")
    yield Text(f"job {vm.job} ({kind}), {counted(vm.vcpus, 'vCPU')}, {vm.state}")
    word, decision = word_of(vm), vm.decision
    since = f" for {render.age(decision.since_ns)}" if decision.since_ns else ""
    yield Text(f"{word.text}{since}: {decision.reason}", word.style)
    if word in (VICTIM, AFFECTED):
        found = slow_down_of(vm)
        if math.isfinite(found.ratio):
            of = "CPI / mean CPI of the job" if found.model == "cpi" else "latency (p95)"
            # The last estimate counts for a while after the model cannot estimate any more
            # (`agent.antagonists.decide_victims`).
            is_old = found.model != "cpi" and vm.cloud_white.degradation.cannot_tell
            yield Text(f"slow-down {render.degradation(found)}: {of}{', of a moment ago' if is_old else ''}")
        else:
            yield Text(f"slow-down {UNKNOWN}: {render.cannot_tell(found.cannot_tell)}", DIM)
        blamed = decision.suspects
        more = len(blamed) - 1 + decision.suspects_left_out
        below = f", {more} more below" if more > 0 else ""
        yield Text(f"first suspect {blamed[0].name}{below}" if blamed else "no suspect")
        yield Text(f"found by {found_by(vm)}")
    elif answer.victims:
        yield Text(f"these suffer from it: {', '.join(answer.victims)}", INFLICTING.style)


def found_here(answer: host_pb2.VmExplanation) -> Iterator[Piece]:
    """Say what the host's own analysis finds: estimate, evidence, baseline, what changed."""
    yield Text()
    if not answer.vm.HasField("cloud_white"):
        yield Text("the host's own analysis is off", DIM)
        return
    found = answer.vm.cloud_white
    since = f" for {render.age(found.since_ns)}" if found.since_ns else ""
    finds = _FINDS.get(render.behaviour_word(found.behaviour), "cannot tell")
    reason = "same reason" if found.reason and found.reason == answer.vm.decision.reason else found.reason
    yield Text(f"the host's own analysis: {finds}{since}: {reason}")
    estimate = found.degradation
    if estimate.cannot_tell:
        model = f" (model {estimate.model})" if estimate.model else ""
        yield Text(f"latency against undisturbed {UNKNOWN}: {render.cannot_tell(estimate.cannot_tell)}{model}", DIM)
    elif found.HasField("degradation"):
        yield Text(f"latency (p95) {render.degradation(estimate)} of undisturbed, by model {estimate.model}")
    state = "ready" if found.baseline_ready else "too young"
    yield Text(f"baseline of {counted(found.baseline_ticks, 'tick')} ({state}), detector {answer.detector}")
    yield from _workers({signal.name: signal.value for signal in answer.signals})
    yield from _evidence(answer)
    for event in answer.events:
        yield Text(render.event_line(event), DIM)


def _workers(shown: Mapping[str, float]) -> Iterator[Piece]:
    """Say how many requests the VM serves in parallel, and whether that is configured or learnt."""
    workers, looks = shown.get("workers"), shown.get("workers_looks")
    if looks is None:
        if workers is not None:
            yield Text(f"workers: {workers:.0f}, configured ([[jobs]] workers)")
        return
    posterior = shown.get("workers_posterior")
    surely = "" if posterior is None else f", posterior {math.floor(posterior * 1000) / 1000:.3f}"
    if workers is None:
        word = "too few samples" if posterior is None else "cannot tell"
        yield Text(f"workers: {word} ({counted(round(looks), 'sample')}{surely}), one per vCPU is assumed", DIM)
    else:
        yield Text(f"workers: {workers:.0f}, learnt ({counted(round(looks), 'sample')} at running vCPUs{surely})")


def _evidence(answer: host_pb2.VmExplanation) -> Iterator[Piece]:
    """Show the signals next to their baselines: first the ones behind the verdict, with their thresholds."""
    judged = {shown.signal for shown in answer.evidence}
    learnt = {signal.name: signal.learnt for signal in answer.signals}
    ranks = {"SIGNAL": 0, "NOW": 0, "LEARNT": 3, "EXPECTED": 1, "THRESHOLD": 2}
    rows = [
        (one.signal, one.value, learnt.get(one.signal, math.nan), one.baseline, one.threshold)
        for one in answer.evidence
    ]
    rows += [
        (one.name, one.value, one.learnt, one.baseline, math.nan) for one in answer.signals if one.name not in judged
    ]
    if rows:
        yield _grid(ranks, ("SIGNAL",), ((name, *map(_exact, values)) for name, *values in rows))
        about = "learnt: in quiet times, and slowly while others inflict; expected: the same at the present load"
        yield Text(about, DIM)


def numbers(answer: host_pb2.VmExplanation) -> Iterator[Piece]:
    """Show all metrics, and why those that are not known are not."""
    yield Text()
    rows = []
    reasons: dict[Reason, list[str]] = {}
    for metric in answer.vm.metrics:
        known = math.isfinite(metric.value)
        if not known:
            reasons.setdefault(render.reason_of(metric.reason), []).append(metric.name)
        age = render.age(metric.age_ns) if known else UNKNOWN
        rows.append((metric.name, _exact(metric.value), metric.source or UNKNOWN, age))
    yield _grid({"METRIC": 0, "VALUE": 0, "SOURCE": 1, "AGE": 2}, ("METRIC", "SOURCE"), rows)
    for reason, names in reasons.items():
        yield Text(f"not known: {', '.join(names)}: {render.remedy(reason)}", DIM)


_WHOLE_FROM = 1000  # numbers of four digits before the point have none behind it


def _exact(value: float) -> str:
    """Four digits, thousands in full with commas; a dash if not known."""
    if not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= _WHOLE_FROM else f"{value:.4g}"


def _grid(ranks: Mapping[str, int], text: Container[str], rows: Iterable[Iterable[str]]) -> Grid:
    return Grid(render.columns(ranks, text), [list(map(cell, row)) for row in rows])


def arithmetic(answer: host_pb2.VmExplanation) -> Iterator[Piece]:
    """Show what the fleet's statistics find, with the numbers."""
    yield Text()
    vm = answer.vm
    yield Text(f"the fleet's statistics: {_FINDS.get(vm.verdict, 'cannot tell')}: {vm.verdict_reason}")
    if math.isfinite(vm.degradation):
        yield Text(f"{render.number(vm.degradation)}x: CPI of the last slot / mean CPI of the job")
    statistics = answer.statistics
    if statistics.samples:
        mean, std = statistics.mean_cpi, statistics.std_cpi
        yield Text(f"job {statistics.job} on {statistics.platform}, {counted(statistics.samples, 'sample')}:")
        yield Text(f"  CPI mean {mean:.4g}, std {std:.4g}")
        yield Text(f"  threshold {answer.victim_threshold_cpi:.4g} = {mean:.4g} + 2 * {std:.4g}")
        if math.isfinite(answer.n_cpi):
            yield Text(f"CPI over the last slot {answer.cpi:.4g}: nCPI {_n_cpi(answer)}")
        elif math.isfinite(answer.cpi):
            yield Text(f"CPI so far {answer.cpi:.4g}: not comparable yet")
    elif math.isfinite(answer.cpi):
        yield Text(f"CPI over the last slot {answer.cpi:.4g}; nothing to compare it with")
    if answer.victim_slots:
        yield Text(f"over its threshold for {counted(answer.victim_slots, 'slot')} in a row")
    if math.isfinite(answer.mn_cpi):
        # The host's trigger also looks at how long.
        short = "not for long enough to be contention" if answer.mn_cpi > answer.mn_cpi_threshold else "no contention"
        contention = "contention" if answer.triggered else short
        yield Text(f"host: mnCPI {answer.mn_cpi:.3g}, threshold {answer.mn_cpi_threshold:.3g}: {contention}")
    if answer.coefficient_version:
        yield Text(f"coefficients: version {answer.coefficient_version}, {render.old(answer.coefficient_age_ns)}")
    else:
        yield Text("coefficients: none, central has not sent any", DIM)


def _n_cpi(answer: host_pb2.VmExplanation) -> str:
    """Say how nCPI follows from CPI: by the statistics of ln(CPI) if central sent them, and whether it is cut."""
    fleet, found = answer.statistics, answer.n_cpi
    if not fleet.scale_log_cpi:
        return f"{found:.3g} = ({answer.cpi:.4g} - {fleet.mean_cpi:.4g}) / {fleet.std_cpi:.4g}"
    location, scale = fleet.location_log_cpi, fleet.scale_log_cpi
    off = f"- {location:.4g}" if location >= 0 else f"+ {-location:.4g}"
    by = f"(ln {answer.cpi:.4g} {off}) / {scale:.4g}, by median and quartiles"
    uncut = (math.log(answer.cpi) - location) / scale
    return f"{found:.3g} = {by}" if uncut == found else f"{uncut:.3g} = {by}; cut to {found:.3g}"


def suspects(answer: host_pb2.VmExplanation) -> Iterator[Piece]:
    """Show who may be to blame, the likeliest first; nothing for a VM that does not suffer."""
    if word_of(answer.vm) not in (VICTIM, AFFECTED):
        return
    yield Text()
    if not answer.suspects:
        yield Text("no suspects: no other VM here does more than usual, or all measured ones are latency-sensitive")
        return
    ranks = {"SUSPECT": 0, "JOB": 3, "COEFFICIENT": 2, "CORES": 1, "SCORE": 0, "INFLICTS": 0}
    rows = []
    for one in answer.suspects:
        values = map(render.number, (one.coefficient, one.cpu_usage_cores, one.score))
        rows.append((one.name, one.job, *values, "yes" if one.inflicts else UNKNOWN))
    yield _grid(ranks, ("SUSPECT", "JOB", "INFLICTS"), rows)
    yield Text("inflicts: by the host's own analysis", DIM)
    yield Text("score = coefficient (mnCPI per core, from the whole fleet) * cores over the last slot", DIM)
    for reason in sorted({render.reason_of(s.reason) for s in answer.suspects if not math.isfinite(s.score)}):
        yield Text(f"no score: {render.remedy(reason)}", DIM)


def recommended(answer: host_pb2.VmExplanation) -> Iterator[Piece]:
    """Say what could be done, the best first."""
    if not answer.recommendations:
        return
    yield Text()
    yield Text("what could be done, the best first:", "bold")
    for line in recommendation_lines(answer.recommendations):
        yield Text(line)
