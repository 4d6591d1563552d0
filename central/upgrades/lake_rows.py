"""Sides of a comparison from central's lake: by hosts, by CPU platform, by time.

The lake has no labels of hosts, so a side names them by a file (as `fleet draw` writes it), or by what the lake knows:

    hosts=FILE   platform=NAME   from=TIME   until=TIME   rest      (with commas between; `rest`: hosts of no file)

One row per task (a VM of a job on a machine) and side: `ipc` = instructions / cycles and `mips` = instructions / us,
over all of its windows; any other column of the samples is its mean, weighted by time. A job weighs its VMs' CPU quota,
as in the paper, by what facts of VMs said last in the side's time; or, where asked, the CPU that they used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from central.lake.duckdb_connection import reading
from central.lake.schema import SAMPLES
from central.lake.segments import Lake, day_of
from central.models.groups import Column, Floats, group, sums
from central.models.wsmeter import Observed, Shares
from central.upgrades.tables import Rows, read_machines
from whitepanda.common.errors import InputError

if TYPE_CHECKING:
    import ibis.expr.types as ir


SIDE_KEYS = ("hosts", "platform", "from", "until")
#: What a job can weigh: its VMs' CPU quota, or the cores that they use.
WEIGHTS = ("quota", "use")
#: CPU quotas of VMs at a time in ns since 1970, in cores.
Quotas = Callable[[int], Mapping[str, float]]
#: At so many moments of a side quotas are asked for, the last first, until those of all its VMs are known.
_MOMENTS = 8
_KEY = re.compile(rf"(?:^|,)\s*(rest|{'|'.join(SIDE_KEYS)})\s*(?:=|(?=,|$))")
_COUNTED = ("ipc", "mips")


class NoTaskError(InputError):
    """A side has no sample with the metric."""


@dataclass(frozen=True, slots=True)
class Side:
    """The samples of the lake that a side consists of."""

    text: str  # as it was given
    hosts: tuple[str, ...] | None = None  # only these, if any are named
    not_hosts: tuple[str, ...] = ()  # none of these
    platform: str | None = None  # only machines of this one
    from_ns: int | None = None  # windows that start at or after it, in ns since 1970
    until_ns: int | None = None  # windows that start before it


def metrics() -> tuple[str, ...]:
    """Return the names of the metrics that the lake has."""
    numbers = (field.name for field in SAMPLES if pa.types.is_floating(field.type))
    return (*_COUNTED, *numbers)


def parse_side(text: str) -> Side:
    """Parse a side that stands alone; "" is all samples.

    Raises InputError if the text is not a side, or a file of hosts cannot be read.
    """
    return _side(text, _parsed(text), None) if text else Side(text)


def parse_sides(current: str, new: str) -> tuple[Side, Side]:
    """Parse two sides. Raises InputError if a text is not a side, or a file of hosts cannot be read."""
    parts = _parsed(current), _parsed(new)
    sides = _side(current, *parts), _side(new, *reversed(parts))
    if sides[0] == replace(sides[1], text=current):
        raise InputError(f"sides '{current}' and '{new}' are the same samples")
    return sides


def read_side(
    lake: Lake,
    side: Side,
    metric: str,
    quotas: Quotas | None,
    *,
    memory_limit_mib: int = 2048,
    threads: int = 2,
    max_tasks: int | None = None,
) -> Rows:
    """Read a side with one of `metrics()`; DuckDB's buffers are limited, and what does not fit is spilled.

    Without `quotas` jobs weigh the CPU that they used. With them, a VM without a known quota counts as the mean of its
    job's others; a job without any has no weight. Raises NoTaskError if the side has no sample with the metric,
    InputError if there is no such metric, the side has more than `max_tasks` or no VM with a known quota, LakeError if
    the lake is damaged or newer than this program.
    """
    if metric not in metrics():
        raise InputError(f"metric {metric} is not in the lake; it has {', '.join(metrics())}")

    def tasks(samples: ir.Table) -> ir.Table:
        found = _tasks(samples, metric)
        return found if max_tasks is None else found.limit(max_tasks + 1)

    table = _queried(lake, side, memory_limit_mib, threads, tasks)
    column = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
    if not table.num_rows:
        raise NoTaskError(f"side '{side.text}': no task of the lake has {metric} there")
    if max_tasks is not None and table.num_rows > max_tasks:
        raise InputError(f"side '{side.text}': more than {max_tasks:,} tasks; take a shorter time or fewer hosts")
    observed = Observed(column["machine"].astype(str), column["job"].astype(str), column["value"].astype(np.float64))
    if quotas is None:
        (jobs,), number = group(observed.job)
        used = sums(number, column["usage"].astype(np.float64), len(jobs))
        return Rows(observed, Shares(jobs, used), metric, "use")
    vms = column["vm"].astype(str)
    known = known_quotas(quotas, set(vms.tolist()), int(column["begin"].min()), int(column["end"].max()))
    weights = quota_shares(observed.job, vms, column["time_ns"].astype(np.float64), known)
    if not len(weights.job):
        raise InputError(
            f"side '{side.text}': no CPU quota of any of its VMs is known, by facts from agents; take another time, or "
            "weigh by use"
        )
    return Rows(observed, weights, metric, "quota")


def known_quotas(quotas: Quotas, vms: set[str], since_ns: int, until_ns: int) -> dict[str, float]:
    """Return the last quota known of each VM in a time: VMs may be gone before its end, or come after its begin."""
    found = dict[str, float]()
    for k in range(_MOMENTS):
        unknown = vms - found.keys()
        if not unknown:
            break
        now = quotas(until_ns - 1 - k * (until_ns - since_ns) // _MOMENTS)
        found |= {vm: now[vm] for vm in unknown & now.keys()}
    return found


def quota_shares(job: Column, vm: Column, time_ns: Floats, known: Mapping[str, float]) -> Shares:
    """Return the quota of each job: of its VMs in all, of which some may have run on several machines in turn.

    A VM without a known quota counts as the mean of its job's others; jobs without any are left out. Shapes (tasks,).
    """
    (names,), number = group(vm)
    quota = np.array([known.get(str(name), np.nan) for name in names])[number]
    part = time_ns / sums(number, time_ns, len(names))[number]  # of the VM's time
    (jobs,), of_job = group(job)
    is_known = np.isfinite(quota)
    with_quota = sums(of_job[is_known], part[is_known], len(jobs))
    total = sums(of_job[is_known], (quota * part)[is_known], len(jobs))
    kept = total > 0
    return Shares(jobs[kept], (total * sums(of_job, part, len(jobs)))[kept] / with_quota[kept])


def read_places(
    lake: Lake, side: Side, *, memory_limit_mib: int = 2048, threads: int = 2
) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the hosts and the platforms that a side has samples of, with whatever metric.

    Raises LakeError if the lake is damaged or newer than this program.
    """
    names = ["machine", "host", "platform"]
    table = _queried(lake, side, memory_limit_mib, threads, lambda samples: samples[names].distinct())
    columns = {name: {str(each) for each in table[name].to_pylist() if each} for name in table.column_names}
    return frozenset(columns["machine"] | columns["host"]), tuple(sorted(columns["platform"]))


