"""`whitepanda slowdown pairs`: measured pairs from a file to held-out errors and predictions, and what is refused."""

import csv
import json

import numpy as np
import pytest
from scipy.stats import t
from typer.testing import CliRunner

from central.cli.slowdown import app
from central.models.dfactor_pairs import ExtendedLoadings, Pairs
from central.placement import pairs as library
from whitepanda.common.errors import InputError

WORKLOADS, PLATFORMS = 8, 2
MODELS = [library.PLATFORM, library.DFACTOR, library.EXTENDED]


def run(*words):
    return CliRunner().invoke(app, ["pairs", *map(str, words)], catch_exceptions=False)


def truth(seed=0):
    """Slow-downs of 0.9 to 4: what a workload suffers and what it causes are two things."""
    random = np.random.default_rng(seed)
    return ExtendedLoadings(
        random.uniform(0.3, 1.5, (WORKLOADS, 1)),
        random.uniform(0.3, 1.5, (WORKLOADS, 1)),
        np.array([[0.5], [1.2]]),
        np.array([1.0, 0.92]),
        np.ones(WORKLOADS),
    )


@pytest.fixture(autouse=True)
def _few_fits(monkeypatch):
    monkeypatch.setattr(library, "RESOURCES", (1, 2))
    monkeypatch.setattr(library, "PENALTIES", (0.05,))


@pytest.fixture(scope="module")
def slow():
    """The slow-down of each (victim, beside, platform), all of them."""
    victim, beside, platform = (
        part.ravel()
        for part in np.meshgrid(np.arange(WORKLOADS), np.arange(WORKLOADS), np.arange(PLATFORMS), indexing="ij")
    )
    blank = Pairs(victim, beside, platform, np.ones(len(victim)))
    found = truth().predict(blank)
    return {
        (f"w{v}", f"w{b}", f"p{p}"): float(value)
        for v, b, p, value in zip(victim, beside, platform, found, strict=True)
    }


def write(path, rows, header=("workload", "platform", "interferer", "runtime_us")):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture
def measured(slow, tmp_path):
    """All pairs but two, and the runs alone; times alone are 100 us per number of the workload and platform."""
    rows = [[f"w{w}", f"p{p}", "", 100 * (1 + w) * (1 + p)] for w in range(WORKLOADS) for p in range(PLATFORMS)]
    rows += [
        [victim, platform, beside, 100 * (1 + int(victim[1])) * (1 + int(platform[1])) * value]
        for (victim, beside, platform), value in slow.items()
        if (victim, beside) not in (("w1", "w2"), ("w5", "w0"))
    ]
    return write(tmp_path / "measured.csv", rows)


@pytest.mark.long
def test_pairs_beyond_2_are_predicted_from_other_pairs(measured, slow, tmp_path):
    asked = [["w1", "p1", "w2", "x"], ["w3", "p0", "", "y"], ["w5", "p0", "w0", "z"], ["w5", "p1", "w0", "z"]]
    rows = write(tmp_path / "rows.csv", asked, ("workload", "platform", "interferer", "note"))
    out, picture = tmp_path / "out.csv", tmp_path / "pairs.png"
    result = run(measured, "--rows", rows, "--out", out, "--plot", picture, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["pairs"], found["workloads"], found["platforms"]) == (124, 8, 2)
    assert (found["without_alone"], found["beside_several"], found["rows"]) == (0, 0, 4)
    assert list(found["held_out"]) == MODELS
    errors = {name: parts["all"] for name, parts in found["held_out"].items()}
    assert all(each["n"] == 25 for each in errors.values())
    assert all(each["low"] <= each["mean"] <= each["high"] for each in errors.values())
    assert errors[library.EXTENDED]["mean"] < 0.05 < errors[library.DFACTOR]["mean"]
    assert found["held_out"][library.EXTENDED]["above 2"]["mean"] < 0.05
    assert found["held_out"][library.DFACTOR]["above 2"]["mean"] > 0.2
    written = list(csv.DictReader(out.open(encoding="utf-8")))
    assert [row["note"] for row in written] == ["x", "y", "z", "z"]
    assert float(written[1]["slowdown"]) == 1
    for row in (written[0], written[2], written[3]):
        expected = slow[row["workload"], row["interferer"], row["platform"]]
        assert float(row["slowdown"]) == pytest.approx(expected, rel=0.05)
    assert max(float(row["slowdown"]) for row in written) > 2
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_the_table_for_people_and_one_seed_one_result(measured):
    one, two = run(measured, "--seed", 3), run(measured, "--seed", 3)
    assert one.exit_code == 0
    assert one.stdout == two.stdout
    assert one.stdout.startswith("124 pairs; left out: 0 have no run alone, 0 rows are beside several\n")
    assert "above 2" in one.stdout and "extended: " in one.stdout


def test_slow_downs_as_given_are_those_of_times(measured, slow, tmp_path):
    given = [[v, p, b, value] for (v, b, p), value in slow.items() if (v, b) not in (("w1", "w2"), ("w5", "w0"))]
    path = write(tmp_path / "slow.csv", given, ("workload", "platform", "interferer", "slowdown"))
    of_times, of_given = library.read_pairs(measured), library.read_pairs(path)
    assert of_times.pairs.slowdown == pytest.approx(of_given.pairs.slowdown, rel=1e-12)
    assert of_times.workloads.names == of_given.workloads.names


