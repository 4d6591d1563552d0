"""Which other replicas write into the lake."""

import time
from datetime import timedelta

from central.lake.segments import Lake, day_of

#: A segment this young shows that its replica is at work.
RECENT_S = 3600.0


def other_journals(lake: Lake, origin: str, now_unix_s: float | None = None) -> list[str]:
    """Return the other journals (`Segment.origin`) that rolled into the lake within the last hour, sorted.

    A journal is one replica's; its name need not be. Lists only today's and yesterday's segments (UTC); raises OSError.
    """
    now_s = time.time() if now_unix_s is None else now_unix_s
    today = day_of(round(now_s * 1e9))
    found = (*lake.all_segments(today - timedelta(days=1)), *lake.all_segments(today))
    # A compacted segment may be young though its rolls are old.
    recent = (each for each in found if not each.is_compacted and now_s - each.modified_unix_s <= RECENT_S)
    return sorted({segment.origin for segment in recent} - {origin})


def replica_of(origin: str) -> str:
    """Return the name of a journal's replica."""
    return origin.rpartition("-")[0]
