"""The journal's tables: what one transaction writes, and what is read back. Functions of a connection, no threads."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np

__all__ = [
    "EVENTS_SCHEMA",
    "HOST_COLUMNS",
    "SCHEMA",
    "SCHEMA_VERSION",
    "EventRow",
    "Group",
    "HostRecord",
    "JournalStats",
    "Rejection",
    "Roll",
    "Submission",
    "finish_roll",
    "read_events",
    "read_hosts",
    "read_stats",
    "unpack_kept",
    "write_group",
]

SCHEMA_VERSION = "1"
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE batches (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice: segments are named after it
    host TEXT NOT NULL, platform TEXT NOT NULL, spool_id TEXT NOT NULL, sequence INTEGER NOT NULL,
    received_unix_ns INTEGER NOT NULL,
    rows INTEGER NOT NULL, accepted_rows INTEGER NOT NULL,
    kept BLOB,              -- bit per row, most significant first; NULL: all are accepted
    payload BLOB NOT NULL   -- the agent's CpiBatch as it came
);
CREATE TABLE received (
    host TEXT NOT NULL, spool_id TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    PRIMARY KEY (host, spool_id, first)
) WITHOUT ROWID;
CREATE TABLE rejections (
    host TEXT NOT NULL, kind TEXT NOT NULL, reason TEXT NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (host, kind, reason)
) WITHOUT ROWID;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE hosts (
    host TEXT PRIMARY KEY, platform TEXT NOT NULL, agent_version TEXT NOT NULL, protocol_version INTEGER NOT NULL,
    boot_id TEXT NOT NULL, last_seen_unix_ns INTEGER NOT NULL, accepted_rows INTEGER NOT NULL,
    spooled_batches INTEGER NOT NULL, dropped_batches INTEGER NOT NULL, coefficient_version INTEGER NOT NULL,
    clock_offset_ns INTEGER NOT NULL, jobs TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE rolls (stem TEXT PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL) WITHOUT ROWID;
"""
#: Made where it is missing, also in journals of a central that did not know it; one that does not know it goes on
#: with a journal that has it. The last number that was given is the number of events ever taken.
EVENTS_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    host TEXT NOT NULL, received_unix_ns INTEGER NOT NULL, unix_ns INTEGER NOT NULL,
    vm TEXT NOT NULL, name TEXT NOT NULL, behaviour INTEGER NOT NULL, before INTEGER NOT NULL,
    payload BLOB NOT NULL   -- the agent's VmEvent as it came
);
"""

HOST_COLUMNS = (
    "host, platform, agent_version, protocol_version, boot_id, last_seen_unix_ns, accepted_rows, spooled_batches, "
    "dropped_batches, coefficient_version, clock_offset_ns, jobs"
)


@dataclass(frozen=True, slots=True)
class HostRecord:
    """What central knows of a host, connected or not.

    `clock_offset_ns` is the agent's clock minus ours, at its Hello.
    """

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


@dataclass(slots=True)
class JournalStats:
    """Totals, ever, of this journal; and what waits in it for the next roll."""

    accepted_batches: int = 0
    accepted_rows: int = 0
    duplicate_batches: int = 0
    rejected_rows: Counter[str] = field(default_factory=Counter)
    rejected_batches: Counter[str] = field(default_factory=Counter)
    rejected_events: Counter[str] = field(default_factory=Counter)
    accepted_events: int = 0
    journal_batches: int = 0
    journal_rows: int = 0
    rolled_rows: int = 0

    def rejected(self, kind: str) -> Counter[str]:
        """Return the counts of a kind: "row", "event" or "batch"."""
        return {"row": self.rejected_rows, "event": self.rejected_events}.get(kind, self.rejected_batches)


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event of a host: what it is found by, and the message `whitepanda.v1.VmEvent`."""

    host: str
    received_unix_ns: int
    unix_ns: int
    vm: str
    name: str
    behaviour: int
    before: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Submission:
    """A checked batch, or one refused for good (`refused` is the reason), on its way into the journal.

    `done` is called on the loop once it is on disk; True where the batch was new, False where it was a duplicate.
    """

    host: str
    platform: str
    spool_id: str
    sequence: int
    received_unix_ns: int
    payload: bytes
    rows: int
    accepted_rows: int
    rejected_rows: dict[str, int]
    kept: bytes | None
    done: Callable[[bool], None]
    refused: str = ""
    events: tuple[EventRow, ...] = ()
    rejected_events: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Roll:
    """Rows `first..last` of the journal, on their way into the lake's files named `stem`."""

    stem: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """Batches refused without a sequence number to remember them by."""

    host: str
    reason: str


@dataclass(slots=True)
class Group:
    """What one transaction changes, gathered in memory first."""

    new: list[Submission] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)
    outcomes: list[tuple[Submission, bool]] = field(default_factory=list)
    hosts: dict[str, HostRecord] = field(default_factory=dict)
    seen: dict[str, tuple[int, int]] = field(
        default_factory=dict
    )  # host -> (accepted rows, received_unix_ns)
    rejections: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # (host, kind, reason)
    upserts: dict[tuple[str, str, int], int] = field(default_factory=dict)  # (host, spool_id, first) -> last
    deletes: set[tuple[str, str, int]] = field(default_factory=set)
    counters: Counter[str] = field(default_factory=Counter)


