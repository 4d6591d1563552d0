"""`whitepanda degradation`: fit, predict and evaluate from file to file, with what is reported and what is refused."""

import csv
import json
import math
import sys

import numpy as np
import pytest

from agent.analysis.degradation.model import group_key, parse
from central.cli.shared import outputs
from central.degradation import evaluate
from central.degradation.fit import FitOptions, Rival, inputs_of
from central.degradation.model_selection import fit_model, folds_of, held_out, scenario_sets
from central.degradation.runs import Columns, Table, make_runs
from whitepanda.common import cli
from whitepanda.common.cli import PlainConsole

FEATURES = ("ipc", "memory_bandwidth_bytes_per_s", "total_stall_ratio")
SIGNALS = (*FEATURES, "memory_stall_ratio", "guest_ratio")
#: Two VMs: CPU-bound at 20 %, memory-bound at 40 %, with their levels of the signals and what each does to latency.
VMS = {
    "cpu": ((1.8, 2e9, 0.30, 0.10, 0.21), (1.1, 0.25, -0.15, -0.2)),
    "mem": ((0.7, 6e9, 0.60, 0.45, 0.38), (1.3, 0.10, -0.02, -0.38)),
}
GROUPS = "scenario,repetition,vm"
FIT = (
    "--target",
    "p95_latency_s",
    "--baseline-where",
    "phase = 'quiet'",
    "--group-by",
    GROUPS,
    "--features",
    ",".join(FEATURES),
)


def run(capsys, monkeypatch, *arguments):
    """The exit code, standard output and standard error of `whitepanda degradation ...`."""
    monkeypatch.setattr(sys, "argv", ["whitepanda", "degradation", *map(str, arguments)])
    monkeypatch.setattr(outputs, "console", PlainConsole(width=120))
    code = 0
    try:
        cli.main()
    except SystemExit as done:
        code = int(done.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def study(path, *, seed=1, scenarios=("cache", "disk", "both"), quiet=12, stress=60, narrow=False):
    """Runs whose degradation is a Gamma variable around 1 / (K + sum x f), other for each kind of VM; 3 % noise.

    `narrow`: the stress is always the same.
    """
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["scenario", "repetition", "phase", "at_s", "vm", "p95_latency_s", *SIGNALS])
        for scenario in scenarios:
            for repetition in (1, 2):
                for vm, (levels, (constant, *slopes)) in VMS.items():
                    for at_s in range(quiet + stress):
                        is_quiet = at_s < quiet
                        forms = np.ones(5) if is_quiet else rng.uniform((0.6, 1, 1, 1, 1), (1, 2, 1.6, 1.6, 1.2))
                        if narrow and not is_quiet:
                            forms = np.array((0.7, 1.8, 1.5, 1.5, 1.1))
                        forms = forms * rng.normal(1, 0.005, 5)
                        linear = constant + float(np.array(slopes) @ forms[:3])
                        at_rest = constant + sum(slopes)
                        latency = 0.01 * at_rest * rng.gamma(1000, 1 / 1000) / linear
                        signals = [f"{level * form:.6g}" for level, form in zip(levels, forms, strict=True)]
                        phase = "quiet" if is_quiet else "stress"
                        writer.writerow([scenario, repetition, phase, at_s, vm, f"{latency:.6g}", *signals])
    return path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A study, and the model of the paper's methods fitted to it."""
    folder = tmp_path_factory.mktemp("degradation")
    runs = study(folder / "runs.csv")
    columns = Columns(
        "p95_latency_s",
        "phase = 'quiet'",
        tuple(GROUPS.split(",")),
        FEATURES,
        "scenario",
        "at_s",
        extra_inputs=("memory_stall_ratio", "total_stall_ratio", "guest_ratio"),
    )
    methods = ("gamma-inverse", "gamma-log", "gamma-inverse-split", "gamma-log-split")
    data = fit_model(make_runs(Table(runs), columns), FitOptions(methods=methods))
    path = folder / "model.json"
    path.write_text(json.dumps(data))
    return runs, path, data, columns


