"""Damage in the lake: none goes unseen, a build of it fails or does without it, and never changes a coefficient."""

import io
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from central.build import methods
from central.build.builder import Builder
from central.cli import lake as lake_cli
from central.coefficients.versions import VersionStore
from central.config import BuildSection, LakeSection
from central.lake import checksums
from central.lake.errors import DamagedError, NotFiniteError
from central.lake.segments import Lake, Segment, segment_stem
from central.roll_ups.compaction import compact_day
from central.roll_ups.retention import drop_samples
from central.roll_ups.store import SlotStore
from tests.unit.central.build.test_builds import FIRST_DAY, write_day
from tests.unit.central.roll_ups.test_compaction import DAY, rolled, write
from whitepanda.common import log

SECTION = BuildSection(memory_limit_mib=256, threads=1, method="panda")


def swapped(one: Path, other: Path) -> None:
    """Give each file the other's bytes."""
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def flipped(path: Path, at: int) -> None:
    """Turn over one bit."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def verify(lake: Lake) -> tuple[int, list[str]]:
    """The exit code and the problems."""
    result = CliRunner().invoke(lake_cli.app, ["verify", str(lake.root), "--json"])
    reported = json.loads(result.output)
    return result.exit_code, reported["problems"]


def checked(segment: Segment) -> None:
    """Look at a segment as a roll-up does."""
    segment.check()
    segment.check_schema()


@pytest.fixture
def small(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "small")
    for number in (1, 2):
        write(lake, number)
    return lake


@pytest.fixture(scope="module")
def built_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lake = Lake(tmp_path_factory.mktemp("built") / "lake")
    for day in range(2):
        write_day(lake, day, day + 1)
    assert Builder(SECTION, lake).build_once() == 1
    return lake.root


@pytest.fixture
def lake(tmp_path: Path, built_before: Path) -> Lake:
    """Two days of which there is a version."""
    shutil.copytree(built_before, tmp_path / "lake")
    return Lake(tmp_path / "lake")


def test_whatever_bit_of_a_segment_flips_and_wherever_it_ends_is_seen(small: Lake) -> None:
    segment = small.segments()[0]
    segment.check()
    whole = segment.path.read_bytes()
    unseen = []
    for at in range(len(whole)):
        data = whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :]
        try:
            segment.check(io.BytesIO(data))
            unseen.append(at)
        except DamagedError:
            pass
    assert unseen == []
    for size in range(0, len(whole), 97):
        segment.path.write_bytes(whole[:size])
        cut = small.segments()[0]
        with pytest.raises(DamagedError):  # no footer: no seal either
            checked(cut)


@pytest.mark.long
def test_whatever_byte_of_a_manifest_changes_is_seen(small: Lake) -> None:
    rolled(small)
    (path,) = small.root.glob("slots/*/*/*.json")
    whole = path.read_bytes()
    store, unseen, reported = SlotStore(small, 300 * 10**9), [], set()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        try:
            unseen.append((at, store.manifests()))
        except DamagedError as error:
            reported.add(str(error).partition("; ")[2])
    assert unseen == []
    (remedy,) = reported
    assert remedy.startswith("restore it from a copy, or delete slots/slot=300/day=1970-01-02: ")


def test_a_long_file_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "long"
    body = bytes(range(256)) * (5 << 12)  # more than is looked through for the seal, and than one read
    path.write_bytes(body + checksums.PLACE.encode() + body[:3])
    checksums.seal_file(path, "a")
    for name, is_same in (("a", True), ("b", False)):
        with path.open("rb") as file:
            if is_same:
                checksums.check_file("lake", name, file, "remedy")
            else:
                with pytest.raises(DamagedError, match=r"^lake/b is damaged: its SHA-256 is .*; remedy$"):
                    checksums.check_file("lake", name, file, "remedy")
    with pytest.raises(ValueError, match="has no place for a seal"):
        checksums.seal_file(Path(__file__), "a")


@pytest.mark.long
def test_verify_names_what_is_swapped_or_damaged(lake: Lake) -> None:
    assert verify(lake) == (0, [])
    segments = [segment.path for segment in lake.segments()]
    slots = sorted(lake.root.glob("slots/*/*/*-slots.parquet"))
    manifests = sorted(lake.root.glob("slots/*/*/*.json"))
    states = sorted(lake.root.glob("state/*/*/*/pairs.parquet"))
    version = next(lake.root.glob("versions/*/*-coefficients.parquet"))
    for one, other in (segments, slots, states):
        swapped(one, other)
        code, problems = verify(lake)
        assert (code, len(problems)) == (1, 2)
        for path, line in zip((one, other), problems, strict=True):
            assert f"{path} is damaged: its SHA-256 is " in line
            assert "; restore it from a copy" in line or "; delete its folder" in line
        swapped(one, other)
    swapped(*manifests)
    code, (line,) = verify(lake)
    assert (code, "00000001.json is damaged" in line) == (1, True)
    swapped(*manifests)
    for path in (version, version.with_name("manifest.json"), states[0].with_name("digests.json")):
        flipped(path, 200)
        code, (line,) = verify(lake)
        assert (code, f"{lake.root}/{path.relative_to(lake.root).parts[0]}/" in line) == (1, True)
        flipped(path, 200)
    states[0].unlink()
    assert f"{states[0]} is damaged: it is gone; delete its folder" in verify(lake)[1][0]
    shutil.rmtree(states[0].parent)
    assert verify(lake) == (0, []), "a cache"


def test_a_damaged_segment_fails_the_build_until_it_is_restored(lake: Lake) -> None:
    log.configure("info")
    builder = Builder(SECTION, lake)
    before = builder.current
    write_day(lake, 2, 3)
    segment = lake.segments()[-1]
    flipped(segment.path, 4000)
    for _ in range(2):
        with pytest.raises(DamagedError, match=f"{segment.key} is damaged: its SHA-256"):
            builder.build_once()
        assert segment.key in builder.last_error
        assert "\n" not in builder.last_error
        assert (builder.damaged_files, builder.current) == (1, before)
    flipped(segment.path, 4000)
    assert builder.build_once() == 2
    assert (builder.damaged_files, builder.last_error) == (0, "")


@pytest.mark.parametrize("what", ["slots", "batches", "manifest"])
def test_damaged_slots_fail_the_build(lake: Lake, what: str) -> None:
    builder = Builder(SECTION, lake)
    folder = lake.root / "slots/slot=300" / f"day={FIRST_DAY}"
    (path,) = folder.glob("*.json" if what == "manifest" else f"*-{what}.parquet")
    flipped(path, path.stat().st_size // 2)
    shutil.rmtree(lake.root / "state")  # so the slots are needed
    write_day(lake, 0, 7)  # and what is known of batches
    with pytest.raises(DamagedError, match=f"{path.name} is damaged: .*or delete slots/slot=300/day=2026-11-01: "):
        builder.build_once()
    assert (builder.damaged_files, builder.current.version) == (1, 1)
    if what != "slots":
        return
    shutil.rmtree(folder)  # as the line says
    assert builder.build_once() == 2
    assert builder.damaged_files == 0
    assert builder.current.manifest.rows == 1800


def doubled(lake: Lake, day: str) -> Path:
    """Change state so that it reads well and says something else."""
    (path,) = lake.root.glob(f"state/*/day={day}/*/pairs.parquet")
    table = pq.read_table(path, partitioning=None)
    twice = pc.multiply(table["usage_cpi"], 2.0)
    pq.write_table(table.set_column(table.schema.get_field_index("usage_cpi"), "usage_cpi", twice), path)
    return path


def coefficients(builder: Builder) -> list[float]:
    return [row.value for row in builder.current.coefficients_page(0, 100)]


@pytest.mark.long
def test_damaged_state_is_made_again_and_reported_and_changes_no_coefficient(
    tmp_path: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log.configure("info")
    other = Lake(tmp_path / "other")
    shutil.copytree(lake.root, other.root)
    for each in (lake, other):
        write_day(each, 2, 3)
    right = Builder(SECTION, other)
    right.build_once()
    damaged = doubled(lake, "2026-11-01")
    builder = Builder(SECTION, lake)
    capsys.readouterr()
    assert builder.build_once() == 2
    assert coefficients(builder) == pytest.approx(coefficients(right), rel=1e-12)
    assert (builder.damaged_files, builder.last_days_computed) == (1, 2)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert f"day=2026-11-01/{damaged.parent.name}/pairs.parquet is damaged" in line
    assert builder.build_once() is None
    assert (builder.damaged_files, verify(lake)) == (0, (0, []))

    # The mutant: who does not look gets other coefficients.
    doubled(lake, "2026-11-01")
    write_day(lake, 3, 4)
    write_day(other, 3, 4)
    monkeypatch.setattr("central.build.state_cache.check_state", lambda _folder: None)
    assert (builder.build_once(), right.build_once()) == (3, 3)
    assert coefficients(builder) != pytest.approx(coefficients(right), rel=1e-3)


def test_a_damaged_version_is_not_taken_and_another_one_is_built(lake: Lake) -> None:
    write_day(lake, 2, 3)
    assert Builder(SECTION, lake).build_once() == 2
    for name in ("*-coefficients.parquet", "*-job_statistics.parquet", "manifest.json"):
        (path,) = (lake.root / "versions/00000002").glob(name)
        flipped(path, 300)
        builder = Builder(SECTION, lake)
        assert (builder.current.version, builder.damaged_files) == (1, 1)
        flipped(path, 300)
    flipped(path, 300)
    assert builder.build_once() == 3
    assert Builder(SECTION, lake).damaged_files == 0


def test_a_damaged_segment_gets_no_new_seal(lake: Lake, small: Lake) -> None:
    slots = rolled(small)
    segment = small.segments()[1]
    at = segment.path.read_bytes().index(b"whitepanda.version") + 22
    flipped(segment.path, at)  # no page, nothing that a reader minds
    assert pq.ParquetFile(segment.path, page_checksum_verification=True).read().num_rows == 4
    with pytest.raises(DamagedError, match=r"000000000002\.parquet is damaged"):
        compact_day(small, DAY, slots, min_sources=2)
    assert len(small.all_segments()) == 2

    for number in range(3):
        write_day(lake, 0, 10 + number)
    builder = Builder(SECTION, lake, lake_section=LakeSection())
    builder.build_once()
    segment = lake.segments(FIRST_DAY)[2]
    flipped(segment.path, 100)
    builder.maintain_once()
    assert (builder.damaged, builder.damaged_files) == ({"build": [], "maintenance": [segment.key]}, 1)
    flipped(segment.path, 100)
    builder.maintain_once()
    assert (builder.damaged_files, len(lake.segments(FIRST_DAY))) == (0, 1)


def with_value(table: pa.Table, column: str, value: float) -> pa.Table:
    """Put a value into the second row, and null, which is not known, into the third."""
    values = table[column].to_pylist()
    values[1], values[2] = value, None
    return table.set_column(table.schema.get_field_index(column), column, pa.array(values, pa.float64()))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", ["coefficient", "standard_error", "std_cpi"])
def test_numbers_that_are_none_make_no_version(lake: Lake, column: str, value: float) -> None:
    store = VersionStore(lake.objects)
    before = sorted(lake.root.glob("versions/*/*"))
    (statistics,) = lake.root.glob("versions/*/*-job_statistics.parquet")
    (coefficients,) = lake.root.glob("versions/*/*-coefficients.parquet")
    tables = [pq.read_table(path) for path in (statistics, coefficients)]
    odd = [with_value(each, column, value) if column in each.column_names else each for each in tables]
    expected = rf"{column} of 1 of 6 rows is not a finite number, the first of job 'job-1' \({value}\)"
    with pytest.raises(NotFiniteError, match=expected):
        store.write(store.manifest(1), *odd)
    assert sorted(lake.root.glob("versions/*/*")) == before
    assert store.write(store.manifest(1), *tables).version == 2


def test_a_build_of_numbers_that_are_none_fails(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[..., tuple[pa.Table, pa.Table]] = methods.solved

    def solved(*arguments: object) -> tuple[pa.Table, pa.Table]:
        statistics, found = original(*arguments)
        return statistics, with_value(found.sort_by("job"), "coefficient", math.nan)

    builder = Builder(SECTION, lake)
    write_day(lake, 2, 3)
    monkeypatch.setattr(methods, "solved", solved)
    with pytest.raises(NotFiniteError, match="coefficient of 1 of 6 rows is not a finite number"):
        builder.build_once()
    assert "a version must have finite numbers" in builder.last_error
    assert builder.current.version == 1
    assert builder.versions.numbers() == [1]


def test_the_draft_of_a_segment_is_sealed_before_it_has_its_name(small: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_path: Path, _name: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checksums, "seal_file", full)
    table = pq.read_table(small.segments()[0].path, partitioning=None)
    with pytest.raises(OSError, match="No space left"):
        small.write_segment(table, segment_stem("central-0", "0badcafe", 9))
    assert len(small.all_segments()) == 2
    assert not list(small.root.rglob("*.tmp"))


def test_samples_stay_where_the_slots_made_of_them_are_damaged(lake: Lake) -> None:
    manifests = SlotStore(lake, 300 * 10**9).manifests()
    batches = lake.root / manifests[FIRST_DAY].parts[0].batches
    flipped(batches, 300)
    with pytest.raises(DamagedError, match=batches.name):
        drop_samples(lake, manifests, raw_days=1)
    assert len(lake.segments()) == 2
    flipped(batches, 300)
    assert drop_samples(lake, manifests, raw_days=1) == 1


def test_slots_damaged_under_a_reader_are_reported(small: Lake) -> None:
    manifest = rolled(small)
    (path,) = small.root.glob("slots/*/*/*-slots.parquet")
    flipped(path, 300)
    with duckdb.connect() as connection, pytest.raises(DamagedError, match=path.name):
        SlotStore(small, 300 * 10**9).read(connection, [manifest])


def made_odd(path: Path, kind: str) -> None:
    """Put what is not a file in a file's place."""
    path.unlink()
    if kind == "loop":
        path.symlink_to(path.name)
    elif kind == "nowhere":
        path.symlink_to("nowhere")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()


