"""Push back over the live mTLS stream: what an agent holds survives breaks of either side, only the rest is sent."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pyarrow as pa
import pytest

from agent.coefficients import CoefficientStore
from agent.config import UplinkSection
from agent.spool import Spool
from agent.uplink import Uplink
from agent.uplink_stream import Timing
from central.versions import COEFFICIENTS, JOB_STATISTICS, Manifest, VersionStore
from tests.support.central_process import CentralProcess
from whitepanda.common.tls import TlsFiles
from whitepanda.v1 import agent_pb2

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

NOW = 1_000


@pytest.fixture
def central(tmp_path: Path):
    process = CentralProcess(tmp_path, build="min_samples = 1")
    yield process
    process.end()


def build(central: CentralProcess, number: int, means: dict[str, float]) -> None:
    """Write a version as a builder does, on this replica or another."""
    manifest = Manifest(
        version=0, created_unix_ns=number, slot_s=300.0, days=(), segments=0, segments_digest=str(number),
        rows=0, job_statistics=0, coefficients=0, code_version="0",
    )  # fmt: skip
    statistics = [
        dict(zip(JOB_STATISTICS.names, (job, "P", 100, mean, 0.5), strict=True))
        for job, mean in means.items()
    ]
    coefficients = [
        dict(zip(COEFFICIENTS.names, (job, 100, 1.0, mean / 10, 0.1), strict=True))
        for job, mean in means.items()
    ]
    written = VersionStore(central.lake_dir / "versions").write(
        manifest,
        pa.Table.from_pylist(statistics, JOB_STATISTICS),
        pa.Table.from_pylist(coefficients, COEFFICIENTS),
    )
    assert written.version == number


class Agent:
    """An agent's uplink and store of coefficients, without its samples."""

    def __init__(self, central: CentralProcess, tls: TlsFiles, jobs: list[str]) -> None:
        self.store = CoefficientStore(central.folder / "coefficients.json")
        self.updates: list[agent_pb2.CoefficientUpdate] = []
        self._spool = Spool(central.folder / "spool", max_bytes=1 << 20, boot_id="b")
        self.jobs = jobs
        section = UplinkSection(address=central.address, tls=tls, reconnect_min_s=0.02, reconnect_max_s=0.1)
        timing = Timing(poll_s=0.02)
        self._uplink = Uplink(section, self._hello, self._spool, self._take, timing=timing)

    def _hello(self) -> agent_pb2.Hello:
        return agent_pb2.Hello(
            host="h",
            platform="P",
            jobs=self.jobs,
            coefficient_version=self.store.version,
            held=self.store.held_tags,
        )

    def _take(self, update: agent_pb2.CoefficientUpdate) -> None:
        self.updates.append(update)
        assert self.store.apply(update)

    @contextlib.asynccontextmanager
    async def connected(self):
        running = asyncio.create_task(self._uplink.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await self._uplink.close()
            self._spool.close()

    async def received(self, count: int) -> agent_pb2.CoefficientUpdate:
        async with asyncio.timeout(20):
            while len(self.updates) < count:
                await asyncio.sleep(0.01)
        return self.updates[-1]


async def test_an_agent_catches_up_in_one_exchange(central: CentralProcess) -> None:
    build(central, 1, {"db": 1.0, "web": 2.0, "old": 3.0, "elsewhere": 9.0})
    central.start()
    tls = central.client("h")
    agent = Agent(central, tls, ["db", "web", "old"])
    async with agent.connected():
        first = await agent.received(1)
        assert (first.version, first.full, len(first.statistics), len(first.tags)) == (1, True, 3, 3)
        # Central is gone while two versions are made by another replica and a job leaves the host.
        central.kill()
        agent.jobs = ["db", "web"]
        build(central, 2, {"db": 5.0, "web": 2.0, "old": 3.0})
        build(central, 3, {"db": 1.0, "web": 2.5, "old": 3.0})
        await asyncio.to_thread(central.start)
        second = await agent.received(2)
        assert (second.version, second.full, list(second.removed_jobs)) == (3, False, ["old"])
        assert [(row.job, row.mean_cpi) for row in second.statistics] == [("web", 2.5)]
    # The agent is started anew, from its file.
    again = Agent(central, tls, ["db", "web", "elsewhere"])
    assert (again.store.version, again.store.jobs) == (3, {"db", "web"})
    async with again.connected():
        await asyncio.sleep(0.3)
        assert again.updates == []  # what it holds is what central means
        again.jobs = ["web"]
        third = await again.received(1)
        assert (third.full, list(third.removed_jobs), len(third.statistics)) == (False, ["db"], 0)
    assert again.store.jobs == {"web"}
    assert again.store.statistics("web", "P", NOW).mean == 2.5
    assert central.stop() == 0
