"""`whitepanda runtime`: fit, predict, evaluate from file to file on synthetic runtimes, and what is refused."""

import csv
import io
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from central.cli import runtime as command
from central.cli.shared import outputs
from central.cli.shared.outputs import people_console
from central.runtimes.model import read_model
from central.runtimes.predict import parse_epsilons
from central.runtimes.tables import read_rows
from whitepanda.common import cli
from whitepanda.common.cli import PlainConsole
from whitepanda.common.errors import InputError

WORKLOADS, PLATFORMS = 30, 20


@pytest.fixture(autouse=True)
def _needs_jax():
    pytest.importorskip("jax", reason="the extra `predict` is not installed")


def run(capsys, monkeypatch, *arguments):
    """The exit code, standard output and standard error of `whitepanda runtime ...`."""
    monkeypatch.setattr(sys, "argv", ["whitepanda", "runtime", *map(str, arguments)])
    monkeypatch.setattr(outputs, "console", PlainConsole(width=160))
    code = 0
    try:
        cli.main()
    except SystemExit as done:
        code = int(done.code or 0)
    out, err = capsys.readouterr()
    return code, out, " ".join(err.split())


def write(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Runtimes of rank 2 with interference and 2 % noise: most to fit to, some held out; features that tell a part."""
    folder = tmp_path_factory.mktemp("runtime")
    random = np.random.default_rng(1)
    a, b = random.normal(10, 1.5, WORKLOADS), random.normal(0, 1, PLATFORMS)
    w, p = random.normal(size=(WORKLOADS, 2)), random.normal(size=(PLATFORMS, 2))
    hurt, harm = random.uniform(0, 1, WORKLOADS), random.uniform(0, 1, WORKLOADS)
    rows = []
    for i in range(WORKLOADS):
        for j in range(PLATFORMS):
            for k in (None, *random.integers(0, WORKLOADS, 2)):
                log_us = a[i] + b[j] + 0.3 * w[i] @ p[j] + 0.02 * random.normal()
                log_us += 0 if k is None else hurt[i] * harm[k]
                rows.append((f"w{i}", f"p{j}", "" if k is None else f"w{k}", float(np.exp(log_us))))
    random.shuffle(rows)
    header = ("workload", "platform", "interferer", "runtime_us")
    for what, place in (("workload", WORKLOADS), ("platform", PLATFORMS)):
        # One more, in the middle of the others, which no fit sees: 12 runs tell of it, the others ask.
        size, side = random.normal(10 if what == "workload" else 0, 1), random.normal(size=2)
        found = []
        for other in range(PLATFORMS if what == "workload" else WORKLOADS):
            for k in (None, random.integers(0, WORKLOADS)):
                i, j = (None, other) if what == "workload" else (other, None)
                log_us = (size if i is None else a[i]) + (size if j is None else b[j])
                log_us += 0.3 * (side if i is None else w[i]) @ (side if j is None else p[j])
                log_us += 0 if k is None else (0.5 if i is None else hurt[i]) * harm[k]
                names = (f"w{place if i is None else i}", f"p{place if j is None else j}")
                found.append((*names, "" if k is None else f"w{k}", float(np.exp(log_us))))
        random.shuffle(found)
        write(folder / f"{what}.csv", [header, *found[:12]])
        write(folder / f"{what}-asked.csv", [header, *found[12:]])
    write(folder / "fit.csv", [header, *rows[:1500]])
    write(folder / "new.csv", [header, *rows[1500:]])
    write(folder / "w.csv", [("workload", "x", "y"), *((f"w{i}", *w[i]) for i in range(WORKLOADS))])
    write(folder / "p.csv", [("platform", "x", "y"), *((f"p{j}", *p[j]) for j in range(PLATFORMS))])
    return folder


def fit_arguments(folder, out, observations="fit.csv"):
    return (
        "fit", folder / observations, "--workload-features", folder / "w.csv", "--platform-features", folder / "p.csv",
        "--out", out, "--members", 2, "--steps", 200,
    )  # fmt: skip


@pytest.fixture(scope="module")
def model(study):
    """A fitted model's file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["whitepanda", "runtime", *map(str, fit_arguments(study, study / "model"))])
        patch.setattr(outputs, "console", PlainConsole(file=io.StringIO()))
        with pytest.raises(SystemExit, match="0"):
            cli.main()
    return study / "model"


@pytest.mark.long
def test_predictions_of_rows_not_fitted_are_near_and_bounds_cover(study, model, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out.csv"
    rows = study / "new.csv"
    code, _, err = run(capsys, monkeypatch, "predict", rows, "--model", model, "--epsilon", "0.1,0.05", "--out", out)
    assert (code, err) == (0, "")
    with out.open() as file:
        rows = list(csv.DictReader(file))
    given = list(csv.DictReader((study / "new.csv").open()))
    assert [row["workload"] for row in rows] == [row["workload"] for row in given]
    assert list(rows[0])[4:] == ["predicted_us", "bound_us_0.1", "bound_us_0.05"]
    measured, predicted, bound, further = (
        np.array([float(row[name]) for row in rows]) for name in ("runtime_us", *list(rows[0])[4:])
    )
    # Linear scaling, with nothing about interference, is off by 30 %.
    assert np.mean(np.abs(predicted - measured) / measured) < 0.07
    assert np.mean(measured <= bound) == pytest.approx(0.9, abs=0.07)
    assert (further >= bound).all()
    assert np.mean(np.log(further / bound)) > 0.005


@pytest.mark.long
def test_evaluate_says_what_the_predictions_are(study, model, tmp_path, capsys, monkeypatch):
    def asked(what):
        return what, study / "new.csv", "--model", model, "--epsilon", "0.1"

    code, out, _ = run(
        capsys, monkeypatch, "evaluate", study / "new.csv", "--model", model, "--epsilon", "0.1", "--json"
    )
    assert code == 0
    found = json.loads(out)["co_runners"]
    run(
        capsys, monkeypatch, "predict", study / "new.csv", "--model", model, "--epsilon", "0.1", "--out", tmp_path / "o"
    )
    rows = list(csv.DictReader((tmp_path / "o").open()))
    for count, line in found.items():
        here = [row for row in rows if bool(row["interferer"]) == (count == "1")]
        t, t_hat, bound = (
            np.array([float(row[name]) for row in here]) for name in ("runtime_us", "predicted_us", "bound_us_0.1")
        )
        reported = line["bounds"]["0.1"]
        assert line["rows"] == len(here)
        assert line["mape"] == pytest.approx(np.mean(np.abs(t_hat - t) / t))
        assert line["mape_by_prediction"] == pytest.approx(np.mean(np.abs(t / t_hat - 1)))
        assert reported["coverage"] == pytest.approx(np.mean(t <= bound))
        assert reported["coverage_low"] < reported["coverage"] < reported["coverage_high"]
        assert reported["margin"] == pytest.approx(np.mean(np.maximum(bound - t, 0) / t))
        assert reported["margin_by_bound"] == pytest.approx(np.mean(np.abs(t / bound - 1)))


@pytest.mark.long
def test_the_file_that_was_fitted_to_is_no_test(study, model, capsys, monkeypatch):
    code, _, err = run(capsys, monkeypatch, "evaluate", study / "fit.csv", "--model", model, "--json")
    assert code == 3
    assert "calibration rows cannot bound epsilon 0.01" in err
    code, out, err = run(
        capsys, monkeypatch, "evaluate", study / "fit.csv", "--model", model, "--epsilon", "0.1", "--json"
    )
    assert code == 0
    assert "warning: the model was fitted to this very file" in err
    assert json.loads(out)["co_runners"]["0"]["rows"] > 400


@pytest.mark.long
def test_the_same_seed_gives_the_same_model(study, model, tmp_path, capsys, monkeypatch):
    code, out, _ = run(capsys, monkeypatch, *fit_arguments(study, tmp_path / "again"), "--json")
    assert code == 0
    assert json.loads(out)["calibration_rows"].keys() == {"0", "1"}
    one, other = read_model(model), read_model(tmp_path / "again")
    assert (one.members.workload == other.members.workload).all()
    assert (one.pools[1].residuals == other.pools[1].residuals).all()


@pytest.mark.long
def test_several_interferers_are_predicted_without_a_bound_that_nothing_calibrates(
    study, model, tmp_path, capsys, monkeypatch
):
    rows = [
        ("workload", "platform", "interferer_1", "interferer_2"),
        ("w1", "p1", "w2", "w3"),
        ("w1", "p1", "", "w2"),
        ("w1", "p1", "w2", ""),
    ]
    path = write(tmp_path / "rows.csv", rows)
    code, out, _ = run(
        capsys, monkeypatch, "predict", path, "--model", model, "--epsilon", "0.1", "--out", tmp_path / "o.parquet"
    )
    assert code == 0
    assert "no bound beside 2 others, of which the fit had none: 1 rows" in out
    found = pq.read_table(tmp_path / "o.parquet").to_pydict()
    assert found["bound_us_0.1"][0] is None
    assert found["predicted_us"][1] == found["predicted_us"][2]
    assert found["predicted_us"][0] > found["predicted_us"][1] * 0.98


@pytest.mark.parametrize("kind", ["list", "text", "numbered"])
def test_interferers_are_read_from_lists_texts_and_columns(kind, tmp_path):
    lists = [["b", "c"], [], ["a"]]
    base = {"workload": ["a", "a", "b"], "platform": ["x", "y", "x"]}
    columns = {
        "list": {"interferers": pa.array(lists)},
        "text": {"interferers": ["b; c", None, "a"]},
        "numbered": {"interferer_1": ["b", None, None], "interferer_2": ["c", None, "a"]},
    }[kind]
    pq.write_table(pa.table({**base, **columns}), tmp_path / "rows.parquet")
    found = read_rows(tmp_path / "rows.parquet")
    names = [[found.interferers[k] for k in row if k >= 0] for row in found.rows.interferers]
    assert names == lists
    assert found.rows.co_runners.tolist() == [2, 0, 1]


@pytest.mark.long
@pytest.mark.parametrize("what", ["workload", "platform"])
def test_a_dozen_runs_tell_of_a_new_name_without_a_fit(what, study, model, tmp_path, capsys, monkeypatch):
    new = tmp_path / "grown"
    code, out, err = run(capsys, monkeypatch, "update", study / f"{what}.csv", "--model", model, "--out", new, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found[f"{what}s"] == [f"w{WORKLOADS}" if what == "workload" else f"p{PLATFORMS}"]
    assert (found["rows_used"], found["rows_left_out"]) == (12, 0)
    asked = ("evaluate", study / f"{what}-asked.csv", "--epsilon", "0.1", "--json", "--model")
    code, _, err = run(capsys, monkeypatch, *asked, model)
    assert code == 3
    assert "is not known" in err
    code, out, _ = run(capsys, monkeypatch, *asked, new)
    assert code == 0
    # The average of a dozen runs alone is off by 30 %, a platform's or workload's size unknown by a factor of 3.
    assert all(line["mape"] < 0.2 for line in json.loads(out)["co_runners"].values())
    # What was known is predicted as before.
    before, after = read_model(model), read_model(new)
    rows = read_rows(study / "new.csv").placed(before.workloads, before.platforms, "")
    assert (before.estimate(rows).log_us == after.estimate(rows).log_us).all()


ROW = ("w1", "p1", "", "5")
HEADER = ("workload", "platform", "interferer", "runtime_us")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([HEADER[:3], ROW[:3]], "has no column runtime_us; it has "),
        ([("workload", "platform", "interfering", "runtime_us"), ROW], "column interfering is not known; is it "),
        ([HEADER, ROW, ("w1", "p1", "", "inf")], "column runtime_us must be finite numbers (row 2: inf)"),
        ([HEADER, ROW, ("w1", "p1", "-", "5")], "interferer '-' is not known (row 2); give its features"),
        ([("platform", "interferer", "runtime_us"), ROW[1:]], "no column workload"),
        ([HEADER, ROW, ("w1", "p1", "", "0")], "runtime_us must be more than 0 in every row (row 2: 0, 1 such rows)"),
        ([HEADER, ROW, ("w1", "p1", "", "-3")], "(row 2: -3, 1 such rows)"),
        ([HEADER, ROW, ("w1", "p1", "", "")], "(row 2: none, 1 such rows)"),
        ([HEADER, ROW, ("w1", "p1", "", "fast")], "column runtime_us must be finite numbers (row 2: fast)"),
        ([HEADER, ROW, ("w1", "", "", "5")], "row 2 has no platform"),
        ([HEADER, ROW, ("new", "p1", "", "5")], "workload 'new' is not known (row 2); give its features"),
        ([HEADER, ROW, ("w1", "p1", "new", "5")], "interferer 'new' is not known (row 2); give its features"),
        ([HEADER, ROW, ROW], "2 rows are too few to fit runtimes; at least 100 are needed"),
        (
            [(*HEADER, "interferer_1"), (*ROW, "w2")],
            "columns interferer, interferer_1 say the same; keep one kind",
        ),
    ],
)  # fmt: skip
def test_wrong_observations_get_one_line(rows, said, study, tmp_path, capsys, monkeypatch):
    write(tmp_path / "wrong.csv", rows)
    code, out, err = run(capsys, monkeypatch, *fit_arguments(study, tmp_path / "m", tmp_path / "wrong.csv"))
    assert (code, out) == (3, "")
    assert err.startswith("error: ")
    assert said in err
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("platform", "x"), ("p1", "1"), ("p1", "2")], "platform 'p1' has several rows; give each its features once"),
        ([("platform", "x"), ("p1", "1"), ("p2", "")], "column x has no value in row 2; every feature needs one"),
        ([("platform", "x"), ("p1", "big")], "column x must be finite numbers (row 1: big)"),
        ([("platform", "x"), ("p1", "1e300")], "column x is too large in row 1 (1e+300); give its logarithm"),
        ([("name", "x"), ("p1", "1")], "has no column platform; it has "),
    ],
)
def test_wrong_features_get_one_line(rows, said, study, tmp_path, capsys, monkeypatch):
    arguments = list(fit_arguments(study, tmp_path / "m"))
    arguments[5] = write(tmp_path / "wrong.csv", rows)
    code, _, err = run(capsys, monkeypatch, *arguments)
    assert code == 3
    assert said in err


