"""Thousands of agents in one process, for bench/ingest/study.py: each its own TCP connection, certificate and stream.

grpc's own client takes more CPU time than central does, which on the same two cores would measure the client. So
these agents speak gRPC by hand: TLS (OpenSSL, ALPN h2, the host's certificate), HTTP/2 frames with flow control as
central's windows allow, pings answered, and on it what an agent says: Hello, batches, heartbeats as often as
central's Welcome asks, keepalive pings as CLIENT_CHANNEL_OPTIONS say, and SlowDown obeyed.

Commands come as JSON, one a line, on standard input; each is answered by one line when it is done.
"""

import heapq
import json
import resource
import select
import socket
import ssl
import struct
import sys
import time
from collections import deque
from typing import Any

import numpy as np

from agent.uplink.stream import FIRST_WINDOW
from whitepanda.common.protocol import CLIENT_CHANNEL_OPTIONS, DEFAULT_HEARTBEAT_MS
from whitepanda.common.window_columns import BY_NAME, METRIC_COLUMNS
from whitepanda.v1 import agent_pb2

_PATH = b"/whitepanda.v1.AgentStream/Connect"
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK = _END_STREAM = 1
_MAX_WINDOW = 2**31 - 1
_KEEPALIVE_S = dict(CLIENT_CHANNEL_OPTIONS)["grpc.keepalive_time_ms"] / 1e3
_HANDSHAKES = 64  # at a time
_VARIANTS = 64  # different sets of values, shared by all hosts
_GRPC_HEAD = struct.Struct(">BI")
_FRAME_TAIL = struct.Struct(">BBI")  # after three bytes of length
_now = time.perf_counter


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return an HTTP/2 frame (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3) + _FRAME_TAIL.pack(kind, flags, stream) + payload


def opening(authority: str) -> bytes:
    """Return what a client says first: preface, settings, a wide window, and the request's headers."""
    fields = [
        (b":method", b"POST"), (b":scheme", b"https"), (b":path", _PATH), (b":authority", authority.encode()),
        (b"te", b"trailers"), (b"content-type", b"application/grpc"), (b"user-agent", b"whitepanda-bench"),
    ]  # fmt: skip
    block = b"".join(b"\0" + bytes([len(k)]) + k + bytes([len(v)]) + v for k, v in fields)
    settings = struct.pack(">HIHI", 2, 0, 4, _MAX_WINDOW)  # no push; what the server may send unasked
    return (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + frame(_SETTINGS, 0, 0, settings)
        + frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _MAX_WINDOW - 65_535))
        + frame(_HEADERS, 4, 1, block)
    )


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def tasks_of(seed: int, vms: int) -> bytes:
    """Return a host's VMs and which row is whose, serialised."""
    batch = agent_pb2.CpiBatch(task_index=range(vms))
    for row in range(vms):
        batch.tasks.add(
            vm=f"{seed:08x}-0000-4000-8000-{row:012x}", epoch="1795213165", job=f"job-{(seed + row) % 500}",
            name=f"vm-{row}", latency_sensitive=row % 2 == 0,
        )  # fmt: skip
    return batch.SerializeToString()


def value_columns(seed: int, vms: int, count: int) -> bytes:
    """Return some values of each VM, serialised: what is sent to Prometheus too (`bench.ingest.prometheus`)."""
    values = values_of(seed, vms, count)
    batch = agent_pb2.CpiBatch(cpi=values.pop("cpi"), cpu_usage_cores=values.pop("cpu_usage_cores"))
    for name, column in values.items():
        batch.metrics.numbers.append(BY_NAME[name].number)
        batch.metrics.values.extend(column)
    return batch.SerializeToString()


def values_of(seed: int, vms: int, count: int) -> dict[str, list[Any]]:
    """Return `count` values of each VM by name, with as many digits as agents send."""
    rng = np.random.default_rng(seed)
    cpi, cores, cycles = rng.uniform(0.5, 3.0, vms), rng.uniform(0.0, 8.0, vms), rng.integers(1, 10**10, vms)
    values = {"cpi": cpi, "cpu_usage_cores": cores, "cycles": cycles, "instructions": cycles / cpi}
    for column in METRIC_COLUMNS[2:]:
        values[column.name] = rng.uniform(0.0, min(column.largest, 1e9), vms)
    digits = {name: BY_NAME[name].digits for name in list(values)[2:]}
    return {
        name: [float(f"{value:.{digits.get(name, 17)}g}") for value in column.tolist()]
        for name, column in list(values.items())[:count]
    }


