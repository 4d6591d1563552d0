"""Names in task slots as numbers, joined on once: what follows compares and sorts integers.

Numbers are the places of names in their order, so they are the same however often, and by whichever engine, they are
computed. The tables of names are small; they are kept in Parquet files, where they are computed once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import ibis.expr.types as ir
    import pyarrow as pa

__all__ = ["CodedSlots", "Opened", "coded", "numbered"]


class Opened(Protocol):
    """An engine, as far as names are encoded on it."""

    def read(self, paths: Iterable[Path]) -> ir.Table:
        """Return Parquet files of one schema as one table."""

    def collect(self, table: ir.Table) -> pa.Table:
        """Run an expression and return its rows."""

    def write(self, table: ir.Table, path: Path) -> int:
        """Run an expression and write its rows to a Parquet file. Returns how many."""


@dataclass(frozen=True, slots=True)
class CodedSlots:
    """Task slots with numbers in place of names; `count` of them."""

    rows: ir.Table
    count: int


def numbered(table: ir.Table, **names: str) -> ir.Table:
    """Add columns with the places of names in their order, from 0: `code="job"` numbers jobs."""
    import ibis  # noqa: PLC0415 - takes a second, and only builds need it

    codes: dict[str, Any] = {
        code: ibis.dense_rank().over(order_by=table[name]).cast("int32") for code, name in names.items()
    }
    return table.mutate(**codes)


def coded(opened: Opened, slots: ir.Table, folder: Path) -> CodedSlots:
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
