"""What VMs are called: agents say so with their windows, the lake keeps UUIDs only."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from central.validate import is_name
from whitepanda.v1 import agent_pb2

__all__ = ["VmNames"]

_KEPT = 100_000  # twice the VMs of the largest fleet that is reckoned with


class VmNames:
    """Names by UUID, in memory: agents say them anew on each of their streams. Those said longest ago go first.

    Args:
        kept: at most so many.

    """

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._names: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def note(self, tasks: Iterable[agent_pb2.Task]) -> None:
        """Remember what a batch's VMs are called. Names unfit for a terminal or too long are none."""
        for task in tasks:
            if is_name(task.name) and is_name(task.vm):
                self._names[task.vm] = task.name
                self._names.move_to_end(task.vm)
        while len(self._names) > self._kept:
            self._names.popitem(last=False)

    def knows(self, vm: str) -> bool:
        """Whether a VM has this UUID or name."""
        return vm in self._names or vm in self._names.values()

    def uuids(self, name: str) -> list[str]:
        """Return the VMs that have this name."""
        return [vm for vm, known in self._names.items() if known == name]

    def get(self, vm: str) -> str:
        """Return the VM's name, "" where it is not known."""
        return self._names.get(vm, "")
