"""The local API: what it answers, who may ask, and what it does with a socket that is already there."""

import asyncio
import dataclasses
import importlib.util
import math
import os
import socket
import stat
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from agent.api.server import LocalApi
from whitepanda.common.errors import ConfigError, UnavailableError
from whitepanda.v1 import agent_pb2, host_pb2, host_pb2_grpc

spec = importlib.util.spec_from_file_location("canned_agents", Path(__file__).parents[1] / "canned_agents.py")
canned = importlib.util.module_from_spec(spec)
spec.loader.exec_module(canned)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def short(tmp_path_factory):
    """A folder whose path fits into a socket's address."""
    return tmp_path_factory.mktemp("s")


@pytest.fixture
def states(short):
    return canned.states(short)


class Served:
    def __init__(self, state, path):
        self.api, self.path = LocalApi(state, path), path

    async def __aenter__(self):
        await self.api.start()
        self.channel = grpc.aio.insecure_channel(f"unix:{self.path}")
        self.stub = host_pb2_grpc.LocalHostStub(self.channel)
        return self

    async def __aexit__(self, *_):
        await self.channel.close()
        await self.api.stop()


async def test_status(short, states):
    async with Served(states["full"], short / "a.sock") as served:
        status = await served.stub.GetStatus(host_pb2.GetStatusRequest())
    assert (status.host, status.platform, status.agent_version) == ("node1", canned.PLATFORM, "0.1.0")
    assert (status.ticks, status.missed_ticks, status.coefficient_version) == (3600, 2, 7)
    assert [(s.name, s.state, s.failures) for s in status.sources] == [
        ("perf", "available", 0),
        ("libvirt", "stuck", 600),
    ]
    assert status.uplink.acknowledged_windows == 3590
    assert status.mn_cpi == pytest.approx((1.9 / 0.35 + 0.1 / 0.35) / 2)
    assert status.host_metrics[0].name == "host_cpu_idle_ratio"


async def test_vms_with_verdicts_and_unknown_values_as_nan_with_reason(short, states):
    async with Served(states["full"], short / "a.sock") as served:
        answer = await served.stub.ListVms(host_pb2.ListVmsRequest())
    assert (answer.host, answer.now_unix_ns, answer.triggered) == ("node1", canned.NOW, True)
    by_name = {vm.name: vm for vm in answer.vms}
    victim = by_name["instance-0000a1f3"]
    assert (victim.verdict, victim.decision.verdict) == ("victim", agent_pb2.BEHAVIOUR_VICTIM)
    assert list(victim.decision.found_by) == [agent_pb2.ANALYSIS_FLEET]
    assert (victim.decision.slow_down.ratio, victim.decision.slow_down.low) == pytest.approx((3.1 / 1.2, 3.1 / 1.9))
    assert [(s.name, s.inflicts) for s in victim.decision.suspects] == [("batch-0001", False)]
    held = answer.decision
    assert (held.victims, held.affected, held.inflicting, held.suspect.name) == (1, 0, 0, "batch-0001")
    assert {vm.decision.verdict for vm in answer.vms if vm is not victim} == {
        agent_pb2.BEHAVIOUR_STEADY,
        agent_pb2.BEHAVIOUR_UNKNOWN,
    }
    assert (victim.owner, victim.quota_cores) == ("shop", 2.5)
    assert victim.degradation == pytest.approx(3.1 / 1.2)
    assert math.isnan(by_name["new-1"].degradation)
    assert math.isnan(by_name["new-1"].quota_cores)
    assert math.isnan({m.name: m.value for m in by_name["new-1"].metrics}["cpi"])
    async with Served(states["no_pmu"], short / "b.sock") as served:
        answer = await served.stub.ListVms(host_pb2.ListVmsRequest())
    cpi = next(m for m in answer.vms[0].metrics if m.name == "cpi")
    assert (cpi.reason, cpi.source) == (agent_pb2.REASON_NO_PMU, "perf")


@pytest.mark.parametrize("asked", ["instance-0000a1f3", "uuid-instance-0000a1f3"])
async def test_explanation_by_name_and_by_uuid(short, states, asked):
    async with Served(states["full"], short / "a.sock") as served:
        why = await served.stub.ExplainVm(host_pb2.ExplainVmRequest(vm=asked))
    assert why.vm.name == "instance-0000a1f3"
    assert (why.statistics.job, why.statistics.samples, why.statistics.mean_cpi) == ("web", 1000, 1.2)
    assert why.n_cpi == pytest.approx(1.9 / 0.35)
    assert (why.victim_slots, why.triggered, why.coefficient_version) == (3, True, 7)
    assert why.coefficient_age_ns == 120 * canned.S
    assert [(s.name, s.reason) for s in why.suspects] == [
        ("batch-0001", agent_pb2.REASON_UNSPECIFIED),
        ("new-1", agent_pb2.REASON_NO_COEFFICIENTS),
    ]
    assert why.suspects[0].score == pytest.approx(0.5 * 3.96)
    assert math.isnan(why.suspects[1].score)
    assert len(why.history) == 3


