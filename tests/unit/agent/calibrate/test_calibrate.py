"""`whitepanda calibrate` from the plan to the RUNS file, on a simulated host with a real small server."""

import asyncio
import csv
import json
import os
import signal
import sys
import threading
import time

import pytest
import typer

from agent.analysis.signals import IDLE, INDEX
from agent.calibrate import sampling
from agent.cli import calibrate as module
from agent.cli.calibrate import calibrate
from agent.config import load as load_config
from whitepanda.common.errors import InputError, UnavailableError

SCENARIO = """
seed = 5
[host]
cpus = 16
step_s = 0.1
[[vms]]
name = "web-1"
job = "web"
vcpus = 4
load = { cores = 0.8 }
[[vms]]
name = "noise-1"
job = "noise"
vcpus = 8
load = { cores = 1.0 }
"""
OTHER = """
[[vms]]
name = "other-1"
job = "other"
"""
SLOW_S = 0.25  # what an answer takes while the server is disturbed


class Server(threading.Thread):
    """Answers lines, and slowly while it is disturbed: control lines on the same port."""

    def __init__(self):
        super().__init__(daemon=True)
        self.port = 0
        self.disturbed = False
        self.reported = []
        self.ready = threading.Event()
        self.answer_control = b"ok\n"

    def run(self):
        asyncio.run(self.work())

    async def work(self):
        self.loop, self.over = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self.ready.set()
        async with server:
            await self.over.wait()

    async def serve(self, reader, writer):
        try:
            while line := await reader.readline():
                if line == b"ask\n":
                    await asyncio.sleep(SLOW_S if self.disturbed else 0.001)
                    writer.write(b"answer\n")
                else:
                    self.reported.append((line.decode().strip(), time.monotonic()))
                    self.disturbed = line == b"on\n"
                    writer.write(self.answer_control)
        except ConnectionError:
            pass
        finally:
            writer.close()


@pytest.fixture
def server():
    server = Server()
    server.start()
    assert server.ready.wait(10)
    yield server
    server.loop.call_soon_threadsafe(server.over.set)
    server.join(10)


@pytest.fixture
def host(tmp_path):
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    file = tmp_path / "agent.toml"
    file.write_text(
        f"[agent]\ntick_s = 0.1\nwindow_s = 0.5\nstate_dir = '{tmp_path}'\nsocket = '{tmp_path}/a.sock'\n"
        f"[sources.simulated]\nmode = 'required'\nscenario = '{tmp_path}/scenario.toml'\n"
    )
    return file


def make_plan(tmp_path, server, *, repetitions=1, stressor="", quiet_s=0.5, long=False, client=""):
    file = tmp_path / "plan.toml"
    requests = f'requests = {{ address = "127.0.0.1:{server.port}", protocol = "line", send = "ask" }}'
    control = f'control = "127.0.0.1:{server.port}"\non = "on"\noff = "off"'
    file.write_text(
        f"repetitions = {repetitions}\ncool_down_s = 0.1\n"
        f"[phases]\n{'quiet_s = 1.0' if long else f'quiet_s = {quiet_s}'}\n"
        f"stress_s = {1.0 if long else 0.5}\nafter_s = {1.0 if long else 0.3}\n"
        f'[served]\nvm = "web-1"\nwarm_up_s = 0.3\n{client or requests}\n'
        "loads = [{ load_ratio = 0.3, requests_per_s = 100 }]\n"
        f'[[stressors]]\nname = "noise"\nvm = "noise-1"\n{stressor or control}\n'
        '[[scenarios]]\nname = "noisy"\nstressors = ["noise"]\n'
    )
    return file


def rows_of(file):
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def numbers(rows, phase, name):
    return [float(row[name]) for row in rows if row["phase"] == phase and row[name]]


@pytest.mark.long
def test_a_campaign_makes_a_runs_file(tmp_path, host, server, capsys):
    runs = tmp_path / "runs.csv"
    calibrate(make_plan(tmp_path, server, repetitions=2, long=True), runs, config=host, json=True)
    summary = json.loads(capsys.readouterr().out)
    rows = rows_of(runs)
    assert summary["rows"] == len(rows)
    assert [(run["scenario"], run["failures"]) for run in summary["runs"]] == [("noisy", 0), ("noisy", 0)]
    assert {(row["repetition"], row["phase"]) for row in rows} == {
        (n, phase) for n in "12" for phase in ("quiet", "stress", "after")
    }
    assert {(row["scenario"], row["vm"], row["load_ratio"]) for row in rows} == {("noisy", "web-1", "0.3")}
    # 0.8 of 4 vCPUs are busy: of Cloud White's levels 0.2 is the nearest.
    assert {row["cpu_level"] for row in rows} == {"0.2"}
    for run in summary["runs"]:
        assert run["p95_latency_s"]["stress"] > SLOW_S
        assert set(run["p95_latency_s"]) == {"quiet", "stress", "after"}
    # Of quiet seconds the fastest: whatever else this machine runs makes some slow.
    assert min(numbers(rows, "stress", "p50_latency_s")) > SLOW_S > min(numbers(rows, "quiet", "p50_latency_s"))
    assert min(numbers(rows, "after", "p50_latency_s")) < SLOW_S
    assert all(0.1 < value < 0.3 for value in numbers(rows, "quiet", "guest_ratio"))
    assert all(0.5 < value < 1.5 for value in numbers(rows, "quiet", "others_cpu_usage_cores"))
    assert len(numbers(rows, "quiet", "ipc")) >= 5
    assert {row["l2_mpki"] for row in rows} != {"0.0"}
    assert [line for line, _ in server.reported] == ["on", "off"] * 2
    for repetition in "12":
        at_s = [float(row["at_s"]) for row in rows if row["repetition"] == repetition]
        assert at_s == sorted(set(at_s))
        assert 0 < at_s[0] < 1
    assert not (tmp_path / "runs.csv.part").exists()


