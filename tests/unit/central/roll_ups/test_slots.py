"""Slots: every window once, whenever and through whichever replica it comes; the sums are those of the samples."""

import random
from datetime import date

import duckdb
import ibis
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from central.build import panda_state
from central.lake import checksums
from central.lake.errors import LakeError
from central.lake.lease import FencedError
from central.lake.objects import Folder
from central.lake.schema import SAMPLES
from central.lake.segments import DAY_NS, Lake, segment_stem
from central.roll_ups import sql
from central.roll_ups import store as slots
from central.roll_ups.compaction import compact_day, remove_superseded
from central.roll_ups.retention import drop_samples
from central.roll_ups.store import SLOTS, SlotStore

DAY = date(1970, 1, 2)
SLOT_NS = 300 * 10**9
ORIGINS = ("central-0", "central-1", "central-2")


def batch(sequence: int, windows: int = 3) -> list[dict]:
    """One host's batch: windows of some tasks, the same whoever takes it."""
    rng = random.Random(sequence)
    return [
        {
            **{field.name: "x" if field.type == pa.string() else None for field in SAMPLES},
            "host": f"h{sequence % 2}",
            "spool_id": "s",
            "sequence": sequence,
            "vm": f"vm-{rng.randrange(3)}",
            "latency_sensitive": rng.random() < 0.5,
            "start_unix_ns": DAY_NS + rng.randrange(4) * 100 * 10**9,
            "duration_ns": rng.choice([0, 10**10, 3 * 10**10]),
            "cpi": rng.choice([None, float("nan"), 1.5, 2.25]),
            "cpu_usage_cores": rng.choice([float("nan"), 0.5, 2.0]),
            "cycles": rng.choice([None, 2.0**61]) if window == 0 else 7,
            "instructions": 5,
        }
        for window in range(windows)
    ]


def write(lake: Lake, origin: int, first: int, sequences: list[int]) -> None:
    rows = [row for sequence in sequences for row in batch(sequence)]
    lake.write_segment(pa.Table.from_pylist(rows, SAMPLES), segment_stem(ORIGINS[origin], "0badcafe", first))


@pytest.fixture
def connection():
    with duckdb.connect(config={"threads": 1}) as connection:
        yield connection


def found(lake: Lake) -> list[tuple]:
    view = ibis.duckdb.connect(threads=1)
    table = SlotStore(lake, SLOT_NS).read(view, SlotStore(lake, SLOT_NS).manifests().values())
    columns = ["machine", "slot_start_ns", "vm", "job", "platform", "latency_sensitive", "usage", "cpi"]
    return sorted((tuple(row[name] for name in columns) for row in view.to_pyarrow(table).to_pylist()), key=repr)


def expected(lake: Lake) -> list[tuple]:
    """What `panda_state.task_slots` makes of the reading view."""
    view = ibis.duckdb.connect(threads=1)
    table = panda_state.task_slots(lake.samples(view), SLOT_NS)
    columns = ["machine", "slot_start_ns", "vm", "job", "platform", "latency_sensitive", "usage", "cpi"]
    return sorted((tuple(row[name] for name in columns) for row in view.to_pyarrow(table).to_pylist()), key=repr)


def assert_same(given: list[tuple], wanted: list[tuple]) -> None:
    assert [row[:6] for row in given] == [row[:6] for row in wanted]
    for one, other in zip(given, wanted, strict=True):
        for value, wish in zip(one[6:], other[6:], strict=True):
            assert value == (None if wish is None else pytest.approx(wish, rel=1e-12))


segment = st.tuples(st.integers(0, 2), st.lists(st.integers(1, 12), min_size=1, max_size=5, unique=True))


