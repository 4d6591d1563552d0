"""Fakes of the agent's unit tests: a clock that tests move, sources that do what they are reported."""

import asyncio
import threading
from collections.abc import Callable

from agent.sampling.changes import JoinedVm, Reading
from collector.base import (
    DiskCounters,
    InterfaceCounters,
    PerfCounters,
    PerfGroup,
    Probe,
    Reason,
    SourceSample,
    ThreadCounters,
    VmIdentity,
    VmSample,
)

S = 10**9
UNIX0 = 1_700_000_000 * S  # a multiple of 10 s


WORKS = Probe(available=True, detail="")


class FakeClock:
    """Both clocks stand still until told; a sleep moves them to its end."""

    def __init__(self, mono_ns: int = 1000 * S, unix_ns: int = UNIX0) -> None:
        self.mono = mono_ns
        self.unix = unix_ns
        self.late_ns = 0

    def mono_ns(self) -> int:
        return self.mono

    def unix_ns(self) -> int:
        return self.unix

    def advance(self, ns: int) -> None:
        self.mono += ns
        self.unix += ns

    async def sleep_until(self, mono_ns: int) -> None:
        self.advance(max(0, mono_ns - self.mono) + self.late_ns)
        await asyncio.sleep(0.002)


class FakeSource:
    """A source whose sampling is a function of the test; it can be held with `gate`."""

    def __init__(self, name: str, take: Callable[[], SourceSample], probe: Probe = WORKS) -> None:
        self.name = name
        self.take = take
        self.said = probe
        self.opened = self.closed = self.probed = self.entered = 0
        self.gate = threading.Event()
        self.gate.set()

    def probe(self) -> Probe:
        self.probed += 1
        return self.said

    def open(self) -> None:
        self.opened += 1

    def sample(self) -> SourceSample:
        self.entered += 1
        self.gate.wait()
        return self.take()

    def close(self) -> None:
        self.closed += 1


def identity(uuid: str = "u1", epoch: str = "e1", *, name: str = "vm1", vcpus: int = 2, **facts: str) -> VmIdentity:
    return VmIdentity(uuid, name, 100, epoch, tuple(range(101, 101 + vcpus)), facts=facts)


def threads(seconds: float, vcpus: int = 2, usage: float = 0.5, guest: float = 0.9) -> dict[int, ThreadCounters]:
    cpu_ns = round(seconds * usage * S)
    return {tid: ThreadCounters(round(cpu_ns * guest), cpu_ns, cpu_ns // 10, 7) for tid in range(101, 101 + vcpus)}


def perf(seconds: float, vcpus: int = 2, usage: float = 0.5, ghz: float = 2.0, cpi: float = 1.6) -> PerfCounters:
    cpu_ns = round(seconds * usage * S)
    cycles = round(cpu_ns * ghz)
    return perf_of(
        {tid: PerfGroup(1, cpu_ns, cpu_ns, (cycles, round(cycles / cpi))) for tid in range(101, 101 + vcpus)}
    )


def perf_of(groups: dict[int, PerfGroup]) -> PerfCounters:
    """One group of cycles and instructions per thread."""
    return PerfCounters((("cycles", "instructions"),), {tid: (group,) for tid, group in groups.items()})


def disk(seconds: float) -> dict[str, DiskCounters]:
    n = round(seconds * 1000)
    return {"vda": DiskCounters(n * 10, n * 20, n, n * 2)}


def network(seconds: float) -> dict[str, InterfaceCounters]:
    n = round(seconds * 1000)
    return {"vnet0": InterfaceCounters(n * 3, n * 4, n, n * 2, n // 10, 0)}


def vm_sample(seconds: float, epoch: str = "e1", vcpus: int = 2, **absent: Reason) -> VmSample:
    """All parts after `seconds` of life: 0.5 cores per vCPU at 2 GHz, CPI 1.6."""
    return VmSample(
        epoch,
        None if "threads" in absent else threads(seconds, vcpus),
        None if "perf" in absent else perf(seconds, vcpus),
        None if "disks" in absent else disk(seconds),
        None if "interfaces" in absent else network(seconds),
        absent,
    )


def joined(seconds: float, *, at_s: float | None = None, epoch: str = "e1", vcpus: int = 2) -> JoinedVm:
    mono_ns = round((seconds if at_s is None else at_s) * S)
    unix_ns = UNIX0 + mono_ns
    return JoinedVm(
        epoch,
        vcpus,
        Reading("procfs", mono_ns, unix_ns, threads(seconds, vcpus)),
        Reading("perf", mono_ns, unix_ns, perf(seconds, vcpus)),
        Reading("libvirt", mono_ns, unix_ns, disk(seconds)),
        Reading("libvirt", mono_ns, unix_ns, network(seconds)),
    )
