"""Builds: only changed days are computed, versions never go back, a failure leaves the last one in force."""

import importlib.util
import json
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from typing import get_args

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from central.build.builder import Builder
from central.build.day_computer import DayComputer
from central.build.methods import METHODS
from central.build.status import BuildStoppedError, LeftOut
from central.coefficients.versions import VersionStore
from central.config import BuildSection
from central.lake.errors import LakeError
from central.lake.lease import FencedError
from central.lake.objects import Folder
from central.lake.schema import SAMPLES
from central.lake.segments import DAY_NS, Lake, segment_stem
from central.models.antagonists.slots import TaskSlots
from central.models.antagonists.whitepanda import WhitepandaState
from tests.support import panda_reference
from whitepanda.common import log

FIRST_DAY = date(2026, 11, 1)
SECTION = BuildSection(interval_s=0.05, memory_limit_mib=256, threads=1, method="panda", late_interval_s=0)
OURS = BuildSection(memory_limit_mib=256, threads=1)


def rows_of(day: int, seed: int, *, rows=600):
    """One day's windows: 3 machines, 6 jobs; CPI grows by 5 % a day."""
    rng = np.random.default_rng(seed)
    job = rng.integers(0, 6, rows)
    start = ((FIRST_DAY - date(1970, 1, 1)).days + day) * DAY_NS + rng.integers(0, 24, rows) * 300 * 10**9
    return {
        "machine": [f"host-{n}" for n in rng.integers(0, 3, rows)],
        "vm": [f"vm-{seed}-{n}" for n in range(rows)],
        "job": [f"job-{n}" for n in job],
        "platform": ["cpu"] * rows,
        "latency_sensitive": job < 3,
        "start_unix_ns": start,
        "duration_ns": np.full(rows, 10 * 10**9),
        "cpi": (1 + job) * (1 + 0.05 * day) * rng.lognormal(0, 0.1, rows),
        "cpu_usage_cores": rng.gamma(2.0, 0.5, rows),
    }


def samples(columns, sequence: int) -> pa.Table:
    count = len(columns["vm"])
    batch = {"host": ["h"] * count, "spool_id": ["s"] * count, "sequence": [sequence] * count}
    columns = batch | {"epoch": ["e"] * count} | columns
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in SAMPLES
    ]
    return pa.Table.from_arrays(arrays, schema=SAMPLES)


def write_day(lake: Lake, day: int, number: int, replica: str = "central-0"):
    columns = rows_of(day, number)
    lake.write_segment(samples(columns, number), segment_stem(replica, "0badcafe", number))
    return columns


def fitted(parts):
    """What the model says of all rows (each is a task slot of its own)."""
    columns = {key: np.concatenate([np.asarray(part[key]) for part in parts]) for key in parts[0]}
    slot = columns["start_unix_ns"] // (300 * 10**9)
    names = ("job", "platform", "latency_sensitive", "cpu_usage_cores", "cpi")
    tasks = np.arange(len(slot))
    found = panda_reference.fit(TaskSlots(columns["machine"], slot, tasks, *(columns[name] for name in names)))
    return found.statistics, dict(zip(found.coefficients.job.tolist(), found.coefficients.value, strict=True))


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path / "lake")


def test_no_segments_no_version(lake):
    builder = Builder(SECTION, lake)
    assert builder.build_once() is None
    assert (builder.current, builder.last_error) == (None, "")
    assert not (lake.root / "versions").exists()


