"""A batch's columns straight from its bytes: in protobuf a packed column of fixed-width numbers is the array itself.

The protobuf library hands columns out element by element: 12 us for 50 rows, and a batch has ten columns. `locate`
finds them in a batch that the library has serialised. While a host runs the same VMs, its batches differ in numbers
only: a `Layout` remembers what was checked in one batch, and in others of the same layout only the numbers are checked,
for many batches together (`sound`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from central.validation.plausible import absurd_counters
from whitepanda.common.protocol import MAX_HEAD_BYTES
from whitepanda.common.window_columns import BY_NAME, BY_NUMBER
from whitepanda.v1 import agent_pb2

#: The columns with a number per row, those of time with one for all rows too.
TIMES, NUMBERS = ("start_unix_ns", "duration_ns"), ("cpi", "cpu_usage_cores")
COLUMNS = (*TIMES, *NUMBERS)

_FIELDS = agent_pb2.CpiBatch.DESCRIPTOR.fields_by_name
_KIND_OF = {**dict.fromkeys(TIMES, np.dtype("<u8")), **dict.fromkeys(NUMBERS, np.dtype("<f8"))}
_METRIC_KIND = np.dtype("<f4")
_MAX_INT64 = 2**63 - 1
_MORE = 0x80  # the bit of a varint's byte that says that another follows; smaller numbers take one byte
_WIDTH = 8  # bytes of a number in a column
_METRIC_WIDTH = 4
_MAX_METRICS = 256  # with more columns a batch is read number by number

_Array = npt.NDArray[Any]


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it."""
    out = bytearray()
    while number >= _MORE:
        out.append(number & 0x7F | _MORE)
        number >>= 7
    out.append(number)
    return bytes(out)


def _tag(field: str, wire_type: int) -> bytes:
    return varint(_FIELDS[field].number << 3 | wire_type)


_VARINT, _BYTES = 0, 2
_IS_BACKLOG = _tag("backlog", _VARINT) + b"\x01"
_TAGS = {name: _tag(name, _BYTES) for name in (*COLUMNS, "metrics")}
_INDEX_TAG = _FIELDS["task_index"].number << 3 | _BYTES
_BATCH_TAG = varint(agent_pb2.AgentMessage.DESCRIPTOR.fields_by_name["batch"].number << 3 | _BYTES)


@dataclass(frozen=True, slots=True)
class Located:
    """Where a batch's columns are, from the start of its bytes.

    `columns`: from where to where; `heads`: the bytes before, between and behind the columns, each with its place.
    `metrics`: where the values of the metrics `numbers` are.
    """

    rows: int
    begin: int  # behind task_index
    columns: dict[str, tuple[int, int]]
    numbers: tuple[int, ...]
    heads: tuple[tuple[int, bytes], ...]


@lru_cache(maxsize=4096)
def _head(name: str, size: int) -> bytes:
    return _TAGS[name] + varint(size)


@lru_cache(maxsize=4096)
def _metrics_head(numbers: tuple[int, ...], size: int) -> bytes:
    """Return all of `metrics` before its values, which have `size` bytes."""
    known = b"".join(map(varint, numbers))
    inner = (b"\x0a" + varint(len(known)) + known if known else b"") + (b"\x12" + varint(size) if size else b"")
    return _TAGS["metrics"] + varint(len(inner) + size) + inner


def locate(payload: bytes, batch: agent_pb2.CpiBatch) -> Located | None:
    """Find the columns in a batch's bytes, `payload`, as `batch.SerializeToString()` makes them without unknown fields.

    Returns None if they are not as expected (events or reasons among them): read `batch` instead.
    """
    if batch.events or batch.triggers or batch.reasons or batch.vm_facts or batch.HasField("host_facts"):
        return None
    there = [
        (name, _head(name, _WIDTH * count), _WIDTH * count) for name in COLUMNS if (count := len(getattr(batch, name)))
    ]
    if batch.backlog:
        there.append(("backlog", _IS_BACKLOG, 0))
    numbers: tuple[int, ...] = ()
    if batch.HasField("metrics"):
        if len(batch.metrics.numbers) > _MAX_METRICS:
            return None
        numbers, size = tuple(batch.metrics.numbers), _METRIC_WIDTH * len(batch.metrics.values)
        there.append(("metrics", _metrics_head(numbers, size), size))
    begin = at = len(payload) - sum(len(head) + size for _, head, size in there)
    columns, heads = {}, []
    for name, head, size in there:
        heads.append((at, head))
        at += len(head)
        if size:
            columns[name] = (at, at + size)
        at += size
    if begin < 0 or not all(payload.startswith(head, at) for at, head in heads):
        return None
    return Located(len(batch.task_index), begin, columns, numbers, tuple(heads))


