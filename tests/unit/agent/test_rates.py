from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.rates import (
    CpuDelta,
    HostRates,
    Limits,
    PerfDelta,
    Reading,
    VmRates,
    delta,
    derive,
    derive_host,
)
from collector.base import (
    DiskCounters,
    HostCounters,
    InterfaceCounters,
    PerfCounters,
    Reason,
    ThreadCounters,
)
from tests.unit.agent.agent_fakes import UNIX0, S, joined, perf, threads


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
    assert rates._asdict() == pytest.approx(expected, rel=1e-9)
    assert not any(isinstance(value, Reason) for value in rates)


def test_each_part_is_divided_by_its_own_sources_time():
    now, last = joined(12), joined(10)
    slow = now.disks._replace(mono_ns=now.disks.mono_ns + 2 * S)  # libvirt took its sample 2 s later
    rates = derive(now._replace(disks=slow), last)
    assert rates.disk_read_bytes_per_s == pytest.approx(5000)
    assert rates.cpu_usage_cores == pytest.approx(1.0)


def test_nothing_is_known_across_a_change_of_epoch():
    rates = derive(joined(12, epoch="e2"), joined(10))
    assert set(rates) == {Reason.VM_STARTING}


def test_the_reason_of_a_missing_part_is_the_reason_of_its_metrics():
    rates = derive(joined(12)._replace(perf=Reason.NO_PMU), joined(10))
    assert rates[3:7] == (Reason.NO_PMU,) * 4
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
        perf=now.perf._replace(value={101: now.perf.value[101]}),
    )
    rates = derive(one, joined(10))
    assert rates.cpu_usage_cores == pytest.approx(0.5)
    assert rates.gips == pytest.approx(0.625)


def test_counters_that_are_not_all_open_give_a_cpi_but_no_gips():
    now, last = joined(12), joined(10)
    some = last.perf._replace(value={101: last.perf.value[101]})  # 102 was opened in between
    rates = derive(now, last._replace(perf=some))
    assert rates.gips is Reason.VM_STARTING
    assert rates.cpi == pytest.approx(1.6)


def test_a_group_opened_anew_is_not_subtracted_from_its_predecessor():
    now = joined(12)
    anew = {tid: replace(c, opened=2) for tid, c in now.perf.value.items()}
    assert derive(now._replace(perf=now.perf._replace(value=anew)), joined(10)).cpi is Reason.VM_STARTING


@pytest.mark.parametrize(
    ("part", "lower"),
    [
        ("threads", {101: ThreadCounters(1, 1, 1, 7), 102: ThreadCounters(1, 1, 1, 7)}),
        ("perf", {tid: PerfCounters(1, 5, 5, 5, 5) for tid in (101, 102)}),
        ("disks", {"vda": DiskCounters(0, 10**9, 10**9, 10**9)}),
        ("interfaces", {"vnet0": InterfaceCounters(10**6, 10**6, 10**6, 10**6, 0, 0)}),
    ],
)
def test_a_counter_that_went_back_is_a_reset(part, lower):
    now = joined(12)
    reading = getattr(now, part)._replace(value=lower)
    rates = derive(now._replace(**{part: reading}), joined(10))
    own = {
        "threads": rates[0:3],
        "perf": rates[3:7],
        "disks": rates[7:11],
        "interfaces": rates[11:17],
    }[part]
    assert set(own) == {Reason.COUNTER_RESET}
    assert sum(isinstance(value, Reason) for value in rates) == len(own)


@pytest.mark.parametrize("huge", [2**63, 18446744073708863487])
def test_what_no_hardware_does_is_invalid(huge):
    now = joined(12)
    rates = derive(
        now._replace(
            threads=now.threads._replace(value={t: ThreadCounters(huge, huge, 0, 7) for t in (101, 102)}),
            perf=now.perf._replace(value={t: PerfCounters(1, 6 * S, 6 * S, huge, huge) for t in (101, 102)}),
            disks=now.disks._replace(value={"vda": DiskCounters(huge, huge, huge, huge)}),
            interfaces=now.interfaces._replace(value={"vnet0": InterfaceCounters(*[huge] * 6)}),
        ),
        joined(10)._replace(),
    )
    assert {value for value in rates if value is not Reason.COUNTER_RESET} == {Reason.INVALID_VALUE}


