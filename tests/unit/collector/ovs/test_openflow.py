"""The OpenFlow client against a bridge made of bytes: every version, and everything that can go wrong."""

import contextlib
import os
import socket
import struct
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.base import Reason, SourceError
from collector.ovs.openflow import BridgeClient, PortStats

HELLO, ERROR, ECHO_REQUEST, ECHO_REPLY = 0, 1, 2, 3
STATS, DESC = 4, 13
NONE = 2**64 - 1
COUNTERS = (11, 12, 1100, 1200, 1, 2)  # receive and transmit: packets, bytes, drops
AGE = (5, 250)


def message(version, kind, xid, body=b""):
    return struct.pack("!BBHI", version, kind, 8 + len(body), xid) + body


def reply(version, xid, kind, body, flags=0):
    if version == 1:
        return message(1, 17, xid, struct.pack("!HH", kind, flags) + body)
    return message(version, 19, xid, struct.pack("!HH4x", kind, flags) + body)


def stats_entry(version, port, counters=COUNTERS):
    rest = (91, 92, 93, 94, 95, 96)
    if version == 1:
        return struct.pack("!H6x12Q", port, *counters, *rest)
    if version < 4:
        return struct.pack("!I4x12Q", port, *counters, *rest)
    if version == 4:
        return struct.pack("!I4x12QII", port, *counters, *rest, *AGE)
    properties = struct.pack("!HH4x4Q", 0, 40, 1, 2, 3, 4)  # Ethernet
    return struct.pack("!H2xIII8Q", 80 + len(properties), port, *AGE, *counters, 91, 92) + properties


def desc_entry(version, port, name):
    mac = b"\x02\0\0\0\0\1"
    if version == 1:
        return struct.pack("!H6s16s6I", port, mac, name, *range(6))
    if version < 5:
        return struct.pack("!I4x6s2x16s8I", port, mac, name, *range(8))
    properties = struct.pack("!HH4x6I", 0, 32, *range(6))
    return struct.pack("!IH2x6s2x16sII", port, 40 + len(properties), mac, name, 0, 0) + properties


def hello(version=6, versions=None):
    body = b"" if versions is None else struct.pack("!HHI", 1, 8, sum(1 << v for v in versions))
    return message(version, HELLO, 7, body)