@pytest.mark.long
def test_a_model_per_behaviour_and_level_is_chosen_where_they_differ(fitted):
    _, _, data, _ = fitted
    errors = {row["method"]: row for row in data["choice"]["errors"]}
    assert data["choice"]["method"] == "gamma-inverse-split"
    assert data["choice"]["held_out_by"] == "scenario"
    assert errors["gamma-inverse-split"]["mean_ape"] == pytest.approx(0.025, abs=0.005)  # that of the noise
    assert errors["gamma-inverse"]["mean_ape"] > 1.3 * errors["gamma-inverse-split"]["mean_ape"]
    assert errors["gamma-inverse"]["mean_ape"] < data["choice"]["constant"]["mean_ape"]
    cells = [(part["behaviour"], part["cpu_level"]) for part in data["models"]]
    assert cells == [(None, None), ("memory-bound", 0.4), ("cpu-bound", 0.2)]


def test_the_agent_chooses_by_the_baseline_what_was_fitted_for_it(fitted):
    runs, _, data, columns = fitted
    model = parse(data)
    rows = make_runs(Table(runs), columns)
    reported = model.predict(*inputs_of(rows, model))
    is_mem = np.char.find(rows.runs, " mem ") >= 0
    assert {name for name, mem in zip(reported.models, is_mem, strict=True) if mem} == {
        "gamma-inverse-split memory-bound 40%"
    }
    assert reported.reasons.count("") == len(reported.reasons)
    assert (np.abs(reported.degradation / rows.degradation - 1)).mean() < 0.04
    covered = (reported.low <= rows.degradation) & (rows.degradation <= reported.high)
    assert 0.85 <= covered[~rows.is_baseline].mean() <= 0.97


@pytest.mark.long
@pytest.mark.parametrize("method", ["gamma-log", "extra-trees"])
@pytest.mark.parametrize("stress", [8, 30])
def test_of_the_rows_that_a_model_was_fitted_to_none_is_unlike_training(tmp_path, method, stress):
    """One scenario, little data, and the quiet rows far from the stressed ones, which alone calibrate intervals."""
    path = study(tmp_path / "runs.csv", scenarios=("cache",), quiet=6, stress=stress, narrow=True)
    columns = Columns("p95_latency_s", "phase = 'quiet'", ("scenario", "repetition", "vm"), FEATURES[:2], "scenario")
    runs = make_runs(Table(path), columns)
    model = parse(fit_model(runs, FitOptions(methods=(method,))))
    assert set(model.predict(*inputs_of(runs, model)).reasons) == {""}
    assert "" not in model.predict(1000 * runs.values, runs.baseline).reasons


@pytest.mark.long
def test_fit_is_the_same_for_the_same_seed(fitted):
    runs, _, data, columns = fitted
    options = FitOptions(methods=("gamma-inverse-split",))
    again = [fit_model(make_runs(Table(runs), columns), options) for _ in range(2)]
    assert again[0] == again[1]
    assert again[0]["models"][0]["estimator"] == data["models"][0]["estimator"]