@pytest.mark.long
@pytest.mark.parametrize("epsilon", ["0", "0.6", "-1", "x", "0.1,0.10", "nan", ""])
def test_wrong_epsilons_are_refused(epsilon, study, model, tmp_path, capsys, monkeypatch):
    given = ("predict", study / "new.csv", "--model", model, "--epsilon", epsilon)
    code, _, err = run(capsys, monkeypatch, *given, "--out", tmp_path / "o")
    assert code == 3
    assert "--epsilon: " in err


@pytest.mark.long
def test_an_unknown_workload_is_named_with_the_remedy(model, tmp_path, capsys, monkeypatch):
    rows = write(tmp_path / "rows.csv", [HEADER[:3], ROW[:3], ("w1", "other", ""), ("w1", "more", "")])
    code, _, err = run(capsys, monkeypatch, "predict", rows, "--model", model, "--out", tmp_path / "o")
    assert code == 3
    assert (
        "platform 'other' is not known (row 2, and 1 more; 2 rows with unknown names); "
        "the model knows only what it was fitted with" in err
    )
    assert "`whitepanda runtime update`" in err


@pytest.mark.long
def test_rows_with_unknown_names_may_stay_empty(model, tmp_path, capsys, monkeypatch):
    rows = [HEADER[:3], ("w1", "other", ""), ("w1", "p1", "NaN"), ("w1", "p1", "new"), ("w1", "p1", "")]
    path, out = write(tmp_path / "rows.csv", rows), tmp_path / "o.csv"
    given = ("predict", path, "--model", model, "--out", out, "--epsilon", "0.1", "--skip-unknown")
    code, shown, _ = run(capsys, monkeypatch, *given)
    assert code == 0
    assert "rows: 2 predicted" in shown and "left empty, with names that the model has not: 2 rows" in shown
    reported = json.loads(run(capsys, monkeypatch, *given, "--json")[1])
    assert (reported["rows"], reported["rows_unknown"], reported["rows_without_bound"]) == (4, 2, {})
    found = list(csv.DictReader(out.open()))
    assert [row["predicted_us"] == "" for row in found] == [True, False, True, False]
    assert [row["bound_us_0.1"] == "" for row in found] == [True, False, True, False]
    assert found[1]["predicted_us"] == found[3]["predicted_us"]  # NaN is nobody
    write(path, rows[:2])
    code, _, err = run(capsys, monkeypatch, *given)
    assert code == 3 and "platform 'other' is not known (row 1); the model" in err


