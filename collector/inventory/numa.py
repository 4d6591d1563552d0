"""On which NUMA nodes a VM's memory and vCPUs are, and which nodes share a last-level cache.

Placements are expensive to read and change slowly, so they are read rarely. VMs of different cache domains cannot be
each other's cache suspects. Nodes that share a cache are one domain (sub-NUMA clusters); so are a node's several caches
(AMD's complexes: threads move between them).
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from collector.base import NumaPlacement, Reason
from collector.files import NO_FD, read_once, reason_of
from collector.proc_parse import parse_cpu_list, parse_task_stat

#: Beyond this much memory in small pages numa_maps is not read: the kernel walks every page, 12 ms per GiB, and holds
#: the process's memory lock meanwhile.
MAX_WALK_BYTES = 4 << 30

# A VM is on each node that holds at least this share of its memory: its traffic goes through there.
_MEMORY_SHARE = 0.1

_NODE = re.compile(rb"\bN(\d+)=(\d+)")
_PAGE_KB = re.compile(rb"\bkernelpagesize_kB=(\d+)")
_PAGE_BYTES = 4096
_MAPS_BYTES = 16 << 20


class Numa:
    """The host's nodes, and where processes are on them. A kernel without NUMA has one node, 0."""

    def __init__(self, proc_root: str = "/proc", sys_root: str = "/sys") -> None:
        self._proc = Path(proc_root)
        found = dict(node_cpus(sys_root))
        self._nodes = [node for node, cpus in found.items() if cpus is not None]
        self._node_of = {cpu: node for node, cpus in found.items() for cpu in cpus or ()}

    def place(self, pid: int, tids: Iterable[int], v2: str | None, v1: str | None) -> NumaPlacement | Reason:
        """Return where a VM is, or why that is unknown.

        Memory comes from the VM's own control group (folder `v2`, else `v1` of the memory controller): its anonymous
        and shared memory (v1: its page cache as well). A group does not count huge pages: with them, or without such a
        group, memory comes from /proc/PID/numa_maps. On a host of one node it is all there.
        """
        try:
            status = b"\n" + read_once(f"{self._proc}/{pid}/status")
            resident, huge = _size(status, b"\nVmRSS:"), _size(status, b"\nHugetlbPages:")
            if len(self._nodes) <= 1:
                node = self._nodes[0] if self._nodes else 0
                return NumaPlacement({node: resident + huge}, {node: sum(1 for _ in tids)})
            memory = None if huge else _group_memory(v2, v1)
            if memory is None:
                if resident > MAX_WALK_BYTES:
                    return Reason.NOT_PRESENT
                memory = parse_numa_maps(read_whole(f"{self._proc}/{pid}/numa_maps"))
            return NumaPlacement(memory, self._vcpus(pid, tids))
        except (OSError, ValueError) as error:
            return reason_of(error)

    def _vcpus(self, pid: int, tids: Iterable[int]) -> dict[int, int]:
        """Count the vCPU threads by the node of the CPU that each ran on last."""
        stats = (parse_task_stat(read_once(f"{self._proc}/{pid}/task/{tid}/stat")) for tid in tids)
        counts = Counter(self._node_of.get(stat.last_cpu) for stat in stats)
        if None in counts:
            raise ValueError("a vCPU's last CPU is not on a known node")
        return {node: count for node, count in counts.items() if node is not None}


def node_cpus(sys_root: str) -> Iterator[tuple[int, list[int] | None]]:
    """Yield the host's NUMA nodes with their CPUs; None if these cannot be read."""
    for folder in sorted(Path(sys_root, "devices/system/node").glob("node[0-9]*")):
        try:
            cpus = parse_cpu_list((folder / "cpulist").read_text())
        except (OSError, ValueError):
            cpus = None
        yield int(folder.name.removeprefix("node")), cpus


def parse_numa_stat_v2(text: bytes) -> dict[int, int]:
    """Return anonymous and shared memory in bytes by node, without page cache, of a v2 memory.numa_stat.

    Raises ValueError if there is neither.
    """
    return _sum_nodes((line, 1) for line in text.splitlines() if line.startswith((b"anon ", b"shmem ")))


