"""The perf source: failure by failure with a kernel in memory, and on this machine's kernel with software events."""

import errno
import os
import struct
import threading
import time
from pathlib import Path

import pytest

from collector.base import PerfGroup, Reason, Source, SourceError, VmIdentity
from collector.perf.binding import Kernel
from collector.perf.events import CONTEXT_SWITCHES, TASK_CLOCK_NS
from collector.perf.source import PerfSource
from tests.support.open_files import open_files
from tests.support.perf_attr import EventAttr
from tests.support.reading_times import ReadingTimes


class MemoryKernel(Kernel):
    """Threads and events in memory: `counters[tid]` is [enabled, running, cycles, instructions]."""

    def __init__(self):
        self.counters = {}
        self.open_errno = {}  # by thread id; None is every thread
        self.read_errno = {}
        self.error_state = set()
        self.events = {}  # fd -> (tid, leader fd, config)
        self.attempts = []
        self._next = 1000

    def perf_event_open(self, attr, pid, cpu, group_fd, flags):
        self.attempts.append(pid)
        number = self.open_errno.get(pid, self.open_errno.get(None, 0))
        if number:
            raise OSError(number, os.strerror(number))
        self._next += 1
        self.events[self._next] = (pid, group_fd, EventAttr.unpack(attr).event.config)
        return self._next

    def event_id(self, fd):
        return fd

    def enable(self, leader_fd):
        pass

    def read(self, fd, size_bytes):
        tid, _, _ = self.events[fd]
        if tid in self.error_state:
            return b""
        if tid in self.read_errno:
            raise OSError(self.read_errno[tid], "cannot")
        enabled, running, cycles, instructions = self.counters.get(tid, [1, 1, 1, 1])
        sibling = next(f for f, (_, leader, _) in self.events.items() if leader == fd)
        return struct.pack("=7Q", 2, enabled, running, cycles, fd, instructions, sibling)

    def close(self, fd):
        del self.events[fd]


