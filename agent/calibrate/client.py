"""The user's own client: a command that prints its measurements line by line."""

import asyncio
import math
import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from agent.calibrate.latency import Measured
from agent.calibrate.stressors import ChildCommand
from whitepanda.common.errors import InputError, UnavailableError

#: A line counts for the interval that ends nearest to it, at most this far away.
_NEAR_NS = 750_000_000


class _Line(NamedTuple):
    """A line's measurement, when it came, and its own time."""

    came_ns: int
    at_s: float | None
    measured: Measured


class CommandLoad:
    """The user's own client for one run: a command that prints a JSON object per second.

    Keys: `p95_latency_s`; optional `p50_latency_s`, `p99_latency_s`, `requests_per_s` and `at_s`, the end of the second
    on any clock. The quickest lines give that clock's offset, so that a delayed line still counts for its own second.
    Without `at_s` its arrival time counts. Other lines are ignored.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._command = ChildCommand("served.command", arguments, output=True)
        self._lines: list[_Line] = []
        self._offset_ns = math.inf
        #: The command counts its failures itself.
        self.failures = 0
        self.trouble = ""

    async def run(self) -> None:
        """Run the client and read its lines until cancelled.

        UnavailableError: it cannot start, or exits early. InputError: a line is wrong.
        """
        await self._command.start()
        try:
            assert self._command.process is not None  # noqa: S101 - for the type checker: start() has returned
            assert self._command.process.stdout is not None  # noqa: S101 - for the type checker: it was started with output=True
            await self._read(self._command.process.stdout)
            await self._command.wait()
            raise UnavailableError(f"served.command ended before the run did: {self._command.ended}")
        finally:
            await self._command.end()

    def over(self, start_ns: int, end_ns: int) -> Measured | None:
        """Return what the client measured over the stretch of time; None: nothing."""
        moments = [self._moment_ns(line) for line in self._lines]
        after = bisect_left(moments, end_ns)
        near = [i for i in (after - 1, after) if 0 <= i < len(moments) and moments[i] > start_ns]
        best = min(near, key=lambda i: abs(moments[i] - end_ns), default=None)
        if best is None or abs(moments[best] - end_ns) > _NEAR_NS:
            return None
        return self._lines[best].measured

    def _moment_ns(self, line: _Line) -> float:
        return line.came_ns if line.at_s is None else line.at_s * 1e9 + self._offset_ns

    async def _read(self, stream: asyncio.StreamReader) -> None:
        try:
            while text := await stream.readline():
                if text.lstrip().startswith(b"{"):
                    self._take(text, time.monotonic_ns())
        except ValueError as error:
            raise InputError("served.command printed a line of more than 64 KiB") from error

    def _take(self, text: bytes, came_ns: int) -> None:
        shown = text[:80].decode(errors="replace").strip()
        try:
            data: dict[str, Any] = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise InputError(f"served.command printed invalid JSON: {shown}") from error
        found = {
            key: float(value)
            for key in (*Measured._fields, "at_s")
            if isinstance(value := data.get(key), int | float) and not isinstance(value, bool)
        }
        p95_s = found.get("p95_latency_s", -1.0)
        if p95_s < 0:
            raise InputError(f"served.command printed a line without p95_latency_s, a number of seconds: {shown}")
        at_s = found.pop("at_s", None)
        if at_s is not None:
            self._offset_ns = min(self._offset_ns, came_ns - at_s * 1e9)
        self._lines.append(_Line(came_ns, at_s, Measured(**found)))
