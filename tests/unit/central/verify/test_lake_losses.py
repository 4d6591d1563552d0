"""What was deleted from the lake by hand is reported with day and rows; what central deletes by right never is."""

import json
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from central.cli.lake import app
from central.coefficients.versions import COEFFICIENTS, JOB_STATISTICS, Manifest, VersionStore
from central.lake import duckdb_connection
from central.lake.deletion_notes import deleted_through, note_deletion
from central.lake.objects import Folder
from central.lake.segments import Lake
from central.roll_ups.compaction import compact_day, remove_superseded
from central.roll_ups.retention import drop_samples, drop_slots
from central.roll_ups.store import SlotStore
from central.verify.checks import problems
from central.verify.losses import losses
from tests.unit.central.build.test_builds import FIRST_DAY, write_day

SLOT_NS = 300 * 10**9
DAYS = [FIRST_DAY + timedelta(days=number) for number in range(3)]
LOST = "the slots have their sums, the rows are lost: restore them from a copy"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three days of four segments, rolled up."""
    lake = Lake(tmp_path_factory.mktemp("made") / "lake")
    for number in range(12):
        write_day(lake, number // 4, number + 1)
    roll_up(lake)
    return lake.root


@pytest.fixture
def lake(made: Path, tmp_path: Path) -> Lake:
    """A copy of it."""
    return Lake(shutil.copytree(made, tmp_path / "lake"))


def roll_up(lake: Lake) -> SlotStore:
    slots = SlotStore(lake, SLOT_NS)
    with duckdb_connection.connect(threads=1) as connection:
        for day in lake.days():
            slots.roll_up(day, connection)
    return slots


def build(lake: Lake) -> int:
    """Publish a version of the lake's slots, as a build does. Returns its rows."""
    manifests = SlotStore(lake, SLOT_NS).manifests()
    rows = sum(manifest.samples for manifest in manifests.values())
    manifest = Manifest(
        version=0,
        created_unix_ns=0,
        slot_s=300.0,
        days=tuple(map(str, manifests)),
        segments=12,
        segments_digest="",
        rows=rows,
        job_statistics=0,
        coefficients=0,
        code_version="0",
    )
    VersionStore(lake.objects).write(manifest, JOB_STATISTICS.empty_table(), COEFFICIENTS.empty_table())
    return rows


def verified(lake: Lake) -> list[str]:
    with duckdb_connection.connect(threads=1) as connection:
        return list(problems(Lake(lake.root), connection, is_quick=True))


def test_a_segment_deleted_by_hand_is_named_with_its_day_and_rows(lake: Lake) -> None:
    assert verified(lake) == []
    segment = lake.segments(DAYS[1])[2]
    rows = segment.rows
    segment.path.unlink()
    [line] = verified(lake)
    assert line.startswith(f"{segment.key}: is not there, with {rows:,} rows that were rolled up; {LOST}")
    result = CliRunner().invoke(app, ["verify", str(lake.root), "--json"])
    assert (result.exit_code, json.loads(result.output)["problems"]) == (1, [line])


def test_segments_that_followed_each_other_are_one_line(lake: Lake) -> None:
    first, second, third, _ = lake.segments(DAYS[0])
    rows = first.rows + second.rows
    for segment in (first, second):
        segment.path.unlink()
    [line] = verified(lake)
    assert line.startswith(
        f"{first.key}: is not there, nor are 1 more up to roll 2 (or what they were merged into), with {rows:,} rows"
    )
    third.path.parent.rename(lake.root / "elsewhere")  # the whole day
    [line] = verified(lake)
    assert f"{first.key}: is not there, nor are 3 more up to roll 4 " in line


def test_what_was_never_rolled_up_is_in_no_book(lake: Lake) -> None:
    write_day(lake, 2, 13)
    lake.segments(DAYS[2])[-1].path.unlink()
    assert verified(lake) == []


def test_compaction_is_no_loss_but_its_segment_deleted_is(lake: Lake) -> None:
    for day, manifest in SlotStore(lake, SLOT_NS).manifests().items():
        assert compact_day(lake, day, manifest, min_sources=2).written == 1
    assert verified(lake) == []
    assert remove_superseded(lake, grace_s=0) == 12
    assert verified(lake) == []
    [merged] = lake.segments(DAYS[0])
    rows = merged.rows
    merged.path.unlink()
    [line] = verified(lake)
    assert f"nor are 3 more up to roll 4 (or what they were merged into), with {rows:,} rows" in line


