"""`whitepanda runtime embeddings` and the figures and bars of `evaluate`: values by hand, maps, and what is refused."""

import csv
import io
import json
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from central.cli import runtime
from central.cli.shared import outputs
from central.cli.shared.outputs import report
from central.cli.shared.runtime_tables import measures_shown
from central.models.pitot import Members, Shape
from central.models.pitot_bounds import Difficulty
from central.plotting.runtimes import plot_maps, plot_measures
from central.runtimes.embeddings import Embedded, embed, groups_of, neighbours, project, read_groups
from central.runtimes.model import Model, write_model
from central.runtimes.tables import Names
from whitepanda.common.cli import PlainConsole
from whitepanda.common.errors import InputError, UnavailableError

app = typer.Typer()
app.add_typer(runtime.app, name="runtime")

W, P, RANK = 12, 8, 3


def model_of(workloads=W, platforms=P):
    """Two members with embeddings of two clear clusters of workloads, a/... and b/...; platforms without any."""
    random = np.random.default_rng(3)
    shape = Shape(RANK, 2, 1)
    w = random.normal(size=(2, workloads, shape.workload_width)).astype(np.float32)
    w[:, : workloads // 2, 0] += 50
    p = random.normal(size=(2, platforms, shape.platform_width)).astype(np.float32)
    names = tuple(f"{'a' if place < workloads // 2 else 'b'}/w{place}" for place in range(workloads))
    nothing = Members(shape, w[:0], p[:0])
    return Model(
        Names.of(names), Names.of(tuple(f"r{place % 2}:h{place}" for place in range(platforms))),
        np.zeros(workloads), np.zeros(platforms), Members(shape, w, p), nothing,
        Difficulty(np.zeros(workloads), np.zeros(platforms), np.zeros(workloads)), {}, {},
    )  # fmt: skip


@pytest.fixture
def model(tmp_path):
    write_model(tmp_path / "model", model_of())
    return tmp_path / "model"


def run(*arguments):
    return CliRunner().invoke(app, ["runtime", *map(str, arguments)])


def test_products_of_the_embeddings_are_means_over_members():
    found = model_of()
    workloads, platforms = embed(found)
    w, p = found.members.workload[..., :RANK], found.members.platform[..., :RANK]
    expected = np.einsum("mir,mjr->mij", w.astype(float), p.astype(float)).mean(axis=0)
    assert workloads.values @ platforms.values.T == pytest.approx(expected, rel=1e-6)


def test_the_table_and_how_near_groups_are(model, tmp_path):
    result = run("embeddings", "--model", model, "--out", tmp_path / "e.parquet", "--json")
    assert result.exit_code == 0, result.output
    reported = json.loads(result.stdout)
    table = pq.read_table(tmp_path / "e.parquet")
    assert table.column_names == ["kind", "name", *(f"dimension_{n}" for n in range(2 * RANK))]
    assert table["kind"].to_pylist() == ["workload"] * W + ["platform"] * P
    assert table["name"].to_pylist()[::10] == ["a/w0", "b/w10"]
    assert table["dimension_0"][0].as_py() == embed(model_of())[0].values[0, 0]
    workloads = reported["neighbours"]["workload"]
    assert (reported["dimensions"], workloads["names"], workloads["groups"], workloads["share"]) == (6, 12, 2, 1.0)
    # By hand: 2 * 6 * 5 of 12 * 11 pairs are of one group.
    assert workloads["chance"] == pytest.approx(60 / 132)
    assert workloads["chance_low"] < workloads["chance"] < workloads["chance_high"] < 1
    assert workloads["p"] < 0.01
    assert reported["neighbours"]["platform"]["p"] > 0.05
    out = run("embeddings", "--model", model, "--out", tmp_path / "e.csv").stdout
    assert "workloads: 12 in 2 groups; the nearest other one is of the same group for 100.0%, by chance" in out
    assert len((tmp_path / "e.csv").read_text().splitlines()) == 1 + W + P


def test_nearest_neighbours_by_hand():
    line = np.array([[0.0], [1.0], [1.5], [9.0]])  # nearest: 1, 2, 1, 2
    found = neighbours(line, ["x", "x", "y", "y"], 0)
    assert (found.share, found.chance) == (0.5, pytest.approx(1 / 3))
    assert neighbours(line, ["x"] * 4, 0).p == 1.0


def test_groups_are_given_or_parts_of_names(tmp_path):
    part = Embedded("workload", ("lib/a", "rt:h1", "plain", "/odd"), np.zeros((4, 1)))
    assert groups_of(part, None) == ("lib", "rt", "plain", "/odd")
    path = tmp_path / "g.csv"
    path.write_text("kind,name,group\nworkload,lib/a,A\nplatform,plain,P\n,rt:h1,R\n")
    assert groups_of(part, read_groups(path)) == ("A", "R", "other", "other")
    for text, said in (
        ("name\na\n", "no column group"),
        ("name,group\na,\n", "column group is empty (row 1)"),
        ("name,group\n,x\n", "column name is empty (row 1)"),
        ("name,group\na,x\na,y\n", "row 2: 'a' is of 'x' already"),
        ("kind,name,group\njob,a,x\n", "row 1: kind must be workload or platform (value job)"),
    ):
        path.write_text(text)
        with pytest.raises(InputError) as error:
            read_groups(path)
        assert said in str(error.value)


@pytest.mark.long
def test_a_map_keeps_clusters_apart_and_is_the_same_again(tmp_path):
    part = embed(model_of(30))[0]
    places = project(part, 5)
    assert places.shape == (30, 2)
    assert neighbours(places, groups_of(part, None), 0).share == 1.0
    assert (project(part, 5) == places).all()
    plot_maps(tmp_path / "map.png", {"one": (places, [f"g{place}" for place in range(30)])})
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="--plot: 3 platforms are too few for a map; 4 are needed"):
        project(Embedded("platform", ("a", "b", "c"), np.zeros((3, 1))), 0)


