"""Python's garbage collector, kept from stopping the loop.

Each open stream is some hundred objects. The collector's third generation scans all of them whenever their number
has grown by a quarter: with 10,000 streams a pause of 0.8 s, every few seconds while hosts connect or begin to send,
and a third of central's CPU time (bench/ingest/study.py). Streams leave no cycles behind, except a small one of gRPC's
for a refused stream. So only the young generations are collected as usual.
"""

import asyncio
import ctypes
import gc
from collections.abc import Callable

#: Objects before the first generation is collected, and such collections before the second one is. Never the third.
YOUNG = (50_000, 5, 2**31 - 1)

_CHECK_S = 60.0
_CHECKS = 60  # before everything is collected anyway, that is hourly
_ENDED = 10_000  # streams, or when this many have ended, in case they leave cycles


def be_patient() -> None:
    """Have Python collect young objects only, and freeze the present ones: what was imported stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*YOUNG)


async def collect_rarely(ended: Callable[[], int]) -> None:
    """Collect everything once an hour, or after many streams have ended (`ended` counts them), until cancelled."""
    while True:
        before = ended()
        for _ in range(_CHECKS):
            await asyncio.sleep(_CHECK_S)
            if ended() - before >= _ENDED:
                break
        collect()


def collect() -> None:
    """Collect everything, and give free memory back to the system."""
    gc.collect()
    trim()


def trim() -> None:
    """Give the free memory of all of malloc's arenas back to the system (glibc)."""
    if (malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        malloc_trim(0)
