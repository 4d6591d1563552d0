"""Messages and requests that nobody sends, by the thousand: central lives, its memory is bounded, all is counted.

Meanwhile central builds again and again, and an honest host sends and is acknowledged. WHITEPANDA_HOSTILE_MESSAGES sets
the number of messages of the long test; a tenth as many are HTTP requests.
"""

import asyncio
import contextlib
import os
import random
import re
import socket
import ssl
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pyarrow.parquet as pq
import pytest

from bench.ingest.agents import frame, opening
from central.build.builder import Builder
from central.config import BuildSection, IngestSection
from central.incidents.store import IncidentQuery, IncidentStore
from central.journal.flush import Roller
from central.journal.writer import Journal
from central.lake.segments import Lake
from central.roll_ups.store import SlotStore
from central.validation.events import EVENT_REASONS
from central.validation.rows import is_name
from central.validation.triggers import TRIGGER_REASONS, TriggerRow
from tests.support.central_process import CentralProcess
from tests.support.honest_host import HOST, HonestHost, memory_mib
from tests.support.hostile_http import send_requests
from tests.support.hostile_messages import MAX_MESSAGE_BYTES, MAX_ROWS, Expected, Fuzzer
from tests.support.hostile_reports import hello
from whitepanda.common.protocol import CLIENT_CHANNEL_OPTIONS
from whitepanda.common.tls import TlsFiles, channel_credentials
from whitepanda.v1 import agent_pb2, fleet_pb2, fleet_pb2_grpc

CONNECT = "/whitepanda.v1.AgentStream/Connect"
SENDERS = 8
SLOW = 20
MESSAGES = int(os.environ.get("WHITEPANDA_HOSTILE_MESSAGES", "20000"))
TIMEOUT_S = max(600, MESSAGES // 30)  # a busy machine takes 100 a second
MAX_MEMORY_MIB = 1000  # of central and its processes, without the one that builds (build.memory_limit_mib)
REFUSED = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.FAILED_PRECONDITION)
STREAM_REASONS = {
    "malformed", "oversized", "no_hello", "second_hello", "bad_hello", "wrong_host", "protocol_version",
}  # fmt: skip
HONEST_VMS, HONEST_INTERVAL_S = 5, 0.1
BUILDS = 3  # meanwhile, at least
PATIENCE_S = 120.0
#: "none": what is no whole request, or breaks off. Never 500: nothing that is sent is central's failure.
ANSWERS = {"none", "200", "204", "400", "403", "404", "405", "408", "410", "415", "429", "431"}
OPENINGS = 0.05  # of all messages: streams that are refused for their first words


class Stream:
    """One host's stream, whose answers are read and forgotten."""

    def __init__(self, channel: grpc.aio.Channel, host: str) -> None:
        self.call = channel.stream_stream(CONNECT)()
        self.host = host
        self.reader = asyncio.create_task(self.read())

    async def open(self, rng: random.Random) -> None:
        await self.call.write(agent_pb2.AgentMessage(hello=hello(rng, self.host)).SerializeToString())

    async def read(self) -> grpc.StatusCode:
        try:
            while await self.call.read() is not grpc.aio.EOF:
                continue
        except grpc.aio.AioRpcError:
            pass
        return await self.call.code()


async def send(central: CentralProcess, host: str, seed: int, count: int, expected: Expected) -> None:
    files = central.client(host)
    channel = grpc.aio.secure_channel(central.address, channel_credentials(files), options=CLIENT_CHANNEL_OPTIONS)
    fuzzer = Fuzzer(host, seed, expected)
    stream = Stream(channel, host)
    await stream.open(fuzzer.random)
    for _ in range(count):
        if fuzzer.random.random() < OPENINGS:
            await knock(channel, fuzzer)
            continue
        raw, is_last = fuzzer.message()
        await stream.call.write(raw)
        if is_last:
            code = await asyncio.wait_for(stream.reader, 60)
            assert code in REFUSED, code
            stream = Stream(channel, host)
            await stream.open(fuzzer.random)
    await stream.call.done_writing()
    assert await asyncio.wait_for(stream.reader, 60) == grpc.StatusCode.OK
    await channel.close()


async def knock(channel: grpc.aio.Channel, fuzzer: Fuzzer) -> None:
    """Begin a stream beside the host's open one, and be refused."""
    raw, code = fuzzer.opening()
    stream = Stream(channel, fuzzer.host)
    if raw is None:
        await stream.call.done_writing()
    else:
        await stream.call.write(raw)
    assert await asyncio.wait_for(stream.reader, 60) == code, raw


async def refused_streams(central: CentralProcess) -> dict[str, int]:
    """Ask central how many streams of agents it refused, by reason."""
    files = central.client("operator")
    async with grpc.aio.secure_channel(central.address, channel_credentials(files)) as channel:
        status = await fleet_pb2_grpc.FleetStub(channel).GetFleetStatus(fleet_pb2.GetFleetStatusRequest())
    counts = {each.reason: each.count for each in status.refused_streams}
    return {reason: count for reason, count in counts.items() if not reason.startswith("http_")}


