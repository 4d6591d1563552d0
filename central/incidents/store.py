"""Incident history: SQLite in central's folder, or PostgreSQL by URL, which several replicas may share.

All methods block and may be called from any thread; those that write wait for each other.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from central.incidents import changes, grouping, people, silences, tables
from central.incidents.messages import incident_messages, suffering
from central.incidents.tables import METADATA
from central.incidents.totals import count_open, open_counts, read_totals, whole_sum
from whitepanda.common.errors import UnavailableError
from whitepanda.v1 import agent_pb2, fleet_pb2

SCHEMA_VERSION = "3"
_SHOWN_REPORTS = 100
_MANY = 2000
_MAX_INT64 = 2**63 - 1
_CONNECT_TIMEOUT_S = 5
_STATEMENT_TIMEOUT_MS = 10_000
_SILENCE_TIMEOUT_S = 30

#: Where a page of incidents begins: after this (first_unix_ns, id).
Place = tuple[int, int]

Answer = TypeVar("Answer")
P = ParamSpec("P")


class StoreError(Exception):
    """Incident history does not answer now; one line says why."""


@dataclass(frozen=True, slots=True)
class IncidentQuery:
    """Which incidents, "" and 0 mean all; fields as in `whitepanda.v1.ListIncidentsRequest`.

    With both `vm` and `project` it is that VM that was of the project.
    """

    number: int = 0  # only this one
    host: str = ""
    suspect_job: str = ""
    victim_job: str = ""
    vm: str = ""
    project: str = ""
    since_unix_ns: int = 0
    until_unix_ns: int = 0
    open_since_unix_ns: int = 0  # only open ones, see `tables.is_open`


def _find(
    connection: sa.Connection, query: IncidentQuery, *, limit: int, after: Place | None = None
) -> list[fleet_pb2.Incident]:
    """Return up to `limit` incidents after a place, the newest first."""
    i, v = tables.incidents.c, tables.incident_vms.c
    conditions = []
    if query.number:
        conditions.append(i.id == query.number)
    if query.host:
        conditions.append(i.host == query.host)
    with_vms = (
        (query.suspect_job, (v.job == query.suspect_job) & tables.was_first()),
        (query.victim_job, (v.job == query.victim_job) & (v.role == tables.ROLE_VICTIM)),
        (query.project if not query.vm else "", v.project == query.project),
    )
    if query.vm:
        of = v.project == query.project if query.project else sa.true()
        by_uuid, by_name = (sa.select(v.incident).where(column == query.vm, of) for column in (v.vm, v.name))
        conditions.append(i.id.in_(sa.union_all(by_uuid, by_name)))
    conditions += [_has(connection, condition) for name, condition in with_vms if name]
    if query.open_since_unix_ns:
        conditions.append(tables.is_open(query.open_since_unix_ns))
    if query.until_unix_ns:
        conditions.append(i.first_unix_ns < min(query.until_unix_ns, _MAX_INT64))
    if query.since_unix_ns:
        # A lower bound of the beginning too, so that no index is read to its end.
        since = min(query.since_unix_ns, _MAX_INT64)
        begun = connection.scalar(sa.select(sa.func.min(i.first_unix_ns)).where(i.last_unix_ns >= since))
        if begun is None:
            return []
        conditions += [i.last_unix_ns >= since, i.first_unix_ns >= begun]
    if after is not None:
        conditions.append(sa.tuple_(i.first_unix_ns, i.id) < sa.tuple_(*after))
    found = sa.select(tables.incidents).where(*conditions).order_by(i.first_unix_ns.desc(), i.id.desc())
    return incident_messages(connection, connection.execute(found.limit(limit)).all())


def _has(connection: sa.Connection, mine: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Return the condition that an incident has such a VM of a job.

    Rare jobs are found by their list of VMs, frequent ones sooner by going through the incidents.
    """
    v = tables.incident_vms.c
    some = sa.select(v.incident).where(mine).limit(_MANY).subquery()
    if (connection.scalar(sa.select(sa.func.count()).select_from(some)) or 0) < _MANY:
        return tables.incidents.c.id.in_(sa.select(v.incident).where(mine))
    return sa.exists().where(mine, v.incident == tables.incidents.c.id)


