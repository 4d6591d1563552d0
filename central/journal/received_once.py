"""Which batches the journal has ever taken, so that each counts once; and what a transaction makes of new ones."""

import sqlite3
from collections.abc import Iterable
from typing import Any

from central.journal.sequence_ranges import SequenceRanges
from central.journal.tables import Group, HostRecord, Submission
from central.lake.segments import DAY_NS

_CACHED_SPOOLS = 65_536
_NEVER = 1 << 40  # days: an importer's rows may be of any age, so its batches are never forgotten


class Received:
    """The sequence numbers taken of each (host, spool), read from the journal's tables and kept for many spools."""

    def __init__(self) -> None:
        self._ranges: dict[tuple[str, str], SequenceRanges] = {}

    def group(self, connection: sqlite3.Connection, items: Iterable[Any]) -> Group:
        """Sort what came into new batches, duplicates, rejections and host records."""
        group = Group()
        for item in items:
            if isinstance(item, Submission):
                self._take(connection, item, group)
            elif isinstance(item, HostRecord):
                group.hosts[item.host] = item
            else:
                group.rejections[item.host, "batch", item.reason] += 1
                if item.done is not None:
                    group.counted.append(item.done)
        return group

    def clear(self) -> None:
        """Forget what is cached: the transaction that it is ahead of failed."""
        self._ranges.clear()

    def forget(self, spools: Iterable[tuple[str, str]]) -> None:
        """Forget what is cached of spools whose rows were deleted."""
        for key in spools:
            self._ranges.pop(key, None)

    def _take(self, connection: sqlite3.Connection, item: Submission, group: Group) -> None:
        ranges = self._ranges_of(connection, item.host, item.spool_id)
        day = _NEVER if item.is_importer else item.received_unix_ns // DAY_NS
        if day > ranges.last_day:
            ranges.last_day = group.last_days[item.host, item.spool_id] = day
        change = ranges.add(item.sequence)
        group.outcomes.append((item, change is not None))
        if change is None:
            group.counters["duplicate_batches"] += 1
            return
        for first in change.removed:
            group.upserts.pop((item.host, item.spool_id, first), None)
            group.deletes.add((item.host, item.spool_id, first))
        group.deletes.discard((item.host, item.spool_id, change.first))
        group.upserts[item.host, item.spool_id, change.first] = change.last
        if item.refused:
            group.rejections[item.host, "batch", item.refused] += 1
            return
        counts = (("row", item.rejected_rows), ("event", item.rejected_events), ("value", item.rejected_values))
        for kind, rejected in counts:
            for reason, count in (rejected or {}).items():
                group.rejections[item.host, kind, reason] += count
        group.events.extend(item.events)
        group.triggers.extend(item.triggers)
        group.facts.extend(item.facts)
        group.metric_reasons.extend(item.metric_reasons)
        group.counters["accepted_batches"] += 1
        group.counters["accepted_rows"] += item.accepted_rows
        rows, _ = group.seen.get(item.host, (0, 0))
        group.seen[item.host] = (rows + item.accepted_rows, item.received_unix_ns)
        if item.accepted_rows:
            group.new.append(item)

    def _ranges_of(self, connection: sqlite3.Connection, host: str, spool_id: str) -> SequenceRanges:
        key = (host, spool_id)
        ranges = self._ranges.pop(key, None)
        if ranges is None:
            found = connection.execute("SELECT first, last FROM received WHERE host = ? AND spool_id = ?", key)
            day = connection.execute("SELECT last_day FROM spools WHERE host = ? AND spool_id = ?", key).fetchone()
            ranges = SequenceRanges(found, *(day or ()))
            if len(self._ranges) >= _CACHED_SPOOLS:  # the least recently used one
                del self._ranges[next(iter(self._ranges))]
        self._ranges[key] = ranges
        return ranges
