"""Tables of jobs and of instances, from CSV or Parquet; what is wrong is one line with the row and the value.

A JOBS file has a row per job (`Jobs`), a ROWS file one per instance: `machine, job`, the metric, and optionally
`weight` (the job's, the same in all of its rows) or `quota` (the instance's; a job's weight is then their sum). With
neither, each instance counts the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from central.models.groups import Column, Floats, Ints, group, sums
from central.models.wsmeter import Observed, Shares
from central.tables.csv_files import is_parquet, write_table
from central.tables.user_files import UserTable, refuse_twice
from whitepanda.common.errors import InputError

_MODE = 0o600  # they name jobs or machines
_METRICS = ("value", "ipc", "mips")
#: Numbers whose squares and their quotients are still numbers; in any unit, nothing that is measured lies outside.
_SMALLEST, _LARGEST = 1e-30, 1e30


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs of a fleet as it is. Shapes (jobs,)."""

    job: Column  # distinct names
    weight: Floats  # share of quota or any other, > 0
    mean: Floats  # of the metric over the job's instances, > 0
    std: Floats  # of one instance, population (ddof = 0), > 0
    instances: Ints  # that there are, >= 1
    cost: Floats  # of observing one instance, > 0


@dataclass(frozen=True, slots=True)
class Rows:
    """Instances, and the weights of their jobs."""

    observed: Observed  # instances with their metric; all NaN if the file has none
    weights: Shares  # of the jobs
    metric: str  # the metric's column; "" if there is none
    weighed_by: str  # "weight", "quota", or "instances" if the file has neither; of a lake "quota" or "use"


def _positive(file: UserTable, column: str) -> Floats:
    """Return a column as numbers above 0, of a size whose squares stay finite and above 0."""
    values = file.numbers(column, above=True)
    for row in np.flatnonzero((values < _SMALLEST) | (values > _LARGEST)):
        file.refuse(column, f"numbers from {_SMALLEST:g} to {_LARGEST:g}", int(row))
    return values


def read_jobs(path: Path) -> Jobs:
    """Read a JOBS file: `job, weight, mean, std, instances, cost`.

    Without a column `cost` an instance costs its share of all quota, weight / instances / sum of weights. Raises
    InputError if it cannot be read, lacks a column, or a value cannot be.
    """
    file = UserTable(path)
    file.require("job", "weight", "mean", "std", "instances")
    job = file.names("job")
    refuse_twice(path, "job", job)
    weight, instances = _positive(file, "weight"), file.whole("instances")
    cost = _positive(file, "cost") if "cost" in file.columns else weight / weight.sum() / instances
    return Jobs(job, weight, _positive(file, "mean"), _positive(file, "std"), instances, cost)


def read_rows(path: Path, metric: str = "", *, needs_metric: bool = True) -> Rows:
    """Read a ROWS file; without `metric` its column is the first of value, ipc and mips.

    Raises InputError if it cannot be read, lacks a column, or a value cannot be.
    """
    file = UserTable(path)
    file.require("machine", "job")
    found = metric or next((name for name in _METRICS if name in file.columns), "")
    if needs_metric and not found:
        raise InputError(f"{path}: no column value, ipc or mips; name the metric's with --metric; it has {file.header}")
    if found:
        file.require(found)
    machine, job = file.names("machine"), file.names("job")
    value = _positive(file, found) if found else np.full(len(job), np.nan)
    weighed_by = next((name for name in ("weight", "quota") if name in file.columns), "instances")
    weights = _positive(file, weighed_by) if weighed_by != "instances" else np.ones(len(job))
    return Rows(Observed(machine, job, value), _shares(path, job, weights, weighed_by == "weight"), found, weighed_by)


def _shares(path: Path, job: Column, values: Floats, is_the_jobs: bool) -> Shares:  # noqa: FBT001 - of a column
    (names,), number = group(job)
    if not is_the_jobs:
        return Shares(names, sums(number, values, len(names)))
    weight = np.zeros(len(names))
    weight[number] = values
    for row in np.flatnonzero(weight[number] != values):
        raise InputError(
            f"{path}: job {job[row]} has weights {values[row]:g} and {weight[number[row]]:g}; weight is the job's "
            "and must be the same in all its rows; put the weights of single instances into a column quota"
        )
    return Shares(names, weight)


def jobs_of(rows: Rows) -> Jobs:
    """Return the jobs of a fleet whose instances were all measured; those without any spread or weight are left out."""
    is_weighed = np.isin(rows.observed.job, rows.weights.job)
    (names,), number = group(rows.observed.job[is_weighed])
    value = rows.observed.value[is_weighed]
    count = np.bincount(number)
    mean = sums(number, value, len(names)) / count
    std = np.sqrt(sums(number, (value - mean[number]) ** 2, len(names)) / count)
    weight = rows.weights.weight[np.searchsorted(rows.weights.job, names)]
    cost = weight / weight.sum() / count
    order = np.argsort(-weight, kind="stable")
    order = order[std[order] > 1e-12 * mean[order]]
    return Jobs(names[order], weight[order], mean[order], std[order], count[order], cost[order])


def write_jobs(path: Path, jobs: Jobs) -> None:
    """Write a JOBS file, CSV or (by its ending) Parquet. Raises InputError if it cannot be written."""
    columns = ("job", "weight", "mean", "std", "instances", "cost")
    write_table(path, pa.table({name: getattr(jobs, name) for name in columns}), mode=_MODE)


def read_machines(path: Path) -> list[str]:
    """Read a list of machines: a file with a column `machine`, as `fleet draw` writes it, or one name per line.

    Raises InputError if it cannot be read, or names a machine twice.
    """
    lines: list[str] = []
    if not is_parquet(path):
        try:
            lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: is not UTF-8 text (byte {error.start + 1})") from error
    names: list[str] = lines
    if not lines or "machine" in [name.strip() for name in lines[0].replace('"', "").split(",")]:
        file = UserTable(path)
        file.require("machine")
        names = [str(name) for name in file.names("machine")]
    if not names:
        raise InputError(f"{path}: names no machine")
    refuse_twice(path, "machine", np.array(names))
    return names


def write_rows(path: Path, observed: Observed) -> None:
    """Write a ROWS file with the columns machine, job and value. Raises InputError if it cannot be written."""
    write_table(path, pa.table({name: getattr(observed, name) for name in ("machine", "job", "value")}), mode=_MODE)


def write_machines(path: Path, machines: Sequence[str]) -> None:
    """Write a list of machines, CSV or Parquet with a column `machine`. Raises InputError if it cannot be written."""
    write_table(path, pa.table({"machine": list(machines)}), mode=_MODE)
