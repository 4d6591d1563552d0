"""`whitepanda runtime`: how long a workload runs on a platform, alone or beside others, and bounds of that (Pitot)."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from central.cli.shared.outputs import (
    PICTURES,
    TABLES,
    JsonOption,
    check_lake,
    check_output,
    people_console,
    provenance,
    report,
    say_warning,
)
from central.cli.shared.runtime_tables import measures_shown, neighbours_shown
from central.lake.segments import Lake
from central.plotting.runtimes import plot_maps, plot_measures
from central.runtimes.checkpoint import Checkpoint
from central.runtimes.embeddings import as_table, embed, groups_of, neighbours, project, read_groups
from central.runtimes.evaluate import measure
from central.runtimes.fit import FitOptions
from central.runtimes.fit import fit as fit_model
from central.runtimes.lake_rows import read_lake
from central.runtimes.model import read_model, write_model
from central.runtimes.predict import TOO_FEW, UNKNOWN, parse_epsilons, predict_rows
from central.runtimes.tables import read_features, read_log_runtimes, read_rows
from central.runtimes.update import update as update_model
from central.tables.csv_files import write_table
from whitepanda.common.cli import errors
from whitepanda.common.errors import InputError

app = typer.Typer(
    help="How long workloads run on platforms, alone or beside others, with bounds.", no_args_is_help=True
)

_Observations = Annotated[
    Path, typer.Argument(metavar="OBSERVATIONS", help="CSV or Parquet: workload, platform, interferer(s), runtime_us.")
]
_ModelOption = Annotated[Path, typer.Option(metavar="MODEL", help="Model file, from `runtime fit`.")]
_Epsilon = Annotated[str, typer.Option(metavar="SHARES", help="Shares of runs (a,b,c) that may exceed the bound.")]
_Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="PNG to write.")]
_Out = Annotated[Path, typer.Option(metavar="FILE", help="CSV or Parquet to write.")]
_ModelOut = Annotated[Path, typer.Option(metavar="MODEL", help="Model file to write.")]
_EPSILONS = "0.1,0.05,0.01"


@app.command()
def fit(
    observations: _Observations,
    workload_features: Annotated[Path, typer.Option(metavar="FILE", help="CSV or Parquet: workload, numeric columns.")],
    platform_features: Annotated[Path, typer.Option(metavar="FILE", help="CSV or Parquet: platform, numeric columns.")],
    out: _ModelOut,
    members: Annotated[int, typer.Option(min=1, max=64, help="Models that are averaged.")] = 8,
    calibration: Annotated[float, typer.Option(min=0.02, max=0.5, help="Share of rows for calibrating bounds.")] = 0.1,
    steps: Annotated[int, typer.Option(min=0, max=1_000_000, help="Training steps per member; 0: by the rows.")] = 0,
    seed: Annotated[int, typer.Option(min=0, max=1_000_000, help="Seed of all randomness.")] = 0,
    json: JsonOption = False,
) -> None:
    """Fit a model to measured runtimes.

    An interferer that is empty means alone; several are columns interferer_1, interferer_2 and so on, or one column
    interferers with a list or names between semicolons. A fit that was stopped continues when it is
    started again: until the model is written, MODEL.partial keeps what is trained.
    """
    features = {"--workload-features": workload_features, "--platform-features": platform_features}
    check_output(out, others={"OBSERVATIONS": observations, **features})
    named = read_rows(observations)
    log_us = read_log_runtimes(named)
    workloads = read_features(workload_features, "workload")
    platforms = read_features(platform_features, "platform")
    rows = named.placed(workloads.names, platforms.names, "give its features")
    training = {"steps": steps} if steps else {}
    checkpoint = Checkpoint(out, lambda line: errors.print(line, style="yellow", soft_wrap=True))
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("fitting", total=1.0)
        model = fit_model(
            rows,
            log_us,
            workloads,
            platforms,
            FitOptions(members=members, calibration=calibration, seed=seed, training=training),
            provenance(observations, "observations"),
            lambda share: bar.update(task, completed=share),
            checkpoint,
        )
    write_model(out, model)
    checkpoint.remove()
    found = {
        "out": str(out),
        "workloads": len(model.workloads),
        "platforms": len(model.platforms),
        "calibration_rows": {str(count): len(pool.residuals) for count, pool in model.pools.items()},
        **model.provenance,
    }
    counts = model.provenance["rows"]
    calibrated = f"{counts['calibrated']:,} calibrate bounds"
    shown = (
        f"rows: {len(rows):,} read, {counts['trained']:,} trained on, {calibrated}",
        f"{len(model.workloads):,} workloads, {len(model.platforms):,} platforms",
        f"written to {out}",
    )
    report(found, shown, json=json)


@app.command()
def predict(
    rows: Annotated[Path, typer.Argument(metavar="ROWS", help="CSV or Parquet: workload, platform, interferer(s).")],
    model: _ModelOption,
    out: _Out,
    epsilon: _Epsilon = _EPSILONS,
    skip_unknown: Annotated[bool, typer.Option("--skip-unknown", help="Leave rows with unknown names empty.")] = False,
    json: JsonOption = False,
) -> None:
    """Predict runtimes, and bounds that a share of runs does not exceed.

    The rows are written in their order, with the columns predicted_us and bound_us_EPSILON, as bound_us_0.05.
    """
    check_output(out, suffixes=TABLES, others={"ROWS": rows, "--model": model})
    found = predict_rows(rows, read_model(model), parse_epsilons(epsilon), out, skip_unknown=skip_unknown)
    shown = [f"rows: {found.rows - found.rows_unknown:,} predicted"]
    if found.rows_unknown:
        shown.append(f"left empty, with names that the model has not: {found.rows_unknown:,} rows")
    for count, size in found.rows_without_bound.items():
        shown.append(f"no bound beside {count} others, of which the fit had none: {size:,} rows")
    shown.append(f"written to {out}")
    report({"out": str(out), **asdict(found)}, shown, json=json, to=people_console(out))


@app.command()
def update(observations: _Observations, model: _ModelOption, out: _ModelOut, json: JsonOption = False) -> None:
    """Add workloads and platforms to a model from a few runs of each, without fitting again.

    Runs of new workloads on known platforms, and of known workloads on new platforms. Bounds stay those of the fit:
    nothing calibrates them for new names.
    """
    check_output(out, others={"OBSERVATIONS": observations})
    named = read_rows(observations)
    grown, found = update_model(read_model(model), named, read_log_runtimes(named))
    write_model(out, grown)
    added = f"{len(found.workloads):,} workloads and {len(found.platforms):,} platforms"
    left_out = f"{found.rows_left_out:,} rows left out (nothing new, or beside what is not known)"
    shown = (f"added {added} from {found.rows_used:,} rows; {left_out}", f"written to {out}")
    report({"out": str(out), **asdict(found)}, shown, json=json)


@app.command()
def evaluate(
    observations: _Observations,
    model: _ModelOption,
    epsilon: _Epsilon = _EPSILONS,
    plot: _Plot = None,
    json: JsonOption = False,
) -> None:
    """Measure a model's errors and bounds on measured runtimes, which the fit should not have had."""
    check_output(plot, "--plot", PICTURES, others={"OBSERVATIONS": observations, "--model": model})
    fitted = read_model(model)
    named = read_rows(observations)
    log_us = read_log_runtimes(named)
    words, epsilons = zip(*parse_epsilons(epsilon), strict=True)
    rows = named.placed(fitted.workloads, fitted.platforms, UNKNOWN)
    estimates = fitted.estimate(rows)
    try:
        bounds = fitted.bounds(rows, estimates, epsilons)
    except ValueError as error:
        raise InputError(f"--epsilon: {error}; {TOO_FEW}") from error
    result = measure(rows, log_us, estimates.log_us, bounds, epsilons, words)
    if provenance(observations, "observations")["sha256"] == fitted.provenance.get("sha256"):
        say_warning("the model was fitted to this very file; errors of new rows are larger")
    if plot is not None:
        plot_measures(plot, result)
    report({"co_runners": result}, measures_shown(result), json=json)