class Host:
    """A /proc and /sys in a folder, a kernel in memory, and the source on them."""

    def __init__(self, root: Path, **settings):
        self.proc, self.sys = root / "proc", root / "sys"
        self.kernel = MemoryKernel()
        self.vms: list[VmIdentity] = []
        self.paranoid(2)
        self.capabilities(0x1FFFFFFFFFF)
        self.sys.mkdir()
        self.source = PerfSource(
            lambda: list(self.vms), proc_root=str(self.proc), sys_root=str(self.sys), kernel=self.kernel, **settings
        )

    def write(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def paranoid(self, level):
        self.write(self.proc / "sys/kernel/perf_event_paranoid", f"{level}\n")

    def capabilities(self, mask):
        self.write(self.proc / "self/status", f"Name:\tx\nCapPrm:\t0\nCapEff:\t{mask:016x}\nCapBnd:\t0\n")

    def mediated(self, module, value):
        self.write(self.sys / "module" / module / "parameters/enable_mediated_pmu", f"{value}\n")

    def thread(self, pid, tid):
        self.write(self.proc / str(pid) / "task" / str(tid) / "comm", "CPU 0/KVM\n")

    def end(self, pid, tid):
        """The open file reads nothing from now on (the kernel's fails with ESRCH), and a new one is another."""
        path = self.proc / str(pid) / "task" / str(tid) / "comm"
        path.write_text("")
        path.unlink()

    def vm(self, uuid, pid, tids, *, epoch="e1"):
        for tid in tids:
            if not (self.proc / str(pid) / "task" / str(tid)).exists():
                self.thread(pid, tid)
        identity = VmIdentity(uuid, f"name-{uuid}", pid, epoch, tuple(tids))
        self.vms = [vm for vm in self.vms if vm.uuid != uuid] + [identity]
        return identity

    def sample(self):
        return self.source.sample().vms

    def reasons(self):
        return {uuid: vm.absent.get("perf") for uuid, vm in self.sample().items()}

    def fds(self):
        return len(self.kernel.events), len(open_files() - self.base)

    base: frozenset[tuple[str, str]] | set[tuple[str, str]] = frozenset()


@pytest.fixture
def host(tmp_path):
    host = Host(tmp_path)
    host.base = open_files()
    yield host
    host.source.close()
    assert host.fds() == (0, 0)  # whatever happened in the test


def test_is_a_source(host):
    assert isinstance(host.source, Source)
    assert host.source.name == "perf"


# -- probe -------------------------------------------------------------------------------------------------------


def test_probe_of_a_working_pmu_leaves_nothing_open(host):
    probe = host.source.probe()
    assert probe.available
    assert probe.detail == (
        "cycles and instructions per vCPU thread; CPU without a PMU that the kernel shows; not counted: "
        "reference_cycles (no_event), l2_misses (no_event), llc_misses (no_event), memory_stall_cycles (no_event), "
        "total_stall_cycles (no_event), core_stall_cycles (no_event)"
    )
    assert host.kernel.attempts == [0, 0]  # on itself
    assert host.fds() == (0, 0)
    host.source.open()


@pytest.mark.parametrize(
    ("number", "capabilities", "paranoid", "reason", "remedy"),
    [
        (errno.ENOENT, 0, 2, Reason.NO_PMU, "enable its virtual PMU"),
        (errno.EOPNOTSUPP, 0, 2, Reason.NO_PMU, "enable its virtual PMU"),
        (errno.ENOSYS, 0, 2, Reason.NO_PMU, "CONFIG_PERF_EVENTS"),
        (errno.EACCES, 0, 3, Reason.PARANOID, "paranoid is 3; give the agent CAP_PERFMON or set it to 1"),
        (errno.EACCES, 1 << 38, 3, Reason.NO_PERMISSION, "seccomp filter or security module"),
        (errno.EACCES, 1 << 21, 3, Reason.NO_PERMISSION, "seccomp filter or security module"),
        (errno.EPERM, 0, 1, Reason.NO_PERMISSION, "give the agent CAP_PERFMON"),
        (errno.EMFILE, 0, 1, Reason.FD_LIMIT, "LimitNOFILE"),
        (errno.EBUSY, 0, 1, Reason.VPMU_CONFLICT, "virtual PMUs have precedence"),
        (errno.EINVAL, 0, 1, Reason.SOURCE_FAILED, "perf_event_open(2)"),
    ],
)  # fmt: skip
def test_probe_names_reason_and_remedy(host, number, capabilities, paranoid, reason, remedy):
    host.kernel.open_errno[None] = number
    host.capabilities(capabilities)
    host.paranoid(paranoid)
    probe = host.source.probe()
    assert not probe.available
    assert probe.reason is reason
    assert remedy in probe.detail
    assert errno.errorcode[number] in probe.detail
    assert "\n" not in probe.detail
    with pytest.raises(SourceError, match="perf_event_open") as caught:
        host.source.open()
    assert caught.value.reason is reason


@pytest.mark.parametrize("what", ["sys/kernel/perf_event_paranoid", "self/status"])
def test_an_unreadable_proc_claims_nothing(host, what):
    (host.proc / what).write_text("?")
    assert host.source.probe().available
    host.kernel.open_errno[None] = errno.EACCES
    reason = host.source.probe().reason
    # Without the level, paranoid cannot be blamed; without the capabilities, they count as missing.
    assert reason is (Reason.NO_PERMISSION if "paranoid" in what else Reason.PARANOID)


@pytest.mark.parametrize(("module", "value"), [("kvm_intel", "Y"), ("kvm_amd", "1"), ("kvm", "Y")])
def test_a_mediated_vpmu_keeps_us_off(host, module, value):
    host.mediated(module, value)
    probe = host.source.probe()
    assert (probe.available, probe.reason) == (False, Reason.VPMU_CONFLICT)
    assert f"{module}.enable_mediated_pmu is on" in probe.detail
    host.vm("a", 10, [11])
    assert host.reasons() == {"a": Reason.VPMU_CONFLICT}
    assert host.kernel.attempts == []  # not even tried: an open event may already cost a guest its PMU


def test_a_mediated_vpmu_that_is_off_is_no_conflict(host):
    host.mediated("kvm_intel", "N")
    assert host.source.probe().available


def test_counters_that_do_not_count_are_reported(host):
    host.kernel.counters[0] = [1000, 1000, 0, 0]
    probe = host.source.probe()
    assert (probe.available, probe.reason) == (False, Reason.NO_PMU)
    assert "open but do not count (cycles, instructions: (0, 0))" in probe.detail


def test_counters_taken_by_others_at_this_moment_are_no_absence(host):
    host.kernel.counters[0] = [1000, 0, 0, 0]
    probe = host.source.probe()
    assert probe.available
    assert "taken by others" in probe.detail


# -- sampling ----------------------------------------------------------------------------------------------------


def test_counts_are_raw_and_per_thread(host):
    host.vm("a", 10, [11, 12])
    host.kernel.counters |= {11: [100, 50, 9, 4], 12: [7, 7, 3, 2]}
    before = time.monotonic_ns(), time.time_ns()
    sample = host.source.sample()
    assert sample.source == "perf"
    assert before[0] <= sample.mono_ns <= time.monotonic_ns()
    assert before[1] <= sample.unix_ns <= time.time_ns()
    assert sample.inventory is None
    vm = sample.vms["a"]
    assert vm.epoch == "e1"
    assert vm.absent == {}
    assert vm.perf.layout == (("cycles", "instructions"),)
    assert vm.perf.scope == "thread"
    assert vm.perf.groups == {11: (PerfGroup(1, 100, 50, (9, 4)),), 12: (PerfGroup(2, 7, 7, (3, 2)),)}
    assert host.fds() == (4, 2)  # two events and one /proc file per vCPU
    again = host.sample()["a"]
    assert again.perf == vm.perf
    assert len(host.kernel.attempts) == 4  # nothing was opened again


def test_counters_have_the_moment_at_which_they_were_read(host, monkeypatch):
    host.vm("a", 10, [11])
    host.vm("b", 20, [21])
    host.sample()
    times = ReadingTimes("a")
    monkeypatch.setattr(host.source, "_inventory", times.before(host.source._inventory))
    monkeypatch.setattr(host.source._scope, "begin", times.before(host.source._scope.begin))
    plain = host.kernel.read

    def noted(fd, size_bytes):
        times.note("a" if host.kernel.events[fd][0] == 11 else "b")
        return plain(fd, size_bytes)

    monkeypatch.setattr(host.kernel, "read", noted)
    times.check(host.source.sample(), "b", "perf")


def test_opens_are_spread_over_ticks(tmp_path):
    host = Host(tmp_path, opens_per_tick=3)
    host.vm("a", 10, [11, 12, 13, 14])
    host.vm("b", 20, [21, 22])
    per_tick, reasons = [], []
    for _ in range(3):
        attempts = len(host.kernel.attempts)
        reasons.append(host.reasons())
        per_tick.append((len(host.kernel.attempts) - attempts) // 2)
    assert per_tick == [3, 3, 0]
    starting = Reason.VM_STARTING
    assert reasons == [{"a": starting, "b": starting}, {"a": None, "b": None}, {"a": None, "b": None}]
    host.source.close()


def test_a_vm_without_vcpu_threads_yet_is_starting(host):
    host.vm("a", 10, [])
    assert host.reasons() == {"a": Reason.VM_STARTING}


def test_one_vms_failure_is_its_own_and_retried_ever_more_rarely(host):
    host.vm("bad", 10, [11])
    host.vm("good", 20, [21])
    host.kernel.open_errno[11] = errno.EINVAL
    tried = []
    for tick in range(1, 200):
        count = host.kernel.attempts.count(11)
        sample = host.sample()
        assert sample["good"].perf is not None
        assert sample["bad"].perf is None
        assert sample["bad"].absent == {"perf": Reason.SOURCE_FAILED}
        if host.kernel.attempts.count(11) > count:
            tried.append(tick)
    assert tried == [1, 2, 4, 8, 16, 32, 64, 128, 192]
    host.kernel.open_errno.clear()
    for _ in range(64):
        host.sample()
    assert host.reasons() == {"bad": None, "good": None}


@pytest.mark.parametrize(
    ("number", "capabilities", "reason"),
    [
        (errno.EMFILE, 0, Reason.FD_LIMIT),
        (errno.EACCES, 0, Reason.PARANOID),
        (errno.EACCES, 1 << 38, Reason.NO_PERMISSION),
        (errno.EBUSY, 0, Reason.VPMU_CONFLICT),
        (errno.ENOENT, 0, Reason.NO_PMU),
        (errno.ESRCH, 0, Reason.NOT_PRESENT),
    ],
)
def test_reasons_of_failed_opens(host, number, capabilities, reason):
    host.capabilities(capabilities)
    host.vm("a", 10, [11])
    host.kernel.open_errno[11] = number
    assert host.reasons() == {"a": reason}


@pytest.mark.parametrize("tid", [0, -1])
def test_numbers_that_mean_something_else_to_the_kernel_are_refused(host, tid):
    host.vms = [VmIdentity("a", "a", 10, "e", (tid,))]
    assert host.reasons() == {"a": Reason.INVALID_VALUE}
    assert host.kernel.attempts == []


def test_a_thread_of_another_process_is_not_opened(host):
    host.thread(20, 11)
    host.vms = [VmIdentity("a", "a", 10, "e", (11,))]
    assert host.reasons() == {"a": Reason.NOT_PRESENT}
    assert host.kernel.attempts == []


def test_a_proc_file_that_cannot_be_opened_is_a_failure_of_that_vm(host):
    host.vm("a", 10, [11])
    (host.proc / "10/task/11/comm").unlink()
    (host.proc / "10/task/11/comm").symlink_to("comm")
    host.vm("b", 20, [21])
    assert host.reasons() == {"a": Reason.SOURCE_FAILED, "b": None}


def test_a_number_taken_by_another_thread_between_the_looks_is_not_counted(host):
    host.vm("a", 10, [11])
    enable = host.kernel.enable

    def reuse(leader_fd):
        host.end(10, 11)
        host.thread(10, 11)
        enable(leader_fd)

    host.kernel.enable = reuse
    assert host.reasons() == {"a": Reason.NOT_PRESENT}
    assert host.kernel.events == {}


def test_an_ended_thread_does_not_pass_for_an_idle_one(host):
    host.vm("a", 10, [11, 12])
    host.kernel.counters |= {11: [5, 5, 5, 5], 12: [5, 5, 5, 5]}
    assert set(host.sample()["a"].perf.groups) == {11, 12}
    host.end(10, 11)  # its counters stand still from now on
    assert set(host.sample()["a"].perf.groups) == {12}
    assert len(host.kernel.events) == 2
    assert set(host.sample()["a"].perf.groups) == {12}  # the inventory still lists it


def test_an_idle_thread_stays(host):
    host.vm("a", 10, [11])
    first = host.sample()["a"].perf
    assert host.sample()["a"].perf == first


def test_a_number_used_again_is_another_opening(host):
    host.vm("a", 10, [11])
    first = host.sample()["a"].perf.groups[11][0]
    host.end(10, 11)
    host.thread(10, 11)
    second = host.sample()["a"].perf.groups[11][0]
    assert (first.opened, second.opened) == (1, 2)


def test_a_hot_unplugged_vcpu_is_closed(host):
    host.vm("a", 10, [11, 12])
    host.sample()
    host.vm("a", 10, [11])
    assert set(host.sample()["a"].perf.groups) == {11}
    assert len(host.kernel.events) == 2


def test_another_epoch_opens_again(host):
    host.vm("a", 10, [11])
    first = host.sample()["a"]
    host.vm("a", 10, [11], epoch="e2")
    second = host.sample()["a"]
    assert (first.epoch, second.epoch) == ("e1", "e2")
    assert second.perf.groups[11][0].opened == first.perf.groups[11][0].opened + 1
    assert len(host.kernel.events) == 2


def test_a_vm_that_is_gone_is_closed_and_close_twice_is_fine(host):
    host.vm("a", 10, [11])
    host.sample()
    host.vms = []
    assert host.sample() == {}
    assert host.fds() == (0, 0)
    host.source.close()
    host.source.close()


@pytest.mark.parametrize("how", ["errno", "error state"])
def test_a_group_that_cannot_be_read_is_opened_again(host, how):
    host.vm("a", 10, [11])
    host.vm("b", 20, [21])
    first = host.sample()["a"].perf.groups[11][0]
    if how == "errno":
        host.kernel.read_errno[11] = errno.EIO
    else:
        host.kernel.error_state.add(11)
    assert host.reasons() == {"a": Reason.SOURCE_FAILED, "b": None}
    assert len(host.kernel.events) == 2
    host.kernel.read_errno.clear()
    host.kernel.error_state.clear()
    host.sample()
    assert host.sample()["a"].perf.groups[11][0].opened > first.opened


def test_a_group_of_an_ended_thread_that_cannot_be_read_is_no_failure(host):
    host.vm("a", 10, [11, 12])
    host.sample()
    host.kernel.read_errno[11] = errno.ESRCH
    host.end(10, 11)
    assert set(host.sample()["a"].perf.groups) == {12}


def test_a_failing_inventory_is_the_sources_failure(host):
    host.source._inventory = lambda: {}["vms"]
    with pytest.raises(SourceError, match="perf: the list of VMs"):
        host.source.sample()


# -- this machine's kernel ---------------------------------------------------------------------------------------


class SoftwareKernel(Kernel):
    """This machine's kernel, asked for task clock and context switches instead of hardware events."""

    def perf_event_open(self, attr, pid, cpu, group_fd, flags):
        asked = EventAttr.unpack(attr)
        event = (TASK_CLOCK_NS, CONTEXT_SWITCHES)[asked.event.config]
        return super().perf_event_open(EventAttr(event, disabled=asked.disabled).pack(), pid, cpu, group_fd, flags)


@pytest.fixture
def software():
    try:
        fd = SoftwareKernel().perf_event_open(EventAttr(TASK_CLOCK_NS).pack(), 0, -1, -1, 8)
    except OSError as error:
        pytest.skip(f"this machine's kernel lets us count nothing: {error}")
    os.close(fd)
    return SoftwareKernel()


def test_real_threads_that_end_and_appear(software):
    before = open_files()

    def start():
        stop, ready = threading.Event(), threading.Event()
        thread = threading.Thread(target=lambda: (ready.set(), stop.wait()))
        thread.start()
        ready.wait()
        return thread, stop

    first, second = start(), start()
    tids = [first[0].native_id, second[0].native_id]
    source = PerfSource(lambda: [VmIdentity("a", "a", os.getpid(), "e", tuple(tids))], kernel=software)
    assert set(source.sample().vms["a"].perf.groups) == set(tids)
    first[1].set()
    first[0].join()
    while Path(f"/proc/self/task/{tids[0]}").exists():
        time.sleep(0.001)
    source.sample()
    assert set(source.sample().vms["a"].perf.groups) == {tids[1]}
    third = start()
    tids.append(third[0].native_id)
    assert set(source.sample().vms["a"].perf.groups) == set(tids[1:])
    for thread, stop in (second, third):
        stop.set()
        thread.join()
    source.close()
    assert open_files() <= before


def test_probe_on_this_machine_says_something_true():
    probe = PerfSource(list).probe()
    hardware = [p for p in Path("/sys/bus/event_source/devices").glob("*") if p.name.startswith(("cpu", "armv8"))]
    if not hardware:
        assert not probe.available
        assert probe.reason in (Reason.NO_PMU, Reason.PARANOID, Reason.NO_PERMISSION)
    assert probe.available or probe.reason is not Reason.UNSPECIFIED
