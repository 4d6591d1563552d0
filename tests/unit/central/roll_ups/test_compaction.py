"""Compaction, and what `whitepanda lake` says: the same rows once, also when it is killed between any two steps."""

import json
import os
import signal
import subprocess
import sys
from datetime import date
from pathlib import Path

import duckdb
import ibis
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from central.cli.lake import app
from central.lake.errors import LakeError
from central.lake.objects import Folder
from central.lake.schema import SAMPLES
from central.lake.segments import DAY_NS, Lake, segment_stem
from central.roll_ups.compaction import compact_day, remove_superseded
from central.roll_ups.store import SlotStore
from central.verify.checks import problems

DAY = date(1970, 1, 2)
SLOT_NS = 300 * 10**9


def write(lake: Lake, number: int, *, origin: str = "central-0", rows: int = 4, schema: pa.Schema = SAMPLES) -> None:
    known = {
        "host": ["h"] * rows,
        "sequence": [number] * rows,
        "start_unix_ns": [DAY_NS + number * 10 + row for row in range(rows)],
        "duration_ns": [10**10] * rows,
        "latency_sensitive": [True] * rows,
        "cpu_usage_cores": [1.0] * rows,
        "cpi": [1.5] * rows,
    }
    filled = {field.name: ["x" if field.type == pa.string() else None] * rows for field in SAMPLES}
    lake.write_segment(pa.table({**filled, **known}, schema=SAMPLES), segment_stem(origin, "0badcafe", number))


def rows(lake: Lake) -> list[tuple[int, int]]:
    view = ibis.duckdb.connect(threads=1)
    table = view.to_pyarrow(lake.samples(view))
    return sorted(zip(table["sequence"].to_pylist(), table["start_unix_ns"].to_pylist(), strict=True))


def rolled(lake: Lake):
    with duckdb.connect() as connection:
        return SlotStore(lake, SLOT_NS).roll_up(DAY, connection)


def verified(lake: Lake, *, is_quick: bool = False) -> list[str]:
    with duckdb.connect() as connection:
        return list(problems(lake, connection, is_quick=is_quick))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    for number in range(1, 6):
        write(lake, number)
    for number in range(1, 4):
        write(lake, number, origin="central-1")  # batches 1 to 3 came through both
    return lake


@pytest.mark.long
def test_small_segments_become_one_per_journal(lake: Lake) -> None:
    before = rows(lake)
    assert len(before) == 20
    assert compact_day(lake, DAY, None, min_sources=2).written == 0  # nothing is rolled up
    slots = rolled(lake)
    write(lake, 6)  # not rolled up yet
    done = compact_day(lake, DAY, slots, min_sources=2)
    assert (done.sources, done.written, done.rows) == (8, 2, 32)
    assert [each.name.rpartition("/")[2] for each in lake.segments()] == [
        "central-0-0badcafe-000000000001_000000000005",
        "central-0-0badcafe-000000000006",
        "central-1-0badcafe-000000000001_000000000003",
    ]
    assert [row for row in rows(lake) if row[0] != 6] == before
    assert remove_superseded(lake, grace_s=3600) == 0
    assert remove_superseded(lake, grace_s=0) == 8
    assert [row for row in rows(lake) if row[0] != 6] == before
    assert compact_day(lake, DAY, slots, min_sources=2).written == 0
    assert compact_day(lake, DAY, rolled(lake), min_sources=2).sources == 2  # a compacted one and a new one
    assert len(lake.segments()) == 2
    assert verified(lake) == []


@pytest.mark.long
def test_what_is_not_rolled_up_is_merged_by_itself_where_that_is_wanted(lake: Lake) -> None:
    before = rows(lake)
    rolled_up = rolled(lake)
    for number in range(6, 12):
        write(lake, number)
    assert compact_day(lake, DAY, rolled_up, min_sources=2).sources == 8
    assert compact_day(lake, DAY, rolled_up, min_sources=2, unrolled_too=True).sources == 6
    assert [each.name.rpartition("/")[2] for each in lake.segments()] == [
        "central-0-0badcafe-000000000001_000000000005",
        "central-0-0badcafe-000000000006_000000000011",
        "central-1-0badcafe-000000000001_000000000003",
    ]
    assert [row for row in rows(lake) if row[0] < 6] == before
    rolled(lake)
    assert verified(lake) == []


@pytest.mark.long
def test_few_late_windows_do_not_write_a_large_segment_again(lake: Lake) -> None:
    write(lake, 6, rows=2000)
    for number in range(7, 12):
        write(lake, number)
    assert compact_day(lake, DAY, rolled(lake), min_sources=2).sources == 14
    for number in range(12, 16):
        write(lake, number)
    assert compact_day(lake, DAY, rolled(lake)).sources == 4  # 16 rows, not these and the 2,040 before
    for number in range(16, 20):
        write(lake, number, rows=10)
    assert compact_day(lake, DAY, rolled(lake)).sources == 6  # 56 rows beside 2,040
    assert verified(lake) == []


