"""`whitepanda vms`: the VMs of this host, what they do, and who suffers."""

import math
from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from agent.api.client import connect, find_socket
from agent.cli._options import ConfigOption, JsonOption, SocketOption
from agent.display import render, words
from agent.display.numbers import NUMBERS, missing, not_shown, sum_of, values_of
from agent.display.render import UNKNOWN, Column, cell
from agent.display.words import (
    BAD,
    DIM,
    INFLICTING,
    VICTIM,
    by_of,
    host_line,
    need_of,
    shown_names,
    slow_down_of,
    word_of,
)
from whitepanda.common.cli import console, print_json
from whitepanda.v1 import host_pb2

_COLUMNS = tuple(NUMBERS[title] for title in ("GUEST%", "GIPS", "CPI", "RUNQ%", "DISK", "NET"))


def vms(socket: SocketOption = None, config: ConfigOption = None, *, json: JsonOption = False) -> None:
    """Show the VMs of this host: rates of the last tick, who suffers, how much, and from whom.

    GUEST% is per vCPU; DISK and NET are bytes per second, both directions. VERDICT: a victim suffers, by the host's own
    analysis or by the fleet's statistics of its job, and its slow-down was known to be real when it became one; it
    stays one while it suffers and the estimate is above `analysis.least_slow_down`, so its interval may include 1. An
    affected VM may suffer, or its job has no alerts. SLOW-DOWN is the 95th percentile of its latency against
    undisturbed, or with "CPI" its CPI against the mean of its job, with the interval. BY is the first suspect, and
    how many more there are. A dash is a value that is not known. Of two VMs of one name NAME has the beginning of
    the UUID too. A narrow terminal goes without the columns that matter least, and says which; no two names are cut
    to the same. In `--json` `verdict` is the decision; `fleet` and `cloud_white` are the evidence of the two
    analyses, the fleet's and the host's own, and may say otherwise.
    """
    with connect(find_socket(socket, config)) as client:
        answer, status = client.vms(), client.status()
    if json:
        print_json(_json(answer))
        return
    running = sorted(answer.vms, key=lambda vm: need_of(word_of(vm), slow_down_of(vm).ratio, vm.name))
    left_out = render.print_table(*_table(running)) if running else []
    for line in [*_footer(answer, status), *render.no_room(left_out)]:
        console.print(line, soft_wrap=True)


#: What a narrow terminal may go without, the most wanted first: how much a VM suffers, and from whom.
_DISPENSABLE = ("SLOW-DOWN", "BY", "GUEST%", "CPI", "JOB", "RUNQ%", "vCPU", "GIPS", "DISK", "NET")


def _column(title: str, *, text: bool = False) -> Column:
    return Column(title, text=text, rank=_DISPENSABLE.index(title) + 1)


def _table(listed: Sequence[host_pb2.VmSummary]) -> tuple[list[Column], list[list[Text]]]:
    absent = missing(_COLUMNS, listed)
    measured = [c for c in _COLUMNS if c not in absent]
    columns = [Column("NAME", text=True), _column("JOB", text=True), _column("vCPU")]
    columns += [_column(c.title) for c in measured]
    columns.append(Column("VERDICT", text=True, whole=True))
    has_slow_down = any(math.isfinite(slow_down_of(vm).ratio) for vm in listed)
    if has_slow_down:
        columns.append(_column("SLOW-DOWN"))
    shown = shown_names(listed)
    has_by = any(by_of(vm, shown) for vm in listed)
    if has_by:
        columns.append(_column("BY", text=True))
    rows = []
    for vm in listed:
        word, found = word_of(vm), values_of(vm)
        style = word.style if word in (VICTIM, INFLICTING) else ""
        row = [cell(shown[vm.uuid], style), cell(vm.job), cell(str(vm.vcpus) if vm.vcpus else UNKNOWN)]
        for column in measured:
            value = sum_of(found, column.metrics)
            row.append(cell(UNKNOWN if value is None else column.show(value)))
        # A terminal of another encoding has no triangles.
        row.append(cell(word.text if console.options.ascii_only else f"{word.symbol} {word.text}", word.style))
        if has_slow_down:
            row.append(cell(render.degradation(slow_down_of(vm)), style))
        if has_by:
            row.append(cell(by_of(vm, shown) or UNKNOWN))
        rows.append(row)
    return columns, rows


def _footer(answer: host_pb2.ListVmsResponse, status: host_pb2.HostStatus) -> list[Text]:
    lines = []
    if not answer.vms:
        bad = [source for source in status.sources if source.state in ("unavailable", "failed", "stuck")]
        reasons = (Text(f"source {source.name} is {source.state}: {source.detail}", style="dim") for source in bad)
        return [Text(f"no VM runs on {answer.host} now"), *reasons]
    if line := host_line(answer):
        lines.append(Text(f"{line}; `whitepanda explain VM` shows the evidence", style=BAD))
    lacking = not_shown(missing(_COLUMNS, answer.vms), answer.vms, status)
    lines += [Text(line, style=DIM) for line in lacking]
    unknown = Counter(vm.decision.reason for vm in answer.vms if word_of(vm) is words.UNKNOWN)
    lines += _most_often("no verdict on", unknown, len(answer.vms))
    victims = [vm for vm in answer.vms if word_of(vm) is VICTIM]
    slow_downs = [slow_down_of(vm) for vm in victims]
    unestimated = Counter(render.cannot_tell(one.cannot_tell) for one in slow_downs if not math.isfinite(one.ratio))
    lines += _most_often("no slow-down of", unestimated, len(victims), "victim")
    return lines


def _most_often(what: str, why: Counter[str], of: int, kind: str = "VM") -> list[Text]:
    """Say for how many VMs something is unknown, and the most frequent reason."""
    if not why:
        return []
    often = "; most often" if len(why) > 1 else ""
    kinds = kind if of == 1 and kind != "VM" else f"{kind}s"
    return [Text(f"{what} {why.total()} of {of} {kinds}{often}: {why.most_common(1)[0][0]}", style="dim")]


def _json(answer: host_pb2.ListVmsResponse) -> dict[str, object]:
    return {
        "host": answer.host,
        "now_unix_ns": answer.now_unix_ns,
        "victims": answer.decision.victims,
        "affected": answer.decision.affected,
        "suspect": render.suspect_json(answer.decision.suspect) if answer.decision.HasField("suspect") else None,
        "vms": [render.summary_json(vm) for vm in answer.vms],
    }
