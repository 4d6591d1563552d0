"""A plain TCP load balancer: each connection goes to the next backend that takes it."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial


class Balancer:
    """Bytes pass unread, as through any layer 4 balancer; TLS is between the ends."""

    def __init__(self, address: str, backends: Sequence[int]) -> None:
        """`backends` are ports of 127.0.0.1."""
        self.port = 0
        self.connections = [0] * len(backends)
        self.sent_bytes = [0] * len(backends)  # by clients, to each of the backends
        self._address = address
        self._backends = list(backends)
        self._turn = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._take, self._address, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def reset(self) -> None:
        """Break all connections, as balancers do now and then: clients that come back are spread over the backends."""
        for client in tuple(self._clients):
            client.transport.abort()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.closing(writer):
            for _ in self._backends:
                turn = self._turn = (self._turn + 1) % len(self._backends)
                with contextlib.suppress(OSError):
                    there = await asyncio.open_connection("127.0.0.1", self._backends[turn])
                    break
            else:
                return
            self.connections[turn] += 1
            self._clients.add(writer)
            with contextlib.closing(there[1]):
                ways = [
                    asyncio.create_task(_pass(reader, there[1], partial(self._count, turn))),
                    asyncio.create_task(_pass(there[0], writer, lambda _size: None)),
                ]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    self._clients.discard(writer)
                    for way in ways:
                        way.cancel()

    def _count(self, backend: int, size: int) -> None:
        self.sent_bytes[backend] += size


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[int], None]) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            count(len(data))
            writer.write(data)
            await writer.drain()
