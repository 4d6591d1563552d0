"""History: series of metrics over any time, and the VMs that lead by one."""

import asyncio
import contextlib
import hashlib
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from central.api.admission import Result
from central.api.context import Context
from central.api.facts import vm_named
from central.api.limits import MAX_HISTORY_POINTS, MAX_PAGE_SIZE, MAX_SCOPE, MAX_TIME_UNIX_NS
from central.api.requests import ApiError, read_page, read_top, unknown, wrong, wrong_field
from central.history.queries import METRICS, Grouping, Scope
from central.history.reader import Series, VmLines
from central.history.steps import Steps
from central.journal import metric_reasons
from central.journal.metric_reasons import KnownReason
from whitepanda.common.texts import several_named
from whitepanda.common.window_columns import BY_NAME, BY_NUMBER, WINDOW_COLUMNS
from whitepanda.v1 import agent_pb2, fleet_pb2

_POINTS = 300
_LEAST_POINTS = 2
_TOP = 20
_NAMED = 20  # VMs whose facts are asked for a name
_HOUR_NS = 3600 * 10**9
_DAY_NS = 24 * _HOUR_NS
_SERIES_DAYS = 400
_TOP_DAYS = 31
_BY = {fleet_pb2.TOP_BY_UNSPECIFIED: "mean", fleet_pb2.TOP_BY_MEAN: "mean", fleet_pb2.TOP_BY_MAX: "max"}
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_UNITS = {column.name: column.unit for column in WINDOW_COLUMNS}
_NOBODY = Scope(vms=("",))
_NARROWER = "ask for a shorter time, or for fewer hosts, jobs or VMs"
NO_WINDOWS = "no_windows"
UNKNOWN = "unknown"


