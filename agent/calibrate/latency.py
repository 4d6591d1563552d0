"""Latencies of requests, and their percentiles over any stretch of time."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Measured(NamedTuple):
    """What a client measured over a stretch of time. NaN: not measured."""

    p95_latency_s: float
    p50_latency_s: float = math.nan
    p99_latency_s: float = math.nan
    requests_per_s: float = math.nan


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the percentile by nearest rank of ascending values, at least one; 0 < share <= 1."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(slots=True)
class Latencies:
    """Answers in the order in which they came. The moments are of a monotonic clock, in nanoseconds."""

    _done_ns: list[int] = field(default_factory=list)
    _latency_s: list[float] = field(default_factory=list)

    def add(self, done_ns: int, latency_s: float) -> None:
        """Take an answer, in order of time."""
        self._done_ns.append(done_ns)
        self._latency_s.append(latency_s)

    def over(self, start_ns: int, end_ns: int) -> Measured | None:
        """Return the percentiles of the answers in (start_ns, end_ns]; None: none came."""
        first, last = bisect_right(self._done_ns, start_ns), bisect_right(self._done_ns, end_ns)
        if first >= last:
            return None
        ordered = sorted(self._latency_s[first:last])
        p50, p95, p99 = (percentile(ordered, share) for share in (0.5, 0.95, 0.99))
        return Measured(p95, p50, p99, len(ordered) * 1e9 / (end_ns - start_ns))
