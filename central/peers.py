"""What one certificate may have open at a time, and how often its Hellos are read."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

__all__ = ["Peers"]

_SPARE_STREAMS = 8  # beyond one for each name: some have broken off and central does not know yet
_HELLO_EVERY_S = 0.01  # of one certificate; a Hello costs central some tenths of a millisecond


class Peers:
    """Streams by the names of their certificates: who has many of them takes no more than its share.

    Args:
        clock_s: seconds of a clock that never goes back, for tests.

    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._open: Counter[frozenset[str]] = Counter()
        self._next_s: dict[frozenset[str], float] = {}  # as many as the CA has made certificates

    @staticmethod
    def allowed(names: frozenset[str]) -> int:
        """Return how many streams a certificate of these names may have open."""
        return len(names) + _SPARE_STREAMS

    def enter(self, names: frozenset[str]) -> bool:
        """Count a stream that begins, which must `leave`; False where it is one too many."""
        self._open[names] += 1
        return self._open[names] <= self.allowed(names)

    def leave(self, names: frozenset[str]) -> None:
        """Count a stream that ended."""
        self._open[names] -= 1
        if not self._open[names]:
            del self._open[names]

    def hello_wait_s(self, names: frozenset[str]) -> float:
        """Return how long a stream that begins now waits before its Hello is read."""
        now = self._clock_s()
        turn = max(now, self._next_s.get(names, 0.0))
        self._next_s[names] = turn + _HELLO_EVERY_S
        return turn - now