def recorded_triggers(central: CentralProcess, waiting: list[TriggerRow]) -> int:
    """Return how many reports of contention incident history has, once it has those that wait in the journal."""
    with contextlib.closing(IncidentStore("", central.state_dir)) as store:
        store.take(waiting, gap_ns=900 * 10**9, oldest_unix_ns=0)
        return sum(incident.reports for incident in store.find(IncidentQuery(), limit=10**6))


async def sleepers(central: CentralProcess) -> grpc.aio.Channel:
    """Open streams that say Hello and then nothing."""
    names = [f"sleeping-{number}" for number in range(SLOW)]
    files = central.client("sleeping", *names)
    channel = grpc.aio.secure_channel(central.address, channel_credentials(files), options=CLIENT_CHANNEL_OPTIONS)
    for name in names:
        await Stream(channel, name).open(random.Random(name))
    return channel


async def slow_sender(central: CentralProcess, name: str, files: TlsFiles) -> None:
    """Send slowly, and come again should central hang up."""
    while True:
        with contextlib.suppress(ConnectionError):
            await send_slowly(central, name, files)


async def send_slowly(central: CentralProcess, name: str, files: TlsFiles) -> None:
    """Say Hello, begin a message of the largest size and go on with it a byte at a time, for ever."""
    context = ssl.create_default_context(cafile=files.ca)
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(files.certificate, files.key)
    reader, writer = await asyncio.open_connection("localhost", central.port, ssl=context)
    hello = agent_pb2.Hello(host=name, platform="P", protocol_version=1, min_protocol_version=1)
    first = agent_pb2.AgentMessage(hello=hello).SerializeToString()
    head = b"\x00" + (MAX_MESSAGE_BYTES - 1).to_bytes(4) + bytes(30_000)
    said = b"\x00" + len(first).to_bytes(4) + first + head
    settings_ack = frame(4, 1, 0)
    writer.write(opening("localhost") + settings_ack)
    for at in range(0, len(said), 16_384):
        writer.write(frame(0, 0, 1, said[at : at + 16_384]))
    listening = asyncio.create_task(reader.read())  # what central says is read and forgotten
    try:
        while True:
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.write(frame(0, 0, 1, b"\x00"))
    finally:
        listening.cancel()
        writer.transport.abort()


async def send_well(honest: HonestHost, hostile: asyncio.Future[object]) -> np.ndarray:
    """Send as a good host does until the hostile ones are done; return the times to the acknowledgement, in ms.

    A batch that is not acknowledged within a minute fails.
    """
    found = []
    while not hostile.done() or not found:
        found.append(await asyncio.to_thread(honest.latencies_ms, 2.0, HONEST_INTERVAL_S))
    return np.concatenate(found)


def built(central: CentralProcess) -> list[int]:
    """Return the versions that central has built; no build may have failed."""
    said = central.log.read_text()
    assert "build failed" not in said, said[said.index("build failed") :][:400]
    return [int(number) for number in re.findall(r"version built.*version=(\d+)", said)]


def check_version(lake: Lake, expected: Expected, honest_rows: int) -> None:
    """Whatever was sent: a version is built, it has every row that was taken, and nothing of the lake is wrong."""
    builder = Builder(BuildSection(threads=1), lake)
    builder.build_once()  # what central itself has not built
    assert builder.current is not None
    manifest = builder.current.manifest
    assert manifest.rows == expected.accepted_rows
    assert not manifest.machines_left_out
    store = SlotStore(lake, 300 * 10**9)
    windows: Counter[str] = Counter()
    for day in store.manifests().values():
        for part in day.parts:
            for row in pq.read_table(lake.objects.local(part.slots), columns=["machine", "windows"]).to_pylist():
                windows[row["machine"]] += row["windows"]
    assert windows[HOST] == honest_rows
    assert builder.build_once() is None


@dataclass(frozen=True, slots=True)
class Seen:
    """What others noticed: times to the honest host's acknowledgements, central's memory, streams refused."""

    latencies_ms: np.ndarray
    before_mib: float
    most_mib: float
    refused: dict[str, int]