@pytest.mark.parametrize("kind", ["loop", "nowhere", "pipe", "folder"])
def test_what_is_no_file_is_a_problem_of_its_own_and_ends_nothing_else(small: Lake, kind: str) -> None:
    manifest = rolled(small)
    odd, damaged = small.segments()
    flipped(damaged.path, 100)
    made_odd(odd.path, kind)
    code, found = verify(small)
    assert code == 1
    assert [line for line in found if f"{odd.key} is damaged: it is not a regular file, nor a link to one" in line]
    assert [line for line in found if f"{damaged.key} is damaged: its SHA-256" in line]
    for command in ("stats", "compact"):
        result = CliRunner().invoke(lake_cli.app, [command, str(small.root), *MIN_TWO[command]])
        assert isinstance(result.exception, DamagedError), result.output
        assert result.exception.name == odd.key

    for name in (manifest.parts[0].batches, manifest.parts[0].slots):
        made_odd(small.root / name, kind)
        assert [line for line in verify(small)[1] if name in line]
    [book] = small.root.glob("slots/*/*/*.json")
    made_odd(book, kind)
    assert [line for line in verify(small)[1] if f"{book} is damaged: it is not a regular file" in line]


MIN_TWO = {"stats": (), "compact": ("--min-segments", "2")}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["loop", "pipe", "folder"])
def test_state_that_is_no_file_is_made_again(lake: Lake, kind: str) -> None:
    for path in sorted(lake.root.glob("state/*/*/*/digests.json")):
        made_odd(path if kind == "loop" else path.with_name("pairs.parquet"), kind)
    code, found = verify(lake)
    assert (code, len(found)) == (1, 2)
    assert all("is damaged: " in line and "delete its folder: the next build" in line for line in found)
    write_day(lake, 1, 3)
    assert Builder(SECTION, lake).build_once() == 2
    assert verify(lake) == (0, [])


@pytest.mark.long
def test_state_without_digests_is_damaged(lake: Lake) -> None:
    for each in lake.root.glob("state/*/*/*"):
        (each / "digests.json").unlink()
    code, lines = verify(lake)
    assert (code, len(lines)) == (1, 2)
    assert "digests.json is damaged: it is gone; nothing is lost; delete its folder: the next build" in lines[0]
    write_day(lake, 1, 3)
    assert Builder(SECTION, lake).build_once() == 2
    assert verify(lake) == (0, [])
