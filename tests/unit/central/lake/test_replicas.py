"""Two replicas on one lake, each with its own incidents or both of one name: it is noticed at the start."""

import os
import time
from datetime import date
from pathlib import Path

import pytest

from central.config import CentralConfig, CentralSection, IncidentsSection
from central.daemon import Central
from central.journal.writer import Journal
from central.lake.replicas import RECENT_S, other_journals
from central.lake.segments import Lake, segment_stem
from whitepanda.common import log

NOW_S = 1_800_000_000.0
DAY = date(2027, 1, 15)  # NOW_S is on it


OWN = f"central-0-{0:08x}"


def put(lake: Lake, replica: str, day: date, age_s: float, last: int | None = None, journal: str = "0" * 8) -> None:
    stem = segment_stem(replica, journal, 1) + ("" if last is None else f"_{last:012d}")
    path = lake.segment(day, stem).path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (NOW_S - age_s, NOW_S - age_s))


def test_only_what_is_recent_and_anothers_counts(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert other_journals(lake, OWN, NOW_S) == []
    put(lake, "central-0", DAY, 1.0)
    put(lake, "old", DAY, RECENT_S + 1)
    put(lake, "merged", DAY, 1.0, last=7)
    put(lake, "long-ago", date(2026, 12, 1), 1.0)
    assert other_journals(lake, OWN, NOW_S) == []
    put(lake, "central-2", DAY, 1.0)
    put(lake, "central-1", date(2027, 1, 14), RECENT_S)
    put(lake, "central-0", DAY, 1.0, journal="feedbeef")
    assert other_journals(lake, OWN, NOW_S) == ["central-0-feedbeef", "central-1-00000000", "central-2-00000000"]


async def warned(
    folder: Path, capsys: pytest.CaptureFixture[str], others: list[tuple[str, str]], url: str = ""
) -> tuple[str, str]:
    """Return what a central says at its start where these replicas and journals are; and its own journal."""
    log.configure("info")
    central = Central(CentralConfig(CentralSection(replica="central-0"), incidents=IncidentsSection(url)))
    central.lake = Lake(folder / "lake")
    central.journal = Journal(folder, replica="central-0", commit_interval_s=0.001)
    for replica, journal in [*others, ("central-0", central.journal.journal_id)]:
        put(central.lake, replica, DAY, 1.0, journal=journal)
    await central.warn_of_replicas()
    central.journal.lock.close()
    return capsys.readouterr().err, central.journal.origin


@pytest.mark.parametrize("url", ["", "postgresql://db/w"])
async def test_central_warns_where_incidents_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    reported, _ = await warned(tmp_path, capsys, [("central-1", "0" * 8)], url)
    assert ("other replicas write into this lake" in reported and "replicas=['central-1']" in reported) is (url == "")
    assert "under the name" not in reported


@pytest.mark.parametrize("url", ["", "postgresql://db/w"])
async def test_central_warns_of_another_one_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    reported, own = await warned(tmp_path, capsys, [("central-0", "feedbeef")], url)
    [line] = reported.splitlines()
    assert "another central writes into this lake under the same name; set a unique central.replica for each" in line
    assert f"journal={own}" in line
    assert "others=['central-0-feedbeef']" in line
    assert str(tmp_path / "lake") in line
