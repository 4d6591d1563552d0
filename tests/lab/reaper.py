"""Run a command and reap every orphan that it leaves, until none is left.

libvirt waits for a QEMU that it ends until its process id is free. QEMU detaches itself, so that is process 1's work,
and in containers and small virtual machines process 1 reaps late or never: each probe and each stop of a VM would take
many seconds. A "child subreaper" (prctl(2)) gets the orphans instead.

usage: reaper.py COMMAND [ARGUMENT ...]
"""

import ctypes
import os
import signal
import subprocess
import sys

PR_SET_CHILD_SUBREAPER = 36

if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
    raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with subprocess.Popen(sys.argv[1:]) as child:
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            break
        if pid == child.pid:
            child.returncode = os.waitstatus_to_exitcode(status)
