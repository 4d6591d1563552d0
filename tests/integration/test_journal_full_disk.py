"""The journal's disk is really full, with nothing on it that could be removed: it drains once the lake is back."""

import asyncio
import collections
import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from central.config import IngestSection
from central.journal.flush import Roller
from central.journal.reserve import Reserve
from central.journal.tables import Submission
from central.journal.writer import Journal
from central.lake.segments import Lake
from tests.integration.test_central_kill import MUTANTS, Host, _drained, _rolled
from tests.support.central_process import CentralProcess
from tests.support.small_disk import fill, mounted, remount
from tests.unit.central.validation.test_validate import a_batch

pytestmark = [pytest.mark.long, pytest.mark.integration, pytest.mark.timeout(300)]

MIB = 1 << 20
ROWS = 500


@pytest.fixture
def disk(tmp_path: Path):
    with mounted(tmp_path / "disk", "8m") as folder:
        yield folder


@pytest.fixture
def lake_disk(tmp_path: Path):
    with mounted(tmp_path / "lake", "64m") as folder:
        yield folder


class Taken:
    """A journal of its own, and the batches that it acknowledged."""

    def __init__(self, disk: Path, lake: Path, *, reserve: int = MIB) -> None:
        self.folder, self.lake, self.reserve = disk, Lake(lake), reserve
        self.done: collections.Counter[int] = collections.Counter()
        self.number = 0
        self.open()

    def open(self) -> None:
        self.journal = Journal(self.folder, replica="central-0", commit_interval_s=0.001, reserve_bytes=self.reserve)
        self.journal.start()
        self.roller = Roller(IngestSection(), self.journal, self.lake)

    def submit(self) -> int:
        self.number += 1
        number = self.number
        batch = a_batch(ROWS, spool_id="s", sequence=number)
        self.journal.submit(
            Submission(
                host="h", platform="P", spool_id="s", sequence=number, received_unix_ns=number,
                payload=batch.SerializeToString(), rows=ROWS, accepted_rows=ROWS, rejected_rows={}, kept=None,
                done=lambda _new: self.done.update([number]),
            )
        )  # fmt: skip
        return number

    async def until_full(self) -> None:
        """Submit until nothing is acknowledged any more, not even small things."""
        async with asyncio.timeout(60):
            while not (self.journal.failure and len(self.done) < self.number):
                self.submit()
                await asyncio.sleep(0.005)

    async def heard(self) -> None:
        """Wait until all that was submitted is acknowledged."""
        async with asyncio.timeout(60):
            while len(self.done) < self.number:
                await asyncio.sleep(0.01)

    def in_lake(self) -> collections.Counter:
        found: collections.Counter = collections.Counter()
        for segment in self.lake.segments():
            found.update(pq.read_table(segment.path, columns=["sequence"])["sequence"].to_pylist())
        return collections.Counter({number: count / ROWS for number, count in found.items()})


async def _fill(taken: Taken, lake: Path) -> None:
    remount(lake, "ro")
    await taken.until_full()
    fill(taken.folder)  # what is left is another user's, who never gives it back


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_full_journal_is_drained_when_the_lake_is_back(
    disk: Path, lake_disk: Path, *, is_restarted: bool
) -> None:
    taken = Taken(disk, lake_disk)
    for _ in range(3):  # the reserve is there again for the next time
        await _fill(taken, lake_disk)
        assert not await taken.roller._try(), "the lake is away"
        fill(disk)
        await taken.until_full()  # batches may have found room before
        before = len(taken.done)
        if is_restarted:
            await taken.journal.close()
            taken.number = before = len(taken.done)
            taken.open()
            assert taken.journal.stats.accepted_batches == before
        assert not await taken.roller._try()
        remount(lake_disk, "rw")
        assert await taken.roller._try(), taken.roller.failure
        await taken.heard()
        for _ in range(20):  # new ones, too
            taken.submit()
        await taken.heard()
        assert taken.journal._reserve.is_held
    await taken.roller.roll_all()
    assert taken.in_lake() == collections.Counter(range(1, taken.number + 1))
    await taken.journal.close()


async def test_without_the_reserve_it_is_not(disk: Path, lake_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reserve, "draw", lambda _self: False)
    taken = Taken(disk, lake_disk)
    await _fill(taken, lake_disk)
    remount(lake_disk, "rw")
    assert not await taken.roller._try()
    assert taken.roller.failure == "database or disk is full"
    await taken.journal.close()


