"""The binding with failures in the kernel's place, and on this machine's own kernel with software events."""

import ctypes
import errno
import os
import struct
import threading
import time
from pathlib import Path

import pytest

from collector.base import Reason
from collector.perf import binding
from collector.perf.binding import Kernel, PerfError, close_group, open_group, pack_attr, read_group
from collector.perf.events import CONTEXT_SWITCHES, CYCLES, CYCLES_AND_INSTRUCTIONS, INSTRUCTIONS, TASK_CLOCK_NS, Event
from tests.support.open_files import open_files
from tests.support.perf_attr import EventAttr


class ScriptedKernel(Kernel):
    """Answers from lists, and knows which descriptors are open."""

    def __init__(self, *, open_errors=(), id_errno=0, enable_errno=0, close_errno=0, data=b""):
        self.open_errors = list(open_errors)
        self.id_errno, self.enable_errno, self.close_errno = id_errno, enable_errno, close_errno
        self.data = data
        self.calls = []
        self.opened, self.closed, self.enabled = [], [], []

    def perf_event_open(self, attr, pid, cpu, group_fd, flags):
        self.calls.append((EventAttr.unpack(attr), pid, cpu, group_fd, flags))
        number = self.open_errors.pop(0) if self.open_errors else 0
        if number:
            raise OSError(number, os.strerror(number))
        self.opened.append(100 + len(self.opened))
        return self.opened[-1]

    def event_id(self, fd):
        if self.id_errno:
            raise OSError(self.id_errno, os.strerror(self.id_errno))
        return fd + 1000

    def enable(self, leader_fd):
        if self.enable_errno:
            raise OSError(self.enable_errno, os.strerror(self.enable_errno))
        self.enabled.append(leader_fd)

    def read(self, fd, size_bytes):
        if isinstance(self.data, int):
            raise OSError(self.data, os.strerror(self.data))
        return self.data[:size_bytes]

    def close(self, fd):
        self.closed.append(fd)
        if self.close_errno:
            raise OSError(self.close_errno, os.strerror(self.close_errno))


def test_attr_is_what_the_kernel_header_says():
    attr = pack_attr(INSTRUCTIONS, disabled=True)
    assert len(attr) == 72
    kind, size, config, period, sample, read_format, flags = struct.unpack_from("=IIQQQQQ", attr)
    assert (kind, size, config, period, sample) == (0, 72, 1, 0, 0)
    assert read_format == 1 | 2 | 4 | 8
    assert flags == 1  # disabled and nothing else
    assert not any(attr[48:])


@pytest.mark.parametrize(
    ("name", "bit"),
    [
        ("disabled", 0),
        ("inherit", 1),
        ("pinned", 2),
        ("exclude_kernel", 5),
        ("exclude_hv", 6),
        ("exclude_host", 19),
        ("exclude_guest", 20),
    ],
)
def test_bits_are_the_kernels(name, bit):
    attr = EventAttr(CYCLES, **{name: True})
    assert attr.flags == 1 << bit
    assert getattr(EventAttr.unpack(attr.pack()), name)


def test_a_group_has_a_leader_counts_guests_and_follows_the_thread():
    kernel = ScriptedKernel()
    group = open_group(CYCLES_AND_INSTRUCTIONS, 4321, kernel=kernel)
    (leader, *leader_call), (sibling, *sibling_call) = kernel.calls
    assert leader_call == [4321, -1, -1, 8]
    assert sibling_call == [4321, -1, 100, 8]  # in the leader's group
    assert leader == EventAttr(Event("", 0, 0), disabled=True)
    assert sibling == EventAttr(Event("", 0, 1))
    for attr in (leader, sibling):
        assert not (attr.exclude_guest or attr.exclude_host or attr.exclude_kernel or attr.pinned or attr.inherit)
    assert kernel.enabled == [100]
    assert group.fds == (100, 101)
    assert group.ids == (1100, 1101)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOENT, Reason.NO_PMU),
        (errno.ENODEV, Reason.NO_PMU),
        (errno.EOPNOTSUPP, Reason.NO_PMU),
        (errno.ENOSYS, Reason.NO_PMU),
        (errno.EACCES, Reason.NO_PERMISSION),
        (errno.EPERM, Reason.NO_PERMISSION),
        (errno.EMFILE, Reason.FD_LIMIT),
        (errno.ENFILE, Reason.FD_LIMIT),
        (errno.EBUSY, Reason.VPMU_CONFLICT),
        (errno.ESRCH, Reason.NOT_PRESENT),
        (errno.EINVAL, Reason.SOURCE_FAILED),
    ],
)
@pytest.mark.parametrize("at", [0, 1])
def test_a_failed_open_closes_what_was_open_and_says_why(number, reason, at):
    kernel = ScriptedKernel(open_errors=[0] * at + [number])
    with pytest.raises(PerfError) as caught:
        open_group(CYCLES_AND_INSTRUCTIONS, 77, kernel=kernel)
    assert caught.value.reason is reason
    assert caught.value.errno == number
    assert str(caught.value) == (
        f"perf_event_open({CYCLES_AND_INSTRUCTIONS[at].name}, thread 77): "
        f"{os.strerror(number)} ({errno.errorcode[number]})"
    )
    assert kernel.closed == kernel.opened
    assert kernel.enabled == []


@pytest.mark.parametrize("failing", ["id_errno", "enable_errno"])
def test_failures_after_opening_leak_nothing(failing):
    kernel = ScriptedKernel(**{failing: errno.EINVAL})
    with pytest.raises(PerfError):
        open_group(CYCLES_AND_INSTRUCTIONS, 77, kernel=kernel)
    assert sorted(kernel.closed) == [100, 101]


