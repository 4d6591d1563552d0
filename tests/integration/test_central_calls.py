"""Calls to the fleet API, health and reflection, and connections: one certificate's cost the others nothing."""

import asyncio
import contextlib
import gc
import logging
import resource
import socket
import ssl
from pathlib import Path
from types import SimpleNamespace

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from bench.hostile import study
from bench.hostile.host import FLOODS, GREETING
from central.config import CentralConfig, CentralSection, HttpSection
from central.pki import describe, issue
from central.web import grpc_services
from tests.support import firewall
from tests.support.central_process import CentralProcess
from tests.support.honest_host import HonestHost
from tests.support.spoken_streams import CONNECT
from tests.support.waiting import until
from whitepanda.common.protocol import CLIENT_CHANNEL_OPTIONS
from whitepanda.common.tls import channel_credentials
from whitepanda.v1 import agent_pb2, fleet_pb2, fleet_pb2_grpc

COMPARE = "/whitepanda.v1.Fleet/CompareSides"
STATUS = "/whitepanda.v1.Fleet/GetFleetStatus"
CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


async def ended(call: grpc.aio.Call) -> tuple[str, str]:
    async with asyncio.timeout(20):
        return (await call.code()).name, await call.details()


@pytest.mark.parametrize("method", [COMPARE, WATCH, REFLECTION])
async def test_who_may_not_ask_is_refused_before_anything_is_read(make, method: str) -> None:
    central = await make.central()
    channel = make.peer(central, "h1").channel
    silent = channel.stream_stream(method)()
    code, detail = await ended(silent)
    assert code == "PERMISSION_DENIED"
    assert "none of this certificate's names (h1) is in central.operators" in detail
    large = channel.unary_unary(method)(b"\xff" * (3 << 20))  # no request at all
    assert (await ended(large))[0] == "PERMISSION_DENIED"
    await until(lambda: not any(peer.open for peer in central.door.peers._peers.values()))


