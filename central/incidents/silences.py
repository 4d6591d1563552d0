"""Silences: which incidents are kept quiet, until when, by whom and why. Functions of a connection.

A silence ends by itself, by the clock of the central that asks. All that it names must match. A VM, job or project
matches an incident if its first suspect is of it or all victims are, so that a silence never hides another victim.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from central.incidents.people import TooManyError, audit, log_action, read_audit
from central.incidents.tables import METADATA, ROLE_SUSPECT, ROLE_VICTIM, ROW_ID, incident_vms, incidents, lock
from whitepanda.v1 import fleet_pb2

MATCHERS = ("host", "vm", "job", "project")
MAX_IN_FORCE = 200  # or in the future; each is compared with each open incident every few seconds
_SHOWN = 100
_MOST_VMS = 10_000  # of silences that are kept

silences = sa.Table(
    "silences",
    METADATA,
    sa.Column("id", ROW_ID, primary_key=True),
    sa.Column("key", sa.Text, nullable=False, unique=True),  # of the request, so that a repeated one makes no other
    *(sa.Column(name, sa.Text, nullable=False) for name in MATCHERS),  # "": any
    sa.Column("name", sa.Text, nullable=False),  # of the VM
    sa.Column("start_unix_ns", sa.BigInteger, nullable=False),
    sa.Column("end_unix_ns", sa.BigInteger, nullable=False, index=True),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("created_unix_ns", sa.BigInteger, nullable=False),
    sa.Column("ended_by", sa.Text, nullable=False),  # before its time; "" for nobody
    sqlite_autoincrement=True,  # a number is never used twice
)


class KeyTakenError(Exception):
    """Another silence has the key of the request."""


def create(connection: sa.Connection, values: Mapping[str, Any], *, now_unix_ns: int) -> fleet_pb2.Silence:
    """Make a silence and return it; with the key of one that matches the same, that one is returned.

    `values` are those of the table's columns, except `id`, `created_unix_ns` and `ended_by`. Raises KeyTakenError,
    TooManyError.
    """
    lock(connection)
    s = silences.c
    before = connection.execute(sa.select(silences).where(s.key == values["key"])).first()
    if before is not None:
        if any(getattr(before, name) != values[name] for name in (*MATCHERS, "reason")):
            raise KeyTakenError
        return _message(before, now_unix_ns)
    count = connection.scalar(sa.select(sa.func.count()).where(s.end_unix_ns > now_unix_ns)) or 0
    if count >= MAX_IN_FORCE:
        raise TooManyError(f"{count} silences are in force or will be; end some, or silence a host or job as a whole")
    new = {**values, "created_unix_ns": now_unix_ns, "ended_by": ""}
    made = connection.execute(silences.insert().values(new).returning(*s)).one()
    text = f"{described(made)}: {made.reason}"
    action = fleet_pb2.AUDIT_ACTION_SILENCE
    log_action(connection, action, unix_ns=now_unix_ns, who=made.who, text=text, silence=made.id)
    return _message(made, now_unix_ns)


def end(connection: sa.Connection, number: int, *, who: str, now_unix_ns: int) -> fleet_pb2.Silence | None:
    """End a silence now and return it, as it was if it is over already; None if there is none of this number."""
    lock(connection)
    s = silences.c
    ended = sa.update(silences).where(s.id == number, s.end_unix_ns > now_unix_ns).returning(*s)
    # One that has not begun never does.
    start = sa.case((s.start_unix_ns > now_unix_ns, now_unix_ns), else_=s.start_unix_ns)
    row = connection.execute(ended.values(end_unix_ns=now_unix_ns, start_unix_ns=start, ended_by=who)).first()
    if row is None:
        row = connection.execute(sa.select(silences).where(s.id == number)).first()
        return None if row is None else _message(row, now_unix_ns)
    action = fleet_pb2.AUDIT_ACTION_END_SILENCE
    log_action(connection, action, unix_ns=now_unix_ns, who=who, text=described(row), silence=number)
    return _message(row, now_unix_ns)


def listed(
    connection: sa.Connection,
    *,
    limit: int,
    before_id: int,
    now_unix_ns: int,
    current_only: bool,
    project: str = "",
    vms: Sequence[str] = (),
) -> list[fleet_pb2.Silence]:
    """Return up to `limit` silences with a number below `before_id`, the last one made first.

    `project`: only those of it, or of one of its `vms`.
    """
    s = silences.c
    found = sa.select(silences).where(s.id < before_id).order_by(s.id.desc()).limit(limit)
    if current_only:
        found = found.where(s.end_unix_ns > now_unix_ns)
    if project:
        found = found.where(is_of_project(project, vms))
    return [_message(row, now_unix_ns) for row in connection.execute(found)]


def silenced_vms(connection: sa.Connection) -> list[str]:
    """Return the VMs that silences name, as these have them; of the silences that were made last, if there are many."""
    s = silences.c
    found = sa.select(s.vm).where(s.vm != "").group_by(s.vm).order_by(sa.func.max(s.id).desc()).limit(_MOST_VMS)
    return list(connection.scalars(found))


def is_of_project(project: str, vms: Sequence[str]) -> sa.ColumnElement[bool]:
    """Return the condition that a silence is of a project, or of one of its VMs."""
    return (silences.c.project == project) | silences.c.vm.in_(vms)


def audit_of(
    connection: sa.Connection, *, limit: int, before_id: int, project: str = "", vms: Sequence[str] = ()
) -> list[fleet_pb2.AuditEntry]:
    """Return up to `limit` lines of the audit with a number below `before_id`, the last one first.

    `project`: only lines about incidents that are kept and have a VM of it, and about silences of it or of its `vms`.
    """
    if not project:
        return read_audit(connection, limit=limit, before_id=before_id)
    v = incident_vms.c
    of_incident = sa.exists().where(v.incident == audit.c.incident, v.project == project)
    of_silence = audit.c.silence.in_(sa.select(silences.c.id).where(is_of_project(project, vms)))
    return read_audit(connection, limit=limit, before_id=before_id, mine=of_incident | of_silence)


def prune(connection: sa.Connection, oldest_unix_ns: int) -> int:
    """Delete silences that were over before a time; return how many."""
    return connection.execute(sa.delete(silences).where(silences.c.end_unix_ns < oldest_unix_ns)).rowcount


def is_silenced(now_unix_ns: int) -> sa.ColumnElement[bool]:
    """Return the condition that a silence in force matches an incident."""
    return sa.exists().where(_in_force(now_unix_ns), _matches()).correlate(incidents)


def are_in_force(connection: sa.Connection, now_unix_ns: int) -> bool:
    """Return whether there is any silence in force."""
    return bool(connection.scalar(sa.select(sa.exists().where(_in_force(now_unix_ns)))))


def silenced(connection: sa.Connection, numbers: Sequence[int], now_unix_ns: int) -> dict[int, int]:
    """Return, of these incidents, the silence that keeps each quiet now: the one that ends last."""
    if not numbers:
        return {}
    s, i = silences.c, incidents.c
    found = sa.select(i.id, s.id.label("silence")).join_from(incidents, silences, _matches())
    found = found.where(i.id.in_(numbers), _in_force(now_unix_ns)).order_by(s.end_unix_ns, s.id)
    return {row.id: row.silence for row in connection.execute(found)}


def during(
    connection: sa.Connection, numbers: Sequence[int], since_unix_ns: int, until_unix_ns: int
) -> dict[int, list[fleet_pb2.Silence]]:
    """Return the silences that match each of these incidents and were in force at some time in between, by their end.

    Only the last `_SHOWN` of all are looked at.
    """
    if not numbers:
        return {}
    s, i = silences.c, incidents.c
    overlap = (s.start_unix_ns <= until_unix_ns) & (s.end_unix_ns >= since_unix_ns) & (s.end_unix_ns > s.start_unix_ns)
    found = sa.select(i.id.label("incident"), *s).join_from(incidents, silences, _matches())
    found = found.where(i.id.in_(numbers), overlap).order_by(s.end_unix_ns.desc(), s.id.desc()).limit(_SHOWN)
    of_incident: dict[int, list[fleet_pb2.Silence]] = {}
    for row in connection.execute(found):
        of_incident.setdefault(row.incident, []).insert(0, _message(row, until_unix_ns))
    return of_incident


def described(row: Any) -> str:
    """Return what a silence matches, such as "job scan, host h1"."""
    return ", ".join(f"{name} {value}" for name in MATCHERS if (value := getattr(row, name)))


def _in_force(now_unix_ns: int) -> sa.ColumnElement[bool]:
    s = silences.c
    return (s.start_unix_ns <= now_unix_ns) & (s.end_unix_ns > now_unix_ns)


def _matches() -> sa.ColumnElement[bool]:
    """Return the condition that a row of `silences` matches a row of `incidents`."""
    s, i = silences.c, incidents.c
    suspect, victim = incident_vms.alias().c, incident_vms.alias().c

    def meets(vm: Any) -> sa.ColumnElement[bool]:
        return (
            sa.or_(s.vm == "", vm.vm == s.vm, vm.name == s.vm)
            & sa.or_(s.job == "", vm.job == s.job)
            & sa.or_(s.project == "", vm.project == s.project)
        )

    names_no_vm = (s.vm == "") & (s.job == "") & (s.project == "")
    is_first = (suspect.incident == i.id) & (suspect.role == ROLE_SUSPECT) & (suspect.vm == i.suspect_vm)
    is_victim = (victim.incident == i.id) & (victim.role == ROLE_VICTIM)
    by_suspect = sa.exists().where(is_first, meets(suspect)).correlate(silences, incidents)
    other_victim = sa.exists().where(is_victim, ~meets(victim)).correlate(silences, incidents)
    return sa.or_(s.host == "", s.host == i.host) & sa.or_(names_no_vm, by_suspect, ~other_victim)


def _message(row: Any, now_unix_ns: int) -> fleet_pb2.Silence:
    names = (*MATCHERS, "id", "name", "start_unix_ns", "end_unix_ns", "reason", "created_unix_ns", "ended_by")
    in_force = row.start_unix_ns <= now_unix_ns < row.end_unix_ns
    return fleet_pb2.Silence(by=row.who, in_force=in_force, **{name: getattr(row, name) for name in names})