class Fleet:
    """A real central with a small journal disk, and a real host that sends to it."""

    def __init__(self, folder: Path, disk: Path, lake: Path, *, main: tuple[str, ...] = ()) -> None:
        self.disk, self.lake = disk, lake
        settings = (
            "roll_interval_s = 0.3\ncommit_interval_ms = 2\nmax_past_days = 36500.0\nmax_message_bytes = 65536\n"
            "journal_reserve_mib = 1"
        )
        self.central = CentralProcess(folder, ingest=settings, state_dir=disk / "state")
        self.central.lake_dir = lake / "lake"
        self._arguments = {"main": main} if main else {}

    async def start(self) -> None:
        await asyncio.to_thread(self.central.start, **self._arguments)

    async def until_full(self, host: Host) -> None:
        """Have the host send until nothing is acknowledged, and fill the rest of the disk."""
        before = self.central.log.read_text().count("commit failed")
        async with asyncio.timeout(120):
            while self.central.log.read_text().count("commit failed") == before:
                for _ in range(50):
                    if host.spool.counts().batches + len(host.uplink._pending) < 2000:
                        host.produce()
                await asyncio.sleep(0.02)
                while host.uplink._pending:  # it keeps few for a slow disk
                    await asyncio.sleep(0.005)
        fill(self.disk)

    async def until_rolled(self, rows: int) -> None:
        """Wait until the lake has so many rows."""
        lake = Lake(self.central.lake_dir)
        while sum(segment.rows for segment in lake.segments()) < rows:
            await asyncio.sleep(0.1)


@pytest.mark.long
@pytest.mark.parametrize("end", ["runs on", "stopped", "killed"])
async def test_central_drains_a_full_journal(tmp_path: Path, disk: Path, lake_disk: Path, end: str) -> None:
    fleet = Fleet(tmp_path, disk, lake_disk)
    central = fleet.central
    await fleet.start()
    host = Host(central, "host-0")
    uplink = asyncio.create_task(host.uplink.run())
    rng = random.Random(1)
    try:
        for _ in range(2):
            remount(lake_disk, "ro")
            await fleet.until_full(host)
            if end == "stopped":
                assert await asyncio.to_thread(central.stop) == 0
            elif end == "killed":
                central.kill()
            remount(lake_disk, "rw")
            if end != "runs on":
                await fleet.start()
            for _ in range(3 if end == "killed" else 0):  # amid the rolls
                await asyncio.sleep(rng.uniform(0, 0.5))
                central.kill()
                await fleet.start()
            await asyncio.wait_for(_drained([host]), 90)
            await asyncio.wait_for(fleet.until_rolled(host.produced), 60)
        acknowledged = host.uplink.totals.acknowledged_batches
        host.produce()
        async with asyncio.timeout(30):
            while host.uplink.totals.acknowledged_batches == acknowledged:
                await asyncio.sleep(0.01)
    finally:
        uplink.cancel()
        await asyncio.gather(uplink, return_exceptions=True)
        host.spool.close()
        remount(lake_disk, "rw")
        if central.process is not None and central.process.poll() is None:
            central.stop()
        central.end()
    found = await _rolled(central, reserve_bytes=MIB)
    assert found == collections.Counter({("host-0", number): 1 for number in range(host.produced)})
    log = central.log.read_text()
    assert "Traceback" not in log
    assert "the journal's reserve is held again" in log
    assert log.count("commit failed") >= 2, "the disk was full twice"


@pytest.mark.long
async def test_central_without_the_reserve_does_not(tmp_path: Path, disk: Path, lake_disk: Path) -> None:
    fleet = Fleet(tmp_path, disk, lake_disk, main=(MUTANTS, "no-reserve"))
    central = fleet.central
    await fleet.start()
    host = Host(central, "host-0")
    uplink = asyncio.create_task(host.uplink.run())
    try:
        remount(lake_disk, "ro")
        await fleet.until_full(host)
        central.kill()
        remount(lake_disk, "rw")
        try:
            await fleet.start()
        except AssertionError:
            assert "full" in central.log.read_text()
            return
        async with asyncio.timeout(60):
            while "cannot roll into the lake" not in (log := central.log.read_text()) or "disk is full" not in log:
                await asyncio.sleep(0.1)
        assert host.spool.counts().batches
    finally:
        uplink.cancel()
        await asyncio.gather(uplink, return_exceptions=True)
        host.spool.close()
        central.end()
