"""The facts of one VM."""

from typing import NamedTuple

from agent.sampling.changes import Reading
from agent.sampling.vms import Vm
from collector.base import NumaPlacement
from whitepanda.common.messages import message_of
from whitepanda.common.texts import clean_name
from whitepanda.v1 import agent_pb2

_MEMORY_SHARE = 0.1


class VmKey(NamedTuple):
    """The fields of `whitepanda.v1.VmFacts`; None and "" are not known."""

    vm: str
    epoch: str
    name: str
    job: str
    project: str
    flavor: str
    image: str
    owner: str
    manager: str
    vcpus: int | None
    cpu_quota_cores: float | None
    memory_bytes: int | None
    numa_nodes: tuple[int, ...]
    limits: tuple[str, ...]


def key_of(vm: Vm, last: VmKey | None = None, limits: tuple[str, ...] = ()) -> VmKey:
    """Return a VM's facts. Its users choose texts: they are made fit to be shown.

    `limits`: those of `whitepanda act`. What is not read just now is as in its `last` facts.
    """
    identity, facts = vm.identity, vm.identity.facts
    cgroup = vm.now.cgroup
    quota = last.cpu_quota_cores if last else None
    if isinstance(cgroup, Reading):
        quota = cgroup.value.quota_cores
    nodes = _nodes(vm)
    if nodes is None:
        nodes = last.numa_nodes if last else ()
    return VmKey(
        identity.uuid,
        identity.epoch,
        identity.name,
        vm.job,
        clean_name(facts.get("nova:project") or facts.get("pve:pool", "")),
        clean_name(facts.get("nova:flavor", "")),
        clean_name(facts.get("nova:image", "")),
        vm.owner,
        identity.manager,
        identity.vcpus or None,
        quota,
        identity.memory_bytes,
        nodes,
        limits,
    )


def message_from(key: VmKey, unix_ns: int, *, gone: bool = False) -> agent_pb2.VmFacts:
    """Make the message of a VM's facts, as seen at `unix_ns`."""
    return message_of(agent_pb2.VmFacts, key, unix_ns=unix_ns, gone=gone)


def only_named(uuid: str) -> VmKey:
    """Return the key of a VM of which nothing else is known."""
    return VmKey(uuid, "", "", "", "", "", "", "", "", None, None, None, (), ())


def _nodes(vm: Vm) -> tuple[int, ...] | None:
    """Return the nodes that hold a tenth of the VM's memory or more; None: not read.

    Where vCPUs ran last changes all the time.
    """
    reading = vm.now.numa
    if not isinstance(reading, Reading) or not isinstance(reading.value, NumaPlacement):
        return None
    memory = reading.value.memory_bytes
    total = sum(memory.values())
    return tuple(sorted(node for node, size in memory.items() if size and size >= _MEMORY_SHARE * total))
