"""Cache and memory bandwidth: from a look-alike of resctrl through agent and central to the lake and to `place`.

The real sources on a host of files, pipeline, spool and uplink over mTLS to a central that is a process; only time is
quicker.
"""

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from agent.config import AgentConfig, AgentSection, UplinkSection
from agent.sampling.pipeline import Inputs, Pipeline
from agent.sampling.source_threads import Slots
from agent.sampling.windows import CpiWindow
from agent.uplink.client import Uplink
from agent.uplink.disk_queue import Spool
from agent.uplink.stream import Timing
from collector.base import Reason, SourceSample
from collector.inventory.inventory import Inventory
from collector.procfs.source import ProcfsSource
from collector.registry import SOURCES
from collector.resctrl.tree import PREFIX, Place
from tests.support.central_process import MAIN, CentralProcess
from tests.support.waiting import wait_until
from tests.unit.agent.agent_fakes import FakeClock
from tests.unit.collector.conftest import host  # noqa: F401 - a fixture
from tests.unit.collector.resctrl.conftest import machine  # noqa: F401 - a fixture
from whitepanda.v1 import agent_pb2

pytestmark = pytest.mark.integration

S = 10**9
MIB = 1 << 20
SECONDS = 32  # of which the last full window begins at 20
#: By VM: what it holds of each domain's cache, what it moves over each domain's memory controllers per second.
LOADS = {"quiet": (1 * MIB, 10 * 10**6), "greedy": (8 * MIB, 400 * 10**6)}
DOMAINS = 2


@pytest.fixture
def central(tmp_path: Path):
    placement = "[placement]\ncpu_cores = 4\nmemory_bytes_per_s = 1e9\nrefresh_s = 1"
    process = CentralProcess(
        tmp_path, central='operators = ["operator"]', ingest="roll_interval_s = 0.2", build=placement
    )
    process.start()
    yield process
    process.end()


def at(sample: SourceSample, mono_ns: int, unix_ns: int) -> SourceSample:
    """A sample as if it had been taken at this moment."""
    vms = {uuid: replace(vm, stamps={}) for uuid, vm in sample.vms.items()}
    return replace(sample, mono_ns=mono_ns, unix_ns=unix_ns, vms=vms)


def measured(machine) -> list[CpiWindow]:  # noqa: F811 - the fixture
    """What an agent makes of half a minute of two VMs on two sockets."""
    made = machine("skylake-sp-2s")
    uuids = {name: made.vm(name, 10 * n, [10 * n + 1]) for n, name in enumerate(LOADS, 1)}
    resctrl = made.source()
    inventory = Inventory(str(made.host.state), str(made.host.proc))
    procfs = ProcfsSource(inventory, root=str(made.host.proc))
    wait_until(lambda: len(procfs.sample().vms) == len(resctrl.sample().vms) == len(LOADS))
    pipeline = Pipeline(AgentConfig(AgentSection()), Slots((), FakeClock()))
    troubles = {spec.name: None if spec.name in ("procfs", "resctrl") else Reason.SOURCE_OFF for spec in SOURCES}
    unix_ns = time.time_ns() // (10 * S) * 10 * S - 60 * S  # a window's border
    windows = []
    for second in range(SECONDS):
        for name, (held, moved) in LOADS.items():
            place = Place("", PREFIX + uuids[name])
            made.kernel.everywhere(place, held, moved * second, moved * second // 2)
        now = (made.now_ns, unix_ns)
        samples = [at(source.sample(), *now) for source in (procfs, resctrl)]
        windows += pipeline.process(Inputs(made.now_ns, samples, troubles))
        made.now_ns += S
        unix_ns += S
    procfs.close()
    return windows


async def send(central: CentralProcess, windows: list[CpiWindow]) -> None:
    spool = Spool(central.folder / "spool.db", max_bytes=1 << 24, boot_id="b")
    section = UplinkSection(
        address=central.address, tls=central.client("host-1"), reconnect_min_s=0.02, reconnect_max_s=0.1
    )
    timing = Timing(poll_s=0.02)
    uplink = Uplink(section, lambda: agent_pb2.Hello(host="host-1", platform="P"), spool, timing=timing)
    running = asyncio.create_task(uplink.run())
    uplink.submit(windows)
    async with asyncio.timeout(60):
        while uplink.totals.accepted_rows < len(windows):
            await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await uplink.close()
    spool.close()


def lake_rows(central: CentralProcess) -> list[dict]:
    files = central.lake_dir.glob("samples/**/*.parquet")
    return [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]


def ranked(central: CentralProcess) -> dict:
    command = [sys.executable, *MAIN, "place", "--central", central.address, "--tls", str(central.pki)]
    done = subprocess.run(
        [*command, "--job", "greedy", "--json"], capture_output=True, text=True, timeout=60, check=False
    )
    return json.loads(done.stdout) if done.returncode == 0 else {}


@pytest.mark.long
async def test_what_resctrl_reports_reaches_the_lake_and_place(machine, central: CentralProcess) -> None:  # noqa: F811 - the fixture
    windows = await asyncio.to_thread(measured, machine)
    central.client("operator")
    await send(central, windows)
    await asyncio.to_thread(wait_until, lambda: len(lake_rows(central)) == len(windows))
    begun = max(row["start_unix_ns"] for row in lake_rows(central))
    last = {row["job"]: row for row in lake_rows(central) if row["start_unix_ns"] == begun}
    for name, (held, moved) in LOADS.items():
        assert last[name]["llc_occupancy_bytes"] == pytest.approx(DOMAINS * held, rel=1e-3)
        assert last[name]["memory_bandwidth_bytes_per_s"] == pytest.approx(DOMAINS * moved, rel=1e-3)

    answer: dict = {}
    async with asyncio.timeout(60):
        while not answer:
            answer = await asyncio.to_thread(ranked, central)
    of_greedy, of_all = 0.8, 0.82  # of the host's 1e9 bytes/s
    assert answer["loading"]["memory"] == pytest.approx(of_greedy)
    (only,) = answer["ranked"]
    assert only["by_resource"]["memory"] == pytest.approx(of_greedy * of_all)
    assert "memory" not in answer["unmeasured"]
