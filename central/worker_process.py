"""Central's helper processes: they end with central, and run at lower priority.

A terminal's SIGINT and systemd's SIGTERM often go to all of its processes. Helpers ignore them: central ends them when
it is done, and would take an earlier end for a crash.
"""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
from collections.abc import Sequence
from typing import Any

#: Environment of a helper whose memory is bounded: one BLAS thread, and no allocator that reserves address space.
FRUGAL = {"OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}

_PR_SET_PDEATHSIG = 1
_CENTRALS = (signal.SIGTERM, signal.SIGINT)


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a helper, which must call `begin`. Call this from the main thread: the helper ends with its caller.

    Signals are blocked from the start, as the helper reaches `begin` only after its imports. `options` are those of
    `subprocess.Popen`, which may raise OSError.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _CENTRALS)
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def close_pipes(process: subprocess.Popen[bytes]) -> None:
    """Close a helper's pipes; it may have ended with something unsent in them."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError, ValueError):
                pipe.close()


def begin(parent: int, *, nice: int) -> bool:
    """Tie this process to its parent (a process id), at a higher niceness; return False if that has ended already.

    The process ends with the thread that started it, which should be the parent's main thread.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the prctl
        return False
    for number in _CENTRALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _CENTRALS)
    with contextlib.suppress(OSError):
        os.nice(nice)
        if os.sched_getscheduler(0) == os.SCHED_OTHER:  # not above a central that runs with idle priority
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    return True


def bound_memory(size_bytes: int) -> None:
    """Limit this process's memory: beyond it, allocations raise MemoryError."""
    with contextlib.suppress(OSError, ValueError):  # the system allows less already
        resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, size_bytes))
