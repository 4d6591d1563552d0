"""How a report finds its incident: it begins one, extends one, or joins several; and how old ones go.

An incident is a series of reports of one host that name victims, no further apart than the quiet gap, whichever VM is
suspected. The order of arrival does not matter (after an outage the newest come first): a report between two incidents
makes them one. Each report is kept under the batch that brought it, so replays change no count.

A report without victims says that contention is over. Only its time is kept, per host; it makes no incident and extends
none. An incident is open while its last report is not older than the gap, and no such time came after it.
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from central.incidents.tables import (
    ROLE_SUSPECT,
    ROLE_VICTIM,
    acknowledgements,
    ends,
    incident_vms,
    incidents,
    insert_into,
    lock,
    notes,
    recommendations,
    reports,
    suspect_jobs,
    upsert,
    was_first,
)
from central.validation.triggers import TriggerRow, first_suspect
from whitepanda.v1 import agent_pb2

_KEY = ("host", "spool_id", "sequence", "number")  # of a report
_PRUNED_AT_ONCE = 500
#: Parts of a slow-down in columns slow_*, by rank, each with a value below all others.
_SLOW: dict[str, float | str] = {"ratio": -1.0, "low": -1.0, "high": -1.0, "model": ""}


def _no_project(_host: str, _vm: str) -> str:
    return ""


def take(
    connection: sa.Connection,
    rows: Iterable[TriggerRow],
    *,
    gap_ns: int,
    oldest_unix_ns: int,
    project_of: Callable[[str, str], str] = _no_project,
) -> int:
    """Put reports, in any order, into their incidents, within the caller's transaction; return how many were new.

    Reports of one host that are `gap_ns` apart or less are of one incident. Those older than `oldest_unix_ns` are past
    the retention and left out. `project_of` returns the project of a VM by its host and UUID, "" if it is not known.
    """
    lock(connection)
    changed: set[str] = set()
    new = 0
    for row in rows:
        if row.unix_ns < oldest_unix_ns:
            continue
        trigger = agent_pb2.Trigger.FromString(row.payload)
        if trigger.ended or not trigger.victims:
            new += _end(connection, row.machine, row.unix_ns)
            continue
        advice = agent_pb2.Trigger(recommendations=trigger.recommendations)
        trigger.ClearField("recommendations")
        values = {name: getattr(row, name) for name in (*_KEY, "unix_ns")}
        values |= {"incident": 0, "payload": trigger.SerializeToString()}
        found = connection.execute(
            insert_into(connection, reports).values(values).on_conflict_do_nothing().returning(reports.c.number)
        )
        if found.first() is None:
            continue
        new += 1
        number = _incident(connection, row, trigger, gap_ns)
        key = (reports.c[name] == values[name] for name in _KEY)
        connection.execute(sa.update(reports).where(*key).values(incident=number))
        _note_vms(connection, number, row.unix_ns, trigger, functools.partial(project_of, row.machine))
        if advice.recommendations:
            _note_advice(connection, number, row.unix_ns, advice.SerializeToString())
        changed.add(row.machine)
    _count(connection, changed)
    return new


def prune(connection: sa.Connection, oldest_unix_ns: int) -> int:
    """Delete some incidents that were over before a time, within the caller's transaction. Returns how many."""
    lock(connection)
    found = connection.execute(
        sa.select(incidents.c.id, incidents.c.host)
        .where(incidents.c.last_unix_ns < oldest_unix_ns)
        .order_by(incidents.c.last_unix_ns)
        .limit(_PRUNED_AT_ONCE)
    ).all()
    if not found:
        return 0
    numbers = [row.id for row in found]
    for table in (reports, incident_vms, recommendations, acknowledgements, notes):
        connection.execute(sa.delete(table).where(table.c.incident.in_(numbers)))
    connection.execute(sa.delete(ends).where(ends.c.unix_ns < oldest_unix_ns))
    connection.execute(sa.delete(incidents).where(incidents.c.id.in_(numbers)))
    _count(connection, {row.host for row in found})
    return len(numbers)


def _end(connection: sa.Connection, host: str, unix_ns: int) -> bool:
    """Note that contention is over on a host at a time; return whether that is news."""
    if not upsert(connection, ends, {"host": host, "unix_ns": unix_ns}, ends.c.unix_ns < unix_ns):
        return False
    i = incidents.c
    before = (i.host == host) & (i.last_unix_ns <= unix_ns) & (i.victims_now > 0)
    connection.execute(sa.update(incidents).where(before).values(victims_now=0, slow_down_now=None))
    return True


