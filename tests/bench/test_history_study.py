"""The study of history runs: it builds a lake as central would, and its answers are whole."""

import sys

import pytest

from bench.history import study


@pytest.mark.long
def test_a_small_lake_is_built_once_and_asked(tmp_path, monkeypatch, capsys) -> None:
    options = ["--hosts", "2", "--vms", "2", "--days", "1", "--window-s", "300", "--times", "2"]
    monkeypatch.setattr(sys, "argv", ["study", *options, "--folder", str(tmp_path / "lake")])
    study.main()  # it asserts that each answer has all windows
    out = capsys.readouterr().out
    assert "built: windows" in out and out.count("ratio to the bar") == 9
    study.main()
    assert "built:" not in capsys.readouterr().out
