"""CPU time of whole processes, in nanoseconds, by one system call each: which of them have not run at all.

The clock is clock_getcpuclockid(3)'s. It sums the schedstat files of all threads, ended ones included: while it stands
still no thread of the process was on a CPU, so nothing that it does itself was counted. Its threads' waits can grow:
the kernel adds to them when it moves a waiting thread to another CPU.
"""

import os
from pathlib import Path
from time import clock_gettime_ns

_SCHED_CLOCK = 2  # the kernel's CPUCLOCK_SCHED, in the low three bits of a process's clock; above them ~PID


class ProcessClock:
    """Reads processes' clocks; none where `proc_root` has other process ids than this process's namespace."""

    def __init__(self, proc_root: str = "/proc") -> None:
        try:
            self._works = Path(proc_root, "self").readlink() == Path(str(os.getpid()))
        except OSError:
            self._works = False

    def read(self, pid: int) -> int | None:
        """Return the CPU time of a process so far; None where it is unknown (it has ended)."""
        if not self._works:
            return None
        try:
            return clock_gettime_ns((~pid << 3) | _SCHED_CLOCK)
        except OSError:
            return None
