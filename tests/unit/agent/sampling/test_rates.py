import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sampling.changes import CpuDelta, PerfDelta, Reading
from agent.sampling.deltas import delta
from agent.sampling.metric_table import VM_METRICS, VmRates
from agent.sampling.rates import Limits, derive, derive_host
from collector.base import (
    CgroupCounters,
    DiskCounters,
    HostCounters,
    InterfaceCounters,
    NumaPlacement,
    PerfCounters,
    PerfGroup,
    ProcessCounters,
    RdtCounters,
    RdtDomain,
    Reason,
    ThreadCounters,
)
from tests.unit.agent.agent_fakes import UNIX0, S, joined, perf, perf_of, threads


def of_part(rates, part):
    """The metrics of a part, in the order of the table."""
    return tuple(value for metric, value in zip(VM_METRICS, rates, strict=True) if metric.part == part)


def test_rates_of_a_steady_vm_are_the_ones_it_was_given():
    rates = derive(joined(12), joined(10))
    expected = {
        "cpu_usage_cores": 1.0,  # 2 vCPUs at 0.5
        "guest_ratio": 0.45,
        "run_queue_wait_ratio": 0.05,
        "gips": 1.25,  # 2 GHz * 1 core / 1.6
        "ipc": 0.625,
        "cpi": 1.6,
        "running_ratio": 1.0,
        "disk_read_bytes_per_s": 10_000,
        "disk_write_bytes_per_s": 20_000,
        "disk_read_ops_per_s": 1000,
        "disk_write_ops_per_s": 2000,
        "network_receive_bytes_per_s": 3000,
        "network_transmit_bytes_per_s": 4000,
        "network_receive_packets_per_s": 1000,
        "network_transmit_packets_per_s": 2000,
        "network_receive_drops_per_s": 100,
        "network_transmit_drops_per_s": 0,
    }
    expected["steal_like_ratio"] = 0.1 / 1.1
    known = {name: value for name, value in rates._asdict().items() if not isinstance(value, Reason)}
    assert known == pytest.approx(expected, rel=1e-9)
    assert set(of_part(rates, "perf")[4:]) == {Reason.NOT_PRESENT}  # events that no group has
    assert set(rates[24:]) == {Reason.SOURCE_OFF}  # parts that nobody told


def test_each_part_is_divided_by_its_own_sources_time():
    now, last = joined(12), joined(10)
    slow = now.disks._replace(mono_ns=now.disks.mono_ns + 2 * S)  # libvirt took its sample 2 s later
    rates = derive(now._replace(disks=slow), last)
    assert rates.disk_read_bytes_per_s == pytest.approx(5000)
    assert rates.cpu_usage_cores == pytest.approx(1.0)


def test_nothing_is_known_across_a_change_of_epoch():
    rates = derive(joined(12, epoch="e2"), joined(10))
    assert set(rates[:24]) == {Reason.VM_STARTING}
    assert set(rates[24:]) == {Reason.SOURCE_OFF}


def test_the_reason_of_a_missing_part_is_the_reason_of_its_metrics():
    rates = derive(joined(12)._replace(perf=Reason.NO_PMU), joined(10))
    assert set(of_part(rates, "perf")) == {Reason.NO_PMU}
    assert rates.cpu_usage_cores == pytest.approx(1.0)
    rates = derive(joined(12), joined(10)._replace(perf=Reason.VM_STARTING))
    assert rates.cpi is Reason.VM_STARTING
    rates = derive(joined(12), joined(10)._replace(perf=Reason.STALE))  # after too long a gap
    assert rates.cpi is Reason.STALE


def test_another_sources_counters_are_not_subtracted():
    now = joined(12)
    rates = derive(now._replace(disks=now.disks._replace(source="qemu")), joined(10))
    assert rates.disk_read_bytes_per_s is Reason.COUNTER_RESET


def test_the_same_sample_twice_is_no_rate():
    assert derive(joined(10), joined(10)).cpi is Reason.STALE


