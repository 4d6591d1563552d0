"""Names in task slots as numbers, so that later steps compare and sort integers.

Numbers are the places of names in their order, so each engine computes the same ones. The small tables of names are
computed once and kept in Parquet files.
"""

from pathlib import Path
from typing import Any

import ibis
import ibis.expr.types as ir

from central.build.engine import AnyEngine


def numbered(table: ir.Table, **names: str) -> ir.Table:
    """Add columns with the places of names in their order, from 0: `code="job"` numbers jobs."""
    codes: dict[str, Any] = {
        code: ibis.dense_rank().over(order_by=table[name]).cast("int32") for code, name in names.items()
    }
    return table.mutate(**codes)


def coded(opened: AnyEngine, slots: ir.Table, folder: Path) -> tuple[ir.Table, int]:
    """Return task slots with numbers for machines, and their count; writes `machines.parquet` (machine, code, rows)."""
    found = slots.group_by("machine").aggregate(rows=slots.count())
    path = folder / "machines.parquet"
    opened.write(numbered(found, code="machine"), path)
    machines = opened.read([path])
    count = opened.collect(machines.aggregate(rows=machines.rows.sum().cast("int64")))["rows"][0].as_py()
    rows = slots.join(machines.drop("rows").rename(_machine="code"), "machine").drop("machine")
    return rows.rename(machine="_machine"), int(count or 0)
