"""RUNS files: what is read, what is left out and told, what is refused; the paper's two errors."""

import math
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agent.analysis.signals import IDLE
from central.degradation.evaluate import errors
from central.degradation.fit import RULE_SIGNALS, FitOptions, cells
from central.degradation.runs import Columns, Table, make_runs
from tests.support.central_process import ROOT
from whitepanda.common.errors import InputError

HEADER = "scenario,phase,vm,at_s,p95,ipc,disk\n"
ROWS = """\
cache,quiet,a,0,0.010,2.0,0
cache,quiet,a,1,0.030,1.0,
cache,stress,a,2,0.040,0.75,5
cache,stress,a,3,,0.5,5
cache,stress,b,4,0.040,0.5,5
cache,stress,a,5,0.050,,5
"""
TWO_STATEMENTS = "true)::BOOLEAN, false) FROM runs; DROP TABLE runs; SELECT coalesce((true"
COLUMNS = Columns("p95", "phase = 'quiet'", ("scenario", "vm"), ("ipc", "disk"), "scenario", "at_s")


def written(tmp_path, rows=ROWS, header=HEADER):
    path = tmp_path / "runs.csv"
    path.write_text(header + rows)
    return path


def with_columns(**changes):
    fields = {name: getattr(COLUMNS, name) for name in COLUMNS.__slots__}
    return Columns(**{**fields, **changes})


@pytest.mark.long
def test_no_bar_of_the_reader_is_on_standard_output(tmp_path):
    code = f"""
from pathlib import Path
from central.degradation.runs import Table
print(Table(Path({str(written(tmp_path))!r}))._duckdb.sql("SELECT current_setting('enable_progress_bar')").fetchall())
"""
    # Without a script DuckDB takes Python for a person at a prompt.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[(False,)]\n"


def test_degradation_is_relative_to_the_mean_of_the_groups_baseline(tmp_path):
    runs = make_runs(Table(written(tmp_path)), COLUMNS)
    group = runs.groups["cache", "a"]
    assert (group.rows, group.target) == (2, pytest.approx(0.02))
    assert group.values.tolist() == [1.5, 0.0]  # of disk the one row that knows it
    assert runs.degradation.tolist() == pytest.approx([0.5, 2.0])
    assert runs.is_baseline.tolist() == [True, False]
    assert runs.values.tolist() == [[2.0, 0.0], [0.75, 5.0]]
    assert runs.at_s.tolist() == [0.0, 2.0]


def test_rows_that_cannot_be_used_are_counted(tmp_path):
    counts = make_runs(Table(written(tmp_path)), COLUMNS).counts
    assert counts == {
        "read": 6,
        "not_wanted": 0,
        "without_target": 1,
        "without_baseline": 1,  # vm b was never quiet
        "without_feature": 2,
        "used": 2,
    }
    assert make_runs(Table(written(tmp_path)), with_columns(where="at_s < 3")).counts["not_wanted"] == 3


def test_a_feature_that_no_row_knows_is_left_out(tmp_path):
    rows = ROWS.replace(",5\n", ",\n").replace(",0\n", ",\n")
    runs = make_runs(Table(written(tmp_path, rows)), COLUMNS)
    assert runs.left_out_features == ("disk",)
    assert runs.columns.features == ("ipc",)
    assert runs.values.shape == (3, 1)


def test_parquet_and_csv_are_the_same(tmp_path):
    path = written(tmp_path)
    parquet = tmp_path / "runs.parquet"
    pq.write_table(Table(path).all_columns(), parquet)
    one, other = make_runs(Table(path), COLUMNS), make_runs(Table(parquet), COLUMNS)
    assert one.degradation.tolist() == other.degradation.tolist()
    assert one.groups.keys() == other.groups.keys()


