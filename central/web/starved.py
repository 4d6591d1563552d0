"""Whether a flood of frames keeps gRPC's core from all other connections, and how it is made to take turns.

The core reads in the thread that waits (`whitepanda.common.cli.GRPC_EXPERIMENTS`), which is cheap: it goes on with a
connection until nothing is left to be read. Two that are flooded with small frames of HTTP/2 keep it for ever, and no
option bounds those. With the core's pool of threads connections take turns, but each row costs twice the CPU time.
So central begins without the pool, and begins again with it once such a flood comes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from typing import NoReturn

import grpc
import grpc.aio

from whitepanda.common import log
from whitepanda.common.cli import GRPC_EXPERIMENTS

__all__ = ["StarvedError", "begin_again", "takes_turns", "watch"]

_SETTING = "GRPC_EXPERIMENTS"
_POOL = GRPC_EXPERIMENTS.removeprefix("-")
_PAUSE_S = 1.0  # after a look that found nothing
_LOOK_S = 0.1
_LOOKS = 10  # in a row
_BUSY = 0.8  # of that time: the thread of a process that was stopped, or has no CPU, is not busy


class StarvedError(Exception):
    """gRPC's thread reads some connections and no others."""


def takes_turns() -> bool:
    """Return whether gRPC's core has its pool of threads."""
    return os.environ.get(_SETTING) != GRPC_EXPERIMENTS


async def watch() -> None:
    """Have gRPC's thread do something each second.

    Raises:
        StarvedError: it was busy for a second and did not come to that within a tenth of it, again and again.

    """
    async with grpc.aio.insecure_channel("unix:/nobody") as channel:
        clock = _thread_clock()
        looks = 0
        while looks < _LOOKS:
            call = channel.unary_unary("/nobody/Nothing")(b"")  # it can only fail, at once
            began_s, spent_s = time.monotonic(), time.clock_gettime(clock)
            answered, _ = await asyncio.wait((asyncio.ensure_future(call.code()),), timeout=_LOOK_S)
            busy = (time.clock_gettime(clock) - spent_s) / (time.monotonic() - began_s)
            if answered or busy < _BUSY:
                looks = 0
                await asyncio.sleep(_PAUSE_S)
            else:
                looks += 1
    log.get("central").error(
        "a flood of HTTP/2 frames keeps gRPC from all connections but those that send it; central begins again with a "
        "pool of threads, which costs twice the CPU per row until its next start; block who sends most "
        "(ss -tin has bytes_received)"
    )
    raise StarvedError


def _thread_clock() -> int:
    """Return the CPU clock of gRPC's thread; grpc.aio starts one for a process."""
    thread = next(each for each in threading.enumerate() if "_poll_wrapper" in each.name)
    return time.pthread_getcpuclockid(thread.ident or 0)


def begin_again() -> NoReturn:
    """Replace this process by a new central whose gRPC core takes turns. All streams end; agents come again."""
    os.execve(  # the same program, and nothing from outside
        sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, _SETTING: _POOL}
    )
