"""WSMeter's answers: checks a request's fields, reads the lake and makes the message.

Imported with the first such question, as scipy costs memory.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from central.api.limits import MAX_HOSTS, MAX_TIME_UNIX_NS, NUMBERS
from central.api.requests import ApiError, unknown, wrong, wrong_field
from central.lake.segments import Lake
from central.models.wsmeter import MIN_INSTANCES, Comparison, Interval, TooLittleCovered, compare
from central.upgrades.lake_rows import WEIGHTS, NoTaskError, Quotas, Side, metrics, read_places, read_side
from central.upgrades.plan import Plan, PlanOptions, make_plan
from central.upgrades.tables import Rows, jobs_of
from whitepanda.common.errors import InputError
from whitepanda.common.messages import message_of
from whitepanda.v1 import fleet_pb2

_JOBS = "jobs"  # what the one side of a plan is called
_S_NS = 10**9
_WEEK_NS = 7 * 86_400 * _S_NS
_MAX_SPAN_DAYS = 92
_MAX_TASKS = 500_000  # of a side
_MAX_JOBS = 10_000  # of one answer, which the protocol's limit of 4 MiB still holds
_MIN_COVERAGE = 0.8  # as `whitepanda fleet compare` has it
_MEMORY_MIB = 512
#: The page has no fields for some parameters.
_OF_THE_API = "parameters of the API, options of `whitepanda fleet`"
_MOST_NAMED = 3  # unknown hosts in one message
_PLANNED = ("job", "observe", "instances", "weight", "mean", "std", "cost")
_COMPARED = ("weight", "current", "new", "p", "adjusted_p", "verdict")


def plan_observation(
    lake: Lake, request: fleet_pb2.PlanObservationRequest, now_ns: int, known: Quotas
) -> fleet_pb2.ObservationPlan:
    """Answer PlanObservation, with the quotas `known`; raises ApiError, InputError where the margin is out of reach.

    Also raises LakeError, and what `known` raises.
    """
    quotas = _quotas(request, known)
    options, metric = _plan_options(request), _metric(request.metric)
    side = _side(_JOBS, request, "", (), now_ns)
    rows = _read(lake, side, metric, quotas)
    jobs = jobs_of(rows)
    if not len(jobs.job):
        raise unknown(f"no job's {metric} varies between its instances there; there is nothing to plan")
    most = int(jobs.instances.max())
    if most < options.min_instances:
        raise wrong(
            f"no job has {options.min_instances} VMs with {metric} there, the largest has {most}; take a longer time "
            f"or more hosts, or lower min_instances ({_OF_THE_API})",
            "min_instances",
        )
    made = make_plan(jobs, options)
    if len(made.jobs.job) > _MAX_JOBS:
        count = len(made.jobs.job)
        raise wrong(f"{count:,} jobs are more than an answer holds; set top to {_MAX_JOBS} or less", "top")
    return _plan_message(made, rows, len(rows.weights.job) - len(jobs.job), side)


def compare_sides(
    lake: Lake, request: fleet_pb2.CompareSidesRequest, now_ns: int, known: Quotas, known_hosts: Collection[str] = ()
) -> fleet_pb2.SideComparison:
    """Answer CompareSides, with the quotas `known`; raises ApiError, LakeError, and what `known` raises.

    `known_hosts` ever connected; other hosts are refused unless the lake has samples of them.
    """
    quotas = _quotas(request, known)
    metric, options, sides = _metric(request.metric), _compare_options(request), _sides(request, now_ns)
    # CURRENT's weights count.
    current = _read(lake, sides[0], metric, quotas, known_hosts)
    new = _read(lake, sides[1], metric, None, known_hosts)
    try:
        found = compare(current.observed, new.observed, current.weights, **options)
    except TooLittleCovered as error:
        raise wrong(
            f"{error.jobs} jobs have {options['min_instances']} instances on two machines of both sides and cover "
            f"{error.coverage:.1%} of CURRENT's weight, less than {options['min_coverage']:.0%}; take a longer time "
            f"or more hosts, or lower min_coverage or min_instances ({_OF_THE_API})"
        ) from error
    message = _comparison_message(found, current)
    for name, side in zip(("current", "new"), sides, strict=True):
        setattr(message, f"{name}_since_unix_ns", side.from_ns)
        setattr(message, f"{name}_until_unix_ns", side.until_ns)
    return message


def _quotas(request: Any, known: Quotas) -> Quotas | None:
    """Return the source of quotas, None if jobs weigh what they use."""
    if request.weigh_by not in ("", *WEIGHTS):
        raise wrong_field("weigh_by", f"must be {' or '.join(WEIGHTS)} (value {request.weigh_by[:80]!r})")
    return None if request.weigh_by == "use" else known


def _plan_options(request: fleet_pb2.PlanObservationRequest) -> PlanOptions:
    if request.margin_percent == 0:
        raise wrong_field("margin_percent", "is missing: half the width of the interval, in % of the mean")
    if not 0.0 < request.margin_percent <= NUMBERS["margin_percent"].high:
        raise wrong_field("margin_percent", f"must be above 0 and up to 1e+06 (value {request.margin_percent:g})")
    return PlanOptions(
        request.margin_percent,
        _number("t", request.t, 2.0),
        _min_instances(request.min_instances),
        request.top or None,
        _number("coverage", request.coverage, 1.0) if request.coverage else None,
        _number("design_effect", request.design_effect, 1.0),
    )


def _compare_options(request: fleet_pb2.CompareSidesRequest) -> dict[str, Any]:
    return {
        "min_instances": _min_instances(request.min_instances),
        "min_coverage": _number("min_coverage", request.min_coverage, _MIN_COVERAGE),
        "top": request.top or None,
        "confidence": _number("confidence", request.confidence, 0.95),
    }


def _number(name: str, value: float, default: float) -> float:
    low, high = NUMBERS[name].low, NUMBERS[name].high
    if value == 0.0:
        return default
    if not low <= value <= high:
        raise wrong_field(name, f"must be {low:g} to {high:g}, or 0 for {default:g} (value {value:g})")
    return value


def _min_instances(value: int) -> int:
    if value == 1:
        raise wrong_field("min_instances", "must be 2 or more, or 0 for 4 (value 1)")
    return value or MIN_INSTANCES


def _metric(name: str) -> str:
    found = name or "ipc"
    if found not in metrics():
        raise wrong_field("metric", f"{found[:80]!r} is not in the lake; it has {', '.join(metrics())}")
    return found


def _sides(request: fleet_pb2.CompareSidesRequest, now_ns: int) -> tuple[Side, Side]:
    if request.current_rest and request.new_rest:
        raise wrong("current_rest and new_rest cannot both be; rest are the hosts that the other side lacks")
    made = []
    for name, other in (("current", "new"), ("new", "current")):
        not_hosts: tuple[str, ...] = ()
        if getattr(request, f"{name}_rest"):
            not_hosts = tuple(getattr(request, f"{other}_hosts"))
            if not not_hosts or getattr(request, f"{name}_hosts"):
                needs = f"needs {other}_hosts and no {name}_hosts: rest are the hosts not named there"
                raise wrong_field(f"{name}_rest", needs)
        made.append(_side(name, request, f"{name}_", not_hosts, now_ns))
    if replace(made[0], text="") == replace(made[1], text=""):
        raise wrong("current and new are the same samples; give hosts, platform or times of each")
    return made[0], made[1]


def _side(name: str, request: Any, prefix: str, not_hosts: tuple[str, ...], now_ns: int) -> Side:
    hosts = tuple(getattr(request, f"{prefix}hosts", ()))
    if max(len(hosts), len(not_hosts)) > MAX_HOSTS:
        raise wrong_field(f"{prefix}hosts", f"must be at most {MAX_HOSTS:,} (value {len(hosts or not_hosts):,})")
    first, last = f"{prefix}since_unix_ns", f"{prefix}until_unix_ns"
    asked_until = min(getattr(request, last), MAX_TIME_UNIX_NS)
    until = asked_until or now_ns
    since = getattr(request, first) or max(until - _WEEK_NS, 0)
    if since >= until and not asked_until:
        raise wrong_field(first, f"is in the future: {_utc(since)} (value {since})")
    if not since < until:
        raise wrong_field(first, f"must be before {last} (values {since}, {until})")
    days = (until - since) / (86_400 * _S_NS)
    if days > _MAX_SPAN_DAYS:
        raise wrong_field(last, f"must be at most {_MAX_SPAN_DAYS} days after {first} (value {days:.0f} days)")
    platform = getattr(request, f"{prefix}platform") or None
    return Side(name, hosts or None, not_hosts, platform, since, until)


def _read(lake: Lake, side: Side, metric: str, quotas: Quotas | None, known_hosts: Collection[str] = ()) -> Rows:
    try:
        rows = read_side(lake, side, metric, quotas, memory_limit_mib=_MEMORY_MIB, threads=1, max_tasks=_MAX_TASKS)
    except NoTaskError as error:
        raise _why_nothing(lake, side, metric, known_hosts) from error
    except InputError as error:
        raise unknown(str(error)) from error
    # The hosts of a mistyped name would otherwise count on the other side, among the rest.
    named = [host for host in side.hosts or () if host not in known_hosts]
    strangers = set(named).difference(rows.observed.machine.tolist())
    if strangers:
        hosts, _ = _places(lake, side)
        strange = [host for host in named if host in strangers and host not in hosts]
        if strange:
            raise _unknown_hosts(side, strange)
    return rows


def _places(lake: Lake, side: Side) -> tuple[Collection[str], Sequence[str]]:
    """Return hosts and platforms that have samples in a side's time."""
    in_its_time = Side(side.text, from_ns=side.from_ns, until_ns=side.until_ns)
    return read_places(lake, in_its_time, memory_limit_mib=_MEMORY_MIB, threads=1)


