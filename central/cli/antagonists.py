"""`whitepanda antagonists`: coefficients, whitepanda's or PANDA's, fitted to a trace or as central holds them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from central.cli.shared.fleet_client import ask_pages, asking
from central.cli.shared.outputs import JsonOption, grid, report, say_warning, short
from central.traces.evaluation import Truth, evaluate_trace
from central.traces.fit import fit_trace
from central.traces.protocol import LEAST_MACHINES
from central.traces.slots import SlotOptions, rows_json, rows_line
from collector.traces.google import LatencySensitiveRule, TraceLimits
from whitepanda.common.cli import console, errors
from whitepanda.common.errors import InputError
from whitepanda.common.tls_options import OPERATOR, CentralOption, Operator, operator_options
from whitepanda.v1 import fleet_pb2

app = typer.Typer(help="Jobs that hurt others: antagonist coefficients, whitepanda's or PANDA's.", no_args_is_help=True)

EngineOption = Annotated[str, typer.Option(help="What it runs on: duckdb or spark.")]
MergerOption = Annotated[str, typer.Option(help="What merges records into slots: duckdb or spark.")]
SparkMasterOption = Annotated[
    str, typer.Option(metavar="URL", help="Spark's master; its workers must see TMPDIR under the same name.")
]
_Traces = Annotated[
    list[Path], typer.Argument(metavar="TRACE", help="Google cluster trace v3 usage rows, Parquet or CSV; one trace.")
]
_Priority = Annotated[float, typer.Option(help="Latency-sensitive: at least this priority ...")]
_SchedulingClass = Annotated[float, typer.Option(help="... and at least this scheduling class.")]
_MaxCpi = Annotated[float, typer.Option(help="A larger CPI is absurd and left out.")]
_MemoryLimit = Annotated[int, typer.Option(min=64, help="Engine's memory; the rest goes to TMPDIR.")]

_SHOWN = 10
_WIDE_COLUMNS = 100  # of a screen that has room for every column
_DEADLINE_S = 10.0
_MAX_DAY = 100_000


@app.command()
def fit(
    traces: _Traces,
    out: Annotated[Path, typer.Option(help="Parquet file to write: one row per job, largest coefficient first.")],
    method: Annotated[str, typer.Option(help="whitepanda or panda.")] = "whitepanda",
    engine: EngineOption = "duckdb",
    spark_master: SparkMasterOption = "local[*]",
    until_day: Annotated[
        int | None, typer.Option(min=1, max=_MAX_DAY, help="Only the days before this one; the first is 0.")
    ] = None,
    slot_s: Annotated[float, typer.Option(help="Length of a time slot, s of the trace's clock; panda only.")] = 300.0,
    priority: _Priority = 120.0,
    scheduling_class: _SchedulingClass = 2.0,
    max_cpi: _MaxCpi = 100.0,
    memory_limit_mib: _MemoryLimit = 2048,
    json: JsonOption = False,
) -> None:
    """Fit antagonist coefficients to a trace.

    A coefficient: the rise of co-located latency-sensitive tasks' CPI, in standard deviations, per unit of CPU
    used. panda: A_k = sum(u * mnCPI) / sum(u^2) over all tasks of job k. whitepanda: all jobs together, from robust
    mnCPI, within machine days; see docs/methods.md.
    """
    rule, limits = LatencySensitiveRule(priority, scheduling_class), TraceLimits(max_cpi=max_cpi)
    options = SlotOptions(rule, limits, engine, spark_master, memory_limit_mib)
    with _progress() as on_progress:
        result = fit_trace(traces, out, options, on_progress, method=method, until_day=until_day, slot_s=slot_s)
    summary = {
        "out": str(out),
        "method": method,
        "slot_s": slot_s,
        "rows": rows_json(result.counts),
        **{name: getattr(result, name) for name in ("task_slots", "machine_slots", "last_day")},
        "jobs": result.table.num_rows,
        "seconds": round(result.seconds, 3),
        "top": result.table.slice(0, _SHOWN).to_pylist(),
    }
    if until_day is not None and result.last_day < until_day - 1:
        last = f"the last day before it that the trace has is {result.last_day}"
        say_warning(f"--until-day {until_day}: {last}")
    report(summary, _fit_shown(summary), json=json)


def _fit_shown(summary: dict[str, Any]) -> Iterator[RenderableType]:
    is_wide = console.width >= _WIDE_COLUMNS
    names = ["coefficient", "std. error", "task slots", "mean CPI", "std CPI", *(["sensitive"] if is_wide else [])]
    table = grid("job", *(f">{name}" for name in names), title="Largest coefficients", whole=("job", *names))
    for row in summary["top"]:
        cells = (
            f"{row['coefficient']:.4g}",
            short(row["standard_error"], 4),
            f"{row['samples']:,}",
            short(row["mean_cpi"], 4),
            short(row["std_cpi"], 4),
            f"{row['latency_sensitive_ratio']:.0%}",
        )
        table.add_row(row["job"], *(cells if is_wide else cells[:-1]))
    yield table
    yield rows_line(summary["rows"])
    jobs = f"{summary['jobs']:,} jobs from {summary['task_slots']:,} task slots"
    yield f"{jobs}; {summary['machine_slots']:,} machine slots with a latency-sensitive task"
    yield f"last day used: {summary['last_day']} (the first is 0)"
    yield f"written to {summary['out']} in {summary['seconds']:.1f} s"


@app.command()
def evaluate(
    traces: _Traces,
    truth: Annotated[Path, typer.Option(metavar="TRUTH.json", help='JSON with "antagonists", a list of job ids.')],
    methods: Annotated[str | None, typer.Option(help="Names (a,b,c): panda, panda_local, ...; default: all.")] = None,
    from_day: Annotated[int, typer.Option(min=1, max=_MAX_DAY, help="First day to evaluate; the first is 0.")] = 20,
    engine: MergerOption = "duckdb",
    spark_master: SparkMasterOption = "local[*]",
    priority: _Priority = 120.0,
    scheduling_class: _SchedulingClass = 2.0,
    max_cpi: _MaxCpi = 100.0,
    memory_limit_mib: _MemoryLimit = 2048,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0,
    json: JsonOption = False,
) -> None:
    """Show how high each method ranks the true antagonists.

    PANDA's section 5.2: at machine slots whose mnCPI is above the machine's own 99th percentile and a victim is there
    for the third slot in a row, the mean percentile of the true antagonists among the tasks that may be blamed.
    """
    names = tuple(name.strip() for name in (methods or "").split(",") if name.strip())
    if methods is not None and not names:
        raise InputError(f"--methods names none (value {methods!r}); leave it out for all")
    rule, limits = LatencySensitiveRule(priority, scheduling_class), TraceLimits(max_cpi=max_cpi)
    options = SlotOptions(rule, limits, engine, spark_master, memory_limit_mib)
    known = Truth.read(truth)
    with _progress() as on_progress:
        summary = evaluate_trace(traces, known, options, on_progress, methods=names, from_day=from_day, seed=seed)
    few = " (too few for intervals)" if 0 < summary["machines"] < LEAST_MACHINES else ""
    counts = (
        f"{summary['events']:,} events of {summary['triggers']:,} triggers, on {summary['machines']:,} machines{few} "
        f"in {summary['evaluated_days']} of {summary['days']} days; {summary['antagonists']} of the antagonists are in "
        "the trace"
    )
    ranks = _ranks(summary) if summary["events"] else f"nothing to rank: {summary['no_event_because']}"
    report(summary, (ranks, counts, rows_line(summary["rows"])), json=json)


def _ranks(summary: dict[str, Any]) -> Table:
    titles = ("method", ">mean percentile", ">95 % interval", ">consistency", ">first is antagonist")
    table = grid(*titles, title="Rank of the true antagonists")
    for name, found in summary["methods"].items():
        if name == "default":
            continue
        low, high = found["mean_percentile_interval"]
        interval = "-" if low is None else f"{short(low)} to {short(high)}"
        mean, *others = (short(found[key]) for key in ("mean_percentile", "consistency", "first_is_antagonist"))
        table.add_row(name, mean, interval, *others)
    return table


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show on a terminal's standard error what is being done."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("reading", total=None)

        def on_progress(step: str, done: int, total: int | None) -> None:
            words = {"read": f"reading: {done:,} rows", "fit": "fitting", "day": f"day {done}"}
            progress.update(task, description=words[step], completed=done, total=total)

        yield on_progress


@app.command()
@operator_options
def show(
    central: CentralOption = "",
    operator: Operator = OPERATOR,
    job: Annotated[str, typer.Option(help="Only this job.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most this many jobs, largest coefficient first.")] = 20,
    json: JsonOption = False,
) -> None:
    """List the coefficients that central holds."""
    with asking(operator.address(central), _DEADLINE_S) as ask:
        request = fleet_pb2.ListCoefficientsRequest(job=job)
        rows, page = ask_pages(ask, "ListCoefficients", request, "coefficients", limit)
    version = page.version
    coefficients = [
        {"job": c.job, "coefficient": c.value, "samples": c.samples, "standard_error": c.standard_error} for c in rows
    ]
    shown: RenderableType = grid(
        *("job", ">coefficient", ">std. error", ">task slots"),
        rows=((c.job, f"{c.value:.4g}", short(c.standard_error, 4), f"{c.samples:,}") for c in rows),
        title=f"Version {version}",
        whole=("job",),
    )
    if not version:
        shown = "central has built no coefficients yet"
    elif job and not rows:
        shown = f"version {version} has no coefficient of job {job}"
    report({"version": version, "coefficients": coefficients}, [shown], json=json)
