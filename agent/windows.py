"""CPI windows: what the agent keeps of a VM per window (10 s) and sends to central."""

from __future__ import annotations

from dataclasses import dataclass

from collector.base import Reason

__all__ = ["CpiWindow"]


@dataclass(frozen=True, slots=True)
class CpiWindow:
    """One VM over one window. None: not known (for `cpi`, `cpi_reason` says why). Counts are scaled for multiplexing."""

    vm: str
    epoch: str
    name: str
    job: str
    latency_sensitive: bool
    start_unix_ns: int
    duration_ns: int
    cpu_usage_cores: float
    cpi: float | None = None
    cpi_reason: Reason = Reason.UNSPECIFIED
    cycles: int | None = None
    instructions: int | None = None
    running_ratio: float | None = None
    run_queue_wait_ratio: float | None = None
    disk_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None
