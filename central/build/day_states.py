"""What a build keeps of each day, and what all days' give: by method, on any engine.

A day's state is a folder of Parquet files: PANDA's are `engine.STATE`, our estimator's `estimator.STATE_FILES` and the
moments of CPI. No task slot is read again to merge them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from central.build import engine, estimator
from central.models.antagonists.robust_cpi import over_days

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from central.build.spark import SparkEngine

__all__ = ["CROWDED_FILE", "FORMATS", "MAX_JOBS", "solved", "write"]

#: By method, part of every state's digest: a change of what state means makes all of it stale.
FORMATS: Mapping[str, tuple[str, ...]] = {
    "panda": ("panda-state-2",),
    "whitepanda": ("panda-state-2", "whitepanda-4"),
}


#: Jobs of a machine day, once with each platform, beyond so many are left out, the rarest first: pairs of jobs, and all
#: names, have to fit into memory.
MAX_JOBS = 500
#: Of a state's folder: machines with more jobs than count, and how many are left out (machine, jobs).
CROWDED_FILE = "crowded.parquet"

_NO_CODES = np.empty(0, dtype=np.int32)


def write(
    method: str,
    running: engine.Engine | SparkEngine,
    slots: ir.Table,
    slot_ns: int,
    folder: Path,
    max_jobs: int = MAX_JOBS,
) -> None:
    """Write the state of one day.

    Args:
        method: `panda` or `whitepanda`.
        running: the engine.
        slots: the day's task slots, columns as of `engine.task_slots`; better from a file: they are read several times.
        slot_ns: length of a slot.
        folder: is there, and empty.
        max_jobs: that count of a machine day, the most common ones.

    """
    rare = folder / "rare.parquet"
    slots = _without_rarest(running, slots, max_jobs, rare)
    if method == "panda":
        engine.write_pair_state(running, slots, slot_ns, folder)
    else:
        estimator.write_state(running, slots, slot_ns, folder)
        cpi = engine.with_schema(engine.cpi_moments(slots), engine.STATE["cpi"])
        running.write(cpi, folder / "cpi.parquet")
    rare.unlink(missing_ok=True)


def _without_rarest(
    running: engine.Engine | SparkEngine, slots: ir.Table, max_jobs: int, rare: Path
) -> ir.Table:
    """Leave out the rarest jobs of machines that have too many; writes them, and `CROWDED_FILE` beside them."""
    import ibis  # noqa: PLC0415 - takes a second, and only builds need it

    keys = ["machine", "job", "platform"]
    jobs = slots.group_by(keys).aggregate(rows=slots.count())
    counts = jobs.group_by("machine").aggregate(jobs=jobs.count())
    crowded = running.collect(counts.filter(counts.jobs > max_jobs).order_by("machine"))
    if not crowded.num_rows:
        return slots
    left_out = pa.array([count - max_jobs for count in crowded["jobs"].to_pylist()], pa.int64())
    pq.write_table(pa.table({"machine": crowded["machine"], "jobs": left_out}), rare.with_name(CROWDED_FILE))
    theirs = jobs.filter(jobs.machine.isin(crowded["machine"].to_pylist()))
    order = [theirs.rows.desc(), theirs.job, theirs.platform]
    theirs = theirs.mutate(_place=ibis.row_number().over(group_by="machine", order_by=order))
    running.write(theirs.filter(theirs["_place"] >= max_jobs).select(*keys), rare)
    return slots.anti_join(running.read([rare]), keys)


def solved(
    method: str, running: engine.Engine | SparkEngine, folders: Sequence[Path]
) -> tuple[pa.Table, pa.Table]:
    """Merge days' states into job statistics and coefficients.

    Args:
        method: that the states were written by.
        running: the engine.
        folders: of the days, at least one.

    Returns:
        Rows as of `engine.job_statistics` (ours: with location_log_cpi and scale_log_cpi), and as of
        `engine.coefficients`.

    """
    moments = engine.merged_moments(running.read([folder / "cpi.parquet" for folder in folders]))
    statistics = running.collect(engine.job_statistics(moments))
    if method == "panda":
        days = {name: _by_day(running, name, folders) for name in ("pairs", "usage")}
        return statistics, running.collect(engine.coefficients(moments, days))
    statistics = _with_robust_scales(statistics, estimator.scales(folders))
    return statistics, estimator.as_table(estimator.coefficients(folders), pa.string())


def _with_robust_scales(statistics: pa.Table, days: pa.Table) -> pa.Table:
    """Add location and scale of ln CPI over the days (`estimator.scales`); null for jobs that are never sensitive."""
    names, codes = {}, {}  # numpy's columns of names would take the space of the longest one for each
    for name in ("job", "platform"):
        encoded = days[name].dictionary_encode().unify_dictionaries()
        names[name] = encoded.chunk(0).dictionary if encoded.num_chunks else pa.array([], pa.string())
        codes[name] = np.concatenate([_NO_CODES, *(chunk.indices.to_numpy() for chunk in encoded.chunks)])
    found = over_days(
        codes["job"],
        codes["platform"],
        days["samples"].to_numpy(),
        days["location"].to_numpy(),
        days["scale"].to_numpy(),
    )
    robust = pa.table(
        {
            "job": names["job"].take(pa.array(found.job)),
            "platform": names["platform"].take(pa.array(found.platform)),
            "location_log_cpi": found.location,
            "scale_log_cpi": found.scale,
        }
    )
    return statistics.join(robust, ["job", "platform"])


def _by_day(running: engine.Engine | SparkEngine, name: str, folders: Sequence[Path]) -> ir.Table:
    """A table of all days' state, with the day's number as `part`."""
    import ibis  # noqa: PLC0415 - takes a second, and only builds need it

    days = [
        running.read([folder / f"{name}.parquet"]).mutate(part=ibis.literal(number, "int32"))
        for number, folder in enumerate(folders)
    ]
    return ibis.union(*days) if len(days) > 1 else days[0]