class FakeBridge:
    """Accepts connections and answers each request by `answer(version, xid, kind)`; keeps what it received."""

    def __init__(self, path, answer, greeting=None, version=1, chunk=None):
        self.path, self.answer, self.version, self.chunk = str(path), answer, version, chunk
        self.greeting = hello(6, {version}) if greeting is None else greeting
        self.received = []
        self._connections = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        self._server.listen(5)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with contextlib.suppress(OSError):
            self.send(connection, self.greeting)
            while head := connection.recv(8, socket.MSG_WAITALL):
                version, kind, length, xid = struct.unpack("!BBHI", head)
                body = connection.recv(length - 8, socket.MSG_WAITALL) if length > 8 else b""
                self.received.append((version, kind, xid, body))
                if kind in {16, 18}:
                    self.send(connection, self.answer(self.version, xid, struct.unpack_from("!H", body)[0]))

    def send(self, connection, data):
        if self.chunk is None:
            connection.sendall(data)
            return
        for start in range(0, len(data), self.chunk):
            connection.sendall(data[start : start + self.chunk])
            time.sleep(0.0002)

    def drop(self):
        """End every connection, as a restart does."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._connections.clear()

    def close(self):
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.close()
        self.drop()
        os.unlink(self.path)  # noqa: PTH108 - a str


@pytest.fixture
def bridge(tmp_path):
    made = []

    def make(answer, **options):
        made.append(FakeBridge(tmp_path / "br0.mgmt", answer, **options))
        return made[-1]

    yield make
    for one in made:
        with contextlib.suppress(OSError):
            one.close()


@pytest.fixture
def client(tmp_path):
    client = BridgeClient(str(tmp_path / "br0.mgmt"))
    yield client
    client.close()


def soon(seconds=5.0):
    return time.monotonic() + seconds


def two_ports(version, xid, kind):
    local = 0xFFFE if version == 1 else 0xFFFFFFFE
    if kind == STATS:
        body = b"".join(stats_entry(version, port) for port in (1, 7, local))
    else:
        names = {1: b"tap1", 7: b"vhost-user-long", local: b"br0"}
        body = b"".join(desc_entry(version, port, name) for port, name in names.items())
    return reply(version, xid, kind, body)


@pytest.mark.parametrize("version", range(1, 7))
def test_every_version_is_read_and_the_bridge_itself_is_no_port(bridge, client, version):
    fake = bridge(two_ports, version=version)
    age = 5_000_000_250 if version >= 4 else None
    assert client.stats(soon()) == dict.fromkeys((1, 7), PortStats(*COUNTERS, age))
    assert client.names(soon()) == {1: "tap1", 7: "vhost-user-long"}
    assert client.hello(soon()) == f"1.{version - 1}"
    assert client.connections == 1
    # All ports are asked for, as the version's specification has it; descriptions have a body in 1.5 only.
    (_, _, _, first), (_, _, _, second) = fake.received[1:]
    every = {1: "0004 0000 ffff 000000000000"}.get(version, "0004 0000 00000000 ffffffff 00000000")
    descriptions = {1: "000d 0000", 6: "000d 0000 00000000 ffffffff 00000000"}.get(version, "000d 0000 00000000")
    assert (first, second) == (bytes.fromhex(every), bytes.fromhex(descriptions))
    assert {message[0] for message in fake.received[1:]} == {version}


@pytest.mark.parametrize(
    ("greeting", "agreed"),
    [
        (hello(1), 1),  # without a bitmap: all up to the header's
        (hello(5), 5),
        (hello(9), 6),  # newer than we know
        (hello(6, {1, 4}), 4),
        (hello(6, {1, 31}), 1),
        (message(6, HELLO, 1, struct.pack("!HHIHHI", 9, 8, 0, 1, 8, 1 << 5)), 5),  # an element that we do not know
        (message(6, HELLO, 1, b"\0\0\0\0\1"), 6),  # a broken element
    ],
)
def test_the_highest_common_version_is_agreed_upon(bridge, client, greeting, agreed):
    fake = bridge(two_ports, greeting=greeting, version=agreed)
    assert client.stats(soon()).keys() == {1, 7}
    # Our own hello offers them all.
    assert fake.received[0] == (6, HELLO, 1, struct.pack("!HHI", 1, 8, 0b1111110))


def test_a_bridge_with_another_protocol_alone_is_named_with_the_remedy(bridge, client):
    bridge(two_ports, greeting=hello(9, {8}))
    with pytest.raises(SourceError, match=r"br0\.mgmt: not OpenFlow: it does not speak OpenFlow 1\.0 to 1\.5"):
        client.stats(soon())


def test_a_refused_hello_says_what_the_bridge_said(bridge, client):
    text = struct.pack("!HH", 0, 0) + b"We support versions 0x09\0"
    bridge(two_ports, greeting=message(1, ERROR, 1, text))
    with pytest.raises(SourceError, match=r"no common version of OpenFlow: We support versions 0x09; see the bridge"):
        client.hello(soon())


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_replies_in_parts_and_pieces_are_put_together(bridge, client, chunk):
    def answer(version, xid, kind):
        first, second = (b"".join(stats_entry(version, p) for p in ports) for ports in ((1, 2), (3,)))
        return reply(version, xid, kind, first, flags=1) + reply(version, xid, kind, second)

    bridge(answer, version=5, chunk=chunk)
    assert client.stats(soon()).keys() == {1, 2, 3}


def test_echoes_are_answered_and_what_was_not_asked_for_is_passed_over(bridge, client):
    def answer(version, xid, kind):
        noise = message(version, 12, 0, bytes(56)) + reply(version, xid + 1, kind, stats_entry(version, 9))
        return message(version, ECHO_REQUEST, 99, b"are you there") + noise + two_ports(version, xid, kind)

    fake = bridge(answer)
    assert client.stats(soon()).keys() == {1, 7}
    assert client.stats(soon()).keys() == {1, 7}  # its request comes after our echo reply
    assert fake.received[2] == (1, ECHO_REPLY, 99, b"are you there")


def test_a_counter_that_a_port_does_not_have_is_none(bridge, client):
    bridge(lambda v, x, k: reply(v, x, k, stats_entry(v, 3, (1, 2, 3, 4, NONE, NONE))), version=5)
    assert client.stats(soon()) == {3: PortStats(1, 2, 3, 4, None, None, 5_000_000_250)}


def test_a_restarted_bridge_is_connected_to_again_within_the_reading(bridge, client):
    fake = bridge(two_ports)
    client.stats(soon())
    fake.drop()
    assert client.stats(soon()).keys() == {1, 7}
    assert client.connections == 2
    fake.close()
    with pytest.raises(SourceError, match=r"br0\.mgmt: No such file or directory; is ovs-vswitchd running\?"):
        client.stats(soon())
    bridge(two_ports)
    assert client.stats(soon()).keys() == {1, 7}
    assert client.connections == 3


def test_a_bridge_that_hangs_costs_the_deadline_and_is_asked_again(bridge, client):
    silent = threading.Event()
    bridge(lambda v, x, k: b"" if silent.is_set() else two_ports(v, x, k))
    client.stats(soon())
    silent.set()
    with pytest.raises(SourceError, match=r"no answer in time; is ovs-vswitchd hung or stopped\?") as caught:
        client.stats(soon(0.1))
    assert caught.value.reason is Reason.STUCK
    with pytest.raises(SourceError):  # a deadline that has passed asks nothing
        client.stats(soon(-1))
    silent.clear()
    assert client.stats(soon()).keys() == {1, 7}  # on another connection: no late reply is taken for the new one
    assert client.connections == 2


def test_no_listener_is_distinguished_from_no_permission(tmp_path, client, monkeypatch):
    path = tmp_path / "br0.mgmt"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(SourceError, match=r"Connection refused; is ovs-vswitchd running\?"):
        client.stats(soon())

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(SourceError, match=r"permission denied to user \d+; run the agent as root") as caught:
        client.stats(soon())
    assert caught.value.reason is Reason.NO_PERMISSION


def test_a_full_queue_of_a_stopped_daemon_is_stuck(tmp_path, client):
    with socket.socket(socket.AF_UNIX) as server, contextlib.ExitStack() as waiting:
        server.bind(str(tmp_path / "br0.mgmt"))
        server.listen(0)
        for _ in range(2):
            other = waiting.enter_context(socket.socket(socket.AF_UNIX))
            other.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                other.connect(str(tmp_path / "br0.mgmt"))
        with pytest.raises(SourceError) as caught:
            client.stats(soon(0.1))
    assert caught.value.reason is Reason.STUCK


def wrong(body, kind=None):
    return lambda version, xid, asked: reply(version, xid, asked if kind is None else kind, body)


@pytest.mark.parametrize(
    ("version", "answer", "says"),
    [
        (1, wrong(b"\0" * 103), "port statistics of a wrong length"),
        (4, wrong(b"\0" * 111), "port statistics of a wrong length"),
        (5, wrong(struct.pack("!H2xIII8Q", 0, *range(11))), "an entry of 0 bytes"),
        (6, wrong(b"\0" * 79), "port statistics of a wrong length"),
        (1, wrong(b"", kind=13), "a reply of kind 13 to a request of kind 4"),
        (4, lambda v, x, k: message(v, 19, x, b"\0\4"), "a reply of version 4 with 2 bytes"),
        (4, lambda v, x, k: reply(1, x, k, b"").replace(b"\1\x11", b"\1\x13", 1), "a reply of version 1"),
        (1, lambda v, x, k: b"HTTP/1.1 400 Bad Request\r\n\r\n", None),
        (1, lambda v, x, k: b"\0" * 64, "a message that begins with 00 00 00 00 00 00 00 00"),
        (1, lambda v, x, k: message(v, ERROR, x, struct.pack("!HH", 1, 2)), "OpenFlow error 1, code 2"),
        (1, lambda v, x, k: message(v, ERROR, x, b""), "OpenFlow error -1, code -1"),
    ],
)
def test_what_is_not_openflow_is_one_clear_line(bridge, client, version, answer, says):
    bridge(answer, version=version)
    with pytest.raises(SourceError, match=says and says.replace("(", r"\(")) as caught:
        client.stats(soon(0.3))
    assert str(caught.value).startswith(client._path)
    assert "\n" not in str(caught.value)


def test_descriptions_of_a_wrong_length_are_one_clear_line(bridge, client):
    bridge(wrong(b"\0" * 39), version=6)
    with pytest.raises(SourceError, match="port descriptions of a wrong length"):
        client.names(soon())
    bridge_size_zero = struct.pack("!IH10x16s8x", 1, 0, b"a")
    with pytest.raises(SourceError, match="a wrong length"):
        _parse_garbage(client, bridge_size_zero)


def _parse_garbage(client, body):
    client._connect = lambda *_: None
    client._exchange = lambda *_: [body]
    client._version = 6
    client.names(soon())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=4), st.integers(1, 6))
def test_no_bytes_whatever_raise_anything_but_a_clear_error(chunks, version):
    ours, theirs = socket.socketpair()
    client = BridgeClient("pair")
    client._socket, client._version = ours, version
    with theirs:
        for chunk in chunks:
            theirs.sendall(chunk)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(SourceError):
            client.stats(soon(0.2))
    client.close()


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400), st.integers(1, 6), st.sampled_from([STATS, DESC]))
def test_no_reply_whatever_raises_anything_but_a_clear_error(body, version, kind):
    ours, theirs = socket.socketpair()
    client = BridgeClient("pair")
    client._socket, client._version = ours, version
    with theirs:
        theirs.sendall(reply(version, 1, kind, body))
        with contextlib.suppress(SourceError):
            read = client.stats(soon()) if kind == STATS else client.names(soon())
            assert all(0 <= port < 0xFFFFFF00 for port in read)
    client.close()
