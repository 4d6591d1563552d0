"""Whitepanda's estimator on an engine: robust scales as Ibis expressions, machine days by `machine_days`, sums again.

Each day leaves a folder (`write_state`). Folders of any days, made by any engine, are added up and solved here in numpy
(`merged_state`, `coefficients`): no row of task slots is read again. The result is the one of
`central.models.antagonists.whitepanda` to 1e-9.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import ibis
import ibis.expr.types as ir
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from central.build import machine_days
from central.build.dictionary_encoding import coded, numbered
from central.build.engine import AnyEngine
from central.models.antagonists.robust_cpi import over_days
from central.models.antagonists.whitepanda import IQR_OF_NORMAL, WhitepandaCoefficients, WhitepandaState
from central.models.groups import Floats, Ints, group, sums

#: Of a state's folder. `machines`: machine, code, rows. `jobs`: as of `day_scales`. `products`: `PRODUCTS` by key.
STATE_FILES = ("machines.parquet", "jobs.parquet", "products.parquet")

_DAY = ("job", "platform", "day")
_FOLD_ROWS = 2_000_000  # of 40 bytes
_MAX_PLACES = 8_000_000  # of 17 bytes for pairs of jobs
# Of each kind of `PRODUCTS`: what its two keys number, and the names of its values in `WhitepandaState`.
_KINDS = {
    machine_days.PAIRS: ("job", "job", ("within", "between_days")),
    machine_days.JOBS: ("job", "", ("job_within", "job_between_days", "samples", "sum_usage_squared")),
    machine_days.MACHINE_JOBS: ("machine", "job", ("machine_usage", "machine_product")),
    machine_days.MACHINES: ("machine", "", ("slots", "sum_y", "sum_y_squared")),
    machine_days.TOTAL: ("", "", ("slots", "machine_days", "own", "between_days")),
}


def day_scales(slots: ir.Table) -> ir.Table:
    """Number the jobs of task slots (columns as of `panda_state.task_slots`), with location and scale of their ln CPI.

    Median, and IQR / 1.349 with linear interpolation, are per job, platform and day over latency-sensitive tasks
    with a CPI, as in `central.models.antagonists.whitepanda.robust_n_cpi`.

    Returns job, platform, day (its first nanosecond since 1970), code (of the job), and samples, location, scale; 0 and
    null if no latency-sensitive task has a CPI.
    """
    rows = _with_log_cpi(slots)
    x = rows["_x"]
    found = rows.group_by(list(_DAY)).aggregate(samples=x.count(), _quartiles=x.quantile([0.25, 0.5, 0.75]))
    low, high = found["_quartiles"][0], found["_quartiles"][2]
    found = found.mutate(location=found["_quartiles"][1], scale=(high - low) / IQR_OF_NORMAL)
    return numbered(found.drop("_quartiles"), code="job")


def normalised(slots: ir.Table, jobs: ir.Table, *, is_one_day: bool = False) -> ir.Table:
    """Return what `machine_days.whitepanda` reads: jobs' numbers, CPI normalised by robust scales of its day, uncut.

    `slots` are task slots with machines numbered, `jobs` their `day_scales`. If these are of one day, days are not
    compared.
    """
    keys = [name for name in _DAY if name != "day" or not is_one_day]
    # With a scale of 0 the deviations are 0.
    scales = jobs.select(*keys, "code", "location", scale=jobs.scale.nullif(0.0).fill_null(math.inf))
    joined = _with_log_cpi(slots).join(scales, keys)
    return joined.select(
        "machine", "slot_start_ns", "usage", job=joined.code, n_cpi=(joined["_x"] - joined.location) / joined.scale
    )


def _with_log_cpi(slots: ir.Table) -> ir.Table:
    """Add `day`, and `_x`: ln CPI of latency-sensitive tasks that have one."""
    cpi = ibis.ifelse(slots.latency_sensitive, slots.cpi, None)
    return slots.mutate(
        day=slots.slot_start_ns - slots.slot_start_ns % ibis.literal(machine_days.DAY_NS, "int64"), _x=cpi.ln()
    )


def write_state(opened: AnyEngine, slots: ir.Table, slot_ns: int, folder: Path) -> None:
    """Write `STATE_FILES` of task slots of whole days into the empty `folder`.

    `slots`: columns as of `panda_state.task_slots`, better from a file, as they are read three times.
    """
    jobs, raw = folder / "jobs.parquet", folder / "raw.parquet"
    opened.write(day_scales(slots), jobs)
    days = pq.read_table(jobs, columns=["day"])["day"].unique()
    numbers, count = coded(opened, slots, folder)
    rows = normalised(numbers, opened.read([jobs]), is_one_day=len(days) == 1)
    opened.machine_days(rows, count, machine_days.whitepanda, slot_ns, raw)
    _write_products(raw, folder)
    raw.unlink()


def scales(folders: Iterable[Path]) -> pa.Table:
    """Return job, platform, day, samples, location, scale of states, if there are samples."""
    rows = pa.concat_tables(pq.read_table(folder / "jobs.parquet") for folder in folders)
    return rows.filter(rows["samples"].to_numpy() > 0).select([*_DAY, "samples", "location", "scale"])


def with_robust_scales(statistics: pa.Table, folders: Sequence[Path]) -> pa.Table:
    """Add location and scale of ln CPI over the days of states; null for jobs that are never sensitive."""
    days = scales(folders)
    names, codes = {}, {}  # numpy's columns of names would take the space of the longest one for each
    for name in ("job", "platform"):
        encoded = days[name].dictionary_encode().unify_dictionaries()
        names[name] = encoded.chunk(0).dictionary if encoded.num_chunks else pa.array([], pa.string())
        codes[name] = np.concatenate(
            [np.empty(0, dtype=np.int32), *(chunk.indices.to_numpy() for chunk in encoded.chunks)]
        )
    numbers = (days[name].to_numpy() for name in ("samples", "location", "scale"))
    found = over_days(codes["job"], codes["platform"], *numbers)
    robust = {"location_log_cpi": found.location, "scale_log_cpi": found.scale}
    keys = {name: each.take(pa.array(getattr(found, name))) for name, each in names.items()}
    return statistics.join(pa.table(keys | robust), ["job", "platform"])


def merged_state(folders: Iterable[Path]) -> tuple[WhitepandaState, pa.Array]:
    """Add up states that share no machine day. Return the state, by numbers, and the names of jobs by number."""
    names: dict[str, list[pa.Array]] = {"job": [], "machine": []}
    used = [folder for folder in folders if pq.read_metadata(folder / "machines.parquet").num_rows]
    for folder in used:
        for name, each in names.items():
            each.append(_names(folder / f"{name}s.parquet", name))
    # Arrow's names: in a column of numpy's each takes the space of the longest one.
    known = {name: _sorted(each) for name, each in names.items()}
    widths = {"": 1} | {name: len(each) for name, each in known.items()}
    totals = _Products(widths)
    for number, table in enumerate(_read_ahead(folder / "products.parquet" for folder in used)):
        own = {
            name: pc.index_in(each[number], value_set=known[name]).to_numpy().astype(np.int64)
            for name, each in names.items()
        }
        totals.add(table, own | {"": np.zeros(1, dtype=np.int64)})
    return _state(widths["job"], totals), known["job"]


def coefficients(folders: Iterable[Path]) -> WhitepandaCoefficients:
    """Solve the merged states of days that share no machine day."""
    state, jobs = merged_state(folders)
    found = state.coefficients()
    return replace(found, job=np.asarray(jobs.take(pa.array(found.job)).to_pylist(), object))


def as_table(found: WhitepandaCoefficients, job: pa.DataType) -> pa.Table:
    """Return the columns of `panda_state.fit`'s coefficients; `job` is the type of jobs' names."""
    return pa.table(
        {
            "job": pa.array(found.job, job),
            "samples": pa.array(found.samples, pa.int64()),
            "sum_usage_squared": pa.array(found.sum_usage_squared, pa.float64()),
            "coefficient": pa.array(found.value, pa.float64()),
            "standard_error": pa.array(found.standard_error, pa.float64()),
        }
    )


def _write_products(raw: Path, folder: Path) -> None:
    """Add up by key what machine days have left."""
    counts = {"": 1}
    for name in ("job", "machine"):
        code = pq.read_table(folder / f"{name}s.parquet", columns=["code"])["code"].to_numpy()
        counts[name] = int(code.max(initial=-1)) + 1
    totals = _Products(counts)
    own = {name: np.arange(count) for name, count in counts.items()}
    with pq.ParquetFile(raw) as file:
        for batch in file.iter_batches(_FOLD_ROWS):
            totals.add(pa.table(batch), own)
    with pq.ParquetWriter(
        folder / "products.parquet", machine_days.PRODUCTS, compression="zstd", use_dictionary=False
    ) as writer:
        for kind, (_, second, _) in _KINDS.items():
            key, values = totals.by_kind[kind].folded()
            a, b = np.divmod(key, max(counts[second], 1))
            writer.write_table(machine_days.products(kind, [a, b], values))


class _Products:
    """Rows of `machine_days.PRODUCTS`, added up by key, first * width of the second + second, for each kind."""

    def __init__(self, widths: dict[str, int]) -> None:
        self._widths = widths
        self.by_kind = {
            kind: _Totals(len(values), widths[first] * widths[second])
            for kind, (first, second, values) in _KINDS.items()
        }

    def add(self, rows: pa.Table, numbers: dict[str, Ints]) -> None:
        """Add rows; `numbers` has, per name of a key, the numbers that its own stand for."""
        kinds, values = rows["kind"].to_numpy(), [rows[name].to_numpy() for name in machine_days.VALUES]
        a, b = rows["a"].to_numpy(), rows["b"].to_numpy()
        # Kinds come in runs.
        bounds = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
        for begin, end in pairwise(bounds):
            if begin < end:
                kind, run = int(kinds[begin]), slice(begin, end)
                first, second, _ = _KINDS[kind]
                key = numbers[first][a[run]] * self._widths[second] + numbers[second][b[run]]
                self.by_kind[kind].add(key, [each[run] for each in values])


class _Totals:
    """Sums by key, with keys less than `size`. Few keys have a place each; otherwise rows are sorted now and then."""

    def __init__(self, values: int, size: int) -> None:
        self._values = values
        self._size = size
        self._seen: npt.NDArray[np.bool_] | None = None
        self._sums: list[Floats] = []  # by key, if any was seen
        self._parts: list[tuple[Ints, list[Floats]]] = []
        self._rows = 0

    def add(self, key: Ints, values: list[Floats]) -> None:
        """Add rows: keys, and columns of values, of which as many as this has count."""
        values = values[: self._values]
        if self._size > _MAX_PLACES:
            self._parts.append((key, values))
            self._rows += len(key)
            if self._rows > max(_FOLD_ROWS, 4 * len(self._parts[0][0])):
                self._parts = [self.folded()]
                self._rows = len(self._parts[0][0])
            return
        if self._seen is None:
            self._seen = np.zeros(self._size, dtype=np.bool_)
            self._sums = [np.zeros(self._size) for _ in range(self._values)]
        self._seen[key] = True
        for total, column in zip(self._sums, values, strict=True):
            np.add.at(total, key, column)

    def folded(self) -> tuple[Ints, list[Floats]]:
        """Return the distinct keys, ascending, and the sums."""
        if self._seen is not None:
            keys = np.flatnonzero(self._seen)
            return keys, [total[keys] for total in self._sums]
        if not self._parts:
            return np.empty(0, dtype=np.int64), [np.empty(0)] * self._values
        (keys,), number = group(np.concatenate([key for key, _ in self._parts]))
        columns = zip(*(values for _, values in self._parts), strict=True)
        return keys, [sums(number, np.concatenate(column), len(keys)) for column in columns]


def _read_ahead(paths: Iterable[Path]) -> Iterator[pa.Table]:
    """Yield the files' rows; the next file is read while one is worked on."""
    with ThreadPoolExecutor(1) as pool:
        waiting = deque[Future[pa.Table]]()
        for path in paths:
            waiting.append(pool.submit(pq.read_table, path))
            if len(waiting) > 1:
                yield waiting.popleft().result()
        yield from (each.result() for each in waiting)


