"""The journal's tables: what one transaction writes, and what is read back. Functions of a connection, no threads."""

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, fields
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from central.journal import metric_reasons
from central.journal.database import reading
from central.lake.segments import segment_stem
from central.validation.events import EventRow
from central.validation.facts import FactRow
from central.validation.metric_reasons import ReasonRow
from central.validation.samples import StoredBatch
from central.validation.triggers import TriggerRow

#: In place of the stem of a roll whose files are on disk: only its rows are left to be deleted.
_WRITTEN = ""
FORGOTTEN_BYTES = 4 << 20  # in one transaction: those that commit batches wait for it
FORGOTTEN_RANGES = 1000  # the same
_ROLL_BYTES = 64 << 20  # of a roll, or more if it may have very many rows
_ROLL_ROW_BYTES = 512  # for each of them: about twice what a row has
_PACK_BYTES = 4 << 20  # only the last batch of a pack may exceed this
_ROWS_AT_ONCE = (256, 64, 16, 4, 1)  # in one statement


@dataclass(frozen=True, slots=True)
class HostRecord:
    """What central knows of a host. `clock_offset_ns` is the agent's clock minus central's, at its Hello."""

    host: str
    platform: str = ""
    agent_version: str = ""
    protocol_version: int = 0
    boot_id: str = ""
    last_seen_unix_ns: int = 0
    accepted_rows: int = 0
    spooled_batches: int = 0
    dropped_batches: int = 0
    coefficient_version: int = 0
    clock_offset_ns: int = 0
    jobs: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many bytes it is about on disk."""
        return len("".join(self.jobs).encode()) + 4 * len(self.jobs)


@dataclass(slots=True)
class JournalStats:
    """Totals, ever, of this journal; and what waits in it for the next roll."""

    accepted_batches: int = 0
    accepted_rows: int = 0
    duplicate_batches: int = 0
    rejected_rows: Counter[str] = field(default_factory=Counter)
    rejected_batches: Counter[str] = field(default_factory=Counter)
    rejected_events: Counter[str] = field(default_factory=Counter)
    rejected_values: Counter[str] = field(default_factory=Counter)
    accepted_events: int = 0
    journal_batches: int = 0
    journal_rows: int = 0
    rolled_rows: int = 0

    def rejected(self, kind: str) -> Counter[str]:
        """Return the counts of a kind: "row", "value", "event" or "batch"."""
        kinds = {"row": self.rejected_rows, "value": self.rejected_values, "event": self.rejected_events}
        return kinds.get(kind, self.rejected_batches)

    def count(self, group: "Group") -> None:
        """Add what a transaction has committed."""
        for name, count in group.counters.items():  # accepted_batches, accepted_rows, duplicate_batches
            setattr(self, name, getattr(self, name) + count)
        self.accepted_events += len(group.events)
        self.journal_batches += len(group.new)
        self.journal_rows += sum(item.accepted_rows for item in group.new)
        for (_, kind, reason), count in group.rejections.items():
            self.rejected(kind)[reason] += count


@dataclass(slots=True)  # not frozen: setting this many fields would take twice as long
class Submission:
    """A checked batch, or one refused for good (`refused` is the reason), on its way into the journal.

    `done` is called on the loop once it is on disk, with True for a new batch and False for a duplicate.
    """

    host: str
    platform: str
    spool_id: str
    sequence: int
    received_unix_ns: int
    payload: bytes
    rows: int
    accepted_rows: int
    rejected_rows: dict[str, int] | None
    kept: bytes | None
    done: Callable[[bool], None]
    refused: str = ""
    events: tuple[EventRow, ...] = ()
    rejected_events: dict[str, int] | None = None
    triggers: tuple[TriggerRow, ...] = ()
    facts: tuple[FactRow, ...] = ()
    is_importer: bool = False
    rejected_values: dict[str, int] | None = None
    metric_reasons: tuple[ReasonRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Roll:
    """Packs `first..last` of the journal, to be written into the lake's files named `stem`."""

    stem: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """Batches refused without a sequence number to remember them by."""

    host: str
    reason: str
    done: Callable[[], None] | None = None  # called on the loop once it is on disk


