"""`whitepanda slowdown profile`: loading vectors from runs and shares, their intervals, and what is unknown."""

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from central.cli.slowdown import app
from central.models.dfactor import completion_times, dilations
from central.models.dfactor_profile import fit_runs, mean_shares
from whitepanda.common.errors import InputError, UnavailableError


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "runs.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def profiled(path, *words):
    result = run("profile", path, "--json", *words)
    assert result.exit_code == 0
    return json.loads(result.stdout)


def test_the_papers_filecomp_beside_a_probe(written, tmp_path):
    path, out = written("job,cpu,time_s\nFileComp,0,78.08\nFileComp,1,123.67\n"), tmp_path / "out.csv"
    found = profiled(path, "--rest", "disk", "--out", out)
    (job,) = found["jobs"]
    assert (found["kind"], job["job"], job["n"], job["notes"]) == ("probes", "FileComp", 2, [])
    assert job["measured"]["cpu"]["value"] == pytest.approx(123.67 / 78.08 - 1, rel=1e-12)
    assert round(job["measured"]["cpu"]["value"], 2) == 0.58
    assert job["measured"]["cpu"]["low"] is None  # two runs, two unknowns
    assert job["loading"] == pytest.approx({"cpu": 0.5838883, "disk": 0.4161117}, abs=1e-7)
    assert job["tau_s"]["value"] == pytest.approx(78.08)
    # The file goes into estimate as it is.
    jobs = json.loads(run("estimate", out, "--json").stdout)["jobs"]
    assert jobs == [{"job": "FileComp", "dilation": 1.0, "completion_s": pytest.approx(78.08)}]


def test_several_probes_at_once_are_a_regression():
    p, tau = np.array([0.5, 0.2, 0.1]), 40.0
    beside = np.array([(0, 0, 0), (1, 0, 0), (2, 1, 0), (0, 1, 1), (0.5, 0.5, 0), (0, 0, 3)])
    found = fit_runs(tau * (1 + beside @ p), beside)
    assert [each.value for each in found.shares] == pytest.approx(p.tolist(), rel=1e-10)
    assert found.tau_s.value == pytest.approx(tau, rel=1e-12)
    assert found.shares[0].low is None  # an exact fit says nothing of how runs scatter
    # what was regressed on is the model's own dilation
    assert dilations([p / 2, p / 4])[0] == pytest.approx(1 + (p / 2) @ (p / 4))


@pytest.mark.parametrize("text", [
    "job,cpu,time_s\nx,0,10\nx,0,10\nx,1,15\n",
    "job,copies,time_s\nx,1,10\nx,1,10\nx,2,17\nx,2,17\n",
    "job,cpu\nx,0.25\nx,0.25\nx,0.25\n",
])  # fmt: skip
def test_identical_runs_give_no_interval(text, written):
    (job,) = profiled(written(text))["jobs"]
    for each in (job["tau_s"], *job["measured"].values()):
        assert each is None or (each["low"], each["high"]) == (None, None)
    assert "unknown" in run("profile", written(text)).stdout
    other = text.replace("0.25\n", "0.26\n", 1).replace(",10\n", ",10.1\n", 1)
    (job,) = profiled(written(other))["jobs"]
    assert all(each["low"] < each["value"] < each["high"] for each in job["measured"].values())


def test_copies_without_a_vector_are_status_3(written):
    path = written("job,copies,time_s\nslow,1,10\nslow,2,30\nidle,1,10\nidle,2,12\nbusy,1,10\nbusy,2,18\n")
    for words in ((), ("--json",)):
        result = CliRunner().invoke(app, ["profile", str(path), *words])
        assert "busy" in result.stdout  # whole all the same
        assert isinstance(result.exception, InputError)
        found = "no loading vector found of job slow (|p|^2 2 is above 1: more than jobs of one resource would suffer)"
        assert f"runs.csv: {found} and 1 more; " in str(result.exception)


def test_copies_give_two_candidates(written):
    times = [(n, 80 * (1 + (n - 1) * (0.9**2 + 0.1**2))) for n in (1, 2, 3, 4)]
    path = written("job,copies,time_s\n" + "".join(f"varmail,{n},{t}\n" for n, t in times))
    found = profiled(path)
    (job,) = found["jobs"]
    assert found["kind"] == "copies"
    assert job["measured"]["squared_length"]["value"] == pytest.approx(0.82, rel=1e-10)
    assert job["loading"] is None
    assert job["candidates"] == [
        pytest.approx({"resource-1": 0.9, "resource-2": 0.1}, rel=1e-8),
        pytest.approx({"resource-1": 0.1, "resource-2": 0.9}, rel=1e-8),
    ]
    assert job["notes"] == ["the model cannot distinguish the two vectors; give --larger and --rest"]
    reported = profiled(path, "--larger", "disk", "--rest", "cpu")["jobs"][0]
    assert reported["loading"] == pytest.approx({"disk": 0.9, "cpu": 0.1}, rel=1e-8)
    shown = run("profile", path).stdout
    assert "varmail: resource-1 0.9, resource-2 0.1" in shown and "unknown" in shown  # the interval of an exact fit