def _names(path: Path, name: str) -> pa.Array:
    """Return the names of a state by their numbers."""
    rows = pq.read_table(path, columns=[name, "code"])
    _, first = np.unique(rows["code"].to_numpy(), return_index=True)
    return rows[name].take(pa.array(first)).combine_chunks()


def _sorted(names: list[pa.Array]) -> pa.Array:
    """Return the distinct ones of all, in order."""
    found = pc.unique(pa.chunked_array(names)) if names else pa.array([], pa.string())
    return found.take(pc.sort_indices(found))


def _state(jobs: int, totals: _Products) -> WhitepandaState:
    """Give folded sums the form of the model."""
    found = {kind: each.folded() for kind, each in totals.by_kind.items()}
    (pair, job, place, machine, _), width = (key for key, _ in found.values()), max(jobs, 1)
    _, total = found.pop(machine_days.TOTAL)
    named: dict[str, Any] = {}
    for kind, (_, values) in found.items():
        named |= zip(_KINDS[kind][2], values, strict=True)
    named["samples"] = np.rint(named["samples"]).astype(np.int64)
    return WhitepandaState(
        pair_job=pair // width,
        pair_other=pair % width,
        job=job,
        machine_key=place // width,
        machine_job=place % width,
        machine=machine,
        total=np.array([values.sum() for values in total]),
        **named,
    )