def _open_now(
    connection: sa.Connection, since_unix_ns: int, *, limit: int, project: str = ""
) -> list[fleet_pb2.Incident]:
    """Return up to `limit` incidents that are open (`tables.is_open`), the slowest victim now first.

    `project`: only those with a VM of it.
    """
    i = tables.incidents.c
    worst = (i.slow_down_now.is_(None), i.slow_down_now.desc(), i.peak_mn_cpi.is_(None), i.peak_mn_cpi.desc(), i.id)
    conditions = [tables.is_open(since_unix_ns), *([tables.has_project(project)] if project else [])]
    statement = sa.select(tables.incidents).where(*conditions).order_by(*worst).limit(limit)
    return incident_messages(connection, connection.execute(statement).all())


def _get(connection: sa.Connection, number: int) -> fleet_pb2.IncidentDetail | None:
    """Return an incident with its last reports; None if there is none of this number."""
    advice, r = tables.recommendations.c, tables.reports.c
    row = connection.execute(sa.select(tables.incidents).where(tables.incidents.c.id == number)).first()
    if row is None:
        return None
    (incident,) = incident_messages(connection, [row])
    last = connection.scalar(sa.select(advice.payload).where(advice.incident == number))
    if last is not None and row.victims_now:  # advice ends with the incident
        incident.recommendations.extend(agent_pb2.Trigger.FromString(last).recommendations)
    newest = sa.select(r.payload).where(r.incident == number).order_by(r.unix_ns.desc()).limit(_SHOWN_REPORTS)
    payloads = connection.scalars(newest).all()
    reports = [agent_pb2.Trigger.FromString(payload) for payload in reversed(payloads)]
    detail = fleet_pb2.IncidentDetail(incident=incident, reports=reports, notes=people.notes_of(connection, number))
    for found in _suspect_jobs(connection, limit=1, job=incident.suspect_job) if incident.suspect_job else ():
        detail.recurrence.CopyFrom(found)
    return detail


def _names(connection: sa.Connection, vms: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return what VMs (UUIDs) were called in incidents, by host, without VMs that have no name there."""
    v, i = tables.incident_vms.c, tables.incidents.c
    named = (
        sa.select(v.vm, i.host, sa.func.max(v.name).label("name"))
        .join_from(tables.incident_vms, tables.incidents, v.incident == i.id)
        .where(v.vm.in_(vms), v.name != "")
        .group_by(v.vm, i.host)
    )
    found: dict[str, dict[str, str]] = {}
    for row in connection.execute(named):
        found.setdefault(row.vm, {})[row.host] = row.name
    return found


def _suspect_jobs(
    connection: sa.Connection, *, limit: int, after: str = "", job: str = ""
) -> list[fleet_pb2.SuspectJob]:
    """Return jobs by name, each with how often it was suspected first and on how many hosts."""
    j = tables.suspect_jobs.c
    # Columns have the names of the message's fields.
    found = sa.select(
        j.job,
        sa.func.count().label("hosts"),
        whole_sum(j.incidents).label("incidents"),
        sa.func.min(j.first_unix_ns).label("first_unix_ns"),
        sa.func.max(j.last_unix_ns).label("last_unix_ns"),
    )
    found = found.where(j.job > after, *([j.job == job] if job else [])).group_by(j.job).order_by(j.job).limit(limit)
    return [fleet_pb2.SuspectJob(**row) for row in connection.execute(found).mappings()]


def _reads(
    question: Callable[Concatenate[sa.Connection, P], Answer],
) -> Callable[Concatenate["IncidentStore", P], Answer]:
    """Make a method of a question that reads."""

    @functools.wraps(question)
    def method(self: "IncidentStore", /, *values: P.args, **named: P.kwargs) -> Answer:
        return self.read(lambda connection: question(connection, *values, **named))

    return method


def _writes(work: Callable[Concatenate[sa.Connection, P], Answer]) -> Callable[Concatenate["IncidentStore", P], Answer]:
    """Make a method of work in one transaction."""

    @functools.wraps(work)
    def method(self: "IncidentStore", /, *values: P.args, **named: P.kwargs) -> Answer:
        return self.write(lambda connection: work(connection, *values, **named))

    return method


class IncidentStore:
    """Incidents, their reports and how often a job was suspected.

    Every method raises StoreError if the database does not answer; then nothing was written. `url` is
    `postgresql://user:password@host/database`, or "" for SQLite in `folder`, as `incidents.sqlite`. Raises
    UnavailableError if it cannot be opened, with the remedy and never the password.
    """

    find = _reads(_find)
    open_now = _reads(_open_now)
    suffering = _reads(suffering)
    get = _reads(_get)
    names = _reads(_names)
    count_open = _reads(count_open)
    open_counts = _reads(open_counts)
    suspect_jobs = _reads(_suspect_jobs)
    totals = _reads(read_totals)
    silenced = _reads(silences.silenced)
    list_silences = _reads(silences.listed)
    silenced_vms = _reads(silences.silenced_vms)
    audit = _reads(silences.audit_of)
    changes_of = _reads(changes.changes_of)
    take = _writes(grouping.take)
    prune = _writes(grouping.prune)
    prune_old = _writes(changes.prune_old)
    note_agents = _writes(changes.note_agents)
    acknowledge = _writes(people.acknowledge)
    add_note = _writes(people.add_note)
    create_silence = _writes(silences.create)
    end_silence = _writes(silences.end)

    def __init__(self, url: str, folder: Path) -> None:
        self._writing = threading.Lock()  # SQLite has one writer and refuses others
        self._engine = _sqlite(folder / "incidents.sqlite") if not url else _postgresql(url)
        self.name = self._engine.url.render_as_string(hide_password=True)
        with contextlib.ExitStack() as unless_opened:
            unless_opened.callback(self.close)
            try:
                with self._engine.begin() as connection:
                    self._prepare(connection)
            except SQLAlchemyError as error:
                raise UnavailableError(
                    f"incident history {self.name} cannot be used: {_line(error)}; is incidents.url right, does the "
                    "database exist, and may its user create tables?"
                ) from error
            unless_opened.pop_all()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def read(self, question: Callable[[sa.Connection], Answer]) -> Answer:
        """Ask something."""
        try:
            with self._engine.connect() as connection:
                return question(connection)
        except SQLAlchemyError as error:
            raise StoreError(_line(error)) from error

    def prepare(self, metadata: sa.MetaData) -> None:
        """Make the tables of another room that keeps them in this database, where they are missing."""
        self.write(functools.partial(_make_tables, metadata))

    def write(self, work: Callable[[sa.Connection], Answer]) -> Answer:
        """Do some work in one transaction."""
        try:
            with self._writing, self._engine.begin() as connection:
                return work(connection)
        except SQLAlchemyError as error:
            raise StoreError(_line(error)) from error

    def _prepare(self, connection: sa.Connection) -> None:
        """Make missing tables, and check whose version they are."""
        _make_tables(METADATA, connection)
        schema = connection.scalar(sa.select(tables.meta.c.value).where(tables.meta.c.key == "schema"))
        if schema is None:
            connection.execute(tables.meta.insert().values(key="schema", value=SCHEMA_VERSION))
        elif schema != SCHEMA_VERSION:
            raise UnavailableError(
                f"incident history {self.name} has schema {schema}, this central knows {SCHEMA_VERSION}: run the "
                "version of whitepanda that made it"
            )


def _make_tables(metadata: sa.MetaData, connection: sa.Connection) -> None:
    """Make missing tables; replicas that start together do it one after the other."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": 0x77686975})
    metadata.create_all(connection)


