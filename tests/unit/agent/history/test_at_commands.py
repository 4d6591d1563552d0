"""`vms --at` and `explain --at` of an agent that is stopped: from its files, with the same code as live."""

import json
import sys
import time
from datetime import datetime

import pytest
from typer.testing import CliRunner

from agent.config import HistorySection
from agent.history import frames
from agent.history.writer import TICKS, HistoryWriter
from agent.sampling.metric_table import HOST_METRICS, VM_METRICS
from collector.base import Reason
from whitepanda.common import cli
from whitepanda.v1 import agent_pb2, host_pb2

S = 10**9
NOW = time.time_ns() // S * S
BEGAN = NOW - 2500 * S
STOPPED = NOW - 1800 * S


def tick(second):
    """Web suffers from scan; its CPU is the second."""
    status = host_pb2.HostStatus(host="node1", host_metrics=[{"name": metric.name} for metric in HOST_METRICS])
    vms = []
    for name, verdict in (("web", agent_pb2.BEHAVIOUR_VICTIM), ("scan", agent_pb2.BEHAVIOUR_INFLICTING)):
        vm = host_pb2.VmSummary(uuid=f"u-{name}", name=name, job=f"job-{name}", vcpus=2, state="running")
        vm.metrics.extend(host_pb2.Metric(name=metric.name, source="perf") for metric in VM_METRICS)
        vm.decision.verdict = verdict
        vm.decision.reason = "IPC 0.4 instead of 1.0"
        if name == "web":
            vm.decision.slow_down.ratio = 9.0
            vm.decision.found_by.append(agent_pb2.ANALYSIS_HOST)
            vm.decision.suspects.add(uuid="u-scan", name="scan", inflicts=True)
        vms.append(vm.SerializeToString())
    rates = [float(second + 1), *[Reason.NO_PMU] * (len(VM_METRICS) - 1)]
    return frames.TickFrame(
        frames.pack([(*rates, 1.5, 1.3, 1.7), (*rates, *[float("nan")] * 3)]),
        frames.pack([[0.5] * len(HOST_METRICS)]),
        ["u-web", "u-scan"],
        vms,
        host_pb2.HostDecision(victims=1, inflicting=1).SerializeToString(),
        status=status.SerializeToString(),
    )


@pytest.fixture
def stopped(tmp_path):
    """A host whose agent was stopped half an hour ago: ticks of its last minute, and of one ten minutes before."""
    writer = HistoryWriter(tmp_path / "state" / "history", HistorySection(), 0)
    writer.start(BEGAN)
    for begin in (BEGAN, STOPPED - 60 * S):
        for second in range(60):
            at = begin + second * S
            writer.put(TICKS, at, at - BEGAN, lambda second=second: frames.encode(tick(second)), is_key=second == 0)
            while writer._waiting:
                time.sleep(0.0005)
    writer.stop()
    assert writer.status().lost_frames == 0
    config = tmp_path / "agent.toml"
    config.write_text(f'[agent]\nstate_dir = "{tmp_path}/state"\nsocket = "{tmp_path}/a.sock"\n')
    return config


@pytest.fixture
def run(monkeypatch, stopped):
    def _run(*arguments):
        arguments = (*arguments, "--config", str(stopped))
        monkeypatch.setenv("COLUMNS", "120")
        monkeypatch.setattr(sys, "argv", ["whitepanda", *arguments])
        monkeypatch.setattr(cli.errors, "_width", 300)
        result = CliRunner().invoke(cli.build(), arguments)
        code, err = result.exit_code, result.stderr
        if result.exception is not None and hasattr(result.exception, "problems"):
            code, err = result.exception.exit_code, str(result.exception)
        return code, result.stdout, err

    return _run


def local(unix_ns):
    return f"{datetime.fromtimestamp(unix_ns / 1e9).astimezone():%Y-%m-%dT%H:%M:%S}"


def shown(unix_ns):
    return local(unix_ns).replace("T", " ")


def test_vms_show_that_moment(run):
    at = STOPPED - 30 * S
    code, out, _ = run("vms", "--at", local(at))
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == f"node1 at {shown(at)} (tick of 1 s)"
    assert [line.split()[0] for line in lines[2:4]] == ["web", "scan"]
    assert [word for word in ("victim", "1.50x", "scan") if word not in lines[2]] == [], lines
    assert "GIPS, CPI, RUNQ%, DISK, NET: no_pmu" in out


def test_programs_get_the_moment(run):
    at = STOPPED - 30 * S
    _, out, _ = run("vms", "--at", local(at), "--json")
    answer = json.loads(out)
    assert answer["at"] == {"unix_ns": at, "span_s": 1.0, "is_window": False, "clock_stepped": False}
    (web,) = [vm for vm in answer["vms"] if vm["name"] == "web"]
    assert web["metrics"]["cpu_usage_cores"]["value"] == 31.0
    assert (answer["host"], answer["victims"]) == ("node1", 1)


def test_explain_shows_that_moment(run):
    code, out, _ = run("explain", "web", "--at", local(STOPPED - 30 * S))
    assert code == 0
    assert f"node1 at {shown(STOPPED - 30 * S)} (tick of 1 s)" in out
    assert "victim: IPC 0.4 instead of 1.0" in out
    assert "first suspect scan" in out
    code, _, err = run("explain", "wib", "--at", local(STOPPED - 30 * S))
    assert (code, err) == (3, "no VM had the name or UUID 'wib' then: did you mean web, u-web?")


def test_what_is_not_kept_is_one_line(run):
    code, _, err = run("vms", "--at", local(BEGAN - 600 * S))
    assert (code, err) == (
        3,
        f"--at: nothing is kept of {shown(BEGAN - 600 * S)}; the history begins at {shown(BEGAN)}",
    )
    code, _, err = run("vms", "--at", local(BEGAN + 300 * S))
    gap = f"nothing is kept from {shown(BEGAN + 59 * S)} to {shown(STOPPED - 60 * S)}, the agent did not run then"
    assert (code, err) == (3, f"--at: nothing is kept of {shown(BEGAN + 300 * S)}: {gap}")
    code, _, err = run("vms", "--at", "-5m")
    assert code == 3
    assert f"nothing is kept from {shown(STOPPED - S)} on, the agent did not run then" in err
    assert run("vms", "--at", "noon")[0] == 3


def test_without_files_it_says_how(run, stopped):
    stopped.write_text(stopped.read_text().replace("/state", "/elsewhere"))
    code, _, err = run("vms", "--at", "-5m")
    assert code == 4
    assert "no agent answers at" in err
    assert "or ask as root, who can read" in err


def test_a_damaged_file_is_a_warning_and_the_rest_is_shown(run, stopped):
    first = min((stopped.parent / "state" / "history" / TICKS).iterdir())
    data = bytearray(first.read_bytes())
    data[-10] ^= 1
    first.write_bytes(data)
    code, out, err = run("vms", "--at", local(BEGAN + 59 * S))
    assert (code, err.startswith(f"warning: {first}: damaged at byte")) == (0, True)
    assert out.startswith(f"node1 at {shown(BEGAN + 58 * S)}")
    code, out, _ = run("vms", "--at", local(STOPPED - 30 * S))
    assert (code, "web" in out) == (0, True)
