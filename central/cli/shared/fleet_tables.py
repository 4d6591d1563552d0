"""What `whitepanda fleet` prints: tables with bars for people, and a comparison as JSON."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from central.cli.shared.outputs import grid
from central.models.wsmeter import Comparison, Interval
from central.plotting.figures import bar, signed_bar
from central.upgrades.draw import Drawn
from central.upgrades.plan import Plan
from whitepanda.common.cli import console
from whitepanda.v1 import agent_pb2, fleet_pb2

_SHOWN = 20
_MIB, _GIB = 1 << 20, 1 << 30
_LAYOUT: dict[str, Any] = {"overflow": "fold", "box": None, "pad_edge": False}
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


def _interval_json(found: Interval | None, scale: float = 100.0) -> dict[str, float] | None:
    if found is None:
        return None
    names = ("value", "low", "high", "margin", "standard_error")
    return {name: scale * getattr(found, name) for name in names} | {"degrees_of_freedom": found.degrees}


def _sides_json(counts: tuple[int, int]) -> dict[str, int]:
    return {"current": counts[0], "new": counts[1]}


def comparison_json(found: Comparison) -> dict[str, Any]:
    """Return a comparison for programs; differences and their intervals in percent."""
    return {
        "current": _interval_json(found.current, 1.0),
        "new": _interval_json(found.new, 1.0),
        "difference_percent": _interval_json(found.difference),
        "p": found.p,
        "independent_percent": _interval_json(found.independent),
        "baseline_percent": _interval_json(found.baseline),
        "coverage": found.coverage,
        "confidence": found.confidence,
        "machines": _sides_json(found.machines),
        "instances": _sides_json(found.instances),
        "left_out": found.left_out,
        "jobs": [
            {
                **{name: getattr(job, name) for name in ("job", "weight", "current", "new")},
                "instances": _sides_json(job.instances),
                "difference_percent": _interval_json(job.difference),
                **{name: getattr(job, name) for name in ("p", "adjusted_p", "verdict")},
            }
            for job in found.jobs
        ],
    }


def plan_shown(made: Plan) -> Iterator[RenderableType | None]:
    """Show a plan: its heaviest jobs, and what it costs."""
    fidelity, jobs, observe = made.fidelity, made.jobs, made.solution.observe
    names = ("weight", "instances", "there are", *(("more",) if fidelity is not None else ()))
    table = grid("job", *(f">{name}" for name in names), "", title="Observe", whole=("job", *names, ""))
    for k in range(min(_SHOWN, len(observe))):
        cells = [f"{jobs.weight[k]:.1%}", f"{observe[k]:,}", f"{jobs.instances[k]:,}"]
        cells += [] if fidelity is None else [f"{made.more[k]:,}"]
        table.add_row(str(jobs.job[k]), *cells, bar(float(observe[k]), float(observe.max()), _BAR))
    yield table
    yield _more_jobs(len(observe))
    counts = f"{_counted(len(observe), 'job')}, {_counted(int(observe.sum()), 'instance')}"
    yield f"{counts}, cost {made.solution.cost:.6g}: {_proof(made)}"
    margin = f"margin: {made.options.margin_percent:g} % asked, {made.expected_margin_percent:.3g} % reached"
    margin += f", of a mean of {made.metric_mean:.4g} (t = {made.options.t:g})"
    yield f"{margin}; the jobs have {made.coverage:.1%} of the weight"
    if made.too_few:
        yield f"{_counted(made.too_few, 'job')} with fewer than {made.options.min_instances} instances left out"
    if made.baseline_machines is not None:
        yield f"machine granularity would need {_counted(made.baseline_machines, 'machine')}"
    if fidelity is None:
        return
    independent = f"{fidelity.independent_margin_percent:.3g} % if instances were independent"
    on = f"on {fidelity.coverage:.1%} of the plan's weight"
    yield f"observed: margin {fidelity.margin_percent:.3g} % ({independent}) {on}"
    more = f"not met: {_counted(int(made.more.sum()), 'more instance')}, cost {jobs.cost @ made.more:.6g}"
    yield "met" if fidelity.is_met else more
    if fidelity.larger:
        yield f"larger standard deviation than planned with: {_counted(len(fidelity.larger), 'job')}"


def comparison_shown(
    found: Comparison, metric: str, weighed_by: str, jobs_in_all: int
) -> Iterator[RenderableType | None]:
    """Show a comparison: its heaviest jobs, and what the fleet gained."""
    share = f"{100 * found.confidence:g} %"
    shown = found.jobs[:_SHOWN]
    largest = max(abs(job.difference.value) for job in shown)
    # Title, least width of the screen, and cells.
    columns = [
        ("job", 0, [str(job.job) for job in shown]),
        (">weight", 0, [f"{job.weight:.1%}" for job in shown]),
        (">current", _WIDE_COLUMNS, [f"{job.current:.4g}" for job in shown]),
        (">new", _WIDE_COLUMNS, [f"{job.new:.4g}" for job in shown]),
        (">n", _WIDER_COLUMNS, [f"{job.instances[0]:,}/{job.instances[1]:,}" for job in shown]),
        (">change", 0, [f"{_percents(job.difference.value)} %" for job in shown]),
        (f">{share} interval", 0, [_range(job.difference) for job in shown]),
        ("", _WIDE_COLUMNS, [signed_bar(job.difference.value, largest, _BAR // 3) for job in shown]),
        ("", 0, [job.verdict for job in shown]),
    ]
    titles, _, cells = zip(*(column for column in columns if console.width >= column[1]), strict=True)
    whole = [title.removeprefix(">") for title in titles]
    yield grid(*titles, rows=zip(*cells, strict=True), title=f"{metric}, weighed by {weighed_by}", whole=whole)
    yield _more_jobs(len(found.jobs))
    change = f"{found.current.value:.4g} -> {found.new.value:.4g}, {_percents(found.difference.value)} %"
    yield f"fleet: {change} ({share} interval {_range(found.difference)}, p = {found.p:.2g})"
    yield f"if instances were independent: {_range(found.independent)}"
    if found.baseline is not None:
        yield f"machine granularity: {_percents(found.baseline.value)} % ({_range(found.baseline)})"
    sides = zip(found.machines, found.instances, strict=True)
    yield " against ".join(f"{_counted(n, 'machine')} with {_counted(rows, 'instance')}" for n, rows in sides)
    yield f"{_counted(len(found.jobs), 'job')} with {found.coverage:.1%} of CURRENT's weight"
    verdicts = [job.verdict for job in found.jobs]
    counts = f"{_counted(verdicts.count('gain'), 'job')} up, {verdicts.count('loss'):,} down"
    false = f"at most {100 - 100 * found.confidence:.3g} % of these are expected to be false"
    yield f"{counts} ({false}), {verdicts.count('unclear'):,} unclear"
    if found.left_out:
        yield f"left out: jobs {', '.join(f'{n:,} {_REASONS[why]}' for why, n in found.left_out.items())}"
    if jobs_in_all > len(found.jobs):
        yield f"{jobs_in_all:,} jobs in all, of which central sends the {len(found.jobs):,} heaviest"


def drawn_shown(drawn: Drawn, out: Path | None) -> Iterator[str]:
    """Show the machines drawn, or the file that has them, and how good they are."""
    summary = drawn.as_json(0)
    of = f"{drawn.fleet_machines:,} machines ({summary['share']:.1%})"
    yield f"{len(drawn.machines):,} of {of}, draw {drawn.draws:,}"
    yield f"jobs with enough instances there have {drawn.coverage:.1%} of the weight"
    if drawn.planned:
        met = f"{summary['planned_jobs_met']:,} of {summary['planned_jobs']:,} planned jobs"
        yield f"{met} have there what the plan wants"
    if drawn.imbalance is not None:
        yield f"their metric is now {drawn.imbalance:+.2f} standard errors off the fleet's"
    yield f"written to {out}" if out is not None else " ".join(drawn.machines)


def facts_shown(found: fleet_pb2.Facts) -> Iterator[RenderableType]:
    """Show a VM with its host, or a host, at a time; and what the VM was before and after it."""
    if found.HasField("vm"):
        one, facts = found.vm, found.vm.facts
        yield f"VM {facts.name or facts.vm} on {one.host}, {_held(facts, one.until_unix_ns)}"
        yield grid("FACT", "VALUE", rows=[pair for pair in _vm_facts(facts) if pair[1]], **_LAYOUT)
    elif found.versions:
        yield "not on any host at that time"
    if found.HasField("host"):
        at, host = found.host, found.host.facts
        yield f"host {at.host}, {_held(host, at.until_unix_ns)}"
        yield grid("FACT", "VALUE", rows=[pair for pair in _host_facts(host) if pair[1]], **_LAYOUT)
    if found.versions:
        rows = [
            (one.host, _time(one.facts.unix_ns), _time(one.until_unix_ns), one.facts.flavor or "-", *_size(one.facts))
            for one in found.versions
        ]
        yield grid("HOST", "FROM (UTC)", "UNTIL", "FLAVOR", ">VCPUS", ">QUOTA", ">MEMORY", rows=rows, **_LAYOUT)


def _held(facts: Any, until_unix_ns: int) -> str:
    marked = " (when central heard of it: its clock was off)" if facts.is_received_time else ""
    return f"from {_time(facts.unix_ns)}{marked} until {_time(until_unix_ns)}"


def _vm_facts(facts: agent_pb2.VmFacts) -> list[tuple[str, str]]:
    vcpus, quota, memory = _size(facts)
    nodes = ", ".join(map(str, facts.numa_nodes))
    texts = [(name, getattr(facts, name)) for name in ("job", "project", "owner", "flavor", "image", "manager")]
    limits = "; ".join(facts.limits)
    sizes = [("vCPUs", vcpus), ("CPU quota", quota), ("memory", memory), ("NUMA nodes", nodes), ("limited", limits)]
    return [("UUID", facts.vm), *texts, *sizes]


def _host_facts(host: agent_pb2.HostFacts) -> list[tuple[str, str]]:
    caches = ", ".join(f"{one.size_bytes / _MIB:g} MiB of {one.cpus} CPUs" for one in host.caches)
    cards = ", ".join(
        f"{one.name} {one.bits_per_s / 1e9:g} Gbit/s" if one.HasField("bits_per_s") else f"{one.name} (no link)"
        for one in host.network_cards
    )
    kinds = {True: " HDD", False: " SSD"}
    disks = ", ".join(
        f"{one.name} {one.size_bytes / 1e9:,.0f} GB{kinds[one.rotational] if one.HasField('rotational') else ''}"
        for one in host.disks
    )
    labels = ", ".join(f"{key}={text}" for key, text in sorted(host.labels.items()))
    return [
        ("CPUs", str(host.cpus) if host.HasField("cpus") else ""),
        ("memory", f"{host.memory_bytes / _GIB:.4g} GiB" if host.HasField("memory_bytes") else ""),
        ("last-level caches", caches),
        ("network", cards),
        ("disks", disks),
        ("manager", host.manager),
        ("labels", labels),
    ]


def _size(facts: agent_pb2.VmFacts) -> tuple[str, str, str]:
    return (
        str(facts.vcpus) if facts.HasField("vcpus") else "-",
        f"{facts.cpu_quota_cores:g} cores" if facts.HasField("cpu_quota_cores") else "-",
        f"{facts.memory_bytes / _GIB:.4g} GiB" if facts.HasField("memory_bytes") else "-",
    )


def _time(unix_ns: int) -> str:
    if not unix_ns:
        return "now"
    return datetime.fromtimestamp(unix_ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _proof(made: Plan) -> str:
    """Return how good a plan is; a tiny gap is not shown as 0.00 %."""
    if made.solution.is_optimal:
        return "the integer optimum"
    gap = made.solution.gap_ratio
    if gap < _TINY_GAP:
        return f"the optimum to within {max(gap, 1e-6):.0e} of it"
    return f"within {gap:.2%} of the optimum"


def _more_jobs(jobs: int) -> str | None:
    return f"... and {_counted(jobs - _SHOWN, 'more job')}; all with --json" if jobs > _SHOWN else None


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _range(found: Interval) -> str:
    return f"{_percents(found.low)} to {_percents(found.high)} %"


def _percents(share: float) -> str:
    """Return percents with their sign; what rounds to 0 is +0.00."""
    return f"{round(100 * share, 2) + 0.0:+.2f}"