def test_multiplexed_counters_are_scaled_and_below_the_limit_dropped():
    def sampled(seconds: float, ratio: float) -> Reading[dict[int, PerfCounters]]:
        full = perf(seconds)
        part = {
            tid: PerfCounters(
                1,
                c.time_enabled_ns,
                round(c.time_enabled_ns * ratio),
                round(c.cycles * ratio),
                round(c.instructions * ratio),
            )
            for tid, c in full.items()
        }
        return Reading("perf", round(seconds * S), UNIX0 + round(seconds * S), part)

    rates = derive(joined(12)._replace(perf=sampled(12, 0.25)), joined(10)._replace(perf=sampled(10, 0.25)))
    assert rates.gips == pytest.approx(1.25)
    assert rates.cpi == pytest.approx(1.6)
    assert rates.running_ratio == pytest.approx(0.25)
    rates = derive(joined(12)._replace(perf=sampled(12, 0.19)), joined(10)._replace(perf=sampled(10, 0.19)))
    assert rates[3:6] == (Reason.MULTIPLEXED,) * 3
    assert rates.running_ratio == pytest.approx(0.19)


def test_a_thread_whose_counters_never_ran_is_scaled_for():
    now, last = joined(12), joined(10)
    c = now.perf.value[102]
    o = last.perf.value[102]
    starved = PerfCounters(1, c.time_enabled_ns, o.time_running_ns, o.cycles, o.instructions)
    value = {101: now.perf.value[101], 102: starved}
    rates = derive(now._replace(perf=now.perf._replace(value=value)), last)
    assert rates.gips == pytest.approx(1.25)  # as if it did what the other thread did
    assert rates.running_ratio == pytest.approx(0.5)


@pytest.mark.parametrize("limit", [0.0, 0.2])
def test_counters_that_never_ran_are_multiplexed_whatever_the_limit(limit):
    now, last = joined(12), joined(10)
    value = {
        tid: replace(last.perf.value[tid], time_enabled_ns=now.perf.value[tid].time_enabled_ns)
        for tid in (101, 102)
    }
    rates = derive(now._replace(perf=now.perf._replace(value=value)), last, Limits(min_running_ratio=limit))
    assert rates[3:7] == (Reason.MULTIPLEXED,) * 3 + (0.0,)


def test_a_sleeping_vm_has_gips_0_and_no_cpi():
    asleep = joined(10)
    later = joined(10, at_s=12)
    rates = derive(later, asleep)
    assert (rates.cpu_usage_cores, rates.gips, rates.cpi, rates.ipc) == (0.0, 0.0, Reason.IDLE, Reason.IDLE)


def test_cpi_is_suppressed_below_the_activity_floor():
    now, last = joined(12), joined(10)
    quiet = [
        part._replace(value=threads(seconds, usage=0.004))
        for part, seconds in ((now.threads, 12), (last.threads, 10))
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
    rates = derive_host(HostCounters(4, 200, 150, 2100, 95, 600, 100), last)
    assert rates == pytest.approx(HostRates(100 / 2650, 50 / 2650, 2000 / 2650, 0.0, 500 / 2650, 0.0))
    assert set(derive_host(last, last)) == {Reason.STALE}
    assert set(derive_host(HostCounters(4, 1, 100, 9999, 100, 100, 100), last)) == {Reason.COUNTER_RESET}


u64 = st.integers(0, 2**64 - 1)
small = st.integers(0, 10**10)
counter = u64 | small
thread = st.builds(ThreadCounters, counter, counter, counter | st.none(), st.integers(1, 2))
group = st.builds(PerfCounters, st.integers(1, 2), counter, counter, counter | st.none(), counter | st.none())
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
        reading(st.dictionaries(st.integers(1, 3), group, max_size=3)),
        reading(st.dictionaries(st.sampled_from(["a", "b"]), device)),
        reading(st.dictionaries(st.sampled_from(["a", "b"]), port)),
    )
    return joined(0)._replace(
        epoch=draw(st.sampled_from(["e1", "e1", "e2"])),
        vcpus=draw(st.integers(0, 3)),
        threads=draw(parts[0]),
        perf=draw(parts[1]),
        disks=draw(parts[2]),
        interfaces=draw(parts[3]),
    )


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
    if not isinstance(rates.running_ratio, Reason):
        assert rates.running_ratio <= 1 + 1e-9
    change = delta(now, last)
    if isinstance(change.cpu, CpuDelta):
        assert change.cpu.cpu_ns <= change.cpu.threads * (2 * change.cpu.dt_ns + S)
    if isinstance(change.perf, PerfDelta) and change.perf.running_ns:
        assert change.perf.cycles <= 3 * 20e9 * (2 * change.perf.dt_ns + S / 2) / S
    if now.epoch != last.epoch:
        assert all(isinstance(value, Reason) for value in rates)
