"""Threads of what central must do by itself: rolls, builds, revocation. Questions, however many, cannot use them up."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

__all__ = ["in_own_thread"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

_threads = ThreadPoolExecutor(12, "own")  # more than there are such works


async def in_own_thread(call: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Do as `asyncio.to_thread` does, in these threads."""
    work = partial(contextvars.copy_context().run, call, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads, work)
