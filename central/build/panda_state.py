"""PANDA as Ibis expressions, on any engine, with the results of `central.models.antagonists.panda`.

Samples (the lake's rows, or a trace's) become task slots; from those follows either a fit of the paper's equations (1)
to (3), or the state of a day, which merges with other days' and gives the same.

Only features of every SQL backend of Ibis are used, so that the same expressions run on Spark too. Tables that are read
several times are kept in a Parquet file, not in a backend's temporary tables. Engines add floating-point numbers in any
order, so results differ in the last digits from run to run. Moments are about a first mean: nothing large cancels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ibis
import ibis.expr.types as ir
import pyarrow as pa

from central.build import machine_days
from central.build.dictionary_encoding import coded, numbered
from central.build.engine import AnyEngine, with_schema
from central.models.antagonists.panda import MIN_RELATIVE_STD

#: The tables of a day's state, see `central.models.antagonists.panda.PairState`.
STATE: Mapping[str, pa.Schema] = {
    "pairs": pa.schema(
        {
            "job": pa.string(),
            "sensitive_job": pa.string(),
            "platform": pa.string(),
            "usage_cpi": pa.float64(),
            "usage": pa.float64(),
        }
    ),
    "usage": pa.schema({"job": pa.string(), "sum_usage_squared": pa.float64(), "samples": pa.int64()}),
}

#: Columns of `cpi_moments`, which every method's state has.
CPI_MOMENTS = pa.schema(
    {"job": pa.string(), "platform": pa.string(), "samples": pa.int64(), "mean": pa.float64(), "m2": pa.float64()}
)

_PLACE = ["machine", "slot_start_ns"]
_JOB = ["job", "platform"]


def task_slots(samples: ir.Table, slot_ns: int) -> ir.Table:
    """Merge the records of each task in each slot of length `slot_ns` by duration.

    A record belongs to the slot that it starts in. CPI and usage are means over the records that have one, weighted by
    duration. NaN is not known; records without a duration are left out.

    `samples`: machine, vm, job, platform, latency_sensitive, start_unix_ns (not negative), duration_ns, cpi,
    cpu_usage_cores. Returns machine, slot_start_ns, vm, job, platform, latency_sensitive, usage, cpi; null: not known.
    """
    rows = samples.filter(samples.duration_ns > 0)
    duration = rows.duration_ns.cast("float64")
    weighted = {}
    for name, value in (("usage", rows.cpu_usage_cores), ("cpi", rows.cpi)):
        is_known = value.notnull() & ~value.isnan()
        weighted[f"_{name}"] = ibis.ifelse(is_known, value * duration, None)
        weighted[f"_{name}_time"] = ibis.ifelse(is_known, duration, None)
    # An integer remainder: a quotient goes through floating point and is off at the borders.
    start = rows.start_unix_ns - rows.start_unix_ns % ibis.literal(slot_ns, "int64")
    rows = rows.mutate(slot_start_ns=start, **weighted)
    keys = [*_PLACE, "vm", *_JOB, "latency_sensitive"]
    sums = rows.group_by(keys).aggregate(**{name: rows[name].sum() for name in weighted})
    means = {name: sums[f"_{name}"] / sums[f"_{name}_time"] for name in ("usage", "cpi")}
    return sums.mutate(**means).drop(*weighted)


def cpi_moments(slots: ir.Table) -> ir.Table:
    """Return job, platform, samples, mean and m2 = sum (cpi - mean)^2 over task slots with a CPI."""
    known = slots.filter(slots.cpi.notnull())
    # Every engine's variance is Welford's, so nothing large cancels.
    sums = known.group_by(_JOB).aggregate(
        samples=known.count(), mean=known.cpi.mean(), _variance=known.cpi.var(how="pop")
    )
    return sums.select(*_JOB, "samples", "mean", m2=sums["_variance"] * sums.samples)


def job_statistics(moments: ir.Table) -> ir.Table:
    """Return job, platform, samples, mean_cpi, std_cpi; std_cpi is 0 if the CPI does not vary."""
    std = (moments.m2 / moments.samples).sqrt()
    varies = std > moments["mean"].abs() * MIN_RELATIVE_STD
    return moments.select(
        *_JOB, "samples", mean_cpi=moments["mean"], std_cpi=ibis.ifelse(varies, std, ibis.literal(0.0))
    )


@dataclass(frozen=True, slots=True)
class FitTables:
    """Expressions of a fit: `machine_cpi` has machine, slot_start_ns, mn_cpi, tasks."""

    statistics: ir.Table
    machine_cpi: ir.Table
    coefficients: ir.Table


def fit(slots: ir.Table) -> FitTables:
    """Compute equations (1) to (3) over task slots (better from a file: they are read four times)."""
    statistics = job_statistics(cpi_moments(slots))
    sensitive = slots.filter(slots.latency_sensitive & slots.cpi.notnull())  # L(m, t)
    rows = sensitive.join(statistics, _JOB)
    deviation = (rows.cpi - rows.mean_cpi) / rows.std_cpi.nullif(0.0)
    rows = rows.mutate(_n_cpi=ibis.coalesce(deviation, ibis.literal(0.0)))
    machine_cpi = rows.group_by(_PLACE).aggregate(mn_cpi=rows["_n_cpi"].mean(), tasks=rows.count())

    beside = slots.filter(slots.usage.notnull()).join(machine_cpi, _PLACE)
    sums = beside.group_by("job").aggregate(
        sum_usage_squared=(beside.usage * beside.usage).sum(),
        samples=beside.count(),
        _product=(beside.usage * beside.mn_cpi).sum(),
        _square=(beside.mn_cpi * beside.mn_cpi).sum(),
    )
    sums = sums.filter(sums.sum_usage_squared > 0)
    value = sums["_product"] / sums.sum_usage_squared
    spread = (sums["_square"] - value * sums["_product"]).clip(lower=0.0)
    error = (spread / (sums.samples - 1).nullif(0) / sums.sum_usage_squared).sqrt()
    found = sums.select("job", "samples", "sum_usage_squared", coefficient=value, standard_error=error)
    return FitTables(statistics, machine_cpi, found)


def write_state(opened: AnyEngine, slots: ir.Table, slot_ns: int, folder: Path) -> None:
    """Write the tables `STATE` into the empty `folder`, a file each, of data whose machine slots are in no other part.

    `slots`: columns as of `task_slots`, better from a file, as they are read four times.
    """
    rows, count = coded(opened, slots, folder)
    groups = slots.select(*_JOB).distinct()
    # A number per job, and one per job and platform.
    by_both = ibis.row_number().over(order_by=[groups.job, groups.platform]).cast("int32")
    opened.write(numbered(groups.mutate(group=by_both), code="job"), folder / "groups.parquet")
    groups = opened.read([folder / "groups.parquet"])
    numbers = rows.join(groups, _JOB)
    numbers = numbers.select(
        "machine",
        "slot_start_ns",
        "usage",
        "group",
        job=numbers.code,
        cpi=ibis.ifelse(numbers.latency_sensitive, numbers.cpi, None),
    )
    opened.machine_days(numbers, count, machine_days.panda, slot_ns, folder / "raw.parquet")
    tables = _named(opened.read([folder / "raw.parquet"]), groups)
    for name, schema in STATE.items():
        opened.write(with_schema(tables[name], schema), folder / f"{name}.parquet")
    for name in ("machines", "groups", "raw"):
        (folder / f"{name}.parquet").unlink()


def _named(products: ir.Table, groups: ir.Table) -> dict[str, ir.Table]:
    """Add up what `machine_days.panda` has left, and put back the names."""
    jobs = groups.select("job", "code").distinct()
    pairs = products.filter(products.kind == machine_days.PAIRS)
    pairs = pairs.group_by(["a", "b"]).aggregate(usage_cpi=pairs.v0.sum(), usage=pairs.v1.sum())
    pairs = pairs.join(jobs, pairs.a == jobs.code).drop("code")
    victims = groups.select("group", "platform", sensitive_job="job")
    usage = products.filter(products.kind == machine_days.JOBS)
    usage = usage.group_by("a").aggregate(sum_usage_squared=usage.v0.sum(), samples=usage.v1.sum())
    return {"pairs": pairs.join(victims, pairs.b == victims.group), "usage": usage.join(jobs, usage.a == jobs.code)}


def merged_moments(parts: ir.Table) -> ir.Table:
    """Merge moments by Chan, Golub and LeVeque (1979): M2 = sum M2_i + sum n_i (mean_i - mean)^2."""
    totals = parts.group_by(_JOB).aggregate(
        _total=parts.samples.sum().cast("int64"), _weighted=(parts["mean"] * parts.samples).sum()
    )
    totals = totals.mutate(_mean=totals["_weighted"] / totals["_total"])
    rows = parts.join(totals, _JOB)
    off = rows["mean"] - rows["_mean"]
    rows = rows.mutate(_m2=rows.m2 + off * off * rows.samples)
    whole = rows.group_by([*_JOB, "_total", "_mean"]).aggregate(m2=rows["_m2"].sum())
    return whole.select(*_JOB, samples=whole["_total"], mean=whole["_mean"], m2=whole.m2)


def coefficients(opened: AnyEngine, folders: Sequence[Path], statistics: ir.Table) -> pa.Table:
    """Return job, samples, sum_usage_squared, coefficient, standard_error (null: not known) of days' states.

    Standard errors are by days, with nothing assumed of the slots of one: sqrt(D / (D - 1) * sum_d (P_d - A U_d)^2) /
    sum_d U_d over the job's D days, at least two, with P = sum of usage * mnCPI and U = sum of usage^2. Pairs are read
    once: products per job and day are few, and give coefficients and errors. `statistics`: of all days.
    """
    pairs, by_day = (_by_day(opened, name, folders) for name in STATE)
    keys = ["job", "part"]
    usage = by_day.select(*keys, "samples", squared="sum_usage_squared")
    rows = usage.left_join(_products(pairs, statistics, keys), keys)
    rows = rows.select(
        *keys, "samples", "squared", _known=rows["_product"].notnull(), _product=rows["_product"].fill_null(0.0)
    )
    of_job = ibis.window(group_by="job")
    value = rows["_product"].sum().over(of_job) / rows.squared.sum().over(of_job).nullif(0.0)
    rows = rows.mutate(_off=rows["_product"] - value * rows.squared)
    sums = rows.group_by("job").aggregate(
        samples=rows.samples.sum().cast("int64"),
        sum_usage_squared=rows.squared.sum(),
        _total=rows["_product"].sum(),
        _off=(rows["_off"] * rows["_off"]).sum(),
        _days=(rows.squared > 0).sum(),
        _known=rows["_known"].sum(),
    )
    sums = sums.filter((sums.sum_usage_squared > 0) & (sums["_known"] > 0))
    factor = sums["_days"] / (sums["_days"] - 1).nullif(0)
    found = sums.select(
        "job",
        "samples",
        "sum_usage_squared",
        coefficient=sums["_total"] / sums.sum_usage_squared,
        standard_error=(sums["_off"] * factor).sqrt() / sums.sum_usage_squared,
    )
    return opened.collect(found)


def _by_day(opened: AnyEngine, name: str, folders: Sequence[Path]) -> ir.Table:
    """A table of all days' states, with the day's number as `part`."""
    days = [
        opened.read([folder / f"{name}.parquet"]).mutate(part=ibis.literal(number, "int32"))
        for number, folder in enumerate(folders)
    ]
    return ibis.union(*days) if len(days) > 1 else days[0]


def _products(pairs: ir.Table, statistics: ir.Table, keys: list[str]) -> ir.Table:
    """Return the sum of usage * mnCPI per key."""
    statistics = statistics.drop("samples").rename(sensitive_job="job")
    rows = pairs.join(statistics, ["sensitive_job", "platform"])
    deviation = (rows.usage_cpi - rows.mean_cpi * rows.usage) / rows.std_cpi.nullif(0.0)
    rows = rows.mutate(_one=ibis.coalesce(deviation, ibis.literal(0.0)))
    return rows.group_by(keys).aggregate(_product=rows["_one"].sum())
