"""Versions of job statistics and coefficients: immutable folders, numbered upwards, either complete or absent.

    <lake>/versions/00000042/{<random>-job_statistics.parquet,<random>-coefficients.parquet,manifest.json}

A version exists once its manifest does (`central.lake.manifests`), which names the version's two files, with their
digests, and the token of the builder's lease: a builder that finds a version of a higher token than its own gives up.
So numbers never go back, no replica reads a partial or damaged version, and a builder that stalled publishes nothing
after the one that took over.
"""

import bisect
import contextlib
import secrets
from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from central.lake import checksums
from central.lake.errors import DamagedError, NotFiniteError
from central.lake.lease import FencedError
from central.lake.manifests import ManifestCommit, read_manifest
from central.lake.objects import Objects
from whitepanda.common import log
from whitepanda.common.protocol import or_nan
from whitepanda.v1 import agent_pb2, fleet_pb2

_OF_SOME_METHODS = ("location_log_cpi", "scale_log_cpi")

#: Equation (1): CPI of a job on a platform, sorted by both. The last two are null if the method has none.
JOB_STATISTICS = pa.schema(
    {"job": pa.string(), "platform": pa.string(), "samples": pa.int64()}
    | dict.fromkeys(("mean_cpi", "std_cpi", *_OF_SOME_METHODS), pa.float64())
)

#: Equation (3), sorted by job. `standard_error` is null if it is unknown.
COEFFICIENTS = pa.schema(
    {"job": pa.string(), "samples": pa.int64()}
    | dict.fromkeys(("sum_usage_squared", "coefficient", "standard_error"), pa.float64())
)

_FORMAT = 1
_FOLDER = "versions"
_STATISTICS_FILE = "job_statistics.parquet"
_COEFFICIENTS_FILE = "coefficients.parquet"
_MANIFEST_FILE = "manifest.json"
_REMEDY = "the version before it counts, and the next build makes another; its folder may be deleted"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Where a version comes from. `segments_digest` changes whenever the lake has anything new."""

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
    machines_left_out: tuple[str, ...] = ()  # whose rows of some day made the build fail
    jobs_left_out: dict[str, int] = {}  # by machine: jobs of a day beyond build.max_machine_jobs
    job_statistics: int  # rows of the file
    coefficients: int  # the same
    code_version: str  # of the whitepanda distribution
    method: str = "panda"
    build_days: int = 0  # how far back its builder looked
    builder: str = ""  # the lease's holder
    engine: str = "duckdb"
    token: int = 0  # of the lease under which it was built
    files: str = ""  # what the names of its files begin with
    digests: dict[str, str] = {}  # SHA-256 by file, without what its name begins with
    seal: str = ""


class BuiltVersion:
    """One version in memory, as columns; rows of a job are found by bisection."""

    def __init__(self, manifest: Manifest, statistics: pa.Table, coefficients: pa.Table) -> None:
        self.manifest = manifest
        self._statistics = statistics.combine_chunks()
        self._coefficients = coefficients.combine_chunks()
        self._statistic_jobs = _jobs_of(self._statistics)
        self._coefficient_jobs = _jobs_of(self._coefficients)
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

    @cached_property
    def jobs(self) -> frozenset[str]:
        """All jobs that have a statistic or a coefficient."""
        return frozenset(self._statistic_jobs.to_pylist()) | frozenset(self._coefficient_jobs.to_pylist())

    def statistics(self, job: str) -> list[agent_pb2.JobStatistics]:
        """CPI statistics of a job, one per platform; none for an unknown job."""
        first, last = _rows_of(self._statistic_jobs, job)
        return self.statistics_page(first, last - first)

    def coefficient(self, job: str) -> agent_pb2.Coefficient | None:
        """A_k of a job, or None."""
        first, last = _rows_of(self._coefficient_jobs, job)
        return self._coefficient(self._coefficients.slice(first, 1).to_pylist()[0]) if first < last else None

    def statistics_page(self, offset: int, size: int) -> list[agent_pb2.JobStatistics]:
        """Return `size` statistics from `offset` on, in the order of (job, platform)."""
        return [agent_pb2.JobStatistics(**row) for row in self._statistics.slice(offset, size).to_pylist()]

    def coefficients_page(self, offset: int, size: int) -> list[agent_pb2.Coefficient]:
        """Return `size` coefficients from `offset` on, the largest first."""
        rows = self._coefficients.take(self._by_value.slice(offset, size))
        return [self._coefficient(row) for row in rows.to_pylist()]

    def _coefficient(self, row: dict[str, Any]) -> agent_pb2.Coefficient:
        method = self.manifest.method
        return agent_pb2.Coefficient(
            job=row["job"],
            value=row["coefficient"],
            samples=row["samples"],
            standard_error=or_nan(row["standard_error"]),
            method="" if method == "panda" else method,
        )


def _jobs_of(table: pa.Table) -> pa.Array:
    """Return the column `job` of a table of at most one chunk, which is not copied."""
    chunks = table.column("job").chunks
    return chunks[0] if chunks else pa.array([], pa.string())


def _rows_of(jobs: pa.Array, job: str) -> tuple[int, int]:
    """First row of a job and the row after its last one."""
    rows = range(len(jobs))
    first = bisect.bisect_left(rows, job, key=lambda row: jobs[row].as_py())
    return first, bisect.bisect_right(rows, job, lo=first, key=lambda row: jobs[row].as_py())


def _completed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema; those of `_OF_SOME_METHODS` that a table lacks are null."""
    for name in _OF_SOME_METHODS:
        if name in schema.names and name not in table.schema.names:
            table = table.append_column(name, pa.nulls(len(table), schema.field(name).type))
    return table.select(schema.names).cast(schema)


