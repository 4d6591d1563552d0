"""Observations of runtimes from the lake's slots: by hand, samples of them, what is left out and what is refused."""

import json

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from central.cli import runtime
from central.lake.errors import LakeError
from central.lake.schema import SAMPLES
from central.lake.segments import DAY_NS, Lake, day_of, segment_stem
from central.roll_ups.store import SlotStore
from central.runtimes.lake_rows import read_lake
from central.runtimes.tables import read_features, read_log_runtimes, read_rows
from whitepanda.common.errors import InputError, UnavailableError

S = 10**9
SLOT_S = 300.0
app = typer.Typer()
app.add_typer(runtime.app, name="runtime")


def window(machine, vm, job, cores, instructions, *, at_s=0, platform="p", day=1):
    row = dict.fromkeys(SAMPLES.names)
    cpi = None if instructions is None else 2.0
    return row | {
        "host": machine, "spool_id": f"s-{machine}", "sequence": at_s, "machine": machine, "vm": vm, "epoch": "1",
        "job": job, "platform": platform, "latency_sensitive": False, "start_unix_ns": day * DAY_NS + at_s * S,
        "duration_ns": 10 * S, "cpu_usage_cores": cores, "cpi": cpi,
        "instructions": None if instructions is None else float(instructions),
        "cycles": None if instructions is None else 2.0 * instructions,
    }  # fmt: skip


# m1, first slot: web with two windows beside db and a second web; idle is hardly there, blind has no counters.
ROWS = [
    window("m1", "w1", "web", 1.0, 20 * S),
    window("m1", "w1", "web", 2.0, 10 * S, at_s=20),
    window("m1", "w2", "web", 0.5, 5 * S),
    window("m1", "d1", "db", 4.0, 10 * S),
    window("m1", "i1", "idle", 0.01, 1 * S),
    window("m1", "b1", "blind", 1.0, None),
    # next slot: db alone; a job without counters in one of its windows on m2
    window("m1", "d1", "db", 1.0, 10 * S, at_s=300),
    window("m2", "p1", "part", 1.0, 10 * S, platform="q"),
    window("m2", "p1", "part", 1.0, None, at_s=20, platform="q"),
    window("m2", "d2", "db", 1.0, 5 * S, platform="q"),
]


def make(folder, rows=ROWS):
    lake = Lake(folder)
    lake.write_segment(pa.Table.from_pylist(rows, SAMPLES), segment_stem("central-0", "0badcafe", 1))
    with duckdb.connect(config={"threads": 1}) as connection:
        for day in {day_of(row["start_unix_ns"]) for row in rows}:
            SlotStore(lake, round(SLOT_S * S)).roll_up(day, connection)
    return lake


def test_rows_by_hand(tmp_path):
    found = read_lake(make(tmp_path / "lake"), slot_s=SLOT_S, days=7, max_rows=1000)
    rows = {
        (row["workload"], row["platform"], tuple(row["interferers"]), round(row["runtime_us"], 6))
        for row in found.observations.to_pylist()
    }
    # CPU time over instructions: w1 30 s for 30e9, w2 5 s for 5e9, d1 40 s for 10e9, then 10 s for 10e9
    assert rows == {
        ("web", "p", ("blind", "db", "web"), 1e6),
        ("db", "p", ("blind", "web", "web"), 4e6),
        ("db", "p", (), 1e6),
        ("db", "q", ("part",), 2e6),
    }
    assert found.observations.num_rows == 5  # both of web are alike
    assert found.workloads["workload"].to_pylist() == ["blind", "db", "part", "web"]
    assert found.platforms["platform"].to_pylist() == ["p", "q"]
    assert (found.days, found.share, found.crowded, found.not_counted) == (1, 1.0, 0, 2)


def test_of_too_many_rows_whole_slots_of_machines_are_taken(tmp_path):
    rows = [
        window(f"m{machine}", f"v{vm}", f"j{vm}", 1.0, S, at_s=300 * slot)
        for machine in range(10)
        for slot in range(20)
        for vm in range(2)
    ]
    found = read_lake(make(tmp_path / "lake", rows), slot_s=SLOT_S, days=7, max_rows=100)
    assert found.share == 0.25
    taken = found.observations.num_rows
    assert 60 <= taken <= 140 and taken % 2 == 0  # 50 of 200 pairs, within about three deviations
    assert {len(row) for row in found.observations["interferers"].to_pylist()} == {1}


def test_a_machine_with_more_vms_than_a_table_may_name_is_left_out(tmp_path):
    rows = [window("m1", f"v{vm}", "j", 1.0, S) for vm in range(66)]
    rows += [window("m2", f"v{vm}", "j", 1.0, S) for vm in range(65)]
    found = read_lake(make(tmp_path / "lake", rows), slot_s=SLOT_S, days=7, max_rows=1000)
    assert (found.crowded, found.observations.num_rows) == (1, 65)
    assert {len(row) for row in found.observations["interferers"].to_pylist()} == {64}


