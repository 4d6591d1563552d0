"""History against plain numpy: slots and windows, replicas, migrations, gaps, days; pages; cancelled questions."""

# ruff: noqa: S608 - SQL with paths of this test
import threading
import time
from collections import defaultdict
from datetime import date

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from central.history import files, queries
from central.history.queries import METRICS, Scope
from central.history.reader import FleetHistory
from central.history.steps import Steps, choose_steps
from central.lake.errors import LakeError, SlowError, StoppedError
from central.lake.schema import SAMPLES
from central.lake.segment_times import SegmentTimes
from central.lake.segments import DAY_NS, Lake, segment_stem
from central.roll_ups import compaction
from central.roll_ups.compaction import compact_day
from central.roll_ups.store import SlotStore

S = 10**9
SLOT = 300 * S
DAY = 20_000 * DAY_NS  # 2024-10-04
METRIC, OTHER = "cpi", "cpu_usage_cores"


def window(vm: str, at: int, sequence: int, **values: object) -> dict:
    """One window of 10 s; its batch is the host's and has this sequence number."""
    host = values.pop("host", "h1")
    return {
        **{field.name: "x" if field.type == pa.string() else None for field in SAMPLES},
        "host": host,
        "machine": host,
        "spool_id": "s",
        "sequence": sequence,
        "vm": vm,
        "job": f"job-{vm[0]}",
        "latency_sensitive": False,
        "start_unix_ns": at,
        "duration_ns": 10 * S,
        METRIC: 1.0,
        OTHER: 0.5,
        **values,
    }


def write(lake: Lake, rows: list[dict], first: int, replica: str = "central-0") -> None:
    lake.write_segment(pa.Table.from_pylist(rows, SAMPLES), segment_stem(replica, "0badcafe", first))


