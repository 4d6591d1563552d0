"""Copies of a batch in several replicas: which one counts, as an Ibis view, SQL of a roll-up, and for Python rows.

A batch (host, spool_id, sequence) may be in several journals: an agent went from one replica to another before it got
its acknowledgement. Each day then counts from the origin (`Segment.origin`) that is first in name. Within an origin no
batch exists twice, so one day's rows are the same whether that day is read alone or together with others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from central.lake.schema import SAMPLES

if TYPE_CHECKING:
    import ibis.expr.types as ir

#: The columns that identify a batch.
BATCH = ("host", "spool_id", "sequence")

_DAY_NS = 86_400 * 10**9


def samples_once(connection: Any, paths: Mapping[str, list[str]]) -> ir.Table:
    """Return the rows of Parquet files, by origin, as an Ibis table with the columns of `SAMPLES`."""
    import ibis  # noqa: PLC0415 - takes a second to import, and ingest does not need it

    if not paths:
        return ibis.memtable(SAMPLES.empty_table())
    tables = {origin: connection.read_parquet(files).select(*SAMPLES.names) for origin, files in sorted(paths.items())}
    if len(tables) == 1:
        return next(iter(tables.values()))
    key, day = [*BATCH, "_day"], ibis._["start_unix_ns"] // _DAY_NS
    labelled = [table.mutate(_origin=ibis.literal(origin)) for origin, table in tables.items()]
    union = ibis.union(*labelled).mutate(_day=day)
    # Read separately: an engine keeps what is used twice, and that would be all rows. The rows are compared only with
    # the few batches with copies.
    batches = [
        connection.read_parquet(files).select(*BATCH, _day=day, _origin=ibis.literal(origin))
        for origin, files in sorted(paths.items())
    ]
    origin = ibis._["_origin"]
    taken = ibis.union(*batches).group_by(key).aggregate(_first=origin.min(), _last=origin.max())
    twice = taken.filter(taken["_first"] != taken["_last"])
    is_copy = [*(union[name] == twice[name] for name in key), union["_origin"] != twice["_first"]]
    return union.anti_join(twice, is_copy).select(*SAMPLES.names)


#: Makes the table `taken`, the batches that count now, of the views `new_rows` (of one day, with a column `origin`) and
#: `known` (host, spool_id, first, last: batches that were counted before).
SQL_TAKEN = (
    "CREATE OR REPLACE TEMP TABLE taken AS SELECT host, spool_id, sequence, min(origin) AS origin FROM new_rows "
    "WHERE NOT EXISTS (SELECT 1 FROM known WHERE known.host = new_rows.host AND known.spool_id = new_rows.spool_id "
    "AND new_rows.sequence BETWEEN known.first AND known.last) GROUP BY host, spool_id, sequence"
)
#: Makes the view `rows_once`: the rows of `taken`.
SQL_ROWS_ONCE = (
    "CREATE OR REPLACE TEMP VIEW rows_once AS SELECT new_rows.* FROM new_rows "
    "SEMI JOIN taken USING (host, spool_id, sequence, origin)"
)


def rows_once(rows: Iterable[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the rows that count, of those given with their origin; with the columns `BATCH` and `start_unix_ns`."""
    origins: dict[tuple[Any, ...], str] = {}
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for origin, row in rows:
        batch = (*(row[name] for name in BATCH), row["start_unix_ns"] // _DAY_NS)
        first = origins.setdefault(batch, origin)
        if origin < first:
            origins[batch], found[batch] = origin, [row]
        elif origin == first:
            found.setdefault(batch, []).append(row)
    return [row for each in found.values() for row in each]
