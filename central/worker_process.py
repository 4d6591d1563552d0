"""What central's helper processes have in common: they end with central, and wait for it wherever cores are short."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

__all__ = ["begin"]

_PR_SET_PDEATHSIG = 1


def begin(parent: int, *, nice: int) -> bool:
    """Tie this process to `parent`, its process id, so much `nice`r than it; False where that has ended already.

    The process ends with the thread that started it: the parent's main thread should.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before that was in force
        return False
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's goes to all; central ends its helpers
    with contextlib.suppress(OSError):
        os.nice(nice)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    return True
