"""The host's two clocks, injected so that tests make time: monotonic for durations, Unix time for labels."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Protocol

__all__ = ["Clock", "SystemClock", "boot_id"]


class Clock(Protocol):
    """What the daemon knows of time."""

    def mono_ns(self) -> int:
        """Nanoseconds of CLOCK_MONOTONIC: for durations and the schedule; never steps."""

    def unix_ns(self) -> int:
        """Nanoseconds since 1970: for labels; may step."""

    async def sleep_until(self, mono_ns: int) -> None:
        """Return when `mono_ns` is reached; at once where it has passed (other tasks run first)."""


class SystemClock:
    """The kernel's clocks."""

    def mono_ns(self) -> int:
        """Nanoseconds of CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    def unix_ns(self) -> int:
        """Nanoseconds since 1970."""
        return time.time_ns()

    async def sleep_until(self, mono_ns: int) -> None:
        """Sleep on the event loop until `mono_ns`: up to 1 ms late by epoll's resolution, never early."""
        await asyncio.sleep(max(0, mono_ns - time.monotonic_ns()) / 1e9)


def boot_id(proc: Path = Path("/proc")) -> str:
    """Return the kernel's name of this boot, or "" where /proc does not tell."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
