"""Parsers of /proc texts (proc(5)): bytes in, numbers out. Pure; a malformed text is a ValueError."""

from __future__ import annotations

import os
from dataclasses import dataclass

from collector.base import HostCounters

__all__ = ["NS_PER_TICK", "TaskStat", "parse_host_stat", "parse_schedstat", "parse_task_stat"]

#: Length of the clock ticks that /proc/PID/stat and /proc/stat count in.
NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")

_MIN_HOST_FIELDS = 4


@dataclass(frozen=True, slots=True)
class TaskStat:
    """What is used of /proc/PID/stat or /proc/PID/task/TID/stat. Times are cumulative, in clock ticks."""

    comm: str
    state: str
    utime_ticks: int
    stime_ticks: int
    start_ticks: int  # after boot
    guest_ticks: int

    @property
    def alive(self) -> bool:
        """False for a zombie or a dead task, which no longer runs anything."""
        return self.state not in {"Z", "X", "x"}


def parse_task_stat(text: bytes) -> TaskStat:
    """Parse a stat line. The command name may itself hold spaces, parentheses and line ends.

    Raises:
        ValueError: the text is not a stat line.

    """
    opened, closed = text.find(b"("), text.rfind(b")")
    if opened < 0 or closed < opened:
        raise ValueError(f"not a stat line: {text[:60]!r}")
    # Numbered as in proc(5), where the state is field 3.
    rest = text[closed + 1 :].split()
    try:
        return TaskStat(
            comm=text[opened + 1 : closed].decode("utf-8", "replace"),
            state=rest[0].decode("ascii"),
            utime_ticks=int(rest[14 - 3]),
            stime_ticks=int(rest[15 - 3]),
            start_ticks=int(rest[22 - 3]),
            guest_ticks=int(rest[43 - 3]),
        )
    except IndexError as error:
        raise ValueError(f"stat line has {len(rest) + 2} fields, 43 are needed: {text[:60]!r}") from error


def parse_schedstat(text: bytes) -> tuple[int, int]:
    """Return a task's (time on a CPU, time waiting on a run queue) in nanoseconds, from /proc/PID/schedstat.

    Raises:
        ValueError: the text is not three numbers.

    """
    cpu_ns, wait_ns, _slices = text.split()
    return int(cpu_ns), int(wait_ns)


def parse_host_stat(text: bytes) -> HostCounters:
    """Parse /proc/stat. `user_ns` is without the guests' time, which the kernel counts into user time too.

    Raises:
        ValueError: there is no "cpu" line, or it is malformed.

    """
    cpus = 0
    total: list[int] | None = None
    for line in text.splitlines():
        if not line.startswith(b"cpu"):
            continue
        name, *values = line.split()
        if name == b"cpu":
            total = [int(value) * NS_PER_TICK for value in values]
        else:
            cpus += 1
    if total is None or len(total) < _MIN_HOST_FIELDS:
        raise ValueError(f"no usable cpu line: {text[:60]!r}")
    user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice = (total + [0] * 10)[:10]
    return HostCounters(
        cpus=max(cpus, 1),
        user_ns=max(user + nice - guest - guest_nice, 0),
        system_ns=system + irq + softirq,
        idle_ns=idle,
        iowait_ns=iowait,
        guest_ns=guest + guest_nice,
        steal_ns=steal,
    )
