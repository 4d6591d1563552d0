"""A hundred thousand messages that no agent sends: central lives, its memory stays bounded, everything is counted."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import ssl
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import grpc
import psutil
import pytest
from google.protobuf.message import DecodeError

from bench.ingest_agents import frame, opening
from central.journal import Journal
from tests.support.central_process import CentralProcess
from whitepanda.common.protocol import CLIENT_CHANNEL_OPTIONS
from whitepanda.common.tls import TlsFiles, channel_credentials
from whitepanda.v1 import agent_pb2

CONNECT = "/whitepanda.v1.AgentStream/Connect"
SENDERS = 8
SLOW = 20
MAX_MESSAGE_BYTES = 1 << 20
MAX_ROWS = 1000
MAX_GROWTH_BYTES = 400 << 20
ROWS = 5


class Expected:
    """What central's counters must say at the end."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()  # of messages
        self.rows: Counter[str] = Counter()
        self.batches: Counter[str] = Counter()
        self.accepted_rows = self.accepted_batches = self.duplicates = 0


class Fuzzer:
    """Makes one host's messages. Each method returns the bytes, and whether they end the stream."""

    def __init__(self, host: str, seed: int, expected: Expected) -> None:
        self.random, self.expected, self.sequence = random.Random(seed), expected, 0
        self.spool = f"spool-of-{host}"
        self.kinds: list[Callable[[], tuple[bytes, bool]]] = [
            self.good, self.good, self.good, self.bad_rows, self.bad_rows, self.bad_rows, self.bad_batch,
            self.bad_batch, self.duplicate, self.unnumbered, self.noise, self.damaged, self.wrong_type,
            self.other_type,
        ]  # fmt: skip

    def message(self) -> tuple[bytes, bool]:
        kind = self.huge if self.random.random() < 0.01 else self.random.choice(self.kinds)
        self.expected.kinds[kind.__name__] += 1
        return kind()

    def batch(self, rows: int = ROWS) -> agent_pb2.CpiBatch:
        self.sequence += 1
        return agent_pb2.CpiBatch(
            spool_id=self.spool,
            sequence=self.sequence,
            tasks=[agent_pb2.Task(vm=f"vm-{row}", job=f"job-{row}") for row in range(ROWS)],
            task_index=[row % ROWS for row in range(rows)],
            start_unix_ns=[time.time_ns()] * rows,
            duration_ns=[10**10] * rows,
            cpi=[self.random.uniform(0.1, 9) for _ in range(rows)],
            cpu_usage_cores=[1.0] * rows,
            cycles=[7] * rows,
        )

    def take(self, batch: agent_pb2.CpiBatch, lost: int = 0) -> tuple[bytes, bool]:
        self.expected.accepted_batches += 1
        self.expected.accepted_rows += len(batch.task_index) - lost
        return agent_pb2.AgentMessage(batch=batch).SerializeToString(), False

    def good(self) -> tuple[bytes, bool]:
        return self.take(self.batch())

    def bad_rows(self) -> tuple[bytes, bool]:
        batch, now = self.batch(), time.time_ns()
        reason, name, value = self.random.choice(
            [
                ("future_time", "start_unix_ns", now + 10**15),
                ("old_time", "start_unix_ns", 5),
                ("bad_time", "start_unix_ns", 2**64 - 1),
                ("bad_time", "duration_ns", 0),
                ("bad_cpu_usage", "cpu_usage_cores", math.nan),
                ("bad_cpu_usage", "cpu_usage_cores", math.inf),
                ("bad_cpi", "cpi", -math.inf),
                ("bad_cpi", "cpi", 0.0),
                ("absurd_cpi", "cpi", 1e300),
                ("bad_counter", "cycles", 2**63),
            ]
        )
        rows = self.random.sample(range(ROWS), self.random.randint(1, ROWS))
        for row in rows:
            getattr(batch, name)[row] = value
        self.expected.rows[reason] += len(rows)
        return self.take(batch, lost=len(rows))

    def bad_batch(self) -> tuple[bytes, bool]:
        batch = self.batch()
        reason = self.random.choice(["column_length", "task_index", "foreign_machine", "too_many_rows"])
        if reason == "column_length":
            batch.running_ratio.append(1.0)
        elif reason == "task_index":
            batch.task_index[0] = self.random.randint(ROWS, 2**32 - 1)
        elif reason == "foreign_machine":
            batch.tasks[0].machine = "someone-else"
        else:
            batch.task_index.extend([0] * MAX_ROWS)
        self.expected.batches[reason] += 1
        return agent_pb2.AgentMessage(batch=batch).SerializeToString(), False

    def duplicate(self) -> tuple[bytes, bool]:
        if not self.sequence:
            return self.good()
        batch = self.batch()
        self.sequence -= 1
        batch.sequence = self.random.randint(1, self.sequence)
        self.expected.duplicates += 1
        return agent_pb2.AgentMessage(batch=batch).SerializeToString(), False

    def unnumbered(self) -> tuple[bytes, bool]:
        batch = self.batch()
        self.sequence -= 1
        reason = self.random.choice(["no_spool", "bad_spool", "no_sequence"])
        if reason == "no_sequence":
            batch.sequence = self.random.choice([0, 2**63, 2**64 - 1])
        else:
            batch.spool_id = "" if reason == "no_spool" else "\x1b" * self.random.randint(1, 99)
        self.expected.batches[reason] += 1
        return agent_pb2.AgentMessage(batch=batch).SerializeToString(), False

    def noise(self) -> tuple[bytes, bool]:
        while self.is_message(raw := self.random.randbytes(self.random.randint(1, 300))):
            continue
        self.expected.batches["malformed"] += 1
        return raw, True

    def damaged(self) -> tuple[bytes, bool]:
        """A good batch that breaks off: its length says so."""
        raw = agent_pb2.AgentMessage(batch=self.batch()).SerializeToString()
        self.sequence -= 1
        self.expected.batches["malformed"] += 1
        return raw[: self.random.randint(2, len(raw) - 1)], True

    def wrong_type(self) -> tuple[bytes, bool]:
        """A column of doubles whose bytes are no multiple of eight."""
        body = self.batch().SerializeToString() + b"\x3a\x07" + self.random.randbytes(7)
        self.sequence -= 1
        size = bytes((len(body) & 0x7F | 0x80, len(body) >> 7))
        self.expected.batches["malformed"] += 1
        return b"\x12" + size + body, True

    def other_type(self) -> tuple[bytes, bool]:
        """A column that must be there, sent as another type: to protobuf it is no such field."""
        batch = self.batch()
        batch.ClearField("cpu_usage_cores")
        number = agent_pb2.CpiBatch.DESCRIPTOR.fields_by_name["cpu_usage_cores"].number
        wire = self.random.choice([(0, b"\x01"), (5, b"\x00" * 4)])
        body = batch.SerializeToString() + bytes([number << 3 | wire[0]]) + wire[1]
        self.expected.batches["column_length"] += 1
        return b"\x12" + bytes((len(body) & 0x7F | 0x80, len(body) >> 7)) + body, False

    def huge(self) -> tuple[bytes, bool]:
        batch = self.batch()
        self.sequence -= 1
        batch.cpi.extend([1.0] * (MAX_MESSAGE_BYTES // 8))
        self.expected.batches["oversized"] += 1
        return agent_pb2.AgentMessage(batch=batch).SerializeToString(), True

    @staticmethod
    def is_message(raw: bytes) -> bool:
        try:
            agent_pb2.AgentMessage.FromString(raw)
        except DecodeError:
            return False
        return True


class Stream:
    """One host's stream, whose answers are read and forgotten."""

    def __init__(self, channel: grpc.aio.Channel, host: str) -> None:
        self.call = channel.stream_stream(CONNECT)()
        self.host = host
        self.reader = asyncio.create_task(self.read())

    async def open(self) -> None:
        hello = agent_pb2.Hello(host=self.host, platform="P", protocol_version=2, min_protocol_version=1)
        await self.call.write(agent_pb2.AgentMessage(hello=hello).SerializeToString())

    async def read(self) -> grpc.StatusCode:
        try:
            while await self.call.read() is not grpc.aio.EOF:
                continue
        except grpc.aio.AioRpcError:
            pass
        return await self.call.code()


async def send(central: CentralProcess, host: str, seed: int, count: int, expected: Expected) -> None:
    files = central.client(host)
    channel = grpc.aio.secure_channel(
        central.address, channel_credentials(files), options=CLIENT_CHANNEL_OPTIONS
    )
    fuzzer = Fuzzer(host, seed, expected)
    stream = Stream(channel, host)
    await stream.open()
    for _ in range(count):
        raw, is_last = fuzzer.message()
        await stream.call.write(raw)
        if is_last:
            code = await asyncio.wait_for(stream.reader, 60)
            assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED), code
            stream = Stream(channel, host)
            await stream.open()
    await stream.call.done_writing()
    assert await asyncio.wait_for(stream.reader, 60) == grpc.StatusCode.OK
    await channel.close()


async def sleepers(central: CentralProcess) -> grpc.aio.Channel:
    """Open streams that say Hello and then nothing."""
    names = [f"sleeping-{number}" for number in range(SLOW)]
    files = central.client("sleeping", *names)
    channel = grpc.aio.secure_channel(
        central.address, channel_credentials(files), options=CLIENT_CHANNEL_OPTIONS
    )
    for name in names:
        await Stream(channel, name).open()
    return channel


async def slow_sender(central: CentralProcess, name: str, files: TlsFiles) -> None:
    """Send slowly, and come again: central hangs up on who does not answer its pings."""
    while True:
        with contextlib.suppress(ConnectionError):
            await send_slowly(central, name, files)


async def send_slowly(central: CentralProcess, name: str, files: TlsFiles) -> None:
    """Say Hello, begin a message of the largest size and go on with it a byte at a time, until central hangs up."""
    context = ssl.create_default_context(cafile=files.ca)
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(files.certificate, files.key)
    reader, writer = await asyncio.open_connection("localhost", central.port, ssl=context)
    hello = agent_pb2.Hello(host=name, platform="P", protocol_version=2, min_protocol_version=1)
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


async def attack(folder: Path, messages: int) -> None:
    settings = f"max_message_bytes = {MAX_MESSAGE_BYTES}\nmax_batch_rows = {MAX_ROWS}"
    central = CentralProcess(folder, ingest=settings)
    central.start()
    try:
        server = psutil.Process(central.process.pid)
        expected = Expected()
        asleep = await sleepers(central)
        names = [f"slow-{number}" for number in range(SLOW)]
        files = central.client("slow", *names)
        slow = [asyncio.create_task(slow_sender(central, name, files)) for name in names]
        async with asyncio.timeout(30):
            while central.log.read_text().count("host connected") < 2 * SLOW:
                await asyncio.sleep(0.05)
        before = highest = server.memory_info().rss
        each = messages // SENDERS
        senders = asyncio.gather(*(send(central, f"host-{n}", n, each, expected) for n in range(SENDERS)))
        while not senders.done():
            await asyncio.wait({senders}, timeout=0.2)
            highest = max(highest, server.memory_info().rss)
        await senders
        assert not any(task.done() for task in slow)
        await asleep.close()
        assert await asyncio.to_thread(central.stop) == 0, "with the slow ones still at it"
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        assert highest - before < MAX_GROWTH_BYTES
    finally:
        central.end()
    assert "Traceback" not in central.log.read_text()
    journal = Journal(central.state_dir, replica="central-0", commit_interval_s=0.001)
    stats = journal.stats
    await journal.close()
    assert stats.rejected_rows == expected.rows
    assert stats.rejected_batches == expected.batches
    assert (stats.accepted_batches, stats.accepted_rows, stats.duplicate_batches) == (
        expected.accepted_batches,
        expected.accepted_rows,
        expected.duplicates,
    )
    assert min(*expected.rows.values(), *expected.batches.values(), expected.duplicates) > 0
    assert set(expected.kinds) == {kind.__name__ for kind in Fuzzer("", 0, expected).kinds} | {"huge"}


async def test_hostile_messages_are_counted_by_reason(tmp_path: Path) -> None:
    await attack(tmp_path, 3000)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_hundred_thousand_hostile_messages_are_counted_by_reason(tmp_path: Path) -> None:
    await attack(tmp_path, 100_000)
