"""The tables of incident history, in SQLite and PostgreSQL alike, and how a report finds its incident.

An incident is contention on one host with one job suspected first: reports whose times are no further apart than the
quiet gap. That is so whatever the order in which reports arrive (after an outage the newest come first): a report
between two incidents makes them one. What is counted here is exact over replays, as every report is kept under the
batch that brought it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    delete,
    func,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from central.triggers import TriggerRow
from whitepanda.v1 import agent_pb2

__all__ = [
    "METADATA",
    "ROLE_SUSPECT",
    "ROLE_VICTIM",
    "ROW_ID",
    "incident_vms",
    "incidents",
    "insert_into",
    "meta",
    "prune",
    "recommendations",
    "reports",
    "suspect_jobs",
    "suspected_job",
    "take",
]

ROLE_VICTIM = 0
ROLE_SUSPECT = 1

METADATA = MetaData()
#: Of a column `id` that the database numbers: SQLite does so only under this name.
ROW_ID = BigInteger().with_variant(Integer, "sqlite")

meta = Table(
    "incident_meta", METADATA, Column("key", Text, primary_key=True), Column("value", Text, nullable=False)
)
reports = Table(
    "incident_reports",
    METADATA,
    Column("host", Text, primary_key=True),  # of the stream
    Column("spool_id", Text, primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("incident", BigInteger, nullable=False),
    Column("unix_ns", BigInteger, nullable=False),
    Column("payload", LargeBinary, nullable=False),  # whitepanda.v1.Trigger
    Index("incident_reports_of", "incident", "unix_ns"),
)
incidents = Table(
    "incidents",
    METADATA,
    Column("id", ROW_ID, primary_key=True),
    Column("host", Text, nullable=False),
    Column("suspect_job", Text, nullable=False),
    Column("first_unix_ns", BigInteger, nullable=False),
    Column("last_unix_ns", BigInteger, nullable=False),
    Column("reports", BigInteger, nullable=False),
    Column("peak_mn_cpi", Double, nullable=False),
    Column("peak_threshold", Double, nullable=False),
    Index("incidents_by_time", "first_unix_ns", "id"),
    Index("incidents_by_end", "last_unix_ns", "first_unix_ns"),
    Index("incidents_by_host", "host", "first_unix_ns", "id"),
    Index("incidents_by_job", "suspect_job", "first_unix_ns", "id"),
    Index("incidents_by_host_and_job", "host", "suspect_job", "last_unix_ns", "first_unix_ns"),
    sqlite_autoincrement=True,  # a number is never used twice
)
incident_vms = Table(
    "incident_vms",
    METADATA,
    Column("incident", BigInteger, primary_key=True, autoincrement=False),
    Column("role", SmallInteger, primary_key=True, autoincrement=False),
    Column("vm", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("job", Text, nullable=False),
    Column("peak", Double),  # null: there never was a score
    Column("reports", BigInteger, nullable=False),
    Index("incident_vms_by_vm", "vm", "incident"),
    Index("incident_vms_by_name", "name", "incident"),
    Index("incident_vms_by_job", "job", "role", "incident"),
)
#: What could be done, of the last report that said so: a row per incident, so it does not grow with the reports.
recommendations = Table(
    "incident_recommendations",
    METADATA,
    Column("incident", BigInteger, primary_key=True, autoincrement=False),
    Column("unix_ns", BigInteger, nullable=False),
    Column("payload", LargeBinary, nullable=False),  # whitepanda.v1.Trigger with these alone
)
#: The same as can be counted in `incidents`, ready to be read.
suspect_jobs = Table(
    "suspect_jobs",
    METADATA,
    Column("job", Text, primary_key=True),
    Column("host", Text, primary_key=True),
    Column("incidents", BigInteger, nullable=False),
    Column("first_unix_ns", BigInteger, nullable=False),
    Column("last_unix_ns", BigInteger, nullable=False),
)

_LOCK = 0x77686974  # of PostgreSQL's advisory locks: replicas group one after the other
_PRUNED_AT_ONCE = 500


def take(connection: Connection, rows: Iterable[TriggerRow], *, gap_ns: int, oldest_unix_ns: int) -> int:
    """Put reports into their incidents, within the caller's transaction; those known already change nothing.

    Args:
        connection: SQLite or PostgreSQL.
        rows: in any order.
        gap_ns: reports this far apart or less, of one host and suspected job, are of one incident.
        oldest_unix_ns: reports from before are past the retention and left out.

    Returns:
        How many were new.

    """
    _lock(connection)
    changed: set[tuple[str, str]] = set()
    new = 0
    for row in rows:
        if row.unix_ns < oldest_unix_ns:
            continue
        trigger = agent_pb2.Trigger.FromString(row.payload)
        advice = agent_pb2.Trigger(recommendations=trigger.recommendations)
        trigger.ClearField("recommendations")
        values = {
            "host": row.host,
            "spool_id": row.spool_id,
            "sequence": row.sequence,
            "number": row.number,
            "incident": 0,
            "unix_ns": row.unix_ns,
            "payload": trigger.SerializeToString(),
        }
        found = connection.execute(
            insert_into(connection, reports)
            .values(values)
            .on_conflict_do_nothing()
            .returning(reports.c.number)
        )
        if found.first() is None:
            continue
        new += 1
        job = suspected_job(trigger)
        number = _incident(connection, row, trigger, job, gap_ns)
        key = (reports.c.host == row.host) & (reports.c.spool_id == row.spool_id)
        key &= (reports.c.sequence == row.sequence) & (reports.c.number == row.number)
        connection.execute(update(reports).where(key).values(incident=number))
        _note_vms(connection, number, trigger)
        if advice.recommendations:
            _note_advice(connection, number, row.unix_ns, advice.SerializeToString())
        changed.add((row.machine, job))
    _count(connection, changed)
    return new


def suspected_job(trigger: agent_pb2.Trigger) -> str:
    """Return the job of the suspect with the highest score above 0; "" where there is none."""
    scored = [s for s in trigger.suspects if s.score > 0]  # not so for NaN
    return max(scored, key=lambda s: s.score).job if scored else ""


def prune(connection: Connection, oldest_unix_ns: int) -> int:
    """Delete some incidents that were over before a time, within the caller's transaction. Returns how many."""
    _lock(connection)
    found = connection.execute(
        select(incidents.c.id, incidents.c.host, incidents.c.suspect_job)
        .where(incidents.c.last_unix_ns < oldest_unix_ns)
        .order_by(incidents.c.last_unix_ns)
        .limit(_PRUNED_AT_ONCE)
    ).all()
    if not found:
        return 0
    numbers = [row.id for row in found]
    connection.execute(delete(reports).where(reports.c.incident.in_(numbers)))
    connection.execute(delete(incident_vms).where(incident_vms.c.incident.in_(numbers)))
    connection.execute(delete(recommendations).where(recommendations.c.incident.in_(numbers)))
    connection.execute(delete(incidents).where(incidents.c.id.in_(numbers)))
    _count(connection, {(row.host, row.suspect_job) for row in found})
    return len(numbers)


