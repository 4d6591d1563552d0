"""`whitepanda slowdown estimate`: the issue's JSON, and one clear line for each fault."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from central.cli.slowdown import app
from central.placement.requests import read_vms
from central.plotting.timeline import bars
from whitepanda.common.errors import InputError, UnavailableError

MAPREDUCE = "job,cpu,other,tau_s\nsort,0.9,0.1,56\npi,0.5,0.5,90\ngrep,0.5,0.5,95\n"


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture
def written(tmp_path):
    def write(text, name="loadings.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def estimated(path, *words):
    result = run("estimate", path, "--json", *words)
    assert result.exit_code == 0
    return json.loads(result.stdout)


def test_the_papers_mapreduce_jobs(written):
    found = estimated(written(MAPREDUCE))
    assert set(found) == {"jobs", "total_dilation"}
    assert [set(row) for row in found["jobs"]] == [{"job", "dilation", "completion_s"}] * 3
    assert [row["job"] for row in found["jobs"]] == ["sort", "pi", "grep"]
    assert [row["dilation"] for row in found["jobs"]] == pytest.approx([2.0, 2.0, 2.0], rel=1e-14)
    assert [row["completion_s"] for row in found["jobs"]] == pytest.approx([112.0, 163.0, 168.0], rel=1e-14)
    assert found["total_dilation"] == pytest.approx(6.0, rel=1e-14)


def test_without_times_there_are_dilations_only(written):
    found = estimated(written("job,cpu\nidle,0\nbusy,1\nhalf,0.5\n"))
    assert found == {
        "jobs": [{"job": "idle", "dilation": 1.0}, {"job": "busy", "dilation": 1.5}, {"job": "half", "dilation": 1.5}],
        "total_dilation": 4.0,
    }


def test_units_and_arrivals(written):
    path = written("job,cpu,tau_s,start_s\na,1,100,0\nb,1,100,50\n")
    alone = estimated(path, "--units", "cpu=2")["jobs"]
    assert [row["dilation"] for row in alone] == [1.5, 1.5]
    # a: 50 s alone, then 50 left at 1.5; b has 50 left when a ends at 125 s
    assert [row["completion_s"] for row in alone] == pytest.approx([125.0, 125.0])
    assert [row["end_s"] for row in alone] == pytest.approx([125.0, 175.0])


def test_the_table_for_people(written):
    result = run("estimate", written(MAPREDUCE))
    assert result.exit_code == 0
    assert "sort" in result.stdout and "112.00" in result.stdout
    assert "3 jobs, total dilation 6" in result.stdout
    assert "one after the other (linear sum): 241.00 s" in result.stdout


def test_the_timeline(written, tmp_path):
    assert bars([0.0, 0.0, 50.0], [56.0, 90.0, 1.0], [112.0, 163.0, 200.0], 20) == [
        "██████░░░░░",
        "█████████░░░░░░░",
        "     █░░░░░░░░░░░░░░",
    ]
    picture = tmp_path / "when.png"
    assert run("estimate", written(MAPREDUCE), "--plot", picture).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UnavailableError, match=r"^/proc/none/x.png: cannot write: there is no folder /proc/none$"):
        run("estimate", written(MAPREDUCE), "--plot", "/proc/none/x.png")
    with pytest.raises(InputError, match=r"^--plot x.png: .* has no column tau_s, so it is not known when jobs end$"):
        run("estimate", written("job,cpu\na,1\n"), "--plot", "x.png")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "is empty; the first line must name the columns"),
        ("job,cpu\n", "has no rows"),
        ("name,cpu\na,1\n", "has no column job; it has name, cpu"),
        ("job,tau_s\na,1\n", "has no resource column, only job, tau_s"),
        ("job,cpu,cpu\na,1,0\n", "two columns are called cpu"),
        ("job,,cpu\na,1,0\n", "has a column without a name"),
        ("job,cpu\na,1,2\n", "is not a CSV with a header: row 1 has 3 values, the header 2"),
        ("job,cpu\na,much\n", "column cpu must be numbers from 0 to 1 (row 1: much)"),
        ("job,cpu\na,\n", "column cpu must be numbers from 0 to 1 (row 1: empty)"),
        ("job,cpu\na,nan\n", "column cpu must be numbers from 0 to 1 (row 1: nan)"),
        ("job,cpu\n\na,-0.1\n", "column cpu must be numbers from 0 to 1 (row 1: -0.1)"),
        ("job,cpu\na,1.1\n", "column cpu must be numbers from 0 to 1 (row 1: 1.1)"),
        ("job,cpu,disk\na,0.5,0.5\nb,0.7,0.4\n", "job b: the shares of its time sum to 1.1, above 1 (row 2)"),
        ("job,cpu,tau_s\na,1,0\n", "column tau_s must be numbers above 0 (row 1: 0)"),
        ("job,cpu,tau_s\na,1,inf\n", "column tau_s must be numbers above 0 (row 1: inf)"),
        ("job,cpu,tau_s,start_s\na,1,1,-1\n", "column start_s must be numbers of 0 or more (row 1: -1)"),
        ("job,cpu\n,1\n", "column job is empty (row 1)"),
    ],
)
def test_faults_of_files(written, text, line):
    path = written(text)
    with pytest.raises(InputError) as refused:
        run("estimate", path)
    assert str(refused.value) == f"{path}: {line}"


def test_a_column_host_of_one_machine_is_no_resource(written):
    found = estimated(written("job,cpu,host\na,1,m\nb,1,m\n"))
    assert found["total_dilation"] == 4.0
    path = written("job,cpu,host\na,1,m\nb,1,n\n")
    with pytest.raises(InputError, match=r"has jobs of several hosts \(m, n\); give the rows of one"):
        run("estimate", path)


def piped(text):
    """The name of a pipe with this text: what it has can be read once."""
    reading, writing = os.pipe()
    os.write(writing, text.encode())
    os.close(writing)
    return f"/dev/fd/{reading}", reading


def test_jobs_may_come_through_a_pipe():
    path, end = piped(MAPREDUCE)
    assert estimated(path)["total_dilation"] == pytest.approx(6.0, rel=1e-14)
    os.close(end)
    path, end = piped("job,cpu,gib,host\na,0.5,3,\n")
    asked = read_vms(Path(path), ["gib"])
    os.close(end)
    assert (asked.jobs.names, asked.jobs.resources, asked.amounts.tolist()) == (("a",), ("cpu",), [[3.0]])


def test_arrivals_without_times_alone_are_refused(written):
    with pytest.raises(InputError, match=r"has a column start_s but no tau_s, without which nothing ends"):
        run("estimate", written("job,cpu,start_s\na,1,5\n"))


def test_a_picture_is_written_to_a_png_only(written, tmp_path):
    with pytest.raises(InputError, match=r"^--plot .*x.txt: must end in .png$"):
        run("estimate", written(MAPREDUCE), "--plot", tmp_path / "x.txt")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"away.csv: cannot be read: No such file"):
        run("estimate", tmp_path / "away.csv")
    path = tmp_path / "bytes.csv"
    path.write_bytes(b"job,cpu\n\xff,1\n")
    with pytest.raises(InputError, match=r"bytes.csv: is not UTF-8 text "):
        run("estimate", path)


@pytest.mark.parametrize(
    ("units", "line"),
    [
        ("cpu", "--units cpu: must be NAME=NUMBER, as in cpu=8"),
        ("cpu=many", "--units cpu=many: 'many' is not a number"),
        ("cpu=0", "--units cpu=0: must be above 0"),
        ("cpu=inf", "--units cpu=inf: must be above 0"),
        ("cpu=0.5", "--units cpu: must be 1 or more (value 0.5)"),
        ("cpu=2,cpu=3", "--units cpu=3: cpu is given twice"),
        ("gpu=2", "--units gpu: no such resource in the file; it has cpu, other"),
    ],
)
def test_faults_of_units(written, units, line):
    with pytest.raises(InputError) as refused:
        run("estimate", written(MAPREDUCE), "--units", units)
    assert str(refused.value) == line
