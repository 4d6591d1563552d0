import asyncio
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import structlog

from agent.antagonists.host_analysis import HostAnalysis
from agent.api.server import LocalApi
from agent.config import (
    AgentConfig,
    AgentSection,
    AnalysisSection,
    CloudWhiteSection,
    JobRule,
    SimulatedSection,
    Sources,
    UplinkSection,
)
from agent.daemon import Daemon
from agent.detection.cloud_white import CloudWhite
from agent.failures import CLOUD_WHITE, EFFECTS
from agent.sampling.source_threads import Slots, SourcePlan
from agent.sampling.startup import make_plans
from agent.uplink.client import _FLUSH_S, Uplink
from collector.base import Probe, Reason, SourceError, SourceSample
from tests.unit.agent.agent_fakes import FakeSource, S, identity, vm_sample
from tests.unit.agent.cloud_white_fakes import SUFFERS, ToldDetector
from whitepanda.common.errors import ConfigError, UnavailableError
from whitepanda.v1 import agent_pb2

ROOT = Path(__file__).parents[3]
WORKS = Probe(available=True, detail="")


@pytest.fixture
def config(tmp_path):
    return AgentConfig(
        AgentSection(
            host="host1",
            platform="cpu",
            state_dir=str(tmp_path / "state"),
            socket=str(tmp_path / "agent.sock"),
            tick_s=0.05,
            window_s=0.2,
        ),
        jobs=(JobRule(r"(\D+)\d+", r"\1"),),
    )


def take() -> SourceSample:
    mono_ns = time.monotonic_ns()
    return SourceSample("simulated", mono_ns, time.time_ns(), {"u1": vm_sample(mono_ns / S)}, None, (identity(),))


def plan(mode: str = "required", source: FakeSource | None = None) -> SourcePlan:
    return SourcePlan("simulated", mode, source or FakeSource("simulated", take))


