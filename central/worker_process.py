"""What central's helper processes have in common: they end with central, and wait for it wherever cores are short.

What asks central to stop often goes to all of its processes: the terminal's SIGINT, and systemd's SIGTERM. Helpers
leave it to central, which ends them once it has done with them; else their ends would look to it like crashes.
"""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
from collections.abc import Sequence
from typing import Any

#: In the environment of a helper whose memory is bounded: one BLAS thread, and no allocator that takes address space
#: ahead, as all of it counts.
FRUGAL = {"OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}

_PR_SET_PDEATHSIG = 1
_CENTRALS = (signal.SIGTERM, signal.SIGINT)


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a helper, which must call `begin`. To be called by the main thread: the process ends with the caller.

    The signals are held back from its first moment on: it is not at `begin` before it has loaded its modules.

    Args:
        command: of the process.
        options: of `subprocess.Popen`.

    Raises:
        OSError: it cannot be started.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _CENTRALS)
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin(parent: int, *, nice: int) -> bool:
    """Tie this process to `parent`, its process id, so much `nice`r than it; False where that has ended already.

    The process ends with the thread that started it: the parent's main thread should.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before that was in force
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
    """Have what is more fail in this process with MemoryError: the machine and central do not run out of memory."""
    with contextlib.suppress(OSError, ValueError):  # the system allows less already
        resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, size_bytes))
