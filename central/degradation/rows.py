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

from agent.analysis.degradation.model import Model, parse
from central.degradation.runs import Table, baselines_of, of_groups
from central.tables.csv_files import write_table
from whitepanda.common.errors import InputError
from whitepanda.common.files.durable import writing


@dataclass(frozen=True, slots=True)
class Predicted:
    """Counts of rows, of rows with an estimate, and of the others by reason."""

    rows: int
    estimated: int
    reasons: Mapping[str, int]
    predicted_column: str


def read_model(path: Path) -> tuple[Model, dict[str, Any]]:
    """Read a model file: the model, and the content. Raises InputError if it cannot be read or is not a model."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: invalid JSON: {error}") from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: model: must be a JSON object")
    try:
        return parse(data), data
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def write_model(path: Path, data: Mapping[str, Any]) -> None:
    """Write a model file. Raises InputError if it cannot be written."""
    with writing(path, mode=0o644) as file:
        file.write(f"{json.dumps(data, indent=1, allow_nan=False)}\n".encode())


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
    new = ("degradation", "low", "high", "reason", f"predicted_{model.target}")
    for name in new:
        if name in table.columns:
            raise InputError(f"{rows}: already has a column {name}, which the estimates would overwrite; rename it")
    values = np.column_stack([table.numbers(name) for name in model.inputs])
    keys = table.labels(model.group_by)
    groups = dict(model.groups)
    if baseline_where:
        is_baseline = table.where(baseline_where, "--baseline-where")
        has_target = model.target in table.columns
        measured = table.numbers(model.target) if has_target else np.full(table.rows, math.nan)
        if not is_baseline.any():
            raise InputError(f"{rows}: no row is a baseline by --baseline-where {baseline_where!r}")
        # A later campaign's groups may have the names of the fit's: the baselines measured beside these rows count.
        groups.update(baselines_of(keys, is_baseline, measured, values))
    baseline, baseline_rows, target = of_groups(keys, groups, len(model.inputs))
    estimates = model.predict(values, baseline, baseline_rows)
    # Without any baseline the reason is that, whatever else the row lacks.
    reasons = [why if known else "no_baseline" for known, why in zip(baseline_rows, estimates.reasons, strict=True)]
    result = table.all_columns()
    numbers = (estimates.degradation, estimates.low, estimates.high, reasons, estimates.degradation * target)
    for name, column in zip(new, numbers, strict=True):
        # NaN becomes null: an empty field in CSV.
        kind = pa.string() if name == "reason" else pa.float64()
        result = result.append_column(name, pa.array(column, kind, from_pandas=True))
    write_table(out, result)
    counts = Counter(reason for reason in reasons if reason)
    return Predicted(table.rows, table.rows - counts.total(), dict(counts.most_common()), new[-1])
