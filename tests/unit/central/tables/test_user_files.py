"""Tables that people give: what is read of them whatever wrote them, and what is refused."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from central.tables.user_files import UserTable
from whitepanda.common.errors import InputError


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_cells_are_the_same_whatever_is_between_them(tmp_path, delimiter):
    path = tmp_path / "rows.csv"
    text = 'job, cpu\n"a\nb", 0.5\n\n,\n1.10,+1\n'
    path.write_text("\ufeff" + text.replace(",", delimiter), encoding="utf-8")
    table = UserTable(path)
    assert (table.columns, len(table)) == (["job", "cpu"], 2)
    assert table.names("job").tolist() == ["a\nb", "1.10"]
    assert table.numbers("cpu").tolist() == [0.5, 1.0]


def test_parquet_in_a_folder_named_after_a_day_has_its_own_columns_only(tmp_path):
    path = tmp_path / "day=2026-11-01" / "rows.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"job": ["a", None], "cpu": [1.0, math.nan]}), path)
    table = UserTable(path)
    assert table.columns == ["job", "cpu"]
    assert table.texts("job").tolist() == ["a", ""]
    np.testing.assert_array_equal(table.numbers("cpu", empty=math.nan), [1.0, math.nan])
    with pytest.raises(InputError, match=r"rows.parquet: column job is empty \(row 2\)$"):
        table.names("job")
    with pytest.raises(InputError, match=r"column cpu must be numbers of 0 or more \(row 2: nan\)$"):
        table.numbers("cpu")


def test_what_an_empty_cell_stands_for_need_not_be_within_the_bounds(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n1,\n2,3\n")
    assert UserTable(path).numbers("b", high=5.0, empty=math.inf).tolist() == [math.inf, 3.0]
