"""`whitepanda lake`: is it whole, how much is in it, fewer and larger segments."""

import contextlib
import dataclasses
import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import duckdb
import pyarrow as pa
import typer

from central.cli.shared.outputs import JsonOption, check_lake, report, say
from central.lake import duckdb_connection
from central.lake.lease import UNREADABLE, Lease, lease_problem
from central.lake.segments import Lake
from central.roll_ups import compaction, retention
from central.roll_ups.store import SlotStore
from central.verify.checks import DayStats, problems, slot_lengths, state_problems, stats
from whitepanda.common.cli import errors
from whitepanda.common.errors import InputError, UnavailableError

app = typer.Typer(help="Central's lake of samples: check it, count it, compact it.", no_args_is_help=True)

_Lake = Annotated[str, typer.Argument(metavar="LAKE", help="A folder, or s3://bucket/prefix.")]
_SlotS = Annotated[
    float | None,
    typer.Option(help="Slots' length, if the lake has several: build.slot_s.", show_default=False, min=1, max=86_400),
]

_LEASE_S = 120.0  # for how long a compaction may be silent
_COLUMNS = ("day", "segments", "rows", "bytes", "bytes/row", "duplicates", "slots", "slot bytes")


@app.command()
def verify(
    lake: _Lake,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Footers and manifests only, not the rows.")] = False,
    json: JsonOption = False,
) -> None:
    """Read everything, and say one line per problem; exit code 1 if there is any."""
    found = []
    with _opened(lake) as opened, duckdb_connection.connect() as connection:
        segments = len(opened.segments())
        states = () if quick else state_problems(opened)
        for line in itertools.chain(problems(opened, connection, is_quick=quick), states):
            found.append(line)
            if not json:
                say(line)
    none = None if found else f"{segments} segments, no problem{' in footers and manifests' if quick else ''}"
    report({"lake": lake, "problems": found}, [none], json=json)
    if found:
        raise typer.Exit(1)


@app.command("stats")
def show_stats(lake: _Lake, slot_s: _SlotS = None, json: JsonOption = False) -> None:
    """Count days, rows, bytes, duplicates and replicas; name the machines that the newest version leaves out."""
    with _opened(lake) as opened, duckdb_connection.connect() as connection:
        length = _slot_length(opened, slot_s)
        found = stats(opened, connection, length)
    # Not a table of rich, which cuts numbers that do not fit into the terminal, or into the 80 columns of a pipe.
    rows = [_COLUMNS, *(_cells(day) for day in found.days)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join((day.ljust(widths[0]), *map(str.rjust, numbers, widths[1:]))) for day, *numbers in rows]
    lines += [f"replica {replica}: {count:,} rows" for replica, count in sorted(found.replicas.items())]
    lines.append(f"{found.versions} versions, the newest is {found.newest_version}")
    if found.machines_left_out:
        lines.append(f"left out of it, as their rows make a build fail: {', '.join(found.machines_left_out)}")
    facts = dataclasses.asdict(found)
    for day in facts["days"]:
        day["day"] = day["day"].isoformat()
    report({"lake": lake, "slot_s": length, **facts}, lines, json=json)


@app.command()
def compact(
    lake: _Lake,
    slot_s: _SlotS = None,
    raw_days: Annotated[
        int | None,
        typer.Option(help="Also delete samples this many days older than the newest; slots stay.", min=1, max=36_500),
    ] = None,
    min_segments: Annotated[
        int, typer.Option(help="Minimum segments per journal and day.", min=2)
    ] = compaction.MIN_SOURCES,
    grace_s: Annotated[
        float, typer.Option(help="Keep merged segments this long for earlier readers.", min=0)
    ] = compaction.GRACE_S,
    json: JsonOption = False,
) -> None:
    """Merge the small segments of each day; the rows stay the same."""
    with _opened(lake) as opened, _lease(opened) as lease:
        slots = SlotStore(opened, round(_slot_length(opened, slot_s) * 1e9))
        manifests = slots.manifests()
        found = opened.days()
        days = {
            day: compaction.compact_day(
                opened,
                day,
                manifests.get(day),
                unrolled_too=compaction.is_left_to_late_builds(day, found[-1]),
                check=lease.check,
                min_sources=min_segments,
            )
            for day in found
        }
        lease.check()
        removed = compaction.remove_superseded(opened, grace_s=grace_s) + slots.remove_unused(grace_s)
        dropped = retention.drop_samples(opened, manifests, raw_days=raw_days) if raw_days is not None else 0
    changed = {day: done for day, done in days.items() if done.written}
    lines = [f"{day}: {one.sources} segments into {one.written}, {one.rows:,} rows" for day, one in changed.items()]
    lines.append(f"{removed} files that nothing needs any more and {dropped} segments of old days deleted")
    compacted = {day.isoformat(): dataclasses.asdict(done) for day, done in changed.items()}
    report({"lake": lake, "compacted": compacted, "removed": removed, "dropped": dropped}, lines, json=json)


@contextlib.contextmanager
def _opened(lake: str) -> Iterator[Lake]:
    """Open an existing lake; any failure of it or its store meanwhile is one line."""
    check_lake(lake)
    try:
        opened = Lake(lake)
        if not opened.is_there():
            inner = Path(lake, "lake")
            remedy = f"is it {inner}?" if opened.is_folder and inner.is_dir() else (
                "central.lake_dir, or lake in central.state_dir"
            )  # fmt: skip
            raise UnavailableError(
                f"lake {lake}: no lake here, or an empty one: neither segments nor slots nor versions; {remedy}"
            )
        yield opened
    except (OSError, pa.ArrowException, duckdb.Error) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnavailableError(f"lake {lake} cannot be used: {line}") from error


@contextlib.contextmanager
def _lease(lake: Lake) -> Iterator[Lease]:
    """Hold the lake's lease, after waiting for one that a dead central left."""
    lease = Lease(lake.objects, f"cli-{socket.gethostname()}-{os.getpid()}", _LEASE_S)
    watched = list[str]()

    def tell(holder: str, ttl_s: float) -> None:
        watched.append(holder)
        who = f"lake {lake.name}: {holder} is building, or died while it did"
        if holder == UNREADABLE:
            who = lease_problem(lake.objects) or f"lake {lake.name}: it is not known who is building"
        say(f"{who}: waiting for a sign of life, at most {ttl_s:g} s", errors)

    if not lease.outwait(tell):
        raise UnavailableError(f"lake {lake.name}: {lease.holder() or watched[0]} is building; try again later")
    try:
        yield lease
    finally:
        lease.release()


def _slot_length(lake: Lake, slot_s: float | None) -> float:
    """Return the length of the lake's slots, s; with another one none would be found."""
    there = slot_lengths(lake)
    words = " and ".join(f"{each:g}" for each in there)
    if slot_s is not None and there and slot_s not in there:
        raise InputError(f"lake {lake.name}: has slots of {words} s, none of --slot-s {slot_s:g}")
    if slot_s is None and len(there) > 1:
        raise InputError(f"lake {lake.name}: has slots of {words} s; say which, --slot-s: central's build.slot_s")
    return slot_s or (there[0] if there else 300.0)


def _cells(day: DayStats) -> tuple[str, ...]:
    per_row = f"{day.size_bytes / day.rows:.1f}" if day.rows else ""
    before, after = (day.segments, day.rows, day.size_bytes), (day.duplicate_rows, day.slot_rows, day.slot_bytes)
    return (day.day.isoformat(), *map("{:,}".format, before), per_row, *map("{:,}".format, after))
