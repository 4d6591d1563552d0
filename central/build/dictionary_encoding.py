"""Names in task slots as numbers, joined on once: what follows compares and sorts integers.

Numbers are the places of names in their order, so they are the same however often, and by whichever engine, they are
computed. The tables of names are small; they are kept in Parquet files, where they are computed once.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ibis
import ibis.expr.types as ir

from central.build.engine import AnyEngine


@dataclass(frozen=True, slots=True)
class CodedSlots:
    """Task slots with numbers in place of names; `count` of them."""

    rows: ir.Table
    count: int


def numbered(table: ir.Table, **names: str) -> ir.Table:
    """Add columns with the places of names in their order, from 0: `code="job"` numbers jobs."""
    codes: dict[str, Any] = {
        code: ibis.dense_rank().over(order_by=table[name]).cast("int32") for code, name in names.items()
    }
    return table.mutate(**codes)


def coded(opened: AnyEngine, slots: ir.Table, folder: Path) -> CodedSlots:
    """Number the machines of task slots, and write which is which to `machines.parquet` (machine, code, rows).

    Args:
        opened: the engine.
        slots: task slots, any columns.
        folder: where the file goes.

    Returns:
        The slots with the machines' numbers as `machine`.

    """
    found = slots.group_by("machine").aggregate(rows=slots.count())
    path = folder / "machines.parquet"
    opened.write(numbered(found, code="machine"), path)
    machines = opened.read([path])
    count = opened.collect(machines.aggregate(rows=machines.rows.sum().cast("int64")))["rows"][0].as_py()
    rows = slots.join(machines.drop("rows").rename(_machine="code"), "machine").drop("machine")
    return CodedSlots(rows.rename(machine="_machine"), int(count or 0))
