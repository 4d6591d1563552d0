"""Totals of incident history since a time: by host, by suspected job, in all. Functions of a connection."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from central.incidents.people import is_acknowledged
from central.incidents.silences import is_silenced
from central.incidents.tables import ROLE_VICTIM, has_project, incident_vms, incidents, is_open, was_first
from whitepanda.common.protocol import or_nan
from whitepanda.v1 import fleet_pb2

_MAX_QUIET = 1000


@dataclass(frozen=True, slots=True)
class OpenCounts:
    """Open incidents: all; of these those that a silence keeps quiet; of the others those that are acknowledged.

    `quiet_victims` are the VMs (UUIDs) that suffer in silenced and acknowledged ones, not more than a thousand.
    """

    all: int = 0
    silenced: int = 0
    acknowledged: int = 0
    quiet_victims: tuple[str, ...] = ()


def open_counts(connection: sa.Connection, since_unix_ns: int, now_unix_ns: int) -> OpenCounts:
    """Count the open incidents; see `tables.is_open`."""
    i, v = incidents.c, incident_vms.c
    is_quiet, is_taken = is_silenced(now_unix_ns), is_acknowledged()
    found = sa.select(i.id, is_quiet.label("quiet"), is_taken.label("taken")).where(is_open(since_unix_ns))
    rows = connection.execute(found).all()
    quiet = [row.id for row in rows if row.quiet or row.taken][:_MAX_QUIET]
    victims = sa.select(v.vm).where(v.incident.in_(quiet), v.role == ROLE_VICTIM).distinct()
    return OpenCounts(
        all=len(rows),
        silenced=sum(bool(row.quiet) for row in rows),
        acknowledged=sum(bool(row.taken and not row.quiet) for row in rows),
        quiet_victims=tuple(connection.scalars(victims.order_by(v.vm).limit(_MAX_QUIET))) if quiet else (),
    )


def count_open(connection: sa.Connection, since_unix_ns: int, project: str = "") -> int:
    """Return how many incidents, of those with a VM of a project if one is given, are open; see `tables.is_open`."""
    mine = has_project(project) if project else sa.true()
    count = sa.select(sa.func.count()).select_from(incidents).where(is_open(since_unix_ns), mine)
    return int(connection.scalar(count) or 0)


def whole_sum(column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """Return a sum as a whole number, also in PostgreSQL, whose sums are decimal numbers."""
    return sa.cast(sa.func.sum(column), sa.BigInteger)


def read_totals(
    connection: sa.Connection, since_unix_ns: int, open_since_unix_ns: int, top: int, project: str = ""
) -> fleet_pb2.Overview:
    """Count the incidents whose last report is at `since_unix_ns` or later, and the VMs that suffer now.

    Nothing else of the overview is filled in. A project's VMs that suffer are not counted.

    All open incidents (`tables.is_open`) count as open, even if `since_unix_ns` is later. `top`: rows of each list.
    `project`: only incidents with a VM of it.
    """
    i, v = incidents.c, incident_vms.c
    mine = has_project(project) if project else sa.true()
    recent = (i.last_unix_ns >= since_unix_ns) & mine
    open_ones = sa.case((is_open(open_since_unix_ns), 1), else_=0)
    number, reports, last = sa.func.count(), whole_sum(i.reports), sa.func.max(i.last_unix_ns)
    counts = {"incidents": number, "open_incidents": whole_sum(open_ones), "reports": reports}
    counts |= {"peak_mn_cpi": sa.func.max(i.peak_mn_cpi), "last_unix_ns": last}
    hosts = sa.func.count(sa.distinct(i.host))
    incidents_in_all, contended_hosts = connection.execute(sa.select(number, hosts).where(recent)).one()
    # Columns have the names of the messages' fields.
    by_host = (
        sa.select(i.host, *(column.label(name) for name, column in counts.items()))
        .where(recent)
        .group_by(i.host)
        .order_by(reports.desc(), i.host)
        .limit(top)
    )
    in_all = sa.func.count(sa.distinct(i.id))
    by_job = (
        sa.select(v.job, in_all.label("incidents"), hosts.label("hosts"), last.label("last_unix_ns"))
        .select_from(incidents)
        .join(incident_vms, v.incident == i.id)
        .where(recent, was_first())
        .group_by(v.job)
        .order_by(in_all.desc(), v.job)
        .limit(top)
    )
    suffering = sa.select(whole_sum(i.victims_now)).where(is_open(open_since_unix_ns))
    return fleet_pb2.Overview(
        suffering_in_all=0 if project else connection.scalar(suffering) or 0,
        incidents=incidents_in_all,
        open_incidents=count_open(connection, open_since_unix_ns, project),
        contended_hosts=contended_hosts,
        contended=[
            fleet_pb2.HostContention(**{**row, "peak_mn_cpi": or_nan(row["peak_mn_cpi"])})
            for row in connection.execute(by_host).mappings()
        ],
        antagonists=[fleet_pb2.Antagonist(**row) for row in connection.execute(by_job).mappings()],
    )