def _why_nothing(lake: Lake, side: Side, metric: str, known_hosts: Collection[str]) -> ApiError:
    """Return why a side has no task, and the remedy."""
    days = lake.days()
    if not days:
        return unknown("no data yet: central's lake is empty; windows are in it a minute after agents measured them")
    hosts, platforms = _places(lake, side)
    when = f"from {_utc(side.from_ns or 0)} to {_utc(side.until_ns or 0)}"
    prefix = "" if side.text == _JOBS else f"{side.text}_"
    strange = [host for host in side.hosts or () if host not in hosts and host not in known_hosts]
    if strange:
        return _unknown_hosts(side, strange)
    if not hosts:
        return unknown(f"nothing was measured {when}; the lake has {days[0]} to {days[-1]}: take another time")
    if side.platform is not None and side.platform not in platforms:
        seen = f"{side.platform[:80]!r}: no host of it was measured {when}; known: {', '.join(platforms)}"
        return unknown(f"{prefix}platform {seen}", f"{prefix}platform", seen)
    which = f"the {side.text} side" if prefix else "the fleet"
    where = " on the hosts that the other side does not name" if side.not_hosts else ""
    return unknown(
        f"{which} has no VM with {metric} {when}{where}; take another time, or others; "
        "`whitepanda doctor` on a host says why its VMs have none"
    )


