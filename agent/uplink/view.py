"""The state of the stream to central, to be shown. Plain values."""

from dataclasses import dataclass
from typing import Literal

UplinkState = Literal["off", "connecting", "connected"]


@dataclass(frozen=True, slots=True)
class UplinkView:
    """The stream to central and the spool behind it; counts are since the start but for what is spooled.

    Acknowledged is what central took, without what was rejected.
    """

    state: UplinkState = "off"
    address: str = ""
    spooled_batches: int = 0
    spooled_bytes: int = 0
    acknowledged_batches: int = 0
    acknowledged_windows: int = 0
    dropped_batches: int = 0
    rejected_rows: int = 0
    last_error: str = ""
    refused_updates: int = 0
    refused_update_rows: int = 0
    last_refusal: str = ""
    min_batch_interval_ms: int = 0
    rejected_batches: int = 0  # whole; their rows are in `rejected_rows`
