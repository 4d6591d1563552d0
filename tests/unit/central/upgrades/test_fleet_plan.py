"""`whitepanda fleet plan`: the paper's example, what is planned with, what is refused, and planning again."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from central.upgrades import plan as planning
from tests.support.fleet_cli import HEADER, PAPER, rows_file, write


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
        pa.table({"job": [1, 2], "weight": [3.0, 1.0], "mean": [1.0, 2.0], "std": [0.2, 0.2], "instances": [300, 50]}),
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
    ("gap", "reported"), [(2.6e-8, "the optimum to within 1e-06 of it"), (0.0123, "within 1.23% of the optimum")]
)
def test_a_plan_says_what_is_asked_and_reached_and_how_proven(run, tmp_path, monkeypatch, gap, reported) -> None:
    jobs = write(tmp_path / "jobs.csv", PAPER)
    out = run("plan", jobs, "--margin-percent", 3, "--top", 1)[1]
    assert "1 job, 25 instances, cost 25: the integer optimum" in out
    assert "margin: 3 % asked, 2.96 % reached, of a mean of 100 (t = 2)" in out
    solve = planning.cheapest_plan

    def unproven(*arguments):
        found = solve(*arguments)
        return replace(found, is_optimal=False, lower_bound=found.cost * (1 - gap))

    monkeypatch.setattr(planning, "cheapest_plan", unproven)
    assert reported in run("plan", jobs, "--margin-percent", 3)[1]


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
    again = json.loads(run("plan", jobs, "--margin-percent", 1, "--observed", tmp_path / "loud.parquet", "--json")[1])
    assert again["observed"]["larger_std"] == ["a", "b"]
    assert again["instances"] > 4 * tight["instances"]
    code, out, _ = run("plan", jobs, "--margin-percent", 1, "--observed", observed)
    assert code == 0
    assert "not met:" in out
    few = rows_file(tmp_path / "few.parquet", machines=range(3))
    code, _, err = run("plan", jobs, "--margin-percent", 1, "--observed", few)
    assert (code, "no planned job has 4 instances" in err) == (3, True)


@pytest.mark.long
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
        (f"{HEADER}\na,1,1,1,9,1\na,1,1,1,9,1\n", "job a appears more than once"),
        (f"{HEADER}\n,1,1,1,9,1\n", "column job is empty (row 1)"),
        (f"{HEADER}\na,1,1e300,1,9,1\n", "column mean must be numbers from 1e-30 to 1e+30 (row 1: 1e300)"),
        (f"{HEADER}\na,1e308,1,1,9,1\nb,1e308,1,1,9,1\n", "column weight must be numbers from 1e-30 to 1e+30"),
        (f"{HEADER}\na,1,2020-01-01,1,9,1\n", "column mean must be numbers above 0 (row 1: 2020-01-01)"),
        ("a\x00b\rc,d\n1,2\n", "jobs.csv: "),
        (f"{HEADER},job\na,1,1,1,9,1,b\n", "two columns are called job"),
        (f"{HEADER}\na,1,1\n", "is not a CSV with a header: row 1 has 3 values, the header 6"),
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
        ((jobs, "--margin-percent", 3, "--plot", tmp_path / "no" / "x.png"), "cannot write: there is no folder"),
    ):
        code, _, err = run("plan", *arguments)
        assert code == (4 if "no folder" in message else 3)
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
        (bytes(range(256)) * 20, "is not UTF-8 text"),
        (HEADER.encode() + b"\nf\xe9,1,1,1,9,1\n", "is not UTF-8 text"),
        (HEADER.encode() + b",caf\xe9\na,1,1,1,9,1,2\n", "is not UTF-8 text (row 0, the header)"),
        (b"\x01\x02\x1b[31m\n\x03\n", "it has '\\x01\\x02\\x1b[31m'"),
    ],
)
def test_what_is_no_text_gets_one_line(run, tmp_path, content, message) -> None:
    (tmp_path / "jobs.csv").write_bytes(content)
    code, _, err = run("plan", tmp_path / "jobs.csv", "--margin-percent", 3)
    assert (code, message in err, err.count("\n")) == (3, True, 1), err
