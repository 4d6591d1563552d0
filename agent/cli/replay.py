"""`whitepanda replay`: a trace or a recorded host through the real uplink and ingest."""

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import MofNCompleteColumn
from rich.table import Table
from rich.text import Text

from agent import config as agent_config
from agent.cli._options import JsonOption, print_problem, progress_bar
from agent.display.render import event_json, event_line
from agent.recording.replay import (
    RecordedRows,
    ReplayResult,
    Rows,
    TraceRows,
    is_recording,
    read_all,
    send,
    spool_id_of,
)
from agent.uplink.messages import event_message
from whitepanda.common import log
from whitepanda.common.cli import console, print_json
from whitepanda.common.config import address_problem
from whitepanda.common.errors import InputError, UnavailableError, WhitepandaError
from whitepanda.common.extras import how_to_install
from whitepanda.common.tls_options import CaOption, CertOption, FolderOption, KeyOption, ServerNameOption, files_of
from whitepanda.v1 import agent_pb2

_RECONNECT_MAX_S = 5.0
_SHOWN_EVENTS = 50


def replay(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Google cluster trace v3 rows (Parquet, CSV), or recordings of a host.", show_default=False
        ),
    ],
    *,
    central: Annotated[
        str, typer.Option(help="host:port of central. Without it nothing is sent: the files are read and counted.")
    ] = "",
    tls: FolderOption = None,
    ca: CaOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
    name: Annotated[
        str, typer.Option(help="The name in our certificate. Traces need one of central's importers.")
    ] = "importer",
    server_name: ServerNameOption = "",
    platform: Annotated[str, typer.Option(help="CPU platform of the rows; CPI is compared within one.")] = "trace",
    machine: Annotated[str, typer.Option(help="Recordings: the host they are of, for an importer.")] = "",
    config: Annotated[
        Path | None, typer.Option(help="Recordings: an agent's configuration, for its job rules and windows.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Most rows per second; 0: no limit.", min=0)] = 0.0,
    patience: Annotated[float, typer.Option(help="Seconds to wait for central.", min=0)] = 60.0,
    max_cpi: Annotated[float, typer.Option(help="Traces: a larger CPI is absurd and not sent.")] = 100.0,
    priority: Annotated[float, typer.Option(help="Traces: latency-sensitive from this priority on ...")] = 120.0,
    scheduling_class: Annotated[float, typer.Option(help="... and this scheduling class.")] = 2.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and count only, send nothing.")] = False,
    json: JsonOption = False,
) -> None:
    """Stream traces or recordings through the real gRPC ingest until every row is acknowledged.

    Rows that cannot be used are counted by reason, and the counts must add up: else the exit code is 1.
    Central knows a replay by its files' content and options: run it again, whole or broken off, and nothing
    counts twice.
    """
    log.configure("warning")
    kinds = {is_recording(file) for file in files}
    if len(kinds) > 1:
        raise InputError("recordings and traces cannot be mixed in one replay; give them one after the other")
    is_host = kinds.pop()
    settings = agent_config.load(config) if config else None
    rows: Rows
    options: tuple[object, ...]
    if is_host:
        rows, options = RecordedRows(files, config=settings, machine=machine), (settings, machine, platform)
    else:
        limits = (max_cpi, priority, scheduling_class)
        rows, options = _trace(files, *limits), (*limits, platform)
    with progress_bar("reading", rows.total_rows, MofNCompleteColumn()) as bar:
        show = functools.partial(_show_progress, bar)
        if dry_run or not central:
            result = read_all(rows, show)
        else:
            if problem := address_problem("--central", central):
                raise InputError(problem)
            section = agent_config.UplinkSection(
                address=central,
                server_name=server_name,
                tls=files_of(tls, name, ca=ca, cert=cert, key=key),
                reconnect_max_s=_RECONNECT_MAX_S,
            )
            version = metadata.version("whitepanda")
            hello = functools.partial(agent_pb2.Hello, host=name, platform=platform, agent_version=version)
            spool_id = spool_id_of(files, options)
            sending = send(
                rows, section, hello, spool_id=spool_id, rows_per_s=rate, patience_s=patience, on_progress=show
            )
            result = asyncio.run(sending)
    for warning in rows.warnings:
        print_problem("warning", warning)
    sent = result.rows_acknowledged is not None
    events = [event_message(event) for event in rows.events]
    if json:
        values = {"sent": sent, **dataclasses.asdict(result)}
        values |= {"rows_per_s": round(result.rows_per_s), "adds_up": not result.problems()}
        if is_host:
            values["events"] = [event_json(event) for event in events]
        print_json(values)
    else:
        _show(result, events, sent=sent, wanted=not dry_run)
    if problems := result.problems():
        raise WhitepandaError(f"the counts do not add up: {'; '.join(problems)}")
    if result.rejected_batches:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(result.rejected_batches.items()))
        remedy = "traces need the certificate of one of central's importers (central.importers)"
        raise InputError(f"whole batches were refused: {reasons}; {remedy}")


def _trace(files: list[Path], max_cpi: float, priority: float, scheduling_class: float) -> Rows:
    try:
        from collector.traces.google import LatencySensitiveRule, TraceLimits, read_trace  # noqa: PLC0415 - an extra
    except ImportError as error:
        message = f"reading traces needs {error.name}, which is not installed here; {how_to_install('central')}"
        raise UnavailableError(message) from error
    rule = LatencySensitiveRule(priority=priority, scheduling_class=scheduling_class)
    return TraceRows(read_trace(files, rule=rule, limits=TraceLimits(max_cpi=max_cpi)))


def _show_progress(bar: Callable[..., None], result: ReplayResult) -> None:
    """Show acknowledged rows if rows are sent, else rows read."""
    done, what = result.rows_read, "reading"
    if result.rows_acknowledged is not None:
        done, what = result.rows_acknowledged + sum(result.rejected_by_reader.values()), "acknowledged"
    bar(completed=done, description=what)


def _show(result: ReplayResult, events: Sequence[agent_pb2.VmEvent], *, sent: bool, wanted: bool) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")

    def row(label: str, count: int | None) -> None:
        if count is not None:
            table.add_row(label, f"{count:,}")

    row("rows read", result.rows_read)
    for reason, count in sorted(result.rejected_by_reader.items()):
        row(f"  rejected before sending: {reason}", count)
    row("rows sent" if sent else "rows to send", result.rows_sent)
    row("  of them without CPI", result.without_cpi)
    row("rows acknowledged", result.rows_acknowledged)
    row("  accepted", result.rows_accepted)
    for reason, count in sorted(result.rejected_by_central.items()):
        row(f"  rejected by central: {reason}", count)
    if result.rejected_batch_rows:
        reasons = ", ".join(sorted(result.rejected_batches))
        row(f"  in rejected batches: {reasons}", result.rejected_batch_rows)
    if result.rows_already_there:
        row("  there already, not counted again", result.rows_already_there)
    console.print(table)
    console.print(f"{result.seconds:.1f} s, {result.rows_per_s:,.0f} rows/s")
    if not sent:
        console.print("Nothing was sent." if not wanted else "Nothing was sent; --central HOST:PORT sends it.")
    for event in events[:_SHOWN_EVENTS]:
        console.print(Text(event_line(event)), soft_wrap=True)
    if len(events) > _SHOWN_EVENTS:
        console.print(f"and {len(events) - _SHOWN_EVENTS} changes more; --json has them")