@pytest.mark.long
def test_small_segments_become_one_row_group(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    for number in range(1, 41):
        write(lake, number, rows=3)
    before = rows(lake)
    sizes = sum(path.stat().st_size for path in (tmp_path / "lake").rglob("*.parquet"))
    assert compact_day(lake, DAY, rolled(lake), min_sources=2).written == 1
    remove_superseded(lake, grace_s=0)
    (merged,) = lake.segments()
    assert (merged.rows, merged.footer.num_row_groups) == (120, 1)
    assert merged.footer.serialized_size < sizes / 10, "a footer tells of each column of each row group"
    assert rows(lake) == before


@pytest.mark.long
@pytest.mark.parametrize("step", range(6))
def test_a_failure_at_any_step_leaves_every_row_once(lake: Lake, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    before, slots, steps = rows(lake), rolled(lake), iter(range(100))

    def failing(name: str) -> None:
        original = getattr(Folder, name)

        def either(self: Folder, *arguments: object) -> None:
            if next(steps) == step:
                raise OSError(5, "Input/output error")
            original(self, *arguments)

        monkeypatch.setattr(Folder, name, either)

    failing("publish")
    failing("remove")
    try:
        compact_day(lake, DAY, slots, min_sources=2)
        remove_superseded(lake, grace_s=0)
    except OSError:
        monkeypatch.undo()
    else:
        pytest.fail("nothing failed")
    assert rows(lake) == before
    assert verified(lake) == []
    compact_day(lake, DAY, slots, min_sources=2)
    remove_superseded(lake, grace_s=0)
    assert (rows(lake), len(list(lake.samples_dir.rglob("*.parquet")))) == (before, 2)


@pytest.mark.long
def test_kill_9_amid_compactions_leaves_every_row_once(lake: Lake) -> None:
    before = rows(lake)
    rolled(lake)
    program = (
        "import sys; from datetime import date; from central.lake.segments import Lake; "
        "from central.roll_ups.store import SlotStore\n"
        "from central.roll_ups.compaction import compact_day, remove_superseded\n"
        "lake = Lake(sys.argv[1]); slots = SlotStore(lake, 300 * 10**9).manifest(date(1970, 1, 2))\n"
        "import os, signal; from central.lake.objects import Folder; steps = iter(range(99)); at = int(sys.argv[2])\n"
        "def killing(name):\n"
        "    original = getattr(Folder, name)\n"
        "    def either(self, *a):\n"
        "        if next(steps) == at: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        original(self, *a)\n"
        "    setattr(Folder, name, either)\n"
        "killing('publish'); killing('remove')\n"
        "compact_day(lake, date(1970, 1, 2), slots, min_sources=2); remove_superseded(lake, grace_s=0)\n"
    )
    for at in (0, 1, 3):
        command = [sys.executable, "-c", program, str(lake.root), str(at)]
        assert (
            subprocess.run(command, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode
            == -signal.SIGKILL
        )
        assert rows(lake) == before
        assert verified(lake) == []


def test_verify_says_a_line_per_problem(lake: Lake) -> None:
    rolled(lake)
    first, second, third, *_ = lake.segments()
    data = bytearray(first.path.read_bytes())
    data[40] ^= 0xFF  # a page
    first.path.write_bytes(data)
    second.path.write_bytes(second.path.read_bytes()[:-20])
    newer = SAMPLES.with_metadata({b"whitepanda.schema": b"99"})
    pq.write_table(pq.read_table(third.path, partitioning=None).cast(newer), third.path)
    next(lake.samples_dir.parent.glob("slots/*/*/*-batches.parquet")).unlink()
    lake = Lake(lake.root)
    lines = verified(lake)
    assert len(lines) == 4
    assert f"{first.key} is damaged: its SHA-256 is " in lines[0]
    assert f"{second.key} is damaged: " in lines[1]
    assert lines[2].endswith(
        f"{third.key} has schema 99, this central reads 1; use the version of central that wrote it"
    )
    assert lines[3].startswith("slots of 1970-01-02, 1: slots/") and lines[3].endswith("-batches.parquet is not there")
    assert [line for line in verified(lake, is_quick=True) if first.key in line] == []
    result = CliRunner().invoke(app, ["verify", str(lake.root)])
    assert (result.exit_code, len(result.output.splitlines())) == (1, 4)
    second.path.unlink()
    with pytest.raises(LakeError, match="has schema 99"):
        rows(lake)


def test_a_batch_twice_in_one_journal_is_a_problem(lake: Lake) -> None:
    again = pq.read_table(lake.segments()[0].path, partitioning=None)
    lake.write_segment(again, segment_stem("central-0", "0badcafe", 77))
    [line] = verified(lake)
    assert line == (
        "day 1970-01-02: 1 batches are there twice within journal central-0-0badcafe (4 rows too many); was its "
        "state_dir restored from a backup?"
    )


def test_the_commands(lake: Lake) -> None:
    rolled(lake)
    run = CliRunner().invoke
    assert run(app, ["verify", str(lake.root)]).output == "8 segments, no problem\n"
    quick = run(app, ["verify", str(lake.root), "--quick"]).output
    assert quick == "8 segments, no problem in footers and manifests\n"
    reported = json.loads(run(app, ["stats", str(lake.root), "--json"]).output)
    assert reported["replicas"] == {"central-0": 20, "central-1": 12}
    [day] = reported["days"]
    assert {key: day[key] for key in ("day", "segments", "rows", "duplicate_rows", "samples_in_slots")} == {
        "day": "1970-01-02", "segments": 8, "rows": 32, "duplicate_rows": 12, "samples_in_slots": 20
    }  # fmt: skip
    reported = json.loads(
        run(app, ["compact", str(lake.root), "--min-segments", "2", "--grace-s", "0", "--json"]).output
    )
    assert reported["compacted"] == {"1970-01-02": {"sources": 8, "written": 2, "rows": 32}}
    assert (reported["removed"], reported["dropped"]) == (8, 0)
    assert "replica central-1: 12 rows" in run(app, ["stats", str(lake.root)]).output
    result = run(app, ["stats", str(lake.root / "nowhere")])
    assert str(result.exception).endswith("no such folder; central.lake_dir, or lake in central.state_dir")
