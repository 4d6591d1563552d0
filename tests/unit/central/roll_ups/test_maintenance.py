"""What central does for its lake once a day: what of it, when, and that it costs neither a row nor a version."""

import json
import os
from datetime import date, timedelta

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from central.build import methods
from central.build.builder import Builder
from central.build.status import BuildStoppedError
from central.config import BuildSection, LakeSection
from central.lake import checksums
from central.lake.errors import DamagedError, LakeError
from central.lake.lease import FencedError
from central.lake.manifests import ManifestCommit
from central.lake.objects import Folder
from central.lake.segments import DAY_NS, Lake
from central.roll_ups import maintenance as maintenance_module
from central.roll_ups import store as slots
from central.roll_ups.compaction import Compacted, compact_day
from central.roll_ups.maintenance import LakeMaintenance, MaintenanceDone
from central.roll_ups.retention import drop_slots
from central.roll_ups.store import SlotStore
from central.verify.checks import problems
from tests.unit.central.build.test_build_loop import InThread
from tests.unit.central.build.test_builds import FIRST_DAY, write_day
from whitepanda.common import log

HOUR_NS = 3600 * 10**9
SLOT_NS = 300 * 10**9
SECTION = BuildSection(memory_limit_mib=256, threads=1, method="panda", late_interval_s=0)