@pytest.mark.long
@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([HEADER, ROW], "the model already knows all its workloads and platforms; nothing to add"),
        ([HEADER, ("new", "p1", "", "5"), ("new", "newer", "", "5")], "row 2 has a workload and a platform that"),
        ([HEADER, ("new", "p1", "newer", "5")], "'new' was seen beside unknown workloads only; give other runs of it"),
    ],
)  # fmt: skip
def test_an_update_that_reports_nothing_is_refused(rows, said, model, tmp_path, capsys, monkeypatch):
    path = write(tmp_path / "runs.csv", rows)
    code, _, err = run(capsys, monkeypatch, "update", path, "--model", model, "--out", tmp_path / "m")
    assert code == 3
    assert said in err
    assert not (tmp_path / "m").exists()


@pytest.mark.long
def test_nothing_is_written_over_what_is_read(study, model, capsys, monkeypatch):
    code, _, err = run(capsys, monkeypatch, *fit_arguments(study, study / "w.csv"))
    assert code == 3
    assert "w.csv: --out is --workload-features itself" in err
    code, _, err = run(capsys, monkeypatch, "predict", study / "new.csv", "--model", model, "--out", model)
    assert code == 3
    assert "--out is --model itself" in err


def test_where_nothing_can_be_written_is_reported_before_the_training(study, tmp_path, capsys, monkeypatch):
    def trained(*_, **__):
        raise AssertionError("trained")

    monkeypatch.setattr(command, "fit_model", trained)
    for out, exit_code, said in (
        (tmp_path, 3, "is a folder; give the name of a file"),
        (tmp_path / "none" / "m", 4, f"cannot write: there is no folder {tmp_path / 'none'}"),
    ):
        code, _, err = run(capsys, monkeypatch, *fit_arguments(study, out))
        assert (code, said in err) == (exit_code, True)


