"""Why metrics of VMs are not known now: the journal's table of the present reason, and since when it holds."""

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

from central.journal.database import reading
from central.validation.metric_reasons import ReasonRow

_MAX_OF_HOST = 100_000  # VMs times metrics; those that changed longest ago are forgotten
#: Of a batch that comes late nothing is taken that is older; a reason that is sent again keeps its time.
_UPSERT = (
    "INSERT INTO metric_reasons VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
    " since_unix_ns = CASE WHEN reason = excluded.reason THEN since_unix_ns ELSE excluded.since_unix_ns END,"
    " reason = excluded.reason WHERE excluded.since_unix_ns >= since_unix_ns"
)


def write(connection: sqlite3.Connection, rows: Sequence[ReasonRow]) -> None:
    """Write reasons in the order in which they came, within the caller's transaction."""
    if not rows:
        return
    connection.executemany(_UPSERT, [(r.host, r.vm, r.metric, r.reason, r.since_unix_ns) for r in rows])
    for host in {row.host for row in rows}:
        (count,) = connection.execute("SELECT count(*) FROM metric_reasons WHERE host = ?", (host,)).fetchone()
        if (excess := count - _MAX_OF_HOST) > 0:
            connection.execute(
                "DELETE FROM metric_reasons WHERE (host, vm, metric) IN (SELECT host, vm, metric FROM metric_reasons"
                " WHERE host = ? ORDER BY since_unix_ns LIMIT ?)",
                (host, excess),
            )


def read(journal: Path, vms: Iterable[str]) -> list[ReasonRow]:
    """Return the present reasons of VMs on all hosts, by host, VM and metric; for any thread or process.

    Reason 0: the metric is known again since then.
    """
    wanted = sorted(set(vms))
    columns = "host, vm, metric, reason, since_unix_ns"
    found: list[ReasonRow] = []
    with reading(journal) as connection:
        for vm in wanted:
            rows = connection.execute(f"SELECT {columns} FROM metric_reasons WHERE vm = ?", (vm,))  # noqa: S608 - constants
            found += [ReasonRow(*row) for row in rows]
    return sorted(found, key=lambda one: (one.host, one.vm, one.metric))
