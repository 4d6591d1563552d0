"""`whitepanda incidents`: when VMs of a host suffered, as hosts reported it and central keeps it."""

import itertools
import math
import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from agent.analysis.contention.normalised_cpi import is_cut
from central.cli.shared.fleet_client import ask_pages, asking
from central.cli.shared.outputs import CsvOption, JsonOption, grid, report, short
from central.incidents.silences import described
from central.incidents.words import found_by, named, slow_down_or_why
from central.validation.triggers import first_suspect
from central.web.openapi import to_json
from whitepanda.common.cli import console
from whitepanda.common.errors import InputError
from whitepanda.common.recommendations import recommendation_lines
from whitepanda.common.tls_options import OPERATOR, CentralOption, Operator, operator_options
from whitepanda.v1 import agent_pb2, fleet_pb2

app = typer.Typer(
    help="VMs that suffer in the fleet: where, when, how much, the suspects; who does something about it.",
    no_args_is_help=True,
)
silence_app = typer.Typer(
    help="Keep incidents quiet for a time: webhooks and alerts leave them out.", no_args_is_help=True
)
app.add_typer(silence_app, name="silence")

_DEADLINE_S = 10.0
_MAX_HOURS = 1e6
_SHOWN_REPORTS = 12
_MAX_WIDTH = 1_000_000
_LAYOUT: dict[str, Any] = {"overflow": "fold", "box": None, "pad_edge": False}
_NS = 10**9
_Cells = tuple[str, ...]
_MAX_DURATION_NS = 366 * 86_400 * 10**9
_UNITS_S = {"m": 60, "h": 3600, "d": 86_400}

Reason = Annotated[str, typer.Option(help="Why, in one line, for who reads it later.")]
By = Annotated[str, typer.Option("--by", help="Your name, kept beside the certificate's: if several people share it.")]
Number = Annotated[str, typer.Argument(metavar="NUMBER", help="As `incidents list` shows it.")]


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
    csv: CsvOption = False,
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
    table = _list_table(found)
    shown = _list_shown(table, more=more) if found else ["no open incidents" if open_only else "no incidents"]
    value = {"incidents": [to_json(one) for one in found], "more": more}
    report(value, shown, json=json, csv=table if csv else None)


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
    one = _incident_number(number)
    with asking(operator.address(central), _DEADLINE_S) as ask:
        detail = ask("GetIncident", fleet_pb2.GetIncidentRequest(id=one))
        timeline = ask("GetIncidentTimeline", fleet_pb2.GetIncidentTimelineRequest(id=one))
    shown = itertools.chain(_detail_shown(detail), _timeline_shown(timeline))
    report(to_json(detail) | {"timeline": to_json(timeline)}, shown, json=json)


@app.command("ack")
@operator_options
def acknowledge(
    number: Number,
    reason: Reason,
    central: CentralOption = "",
    *,
    operator: Operator = OPERATOR,
    by: By = "",
    json: JsonOption = False,
) -> None:
    """Take an incident on: it is not sent again, and its alerts end. Whoever was first stays."""
    request = fleet_pb2.AcknowledgeIncidentRequest(id=_incident_number(number), reason=reason, operator=by)
    with asking(operator.address(central), _DEADLINE_S) as ask:
        one = ask("AcknowledgeIncident", request)
    report(to_json(one), [f"incident {one.id}: {_acknowledged(one)}"], json=json)


@app.command("note")
@operator_options
def note(
    number: Number,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="One line.")],
    central: CentralOption = "",
    *,
    operator: Operator = OPERATOR,
    by: By = "",
    json: JsonOption = False,
) -> None:
    """Write a note to an incident, for who looks at it next."""
    one = _incident_number(number)
    request = fleet_pb2.AddIncidentNoteRequest(id=one, text=text, operator=by, key=uuid.uuid4().hex)
    with asking(operator.address(central), _DEADLINE_S) as ask:
        made = ask("AddIncidentNote", request)
    report(to_json(made), [f"incident {one}: noted by {made.by}"], json=json)


