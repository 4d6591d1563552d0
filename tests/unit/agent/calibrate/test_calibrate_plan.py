"""The campaign's plan, the order of its runs, and the RUNS file."""

import csv
import errno
import math
import re
from pathlib import Path

import numpy as np
import pytest

from agent.analysis.signals import INDEX, SIGNALS
from agent.calibrate.campaign import runs_of
from agent.calibrate.latency import Measured
from agent.calibrate.plan import load
from agent.calibrate.runs import COLUMNS, Row, RunsFile, cpu_level
from whitepanda.common.errors import ConfigError

GUIDE = Path(__file__).resolve().parents[4] / "docs" / "calibrate.md"
PLAN = """
repetitions = 3
cool_down_s = 10
[phases]
quiet_s = 60
stress_s = 50
after_s = 20
[served]
vm = "web-1"
requests = { address = "10.0.0.5:8080", send = "/search?q=1" }
loads = [
    { load_ratio = 0.2, requests_per_s = 40 },
    { load_ratio = 0.4, requests_per_s = 80 },
]
[[stressors]]
name = "stream-4"
vm = "noise-1"
run = ["ssh", "-tt", "noise-1", "stress-ng", "--stream", "4"]
[[stressors]]
name = "iperf"
vm = "noise-2"
start = ["ssh", "noise-2", "systemctl start iperf3-client"]
stop = ["ssh", "noise-2", "systemctl stop iperf3-client"]
[[stressors]]
name = "burn"
vm = "noise-1"
control = "10.0.0.6:9000"
on = "cpu 4"
off = "quiet"
[[scenarios]]
name = "none"
[[scenarios]]
name = "memory"
stressors = ["stream-4"]
[[scenarios]]
name = "memory-network"
stressors = ["stream-4", "iperf"]
"""


def plan_of(tmp_path, text=PLAN):
    file = tmp_path / "plan.toml"
    file.write_text(text)
    return load(file)


def test_a_plan_says_who_takes_part_and_how_long_it_takes(tmp_path):
    plan = plan_of(tmp_path)
    assert plan.vms == ("web-1", "noise-1", "noise-2")
    assert plan.runs == 3 * 2 * 3
    assert plan.seconds == 18 * (5 + 60 + 50 + 20 + 10) - 10
    assert plan.stressors[0].run == ("ssh", "-tt", "noise-1", "stress-ng", "--stream", "4")


def test_every_scenario_has_every_load_as_often_as_reported_and_each_run_has_a_name_of_its_own(tmp_path):
    plan = plan_of(tmp_path)
    runs = runs_of(plan)
    assert len(runs) == 18
    names = [(run.scenario.name, run.repetition) for run in runs]
    assert sorted(names) == [(name, n) for name in ("memory", "memory-network", "none") for n in range(1, 7)]
    loads = {name: run.load.load_ratio for name, run in zip(names, runs, strict=True)}
    assert [loads["none", n] for n in range(1, 7)] == [0.2, 0.2, 0.2, 0.4, 0.4, 0.4]
    assert runs == runs_of(plan)
    assert names != sorted(names)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("quiet_s = 60", "quiet_s = 0.1", "phases.quiet_s must be 0.5 to 86400 (value 0.1)"),
        ("repetitions = 3", "repetitions = 0", "repetitions must be 1 to 10000 (value 0)"),
        ('vm = "web-1"', 'vm = ""', "served.vm must not be empty"),
        ('vm = "web-1"', 'vm = "web-1"\ncommand = ["x"]', "served must have either requests"),
        ('vm = "web-1"', 'vm = "web-1"\nworkers = 0', "served.workers must be 1 to 4096 (value 0)"),
        ('vm = "web-1"', 'vm = "web-1"\nworkers = 4097', "served.workers must be 1 to 4096 (value 4097)"),
        ('vm = "web-1"', 'vm = "web-1"\nworkers = 1.5', "served.workers must be a whole number"),
        ("requests = {", "requests_ = {", "unknown key 'served.requests_'"),
        ("10.0.0.5:8080", "10.0.0.5", "served.requests.address must be host:port"),
        ("/search?q=1", "/a b", "served.requests.send must be a path"),
        ("/search?q=1", "/a\\r\\nHost: x", "served.requests.send must be one line"),
        ("load_ratio = 0.4", "load_ratio = 40", "served.loads[1].load_ratio must be > 0 and <= 1"),
        ("requests_per_s = 80", "requests_per_s = 0", "served.loads[1].requests_per_s must be > 0"),
        ('vm = "noise-2"', 'vm = "web-1"', "stressors[1].vm must not be the served VM (value 'web-1')"),
        ("requests_per_s = 80", "requests_per_s = 1e12", "must be > 0 and <= 100000 (value 1e+12)"),
        ("requests_per_s = 80", "requests_per_s = 8, arguments = ['-x']", "arguments is for served.command"),
        ('name = "iperf"', 'name = "burn"', "stressors[2].name 'burn' is not unique"),
        ('name = "none"', 'name = "memory"', "scenarios[1].name 'memory' is not unique"),
        ('name = "none"', 'name = " "', "scenarios[0].name must not be empty"),
        ('stressors = ["stream-4"]', 'stressors = ["stream"]', "scenarios[1].stressors names 'stream', which"),
        ('on = "cpu 4"', 'on = ""', "stressors[2].on and stressors[2].off must be a line each"),
        ("stop = [", "run = [", "stressors[1] must have one of run, start (with stop) and control"),
        ('stop = ["ssh"', "stop = []\n#", "stressors[1] has start (ssh noise-2"),
        ('control = "10.0.0.6:9000"', 'control = "there"', "stressors[2].control must be host:port"),
        ('run = ["ssh", "-tt", "noise-1", ', 'run = "ssh noise-1"\n#', "stressors[0].run must be a list"),
        ("10.0.0.5:8080", '10.0.0.5:8080", connections = 0, arrivals="even', "connections must be 1 to 1000"),
        ("10.0.0.5:8080", '10.0.0.5:8080", timeout_s = 0.0, arrivals="even', "timeout_s must be more than 0"),
    ],
)
def test_a_wrong_plan_is_refused_in_one_line_that_names_the_key(tmp_path, old, new, problem):
    assert old in PLAN
    with pytest.raises(ConfigError) as caught:
        plan_of(tmp_path, PLAN.replace(old, new, 1))
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "plan.toml"))


