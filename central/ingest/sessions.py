"""The connected hosts: who they are, which jobs they run, and what is to be sent to them.

Everything here belongs to the one asyncio loop; nothing is safe to call from another thread.
"""

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field

import grpc

from central.authorisation.revocation_list import revoked_text
from central.journal.sequence_ranges import merged
from central.validation.vm_names import VmNames
from whitepanda.v1 import agent_pb2

#: Messages (without acknowledgements, which merge) that may wait for one host that does not read.
MAX_QUEUED_MESSAGES = 64
MAX_QUEUED_BYTES = 8 << 20  # the same of their bytes, or one larger message
_ACK_WAITS_S = 0.02  # for other batches of the stream
_MANY = 8  # with this many batches of one stream under way its acknowledgements wait longer
_LATE_S, _CHECK_S = 0.3, 0.1  # acknowledgements that none follows leave after this time, and are checked this often
_MANY_ACKS_WAIT_S = 0.2  # two or three commits of an overloaded central


@dataclass(slots=True)
class _PendingAck:
    sequences: list[int] = field(default_factory=list)
    accepted_rows: int = 0
    rejected_rows: Counter[str] | None = None
    rejected_batches: list[agent_pb2.RejectedBatch] = field(default_factory=list)


class LateAcknowledgements:
    """Streams whose acknowledgements wait for others that may not come: these few are checked while any wait."""

    def __init__(self) -> None:
        self._streams: set[HostStream] = set()

    def add(self, stream: "HostStream") -> None:
        """Check a stream until its acknowledgements have left."""
        if not self._streams:
            asyncio.get_running_loop().call_later(_CHECK_S, self._check)
        self._streams.add(stream)

    def _check(self) -> None:
        self._streams = {stream for stream in self._streams if not stream.wake_if_late()}
        if self._streams:
            asyncio.get_running_loop().call_later(_CHECK_S, self._check)


@dataclass(slots=True, eq=False)
class HostStream:
    """One agent's open stream. `jobs` and `coefficient_version` are what the agent last sent.

    `held_tags` are the tags, by job, of the rows that it held when it connected. `late` wakes it for acknowledgements
    that none follows; `clock_s` measures their wait.
    """

    host: str
    platform: str = ""
    protocol_version: int = 1
    is_importer: bool = False
    serial: str = ""  # of its certificate
    jobs: frozenset[str] = frozenset()
    coefficient_version: int = 0
    held_tags: dict[str, int] = field(default_factory=dict)
    spooled_batches: int = 0
    dropped_batches: int = 0
    min_batch_interval_ms: int = 0  # that the host was asked for last; 0: none
    closed: bool = False
    close_reason: str = ""
    close_code: grpc.StatusCode = grpc.StatusCode.ABORTED
    late: LateAcknowledgements = field(default_factory=LateAcknowledgements)
    clock_s: Callable[[], float] = time.monotonic
    owed: int = 0  # batches whose acknowledgement waits to be written
    writing_since_s: float = 0.0  # since when the host has not read what is being written; 0: nothing is
    _queued_bytes: int = 0
    _acks: dict[str, _PendingAck] = field(default_factory=dict)
    _messages: deque[agent_pb2.CentralMessage] = field(default_factory=deque)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _acks_since_s: float = math.inf  # since when the oldest acknowledgement waits; inf: none does

    def send(self, message: agent_pb2.CentralMessage) -> bool:
        """Queue a message. False if the stream is closed or the host has not read the last ones: try again later."""
        size = message.ByteSize()
        is_full = self._messages and self._queued_bytes + size > MAX_QUEUED_BYTES
        if self.closed or is_full or len(self._messages) >= MAX_QUEUED_MESSAGES:
            return False
        self._messages.append(message)
        self._queued_bytes += size
        self._wake.set()
        return True

    def acknowledge(
        self,
        spool_id: str,
        sequence: int,
        *,
        accepted_rows: int = 0,
        rejected_rows: Mapping[str, int] | None = None,
        rejected_batch: agent_pb2.RejectedBatch | None = None,
        under_way: int = 0,
    ) -> None:
        """Queue the acknowledgement of one batch; those that wait together leave as one message of merged ranges.

        Sequence 0, of a batch without a number, is only reported as rejected. While other batches of the stream are
        `under_way` to the disk it waits 0.02 s (0.2 s if they are many) for theirs, and 0.4 s at most if none follows:
        a separate message costs more than everything else that is done for a batch.
        """
        if self.closed:
            return
        self.owed += 1
        ack = self._acks.get(spool_id)
        if ack is None:
            ack = self._acks[spool_id] = _PendingAck()
        if sequence:
            ack.sequences.append(sequence)
        ack.accepted_rows += accepted_rows
        if rejected_rows:
            ack.rejected_rows = (ack.rejected_rows or Counter()) + Counter(rejected_rows)
        if rejected_batch is not None:
            ack.rejected_batches.append(rejected_batch)
        wait_s = _MANY_ACKS_WAIT_S if under_way >= _MANY else _ACK_WAITS_S if under_way else 0.0
        now_s = self.clock_s()
        if is_first := self._acks_since_s == math.inf:
            self._acks_since_s = now_s
        if now_s - self._acks_since_s >= wait_s:
            self._wake.set()
        elif is_first:
            self.late.add(self)

    def wake_if_late(self) -> bool:
        """Send acknowledgements that none has followed; return whether that was done, or none waits."""
        if self.clock_s() - self._acks_since_s >= _LATE_S:
            self._wake.set()
            return True
        return math.isinf(self._acks_since_s)

    def close(self, reason: str, code: grpc.StatusCode = grpc.StatusCode.ABORTED) -> None:
        """Have the stream end with this reason, after the queued messages; nothing more can be queued."""
        if not self.closed:
            self.closed = True
            self.close_reason = reason
            self.close_code = code
            self._wake.set()

    async def wait(self) -> None:
        """Wait until there is something to send, or the stream is closed."""
        if not self.closed:
            await self._wake.wait()

    def drain(self) -> list[agent_pb2.CentralMessage]:
        """Take what is to be sent now: acknowledgements first, one per spool."""
        self._wake.clear()
        messages, self._acks_since_s = [], math.inf
        self.owed = self._queued_bytes = 0
        acks, self._acks = self._acks, {}
        for spool_id, pending in acks.items():
            ack = agent_pb2.Ack(spool_id=spool_id, accepted_rows=pending.accepted_rows)
            for first, last in merged(pending.sequences):
                ack.ranges.add(first=first, last=last)
            if pending.rejected_rows:
                for reason, count in sorted(pending.rejected_rows.items()):
                    ack.rejected_rows.add(reason=reason, count=count)
            if pending.rejected_batches:
                ack.rejected_batches.extend(pending.rejected_batches)
            messages.append(agent_pb2.CentralMessage(ack=ack))
        messages.extend(self._messages)
        self._messages.clear()
        return messages


