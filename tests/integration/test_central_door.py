"""What one host sends is bounded before anything is looked up, and costs the other hosts nothing."""

import asyncio
import contextlib
import dataclasses
import gc
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import psutil
import pytest

from central.ingest import service as ingest_module
from central.ingest.handshake import RefusedError
from central.ingest.large_messages import Answer
from central.ingest.peers import Peer
from central.ingest.quotas import OverQuotaError
from central.ingest.sessions import HostStream
from central.journal import writer
from central.journal.tables import HostRecord
from central.pki import describe
from central.validation.rows import Sender
from tests.support.central_process import CentralProcess
from tests.support.spoken_streams import CONNECT, unread_hellos
from tests.support.waiting import until
from whitepanda.common.protocol import CLIENT_CHANNEL_OPTIONS
from whitepanda.common.tls import channel_credentials
from whitepanda.v1 import agent_pb2

pytestmark = pytest.mark.long


MAX_GROWTH_MIB = 150  # of central and the process that reads large messages


def heartbeat(jobs: int, name: str = "job") -> agent_pb2.AgentMessage:
    return agent_pb2.AgentMessage(heartbeat=agent_pb2.Heartbeat(jobs=[f"{name}-{n}" for n in range(jobs)]))


async def test_a_batch_of_tasks_without_rows_is_refused(make) -> None:
    central = await make.central()
    peer = make.peer(central, "h1")
    await peer.hello("h1")
    await peer.batch(1, rows=0, tasks=[agent_pb2.Task(vm=f"{n:x}", job="j") for n in range(220_000)])
    ack = await peer.ack()
    assert [(r.first, r.last) for r in ack.ranges] == [(1, 1)]
    assert [(r.sequence, r.reason) for r in ack.rejected_batches] == [(1, "too_many_tasks")]
    assert len(central.registry.vm_names) == 0
    assert central.journal.stats.rejected_batches == {"too_many_tasks": 1}
    await peer.batch(2, rows=3000)  # read by the other process too
    assert (await peer.ack()).accepted_rows == 3000


async def test_a_certificate_has_one_large_message_read_at_a_time(make, monkeypatch) -> None:
    """However many streams it has. Those of others wait for one of them at most, and do not owe for that time."""
    clock_s, owed = [0.0], []
    monkeypatch.setattr(ingest_module, "time", SimpleNamespace(perf_counter=lambda: clock_s[0]))
    monkeypatch.setattr(Peer, "owe_for", lambda peer, took_s, _bytes=0: owed.append((*peer.names, took_s)))
    central = await make.central()
    large, asked, go = central.ingest._large, [], threading.Event()
    exchange = large._exchange

    def exchanged(process: subprocess.Popen[bytes], raw: bytes, sender: Sender) -> Answer:
        asked.append(sender.host)
        go.wait(20)
        return dataclasses.replace(exchange(process, raw, sender), took_s=1.0)

    large._exchange = exchanged
    jobs = [f"{'j' * 400}-{n}" for n in range(200)]
    wide = agent_pb2.Hello(host="h1", protocol_version=1, min_protocol_version=1, jobs=jobs)
    for _ in range(4):
        await make.peer(central, "h1").send(agent_pb2.AgentMessage(hello=wide))
    await until(lambda: central.ingest._open == 4 and asked)
    other = make.peer(central, "h2")
    await other.hello("h2")
    await other.batch(1, rows=3000)
    await until(lambda: central.ingest.backpressure.pending == 1)
    clock_s[0] = 100.0
    go.set()
    assert (await other.ack()).accepted_rows == 3000
    await until(lambda: owed.count(("h1", 1.0)) == 4)
    assert asked == ["h1", "h2", "h1", "h1", "h1"]
    assert [took_s for host, took_s in owed if host == "h2"] == [
        0.0,
        1.0,
        0.0,
    ]  # its Hello, and its batch here and there


