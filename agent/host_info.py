"""Facts of the host and of the agent itself: CPU model, and the agent's cost."""

import os
import resource
import time
from pathlib import Path

_UNKNOWN = "unknown"


def platform_name(proc: Path = Path("/proc")) -> str:
    """Return the CPU model, within which CPI is compared. Arm has numbers: "arm 0x41 part 0xd0c" (Neoverse N1)."""
    try:
        text = (proc / "cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _UNKNOWN
    facts: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            facts.setdefault(key.strip().lower(), " ".join(value.split()))
    if facts.get("model name"):
        return facts["model name"]
    if "cpu implementer" in facts and "cpu part" in facts:
        return f"arm {facts['cpu implementer']} part {facts['cpu part']}"
    return _UNKNOWN


def cpu_seconds() -> float:
    """Return the CPU time that this process has used, all threads."""
    return time.process_time()


def resident_bytes(proc: Path = Path("/proc")) -> int:
    """Return this process's resident memory; without /proc its peak so far."""
    try:
        pages = int((proc / "self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def open_fds(proc: Path = Path("/proc")) -> int | None:
    """Return how many file descriptors this process has open; None without /proc."""
    folder = proc / "self/fd"
    try:
        # Since Linux 6.2 the folder's size is the number; before, listing thousands of them takes a millisecond.
        return folder.stat().st_size or len(os.listdir(folder)) - 1  # noqa: PTH208 - one of them is the listing's own
    except OSError:
        return None


def threads(proc: Path = Path("/proc")) -> int | None:
    """Return how many threads this process has, those of libraries too; None without /proc."""
    try:
        # The links to a folder with n folders in it are n + 2.
        return (proc / "self/task").stat().st_nlink - 2
    except OSError:
        return None
