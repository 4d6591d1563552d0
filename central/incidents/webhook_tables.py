"""Webhook notices that wait, kept in incident history's database: they survive a kill, and replicas share them.

Each receiver (a URL) has notices, sent in their order, and a list of the incidents that it was sent as ongoing. Of
several replicas with one database, the holder of the receiver's lease makes and sends them.
"""

from typing import Any

import sqlalchemy as sa

from central.incidents import silences, webhook_messages
from central.incidents.messages import incident_messages
from central.incidents.people import is_acknowledged
from central.incidents.tables import METADATA, ROW_ID, incidents, is_open, upsert

_AT_ONCE = 200  # incidents in one transaction

receivers = sa.Table(
    "webhook_receivers",
    METADATA,
    sa.Column("receiver", sa.Text, primary_key=True),  # a digest of its URL, which may hold a secret
    sa.Column("holder", sa.Text, nullable=False),  # the replica that sends to it
    sa.Column("until_unix_ns", sa.BigInteger, nullable=False),  # by the database's clock, if it has one
)
notices = sa.Table(
    "webhook_notices",
    METADATA,
    sa.Column("id", ROW_ID, primary_key=True),
    sa.Column("receiver", sa.Text, nullable=False),
    sa.Column("created_unix_ns", sa.BigInteger, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Index("webhook_notices_by_receiver", "receiver", "id"),
    sqlite_autoincrement=True,  # a number is never used twice
)
#: Incidents that the receiver knows as ongoing, or will by a notice that waits.
sent = sa.Table(
    "webhook_told",
    METADATA,
    sa.Column("receiver", sa.Text, primary_key=True),
    sa.Column("incident", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("suspect_vm", sa.Text, nullable=False),  # the suspect in the message; "" for none
    sa.Column("is_silenced", sa.Boolean, nullable=False),  # a silence has matched it since the message
)


def claim(connection: sa.Connection, receiver: str, holder: str, *, lease_ns: int, now_unix_ns: int) -> bool:
    """Take or renew a receiver's lease, at most once per half of its length; return whether `holder` has it."""
    now_unix_ns = _now(connection, now_unix_ns)
    r = receivers.c
    row = connection.execute(sa.select(receivers).where(r.receiver == receiver)).first()
    if row is not None and row.holder == holder and row.until_unix_ns - now_unix_ns > lease_ns // 2:
        return True
    values = {"receiver": receiver, "holder": holder, "until_unix_ns": now_unix_ns + lease_ns}
    return upsert(connection, receivers, values, (r.holder == holder) | (r.until_unix_ns < now_unix_ns))


def _now(connection: sa.Connection, now_unix_ns: int) -> int:
    """Return the time of leases: PostgreSQL's, as replicas have different clocks."""
    if connection.dialect.name != "postgresql":
        return now_unix_ns
    found = connection.scalar(sa.text("SELECT (extract(epoch FROM clock_timestamp()) * 1e9)::bigint"))
    return int(found or 0)


def change(
    connection: sa.Connection,
    receiver: str,
    *,
    open_since_unix_ns: int,
    now_unix_ns: int,
    incident_url: str,
    max_waiting: int,
) -> int:
    """Make a receiver's notices of incidents that have begun or ended since the last ones, in the caller's transaction.

    The caller holds the receiver's lease. An incident is sent while it is open (`tables.is_open`), and again once it
    has a suspect, or once a silence is over. One that is silenced or acknowledged is not sent. Its end is
    sent once its last report is older than `open_since_unix_ns`, not as soon as the host reports it: the VMs may suffer
    again within the gap. That is sent also while it is silenced, as it pages nobody and closes what the receiver has
    open. Returns how many notices beyond `max_waiting`, the oldest ones, were dropped.
    """
    mine = sent.c.receiver == receiver
    i = incidents.c
    is_new = sent.c.incident.is_(None)
    has_suspect_now = (sent.c.suspect_vm == "") & (i.suspect_vm != "")
    is_quiet = silences.is_silenced(now_unix_ns)
    quiet_ones = sa.select(i.id).where(is_open(open_since_unix_ns), is_quiet)
    if silences.are_in_force(connection, now_unix_ns):
        newly_quiet = sa.update(sent).where(mine, ~sent.c.is_silenced, sent.c.incident.in_(quiet_ones))
        connection.execute(newly_quiet.values(is_silenced=True))
    begun = connection.execute(
        sa.select(incidents, sent.c.message.label("before"))
        .outerjoin(sent, mine & (sent.c.incident == i.id))
        .where(is_open(open_since_unix_ns), is_new | has_suspect_now | sent.c.is_silenced)
        .where(~is_quiet, ~is_acknowledged())
        .order_by(i.first_unix_ns, i.id)
        .limit(_AT_ONCE)
    ).all()
    over = connection.execute(
        sa.select(sent.c.incident, sent.c.message, i.id)
        .outerjoin(incidents, i.id == sent.c.incident)
        .where(mine, i.id.is_(None) | (i.last_unix_ns < open_since_unix_ns))
        .order_by(sent.c.incident)
        .limit(_AT_ONCE)
    ).all()
    if not begun and not over:
        return 0
    ended = connection.execute(sa.select(incidents).where(i.id.in_([row.incident for row in over]))).all()
    known = {one.id: one for one in incident_messages(connection, [*ended, *begun])}
    first = min((row.first_unix_ns for row in begun), default=0)
    past = silences.during(connection, [row.id for row in begun], first, now_unix_ns)
    new = []
    for row in over:
        incident = known.get(row.incident)
        new.append(webhook_messages.resolved(incident, row.message, incident_url, ended_unix_ns=now_unix_ns))
        connection.execute(sa.delete(sent).where(mine, sent.c.incident == row.incident))
    for row in begun:
        was = [one for one in past.get(row.id, ()) if one.end_unix_ns > row.first_unix_ns]
        last = was[-1] if was else None
        new.append(webhook_messages.firing(known[row.id], incident_url, row.before or "", silence=last))
        values = {"receiver": receiver, "incident": row.id, "message": new[-1], "suspect_vm": row.suspect_vm}
        upsert(connection, sent, values | {"is_silenced": False})
    rows = [{"receiver": receiver, "created_unix_ns": now_unix_ns, "message": message} for message in new]
    connection.execute(notices.insert(), rows)
    waiting_here = notices.c.receiver == receiver
    newest = sa.select(notices.c.id).where(waiting_here).order_by(notices.c.id.desc())
    last_kept = connection.scalar(newest.offset(max_waiting - 1).limit(1)) or 0
    return connection.execute(sa.delete(notices).where(waiting_here, notices.c.id < last_kept)).rowcount


def waiting(connection: sa.Connection, receiver: str) -> tuple[int, int, sa.Row[Any] | None]:
    """Return how many notices wait for a receiver, since when the oldest does (0: none), and the next one."""
    n, mine = notices.c, notices.c.receiver == receiver
    count, oldest = connection.execute(sa.select(sa.func.count(), sa.func.min(n.created_unix_ns)).where(mine)).one()
    following = sa.select(notices).where(mine).order_by(n.id).limit(1)
    return int(count), int(oldest or 0), connection.execute(following).first() if count else None


def forget(connection: sa.Connection, notice: int) -> None:
    """Delete a notice that was sent or is given up."""
    connection.execute(sa.delete(notices).where(notices.c.id == notice))


def forget_receivers(connection: sa.Connection, *, unclaimed_for_ns: int, now_unix_ns: int) -> int:
    """Delete receivers that no central has claimed for so long; return how many."""
    before = _now(connection, now_unix_ns) - unclaimed_for_ns
    gone = sa.select(receivers.c.receiver).where(receivers.c.until_unix_ns < before)
    names = list(connection.scalars(gone))
    for table in (notices, sent, receivers):
        connection.execute(sa.delete(table).where(table.c.receiver.in_(names)))
    return len(names)
