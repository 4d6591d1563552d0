"""Versions of job statistics and coefficients: immutable folders, numbered upwards, whole or not there.

    <lake>/versions/00000042/{job_statistics.parquet,coefficients.parquet,manifest.json}

A folder is claimed by making it, which one builder alone can do, and is a version once its manifest is there.
The manifest comes last, at once and never over another one. So numbers never go back, and nobody reads half a
version.
"""

from __future__ import annotations

import bisect
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from whitepanda.common import log
from whitepanda.common.durable import sync_folder
from whitepanda.v1 import agent_pb2

__all__ = ["COEFFICIENTS", "JOB_STATISTICS", "BuiltVersion", "Manifest", "VersionStore"]

#: Equation (1): CPI of a job on a platform, sorted by both.
JOB_STATISTICS = pa.schema(
    {
        "job": pa.string(),
        "platform": pa.string(),
        "samples": pa.int64(),
        "mean_cpi": pa.float64(),
        "std_cpi": pa.float64(),
    }
)

#: Equation (3), sorted by job. `standard_error` is null where it is not known.
COEFFICIENTS = pa.schema(
    {
        "job": pa.string(),
        "samples": pa.int64(),
        "sum_usage_squared": pa.float64(),
        "coefficient": pa.float64(),
        "standard_error": pa.float64(),
    }
)

_FORMAT = 1
_STATISTICS_FILE = "job_statistics.parquet"
_COEFFICIENTS_FILE = "coefficients.parquet"
_MANIFEST_FILE = "manifest.json"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Where a version comes from. `segments_digest` tells whether the lake has anything new."""

    format: int = _FORMAT
    version: int
    created_unix_ns: int
    slot_s: float
    days: tuple[str, ...]  # ISO dates
    segments: int
    segments_digest: str
    rows: int  # of the segments
    days_left_out: int = 0  # days of the lake older than build.days
    rows_left_out: int = 0  # their rows
    job_statistics: int  # rows of the file
    coefficients: int  # the same
    code_version: str  # of the whitepanda distribution


class BuiltVersion:
    """One version in memory, as columns; rows of a job are found by bisection."""

    def __init__(self, manifest: Manifest, statistics: pa.Table, coefficients: pa.Table) -> None:
        self.manifest = manifest
        self._statistics = statistics.combine_chunks()
        self._coefficients = coefficients.combine_chunks()
        self._statistic_jobs = _one_array(self._statistics, "job")
        self._coefficient_jobs = _one_array(self._coefficients, "job")
        keys = [("coefficient", "descending"), ("job", "ascending")]
        self._by_value = pc.sort_indices(self._coefficients, sort_keys=keys)

    @property
    def version(self) -> int:
        """The version's number, from 1."""
        return self.manifest.version

    @property
    def slot_ns(self) -> int:
        """Length of the slots that the statistics are of."""
        return round(self.manifest.slot_s * 1e9)

    @property
    def statistics_count(self) -> int:
        """Number of (job, platform) statistics."""
        return int(self._statistics.num_rows)

    @property
    def coefficients_count(self) -> int:
        """Number of coefficients, one per job."""
        return int(self._coefficients.num_rows)

    def statistics(self, job: str) -> list[agent_pb2.JobStatistics]:
        """CPI statistics of a job, one per platform; none where the job is not known."""
        first, last = _rows_of(self._statistic_jobs, job)
        return self.statistics_page(first, last - first)

    def coefficient(self, job: str) -> agent_pb2.Coefficient | None:
        """A_k of a job, or None."""
        first, last = _rows_of(self._coefficient_jobs, job)
        return _coefficient(self._coefficients.slice(first, 1).to_pylist()[0]) if first < last else None

    def statistics_page(self, offset: int, size: int) -> list[agent_pb2.JobStatistics]:
        """Return `size` statistics from `offset` on, in the order of (job, platform)."""
        return [agent_pb2.JobStatistics(**row) for row in self._statistics.slice(offset, size).to_pylist()]

    def coefficients_page(self, offset: int, size: int) -> list[agent_pb2.Coefficient]:
        """Return `size` coefficients from `offset` on, the largest first."""
        rows = self._coefficients.take(self._by_value.slice(offset, size))
        return [_coefficient(row) for row in rows.to_pylist()]


def _one_array(table: pa.Table, name: str) -> pa.Array:
    chunks = table.column(name).chunks
    return chunks[0] if chunks else pa.array([], pa.string())


def _rows_of(jobs: pa.Array, job: str) -> tuple[int, int]:
    """First row of a job and the row after its last one."""
    rows = range(len(jobs))
    first = bisect.bisect_left(rows, job, key=lambda row: jobs[row].as_py())
    return first, bisect.bisect_right(rows, job, lo=first, key=lambda row: jobs[row].as_py())


