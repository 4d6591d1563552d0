"""What is sent of VMs and the host: once, when it changes or goes, and again after a day or a clock that jumped."""

import asyncio
import json
import uuid
from types import SimpleNamespace

import pytest

from agent.config import AgentConfig, AgentSection
from agent.facts.changes import FactChanges
from agent.facts.sent_file import SentFile
from agent.failures import Failures
from agent.sampling.changes import Reading
from collector.base import CgroupCounters, NumaPlacement, Reason
from tests.unit.agent.agent_fakes import FakeClock, S, identity, joined
from whitepanda.v1 import agent_pb2

DAY = 86_400 * S


class Host:
    """A host's VMs, and what is sent of them."""

    def __init__(self, tmp_path) -> None:
        config = AgentConfig(AgentSection(state_dir=str(tmp_path)))
        self.clock = FakeClock()
        self.changes = FactChanges(config, self.clock, Failures(lambda: None, self.clock))
        self.vms: dict[str, SimpleNamespace] = {}

    def set(self, vm="u1", *, quota=None, nodes=(0,), cgroup=None, epoch="e1", **facts) -> None:
        now = joined(1, epoch=epoch)
        counters = CgroupCounters(1, None, None, None, None, quota_cores=quota)
        placement = NumaPlacement(dict.fromkeys(nodes, 1 << 30), {0: 2})
        self.vms[vm] = SimpleNamespace(
            identity=identity(vm, epoch, **facts),
            job="shop",
            owner="red",
            now=now._replace(
                cgroup=Reading("cgroup", 1, 1, counters) if cgroup is None else cgroup,
                numa=Reading("inventory", 1, 1, placement) if nodes else Reason.STALE,
            ),
        )

    def sent(self, after_s: float = 10) -> list:
        self.clock.advance(round(after_s * S))
        return self.changes.take(self.vms.values())


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def test_a_vms_facts_are_sent_once_and_when_they_change(host):
    host.set(quota=1.5, nodes=(0, 1), **{"nova:project": "red\x1b", "nova:flavor": "m1", "nova:image": "debian"})
    (facts,) = host.sent()
    assert (facts.vm, facts.epoch, facts.name, facts.job, facts.owner) == ("u1", "e1", "vm1", "shop", "red")
    assert (facts.project, facts.flavor, facts.image) == ("red\\x1b", "m1", "debian")
    assert (facts.vcpus, facts.cpu_quota_cores, list(facts.numa_nodes)) == (2, 1.5, [0, 1])
    assert facts.unix_ns == host.clock.unix
    assert not facts.HasField("memory_bytes")
    assert host.sent() == []
    host.set(quota=None, nodes=(0, 1), **{"nova:project": "red"})
    (facts,) = host.sent()
    assert not facts.HasField("cpu_quota_cores"), "no quota is absent, not 0"


def test_what_is_not_read_for_a_moment_is_no_change(host):
    host.set(quota=1.5)
    assert len(host.sent()) == 1
    host.set(cgroup=Reason.STALE, nodes=())
    assert host.sent() == []


def test_a_new_vm_waits_a_minute_for_its_quota(host):
    host.set(cgroup=Reason.VM_STARTING)
    assert host.sent() == host.sent() == []
    host.set(quota=2.0)
    assert [facts.cpu_quota_cores for facts in host.sent()] == [2.0]
    host.set("u2", cgroup=Reason.VM_STARTING)
    assert [len(host.sent(30)) for _ in range(3)] == [0, 0, 1]
    host.set("u3", cgroup=Reason.SOURCE_OFF)
    assert [facts.vm for facts in host.sent()] == ["u3"]


def test_a_vm_is_gone_after_a_minute_and_back_at_once(host):
    host.set()
    host.sent()
    vm = host.vms.pop("u1")
    assert [len(host.sent(30)) for _ in range(2)] == [0, 0]
    (facts,) = host.sent(30)
    assert (facts.vm, facts.gone) == ("u1", True)
    assert host.sent() == []
    host.vms["u1"] = vm
    (facts,) = host.sent()
    assert not facts.gone


def test_a_clock_that_was_set_is_sent_with_the_host_at_most_once_a_minute(host):
    host.changes._read = agent_pb2.HostFacts(cpus=8)
    (first,) = host.sent(60)
    assert (first.clock_set_unix_ns, first.clock_step_s) == (0, 0.0)
    clock = host.clock
    host.changes.clock_was_set(clock.mono, clock.unix, -900_000_000)
    assert host.sent() == []
    set_ns = clock.unix
    host.changes.clock_was_set(clock.mono, set_ns, -1_500_000_000)
    assert host.changes.is_host_new
    host.changes.clock_was_set(clock.mono + 1, set_ns + 1, 2_000_000_000)
    (facts,) = host.sent()
    assert (facts.clock_set_unix_ns, facts.clock_step_s, facts.unix_ns) == (set_ns, -1.5, clock.unix)
    assert not host.changes.is_host_new
    assert host.sent(60) == []
    host.changes.clock_was_set(clock.mono, clock.unix, 2_000_000_000)
    assert [facts.clock_step_s for facts in host.sent()] == [2.0]