def roll_up(lake: Lake, *days: int) -> None:
    with duckdb.connect(config={"threads": 1}) as connection:
        for day in days:
            SlotStore(lake, SLOT).roll_up(date.fromordinal(719_163 + day // DAY_NS), connection)


def asked(lake: Lake, scope: Scope, steps: Steps, *metrics: str, **more: object):
    history = FleetHistory(lake, SegmentTimes(lake), SLOT)
    return history.series(scope, metrics or (METRIC,), steps, **{"limit": 100, **more})


def oracle(rows: list[dict], steps: Steps, vm: str, metric: str) -> dict[str, np.ndarray]:
    """What steps of a VM should be, by plain Python: `rows` have each batch once."""
    found = defaultdict(list)
    for row in rows:
        if row["vm"] == vm and steps.since <= row["start_unix_ns"] < steps.until:
            value = row[metric]
            if value is not None and not np.isnan(value):
                found[(row["start_unix_ns"] - steps.since) // steps.length_ns].append((value, row["duration_ns"]))
    made = {name: np.full(steps.count, 0.0 if name == "count" else np.nan) for name in ("mean", "min", "max", "count")}
    for step, values in found.items():
        value, weight = np.array(values, dtype=float).T
        made["mean"][step] = (value * weight).sum() / weight.sum()
        made["min"][step], made["max"][step], made["count"][step] = value.min(), value.max(), len(value)
    return made


def assert_is(lines, rows: list[dict], steps: Steps, metrics=(METRIC, OTHER)) -> None:
    for metric in metrics:
        wanted = oracle(rows, steps, lines.vm, metric)
        for name, values in lines.values[metric].items():
            np.testing.assert_allclose(values, wanted[name], rtol=1e-9, err_msg=f"{lines.vm} {metric} {name}")


@pytest.fixture
def lake(tmp_path) -> Lake:
    return Lake(tmp_path)


def random_rows(seed: int, since: int, until: int, vms: int = 3) -> list[dict]:
    """Windows of VMs with gaps, values that are not known, and windows of several lengths."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(vms):
        for at in range(since, until, 10 * S):
            if rng.random() < 0.2:
                continue
            value = rng.choice([None, float("nan"), 1.0, 2.5, 7.25], p=[0.1, 0.1, 0.3, 0.3, 0.2])
            rows.append(
                window(
                    f"vm-{number}",
                    at,
                    len(rows),
                    **{METRIC: value, OTHER: rng.random()},
                    duration_ns=int(rng.integers(1, 11)) * S,
                )
            )
    return rows


@pytest.mark.parametrize("is_compacted", [False, True])
def test_steps_across_slots_windows_and_midnight_are_those_of_plain_numpy(lake, is_compacted) -> None:
    rows = random_rows(1, DAY - 1500 * S, DAY + 2700 * S)
    parts = np.array_split(np.arange(len(rows)), 5)
    shuffled = sorted(range(len(rows)), key=lambda place: rows[place]["start_unix_ns"])
    for first, part in enumerate(parts, 1):
        write(lake, [rows[shuffled[place]] for place in part], first)
        if first == 3:  # the rest is not rolled up
            roll_up(lake, DAY - DAY_NS, DAY)
    if is_compacted:
        manifest = SlotStore(lake, SLOT).manifest(date(2024, 10, 3))
        compact_day(lake, date(2024, 10, 3), manifest, min_sources=2)
    steps = Steps(DAY - 1800 * S, DAY + 3000 * S, 600 * S, is_from_slots=True)
    found = asked(lake, Scope(vms=("vm-0", "vm-1", "vm-2")), steps, METRIC, OTHER)
    assert [each.vm for each in found.vms] == ["vm-0", "vm-1", "vm-2"] and not found.has_more
    for lines in found.vms:
        assert_is(lines, rows, steps)
        assert lines.job == "job-v" and set(lines.hosts) <= {"h1", ""}
    short = Steps(DAY - 60 * S, DAY + 90 * S, 30 * S, is_from_slots=False)
    for lines in asked(lake, Scope(hosts=("h1",)), short, METRIC, OTHER).vms:
        assert_is(lines, rows, short)


@pytest.mark.parametrize("is_from_slots", [False, True])
def test_a_batch_that_two_replicas_took_counts_once(lake, is_from_slots) -> None:
    both = [window("a", DAY + k * 10 * S, k, cpi=float(k + 1)) for k in range(6)]
    late = [window("a", DAY + 60 * S + k * 10 * S, 100 + k, cpi=9.0) for k in range(3)]
    write(lake, both, 1, "central-1")
    roll_up(lake, DAY)
    write(lake, [*both, *late], 1, "central-0")  # came later, is not rolled up
    write(lake, [window("a", DAY - 10 * S, 2)], 2, "central-0")  # the same number on another day is no copy
    write(lake, late, 3, "central-2")
    steps = Steps(DAY - SLOT, DAY + SLOT, SLOT, is_from_slots)
    [lines] = asked(lake, Scope(vms=("a",)), steps).vms
    assert lines.values[METRIC]["count"].tolist() == [1, 9]
    assert_is(lines, [*both, *late, window("a", DAY - 10 * S, 2)], steps, [METRIC])


def test_copies_of_what_is_rolled_up_would_be_noticed(lake, monkeypatch) -> None:
    """The mutant of the test above: segments whose batches the slots may have are not compared with them."""
    monkeypatch.setattr(files, "_is_shared", lambda *_: False)
    with pytest.raises(AssertionError):
        test_a_batch_that_two_replicas_took_counts_once(lake, is_from_slots=True)


def test_a_vm_that_moved_is_one_line_with_its_hosts(lake) -> None:
    rows = [window("a", DAY + k * 60 * S, k, host="h1" if k < 3 else "h2", cpi=float(k)) for k in range(6)]
    write(lake, rows, 1)
    steps = Steps(DAY, DAY + 480 * S, 60 * S, is_from_slots=False)
    [lines] = asked(lake, Scope(vms=("a",)), steps).vms
    assert lines.hosts == ["h1"] * 3 + ["h2"] * 3 + [""] * 2
    assert_is(lines, rows, steps, [METRIC])
    [lines] = asked(lake, Scope(hosts=("h2",)), steps).vms
    assert lines.values[METRIC]["count"].tolist() == [0, 0, 0, 1, 1, 1, 0, 0]


def test_what_is_not_known_is_told_from_what_is_not_there(lake) -> None:
    write(lake, [window("a", DAY, 1, cpi=None), window("a", DAY + 30 * S, 2, cpi=float("nan"))], 1)
    steps = Steps(DAY, DAY + 60 * S, 10 * S, is_from_slots=False)
    [lines] = asked(lake, Scope(vms=("a", "nobody")), steps, METRIC, OTHER).vms
    assert lines.windows.tolist() == [1, 0, 0, 1, 0, 0]
    assert np.isnan(lines.values[METRIC]["mean"]).all() and not lines.values[METRIC]["count"].any()
    assert lines.values[OTHER]["count"].tolist() == [1, 0, 0, 1, 0, 0]


def test_pages_of_a_jobs_vms_have_each_once(lake) -> None:
    write(lake, [window(f"{'ab'[k % 2]}{k:02}", DAY, k) for k in range(20)], 1)
    roll_up(lake, DAY)
    write(lake, [window(f"a{k:02}", DAY + 10 * S, 100 + k) for k in range(20, 25)], 2)
    steps = Steps(DAY, DAY + SLOT, SLOT, is_from_slots=True)
    found, after, has_more = [], "", True
    while has_more:
        page = asked(lake, Scope(jobs=("job-a",)), steps, limit=4, after=after)
        assert 1 <= len(page.vms) <= 4
        found += [each.vm for each in page.vms]
        after, has_more = found[-1], page.has_more
    assert found == [*(f"a{k:02}" for k in range(0, 20, 2)), *(f"a{k:02}" for k in range(20, 25))]


def test_all_metrics_of_the_lake_can_be_asked(lake) -> None:
    write(lake, [window("a", DAY, 1, **dict.fromkeys(METRICS, 2))], 1)
    for is_from_slots in (False, True):
        roll_up(lake, *([DAY] if is_from_slots else []))
        steps = Steps(DAY, DAY + SLOT, SLOT, is_from_slots)
        [lines] = asked(lake, Scope(vms=("a",)), steps, *METRICS).vms
        assert {name: values["mean"].tolist() for name, values in lines.values.items()} == {
            name: [2.0] for name in METRICS
        }


@pytest.mark.parametrize("is_rolled", [False, True])
def test_leaders_by_mean_and_by_maximum(lake, is_rolled) -> None:
    rows = [window("a", DAY + k * 10 * S, k, cpi=value) for k, value in enumerate([1.0, 9.0, 2.0])]
    rows += [window("b", DAY + k * 10 * S, 10 + k, cpi=5.0, host="h2") for k in range(3)]
    rows += [window("c", DAY, 20, cpi=None), window("d", DAY + DAY_NS, 21, cpi=50.0)]
    write(lake, rows, 1)
    if is_rolled:
        roll_up(lake, DAY)
    history = FleetHistory(lake, SegmentTimes(lake), SLOT)
    until = DAY + (7 * SLOT if is_rolled else 60 * S)
    by_mean = history.top(Scope(), METRIC, "mean", DAY, until, 5)
    assert by_mean.steps.is_from_slots is is_rolled
    assert [(row["vm"], row["host"], row["mean"]) for row in by_mean.vms] == [("b", "h2", 5.0), ("a", "h1", 4.0)]
    by_max = history.top(Scope(), METRIC, "max", DAY, until, 1)
    assert by_max.vms == [{"vm": "a", "host": "h1", "job": "job-a", "mean": 4.0, "min": 1.0, "max": 9.0, "count": 3}]
    assert [row["vm"] for row in history.top(Scope(hosts=("h1",)), METRIC, "mean", DAY, until, 5).vms] == ["a"]


def test_slots_answer_when_the_windows_are_deleted(lake) -> None:
    write(lake, [window("a", DAY + k * 10 * S, k, cpi=3.0) for k in range(30)], 1)
    roll_up(lake, DAY)
    for segment in lake.segments():
        lake.objects.remove(segment.key)
    history = FleetHistory(lake, SegmentTimes(lake), SLOT)
    steps = history.steps(DAY, DAY + 60 * S, 100)
    assert steps == Steps(DAY, DAY + SLOT, SLOT, is_from_slots=True)
    [lines] = history.series(Scope(vms=("a",)), [METRIC], steps, limit=1).vms
    assert lines.values[METRIC]["count"].tolist() == [30]
    assert history.top(Scope(), METRIC, "max", DAY, DAY + 60 * S, 1).vms[0]["count"] == 30


@pytest.mark.parametrize("points", [2, 3, 100, 300, 9999])
@pytest.mark.parametrize("span", [1, 59 * S, 3600 * S, 2 * 3600 * S + 1, DAY_NS, 400 * DAY_NS])
def test_steps_cover_the_time_in_at_most_that_many(span, points) -> None:
    since = DAY + 1234567 * S + 89
    found = choose_steps(since, since + span, points, SLOT, has_windows=True)
    assert found.since <= since and since + span <= found.until and 1 <= found.count <= points
    assert found.since % found.length_ns == found.until % found.length_ns == 0
    assert found.is_from_slots is (span > 2 * 3600 * S)
    assert not found.is_from_slots or found.length_ns % SLOT == 0


def test_the_usual_steps() -> None:
    def length(span_s: int) -> float:
        return choose_steps(DAY, DAY + span_s * S, 300, SLOT, has_windows=True).length_ns / S

    assert [length(span) for span in (600, 3600, 7200, 86_400, 7 * 86_400)] == [2, 15, 30, 300, 3600]


def test_slots_lie_in_the_order_of_hosts_and_vms_and_have_bloom_filters(lake) -> None:
    rows = random_rows(3, DAY, DAY + 900 * S, vms=5)
    write(lake, [dict(row, host=f"h{k % 3}", machine=f"h{k % 3}", sequence=k) for k, row in enumerate(rows)], 1)
    roll_up(lake, DAY)
    [name] = slot_files(lake)
    with duckdb.connect() as connection:
        keys = connection.execute(f"SELECT machine, vm, slot_start_ns FROM read_parquet('{name}')").fetchall()
        blooms = connection.execute(
            f"SELECT path_in_schema FROM parquet_metadata('{name}') WHERE bloom_filter_offset IS NOT NULL"
        ).fetchall()
    assert keys == sorted(keys) and len(set(keys)) == len(keys) == 45
    assert sorted({name for (name,) in blooms}) == ["job", "vm"]


def test_merged_segments_lie_in_the_order_of_hosts_and_vms_and_have_bloom_filters(lake, monkeypatch) -> None:
    monkeypatch.setattr(compaction, "_BATCH_ROWS", 20)
    rows = [
        window(f"vm-{k % 7}", DAY + k * 10 * S, k, host=f"h{k % 2}", machine=f"h{k % 2}", cpi=float(k))
        for k in range(140)
    ]
    for first in range(4):
        write(lake, rows[first * 35 : first * 35 + 35], first + 1)
    compact_day(lake, date(2024, 10, 4), None, unrolled_too=True, min_sources=2)
    [merged] = lake.segments()
    assert merged.is_compacted
    with pq.ParquetFile(merged.path) as file:
        groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
        assert file.metadata.row_group(0).num_rows == 20
    keys = [(row["machine"], row["vm"], row["start_unix_ns"]) for group in groups for row in group.to_pylist()]
    assert keys == sorted(keys) and len(keys) == 140
    with duckdb.connect() as connection:
        found = connection.execute(
            f"SELECT DISTINCT path_in_schema FROM parquet_metadata('{merged.path}') "
            "WHERE bloom_filter_offset IS NOT NULL"
        ).fetchall()
    assert sorted(name for (name,) in found) == ["job", "vm"]
    steps = Steps(DAY, DAY + 1500 * S, 300 * S, is_from_slots=False)
    for lines in asked(lake, Scope(jobs=("job-v",)), steps).vms:
        assert_is(lines, rows, steps, [METRIC])


def slot_files(lake: Lake) -> list[str]:
    manifest = SlotStore(lake, SLOT).manifest(date(2024, 10, 4))
    return [str(lake.objects.local(part.slots)) for part in manifest.parts]


def endless(*_arguments: object) -> str:
    return "SELECT count(*) FROM range(1000000000000) WHERE random() < 0"


def test_a_stopped_question_ends_soon_and_the_next_one_is_answered(lake, monkeypatch) -> None:
    write(lake, [window("a", DAY, 1)], 1)
    history = FleetHistory(lake, SegmentTimes(lake), SLOT)
    steps, stop = Steps(DAY, DAY + SLOT, SLOT, is_from_slots=False), threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(queries, "series", endless)
        threading.Timer(0.3, stop.set).start()
        began = time.monotonic()
        with pytest.raises(StoppedError):
            history.series(Scope(vms=("a",)), [METRIC], steps, limit=1, stop=stop)
        assert time.monotonic() - began < 10
    assert len(history.series(Scope(vms=("a",)), [METRIC], steps, limit=1).vms) == 1
    monkeypatch.setattr(queries, "series", endless)
    with pytest.raises(SlowError, match=r"^took longer than 0\.2 s$"):
        FleetHistory(lake, SegmentTimes(lake), SLOT, deadline_s=0.2).series(Scope(vms=("a",)), [METRIC], steps, limit=1)


def test_a_damaged_file_is_an_error_that_names_the_lake(lake) -> None:
    write(lake, [window("a", DAY, 1)], 1)
    history = FleetHistory(lake, SegmentTimes(lake), SLOT)
    steps = Steps(DAY, DAY + SLOT, SLOT, is_from_slots=False)
    history.series(Scope(vms=("a",)), [METRIC], steps, limit=1)
    [segment] = lake.segments()
    segment.path.write_bytes(segment.path.read_bytes()[:200])
    with pytest.raises(LakeError, match=str(lake.name)):
        FleetHistory(lake, SegmentTimes(lake), SLOT).series(Scope(vms=("a",)), [METRIC], steps, limit=1)


def test_an_empty_lake_has_no_series_and_no_leaders(lake) -> None:
    history = FleetHistory(lake, SegmentTimes(lake), SLOT)
    for is_from_slots in (False, True):
        steps = Steps(DAY, DAY + SLOT, SLOT, is_from_slots)
        assert history.series(Scope(jobs=("a",)), [METRIC], steps, limit=1).vms == []
        assert history.series(Scope(vms=("a",)), [METRIC], steps, limit=1).vms == []
    assert history.top(Scope(), METRIC, "mean", DAY, DAY + 60 * S, 3).vms == []
