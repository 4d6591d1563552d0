"""Versions of facts: by time, in any order of arrival, found by a part of a text."""

import asyncio
import contextlib

import pytest

from central.config import IncidentsSection
from central.facts.recorder import FactRecorder
from central.facts.store import FactStore
from central.incidents.store import IncidentStore, StoreError
from central.journal.tables import Roll, Submission
from central.journal.writer import Journal
from central.validation.facts import FactRow, check_facts
from central.validation.reader import read_batch
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


def test_a_second_change_with_the_same_time_is_kept_and_said_again_is_no_third(store):
    changes = [vm_row(100, vcpus=2), vm_row(100, vcpus=4), vm_row(100, vcpus=8), vm_row(200, vcpus=8)]
    assert store.take(changes) == 3
    assert store.take(changes) == 0
    assert [(one.vcpus, one.from_unix_ns - 100 * S) for one in store.history(VM)] == [(8, 2), (4, 1), (2, 0)]
    assert [one.vcpus for one in store.vms_at(101 * S)] == [8]


def test_what_is_said_again_and_changes_with_the_same_time_is_the_change(store):
    rows = [vm_row(100, vcpus=2), vm_row(200, vcpus=2), vm_row(200, vcpus=4)]
    assert store.take(rows) == 2
    assert store.take(rows) == 0
    assert [one.vcpus for one in store.vms_at(201 * S)] == [4]


def test_versions_in_any_order_are_the_same(store, tmp_path):
    rows = [vm_row(100, vcpus=2), vm_row(200, vcpus=4), vm_row(300, vcpus=2)]
    store.take(rows)
    (tmp_path / "other").mkdir()
    with contextlib.closing(IncidentStore("", tmp_path / "other")) as database:
        other = FactStore(database)
        other.take(rows[::-1])
        assert other.history(VM) == store.history(VM)


def test_what_was_so_again_after_a_late_change_is_still_so(store):
    """Said at 100 and 120; then, late, that it was gone, or smaller, at 110: at 120 it was as before."""
    rows = [vm_row(100, vcpus=2), vm_row(120, vcpus=2), vm_row(110, vcpus=4, gone=True), vm_row(130, vcpus=2)]
    for order in ([0, 1, 2, 3], [0, 3, 2, 1]):
        store.take([rows[place] for place in order])
        assert [len(store.vms_at(second * S)) for second in (105, 111, 140)] == [1, 0, 1]
        store.prune(10**6 * S)
    store.take([vm_row(100, vcpus=2), vm_row(200, vcpus=2), vm_row(300, vcpus=4), vm_row(150, vcpus=4)])
    assert [store.vms_at(second * S)[0].vcpus for second in (120, 160, 210, 310)] == [2, 4, 2, 4]


def test_a_vm_is_found_by_its_name_however_many_have_it_as_project(store):
    store.take([vm_row(100, vm=f"vm-{number}", name=f"n{number}", project="shop-1") for number in range(30)])
    store.take([vm_row(50)])
    assert store.named("SHOP-1", 20) == [VM]
    assert [one.vm for one in store.find("shop", 1)] == [VM]
    assert store.find("shop", 20, project="other") == []
    assert len(store.find("n1", 20, project="Shop-1")) == 11


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


def test_find_has_jobs_projects_and_hosts_below_all_names(store):
    about = {"a": ("x", "mail", ""), "b": ("y", "web", "Mail"), "c": ("z", "web", ""), "d": ("my-mail", "web", "")}
    store.take(
        [
            vm_row(at, vm=vm, name=name, job=job, project=project, host="MAIL-9" if vm == "c" else "node1")
            for at, (vm, (name, job, project)) in enumerate(about.items(), 1)
        ]
    )
    assert [one.vm for one in store.find("mail", 10)] == ["d", "c", "b", "a"], "then the newest"
    assert [one.vm for one in store.find("mail", 10, project="mail")] == ["b"]
    assert store.find("mail-%", 10) == []


def test_jobs_and_projects_are_found_though_their_vms_are_gone(store):
    store.take([vm_row(at, vm=f"v{at}", job=f"Mail-{at % 3}", project="Post", gone=at > 6) for at in range(1, 10)])
    assert store.find_groups("MAIL", 10) == [("job", "Mail-0"), ("job", "Mail-1"), ("job", "Mail-2")]
    assert store.find_groups("mail", 2) == [("job", "Mail-0"), ("job", "Mail-1")]
    assert store.find_groups("mail-2", 1) == [("job", "Mail-2")]
    assert store.find_groups("post", 10) == [("project", "Post")]
    assert store.find_groups("mail", 10, project="other") == []
    assert store.find_groups("%", 10) == []