async def query_series(context: Context, request: fleet_pb2.QuerySeriesRequest) -> fleet_pb2.QuerySeriesResponse:
    """Series of metrics of the VMs of a scope, or of its hosts, jobs or projects in all, page by page."""
    metrics = tuple(dict.fromkeys(request.metrics))
    if not metrics:
        raise wrong_field("metrics", f"is missing: name some of {', '.join(METRICS)}")
    for metric in metrics:
        _check_metric(metric, "metrics")
    if not (request.vms or request.hosts or request.jobs or request.projects):
        raise wrong_field("vms", "is missing, as are hosts, jobs and projects: name some; TopVms ranks the whole fleet")
    points = request.points or max(min(_POINTS, MAX_HISTORY_POINTS // len(metrics)), _LEAST_POINTS)
    if points < _LEAST_POINTS or points * len(metrics) > MAX_HISTORY_POINTS:
        most = f"must be at least 2, and points * metrics at most {MAX_HISTORY_POINTS:,}"
        raise wrong_field("points", f"{most} (values {points}, {len(metrics)}); ask for fewer points or metrics")
    since, until = _read_time(request, context.clock_unix_ns(), _SERIES_DAYS)
    scope = await _read_scope(context, request, since, until, await _found_vms(context, request.vms))
    grouping = await _read_grouping(context, request, scope, since, until)
    page = read_page(request, "series", ("",), _filters(request))
    (after,) = page.place

    def read(stop: threading.Event) -> Any:
        steps = context.fleet_history.steps(since, until, points)
        if scope is None or (grouping and grouping.by == "project" and not grouping.projects):
            return Series(steps, [], has_more=False)
        limit = min(_vms_of_page(request.page_size, steps.count * len(metrics)), MAX_PAGE_SIZE)
        return context.fleet_history.series(
            scope, metrics, steps, limit=limit, after=str(after), stop=stop, grouping=grouping
        )

    found = await stoppable(context, "series of metrics", read)
    if request.vms and not found.vms and not after:
        raise unknown(f"no window of {', '.join(request.vms[:5])} in this time and scope", "vms")
    if grouping:
        vms = [_group(lines, found.steps) for lines in found.vms]
    else:
        vms = await _messages(context, found.vms, found.steps)
    return fleet_pb2.QuerySeriesResponse(
        since_unix_ns=found.steps.since,
        until_unix_ns=found.steps.until,
        step_ns=found.steps.length_ns,
        slot_ns=context.fleet_history.slot_ns if found.steps.is_from_slots else 0,
        vms=vms,
        next_page_token=page.token(found.vms[-1].vm) if found.has_more else "",
    )


async def _messages(context: Context, vms: Sequence[VmLines], steps: Steps) -> list[fleet_pb2.VmSeries]:
    names = await _names(context, vms)
    absent = [lines.vm for lines in vms if any(map(len, _absent_steps(lines).values()))]
    reasons = await asyncio.to_thread(metric_reasons.read, context.journal.path, absent) if absent else []
    by_metric = defaultdict[tuple[str, str, str], list[KnownReason]](list)
    for row in reasons:
        if row.metric in BY_NUMBER:
            by_metric[row.host, row.vm, BY_NUMBER[row.metric].name].append(row)
    return [_message(lines, steps, by_metric, names[lines.vm]) for lines in vms]


async def top_vms(context: Context, request: fleet_pb2.TopVmsRequest) -> fleet_pb2.TopVmsResponse:
    """The VMs with the greatest mean or maximum of a metric."""
    if not request.metric:
        raise wrong_field("metric", f"is missing: name one of {', '.join(METRICS)}")
    _check_metric(request.metric, "metric")
    top = read_top(request.top, _TOP)
    by = _BY.get(request.by)
    if by is None:
        raise wrong_field("by", f"must be mean or max (value {request.by})")
    since, until = _read_time(request, context.clock_unix_ns(), _TOP_DAYS)
    scope = await _read_scope(context, request, since, until, [])
    found = await stoppable(
        context,
        "the VMs that lead",
        lambda stop: context.fleet_history.top(scope or _NOBODY, request.metric, by, since, until, top, stop),
    )
    names = context.registry.vm_names
    return fleet_pb2.TopVmsResponse(
        since_unix_ns=found.steps.since,
        until_unix_ns=found.steps.until,
        slot_ns=context.fleet_history.slot_ns if found.steps.is_from_slots else 0,
        unit=_UNITS[request.metric],
        vms=[fleet_pb2.TopVm(name=names.get(row["vm"], row["host"]), **row) for row in found.vms],
    )


async def stoppable(context: Context, what: str, call: Callable[[threading.Event], Result]) -> Result:
    """Read the lake in the thread of history; if the caller is cancelled, the query ends and the thread is free."""
    stop = threading.Event()
    try:
        return await context.asking.read_lake(what, lambda: call(stop), _NARROWER)
    except asyncio.CancelledError:
        stop.set()
        raise


def _check_metric(metric: str, field: str) -> None:
    if metric not in METRICS:
        raise wrong_field(field, f"must be of {', '.join(METRICS)} (value {metric[:80]!r})")


def _read_time(request: Any, now_unix_ns: int, most_days: int) -> tuple[int, int]:
    """Return a request's since and until; by default the last hour."""
    until = min(request.until_unix_ns or now_unix_ns, MAX_TIME_UNIX_NS - 2 * _SERIES_DAYS * _DAY_NS)
    since: int = request.since_unix_ns or max(0, until - _HOUR_NS)
    if not 0 < until - since <= most_days * _DAY_NS:
        value = f"value {(until - since) / 1e9:.0f} s"
        raise wrong_field("until_unix_ns", f"must be after since_unix_ns and at most {most_days} days later ({value})")
    return since, until


async def _found_vms(context: Context, vms: Sequence[str]) -> list[str]:
    """Return the UUIDs of VMs that are given by that or by name; those that are gone have their names in facts."""
    found, gone = [], []
    for vm in vms:
        known = context.registry.vm_names.find(vm)
        if len(known) > 1:
            raise wrong(several_named(vm, known), "vms")
        if known or _UUID.fullmatch(vm):
            found.append(known[0] if known else vm)
        else:
            gone.append(vm)
    if len(gone) > _NAMED:
        problem = f"has {len(gone)} names of VMs that do not run (such as {gone[0][:80]!r}), more than {_NAMED}"
        raise wrong_field("vms", f"{problem}; give their UUIDs")
    return found + [await vm_named(context, vm) or vm for vm in gone]


async def _read_scope(context: Context, request: Any, since: int, until: int, vms: list[str]) -> Scope | None:
    """Return whose windows are asked for; projects are those of the VMs' facts. None: no VM is of the projects."""
    if request.projects:
        ask, store = context.history.ask, context.facts
        only = {"hosts": list(request.hosts), "vms": vms}
        found = await ask(store.vms_of, list(request.projects), since, until, MAX_SCOPE + 1, **only)
        if len(found) > MAX_SCOPE:
            problem = f"have more than {MAX_SCOPE:,} VMs in this time; name fewer, or a shorter time, or hosts"
            raise wrong_field("projects", problem)
        vms = found
        if not vms:
            return None
    return Scope(tuple(dict.fromkeys(vms)), tuple(request.hosts), tuple(request.jobs))


async def _read_grouping(
    context: Context, request: fleet_pb2.QuerySeriesRequest, scope: Scope | None, since: int, until: int
) -> Grouping | None:
    """Return what the request groups VMs by; None for single VMs."""
    if request.group_by not in fleet_pb2.GroupBy.values():
        raise wrong_field("group_by", f"is not known here (value {request.group_by})")
    if request.group_by == fleet_pb2.GROUP_BY_HOST:
        return Grouping("host")
    if request.group_by == fleet_pb2.GROUP_BY_JOB:
        return Grouping("job")
    if request.group_by != fleet_pb2.GROUP_BY_PROJECT:
        return None
    if not request.projects:
        raise wrong_field("group_by", "of projects needs their names: give projects")
    if scope is None:
        return Grouping("project")
    ask, store = context.history.ask, context.facts
    return Grouping("project", await ask(store.projects_of, list(scope.vms), list(request.projects), since, until))


def _vms_of_page(page_size: int, points_of_vm: int) -> int:
    """Return how many VMs fit into an answer; refuses more."""
    most = max(MAX_HISTORY_POINTS // points_of_vm, 1)
    if page_size > most:
        problem = f"must be at most {most:,}: an answer has {MAX_HISTORY_POINTS:,} points, each VM {points_of_vm:,}"
        raise wrong_field("page_size", f"{problem} (value {page_size}); ask for fewer points, metrics or VMs a page")
    return page_size or most


def _filters(request: Any) -> str:
    """Return all that a page's token must be of; times that are not given change."""
    names = ("metrics", "vms", "hosts", "jobs", "projects")
    times = (request.since_unix_ns, request.until_unix_ns, request.points, request.group_by)
    filters = repr(([sorted(getattr(request, name)) for name in names], times))
    # A thousand names are longer than a token may be.
    return hashlib.blake2b(filters.encode(), digest_size=16).hexdigest()


async def _names(context: Context, vms: Sequence[VmLines]) -> dict[str, str]:
    """Return VMs' names, as their hosts say; of a few that send no windows now, as their facts did."""
    names = {lines.vm: context.registry.vm_names.get(lines.vm, lines.last_host) for lines in vms}
    with contextlib.suppress(ApiError):  # without the database there are series all the same
        for vm in [vm for vm, name in names.items() if not name][:_NAMED]:
            for record in (await context.history.ask(context.facts.history, vm))[:1]:
                names[vm] = record.name
    return names


def _absent_steps(lines: VmLines) -> dict[str, list[int]]:
    """Return by metric the steps that have windows, but no value."""
    return {
        metric: np.flatnonzero((lines.windows > 0) & (values["count"] == 0)).tolist()
        for metric, values in lines.values.items()
    }


def _message(
    lines: VmLines, steps: Steps, why: Mapping[tuple[str, str, str], list[KnownReason]], name: str
) -> fleet_pb2.VmSeries:
    """Return a VM's series; `why` has the reasons of metrics by host, VM and metric, the latest last."""
    found = fleet_pb2.VmSeries(vm=lines.vm, name=name, job=lines.job)
    for first, last, host in _runs(lines.hosts):
        if host:
            found.places.add(host=host, since_unix_ns=_at(steps, first), until_unix_ns=_at(steps, last))
    absent = _absent_steps(lines)
    for metric, values in lines.values.items():
        series = found.metrics.add(
            metric=metric,
            unit=_UNITS[metric],
            mean=values["mean"],
            min=values["min"],
            max=values["max"],
            count=values["count"].astype(np.int64),
        )
        reasons = np.where(lines.windows > 0, "", NO_WINDOWS).tolist()
        for step in absent[metric]:
            reasons[step] = UNKNOWN
            for row in why.get((lines.hosts[step], lines.vm, metric), ()):
                is_over = row.until_unix_ns is not None and row.until_unix_ns <= _at(steps, step)
                if row.since_unix_ns < _at(steps, step + 1) and not is_over:
                    reasons[step] = agent_pb2.Reason.Name(row.reason).removeprefix("REASON_").lower()
        for first, last, reason in _runs(reasons):
            if reason:
                series.absences.add(since_unix_ns=_at(steps, first), until_unix_ns=_at(steps, last), reason=reason)
    return found


def _group(lines: VmLines, steps: Steps) -> fleet_pb2.VmSeries:
    """Return a group's series; why single VMs lack a value is not in it."""
    found = _message(lines, steps, {}, "")
    found.vm, found.group = "", lines.vm
    for series in found.metrics:
        series.joined = "sum" if BY_NAME[series.metric].adds_up else "mean"
        series.vms.extend(lines.values[series.metric]["vms"].astype(np.int64))
    return found


def _at(steps: Steps, step: int) -> int:
    return steps.since + step * steps.length_ns


def _runs(words: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yield where runs of the same word begin and end."""
    first = 0
    for place in range(1, len(words) + 1):
        if place == len(words) or words[place] != words[first]:
            yield first, place, words[first]
            first = place
