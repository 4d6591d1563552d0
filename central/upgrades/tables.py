"""Tables of jobs and of instances, from CSV or Parquet; what is wrong is one line with the row and the value.

A JOBS file has a row per job (`Jobs`), a ROWS file one per instance: `machine, job`, the metric, and optionally
`weight` (the job's, the same in all of its rows) or `quota` (the instance's; a job's weight is then their sum). With
neither, each instance counts the same.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from central.models.groups import Column, Floats, Ints, group, sums
from central.models.wsmeter import Observed, Shares
from central.tables.csv_files import read_texts, write_csv
from whitepanda.common.durable import replacing
from whitepanda.common.errors import InputError

__all__ = [
    "Jobs",
    "Rows",
    "jobs_of",
    "read_jobs",
    "read_machines",
    "read_rows",
    "replace_file",
    "write_jobs",
    "write_machines",
]

_METRICS = ("value", "ipc", "mips")
_PARQUET = (".parquet", ".pq")
#: Numbers whose squares and their quotients are still numbers; in any unit, nothing that is measured lies outside.
_SMALLEST, _LARGEST = 1e-30, 1e30
_SHOWN = 20  # columns in an error


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs of a fleet as it is. Shapes (jobs,).

    Attributes:
        job: distinct names.
        weight: share of quota or any other, > 0.
        mean: of the metric over the job's instances, > 0.
        std: of one instance, population (ddof = 0), > 0.
        instances: that there are, >= 1.
        cost: of observing one instance, > 0.

    """

    job: Column
    weight: Floats
    mean: Floats
    std: Floats
    instances: Ints
    cost: Floats


@dataclass(frozen=True, slots=True)
class Rows:
    """Instances, and the weights of their jobs.

    Attributes:
        observed: instances with their metric; NaN throughout where the file has none.
        weights: of the jobs.
        metric: the metric's column; "" where there is none.
        weighed_by: "weight", "quota", or "instances" where the file has neither.

    """

    observed: Observed
    weights: Shares
    metric: str
    weighed_by: str


