"""A host over its quota, at the real server: what it hears, what is kept, and that nobody else is affected."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from agent.config import UplinkSection
from agent.sampling.windows import CpiWindow
from agent.uplink.client import Uplink
from agent.uplink.disk_queue import Spool
from central.config import QuotaSection
from tests.support.spoken_streams import Centrals, Peer
from tests.support.waiting import until
from whitepanda.common.tls import TlsFiles
from whitepanda.v1 import agent_pb2, fleet_pb2, fleet_pb2_grpc


@dataclass
class Clock:
    """Of the quotas, set by hand."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


class Listener(Peer):
    """A stream that notes what it hears until its end."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.acknowledged: list[int] = []
        self.paces_ms: list[int] = []
        self.accepted_rows = 0

    async def batch(self, sequence: int, rows: int = 100, first_vm: int = 0, **fields) -> int:
        tasks = [agent_pb2.Task(vm=f"vm-{first_vm + row}", job="job") for row in range(rows)]
        # The stream may have ended: `end` says how.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return await super().batch(sequence, rows, tasks=tasks, **fields)
        return 0

    async def heard(self, *, sequence: int = 0, paces: int = 0) -> None:
        """Read until this batch is acknowledged, and there were so many requests to slow down."""
        while (sequence and sequence not in self.acknowledged) or len(self.paces_ms) < paces:
            self._take(await self.read())

    async def end(self) -> tuple[str, str]:
        """Read to the end of the stream; returns its status."""
        async with asyncio.timeout(20):
            try:
                while (raw := await self.call.read()) is not grpc.aio.EOF:
                    self._take(agent_pb2.CentralMessage.FromString(raw))
            except grpc.aio.AioRpcError:
                pass
            return (await self.call.code()).name, await self.call.details()

    def _take(self, message: agent_pb2.CentralMessage) -> None:
        if message.HasField("slow_down"):
            self.paces_ms.append(message.slow_down.min_batch_interval_ms)
        for each in message.ack.ranges:
            self.acknowledged.extend(range(each.first, each.last + 1))
        self.accepted_rows += message.ack.accepted_rows


def window(number: int) -> CpiWindow:
    return CpiWindow(f"vm-{number}", "e", "n", "job", False, time.time_ns(), 10**10, 0.5, cpi=1.5)


class Fleet:
    """A central with small quotas and a clock for them."""

    def __init__(self, make: Centrals) -> None:
        self._make = make
        self.clock = Clock()

    async def start(self, **quotas) -> None:
        self.central = await self._make.central(quotas=QuotaSection(**quotas))
        self.central.ingest.quotas._clock_s = self.clock

    async def peer(self, name: str) -> Listener:
        peer = self._make.peer(self.central, name, Listener)
        await peer.hello(name)
        return peer

    def _stub(self) -> fleet_pb2_grpc.FleetStub:
        return fleet_pb2_grpc.FleetStub(self._make.peer(self.central, "operator").channel)

    async def status(self) -> fleet_pb2.FleetStatus:
        return await self._stub().GetFleetStatus(fleet_pb2.GetFleetStatusRequest())

    async def health(self) -> fleet_pb2.DataHealth:
        return await self._stub().GetDataHealth(fleet_pb2.GetDataHealthRequest())


@pytest.fixture
def fleet(make: Centrals) -> Fleet:
    return Fleet(make)


@pytest.fixture
async def agent(fleet: Fleet, pki: dict[str, TlsFiles], tmp_path: Path) -> AsyncIterator[Callable[..., Uplink]]:
    """Make the uplink of an agent, which runs until the test's end."""
    async with contextlib.AsyncExitStack() as stack:

        def make(host: str = "h1") -> Uplink:
            spool = Spool(tmp_path / f"{host}.db", max_bytes=1 << 24, boot_id="b")
            section = UplinkSection(
                address=f"localhost:{fleet.central.port}", tls=pki[host], reconnect_min_s=0.02, reconnect_max_s=0.1
            )
            uplink = Uplink(section, lambda: agent_pb2.Hello(host=host, boot_id="b", platform="P"), spool)
            task = asyncio.create_task(uplink.run())

            async def end() -> None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await uplink.close()
                spool.close()

            stack.push_async_callback(end)
            return uplink

        yield make


