"""Which nodes share a cache, and where a VM is."""

from pathlib import Path

import pytest

from collector.base import NumaPlacement
from collector.inventory.numa import domains_of, llc_domains


def host(root: Path, nodes: dict[int, str], caches: dict[str, str]) -> Path:
    """Nodes with their CPUs; of each CPU which share its L3. All have an L1 and an L2 of their own."""
    for node, cpus in nodes.items():
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")
    for shared, cpus in caches.items():
        for cpu in cpus.split(","):
            for index, (level, list_) in enumerate((("1", cpu), ("2", cpu), ("3", shared))):
                folder = root / f"devices/system/cpu/cpu{cpu}/cache/index{index}"
                folder.mkdir(parents=True)
                (folder / "level").write_text(level + "\n")
                (folder / "shared_cpu_list").write_text(list_ + "\n")
    return root


TWO_SOCKETS = ({0: "0-1,4-5", 1: "2-3,6-7"}, {"0-1,4-5": "0,1,4,5", "2-3,6-7": "2,3,6,7"})


def test_two_sockets_are_two_domains(tmp_path):
    assert llc_domains(str(host(tmp_path, *TWO_SOCKETS))) == {0: 0, 1: 1}


def test_nodes_of_one_cache_are_one_domain(tmp_path):
    nodes = {0: "0", 1: "1", 2: "2", 3: "3"}
    assert llc_domains(str(host(tmp_path, nodes, {"0-1": "0,1", "2-3": "2,3"}))) == {0: 0, 1: 0, 2: 2, 3: 2}


def test_caches_of_one_node_are_one_domain(tmp_path):
    found = llc_domains(str(host(tmp_path, {0: "0-3"}, {"0-1": "0,1", "2-3": "2,3"})))
    assert found == {0: 0}


def test_a_node_of_memory_only_has_none(tmp_path):
    assert llc_domains(str(host(tmp_path, {0: "0-1", 2: ""}, {"0-1": "0,1"}))) == {0: 0}


@pytest.mark.parametrize("lost", ["cache", "cache/index2/shared_cpu_list", "node"])
def test_what_the_kernel_does_not_tell_is_no_topology(tmp_path, lost):
    root = host(tmp_path, *TWO_SOCKETS)
    if lost == "node":
        (root / "devices/system/node/node1/cpulist").write_text("nonsense")
    elif lost == "cache":
        (root / "devices/system/cpu/cpu2/cache").rename(root / "gone")
    else:
        for index in (0, 1, 2):
            (root / f"devices/system/cpu/cpu2/cache/index{index}/shared_cpu_list").unlink()
    assert llc_domains(str(root)) == {}
    assert llc_domains(str(tmp_path / "nothing")) == {}


@pytest.mark.parametrize(
    ("memory", "vcpus", "domains"),
    [
        ({0: 100, 1: 0}, {0: 2}, {0}),
        ({0: 100, 1: 9}, {0: 2}, {0}),  # a little that was left behind
        ({0: 90, 1: 10}, {0: 2}, {0, 1}),
        ({0: 100}, {0: 1, 1: 1}, {0, 1}),
        ({0: 100}, {1: 2}, {0, 1}),  # its memory traffic goes through the other socket
        ({0: 50, 7: 50}, {0: 1}, {0}),  # memory without CPUs
        ({0: 100}, {7: 1}, set()),  # another host's, such as of a recording
        ({0: 100}, {}, set()),
        ({}, {1: 1}, {1}),
    ],
)
def test_where_a_vm_is(memory, vcpus, domains):
    assert domains_of(NumaPlacement(memory, vcpus), {0: 0, 1: 1}) == domains
