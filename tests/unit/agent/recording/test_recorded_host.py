"""A recording of a real host: the lab's three VMs under libvirt 9.0 and QEMU 7.2 without KVM.

Made by `whitepanda record --seconds 5` while the lab ran (tests/lab): one guest spins, one sleeps, one works
by turns and uses its disk and network. The host has two CPUs, which other programs kept busy, and shows no
hardware counters.
"""

import itertools
from pathlib import Path

import pytest

from agent.recording.playback import Playback
from agent.recording.replay import RecordedRows, read_all
from collector.base import Reason

FILE = Path(__file__).parents[3] / "fixtures" / "recordings" / "three_vms.jsonl"
MIXED, IDLE, BUSY = "wplab-mixed-1", "wplab-idle-2", "wplab-busy-3"


@pytest.fixture(scope="module")
def ticks():
    """The VMs' rates by name, tick by tick; at the first there is no sample, and at the second are no rates."""
    with Playback(FILE) as playback:
        found = [{vm.identity.name: vm.rates for vm in playback.pipeline.table} for _ in playback.ticks()]
    assert found[0] == {}
    assert {rates.cpu_usage_cores for rates in found[1].values()} == {Reason.VM_STARTING}
    return found[2:]


def mean(ticks, name, metric):
    values = [getattr(rates[name], metric) for rates in ticks]
    assert not any(isinstance(value, Reason) for value in values)
    return sum(values) / len(values)


def test_each_tick_has_all_vms(ticks):
    assert [set(rates) for rates in ticks] == [{MIXED, IDLE, BUSY}] * 5


def test_the_rates_are_those_of_the_guests_loads(ticks):
    for rates in ticks:
        # The spinning guest always wants its vCPU: on this full host it waits for most of it.
        assert rates[BUSY].guest_ratio + rates[BUSY].run_queue_wait_ratio == pytest.approx(1, abs=0.05)
        assert rates[BUSY].run_queue_wait_ratio > 0.5
    assert mean(ticks, BUSY, "cpu_usage_cores") == pytest.approx(0.347, abs=0.001)
    assert mean(ticks, MIXED, "cpu_usage_cores") == pytest.approx(0.149, abs=0.001)
    assert mean(ticks, IDLE, "cpu_usage_cores") == pytest.approx(0.0015, abs=0.0001)
    assert mean(ticks, MIXED, "disk_read_bytes_per_s") == pytest.approx(2.49e6, rel=0.01)
    assert mean(ticks, MIXED, "disk_write_bytes_per_s") == pytest.approx(1.89e6, rel=0.01)
    # Pings of 1042 bytes on the wire, each answered.
    for direction in ("receive", "transmit"):
        packets = mean(ticks, MIXED, f"network_{direction}_packets_per_s")
        assert packets == pytest.approx(3.6, abs=0.01)
        assert mean(ticks, MIXED, f"network_{direction}_bytes_per_s") == pytest.approx(1042 * packets)
    for name, metric in itertools.product((IDLE, BUSY), ("disk_read", "disk_write", "network_transmit")):
        assert mean(ticks, name, f"{metric}_bytes_per_s") == 0


def test_without_counters_there_is_no_cpi(ticks):
    assert {(rates[name].cpi, rates[name].gips) for rates in ticks for name in rates} == {
        (Reason.NO_PMU, Reason.NO_PMU)
    }


def test_a_recording_of_before_anybody_counted_running_vcpus_is_replayed_without(ticks):
    assert {rates[name].vcpus_running for rates in ticks for name in rates} == {Reason.NOT_PRESENT}


def test_replay_counts_its_windows():
    result = read_all(RecordedRows([FILE]))
    assert (result.rows_read, result.without_cpi) == (3, 3)
