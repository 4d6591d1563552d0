"""How a QEMU was started, as far as its source needs it, from its command line and its folder in /proc."""

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from collector.files import read_once
from collector.qemu.cmdline import CommandLine


@dataclass(frozen=True, slots=True)
class Launch:
    """How a VM was started.

    `vmid` is Proxmox' number ("" elsewhere), `qmp` the sockets, `taps` the host's devices by back-end ("" unknown),
    `netns` the `network_namespace`, `uid` the user.
    """

    pid: int
    start_ticks: int
    command: CommandLine
    vmid: str
    qmp: tuple[str, ...]
    taps: tuple[str, ...]
    netns: int
    uid: int


def network_namespace(folder: str | Path) -> int:
    """Return the network namespace of a process by its folder in /proc; 0 unknown.

    It is the inode of net/dev. /proc/PID/ns/net needs the right to trace the process, which the agent's unit lacks.
    """
    try:
        return Path(f"{folder}/net/dev").stat().st_ino
    except OSError:
        return 0


def taps_of(command: CommandLine, folder: str) -> tuple[str, ...]:
    """Return the host's device per network back-end.

    For taps named by the kernel or a helper, or handed in, it comes from the process's open files, if readable.
    """
    names = [netdev.ifname if netdev.tap else "" for netdev in command.netdevs]
    nameless = [i for i, netdev in enumerate(command.netdevs) if netdev.tap and not netdev.ifname]
    if nameless:
        opened = _tun_names(folder)
        by_fd = {i: opened.get(fd) for i in nameless for fd in command.netdevs[i].fds[:1]}
        names = [by_fd.get(i) or name for i, name in enumerate(names)]
        # The others in the order in which QEMU opened them; several queues are one device.
        left = [name for name in dict.fromkeys(opened[fd] for fd in sorted(opened)) if name not in names]
        waiting = [i for i in nameless if not names[i]]
        if len(left) == len(waiting):
            for i, name in zip(waiting, left, strict=True):
                names[i] = name
    return tuple(names)


def _tun_names(folder: str) -> dict[int, str]:
    """Return the tap devices that a process has open, by file descriptor; empty if these cannot be read."""
    found = {}
    with contextlib.suppress(OSError, ValueError):
        for name in listed(f"{folder}/fdinfo"):
            match = re.search(rb"^iff:\s*(\S+)", read_once(f"{folder}/fdinfo/{name}"), re.MULTILINE)
            if match:
                found[int(name)] = match[1].decode("utf-8", "replace")
    return found


def absolute(path: str, folder: str) -> str:
    """Return a process's path as seen from its working directory; unchanged if that cannot be read."""
    if path.startswith(("/", "\0")):
        return path
    try:
        return str(Path(f"{folder}/cwd").readlink() / path)
    except OSError:
        return path


def listed(folder: str | Path) -> list[str]:
    """Return the names in a folder. Raises OSError."""
    return os.listdir(folder)  # noqa: PTH208 - of all processes: no object for each
