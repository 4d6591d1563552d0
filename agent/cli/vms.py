"""`whitepanda vms`: the VMs of this host, what they do, and who suffers."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.text import Text

from agent.api.client import connect, find_socket
from agent.cli._moments import AtOption, moment_at, moment_json, print_moment
from agent.cli._options import ConfigOption, JsonOption, SocketOption
from agent.display import render, words
from agent.display.numbers import NUMBERS, missing, not_shown, sum_of, values_of
from agent.display.render import UNKNOWN, Column, cell
from agent.display.words import VICTIM, by_of, host_line, need_of, shown_names, slow_down_of, word_of
from whitepanda.common.cli import console, print_json
from whitepanda.v1 import host_pb2

_MEASURED = ("GUEST%", "GIPS", "CPI", "RUNQ%", "DISK", "NET")
_COLUMNS = tuple(NUMBERS[title] for title in _MEASURED)
_TITLES = ("NAME", "JOB", "vCPU", *_MEASURED, "VERDICT", "SLOW-DOWN", "BY")
_TEXT = ("NAME", "JOB", "VERDICT", "BY")
_VANISHING = (*_MEASURED, "SLOW-DOWN", "BY")
#: What a narrow terminal may go without, the most wanted first: how much a VM suffers, and from whom.
_DISPENSABLE = ("SLOW-DOWN", "BY", "GUEST%", "CPI", "JOB", "RUNQ%", "vCPU", "GIPS", "DISK", "NET")
_RANKS = {title: rank for rank, title in enumerate(_DISPENSABLE, 1)}


def vms(
    socket: SocketOption = None, config: ConfigOption = None, at: AtOption = None, *, json: JsonOption = False
) -> None:
    """Show the VMs of this host: rates of the last tick, who suffers, how much, and from whom.

    GUEST% is per vCPU; DISK and NET are bytes per second, both directions. VERDICT: a victim suffers, by the host's own
    analysis or by the fleet's statistics of its job, and its slow-down was known to be real when it became one; it
    stays one while it suffers and the estimate is above `analysis.least_slow_down`, so its interval may include 1. An
    affected VM may suffer, or its job has no alerts. SLOW-DOWN is the 95th percentile of its latency against
    undisturbed, or with "CPI" its CPI against the mean of its job, with the interval. BY is the first suspect, and
    how many more there are. A dash is a value that is not known. Of two VMs of one name NAME has the beginning of
    the UUID too. A narrow terminal goes without the columns that matter least, and says which; no two names are cut
    to the same. In `--json` `verdict` is the decision; `fleet` and `cloud_white` are the evidence of the two
    analyses, the fleet's and the host's own, and may say otherwise. With `--at` they are the VMs of then, by the
    host's own history: tick by tick for 15 minutes, before that by windows, which lack some values.
    """
    moment = None if at is None else moment_at(at, socket, config)
    if moment is not None:
        answer, status = moment.vms, moment.status
    else:
        with connect(find_socket(socket, config)) as client:
            answer, status = client.vms(), client.status()
    if json:
        decision = answer.decision
        suspect = render.suspect_json(decision.suspect) if decision.HasField("suspect") else None
        host = {**render.fields_of(answer, "host", "now_unix_ns"), **render.fields_of(decision, "victims", "affected")}
        print_json(
            {**moment_json(moment), **host, "suspect": suspect, "vms": [render.summary_json(vm) for vm in answer.vms]}
        )
        return
    if moment is not None:
        print_moment(moment)
    running = sorted(answer.vms, key=lambda vm: need_of(word_of(vm), slow_down_of(vm).ratio, vm.name))
    left_out = render.print_table(*_table(running)) if running else []
    for line in [*_footer(answer, status, "then" if moment else "now"), *render.no_room(left_out)]:
        console.print(line, soft_wrap=True)


def _table(listed: Sequence[host_pb2.VmSummary]) -> tuple[list[Column], list[list[Text]]]:
    """Return the columns and their cells; a column that may vanish does if no VM has a value in it."""
    shown = shown_names(listed)
    rows = [_cells(vm, shown) for vm in listed]
    columns = [
        Column(title, text=title in _TEXT, whole=title == "VERDICT", rank=_RANKS.get(title, 0))
        for title in _TITLES
        if title not in _VANISHING or any(row[title].plain != UNKNOWN for row in rows)
    ]
    return columns, [[row[column.title] for column in columns] for row in rows]


def _cells(vm: host_pb2.VmSummary, shown: Mapping[str, str]) -> dict[str, Text]:
    """Return a VM's cells by title; `shown` is of `shown_names`."""
    word, found = word_of(vm), values_of(vm)
    style = word.style if word in (VICTIM, words.INFLICTING) else ""
    cells = {
        "NAME": cell(shown[vm.uuid], style),
        "JOB": cell(vm.job),
        "vCPU": cell(str(vm.vcpus) if vm.vcpus else UNKNOWN),
        # A terminal of another encoding has no triangles.
        "VERDICT": cell(word.text if console.options.ascii_only else f"{word.symbol} {word.text}", word.style),
        "SLOW-DOWN": cell(render.degradation(slow_down_of(vm)), style),
        "BY": cell(by_of(vm, shown) or UNKNOWN),
    }
    for column in _COLUMNS:
        value = sum_of(found, column.metrics)
        cells[column.title] = cell(UNKNOWN if value is None else column.show(value))
    return cells


def _footer(answer: host_pb2.ListVmsResponse, status: host_pb2.HostStatus, when: str) -> list[Text]:
    lines = []
    if not answer.vms:
        reasons = (Text(line, style=words.DIM) for line in render.broken(status.sources))
        return [Text(f"no VM {'runs' if when == 'now' else 'ran'} on {answer.host} {when}"), *reasons]
    command = "explain VM" if when == "now" else "explain VM --at TIME"
    if line := host_line(answer, when):
        lines.append(Text(f"{line}; `whitepanda {command}` shows the evidence", style=words.BAD))
    lacking = not_shown(missing(_COLUMNS, answer.vms), answer.vms, status)
    lines += [Text(line, style=words.DIM) for line in lacking]
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
