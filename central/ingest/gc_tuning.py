"""Python's garbage collector, kept from stopping the loop.

Each open stream is some hundred objects. The collector's third generation scans all of them whenever their number
has grown by a quarter: with 10,000 streams a pause of 0.8 s, every few seconds while hosts connect or begin to send,
and a third of central's CPU time (bench/ingest/study.py). It finds next to nothing: streams that end leave no cycles
behind, but for a small one of gRPC's where a stream is refused. So the young generations are collected as usual, and
all of it rarely.
"""

import asyncio
import ctypes
import gc
from collections.abc import Callable

#: Objects before the first generation is collected, and such collections before the second one is. Never the third.
YOUNG = (50_000, 5, 2**31 - 1)

_CHECK_S = 60.0
_CHECKS = 60  # before everything is collected anyway, that is hourly
_ENDED = 10_000  # streams, or before that when so many have ended: should one ever leave a cycle, they are few


def be_patient() -> None:
    """Have Python collect young objects only, and freeze those that are there: what was imported stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*YOUNG)


async def collect_rarely(ended: Callable[[], int]) -> None:
    """Collect everything once an hour, or after many streams have ended (`ended` counts them), until cancelled."""
    checks, before = 0, ended()
    while True:
        await asyncio.sleep(_CHECK_S)
        checks += 1
        if checks >= _CHECKS or ended() - before >= _ENDED:
            checks, before = 0, ended()
            collect()


def collect() -> None:
    """Collect everything, and give memory that is free back to the system, of all of malloc's arenas (glibc)."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
