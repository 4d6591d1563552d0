"""`whitepanda place`: which host a new VM should run on, by D-Factor, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from central.placement.explain import explained
from central.placement.fleet import RULES, Hosts
from central.placement.requests import read_hosts, read_vms
from central.placement.schedule import NOWHERE, Schedule, Vm, place_all
from central.placement.tables import numbers_by_name
from whitepanda.common.cli import console, print_json
from whitepanda.common.errors import InputError

_TOP = 5


def place(
    vms: Annotated[
        Path,
        typer.Argument(
            metavar="VMS.csv", help="Columns job, one per resource; if known tau_s, start_s, host."
        ),
    ],
    hosts: Annotated[
        Path,
        typer.Option(metavar="HOSTS.csv", help="Column host; loadings there; units.NAME, limit.NAME."),
    ],
    units: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N", help="Equal units of a resource on each host, as cpu=8; repeatable."),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=MAX", help="The most that a host's total loading may be; repeatable."),
    ] = None,
    fit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=ROOM", help="A column that has to fit, as memory_gib=256; repeatable."),
    ] = None,
    rule: Annotated[str, typer.Option(help="dfactor, graham, first-fit or least-loaded.")] = "dfactor",
    order: Annotated[
        str, typer.Option(help="Of VMs that arrive at one moment: given, or largest first.")
    ] = "given",
    top: Annotated[int, typer.Option(min=0, help="Hosts to list per VM; 0: all with room.")] = _TOP,
    compare: Annotated[  # noqa: FBT002 - a flag of typer's
        bool, typer.Option("--compare", help="Beside it: what the other rules would come to.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002 - a flag of typer's
) -> None:
    """Rank hosts for new VMs by what they would suffer there.

    dfactor takes the host with the least p . P (p: the VM's loading vector, P: the sum of those on the host), ties
    go to the first; that is by how much over 1 its time is stretched, and as much it costs the others there. graham
    is the list scheduler, by the sum of times alone (tau_s). A row of VMS.csv with a host runs there already. With
    tau_s, VMs arrive at start_s and end.
    """
    if rule not in RULES:
        raise InputError(f"--rule {rule}: must be one of {', '.join(RULES)}")
    if order not in ("given", "largest"):
        raise InputError(f"--order {order}: must be given or largest")
    amounts = numbers_by_name(fit or [], "--fit")
    asked = read_vms(vms, tuple(amounts))
    fleet = read_hosts(
        hosts,
        asked.resources,
        units=numbers_by_name(units or [], "--units"),
        limits=numbers_by_name(limit or [], "--limit"),
        amounts=amounts,
    )
    to_place = asked.vms(fleet)
    _need_times(rule, to_place, vms)
    found = place_all(fleet, to_place, rule, top=top or None, largest_first=order == "largest")
    summary = explained(fleet, to_place, found, rule)
    if compare:
        summary["compare"] = _compared(fleet, to_place, order == "largest")
    if json:
        print_json(summary)
    else:
        _print(summary)


def _need_times(rule: str, vms: list[Vm], path: Path) -> None:
    if rule == "graham" and not all(vm.request.tau_s for vm in vms):
        raise InputError(f"{path}: --rule graham needs the column tau_s, above 0 in every row")


def _compared(fleet: Hosts, vms: list[Vm], largest_first: bool) -> dict[str, Any]:  # noqa: FBT001 - of a private function
    """What each rule comes to."""
    has_times = all(vm.request.tau_s for vm in vms)
    found: dict[str, Any] = {}
    for rule in RULES:
        if rule == "graham" and not has_times:
            continue
        done = place_all(fleet, vms, rule, top=1, largest_first=largest_first)
        found[rule] = {"added_dilation": done.added, "unplaced": _unplaced(done)}
        if has_times:
            found[rule]["makespan_s"] = done.makespan_s
            found[rule]["mean_dilation"] = _mean_dilation(vms, done)
    return found


def _unplaced(done: Schedule) -> int:
    return sum(host == NOWHERE for host in done.host)


def _mean_dilation(vms: list[Vm], done: Schedule) -> float:
    ran = [k for k, host in enumerate(done.host) if host != NOWHERE]
    return float(np.mean([(done.end_s[k] - vms[k].start_s) / vms[k].request.tau_s for k in ran]))


def _print(summary: dict[str, Any]) -> None:
    for row in summary["placements"]:
        console.print(f"{row['job']}: {row['why']}", soft_wrap=True, markup=False)
        if len(row["ranked"]) > 1:
            table = Table(show_header=True, box=None)
            table.add_column("host")
            table.add_column("dilation", justify="right")
            for host in row["ranked"]:
                table.add_row(host["host"], f"{host['dilation']:.4f}")
            console.print(table)
    placed = sum(row["host"] is not None for row in summary["placements"])
    line = f"{placed} of {len(summary['placements'])} placed; total dilation rises by {summary['added_dilation']:.4g}"
    if "makespan_s" in summary:
        line += f"; the last ends at {summary['makespan_s']:.2f} s"
    console.print(line, soft_wrap=True)
    if "compare" in summary:
        _print_compared(summary["compare"])


def _print_compared(compare: dict[str, Any]) -> None:
    table = Table(title="By rule", title_justify="left")
    names = list(next(iter(compare.values())))
    for name in ("rule", *names):
        table.add_column(name.replace("_", " "), justify="left" if name == "rule" else "right")
    for rule, row in compare.items():
        table.add_row(rule, *(f"{row[name]:.6g}" for name in names))
    console.print(table)
