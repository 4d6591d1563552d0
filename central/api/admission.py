"""Bounds on questions: how many are answered at a time, and long ones one by one, off the event loop."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import grpc

from central.api.requests import ApiError, away
from central.lake.errors import LakeError, SlowError

Result = TypeVar("Result")


class Turns:
    """Lets few questions be answered at a time, and one begin per turn of the loop; the others wait in order.

    So acknowledgements, health and systemd's watchdog, which share the loop, never wait for many. `most` are answered
    at a time, and those beyond `most_waiting` are refused. Clients that left still count.
    """

    def __init__(self, most: int, most_waiting: int = 512) -> None:
        self._free = asyncio.Semaphore(most)
        self._beginning = asyncio.Lock()
        self._most_waiting = most_waiting
        self.waiting = 0

    @contextlib.asynccontextmanager
    async def turn(self, *, has_queue: bool = False) -> AsyncIterator[None]:
        """Wait for a turn; raises ApiError (RESOURCE_EXHAUSTED) if too many wait.

        A question that `has_queue` is bounded by a `Worker`: it takes no turn while it waits there.
        """
        if self.waiting >= self._most_waiting:
            message = f"{self._most_waiting} questions wait already; ask again in a while"
            raise ApiError(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        async with contextlib.AsyncExitStack() as held:
            self.waiting += 1
            try:
                if not has_queue:
                    await held.enter_async_context(self._free)
                async with self._beginning:
                    await asyncio.sleep(0)
            finally:
                self.waiting -= 1
            yield


class Worker:
    """One thread for long questions of a kind; with more than `most_waiting` behind the current one it refuses."""

    def __init__(self, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fleet questions")
        self._lock = threading.Lock()
        self._asked = 0

    async def run(self, call: Callable[[], Result]) -> Result:
        """Return what `call` returns; raises ApiError (RESOURCE_EXHAUSTED) if too many wait already.

        The call of a cancelled caller is dropped while it waits, but runs to its end once begun.
        """
        with self._lock:
            is_full = self._asked > self._most_waiting
            self._asked += not is_full
        if is_full:
            message = f"{self._most_waiting} questions of this kind wait already; ask again in a while"
            raise ApiError(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        found = self._pool.submit(call)
        found.add_done_callback(self._done)
        return await asyncio.wrap_future(found)

    async def read_lake(self, what: str, call: Callable[[], Result], if_slow: str) -> Result:
        """Run a call that reads `what`; raises ApiError (UNAVAILABLE) if it fails. `if_slow`: the remedy then."""
        try:
            return await self.run(call)
        except (SlowError, LakeError, OSError) as error:
            remedy = if_slow if isinstance(error, SlowError) else "`whitepanda lake verify` tells more"
            raise away(f"{what} in the lake: {error}; {remedy}") from error

    def _done(self, _found: Future[Any]) -> None:
        with self._lock:
            self._asked -= 1
