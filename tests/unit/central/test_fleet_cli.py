"""`whitepanda fleet`: from file to file, on the lake, what is refused; and every command of its guide."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from central.cli import fleet as command
from central.fleet import plan as planning
from central.fleet import show
from central.fleet.plots import bar, signed_bar
from central.fleet.tables import read_machines
from central.lake import DAY_NS, Lake, segment_stem
from central.schema import SAMPLES
from whitepanda.common import cli

ROOT = Path(__file__).resolve().parents[3]
HEADER = "job,weight,mean,std,instances,cost"
PAPER = f"{HEADER}\ncompute,0.5,100,7.4,1500,1\nnetwork,0.5,100,17.5,1500,1\n"


@pytest.fixture
def run(capsys, monkeypatch):
    """The exit code, standard output and standard error of `whitepanda fleet ...`."""

    def call(*arguments, width=120):
        monkeypatch.setattr(sys, "argv", ["whitepanda", "fleet", *map(str, arguments)])
        for module in (command, show):
            monkeypatch.setattr(module, "console", Console(highlight=False, width=width))
        monkeypatch.setattr(cli, "errors", Console(stderr=True, highlight=False, width=200))
        monkeypatch.setattr(cli, "build", _app)
        try:
            cli.main()
        except SystemExit as error:
            code = error.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return call


def _app():
    import typer  # noqa: PLC0415 - one command, whatever entry points this environment knows

    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    app.add_typer(command.app, name="fleet")
    return app


def write(path, text):
    path.write_text(text)
    return path


def rows_file(path, seed=0, gain=1.0, machines=range(30), column="ipc", extra=None):
    rng = np.random.default_rng(seed)
    names = [f"m{m}" for m in machines for _ in "ab"]
    job = ["a", "b"] * len(machines)
    value = np.where(np.array(job) == "a", 1.0, 2.0) * np.exp(0.05 * rng.standard_normal(len(job))) * gain
    table = pa.table({"machine": names, "job": job, column: value, **(extra(job) if extra else {})})
    pq.write_table(table, path)
    return path


def test_the_papers_plan(run, tmp_path) -> None:
    jobs = write(tmp_path / "jobs.csv", PAPER)
    code, out, _ = run("plan", jobs, "--margin-percent", 3, "--t", 2, "--json")
    found = json.loads(out)
    assert code == 0
    observe = {row["job"]: row["observe"] for row in found["jobs"]}
    assert observe in ({"compute": 21, "network": 48}, {"compute": 20, "network": 49})
    assert (found["cost"], found["is_optimal"], found["instances"]) == (69.0, True, 69)
    assert found["expected_margin_percent"] <= 3


def test_a_plan_is_shown_with_its_proof_and_the_baseline(run, tmp_path) -> None:
    jobs = write(tmp_path / "jobs.csv", PAPER.replace("compute", "[bold]x"))
    code, out, _ = run("plan", jobs, "--margin-percent", 3, "--machine-std-percent", 15)
    assert code == 0
    assert "cost 69: the integer optimum" in out
    assert "[bold]x" in out
    assert "machine granularity would need 100 machines" in out  # the paper's section 6.3
    assert "█" in out


def test_parquet_and_shares_of_quota_as_costs(run, tmp_path) -> None:
    pq.write_table(
        pa.table(
            {
                "job": [1, 2],
                "weight": [3.0, 1.0],
                "mean": [1.0, 2.0],
                "std": [0.2, 0.2],
                "instances": [300, 50],
            }
        ),
        tmp_path / "jobs.parquet",
    )
    code, out, _ = run("plan", tmp_path / "jobs.parquet", "--margin-percent", 2, "--json")
    found = json.loads(out)
    assert code == 0
    by_job = {row["job"]: row for row in found["jobs"]}
    assert by_job["1"]["cost"] == pytest.approx(by_job["1"]["observe"] * 0.75 / 300)
    assert found["metric_mean"] == pytest.approx(1.25)


def test_jobs_may_be_left_out(run, tmp_path) -> None:
    jobs = write(tmp_path / "jobs.csv", f"{HEADER}\na,8,1,0.1,100,1\nb,1,1,0.1,100,1\nc,1,1,0.1,3,1\n")
    found = json.loads(run("plan", jobs, "--margin-percent", 5, "--json")[1])
    assert [row["job"] for row in found["jobs"]] == ["a", "b"]
    assert found["left_out"] == ["c"]
    assert found["coverage"] == pytest.approx(0.9)
    for option in (("--top", 1), ("--coverage", 0.8)):
        found = json.loads(run("plan", jobs, "--margin-percent", 5, *option, "--json")[1])
        assert [row["job"] for row in found["jobs"]] == ["a"]
    code, _, err = run("plan", jobs, "--margin-percent", 5, "--coverage", 0.95)
    assert code == 3
    assert "jobs with 4 instances have only 0.9 of the weight" in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("job,weight,mean,std\na,1,1,1\n", "no column instances; it has job, weight, mean, std"),
        ("job,mean\na,1\n", "no columns weight, std, instances"),
        (f"{HEADER}\n", "has no rows"),
        (f"{HEADER}\na,0,1,1,9,1\n", "column weight must be numbers above 0 (row 1: 0"),
        (f"{HEADER}\na,1,1,-1,9,1\n", "column std must be numbers above 0 (row 1: -1"),
        (f"{HEADER}\na,1,nan,1,9,1\n", "column mean must be numbers above 0 (row 1: nan"),
        (f"{HEADER}\na,1,,1,9,1\nb,1,1,1,9,1\n", "column mean must be numbers above 0 (row 1: empty"),
        (f"{HEADER}\na,1,x,1,9,1\n", "column mean must be numbers above 0 (row 1: x)"),
        (f"{HEADER}\na,1,1,1,9.5,1\n", "column instances must be whole numbers (row 1: 9.5)"),
        (f"{HEADER}\na,1,1,1,9,1\na,1,1,1,9,1\n", "job a is there twice"),
        (f"{HEADER}\n,1,1,1,9,1\n", "column job is empty (row 1)"),
        (f"{HEADER}\na,1,1e300,1,9,1\n", "column mean must be numbers from 1e-30 to 1e+30 (row 1: 1e+300)"),
        (
            f"{HEADER}\na,1e308,1,1,9,1\nb,1e308,1,1,9,1\n",
            "column weight must be numbers from 1e-30 to 1e+30",
        ),
        (f"{HEADER}\na,1,2020-01-01,1,9,1\n", "column mean must be numbers above 0, not date32[day]"),
        ("a\x00b\rc,d\n1,2\n", "jobs.csv: "),
        (f"{HEADER},job\na,1,1,1,9,1,b\n", "two columns are called job"),
        (f"{HEADER}\na,1,1\n", "is no CSV with a header: row 1 has 3 values, the header 6"),
        (f"{HEADER}\na,1,1,1,3,1\n", "no job has 4 instances (column instances); see --min-instances"),
        (f"{HEADER}\na,1,1,1,9,1\n", "margin 3 % cannot be reached: all 9 instances give 66.7 % at t = 2"),
    ],
)
def test_bad_jobs_get_one_line(run, tmp_path, text, message) -> None:
    code, out, err = run("plan", write(tmp_path / "jobs.csv", text), "--margin-percent", 3)
    assert (code, out) == (3, "")
    assert message in err
    assert err.count("\n") == 1


def test_bad_options_and_files_get_one_line(run, tmp_path) -> None:
    jobs = write(tmp_path / "jobs.csv", PAPER)
    for arguments, message in (
        ((jobs, "--margin-percent", 0), "--margin-percent: must be above 0 (value 0)"),
        ((jobs, "--margin-percent", "nan"), "--margin-percent: must be above 0 (value nan)"),
        ((jobs, "--margin-percent", 1e300), "--margin-percent: must be from 1e-06 to 1e+06 (value 1e+300)"),
        ((jobs, "--margin-percent", 3, "--design-effect", 1e300), "--design-effect: must be at most 1e+06"),
        ((jobs, "--margin-percent", 3, "--t", -1), "--t: must be above 0 (value -1)"),
        ((tmp_path / "no.csv", "--margin-percent", 3), "no.csv: cannot be read"),
        ((write(tmp_path / "x.parquet", "x"), "--margin-percent", 3), "x.parquet: "),
        ((jobs, "--margin-percent", 3, "--plot", tmp_path / "no" / "x.png"), "cannot write: No such file"),
    ):
        code, _, err = run("plan", *arguments)
        assert code == 3
        assert message in err
        assert err.count("\n") == 1


def test_headers_may_have_spaces_and_names_stay_names(run, tmp_path) -> None:
    spaced = PAPER.replace(",", ", ").replace("compute", "1.10")
    code, out, err = run("plan", write(tmp_path / "jobs.csv", spaced), "--margin-percent", 3, "--json")
    assert (code, err) == (0, "")
    assert {row["job"] for row in json.loads(out)["jobs"]} == {"1.10", "network"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bytes(range(256)) * 20, "is no UTF-8 text"),
        (HEADER.encode() + b"\nf\xe9,1,1,1,9,1\n", "is no UTF-8 text"),
        (HEADER.encode() + b",caf\xe9\na,1,1,1,9,1,2\n", "is no UTF-8 text (row 0, the header)"),
        (b"\x01\x02\x1b[31m\n\x03\n", "it has '\\x01\\x02\\x1b[31m'"),
    ],
)
def test_what_is_no_text_gets_one_line(run, tmp_path, content, message) -> None:
    (tmp_path / "jobs.csv").write_bytes(content)
    code, _, err = run("plan", tmp_path / "jobs.csv", "--margin-percent", 3)
    assert (code, message in err, err.count("\n")) == (3, True, 1), err


def test_names_that_are_lists_get_one_line(run, tmp_path) -> None:
    pq.write_table(pa.table({"machine": ["x"], "job": [["a"]], "ipc": [1.0]}), tmp_path / "r.parquet")
    code, _, err = run("jobs", tmp_path / "r.parquet", "--out", tmp_path / "j.csv")
    assert (code, "column job must be names, not list<" in err, err.count("\n")) == (3, True, 1)


def test_values_beyond_all_measure_are_refused(run, tmp_path) -> None:
    now = rows_file(tmp_path / "now.parquet")
    for many in (1, 4):
        table = pq.read_table(now).to_pydict()
        table["ipc"][5 : 5 + many] = [1e308] * many
        pq.write_table(pa.table(table), tmp_path / "new.parquet")
        code, out, err = run("compare", now, tmp_path / "new.parquet")
        assert (code, out, err.count("\n")) == (3, "", 1)
        assert "column ipc must be numbers from 1e-30 to 1e+30 (row 6: 1e+308)" in err
    # What is just allowed is reckoned with, without a warning.
    for column, low, high in (("a", 1e-30, 1e30), ("b", 1e30, 1e-30)):
        sides = []
        for side, scale in (("x", low), ("y", high)):
            values = pq.read_table(now).to_pydict()
            values["ipc"] = [min(max(value * scale, 1e-30), 1e30) for value in values["ipc"]]
            sides.append(tmp_path / f"{column}{side}.parquet")
            pq.write_table(pa.table(values), sides[-1])
        assert run("compare", *sides)[0] == 0


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
        (
            ("jobs", rows, "--out", rows),
            "now.parquet: --out is ROWS itself; give the name of another file",
        ),
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


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ('[{"job": "a", "observe": 1e400}]', "job a: observe must be a whole number above 0 (value inf)"),
        ('[{"job": "a", "observe": 99999999999999999999999}]', "(value 99999999999999999999999)"),
        ('[{"job": "a", "observe": 0}]', "job a: observe must be a whole number above 0 (value 0)"),
        ('[{"job": "a", "observe": true}]', "(value True)"),
        ('[{"job": "a", "observe": 4}, {"job": "a", "observe": 5}]', "job a is there twice"),
        ("[]", "it has no jobs"),
    ],
)
def test_a_plan_that_is_none_gets_one_line(run, tmp_path, jobs, message) -> None:
    plan = write(tmp_path / "plan.json", f'{{"jobs": {jobs}}}')
    code, _, err = run("draw", rows_file(tmp_path / "now.parquet"), "--plan", plan)
    assert (code, message in err, err.count("\n")) == (3, True, 1), err


def test_observed_rows_are_held_against_the_plan_and_planned_again(run, tmp_path) -> None:
    jobs = write(tmp_path / "jobs.csv", f"{HEADER}\na,1,1,0.05,900,1\nb,1,2,0.1,900,1\n")
    observed = rows_file(tmp_path / "seen.parquet", machines=range(20))
    met = json.loads(run("plan", jobs, "--margin-percent", 3, "--observed", observed, "--json")[1])
    assert met["observed"]["is_met"]
    assert met["observed"]["more_instances"] == 0
    assert [row["observed"] for row in met["jobs"]] == [20, 20]
    tight = json.loads(run("plan", jobs, "--margin-percent", 1, "--observed", observed, "--json")[1])
    assert not tight["observed"]["is_met"]
    assert tight["observed"]["more_instances"] == sum(row["observe"] - 20 for row in tight["jobs"]) > 0
    # The new values vary three times as much: more than planned with.
    loud = pq.read_table(observed)
    mean = np.where(np.asarray(loud["job"]) == "a", 1.0, 2.0)
    loud = loud.set_column(2, "ipc", pa.array(mean * (np.asarray(loud["ipc"]) / mean) ** 3))
    pq.write_table(loud, tmp_path / "loud.parquet")
    again = json.loads(
        run("plan", jobs, "--margin-percent", 1, "--observed", tmp_path / "loud.parquet", "--json")[1]
    )
    assert again["observed"]["larger_std"] == ["a", "b"]
    assert again["instances"] > 4 * tight["instances"]
    code, out, _ = run("plan", jobs, "--margin-percent", 1, "--observed", observed)
    assert code == 0
    assert "not met:" in out
    few = rows_file(tmp_path / "few.parquet", machines=range(3))
    code, _, err = run("plan", jobs, "--margin-percent", 1, "--observed", few)
    assert (code, "no planned job has 4 instances" in err) == (3, True)


def test_compare_tells_the_difference_and_what_it_is_of(run, tmp_path) -> None:
    now, new = (
        rows_file(tmp_path / "now.parquet"),
        rows_file(tmp_path / "new.parquet", 1, 1.05, range(100, 140)),
    )
    code, out, _ = run("compare", now, new, "--json", "--plot", tmp_path / "c.png")
    found = json.loads(out)
    assert code == 0
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"
    change = found["difference_percent"]
    assert change["low"] < 5 < change["high"]
    assert change["low"] > 1.5
    assert found["p"] < 1e-3
    assert (found["metric"], found["weighed_by"], found["coverage"]) == ("ipc", "instances", 1.0)
    assert found["machines"] == {"current": 30, "new": 40}
    assert [row["verdict"] for row in found["jobs"]] == ["gain", "gain"]
    for width in (80, 140):
        out = run("compare", now, new, width=width)[1]
        assert "2 jobs up, 0 down (at most 5 % of these are expected to be false), 0 unclear" in out
        assert max(map(len, out.split("fleet:")[0].splitlines())) <= width


def test_weights_are_the_jobs_and_quotas_the_instances(run, tmp_path) -> None:
    new = rows_file(tmp_path / "new.parquet", 1, machines=range(100, 140))

    def weights(name, values):
        path = rows_file(
            tmp_path / f"{name}.parquet", extra=lambda job: {name: [values[each] for each in job]}
        )
        return {
            row["job"]: row["weight"] for row in json.loads(run("compare", path, new, "--json")[1])["jobs"]
        }

    assert weights("weight", {"a": 3.0, "b": 1.0}) == pytest.approx({"a": 0.75, "b": 0.25})
    assert weights("quota", {"a": 2.0, "b": 8.0}) == pytest.approx({"a": 0.2, "b": 0.8})
    mixed = write(tmp_path / "m.csv", "machine,job,ipc,weight\nx,a,1,1\ny,a,1,2\n")
    code, _, err = run("compare", mixed, new)
    assert code == 3
    assert "job a has weights 1 and 2; weight is the job's" in err


def test_too_little_in_common_is_refused(run, tmp_path) -> None:
    now = rows_file(tmp_path / "now.parquet")
    rng = np.random.default_rng(0)
    lines = [
        "machine,job,ipc",
        *(f"n{i},a,{rng.uniform(1, 2)}" for i in range(9)),
        *(f"n{i},b,1" for i in range(3)),
    ]
    new = write(tmp_path / "new.csv", "\n".join(lines) + "\n")
    code, _, err = run("compare", now, new)
    assert code == 3
    assert (
        "1 job has 4 instances on two machines of both sides, 50.0% of CURRENT's weight, less than 80%" in err
    )
    assert run("compare", now, new, "--min-coverage", 0.5)[0] == 0
    other = write(tmp_path / "other.csv", "machine,job,ipc\nn,z,1\n")
    code, _, err = run("compare", now, other, "--min-coverage", 0)
    assert (code, "0 jobs have" in err) == (3, True)
    for text, message in (
        ("machine,job\nx,a\n", "no column ipc"),
        ("job,ipc\na,1\n", "no column machine"),
        ("machine,job,ipc\nx,a,0\n", "column ipc must be numbers above 0 (row 1: 0"),
    ):
        code, _, err = run("compare", now, write(tmp_path / "bad.csv", text))
        assert (code, message in err) == (3, True)
    code, _, err = run("compare", write(tmp_path / "bad.csv", "machine,job,cpi\nx,a,1\n"), now)
    assert (code, "no column value, ipc or mips; name the metric's with --metric" in err) == (3, True)


def test_machines_are_drawn_again_until_they_cover_and_balance(run, tmp_path) -> None:
    fleet = tmp_path / "fleet.parquet"
    assert run("simulate", fleet, "--machines", 200, "--jobs", 40, "--instances", 3000)[0] == 0
    drawn = [
        json.loads(run("draw", fleet, "--machines", 20, "--seed", seed, "--json")[1]) for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0]["machines"] != drawn[2]["machines"]
    for each in drawn:
        assert len(set(each["machines"])) == 20
        assert each["coverage"] >= 0.8
        assert abs(each["imbalance"]) <= 2
    strict = [
        json.loads(run("draw", fleet, "--machines", 20, "--seed", s, "--max-imbalance", 0.2, "--json")[1])
        for s in range(4)
    ]
    assert all(abs(each["imbalance"]) <= 0.2 for each in strict)
    assert max(each["draws"] for each in strict) > 1
    code, _, err = run("draw", fleet, "--machines", 3, "--max-draws", 5)
    assert code == 3
    assert "5 draws, none good enough: at most" in err
    for arguments, message in (
        (("--machines", 200), "--machines: must be 2 to 199"),
        ((), "say how many machines: --machines N, or --plan PLAN.json"),
        (("--plan", write(tmp_path / "p.json", "{}")), "p.json: is no plan"),
        (
            ("--plan", write(tmp_path / "q.json", '{"jobs": [{"job": "z", "observe": 4}]}')),
            "job z has no instance",
        ),
    ):
        code, _, err = run("draw", fleet, *arguments)
        assert (code, message in err) == (3, True)


def test_a_plan_says_how_many_machines(run, tmp_path) -> None:
    fleet, jobs, plan, out = (tmp_path / name for name in ("f.parquet", "j.parquet", "plan.json", "m.csv"))
    run("simulate", fleet, "--machines", 200, "--jobs", 40, "--instances", 3000)
    assert run("jobs", fleet, "--out", jobs)[0] == 0
    plan.write_text(run("plan", jobs, "--margin-percent", 5, "--coverage", 0.7, "--json")[1])
    found = json.loads(run("draw", fleet, "--plan", plan, "--min-coverage", 1, "--out", out, "--json")[1])
    assert found["planned_jobs_met"] == found["planned_jobs"] > 3
    assert read_machines(out) == found["machines"]


@pytest.mark.parametrize("seed", range(3))
def test_what_a_plan_has_drawn_is_compared_by_default(run, tmp_path, seed) -> None:
    """A plan for 0.8 of the weight, of which 0.8 are there, would be 0.64: less than `compare` takes."""
    fleet, jobs, plan, drawn, new = (
        tmp_path / name for name in ("f.csv", "j.csv", "p.json", "m.csv", "n.csv")
    )
    of = ("--machines", 200, "--jobs", 80, "--instances", 3000, "--seed", seed)
    run("simulate", fleet, *of)
    run("jobs", fleet, "--out", jobs)
    plan.write_text(run("plan", jobs, "--margin-percent", 4, "--coverage", 0.8, "--json")[1])
    found = json.loads(run("draw", fleet, "--plan", plan, "--seed", seed, "--out", drawn, "--json")[1])
    assert 0.8 <= found["coverage"] < 0.9
    assert run("simulate", new, *of, "--upgraded", drawn)[0] == 0
    code, out, err = run("compare", fleet, new, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["coverage"] == pytest.approx(found["coverage"])


def test_a_fleet_that_cannot_be_covered_is_told(run, tmp_path) -> None:
    rows = [f"m{k},a" for k in range(9)] + [f"m{k},b" for k in range(3)] + ["m1,c"] * 9
    fleet = write(tmp_path / "f.csv", "machine,job\n" + "\n".join(rows) + "\n")
    plan = write(tmp_path / "p.json", '{"jobs": [{"job": "a", "observe": 4}]}')
    assert run("draw", fleet, "--plan", plan, "--min-coverage", 0.4)[0] == 0
    code, _, err = run("draw", fleet, "--plan", plan, "--min-coverage", 0.5)  # c is on one machine only
    assert (
        code,
        "jobs with 4 instances on two machines have less than 0.5 of the fleet's weight" in err,
    ) == (3, True)


@pytest.mark.parametrize(
    ("gap", "told"), [(2.6e-8, "the optimum to within 1e-06 of it"), (0.0123, "within 1.23% of the optimum")]
)
def test_a_plan_says_what_is_asked_and_reached_and_how_proven(run, tmp_path, monkeypatch, gap, told) -> None:
    jobs = write(tmp_path / "jobs.csv", PAPER)
    out = run("plan", jobs, "--margin-percent", 3, "--top", 1)[1]
    assert "1 job, 25 instances, cost 25: the integer optimum" in out
    assert "margin 3 % asked, 2.96 % reached, of 100 at t = 2" in out
    solve = planning.cheapest_plan

    def unproven(*arguments):
        found = solve(*arguments)
        return replace(found, is_optimal=False, lower_bound=found.cost * (1 - gap))

    monkeypatch.setattr(planning, "cheapest_plan", unproven)
    assert told in run("plan", jobs, "--margin-percent", 3)[1]


def samples(host, platform, start_ns, ipc, jobs=("a", "b")):
    rows = []
    for k, job in enumerate(jobs):
        known = {
            "host": host,
            "spool_id": "s",
            "sequence": start_ns // 10**9,
            "machine": host,
            "vm": f"{host}-{job}",
        }
        known |= {
            "epoch": "e",
            "job": job,
            "platform": platform,
            "latency_sensitive": False,
            "start_unix_ns": start_ns,
        }
        known |= {"duration_ns": 10**10, "cpu_usage_cores": 1.0 + k, "cpi": 1 / ipc}
        rows.append(known | {"cycles": 10**9, "instructions": round(ipc * 10**9)})
    return rows


@pytest.fixture
def lake(tmp_path):
    """Day 0: all hosts alike, odd ones of platform Q. Day 1: hosts 0 to 9 have 10 % more IPC."""
    rng = np.random.default_rng(0)
    rows = []
    for day in (0, 1):
        for host in range(40):
            for window in (1, 2):
                ipc = (1.1 if day and host < 10 else 1.0) * np.exp(0.02 * rng.standard_normal())
                rows += samples(f"h{host:02}", "PQ"[host % 2], day * DAY_NS + window * 10**10, ipc)
    table = pa.Table.from_pylist([{**dict.fromkeys(SAMPLES.names), **row} for row in rows], schema=SAMPLES)
    Lake(tmp_path / "lake").write_segment(table, segment_stem("r", "0123abcd", 1))
    (tmp_path / "test.csv").write_text("machine\n" + "".join(f"h{host:02}\n" for host in range(10)))
    return tmp_path / "lake"


def test_sides_of_the_lake(run, lake) -> None:
    hosts = lake.parent / "test.csv"

    def percent(current, new, *arguments):
        code, out, err = run("compare", current, new, "--lake", lake, "--json", *arguments)
        assert (code, err) == (0, "")
        return json.loads(out)

    by_hosts = percent("rest,from=1970-01-02", f"hosts={hosts},from=1970-01-02T00:00Z")
    assert by_hosts["difference_percent"]["value"] == pytest.approx(10, abs=1.5)
    assert by_hosts["machines"] == {"current": 30, "new": 10}
    assert by_hosts["weighed_by"] == "cpu_usage_cores"
    assert [(row["job"], row["weight"]) for row in by_hosts["jobs"]] == [
        ("b", pytest.approx(2 / 3)),
        ("a", pytest.approx(1 / 3)),
    ]
    by_time = percent(f"hosts={hosts},until=1970-01-02", f"hosts={hosts},from=1970-01-02")
    assert by_time["difference_percent"]["value"] == pytest.approx(10, abs=1.5)
    assert by_time["machines"] == {"current": 10, "new": 10}
    alike = percent("platform=P,until=1970-01-02", "platform=Q,until=1970-01-02")
    assert alike["difference_percent"]["low"] < 0 < alike["difference_percent"]["high"]
    assert percent("until=1970-01-02", "from=1970-01-02", "--metric", "cpi")["current"][
        "value"
    ] == pytest.approx(1, abs=0.01)
    # 1e9 instructions in 10 s
    assert percent("until=1970-01-02", "from=1970-01-02", "--metric", "mips")["current"][
        "value"
    ] == pytest.approx(100, abs=1)


def test_sides_that_are_none_get_one_line(run, lake) -> None:
    hosts = f"hosts={lake.parent / 'test.csv'}"
    for current, new, code, message in (
        ("x", "from=1970-01-02", 3, "side 'x': must be hosts=..."),
        (
            "rest",
            "from=1970-01-02",
            3,
            "side 'rest': rest is for the hosts that the other side's file does not name",
        ),
        ("from=yesterday", "rest", 3, "no time: yesterday; such as"),
        ("hosts", hosts, 3, "side 'hosts': hosts needs a value"),
        ("rest=1", hosts, 3, "side 'rest=1': rest takes no value"),
        ("platform=", hosts, 3, "platform needs a value"),
        ("from=1970-01-02,from=1970-01-03", hosts, 3, "a key is there twice"),
        (hosts, hosts, 3, "are the same samples"),
        ("platform=Z", hosts, 3, "side 'platform=Z': no task of the lake has ipc there"),
    ):
        found, _, err = run("compare", current, new, "--lake", lake)
        assert (found, message in err, err.count("\n")) == (code, True, 1), err
    code, _, err = run("compare", "rest", hosts, "--lake", lake, "--metric", "nonsense")
    assert (code, "metric nonsense is not in the lake; it has ipc, mips, cpi" in err) == (3, True)
    (lake.parent / "empty").mkdir()
    code, _, err = run("compare", "rest", hosts, "--lake", lake.parent / "empty")
    assert (code, "empty: has no samples; is it central.lake_dir" in err) == (4, True)
    code, _, err = run("compare", "rest", hosts, "--lake", lake / "no")
    assert (code, "no such folder" in err) == (4, True)


def test_bars() -> None:
    assert bar(1.0, 2.0, 4) == "██"
    assert bar(1.0, 8.0, 1) == "▏"
    assert bar(0.0, 2.0, 4) == ""
    assert signed_bar(-1.0, 2.0, 2) == " █│"
    assert signed_bar(2.0, 2.0, 2) == "  │██"


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
        for told in re.findall(r"^    (\S.*)$", after, re.MULTILINE):
            assert told in outputs, block
    assert ran == 9