@pytest.mark.long
def test_no_row_is_of_two_phases(tmp_path, host, server):
    """A second is of a phase only if all of it is: with the stress's first one half quiet, latencies would mix."""
    calibrate(make_plan(tmp_path, server, long=True), tmp_path / "runs.csv", config=host)
    rows = rows_of(tmp_path / "runs.csv")
    on, off = (at for _, at in server.reported)
    stress = [row for row in rows if row["phase"] == "stress"]
    spans = [float(row["at_s"]) for row in stress]
    assert len(stress) >= 6
    assert max(spans) - min(spans) + 0.1 <= off - on
    assert max(numbers(rows, "quiet", "p99_latency_s")) < SLOW_S < min(numbers(rows, "stress", "p99_latency_s"))


def test_a_client_of_ones_own_can_measure(tmp_path, host, server):
    script = (
        "import time, json\\nwhile True:\\n"
        ' print(json.dumps({\\"p95_latency_s\\": 0.007}), flush=True)\\n time.sleep(0.1)'
    )
    client = f'command = ["{sys.executable}", "-c", "{script}"]'
    calibrate(make_plan(tmp_path, server, client=client), tmp_path / "runs.csv", config=host)
    rows = rows_of(tmp_path / "runs.csv")
    assert {row["p95_latency_s"] for row in rows} == {"0.007"}
    assert {row["p50_latency_s"] for row in rows} == {""}


def test_it_does_not_start_beside_vms_that_the_plan_does_not_name(tmp_path, host, server):
    (tmp_path / "scenario.toml").write_text(SCENARIO + OTHER)
    plan, runs = make_plan(tmp_path, server), tmp_path / "runs.csv"
    with pytest.raises(UnavailableError) as caught:
        calibrate(plan, runs, config=host)
    assert str(caught.value) == (
        "VMs outside the plan run here: other-1; they would be disturbed, and would disturb the "
        f"measurement: stop or move them, or give --beside-others; {runs} was not written"
    )
    assert server.reported == []
    assert not list(tmp_path.glob("runs*"))
    calibrate(plan, runs, config=host, beside_others=True)
    assert len(rows_of(runs)) >= 5


def test_a_vm_that_does_not_run_is_reported(tmp_path, host, server):
    (tmp_path / "scenario.toml").write_text(SCENARIO.replace("noise-1", "noise-2"))
    with pytest.raises(UnavailableError, match="'noise-1' of the plan does not run here; running: noise-2, web-1"):
        calibrate(make_plan(tmp_path, server), tmp_path / "runs.csv", config=host)


def test_a_vm_that_starts_again_ends_the_campaign(tmp_path, host, server):
    (tmp_path / "scenario.toml").write_text(
        SCENARIO.replace('name = "noise-1"', 'name = "noise-1"\nrestarts_s = [1.5]\nrestart_gap_s = 0.1')
    )
    with pytest.raises(UnavailableError, match=r"VM 'noise-1' (was restarted|of the plan does not run)"):
        calibrate(make_plan(tmp_path, server, quiet_s=5.0), tmp_path / "runs.csv", config=host)


def test_check_starts_nothing(tmp_path, host, server, capsys):
    runs = tmp_path / "runs.csv"
    calibrate(make_plan(tmp_path, server), runs, config=host, check=True, json=True)
    reported = {"runs": 1, "seconds": 1.6, "vms": ["web-1", "noise-1"], "problems": []}
    assert json.loads(capsys.readouterr().out) == reported
    assert server.reported == []
    assert not runs.exists()


def test_a_server_that_does_not_answer_ends_it_before_anyone_is_disturbed(tmp_path, host, server):
    plan = make_plan(tmp_path, server)
    plan.write_text(plan.read_text().replace(f"127.0.0.1:{server.port}", "127.0.0.1:1", 1))
    with pytest.raises(UnavailableError, match=r"no answer from .* 127.0.0.1:1 in the quiet phase: Connection refused"):
        calibrate(plan, tmp_path / "runs.csv", config=host)
    assert server.reported == []