async def test_a_request_is_small_and_comes_in_time(make, monkeypatch) -> None:
    central = await make.central()
    channel = make.peer(central, "operator").channel
    for method, allowed in ((COMPARE, 512 << 10), (REFLECTION, 4096), (WATCH, 4096)):
        call = channel.stream_stream(method)()
        await call.write(b"\x0a\x00" * (allowed // 2 + 1))
        assert await ended(call) == ("RESOURCE_EXHAUSTED", f"a request of {allowed + 2} bytes; {allowed} are allowed")
    assert (await ended(channel.unary_unary(STATUS)(b"\xff")))[0] == "INVALID_ARGUMENT"
    empty = channel.stream_stream(STATUS)()
    await empty.done_writing()
    assert (await ended(empty))[0] == "INVALID_ARGUMENT"
    monkeypatch.setattr(grpc_services, "_READ_S", 0.1)
    assert await ended(channel.stream_stream(STATUS)()) == ("DEADLINE_EXCEEDED", "no request within 0.1 s")
    assert central.registry.refused == {"large_request": 3, "slow_request": 1}
    answer = await fleet_pb2_grpc.FleetStub(channel).GetFleetStatus(fleet_pb2.GetFleetStatusRequest())
    assert answer.protocol_version == 1


async def test_large_health_checks_of_a_host_are_few_and_it_waits_for_them(make) -> None:
    central = await make.central()
    channel = make.peer(central, "h1").channel
    silent = [channel.stream_stream(CHECK)() for _ in range(4)]
    await until(lambda: held(central) == 4)
    assert await ended(channel.stream_stream(CHECK)()) == (
        "RESOURCE_EXHAUSTED",
        "4 health checks of this certificate are open",
    )
    [peer] = central.door.peers._peers.values()
    now_s = peer.clock_s() + 10.0  # nothing is owed any more
    peer.clock_s = lambda: now_s
    await silent[0].write(bytes(6 << 20))
    assert await ended(silent[0]) == ("RESOURCE_EXHAUSTED", f"a request of {6 << 20} bytes; 4096 are allowed")
    assert peer.until_s == now_s + 1.5
    assert central.registry.refused == {"large_request": 1, "too_many_calls": 1}
    for call in silent:
        call.cancel()


def held(central) -> int:
    """How many calls count by their kind."""
    return sum(sum(peer.calls.values()) for peer in central.door.peers._peers.values())


async def test_a_certificate_has_few_calls_at_a_time(make, monkeypatch) -> None:
    monkeypatch.setattr(grpc_services, "_MOST_CALLS", 6)
    central = await make.central()
    channel = make.peer(central, "operator").channel
    streams = [channel.stream_stream(WATCH)() for _ in range(4)]
    await until(lambda: held(central) == 4)
    late = channel.stream_stream(REFLECTION)()
    assert await ended(late) == ("RESOURCE_EXHAUSTED", "4 streams of this certificate are open")
    calls = [channel.stream_stream(STATUS)() for _ in range(2)]
    await until(lambda: next(iter(central.door.peers._peers.values())).open == 6)
    assert await ended(channel.stream_stream(STATUS)()) == (
        "RESOURCE_EXHAUSTED",
        "6 calls of this certificate are open",
    )
    other = make.peer(central, "h1").channel
    assert (await health_pb2_grpc.HealthStub(other).Check(health_pb2.HealthCheckRequest())).status == 1
    for call in (*streams, *calls):
        call.cancel()
    peers = central.door.peers._peers
    await until(lambda: not any(peer.open for peer in peers.values()) and not held(central))
    assert central.registry.refused == {"too_many_calls": 2}


async def test_a_revoked_certificate_reaches_nothing(make, pki, renewed) -> None:
    central = await make.central()
    peer = make.peer(central, "operator")
    check = health_pb2_grpc.HealthStub(peer.channel).Check
    await check(health_pb2.HealthCheckRequest())

    central.revoked.serials = frozenset({describe(pki["operator"].certificate).serial})
    for method in ("/grpc.health.v1.Health/Check", COMPARE, WATCH, REFLECTION):
        assert (await ended(peer.channel.stream_stream(method)()))[0] == "UNAUTHENTICATED"
    calls = [peer.channel.stream_stream(STATUS)() for _ in range(90)]
    peers = central.door.peers._peers
    await until(lambda: any(peer.open > 20 for peer in peers.values()))
    again = make.peer(central, renewed("operator")).channel
    status = await fleet_pb2_grpc.FleetStub(again).GetFleetStatus(fleet_pb2.GetFleetStatusRequest())
    assert status.central_version
    assert any(peer.revoked and peer.open for peer in peers.values()), "others wait, it does not"
    for call in calls:
        call.cancel()


async def test_calls_from_before_a_revocation_take_no_place_of_the_successor(make, pki, renewed) -> None:
    central = await make.central()
    thief = make.peer(central, "operator").channel
    watches = [thief.stream_stream(WATCH)() for _ in range(4)]
    await until(lambda: held(central) == 4)
    central.revoked.serials = frozenset({describe(pki["operator"].certificate).serial})
    again = make.peer(central, renewed("operator")).channel
    watch = again.stream_stream(WATCH)()
    await watch.write(health_pb2.HealthCheckRequest().SerializeToString())
    assert health_pb2.HealthCheckResponse.FromString(await watch.read()).status == 1
    for call in (*watches, watch):
        call.cancel()


async def test_a_watch_that_reads_nothing_ends(monkeypatch) -> None:
    """Else it holds up all others of the same service, which gRPC's servicer writes to in turn."""
    monkeypatch.setattr(grpc_services, "_IDLE_S", 0.01)
    unread = SimpleNamespace(write=lambda _raw: asyncio.Event().wait())
    with pytest.raises(asyncio.CancelledError):
        await grpc_services._write(unread, health_pb2.HealthCheckResponse())


async def test_a_reflection_stream_that_breaks_off_is_no_error(make, caplog) -> None:
    central = await make.central()
    channel = make.peer(central, "operator").channel
    call = channel.stream_stream(REFLECTION)()
    asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol="whitepanda.v1.Fleet")

    async def flood() -> None:
        while True:
            await call.write(asked.SerializeToString())

    with caplog.at_level(logging.ERROR):
        sending = asyncio.create_task(flood())
        await asyncio.wait((sending,), timeout=0.5)
        sending.cancel()
        await asyncio.wait((sending,))
        await channel.close()
        await until(lambda: not central.door.peers._peers)
    assert caplog.records == []


async def test_a_refused_request_is_not_kept_until_cycles_are_collected(make) -> None:
    central = await make.central()
    channel = make.peer(central, "operator").channel
    server = psutil.Process()
    large = b"\x0a\x00" * (7 << 19)
    gc.collect()
    gc.disable()
    try:
        before = server.memory_info().rss
        for _ in range(30):
            assert (await ended(channel.unary_unary(COMPARE)(large)))[0] == "RESOURCE_EXHAUSTED"
        assert (server.memory_info().rss - before) >> 20 < 100  # of 210 MiB
    finally:
        gc.enable()


def test_connections_leave_descriptors(monkeypatch) -> None:
    def most(allowed: int, listen: str = "127.0.0.1:0", http: int = 256) -> int:
        monkeypatch.setattr(resource, "getrlimit", lambda _which: (allowed, allowed))
        config = CentralConfig(central=CentralSection(listen=listen), http=HttpSection(max_connections=http))
        return dict(grpc_services.channel_options(config))["grpc.max_allowed_incoming_connections"]

    assert most(resource.RLIM_INFINITY) == most(65536) == 13_024  # max_streams and 1,024
    assert most(2048) == 2048 - 512 - 256
    assert most(1024) == 1024 - 256 - 256
    assert most(1024, http=100_000) == 256


async def test_a_connection_has_few_streams(make, monkeypatch) -> None:
    monkeypatch.setattr(grpc_services, "_CONNECTION_STREAMS", 3)
    central = await make.central()
    channel = make.peer(central, "h1").channel
    calls = [channel.stream_stream(CONNECT)() for _ in range(5)]  # beside the peer's own
    await until(lambda: central.ingest._open == 3)
    await asyncio.sleep(0.2)
    assert central.ingest._open == 3
    await make.peer(central, "h2").hello("h2")
    for call in calls:
        call.cancel()


async def test_a_flood_of_pings_does_not_end_its_connection(pki, make) -> None:
    """Central's gRPC ends connections in a time that grows with the square of the pings that are still to be read."""
    central = await make.central()
    context = ssl.create_default_context(cafile=pki["h1"].ca)
    context.load_cert_chain(pki["h1"].certificate, pki["h1"].key)
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection("localhost", central.port, ssl=context)
    ping, pings, answered = FLOODS["pings"], 5000, b""
    writer.write(GREETING + ping * pings)
    async with asyncio.timeout(60):
        while answered.count(ping[:4] + b"\1" + ping[5:]) < pings:
            answered += await reader.readexactly(17)
    writer.close()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 20, (firewall.HOSTILE_ADDRESS, 0))


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(not firewall.is_there(), reason="no iptables, or no root")
@pytest.mark.parametrize("load", sorted(FLOODS))
def test_a_flood_of_frames_from_a_bounded_address(tmp_path: Path, load: str) -> None:
    """How long acknowledgements take beside it, the study measures: a minute without the rules."""
    central = CentralProcess(tmp_path)
    issue(central.pki, study.HOST)
    with contextlib.ExitStack() as stack:
        stack.callback(central.end)
        central.start()
        honest = stack.enter_context(contextlib.closing(HonestHost(central, 5)))
        dropped = stack.enter_context(firewall.bounded(central.port))
        held = [stack.enter_context(contextlib.closing(connected(central.port))) for _ in range(64)]
        with pytest.raises(ConnectionError):
            connected(central.port)
        for each in held:
            each.setblocking(False)
            each.send(b"\x16")
        for each in held:
            with pytest.raises(BlockingIOError):  # it is open still
                each.recv(1)
            each.close()
        stack.enter_context(study.hostile(central, load))
        while not dropped():
            honest.latencies_ms(0.5, 0.1)
        honest.latencies_ms(2.0, 0.1)


