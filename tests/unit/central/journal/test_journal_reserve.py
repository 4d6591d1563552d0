"""How large the journal's reserve is."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog

from central.config import IngestSection
from central.journal import reserve, writer
from central.journal.reserve import Reserve, reserve_bytes
from central.journal.writer import Journal

MIB = 1 << 20


@pytest.mark.parametrize(
    ("mib", "message_mib", "disk_mib", "expected_mib"),
    [
        (32, 4, 100_000, 32),
        (32, 256, 100_000, 2048),  # of the largest messages eight fit
        (32, 256, 1000, 100),  # but it is never more than a tenth of the disk
        (65_536, 4, 10_000, 1000),
        (0, 256, 100_000, 0),
        (32, 4, 0, 32),  # a file system that does not say how large it is
    ],
)
def test_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mib: int, message_mib: int, disk_mib: int, expected_mib: int
) -> None:
    disk = SimpleNamespace(f_blocks=disk_mib * 256, f_frsize=4096, f_bavail=0, f_bfree=0)
    monkeypatch.setattr(os, "statvfs", lambda _folder: disk)
    assert reserve_bytes(tmp_path, mib, message_mib * MIB) == expected_mib * MIB


def test_a_file_system_that_cannot_be_asked_bounds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_folder: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "statvfs", fails)
    assert reserve_bytes(tmp_path, 32, 1) == 32 * MIB


def test_a_smaller_reserve_gives_space_back_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "journal.reserve"
    assert Reserve(path, 4 * MIB).take()
    assert path.stat().st_blocks * 512 >= 4 * MIB
    smaller = Reserve(path, MIB)
    smaller.prepare()
    assert smaller.take()
    assert (path.stat().st_size, path.stat().st_blocks * 512) == (MIB, MIB)
    assert Reserve(path, 2 * MIB).take()
    assert path.stat().st_size == 2 * MIB
    Reserve(path, 0)
    assert not path.exists()


def test_a_larger_reserve_does_not_give_up_the_one_that_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.reserve"
    assert Reserve(path, 4 * MIB).take()
    monkeypatch.setattr(reserve, "free_bytes", lambda _folder: 3 * MIB)  # less than a quarter of the larger one
    larger = Reserve(path, 16 * MIB)
    larger.prepare()
    assert larger.is_held


def test_by_default_a_commit_takes_as_many_batches_as_it_may() -> None:
    batch_bytes = 7_500  # 50 VMs with all columns
    assert (IngestSection().journal_reserve_mib << 20) // 8 >= writer.GROUP_LIMIT * batch_bytes


async def test_that_it_is_held_again_is_logged_whenever_that_is(tmp_path: Path) -> None:
    journal = Journal(tmp_path, replica="central-0", commit_interval_s=0.001, reserve_bytes=MIB)
    journal.start()
    try:
        journal._reserve.draw()
        with structlog.testing.capture_logs() as logs:
            assert await journal.begin_roll(1) is None
        assert journal._reserve.is_held
        assert [entry["event"] for entry in logs] == ["the journal's reserve is held again"]
    finally:
        await journal.close()
