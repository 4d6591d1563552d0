"""`whitepanda doctor`: what this host can measure, and the remedy for what it cannot."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from agent.api.client import find_config
from agent.cli._options import JsonOption
from agent.config import AgentConfig
from agent.display import render
from agent.display.words import BAD, DIM, GOOD
from agent.doctor.checks import examine
from agent.doctor.findings import Check
from whitepanda.common import log
from whitepanda.common.cli import console, errors, print_json
from whitepanda.common.errors import InputError, UnavailableError

_STYLES = {"ok": GOOD, "missing": BAD, "off": DIM, "info": ""}


def doctor(
    config: Annotated[Path | None, typer.Option(help="The agent's configuration.")] = None,
    *,
    bundle: Annotated[Path | None, typer.Option(help="Also write a support bundle (tar.gz), without secrets.")] = None,
    anonymise: Annotated[
        bool, typer.Option(help="Bundle: pseudonyms for names, UUIDs, MAC addresses and owners.")
    ] = True,
    record_seconds: Annotated[
        float, typer.Option(help="Bundle: how long the sources are recorded; 0: not.", min=0, max=300)
    ] = 5.0,
    json: JsonOption = False,
) -> None:
    """Examine this host; needs no running agent. Exit code 4 if something is missing that is required.

    Required is what the configuration says: sources of mode `required` and the state directory. Without
    usable TLS files the agent starts and spools, but reaches no central.
    """
    settings, file = find_config(config)
    with errors.status("examining this host"):
        findings = list(examine(settings, file))
    if bundle is not None:
        _bundle(bundle, settings, findings, anonymise=anonymise, record_s=record_seconds)
    failed = [check for check in findings if check.required and check.state == "missing"]
    if json:
        print_json({"ok": not failed, "checks": [check.as_json() for check in findings]})
    else:
        _table(findings)
    if failed:
        names = ", ".join(check.name for check in failed)
        raise UnavailableError(f"required and missing: {names}; the agent would not start")


def _bundle(file: Path, settings: AgentConfig, findings: list[Check], *, anonymise: bool, record_s: float) -> None:
    from agent.doctor.bundle import make_bundle, write_bundle  # noqa: PLC0415 - rarely wanted

    if os.path.lexists(file):
        raise InputError(f"{file}: exists already; give another name")
    log.configure("error")  # the bundle's notes report the sources
    with errors.status("collecting the support bundle"):
        made = make_bundle(settings, findings, anonymise=anonymise, record_s=record_s)
        write_bundle(made, file)
    names = "pseudonyms for all names" if anonymise else "the true names"
    errors.print(Text(f"{file}: {len(made.files)} files, {names}; manifest.json lists them"), soft_wrap=True)
    for note in made.notes:
        errors.print(Text(f"  not in it: {note}", style="dim"), soft_wrap=True)


def _table(findings: list[Check]) -> None:
    titles = ("CHECK", "STATE", "WHAT")
    rows = [_cells(check) for check in findings]
    if not console.is_terminal and "COLUMNS" not in os.environ:
        # Files and pipes get each finding on a line that ends where its text does.
        name_width, state_width = (max(len(row[index]) for row in (titles, *rows)) for index in (0, 1))
        for name, state, what in (titles, *rows):
            console.print(Text(f"{name:<{name_width}} {state:<{state_width}} {what}"), soft_wrap=True)
        return
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, no_wrap=title != "WHAT")
    for check, (name, state, what) in zip(findings, rows, strict=True):
        table.add_row(Text(name), Text(state, style=_STYLES[check.state]), Text(what))
    console.width = render.terminal_width()
    console.print(table)


def _cells(check: Check) -> tuple[str, str, str]:
    state = f"{check.state}!" if check.required and check.state == "missing" else check.state
    code = f"{check.reason.code}: " if check.reason and check.state == "missing" else ""
    return check.name, state, code + check.detail
