"""Our estimator on an engine: robust scales as Ibis expressions, machine days by `central.machine_days`, sums again.

The result is that of `central.models.whitepanda` to 1e-9; solving is left to it (`solver`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from central import machine_days
from central.models.whitepanda import CLIP, IQR_OF_NORMAL, WhitepandaState

if TYPE_CHECKING:
    import ibis.expr.types as ir

__all__ = ["SCALES", "merged", "normalised", "robust_scales", "solver"]

#: Location and scale of ln CPI of a job on a platform on a day (its first nanosecond since 1970).
SCALES = pa.schema(
    {
        "job": pa.string(),
        "platform": pa.string(),
        "day": pa.int64(),
        "samples": pa.int64(),
        "location": pa.float64(),
        "scale": pa.float64(),
    }
)

_DAY_NS = 86_400 * 10**9
_KEYS = ("kind", "a", "b", "c")
_VALUES = ("v0", "v1", "v2", "v3")


def robust_scales(slots: ir.Table) -> ir.Table:
    """Return `SCALES` of task slots (columns as of `engine.task_slots`): ln CPI per job, platform and day.

    Of latency-sensitive tasks with a CPI: median, and IQR / 1.349, with linear interpolation, as in
    `central.models.whitepanda.robust_n_cpi`.
    """
    import ibis  # noqa: PLC0415 - takes a second, and only builds need it

    known = slots.filter(slots.latency_sensitive & slots.cpi.notnull())
    known = known.mutate(
        day=known.slot_start_ns - known.slot_start_ns % ibis.literal(_DAY_NS, "int64"), _x=known.cpi.ln()
    )
    found = known.group_by(["job", "platform", "day"]).aggregate(
        samples=known.count(),
        location=known["_x"].quantile(0.5),
        _low=known["_x"].quantile(0.25),
        _high=known["_x"].quantile(0.75),
    )
    return found.mutate(scale=(found["_high"] - found["_low"]) / IQR_OF_NORMAL).select(*SCALES.names)


def normalised(slots: ir.Table, scales: ir.Table | None = None) -> ir.Table:
    """Return `machine_days.ROWS` of task slots (columns as of `engine.task_slots`), CPI by robust scales of its day.

    Args:
        slots: task slots.
        scales: their `robust_scales`, where these are known already.

    """
    import ibis  # noqa: PLC0415 - takes a second, and only builds need it

    scales = robust_scales(slots) if scales is None else scales
    rows = slots.mutate(
        day=slots.slot_start_ns - slots.slot_start_ns % ibis.literal(_DAY_NS, "int64"),
        _x=ibis.ifelse(slots.latency_sensitive & slots.cpi.notnull(), slots.cpi.ln(), None),
    )
    joined = rows.left_join(scales.drop("samples"), ["job", "platform", "day"])
    z = ((joined["_x"] - joined.location) / joined.scale.nullif(0.0)).clip(lower=-CLIP, upper=CLIP)
    is_known = joined["_x"].notnull()
    return joined.select(
        "machine",
        "slot_start_ns",
        "job",
        "usage",
        n_cpi=ibis.ifelse(is_known, ibis.coalesce(z, 0.0), None),
    )


def merged(products: ir.Table) -> ir.Table:
    """Add up rows of `machine_days.PRODUCTS` by key: those of machine days, or of days."""
    sums = products.group_by(list(_KEYS)).aggregate(**{name: products[name].sum() for name in _VALUES})
    return sums.select(*machine_days.PRODUCTS.names)


def solver(products: pa.Table) -> WhitepandaState:
    """Return the state that merged sums of `machine_days.whitepanda` stand for; its `coefficients` solves."""
    kind = products["kind"].to_numpy()

    def part(number: int, *keys: str) -> tuple[list[Any], list[Any]]:
        rows = products.filter(pa.array(kind == number))
        rows = rows.sort_by([(key, "ascending") for key in keys]) if keys else rows
        names = [np.asarray(rows[key].to_pylist(), dtype=np.str_) for key in keys]
        return names, [rows[name].to_numpy() for name in _VALUES]

    (a, b), pairs = part(machine_days.PAIRS, "a", "b")
    (job,), jobs = part(machine_days.JOBS, "a")
    (place, place_job), usage = part(machine_days.MACHINE_JOBS, "a", "b")
    (machine,), machines = part(machine_days.MACHINES, "a")
    _, total = part(machine_days.TOTAL)
    return WhitepandaState(
        pair_job=a,
        pair_other=b,
        within=pairs[0],
        between_days=pairs[1],
        job=job,
        job_within=jobs[0],
        job_between_days=jobs[1],
        samples=np.rint(jobs[2]).astype(np.int64),
        sum_usage_squared=jobs[3],
        machine_key=place,
        machine_job=place_job,
        machine_usage=usage[0],
        machine=machine,
        slots=machines[0],
        sum_y=machines[1],
        total=np.array([values.sum() for values in total]),
    )