def test_a_reused_thread_number_is_another_thread():
    now = joined(12)
    reused = {**now.threads.value, 102: ThreadCounters(0, 5, 0, start_ticks=99)}
    rates = derive(now._replace(threads=now.threads._replace(value=reused)), joined(10))
    assert rates.cpu_usage_cores is Reason.VM_STARTING  # half a VM's usage would be wrong


def test_a_thread_that_died_takes_nothing_away():
    now = joined(12)._replace(vcpus=1)
    one = now._replace(
        threads=now.threads._replace(value={101: now.threads.value[101]}),
        perf=now.perf._replace(value=group_of(now, 101)),
    )
    rates = derive(one, joined(10))
    assert rates.cpu_usage_cores == pytest.approx(0.5)
    assert rates.gips == pytest.approx(0.625)


def test_counters_that_are_not_all_open_give_a_cpi_but_no_gips():
    now, last = joined(12), joined(10)
    some = last.perf._replace(value=group_of(last, 101))  # 102 was opened in between
    rates = derive(now, last._replace(perf=some))
    assert rates.gips is Reason.VM_STARTING
    assert rates.cpi == pytest.approx(1.6)


def test_a_group_opened_again_is_not_subtracted_from_its_predecessor():
    now = joined(12)
    anew = perf_of({tid: replace(c, opened=2) for tid, (c,) in now.perf.value.groups.items()})
    assert derive(now._replace(perf=now.perf._replace(value=anew)), joined(10)).cpi is Reason.VM_STARTING


@pytest.mark.parametrize(
    ("part", "lower"),
    [
        ("threads", {101: ThreadCounters(1, 1, 1, 7), 102: ThreadCounters(1, 1, 1, 7)}),
        ("perf", perf_of({tid: PerfGroup(1, 5, 5, (5, 5)) for tid in (101, 102)})),
        ("disks", {"vda": DiskCounters(0, 10**9, 10**9, 10**9)}),
        ("interfaces", {"vnet0": InterfaceCounters(10**6, 10**6, 10**6, 10**6, 0, 0)}),
    ],
)
def test_a_counter_that_went_back_is_a_reset(part, lower):
    now = joined(12)
    reading = getattr(now, part)._replace(value=lower)
    rates = derive(now._replace(**{part: reading}), joined(10))
    own = {part: of_part(rates, part) for part in ("threads", "perf", "disks", "interfaces")}[part]
    assert set(own) == {Reason.COUNTER_RESET}
    assert sum(value is Reason.COUNTER_RESET for value in rates) == len(own)


@pytest.mark.parametrize("huge", [2**63, 18446744073708863487])
def test_what_no_hardware_does_is_invalid(huge):
    now = joined(12)
    rates = derive(
        now._replace(
            threads=now.threads._replace(value={t: ThreadCounters(huge, huge, 0, 7) for t in (101, 102)}),
            perf=now.perf._replace(value=perf_of({t: PerfGroup(1, 6 * S, 6 * S, (huge, huge)) for t in (101, 102)})),
            disks=now.disks._replace(value={"vda": DiskCounters(huge, huge, huge, huge)}),
            interfaces=now.interfaces._replace(value={"vnet0": InterfaceCounters(*[huge] * 6)}),
        ),
        joined(10)._replace(),
    )
    assert {value for value in rates[:24] if value is not Reason.COUNTER_RESET} == {Reason.INVALID_VALUE}


def test_multiplexed_counters_are_scaled_and_below_the_limit_dropped():
    def sampled(seconds: float, ratio: float) -> Reading[PerfCounters]:
        full = perf(seconds)
        part = perf_of(
            {
                tid: PerfGroup(
                    1,
                    c.time_enabled_ns,
                    round(c.time_enabled_ns * ratio),
                    (round(c.counts[0] * ratio), round(c.counts[1] * ratio)),
                )
                for tid, (c,) in full.groups.items()
            }
        )
        return Reading("perf", round(seconds * S), UNIX0 + round(seconds * S), part)

    rates = derive(joined(12)._replace(perf=sampled(12, 0.25)), joined(10)._replace(perf=sampled(10, 0.25)))
    assert rates.gips == pytest.approx(1.25)
    assert rates.cpi == pytest.approx(1.6)
    assert rates.running_ratio == pytest.approx(0.25)
    rates = derive(joined(12)._replace(perf=sampled(12, 0.19)), joined(10)._replace(perf=sampled(10, 0.19)))
    assert of_part(rates, "perf")[:3] == (Reason.MULTIPLEXED,) * 3
    assert rates.running_ratio == pytest.approx(0.19)


