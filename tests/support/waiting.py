"""Waiting for what other threads do."""

import time
from collections.abc import Callable

import pytest


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for something to become true; fail after 20 s."""
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("did not come true")