def test_copies_that_are_no_busy_job_of_two_resources(written):
    path = written("job,copies,time_s\nidle,1,100\nidle,3,160\nworse,1,100\nworse,2,230\n")
    result = CliRunner().invoke(app, ["profile", str(path), "--json"])
    idle, worse = json.loads(result.stdout)["jobs"]
    assert (idle["candidates"], idle["notes"]) == ([], ["|p|^2 0.3 is below 0.5: not a busy job of two resources"])
    assert worse["notes"] == ["|p|^2 1.3 is above 1: more than jobs of one resource would suffer"]


def test_measured_shares_of_vms_count_alike(written, tmp_path):
    text = "job,vm,cpu,disk_wait\nweb,a,0.2,0.1\nweb,a,0.4,0.1\nweb,b,0.6,0.5\ndb,c,0.5,0.25\n"
    found = profiled(written(text), "--out", tmp_path / "out.csv")
    web, db = found["jobs"]
    assert (web["n"], db["n"]) == (2, 1)
    half = 12.706204736432095 * 0.3 / math.sqrt(2) / math.sqrt(2)  # t of one degree of freedom, std of 0.3 and 0.6
    assert web["measured"]["cpu"] == pytest.approx({"value": 0.45, "low": 0.45 - half, "high": 0.45 + half})
    assert db["measured"]["cpu"] == {"value": 0.5, "low": None, "high": None}
    assert (tmp_path / "out.csv").read_text() == "job,cpu,disk_wait\nweb,0.45,0.3\ndb,0.5,0.25\n"
    assert (tmp_path / "out.csv").stat().st_mode & 0o777 == 0o600


def test_shares_out_of_range_are_brought_in_and_said(written):
    text = "job,cpu,disk,time_s\n" + "a,0,0,100\na,1,0,180\na,0,1,150\nb,0,0,100\nb,1,0,95\nb,0,1,120\n"
    a, b = profiled(written(text))["jobs"]
    assert a["loading"] == pytest.approx({"cpu": 8 / 13, "disk": 5 / 13})
    assert a["notes"] == ["shares sum to 1.3; they are divided by that"]
    assert b["loading"] == pytest.approx({"cpu": 0.0, "disk": 0.2})
    assert b["notes"] == ["cpu -0.05 is taken as 0"]


def test_intervals_of_regressions_cover():
    rng, p, tau, noise, hits = np.random.default_rng(5), 0.6, 50.0, 0.05, 0
    beside = np.repeat([0.0, 1.0], 5)[:, None]
    for _ in range(1000):
        times = tau * (1 + p * beside[:, 0]) * (1 + noise * rng.normal(size=10))
        share = fit_runs(times, beside).shares[0]
        hits += share.low <= p <= share.high
    assert 0.935 <= hits / 1000 <= 0.965


def test_intervals_of_shares_cover_where_windows_of_a_vm_are_alike():
    rng, hits, naive = np.random.default_rng(6), 0, 0
    vm = np.repeat(np.arange(8), 20)
    for _ in range(500):
        shares = np.clip(0.4 + 0.1 * rng.normal(size=8)[vm] + 0.02 * rng.normal(size=160), 0, 1)[:, None]
        grouped, apart = mean_shares(shares, vm).shares[0], mean_shares(shares).shares[0]
        hits += grouped.low <= 0.4 <= grouped.high
        naive += apart.low <= 0.4 <= apart.high
    assert 0.925 <= hits / 500 <= 0.975
    assert naive / 500 < 0.6  # what windows as if they were independent would claim


def test_an_interval_without_an_end_is_none():
    # The time alone is not told from 0.
    share = fit_runs([1.0, 9.0, 2.0, 30.0], [[0.0], [1.0], [1.0], [2.0]]).shares[0]
    assert (share.low, share.high) == (None, None)