@pytest.mark.parametrize(
    ("given", "called"),
    [
        ("0.1,0.05,0.01", ["0.1", "0.05", "0.01"]),
        ("1e-1, .05,0.010", ["0.1", "0.05", "0.01"]),
        ("1e-5,0.5,0.123456789", ["0.00001", "0.5", "0.123456789"]),
    ],
)
def test_a_share_is_called_by_its_digits_however_it_is_written(given, called):
    found = parse_epsilons(given)
    assert [word for word, _ in found] == called
    assert [value for _, value in found] == [float(word) for word in called]


def test_a_share_twice_in_other_letters_is_refused():
    with pytest.raises(InputError, match=r"^--epsilon: 0\.1 is given twice \(value 0\.1,1e-1\); give each value once$"):
        parse_epsilons("0.1,1e-1")


@pytest.mark.long
def test_what_is_reported_of_a_table_does_not_go_into_it(study, model, tmp_path, capsys, monkeypatch):
    given = ("predict", study / "new.csv", "--model", model, "--epsilon", "0.1", "--out")
    monkeypatch.setattr(command, "people_console", lambda path: cli.errors if path == tmp_path / "o" else cli.console)
    code, out, err = run(capsys, monkeypatch, *given, tmp_path / "o")
    assert (code, out) == (0, "")
    assert err.endswith(f"predicted written to {tmp_path / 'o'}")
    code, out, err = run(capsys, monkeypatch, *given, tmp_path / "p")
    assert (code, err) == (0, "")
    assert out.endswith(f"written to {tmp_path / 'p'}\n")


