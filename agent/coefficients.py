"""What central has learnt and this host holds: job statistics and coefficients, versioned, on disk.

Central may be away for days, so what it sent last is kept in a file and read again at start. A write is whole
or not at all. After the time to live nothing of it is used any more: a host must not accuse anybody by stale
knowledge.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from agent.analysis.antagonists import CpiStatistics, RobustLogCpi
from whitepanda.common import durable, log
from whitepanda.v1 import agent_pb2

__all__ = ["Coefficient", "CoefficientStore"]

_FORMAT = 1
_MAX_COUNT = 2**64 - 1  # what the protocol can carry


def _require(**conditions: bool) -> None:
    """Refuse what does not hold: from a file (msgspec then says where) as from central."""
    wrong = [what for what, holds in conditions.items() if not holds]
    if wrong:
        raise ValueError(f"out of range: {', '.join(wrong)}")


def _is_count(value: int) -> bool:
    return 0 <= value <= _MAX_COUNT


class Coefficient(msgspec.Struct, frozen=True):
    """A_k of a job, equation (3): mnCPI per core of its CPU usage. `samples` are task slots behind it.

    `method` is what central fitted it by; "" is PANDA.
    """

    value: float
    samples: int
    standard_error: float | None = None
    method: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ValueError: a value that is not finite, or a count that is none.

        """
        error = self.standard_error
        _require(
            value=math.isfinite(self.value),
            samples=_is_count(self.samples),
            standard_error=error is None or math.isfinite(error),
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
            samples=_is_count(self.samples),
            mean_cpi=math.isfinite(self.mean_cpi) and self.mean_cpi > 0,
            std_cpi=math.isfinite(self.std_cpi) and self.std_cpi >= 0,
            location_log_cpi=math.isfinite(self.location_log_cpi),
            scale_log_cpi=math.isfinite(self.scale_log_cpi) and self.scale_log_cpi >= 0,
        )

    @property
    def plain(self) -> CpiStatistics:
        """As the analysis takes them."""
        robust = RobustLogCpi(self.location_log_cpi, self.scale_log_cpi) if self.scale_log_cpi else None
        return CpiStatistics(self.mean_cpi, self.std_cpi, self.samples, robust)


class _Held(msgspec.Struct, frozen=True):
    """The file's content: one version of what central knows of this host's jobs. Version 0 is nothing."""

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
            version=_is_count(self.version),
            created_unix_ns=_is_count(self.created_unix_ns),
            ttl_ns=_is_count(self.ttl_ns),
            slot_ns=_is_count(self.slot_ns) and (self.slot_ns > 0 or self.version == 0),
        )