@pytest.mark.long
def test_fit_writes_a_model_a_plot_and_reports_what_it_chose(tmp_path, capsys, monkeypatch):
    runs = study(tmp_path / "runs.csv")
    out, plot = tmp_path / "model.json", tmp_path / "plot.png"
    more = ("--methods", "gamma-inverse,gamma-log", "--out", out, "--plot", plot)
    code, text, err = run(capsys, monkeypatch, "fit", runs, *FIT, *more)
    assert (code, err) == (0, "")
    assert "rows: 864 read, 864 used" in text
    assert "Generalized linear model regression results" in text
    assert "(a constant)" in text
    assert plot.read_bytes().startswith(b"\x89PNG")
    data = json.loads(out.read_text())
    assert data["provenance"]["runs"] == "runs.csv"
    assert len(data["provenance"]["sha256"]) == 64
    assert len(data["baselines"]["groups"]) == 12
    code, text, _ = run(capsys, monkeypatch, "fit", runs, *FIT, *more[:4], "--json")
    assert json.loads(text)["choice"] == data["choice"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_predict_gives_the_rows_back_in_order_with_estimates(tmp_path, capsys, monkeypatch, fitted, suffix):
    runs, model, data, _ = fitted
    lines = runs.read_text().splitlines()
    stranger = lines[1].replace("cache", "network", 1)
    blank = lines[40].split(",")
    blank[6] = ""  # ipc
    rows = tmp_path / "rows.csv"
    rows.write_text("\n".join([lines[0], lines[200], stranger, ",".join(blank), *lines[1:30]]) + "\n")
    out = tmp_path / f"out.{suffix}"
    code, text, _ = run(capsys, monkeypatch, "predict", rows, "--model", model, "--out", out)
    assert code == 0
    assert "rows: 32 read, 30 estimated" in text
    assert "cannot tell, no_baseline: 1" in text and "cannot tell, missing:ipc: 1" in text
    if suffix == "parquet":
        import pyarrow.parquet as pq  # noqa: PLC0415 - this case only

        written = pq.read_table(out).to_pylist()
    else:
        with out.open() as file:
            written = list(csv.DictReader(file))
    assert [str(row["at_s"]) for row in written[:3]] == [
        line.split(",")[3] for line in (lines[200], stranger, lines[40])
    ]
    assert [row["reason"] for row in written[:3]] == ["", "no_baseline", "missing:ipc"]
    assert written[1]["degradation"] in ("", None)
    group = parse(data).groups[group_key(["cache", 1, "cpu"])]
    quiet = written[3]
    assert float(quiet["low"]) < float(quiet["degradation"]) < float(quiet["high"])
    ratio = float(quiet["predicted_p95_latency_s"]) / float(quiet["degradation"])
    assert ratio == pytest.approx(group.target, rel=1e-9)


def test_predict_takes_baselines_of_unknown_groups_from_the_rows(tmp_path, capsys, monkeypatch, fitted):
    _, model, _, _ = fitted
    rows = study(tmp_path / "other.csv", seed=2, scenarios=("network",))
    out = tmp_path / "out.csv"
    where = ("--baseline-where", "phase = 'quiet'")
    code, text, _ = run(capsys, monkeypatch, "predict", rows, "--model", model, "--out", out, *where, "--json")
    assert code == 0
    assert json.loads(text)["estimated"] >= 280
    code, text, _ = run(capsys, monkeypatch, "predict", rows, "--model", model, "--out", out, "--json")
    assert json.loads(text)["reasons"] == {"no_baseline": 288}


def test_predict_takes_the_rows_baselines_before_those_of_the_fit(tmp_path, capsys, monkeypatch, fitted):
    """A later campaign has the same names of groups, and another machine."""
    runs, model, _, _ = fitted
    other = tmp_path / "later.csv"
    with runs.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        row["p95_latency_s"] = repr(10 * float(row["p95_latency_s"]))
        row["ipc"] = repr(0.8 * float(row["ipc"]))
    with other.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    written = {}
    for name, file in (("then", runs), ("later", other)):
        out = tmp_path / f"{name}.out.csv"
        where = ("--baseline-where", "phase = 'quiet'")
        code, _, _ = run(capsys, monkeypatch, "predict", file, "--model", model, "--out", out, *where)
        assert code == 0
        with out.open(newline="") as stream:
            written[name] = [row for row in csv.DictReader(stream) if row["degradation"]]
    assert len(written["then"]) == len(written["later"]) > 200
    for then, later in zip(written["then"], written["later"], strict=True):
        assert float(later["degradation"]) == pytest.approx(float(then["degradation"]), rel=1e-6)
        ratio = float(later["predicted_p95_latency_s"]) / float(then["predicted_p95_latency_s"])
        assert ratio == pytest.approx(10, rel=1e-6)
    nobody = ("--baseline-where", "phase = 'calm'")
    code, _, err = run(capsys, monkeypatch, "predict", other, "--model", model, "--out", out, *nobody)
    assert (code, "no row is a baseline by --baseline-where" in err) == (3, True)


def test_a_fit_does_not_write_over_what_it_reads(tmp_path, capsys, monkeypatch):
    runs = study(tmp_path / "runs.csv", stress=20)
    before = runs.read_bytes()
    for more, message in (
        (("--out", runs), "--out is RUNS itself"),
        (("--out", tmp_path / "m.json", "--plot", runs), "--plot is RUNS itself"),
        (("--out", tmp_path / "m.json", "--plot", tmp_path / "m.json"), "--plot is --out itself"),
    ):
        options = dict(zip(FIT[::2], FIT[1::2], strict=True)) | dict(zip(more[::2], more[1::2], strict=True))
        status, _, err = run(capsys, monkeypatch, "fit", runs, *(x for pair in options.items() for x in pair))
        assert (status, message in err) == (3, True)
        assert runs.read_bytes() == before


@pytest.mark.long
def test_a_model_that_a_constant_beats_is_reported(tmp_path, capsys, monkeypatch):
    runs = study(tmp_path / "runs.csv", quiet=6, stress=10)
    with runs.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for number, row in enumerate(rows):
        row["ipc"] = repr(1 + 0.1 * ((number * 7919) % 13))  # says nothing
    with runs.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    options = dict(zip(FIT[::2], FIT[1::2], strict=True))
    options |= {"--out": tmp_path / "m.json", "--features": "ipc", "--methods": "extra-trees"}
    status, _, err = run(capsys, monkeypatch, "fit", runs, *(x for pair in options.items() for x in pair))
    assert status == 0
    assert "warning: held out, the model is no better than a constant" in err


def test_evaluate_as_it_is_on_runs_that_the_model_has_not_seen(tmp_path, capsys, monkeypatch, fitted):
    _, model, _, _ = fitted
    rows = study(tmp_path / "other.csv", seed=3, scenarios=("network", "all"))
    code, text, _ = run(capsys, monkeypatch, "evaluate", rows, "--model", model, "--json")
    assert code == 0
    result = json.loads(text)
    assert result["rows"] == 480
    assert result["overall_error"] < 0.03
    assert result["dynamic_error"] == pytest.approx(0.025, abs=0.006)
    assert result["constant"]["mean_ape"] > 2 * result["mean_ape"]
    assert 0.85 <= result["coverage"] <= 0.96
    assert set(result["by_scenario"]) == {"network", "all"}


@pytest.mark.long
@pytest.mark.parametrize("held_out", [("--by-scenario",), ("--folds", "3", "--seed", "4")])
def test_evaluate_refitted(tmp_path, capsys, monkeypatch, fitted, held_out):
    runs, model, _, _ = fitted
    code, text, _ = run(capsys, monkeypatch, "evaluate", runs, "--model", model, *held_out, "--json")
    assert code == 0
    result = json.loads(text)
    assert result["rows"] == 720
    assert result["mean_ape"] == pytest.approx(0.025, abs=0.006)
    assert 0.84 <= result["coverage"] <= 0.96
    plot = tmp_path / "plot.png"
    code, text, _ = run(capsys, monkeypatch, "evaluate", runs, "--model", model, "--plot", plot)
    assert code == 0 and "(a constant)" in text and plot.exists()


@pytest.mark.long
def test_what_is_held_out_is_not_fitted_to(fitted, monkeypatch):
    runs, _, _, columns = fitted
    rows = make_runs(Table(runs), columns)
    seen = []

    def nothing(values, baseline, degradation):
        seen.append(set(degradation.tolist()))
        return {"kind": "glm", "link": "log", "constant": 0.0, "terms": []}

    by_run = list(folds_of(rows, 4, 1, by_run=True))
    for sets in (scenario_sets(rows, FitOptions())[0], list(folds_of(rows, 4, 1)), by_run):
        assert set(np.sum(sets, axis=0)[~rows.is_baseline].tolist()) == {1}  # each row once
        seen.clear()
        held_out(rows, Rival("nothing", nothing), FitOptions(), sets)
        assert len(seen) == len(sets)
        for is_out, fitted_to in zip(sets, seen, strict=True):
            assert not fitted_to & set(rows.degradation[is_out].tolist())
    for is_out in by_run:
        assert not set(rows.runs[is_out]) & set(rows.runs[~is_out])  # a run with its quiet phase

    refitted = []
    monkeypatch.setattr(evaluate, "fit_model", lambda r, options: refitted.append(r) or fit_model(r, options))
    evaluate.evaluate_refitted(rows, FitOptions(), "gamma-log", 0)
    assert sorted(sorted(set(r.scenarios)) for r in refitted) == [
        ["both", "cache"],
        ["both", "disk"],
        ["cache", "disk"],
    ]


@pytest.mark.parametrize(
    ("changes", "message", "code"),
    [
        ({"--features": "ipc,nothing"}, "no column nothing (wanted by --features)", 3),
        ({"--features": "ipc,,x"}, "--features: must be names separated by commas, each once", 3),
        ({"--features": "ipc,p95_latency_s"}, "--features: p95_latency_s is the target", 3),
        ({"--target": "phase"}, "column phase must be numbers (row 1: 'quiet')", 3),
        ({"--target": "p95"}, "no column p95 (wanted by --target)", 3),
        ({"--baseline-where": "phase = 'never'"}, "no row is a baseline", 3),
        ({"--baseline-where": "1=1"}, "every row is a baseline (--baseline-where 1=1); there is nothing to fit to", 3),
        ({"--baseline-where": " "}, "--baseline-where: must be a condition on the columns, such as", 3),
        ({"--group-by": "phase"}, "at least 20 are needed (of 384 rows: 240 without a baseline of their group)", 3),
        ({"--where": "1=0"}, "no usable row of 384 (384 not wanted (--where))", 3),
        ({"--methods": "oracle"}, "--methods: no method oracle; known: gamma-inverse", 3),
        ({"--where": "at_s < 13 AND scenario = 'disk'"}, "4 usable rows other than baselines are too few", 3),
        ({"--scenario": "host"}, "no column host (wanted by --scenario)", 3),
        ({"--out": "/nowhere/model.json"}, "/nowhere/model.json: cannot write: there is no folder /nowhere", 4),
    ],
)
def test_fit_refuses_in_one_line(tmp_path, capsys, monkeypatch, changes, message, code):
    runs = study(tmp_path / "runs.csv", stress=20)
    options = dict(zip(FIT[::2], FIT[1::2], strict=True))
    options.update({"--out": tmp_path / "model.json", "--methods": "gamma-log"} | changes)
    arguments = [text for pair in options.items() for text in pair]
    status, out, err = run(capsys, monkeypatch, "fit", runs, *arguments)
    assert (status, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "model.json").exists()


@pytest.mark.long
def test_files_that_are_no_runs_are_distinguished(tmp_path, capsys, monkeypatch, fitted):
    _, model, _, _ = fitted
    header, *lines = study(tmp_path / "runs.csv", stress=20).read_text().splitlines()
    zero = lines[4].split(",")
    zero[5] = "0"
    texts = {
        "empty.csv": ("", "is empty; the first line must name the columns"),
        "blank.csv": ("\n\n", "has blank lines only; the first line must name the columns"),
        "rowless.csv": (header + "\n", "has columns and no rows"),
        "twice.csv": (
            "\n".join([header.replace("guest_ratio", "IPC"), *lines]),
            "two columns are named IPC; give one of them another name",
        ),
        "long.csv": (
            "\n".join([header, *lines[:4], lines[4] + ",9,9", *lines[5:]]),
            "row 5 has 13 fields, but the first line names 11 columns",
        ),
        "zero.csv": (
            "\n".join([header, *lines[:4], ",".join(zero), *lines[5:]]),
            "the target p95_latency_s must be positive (row 5: 0; 1 such rows)",
        ),
    }
    cases = [("/dev/null", "is not a regular file"), (tmp_path, "is a folder; give the name of a CSV")]
    for name, (text, why) in texts.items():
        (tmp_path / name).write_text(text)
        cases.append((tmp_path / name, why))
    for file, why in cases:
        for arguments in (("fit", file, *FIT, "--out", tmp_path / "m.json"), ("evaluate", file, "--model", model)):
            status, out, err = run(capsys, monkeypatch, *arguments)
            assert (status, out) == (3, "")
            assert err.startswith(f"error: {file}: {why}")
            assert err.count("\n") == 1
    assert not (tmp_path / "m.json").exists()


def test_other_separators_and_marks_at_the_beginning_are_read(tmp_path):
    runs = study(tmp_path / "runs.csv", stress=20)
    other = tmp_path / "other.csv"
    other.write_bytes(b"\xef\xbb\xbf" + runs.read_bytes().replace(b",", b";"))
    assert Table(other).columns == Table(runs).columns
    assert Table(other).rows == 384


def test_predict_and_evaluate_refuse_in_one_line(tmp_path, capsys, monkeypatch, fitted):
    runs, model, _, _ = fitted
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    cases = [
        (("predict", runs, "--model", bad, "--out", tmp_path / "o.csv"), "invalid JSON"),
        (("predict", runs, "--model", tmp_path / "no.json", "--out", tmp_path / "o.csv"), "cannot be read"),
        (("predict", runs, "--model", model, "--out", runs), "is ROWS itself"),
        (("predict", runs, "--model", model, "--out", model), "--out is --model itself"),
        (("evaluate", runs, "--model", model, "--folds", "3", "--by-scenario"), "give one"),
        (("evaluate", runs, "--model", model, "--folds", "1"), "--folds: must be 2 to 720,"),
        (("evaluate", runs, "--model", model, "--folds", "721"), "(value 721)"),
        (("evaluate", runs, "--model", model, "--method", "gamma-log"), "give --by-scenario or --folds too"),
        (("evaluate", runs, "--model", model, "--plot", runs), "--plot is RUNS itself"),
        (("evaluate", runs, "--model", model, "--plot", model), "--plot is --model itself"),
        (("evaluate", runs, "--model", model, "--where", "phase = 'quiet'"), "every usable row is a baseline"),
        (("evaluate", runs, "--model", model, "--by-scenario", "--scenario", ""), "one scenario only"),
    ]
    for arguments, message in cases:
        status, out, err = run(capsys, monkeypatch, *arguments)
        assert (status, out) == (3, ""), arguments
        assert message in err
        assert err.count("\n") == 1
    rows = tmp_path / "rows.csv"
    rows.write_text(runs.read_text().replace("phase", "reason", 1))
    status, _, err = run(capsys, monkeypatch, "predict", rows, "--model", model, "--out", tmp_path / "o.csv")
    assert status == 3 and "already has a column reason" in err


def test_no_statsmodels_is_reported_with_the_remedy(tmp_path, capsys, monkeypatch):
    runs = study(tmp_path / "runs.csv", stress=20)
    monkeypatch.setitem(sys.modules, "statsmodels.api", None)
    arguments = (*FIT, "--out", tmp_path / "model.json", "--methods", "gamma-log")
    status, _, err = run(capsys, monkeypatch, "fit", runs, *arguments)
    assert status == 4
    assert "install it: `python3 tools/bootstrap.py train` in a checkout" in err


def test_the_errors_are_finite_numbers_in_the_file(fitted):
    _, path, _, _ = fitted
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in the file"))
    assert all(math.isfinite(row["mean_ape"]) for row in json.loads(path.read_text())["choice"]["errors"])


@pytest.mark.long
def test_trees_are_rivals_and_travel_in_the_file(tmp_path, capsys, monkeypatch):
    runs = study(tmp_path / "runs.csv", quiet=6, stress=15)
    out = tmp_path / "model.json"
    arguments = (*FIT, "--out", out, "--methods", "gamma-log,extra-trees")
    code, _, _ = run(capsys, monkeypatch, "fit", runs, *arguments)
    assert code == 0
    data = json.loads(out.read_text())
    assert {row["method"] for row in data["choice"]["errors"]} == {"gamma-log", "extra-trees"}
    assert data["choice"]["method"] == min(data["choice"]["errors"], key=lambda row: row["mean_ape"])["method"]
    code, text, _ = run(capsys, monkeypatch, "evaluate", runs, "--model", out, "--json")
    assert code == 0
    assert json.loads(text)["mean_ape"] < 0.05
