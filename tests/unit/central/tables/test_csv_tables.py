"""CSV files: no text of theirs is a formula to a spreadsheet, and what reads them has the texts that were written."""

import csv
import io
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from central.degradation.runs import Table
from central.tables.csv_files import read_texts, write_csv
from central.tables.user_files import UserTable
from central.traces.generator.write import SCHEMA
from central.upgrades.tables import read_machines, write_machines
from whitepanda.common.files.csv_cells import csv_cell, csv_line, csv_text

ROOT = Path(__file__).resolve().parents[4]
STARTS = "=+-@\t\r"
HOSTILE = ["=1+1", "+1-1", "-cmd|' /C calc'!A0", "@SUM(1)", "\tx", "\rx", "'=1", "''@x", "=", "-", "-5e", '=A"1",2']
#: In many countries `;` is between the cells of a file. Some programs take a tab, and in an unquoted cell a line ends.
INNER = [
    ("x;=1+1", "x;'=1+1"),
    ("x;y;@a;-5", "x;y;'@a;'-5"),
    ("=a;+b", "'=a;'+b"),
    ("x\t=1", "x\t'=1"),
    ("x\r\n=1", "x\r\n'=1"),
    ("x;\t=1", "x;\t'=1"),
    ("x;'=1", "x;''=1"),
    ('x;"=1', """x;'"=1"""),
]
HARMLESS = ["web-1", "-5", "+0.5", "-1.5e-3", "'quoted'", "'", "", "a=b", "é", "a;b", "a;'b'", "a; b-1", "a,=b"]
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
ANY = st.one_of(
    TEXTS,
    st.sampled_from(HOSTILE),
    st.builds("{}{}".format, st.sampled_from([*STARTS, "'=", "''-"]), TEXTS),
    st.text("ax;=+-@\t\r\n'\"", max_size=12),
)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_formula_is_written_with_a_quote(text):
    assert csv_cell(text) == f"'{text}"


@pytest.mark.parametrize(("text", "cell"), INNER)
def test_a_formula_after_another_separator_is_written_with_a_quote(text, cell):
    assert csv_cell(text) == cell
    assert csv_text(cell) == text


@given(st.lists(ANY.filter(lambda text: not is_number(text)), min_size=1, max_size=5))
def test_a_program_with_another_separator_finds_no_formula(texts):
    for delimiter in ",;\t":
        for cells in csv.reader(io.StringIO(csv_line(texts), newline=""), delimiter=delimiter):
            assert [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))] == []


@pytest.mark.parametrize("text", HARMLESS)
def test_numbers_and_other_texts_stay_as_they_are(text):
    assert csv_cell(text) == text


@given(st.lists(ANY, min_size=1, max_size=5))
def test_a_line_keeps_its_texts(texts):
    (cells,) = csv.reader(io.StringIO(csv_line([*texts, -1.5, None]), newline=""))
    assert [csv_text(cell) for cell in cells] == [*texts, "-1.5", ""]
    assert not any(cell.startswith(tuple(STARTS)) for cell in cells[:-2] if not is_number(cell))


@given(
    st.lists(ANY, min_size=1, max_size=5),
    st.sampled_from([pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]),
)
def test_a_table_keeps_its_texts(texts, kind):
    table = pa.table({"=job": pa.array(texts, pa.string()).cast(kind), "-n": [-1.5] * len(texts)})
    file = io.BytesIO()
    write_csv(table, file)
    rows = list(csv.reader(io.StringIO(file.getvalue().decode(), newline="")))
    assert rows[0] == ["'=job", "'-n"]
    assert rows[1:] == [[csv_cell(text), "-1.5"] for text in texts]
    options = pa_csv.ConvertOptions(column_types={"'=job": pa.string()}, strings_can_be_null=False)
    parsing = pa_csv.ParseOptions(newlines_in_values=True)
    read = read_texts(pa_csv.read_csv(io.BytesIO(file.getvalue()), convert_options=options, parse_options=parsing))
    assert read.to_pydict() == {"=job": texts, "-n": [-1.5] * len(texts)}


def is_number(cell: str) -> bool:
    return re.fullmatch(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", cell) is not None


def test_what_is_not_known_stays_empty():
    file = io.BytesIO()
    write_csv(pa.table({"job": pa.array([None, "=a"], pa.string())}), file)
    assert file.getvalue() == b'"job"\n\n"\'=a"\n'


NAMES = ["=job", "@job", "-job", "'=job", "web", "web;=1", "=a;-b;'+c;d"]


def test_a_table_of_runs_keeps_its_names(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(csv_line(["=column", "n"]) + "".join(csv_line([name, -1.5]) for name in NAMES))
    table = Table(path)
    assert table.columns == ("=column", "n")
    assert [name for (name,) in table.labels(["=column"])] == NAMES
    assert table.numbers("n").tolist() == [-1.5] * len(NAMES)


def test_a_file_of_machines_keeps_its_names(tmp_path):
    path = tmp_path / "machines.csv"
    write_machines(path, NAMES)
    assert "'=job" in path.read_text()
    assert sorted(read_machines(path)) == sorted(NAMES)


def test_a_file_of_loadings_keeps_its_names(tmp_path):
    path = tmp_path / "loadings.csv"
    path.write_text(csv_line(["job", "+cpu"]) + "".join(csv_line([name, 0.5]) for name in NAMES))
    rows = UserTable(path)
    assert rows.columns == ["job", "+cpu"]
    assert rows.names("job").tolist() == NAMES


def test_every_csv_file_is_written_by_the_two_modules():
    """A new one is written by `csv_line` or `csv_tables.write_csv`: in others a text may be a formula."""
    writing = re.compile(
        r"csv\.writer\(|DictWriter\(|CSVWriter\(|csv\.write_csv\(|\.to_csv\(|FORMAT csv", re.IGNORECASE
    )
    folders = [ROOT / name for name in ("agent", "central", "collector", "proto", "tools", "bench")]
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in folder.rglob("*.py")
        if writing.search(path.read_text(encoding="utf-8"))
    }
    numbers_alone = {"central/traces/generator/write.py"}
    assert found == {"proto/whitepanda/common/files/csv_cells.py", "central/tables/csv_files.py", *numbers_alone}
    assert all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in SCHEMA.types)
