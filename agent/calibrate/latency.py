"""Latencies of requests, and their percentiles over any stretch of time."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Measured(NamedTuple):
    """What a client saw over a stretch of time. NaN: it does not tell."""

    p95_latency_s: float
    p50_latency_s: float = math.nan
    p99_latency_s: float = math.nan
    requests_per_s: float = math.nan


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed (nearest rank).

    Args:
        ordered: ascending, at least one.
        share: more than 0, to 1.

    """
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(slots=True)
class Latencies:
    """Answers in the order in which they came. The moments are of a monotonic clock, in nanoseconds."""

    _done_ns: list[int] = field(default_factory=list)
    _latency_s: list[float] = field(default_factory=list)

    def add(self, done_ns: int, latency_s: float) -> None:
        """Take an answer; not earlier than those before."""
        self._done_ns.append(done_ns)
        self._latency_s.append(latency_s)

    def over(self, start_ns: int, end_ns: int) -> Measured | None:
        """Return the percentiles of the answers that came after `start_ns`, to `end_ns`; None: none came."""
        first, last = bisect_right(self._done_ns, start_ns), bisect_right(self._done_ns, end_ns)
        if first >= last:
            return None
        ordered = sorted(self._latency_s[first:last])
        p50, p95, p99 = (percentile(ordered, share) for share in (0.5, 0.95, 0.99))
        return Measured(p95, p50, p99, len(ordered) * 1e9 / (end_ns - start_ns))
