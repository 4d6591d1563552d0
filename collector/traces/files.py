"""Files of a trace: Parquet and CSV, recognised by content, as typed columns of numpy.

Pyarrow is an extra, and takes 0.2 s to import: import this room only to read traces.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from collector.traces.times import TIMES, as_microseconds, check_whole, text_as_microseconds
from whitepanda.common.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: Names of each column in the trace, in BigQuery's exports and in flattened files. The first found is used.
COLUMNS: dict[str, tuple[str, ...]] = {
    "collection_id": ("collection_id",),
    "instance_index": ("instance_index",),
    "machine_id": ("machine_id",),
    "start_us": ("start_time",),
    "end_us": ("end_time",),
    "cpu_usage": ("average_usage.cpus", "average_usage_cpus", "avg_cpu", "average_usage"),
    "cpi": ("cycles_per_instruction",),
    "priority": ("priority",),
    "scheduling_class": ("scheduling_class",),
}
_INTEGERS = ("collection_id", "instance_index", "machine_id", "start_us", "end_us")
_NULLS = ["", "null", "NULL", "None", "NA", "nan", "NaN"]
# "average_usage" of some CSV exports is the record as text: {'cpus': 0.02, 'memory': 0.01}.
_CPUS_IN_TEXT = r"""['"]cpus['"]\s*:\s*(?P<cpus>[^,}\s]+)"""
_CSV_BLOCK_BYTES = 4 << 20
_HEAD_BYTES = 4096
_PARQUET = b"PAR1"
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
# Arrow's types of numbers, and of texts, which may be numbers.
_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
_TEXTS = (pa.types.is_string, pa.types.is_large_string)
_SHOWN_CHARACTERS = 500  # of what is found in a file, in a message


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a record batch. Unknown values are 0 (integers) or NaN; garbled are texts in place of numbers.

    Timestamps have a unit, plain numbers have none.
    """

    values: NDArray[Any]
    known: NDArray[np.bool_]
    garbled: NDArray[np.bool_] | np.bool_ = np.False_  # False: no cell is
    has_unit: bool = False


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One file whose columns were found: `columns` maps the keys of `COLUMNS` to the file's names."""

    path: Path
    columns: dict[str, str]
    batches: Callable[[list[str], Callable[[Any], None]], Iterator[Any]]
    #: Columns of text in which some cell was a number: a garbled cell then costs its row only.
    numeric: set[str] = field(default_factory=set)

    def read(self, names: Sequence[str], on_malformed: Callable[[Any], None]) -> Iterator[dict[str, Column]]:
        """Yield record batches as typed columns; errors of the format become one InputError."""
        wanted = [self.columns[name] for name in names]
        first_row = 1
        try:
            for batch in self.batches(wanted, on_malformed):
                if not batch.num_rows:
                    continue
                yield {name: self._column(batch, name, first_row) for name in names}
                first_row += batch.num_rows
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self.path}: broken file: {_first_line(error)}") from error

    def _column(self, batch: Any, name: str, first_row: int) -> Column:
        column = self.columns[name]
        outer, _, inner = column.partition(".")
        is_inside = column not in batch.schema.names
        array = pc.struct_field(batch.column(outer), inner) if is_inside else batch.column(column)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if any(is_text(array.type) for is_text in _TEXTS):
            if column == "average_usage":
                array = pc.struct_field(pc.extract_regex(array, _CPUS_IN_TEXT), "cpus")
            return self._from_text(array, name, first_row)
        if pa.types.is_timestamp(array.type):
            return Column(*as_microseconds(array), has_unit=True)
        if pa.types.is_decimal(array.type) or pa.types.is_null(array.type):
            array = array.cast(pa.float64())
        if pa.types.is_integer(array.type):
            return _from_integers(array, name)
        floats = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
        if name in TIMES:
            check_whole(self.path, column, floats, first_row)
        return _from_floats(floats, name)

    def _from_text(self, array: Any, name: str, first_row: int) -> Column:
        array = pc.utf8_trim_whitespace(array)
        try:
            plain = array.cast(pa.int64() if name in _INTEGERS else pa.float64())
            if plain.null_count < len(plain):
                self.numeric.add(name)
            if name in _INTEGERS:
                return _from_integers(plain, name)
            return _from_floats(plain.to_numpy(zero_copy_only=False), name)
        except pa.ArrowInvalid:
            pass  # some cell is not a plain number
        cells = array.to_pylist()
        numbers = [_number(cell) for cell in cells]
        garbled = np.array([n is None and cell not in (None, *_NULLS) for n, cell in zip(numbers, cells, strict=True)])
        if any(n is not None for n in numbers):
            self.numeric.add(name)
        elif name in TIMES and (moments := text_as_microseconds(cells))[1].any():
            self.numeric.add(name)
            return Column(*moments, garbled & ~moments[1], has_unit=True)
        elif garbled.any() and name not in self.numeric:
            row = int(np.argmax(garbled))
            raise InputError(
                f"{self.path}: column '{self.columns[name]}' must be numbers (row {first_row + row}, value "
                f"{cells[row][:60]!r})"
            )
        if name in _INTEGERS and all(n is None or isinstance(n, int) for n in numbers):
            fits = np.array([n is not None and -(2**63) <= n < 2**63 for n in numbers])
            values = np.array([n if ok else 0 for n, ok in zip(numbers, fits, strict=True)], np.int64)
            return Column(values, fits, garbled)
        floats = np.array([np.nan if n is None else float(n) for n in numbers])
        if name in TIMES:
            check_whole(self.path, self.columns[name], floats, first_row)
        return replace(_from_floats(floats, name), garbled=garbled)


