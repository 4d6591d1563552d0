"""A central in the test's process, and streams to it that a test speaks by hand."""

import asyncio
import http.client
import ssl
import struct
import time
from pathlib import Path

import grpc

from bench.hostile.host import GREETING
from central.config import CentralConfig, CentralSection, IngestSection, QuotaSection
from central.daemon import Central
from tests.support.metric_columns import batch_of
from tests.support.waiting import until
from whitepanda.common.protocol import CLIENT_CHANNEL_OPTIONS
from whitepanda.common.tls import TlsFiles, channel_credentials
from whitepanda.v1 import agent_pb2

CONNECT = "/whitepanda.v1.AgentStream/Connect"


def config(
    folder: Path, pki: dict[str, TlsFiles], listen: str = "localhost:0", quotas: QuotaSection | None = None, **ingest
) -> CentralConfig:
    """Return the settings of a central whose state is below `folder`."""
    section = CentralSection(
        listen=listen, http_listen="127.0.0.1:0", state_dir=str(folder / "state"), tls=pki["central"]
    )
    return CentralConfig(
        central=section, ingest=IngestSection(**{"commit_interval_ms": 1, **ingest}), quotas=quotas or QuotaSection()
    )


class Peer:
    """One stream to a central, spoken by hand."""

    def __init__(self, central: Central, files: TlsFiles) -> None:
        self.central = central
        self.channel = grpc.aio.secure_channel(
            f"localhost:{central.port}", channel_credentials(files), options=CLIENT_CHANNEL_OPTIONS
        )
        self.call = self.channel.stream_stream(CONNECT)()

    async def send(self, message: agent_pb2.AgentMessage | bytes) -> None:
        await self.call.write(message if isinstance(message, bytes) else message.SerializeToString())

    async def hello(self, host: str, **fields) -> agent_pb2.Welcome:
        said = {"host": host, "platform": "P", "protocol_version": 1, "min_protocol_version": 1, **fields}
        before = self.central.registry.get(host)
        await self.send(agent_pb2.AgentMessage(hello=agent_pb2.Hello(**said)))
        welcome = (await self.read()).welcome
        await until(lambda: self.central.registry.get(host) is not before)  # a moment after it was welcomed
        return welcome

    async def batch(self, sequence: int, rows: int = 2, **fields) -> int:
        body = {
            "spool_id": "s",
            "sequence": sequence,
            "tasks": [agent_pb2.Task(vm=f"vm-{row}", job=f"job-{row}") for row in range(rows)],
            "task_index": list(range(rows)),
            "start_unix_ns": [time.time_ns()] * rows,
            "duration_ns": [10**10] * rows,
            "cpi": [1.0] * rows,
            "cpu_usage_cores": [1.0] * rows,
        }
        batch = batch_of(**{**body, **fields})
        await self.send(agent_pb2.AgentMessage(batch=batch))
        return batch.ByteSize()

    async def read(self) -> agent_pb2.CentralMessage:
        raw = await asyncio.wait_for(self.call.read(), 10)
        assert raw is not grpc.aio.EOF, f"the stream ended: {await self.call.code()} {await self.call.details()}"
        return agent_pb2.CentralMessage.FromString(raw)

    async def ack(self) -> agent_pb2.Ack:
        message = await self.read()
        assert message.WhichOneof("body") == "ack", message
        return message.ack

    async def refused(self) -> tuple[str, str]:
        """Read to the end, which must be an error."""
        async with asyncio.timeout(10):
            code, details = await self.call.code(), await self.call.details()
        assert code != grpc.StatusCode.OK
        return code.name, details


async def said_to_hello(central: Central, files: TlsFiles, host: str) -> str:
    """Say Hello for `host`; return the kind of the answer, such as "welcome", or the status of its refusal."""
    async with grpc.aio.secure_channel(f"localhost:{central.port}", channel_credentials(files)) as channel:
        call = channel.stream_stream(CONNECT)()
        hello = agent_pb2.Hello(host=host, protocol_version=1, min_protocol_version=1)
        try:
            await call.write(agent_pb2.AgentMessage(hello=hello).SerializeToString())
            raw = await asyncio.wait_for(call.read(), 10)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            raw = grpc.aio.EOF
        if raw is grpc.aio.EOF:
            return (await call.code()).name
        return str(agent_pb2.CentralMessage.FromString(raw).WhichOneof("body"))


async def unread_hellos(central: Central, files: TlsFiles, host: str, count: int) -> asyncio.StreamWriter:
    """Open streams that say Hello and take no byte of data (RFC 9113, 6.9.2); return their connection."""
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.certificate, files.key)
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection("localhost", central.port, ssl=context)
    writer.write(GREETING + _frame(4, 0, 0, struct.pack(">HI", 4, 0)))
    await reader.readexactly(9)
    writer.write(_frame(4, 1, 0, b""))
    fields = {":method": "POST", ":scheme": "https", ":path": CONNECT, ":authority": "localhost"}
    fields |= {"content-type": "application/grpc", "te": "trailers"}
    head = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )
    hello = agent_pb2.Hello(host=host, protocol_version=1, min_protocol_version=1)
    said = agent_pb2.AgentMessage(hello=hello).SerializeToString()
    for stream in range(1, 2 * count, 2):
        message = _frame(0, 0, stream, b"\0" + struct.pack(">I", len(said)) + said)
        writer.write(_frame(1, 4, stream, head) + message)
    return writer


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def https(central: Central, files: TlsFiles) -> http.client.HTTPSConnection:
    """Return a connection to a central's HTTP API with a client's certificate."""
    assert central._http is not None
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.certificate, files.key)
    return http.client.HTTPSConnection("127.0.0.1", central._http.port, timeout=10, context=context)


class Centrals:
    """Centrals below one folder, and streams to them by certificate; `close` ends all."""

    def __init__(self, folder: Path, pki: dict[str, TlsFiles]) -> None:
        self._folder = folder
        self._pki = pki
        self._started: list[Central] = []
        self._peers: list[Peer] = []

    async def central(self, **settings) -> Central:
        """Start a central; `settings` as of `config`."""
        central = Central(config(self._folder, self._pki, **settings))
        await central.start()
        self._started.append(central)
        return central

    def peer(self, central: Central, name: str | TlsFiles, kind: type[Peer] = Peer) -> Peer:
        """Open a stream with the certificate of that name, or with that one."""
        peer = kind(central, self._pki[name] if isinstance(name, str) else name)
        self._peers.append(peer)
        return peer

    async def close(self) -> None:
        for peer in self._peers:
            await peer.channel.close()
        for central in self._started:
            await central.stop()
