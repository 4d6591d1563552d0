"""Two replicas with their lake in a bucket, killed under load while connections to them and to the store break.

At the end a reader that is not ours finds every window that a host produced, once. The store is moto, as in
test_lake_s3.py.
"""

import asyncio
import collections
import contextlib
import os
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from central.config import IngestSection
from central.journal.flush import Roller
from central.journal.writer import Journal
from central.lake.segments import Lake
from tests.integration.test_central_kill import MOST_WAITING, Host, _drained
from tests.integration.test_lake_s3 import bucket_url, store  # noqa: F401 - fixtures
from tests.support.balancer import Balancer
from tests.support.central_process import CentralProcess
from tests.support.chaos_fleet import LEAST_LOAD_BYTES
from tests.support.lake_reader import windows_by_polars

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(600)]

START_NS = 1_790_000_000 * 10**9
KILLS = 8
HOSTS = 4
_INGEST = "roll_interval_s = 0.3\nroll_rows = 500\ncommit_interval_ms = 2\nmax_past_days = 36500.0"
_BUILD = "interval_s = 3.0\nlease_s = 3.0\ndays = 3660\nmin_samples = 1\nthreads = 1\nmemory_limit_mib = 256"


@pytest.fixture
def replicas(url: str, tmp_path: Path):
    """Two replicas that share a lake; neither runs."""
    found: list[CentralProcess] = []
    for number in range(2):
        home = tmp_path / f"replica-{number}"
        home.mkdir()
        if found:
            (home / "pki").symlink_to(found[0].pki)
        replica = CentralProcess(home, ingest=_INGEST, central=f'replica = "central-{number}"', build=_BUILD)
        replica.lake_dir = url  # type: ignore[assignment] - text either way
        found.append(replica)
    yield found
    for replica in found:
        replica.end()


async def _load(hosts: Sequence[Host]) -> None:
    """Have hosts produce windows, without end."""
    while True:
        for host in hosts:
            if host.spool.counts().batches + len(host.uplink._pending) < MOST_WAITING:
                host.produce()
        await asyncio.sleep(0.1)


async def _busy(balancer: Balancer, for_s: float) -> list[int]:
    """Wait for replicas to which hosts have sent within the last so many seconds."""
    while True:
        before = list(balancer.sent_bytes)
        await asyncio.sleep(for_s)
        sent = [now - then for now, then in zip(balancer.sent_bytes, before, strict=True)]
        if found := [number for number, size in enumerate(sent) if size >= LEAST_LOAD_BYTES]:
            return found


async def _rolled(replicas: Sequence[CentralProcess], lake: Lake) -> None:
    """Finish what is half rolled of the journals of replicas that have ended."""
    for number, replica in enumerate(replicas):
        journal = Journal(replica.state_dir, replica=f"central-{number}", commit_interval_s=0.001)
        journal.start()
        await Roller(IngestSection(), journal, lake).roll_all()
        assert journal.stats.journal_rows == 0
        await journal.close()


async def test_replicas_killed_with_their_lake_in_a_bucket(url, replicas, tmp_path, monkeypatch) -> None:
    rng = random.Random(7)
    direct = os.environ["AWS_ENDPOINT_URL"]
    gate = Balancer("127.0.0.1", [urlsplit(direct).port or 80])  # before the store
    await gate.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{gate.port}")
    for replica in replicas:
        await asyncio.to_thread(replica.start, timeout_s=60.0)
    balancer = Balancer("127.0.0.1", [replica.port for replica in replicas])
    await balancer.start()
    central = SimpleNamespace(address=f"localhost:{balancer.port}", client=replicas[0].client, folder=tmp_path)
    hosts = [Host(central, f"host-{number}") for number in range(HOSTS)]
    uplinks = [asyncio.create_task(host.uplink.run()) for host in hosts]
    loader = asyncio.create_task(_load(hosts))
    killed: list[int] = []
    try:
        while len(killed) < KILLS:
            balancer.reset()  # hosts spread over both again, in the middle of a batch
            number = min(await _busy(balancer, rng.uniform(0.1, 0.8)), key=killed.count)
            gate.reset()  # what is being written to the store may be there, or not
            if rng.random() < 0.5:
                await asyncio.sleep(rng.uniform(0.0, 0.3))
            replicas[number].kill()
            killed.append(number)
            await asyncio.to_thread(replicas[number].start, timeout_s=60.0)
        loader.cancel()
        await asyncio.wait_for(_drained(hosts), 120)
    finally:
        for task in (loader, *uplinks):
            task.cancel()
        await asyncio.gather(loader, *uplinks, return_exceptions=True)
        with contextlib.suppress(Exception):
            await balancer.close()
        for host in hosts:
            host.spool.close()
    for replica in replicas:
        assert await asyncio.to_thread(replica.stop) == 0, replica.log.read_text()[-3000:]
    await gate.close()
    monkeypatch.setenv("AWS_ENDPOINT_URL", direct)

    lake = Lake(url, tmp_path / "copies")
    await _rolled(replicas, lake)
    truth = collections.Counter({(host.name, number): 1 for host in hosts for number in range(host.produced)})
    found = windows_by_polars(url, START_NS)
    segments = lake.segments()
    rows = sum(segment.rows for segment in segments)
    print(
        f"{len(truth)} windows produced, {found.total()} read by Polars, {rows} in {len(segments)} files; "
        f"kills of {killed}"
    )
    assert len(truth) > 1000
    assert found == truth
    assert set(killed) == {0, 1}
    assert {segment.origin.rpartition("-")[0] for segment in segments} >= {"central-0", "central-1"}
    for replica in replicas:
        assert "Traceback" not in replica.log.read_text()