def test_profiles_of_simulated_runs_come_back():
    # A job of 30 s beside probes that last longer, by events.
    p = np.array([0.35, 0.45])
    runs = [[], [(1, 0)], [(0, 1)], [(1, 0), (0, 1)]]
    times = [completion_times([p, *beside], [30.0] + [500.0] * len(beside))[0] for beside in runs]
    found = fit_runs(times, [np.sum(beside, axis=0) if beside else (0, 0) for beside in runs])
    assert [each.value for each in found.shares] == pytest.approx(p.tolist(), rel=1e-9)


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        ("job,time_s\na,1\n", [], "FILE: has no resource column, only job, time_s"),
        ("job,copies\na,1\n", [], "FILE: has no column time_s; it has job, copies"),
        ("job,cpu,time_s\na,1,5\n", [], "FILE: job a: 1 runs cannot show 2 unknowns (time alone, and 1 shares)"),
        (
            "job,cpu,time_s\na,1,5\na,1,6\n",
            [],
            "FILE: job a: the runs do not distinguish the shares: what ran beside must vary by itself",
        ),
        (
            "job,cpu,time_s\na,1,1\na,2,10\n",
            [],
            "FILE: job a: the runs give no time alone above 0: they do not follow the model",
        ),
        ("job,cpu,time_s\na,1,0\n", [], "FILE: column time_s must be numbers above 0 (row 1: 0)"),
        ("job,cpu\na,2\n", [], "FILE: column cpu must be numbers from 0 to 1 (row 1: 2)"),
        ("job,copies,time_s\na,1.5,3\n", [], "FILE: column copies must be whole numbers (row 1: 1.5)"),
        ("job,copies,time_s\na,0,3\n", [], "FILE: column copies must be numbers of 1 or more (row 1: 0)"),
        (
            "job,copies,time_s\na,1,3\n",
            ["--rest", "cpu"],
            "--larger and --rest: give two different resources, or neither",
        ),
        ("job,cpu\na,1\n", ["--rest", "cpu"], "--rest cpu: is measured already; name another resource"),
        (
            "job,cpu\na,1\n",
            ["--larger", "cpu"],
            "--larger cpu: is for runs of several copies; FILE has no column copies",
        ),
        (
            "job,copies,time_s\na,1,3\na,2,5\n",
            ["--out", "loadings.csv"],
            (
                "--out loadings.csv: job a has no loading vector: "
                "the model cannot distinguish the two vectors; give --larger and --rest"
            ),
        ),
        (
            "job,cpu,tau_s\na,0.5,10\n",
            [],
            "FILE: has a column tau_s, which `slowdown estimate` reads; omit it from shares of time",
        ),
    ],
)
def test_faults(written, text, words, line):
    path = written(text)
    with pytest.raises(InputError) as refused:
        run("profile", path, *words)
    assert str(refused.value) == line.replace("FILE", str(path))


def test_a_folder_that_is_not_there(written):
    with pytest.raises(UnavailableError, match=r"^/proc/no/file: cannot write: there is no folder /proc/no$"):
        run("profile", written("job,cpu\na,1\n"), "--out", "/proc/no/file")


@pytest.mark.parametrize("unit", [1e-300, 1e-3, 1e200])
def test_times_of_any_size_give_the_same_shares(unit):
    time_s, beside = np.array([1.0, 1.02, 1.5, 1.6]), np.array([[0], [0], [1], [1]])
    as_seconds, found = fit_runs(time_s, beside), fit_runs(time_s * unit, beside)
    assert found.shares[0].value == pytest.approx(as_seconds.shares[0].value, rel=1e-12)
    assert found.shares[0].low == pytest.approx(as_seconds.shares[0].low, rel=1e-9)
    assert found.tau_s.value == pytest.approx(as_seconds.tau_s.value * unit, rel=1e-12)
    assert found.tau_s.high == pytest.approx(as_seconds.tau_s.high * unit, rel=1e-9)


def test_times_of_one_job_that_cannot_belong_together_are_refused():
    with pytest.raises(ValueError, match=r"its times are too different for one job \(1e-200 to 2 s\)"):
        fit_runs([1e-200, 2.0, 1.0], [[0], [1], [2]])
    with pytest.raises(ValueError, match=r"what ran beside|do not distinguish the shares"):
        fit_runs([1.0, 2.0, 3.0], [[0], [1e300], [2e300]])


def test_runs_are_not_written_over(written, tmp_path):
    path = written("job,cpu,time_s\na,0,1\na,1,2\n")
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"runs.csv: --out is RUNS itself"):
        run("profile", path, "--out", path)
    with pytest.raises(InputError, match=r"must end in .csv"):
        run("profile", path, "--out", tmp_path / "x.parquet")
    assert path.read_bytes() == before


def test_rounding_above_one_is_nothing_to_tell(written):
    (job,) = profiled(written("job,cpu,disk,net\na,0.7,0.2,0.1\na,0.1,0.2,0.7\na,0.3,0.6,0.1000000000001\n"))["jobs"]
    assert sum(job["measured"][name]["value"] for name in job["measured"]) > 1
    assert (sum(job["loading"].values()) <= 1 + 1e-15, job["notes"]) == (True, [])


def test_a_profile_as_a_picture_and_as_bars(written, tmp_path):
    runs = written("job,cpu,time_s\na,0,10\na,0,10\na,1,15\n")
    shown = run("profile", runs, "--plot", tmp_path / "p.png").stdout
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert next(line.count("█") for line in shown.splitlines() if "cpu" in line) == 5  # half of ten
    with pytest.raises(InputError, match=r"p: --plot is --out itself; give the name of another file$"):
        run("profile", runs, "--out", tmp_path / "p", "--plot", tmp_path / "p")