@pytest.mark.parametrize("workers", [1, 4096])
def test_how_many_workers_the_served_vm_has_may_be_reported(tmp_path, workers):
    assert plan_of(tmp_path).served.workers is None
    plan = plan_of(tmp_path, PLAN.replace('vm = "web-1"', f'vm = "web-1"\nworkers = {workers}', 1))
    assert plan.served.workers == workers


def test_without_scenarios_there_is_nothing_to_do(tmp_path):
    with pytest.raises(ConfigError, match="scenarios must have at least one"):
        plan_of(tmp_path, "scenarios = []\n" + PLAN[: PLAN.index("[[scenarios]]")])


@pytest.mark.parametrize(("ratio", "level"), [(0.0, 0.1), (0.14, 0.1), (0.16, 0.2), (0.44, 0.4), (0.9, 0.5)])
def test_the_cpu_level_is_the_nearest_of_the_five(ratio, level):
    assert cpu_level(ratio) == level
    assert math.isnan(cpu_level(math.nan))


def row(**changes):
    values = np.full(len(SIGNALS), math.nan)
    values[INDEX["guest_ratio"]] = 0.25
    values[INDEX["disk_bytes_per_s"]] = 0.0
    fields = {
        "scenario": "disk, 4",
        "repetition": 2,
        "phase": "stress",
        "at_s": 61.0004,
        "vm": "web-1",
        "load_ratio": 0.3,
        "cpu_level": 0.2,
        "measured": Measured(0.0123),
        "values": values,
    }
    return Row(**{**fields, **changes})


def test_a_row_has_empty_cells_for_what_is_not_known_and_zero_for_zero(tmp_path):
    file = RunsFile(tmp_path / "runs.csv")
    file.add([row(), row(phase="after", measured=Measured(math.nan, 0.1, 0.3, 40.0))])
    assert not (tmp_path / "runs.csv").exists()
    file.close()
    assert [path.name for path in tmp_path.iterdir()] == ["runs.csv"]
    with (tmp_path / "runs.csv").open(newline="") as stream:
        first, second = csv.DictReader(stream)
    assert tuple(first) == COLUMNS
    assert set(SIGNALS) < set(COLUMNS)
    assert {key: value for key, value in first.items() if value} == {
        "scenario": "disk, 4",
        "repetition": "2",
        "phase": "stress",
        "at_s": "61.000",
        "vm": "web-1",
        "load_ratio": "0.3",
        "cpu_level": "0.2",
        "p95_latency_s": "0.0123",
        "guest_ratio": "0.25",
        "disk_bytes_per_s": "0.0",
    }
    assert [second[name] for name in Measured._fields] == ["", "0.1", "0.3", "40.0"]
    assert file.rows == 2


def test_a_file_that_is_there_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        RunsFile(path)
    file = RunsFile(path, replace=True)
    file.add([row()])
    assert path.read_text() == "mine"
    assert file.leave() is True
    assert path.read_text() == "mine"
    assert len((tmp_path / "runs.csv.part").read_text().splitlines()) == 2


def test_without_a_finished_run_nothing_stays(tmp_path):
    file = RunsFile(tmp_path / "runs.csv")
    assert file.leave() is False
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_reported_at_once(tmp_path):
    with pytest.raises(OSError, match="No such file") as caught:
        RunsFile(tmp_path / "nowhere" / "runs.csv")
    assert caught.value.errno == errno.ENOENT


def test_the_plans_of_the_guide_are_plans(tmp_path):
    blocks = re.findall(r"```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    plan = plan_of(tmp_path, blocks[0])
    assert (plan.runs, plan.vms) == (45, ("web-1", "noise-1", "noise-2"))
    scenario = '[[scenarios]]\nname = "none"\n'
    assert plan_of(tmp_path, blocks[1] + scenario).served.loads[0].arguments == ("--qps", "5000")