class _File:
    """A CSV or Parquet file's columns, checked as they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        is_parquet = path.suffix.lower() in _PARQUET
        try:
            self.table: pa.Table = pq.read_table(path) if is_parquet else _csv(path)
        except OSError as error:
            if isinstance(error, pa.ArrowException) or error.strerror is None:
                raise InputError(f"{path}: cannot be read: {_line(error)}") from error
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        except pa.ArrowException as error:
            raise InputError(f"{path}: is no Parquet: {_line(error)}") from error
        names = self.table.column_names
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"{path}: two columns are called {_shown(twice)}")
        if not self.table.num_rows:
            raise InputError(f"{path}: has no rows")

    @property
    def columns(self) -> list[str]:
        return list(self.table.column_names)

    def require(self, names: Sequence[str]) -> None:
        missing = [name for name in names if name not in self.columns]
        if missing:
            word = "column" if len(missing) == 1 else "columns"
            raise InputError(f"{self.path}: no {word} {', '.join(missing)}; it has {self.told}")

    @property
    def told(self) -> str:
        """Its columns, for an error."""
        more = len(self.columns) - _SHOWN
        names = ", ".join(map(_shown, self.columns[:_SHOWN]))
        return f"{names} and {more} more" if more > 0 else names

    def names(self, column: str) -> Column:
        """Return a column as text; every row must have some."""
        try:
            texts = pc.utf8_trim_whitespace(self.table[column].cast(pa.string()))
        except pa.ArrowException as error:
            kind = self.table[column].type
            raise InputError(f"{self.path}: column {column} must be names, not {kind}") from error
        empty = pc.fill_null(pc.equal(texts, ""), True)
        if pc.any(empty).as_py():
            row = pc.index(empty, True).as_py()
            raise InputError(f"{self.path}: column {column} is empty (row {row + 1})")
        return np.asarray(texts.to_numpy(zero_copy_only=False)).astype(str)

    def positive(self, column: str) -> Floats:
        """Return a column as numbers, all above 0 and such that one can reckon with them."""
        try:
            values = np.asarray(
                self.table[column].cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64
            )
        except pa.ArrowException as error:
            raise InputError(f"{self.path}: {self._why_no_numbers(column)}") from error
        wrong = ~((values >= _SMALLEST) & (values <= _LARGEST))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            told = self.table[column][row].as_py()
            value = "empty" if told is None else told
            is_above = np.isfinite(values[row]) and values[row] > 0
            bounds = f"from {_SMALLEST:g} to {_LARGEST:g}" if is_above else "above 0"
            raise InputError(
                f"{self.path}: column {column} must be numbers {bounds} (row {row + 1}: {value})"
            )
        return values

    def _why_no_numbers(self, column: str) -> str:
        """Say which row of a column has no number."""
        kind = self.table[column].type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            return f"column {column} must be numbers above 0, not {kind}"
        for row, text in enumerate(self.table[column].to_pylist()):
            try:
                float(text or "nan")
            except ValueError:
                return f"column {column} must be numbers above 0 (row {row + 1}: {_shown(text)})"
        return f"column {column} must be numbers above 0, without other signs"

    def whole(self, column: str) -> Ints:
        """Return a column as whole numbers, all above 0."""
        values = self.positive(column)
        wrong = (values != np.rint(values)) | (values > 2**53)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise InputError(
                f"{self.path}: column {column} must be whole numbers (row {row + 1}: {values[row]:g})"
            )
        return values.astype(np.int64)


def read_jobs(path: Path) -> Jobs:
    """Read a JOBS file: `job, weight, mean, std, instances, cost`.

    Without a column `cost` an instance costs its share of all quota, weight / instances / sum of weights.

    Raises:
        InputError: it cannot be read, lacks a column, or a value cannot be.

    """
    file = _File(path)
    file.require(("job", "weight", "mean", "std", "instances"))
    job = file.names("job")
    _refuse_twice(path, "job", job)
    weight, instances = file.positive("weight"), file.whole("instances")
    cost = file.positive("cost") if "cost" in file.columns else weight / weight.sum() / instances
    return Jobs(job, weight, file.positive("mean"), file.positive("std"), instances, cost)


def read_rows(path: Path, metric: str = "", *, needs_metric: bool = True) -> Rows:
    """Read a ROWS file.

    Args:
        path: the file.
        metric: its column; "" takes the first that there is of value, ipc and mips.
        needs_metric: whether a file without it is refused.

    Raises:
        InputError: it cannot be read, lacks a column, or a value cannot be.

    """
    file = _File(path)
    file.require(("machine", "job"))
    found = metric or next((name for name in _METRICS if name in file.columns), "")
    if needs_metric and not found:
        raise InputError(
            f"{path}: no column value, ipc or mips; name the metric's with --metric; it has {file.told}"
        )
    if found:
        file.require((found,))
    machine, job = file.names("machine"), file.names("job")
    value = file.positive(found) if found else np.full(len(job), np.nan)
    weighed_by = next((name for name in ("weight", "quota") if name in file.columns), "instances")
    weights = file.positive(weighed_by) if weighed_by != "instances" else np.ones(len(job))
    return Rows(
        Observed(machine, job, value), _shares(path, job, weights, weighed_by == "weight"), found, weighed_by
    )


def _shares(path: Path, job: Column, values: Floats, is_the_jobs: bool) -> Shares:  # noqa: FBT001 - of a column
    (names,), number = group(job)
    if not is_the_jobs:
        return Shares(names, sums(number, values, len(names)))
    weight = np.zeros(len(names))
    weight[number] = values
    other = np.flatnonzero(weight[number] != values)
    if len(other):
        row = int(other[0])
        raise InputError(
            f"{path}: job {job[row]} has weights {values[row]:g} and {weight[number[row]]:g}; weight is the job's, the "
            "same in all of its rows; an instance's own belongs into a column quota"
        )
    return Shares(names, weight)


def jobs_of(rows: Rows) -> Jobs:
    """Return the jobs of a fleet whose instances were all measured; those without any spread are left out."""
    (names,), number = group(rows.observed.job)
    value = rows.observed.value
    count = np.bincount(number)
    mean = sums(number, value, len(names)) / count
    std = np.sqrt(sums(number, (value - mean[number]) ** 2, len(names)) / count)
    weight = rows.weights.weight[np.searchsorted(rows.weights.job, names)]
    cost = weight / weight.sum() / count
    order = np.argsort(-weight, kind="stable")
    order = order[std[order] > 1e-12 * mean[order]]
    return Jobs(names[order], weight[order], mean[order], std[order], count[order], cost[order])


def write_jobs(path: Path, jobs: Jobs) -> None:
    """Write a JOBS file, CSV or (by its ending) Parquet.

    Raises:
        InputError: it cannot be written.

    """
    columns = ("job", "weight", "mean", "std", "instances", "cost")
    _write(path, pa.table({name: getattr(jobs, name) for name in columns}))


def read_machines(path: Path) -> list[str]:
    """Read a list of machines: a file with a column `machine`, as `fleet draw` writes it, or one name per line.

    Raises:
        InputError: it cannot be read, or names a machine twice.

    """
    lines: list[str] = []
    if path.suffix.lower() not in _PARQUET:
        try:
            lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: is no UTF-8 text (byte {error.start + 1})") from error
    names: list[str] = lines
    if not lines or "machine" in [name.strip() for name in lines[0].replace('"', "").split(",")]:
        file = _File(path)
        file.require(("machine",))
        names = [str(name) for name in file.names("machine")]
    if not names:
        raise InputError(f"{path}: names no machine")
    _refuse_twice(path, "machine", np.array(names))
    return names


def write_rows(path: Path, observed: Observed) -> None:
    """Write a ROWS file with the columns machine, job and value.

    Raises:
        InputError: it cannot be written.

    """
    _write(path, pa.table({name: getattr(observed, name) for name in ("machine", "job", "value")}))


def write_machines(path: Path, machines: Sequence[str]) -> None:
    """Write a list of machines, CSV or Parquet with a column `machine`.

    Raises:
        InputError: it cannot be written.

    """
    _write(path, pa.table({"machine": list(machines)}))


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; only its owner can read it: it names jobs or machines.

    Raises:
        InputError: it cannot be written.

    """
    try:
        with replacing(path, mode=0o600) as file:
            file.write(content)
    except OSError as error:
        raise InputError(f"{path}: cannot write: {error.strerror or _line(error)}") from error


