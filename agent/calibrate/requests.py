"""Requests to the served VM at a given rate, and how long each took.

The load is open: requests are due at moments that do not depend on the answers, and a latency counts from when its
request was due, waiting for a free connection included. A client that waits for each answer before its next request
would leave out the requests that a stalled server delays.
"""

import asyncio
import time
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from agent.calibrate.latency import Latencies, Measured
from agent.calibrate.plan import Requests
from agent.calibrate.stressors import connect, why_of

_MAX_BODY_BYTES = 64 << 20
_NO_RETRY_S = 0.05  # after a refused connection
_OK = range(200, 400)


@dataclass(slots=True)
class _Connection:
    """One connection of the client, opened when it is first needed and after each failure."""

    spec: Requests
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None

    async def ask(self) -> None:
        """Send one request and read its whole answer; OSError or ValueError where it failed."""
        if self.reader is None or self.writer is None:
            self.reader, self.writer = await connect(self.spec.address)
        if self.spec.protocol == "line":
            self.writer.write(f"{self.spec.send}\n".encode())
            if not (await self.reader.readline()).endswith(b"\n"):
                raise ConnectionResetError("the server closed the connection")
            return
        self.writer.write(f"GET {self.spec.send} HTTP/1.1\r\nHost: {self.spec.address}\r\n\r\n".encode())
        if not await _read_http(self.reader):
            self.close()

    def close(self) -> None:
        """Close it; the next request opens a new one."""
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


async def ask_once(spec: Requests) -> None:
    """Send one request and read its whole answer; OSError, ValueError or IncompleteReadError where it failed."""
    with closing(_Connection(spec)) as connection:
        await connection.ask()


@dataclass(slots=True)
class RequestLoad:
    """The built-in client of one run; `seed` is of the moments at which requests are due."""

    spec: Requests
    requests_per_s: float
    seed: int
    #: Failed requests, without those that took too long; and why the last one failed.
    failures: int = 0
    trouble: str = ""
    _latencies: Latencies = field(default_factory=Latencies)
    _due: asyncio.Queue[int] = field(default_factory=asyncio.Queue)

    async def run(self) -> None:
        """Send requests until cancelled."""
        workers = [asyncio.create_task(self._work()) for _ in range(self.spec.connections)]
        try:
            await self._pace()
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def over(self, start_ns: int, end_ns: int) -> Measured | None:
        """Return what was measured in (start_ns, end_ns] of the monotonic clock; None: no answer came."""
        return self._latencies.over(start_ns, end_ns)

    async def _pace(self) -> None:
        random = np.random.default_rng(self.seed)
        even_ns = 1e9 / self.requests_per_s
        due_ns = float(time.monotonic_ns())
        while True:
            due_ns += even_ns if self.spec.arrivals == "even" else random.exponential(even_ns)
            await asyncio.sleep(max(0.0, due_ns - time.monotonic_ns()) / 1e9)
            self._due.put_nowait(int(due_ns))

    async def _work(self) -> None:
        with closing(_Connection(self.spec)) as connection:
            while True:
                await self._ask(connection, await self._due.get())

    async def _ask(self, connection: _Connection, due_ns: int) -> None:
        """Ask once and note how long it took since it was due."""
        left_s = self.spec.timeout_s - (time.monotonic_ns() - due_ns) / 1e9
        if left_s <= 0:  # it waited too long for a connection
            self._latencies.add(time.monotonic_ns(), self.spec.timeout_s)
            return
        try:
            async with asyncio.timeout(left_s):
                await connection.ask()
        except TimeoutError:
            connection.close()
            self._latencies.add(time.monotonic_ns(), self.spec.timeout_s)
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            connection.close()
            self.failures += 1
            self.trouble = why_of(error)
            await asyncio.sleep(_NO_RETRY_S)
        else:
            now_ns = time.monotonic_ns()
            self._latencies.add(now_ns, (now_ns - due_ns) / 1e9)


async def _read_http(reader: asyncio.StreamReader) -> bool:
    """Read one answer of HTTP/1.1; return whether the connection can be used again."""
    status = (await reader.readline()).split()
    if len(status) < 2 or not status[1].isdigit():  # noqa: PLR2004 - "HTTP/1.1 200"
        raise ConnectionResetError("no answer of HTTP" if status else "the server closed the connection")
    headers: dict[bytes, bytes] = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip().lower()
    keeps = headers.get(b"connection") != b"close"
    if headers.get(b"transfer-encoding") == b"chunked":
        while (size := int((await reader.readline()).split(b";")[0], 16)) > 0:
            await reader.readexactly(size + 2)
        while (await reader.readline()).strip():
            pass
    elif b"content-length" in headers:
        size = int(headers[b"content-length"])
        if not 0 <= size <= _MAX_BODY_BYTES:
            raise ValueError(f"an answer of {size} bytes")
        await reader.readexactly(size)
    else:
        keeps = False
        while await reader.read(1 << 16):
            pass
    if int(status[1]) not in _OK:
        raise ValueError(f"HTTP status {int(status[1])}")
    return keeps