def test_only_the_newest_days_are_read(tmp_path):
    rows = [window("m1", "v", f"day-{day}", 1.0, S, day=day) for day in (1, 2, 3)]
    found = read_lake(make(tmp_path / "lake", rows), slot_s=SLOT_S, days=2, max_rows=1000)
    assert (found.days, found.workloads["workload"].to_pylist()) == (2, ["day-2", "day-3"])


def test_what_is_written_is_what_fit_reads(tmp_path):
    make(tmp_path / "lake")
    asked = ["runtime", "observations", str(tmp_path / "lake"), "--out", str(tmp_path / "made"), "--json"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    reported = json.loads(result.stdout)
    assert (reported["rows"], reported["workloads"], reported["vm_slots_without_instructions"]) == (5, 4, 2)
    named = read_rows(tmp_path / "made" / "observations.parquet")
    workloads = read_features(tmp_path / "made" / "workloads.parquet", "workload")
    platforms = read_features(tmp_path / "made" / "platforms.parquet", "platform")
    placed = named.placed(workloads.names, platforms.names, "")
    assert sorted(placed.co_runners.tolist()) == [0, 1, 3, 3, 3]
    assert sorted(np.exp(read_log_runtimes(named))) == pytest.approx([1e6, 1e6, 1e6, 2e6, 4e6])
    reported = CliRunner().invoke(app, asked[:-1]).stdout
    assert "5 rows of 1 days: 4 workloads, 2 platforms" in reported
    assert "left out: 2 VMs' slots without instructions" in reported


def test_what_is_refused(tmp_path, monkeypatch):
    empty = Lake(tmp_path / "empty")
    with pytest.raises(InputError, match=r"no slots of 300 s; central makes them when it builds"):
        read_lake(empty, slot_s=SLOT_S, days=7, max_rows=1000)
    blind = make(tmp_path / "blind", [window("m1", "v", "j", 1.0, None)])
    with pytest.raises(InputError, match=r"no VM used 0.05 cores with its instructions counted on the last 1 days"):
        read_lake(blind, slot_s=SLOT_S, days=7, max_rows=1000)
    result = CliRunner().invoke(app, ["runtime", "observations", str(tmp_path / "no"), "--out", str(tmp_path)])
    assert isinstance(result.exception, UnavailableError)
    lake = make(tmp_path / "lake")
    (part,) = (tmp_path / "lake" / "slots").rglob("*-slots.parquet")
    pq.write_table(pa.table({"x": [1]}), part)
    with pytest.raises(LakeError, match="is damaged: its SHA-256 is"):
        read_lake(lake, slot_s=SLOT_S, days=7, max_rows=1000)


@pytest.mark.long
def test_from_the_lake_to_predictions_by_the_commands_of_the_docs(tmp_path):
    """Three of six jobs at random on each of two machines and in each slot; job 0 slows the others by a fifth."""
    pytest.importorskip("jax", reason="the extra `predict` is not installed")
    random = np.random.default_rng(4)
    rows, seconds = [], {}
    for slot in range(60):
        for machine, platform, factor in (("m1", "p", 1.0), ("m2", "q", 1.7)):
            jobs = random.choice(6, 3, replace=False)
            for job in jobs:
                slowed = 1.2 if job and 0 in jobs else 1.0
                seconds[f"j{job}", platform, slowed > 1] = time_s = 0.2 * (1 + job) * factor * slowed
                counted = round(10 * S / time_s)
                at_s = 300 * slot
                rows.append(window(machine, f"v{job}", f"j{job}", 1.0, counted, at_s=at_s, platform=platform))
    make(tmp_path / "lake", rows)

    def run(*arguments):
        result = CliRunner().invoke(app, ["runtime", *map(str, arguments), "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    made, model, out = tmp_path / "made", tmp_path / "jobs.model", tmp_path / "out.parquet"
    assert run("observations", tmp_path / "lake", "--out", made)["rows"] == 360
    run("fit", made / "observations.parquet", "--workload-features", made / "workloads.parquet",
        "--platform-features", made / "platforms.parquet", "--out", model, "--members", 1, "--steps", 400)  # fmt: skip
    asked = pa.table({"workload": ["j3", "j3", "j5"], "platform": ["p", "p", "q"],
                      "interferers": [["j1", "j2"], ["j0", "j2"], ["j0", "j1"]]})  # fmt: skip
    pq.write_table(asked, tmp_path / "asked.parquet")
    run("predict", tmp_path / "asked.parquet", "--model", model, "--epsilon", "0.1", "--out", out)
    found = pq.read_table(out).to_pydict()
    expected = [seconds["j3", "p", False], seconds["j3", "p", True], seconds["j5", "q", True]]
    assert found["predicted_us"] == pytest.approx([1e6 * time_s for time_s in expected], rel=0.05)
    assert found["bound_us_0.1"] == pytest.approx([1e6 * time_s for time_s in expected], rel=0.1)
    measured = run("evaluate", made / "observations.parquet", "--model", model, "--epsilon", "0.1")
    assert measured["co_runners"]["2"]["mape"] < 0.03
    assert measured["co_runners"]["2"]["bounds"]["0.1"]["coverage"] > 0.8
