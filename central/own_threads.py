"""Threads for central's own work (rolls, builds, revocation, totals for /metrics), which questions cannot use up."""

import asyncio
import contextvars
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_FREE_S = 0.01  # CPU time that an answer may take

_threads = ThreadPoolExecutor(16, "own")  # more than such tasks exist


async def in_own_thread(call: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run a call as `asyncio.to_thread` does, in these threads."""
    work = partial(contextvars.copy_context().run, call, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads, work)


class SharedAnswer(Generic[_T]):
    """The result of a call in an own thread, shared by all who ask while it runs.

    An answer holds for `rest` times the CPU time that it took beyond 10 ms.
    """

    def __init__(self, call: Callable[[], _T], rest: float = 0.0) -> None:
        self._call = call
        self._rest = rest
        self._good_until_s = 0.0
        self._answer: asyncio.Future[_T] | None = None

    async def get(self) -> _T:
        """Return the answer. Raises what the call raises."""
        answer = self._answer
        if answer is None or (answer.done() and time.monotonic() >= self._good_until_s):
            answer = self._answer = asyncio.ensure_future(in_own_thread(self._timed))
        return await asyncio.shield(answer)

    def _timed(self) -> _T:
        began_s = time.thread_time()
        try:
            return self._call()
        finally:
            took_s = time.thread_time() - began_s
            self._good_until_s = time.monotonic() + self._rest * max(0.0, took_s - _FREE_S)