@app.command("audit")
@operator_options
def audit(
    central: CentralOption = "",
    *,
    operator: Operator = OPERATOR,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 50,
    json: JsonOption = False,
    csv: CsvOption = False,
) -> None:
    """List who acknowledged, noted and silenced what, the last first. Times are UTC."""
    with asking(operator.address(central), _DEADLINE_S) as ask:
        found, last = ask_pages(ask, "ListAudit", fleet_pb2.ListAuditRequest(), "entries", limit)
    rows = (
        (
            _time(one.unix_ns),
            one.by,
            fleet_pb2.AuditAction.Name(one.action).removeprefix("AUDIT_ACTION_").lower().replace("_", " "),
            f"incident {one.incident}" if one.incident else f"silence {one.silence}",
            one.text,
        )
        for one in found
    )
    table = grid("WHEN (UTC)", "WHO", "DID", "WHAT", "WORDS", rows=rows, **_LAYOUT)
    value = {"entries": [to_json(one) for one in found], "more": bool(last.next_page_token)}
    report(
        value, _whole_rows(table) if found else ["nobody has done anything yet"], json=json, csv=table if csv else None
    )


@silence_app.command("add")
@operator_options
def silence_add(
    lasts: Annotated[str, typer.Option("--for", metavar="TIME", help="How long: 90m, 2h, 3d; at most 30d.")],
    reason: Reason,
    central: CentralOption = "",
    *,
    operator: Operator = OPERATOR,
    host: Annotated[str, typer.Option(help="Incidents on this host.")] = "",
    vm: Annotated[str, typer.Option(help="Of this VM, UUID or name: the first suspect, or the only victim.")] = "",
    job: Annotated[str, typer.Option(help="Of this job: the first suspect is of it, or all victims are.")] = "",
    project: Annotated[str, typer.Option(help="Of this project, as --job.")] = "",
    starts_in: Annotated[str, typer.Option("--in", metavar="TIME", help="Begin so much later.")] = "",
    by: By = "",
    json: JsonOption = False,
) -> None:
    """Keep incidents quiet that match all of --host, --vm, --job and --project that are given; at least one is needed.

    Webhooks send nothing of them. Prometheus' alerts on their victims, and on VMs and hosts that match, end. If an
    incident is still open once the silence is over, it is sent then.
    """
    now = time.time_ns()
    start = now + _duration_ns("--in", starts_in) if starts_in else 0
    request = fleet_pb2.CreateSilenceRequest(
        host=host, vm=vm, job=job, project=project, reason=reason, operator=by, key=uuid.uuid4().hex,
        start_unix_ns=start, end_unix_ns=(start or now) + _duration_ns("--for", lasts),
    )  # fmt: skip
    with asking(operator.address(central), _DEADLINE_S) as ask:
        made = ask("CreateSilence", request)
    report(to_json(made), [f"silence {made.id} until {_time(made.end_unix_ns)} UTC: {described(made)}"], json=json)


