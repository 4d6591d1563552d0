"""Versions of facts: by time, in any order of arrival, found by a part of a text."""

import contextlib

import pytest

from central.facts.store import FactStore
from central.incidents.store import IncidentStore
from central.validation.facts import FactRow, check_facts
from central.validation.rows import Limits, Sender
from whitepanda.v1 import agent_pb2

S = 10**9
VM = "57500000-0000-4000-8000-000000000001"


@pytest.fixture
def store(tmp_path):
    with contextlib.closing(IncidentStore("", tmp_path)) as database:
        yield FactStore(database)


def vm_row(at_s, host="node1", vm=VM, **facts):
    message = agent_pb2.VmFacts(unix_ns=at_s * S, vm=vm, **({"name": "shop-1", "job": "shop"} | facts))
    return FactRow(host, vm, at_s * S, message.SerializeToString(deterministic=True))


def host_row(at_s, host="node1", **facts):
    message = agent_pb2.HostFacts(unix_ns=at_s * S, **facts)
    return FactRow(host, "", at_s * S, message.SerializeToString(deterministic=True))


def test_a_version_holds_until_the_next_one_began(store):
    store.take([vm_row(100, vcpus=2), vm_row(200, vcpus=4), vm_row(300, vcpus=4, gone=True)])
    at = {second: store.vms_at(second * S) for second in (99, 100, 199, 200, 299, 300)}
    assert [len(at[second]) for second in at] == [0, 1, 1, 1, 1, 0]
    assert [at[second][0].vcpus for second in (100, 199, 200, 299)] == [2, 2, 4, 4]
    assert [(one.from_unix_ns // S, one.until_unix_ns // S) for one in store.history(VM)] == [(200, 300), (100, 200)]


def test_the_same_said_again_is_no_version(store):
    assert store.take([vm_row(100, vcpus=2), vm_row(86_500, vcpus=2), vm_row(100, vcpus=2)]) == 1
    assert store.take([vm_row(50, vcpus=2)]) == 0  # after an outage: it began earlier than was known
    assert [one.from_unix_ns // S for one in store.history(VM)] == [50]


def test_versions_in_any_order_are_the_same(store, tmp_path):
    rows = [vm_row(100, vcpus=2), vm_row(200, vcpus=4), vm_row(300, vcpus=2)]
    store.take(rows)
    (tmp_path / "other").mkdir()
    with contextlib.closing(IncidentStore("", tmp_path / "other")) as database:
        other = FactStore(database)
        other.take(rows[::-1])
        assert other.history(VM) == store.history(VM)


def test_a_vm_that_moves_is_on_both_hosts_in_turn(store):
    store.take([vm_row(100), vm_row(200, gone=True), vm_row(190, host="node2")])
    assert [one.host for one in store.vms_at(150 * S)] == ["node1"]
    assert [one.host for one in store.vms_at(250 * S)] == ["node2"]


def test_filters_and_pages(store):
    store.take([vm_row(1, vm=f"{VM[:-1]}{n}", project="Red" if n % 2 else "blue", host=f"h{n}") for n in range(6)])
    assert len(store.vms_at(2 * S, project="red")) == 3
    assert [one.host for one in store.vms_at(2 * S, host="h4")] == ["h4"]
    first = store.vms_at(2 * S, limit=4)
    rest = store.vms_at(2 * S, after=(first[-1].host, first[-1].vm), limit=4)
    assert [one.host for one in [*first, *rest]] == [f"h{n}" for n in range(6)]


def test_find_has_gone_ones_and_the_nearest_first(store):
    store.take(
        [
            vm_row(1, vm=f"{VM[:-1]}2", name="my-shop-12"),
            vm_row(1, vm=f"{VM[:-1]}3", name="shop-12"),
            vm_row(1, vm=f"{VM[:-1]}4", name="shop-1"),
            vm_row(2, vm=f"{VM[:-1]}4", name="shop-1", gone=True),
            vm_row(1, vm=f"{VM[:-1]}5", name="100%"),
        ]
    )
    assert [one.name for one in store.find("SHOP-1", 10)] == ["shop-1", "shop-12", "my-shop-12"]
    assert store.find("shop-1", 1)[0].until_unix_ns == 2 * S
    assert [one.name for one in store.find("0%", 10)] == ["100%"]
    assert store.find("%%%", 10) == []


def test_a_hosts_facts(store):
    caches = [agent_pb2.CacheDomain(first_cpu=0, cpus=8, size_bytes=1 << 25)]
    cards = [agent_pb2.NetworkCard(name="eth0", bits_per_s=10**10), agent_pb2.NetworkCard(name="eth1")]
    store.take(
        [host_row(1, cpus=8, caches=caches, network_cards=cards, labels=[agent_pb2.Label(name="rack", text="r1")])]
    )
    (host,) = store.hosts_at(2 * S)
    assert (host.cpus, host.memory_bytes, host.labels) == (8, None, {"rack": "r1"})
    assert host.nics == (("eth0", 10**10), ("eth1", None))
    assert store.vms_at(2 * S) == []


def test_what_was_not_said_for_long_is_deleted(store):
    store.take([vm_row(100, vcpus=1), vm_row(200, vcpus=2), vm_row(900, vcpus=2)])
    assert store.prune(500 * S) == 1
    assert [one.vcpus for one in store.history(VM)] == [2]


def test_bad_facts_cost_no_others():
    now = 1000 * S
    sender = Sender("node1", "cpu", False, Limits(), now)
    good = agent_pb2.VmFacts(vm=VM, unix_ns=now, vcpus=2)
    bad = [
        agent_pb2.VmFacts(unix_ns=now),
        agent_pb2.VmFacts(vm=VM, unix_ns=now, name="\x1b[31m"),
        agent_pb2.VmFacts(vm=VM, unix_ns=now, cpu_quota_cores=-1),
        agent_pb2.VmFacts(vm=VM, unix_ns=now, cpu_quota_cores=float("nan")),
        agent_pb2.VmFacts(vm=VM, unix_ns=now, memory_bytes=2**64 - 1),
    ]
    late = agent_pb2.VmFacts(vm=VM, unix_ns=now + 10**18)
    host = agent_pb2.HostFacts(unix_ns=now, labels=[agent_pb2.Label(name="a", text="\n")])
    rows, rejected = check_facts(agent_pb2.CpiBatch(vm_facts=[good, *bad, late], host_facts=host), sender)
    assert [row.vm for row in rows] == [VM]
    assert rejected == {"bad_facts": 6, "bad_facts_time": 1}
