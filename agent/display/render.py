"""How values look to people: no wider than needed, a dash for what is not known, a reason for every dash."""

import math
import shutil
from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, cast

from rich.table import Table
from rich.text import Text

from collector.base import Reason
from whitepanda.common.cli import console
from whitepanda.v1 import agent_pb2, host_pb2

#: What stands for a value that is not known.
UNKNOWN = "-"
#: States of a source that does not work.
BROKEN = frozenset({"unavailable", "failed", "stuck"})
_NO_LIMIT = 1000  # columns of a pipe: nothing is cut for a program such as grep
_MIN_TEXT = 8
_READABLE = 20  # of a text: most names of VMs whole
_MOST_WANTED = 3  # columns up to this rank are there before texts are whole
_SECOND_NS = 10**9

_REMEDIES = {
    Reason.NO_PMU: "this kernel sees no CPU counters; if the host is a VM, give it a PMU (-cpu host,pmu=on)",
    Reason.PARANOID: "kernel.perf_event_paranoid forbids it; run the agent by its unit (CAP_PERFMON)",
    Reason.VPMU_CONFLICT: "KVM has a mediated vPMU, and counting guests could break theirs; none wanted",
    Reason.MULTIPLEXED: "the counters ran for too small a part of the time; fewer users of perf help",
    Reason.NOT_SCHEDULED: "the counters did not run at all; fewer users of perf help",
    Reason.STALE: "the last value is too old; see `whitepanda doctor`",
    Reason.VM_STARTING: "just started; wait for the next tick",
    Reason.NO_PERMISSION: "the agent may not read it; `whitepanda doctor` says what it lacks",
    Reason.SOURCE_OFF: "its source is off or cannot work here; see `whitepanda doctor`",
    Reason.SOURCE_FAILED: "its source failed; see the agent's log",
    Reason.STUCK: "its source does not answer; see the agent's log",
    Reason.IDLE: "too little CPU used for a ratio of counters",
    Reason.COUNTER_RESET: "a counter was reset in between; wait for the next tick",
    Reason.NOT_PRESENT: "there is no such device or value",
    Reason.FD_LIMIT: "no file descriptors left; raise LimitNOFILE of the unit",
    Reason.NO_COEFFICIENTS: "central has not sent statistics or coefficients for the job; is it reachable?",
    Reason.INVALID_VALUE: "the source gave an impossible value; see the agent's log",
    Reason.NOT_IN_TRACE: "the recording has no such value",
    Reason.NOT_VISIBLE: (
        "the host does not see it (vhost-user, VFIO, librbd, user networking), "
        "or QEMU without libvirt does not say (no QMP socket, unnamed vCPU threads)"
    ),
    Reason.TIME_SLICED: "counted in turns, and its turn has not come; wait a tick",
    Reason.NO_EVENT: "this CPU has no such event",
    Reason.NO_COUNTER: "no hardware counter is left beside the guests'; see sources.perf.reserve_counters",
    Reason.RDT_UNASSIGNED: "AMD: the kernel has no bandwidth counter for the group now",
    Reason.SHARED: "counted together with others, so not this VM's alone",
    Reason.NO_RDT: "this CPU or kernel has no RDT (resctrl); see `whitepanda doctor`",
    Reason.RDT_UNAVAILABLE: "resctrl had no value at that moment; wait for the next tick",
    Reason.NO_RMID: "more VMs than monitoring ids: measured in turns; see sources.resctrl",
}


_CANNOT_TELL = {
    "no_model": "no model of degradation; make one with `whitepanda degradation fit`, name it in cloud_white.models",
    "no_baseline": "nothing is known of it without interference yet",
    "baseline_young": "its baseline was learnt from too few ticks; wait for quiet times",
    "missing": "a signal that the model needs is not known here; `whitepanda explain VM` has the reason",
    "out_of_range": "a signal is beyond what the model was trained with",
    "unlike_training": "nothing like it was in the model's training",
    "failed": "the model failed; see the agent's log",
}


class Column(NamedTuple):
    """A column of a table. Text is set from the left and cut to fit the terminal, numbers and `whole` text never.

    `rank`: the higher, the sooner a narrow terminal goes without it; 0 stays.
    """

    title: str
    text: bool = False
    whole: bool = False
    rank: int = 0