def test_repeated_runs_alone_count_by_their_geometric_mean_and_what_is_no_pair_is_counted(slow, tmp_path):
    rows = [["w0", "p0", "", 50], ["w0", "p0", "", 200], ["w0", "p0", "w1;w2", 1], ["w1", "p0", "w2", 7]]
    rows += [["w0", "p0", f"w{k % 5}", 150 + k] for k in range(100)]
    path = write(tmp_path / "many.csv", rows, ("workload", "platform", "interferers", "runtime_us"))
    found = library.read_pairs(path)
    assert (found.without_alone, found.of_several) == (1, 1)
    assert found.pairs.slowdown == pytest.approx([(150 + k) / 100 for k in range(100)], rel=1e-12)
    # Five distinct pairs, each measured 20 times.
    assert np.bincount(found.same).tolist() == [20] * 5


def test_what_was_measured_twice_is_on_one_side(measured, monkeypatch):
    seen = {}

    def fit(pairs, *_, **__):
        seen.setdefault("fitted", pairs)
        return truth()

    monkeypatch.setattr(library, "fit_plain", fit)
    monkeypatch.setattr(library, "fit_extended", fit)
    known = library.read_pairs(measured)
    twice = library.Measured(
        known.pairs.where(np.tile(np.arange(124), 2)), known.workloads, known.platforms, np.tile(known.same, 2), 0, 0
    )
    found = library.hold_out(twice, 0, lambda _: None)
    assert (len(found.measured), len(seen["fitted"].slowdown)) == (50, 198)
    assert len(np.unique(found.measured)) == 25


def test_an_interval_is_the_wider_of_those_by_workloads_and_by_platforms():
    place = np.array([0, 0, 1, 1, 2, 2])
    pairs = Pairs(place, place, np.array([0, 1, 0, 1, 0, 1]), np.ones(6))
    errors = np.array([0.1, 0.1, 0.2, 0.2, 0.6, 0.6])
    found = library.mean_error(errors, pairs)
    # As the mean of three workloads' means, which have all of the spread; platforms have none.
    half = t.ppf(0.975, 2) * np.std([0.1, 0.2, 0.6], ddof=1) / np.sqrt(3)
    assert (found.n, found.mean) == (6, pytest.approx(0.3))
    assert found.high == pytest.approx(0.3 + half, rel=1e-9)
    assert found.low == 0  # no error is below
    turned = Pairs(np.zeros(6, dtype=np.int64), place, place, np.ones(6))
    assert library.mean_error(errors, turned).high == pytest.approx(0.3 + half, rel=1e-9)
    assert library.mean_error(errors[:1], pairs.where([0])) == library.MeanError(1, 0.1, None, None)
    assert library.mean_error(errors[:0], pairs.where([])) == library.MeanError(0, None, None, None)


@pytest.mark.parametrize(
    ("header", "rows", "line"),
    [
        ("workload,interferer,runtime_us", ["a,b,1"], "has no column platform; it has "),
        ("workload,platform,interferer", ["a,p,b"], "has no column runtime_us; it has "),
        ("workload,platform,interferer,runtime_us", ["a,p,b,0"], "runtime_us must be more than 0 in every row"),
        (
            "workload,platform,interferer,slowdown",
            ["a,p,,", "a,p,b,-1"],
            "slowdown must be more than 0 in rows with another workload ",
        ),
        (
            "workload,platform,interferer,runtime_us",
            ["a,p,,1", "a,p,b,2", "b,p,a,2"],
            "has 1 pairs of a workload beside one other, fewer than 100 (1 more have no run alone on their platform, ",
        ),
    ],
)
def test_files_of_pairs_that_are_refused(header, rows, line, tmp_path):
    path = tmp_path / "measured.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    with pytest.raises(InputError) as refused:
        run(path)
    assert str(refused.value).startswith(f"{path}: {line}")


@pytest.mark.parametrize(
    ("header", "row", "line"),
    [
        ("workload,platform,interferer", "w9,p0,w1", "workload 'w9' is not known (row 1); measure it in pairs"),
        ("workload,platform,interferer,slowdown", "w1,p0,w2,1", "already has a column slowdown, which "),
        ("workload,platform,interferers", "w1,p0,w2;w3", "row 1 is beside 2 others, and pairs have one; use "),
        ("workload,platform,interferer", "w7,p0,w0", "row 1: 'w7' is not the workload of any measured pair; measure "),
        ("workload,platform,interferer", "w0,p0,w7", "row 1: 'w7' is not the interferer of any measured pair; "),
        ("workload,platform,interferer", "w0,p2,w1", "row 1: 'p2' is not the platform of any measured pair; measure "),
    ],
)
def test_rows_that_cannot_be_predicted_are_refused_before_any_fit(header, row, line, slow, tmp_path, monkeypatch):
    def fit(*_, **__):
        raise AssertionError("fitted")

    monkeypatch.setattr(library, "fit_plain", fit)
    rows = [[v, p, b, value] for (v, b, p), value in slow.items() if "w7" not in (v, b)]
    rows = write(
        tmp_path / "slow.csv",
        [*rows, *rows[:50], ["w7", "p0", "", 1], ["w0", "p2", "", 1]],
        ("workload", "platform", "interferer", "slowdown"),
    )
    asked = tmp_path / "rows.csv"
    asked.write_text(f"{header}\n{row}\n", encoding="utf-8")
    with pytest.raises(InputError) as refused:
        run(rows, "--rows", asked, "--out", tmp_path / "out.csv")
    assert str(refused.value).startswith(f"{asked}: {line}")


def test_outputs_are_checked_first(measured, tmp_path):
    with pytest.raises(InputError, match=r"^--rows and --out go together: what to predict, and where to write it$"):
        run(measured, "--out", tmp_path / "out.csv")
    with pytest.raises(InputError, match=r"--out is MEASURED itself; give the name of another file$"):
        run(measured, "--rows", measured, "--out", measured)
    with pytest.raises(InputError, match=r"^--plot .*x.txt: must end in .png$"):
        run(measured, "--plot", tmp_path / "x.txt")
