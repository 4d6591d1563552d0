"""A generated trace as files: the rows as Parquet or CSV, written day by day, and the truth as JSON."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from central.models.groups import Floats
from central.traces.generator.population import ROLES, Population
from central.traces.generator.settings import SynthSettings
from central.traces.generator.simulate import Day, Effects, Simulation
from whitepanda.common.errors import InputError, UnavailableError
from whitepanda.common.files import durable

_SLOT_US = 300 * 10**6

_NUMBERS = ("start_time", "end_time", "collection_id", "instance_index", "machine_id")
_MEASURED = ("average_usage_cpus", "cycles_per_instruction")
SCHEMA = pa.schema(
    dict.fromkeys(_NUMBERS, pa.int64()) | dict.fromkeys((*_MEASURED, "priority", "scheduling_class"), pa.float64())
)


@dataclass(frozen=True, slots=True)
class Written:
    """What was written. `jobs` and `antagonists_with_rows` count those that ran."""

    rows: int
    tasks: int
    jobs: int
    antagonists: list[int]
    antagonists_with_rows: int


def synthesise(
    settings: SynthSettings,
    out: Path,
    truth: Path,
    name: str = "",
    on_day: Callable[[int, int], None] = lambda _day, _days: None,
) -> Written:
    """Write a trace and its truth (JSON, see docs/traces.md), each file whole or not at all.

    `out` gets the rows: CSV if the name ends in .csv, else Parquet. `name` is the preset's, for the truth. `on_day` is
    called with days done and days in all. Raises InputError if the files cannot be written there, UnavailableError if
    the disk did not suffice.
    """
    if out.resolve() == truth.resolve():
        raise InputError(f"{out}: the trace and its truth need a file each; see --truth")
    population, rows = Population.draw(settings), 0
    simulation = Simulation(population)
    try:
        with contextlib.ExitStack() as files:
            # The last file takes its place first, so rows are never there without their truth.
            rows_file, truth_file = (files.enter_context(new_file(path)) for path in (out, truth))
            with _writer(rows_file, as_csv=out.suffix.lower() == ".csv") as writer:
                for number, day in enumerate(simulation.days()):
                    writer.write_table(_table(population, day))
                    rows += len(day.slot)
                    on_day(number + 1, settings.days)
            known = _truth(population, name, simulation.effects)
            truth_file.write((json.dumps(known, indent=1) + "\n").encode())
    except OSError as error:
        raise UnavailableError(
            f"{out} and {truth}: not written: {error.strerror or error}; is the disk full?"
        ) from error
    ran = {int(job) for job, row in known["jobs"].items() if row["task_slots"]}
    antagonists = known["antagonists"]
    return Written(rows, len(population.tasks.job), len(ran), antagonists, len(ran.intersection(antagonists)))


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Replace a file as a whole; raise an InputError if it cannot be opened."""
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give the name of a file")
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(durable.replacing(path, mode=0o644))
        except OSError as error:
            raise InputError(f"{path}: cannot write: {error.strerror}") from error
        yield file


def _writer(file: IO[bytes], *, as_csv: bool) -> Any:
    if as_csv:
        return pcsv.CSVWriter(file, SCHEMA)  # numbers alone
    repeated = [name for name in SCHEMA.names if name not in _MEASURED]
    return pq.ParquetWriter(file, SCHEMA, compression="zstd", use_dictionary=repeated)


def _table(population: Population, day: Day) -> pa.Table:
    jobs, tasks, machine = population.jobs, population.tasks, population.machine_of(day.task)
    job = tasks.job[day.task]
    start = day.slot * _SLOT_US  # from 0, so that days are whole ones, of 288 slots
    columns = {
        "start_time": start,
        "end_time": start + _SLOT_US,
        "collection_id": jobs.job_id[job],
        "instance_index": tasks.instance[day.task],
        "machine_id": population.machines.machine_id[machine],
        "average_usage_cpus": _single(day.usage),
        "cycles_per_instruction": pa.array(_single(day.cpi), from_pandas=True),
        "priority": jobs.priority[job],
        "scheduling_class": jobs.scheduling_class[job],
    }
    return pa.table(columns, schema=SCHEMA)


def _single(values: Floats) -> Floats:
    """Round to 32 bits, as the real trace has: half the size."""
    return values.astype(np.float32).astype(np.float64)


def _truth(population: Population, name: str, effects: Effects) -> dict[str, Any]:
    settings, jobs, coefficient = population.settings, population.jobs, effects.coefficient
    antagonists = jobs.role == ROLES.index("antagonist")
    return {
        "antagonists": jobs.job_id[antagonists].tolist(),
        "latency_sensitive_antagonists": jobs.job_id[: settings.ls_antagonists].tolist(),
        "coefficients": {str(i): c for i, c in zip(jobs.job_id.tolist(), coefficient.tolist(), strict=True)},
        "jobs": {
            str(jobs.job_id[k]): {
                "role": ROLES[jobs.role[k]],
                "coefficient": float(coefficient[k]),
                "strength": float(jobs.strength[k]),
                "usage": float(jobs.usage[k]),
                "sensitivity": float(jobs.sensitivity[k]) if jobs.is_sensitive[k] else None,
                "rides_with": int(jobs.job_id[jobs.leader[k]]) if jobs.leader[k] >= 0 else None,
                "task_slots": int(effects.task_slots[k]),
            }
            for k in range(len(jobs.job_id))
        },
        "preset": name,
        "seed": settings.seed,
        "parameters": dataclasses.asdict(settings),
    }