def test_a_thread_whose_counters_never_ran_is_scaled_for():
    now, last = joined(12), joined(10)
    (c,) = now.perf.value.groups[102]
    (o,) = last.perf.value.groups[102]
    starved = PerfGroup(1, c.time_enabled_ns, o.time_running_ns, o.counts)
    value = perf_of({101: now.perf.value.groups[101][0], 102: starved})
    rates = derive(now._replace(perf=now.perf._replace(value=value)), last)
    assert rates.gips == pytest.approx(1.25)  # as if it did what the other thread did
    assert rates.running_ratio == pytest.approx(0.5)


@pytest.mark.parametrize("limit", [0.0, 0.2])
def test_counters_that_never_ran_are_multiplexed_whatever_the_limit(limit):
    now, last = joined(12), joined(10)
    value = perf_of(
        {
            tid: replace(last.perf.value.groups[tid][0], time_enabled_ns=group.time_enabled_ns)
            for tid, (group,) in now.perf.value.groups.items()
        }
    )
    rates = derive(now._replace(perf=now.perf._replace(value=value)), last, Limits(min_running_ratio=limit))
    assert of_part(rates, "perf")[:4] == (Reason.MULTIPLEXED,) * 3 + (0.0,)


def test_a_sleeping_vm_has_gips_0_and_no_cpi():
    asleep = joined(10)
    later = joined(10, at_s=12)
    rates = derive(later, asleep)
    assert (rates.cpu_usage_cores, rates.gips, rates.cpi, rates.ipc) == (0.0, 0.0, Reason.IDLE, Reason.IDLE)


def test_cpi_is_suppressed_below_the_activity_floor():
    now, last = joined(12), joined(10)
    quiet = [
        part._replace(value=threads(seconds, usage=0.004)) for part, seconds in ((now.threads, 12), (last.threads, 10))
    ]
    rates = derive(now._replace(threads=quiet[0]), last._replace(threads=quiet[1]))
    assert rates.cpu_usage_cores == pytest.approx(0.008)
    assert rates.cpi is Reason.IDLE
    assert rates.gips == pytest.approx(1.25)


def test_waits_that_the_kernel_does_not_tell_are_absent_not_zero():
    now = joined(12)
    mute = {tid: replace(t, run_queue_wait_ns=None) for tid, t in now.threads.value.items()}
    rates = derive(now._replace(threads=now.threads._replace(value=mute)), joined(10))
    assert rates.run_queue_wait_ratio is Reason.NOT_PRESENT
    assert rates.cpu_usage_cores == pytest.approx(1.0)


def test_devices_come_and_go():
    now, last = joined(12), joined(10)
    both = {**now.disks.value, "vdb": DiskCounters(10**9, 10**9, 10**6, 10**6)}
    rates = derive(now._replace(disks=now.disks._replace(value=both)), last)
    assert rates.disk_read_bytes_per_s == pytest.approx(10_000)  # vdb's past is not this tick's
    rates = derive(now._replace(disks=now.disks._replace(value={"vdb": both["vdb"]})), last)
    assert rates.disk_read_bytes_per_s is Reason.VM_STARTING
    rates = derive(now._replace(disks=now.disks._replace(value={})), last)
    assert rates.disk_read_bytes_per_s is Reason.NOT_PRESENT


def test_host_shares_add_up_to_1():
    last = HostCounters(4, 100, 100, 100, 100, 100, 100)
    rates = derive_host(HostCounters(4, 200, 150, 2100, 95, 600, 100), last, S)
    shares = (100 / 2650, 50 / 2650, 2000 / 2650, 0.0, 500 / 2650, 0.0)
    assert rates[:6] == pytest.approx(shares)
    assert set(derive_host(last, last, S)[:6]) == {Reason.STALE}
    set_back = derive_host(HostCounters(4, 1, 100, 9999, 100, 100, 100), last, S)
    assert set(set_back[:6]) == {Reason.COUNTER_RESET}


