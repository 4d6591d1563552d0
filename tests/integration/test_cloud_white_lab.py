"""Two real VMs: one serves requests, one stresses when told. None has a PMU: guest time, waiting and I/O decide.

The p95 is truly measured, by the campaign's own client on the host's side of the network. With two cores for two VMs
under software emulation, vCPUs that wait for a CPU are the interference.
"""

from __future__ import annotations

import asyncio
import csv
import ctypes
import json
import statistics
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agent.analysis.detector import Behaviour, Detector, DetectorSettings
from agent.calibrate.campaign import Campaign
from agent.calibrate.plan import Load, Phases, Plan, Requests, Scenario, Served, Stressor
from agent.config import AgentConfig, AgentSection

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

SERVER, STRESSOR = 31, 32
REQUESTS_PER_S, WORK = 30, "/8000"  # about 40 % of the server's vCPU
QUIET_S, STRESS_S, AFTER_S = 45.0, 20.0, 35.0
CLONE_NEWNET = 0x40000000


def uuid_of(number):
    return f"57500000-0000-4000-8000-0000000000{number:02x}"


def address_of(number, port):
    return f"10.77.0.{100 + number}:{port}"


PLAN = Plan(
    served=Served(
        "wplab-server-31",
        loads=(Load(0.4, REQUESTS_PER_S),),
        requests=Requests(address_of(SERVER, 80), send=WORK),
        warm_up_s=3,
    ),
    scenarios=(Scenario("cpu", ("burn",)),),
    stressors=(
        Stressor("burn", "wplab-stressor-32", control=address_of(STRESSOR, 9000), on="cpu 2", off="quiet"),
    ),
    phases=Phases(QUIET_S, STRESS_S, AFTER_S),
    repetitions=1,
)