def test_a_failing_close_does_not_stop_the_others():
    kernel = ScriptedKernel(close_errno=errno.EIO, open_errors=[0, errno.EMFILE])
    with pytest.raises(PerfError):
        open_group(CYCLES_AND_INSTRUCTIONS, 77, kernel=kernel)
    assert kernel.closed == [100]
    kernel = ScriptedKernel(close_errno=errno.EIO)
    close_group(open_group(CYCLES_AND_INSTRUCTIONS, 77, kernel=kernel), kernel=kernel)
    assert kernel.closed == [101, 100]


def test_a_reading_is_cut_by_the_kernels_format():
    kernel = ScriptedKernel(data=struct.pack("=7Q", 2, 900, 300, 2**63 + 5, 1100, 17, 1101))
    group = open_group(CYCLES_AND_INSTRUCTIONS, 77, kernel=kernel)
    reading = read_group(group, kernel=kernel)
    assert (reading.time_enabled_ns, reading.time_running_ns, reading.counts) == (900, 300, (2**63 + 5, 17))


@pytest.mark.parametrize(
    "data",
    [
        b"",  # the kernel's error state
        struct.pack("=3Q", 2, 900, 300),
        struct.pack("=7Q", 1, 900, 300, 5, 1100, 0, 0),
        struct.pack("=7Q", 2, 900, 300, 5, 1101, 17, 1100),  # another order of events
    ],
)
def test_a_reading_that_is_not_the_groups_is_refused(data):
    kernel = ScriptedKernel(data=data)
    group = open_group(CYCLES_AND_INSTRUCTIONS, 77, kernel=kernel)
    with pytest.raises(PerfError, match="reading perf events: got") as caught:
        read_group(group, kernel=kernel)
    assert caught.value.reason is Reason.SOURCE_FAILED


def test_a_failing_read_has_a_reason():
    kernel = ScriptedKernel(data=errno.ENODEV)
    group = open_group(CYCLES_AND_INSTRUCTIONS, 77, kernel=kernel)
    with pytest.raises(PerfError, match="reading perf events: No such device") as caught:
        read_group(group, kernel=kernel)
    assert caught.value.reason is Reason.NO_PMU


def test_an_interrupted_call_is_repeated(monkeypatch):
    kernel = Kernel()
    answers = [(-1, errno.EINTR), (-1, errno.EINTR), (5, 0)]

    def syscall(*_):
        result, number = answers.pop(0)
        ctypes.set_errno(number)
        return result

    monkeypatch.setattr(kernel, "_syscall", syscall)
    monkeypatch.setattr(kernel, "_number", 298)
    assert kernel.perf_event_open(EventAttr(CYCLES).pack(), 0, -1, -1, 8) == 5


def test_an_unknown_machine_has_no_counters(monkeypatch):
    monkeypatch.setattr(binding, "_SYSCALL_NUMBERS", {})
    with pytest.raises(PerfError) as caught:
        open_group(CYCLES_AND_INSTRUCTIONS, 0, kernel=Kernel())
    assert caught.value.reason is Reason.NO_PMU


# -- this machine's kernel ---------------------------------------------------------------------------------------

SOFTWARE = (TASK_CLOCK_NS, CONTEXT_SWITCHES)


@pytest.fixture
def kernel():
    kernel = Kernel()
    try:
        close_group(open_group(SOFTWARE, 0, kernel=kernel), kernel=kernel)
    except PerfError as error:
        pytest.skip(f"this machine's kernel lets us count nothing: {error}")
    return kernel


def test_software_events_of_another_thread_are_counted(kernel):
    stop, ready = threading.Event(), threading.Event()
    tids = []

    def work():
        tids.append(threading.get_native_id())
        ready.set()
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    group = open_group(SOFTWARE, tids[0], kernel=kernel)
    try:
        first = read_group(group, kernel=kernel)
        time.sleep(0.2)
        second = read_group(group, kernel=kernel)
    finally:
        stop.set()
        thread.join()
    clock = second.counts[0] - first.counts[0]
    enabled = second.time_enabled_ns - first.time_enabled_ns
    assert clock > 1_000_000
    # The events' time is the thread's time on the CPU, and software events are never multiplexed.
    assert enabled == pytest.approx(clock, rel=0.05)
    assert second.time_running_ns == second.time_enabled_ns
    close_group(group, kernel=kernel)
    while Path(f"/proc/self/task/{tids[0]}").exists():  # join() returns a moment before the kernel forgets it
        time.sleep(0.01)
    with pytest.raises(PerfError) as caught:
        open_group(SOFTWARE, tids[0], kernel=kernel)
    assert caught.value.reason is Reason.NOT_PRESENT


def test_an_idle_threads_clock_stands_still(kernel):
    stop, ready = threading.Event(), threading.Event()
    tids = []

    def work():
        tids.append(threading.get_native_id())
        ready.set()
        stop.wait()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    time.sleep(0.05)
    group = open_group(SOFTWARE, tids[0], kernel=kernel)
    first = read_group(group, kernel=kernel)
    time.sleep(0.1)
    second = read_group(group, kernel=kernel)
    stop.set()
    thread.join()
    close_group(group, kernel=kernel)
    assert second == first


def test_descriptors_are_closed_on_exec_and_none_leak(kernel):
    before = open_files()
    group = open_group(SOFTWARE, 0, kernel=kernel)
    assert not any(os.get_inheritable(fd) for fd in group.fds)
    # An event that this kernel cannot have, as the second of a group: the first is closed again.
    with pytest.raises(PerfError):
        open_group((TASK_CLOCK_NS, Event("none", 0xFFFF, 0)), 0, kernel=kernel)
    close_group(group, kernel=kernel)
    assert open_files() <= before
