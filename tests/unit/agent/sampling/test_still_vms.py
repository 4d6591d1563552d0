"""What a source hands on as the very same object makes what an equal one makes, only cheaper."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sampling import vms as vm_table
from agent.sampling.rates import Limits, rates_of
from agent.sampling.vms import JobRules, VmTable
from collector.base import (
    CgroupCounters,
    DiskCounters,
    InterfaceCounters,
    NumaPlacement,
    PerfCounters,
    PerfGroup,
    ProcessCounters,
    RdtCounters,
    RdtDomain,
    Reason,
    SourceSample,
    Stamp,
    ThreadCounters,
    VmSample,
)
from tests.unit.agent.agent_fakes import UNIX0, S, identity

LAYOUT = (("cycles", "instructions", "l2_misses"), ("cycles", "instructions", "llc_misses"))


def perf_of(n: int) -> PerfCounters:
    """Groups in turns: one moves when the other does not."""
    first, second = (n + 1) // 2, n // 2
    groups = {
        tid: tuple(PerfGroup(1, k * 10**8, k * 10**8, (k * 10**8, k * 10**7, k * 10**5)) for k in (first, second))
        for tid in (101, 102)
    }
    return PerfCounters(LAYOUT, groups)


#: Of each part, its value after it moved `n` times.
MAKE = {
    "threads": lambda n: {
        tid: ThreadCounters(None, n * 10**8, None if n % 5 == 4 else n * 10**7, 7) for tid in (101, 102)
    },
    "perf": perf_of,
    "disks": lambda n: {"vda": DiskCounters(n * 10, n * 20, n, n)} if n % 6 else {},
    "interfaces": lambda n: {"tap": InterfaceCounters(n, n, n, n, n, None, opened=n // 4)},
    "process": lambda n: ProcessCounters(
        n * 2 * 10**8, 7, n * 10**6, n * 4096, None, Reason.NO_PERMISSION, (None, 0, 1, 2)[n % 4]
    ),
    "cgroup": lambda n: CgroupCounters(n // 4, n * 10**6, None, None, n * 10**5, n, n, n / 2 or None, n * 100),
    "rdt": lambda n: RdtCounters(n // 4, {"00": RdtDomain(n * 64, n * 128, None, Reason.NO_RDT)}),
    "numa": lambda n: NumaPlacement({0: n * 100, 1: 50}, {0: 1, 1: 1}),
}
PARTS = tuple(MAKE)
DOES = st.sampled_from(["stays", "stays", "stays", "moves", "goes", "is not read"])
TICKS = st.lists(
    st.tuples(
        st.tuples(*[DOES] * len(PARTS)),
        st.sampled_from([1, 1, 1, 2, 7]),
        st.sampled_from(["", "", "", "", "plug", "restart", "source", "bad"]),
    ),
    max_size=25,
)


class Feed:
    """A VM's samples, tick by tick, by one source or another."""

    def __init__(self) -> None:
        self.moved = dict.fromkeys(PARTS, 1)
        self.values = {part: MAKE[part](1) for part in PARTS}
        self.stamps = dict.fromkeys(PARTS, Stamp(S, UNIX0 + S))
        self.mono_ns, self.epoch, self.vcpus, self.source = S, 1, 2, "simulated"

    def next(self, does, seconds, event) -> SourceSample:
        self.mono_ns += seconds * S
        if event == "plug":
            self.vcpus = 5 - self.vcpus
        self.epoch += event == "restart"
        if event == "source":
            self.source = "procfs" if self.source == "simulated" else "simulated"
        reported, absent = {}, {}
        for part, doing in zip(PARTS, does, strict=True):
            if doing == "moves":
                self.moved[part] += 1
                self.values[part] = MAKE[part](self.moved[part])
            if doing == "goes":
                absent[part] = Reason.STUCK
                continue
            reported[part] = self.values[part]
            if doing != "is not read":
                self.stamps[part] = Stamp(self.mono_ns, UNIX0 + self.mono_ns)
        if event == "bad":
            reported["threads"] = {101: None}
        vm = VmSample(str(self.epoch), **reported, absent=absent, stamps=dict(self.stamps))
        listed = (identity("u1", str(self.epoch), vcpus=self.vcpus),)
        return SourceSample(self.source, self.mono_ns, UNIX0 + self.mono_ns, {"u1": vm}, None, listed)


def table() -> VmTable:
    return VmTable(JobRules(()), Limits(), 5 * S, lambda _: None, {"disks": 10 * S})


def state(of: VmTable):
    return [(vm.rates, vm.change, vm.now, list(vm.latest), vm.known, vm.held) for vm in of]


@given(TICKS)
def test_the_same_object_makes_what_an_equal_one_makes(ticks):
    feed, handed_on, copied = Feed(), table(), table()
    for does, seconds, event in ticks:
        sample = feed.next(does, seconds, event)
        handed_on.update([sample], sample.mono_ns)
        copied.update([copy.deepcopy(sample)], sample.mono_ns)
        assert state(handed_on) == state(copied)


def test_of_a_vm_that_stands_still_differences_are_made_once_and_rates_stay(monkeypatch):
    feed, vms = Feed(), table()
    all_stay = ("stays",) * len(PARTS)
    for _ in range(3):
        sample = feed.next(all_stay, 1, "")
        vms.update([sample], sample.mono_ns)
    (vm,) = vms
    rates = vm.rates
    assert (rates.cpu_usage_cores, rates.network_receive_bytes_per_s, rates.memory_charged_bytes) == (0, 0, 100)

    def not_again(*_):
        raise AssertionError("subtracted again")

    monkeypatch.setattr(vm_table, "subtract", not_again)
    sample = feed.next(all_stay, 2, "")
    vms.update([sample], sample.mono_ns)
    assert vm.change is not None
    assert vm.change.cpu[:4] == (2 * S, sample.mono_ns, sample.unix_ns, 2)
    assert vm.now.cgroup.mono_ns == sample.mono_ns
    assert vm.rates == rates


@pytest.mark.parametrize(
    "steps",
    [
        ("stays", "stays", "moves", "stays", "moves"),
        ("stays", "stays", "stays", "goes", "stays", "stays"),  # as it was before, and yet not known in between
        ("stays", "stays", "goes", "goes", "moves"),
        ("moves", "is not read", "stays", "stays", "is not read", "moves"),
        ("moves",) * 3 + ("stays",) * 9,  # what is held of counters in turns becomes stale
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_moves_or_goes_reports_so(part, steps):
    feed, handed_on, copied = Feed(), table(), table()
    others = {p: "goes" if p == "perf" else "stays" for p in PARTS}  # beside counters in turns all is made again
    for doing in steps:
        sample = feed.next(tuple({**others, part: doing}.values()), 1, "")
        handed_on.update([sample], sample.mono_ns)
        copied.update([copy.deepcopy(sample)], sample.mono_ns)
        assert state(handed_on) == state(copied)
        (vm,) = handed_on
        if part != "perf":
            assert vm.rates == rates_of(vm.change, Limits())
    assert handed_on.errors == 0


def test_another_number_of_vcpus_with_the_sample_of_before():
    feed, handed_on, copied = Feed(), table(), table()
    for doing, event in (("moves", ""), ("moves", ""), ("is not read", "plug"), ("moves", "plug")):
        sample = feed.next((doing,) * len(PARTS), 1, event)
        handed_on.update([sample], sample.mono_ns)
        copied.update([copy.deepcopy(sample)], sample.mono_ns)
        (vm,) = handed_on
        assert vm.rates == rates_of(vm.change, Limits())
        assert state(handed_on) == state(copied)
