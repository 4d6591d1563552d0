"""Totals of incident history since a time: by host, by suspected job, in all. Functions of a connection."""

from dataclasses import dataclass

import sqlalchemy as sa

from central.incidents.tables import incident_vms, incidents, is_open, was_first
from whitepanda.common.protocol import or_nan
from whitepanda.v1 import fleet_pb2


@dataclass(frozen=True, slots=True)
class IncidentTotals:
    """What happened since a time.

    `contended` are hosts, the most reports first; `antagonists` jobs, suspected first in the most incidents first.
    Coefficients are not filled in.
    """

    incidents: int
    open_incidents: int
    contended_hosts: int
    contended: list[fleet_pb2.HostContention]
    antagonists: list[fleet_pb2.Antagonist]


def count_open(connection: sa.Connection, since_unix_ns: int) -> int:
    """Return how many incidents are open; see `tables.is_open`."""
    count = sa.select(sa.func.count()).where(is_open(since_unix_ns))
    return int(connection.scalar(count) or 0)


def read_totals(connection: sa.Connection, since_unix_ns: int, open_since_unix_ns: int, top: int) -> IncidentTotals:
    """Count the incidents that were not over before a time.

    Args:
        connection: SQLite or PostgreSQL.
        since_unix_ns: of incidents' last reports.
        open_since_unix_ns: see `tables.is_open`; all of them count, also where `since_unix_ns` is later.
        top: rows of each list.
    """
    i, v = incidents.c, incident_vms.c
    recent = i.last_unix_ns >= since_unix_ns
    open_ones = sa.case((is_open(open_since_unix_ns), 1), else_=0)
    number, still_open = sa.func.count(), sa.func.coalesce(sa.func.sum(open_ones), 0)
    total, hosts = connection.execute(sa.select(number, sa.func.count(sa.distinct(i.host))).where(recent)).one()
    reports = sa.func.sum(i.reports)
    by_host = (
        sa.select(
            i.host,
            number.label("incidents"),
            still_open.label("open_incidents"),
            reports.label("reports"),
            sa.func.max(i.peak_mn_cpi).label("peak_mn_cpi"),
            sa.func.max(i.last_unix_ns).label("last_unix_ns"),
        )
        .where(recent)
        .group_by(i.host)
        .order_by(reports.desc(), i.host)
        .limit(top)
    )
    in_all = sa.func.count(sa.distinct(i.id))
    by_job = (
        sa.select(
            v.job,
            in_all.label("incidents"),
            sa.func.count(sa.distinct(i.host)).label("hosts"),
            sa.func.max(i.last_unix_ns).label("last_unix_ns"),
        )
        .select_from(incidents)
        .join(incident_vms, v.incident == i.id)
        .where(recent, was_first())
        .group_by(v.job)
        .order_by(in_all.desc(), v.job)
        .limit(top)
    )
    return IncidentTotals(
        int(total),
        count_open(connection, open_since_unix_ns),
        int(hosts),
        [
            fleet_pb2.HostContention(
                host=row.host,
                incidents=int(row.incidents),
                open_incidents=int(row.open_incidents),
                reports=int(row.reports),
                peak_mn_cpi=or_nan(row.peak_mn_cpi),
                last_unix_ns=row.last_unix_ns,
            )
            for row in connection.execute(by_host)
        ],
        [
            fleet_pb2.Antagonist(
                job=row.job, incidents=int(row.incidents), hosts=int(row.hosts), last_unix_ns=row.last_unix_ns
            )
            for row in connection.execute(by_job)
        ],
    )
