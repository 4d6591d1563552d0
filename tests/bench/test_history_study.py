"""The study of history runs: it builds a lake as central would, and its answers are whole, beside ingest too."""

import re
import shutil
import sys
import threading
from types import SimpleNamespace

import pytest

from bench.history import study
from bench.history.beside_ingest import ask_until, no_worse_ms

_BAR = re.compile(r"BAR (?P<what>.*): [\d,.]+ \S+ [<>]= [\d,.e+-]+ \(ratio .*\): (?P<verdict>pass|MISS)$", re.MULTILINE)


@pytest.mark.timeout(300)
def test_a_small_lake_is_built_once_and_asked(tmp_path, monkeypatch, capsys) -> None:
    options = ["--hosts", "2", "--vms", "2", "--days", "1", "--window-s", "300", "--times", "2"]
    monkeypatch.setattr(sys, "argv", ["study", *options, "--folder", str(tmp_path / "lake")])
    study.main()  # it asserts that each answer has all windows
    out = capsys.readouterr().out
    assert "built: windows" in out and "a pass or a miss is no evidence" in out
    assert len(_BAR.findall(out)) == 6  # each question, cold and warm
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--beside-ingest", "--phase-s", "1"])
    study.main()
    out = capsys.readouterr().out
    assert "built:" not in out
    bars = [match["what"] for match in _BAR.finditer(out)]
    assert len(bars) == 6 + 5 and bars[7] == "ack p99 with questions, no worse than without"
    assert sum("beside ingest" in what for what in bars) == 3
    assert re.search(r"ack p99 without questions [\d.]+ ms, with [\d.]+ ms", out)


@pytest.mark.parametrize(("without_ms", "most_ms"), [(10.0, 15.0), (50.0, 55.0), (200.0, 220.0)])
def test_no_worse_is_ten_percent_or_five_milliseconds(without_ms, most_ms) -> None:
    assert no_worse_ms(without_ms) == pytest.approx(most_ms)


def test_each_kind_is_asked_in_turn_until_the_end_and_at_least_once() -> None:
    stop, asked = threading.Event(), []

    def ask(what: str) -> None:
        asked.append(what)
        if len(asked) == 5:
            stop.set()

    questions = {what: [lambda what=what: ask(what)] for what in ("vm", "host")}
    assert {what: len(times) for what, times in ask_until(stop, questions).items()} == {"vm": 3, "host": 2}
    assert asked == ["vm", "host", "vm", "host", "vm"]
    assert [len(times) for times in ask_until(stop, questions).values()] == [1, 1]  # the end has come already


def test_a_lake_that_does_not_fit_is_refused(tmp_path, monkeypatch) -> None:
    shape = {"hosts": 1000, "vms": 30, "days": 7, "window_s": 10}
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=100 * 10**9))
    with pytest.raises(SystemExit, match=r"needs about 181 GB; .* has 100 GB free: give another --folder, or fewer"):
        study.refuse_what_does_not_fit(shape, tmp_path)
    study.refuse_what_does_not_fit(shape | {"days": 3}, tmp_path)
