"""Runs inside the arm64 guest, as its /app/main.py: the real perf source against a real kernel PMU.

Every experiment prints one line, "RESULT" and a JSON object; test_arm64_perf.py asserts on them. Only the
standard library is here, and in /app the repository's `collector` package, the module that it needs, and
tests/support/perf_attr.py.
"""

import contextlib
import ctypes
import dataclasses
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

sys.path.insert(0, "/app")

from perf_attr import EventAttr

from collector.base import Reason, SourceError, VmIdentity
from collector.perf.binding import (
    FLAG_FD_CLOEXEC,
    FLAG_PID_CGROUP,
    Group,
    Kernel,
    PerfError,
    close_group,
    open_group,
    read_group,
)
from collector.perf.cpu import core_pmus
from collector.perf.events import CYCLES, CYCLES_AND_INSTRUCTIONS, INSTRUCTIONS, TASK_CLOCK_NS, Catalog, Event
from collector.perf.multiplex_scaling import ScaledDelta, scale_delta
from collector.perf.source import PerfSource

KERNEL = Kernel()
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
CGROUPS = Path("/sys/fs/cgroup")


def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def open_fds():
    return len(list(Path("/proc/self/fd").iterdir()))


class Guest:
    """A process that stands for QEMU: its threads, started and ended on command, are the vCPUs."""

    def __init__(self):
        self._commands, ours = os.pipe()
        theirs, self._answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._serve()
            finally:
                os._exit(0)
        os.close(self._commands)
        os.close(self._answers)
        self._ask, self._hear = ours, theirs

    def _serve(self):
        stops = {}
        with os.fdopen(self._commands) as commands:
            for line in commands:
                what, tid = line.split()
                if what in ("busy", "idle"):
                    stop, started = threading.Event(), threading.Event()
                    thread = threading.Thread(target=self._vcpu, args=(what, stop, started), daemon=True)
                    thread.start()
                    started.wait()
                    stops[thread.native_id] = (stop, thread)
                    tid = thread.native_id
                else:
                    stop, thread = stops.pop(int(tid))
                    stop.set()
                    thread.join()
                    while Path(f"/proc/self/task/{tid}").exists():
                        time.sleep(0.001)
                os.write(self._answers, f"{tid}\n".encode())

    @staticmethod
    def _vcpu(what, stop, started):
        started.set()
        if what == "idle":
            stop.wait()
        while not stop.is_set():
            pass

    def _do(self, command):
        os.write(self._ask, f"{command}\n".encode())
        return int(os.read(self._hear, 64))

    def start(self, what="busy"):
        return self._do(f"{what} 0")

    def stop(self, tid):
        self._do(f"stop {tid}")

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._ask)
        os.close(self._hear)


def identity(guest, *tids, uuid="u1", epoch="e1"):
    return VmIdentity(uuid, uuid, guest.pid, epoch, tids)


def reported(sample, uuid="u1"):
    vm = sample.vms[uuid]
    absent = {name: reason.code for name, reason in vm.absent.items()}
    return {"perf": sorted(vm.perf.groups) if vm.perf is not None else None, "absent": absent}


def scaled(now, last):
    delta = scale_delta(now, last)
    if not isinstance(delta, ScaledDelta):
        return {"reason": delta.code}
    cycles, instructions = delta.counts[:2]
    return {"ipc": instructions / cycles if cycles else None, **delta._asdict()}


# -- experiments: each takes nothing and returns what is printed ------------------------------------------------


def probes():
    """As root, as nobody under two settings of perf_event_paranoid, and under a full file table."""
    found = {"root": _probe()}
    for level in (3, 1):
        PARANOID.write_text(str(level))
        found[f"nobody_{level}"] = _as_nobody(_probe)
    PARANOID.write_text("2")
    return found


def _probe():
    probe = PerfSource(list).probe()
    return {"available": probe.available, "reason": probe.reason.code, "detail": probe.detail}