def test_a_hosts_facts(store):
    caches = [agent_pb2.CacheDomain(first_cpu=0, cpus=8, size_bytes=1 << 25)]
    cards = [agent_pb2.NetworkCard(name="eth0", bits_per_s=10**10), agent_pb2.NetworkCard(name="eth1")]
    store.take([host_row(1, cpus=8, caches=caches, network_cards=cards, labels={"rack": "r1"})])
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
        agent_pb2.VmFacts(vm=VM, unix_ns=now, limits=["cap-cpu\n"]),
        agent_pb2.VmFacts(vm=VM, unix_ns=now, limits=["cap-cpu 2 cores"] * 17),
    ]
    host = agent_pb2.HostFacts(unix_ns=now, labels={"a": "\n"})
    rows, rejected = check_facts(agent_pb2.CpiBatch(vm_facts=[good, *bad], host_facts=host), sender)
    assert [row.vm for row in rows] == [VM]
    assert rejected == {"bad_facts": 8}


@pytest.mark.parametrize("off_s", [-3601, 3601, 10**9])
def test_the_time_of_a_host_whose_clock_is_off_is_centrals_and_marked(store, off_s):
    now = 2 * 10**9 * S
    sender = Sender("node1", "cpu", False, Limits(), now)
    off = agent_pb2.VmFacts(vm=VM, unix_ns=now + off_s * S, vcpus=2)
    host = agent_pb2.HostFacts(unix_ns=now + off_s * S, cpus=2)
    rows, rejected = check_facts(agent_pb2.CpiBatch(vm_facts=[off], host_facts=host), sender)
    assert (len(rows), rejected) == (2, {})
    store.take(rows)
    (vm,), (node,) = store.vms_at(now), store.hosts_at(now)
    assert (vm.from_unix_ns, vm.is_received_time) == (node.from_unix_ns, node.is_received_time) == (now, True)


def test_what_comes_late_keeps_its_time_or_is_refused():
    now = 2 * 10**9 * S
    sender = Sender("node1", "cpu", False, Limits(), now)
    late = [agent_pb2.VmFacts(vm=VM, unix_ns=now - days * 86_400 * S) for days in (30, 32)]
    rows, rejected = check_facts(agent_pb2.CpiBatch(vm_facts=late, backlog=True), sender)
    assert [row.unix_ns for row in rows] == [late[0].unix_ns]
    assert rejected == {"bad_facts_time": 1}


def test_too_many_facts_are_counted():
    sender = Sender("node1", "cpu", False, Limits(), S)
    many = [agent_pb2.VmFacts(vm=f"v{number}", unix_ns=S) for number in range(5002)]
    rows, rejected = check_facts(agent_pb2.CpiBatch(vm_facts=many), sender)
    assert (len(rows), rejected) == (5000, {"too_many_facts": 2})


def test_absurd_facts_of_a_host_are_refused():
    sender = Sender("node1", "cpu", False, Limits(), S)
    for absurd in (
        {"cpus": 2**32 - 1},
        {"memory_bytes": 2**64 - 1},
        {"manager": "x" * 10_000},
        {"labels": {str(number): "x" for number in range(17)}},
        {"disks": [agent_pb2.DiskFacts(name="a", size_bytes=2**63)]},
        {"network_cards": [agent_pb2.NetworkCard(name="\x1b[2J")]},
        {"caches": [agent_pb2.CacheDomain()] * 1025},
        {"clock_set_unix_ns": 2**63},
        {"clock_step_s": float("nan")},
        {"clock_step_s": float("-inf")},
    ):
        batch = agent_pb2.CpiBatch(host_facts=agent_pb2.HostFacts(unix_ns=S, **absurd))
        assert check_facts(batch, sender) == ([], {"bad_facts": 1}), absurd


def test_a_vm_that_nobody_names_for_two_days_is_not_known_to_be_there(store):
    day = 86_400
    store.take([vm_row(day), vm_row(2 * day)])
    assert [len(store.vms_at(days * day * S)) for days in (1, 3, 4, 5)] == [1, 1, 1, 0]
    assert len(store.history(VM)) == len(store.find("shop", 5)) == 1


