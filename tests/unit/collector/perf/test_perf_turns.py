"""Groups on in turns, counters per control group, and file descriptors: with a kernel in memory that keeps time."""

import errno
import gzip
import os
import struct
import threading
import time
from pathlib import Path

import pytest

from agent.sampling.changes import JoinedVm, PerfDelta, Reading
from agent.sampling.deltas import delta
from collector.base import PerfGroup, Reason, SourceError, VmIdentity
from collector.perf.binding import FLAG_PID_CGROUP, Kernel, open_group
from collector.perf.events import CYCLES_AND_INSTRUCTIONS, TASK_CLOCK_NS, TYPE_RAW, Catalog, Event
from collector.perf.host import PerfHost
from collector.perf.slices import Slices
from collector.perf.source import PerfSource
from tests.support.open_files import open_files
from tests.support.perf_attr import EventAttr

CONFIGS = {"llc_misses": 10, "memory_stall_cycles": 11, "l2_misses": 12}
PER_US = {0: 1000, 1: 500, 10: 3, 11: 200, 12: 7}  # what each event counts in a microsecond, by its config


class ClockKernel(Kernel):
    """Threads run when told to; a group counts while it is on."""

    def __init__(self):
        self.events = {}  # fd -> (target, leader, config)
        self.on = set()
        self.enabled_ns, self.counts = {}, {}
        self.opens, self.calls = 0, []
        self._next = 10_000

    @staticmethod
    def _target(pid, cpu, flags):
        return (Path(f"/proc/self/fd/{pid}").readlink().name, cpu) if flags & FLAG_PID_CGROUP else pid

    def perf_event_open(self, attr, pid, cpu, group_fd, flags):
        asked = EventAttr.unpack(attr)
        assert asked.flags & ~1 == 0  # guests are counted, nothing is pinned or inherited
        self.opens += 1
        self._next += 1
        fd = self._next
        self.events[fd] = (self._target(pid, cpu, flags), group_fd, asked.event.config)
        self.counts[fd] = 0
        if group_fd == -1:
            assert asked.disabled
            self.enabled_ns[fd] = 0
        return fd

    def run(self, target, us):
        for fd, (where, leader, config) in self.events.items():
            if where == target and (fd if leader == -1 else leader) in self.on:
                self.counts[fd] += PER_US[config] * us
                if leader == -1:
                    self.enabled_ns[fd] += 1000 * us

    def event_id(self, fd):
        return fd

    def enable(self, leader_fd):
        self.calls.append(("on", leader_fd))
        self.on.add(leader_fd)

    def disable(self, leader_fd):
        self.calls.append(("off", leader_fd))
        self.on.remove(leader_fd)

    def read(self, fd, size_bytes):
        self.calls.append(("read", fd))
        members = [fd, *(f for f, (_, leader, _) in self.events.items() if leader == fd)]
        words = [len(members), self.enabled_ns[fd], self.enabled_ns[fd]]
        for member in members:
            words += [self.counts[member], member]
        return struct.pack(f"={len(words)}Q", *words)[:size_bytes]

    def close(self, fd):
        self.on.discard(fd)
        del self.events[fd], self.counts[fd]
        self.enabled_ns.pop(fd, None)


def catalog(programmable):
    events = {name: Event(name, TYPE_RAW, config) for name, config in CONFIGS.items()}
    missing = dict.fromkeys(("reference_cycles", "total_stall_cycles", "core_stall_cycles"), Reason.NO_EVENT)
    return Catalog("test CPU", events, missing, programmable=programmable)


