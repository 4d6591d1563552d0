"""RUNS files: rows of measured runs, with any columns, read and filtered by DuckDB, and made into arrays.

The user's expressions run on a table in memory, on a connection that can open no file, nor anything else.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from agent.analysis.degradation.model import GroupBaseline, group_key
from central.lake import duckdb_connection
from central.models.groups import Floats
from whitepanda.common.errors import InputError
from whitepanda.common.files.csv_cells import QUOTED, WITHIN_QUOTED, csv_text

_LEFT_OUT = {
    "not_wanted": "not wanted (--where)",
    "without_target": "without a target",
    "without_baseline": "without a baseline of their group",
    "without_feature": "with a feature not known",
}


class Table:
    """The rows of one CSV or Parquet file, in the file's order."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises InputError if it is not there, not readable, or not of its kind."""
        self.path = path
        self._duckdb = duckdb_connection.connect()
        name = str(path)
        if any(c in name for c in "*?["):
            raise InputError(f"{path}: *, ? and [ in a file's name are not supported; rename it")
        _check_file(path)
        is_parquet = path.suffix.lower() in (".parquet", ".pq")
        reader = "read_parquet(?)" if is_parquet else "read_csv(?, header = true, sample_size = -1)"
        try:
            self._duckdb.execute(f"CREATE TABLE read AS SELECT * FROM {reader}", [name])  # noqa: S608 - constants
            columns = self._duckdb.execute("DESCRIBE read").fetchall()
            texts_of = "*" if is_parquet else ", ".join(_text(name, kind) for name, kind, *_ in columns)
            self._duckdb.execute(f"CREATE TABLE runs AS SELECT {texts_of}, rowid AS __row FROM read")  # noqa: S608 - quoted
            self._duckdb.execute("DROP TABLE read")
            self._duckdb.execute("SET enable_external_access = false")
            self._duckdb.execute("SET lock_configuration = true")
        except duckdb.Error as error:
            kind = "Parquet" if is_parquet else "CSV"
            raise InputError(f"{path}: cannot be read as {kind}: {_line(error)}") from error
        described = self._duckdb.execute("DESCRIBE runs").fetchall()
        self.columns: tuple[str, ...] = tuple(row[0] for row in described if row[0] != "__row")
        if not is_parquet:
            _check_header(path, len(self.columns))
        self.rows = int(self._duckdb.execute("SELECT count(*) FROM runs").fetchall()[0][0])

    def require(self, names: Sequence[str], what: str) -> None:
        """Raise InputError if a column is missing; name the first such one, and the columns of the file."""
        for name in names:
            if name not in self.columns:
                raise InputError(f"{self.path}: no column {name} (wanted by {what}); it has {', '.join(self.columns)}")

    def numbers(self, name: str) -> Floats:
        """Return a column as numbers, shape (rows,), NaN for null. Raises InputError if a value is not finite."""
        column = _quoted(name)
        query = f"SELECT try_cast({column} AS DOUBLE), {column} FROM runs ORDER BY __row"  # noqa: S608 - quoted
        table = self._duckdb.sql(query).to_arrow_table()
        cast, raw = table.column(0), table.column(1)
        values: Floats = np.asarray(cast.to_numpy(zero_copy_only=False), dtype=np.float64)
        is_null = np.asarray(raw.is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)
        wrong = np.flatnonzero((np.isnan(values) & ~is_null & np.asarray(cast.is_null())) | np.isinf(values))
        if len(wrong):
            row = int(wrong[0])
            raise InputError(f"{self.path}: column {name} must be numbers (row {row + 1}: {_shown(raw[row])})")
        return values

    def labels(self, names: Sequence[str]) -> list[tuple[str, ...]]:
        """Return each row's key by these columns, as `group_key` makes it."""
        if not names:
            return [()] * self.rows
        columns = ", ".join(_quoted(name) for name in names)
        rows = self._duckdb.execute(f"SELECT {columns} FROM runs ORDER BY __row").fetchall()  # noqa: S608 - quoted
        seen: dict[tuple[Any, ...], tuple[str, ...]] = {}
        return [seen.get(row) or seen.setdefault(row, group_key(row)) for row in rows]

    def where(self, expression: str, option: str) -> NDArray[np.bool_]:
        """Return where a user's expression is true, shape (rows,). Raises InputError if it is not a condition."""
        if not expression.strip():
            raise InputError(f"{option}: must be a condition on the columns, such as phase = 'quiet'; it is empty")
        query = f"SELECT coalesce(({expression}\n)::BOOLEAN, false) FROM runs ORDER BY __row"  # noqa: S608 - no file, no network: see the class
        try:
            if len(duckdb.extract_statements(query)) != 1:
                raise InputError(f"{option}: must be one condition (value {expression})")
            values = self._duckdb.sql(query).to_arrow_table().column(0)
        except duckdb.Error as error:
            raise InputError(f"{option}: {_line(error)} (value {expression})") from error
        if len(values) != self.rows:
            raise InputError(f"{option}: must be a condition on each row (value {expression})")
        return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.bool_)

    def all_columns(self) -> pa.Table:
        """Return the rows as they were read."""
        columns = ", ".join(_quoted(name) for name in self.columns)
        query = f"SELECT {columns} FROM runs ORDER BY __row"  # noqa: S608 - quoted
        return self._duckdb.sql(query).to_arrow_table()


