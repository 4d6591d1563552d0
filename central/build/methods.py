"""The methods that builds can use: what each keeps of a day, and what all days' states give.

A day's state is a folder of Parquet files: the moments of CPI, from which statistics of jobs are made with every
method, and the method's own. No task slot is read again to merge them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.parquet as pq

from central.build import panda_state, whitepanda_state
from central.build.engine import AnyEngine, with_schema


@dataclass(frozen=True, slots=True)
class Method:
    """A way to make coefficients of task slots."""

    #: Of its states, part of every state's digest: with another one all of them are computed again.
    format: str
    #: Writes one day's state: of task slots (columns as of `panda_state.task_slots`) and their length, ns, to a folder.
    write_state: Callable[[AnyEngine, ir.Table, int, Path], None]
    #: Computes from the folders of all days, at least one, and their `panda_state.job_statistics`: job, samples,
    #: sum_usage_squared, coefficient, standard_error (null: not known).
    coefficients: Callable[[AnyEngine, Sequence[Path], ir.Table], pa.Table]
    #: Adds location_log_cpi and scale_log_cpi to the rows of job statistics, from the same folders.
    more_statistics: Callable[[pa.Table, Sequence[Path]], pa.Table] = lambda statistics, _folders: statistics


#: By name, which is also a value of `build.method` (`central.config`).
METHODS: dict[str, Method] = {
    "panda": Method("panda-state-2", panda_state.write_state, panda_state.coefficients),
    "whitepanda": Method(
        "whitepanda-4",
        whitepanda_state.write_state,
        lambda _engine, folders, _statistics: whitepanda_state.as_table(
            whitepanda_state.coefficients(folders), pa.string()
        ),
        whitepanda_state.with_robust_scales,
    ),
}

#: Jobs of a machine day, once with each platform; more are left out, the rarest first: pairs must fit into memory.
MAX_JOBS = 500
#: File of a state: machines with too many jobs, and how many are left out (machine, jobs).
CROWDED_FILE = "crowded.parquet"


def write(
    method: str, running: AnyEngine, slots: ir.Table, slot_ns: int, folder: Path, max_jobs: int = MAX_JOBS
) -> None:
    """Write the state of one day into the empty `folder`.

    `slots`, of length `slot_ns`: columns as of `panda_state.task_slots`, better from a file, as they are read several
    times. `max_jobs` of a machine day count, the most common ones.
    """
    rare = folder / "rare.parquet"
    slots = _without_rarest(running, slots, max_jobs, rare)
    METHODS[method].write_state(running, slots, slot_ns, folder)
    running.write(with_schema(panda_state.cpi_moments(slots), panda_state.CPI_MOMENTS), folder / "cpi.parquet")
    rare.unlink(missing_ok=True)


def _without_rarest(running: AnyEngine, slots: ir.Table, max_jobs: int, rare: Path) -> ir.Table:
    """Leave out the rarest jobs of machines that have too many; write them, and `CROWDED_FILE`."""
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


def solved(method: str, running: AnyEngine, folders: Sequence[Path]) -> tuple[pa.Table, pa.Table]:
    """Merge days' states, at least one, into job statistics and coefficients.

    Returns rows as of `panda_state.job_statistics` with what `Method.more_statistics` adds, and as of
    `Method.coefficients`.
    """
    used = METHODS[method]
    moments = panda_state.merged_moments(running.read([folder / "cpi.parquet" for folder in folders]))
    statistics = panda_state.job_statistics(moments)
    rows = used.more_statistics(running.collect(statistics), folders)
    return rows, used.coefficients(running, folders, statistics)
