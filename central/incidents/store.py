"""Incident history: SQLite in central's folder, or PostgreSQL by URL, which several replicas may share.

All methods block and may be called from any thread; those that write wait for each other.
"""

import contextlib
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from central.incidents import tables
from central.incidents.tables import METADATA
from central.incidents.totals import IncidentTotals, count_open, read_totals
from central.validation.triggers import TriggerRow
from whitepanda.common.errors import UnavailableError
from whitepanda.common.protocol import or_nan
from whitepanda.v1 import agent_pb2, fleet_pb2

SCHEMA_VERSION = "1"
_SHOWN_REPORTS = 100
_MANY = 2000
_MAX_INT64 = 2**63 - 1
_CONNECT_TIMEOUT_S = 5
_STATEMENT_TIMEOUT_MS = 10_000
_SILENCE_TIMEOUT_S = 30

#: Where a page of incidents goes on: (first_unix_ns, id) of the last one shown.
Place = tuple[int, int]

Answer = TypeVar("Answer")


class StoreError(Exception):
    """Incident history does not answer now; one line says why."""


@dataclass(frozen=True, slots=True)
class IncidentQuery:
    """Which incidents; "" and 0 mean all. Fields as in `whitepanda.v1.ListIncidentsRequest`."""

    host: str = ""
    suspect_job: str = ""
    victim_job: str = ""
    vm: str = ""
    since_unix_ns: int = 0
    until_unix_ns: int = 0
    open_since_unix_ns: int = 0  # only those that are open: see `tables.is_open`