def _sqlite(path: Path) -> sa.Engine:
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)), connect_args={"timeout": 10.0})

    @sa.event.listens_for(engine, "connect")
    def _(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        # FULL: the journal forgets a report once it is here.
        connection.execute("PRAGMA synchronous=FULL")

    return engine


def _postgresql(url: str) -> sa.Engine:
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError) as error:  # the latter: a port that is not a number
        raise UnavailableError("incidents.url is not a URL; write postgresql://user:password@host/database") from error
    if parsed.get_backend_name() != "postgresql":
        raise UnavailableError(
            f"incidents.url must begin with postgresql:// (value begins with {parsed.drivername!r}); leave it empty "
            "for SQLite"
        )
    options = {
        "connect_timeout": _CONNECT_TIMEOUT_S,
        # How long a server that is gone without a word can hold a thread.
        "tcp_user_timeout": _SILENCE_TIMEOUT_S * 1000,
        "keepalives_idle": _SILENCE_TIMEOUT_S // 2,
        "keepalives_interval": _SILENCE_TIMEOUT_S // 6,
        "keepalives_count": 3,
        "application_name": "whitepanda-central",
        "options": f"-c statement_timeout={_STATEMENT_TIMEOUT_MS}",
    }
    # pool_pre_ping: a connection that the server has closed is noticed before it is used.
    return sa.create_engine(
        parsed.set(drivername="postgresql+psycopg"),
        connect_args={key: value for key, value in options.items() if key not in parsed.query},
        pool_pre_ping=True,
        pool_size=4,
    )


def _line(error: SQLAlchemyError) -> str:
    """Return the driver's message as one line, without the statement."""
    cause = getattr(error, "orig", None) or error
    return " ".join(str(cause).split())[:300] or type(cause).__name__