async def test_an_acknowledgement_does_not_wait_for_a_large_message_to_be_read(make) -> None:
    central = await make.central(commit_interval_ms=2000)  # so that both are under way
    large, go = central.ingest._large, threading.Event()
    exchange = large._exchange

    def exchanged(process: subprocess.Popen[bytes], raw: bytes, sender: Sender) -> Answer:
        go.wait(60)
        return exchange(process, raw, sender)

    large._exchange = exchanged
    peer = make.peer(central, "h1")
    await peer.hello("h1")
    await peer.batch(1)
    await peer.batch(2, rows=3000)
    await until(lambda: central.ingest.backpressure.pending == 2)
    assert [(r.first, r.last) for r in (await peer.ack()).ranges] == [(1, 1)]
    go.set()
    assert [(r.first, r.last) for r in (await peer.ack()).ranges] == [(2, 2)]
    # Nor for one that is never acknowledged.
    go.clear()
    await peer.batch(3)
    jobs = [f"{'j' * 28}-{n}" for n in range(3000)]
    await peer.send(agent_pb2.AgentMessage(heartbeat=agent_pb2.Heartbeat(jobs=jobs)))
    await until(lambda: central.ingest.backpressure.pending == 2)
    assert [(r.first, r.last) for r in (await peer.ack()).ranges] == [(3, 3)]
    go.set()


async def test_a_lone_batch_is_acknowledged_at_once(make, monkeypatch) -> None:
    waited_for = []
    acknowledge = HostStream.acknowledge

    def noting(stream: HostStream, spool_id: str, sequence: int, **facts: Any) -> None:
        waited_for.append(facts["under_way"])
        acknowledge(stream, spool_id, sequence, **facts)

    monkeypatch.setattr(HostStream, "acknowledge", noting)
    peer = make.peer(await make.central(), "h1")
    await peer.hello("h1")
    for sequence in (1, 2):  # the second is like the first
        await peer.batch(sequence)
        await peer.ack()
    assert waited_for == [0, 0]


@pytest.mark.parametrize("rows", [2, 3000])
async def test_a_batch_like_the_last_one_is_owed_for_where_it_is_bad(make, monkeypatch, rows: int) -> None:
    owed = []
    monkeypatch.setattr(Peer, "owe_for", lambda _peer, took_s, _bytes=0: owed.append(took_s))
    central = await make.central()
    peer = make.peer(central, "h1")
    await peer.hello("h1")
    await peer.batch(1, rows)
    assert (await peer.ack()).accepted_rows == rows
    before = len(owed)
    await peer.batch(2, rows)
    assert (await peer.ack()).accepted_rows == rows
    assert len(owed) == before
    await peer.batch(3, rows, cpu_usage_cores=[-1.0] * rows)
    assert (await peer.ack()).rejected_rows[0].count == rows
    assert len(owed) == before + 1


async def test_a_message_that_could_not_be_read_is_not_said_to_be_malformed(make, monkeypatch) -> None:
    central = await make.central()
    peer = make.peer(central, "h1")
    await peer.hello("h1")

    def ended(*_arguments: object) -> None:
        raise OSError("the process that reads large messages ended with -9")

    monkeypatch.setattr(central.ingest._large, "_exchange", ended)
    await peer.batch(1, rows=3000)
    code, detail = await peer.refused()
    assert code == "UNAVAILABLE"
    assert detail.startswith("a message of ")
    assert detail.endswith("could not be read: the process that reads large messages ended with -9")
    assert central.ingest.refused_streams == {"not_read": 1}
    assert not central.journal.stats.rejected_batches


async def test_jobs_are_counted_before_they_are_looked_up(make) -> None:
    central = await make.central(max_host_jobs=100)
    for size, name in ((101, "job"), (101, "j" * 500)):  # read by the loop, and by the other process
        peer = make.peer(central, "h1")
        await peer.hello("h1")
        await peer.send(heartbeat(100, name))
        await until(lambda: len(central.registry.get("h1").jobs) == 100)
        await peer.send(heartbeat(size, name * 2))
        code, detail = await peer.refused()
        assert code == "INVALID_ARGUMENT"
        assert "101 jobs; ingest.max_host_jobs allows 100 of a host" in detail
    wide = make.peer(central, "h1")
    jobs = [f"{'j' * 300}-{n}" for n in range(400)]
    said = agent_pb2.Hello(host="h1", protocol_version=1, min_protocol_version=1, jobs=jobs)
    await wide.send(agent_pb2.AgentMessage(hello=said))
    assert (await wide.refused())[0] == "INVALID_ARGUMENT"
    held = make.peer(central, "h1")
    said = agent_pb2.Hello(host="h1", protocol_version=1, min_protocol_version=1)
    said.held.extend(agent_pb2.JobTag(job=str(n), tag=n) for n in range(101))
    await held.send(agent_pb2.AgentMessage(hello=said))
    assert (await held.refused())[0] == "INVALID_ARGUMENT"
    assert central.ingest.refused_streams == {"too_many_jobs": 4}


