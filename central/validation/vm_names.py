"""Names of VMs: agents send them with their windows, the lake keeps UUIDs only."""

import re
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Mapping

from central.validation.rows import is_name
from whitepanda.v1 import agent_pb2

_KEPT = 100_000  # twice the VMs of the largest expected fleet
#: Kept of one host, so that it does not push out the names of others.
MAX_NAMES = 2_000
_MAX_VM_BYTES = 64  # a UUID has 36
_MAX_NAME = 256  # characters, as agents cut them
_SHOWN = 5  # names of a VM
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def named(tasks: Iterable[agent_pb2.Task], host: str) -> Iterator[tuple[str, str, str]]:
    """Yield host, UUID and name of a batch's VMs. Names that are too long or unfit for a terminal are left out.

    `host` sends the batch; an importer names its VMs' machines.
    """
    for task in tasks:
        name, vm = task.name, task.vm
        if name and is_name(name, _MAX_NAME) and is_name(vm, _MAX_VM_BYTES) and len(vm.encode()) <= _MAX_VM_BYTES:
            yield task.machine or host, vm, name


class VmNames:
    """Names by host and UUID, in memory, since agents send them again on each stream. The oldest ones go first.

    A host names its own VMs only. So it cannot rename another host's VM, and a VM that migrates has a name per host.
    """

    def __init__(self, kept: int = _KEPT, kept_of_host: int = MAX_NAMES) -> None:
        self._kept = kept
        self._kept_of_host = kept_of_host
        self._of_host: dict[str, dict[str, str]] = {}  # by host: names by UUID, the oldest first
        # Host and UUID, the oldest first. A plain dict would search all deleted entries for its oldest one.
        self._order: OrderedDict[tuple[str, str], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def note(self, names: Iterable[tuple[str, str, str]]) -> None:
        """Remember names, as `named` gives them."""
        for host, vm, name in names:
            self._forget(host, vm)
            mine = self._of_host.setdefault(host, {})
            mine[vm] = name
            self._order[host, vm] = None
            if len(mine) > self._kept_of_host:
                self._forget(host, next(iter(mine)))
        while len(self._order) > self._kept:
            self._forget(*next(iter(self._order)))

    def get(self, vm: str, host: str) -> str:
        """Return a host's name of a VM; "" without one."""
        return self._of_host.get(host, {}).get(vm, "")

    def by_host(self, vm: str) -> dict[str, str]:
        """Return a VM's name by host."""
        return {host: names[vm] for host, names in self._of_host.items() if vm in names}

    def find(self, text: str) -> list[str]:
        """Return the VMs that have this UUID or name. A text in the form of a UUID is tried as one first."""
        known = {text: None} if self.by_host(text) else {}
        if not (known and _UUID.fullmatch(text)):
            for names in self._of_host.values():
                known.update((vm, None) for vm, name in names.items() if name == text)
        return list(known)

    def _forget(self, host: str, vm: str) -> None:
        mine = self._of_host.get(host, {})
        if mine.pop(vm, None) is None:
            return
        del self._order[host, vm]
        if not mine:
            del self._of_host[host]


def shown_name(names: Mapping[str, str], hosts: Container[str]) -> str:
    """Return a VM's name for people, from its names by host; where these differ, all with their hosts.

    Names of `hosts` have precedence: other hosts named it at another time.
    """
    chosen = {host: name for host, name in names.items() if host in hosts} or names
    if len(set(chosen.values())) <= 1:
        return next(iter(chosen.values()), "")
    listed = [f"{name} on {host}" for host, name in sorted(chosen.items())]
    return ", ".join(listed[:_SHOWN]) + (", ..." if len(listed) > _SHOWN else "")
