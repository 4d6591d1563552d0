"""What VMs are called: agents say so with their windows, the lake keeps UUIDs only."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from central.validation.rows import is_name
from whitepanda.v1 import agent_pb2

__all__ = ["MAX_NAMES", "VmNames", "named"]

_KEPT = 100_000  # twice the VMs of the largest fleet that is reckoned with
#: Kept of one host, so that it does not push out the names of others.
MAX_NAMES = 2_000
_MAX_VM_BYTES = 64  # a UUID has 36
_MAX_NAME = 256  # characters, as agents cut them


def named(tasks: Iterable[agent_pb2.Task]) -> Iterator[tuple[str, str]]:
    """Yield a batch's VMs and their names. Names unfit for a terminal or too long are none."""
    for task in tasks:
        name, vm = task.name, task.vm
        if (
            name
            and is_name(name, _MAX_NAME)
            and is_name(vm, _MAX_VM_BYTES)
            and len(vm.encode()) <= _MAX_VM_BYTES
        ):
            yield vm, name


class VmNames:
    """Names by UUID, in memory: agents say them anew on each of their streams. Those said longest ago go first.

    Args:
        kept: at most so many.
        kept_of_host: at most so many of one host.

    """

    def __init__(self, kept: int = _KEPT, kept_of_host: int = MAX_NAMES) -> None:
        self._kept = kept
        self._kept_of_host = kept_of_host
        self._names: OrderedDict[str, tuple[str, str]] = (
            OrderedDict()
        )  # by VM: its name, the host that said it
        self._of_host: dict[str, OrderedDict[str, None]] = {}  # VMs

    def __len__(self) -> int:
        return len(self._names)

    def note(self, host: str, names: Iterable[tuple[str, str]]) -> None:
        """Remember what a host calls its VMs: pairs as `named` gives them."""
        for vm, name in names:
            self._forget(vm)
            self._names[vm] = (name, host)
            mine = self._of_host.setdefault(host, OrderedDict())
            mine[vm] = None
            if len(mine) > self._kept_of_host:
                self._forget(next(iter(mine)))
        while len(self._names) > self._kept:
            self._forget(next(iter(self._names)))

    def knows(self, vm: str) -> bool:
        """Whether a VM has this UUID or name."""
        return vm in self._names or any(name == vm for name, _ in self._names.values())

    def uuids(self, name: str) -> list[str]:
        """Return the VMs that have this name."""
        return [vm for vm, (known, _) in self._names.items() if known == name]

    def get(self, vm: str) -> str:
        """Return the VM's name, "" where it is not known."""
        return self._names.get(vm, ("", ""))[0]

    def _forget(self, vm: str) -> None:
        if (known := self._names.pop(vm, None)) is None:
            return
        mine = self._of_host[known[1]]
        del mine[vm]
        if not mine:
            del self._of_host[known[1]]