@dataclass(slots=True)
class Group:
    """What one transaction changes, gathered in memory first."""

    new: list[Submission] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)
    triggers: list[TriggerRow] = field(default_factory=list)
    facts: list[FactRow] = field(default_factory=list)
    metric_reasons: list[ReasonRow] = field(default_factory=list)
    outcomes: list[tuple[Submission, bool]] = field(default_factory=list)
    hosts: dict[str, HostRecord] = field(default_factory=dict)
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)  # host -> (accepted rows, received_unix_ns)
    rejections: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # (host, kind, reason)
    upserts: dict[tuple[str, str, int], int] = field(default_factory=dict)  # (host, spool_id, first) -> last
    deletes: set[tuple[str, str, int]] = field(default_factory=set)
    last_days: dict[tuple[str, str], int] = field(default_factory=dict)  # by (host, spool_id), if it is new
    counters: Counter[str] = field(default_factory=Counter)
    counted: list[Callable[[], None]] = field(default_factory=list)  # `done` of rejections


_EVENT, _TRIGGER, _FACT = (", ".join(each.name for each in fields(kind)) for kind in (EventRow, TriggerRow, FactRow))
#: The columns of `hosts`, in their order.
_HOST = [each.name for each in fields(HostRecord) if each.name != "accepted_rows"]
_known = attrgetter(*_HOST[:-1])
_MAX = 2**63 - 1  # of a number in SQLite
#: What a row changes in the row with the same key, by table.
_UPSERTS = {
    "received": "last = excluded.last",
    "spools": "last_day = max(last_day, excluded.last_day)",
    "rejections": "count = count + excluded.count",
    "counters": "value = value + excluded.value",
    "hosts": ", ".join(f"{name} = excluded.{name}" for name in _HOST[1:]),
    "seen": "accepted_rows = accepted_rows + excluded.accepted_rows, last_seen_unix_ns = excluded.last_seen_unix_ns",
}


def write_group(connection: sqlite3.Connection, group: Group, max_events: int, max_events_per_host: int) -> None:
    """Write what a group changes, within the transaction that the caller began.

    The last `max_events` events are kept (about a hundredth more until the next check), `max_events_per_host` of each
    host.
    """
    if group.events:
        _insert(connection, f"events ({_EVENT})", [astuple(event) for event in group.events])
        _forget_events(connection, group, max_events, max_events_per_host)
    if group.triggers:
        _insert(connection, f"triggers ({_TRIGGER})", [astuple(trigger) for trigger in group.triggers])
        # Until incident history has them. If it is away for long, the oldest are dropped, counted.
        dropped = "DELETE FROM triggers WHERE id <= (SELECT max(id) FROM triggers) - ?"
        if gone := connection.execute(dropped, (max_events,)).rowcount:
            group.rejections["", "event", "trigger_backlog_full"] += gone
    if group.facts:
        _insert(connection, f"facts ({_FACT})", [astuple(row) for row in group.facts])
        dropped = "DELETE FROM facts WHERE id <= (SELECT max(id) FROM facts) - ?"
        if gone := connection.execute(dropped, (max_events,)).rowcount:
            group.rejections["", "event", "facts_backlog_full"] += gone
    metric_reasons.write(connection, group.metric_reasons)
    _insert(connection, "packs (batches, accepted_rows, contents, payload)", _packs(group.new))
    connection.executemany("DELETE FROM received WHERE host = ? AND spool_id = ? AND first = ?", group.deletes)
    _insert(connection, "received", [(*key, last) for key, last in group.upserts.items()])
    _insert(connection, "spools", [(*key, day) for key, day in group.last_days.items()])
    _insert(connection, "rejections", [(*key, count) for key, count in group.rejections.items()])
    _insert(connection, "counters", list(group.counters.items()))
    _insert(connection, f"hosts ({', '.join(_HOST)})", [_host_values(record) for record in group.hosts.values()])
    _insert(connection, "seen", [(host, *values) for host, values in group.seen.items()])


