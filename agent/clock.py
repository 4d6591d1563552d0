"""The host's two clocks, injected so that tests make time: monotonic for durations, Unix time for labels."""

import asyncio
import time
from pathlib import Path
from typing import Protocol

# The event loop's timers have epoll's resolution, 1 ms, and wake late on an idle CPU. So the loop wakes this much
# early, and the thread itself sleeps the rest.
_PRECISE_NS = 2_000_000


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
        """Sleep on the event loop until `mono_ns`, the last moments of it precisely."""
        await asyncio.sleep(max(0, mono_ns - time.monotonic_ns() - _PRECISE_NS) / 1e9)
        left_ns = mono_ns - time.monotonic_ns()
        if left_ns > 0:
            time.sleep(min(left_ns, _PRECISE_NS) / 1e9)  # noqa: ASYNC251 - see _PRECISE_NS


def boot_id(proc: Path = Path("/proc")) -> str:
    """Return the kernel's name of this boot, or "" where /proc does not tell."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