def test_a_version_is_the_fit_of_all_days(lake):
    parts = [write_day(lake, day, day + 1) for day in range(3)]
    builder = Builder(SECTION, lake, clock_unix_ns=lambda: 1_234)
    assert builder.build_once() == 1
    statistics, values = fitted(parts)
    built = builder.current
    assert built is not None
    for job, value in values.items():
        row = built.coefficient(job)
        assert row.value == pytest.approx(value, rel=1e-9)
        assert 0 < row.standard_error < 1  # by days; its value: test_panda_state
    for i, job in enumerate(statistics.job):
        (row,) = built.statistics(job)
        assert (row.platform, row.samples) == ("cpu", statistics.samples[i])
        assert row.mean_cpi == pytest.approx(statistics.mean_cpi[i], rel=1e-12)
        assert row.std_cpi == pytest.approx(statistics.std_cpi[i], rel=1e-9)
    assert built.coefficient("nobody") is None
    assert built.statistics("nobody") == []
    assert [row.job for row in built.coefficients_page(0, 10)] == sorted(values, key=lambda j: -values[j])
    manifest = json.loads((lake.root / "versions/00000001/manifest.json").read_text())
    expected = {"version": 1, "created_unix_ns": 1_234, "slot_s": 300.0, "segments": 3, "rows": 1800}
    assert {key: manifest[key] for key in expected} == expected
    assert manifest["days"] == ["2026-11-01", "2026-11-02", "2026-11-03"]
    assert (manifest["coefficients"], manifest["job_statistics"]) == (6, 6)


