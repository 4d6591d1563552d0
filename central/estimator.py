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

__all__ = ["merged", "normalised", "solver"]

_DAY_NS = 86_400 * 10**9
_KEYS = ("kind", "a", "b", "c")
_VALUES = ("v0", "v1", "v2", "v3")


def normalised(slots: ir.Table) -> ir.Table:
    """Return `machine_days.ROWS` of task slots (columns as of `engine.task_slots`), CPI by robust scales of its day.

    Median and IQR of ln CPI are per job, platform and day, with linear interpolation, as in
    `central.models.whitepanda.robust_n_cpi`.
    """
    import ibis  # noqa: PLC0415 - takes a second, and only builds need it

    day = (slots.slot_start_ns - slots.slot_start_ns % ibis.literal(_DAY_NS, "int64")).name("_day")
    rows = slots.mutate(
        day,
        _x=ibis.ifelse(slots.latency_sensitive & slots.cpi.notnull(), slots.cpi.ln(), None),
    )
    known = rows.filter(rows["_x"].notnull())
    quantiles = known.group_by(["job", "platform", "_day"]).aggregate(
        _low=known["_x"].quantile(0.25), _median=known["_x"].quantile(0.5), _high=known["_x"].quantile(0.75)
    )
    keys = ["job", "platform", "_day"]
    joined = rows.left_join(quantiles, keys)
    scale = (joined["_high"] - joined["_low"]) / IQR_OF_NORMAL
    z = ((joined["_x"] - joined["_median"]) / scale.nullif(0.0)).clip(lower=-CLIP, upper=CLIP)
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