def columns(ranks: Mapping[str, int], text: Container[str]) -> list[Column]:
    """Make columns of their titles and ranks; `text` has the titles of those of text."""
    return [Column(title, text=title in text, rank=rank) for title, rank in ranks.items()]


def broken(sources: Iterable[host_pb2.SourceStatus]) -> list[str]:
    """Say which sources do not work, and why: one line each."""
    return [f"source {one.name} is {one.state}: {one.detail}" for one in sources if one.state in BROKEN]


def remedy(reason: Reason) -> str:
    """Return a reason code with its meaning and the remedy."""
    text = _REMEDIES.get(reason, "")
    return f"{reason.code}: {text}" if text else reason.code


def reason_of(number_on_the_wire: int) -> Reason:
    """Return the Reason of a protobuf one; one that only a newer agent knows is UNSPECIFIED."""
    try:
        return Reason(number_on_the_wire)
    except ValueError:
        return Reason.UNSPECIFIED


def number(value: float | None, unit: str = "") -> str:
    """Three digits, at most 4 characters below 10,000; a dash if it is not known (None or NaN)."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    magnitude = abs(value)
    # What rounds up to one digit more before the point loses one behind it.
    digits = 0 if value == 0 or magnitude >= 99.95 else 1 if magnitude >= 9.995 else 2  # noqa: PLR2004 - where rounding gains a digit
    return f"{value:.{digits}f}{unit}"


def percent(ratio: float) -> str:
    """A ratio as `number` in percent, without the sign."""
    return number(100 * ratio)


def si(value: float | None) -> str:
    """Bytes per second with a decimal prefix, at most 4 characters: 950, 1.2K, 34M; a dash if not known."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for prefix in ("", "K", "M", "G", "T"):
        if abs(value) < 999.5 or prefix == "T":  # noqa: PLR2004 - 999.5 rounds to four digits
            digits = 1 if prefix and abs(value) < 9.95 else 0  # noqa: PLR2004 - where rounding gains a digit
            return f"{value:.{digits}f}{prefix}"
        value /= 1000
    raise AssertionError


def behaviour_word(number_on_the_wire: int) -> str:
    """Return a protobuf Behaviour as a word; one that only a newer agent knows is unknown."""
    try:
        name: str = agent_pb2.Behaviour.Name(cast("agent_pb2.Behaviour", number_on_the_wire))
    except ValueError:
        return "unknown"
    return name.removeprefix("BEHAVIOUR_").lower().replace("unspecified", "unknown")


def degradation(found: agent_pb2.Degradation) -> str:
    """Return an estimate with its interval: 1.42x [1.30, 1.58], of CPI 1.42x CPI [1.30, 1.58]; a dash: not known."""
    if not math.isfinite(found.ratio):
        return UNKNOWN
    low, high = number(found.low), number(found.high)
    of = "x CPI" if found.model == "cpi" else "x"
    return number(found.ratio, of) + (f" [{low}, {high}]" if UNKNOWN not in (low, high) else "")


def cannot_tell(reason: str) -> str:
    """Return why there is no estimate, with its meaning and the remedy."""
    text = _CANNOT_TELL.get(reason.partition(":")[0], "")
    return f"{reason}: {text}" if text else reason


