"""Which NUMA nodes share a last-level cache: VMs of different domains cannot be each other's cache suspects.

From /sys: a node's CPUs, and of each CPU's outermost cache the CPUs that share it. Nodes that share a cache are one
domain (sub-NUMA clusters); the caches of one node are one domain too (AMD's complexes: threads move between them).
"""

from collections.abc import Mapping
from pathlib import Path

from collector.base import NumaPlacement
from collector.inventory.numa import node_cpus
from collector.proc_parse import parse_cpu_list

# A VM is on each node that holds at least this share of its memory: its traffic goes through there.
_MEMORY_SHARE = 0.1


def llc_domains(sys_root: str = "/sys") -> dict[int, int]:
    """Return the domain of each node that has CPUs, named by its first node. Read once: it does not change.

    Empty where some CPU's caches are unknown to the kernel (many guests, some arm64), or there are no nodes.
    """
    nodes: dict[int, list[int]] = {}
    for number, cpus in node_cpus(sys_root):
        if cpus is None:
            return {}
        if cpus:
            nodes[number] = cpus
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

    Empty where that is unknown. Nodes without CPUs have no cache, so memory there does not count.
    """
    nodes = {node for node, count in placement.vcpus.items() if count}
    if not nodes or not nodes <= domain_of_node.keys():
        return frozenset()
    total = sum(placement.memory_bytes.values())
    nodes |= {node for node, size in placement.memory_bytes.items() if size and size >= _MEMORY_SHARE * total}
    return frozenset(domain_of_node[node] for node in nodes if node in domain_of_node)


def _sharing(caches: Path) -> set[int]:
    """Return the CPUs that share the outermost cache; empty where that is unknown."""
    best, shared = 0, set[int]()
    for index in caches.glob("index[0-9]*"):
        try:
            level = int((index / "level").read_text())
            if level > best:
                best, shared = level, set(parse_cpu_list((index / "shared_cpu_list").read_text()))
        except (OSError, ValueError):
            continue
    return shared
