import errno
import os
import resource
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import ibis
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from central.lake import segments as lake_module
from central.lake.errors import DamagedError
from central.lake.schema import SAMPLES
from central.lake.segments import DAY_NS, Lake, day_of, segment_stem


def table(*rows: tuple[str, int, int]) -> pa.Table:
    """Rows of (host, sequence, start_unix_ns)."""
    known = {
        "host": [host for host, _, _ in rows],
        "sequence": [sequence for _, sequence, _ in rows],
        "start_unix_ns": [start for _, _, start in rows],
        "latency_sensitive": [False] * len(rows),
        "duration_ns": [1] * len(rows),
        "cpu_usage_cores": [1.0] * len(rows),
    }
    filled = {f.name: ["x" if f.type == pa.string() else None] * len(rows) for f in SAMPLES}
    return pa.table({**filled, **known}, schema=SAMPLES)


def read(lake: Lake, days=None) -> list[tuple[str, int, int]]:
    view = ibis.duckdb.connect()
    found = view.to_pyarrow(lake.samples(view, days))
    assert found.schema.names == SAMPLES.names
    return sorted(zip(*(found[n].to_pylist() for n in ("host", "sequence", "start_unix_ns")), strict=True))


A, B = segment_stem("central-0", "0000000a", 1), segment_stem("central-1", "0000000b", 1)
C = segment_stem("central-2", "0000000c", 1)


def test_an_empty_lake_reads_as_no_rows(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "nowhere")
    assert (lake.days(), lake.segments(), read(lake)) == ([], [], [])
    assert lake.write_segment(SAMPLES.empty_table(), A) == []


