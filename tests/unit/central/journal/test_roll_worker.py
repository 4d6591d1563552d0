"""Segments written by a process of its own: the same files, and never two writers."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from central.config import IngestSection
from central.journal.flush import Roller
from central.journal.flush_worker import RollWorker
from central.journal.writer import Journal
from central.lake.segments import Lake
from tests.unit.central.journal.test_journal import Sender, opened


async def _with_rows(folder: Path) -> Journal:
    journal = opened(folder)
    sender = Sender(journal)
    for sequence in (1, 2, 3):
        sender.submit(sequence)
    await sender.heard(3)
    return journal


async def test_it_writes_what_a_thread_would_and_is_started_anew_when_it_dies(tmp_path: Path) -> None:
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


async def test_a_lake_that_cannot_be_written_is_told_by_it(tmp_path: Path) -> None:
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
    assert str(lock) in {str(each.readlink()) for each in Path(f"/proc/{worker}/fd").iterdir()}, (
        "it inherits the lock"
    )
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
