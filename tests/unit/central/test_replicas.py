"""Two replicas on one lake, each with its own incidents: it is noticed at the start."""

from __future__ import annotations

import os
import time
from datetime import date
from pathlib import Path

import pytest

from central.config import CentralConfig, CentralSection, IncidentsSection
from central.daemon import Central
from central.lake import Lake, segment_stem
from central.replicas import RECENT_S, other_replicas
from whitepanda.common import log

NOW_S = 1_800_000_000.0
DAY = date(2027, 1, 15)  # NOW_S is on it


def put(lake: Lake, replica: str, day: date, age_s: float, last: int | None = None) -> None:
    stem = segment_stem(replica, "0" * 8, 1) + ("" if last is None else f"_{last:012d}")
    path = lake.segment(day, stem).path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (NOW_S - age_s, NOW_S - age_s))


def test_only_what_is_recent_and_anothers_counts(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert other_replicas(lake, "central-0", NOW_S) == []
    put(lake, "central-0", DAY, 1.0)
    put(lake, "old", DAY, RECENT_S + 1)
    put(lake, "merged", DAY, 1.0, last=7)
    put(lake, "long-ago", date(2026, 12, 1), 1.0)
    assert other_replicas(lake, "central-0", NOW_S) == []
    put(lake, "central-2", DAY, 1.0)
    put(lake, "central-1", date(2027, 1, 14), RECENT_S)
    assert other_replicas(lake, "central-0", NOW_S) == ["central-1", "central-2"]


@pytest.mark.parametrize("url", ["", "postgresql://db/w"])
async def test_central_warns_where_incidents_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    log.configure("info")
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    central = Central(CentralConfig(CentralSection(replica="central-0"), incidents=IncidentsSection(url)))
    central.lake = Lake(tmp_path)
    put(central.lake, "central-1", DAY, 1.0)
    await central.warn_of_replicas()
    told = capsys.readouterr().err
    assert ("other replicas write into this lake" in told and "central-1" in told) is (url == "")
