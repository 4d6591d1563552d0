"""The table of facts, in SQLite and PostgreSQL alike: a row is a version, and ends where the next one begins.

Versions may arrive in any order (after an outage the newest come first) and more than once.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from central.facts.records import HostRecord, VmRecord, host_record, vm_record
from central.incidents.tables import lock
from central.validation.facts import FactRow
from whitepanda.v1 import agent_pb2

METADATA = sa.MetaData()
facts = sa.Table(
    "facts",
    METADATA,
    sa.Column("host", sa.Text, primary_key=True),
    sa.Column("vm", sa.Text, primary_key=True),  # UUID; "": of the host itself
    sa.Column("from_unix_ns", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("seen_unix_ns", sa.BigInteger, nullable=False),  # when it was last said to be so
    sa.Column("gone", sa.Boolean, nullable=False),  # the VM left the host
    sa.Column("digest", sa.LargeBinary, nullable=False),  # of all but the time
    sa.Column("payload", sa.LargeBinary, nullable=False),  # whitepanda.v1.VmFacts or HostFacts
    # Lower case, to be searched.
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("project", sa.Text, nullable=False),
    sa.Index("facts_of_vm", "vm", "from_unix_ns"),
    sa.Index("facts_by_seen", "seen_unix_ns"),
)
_c = facts.c
_later = facts.alias("later")
_SHOWN_VERSIONS = 100
_FOUND_AT_MOST = 1000
_PRUNED_AT_ONCE = 500
_SAME_TIME_NS = 1000  # changes with one time are kept this close behind each other
#: Hosts say all facts again every day: a VM that nobody names for this long is not known to be there.
_KNOWN_FOR_NS = 2 * 86_400 * 10**9


def take(connection: sa.Connection, rows: Sequence[FactRow]) -> int:
    """Keep versions that are new, and return how many are."""
    lock(connection)
    return sum(_take(connection, row) for row in rows)


def _take(connection: sa.Connection, row: FactRow) -> int:
    of = (_c.host == row.host) & (_c.vm == row.vm)
    said: Any = (agent_pb2.VmFacts if row.vm else agent_pb2.HostFacts).FromString(row.payload)
    said.unix_ns, said.is_received_time = 0, False
    digest = hashlib.blake2b(said.SerializeToString(deterministic=True), digest_size=16).digest()
    near = sa.select(facts).where(of)
    same_time = _c.from_unix_ns.between(row.unix_ns, row.unix_ns + _SAME_TIME_NS)
    is_known = (_c.digest == digest) & (same_time | (_c.seen_unix_ns == row.unix_ns))
    if connection.execute(near.where(is_known).limit(1)).first() is not None:
        return 0
    # A second change with the same time is later by a nanosecond.
    newest = connection.scalar(sa.select(sa.func.max(_c.from_unix_ns)).where(of, same_time))
    begun = row.unix_ns if newest is None else newest + 1
    before = connection.execute(near.where(_c.from_unix_ns < begun).order_by(_c.from_unix_ns.desc()).limit(1))
    last = before.first()
    if last is not None and last.digest == digest:
        if row.unix_ns > last.seen_unix_ns:
            at = of & (_c.from_unix_ns == last.from_unix_ns)
            connection.execute(facts.update().where(at).values(seen_unix_ns=row.unix_ns))
        return 0
    # It was so again after what comes late.
    again = last if last is not None and last.seen_unix_ns > begun else None
    after = connection.execute(near.where(_c.from_unix_ns > begun).order_by(_c.from_unix_ns).limit(1)).first()
    if after is not None and after.digest == digest and again is None:  # the same began earlier than was known
        at = of & (_c.from_unix_ns == after.from_unix_ns)
        connection.execute(facts.update().where(at).values(from_unix_ns=begun))
        return 0
    is_vm = bool(row.vm)
    texts = {name: getattr(said, name).lower() if is_vm else "" for name in ("name", "job", "project")}
    values = {"host": row.host, "vm": row.vm, "from_unix_ns": begun, "seen_unix_ns": row.unix_ns}
    gone = is_vm and said.gone
    connection.execute(facts.insert().values(**values, **texts, gone=gone, digest=digest, payload=row.payload))
    if again is not None:
        at = of & (_c.from_unix_ns == again.from_unix_ns)
        connection.execute(facts.update().where(at).values(seen_unix_ns=begun))
        since = {"from_unix_ns": again.seen_unix_ns, "seen_unix_ns": again.seen_unix_ns}
        same = dict(zip(_c.keys(), again, strict=True))
        connection.execute(facts.insert().values(**same | since))
    return 1


def vms_at(
    connection: sa.Connection,
    unix_ns: int,
    *,
    vm: str = "",
    host: str = "",
    project: str = "",
    after: tuple[str, str] = ("", ""),
    limit: int = 1000,
) -> list[VmRecord]:
    """Return the VMs that were there at a time, each as it was then, by host and UUID after a place."""
    conditions = [_c.vm == vm] if vm else [_c.vm != ""]
    if host:
        conditions.append(_c.host == host)
    then = [sa.tuple_(_c.host, _c.vm) > sa.tuple_(*after), _c.seen_unix_ns >= unix_ns - _KNOWN_FOR_NS]
    if project:
        then.append(_c.project == project.lower())
    return [vm_record(*row) for row in _at(connection, unix_ns, conditions, then, limit)]


def projects_at(connection: sa.Connection, unix_ns: int, limit: int) -> dict[tuple[str, str], str]:
    """Return the projects of the VMs that were there at a time, by host and UUID; those without one are left out."""
    held = (
        sa.select(_c.host, _c.vm, _c.payload)
        .where(_c.vm != "", _c.project != "", ~_c.gone, _c.from_unix_ns <= unix_ns)
        .where(~_is_followed(_later.c.from_unix_ns <= unix_ns), _c.seen_unix_ns >= unix_ns - _KNOWN_FOR_NS)
        .order_by(_c.from_unix_ns)
    )
    # The column has them in lower case.
    rows = connection.execute(held.limit(limit))
    return {(host, vm): agent_pb2.VmFacts.FromString(payload).project for host, vm, payload in rows}


def vms_of(
    connection: sa.Connection,
    projects: Iterable[str],
    since_unix_ns: int,
    until_unix_ns: int,
    limit: int,
    *,
    hosts: Sequence[str] = (),
    vms: Sequence[str] = (),
) -> list[str]:
    """Return the UUIDs of the VMs that were of one of some projects at some time in [since, until), in order.

    `hosts`: only those that were on one of these then; `vms`: only of these.
    """
    of, held = _c.project.in_([project.lower() for project in projects]), _held_in(since_unix_ns, until_unix_ns)
    found = sa.select(_c.vm).where(_c.vm != "", ~_c.gone, of, held).distinct().order_by(_c.vm)
    for column, wanted in ((_c.host, hosts), (_c.vm, vms)):
        if wanted:
            found = found.where(column.in_(wanted))
    return list(connection.execute(found.limit(limit)).scalars())


def projects_of(
    connection: sa.Connection, vms: Sequence[str], projects: Sequence[str], since_unix_ns: int, until_unix_ns: int
) -> dict[str, str]:
    """Return which of some projects each of some VMs was of in [since, until): the last one, as `projects` names it."""
    names = {project.lower(): project for project in projects}
    held = _held_in(since_unix_ns, until_unix_ns) & ~_c.gone & _c.project.in_(names) & _c.vm.in_(vms)
    last = sa.func.max(_c.from_unix_ns)
    found = sa.select(_c.vm, _c.project).where(held).group_by(_c.vm, _c.project).order_by(last)
    return {row.vm: names[row.project] for row in connection.execute(found)}


def has_project(connection: sa.Connection, project: str, *, vm: str = "", host: str = "", job: str = "") -> bool:
    """Whether a VM is or was of a project: any that agrees with the UUID, the host and the job that are given."""
    mine = [_c.vm == vm] if vm else [_c.vm != ""]
    mine += [_c.host == host] if host else []
    mine += [_c.job == job.lower()] if job else []
    return bool(connection.scalar(sa.select(sa.exists().where(*mine, _c.project == project.lower(), ~_c.gone))))


def of_project(connection: sa.Connection, project: str, vms: Sequence[str]) -> list[str]:
    """Return those of some VMs, each by its UUID or name, that are or were of a project."""
    mine = (_c.project == project.lower()) & ~_c.gone
    uuids, names = (
        set(connection.scalars(sa.select(column).where(mine, column.in_(asked)).distinct()))
        for column, asked in ((_c.vm, vms), (_c.name, [vm.lower() for vm in vms]))
    )
    return [vm for vm in vms if vm in uuids or vm.lower() in names]


def hosts_at(
    connection: sa.Connection, unix_ns: int, *, host: str = "", after: str = "", limit: int = 1000
) -> list[HostRecord]:
    """Return hosts as they were at a time, by name after a place."""
    conditions = [_c.vm == "", *([_c.host == host] if host else [])]
    return [host_record(*row) for row in _at(connection, unix_ns, conditions, [_c.host > after], limit)]


def history(connection: sa.Connection, vm: str) -> list[VmRecord]:
    """Return the last hundred versions of a VM, on whichever host, newest first."""
    until = sa.func.lead(_c.from_unix_ns, 1, 0).over(partition_by=(_c.host, _c.vm), order_by=_c.from_unix_ns)
    versions = (
        sa.select(_c.host, _c.payload, _c.from_unix_ns, until.label("until"), _c.gone).where(_c.vm == vm).subquery()
    )
    shown = sa.select(versions).where(~versions.c.gone).order_by(versions.c.from_unix_ns.desc(), versions.c.host)
    return [vm_record(*row[:4]) for row in connection.execute(shown.limit(_SHOWN_VERSIONS))]


def named(connection: sa.Connection, name: str, limit: int, project: str = "") -> list[str]:
    """Return the UUIDs of VMs, also of gone ones, that have or had a name, in any case.

    `project`: only those that had it as VMs of this one.
    """
    found = sa.select(_c.vm).where(_c.vm != "", ~_c.gone, _c.name == name.lower()).distinct().order_by(_c.vm)
    if project:
        found = found.where(_c.project == project.lower())
    return list(connection.execute(found.limit(limit)).scalars())


def find(connection: sa.Connection, text: str, limit: int, project: str = "") -> list[VmRecord]:
    """Return the last version of VMs, also of gone ones, that a text finds.

    It is in the name, begins the UUID, or is in the job, project or host. Names and UUIDs that equal it come first,
    then those that begin with it, then other names, then jobs, projects and hosts; each the newest first. `project`:
    only VMs of this one.
    """
    wanted = text.lower()
    columns = (_c.vm, _c.name)
    is_named = _c.name.contains(wanted, autoescape=True) | _c.vm.startswith(wanted, autoescape=True)
    has = sa.or_(
        is_named, *(column.contains(wanted, autoescape=True) for column in (_c.job, _c.project, sa.func.lower(_c.host)))
    )
    if project:
        has &= _c.project == project.lower()
    is_equal = sa.or_(*(column == wanted for column in columns))
    begins = sa.or_(*(column.startswith(wanted, autoescape=True) for column in columns))
    rank = sa.case((is_equal, 0), (begins, 1), (is_named, 2), else_=3)
    found = (
        sa.select(_c.host, _c.payload, _c.from_unix_ns, sa.func.coalesce(_ended(), 0))
        .where(_c.vm != "", ~_c.gone, has, ~_is_followed(~_later.c.gone))
        .order_by(rank, _c.from_unix_ns.desc(), _c.host, _c.vm)
    )
    return [vm_record(*row) for row in connection.execute(found.limit(min(limit, _FOUND_AT_MOST)))]


def find_groups(connection: sa.Connection, text: str, limit: int, project: str = "") -> list[tuple[str, str]]:
    """Return jobs and projects, also those whose VMs are all gone, with a text in the name: ("job", name).

    At most `limit` of each, those that equal it first, then those that begin with it, then by name. `project`: only
    those of its VMs.
    """
    wanted = text.lower()
    found: list[tuple[str, str]] = []
    for kind, column in (("job", _c.job), ("project", _c.project)):
        has = [_c.vm != "", ~_c.gone, column.contains(wanted, autoescape=True)]
        if project:
            has.append(_c.project == project.lower())
        names = (
            sa.select(column.label("name"), sa.func.max(_c.from_unix_ns).label("newest"))
            .where(*has)
            .group_by(column)
            .order_by(*_nearest(column, wanted))
            .limit(min(limit, _FOUND_AT_MOST))
            .subquery()
        )
        # The column has it in lower case, the newest version as it is written.
        is_newest = (column == names.c.name) & (_c.from_unix_ns == names.c.newest)
        place = sa.func.row_number().over(partition_by=column, order_by=(_c.host, _c.vm)).label("place")
        versions = sa.select(_c.payload, names.c.name, place).join(names, is_newest).where(*has).subquery()
        last = sa.select(versions.c.payload).where(versions.c.place == 1).order_by(*_nearest(versions.c.name, wanted))
        payloads = connection.scalars(last)
        found += [(kind, getattr(agent_pb2.VmFacts.FromString(payload), kind)) for payload in payloads]
    return found


def _nearest(name: sa.ColumnElement[str], text: str) -> tuple[sa.ColumnElement[Any], ...]:
    """Return the order of names that have a text in them: the equal one, those that begin with it, the others."""
    return sa.case((name == text, 0), (name.startswith(text, autoescape=True), 1), else_=2), name


def prune(connection: sa.Connection, before_unix_ns: int) -> int:
    """Delete versions that were last said before a time, some at once; return how many."""
    old = sa.select(_c.host, _c.vm, _c.from_unix_ns).where(_c.seen_unix_ns < before_unix_ns).limit(_PRUNED_AT_ONCE)
    keys = connection.execute(old).all()
    for host, vm, from_unix_ns in keys:
        at = (_c.host == host) & (_c.vm == vm) & (_c.from_unix_ns == from_unix_ns)
        connection.execute(facts.delete().where(at))
    return len(keys)


def _at(
    connection: sa.Connection,
    unix_ns: int,
    conditions: Iterable[sa.ColumnElement[bool]],
    then: Iterable[sa.ColumnElement[bool]],
    limit: int,
) -> list[tuple[str, bytes, int, int]]:
    """Return (host, payload, from, until) of what held at a time, of VMs and hosts with `conditions`."""
    held = (
        sa.select(_c.host, _c.payload, _c.from_unix_ns, sa.func.coalesce(_ended(), 0))
        .where(*conditions, _c.from_unix_ns <= unix_ns, ~_is_followed(_later.c.from_unix_ns <= unix_ns))
        .where(~_c.gone, *then)
        .order_by(_c.host, _c.vm)
    )
    return [(host, payload, begun, until) for host, payload, begun, until in connection.execute(held.limit(limit))]


def _held_in(since_unix_ns: int, until_unix_ns: int) -> sa.ColumnElement[bool]:
    """The condition that a version held at some time in [since, until)."""
    return (_c.from_unix_ns < until_unix_ns) & (sa.func.coalesce(_ended(), until_unix_ns) > since_unix_ns)


def _after() -> sa.ColumnElement[bool]:
    """The later versions of a row's VM or host."""
    return sa.and_(_later.c.host == _c.host, _later.c.vm == _c.vm, _later.c.from_unix_ns > _c.from_unix_ns)


def _is_followed(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    return sa.exists().where(_after(), condition).correlate(facts)


def _ended() -> sa.ScalarSelect[Any]:
    return sa.select(sa.func.min(_later.c.from_unix_ns)).where(_after()).correlate(facts).scalar_subquery()