def _coefficient(row: dict[str, Any]) -> agent_pb2.Coefficient:
    error = row["standard_error"]
    return agent_pb2.Coefficient(
        job=row["job"],
        value=row["coefficient"],
        samples=row["samples"],
        standard_error=float("nan") if error is None else error,
    )


class VersionStore:
    """The versions below a folder.

    Args:
        root: the folder; made when the first version is written.

    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._log = log.get("versions")

    def numbers(self) -> list[int]:
        """Return the numbers of all whole versions, ascending."""
        return sorted(number for number, folder in self._folders() if (folder / _MANIFEST_FILE).exists())

    def latest(self) -> BuiltVersion | None:
        """Read the newest version. One that cannot be read is warned of, and the one before it is taken."""
        for number in reversed(self.numbers()):
            try:
                return self.read(number)
            except (OSError, pa.ArrowException, msgspec.MsgspecError, KeyError) as error:
                self._log.warning(
                    "version cannot be read, an older one is used", version=number, error=str(error)
                )
        return None

    def read(self, number: int) -> BuiltVersion:
        """Read one version.

        Raises:
            OSError: it is not there or not readable.
            pyarrow.ArrowException, msgspec.MsgspecError, KeyError: it is damaged.

        """
        folder = self._folder(number)
        manifest = msgspec.json.decode((folder / _MANIFEST_FILE).read_bytes(), type=Manifest)
        statistics = (
            pq.read_table(folder / _STATISTICS_FILE).select(JOB_STATISTICS.names).cast(JOB_STATISTICS)
        )
        coefficients = (
            pq.read_table(folder / _COEFFICIENTS_FILE).select(COEFFICIENTS.names).cast(COEFFICIENTS)
        )
        return BuiltVersion(manifest, statistics, coefficients)

    def write(self, manifest: Manifest, statistics: pa.Table, coefficients: pa.Table) -> BuiltVersion:
        """Write a version under the number after the last one; it is on disk and whole when this returns.

        Args:
            manifest: its number is not looked at, nor are the numbers of rows.
            statistics: columns `JOB_STATISTICS`, in any order of rows.
            coefficients: columns `COEFFICIENTS`, the same.

        Raises:
            OSError: the disk is full or not writable; the versions are as they were.

        """
        statistics = statistics.select(JOB_STATISTICS.names).cast(JOB_STATISTICS)
        statistics = statistics.sort_by([("job", "ascending"), ("platform", "ascending")])
        coefficients = coefficients.select(COEFFICIENTS.names).cast(COEFFICIENTS).sort_by("job")
        number = self._claim()
        folder = self._folder(number)
        manifest = msgspec.structs.replace(
            manifest, version=number, job_statistics=len(statistics), coefficients=len(coefficients)
        )
        try:
            for name, table in ((_STATISTICS_FILE, statistics), (_COEFFICIENTS_FILE, coefficients)):
                with (folder / name).open("xb") as file:
                    pq.write_table(table, file, compression="zstd")
                    file.flush()
                    os.fsync(file.fileno())
            self._write_manifest(folder, manifest)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return BuiltVersion(manifest, statistics, coefficients)

    def prune(self, keep: int) -> None:
        """Delete all but the newest `keep` versions (at least one), and what crashes left below it."""
        kept = self.numbers()[-max(keep, 1) :]
        for number, folder in list(self._folders()):
            if kept and number not in kept and number < kept[-1]:
                shutil.rmtree(folder, ignore_errors=True)

    def _claim(self) -> int:
        """Make the folder of the next number. Of several builders each gets one of its own."""
        self.root.mkdir(parents=True, exist_ok=True)
        number = max((number for number, _ in self._folders()), default=0) + 1
        while True:
            try:
                self._folder(number).mkdir()
            except FileExistsError:
                number += 1
            else:
                return number

    @staticmethod
    def _write_manifest(folder: Path, manifest: Manifest) -> None:
        unfinished = folder / (_MANIFEST_FILE + ".tmp")
        with unfinished.open("xb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        # A link, unlike a rename, never replaces; unlike O_EXCL and writing, nobody sees it half written.
        os.link(unfinished, folder / _MANIFEST_FILE)
        unfinished.unlink()
        for path in (folder, folder.parent):
            sync_folder(path)

    def _folder(self, number: int) -> Path:
        return self.root / f"{number:08d}"

    def _folders(self) -> Iterator[tuple[int, Path]]:
        if self.root.is_dir():
            for path in self.root.iterdir():
                if path.name.isdigit() and path.is_dir():
                    yield int(path.name), path
