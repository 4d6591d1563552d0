"""Runs inside the arm64 guest, as its /app/main.py: the real perf source against a real kernel PMU.

Every experiment prints one line, "RESULT" and a JSON object; test_arm64_perf.py asserts on them. Only the
standard library is here, and the repository's `collector` package in /app.
"""

from __future__ import annotations

import contextlib
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

from collector.base import Reason, SourceError, VmIdentity
from collector.perf.binding import (
    FLAG_FD_CLOEXEC,
    EventAttr,
    Group,
    Kernel,
    PerfError,
    close_group,
    open_group,
    read_group,
)
from collector.perf.events import CYCLES, CYCLES_AND_INSTRUCTIONS, INSTRUCTIONS, TASK_CLOCK_NS
from collector.perf.scale import ScaledDelta, scale_delta
from collector.perf.source import PerfSource

KERNEL = Kernel()
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


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


def told(sample, uuid="u1"):
    vm = sample.vms[uuid]
    absent = {name: reason.code for name, reason in vm.absent.items()}
    return {"perf": sorted(vm.perf.groups) if vm.perf is not None else None, "absent": absent}


def scaled(now, last):
    delta = scale_delta(now, last)
    if not isinstance(delta, ScaledDelta):
        return {"reason": delta.code}
    cycles, instructions = delta.counts[:2]
    return {"ipc": instructions / cycles if cycles else None, **dataclasses.asdict(delta)}


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
        seen |= {"leader": group_fd == -1, "cloexec": not os.get_inheritable(fd)}
        self.seen.append(seen)
        return fd


def ipc():
    """Two busy vCPU threads and an idle one, as the source sees them, and the bits that reached the kernel."""
    guest = Guest()
    busy, idle = [guest.start(), guest.start()], guest.start("idle")
    kernel = Recording()
    source = PerfSource(lambda: [identity(guest, *busy, idle)], kernel=kernel)
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
    source = PerfSource(lambda: [identity(guest, tid)])
    clock = open_group([TASK_CLOCK_NS], tid, kernel=KERNEL)
    groups = [open_group(CYCLES_AND_INSTRUCTIONS, tid, kernel=KERNEL) for _ in range(12)]
    # What others did: cycles and instructions as events of their own. All of one kind come first, so the two of
    # a pair get their turns at different times.
    alone_cycles = [open_group([CYCLES], tid, kernel=KERNEL) for _ in range(6)]
    alone_instructions = [open_group([INSTRUCTIONS], tid, kernel=KERNEL) for _ in range(6)]
    singles = list(zip(alone_cycles, alone_instructions, strict=True))
    time.sleep(0.1)
    last = source.sample().vms["u1"].perf.groups[tid][0]
    before = [read_group(g, kernel=KERNEL) for g in (clock, *groups)]
    alone = [(read_group(c, kernel=KERNEL), read_group(i, kernel=KERNEL)) for c, i in singles]
    time.sleep(4)
    now = source.sample().vms["u1"].perf.groups[tid][0]
    after = [read_group(g, kernel=KERNEL) for g in (clock, *groups)]
    later = [(read_group(c, kernel=KERNEL), read_group(i, kernel=KERNEL)) for c, i in singles]
    for group in (clock, *groups, *(g for pair in singles for g in pair)):
        close_group(group, kernel=KERNEL)
    source.close()
    guest.kill()

    def difference(a, b):
        return {
            "enabled_ns": a.time_enabled_ns - b.time_enabled_ns,
            "running_ns": a.time_running_ns - b.time_running_ns,
            "values": [x - y for x, y in zip(a.values, b.values, strict=True)],
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
    source = PerfSource(lambda: [identity(guest, *listed)])
    story = {"start": told(source.sample())}
    spin(0.05)
    guest.stop(tids[0])  # still in the inventory, which is behind
    source.sample()
    story["one_ended"] = told(source.sample())
    listed = [*tids[1:], guest.start()]
    story["one_appeared"] = told(source.sample())
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
    story["killed"] = told(source.sample())
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
        lambda: [bad, gone, identity(good, *tids), identity(more, *other, uuid="u2")], opens_per_tick=3
    )
    ticks = []
    for _ in range(4):
        sample = source.sample()
        ticks.append({uuid: told(sample, uuid) for uuid in sample.vms})
    source.close()
    before = open_fds()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    source = PerfSource(lambda: [identity(good, *tids), identity(more, *other, uuid="u2")])
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 15 + 3, hard))
    try:
        sample = source.sample()
        full = {uuid: told(sample, uuid) for uuid in sample.vms}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for _ in range(3):
        sample = source.sample()
    healed = {uuid: told(sample, uuid) for uuid in sample.vms}
    source.close()
    leak = open_fds() - before
    good.kill()
    more.kill()
    return {"ticks": ticks, "tids": tids, "other": other, "full": full, "healed": healed, "leak": leak}


def main():
    PARANOID.write_text("2")
    for work in (probes, ipc, multiplexed, pinned_mutant, mutants, lives_and_deaths, spread_and_isolated):
        started = time.monotonic()
        try:
            result = work()
        except Exception:  # noqa: BLE001 - the other experiments are worth having
            result = {"error": traceback.format_exc()}
        line = {"experiment": work.__name__, "seconds": time.monotonic() - started, "result": result}
        print("RESULT", json.dumps(line), flush=True)


assert Reason.NO_PMU.code == "no_pmu"
main()
