"""`whitepanda slowdown`: D-Factor's estimates of what sharing a machine costs, and the loading vectors they need."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import RenderableType

from central.cli.shared.outputs import PICTURES, TABLES, JsonOption, check_output, grid, people_console, report
from central.models import dfactor
from central.models.dfactor_profile import Estimate
from central.placement.pairs import DFACTOR, EXTENDED, HeldOut, Measured, hold_out, read_pairs, read_rows_to_predict
from central.placement.plots import plot_pairs, plot_profiles
from central.placement.profiles import Profiles, read_profiles, write_loadings
from central.placement.requests import HOST
from central.placement.tables import Jobs, jobs_of, numbers_by_name, units_of
from central.plotting.figures import bar
from central.plotting.timeline import bars
from central.plotting.timeline import plot as write_plot
from central.tables.csv_files import write_table
from central.tables.user_files import UserTable
from whitepanda.common.cli import errors
from whitepanda.common.errors import InputError

app = typer.Typer(help="What sharing a machine costs: D-Factor's loading vectors.", no_args_is_help=True)

_UnitsOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=N", help="Equal units of a resource, as cpu=8; repeatable. Default: 1."),
]

_BAR_WIDTH = 40
_SHARE_WIDTH = 10


@app.command()
def estimate(
    loadings: Annotated[
        Path, typer.Argument(metavar="LOADINGS.csv", help="Columns job, one per resource, if known tau_s and start_s.")
    ],
    units: _UnitsOption = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="PNG: when each job runs; needs tau_s.")] = None,
    json: JsonOption = False,
) -> None:
    """Estimate how much longer jobs take that share a machine.

    A job's row has the share of its time alone that it spends at each resource; what is missing to 1 it idles. Its
    dilation, with all of them there, is 1 + p . P - p . p, where P is the sum of all rows and a resource of c units
    counts as c elements of p / c. tau_s is its time alone: then completion times are shown, as jobs arrive
    (start_s, default 0) and end.
    """
    check_output(plot, "--plot", PICTURES, others={"LOADINGS": loadings})
    jobs = _jobs_of_one_machine(loadings)
    counts = units_of(numbers_by_name(units or [], "--units"), jobs.resources)
    found = estimated(jobs, counts)
    if plot is not None:
        if jobs.tau_s is None:
            raise InputError(f"--plot {plot}: {loadings} has no column tau_s, so it is not known when jobs end")
        write_plot(plot, jobs.names, *_times(found, jobs))
    report(found, _estimate_shown(found, jobs), json=json)


def _jobs_of_one_machine(path: Path) -> Jobs:
    """Read jobs; a column host, as of `place`, must name one machine."""
    rows = UserTable(path)
    if HOST in rows.columns:
        hosts = dict.fromkeys(rows.texts(HOST).tolist())
        if len(hosts) > 1:
            some = ", ".join(name or "(none)" for name in list(hosts)[:3])
            raise InputError(f"{path}: has jobs of several hosts ({some}); give the rows of one, whose jobs share it")
    jobs = jobs_of(rows, beside=(HOST,))
    if jobs.start_s is not None and jobs.tau_s is None:
        raise InputError(f"{path}: has a column start_s but no tau_s, without which nothing ends; add it")
    return jobs


def estimated(jobs: Jobs, units: Any) -> dict[str, Any]:
    """Return what `estimate --json` prints."""
    slow = dfactor.dilations(jobs.loadings, units)
    rows = [{"job": name, "dilation": float(value)} for name, value in zip(jobs.names, slow, strict=True)]
    if jobs.tau_s is not None:
        start = np.zeros(len(rows)) if jobs.start_s is None else jobs.start_s
        end = dfactor.completion_times(jobs.loadings, jobs.tau_s, start, units)
        for k, row in enumerate(rows):
            row["completion_s"] = float(end[k] - start[k])
            if jobs.start_s is not None:
                row["end_s"] = float(end[k])
    return {"jobs": rows, "total_dilation": float(slow.sum())}


def _times(found: dict[str, Any], jobs: Jobs) -> tuple[list[float], list[float], list[float]]:
    """When jobs start, the time each takes alone, and when they end."""
    start = [0.0] * len(jobs.names) if jobs.start_s is None else jobs.start_s.tolist()
    tau = [] if jobs.tau_s is None else jobs.tau_s.tolist()
    return start, tau, [at + row["completion_s"] for at, row in zip(start, found["jobs"], strict=True)]


def _estimate_shown(found: dict[str, Any], jobs: Jobs) -> Iterator[RenderableType]:
    shown = [name for name in ("dilation", "completion_s", "end_s") if name in found["jobs"][0]]
    table = grid("job", *(f">{name}" for name in shown), title="Together on one machine")
    if jobs.tau_s is not None:
        table.add_column("time alone, and added", no_wrap=True)
    lines = None if jobs.tau_s is None else bars(*_times(found, jobs), _BAR_WIDTH)
    for k, row in enumerate(found["jobs"]):
        numbers = [f"{row[name]:.4g}" if name == "dilation" else f"{row[name]:.2f}" for name in shown]
        table.add_row(row["job"], *numbers, *([] if lines is None else [lines[k]]))
    yield table
    yield f"{len(jobs.names)} jobs, total dilation {found['total_dilation']:.4g}"
    if jobs.tau_s is not None:
        yield f"one after the other (linear sum): {dfactor.linear_sum_s(jobs.tau_s):.2f} s"


@app.command()
def profile(
    runs: Annotated[Path, typer.Argument(metavar="RUNS.csv", help="Runs or samples of jobs; its columns say which.")],
    rest: Annotated[str, typer.Option(metavar="NAME", help="Resource that gets the rest of busy jobs' time.")] = "",
    larger: Annotated[str, typer.Option(metavar="NAME", help="For copies: the resource with the larger share.")] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="LOADINGS.csv", help="To write: input of `estimate`, `place`.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="PNG: what was measured, with intervals.")] = None,
    json: JsonOption = False,
) -> None:
    """Find loading vectors of jobs, with 95 % intervals.

    Columns job, copies, time_s: runs of this many copies of a job together; this gives |p|^2 and, of busy jobs of two
    resources, two mirrored vectors. Columns job, time_s and resources: runs beside known loads (the sum of their
    loading vectors; zeros: alone), as a probe of one resource, 1 in its column. Columns job, resources and perhaps
    vm: measured shares of time, one row per window (CPU, memory stalls, waits for disk and network).

    The exit status is 3 if copies of a job gave no vector; the output is whole all the same.
    """
    check_output(out, suffixes=(".csv",), others={"RUNS": runs})
    check_output(plot, "--plot", PICTURES, others={"RUNS": runs, "--out": out})
    found = read_profiles(runs, rest=rest, larger=larger)
    if out is not None:
        write_loadings(out, found)
    if plot is not None:
        plot_profiles(plot, found)
    result = {"kind": found.kind, "jobs": [asdict(job) for job in found.jobs]}
    report(result, _profiles_shown(found, out), json=json)
    without = [job for job in found.jobs if job.loading is None and not job.candidates]
    if without:
        more = f" and {len(without) - 1:,} more" if len(without) > 1 else ""
        raise InputError(
            f"{runs}: no loading vector found of job {without[0].job} ({'; '.join(without[0].notes)}){more}; "
            "measure such jobs beside probes (columns job, time_s and resources)"
        )


def _profiles_shown(found: Profiles, out: Path | None) -> Iterator[RenderableType]:
    table = grid("job", ">n", "what", ">value", ">95 % interval", title=f"Loading vectors from {found.kind}")
    table.add_column("0 to 1", min_width=_SHARE_WIDTH)
    for job in found.jobs:
        for name, each in job.measured.items():
            share = bar(max(each.value, 0.0), 1.0, _SHARE_WIDTH)
            table.add_row(job.job, str(job.n), name, f"{each.value:.4g}", _interval(each), share)
        if job.tau_s is not None:
            table.add_row(job.job, str(job.n), "time alone, s", f"{job.tau_s.value:.5g}", _interval(job.tau_s))
    yield table
    for job in found.jobs:
        for vector in job.candidates if job.loading is None else [job.loading]:
            words = ", ".join(f"{name} {share:.4g}" for name, share in vector.items())
            yield f"{job.job}: {words}"
        for note in job.notes:
            yield f"{job.job}: {note}"
    if out is not None:
        yield f"written to {out}"


@app.command()
def pairs(
    measured: Annotated[
        Path,
        typer.Argument(
            metavar="MEASURED", help="CSV, Parquet: workload, platform, interferer, runtime_us or slowdown."
        ),
    ],
    rows: Annotated[Path | None, typer.Option(metavar="ROWS", help="Predict: workload, platform, interferer.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="CSV or Parquet: ROWS and their slowdown.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="PNG: held-out pairs, measured, predicted.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=1_000_000, help="Seed of the held-out fifth, and of fits.")] = 0,
    json: JsonOption = False,
) -> None:
    """Fit loading vectors to measured pairs, also above 2, and predict other pairs.

    A row is a workload beside an interferer on a platform; with runtime_us, rows without an
    interferer are the times alone. The extended model reaches beyond 2 and below 1, which
    D-Factor cannot. A fifth of the pairs is held out and shows how far off it is, next to D-Factor
    and a constant per platform; ROWS are then predicted from all pairs.
    """
    if (rows is None) != (out is None):
        raise InputError("--rows and --out go together: what to predict, and where to write it")
    inputs: dict[str, Path | None] = {"MEASURED": measured, "--rows": rows}
    check_output(out, suffixes=TABLES, others=inputs)
    check_output(plot, "--plot", PICTURES, others={**inputs, "--out": out})
    known = read_pairs(measured)
    asked = None if rows is None else read_rows_to_predict(rows, known)
    with errors.status("fitting") as status:
        found = hold_out(known, seed, lambda what: status.update(f"fitting {what}"))
        if asked is not None and out is not None:
            status.update("fitting extended to all pairs")
            write_table(out, asked.with_slowdowns(known, found, seed))
    if plot is not None:
        plot_pairs(plot, found.measured, {name: found.predicted[name] for name in (DFACTOR, EXTENDED)})
    result = {
        "pairs": len(known.same),
        "workloads": len(known.workloads),
        "platforms": len(known.platforms),
        "without_alone": known.without_alone,
        "beside_several": known.of_several,
        "resources": found.resources,
        "penalty": found.penalty,
        "held_out": {
            name: {part: asdict(each) for part, each in parts.items()} for name, parts in found.errors.items()
        },
        "out": None if out is None else str(out),
        "rows": None if asked is None else len(asked.is_pair),
    }
    shown = _pairs_shown(known, found, "" if asked is None else f"{len(asked.is_pair):,} rows written to {out}")
    report(result, shown, json=json, to=people_console(out))


def _pairs_shown(known: Measured, found: HeldOut, written: str) -> Iterator[RenderableType]:
    left_out = f"{known.without_alone:,} have no run alone, {known.of_several:,} rows are beside several"
    yield f"{len(known.same):,} pairs; left out: {left_out}"
    titles = (">slow-down", ">n", "model", ">error, %", ">95 % interval")
    table = grid(*titles, title="Mean error of held-out pairs")
    table.add_column("", min_width=_SHARE_WIDTH)
    largest = max(each.mean or 0.0 for parts in found.errors.values() for each in parts.values())
    for part in next(iter(found.errors.values())):
        for place, (name, parts) in enumerate(found.errors.items()):
            each = parts[part]
            if each.mean is None:
                continue
            low, high = each.low, each.high
            interval = "unknown" if low is None or high is None else f"{100 * low:.2f} to {100 * high:.2f}"
            first = (part, f"{each.n:,}") if place == 0 else ("", "")
            table.add_row(*first, name, f"{100 * each.mean:.2f}", interval, bar(each.mean, largest, _SHARE_WIDTH))
    yield table
    yield f"extended: {found.resources} resources, penalty {found.penalty:g}, by validation"
    if written:
        yield written


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "unknown"
    return f"{estimate.low:.4g} to {estimate.high:.4g}"