async def test_a_host_over_quota_keeps_its_batch_and_sends_it_later_and_each_row_counts_once(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    await fleet.start(max_rows_per_minute=500)
    peer = await fleet.peer("h1")  # which does not slow down
    for sequence in range(1, 8):
        await peer.batch(sequence)
    code, detail = await peer.end()
    assert code == "RESOURCE_EXHAUSTED"
    assert detail.startswith("over quota: quotas.max_rows_per_minute allows 500 rows of one host; ")
    assert peer.acknowledged == [1, 2, 3, 4, 5], "what came before is acknowledged"
    other = await fleet.peer("h2")
    await other.batch(1)
    await other.heard(sequence=1)
    for _ in range(3):
        again = await fleet.peer("h1")
        await again.batch(6)
        assert (await again.end())[0] == "RESOURCE_EXHAUSTED"
        assert again.acknowledged == []
    status = await fleet.status()
    assert status.over_quota == 1
    (held,) = (await fleet.health()).held_back
    assert (held.host, [(each.reason, each.count) for each in held.over_quota]) == ("h1", [("over_quota_rows", 4)])
    assert {each.reason: each.count for each in status.refused_streams} == {"over_quota_rows": 4}
    log = capsys.readouterr()
    assert (log.out + log.err).count("stream refused") == 1
    fleet.clock.now_s += 30
    late = await fleet.peer("h1")
    for sequence in (6, 7, 5):
        await late.batch(sequence)
    await late.heard(sequence=5)
    assert late.accepted_rows == 200, "batch 5 had been taken"
    stats = fleet.central.journal.stats
    assert (stats.accepted_rows, stats.duplicate_batches) == (800, 1)
    fleet.clock.now_s += 301
    assert (await fleet.status()).over_quota == 0


async def test_who_sends_fast_is_asked_to_slow_down_in_time_and_may_speed_up_again(fleet: Fleet) -> None:
    await fleet.start(max_rows_per_minute=6000)
    peer = await fleet.peer("h1")
    for sequence in range(1, 25):
        await peer.batch(sequence)
    await peer.heard(sequence=24)
    assert peer.paces_ms == []
    await peer.batch(25)
    await peer.heard(sequence=25, paces=1)
    (held,) = (await fleet.health()).held_back
    assert (held.host, held.min_batch_interval_ms, list(held.over_quota)) == ("h1", 1250, [])
    assert (await fleet.status()).paced_hosts == 1
    fleet.clock.now_s += 60
    await peer.batch(26)
    await peer.heard(sequence=26, paces=2)
    assert peer.paces_ms == [1250, 0]
    status = await fleet.status()
    assert (status.over_quota, status.paced_hosts) == (0, 0)
    assert list((await fleet.health()).held_back) == []


async def test_the_agent_says_that_it_is_over_quota_and_sends_all_once_it_may(
    fleet: Fleet, agent: Callable[[], Uplink], capsys: pytest.CaptureFixture[str]
) -> None:
    await fleet.start(max_gib_per_day=1e-8)  # 10.7 bytes: one batch
    uplink = agent()
    for sequence in (1, 2):
        uplink.submit([window(sequence)])
        await until(lambda: uplink.view().acknowledged_windows == 1)
    said = f"central {uplink.view().address} refuses for now: over quota: quotas.max_gib_per_day allows 1e-08 GiB"
    await until(lambda: uplink.view().last_error.startswith(said))
    log = capsys.readouterr()
    assert said in log.out + log.err
    fleet.clock.now_s += 100 * 86_400
    await until(lambda: uplink.view().acknowledged_windows == 2)


async def test_a_batch_of_more_vms_than_an_hour_allows_is_refused_whole_and_the_next_one_is_taken(fleet: Fleet) -> None:
    await fleet.start(max_vms_per_hour=100)
    peer = await fleet.peer("h1")
    await peer.batch(1)
    await peer.batch(2, rows=101)
    await peer.batch(3, rows=3000)  # a process of its own reads it
    await peer.batch(4)
    acks = []
    while sum(each.last + 1 - each.first for ack in acks for each in ack.ranges) < 4:
        acks.append(await peer.ack())
    refused = {each.sequence: each for ack in acks for each in ack.rejected_batches}
    assert {number: each.reason for number, each in refused.items()} == {2: "too_many_vms", 3: "too_many_vms"}
    assert "quotas.max_vms_per_hour" in refused[2].detail
    stats = fleet.central.journal.stats
    assert (stats.accepted_rows, stats.rejected_batches) == (200, {"too_many_vms": 2})
    assert (await fleet.status()).over_quota == 0
    importer = await fleet.peer("importer")
    await importer.batch(1, rows=101)
    await importer.heard(sequence=1)
    assert importer.accepted_rows == 101


async def test_an_agent_that_is_asked_to_wait_knows_for_how_long(fleet: Fleet, agent: Callable[[], Uplink]) -> None:
    await fleet.start(max_rows_per_minute=100)
    uplink = agent()
    for number in range(5):  # ten rows each, at the least
        uplink.submit([window(number)])
        await until(lambda: uplink.view().acknowledged_windows > number)  # noqa: B023 - awaited here
    await until(lambda: uplink.view().min_batch_interval_ms == 7500)
    (held,) = (await fleet.health()).held_back
    assert (held.host, held.min_batch_interval_ms) == ("h1", 7500)


@pytest.mark.parametrize(
    ("quotas", "reason"),
    [
        ({"max_gib_per_day": 0.001}, "over_quota_bytes"),
        ({"max_vms_per_hour": 150}, "over_quota_vms"),
        ({"max_ranges_per_day": 1}, "over_quota_ranges"),
    ],
)
async def test_each_budget_is_refused_by_its_name_and_an_importer_has_none(
    fleet: Fleet, quotas: dict[str, float], reason: str
) -> None:
    await fleet.start(**quotas)

    async def send(peer: Listener) -> None:
        for sequence in range(1, 11):
            await peer.batch(
                1, rows=2500 if "gib" in next(iter(quotas)) else 100, spool_id=f"{sequence}", first_vm=sequence
            )
        await peer.batch(1, spool_id="last", first_vm=1000)

    importer = await fleet.peer("importer")
    await send(importer)
    async with asyncio.timeout(20):
        while fleet.central.journal.stats.accepted_batches < 11:
            await asyncio.sleep(0.01)
    host = await fleet.peer("h1")
    await send(host)
    # INTERNAL where a write of the host failed before the status came: its own gRPC then ignores that.
    assert (await host.end())[0] in ("RESOURCE_EXHAUSTED", "INTERNAL")
    assert fleet.central.ingest.refused_streams == {reason: 1}
    assert fleet.central.journal.stats.accepted_batches < 22


async def test_reports_beyond_the_budget_are_dropped_and_counted_and_rows_are_not(fleet: Fleet) -> None:
    await fleet.start(max_report_mib_per_day=0.01)
    peer = await fleet.peer("h1")
    now = time.time_ns()
    victim = agent_pb2.TriggerVictim(vm="v", job="j", cpi=2.0)
    report = agent_pb2.Trigger(
        unix_ns=now, slot_ns=10**9, since_unix_ns=now, victims=[victim], found_by=[agent_pb2.ANALYSIS_HOST]
    )
    await peer.batch(1, triggers=[report] * 12)
    await peer.heard(sequence=1)
    stats = fleet.central.journal.stats
    assert (stats.accepted_rows, stats.rejected_events) == (100, {"over_quota_reports": 2})
    status = await fleet.status()
    assert status.over_quota == 1
    assert [(each.reason, each.count) for each in status.rejected_events] == [("over_quota_reports", 2)]


async def test_lines_about_bad_input_are_by_host_and_reason_and_not_by_stream(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    await fleet.start()
    for sequence in range(1, 21):
        peer = await fleet.peer("h1")
        await peer.batch(sequence, rows=2, cpu_usage_cores=[-1.0, -1.0])
        await peer.heard(sequence=sequence)
        await peer.call.done_writing()
        assert (await peer.end())[0] == "OK"
    log = capsys.readouterr()
    lines = (log.out + log.err).splitlines()
    assert len([line for line in lines if "input refused" in line]) == 1
    assert len([line for line in lines if "host connected" in line]) == 10
    assert fleet.central.journal.stats.rejected_rows == {"bad_cpu_usage": 40}