def test_a_stressor_that_ends_early_ends_the_campaign(tmp_path, host, server):
    with pytest.raises(UnavailableError, match=r"stressor 'noise' ended before its phase did: sleep 0\.2 ended"):
        calibrate(make_plan(tmp_path, server, stressor='run = ["sleep", "0.2"]'), tmp_path / "runs.csv", config=host)


def test_a_stressor_that_cannot_be_started_is_stopped_all_the_same(tmp_path, host, server):
    server.answer_control = b"error\n"
    runs = tmp_path / "runs.csv"
    with pytest.raises(UnavailableError, match=r"stop what may still run there by hand; .* was not written") as caught:
        calibrate(make_plan(tmp_path, server), runs, config=host)
    assert "\n" not in str(caught.value)
    assert [line for line, _ in server.reported] == ["on", "off"]
    assert not list(tmp_path.glob("runs*"))


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_the_stressors_and_keeps_the_finished_runs(tmp_path, host, server, capsys, number):
    def interrupt():
        while len(server.reported) < 3:  # on, off, on: the second run is being disturbed
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    runs = tmp_path / "runs.csv"
    with pytest.raises(typer.Exit) as caught:
        calibrate(make_plan(tmp_path, server, repetitions=3, long=True), runs, config=host)
    thread.join()
    assert caught.value.exit_code == 130
    assert [line for line, _ in server.reported] == ["on", "off", "on", "off"]
    assert not runs.exists()
    rows = rows_of(tmp_path / "runs.csv.part")
    assert len({row["repetition"] for row in rows}) == 1  # the finished one
    assert {row["phase"] for row in rows} == {"quiet", "stress", "after"}
    assert "the finished runs are in" in capsys.readouterr().err.replace("\n", " ")


def test_ctrl_c_in_the_first_run_leaves_no_file(tmp_path, host, server):
    def interrupt():
        while not server.reported:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(typer.Exit):
        calibrate(make_plan(tmp_path, server), tmp_path / "runs.csv", config=host)
    assert [line for line, _ in server.reported] == ["on", "off"]
    assert not list(tmp_path.glob("runs*"))


def test_a_full_disk_is_reported(tmp_path, host, server, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.RunsFile, "add", full)
    with pytest.raises(UnavailableError, match=r"runs.csv: cannot write: No space left on device$"):
        calibrate(make_plan(tmp_path, server), tmp_path / "runs.csv", config=host)
    assert [line for line, _ in server.reported] == ["on", "off"]


@pytest.mark.parametrize(
    ("name", "error", "problem"),
    [
        ("there.csv", InputError, "exists already"),
        ("runs.parquet", InputError, "calibrate writes CSV"),
        ("nowhere/runs.csv", UnavailableError, "cannot write: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_reported_at_once(tmp_path, host, server, name, error, problem):
    (tmp_path / "there.csv").write_text("mine")
    with pytest.raises(error, match=problem):
        calibrate(make_plan(tmp_path, server), tmp_path / name, config=host)
    assert (tmp_path / "there.csv").read_text() == "mine"


def test_what_the_workers_have_left_is_the_plans_word_and_of_the_served_vm_alone(host):
    """Two workers on each of 4 and 8 vCPUs by the job rules; one on the served VM by the plan."""
    with host.open("a") as file:
        file.write('[[jobs]]\npattern = "(web|noise)"\nfact = "job"\njob = "x"\nworkers = 2\n')

    def reported(workers):
        ticks = []
        sampler = sampling.Sampler(load_config(host), ("web-1", "noise-1"), on_tick=ticks.append, workers=workers)

        async def sample():
            await sampler.open()
            try:
                await asyncio.wait_for(sampler.run(), 0.5)
            except TimeoutError:
                await sampler.close()

        asyncio.run(sample())
        tick, second = ticks[-1], sampler.seconds[-1]
        guest, left = tick.values[:, INDEX["guest_ratio"]], tick.values[:, INDEX[IDLE]]
        busier = {key.vcpus: (1 - idle) / use for key, use, idle in zip(tick.vms, guest, left, strict=True)}
        own = second.values
        busier["served"] = (1 - own[INDEX[IDLE]]) / own[INDEX["guest_ratio"]]
        return busier

    assert reported(None) == pytest.approx({4: 2.0, 8: 4.0, "served": 2.0})
    assert reported(1) == pytest.approx({4: 4.0, 8: 4.0, "served": 4.0})


def test_the_disks_are_read_each_tick_whatever_the_configuration_says(host):
    """At the default of every 10 s a row would have the disk's rate of other seconds, of other phases."""
    config = sampling._with_quick_disks(load_config(host))
    assert config.sources.libvirt.disk_poll_s == config.sources.qemu.disk_poll_s == 0.1
