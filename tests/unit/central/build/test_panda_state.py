"""central.build.panda_state on DuckDB against plain numpy written for these tests, and against the model."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from central.build import methods, panda_state
from central.build.engine import Engine, with_schema
from central.models.antagonists import panda
from central.models.antagonists.slots import TaskSlots
from tests.support import panda_reference

SLOT_NS = 300 * 10**9
DAY_NS = 86_400 * 10**9
DAYS = 31  # of a build, as issued by default
# A time of today: not representable exactly as a double, so borders of slots show careless division.
EPOCH_NS = 1_795_132_800 * 10**9


@pytest.fixture
def duckdb(tmp_path):
    with Engine(memory_limit_mib=512, threads=2, spill_dir=tmp_path / "spill") as opened:
        yield opened


def samples_table(rng, *, rows, days=1, drift=0.0):
    """Records of 40 machines and 30 jobs, a third shorter than a slot, CPI sometimes unknown, drifting by day."""
    job = rng.integers(0, 30, rows)
    instance = rng.integers(0, 4, rows)
    slots = rng.integers(0, 12 * days, rows)
    day = slots // 12
    start = EPOCH_NS + day * DAY_NS + (slots % 12) * SLOT_NS
    duration = np.where(rng.random(rows) < 0.33, rng.integers(1, SLOT_NS, rows), SLOT_NS)
    usage = rng.gamma(2.0, 0.5, rows)
    cpi = (1 + job / 10) * (1 + drift * day) * rng.lognormal(0, 0.2, rows)
    cpi[rng.random(rows) < 0.2] = math.nan
    return pa.table(
        {
            "machine": [f"m{n}" for n in (job * 7 + instance * 3 + rng.integers(0, 3, rows)) % 40],
            "vm": [f"{j}-{i}" for j, i in zip(job, instance, strict=True)],
            "job": [f"job-{j}" for j in job],
            "platform": [f"cpu-{j % 2}" for j in job],
            "latency_sensitive": job < 12,
            "start_unix_ns": start + np.where(duration < SLOT_NS, SLOT_NS - duration, 0),
            "duration_ns": duration,
            "cpi": pa.array(cpi, from_pandas=True),
            "cpu_usage_cores": usage,
        }
    )


def plain_slots(table):
    """Merge by duration, in loops."""
    merged: dict = {}
    for row in table.to_pylist():
        keys = ("machine", "vm", "job", "platform", "latency_sensitive")
        key = (*(row[k] for k in keys), row["start_unix_ns"] // SLOT_NS)
        sums = merged.setdefault(key, [0.0, 0.0, 0.0, 0.0])
        sums[0] += row["cpu_usage_cores"] * row["duration_ns"]
        sums[1] += row["duration_ns"]
        if row["cpi"] is not None:
            sums[2] += row["cpi"] * row["duration_ns"]
            sums[3] += row["duration_ns"]
    return {key: (usage / used, cpi / known if known else None) for key, (usage, used, cpi, known) in merged.items()}


def plain_fit(slots):
    """Equations (1) to (3) in plain numpy: {job: (A, standard error, samples)}, and the scale of A's terms."""
    keys = list(slots)
    machine = np.array([key[0] for key in keys])
    job = np.array([key[2] for key in keys])
    platform = np.array([key[3] for key in keys])
    sensitive = np.array([key[4] for key in keys])
    slot = np.array([key[5] for key in keys])
    usage = np.array([slots[key][0] for key in keys])
    cpi = np.array([math.nan if slots[key][1] is None else slots[key][1] for key in keys])
    n_cpi = np.zeros(len(keys))
    for pair in {(j, p) for j, p in zip(job, platform, strict=True)}:
        rows = (job == pair[0]) & (platform == pair[1]) & ~np.isnan(cpi)
        if rows.any() and np.std(cpi[rows]) > 1e-12 * np.mean(cpi[rows]):
            n_cpi[rows] = (cpi[rows] - np.mean(cpi[rows])) / np.std(cpi[rows])
    mn_cpi = np.full(len(keys), math.nan)
    for place in {(m, t) for m, t in zip(machine, slot, strict=True)}:
        rows = (machine == place[0]) & (slot == place[1])
        counted = rows & sensitive & ~np.isnan(cpi)
        if counted.any():
            mn_cpi[rows] = np.mean(n_cpi[counted])
    found = {}
    for name in set(job.tolist()):
        rows = (job == name) & ~np.isnan(mn_cpi)
        u, y = usage[rows], mn_cpi[rows]
        if np.sum(u * u) > 0:
            value = np.sum(u * y) / np.sum(u * u)
            n = len(u)
            error = math.sqrt(np.sum((y - value * u) ** 2) / (n - 1) / np.sum(u * u)) if n > 1 else None
            found[name] = (value, error, n, np.sum(np.abs(u * y)) / np.sum(u * u))
    return found


def read(duckdb, table, path):
    pq.write_table(table, path)
    return duckdb.read([path])