@pytest.fixture(scope="module")
def guests(lab):
    """The two VMs alone: what else the lab runs would be in the plan's way."""
    threads = [
        threading.Thread(target=lab.script, args=("domain.sh", "server", str(SERVER))),
        threading.Thread(target=lab.script, args=("domain.sh", "stressor", str(STRESSOR), "4")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    running = lab.virsh("list", "--name", "--state-running").split()
    others = [name for name in running if name not in PLAN.vms]
    for name in others:
        lab.virsh("suspend", name)
    try:
        yield lab
    finally:
        for name in PLAN.vms:
            lab.virsh("destroy", name)
        for name in others:
            lab.virsh("resume", name)


class InNetwork(threading.Thread):
    """Runs a coroutine in a thread of its own that is in the lab's network, as are the threads that it starts."""

    def __init__(self, work):
        super().__init__(daemon=True)
        self.work = work
        self.error = None

    def run(self):
        try:
            with Path("/run/netns/wplab").open() as namespace:
                assert ctypes.CDLL(None).setns(namespace.fileno(), CLONE_NEWNET) == 0
            asyncio.run(self.work)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error


class Watcher:
    """The agent's analysis of each tick, as it happens."""

    def __init__(self):
        self.detector = Detector(DetectorSettings())
        self.seen = []  # (moment, {uuid: VmState})

    def tick(self, tick):
        detection = self.detector.step(tick)
        self.seen.append((tick.at_s, {state.key.uuid: state for state in detection.states}))

    def first(self, condition, since_s):
        """Seconds from `since_s` to the first tick of which the condition holds."""
        return next(
            (at_s - since_s for at_s, states in self.seen if at_s >= since_s and condition(states)), None
        )

    def told(self):
        return "\n".join(
            f"{at_s:.1f} "
            + "; ".join(f"{s.key.uuid[-2:]} {s.behaviour}: {s.reason}" for s in states.values())
            for at_s, states in self.seen
        )


@pytest.mark.long
def test_the_stressed_phase_is_inflicting_and_the_served_vm_its_victim(guests):
    watcher, results = Watcher(), []
    config = AgentConfig(agent=AgentSection())
    campaign = Campaign(PLAN, config, on_tick=watcher.tick)
    thread = InNetwork(campaign.run(results.append))
    thread.start()
    thread.join(300)
    assert not thread.is_alive()
    if thread.error is not None:
        raise thread.error

    server, stressor = uuid_of(SERVER), uuid_of(STRESSOR)
    quiet, stress, after = campaign.phases
    (result,) = results
    print(result.p95_s)
    assert result.failures == 0
    assert result.p95_s["stress"] > 1.3 * result.p95_s["quiet"]

    def inflicted(states):
        return (
            states[stressor].behaviour is Behaviour.INFLICTING
            and states[server].behaviour is Behaviour.VICTIM
            and states[server].culprits == (stressor,)
        )

    def cleared(states):
        return {states[uuid].behaviour for uuid in (server, stressor)} == {Behaviour.STEADY}

    told_s = watcher.first(inflicted, stress.start_ns / 1e9)
    cleared_s = watcher.first(cleared, after.start_ns / 1e9)
    print(f"told after {told_s} s, cleared after {cleared_s} s")
    assert told_s is not None and told_s <= 10, watcher.told()
    assert cleared_s is not None and cleared_s <= 30, watcher.told()
    calm = [states for at_s, states in watcher.seen if quiet.start_ns / 1e9 <= at_s <= stress.start_ns / 1e9]
    assert not any(states[server].behaviour is Behaviour.VICTIM for states in calm), watcher.told()


@pytest.mark.long
def test_a_campaign_in_the_lab_makes_a_model_file(guests, tmp_path):
    """Calibrate, fit, predict: with real VMs, real latencies, and whatever counters this machine has."""
    plan = tmp_path / "plan.toml"
    plan.write_text(
        f"""
repetitions = 2
cool_down_s = 2
[phases]
quiet_s = 12
stress_s = 10
after_s = 3
[served]
vm = "wplab-server-31"
warm_up_s = 2
requests = {{ address = "{address_of(SERVER, 80)}", send = "{WORK}" }}
loads = [{{ load_ratio = 0.4, requests_per_s = {REQUESTS_PER_S} }}]
[[stressors]]
name = "burn"
vm = "wplab-stressor-32"
control = "{address_of(STRESSOR, 9000)}"
on = "cpu 2"
off = "quiet"
[[stressors]]
name = "write"
vm = "wplab-stressor-32"
control = "{address_of(STRESSOR, 9000)}"
on = "disk"
off = "quiet"
[[scenarios]]
name = "cpu"
stressors = ["burn"]
[[scenarios]]
name = "disk"
stressors = ["write"]
"""
    )
    whitepanda = Path(sys.executable).with_name("whitepanda")
    runs, model, predicted = tmp_path / "runs.csv", tmp_path / "model.json", tmp_path / "predicted.csv"

    def call(*arguments, **options):
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    told = json.loads(
        call("nsenter", "--net=/run/netns/wplab", whitepanda, "calibrate", plan, runs, "--json", cwd=tmp_path)
    )
    assert len(told["runs"]) == 4
    with runs.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == told["rows"] >= 4 * 18

    def median(phase, name, scenario):
        found = [row[name] for row in rows if (row["phase"], row["scenario"]) == (phase, scenario)]
        return statistics.median(float(value) for value in found if value)

    assert median("stress", "p95_latency_s", "cpu") > 1.2 * median("quiet", "p95_latency_s", "cpu")
    assert median("stress", "run_queue_wait_ratio", "cpu") > 3 * median(
        "quiet", "run_queue_wait_ratio", "cpu"
    )
    assert median("stress", "others_disk_bytes_per_s", "disk") > 1e6
    assert median("quiet", "others_disk_bytes_per_s", "disk") < 1e5

    features = "guest_ratio,run_queue_wait_ratio,host_cpu_idle_ratio"
    call(
        whitepanda,
        "degradation",
        "fit",
        runs,
        *("--target", "p95_latency_s"),
        *("--baseline-where", "phase = 'quiet'"),
        *("--group-by", "scenario,repetition,vm"),
        *("--features", features),
        *("--out", model),
    )
    call(whitepanda, "degradation", "predict", runs, "--model", model, "--out", predicted)
    assert json.loads(model.read_text())["target"] == "p95_latency_s"
    with predicted.open(newline="") as stream:
        assert len(list(csv.DictReader(stream))) == len(rows)