class BatchColumns:
    """A batch's columns as arrays, straight from its bytes where they are as expected.

    The lengths of columns have been checked: a number per row, or one for all.
    """

    def __init__(self, batch: agent_pb2.CpiBatch, payload: bytes) -> None:
        self._batch, self._payload = batch, payload
        self._located: Located | None = locate(payload, batch) if payload else None
        self.rows = len(batch.task_index)
        #: The numbers of the metrics.
        self.numbers = self._located.numbers if self._located is not None else tuple(batch.metrics.numbers)

    def get(self, name: str) -> _Array | None:
        """Return a column of `COLUMNS`, shape (rows,); None where it was not measured."""
        if self._located is None:
            values = np.array(getattr(self._batch, name), dtype=_KIND_OF[name])
        elif (place := self._located.columns.get(name)) is not None:
            values = np.frombuffer(self._payload, _KIND_OF[name], (place[1] - place[0]) // _WIDTH, place[0])
        else:
            return None
        if not len(values):
            return None
        return np.broadcast_to(values, self.rows) if len(values) != self.rows else values

    def metrics(self) -> _Array:
        """Return the values of the metrics `numbers`, shape (metrics, rows)."""
        if self._located is None:
            values = np.array(self._batch.metrics.values, dtype=_METRIC_KIND)
        elif "metrics" in self._located.columns:
            values = np.frombuffer(
                self._payload, _METRIC_KIND, len(self.numbers) * self.rows, self._located.columns["metrics"][0]
            )
        else:
            values = np.zeros(0, _METRIC_KIND)
        return values.reshape(len(self.numbers), self.rows)

    def task_index(self) -> npt.NDArray[np.int64]:
        """Return which task each row is of, shape (rows,)."""
        rows = self.rows
        if self._located is not None and rows < _MORE:  # then its bytes are the numbers, where each takes one
            end = self._located.begin
            head = bytes((_INDEX_TAG, rows))
            if self._payload.startswith(head, end - rows - 2) and self._payload[end - rows : end].isascii():
                return np.frombuffer(self._payload, np.uint8, rows, end - rows).astype(np.int64)
        return np.array(self._batch.task_index, dtype=np.int64)

    def required(self, name: str) -> _Array:
        """Return a column of a batch that has rows, and so has it."""
        values = self.get(name)
        return np.zeros(0, _KIND_OF[name]) if values is None else values


@dataclass(frozen=True, slots=True)
class Head:
    """What batches of the same VMs have in common, serialised: the spool; tasks and task_index."""

    spool: bytes
    tasks: bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """All of an AgentMessage with a batch but its sequence number and its columns' numbers."""

    size: int
    prefix: bytes  # the message's tag and length, the spool, the sequence's tag
    sequence_at: int
    tasks: bytes  # and task_index
    tasks_at: int
    heads: tuple[tuple[int, bytes], ...]
    slices: dict[str, tuple[int, int]]  # of the columns, (0, 0) for those that are not there
    numbers: tuple[int, ...]  # of the metrics
    unknown_values: int  # of metrics that this central does not know
    body_at: int  # of the CpiBatch within the message
    spool_id: str
    rows: int
    jobs: frozenset[str]
    head: Head | None  # for messages that leave it out; None: it is too long

    @property
    def kind(self) -> tuple[int, int, tuple[int, ...]]:
        """What batches have in common whose numbers can be checked as one array."""
        at, end = self.slices["duration_ns"]
        return self.rows, end - at, self.numbers

    @staticmethod
    def of(raw: bytes, payload: bytes, batch: agent_pb2.CpiBatch, jobs: frozenset[str]) -> "Layout | None":
        """Remember a message whose batch was found good, no row refused.

        `payload` is its batch, serialised again; `jobs` are those of its tasks. None where the message is not as the
        library would write it.
        """
        located = locate(payload, batch)
        head = _BATCH_TAG + varint(len(payload))
        if located is None or not located.rows or len(raw) != len(head) + len(payload):
            return None
        if not raw.startswith(head) or not raw.endswith(payload):
            return None
        spool = batch.spool_id.encode()
        spool = _tag("spool_id", _BYTES) + varint(len(spool)) + spool
        prefix = head + spool + _tag("sequence", _VARINT)
        sequence = varint(batch.sequence)
        tasks_at, columns_at = len(prefix) + len(sequence), len(head) + located.begin
        if not raw.startswith(prefix + sequence):
            return None
        tasks = raw[tasks_at:columns_at]
        slices = {name: (len(head) + at, len(head) + end) for name, (at, end) in located.columns.items()}
        return Layout(
            size=len(raw),
            prefix=prefix,
            sequence_at=len(prefix),
            tasks=tasks,
            tasks_at=tasks_at,
            heads=tuple((len(head) + place, text) for place, text in located.heads),
            slices={**dict.fromkeys(_TAGS, (0, 0)), **slices},
            numbers=located.numbers,
            unknown_values=sum(number not in BY_NUMBER for number in located.numbers) * located.rows,
            body_at=len(head),
            spool_id=batch.spool_id,
            rows=located.rows,
            jobs=jobs,
            head=Head(spool, tasks) if len(spool) + len(tasks) <= MAX_HEAD_BYTES else None,
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
        if last >= _MORE or number > _MAX_INT64:
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


@lru_cache(maxsize=1024)
def metric_limits(numbers: tuple[int, ...]) -> tuple[_Array, _Array]:
    """Return the least and the largest value of each metric, shape (metrics, 1); anything goes of those not known."""
    least = [0.0 if number in BY_NUMBER else -np.inf for number in numbers]
    largest = [BY_NUMBER[number].largest if number in BY_NUMBER else np.inf for number in numbers]
    return np.array(least, np.float32)[:, None], np.array(largest, np.float32)[:, None]


def sound(batches: Sequence[tuple[Layout, bytes]], bounds: Bounds) -> bool:
    """Whether all numbers of all batches are good, each with its layout."""

    def whole(name: str) -> bytes:
        return b"".join([raw[at:end] for layout, raw in batches for at, end in (layout.slices[name],)])

    least, most = np.minimum.reduce, np.maximum.reduce
    starts, durations = np.frombuffer(whole("start_unix_ns"), "<u8"), np.frombuffer(whole("duration_ns"), "<u8")
    usages = np.frombuffer(whole("cpu_usage_cores"), "<f8")
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
    if cpi := whole("cpi"):
        cpis = np.frombuffer(cpi, "<f8")
        if np.fmin.reduce(cpis) < bounds.min_cpi or np.fmax.reduce(cpis) > bounds.max_cpi:
            return False
    alike = [(layout.kind, layout, raw) for layout, raw in batches]
    alike.sort(key=itemgetter(0))
    return all(_are_metrics_sound([one[1:] for one in some]) for _, some in groupby(alike, itemgetter(0)))


def _are_metrics_sound(batches: Sequence[tuple[Layout, bytes]]) -> bool:
    """Whether the metrics of batches with the same rows and metrics are numbers that can be."""
    numbers, rows = batches[0][0].numbers, batches[0][0].rows
    if not numbers:
        return True

    def stacked(name: str, kind: str) -> _Array:
        pieces = [raw[at:end] for layout, raw in batches for at, end in (layout.slices[name],)]
        return np.frombuffer(b"".join(pieces), kind).reshape(len(batches), -1)

    values = stacked("metrics", "<f4")
    least, largest = metric_limits(numbers)
    # Those that are NaN are not known: fmin, fmax and the comparisons leave them out.
    if (np.fmax.reduce(values).reshape(-1, rows) > largest).any() or (
        np.fmin.reduce(values).reshape(-1, rows) < least
    ).any():
        return False
    counters = [values[:, numbers.index(n) * rows :][:, :rows] if n in numbers else None for n in COUNTERS]
    return not absurd_counters(stacked("duration_ns", "<u8"), stacked("cpu_usage_cores", "<f8"), *counters).any()


#: The numbers of the metrics that are counters.
COUNTERS = (BY_NAME["cycles"].number, BY_NAME["instructions"].number)
