"""`whitepanda lake`: is it whole, how much is in it, fewer and larger segments."""

from __future__ import annotations

import dataclasses
import os
import socket
from datetime import date
from pathlib import Path
from typing import Annotated

import duckdb
import typer
from rich.table import Table

from central.compaction import GRACE_S, MIN_SOURCES, compact_day, drop_samples, remove_superseded
from central.lake import Lake
from central.lake_checks import problems, stats
from central.lease import Lease
from central.slots import SlotStore
from whitepanda.common.cli import console, print_json
from whitepanda.common.errors import UnavailableError

app = typer.Typer(help="Central's lake of samples: check it, count it, compact it.", no_args_is_help=True)

_Lake = Annotated[str, typer.Argument(metavar="LAKE", help="A folder, or s3://bucket/prefix.")]
_Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
_SlotS = Annotated[float, typer.Option(help="Length of the slots: central's build.slot_s.")]


@app.command()
def verify(
    lake: _Lake,
    quick: Annotated[bool, typer.Option(help="Footers and manifests only, not the rows.")] = False,  # noqa: FBT002
    json: _Json = False,  # noqa: FBT002 - a flag of typer's
) -> None:
    """Read everything, and say one line per problem; exit code 1 if there is any."""
    opened = _open(lake)
    found = []
    with duckdb.connect() as connection:
        for line in problems(opened, connection, is_quick=quick):
            found.append(line)
            if not json:
                console.print(line, soft_wrap=True, markup=False, highlight=False)
    if json:
        print_json({"lake": lake, "problems": found})
    elif not found:
        console.print(f"{len(opened.segments())} segments, no problem")
    if found:
        raise typer.Exit(1)


@app.command("stats")
def show_stats(lake: _Lake, slot_s: _SlotS = 300.0, json: _Json = False) -> None:  # noqa: FBT002
    """Count days, rows, bytes, duplicates and replicas."""
    opened = _open(lake)
    with duckdb.connect() as connection:
        found = stats(opened, connection, slot_s)
    if json:
        print_json({"lake": lake, **dataclasses.asdict(found), "days": [_json(day) for day in found.days]})
        return
    table = Table()
    for column in ("day", "segments", "rows", "bytes", "bytes/row", "duplicates", "slots", "slot bytes"):
        table.add_column(column, justify="left" if column == "day" else "right")
    for day in found.days:
        per_row = f"{day.size_bytes / day.rows:.1f}" if day.rows else ""
        numbers = (
            day.segments,
            day.rows,
            day.size_bytes,
            per_row,
            day.duplicate_rows,
            day.slot_rows,
            day.slot_bytes,
        )
        table.add_row(str(day.day), *(each if isinstance(each, str) else f"{each:,}" for each in numbers))
    console.print(table)
    for replica, rows in sorted(found.replicas.items()):
        console.print(f"replica {replica}: {rows:,} rows", highlight=False)
    console.print(f"{found.versions} versions, the newest is {found.newest_version}", highlight=False)


@app.command()
def compact(
    lake: _Lake,
    slot_s: _SlotS = 300.0,
    raw_days: Annotated[
        int | None,
        typer.Option(help="Also delete samples of days so much older than the newest; slots stay.", min=1),
    ] = None,
    min_segments: Annotated[
        int, typer.Option(help="Leave fewer segments of one journal and day alone.", min=2)
    ] = MIN_SOURCES,
    grace_s: Annotated[
        float, typer.Option(help="Keep merged segments so long, for readers that listed them before.", min=0)
    ] = GRACE_S,
    json: _Json = False,  # noqa: FBT002 - a flag of typer's
) -> None:
    """Merge the small segments of each day that are rolled up to slots; the rows stay the same."""
    opened = _open(lake)
    lease = Lease(opened.objects, f"cli-{socket.gethostname()}-{os.getpid()}", ttl_s=120.0)
    if not lease.acquire():
        raise UnavailableError(f"lake {lake}: {lease.holder()} is building; try again when it is done")
    try:
        slots = SlotStore(opened, round(slot_s * 1e9))
        manifests = slots.manifests()
        days = {day: compact_day(opened, day, manifests.get(day), check=lease.check, min_sources=min_segments)
                for day in opened.days()}  # fmt: skip
        lease.check()
        removed = remove_superseded(opened, grace_s=grace_s) + slots.remove_unused(grace_s)
        dropped = drop_samples(opened, manifests, raw_days=raw_days) if raw_days is not None else 0
    finally:
        lease.release()
    changed = {day: done for day, done in days.items() if done.written}
    if json:
        told = {day.isoformat(): dataclasses.asdict(done) for day, done in changed.items()}
        print_json({"lake": lake, "compacted": told, "removed": removed, "dropped": dropped})
        return
    for day, done in changed.items():
        line = f"{day}: {done.sources} segments into {done.written}, {done.rows:,} rows"
        console.print(line, highlight=False)
    console.print(f"{removed} files that nothing needs any more and {dropped} segments of old days deleted")


def _open(lake: str) -> Lake:
    if "://" not in lake and not Path(lake).is_dir():
        raise UnavailableError(f"lake {lake}: no such folder; central.lake_dir, or lake in central.state_dir")
    return Lake(lake)


def _json(day: object) -> dict[str, object]:
    facts = dataclasses.asdict(day)  # type: ignore[call-overload]
    return {key: value.isoformat() if isinstance(value, date) else value for key, value in facts.items()}