def _unknown_hosts(side: Side, hosts: Sequence[str]) -> ApiError:
    named = ", ".join(repr(host[:80]) for host in hosts[:_MOST_NAMED])
    more = f" and {len(hosts) - _MOST_NAMED:,} more" if len(hosts) > _MOST_NAMED else ""
    problem = (
        f"nothing is known of host {named}{more}: it never connected, and the lake has nothing of it in this time; "
        "correct the name, or leave it out"
    )
    return unknown(f"{side.text}_hosts: {problem}", f"{side.text}_hosts", problem)


def _utc(unix_ns: int) -> str:
    return datetime.fromtimestamp(unix_ns // _S_NS, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _plan_message(made: Plan, rows: Rows, flat: int, side: Side) -> fleet_pb2.ObservationPlan:
    found, jobs = made.solution, made.jobs
    columns = (jobs.job, found.observe, jobs.instances, jobs.weight, jobs.mean, jobs.std, jobs.cost * found.observe)
    return message_of(
        fleet_pb2.ObservationPlan,
        found,
        metric=rows.metric,
        weighed_by=rows.weighed_by,
        jobs=[
            fleet_pb2.PlannedJob(**dict(zip(_PLANNED, row, strict=True)))
            for row in zip(*(column.tolist() for column in columns), strict=True)
        ],
        instances=int(found.observe.sum()),
        expected_margin_percent=made.expected_margin_percent,
        metric_mean=made.metric_mean,
        coverage=made.coverage,
        jobs_too_few=made.too_few,
        jobs_without_spread=flat,
        jobs_no_weight=len(np.unique(rows.observed.job)) - len(rows.weights.job),
        since_unix_ns=side.from_ns or 0,
        until_unix_ns=side.until_ns or 0,
    )


def _comparison_message(found: Comparison, rows: Rows) -> fleet_pb2.SideComparison:
    return message_of(
        fleet_pb2.SideComparison,
        found,
        metric=rows.metric,
        weighed_by=rows.weighed_by,
        current=_estimate(found.current),
        new=_estimate(found.new),
        difference_percent=_estimate(found.difference, 100.0),
        independent_percent=_estimate(found.independent, 100.0),
        baseline_percent=None if found.baseline is None else _estimate(found.baseline, 100.0),
        current_machines=found.machines[0],
        new_machines=found.machines[1],
        current_instances=found.instances[0],
        new_instances=found.instances[1],
        left_out=[fleet_pb2.JobsLeftOut(reason=reason, count=count) for reason, count in found.left_out.items()],
        jobs=[
            fleet_pb2.ComparedJob(
                **{name: getattr(job, name) for name in _COMPARED},
                current_instances=job.instances[0],
                new_instances=job.instances[1],
                job=str(job.job),
                difference_percent=_estimate(job.difference, 100.0),
            )
            for job in found.jobs[:_MAX_JOBS]
        ],
        jobs_in_all=len(found.jobs),
    )


def _estimate(found: Interval, scale: float = 1.0) -> fleet_pb2.Estimate:
    scaled = {name: scale * getattr(found, name) for name in ("value", "low", "high", "standard_error")}
    return fleet_pb2.Estimate(**scaled, degrees_of_freedom=found.degrees)
