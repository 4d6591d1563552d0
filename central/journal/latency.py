"""How long batches take from their arrival until they are on disk, as a histogram since central's start."""

from collections.abc import Sequence

import numpy as np

#: Upper bounds of the buckets, s; the last bucket has none.
BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_BOUNDS_NS = np.array(BOUNDS_S) * 1e9


class AckTimes:
    """Counts by bucket (`counts`, one more than `BOUNDS_S`, each alone) and the sum of all times, s."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def take(self, received_unix_ns: Sequence[int], now_unix_ns: int) -> None:
        """Count batches that are acknowledged now; as 0 s if the clock was set back meanwhile."""
        ages_ns = np.maximum(now_unix_ns - np.array(received_unix_ns, dtype=np.int64), 0)
        buckets = np.searchsorted(_BOUNDS_NS, ages_ns)
        for bucket, count in enumerate(np.bincount(buckets, minlength=len(self.counts)).tolist()):
            self.counts[bucket] += count
        self.sum_s += float(ages_ns.sum()) / 1e9