@dataclass(frozen=True, slots=True)
class Columns:
    """The roles of a RUNS file's columns. `scenario` and `time` are "" without such a column."""

    target: str
    baseline_where: str
    group_by: tuple[str, ...]
    features: tuple[str, ...]
    scenario: str = ""
    time: str = ""
    where: str = ""
    extra_inputs: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The features, then the extra inputs that are none."""
        return tuple(dict.fromkeys((*self.features, *self.extra_inputs)))


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """The n usable rows of a RUNS file: each with a target, a group baseline, and all features known."""

    columns: Columns
    values: Floats  # shape (n, inputs), and so has `baseline`; all others (n,)
    baseline: Floats
    baseline_rows: NDArray[np.int64]
    degradation: Floats
    is_baseline: NDArray[np.bool_]
    scenarios: NDArray[np.str_]  # names, as `runs`
    runs: NDArray[np.str_]
    at_s: Floats  # NaN without a time column
    groups: Mapping[tuple[str, ...], GroupBaseline]
    counts: Mapping[str, int]  # rows read, and those left out, by reason
    left_out_features: tuple[str, ...] = ()  # those that no row has a value of

    @property
    def features(self) -> tuple[Floats, Floats]:
        """Values and baselines of the features, without the extra inputs; each (n, features)."""
        count = len(self.columns.features)
        return self.values[:, :count], self.baseline[:, :count]

    def take(self, rows: NDArray[Any]) -> "Runs":
        """Return only some of the rows: a mask or places. Groups and counts stay."""
        arrays = {name: value[rows] for name in self.__slots__ if isinstance(value := getattr(self, name), np.ndarray)}
        return replace(self, **arrays)


def make_runs(table: Table, columns: Columns) -> Runs:
    """Make arrays of a table's rows.

    Raises InputError if a column is missing or not numeric, no row is a baseline, a target is not positive, no row is
    left.
    """
    for option in ("target", "group_by", "features", "scenario", "time"):
        names = getattr(columns, option)
        names = [name for name in ([names] if isinstance(names, str) else names) if name]
        table.require(names, f"--{option.replace('_', '-')}")
    if columns.target in columns.features:
        raise InputError(
            f"--features: {columns.target} is the target, which is not known where degradation is estimated"
        )
    target = table.numbers(columns.target)
    wrong = np.flatnonzero(target <= 0)
    if len(wrong):
        which = f"row {wrong[0] + 1}: {target[wrong[0]]:g}; {len(wrong)} such rows"
        raise InputError(f"{table.path}: the target {columns.target} must be positive ({which})")
    values = np.column_stack([table.numbers(name) for name in columns.inputs])
    is_baseline = table.where(columns.baseline_where, "--baseline-where")
    if not table.rows:
        raise InputError(f"{table.path}: has columns and no rows")
    if not is_baseline.any():
        raise InputError(f"{table.path}: no row is a baseline (--baseline-where {columns.baseline_where})")
    is_wanted = table.where(columns.where, "--where") if columns.where else np.ones(table.rows, dtype=np.bool_)
    keys = table.labels(columns.group_by)
    groups = baselines_of(keys, is_baseline, target, values)
    columns, values, groups, left_out = _known_features(table, columns, values, groups)
    count = len(columns.features)
    baseline, baseline_rows, baseline_target = of_groups(keys, groups, values.shape[1])
    is_complete = ~np.isnan(values[:, :count] + baseline[:, :count]).any(axis=1)
    usable, counts = is_wanted, {"read": table.rows, "not_wanted": int((~is_wanted).sum())}
    conditions = (~np.isnan(target), np.isfinite(baseline_target), is_complete)
    for reason, is_met in zip(("without_target", "without_baseline", "without_feature"), conditions, strict=True):
        counts[reason] = int((usable & ~is_met).sum())
        usable = usable & is_met
    counts["used"] = int(usable.sum())
    if not usable.any():
        raise InputError(f"{table.path}: no usable row of {table.rows:,} ({left_out_words(counts)})")
    labels = table.labels([columns.scenario]) if columns.scenario else [("",)] * table.rows
    scenarios = np.array([label[0] for label in labels], dtype=np.str_)
    runs = Runs(
        columns=columns,
        values=values,
        baseline=baseline,
        baseline_rows=baseline_rows,
        degradation=target / baseline_target,
        is_baseline=is_baseline,
        scenarios=scenarios,
        runs=np.array([" ".join((*key, s)) for key, s in zip(keys, scenarios, strict=True)], dtype=np.str_),
        at_s=table.numbers(columns.time) if columns.time else np.full(table.rows, math.nan),
        groups=groups,
        counts=counts,
        left_out_features=left_out,
    )
    return runs.take(usable)


def left_out_words(counts: Mapping[str, int]) -> str:
    """Return in words which rows of `Runs.counts` are not used; "" where all are."""
    return ", ".join(f"{counts[name]:,} {text}" for name, text in _LEFT_OUT.items() if counts[name])


def of_rows_words(counts: Mapping[str, int]) -> str:
    """Return the same with the number of rows, in brackets; "" where all are used."""
    words = left_out_words(counts)
    return words and f" (of {counts['read']:,} rows: {words})"


def of_groups(
    keys: Sequence[tuple[str, ...]], groups: Mapping[tuple[str, ...], GroupBaseline], inputs: int
) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Return each row's baseline by its group: values (n, inputs), rows and target (n,); NaN and 0 without one."""
    empty = GroupBaseline(0, math.nan, np.full(inputs, math.nan))
    found = [groups.get(key, empty) for key in keys]
    rows, target = np.array([g.rows for g in found], dtype=np.int64), np.array([g.target for g in found])
    return np.array([g.values for g in found]).reshape(len(keys), inputs), rows, target