class Host:
    """One agent: its connection, and what it has under way."""

    __slots__ = (
        "acked", "connection_window", "has_named", "in_flight", "incoming", "interval_s", "last_heard_s", "last_sent_s",
        "name", "next_s", "number", "out", "ready", "sequence", "settled", "sock", "spool", "stream_window",
        "tasks", "text", "waiting", "welcome", "window", "window_size",
    )  # fmt: skip

    def __init__(self, number: int, name: str, vms: int) -> None:
        self.number, self.name = number, name
        self.spool = agent_pb2.CpiBatch(spool_id=f"{time.time_ns():020d}{number:012d}").SerializeToString()
        self.tasks = tasks_of(number, vms)
        self.sock: Any = None
        self.out = bytearray()  # TLS has not taken it yet
        self.incoming = bytearray()
        self.text = bytearray()  # of gRPC messages
        self.waiting: deque[bytes] = deque()  # DATA frames that wait for room in the windows
        self.connection_window = self.stream_window = 65_535
        self.sequence = 0
        self.has_named = False  # its VMs, on this stream
        self.in_flight: dict[int, float] = {}
        self.window = 0  # how many those may be
        self.welcome: Any = None
        self.settled = False
        self.interval_s = self.next_s = 0.0  # SlowDown
        self.last_heard_s = self.last_sent_s = 0.0