def _queried(
    lake: Lake, side: Side, memory_limit_mib: int, threads: int, query: Callable[[ir.Table], ir.Table]
) -> pa.Table:
    """Run a query of a side's samples; only days that it has are read."""
    days = [
        day
        for day in lake.days()
        if (side.from_ns is None or day >= day_of(side.from_ns))
        and (side.until_ns is None or day <= day_of(side.until_ns))
    ]
    with reading(lake.name, memory_limit_mib, threads) as connection:
        return connection.to_pyarrow(query(_filtered(lake.samples(connection, days), side)))


def _filtered(samples: ir.Table, side: Side) -> ir.Table:
    def is_one_of(hosts: Sequence[str]) -> Any:
        """A host's samples have its name in both columns; an imported trace's machines are in one."""
        return samples.machine.isin(hosts) | samples.host.isin(hosts)

    wanted: list[Any] = [samples.duration_ns > 0]
    wanted += [] if side.hosts is None else [is_one_of(side.hosts)]
    wanted += [~is_one_of(side.not_hosts)] if side.not_hosts else []
    wanted += [] if side.platform is None else [samples.platform == side.platform]
    wanted += [] if side.from_ns is None else [samples.start_unix_ns >= side.from_ns]
    wanted += [] if side.until_ns is None else [samples.start_unix_ns < side.until_ns]
    return samples.filter(*wanted)


