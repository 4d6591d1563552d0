"""The blocks of docs/open-the-lake.md see each window once, whatever lies in the lake."""

import importlib.util
import shutil
from pathlib import Path

import duckdb
import ibis
import pytest

from central.lake.segments import Lake
from central.roll_ups.compaction import compact_day, remove_superseded
from tests.support.lake_reader import block, by_polars
from tests.unit.central.roll_ups.test_compaction import DAY, rolled, write

pytestmark = pytest.mark.integration


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Flushes that a merged one replaces, copies of their batches by a second replica, and a draft."""
    lake = Lake(tmp_path / "lake")
    for number in range(1, 5):
        write(lake, number)
    for number in (2, 3):
        write(lake, number, origin="central-1")
    assert compact_day(lake, DAY, rolled(lake), min_sources=3).written == 1
    write(lake, 9)
    (lake.samples_dir / f"day={DAY}" / "central-0-0badcafe-000000000011.parquet.0-1.tmp").write_bytes(b"PAR1")
    assert len(lake.all_segments()) > len(lake.segments()) > 1
    return lake


def truth(lake: Lake) -> list[tuple[int, int]]:
    """The rows of the reading view."""
    found = lake.samples(ibis.duckdb.connect()).select("sequence", "start_unix_ns").to_pyarrow()
    rows = sorted(zip(found["sequence"].to_pylist(), found["start_unix_ns"].to_pylist(), strict=True))
    assert sum(segment.rows for segment in lake.all_segments()) > len(rows) == len(set(rows)) > 0
    return rows


@pytest.fixture(params=["with sources", "without"])
def either(request: pytest.FixtureRequest, lake: Lake) -> Lake:
    if request.param == "without":
        assert remove_superseded(lake, grace_s=0.0) > 0
    return lake


def test_polars(either: Lake) -> None:
    assert sorted(by_polars(either.name).select("sequence", "start_unix_ns").collect().iter_rows()) == truth(either)
    assert by_polars(either.name).select("day").unique().collect().item() == str(DAY)


def test_duckdb(either: Lake) -> None:
    with duckdb.connect() as connection:
        counts = connection.execute(block("DuckDB").replace("LAKE", either.name)).fetchall()
        rows = connection.execute("SELECT sequence, start_unix_ns FROM windows").fetchall()
    assert sorted(rows) == truth(either)
    assert counts == [(DAY, len(rows))]


@pytest.mark.long
def test_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("pyspark") is None or shutil.which("java") is None:
        pytest.skip("needs the extra spark, and Java")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[1] --conf spark.ui.enabled=false pyspark-shell")
    scope: dict[str, object] = {}
    exec(block("Spark").replace("LAKE", lake.name), scope)  # noqa: S102 - the page's own code
    try:
        rows = scope["windows"].select("sequence", "start_unix_ns").collect()  # type: ignore[attr-defined]
    finally:
        scope["spark"].stop()  # type: ignore[attr-defined]
    assert sorted((int(row[0]), row[1]) for row in rows) == truth(lake)
    assert str(DAY) in capsys.readouterr().out
