"""What the uplink sends from: batches that wait to be acknowledged, in the spool or of a replay."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from whitepanda.v1 import agent_pb2

#: The gRPC message around a batch.
ENVELOPE_BYTES = 64


class QueuedBatch(NamedTuple):
    """A batch that waits to be acknowledged."""

    rows: int
    message: agent_pb2.CpiBatch

    @property
    def key(self) -> tuple[str, int]:
        """(spool_id, sequence)."""
        return self.message.spool_id, self.message.sequence


@dataclass(slots=True)
class QueueCounts:
    """What waits now, and what was dropped ever (persisted in the spool)."""

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    dropped_batches: int = 0
    dropped_rows: int = 0


class BatchQueue(Protocol):
    """Where the uplink takes batches from. All calls but `counts` may block, and come one at a time."""

    spool_id: str  # the incarnation that new batches are numbered in

    def begin_stream(self) -> None:
        """Start over: all that is not acknowledged is to be fetched again."""

    def fetch(self, limit: int) -> list[QueuedBatch]:
        """Return up to `limit` batches not fetched since `begin_stream`, in the order to send them."""

    def acknowledge(self, spool_id: str, ranges: Iterable[tuple[int, int]]) -> int:
        """Forget these batches (ranges include both ends). Returns how many there were."""

    def counts(self) -> QueueCounts:
        """Return what waits; never blocks."""
