"""Push back over the live mTLS stream: what an agent holds survives breaks of either side, only the rest is sent."""

import asyncio
import contextlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from agent.antagonists.coefficients import CoefficientStore
from agent.config import UplinkSection
from agent.uplink.client import Uplink
from agent.uplink.disk_queue import Spool
from agent.uplink.stream import Timing
from central.coefficients.versions import COEFFICIENTS, JOB_STATISTICS, Manifest, VersionStore
from central.lake.schema import SAMPLES
from central.lake.segments import DAY_NS, Lake, segment_stem
from tests.support.central_process import CentralProcess
from whitepanda.common.tls import TlsFiles
from whitepanda.v1 import agent_pb2

pytestmark = pytest.mark.integration

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
        dict(zip(JOB_STATISTICS.names, (job, "P", 100, mean, 0.5, None, None), strict=True))
        for job, mean in means.items()
    ]
    coefficients = [
        dict(zip(COEFFICIENTS.names, (job, 100, 1.0, mean / 10, 0.1), strict=True)) for job, mean in means.items()
    ]
    written = VersionStore(Lake(central.lake_dir).objects).write(
        manifest, pa.Table.from_pylist(statistics, JOB_STATISTICS), pa.Table.from_pylist(coefficients, COEFFICIENTS)
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
            host="h", platform="P", jobs=self.jobs, coefficient_version=self.store.version, held=self.store.held_tags
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
        async with asyncio.timeout(50):
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
    # The agent is started again, from its file.
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


def write_samples(central: CentralProcess) -> None:
    """A day of two hosts: a database that is sensitive, beside a scan that hurts it and something that does not."""
    rng = np.random.default_rng(3)
    usage = rng.gamma(2.0, 0.5, (2, 48, 3))  # host, slot, job
    cpi = np.exp(0.05 * rng.standard_normal(usage.shape) + 0.2 * usage[:, :, 2:])
    host, slot, job = (each.ravel() for each in np.indices(usage.shape))
    names = np.array(["db", "nice", "scan"])[job]
    known = {
        "machine": np.array(["h", "other"])[host],
        "host": np.array(["h", "other"])[host],
        "vm": names,
        "job": names,
        "epoch": ["1"] * len(job),
        "spool_id": ["s"] * len(job),
        "sequence": np.arange(len(job)),
        "platform": ["P"] * len(job),
        "latency_sensitive": job == 0,
        "start_unix_ns": 20_000 * DAY_NS + slot * 300 * 10**9,
        "duration_ns": np.full(len(job), 10 * 10**9),
        "cpi": cpi.ravel(),
        "cpu_usage_cores": usage.ravel(),
    }
    arrays = [
        pa.array(known[field.name], field.type) if field.name in known else pa.nulls(len(job), field.type)
        for field in SAMPLES
    ]
    table = pa.Table.from_arrays(arrays, schema=SAMPLES)
    Lake(central.lake_dir).write_segment(table, segment_stem("central-0", "0badcafe", 1))


@pytest.mark.timeout(180)
@pytest.mark.long
async def test_agents_with_rows_of_the_other_method_catch_up(central: CentralProcess) -> None:
    """PANDA by configuration, then the default, then PANDA again: other rows in one message, and the number grows."""
    write_samples(central)
    small = "min_samples = 1\nthreads = 1\nmemory_limit_mib = 256\n"
    central.build = small + 'method = "panda"'
    await asyncio.to_thread(central.start)
    agent = Agent(central, central.client("h"), ["db", "nice", "scan"])
    found = []
    async with agent.connected():
        for count, setting in enumerate(("", 'method = "panda"', None), 1):
            update = await agent.received(count)
            now = update.created_unix_ns
            scan, nice = agent.store.coefficient("scan", now), agent.store.coefficient("nice", now)
            db = agent.store.statistics("db", "P", now)
            assert scan is not None
            assert nice is not None
            assert db is not None
            found.append((update.version, update.full, scan.method, db.robust is not None))
            assert {row.method for row in update.coefficients} == {scan.method}
            assert scan.value > 3 * abs(nice.value)
            if setting is not None:
                assert await asyncio.to_thread(central.stop) == 0
                central.build = small + setting
                await asyncio.to_thread(central.start)
    assert found == [(1, True, "", False), (2, True, "whitepanda", True), (3, True, "", False)]
    assert len(agent.updates) == 3
