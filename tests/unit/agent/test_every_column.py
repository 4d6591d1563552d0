"""Every column of a batch is filled by some source, on the way that live samples take: nothing is promised in vain."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from agent.antagonists.decide_victims import Decisions
from agent.config import AgentConfig, AgentSection, AnalysisSection, CloudWhiteSection, JobRule, WindowsSection
from agent.detection.cloud_white import CloudWhite
from agent.detection.degradation_models import load
from agent.facts.changes import FactChanges
from agent.failures import Failures
from agent.recording.replay import RecordedRows
from agent.sampling.pipeline import Inputs, Pipeline
from agent.sampling.source_threads import Slots
from agent.sampling.windows import CpiWindow
from agent.uplink.batches import Report
from agent.uplink.disk_queue import Spool
from agent.uplink.outgoing import Outgoing
from collector.base import Reason, SourceSample
from collector.cgroup.source import CgroupSource
from collector.inventory.inventory import Inventory
from collector.procfs.source import ProcfsSource
from collector.registry import SOURCES
from collector.simulated.source import SimulatedSource
from tests.support.metric_columns import NAMES, metric_columns, metrics_of
from tests.support.waiting import wait_until
from tests.unit.agent.agent_fakes import FakeClock, S
from tests.unit.agent.antagonists import test_host_analysis as made_up
from tests.unit.collector.cgroup.test_cgroups import SCOPE, Groups
from tests.unit.collector.conftest import HostTree
from whitepanda.v1 import agent_pb2

RECORDING = Path(__file__).parents[2] / "fixtures" / "recordings" / "three_vms.jsonl"
SCENARIO = """
seed = 3
[host]
cpus = 24
vm_cpus = 16
llc_mib = 16.5
[[vms]]
name = "store"
job = "store"
vcpus = 2
profile = "masstree"
load_ratio = { ratio = 0.3 }
[[vms]]
name = "scan"
job = "scan"
vcpus = 8
profile = "no-interference"
load_ratio = { ratio = 0.1, points = [[30, 0.95]] }
switches = [[30, "cache-memory-3"]]
"""
#: Columns that no agent fills, and who does.
NOT_OURS = {
    "tasks.platform": "importers of other machines' rows, such as the demonstration's past",
    "numa_remote_memory_ratio": "agents of hosts with several NUMA nodes",
}


def columns(descriptor: Descriptor = agent_pb2.CpiBatch.DESCRIPTOR) -> set[str]:
    """All columns of a batch and of its tasks. Events and triggers are messages, not columns: each counts as one."""
    found = set()
    for field in descriptor.fields:
        if field.name == "tasks":
            found |= {f"tasks.{each.name}" for each in field.message_type.fields}
        elif field.name == "metrics":
            found |= NAMES
        else:
            found.add(field.name)
    return found


def filled(batch: agent_pb2.CpiBatch) -> set[str]:
    """The columns in which at least one value is known."""
    known = {f"tasks.{field.name}" for task in batch.tasks for field, _ in task.ListFields()}
    for field, values in batch.ListFields():
        if field.name == "tasks":
            continue
        if field.name == "metrics":
            known |= {name for name, some in metrics_of(batch).items() if not all(map(math.isnan, some))}
        elif not field.is_repeated or any(is_known(field, value) for value in values):
            known.add(field.name)
    return known


def is_known(field: FieldDescriptor, value: Any) -> bool:
    if field.type == field.TYPE_DOUBLE:
        return not math.isnan(value)
    return True


def pipeline_of(config: AgentConfig, sources: set[str]) -> tuple[Pipeline, dict[str, Reason | None]]:
    troubles = {spec.name: None if spec.name in sources else Reason.SOURCE_OFF for spec in SOURCES}
    return Pipeline(config, Slots((), FakeClock())), troubles


def simulated(folder: Path) -> tuple[list[CpiWindow], list[Report]]:
    """A simulated host on which a VM begins to suffer."""
    (folder / "scenario.toml").write_text(SCENARIO)
    clock = FakeClock()
    source = SimulatedSource(folder / "scenario.toml", mono_ns=lambda: clock.mono, unix_ns=lambda: clock.unix)
    source.open()
    jobs = (JobRule("(.+)", r"\1", "job", latency_sensitive=True),)
    section = CloudWhiteSection(event_interval_s=1.0)
    config = AgentConfig(AgentSection(), jobs=jobs, cloud_white=section)
    pipeline, troubles = pipeline_of(config, {"simulated"})
    cloud_white = CloudWhite(section, load(section.models))
    decisions = Decisions(config, cloud_white, None)
    windows: list[CpiWindow] = []
    for _ in range(45):
        clock.advance(S)
        windows += pipeline.process(Inputs(clock.mono, [source.sample()], troubles))
        cloud_white.tick(pipeline.table, pipeline.host_rates, clock.mono, clock.unix)
        decisions.tick(pipeline.table, clock.mono, clock.unix)
    changes = FactChanges(AgentConfig(AgentSection(state_dir=str(folder))), clock, Failures(lambda: None, clock))
    facts = changes.of_vms(pipeline.table, clock.mono + 90 * S, clock.unix)
    facts += changes.of_host(agent_pb2.HostFacts(cpus=32), clock.mono, clock.unix)
    return decisions.with_verdicts(windows), [*decisions.events.take(), *facts]


def in_control_groups(folder: Path) -> list[CpiWindow]:
    """A VM in a control group whose kernel reports pressures."""
    host = HostTree.make(folder)
    host.vm("a", 10, [11])
    groups = Groups(host, hybrid=False)
    groups.add(10, SCOPE)
    inventory = Inventory(str(host.state), str(host.proc))
    sources = (
        ProcfsSource(inventory, root=str(host.proc)),
        CgroupSource(inventory, root=str(groups.root), sys_root=str(folder / "sys")),
    )
    for source in sources:
        source.open()
        wait_until(lambda source=source: source.sample().vms)
    pipeline, troubles = pipeline_of(AgentConfig(AgentSection()), {"procfs", "cgroup"})
    clock = FakeClock()
    for second in range(3):
        clock.advance(S)
        groups.pressures(SCOPE, 100, 100, 100 + second)
        taken = [at(source.sample(), clock) for source in sources]
        pipeline.process(Inputs(clock.mono, taken, troubles))
    for source in sources:
        source.close()
    return pipeline.windows.flush()


def at(sample: SourceSample, clock: FakeClock) -> SourceSample:
    """A sample as if it had been taken now."""
    vms = {uuid: replace(vm, stamps={}) for uuid, vm in sample.vms.items()}
    return replace(sample, mono_ns=clock.mono, unix_ns=clock.unix, vms=vms)


def contention(folder: Path) -> list[Report]:
    host = made_up.Host(folder, AnalysisSection(trigger="paper", mn_cpi_floor=1.0))
    host.store.apply(made_up.update())
    host.run(12, made_up.VICTIM, made_up.CALM, made_up.SCAN)
    return list(host.reports)


def sent(folder: Path) -> Iterator[agent_pb2.CpiBatch]:
    """The batches of all these hosts, as they leave the spool after an outage."""
    windows, events = simulated(folder)
    windows += in_control_groups(folder)
    spool = Spool(folder / "spool.db", max_bytes=1 << 24, boot_id="b")
    windows = Outgoing(WindowsSection()).prepare(windows)
    spool.append(windows, events=[*events, *contention(folder)])
    spool.begin_stream()
    for queued in spool.fetch(100):
        yield queued.message
    spool.close()
    yield from RecordedRows([RECORDING], machine="recorded").batches("s")


@pytest.fixture
def batches(tmp_path) -> list[agent_pb2.CpiBatch]:
    return list(sent(tmp_path))


def test_every_column_of_the_protocol_is_filled_by_some_source(batches) -> None:
    assert len(columns()) > 25
    assert columns() - set().union(*map(filled, batches)) == set(NOT_OURS)


def test_that_notices_a_column_in_which_nothing_is_known() -> None:
    lacking = agent_pb2.CpiBatch(sequence=1, cpi=[math.nan], task_index=[0], tasks=[{"vm": "u"}])
    lacking.metrics.CopyFrom(metric_columns(cycles=[math.nan]))
    assert filled(lacking) == {"sequence", "task_index", "tasks.vm"}
