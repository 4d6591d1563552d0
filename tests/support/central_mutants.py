"""Central with one guarantee broken, to prove that a test notices. Run: this file, the mutant's name, arguments."""

import dataclasses
import sys
import time

from central.build import client, worker
from central.journal import database, received_once, reserve, tables, writer
from central.lake import lease
from whitepanda.common import cli


def synchronous_off() -> None:
    """Commits are not flushed to the disk."""
    original = database.set_pragmas

    def set_pragmas(connection) -> None:
        original(connection)
        connection.execute("PRAGMA synchronous=OFF")

    database.set_pragmas = set_pragmas


def acknowledge_first() -> None:
    """Batches are acknowledged, and then committed."""
    original = writer.Journal._commit

    def commit(self, items, calls) -> bool:
        group = tables.Group()
        group.outcomes = [(item, True) for item in items if isinstance(item, tables.Submission)]
        self._on_loop(self._committed, group)
        time.sleep(0.1)
        quiet = [
            dataclasses.replace(item, done=lambda _: None) if isinstance(item, tables.Submission) else item
            for item in items
        ]
        return original(self, quiet, calls)

    writer.Journal._commit = commit


def forget_duplicates() -> None:
    """A central that was started again does not know what it has taken before."""
    received_once.Received._ranges_of = lambda self, _connection, host, spool_id: self._ranges.setdefault(
        (host, spool_id), received_once.SequenceRanges()
    )
    acknowledge_late()


def forget_live_spools() -> None:
    """Of spools that are not silent it is forgotten, too, what was taken."""
    original = tables.forget_spools
    tables.forget_spools = lambda connection, _before_day, most_rows: original(connection, 1 << 30, most_rows)
    acknowledge_late()


def acknowledge_late() -> None:
    """Have a kill find batches that are committed and not yet acknowledged."""
    original = writer.Journal._committed

    def committed(self, group) -> None:
        self._loop.call_later(0.3, original, self, group)  # rolls go on meanwhile, and forget

    writer.Journal._committed = committed


def no_lease() -> None:
    """Every replica takes itself for the one that may build."""

    def acquire(self) -> bool:
        self.token = 1
        return True

    client.COMMAND = [sys.executable, __file__, "no-lease", "--build-worker"]
    lease.Lease.acquire = acquire
    lease.Lease.check = lambda _self: None
    lease.Lease.release = lambda _self: None


def no_reserve() -> None:
    """On a full disk the journal's reserve is not given up."""
    reserve.Reserve.draw = lambda _self: False


if __name__ == "__main__":
    {
        "synchronous-off": synchronous_off,
        "acknowledge-first": acknowledge_first,
        "forget-duplicates": forget_duplicates,
        "forget-live-spools": forget_live_spools,
        "no-lease": no_lease,
        "no-reserve": no_reserve,
    }[sys.argv.pop(1)]()
    if sys.argv[1] == "--build-worker":  # builds are another process's, which must be as broken
        worker.main()
    else:
        cli.main()
