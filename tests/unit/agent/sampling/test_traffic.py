"""Totals of what a VM has moved: what two scrapes differ by is what was moved between them, whatever happened."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.api.state import AgentState, Names
from agent.clock import Clock
from agent.config import AgentConfig, AgentSection
from agent.sampling.metric_table import TrafficTotals
from agent.sampling.pipeline import Inputs, Pipeline
from agent.sampling.scheduler import TickSchedule
from agent.sampling.source_threads import Slots
from collector.base import DiskCounters, InterfaceCounters, ProcessCounters, Reason, VmIdentity, VmSample
from collector.registry import SOURCES
from tests.unit.agent.agent_fakes import UNIX0, FakeClock, S, identity, threads
from tests.unit.agent.api.test_metrics_server import page_of
from tests.unit.agent.sampling.test_vm_table import sample

BYTES = (
    "disk_read_bytes", "disk_write_bytes", "network_receive_bytes", "network_transmit_bytes",
    "storage_read_bytes", "storage_write_bytes",
)  # fmt: skip


class Host:
    """A host with one VM, scraped by hand. Its devices' counters are what the test sets."""

    def __init__(self) -> None:
        self.clock: Clock = FakeClock(mono_ns=0, unix_ns=UNIX0)
        self.pipeline = Pipeline(AgentConfig(AgentSection()), Slots((), self.clock))
        self.troubles = dict.fromkeys((spec.name for spec in SOURCES), None)
        self.vm: VmIdentity = identity()
        self.disks = {"vda": DiskCounters(5_000, 7_000, 50, 70)}
        self.taps = {"tap0": InterfaceCounters(900, 800, 90, 80, 9, 8)}
        self.process = ProcessCounters(0, 1, storage_read_bytes=400, storage_write_bytes=300)
        names = Names("host1", "cpu", "1", UNIX0, 10_000)
        self.view = AgentState(names, self.clock, self.pipeline, TickSchedule(S, 0))

    def tick(self, seconds: float = 1, source: str = "simulated", **absent: Reason) -> None:
        self.clock.advance(round(seconds * S))
        now_s = self.clock.mono_ns() / S
        vm = VmSample(
            self.vm.epoch,
            threads(now_s),
            None,
            None if "disks" in absent else self.disks,
            None if "interfaces" in absent else self.taps,
            absent,
            process=None if "process" in absent else self.process,
        )
        taken = sample(now_s, {self.vm.uuid: vm}, self.vm, source=source)
        self.pipeline.process(Inputs(self.clock.mono_ns(), [taken], self.troubles))

    def moves(self, amount: int) -> None:
        """All counters but drops grow by that many."""
        self.disks = {
            name: DiskCounters(*(getattr(disk, field) + amount for field in DiskCounters.__slots__))
            for name, disk in self.disks.items()
        }
        self.taps = {
            name: replace(
                tap,
                receive_bytes=tap.receive_bytes + amount,
                transmit_bytes=tap.transmit_bytes + amount,
                receive_packets=tap.receive_packets + amount,
                transmit_packets=tap.transmit_packets + amount,
            )
            for name, tap in self.taps.items()
        }
        self.process = replace(
            self.process,
            storage_read_bytes=self.process.storage_read_bytes + amount,
            storage_write_bytes=self.process.storage_write_bytes + amount,
        )

    def scrape(self) -> dict[str, float]:
        """The totals on the page, by their names without whitepanda_vm_ and _total."""
        page = page_of(self.view.snapshot())
        prefix = "whitepanda_vm_"
        found = {}
        for name in TrafficTotals._fields:
            for labels, value in page.get(prefix + name, []):
                assert labels == {"vm": "u1", "name": "vm1", "job": "vm1"}
                found[name.removesuffix("_total")] = value
        return found

    @property
    def totals(self) -> dict[str, int | None]:
        (vm,) = self.pipeline.table
        return vm.traffic.known(vm.now)._asdict()

    @property
    def rates(self):
        (vm,) = self.pipeline.table
        return vm.rates


@pytest.fixture
def host() -> Host:
    made = Host()
    made.tick()
    return made


def test_they_begin_at_0_and_are_all_there(host):
    assert host.scrape() == dict.fromkeys((name.removesuffix("_total") for name in TrafficTotals._fields), 0.0)