async def test_connections_that_are_not_used_end(make, monkeypatch) -> None:
    monkeypatch.setattr(grpc_services, "_HANDSHAKE_MS", 1000)
    monkeypatch.setattr(grpc_services, "_IDLE_CONNECTION_MS", 500)
    central = await make.central()
    peer = make.peer(central, "h1")
    await peer.hello("h1")
    idle = make.peer(central, "h2")
    idle.call.cancel()
    await health_pb2_grpc.HealthStub(idle.channel).Check(health_pb2.HealthCheckRequest())
    await until(lambda: idle.channel.get_state() == grpc.ChannelConnectivity.IDLE)
    reader, writer = await asyncio.open_connection("localhost", central.port)
    async with asyncio.timeout(20):
        while await reader.read(1000):  # the server's settings, and then its end
            continue
    writer.close()
    await peer.batch(1)
    assert (await peer.ack()).accepted_rows == 2


@pytest.mark.long
async def test_central_has_descriptors_left_however_many_connect(tmp_path: Path) -> None:
    central = CentralProcess(tmp_path)
    central.start(before=("prlimit", "--nofile=512:512"))
    sockets = []
    try:
        credentials = channel_credentials(central.client("h1"))
        async with grpc.aio.secure_channel(central.address, credentials, options=CLIENT_CHANNEL_OPTIONS) as channel:
            call = channel.stream_stream(CONNECT)()
            hello = agent_pb2.Hello(host="h1", protocol_version=1, min_protocol_version=1)
            await call.write(agent_pb2.AgentMessage(hello=hello).SerializeToString())
            await call.read()
            server = psutil.Process(central.process.pid)
            before = server.num_fds()
            for _ in range(600):
                sockets.append(socket.socket())
                sockets[-1].setblocking(False)
                sockets[-1].connect_ex(("127.0.0.1", central.port))
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(20):
                with contextlib.suppress(ConnectionError):
                    assert await loop.sock_recv(sockets[-1], 1) == b""  # turned away
            assert server.num_fds() <= before + 128
            batch = agent_pb2.CpiBatch(spool_id="s", sequence=1)
            await call.write(agent_pb2.AgentMessage(batch=batch).SerializeToString())
            assert agent_pb2.CentralMessage.FromString(await call.read()).WhichOneof("body") == "ack"
        assert central.stop() == 0
    finally:
        for each in sockets:
            each.close()
        central.end()
