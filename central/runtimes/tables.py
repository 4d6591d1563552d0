"""Tables of measured runtimes and of features: CSV or Parquet, checked."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from central.models.groups import Floats
from central.models.pitot import ALONE, Rows
from central.tables.user_files import UserTable
from whitepanda.common.errors import InputError

_SEPARATOR = ";"
_NUMBERED = re.compile(r"interferer_[0-9]+")
#: Other programs' words for an empty value.
_LIKE_NOTHING = ("nan", "none", "null", "na", "n/a")
#: In place of an unknown name; `ALONE` is -1.
_STRANGE = -2
#: Squares of larger values overflow single precision.
_MAX_FEATURE = 1e18
#: More are taken for a mistake in the table.
MAX_INTERFERERS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """Names in order, and the place of each."""

    names: tuple[str, ...]
    places: dict[str, int]

    @classmethod
    def of(cls, names: tuple[str, ...]) -> "Names":
        """Number the names."""
        return cls(names, {name: place for place, name in enumerate(names)})

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Features of workloads or platforms: values (names, columns)."""

    names: Names
    columns: tuple[str, ...]
    values: Floats


@dataclass(frozen=True, slots=True, eq=False)
class NamedRows:
    """Rows of a table by name: for each row the places of its names in `workloads`, `platforms` and `interferers`."""

    path: Path
    table: UserTable
    workloads: tuple[str, ...]
    platforms: tuple[str, ...]
    interferers: tuple[str, ...]
    rows: Rows

    def placed(self, workloads: Names, platforms: Names, remedy: str) -> Rows:
        """Return the rows as places in other lists of names; an interferer like `NaN` counts as none if not a name.

        Raises InputError if a name is not among them; says the first, how many there are, and `remedy`.
        """
        rows, is_known = self.known(workloads, platforms)
        if is_known.all():
            return rows
        kinds = (
            ("workload", self.workloads, self.rows.workload, rows.workload),
            ("platform", self.platforms, self.rows.platform, rows.platform),
            # Not those of `rows`, which may have moved.
            ("interferer", self.interferers, self.rows.interferers, self._beside(workloads)),
        )
        what, names, ids, places = next(kind for kind in kinds if (kind[3] == _STRANGE).any())
        unknown = np.unique(ids[places == _STRANGE])
        row = int(np.flatnonzero((ids == unknown[0]).reshape(len(ids), -1).any(axis=1))[0])
        more = f", and {len(unknown) - 1:,} more" if len(unknown) > 1 else ""
        count = int((~is_known).sum())
        such = f"; {count:,} rows with unknown names" if count > 1 else ""
        raise InputError(
            f"{self.path}: {what} {names[unknown[0]]!r} is not known (row {row + 1}{more}{such}); {remedy}"
        )

    def known(self, workloads: Names, platforms: Names) -> tuple[Rows, NDArray[np.bool_]]:
        """Return the rows as places in other lists of names, and which rows have no name that is not there."""
        w = _map(self.workloads, self.rows.workload, workloads)
        p = _map(self.platforms, self.rows.platform, platforms)
        k = self._beside(workloads)
        is_known = (w != _STRANGE) & (p != _STRANGE) & (k != _STRANGE).all(axis=1)
        moved = any(means_alone(name) and name not in workloads.places for name in self.interferers)
        return Rows(w, p, _left(k) if moved else k), is_known

    def _beside(self, workloads: Names) -> NDArray[np.int64]:
        return _map(self.interferers, self.rows.interferers, workloads, may_be_nothing=True)


def means_alone(name: str) -> bool:
    """Return whether other programs write this for no interferer; a workload of the same name comes first."""
    return name.casefold() in _LIKE_NOTHING


def _map(
    names: tuple[str, ...], ids: NDArray[np.int64], into: Names, *, may_be_nothing: bool = False
) -> NDArray[np.int64]:
    """Return places in `into`, `_STRANGE` for names that it has not."""
    places = [into.places.get(name, ALONE if may_be_nothing and means_alone(name) else _STRANGE) for name in names]
    # The last place is for `ALONE`, which is -1.
    return np.array([*places, ALONE], dtype=np.int64)[ids]


def read_rows(path: Path) -> NamedRows:
    """Read rows of workloads beside others: columns workload, platform, and interferer, interferer_1.., or interferers.

    No interferer is an empty value or null (see also `means_alone`); without such a column all ran alone. `interferers`
    is a list (Parquet) or names separated by `;`. Columns of CSV stay text. Raises InputError if the file cannot be
    read, a column is missing, or a row has no workload or platform.
    """
    table = UserTable(path)
    table.require("workload", "platform")
    (workload, workloads), (platform, platforms) = _named(table, "workload"), _named(table, "platform")
    ids, names = _interferers(path, table.cells)
    return NamedRows(path, table, workloads, platforms, names, Rows(workload, platform, ids))