def test_the_command_draws_the_map_or_says_why_not(model, tmp_path, monkeypatch):
    arguments = ("embeddings", "--model", model, "--out", tmp_path / "e.csv", "--plot")
    assert run(*arguments, tmp_path / "e.png").exit_code == 0
    assert (tmp_path / "e.png").read_bytes().startswith(b"\x89PNG")
    for plot, said in ((tmp_path / "e.pdf", "must end in .png"), (model, "--plot is --model itself")):
        error = run(*arguments, plot).exception
        assert isinstance(error, InputError) and said in str(error)
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    error = run(*arguments, tmp_path / "e.png").exception
    assert isinstance(error, UnavailableError) and str(error).endswith(
        "install it: `python3 tools/bootstrap.py train` in a checkout"
    )


def bound(coverage, margin):
    return {
        "coverage": coverage, "coverage_low": coverage - 0.01, "coverage_high": coverage + 0.01,
        "margin": margin, "margin_half_width": None if margin is None else margin / 10,
        "margin_by_bound": margin, "margin_by_bound_half_width": None if margin is None else margin / 10,
    }  # fmt: skip


LINE = {"rows": 100, "mape": 0.04, "mape_half_width": 0.01, "mape_by_prediction": 0.04}
LINE["mape_by_prediction_half_width"] = 0.02
RESULT = {
    "0": LINE | {"bounds": {"0.1": bound(0.92, 0.05), "0.05": bound(0.94, 0.1)}},
    "1": LINE | {"mape": 0.02, "bounds": {"0.1": bound(0.89, 0.025), "0.05": bound(0.95, None)}},
    "2": LINE | {"mape": None, "mape_half_width": None, "bounds": {"0.1": None, "0.05": None}},
}


def test_measures_are_bars_in_a_terminal_of_80_columns(monkeypatch):
    text = io.StringIO()
    monkeypatch.setattr(outputs, "console", PlainConsole(file=text, width=80))
    report(RESULT, measures_shown(RESULT), json=False)
    errors, _, bars = text.getvalue().split("Error by number of co-runners")[1].partition("Coverage less")
    assert "█" * 14 in errors and "█" * 7 + " " in errors
    assert "4.00 ± 2.00%" in errors and "5.00 ± 0.50%" in errors and "unknown ± unknown" in errors
    lines = [line.split("│", 4) for line in bars.splitlines() if line.startswith("│")]
    assert [line[3].strip() for line in lines] == ["+2.00", "-1.00", "-1.00", "+0.00"]
    # Ten blocks are 2 points here, twenty are a margin of 10 %.
    assert [line[4].count("█") for line in lines] == [10 + 10, 5 + 20, 5 + 5, 0]
    assert "…" not in text.getvalue()
    assert len(list(measures_shown({"2": RESULT["2"]}))) == 2


@pytest.mark.long
def test_measures_as_a_picture(tmp_path):
    plot_measures(tmp_path / "m.png", RESULT)
    plot_measures(tmp_path / "none.png", {"2": RESULT["2"]})
    for name in ("m.png", "none.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_evaluate_writes_the_picture(model, tmp_path):
    rows = [("workload", "platform", "interferer", "runtime_us"), ("a/w0", "r0:h0", "", 5), ("b/w7", "r1:h1", "", 6)]
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    arguments = ("evaluate", tmp_path / "rows.csv", "--model", model, "--plot")
    result = run(*arguments, tmp_path / "m.png")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")
    error = run(*arguments, tmp_path / "rows.csv").exception
    assert isinstance(error, InputError) and "--plot is OBSERVATIONS itself" in str(error)
