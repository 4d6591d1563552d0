import math
from dataclasses import replace

import pytest

from agent.analysis.verdict import Verdict
from agent.antagonists.decide_victims import Decisions
from agent.api.prometheus_text import render
from agent.api.state import AgentState, Names
from agent.config import AgentConfig, AgentSection, JobRule, LibvirtSection, QemuSection, Sources
from agent.sampling.metric_table import METRICS, VM_METRICS, HostRates, TrafficTotals, VmRates
from agent.sampling.pipeline import Pipeline, timely_sources
from agent.sampling.scheduler import TickSchedule
from agent.sampling.source_threads import Slots
from agent.sampling.startup import make_plans
from collector.base import HostCounters, Reason, SourceSample, Stamp
from tests.unit.agent.agent_fakes import UNIX0, FakeClock, S, disk, identity, vm_sample
from whitepanda.common.window_columns import WINDOW_COLUMNS

CONFIG = AgentConfig(AgentSection(), jobs=(JobRule(r"(\D+)\d+", r"\1", latency_sensitive=True),))


class HandSlots(Slots):
    """Slots without threads: whoever takes the last sample has a new one made, which only the next tick sees."""

    def __init__(self, take):
        super().__init__((), FakeClock())
        self.take = take
        self.value = None
        self.bad = None

    def samples(self):
        value, self.value = self.value, self.take()
        return [] if value is None else [value]

    def trouble(self, name):
        return self.bad if name == "procfs" else Reason.SOURCE_OFF


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def pipeline(clock):
    def take():
        seconds = (clock.unix - UNIX0) / S
        host = HostCounters(2, round(seconds * S), 0, round(seconds * S), 0, 0, 0)
        return SourceSample(
            "simulated", clock.mono, clock.unix, {"u1": vm_sample(seconds)}, host, (identity(name="db7"),)
        )

    return Pipeline(CONFIG, HandSlots(take))


def test_windows_come_at_the_end_of_their_grace(pipeline, clock):
    closed = {}
    for second in range(33):
        rows = pipeline.tick(clock.mono)
        if rows:
            closed[second] = rows
        clock.advance(S)
    # The samples of second 10 are read at the tick of second 11, and the window waits half a tick more.
    assert list(closed) == [12, 22, 32]
    (row,) = closed[12]
    assert (row.vm, row.name, row.job, row.latency_sensitive) == ("u1", "db7", "db", True)
    assert (row.start_unix_ns, row.duration_ns, row.cpi) == (UNIX0, 10 * S, pytest.approx(1.6))


def test_a_tick_never_waits_for_the_sample_that_it_asks_for(pipeline, clock):
    pipeline.tick(clock.mono)
    assert len(pipeline.table) == 0
    clock.advance(S)
    pipeline.tick(clock.mono)
    (vm,) = pipeline.table
    assert vm.now.perf.mono_ns == clock.mono - S


def test_host_rates_stand_go_stale_and_return(pipeline, clock):
    pipeline.tick(clock.mono)
    assert pipeline.host_rates is Reason.VM_STARTING
    for _ in range(2):
        clock.advance(S)
        pipeline.tick(clock.mono)
    assert pipeline.host_rates[:6] == (0.5, 0.0, 0.5, 0.0, 0.0, 0.0)
    held = pipeline.slots.value
    pipeline.slots.take = lambda: held
    for _ in range(5):
        clock.advance(S)
        pipeline.tick(clock.mono)
        assert isinstance(pipeline.host_rates, HostRates)
    clock.advance(S)
    pipeline.tick(clock.mono)
    assert pipeline.host_rates is Reason.STALE


def test_without_a_host_sample_the_sources_trouble_is_the_reason(clock):
    slots = HandSlots(lambda: None)
    slots.bad = Reason.NO_PERMISSION
    pipeline = Pipeline(CONFIG, slots)
    pipeline.tick(clock.mono)
    assert pipeline.host_rates is Reason.NO_PERMISSION