async def test_the_statistics_that_n_cpi_is_reckoned_by_are_reported(short, tmp_path):
    robust = agent_pb2.JobStatistics(
        job="web",
        platform=canned.PLATFORM,
        samples=1000,
        mean_cpi=1.2,
        std_cpi=0.35,
        location_log_cpi=0.1,
        scale_log_cpi=0.2,
    )
    state = canned.State(canned.HOST, canned.FULL, canned.analysis(tmp_path, statistics=robust))
    async with Served(state, short / "a.sock") as served:
        why = await served.stub.ExplainVm(host_pb2.ExplainVmRequest(vm="instance-0000a1f3"))
    assert (why.statistics.location_log_cpi, why.statistics.scale_log_cpi) == (0.1, 0.2)
    assert why.n_cpi == 3.0  # (ln 3.1 - 0.1) / 0.2 = 5.16, cut


async def test_without_statistics_they_have_no_samples(short, states):
    async with Served(states["alone"], short / "a.sock") as served:
        why = await served.stub.ExplainVm(host_pb2.ExplainVmRequest(vm="new-1"))
    assert (why.statistics.samples, why.statistics.job) == (0, "brand-new")
    assert math.isnan(why.victim_threshold_cpi)


async def test_without_analysis_everything_measured_is_still_reported(short, states):
    async with Served(states["crippled"], short / "a.sock") as served:
        why = await served.stub.ExplainVm(host_pb2.ExplainVmRequest(vm="new-1"))
        listed = await served.stub.ListVms(host_pb2.ListVmsRequest())
        status = await served.stub.GetStatus(host_pb2.GetStatusRequest())
    assert why.vm.verdict == "unknown"
    assert why.vm.verdict_reason == "the analysis could not be started: see the agent's log"
    assert math.isnan(why.mn_cpi)
    assert len(listed.vms) == 5
    assert {vm.decision.verdict for vm in listed.vms} == {agent_pb2.BEHAVIOUR_UNKNOWN}
    assert math.isnan(status.mn_cpi)


async def test_before_the_first_decision_all_is_unknown_and_the_reason_says_so(short, states):
    state = states["suffering"]
    state.decisions = None
    async with Served(state, short / "a.sock") as served:
        listed = await served.stub.ListVms(host_pb2.ListVmsRequest())
        why = await served.stub.ExplainVm(host_pb2.ExplainVmRequest(vm="instance-0000a1f3"))
    assert not listed.HasField("decision")
    for vm in (*listed.vms, why.vm):
        assert (vm.decision.verdict, vm.decision.reason) == (agent_pb2.BEHAVIOUR_UNKNOWN, "the agent is starting")


async def test_a_list_names_five_suspects_and_counts_the_rest_and_an_explanation_has_all(short, tmp_path):
    names = [f"noisy-{n}" for n in range(9)]
    vms = [*canned.FULL, *(canned.canned_vm(name, "noisy", (), ls=False) for name in names)]
    finds = canned.suffering()
    victim = finds.verdict("uuid-instance-0000a1f3")
    culprits = tuple(f"uuid-{name}" for name in names)
    finds._verdicts["uuid-instance-0000a1f3"] = dataclasses.replace(victim, culprits=culprits)
    state = canned.State(canned.HOST, vms, canned.analysis(tmp_path), finds)
    async with Served(state, short / "a.sock") as served:
        listed = await served.stub.ListVms(host_pb2.ListVmsRequest())
        why = await served.stub.ExplainVm(host_pb2.ExplainVmRequest(vm="instance-0000a1f3"))
    held = next(vm.decision for vm in listed.vms if vm.name == "instance-0000a1f3")
    assert ([one.name for one in held.suspects], held.suspects_left_out) == (names[:5], 4)
    # Then who has a score, then of whom nothing is known: neither is counted beside those that the host itself found.
    assert [one.name for one in why.suspects] == [*names, "batch-0001", "new-1"]