PANDAS = "\U0001f43c" * 200  # 800 bytes


async def test_names_of_jobs_are_bounded_in_bytes(make) -> None:
    """Wherever they are named; 64 bytes for each job that a host may have, 64 KiB at least."""
    central = await make.central(max_host_jobs=100)
    peer = make.peer(central, "h1")
    await peer.hello("h1")
    await peer.send(heartbeat(81, PANDAS))  # 65,033 bytes
    await until(lambda: len(central.registry.get("h1").jobs) == 81)
    await peer.batch(1, rows=82, tasks=[agent_pb2.Task(vm=f"vm-{n}", job=f"{PANDAS}-{n}") for n in range(82)])
    [rejected] = (await peer.ack()).rejected_batches
    assert rejected.reason == "too_many_jobs"
    assert "names of jobs have 65836 bytes" in rejected.detail
    # Each is small enough, both together are not: those of the batch are kept.
    await peer.batch(2, rows=10, tasks=[agent_pb2.Task(vm=f"vm-{n}", job=f"{PANDAS}b{n}") for n in range(10)])
    await peer.ack()
    assert central.registry.get("h1").jobs == {f"{PANDAS}b{n}" for n in range(10)}
    await peer.send(heartbeat(82, PANDAS))
    code, detail = await peer.refused()
    assert code == "INVALID_ARGUMENT"
    assert "names of jobs have 65836 bytes; ingest.max_host_jobs = 100 allows 65536" in detail
    names = [f"{PANDAS}-{n}" for n in range(82)]
    for named in (
        agent_pb2.Hello(jobs=names),
        agent_pb2.Hello(held=[agent_pb2.JobTag(job=name, tag=1) for name in names]),
    ):
        said = agent_pb2.Hello(host="h1", protocol_version=1, min_protocol_version=1)
        said.MergeFrom(named)
        wide = make.peer(central, "h1")
        await wide.send(agent_pb2.AgentMessage(hello=said))
        assert (await wide.refused())[0] == "INVALID_ARGUMENT"
    assert central.ingest.refused_streams == {"too_many_jobs": 3}


async def test_changed_jobs_and_streams_in_quick_succession_are_written_once(make, monkeypatch) -> None:
    monkeypatch.setattr(writer, "_HOST_INTERVAL_S", 3600.0)
    central = await make.central()
    noted = []
    put = central.journal._queue.put
    central.journal._queue = SimpleNamespace(
        put=lambda item: (noted.append(item) if isinstance(item, HostRecord) else None, put(item)),
        get=central.journal._queue.get,
    )
    for turn in range(3):
        peer = make.peer(central, "h1")
        await peer.hello("h1")
        for name in "ab":
            await peer.send(heartbeat(3, f"{name}{turn}"))
            wanted = {f"{name}{turn}-{n}" for n in range(3)}
            await until(lambda wanted=wanted: central.registry.get("h1").jobs == wanted)
            assert set(central.journal.hosts["h1"].jobs) == wanted
    assert [record.host for record in noted] == ["h1"]


async def test_jobs_of_batches_do_not_add_up_without_end(make) -> None:
    central = await make.central(max_host_jobs=100)
    peer = make.peer(central, "h1")
    await peer.hello("h1")
    for sequence in (1, 2, 3):
        tasks = [agent_pb2.Task(vm=f"vm-{n}", job=f"job-{sequence}-{n}") for n in range(60)]
        await peer.batch(sequence, rows=60, tasks=tasks)
        await peer.ack()
    assert central.registry.get("h1").jobs == {f"job-3-{n}" for n in range(60)}


