"""The SQL of questions: slots and windows as one table, each batch once, and what is asked of it."""

# ruff: noqa: S608 - SQL made of this file's own words, of names of metrics, and of quoted texts
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from central.history.files import Files
from central.history.steps import Steps
from central.lake.replica_copies import BATCH
from central.lake.schema import SAMPLES
from central.lake.segments import DAY_NS
from central.roll_ups.sql import METRICS, quoted, windows_as_slots
from whitepanda.common.window_columns import BY_NAME

_SINGLE = 4  # VMs that are read one by one: bloom filters know single names only
_DATE = f"start_unix_ns // {DAY_NS}"
# In the slot of a migration the one with more windows in a part: they are fewer than nanoseconds between slots.
_LAST_HOST, _LAST_JOB = (
    f"arg_max({column}, slot_start_ns + windows) AS {name}" for column, name in (("machine", "host"), ("job", "job"))
)


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose windows: those of one of the VMs, hosts and jobs each; empty: all of them."""

    vms: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()

    def conditions(self) -> list[str]:
        """Return conditions of which each row of the scope meets exactly one."""
        common = [_is_in(name, values) for name, values in (("machine", self.hosts), ("job", self.jobs)) if values]
        if not self.vms:
            return [" AND ".join(common) or "true"]
        single = len(self.vms) <= _SINGLE and not self.hosts
        found = [f"vm = {quoted(vm)}" for vm in self.vms] if single else [_is_in("vm", self.vms)]
        return [" AND ".join([each, *common]) for each in found]


@dataclass(frozen=True, slots=True)
class Grouping:
    """What VMs are put together by; `projects` are those of VMs, needed for "project": VMs without one are left out."""

    by: Literal["host", "job", "project"]
    projects: Mapping[str, str] = field(default_factory=dict)

    def narrowed(self, scope: Scope, names: Sequence[str]) -> tuple[Scope, Grouping]:
        """Return the scope and grouping of these groups alone."""
        if self.by == "host":
            return replace(scope, hosts=tuple(names)), self
        if self.by == "job":
            return replace(scope, jobs=tuple(names)), self
        wanted = set(names)
        mine = {vm: project for vm, project in self.projects.items() if project in wanted}
        return replace(scope, vms=tuple(mine)), Grouping(self.by, mine)

    def named(self, found: str) -> str:
        """Return the query of the rows of another query, with their group as `name`."""
        if self.by != "project":
            return f"SELECT *, {'machine' if self.by == 'host' else 'job'} AS name FROM ({found})"
        owners = ", ".join(f"({quoted(vm)}, {quoted(project)})" for vm, project in self.projects.items())
        return f"SELECT found.*, name FROM ({found}) AS found JOIN (VALUES {owners}) AS owners(vm, name) USING (vm)"


def groups(files: Files, scope: Scope, steps: Steps, grouping: Grouping, after: str, limit: int) -> str:
    """Return the query of the groups after one in name, in order."""
    found = grouping.named(rows(files, scope, steps, ()))
    return f"SELECT DISTINCT name FROM ({found}) WHERE name > {quoted(after)} ORDER BY name LIMIT {limit}"


def grouped(files: Files, scope: Scope, steps: Steps, metrics: Sequence[str], grouping: Grouping) -> str:
    """Return the query of steps by group: as `series`, with the group as vm, no host and job, and VMs of each metric.

    The mean is the sum of each VM's mean in the step, or the mean of all windows, as `WindowColumn.adds_up`.
    """
    ends = {"ns": "sum", "time_ns": "sum", "min": "min", "max": "max", "count": "sum"}
    of_vm = ", ".join(f"{how}({each}_{end}) AS {each}_{end}" for each in metrics for end, how in ends.items())
    found = grouping.named(rows(files, scope, steps, metrics))
    step = f"((slot_start_ns - {steps.since}) // {steps.length_ns})::INTEGER"
    by_vm = f"SELECT name, vm, {step} AS step, sum(windows) AS windows, {of_vm} FROM ({found}) GROUP BY ALL"
    values = ", ".join(
        f"{_joined(each)} AS {each}_mean, min({each}_min)::DOUBLE AS {each}_min, "
        f"max({each}_max)::DOUBLE AS {each}_max, coalesce(sum({each}_count), 0)::BIGINT AS {each}_count, "
        f"count(*) FILTER ({each}_count > 0) AS {each}_vms"
        for each in metrics
    )
    return (
        f"SELECT name AS vm, step, '' AS host, '' AS job, sum(windows)::BIGINT AS windows, {values} "
        f"FROM ({by_vm}) GROUP BY name, step ORDER BY name, step"
    )


def _joined(metric: str) -> str:
    if BY_NAME[metric].adds_up:
        return f"sum({metric}_ns / nullif({metric}_time_ns, 0))"
    return f"sum({metric}_ns) / nullif(sum({metric}_time_ns), 0)"


def series(files: Files, scope: Scope, steps: Steps, metrics: Sequence[str]) -> str:
    """Return the query of steps by VM: vm, step (from 0), host, job, windows; mean, min, max, count of each metric.

    Host and job are those of the step's last window or slot.
    """
    values = ", ".join(
        f"sum({each}_ns) / nullif(sum({each}_time_ns), 0) AS {each}_mean, min({each}_min)::DOUBLE AS {each}_min, "
        f"max({each}_max)::DOUBLE AS {each}_max, coalesce(sum({each}_count), 0)::BIGINT AS {each}_count"
        for each in metrics
    )
    return (
        f"SELECT vm, ((slot_start_ns - {steps.since}) // {steps.length_ns})::INTEGER AS step, "
        f"{_LAST_HOST}, {_LAST_JOB}, sum(windows)::BIGINT AS windows, "
        f"{values} FROM ({rows(files, scope, steps, metrics)}) GROUP BY vm, step ORDER BY vm, step"
    )


def vms(files: Files, scope: Scope, steps: Steps, after: str, limit: int) -> str:
    """Return the query of the VMs after one in name, in order."""
    found = rows(files, scope, steps, ())
    return f"SELECT DISTINCT vm FROM ({found}) WHERE vm > {quoted(after)} ORDER BY vm LIMIT {limit}"


def top(files: Files, scope: Scope, steps: Steps, metric: str, by: str, limit: int) -> str:
    """Return the query of the VMs with the greatest `by` ("mean" or "max") of a metric, the greatest first.

    Columns: vm, host, job (the last ones), mean, min, max, count, and since when and until when they have windows.
    """
    return (
        f"SELECT vm, {_LAST_HOST}, {_LAST_JOB}, "
        f"sum({metric}_ns) / nullif(sum({metric}_time_ns), 0) AS mean, min({metric}_min)::DOUBLE AS min, "
        f"max({metric}_max)::DOUBLE AS max, sum({metric}_count)::BIGINT AS count "
        f"FROM ({rows(files, scope, steps, (metric,))}) WHERE {metric}_count > 0 "
        f"GROUP BY vm ORDER BY {by} DESC, vm LIMIT {limit}"
    )


def rows(files: Files, scope: Scope, steps: Steps, metrics: Sequence[str]) -> str:
    """Return the query of slots, and of windows in the same columns, of a scope and time: each batch once."""
    columns = ["vm", "slot_start_ns", "machine", "job", "windows"]
    columns += [f"{each}_{end}" for each in metrics for end in ("ns", "time_ns", "min", "max", "count")]
    parts = []
    for condition in scope.conditions():
        if files.slots:
            parts.append(f"FROM {_table(files.slots)} WHERE {_within('slot_start_ns', steps)} AND {condition}")
        if files.segments:
            parts.append(
                f"FROM (SELECT {windows_as_slots(1, metrics)} FROM ({_windows(files, condition, steps, metrics)}))"
            )
    if not parts:
        empty = ", ".join(
            [f"''::VARCHAR AS {each}" if each in ("vm", "machine", "job") else f"0 AS {each}" for each in columns]
        )
        return f"SELECT {empty} WHERE false"
    return " UNION ALL ".join(f"SELECT {', '.join(columns)} {part}" for part in parts)


def _windows(files: Files, condition: str, steps: Steps, metrics: Sequence[str]) -> str:
    """Return the query of the windows of segments, without copies of a batch."""
    columns = [*SAMPLES.names[: SAMPLES.get_field_index("duration_ns") + 1], *metrics]
    found = " UNION ALL ".join(
        f"SELECT {quoted(origin)} AS origin, {', '.join(columns)} FROM {_table(paths)} "
        f"WHERE {_within('start_unix_ns', steps)} AND duration_ns > 0 AND {condition}"
        for origin, paths in files.segments.items()
    )
    if len(files.segments) > 1:  # as `central.lake.replica_copies`: each day counts from the first origin in name
        key = ", ".join([*BATCH, _DATE])
        found = f"SELECT * FROM ({found}) QUALIFY origin = min(origin) OVER (PARTITION BY {key})"
    if files.counted:
        counted = " UNION ALL ".join(
            f"SELECT host, spool_id, first, last, {(day.toordinal() - _EPOCH)} AS day FROM {_table(paths)}"
            for day, paths in files.counted.items()
        )
        same = " AND ".join(f"counted.{name} = found.{name}" for name in BATCH[:2])
        found = (
            f"SELECT * FROM ({found}) AS found WHERE NOT EXISTS (SELECT 1 FROM ({counted}) AS counted WHERE {same} "
            f"AND found.sequence BETWEEN counted.first AND counted.last AND counted.day = found.{_DATE})"
        )
    return found


_EPOCH = 719_163  # the ordinal of 1970-01-01


def _within(column: str, steps: Steps) -> str:
    return f"{column} >= {steps.since} AND {column} < {steps.until}"


def _table(paths: Iterable[str]) -> str:
    return f"read_parquet([{', '.join(map(quoted, paths))}])"


def _is_in(column: str, values: Sequence[str]) -> str:
    if len(values) == 1:
        return f"{column} = {quoted(values[0])}"
    return f"{column} IN ({', '.join(map(quoted, values))})"


__all__ = ["METRICS", "Grouping", "Scope", "grouped", "groups", "series", "top", "vms"]