class Agents:
    """All hosts of one process, on one epoll."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.port, self.vms = options["port"], options["vms"]
        self.pki = options["pki"]
        self.hosts = [Host(n, f"host-{n}", self.vms) for n in range(options["first"], options["last"])]
        self.by_fd: dict[int, Host] = {}
        self.epoll = select.epoll()
        self.epoll.register(0, select.EPOLLIN)
        self.commands: deque[str] = deque()
        self.ended = False
        self.values = [value_columns(seed, self.vms, options.get("values", 25)) for seed in range(_VARIANTS)]
        self.duration = self._column(6, (10 * 10**9).to_bytes(8, "little"))
        self.in_flight = 0  # that each host keeps while it saturates; 0: it does not
        self.lazy: list[tuple[float, int]] = []  # hosts that SlowDown holds back, by when they may
        self.latencies: list[float] = []
        self.acked_batches = self.rejected = self.slowed = 0

    @staticmethod
    def _column(field: int, data: bytes) -> bytes:
        return varint(field << 3 | 2) + varint(len(data)) + data

    # -- what is said ------------------------------------------------------------------------------

    def say(self, host: Host, kind: int, body: bytes) -> None:
        """Send an AgentMessage whose field `kind` is `body`."""
        message = varint(kind << 3 | 2) + varint(len(body)) + body
        data = _GRPC_HEAD.pack(0, len(message)) + message
        host.last_sent_s = _now()
        for at in range(0, len(data), 16_384):
            host.waiting.append(frame(_DATA, 0, 1, data[at : at + 16_384]))
        self.push(host)

    def batch(self, host: Host, due: float) -> None:
        host.sequence += 1
        host.in_flight[host.sequence] = due
        start = self._column(5, (time.time_ns() - 10**10).to_bytes(8, "little"))
        values = self.values[(host.number + host.sequence) % _VARIANTS]
        sequence = b"\x10" + varint(host.sequence)
        if host.has_named:  # as agents do, it leaves out what the last batch said
            self.say(host, 4, b"".join((sequence, start, self.duration, values)))
        else:
            host.has_named = True
            self.say(host, 2, b"".join((host.spool, sequence, host.tasks, start, self.duration, values)))

    def heartbeat(self, host: Host) -> None:
        self.say(host, 3, agent_pb2.Heartbeat(sent_unix_ns=time.time_ns()).SerializeToString())

    def push(self, host: Host) -> None:
        """Hand to TLS what the windows allow, and what TLS did not take before."""
        waiting = host.waiting
        while waiting:
            size = len(waiting[0]) - 9
            if size > host.stream_window or size > host.connection_window:
                break
            host.stream_window -= size
            host.connection_window -= size
            host.out += waiting.popleft()
        if not host.out or not host.ready:
            return
        was_full = False
        try:
            while host.out:
                del host.out[: host.sock.send(host.out)]
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            was_full = True
        self.epoll.modify(host.sock.fileno(), select.EPOLLIN | (select.EPOLLOUT if was_full else 0))

    # -- what is heard -----------------------------------------------------------------------------

    def hear(self, host: Host) -> None:
        try:
            while data := host.sock.recv(65_536):
                host.incoming += data
                if len(data) < 16_384 and not host.sock.pending():
                    break
            else:
                raise ConnectionError(f"{host.name}: central closed the connection")
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        host.last_heard_s = _now()
        incoming, at, end = host.incoming, 0, len(host.incoming)
        while end - at >= 9:
            size = int.from_bytes(incoming[at : at + 3])
            if end - at < 9 + size:
                break
            self.take_frame(
                host, incoming[at + 3], incoming[at + 4], incoming[at + 5 : at + 9], incoming[at + 9 : at + 9 + size]
            )
            at += 9 + size
        del incoming[:at]
        self.push(host)

    def take_frame(self, host: Host, kind: int, flags: int, stream: bytearray, payload: bytearray) -> None:
        if kind == _DATA:
            text = host.text
            text += payload
            while len(text) >= 5 and len(text) >= 5 + (size := int.from_bytes(text[1:5])):
                self.take_message(host, bytes(text[5 : 5 + size]))
                del text[: 5 + size]
        elif kind == _WINDOW_UPDATE:
            more = int.from_bytes(payload)
            if int.from_bytes(stream):
                host.stream_window += more
            else:
                host.connection_window += more
        elif kind == _PING and not flags & _ACK:
            host.out += frame(_PING, _ACK, 0, bytes(payload))
        elif kind == _SETTINGS and not flags & _ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack_from(">HI", payload, at)
                if name == 4:  # SETTINGS_INITIAL_WINDOW_SIZE changes the windows of open streams too
                    host.stream_window += value - (host.window_size if host.settled else 65_535)
                    host.window_size, host.settled = value, True
            host.out += frame(_SETTINGS, _ACK, 0)
        elif kind in (_RST, _GOAWAY) or (kind == _HEADERS and flags & _END_STREAM):
            raise ConnectionError(f"{host.name}: central ended the stream: frame {kind} {bytes(payload)!r}")

    def take_message(self, host: Host, raw: bytes) -> None:
        message = agent_pb2.CentralMessage.FromString(raw)
        kind = message.WhichOneof("body")
        if kind == "ack":
            now = _now()
            for one in message.ack.ranges:
                for sequence in range(one.first, one.last + 1):
                    self.latencies.append(now - host.in_flight.pop(sequence))
                    self.acked_batches += 1
                    host.window += not host.interval_s
            host.window = min(host.window, self.in_flight)
            self.rejected += len(message.ack.rejected_batches) + len(message.ack.rejected_rows)
            self.refill(host, now)
        elif kind == "welcome":
            host.welcome = message.welcome
        elif kind == "slow_down":
            self.slowed += bool(message.slow_down.min_batch_interval_ms)
            host.interval_s = message.slow_down.min_batch_interval_ms / 1e3
            if host.interval_s:
                host.window = min(FIRST_WINDOW, self.in_flight)

    def refill(self, host: Host, now: float) -> None:
        """Saturate: as many batches in flight as an agent would have, as fast as SlowDown allows."""
        while len(host.in_flight) < host.window:
            if host.interval_s and now < host.next_s:
                heapq.heappush(self.lazy, (host.next_s, host.number - self.hosts[0].number))
                return
            host.next_s = now + host.interval_s
            self.batch(host, now)

    # -- the loop ----------------------------------------------------------------------------------

    def turn(self, timeout_s: float) -> None:
        """Wait for what comes, and take it."""
        for fd, events in self.epoll.poll(max(0.0, timeout_s)):
            if fd == 0:
                line = sys.stdin.readline()
                self.ended |= not line
                self.commands.append(line)
                continue
            host = self.by_fd[fd]
            if not host.ready:
                self.shake_hands(host)
            elif events & select.EPOLLOUT and host.out:
                self.push(host)
            if host.ready and events & ~select.EPOLLOUT:
                self.hear(host)

    def shake_hands(self, host: Host) -> None:
        fd = host.sock.fileno()
        try:
            host.sock.do_handshake()
        except ssl.SSLWantReadError:
            self.epoll.modify(fd, select.EPOLLIN)
        except ssl.SSLWantWriteError:
            self.epoll.modify(fd, select.EPOLLOUT)
        else:
            host.ready = True
            host.out += opening(f"localhost:{self.port}")
            hello = agent_pb2.Hello(
                host=host.name, platform="bench", protocol_version=1, min_protocol_version=1, boot_id="b",
                sent_unix_ns=time.time_ns(), agent_version="bench",
            )  # fmt: skip
            self.say(host, 1, hello.SerializeToString())

    def connect(self) -> float:
        """Open every stream; returns how long it took, in seconds."""
        began, opened = _now(), 0
        waiting: set[int] = set()
        while opened < len(self.hosts) or waiting:
            while opened < len(self.hosts) and len(waiting) < _HANDSHAKES:
                host = self.hosts[opened]
                opened += 1
                context = ssl.create_default_context(cafile=f"{self.pki}/ca.crt")
                context.set_alpn_protocols(["h2"])
                context.load_cert_chain(f"{self.pki}/{host.name}.crt", f"{self.pki}/{host.name}.key")
                plain = socket.create_connection(("127.0.0.1", self.port))
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                plain.setblocking(False)
                host.sock = context.wrap_socket(plain, server_hostname="localhost", do_handshake_on_connect=False)
                host.ready = False
                fd = host.sock.fileno()
                self.by_fd[fd] = host
                self.epoll.register(fd, select.EPOLLIN)
                waiting.add(fd)
                self.shake_hands(host)
            self.turn(0.05)
            waiting = {fd for fd in waiting if self.by_fd[fd].welcome is None}
        return _now() - began

    def keep_alive(self) -> None:
        """Send the heartbeats and pings that are due."""
        now = _now()
        for host in self.hosts:
            if now - host.last_sent_s >= (host.welcome.heartbeat_ms or DEFAULT_HEARTBEAT_MS) / 1e3:
                self.heartbeat(host)
            if now - host.last_heard_s >= _KEEPALIVE_S:
                host.last_heard_s = now
                host.out += frame(_PING, 0, 0, b"whitepan")
                self.push(host)

    def idle(self, seconds: float) -> None:
        until = _now() + seconds
        while (now := _now()) < until and not self.ended:
            self.turn(min(0.1, until - now))
            self.keep_alive()

    def paced(self, seconds: float, interval_s: float) -> float:
        """Send one batch per host and interval, evenly spread; returns how late it was sent, in seconds (p99)."""
        began, sent, count = _now(), 0, len(self.hosts)
        step = interval_s / count
        lateness = []
        while (now := _now()) - began < seconds:
            while (due := began + sent * step) <= now:
                lateness.append(now - due)
                self.batch(self.hosts[sent % count], due)
                sent += 1
            self.turn(min(due - now, 0.05))
        self.settle()
        return float(np.percentile(lateness, 99))

    def saturate(self, seconds: float, in_flight: int) -> float:
        """Keep up to so many batches in flight on each host; returns the batches per second acknowledged meanwhile."""
        self.in_flight = in_flight
        began = _now()
        for host in self.hosts:
            host.window = min(FIRST_WINDOW, in_flight)
            self.refill(host, began)
            self.turn(0.0)
        before, warm = self.acked_batches, _now()
        while (now := _now()) - warm < seconds:
            while self.lazy and self.lazy[0][0] <= now:
                self.refill(self.hosts[heapq.heappop(self.lazy)[1]], now)
            self.turn(min(0.05, self.lazy[0][0] - now if self.lazy else 0.05))
        rate = (self.acked_batches - before) / (_now() - warm)
        self.in_flight = 0
        for host in self.hosts:
            host.window = 0
        self.settle()
        return rate

    def send_each(self, batches: int) -> None:
        """Have every host send so many batches, two in flight."""
        for _ in range(batches):
            for host in self.hosts:
                while len(host.in_flight) > 1:
                    self.turn(0.05)
                self.batch(host, _now())
            self.turn(0.0)
        self.settle()

    def settle(self) -> None:
        """Wait for every acknowledgement."""
        until = _now() + 60
        while any(host.in_flight for host in self.hosts):
            if _now() > until:
                raise TimeoutError("batches stay without acknowledgement")
            self.turn(0.05)

    def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        """Run one command; answers what it measured."""
        self.latencies, self.acked_batches, self.rejected, self.slowed = [], 0, 0, 0
        began = time.process_time()
        found = getattr(self, command.pop("do"))(**command)
        percentiles = np.percentile(self.latencies, [50, 99, 99.9]).tolist() if self.latencies else [0.0] * 3
        return {
            "found": found, "batches": self.acked_batches, "rejected": self.rejected, "slowed": self.slowed,
            "cpu_s": time.process_time() - began, "percentiles_s": percentiles,
            "latencies_s": self.latencies if len(self.latencies) < 1_000_000 else [],
        }  # fmt: skip

    def run(self) -> None:
        """Obey commands until standard input ends, with every stream kept alive meanwhile."""
        while not self.ended:
            while self.commands:
                line = self.commands.popleft()
                if line:
                    print(json.dumps(self.obey(json.loads(line))), flush=True)
            self.turn(0.2)
            if all(host.welcome is not None for host in self.hosts):
                self.keep_alive()


def main() -> None:
    options = json.loads(sys.argv[1])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    Agents(options).run()


if __name__ == "__main__":
    main()