def test_the_metric_table_is_the_rates_fields():
    by_scope = {scope: [m.name for m in METRICS if m.scope == scope] for scope in ("vm", "traffic", "host", "agent")}
    assert tuple(by_scope["traffic"]) == TrafficTotals._fields
    assert tuple(by_scope["vm"]) == VmRates._fields
    assert tuple(by_scope["host"]) == HostRates._fields
    names = [m.name for m in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert metric.help.endswith(".")
        assert metric.source
    columns = {column.name for column in WINDOW_COLUMNS}
    own = {"cycles", "instructions", "slow_down_ratio", "slow_down_low_ratio", "slow_down_high_ratio", "verdict"}
    assert columns - {metric.name for metric in VM_METRICS} == own
    units = {metric.name: metric.unit for metric in VM_METRICS}
    assert all(column.unit == units[column.name] for column in WINDOW_COLUMNS if column.name in units)


def view_of(pipeline, clock):
    names = Names("host1", "cpu model", "1.2.3", UNIX0, 10_000)
    return AgentState(names, clock, pipeline, TickSchedule(S, clock.mono))


def test_the_view_says_who_manages_a_vm_and_its_number_in_proxmox(clock):
    """What recommended commands are made of."""
    listed = (
        replace(identity("u1", name="a", **{"pve:vmid": "101"}), manager="proxmox"),
        replace(identity("u2", name="b"), manager="nova"),
    )
    samples = {"u1": vm_sample(0), "u2": vm_sample(0)}
    taken = SourceSample("simulated", clock.mono, clock.unix, samples, None, listed)
    pipeline = Pipeline(CONFIG, HandSlots(lambda: taken))
    for _ in range(2):
        pipeline.tick(clock.mono)
    found = [(vm.identity.manager, vm.vmid) for vm in view_of(pipeline, clock).vms()]
    assert found == [("proxmox", "101"), ("nova", "")]


def test_the_view_has_every_metric_with_source_and_age(pipeline, clock):
    for _ in range(3):
        pipeline.tick(clock.mono)
        clock.advance(S)
    view = view_of(pipeline, clock)
    (vm,) = view.vms()
    assert (vm.job, vm.latency_sensitive, vm.owner, vm.quota_cores) == ("db", True, "", None)
    assert [metric.name for metric in view.metrics_of(vm)] == list(VmRates._fields)
    (cpi,) = view.metrics_of(vm, ["cpi"])
    assert (cpi.value, cpi.reason, cpi.source, cpi.age_ns) == (pytest.approx(1.6), 0, "simulated", 2 * S)
    host = view.host()
    assert (host.host, host.platform, host.agent_version, host.window_ms) == ("host1", "cpu model", "1.2.3", 10_000)
    assert (host.now_unix_ns, host.started_unix_ns, host.uplink.state) == (clock.unix, UNIX0, "off")
    assert [metric.name for metric in host.host_metrics] == [m.name for m in METRICS if m.scope in {"host", "agent"}]
    reported = [metric for metric in host.host_metrics if metric.reason != Reason.NOT_PRESENT]
    assert all(math.isfinite(metric.value) for metric in reported)
    assert {m.name for m in host.host_metrics if m not in reported} == {
        m.name for m in METRICS if m.scope == "host"
    } - {name for name in HostRates._fields if name.startswith("host_cpu")}
    assert host.rss_bytes > 1 << 20
    assert host.cpu_seconds > 0


def test_the_view_reports_reasons_not_zeros(pipeline, clock):
    for _ in range(2):
        pipeline.tick(clock.mono)
        clock.advance(S)
    view = view_of(pipeline, clock)
    (vm,) = view.vms()
    assert all(math.isnan(metric.value) for metric in view.metrics_of(vm))
    assert set(vm.rates[:24]) == {Reason.VM_STARTING}
    assert set(vm.rates[24:]) <= {Reason.NOT_PRESENT, Reason.SOURCE_OFF}


@pytest.mark.parametrize("state", ["running", "paused"])
def test_a_victim_by_the_hosts_own_analysis_alone_is_one_for_prometheus_while_it_runs(clock, state):
    class Found:
        def behaviour(self, _uuid):
            return "victim"

        def estimate(self, _uuid):
            return None

        def verdict(self, _uuid):
            return Verdict("victim", "it suffers", 0)

    def take():
        seconds = (clock.unix - UNIX0) / S
        known = replace(identity(name="db7"), state=state)
        return SourceSample("simulated", clock.mono, clock.unix, {"u1": vm_sample(seconds)}, None, (known,))

    pipeline = Pipeline(CONFIG, HandSlots(take))
    for _ in range(3):
        pipeline.tick(clock.mono)
        clock.advance(S)
    view = view_of(pipeline, clock)
    view.cloud_white = Found()  # and no analysis by the fleet's statistics
    view.decisions = Decisions(CONFIG, view.cloud_white, None)
    view.decisions.tick(pipeline.table, clock.mono, clock.unix)
    page = render(view.snapshot())[0].decode()
    reported = [line for line in page.splitlines() if line.startswith("whitepanda_vm_victim{")]
    assert reported == (['whitepanda_vm_victim{job="db",name="db7",vm="u1"} 1.0'] if state == "running" else [])


# -- disks, which are polled slowly


SETTINGS = [
    (1.0, 10.0, 10.0),
    (1.0, 5.0, 10.0),
    (1.0, 10.0, 20.0),
    (1.0, 10.0, 7.0),
    (2.0, 2.0, 10.0),
    (0.5, 60.0, 10.0),
]


@pytest.mark.long
@pytest.mark.parametrize("phase", [0.0, 0.1, 0.3, 0.5, 0.618, 0.9])
@pytest.mark.parametrize("between_ticks", [False, True])
@pytest.mark.parametrize(("tick_s", "window_s", "disk_poll_s"), SETTINGS)
def test_no_setting_and_no_moment_of_the_polls_loses_disks(tick_s, window_s, disk_poll_s, phase, between_ticks):
    sources = Sources(libvirt=LibvirtSection(disk_poll_s=disk_poll_s), qemu=QemuSection(disk_poll_s=disk_poll_s))
    config = AgentConfig(AgentSection(tick_s=tick_s, window_s=window_s), sources)
    poll_ns = round(timely_sources(config).libvirt.disk_poll_s * S)
    clock, read = FakeClock(), {}

    def take():
        now_s = (clock.mono - 1000 * S) / S
        # libvirt's are read at the tick after they are due, QEMU's at their own moment.
        due_ns = (clock.mono - round(phase * poll_ns)) // poll_ns * poll_ns + round(phase * poll_ns)
        if due_ns not in read:
            read.clear()
            at_ns = due_ns if between_ticks else clock.mono
            read[due_ns] = (Stamp(at_ns, at_ns - 1000 * S + UNIX0), disk((at_ns - 1000 * S) / S))
        stamp, disks = read[due_ns]
        vm = replace(vm_sample(now_s), disks=disks, stamps={"disks": stamp})
        return SourceSample("simulated", clock.mono, clock.unix, {"u1": vm}, None, (identity(),))

    pipeline = Pipeline(config, HandSlots(take))
    windows = []
    while len(windows) < 8:
        windows += pipeline.tick(clock.mono)
        clock.advance(round(tick_s * S))
    reported = [window.metrics["disk_read_bytes_per_s"] for window in windows[3:]]  # the first have no two polls yet
    assert reported == [pytest.approx(10_000, rel=1e-3)] * len(reported)
    assert pipeline.windows.without_cpu <= 1  # a poll of before the first CPU time


def test_disks_are_polled_at_least_once_in_a_window():
    config = AgentConfig(AgentSection(window_s=5), Sources(qemu=QemuSection(disk_poll_s=2)))
    plans = {plan.name: plan.source for plan in make_plans(config)}
    assert plans["libvirt"]._disk_poll_ns == 5 * S
    assert plans["qemu"]._poller._poll_ns == 2 * S
