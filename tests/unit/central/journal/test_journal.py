import asyncio
import contextlib
import sqlite3
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from central.config import IngestSection
from central.journal import flush_worker, tables
from central.journal import writer as journal_module
from central.journal.flush import Roller
from central.journal.tables import (
    HostRecord,
    Roll,
    Submission,
    finish_roll,
    forget_some,
    forget_spools,
    read_hosts,
    read_roll,
)
from central.journal.writer import Journal, JournalStats
from central.lake.segments import DAY_NS, Lake
from central.validation.reader import read_batch
from central.validation.rows import Limits
from central.validation.rows import Sender as BatchSender
from tests.support.waiting import until
from tests.unit.central.validation.test_validate import a_batch
from whitepanda.common.errors import UnavailableError

PATIENCE_S = 120.0  # each commit is flushed to a disk that others use too


class Sender:
    """Submits batches of three rows and notes what came back."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.outcomes: list[tuple[int, bool]] = []

    def submit(
        self,
        sequence: int,
        *,
        host: str = "h",
        spool: str = "s",
        refused: str = "",
        lost: int = 0,
        day: int = 0,
        is_importer: bool = False,
    ) -> None:
        batch = a_batch(3, spool_id=spool, sequence=sequence)
        kept = None if not lost else np.packbits(np.arange(3) >= lost).tobytes()
        self.journal.submit(
            Submission(
                host=host,
                platform="P",
                spool_id=spool,
                sequence=sequence,
                received_unix_ns=day * DAY_NS + 1000 + sequence,
                payload=batch.SerializeToString(),
                rows=3,
                accepted_rows=0 if refused else 3 - lost,
                rejected_rows={"bad_cpi": lost} if lost else {},
                kept=kept,
                done=lambda is_new: self.outcomes.append((sequence, is_new)),
                refused=refused,
                is_importer=is_importer,
            )
        )

    async def heard(self, count: int) -> list[tuple[int, bool]]:
        await until(lambda: len(self.outcomes) >= count, PATIENCE_S)
        return self.outcomes


def opened(folder: Path) -> Journal:
    journal = Journal(folder, replica="central-0", commit_interval_s=0.001)
    journal.start()
    return journal


async def test_what_it_called_back_for_is_there_after_a_crash(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    sender = Sender(journal)
    journal.note_host(HostRecord("h", "P", "0.1.0", 2, "boot", 5, jobs=("a", "b"), clock_offset_ns=-7))
    for sequence in (1, 2, 5, 2):
        sender.submit(sequence, lost=1 if sequence == 5 else 0)
    sender.submit(6, refused="task_index")
    journal.reject("h", "malformed")
    assert await sender.heard(5) == [(1, True), (2, True), (5, True), (2, False), (6, True)]
    while not journal.stats.rejected_batches["malformed"]:
        await asyncio.sleep(0.002)
    expected = JournalStats(
        accepted_batches=3,
        accepted_rows=8,
        duplicate_batches=1,
        rejected_rows={"bad_cpi": 1},
        rejected_batches={"task_index": 1, "malformed": 1},
        journal_batches=3,
        journal_rows=8,
    )
    assert sum(journal.ack_times.counts) == 5
    assert journal.stats == expected
    # Another process reads the files as they are: nothing was closed or flushed for it.
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("journal.sqlite", "journal.sqlite-wal"):
        (copy / name).write_bytes((tmp_path / name).read_bytes())
    again = opened(copy)
    assert again.stats == expected
    assert again.journal_id == journal.journal_id
    assert (
        again.hosts
        == journal.hosts
        == {"h": HostRecord("h", "P", "0.1.0", 2, "boot", 1005, accepted_rows=8, clock_offset_ns=-7, jobs=("a", "b"))}
    )
    other = Sender(again)
    for sequence in (1, 2, 3, 5, 6):  # a duplicate is known, also of a refused batch
        other.submit(sequence)
    assert await other.heard(5) == [(1, False), (2, False), (3, True), (5, False), (6, False)]
    ranges = again._connection.execute("SELECT first, last FROM received WHERE host = 'h'").fetchall()
    assert ranges == [(1, 3), (5, 6)]
    await journal.close()
    await again.close()


async def test_a_roll_is_read_in_pieces_and_becomes_one_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, lake = opened(tmp_path), Lake(tmp_path / "lake")
    sender = Sender(journal)
    for sequence in range(1, 6):
        sender.submit(sequence, lost=sequence % 2)
    await sender.heard(5)
    roll = await journal.begin_roll(10**6)
    assert roll is not None
    pieces = [[batch.sequence for batch in piece] for piece in read_roll(journal.path, roll, 5)]
    assert pieces == [[1, 2], [3, 4], [5]]
    assert [len(piece) for piece in read_roll(journal.path, roll, 1)] == [1] * 5
    assert [len(piece) for piece in read_roll(journal.path, roll, 10**6)] == [5]
    by_bytes = read_roll(journal.path, roll, 10**6, 2 * len(a_batch(3).SerializeToString()))
    assert [len(piece) for piece in by_bytes] == [2, 2, 1]
    monkeypatch.setattr(flush_worker, "_PIECE_ROWS", 5)
    assert await Roller(IngestSection(), journal, lake).roll_all() == 12
    [segment] = lake.segments()
    assert (segment.rows, segment.footer.num_row_groups) == (12, 3)
    sequences = pq.ParquetFile(segment.path).read(["sequence"])["sequence"].to_pylist()
    assert sequences == [1, 1, 2, 2, 2, 3, 3, 4, 4, 4, 5, 5]
    assert journal.stats.rolled_rows == 12
    await journal.close()


async def test_a_roll_is_bounded_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened(tmp_path)
    sender = Sender(journal)
    for sequence in range(1, 6):
        sender.submit(sequence)
        await sender.heard(sequence)  # each in a pack of its own
    monkeypatch.setattr(tables, "_ROLL_BYTES", 2 * len(a_batch(3).SerializeToString()))
    monkeypatch.setattr(tables, "_ROLL_ROW_BYTES", 0)
    rolls = []
    while roll := await journal.begin_roll(10**6):
        rolls.append((roll.first, roll.last))
        await journal.finish_roll(roll, 3 * (roll.last - roll.first + 1))
    assert rolls == [(1, 2), (3, 4), (5, 5)]
    monkeypatch.undo()
    assert 512 * IngestSection().roll_rows // 4 <= tables._ROLL_BYTES
    await journal.close()


async def test_a_batch_is_set_aside_out_of_the_midst_of_its_pack(tmp_path: Path) -> None:
    journal, lake = opened(tmp_path), Lake(tmp_path / "lake")
    sender = Sender(journal)
    for sequence in range(1, 4):
        sender.submit(sequence, lost=1 if sequence == 2 else 0)
    await sender.heard(3)
    roll = await journal.begin_roll(10**6)
    assert roll is not None
    assert roll.first == roll.last, "one pack"
    batch, rows = await journal.set_aside(roll.first, 1, "too large")
    assert (batch.sequence, rows) == (2, 2)
    assert (journal.stats.journal_batches, journal.stats.journal_rows) == (2, 6)
    await journal.close()
    again = opened(tmp_path)
    assert (again.stats.journal_batches, again.stats.journal_rows) == (2, 6)
    assert again.stats.rejected_batches == {"set_aside": 1}
    assert await again.begin_roll(1) == roll, "the same roll goes on without it"
    assert await Roller(IngestSection(), again, lake).roll_all() == 6
    [segment] = lake.segments()
    sequences = pq.ParquetFile(segment.path).read(["sequence"])["sequence"].to_pylist()
    assert sequences == [1, 1, 1, 3, 3, 3]
    found = again._connection.execute("SELECT host, spool_id, sequence, rows, why, payload FROM set_aside")
    assert found.fetchall() == [("h", "s", 2, 3, "too large", batch.payload)]
    other = Sender(again)
    other.submit(2)
    assert await other.heard(1) == [(2, False)], "it is still known"
    other.submit(4)
    await other.heard(2)
    roll = await again.begin_roll(1)
    assert roll is not None
    await again.set_aside(roll.first, 0, "too large")  # the last of its pack
    assert await Roller(IngestSection(), again, lake).roll_all() == 0
    assert await again.begin_roll(1) is None
    await again.close()


async def test_duplicates_are_known_after_their_rows_left(tmp_path: Path) -> None:
    journal, lake = opened(tmp_path), Lake(tmp_path / "lake")
    sender = Sender(journal)
    sender.submit(1)
    await sender.heard(1)
    assert await Roller(IngestSection(), journal, lake).roll_all() == 3
    sender.submit(1)
    sender.submit(1, host="other")
    sender.submit(1, spool="another incarnation")
    assert (await sender.heard(4))[1:] == [(1, False), (1, True), (1, True)]
    await journal.close()


async def test_what_hosts_say_waits_for_a_batch_or_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_NOTES_WAIT_S", 3600.0)
    journal = opened(tmp_path)
    groups: list[list[str]] = []
    original = journal._write

    def write(connection: sqlite3.Connection, items: list) -> journal_module.Group:
        groups.append([type(item).__name__ for item in items])
        return original(connection, items)

    monkeypatch.setattr(journal, "_write", write)
    for host in ("a", "b"):
        journal.note_host(HostRecord(host))
        await asyncio.sleep(0.02)
    sender = Sender(journal)
    sender.submit(1)
    await sender.heard(1)
    assert groups == [["HostRecord", "HostRecord", "Submission"]]
    monkeypatch.setattr(journal_module, "_NOTES_WAIT_S", 0.05)
    journal.note_host(HostRecord("c"))
    await until(lambda: len(groups) >= 2, PATIENCE_S)
    assert groups[1] == ["HostRecord"]
    monkeypatch.setattr(journal_module, "_NOTES_WAIT_S", 3600.0)
    journal.note_host(HostRecord("d"))
    await journal.close()
    assert groups[2:] == [["HostRecord"]]
    again = opened(tmp_path)
    assert set(again.hosts) >= {"a", "b", "c", "d"}
    await again.close()


def written_groups(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> list[list[object]]:
    """Return what each transaction of the journal is asked to write, from now on."""
    groups: list[list[object]] = []
    original = journal._write

    def write(connection: sqlite3.Connection, items: list) -> journal_module.Group:
        groups.append(items)
        return original(connection, items)

    monkeypatch.setattr(journal, "_write", write)
    return groups


async def test_a_host_is_written_once_a_minute_whatever_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_HOST_INTERVAL_S", 3600.0)
    journal = opened(tmp_path)
    groups = written_groups(journal, monkeypatch)
    sender = Sender(journal)
    for turn in range(1, 21):
        journal.note_host(HostRecord("h", jobs=(f"job-{turn}",)))
        assert journal.hosts["h"].jobs == (f"job-{turn}",)
        sender.submit(turn)
        await sender.heard(turn)
    journal.note_host(HostRecord("another"))
    sender.submit(21)
    await sender.heard(21)
    noted = [item for group in groups for item in group if isinstance(item, HostRecord)]
    assert [(record.host, record.jobs) for record in noted] == [("h", ("job-1",)), ("another", ())]
    await journal.close()
    again = opened(tmp_path)  # a stop loses nothing
    assert again.hosts["h"].jobs == ("job-20",)
    await again.close()


async def test_what_a_host_said_last_is_written_when_the_minute_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_NOTES_WAIT_S", 0.01)
    monkeypatch.setattr(journal_module, "_HOST_INTERVAL_S", 0.05)
    journal = opened(tmp_path)
    for turn in range(3):
        journal.note_host(HostRecord("h", jobs=(f"job-{turn}",)))
    with contextlib.closing(sqlite3.connect(f"file:{journal.path}?mode=ro", uri=True)) as reader:
        await until(lambda: read_hosts(reader).get("h", HostRecord("h")).jobs == ("job-2",), PATIENCE_S)
    await journal.close()


async def test_what_hosts_say_does_not_add_up_while_commits_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_HOST_INTERVAL_S", 0.001)
    journal = Journal(tmp_path, replica="central-0", commit_interval_s=0.001)  # not started: nothing is taken
    journal.failure, queue = "disk full", journal._queue
    for turn in range(20):
        journal.note_host(HostRecord("h", jobs=(f"job-{turn}",)))
        await asyncio.sleep(0.005)
    assert queue.qsize() == 1
    journal.failure = ""
    await until(lambda: queue.qsize() >= 2, PATIENCE_S)
    assert (queue.get().jobs, queue.get().jobs) == (("job-0",), ("job-19",))
    await journal.close()


async def test_a_transaction_counts_the_bytes_of_what_hosts_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_NOTES_WAIT_S", 0.01)
    journal = Journal(tmp_path, replica="central-0", commit_interval_s=0.001, reserve_bytes=8 << 20)
    groups = written_groups(journal, monkeypatch)
    jobs = tuple(f"{n:03}" + "\U0001f43c" * 200 for n in range(320))  # 251 KiB
    for n in range(12):
        journal.note_host(HostRecord(f"host-{n}", jobs=jobs))
    journal.start()
    await until(lambda: sum(map(len, groups)) >= 12, PATIENCE_S)
    assert max(map(len, groups)) <= 5  # of a MiB
    await journal.close()
    again = opened(tmp_path)
    assert again.hosts["host-11"].jobs == jobs
    [size] = again._connection.execute("SELECT length(CAST(jobs AS BLOB)) FROM hosts LIMIT 1").fetchone()
    assert size < 270_000  # as UTF-8, no escapes
    await again.close()


async def test_a_full_disk_acknowledges_nothing_until_there_is_room(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    reported: list[str] = []
    journal.on_failure.append(reported.append)
    pages = journal._connection.execute("PRAGMA page_count").fetchone()[0]
    journal._connection.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own "disk is full"
    sender = Sender(journal)
    for sequence in range(1, 101):
        sender.submit(sequence)
    await until(lambda: reported, PATIENCE_S)
    assert reported == ["database or disk is full"]
    assert journal.failure == "database or disk is full"
    before = len(sender.outcomes)
    committed = journal._connection.execute("SELECT coalesce(sum(batches), 0) FROM packs").fetchone()[0]
    assert before == committed < 100
    journal._connection.execute("PRAGMA max_page_count = 100000")
    assert sorted(await sender.heard(100)) == [(sequence, True) for sequence in range(1, 101)]
    assert reported == ["database or disk is full", ""]
    assert (journal.failure, journal.stats.accepted_batches) == ("", 100)
    await journal.close()


async def test_what_cannot_be_committed_at_the_end_is_not_acknowledged(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal._connection.execute("PRAGMA max_page_count = 1")
    sender = Sender(journal)
    for sequence in range(1, 201):
        sender.submit(sequence)
    await asyncio.wait_for(journal.close(), 10)
    again = opened(tmp_path)
    assert again.stats.accepted_batches == len(sender.outcomes) < 200
    await again.close()


async def test_rolls_are_limited_by_rows_and_repeat_into_the_same_files(tmp_path: Path) -> None:
    journal, lake = opened(tmp_path), Lake(tmp_path / "lake")
    sender = Sender(journal)
    for sequence in range(1, 6):
        sender.submit(sequence)
        await sender.heard(sequence)  # what is committed together is rolled together
    roll = await journal.begin_roll(6)
    assert roll == Roll(f"central-0-{journal.journal_id}-000000000001", 1, 2)
    assert await journal.begin_roll(10**6) == roll, "the unfinished one comes first"
    roller = Roller(IngestSection(), journal, lake)
    assert roller._write(roll) == 6
    [segment] = lake.segments()
    before = segment.path.read_bytes()
    await journal.close()  # killed between the file and the transaction that forgets the rows

    journal = opened(tmp_path)
    assert journal.stats.journal_rows == 15
    await Roller(IngestSection(roll_rows=6), journal, lake).roll_all()
    assert [s.path.stem[-12:] for s in lake.segments()] == ["000000000001", "000000000003", "000000000005"]
    assert [s.rows for s in lake.segments()] == [6, 6, 3]
    assert lake.segments()[0].path.read_bytes() == before
    assert (journal.stats.journal_rows, journal.stats.journal_batches, journal.stats.rolled_rows) == (0, 0, 15)
    assert await journal.begin_roll(1) is None
    metadata = lake.segments()[0].footer.metadata
    assert metadata[b"whitepanda.schema"] == b"1"
    assert metadata[b"whitepanda.rows"] == b"1-2"
    sender = Sender(journal)
    sender.submit(9)
    await sender.heard(1)
    later = await journal.begin_roll(1)
    assert later is not None
    assert later.first == 6, "row numbers are never used twice"
    await journal.close()


async def test_rows_of_a_finished_roll_are_deleted_a_few_at_a_time_and_never_rolled_again(tmp_path: Path) -> None:
    journal, lake = opened(tmp_path), Lake(tmp_path / "lake")
    sender = Sender(journal)
    for sequence in range(1, 6):
        sender.submit(sequence)
        await sender.heard(sequence)
    roll = await journal.begin_roll(10**6)
    assert roll is not None
    assert Roller(IngestSection(), journal, lake)._write(roll) == 15

    def packs() -> list[int]:
        return [number for (number,) in journal._connection.execute("SELECT id FROM packs ORDER BY id")]

    assert await journal._call(lambda connection: finish_roll(connection, roll, 15)) == 5
    assert await journal._call(lambda connection: forget_some(connection, 1))
    assert packs() == [2, 3, 4, 5]
    assert await journal._call(lambda connection: forget_some(connection, 1))
    assert packs() == [3, 4, 5]
    sender.submit(6)
    await sender.heard(6)
    await journal.close()  # killed amid the deletions

    journal = opened(tmp_path)
    assert packs() == [6]
    assert (journal.stats.journal_rows, journal.stats.rolled_rows) == (3, 15)
    assert await Roller(IngestSection(), journal, lake).roll_all() == 3
    assert [s.rows for s in lake.segments()] == [15, 3]
    assert packs() == []
    await journal.close()


async def test_a_roll_begins_after_what_the_last_one_left_is_deleted(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    sender = Sender(journal)
    for sequence in (1, 2, 3):
        sender.submit(sequence)
        await sender.heard(sequence)
    roll = await journal.begin_roll(3)
    assert roll is not None
    await journal._call(lambda connection: finish_roll(connection, roll, 3))
    later = await journal.begin_roll(10**6)
    assert (roll.first, roll.last, later.first, later.last) == (1, 1, 2, 3)
    await journal.close()


async def test_what_was_taken_of_silent_spools_is_forgotten(tmp_path: Path) -> None:
    today, lake = 100, Lake(tmp_path / "lake")

    def reopened() -> tuple[Journal, Sender]:
        made = Journal(
            tmp_path,
            replica="central-0",
            commit_interval_s=0.001,
            spool_days=40.0,
            clock_unix_ns=lambda: int(today * DAY_NS),
        )
        made.start()
        return made, Sender(made)

    journal, sender = reopened()

    async def taken(sequence: int, spool: str, *, is_importer: bool = False) -> bool:
        sender.submit(sequence, spool=spool, day=int(today), is_importer=is_importer)
        _, is_new = (await sender.heard(len(sender.outcomes) + 1))[-1]
        await Roller(IngestSection(), journal, lake).roll_all()
        return is_new

    def known() -> set[str]:
        found = journal._connection.execute("SELECT DISTINCT spool_id FROM received")
        return {spool for (spool,) in found}

    for sequence in (1, 3, 5):
        assert await taken(sequence, "silent")
    assert await taken(1, "repeated")
    assert await taken(1, "imported", is_importer=True)
    assert await taken(1, "live")
    today = 140
    assert not await taken(1, "repeated")
    assert await taken(2, "live")
    assert known() == {"silent", "repeated", "imported", "live"}, "the last hour of day 100 is 39 days ago"
    today = 140.9
    assert not await taken(2, "live")
    assert "silent" in known(), "nor is it 40 days ago on the evening of day 140"
    await journal.close()
    journal, sender = reopened()
    today = 141
    assert await taken(3, "live")
    assert known() == {"repeated", "imported", "live"}
    assert await taken(3, "silent")
    today = 10_000
    assert await taken(4, "live")
    assert known() == {"imported", "live"}
    assert not await taken(1, "imported", is_importer=True)
    assert not await taken(1, "live")
    await journal.close()


async def test_silent_spools_are_not_worth_the_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def full(*_arguments: object) -> None:
        asked.append(None)
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(tables, "forget_spools", full)
    journal = Journal(tmp_path, replica="central-0", commit_interval_s=0.001, spool_days=40.0, reserve_bytes=1 << 20)
    journal.start()
    sender = Sender(journal)
    sender.submit(1)
    await sender.heard(1)
    assert await Roller(IngestSection(), journal, Lake(tmp_path / "lake")).roll_all() == 3
    assert asked == [None]
    assert journal._reserve.is_held
    await journal.close()


async def test_spools_are_forgotten_in_small_steps(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    sender = Sender(journal)
    for spool in ("a", "b"):
        for sequence in range(1, 10, 2):
            sender.submit(sequence, spool=spool, day=7)
    await sender.heard(10)

    async def step() -> tuple[int, int]:
        spools = await journal._call(lambda connection: forget_spools(connection, 8, 3))
        (left,) = journal._connection.execute("SELECT count(*) FROM received").fetchone()
        return len(spools), left

    assert await journal._call(lambda connection: forget_spools(connection, 7, 3)) == []
    assert [await step() for _ in range(5)] == [(1, 7), (2, 4), (1, 1), (1, 0), (0, 0)]
    await journal.close()


def test_a_batch_of_a_forgotten_spool_has_no_row_that_counts() -> None:
    batch, limits = a_batch(3), Limits()
    received = max(batch.start_unix_ns)
    raw = batch.SerializeToString()
    for is_importer, refused in ((False, {"old_time": 3}), (True, {})):
        sender = BatchSender("h", "P", is_importer, limits, received + int(limits.max_past_days + 31) * DAY_NS)
        assert read_batch(a_batch(3), raw, sender).rejected_rows == refused


async def test_a_lake_that_cannot_be_written_keeps_the_rows_in_the_journal(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    sender = Sender(journal)
    sender.submit(1)
    await sender.heard(1)
    (tmp_path / "lake").write_text("not a folder")
    roller = Roller(IngestSection(), journal, Lake(tmp_path / "lake"))
    assert not await roller._try()
    assert "Not a directory" in roller.failure
    assert journal.stats.journal_rows == 3
    (tmp_path / "lake").unlink()
    assert await roller._try()
    assert (roller.failure, journal.stats.journal_rows) == ("", 0)
    await journal.close()


async def test_one_process_at_a_time(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    with pytest.raises(UnavailableError, match=r"another central holds the journal in .*journal\.lock is locked"):
        Journal(tmp_path, replica="central-1", commit_interval_s=0.001)
    await journal.close()
    await opened(tmp_path).close()


@pytest.mark.parametrize("damage", ["text", "torn", "scrambled"])
async def test_a_damaged_journal_is_named(tmp_path: Path, damage: str) -> None:
    journal = opened(tmp_path)
    sender = Sender(journal)
    for sequence in range(1, 200):
        sender.submit(sequence)
    await sender.heard(199)
    await journal.close()
    file = tmp_path / "journal.sqlite"
    whole = file.read_bytes()
    if damage == "text":
        file.write_bytes(b"not a database at all" * 100)
    elif damage == "torn":
        file.write_bytes(whole[: len(whole) // 2])
    else:
        file.write_bytes(whole[:8192] + bytes(range(256)) * 64 + whole[8192 + 256 * 64 :])
    with pytest.raises(
        UnavailableError, match=r"journal .*journal\.sqlite cannot be used: .*move journal\.sqlite\* away"
    ):
        Journal(tmp_path, replica="central-0", commit_interval_s=0.001)


async def test_a_torn_log_loses_only_what_was_not_committed(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    sender = Sender(journal)
    sender.submit(1)
    await sender.heard(1)
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("journal.sqlite", "journal.sqlite-wal"):
        (copy / name).write_bytes((tmp_path / name).read_bytes())
    with (copy / "journal.sqlite-wal").open("ab") as log:
        log.write(b"\x37\x7f\x06\x82 half of a frame")
    again = opened(copy)
    assert again.stats.accepted_batches == 1
    await journal.close()
    await again.close()


async def test_a_journal_of_another_schema_is_refused(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal._connection.execute("UPDATE meta SET value = '9' WHERE key = 'schema'")
    await journal.close()
    with pytest.raises(UnavailableError, match="has schema 9, this central knows 1: run the version"):
        Journal(tmp_path, replica="central-0", commit_interval_s=0.001)


async def test_a_writer_that_cannot_go_on_says_so(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal._connection.execute("DROP TABLE counters")
    journal._write = None  # as a bug would: not an error of the disk
    Sender(journal).submit(1)
    assert journal.fatal is not None
    assert "TypeError" in await asyncio.wait_for(journal.fatal, 5)
    await journal.close()


async def test_the_log_is_flushed_at_every_commit(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    assert journal._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert journal._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    await journal.close()


async def test_a_call_whose_caller_left_does_not_stop_the_writer(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    task = asyncio.create_task(journal.begin_roll(1))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    sender = Sender(journal)
    sender.submit(1)
    assert await sender.heard(1) == [(1, True)]
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await journal._call(lambda connection: connection.execute("SELECT * FROM no_table"))
    sender.submit(2)
    assert len(await sender.heard(2)) == 2
    await journal.close()