class Clock:
    """Stands still in the evening of the lake's last day."""

    def __init__(self, day: date = FIRST_DAY + timedelta(days=3)) -> None:
        self.unix_ns = (day - date(1970, 1, 1)).days * DAY_NS + 20 * HOUR_NS

    def __call__(self) -> int:
        return self.unix_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lake(tmp_path) -> Lake:
    """Four days of five segments."""
    lake = Lake(tmp_path / "lake")
    for number in range(20):
        write_day(lake, number // 5, number + 1)
    return lake


def builder(lake, clock, name="central-0", build_days=31, **section) -> Builder:
    build = msgspec.structs.replace(SECTION, days=build_days)
    return Builder(build, lake, clock_unix_ns=clock, holder=name, lake_section=LakeSection(**section))


def after_build(builder) -> int | None:
    """Build, then do what the lake needs, as central does."""
    number = builder.build_once()
    builder.maintain_once()
    return number


def segments(lake) -> list[int]:
    return [len(lake.segments(FIRST_DAY + timedelta(days=day))) for day in range(4)]


def rolled(lake) -> SlotStore:
    """Its slots, with every day in them."""
    slots = SlotStore(lake, SLOT_NS)
    with duckdb.connect() as connection:
        for day in lake.days():
            slots.roll_up(day, connection)
    return slots


def verified(lake) -> list[str]:
    with duckdb.connect() as connection:
        return list(problems(lake, connection))


@pytest.mark.long
def test_finished_days_are_compacted_once_a_day_by_one_replica(lake, clock, capsys):
    log.configure("info")
    one, other = (builder(lake, clock, f"central-{number}") for number in range(2))
    assert after_build(one) == 1
    assert segments(lake) == [1, 1, 1, 5]  # the last one is not finished
    assert "lake maintained" in capsys.readouterr().err
    assert (
        (lake.root / "maintenance/2026-11-04.json").read_text().startswith('{"days_compacted":3,"segments_merged":15,')
    )
    for number in range(20, 25):  # late ones of the first day
        write_day(lake, 0, number + 1)
    assert [after_build(other), after_build(other), after_build(one)] == [1, 2, 2]
    assert segments(lake) == [6, 1, 1, 5]
    assert "lake maintained" not in capsys.readouterr().err
    clock.unix_ns += 5 * HOUR_NS
    assert after_build(other) is None  # nothing new to build, but the next day
    assert segments(lake) == [1, 1, 1, 5]
    assert after_build(one) is None
    assert sorted(path.name for path in (lake.root / "maintenance").iterdir()) == ["2026-11-04.json", "2026-11-05.json"]
    assert one.current.manifest.rows == 25 * 600
    assert verified(lake) == []


@pytest.mark.long
def test_very_many_small_segments_are_merged_before_the_day_is_over(lake, clock, monkeypatch):
    """One host with a row of each old day at each roll must not fill the lake with files."""
    monkeypatch.setattr(maintenance_module, "_CROWD", 40)
    built = builder(lake, clock, build_days=2)
    after_build(built)
    for number in range(20, 40):  # of the two finished days, of which builds take one
        write_day(lake, 1 + number % 2, number + 1)
    after_build(built)
    assert segments(lake) == [1, 11, 11, 5]  # 20 small segments are no crowd
    for number in range(40, 70):
        write_day(lake, 1 + number % 2, number + 1)
    after_build(built)
    assert segments(lake) == [1, 1, 1, 5]
    assert sorted(path.name for path in (lake.root / "maintenance").iterdir()) == ["2026-11-04.json"]
    assert verified(lake) == []
    assert sum(segment.rows for segment in lake.segments()) == 70 * 600


@pytest.mark.long
def test_small_segments_of_days_that_builds_let_wait_are_merged(lake, monkeypatch):
    monkeypatch.setattr(maintenance_module, "_CROWD", 40)
    section = msgspec.structs.replace(SECTION, late_interval_s=86400.0)
    built = Builder(section, lake, lake_section=LakeSection())
    after_build(built)
    for number in range(20, 80):
        write_day(lake, number % 3, number + 1)
    after_build(built)
    assert built.current.manifest.rows == 40 * 600, "builds let late windows of all but two days wait"
    assert segments(lake) == [2, 2, 1, 5]
    assert verified(lake) == []
    later = Builder(SECTION, lake)
    later.build_once()
    assert later.current.manifest.rows == 80 * 600


def test_what_a_merge_had_to_leave_is_no_crowd_again(lake, clock, monkeypatch):
    monkeypatch.setattr(maintenance_module, "_CROWD", 8)
    once = LakeMaintenance(LakeSection(), lake, SlotStore(lake, SLOT_NS), clock_unix_ns=clock)
    assert once.is_crowded()
    monkeypatch.setattr(maintenance_module.compaction, "compact_day", lambda *_arguments, **_named: Compacted())
    once.compact(lambda: None)
    assert not once.is_crowded()
    for number in range(20, 28):
        write_day(lake, 0, number + 1)
    assert not once.is_crowded()
    write_day(lake, 1, 29)
    assert once.is_crowded()


def test_few_segments_of_each_of_many_journals_are_no_crowd(tmp_path, clock, monkeypatch):
    """They are too few to be merged."""
    monkeypatch.setattr(maintenance_module, "_CROWD", 4)
    lake = Lake(tmp_path / "lake")
    for number in range(12):
        write_day(lake, 0, number + 1, replica=f"central-{number // 3}")
    write_day(lake, 1, 13)
    once = LakeMaintenance(LakeSection(), lake, SlotStore(lake, SLOT_NS), clock_unix_ns=clock)
    assert not once.is_crowded()


@pytest.mark.long
def test_segments_that_were_merged_during_their_roll_up_are_read_again(lake, monkeypatch):
    """As by a replica that has the lease by now; else rolls of which only some are in slots would stop all builds."""
    store, publish, merged = SlotStore(lake, SLOT_NS), ManifestCommit.publish, []

    def late(self, name):
        if not merged:
            write_day(lake, 0, 21)  # a roll that this roll-up has not seen
            merged.append(compact_day(lake, FIRST_DAY, None, unrolled_too=True))
        return publish(self, name)

    monkeypatch.setattr(ManifestCommit, "publish", late)
    with duckdb.connect() as connection:
        manifest = store.roll_up(FIRST_DAY, connection)
    assert merged[0].sources == 6
    assert (manifest.number, manifest.samples) == (1, 6 * 600)
    assert verified(lake) == []


@pytest.mark.long
def test_crowded_days_stay_where_nothing_is_to_be_merged(lake, clock, monkeypatch):
    monkeypatch.setattr(maintenance_module, "_CROWD", 0)
    built = builder(lake, clock, compact=False)
    after_build(built)
    assert segments(lake) == [5, 5, 5, 5]


@pytest.mark.long
async def test_a_version_is_in_force_before_the_lake_is_taken_care_of(tmp_path, lake, clock, monkeypatch):
    reported = []
    daemon = InThread(tmp_path, lake, SECTION, clock_unix_ns=clock)
    built = daemon.here = builder(lake, clock)
    daemon.follower.on_version.append(lambda version: reported.append(version.version))
    original = LakeMaintenance.run

    def late(self, check):
        reported.append("maintenance")
        return original(self, check)

    monkeypatch.setattr(LakeMaintenance, "run", late)
    await daemon.build_and_announce()
    assert reported == [1, "maintenance"]
    assert segments(lake) == [1, 1, 1, 5]
    clock.unix_ns += 24 * HOUR_NS
    built.stop()
    with pytest.raises(BuildStoppedError):
        built.maintain_once()
    assert builder(lake, clock, "another").lease.acquire(), "given back"


def test_nothing_is_done_where_it_is_off_or_another_builds(lake, clock):
    maintenance = LakeMaintenance(LakeSection(compact=False), lake, rolled(lake), clock_unix_ns=clock)
    assert maintenance.run(lambda: None) == MaintenanceDone()
    assert segments(lake) == [5, 5, 5, 5]
    (lake.root / "maintenance/2026-11-04.json").unlink()
    busy = builder(lake, clock, "busy")
    assert busy.lease.acquire()
    assert after_build(builder(lake, clock)) is None
    assert segments(lake) == [5, 5, 5, 5]


@pytest.mark.long
def test_old_samples_and_older_slots_go(lake, clock):
    built = builder(lake, clock, raw_days=2, slot_days=3)
    assert after_build(built) == 1
    assert segments(lake) == [0, 0, 1, 5]
    kept = SlotStore(lake, SLOT_NS).manifests()
    assert sorted(kept) == [FIRST_DAY + timedelta(days=day) for day in (1, 2, 3)]
    assert not list((lake.root / "slots/slot=300").glob("day=2026-11-01/*"))
    assert built.current.manifest.rows == 20 * 600  # was built before
    assert after_build(built) == 2
    assert built.current.manifest.rows == 15 * 600
    assert verified(lake) == []


def test_slots_of_days_with_samples_stay(lake, clock):
    assert drop_slots(lake, rolled(lake), slot_days=1) == 0
    assert len(SlotStore(lake, SLOT_NS).manifests()) == 4


@pytest.mark.long
@pytest.mark.parametrize("step", range(4))
def test_a_kill_while_slots_go_leaves_a_whole_day_or_none(lake, clock, monkeypatch, step):
    slots = rolled(lake)
    LakeMaintenance(LakeSection(raw_days=2), lake, slots, clock_unix_ns=clock).run(lambda: None)
    original, steps = Folder.remove, iter(range(100))

    def failing(self: Folder, name: str) -> None:
        if next(steps) == step:
            raise OSError(5, "Input/output error")
        original(self, name)

    monkeypatch.setattr(Folder, "remove", failing)
    try:
        drop_slots(lake, slots, slot_days=3)
    except OSError:
        assert step < 3  # a manifest, and the two files of its part
    monkeypatch.undo()
    assert verified(lake) == []
    drop_slots(lake, slots, slot_days=3)
    slots.remove_unused(0.0)
    assert FIRST_DAY not in slots.manifests()
    assert not list((lake.root / "slots/slot=300").glob("day=2026-11-01/*"))


@pytest.mark.long
def test_a_failure_is_reported_once_costs_no_version_and_is_tried_again(lake, clock, monkeypatch, capsys):
    log.configure("info")
    original = LakeMaintenance._run

    def failing(self, check):
        raise LakeError("segment x is damaged")

    monkeypatch.setattr(LakeMaintenance, "_run", failing)
    built = builder(lake, clock)
    assert after_build(built) == 1
    assert after_build(built) is None
    reported = capsys.readouterr().err
    assert reported.count("lake maintenance failed: nothing compacted, no old days deleted") == 1
    assert "LakeError: segment x is damaged" in reported
    assert built.last_error == ""
    monkeypatch.setattr(LakeMaintenance, "_run", original)
    assert after_build(built) is None
    assert segments(lake) == [1, 1, 1, 5]


@pytest.mark.long
def test_who_loses_the_lease_stops(lake, clock):
    slots = rolled(lake)
    looks = iter(range(100))

    def check() -> None:
        if next(looks) == 4:  # after the first day's segment
            raise FencedError("another one has it")

    maintenance = LakeMaintenance(LakeSection(), lake, slots, clock_unix_ns=clock)
    with pytest.raises(FencedError):
        maintenance.run(check)
    assert segments(lake)[1:] == [5, 5, 5]
    assert not list((lake.root / "maintenance").glob("*"))
    assert verified(lake) == []
    assert maintenance.run(lambda: None) == MaintenanceDone(days_compacted=2, segments_merged=10)
    assert segments(lake) == [1, 1, 1, 5]


def reseal(lake) -> None:
    """Let the manifests of slots have the digests of what is there now."""
    for path in lake.root.glob("slots/*/*/*.json"):
        content = json.loads(path.read_text()) | {"seal": checksums.PLACE}
        for part in content["parts"]:
            for what in ("slots", "batches"):
                part[f"{what}_sha256"] = checksums.digest_of(lake.root / part[what])
        name = str(path.relative_to(lake.root))
        path.write_bytes(checksums.sealed(json.dumps(content).encode(), name))


@pytest.mark.long
def test_verify_reads_files_of_batches(lake, clock):
    manifest = rolled(lake).manifest(FIRST_DAY)
    path = lake.root / manifest.parts[0].batches
    whole = pq.read_table(path)
    assert whole.to_pylist() == [{"host": "h", "spool_id": "s", "first": 1, "last": 5}]
    pq.write_table(pa.concat_tables([whole, whole]), path)
    reseal(lake)
    assert verified(lake) == ["slots of 2026-11-01: 1 ranges of batches overlap; some windows are in the slots twice"]
    other = whole.set_column(0, "host", pa.array(["i"])).cast(whole.schema)
    pq.write_table(pa.concat_tables([whole, other]), path)
    reseal(lake)
    assert verified(lake) == []
    pq.write_table(whole.set_column(3, "last", pa.array([0], whole.schema.field("last").type)), path)
    reseal(lake)
    assert [line.rpartition(": ")[2] for line in verified(lake)] == ["a range of batches ends before it begins"]
    path.write_bytes(b"PAR1 nonsense PAR1")
    reseal(lake)
    (line,) = verified(lake)
    assert line.startswith(f"{manifest.parts[0].batches}: cannot be read: ")
    os.truncate(path, 0)
    reseal(lake)
    assert len(verified(lake)) == 1


def flip(path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def day(number) -> date:
    return FIRST_DAY + timedelta(days=number)


def test_a_damaged_segment_leaves_the_other_days_compacted(lake, clock):
    slots = rolled(lake)
    flip(lake.segments(day(0))[1].path)
    with pytest.raises(DamagedError, match="day=2026-11-01"):
        LakeMaintenance(LakeSection(), lake, slots, clock_unix_ns=clock).run(lambda: None)
    assert segments(lake) == [5, 1, 1, 5]


@pytest.mark.long
@pytest.mark.parametrize("what", ["slots", "batches", "manifest"])
def test_damaged_slots_keep_the_samples_of_their_own_day(lake, clock, what):
    slots = rolled(lake)
    manifest = slots.manifest(day(1))
    name = (
        f"{slots.folder(day(1))}/{manifest.number:08d}.json" if what == "manifest" else getattr(manifest.parts[0], what)
    )
    flip(lake.root / name)
    before = sorted((lake.root / slots.folder(day(1))).iterdir())
    maintenance = LakeMaintenance(LakeSection(compact=False, raw_days=1), lake, slots, clock_unix_ns=clock, grace_s=0)
    with pytest.raises(DamagedError, match="day=2026-11-02"):
        maintenance.run(lambda: None)
    assert segments(lake) == [0, 5, 0, 5]
    assert sorted((lake.root / slots.folder(day(1))).iterdir()) == before


def without_host_1(monkeypatch, day: int) -> None:
    """Let the roll-up of a day's rows of one machine fail for want of memory."""
    original = slots.write_part

    def write(connection, lake, new, *arguments):
        if any(each.day == FIRST_DAY + timedelta(days=day) for each in new) and "host-1" not in arguments[-1]:
            raise MemoryError
        return original(connection, lake, new, *arguments)

    monkeypatch.setattr(slots, "write_part", write)


@pytest.mark.long
def test_samples_of_a_machine_left_out_are_kept_until_a_build_takes_them(lake, clock, monkeypatch):
    without_host_1(monkeypatch, 0)
    built = builder(lake, clock, raw_days=2)
    assert after_build(built) == 1
    manifest = built.current.manifest
    assert (manifest.machines_left_out, built.last_error) == (("host-1",), "")
    assert manifest.rows < 20 * 600
    # The first two days are past retention; compaction and the others' retention work on.
    assert segments(lake) == [1, 0, 1, 5]
    assert verified(lake) == []
    monkeypatch.undo()
    SlotStore(lake, SLOT_NS).remove(FIRST_DAY)  # as the guide says: have that day rolled up again
    clock.unix_ns += 24 * HOUR_NS
    assert after_build(built) == 2
    assert (built.current.manifest.machines_left_out, built.current.manifest.rows) == ((), 20 * 600)
    assert segments(lake) == [0, 0, 1, 5]
    assert verified(lake) == []


@pytest.mark.long
def test_samples_of_a_machine_left_out_go_when_no_build_looks_at_their_day(lake, clock, monkeypatch):
    without_host_1(monkeypatch, 0)
    built = builder(lake, clock, raw_days=2)
    assert after_build(built) == 1
    clock.unix_ns += 24 * HOUR_NS
    few_days = Builder(
        msgspec.structs.replace(SECTION, days=3), lake, clock_unix_ns=clock, lake_section=LakeSection(raw_days=2)
    )
    assert after_build(few_days) == 2
    assert segments(lake) == [0, 0, 1, 5]
    assert few_days.current.manifest.machines_left_out == ()
    assert verified(lake) == []


@pytest.mark.long
def test_a_machine_left_out_of_a_state_is_in_the_slots_so_retention_continues(lake, clock, monkeypatch):
    original = methods.write

    def write(method, running, rows, *arguments):
        if "host-1" in running.collect(rows.select("machine").distinct())["machine"].to_pylist():
            raise ArithmeticError
        original(method, running, rows, *arguments)

    monkeypatch.setattr(methods, "write", write)
    built = builder(lake, clock, raw_days=2)
    assert after_build(built) == 1
    assert (built.current.manifest.machines_left_out, built.current.manifest.rows) == (("host-1",), 20 * 600)
    assert segments(lake) == [0, 0, 1, 5]
    assert verified(lake) == []
