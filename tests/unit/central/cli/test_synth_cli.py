"""`whitepanda trace`: files as written, read back by the trace reader; errors of one line."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from central.cli.trace import app
from central.traces.generator import write
from central.traces.generator.presets import PRESETS
from collector.traces.google import read_trace
from whitepanda.common.errors import InputError, UnavailableError

SMALL = ("--days", "2", "--machines", "2", "--set", "ls_tasks=3", "--set", "batch-tasks=4")
ROWS = 2 * 288 * 2 * 7


def run(*words):
    return CliRunner().invoke(app, words, catch_exceptions=False)


def made(folder, *words, name="trace.parquet"):
    out, truth = folder / name, folder / "truth.json"
    result = run("synth", "--out", str(out), "--truth", str(truth), *SMALL, *words)
    assert result.exit_code == 0
    return out, json.loads(truth.read_text())


def test_parquet_has_the_traces_columns_and_all_rows_are_usable(tmp_path):
    out, truth = made(tmp_path, "--corrupted", "0")
    table = pq.read_table(out)
    assert table.schema.equals(write.SCHEMA)
    assert table.num_rows == ROWS
    start, end = (table[name].to_numpy() for name in ("start_time", "end_time"))
    assert start.min() == 0
    assert end.max() == 2 * 86_400_000_000
    assert (end - start == 300_000_000).all()
    reader = read_trace(out)
    sensitive = sum(int(batch.latency_sensitive.sum()) for batch in reader)
    assert (reader.counts.accepted, reader.counts.rejected) == (ROWS, {})
    assert sensitive == ROWS * 3 // 7
    jobs = truth["jobs"]
    assert {str(job) for job in np.unique(table["collection_id"].to_numpy())} <= set(jobs)
    assert truth["antagonists"] == [int(job) for job, row in jobs.items() if row["role"] == "antagonist"]
    assert truth["coefficients"] == {job: row["coefficient"] for job, row in jobs.items()}
    assert sum(row["task_slots"] for row in jobs.values()) == ROWS
    assert truth["parameters"]["ls_tasks"] == 3
    assert (truth["preset"], truth["seed"]) == ("paper", PRESETS["paper"][1].seed)


def test_csv_by_its_name_has_the_same_rows(tmp_path):
    parquet, _ = made(tmp_path, "--set", "missing_cpi_share=0.1")
    text, _ = made(tmp_path, "--set", "missing_cpi_share=0.1", name="trace.csv")
    one, other = pq.read_table(parquet), pcsv.read_csv(text)
    assert one["cycles_per_instruction"].null_count > 0
    assert other["cycles_per_instruction"].null_count == one["cycles_per_instruction"].null_count
    for name in one.column_names:
        np.testing.assert_allclose(one[name].to_numpy(), other[name].to_numpy(), rtol=1e-9)


def test_a_seed_makes_the_same_bytes_and_another_seed_others(tmp_path):
    first = made(tmp_path)[0].read_bytes()
    assert made(tmp_path)[0].read_bytes() == first
    assert made(tmp_path, "--seed", "7")[0].read_bytes() != first


def test_short_options_are_knobs(tmp_path):
    options = {
        "--strength": ("antagonist_effect", 0.5),
        "--noise": ("cpi_noise", 0.1),
        "--companions": ("companions", 3),
        "--burners": ("burners", 2),
        "--platforms": ("platforms", 5),
        "--corrupted": ("corrupted_share", 0.02),
        "--form": ("form", "saturating"),
        "--batch-jobs": ("batch_jobs", 20),
        "--antagonists": ("antagonists", 4),
    }
    words = [word for option, (_, value) in options.items() for word in (option, str(value))]
    _, truth = made(tmp_path, *words)
    assert {name: truth["parameters"][name] for name, _ in options.values()} == dict(options.values())
    assert len(truth["antagonists"]) == 4


def test_json_reports_what_was_written(tmp_path):
    out, truth = tmp_path / "t.parquet", tmp_path / "t.json"
    result = run("synth", "--out", str(out), "--truth", str(truth), *SMALL, "--json")
    reported = json.loads(result.stdout)
    assert (reported["rows"], reported["out"]) == (ROWS, str(out))
    assert reported["antagonists"] == json.loads(truth.read_text())["antagonists"]
    ran = set(pq.read_table(out)["collection_id"].to_pylist())
    assert (reported["jobs"], reported["antagonists_with_rows"]) == (len(ran), len(ran & set(reported["antagonists"])))
    assert reported["antagonists_with_rows"] < len(reported["antagonists"]), "else the trace cannot tell the two apart"


def test_presets_lists_presets_and_knobs():
    reported = json.loads(run("presets", "--json").stdout)
    assert set(reported["presets"]) == set(PRESETS)
    parameters = set(dataclasses.asdict(PRESETS["paper"][1]))
    assert {name for name, one in reported["parameters"].items() if one["help"]} >= parameters - {"form", "seed"}
    text = run("presets").stdout
    assert "paper:" in text
    assert "cpi_noise" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "days"), "--set days: must be NAME=VALUE"),
        (("--preset", "none"), "unknown preset 'none'"),
        (("--set", "x=1"), "no synth parameter 'x'"),
        (("--noise", "9"), r"synth parameter cpi_noise: must be 0 to 3 \(value 9\)"),
    ],
)
def test_wrong_options_end_in_one_line(tmp_path, words, message):
    out, truth = str(tmp_path / "t.parquet"), str(tmp_path / "t.json")
    with pytest.raises(InputError, match=message):
        run("synth", "--out", out, "--truth", truth, *words)
    assert not list(tmp_path.iterdir())


def test_files_that_cannot_be_written_are_named(tmp_path):
    for out, truth, message in (
        (tmp_path, tmp_path / "t.json", "is a folder; give the name of a file"),
        (tmp_path / "no" / "t.parquet", tmp_path / "t.json", "cannot write: No such file or directory"),
        (tmp_path / "t.parquet", tmp_path / "no" / "t.json", "cannot write: No such file or directory"),
        (tmp_path / "t", tmp_path / "t", "the trace and its truth need a file each"),
    ):
        with pytest.raises(InputError, match=message):
            run("synth", "--out", str(out), "--truth", str(truth), *SMALL)
        assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_files_as_they_were(tmp_path, monkeypatch):
    out, truth = tmp_path / "t.parquet", tmp_path / "t.json"
    out.write_text("before")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "_table", full)
    with pytest.raises(UnavailableError, match="not written: No space left on device; is the disk full"):
        run("synth", "--out", str(out), "--truth", str(truth), *SMALL)
    assert out.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


def test_the_guide_names_existing_knobs():
    guide = (Path(__file__).parents[4] / "docs" / "traces.md").read_text().partition("## Parameters")[2]
    parameters = set(dataclasses.asdict(PRESETS["paper"][1]))
    assert set(re.findall(r"`(\w+_\w+)`", guide)) <= parameters
