import errno
import os
from pathlib import Path

import pytest

from collector.base import NumaPlacement, Reason
from collector.inventory import numa
from collector.inventory.numa import Numa, parse_numa_maps, parse_numa_stat_v1, parse_numa_stat_v2

V2 = b"anon N0=4096 N1=8192\nfile N0=100 N1=200\nkernel_stack N0=1 N1=2\nshmem N0=1000 N1=0\nfile_mapped N0=5 N1=5\n"
V1 = b"total=3 N0=2 N1=1\nfile=1 N0=1 N1=0\nanon=2 N0=1 N1=1\nhierarchical_total=30 N0=20 N1=10\n"
MAPS = (
    b"55b0 default file=/usr/bin/qemu mapped=7 N0=7 kernelpagesize_kB=4\n"
    b"7f00 default anon=300 dirty=300 N0=100 N1=200 kernelpagesize_kB=4\n"
    b"7f40 bind:1 file=/dev/hugepages/x\\040(deleted) huge anon=3 dirty=3 N1=3 kernelpagesize_kB=2048\n"
    b"7fff default stack\n"
)


@pytest.fixture
def two_nodes(host, tmp_path):
    for node, cpus in ((0, "0-1,4"), (1, "2-3"), (2, "")):  # node 2 has memory only
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")
    host.vm("a", 10, [11, 12, 13])
    for tid, cpu in ((11, 4), (12, 2), (13, 3)):
        path = host.proc / f"10/task/{tid}/stat"
        words = path.read_text().rsplit(") ", 1)
        fields = words[1].split()
        fields[39 - 3] = str(cpu)
        path.write_text(f"{words[0]}) {' '.join(fields)}\n")
    sizes(host, resident_kb=1000)
    return Numa(str(host.proc), str(tmp_path / "sys"))


def sizes(host, *, resident_kb, huge_kb=0):
    text = f"VmRSS:\t{resident_kb} kB\nHugetlbPages:\t{huge_kb} kB\n"
    (host.proc / "10/status").write_text(text)


def group(tmp_path, name, text):
    (tmp_path / name).mkdir()
    (tmp_path / name / "memory.numa_stat").write_bytes(text)
    return str(tmp_path / name)


def test_texts():
    assert parse_numa_stat_v2(V2) == {0: 5096, 1: 8192}
    assert parse_numa_stat_v1(V1) == {0: 20 * 4096, 1: 10 * 4096}
    assert parse_numa_stat_v1(V1.splitlines()[0]) == {0: 2 * 4096, 1: 4096}
    assert parse_numa_maps(MAPS) == {0: 107 * 4096, 1: 200 * 4096 + 3 * 2048 * 1024}
    for parse in (parse_numa_stat_v1, parse_numa_stat_v2, parse_numa_maps):
        with pytest.raises(ValueError, match="node"):
            parse(b"nonsense\n")


def test_the_groups_memory_and_the_vcpus_nodes(two_nodes, tmp_path):
    v2, v1 = group(tmp_path, "v2", V2), group(tmp_path, "v1", V1)
    assert two_nodes.place(10, [11, 12, 13], v2, None) == NumaPlacement({0: 5096, 1: 8192}, {0: 1, 1: 2})
    assert two_nodes.place(10, [11], None, v1) == NumaPlacement({0: 20 * 4096, 1: 10 * 4096}, {0: 1})
    # Hybrid: the v2 group has no memory controller.
    (tmp_path / "v2/memory.numa_stat").unlink()
    assert two_nodes.place(10, [11], v2, v1).memory_bytes == {0: 20 * 4096, 1: 10 * 4096}


def test_huge_pages_are_in_numa_maps_only(two_nodes, host, tmp_path):
    sizes(host, resident_kb=1000, huge_kb=6144)
    (host.proc / "10/numa_maps").write_bytes(MAPS)
    placement = two_nodes.place(10, [12], group(tmp_path, "v2", V2), None)
    assert placement == NumaPlacement({0: 107 * 4096, 1: 200 * 4096 + 3 * 2048 * 1024}, {1: 1})


def test_without_a_group_numa_maps_is_read_if_it_is_not_too_dear(two_nodes, host):
    (host.proc / "10/numa_maps").write_bytes(MAPS)
    assert two_nodes.place(10, [], None, None).memory_bytes[0] == 107 * 4096
    sizes(host, resident_kb=numa.MAX_WALK_BYTES // 1024 + 1)
    assert two_nodes.place(10, [], None, None) is Reason.NOT_PRESENT


def test_a_numa_maps_that_may_not_be_read(two_nodes, host, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(numa, "read_whole", refuse)
    assert two_nodes.place(10, [11], None, None) is Reason.NO_PERMISSION


def test_a_vm_that_ended_and_a_cpu_on_no_node(two_nodes, host, tmp_path):
    v2 = group(tmp_path, "v2", V2)
    assert two_nodes.place(10, [99], v2, None) is Reason.NOT_PRESENT
    assert two_nodes.place(77, [], v2, None) is Reason.NOT_PRESENT
    two_nodes._node_of.clear()
    assert two_nodes.place(10, [11], v2, None) is Reason.INVALID_VALUE


def test_a_kernel_without_numa_is_one_node(host, tmp_path):
    host.vm("a", 10, [11, 12])
    sizes(host, resident_kb=1, huge_kb=2)
    assert Numa(str(host.proc), str(tmp_path / "none")).place(10, (11, 12), None, None) == NumaPlacement(
        {0: 3072}, {0: 2}
    )


def test_this_process_on_this_host():
    """The real files: this process' memory by node is what it has resident, within what it loads meanwhile."""
    if not Path("/proc/self/numa_maps").exists():
        pytest.skip("needs a kernel with CONFIG_NUMA")
    memory = sum(parse_numa_maps(Path("/proc/self/numa_maps").read_bytes()).values())
    placement = Numa().place(os.getpid(), [os.getpid()], None, None)
    assert sum(placement.vcpus.values()) == 1
    assert memory == pytest.approx(sum(placement.memory_bytes.values()), rel=0.1)
