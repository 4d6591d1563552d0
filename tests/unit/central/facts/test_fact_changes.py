"""What changed on a host, by its versions of facts: VMs that started, went or moved, and limits that were set."""

import contextlib

import pytest

from central.facts.store import FactStore
from central.incidents.store import IncidentStore
from tests.unit.central.facts.test_facts import VM, S, host_row, vm_row
from whitepanda.v1 import fleet_pb2

OTHER = "57500000-0000-4000-8000-000000000002"


@pytest.fixture
def store(tmp_path):
    with contextlib.closing(IncidentStore("", tmp_path)) as database:
        found = FactStore(database)
        found.take([host_row(0, cpus=8), host_row(0, host="node2", cpus=8)])
        yield found


def changed(store, host="node1", since_s=0, until_s=99_999, limit=99) -> list[tuple[int, str, str]]:
    kind = fleet_pb2.ChangeKind.Name
    found = store.changes(host, since_s * S, until_s * S, limit=limit)
    return [(one.unix_ns // S, kind(one.kind).removeprefix("CHANGE_KIND_"), one.text) for one in found]


def test_a_vm_starts_is_limited_starts_anew_and_goes(store):
    store.take([
        vm_row(100, epoch="a", vcpus=4, memory_bytes=1 << 30),
        vm_row(200, epoch="a", vcpus=4, memory_bytes=1 << 30, cpu_quota_cores=2.5),
        vm_row(300, epoch="a", vcpus=2, memory_bytes=2 << 30, cpu_quota_cores=2.5),
        vm_row(400, epoch="b", vcpus=8, memory_bytes=2 << 30),
        vm_row(500, epoch="b", vcpus=8, memory_bytes=2 << 30, numa_nodes=[1]),
        vm_row(600, epoch="b", gone=True),
        vm_row(700, epoch="c"),
    ])  # fmt: skip
    assert changed(store) == [
        (100, "VM_STARTED", "VM shop-1 started"),
        (200, "LIMIT_SET", "VM shop-1 CPU quota none -> 2.5 cores"),
        (300, "LIMIT_SET", "VM shop-1 vCPUs 4 -> 2, memory 1024 -> 2048 MiB"),
        (400, "VM_STARTED", "VM shop-1 was started again"),
        (600, "VM_GONE", "VM shop-1 is gone"),
        (700, "VM_STARTED", "VM shop-1 started"),
    ]
    assert [at for at, *_ in changed(store, since_s=200, until_s=400)] == [200, 300, 400]
    assert [at for at, *_ in changed(store, limit=2)] == [600, 700], "the last ones"
    (one,) = store.changes("node1", 0, 150 * S, limit=9)
    assert (one.vm, one.name) == (VM, "shop-1")


def test_limits_of_act_begin_and_end_beside_those_of_the_owner(store):
    cap = "cap-cpu 2 cores: incident 7"
    store.take([
        vm_row(100, vcpus=4),
        vm_row(200, vcpus=4, limits=["limit-cache 4 ways"]),
        vm_row(300, vcpus=4, limits=[cap], cpu_quota_cores=2),
        vm_row(400, vcpus=4, limits=[cap], cpu_quota_cores=2),
        vm_row(500, vcpus=4),
    ])  # fmt: skip
    assert changed(store, since_s=150) == [
        (200, "REMEDY_BEGUN", "VM shop-1 is limited by whitepanda act: limit-cache 4 ways"),
        (300, "LIMIT_SET", "VM shop-1 CPU quota none -> 2 cores"),
        (300, "REMEDY_ENDED", "VM shop-1 is not limited by whitepanda act any more: limit-cache 4 ways"),
        (300, "REMEDY_BEGUN", f"VM shop-1 is limited by whitepanda act: {cap}"),
        (500, "LIMIT_SET", "VM shop-1 CPU quota 2 -> none cores"),
        (500, "REMEDY_ENDED", f"VM shop-1 is not limited by whitepanda act any more: {cap}"),
    ]
    assert [kind for _, kind, _ in changed(store, until_s=300, limit=2)] == ["REMEDY_ENDED", "REMEDY_BEGUN"]
    assert [one.limits for one in store.vms_at(350 * S)] == [(cap,)]


def test_a_clock_that_was_set_is_a_change_once(store):
    step = {"cpus": 8, "clock_set_unix_ns": 100 * S, "clock_step_s": -90.25}
    again = step | {"clock_set_unix_ns": 400 * S, "clock_step_s": 3600.0}
    rows = [host_row(100, **step), host_row(200, **step, manager="nova"), host_row(300, cpus=8), host_row(400, **again)]
    store.take(rows)
    (one, _) = store.changes("node1", 0, 999 * S, limit=9)
    assert (one.vm, one.name) == ("", "")
    assert changed(store) == [
        (100, "CLOCK_SET", "the clock of host node1 was set by -90.25 s"),
        (400, "CLOCK_SET", "the clock of host node1 was set by +3600 s"),
    ]
    assert changed(store, "node2") == []


def test_a_vm_moves_to_the_other_host_whichever_reports_it_first(store):
    store.take([vm_row(100), vm_row(200, gone=True), vm_row(190, host="node2")])
    store.take([vm_row(100, vm=OTHER), vm_row(200, vm=OTHER, gone=True), vm_row(210, vm=OTHER, host="node2")])
    assert changed(store)[2:] == [(200, "VM_MIGRATED", "VM shop-1 went to host node2")] * 2
    assert changed(store, "node2") == [
        (190, "VM_MIGRATED", "VM shop-1 came from host node1"),
        (210, "VM_MIGRATED", "VM shop-1 came from host node1"),
    ]


def test_a_vm_that_was_elsewhere_long_ago_starts(store):
    store.take([vm_row(100, host="node2"), vm_row(200, host="node2", gone=True), vm_row(9000)])
    assert changed(store) == [(9000, "VM_STARTED", "VM shop-1 started")]
    assert changed(store, "node2")[1:] == [(200, "VM_GONE", "VM shop-1 is gone")]


def test_vms_of_a_host_that_is_new_to_central_have_not_started(store):
    store.take([host_row(5000, host="node3", cpus=8), vm_row(5001, host="node3"), vm_row(5100, host="node3", vm=OTHER)])
    assert changed(store, "node3") == [(5100, "VM_STARTED", "VM shop-1 started")]
    assert changed(store, "node9") == []


def test_a_vm_has_the_project_of_its_last_version(store):
    store.take([vm_row(100, project="Lab"), vm_row(200, project="Shop"), vm_row(300, project="Shop", gone=True)])
    store.take([vm_row(400, host="node9", project="Stolen")])
    assert (store.project("node1", VM), store.project("node1", OTHER)) == ("Shop", "")


def test_a_vm_that_starts_and_soon_moves_away_has_started(store):
    store.take([vm_row(50, vm=OTHER), vm_row(100), vm_row(900, host="node2"), vm_row(910, gone=True)])
    assert changed(store)[-2:] == [
        (100, "VM_STARTED", "VM shop-1 started"),
        (910, "VM_MIGRATED", "VM shop-1 went to host node2"),
    ]
