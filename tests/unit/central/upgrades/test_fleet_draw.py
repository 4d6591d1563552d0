"""`whitepanda fleet draw`: machines at random, and as many as a plan needs."""

import json

import pytest

from central.upgrades.tables import read_machines
from tests.support.fleet_cli import rows_file, write


@pytest.mark.long
def test_machines_are_drawn_again_until_they_cover_and_balance(run, tmp_path) -> None:
    fleet = tmp_path / "fleet.parquet"
    assert run("simulate", fleet, "--machines", 200, "--jobs", 40, "--instances", 3000)[0] == 0
    drawn = [json.loads(run("draw", fleet, "--machines", 20, "--seed", seed, "--json")[1]) for seed in (1, 1, 2)]
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
        ((), "the number of machines is needed: --machines N, or --plan PLAN.json"),
        (("--plan", write(tmp_path / "p.json", "{}")), "p.json: is not a plan"),
        (("--plan", write(tmp_path / "q.json", '{"jobs": [{"job": "z", "observe": 4}]}')), "job z has no instance"),
    ):
        code, _, err = run("draw", fleet, *arguments)
        assert (code, message in err) == (3, True)
    two = write(tmp_path / "two.csv", "machine,job,ipc\na,x,1\nb,x,2\n")
    code, _, err = run("draw", two, "--machines", 2)
    assert (code, "a fleet of 2 machines is too small to draw from; at least 3" in err) == (3, True)


def test_a_plan_says_how_many_machines(run, tmp_path) -> None:
    fleet, jobs, plan, out = (tmp_path / name for name in ("f.parquet", "j.parquet", "plan.json", "m.csv"))
    run("simulate", fleet, "--machines", 200, "--jobs", 40, "--instances", 3000)
    assert run("jobs", fleet, "--out", jobs)[0] == 0
    plan.write_text(run("plan", jobs, "--margin-percent", 5, "--coverage", 0.7, "--json")[1])
    found = json.loads(run("draw", fleet, "--plan", plan, "--min-coverage", 1, "--out", out, "--json")[1])
    assert found["planned_jobs_met"] == found["planned_jobs"] > 3
    assert read_machines(out) == found["machines"]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_what_a_plan_has_drawn_is_compared_by_default(run, tmp_path, seed) -> None:
    """A plan for 0.8 of the weight, of which 0.8 are there, would be 0.64: less than `compare` takes."""
    fleet, jobs, plan, drawn, new = (tmp_path / name for name in ("f.csv", "j.csv", "p.json", "m.csv", "n.csv"))
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


def test_a_fleet_that_cannot_be_covered_is_reported(run, tmp_path) -> None:
    rows = [f"m{k},a" for k in range(9)] + [f"m{k},b" for k in range(3)] + ["m1,c"] * 9
    fleet = write(tmp_path / "f.csv", "machine,job\n" + "\n".join(rows) + "\n")
    plan = write(tmp_path / "p.json", '{"jobs": [{"job": "a", "observe": 4}]}')
    assert run("draw", fleet, "--plan", plan, "--min-coverage", 0.4)[0] == 0
    code, _, err = run("draw", fleet, "--plan", plan, "--min-coverage", 0.5)  # c is on one machine only
    assert (code, "jobs with 4 instances on two machines have less than 0.5 of the fleet's weight" in err) == (3, True)


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ('[{"job": "a", "observe": 1e400}]', "job a: observe must be a whole number above 0 (value inf)"),
        ('[{"job": "a", "observe": 99999999999999999999999}]', "(value 99999999999999999999999)"),
        ('[{"job": "a", "observe": 0}]', "job a: observe must be a whole number above 0 (value 0)"),
        ('[{"job": "a", "observe": true}]', "(value True)"),
        ('[{"job": "a", "observe": 4}, {"job": "a", "observe": 5}]', "job a appears more than once"),
        ("[]", "it has no jobs"),
    ],
)
def test_a_plan_that_is_none_gets_one_line(run, tmp_path, jobs, message) -> None:
    plan = write(tmp_path / "plan.json", f'{{"jobs": {jobs}}}')
    code, _, err = run("draw", rows_file(tmp_path / "now.parquet"), "--plan", plan)
    assert (code, message in err, err.count("\n")) == (3, True, 1), err
