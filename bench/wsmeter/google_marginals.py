"""How stable location and scale of jobs' CPI are in the Google sample: robust against plain estimators.

    python -m bench.wsmeter.google_marginals --out FOLDER [--data FOLDER] [--least 5]

The days of the trace are split in two, earlier against later and odd against even (which has next to no drift), and
each job's location and scale are estimated in both parts, by mean and standard deviation and by robust ones. Reported
are the difference between the parts and the rank correlation over jobs, with intervals by bootstrap over jobs, on the
sample as it is and with a share of its values made 20 times too large. Writes tables.md and results.json, what
docs/studies/google-cpi.md is made of. Without the data (`$WHITEPANDA_DATA/google2019/instance_usage.parquet`) it says
so and exits with 0.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

DAY_US = 86_400_000_000
#: Values outside are refused by central (`ingest.max_cpi`), and here.
MAX_CPI = 100.0
DRAWS = 2_000
#: What a corrupted value is multiplied with.
FACTOR = 20.0

_COLUMNS = (
    "cluster",
    "collection_id",
    "collection_logical_name",
    "start_time",
    "cycles_per_instruction",
    "priority",
    "scheduling_class",
)


def _iqr(logs: Floats) -> float:
    low, high = np.percentile(logs, [25, 75])
    return float(high - low) / 1.3489795


#: The logarithm of each estimate of a job's CPI: so that a difference is a ratio, in any unit.
LOCATION: Mapping[str, Callable[[Floats], float]] = {
    "mean": lambda cpi: float(np.log(cpi.mean())),
    "mean of ln": lambda cpi: float(np.log(cpi).mean()),
    "median of ln": lambda cpi: float(np.median(np.log(cpi))),
}
SCALE: Mapping[str, Callable[[Floats], float]] = {
    "std / mean": lambda cpi: float(np.log(cpi.std(ddof=1) / cpi.mean())),
    "std of ln": lambda cpi: float(np.log(np.log(cpi).std(ddof=1))),
    "IQR / 1.349 of ln": lambda cpi: float(np.log(_iqr(np.log(cpi)))),
    "MAD x 1.483 of ln": lambda cpi: float(np.log(1.4826 * np.median(np.abs(np.log(cpi) - np.median(np.log(cpi)))))),
}


@dataclass(frozen=True)
class Sample:
    """The distinct values; `job` by what they are grouped by."""

    day: Ints
    cpi: Floats
    job: Mapping[str, Ints]
    rows: int


@dataclass(frozen=True)
class Row:
    """One estimator on one split: ratios between its two parts, each as value, low and high of a 95 % interval."""

    grouping: str
    split: str
    corrupted: float
    estimator: str
    jobs: int
    median_ratio: tuple[float, float, float]
    p90_ratio: tuple[float, float, float]
    rank_correlation: tuple[float, float, float]
    #: Mean |ln ratio| less that of the plain estimator on the same jobs; below 0 is better than plain.
    against_plain: tuple[float, float, float] | None


def read(path: Path) -> Sample:
    """Read the sample: one value per collection and time, as it repeats that in all rows of their tasks."""
    table = pq.read_table(path, columns=list(_COLUMNS)).filter(
        ~np.isnan(pq.read_table(path, columns=["cycles_per_instruction"])["cycles_per_instruction"].to_numpy())
    )
    column = {name: table[name].to_numpy(zero_copy_only=False) for name in _COLUMNS}
    cpi = column["cycles_per_instruction"]
    _, first = np.unique(np.rec.fromarrays([column["collection_id"], column["start_time"], cpi]), return_index=True)
    first = first[(cpi[first] > 0) & (cpi[first] <= MAX_CPI)]
    tier = [
        f"{cluster:g}/{priority:g}/{kind:g}"
        for cluster, priority, kind in zip(
            column["cluster"][first], column["priority"][first], column["scheduling_class"][first], strict=True
        )
    ]
    names = column["collection_logical_name"][first].astype(str)
    return Sample(
        day=(column["start_time"][first] // DAY_US).astype(np.int64),
        cpi=cpi[first].astype(np.float64),
        job={
            "logical name": np.unique(names, return_inverse=True)[1].astype(np.int64),
            "cluster, priority, class": np.unique(np.array(tier), return_inverse=True)[1].astype(np.int64),
        },
        rows=table.num_rows,
    )


def estimates(
    job: Ints,
    second: npt.NDArray[np.bool_],
    cpi: Floats,
    least: int,
    estimators: Mapping[str, Callable[[Floats], float]],
) -> Floats:
    """Return an array (parts, jobs, estimators) of the jobs with enough values in both parts and a scale of them.

    A job without spread in one part (of any estimator) is left out for all of them: a ratio to 0 says nothing.
    """
    found = []
    for each in np.unique(job):
        parts = [cpi[(job == each) & (second == part)] for part in (False, True)]
        if min(map(len, parts)) < least:
            continue
        with np.errstate(divide="ignore"):
            found.append([[estimate(part) for estimate in estimators.values()] for part in parts])
    values = np.array(found, dtype=np.float64).reshape(-1, 2, len(estimators)).transpose(1, 0, 2)
    return values[:, np.isfinite(values).all(axis=(0, 2))]


def _ranks(values: Floats) -> Floats:
    """Ranks from 0, the mean of them where values are equal."""
    ordered = np.sort(values)
    return (np.searchsorted(ordered, values) + np.searchsorted(ordered, values, side="right") - 1) / 2


def _rank_correlation(first: Floats, second: Floats) -> float:
    a, b = _ranks(first), _ranks(second)
    if a.std() == 0 or b.std() == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def _bounded(of: Callable[[Ints], float], jobs: int, seed: int) -> tuple[float, float, float]:
    """A statistic of all jobs, and its 95 % interval by bootstrap over jobs."""
    rng = np.random.default_rng(seed)
    drawn = np.array([of(rng.integers(0, jobs, jobs)) for _ in range(DRAWS)])
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return of(np.arange(jobs)), float(low), float(high)


def compare(values: Floats, names: tuple[str, ...], where: tuple[str, str, float], seed: int = 1) -> Iterator[Row]:
    """Describe each estimator of `values`, as `estimates` returns them; the first one is the plain one."""
    jobs = values.shape[1]
    off = np.abs(values[1] - values[0])
    for k, name in enumerate(names):
        own, plain = off[:, k], off[:, 0]

        def typical(i: Ints, own: Floats = own) -> float:
            return float(np.exp(np.median(own[i])))

        def large(i: Ints, own: Floats = own) -> float:
            return float(np.exp(np.percentile(own[i], 90)))

        def ranks(i: Ints, k: int = k) -> float:
            return _rank_correlation(values[0, i, k], values[1, i, k])

        def gained(i: Ints, own: Floats = own, plain: Floats = plain) -> float:
            return float((own - plain)[i].mean())

        yield Row(
            *where,
            estimator=name,
            jobs=jobs,
            median_ratio=_bounded(typical, jobs, seed),
            p90_ratio=_bounded(large, jobs, seed),
            rank_correlation=_bounded(ranks, jobs, seed),
            against_plain=None if k == 0 else _bounded(gained, jobs, seed),
        )


def corrupt(cpi: Floats, share: float, seed: int = 1) -> Floats:
    """Return the values with this share of them `FACTOR` times too large."""
    hit = np.random.default_rng(seed).random(len(cpi)) < share
    return np.where(hit, cpi * FACTOR, cpi)


def study(sample: Sample, least: int) -> list[Row]:
    """Compare all estimators under all groupings, splits and shares of corrupted values."""
    splits = {"earlier, later": sample.day > np.median(np.unique(sample.day)), "odd, even": sample.day % 2 == 0}
    rows: list[Row] = []
    for grouping, job in sample.job.items():
        for split, second in splits.items():
            for share in (0.0, 0.01, 0.05):
                cpi = corrupt(sample.cpi, share)
                for estimators in (LOCATION, SCALE):
                    values = estimates(job, second, cpi, least, estimators)
                    rows += compare(values, tuple(estimators), (grouping, split, share))
    return rows


def _cell(value: tuple[float, float, float] | None, sign: str = "") -> str:
    if value is None:
        return ""
    middle, low, high = (f"{each:{sign}.2f}" for each in value)
    return f"{middle} ({low} to {high})"


def tables(sample: Sample, rows: list[Row], least: int) -> str:
    """Return the Markdown tables."""
    lines = [
        f"{sample.rows:,} rows with a CPI, {len(sample.cpi):,} distinct (collection, time, CPI) up to {MAX_CPI:g};",
        f"jobs with at least {least} values in each part and a spread above 0 in both.",
    ]
    at: tuple[Any, ...] = ()
    for row in rows:
        if (row.grouping, row.split, row.corrupted) != at:
            at = row.grouping, row.split, row.corrupted
            dirty = f", {row.corrupted:.0%} corrupted" if row.corrupted else ""
            lines += [
                "",
                f"### Jobs by {row.grouping}; {row.split} days{dirty}",
                "",
                "| | jobs | median ratio | 90th percentile | rank correlation | mean abs. ln ratio less plain's |",
                "|---|---|---|---|---|---|",
            ]
        lines.append(
            f"| {row.estimator} | {row.jobs} | {_cell(row.median_ratio)} | {_cell(row.p90_ratio)} "
            f"| {_cell(row.rank_correlation)} | {_cell(row.against_plain, '+')} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run the study and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = Path(os.environ.get("WHITEPANDA_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=usual, help="folder with google2019/")
    parser.add_argument("--least", type=int, default=5, help="values of a job in each part of the days")
    given = parser.parse_args(arguments)
    path = given.data / "google2019" / "instance_usage.parquet"
    if not path.exists():
        sys.stdout.write(f"skipped: no real data at {path}; set WHITEPANDA_DATA\n")
        return 0
    sample = read(path)
    rows = study(sample, given.least)
    given.out.mkdir(parents=True, exist_ok=True)
    text = tables(sample, rows, given.least)
    (given.out / "tables.md").write_text(text, encoding="utf-8")
    (given.out / "results.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