def test_compaction_leaves_room_for_what_is_lost_and_a_restored_segment_counts_again(
    lake: Lake, tmp_path: Path
) -> None:
    rows = sum(segment.rows for segment in lake.segments(DAYS[0]))
    first, gone, *_ = lake.segments(DAYS[0])
    copy = gone.path.rename(tmp_path / "copy")
    assert compact_day(lake, DAYS[0], SlotStore(lake, SLOT_NS).manifest(DAYS[0]), min_sources=2).sources == 2
    remove_superseded(lake, grace_s=0)
    assert [segment.first for segment in lake.segments(DAYS[0])] == [first.first, 3]
    [line] = verified(lake)
    assert line.startswith(f"{gone.key}: is not there, with {gone_rows(copy)} rows that were rolled up; {LOST}")

    copy.rename(gone.path)
    assert verified(lake) == []
    assert sum(segment.rows for segment in lake.segments(DAYS[0])) == rows
    manifest = SlotStore(lake, SLOT_NS).manifest(DAYS[0])
    assert compact_day(lake, DAYS[0], manifest, min_sources=2).rows == rows
    assert verified(lake) == []


def gone_rows(path: Path) -> str:
    return f"{pq.read_metadata(path).num_rows:,}"


def test_a_loss_that_was_merged_over_is_still_reported(lake: Lake) -> None:
    gone = lake.segments(DAYS[0])[1]
    rows, all_rows = gone.rows, sum(segment.rows for segment in lake.segments(DAYS[0]))
    gone.path.unlink()
    manifest = SlotStore(lake, SLOT_NS).manifest(DAYS[0])
    assert manifest is not None
    compact_day(lake, DAYS[0], msgspec.structs.replace(manifest, rolled={}), min_sources=2)
    remove_superseded(lake, grace_s=0)
    [merged] = lake.segments(DAYS[0])
    [line] = verified(lake)
    assert line.startswith(
        f"{merged.key}: has {all_rows - rows:,} rows of the {all_rows:,} that were rolled up from its rolls; {LOST}"
    )