class CoefficientStore:
    """The newest coefficients that central sent, kept at `path`.

    Which update is taken: a version never goes backwards. A delta is merged if its version is at least the
    held one; a full update replaces everything if its version is at least the held one, or if it was created
    later: then central lost its lake and counts from the beginning.

    Args:
        path: JSON file; its folder is made. A file that cannot be read or is damaged is warned of, and
            central sends everything again because the agent then says that it holds version 0. None: in memory only.

    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._log = log.get("coefficients")
        self._held = _Held()
        self._by_job: dict[tuple[str, str], CpiStatistics] = {}
        self._held_tags: tuple[agent_pb2.JobTag, ...] = ()
        self._take(self._read())

    @property
    def version(self) -> int:
        """Version held; 0 means nothing."""
        return self._held.version

    @property
    def created_unix_ns(self) -> int:
        """When central made this version, by its clock; 0 where nothing is held."""
        return self._held.created_unix_ns

    @property
    def ttl_ns(self) -> int:
        """How long after its making a version may be used; 0 means without limit."""
        return self._held.ttl_ns

    @property
    def slot_ns(self) -> int:
        """Length of the slots that the statistics are of; 0 where nothing is held."""
        return self._held.slot_ns

    @property
    def jobs(self) -> frozenset[str]:
        """Jobs of which anything is held."""
        return frozenset(self._held.coefficients) | {job for job, _ in self._by_job}

    @property
    def held_tags(self) -> tuple[agent_pb2.JobTag, ...]:
        """What central is told in a Hello, so that it sends only what differs."""
        return self._held_tags

    def age_ns(self, now_unix_ns: int) -> int:
        """Nanoseconds since central made this version; 0 where nothing is held or its clock is ahead."""
        return max(0, now_unix_ns - self.created_unix_ns) if self.version else 0

    def expired(self, now_unix_ns: int) -> bool:
        """Whether the time to live is over: nothing held may be used."""
        return bool(self.version and self.ttl_ns and self.age_ns(now_unix_ns) > self.ttl_ns)

    def statistics(self, job: str, platform: str, now_unix_ns: int) -> CpiStatistics | None:
        """CPI of a job on a platform. None: central has not sent any, or they have expired."""
        return None if self.expired(now_unix_ns) else self._by_job.get((job, platform))

    def coefficient(self, job: str, now_unix_ns: int) -> Coefficient | None:
        """A_k of a job. None: central has not sent it, or it has expired."""
        return None if self.expired(now_unix_ns) else self._held.coefficients.get(job)

    def apply(self, update: agent_pb2.CoefficientUpdate) -> bool:
        """Take an update from central, and write it to disk before it is used.

        A disk that cannot be written costs only the memory over a restart: it is warned of, the update is
        used.

        Returns:
            False where the update is older than what is held, or does not fit to it; then nothing has
            changed.

        """
        refusal = self._refusal(update)
        if refusal:
            self._log.warning(
                "coefficient update refused", why=refusal, version=update.version, held=self.version
            )
            return False
        held = self._merged(update)
        try:
            self._write(held)
        except OSError as error:
            self._log.warning(
                "coefficients are not kept over a restart", path=str(self._path), error=error.strerror
            )
        self._take(held)
        return True

    def _refusal(self, update: agent_pb2.CoefficientUpdate) -> str:
        if update.version == 0:
            return "version 0 is no version"
        if update.slot_ns == 0:
            return "no slot length"
        if update.version < self.version:
            if not update.full:
                return "older than what is held"
            if update.created_unix_ns <= self.created_unix_ns:
                return "older than what is held, and not made later"
        if not update.full and self.version and update.slot_ns != self.slot_ns:
            return f"of {update.slot_ns} ns slots, beside statistics of {self.slot_ns} ns slots"
        return ""

    def _merged(self, update: agent_pb2.CoefficientUpdate) -> _Held:
        statistics = {} if update.full else {(s.job, s.platform): s for s in self._held.statistics}
        coefficients = {} if update.full else dict(self._held.coefficients)
        removed = set(update.removed_jobs)
        statistics = {key: value for key, value in statistics.items() if key[0] not in removed}
        coefficients = {job: value for job, value in coefficients.items() if job not in removed}
        # A central without tags may have changed any row: what it sends in full has none, what it merges keeps those
        # of other jobs.
        changed = removed | {row.job for row in update.statistics} | {row.job for row in update.coefficients}
        tags = {} if update.full else {job: tag for job, tag in self._held.tags.items() if job not in changed}
        tags.update((row.job, row.tag) for row in update.tags)
        # Rows of a job with a new tag replace all that were held of it, also those that it has no more.
        replaced = {row.job for row in update.tags}
        statistics = {key: value for key, value in statistics.items() if key[0] not in replaced}
        coefficients = {job: value for job, value in coefficients.items() if job not in replaced}
        absurd = 0
        for row in update.statistics:
            try:
                new = _Statistics(
                    row.job,
                    row.platform,
                    row.samples,
                    row.mean_cpi,
                    row.std_cpi,
                    row.location_log_cpi,
                    row.scale_log_cpi,
                )
            except ValueError:
                absurd += 1
                continue
            statistics[row.job, row.platform] = new
        for coefficient in update.coefficients:
            error = coefficient.standard_error if math.isfinite(coefficient.standard_error) else None
            try:
                coefficients[coefficient.job] = Coefficient(
                    coefficient.value, coefficient.samples, error, coefficient.method
                )
            except ValueError:
                absurd += 1
        if absurd:
            self._log.warning(
                "values of a coefficient update left out: not finite", rows=absurd, version=update.version
            )
        return _Held(
            version=update.version,
            created_unix_ns=update.created_unix_ns,
            ttl_ns=update.ttl_ns,
            slot_ns=update.slot_ns,
            statistics=tuple(statistics.values()),
            coefficients=coefficients,
            tags=tags,
        )

    def _take(self, held: _Held) -> None:
        self._held = held
        self._by_job = {(s.job, s.platform): s.plain for s in held.statistics}
        self._held_tags = tuple(agent_pb2.JobTag(job=job, tag=tag) for job, tag in held.tags.items())

    def _read(self) -> _Held:
        if self._path is None:
            return _Held()
        try:
            held = msgspec.json.decode(self._path.read_bytes(), type=_Held)
        except FileNotFoundError:
            return _Held()
        except OSError as error:
            self._log.warning(
                "cannot read coefficients, starting without", path=str(self._path), error=error.strerror
            )
            return _Held()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._log.warning(
                "damaged coefficients, starting without", path=str(self._path), error=str(error)
            )
            return _Held()
        if held.format != _FORMAT:
            self._log.warning(
                "coefficients of another format, starting without", path=str(self._path), format=held.format
            )
            return _Held()
        return held

    def _write(self, held: _Held) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with durable.replacing(self._path, mode=0o600) as file:  # it names the jobs of this host
            file.write(msgspec.json.encode(held))
