"""`whitepanda degradation`: fit models of how much slower VMs become, apply them to rows, and measure their error."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import RenderableType
from rich.table import Table as Grid

from agent.analysis.degradation.model import parse
from central.cli.shared.outputs import JsonOption, check_output, grid, provenance, report, say_warning
from central.degradation.evaluate import evaluate_as_is, evaluate_refitted
from central.degradation.fit import RULE_SIGNALS, FitOptions, inputs_of
from central.degradation.glm import summary_tables
from central.degradation.model_selection import fit_model
from central.degradation.rows import predict_rows, read_model, write_model
from central.degradation.runs import Columns, Table, left_out_words, make_runs
from central.plotting.degradation import plot as write_plot
from whitepanda.common.cli import errors
from whitepanda.common.errors import InputError

app = typer.Typer(help="How much slower VMs become: models fitted to measured runs.", no_args_is_help=True)

_RunsArgument = Annotated[Path, typer.Argument(metavar="RUNS", help="Measured runs, CSV or Parquet.")]
_ModelOption = Annotated[Path, typer.Option(metavar="MODEL.json", help="Model file, from `degradation fit`.")]
_Where = Annotated[str, typer.Option(metavar="EXPR", help="SQL condition: rows that are used.")]
_Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="PNG: measured and estimated degradation.")]


@app.command()
def fit(
    runs: _RunsArgument,
    target: Annotated[str, typer.Option(metavar="COL", help="Column of the measured target, > 0.")],
    baseline_where: Annotated[str, typer.Option(metavar="EXPR", help="SQL condition: rows without interference.")],
    group_by: Annotated[str, typer.Option(metavar="COLS", help="Columns (a,b,c): rows of one baseline.")],
    features: Annotated[str, typer.Option(metavar="COLS", help="Columns that the model may use.")],
    out: Annotated[Path, typer.Option(metavar="MODEL.json", help="Model file to write.")],
    scenario: Annotated[
        str | None, typer.Option(metavar="COL", help="Held out one after the other; default: scenario, if there.")
    ] = None,
    time: Annotated[str | None, typer.Option(metavar="COL", help="Seconds in a run; default: at_s, if there.")] = None,
    where: _Where = "",
    methods: Annotated[str, typer.Option(metavar="NAMES", help="Methods to choose from (a,b,c); default: all.")] = "",
    nominal: Annotated[float, typer.Option(min=0.5, max=0.99, help="Coverage of the intervals.")] = 0.9,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all randomness.")] = 0,
    memory_bound_from: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of stalls on memory of a memory-bound VM.")
    ] = 0.5,
    min_baseline_rows: Annotated[int, typer.Option(min=0, help="Minimum rows of a baseline; 0: automatic.")] = 0,
    calibrate_by: Annotated[
        str, typer.Option(metavar="run|scenario", help="Intervals cover new runs, or new scenarios.")
    ] = "run",
    baseline_rows: Annotated[bool, typer.Option(help="Fit to the baseline rows too (degradation about 1).")] = True,
    plot: _Plot = None,
    json: JsonOption = False,
) -> None:
    """Fit a degradation model to measured runs.

    Degradation = target / mean target of the baseline rows of the same group. Gamma regressions and trees are fitted
    without each scenario in turn; the one with the least error there is written, with the errors of all.
    """
    if calibrate_by not in ("run", "scenario"):
        raise InputError(f"--calibrate-by: must be run or scenario (value {calibrate_by})")
    check_output(out, others={"RUNS": runs})
    check_output(plot, "--plot", others={"RUNS": runs, "--out": out})
    table = Table(runs)
    columns = Columns(
        target=target,
        baseline_where=baseline_where,
        group_by=_names(group_by, "--group-by"),
        features=_names(features, "--features"),
        scenario=_default(table, scenario, "scenario"),
        time=_default(table, time, "at_s"),
        where=where,
        extra_inputs=_rule_signals(table),
    )
    measured = make_runs(table, columns)
    options = FitOptions(
        methods=_names(methods, "--methods") if methods else (),
        nominal=nominal,
        seed=seed,
        memory_bound_from=memory_bound_from,
        baseline_rows=baseline_rows,
        min_baseline_rows=min_baseline_rows,
        calibrate_by=calibrate_by,
        provenance=provenance(runs, "runs"),
    )
    with errors.status("fitting") as status:
        data = fit_model(measured, options, lambda step: status.update(f"fitting {step}"))
    write_model(out, data)
    if plot is not None:
        fitted = parse(data)
        estimates = fitted.predict(*inputs_of(measured, fitted))
        write_plot(plot, measured.degradation, estimates.degradation, np.array(estimates.models), runs.name)
    choice = data["choice"]
    chosen = next(row for row in choice["errors"] if row["method"] == choice["method"])
    if chosen["mean_ape"] >= choice["constant"]["mean_ape"]:
        say_warning("held out, the model is no better than a constant: an agent should not use it")
    result = {
        "out": str(out),
        "rows": dict(measured.counts),
        "features_without_values": measured.left_out_features,
        "choice": choice,
        "models": [{name: part[name] for name in ("behaviour", "cpu_level", "rows")} for part in data["models"]],
    }
    missing = ", ".join(measured.left_out_features)
    shown = (
        _rows_line(measured.counts),
        f"no row has a value of: {missing}" if missing else None,
        _choice_table(choice),
        summary_tables(data) or None,
        f"written to {out}",
    )
    report(result, shown, json=json)


@app.command()
def predict(
    rows: Annotated[Path, typer.Argument(metavar="ROWS", help="CSV or Parquet with the model's inputs.")],
    model: _ModelOption,
    out: Annotated[Path, typer.Option(metavar="FILE", help="CSV or Parquet to write.")],
    baseline_where: Annotated[
        str,
        typer.Option(
            metavar="EXPR", help="SQL condition: ROWS that are baselines; in their groups they replace the model's."
        ),
    ] = "",
    json: JsonOption = False,
) -> None:
    """Estimate the degradation of rows.

    The rows are written in their order, with the columns degradation, low, high, reason and predicted_TARGET.
    """
    check_output(out, others={"ROWS": rows, "--model": model})
    fitted, _ = read_model(model)
    predicted = predict_rows(rows, fitted, out, baseline_where)
    shown = (
        f"rows: {predicted.rows:,} read, {predicted.estimated:,} estimated",
        *_reasons(predicted.reasons),
        f"written to {out}",
    )
    report({"out": str(out), **asdict(predicted)}, shown, json=json)


@app.command()
def evaluate(
    runs: _RunsArgument,
    model: _ModelOption,
    by_scenario: Annotated[bool, typer.Option("--by-scenario", help="Re-fit without each scenario in turn.")] = False,
    folds: Annotated[int, typer.Option(min=0, help="Re-fit in this many folds of rows; 0: as it is.")] = 0,
    method: Annotated[str, typer.Option(metavar="NAME", help="Re-fit this one; default: the model's.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the folds and fits.")] = 0,
    scenario: Annotated[str | None, typer.Option(metavar="COL", help="Default: the model's scenario column.")] = None,
    where: _Where = "",
    plot: _Plot = None,
    json: JsonOption = False,
) -> None:
    """Measure a model's error on measured runs, baseline rows apart.

    As it is, or re-fitted without what it then estimates (--by-scenario, --folds). Overall error: the 95th percentiles
    of a run's measured and estimated values. Dynamic error: the mean over quanta of 1 s.
    """
    if by_scenario and folds:
        raise InputError("--by-scenario and --folds are two ways to hold rows out; give one")
    if method and not by_scenario and not folds:
        raise InputError(f"--method {method}: only used when re-fitting; give --by-scenario or --folds too")
    check_output(plot, "--plot", others={"RUNS": runs, "--model": model})
    fitted, data = read_model(model)
    table = Table(runs)
    fitted_with = data.get("provenance", {})
    table.require(fitted.inputs, "the model's inputs")
    columns = Columns(
        **{name: getattr(fitted, name) for name in ("target", "baseline_where", "group_by", "features")},
        scenario=_default(table, scenario, str(fitted_with.get("scenario", ""))),
        time=_default(table, None, str(fitted_with.get("time", ""))),
        where=where or str(fitted_with.get("where", "")),
        extra_inputs=_rule_signals(table),
    )
    measured = make_runs(table, columns)
    if folds or by_scenario:
        options = FitOptions(
            nominal=fitted.nominal,
            seed=seed,
            baseline_rows=bool(fitted_with.get("baseline_rows", True)),
            min_baseline_rows=fitted.min_baseline_rows,
            memory_bound_from=fitted.rule.memory_bound_from if fitted.rule else 0.5,
        )
        with errors.status("fitting") as status:
            rows, estimates, result = evaluate_refitted(
                measured, options, method or fitted.method, folds, lambda step: status.update(f"fitting {step}")
            )
        result["held_out_by"] = f"{folds} folds" if folds else "scenario"
    else:
        if measured.left_out_features:
            raise InputError(f"{runs}: no row has a value of {', '.join(measured.left_out_features)}")
        constant = float(data["choice"].get("constant", {}).get("degradation", 1.0))
        rows, estimates, result = evaluate_as_is(measured, fitted, constant)
        result["held_out_by"] = "nothing"
    if plot is not None:
        write_plot(plot, rows.degradation, estimates.degradation, rows.scenarios, runs.name)
    result = {"usable": dict(measured.counts), **result}
    report(result, _evaluation_shown(result), json=json)


def _names(text: str, option: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise InputError(f"{option}: must be names separated by commas, each once (value {text})")
    return names


def _default(table: Table, given: str | None, usual: str) -> str:
    if given is not None:
        return given
    return usual if usual in table.columns else ""


def _rule_signals(table: Table) -> tuple[str, ...]:
    return RULE_SIGNALS if set(RULE_SIGNALS) <= set(table.columns) else ()


def _rows_line(counts: Mapping[str, int]) -> str:
    words = left_out_words(dict(counts))
    missing = f", {words}" if words else ""
    return f"rows: {counts['read']:,} read, {counts['used']:,} used{missing}"


def _reasons(counts: Mapping[str, int]) -> Iterator[str]:
    return (f"cannot tell, {reason}: {count:,}" for reason, count in counts.items())


def _choice_table(choice: dict[str, Any]) -> Grid:
    titles = ("method", ">mean", ">median", ">cannot tell", "")
    whole = ("method", "mean", "median", "cannot tell")
    table = grid(*titles, title=f"Error, held out by {choice['held_out_by']}", whole=whole)
    for row in choice["errors"]:
        if "failed" in row:
            table.add_row(row["method"], "-", "-", "-", row["failed"])
            continue
        mark = "chosen" if row["method"] == choice["method"] else ""
        cannot_tell = f"{row['cannot_tell']:,}"
        table.add_row(row["method"], _percent(row["mean_ape"]), _percent(row["median_ape"]), cannot_tell, mark)
    constant = choice["constant"]
    table.add_row("(a constant)", _percent(constant["mean_ape"]), _percent(constant["median_ape"]), "0", "")
    return table


def _evaluation_shown(result: dict[str, Any]) -> Iterator[RenderableType]:
    yield _rows_line(result["usable"])
    names = ("rows", "overall", "with scatter", "dynamic", "mean", "median", "covered")
    table = grid("scenario", *(f">{name}" for name in names), title=f"Held out: {result['held_out_by']}", whole=names)
    keys = ("overall_error", "overall_error_with_scatter", "dynamic_error", "mean_ape", "median_ape")
    for name, line in {**result["by_scenario"], "all": result}.items():
        numbers = [_percent(line[key]) for key in (*keys, "coverage")]
        table.add_row(name, f"{line['rows']:,}", *numbers)
    constant = [_percent(result["constant"][key]) for key in keys]
    table.add_row("(a constant)", f"{result['rows']:,}", *constant, "-")
    yield table
    if not math.isnan(result["coverage"]):
        yield f"intervals: {result['nominal']:.0%} nominal, median width {result['median_width']:.3g}"
    yield from _reasons(result["reasons"])


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.1f} %"