def _forget_events(connection: sqlite3.Connection, group: Group, max_events: int, max_events_per_host: int) -> None:
    """Delete the oldest events: of hosts that have too many, counted, then of all."""
    oldest = "DELETE FROM events WHERE id IN (SELECT id FROM events WHERE host = ? ORDER BY id LIMIT ?)"
    for host in {event.host for event in group.events}:
        count = connection.execute("SELECT count(*) FROM events WHERE host = ?", (host,)).fetchone()[0]
        if (excess := count - max_events_per_host) > 0:
            connection.execute(oldest, (host, excess))
            group.rejections[host, "event", "over_quota_events"] += excess
    # Not by id: deleted events use up ids, too. Counting takes a millisecond, so seldom.
    step = max(1, min(1000, max_events // 100))
    last = connection.execute("SELECT max(id) FROM events").fetchone()[0]
    if last // step != (last - len(group.events)) // step:
        excess = max(0, connection.execute("SELECT count(*) FROM events").fetchone()[0] - max_events)
        connection.execute("DELETE FROM events WHERE id IN (SELECT id FROM events ORDER BY id LIMIT ?)", (excess,))


def _insert(connection: sqlite3.Connection, table: str, rows: list[tuple[Any, ...]]) -> None:
    """Insert rows, or change those in `_UPSERTS`, many with one statement: each hands Python's lock round once."""
    if not rows:
        return
    change = _UPSERTS.get(table.partition(" ")[0])
    conflict = f" ON CONFLICT DO UPDATE SET {change}" if change else ""
    one = f"({', '.join('?' * len(rows[0]))})"
    at = 0
    for size in _ROWS_AT_ONCE:
        statement = f"INSERT INTO {table} VALUES {', '.join([one] * size)}{conflict}"  # noqa: S608 - all constants
        while len(rows) - at >= size:
            connection.execute(statement, [value for row in rows[at : at + size] for value in row])
            at += size


def _packs(batches: list[Submission]) -> list[tuple[int, int, bytes, bytes]]:
    """Return the rows of `packs` that hold these batches, in their order."""
    packs = []
    at = 0
    while at < len(batches):
        first, size = at, 0
        while at < len(batches) and size < _PACK_BYTES:
            size += len(batches[at].payload)
            at += 1
        some = batches[first:at]
        contents = [(b.host, b.platform, b.spool_id, b.sequence, b.rows, b.kept, len(b.payload)) for b in some]
        payload = b"".join([b.payload for b in some])
        packs.append((len(some), sum(b.accepted_rows for b in some), msgspec.msgpack.encode(contents), payload))
    return packs


def unpack(contents: bytes, payload: bytes) -> Iterator[tuple[StoredBatch, int]]:
    """Yield the batches of a pack, each with the number of rows that count."""
    at = 0
    for host, platform, spool_id, sequence, rows, kept, size in msgspec.msgpack.decode(contents):
        mask = None if kept is None else np.unpackbits(np.frombuffer(kept, np.uint8), count=rows).astype(np.bool_)
        batch = StoredBatch(host, platform, spool_id, sequence, payload[at : at + size], mask)
        yield batch, rows if mask is None else int(np.count_nonzero(mask))
        at += size


def read_batches(journal: Path, roll: Roll) -> Iterator[tuple[int, int, StoredBatch, int]]:
    """Yield the batches of a roll, in order: each with its pack, its place in it, and how many of its rows count.

    For any thread or process. The journal's log is held back only while a pack is read.
    """
    with reading(journal) as connection:
        for number in range(roll.first, roll.last + 1):
            found = connection.execute("SELECT contents, payload FROM packs WHERE id = ?", (number,))
            for contents, payload in found.fetchall():
                for index, (batch, accepted) in enumerate(unpack(contents, payload)):
                    yield number, index, batch, accepted


def read_roll(journal: Path, roll: Roll, piece_rows: int, piece_bytes: int = 1 << 62) -> Iterator[list[StoredBatch]]:
    """Yield the batches of a roll in pieces of about `piece_rows` rows or `piece_bytes` bytes, the same each time."""
    piece: list[StoredBatch] = []
    rows = size = 0
    for _, _, batch, accepted in read_batches(journal, roll):
        piece.append(batch)
        rows += accepted
        size += len(batch.payload)
        if rows >= piece_rows or size >= piece_bytes:
            yield piece
            piece, rows, size = [], 0, 0
    if piece:
        yield piece


def set_aside(connection: sqlite3.Connection, pack: int, index: int, why: str) -> tuple[StoredBatch, int]:
    """Take a batch, by its place in its pack, out of what is rolled; return it and how many of its rows counted."""
    contents, payload = connection.execute("SELECT contents, payload FROM packs WHERE id = ?", (pack,)).fetchone()
    batches = msgspec.msgpack.decode(contents)
    at = sum(batch[-1] for batch in batches[:index])
    gone, accepted = next(islice(unpack(contents, payload), index, None))
    host, platform, spool_id, sequence, rows, kept, size = batches.pop(index)
    columns = "host, platform, spool_id, sequence, rows, kept, why, payload"
    values = (host, platform, spool_id, sequence, rows, kept, why, gone.payload)
    _insert(connection, f"set_aside ({columns})", [values])
    if batches:
        rest = (msgspec.msgpack.encode(batches), payload[:at] + payload[at + size :])
        connection.execute(
            "UPDATE packs SET batches = batches - 1, accepted_rows = accepted_rows - ?, contents = ?, payload = ?"
            " WHERE id = ?",
            (accepted, *rest, pack),
        )
    else:
        connection.execute("DELETE FROM packs WHERE id = ?", (pack,))
    _insert(connection, "rejections", [(host, "batch", "set_aside", 1)])
    return gone, accepted


def _host_values(record: HostRecord) -> tuple[Any, ...]:
    *known, spooled, dropped, version, offset = _known(record)
    counts = (min(spooled, _MAX), min(dropped, _MAX), min(version, _MAX))
    return (*known, *counts, max(-_MAX, min(offset, _MAX)), msgspec.json.encode(record.jobs).decode())


def begin_roll(connection: sqlite3.Connection, replica: str, journal_id: str, max_rows: int) -> Roll | None:
    """Note the intent of a roll of about `max_rows` rows, and no more bytes than go with these; None without rows.

    An unfinished roll comes first. `replica` and `journal_id` are for `segment_stem`.
    """
    if unfinished := connection.execute("SELECT stem, first, last FROM rolls ORDER BY first LIMIT 1").fetchone():
        return Roll(*unfinished)
    first = last = rows = size = 0
    most_bytes = max(_ROLL_BYTES, _ROLL_ROW_BYTES * max_rows)
    packs = connection.execute("SELECT id, accepted_rows, length(payload) FROM packs ORDER BY id")
    for number, accepted, bytes_of_it in packs:
        first, last, rows, size = first or number, number, rows + accepted, size + bytes_of_it
        if rows >= max_rows or size >= most_bytes:
            break
    if not last:
        return None
    roll = Roll(segment_stem(replica, journal_id, first), first, last)
    connection.execute("INSERT INTO rolls VALUES (?, ?, ?)", (roll.stem, roll.first, roll.last))
    return roll


def finish_roll(connection: sqlite3.Connection, roll: Roll, rows: int) -> int:
    """Note that a roll's files are on disk: it is not repeated. Return how many batches have left."""
    batches = "SELECT coalesce(sum(batches), 0) FROM packs WHERE id BETWEEN ? AND ?"
    gone = connection.execute(batches, (roll.first, roll.last)).fetchone()[0]
    connection.execute("UPDATE rolls SET stem = ? WHERE stem = ?", (_WRITTEN, roll.stem))
    _insert(connection, "counters", [("rolled_rows", rows)])
    return int(gone)


def forget_some(connection: sqlite3.Connection, most_bytes: int = FORGOTTEN_BYTES) -> bool:
    """Delete rows of the finished roll, about `most_bytes` of them; False when none are left."""
    found = connection.execute("SELECT first, last FROM rolls WHERE stem = ?", (_WRITTEN,)).fetchone()
    if found is None:
        return False
    first, last = found
    size, until = 0, last
    sizes = "SELECT id, length(payload) FROM packs WHERE id BETWEEN ? AND ? ORDER BY id"
    for number, bytes_of_it in connection.execute(sizes, (first, last)):
        size += bytes_of_it
        if size >= most_bytes:
            until = number
            break
    connection.execute("DELETE FROM packs WHERE id BETWEEN ? AND ?", (first, until))
    if until < last:
        connection.execute("UPDATE rolls SET first = ? WHERE stem = ?", (until + 1, _WRITTEN))
        return True
    connection.execute("DELETE FROM rolls WHERE stem = ?", (_WRITTEN,))
    return False


def forget_spools(
    connection: sqlite3.Connection, before_day: int, most_rows: int = FORGOTTEN_RANGES
) -> list[tuple[str, str]]:
    """Delete the ranges of spools from which nothing came since a day (since 1970), about `most_rows` of them.

    Return the (host, spool_id) whose ranges were deleted; some ranges of the last one may be left.
    """
    found = "SELECT host, spool_id FROM spools WHERE last_day < ? LIMIT ?"
    silent = connection.execute(found, (before_day, most_rows)).fetchall()
    for at, key in enumerate(silent):
        most_rows -= connection.execute(
            "DELETE FROM received WHERE host = ? AND spool_id = ? AND first IN"
            " (SELECT first FROM received WHERE host = ? AND spool_id = ? LIMIT ?)",
            (*key, *key, most_rows),
        ).rowcount
        if most_rows <= 0:
            return silent[: at + 1]
        connection.execute("DELETE FROM spools WHERE host = ? AND spool_id = ?", key)
    return silent


def read_stats(connection: sqlite3.Connection) -> JournalStats:
    """Return the totals."""
    counters = dict(connection.execute("SELECT name, value FROM counters"))
    batches, rows = connection.execute("SELECT coalesce(sum(batches), 0), total(accepted_rows) FROM packs").fetchone()
    events = connection.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'events'").fetchone()[0]
    stats = JournalStats(**counters, accepted_events=events, journal_batches=batches, journal_rows=int(rows))
    for kind, reason, count in connection.execute("SELECT kind, reason, sum(count) FROM rejections GROUP BY 1, 2"):
        stats.rejected(kind)[reason] = count
    return stats


def read_events(
    connection: sqlite3.Connection,
    *,
    before_id: int,
    limit: int,
    host: str = "",
    vm: str = "",
    behaviour: int = 0,
    since_unix_ns: int = 0,
    until_unix_ns: int = 2**63 - 1,
    uuids: Sequence[str] | None = None,
) -> list[tuple[int, EventRow]]:
    """Return the last `limit` events with an id below `before_id`, newest first, each with its id.

    "", 0 and None match all. `vm` is a UUID or a name, `behaviour` (a number of `whitepanda.v1.Behaviour`) one that an
    event begins or ends; times are in [since_unix_ns, until_unix_ns).
    """
    wanted: dict[str, Any] = {"before_id": before_id, "host": host, "vm": vm, "behaviour": behaviour}
    wanted["uuids"] = None if uuids is None else msgspec.json.encode(uuids).decode()
    wanted |= {"since_unix_ns": since_unix_ns, "until_unix_ns": until_unix_ns, "limit": limit}
    found = connection.execute(
        f"SELECT id, {_EVENT} FROM events"  # noqa: S608 - constants
        " WHERE id < :before_id AND (:host = '' OR host = :host) AND (:vm = '' OR :vm IN (vm, name))"
        " AND (:behaviour = 0 OR :behaviour IN (behaviour, before))"
        " AND (:uuids IS NULL OR vm IN (SELECT value FROM json_each(:uuids)))"
        " AND unix_ns >= :since_unix_ns AND unix_ns < :until_unix_ns ORDER BY id DESC LIMIT :limit",
        wanted,
    )
    return [(number, EventRow(*row)) for number, *row in found]


def read_triggers(connection: sqlite3.Connection, limit: int) -> list[tuple[int, TriggerRow]]:
    """Return the oldest reports that wait for incident history, each with its id."""
    found = connection.execute(f"SELECT id, {_TRIGGER} FROM triggers ORDER BY id LIMIT ?", (limit,))  # noqa: S608 - constants
    return [(number, TriggerRow(*row)) for number, *row in found]


def read_facts(connection: sqlite3.Connection, limit: int) -> list[tuple[int, FactRow]]:
    """Return the oldest facts that wait for their database, each with its id."""
    found = connection.execute(f"SELECT id, {_FACT} FROM facts ORDER BY id LIMIT ?", (limit,))  # noqa: S608 - constants
    return [(number, FactRow(*row)) for number, *row in found]


def read_hosts(connection: sqlite3.Connection) -> dict[str, HostRecord]:
    """Return every host that ever said Hello, by name."""
    found = connection.execute(
        "SELECT host, platform, agent_version, protocol_version, boot_id,"
        " max(hosts.last_seen_unix_ns, coalesce(seen.last_seen_unix_ns, 0)), coalesce(accepted_rows, 0),"
        " spooled_batches, dropped_batches, coefficient_version, clock_offset_ns, jobs"
        " FROM hosts LEFT JOIN seen USING (host)"
    )
    return {row[0]: HostRecord(*[*row[:-1], tuple(json.loads(row[-1]))]) for row in found}
