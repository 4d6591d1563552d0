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


def key_of(vm: Vm) -> VmKey:
    """Return a VM's facts. Its users choose texts: they are made fit to be shown."""
    identity, facts = vm.identity, vm.identity.facts
    cgroup = vm.now.cgroup
    quota = cgroup.value.quota_cores if isinstance(cgroup, Reading) else None
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
        _nodes(vm),
    )


def message_from(key: VmKey, unix_ns: int, *, gone: bool = False) -> agent_pb2.VmFacts:
    """Make the message of a VM's facts, as seen at `unix_ns`."""
    return message_of(agent_pb2.VmFacts, key, unix_ns=unix_ns, gone=gone)


def _nodes(vm: Vm) -> tuple[int, ...]:
    """Return the nodes that hold a tenth of the VM's memory or more. Where vCPUs ran last changes all the time."""
    reading = vm.now.numa
    if not isinstance(reading, Reading) or not isinstance(reading.value, NumaPlacement):
        return ()
    memory = reading.value.memory_bytes
    total = sum(memory.values())
    return tuple(sorted(node for node, size in memory.items() if size and size >= _MEMORY_SHARE * total))
