"""perf_event_open(2) and its ioctls, by ctypes: the kernel's interface is small and stable, libpfm is not needed."""

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from collector.base import PERF_EVENTS, PerfGroup, Reason, SourceError
from collector.files import NO_FD
from collector.perf.encoding import Event

_SYSCALL_NUMBERS = {"x86_64": 298, "aarch64": 241}

READ_FORMAT = 1 | 2 | 4 | 8  # total time enabled, total time running, ids, the whole group

FLAG_PID_CGROUP = 4
FLAG_FD_CLOEXEC = 8
IOC_ENABLE = 0x2400
IOC_DISABLE = 0x2401
IOC_ID = 0x80082407

# type, size, config, sample_period, sample_type, read_format, flags, wakeup_events, bp_type, config1, config2: the
# structure's second published size. Counting needs nothing newer, and every kernel since 2.6.33 takes it.
ATTR = struct.Struct("=IIQQQQQIIQQ")


def pack_attr(event: Event, *, disabled: bool) -> bytes:
    """Return `struct perf_event_attr` of an event for the kernel; `disabled`: it counts once it is enabled.

    All other flags are 0. `exclude_guest`: with 1 all that a VM executes would be missing. `exclude_host`: a vCPU
    thread's time in KVM and QEMU is work for that VM. `exclude_kernel`: in guest mode it would drop the guest's kernel.
    `pinned` takes counters from the guests' virtual PMUs. `inherit`: a vCPU thread's threads are not vCPUs.
    """
    head = (event.type, ATTR.size, event.config, 0, 0, READ_FORMAT, int(disabled), 0, 0)
    return ATTR.pack(*head, event.config1, event.config2)


class Kernel:
    """The system calls; tests put failures in their place."""

    def __init__(self) -> None:
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long
        long = ctypes.c_long
        self._syscall.argtypes = [long, ctypes.c_char_p, long, long, long, long]
        self._number = _SYSCALL_NUMBERS.get(os.uname().machine)

    def perf_event_open(self, attr: bytes, pid: int, cpu: int, group_fd: int, flags: int) -> int:
        """Open one event and return its file descriptor. Raises OSError; ENOSYS on an unknown kind of machine."""
        if self._number is None:
            raise OSError(errno.ENOSYS, f"perf_event_open: not known for {os.uname().machine}")
        while True:
            fd = int(self._syscall(self._number, attr, pid, cpu, group_fd, flags))
            if fd >= 0:
                return fd
            number = ctypes.get_errno()
            if number != errno.EINTR:
                raise OSError(number, os.strerror(number))

    def enable(self, leader_fd: int) -> None:
        """Start a group's counting. Its members are never off by themselves, so the leader is enough."""
        fcntl.ioctl(leader_fd, IOC_ENABLE, 0)

    def disable(self, leader_fd: int) -> None:
        """Stop a group's counting; its counts and clocks stand still."""
        fcntl.ioctl(leader_fd, IOC_DISABLE, 0)

    def event_id(self, fd: int) -> int:
        """Return the kernel's id of an event, by which group readings name their values."""
        return int.from_bytes(fcntl.ioctl(fd, IOC_ID, bytes(8)), "little")

    def read(self, fd: int, size_bytes: int) -> bytes:
        """Read an event or group."""
        return os.read(fd, size_bytes)

    def close(self, fd: int) -> None:
        """Close an event."""
        os.close(fd)


class PerfError(SourceError):
    """A perf system call failed. `errno` is the kernel's, `reason` the metrics'."""

    def __init__(self, message: str, reason: Reason, number: int) -> None:
        super().__init__(message, reason)
        self.errno = number


# No such event in the CPU, or in the hypervisor below it.
_NO_EVENT = (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP, errno.ENXIO, errno.ENOSYS)
_REASONS = {
    **dict.fromkeys(_NO_EVENT, Reason.NO_PMU),
    **dict.fromkeys((errno.EACCES, errno.EPERM), Reason.NO_PERMISSION),
    **dict.fromkeys(NO_FD, Reason.FD_LIMIT),
    errno.EBUSY: Reason.VPMU_CONFLICT,  # another exclusive owner: KVM's mediated PMU, on x86
    errno.ESRCH: Reason.NOT_PRESENT,  # the thread has ended
}


