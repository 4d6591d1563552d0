"""Tables of runtimes: names stay the texts that they are, lists go into CSV, and what is refused before any work."""

import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from central.cli.shared.outputs import TABLES, check_output
from central.degradation.runs import Table
from central.models.pitot import ALONE, Rows
from central.runtimes.evaluate import measure
from central.runtimes.tables import Names, read_features, read_log_runtimes, read_rows
from central.tables.csv_files import write_table
from whitepanda.common.errors import InputError, UnavailableError


def test_names_and_other_columns_of_csv_stay_as_they_are_written(tmp_path):
    text = "workload,platform,interferer,seen,is_x,version\n1.10,007,1e3,2026-01-02 03:04,True,1.10\n1.1,7,,,,\n"
    (tmp_path / "rows.csv").write_text(text)
    found = read_rows(tmp_path / "rows.csv")
    assert (found.workloads, found.platforms, found.interferers) == (("1.10", "1.1"), ("007", "7"), ("1e3",))
    write_table(tmp_path / "again.csv", found.table.cells)
    again = list(csv.reader((tmp_path / "again.csv").open()))
    assert again == list(csv.reader((tmp_path / "rows.csv").open()))
    (tmp_path / "f.csv").write_text("workload,x\n1.10,1\n1.1,2e1\n")
    features = read_features(tmp_path / "f.csv", "workload")
    assert (features.names.names, features.values.tolist()) == (("1.10", "1.1"), [[1.0], [20.0]])


def test_without_a_column_of_interferers_all_ran_alone(tmp_path):
    (tmp_path / "rows.csv").write_text("workload,platform,runtime_us\na,x,5\nb,x,6\n")
    found = read_rows(tmp_path / "rows.csv")
    assert (found.rows.interferers.tolist(), found.interferers) == ([[ALONE], [ALONE]], ())
    assert np.exp(read_log_runtimes(found)).tolist() == pytest.approx([5, 6])


def test_a_column_of_nan_is_nobody(tmp_path):
    table = {"workload": ["a", "b"], "platform": ["x", "x"], "interferer": [float("nan")] * 2}
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    assert read_rows(tmp_path / "rows.parquet").rows.interferers.tolist() == [[ALONE], [ALONE]]


def test_what_programs_write_for_nothing_is_nobody_unless_a_workload_is_called_so(tmp_path):
    header, path = "workload,platform,interferer_1,interferer_2\n", tmp_path / "rows.csv"
    path.write_text(header + "a,x,NaN,b\na,x,None,null\na,x,NA,nan\nb,x,a,\n")
    platforms = Names.of(("x",))
    placed = read_rows(path).placed(Names.of(("a", "b")), platforms, "remedy")
    assert placed.interferers.tolist() == [[1, ALONE], [ALONE, ALONE], [ALONE, ALONE], [0, ALONE]]
    placed = read_rows(path).placed(Names.of(("a", "b", "NaN")), platforms, "remedy")
    assert placed.interferers.tolist() == [[2, 1], [ALONE, ALONE], [ALONE, ALONE], [0, ALONE]]
    path.write_text(header + "a,x,NaN,c\na,x,-,\nc,x,,\n")
    named = read_rows(path)
    assert named.known(Names.of(("a", "b")), platforms)[1].tolist() == [False, False, False]
    with pytest.raises(InputError, match=r"workload 'c' is not known \(row 3; 3 rows with unknown names\); remedy"):
        named.placed(Names.of(("a", "b")), platforms, "remedy")
    with pytest.raises(InputError, match=r"interferer '-' is not known \(row 2\); remedy"):
        named.placed(Names.of(("a", "c")), platforms, "remedy")
    # Of workloads and platforms such texts are names.
    path.write_text("workload,platform\nnan,x\n")
    with pytest.raises(InputError, match="workload 'nan' is not known"):
        read_rows(path).placed(Names.of(("a",)), platforms, "remedy")


@pytest.mark.parametrize("name", ["workload", "platform", "interferer"])
@pytest.mark.parametrize(("value", "said"), [
    ([["a"], ["b"]], "must be one name per row (it is list<"),
    ([b"\xff", b"a"], "must be names (it is binary: Invalid UTF8"),
])  # fmt: skip
def test_names_that_are_no_texts_are_refused(name, value, said, tmp_path):
    columns = {"workload": ["a", "b"], "platform": ["x", "x"], "interferer": ["a", "b"]} | {name: value}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    with pytest.raises(InputError) as error:
        read_rows(tmp_path / "rows.parquet")
    assert f"rows.parquet: column {name} {said}" in str(error.value)


