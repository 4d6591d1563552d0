"""Runs inside the arm64 guest, as its /app/main.py: limits by `cpu.max` of a real kernel's cgroup v2.

Prints "RESULT" and a JSON object; test_arm64_cpu_max.py asserts on it. Only the standard library is here, and in /app
the repository's `collector` package, `agent/act/cpu_max.py` and what these need.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, "/app")

from agent.act.cpu_max import CpuMax, cpu_max_of
from agent.act.records import ActError
from collector.base import VmIdentity
from collector.cgroup.tree import CgroupTree

GROUPS = Path("/sys/fs/cgroup")
VM = "57500000-0000-4000-8000-0000000ac700"


def mount_cgroups():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", os.fsencode(GROUPS), b"cgroup2", 0, None):
        raise OSError(ctypes.get_errno(), "mount cgroup2")
    (GROUPS / "cgroup.subtree_control").write_text("+cpu")


def busy(group):
    """Start a process that wants a whole CPU, in a group."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    join(process.pid, group)
    return process.pid


def join(pid, group):
    (GROUPS / group).mkdir(parents=True, exist_ok=True)
    (GROUPS / group / "cgroup.procs").write_text(str(pid))


def used(group, seconds=2.0):
    """Return how many CPUs a group uses, and how often it was throttled meanwhile."""

    def stat():
        lines = (GROUPS / group / "cpu.stat").read_text().splitlines()
        return {key: int(value) for key, value in map(str.split, lines)}

    before, began = stat(), time.monotonic()
    time.sleep(seconds)
    now, elapsed = stat(), time.monotonic() - began
    return (now["usage_usec"] - before["usage_usec"]) / 1e6 / elapsed, now["nr_throttled"] - before["nr_throttled"]


def backend(pid):
    return cpu_max_of(VmIdentity(VM, "web", pid, "e", (1,)), CgroupTree())


def said(call, *arguments):
    try:
        call(*arguments)
    except ActError as error:
        return str(error)
    return ""


def main():
    mount_cgroups()
    found = {}
    pid = busy("qemu.slice/101.scope")
    found["no_controller"] = said(backend, pid)  # the slice does not hand it on
    (GROUPS / "qemu.slice/cgroup.subtree_control").write_text("+cpu")
    limit = backend(pid)
    found["before"], found["free"] = limit.read(VM), used("qemu.slice/101.scope")
    after = limit.target(VM, 0.2)
    limit.write(VM, after)
    found["after"], found["limited"] = limit.read(VM), used("qemu.slice/101.scope")
    found["no_less"] = said(limit.target, VM, 0.2)
    found["refused"] = said(limit.write, VM, "1 100000")  # less than the kernel takes
    found["kept"] = limit.read(VM)
    limit.write(VM, found["before"])
    found["undone"], found["free_again"] = limit.read(VM), used("qemu.slice/101.scope")
    limit.write(VM, limit.target(VM, 0.01))
    found["least"] = limit.read(VM)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    (GROUPS / "qemu.slice/101.scope").rmdir()
    found["gone"], found["write_gone"] = limit.read(VM), said(limit.write, VM, "max 100000")
    first, second = busy("shell"), busy("shell")
    found["shared"] = said(backend, first)
    join(second, "other")
    found["alone"] = CpuMax(backend(first).group).read(VM)
    print("RESULT", json.dumps(found), flush=True)


main()
