"""Versions of facts as values. What is not known is None or ""."""

from dataclasses import dataclass
from typing import Any

from whitepanda.v1 import agent_pb2


@dataclass(frozen=True, slots=True)
class VmRecord:
    """What a VM was from `from_unix_ns` to `until_unix_ns` (0: it still is). A VM that is gone has an end."""

    host: str
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
    limits: tuple[str, ...]  # that `whitepanda act` had in force
    from_unix_ns: int
    until_unix_ns: int
    is_received_time: bool = False  # the host's clock was off: it began when central heard of it

    @property
    def cores(self) -> float | None:
        """How many cores it may use: its CPU quota, without one the number of its vCPUs."""
        return self.cpu_quota_cores if self.cpu_quota_cores is not None else self.vcpus


@dataclass(frozen=True, slots=True)
class HostRecord:
    """What a host was, likewise.

    `llc` are (first CPU, bytes, CPUs), `nics` (name, bits per second), `disks` (name, bytes, whether it turns).
    """

    host: str
    cpus: int | None
    memory_bytes: int | None
    llc: tuple[tuple[int, int, int], ...]
    nics: tuple[tuple[str, int | None], ...]
    disks: tuple[tuple[str, int, bool | None], ...]
    manager: str
    labels: dict[str, str]
    from_unix_ns: int
    until_unix_ns: int
    is_received_time: bool = False  # likewise


def _known(facts: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(facts, name) if facts.HasField(name) else None for name in names}


def vm_record(host: str, payload: bytes, from_unix_ns: int, until_unix_ns: int) -> VmRecord:
    """Make a VM's version of its message."""
    facts = agent_pb2.VmFacts.FromString(payload)
    texts = {name: getattr(facts, name) for name in VmRecord.__annotations__ if hasattr(facts, name)}
    texts |= _known(facts, "vcpus", "cpu_quota_cores", "memory_bytes")
    texts |= {"numa_nodes": tuple(facts.numa_nodes), "limits": tuple(facts.limits)}
    return VmRecord(host=host, from_unix_ns=from_unix_ns, until_unix_ns=until_unix_ns, **texts)


def host_record(host: str, payload: bytes, from_unix_ns: int, until_unix_ns: int) -> HostRecord:
    """Make a host's version of its message."""
    facts = agent_pb2.HostFacts.FromString(payload)
    known = _known(facts, "cpus", "memory_bytes")
    return HostRecord(
        host=host,
        cpus=known["cpus"],
        memory_bytes=known["memory_bytes"],
        llc=tuple((one.first_cpu, one.size_bytes, one.cpus) for one in facts.caches),
        nics=tuple((one.name, one.bits_per_s if one.HasField("bits_per_s") else None) for one in facts.network_cards),
        disks=tuple(
            (one.name, one.size_bytes, one.rotational if one.HasField("rotational") else None) for one in facts.disks
        ),
        manager=facts.manager,
        labels=dict(facts.labels),
        from_unix_ns=from_unix_ns,
        until_unix_ns=until_unix_ns,
        is_received_time=facts.is_received_time,
    )
