"""Tables as files: CSV with cells as `whitepanda.common.files.csv_cells` has them, or Parquet."""

from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from whitepanda.common.errors import InputError
from whitepanda.common.files.csv_cells import FORMULA, NUMBER, QUOTED, WITHIN, WITHIN_QUOTED, csv_cell, csv_text
from whitepanda.common.files.durable import writing


def is_parquet(path: Path) -> bool:
    """Return whether a file is Parquet, by its ending; else it is CSV."""
    return path.suffix.lower() in (".parquet", ".pq")


def write_table(path: Path, table: pa.Table, *, mode: int = 0o644) -> None:
    """Write CSV or Parquet by the file's name, whole or not at all. In CSV a list is its values, joined with `;`.

    Raises InputError if it cannot be written.
    """
    try:
        with writing(path, mode=mode) as file:
            if is_parquet(path):
                pq.write_table(table, file)
            else:
                write_csv(_flat(table), file)
    except pa.ArrowException as error:
        line = str(error).partition("\n")[0]
        raise InputError(f"{path}: cannot write: {line}; write Parquet, or leave such columns out") from error


def write_csv(table: pa.Table, file: IO[bytes]) -> None:
    """Write a table with its header; raise a pa.ArrowException for types that CSV does not have."""
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
    """Undo in a table that was read the quotes that `write_csv` added."""
    for place, column in enumerate(table.columns):
        if _is_text(column.type):
            texts = pc.replace_substring_regex(column, WITHIN_QUOTED, r"\1\2")
            texts = pc.replace_substring_regex(texts, QUOTED, r"\1")
            table = table.set_column(place, table.field(place).name, texts)
    return table.rename_columns([csv_text(name) for name in table.column_names])


def _flat(table: pa.Table) -> pa.Table:
    for place, field in enumerate(table.schema):
        kind = field.type
        if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            texts = [
                None if values is None else ";".join("" if value is None else str(value) for value in values)
                for values in table.column(place).to_pylist()
            ]
            table = table.set_column(place, field.name, pa.array(texts, pa.string()))
    return table


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))