@app.command()
def embeddings(
    model: _ModelOption,
    out: _Out,
    groups: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV or Parquet: name, group; default: names up to / or :.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="PNG: a t-SNE map by group.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=1_000_000, help="Seed of the map and of chance.")] = 0,
    json: JsonOption = False,
) -> None:
    """Write the embeddings of a model's workloads and platforms: kind, name, and their dimensions.

    Shows how often the nearest other name is of the same group (suite), and how often by chance.
    """
    check_output(out, suffixes=TABLES, others={"--model": model, "--groups": groups})
    check_output(plot, "--plot", PICTURES, others={"--model": model, "--groups": groups, "--out": out})
    parts = embed(read_model(model))
    given = None if groups is None else read_groups(groups)
    labels = {part.kind: groups_of(part, given) for part in parts}
    found = {part.kind: neighbours(part.values, labels[part.kind], seed) for part in parts if len(part.names) > 1}
    write_table(out, as_table(parts))
    if plot is not None:
        maps = {f"{part.kind}s (t-SNE)": (project(part, seed), labels[part.kind]) for part in parts}
        plot_maps(plot, maps)
    near = {kind: asdict(one) for kind, one in found.items()}
    result = {"out": str(out), "dimensions": parts[0].values.shape[1], "neighbours": near}
    report(result, (*neighbours_shown(found), f"written to {out}"), json=json)


@app.command()
def observations(
    lake: Annotated[str, typer.Argument(metavar="LAKE", help="Central's, a folder or s3://bucket/prefix.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write three tables to.")],
    days: Annotated[int, typer.Option(min=1, max=3660, help="This many of the newest days of slots.")] = 7,
    max_rows: Annotated[int, typer.Option(min=100, max=1_000_000, help="Sample down to about this many.")] = 200_000,
    slot_s: Annotated[float, typer.Option(min=1, max=86_400, help="As build.slot_s of central.")] = 300.0,
    json: JsonOption = False,
) -> None:
    """Make the tables that `runtime fit` reads from central's lake.

    A row per busy VM and slot: its job, CPU platform, the jobs of the other busy VMs on the machine, and as the runtime
    the CPU time of 1e9 instructions, us. The tables of names have no features.
    """
    check_lake(lake)
    found = read_lake(Lake(lake), slot_s=slot_s, days=days, max_rows=max_rows)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: cannot be made: {error.strerror}") from error
    for name in ("observations", "workloads", "platforms"):
        write_table(out / f"{name}.parquet", getattr(found, name))
    counts = {name: getattr(found, name).num_rows for name in ("observations", "workloads", "platforms")}
    result = {
        "out": str(out),
        "rows": counts.pop("observations"),
        **counts,
        "days": found.days,
        "share": found.share,
        "machine_slots_too_crowded": found.crowded,
        "vm_slots_without_instructions": found.not_counted,
    }
    names = f"{counts['workloads']:,} workloads, {counts['platforms']:,} platforms"
    shown = [f"{result['rows']:,} rows of {found.days:,} days: {names}"]
    if found.share < 1:
        shown.append(f"a sample: {found.share:.1%} of the machines' slots")
    if found.crowded or found.not_counted:
        shown.append(
            f"left out: {found.not_counted:,} VMs' slots without instructions, {found.crowded:,} machines' slots "
            "with more than 65 busy VMs"
        )
    report(result, (*shown, f"written to {out}"), json=json)
