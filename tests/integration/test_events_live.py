"""What a simulated host's analysis finds comes through the live stream to central, and out again, exactly once.

The real source, pipeline, analysis, spool and uplink over mTLS to a central that is a process; only time is quicker.
"""

import asyncio
import contextlib
import shutil
import time
from pathlib import Path

import grpc
import pytest

from agent.antagonists.decide_victims import Decisions
from agent.config import AgentConfig, AgentSection, CloudWhiteSection, JobRule, UplinkSection
from agent.detection.cloud_white import CloudWhite
from agent.detection.degradation_models import load
from agent.sampling.pipeline import Inputs, Pipeline
from agent.sampling.source_threads import Slots
from agent.uplink.client import Uplink
from agent.uplink.disk_queue import Spool
from agent.uplink.messages import event_message
from agent.uplink.stream import Timing
from collector.base import Reason
from collector.registry import SOURCES
from collector.simulated.source import SimulatedSource
from tests.support.central_process import MAIN, ROOT, CentralProcess
from tests.unit.agent.agent_fakes import FakeClock
from whitepanda.common.tls import channel_credentials
from whitepanda.v1 import agent_pb2, fleet_pb2, fleet_pb2_grpc

pytestmark = pytest.mark.integration

MUTANTS = str(ROOT / "tests" / "support" / "central_mutants.py")
S = 1_000_000_000
QUIET_S, STRESS_S, CYCLES = 30, 15, 4
STARTS_S = [QUIET_S + cycle * (STRESS_S + QUIET_S) for cycle in range(CYCLES)]
SCENARIO = f"""
seed = 3
[host]
cpus = 24
vm_cpus = 16
llc_mib = 16.5
[[vms]]
name = "store"
job = "store"
vcpus = 2
profile = "masstree"
load_ratio = {{ ratio = 0.3 }}
[[vms]]
name = "images"
job = "images"
vcpus = 2
profile = "img-dnn"
load_ratio = {{ ratio = 0.2 }}
[[vms]]
name = "scan"
job = "scan"
vcpus = 8
profile = "no-interference"
load_ratio = {{ ratio = 0.1, points = {[[s, r] for at in STARTS_S for s, r in ((at, 0.95), (at + STRESS_S, 0.1))]} }}
switches = {[[s, p] for at in STARTS_S for s, p in ((at, "cache-memory-3"), (at + STRESS_S, "no-interference"))]}
"""