def parse_numa_stat_v1(text: bytes) -> dict[int, int]:
    """Return memory in bytes by node, with page cache, of a v1 memory.numa_stat. Raises ValueError without a total."""
    lines = text.splitlines()
    for name in (b"hierarchical_total=", b"total="):
        if total := [line for line in lines if line.startswith(name)]:
            break
    return _sum_nodes((line, _PAGE_BYTES) for line in total)


def parse_numa_maps(text: bytes) -> dict[int, int]:
    """Return resident memory in bytes by node from /proc/PID/numa_maps. ValueError: no line has a page size."""
    sized = [(line, int(page[1]) * 1024) for line in text.splitlines() if (page := _PAGE_KB.search(line))]
    return _sum_nodes(sized) if not sized or any(_NODE.search(line) for line, _ in sized) else {}


def read_whole(path: str) -> bytes:
    """Read a file that is long, up to 16 MiB."""
    with Path(path).open("rb") as file:
        return file.read(_MAPS_BYTES)


def _size(text: bytes, name: bytes) -> int:
    """Return a size of /proc/PID/status in bytes; 0 without such a line."""
    _, found, rest = text.partition(name)
    return int(rest[: rest.index(b"kB")]) * 1024 if found else 0


def _group_memory(v2: str | None, v1: str | None) -> dict[int, int] | None:
    """Return a control group's memory by node; None if it is unknown."""
    for folder, parse in ((v2, parse_numa_stat_v2), (v1, parse_numa_stat_v1)):
        if folder is not None:
            try:
                return parse(read_once(f"{folder}/memory.numa_stat", _MAPS_BYTES))
            except (OSError, ValueError) as error:
                if getattr(error, "errno", 0) in NO_FD:
                    raise
                continue  # the controller is off here: the next way
    return None


def _sum_nodes(lines: Iterable[tuple[bytes, int]]) -> dict[int, int]:
    """Sum the amounts by node of lines, each with its unit in bytes. Raises ValueError without any node."""
    memory: Counter[int] = Counter()
    for line, unit_bytes in lines:
        for node, amount in _NODE.findall(line):
            memory[int(node)] += int(amount) * unit_bytes
    if not memory:
        raise ValueError("no memory by node")
    return dict(memory)


def llc_domains(sys_root: str = "/sys") -> dict[int, int]:
    """Return the domain of each node that has CPUs, named by its first node. Read once: it does not change.

    Empty if some CPU's caches are unknown to the kernel (many guests, some arm64), or there are no nodes.
    """
    found = dict(node_cpus(sys_root))
    if None in found.values():
        return {}
    nodes = {node: cpus for node, cpus in found.items() if cpus}
    domain = {node: node for node in nodes}
    node_of = {cpu: node for node, cpus in nodes.items() for cpu in cpus}
    seen: set[int] = set()
    for node in sorted(nodes):
        for cpu in nodes[node]:
            if cpu in seen:
                continue
            shared = _sharing(Path(sys_root, f"devices/system/cpu/cpu{cpu}/cache"))
            if cpu not in shared:
                return {}
            seen |= shared
            together = {domain[node_of[each]] for each in shared if each in node_of}
            domain = {each: min(together) if d in together else d for each, d in domain.items()}
    return domain


def domains_of(placement: NumaPlacement, domain_of_node: Mapping[int, int]) -> frozenset[int]:
    """Return the domains that a VM is in now: where its vCPUs ran last, and where a tenth of its memory or more is.

    Empty if that is unknown. Nodes without CPUs have no cache, so memory there does not count.
    """
    nodes = {node for node, count in placement.vcpus.items() if count}
    if not nodes or not nodes <= domain_of_node.keys():
        return frozenset()
    total = sum(placement.memory_bytes.values())
    nodes |= {node for node, size in placement.memory_bytes.items() if size and size >= _MEMORY_SHARE * total}
    return frozenset(domain_of_node[node] for node in nodes if node in domain_of_node)


def _sharing(caches: Path) -> set[int]:
    """Return the CPUs that share the outermost cache; empty if that is unknown."""
    best, shared = 0, set[int]()
    for index in caches.glob("index[0-9]*"):
        try:
            level = int((index / "level").read_text())
            if level > best:
                best, shared = level, set(parse_cpu_list((index / "shared_cpu_list").read_text()))
        except (OSError, ValueError):
            continue
    return shared
