"""What `whitepanda fleet` writes, and every command of its guide."""

import contextlib
import os
import re
import resource
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.fleet_cli import HEADER, PAPER, rows_file, write

ROOT = Path(__file__).resolve().parents[4]


def test_names_that_are_lists_get_one_line(run, tmp_path) -> None:
    pq.write_table(pa.table({"machine": ["x"], "job": [["a"]], "ipc": [1.0]}), tmp_path / "r.parquet")
    code, _, err = run("jobs", tmp_path / "r.parquet", "--out", tmp_path / "j.csv")
    assert (code, "column job must be names, not list<" in err, err.count("\n")) == (3, True, 1)


@contextlib.contextmanager
def small_disk():
    """No file can grow beyond a kilobyte; not for longer than needed, because pytest's own output may be a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_an_output_is_whole_or_as_it_was(run, tmp_path, ending) -> None:
    out = write(tmp_path / f"rows.{ending}", "the old file")
    with small_disk():
        code, _, err = run("simulate", out, "--machines", 100, "--jobs", 20, "--instances", 500)
    assert (code, "cannot write: File too large" in err, err.count("\n")) == (3, True, 1)
    assert out.read_text() == "the old file"
    assert list(tmp_path.iterdir()) == [out]


def test_no_input_is_written_over_and_no_format_is_guessed(run, tmp_path) -> None:
    rows, jobs = rows_file(tmp_path / "now.parquet"), write(tmp_path / "jobs.csv", PAPER)
    plan, link = write(tmp_path / "plan.csv", "{}"), tmp_path / "link.parquet"
    link.symlink_to(rows)
    before = {path: path.read_bytes() for path in (rows, jobs, plan)}
    for arguments, message in (
        (("jobs", rows, "--out", rows), "now.parquet: --out is ROWS itself; give the name of another file"),
        (("jobs", rows, "--out", link), "--out is ROWS itself"),
        (("draw", rows, "--machines", 9, "--out", rows), "--out is ROWS itself"),
        (("draw", rows, "--plan", plan, "--out", plan), "--out is --plan itself"),
        (("simulate", jobs, "--upgraded", jobs), "ROWS is --upgraded itself"),
        (("jobs", rows, "--out", tmp_path / "t.xyz"), "t.xyz: must end in .csv or .parquet or .pq"),
        (("jobs", rows, "--out", tmp_path), "is a folder; give the name of a file"),
        (("plan", jobs, "--margin-percent", 3, "--plot", jobs), "--plot is JOBS itself"),
        (("plan", jobs, "--margin-percent", 3, "--plot", tmp_path / "x.txt"), "x.txt: must end in .png"),
        (("compare", rows, rows, "--plot", tmp_path / "x.txt"), "x.txt: must end in .png"),
    ):
        code, out, err = run(*arguments)
        assert (code, out, message in err, err.count("\n")) == (3, "", True, 1), err
    assert {path: path.read_bytes() for path in before} == before
    assert set(tmp_path.iterdir()) == {*before, link}


def test_tables_go_to_a_pipe_too(run, tmp_path) -> None:
    rows = rows_file(tmp_path / "now.parquet")
    end, other = os.pipe()
    assert run("jobs", rows, "--out", f"/proc/self/fd/{other}")[0] == 0
    os.close(other)
    with os.fdopen(end) as pipe:
        assert pipe.readline().replace('"', "").strip() == HEADER


@pytest.mark.long
def test_the_commands_of_the_guide_do_what_it_says(run, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    guide = (ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")
    for name, text in re.findall(r"`(\w+\.csv)`:\n\n```csv\n(.*?)```", guide, re.DOTALL):
        Path(name).write_text(text)
    pieces = re.split(r"```sh\n(.*?)```", guide, flags=re.DOTALL)
    ran = 0
    for block, after in zip(pieces[1::2], pieces[2::2], strict=True):
        outputs = ""
        for line in block.splitlines():
            arguments, _, target = line.partition(" > ")
            words = shlex.split(arguments)
            assert words[:2] == ["whitepanda", "fleet"]
            if "--lake" in words:  # of test_sides_of_the_lake
                continue
            code, out, err = run(*words[2:], width=100)
            assert (code, err) == (0, ""), line
            outputs += out
            ran += 1
            if target:
                Path(target).write_text(out)
        for reported in re.findall(r"^    (\S.*)$", after, re.MULTILINE):
            assert reported in outputs, block
    assert ran == 13