@pytest.mark.parametrize(
    ("state", "asked", "code", "detail"),
    [
        (
            "full",
            "instance-0000a1f",
            grpc.StatusCode.NOT_FOUND,
            "no VM has the name or UUID 'instance-0000a1f': did you mean instance-0000a1f4, instance-0000a1f3,",
        ),
        ("full", "zzz", grpc.StatusCode.NOT_FOUND, "there are 5, such as batch-0001; `whitepanda vms` lists them"),
        ("empty", "zzz", grpc.StatusCode.NOT_FOUND, "there is none on this host now"),
        ("full", "", grpc.StatusCode.INVALID_ARGUMENT, "name a VM: its name or UUID"),
        ("full", "x" * 5000, grpc.StatusCode.NOT_FOUND, "'" + "x" * 80 + "'"),
    ],
)
async def test_unknown_vms_are_refused_with_near_names(short, states, state, asked, code, detail):
    async with Served(states[state], short / "a.sock") as served:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await served.stub.ExplainVm(host_pb2.ExplainVmRequest(vm=asked))
    assert error.value.code() is code
    assert detail in error.value.details()


async def test_oversized_questions_are_refused(short, states):
    async with Served(states["full"], short / "a.sock") as served:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await served.stub.ExplainVm(host_pb2.ExplainVmRequest(vm="x" * 100_000))
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await served.stub.GetStatus(host_pb2.GetStatusRequest())).host == "node1"


async def test_health_and_reflection(short, states):
    async with Served(states["full"], short / "a.sock") as served:
        health = health_pb2_grpc.HealthStub(served.channel)
        for service in ("", "whitepanda.v1.LocalHost"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(served.channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        listed = [answer async for answer in stub.ServerReflectionInfo(iter([request]))]
    names = {service.name for service in listed[0].list_services_response.service}
    assert names >= {"whitepanda.v1.LocalHost", "grpc.health.v1.Health"}


async def test_the_socket_is_for_user_and_group_and_its_folder_is_made(short, states):
    path = short / "made" / "agent.sock"
    async with Served(states["empty"], path):
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o660
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
    assert not path.exists()


async def test_the_socket_is_never_open_to_others_not_even_before_its_mode_is_set(short, states, monkeypatch):
    seen = []
    chmod = Path.chmod

    def watching(path, mode):
        if path.name == "agent.sock":
            seen.append(stat.S_IMODE(path.stat().st_mode) & 0o007)
        chmod(path, mode)

    monkeypatch.setattr(Path, "chmod", watching)
    async with Served(states["empty"], short / "agent.sock"):
        assert seen == [0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to a group that is not its own")
async def test_the_socket_belongs_to_the_folders_group(short, states):
    os.chown(short, -1, 12345)
    async with Served(states["empty"], short / "a.sock") as served:
        assert served.path.stat().st_gid == 12345


async def test_a_stale_socket_is_replaced(short, states):
    path = short / "a.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with Served(states["empty"], path) as served:
        assert (await served.stub.GetStatus(host_pb2.GetStatusRequest())).host == "node1"


async def test_a_live_socket_is_left_alone(short, states):
    path = short / "a.sock"
    async with Served(states["empty"], path) as first:
        with pytest.raises(UnavailableError, match=rf"another agent runs here: it answers at {path}"):
            await LocalApi(states["full"], path).start()
        assert (await first.stub.ListVms(host_pb2.ListVmsRequest())).host == "node1"


async def test_what_is_no_socket_is_left_alone(short, states):
    path = short / "a.sock"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="exists and is not a socket"):
        await LocalApi(states["empty"], path).start()
    assert path.read_text() == "precious"


async def test_impossible_places_are_one_clear_line(short, states):
    with pytest.raises(ConfigError, match=r"agent\.socket is longer than 107 bytes"):
        await LocalApi(states["empty"], short / ("x" * 120)).start()
    (short / "file").write_text("")
    with pytest.raises(UnavailableError, match=r"cannot make the folder of agent.socket .*: "):
        await LocalApi(states["empty"], short / "file" / "a.sock").start()


async def test_stopping_twice_or_unstarted_is_harmless(short, states):
    api = LocalApi(states["empty"], short / "a.sock")
    await api.stop()
    await api.start()
    await api.stop()
    await api.stop()
    await asyncio.sleep(0)


async def test_only_the_metrics_that_are_wanted_and_the_jobs_mean_cpi(short, states):
    async with Served(states["full"], short / "a.sock") as served:
        some = await served.stub.ListVms(host_pb2.ListVmsRequest(metrics=["cpi", "gips", "unheard-of"]))
        all_of_them = await served.stub.ListVms(host_pb2.ListVmsRequest())
    assert {m.name for vm in some.vms for m in vm.metrics} == {"cpi", "gips"}
    assert all(len(vm.metrics) == 9 for vm in all_of_them.vms)
    means = {vm.name: vm.job_mean_cpi for vm in some.vms}
    assert means["instance-0000a1f3"] == pytest.approx(1.2)
    assert math.isnan(means["batch-0001"])  # of a job that central has no statistics of