def test_standard_output_is_known_by_any_name(tmp_path, monkeypatch):
    with (tmp_path / "redirected").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        assert people_console(Path(f"/dev/fd/{file.fileno()}")) is cli.errors
        assert people_console(tmp_path / "redirected") is cli.errors
        assert people_console(tmp_path / "another") is cli.console
        (tmp_path / "another").touch()
        assert people_console(tmp_path / "another") is cli.console
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        assert people_console(Path("/dev/stdout")) is cli.console


@pytest.mark.long
def test_an_evaluation_fits_80_columns_and_names_shares_by_their_digits(study, model, capsys, monkeypatch):
    arguments = ("evaluate", study / "new.csv", "--model", model, "--epsilon", "0.10,5e-2")
    code, out, _ = run(capsys, monkeypatch, *arguments, "--json")
    assert code == 0
    assert list(json.loads(out)["co_runners"]["1"]["bounds"]) == ["0.1", "0.05"]
    monkeypatch.setattr(sys, "argv", ["whitepanda", "runtime", *map(str, arguments)])
    monkeypatch.setattr(outputs, "console", PlainConsole(file=(text := io.StringIO()), width=80))
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    table = text.getvalue()
    assert "…" not in table
    assert "rows" in table and "by bound" in table
    assert len([line for line in table.splitlines() if " to " in line and line.count("%") == 3]) == 4