@silence_app.command("list")
@operator_options
def silence_list(
    central: CentralOption = "",
    *,
    operator: Operator = OPERATOR,
    past: Annotated[bool, typer.Option("--all", help="Also those that are over.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 50,
    json: JsonOption = False,
    csv: CsvOption = False,
) -> None:
    """List silences, the last one made first. Times are UTC."""
    request = fleet_pb2.ListSilencesRequest(current_only=not past)
    with asking(operator.address(central), _DEADLINE_S) as ask:
        found, last = ask_pages(ask, "ListSilences", request, "silences", limit)
    now = time.time_ns()
    rows = (
        (
            str(one.id),
            "in force" if one.in_force else "later" if one.start_unix_ns > now else "over",
            described(one),
            _time(one.start_unix_ns),
            _time(one.end_unix_ns),
            one.by,
            one.reason + (f" (ended by {one.ended_by})" if one.ended_by else ""),
        )
        for one in found
    )
    table = grid(">NO", "STATE", "MATCHES", "FROM (UTC)", "UNTIL (UTC)", "WHO", "REASON", rows=rows, **_LAYOUT)
    value = {"silences": [to_json(one) for one in found], "more": bool(last.next_page_token)}
    report(value, _whole_rows(table) if found else ["no silences"], json=json, csv=table if csv else None)


@silence_app.command("end")
@operator_options
def silence_end(
    number: Annotated[str, typer.Argument(metavar="NUMBER", help="As `incidents silence list` shows it.")],
    central: CentralOption = "",
    *,
    operator: Operator = OPERATOR,
    by: By = "",
    json: JsonOption = False,
) -> None:
    """End a silence now. Incidents that it kept quiet are sent if they are still open."""
    request = fleet_pb2.EndSilenceRequest(id=_whole(number, "a silence's number", "silence list"), operator=by)
    with asking(operator.address(central), _DEADLINE_S) as ask:
        ended = ask("EndSilence", request)
    report(to_json(ended), [f"silence {ended.id} is over since {_time(ended.end_unix_ns)} UTC"], json=json)


def _incident_number(text: str) -> int:
    return _whole(text, "an incident's number", "list")


def _whole(text: str, what: str, command: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 2**63:
        raise InputError(f"NUMBER must be {what} (value {text[:40]!r}); see `incidents {command}`")
    return int(text)


def _duration_ns(option: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?[mhd]", text):
        raise InputError(f"{option} must be a time such as 90m, 2h or 3d (value {text[:40]!r})")
    found = round(float(text[:-1]) * _UNITS_S[text[-1]] * _NS)
    if found > _MAX_DURATION_NS:
        raise InputError(f"{option} must be at most a year (value {text})")
    return found


def _acknowledged(one: fleet_pb2.Incident) -> str:
    return f"acknowledged by {one.acknowledged_by} at {_time(one.acknowledged_unix_ns)} UTC: {one.acknowledgement}"


def _handling_shown(one: fleet_pb2.Incident) -> Iterator[RenderableType]:
    if one.silenced_by:
        yield f"kept quiet by silence {one.silenced_by}; see `incidents silence list`"
    if one.acknowledged_by:
        yield Text(_acknowledged(one))


def _timeline_shown(timeline: fleet_pb2.IncidentTimeline) -> Iterator[RenderableType]:
    if not timeline.changes:
        return
    yield "what else changed, from 10 minutes before to 10 minutes after:"
    rows = ((_time(one.unix_ns), one.text) for one in timeline.changes)
    yield from _whole_rows(grid("WHEN (UTC)", "CHANGE", rows=rows, **_LAYOUT))


def _list_shown(table: Table, *, more: bool) -> Iterator[RenderableType]:
    yield from _whole_rows(table)
    if more:
        yield f"the last {table.row_count}; there are more, see --limit"


def _list_table(found: Sequence[fleet_pb2.Incident]) -> Table:
    titles = (">NO", "HOST", "STATE", "BEGAN (UTC)", ">LASTED", "SLOW-DOWN", "VICTIMS", "SUSPECT", "FOUND BY")
    table = grid(*titles, whole=("NO", "HOST", "STATE", "SLOW-DOWN", "SUSPECT"), **_LAYOUT)
    for one in found:
        worst, victims = one.victims[0] if one.victims else fleet_pb2.IncidentVm(), len(one.victims)
        if one.open:
            worst, victims = one.slowest_now, one.victims_now
        table.add_row(
            str(one.id),
            one.host,
            _state(one),
            _time(one.first_unix_ns),
            _span(one.last_unix_ns - one.first_unix_ns),
            slow_down_or_why(worst.slow_down),
            (worst.name or worst.vm) + (f" +{victims - 1}" if victims > 1 else ""),
            named(one.suspect) if one.suspect.vm else "-",
            _analyses(one.found_by),
        )
    return table


def _state(one: fleet_pb2.Incident) -> str:
    if not one.open:
        return "over"
    return "silenced" if one.silenced_by else "acknowledged" if one.acknowledged_by else "open"


def _detail_shown(detail: fleet_pb2.IncidentDetail) -> Iterator[RenderableType]:
    one = detail.incident
    state = "over"
    if one.open:
        suffer = "suffers" if one.victims_now == 1 else "suffer"
        state = f"{_count(one.victims_now, 'VM')} {suffer}, last reported {_time(one.last_unix_ns)} UTC"
    lasted = _span(one.last_unix_ns - one.first_unix_ns)
    yield f"incident {one.id} on {one.host}: began {_time(one.first_unix_ns)} UTC, lasted {lasted}, {state}"
    yield from _handling_shown(one)
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
    for each in detail.notes:
        yield Text(f"{_time(each.unix_ns)} UTC, note of {each.by}: {each.text}")
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
