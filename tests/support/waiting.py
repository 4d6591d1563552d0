"""Waiting for a condition: no test assumes how long something takes, it only gives up at last."""

import asyncio
import os
import time
from collections.abc import Callable
from typing import TypeVar

LIMIT_S = 120.0 * float(os.environ.get("WHITEPANDA_TEST_PATIENCE", "1"))
T = TypeVar("T")


def wait_until(
    condition: Callable[[], T], what: str | Callable[[], str] = "did not come true", *, limit_s: float = LIMIT_S
) -> T:
    """Return what `condition` returns once that is true; fail with `what` after `limit_s`."""
    end = time.monotonic() + limit_s
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(what() if callable(what) else what)
        time.sleep(0.02)
    return found


async def until(condition: Callable[[], T], what: str = "did not come true", *, limit_s: float = LIMIT_S) -> T:
    """Return what `condition` returns once that is true, while the loop runs on."""
    end = time.monotonic() + limit_s
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(what)
        await asyncio.sleep(0.01)
    return found