async def assault(
    central: CentralProcess, honest: HonestHost, messages: int, expected: Expected, answers: Counter[str]
) -> Seen:
    """Send it all while central builds, and stop central with the slow ones still at it."""
    asleep = await sleepers(central)
    names = [f"slow-{number}" for number in range(SLOW)]
    files = central.client("slow", *names)
    slow = [asyncio.create_task(slow_sender(central, name, files)) for name in names]
    async with asyncio.timeout(PATIENCE_S):
        while central.log.read_text().count("host connected") < 2 * SLOW + 1:
            await asyncio.sleep(0.05)
    before = most = memory_mib(central)
    each, http_port = messages // SENDERS, int(central.http_listen.rpartition(":")[2])
    hostile = asyncio.gather(
        *(send(central, f"hostile-{n}", n, each, expected) for n in range(SENDERS)),
        *(send_requests(http_port, n, each // 10, answers) for n in range(SENDERS)),
    )
    senders = asyncio.gather(hostile, send_well(honest, hostile))
    while not senders.done():
        await asyncio.wait({senders}, timeout=0.2)
        most = max(most, memory_mib(central))
    _, latencies_ms = await senders
    async with asyncio.timeout(PATIENCE_S):
        while len(built(central)) < BUILDS:
            await asyncio.sleep(0.1)
    refused = await refused_streams(central)
    assert not any(task.done() for task in slow)
    honest.close()
    await asleep.close()
    assert await asyncio.to_thread(central.stop) == 0, "with the slow ones still at it"
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    return Seen(latencies_ms, before, most, refused)


async def attack(folder: Path, messages: int) -> None:
    settings = f"max_message_bytes = {MAX_MESSAGE_BYTES}\nmax_batch_rows = {MAX_ROWS}"
    # Each message is answered by what is wrong with it, not by how many there are.
    quotas = "max_ranges_per_day = 1000000\nmax_report_mib_per_day = 1000\nmax_events_per_host = 100000"
    often = "\nroll_interval_s = 1"
    central = CentralProcess(folder, ingest=settings + often, quotas=quotas, build="interval_s = 2\nthreads = 1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        central.http_listen = f"127.0.0.1:{free.getsockname()[1]}"
    central.start()
    expected, answers = Expected(), Counter[str]()
    try:
        with contextlib.closing(HonestHost(central, HONEST_VMS)) as honest:
            seen = await assault(central, honest, messages, expected, answers)
    finally:
        central.end()
    honest_rows = honest.batches * HONEST_VMS
    expected.accepted_batches += honest.batches
    expected.accepted_rows += honest_rows
    versions = built(central)
    p50, p99, most = *np.percentile(seen.latencies_ms, (50, 99)), seen.latencies_ms.max()
    print(
        f"{expected.kinds.total()} messages, {answers.total()} requests, {len(versions)} versions; the honest host's "
        f"{honest.batches} batches: p50/p99/most {p50:.0f}/{p99:.0f}/{most:.0f} ms; "
        f"memory {seen.before_mib:.0f} MiB, most {seen.most_mib:.0f} MiB"
    )
    said = [line[-400:] for line in central.log.read_text().splitlines() if "Traceback" in line]
    assert not said, said[0]
    journal = Journal(central.state_dir, replica="central-0", commit_interval_s=0.001)
    stats, hosts = journal.stats, journal.hosts
    waiting = [row for _, row in journal.read_triggers(messages)]
    lake = Lake(central.lake_dir)
    journal.start()
    await Roller(IngestSection(), journal, lake).roll_all()
    await journal.close()
    check_version(lake, expected, honest_rows)
    assert versions == list(range(1, len(versions) + 1)), "every build made a version"
    print(
        f"{stats.rejected_rows.total()} rows, {stats.rejected_batches.total()} batches, "
        f"{stats.rejected_events.total()} reports and {sum(seen.refused.values())} streams refused"
    )
    assert seen.most_mib < MAX_MEMORY_MIB
    assert len(seen.latencies_ms) == honest.batches
    assert answers.total() == SENDERS * (messages // SENDERS // 10)
    assert answers["200"], answers
    assert set(answers) <= ANSWERS, answers
    assert seen.refused == expected.streams
    assert stats.rejected_rows == expected.rows
    assert stats.rejected_values == expected.values
    assert stats.rejected_batches == expected.batches
    assert stats.rejected_events == expected.reports
    assert stats.accepted_events == expected.accepted_events
    assert recorded_triggers(central, waiting) == expected.accepted_triggers
    assert all(is_name(job) for host in hosts.values() for job in host.jobs)
    assert (stats.accepted_batches, stats.accepted_rows, stats.duplicate_batches) == (
        expected.accepted_batches,
        expected.accepted_rows,
        expected.duplicates,
    )
    assert set(expected.reports) == {*EVENT_REASONS, *TRIGGER_REASONS}
    assert set(expected.streams) == STREAM_REASONS
    assert min(expected.duplicates, expected.accepted_events, expected.accepted_triggers) > 0
    rare = {"huge", "too_many_reports", "opening"}
    assert set(expected.kinds) == {kind.__name__ for kind in Fuzzer("", 0, expected).kinds} | rare


@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S)
async def test_hostile_messages_are_counted_by_reason(tmp_path: Path) -> None:
    await attack(tmp_path, MESSAGES)