async def test_batches_without_a_usable_spool_are_pending_until_they_are_counted(make) -> None:
    central = await make.central(commit_interval_ms=2000)
    peer = make.peer(central, "h1")
    await peer.hello("h1")
    for sequence in range(1, 101):
        await peer.batch(sequence, spool_id="\x1b" * sequence)
    await until(lambda: central.ingest.backpressure.pending == 64)
    await asyncio.sleep(0.1)
    assert central.ingest.backpressure.pending == 64
    refused = 0
    while refused < 100:
        ack = await peer.ack()
        refused += len(ack.rejected_batches)
        assert len(ack.spool_id.encode()) <= 64
    assert central.journal.stats.rejected_batches == {"bad_spool": 100}


async def test_a_host_that_does_not_read_is_dropped(make) -> None:
    central = await make.central(unread_s=60.0)
    peer, other = make.peer(central, "h1"), make.peer(central, "h2")
    await peer.hello("h1")
    await other.hello("h2")
    stream = central.registry.get("h1")

    async def flood() -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for sequence in range(100_000):
                await peer.batch(sequence + 1, spool_id="\x1b" * 20)

    sending = asyncio.create_task(flood())
    await until(lambda: stream.owed >= 1024)
    assert stream.owed < 1024 + 64
    ingest, began_s = central.ingest, stream.writing_since_s
    ingest._clock_s = lambda: began_s + 60.0
    ingest.drop_unread()
    await asyncio.sleep(0.1)
    assert central.registry.get("h1") is stream
    ingest._clock_s = lambda: began_s + 60.1
    ingest.drop_unread()
    await until(lambda: central.registry.get("h1") is None)
    assert ingest.refused_streams == {"unread": 1}
    ingest._clock_s = time.monotonic
    await other.batch(1)
    assert (await other.ack()).accepted_rows == 2
    again = make.peer(central, "h1")
    await again.hello("h1")
    await again.batch(1)
    assert (await again.ack()).accepted_rows == 2
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await peer.call.read() is not grpc.aio.EOF:  # it reads at last what was on its way, and the end
            continue
    code, _ = await peer.refused()  # INTERNAL where its write failed before the status came
    assert code in ("RESOURCE_EXHAUSTED", "INTERNAL")
    await until(lambda: ingest._open == 2)
    await sending


async def test_a_refused_stream_leaves_nothing_to_the_collector_of_cycles(make) -> None:
    """Which comes by once an hour, and each would hold its last message until then."""
    central = await make.central()
    raws = {
        "malformed": b"\xff" * 10,
        "second_hello": agent_pb2.AgentMessage(hello=agent_pb2.Hello(host="h1")).SerializeToString(),
        "no_hello": agent_pb2.AgentMessage().SerializeToString(),
        "over_quota_rows": agent_pb2.AgentMessage(batch=agent_pb2.CpiBatch(spool_id="s")).SerializeToString(),
    }
    gc.collect()
    gc.disable()
    try:
        for reason, raw in raws.items():
            peer = make.peer(central, "h1")
            if reason != "no_hello":
                await peer.hello("h1")
            if reason == "over_quota_rows":
                central.ingest.quotas._rows = 0.0
            await peer.send(raw)
            await peer.refused()
            await until(lambda: central.ingest._open == 0)
            kept = (RefusedError, OverQuotaError, agent_pb2.AgentMessage)
            await until(lambda kept=kept: not any(isinstance(each, kept) for each in gc.get_objects()))
            assert central.ingest.refused_streams[reason] == 1
    finally:
        gc.enable()


async def test_a_certificate_has_few_streams(make) -> None:
    central = await make.central()
    peer = make.peer(central, "h1")
    await peer.hello("h1")
    calls = [peer.channel.stream_stream(CONNECT)() for _ in range(8)]
    await asyncio.gather(*(call.wait_for_connection() for call in calls))
    await until(lambda: central.ingest._open == 9)
    late = peer.channel.stream_stream(CONNECT)()
    assert await late.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await late.details() == "a certificate of 1 names may have 9 streams open"
    for call in calls:
        call.cancel()
    await until(lambda: central.ingest._open == 1)
    await make.peer(central, "h1").hello("h1")
    await make.peer(central, "h2").hello("h2")


async def test_a_revoked_key_takes_no_place_of_its_successor(make, pki, renewed) -> None:
    central = await make.central()
    central.revoked.serials = frozenset({describe(pki["h1"].certificate).serial})
    thief = make.peer(central, "h1").channel
    calls = [thief.stream_stream(CONNECT)() for _ in range(90)]
    peers = central.ingest._peers._peers
    await until(lambda: any(peer.open > 20 for peer in peers.values()))
    await make.peer(central, renewed("h1")).hello("h1")
    assert [peer.open for peer in peers.values() if not peer.revoked] == [1]
    assert {await call.code() for call in calls} == {grpc.StatusCode.UNAUTHENTICATED}


