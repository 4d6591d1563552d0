"""`whitepanda vms`: the VMs of this host, what they do, and who suffers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from rich.text import Text

from agent.cli import _render as render
from agent.cli._numbers import Numbers, missing, not_shown, sum_of, values_of
from agent.cli._options import ConfigOption, JsonOption, SocketOption
from agent.cli._render import UNKNOWN, Column, cell
from agent.cli._words import BAD, DIM, INFLICTING, VICTIM, word_of
from agent.local_client import connect, find_socket
from whitepanda.common.cli import console, print_json
from whitepanda.v1 import agent_pb2, host_pb2

__all__ = ["vms"]

_PER_CENT = 100.0


_COLUMNS = (
    Numbers("GUEST%", ("guest_ratio",), lambda v: render.number(v * _PER_CENT)),
    Numbers("GIPS", ("gips",), render.number),
    Numbers("CPI", ("cpi",), render.number),
    Numbers("RUNQ%", ("run_queue_wait_ratio",), lambda v: render.number(v * _PER_CENT)),
    Numbers("DISK", ("disk_read_bytes_per_s", "disk_write_bytes_per_s"), render.si),
    Numbers("NET", ("network_receive_bytes_per_s", "network_transmit_bytes_per_s"), render.si),
)


def vms(
    socket: SocketOption = None,
    config: ConfigOption = None,
    *,
    json: JsonOption = False,
) -> None:
    """Show the VMs of this host: rates of the last tick, who suffers, how much, and from whom.

    GUEST% is per vCPU; DISK and NET are bytes per second, both directions. BEHAVIOUR is what the host finds by
    itself, SLOW-DOWN how many times longer the VM's latency is, with its interval, and BY who inflicts it; VERDICT
    and SUSPECT are by what central has learnt of the jobs. A dash is a value that is not known.
    """
    with connect(find_socket(socket, config)) as client:
        answer, status = client.vms(), client.status()
    if json:
        print_json(_json(answer))
        return
    running = render.ordered_by_need(answer.vms)
    dropped: list[str] = []
    if running:
        columns, rows = _table(running)
        columns, rows, dropped = _narrowed(columns, rows)
        render.print_table(columns, rows)
    for line in [*_footer(answer, status), *_too_wide(dropped)]:
        console.print(line, soft_wrap=True)


_Shown = tuple[Column, Callable[[host_pb2.VmSummary], str]]


def _table(listed: Sequence[host_pb2.VmSummary]) -> tuple[list[Column], list[list[Text]]]:
    absent = missing(_COLUMNS, listed)
    measured = [c for c in _COLUMNS if c not in absent]
    judged = [*_by_statistics(listed), *_by_the_host(listed)]
    columns = [Column("NAME", text=True), Column("JOB", text=True), Column("vCPU")]
    columns += [Column(c.title) for c in measured]
    columns += [column for column, _ in judged]
    rows = []
    for vm in listed:
        word, found = word_of(vm), values_of(vm)
        style = word.style if word in (VICTIM, INFLICTING) else ""
        row = [cell(vm.name, style), cell(vm.job), cell(str(vm.vcpus) if vm.vcpus else UNKNOWN)]
        for column in measured:
            value = sum_of(found, column.metrics)
            row.append(cell(UNKNOWN if value is None else column.show(value)))
        row += [cell(show(vm), style) for _, show in judged]
        rows.append(row)
    return columns, rows


def _by_statistics(listed: Sequence[host_pb2.VmSummary]) -> list[_Shown]:
    """Columns of the verdict by central's statistics: left out where there are none and the host has its own."""
    has_own = any(vm.HasField("cloud_white") for vm in listed)
    if has_own and all(vm.verdict in ("", "unknown") for vm in listed):
        return []
    shown: list[_Shown] = []
    # Where latency is estimated, the ratio of CPIs says no more than the verdict.
    if not has_own and any(math.isfinite(vm.degradation) for vm in listed):
        shown.append((Column("SLOW"), lambda vm: render.number(vm.degradation, "x")))
    shown.append((Column("VERDICT"), _verdict))
    if any(vm.top_suspect for vm in listed):
        shown.append((Column("SUSPECT", text=True), lambda vm: vm.top_suspect or UNKNOWN))
    return shown


