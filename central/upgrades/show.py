"""What `whitepanda fleet` prints: tables with bars for people, and a comparison as JSON."""

from pathlib import Path
from typing import Any

from rich.table import Table

from central.models.wsmeter import Comparison, Interval
from central.plotting.figures import bar, signed_bar
from central.upgrades.draw import Drawn
from central.upgrades.plan import Fidelity, Plan
from whitepanda.common.cli import console

_SHOWN = 20
_BAR = 24
_TINY_GAP = 5e-5  # would be 0.00 %
_WIDE_COLUMNS = 100  # of a screen that has room for values and bars
_WIDER_COLUMNS = 120  # and for the instances of both sides
_REASONS = {
    "only_current": "only in CURRENT",
    "only_new": "only in NEW",
    "no_weight": "without a weight",
    "too_few": "with too few instances",
    "not_top": "not among the heaviest",
}


def _interval_json(found: Interval, scale: float = 1.0) -> dict[str, float]:
    names = ("value", "low", "high", "margin", "standard_error")
    return {name: scale * getattr(found, name) for name in names} | {"degrees_of_freedom": found.degrees}


def _percent_json(found: Interval | None) -> dict[str, float] | None:
    return None if found is None else _interval_json(found, 100.0)


def comparison_json(found: Comparison) -> dict[str, Any]:
    """Return a comparison for programs; differences and their intervals in percent."""
    return {
        "current": _interval_json(found.current),
        "new": _interval_json(found.new),
        "difference_percent": _percent_json(found.difference),
        "p": found.p,
        "independent_percent": _percent_json(found.independent),
        "baseline_percent": _percent_json(found.baseline),
        "coverage": found.coverage,
        "confidence": found.confidence,
        "machines": {"current": found.machines[0], "new": found.machines[1]},
        "instances": {"current": found.instances[0], "new": found.instances[1]},
        "left_out": found.left_out,
        "jobs": [
            {
                **{name: getattr(job, name) for name in ("job", "weight", "current", "new")},
                "instances": {"current": job.instances[0], "new": job.instances[1]},
                "difference_percent": _percent_json(job.difference),
                **{name: getattr(job, name) for name in ("p", "adjusted_p", "verdict")},
            }
            for job in found.jobs
        ],
    }


def show_plan(made: Plan) -> None:
    """Print a plan: its heaviest jobs, and what it costs."""
    fidelity = made.fidelity
    table = Table(title="Observe", title_justify="left")
    table.add_column("job", no_wrap=True)
    more = ("more",) if fidelity is not None else ()
    for name in ("weight", "instances", "there are", *more):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    observe = made.solution.observe
    for k in range(min(_SHOWN, len(observe))):
        cells = [f"{made.jobs.weight[k]:.1%}", f"{observe[k]:,}", f"{made.jobs.instances[k]:,}"]
        cells += [f"{made.more[k]:,}"] if more else []
        table.add_row(str(made.jobs.job[k]), *cells, bar(float(observe[k]), float(observe.max()), _BAR))
    console.print(table)
    if len(observe) > _SHOWN:
        _say(f"... and {_counted(len(observe) - _SHOWN, 'more job')}; all with --json")
    counts = f"{_counted(len(observe), 'job')}, {_counted(int(observe.sum()), 'instance')}"
    _say(f"{counts}, cost {made.solution.cost:.6g}: {_proof(made)}")
    margin = f"margin {made.options.margin_percent:g} % asked, {made.expected_margin_percent:.3g} % reached"
    margin += f", of {made.metric_mean:.4g} at t = {made.options.t:g}"
    _say(f"{margin}; the jobs have {made.coverage:.1%} of the weight")
    if made.too_few:
        _say(f"{_counted(made.too_few, 'job')} with fewer than {made.options.min_instances} instances left out")
    if made.baseline_machines is not None:
        _say(f"machine granularity would need {_counted(made.baseline_machines, 'machine')}")
    if fidelity is not None:
        _show_fidelity(made, fidelity)


def _show_fidelity(made: Plan, found: Fidelity) -> None:
    independent = f"{found.independent_margin_percent:.3g} % were instances independent"
    on = f"on {found.coverage:.1%} of the plan's weight"
    _say(f"observed: margin {found.margin_percent:.3g} % ({independent}) {on}")
    more = f"not met: {_counted(int(made.more.sum()), 'more instance')}, cost {made.jobs.cost @ made.more:.6g}"
    _say("met" if found.is_met else more)
    if found.larger:
        _say(f"larger standard deviation than planned with: {_counted(len(found.larger), 'job')}")