def _lock(connection: Connection) -> None:
    """Hold other replicas back until this transaction ends. SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})


def insert_into(connection: Connection, table: Table) -> Any:
    """Return the dialect's own INSERT, which knows ON CONFLICT."""
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)


def _incident(
    connection: Connection, row: TriggerRow, trigger: agent_pb2.Trigger, job: str, gap_ns: int
) -> int:
    """Return the number of the report's incident: a new one, one that it extends, or two that it makes one."""
    at = row.unix_ns
    near = connection.execute(
        select(incidents)
        .where(
            incidents.c.host == row.machine,
            incidents.c.suspect_job == job,
            incidents.c.last_unix_ns >= at - gap_ns,
            incidents.c.first_unix_ns <= at + gap_ns,
        )
        .order_by(incidents.c.id)
    ).all()
    peak = (trigger.mn_cpi, trigger.mn_cpi_threshold)
    if not near:
        made = connection.execute(
            incidents.insert()
            .values(
                host=row.machine,
                suspect_job=job,
                first_unix_ns=at,
                last_unix_ns=at,
                reports=1,
                peak_mn_cpi=peak[0],
                peak_threshold=peak[1],
            )
            .returning(incidents.c.id)
        )
        return int(made.scalar_one())
    kept = near[0]
    peak = max(peak, *((one.peak_mn_cpi, one.peak_threshold) for one in near))
    for other in near[1:]:
        _merge(connection, kept.id, other.id)
    connection.execute(
        update(incidents)
        .where(incidents.c.id == kept.id)
        .values(
            first_unix_ns=min(at, *(one.first_unix_ns for one in near)),
            last_unix_ns=max(at, *(one.last_unix_ns for one in near)),
            reports=1 + sum(one.reports for one in near),
            peak_mn_cpi=peak[0],
            peak_threshold=peak[1],
        )
    )
    return int(kept.id)