def _number(cell: str | None) -> int | float | None:
    for kind in (int, float):
        try:
            return kind(cell) if cell is not None else None
        except (ValueError, OverflowError):
            continue
    return None


def _from_integers(array: Any, name: str) -> Column:
    known = array.is_valid().to_numpy(zero_copy_only=False)
    values = array.cast(pa.int64(), safe=False).fill_null(0).to_numpy(zero_copy_only=False)
    return Column(values if name in _INTEGERS else np.where(known, values.astype(np.float64), np.nan), known)


def _from_floats(floats: NDArray[np.float64], name: str) -> Column:
    if name not in _INTEGERS:
        return Column(floats, ~np.isnan(floats))
    # Files that went through pandas have integers with gaps as floats; exact up to 2^53.
    with np.errstate(invalid="ignore"):
        known = np.isfinite(floats) & (floats == np.trunc(floats)) & (np.abs(floats) < 2**63)
    return Column(np.where(known, floats, 0).astype(np.int64), known)


def open_file(path: Path, batch_rows: int) -> TraceFile:
    """Find the format (Parquet, CSV, compressed CSV) and the columns of a file.

    Raises InputError if it cannot be read, is neither, lacks columns, or has a column that is not numbers.
    """
    available, is_parquet = _columns_of(path)
    columns = _find_columns(path, available)
    for key, name in columns.items():
        kind = available[name].value_type if pa.types.is_dictionary(available[name]) else available[name]
        is_moment = key in TIMES and pa.types.is_timestamp(kind)
        if not is_moment and not any(is_kind(kind) for is_kind in _NUMBERS + _TEXTS):
            words = "numbers or timestamps" if key in TIMES else "numbers"
            raise InputError(f"{path}: column '{name}' must be {words} (type {available[name]})")

    def parquet(wanted: list[str], _on_malformed: Callable[[Any], None]) -> Iterator[Any]:
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=batch_rows, columns=wanted)

    def lines(wanted: list[str], on_malformed: Callable[[Any], None]) -> Iterator[Any]:
        with _csv_reader(path, wanted, on_malformed) as reader:
            for batch in reader:
                for first in range(0, batch.num_rows, batch_rows):
                    yield batch.slice(first, batch_rows)

    return TraceFile(path, columns, parquet if is_parquet else lines)


def _columns_of(path: Path) -> tuple[dict[str, Any], bool]:
    """Return the names and Arrow types of a file's columns, and whether it is Parquet (else CSV)."""
    try:
        with path.open("rb") as file:
            is_parquet = file.read(4) == _PARQUET
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror}") from error
    try:
        if is_parquet:
            schema = pq.read_schema(path)
            _check_once(path, schema.names)
            return _leaves(schema), True
        problem = _head_problem(path)
        if problem:
            raise InputError(f"{path}: {problem}")
        with _csv_reader(path, None, lambda _row: None) as reader:
            _check_once(path, reader.schema.names)
            return dict.fromkeys(reader.schema.names, pa.string()), False
    except (pa.ArrowException, OSError, ValueError) as error:
        kind = "Parquet" if is_parquet else "CSV"
        raise InputError(f"{path}: not readable as {kind}: {_first_line(error)}") from error