def test_two_scrapes_differ_by_the_traffic_though_no_rate_was_made_of_it(host):
    before = host.scrape()
    host.moves(1000)  # the source hangs for a minute, and nobody can say in which second it was
    host.tick(60)
    assert {host.rates.disk_read_bytes_per_s, host.rates.network_receive_bytes_per_s} == {Reason.STALE}
    after = host.scrape()
    assert {after[name] - before[name] for name in BYTES} == {1000}
    assert after["disk_read_ops"] == after["network_receive_packets"] == 1000


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from([1, 2, 4, 20]), st.booleans()), max_size=20))
def test_whatever_is_missed_the_last_scrape_has_it(steps):
    """Ticks of any length; of some of them no part is known."""
    host = Host()
    host.tick()
    moved = 0
    for amount, seconds, is_missed in steps:
        host.moves(amount)
        moved += amount
        unknown = dict.fromkeys(("disks", "interfaces", "process"), Reason.SOURCE_FAILED)
        host.tick(seconds, **(unknown if is_missed else {}))
        is_known = set(host.totals.values()) != {None}
        assert is_known != is_missed  # no sample rather than one that stands still
    host.tick()
    assert {host.totals[f"{name}_total"] for name in BYTES} == {moved}


def test_a_new_epoch_continues_and_counts_from_its_start(host):
    host.moves(1000)
    host.tick()
    before = host.scrape()
    host.vm = identity(epoch="e2")
    host.disks = {"vda": DiskCounters(9_000, 100, 1, 1)}  # a new process: all of it is the new epoch's
    host.taps = {"tap0": InterfaceCounters(300, 200, 3, 2, 0, 0)}
    host.process = ProcessCounters(0, 2, storage_read_bytes=9_000, storage_write_bytes=5)
    host.tick()
    after = host.scrape()
    assert {name: after[name] - before[name] for name in BYTES} == dict(
        zip(BYTES, (9_000, 100, 300, 200, 9_000, 5), strict=True)
    )


def test_a_tap_that_is_kept_over_a_restart_is_not_counted_twice(host):
    host.vm = identity(epoch="e2")
    host.taps = {"tap0": replace(host.taps["tap0"], receive_bytes=950)}
    host.tick()
    assert host.scrape()["network_receive_bytes"] == 50


def test_a_counter_that_was_set_back_counts_from_0(host):
    host.taps = {"tap0": InterfaceCounters(30, 20, 3, 2, 0, 0)}
    host.tick()
    found = host.scrape()
    assert (found["network_receive_bytes"], found["network_transmit_packets"]) == (30, 2)
    host.taps = {"tap0": InterfaceCounters(40, 20, 3, 2, 0, 0, opened=1)}  # another device of the same name
    host.tick()
    assert host.scrape()["network_receive_bytes"] == 30 + 40


def test_devices_that_come_and_go_take_nothing_and_bring_no_past(host):
    host.moves(10)
    host.disks |= {"vdb": DiskCounters(10**12, 0, 0, 0)}
    host.tick()
    assert host.scrape()["disk_read_bytes"] == 10
    host.moves(10)
    host.tick()
    assert host.scrape()["disk_read_bytes"] == 30
    del host.disks["vda"]
    host.tick()
    assert host.scrape()["disk_read_bytes"] == 30


def test_another_sources_counters_are_begun_again(host):
    host.disks = {"vda": DiskCounters(10**9, 0, 0, 0)}
    host.tick(source="qemu")
    assert host.scrape()["disk_read_bytes"] == 0
    host.moves(7)
    host.tick(source="qemu")
    assert host.scrape()["disk_read_bytes"] == 7


def test_a_counter_that_lies_is_left_out_and_its_next_word_counts(host):
    honest = host.disks
    host.disks = {"vda": DiskCounters(2**63, 7_000, 50, 70)}
    host.tick()
    assert host.scrape()["disk_read_bytes"] == 0
    host.disks = honest
    host.moves(5)
    host.tick()
    assert host.scrape()["disk_read_bytes"] == 5


def test_a_counter_that_jumped_for_good_counts_on_from_there(host):
    host.disks = {"vda": DiskCounters(2**60, 7_000, 50, 70)}
    host.tick()
    for _ in range(2):
        host.moves(5)
        host.tick()
    assert host.scrape()["disk_read_bytes"] == 10


def test_what_a_device_does_not_count_has_no_total(host):
    host.taps = {"tap0": replace(host.taps["tap0"], receive_drops=None)}
    host.disks = {}
    host.tick()
    found = host.scrape()
    assert "network_receive_drops" not in found and found["network_transmit_drops"] == 0
    assert not any(name.startswith("disk") for name in found)


def test_the_rates_of_the_same_seconds_add_up_to_them(host):
    total = 0.0
    for amount in (10, 0, 500, 3):
        host.moves(amount)
        host.tick()
        total += host.rates.network_receive_bytes_per_s
    assert host.scrape()["network_receive_bytes"] == pytest.approx(total)
