"""Contention per last-level cache: who is on the other socket is no suspect, and has a contention of its own."""

import asyncio
import dataclasses
import time

import pytest

from agent.analysis.contention.normalised_cpi import n_cpi
from agent.config import AgentConfig, AgentSection, AnalysisSection, JobRule
from agent.daemon import Daemon
from agent.sampling.source_threads import SourcePlan
from collector.base import NumaPlacement, SourceSample
from tests.unit.agent.agent_fakes import FakeSource, S, identity, vm_sample
from tests.unit.agent.antagonists.test_host_analysis import CALM, PLATFORM, SCAN, VICTIM, Host, update, window
from whitepanda.v1 import agent_pb2

TWO = {0: 0, 1: 1}
LEFT, RIGHT, BOTH = ({0: 1}, {1: 1}, {0: 1, 1: 1})


class TwoSockets(Host):
    """VMs are where their `nodes` say; without these that is not known."""

    def __init__(self, tmp_path, section=None, domain_of_node=None):
        super().__init__(tmp_path, section or AnalysisSection(), TWO if domain_of_node is None else domain_of_node)

    def run(self, windows, *vms):
        for _ in range(windows):
            self.now += 10 * S
            places = {
                f"uuid-{vm['vm']}": NumaPlacement({next(iter(vm["nodes"])): 1 << 30}, vm["nodes"])
                for vm in vms
                if "nodes" in vm
            }
            plain = [{key: value for key, value in vm.items() if key != "nodes"} for vm in vms]
            self.observe([window(end=self.now, **vm) for vm in plain], places)

    def suspects(self, vm):
        return [suspect.name for suspect in super().suspects(vm)]


def on(nodes, like, **more):
    return {**like, "nodes": nodes, **more}


@pytest.fixture
def host(tmp_path):
    found = TwoSockets(tmp_path)
    found.store.apply(update())
    return found


VMS = (
    on(LEFT, VICTIM),
    on(RIGHT, CALM),
    on(LEFT, SCAN, vm="scan-left", usage=1.0),
    on(RIGHT, SCAN, vm="scan-right", usage=8.0),
    on(BOTH, SCAN, vm="scan-both", usage=2.0),
    {**SCAN, "vm": "host:backup", "usage": 0.5},
)


def test_a_vm_on_the_other_socket_is_no_suspect(host):
    host.run(3, *VMS)
    assert host.suspects("web-1") == ["scan-both", "scan-left", "host:backup"]
    assert host.suspects("web-2") == ["scan-right", "scan-both", "host:backup"]


@pytest.mark.parametrize("domain_of_node", [{}, {0: 0, 1: 0}])
def test_without_two_domains_all_are(tmp_path, domain_of_node):
    host = TwoSockets(tmp_path, domain_of_node=domain_of_node)
    host.store.apply(update())
    host.run(3, *VMS)
    everybody = ["scan-right", "scan-both", "scan-left", "host:backup"]
    assert host.suspects("web-1") == host.suspects("web-2") == everybody
    assert host.explain("web-1").mn_cpi == host.explain("web-2").mn_cpi


def test_mn_cpi_trigger_and_report_are_of_one_socket(tmp_path):
    """Over the whole host the quiet socket hides it: mnCPI 2.1 of four VMs, above it only on the left."""
    section = AnalysisSection(trigger="paper", mn_cpi_floor=2.75)
    quiet = [on(RIGHT, CALM, vm=f"calm-{n}", cpi=1.2) for n in range(3)]
    host = TwoSockets(tmp_path, section)
    host.store.apply(update())
    host.run(9, *VMS, *quiet)
    left, right = host.explain("web-1"), host.explain("web-2")
    statistics = host.store.statistics("web", PLATFORM, host.now)
    assert left.mn_cpi == pytest.approx(n_cpi(3.1, statistics))
    assert right.mn_cpi == pytest.approx(n_cpi(1.3, statistics) / 4)
    assert (left.triggered, right.triggered, host.analysis.triggered) == (True, False, True)
    assert (left.victim_slots, right.victim_slots) == (3, 0)
    (reported,) = host.reports
    assert reported.mn_cpi == left.mn_cpi == host.analysis.mn_cpi
    assert host.decisions.vm("uuid-web-1").suspect.name == "scan-both"
    assert [victim.name for victim in reported.victims] == ["web-1"]
    assert [suspect.name for suspect in reported.suspects] == ["scan-both", "scan-left", "host:backup"]

    one = TwoSockets(tmp_path / "one", section, {})
    one.store.apply(update())
    one.run(9, *VMS, *quiet)
    assert not one.analysis.triggered