def _check_finite(tables: dict[str, pa.Table]) -> None:
    """Raise NotFiniteError if a value is NaN or infinite; what is unknown is null."""
    for file, table in tables.items():
        for name, column in zip(table.schema.names, table.columns, strict=True):
            if not pa.types.is_floating(column.type):
                continue
            odd = pc.fill_null(pc.invert(pc.is_finite(column)), False)
            if count := pc.sum(odd).as_py():
                job, value = (table.filter(odd)[each][0].as_py() for each in ("job", name))
                raise NotFiniteError(
                    f"{file.removesuffix('.parquet')}: {name} of {count} of {len(table)} rows is not a finite number, "
                    f"the first of job {job!r} ({value}); a version must have finite numbers. "
                    "Is there an absurd CPI or CPU usage in "
                    "the lake's samples of that job?"
                )


class VersionStore:
    """The versions of a lake. `damaged`: names of those that the last `latest` found damaged."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.damaged: frozenset[str] = frozenset()
        self._log = log.get("versions")

    def numbers(self) -> list[int]:
        """Return the numbers of all whole versions, ascending."""
        return sorted(number for number, file in self._files() if file == _MANIFEST_FILE)

    def latest(self) -> BuiltVersion | None:
        """Read the newest version. One that cannot be read is logged, and the one before it is taken."""
        found, damaged = None, set[str]()
        for number in reversed(self.numbers()):
            try:
                found = self.read(number)
                break
            except (DamagedError, OSError, pa.ArrowException, msgspec.MsgspecError, KeyError) as error:
                damaged.add(error.name if isinstance(error, DamagedError) else self._name(number, ""))
                self._log.warning("version cannot be read, an older one is used", version=number, error=str(error))
        self.damaged = frozenset(damaged)
        return found

    def read(self, number: int) -> BuiltVersion:
        """Read one version; OSError: it does not exist or is not readable.

        DamagedError, pyarrow.ArrowException, msgspec.MsgspecError, KeyError: it is damaged.
        """
        manifest = self.manifest(number)
        tables = (self._table(manifest, number, file) for file in (_STATISTICS_FILE, _COEFFICIENTS_FILE))
        return BuiltVersion(manifest, *tables)

    def coefficient(self, number: int, job: str) -> fleet_pb2.CoefficientAt | None:
        """Read a job's coefficient in a version; None: it has none. Statistics are not read. Raises as `read`."""
        manifest = self.manifest(number)
        table = self._table(manifest, number, _COEFFICIENTS_FILE)
        for row in table.filter(pc.equal(table.column("job"), job)).to_pylist():
            return fleet_pb2.CoefficientAt(
                version=number,
                created_unix_ns=manifest.created_unix_ns,
                value=row["coefficient"],
                standard_error=or_nan(row["standard_error"]),
                samples=row["samples"],
            )
        return None

    def manifest(self, number: int) -> Manifest:
        """Read where a version comes from; raises as `read`."""
        data = read_manifest(self._objects, self._name(number, _MANIFEST_FILE), _REMEDY)
        return msgspec.json.decode(data, type=Manifest)

    def write(
        self, manifest: Manifest, statistics: pa.Table, coefficients: pa.Table, check: Callable[[], None] = lambda: None
    ) -> BuiltVersion:
        """Write a version under the number after the last one; it is complete and on disk when this returns.

        The manifest's number and numbers of rows are ignored. `statistics` has the columns `JOB_STATISTICS` and
        `coefficients` `COEFFICIENTS`, rows in any order. `check` is called just before the version is published; it
        raises FencedError if the lease is lost.

        FencedError: a builder with a later lease has published already. NotFiniteError: a number is NaN or infinite.
        OSError: the disk is full or not writable; the versions are as they were.
        """
        statistics = _completed(statistics, JOB_STATISTICS)
        statistics = statistics.sort_by([("job", "ascending"), ("platform", "ascending")])
        coefficients = _completed(coefficients, COEFFICIENTS).sort_by("job")
        tables = {_STATISTICS_FILE: statistics, _COEFFICIENTS_FILE: coefficients}
        _check_finite(tables)
        while True:
            number = self._next(manifest.token)
            manifest = msgspec.structs.replace(
                manifest,
                version=number,
                job_statistics=len(statistics),
                coefficients=len(coefficients),
                files=f"{secrets.token_hex(4)}-",
                digests={},
                seal=checksums.PLACE,
            )
            try:
                with ManifestCommit(self._objects, self._name(number, _MANIFEST_FILE)) as commit:
                    for file, table in tables.items():
                        name = self._name(number, manifest.files + file)
                        pq.write_table(table, commit.draft(name), compression="zstd")
                        manifest.digests[file] = commit.publish(name)
                    check()
                    text = commit.create(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
            except FileExistsError:
                continue  # another builder has that number; `_next` says whether to continue
            return BuiltVersion(msgspec.json.decode(text, type=Manifest), statistics, coefficients)

    def prune(self, keep: int) -> None:
        """Delete all but the newest `keep` versions (at least one), and what crashes left below it."""
        kept = self.numbers()[-max(keep, 1) :]
        gone = [(number, file) for number, file in self._files() if kept and number < kept[-1]]
        # Manifests first: a version that lacks a file must not exist.
        for number, file in sorted(gone, key=lambda each: each[1] != _MANIFEST_FILE):
            if number not in kept:
                with contextlib.suppress(OSError):
                    self._objects.remove(self._name(number, file))

    def _next(self, token: int) -> int:
        """Return the number after the last version's, unless that has a later lease than `token`."""
        last = max(self.numbers(), default=0)
        if last:
            # A damaged version's number is taken, too.
            with contextlib.suppress(DamagedError, msgspec.MsgspecError, OSError):
                if (found := self.manifest(last).token) > token:
                    raise FencedError(f"version {last} is of lease {found}, later than this builder's {token}")
        return last + 1

    def _table(self, manifest: Manifest, number: int, file: str) -> pa.Table:
        name = self._name(number, manifest.files + file)
        data = self._objects.read(name)
        written = manifest.digests.get(file, "")
        checksums.check_digest(self._objects.root, name, data, written, _REMEDY)
        return pq.read_table(pa.BufferReader(data))

    def _name(self, number: int, file: str) -> str:
        return f"{_FOLDER}/{number:08d}/{file}"

    def _files(self) -> list[tuple[int, str]]:
        """Every file in a version's folder, with the number."""
        parts = (entry.name.split("/") for entry in self._objects.entries(_FOLDER))
        return [(int(each[1]), each[2]) for each in parts if len(each) == 3 and each[1].isdigit()]  # noqa: PLR2004