def test_two_replicas_that_keep_the_same_end_with_the_same(tmp_path):
    rows = [vm_row(100, vcpus=2), vm_row(200, vcpus=4), host_row(100, cpus=8)]
    with (
        contextlib.closing(IncidentStore("", tmp_path)) as first,
        contextlib.closing(IncidentStore("", tmp_path)) as second,
    ):
        stores = [FactStore(first), FactStore(second)]
        assert stores[0].take(rows[:2]) + stores[1].take(rows) + stores[0].take(rows) == 3
        assert stores[0].history(VM) == stores[1].history(VM)


def facts_of(sequence, host="node1", spool="s", **facts):
    now = 1000 * S
    batch = agent_pb2.CpiBatch(spool_id=spool, sequence=sequence, **facts)
    raw = agent_pb2.AgentMessage(batch=batch).SerializeToString()
    read = read_batch(batch, raw, Sender(host, "cpu", False, Limits(), now))
    return Submission(
        host, "cpu", spool, sequence, now, read.payload, 0, 0, {}, None, lambda _: None, "", facts=read.facts
    )


async def committed(journal, *submissions):
    for one in submissions:
        journal.submit(one)
    await journal.finish_roll(Roll("none", 0, 0), 0)  # a transaction after those before


async def test_facts_reach_the_database_once_over_failures_and_kills(tmp_path, monkeypatch):
    journal = Journal(tmp_path, replica="r", commit_interval_s=0.001)
    journal.start()
    with contextlib.closing(IncidentStore("", tmp_path)) as database:
        store = FactStore(database)
        recorder = FactRecorder(IncidentsSection(), journal, store, clock_unix_ns=lambda: 1000 * S)
        said = [agent_pb2.VmFacts(vm=VM, unix_ns=1000 * S, vcpus=2)]
        host = agent_pb2.HostFacts(unix_ns=1000 * S, cpus=8)
        first = facts_of(1, vm_facts=said, host_facts=host)
        await committed(journal, first, first)
        assert journal.has_facts.is_set()
        assert len(journal.read_facts(10)) == 2, "a batch counts once"

        def broken(*_arguments):
            raise StoreError("the server is away")

        for whose, name in ((store, "take"), (journal, "forget_facts")):  # away, and killed between both
            with monkeypatch.context() as patch:
                patch.setattr(whose, name, broken)
                with pytest.raises(StoreError):
                    await recorder.record_some()
        assert len(journal.read_facts(10)) == 2
        running = asyncio.create_task(recorder.run())
        async with asyncio.timeout(20):
            while journal.read_facts(1):
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert [one.vcpus for one in store.history(VM)] == [2]
        assert [one.cpus for one in store.hosts_at(1000 * S)] == [8]
    await journal.close()


async def test_the_oldest_facts_go_where_too_many_wait(tmp_path):
    journal = Journal(tmp_path, replica="r", commit_interval_s=0.001, max_events=2)
    journal.start()
    said = [[agent_pb2.VmFacts(vm=f"v{number}", unix_ns=1000 * S)] for number in range(4)]
    await committed(journal, *(facts_of(number, vm_facts=one) for number, one in enumerate(said, 1)))
    assert [row.vm for _, row in journal.read_facts(10)] == ["v2", "v3"]
    assert journal.stats.rejected_events == {"facts_backlog_full": 2}
    await journal.close()


def test_which_vms_are_or_were_of_a_project(store):
    other = f"{VM[:-1]}2"
    store.take([vm_row(100, project="Red"), vm_row(200, project="blue"), vm_row(300, project="blue", gone=True)])
    store.take([vm_row(100, vm=other, host="node2", project="blue", name="Mail-1", job="Mail")])
    assert store.has_project("red") and store.has_project("RED", vm=VM, host="node1", job="shop")
    assert not store.has_project("red", vm=other) and not store.has_project("red", host="node2")
    assert not store.has_project("blue", job="none") and store.has_project("blue", job="mail")
    assert store.of_project("blue", [other, "x", "mail-1", "MAIL-1", VM]) == [other, "mail-1", "MAIL-1", VM]
    assert store.of_project("red", [other, "mail-1"]) == store.of_project("red", []) == []
    assert store.named("mail-1", 9, "blue") == [other] and store.named("mail-1", 9, "red") == []
    assert store.vms_of(["blue"], 0, 2**62, 9) == [VM, other]
    assert store.vms_of(["blue"], 0, 2**62, 9, hosts=["node2", "node3"]) == [other]
    assert store.vms_of(["blue"], 0, 2**62, 9, vms=[VM, "x"]) == [VM]
    assert store.projects_of([VM, other], ["Blue", "red"], 0, 250 * S) == {VM: "Blue", other: "Blue"}
    assert store.projects_of([VM], ["Blue", "red"], 0, 150 * S) == {VM: "red"}
