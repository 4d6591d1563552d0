"""Estimates for the rows of a file, and files written whole or not at all."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from agent.analysis.degradation.model import GroupBaseline, Model, parse
from central.degradation.runs import Table, baselines_of
from central.tables.csv_files import write_table
from whitepanda.common.errors import InputError
from whitepanda.common.files.durable import writing

_NEW = ("degradation", "low", "high", "reason")


@dataclass(frozen=True, slots=True)
class Predicted:
    """What was estimated: rows, those with an estimate, and the others by reason."""

    rows: int
    estimated: int
    reasons: Mapping[str, int]
    predicted_column: str


def read_model(path: Path) -> tuple[Model, dict[str, Any]]:
    """Read a model file: the model, and the content. Raises InputError if it is not there, no JSON, or no model."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: model: must be a JSON object")
    try:
        return parse(data), data
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def write_model(path: Path, data: Mapping[str, Any]) -> None:
    """Write a model file. Raises InputError if it cannot be written."""
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    with writing(path, mode=0o644) as file:
        file.write(text.encode())


def predict_rows(rows: Path, model: Model, out: Path, baseline_where: str = "") -> Predicted:
    """Estimate the degradation of a file's rows (CSV or Parquet, with the model's inputs and its groups' columns).

    `out` (CSV or Parquet by its name) has the rows in their order, and the columns degradation, low, high, reason and
    predicted_<target>. Rows that meet `baseline_where` are the baselines of their groups, instead of the model's.
    Raises InputError if a column is missing, not numeric or in the way, no row is a baseline, or `out` cannot be
    written.
    """
    table = Table(rows)
    table.require(model.group_by, "the model's groups")
    table.require(model.inputs, "the model's inputs")
    predicted = f"predicted_{model.target}"
    for name in (*_NEW, predicted):
        if name in table.columns:
            raise InputError(f"{rows}: has a column {name} already, which the estimates would be written to")
    values = np.column_stack([table.numbers(name) for name in model.inputs])
    keys = table.labels(model.group_by)
    groups = dict(model.groups)
    if baseline_where:
        is_baseline = table.where(baseline_where, "--baseline-where")
        has_target = model.target in table.columns
        target = table.numbers(model.target) if has_target else np.full(table.rows, math.nan)
        if not is_baseline.any():
            raise InputError(f"{rows}: no row is a baseline by --baseline-where {baseline_where!r}")
        # A later campaign's groups may have the names of the fit's: what was measured beside these rows counts.
        groups.update(baselines_of(keys, is_baseline, target, values))
    unknown = GroupBaseline(0, math.nan, np.full(len(model.inputs), math.nan))
    found = [groups.get(key, unknown) for key in keys]
    baseline = np.array([g.values for g in found]).reshape(values.shape)
    estimates = model.predict(values, baseline, np.array([g.rows for g in found], dtype=np.int64))
    targets = estimates.degradation * np.array([g.target for g in found])
    # Without any baseline the reason is that, whatever else the row lacks.
    reasons = ["no_baseline" if not group.rows else why for group, why in zip(found, estimates.reasons, strict=True)]
    result = table.all_columns()
    numbers = (estimates.degradation, estimates.low, estimates.high)
    for name, column in zip(_NEW, numbers, strict=False):
        result = result.append_column(name, _nullable(column))
    result = result.append_column("reason", pa.array(reasons, pa.string()))
    result = result.append_column(predicted, _nullable(targets))
    write_table(out, result)
    counts = Counter(reason for reason in reasons if reason)
    return Predicted(table.rows, table.rows - counts.total(), dict(counts.most_common()), predicted)


def _nullable(values: NDArray[np.float64]) -> pa.Array:
    """Return a column in which NaN is null: an empty field in CSV."""
    return pa.array(values, from_pandas=True)
