"""Our estimator and PANDA on DuckDB and on real PySpark against plain numpy."""

import importlib.util
import math
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from central.build import engine, methods, panda_state, whitepanda_state
from central.build.spark import SparkEngine
from central.models.antagonists.slots import TaskSlots
from central.models.antagonists.whitepanda import WhitepandaState
from tests.support import panda_reference

# PySpark 4.3 says so of pandas 3, which nothing here goes through.
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")

SLOT_NS = 300 * 10**9


def drifting_slots(days=31):
    """Task slots of 5 machines and 14 jobs that come and go; CPI drifts by 3 % a day, some values are unknown."""
    rng = np.random.default_rng(5)
    machine, task, slot = (each.ravel() for each in np.meshgrid(range(5), range(12), range(days * 12)))
    day = slot // 12
    job = (machine + task + day // 9) % 14
    cpi = (1 + job / 8) * 1.03**day * rng.lognormal(0, 0.2, len(job))
    usage = rng.gamma(2, 0.4, len(job))
    cpi[rng.random(len(job)) < 0.1] = math.nan
    usage[rng.random(len(job)) < 0.05] = math.nan
    rows = TaskSlots(
        machine=np.char.add("m", machine.astype(str)),
        slot=day * 288 + slot % 12,
        task=task,
        job=np.char.add("job-", job.astype(str)),
        platform=np.where(machine % 2 == 0, "even", "odd"),
        latency_sensitive=job < 6,
        usage=usage,
        cpi=cpi,
    )
    return rows.take(rng.random(rows.rows) < 0.85)


def table_of(rows):
    return pa.table(
        {
            "machine": rows.machine,
            "slot_start_ns": rows.slot * SLOT_NS,
            "vm": rows.task,
            "job": rows.job,
            "platform": rows.platform,
            "latency_sensitive": rows.latency_sensitive,
            "usage": pa.array(rows.usage, from_pandas=True),
            "cpi": pa.array(rows.cpi, from_pandas=True),
        }
    )


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    if importlib.util.find_spec("pyspark") is None or shutil.which("java") is None:
        pytest.skip("needs the extra spark and Java")
    spill = tmp_path_factory.mktemp("spark")
    with SparkEngine(master="local[2]", memory_limit_mib=512, partitions=2, spill_dir=spill) as opened:
        yield opened


@pytest.fixture
def duckdb(tmp_path):
    with engine.Engine(memory_limit_mib=512, threads=2, spill_dir=tmp_path / "spill") as opened:
        yield opened


def ours_by_days(opened, rows, folder):
    """Coefficients from one folder of state per day, merged."""
    folders = []
    for day in np.unique(rows.slot // 288):
        slots, state = folder / f"slots-{day}.parquet", folder / f"state-{day}"
        pq.write_table(table_of(rows.take(rows.slot // 288 == day)), slots)
        state.mkdir()
        whitepanda_state.write_state(opened, opened.read([slots]), SLOT_NS, state)
        assert {path.name for path in state.iterdir()} == set(whitepanda_state.STATE_FILES)
        folders.append(state)
    return whitepanda_state.coefficients(folders)


def check_ours(found, rows):
    expected = WhitepandaState.of(rows).coefficients()
    assert found.job.tolist() == expected.job.tolist()
    assert found.samples.tolist() == expected.samples.tolist()
    for name in ("value", "estimate", "standard_error", "sum_usage_squared"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-9, abs=1e-9)
    assert np.abs(expected.value).max() > 1e-3


def check_panda(opened, rows, folder):
    """The one-shot fit, its statistics and its coefficients."""
    path = folder / "all.parquet"
    pq.write_table(table_of(rows), path)
    tables = panda_state.fit(opened.read([path]))
    expected = panda_reference.fit(rows)
    found = opened.collect(tables.coefficients.order_by("job")).to_pydict()
    assert found["job"] == expected.coefficients.job.tolist()
    assert found["samples"] == expected.coefficients.samples.tolist()
    assert found["coefficient"] == pytest.approx(expected.coefficients.value, rel=1e-9, abs=1e-9)
    assert found["standard_error"] == pytest.approx(expected.coefficients.standard_error, rel=1e-9)
    statistics = opened.collect(tables.statistics.order_by(["job", "platform"])).to_pydict()
    assert statistics["mean_cpi"] == pytest.approx(expected.statistics.mean_cpi, rel=1e-9)
    assert statistics["std_cpi"] == pytest.approx(expected.statistics.std_cpi, rel=1e-9)


def test_ours_by_31_days_on_duckdb_equals_plain_numpy(duckdb, tmp_path):
    rows = drifting_slots()
    check_ours(ours_by_days(duckdb, rows, tmp_path), rows)


def test_a_state_of_several_days_normalises_each_by_its_own(duckdb, tmp_path):
    rows, slots, state = drifting_slots(days=3), tmp_path / "slots.parquet", tmp_path / "state"
    pq.write_table(table_of(rows), slots)
    state.mkdir()
    whitepanda_state.write_state(duckdb, duckdb.read([slots]), SLOT_NS, state)
    check_ours(whitepanda_state.coefficients([state]), rows)
    scales = whitepanda_state.scales([state])
    assert len(scales["day"].unique()) == 3
    assert min(scales["samples"].to_pylist()) > 0


def test_states_without_rows_add_nothing(duckdb, tmp_path):
    rows, folders = drifting_slots(days=2), []
    for name, part in (("none", rows.take(rows.slot < 0)), ("all", rows)):
        pq.write_table(table_of(part), tmp_path / f"{name}.parquet")
        folders.append(tmp_path / name)
        folders[-1].mkdir()
        whitepanda_state.write_state(duckdb, duckdb.read([tmp_path / f"{name}.parquet"]), SLOT_NS, folders[-1])
    check_ours(whitepanda_state.coefficients(folders), rows)
    assert len(whitepanda_state.coefficients(folders[:1]).job) == 0


def test_parts_of_machines_add_up(duckdb, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "_PART_ROWS", 100)
    rows = drifting_slots(days=2)
    check_ours(ours_by_days(duckdb, rows, tmp_path), rows)


def test_panda_on_duckdb_equals_plain_numpy(duckdb, tmp_path):
    check_panda(duckdb, drifting_slots(days=4), tmp_path)


@pytest.mark.long
def test_ours_on_spark_equals_plain_numpy(spark, tmp_path):
    rows = drifting_slots(days=2)
    check_ours(ours_by_days(spark, rows, tmp_path), rows)


@pytest.mark.long  # Java and Spark start
def test_panda_on_spark_equals_plain_numpy(spark, tmp_path):
    check_panda(spark, drifting_slots(days=2), tmp_path)


@pytest.mark.long  # Java and Spark start
def test_panda_pair_state_on_spark_equals_the_fit(spark, tmp_path):
    rows, folders = drifting_slots(days=2), []
    for day in (0, 1):
        path, folder = tmp_path / f"slots-{day}.parquet", tmp_path / f"state-{day}"
        pq.write_table(table_of(rows.take(rows.slot // 288 == day)), path)
        folder.mkdir()
        methods.write("panda", spark, spark.read([path]), SLOT_NS, folder)
        folders.append(folder)
    _, table = methods.solved("panda", spark, folders)
    found = table.sort_by("job").to_pydict()
    expected = panda_reference.fit(rows).coefficients
    assert found["job"] == expected.job.tolist()
    assert found["coefficient"] == pytest.approx(expected.value, rel=1e-9, abs=1e-9)
