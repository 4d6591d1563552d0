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
