"""A host is recorded by the command and measured again from the recording: the same rates at the same ticks."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.cli.record import record
from agent.clock import SystemClock
from agent.config import load
from agent.daemon import Daemon
from agent.pipeline import Pipeline
from agent.rates import HostRates
from agent.slots import Slots
from collector.base import Reason
from collector.recorded import RecordedSource
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


class FedSlots(Slots):
    """Slots of one source that answers at once; as in the real ones, only the next tick sees it."""

    def __init__(self, take):
        super().__init__((), SystemClock())
        self._take = take
        self._latest = None

    def samples(self):
        return [] if self._latest is None else [self._latest]

    def kick(self):
        self._latest = self._take()

    def trouble(self, name):
        return None if name in {"simulated", "recorded"} else Reason.SOURCE_OFF


def measured(config, samples):
    """Rates per VM and of the host, tick by tick, and the windows, as the agent makes them of samples."""
    waiting = iter(samples)
    pipeline = Pipeline(config, FedSlots(lambda: next(waiting)))
    ticks, windows = [], []
    for sample in samples:
        windows += pipeline.tick(sample.mono_ns)
        ticks.append(({vm.identity.name: (vm.job, vm.rates) for vm in pipeline.table}, pipeline.host_rates))
    return ticks, windows + pipeline.windows.flush()


def key_of(vm):
    """Which two samples a VM's rates are of: by the threads' CPU time, which never repeats."""
    parts = (vm.last.threads, vm.now.threads)
    if any(isinstance(part, Reason) for part in parts):
        return None
    return (vm.identity.name, *(sum(t.cpu_ns for t in part.value.values()) for part in parts))


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A recording, and the very samples that the source gave."""
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    config = tmp_path / "agent.toml"
    config.write_text(
        f"[agent]\ntick_s = {TICK_S}\nwindow_s = 0.5\nstate_dir = '{tmp_path}'\nsocket = '{tmp_path}/a.sock'\n"
        "[sources.procfs]\nmode = 'off'\n[sources.libvirt]\nmode = 'off'\n[sources.perf]\nmode = 'off'\n"
        f"[sources.simulated]\nmode = 'required'\nscenario = '{tmp_path}/scenario.toml'\n"
        "[[jobs]]\nfact = 'job'\npattern = '^(web|scan)$'\njob = '\\1'\n"
    )
    given = []
    real = SimulatedSource.sample

    def sample(self):
        given.append(real(self))
        return given[-1]

    monkeypatch.setattr(SimulatedSource, "sample", sample)
    file = tmp_path / "host.jsonl"
    record(file, seconds=3, config=config, json=True)
    monkeypatch.undo()
    return config, file, given


def test_the_recording_gives_the_rates_of_the_original(recorded):
    config_file, file, given = recorded
    config = load(config_file)
    assert len(given) >= 20
    now = [given[0]]
    source = RecordedSource(
        file, mono_ns=lambda: now[0].mono_ns, unix_ns=lambda: now[0].unix_ns, sleep_s=lambda _s: None
    )
    source.open()
    replayed = []
    for sample in given:
        now[0] = sample
        replayed.append(source.sample())
    source.close()
    original_ticks, original_windows = measured(config, given)
    ticks, windows = measured(config, replayed)
    assert ticks == original_ticks
    assert windows == original_windows
    assert len(windows) >= 10

    vms, host = ticks[-1]
    assert set(vms) == {"web-1", "scan-1"}
    assert (vms["web-1"][0], vms["scan-1"][0]) == ("web", "scan")
    assert 1 < vms["web-1"][1].cpu_usage_cores < 3
    assert isinstance(host, HostRates)


def test_an_agent_replays_the_recording(recorded, tmp_path):
    config_file, file, given = recorded
    originals = {}
    pipeline = Pipeline(load(config_file), FedSlots(iter(given).__next__))
    for sample in given:
        pipeline.tick(sample.mono_ns)
        originals.update({key_of(vm): vm.rates for vm in pipeline.table})
    originals.pop(None, None)

    replaying = tmp_path / "replaying.toml"
    text = config_file.read_text().replace("sources.simulated", "sources.recorded")
    replaying.write_text(text.replace(f"scenario = '{tmp_path}/scenario.toml'", f"file = '{file}'"))
    daemon = Daemon(load(replaying))
    tick = daemon.state.pipeline.tick
    seen = {}

    def watched(mono_ns):
        windows = tick(mono_ns)
        seen.update({key_of(vm): vm.rates for vm in daemon.state.pipeline.table})
        return windows

    daemon.state.pipeline.tick = watched

    async def run():
        asyncio.get_running_loop().call_later(3, daemon.stop)
        await daemon.run()

    asyncio.run(run())
    # Where a tick of the agent came late, one of the recording is left out: rates of two ticks have no original.
    same = seen.keys() & originals.keys()
    assert len(same) >= 10
    assert {key: seen[key] for key in same} == {key: originals[key] for key in same}
    assert {name for name, *_ in same} == {"web-1", "scan-1"}


def test_replay_reads_and_counts_it(recorded):
    config, file, _given = recorded
    command = [Path(sys.executable).with_name("whitepanda"), "replay", file, "--config", config, "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=dict(os.environ), timeout=60
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["sent"] is False
    assert told["adds_up"] is True
    assert told["rows_read"] >= 10
    assert told["without_cpi"] < told["rows_read"]