class IncidentStore:
    """Incidents, their reports and how often a job was suspected.

    Args:
        url: `postgresql://user:password@host/database`, or "" for SQLite.
        folder: where SQLite's file is, `incidents.sqlite`.

    Raises:
        UnavailableError: it cannot be opened; says why and the remedy, never the password.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self._writing = threading.Lock()  # SQLite has one writer, and tells others to go away
        self._engine = _sqlite(folder / "incidents.sqlite") if not url else _postgresql(url)
        self.name = self._engine.url.render_as_string(hide_password=True)
        try:
            with self._engine.begin() as connection:
                self._prepare(connection)
        except SQLAlchemyError as error:
            self._engine.dispose()
            raise UnavailableError(
                f"incident history {self.name} cannot be used: {_line(error)}; is incidents.url right, does the "
                "database exist, and may its user create tables?"
            ) from error
        except BaseException:
            self._engine.dispose()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def take(self, rows: Sequence[TriggerRow], *, gap_ns: int, oldest_unix_ns: int) -> int:
        """Put reports into their incidents in one transaction; see `tables.take`.

        Raises:
            StoreError: nothing was taken.
        """
        return self.write(
            lambda connection: tables.take(connection, rows, gap_ns=gap_ns, oldest_unix_ns=oldest_unix_ns)
        )

    def prune(self, oldest_unix_ns: int) -> int:
        """Delete some of what was over before a time; call it again until it returns 0.

        Raises:
            StoreError: nothing was deleted.
        """
        return self.write(lambda connection: tables.prune(connection, oldest_unix_ns))

    def write(self, work: Callable[[sa.Connection], Answer]) -> Answer:
        """Do some work in one transaction.

        Raises:
            StoreError: nothing of it was done.
        """
        try:
            with self._writing, self._engine.begin() as connection:
                return work(connection)
        except SQLAlchemyError as error:
            raise StoreError(_line(error)) from error

    def find(self, query: IncidentQuery, *, limit: int, after: Place | None = None) -> list[fleet_pb2.Incident]:
        """Return up to `limit` incidents, the last that began first, going on after a place.

        Raises:
            StoreError: the database does not answer.
        """
        with self._reading() as connection:
            found = _find(connection, query, limit, after)
            return _messages(connection, found)

    def open_now(self, since_unix_ns: int, *, limit: int) -> list[fleet_pb2.Incident]:
        """Return up to `limit` incidents that are open (`tables.is_open`), the slowest victim now first.

        Raises:
            StoreError: the database does not answer.
        """
        i = tables.incidents.c
        worst = (i.slow_down_now.is_(None), i.slow_down_now.desc(), i.peak_mn_cpi.is_(None), i.peak_mn_cpi.desc(), i.id)
        with self._reading() as connection:
            statement = sa.select(tables.incidents).where(tables.is_open(since_unix_ns)).order_by(*worst)
            return _messages(connection, connection.execute(statement.limit(limit)).all())

    def get(self, number: int) -> fleet_pb2.IncidentDetail | None:
        """Return an incident with its last reports; None where there is none of this number.

        Raises:
            StoreError: the database does not answer.
        """
        t = tables
        with self._reading() as connection:
            row = connection.execute(sa.select(t.incidents).where(t.incidents.c.id == number)).first()
            if row is None:
                return None
            (incident,) = _messages(connection, [row])
            advice = connection.scalar(
                sa.select(t.recommendations.c.payload).where(t.recommendations.c.incident == number)
            )
            # Once it is over, what could be done then is not what is to be done now.
            if advice is not None and row.victims_now:
                incident.recommendations.extend(agent_pb2.Trigger.FromString(advice).recommendations)
            payloads = connection.scalars(
                sa.select(t.reports.c.payload)
                .where(t.reports.c.incident == number)
                .order_by(t.reports.c.unix_ns.desc())
                .limit(_SHOWN_REPORTS)
            ).all()
            told = [agent_pb2.Trigger.FromString(payload) for payload in reversed(payloads)]
            detail = fleet_pb2.IncidentDetail(incident=incident, reports=told)
            job = incident.suspect_job
            for found in _jobs(connection, 1, "", job) if job else ():
                detail.recurrence.CopyFrom(found)
            return detail

    def names(self, vms: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return what VMs (UUIDs) were called in incidents, by host; those in none, or without a name, are left out.

        Raises:
            StoreError: the database does not answer.
        """
        v = tables.incident_vms.c
        i = tables.incidents.c
        named = (
            sa.select(v.vm, i.host, sa.func.max(v.name).label("name"))
            .join_from(tables.incident_vms, tables.incidents, v.incident == i.id)
            .where(v.vm.in_(vms), v.name != "")
            .group_by(v.vm, i.host)
        )
        found: dict[str, dict[str, str]] = {}
        with self._reading() as connection:
            for row in connection.execute(named):
                found.setdefault(row.vm, {})[row.host] = row.name
        return found

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise StoreError(_line(error)) from error

    @staticmethod
    def messages(connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> list[fleet_pb2.Incident]:
        """Return incidents of rows of their table, in this order, within the caller's transaction."""
        return _messages(connection, rows)

    def count_open(self, since_unix_ns: int) -> int:
        """Return how many incidents are open; see `tables.is_open`.

        Raises:
            StoreError: the database does not answer.
        """
        with self._reading() as connection:
            return count_open(connection, since_unix_ns)

    def suspect_jobs(self, *, limit: int, after: str = "", job: str = "") -> list[fleet_pb2.SuspectJob]:
        """Return jobs by name, each with how often it was suspected first and on how many hosts.

        Raises:
            StoreError: the database does not answer.
        """
        with self._reading() as connection:
            return _jobs(connection, limit, after, job)

    def totals(self, *, since_unix_ns: int, open_since_unix_ns: int, top: int) -> IncidentTotals:
        """Count incidents since a time; see `incident_totals.read_totals`.

        Raises:
            StoreError: the database does not answer.
        """
        with self._reading() as connection:
            return read_totals(connection, since_unix_ns, open_since_unix_ns, top)

    def _prepare(self, connection: sa.Connection) -> None:
        """Make the tables where they are missing; replicas that start together do it one after the other."""
        if connection.dialect.name == "postgresql":
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": 0x77686975})
        METADATA.create_all(connection)
        schema = connection.scalar(sa.select(tables.meta.c.value).where(tables.meta.c.key == "schema"))
        if schema is None:
            connection.execute(tables.meta.insert().values(key="schema", value=SCHEMA_VERSION))
        elif schema != SCHEMA_VERSION:
            raise UnavailableError(
                f"incident history {self.name} has schema {schema}, this central knows {SCHEMA_VERSION}: run the "
                "version of whitepanda that made it"
            )


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
    except (ArgumentError, ValueError) as error:  # the latter: a port that is no number
        raise UnavailableError("incidents.url is no URL; write postgresql://user:password@host/database") from error
    if parsed.get_backend_name() != "postgresql":
        raise UnavailableError(
            f"incidents.url must begin with postgresql:// (value begins with {parsed.drivername!r}); leave it empty "
            "for SQLite"
        )
    options = {
        "connect_timeout": _CONNECT_TIMEOUT_S,
        # A server that went without a word holds a thread for no longer than this, asked or awaited.
        "tcp_user_timeout": _SILENCE_TIMEOUT_S * 1000,
        "keepalives_idle": _SILENCE_TIMEOUT_S // 2,
        "keepalives_interval": _SILENCE_TIMEOUT_S // 6,
        "keepalives_count": 3,
        "application_name": "whitepanda-central",
        "options": f"-c statement_timeout={_STATEMENT_TIMEOUT_MS}",
    }
    # A connection that the server has closed since is found out before it is used.
    return sa.create_engine(
        parsed.set(drivername="postgresql+psycopg"),
        connect_args={key: value for key, value in options.items() if key not in parsed.query},
        pool_pre_ping=True,
        pool_size=4,
    )


def _line(error: SQLAlchemyError) -> str:
    """Return the driver's own words, one line, without the statement."""
    cause = getattr(error, "orig", None) or error
    return " ".join(str(cause).split())[:300] or type(cause).__name__


def _find(connection: sa.Connection, query: IncidentQuery, limit: int, after: Place | None) -> Sequence[sa.Row[Any]]:
    i, v = tables.incidents.c, tables.incident_vms.c
    conditions = []
    if query.host:
        conditions.append(i.host == query.host)
    if query.suspect_job:
        conditions.append(_has(connection, (v.job == query.suspect_job) & tables.was_first()))
    if query.victim_job:
        conditions.append(_has(connection, (v.job == query.victim_job) & (v.role == tables.ROLE_VICTIM)))
    if query.vm:
        named = sa.union_all(
            sa.select(v.incident).where(v.vm == query.vm), sa.select(v.incident).where(v.name == query.vm)
        )
        conditions.append(i.id.in_(named))
    if query.open_since_unix_ns:
        conditions.append(tables.is_open(query.open_since_unix_ns))
    if query.until_unix_ns:
        conditions.append(i.first_unix_ns < min(query.until_unix_ns, _MAX_INT64))
    if query.since_unix_ns:
        # What goes on at that time began no earlier than the first of them: so no index has to be read to its end.
        since = min(query.since_unix_ns, _MAX_INT64)
        begun = connection.scalar(sa.select(sa.func.min(i.first_unix_ns)).where(i.last_unix_ns >= since))
        if begun is None:
            return []
        conditions += [i.last_unix_ns >= since, i.first_unix_ns >= begun]
    if after is not None:
        conditions.append(sa.tuple_(i.first_unix_ns, i.id) < sa.tuple_(*after))
    statement = (
        sa.select(tables.incidents).where(*conditions).order_by(i.first_unix_ns.desc(), i.id.desc()).limit(limit)
    )
    return connection.execute(statement).all()


def _has(connection: sa.Connection, mine: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Return the condition that an incident has such a VM of a job: by the list of them where it is short.

    A job that is often in incidents is soon found by looking at one incident after the other.
    """
    v = tables.incident_vms.c
    some = sa.select(v.incident).where(mine).limit(_MANY).subquery()
    if (connection.scalar(sa.select(sa.func.count()).select_from(some)) or 0) < _MANY:
        return tables.incidents.c.id.in_(sa.select(v.incident).where(mine))
    return sa.exists().where(mine, v.incident == tables.incidents.c.id)


def _messages(connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> list[fleet_pb2.Incident]:
    """Return incidents with their VMs, which one query fetches for all of them."""
    vms: dict[tuple[int, int], list[fleet_pb2.IncidentVm]] = defaultdict(list)
    table = tables.incident_vms
    found = sa.select(table).where(table.c.incident.in_([row.id for row in rows])) if rows else None
    for vm in connection.execute(found).all() if found is not None else ():
        slow_down = None
        if vm.slow_ratio is not None:
            slow_down = agent_pb2.Degradation(
                ratio=vm.slow_ratio, low=or_nan(vm.slow_low), high=or_nan(vm.slow_high), model=vm.slow_model
            )
        vms[vm.incident, vm.role].append(
            fleet_pb2.IncidentVm(
                vm=vm.vm,
                name=vm.name,
                job=vm.job,
                peak=or_nan(vm.peak),
                reports=vm.reports,
                first_reports=vm.first_reports,
                slow_down=slow_down,
            )
        )
    slowest = _slowest_now(connection, [row.id for row in rows if row.victims_now])
    for number, last in slowest.items():
        known = (one.reports for one in vms[number, tables.ROLE_VICTIM] if one.vm == last.vm)
        last.reports = next(known, 0)
    suspects = {row.id: _suspects(row, vms[row.id, tables.ROLE_SUSPECT]) for row in rows}
    return [
        fleet_pb2.Incident(
            id=row.id,
            host=row.host,
            suspect_job=suspects[row.id][0].job if row.suspect_vm else "",
            first_unix_ns=row.first_unix_ns,
            last_unix_ns=row.last_unix_ns,
            reports=row.reports,
            peak_mn_cpi=or_nan(row.peak_mn_cpi),
            peak_threshold=or_nan(row.peak_threshold),
            victims=_victims(vms[row.id, tables.ROLE_VICTIM]),
            suspects=suspects[row.id],
            found_by=tables.analyses(row.found_by),
            suspect=suspects[row.id][0] if row.suspect_vm else None,
            victims_now=row.victims_now,
            slowest_now=slowest.get(row.id),
        )
        for row in rows
    ]


def _highest_first(vm: fleet_pb2.IncidentVm) -> tuple[bool, float, str, str]:
    is_unknown = math.isnan(vm.peak)
    return (is_unknown, 0.0 if is_unknown else -vm.peak, vm.name, vm.vm)


def _slowest_first(vm: fleet_pb2.IncidentVm) -> tuple[bool, float, bool, float, str, str]:
    """Return the rank of a victim: by its slow-down; nCPI is cut, and decides only where that is not known."""
    ratio = vm.slow_down.ratio  # 0 where there is none
    return (not ratio > 0, -ratio if ratio > 0 else 0.0, *_highest_first(vm))


def _victims(vms: Iterable[fleet_pb2.IncidentVm]) -> list[fleet_pb2.IncidentVm]:
    return sorted(vms, key=_slowest_first)


def _suspects(row: sa.Row[Any], vms: list[fleet_pb2.IncidentVm]) -> list[fleet_pb2.IncidentVm]:
    """Return the suspects, the first one first.

    While it goes on, that is the first suspect of the last report. Once it is over, it is the VM that most reports name
    first, so that a late change does not rewrite the history.
    """

    def order(vm: fleet_pb2.IncidentVm) -> tuple[object, ...]:
        is_last = vm.vm == row.suspect_vm
        often = -vm.first_reports
        return (*((not is_last, often) if row.victims_now else (often, not is_last)), *_highest_first(vm))

    return sorted(vms, key=order)


def _slowest_now(connection: sa.Connection, numbers: Sequence[int]) -> dict[int, fleet_pb2.IncidentVm]:
    """Return the slowest victim in the last report of each of these incidents."""
    i, r = tables.incidents.c, tables.reports.c
    last = sa.select(r.incident, r.payload).join(tables.incidents, (i.id == r.incident) & (i.last_unix_ns == r.unix_ns))
    found: dict[int, list[fleet_pb2.IncidentVm]] = defaultdict(list)
    for number, payload in connection.execute(last.where(r.incident.in_(numbers))) if numbers else ():
        found[number] += (
            fleet_pb2.IncidentVm(
                vm=v.vm,
                name=v.name,
                job=v.job,
                peak=v.n_cpi,
                slow_down=v.slow_down if v.HasField("slow_down") else None,
            )
            for v in agent_pb2.Trigger.FromString(payload).victims
        )
    return {number: min(vms, key=_slowest_first) for number, vms in found.items()}


def _jobs(connection: sa.Connection, limit: int, after: str, job: str) -> list[fleet_pb2.SuspectJob]:
    j = tables.suspect_jobs.c
    total = sa.func.sum(j.incidents).label("total")
    first, last = sa.func.min(j.first_unix_ns), sa.func.max(j.last_unix_ns)
    statement = sa.select(j.job, sa.func.count(), total, first, last).where(j.job > after)
    if job:
        statement = statement.where(j.job == job)
    statement = statement.group_by(j.job).order_by(j.job).limit(limit)
    return [
        fleet_pb2.SuspectJob(job=name, hosts=hosts, incidents=int(count), first_unix_ns=began, last_unix_ns=ended)
        for name, hosts, count, began, ended in connection.execute(statement)
    ]