async def test_streams_from_before_a_revocation_take_no_place_either(make, pki, renewed) -> None:
    central = await make.central()
    connection = await unread_hellos(central, pki["h1"], "h1", 9)
    await until(lambda: central.ingest._open == 9)
    central.revoked.serials = frozenset({describe(pki["h1"].certificate).serial})
    await make.peer(central, renewed("h1")).hello("h1")
    connection.transport.abort()


async def test_streams_that_read_nothing_end(make, pki, monkeypatch) -> None:
    monkeypatch.setattr(ingest_module, "_DRAIN_S", 0.1)
    central = await make.central(unread_s=1.0)
    connection = await unread_hellos(central, pki["h1"], "h1", 9)
    await until(lambda: central.ingest.refused_streams["unread"] == 9)
    await until(lambda: central.ingest._open == 0 and not central.ingest._peers._peers)
    await make.peer(central, "h1").hello("h1")
    connection.transport.abort()


async def test_a_stream_that_is_refused_is_owed_for_too(make, monkeypatch) -> None:
    owed = []
    monkeypatch.setattr(Peer, "owe_for_hello", lambda peer: owed.append(peer.open))
    central = await make.central()
    channel = make.peer(central, "h1").channel
    calls = [channel.stream_stream(CONNECT)() for _ in range(8)]
    await asyncio.gather(*(call.wait_for_connection() for call in calls))
    await until(lambda: central.ingest._open == 9)
    for _ in range(2):
        late = channel.stream_stream(CONNECT)()
        assert await late.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert owed == [*range(1, 10), 10, 10]
    assert central.ingest._open == 9


async def test_few_hellos_of_a_certificate_are_read_at_a_time(make, monkeypatch) -> None:
    """What has come of one is held until all of it has, or its time is over."""
    central = await make.central()
    read_hello, reading, most = central.ingest._handshake.read_hello, [], []

    async def counted(context: object, peer: Peer) -> agent_pb2.Hello:
        reading.append(peer)
        most.append(len(reading))
        try:
            return await read_hello(context, peer)
        finally:
            reading.remove(peer)

    monkeypatch.setattr(central.ingest._handshake, "read_hello", counted)
    silent = [make.peer(central, "h1") for _ in range(8)]
    await asyncio.gather(*(peer.call.wait_for_connection() for peer in silent))
    await until(lambda: central.ingest._open == 8 and len(reading) == 4)
    await make.peer(central, "h2").hello("h2")
    for peer in silent:
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):  # its time was over
            await peer.send(b"")
        await peer.refused()
    assert max(most) == 5  # four of h1, and that of h2


def memory_mib(server: psutil.Process) -> float:
    return sum(each.memory_info().rss for each in (server, *server.children())) / 2**20


async def test_what_is_not_read_does_not_grow_without_end(tmp_path: Path) -> None:
    central = CentralProcess(tmp_path)
    central.start()
    try:
        server = psutil.Process(central.process.pid)
        credentials = channel_credentials(central.client("bad"))
        async with grpc.aio.secure_channel(central.address, credentials, options=CLIENT_CHANNEL_OPTIONS) as channel:
            call = channel.stream_stream(CONNECT)()
            hello = agent_pb2.Hello(host="bad", protocol_version=1, min_protocol_version=1)
            await call.write(agent_pb2.AgentMessage(hello=hello).SerializeToString())
            await call.read()
            before = 0.0
            for number in range(700):
                batch = agent_pb2.CpiBatch(spool_id=f"{number:04d}" + "s" * 10**6, sequence=1)
                await call.write(agent_pb2.AgentMessage(batch=batch).SerializeToString())
                before = before or (memory_mib(server) if number == 5 else 0.0)
            grown = memory_mib(server) - before
        print(f"grown by {grown:.0f} MiB")
        assert grown < MAX_GROWTH_MIB
        assert central.stop() == 0
        assert "Traceback" not in central.log.read_text()
    finally:
        central.end()
