"""A batch's columns straight from its bytes: in protobuf a packed column of fixed-width numbers is the array itself.

The protobuf library hands columns out element by element: 12 us for 50 rows, and a batch has ten columns. `locate`
finds them in a batch that the library has serialised. While a host runs the same VMs, its batches differ in numbers
only: a `Layout` remembers what was checked in one batch, and in others of the same layout only the numbers are checked,
for many batches together (`sound`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from central.validation.plausible import absurd_counters, clearly_possible
from whitepanda.v1 import agent_pb2

#: The columns that decide whether a row is accepted.
CHECKED = ("start_unix_ns", "duration_ns", "cpu_usage_cores", "cpi", "cycles", "instructions")

_FIELDS = agent_pb2.CpiBatch.DESCRIPTOR.fields_by_name
_KINDS = {_FIELDS["cpi"].TYPE_DOUBLE: np.dtype("<f8"), _FIELDS["cpi"].TYPE_FIXED64: np.dtype("<u8")}
_KIND_OF = {n: _KINDS[f.type] for n, f in _FIELDS.items() if f.is_repeated and f.type in _KINDS}
_MAX_INT64 = 2**63 - 1
_MORE = 0x80  # the bit of a varint's byte that says that another follows; smaller numbers take one byte
_WIDTH = 8  # bytes of a number in a column

_Array = npt.NDArray[Any]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= _MORE:
        out.append(number & 0x7F | _MORE)
        number >>= 7
    out.append(number)
    return bytes(out)


def _tag(field: str, wire_type: int) -> bytes:
    return _varint(_FIELDS[field].number << 3 | wire_type)


_VARINT, _BYTES = 0, 2
_IS_BACKLOG = _tag("backlog", _VARINT) + b"\x01"
#: Bytes a row of all that follows task_index but events and triggers, in the order of the numbers; backlog is none.
_WIDTHS = sorted(
    {**dict.fromkeys(_KIND_OF, _WIDTH), "cpi_reason": 1, "backlog": 0}.items(), key=lambda each: _FIELDS[each[0]].number
)
_INDEX_TAG = _FIELDS["task_index"].number << 3 | _BYTES
_BATCH_TAG = _varint(agent_pb2.AgentMessage.DESCRIPTOR.fields_by_name["batch"].number << 3 | _BYTES)


@dataclass(frozen=True, slots=True)
class Located:
    """Where a batch's columns are, from the start of its bytes.

    `heads` are the bytes before, between and behind the columns, each with its place.
    """

    rows: int
    begin: int  # behind task_index
    columns: dict[str, int]
    heads: tuple[tuple[int, bytes], ...]


@lru_cache(maxsize=4096)
def _tail(rows: int) -> tuple[tuple[str, bytes, int], ...]:
    """Return name, tag with length, and size of each field that may follow task_index."""
    return tuple(
        (name, _tag(name, _BYTES) + _varint(width * rows) if width else _IS_BACKLOG, width * rows)
        for name, width in _WIDTHS
        if rows or not width
    )


def locate(payload: bytes, batch: agent_pb2.CpiBatch) -> Located | None:
    """Find the columns in a batch's bytes, `payload`, as `batch.SerializeToString()` makes them without unknown fields.

    The columns of `batch` have as many rows as task_index, or none. Returns None if they are not as expected (events
    among them, reasons above 127): read `batch` instead.
    """
    if batch.events or batch.triggers:
        return None
    rows = len(batch.task_index)
    there = [each for each in _tail(rows) if getattr(batch, each[0])]
    begin = at = len(payload) - sum(len(head) + size for _, head, size in there)
    columns, heads = {}, []
    for name, head, size in there:
        heads.append((at, head))
        at += len(head)
        if size:
            columns[name] = at
        at += size
    if begin < 0 or not all(payload.startswith(head, at) for at, head in heads):
        return None
    return Located(rows, begin, columns, tuple(heads))


def column(payload: bytes, located: Located, name: str) -> _Array | None:
    """Return a column, shape (rows,), a view of the bytes; None where it was not measured."""
    at = located.columns.get(name)
    return None if at is None else np.frombuffer(payload, _KIND_OF[name], located.rows, at)


class BatchColumns:
    """A batch's columns as arrays, straight from its bytes where they are as expected."""

    def __init__(self, batch: agent_pb2.CpiBatch, payload: bytes) -> None:
        self._batch, self._payload = batch, payload
        self._located: Located | None = locate(payload, batch) if payload else None

    def get(self, name: str, kind: Any) -> _Array | None:
        """Return a column, shape (rows,); None where it was not measured."""
        if self._located is not None:
            return column(self._payload, self._located, name)
        values = getattr(self._batch, name)
        return np.array(values, dtype=kind) if len(values) else None

    def has(self, name: str) -> bool:
        """Whether a column was measured."""
        return name in self._located.columns if self._located is not None else len(getattr(self._batch, name)) > 0

    def task_index(self) -> npt.NDArray[np.int64]:
        """Return which task each row is of, shape (rows,)."""
        rows = len(self._batch.task_index)
        if self._located is not None and rows < _MORE:  # then its bytes are the numbers, where each takes one
            end = self._located.begin
            head = bytes((_INDEX_TAG, rows))
            if self._payload.startswith(head, end - rows - 2) and self._payload[end - rows : end].isascii():
                return np.frombuffer(self._payload, np.uint8, rows, end - rows).astype(np.int64)
        return np.array(self._batch.task_index, dtype=np.int64)

    def required(self, name: str, kind: Any) -> _Array:
        """Return a column of a batch that has rows, and so has it."""
        values = self.get(name, kind)
        return np.zeros(0, kind) if values is None else values