def test_runtimes_that_are_all_inf_are_refused(tmp_path):
    (tmp_path / "rows.csv").write_text("workload,platform,runtime_us\na,x,inf\nb,x,inf\n")
    with pytest.raises(InputError, match=r"column runtime_us must be finite numbers \(row 1: inf\)"):
        read_log_runtimes(read_rows(tmp_path / "rows.csv"))
    # As other commands read it, DuckDB takes the column for dates.
    with pytest.raises(InputError, match=r"column runtime_us must be numbers \(row 1: "):
        Table(tmp_path / "rows.csv").numbers("runtime_us")


def test_lists_go_into_csv_as_they_are_read_from_there(tmp_path):
    columns = {"workload": ["a", "b", "c"], "platform": ["x"] * 3, "interferers": [["b", "c"], [], None]}
    table = pa.table(columns | {"sizes": [[1, 2], None, [3]]})
    write_table(tmp_path / "out.csv", table)
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [row["interferers"] for row in rows] == ["b;c", "", ""]
    assert [row["sizes"] for row in rows] == ["1;2", "", "3"]
    assert read_rows(tmp_path / "out.csv").rows.co_runners.tolist() == [2, 0, 0]
    with pytest.raises(InputError, match=r"out.csv: cannot write: .*; write Parquet, or leave such columns out"):
        write_table(tmp_path / "out.csv", table.append_column("deep", pa.array([{"a": 1}] * 3)))
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 4  # the one before


def rows_of(n):
    return Rows(np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), np.full((n, 1), ALONE))


def test_one_row_has_an_error_and_no_interval():
    zero = np.zeros(1)
    found = measure(rows_of(1), zero, zero + np.log(1.25), np.ones((1, 1)), [0.1])["0"]
    assert found["mape"] == pytest.approx(0.25)
    assert found["mape_half_width"] is found["mape_by_prediction_half_width"] is None
    assert found["bounds"]["0.1"]["margin_half_width"] is None


def test_means_have_their_intervals():
    log_us, predicted, bounds = np.zeros(4), np.log([1.0, 2, 1, 2]), np.log([[2.0, 4, 2, 4]])
    found = measure(rows_of(4), log_us, predicted, bounds, [0.1])["0"]
    z = 1.959964
    assert found["mape_half_width"] == pytest.approx(z * 0.5 / 2)
    assert (found["mape_by_prediction"], found["mape_by_prediction_half_width"]) == pytest.approx((0.25, z * 0.25 / 2))
    bound = found["bounds"]["0.1"]
    assert (bound["margin"], bound["margin_half_width"]) == pytest.approx((2.0, z * 1.0 / 2))
    assert (bound["margin_by_bound"], bound["margin_by_bound_half_width"]) == pytest.approx((0.625, z * 0.125 / 2))


def test_errors_too_large_for_numbers_are_not_known():
    log_us = np.log([1e-308, 1e308])
    found = measure(rows_of(2), log_us, log_us[::-1], log_us[None, ::-1], [0.1], ["0.10"])["0"]
    assert (found["mape"], found["mape_half_width"], found["mape_by_prediction"]) == (None, None, None)
    assert found["bounds"]["0.10"]["coverage"] == 0.5
    assert found["bounds"]["0.10"]["margin"] is None


def test_what_cannot_be_written_is_reported_at_once(tmp_path):
    here = tmp_path / "rows.csv"
    here.touch()
    check_output(tmp_path / "new.parquet", suffixes=TABLES, others={"ROWS": here})
    check_output(tmp_path / "plain", suffixes=TABLES)
    (tmp_path / "link.csv").symlink_to(here)
    for path, said in (
        (tmp_path / "link.csv", "link.csv: --out is ROWS itself; give the name of another file"),
        (tmp_path, "is a folder; give the name of a file"),
        (tmp_path / "none" / "t.csv", "cannot write: there is no folder"),
        (here / "t.csv", "cannot write: there is no folder"),
        (tmp_path / "t.xyz", "t.xyz: must end in .csv or .parquet or .pq"),
    ):
        with pytest.raises((InputError, UnavailableError)) as error:
            check_output(path, suffixes=TABLES, others={"ROWS": here})
        assert said in str(error.value)