def _by_the_host(listed: Sequence[host_pb2.VmSummary]) -> list[_Shown]:
    """Columns of the host's own analysis, where it is on; what no VM has is left out."""
    if not any(vm.HasField("cloud_white") for vm in listed):
        return []
    shown: list[_Shown] = [(Column("BEHAVIOUR"), _behaviour)]
    if any(math.isfinite(_degradation(vm).ratio) for vm in listed):
        shown.append((Column("SLOW-DOWN", text=False), lambda vm: render.degradation(_degradation(vm))))
    if any(vm.cloud_white.culprits for vm in listed):
        shown.append((Column("BY", text=True), _culprits))
    return shown


def _degradation(vm: host_pb2.VmSummary) -> agent_pb2.Degradation:
    if vm.cloud_white.HasField("degradation"):
        return vm.cloud_white.degradation
    return agent_pb2.Degradation(ratio=math.nan)


def _culprits(vm: host_pb2.VmSummary) -> str:
    names = list(vm.cloud_white.culprits)
    return f"{names[0]} +{len(names) - 1}" if len(names) > 1 else names[0] if names else UNKNOWN


def _behaviour(vm: host_pb2.VmSummary) -> str:
    return vm.state if vm.state and vm.state != "running" else render.behaviour(vm)


#: What a narrow terminal goes without first.
_DISPENSABLE = ("NET", "DISK", "SUSPECT", "GIPS", "RUNQ%", "vCPU")


def _narrowed(
    columns: list[Column], rows: list[list[Text]]
) -> tuple[list[Column], list[list[Text]], list[str]]:
    """Leave out columns until the table fits the terminal; only where the host's own analysis needs the room."""
    dropped: list[str] = []
    if not any(column.title == "BEHAVIOUR" for column in columns):
        return columns, rows, dropped
    for title in _DISPENSABLE:
        widths = render.fit(columns, rows, render.terminal_width())
        if sum(widths) + len(columns) - 1 <= render.terminal_width():
            break
        at = next((i for i, column in enumerate(columns) if column.title == title), None)
        if at is not None:
            columns = columns[:at] + columns[at + 1 :]
            rows = [row[:at] + row[at + 1 :] for row in rows]
            dropped.append(title)
    return columns, rows, dropped


def _too_wide(dropped: Sequence[str]) -> list[Text]:
    return [Text(f"no room for {', '.join(dropped)}: widen the terminal", style="dim")] if dropped else []


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
    victims = [vm for vm in answer.vms if render.behaviour(vm) == "victim"]
    if answer.triggered or victims:
        lines.append(
            Text("contention on this host now; `whitepanda explain VM` shows the evidence", style=BAD)
        )
    lacking = not_shown(missing(_COLUMNS, answer.vms), answer.vms, status)
    lines += [Text(line, style=DIM) for line in lacking]
    if _by_statistics(answer.vms):
        unknown = Counter(vm.verdict_reason for vm in answer.vms if _verdict(vm) == UNKNOWN)
        lines += _most_often("no verdict on", unknown, len(answer.vms))
    if _by_the_host(answer.vms):
        unknown = Counter(vm.cloud_white.reason for vm in answer.vms if _behaviour(vm) == UNKNOWN)
        lines += _most_often("behaviour not known of", unknown, len(answer.vms))
        found = Counter(_degradation(vm).cannot_tell for vm in victims if _degradation(vm).cannot_tell)
        remedies = Counter({render.cannot_tell(text): count for text, count in found.items()})
        lines += _most_often("no slow-down of", remedies, len(victims), "victim")
    return lines


def _most_often(what: str, why: Counter[str], of: int, kind: str = "VM") -> list[Text]:
    """Say of how many VMs something is not known, and the most frequent reason."""
    if not why:
        return []
    often = "; most often" if len(why) > 1 else ""
    kinds = kind if of == 1 and kind != "VM" else f"{kind}s"
    return [Text(f"{what} {why.total()} of {of} {kinds}{often}: {why.most_common(1)[0][0]}", style="dim")]


def _json(answer: host_pb2.ListVmsResponse) -> dict[str, object]:
    return {
        "host": answer.host,
        "now_unix_ns": answer.now_unix_ns,
        "triggered": answer.triggered,
        "vms": [render.summary_json(vm) for vm in answer.vms],
    }
