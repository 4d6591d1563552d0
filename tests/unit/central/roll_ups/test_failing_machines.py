"""One machine whose rows make a build fail costs that machine, and not the fleet."""

import numpy as np
import pyarrow as pa
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from central.build import methods
from central.build.builder import Builder
from central.build.engine import Engine
from central.config import BuildSection
from central.lake.schema import SAMPLES
from central.lake.segments import DAY_NS, Lake, segment_stem
from central.roll_ups import store
from central.roll_ups.failing_machines import MAX_LEFT_OUT, failing
from central.roll_ups.store import SlotStore
from tests.unit.central.build.test_builds import OURS, rows_of, samples

ERROR = ValueError("it is of rows")


@given(st.integers(1, 40), st.data())
@pytest.mark.long
def test_the_machines_whose_rows_fail_are_found(count: int, data) -> None:
    names = [f"host-{number}" for number in range(count)]
    bad = set(data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True)))
    builds = 0

    def build(without) -> None:
        nonlocal builds
        builds += 1
        if bad - set(without):
            raise MemoryError

    assert set(failing(names, ERROR, build)) == bad
    assert builds <= 1 + 2 * len(bad) * 6


def test_of_machines_that_fit_alone_only_the_last_are_left_out() -> None:
    size = {"a": 1, "b": 2, "c": 3, "d": 4}

    def build(without) -> None:
        if sum(size[name] for name in size.keys() - set(without)) > 6:
            raise MemoryError

    assert failing(list(size), ERROR, build) == ["d"]


@pytest.mark.parametrize("fault", [OSError("disk"), None])
def test_what_is_not_of_rows_is_raised(fault) -> None:
    def build(without) -> None:
        raise fault or ERROR

    with pytest.raises(OSError if fault else ValueError):
        failing(["a", "b"], fault or ERROR, build)


def test_where_too_many_fail_it_is_not_their_rows() -> None:
    names = [f"host-{number}" for number in range(MAX_LEFT_OUT + 1)]

    def build(without) -> None:
        if len(without) < len(names):
            raise ERROR

    with pytest.raises(ValueError, match="of rows"):
        failing(names, ERROR, build)
    names.pop()
    assert failing(names, ERROR, build) == names


@pytest.fixture
def lake(tmp_path) -> Lake:
    made = Lake(tmp_path / "lake")
    made.write_segment(samples(rows_of(0, 1), 1), segment_stem("central-0", "0badcafe", 1))
    return made


@pytest.mark.long
@pytest.mark.parametrize("where", ["roll_up", "state"])
def test_a_version_is_built_without_the_machine_whose_rows_fail(lake, monkeypatch, where) -> None:
    if where == "roll_up":
        original = store.write_part

        def fail_of_host_1(*arguments):
            if "host-1" not in arguments[-1]:
                raise MemoryError("too much for one slot")
            return original(*arguments)

        monkeypatch.setattr(store, "write_part", fail_of_host_1)
    else:
        state = methods.write

        def fail_with_host_1(method, running, rows, *arguments):
            if "host-1" in running.collect(rows.select("machine").distinct())["machine"].to_pylist():
                raise MemoryError("too much for one day")
            state(method, running, rows, *arguments)

        monkeypatch.setattr(methods, "write", fail_with_host_1)
    builder = Builder(OURS, lake)
    assert builder.build_once() == 1
    manifest = builder.versions.read(1).manifest
    assert (manifest.machines_left_out, builder.last_error) == (("host-1",), "")
    assert manifest.coefficients == 6
    assert Builder(OURS, lake).build_once() is None
    monkeypatch.undo()
    lake.write_segment(samples(rows_of(1, 2), 2), segment_stem("central-0", "0badcafe", 2))
    assert builder.build_once() == 2  # what is left out of a day stays named while the day counts
    assert builder.current.manifest.machines_left_out == ("host-1",)
    assert builder.last_days_computed == 1
    assert SlotStore(lake, 300 * 10**9).manifests()


@pytest.mark.long
@pytest.mark.parametrize("where", ["roll_up", "state"])
def test_a_machine_is_named_in_the_log_when_it_begins_to_be_left_out(lake, monkeypatch, where) -> None:
    bad = {"host-1"}

    def fail(machines) -> None:
        if bad & set(machines):
            raise MemoryError("too much")

    write_part, write_state = store.write_part, methods.write

    def part(*arguments):
        fail({"host-1", "host-2"} - set(arguments[-1]))
        return write_part(*arguments)

    def state(method, running, rows, *arguments):
        fail(running.collect(rows.select("machine").distinct())["machine"].to_pylist())
        write_state(method, running, rows, *arguments)

    if where == "roll_up":
        monkeypatch.setattr(store, "write_part", part)
    else:
        monkeypatch.setattr(methods, "write", state)
    number = 1

    def build() -> list[list[str]]:
        nonlocal number
        with structlog.testing.capture_logs() as lines:
            assert Builder(OURS, lake).build_once() == number
        number += 1
        lake.write_segment(samples(rows_of(number, 1), number), segment_stem("central-0", "0badcafe", number))
        return [line["machines"] for line in lines if line["log_level"] == "warning"]

    assert build() == [["host-1"]]
    assert build() == []  # another day of it
    bad.add("host-2")
    assert build() == [["host-2"]]
    assert build() == []


