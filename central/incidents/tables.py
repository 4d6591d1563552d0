"""The tables of incident history, in SQLite and PostgreSQL alike; `central.incidents.grouping` fills them."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

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
    sa.Column("first_unix_ns", sa.BigInteger, nullable=False),  # of the first report that names it
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

_LOCK = 0x77686974  # of PostgreSQL's advisory locks: replicas group one after the other


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
