"""`whitepanda vms`: the VMs of this host, what they do, and who suffers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from agent.cli import _render as render
from agent.cli._render import UNKNOWN, Column, cell
from agent.local_client import connect, find_socket
from collector.base import Reason
from whitepanda.common.cli import console, print_json
from whitepanda.v1 import host_pb2

__all__ = ["vms"]

_PER_CENT = 100.0


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A column of measured numbers. `metrics` are summed; it vanishes where no VM has them."""

    title: str
    metrics: tuple[str, ...]
    show: Callable[[float], str]


_COLUMNS = (
    _Numbers("GUEST%", ("guest_ratio",), lambda v: render.number(v * _PER_CENT)),
    _Numbers("GIPS", ("gips",), render.number),
    _Numbers("CPI", ("cpi",), render.number),
    _Numbers("RUNQ%", ("run_queue_wait_ratio",), lambda v: render.number(v * _PER_CENT)),
    _Numbers("DISK", ("disk_read_bytes_per_s", "disk_write_bytes_per_s"), render.si),
    _Numbers("NET", ("network_receive_bytes_per_s", "network_transmit_bytes_per_s"), render.si),
)


def vms(
    socket: Annotated[Path | None, typer.Option(help="Where the agent answers.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="The agent's configuration, which names the socket.")
    ] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="One JSON object for programs.")] = False,
) -> None:
    """Show the VMs of this host: rates of the last tick, verdict, slow-down and first suspect.

    GUEST% is per vCPU; DISK and NET are bytes per second, both directions. A dash is a value that is not
    known.
    """
    with connect(find_socket(socket, config)) as client:
        answer, status = client.vms(), client.status()
    if json:
        print_json(_json(answer))
        return
    running = sorted(answer.vms, key=lambda vm: (vm.verdict != "victim", vm.name))
    if running:
        columns, rows = _table(running)
        render.print_table(columns, rows)
    for line in _footer(answer, status):
        console.print(line, soft_wrap=True)


def _value(vm: host_pb2.VmSummary, names: Sequence[str]) -> float | None:
    """Sum of metrics; None where one of them is not known."""
    found = {m.name: m.value for m in vm.metrics}
    values = [found.get(name, math.nan) for name in names]
    return sum(values) if all(math.isfinite(v) for v in values) else None


def _table(listed: Sequence[host_pb2.VmSummary]) -> tuple[list[Column], list[list[Text]]]:
    measured = [c for c in _COLUMNS if any(_value(vm, c.metrics) is not None for vm in listed)]
    slow_down = any(math.isfinite(vm.degradation) for vm in listed)
    suspect = any(vm.top_suspect for vm in listed)
    columns = [Column("NAME", text=True), Column("JOB", text=True), Column("vCPU")]
    columns += [Column(c.title) for c in measured]
    columns += [Column("SLOW")] if slow_down else []
    columns += [Column("VERDICT")]
    columns += [Column("SUSPECT", text=True)] if suspect else []
    rows = []
    for vm in listed:
        style = "bold red" if vm.verdict == "victim" else ""
        row = [cell(vm.name, style), cell(vm.job), cell(str(vm.vcpus) if vm.vcpus else UNKNOWN)]
        for column in measured:
            value = _value(vm, column.metrics)
            row.append(cell(UNKNOWN if value is None else column.show(value)))
        row += [cell(render.number(vm.degradation, "x"), style)] if slow_down else []
        row.append(cell(_verdict(vm), style))
        row += [cell(vm.top_suspect or UNKNOWN, style)] if suspect else []
        rows.append(row)
    return columns, rows


def _verdict(vm: host_pb2.VmSummary) -> str:
    """Return the verdict; of a VM that does not run its state instead."""
    if vm.state and vm.state != "running":
        return vm.state
    return UNKNOWN if vm.verdict in ("", "unknown") else vm.verdict


def _footer(answer: host_pb2.ListVmsResponse, status: host_pb2.HostStatus) -> list[Text]:
    lines = []
    if not answer.vms:
        lines.append(Text(f"no VM runs on {answer.host} now"))
        lines += [
            Text(f"source {s.name} is {s.state}: {s.detail}", style="dim")
            for s in status.sources
            if s.state in ("unavailable", "failed", "stuck")
        ]
        return lines
    if answer.triggered:
        lines.append(
            Text("contention on this host now; `whitepanda explain VM` shows the evidence", style="bold red")
        )
    for why, columns in _missing(answer.vms).items():
        titles = ", ".join(column.title for column in columns)
        names = {name for column in columns for name in column.metrics}
        lines.append(Text(f"not shown: {titles}: {_why(why, names, answer.vms, status)}", style="dim"))
    unknown = Counter(vm.verdict_reason for vm in answer.vms if _verdict(vm) == UNKNOWN)
    if unknown:
        often = "; most often" if len(unknown) > 1 else ""
        text = (
            f"no verdict on {unknown.total()} of {len(answer.vms)} VMs{often}: {unknown.most_common(1)[0][0]}"
        )
        lines.append(Text(text, style="dim"))
    return lines


def _missing(listed: Sequence[host_pb2.VmSummary]) -> dict[Reason, list[_Numbers]]:
    """Return the columns that no VM has, by their most frequent reason."""
    found: dict[Reason, list[_Numbers]] = {}
    for column in _COLUMNS:
        if any(_value(vm, column.metrics) is not None for vm in listed):
            continue
        found.setdefault(_reason(listed, column.metrics), []).append(column)
    return found


def _reason(listed: Sequence[host_pb2.VmSummary], names: Sequence[str]) -> Reason:
    reasons = Counter(m.reason for vm in listed for m in vm.metrics if m.name in names and m.reason)
    return render.reason_of(reasons.most_common(1)[0][0]) if reasons else Reason.SOURCE_OFF


def _why(
    reason: Reason, names: Collection[str], listed: Sequence[host_pb2.VmSummary], status: host_pb2.HostStatus
) -> str:
    """Say the reason and the remedy: the source's own words where its state is the cause, they know this host.

    The agent names that source with the metric; one that works has said the reason of the VM.
    """
    sources = {
        m.source
        for vm in listed
        for m in vm.metrics
        if m.name in names and int(m.reason) == reason and m.source
    }
    for source in status.sources:
        if source.name in sources and source.state in ("unavailable", "failed", "stuck") and source.detail:
            return f"{reason.code}: {source.detail}"
    return render.remedy(reason)


def _json(answer: host_pb2.ListVmsResponse) -> dict[str, object]:
    return {
        "host": answer.host,
        "now_unix_ns": answer.now_unix_ns,
        "triggered": answer.triggered,
        "vms": [render.summary_json(vm) for vm in answer.vms],
    }