@pytest.mark.long
@pytest.mark.parametrize("step", range(9))
def test_retention_is_no_loss_wherever_it_is_killed(lake: Lake, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    slots = SlotStore(lake, SLOT_NS)
    left = iter(range(step))

    def remove(self: Folder, name: str) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        original(self, name)

    original = Folder.remove
    monkeypatch.setattr(Folder, "remove", remove)
    try:
        drop_samples(lake, slots.manifests(), raw_days=1)
    except KeyboardInterrupt:
        monkeypatch.undo()
    assert verified(lake) == []
    assert deleted_through(lake, "samples") == DAYS[1]
    lake.segments(DAYS[2])[0].path.unlink()  # a later day's still is one
    assert [line for line in verified(lake) if f"day={DAYS[2]}" in line] == verified(lake) != []


def test_late_windows_of_a_day_that_is_gone_are_no_loss(lake: Lake) -> None:
    drop_samples(lake, SlotStore(lake, SLOT_NS).manifests(), raw_days=1)
    write_day(lake, 0, 20)
    slots = roll_up(lake)
    assert verified(lake) == []
    drop_samples(lake, slots.manifests(), raw_days=1)
    assert verified(lake) == []


def test_the_command_says_that_a_day_was_meant_to_go(lake: Lake) -> None:
    shutil.rmtree(lake.segments(DAYS[0])[0].path.parent)
    assert len(verified(lake)) == 1
    result = CliRunner().invoke(app, ["compact", str(lake.root), "--raw-days", "2", "--json"])
    assert (result.exit_code, json.loads(result.output)["dropped"]) == (0, 0)
    assert verified(lake) == []


def test_a_day_of_slots_deleted_by_hand_is_reported_where_its_samples_are_gone_too(lake: Lake) -> None:
    rows = build(lake)
    store = SlotStore(lake, SLOT_NS)
    drop_samples(lake, store.manifests(), raw_days=2)
    kept = sum(manifest.samples for day, manifest in store.manifests().items() if day != DAYS[0])
    shutil.rmtree(lake.root / store.folder(DAYS[0]))
    [line] = verified(lake)
    assert line == (
        f"day {DAYS[0]}: neither slots nor samples are there, though version 1 was built from them (at least "
        f"{rows - kept:,} rows); restore {store.folder(DAYS[0])} from a copy, or the next build goes without the day"
    )
    shutil.rmtree(lake.root / store.folder(DAYS[1]))  # its samples are there: the next build rolls them up again
    assert len(verified(lake)) == 1


def test_slots_rolled_up_again_from_fewer_samples_are_reported(lake: Lake) -> None:
    rows = build(lake)
    lost = lake.segments(DAYS[0])[0]
    count = lost.rows
    lost.path.unlink()
    shutil.rmtree(lake.root / SlotStore(lake, SLOT_NS).folder(DAYS[0]))
    roll_up(lake)
    [line] = verified(lake)
    assert line.startswith(
        f"version 1 was built from {rows:,} rows, the slots of its days have {rows - count:,}: {count:,} rows are lost"
    )


def test_retention_of_slots_is_no_loss(lake: Lake) -> None:
    build(lake)
    store = SlotStore(lake, SLOT_NS)
    drop_samples(lake, store.manifests(), raw_days=1)
    assert drop_slots(lake, store, slot_days=1) == 2
    assert deleted_through(lake, "slots") == DAYS[1]
    assert verified(lake) == []


def test_a_manifest_that_cannot_be_read_is_one_problem_not_a_loss(lake: Lake) -> None:
    build(lake)
    path = next((lake.root / SlotStore(lake, SLOT_NS).folder(DAYS[0])).glob("*.json"))
    path.write_bytes(b"{")
    [line] = verified(lake)
    assert "is damaged" in line


def test_notes_of_retention_only_go_forward_and_one_stays(lake: Lake) -> None:
    for day in (DAYS[1], DAYS[0], DAYS[2]):
        note_deletion(lake, "samples", day)
    assert deleted_through(lake, "samples") == DAYS[2]
    assert deleted_through(lake, "slots") == date.min
    [note] = lake.objects.entries("retention")
    assert note.name == f"retention/samples-through-{DAYS[2]}.json"
    facts = json.loads(lake.objects.read(note.name))
    assert facts["through"] == DAYS[2].isoformat()
    assert datetime.fromtimestamp(facts["noted_unix_ns"] / 1e9, UTC).year >= 2026
    (lake.root / "retention" / "samples-through-soon.json").touch()  # another user's
    assert deleted_through(lake, "samples") == DAYS[2]


def meanwhile(lake: Lake, number: int) -> None:
    """All that central may delete or replace, in the order in which it does."""
    write_day(lake, 2, number)
    slots = roll_up(lake)
    manifests = slots.manifests()
    for day in lake.days():
        compact_day(lake, day, manifests.get(day), min_sources=2)
    remove_superseded(lake, grace_s=0)
    drop_samples(lake, manifests, raw_days=1)
    drop_slots(lake, slots, slot_days=1)
    slots.remove_unused(0.0)


@pytest.mark.parametrize("listing", range(8))
def test_what_central_deletes_meanwhile_is_no_loss(lake: Lake, monkeypatch: pytest.MonkeyPatch, listing: int) -> None:
    """Before and after each listing of the books and the samples."""
    build(lake)
    by_day = {day: lake.segments(day) for day in lake.days()}
    original: Callable[..., object] = Folder.entries
    left = iter(range(listing))

    def entries(self: Folder, prefix: str) -> list[object]:
        found = list(original(self, prefix)) if listing % 2 else None
        if next(left, None) is None:
            monkeypatch.setattr(Folder, "entries", original)
            meanwhile(lake, 30)
        return found if found is not None else list(original(self, prefix))

    monkeypatch.setattr(Folder, "entries", entries)
    assert list(losses(lake, [300.0], by_day)) == []


def test_after_another_length_of_slots_each_book_is_held_against_the_lake_by_itself(lake: Lake) -> None:
    manifest = SlotStore(lake, SLOT_NS).manifest(DAYS[0])
    compact_day(lake, DAYS[0], manifest, min_sources=2)
    remove_superseded(lake, grace_s=0)
    with duckdb_connection.connect(threads=1) as connection:
        for day in DAYS:  # its book has one entry of the first day, the other one's four
            SlotStore(lake, 2 * SLOT_NS).roll_up(day, connection)
    assert verified(lake) == []
    gone = lake.segments(DAYS[1])[0]
    gone.path.unlink()
    lines = [line for line in verified(lake) if "were rolled up" in line]
    assert len(lines) == 1 and lines[0].startswith(gone.key)