def _as_nobody(work):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setuid(65534)
        os.write(write, json.dumps(work()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return json.loads(text)


class Recording(Kernel):
    """Passes on to the kernel what it is given, and keeps it; a mutant's change is made to what is passed on."""

    def __init__(self, **change):
        super().__init__()
        self.seen = []
        self.change = change

    def perf_event_open(self, attr, pid, cpu, group_fd, flags):
        passed = dataclasses.replace(EventAttr.unpack(attr), **self.change)
        fd = super().perf_event_open(passed.pack(), pid, cpu, group_fd, flags)
        seen = dataclasses.asdict(passed)
        event = seen.pop("event")
        seen |= {"type": event["type"], "config": event["config"], "pid": pid, "cpu": cpu}
        seen["cgroup"] = bool(flags & FLAG_PID_CGROUP)
        seen |= {"leader": group_fd == -1, "cloexec": not os.get_inheritable(fd)}
        self.seen.append(seen)
        return fd


def ipc():
    """Two busy vCPU threads and an idle one, as the source sees them, and the bits that reached the kernel."""
    guest = Guest()
    busy, idle = [guest.start(), guest.start()], guest.start("idle")
    kernel = Recording()
    source = PerfSource(lambda: [identity(guest, *busy, idle)], kernel=kernel, events="basic")
    source.open()
    kernel.seen.clear()
    last = source.sample().vms["u1"].perf.groups
    time.sleep(0.5)
    now = source.sample().vms["u1"].perf.groups
    source.close()
    guest.kill()
    return {
        "busy": [scaled(now[t][0], last[t][0]) for t in busy],
        "idle": scaled(now[idle][0], last[idle][0]),
        "attrs": kernel.seen,
        "tids": [*busy, idle],
    }


def multiplexed():
    """Twelve groups more than the PMU has room for, beside the source's own, all on one busy thread."""
    guest = Guest()
    tid = guest.start()
    source = PerfSource(lambda: [identity(guest, tid)], events="basic")
    found = _crowd(source, tid, tid, -1, 0)
    guest.kill()
    return found


def multiplexed_cgroup():
    """The same of a control group: source, groups and single events are bound to it on the one CPU."""
    guest = Guest()
    tid = guest.start()
    _move(guest, "vm-crowd")
    fd = os.open(CGROUPS / "vm-crowd", os.O_RDONLY | os.O_DIRECTORY)
    kernel = Recording()
    source = PerfSource(lambda: [identity(guest, tid)], scope="cgroup", events="basic", kernel=kernel)
    found = _crowd(source, tid, fd, 0, FLAG_PID_CGROUP)
    os.close(fd)
    guest.kill()
    return found | {"attrs": kernel.seen}


def _move(guest, name):
    (CGROUPS / name).mkdir(exist_ok=True)
    (CGROUPS / name / "cgroup.procs").write_text(str(guest.pid))


def _crowd(source, tid, pid, cpu, flags):
    def group(*events):
        return open_group(events, pid, cpu, kernel=KERNEL, flags=flags)

    clock = open_group([TASK_CLOCK_NS], tid, kernel=KERNEL)  # the truth: how long the busy thread ran
    groups = [group(*CYCLES_AND_INSTRUCTIONS) for _ in range(12)]
    # What others did: cycles and instructions as events of their own. All of one kind come first, so the two of
    # a pair get their turns at different times.
    alone_cycles = [group(CYCLES) for _ in range(6)]
    alone_instructions = [group(INSTRUCTIONS) for _ in range(6)]
    singles = list(zip(alone_cycles, alone_instructions, strict=True))

    def read():
        (own,) = source.sample().vms["u1"].perf.groups.values()
        all_groups = [read_group(g, kernel=KERNEL) for g in (clock, *groups)]
        return own[0], all_groups, [[read_group(g, kernel=KERNEL) for g in pair] for pair in singles]

    read()
    time.sleep(0.1)
    last, before, alone = read()
    time.sleep(4)
    now, after, later = read()
    for opened in (clock, *groups, *(g for pair in singles for g in pair)):
        close_group(opened, kernel=KERNEL)
    source.close()

    def difference(a, b):
        return {
            "enabled_ns": a.time_enabled_ns - b.time_enabled_ns,
            "running_ns": a.time_running_ns - b.time_running_ns,
            "values": [x - y for x, y in zip(a.counts, b.counts, strict=True)],
        }

    return {
        "source": scaled(now, last),
        "cpu_ns": difference(after[0], before[0])["values"][0],
        "groups": [difference(a, b) for a, b in zip(after[1:], before[1:], strict=True)],
        "ungrouped": [
            [difference(a, b) for a, b in zip(pair_now, pair_last, strict=True)]
            for pair_now, pair_last in zip(later, alone, strict=True)
        ],
    }


def _raw_catalog(programmable):
    """Events whose truth is known: instructions and cycles by their raw numbers, and stalls, which are 0 here."""
    (pmu,) = core_pmus()
    raw = {
        "llc_misses": 0x08,
        "l2_misses": 0x11,
        "memory_stall_cycles": 0x08,
        "total_stall_cycles": 0x3C,
        "reference_cycles": 0x11,
        "core_stall_cycles": 0x24,
    }
    events = {name: Event(name, pmu.type, config) for name, config in raw.items()}
    return Catalog("test", events, programmable=programmable, fixed=frozenset({"cycles"}))


def time_sliced():
    """A budget of one counter beside cycles and instructions: six groups, on in turns, on a busy thread."""
    guest = Guest()
    tid = guest.start()
    catalog = _raw_catalog(2)
    source = PerfSource(lambda: [identity(guest, tid)], catalog=catalog, reserve_counters=0)
    source.open()
    clock = open_group([TASK_CLOCK_NS], tid, kernel=KERNEL)
    ticks = []
    for _ in range(8):
        perf = source.sample().vms["u1"].perf
        cpu_ns = read_group(clock, kernel=KERNEL).counts[0]
        ticks.append({"cpu_ns": cpu_ns, "groups": [dataclasses.asdict(g) for g in perf.groups[tid]]})
        time.sleep(0.2)
    source.close()
    close_group(clock, kernel=KERNEL)
    guest.kill()
    missing = {name: reason.code for name, reason in perf.missing.items()}
    return {"layout": perf.layout, "missing": missing, "ticks": ticks}


def plan_is_fitted():
    """A table that promises far more counters than there are: the plan shrinks to what this kernel really runs."""
    guest = Guest()
    tid = guest.start()
    source = PerfSource(lambda: [identity(guest, tid)], catalog=_raw_catalog(60), reserve_counters=0)
    found = {"detail": source.probe().detail}
    source.open()
    last = source.sample().vms["u1"].perf
    time.sleep(0.1)
    now = source.sample().vms["u1"].perf
    source.close()
    own = PerfSource(lambda: [identity(guest, tid)])
    found["own"] = own.probe().detail
    found["own_layout"] = own.sample().vms["u1"].perf.layout
    own.close()
    guest.kill()
    index = next(i for i, (a, b) in enumerate(zip(now.groups[tid], last.groups[tid], strict=True)) if a != b)
    return found | {"layout": now.layout, "delta": scaled(now.groups[tid][index], last.groups[tid][index])}


def cgroups():
    """VMs in control groups: their own, one that two share, the root's; a VM that is moved to another one."""
    alone, first, second, rootless = (Guest() for _ in range(4))
    guests = {"alone": alone, "first": first, "second": second, "root": rootless}
    vms = [identity(g, g.start("idle"), uuid=name) for name, g in guests.items()]
    _move(alone, "vm-alone")
    _move(first, "vm-shared")
    _move(second, "vm-shared")
    before = open_fds()
    source = PerfSource(lambda: vms, scope="cgroup", events="basic")
    sample = source.sample()
    found = {"first": {uuid: reported(sample, uuid) for uuid in sample.vms}, "fds": open_fds() - before}
    opened = sample.vms["alone"].perf.groups[0][0].opened
    _move(alone, "vm-elsewhere")
    for _ in range(30):
        sample = source.sample()
    found["opened"] = [opened, sample.vms["alone"].perf.groups[0][0].opened]
    source.close()
    found["leak"] = open_fds() - before
    for guest in guests.values():
        guest.kill()
    return found


def costs():
    """What opening and reading cost per group, in microseconds of this guest's CPU."""
    guest = Guest()
    tids = [guest.start("idle") for _ in range(50)]
    _move(guest, "vm-cost")
    found = {}
    for scope in ("thread", "cgroup"):
        source = PerfSource(lambda: [identity(guest, *tids)], scope=scope, events="basic", opens_per_tick=100)
        source.open()
        started = time.process_time()
        keys = len(source.sample().vms["u1"].perf.groups)
        opened = time.process_time()
        for _ in range(10):
            source.sample()
        read = (time.process_time() - opened) / 10
        source.close()
        found[scope] = {"groups": keys, "open_us": (opened - started) * 1e6 / keys, "sample_us": read * 1e6}
    guest.kill()
    return found


def pinned_mutant():
    """What pinning would do: groups that do not fit fall into the kernel's error state, and others never run."""
    guest = Guest()
    tid = guest.start()
    outcome = {}
    for name, kernel in (("ours", KERNEL), ("pinned", Recording(pinned=True))):
        unreadable, groups = 0, []
        for _ in range(12):
            leader = kernel.perf_event_open(EventAttr(CYCLES).pack(), tid, -1, -1, FLAG_FD_CLOEXEC)
            groups.append(Group((leader,), (kernel.event_id(leader),)))
        spin(0.1)
        for group in groups:
            try:
                read_group(group, kernel=kernel)
            except PerfError:
                unreadable += 1
            close_group(group, kernel=kernel)
        outcome[name] = unreadable
    guest.kill()
    return outcome


def mutants():
    """The attributes that reach the kernel when someone flips a bit: the bits' test has to see each of them."""
    guest = Guest()
    tid = guest.start()
    seen = {}
    for change in ({"exclude_guest": True}, {"inherit": True}, {"pinned": True}):
        kernel = Recording(**change)
        source = PerfSource(lambda: [identity(guest, tid)], kernel=kernel)
        with contextlib.suppress(SourceError):
            source.sample()
        source.close()
        seen[next(iter(change))] = kernel.seen
    guest.kill()
    return seen


def lives_and_deaths():
    """Threads end and appear while the source samples; a number is used again; the whole process is killed."""
    guest = Guest()
    before = open_fds()
    tids = [guest.start(), guest.start(), guest.start()]
    listed = list(tids)
    source = PerfSource(lambda: [identity(guest, *listed)], events="basic")
    story = {"start": reported(source.sample())}
    spin(0.05)
    guest.stop(tids[0])  # still in the inventory, which is behind
    source.sample()
    story["one_ended"] = reported(source.sample())
    listed = [*tids[1:], guest.start()]
    story["one_appeared"] = reported(source.sample())
    first = source.sample().vms["u1"].perf.groups[tids[1]][0]
    guest.stop(tids[1])
    # The kernel hands out numbers upwards from the last: set it back to have the same one again.
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(tids[1] - 1))
    again = guest.start()
    source.sample()
    second = source.sample().vms["u1"].perf.groups[tids[1]][0]
    story["reused"] = {
        "same_number": again == tids[1],
        "opened": [first.opened, second.opened],
        "delta": scaled(second, first),
    }
    story["fds_while_open"] = open_fds() - before
    guest.kill()
    source.sample()
    story["killed"] = reported(source.sample())
    story["fds_after_kill"] = open_fds() - before + 2  # the two pipes of the guest are closed by now
    source.close()
    story["listed"] = {"first": tids, "last": listed}
    return story


def spread_and_isolated():
    """Opens are spread over ticks; a VM whose threads cannot be had costs no other VM."""
    good, more = Guest(), Guest()
    tids = [good.start("idle") for _ in range(5)]
    other = [more.start("idle") for _ in range(2)]
    bad = VmIdentity("bad", "bad", good.pid, "e", (0,))
    gone = VmIdentity("gone", "gone", 999_999, "e", (999_999,))
    source = PerfSource(
        lambda: [bad, gone, identity(good, *tids), identity(more, *other, uuid="u2")], opens_per_tick=3, events="basic"
    )
    ticks = []
    for _ in range(4):
        sample = source.sample()
        ticks.append({uuid: reported(sample, uuid) for uuid in sample.vms})
    source.close()
    before = open_fds()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    source = PerfSource(lambda: [identity(good, *tids), identity(more, *other, uuid="u2")], events="basic")
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 15 + 3, hard))
    try:
        sample = source.sample()
        full = {uuid: reported(sample, uuid) for uuid in sample.vms}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for _ in range(3):
        sample = source.sample()
    healed = {uuid: reported(sample, uuid) for uuid in sample.vms}
    source.close()
    leak = open_fds() - before
    good.kill()
    more.kill()
    return {"ticks": ticks, "tids": tids, "other": other, "full": full, "healed": healed, "leak": leak}


def mount_cgroups():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", os.fsencode(CGROUPS), b"cgroup2", 0, None):
        raise OSError(ctypes.get_errno(), "mount cgroup2")
    # Groups below the root have the perf_event controller once any other is enabled there, as systemd does at boot.
    (CGROUPS / "cgroup.subtree_control").write_text("+pids")


def main():
    PARANOID.write_text("2")
    mount_cgroups()
    works = (probes, ipc, multiplexed, multiplexed_cgroup, time_sliced, plan_is_fitted, cgroups, costs)
    works += (pinned_mutant, mutants, lives_and_deaths, spread_and_isolated)
    for work in works:
        started = time.monotonic()
        try:
            result = work()
        except Exception:  # noqa: BLE001 - the other experiments are worth having
            result = {"error": traceback.format_exc()}
        line = {"experiment": work.__name__, "seconds": time.monotonic() - started, "result": result}
        print("RESULT", json.dumps(line), flush=True)


assert Reason.NO_PMU.code == "no_pmu"
main()
