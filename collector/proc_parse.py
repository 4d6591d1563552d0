"""Parsers of texts of /proc (proc(5)) and sysfs. Pure; a malformed text is a ValueError."""

import os
import re
from dataclasses import dataclass
from typing import NamedTuple

from collector.base import HostCounters

#: Length of the clock ticks that /proc/PID/stat and /proc/stat count in.
NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")

_MIN_HOST_FIELDS = 4
_LIFE_FIELDS = 20
_DEAD = {b"Z", b"X", b"x"}
_NS_PER_US = 1000
_IO_WORDS = 12


@dataclass(frozen=True, slots=True)
class TaskStat:
    """The used fields of /proc/PID/stat or /proc/PID/task/TID/stat. Times are cumulative, in clock ticks."""

    comm: str
    state: str
    utime_ticks: int
    stime_ticks: int
    start_ticks: int  # after boot
    guest_ticks: int
    last_cpu: int = 0

    @property
    def alive(self) -> bool:
        """False for a zombie or a dead task, which no longer runs anything."""
        return self.state not in {"Z", "X", "x"}


def parse_task_stat(text: bytes) -> TaskStat:
    """Parse a stat line, whose command name may hold spaces, parentheses and line ends. Raises ValueError."""
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
            last_cpu=int(rest[39 - 3]),
        )
    except IndexError as error:
        raise ValueError(f"stat line has {len(rest) + 2} fields, 43 are needed: {text[:60]!r}") from error


def parse_life(text: bytes) -> tuple[bool, bytes]:
    """Return whether a stat line's process lives, and the digits of its start in ticks after boot. Raises ValueError.

    A tenth of the cost of `parse_task_stat`: this is read for each VM at each tick.
    """
    # Fields 3 to 22 of proc(5); the command name may hold spaces and parentheses.
    rest = text[text.rfind(b")") + 2 :].split(b" ", _LIFE_FIELDS)
    if len(rest) <= _LIFE_FIELDS or not rest[_LIFE_FIELDS - 1].isdigit():
        raise ValueError(f"not a stat line: {text[:60]!r}")
    return rest[0] not in _DEAD, rest[_LIFE_FIELDS - 1]


def parse_runs(text: bytes) -> bool:
    """Return whether the task of (the beginning of) a stat line runs or waits for a CPU: state R. Raises ValueError."""
    at = text.rfind(b") ")
    state = text[at + 2 : at + 3]
    if at < 0 or not state.isalpha():
        raise ValueError(f"no state in a stat line: {text[:60]!r}")
    return state == b"R"


def parse_schedstat(text: bytes) -> tuple[int, int]:
    """Return a task's time on a CPU and waiting on a run queue (ns), from /proc/PID/schedstat. Raises ValueError."""
    cpu_ns, wait_ns, _slices = text.split()
    return int(cpu_ns), int(wait_ns)


def parse_host_stat(text: bytes) -> HostCounters:
    """Parse /proc/stat. `user_ns` excludes guest time, which the kernel also counts as user. Raises ValueError."""
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


def parse_capabilities(status: str) -> int | None:
    """Return the effective capabilities of a /proc/PID/status; None where it does not have them."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return int(found[1], 16) if found else None


class Pressure(NamedTuple):
    """Cumulative times in which some, and all, tasks that had work to do waited. None: unknown."""

    some_ns: int | None = None
    full_ns: int | None = None


def parse_pressure(text: bytes) -> Pressure:
    """Parse a file of pressures (PSI): /proc/pressure/* or a control group's. Raises ValueError."""
    times: dict[bytes, int] = {}
    for line in text.splitlines():
        head, equals, total = line.rpartition(b" total=")
        if not equals:
            raise ValueError(f"not a pressure: {line[:60]!r}")
        times[head[:4]] = int(total) * _NS_PER_US
    return Pressure(times.get(b"some"), times.get(b"full"))


def parse_flat(text: bytes) -> dict[bytes, int]:
    """Parse lines of a name and a number, such as a control group's cpu.stat. Raises ValueError."""
    return {name: int(value) for name, value in map(bytes.split, text.splitlines())}


def parse_process_io(text: bytes) -> tuple[int, int]:
    """Return a process's (read_bytes, write_bytes) from /proc/PID/io. Raises ValueError."""
    words = text.split()
    if len(words) < _IO_WORDS or words[8] != b"read_bytes:" or words[10] != b"write_bytes:":
        raise ValueError(f"not a process's io: {text[:60]!r}")
    return int(words[9]), int(words[11])


def parse_io_stat(text: bytes) -> dict[str, tuple[int, int]]:
    """Return (read, written) bytes by device ("8:0") from a control group's io.stat. Raises ValueError."""
    devices = {}
    for line in text.splitlines():
        device, *rest = line.split()
        # A device that was only named, without a count yet, has just its name.
        values = dict(pair.split(b"=") for pair in rest if pair.count(b"=") == 1)
        devices[device.decode("ascii")] = (int(values.get(b"rbytes", 0)), int(values.get(b"wbytes", 0)))
    return devices


def parse_cpu_list(text: str) -> list[int]:
    """Return the numbers of a list such as "0-3,8"; none for an empty one (a memory-only node). Raises ValueError."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus.extend(range(int(first), int(last or first) + 1))
    return cpus
