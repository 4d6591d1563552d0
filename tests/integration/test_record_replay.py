"""A host is recorded, and measured again from the recording: byte for byte what the live agent made."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from agent.cli.record import record
from agent.config import load
from agent.daemon import Daemon
from agent.recording.format import RecordedTick, Recorder
from agent.recording.playback import Playback, header_of
from collector.base import Reason, SourceError
from collector.procfs.source import ProcfsSource
from collector.simulated.source import SimulatedSource

pytestmark = pytest.mark.integration

SCENARIO = """
seed = 5
[host]
cpus = 16
llc_mib = 36
memory_gib_per_s = 100
step_s = 0.1
[[vms]]
name = "web-1"
job = "web"
vcpus = 4
cpi = 1.2
sensitivity = 0.5
load = { cores = 2.0 }
[[vms]]
name = "scan-1"
job = "scan"
vcpus = 8
cpi = 2.0
cache_mib_per_core = 10
memory_gib_per_s_per_core = 10
[[antagonists]]
vm = "scan-1"
cores = 6
start_s = 1
stop_s = 60
"""
TICK_S = 0.1
BASE = f"[agent]\ntick_s = {TICK_S}\nwindow_s = 0.5\n"
JOBS = "[[jobs]]\nfact = 'job'\npattern = '^(web|scan)$'\njob = '\\1'\n"


@pytest.fixture
def config_file(tmp_path):
    """The real host's /proc and control groups, hardware counters where there are any, and simulated VMs."""
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    file = tmp_path / "agent.toml"
    file.write_text(
        f"{BASE}state_dir = '{tmp_path}'\nsocket = '{tmp_path}/a.sock'\n"
        "[sources.procfs]\nmode = 'required'\n"
        f"[sources.simulated]\nmode = 'required'\nscenario = '{tmp_path}/scenario.toml'\n{JOBS}"
    )
    return file


def reported(pipeline, windows):
    """All that a tick made, as bytes: every VM's rates with their moments, the host's, the windows."""
    vms = [
        (vm.identity, vm.job, vm.latency_sensitive, [repr(rate) for rate in vm.rates], vm.change, vm.held)
        for vm in pipeline.table
    ]
    host = [repr(pipeline.host_rates), pipeline.host_source, pipeline.host_mono_ns]
    return msgspec.json.encode([vms, host, windows, pipeline.table.errors, pipeline.windows.without_cpu])


def live(config, file, ticks):
    """Run an agent for so many ticks; record what they were given, and return what they made of it."""
    daemon = Daemon(config)
    pipeline = daemon.state.pipeline
    process, made = pipeline.process, []
    with Recorder(file, header_of(config)) as recorder:

        def watched(inputs):
            sources = {name: why for name, why in inputs.troubles.items() if why is not Reason.SOURCE_OFF}
            unix_ns = daemon._clock.unix_ns()
            recorder.write(RecordedTick(inputs.mono_ns, unix_ns, tuple(inputs.samples), sources))
            windows = process(inputs)
            made.append(reported(pipeline, windows))
            if len(made) == ticks:
                daemon.stop()
            return windows

        pipeline.process = watched
        asyncio.run(daemon.run())
    return made


def test_a_replay_makes_byte_for_byte_what_the_live_agent_made(config_file, tmp_path, monkeypatch):
    config = load(config_file)

    real = {source: source.sample for source in (ProcfsSource, SimulatedSource)}
    calls = dict.fromkeys(real, 0)

    def disturbed(self):
        """procfs hangs past its deadline, then the simulator fails: their reasons are part of what ticks work on."""
        kind = type(self)
        calls[kind] += 1
        if kind is ProcfsSource and calls[kind] == 8:
            time.sleep(0.7)
        if kind is SimulatedSource and 15 <= calls[kind] < 25:
            raise SourceError("the simulator rests", Reason.STALE)
        return real[kind](self)

    for kind in real:
        monkeypatch.setattr(kind, "sample", disturbed)
    made = live(config, tmp_path / "live.jsonl", 40)
    assert len(made) >= 40
    with Playback(tmp_path / "live.jsonl", config) as playback:
        replayed = [reported(playback.pipeline, windows) for _, windows in playback.ticks()]
    assert replayed == made
    text = b"".join(made)
    assert b"HostRates" in text
    assert text.count(b'"cpi":') >= 10
    assert b"web-1" in text
    # Without a configuration the recording's own settings count; only the names of jobs are another matter.
    with Playback(tmp_path / "live.jsonl") as playback:
        plain = [reported(playback.pipeline, windows) for _, windows in playback.ticks()]
    assert [_without_jobs(line) for line in plain] == [_without_jobs(line) for line in made]


def _without_jobs(line):
    vms, host, windows, *counts = msgspec.json.decode(line)
    return [[vm[0], *vm[3:]] for vm in vms], host, [w | {"job": ""} for w in windows], counts


def test_without_the_sources_troubles_the_replay_would_be_another(config_file, tmp_path):
    """The test above sees a recording that does not carry them (the format before did not)."""
    made = live(load(config_file), tmp_path / "live.jsonl", 20)
    text = (tmp_path / "live.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        if "tick" in line:
            line["tick"]["sources"] = {"simulated": None}
    (tmp_path / "poor.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with Playback(tmp_path / "poor.jsonl", load(config_file)) as playback:
        assert [reported(playback.pipeline, windows) for _, windows in playback.ticks()] != made


@pytest.fixture
def recorded(config_file, tmp_path):
    """A recording by the command."""
    file = tmp_path / "host.jsonl"
    record(file, seconds=3, config=config_file, json=True)
    return file


def test_replay_reads_and_counts_it(config_file, recorded):
    command = [Path(sys.executable).with_name("whitepanda"), "replay", recorded, "--config", config_file, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ), timeout=60)
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert reported["sent"] is False
    assert reported["adds_up"] is True
    assert reported["rows_read"] >= 10
    assert reported["without_cpi"] < reported["rows_read"]
