"""Tables as CSV files, with cells as `whitepanda.common.csv_cells` has them."""

from __future__ import annotations

from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from whitepanda.common.csv_cells import FORMULA, NUMBER, QUOTED, WITHIN, WITHIN_QUOTED, csv_cell, csv_text

__all__ = ["read_texts", "write_csv"]


def write_csv(table: pa.Table, file: IO[bytes]) -> None:
    """Write a table with its header.

    Raises:
        pa.ArrowException: a column has a type that CSV has not.

    """
    for place, column in enumerate(table.columns):
        if _is_text(column.type):
            texts = pc.replace_substring_regex(column.cast(pa.large_string()), WITHIN, r"\1'\2")
            is_formula = pc.match_substring_regex(texts, FORMULA)
            is_quoted = pc.and_(is_formula, pc.invert(pc.match_substring_regex(texts, NUMBER)))
            quoted = pc.utf8_replace_slice(texts, 0, 0, "'")
            table = table.set_column(place, table.field(place).name, pc.if_else(is_quoted, quoted, texts))
    table = table.rename_columns([csv_cell(name) for name in table.column_names])
    pa.csv.write_csv(table, file, pa.csv.WriteOptions(quoting_style="needed"))


def read_texts(table: pa.Table) -> pa.Table:
    """Return a table that was read from a CSV file with the texts that were written."""
    for place, column in enumerate(table.columns):
        if _is_text(column.type):
            texts = pc.replace_substring_regex(column, WITHIN_QUOTED, r"\1\2")
            texts = pc.replace_substring_regex(texts, QUOTED, r"\1")
            table = table.set_column(place, table.field(place).name, texts)
    return table.rename_columns([csv_text(name) for name in table.column_names])


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(
        is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    )
