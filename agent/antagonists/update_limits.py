"""Limits on what central sends, so that a broken or hostile central cannot fill the memory or the log.

docs/security.md has the numbers.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence

from whitepanda.common import log

_LOG_INTERVAL_S = 60.0
_ASKED_NS = 600 * 10**9  # how long after a job has left this host central's answer may arrive
_NOTE_NS = 60 * 10**9
_VARINT, _BYTES, _FIXED = 0, 2, {1: 8, 5: 4}  # protobuf's wire types; bytes of those of fixed length
_MAX_VARINT_BYTES = 10


class Refusals:
    """Counts refused updates and rows of central, and logs one line a minute and kind. `now_s`: monotonic."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._log = log.get("coefficients")
        self._logged: dict[str, tuple[float, int]] = {}  # by kind: the last line's time, lines left out since
        #: Refused updates, and rows left out of others, since the start; and why the last one was refused.
        self.updates = self.rows = 0
        self.last = ""

    def update(self, kind: str, why: str, **facts: object) -> None:
        """Count a refused update. `kind` limits the log; `why` has the value and the remedy."""
        self.updates += 1
        self.last = why
        self._say(kind, "coefficient update refused", why=why, **facts)

    def leave_out(self, kind: str, why: str, rows: int, **facts: object) -> None:
        """Count rows left out of an update that was taken."""
        self.rows += rows
        self._say(kind, "rows of a coefficient update left out", why=why, rows=rows, **facts)

    def _say(self, kind: str, event: str, **facts: object) -> None:
        now_s = self._now_s()
        last_s, silent = self._logged.get(kind, (-_LOG_INTERVAL_S, 0))
        if now_s - last_s < _LOG_INTERVAL_S:
            self._logged[kind] = last_s, silent + 1
            return
        self._logged[kind] = now_s, 0
        self._log.warning(event, **facts, **({"left_out": silent} if silent else {}))


class AskedJobs:
    """The jobs that central was recently asked for; rows of others are refused.

    `note` belongs to one thread, `in` to any. `now_ns`: monotonic.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._jobs: Sequence[str] = ()
        self._noted_ns = now_ns() - _NOTE_NS
        self._asked_ns: dict[str, int] = {}

    def __contains__(self, job: object) -> bool:
        return job in self._asked_ns

    def note(self, jobs: Sequence[str]) -> None:
        """Note the jobs that central is asked for now. Called often, it mostly returns immediately."""
        now_ns, jobs = self._now_ns(), tuple(jobs)
        if jobs == self._jobs and now_ns - self._noted_ns < _NOTE_NS:
            return
        self._jobs, self._noted_ns = jobs, now_ns
        known = {job: at for job, at in self._asked_ns.items() if now_ns - at < _ASKED_NS}
        self._asked_ns = known | dict.fromkeys(jobs, now_ns)


def has_more_parts(message: bytes, most: int) -> bool:
    """Whether a CentralMessage and its parts have more than `most` fields, without building any of them.

    A row of two bytes becomes an object of about a hundred, so a message's size alone bounds no memory. Invalid
    protobuf counts as no fields: building the message fails anyway.
    """
    outer = _fields(message, 0, len(message))
    bodies = itertools.chain.from_iterable(itertools.chain((each,), _fields(message, *each)) for each in outer)
    return next(itertools.islice(bodies, most, None), None) is not None


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield where each field's bytes begin and end; an empty range for one that holds no bytes."""
    while at < end:
        key, at = _varint(data, at, end)
        kind = key & 7
        start = at
        if kind == _VARINT:
            start = at = _varint(data, at, end)[1]
        elif kind in _FIXED:
            start = at = at + _FIXED[kind]
        elif kind == _BYTES:
            size, start = _varint(data, at, end)
            at = start + size
        if at > end:
            return
        yield start, at


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number and where it ends; 0 and a place beyond `end` where it is cut off."""
    value = 0
    for index, byte in enumerate(data[at : min(end, at + _MAX_VARINT_BYTES)]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:  # noqa: PLR2004 - the bit that announces another byte
            return value, at + index + 1
    return 0, end + 1
