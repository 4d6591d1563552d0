"""What decisions take from facts: the sizes of hosts and VMs, and CPU quotas. Blocks, as the facts' store does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from central.incidents.store import StoreError
from central.placement.capacity import HostSize, Sizes, VmSize

_PAGE = 1000
_BITS = 8


class Facts(Protocol):
    """The facts' store; each page is by host and VM, after the place that is given. Raises StoreError."""

    def vms_at(self, unix_ns: int, *, after: tuple[str, str], limit: int) -> list[Any]:
        """Return a page of what VMs were at a time."""

    def hosts_at(self, unix_ns: int, *, after: str, limit: int) -> list[Any]:
        """Return a page of what hosts were at a time."""


def sizes_at(facts: Facts | None, unix_ns: int) -> Sizes:
    """Return the sizes of all hosts and VMs at a time; while the store does not answer, `Sizes.problem` says so."""
    if facts is None:
        return Sizes()
    try:
        hosts = {one.host: _host_size(one) for one in _hosts(facts, unix_ns)}
        vms = {one.vm: VmSize(one.vcpus, one.memory_bytes) for one in _newest(_vms(facts, unix_ns))}
    except StoreError as error:
        return Sizes(problem=f"facts of hosts and VMs do not answer: {error}")
    return Sizes(hosts, vms)


def quotas_at(facts: Facts | None, unix_ns: int) -> Mapping[str, float]:
    """Return the CPU quota of each VM at a time, in cores: without one the number of its vCPUs. Raises StoreError."""
    every = () if facts is None else _vms(facts, unix_ns)
    return {one.vm: float(one.cores) for one in _newest(every) if one.cores}


def _host_size(host: Any) -> HostSize:
    speeds = [bits_per_s / _BITS for _, bits_per_s in host.nics if bits_per_s]
    return HostSize(host.cpus, host.memory_bytes, sum(speeds) or None, len(host.disks) or None)


def _newest(records: Iterable[Any]) -> Iterable[Any]:
    """Return one record of each VM: after a migration the host that it left may not have said yet that it is gone."""
    found: dict[str, Any] = {}
    for one in records:
        if one.vm not in found or one.from_unix_ns > found[one.vm].from_unix_ns:
            found[one.vm] = one
    return found.values()


def _vms(facts: Facts, unix_ns: int) -> Iterator[Any]:
    page = facts.vms_at(unix_ns, after=("", ""), limit=_PAGE)
    while page:
        yield from page
        last = page[-1]
        page = facts.vms_at(unix_ns, after=(last.host, last.vm), limit=_PAGE) if len(page) == _PAGE else []


def _hosts(facts: Facts, unix_ns: int) -> Iterator[Any]:
    page = facts.hosts_at(unix_ns, after="", limit=_PAGE)
    while page:
        yield from page
        page = facts.hosts_at(unix_ns, after=page[-1].host, limit=_PAGE) if len(page) == _PAGE else []