class Host:
    """A simulated host whose time passes as fast as it can; `truth` is what its analysis found."""

    def __init__(self, central: CentralProcess) -> None:
        scenario = central.folder / "scenario.toml"
        scenario.write_text(SCENARIO)
        jobs = (JobRule("^(store|images)$", r"\1", "job", latency_sensitive=True), JobRule("(.+)", r"\1", "job"))
        self.clock = FakeClock(unix_ns=time.time_ns() - 600 * S)
        section = CloudWhiteSection(event_interval_s=1.0)
        config = AgentConfig(AgentSection(), jobs=jobs, cloud_white=section)
        self.pipeline = Pipeline(config, Slots((), self.clock))
        self.cloud_white = CloudWhite(section, load(section.models))
        self.decisions = Decisions(config, self.cloud_white, None)
        self.source = SimulatedSource(scenario, mono_ns=lambda: self.clock.mono, unix_ns=lambda: self.clock.unix)
        self.source.open()
        self.troubles = {spec.name: None if spec.name == "simulated" else Reason.SOURCE_OFF for spec in SOURCES}
        self.spool_file = central.folder / "spool.sqlite"
        self.spool = Spool(self.spool_file, max_bytes=1 << 24, boot_id="b")
        self.section = UplinkSection(
            address=central.address, tls=central.client("host-1"), reconnect_min_s=0.02, reconnect_max_s=0.1
        )
        self.uplink = self.make_uplink(self.spool)
        self.truth: list[agent_pb2.VmEvent] = []

    def make_uplink(self, spool: Spool) -> Uplink:
        timing = Timing(acknowledgement_s=10.0, poll_s=0.05)
        return Uplink(self.section, lambda: agent_pb2.Hello(host="host-1", platform="P"), spool, timing=timing)

    async def live(self, seconds: int) -> None:
        """Let ticks pass as the daemon does, and submit what they find."""
        for _ in range(seconds):
            self.clock.advance(S)
            windows = self.pipeline.process(Inputs(self.clock.mono, [self.source.sample()], self.troubles))
            self.cloud_white.tick(self.pipeline.table, self.pipeline.host_rates, self.clock.mono, self.clock.unix)
            self.decisions.tick(self.pipeline.table, self.clock.mono, self.clock.unix)
            events = self.decisions.events.take()
            self.truth += [event_message(event) for event in events]
            self.uplink.submit(windows, events)
            await asyncio.sleep(0.002)

    @contextlib.asynccontextmanager
    async def connected(self):
        running = asyncio.create_task(self.uplink.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def close(self) -> None:
        await self.uplink.close()
        self.spool.close()

    async def drained(self) -> None:
        async with asyncio.timeout(30):
            while self.uplink._pending or self.uplink._queue.counts().batches:
                await asyncio.sleep(0.02)


def listed(central: CentralProcess) -> list[agent_pb2.VmEvent]:
    """All that Fleet.ListEvents reports the host, page by page, in the order of time."""
    found, token = [], ""
    with grpc.secure_channel(central.address, channel_credentials(central.client("operator"))) as channel:
        while True:
            request = fleet_pb2.ListEventsRequest(host="host-1", page_size=3, page_token=token)
            answer = fleet_pb2_grpc.FleetStub(channel).ListEvents(request, timeout=10, wait_for_ready=True)
            found += [one.event for one in answer.events]
            token = answer.next_page_token
            if not token:
                # As they came, an outage's newest first; of one moment as they were found.
                found.reverse()
                return sorted(found, key=lambda event: event.unix_ns)


def plain(events: list[agent_pb2.VmEvent]) -> list[bytes]:
    """As bytes: messages with a NaN do not equal themselves."""
    return [event.SerializeToString(deterministic=True) for event in events]


async def course(central: CentralProcess, main=MAIN) -> tuple[list, list]:
    """A stressed phase each: in peace, with central killed, with the stream gone, and a host set back in time."""
    central.start(main=main)
    host = Host(central)
    cycle_s, old = QUIET_S + STRESS_S, central.folder / "old.sqlite"
    async with host.connected():
        await host.live(cycle_s)
        await host.drained()
        central.kill()
        await host.live(cycle_s)
        # What is on its way now comes a second time, from a host that is set back to this moment.
        async with asyncio.timeout(10):
            while host.uplink._pending:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)  # the last of them is written
        waiting = host.spool.counts().batches
        assert waiting > 0
        for end in ("", "-wal"):  # an open spool lets nobody else read it as a database
            shutil.copy(f"{host.spool_file}{end}", f"{old}{end}")
        await asyncio.to_thread(central.start, main=main)
        await host.live(cycle_s // 2)
    await host.live(cycle_s - cycle_s // 2)
    await host.uplink.close()
    host.uplink = host.make_uplink(host.spool)
    async with host.connected():
        await host.live(cycle_s)
        await host.drained()
    await host.close()
    central.kill()
    await asyncio.to_thread(central.start, main=main)
    host.spool = Spool(old, max_bytes=1 << 24, boot_id="b")
    host.uplink = host.make_uplink(host.spool)
    async with host.connected():
        await host.drained()
        assert host.uplink.totals.acknowledged_batches == waiting
    await host.close()
    return await asyncio.to_thread(listed, central), host.truth


@pytest.fixture
def central(tmp_path: Path):
    process = CentralProcess(tmp_path, central='operators = ["operator"]', ingest="commit_interval_ms = 2")
    yield process
    process.end()


@pytest.mark.long
async def test_events_come_back_exactly_once_whatever_breaks(central: CentralProcess) -> None:
    found, truth = await course(central)
    assert plain(found) == plain(truth)
    victim, inflicting = agent_pb2.BEHAVIOUR_VICTIM, agent_pb2.BEHAVIOUR_INFLICTING
    # While a VM suffers, its slow-down may be sure at one moment and not at the next.
    suffers = {victim, agent_pb2.BEHAVIOUR_AFFECTED}
    for name, behaviours in (("store", suffers), ("images", suffers), ("scan", {inflicting})):
        mine = [event for event in found if event.name == name]
        began = [event for event in mine if event.behaviour in behaviours and event.before not in behaviours]
        ended = [event for event in mine if event.before in behaviours and event.behaviour not in behaviours]
        assert len(began) == CYCLES, name
        assert len(ended) >= CYCLES - 1, name
        assert name == "scan" or sum(event.behaviour == victim for event in mine) >= CYCLES, name
    first = next(event for event in found if event.behaviour == victim)
    assert first.culprits == [event.vm for event in found if event.name == "scan"][:1]
    assert "Traceback" not in central.log.read_text()


@pytest.mark.long
async def test_a_central_that_forgets_what_it_took_is_noticed(central: CentralProcess) -> None:
    found, truth = await course(central, main=(MUTANTS, "forget-duplicates"))
    assert len(found) > len(truth)
    assert set(plain(found)) == set(plain(truth))