def baselines_of(
    keys: Sequence[tuple[str, ...]], is_baseline: NDArray[np.bool_], target: Floats, values: Floats
) -> dict[tuple[str, ...], GroupBaseline]:
    """Return each group's baseline: means over its baseline rows of what is known there, NaN where nothing is."""
    members: dict[tuple[str, ...], list[int]] = {}
    for row in np.flatnonzero(is_baseline).tolist():
        members.setdefault(keys[row], []).append(row)
    return {
        key: GroupBaseline(rows=len(rows), target=float(_means(target[rows][:, None])[0]), values=_means(values[rows]))
        for key, rows in members.items()
    }


def _means(values: Floats) -> Floats:
    """Return the mean of each column over what is known."""
    is_known = ~np.isnan(values)
    count = is_known.sum(axis=0)
    total = np.where(is_known, values, 0.0).sum(axis=0)
    means: Floats = np.divide(total, count, out=np.full(values.shape[1], math.nan), where=count > 0)
    return means


def _known_features(
    table: Table, columns: Columns, values: Floats, groups: dict[tuple[str, ...], GroupBaseline]
) -> tuple[Columns, Floats, dict[tuple[str, ...], GroupBaseline], tuple[str, ...]]:
    """Leave out the inputs that no row has: without a PMU there is no IPC, and the other inputs still help."""
    is_known: NDArray[np.bool_] = np.asarray(~np.isnan(values).all(axis=0))
    kept = [name for name, known in zip(columns.inputs, is_known, strict=True) if known]
    left_out = tuple(name for name in columns.features if name not in kept)
    features = tuple(name for name in columns.features if name in kept)
    if not features:
        raise InputError(f"{table.path}: no row has a value of any feature ({', '.join(columns.features)})")
    fewer = replace(columns, features=features, extra_inputs=tuple(x for x in columns.extra_inputs if x in kept))
    groups = {k: GroupBaseline(g.rows, g.target, g.values[is_known]) for k, g in groups.items()}
    return fewer, values[:, is_known], groups, left_out


def _check_file(path: Path) -> None:
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give the name of a CSV or Parquet file")
    if not path.is_file():
        raise InputError(f"{path}: is not a regular file; write the rows to a CSV or Parquet file")
    if not path.stat().st_size:
        raise InputError(f"{path}: is empty; the first line must name the columns")


def _check_header(path: Path, columns: int) -> None:
    """Refuse two columns of a name, which DuckDB renames, and lines of other lengths, of which it makes one column."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        delimiter = max(",;\t|", key=file.readline().count)
        file.seek(0)
        lines = (line for line in csv.reader(file, delimiter=delimiter) if line)
        header = next(lines, [])
        if not header:
            raise InputError(f"{path}: has blank lines only; the first line must name the columns")
        if len(header) == columns:
            names = [name.strip().casefold() for name in header]
            twice = next((header[i] for i, name in enumerate(names) if name in names[:i]), None)
            if twice is not None:
                raise InputError(f"{path}: two columns are named {twice}; give one of them another name")
            return
        for number, line in enumerate(lines, start=1):
            if len(line) != len(header):
                raise InputError(
                    f"{path}: row {number} has {len(line)} fields, but the first line names {len(header)} columns"
                )


def _shown(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except (OverflowError, ValueError):  # DuckDB takes a column of `inf` for dates, which Python has not
        return "a date that is not finite, as DuckDB reads inf"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(name: str, kind: str) -> str:
    """Return a column of a CSV file as its texts and its name were before they were written."""
    column = _quoted(name)
    if kind == "VARCHAR":
        first, within = (pattern.replace("'", "''") for pattern in (QUOTED, WITHIN_QUOTED))
        column = f"regexp_replace({column}, '{within}', '\\1\\2', 'g')"
        column = f"regexp_replace({column}, '{first}', '\\1')"
    return f"{column} AS {_quoted(csv_text(name))}"


def _line(error: duckdb.Error) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