def slots_of(duckdb, table, folder, name="slots"):
    samples = read(duckdb, table, folder / f"{name}-samples.parquet")
    duckdb.write(panda_state.task_slots(samples, SLOT_NS), folder / f"{name}.parquet")
    return duckdb.read([folder / f"{name}.parquet"])


def state_of(duckdb, slots, folder):
    folder.mkdir()
    methods.write("panda", duckdb, slots, SLOT_NS, folder)
    assert {path.stem for path in folder.iterdir()} == {*panda_state.STATE, "cpi"}
    return folder


def test_records_of_a_slot_merge_by_duration(duckdb, tmp_path):
    def record(start_s, seconds, usage, cpi, vm="v"):
        start = EPOCH_NS + int(start_s * 1e9)
        return ("m", vm, "j", "p", True, start, int(seconds * 1e9), cpi, usage)

    names = ["machine", "vm", "job", "platform", "latency_sensitive", "start_unix_ns", "duration_ns"]
    names += ["cpi", "cpu_usage_cores"]
    rows = [
        record(0, 100, 1.0, 2.0),
        record(100, 50, 4.0, None),  # counts for usage, not for CPI
        record(150, 150, 2.0, 4.0),
        record(299.999999999, 300, 1.0, 1.0, "edge"),  # a record is in the slot that it starts in ...
        record(300, 300, 5.0, 3.0, "edge"),  # ... to the nanosecond
        record(0, 0, 7.0, 7.0, "empty"),  # no duration, no weight
        record(0, 300, 1.0, math.nan, "nan"),
    ]
    table = pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)})
    found = slots_of(duckdb, table, tmp_path).order_by(["vm", "slot_start_ns"]).to_pyarrow().to_pylist()
    got = [(row["vm"], row["slot_start_ns"] - EPOCH_NS, row["usage"], row["cpi"]) for row in found]
    assert got == [
        ("edge", 0, 1.0, 1.0),
        ("edge", SLOT_NS, 5.0, 3.0),
        ("nan", 0, 1.0, None),
        ("v", 0, pytest.approx((100 * 1 + 50 * 4 + 150 * 2) / 300), pytest.approx((200 + 600) / 250)),
    ]


def test_fit_equals_plain_numpy(duckdb, tmp_path):
    table = samples_table(np.random.default_rng(7), rows=20_000)
    slots = plain_slots(table)
    expected = plain_fit(slots)
    tables = panda_state.fit(slots_of(duckdb, table, tmp_path))
    found = {row["job"]: row for row in tables.coefficients.to_pyarrow().to_pylist()}
    assert found.keys() == expected.keys()
    assert len(found) == 30
    for job, (value, error, samples, scale) in expected.items():
        assert abs(found[job]["coefficient"] - value) <= 1e-12 * scale, job
        assert found[job]["standard_error"] == pytest.approx(error, rel=1e-10)
        assert found[job]["samples"] == samples
    places = {(key[0], key[5]) for key, (_, cpi) in slots.items() if key[4] and cpi is not None}
    assert tables.machine_cpi.count().to_pyarrow().as_py() == len(places)


def test_engine_and_model_agree(duckdb, tmp_path):
    table = samples_table(np.random.default_rng(8), rows=5_000)
    slots = slots_of(duckdb, table, tmp_path)
    rows = slots.to_pyarrow()
    columns = {name: rows.column(name).to_numpy() for name in ("machine", "job", "platform", "usage", "cpi")}
    columns |= {
        "slot": rows.column("slot_start_ns").to_numpy(),
        "task": np.arange(rows.num_rows),
        "latency_sensitive": rows.column("latency_sensitive").to_numpy(zero_copy_only=False),
    }
    task_slots = TaskSlots(**columns)
    model = panda_reference.fit(task_slots)
    statistics = panda_state.job_statistics(panda_state.cpi_moments(slots)).order_by(["job", "platform"]).to_pyarrow()
    assert statistics.column("job").to_pylist() == model.statistics.job.tolist()
    assert statistics.column("samples").to_pylist() == model.statistics.samples.tolist()
    np.testing.assert_allclose(statistics["mean_cpi"].to_numpy(), model.statistics.mean_cpi, rtol=1e-14)
    np.testing.assert_allclose(statistics["std_cpi"].to_numpy(), model.statistics.std_cpi, rtol=1e-13)
    state, expected = state_of(duckdb, slots, tmp_path / "state"), panda.PairState.of(task_slots)
    pairs = pq.read_table(state / "pairs.parquet").sort_by(
        [(name, "ascending") for name in ("job", "sensitive_job", "platform")]
    )
    assert pairs.column("sensitive_job").to_pylist() == expected.pair_sensitive_job.tolist()
    np.testing.assert_allclose(pairs["usage_cpi"].to_numpy(), expected.usage_cpi, rtol=1e-13)
    np.testing.assert_allclose(pairs["usage"].to_numpy(), expected.usage, rtol=1e-13)