def show_comparison(found: Comparison, metric: str, weighed_by: str) -> None:
    """Print a comparison: its heaviest jobs, and what the fleet gained."""
    share = f"{100 * found.confidence:g} %"
    is_wide, is_wider = console.width >= _WIDE_COLUMNS, console.width >= _WIDER_COLUMNS
    table = Table(title=f"{metric}, weighed by {weighed_by}", title_justify="left")
    table.add_column("job", no_wrap=True)
    shown_values = ("current", "new", *(("n",) if is_wider else ())) if is_wide else ()
    for name in ("weight", *shown_values, "change", f"{share} interval"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("", "") if is_wide else ("",):
        table.add_column(name, no_wrap=True)
    shown = found.jobs[:_SHOWN]
    largest = max(abs(job.difference.value) for job in shown)
    for job in shown:
        n = f"{job.instances[0]:,}/{job.instances[1]:,}"
        values = (f"{job.current:.4g}", f"{job.new:.4g}", *((n,) if is_wider else ())) if is_wide else ()
        bars = (signed_bar(job.difference.value, largest, _BAR // 3),) if is_wide else ()
        changes = (f"{_percents(job.difference.value)} %", _range(job.difference))
        table.add_row(str(job.job), f"{job.weight:.1%}", *values, *changes, *bars, job.verdict)
    console.print(table)
    if len(found.jobs) > _SHOWN:
        _say(f"... and {_counted(len(found.jobs) - _SHOWN, 'more job')}; all with --json")
    change = f"{found.current.value:.4g} -> {found.new.value:.4g}, {_percents(found.difference.value)} %"
    _say(f"fleet: {change} ({share} interval {_range(found.difference)}, p = {found.p:.2g})")
    _say(f"were instances independent: {_range(found.independent)}")
    if found.baseline is not None:
        _say(f"machine granularity: {_percents(found.baseline.value)} % ({_range(found.baseline)})")
    sides = zip(found.machines, found.instances, strict=True)
    _say(" against ".join(f"{_counted(n, 'machine')} with {_counted(rows, 'instance')}" for n, rows in sides))
    _say(f"{_counted(len(found.jobs), 'job')} with {found.coverage:.1%} of CURRENT's weight")
    verdicts = [job.verdict for job in found.jobs]
    counts = f"{_counted(verdicts.count('gain'), 'job')} up, {verdicts.count('loss'):,} down"
    false = f"at most {100 - 100 * found.confidence:.3g} % of these are expected to be false"
    _say(f"{counts} ({false}), {verdicts.count('unclear'):,} unclear")
    if found.left_out:
        _say(f"left out: jobs {', '.join(f'{n:,} {_REASONS[why]}' for why, n in found.left_out.items())}")


def show_drawn(drawn: Drawn, out: Path | None) -> None:
    """Print the machines drawn, or where they are written, and how good they are."""
    summary = drawn.as_json(0)
    of = f"{drawn.fleet_machines:,} machines ({summary['share']:.1%})"
    _say(f"{len(drawn.machines):,} of {of}, draw {drawn.draws:,}")
    _say(f"jobs with enough instances there have {drawn.coverage:.1%} of the weight")
    if drawn.planned:
        met = f"{summary['planned_jobs_met']:,} of {summary['planned_jobs']:,} planned jobs"
        _say(f"{met} have there what the plan wants")
    if drawn.imbalance is not None:
        _say(f"their metric is now {drawn.imbalance:+.2f} standard errors off the fleet's")
    _say(f"written to {out}" if out is not None else " ".join(drawn.machines))


def _proof(made: Plan) -> str:
    """Return how good a plan is; a tiny gap is not shown as 0.00 %."""
    if made.solution.is_optimal:
        return "the integer optimum"
    gap = made.solution.gap_ratio
    if gap < _TINY_GAP:
        return f"the optimum to within {max(gap, 1e-6):.0e} of it"
    return f"within {gap:.2%} of the optimum"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _range(found: Interval) -> str:
    return f"{_percents(found.low)} to {_percents(found.high)} %"


def _percents(share: float) -> str:
    """Return percents with their sign; what rounds to 0 is +0.00."""
    return f"{round(100 * share, 2) + 0.0:+.2f}"


def _say(line: str) -> None:
    console.print(line, soft_wrap=True)