def test_one_report_has_the_victims_of_both_sockets_each_with_its_own_suspect(tmp_path):
    host = TwoSockets(tmp_path, AnalysisSection(trigger="paper", mn_cpi_floor=1.0))
    host.store.apply(update())
    host.run(9, *VMS, on(RIGHT, VICTIM, vm="web-3", cpi=9.0))
    (reported,) = host.reports
    worst, other = host.explain("web-3"), host.explain("web-1")
    assert reported.mn_cpi == host.analysis.mn_cpi == worst.mn_cpi > other.mn_cpi
    names = {f"uuid-{vm['vm']}": vm["vm"] for vm in VMS}
    assert [(victim.name, names[victim.suspect]) for victim in reported.victims] == [
        ("web-3", "scan-right"),
        ("web-1", "scan-both"),
    ]
    assert [one.name for one in reported.suspects] == ["scan-right", "scan-both", "scan-left", "host:backup"]
    host.run(1, *VMS, on(RIGHT, VICTIM, vm="web-3", cpi=9.0))
    assert len(host.reports) == 1  # once per slot, whichever socket


def test_the_hosts_first_suspect_may_be_blamed_for_one_of_its_victims(tmp_path):
    """The one with the highest score is on the socket where nobody suffers."""
    host = TwoSockets(tmp_path, AnalysisSection(trigger="paper", mn_cpi_floor=1.0))
    host.store.apply(update())
    host.run(9, *VMS)
    assert [victim.name for victim in host.reports[0].victims] == ["web-1"]
    assert host.analysis.suspects("")[0].name == "scan-right"
    assert host.decisions.host.suspect.name == host.decisions.vm("uuid-web-1").suspect.name == "scan-both"
    assert "scan-right" not in [one.name for one in host.reports[0].suspects]


def test_a_vm_that_moves_counts_in_both_for_a_slot(host):
    host.run(3, on(LEFT, VICTIM), on(RIGHT, SCAN))
    assert host.suspects("web-1") == []
    host.run(1, on(LEFT, VICTIM), on(LEFT, SCAN))
    assert host.suspects("web-1") == ["scan-1"]
    host.run(2, on(LEFT, VICTIM), on(RIGHT, SCAN))
    assert host.suspects("web-1") == ["scan-1"]
    host.run(1, on(LEFT, VICTIM), on(RIGHT, SCAN))
    assert host.suspects("web-1") == []


def test_what_was_learnt_before_any_vm_was_placed_stays_with_the_only_domain(host):
    host.run(2, VICTIM, SCAN)
    assert host.suspects("web-1") == ["scan-1"]
    host.run(400, on(RIGHT, CALM), on(RIGHT, SCAN))
    assert set(host.analysis._domains) == {1}
    assert len(host.analysis._domains[1]._history) > 100


def test_a_placement_of_another_host_is_none(host):
    host.run(3, on({7: 1}, VICTIM), on({8: 1}, SCAN))
    assert host.suspects("web-1") == ["scan-1"]


async def test_through_the_daemon(tmp_path, monkeypatch):
    """From samples with NUMA placements to suspects, in the live pipeline."""
    monkeypatch.setattr("agent.daemon.llc_domains", lambda: TWO)
    where = {"web1": 0, "scan1": 0, "scan2": 1}

    def take() -> SourceSample:
        mono_ns = time.monotonic_ns()
        vms = {
            name: dataclasses.replace(vm_sample(mono_ns / S), numa=NumaPlacement({node: 1 << 30}, {node: 2}))
            for name, node in where.items()
        }
        known = tuple(dataclasses.replace(identity(), uuid=name, name=name) for name in where)
        return SourceSample("simulated", mono_ns, time.time_ns(), vms, None, known)

    config = AgentConfig(
        AgentSection(
            host="host1",
            platform="cpu",
            state_dir=str(tmp_path / "state"),
            socket=str(tmp_path / "agent.sock"),
            tick_s=0.05,
            window_s=0.2,
        ),
        jobs=(JobRule(r"(web)\d+", r"\1", latency_sensitive=True), JobRule(r"(\D+)\d+", r"\1")),
    )
    daemon = Daemon(config, plans=(SourcePlan("simulated", "required", FakeSource("simulated", take)),))
    running = asyncio.create_task(daemon.run())

    def suspects() -> list[str]:
        return [each.name for each in daemon.state.analysis.suspects("web1")] if daemon.state.analysis else []

    async def until(expected: list[str]) -> None:
        async with asyncio.timeout(10):
            while suspects() != expected:
                await asyncio.sleep(0.01)

    await until(["scan1"])
    daemon._store.apply(
        agent_pb2.CoefficientUpdate(version=1, created_unix_ns=time.time_ns(), slot_ns=S // 2, full=True)
    )
    where["scan2"] = 0
    await until(["scan1", "scan2"])
    where["scan1"] = 1
    await until(["scan2"])
    daemon.stop()
    await asyncio.wait_for(running, 10)
    assert daemon.state.counters.sink_errors == 0
