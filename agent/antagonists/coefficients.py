"""Job statistics and coefficients that central sent, versioned, on disk.

Central may be unreachable for days, so its last update is kept in a file, written atomically, with the previous one
next to it. Expired data are not used. Central's numbers are not trusted: they are checked against the limits of
`[uplink]` and what a CPI can be, only rows of jobs that this host asked for are taken, and a version created in the
future is not used, so that no update can shut out later ones.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path

import msgspec

from agent.analysis.contention.normalised_cpi import CpiStatistics, RobustLogCpi
from agent.antagonists.update_limits import Refusals
from agent.config import UplinkSection
from whitepanda.common import log
from whitepanda.common.files import durable
from whitepanda.common.files.bounded import read_bounded
from whitepanda.common.job_tags import tag_of
from whitepanda.v1 import agent_pb2

_FORMAT = 1
_MAX_TIME = 2**64 - 1  # what the protocol can carry
_MAX_COUNT = 2**63 - 1
_MIN_SLOT_NS, _MAX_SLOT_NS = 10**8, 86_400 * 10**9
# What is plausible, with room to spare: CPUs retire at most 8 instructions in a cycle, and a mean of 100 is a broken
# counter or a VM that hardly runs. docs/security.md names these.
_MIN_CPI, _MAX_CPI = 0.01, 10_000.0
_MAX_LOG_CPI = 10.0
_MAX_COEFFICIENT = 10_000.0
_MAX_ERROR = 1e6
_MAX_METHOD = 64
_FILE_BYTES_PER_JOB = 2048


def _require(**conditions: bool) -> None:
    """Raise ValueError with the names of the conditions that fail. While decoding a file, msgspec adds the path."""
    wrong = [what for what, holds in conditions.items() if not holds]
    if wrong:
        raise ValueError(f"out of range: {', '.join(wrong)}")


class Coefficient(msgspec.Struct, frozen=True):
    """A_k of a job, equation (3): mnCPI per core of its CPU usage, fitted to `samples` task slots.

    `method`: central's method of fitting; "" is PANDA.
    """

    value: float
    samples: int
    standard_error: float | None = None
    method: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for implausible values."""
        error = self.standard_error
        _require(
            value=abs(self.value) <= _MAX_COEFFICIENT,
            samples=0 <= self.samples <= _MAX_COUNT,
            standard_error=error is None or 0 <= error <= _MAX_ERROR,
            method=len(self.method) <= _MAX_METHOD and self.method.isprintable(),
        )


class _Statistics(msgspec.Struct, frozen=True):
    job: str
    platform: str
    samples: int
    mean_cpi: float
    std_cpi: float
    location_log_cpi: float = 0.0
    scale_log_cpi: float = 0.0  # 0: neither is known

    def __post_init__(self) -> None:
        _require(
            samples=0 <= self.samples <= _MAX_COUNT,
            mean_cpi=_MIN_CPI <= self.mean_cpi <= _MAX_CPI,
            std_cpi=0 <= self.std_cpi <= _MAX_CPI,
            location_log_cpi=abs(self.location_log_cpi) <= _MAX_LOG_CPI,
            scale_log_cpi=0 <= self.scale_log_cpi <= _MAX_LOG_CPI,
        )

    @property
    def plain(self) -> CpiStatistics:
        """As the analysis takes them."""
        robust = RobustLogCpi(self.location_log_cpi, self.scale_log_cpi) if self.scale_log_cpi else None
        return CpiStatistics(self.mean_cpi, self.std_cpi, self.samples, robust)


class _State(msgspec.Struct, frozen=True):
    """The file's content: one version of central's rows for this host's jobs; version 0: none."""

    format: int = _FORMAT
    version: int = 0
    created_unix_ns: int = 0
    ttl_ns: int = 0
    slot_ns: int = 0
    statistics: tuple[_Statistics, ...] = ()
    coefficients: dict[str, Coefficient] = {}
    tags: dict[str, int] = {}  # by job, as central sent them with the rows

    def __post_init__(self) -> None:
        _require(
            version=0 <= self.version <= _MAX_COUNT,
            created_unix_ns=0 <= self.created_unix_ns <= _MAX_TIME,
            ttl_ns=0 <= self.ttl_ns <= _MAX_TIME,
            slot_ns=self.version == 0 or _MIN_SLOT_NS <= self.slot_ns <= _MAX_SLOT_NS,
        )