def reason_for(number: int) -> Reason:
    """Map an errno of perf's calls to a reason. The caller finds out whether `perf_event_paranoid` refused."""
    return _REASONS.get(number, Reason.SOURCE_FAILED)


def perf_error(what: str, error: OSError) -> PerfError:
    """Return the error of a call that failed, with its reason."""
    number = error.errno or 0
    return PerfError(f"{what}: {error.strerror}", reason_for(number), number)


@dataclass(frozen=True, slots=True)
class Group:
    """An open group: file descriptors and ids in the order of the events, the leader first."""

    fds: tuple[int, ...]
    ids: tuple[int, ...]


def open_group(
    events: Sequence[Event], pid: int, cpu: int = -1, *, kernel: Kernel, flags: int = 0, on: bool = True
) -> Group:
    """Open `events` as one real group (counted together or not at all), the leader first; `on`: it counts immediately.

    `pid` is a thread's id (0: the calling thread), with FLAG_PID_CGROUP in `flags` an open control group's folder.
    `cpu` -1 follows a thread over all CPUs; a control group is on one CPU. After a PerfError nothing stays open.
    """
    fds: list[int] = []
    try:
        for event in events:
            # Siblings wait for their leader, so all start counting at the same instant.
            attr = pack_attr(event, disabled=not fds)
            leader = fds[0] if fds else -1
            fds.append(kernel.perf_event_open(attr, pid, cpu, leader, flags | FLAG_FD_CLOEXEC))
        ids = tuple(kernel.event_id(fd) for fd in fds)
        if on:
            kernel.enable(fds[0])
    except OSError as error:
        name = events[min(len(fds), len(events) - 1)].name
        close_group(Group(tuple(fds), ()), kernel=kernel)
        number = error.errno or 0
        where = f"control group, CPU {cpu}" if flags & FLAG_PID_CGROUP else f"thread {pid}"
        what = f"{error.strerror} ({errno.errorcode.get(number, number)})"
        raise PerfError(f"perf_event_open({name}, {where}): {what}", reason_for(number), number) from error
    return Group(tuple(fds), ids)


def read_group(group: Group, *, kernel: Kernel) -> PerfGroup:
    """Read all counters of a group in one system call. Raises PerfError, also in the kernel's error state."""
    return unpack_reading(group, read_raw(group, kernel=kernel))


def read_raw(group: Group, *, kernel: Kernel) -> bytes:
    """Read a group as `unpack_reading` takes it; equal bytes are equal readings. Raises PerfError: as `read_group`."""
    size_bytes = 24 + 16 * len(group.fds)
    try:
        data = kernel.read(group.fds[0], size_bytes)
    except OSError as error:
        raise perf_error("reading perf events", error) from error
    if len(data) != size_bytes:
        raise PerfError(f"reading perf events: got {len(data)} bytes", Reason.SOURCE_FAILED, 0)
    return data


def unpack_reading(group: Group, data: bytes, opened: int = 0) -> PerfGroup:
    """Take a reading of the group's opening number `opened` apart. Raises PerfError if it is not of this group."""
    count = len(group.fds)
    words = _READINGS[count].unpack(data)
    if words[0] != count or words[4::2] != group.ids:
        found = f"got {words[0]} events of ids {words[4::2]}"
        raise PerfError(f"reading perf events: {found}", Reason.SOURCE_FAILED, 0)
    return PerfGroup(opened, words[1], words[2], words[3::2])


# By the number of events: that number, time enabled, time running, then value and id of each event.
_READINGS = tuple(struct.Struct(f"={3 + 2 * count}Q") for count in range(len(PERF_EVENTS) + 1))


def close_group(group: Group, *, kernel: Kernel) -> None:
    """Close all events of a group. Never raises."""
    for fd in reversed(group.fds):
        with contextlib.suppress(OSError):
            kernel.close(fd)
