"""The agent's disk is really full: a small tmpfs. Live data flow, nothing is lost or counted twice, one warning."""

import collections
import contextlib
import os
import subprocess
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.config import HistorySection
from agent.history.writer import WINDOWS, HistoryWriter
from agent.sampling.windows import CpiWindow
from agent.uplink.disk_queue import Spool
from tests.support import history_writer
from tests.support.waiting import wait_until

ROWS = 100


@pytest.fixture
def small_disk(tmp_path: Path):
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], check=False).returncode:
        pytest.skip("mounting a tmpfs needs root with CAP_SYS_ADMIN")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def opened(folder: Path) -> Spool:
    return Spool(folder / "state" / "spool.db", max_bytes=64 << 20, boot_id="boot-1")


def windows(tag: int) -> list[CpiWindow]:
    return [CpiWindow(f"vm{i}", "e", "n", "job", False, tag, 10**10, 0.5, cpi=1.5) for i in range(ROWS)]


def fill(folder: Path) -> Path:
    """Take all that is free, to the last page."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast


class Central:
    """Takes all that is fetched, and knows what each number means."""

    def __init__(self) -> None:
        self.meaning: dict[tuple[str, int], int] = {}
        self.received: collections.Counter[int] = collections.Counter()

    def take(self, spool: Spool, *, acknowledge: bool = True) -> None:
        while batches := spool.fetch(16):
            for batch in batches:
                tag = batch.message.start_unix_ns[0]
                if self.meaning.setdefault(batch.key, tag) != tag:
                    raise AssertionError(f"{batch.key} was {self.meaning[batch.key]}, is {tag}")
                self.received[tag] += 1
                if acknowledge:
                    spool.acknowledge(batch.key[0], [(batch.key[1], batch.key[1])])


def test_with_central_up_everything_flows_through_a_full_disk(small_disk: Path) -> None:
    spool, central = opened(small_disk), Central()
    with capture_logs() as logs:
        spool.begin_stream()
        for tag in range(50):  # these wait
            spool.append(windows(tag))
        ballast = fill(small_disk)
        for tag in range(50, 400):
            spool.append(windows(tag))
            fill(small_disk)  # somebody takes the reserve, too, as soon as it is given up
            central.take(spool)
        assert spool.counts().dropped_batches == 0
        spool.begin_stream()
        central.take(spool)  # nothing comes again
        ballast.unlink()
        for tag in range(400, 403):
            spool.append(windows(tag))
            central.take(spool)
        assert spool.counts().batches == 0
    assert central.received == collections.Counter(range(403))
    assert [entry["log_level"] for entry in logs if "full" in entry["event"]] == ["warning"]
    assert [entry["event"] for entry in logs][-1:] == ["the spool can be written again"]
    assert len(logs) == 2
    spool.close()


def test_with_central_away_the_disk_keeps_and_memory_moves_there(small_disk: Path) -> None:
    spool, central = opened(small_disk), Central()
    for tag in range(50):
        spool.append(windows(tag))
    ballast = fill(small_disk)
    for tag in range(50, 300):
        spool.append(windows(tag))
    spool.begin_stream()
    central.take(spool, acknowledge=False)  # a stream that ends before anything is acknowledged
    ballast.unlink()
    spool.append(windows(300))
    spool.close()
    spool = opened(small_disk)  # nothing was only in memory any more
    spool.begin_stream()
    central.take(spool)
    assert spool.counts().batches == 0
    assert central.received == collections.Counter([*range(300), *range(301)])
    assert len(central.meaning) == 301
    spool.close()


def test_the_reserve_lets_acknowledged_batches_go_while_it_is_full(small_disk: Path) -> None:
    spool, central = opened(small_disk), Central()
    for tag in range(200):
        spool.append(windows(tag))
    fill(small_disk)
    spool.append(windows(200))
    spool.begin_stream()
    central.take(spool)
    spool.close()
    spool = opened(small_disk)  # on the full disk
    assert spool.counts().batches == 0
    spool.close()


def test_a_start_on_a_full_disk_sends_what_waits_there(small_disk: Path) -> None:
    spool, central = opened(small_disk), Central()
    for tag in range(20):
        spool.append(windows(tag))
    spool.close()
    fill(small_disk)
    spool = opened(small_disk)
    spool.append(windows(20))
    spool.begin_stream()
    central.take(spool)
    assert central.received == collections.Counter(range(21))
    assert spool.counts().batches == 0
    spool.close()


def test_a_start_on_a_full_disk_without_any_spool_lives_in_memory(small_disk: Path) -> None:
    ballast, central = fill(small_disk), Central()
    with capture_logs() as logs:
        spool = opened(small_disk)
        spool.begin_stream()
        for tag in range(5):
            assert spool.append(windows(tag)) == 0
        central.take(spool, acknowledge=False)
        ballast.unlink()
        assert spool.append(windows(5)) == 1
        central.take(spool, acknowledge=False)
    assert central.received == collections.Counter(range(6))
    assert len(central.meaning) == 6
    assert [entry["log_level"] for entry in logs] == ["warning", "info"]
    spool.close()


class BesideHistory:
    """A spool and a history on the same small disk."""

    def __init__(self, folder: Path, mutant: str = "") -> None:
        self.spool, self.central, self.folder = opened(folder), Central(), folder / "state" / "history"
        self.history = HistoryWriter(self.folder, HistorySection(), 256 << 20)
        self.history.start(0)
        if mutant:
            wait_until((self.folder / WINDOWS).exists)
            getattr(history_writer, mutant)()
        self.number = 0
        self.spool.begin_stream()

    def window(self) -> None:
        """What the agent does at a window's end: history first, then the spool."""
        self.number += 1
        end_ns = self.number * 10 * 10**9
        self.history.put(WINDOWS, end_ns, end_ns, lambda: os.urandom(40_000))
        self.spool.append(windows(self.number))
        self.central.take(self.spool)

    def settled(self) -> None:
        wait_until(lambda: not self.history._waiting)
        time.sleep(0.05)


def test_a_full_disk_stops_the_history_and_never_the_spool(small_disk: Path) -> None:
    with capture_logs() as logs:
        both = BesideHistory(small_disk)
        for _ in range(400):  # far more history than there is room
            both.window()
            both.settled() if both.number % 40 == 0 else None
        both.settled()
        status = both.history.status()
        assert (status.state, status.detail.split(":")[0]) == ("stopped", "the disk is full")
        assert status.lost_frames > 100
        assert os.statvfs(small_disk).f_bavail * 4096 > 700_000  # a tenth is left to the spool
        assert both.central.received == collections.Counter(range(1, 401))
        ballast = fill(small_disk)
        for _ in range(50):
            both.window()
        ballast.unlink()
        both.history.stop()
    assert both.central.received == collections.Counter(range(1, 451))
    assert both.spool.counts().dropped_batches == 0
    history_lines = [entry for entry in logs if entry.get("component") == "history" or "history" in entry["event"]]
    assert [entry["log_level"] for entry in history_lines] == ["warning"]
    both.spool.close()


def test_a_history_in_the_callers_thread_would_be_noticed(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the guarantee above."""
    monkeypatch.setattr(HistoryWriter, "put", HistoryWriter.put)  # restored afterwards
    both = BesideHistory(small_disk, "in_the_loop")

    def agent() -> None:
        for _ in range(400):
            both.window()

    with pytest.raises(OSError, match="the disk is full"):
        agent()
    assert len(both.central.received) < 400
    both.history.stop()
    both.spool.close()