def _write(path: Path, table: pa.Table) -> None:
    buffer = io.BytesIO()
    if path.suffix.lower() in _PARQUET:
        pq.write_table(table, buffer)
    else:
        write_csv(table, buffer)
    replace_file(path, buffer.getvalue())


def _refuse_twice(path: Path, column: str, names: Column) -> None:
    values, counts = np.unique(names, return_counts=True)
    if (counts > 1).any():
        raise InputError(f"{path}: {column} {values[counts > 1][0]} is there twice; each must be once")


def _csv(path: Path) -> pa.Table:
    """Read a CSV file; names stay text, also where they look like numbers. Spaces after commas do not count."""
    content = path.read_bytes()
    try:
        first = content.split(b"\n", 1)[0].decode("utf-8-sig").splitlines()
        header = next(csv.reader(first[:1]), [])
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is no UTF-8 text (row 0, the header)") from error
    except csv.Error as error:
        raise InputError(f"{path}: is no CSV with a header: {_line(error)}") from error
    text = {name: pa.string() for name in header if name.strip() in ("job", "machine")}
    options = pa_csv.ConvertOptions(column_types=text, null_values=[""])
    try:
        table = pa_csv.read_csv(pa.BufferReader(content), convert_options=options)
    except pa.ArrowException as error:
        raise InputError(f"{path}: {_why_no_csv(content, error)}") from error
    return read_texts(table.rename_columns([name.strip() for name in table.column_names]))


def _why_no_csv(content: bytes, error: Exception) -> str:
    """Say what is wrong with a text that pyarrow cannot read, with the row."""
    number, header = -1, 0
    try:
        lines = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
        for number, row in enumerate(row for row in csv.reader(lines) if row):
            header = header or len(row)
            if len(row) != header:
                return f"is no CSV with a header: row {number} has {len(row)} values, the header {header}"
    except UnicodeDecodeError:
        return f"is no UTF-8 text (near row {number + 1})"
    except csv.Error as wrong:
        return f"is no CSV with a header: row {number + 1}: {wrong}"
    return f"is no CSV with a header: {_line(error)}"


def _shown(text: str) -> str:
    """Return a text of somebody else's so that it fits into a line of an error."""
    cut = text if len(text) <= 2 * _SHOWN else text[: 2 * _SHOWN] + "..."
    return cut if cut.isprintable() else ascii(cut)


def _line(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return first if first.isprintable() else ascii(first)