def of_ours(parts):
    """What our model says of all rows, and per job the medians of the days' location and scale of ln CPI."""
    columns = {key: np.concatenate([np.asarray(part[key]) for part in parts]) for key in parts[0]}
    rows = TaskSlots(
        machine=columns["machine"],
        slot=columns["start_unix_ns"] // (300 * 10**9),
        task=columns["vm"],
        job=columns["job"],
        platform=columns["platform"],
        latency_sensitive=columns["latency_sensitive"],
        usage=columns["cpu_usage_cores"],
        cpi=columns["cpi"],
    )
    scales = {}
    for job in np.unique(rows.job):
        days = []
        for day in np.unique(rows.slot // 288):
            low, middle, high = np.quantile(
                np.log(rows.cpi[(rows.job == job) & (rows.slot // 288 == day)]), (0.25, 0.5, 0.75)
            )
            days.append((middle, (high - low) / 1.3489795003921634))
        scales[job] = [sorted(each)[len(days) // 2] for each in zip(*days, strict=True)]
    return WhitepandaState.of(rows).coefficients(), scales


def test_our_method_is_the_default_and_reports_robust_scales(lake):
    parts = [write_day(lake, day, day + 1) for day in range(3)]
    builder = Builder(OURS, lake)
    assert builder.build_once() == 1
    built, (expected, scales) = builder.current, of_ours(parts)
    assert built.manifest.method == "whitepanda"
    for i, job in enumerate(expected.job.tolist()):
        row = built.coefficient(job)
        assert (row.method, row.samples) == ("whitepanda", expected.samples[i])
        assert row.value == pytest.approx(expected.value[i], rel=1e-9, abs=1e-12)
        assert row.standard_error == pytest.approx(expected.standard_error[i], rel=1e-9)
    statistics, _ = fitted(parts)
    for i, job in enumerate(statistics.job):
        (row,) = built.statistics(job)
        assert row.mean_cpi == pytest.approx(statistics.mean_cpi[i], rel=1e-12)
        assert row.std_cpi == pytest.approx(statistics.std_cpi[i], rel=1e-9)
        if int(job[-1]) < 3:  # latency-sensitive; their days have nearly the same number of rows
            assert row.location_log_cpi == pytest.approx(scales[job][0], rel=1e-9)
            assert row.scale_log_cpi == pytest.approx(scales[job][1], rel=1e-9)
        else:
            assert (row.location_log_cpi, row.scale_log_cpi) == (0.0, 0.0)
    again = VersionStore(lake.objects).latest()
    assert again.statistics("job-1") == built.statistics("job-1")


def test_another_method_is_a_new_version_of_the_same_days_and_the_number_continues(lake):
    write_day(lake, 0, 1)
    found = []
    for section, number in ((SECTION, 1), (OURS, 2), (OURS, None), (SECTION, 3), (OURS, 4)):
        builder = Builder(section, lake)
        assert builder.build_once() == number
        row = builder.current.coefficient("job-5")
        found.append((builder.current.version, row.method, builder.current.statistics("job-1")[0].scale_log_cpi > 0))
    ours, panda_s = ("whitepanda", True), ("", False)
    assert found == [(1, *panda_s), (2, *ours), (2, *ours), (3, *panda_s), (4, *ours)]


def test_only_changed_days_are_computed(lake, monkeypatch):
    computed = []
    original = DayComputer.compute_day

    def compute(self, duckdb, day, *more, **options):
        computed.append(day.day.day)
        original(self, duckdb, day, *more, **options)

    monkeypatch.setattr(DayComputer, "compute_day", compute)
    parts = [write_day(lake, day, day + 1) for day in range(3)]
    builder = Builder(SECTION, lake)
    assert builder.build_once() == 1
    assert computed == [1, 2, 3]
    assert builder.build_once() is None  # nothing new: no version, and nothing computed
    parts.append(write_day(lake, 3, 4))
    assert builder.build_once() == 2
    assert computed == [1, 2, 3, 4]
    parts.append(write_day(lake, 1, 5))  # a late segment of the second day
    assert builder.build_once() == 3
    assert computed == [1, 2, 3, 4, 2]
    assert builder.last_days_computed == 1
    _, values = fitted(parts)
    for job, value in values.items():
        assert builder.current.coefficient(job).value == pytest.approx(value, rel=1e-9)
    # the state of the second day's earlier set of segments is gone
    assert len(list((lake.root / "state/slot=300").glob("day=*/*"))) == 4
    assert not list((lake.root / "state/slot=300").glob(".build-*"))


def test_late_windows_are_taken_every_late_interval(lake, monkeypatch):
    """One host with a row of each old day at each roll must not make central compute all days at each build."""
    computed = []
    original = DayComputer.compute_day

    def compute(self, duckdb, day, *more, **options):
        computed.append(day.day.day)
        original(self, duckdb, day, *more, **options)

    monkeypatch.setattr(DayComputer, "compute_day", compute)
    ahead_ns = 0
    section = msgspec.structs.replace(SECTION, late_interval_s=6 * 3600.0)
    builder = Builder(section, lake, clock_unix_ns=lambda: time.time_ns() + ahead_ns)
    for day in range(4):
        write_day(lake, day, day + 1)
    assert (builder.build_once(), computed) == (1, [1, 2, 3, 4])
    for day in range(4):
        write_day(lake, day, day + 5)
    assert (builder.build_once(), computed) == (2, [1, 2, 3, 4, 3, 4])  # the newest two
    write_day(lake, 0, 9)
    assert builder.build_once() is None
    ahead_ns = 6 * 3600 * 10**9
    assert (builder.build_once(), computed) == (3, [1, 2, 3, 4, 3, 4, 1, 2])
    assert builder.current.manifest.rows == 9 * 600
    write_day(lake, 0, 10)
    ahead_ns = -365 * DAY_NS  # a clock that was set back makes nothing wait
    assert builder.build_once() == 4


def test_state_is_only_a_cache(lake):
    write_day(lake, 0, 1)
    Builder(SECTION, lake).build_once()
    shutil.rmtree(lake.root / "state")
    write_day(lake, 1, 2)
    builder = Builder(SECTION, lake)
    assert builder.build_once() == 2
    assert builder.last_days_computed == 2


def test_a_restarted_builder_continues_counting(lake):
    write_day(lake, 0, 1)
    Builder(SECTION, lake).build_once()
    again = Builder(SECTION, lake)
    assert again.current.version == 1
    assert again.build_once() is None
    write_day(lake, 1, 2)
    assert again.build_once() == 2
    # another slot length is another version, though the segments are the same
    assert Builder(BuildSection(slot_s=600, memory_limit_mib=256), lake).build_once() == 3


def test_old_days_do_not_count(lake):
    parts = [write_day(lake, day, day + 1) for day in range(4)]
    builder = Builder(BuildSection(days=2, memory_limit_mib=256, method="panda"), lake)
    builder.build_once()
    assert builder.current.manifest.days == ("2026-11-03", "2026-11-04")
    _, values = fitted(parts[2:])
    assert builder.current.coefficient("job-5").value == pytest.approx(values["job-5"], rel=1e-9)


def test_what_is_left_out_for_its_age_is_reported(lake, capsys):
    log.configure("info")
    for day in range(4):
        write_day(lake, day, day + 1)
    builder = Builder(BuildSection(days=2, memory_limit_mib=256), lake)
    assert builder.left_out == LeftOut(0, 0)
    assert builder.build_once() == 1
    assert builder.left_out == LeftOut(2, 1200)
    manifest = builder.versions.read(1).manifest
    assert (manifest.days_left_out, manifest.rows_left_out) == (2, 1200)
    reported = capsys.readouterr().err
    assert reported.count("too old to count") == 1
    assert "days_left_out=2 rows_left_out=1200 build_days=2" in reported
    # An old trace replayed beside: nothing to build from, but it is reported.
    write_day(lake, -7_000, 9)
    assert builder.build_once() is None
    assert builder.left_out == LeftOut(3, 1800)
    assert "days_left_out=3 rows_left_out=1800" in capsys.readouterr().err
    assert builder.build_once() is None
    assert capsys.readouterr().err == ""


def test_a_failed_build_leaves_the_last_version(lake):
    write_day(lake, 0, 1)
    builder = Builder(SECTION, lake)
    builder.build_once()
    broken = lake.samples_dir / "day=2026-11-02" / "central-0-0badcafe-000000000009.parquet"
    broken.parent.mkdir()
    broken.write_bytes(b"PAR1 this is not Parquet file PAR1")
    with pytest.raises(LakeError, match="is damaged"):
        builder.build_once()
    assert builder.current.version == 1
    assert "central-0-0badcafe-000000000009.parquet" in builder.last_error
    assert "\n" not in builder.last_error
    assert VersionStore(lake.objects).numbers() == [1]
    assert not list((lake.root / "state/slot=300").glob(".build-*"))
    broken.unlink()
    write_day(lake, 1, 2)
    assert builder.build_once() == 2
    assert builder.last_error == ""


def test_a_failure_while_writing_leaves_no_half_version(lake, monkeypatch):
    write_day(lake, 0, 1)
    builder = Builder(SECTION, lake)
    create = Folder.create

    def full(self, name, data):
        if name.startswith("versions/"):
            raise OSError(28, "No space left")
        create(self, name, data)

    monkeypatch.setattr(Folder, "create", full)
    with pytest.raises(OSError, match="No space left"):
        builder.build_once()
    assert builder.current is None
    free = r"\d+ MiB for the state \(\S+/state/slot=300\), \d+ MiB for the lake \(\S+\), \d+ MiB for TMPDIR \(\S+\)"
    assert re.fullmatch(rf"OSError: \[Errno 28\] No space left; free now: {free}", builder.last_error)
    assert list((lake.root / "versions").iterdir()) == []
    monkeypatch.undo()
    assert builder.build_once() == 1


def test_stopping_ends_a_running_build(lake, monkeypatch):
    write_day(lake, 0, 1)
    builder = Builder(SECTION, lake)
    started = threading.Event()

    def endless(self, duckdb, *_more, **_options):
        started.set()
        duckdb.connection.raw_sql("SELECT count(*) FROM range(10000000000) a, range(1000000) b")

    monkeypatch.setattr(DayComputer, "compute_day", endless)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(builder.build_once)
        assert started.wait(20)
        time.sleep(0.2)  # the query runs
        builder.stop()
        with pytest.raises(BuildStoppedError):
            running.result(10)
    assert (builder.current, builder.last_error) == (None, "")
    with pytest.raises(BuildStoppedError):
        builder.build_once()


def test_a_version_whose_manifest_was_written_though_no_answer_came_is_whole(lake, monkeypatch):
    write_day(lake, 0, 1)
    builder = Builder(SECTION, lake)
    builder.build_once()
    manifest, store = builder.current.manifest, builder.versions
    tables = [pa.table({f.name: pa.array([], f.type) for f in schema}) for schema in _schemas()]
    create = store._objects.create

    def unanswered(name, data):
        create(name, data)
        raise OSError("the connection was closed")

    monkeypatch.setattr(store._objects, "create", unanswered)
    with pytest.raises(OSError, match="connection was closed"):
        store.write(manifest, *tables)
    found = VersionStore(lake.objects).latest()
    assert (found.version, list(found.statistics("job-1"))) == (2, [])


def test_numbers_are_never_used_twice(lake):
    write_day(lake, 0, 1)
    builder = Builder(SECTION, lake)
    builder.build_once()
    manifest, store, root = builder.current.manifest, builder.versions, lake.root / "versions"
    tables = [pa.table({f.name: pa.array([], f.type) for f in schema}) for schema in _schemas()]
    assert store.write(manifest, *tables).version == 2
    (root / "00000002/manifest.json").write_text("{")
    assert store.latest().version == 1  # warned of, and the one before is used
    assert store.write(manifest, *tables).version == 3
    assert (store.latest().version, store.numbers()) == (3, [1, 2, 3])
    store.prune(1)
    assert [path.name for path in root.iterdir()] == ["00000003"]


def test_of_two_builders_at_the_same_number_each_gets_one(lake):
    tables = [pa.table({f.name: pa.array([], f.type) for f in schema}) for schema in _schemas()]
    write_day(lake, 0, 1)
    Builder(SECTION, lake).build_once()
    manifest, store = (VersionStore(lake.objects).latest().manifest, VersionStore(lake.objects))
    inner = []

    def other():  # publishes just before this one does, once
        if not inner:
            inner.append(store.write(manifest, *tables).version)

    assert (store.write(manifest, *tables, check=other).version, inner) == (3, [2])
    assert len(list((lake.root / "versions").rglob("*.parquet"))) == 6


def test_a_stalled_builder_publishes_nothing_after_the_one_that_took_over(lake):
    tables = [pa.table({f.name: pa.array([], f.type) for f in schema}) for schema in _schemas()]
    write_day(lake, 0, 1)
    Builder(SECTION, lake).build_once()
    store = VersionStore(lake.objects)
    last = store.latest().manifest
    old = msgspec.structs.replace(last, token=last.token + 1)
    new = msgspec.structs.replace(last, token=last.token + 2)
    took_over = []

    def stall():  # after its last look at the lease, and before its manifest
        if not took_over:
            took_over.append(store.write(new, *tables).version)

    with pytest.raises(FencedError, match="later than this builder's"):
        store.write(old, *tables, check=stall)
    assert took_over == [2]
    assert (store.numbers(), store.latest().manifest.token) == ([1, 2], new.token)
    assert len(list((lake.root / "versions").rglob("*.parquet"))) == 4


def _schemas():
    from central.coefficients.versions import COEFFICIENTS, JOB_STATISTICS  # noqa: PLC0415 - this test alone needs it

    return JOB_STATISTICS, COEFFICIENTS


def test_of_several_replicas_one_builds_and_the_others_take_its_version(lake):
    write_day(lake, 0, 1)
    builders = [Builder(SECTION, lake, holder=f"central-{number}") for number in range(3)]
    builders[1].lease.acquire()
    assert [builders[0].build_once(), builders[2].build_once()] == [None, None]
    assert builders[1].build_once() == 1
    assert [builder.build_once() for builder in builders] == [1, None, 1]
    assert [builder.current.version for builder in builders] == [1, 1, 1]
    assert [builder.build_once() for builder in builders] == [None, None, None]
    write_day(lake, 1, 2)  # the lease was given back: any of them may
    assert [builder.build_once() for builder in builders] == [2, 2, 2]
    assert builders[0].last_days_computed == 1
    assert VersionStore(lake.objects).numbers() == [1, 2]


def test_a_late_window_and_a_batch_of_two_replicas_count_once(lake):
    parts = [write_day(lake, 0, 1)]
    builder = Builder(SECTION, lake)
    builder.build_once()
    again = samples(parts[0], 1)  # the same batch from another replica's journal
    lake.write_segment(again, segment_stem("central-1", "0badcafe", 1))
    assert builder.build_once() == 2
    parts.append(write_day(lake, 0, 2))  # late
    assert builder.build_once() == 3
    _, values = fitted(parts)
    assert builder.current.manifest.rows == 1200
    for job, value in values.items():
        assert builder.current.coefficient(job).value == pytest.approx(value, rel=1e-9)


def test_days_are_calendar_days(lake):
    write_day(lake, 0, 1)
    assert lake.days() == [FIRST_DAY]
    write_day(lake, 40, 2)
    builder = Builder(SECTION, lake)
    builder.build_once()
    assert builder.current.manifest.days == ((FIRST_DAY + timedelta(days=40)).isoformat(),)


def test_our_coefficients_by_setting(lake):
    from central.models.antagonists.slots import TaskSlots  # noqa: PLC0415 - this test alone needs it
    from central.models.antagonists.whitepanda import WhitepandaState  # noqa: PLC0415 - the same

    parts = [write_day(lake, day, day + 1) for day in range(3)]
    builder = Builder(msgspec.structs.replace(SECTION, method="whitepanda"), lake)
    assert builder.build_once() == 1
    columns = {key: np.concatenate([np.asarray(part[key]) for part in parts]) for key in parts[0]}
    expected = WhitepandaState.of(
        TaskSlots(
            machine=columns["machine"],
            slot=columns["start_unix_ns"] // (300 * 10**9),
            task=columns["vm"],
            job=columns["job"],
            platform=columns["platform"],
            latency_sensitive=columns["latency_sensitive"],
            usage=columns["cpu_usage_cores"],
            cpi=columns["cpi"],
        )
    ).coefficients()
    built = builder.current
    assert (built.manifest.method, built.manifest.engine) == ("whitepanda", "duckdb")
    for job, value, error in zip(expected.job, expected.value, expected.standard_error, strict=True):
        row = built.coefficient(job)
        assert row.value == pytest.approx(value, rel=1e-9, abs=1e-12)
        assert row.standard_error == pytest.approx(error, rel=1e-9)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
@pytest.mark.parametrize("method", ["whitepanda", "panda"])
def test_builds_on_spark_equal_those_on_duckdb(tmp_path, method):
    if importlib.util.find_spec("pyspark") is None or shutil.which("java") is None:
        pytest.skip("needs the extra spark and Java")
    built = {}
    for name in ("duckdb", "spark"):
        lake = Lake(tmp_path / name)
        section = BuildSection(method=method, engine=name, spark_master="local[2]", memory_limit_mib=512, threads=1)
        builder = Builder(section, lake)
        for day in range(2):  # the second one is added to the state of the first
            write_day(lake, day, day + 1)
            assert builder.build_once() == day + 1
            assert builder.last_days_computed == 1
        assert builder.current is not None
        assert (builder.current.manifest.method, builder.current.manifest.engine) == (method, name)
        built[name] = builder.current
    for job in (f"job-{number}" for number in range(6)):
        found, expected = (built[name].coefficient(job) for name in ("spark", "duckdb"))
        assert found.samples == expected.samples
        assert found.value == pytest.approx(expected.value, rel=1e-9, abs=1e-12)
        assert found.standard_error == pytest.approx(expected.standard_error, rel=1e-9, nan_ok=True)
        (found,), (expected,) = (built[name].statistics(job) for name in ("spark", "duckdb"))
        for number in ("samples", "mean_cpi", "std_cpi", "location_log_cpi", "scale_log_cpi"):
            assert getattr(found, number) == pytest.approx(getattr(expected, number), rel=1e-9, nan_ok=True), number


def test_each_method_can_be_set():
    (names,) = [each.type for each in msgspec.structs.fields(BuildSection) if each.name == "method"]
    assert sorted(get_args(names)) == sorted(METHODS)