def test_host_memory_load_and_pressure():
    busy = HostCounters(4, 1, 1, 1, 1, 1, 1, 64, 16, 2.5, *(3 * S,) * 5)
    last = replace(busy, cpu_some_ns=2 * S, memory_some_ns=None, io_full_ns=4 * S)
    rates = derive_host(busy, last, 2 * S)
    assert rates[6:] == (64, 16, 2.5, 0.5, Reason.NOT_PRESENT, 0.0, 0.0, Reason.COUNTER_RESET)
    nothing = derive_host(HostCounters(4, 1, 1, 1, 1, 1, 1), last, S)
    assert set(nothing[6:]) == {Reason.NOT_PRESENT}
    assert derive_host(busy, last, 0).host_pressure_cpu_some_ratio is Reason.STALE


LAYOUT_A = ("cycles", "instructions", "reference_cycles", "l2_misses", "llc_misses")
LAYOUT_B = ("cycles", "instructions", "memory_stall_cycles", "total_stall_cycles")


def slices(a_s: float, b_s: float) -> PerfCounters:
    """One thread that ran at 2 GHz, CPI 2, after `a_s` of group A's and `b_s` of group B's turns."""
    a, b = round(a_s * S), round(b_s * S)
    return PerfCounters(
        (LAYOUT_A, LAYOUT_B),
        {101: (PerfGroup(1, a, a, (2 * a, a, a, a // 100, a // 1000)), PerfGroup(2, b, b, (2 * b, b, b // 2, b)))},
        missing={"core_stall_cycles": Reason.NO_EVENT},
    )


def test_groups_that_are_on_in_turns_add_up_and_each_reports_its_own_events():
    now, last = joined(11, vcpus=1), joined(10, vcpus=1)
    last = last._replace(perf=last.perf._replace(value=slices(5, 5)))
    rates = derive(now._replace(perf=now.perf._replace(value=slices(6, 5))), last)  # it was A's turn
    assert (rates.gips, rates.cpi, rates.running_ratio) == (1.0, 2.0, 1.0)
    assert (rates.frequency_ratio, rates.l2_mpki, rates.llc_mpki) == (2.0, 10.0, 1.0)
    assert (rates.memory_stall_ratio, rates.total_stall_ratio) == (Reason.TIME_SLICED,) * 2
    assert rates.core_stall_ratio is Reason.NO_EVENT
    rates = derive(now._replace(perf=now.perf._replace(value=slices(5, 6))), last)  # it was B's turn
    assert (rates.gips, rates.cpi) == (1.0, 2.0)
    assert (rates.l2_mpki, rates.frequency_ratio) == (Reason.TIME_SLICED,) * 2
    assert (rates.memory_stall_ratio, rates.total_stall_ratio) == (0.25, 0.5)
    # A tick that was missed: both had their turn.
    later = joined(12, vcpus=1)
    rates = derive(later._replace(perf=later.perf._replace(value=slices(6, 6))), last)
    assert (rates.gips, rates.l2_mpki, rates.memory_stall_ratio) == (1.0, 10.0, 0.25)


def test_another_layout_or_scope_is_another_counter():
    now, last = joined(12), joined(10)
    other = replace(now.perf.value, scope="cgroup")
    assert derive(now._replace(perf=now.perf._replace(value=other)), last).gips is Reason.COUNTER_RESET
    other = PerfCounters((LAYOUT_B,), now.perf.value.groups)
    assert derive(now._replace(perf=now.perf._replace(value=other)), last).cpi is Reason.COUNTER_RESET


def test_counters_of_control_groups_are_by_cpu():
    now, last = joined(12), joined(10)
    by_cpu = [
        part._replace(value=replace(part.value, scope="cgroup", groups={0: part.value.groups[101]}))
        for part in (now.perf, last.perf)
    ]
    rates = derive(now._replace(perf=by_cpu[0]), last._replace(perf=by_cpu[1]))
    assert rates.gips == pytest.approx(0.625)  # complete, though there are two vCPUs


def part(value, second):
    return Reading("s", second * S, UNIX0 + second * S, value)


def with_part(name, new, old, seconds=2):
    return derive(
        joined(10 + seconds)._replace(**{name: part(new, 10 + seconds)}), joined(10)._replace(**{name: part(old, 10)})
    )


MOST_NS = 2 * 2 * S + S // 2  # twice the two seconds between, and half a second that readings may be off


@pytest.mark.parametrize("over_ns", [0, 1])
@pytest.mark.parametrize("field", ["guest_ns", "cpu_ns", "run_queue_wait_ns"])
def test_no_thread_has_much_more_time_than_passed(field, over_ns):
    old = {tid: ThreadCounters(0, 0, 0, 7) for tid in (101, 102)}
    new = old | {101: replace(old[101], **{field: MOST_NS + over_ns})}
    rates = with_part("threads", new, old)
    found = {"guest_ns": rates.guest_ratio, "cpu_ns": rates.cpu_usage_cores}.get(field, rates.run_queue_wait_ratio)
    cores = MOST_NS / (2 * S)
    allowed = cores if field == "cpu_ns" else cores / 2  # ratios are per vCPU, of which there are two
    assert found == (Reason.INVALID_VALUE if over_ns else pytest.approx(allowed))


@pytest.mark.parametrize("over_ns", [0, 1])
def test_no_counters_run_much_longer_than_time_passed(over_ns):
    old = perf_of({tid: PerfGroup(1, 0, 0, (0, 0)) for tid in (101, 102)})
    group = PerfGroup(1, MOST_NS + over_ns, MOST_NS + over_ns, (S, S))
    rates = with_part("perf", perf_of({101: group, 102: old.groups[102][0]}), old)
    assert rates.gips == (Reason.INVALID_VALUE if over_ns else 0.5)


@pytest.mark.parametrize("over_ns", [0, 1])
def test_no_pressure_lasts_much_longer_than_time_passed(over_ns):
    old, new = CgroupCounters(3, *(0,) * 5), CgroupCounters(3, *(MOST_NS + over_ns,) * 5)
    assert set(of_part(with_part("cgroup", new, old), "cgroup")[:5]) == {Reason.INVALID_VALUE if over_ns else 1.0}


def test_the_process_reports_guest_time_storage_and_the_emulators_share():
    old = ProcessCounters(10 * S, 7, 4 * S, 1000, 2000)
    new = ProcessCounters(13 * S, 7, 5 * S, 1500, 4000)
    rates = with_part("process", new, old)
    assert rates.guest_ratio == pytest.approx(0.45)  # the threads' own word
    assert (rates.storage_read_bytes_per_s, rates.storage_write_bytes_per_s) == (250.0, 1000.0)
    assert rates.emulator_cpu_cores == pytest.approx(0.5)  # 3 s in 2 s, of which 1 core the vCPUs
    now, last = joined(12), joined(10)
    mute = [
        r._replace(value={tid: replace(t, guest_ns=None) for tid, t in r.value.items()})
        for r in (now.threads, last.threads)
    ]
    now, last = now._replace(threads=mute[0]), last._replace(threads=mute[1])
    assert derive(now, last).guest_ratio is Reason.SOURCE_OFF
    reported = derive(now._replace(process=part(new, 12)), last._replace(process=part(old, 10)))
    assert reported.guest_ratio == pytest.approx(0.25)  # 1 s in 2 s of 2 vCPUs
    assert with_part("process", replace(new, start_ticks=8), old).emulator_cpu_cores is Reason.COUNTER_RESET
    assert with_part("process", replace(new, cpu_ns=1), old).emulator_cpu_cores is Reason.COUNTER_RESET
    hidden = replace(new, storage_read_bytes=None, storage_reason=Reason.NOT_VISIBLE)
    rates = with_part("process", hidden, old)
    assert rates.storage_read_bytes_per_s is Reason.NOT_VISIBLE
    assert rates.storage_write_bytes_per_s == 1000.0
    assert with_part("process", replace(new, storage_read_bytes=2**63), old)[24] is Reason.INVALID_VALUE


def test_how_many_vcpus_run_is_reported_as_it_is_now():
    old, new = ProcessCounters(10 * S, 7), ProcessCounters(13 * S, 7, vcpus_running=2)  # of 2 vCPUs
    assert with_part("process", new, old).vcpus_running == 2
    assert with_part("process", replace(new, vcpus_running=0), replace(old, vcpus_running=2)).vcpus_running == 0
    assert with_part("process", replace(new, vcpus_running=None), new).vcpus_running is Reason.NOT_PRESENT
    for absurd in (3, -1):
        assert with_part("process", replace(new, vcpus_running=absurd), old).vcpus_running is Reason.INVALID_VALUE
    assert with_part("process", new, replace(old, start_ticks=8)).vcpus_running is Reason.COUNTER_RESET


def test_the_control_group_reports_pressure_throttling_quota_and_memory():
    old = CgroupCounters(3, S, S, S, S, None, 0, 2.5, 4096)
    new = CgroupCounters(3, 2 * S, S, S // 2, S + 500_000_000, None, S, 2.5, 8192)
    rates = with_part("cgroup", new, old)
    assert of_part(rates, "cgroup") == (0.5, 0.0, Reason.COUNTER_RESET, 0.25, Reason.NOT_PRESENT, 0.5, 2.5, 8192)
    rates = with_part("cgroup", replace(new, opened=4, quota_cores=None), old)
    assert set(of_part(rates, "cgroup")[:6]) == {Reason.COUNTER_RESET}
    assert of_part(rates, "cgroup")[6:] == (Reason.NOT_PRESENT, 8192)
    first = derive(joined(10)._replace(cgroup=part(new, 10)), joined(10)._replace(cgroup=Reason.VM_STARTING))
    assert first.memory_charged_bytes == 8192
    assert first.cpu_throttled_ratio is Reason.VM_STARTING


def test_cache_and_bandwidth_are_summed_over_domains_or_not_reported():
    old = RdtCounters(5, {"00": RdtDomain(100, 1000, 500), "01": RdtDomain(200, 0, 0)})
    new = RdtCounters(5, {"00": RdtDomain(300, 5000, 1500), "01": RdtDomain(50, 2000, 0)})
    rates = with_part("rdt", new, old)
    assert of_part(rates, "rdt") == (350, 3000.0, 500.0)
    gone = RdtCounters(5, {"00": new.domains["00"], "01": RdtDomain(50, reason=Reason.RDT_UNAVAILABLE)})
    rates = with_part("rdt", gone, old)
    assert of_part(rates, "rdt") == (350, Reason.RDT_UNAVAILABLE, Reason.RDT_UNAVAILABLE)
    assert of_part(with_part("rdt", replace(new, opened=6), old), "rdt") == (350, *(Reason.COUNTER_RESET,) * 2)
    assert with_part("rdt", old, new).memory_bandwidth_bytes_per_s is Reason.COUNTER_RESET
    more = RdtCounters(5, {**new.domains, "02": RdtDomain(1, 1, 1)})
    assert of_part(with_part("rdt", more, old), "rdt") == (351, *(Reason.VM_STARTING,) * 2)
    absurd = RdtCounters(5, {**new.domains, "01": RdtDomain(50, 18446744073708863487, 0)})
    assert with_part("rdt", absurd, old).memory_bandwidth_bytes_per_s is Reason.INVALID_VALUE


def test_remote_memory_is_what_a_vcpu_has_on_other_nodes():
    def remote(memory, vcpus):
        return derive(
            joined(12)._replace(numa=part(NumaPlacement(memory, vcpus), 12)), joined(10)
        ).numa_remote_memory_ratio

    assert remote({0: 100}, {0: 4}) == 0.0
    assert remote({0: 100}, {1: 4}) == 1.0
    assert remote({0: 75, 1: 25}, {0: 1, 1: 1}) == pytest.approx(0.5)
    assert remote({0: 75, 1: 25}, {0: 2}) == pytest.approx(0.25)
    assert remote({}, {0: 2}) is Reason.NOT_PRESENT


def group_of(vm, tid):
    return replace(vm.perf.value, groups={tid: vm.perf.value.groups[tid]})


u64 = st.integers(0, 2**64 - 1)
small = st.integers(0, 10**10)
counter = u64 | small
thread = st.builds(ThreadCounters, counter, counter, counter | st.none(), st.integers(1, 2))
group = st.builds(PerfGroup, st.integers(1, 2), counter, counter, st.tuples(counter, counter, counter))
LAYOUT = ("cycles", "instructions", "llc_misses")
some = counter | st.none()
reasons = st.sampled_from([Reason.NOT_PRESENT, Reason.RDT_UNAVAILABLE])
process = st.builds(
    ProcessCounters, counter, st.integers(1, 2), some, some, some, vcpus_running=st.none() | st.integers(-2, 9)
)
cgroup = st.builds(CgroupCounters, st.integers(1, 2), some, some, some, some, some, some)
domain = st.builds(RdtDomain, some, some, some, reasons)
device = st.builds(DiskCounters, counter, counter, counter, counter)
port = st.builds(InterfaceCounters, counter, counter, counter, counter, counter, counter)


def reading(mapping):
    mono = st.integers(0, 10**12)
    return st.builds(lambda at, value: Reading("s", at, UNIX0 + at, value), mono, mapping) | st.sampled_from(
        [Reason.NO_PMU, Reason.VM_STARTING, Reason.STALE]
    )


@st.composite
def anything(draw):
    parts = (
        reading(st.dictionaries(st.integers(1, 3), thread, max_size=3)),
        reading(
            st.builds(
                lambda groups: PerfCounters((LAYOUT,), groups),
                st.dictionaries(st.integers(1, 3), st.tuples(group), max_size=3),
            )
        ),
        reading(st.dictionaries(st.sampled_from(["a", "b"]), device)),
        reading(st.dictionaries(st.sampled_from(["a", "b"]), port)),
        reading(process),
        reading(cgroup),
        reading(st.builds(RdtCounters, st.integers(1, 2), st.dictionaries(st.sampled_from(["00", "01"]), domain))),
    )
    return joined(0)._replace(
        epoch=draw(st.sampled_from(["e1", "e1", "e2"])),
        vcpus=draw(st.integers(0, 3)),
        threads=draw(parts[0]),
        perf=draw(parts[1]),
        disks=draw(parts[2]),
        interfaces=draw(parts[3]),
        process=draw(parts[4]),
        cgroup=draw(parts[5]),
        rdt=draw(parts[6]),
    )


@pytest.mark.long
@given(anything(), anything())
def test_no_rate_is_ever_negative_or_absurd(now, last):
    rates = derive(now, last)
    assert len(rates) == len(VmRates._fields)
    for name, value in rates._asdict().items():
        if isinstance(value, Reason):
            assert value is not Reason.UNSPECIFIED, name
            continue
        assert math.isfinite(value), name
        assert value >= 0, name
        if name.endswith("bytes_per_s"):
            assert value <= 2 * 1e12 * 1.001, name
    if not isinstance(rates.vcpus_running, Reason):
        assert rates.vcpus_running <= now.vcpus
    if not isinstance(rates.running_ratio, Reason):
        assert rates.running_ratio <= 1 + 1e-9
    change = delta(now, last)
    if isinstance(change.cpu, CpuDelta):
        assert change.cpu.cpu_ns <= change.cpu.threads * (2 * change.cpu.dt_ns + S // 2)
    if isinstance(change.perf, PerfDelta) and change.perf.running_ns:
        assert change.perf.cycles <= 3 * 20e9 * (2 * change.perf.dt_ns + S / 2) / S
    if now.epoch != last.epoch:
        assert all(isinstance(value, Reason) for value in rates)
