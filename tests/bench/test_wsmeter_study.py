"""bench/wsmeter/study.py: a small form of the study from end to end, and that its page has all bars' numbers."""

import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from statsmodels.stats.proportion import proportion_confint

from bench.wsmeter import study as wsmeter
from tests.support.central_process import ROOT


def test_a_small_study_from_end_to_end(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(wsmeter, "GOOGLE_SIZES", (8,))
    monkeypatch.setattr(wsmeter, "GOOGLE_MARGINS", (5.0,))
    few = [
        wsmeter.Case(c.name, replace(c.settings, machines=800, jobs=60, instances=24_000), 40)
        for c in wsmeter.cases(800)
    ]
    monkeypatch.setattr(wsmeter, "cases", lambda _: [few[0], few[2]])
    monkeypatch.setattr(wsmeter, "planned", list)
    folder = tmp_path / "google2019"
    folder.mkdir()
    rows = [
        {
            "cluster": 1.0, "machine_id": m + 1, "collection_id": m, "collection_logical_name": f"j{m % 3}",
            "start_time": m, "avg_cpu": 0.1, "cycles_per_instruction": 1.0 + 0.01 * m,
        }
        for m in range(30)
    ]  # fmt: skip
    pq.write_table(
        pa.Table.from_pylist([*rows, rows[0], {**rows[1], "machine_id": -1}]), folder / "instance_usage.parquet"
    )
    page = tmp_path / "page.md"
    page.write_text(f"head\n\n{wsmeter.MARKER}\n\nold\n")
    done = wsmeter.main([
        "--out", str(tmp_path / "out"), "--page", str(page), "--data", str(tmp_path), "--draws", "6", "--fleets", "2",
        "--google-draws", "20", "--processes", "1",
    ])  # fmt: skip
    assert done == 0
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["draws"] for row in found["simulated"]] == [6, 6]
    assert found["simulated"][0]["whitepanda"]["hits"][0] > 0.5
    assert found["google"][0]["jobs"] == 3
    assert found["google"][0]["instances"] == 24
    text = page.read_text()
    assert text.startswith("head\n")
    assert "old" not in text
    assert "| new CPUs, A/A | 40 (5.0 %) | whitepanda, by machines |" in text
    assert re.search(r"\| [+-][\d.]+ ± [\d.]+ % \| [\d,]+ machines \|", text)


def test_shares_have_wilsons_interval() -> None:
    low, high = proportion_confint(950, 1000, method="wilson")
    assert wsmeter.wilson(950, 1000) == pytest.approx((0.95, low, high), abs=1e-6)


def test_means_over_draws_know_that_draws_on_one_fleet_are_alike() -> None:
    # Fleets' means 1, 2 and 4, however often each is drawn.
    of = ([1, 1, 1, 1, 1, 3, 4], [0, 0, 0, 0, 1, 1, 2])
    assert wsmeter.margin_over_fleets(*of) == pytest.approx(4.302653 * 1.527525 / 3**0.5, rel=1e-6)
    assert wsmeter.margin_over_fleets([1.0, 2.0], [0, 0]) is None


def test_quantiles_have_intervals_by_order_statistics() -> None:
    # The textbook's ranks for a median of 100: the 40th and the 61st.
    assert wsmeter.quantile_interval(list(range(1, 101)), 0.5) == (40, 61)
    assert wsmeter.quantile_interval([3.0], 0.95) == (3.0, 3.0)
    # As many values as draws: the 95th percentile of uniform numbers is in about 96 % of the intervals.
    random = np.random.default_rng(0)
    ends = np.array([wsmeter.quantile_interval(random.random(1000).tolist(), 0.95) for _ in range(1000)])
    assert 0.94 < ((ends[:, 0] <= 0.95) & (ends[:, 1] >= 0.95)).mean() < 0.985


def test_the_page_has_what_the_bars_ask_for() -> None:
    text = (ROOT / "docs" / "studies" / "wsmeter.md").read_text(encoding="utf-8").partition(wsmeter.MARKER)[2]
    whitepanda = re.findall(
        r"^\| ([^|]+) \| \d+ \(([\d.]+) %\) \| whitepanda, by machines \| [^|]+\| ([\d.]+) %[^|]*\| ([\d.]+) %",
        text,
        re.MULTILINE,
    )
    by_case = {case: tuple(map(float, numbers)) for case, *numbers in whitepanda}
    assert by_case["new CPUs, +7 %"][:2] == (0.9, pytest.approx(97.5, abs=2.5))
    assert by_case["power policy, +1 %"][:2] == (6.6, pytest.approx(97.5, abs=2.5))
    assert all(94 <= covered <= 96.5 for _, _, covered in by_case.values())
    assert all(3.5 <= by_case[case][1] <= 6 for case in by_case if case.endswith("A/A"))
    assert len(by_case) == 4
    assert all(float(ratio) >= 4 for ratio in re.findall(r"machines \| ([\d.]+)x \|", text))
