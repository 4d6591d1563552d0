"""`whitepanda doctor`: what this host can measure, and the remedy for what it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from agent.cli import _render as render
from agent.doctor import Check, examine
from agent.local_client import find_config
from whitepanda.common.cli import console, errors, print_json
from whitepanda.common.errors import UnavailableError

__all__ = ["doctor"]

_STYLES = {"ok": "green", "missing": "bold red", "off": "dim", "info": ""}


def doctor(
    config: Annotated[Path | None, typer.Option(help="The agent's configuration.")] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="One JSON object for programs.")] = False,
) -> None:
    """Examine this host; needs no running agent. Exit code 4 if something is missing that is required.

    Required is what the configuration says: sources of mode `required` and the state directory. Without
    usable TLS files the agent starts and spools, but reaches no central.
    """
    settings, file = find_config(config)
    with errors.status("examining this host"):
        findings = list(examine(settings, file))
    failed = [check for check in findings if check.required and check.state == "missing"]
    if json:
        print_json({"ok": not failed, "checks": [_json(check) for check in findings]})
    else:
        _table(findings)
    if failed:
        names = ", ".join(check.name for check in failed)
        raise UnavailableError(f"required and missing: {names}; the agent does not start like this")


def _table(findings: list[Check]) -> None:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("CHECK", no_wrap=True)
    table.add_column("STATE", no_wrap=True)
    table.add_column("WHAT")
    for check in findings:
        state = f"{check.state}!" if check.required and check.state == "missing" else check.state
        code = f"{check.reason.code}: " if check.reason and check.state == "missing" else ""
        table.add_row(Text(check.name), Text(state, style=_STYLES[check.state]), Text(code + check.detail))
    console.width = render.terminal_width()
    console.print(table)


def _json(check: Check) -> dict[str, object]:
    return {
        "name": check.name,
        "state": check.state,
        "required": check.required,
        "reason": check.reason.code if check.reason else None,
        "detail": check.detail,
    }