class StreamRegistry:
    """All open streams, one per host.

    Callables in `on_change` are called, on the loop, with an open stream that has just connected, or whose jobs or
    coefficient version changed. Their exceptions propagate. `ended` and `refused` count since the start: streams that
    ended, and streams and TLS handshakes that were refused, by reason.
    """

    def __init__(self) -> None:
        self.on_change: list[Callable[[HostStream], None]] = []
        self.ended = 0
        self.refused: Counter[str] = Counter()
        self.vm_names = VmNames()
        self._late = LateAcknowledgements()
        self._streams: dict[str, HostStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def connected(self) -> list[HostStream]:
        """Return the open streams, in no order."""
        return list(self._streams.values())

    def get(self, host: str) -> HostStream | None:
        """Return the host's stream, or None if it is not connected."""
        return self._streams.get(host)

    def add(self, stream: HostStream) -> HostStream | None:
        """Register a stream; the host's earlier one, if there is one, is closed and returned."""
        earlier = self._streams.get(stream.host)
        if earlier is not None:
            earlier.close(f"replaced by a newer stream of host {stream.host!r}")
        self._streams[stream.host] = stream
        stream.late = self._late
        self._changed(stream)
        return earlier

    def close_revoked(self, revoked: Container[str]) -> list[HostStream]:
        """Close the streams whose certificates' serials are `revoked`, and return them."""
        found = [stream for stream in self._streams.values() if stream.serial in revoked and not stream.closed]
        for stream in found:
            stream.close(revoked_text(stream.serial), grpc.StatusCode.UNAUTHENTICATED)
        return found

    def remove(self, stream: HostStream) -> None:
        """Forget a stream that ended. One that was replaced is forgotten already."""
        stream.close("ended")
        self.ended += 1
        if self._streams.get(stream.host) is stream:
            del self._streams[stream.host]

    def update(
        self, stream: HostStream, *, jobs: Iterable[str] | None = None, coefficient_version: int | None = None
    ) -> None:
        """Note what the agent sent; `on_change` is called if it differs from before."""
        before = (stream.jobs, stream.coefficient_version)
        if jobs is not None:
            stream.jobs = frozenset(jobs)
        if coefficient_version is not None:
            stream.coefficient_version = coefficient_version
        if before != (stream.jobs, stream.coefficient_version) and not stream.closed:
            self._changed(stream)

    def _changed(self, stream: HostStream) -> None:
        for call in self.on_change:
            call(stream)