def _tasks(samples: ir.Table, metric: str) -> ir.Table:
    """Return machine, vm, job, value, usage, time_ns, begin, end: a row per task with known value and usage above 0."""
    usage = (samples.cpu_usage_cores * samples.duration_ns).sum() / samples.duration_ns.sum()
    if metric in _COUNTED:
        known = samples.instructions.notnull() & (samples.cycles.notnull() if metric == "ipc" else True)
        above = samples.instructions.sum(where=known).cast("float64")
        below = samples.cycles.sum(where=known) if metric == "ipc" else samples.duration_ns.sum(where=known) / 1e3
        value = above / below.cast("float64").nullif(0.0)
    else:
        column = samples[metric]
        known = column.notnull() & ~column.isnan()
        value = (column * samples.duration_ns).sum(where=known) / samples.duration_ns.sum(where=known).nullif(0)
    tasks = samples.group_by("machine", "vm", "job").aggregate(
        value=value,
        usage=usage,
        time_ns=samples.duration_ns.sum(),
        begin=samples.start_unix_ns.min(),
        end=(samples.start_unix_ns + samples.duration_ns).max(),
    )
    return tasks.filter(tasks.value.notnull(), tasks.value > 0, tasks.usage > 0).order_by("machine", "vm", "job")


def _side(text: str, parts: Mapping[str, str], other: Mapping[str, str] | None) -> Side:
    """Return a side of these parts; `other` has the other side's, None if there is none."""
    if "rest" in parts and other is None:
        raise InputError(f"side '{text}': rest needs two sides; there is one")
    if "rest" in parts and ("hosts" in parts or "hosts" not in (other or {})):
        raise InputError(f"side '{text}': rest is for the hosts that the other side's file does not name")
    return Side(
        text,
        tuple(read_machines(Path(parts["hosts"]))) if "hosts" in parts else None,
        tuple(read_machines(Path(other["hosts"]))) if other and "rest" in parts else (),
        parts.get("platform"),
        _unix_ns(text, parts["from"]) if "from" in parts else None,
        _unix_ns(text, parts["until"]) if "until" in parts else None,
    )


def _parsed(text: str) -> Mapping[str, str]:
    keys = list(_KEY.finditer(text))
    if not keys or text[: keys[0].start()].strip():
        raise InputError(f"side '{text}': must be {', '.join(f'{key}=...' for key in SIDE_KEYS)} or rest, with commas")
    ends = [key.start() for key in keys[1:]] + [len(text)]
    parts = [(key[1], text[key.end() : end].strip()) for key, end in zip(keys, ends, strict=True)]
    for name, value in parts:
        if (name == "rest") == bool(value):
            raise InputError(f"side '{text}': {name} {'takes no value' if name == 'rest' else 'needs a value'}")
    if len(dict(parts)) < len(parts):
        raise InputError(f"side '{text}': a key is given twice")
    return dict(parts)


def parse_time(what: str, text: str) -> int:
    """Return a time in ns since 1970, UTC without an offset; raises InputError, which begins with `what` it is of."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(f"{what}: invalid time {text[:40]}; such as 2026-11-21 or 2026-11-21T12:00Z") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000


def _unix_ns(side: str, text: str) -> int:
    return parse_time(f"side '{side}'", text)
