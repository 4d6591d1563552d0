"""The tables of incident history, in SQLite and PostgreSQL alike, and how a report finds its incident.

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
from sqlalchemy.dialects import postgresql, sqlite

from central.validation.triggers import TriggerRow, first_suspect
from whitepanda.v1 import agent_pb2

ROLE_VICTIM = 0
ROLE_SUSPECT = 1

METADATA = sa.MetaData()
#: Of a column `id` that the database numbers: SQLite does so only under this name.
ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")

meta = sa.Table(
    "incident_meta", METADATA, sa.Column("key", sa.Text, primary_key=True), sa.Column("value", sa.Text, nullable=False)
)
reports = sa.Table(
    "incident_reports",
    METADATA,
    sa.Column("host", sa.Text, primary_key=True),  # of the stream
    sa.Column("spool_id", sa.Text, primary_key=True),
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("incident", sa.BigInteger, nullable=False),
    sa.Column("unix_ns", sa.BigInteger, nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),  # whitepanda.v1.Trigger
    sa.Index("incident_reports_of", "incident", "unix_ns"),
)
incidents = sa.Table(
    "incidents",
    METADATA,
    sa.Column("id", ROW_ID, primary_key=True),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("first_unix_ns", sa.BigInteger, nullable=False),
    sa.Column("last_unix_ns", sa.BigInteger, nullable=False),
    sa.Column("victims_now", sa.Integer, nullable=False),  # in the last report; 0 once it is over
    sa.Column("slow_down_now", sa.Double),  # of the slowest of these; null: none is known
    sa.Column("reports", sa.BigInteger, nullable=False),
    sa.Column("peak_mn_cpi", sa.Double),  # null: never known, here and below
    sa.Column("peak_threshold", sa.Double),
    sa.Column("found_by", sa.Integer, nullable=False),  # a bit for each analysis, 1 << its number
    # By the last report that named a suspect, at this time; "" and 0 if none did.
    sa.Column("suspect_unix_ns", sa.BigInteger, nullable=False),
    sa.Column("suspect_vm", sa.Text, nullable=False),
    sa.Index("incidents_by_time", "first_unix_ns", "id"),
    sa.Index("incidents_by_end", "last_unix_ns", "first_unix_ns"),
    sa.Index("incidents_by_host", "host", "first_unix_ns", "id"),
    sa.Index("incidents_by_host_and_end", "host", "last_unix_ns", "first_unix_ns"),
    sqlite_autoincrement=True,  # a number is never used twice
)
incident_vms = sa.Table(
    "incident_vms",
    METADATA,
    sa.Column("incident", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("role", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("vm", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("project", sa.Text, nullable=False),  # "" if not known
    sa.Column("peak", sa.Double),  # a victim's nCPI, a suspect's score; null: there never was one
    sa.Column("reports", sa.BigInteger, nullable=False),
    sa.Column("first_reports", sa.BigInteger, nullable=False),  # of a suspect: those that name it first
    # A victim's worst slow-down; null: none was known.
    sa.Column("slow_ratio", sa.Double),
    sa.Column("slow_low", sa.Double),
    sa.Column("slow_high", sa.Double),
    sa.Column("slow_model", sa.Text),
    sa.Index("incident_vms_by_vm", "vm", "incident"),
    sa.Index("incident_vms_by_name", "name", "incident"),
    sa.Index("incident_vms_by_job", "job", "role", "incident"),
    sa.Index("incident_vms_by_project", "project", "incident"),
)
#: Who has taken an incident on; the first one stays.
acknowledgements = sa.Table(
    "incident_acknowledgements",
    METADATA,
    sa.Column("incident", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("unix_ns", sa.BigInteger, nullable=False),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
)
notes = sa.Table(
    "incident_notes",
    METADATA,
    sa.Column("id", ROW_ID, primary_key=True),
    sa.Column("incident", sa.BigInteger, nullable=False, index=True),
    sa.Column("unix_ns", sa.BigInteger, nullable=False),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False, unique=True),  # of the request, so that a repeated one adds nothing
    sqlite_autoincrement=True,  # a number is never used twice
)
#: When contention was last over on a host.
ends = sa.Table(
    "incident_ends",
    METADATA,
    sa.Column("host", sa.Text, primary_key=True),
    sa.Column("unix_ns", sa.BigInteger, nullable=False),
)
#: Recommendations of the last report that had some: one row per incident, so it does not grow with the reports.
recommendations = sa.Table(
    "incident_recommendations",
    METADATA,
    sa.Column("incident", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("unix_ns", sa.BigInteger, nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),  # whitepanda.v1.Trigger with these alone
)
#: Counts of the incidents in which some report names a VM of the job first, kept up to date for readers.
suspect_jobs = sa.Table(
    "suspect_jobs",
    METADATA,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("host", sa.Text, primary_key=True, index=True),
    sa.Column("incidents", sa.BigInteger, nullable=False),
    sa.Column("first_unix_ns", sa.BigInteger, nullable=False),
    sa.Column("last_unix_ns", sa.BigInteger, nullable=False),
)

_KEY = ("host", "spool_id", "sequence", "number")  # of a report
_LOCK = 0x77686974  # of PostgreSQL's advisory locks: replicas group one after the other
_PRUNED_AT_ONCE = 500
#: Parts of a slow-down in columns slow_*, by rank, each with a value below all others.
_SLOW: dict[str, float | str] = {"ratio": -1.0, "low": -1.0, "high": -1.0, "model": ""}


def is_open(since_unix_ns: int) -> sa.ColumnElement[bool]:
    """Return the condition that VMs suffer now: the last report is not older than this, and names victims."""
    return (incidents.c.last_unix_ns >= since_unix_ns) & (incidents.c.victims_now > 0)


def has_project(project: str) -> sa.ColumnElement[bool]:
    """Return the condition that an incident has a VM of this project."""
    v = incident_vms.alias().c
    return sa.exists().where(v.incident == incidents.c.id, v.project == project)


def was_first() -> sa.ColumnElement[bool]:
    """Return the condition on `incident_vms` that some report suspects this VM first, and its job is known."""
    v = incident_vms.c
    return (v.role == ROLE_SUSPECT) & (v.first_reports > 0) & (v.job != "")


def analyses(bits: int) -> list[str]:
    """Return the names of the analyses of a number in the column `found_by`."""
    return [name for name, k in agent_pb2.Analysis.items() if bits >> k & 1]


def _no_project(_vm: str) -> str:
    return ""


def take(
    connection: sa.Connection,
    rows: Iterable[TriggerRow],
    *,
    gap_ns: int,
    oldest_unix_ns: int,
    project_of: Callable[[str], str] = _no_project,
) -> int:
    """Put reports, in any order, into their incidents, within the caller's transaction; return how many were new.

    Reports of one host that are `gap_ns` apart or less are of one incident. Those older than `oldest_unix_ns` are past
    the retention and left out. `project_of` returns the project of a VM (UUID), "" if it is not known.
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
        _note_vms(connection, number, trigger, project_of)
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


def lock(connection: sa.Connection) -> None:
    """Hold other replicas' changes back until this transaction ends; SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})


def insert_into(connection: sa.Connection, table: sa.Table) -> Any:
    """Return the dialect's own INSERT, which knows ON CONFLICT."""
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)


def upsert(
    connection: sa.Connection, table: sa.Table, values: Mapping[str, Any], *where: sa.ColumnElement[bool]
) -> bool:
    """Insert a row, or replace the values of the row with its key if that meets `where`; return whether it did."""
    statement = insert_into(connection, table).values(values)
    key = [column.name for column in table.primary_key]
    new = {name: statement.excluded[name] for name in values if name not in key}
    written = statement.on_conflict_do_update(index_elements=key, set_=new, where=sa.and_(True, *where))
    return connection.execute(written.returning(*table.primary_key)).first() is not None


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
    connection: sa.Connection, incident: int, trigger: agent_pb2.Trigger, project_of: Callable[[str], str]
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
    larger = sa.func.max if connection.dialect.name == "sqlite" else sa.func.greatest
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