@pytest.mark.long
def test_a_build_short_of_memory_does_less_at_a_time_and_leaves_nobody_out(tmp_path) -> None:
    rng = np.random.default_rng(7)
    rows, segments = 150_000, 300
    job = rng.integers(0, 6, rows)
    columns = {
        "machine": [f"host-{number}" for number in rng.integers(0, 6, rows)],
        "vm": [f"{number:0100d}" for number in rng.permutation(rows)],
        "job": [f"job-{number}" for number in job],
        "platform": ["cpu"] * rows,
        "latency_sensitive": job < 3,
        "start_unix_ns": 20_000 * DAY_NS + rng.integers(0, 288, rows) * 300 * 10**9,
        "duration_ns": np.full(rows, 10 * 10**9),
        "cpi": (1 + job) * rng.lognormal(0, 0.1, rows),
        "cpu_usage_cores": rng.gamma(2.0, 0.5, rows),
    }
    whole = samples(columns, 1)
    found = {}
    for limit_mib, count in ((512, 1), (64, segments)):
        lake = Lake(tmp_path / f"{limit_mib}")
        for number in range(count):
            some = whole.slice(rows // count * number, rows // count)
            sequence = pa.array([number + 1] * len(some), pa.uint64())
            some = some.set_column(some.schema.get_field_index("sequence"), "sequence", sequence)
            lake.write_segment(some.cast(SAMPLES), segment_stem("central-0", "0badcafe", number + 1))
        builder = Builder(BuildSection(memory_limit_mib=limit_mib, threads=2), lake)
        assert builder.build_once() == 1
        manifest = builder.current.manifest
        assert (manifest.machines_left_out, manifest.rows) == ((), rows)
        found[limit_mib] = builder.current
    for job_name in sorted(found[512].jobs):
        (usual,), (short,) = (found[limit].statistics(job_name) for limit in (512, 64))
        assert short.samples == usual.samples
        assert short.mean_cpi == pytest.approx(usual.mean_cpi, rel=1e-9)
        usual, short = (found[limit].coefficient(job_name) for limit in (512, 64))
        assert short.value == pytest.approx(usual.value, rel=1e-6)


@pytest.mark.long
def test_a_day_that_is_too_much_for_two_threads_is_computed_by_one(lake, monkeypatch) -> None:
    original = methods.write

    def write(method, running, rows, *arguments):
        ((threads,),) = running.connection.con.execute("SELECT current_setting('threads')").fetchall()
        machines = running.collect(rows.select("machine").distinct())["machine"].to_pylist()
        if threads > 1 and "host-1" in machines:
            raise MemoryError
        original(method, running, rows, *arguments)

    monkeypatch.setattr(methods, "write", write)
    builder = Builder(BuildSection(memory_limit_mib=256, threads=2), lake)
    assert (builder.build_once(), builder.current.manifest.machines_left_out) == (1, ())


def test_an_engine_makes_the_folder_for_what_does_not_fit(tmp_path) -> None:
    with Engine(memory_limit_mib=64, threads=1, spill_dir=tmp_path / "spill" / "lane-0") as engine:
        connection = engine.connection.con
        connection.execute("CREATE TABLE kept AS SELECT hash(range) AS a, hash(-range) AS b FROM range(8000000)")
        assert connection.execute("SELECT count(*) FROM kept").fetchall() == [(8_000_000,)]
        assert list((tmp_path / "spill" / "lane-0").iterdir())


@pytest.mark.long
@pytest.mark.parametrize("method", ["whitepanda", "panda"])
def test_of_a_machine_day_with_too_many_jobs_the_most_common_ones_count(lake, method) -> None:
    crowd = {name: list(column)[:300] for name, column in rows_of(0, 3).items()}
    crowd["machine"] = ["crowded"] * 300
    crowd["job"] = [f"job-{number % 6}" if number < 200 else f"rare-{number}" for number in range(300)]
    lake.write_segment(samples(crowd, 3), segment_stem("central-0", "0badcafe", 3))
    at_limit = BuildSection(memory_limit_mib=256, threads=1, method=method, max_machine_jobs=106)
    builder = Builder(at_limit, lake)
    assert (builder.build_once(), builder.current.manifest.jobs_left_out) == (1, {})
    below = BuildSection(memory_limit_mib=256, threads=1, method=method, max_machine_jobs=6)
    builder = Builder(below, lake)
    assert builder.build_once() == 2
    manifest = builder.versions.read(2).manifest
    assert set(manifest.jobs_left_out) == {"crowded"}
    assert manifest.jobs_left_out["crowded"] >= 100
    assert builder.current.coefficient("job-5") is not None
    assert builder.current.coefficient("rare-250") is None