@pytest.mark.long
@settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(st.lists(st.tuples(segment, st.booleans(), st.booleans()), min_size=1, max_size=6))
def test_slots_are_those_of_the_reading_view_whatever_comes_when(tmp_path_factory, connection, steps) -> None:
    lake = Lake(tmp_path_factory.mktemp("lake"))
    store, taken = SlotStore(lake, SLOT_NS), [set(), set(), set()]
    for first, ((origin, sequences), is_rolled, is_compacted) in enumerate(steps, 1):
        new = [sequence for sequence in sequences if sequence not in taken[origin]]  # a journal takes a batch once
        taken[origin].update(new)
        if new:
            write(lake, origin, first, new)
        if is_rolled:
            store.roll_up(DAY, connection)
        if is_compacted:
            compact_day(lake, DAY, store.manifest(DAY), min_sources=2)
            remove_superseded(lake, grace_s=0)
    manifest = store.roll_up(DAY, connection)
    wanted = expected(lake)
    if manifest is None:
        assert wanted == []
        return
    assert_same(found(lake), wanted)
    once, every = set().union(*taken), sum(map(len, taken))
    assert (manifest.samples, manifest.duplicates) == (3 * len(once), 3 * (every - len(once)))


def test_sums_of_a_slot_by_hand(tmp_path, connection) -> None:
    rows = batch(1, 4)
    for row, cpi, usage, seconds in zip(
        rows, [1.0, None, 4.0, float("nan")], [1.0, 2.0, float("nan"), 3.0], [10, 20, 30, 40], strict=True
    ):
        row.update(
            vm="v",
            latency_sensitive=True,
            start_unix_ns=DAY_NS + SLOT_NS - 1,
            duration_ns=seconds * 10**9,
            cpi=cpi,
            cpu_usage_cores=usage,
            cycles=None,
            instructions=2,
        )
    lake = Lake(tmp_path)
    lake.write_segment(pa.Table.from_pylist(rows, SAMPLES), segment_stem("central-0", "0badcafe", 1))
    manifest = SlotStore(lake, SLOT_NS).roll_up(DAY, connection)
    table = pq.read_table(tmp_path / manifest.parts[0].slots)
    assert table.schema.names == SLOTS.names
    [row] = table.to_pylist()
    wanted = {
        "windows": 4, "duration_ns": 100 * 10**9, "cycles": None, "instructions": 8,
        "cpu_usage_cores_ns": (10 + 40 + 120) * 1e9, "cpu_usage_cores_time_ns": 70 * 10**9,
        "cpu_usage_cores_min": 1.0, "cpu_usage_cores_max": 3.0, "cpu_usage_cores_count": 3,
        "cpi_ns": 130e9, "cpi_time_ns": 40 * 10**9, "cpi_min": 1.0, "cpi_max": 4.0, "cpi_count": 2,
        "cycles_ns": None, "cycles_time_ns": 0, "cycles_min": None, "cycles_max": None, "cycles_count": 0,
    }  # fmt: skip
    assert {name: row[name] for name in wanted} == wanted
    assert row["slot_start_ns"] == DAY_NS
    assert found(lake) == [("x", DAY_NS, "v", "x", "x", True, 170 / 70, 3.25)]


def test_sums_beyond_63_bits_are_the_largest_number_and_cost_no_other_vm(tmp_path, connection, monkeypatch) -> None:
    most, lake = 2**63 - 1, Lake(tmp_path)
    row = dict(batch(1, 1)[0], start_unix_ns=DAY_NS, cpi=None, cpu_usage_cores=0.5, cycles=7, duration_ns=10**10)
    for number in range(1, 4):
        monkeypatch.setattr(slots, "_GROWTH", 1000 if number == 3 else 0)
        absurd = row | {
            "vm": "bad",
            "sequence": 2 * number,
            "cycles": 2.0**63,
            "instructions": 2.0**63,
            "duration_ns": most,
        }
        rows = [row | {"sequence": 2 * number + 1}, absurd, absurd]
        segment = segment_stem("central-0", "0badcafe", number)
        lake.write_segment(pa.Table.from_pylist(rows, SAMPLES), segment)
        manifest = SlotStore(lake, SLOT_NS).roll_up(DAY, connection)
        by_vm = {each[2]: each for each in found(lake)}
        assert by_vm[row["vm"]][-2:] == (0.5, None)
        assert 0 < by_vm["bad"][-2] < 5  # its own usage is off; no build fails for it
    [part] = manifest.parts[:1]
    table = pq.read_table(tmp_path / part.slots).to_pylist()
    sums = {each["vm"]: (each["duration_ns"], each["cycles"], each["instructions"]) for each in table}
    assert sums == {row["vm"]: (3 * 10**10, 3 * 7, 3 * 5), "bad": (most, most, most)}