async def until(true, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "did not come true"
        await asyncio.sleep(0.005)


class Running:
    """A daemon that runs while the block does."""

    def __init__(self, config, *plans):
        self.daemon = Daemon(config, plans=plans or (plan(),))

    async def __aenter__(self):
        self.task = asyncio.create_task(self.daemon.run())
        return self.daemon

    async def __aexit__(self, *_):
        self.daemon.stop()
        await asyncio.wait_for(self.task, 10)


async def test_it_ticks_judges_and_ends_cleanly(config):
    source = FakeSource("simulated", take)
    async with Running(config, plan(source=source)) as daemon:
        state = daemon.state
        await until(lambda: state.pipeline.windows.closed >= 2)
        (vm,) = state.vms()
        assert (vm.identity.name, vm.job) == ("vm1", "vm")
        assert vm.rates.cpi == pytest.approx(1.6, rel=1e-3)
        assert state.analysis.explain("u1").cpi == pytest.approx(1.6, rel=1e-3)
        assert os.path.exists(config.agent.socket)  # noqa: ASYNC240, PTH110 - a look in a test
        assert state.host().uplink.state == "off"
        assert (state.host().host, state.host().platform) == ("host1", "cpu")
        assert state.counters.sink_errors == 0
    assert source.closed == 1
    assert not os.path.exists(config.agent.socket)  # noqa: ASYNC240, PTH110 - a look in a test
    assert not (Path(config.agent.state_dir) / "spool.db").exists()  # without an address there is nothing to spool for


async def test_what_runs_beside_the_vms_is_a_suspect_where_it_is_wanted(config, tmp_path):
    unit = tmp_path / "cgroup/system.slice/ceph-osd@1.service"
    unit.mkdir(parents=True)
    spent_us = 0
    sources = msgspec.structs.replace(
        config.sources, cgroup=msgspec.structs.replace(config.sources.cgroup, root=str(tmp_path / "cgroup"))
    )
    config = msgspec.structs.replace(config, analysis=AnalysisSection(max_host_suspects=4), sources=sources)
    async with Running(config, plan()) as daemon:

        def found() -> list[str]:
            nonlocal spent_us
            spent_us += 100_000
            new = unit / "new"
            new.write_text(f"usage_usec {spent_us}\n")
            new.replace(unit / "cpu.stat")
            return [suspect.job for suspect in daemon.state.analysis.suspects("u1")]

        await until(lambda: daemon.state.analysis is not None)
        await until(lambda: "host:ceph-osd.service" in found())
        assert "host:ceph-osd.service" in daemon._hello().jobs
        assert daemon.state.counters.sink_errors == 0


async def test_a_required_source_that_is_not_there_is_one_clear_line(config):
    source = FakeSource(
        "simulated", take, Probe(available=False, detail="no socket; start libvirtd", reason=Reason.NO_PMU)
    )
    with pytest.raises(UnavailableError) as error:
        await Daemon(config, plans=[plan(source=source)]).run()
    assert str(error.value) == (
        "sources.simulated.mode is 'required', but it is unavailable: no socket; start libvirtd"
    )
    assert error.value.exit_code == 4


async def test_a_required_source_that_was_switched_off_or_lacks_its_library(config):
    broken = SourcePlan("libvirt", "required", None, broken=SourceError("libvirt: lacks 'libvirt'", Reason.NOT_PRESENT))
    with pytest.raises(UnavailableError, match="lacks 'libvirt'"):
        await Daemon(config, plans=[broken]).run()


async def test_an_auto_source_that_is_not_there_stops_nothing(config):
    missing = FakeSource("perf", take, Probe(available=False, detail="x", reason=Reason.PARANOID))
    async with Running(config, plan(), SourcePlan("perf", "auto", missing)) as daemon:
        await until(lambda: daemon.state.pipeline.windows.closed >= 1)
        assert [(v.name, v.state) for v in daemon.state.host().sources] == [
            ("simulated", "available"),
            ("perf", "unavailable"),
        ]


async def test_a_failing_analysis_costs_only_itself_and_is_logged_once(config, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(HostAnalysis, "observe", broken)
    with structlog.testing.capture_logs() as logs:
        async with Running(config) as daemon:
            await until(lambda: daemon.state.counters.sink_errors >= 3)
            ticks = daemon.state.schedule.ticks
            monkeypatch.undo()
            await until(lambda: daemon.state.schedule.ticks > ticks + 10)
    events = [entry["event"] for entry in logs if entry["event"].startswith("analysis")]
    assert events == [
        "analysis failed: nothing is looked for in this window; tried again with the next one",
        "analysis works again",
    ]


def test_each_part_that_can_fail_says_what_follows():
    code = "".join((ROOT / "agent" / name).read_text() for name in ("daemon.py", "facts/changes.py"))
    named = set(re.findall(r'(?:guard|note|kept_running)\("(.+?)"', code))
    assert named | {CLOUD_WHITE, f"start of {CLOUD_WHITE}"} == EFFECTS.keys()


async def test_a_local_api_that_fails_is_tried_again_and_stops_no_tick(config, monkeypatch):
    calls = []
    plain = LocalApi.start

    async def fails(self):
        calls.append(time.monotonic())
        if len(calls) <= 3:
            raise RuntimeError("no")
        await plain(self)

    monkeypatch.setattr(LocalApi, "start", fails)
    monkeypatch.setattr("agent.failures._RETRY_MIN_S", 0.05)
    async with Running(config) as daemon:
        await until(Path(config.agent.socket).is_socket)
        assert (len(calls), daemon.state.counters.sink_errors) == (4, 3)
        ticks = daemon.state.schedule.ticks
        assert ticks >= 2
        await until(lambda: daemon.state.schedule.ticks > ticks)


async def test_a_socket_that_cannot_be_is_reported_at_start(config):
    config = msgspec.structs.replace(config, agent=msgspec.structs.replace(config.agent, socket="/" + "x" * 200))
    with pytest.raises(ConfigError, match=r"agent\.socket"):
        await Daemon(config, plans=[plan()]).run()


async def test_a_failing_uplink_costs_only_itself(config, monkeypatch):
    async def fails(self):
        raise RuntimeError("no")

    def broken(self, windows):
        raise OSError("disk")

    monkeypatch.setattr(Uplink, "run", fails)
    monkeypatch.setattr(Uplink, "submit", broken)
    config = msgspec.structs.replace(config, uplink=UplinkSection(address="localhost:1"))
    async with Running(config) as daemon:
        await until(lambda: daemon.state.pipeline.windows.closed >= 3)
        assert daemon.state.analysis.explain("u1").cpi == pytest.approx(1.6, rel=1e-3)
        assert daemon.state.counters.sink_errors >= 3


async def test_an_uplink_that_never_works_is_logged_once(config, monkeypatch):
    tries = []

    async def fails(self):
        tries.append(1)
        raise RuntimeError("no")

    monkeypatch.setattr(Uplink, "run", fails)
    monkeypatch.setattr("agent.failures._RETRY_MIN_S", 0.01)
    monkeypatch.setattr("agent.failures._RETRY_MAX_S", 0.05)
    config = msgspec.structs.replace(config, uplink=UplinkSection(address="localhost:1"))
    with structlog.testing.capture_logs() as logs:
        async with Running(config) as daemon:
            windows = daemon.state.pipeline.windows
            await until(lambda: windows.closed >= 3 and len(tries) >= 5)  # submits succeed in between
    events = [entry["event"] for entry in logs if "fail" in entry["event"] or "works" in entry["event"]]
    assert events == ["uplink failed: windows wait in the spool; tried again"]


async def test_a_tick_that_fails_as_a_whole_is_counted_and_the_next_one_runs(config, monkeypatch):
    async with Running(config) as daemon:
        state = daemon.state
        await until(lambda: state.schedule.ticks >= 2)
        with monkeypatch.context() as patch:
            patch.setattr(state.pipeline, "tick", lambda _now: 1 // 0)
            await until(lambda: state.counters.tick_errors >= 2)
        closed = state.pipeline.windows.closed
        await until(lambda: state.pipeline.windows.closed > closed)


async def test_the_open_window_goes_to_the_spool_at_the_end(config):
    agent = msgspec.structs.replace(config.agent, tick_s=0.05, window_s=600.0)
    config = msgspec.structs.replace(config, agent=agent, uplink=UplinkSection(address="localhost:1"))
    async with Running(config) as daemon:
        await until(lambda: daemon.state.schedule.ticks >= 5)
        assert daemon.state.pipeline.windows.closed == 0
        os.kill(os.getpid(), signal.SIGTERM)
        await until(daemon._stop.is_set)
    with sqlite3.connect(Path(config.agent.state_dir) / "spool.db") as db:
        assert db.execute("SELECT sequence, rows FROM batches").fetchall() == [(1, 1)]
    db.close()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_sources_have_the_time_to_clean_up_that_the_unit_leaves(config, monkeypatch):
    """resctrl's and pqos' groups are removed then; with 2 s a busy host was left with them."""
    waited, stop = [], Slots.stop

    def noted(slots, timeout_s, now_s):
        waited.append(timeout_s)
        return stop(slots, timeout_s, now_s)

    monkeypatch.setattr(Slots, "stop", noted)
    async with Running(config):
        pass
    unit = (ROOT / "systemd" / "whitepanda-agent.service").read_text()
    allowed_s = float(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[1])
    assert allowed_s / 2 < waited[0] < allowed_s - _FLUSH_S


async def test_a_source_that_hangs_costs_those_behind_it_no_tick(config, monkeypatch):
    """They wait for their turn; the daemon's patience with those before them is a quarter of a tick."""
    config = msgspec.structs.replace(config, agent=msgspec.structs.replace(config.agent, tick_s=8.0))
    monkeypatch.setattr("agent.daemon.first_due_ns", lambda mono_ns, _unix_ns, _period_ns: mono_ns)
    hangs = FakeSource("libvirt", take)
    works = FakeSource("procfs", take)
    plans = (SourcePlan("libvirt", "auto", hangs), SourcePlan("procfs", "auto", works))
    hangs.gate.clear()
    async with Running(config, *plans) as daemon:
        await until(lambda: hangs.entered == 1)
        await until(lambda: works.entered == 1)
        assert daemon.state.schedule.ticks == 1
        hangs.gate.set()


async def test_a_source_that_hangs_for_ever_does_not_hold_up_the_end(config, monkeypatch):
    monkeypatch.setattr("agent.daemon.STOP_WAIT_S", 0.1)
    hangs = FakeSource("libvirt", take)
    async with Running(config, plan(), SourcePlan("libvirt", "auto", hangs, 10**8)) as daemon:
        await until(lambda: hangs.entered >= 1)
        hangs.gate.clear()
        closed = daemon.state.pipeline.windows.closed
        await until(lambda: daemon.state.host().sources[1].state == "stuck")
        await until(lambda: daemon.state.pipeline.windows.closed > closed + 1)
    hangs.gate.set()


@pytest.fixture
def manager(tmp_path, monkeypatch):
    """systemd's end of sd_notify."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        monkeypatch.delenv("WATCHDOG_PID", raising=False)

        def received() -> list[str]:
            found = []
            while True:
                try:
                    found.append(sock.recv(4096).decode())
                except BlockingIOError:
                    return found

        yield received


async def test_the_service_manager_is_reported(config, manager):
    seen = []
    async with Running(config) as daemon:
        await until(lambda: seen.extend(manager()) or daemon.state.pipeline.windows.closed >= 2)
        await until(lambda: seen.extend(manager()) or seen.count("WATCHDOG=1") >= 3)
    seen += manager()
    assert seen[0] == "READY=1"
    assert "STATUS=1 VM" in seen
    assert "STOPPING=1" in seen


async def test_a_service_manager_that_reads_nothing_holds_up_no_tick(config, manager):
    async with Running(config) as daemon:
        await until(lambda: daemon.state.pipeline.windows.closed >= 30, 20)


async def test_the_watchdog_starves_when_ticks_stop(config, manager):
    async with Running(config) as daemon:
        await until(lambda: "WATCHDOG=1" in manager())
        hang = asyncio.Event()
        plain = daemon._clock.sleep_until
        daemon._clock.sleep_until = lambda _due: hang.wait()  # the tick loop is stuck, the event loop is not
        await asyncio.sleep(0.5)
        manager()
        await asyncio.sleep(0.5)
        assert manager() == []
        daemon._clock.sleep_until = plain
        hang.set()
        await until(lambda: "WATCHDOG=1" in manager())


def test_plans_follow_the_configuration(config, tmp_path, monkeypatch):
    scenario = tmp_path / "scenario.toml"
    sources = Sources(simulated=SimulatedSection(mode="required", scenario=str(scenario)))
    plans = {p.name: p for p in make_plans(msgspec.structs.replace(config, sources=sources))}
    assert (plans["simulated"].mode, plans["pqos"].mode) == ("required", "off")
    assert plans["simulated"].source is not None
    assert plans["pqos"].source is None
    assert plans["libvirt"].deadline_ns == 2 * S

    def lacking(*_args, **_options):
        raise ModuleNotFoundError("No module named 'libvirt'", name="libvirt")

    monkeypatch.setattr("agent.sampling.startup.build_sources", lacking)
    (first, *_) = make_plans(config)
    assert (
        str(first.broken) == f"{first.name}: this installation lacks 'libvirt'; install it: "
        "`python3 tools/bootstrap.py host` in a checkout, or the Debian package whitepanda-agent"
    )


SCENARIO = '[[vms]]\nname = "web1"\njob = "web"\nvcpus = 2\n'


def test_the_command_runs_until_sigterm(tmp_path):
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    (tmp_path / "agent.toml").write_text(
        f"""
        [agent]
        state_dir = "{tmp_path}/state"
        socket = "{tmp_path}/agent.sock"
        tick_s = 0.1
        [sources]
        libvirt.mode = "off"
        perf.mode = "off"
        procfs.mode = "off"
        simulated.mode = "required"
        simulated.scenario = "{tmp_path}/scenario.toml"
        """
    )
    command = [sys.executable, "-c", "from whitepanda.common.cli import main; main()", "agent", "run", "--config"]
    process = subprocess.Popen([*command, str(tmp_path / "agent.toml")], stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 20
        while not (tmp_path / "agent.sock").exists():
            assert time.monotonic() < end
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert "agent ended" in errors
    assert "Traceback" not in errors


def test_a_wrong_configuration_is_one_line_and_exit_code_2(tmp_path):
    (tmp_path / "agent.toml").write_text("[agent]\ntick = 1\n")
    command = [sys.executable, "-c", "from whitepanda.common.cli import main; main()", "agent", "run", "--config"]
    done = subprocess.run(
        [*command, str(tmp_path / "agent.toml")], check=False, capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 2
    assert "unknown key 'agent.tick' (value 1)" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


class _Suffers(ToldDetector):
    def __init__(self, *_):
        super().__init__()
        self.says["u1"] = SUFFERS
        self.learnt = {"vms": []}


async def test_verdicts_become_events_in_the_next_batch_and_baselines_are_kept(config, monkeypatch):
    made = []

    def make(_name):
        made.append(_Suffers())
        return made[-1]

    monkeypatch.setattr(CloudWhite.__init__, "__defaults__", (make,))
    jobs = (JobRule(".", "web", alert=True),)
    config = msgspec.structs.replace(config, uplink=UplinkSection(address="127.0.0.1:9"), jobs=jobs)
    async with Running(config) as daemon:
        await until(lambda: daemon.state.pipeline.windows.closed >= 2)
        assert daemon.state.cloud_white.verdict("u1").behaviour == "victim"
        assert daemon.state.snapshot().vms[0].suffering.behaviour == "victim"
        assert daemon.state.counters.analysis_ns > 0
        assert daemon.state.decisions.vm("u1").verdict == "victim"
        assert daemon.state.snapshot().vms[0].decision.verdict == "victim"
        await until(lambda: not daemon.state.decisions.has_news)
        await until(lambda: daemon.state.uplink().spooled_batches > 0)
    state = Path(config.agent.state_dir)
    with sqlite3.connect(state / "spool.db") as spool:
        batches = [
            agent_pb2.CpiBatch.FromString(row[0]) for row in spool.execute("SELECT payload FROM batches ORDER BY id")
        ]
    spool.close()
    events = [event for batch in batches for event in batch.events]
    assert [(e.vm, e.behaviour, e.reason) for e in events] == [("u1", agent_pb2.BEHAVIOUR_VICTIM, SUFFERS[1])]
    assert len(batches[0].events) == 1  # with the first windows
    assert json.loads((state / "baselines.json").read_text())["state"] == {"vms": []}
    async with Running(config):
        pass
    assert made[-1].learnt["vms"] == []
    assert "now_unix_s" in made[-1].learnt  # restored


async def test_a_detector_that_fails_is_counted_reported_once_and_stops_no_tick(config, monkeypatch):
    class Fails(ToldDetector):
        def step(self, tick):
            raise ZeroDivisionError("x")

    monkeypatch.setattr(CloudWhite.__init__, "__defaults__", (Fails,))
    with structlog.testing.capture_logs() as logs:
        async with Running(config) as daemon:
            await until(lambda: daemon.state.counters.sink_errors >= 5)
            assert daemon.state.pipeline.windows.closed >= 0
            assert daemon.state.cloud_white.verdict("u1").behaviour == "unknown"
    reported = [line for line in logs if line["event"].startswith("Cloud White failed")]
    assert len(reported) == 1


async def test_damaged_baselines_are_set_aside_and_off_is_off(config, monkeypatch):
    monkeypatch.setattr(CloudWhite.__init__, "__defaults__", (_Suffers,))
    state = Path(config.agent.state_dir)
    state.mkdir()  # noqa: ASYNC240 - a folder of a test
    broken = {"format": 1, "detector": "noise_scaled", "saved_unix_ns": 1, "state": {"broken": 1}}
    (state / "baselines.json").write_text(json.dumps(broken))
    async with Running(config) as daemon:
        assert daemon.state.cloud_white is not None or await until(lambda: daemon.state.cloud_white) is None
    assert json.loads((state / "baselines.json.damaged").read_text()) == broken
    off = msgspec.structs.replace(config, cloud_white=CloudWhiteSection(detector="off"))
    async with Running(off) as daemon:
        await until(lambda: daemon.state.pipeline.windows.closed >= 1)
        assert daemon.state.cloud_white is None