def _merge(connection: Connection, kept: int, other: int) -> None:
    """Give what an incident has to an earlier one."""
    connection.execute(update(reports).where(reports.c.incident == other).values(incident=kept))
    for vm in connection.execute(select(incident_vms).where(incident_vms.c.incident == other)).all():
        _note_vm(connection, {**vm._mapping, "incident": kept})  # noqa: SLF001 - its public name
    connection.execute(delete(incident_vms).where(incident_vms.c.incident == other))
    mine = recommendations.c.incident == other
    for advice in connection.execute(select(recommendations).where(mine)).all():
        _note_advice(connection, kept, advice.unix_ns, advice.payload)
    connection.execute(delete(recommendations).where(mine))
    connection.execute(delete(incidents).where(incidents.c.id == other))


def _note_vms(connection: Connection, incident: int, trigger: agent_pb2.Trigger) -> None:
    seen: set[tuple[int, str]] = set()
    named: list[tuple[int, agent_pb2.TriggerVictim | agent_pb2.TriggerSuspect, float]] = [
        (ROLE_VICTIM, v, v.n_cpi) for v in trigger.victims
    ]
    named += [(ROLE_SUSPECT, s, s.score) for s in trigger.suspects]
    for role, vm, peak in named:
        if (role, vm.vm) not in seen:
            seen.add((role, vm.vm))
            values = {"incident": incident, "role": role, "vm": vm.vm, "name": vm.name, "job": vm.job}
            _note_vm(connection, {**values, "peak": None if math.isnan(peak) else peak, "reports": 1})


def _note_vm(connection: Connection, values: dict[str, Any]) -> None:
    statement = insert_into(connection, incident_vms).values(values)
    old, new = incident_vms.c, statement.excluded
    larger = func.max if connection.dialect.name == "sqlite" else func.greatest
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["incident", "role", "vm"],
            set_={
                "peak": larger(func.coalesce(old.peak, new.peak), func.coalesce(new.peak, old.peak)),
                "reports": old.reports + new.reports,
                "name": new.name,
                "job": new.job,
            },
        )
    )


def _note_advice(connection: Connection, incident: int, unix_ns: int, payload: bytes) -> None:
    """Keep what was said last, whatever the order in which reports arrive."""
    statement = insert_into(connection, recommendations).values(
        incident=incident, unix_ns=unix_ns, payload=payload
    )
    new = statement.excluded
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["incident"],
            set_={"unix_ns": new.unix_ns, "payload": new.payload},
            where=recommendations.c.unix_ns <= new.unix_ns,
        )
    )


def _count(connection: Connection, changed: Iterable[tuple[str, str]]) -> None:
    """Count a suspected job's incidents on a host anew."""
    for host, job in sorted(changed):
        if not job:
            continue
        connection.execute(delete(suspect_jobs).where(suspect_jobs.c.job == job, suspect_jobs.c.host == host))
        mine = (incidents.c.host == host) & (incidents.c.suspect_job == job)
        count, first, last = connection.execute(
            select(
                func.count(), func.min(incidents.c.first_unix_ns), func.max(incidents.c.last_unix_ns)
            ).where(mine)
        ).one()
        if count:
            connection.execute(
                suspect_jobs.insert().values(
                    job=job, host=host, incidents=count, first_unix_ns=first, last_unix_ns=last
                )
            )