def _incident(connection: sa.Connection, row: TriggerRow, trigger: agent_pb2.Trigger, gap_ns: int) -> int:
    """Put a report into a new incident, one that it extends, or several that it joins; return the incident's number.

    Every column is a sum or a maximum over the reports, so their order does not matter.
    """
    i = incidents.c
    near = connection.execute(
        sa.select(incidents)
        .where(i.host == row.machine, i.last_unix_ns >= row.unix_ns - gap_ns, i.first_unix_ns <= row.unix_ns + gap_ns)
        .order_by(i.id)
    ).mappings()
    parts: list[Mapping[str, Any]] = [_of_report(row, trigger), *map(dict, near)]
    # Unknown (null) ranks below everything.
    first = min(part["first_unix_ns"] for part in parts)
    last, victims, slow_down = max(
        (part["last_unix_ns"], part["victims_now"], part["slow_down_now"] or 0.0) for part in parts
    )
    over = connection.scalar(sa.select(ends.c.unix_ns).where(ends.c.host == row.machine)) or 0
    mn_cpi, threshold = max(
        (-math.inf if part["peak_mn_cpi"] is None else part["peak_mn_cpi"], part["peak_threshold"] or 0.0)
        for part in parts
    )
    suspect_unix_ns, suspect_vm = max((part["suspect_unix_ns"], part["suspect_vm"]) for part in parts)
    values = {
        "host": row.machine,
        "first_unix_ns": first,
        "last_unix_ns": last,
        "victims_now": 0 if over >= last else victims,
        "slow_down_now": None if over >= last else slow_down or None,
        "reports": sum(part["reports"] for part in parts),
        "peak_mn_cpi": None if math.isinf(mn_cpi) else mn_cpi,
        "peak_threshold": threshold or None,
        "found_by": functools.reduce(operator.or_, (part["found_by"] for part in parts)),
        "suspect_unix_ns": suspect_unix_ns,
        "suspect_vm": suspect_vm,
    }
    if len(parts) == 1:
        made = connection.execute(incidents.insert().values(values).returning(i.id))
        return int(made.scalar_one())
    kept, *others = (part["id"] for part in parts[1:])
    for other in others:
        _merge(connection, kept, other)
    connection.execute(sa.update(incidents).where(i.id == kept).values(values))
    return int(kept)


def _of_report(row: TriggerRow, trigger: agent_pb2.Trigger) -> dict[str, Any]:
    """Return the incident of one report alone."""
    suspect = first_suspect(trigger)
    return {
        "first_unix_ns": row.unix_ns,
        "last_unix_ns": row.unix_ns,
        "victims_now": len(trigger.victims),
        "slow_down_now": max((v.slow_down.ratio for v in trigger.victims if v.slow_down.ratio > 0), default=None),
        "reports": 1,
        "peak_mn_cpi": _or_none(trigger.mn_cpi),
        "peak_threshold": None if math.isnan(trigger.mn_cpi) else _or_none(trigger.mn_cpi_threshold),
        "found_by": functools.reduce(operator.or_, (1 << each for each in trigger.found_by), 0),
        "suspect_unix_ns": row.unix_ns if suspect else 0,
        "suspect_vm": suspect.vm if suspect else "",
    }


