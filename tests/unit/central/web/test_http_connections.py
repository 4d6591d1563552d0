"""Slow HTTP clients: half a request, an answer that nobody reads, and more connections than there are places."""

import asyncio
import contextlib
import socket
from collections import Counter

import pytest

from central.authorisation.roles import Access
from central.config import HttpSection
from central.web.connections import RESERVE, Connections
from central.web.server import HttpApi
from tests.unit.central.web.test_http_api import Served, get
from whitepanda.common.tls import TlsFiles

HALF = b"GET /v1/hosts HTTP/1.1\r\nHost: localhost\r\nX-Half: "


@pytest.fixture
async def served(tmp_path):
    found = Served(tmp_path)
    yield found
    await found.close()


async def half_sent(port: int, count: int) -> list[socket.socket]:
    found = []
    for _ in range(count):
        stream = socket.create_connection(("127.0.0.1", port), 10)
        stream.sendall(HALF)
        found.append(stream)
        await asyncio.sleep(0)
    return found


async def test_health_and_totals_answer_beside_200_half_sent_requests(served):
    api = HttpApi(served.fleet, "127.0.0.1:0", TlsFiles(), Access(()))
    await api.start()
    streams = await half_sent(api.port, 200)
    try:
        assert await get(api, "/healthz") == (200, {"status": "serving"})
        assert (await get(api, "/metrics"))[0] == 200
        assert (await get(api, "/v1/hosts"))[0] == 200
        assert len(api._connections) <= HttpSection().max_connections_per_address + RESERVE
    finally:
        for stream in streams:
            stream.close()
        await api.stop()


async def test_half_a_request_is_ended_after_its_time_and_not_before(served):
    now, refused = [0.0], Counter()
    section = HttpSection(request_timeout_s=10.0)
    api = HttpApi(served.fleet, "127.0.0.1:0", TlsFiles(), Access(()), section=section, refused=refused)
    api._connections.clock_s = lambda: now[0]
    await api.start()
    [stream] = await half_sent(api.port, 1)
    try:
        async with asyncio.timeout(20):
            while not len(api._connections):
                await asyncio.sleep(0.01)
        now[0] = 9.9
        api._connections.sweep()
        assert (len(api._connections), refused) == (1, {})
        now[0] = 10.0
        api._connections.sweep()
        answer = await asyncio.to_thread(stream.recv, 4096)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert answer.endswith(b'{"error": "the request did not come whole in 10 s"}')
        assert refused == {"http_slow_request": 1}
    finally:
        stream.close()
        await api.stop()


class Answering:
    """A connection's protocol: awaited since a time, or None while central works on its answer."""

    is_idle = False

    def __init__(self, since_s: float | None) -> None:
        self.since_s = since_s

    def awaited_since_s(self, _now_s: float) -> float | None:
        return self.since_s


def test_only_who_is_awaited_gives_its_place_up_the_longest_first():
    refused, ended = Counter(), []
    section = HttpSection(max_connections=3, max_connections_per_address=2)
    connections = Connections(section, refused, lambda: 100.0)

    def admit(address: str, since_s: float | None):
        entry = connections.admit(address)
        if entry is not None:
            entry.protocol = Answering(since_s)
            entry.end = lambda: ended.append(since_s)
        return entry

    assert not any(admit("10.0.0.1", since).is_reserve for since in (5.0, 3.0))
    assert not admit("10.0.0.2", 1.0).is_reserve and ended == []
    assert not admit("10.0.0.1", None).is_reserve and ended == [3.0], "its own, not the other's"
    assert not admit("10.0.0.3", None).is_reserve and ended == [3.0, 1.0], "of all"
    assert not admit("10.0.0.1", None).is_reserve and ended == [3.0, 1.0, 5.0]
    reserve = [admit("10.0.0.4", None) for _ in range(RESERVE)]
    assert all(entry.is_reserve for entry in reserve) and len(connections) == 3 + RESERVE
    assert admit("10.0.0.4", None) is None and refused == {"http_connections": 4}
    connections.remove(reserve[0])
    assert admit("10.0.0.4", 2.0).is_reserve
    assert admit("10.0.0.5", None).is_reserve and ended[-1] == 2.0


async def test_who_never_reads_its_answers_is_ended(served):
    now, refused = [0.0], Counter()
    api = HttpApi(
        served.fleet, "127.0.0.1:0", TlsFiles(), Access(()), section=HttpSection(answer_timeout_s=60.0), refused=refused
    )
    api._connections.clock_s = lambda: now[0]
    await api.start()
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stream.connect(("127.0.0.1", api.port))
    stream.setblocking(False)
    request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200
    try:
        async with asyncio.timeout(30):
            while not any(e.protocol and e.protocol._unread_since_s is not None for e in api._connections._entries):
                with contextlib.suppress(BlockingIOError):
                    stream.send(request)
                await asyncio.sleep(0.01)
                api._connections.sweep()
            now[0] = 59.9
            api._connections.sweep()
            assert len(api._connections) == 1 and refused == {}
            now[0] = 60.0
            while len(api._connections):
                api._connections.sweep()
                await asyncio.sleep(0.01)
        assert refused["http_unread_answer"] >= 1
    finally:
        stream.close()
        await api.stop()


async def test_a_body_that_goes_wrong_is_answered_once_and_logs_no_traceback(served, caplog):
    api = HttpApi(served.fleet, "127.0.0.1:0", TlsFiles(), Access(()))
    await api.start()
    try:
        for length in ("Content-Length: 3", "Transfer-Encoding: chunked"):
            raw = f"GET /v1/hosts HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{length}\r\n\r\n" + "zz\r\n" * 99
            reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
            writer.write(raw.encode())
            with contextlib.suppress(ConnectionError):
                assert (await reader.read()).count(b"HTTP/1.1 ") <= 1
            writer.close()
        assert (await get(api, "/v1/hosts"))[0] == 200
    finally:
        await api.stop()
    assert not [record for record in caplog.records if record.exc_info]