def age(nanoseconds: int) -> str:
    """Return a time span for people: 350 ms, 12 s, 3 min, 5 h, 2 d."""
    seconds = nanoseconds / 1e9
    for limit, divisor, unit in ((1, 1e-3, "ms"), (120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def old(nanoseconds: int) -> str:
    """Return an age for people: less than 1 s old, 12 s old."""
    return f"{age(nanoseconds) if nanoseconds >= _SECOND_NS else 'less than 1 s'} old"


def cell(text: str, style: str = "") -> Text:
    """Return text that is never read as markup; a dash is dim."""
    return Text(text, style="dim" if text == UNKNOWN else style)


def fit(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int) -> list[int]:
    """Give every column its width: numbers as they are, of the text columns the widest is cut first.

    As long as that is enough, no column is cut so much that two of its texts look alike.
    """
    result = _natural_widths(columns, rows)
    text = [i for i, c in enumerate(columns) if c.text and not c.whole]
    for least in (least_widths(columns, rows), [_MIN_TEXT] * len(columns)):
        while sum(result) + len(columns) - 1 > width:
            widest = max((i for i in text if result[i] > least[i]), key=result.__getitem__, default=None)
            if widest is None:
                break
            result[widest] -= 1
    return result


def least_widths(columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> list[int]:
    """Return how wide each column must be: numbers whole, texts so that those that differ do not look alike."""
    return [
        min(natural, _tell_apart({row[i].plain for row in rows})) if column.text and not column.whole else natural
        for i, (column, natural) in enumerate(zip(columns, _natural_widths(columns, rows), strict=True))
    ]


def _natural_widths(columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> list[int]:
    return [max([len(c.title), *(len(row[i]) for row in rows)]) for i, c in enumerate(columns)]


def _tell_apart(texts: set[str]) -> int:
    """Return the least width to which these texts can be cut and still all differ."""
    # The wider, the more of both ends is left: what differs at a width differs at each larger one.
    widths = range(_MIN_TEXT, max(map(len, texts), default=_MIN_TEXT))
    found = bisect_left(widths, True, key=lambda width: len({cut(one, width) for one in texts}) == len(texts))
    return _MIN_TEXT + found


def terminal_width() -> int:
    """Columns of the terminal ($COLUMNS, else the terminal's own); without one nothing is cut."""
    return shutil.get_terminal_size((_NO_LIMIT, 24)).columns


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> list[str]:
    """Print a table that fits the terminal; return the titles of the columns that it has no room for."""
    width = terminal_width()
    table, needed, left_out = table_of(columns, rows, width)
    console.width = max(width, needed)
    console.print(table, soft_wrap=False)
    return left_out


def no_room(titles: Sequence[str]) -> list[Text]:
    """Say which columns were left out; nothing if none was."""
    return [Text(f"no room for {', '.join(titles)}: widen the terminal", style="dim")] if titles else []


def table_of(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int) -> tuple[Table, int, list[str]]:
    """Return a table for a terminal `width` wide, the width it takes, and the titles that it has no room for.

    If cut texts would look alike they are folded: they take several lines, whole.
    """
    columns, rows, left_out = narrowed(columns, rows, width)
    widths = fit(columns, rows, width)
    is_folded = [wide < least for wide, least in zip(widths, least_widths(columns, rows), strict=True)]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for column, wide, folded in zip(columns, widths, is_folded, strict=True):
        table.add_column(
            column.title,
            justify="left" if column.text else "right",
            no_wrap=not folded,
            overflow="fold" if folded else "ellipsis",
            width=wide,
        )
    for row in rows:
        cells = zip(row, widths, is_folded, strict=True)
        table.add_row(*(item if folded else Text(cut(item.plain, wide), item.style) for item, wide, folded in cells))
    return table, sum(widths) + len(widths), left_out


def narrowed(
    columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int
) -> tuple[list[Column], list[list[Text]], list[str]]:
    """Leave out columns that have no room next to those of lower ranks; return their titles too, the last rank first.

    Texts that can be read (and copied) go before further columns, but not before the most wanted ones.
    """
    least = least_widths(columns, rows)
    natural = _natural_widths(columns, rows)
    readable = [max(low, min(whole, _READABLE)) for low, whole in zip(least, natural, strict=True)]
    ranks = [column.rank for column in columns]
    shown = kept(ranks, least, width)
    readably = kept(ranks, readable, width)
    if all(at in readably for at in shown if ranks[at] <= _MOST_WANTED):
        shown = readably
    by_rank = sorted(range(len(columns)), key=lambda at: -ranks[at])
    left_out = [columns[at].title for at in by_rank if at not in shown]
    return [columns[at] for at in shown], [[row[at] for at in shown] for row in rows], left_out


def kept(ranks: Sequence[int], widths: Sequence[int], width: int) -> list[int]:
    """Return the indices of the columns that have room, in their order; those of rank 0 always."""
    room = width + 1  # nothing stands behind the last one
    found = []
    for at in sorted(range(len(ranks)), key=ranks.__getitem__):
        if ranks[at] and widths[at] + 1 > room:
            continue  # a narrower one may still fit
        found.append(at)
        room -= widths[at] + 1
    return sorted(found)


def cut(text: str, width: int) -> str:
    """Cut in the middle what is longer: the names of VMs often differ only in their end."""
    if len(text) <= width:
        return text
    head = width // 2
    tail = width - 1 - head
    return f"{text[:head]}…{text[len(text) - tail :]}"


def metrics_json(metrics: Sequence[host_pb2.Metric]) -> dict[str, dict[str, object]]:
    """Return metrics by name for programs: value (null: not known), reason, source, age."""
    return {
        m.name: {
            "value": m.value,
            "reason": reason_of(m.reason).code if m.reason else None,
            "source": m.source,
            "age_s": m.age_ns / 1e9,
        }
        for m in metrics
    }


def summary_json(vm: host_pb2.VmSummary) -> dict[str, object]:
    """Return one VM for programs; null is not known."""
    white = vm.cloud_white
    found = {
        "behaviour": behaviour_word(white.behaviour),
        "reason": white.reason,
        "since_s": white.since_ns / 1e9,
        "degradation": degradation_json(white.degradation) if white.HasField("degradation") else None,
        "culprits": list(white.culprits),
        **fields_of(white, "baseline_ticks", "baseline_ready"),
    }
    return {
        **fields_of(vm, "uuid", "name", "job", "latency_sensitive"),
        "owner": vm.owner or None,
        **fields_of(vm, "epoch", "state", "vcpus", "quota_cores"),
        "verdict": behaviour_word(vm.decision.verdict),
        "verdict_reason": vm.decision.reason,
        "since_s": vm.decision.since_ns / 1e9 or None,
        "slow_down": degradation_json(vm.decision.slow_down) if vm.decision.HasField("slow_down") else None,
        "found_by": analyses(vm.decision.found_by),
        "suspects": [suspect_json(one) for one in vm.decision.suspects],
        "fleet": {
            "verdict": vm.verdict,
            "reason": vm.verdict_reason,
            "degradation": vm.degradation,
            "job_mean_cpi": vm.job_mean_cpi or None,
        },
        "cloud_white": found if vm.HasField("cloud_white") else None,
        "metrics": metrics_json(vm.metrics),
    }


def fields_of(message: object, *names: str) -> dict[str, object]:
    """Return fields of a message, or attributes of an object, that have the same names in JSON."""
    return {name: getattr(message, name) for name in names}


def analyses(found_by: Iterable[int]) -> list[str]:
    """Return the words for analyses: host, fleet."""
    names = (agent_pb2.Analysis.Name(cast("agent_pb2.Analysis", one)) for one in found_by if one in _ANALYSES)
    return [name.removeprefix("ANALYSIS_").lower() for name in names]


_ANALYSES = frozenset(agent_pb2.Analysis.values())


def suspect_json(one: host_pb2.Suspect) -> dict[str, object]:
    """Return a suspect for programs."""
    return {
        **fields_of(one, "uuid", "name", "job", "coefficient", "cpu_usage_cores", "score"),
        "reason": reason_of(one.reason).code if one.reason else None,
        "inflicts": one.inflicts,
    }


def event_line(event: agent_pb2.VmEvent) -> str:
    """Return a change of a VM's behaviour in one line, in this host's time."""
    before, now = behaviour_word(event.before), behaviour_word(event.behaviour)
    when = datetime.fromtimestamp(event.unix_ns / 1e9, tz=UTC).astimezone()
    estimate = degradation(event.degradation) if event.HasField("degradation") else UNKNOWN
    ratio = f", {estimate}" if now in ("victim", "affected") else f"; {estimate} at worst while it suffered"
    worst = "" if estimate == UNKNOWN else ratio
    lasted = f" after {age(event.lasted_ns)}" if event.lasted_ns else ""
    return f"{when:%Y-%m-%d %H:%M:%S}  {event.name}: {before} -> {now}{lasted}{worst}"


def event_json(event: agent_pb2.VmEvent) -> dict[str, object]:
    """Return a change of a VM's behaviour for programs."""
    return {
        **fields_of(event, "vm", "name", "unix_ns"),
        "behaviour": behaviour_word(event.behaviour),
        "before": behaviour_word(event.before),
        "lasted_s": event.lasted_ns / 1e9,
        "reason": event.reason,
        "degradation": degradation_json(event.degradation) if event.HasField("degradation") else None,
        "culprits": list(event.culprits),
    }


def degradation_json(found: agent_pb2.Degradation) -> dict[str, object]:
    """Return an estimate for programs; null is not known."""
    return {
        **fields_of(found, "ratio", "low", "high"),
        "cannot_tell": found.cannot_tell or None,
        "model": found.model or None,
    }
