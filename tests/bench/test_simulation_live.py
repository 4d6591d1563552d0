"""The live simulated source, read by the agent's pipeline, tells what the study's fast path tells."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from agent.analysis.signals import SIGNALS, signals_of
from agent.config import AgentConfig, AgentSection
from agent.sampling.pipeline import Inputs, Pipeline
from agent.sampling.source_threads import Slots
from bench.cloud_white.scenarios import single
from bench.cloud_white.simulation import Study, simulate
from collector.base import Reason
from collector.registry import SOURCES
from collector.simulated.profiled import machine_of, noise_of
from collector.simulated.scenario import load, vm_uuid
from collector.simulated.source import SimulatedSource
from tests.unit.agent.agent_fakes import FakeClock

S = 1_000_000_000
SECONDS = 20
#: Gauges and counters of the agent that the study has no word on: they are constant, or not simulated.
UNTOLD = {
    "pressure_io_full_ratio",
    "cpu_throttled_ratio",
    "cpu_quota_cores",
    "memory_charged_bytes",
    "numa_remote_memory_ratio",
}


def same(study: Study) -> str:
    """The scenario of a study."""
    tables = [
        f"""
        [[vms]]
        name = "{vm.name}"
        job = "{vm.name}"
        vcpus = {vm.vcpus}
        profile = "{vm.profile}"
        load_ratio = {{ratio = {vm.load}, points = {json.dumps(vm.points)}}}
        switches = {json.dumps(vm.switches)}
        """
        for vm in study.vms
    ]
    return f"""
        seed = {study.seed}
        [host]
        cpus = 24
        vm_cpus = 16
        system_cores = 2.0
        ghz = 2.1
        llc_mib = 16.5
        memory_gib_per_s = 99.93
        [noise]
        load_std = 0.03
        correlation_s = 15.0
        {"".join(tables)}
    """


@pytest.fixture
def study() -> Study:
    paper = single("masstree", 0.3, "cache-memory-disk-3")
    stressor = replace(paper.vms[1], points=((8.0, 0.95),), switches=((8.0, "cache-memory-disk-3"),))
    return replace(paper, vms=(paper.vms[0], stressor, paper.vms[2]), duration_s=SECONDS, quiet_s=8.0, stress_s=20.0)


def test_live_counters_through_the_pipeline_are_the_studys_metrics(study: Study, tmp_path: Path) -> None:
    path, truth_file = tmp_path / "scenario.toml", tmp_path / "truth.jsonl"
    path.write_text(same(study))
    scenario = load(path)
    study = replace(study, machine=machine_of(scenario), noise=noise_of(scenario))
    clock = FakeClock()
    begin = clock.mono
    source = SimulatedSource(path, truth_file, mono_ns=lambda: clock.mono, unix_ns=lambda: clock.unix)
    source.open()
    pipeline = Pipeline(AgentConfig(AgentSection()), Slots((), clock))
    troubles = {spec.name: None if spec.name == "simulated" else Reason.SOURCE_OFF for spec in SOURCES}
    ticks = list(simulate(study))
    for second in range(SECONDS + 1):
        clock.mono = begin + second * S
        pipeline.process(Inputs(clock.mono, [source.sample()], troubles))
        if second == 0:
            continue
        tick = ticks[second - 1]
        by_uuid = {vm.identity.uuid: vm.rates for vm in pipeline.table}
        for vm, reported in zip(study.vms, tick.vms, strict=True):
            rates = by_uuid[vm_uuid(scenario, vm.name)]._asdict()
            known = {name: value for name, value in rates.items() if not isinstance(value, Reason)}
            assert set(known) - UNTOLD == set(reported)
            for name, value in reported.items():
                # Counters are whole: bytes, operations, nanoseconds.
                assert known[name] == pytest.approx(value, rel=2e-3, abs=2e-6 if "ratio" in name else 2.0), name
            for name in ("ipc", "gips", "guest_ratio", "llc_mpki", "total_stall_ratio"):
                assert known[name] == pytest.approx(reported[name], rel=1e-5), name
        host = pipeline.host_rates._asdict()
        for name, value in tick.host.items():
            assert host[name] == pytest.approx(value, abs=1e-6), name
    lines = [json.loads(line) for line in truth_file.read_text().splitlines()][1:]
    for line, tick in zip(lines, ticks, strict=True):
        for vm, truth in zip(study.vms, tick.truths, strict=True):
            reported = line["vms"][vm.name]
            assert reported["role"] == truth.role.value
            assert reported["load_ratio"] == pytest.approx(truth.load_ratio)
            if math.isnan(truth.expected_p95_s):
                assert reported["p95_latency_s"] is reported["true_latency_degradation"] is None
            else:
                assert reported["p95_latency_s"] == pytest.approx(truth.p95_latency_s, rel=1e-6)
                assert reported["true_latency_degradation"] == pytest.approx(truth.expected_degradation)
    assert lines[-1]["vms"]["masstree"]["role"] == "victim"
    assert lines[-1]["vms"]["stressor"]["role"] == "inflicting"


def test_a_ticks_signals_are_all_known_but_those_of_nobody(study: Study) -> None:
    tick = next(iter(simulate(study)))
    values = signals_of(tick.vms, tick.host)
    unknown = {SIGNALS[column] for column in range(len(SIGNALS)) if math.isnan(values[0, column])}
    assert unknown == set()