def _check_once(path: Path, names: Sequence[str]) -> None:
    """Refuse a file that has a column twice."""
    for name in (each for names_of_one in COLUMNS.values() for each in names_of_one):
        if names.count(name) > 1:
            raise InputError(f"{path}: has {names.count(name)} columns '{name}'; leave one")


def _text_stream(path: Path) -> Any:
    """Open a file, decompressed if its content is compressed, whatever its name."""
    with path.open("rb") as file:
        magic = file.read(4)
    compression = next((name for start, name in _COMPRESSED.items() if magic.startswith(start)), None)
    return pa.input_stream(str(path), compression=compression)


def _head_problem(path: Path) -> str | None:
    """Return why the begin of a file cannot be the header of a CSV file, or None."""
    with _text_stream(path) as stream:
        head = stream.read(_HEAD_BYTES)
    line = head.splitlines()[0] if head else b""
    control = next((byte for byte in line if byte < 0x20 and byte != 0x09), None)  # noqa: PLR2004 - a tab may be
    if not head:
        return "is empty"
    if head.startswith(_PARQUET):
        return "is a compressed Parquet file; decompress it first"
    zeros = sorted((line[::2].count(0), line[1::2].count(0)))
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or (zeros[0] == 0 and zeros[1] > len(line) // 4):
        return "is UTF-16 text; convert it to UTF-8 first"
    if control is not None:
        return f"is neither Parquet nor CSV (byte 0x{control:02x} in its first line)"
    return None


def _leaves(schema: Any) -> dict[str, Any]:
    """Return names and types of the columns, and, dotted, of those directly inside records."""
    found: dict[str, Any] = {}
    for entry in schema:
        if pa.types.is_struct(entry.type):
            found |= {f"{entry.name}.{child.name}": child.type for child in entry.type}
        else:
            found[entry.name] = entry.type
    return found


def _csv_reader(path: Path, columns: list[str] | None, on_malformed: Callable[[Any], None]) -> Any:
    def skip(row: Any) -> str:
        on_malformed(row)
        return "skip"

    # Everything is read as text and converted here: one garbled cell must not cost the file.
    convert = csv.ConvertOptions(
        include_columns=columns,
        column_types={name: pa.string() for name in columns or ()},
        null_values=_NULLS,
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
    )
    stream = _text_stream(path)
    if stream.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
        stream = _text_stream(path)
    return csv.open_csv(
        stream,
        # In Latin-1 every byte is a character, so invalid UTF-8 costs its row only (pyarrow decodes a malformed row
        # before it calls `skip`). Numbers are ASCII in both.
        read_options=csv.ReadOptions(block_size=_CSV_BLOCK_BYTES, encoding="latin-1"),
        parse_options=csv.ParseOptions(invalid_row_handler=skip),
        convert_options=convert,
    )


def _find_columns(path: Path, available: dict[str, Any]) -> dict[str, str]:
    found = {key: next((name for name in names if name in available), "") for key, names in COLUMNS.items()}
    missing = [" or ".join(f"'{name}'" for name in COLUMNS[key]) for key, name in found.items() if not name]
    if not missing:
        return found
    hint = ""
    if len(available) == 1 and (other := re.search(r"[;\t|]", next(iter(available)))):
        hint = f"; its fields are separated by {other[0]!r}, must be by commas"
    elif not found["priority"] or not found["scheduling_class"]:
        hint = "; the trace has priority and scheduling_class in its event tables, join by collection_id"
    have = _printable(", ".join(list(available)[:30])) or "none"
    word = "column" if len(missing) == 1 else "columns"
    raise InputError(f"{path}: missing {word} {', '.join(missing)} (it has: {have}){hint}")


def _first_line(error: BaseException) -> str:
    return _printable((str(error).splitlines() or [type(error).__name__])[0])


def _printable(text: str) -> str:
    """Cut to a length for messages; control characters and the like become '?'."""
    shown = "".join(c if c.isprintable() else "?" for c in text[:_SHOWN_CHARACTERS])
    return shown + ("..." if len(text) > _SHOWN_CHARACTERS else "")
