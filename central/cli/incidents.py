"""`whitepanda incidents`: when VMs of a host suffered, as hosts reported it and central keeps it."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from agent.analysis.contention.normalised_cpi import is_cut
from central.cli.shared.fleet_client import ask_pages, asking
from central.cli.shared.outputs import JsonOption, grid, report, short
from central.incidents.words import found_by, named, slow_down_or_why
from central.validation.triggers import first_suspect
from central.web.openapi import to_json
from whitepanda.common.cli import console
from whitepanda.common.errors import InputError
from whitepanda.common.recommendations import recommendation_lines
from whitepanda.common.tls_options import OPERATOR, CentralOption, Operator, operator_options
from whitepanda.v1 import agent_pb2, fleet_pb2

app = typer.Typer(help="VMs that suffer in the fleet: where, when, how much, and the suspects.", no_args_is_help=True)

_DEADLINE_S = 10.0
_MAX_HOURS = 1e6
_SHOWN_REPORTS = 12
_MAX_WIDTH = 1_000_000
_LAYOUT: dict[str, Any] = {"overflow": "fold", "box": None, "pad_edge": False}
_NS = 10**9
_Cells = tuple[str, ...]


@app.command("list")
@operator_options
def list_(
    central: CentralOption = "",
    *,
    operator: Operator = OPERATOR,
    host: Annotated[str, typer.Option(help="Only on this host.")] = "",
    suspect_job: Annotated[str, typer.Option(help="Only if some report suspects this job first.")] = "",
    victim_job: Annotated[str, typer.Option(help="Only if a VM of this job suffers.")] = "",
    vm: Annotated[str, typer.Option(help="Only with this VM (UUID or name), victim or suspect.")] = "",
    hours: Annotated[
        float | None, typer.Option(min=0, max=_MAX_HOURS, help="Hours to look back; default: all.")
    ] = None,
    open_only: Annotated[bool, typer.Option("--open", help="Only if VMs suffer now.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 20,
    json: JsonOption = False,
) -> None:
    """List incidents, the newest first. Times are UTC.

    SLOW-DOWN is the slowest victim's, with its interval: now if the incident is open, else at its worst; "CPI" if it
    is of CPI rather than of latency. FOUND BY: the host's own analysis, or the fleet's statistics.
    """
    request = fleet_pb2.ListIncidentsRequest(
        host=host,
        suspect_job=suspect_job,
        victim_job=victim_job,
        vm=vm,
        since_unix_ns=0 if hours is None else max(1, time.time_ns() - round(hours * 3600) * _NS),
        open_only=open_only,
    )
    with asking(operator.address(central), _DEADLINE_S) as ask:
        found, last = ask_pages(ask, "ListIncidents", request, "incidents", limit)
    more = bool(last.next_page_token)
    shown = _list_shown(found, more=more) if found else ["no open incidents" if open_only else "no incidents"]
    report({"incidents": [to_json(one) for one in found], "more": more}, shown, json=json)


@app.command("show")
@operator_options
def show(
    number: Annotated[str, typer.Argument(metavar="NUMBER", help="As `incidents list` shows it.")],
    central: CentralOption = "",
    *,
    operator: Operator = OPERATOR,
    json: JsonOption = False,
) -> None:
    """Show one incident: victims by slow-down, suspects, each report, and other incidents of the suspect."""
    if not number.isascii() or not number.isdigit() or int(number) >= 2**63:
        raise InputError(f"NUMBER must be an incident's number (value {number[:40]!r}); see `incidents list`")
    with asking(operator.address(central), _DEADLINE_S) as ask:
        detail = ask("GetIncident", fleet_pb2.GetIncidentRequest(id=int(number)))
    report(to_json(detail), _detail_shown(detail), json=json)


def _list_shown(found: Sequence[fleet_pb2.Incident], *, more: bool) -> Iterator[RenderableType]:
    titles = (">NO", "HOST", "STATE", "BEGAN (UTC)", ">LASTED", "SLOW-DOWN", "VICTIMS", "SUSPECT", "FOUND BY")
    table = grid(*titles, whole=("NO", "HOST", "STATE", "SLOW-DOWN", "SUSPECT"), **_LAYOUT)
    for one in found:
        worst, victims = one.victims[0] if one.victims else fleet_pb2.IncidentVm(), len(one.victims)
        if one.open:
            worst, victims = one.slowest_now, one.victims_now
        table.add_row(
            str(one.id),
            one.host,
            "open" if one.open else "over",
            _time(one.first_unix_ns),
            _span(one.last_unix_ns - one.first_unix_ns),
            slow_down_or_why(worst.slow_down),
            (worst.name or worst.vm) + (f" +{victims - 1}" if victims > 1 else ""),
            named(one.suspect) if one.suspect.vm else "-",
            _analyses(one.found_by),
        )
    yield from _whole_rows(table)
    if more:
        yield f"the last {len(found)}; there are more, see --limit"


def _detail_shown(detail: fleet_pb2.IncidentDetail) -> Iterator[RenderableType]:
    one = detail.incident
    state = "over"
    if one.open:
        suffer = "suffers" if one.victims_now == 1 else "suffer"
        state = f"{_count(one.victims_now, 'VM')} {suffer}, last reported {_time(one.last_unix_ns)} UTC"
    lasted = _span(one.last_unix_ns - one.first_unix_ns)
    yield f"incident {one.id} on {one.host}: began {_time(one.first_unix_ns)} UTC, lasted {lasted}, {state}"
    suspect = f"first suspect {named(one.suspect)}" if one.suspect.vm else "no suspect"
    found = found_by(one.found_by)
    yield f"{suspect}{f'; found {found}' if found else ''}"
    reported = f"reported {_count(one.reports, 'time')}"
    if not math.isnan(one.peak_mn_cpi):
        reported += f"; mnCPI up to {short(one.peak_mn_cpi)}, threshold {short(one.peak_threshold)}"
    yield reported
    if detail.HasField("recurrence"):
        again = detail.recurrence
        counts = f"{_count(again.incidents, 'incident')} on {_count(again.hosts, 'host')}"
        yield f"job {again.job} was suspected first in {counts} since {_time(again.first_unix_ns)} UTC"
    yield from _whole_rows(_vms(detail, "victims"))
    yield from _whole_rows(_vms(detail, "suspects"))
    titles = ("REPORTED (UTC)", "SLOWEST", ">VICTIMS", "FIRST SUSPECT", "FOUND BY", ">mnCPI", ">THRESHOLD")
    table = grid(*titles, **_LAYOUT)
    for one_report in detail.reports[-_SHOWN_REPORTS:]:
        first = first_suspect(one_report)
        slowest = one_report.victims[0] if one_report.victims else agent_pb2.TriggerVictim()
        table.add_row(
            _time(one_report.unix_ns),
            slow_down_or_why(slowest.slow_down),
            str(len(one_report.victims) + one_report.victims_left_out),
            (first.name or first.vm) if first else "-",
            _analyses(one_report.found_by),
            short(one_report.mn_cpi),
            short(one_report.mn_cpi_threshold),
        )
    yield from _whole_rows(table)
    if one.open:
        yield "NOW, CPI, INFLICTS and CORES are of the last report; victims are ordered by WORST."
    if one.recommendations:
        yield "what could be done, the best first:"
        for line in recommendation_lines(one.recommendations):
            yield Text(line)


def _vms(detail: fleet_pb2.IncidentDetail, role: str) -> Table:
    """Return the victims, the slowest at its worst first, or the suspects, the first one first.

    An open incident's have the values of the last report too.
    """
    one, (titles, more, ever, now) = detail.incident, _ROLES[role]
    is_open = one.open and detail.reports
    last = {vm.vm: now(vm) for vm in getattr(detail.reports[-1], role)} if is_open else {}
    more = more if one.open else ()
    unknown = ("-",) * len(more)
    rows = ((vm.name or vm.vm, vm.job, *ever(vm), *last.get(vm.vm, unknown)) for vm in getattr(one, role))
    return grid(*titles, *more, rows=rows, **_LAYOUT)


def _analyses(found: Sequence[int]) -> str:
    """Return the words of analyses, "host, fleet"."""
    words = (agent_pb2.Analysis.Name(each).removeprefix("ANALYSIS_").lower() for each in found)
    return ", ".join(words) or "-"


def _whole_rows(table: Table) -> Iterator[RenderableType]:
    """Return a table; beyond a terminal each row as one whole line, for grep."""
    if console.is_terminal:
        yield table
        return
    width = console.measure(table, options=console.options.update(max_width=_MAX_WIDTH)).maximum
    for line in console.render_lines(table, console.options.update(width=width, max_width=width), pad=False):
        yield "".join(part.text for part in line).rstrip()


def _n_cpi(value: float) -> str:
    """Return a nCPI; how much larger one was that is cut is not known."""
    return f"{short(value)} (cut)" if is_cut(value) else short(value)


def _time(unix_ns: int) -> str:
    try:
        return datetime.fromtimestamp(unix_ns // _NS, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError):  # importers may send any time
        return f"{unix_ns} ns"


def _span(ns: int) -> str:
    minutes = round(ns / _NS / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"  # noqa: PLR2004 - an hour


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


#: Victims and suspects: columns, those of open incidents; cells of an incident's VM, and of a report's.
_ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...], Callable[[Any], _Cells], Callable[[Any], _Cells]]] = {
    "victims": (
        ("VICTIM", "JOB", "WORST", ">WORST nCPI", ">REPORTS"),
        ("NOW", ">CPI", ">THRESHOLD"),
        lambda vm: (slow_down_or_why(vm.slow_down), _n_cpi(vm.peak), str(vm.reports)),
        lambda vm: (slow_down_or_why(vm.slow_down), short(vm.cpi), short(vm.threshold_cpi)),
    ),
    "suspects": (
        ("SUSPECT", "JOB", ">FIRST IN", ">REPORTS", ">WORST SCORE"),
        ("INFLICTS", ">COEFFICIENT", ">CORES"),
        lambda vm: (str(vm.first_reports), str(vm.reports), short(vm.peak)),
        lambda vm: ("yes" if vm.inflicts else "-", short(vm.coefficient), short(vm.cpu_usage_cores)),
    ),
}