def test_many_parts_become_one(tmp_path, connection, monkeypatch) -> None:
    lake, store = Lake(tmp_path), SlotStore(Lake(tmp_path), SLOT_NS)
    for number in range(1, 6):
        monkeypatch.setattr(slots, "_GROWTH", 1000 if number == 4 else 0)
        write(lake, number % 2, number, [number, 20])
        manifest = store.roll_up(DAY, connection)
        assert len(manifest.parts) == [1, 2, 3, 1, 2][number - 1]
    assert manifest.samples == 6 * 3
    assert store.remove_unused(0) == 4 + 3 * 2  # manifests before the last; parts that were merged
    assert store.roll_up(DAY, connection) == manifest
    assert_same(found(lake), expected_once(tmp_path))


def test_parts_grow_so_that_a_day_has_few(tmp_path, connection) -> None:
    lake, store = Lake(tmp_path), SlotStore(Lake(tmp_path), SLOT_NS)
    parts = []
    for number in range(1, 41):
        rows = [dict(row, vm=f"vm-{number}", duration_ns=10**10) for row in batch(number)]
        lake.write_segment(pa.Table.from_pylist(rows, SAMPLES), segment_stem(ORIGINS[0], "0badcafe", number))
        manifest = store.roll_up(DAY, connection)
        parts.append(len(manifest.parts))
    assert max(parts) <= 6
    sizes = [part.slot_rows for part in manifest.parts]
    assert sizes == sorted(sizes, reverse=True)
    assert manifest.samples == 40 * 3
    assert_same(found(lake), expected(lake))


def expected_once(folder) -> list[tuple]:
    """Slots of the batches of `test_many_parts_become_one`, each once."""
    lake = Lake(folder / "again")
    write(lake, 0, 1, [1, 2, 3, 4, 5, 20])
    return expected(lake)


def test_slots_outlive_samples_and_late_windows_still_count_once(tmp_path, connection) -> None:
    lake, store = Lake(tmp_path), SlotStore(Lake(tmp_path), SLOT_NS)
    write(lake, 0, 1, [1, 2])
    write(lake, 0, 2, [3])
    later = batch(50)
    for row in later:
        row["start_unix_ns"] += 10 * DAY_NS
    lake.write_segment(pa.Table.from_pylist(later, SAMPLES), segment_stem("central-0", "0badcafe", 9))
    assert drop_samples(lake, store.manifests(), raw_days=5) == 0  # nothing has been rolled up
    store.roll_up(DAY, connection)
    assert drop_samples(lake, store.manifests(), raw_days=5) == 2
    assert lake.days() == [date(1970, 1, 12)]
    before = found(lake)
    write(lake, 1, 1, [2, 3])  # the other replica's, taken from its journal only now
    assert store.roll_up(DAY, connection).duplicates == 6
    assert_same(found(lake), before)
    write(lake, 1, 2, [4])
    assert store.roll_up(DAY, connection).samples == 12
    assert drop_samples(lake, store.manifests(), raw_days=5) == 2


