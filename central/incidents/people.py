"""What people do about incidents: acknowledge them, write notes; and the audit of all of it. Functions of a connection.

Each change and its line in the audit are one transaction. Replicas make them one after the other, and a repeated
request changes nothing and adds no line.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from central.incidents.tables import METADATA, ROW_ID, acknowledgements, incidents, insert_into, lock, notes
from whitepanda.v1 import fleet_pb2

MAX_NOTES = 100  # of an incident
MAX_AUDIT = 100_000  # lines; the oldest go first

audit = sa.Table(
    "audit",
    METADATA,
    sa.Column("id", ROW_ID, primary_key=True),
    sa.Column("unix_ns", sa.BigInteger, nullable=False),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("action", sa.SmallInteger, nullable=False),  # whitepanda.v1.AuditAction
    sa.Column("incident", sa.BigInteger, nullable=False),  # 0: a silence's
    sa.Column("silence", sa.BigInteger, nullable=False),  # 0: an incident's
    sa.Column("text", sa.Text, nullable=False),
    sa.Index("audit_by_time", "unix_ns"),
    sqlite_autoincrement=True,  # a number is never used twice
)


class TooManyError(Exception):
    """There are as many as are kept; one line says what to do."""


def log_action(
    connection: sa.Connection, action: "fleet_pb2.AuditAction", *, unix_ns: int, who: str, text: str, **about: int
) -> None:
    """Add a line to the audit; `about` is `incident` or `silence`, a number."""
    values = {"incident": 0, "silence": 0, **about, "unix_ns": unix_ns, "who": who, "action": action, "text": text}
    connection.execute(audit.insert().values(values))


def acknowledge(connection: sa.Connection, incident: int, *, who: str, reason: str, unix_ns: int) -> bool:
    """Note who has taken an incident on; the first one stays. Returns whether there is such an incident."""
    lock(connection)
    if not _is_there(connection, incident):
        return False
    values = {"incident": incident, "unix_ns": unix_ns, "who": who, "reason": reason}
    new = insert_into(connection, acknowledgements).values(values).on_conflict_do_nothing()
    if connection.execute(new.returning(acknowledgements.c.incident)).first() is not None:
        action = fleet_pb2.AUDIT_ACTION_ACKNOWLEDGE
        log_action(connection, action, unix_ns=unix_ns, who=who, text=reason, incident=incident)
    return True


def add_note(
    connection: sa.Connection, incident: int, *, who: str, text: str, key: str, unix_ns: int
) -> fleet_pb2.IncidentNote | None:
    """Add a note to an incident and return it; None if there is no such incident.

    With the key of an earlier note that one is returned and nothing is added. Raises TooManyError.
    """
    lock(connection)
    before = connection.execute(sa.select(notes).where(notes.c.key == key)).first()
    if before is not None:
        return _note(before)
    if not _is_there(connection, incident):
        return None
    count = connection.scalar(sa.select(sa.func.count()).where(notes.c.incident == incident)) or 0
    if count >= MAX_NOTES:
        raise TooManyError(f"incident {incident} has {count} notes, and more are not kept; write elsewhere")
    values = {"incident": incident, "unix_ns": unix_ns, "who": who, "text": text, "key": key}
    made = connection.execute(notes.insert().values(values).returning(*notes.c)).one()
    log_action(connection, fleet_pb2.AUDIT_ACTION_NOTE, unix_ns=unix_ns, who=who, text=text, incident=incident)
    return _note(made)


def notes_of(connection: sa.Connection, incident: int) -> list[fleet_pb2.IncidentNote]:
    """Return an incident's notes, oldest first."""
    mine = sa.select(notes).where(notes.c.incident == incident).order_by(notes.c.unix_ns, notes.c.id)
    return [_note(row) for row in connection.execute(mine)]


def read_audit(
    connection: sa.Connection, *, limit: int, before_id: int, mine: sa.ColumnElement[bool] | None = None
) -> list[fleet_pb2.AuditEntry]:
    """Return up to `limit` lines of the audit with a number below `before_id`, the last one first.

    `mine`: only lines that meet this condition.
    """
    found = sa.select(audit).where(audit.c.id < before_id).order_by(audit.c.id.desc()).limit(limit)
    if mine is not None:
        found = found.where(mine)
    names = ("id", "unix_ns", "action", "incident", "silence", "text")
    return [
        fleet_pb2.AuditEntry(by=row.who, **{name: getattr(row, name) for name in names})
        for row in connection.execute(found)
    ]


def prune_audit(connection: sa.Connection, oldest_unix_ns: int) -> int:
    """Delete lines that are older than this, and the oldest beyond `MAX_AUDIT`; return how many."""
    newest = sa.select(audit.c.id).order_by(audit.c.id.desc())
    last_kept = connection.scalar(newest.offset(MAX_AUDIT - 1).limit(1)) or 0
    gone = (audit.c.unix_ns < oldest_unix_ns) | (audit.c.id < last_kept)
    return connection.execute(sa.delete(audit).where(gone)).rowcount


def acknowledged(connection: sa.Connection, numbers: Sequence[int]) -> dict[int, sa.Row[Any]]:
    """Return the acknowledgements of these incidents, by incident."""
    mine = sa.select(acknowledgements).where(acknowledgements.c.incident.in_(numbers))
    return {row.incident: row for row in connection.execute(mine)} if numbers else {}


def is_acknowledged() -> sa.ColumnElement[bool]:
    """Return the condition that somebody has acknowledged an incident."""
    return sa.exists().where(acknowledgements.c.incident == incidents.c.id).correlate(incidents)


def _is_there(connection: sa.Connection, incident: int) -> bool:
    return connection.scalar(sa.select(incidents.c.id).where(incidents.c.id == incident)) is not None


def _note(row: sa.Row[Any]) -> fleet_pb2.IncidentNote:
    return fleet_pb2.IncidentNote(unix_ns=row.unix_ns, by=row.who, text=row.text)