def read_log_runtimes(rows: NamedRows) -> Floats:
    """Return the logarithms of the column runtime_us, shape (rows,).

    Raises InputError if there is no such column, or a value is missing, not finite, zero or negative.
    """
    rows.table.require("runtime_us")
    values = rows.table.numbers("runtime_us", low=-math.inf, empty=math.nan)
    wrong = np.flatnonzero(~(values > 0))
    if len(wrong):
        value = "none" if np.isnan(values[wrong[0]]) else f"{values[wrong[0]]:g}"
        which = f"row {wrong[0] + 1}: {value}, {len(wrong):,} such rows"
        raise InputError(f"{rows.path}: runtime_us must be more than 0 in every row ({which})")
    return np.log(values)


def read_features(path: Path, what: str) -> Features:
    """Read features: a column named `what` (workload or platform), every other column is a number.

    Raises InputError if the file cannot be read, a name is missing or twice, a value is missing or no number.
    """
    table = UserTable(path)
    table.require(what)
    ids, names = _named(table, what)
    if len(names) < len(ids):
        twice = names[int(np.argmax(np.bincount(ids)))]
        raise InputError(f"{path}: {what} {twice!r} has several rows; give each its features once")
    columns = tuple(name for name in table.columns if name != what)
    every = [table.numbers(name, low=-math.inf, empty=math.nan) for name in columns]
    values = np.column_stack([np.empty((len(ids), 0)), *every])
    for row, column in np.argwhere(np.isnan(values)):
        raise InputError(f"{path}: column {columns[column]} has no value in row {row + 1}; every feature needs one")
    for row, column in np.argwhere(np.abs(values) > _MAX_FEATURE):
        which = f"column {columns[column]} is too large in row {row + 1} ({values[row, column]:g})"
        raise InputError(f"{path}: {which}; give its logarithm")
    order = np.argsort(ids)
    return Features(Names.of(names), columns, values[order])


def _named(table: UserTable, column: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return each row's place among the distinct names of a column, and these; raises InputError if one is missing."""
    ids, names = _codes(_texts(table.path, column, table.cells[column]))
    for row in np.flatnonzero(ids == ALONE):
        raise InputError(f"{table.path}: row {row + 1} has no {column}")
    return ids, names


def _texts(path: Path, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_nested(column.type):
        raise InputError(f"{path}: column {name} must be one name per row (it is {column.type})")
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)
    try:
        texts = column.cast(pa.string())
    except pa.ArrowException as error:
        raise InputError(
            f"{path}: column {name} must be names (it is {column.type}: {str(error).partition(chr(10))[0]})"
        ) from error
    return pc.utf8_trim_whitespace(pc.fill_null(texts, ""))


def _codes(texts: pa.ChunkedArray) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return each text's place among the distinct ones (`ALONE` for ""), and these in the order they appear in."""
    encoded = texts.combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    ids = np.asarray(encoded.indices, dtype=np.int64)
    kept = [name for name in names if name]
    places = {name: place for place, name in enumerate(kept)}
    mapped = np.array([places.get(name, ALONE) for name in names] or [ALONE], dtype=np.int64)
    return (mapped[ids] if len(ids) else ids), tuple(kept)


def _interferers(path: Path, columns: pa.Table) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    numbered = [name for name in columns.column_names if _NUMBERED.fullmatch(name)]
    found = [name for name in ("interferer", "interferers") if name in columns.column_names]
    if len(found) + bool(numbered) > 1:
        raise InputError(f"{path}: columns {', '.join((*found, *numbered))} say the same; keep one kind")
    rows = columns.num_rows
    if not found and not numbered:
        meant = [name for name in columns.column_names if name.strip().casefold().startswith("interfer")]
        if meant:
            raise InputError(f"{path}: column {meant[0]} is not known; is it interferer, interferers or interferer_1?")
        return np.full((rows, 1), ALONE, dtype=np.int64), ()
    if found != ["interferers"]:
        texts = [_texts(path, name, columns[name]) for name in (numbered or found)]
        ids, names = _codes(pa.chunked_array([text.combine_chunks() for text in texts], pa.string()))
        return _left(ids.reshape(len(texts), rows).T), names
    column = columns["interferers"].combine_chunks()
    if not pa.types.is_list(column.type) and not pa.types.is_large_list(column.type):
        joined = _texts(path, "interferers", columns["interferers"])
        column = pc.split_pattern(joined.combine_chunks(), _SEPARATOR)
    parents = np.asarray(pc.list_parent_indices(column), dtype=np.int64)
    ids, names = _codes(_texts(path, "interferers", pa.chunked_array([pc.list_flatten(column)])))
    parents, ids = parents[ids != ALONE], ids[ids != ALONE]
    counts = np.bincount(parents, minlength=rows)
    if counts.max(initial=0) > MAX_INTERFERERS:
        row = int(counts.argmax())
        raise InputError(f"{path}: row {row + 1} has {counts[row]} interferers, more than {MAX_INTERFERERS}")
    result = np.full((rows, max(1, int(counts.max(initial=1)))), ALONE, dtype=np.int64)
    first = np.cumsum(counts) - counts
    result[parents, np.arange(len(parents)) - first[parents]] = ids
    return result, names


def _left(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Move `ALONE` behind the interferers of each row."""
    order = np.argsort(ids == ALONE, axis=1, kind="stable")
    return np.take_along_axis(ids, order, axis=1)
