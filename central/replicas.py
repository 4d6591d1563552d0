"""Who else writes into the lake."""

from __future__ import annotations

import time
from datetime import timedelta

from central.lake import Lake, day_of

__all__ = ["RECENT_S", "other_replicas"]

#: A segment this young shows that its replica is at work.
RECENT_S = 3600.0


def other_replicas(lake: Lake, replica: str, now_unix_s: float | None = None) -> list[str]:
    """Return the names of other replicas that rolled into the lake within the last hour.

    Only the segments of today and yesterday (UTC) are listed, and none is opened.

    Args:
        lake: the lake.
        replica: this one's name.
        now_unix_s: for tests.

    Raises:
        OSError: the lake cannot be listed.

    """
    now_s = time.time() if now_unix_s is None else now_unix_s
    today = day_of(round(now_s * 1e9))
    names = {
        segment.origin.rpartition("-")[0]
        for day in (today - timedelta(days=1), today)
        for segment in lake.all_segments(day)
        # A merged one may be young though its rolls are old.
        if not segment.is_compacted and now_s - segment.modified_unix_s <= RECENT_S
    }
    return sorted(names - {replica})
