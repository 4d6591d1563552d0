"""Why metrics of VMs are and were not known: the journal's table of each reason and the time in which it occurred.

A reason that comes and goes again and again is one row: a metric that is absent within its time was absent for it.
"""

# ruff: noqa: S608 - SQL made of this file's own words
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from central.journal.database import reading
from central.validation.metric_reasons import ReasonRow

_MAX_OF_HOST = 100_000  # rows; those that changed longest ago are forgotten
_OF = "host = ?1 AND vm = ?2 AND metric = ?3"
#: Nothing is taken of a batch that comes late.
_IS_NEWS = f"NOT EXISTS (SELECT 1 FROM metric_reasons WHERE {_OF} AND changed_unix_ns > ?5)"
_END = (
    f"UPDATE metric_reasons SET holds = 0, changed_unix_ns = ?5 WHERE {_OF} AND reason <> ?4 AND holds AND {_IS_NEWS}"
)
_BEGIN = (
    f"INSERT INTO metric_reasons SELECT ?1, ?2, ?3, ?4, ?5, ?5, 1 WHERE {_IS_NEWS}"
    " ON CONFLICT DO UPDATE SET holds = 1, changed_unix_ns = excluded.changed_unix_ns"
)


@dataclass(frozen=True, slots=True)
class KnownReason:
    """A metric (a number of `window_columns`) of a VM was absent for a reason at times in [since, until)."""

    host: str
    vm: str
    metric: int
    reason: int
    since_unix_ns: int
    until_unix_ns: int | None  # None: it still holds


def write(connection: sqlite3.Connection, rows: Sequence[ReasonRow]) -> None:
    """Write reasons in the order in which they came, within the caller's transaction."""
    for row in rows:
        values = (row.host, row.vm, row.metric, row.reason, row.since_unix_ns)
        connection.execute(_END, values)
        connection.execute(_BEGIN, values)
    for host in {row.host for row in rows}:
        (count,) = connection.execute("SELECT count(*) FROM metric_reasons WHERE host = ?", (host,)).fetchone()
        if (excess := count - _MAX_OF_HOST) > 0:
            connection.execute(
                "DELETE FROM metric_reasons WHERE (host, vm, metric, reason) IN (SELECT host, vm, metric, reason"
                " FROM metric_reasons WHERE host = ? ORDER BY changed_unix_ns LIMIT ?)",
                (host, excess),
            )


def read(journal: Path, vms: Iterable[str]) -> list[KnownReason]:
    """Return the reasons of VMs on all hosts, by host, VM, metric and when they began; for any thread or process."""
    columns = "host, vm, metric, reason, since_unix_ns, CASE WHEN holds THEN NULL ELSE changed_unix_ns END"
    found: list[KnownReason] = []
    with reading(journal) as connection:
        for vm in sorted(set(vms)):
            rows = connection.execute(f"SELECT {columns} FROM metric_reasons WHERE vm = ? AND reason", (vm,))
            found += [KnownReason(*row) for row in rows]
    return sorted(found, key=lambda one: (one.host, one.vm, one.metric, one.since_unix_ns))