@dataclass(frozen=True, slots=True)
class Layout:
    """All of an AgentMessage with a batch but its sequence number and its columns' numbers."""

    size: int
    prefix: bytes  # the message's tag and length, the spool, the sequence's tag
    sequence_at: int
    tasks: bytes  # and task_index
    tasks_at: int
    heads: tuple[tuple[int, bytes], ...]
    reasons: tuple[int, int]  # from where to where they are, a byte each; (0, 0) for none
    slices: tuple[tuple[int, int], ...]  # of the columns in CHECKED, (0, 0) for those that are not there
    body_at: int  # of the CpiBatch within the message
    spool_id: str
    rows: int
    jobs: frozenset[str]

    @staticmethod
    def of(raw: bytes, payload: bytes, batch: agent_pb2.CpiBatch, jobs: frozenset[str]) -> "Layout | None":
        """Remember a message whose batch was found good, no row refused.

        `payload` is its batch, serialised again; `jobs` are those of its tasks. None where the message is not as the
        library would write it.
        """
        located = locate(payload, batch)
        head = _BATCH_TAG + _varint(len(payload))
        if located is None or not located.rows or len(raw) != len(head) + len(payload):
            return None
        if not raw.startswith(head) or not raw.endswith(payload):
            return None
        spool = batch.spool_id.encode()
        prefix = head + _tag("spool_id", _BYTES) + _varint(len(spool)) + spool + _tag("sequence", _VARINT)
        sequence = _varint(batch.sequence)
        tasks_at, columns_at = len(prefix) + len(sequence), len(head) + located.begin
        if not raw.startswith(prefix + sequence):
            return None
        at = {name: len(head) + place for name, place in located.columns.items()}
        reasons = at.get("cpi_reason", 0)
        return Layout(
            size=len(raw),
            prefix=prefix,
            sequence_at=len(prefix),
            tasks=raw[tasks_at:columns_at],
            tasks_at=tasks_at,
            heads=tuple((len(head) + place, text) for place, text in located.heads),
            reasons=(reasons, reasons + located.rows) if reasons else (0, 0),
            slices=tuple((at[name], at[name] + _WIDTH * located.rows) if name in at else (0, 0) for name in CHECKED),
            body_at=len(head),
            spool_id=batch.spool_id,
            rows=located.rows,
            jobs=jobs,
        )

    def sequence_of(self, raw: bytes) -> int:
        """Return the sequence number of a message of this layout, 0 for one of another.

        Prefix and size being equal, the number has as many bytes, and everything is where it was.
        """
        if len(raw) != self.size or not raw.startswith(self.prefix) or not raw.startswith(self.tasks, self.tasks_at):
            return 0
        for position, head in self.heads:
            if not raw.startswith(head, position):
                return 0
        number = shift = 0
        *some, last = raw[self.sequence_at : self.tasks_at]
        for byte in some:
            if byte < _MORE:
                return 0
            number |= (byte & 0x7F) << shift
            shift += 7
        number |= last << shift
        first, end = self.reasons
        if last >= _MORE or number > _MAX_INT64 or not raw[first:end].isascii():
            return 0
        return number


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits within which every number of a batch is good; `central.validation.rows` has the reasons to refuse."""

    earliest_unix_ns: int
    latest_unix_ns: int
    max_duration_ns: int
    max_cpu_usage_cores: float
    min_cpi: float
    max_cpi: float


def sound(parts: Sequence[Sequence[bytes]], bounds: Bounds) -> bool:
    """Whether all numbers of all rows are good. `parts` are, for each column in `CHECKED`, its bytes piece by piece."""
    start, duration, usage, cpi, cycles, instructions = (b"".join(part) for part in parts)
    least, most = np.minimum.reduce, np.maximum.reduce
    starts, durations = np.frombuffer(start, "<u8"), np.frombuffer(duration, "<u8")
    usages = np.frombuffer(usage, "<f8")
    # Comparisons with NaN are False: a usage that is not a number is not good. A CPI that is none is not known.
    if not (
        least(starts) >= bounds.earliest_unix_ns
        and most(starts) <= bounds.latest_unix_ns
        and least(durations) > 0
        and most(durations) <= bounds.max_duration_ns
        and least(usages) >= 0
        and most(usages) <= bounds.max_cpu_usage_cores
    ):
        return False
    if cpi:
        cpis = np.frombuffer(cpi, "<f8")
        if np.fmin.reduce(cpis) < bounds.min_cpi or np.fmax.reduce(cpis) > bounds.max_cpi:
            return False
    if not cycles and not instructions:
        return True
    if all(len(counts) in (0, len(duration)) for counts in (cycles, instructions)):
        return _are_counters_sound(durations, usages, cycles, instructions)
    # Some hosts count and others do not: those of a kind together.
    kinds: dict[tuple[bool, bool], list[tuple[bytes, ...]]] = {}
    for piece in zip(parts[1], parts[2], parts[4], parts[5], strict=True):
        kinds.setdefault((bool(piece[2]), bool(piece[3])), []).append(piece)
    for pieces in kinds.values():
        duration, usage, cycles, instructions = (b"".join(part) for part in zip(*pieces, strict=True))
        durations, usages = np.frombuffer(duration, "<u8"), np.frombuffer(usage, "<f8")
        if not _are_counters_sound(durations, usages, cycles, instructions):
            return False
    return True


def _are_counters_sound(durations: _Array, usages: _Array, cycles: bytes, instructions: bytes) -> bool:
    """Whether counters are numbers that can be; each column has all rows or none."""
    # As signed numbers those above 2^63-1 are negative, and the one that means "not known" is -1.
    counts = [np.frombuffer(each, "<i8") if each else None for each in (cycles, instructions)]
    if any(each is not None and np.minimum.reduce(each) < -1 for each in counts):
        return False
    if clearly_possible(durations, *counts):
        return True
    return not absurd_counters(durations, usages, *counts).any()