class Host:
    """A /proc, /sys and cgroup2 in a folder, and a source on them."""

    def __init__(self, root: Path, *, programmable=8, cpus="0-1", **settings):
        self.proc, self.sys, self.groups = root / "proc", root / "sys", root / "cg roup"
        self.vms = []
        self.write(self.sys / "devices/system/cpu/online", f"{cpus}\n")
        point = str(self.groups).replace(" ", "\\040")
        self.write(
            self.proc / "self/mountinfo",
            f"25 1 0:22 / /proc rw - proc proc rw\n30 25 0:26 / {point} rw,nosuid shared:9 - cgroup2 cgroup2 rw\n",
        )
        self.kernel = ClockKernel()
        self.source = PerfSource(
            lambda: self.vms,
            proc_root=str(self.proc),
            sys_root=str(self.sys),
            kernel=self.kernel,
            catalog=catalog(programmable),
            reserve_counters=0,
            **settings,
        )
        self.kernel.read = self._trial_read  # the plan's trials run at once
        self.base = open_files()

    def _trial_read(self, fd, size_bytes):
        if self.kernel.events[fd][0] == 0:
            self.kernel.run(0, 1)
        return ClockKernel.read(self.kernel, fd, size_bytes)

    @staticmethod
    def write(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def vm(self, uuid, pid, *, vcpus=1, group=None, procs=(), epoch="e1"):
        tids = tuple(pid + 1 + n for n in range(vcpus))
        for tid in tids:
            self.write(self.proc / str(pid) / "task" / str(tid) / "comm", "CPU 0/KVM\n")
        if group:
            self.write(self.proc / str(pid) / "cgroup", f"12:cpu:/x\n0::{group}\n")
            self.write(self.groups / group[1:] / "cgroup.procs", "".join(f"{p}\n" for p in (pid, *procs)))
        self.vms = [vm for vm in self.vms if vm.uuid != uuid]
        self.vms.append(VmIdentity(uuid, f"vm-{uuid}", pid, epoch, tids))

    def perf(self, uuid="a"):
        return self.source.sample().vms[uuid].perf

    def reasons(self):
        return {uuid: vm.absent.get("perf") for uuid, vm in self.source.sample().vms.items()}

    def close(self):
        self.source.close()
        assert self.kernel.events == {}
        assert open_files() <= self.base
        assert self.source._fds == 0


@pytest.fixture
def make(tmp_path):
    hosts = []

    def make(**settings):
        hosts.append(Host(tmp_path / str(len(hosts)), **settings))
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()


# -- turns -------------------------------------------------------------------------------------------------------


def test_one_group_is_never_switched(make):
    host = make(programmable=8)
    host.vm("a", 10)
    first = host.perf()
    assert first.layout == (("cycles", "instructions", "llc_misses", "memory_stall_cycles", "l2_misses"),)
    host.kernel.run(11, 10)
    host.kernel.calls.clear()
    second = host.perf()
    assert [what for what, _ in host.kernel.calls] == ["read"]
    assert second.groups[11] == (PerfGroup(1, 10_000, 10_000, (10_000, 5_000, 30, 2_000, 70)),)


def test_exactly_one_group_is_on_and_it_is_the_same_one_for_all(make):
    host = make(programmable=3)
    host.vm("a", 10, vcpus=2)
    host.vm("b", 20)
    seen = []
    for _ in range(7):
        host.source.sample()
        configs = {}
        for leader in host.kernel.on:
            (extra,) = (c for t, f, c in host.kernel.events.values() if f == leader and c > 1)
            configs.setdefault(host.kernel.events[leader][0], []).append(extra)
        assert set(configs) == {11, 12, 21}
        assert len({tuple(on) for on in configs.values()}) == 1
        (on,) = configs[11]
        seen.append(on)
    assert seen == [11, 12, 10, 11, 12, 10, 11]


def test_a_group_is_read_after_it_is_off_and_before_the_next_is_on(make):
    host = make(programmable=3)
    host.vm("a", 10)
    host.source.sample()
    host.kernel.calls.clear()
    host.source.sample()
    (off, first), (read, second), (on, third) = host.kernel.calls
    assert (off, read, on) == ("off", "read", "on")
    assert first == second != third


def test_groups_that_are_off_keep_their_reading_and_are_not_read(make):
    host = make(programmable=3)
    host.vm("a", 10)
    for _ in range(3):
        host.perf()
        host.kernel.run(11, 5)
    last = host.perf()
    host.kernel.run(11, 5)
    host.kernel.calls.clear()
    now = host.perf()
    moved = [a is not b for a, b in zip(now.groups[11], last.groups[11], strict=True)]
    assert moved.count(True) == 1
    assert sum(what == "read" for what, _ in host.kernel.calls) == 1


def test_a_time_sliced_vm_has_true_ipc_in_every_tick_and_each_event_in_its_turn(make):
    host = make(programmable=3)
    host.vm("a", 10, vcpus=2)
    last = host.perf()
    reported = []
    for tick in range(1, 7):
        host.kernel.run(11, 400)
        host.kernel.run(12, 600)
        now = host.perf()
        found = delta(joined(now, tick), joined(last, tick - 1)).perf
        assert isinstance(found, PerfDelta)
        assert (found.cycles, found.instructions) == (1_000_000, 500_000)
        assert found.incomplete is None
        reported.append({name: event.counted / event.cycles for name, event in found.events.items()})
        sliced = {name for name, reason in found.missing.items() if reason is Reason.TIME_SLICED}
        assert sliced == CONFIGS.keys() - reported[-1].keys()
        assert found.missing["reference_cycles"] is Reason.NO_EVENT
        last = now
    assert reported[:3] == [{"memory_stall_cycles": 0.2}, {"l2_misses": 0.007}, {"llc_misses": 0.003}]
    assert reported[3:] == reported[:3]


def joined(perf, tick):
    off = Reason.SOURCE_OFF
    reading = Reading("perf", tick * 1_000_000_000 + 1, tick * 1_000_000_000 + 1, perf)
    return JoinedVm("e1", len(perf.groups), off, reading, off, off)


@pytest.mark.parametrize("call", ["enable", "disable"])
def test_a_group_that_cannot_be_switched_is_opened_again(make, call):
    host = make(programmable=3)
    host.vm("a", 10)
    host.vm("b", 20)
    opened = host.perf().groups[11][0].opened
    works = getattr(host.kernel, call)

    def fail(fd):
        if host.kernel.events[fd][0] == 11:
            raise OSError(errno.EIO, "cannot")
        works(fd)

    setattr(host.kernel, call, fail)
    assert host.reasons() == {"a": Reason.SOURCE_FAILED, "b": None}
    setattr(host.kernel, call, works)
    host.source.sample()
    assert host.perf().groups[11][0].opened > opened


def test_basic_events_are_what_the_setting_says(make):
    host = make(events="basic")
    host.vm("a", 10)
    perf = host.perf()
    assert perf.layout == (("cycles", "instructions"),)
    assert set(perf.missing.values()) == {Reason.SOURCE_OFF}
    assert host.source.probe().detail == "cycles and instructions per vCPU thread"


def test_probe_says_what_is_counted_how_and_what_not(make):
    host = make(programmable=4)
    host.write(host.proc / "sys/kernel/nmi_watchdog", "1\n")
    (host.proc / "config.gz").write_bytes(gzip.compress(b"CONFIG_HARDLOCKUP_DETECTOR_PERF=y\n"))
    assert host.source.probe().detail == (
        "cycles, instructions, llc_misses, memory_stall_cycles and l2_misses per vCPU thread, in 3 groups by turns; "
        "test CPU; not counted: reference_cycles (no_event), total_stall_cycles (no_event), "
        "core_stall_cycles (no_event); the NMI watchdog holds a counter (sysctl kernel.nmi_watchdog=0 frees it)"
    )


PERF, BUDDY = (f"CONFIG_HARDLOCKUP_DETECTOR_{name}=y\n" for name in ("PERF", "BUDDY"))


@pytest.mark.parametrize("place", ["boot", "proc"])
@pytest.mark.parametrize(
    ("config", "says"),
    [
        (f"CONFIG_X=y\n{PERF}", "holds"),
        (BUDDY + "# CONFIG_HARDLOCKUP_DETECTOR_PERF is not set\n", ""),
        (PERF + BUDDY, "may hold"),  # chosen at boot
        ("CONFIG_X=y\n", "may hold"),
    ],
)
def test_which_watchdog_holds_a_counter(tmp_path, place, config, says):
    (tmp_path / "sys/kernel").mkdir(parents=True)
    on = tmp_path / "sys/kernel/nmi_watchdog"
    on.write_text("1\n")
    if place == "boot":
        (tmp_path / f"config-{os.uname().release}").write_text(config)
    else:
        (tmp_path / "config.gz").write_bytes(gzip.compress(config.encode()))
    host = PerfHost(str(tmp_path), str(tmp_path), str(tmp_path))
    assert host.watchdog() == says
    on.write_text("0\n")
    assert host.watchdog() == ""


def test_a_configuration_that_cannot_be_read_leaves_the_watchdog_open(tmp_path):
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/nmi_watchdog").write_text("1\n")
    assert PerfHost(str(tmp_path), str(tmp_path), str(tmp_path)).watchdog() == "may hold"
    (tmp_path / "config.gz").write_bytes(gzip.compress(b"CONFIG" * 100)[:20])
    assert PerfHost(str(tmp_path), str(tmp_path), str(tmp_path)).watchdog() == "may hold"


def test_a_counter_that_is_not_there_is_reported(make):
    host = make(programmable=2)
    assert "llc_misses (no_counter)" in host.source.probe().detail


# -- control groups ----------------------------------------------------------------------------------------------


def test_counters_of_a_control_group_are_per_cpu_and_of_the_whole_vm(make):
    host = make(scope="cgroup", cpus="0-1,4")
    scope = "/machine.slice/machine-qemu\\x2d1.scope"
    host.vm("a", 10, vcpus=2, group=f"{scope}/libvirt/emulator", procs=(77,))
    first = host.perf()
    assert first.scope == "cgroup"
    assert set(first.groups) == {0, 1, 4}
    host.kernel.run((scope.rpartition("/")[2], 4), 10)
    second = host.perf()
    assert second.groups[4][0].counts == (10_000, 5_000, 30, 2_000, 70)
    assert second.groups[0] == first.groups[0]
    assert len(host.kernel.events) == 3 * 5


def test_a_cpu_that_goes_offline_or_online_is_followed(make):
    host = make(scope="cgroup", cpus="0-1")
    host.vm("a", 10, group="/vm.scope")
    host.perf()
    host.write(host.sys / "devices/system/cpu/online", "0,2\n")
    assert set(host.perf().groups) == {0, 2}
    assert len(host.kernel.events) == 2 * 5
    host.write(host.sys / "devices/system/cpu/online", "?\n")
    with pytest.raises(SourceError, match="online"):
        host.source.sample()


def test_a_group_with_others_in_it_is_shared(make):
    host = make(scope="cgroup")
    host.vm("stranger", 10, group="/user.slice/session.scope", procs=(4711,))
    host.vm("x", 20, group="/two.scope")
    host.vm("y", 30, group="/two.scope", procs=(20,))
    host.vm("root", 40, group="/")
    host.vm("good", 50, group="/good.scope")
    host.vm("none", 60)
    assert host.reasons() == {
        "stranger": Reason.SHARED,
        "x": Reason.SHARED,
        "y": Reason.SHARED,
        "root": Reason.SHARED,
        "good": None,
        "none": Reason.NOT_PRESENT,
    }


def test_another_vm_below_a_vms_group_makes_it_shared_and_moving_opens_again(make):
    host = make(scope="cgroup")
    host.vm("a", 10, group="/a.scope")
    opened = host.perf().groups[0][0].opened
    host.vm("a", 10, group="/b.scope")
    for _ in range(30):
        perf = host.perf()
    assert perf.groups[0][0].opened > opened
    host.vm("guest", 20, group="/b.scope/nested")
    for _ in range(30):
        reasons = host.reasons()
    assert reasons["a"] is Reason.SHARED


def test_strangers_below_the_group_are_found(make):
    host = make(scope="cgroup")
    host.vm("a", 10, group="/a.scope")
    host.write(host.groups / "a.scope/sub/cgroup.procs", "99\n")
    assert host.reasons() == {"a": Reason.SHARED}


def test_a_file_that_makes_no_sense_is_that_vms_failure(make):
    host = make(scope="cgroup")
    host.vm("a", 10, group="/a.scope")
    host.vm("b", 20, group="/b.scope")
    host.write(host.proc / "10/cgroup", "nonsense\n")
    assert host.reasons() == {"a": Reason.SOURCE_FAILED, "b": None}


def test_without_a_unified_hierarchy_there_is_no_scope_of_control_groups(make):
    host = make(scope="cgroup")
    assert "per VM's control group and CPU" in host.source.probe().detail
    host.write(host.proc / "self/mountinfo", "25 1 0:22 / /proc rw - proc proc rw\n")
    probe = host.source.probe()
    assert (probe.available, probe.reason) == (False, Reason.NOT_PRESENT)
    assert "set sources.perf.scope = 'thread'" in probe.detail
    (host.proc / "self/mountinfo").unlink()
    assert host.source.probe().reason is Reason.NOT_PRESENT


# -- file descriptors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["thread", "cgroup"])
def test_file_descriptors_are_bounded_and_freed_ones_serve_others(make, scope):
    host = make(scope=scope, max_fds=13, cpus="0-1")
    host.vm("a", 10, vcpus=2, group="/a.scope")
    host.vm("b", 20, vcpus=2, group="/b.scope")
    assert host.reasons() == {"a": None, "b": Reason.FD_LIMIT}
    assert len(host.kernel.events) <= 13
    host.vms = host.vms[1:]
    for _ in range(3):
        reasons = host.reasons()
    assert reasons == {"b": None}


@pytest.mark.long
@pytest.mark.parametrize(("scope", "starts"), [("thread", 10_000), ("cgroup", 2_000)])
def test_ten_thousand_vm_starts_leave_nothing_open(make, scope, starts):
    host = make(scope=scope, programmable=3, cpus="0")
    host.vm("a", 10, vcpus=2, group="/a.scope")
    identity = host.vms[0]
    most = 0
    for start in range(starts):
        host.vms = [VmIdentity("a", "a", 10, f"e{start}", identity.vcpu_tids)]
        assert host.source.sample().vms["a"].perf is not None
        most = max(most, len(host.kernel.events))
    assert host.kernel.opens > starts * 9
    assert most == (2 if scope == "thread" else 1) * 9  # three groups of three, per thread or on the one CPU
    assert len(open_files() - host.base) <= 2


def test_a_leak_would_be_seen(make, monkeypatch):
    host = make()
    host.vm("a", 10)
    host.source.sample()
    with monkeypatch.context() as mutant:
        mutant.setattr(Slices, "close", lambda _: None)
        kept = dict(host.source._vms["a"].targets)
        host.vm("a", 10, epoch="e2")
        host.source.sample()
    with pytest.raises(AssertionError):
        host.close()
    for target in kept.values():
        target.close()


class SoftwareKernel(Kernel):
    """This machine's kernel, asked for software events instead of those of the hardware."""

    def perf_event_open(self, attr, pid, cpu, group_fd, flags):
        asked = EventAttr.unpack(attr)
        event = Event("", TASK_CLOCK_NS.type, {0: 1, 1: 3, 10: 2, 11: 4, 12: 5}[asked.event.config])
        return super().perf_event_open(EventAttr(event, disabled=asked.disabled).pack(), pid, cpu, group_fd, flags)


@pytest.fixture
def software():
    kernel = SoftwareKernel()
    try:
        group = open_group(CYCLES_AND_INSTRUCTIONS, 0, kernel=kernel)
    except SourceError as error:
        pytest.skip(f"this machine's kernel lets us count nothing: {error}")
    for fd in group.fds:
        os.close(fd)
    return kernel


def test_real_events_of_real_threads_in_turns_leave_nothing_open(software):
    stop = threading.Event()
    before = open_files()
    catalog_of_two = catalog(4)  # two groups
    epoch = 0
    tids = ()
    source = PerfSource(
        lambda: [VmIdentity("a", "a", os.getpid(), f"e{epoch}", tids)],
        kernel=software,
        catalog=catalog_of_two,
        reserve_counters=0,
    )
    source.sample()
    for epoch in range(200):  # noqa: B007 - the inventory above takes it
        threads = [threading.Thread(target=stop.wait) for _ in range(2)]
        for thread in threads:
            thread.start()
        tids = tuple(thread.native_id for thread in threads)
        perf = source.sample().vms["a"].perf
        assert set(perf.groups) == set(tids)
        assert len(perf.layout) == 2
        assert len(open_files() - before) == 2 * (3 + 4 + 1)
        stop.set()
        for thread in threads:
            thread.join()
        stop.clear()
    source.close()
    assert open_files() <= before


def test_a_real_busy_threads_time_is_shared_out_to_the_turns(software):
    stop = threading.Event()
    thread = threading.Thread(target=lambda: [sum(range(500)) for _ in iter(stop.is_set, True)])
    thread.start()
    source = PerfSource(
        lambda: [VmIdentity("a", "a", os.getpid(), "e", (thread.native_id,))],
        kernel=software,
        catalog=catalog(4),
        reserve_counters=0,
    )
    readings = []
    for _ in range(5):
        readings.append(source.sample().vms["a"].perf.groups[thread.native_id])
        time.sleep(0.05)
    stop.set()
    thread.join()
    source.close()
    for now, last in zip(readings[1:], readings, strict=False):
        moved = [index for index in range(2) if now[index] is not last[index]]
        assert len(moved) == 1
        new, old = now[moved[0]], last[moved[0]]
        # The task clock, in the place of cycles, counts what the group's own clock says.
        enabled_ns = new.time_enabled_ns - old.time_enabled_ns
        assert enabled_ns > 0
        assert new.counts[0] - old.counts[0] == pytest.approx(enabled_ns, rel=0.05, abs=100_000)
    assert [r[0] is s[0] for r, s in zip(readings[1:], readings, strict=False)].count(True) == 2