def test_a_constant_cpi_is_no_noise(duckdb, tmp_path):
    rows = 1000
    cpi = np.full(rows, 1.1)
    cpi[::2] = np.nextafter(1.1, 2)
    table = pa.table(
        {
            "machine": ["m"] * rows,
            "vm": ["v"] * rows,
            "job": ["j"] * rows,
            "platform": ["p"] * rows,
            "latency_sensitive": [True] * rows,
            "start_unix_ns": EPOCH_NS + np.arange(rows) * SLOT_NS,
            "duration_ns": [SLOT_NS // 3] * rows,
            "cpi": cpi,
            "cpu_usage_cores": np.arange(rows) * 1.0,
        }
    )
    slots = slots_of(duckdb, table, tmp_path)
    (row,) = panda_state.fit(slots).coefficients.to_pyarrow().to_pylist()
    assert (row["coefficient"], row["samples"]) == (0.0, rows)
    state = state_of(duckdb, slots, tmp_path / "state")
    (row,) = methods.solved("panda", duckdb, [state])[1].to_pylist()
    assert (row["coefficient"], row["standard_error"]) == (0.0, None)


def assert_errors_are_by_days(duckdb, found, table, tmp_path):
    """By days, straight from numpy: how far each day's sum of usage * mnCPI is off A * sum of usage^2."""
    slots = slots_of(duckdb, table, tmp_path, "again")
    machine_cpi = {
        (row["machine"], row["slot_start_ns"]): row["mn_cpi"]
        for row in panda_state.fit(slots).machine_cpi.to_pyarrow().to_pylist()
    }
    sums: dict[str, np.ndarray] = {}
    for row in slots.to_pyarrow().to_pylist():
        place = (row["machine"], row["slot_start_ns"])
        if row["usage"] is not None and place in machine_cpi:
            day = (row["slot_start_ns"] - EPOCH_NS) // DAY_NS
            of_job = sums.setdefault(row["job"], np.zeros((2, DAYS)))
            of_job[:, day] += row["usage"] * machine_cpi[place], row["usage"] ** 2
    assert found.keys() == sums.keys()
    for job, (product, squared) in sums.items():
        off = product - product.sum() / squared.sum() * squared
        days_of_job = np.count_nonzero(squared)
        expected = np.sqrt(days_of_job / (days_of_job - 1) * (off**2).sum()) / squared.sum()
        assert found[job]["standard_error"] == pytest.approx(expected, rel=1e-6)
        assert found[job]["coefficient"] == pytest.approx(product.sum() / squared.sum(), rel=1e-9, abs=1e-11)


def test_days_that_drift_merge_to_the_fit_of_all(duckdb, tmp_path):
    """Merged pair state equals the fit of all days; merging what each day normalised by itself does not."""
    table = samples_table(np.random.default_rng(9), rows=6_000, days=DAYS, drift=0.03)
    whole = panda_state.fit(slots_of(duckdb, table, tmp_path)).coefficients.to_pyarrow().to_pylist()
    expected = {row["job"]: row for row in whole}
    day = (np.array(table.column("start_unix_ns")) - EPOCH_NS) // DAY_NS
    folders = []
    by_day: dict[str, float] = {}
    for number in range(DAYS):
        slots = slots_of(duckdb, table.filter(pa.array(day == number)), tmp_path, f"day{number}")
        folders.append(state_of(duckdb, slots, tmp_path / f"state{number}"))
        for row in panda_state.fit(slots).coefficients.to_pyarrow().to_pylist():
            by_day[row["job"]] = by_day.get(row["job"], 0.0) + row["coefficient"] * row["sum_usage_squared"]
    found = {row["job"]: row for row in methods.solved("panda", duckdb, folders)[1].to_pylist()}
    assert found.keys() == expected.keys()
    for job, row in found.items():
        assert row["coefficient"] == pytest.approx(expected[job]["coefficient"], rel=1e-9, abs=1e-11)
        assert row["samples"] == expected[job]["samples"]
    assert_errors_are_by_days(duckdb, found, table, tmp_path)
    alone = methods.solved("panda", duckdb, folders[:1])[1]
    assert set(alone["standard_error"].to_pylist()) == {None}
    wrong = max(abs(by_day[j] / expected[j]["sum_usage_squared"] - expected[j]["coefficient"]) for j in found)
    assert wrong > 1e-3  # so this test tells the two apart


def test_parquet_in_the_wanted_columns(duckdb, tmp_path):
    table = read(
        duckdb, pa.table({"samples": [3], "extra": [1], "job": ["j"], "sum_usage_squared": [2.0]}), tmp_path / "in"
    )
    assert duckdb.write(with_schema(table, panda_state.STATE["usage"]), tmp_path / "out") == 1
    assert pq.read_table(tmp_path / "out").schema.names == ["job", "sum_usage_squared", "samples"]
