"""A central that does as a test tells it, in the test's own event loop, over real gRPC and TLS."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

from central.pki import issue, make_ca
from central.validation.batch_heads import Head, head_of, is_next, whole
from whitepanda.common.protocol import SERVER_CHANNEL_OPTIONS
from whitepanda.common.tls import TlsFiles, server_credentials
from whitepanda.v1 import agent_pb2

Message = agent_pb2.CentralMessage


def ack(spool_id: str, *ranges: tuple[int, int], **fields: Any) -> Message:
    """An acknowledgement of ranges, both ends included."""
    listed = [agent_pb2.SequenceRange(first=first, last=last) for first, last in ranges]
    return Message(ack=agent_pb2.Ack(spool_id=spool_id, ranges=listed, **fields))


def ack_of(batch: agent_pb2.CpiBatch) -> Message:
    """What central says to a good batch."""
    return ack(batch.spool_id, (batch.sequence, batch.sequence), accepted_rows=len(batch.task_index))


def welcome(**fields: Any) -> Message:
    return Message(welcome=agent_pb2.Welcome(**({"protocol_version": 1} | fields)))


class Stream:
    """One agent's stream, as the script sees it. Everything received is kept, in order."""

    def __init__(self, context: Any, number: int) -> None:
        self.context = context
        self.number = number
        self.hello: agent_pb2.Hello | None = None
        self.head: Head | None = None  # of the last batch
        self.kinds: list[str] = []  # of messages, in order
        self.batches: list[agent_pb2.CpiBatch] = []
        self.heartbeats: list[agent_pb2.Heartbeat] = []

    async def send(self, message: Message | bytes) -> None:
        raw = message if isinstance(message, bytes) else message.SerializeToString()
        await self.context.write(raw)

    async def receive(self) -> agent_pb2.AgentMessage | None:
        raw = await self.context.read()
        if raw is grpc.aio.EOF:
            return None
        self.kinds.append(agent_pb2.AgentMessage.FromString(raw).WhichOneof("body") or "")
        if is_next(raw):
            assert self.head is not None
            raw = whole(raw, self.head) or b""
        self.head = head_of(raw) or self.head
        message = agent_pb2.AgentMessage.FromString(raw)
        kind = message.WhichOneof("body")
        if kind == "hello":
            self.hello = message.hello
        elif kind == "batch":
            self.batches.append(message.batch)
        elif kind == "heartbeat":
            self.heartbeats.append(message.heartbeat)
        return message

    async def next_batch(self) -> agent_pb2.CpiBatch | None:
        while (message := await self.receive()) is not None:
            if message.HasField("batch"):
                return message.batch
        return None

    async def greet(self, **fields: Any) -> None:
        await self.receive()
        await self.send(welcome(**fields))

    async def acknowledge_all(self) -> None:
        while (batch := await self.next_batch()) is not None:
            await self.send(ack_of(batch))


Script = Callable[[Stream], Awaitable[None]]


async def obedient(stream: Stream) -> None:
    await stream.greet()
    await stream.acknowledge_all()


class FakeCentral:
    """Runs `script` for every stream."""

    def __init__(self, pki: Path, script: Script = obedient, *, port: int = 0) -> None:
        self.pki = pki
        self.script = script
        self.port = port
        self.streams: list[Stream] = []
        self._server: grpc.aio.Server | None = None
        if not (pki / "ca.crt").exists():
            make_ca(pki)
            issue(pki, "central", server=True, addresses=["localhost", "127.0.0.1"])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def client(self, name: str) -> TlsFiles:
        return issue(self.pki, name, force=True)

    async def start(self) -> "FakeCentral":
        self._server = grpc.aio.server(options=SERVER_CHANNEL_OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(self._connect)
        service = grpc.method_handlers_generic_handler("whitepanda.v1.AgentStream", {"Connect": handler})
        self._server.add_generic_rpc_handlers((service,))
        files = TlsFiles(
            ca=str(self.pki / "ca.crt"), certificate=str(self.pki / "central.crt"), key=str(self.pki / "central.key")
        )
        self.port = self._server.add_secure_port(self.address, server_credentials(files))
        await self._server.start()
        return self

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def _connect(self, _requests: Any, context: Any) -> None:
        stream = Stream(context, len(self.streams))
        self.streams.append(stream)
        await self.script(stream)

    def batches(self) -> list[agent_pb2.CpiBatch]:
        return [batch for stream in self.streams for batch in stream.batches]
