"""Neither end of the agent stream pings the other while they talk: a busy one would not be in time with its answer."""

import asyncio

import grpc
import pytest

from whitepanda.common.protocol import CLIENT_CHANNEL_OPTIONS, SERVER_CHANNEL_OPTIONS

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_PING, _ACK = 6, 1
_MESSAGES, _SIZE = 30, 20_000
_METHOD = "/echo/Echo"


class Frames:
    """The HTTP/2 frames of one direction (RFC 9113, section 4.1)."""

    def __init__(self, preface: bytes = b"") -> None:
        self._skip = len(preface)
        self._text = b""
        self.pings = self.frames = 0

    def take(self, data: bytes) -> None:
        self._text += data
        if self._skip and len(self._text) >= self._skip:
            self._text, self._skip = self._text[self._skip :], 0
        while not self._skip and len(self._text) >= 9 + (size := int.from_bytes(self._text[:3])):
            kind, flags = self._text[3], self._text[4]
            self.frames += 1
            self.pings += kind == _PING and not flags & _ACK
            self._text = self._text[9 + size :]


class Between:
    """Passes on what two peers say over one plain connection, and looks at its frames."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.agents, self.centrals = Frames(_PREFACE), Frames()
        self.ended = asyncio.Event()

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, away = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._pass_on(reader, away, self.agents), self._pass_on(there, writer, self.centrals))
        self.ended.set()

    @staticmethod
    async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: Frames) -> None:
        while data := await reader.read(65_536):
            frames.take(data)
            writer.write(data)
            await writer.drain()
        writer.close()


async def _echo(messages, context):
    async for message in messages:
        yield message


def _without(options: tuple[tuple[str, int], ...]) -> list[tuple[str, int]]:
    return [each for each in options if each[0] != "grpc.http2.bdp_probe"]


@pytest.mark.parametrize("theirs", ["ours", "grpc's own"])
async def test_no_end_pings_while_they_talk(theirs: str) -> None:
    ours = theirs == "ours"
    server = grpc.aio.server(options=SERVER_CHANNEL_OPTIONS if ours else _without(SERVER_CHANNEL_OPTIONS))
    method = grpc.stream_stream_rpc_method_handler(_echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", {"Echo": method}),))
    between = Between(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    proxy = await asyncio.start_server(between.meet, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    options = CLIENT_CHANNEL_OPTIONS if ours else _without(CLIENT_CHANNEL_OPTIONS)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        call = channel.stream_stream(_METHOD)()
        for _ in range(_MESSAGES):
            await call.write(bytes(_SIZE))
            assert len(await call.read()) == _SIZE
        pings = (between.agents.pings, between.centrals.pings)  # before the end: a server's last word is one too
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
    await server.stop(None)
    await between.ended.wait()
    proxy.close()
    assert min(between.agents.frames, between.centrals.frames) > _MESSAGES
    assert pings == (0, 0) if ours else min(pings) > 0, "by gRPC's own: the frames are understood"
