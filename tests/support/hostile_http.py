"""Requests that no fleet tooling sends, over raw sockets: what central answers to each is counted."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from urllib.parse import quote

from central.web.openapi import document

_VALUES = (
    "9999999999999999999", "-9223372036854775809", "9223372036854775807", "-1", "0", "1e400", "nan", "inf", "0x10",
    "١٢", "", " ", "true", "null", "[]", "{}", "\0", "\x1b[31m", "\u202eevil", "é" * 300, "a" * 600, "../../etc/passwd",
    "'; DROP TABLE rows; --", '" OR 1=1', "%s%n", "=cmd|' /C calc'!A0", "a,b,c", ",,,", "*", "\r\nX-Injected: 1",
)  # fmt: skip
_METHODS = ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "get", "BREW")
_PATHS = tuple(document()["paths"].items())
_DEADLINE_S = 60.0


class HttpFuzzer:
    """Makes requests. Each has its bytes; some are no HTTP at all."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.kinds: tuple[Callable[[], bytes], ...] = (
            self.hostile_values, self.hostile_values, self.hostile_values, self.unknown_parameter, self.other_method,
            self.other_path, self.other_host, self.many_headers, self.bad_body, self.noise, self.half,
        )  # fmt: skip

    def request(self) -> bytes:
        return self.random.choice(self.kinds)()

    def hostile_values(self) -> bytes:
        """A path that there is, its parameters with values that nobody means; some twice."""
        path, operations = self.random.choice(_PATHS)
        pairs = []
        method, operation = self.random.choice(tuple(operations.items()))
        for parameter in operation.get("parameters", ()):
            value = quote(self.value(), safe="")
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", value)
            elif self.random.random() < 0.4:
                pairs += [f"{parameter['name']}={value}"] * self.random.choice((1, 1, 1, 2, 40))
        return self.get(f"{path}?{'&'.join(pairs)}", method=method.upper())

    def value(self) -> str:
        if self.random.random() < 0.7:
            return self.random.choice(_VALUES)
        return "".join(chr(self.random.randint(0, 0xD7FF)) for _ in range(self.random.randint(1, 20)))

    def unknown_parameter(self) -> bytes:
        path, _ = self.random.choice(_PATHS)
        return self.get(f"{path}?{quote(self.value(), safe='')}={quote(self.value(), safe='')}")

    def other_method(self) -> bytes:
        path, _ = self.random.choice(_PATHS)
        return self.get(path, method=self.random.choice(_METHODS))

    def other_path(self) -> bytes:
        long = self.random.choice((1, 10, 1000, 20_000))
        return self.get("/" + quote(self.value(), safe="/.%") * long)

    def other_host(self) -> bytes:
        return self.get("/v1/hosts", host=self.random.choice(("evil.example", "", "localhost:99999", "[::1")))

    def many_headers(self) -> bytes:
        count = self.random.choice((10, 200, 3000))
        return self.get("/healthz", headers="".join(f"X-{each}: {'x' * 50}\r\n" for each in range(count)))

    def bad_body(self) -> bytes:
        length = self.random.choice(("Content-Length: -1", "Content-Length: 99999999999", "Transfer-Encoding: chunked"))
        return self.get("/v1/hosts", headers=length + "\r\n") + b"zz\r\n" * self.random.randint(0, 1000)

    def noise(self) -> bytes:
        return self.random.randbytes(self.random.randint(1, 2000)) + b"\r\n\r\n"

    def half(self) -> bytes:
        whole = self.get("/v1/overview")
        return whole[: self.random.randint(0, len(whole) - 5)]

    @staticmethod
    def get(target: str, *, method: str = "GET", host: str = "localhost", headers: str = "") -> bytes:
        first = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n"
        return first.encode("utf-8", "surrogatepass")


async def send_requests(port: int, seed: int, count: int, said: Counter[str]) -> None:
    """Send `count` requests, each on a connection of its own; count the statuses, "none" where it was closed without.

    Raises:
        TimeoutError: central neither answered nor closed.

    """
    fuzzer = HttpFuzzer(seed)
    for _ in range(count):
        raw = fuzzer.request()
        said[await asyncio.wait_for(_ask(port, raw), _DEADLINE_S)] += 1


async def _ask(port: int, raw: bytes) -> str:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return "refused"
    try:
        writer.write(raw)
        await writer.drain()
        writer.write_eof()
        answer = await reader.read()
    except OSError:
        return "none"
    finally:
        writer.transport.abort()
    return answer[9:12].decode(errors="replace") if answer.startswith(b"HTTP/1.1 ") else "none"