def test_memory_that_moves_between_nodes_makes_at_most_a_version_an_hour(host):
    host.set(nodes=(0,))
    host.sent()
    for number in range(300):
        host.set(nodes=(0, 1) if number % 2 else (0,))
        assert host.sent() == []
    host.set(nodes=(0, 1))
    assert [list(facts.numa_nodes) for facts in host.sent(3600)] == [[0, 1]]


def test_all_are_sent_again_after_a_day_and_after_the_clock_jumped(host):
    host.set()
    host.changes._read = agent_pb2.HostFacts(cpus=8)
    assert len(host.sent()) == 2
    within_a_day = [facts for _ in range(86_400 // 300) for facts in host.sent(300)]
    assert sorted(type(facts).__name__ for facts in within_a_day) == ["HostFacts", "VmFacts"]
    for jump_s in (-7200, 7200):
        host.clock.unix += jump_s * S
        assert [facts.unix_ns for facts in host.sent()] == [host.clock.unix] * 2
    host.clock.unix += 30 * S
    assert host.sent() == []


def test_vms_are_sent_again_spread_over_the_day(host):
    vms = [str(uuid.uuid5(uuid.NAMESPACE_OID, str(number))) for number in range(240)]
    for vm in vms:
        host.set(vm)
    assert len(host.sent()) == 240
    hours = [[facts.vm for facts in host.sent(3600)] for _ in range(24)]
    assert sorted(vm for hour in hours for vm in hour) == sorted(vms)
    assert max(len(hour) for hour in hours) < 30


def test_all_are_sent_again_within_an_hour_of_a_new_stream_and_no_more_often(host):
    connections = 1
    host.changes.connections = lambda: connections
    for number in range(100):
        host.set(f"u{number}")
    host.changes._read = agent_pb2.HostFacts(cpus=8)
    host.sent()

    def in_an_hour(*, streams: int) -> list:
        nonlocal connections
        found = []
        for minute in range(60):
            if streams and minute % (60 // streams) == 0:
                connections += 1
            found.append(host.sent(60))
        return found

    in_an_hour(streams=0)  # after the first stream
    quiet = in_an_hour(streams=0)
    assert sum(map(len, quiet)) < 20, "only those whose time of the day it is"
    again = [*in_an_hour(streams=1), host.sent(60)]
    assert {getattr(facts, "vm", "") for some in again for facts in some} == {"", *host.vms}
    assert max(map(len, again)) < 20, "not all at once"
    assert sum(map(len, in_an_hour(streams=12))) <= 120


def test_a_host_without_vms_is_sent_again_after_a_new_stream(host):
    host.changes._read = agent_pb2.HostFacts(cpus=8)
    assert len(host.sent(61)) == 1
    assert not host.changes.is_host_new
    host.clock.advance(S)
    host.changes.connections = lambda: 1
    assert not host.changes.is_host_new
    host.clock.advance(3600 * S)
    assert host.changes.is_host_new
    assert len(host.sent()) == 1


def test_a_hosts_facts_have_the_manager_of_most_vms(host):
    host.changes._read = agent_pb2.HostFacts(cpus=8)
    assert not host.changes.is_host_new, "the VMs, which name it, are awaited"
    assert host.sent() == []
    for vm in ("u1", "u2"):
        host.set(vm)
    *_, facts = host.sent()
    assert (facts.cpus, facts.manager) == (8, "libvirt")
    host.changes._read = agent_pb2.HostFacts(cpus=16)
    assert [facts.cpus for facts in host.sent()] == [16]


def test_a_host_without_vms_is_sent_after_a_minute(host):
    host.changes._read = agent_pb2.HostFacts(cpus=8)
    host.clock.advance(60 * S)
    assert host.changes.is_host_new
    assert [facts.manager for facts in host.sent()] == [""]


async def test_vms_that_went_while_the_agent_was_away_are_reported(tmp_path, host):
    (tmp_path / "facts-sent.json").write_text(json.dumps(["u1", "u9"]))
    host.set("u1")
    await _once(host)
    sent = [facts for facts in host.sent() if isinstance(facts, agent_pb2.VmFacts)]
    assert [(facts.vm, facts.gone) for facts in sent] == [("u1", False)]
    last = [facts for facts in host.sent(60) if isinstance(facts, agent_pb2.VmFacts)]
    assert [(facts.vm, facts.gone) for facts in last] == [("u9", True)]
    assert list(host.changes._vms) == ["u1"]


async def _once(host) -> None:
    """Run the loop until it sleeps."""
    running = asyncio.create_task(host.changes.run())
    file = host.changes._file._path
    async with asyncio.timeout(20):
        while host.changes._read is None or json.loads(file.read_text()) != sorted(host.changes._vms):
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "[[[[", "\x00", '{"a": 1}'])
def test_a_damaged_list_is_no_list(tmp_path, text):
    (tmp_path / "facts-sent.json").write_text(text)
    assert SentFile(str(tmp_path)).load() == []


def test_the_list_is_written_when_it_changes(tmp_path):
    file = SentFile(str(tmp_path / "new"))
    file.save(["a"])
    path = tmp_path / "new/facts-sent.json"
    before = path.stat().st_ino
    file.save(["a"])
    assert path.stat().st_ino == before
    assert SentFile(str(tmp_path / "new")).load() == ["a"]
