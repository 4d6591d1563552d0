"""Central starts while `whitepanda lake compact` writes, or after it was killed: only a draft without owner goes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from central.journal.writer import Journal
from central.lake import drafts
from central.lake.schema import SAMPLES
from central.lake.segments import DAY_NS, Lake, segment_stem
from central.roll_ups.store import SlotStore
from tests.support.central_process import MAIN, ROOT, CentralProcess
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SEGMENTS, ROWS = 4, 150_000


@pytest.fixture
def central(tmp_path: Path) -> Iterator[CentralProcess]:
    process = CentralProcess(tmp_path, build="interval_s = 3600.0")
    yield process
    process.end()


@pytest.fixture
def origin(central: CentralProcess) -> str:
    """The journal's name, with segments of it in the lake that are rolled up to slots."""
    journal = Journal(central.state_dir, replica="central-0", commit_interval_s=0.001)
    journal._connection.close()
    journal.lock.close()
    lake, rng = Lake(central.lake_dir), np.random.default_rng(1)
    for number in range(1, SEGMENTS + 1):
        known = {
            "host": ["h"] * ROWS,
            "vm": ["v"] * ROWS,
            "sequence": [number] * ROWS,
            "start_unix_ns": DAY_NS + rng.integers(0, DAY_NS, ROWS),
            "duration_ns": [10**10] * ROWS,
            "latency_sensitive": [True] * ROWS,
            "cpu_usage_cores": rng.random(ROWS),
            "cpi": rng.random(ROWS) + 1,
        }
        filled = {each.name: ["x" if each.type == pa.string() else None] * ROWS for each in SAMPLES}
        table = pa.table({**filled, **known}, schema=SAMPLES)
        lake.write_segment(table, segment_stem("central-0", journal.journal_id, number))
    [day] = lake.days()
    with duckdb.connect() as connection:
        SlotStore(lake, 300 * 10**9).roll_up(day, connection)
    return journal.origin


def compacting(central: CentralProcess) -> tuple[subprocess.Popen[str], Path]:
    """Start `lake compact`, and pause it amid its draft."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])}
    command = [sys.executable, *MAIN, "lake", "compact", str(central.lake_dir)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found: list[Path] = []

    def has_begun() -> bool:
        assert process.poll() is None, process.communicate()[0]
        found[:] = [path for path in found_drafts(central) if path.stat().st_size > 4]
        return bool(found)

    try:
        wait_until(has_begun)
        process.send_signal(signal.SIGSTOP)
    except BaseException:
        process.kill()
        raise
    [draft] = found
    return process, draft


def found_drafts(central: CentralProcess) -> list[Path]:
    return list((central.lake_dir / "samples").glob("day=*/*.tmp"))


def start_and_look(central: CentralProcess, origin: str) -> None:
    """Start central and wait until it has removed what its predecessor left: a draft of a roll."""
    folder = next((central.lake_dir / "samples").glob("day=*"))
    left = folder / f"{origin}-{77:012d}.parquet.0badb001-1.tmp"
    left.write_bytes(b"PAR1")
    central.start()
    wait_until(lambda: not left.exists())


@pytest.mark.long
def test_a_compaction_continues_while_central_starts(central: CentralProcess, origin: str) -> None:
    process, draft = compacting(central)
    try:
        assert draft.exists()
        start_and_look(central, origin)
        assert found_drafts(central) == [draft]
        process.send_signal(signal.SIGCONT)
        reported = process.communicate(timeout=120)[0]
        assert process.returncode == 0, reported
        assert f"{SEGMENTS} segments into 1, {SEGMENTS * ROWS:,} rows" in reported
    finally:
        process.kill()
        process.wait()
    [segment] = Lake(central.lake_dir).segments()
    assert (segment.is_compacted, segment.rows, segment.origin) == (True, SEGMENTS * ROWS, origin)
    segment.check()
    assert found_drafts(central) == []
    assert central.stop() == 0


@pytest.mark.long
def test_the_draft_of_a_killed_compaction_is_removed(central: CentralProcess, origin: str) -> None:
    process, draft = compacting(central)
    process.kill()
    process.communicate()
    assert draft.exists()
    start_and_look(central, origin)
    wait_until(lambda: not draft.exists())
    assert sum(segment.rows for segment in Lake(central.lake_dir).segments()) == SEGMENTS * ROWS
    assert central.stop() == 0


def draft_of(folder: Path, boot: str, *, compacted: bool = True) -> Path:
    (folder / "samples" / "day=1970-01-02").mkdir(parents=True, exist_ok=True)
    last = "_000000000004" if compacted else ""
    path = folder / "samples" / "day=1970-01-02" / f"central-0-0badcafe-000000000001{last}.parquet{boot}.tmp"
    path.write_bytes(b"PAR1")
    return path


def aged(path: Path, seconds: float) -> None:
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_what_another_machine_left_goes_when_it_is_old(tmp_path: Path) -> None:
    """Its lock may not be seen here."""
    lake, origin = Lake(tmp_path), "central-0-0badcafe"
    path = draft_of(tmp_path, ".0badb001-1")
    aged(path, drafts.ABANDONED_S - 60)
    assert lake.remove_unfinished(origin) == 0
    aged(path, 61)
    assert lake.remove_unfinished(origin) == 1
    assert lake.remove_unfinished(origin) == 0
    draft_of(tmp_path, ".0badb001-1", compacted=False)
    assert lake.remove_unfinished("central-0-0badcaff") == 0, "another journal's"
    assert lake.remove_unfinished(origin) == 1, "a roll's of this journal, which has one owner"


def test_a_draft_that_is_open_is_never_removed(tmp_path: Path) -> None:
    with drafts.Draft(draft_of(tmp_path, "")) as draft:
        draft.file.close()  # its seal and its name come after that
        aged(draft.path, 10 * drafts.ABANDONED_S)
        assert not drafts.remove_abandoned(draft.path)
        assert not drafts.remove_abandoned(draft.path, is_own=True)
        assert draft.path.exists()
    assert not draft.path.exists()