def arrays_of(path):
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def header(arrays, **changes):
    return np.frombuffer(json.dumps({**json.loads(arrays["header"].tobytes()), **changes}).encode(), dtype=np.uint8)


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a: a.pop("platform"), "'platform"),
        (lambda a: a.update(platform=a["platform"][:, :-1]), "platform must be numbers of shape (2, 20,"),
        (lambda a: a.update(workload=a["workload"] * np.float32("nan")), "workload has values that are not finite"),
        (lambda a: a.update(header=header(a, format="whitepanda-runtime-9")), "whitepanda-runtime-9 is not known"),
        (lambda a: a.update(header=header(a, members=0)), "members must be whole numbers of 1 to 1024 (value 0)"),
        (lambda a: a.update(header=header(a, platforms=["p1", "p1"])), "platforms must be named, each once"),
        (lambda a: a.update(header=header(a, leak=2.0)), "leak must be 0 to 1 (value 2.0)"),
        (lambda a: a.update(header=a["header"][:-3]), "is not a model of runtimes"),
        (lambda a: a.update(header=np.array([{}], dtype=object)), "an array in it is not of plain numbers"),
        (lambda a: a.update(header=np.frombuffer(b"[1]", dtype=np.uint8)), "its header is not a JSON object"),
        (lambda a: a.update(header=np.frombuffer(b"[" * 200_000, dtype=np.uint8)), "recursion"),
    ],
)  # fmt: skip
def test_a_broken_model_file_is_refused_in_one_line(change, said, model, tmp_path):
    arrays = arrays_of(model)
    change(arrays)
    with (tmp_path / "broken").open("wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(InputError) as error:
        read_model(tmp_path / "broken")
    assert said in str(error.value)
    assert "write it again with `whitepanda runtime fit`" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.long
def test_a_smaller_share_has_no_lower_bound_in_any_order(study, model):
    found = read_model(model)
    rows = read_rows(study / "new.csv").placed(found.workloads, found.platforms, "")
    estimates = found.estimate(rows)
    shares = [0.3, 0.05, 0.1, 0.2, 0.03]
    each = np.concatenate([found.bounds(rows, estimates, [share]) for share in shares])
    # By themselves heads cross: this is what is mended.
    assert (each[1] < each[2]).any() or (each[2] < each[3]).any() or (each[3] < each[0]).any()
    together = found.bounds(rows, estimates, shares)
    for k, share in enumerate(shares):
        larger = [n for n, other in enumerate(shares) if other >= share]
        assert (together[k] == each[larger].max(axis=0)).all()


@pytest.mark.parametrize("content", [b"", b"no zip at all", b"PK\x03\x04 cut"])
def test_a_file_that_is_no_archive_is_refused(content, tmp_path):
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(InputError, match=r"is not a model of runtimes: (it is not an archive of arrays|.*zip)"):
        read_model(tmp_path / "other")
