"""Work on several days beside each other: Python makes half of a day's state, on one core, queries the rest on all.

An engine runs one query at a time, so each lane has an engine of its own, with its part of memory and threads.
"""

from __future__ import annotations

import concurrent.futures
import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from central.build.engine import Engine

__all__ = ["Interruptible", "duckdb_lanes", "in_lanes"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Interruptible(Protocol):
    """What a lane works with."""

    def interrupt(self) -> None:
        """Have what runs now fail. May be called from any thread."""


_Lane = TypeVar("_Lane", bound=Interruptible)


@contextmanager
def duckdb_lanes(
    days: int, *, memory_limit_mib: int, threads: int, spill_dir: Path
) -> Iterator[list[Engine]]:
    """Open engines for so many days, at most one per thread; they share the memory and the threads."""
    count = max(1, min(days, threads))
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                Engine(
                    memory_limit_mib=memory_limit_mib // count,
                    threads=threads // count,
                    spill_dir=spill_dir / f"lane-{lane}",
                )
            )
            for lane in range(count)
        ]


def in_lanes(
    lanes: Sequence[_Lane], items: Sequence[_Item], work: Callable[[_Lane, _Item], _Result]
) -> list[_Result]:
    """Do the work for each item, as many at once as there are lanes.

    Returns:
        The results, in the items' order.

    Raises:
        Exception: what failed first. What has not begun then is not done, what runs is interrupted and waited for.

    """
    if len(lanes) == 1:
        return [work(lanes[0], item) for item in items]
    idle = queue.SimpleQueue[_Lane]()
    for lane in lanes:
        idle.put(lane)

    def one(item: _Item) -> _Result:
        lane = idle.get()
        try:
            return work(lane, item)
        finally:
            idle.put(lane)

    with concurrent.futures.ThreadPoolExecutor(len(lanes), "lane") as pool:
        running = [pool.submit(one, item) for item in items]
        done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_EXCEPTION)
        failed = next((each for each in running if each in done and each.exception()), None)
        if failed is not None:
            pool.shutdown(wait=False, cancel_futures=True)
            for lane in lanes:
                lane.interrupt()
        return [each.result() for each in ([failed] if failed else running)]