@pytest.mark.parametrize("step", ["slots", "batches", "manifest", "after"])
def test_a_roll_up_that_fails_at_any_step_is_done_again(tmp_path, connection, monkeypatch, step) -> None:
    lake, store = Lake(tmp_path), SlotStore(Lake(tmp_path), SLOT_NS)
    write(lake, 0, 1, [1, 2])
    store.roll_up(DAY, connection)
    write(lake, 0, 2, [3, 4])
    publish, create = Folder.publish, Folder.create

    def failing_publish(self, draft, name):
        if f"-{step}." in name:
            raise OSError(28, "No space left")
        publish(self, draft, name)

    def failing_create(self, name, data):
        if step == "after":
            create(self, name, data)
        raise OSError(28, "No space left")

    monkeypatch.setattr(Folder, "publish", failing_publish)
    if step in {"manifest", "after"}:
        monkeypatch.setattr(Folder, "create", failing_create)
    with pytest.raises(OSError, match="No space left"):
        store.roll_up(DAY, connection)
    monkeypatch.undo()
    assert store.roll_up(DAY, connection).samples == 12
    assert_same(found(lake), expected(lake))
    assert not list(tmp_path.rglob("*.tmp"))


def test_the_lease_is_renewed_between_the_chunks_of_a_day_and_its_loss_ends_the_work(
    tmp_path, connection, monkeypatch
) -> None:
    lake, store = Lake(tmp_path), SlotStore(Lake(tmp_path), SLOT_NS)
    for number in range(4):
        rows = [dict(row, machine=f"machine-{number}", duration_ns=10**10) for row in batch(number + 1)]
        lake.write_segment(pa.Table.from_pylist(rows, SAMPLES), segment_stem(ORIGINS[0], "0badcafe", number + 1))
    monkeypatch.setattr(sql, "_CHUNK_ROWS", 0)  # one machine at a time
    checks = []

    def check() -> None:
        checks.append(True)
        if len(checks) == 3:
            raise FencedError("overtaken")

    with pytest.raises(FencedError):
        store.roll_up(DAY, connection, check)
    assert not list((tmp_path / "slots").rglob("*.*"))  # neither a manifest nor a draft
    checks += [True] * 3
    manifest = store.roll_up(DAY, connection, check)
    assert len(checks) == 3 + 3 + 4
    assert manifest.samples == sum(segment.rows for segment in lake.segments())
    assert_same(found(lake), expected(lake))


def test_two_builders_at_once_count_once(tmp_path, connection, monkeypatch) -> None:
    lake, store = Lake(tmp_path), SlotStore(Lake(tmp_path), SLOT_NS)
    write(lake, 0, 1, [1, 2])
    create, others = Folder.create, []

    def late(self, name, data):
        if not others:  # another builder is quicker
            others.append(True)
            with duckdb.connect() as own:
                SlotStore(lake, SLOT_NS).roll_up(DAY, own)
        create(self, name, data)

    monkeypatch.setattr(Folder, "create", late)
    assert store.roll_up(DAY, connection).number == 1
    assert len(list(tmp_path.rglob("*-slots.parquet"))) == 1
    assert_same(found(lake), expected(lake))


def test_what_is_newer_or_damaged_is_reported_in_a_line(tmp_path, connection) -> None:
    lake, store = Lake(tmp_path), SlotStore(Lake(tmp_path), SLOT_NS)
    write(lake, 0, 1, [1])
    manifest = store.roll_up(DAY, connection)
    path = tmp_path / "slots/slot=300/day=1970-01-02/00000001.json"
    newer = msgspec.json.encode(msgspec.structs.replace(manifest, schema=2, seal=checksums.PLACE))
    path.write_bytes(checksums.sealed(newer, str(path.relative_to(tmp_path))))
    with pytest.raises(
        LakeError, match=r"00000001\.json has schema 2, this central reads 1; use the version of central that wrote it"
    ):
        store.manifests()
    path.write_text("{")
    with pytest.raises(LakeError, match=r"00000001\.json is damaged"):
        store.manifests()


def test_rolls_compacted_across_what_is_in_other_slots_are_refused(tmp_path, connection) -> None:
    lake = Lake(tmp_path)
    write(lake, 0, 1, [1])
    other = SlotStore(lake, 60 * 10**9)
    other.roll_up(DAY, connection)
    write(lake, 0, 2, [2])
    store = SlotStore(lake, SLOT_NS)
    compact_day(lake, DAY, store.roll_up(DAY, connection), min_sources=2)
    with pytest.raises(LakeError, match="only some are in the slots of 60 s"):
        other.roll_up(DAY, connection)
