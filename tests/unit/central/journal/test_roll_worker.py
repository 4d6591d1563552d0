"""Segments written by a process of its own: the same files, and never two writers."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from central.config import IngestSection
from central.journal import flush_worker
from central.journal.flush import Roller
from central.journal.flush_worker import RollWorker
from central.journal.tables import Submission
from central.journal.writer import Journal
from central.lake.segments import Lake
from tests.unit.central.journal.test_journal import Sender, opened
from tests.unit.central.validation.test_validate import a_batch
from whitepanda.v1 import agent_pb2

_LITTLE = 400 << 20  # of memory


async def _with_rows(folder: Path) -> Journal:
    journal = opened(folder)
    sender = Sender(journal)
    for sequence in (1, 2, 3):
        sender.submit(sequence)
    await sender.heard(3)
    return journal


async def test_it_writes_what_a_thread_would_and_is_started_again_when_it_dies(tmp_path: Path) -> None:
    journal, lake = await _with_rows(tmp_path), Lake(tmp_path / "lake")
    roll = await journal.begin_roll(10**6)
    assert roll is not None
    assert Roller(IngestSection(), journal, lake)._write(roll) == 9
    [segment] = lake.segments()
    by_thread = segment.path.read_bytes()
    segment.path.unlink()
    worker = RollWorker(lake.name, tmp_path, journal.lock)
    roller = Roller(IngestSection(), journal, lake, worker)
    worker.start()
    assert worker._process is not None
    worker._process.kill()
    worker._process.wait()
    with pytest.raises(OSError, match=r"ended with status -9|Broken pipe"):
        roller._write(roll)
    try:
        assert await roller._try()
    finally:
        worker.close()
    assert segment.path.read_bytes() == by_thread
    assert (journal.stats.journal_rows, journal.stats.rolled_rows) == (0, 9)
    await journal.close()


async def test_a_lake_that_cannot_be_written_is_reported_by_it(tmp_path: Path) -> None:
    journal = await _with_rows(tmp_path)
    (tmp_path / "lake").write_text("not a folder")
    worker = RollWorker(str(tmp_path / "lake"), tmp_path, journal.lock)
    roller = Roller(IngestSection(), journal, Lake(tmp_path / "lake"), worker)
    try:
        assert not await roller._try()
        assert "Not a directory" in roller.failure
        (tmp_path / "lake").unlink()
        assert await roller._try()
    finally:
        worker.close()
    assert (roller.failure, journal.stats.rolled_rows) == ("", 9)
    await journal.close()


def _submit(sender: Sender, batch: agent_pb2.CpiBatch, host: str) -> None:
    rows = len(batch.task_index)
    sender.journal.submit(
        Submission(
            host=host,
            platform="P",
            spool_id=batch.spool_id,
            sequence=batch.sequence,
            received_unix_ns=1000,
            payload=batch.SerializeToString(),
            rows=rows,
            accepted_rows=rows,
            rejected_rows={},
            kept=None,
            done=lambda is_new: sender.outcomes.append((batch.sequence, is_new)),
        )
    )


def _rows_by_host(lake: Lake) -> dict[str, int]:
    hosts = [pq.ParquetFile(segment.path).read(["host"])["host"].to_pylist() for segment in lake.segments()]
    return dict(Counter(host for some in hosts for host in some))


@pytest.mark.long
async def test_a_journal_that_has_names_of_megabytes_is_rolled_in_little_memory(tmp_path: Path) -> None:
    journal, lake = await _with_rows(tmp_path), Lake(tmp_path / "lake")
    sender = Sender(journal)
    for sequence in range(1, 41):  # the door refuses such names
        task = agent_pb2.Task(vm="v", job="j", name="x" * 4_000_000)
        batch = a_batch(1, spool_id="hostile", sequence=sequence, tasks=[task])
        _submit(sender, batch, "hostile")
    await sender.heard(40)
    worker = RollWorker(lake.name, tmp_path, journal.lock, _LITTLE)
    roller = Roller(IngestSection(), journal, lake, worker)
    try:
        assert await roller.roll_all() == 49
    finally:
        worker.close()
    assert _rows_by_host(lake) == {"h": 9, "hostile": 40}
    assert not journal.stats.rejected_batches
    await journal.close()


@pytest.mark.long
async def test_batches_that_cannot_be_written_are_set_aside_and_named_and_the_others_arrive(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    journal, lake = await _with_rows(tmp_path), Lake(tmp_path / "lake")
    sender = Sender(journal)
    for sequence in (1, 2):  # 8 GB in the lake's columns
        task = agent_pb2.Task(vm="x" * 4_000_000, job="j")
        batch = a_batch(2000, spool_id="hostile", sequence=sequence, tasks=[task], task_index=[0] * 2000)
        _submit(sender, batch, "hostile")
        sender.submit(10 + sequence)
    await sender.heard(4)
    # Processes of before a restart wrote some of it: their files are replaced.
    roll = await journal.begin_roll(10**6)
    assert roll is not None
    worker = RollWorker(lake.name, tmp_path, journal.lock, _LITTLE)
    roller = Roller(IngestSection(), journal, lake, worker)
    failures = []
    try:
        for _ in range(4):
            assert not await roller._try()
            failures.append(roller.failure)
        assert await roller._try()
    finally:
        worker.close()
    assert all("batch 1 of spool 'hostile' of hostile, 4" in each for each in failures[1:])
    assert _rows_by_host(lake) == {"h": 15}
    assert (journal.stats.journal_rows, journal.stats.journal_batches) == (0, 0)
    assert journal.stats.rejected_batches == {"set_aside": 2}
    assert roller.failure == ""
    assert "Traceback" not in capfd.readouterr().err
    await journal.close()


async def test_a_batch_at_which_the_process_dies_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, lake = await _with_rows(tmp_path), Lake(tmp_path / "lake")
    [(pack, batches)] = journal._connection.execute("SELECT id, batches FROM packs").fetchall()
    assert batches == 3
    dying = tmp_path / "dying"
    dying.write_text(
        f"""#!/bin/sh
        read order
        case $order in *'"suspects": [{pack}]'*) place=1;; *) place=-1;; esac
        echo '{{"at": [{pack}, '$place', "batch 2"]}}'
        exit 7
        """
    )
    dying.chmod(0o700)
    worker = RollWorker(lake.name, tmp_path, journal.lock)
    roller = Roller(IngestSection(), journal, lake, worker)
    monkeypatch.setattr(flush_worker.sys, "executable", str(dying))
    try:
        for _ in range(4):
            assert not journal.stats.rejected_batches
            assert not await roller._try()
            assert roller.failure == "batch 2: the process that writes segments ended with status 7"
        monkeypatch.undo()
        assert await roller._try()
    finally:
        worker.close()
    assert journal.stats.rejected_batches == {"set_aside": 1}
    assert _rows_by_host(lake) == {"h": 6}
    await journal.close()


@pytest.mark.long
async def test_where_memory_is_short_for_anything_nothing_is_set_aside(tmp_path: Path) -> None:
    journal, lake = await _with_rows(tmp_path), Lake(tmp_path / "lake")
    worker = RollWorker(lake.name, tmp_path, journal.lock, 1 << 20)
    roller = Roller(IngestSection(), journal, lake, worker)
    try:
        for _ in range(5):
            assert not await roller._try()
    finally:
        worker.close()
    assert (journal.stats.journal_batches, journal.stats.rejected_batches) == (3, {})
    await journal.close()


_PARENT = """
import sys, time
from pathlib import Path
from central.journal.flush_worker import RollWorker
lock = open(sys.argv[1], "a+")
import fcntl
fcntl.flock(lock, fcntl.LOCK_EX)
worker = RollWorker(sys.argv[2], Path(sys.argv[2]), lock)
worker.start()
print(worker._process.pid, flush=True)
time.sleep(60)
"""


def _holds_back_signals(process: int) -> bool:
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return bool(int(status["SigBlk"], 16) >> signal.SIGTERM - 1 & 1)


def test_it_dies_with_central_and_holds_the_journal_until_then(tmp_path: Path) -> None:
    lock = tmp_path / "journal.lock"
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(lock), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    until = time.monotonic() + 20
    while _holds_back_signals(worker):  # until it is tied to its parent
        assert time.monotonic() < until
        time.sleep(0.02)
    assert str(lock) in {str(each.readlink()) for each in Path(f"/proc/{worker}/fd").iterdir()}, "it inherits the lock"
    os.kill(worker, signal.SIGSTOP)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    with lock.open("a+") as file:
        while True:  # a stopped process dies of SIGKILL as well, and the lock is free no sooner
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                assert time.monotonic() < until, "the lock is never given up"
                time.sleep(0.005)
            else:
                break
        status = Path(f"/proc/{worker}/stat")
        assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] in "ZX"
