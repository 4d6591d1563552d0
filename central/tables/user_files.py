"""Tables that people give, as CSV or Parquet. An error is one line with the file, the row and the value."""

import csv
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from central.tables.csv_files import is_parquet, read_texts
from whitepanda.common.errors import InputError

_SHOWN = 20  # columns in an error

_Column = npt.NDArray[Any]
_Floats = npt.NDArray[np.float64]


class UserTable:
    """A file's columns, checked when they are used; rows count from 1. A pipe works too: it is read once.

    Parquet by its ending, else CSV. `cells` are as read: texts of CSV, null where empty. Raises InputError if the file
    cannot be read, has no rows, a column without a name, or two of the same name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.cells: pa.Table = pq.read_table(path, partitioning=None) if is_parquet(path) else _csv(path)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or _line(error)}") from error
        except pa.ArrowException as error:
            raise InputError(f"{path}: is not Parquet: {_line(error)}") from error
        names = self.columns
        if "" in names:
            raise InputError(f"{path}: has a column without a name")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"{path}: two columns are called {_shown(twice)}")
        if not self.cells.num_rows:
            raise InputError(f"{path}: has no rows")

    def __len__(self) -> int:
        """Count the rows."""
        return int(self.cells.num_rows)

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return list(self.cells.column_names)

    @property
    def header(self) -> str:
        """The names of its columns, for an error."""
        more = len(self.columns) - _SHOWN
        names = ", ".join(map(_shown, self.columns[:_SHOWN]))
        return f"{names} and {more} more" if more > 0 else names

    def require(self, *names: str) -> None:
        """Raise an InputError if a column is missing."""
        missing = [name for name in names if name not in self.columns]
        if missing:
            word = "column" if len(missing) == 1 else "columns"
            raise InputError(f"{self.path}: has no {word} {', '.join(missing)}; it has {self.header}")

    def texts(self, column: str) -> _Column:
        """Return a column as text without spaces around it; "" where empty."""
        try:
            texts = pc.utf8_trim_whitespace(self.cells[column].cast(pa.string()))
        except pa.ArrowException as error:
            kind = self.cells[column].type
            raise InputError(f"{self.path}: column {column} must be names, not {kind}") from error
        return np.asarray(pc.fill_null(texts, "").to_numpy(zero_copy_only=False)).astype(str)

    def names(self, column: str) -> _Column:
        """Return a column as text, empty in no row."""
        texts = self.texts(column)
        empty = np.flatnonzero(texts == "")
        if len(empty):
            raise InputError(f"{self.path}: column {column} is empty (row {empty[0] + 1})")
        return texts

    def numbers(
        self,
        column: str,
        *,
        low: float = 0.0,
        high: float = math.inf,
        above: bool = False,
        empty: float | None = None,
        remedy: str = "",
    ) -> _Floats:
        """Return a column as finite numbers from `low` to `high`; with `above`, `low` itself is too small.

        `empty` is the value of an empty cell; if it is NaN, cells that hold NaN count as empty too. None: empty cells
        are refused. `remedy` is for a number that is too large.
        """
        wanted = f"numbers above {low:g}" if above else f"numbers of {low:g} or more"
        wanted = f"numbers from {low:g} to {high:g}" if high < math.inf else wanted
        wanted = "finite numbers" if low == -math.inf else wanted
        values, is_empty = self._values(column, wanted)
        if empty is not None and math.isnan(empty):
            is_empty |= np.isnan(values)
        wrong = ~((values > low if above else values >= low) & (values <= high) & np.isfinite(values))
        if empty is not None:
            wrong &= ~is_empty
            values = np.where(is_empty, empty, values)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            self.refuse(column, wanted, row, f"; {remedy}" if remedy and values[row] > high else "")
        return values

    def whole(self, column: str, *, low: float = 1.0) -> npt.NDArray[np.int64]:
        """Return a column as whole numbers."""
        values = self.numbers(column, low=low)
        wrong = (values != np.rint(values)) | (values > 2**53)
        if wrong.any():
            self.refuse(column, "whole numbers", int(np.flatnonzero(wrong)[0]))
        return values.astype(np.int64)

    def refuse(self, column: str, wanted: str, row: int, then: str = "") -> None:
        """Raise an InputError about a row's value."""
        cell = self.cells[column][row].as_py()
        value = "empty" if cell in (None, "") else _shown(str(cell).strip())
        raise InputError(f"{self.path}: column {column} must be {wanted} (row {row + 1}: {value}){then}")

    def _values(self, column: str, wanted: str) -> tuple[_Floats, npt.NDArray[np.bool_]]:
        """Return the numbers (NaN for empty cells) and a mask of the empty cells."""
        kind = self.cells[column].type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            try:
                found = self.cells[column].cast(pa.float64())
            except pa.ArrowException as error:
                raise InputError(f"{self.path}: column {column} must be {wanted}, not {kind}") from error
            return np.asarray(found.to_numpy(zero_copy_only=False), np.float64), np.array(found.is_null())
        texts = pc.utf8_trim_whitespace(pc.fill_null(self.cells[column], ""))
        is_empty = pc.equal(texts, "")
        try:
            found = pc.if_else(is_empty, "nan", texts).cast(pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowException:  # Python knows more ways to write a number
            found = np.full(len(self), np.nan)
            for row, text in enumerate(texts.to_pylist()):
                try:
                    found[row] = float(text or "nan")
                except ValueError:
                    self.refuse(column, wanted, row)
        return np.asarray(found, np.float64), np.array(is_empty)


def refuse_twice(path: Path, column: str, names: _Column) -> None:
    """Raise an InputError if a name is there more than once."""
    values, counts = np.unique(names, return_counts=True)
    if (counts > 1).any():
        raise InputError(f"{path}: {column} {values[counts > 1][0]} appears more than once; remove the repeated rows")


def _csv(path: Path) -> pa.Table:
    """Read a CSV file as texts. Spaces around names of columns and empty rows do not count."""
    content = path.read_bytes()
    if not content.strip():
        raise InputError(f"{path}: is empty; the first line must name the columns")
    try:
        first = content.split(b"\n", 1)[0].decode("utf-8-sig")
        delimiter = max(",;\t|", key=first.count)
        header = next(csv.reader([first], delimiter=delimiter), [])
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text (row 0, the header)") from error
    except csv.Error as error:
        raise InputError(f"{path}: is not a CSV with a header: {_line(error)}") from error
    types = dict.fromkeys(header, pa.string())
    options = pa_csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)
    parsing = pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        table = pa_csv.read_csv(pa.BufferReader(content), convert_options=options, parse_options=parsing)
    except pa.ArrowException as error:
        raise InputError(f"{path}: {_why_no_csv(content, delimiter, error)}") from error
    table = read_texts(table.rename_columns([name.strip() for name in table.column_names]))
    is_filled = np.zeros(table.num_rows, np.bool_)
    for column in table.columns:
        is_filled |= np.asarray(pc.is_valid(column))
    return table if is_filled.all() else table.filter(pa.array(is_filled))


def _why_no_csv(content: bytes, delimiter: str, error: Exception) -> str:
    """Say why pyarrow cannot read the content, and in which row."""
    number, header = -1, 0
    try:
        lines = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
        for number, row in enumerate(row for row in csv.reader(lines, delimiter=delimiter) if row):
            header = header or len(row)
            if len(row) != header:
                return f"is not a CSV with a header: row {number} has {len(row)} values, the header {header}"
    except UnicodeDecodeError:
        return f"is not UTF-8 text (near row {number + 1})"
    except csv.Error as wrong:
        return f"is not a CSV with a header: row {number + 1}: {wrong}"
    return f"is not a CSV with a header: {_line(error)}"


def _shown(text: str) -> str:
    """Return a user's text so that it fits into a line of an error."""
    cut = text if len(text) <= 2 * _SHOWN else text[: 2 * _SHOWN] + "..."
    return cut if cut.isprintable() else ascii(cut)


def _line(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return first if first.isprintable() else ascii(first)