def write_group(connection: sqlite3.Connection, group: Group, max_events: int) -> None:
    """Write what a group changes, within the transaction that the caller began; keep the last `max_events` events."""
    if group.events:
        connection.executemany(
            "INSERT INTO events (host, received_unix_ns, unix_ns, vm, name, behaviour, before, payload)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [astuple(event) for event in group.events],
        )
        connection.execute("DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?", (max_events,))
    connection.executemany(
        "INSERT INTO batches (host, platform, spool_id, sequence, received_unix_ns, rows, accepted_rows, kept, payload)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                i.host,
                i.platform,
                i.spool_id,
                i.sequence,
                i.received_unix_ns,
                i.rows,
                i.accepted_rows,
                i.kept,
                i.payload,
            )
            for i in group.new
        ],
    )
    connection.executemany(
        "DELETE FROM received WHERE host = ? AND spool_id = ? AND first = ?", group.deletes
    )
    connection.executemany(
        "INSERT INTO received VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET last = excluded.last",
        [(*key, last) for key, last in group.upserts.items()],
    )
    connection.executemany(
        "INSERT INTO rejections VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count",
        [(*key, count) for key, count in group.rejections.items()],
    )
    connection.executemany(
        "INSERT INTO counters VALUES (?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
        list(group.counters.items()),
    )
    connection.executemany(
        f"INSERT INTO hosts ({HOST_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?)"  # noqa: S608 - a constant
        " ON CONFLICT DO UPDATE SET platform = excluded.platform, agent_version = excluded.agent_version,"
        " protocol_version = excluded.protocol_version, boot_id = excluded.boot_id,"
        " last_seen_unix_ns = excluded.last_seen_unix_ns, spooled_batches = excluded.spooled_batches,"
        " dropped_batches = excluded.dropped_batches, coefficient_version = excluded.coefficient_version,"
        " clock_offset_ns = excluded.clock_offset_ns, jobs = excluded.jobs",
        [_host_values(record) for record in group.hosts.values()],
    )
    connection.executemany(
        "UPDATE hosts SET accepted_rows = accepted_rows + ?, last_seen_unix_ns = ? WHERE host = ?",
        [(rows, seen, host) for host, (rows, seen) in group.seen.items()],
    )


def _host_values(record: HostRecord) -> tuple[Any, ...]:
    return (
        record.host,
        record.platform,
        record.agent_version,
        record.protocol_version,
        record.boot_id,
        record.last_seen_unix_ns,
        *(
            min(n, 2**63 - 1)
            for n in (record.spooled_batches, record.dropped_batches, record.coefficient_version)
        ),
        max(-(2**63), min(record.clock_offset_ns, 2**63 - 1)),
        json.dumps(record.jobs),
    )


def finish_roll(connection: sqlite3.Connection, roll: Roll, rows: int) -> int:
    """Return how many batches left."""
    gone = connection.execute(
        "DELETE FROM batches WHERE id BETWEEN ? AND ?", (roll.first, roll.last)
    ).rowcount
    connection.execute("DELETE FROM rolls WHERE stem = ?", (roll.stem,))
    connection.execute(
        "INSERT INTO counters VALUES ('rolled_rows', ?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
        (rows,),
    )
    return int(gone)


def unpack_kept(kept: bytes | None, rows: int) -> Any:
    """Return which rows count (a mask of shape (rows,)), or None for all of them."""
    return None if kept is None else np.unpackbits(np.frombuffer(kept, np.uint8), count=rows).astype(np.bool_)


def read_stats(connection: sqlite3.Connection) -> JournalStats:
    """Return the totals."""
    counters = dict(connection.execute("SELECT name, value FROM counters"))
    batches, rows = connection.execute("SELECT count(*), total(accepted_rows) FROM batches").fetchone()
    stats = JournalStats(**counters, journal_batches=batches, journal_rows=int(rows))
    for kind, reason, count in connection.execute(
        "SELECT kind, reason, sum(count) FROM rejections GROUP BY 1, 2"
    ):
        stats.rejected(kind)[reason] = count
    found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
    stats.accepted_events = found[0] if found else 0
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
) -> list[tuple[int, EventRow]]:
    """Return the last events with an id below `before_id`, the last that came first, each with its id.

    Args:
        connection: to the journal.
        before_id: where to go on.
        limit: at most so many.
        host: only of this host; "" for all.
        vm: only of VMs with this UUID or name; "" for all.
        behaviour: only those that begin or end it (a number of `whitepanda.v1.Behaviour`); 0 for all.
        since_unix_ns: found at this time or later.
        until_unix_ns: found before this time.

    """
    found = connection.execute(
        "SELECT id, host, received_unix_ns, unix_ns, vm, name, behaviour, before, payload FROM events"
        " WHERE id < :before_id AND (:host = '' OR host = :host) AND (:vm = '' OR :vm IN (vm, name))"
        " AND (:behaviour = 0 OR :behaviour IN (behaviour, before))"
        " AND unix_ns >= :since AND unix_ns < :until ORDER BY id DESC LIMIT :limit",
        {
            "before_id": before_id,
            "host": host,
            "vm": vm,
            "behaviour": behaviour,
            "since": since_unix_ns,
            "until": until_unix_ns,
            "limit": limit,
        },
    )
    return [(number, EventRow(*row)) for number, *row in found]


def read_hosts(connection: sqlite3.Connection) -> dict[str, HostRecord]:
    """Return every host that ever said Hello, by name."""
    found = connection.execute(f"SELECT {HOST_COLUMNS} FROM hosts")  # noqa: S608 - a constant
    return {row[0]: HostRecord(*[*row[:-1], tuple(json.loads(row[-1]))]) for row in found}