class CoefficientStore:
    """The newest coefficients that central sent, kept at `path`.

    A delta is merged if its version is at least the held one. A full update replaces everything if its version is at
    least the stored one, or if it was created later: then central's lake was lost or restored, and its versions
    restarted from a lower number. An update created later than this host's clock allows is refused.

    `path`: JSON file; its folder is made. If it is damaged or too large, NAME.previous is read; if both are, the agent
    reports version 0 and central sends everything again. None: in memory only. `limits`: how much is taken, and how
    long it is used. `asked`: the jobs whose rows are taken; None: all. Rows of other platforms than `platform` are left
    out; None: none are. `refusals` counts refused updates and rows.
    """

    def __init__(
        self,
        path: Path | None,
        limits: UplinkSection | None = None,
        *,
        asked: Container[str] | None = None,
        platform: str | None = None,
        refusals: Refusals | None = None,
        now_unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        limits = limits or UplinkSection()
        self._path = path
        self._paths = (path, path.with_name(path.name + ".previous")) if path else ()
        self._max_jobs, self._max_file_bytes = limits.max_jobs, limits.max_jobs * _FILE_BYTES_PER_JOB
        self._max_ttl_ns = round(limits.max_ttl_s * 1e9)
        self._max_skew_ns = round(limits.max_clock_skew_s * 1e9)
        self._asked, self._platform, self._now_unix_ns = asked, platform, now_unix_ns
        self._refusals = refusals or Refusals()
        self._log = log.get("coefficients")
        self._held = _State()
        self._by_job: dict[tuple[str, str], CpiStatistics] = {}
        self._held_tags: tuple[agent_pb2.JobTag, ...] = ()
        self._file_is_good = False
        self._take(self._read())

    @property
    def version(self) -> int:
        """Version held; 0: none that can be used."""
        return 0 if self._is_of_the_future(self._now_unix_ns()) else self._held.version

    @property
    def created_unix_ns(self) -> int:
        """When central made this version, by its clock; 0 if nothing is held."""
        return self._held.created_unix_ns

    @property
    def ttl_ns(self) -> int:
        """How long the version may be used after its creation; 0 if none is stored."""
        return min(self._held.ttl_ns or self._max_ttl_ns, self._max_ttl_ns) if self._held.version else 0

    @property
    def slot_ns(self) -> int:
        """Length of the slots behind the statistics; 0 if nothing is held."""
        return self._held.slot_ns

    @property
    def jobs(self) -> frozenset[str]:
        """Jobs with statistics or a coefficient."""
        return frozenset(self._held.coefficients) | {job for job, _ in self._by_job}

    @property
    def held_tags(self) -> tuple[agent_pb2.JobTag, ...]:
        """Tags for the Hello to central, which then sends only jobs with other tags."""
        return self._held_tags if self.version else ()

    def age_ns(self, now_unix_ns: int) -> int:
        """Nanoseconds since central made this version; 0 if nothing is held or its clock is ahead."""
        return max(0, now_unix_ns - self.created_unix_ns) if self._held.version else 0

    def expired(self, now_unix_ns: int) -> bool:
        """Whether nothing held may be used: the time to live is over, or it was created in the future."""
        if not self._held.version:
            return False
        return self._is_of_the_future(now_unix_ns) or self.age_ns(now_unix_ns) > self.ttl_ns

    def statistics(self, job: str, platform: str, now_unix_ns: int) -> CpiStatistics | None:
        """CPI of a job on a platform. None: central has not sent any, or they have expired."""
        return None if self.expired(now_unix_ns) else self._by_job.get((job, platform))

    def coefficient(self, job: str, now_unix_ns: int) -> Coefficient | None:
        """A_k of a job. None: central has not sent it, or it has expired."""
        return None if self.expired(now_unix_ns) else self._held.coefficients.get(job)

    def apply(self, update: agent_pb2.CoefficientUpdate) -> bool:
        """Write an update from central to disk, then use it; a disk that cannot be written is only logged.

        Returns False if the update was refused; then nothing has changed.
        """
        refusal = self._refusal(update)
        if not refusal:
            held = self._merged(update)
            data = msgspec.json.encode(held)
            refusal = self._excess(held, len(data))
        if refusal:
            self._refusals.update(*refusal, version=update.version, held=self.version)
            return False
        try:
            self._write(data)
        except OSError as error:
            self._log.warning("coefficients are not kept over a restart", path=str(self._path), error=error.strerror)
        self._take(held)
        return True

    def _refusal(self, update: agent_pb2.CoefficientUpdate) -> tuple[str, str] | None:
        """Return why an update is refused, as kind and text for `Refusals.update`; None: it is taken."""
        if not 0 < update.version <= _MAX_COUNT:
            return "version", f"invalid version {update.version}"
        if not _MIN_SLOT_NS <= update.slot_ns <= _MAX_SLOT_NS:
            return "slots", f"slots of {update.slot_ns} ns; they last 0.1 s to a day"
        ahead_ns = update.created_unix_ns - self._now_unix_ns()
        if ahead_ns > self._max_skew_ns:
            return "future", (
                f"created {ahead_ns / 1e9:.0f} s in the future by this host's clock; check both clocks "
                f"(uplink.max_clock_skew_s {self._max_skew_ns / 1e9:g})"
            )
        is_later = update.created_unix_ns > self.created_unix_ns
        if update.version < self.version and not (update.full and is_later):
            return "older", "older than what is held" + (", and not made later" if update.full else "")
        if not update.full and self.version and update.slot_ns != self.slot_ns:
            return "slots", f"of {update.slot_ns} ns slots, beside statistics of {self.slot_ns} ns slots"
        return None

    def _excess(self, held: _State, size: int) -> tuple[str, str] | None:
        """Return why the merged state is too large, in the form of `_refusal`."""
        jobs = len({s.job for s in held.statistics} | held.coefficients.keys())
        remedy = "raise uplink.max_jobs if this host needs more"
        if jobs > self._max_jobs:
            return "jobs", f"{jobs} jobs would be held; at most {self._max_jobs} (uplink.max_jobs); {remedy}"
        if size > self._max_file_bytes:
            return "size", f"{size} bytes would be kept; at most {self._max_file_bytes}, 2 KiB a job; {remedy}"
        return None

    def _merged(self, update: agent_pb2.CoefficientUpdate) -> _State:
        def is_wanted(job: str) -> bool:
            return self._asked is None or job in self._asked

        before = _State() if update.full or not self.version else self._held
        # Rows of a job with a new tag replace all its rows, including those that central no longer has. A job whose
        # rows come without a tag loses its tag.
        replaced = set(update.removed_jobs) | {row.job for row in update.tags}
        statistics = {(s.job, s.platform): s for s in before.statistics if s.job not in replaced}
        coefficients = {job: value for job, value in before.coefficients.items() if job not in replaced}
        changed = replaced | {row.job for row in update.statistics} | {row.job for row in update.coefficients}
        tags = {job: tag for job, tag in before.tags.items() if job not in changed}
        tags.update(_true_tags(update, {row.job: row.tag for row in update.tags if is_wanted(row.job)}))
        strange = absurd = 0
        rows: tuple[agent_pb2.JobStatistics | agent_pb2.Coefficient, ...] = (*update.statistics, *update.coefficients)
        for row in rows:
            is_here = isinstance(row, agent_pb2.Coefficient) or self._platform in (None, row.platform)
            if not (is_here and is_wanted(row.job)):
                strange += 1
                continue
            try:
                if isinstance(row, agent_pb2.JobStatistics):
                    robust = row.location_log_cpi, row.scale_log_cpi
                    new = _Statistics(row.job, row.platform, row.samples, row.mean_cpi, row.std_cpi, *robust)
                    statistics[row.job, row.platform] = new
                else:
                    error = row.standard_error if math.isfinite(row.standard_error) else None
                    coefficients[row.job] = Coefficient(row.value, row.samples, error, row.method)
            except ValueError:
                absurd += 1
        if strange:
            why = "of jobs or a platform that this host did not ask for"
            self._refusals.leave_out("strange", why, strange, version=update.version)
        if absurd:
            self._refusals.leave_out("absurd", "not finite, or not plausible", absurd, version=update.version)
        head = (_FORMAT, update.version, update.created_unix_ns, update.ttl_ns, update.slot_ns)
        return _State(*head, tuple(statistics.values()), coefficients, tags)

    def _is_of_the_future(self, now_unix_ns: int) -> bool:
        return self._held.created_unix_ns - now_unix_ns > self._max_skew_ns

    def _take(self, held: _State) -> None:
        self._held = held
        self._by_job = {(s.job, s.platform): s.plain for s in held.statistics}
        self._held_tags = tuple(agent_pb2.JobTag(job=job, tag=tag) for job, tag in held.tags.items())

    def _read(self) -> _State:
        """Return the content of the file, else of the previous one, else an empty state. Damage is logged."""
        problem = ""
        for path in self._paths:
            try:
                held = msgspec.json.decode(read_bounded(path, self._max_file_bytes), type=_State)
                if held.format != _FORMAT:
                    raise ValueError(f"format {held.format}, this agent knows {_FORMAT}")  # noqa: TRY301 - handled below, as damage is
            except FileNotFoundError:
                continue  # nothing was ever kept, or the agent was killed while it replaced the file
            except (OSError, ValueError, msgspec.DecodeError, RecursionError) as error:
                problem = (error.strerror if isinstance(error, OSError) else "") or str(error)
                self._log.warning("damaged coefficients", path=str(path), error=problem)
                continue
            self._file_is_good = path == self._path
            if problem:
                self._log.warning("the previously saved coefficients are used", path=str(path))
            return held
        if problem:
            self._log.warning("starting without coefficients: central sends them", path=str(self._path))
        return _State()

    def _write(self, data: bytes) -> None:
        if not self._paths:
            return
        path, previous = self._paths
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._file_is_good:  # a damaged file must not replace a good previous one
            with contextlib.suppress(OSError):  # a file system without links has no previous file
                previous.unlink(missing_ok=True)
                os.link(path, previous)
        with durable.replacing(path, mode=0o600) as file:  # it names the jobs of this host
            file.write(data)
        self._file_is_good = True


def _true_tags(update: agent_pb2.CoefficientUpdate, tags: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield job and tag if the tag fits the rows sent with it; without it, central resends the job's rows."""
    rows = {job: agent_pb2.CoefficientUpdate(slot_ns=update.slot_ns) for job in tags}
    for one in update.statistics:
        if one.job in rows:
            rows[one.job].statistics.append(one)
    for other in update.coefficients:
        if other.job in rows:
            rows[other.job].coefficients.append(other)
    return ((job, tag) for job, tag in tags.items() if tag_of(rows[job]) == tag)