def test_one_file_per_day_with_its_origin(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    rows = [("h", 1, 0), ("h", 1, DAY_NS - 1), ("h", 1, DAY_NS), ("h", 2, 20_000 * DAY_NS)]
    written = lake.write_segment(table(*rows), A, {"replica": "central-0"})
    assert [segment.name for segment in written] == [
        "day=1970-01-01/central-0-0000000a-000000000001",
        "day=1970-01-02/central-0-0000000a-000000000001",
        "day=2024-10-04/central-0-0000000a-000000000001",
    ]
    assert [segment.rows for segment in written] == [2, 1, 1]
    assert {segment.origin for segment in written} == {"central-0-0000000a"}
    assert lake.segments() == written
    assert lake.days() == [date(1970, 1, 1), date(1970, 1, 2), date(2024, 10, 4)]
    assert lake.segments(date(1970, 1, 2)) == written[1:2]
    assert written[0].footer.metadata[b"whitepanda.schema"] == b"1"
    assert written[0].footer.metadata[b"whitepanda.replica"] == b"central-0"
    assert read(lake) == sorted(rows)
    assert read(lake, [date(1970, 1, 2), date(1980, 1, 1)]) == [("h", 1, DAY_NS)]
    assert read(lake, []) == []
    assert day_of(20_000 * DAY_NS + 5) == date(2024, 10, 4)


def test_the_same_roll_again_changes_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    rows = table(("h", 1, 0), ("h", 2, DAY_NS))
    lake.write_segment(rows, A)
    before = {segment.name: segment.path.read_bytes() for segment in lake.segments()}
    lake.write_segment(rows, A)
    assert {segment.name: segment.path.read_bytes() for segment in lake.segments()} == before


def test_a_batch_that_two_replicas_took_is_read_once(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write_segment(table(("h", 1, 0), ("h", 1, 5), ("h", 1, DAY_NS), ("h", 2, 7)), A)
    lake.write_segment(table(("h", 1, 0), ("h", 1, 5), ("h", 1, DAY_NS), ("h", 3, 7), ("g", 1, 0)), B)
    once = [("g", 1, 0), ("h", 1, 0), ("h", 1, 5), ("h", 1, DAY_NS), ("h", 2, 7), ("h", 3, 7)]
    assert read(lake) == once
    days = lake.days()
    assert sorted(row for day in days for row in read(lake, [day])) == once
    lake.write_segment(table(("h", 3, 7), ("h", 1, 5), ("h", 1, 0), ("i", 1, 1)), C)
    assert read(lake) == sorted([*once, ("i", 1, 1)])


def test_the_view_of_several_replicas_holds_no_copy_of_all_rows(tmp_path: Path) -> None:
    """What an engine keeps is the batches that are there twice; it would keep whatever the query names twice."""
    lake = Lake(tmp_path)
    for stem in (A, B):
        lake.write_segment(table(("h", 1, 0), ("h", 2, 7)), stem)
    view = ibis.duckdb.connect()
    ((_, plan),) = view.con.execute(f"EXPLAIN {ibis.to_sql(lake.samples(view), 'duckdb')}").fetchall()
    assert "ANTI" in plan
    assert "CTE" not in plan


def test_what_is_no_segment_is_not_read(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    [good] = lake.write_segment(table(("h", 1, 0)), A)
    folder = good.path.parent
    (folder / f"{A}.parquet.tmp").write_bytes(b"half")
    (folder / "notes.txt").write_text("?")
    (folder / "other.parquet").write_bytes(b"?")
    (lake.samples_dir / "day=never").mkdir()
    (lake.samples_dir / "day=1999-01-01").mkdir()
    assert lake.segments() == [good]
    assert lake.days() == [date(1970, 1, 1)]
    assert read(lake) == [("h", 1, 0)]
    assert lake.remove_unfinished("central-1-0000000a") == 0
    assert lake.remove_unfinished("central-0-0000000a") == 1
    assert not list(folder.glob("*.tmp"))


def test_a_full_disk_leaves_no_half_segment(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    rng = np.random.default_rng(1)
    rows = table(*[("h", int(n), int(n) % (2 * DAY_NS)) for n in rng.integers(0, 2**62, 50_000)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # a disk that is full in the middle of a file
    try:
        with pytest.raises(OSError, match="File too large"):
            lake.write_segment(rows, A)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert lake.segments() == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert sum(segment.rows for segment in lake.write_segment(rows, A)) == 50_000


def test_a_writer_that_fails_at_a_later_piece_leaves_nothing(tmp_path: Path) -> None:
    def pieces() -> Iterator[pa.Table]:
        yield table(("h", 1, 0), ("h", 1, DAY_NS))
        raise OSError(errno.EIO, "the journal cannot be read")

    lake = Lake(tmp_path)
    with pytest.raises(OSError, match="cannot be read"):
        lake.write_pieces(pieces, A)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_pieces_of_a_roll_are_row_groups_of_one_file_per_day(tmp_path: Path) -> None:
    tables = [
        table(("h", 1, 0), ("h", 1, DAY_NS)),
        SAMPLES.empty_table(),
        table(("h", 2, 5), ("h", 2, 6)),
        table(("h", 3, DAY_NS + 1)),
    ]
    lake = Lake(tmp_path)
    first, second = lake.write_pieces(lambda: iter(tables), A, {"rows": "1-9"})
    assert (first.rows, first.footer.num_row_groups) == (3, 2)
    assert (second.rows, second.footer.num_row_groups) == (2, 2)
    assert first.footer.metadata[b"whitepanda.rows"] == b"1-9"
    assert pq.read_table(first.path, partitioning=None).schema.equals(SAMPLES)
    assert read(lake) == [
        ("h", 1, 0), ("h", 1, DAY_NS), ("h", 2, 5), ("h", 2, 6), ("h", 3, DAY_NS + 1)
    ]  # fmt: skip
    content = first.path.read_bytes()
    lake.write_pieces(lambda: iter(tables), A, {"rows": "1-9"})
    assert first.path.read_bytes() == content


def test_a_roll_of_many_days_never_has_many_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_module, "_OPEN_FILES", 3)
    most = 0

    def pieces() -> Iterator[pa.Table]:
        nonlocal most
        for part in range(2):
            yield table(*[("h", part + 1, (9 - day) * DAY_NS + part) for day in range(10)])
            most = max(most, len(list(tmp_path.rglob("*.tmp"))))

    lake = Lake(tmp_path)
    segments = lake.write_pieces(pieces, A)
    assert most == 3
    assert [(segment.rows, segment.day.day) for segment in segments] == [(2, day) for day in range(1, 11)]
    assert lake.segments() == segments
    assert read(lake) == [("h", part + 1, day * DAY_NS + part) for part in range(2) for day in range(10)]


def test_a_segment_is_flushed_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(os, "fsync", lambda _fd: calls.append("flush"))
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, to: (calls.append("rename"), replace(self, to)))
    lake = Lake(tmp_path)
    [segment] = lake.write_segment(table(("h", 1, 0)), A)
    calls = calls[calls.index("rename") - 1 :]  # before that, the new folders' names
    assert calls == ["flush", "rename", "flush"]
    assert pq.read_table(segment.path).num_rows == 1


def test_a_segment_keeps_no_footer(tmp_path: Path) -> None:
    """A footer takes 50 KB: a lake of many small segments would fill central's memory."""
    (segment,) = Lake(tmp_path).write_segment(table(("h", 1, 0)), A)
    segment.check_schema()
    assert segment.rows == 1
    assert not any(isinstance(value, pq.FileMetaData) for value in vars(segment).values())


def test_a_damaged_schema_is_named(tmp_path: Path) -> None:
    (segment,) = Lake(tmp_path).write_segment(table(("h", 1, 0)), A)
    key = b"whitepanda.schema\x18\x01"
    whole = segment.path.read_bytes()
    assert whole.count(key) == 1
    before, after = whole.split(key)
    segment.path.write_bytes(before + key + b"x" + after[1:])
    (found,) = Lake(tmp_path).segments()
    with pytest.raises(DamagedError, match="its schema is b'x'"):
        _ = found.rows
