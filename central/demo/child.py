"""Runs `whitepanda` as a child that dies with its parent: `-m central.demo.child PARENT_PID ARGUMENTS...`."""

import ctypes
import os
import signal
import sys

from whitepanda.common import cli

_PR_SET_PDEATHSIG = 1  # prctl(2)


def main() -> None:
    """Tie this process to its parent, then be the `whitepanda` command."""
    parent = int(sys.argv[1])
    # A parent that is killed cannot clean up; the kernel can. Elsewhere than on Linux there is no prctl.
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit(f"the parent {parent} is gone")
    sys.argv = ["whitepanda", *sys.argv[2:]]
    cli.main()


if __name__ == "__main__":
    main()