def test_not_a_number_in_parquet_is_not_known(tmp_path):
    parquet = tmp_path / "runs.parquet"
    columns = {"q": [1, 0, 0], "p95": [1.0, 2.0, 4.0], "ipc": [1.0, math.nan, 3.0]}
    pq.write_table(pa.table(columns), parquet)
    runs = make_runs(Table(parquet), Columns("p95", "q = 1", (), ("ipc",)))
    assert runs.counts["without_feature"] == 1
    assert runs.degradation.tolist() == [1.0, 4.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "p99"}, "no column p99 (wanted by --target); it has scenario, phase, vm, at_s, p95, ipc, disk"),
        ({"features": ("ipc", "cpi")}, "no column cpi (wanted by --features)"),
        ({"group_by": ("host",)}, "no column host (wanted by --group-by)"),
        ({"features": ("phase",)}, "column phase must be numbers (row 1: 'quiet')"),
        ({"baseline_where": "phase = 'calm'"}, "no row is a baseline (--baseline-where phase = 'calm')"),
        ({"baseline_where": "fase = 'quiet'"}, "--baseline-where: Binder Error"),
        ({"baseline_where": "phase = "}, "--baseline-where: Parser Error"),
        ({"baseline_where": TWO_STATEMENTS}, "must be one condition"),
        ({"where": "at_s > 100"}, "no usable row of 6 (6 not wanted (--where))"),
    ],
)
def test_what_is_wrong_is_reported_in_one_line(tmp_path, changes, message):
    with pytest.raises(InputError) as caught:
        make_runs(Table(written(tmp_path)), with_columns(**changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_target_that_is_not_positive_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"target p95 must be positive \(row 3: 0; 1 such rows\)"):
        make_runs(Table(written(tmp_path, ROWS.replace("0.040,0.75", "0,0.75"))), COLUMNS)


def test_expressions_can_open_no_file(tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("x\n1\n")
    table = Table(written(tmp_path))
    for expression in (
        f"(SELECT x FROM '{secret}') = 1",  # noqa: S608 - the very thing that must fail
        f"(SELECT count(*) FROM read_text('{secret}')) = 1",  # noqa: S608 - the very thing that must fail
    ):
        with pytest.raises(InputError, match="--where: Permission Error"):
            table.where(expression, "--where")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.csv", None, "no such file"),
        ("bad.parquet", b"not parquet", "cannot be read as Parquet"),
        ("odd[1].csv", b"a\n1\n", "are not supported; rename it"),
    ],
)
def test_a_file_that_cannot_be_read_is_reported(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        Table(path)
    assert message in str(caught.value)


def test_the_papers_errors_of_two_runs():
    measured = np.array([1.0, 2.0, 4.0, 2.0, 2.0])
    estimated = np.array([1.1, 2.0, 3.0, 2.0, 3.0])
    runs = np.array(["a", "a", "a", "b", "b"])
    at_s = np.array([0.1, 0.9, 1.5, 7.0, 8.0])
    reported = errors(measured, estimated, runs, at_s)
    # a: 95th percentiles 3.8 and 2.9; quanta (1.5, 1.55) and (4, 3). b: 2 and 2.95; quanta 0 and 0.5.
    assert reported["overall_error"] == pytest.approx((0.9 / 3.8 + 0.95 / 2) / 2)
    assert reported["dynamic_error"] == pytest.approx(((0.05 / 1.5 + 0.25) / 2 + 0.25) / 2)
    assert reported["mean_ape"] == pytest.approx((0.1 + 0 + 0.25 + 0 + 0.5) / 5)
    assert reported["median_ape"] == pytest.approx(0.1)


def test_rows_without_an_estimate_do_not_count_and_none_at_all_is_no_error_of_0():
    measured, runs, at_s = np.array([1.0, 2.0]), np.array(["a", "b"]), np.full(2, math.nan)
    assert errors(measured, np.array([1.5, math.nan]), runs, at_s)["mean_ape"] == pytest.approx(0.5)
    assert math.isnan(errors(measured, np.full(2, math.nan), runs, at_s)["overall_error"])


def test_the_cells_that_models_are_fitted_to_are_those_that_they_serve(tmp_path):
    """Of workers where these are reported: a level's model is fitted to the rows for which it is chosen later."""
    path = tmp_path / "runs.csv"
    lines = ["vm,phase,p95_s,ipc,guest_ratio,vcpu_idle_ratio,memory_stall_ratio,total_stall_ratio"]
    for vm, guest, idle in (("nobody", 0.2, 0.8), ("one", 0.24, 0.52), ("busy", 0.4, 0.2)):
        lines += [f"{vm},{phase},1,1,{guest},{idle},0.3,0.4" for phase in ("quiet", "stress")]
    path.write_text("\n".join(lines))
    levels = {}
    for features in (("ipc", "guest_ratio"), ("ipc", "guest_ratio", IDLE)):
        columns = Columns("p95_s", "phase = 'quiet'", ("vm",), features, "vm", extra_inputs=RULE_SIGNALS)
        behaviours, found = cells(make_runs(Table(path), columns), FitOptions())
        assert set(behaviours) == {"memory-bound"}
        levels[IDLE in features] = found[::2].tolist()
    assert levels[False] == [0.2, 0.2, 0.4]
    assert levels[True] == pytest.approx([0.2, 0.5, math.nan], nan_ok=True)
