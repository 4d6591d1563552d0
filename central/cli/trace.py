"""`whitepanda trace`: traces with known antagonists, to study the methods on."""

import dataclasses
import time
from pathlib import Path
from typing import Annotated

import typer

from central.cli.shared.outputs import JsonOption, grid, report
from central.traces.generator.presets import PRESETS, preset
from central.traces.generator.settings import changed, parameters
from central.traces.generator.write import synthesise
from whitepanda.common.cli import errors
from whitepanda.common.errors import InputError

app = typer.Typer(help="Traces with known antagonists, to study the methods on.", no_args_is_help=True)


@app.command()
def synth(
    out: Annotated[Path, typer.Option(metavar="TRACE", help="Rows to write: .csv, else Parquet.")],
    truth: Annotated[Path, typer.Option(metavar="TRUTH.json", help="Who the antagonists are, and more.")],
    preset_name: Annotated[
        str, typer.Option("--preset", help="Named settings that the parameters below change.")
    ] = "paper",
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    days: Annotated[int | None, typer.Option(help="Days of 288 slots of 300 s.")] = None,
    machines: Annotated[int | None, typer.Option(help="Machines.")] = None,
    batch_jobs: Annotated[int | None, typer.Option(help="Ordinary batch jobs.")] = None,
    antagonists: Annotated[int | None, typer.Option(help="Antagonist batch jobs.")] = None,
    antagonist_effect: Annotated[
        float | None, typer.Option("--strength", help="antagonist_effect: contention per antagonist's task.")
    ] = None,
    cpi_noise: Annotated[
        float | None, typer.Option("--noise", help="cpi_noise: spread of CPI from slot to slot.")
    ] = None,
    companions: Annotated[int | None, typer.Option(help="Confounding: innocent jobs beside antagonists.")] = None,
    burners: Annotated[int | None, typer.Option(help="CPU burners that hurt no task.")] = None,
    platforms: Annotated[int | None, typer.Option(help="CPU platforms, whose CPI differs.")] = None,
    corrupted_share: Annotated[
        float | None, typer.Option("--corrupted", help="corrupted_share: samples with an absurd CPI.")
    ] = None,
    form: Annotated[str | None, typer.Option(help="Contention: linear or saturating.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any parameter; `trace presets` lists them. Repeatable."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write a trace with known antagonists, in the Google cluster trace's columns.

    Then: whitepanda antagonists evaluate TRACE --truth TRUTH.json (but not of one without antagonists, such as preset
    quiet: there is nothing to rank).
    """
    given = locals()
    began = time.monotonic()
    values = {name: given[name] for name, _, _ in parameters() if given.get(name) is not None}
    settings = changed(preset(preset_name), values | _assignments(sets or []))

    def on_day(day: int, of: int) -> None:
        if errors.is_terminal:
            errors.print(f"day {day} of {of}", end="\r")

    written = synthesise(settings, out, truth, preset_name, on_day)
    seconds = time.monotonic() - began
    shape = f"{settings.days} days, {settings.machines} machines, {written.jobs} jobs, {written.tasks:,} tasks"
    blamed = f"{len(written.antagonists)} antagonists in {truth}, {written.antagonists_with_rows} of them ran"
    shown = (f"{written.rows:,} rows ({shape}) in {seconds:.1f} s", f"written to {out}; {blamed}")
    found = {"out": str(out), "truth": str(truth), **dataclasses.asdict(written), "seconds": seconds}
    report(found, shown, json=json)


@app.command()
def presets(json: JsonOption = False) -> None:
    """List the presets, and every parameter with its meaning and its value in each preset that changes it."""
    values = {name: dataclasses.asdict(settings) for name, (_, settings) in PRESETS.items()}
    meanings = {name: {"default": default, "help": text} for name, default, text in parameters()}
    named = {name: {"help": PRESETS[name][0], "parameters": values[name]} for name in PRESETS}
    table = grid("parameter", "default", "meaning", "presets", title="Parameters")
    for name, default, text in parameters():
        others = ", ".join(f"{p} {v[name]}" for p, v in values.items() if v[name] != default)
        table.add_row(name, str(default), text, others)
    lines = (f"{name}: {text}" for name, (text, _) in PRESETS.items())
    report({"presets": named, "parameters": meanings}, (*lines, table), json=json)


def _assignments(sets: list[str]) -> dict[str, str]:
    read: dict[str, str] = {}
    for each in sets:
        name, equals, value = each.partition("=")
        if not equals:
            raise InputError(f"--set {each}: must be NAME=VALUE")
        read[name.strip().replace("-", "_")] = value.strip()
    return read