def _or_none(value: Any) -> Any:
    """Return a value as columns have it: null if not known."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _merge(connection: sa.Connection, kept: int, other: int) -> None:
    """Move the contents of an incident to an earlier one."""
    connection.execute(sa.update(reports).where(reports.c.incident == other).values(incident=kept))
    vms = connection.execute(sa.select(incident_vms).where(incident_vms.c.incident == other)).mappings()
    _add_vms(connection, [{**vm, "incident": kept} for vm in vms])
    connection.execute(sa.delete(incident_vms).where(incident_vms.c.incident == other))
    mine = recommendations.c.incident == other
    for advice in connection.execute(sa.select(recommendations).where(mine)).all():
        _note_advice(connection, kept, advice.unix_ns, advice.payload)
    connection.execute(sa.delete(recommendations).where(mine))
    connection.execute(sa.update(notes).where(notes.c.incident == other).values(incident=kept))
    mine = acknowledgements.c.incident == other
    for one in connection.execute(sa.select(acknowledgements).where(mine)).mappings().all():
        values = {**one, "incident": kept}
        upsert(connection, acknowledgements, values, acknowledgements.c.unix_ns > one["unix_ns"])
    connection.execute(sa.delete(acknowledgements).where(mine))
    connection.execute(sa.delete(incidents).where(incidents.c.id == other))


def _note_vms(
    connection: sa.Connection, incident: int, unix_ns: int, trigger: agent_pb2.Trigger, project_of: Callable[[str], str]
) -> None:
    first = first_suspect(trigger)
    first_vm = (ROLE_SUSPECT, first.vm) if first else None
    found: dict[tuple[int, str], dict[str, Any]] = {}
    victims = ((ROLE_VICTIM, v, v.n_cpi) for v in trigger.victims)
    suspects = ((ROLE_SUSPECT, s, s.score) for s in trigger.suspects)
    for role, vm, peak in itertools.chain[tuple[int, Any, float]](victims, suspects):
        if (role, vm.vm) not in found:
            slow = vm.slow_down if isinstance(vm, agent_pb2.TriggerVictim) and vm.slow_down.ratio > 0 else None
            found[role, vm.vm] = {
                "incident": incident,
                "role": role,
                "vm": vm.vm,
                "name": vm.name,
                "job": vm.job,
                "project": project_of(vm.vm),
                "first_unix_ns": unix_ns,
                "peak": _or_none(peak),
                "reports": 1,
                "first_reports": int((role, vm.vm) == first_vm),
                **{f"slow_{part}": _or_none(getattr(slow, part, None)) for part in _SLOW},
            }
    _add_vms(connection, list(found.values()))


def _add_vms(connection: sa.Connection, vms: list[dict[str, Any]]) -> None:
    """Add VMs of reports to their incidents, with one statement: a report may name 256 of them."""
    if not vms:
        return
    statement = insert_into(connection, incident_vms)
    old, new = incident_vms.c, statement.excluded
    is_sqlite = connection.dialect.name == "sqlite"
    larger, smaller = (sa.func.max, sa.func.min) if is_sqlite else (sa.func.greatest, sa.func.least)
    # By all parts, so that with equal ratios the same interval stays in any order of arrival.
    new_rank, old_rank = (
        sa.tuple_(*(sa.func.coalesce(columns[f"slow_{part}"], least) for part, least in _SLOW.items()))
        for columns in (new, old)
    )
    names = [f"slow_{part}" for part in _SLOW]
    slow = {name: sa.case((new_rank > old_rank, new[name]), else_=old[name]) for name in names}
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["incident", "role", "vm"],
            set_={
                "peak": larger(sa.func.coalesce(old.peak, new.peak), sa.func.coalesce(new.peak, old.peak)),
                "reports": old.reports + new.reports,
                "first_reports": old.first_reports + new.first_reports,
                "name": new.name,
                "job": new.job,
                "project": sa.case((new.project != "", new.project), else_=old.project),
                "first_unix_ns": smaller(old.first_unix_ns, new.first_unix_ns),
                **slow,
            },
        ),
        vms,
    )


def _note_advice(connection: sa.Connection, incident: int, unix_ns: int, payload: bytes) -> None:
    """Keep the newest recommendations, whatever the order in which reports arrive."""
    values = {"incident": incident, "unix_ns": unix_ns, "payload": payload}
    upsert(connection, recommendations, values, recommendations.c.unix_ns <= unix_ns)


def _count(connection: sa.Connection, hosts: Iterable[str]) -> None:
    """Count the incidents of each suspected job on some hosts again."""
    i, v = incidents.c, incident_vms.c
    counts = (sa.func.count(i.id.distinct()), sa.func.min(i.first_unix_ns), sa.func.max(i.last_unix_ns))
    for host in sorted(hosts):
        connection.execute(sa.delete(suspect_jobs).where(suspect_jobs.c.host == host))
        counted = (
            sa.select(v.job, i.host, *counts)
            .select_from(incidents)
            .join(incident_vms, i.id == v.incident)
            .where(i.host == host, was_first())
            .group_by(v.job, i.host)
        )
        connection.execute(suspect_jobs.insert().from_select(list(suspect_jobs.c.keys()), counted))
