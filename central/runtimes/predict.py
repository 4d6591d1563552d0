"""Predictions and bounds for the rows of a file."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from central.runtimes.model import Model
from central.runtimes.tables import read_rows
from central.tables.csv_files import write_table
from whitepanda.common.errors import InputError

#: The remedy of a name that is not in a model.
UNKNOWN = (
    "the model knows only what it was fitted with: add it from a few measured rows with `whitepanda runtime update`, "
    "or fit again with them"
)
#: The remedy of too few calibration rows for a share.
TOO_FEW = "ask for no smaller share (--epsilon), or fit with more rows"
_MAX_EPSILON = 0.5


@dataclass(frozen=True, slots=True)
class Predicted:
    """Counts of predicted rows, and the columns written."""

    rows: int  # written
    rows_unknown: int  # without a prediction: they have a name that is not in the model
    columns: tuple[str, ...]
    rows_without_bound: Mapping[int, int]  # by their number of co-runners


def parse_epsilons(text: str) -> tuple[tuple[str, float], ...]:
    """Read shares of runs that may take longer than the bound, such as 0.1,0.05: each in digits and as a number.

    The digits are the shortest that make the number: 0.10, .1 and 1e-1 are all called 0.1, in columns and in JSON.
    Raises InputError if one is not a number above 0 and up to 0.5, or given twice.
    """
    found = list[tuple[str, float]]()
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not 0 < value <= _MAX_EPSILON:
            raise InputError(f"--epsilon: must be numbers above 0 and up to 0.5, by commas (value {text})")
        found.append((np.format_float_positional(value, trim="-"), value))
    words = [word for word, _ in found]
    if twice := next((word for word in words if words.count(word) > 1), ""):
        raise InputError(f"--epsilon: {twice} is given twice (value {text}); give each value once")
    return tuple(found)


def predict_rows(
    path: Path, model: Model, epsilons: Sequence[tuple[str, float]], out: Path, *, skip_unknown: bool = False
) -> Predicted:
    """Predict the rows of a file with workload, platform and interferer(s), as `read_rows` reads it.

    `out` (CSV or Parquet by its name) has the rows in their order, with predicted_us and bound_us_<epsilon>. With
    `skip_unknown` rows with unknown names stay empty, but not all rows. Raises InputError if the file is wrong, a name
    is not in the model, or an epsilon is too small for it.
    """
    named = read_rows(path)
    columns = ("predicted_us", *(f"bound_us_{word}" for word, _ in epsilons))
    for name in columns:
        if name in named.table.columns:
            raise InputError(f"{path}: already has a column {name}, which the predictions would overwrite; rename it")
    rows, is_known = named.known(model.workloads, model.platforms)
    if not is_known.all():
        if not skip_unknown or not is_known.any():
            named.placed(model.workloads, model.platforms, UNKNOWN)  # says which
        rows = rows.take(is_known)
    estimates = model.estimate(rows)
    try:
        bounds = model.bounds(rows, estimates, [value for _, value in epsilons])
    except ValueError as error:
        raise InputError(f"--epsilon: {error}; {TOO_FEW}") from error
    result = named.table.cells
    for name, values in zip(columns, (estimates.log_us, *bounds), strict=True):
        column = np.full(len(is_known), np.nan)
        column[is_known] = np.exp(values)
        result = result.append_column(name, pa.array(column, from_pandas=True))
    write_table(out, result)
    counts = zip(*np.unique_counts(rows.co_runners), strict=True)
    unbounded = {int(beside): int(n) for beside, n in counts if epsilons and int(beside) not in model.pools}
    return Predicted(len(is_known), int((~is_known).sum()), columns, unbounded)
