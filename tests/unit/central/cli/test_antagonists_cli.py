"""`whitepanda antagonists fit` on traces with a known answer and on bad ones; `show` against a real server."""

import importlib.util
import json
import math
import shutil
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from central.build.engine import Engine
from central.cli import antagonists
from central.cli.shared import outputs
from central.traces import fit
from central.traces.evaluation import ORACLE
from central.traces.methods import METHODS
from whitepanda.common import cli
from whitepanda.common.cli import PlainConsole

SLOT_US = 300 * 10**6
BEGIN_US = 600 * 10**6  # the trace's clock starts 600 s before the first record


def trace(seed=3, *, machines=20, slots=60):
    """A trace whose antagonists are known: A_k of the CPI's rise per unit of usage, noise, short records, gaps.

    Jobs 0..4 are latency-sensitive, 5..14 batch; batch job k raises every CPI beside it by 0.05 * (k - 5) * usage.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for machine in range(machines):
        tasks = [(job, machine) for job in rng.choice(15, size=8, replace=False).tolist()]
        for slot in range(slots):
            usage = {task: rng.gamma(2.0, 0.2) for task in tasks}
            pressure = sum(0.05 * (job - 5) * used for (job, _), used in usage.items() if job > 5)
            for task, used in usage.items():
                if rng.random() < 0.1:
                    continue
                cpi = (1 + task[0] / 5) * (1 + pressure) * rng.lognormal(0, 0.1)
                start = BEGIN_US + slot * SLOT_US
                pieces = [(start, start + SLOT_US)]
                if rng.random() < 0.3:  # two records in one slot
                    middle = start + int(rng.integers(1, SLOT_US))
                    pieces = [(start, middle), (middle, start + SLOT_US)]
                for first, last in pieces:
                    known = rng.random() > 0.2
                    rows.append(
                        {
                            "collection_id": 10_000_000_000 + task[0],
                            "instance_index": task[1],
                            "machine_id": machine + 1,
                            "start_time": first,
                            "end_time": last,
                            "avg_cpu": used * rng.uniform(0.8, 1.2),
                            "cycles_per_instruction": cpi * rng.uniform(0.9, 1.1) if known else None,
                            "priority": 200.0 if task[0] < 5 else 100.0,
                            "scheduling_class": 3.0 if task[0] < 5 else 1.0,
                        }
                    )
    return rows


def plain(rows):
    """Design equations (1) to (3) in plain numpy: {job: (A_k, number of task slots, scale of the terms)}."""
    merged: dict = {}
    for row in rows:
        key = (row["machine_id"], row["start_time"] // SLOT_US, row["collection_id"], row["instance_index"])
        duration = row["end_time"] - row["start_time"]
        sums = merged.setdefault(key, np.zeros(4))
        sums += [row["avg_cpu"] * duration, duration, 0, 0]
        if row["cycles_per_instruction"] is not None:
            sums += [0, 0, row["cycles_per_instruction"] * duration, duration]
    keys = np.array(list(merged))
    sums = np.array(list(merged.values()))
    machine, slot, job = keys[:, 0], keys[:, 1], keys[:, 2]
    usage = sums[:, 0] / sums[:, 1]
    with np.errstate(invalid="ignore"):
        cpi = sums[:, 2] / sums[:, 3]
    n_cpi = np.full(len(keys), math.nan)
    for each in np.unique(job[job < 10_000_000_005]):
        own = job == each
        n_cpi[own] = (cpi[own] - np.nanmean(cpi[own])) / np.nanstd(cpi[own])
    mn_cpi = np.full(len(keys), math.nan)
    for place in np.unique(np.stack([machine, slot], axis=1), axis=0):
        here = (machine == place[0]) & (slot == place[1])
        counted = here & ~np.isnan(n_cpi)
        if counted.any():
            mn_cpi[here] = np.mean(n_cpi[counted])
    found = {}
    for each in np.unique(job):
        own = (job == each) & ~np.isnan(mn_cpi)
        u, y = usage[own], mn_cpi[own]
        found[int(each)] = (np.sum(u * y) / np.sum(u**2), int(own.sum()), np.sum(abs(u * y)) / np.sum(u**2))
    return found


def run(monkeypatch, *arguments) -> int:
    monkeypatch.setattr(sys, "argv", ["whitepanda", "antagonists", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


def write(rows, path):
    table = pa.Table.from_pylist(rows)
    if path.suffix == ".csv":
        pc.write_csv(table, path)
    else:
        pq.write_table(table, path)
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_coefficients_equal_plain_numpy(tmp_path, monkeypatch, capsys, suffix):
    rows = trace()
    half = len(rows) // 2  # several files are one trace
    files = [write(part, tmp_path / f"t{i}{suffix}") for i, part in enumerate((rows[:half], rows[half:]))]
    out = tmp_path / "fit.parquet"
    assert run(monkeypatch, "fit", *files, "--out", out, "--method", "panda", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    expected = plain(rows)
    found = pq.read_table(out)
    assert found.schema == fit.RESULT
    found = found.to_pylist()
    assert {row["collection_id"] for row in found} == expected.keys()
    for row in found:
        value, samples, scale = expected[row["collection_id"]]
        assert abs(row["coefficient"] - value) <= 1e-12 * scale, row["job"]
        assert row["samples"] == samples
        assert row["job"] == str(row["collection_id"])
        assert row["standard_error"] > 0
    values = [row["coefficient"] for row in found]
    assert values == sorted(values, reverse=True)
    # the strongest of the injected antagonists come first, and victims do not
    assert {row["collection_id"] - 10_000_000_000 for row in found[:3]} <= {11, 12, 13, 14}
    assert {row["latency_sensitive_ratio"] for row in found[:3]} == {0.0}
    assert summary["rows"] == {
        "read": len(rows),
        "used": len(rows),
        "rejected": {},
        "unusable_cpi": sum(row["cycles_per_instruction"] is None for row in rows),
        "without_cpi": sum(row["cycles_per_instruction"] is None for row in rows),
        "without_priority": 0,
        "first": {},
    }
    assert summary["jobs"] == len(found) == 15
    assert summary["top"][0]["coefficient"] == values[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["fit.parquet", *(f.name for f in files)])


def test_statistics_of_the_jobs(tmp_path, monkeypatch, capsys):
    def row(job, machine, slot, usage, cpi, sensitive):
        start = BEGIN_US + slot * SLOT_US
        priority, klass = (120.0, 2.0) if sensitive else (119.0, 2.0)
        return {
            "collection_id": job,
            "instance_index": 0,
            "machine_id": machine,
            "start_time": start,
            "end_time": start + SLOT_US,
            "avg_cpu": usage,
            "cycles_per_instruction": cpi,
            "priority": priority,
            "scheduling_class": klass,
        }

    rows = [
        row(1, 1, 0, 0.5, 1.0, True),
        row(1, 1, 1, 0.5, 3.0, True),
        row(2, 1, 0, 1.0, None, False),
        row(2, 1, 1, 2.0, 5.0, False),
        row(3, 1, 1, 0.0, 1.0, False),  # never used CPU: no coefficient
        row(4, 2, 1, 1.0, 1.0, False),  # never beside a latency-sensitive task: none either
    ]
    out = tmp_path / "fit.parquet"
    assert run(monkeypatch, "fit", write(rows, tmp_path / "t.parquet"), "--out", out, "--method", "panda") == 0
    batch, victim = pq.read_table(out).to_pylist()
    # u = 1, 2 beside mnCPI -1, 1: A = (-1 + 2) / 5, residuals 2 - 1/5 over 1 degree of freedom
    assert (batch["job"], batch["samples"], batch["cpi_samples"]) == ("2", 2, 1)
    assert batch["coefficient"] == pytest.approx(0.2, abs=1e-15)
    assert batch["standard_error"] == pytest.approx(math.sqrt((2 - 0.2) / 1 / 5))
    assert (batch["sum_usage_squared"], batch["mean_cpi"], batch["std_cpi"]) == (5.0, 5.0, 0.0)
    assert (victim["job"], victim["coefficient"], victim["mean_cpi"], victim["std_cpi"]) == ("1", 0.0, 2.0, 1.0)
    assert (victim["latency_sensitive_ratio"], batch["latency_sensitive_ratio"]) == (1.0, 0.0)
    shown = capsys.readouterr().out
    usable = "1 with an unusable CPI: 1 without any, 0 absurd; their usage counts"
    assert f"rows: 6 read, 6 used ({usable}), rejected: none" in shown
    assert "2 jobs from 6 task slots; 2 machine slots with a latency-sensitive task" in shown


def test_bad_rows_are_counted_and_the_rest_goes_through(tmp_path, monkeypatch, capsys):
    rows = trace(machines=4, slots=20)
    bad = [dict(rows[0], machine_id=-1), dict(rows[1])]
    bad.append(dict(rows[3], start_time=8, avg_cpu=-1.0))
    out = tmp_path / "fit.parquet"
    assert (
        run(monkeypatch, "fit", write(rows + bad, tmp_path / "t.parquet"), "--out", out, "--method", "panda", "--json")
        == 0
    )
    counts = json.loads(capsys.readouterr().out)["rows"]
    assert counts["rejected"] == {"bad_cpu_usage": 1, "duplicate": 1, "unknown_machine": 1}
    places = {"bad_cpu_usage": len(rows) + 3, "unknown_machine": len(rows) + 1}
    assert counts["first"] == {reason: f"row {row} of t.parquet" for reason, row in places.items()}
    assert counts["read"] == counts["used"] + 3
    expected = plain(rows)
    for row in pq.read_table(out).to_pylist():
        value, _, scale = expected[row["collection_id"]]
        assert abs(row["coefficient"] - value) <= 1e-12 * scale


@pytest.mark.long
@pytest.mark.parametrize("method", ["whitepanda", "panda"])
def test_a_cpi_that_cannot_be_one_counts_for_nobody_but_its_usage_is_pressure(tmp_path, monkeypatch, capsys, method):
    rng = np.random.default_rng(5)
    absurd = [0.0, -1.0, 1e6, 1e-3, math.inf, math.nan]
    rows = trace(machines=6, slots=60)
    spoilt = [
        dict(row, cycles_per_instruction=absurd[int(rng.integers(6))]) if rng.random() < 0.2 else row for row in rows
    ]
    none = [
        dict(row, cycles_per_instruction=cpi if cpi is not None and 0.01 <= cpi <= 100 else None)
        for row in spoilt
        for cpi in [row["cycles_per_instruction"]]
    ]
    found = []
    for name, each in (("spoilt", spoilt), ("none", none)):
        out = tmp_path / f"{name}-fit.parquet"
        source = write(each, tmp_path / f"{name}.parquet")
        assert run(monkeypatch, "fit", source, "--out", out, "--method", method, "--json") == 0
        counts = json.loads(capsys.readouterr().out)["rows"]
        unusable = sum(row["cycles_per_instruction"] is None for row in none)
        assert (counts["used"], counts["rejected"]) == (len(rows), {})
        assert counts["unusable_cpi"] == unusable
        found.append((counts["without_cpi"], pq.read_table(out)))
    (without, of_spoilt), (all_without, of_none) = found
    assert without < all_without == unusable  # NaN and null are none at all
    assert_alike(of_spoilt, of_none)
    if method == "panda":
        expected = plain(none)
        for row in of_spoilt.to_pylist():
            value, samples, scale = expected[row["collection_id"]]
            assert abs(row["coefficient"] - value) <= 1e-12 * scale
            assert row["samples"] == samples


def test_evaluation_counts_a_cpi_that_cannot_be_one_for_nobody(tmp_path, monkeypatch, capsys):
    source = triggering(tmp_path / "t.parquet")
    rows = pq.read_table(source).to_pylist()
    spoilt = [dict(row, cycles_per_instruction=row["cycles_per_instruction"] or 1e9) for row in rows]
    reported = []
    for file in (source, write(spoilt, tmp_path / "spoilt.parquet")):
        assert run_evaluate(tmp_path, monkeypatch, file, [6], "--json") == 0
        reported.append(json.loads(capsys.readouterr().out))
    counts = [one.pop("rows") for one in reported]
    assert [(one["unusable_cpi"], one["without_cpi"]) for one in counts] == [(1729, 1729), (1729, 0)]
    assert counts[1]["first"] == {"unusable_cpi": "row 3 of spoilt.parquet"}
    for one in reported:
        one.pop("seconds")
    assert reported[0] == reported[1]
    assert reported[0]["events"] == 2


def test_times_in_another_unit_are_refused_in_one_line(tmp_path, monkeypatch, capsys):
    for suffix in (".csv", ".parquet"):
        rows = [
            dict(row, start_time=row["start_time"] // 10**6, end_time=row["end_time"] // 10**6)
            for row in trace(machines=2, slots=5)
        ]
        source = write(rows, tmp_path / f"t{suffix}")
        truth = tmp_path / "truth.json"
        truth.write_text('{"antagonists": [10000000014]}')
        for more in (("fit", source, "--out", tmp_path / "x"), ("evaluate", source, "--truth", truth)):
            assert run(monkeypatch, *more) == 3
            shown = capsys.readouterr()
            assert "'start_time' and 'end_time' must be microseconds: the window of row " in shown.err
            assert "are they seconds? multiply them by 1,000,000, or write them as TIMESTAMP" in shown.err
            assert (shown.err.count("\n"), shown.out) == (1, "")


@pytest.mark.long
def test_a_trace_of_timestamps_gives_the_same_fit(tmp_path, monkeypatch):
    table = pa.Table.from_pylist(trace(machines=4, slots=20))
    found = []
    for kind in (pa.int64(), pa.timestamp("us"), pa.timestamp("ns", "UTC")):
        stamped = table
        for name in ("start_time", "end_time"):
            column = table[name].cast(pa.timestamp("us")).cast(kind) if kind != pa.int64() else table[name]
            stamped = stamped.set_column(stamped.schema.get_field_index(name), name, column)
        pq.write_table(stamped, tmp_path / "t.parquet")
        out = tmp_path / "fit.parquet"
        assert run(monkeypatch, "fit", tmp_path / "t.parquet", "--out", out) == 0
        found.append(pq.read_table(out))
    assert found[0].num_rows == 14
    assert_alike(found[1], found[0])
    assert_alike(found[2], found[0])


def test_what_cannot_be_fitted_is_one_line(tmp_path, monkeypatch, capsys):
    rows = trace(machines=2, slots=5)
    good = write(rows, tmp_path / "good.parquet")
    out = tmp_path / "fit.parquet"
    out.write_bytes(b"what was there before")
    no_usage = write([dict(row, avg_cpu=0.0) for row in rows], tmp_path / "idle.parquet")
    empty = tmp_path / "empty.parquet"
    pq.write_table(pa.Table.from_pylist(rows).slice(0, 0), empty)
    all_bad = write([dict(row, machine_id=-1) for row in rows], tmp_path / "bad.parquet")
    lacking = write([{"collection_id": 1}], tmp_path / "lacking.parquet")
    garbage = tmp_path / "garbage.parquet"
    garbage.write_bytes(b"PAR1 no Parquet")
    cases = [
        ((lacking, "--out", tmp_path / "fit.CSV"), "fit.CSV: coefficients are written as Parquet"),
        ((lacking, "--out", out), "lacking.parquet: missing columns"),
        ((garbage, "--out", out), "garbage.parquet: not readable as Parquet"),
        ((tmp_path / "none", "--out", out), "none: cannot read"),
        ((empty, "--out", out), "empty.parquet: no usable row (the trace is empty)"),
        (
            (all_bad, "--out", out),
            f"no usable row ({len(rows)} rows read; rejected: unknown_machine {len(rows)} (first: row 1 of",
        ),
        (
            (good, "--out", out, "--priority", "201"),
            "no latency-sensitive task with a usable CPI (priority at least 201",
        ),
        ((no_usage, "--out", out), "idle.parquet: no task used CPU beside a latency-sensitive one"),
        ((good, "--out", tmp_path / "no" / "x"), "x: cannot write: No such file or directory"),
        ((good, "--out", tmp_path), "is a folder; give the name of a file"),
        ((good, "--out", good), "good.parquet: is the trace itself"),
        ((good, "--out", out, "--method", "guess"), "cannot fit method 'guess'; known: whitepanda, panda"),
        ((good, "--out", out, "--engine", "abacus"), "unknown engine 'abacus'; known: duckdb, spark"),
        ((good, "--out", out, "--slot-s", "60"), "method whitepanda: slots are 300 s long (value 60)"),
        ((good, "--out", out, "--slot-s", "0"), "a slot must be 0.001 s to 86400.0 s long (value 0.0)"),
    ]
    before = sorted(path.name for path in tmp_path.iterdir())
    for arguments, line in cases:
        assert run(monkeypatch, "fit", *arguments) == 3, line
        shown = capsys.readouterr()
        assert line in shown.err
        assert shown.err.count("\n") == 1, shown.err
        assert shown.out == ""
    assert out.read_bytes() == b"what was there before"
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        ("fit", "--until-day", "0"),
        ("fit", "--until-day", "99999999999999999999"),
        ("evaluate", "--from-day", "0"),
        ("evaluate", "--from-day", "99999999999999999999"),
        ("evaluate", "--seed", "-1"),
    ],
)
def test_numbers_out_of_range_are_refused(tmp_path, monkeypatch, capsys, command, option, value):
    more = ("--out" if command == "fit" else "--truth", tmp_path / "x")
    assert run(monkeypatch, command, tmp_path / "t.parquet", *more, option, value) == 2
    assert capsys.readouterr().err.startswith(f"error: {option}: must be ")


def test_a_file_that_fails_as_it_is_closed_is_one_line(tmp_path, monkeypatch, capsys):
    good = write(trace(machines=2, slots=5), tmp_path / "good.parquet")
    assert run(monkeypatch, "fit", good, "--out", "/dev/full") == 4
    shown = capsys.readouterr()
    assert shown.err == "error: /dev/full: cannot write: No space left on device\n"
    assert shown.out == ""


def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch, capsys):
    good = write(trace(machines=2, slots=5), tmp_path / "good.parquet")

    def full(*_arguments, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Engine, "write", full)
    assert run(monkeypatch, "fit", good, "--out", tmp_path / "fit.parquet") == 4
    shown = capsys.readouterr().err
    assert "No space left on device" in shown
    assert "TMPDIR" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["good.parquet"]


@pytest.mark.long
def test_the_real_trace(data_dir, tmp_path, monkeypatch, capsys):
    source = data_dir / "google2019" / "instance_usage.parquet"
    if not source.exists():
        pytest.skip(f"no {source}")
    out = tmp_path / "fit.parquet"
    assert run(monkeypatch, "fit", source, "--out", out, "--json") == 0
    counts = json.loads(capsys.readouterr().out)["rows"]
    assert counts["read"] == 325_611
    assert counts["read"] == counts["used"] + sum(counts["rejected"].values())
    assert counts["rejected"]["duplicate"] == 7
    table = pq.read_table(out)
    assert table.num_rows > 0
    assert np.isfinite(table["coefficient"].to_numpy()).all()
    assert (table["std_cpi"].to_numpy() >= 0).all()


@pytest.mark.parametrize(("width", "shows_share"), [(80, False), (99, False), (100, True)])
def test_the_fits_table_is_whole_on_a_narrow_terminal(monkeypatch, capsys, width, shows_share):
    row = {
        "job": "383279104271",
        "coefficient": -0.00012345,
        "standard_error": 1.2345e-5,
        "samples": 1_234_567,
        "mean_cpi": 12.345,
        "std_cpi": 0.012345,
        "latency_sensitive_ratio": 1.0,
    }
    counts = {"read": 1, "used": 1, "rejected": {}, "unusable_cpi": 0, "without_cpi": 0, "first": {}}
    summary = {"top": [row], "rows": counts, "jobs": 1, "task_slots": 1, "machine_slots": 1, "last_day": 4}
    for module in (antagonists, outputs):
        monkeypatch.setattr(module, "console", PlainConsole(width=width))
    outputs.report(summary, antagonists._fit_shown({**summary, "out": "a.parquet", "seconds": 1.0}), json=False)
    text = capsys.readouterr().out
    assert "…" not in text
    for cell in ("coefficient", "std. error", "task slots", "mean CPI", "std CPI", "-0.0001234", "1,234,567"):
        assert cell in text
    assert ("┃ sensitive ┃" in text, "100%" in text) == (shows_share, shows_share)
    assert "last day used: 4 (the first is 0)" in text


@pytest.mark.long
def test_fit_of_the_days_before_one_day(tmp_path, monkeypatch, capsys):
    rows = trace(slots=600)
    day = 86_400 * 10**6
    before = write([row for row in rows if row["start_time"] < day], tmp_path / "before.parquet")
    whole = write(rows, tmp_path / "whole.parquet")
    for method in ("whitepanda", "panda"):
        found = []
        for source, more in ((before, ()), (whole, ("--until-day", "1"))):
            out = tmp_path / "fit.parquet"
            assert run(monkeypatch, "fit", source, "--out", out, "--method", method, "--json", *more) == 0
            shown = capsys.readouterr()
            summary = json.loads(shown.out)
            assert (summary["method"], summary["last_day"], shown.err) == (method, 0, "")
            found.append(pq.read_table(out).sort_by("job").to_pylist())
        assert len(found[0]) == 15
        for one, other in zip(*found, strict=True):
            assert one.pop("job") == other.pop("job")
            assert one == pytest.approx(other, rel=1e-9), method
        ranked = sorted(found[0], key=lambda row: -row["coefficient"])
        assert {row["collection_id"] - 10_000_000_000 for row in ranked[:2]} <= {11, 12, 13, 14}
        assert all(row["standard_error"] > 0 for row in found[0])


def on_both_engines(tmp_path, monkeypatch, capsys, *arguments):
    """Standard output of a command on DuckDB and on Spark, as JSON, and the file that each has written."""
    if importlib.util.find_spec("pyspark") is None or shutil.which("java") is None:
        pytest.skip("needs the extra spark and Java")
    out = tmp_path / "fit.parquet"
    for more in ((), ("--engine", "spark", "--spark-master", "local[2]")):
        assert run(monkeypatch, *arguments, "--json", *more) == 0
        yield json.loads(capsys.readouterr().out), pq.read_table(out).to_pylist() if out.exists() else []


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
@pytest.mark.parametrize("method", ["whitepanda", "panda"])
def test_fits_on_spark_equal_those_on_duckdb(tmp_path, monkeypatch, capsys, method):
    source, out = write(trace(machines=6, slots=300), tmp_path / "t.parquet"), tmp_path / "fit.parquet"
    arguments = ("fit", source, "--out", out, "--method", method)
    (expected, rows), (summary, on_spark) = on_both_engines(tmp_path, monkeypatch, capsys, *arguments)
    for key in ("rows", "task_slots", "machine_slots", "jobs"):
        assert summary[key] == expected[key]
    assert [row.pop("job") for row in on_spark] == [row.pop("job") for row in rows]
    for one, other in zip(on_spark, rows, strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
def test_evaluation_on_spark_equals_that_on_duckdb(tmp_path, monkeypatch, capsys):
    truth = tmp_path / "truth.json"
    truth.write_text(json.dumps({"antagonists": [6], "coefficients": {5: 0.0, 6: 1.0, 7: 0.1}}))
    arguments = ("evaluate", contended(tmp_path / "t.parquet"), "--truth", truth, "--from-day", "1")
    (one, _), (other, _) = on_both_engines(tmp_path, monkeypatch, capsys, *arguments)
    assert one["events"] == other["events"] > 0
    assert one["methods"].keys() == other["methods"].keys() == {*METHODS, ORACLE, "default"}
    for method, found in one["methods"].items():
        assert found["ranked"] > 0
        assert found.keys() == other["methods"][method].keys()
        for metric, value in found.items():
            wanted = other["methods"][method][metric]
            assert numbers(value) == pytest.approx(numbers(wanted), rel=1e-9), (method, metric)


def numbers(value):
    """A number, or an interval, as a list; what is not known is -inf there, which equals no number."""
    return [-math.inf if each is None else each for each in (value if isinstance(value, list) else [value])]


def contended(path):
    """Three days of five machines: now and then job 6 uses much and jobs 1 and 2 suffer, more each day."""
    rng = np.random.default_rng(0)
    rows = []
    for slot in range(3 * 288):
        for machine in range(5):
            high = (slot // 8 + machine) % 12 == 0
            for job in (1, 2, 5, 6, 7):
                usage = (1.0 if high else 0.01) if job == 6 else 0.1 * job * rng.lognormal(0, 0.3)
                cpi = (1.8 + 0.05 * (slot // 288) if high else 1.0) * rng.lognormal(0, 0.05)
                times = {"start_time": slot * SLOT_US, "end_time": (slot + 1) * SLOT_US}
                rows.append(
                    {
                        "collection_id": job,
                        "instance_index": machine,
                        "machine_id": machine + 1,
                        "avg_cpu": usage,
                        "priority": 200.0 if job < 5 else 100.0,
                        "scheduling_class": 3.0 if job < 5 else 1.0,
                        "cycles_per_instruction": cpi if job < 5 else None,
                        **times,
                    }
                )
    return write(rows, path)


def test_without_pyspark_the_engine_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    source, out = write(trace(machines=2, slots=5), tmp_path / "t.parquet"), tmp_path / "fit.parquet"
    assert run(monkeypatch, "fit", source, "--out", out, "--engine", "spark") == 4
    shown = capsys.readouterr().err
    assert "engine spark: " in shown
    assert (
        "`python3 tools/bootstrap.py spark` in a checkout, or use engine duckdb (build.engine, --engine)"
        in " ".join(shown.split())
    )
    assert not out.exists()


def evaluation_of(tmp_path):
    """Arguments that evaluate a trace."""
    source = write(trace(machines=6, slots=700), tmp_path / "t.parquet")
    truth = tmp_path / "truth.json"
    jobs = {10_000_000_000 + job: 0.05 * (job - 5) for job in range(5, 15)}
    truth.write_text(json.dumps({"antagonists": [10_000_000_014, "10000000013"], "coefficients": jobs}))
    return "evaluate", source, "--truth", truth, "--from-day", "1"


@pytest.mark.long
def test_a_trace_that_ends_before_until_day_is_reported(tmp_path, monkeypatch, capsys):
    source = write(trace(machines=2, slots=5), tmp_path / "t.parquet")
    arguments = ("fit", source, "--out", tmp_path / "fit.parquet", "--json", "--until-day")
    for day, said in ((1, ""), (99, "warning: --until-day 99: the last day before it that the trace has is 0\n")):
        assert run(monkeypatch, *arguments, day) == 0
        shown = capsys.readouterr()
        assert (json.loads(shown.out)["last_day"], shown.err) == (0, said)


def triggering(path, *, raised=(100, 101, 102, 103)):
    """Two days of one machine: jobs 1 and 2 suffer in slots `raised` of the second, job 9 ran in the first slot."""
    rows = []
    for slot in range(2 * 288):
        for job in (1, 2, 5, 6, 7, *((9,) if slot == 0 else ())):
            row = {"collection_id": job, "instance_index": 0, "machine_id": 1, "avg_cpu": 0.1 * job}
            times = {"start_time": slot * SLOT_US, "end_time": (slot + 1) * SLOT_US}
            cpi = 2.0 if slot - 288 in raised else 1.0 + 0.2 * ((slot + job) % 2)
            kind = (200.0, 3.0, cpi) if job < 5 else (100.0, 1.0, None)
            names = ("priority", "scheduling_class", "cycles_per_instruction")
            rows.append(row | times | dict(zip(names, kind, strict=True)))
    return write(rows, path)


def assert_alike(one, other):
    """The same fit but for the order of additions."""
    rows = [table.sort_by("job").to_pylist() for table in (one, other)]
    assert [row.pop("job") for row in rows[0]] == [row.pop("job") for row in rows[1]]
    for each, also in zip(*rows, strict=True):
        assert each == pytest.approx(also, rel=1e-9, abs=1e-12)


def run_evaluate(tmp_path, monkeypatch, source, jobs, *more):
    truth = tmp_path / "truth.json"
    truth.write_text(json.dumps({"antagonists": jobs}))
    return run(monkeypatch, "evaluate", source, "--truth", truth, "--from-day", "1", "--methods", "cpi2", *more)


def test_evaluate_as_a_table(tmp_path, monkeypatch, capsys):
    source = triggering(tmp_path / "t.parquet")
    assert run_evaluate(tmp_path, monkeypatch, source, [6, 8], "--methods", "cpi2, default") == 0
    shown = capsys.readouterr().out
    assert [name for name in ("cpi2", "whitepanda", "proctor") if name in shown] == ["cpi2", "whitepanda"]
    last = "2 events of 2 triggers, on 1 machines (too few for intervals) in 1 of 2 days; 1 of the antagonists are in"
    cpi = "2,881 used (1,729 with an unusable CPI: 1,729 without any, 0 absurd; their usage counts)"
    assert shown.splitlines()[-2:] == [f"{last} the trace", f"rows: 2,881 read, {cpi}, rejected: none"]
    assert " to " not in shown


@pytest.mark.long
def test_why_nothing_could_be_ranked_is_reported(tmp_path, monkeypatch, capsys):
    source = triggering(tmp_path / "t.parquet")
    quiet = triggering(tmp_path / "quiet.parquet", raised=())
    for file, jobs, triggers, why in (
        (source, [1], 2, "every antagonist in the trace is latency-sensitive throughout, so never a suspect"),
        (source, [9], 2, "2 triggers, none with a true antagonist and another suspect there"),
        (quiet, [6], 0, "no machine triggered: no mnCPI above its 99th percentile with victims in 3 slots in a row"),
    ):
        assert run_evaluate(tmp_path, monkeypatch, file, jobs, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["events"], found["triggers"], found["no_event_because"]) == (0, triggers, why)
    assert run_evaluate(tmp_path, monkeypatch, quiet, [6]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"nothing to rank: {why}\n0 events of 0 triggers, on 0 machines in 1 of 2 days; 1 of")


def test_a_trace_that_cannot_answer_is_one_line(tmp_path, monkeypatch, capsys):
    source = triggering(tmp_path / "t.parquet")
    for jobs, more, line in (
        ([77, 99], (), "t.parquet: none of the truth's antagonists is in the trace (the first is 77); is it the truth"),
        (
            [6],
            ("--priority", "1000"),
            "t.parquet: no latency-sensitive task with a usable CPI (priority at least 1000, sched",
        ),
    ):
        assert run_evaluate(tmp_path, monkeypatch, source, jobs, *more) == 3
        shown = capsys.readouterr()
        assert shown.err.startswith(f"error: {source.parent}/{line}")
        assert (shown.err.count("\n"), shown.out) == (1, "")


@pytest.mark.long
def test_evaluate_as_json(tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, *evaluation_of(tmp_path), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    names = ["panda", "panda_local", "cpi2", "proctor", "whitepanda", "oracle", "default"]
    assert list(found["methods"]) == names
    assert found["methods"]["default"] == found["methods"]["whitepanda"]
    assert found["default"] == {"method": "whitepanda", **found["methods"]["whitepanda"]}
    assert found["events"] >= 0
    assert (found["days"], found["evaluated_days"], found["antagonists"]) == (3, 2, 2)
    assert set(found["methods"]["panda"]) >= {"mean_percentile", "mean_percentile_interval", "consistency"}


@pytest.mark.long
def test_what_cannot_be_evaluated_is_one_clear_line(tmp_path, monkeypatch, capsys):
    source = write(trace(machines=2, slots=5), tmp_path / "t.parquet")
    truth = tmp_path / "truth.json"
    cases = [
        (None, (), "truth.json: cannot read: No such file"),
        ("{", (), "truth.json: is not JSON"),
        ("[]", (), 'must be {"antagonists": [job ids]} with at least one job'),
        ('{"antagonists": []}', (), "names no antagonist, so there is nothing to rank"),
        ('{"antagonists": [true]}', (), "job ids must be integers"),
        ('{"antagonists": [1], "coefficients": {"1": "x"}}', (), "coefficients finite numbers: could not"),
        ('{"antagonists": [1], "coefficients": {"1": NaN}}', (), "coefficients finite numbers: coefficient nan"),
        ('{"antagonists": [1], "coefficients": [2]}', (), '"coefficients" must be {job id: value} (value [2])'),
        ('{"antagonists": [1], "coefficients": {"1": 1e999}}', (), "finite numbers: coefficient inf"),
        ('{"antagonists": [1], "coefficients": {"1": true}}', (), "finite numbers: coefficient True"),
        ('{"antagonists": [1], "coefficients": {"1": 1' + 400 * "0" + "}}", (), "finite numbers: int too large"),
        ('{"antagonists": [9223372036854775808]}', (), "integers of 64 bits and coefficients finite numbers: job 92"),
        ('{"antagonists": ["-9223372036854775809"]}', (), "finite numbers: job '-92"),
        (100_000 * "[", (), "truth.json: is not JSON: "),
        ('{"antagonists": [1]}', ("--methods", " ,"), "--methods names none (value ' ,'); leave it out for all"),
        ('{"antagonists": [1]}', ("--methods", "guess"), "unknown method 'guess'; known: panda, panda_local"),
        ('{"antagonists": [1]}', ("--methods", "oracle"), "method oracle: the truth has no"),
        ('{"antagonists": [1]}', (), "no day to evaluate: days 0 to 0, evaluated from day 20"),
    ]
    for text, more, line in cases:
        truth.unlink(missing_ok=True)
        if text is not None:
            truth.write_text(text)
        assert run(monkeypatch, "evaluate", source, "--truth", truth, *more) == 3, line
        shown = capsys.readouterr()
        assert line in shown.err
        assert shown.err.count("\n") == 1, shown.err
        assert shown.out == ""
