"""What else changed around an incident: the host, its agent, and what people did. Functions of a connection.

Each host's agent is kept as it last said Hello, by whichever replica; what differs the next time is a change.
"""

from collections.abc import Sequence

import sqlalchemy as sa

from central.incidents import people, silences
from central.incidents.tables import METADATA, ROW_ID, acknowledgements, incidents, lock, upsert
from central.validation.events import AgentSeen
from whitepanda.v1 import fleet_pb2

MAX_CHANGES = 1000  # of an incident's timeline
MAX_KEPT = 200_000  # of all hosts; the oldest go first
_MARGIN_NS = 600 * 10**9  # before and after an incident

agents = sa.Table(
    "agents",
    METADATA,
    sa.Column("host", sa.Text, primary_key=True),
    sa.Column("boot_id", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("started_unix_ns", sa.BigInteger, nullable=False),  # by the agent's clock; 0: not known
)
host_changes = sa.Table(
    "host_changes",
    METADATA,
    sa.Column("id", ROW_ID, primary_key=True),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("unix_ns", sa.BigInteger, nullable=False, index=True),
    sa.Column("kind", sa.SmallInteger, nullable=False),  # whitepanda.v1.ChangeKind
    sa.Column("text", sa.Text, nullable=False),
    sa.Index("host_changes_by_host", "host", "unix_ns"),
    sqlite_autoincrement=True,  # a number is never used twice
)


def note_agents(connection: sa.Connection, seen: Sequence[AgentSeen]) -> None:
    """Keep agents, and what changed since they were seen last; a host that is new has changed nothing."""
    lock(connection)
    found = connection.execute(sa.select(agents).where(agents.c.host.in_([one.host for one in seen])))
    known = {row.host: row for row in found}
    for one in seen:
        values = {name: getattr(one, name) for name in ("host", "boot_id", "version", "started_unix_ns")}
        before = known.get(one.host)
        if before is not None and all(getattr(before, name) == value for name, value in values.items()):
            continue
        upsert(connection, agents, values)
        if before is not None and (change := _change(before, one)):
            kind, text = change
            # Its own clock may be wrong.
            at = one.started_unix_ns if 0 < one.started_unix_ns <= one.seen_unix_ns else one.seen_unix_ns
            row = {"host": one.host, "unix_ns": at, "kind": kind, "text": text}
            connection.execute(host_changes.insert().values(row))


def _change(before: sa.Row[tuple[object, ...]], now: AgentSeen) -> "tuple[fleet_pb2.ChangeKind, str] | None":
    """Return what has changed: the host's start includes the agent's, an upgrade a restart."""
    versions = "" if before.version == now.version else f", agent {before.version or '?'} -> {now.version or '?'}"
    if before.boot_id and now.boot_id and before.boot_id != now.boot_id:
        return fleet_pb2.CHANGE_KIND_HOST_RESTARTED, f"host {now.host} was started again{versions}"
    if versions:
        return fleet_pb2.CHANGE_KIND_AGENT_UPGRADED, versions.removeprefix(", ")
    if before.started_unix_ns and now.started_unix_ns and before.started_unix_ns != now.started_unix_ns:
        return fleet_pb2.CHANGE_KIND_AGENT_RESTARTED, f"agent {now.version} was started again"
    return None


def prune_old(connection: sa.Connection, oldest_unix_ns: int) -> int:
    """Delete changes, silences and lines of the audit from before a time, and those beyond their bounds."""
    c = host_changes.c
    last_kept = connection.scalar(sa.select(c.id).order_by(c.id.desc()).offset(MAX_KEPT - 1).limit(1)) or 0
    gone = connection.execute(sa.delete(host_changes).where((c.unix_ns < oldest_unix_ns) | (c.id < last_kept)))
    old = (work(connection, oldest_unix_ns) for work in (people.prune_audit, silences.prune))
    return gone.rowcount + sum(old)


def changes_of(connection: sa.Connection, number: int, now_unix_ns: int) -> fleet_pb2.IncidentTimeline | None:
    """Return what changed around an incident, the oldest first; None if there is none of this number."""
    i, c, a = incidents.c, host_changes.c, acknowledgements.c
    row = connection.execute(sa.select(i.host, i.first_unix_ns, i.last_unix_ns).where(i.id == number)).first()
    if row is None:
        return None
    since, until = max(0, row.first_unix_ns - _MARGIN_NS), min(row.last_unix_ns + _MARGIN_NS, now_unix_ns)
    in_time = (c.host == row.host) & (c.unix_ns >= since) & (c.unix_ns <= until)
    newest = sa.select(host_changes).where(in_time).order_by(c.unix_ns.desc(), c.id.desc()).limit(MAX_CHANGES + 1)
    changes = [_message(one.unix_ns, one.kind, one.text) for one in connection.execute(newest)]
    for taken in connection.execute(sa.select(acknowledgements).where(a.incident == number)):
        kind = fleet_pb2.CHANGE_KIND_ACKNOWLEDGED
        changes.append(_message(taken.unix_ns, kind, f"acknowledged by {taken.who}: {taken.reason}"))
    noted = fleet_pb2.CHANGE_KIND_NOTED
    notes = people.notes_of(connection, number)
    changes += [_message(note.unix_ns, noted, f"note of {note.by}: {note.text}") for note in notes]
    for one in silences.during(connection, [number], since, until).get(number, ()):
        about = f"silence {one.id} of {one.by} ({silences.described(one)})"
        silenced = fleet_pb2.CHANGE_KIND_SILENCED
        changes.append(_message(one.start_unix_ns, silenced, f"{about} began: {one.reason}"))
        if one.end_unix_ns <= until:
            by = f", by {one.ended_by}" if one.ended_by else ""
            changes.append(_message(one.end_unix_ns, fleet_pb2.CHANGE_KIND_SILENCE_ENDED, f"{about} ended{by}"))
    changes = sorted((one for one in changes if since <= one.unix_ns <= until), key=lambda one: one.unix_ns)
    return fleet_pb2.IncidentTimeline(
        host=row.host,
        since_unix_ns=since,
        until_unix_ns=until,
        changes=changes[-MAX_CHANGES:],
        changes_left_out=len(changes) > MAX_CHANGES,
    )


def _message(unix_ns: int, kind: "fleet_pb2.ChangeKind", text: str) -> fleet_pb2.IncidentChange:
    return fleet_pb2.IncidentChange(unix_ns=unix_ns, kind=kind, text=text)
